//! Conditional requests (RFC 9110, section 13) as nginx evaluates them. Hot path.

use crate::date;
use crate::field::Name;
use crate::request::RequestHead;

/// Result of the conditions of a request for the current representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Answer as if there were no conditions.
    Proceed,
    /// Status 304.
    NotModified,
    /// Status 412.
    PreconditionFailed,
}

/// Way of comparing `If-Modified-Since` (nginx: if_modified_since).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IfModifiedSince {
    /// Its date never counts as current.
    Off,
    /// Current if the dates are equal.
    #[default]
    Exact,
    /// Current if the representation is not newer.
    Before,
}

/// The validators of a representation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Validators<'a> {
    /// Seconds since 1970.
    pub last_modified: Option<i64>,
    /// Entity tag with its quotes, and `W/` if it is weak.
    pub etag: Option<&'a [u8]>,
}

/// The fields of a request that state conditions on the whole response.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions<'a> {
    /// `If-Match`
    pub if_match: Option<&'a [u8]>,
    /// `If-None-Match`
    pub if_none_match: Option<&'a [u8]>,
    /// `If-Modified-Since`
    pub if_modified_since: Option<&'a [u8]>,
    /// `If-Unmodified-Since`
    pub if_unmodified_since: Option<&'a [u8]>,
}

impl<'a> Conditions<'a> {
    /// The conditions of a request, `None` if there are none.
    #[inline]
    pub fn of(head: &'a RequestHead) -> Option<Conditions<'a>> {
        let conditions = Conditions {
            if_match: head.get(Name::IfMatch),
            if_none_match: head.get(Name::IfNoneMatch),
            if_modified_since: head.get(Name::IfModifiedSince),
            if_unmodified_since: head.get(Name::IfUnmodifiedSince),
        };
        let any = conditions.if_match.is_some()
            || conditions.if_none_match.is_some()
            || conditions.if_modified_since.is_some()
            || conditions.if_unmodified_since.is_some();
        any.then_some(conditions)
    }
}

/// Compares conditions with a response that would have status 200. As in nginx, `If-Unmodified-Since` is
/// checked even next to `If-Match`, and 304 needs both `If-None-Match` and `If-Modified-Since` to agree if
/// both are there.
pub fn evaluate(conditions: &Conditions<'_>, now: Validators<'_>, mode: IfModifiedSince) -> Verdict {
    if let Some(value) = conditions.if_unmodified_since
        && !matches!((date::parse(value), now.last_modified), (Some(since), Some(changed)) if since >= changed)
    {
        return Verdict::PreconditionFailed;
    }
    if let Some(list) = conditions.if_match
        && !matches_any(list, now.etag, false)
    {
        return Verdict::PreconditionFailed;
    }
    if conditions.if_modified_since.is_none() && conditions.if_none_match.is_none() {
        return Verdict::Proceed;
    }
    if conditions.if_modified_since.is_some_and(|value| modified_since(value, now.last_modified, mode))
        || conditions.if_none_match.is_some_and(|list| !matches_any(list, now.etag, true))
    {
        return Verdict::Proceed;
    }
    Verdict::NotModified
}

fn modified_since(value: &[u8], last_modified: Option<i64>, mode: IfModifiedSince) -> bool {
    let (Some(since), Some(changed)) = (date::parse(value), last_modified) else { return true };
    match mode {
        IfModifiedSince::Off => true,
        IfModifiedSince::Exact => since != changed,
        IfModifiedSince::Before => since < changed,
    }
}

/// Returns `true` if a list of entity tags, or `*`, covers `etag`. The weak comparison ignores `W/` on both sides; the
/// strong one matches no weak tag.
pub(crate) fn matches_any(list: &[u8], etag: Option<&[u8]>, weak: bool) -> bool {
    if list == b"*" {
        return true;
    }
    let Some(etag) = etag else { return false };
    if etag.starts_with(b"W/") && !weak {
        return false;
    }
    let etag = strip_weak(etag, weak);
    // nginx splits at every comma, in quotes too; a tag with a comma in it therefore never matches.
    list.split(|&b| b == b',').any(|entry| {
        let entry = strip_weak(trim_start(entry), weak);
        matches!(entry.strip_prefix(etag), Some(rest) if trim_start(rest).is_empty())
    })
}

fn strip_weak(tag: &[u8], weak: bool) -> &[u8] {
    if weak { tag.strip_prefix(b"W/").unwrap_or(tag) } else { tag }
}

fn trim_start(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    text
}

/// Returns `true` if a `Range` field is to be honoured under this value of `If-Range`. Dates and tags must be equal; as in
/// nginx a weak tag equals itself.
pub fn if_range(value: &[u8], now: Validators<'_>) -> bool {
    if value.len() >= 2 && value.last() == Some(&b'"') {
        return now.etag == Some(value);
    }
    matches!((date::parse(value), now.last_modified), (Some(then), Some(changed)) if then == changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAME: &str = "Thu, 02 Jan 2020 03:04:05 GMT";
    const OLDER: &str = "Thu, 02 Jan 2010 03:04:05 GMT";
    const NEWER: &str = "Thu, 02 Jan 2020 03:04:06 GMT";
    const NOW: Validators<'static> =
        Validators { last_modified: Some(1_577_934_245), etag: Some(b"\"a-b\"") };

    fn run(fields: &[(&str, &str)], now: Validators<'_>, mode: IfModifiedSince) -> u16 {
        let get = |name: &str| fields.iter().find(|f| f.0 == name).map(|f| f.1.as_bytes());
        let conditions = Conditions {
            if_match: get("match"),
            if_none_match: get("none"),
            if_modified_since: get("ims"),
            if_unmodified_since: get("ius"),
        };
        match evaluate(&conditions, now, mode) {
            Verdict::Proceed => 200,
            Verdict::NotModified => 304,
            Verdict::PreconditionFailed => 412,
        }
    }

    #[test]
    fn dates() {
        use IfModifiedSince::{Before, Exact, Off};
        for (value, mode, want) in [
            (SAME, Exact, 304),
            (NEWER, Exact, 200),
            (OLDER, Exact, 200),
            ("x", Exact, 200),
            (SAME, Before, 304),
            (NEWER, Before, 304),
            (OLDER, Before, 200),
            (SAME, Off, 200),
        ] {
            assert_eq!(run(&[("ims", value)], NOW, mode), want, "{value} {mode:?}");
        }
        for (value, want) in [(SAME, 200), (NEWER, 200), (OLDER, 412), ("x", 412), ("", 412)] {
            assert_eq!(run(&[("ius", value)], NOW, Off), want, "{value}");
        }
        let undated = Validators { last_modified: None, ..NOW };
        assert_eq!(run(&[("ius", NEWER)], undated, Exact), 412);
        assert_eq!(run(&[("ims", NEWER)], undated, Exact), 200);
    }

    #[test]
    fn tags() {
        for (list, want) in [
            ("\"a-b\"", 304),
            ("W/\"a-b\"", 304),
            ("*", 304),
            ("\"x\"", 200),
            ("\"x\", \"a-b\"", 304),
            ("\"x\",\t\"a-b\"", 304),
            ("\"x\" \"a-b\"", 200),
            ("a-b", 200),
            ("w/\"a-b\"", 200),
            ("", 200),
            ("\"x\", W/\"a-b\", \"y\"", 304),
            ("\"a-b\"x", 200),
            ("\"a-b\" , \"y\"", 304),
            ("*, \"x\"", 200),
            (",\"a-b\"", 304),
            ("\"a,b\",\"a-b\"", 304),
            ("\"a-b\"\t", 304),
        ] {
            assert_eq!(run(&[("none", list)], NOW, IfModifiedSince::Exact), want, "{list}");
        }
        for (list, want) in [
            ("\"a-b\"", 200),
            ("W/\"a-b\"", 412),
            ("*", 200),
            ("\"x\"", 412),
            ("\"x\",\"a-b\"", 200),
            ("", 412),
        ] {
            assert_eq!(run(&[("match", list)], NOW, IfModifiedSince::Exact), want, "{list}");
        }
        let untagged = Validators { etag: None, ..NOW };
        assert_eq!(run(&[("none", "*")], untagged, IfModifiedSince::Exact), 304);
        assert_eq!(run(&[("match", "\"\"")], untagged, IfModifiedSince::Exact), 412);
    }

    #[test]
    fn combinations() {
        let tag = "\"a-b\"";
        for (fields, want) in [
            (&[("none", "\"x\""), ("ims", SAME)], 200),
            (&[("none", tag), ("ims", OLDER)], 200),
            (&[("none", tag), ("ims", SAME)], 304),
            (&[("match", "\"x\""), ("none", tag)], 412),
            (&[("match", tag), ("none", tag)], 304),
            (&[("ius", OLDER), ("match", tag)], 412),
            (&[("ius", OLDER), ("none", tag)], 412),
        ] {
            assert_eq!(run(fields, NOW, IfModifiedSince::Exact), want, "{fields:?}");
        }
    }

    #[test]
    fn ranges() {
        for (value, want) in [
            ("\"a-b\"", true),
            ("W/\"a-b\"", false),
            ("\"x\"", false),
            (SAME, true),
            (NEWER, false),
            ("", false),
            ("a-b", false),
            ("\"a-b\", \"x\"", false),
            ("*", false),
        ] {
            assert_eq!(if_range(value.as_bytes(), NOW), want, "{value}");
        }
        let weak = Validators { etag: Some(b"W/\"a\""), last_modified: None };
        assert!(if_range(b"W/\"a\"", weak) && !if_range(b"\"a\"", weak));
    }
}
