//! Files of expectations: YAML, with a schema for editors (`schema.json`).

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Schema of the files, for editors (JSON Schema, draft 2020-12).
pub(crate) const SCHEMA: &str = include_str!("schema.json");

/// Most bytes of a file.
const LARGEST: u64 = 16 << 20;

/// A file of expectations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Configuration, relative to the file.
    pub(crate) configuration: Option<PathBuf>,
    /// Prefix of relative paths in the configuration, relative to the file.
    pub(crate) prefix: Option<PathBuf>,
    /// Tests, in the order in which they are sent.
    pub(crate) tests: Vec<Case>,
}

/// A request, and what is expected of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Name in reports; the request without one.
    pub(crate) name: Option<String>,
    /// `METHOD TARGET` or `METHOD URL`.
    pub(crate) request: Spanned<String>,
    /// Host. `null` in an HTTP/1.0 request without one is not possible: leave it out.
    pub(crate) host: Option<String>,
    /// Fields of the request.
    #[serde(default)]
    pub(crate) fields: BTreeMap<String, String>,
    /// Content of the request.
    pub(crate) body: Option<String>,
    /// Version of HTTP: `1.0`, `1.1`, `2` or `3`.
    pub(crate) version: Option<Spanned<String>>,
    /// Response of the upstream.
    pub(crate) answer: Option<Given>,
    /// Expected response.
    pub(crate) response: Option<Response>,
    /// Expected request to an upstream, or `none`.
    pub(crate) upstream: Option<Spanned<Upstream>>,
    /// Expected line of an access log.
    pub(crate) log: Option<Spanned<Text>>,
}

/// Response that an upstream gives.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Given {
    #[serde(default = "ok")]
    pub(crate) status: u16,
    #[serde(default)]
    pub(crate) fields: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) body: String,
}

fn ok() -> u16 {
    200
}

/// Expected response.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Response {
    pub(crate) status: Option<Spanned<u16>>,
    /// Fields; `null`: the field is not there.
    #[serde(default)]
    pub(crate) fields: BTreeMap<String, Spanned<Option<Text>>>,
    pub(crate) body: Option<Spanned<Text>>,
}

/// Expected request to an upstream.
#[derive(Clone, Debug)]
pub(crate) enum Upstream {
    /// `none`: no upstream is asked.
    None,
    Request(Box<UpstreamRequest>),
}

impl<'de> Deserialize<'de> for Upstream {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Upstream, D::Error> {
        deserializer.deserialize_any(UpstreamVisitor)
    }
}

struct UpstreamVisitor;

impl<'de> Visitor<'de> for UpstreamVisitor {
    type Value = Upstream;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"none\", or the request that an upstream gets")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Upstream, E> {
        match word {
            "none" => Ok(Upstream::None),
            other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Upstream, A::Error> {
        UpstreamRequest::deserialize(MapAccessDeserializer::new(map)).map(|r| Upstream::Request(Box::new(r)))
    }
}

/// Expected request to an upstream.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamRequest {
    /// Request line.
    pub(crate) request: Option<Spanned<Text>>,
    /// Fields, or parameters of FastCGI and its like; `null`: the field is not there.
    #[serde(default)]
    pub(crate) fields: BTreeMap<String, Spanned<Option<Text>>>,
    pub(crate) body: Option<Spanned<Text>>,
}

/// Expected text.
#[derive(Clone, Debug)]
pub(crate) enum Text {
    /// The whole text.
    Equal(String),
    Rule(Rule),
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or one of contains, lacks and matches")
    }

    fn visit_str<E>(self, text: &str) -> Result<Text, E> {
        Ok(Text::Equal(text.to_owned()))
    }

    // Words that YAML takes for numbers and the like are texts here.
    fn visit_i64<E>(self, number: i64) -> Result<Text, E> {
        Ok(Text::Equal(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Text, E> {
        Ok(Text::Equal(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Text, E> {
        Ok(Text::Equal(number.to_string()))
    }

    fn visit_bool<E>(self, word: bool) -> Result<Text, E> {
        Ok(Text::Equal(word.to_string()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Text, A::Error> {
        Rule::deserialize(MapAccessDeserializer::new(map)).map(Text::Rule)
    }
}

/// Rule for a text. All that are given must hold.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) contains: Option<String>,
    pub(crate) lacks: Option<String>,
    /// Regular expression (syntax of the crate `regex`).
    pub(crate) matches: Option<String>,
}

impl Text {
    /// Returns `true` if a text is as expected.
    ///
    /// # Errors
    /// The regular expression is invalid.
    pub(crate) fn holds(&self, text: &str) -> Result<bool, String> {
        let rule = match self {
            Text::Equal(wanted) => return Ok(wanted == text),
            Text::Rule(rule) => rule,
        };
        let matches = match &rule.matches {
            None => true,
            Some(pattern) => regex::Regex::new(pattern).map_err(|e| e.to_string())?.is_match(text),
        };
        let contains = rule.contains.as_ref().is_none_or(|part| text.contains(part.as_str()));
        let lacks = rule.lacks.as_ref().is_none_or(|part| !text.contains(part.as_str()));
        Ok(matches && contains && lacks)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = match self {
            Text::Equal(text) => return write!(f, "{text:?}"),
            Text::Rule(rule) => rule,
        };
        let parts = [("contains", &rule.contains), ("lacks", &rule.lacks), ("matches", &rule.matches)];
        let shown = parts.iter().filter_map(|(name, value)| Some(format!("{name} {:?}", value.as_ref()?)));
        f.write_str(&shown.collect::<Vec<_>>().join(", "))
    }
}

impl Case {
    /// Returns the name in reports.
    pub(crate) fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.request.value)
    }
}

/// Reads a file.
///
/// # Errors
/// A sentence with the place.
pub(crate) fn read(path: &std::path::Path) -> Result<(File, String), String> {
    let text =
        forebay_sys::files::read_text(path, LARGEST).map_err(|e| format!("{}: {e}", path.display()))?;
    let file = serde_saphyr::from_str::<File>(&text).map_err(|e| {
        let place = e.location().map(|l| format!(":{}:{}", l.line(), l.column())).unwrap_or_default();
        let reason = e.to_string();
        let first = reason.lines().next().unwrap_or_default();
        // The place comes before it.
        let reason = first.trim_start_matches("error: ");
        let reason = match reason.split_once(": ") {
            Some((before, after)) if before.starts_with("line ") => after,
            _ => reason,
        };
        format!("{}{place}: {reason}", path.display())
    })?;
    for case in &file.tests {
        case.check().map_err(|(line, why)| format!("{}:{line}: {why}", path.display()))?;
    }
    Ok((file, text))
}

impl Case {
    /// Checks what the types do not say.
    ///
    /// # Errors
    /// Line and reason.
    fn check(&self) -> Result<(), (u64, String)> {
        let at = |place: &Spanned<String>| place.referenced.line();
        if self
            .request
            .value
            .split_once(' ')
            .is_none_or(|(m, t)| m.is_empty() || t.is_empty() || t.contains(' '))
        {
            return Err((
                at(&self.request),
                format!("\"{}\" is no request: expected \"METHOD TARGET\"", self.request.value),
            ));
        }
        if let Some(version) = &self.version
            && !["1.0", "1.1", "2", "3"].contains(&version.value.as_str())
        {
            return Err((
                at(version),
                format!("\"{}\" is no version of HTTP: 1.0, 1.1, 2 or 3", version.value),
            ));
        }
        if self.response.is_none() && self.upstream.is_none() && self.log.is_none() {
            return Err((
                at(&self.request),
                "nothing is expected: give response, upstream or log (--update fills in)".into(),
            ));
        }
        Ok(())
    }
}
