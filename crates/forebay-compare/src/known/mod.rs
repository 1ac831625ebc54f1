//! Known differences: each has its paragraph in docs/differences.md, or is a change of nginx since the version that is compared.

mod changes;

use crate::differ::{Difference, Part};
use crate::requests::{Ask, Content, Version};
use forebay_conf::version::NginxVersion;

/// Beginnings of the paragraphs' subjects.
pub(crate) mod subject {
    pub(crate) const SERVER: &str = "`Server: forebay";
    pub(crate) const CONTINUE: &str = "`100 Continue` is left out";
    pub(crate) const CHARSET: &str = "`X-Accel-Charset` of an upstream";
    pub(crate) const SAID: &str = "HTTP/2 and gRPC upstreams";
    pub(crate) const CLOSE: &str = "Connections to upstreams that serve one request say so";
    pub(crate) const KEPT: &str = "`proxy_pass` to an address or a name keeps connections";
    pub(crate) const RANGE: &str = "A 416 has each field of `add_header";
    pub(crate) const COMPRESSED: &str = "Compressed files have a `Content-Length`";
    pub(crate) const VARY: &str = "`Vary: Accept-Encoding` with brotli";
    pub(crate) const ALT_SVC: &str = "Responses over TLS have `Alt-Svc`";
    pub(crate) const ADDED: &str = "`add_header` with `Server` or `Date`";
    pub(crate) const ONE_LINE: &str = "A header field is one line";
    pub(crate) const UNSENT: &str = "Content that an upstream does not get is not announced";
    pub(crate) const PROXY: &str = "A field `Proxy` of a client";
    pub(crate) const HOP_BY_HOP: &str = "Responses over HTTP/2 have no connection-specific fields";
    pub(crate) const CANCELLED: &str = "`return 444` over HTTP/3";
    pub(crate) const HUGE_HEAD: &str = "A head that is too large ends its own request over HTTP/2";
}

/// Explanation of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Forebay departs from nginx on purpose: beginning of the paragraph that says so.
    Departure(&'static str),
    /// nginx itself answers otherwise since this version: its behaviour.
    Since(NginxVersion, &'static str),
}

impl Known {
    /// Returns a short text that no other explanation has.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Known::Departure(text) | Known::Since(_, text) => text,
        }
    }

    /// Returns the explanation for people.
    pub(crate) fn text(self) -> String {
        match self {
            Known::Departure(start) => {
                forebay_conf::differences::paragraph(start).unwrap_or(start).to_owned()
            }
            Known::Since(version, text) => format!("nginx itself, since {version}: {text}."),
        }
    }
}

/// Knowledge about the first server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Knowledge {
    /// Its version, if it is nginx.
    pub(crate) nginx: Option<NginxVersion>,
}

impl Knowledge {
    /// Returns the explanation of a difference, if there is one.
    pub(crate) fn explained(self, ask: &Ask, d: &Difference) -> Option<Known> {
        let departure = || departure(ask, d).map(Known::Departure);
        self.nginx.and_then(|nginx| changes::since_version(nginx, ask, d)).or_else(departure)
    }
}

fn departure(ask: &Ask, d: &Difference) -> Option<&'static str> {
    let (a, b) = (d.first.as_deref(), d.second.as_deref());
    match &d.part {
        Part::Field(name) => of_field(ask, name, a, b),
        Part::UpstreamField(name) => match (name.as_str(), a, b) {
            ("connection", None, Some("close")) => Some(subject::CLOSE),
            ("connection", Some("close"), None) => Some(subject::KEPT),
            ("content-length", Some(_), None) if matches!(ask.content, Some(Content::Chunks(_))) => {
                Some(subject::SAID)
            }
            // Where it is lost instead, the content differs, too.
            ("content-length", Some(_), None) if ask.content.is_some() => Some(subject::UNSENT),
            ("http_proxy", Some(_), None) => Some(subject::PROXY),
            _ => None,
        },
        // nginx counts the 25 bytes of the interim response as content.
        Part::Log(_) if ask.fields.iter().any(|(n, _)| n == "Expect") => Some(subject::CONTINUE),
        Part::Status => match (a, b) {
            (Some(_), Some("500")) if breaks_lines(ask) => Some(subject::ONE_LINE),
            (None, Some("400")) if ask.version >= Version::Http2 => Some(subject::HUGE_HEAD),
            _ => None,
        },
        Part::Failure if a == Some("reset with code 0x101") && b == Some("reset with code 0x10c") => {
            Some(subject::CANCELLED)
        }
        Part::Failure if ask.version >= Version::Http2 && b.is_none() => Some(subject::HUGE_HEAD),
        _ => None,
    }
}

fn of_field(ask: &Ask, name: &str, a: Option<&str>, b: Option<&str>) -> Option<&'static str> {
    let is_name = |v: Option<&str>| v.is_some_and(|v| v.starts_with("nginx") || v.starts_with("forebay"));
    match (name, a, b) {
        ("server", a, b) if is_name(a) && is_name(b) => Some(subject::SERVER),
        ("server" | "date", Some(a), Some(b)) if a.contains(" | ") && !b.contains(" | ") => {
            Some(subject::ADDED)
        }
        ("alt-svc", None, Some(_)) => Some(subject::ALT_SVC),
        ("content-length" | "transfer-encoding" | "etag", a, b)
            if is_coded(ask) && a.is_none() != b.is_none() =>
        {
            Some(subject::COMPRESSED)
        }
        ("content-type", Some(a), Some(b))
            if ask.wish == "fields" && b.strip_prefix(a) == Some("; charset=utf-8") =>
        {
            Some(subject::CHARSET)
        }
        ("vary", None, Some(_)) if is_coded(ask) => Some(subject::VARY),
        ("connection" | "keep-alive" | "upgrade" | "te", Some(_), None) if ask.version >= Version::Http2 => {
            Some(subject::HOP_BY_HOP)
        }
        (_, Some(a), Some(b))
            if a == format!("{b} | {b}") && ask.fields.iter().any(|(n, _)| n == "Range") =>
        {
            Some(subject::RANGE)
        }
        _ => None,
    }
}

fn is_coded(ask: &Ask) -> bool {
    ask.fields.iter().any(|(n, _)| n.eq_ignore_ascii_case("accept-encoding"))
}

fn breaks_lines(ask: &Ask) -> bool {
    let target = ask.target.to_ascii_lowercase();
    ["%00", "%0a", "%0d"].iter().any(|code| target.contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_has_its_paragraph() {
        for start in [
            subject::SERVER,
            subject::SAID,
            subject::CHARSET,
            subject::CONTINUE,
            subject::CLOSE,
            subject::KEPT,
            subject::RANGE,
            subject::COMPRESSED,
            subject::VARY,
            subject::ALT_SVC,
            subject::ADDED,
            subject::ONE_LINE,
            subject::UNSENT,
            subject::PROXY,
            subject::HOP_BY_HOP,
            subject::CANCELLED,
            subject::HUGE_HEAD,
        ] {
            let text = forebay_conf::differences::paragraph(start);
            assert!(text.is_some_and(|t| t.len() > start.len()), "{start}");
        }
    }

    #[test]
    fn content_that_is_not_passed_on_is_known() {
        let length = |ask: &Ask| {
            let part = Part::UpstreamField("content-length".into());
            departure(ask, &Difference::new(part, Some("3".into()), None))
        };
        let content = Some(Content::Length(b"abc".to_vec()));
        assert_eq!(length(&Ask { content, ..Ask::default() }), Some(subject::UNSENT));
        assert_eq!(length(&Ask::default()), None, "there is no content");
    }

    #[test]
    fn only_what_a_paragraph_says_is_known() {
        let ask = Ask::default();
        let field = |name: &str, a: Option<&str>, b: Option<&str>| {
            let text = |v: Option<&str>| v.map(str::to_owned);
            departure(&ask, &Difference::new(Part::Field(name.into()), text(a), text(b)))
        };
        assert_eq!(field("server", Some("nginx/1.31.5"), Some("forebay/0.2.0")), Some(subject::SERVER));
        assert_eq!(field("server", Some("nginx/1.31.5"), Some("mine")), None);
        assert_eq!(field("x-frame-options", Some("DENY"), None), None);
        assert_eq!(field("vary", None, Some("Accept-Encoding")), None, "the request accepts no coding");
    }
}
