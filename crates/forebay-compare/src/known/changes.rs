//! Changes of nginx, by its own list of changes, that explain differences between an older nginx and Forebay.

use super::Known;
use crate::differ::{Difference, Part};
use crate::requests::{Ask, Content, Version};
use forebay_conf::version::NginxVersion;

/// A change of nginx.
struct Change {
    /// First version that has it.
    since: NginxVersion,
    /// Behaviour of that version.
    text: &'static str,
    /// Tells whether it is the cause of a difference.
    fits: fn(&Seen<'_>) -> bool,
}

/// A difference with its request.
struct Seen<'a> {
    ask: &'a Ask,
    difference: &'a Difference,
    part: &'a Part,
    /// In the older nginx.
    old: Option<&'a str>,
    /// In Forebay.
    new: Option<&'a str>,
}

const fn since(minor: u32, patch: u32) -> NginxVersion {
    NginxVersion([1, minor, patch])
}

/// Changes, the newest first.
const CHANGES: &[Change] = &[
    Change {
        since: since(31, 0),
        text: "a request over HTTP/2 or HTTP/3 with a connection-specific field is malformed",
        fits: |s| s.ask.version >= Version::Http2 && is_refused(s) && has_field(s.ask, CONNECTION_SPECIFIC),
    },
    Change {
        since: since(31, 0),
        text: "the field `Proxy-Connection` of a client is not passed on",
        fits: |s| {
            matches!(upstream_field(s), Some("proxy-connection" | "http_proxy_connection")) && s.new.is_none()
        },
    },
    Change {
        since: since(29, 7),
        text: "upstreams are asked over HTTP/1.1 and kept connections by default, so their response may come in chunks or with a length \
               where it ended with the connection",
        fits: |s| match (s.part, s.old, s.new) {
            (Part::UpstreamLine, ..) => s.difference.is_newer_upstream(),
            (Part::UpstreamField(name), Some("close"), None) => name == "connection",
            (Part::UpstreamField(name), None, Some("chunked")) => name == "transfer-encoding",
            (Part::Field(name), old, new) => {
                s.difference.beside.newer_upstream
                    && old.is_none() != new.is_none()
                    && matches!(name.as_str(), "content-length" | "transfer-encoding" | "connection")
            }
            (Part::Log(_), ..) => s.difference.beside.newer_upstream,
            _ => false,
        },
    },
    Change {
        since: since(29, 5),
        text: "`HTTP_HOST` for FastCGI, SCGI and uwsgi is the host of the request in its normal form, of its server where it names none",
        fits: |s| match s.part {
            Part::UpstreamField(name) => {
                name == "http_host" && s.old.is_none_or(|old| s.new.is_some_and(|new| is_normal(old, new)))
            }
            Part::Body => s.difference.beside.other_host,
            _ => false,
        },
    },
    Change {
        since: since(29, 4),
        text: "the host of a request has to follow RFC 3986",
        fits: |s| is_refused(s) && s.ask.host.as_deref().is_some_and(is_odd_host),
    },
    Change {
        since: since(29, 4),
        text: "lines of a chunked body end with CR LF",
        fits: |s| is_refused(s) && matches!(s.ask.content, Some(Content::Chunks(_))),
    },
    Change {
        since: since(23, 4),
        text: "files that `gzip_static` finds are sent in ranges",
        fits: |s| {
            let coded = has_field(s.ask, &["accept-encoding"]);
            let ranges = matches!(s.part, Part::Field(name) if name == "accept-ranges") && s.old.is_none();
            coded && (ranges || (s.part == &Part::Status && (s.old, s.new) == (Some("200"), Some("206"))))
        },
    },
    Change {
        since: since(23, 0),
        text: "field lines of one name are joined, for FastCGI, SCGI and uwsgi and in variables",
        fits: |s| {
            let names = |part: &Part| matches!(part, Part::UpstreamField(_) | Part::Field(_) | Part::Log(_));
            names(s.part)
                && s.old
                    .zip(s.new)
                    .is_some_and(|(old, new)| is_joined(old, new) || old.replace(" | ", ", ") == new)
        },
    },
    Change {
        since: since(21, 2),
        text: "a request of HTTP/1.0 with `Transfer-Encoding` is refused",
        fits: |s| {
            s.ask.version == Version::Http10
                && is_refused(s)
                && matches!(s.ask.content, Some(Content::Chunks(_)))
        },
    },
    Change {
        since: since(21, 1),
        text: "CONNECT, a request with both `Content-Length` and `Transfer-Encoding`, and spaces or control characters in the target, in \
               names of fields and in the host are refused",
        fits: |s| {
            is_refused(s)
                && (s.ask.method == "CONNECT"
                    || s.ask.target.bytes().any(|b| b <= b' ' || b == 0x7f)
                    || has_field(s.ask, &["content-length", "transfer-encoding"]))
        },
    },
    Change {
        since: since(21, 1),
        text: "`\"`, `<`, `>`, `\\`, `^`, `` ` ``, `{`, `|` and `}` are escaped when the URI that is passed on was changed",
        fits: |s| {
            s.part == &Part::UpstreamLine && s.old.zip(s.new).is_some_and(|(old, new)| is_escaped(old, new))
        },
    },
    Change {
        since: since(21, 0),
        text: "special characters are escaped in the redirect that appends a slash",
        fits: |s| {
            matches!(s.part, Part::Field(name) if name == "location")
                && s.old.zip(s.new).is_some_and(|(old, new)| is_escaped(old, new))
        },
    },
    Change {
        since: since(19, 10),
        text: "a connection serves 1000 requests by default",
        fits: |s| matches!(s.part, Part::Field(name) if name == "connection") && s.old == Some("close"),
    },
];

/// Fields that belong to a connection of HTTP/1 (RFC 9113, section 8.2.2).
const CONNECTION_SPECIFIC: &[&str] =
    &["connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade", "te"];

/// Returns the newest change since a version that explains a difference.
pub(super) fn since_version(nginx: NginxVersion, ask: &Ask, d: &Difference) -> Option<Known> {
    let seen = Seen { ask, difference: d, part: &d.part, old: d.first.as_deref(), new: d.second.as_deref() };
    let change = CHANGES.iter().find(|change| nginx < change.since && (change.fits)(&seen))?;
    Some(Known::Since(change.since, change.text))
}

/// Tells whether Forebay refuses the request and the older nginx does not.
fn is_refused(s: &Seen<'_>) -> bool {
    s.part == &Part::Status && s.old != s.new && matches!(s.new, Some("400" | "405" | "501"))
}

fn has_field(ask: &Ask, names: &[&str]) -> bool {
    ask.fields.iter().any(|(n, _)| names.iter().any(|name| n.eq_ignore_ascii_case(name)))
}

fn upstream_field<'a>(s: &Seen<'a>) -> Option<&'a str> {
    match s.part {
        Part::UpstreamField(name) => Some(name),
        _ => None,
    }
}

fn is_odd_host(host: &str) -> bool {
    host.bytes().any(|b| !(b.is_ascii_alphanumeric() || b"-._:[]".contains(&b)))
}

/// Tells whether a host is another one in lower case, without a final dot.
fn is_normal(old: &str, new: &str) -> bool {
    let (name, port) =
        old.split_once(':').map_or((old, ""), |(name, _)| (name, old.get(name.len()..).unwrap_or_default()));
    let name = name.strip_suffix('.').unwrap_or(name);
    new.eq_ignore_ascii_case(&format!("{name}{port}")) || new.eq_ignore_ascii_case(name)
}

/// Tells whether a text is another one with more values, parted by commas, at one place.
fn is_joined(old: &str, new: &str) -> bool {
    let Some(more) = new.len().checked_sub(old.len()).filter(|more| *more > 0) else { return false };
    let same = old.bytes().zip(new.bytes()).take_while(|(a, b)| a == b).count();
    // The added text may begin with bytes that are equal to those after it.
    (0..=same).rev().any(|at| {
        let (added, rest) = (new.get(at..at + more), new.get(at + more..));
        added.is_some_and(|added| added.contains(", ")) && rest == old.get(at..)
    })
}

/// Tells whether a text is another one with more of its bytes written as `%XX`.
fn is_escaped(old: &str, new: &str) -> bool {
    let decoded = |text: &str| {
        let mut out = Vec::new();
        forebay_http::uri::unescape(text.as_bytes(), &mut out);
        out
    };
    new.matches('%').count() > old.matches('%').count() && decoded(old) == decoded(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        nginx: (u32, u32),
        ask: &Ask,
        part: Part,
        old: Option<&str>,
        new: Option<&str>,
    ) -> Option<NginxVersion> {
        let text = |v: Option<&str>| v.map(str::to_owned);
        let difference = Difference::new(part, text(old), text(new));
        match since_version(since(nginx.0, nginx.1), ask, &difference)? {
            Known::Since(version, _) => Some(version),
            Known::Departure(_) => None,
        }
    }

    #[test]
    fn changes_explain_older_versions_only() {
        let ask = Ask::default();
        let line =
            |nginx| found(nginx, &ask, Part::UpstreamLine, Some("GET /a HTTP/1.0"), Some("GET /a HTTP/1.1"));
        assert_eq!(line((22, 1)), Some(since(29, 7)));
        assert_eq!(line((29, 7)), None);
        assert_eq!(line((31, 9)), None);
        let other =
            found((22, 1), &ask, Part::UpstreamLine, Some("GET /a HTTP/1.0"), Some("GET /b HTTP/1.1"));
        assert_eq!(other, None, "another target");
        let host =
            |old, new| found((22, 1), &ask, Part::UpstreamField("http_host".into()), Some(old), Some(new));
        assert_eq!(host("a.test", "A.test"), Some(since(29, 5)));
        assert_eq!(host("a.test.", "a.test"), Some(since(29, 5)));
        assert_eq!(host("A.test.:80", "a.test:80"), Some(since(29, 5)));
        assert_eq!(host("a.test", "b.test"), None);
        assert_eq!(found((22, 1), &ask, Part::Body, Some("a"), Some("b")), None);
        assert_eq!(found((22, 1), &ask, Part::Status, Some("200"), Some("400")), None, "an ordinary request");
        let connect = Ask { method: "CONNECT".into(), ..Ask::default() };
        assert_eq!(found((18, 0), &connect, Part::Status, Some("200"), Some("405")), Some(since(21, 1)));
        assert_eq!(found((22, 1), &connect, Part::Status, Some("200"), Some("405")), None);
    }

    #[test]
    fn joined_lines_are_recognised() {
        assert!(is_joined("a", "a, b"));
        assert!(is_joined("[a] 200", "[a, a] 200"));
        assert!(!is_joined("a", "ab"));
        assert!(!is_joined("a, b", "a"));
        assert!(!is_joined("a", "b, a, b"));
    }

    #[test]
    fn escapes_are_recognised() {
        assert!(is_escaped("/a{b", "/a%7Bb"));
        assert!(!is_escaped("/a%7Bb", "/a{b"));
        assert!(!is_escaped("/a", "/%62"));
    }

    #[test]
    fn changes_are_sorted() {
        assert!(CHANGES.is_sorted_by(|a, b| a.since >= b.since));
    }
}
