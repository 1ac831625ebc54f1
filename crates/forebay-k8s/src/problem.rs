//! What a translation has to say about an object.

use crate::gateway::GatewayKind;
use crate::objects::{Key, Kind, Metadata};
use crate::value::Invalid;

/// How much of an object's wish is not fulfilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It has no effect, and needs none.
    Ignored,
    /// It works in another way.
    Differs,
    /// It is not done.
    Refused,
}

impl Severity {
    /// Returns the word for reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Ignored => "ignored",
            Severity::Differs => "differs",
            Severity::Refused => "refused",
        }
    }
}

/// Kind of an object that a problem is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// Kind of Kubernetes itself.
    Core(Kind),
    /// Kind of the Gateway API, or ours.
    Gateway(GatewayKind),
}

impl About {
    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            About::Core(kind) => kind.name(),
            About::Gateway(kind) => kind.name(),
        }
    }

    /// Returns the group and version that are read.
    pub fn api_version(self) -> String {
        match self {
            About::Core(kind) => kind.api_version().to_owned(),
            About::Gateway(kind) => format!("{}/{}", kind.group(), kind.version()),
        }
    }

    fn namespaced(self) -> bool {
        match self {
            About::Core(kind) => kind.namespaced(),
            About::Gateway(kind) => kind.namespaced(),
        }
    }
}

impl From<Kind> for About {
    fn from(kind: Kind) -> About {
        About::Core(kind)
    }
}

impl From<GatewayKind> for About {
    fn from(kind: GatewayKind) -> About {
        About::Gateway(kind)
    }
}

impl PartialEq<Kind> for About {
    fn eq(&self, kind: &Kind) -> bool {
        *self == About::Core(*kind)
    }
}

/// A problem of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Kind of the object.
    pub kind: About,
    /// Namespace and name of the object.
    pub key: Key,
    /// Identity of the object, for Events.
    pub uid: String,
    /// Path of the field, such as `spec.rules[0].http.paths[1].path` or `metadata.annotations[NAME]`.
    pub field: String,
    /// What is wrong, and what follows from it.
    pub text: String,
    /// Line and column in the value, both from 1, the column in characters.
    pub place: Option<(usize, usize)>,
    /// The line of the value with a caret under the place.
    pub shown: Option<String>,
    /// How much is not done.
    pub severity: Severity,
    /// Reason of an Event: one word in camel case.
    pub reason: &'static str,
}

impl Problem {
    /// Makes a problem without a place.
    pub fn new(
        kind: impl Into<About>,
        metadata: &Metadata,
        field: impl Into<String>,
        text: impl Into<String>,
    ) -> Problem {
        let kind = kind.into();
        let namespace = if kind.namespaced() { metadata.namespace.as_str() } else { "" };
        Problem {
            kind,
            key: Key::new(namespace, metadata.name.as_str()),
            uid: metadata.uid.clone(),
            field: field.into(),
            text: text.into(),
            place: None,
            shown: None,
            severity: Severity::Refused,
            reason: "Rejected",
        }
    }

    /// Sets how much is not done.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Problem {
        self.severity = severity;
        self
    }

    /// Sets the reason of an Event.
    #[must_use]
    pub fn reason(mut self, reason: &'static str) -> Problem {
        self.reason = reason;
        self
    }

    /// Sets the place in the value.
    #[must_use]
    pub fn at(mut self, value: &str, offset: usize) -> Problem {
        let (line, column, shown) = locate(value, offset);
        self.place = Some((line, column));
        self.shown = Some(shown);
        self
    }

    /// Adds what is wrong with a value, and where.
    #[must_use]
    pub fn invalid(mut self, value: &str, invalid: &Invalid) -> Problem {
        self.text = format!("{}: {}", self.text, invalid.reason);
        self.reason("InvalidValue").at(value, invalid.at)
    }

    /// Returns the problem on several lines, the value with its caret below.
    pub fn render(&self) -> String {
        let mut text = format!("{} {}: {}: {}", self.kind.name(), self.key, self.field, self.text);
        if let (Some((line, column)), Some(shown)) = (self.place, &self.shown) {
            text.push_str(&format!(" (line {line}, column {column})\n{shown}"));
        }
        text
    }
}

/// Columns of a value that are shown.
const WIDTH: usize = 100;

/// Finds the line and column of an offset, and prints the line with a caret. Control characters are printed as `?`.
fn locate(value: &str, offset: usize) -> (usize, usize, String) {
    let mut offset = offset.min(value.len());
    while !value.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = value.get(..offset).unwrap_or_default();
    let start = before.rfind('\n').map_or(0, |i| i + 1);
    let line = before.matches('\n').count() + 1;
    let column = before.get(start..).unwrap_or_default().chars().count() + 1;
    let text = value.get(start..).unwrap_or_default();
    let text = text.split('\n').next().unwrap_or_default();
    // Of a long line, the part around the place.
    let skipped = column.saturating_sub(WIDTH * 3 / 4);
    let part: String =
        text.chars().skip(skipped).take(WIDTH).map(|c| if c.is_control() { '?' } else { c }).collect();
    let spaces = " ".repeat(column - 1 - skipped);
    (line, column, format!("    {part}\n    {spaces}^"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carets() {
        assert_eq!(locate("ab\ncd", 4), (2, 2, "    cd\n     ^".into()));
        assert_eq!(locate("é;x", 2), (1, 2, "    é;x\n     ^".into()));
        assert_eq!(locate("", 9), (1, 1, "    \n    ^".into()));
        let long = "x".repeat(500);
        let (line, column, shown) = locate(&long, 400);
        assert_eq!((line, column), (1, 401));
        assert_eq!(shown.lines().count(), 2);
        assert!(shown.len() < 250);
    }
}
