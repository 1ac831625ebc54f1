//! Patterns whose meaning can be told without an engine. Most patterns of locations are a few texts, and it takes longer to compile
//! one than to do all else that the rules do with it.

/// Most texts of a pattern.
const MOST: usize = 64;

/// Pattern of some texts, of which a path has to have one: `\.(css|js)$`.
#[derive(Debug)]
pub(crate) struct Texts {
    begins: bool,
    ends: bool,
    is_caseless: bool,
    texts: Vec<String>,
}

impl Texts {
    /// Reads a pattern. Returns `None` if it is more than texts.
    pub(crate) fn of(pattern: &str, is_caseless: bool) -> Option<Texts> {
        if !pattern.is_ascii() {
            return None;
        }
        let pattern = if is_caseless { pattern.to_ascii_lowercase() } else { pattern.to_owned() };
        let rest = pattern.strip_prefix('^');
        let mut all = Texts { begins: rest.is_some(), ends: false, is_caseless, texts: vec![String::new()] };
        let mut rest = rest.unwrap_or(&pattern);
        while !rest.is_empty() {
            if rest == "$" {
                all.ends = true;
                break;
            }
            match rest.strip_prefix('(') {
                Some(group) => {
                    let (inner, behind) = group.split_once(')')?;
                    all.extend(inner.strip_prefix("?:").unwrap_or(inner))?;
                    rest = behind;
                }
                None => {
                    let (c, behind) = letter(rest)?;
                    all.texts.iter_mut().for_each(|text| text.push(c));
                    rest = behind;
                }
            }
        }
        Some(all)
    }

    /// Adds each of some alternatives to each text.
    fn extend(&mut self, alternatives: &str) -> Option<()> {
        let mut extended = Vec::new();
        for alternative in alternatives.split('|') {
            let mut word = String::new();
            let mut rest = alternative;
            while !rest.is_empty() {
                let (c, behind) = letter(rest)?;
                word.push(c);
                rest = behind;
            }
            extended.extend(self.texts.iter().map(|text| format!("{text}{word}")));
        }
        self.texts = extended;
        (self.texts.len() <= MOST).then_some(())
    }

    /// Returns `true` if a path matches. One with a line end is for an engine.
    pub(crate) fn is_match(&self, path: &str) -> bool {
        let lower = self.is_caseless.then(|| path.to_ascii_lowercase());
        let path = lower.as_deref().unwrap_or(path);
        self.texts.iter().any(|text| match (self.begins, self.ends) {
            (true, true) => path == text,
            (true, false) => path.starts_with(text.as_str()),
            (false, true) => path.ends_with(text.as_str()),
            (false, false) => path.contains(text.as_str()),
        })
    }
}

/// Returns the character that stands at the beginning of a pattern for itself, and what is behind it.
fn letter(pattern: &str) -> Option<(char, &str)> {
    let mut chars = pattern.chars();
    let c = match chars.next()? {
        '\\' => chars.next().filter(char::is_ascii_punctuation)?,
        c if c.is_ascii_alphanumeric() || "/-_,:;%=&~@!".contains(c) => c,
        _ => return None,
    };
    Some((c, chars.as_str()))
}

/// Returns `true` if a pattern certainly needs no backtracking: it has groups, classes and repeats alone.
pub(crate) fn is_regular(pattern: &[u8]) -> bool {
    let mut before = 0;
    let mut rest = pattern.iter().copied().peekable();
    while let Some(b) = rest.next() {
        let fits = match b {
            b'\\' => rest.next().is_some_and(|b| b.is_ascii_punctuation() || b"dwsDWS".contains(&b)),
            // A repeat that gives nothing back.
            b'+' => !b"+*?}".contains(&before),
            b'(' => rest.peek() != Some(&b'?') && rest.peek() != Some(&b'*'),
            b'[' | b']' | b')' | b'{' | b'}' | b'|' | b'^' | b'$' | b'.' | b'*' | b'?' => true,
            _ => b.is_ascii_alphanumeric() || b"/-_,:;%=&~@! ".contains(&b),
        };
        if !fits {
            return false;
        }
        // An escaped sign is none.
        before = if b == b'\\' { 0 } else { b };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::pattern::{matcher, needs_backtracking};

    #[test]
    fn texts_match_as_the_engine_does() {
        let patterns = [
            "\\.php$",
            "^/a",
            "^/a/(b|c)\\.php$",
            "\\.(?:css|js)",
            "(x|y)(1|2)$",
            "/a-b_c",
            "^/$",
            "",
            "()$",
            "A",
        ];
        let paths =
            ["/", "/a", "/a/b.php", "/a/c.PHP", "/x.css", "/x.js?", "/zx1", "/y3", "/a-b_c/", "/.phpx", "a"];
        for pattern in patterns {
            for caseless in [false, true] {
                let texts = Texts::of(pattern, caseless).expect("texts");
                let engine = matcher(pattern.as_bytes(), caseless).expect("a pattern");
                for path in paths {
                    let right = engine.is_match(path.as_bytes()).expect("no limit");
                    assert_eq!(texts.is_match(path), right, "{pattern} {caseless} {path}");
                }
            }
        }
        for more in
            ["a.b", "a*", "[ab]", "a|b", "a(b(c))", "a\\d", "a{2}", "(?i)a", "(?<n>a)", "a$b", "(a", "ä"]
        {
            assert!(Texts::of(more, false).is_none(), "{more}");
        }
    }

    #[test]
    fn regular_patterns_need_no_backtracking() {
        for pattern in
            ["\\.php$", "^/a/(b|c)+/[^/]*\\.x?$", "a{2,3}", "\\d+\\+", "a\\++", "[a-z]+\\.(css|js)$"]
        {
            assert!(is_regular(pattern.as_bytes()), "{pattern}");
            assert!(!needs_backtracking(pattern.as_bytes()), "{pattern}");
        }
        for pattern in
            ["(a)\\1", "a(?=b)", "(?<!a)b", "a++", "a*+", "a?+", "a{2}+", "(?>a)", "\\Ka", "(*ANY)a"]
        {
            assert!(!is_regular(pattern.as_bytes()), "{pattern}");
        }
    }
}
