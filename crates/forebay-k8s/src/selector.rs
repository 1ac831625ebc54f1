//! Label selectors as kubectl writes them: `a=b,c!=d,e in (f,g),h,!i` (Kubernetes: "Labels and Selectors").

use std::collections::BTreeMap;

/// Longest name or value of a label.
const LONGEST: usize = 317;
/// Most requirements.
const MOST: usize = 64;

/// One condition on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Missing(String),
    In(String, Vec<String>),
    /// Also where the label is missing.
    NotIn(String, Vec<String>),
}

/// Selector of labels. All requirements have to be met; without any, all objects are selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Selector, String> {
        let mut requirements = Vec::new();
        for part in split(text)? {
            requirements
                .push(requirement(part.trim()).ok_or_else(|| format!("\"{part}\" is no requirement"))?);
        }
        if requirements.len() > MOST {
            return Err(format!("more than {MOST} requirements"));
        }
        Ok(Selector(requirements))
    }

    /// Returns `true` if it selects all objects.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` for labels that meet all requirements.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::Exists(name) => labels.contains_key(name),
            Requirement::Missing(name) => !labels.contains_key(name),
            Requirement::In(name, values) => labels.get(name).is_some_and(|value| values.contains(value)),
            Requirement::NotIn(name, values) => labels.get(name).is_none_or(|value| !values.contains(value)),
        })
    }
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' if depth == 0 => depth = 1,
            ')' if depth == 1 => depth = 0,
            '(' | ')' => return Err("the parentheses do not match".into()),
            ',' if depth == 0 => {
                parts.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth != 0 {
        return Err("the parentheses do not match".into());
    }
    if !text.trim().is_empty() {
        parts.push(text.get(start..).unwrap_or_default());
    }
    Ok(parts)
}

fn requirement(text: &str) -> Option<Requirement> {
    if let Some(name) = text.strip_prefix('!') {
        return Some(Requirement::Missing(word(name)?));
    }
    if let Some((name, value)) = text.split_once("!=") {
        return Some(Requirement::NotIn(word(name)?, vec![value_of(value)?]));
    }
    if let Some((name, value)) = text.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return Some(Requirement::In(word(name)?, vec![value_of(value)?]));
    }
    let Some((head, rest)) = text.split_once('(') else { return Some(Requirement::Exists(word(text)?)) };
    let values = rest.strip_suffix(')')?.split(',').map(value_of).collect::<Option<Vec<String>>>()?;
    let (name, operator) = head.trim_end().rsplit_once(char::is_whitespace)?;
    match operator {
        "in" => Some(Requirement::In(word(name)?, values)),
        "notin" => Some(Requirement::NotIn(word(name)?, values)),
        _ => None,
    }
}

/// Reads the name of a label: letters, digits and `-_./`.
fn word(text: &str) -> Option<String> {
    value_of(text).filter(|name| !name.is_empty())
}

/// Reads a value, which may be empty.
fn value_of(text: &str) -> Option<String> {
    let text = text.trim();
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/');
    (text.len() <= LONGEST && text.bytes().all(allowed)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_those_of_kubectl() {
        let labels: BTreeMap<String, String> =
            [("team", "web"), ("stage", "live"), ("a.b/c", "")].map(|(k, v)| (k.into(), v.into())).into();
        for (text, matches) in [
            ("", true),
            ("team=web", true),
            ("team==web", true),
            ("team = web , stage=live", true),
            ("team=other", false),
            ("team!=web", false),
            ("none!=web", true),
            ("team in (a, web)", true),
            ("team in (a,b),stage=live", false),
            ("team notin (a,b)", true),
            ("none notin (a)", true),
            ("team", true),
            ("none", false),
            ("!none", true),
            ("!team", false),
            ("a.b/c=", true),
        ] {
            let selector = Selector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(selector.matches(&labels), matches, "{text}");
        }
        for text in ["=a", "a b", "a in b", "a in (b", "a in ((b))", "a,,b", "a=b;c", "a of (b)", "!", "a,"] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
    }
}
