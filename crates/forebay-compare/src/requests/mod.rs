//! Requests of a comparison, and where they come from.

pub(crate) mod conditions;
pub(crate) mod from_conf;
pub(crate) mod log;
pub(crate) mod paths;
pub(crate) mod sample;
pub(crate) mod streams;
pub(crate) mod vary;

use crate::message::Field;
use crate::recorder::{NUMBER, WISH};
use std::net::Ipv4Addr;

/// Version of HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
}

/// Address of a server under comparison, the same port in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Front {
    /// Port.
    pub port: u16,
    /// TLS is spoken.
    pub tls: bool,
    /// HTTP/2 is spoken.
    pub http2: bool,
    /// Connections begin with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// Server of the stream block, whose upstream answers.
    pub stream: bool,
    /// Datagrams are sent.
    pub udp: bool,
    /// QUIC is spoken.
    pub quic: bool,
}

/// Content of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// With a length.
    Length(Vec<u8>),
    /// In chunks.
    Chunks(Vec<u8>),
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Its number.
    pub number: u32,
    /// Address that it is sent to.
    pub front: Front,
    /// Version of HTTP.
    pub version: Version,
    /// Method.
    pub method: String,
    /// Target as it is sent.
    pub target: String,
    /// Host; `None`: the field is left out.
    pub host: Option<String>,
    /// Fields.
    pub fields: Vec<Field>,
    /// Content.
    pub content: Option<Content>,
    /// The answer that the recorder is to give.
    pub wish: &'static str,
    /// Node of the configuration that the request was made for.
    pub aim: Option<usize>,
    /// Requests of one lane are sent one after the other.
    pub lane: usize,
}

impl Ask {
    /// Returns all fields but `Host`.
    fn all_fields(&self) -> Vec<Field> {
        let mut fields = self.fields.clone();
        if self.number > 0 {
            fields.push((NUMBER.to_owned(), self.number.to_string()));
        }
        if !self.wish.is_empty() {
            fields.push((WISH.to_owned(), self.wish.to_owned()));
        }
        fields
    }

    /// Returns the request as HTTP/1.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let version = if self.version == Version::Http10 { "HTTP/1.0" } else { "HTTP/1.1" };
        let mut out = format!("{} {} {version}\r\n", self.method, self.target);
        if let Some(host) = &self.host {
            out.push_str(&format!("Host: {host}\r\n"));
        }
        for (name, value) in self.all_fields() {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut bytes = match &self.content {
            Some(Content::Length(body)) => {
                [format!("{out}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
            }
            Some(Content::Chunks(body)) => {
                let head = format!("{out}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len());
                [head.as_bytes(), body, b"\r\n0\r\n\r\n"].concat()
            }
            None => format!("{out}\r\n").into_bytes(),
        };
        bytes.shrink_to_fit();
        bytes
    }

    /// Returns the request as fields and content of HTTP/2.
    pub(crate) fn block(&self) -> (Vec<Field>, Vec<u8>) {
        let scheme = if self.front.tls { "https" } else { "http" };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut fields = vec![pair(":method", &self.method), pair(":scheme", scheme)];
        fields.push(pair(":path", &self.target));
        fields.extend(self.host.as_ref().map(|host| pair(":authority", host)));
        fields.extend(self.all_fields().into_iter().filter(|(n, _)| !n.eq_ignore_ascii_case("connection")));
        let body = match &self.content {
            Some(Content::Length(body)) => {
                fields.push(pair("content-length", &body.len().to_string()));
                body.clone()
            }
            Some(Content::Chunks(body)) => body.clone(),
            None => Vec::new(),
        };
        (fields, body)
    }

    /// Returns the command that sends the request with curl to an address.
    pub fn curl(&self, address: Ipv4Addr) -> String {
        let mut words = vec!["curl -i --path-as-is".to_owned()];
        let mut option = |text: String| words.push(text);
        match self.version {
            Version::Http10 => option("--http1.0".into()),
            Version::Http11 => option("--http1.1".into()),
            Version::Http3 => option("--http3-only".into()),
            Version::Http2 if self.front.tls => option("--http2".into()),
            Version::Http2 => option("--http2-prior-knowledge".into()),
        }
        match self.method.as_str() {
            "GET" => {}
            "HEAD" => option("-I".into()),
            method => option(format!("-X {method}")),
        }
        if self.front.proxy_protocol {
            option("--haproxy-protocol".into());
        }
        let host = self.host.clone().unwrap_or_default();
        let scheme = if self.front.tls { "https" } else { "http" };
        let port = self.front.port;
        if self.front.tls {
            option(format!("-k --connect-to ::{address}:{port}"));
        } else {
            option(format!(
                "-H {}",
                quoted(&format!("Host:{}", self.host.as_ref().map_or(String::new(), |h| format!(" {h}"))))
            ));
        }
        for (name, value) in self.all_fields() {
            let value = if is_masked(&name, &value) { "(masked)" } else { &value };
            option(format!("-H {}", quoted(&format!("{name}: {value}"))));
        }
        match &self.content {
            Some(Content::Length(body)) if body.len() > 200 => {
                option(format!("--data-binary @<(head -c {} /dev/zero)", body.len()));
            }
            Some(Content::Length(body)) => {
                option(format!("--data-binary {}", quoted(&crate::message::text(body))))
            }
            Some(Content::Chunks(body)) => {
                option(format!(
                    "-H 'Transfer-Encoding: chunked' --data-binary {}",
                    quoted(&crate::message::text(body))
                ));
            }
            None => {}
        }
        let name = host.split(':').next().filter(|h| self.front.tls && !h.is_empty());
        let at = name.map_or(address.to_string(), str::to_owned);
        if self.target.starts_with('/') {
            option(quoted(&format!("{scheme}://{at}:{port}{}", self.target)));
        } else {
            option(format!("--request-target {} {scheme}://{at}:{port}/", quoted(&self.target)));
        }
        words.join(" ")
    }
}

/// Returns `true` for a secret that no report may show. What the tool has made itself is none.
pub(crate) fn is_masked(name: &str, value: &str) -> bool {
    const OURS: [&str; 3] = ["session=1; theme=dark", "Basic dXNlcjpwYXNz", "dGhlIHNhbXBsZSBub25jZQ=="];
    forebay_http::compression::secret::is_secret(name.to_ascii_lowercase().as_bytes())
        && !OURS.contains(&value)
}

/// Returns a word for a shell. Long runs of one letter are made by `printf`.
fn quoted(word: &str) -> String {
    const LONG: usize = 200;
    let mut out = String::from("'");
    let mut rest = word;
    while let Some(c) = rest.chars().next() {
        let run = rest.len() - rest.trim_start_matches(c).len();
        if run > LONG && c.is_ascii_alphanumeric() {
            out.push_str(&format!("'\"$(printf '{c}%.0s' {{1..{run}}})\"'"));
            rest = rest.get(run..).unwrap_or_default();
            continue;
        }
        match c {
            '\'' => out.push_str("'\\''"),
            c => out.push(c),
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask() -> Ask {
        Ask {
            number: 5,
            method: "POST".into(),
            target: "/a?b='".into(),
            host: Some("x.example".into()),
            content: Some(Content::Chunks(b"abc".to_vec())),
            wish: "404",
            front: Front { port: 81, ..Front::default() },
            ..Ask::default()
        }
    }

    #[test]
    fn a_request_as_bytes() {
        let text = String::from_utf8(ask().bytes()).expect("text");
        assert!(
            text.starts_with("POST /a?b=' HTTP/1.1\r\nHost: x.example\r\nForebay-Compare: 5\r\n"),
            "{text}"
        );
        assert!(text.ends_with("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), "{text}");
        let (fields, body) = ask().block();
        assert_eq!((fields[0].1.as_str(), body.as_slice()), ("POST", b"abc".as_slice()));
    }

    #[test]
    fn words_of_a_shell() {
        assert_eq!(quoted("a'b"), r"'a'\''b'");
        assert_eq!(quoted(&format!("/{}", "p".repeat(9000))), "'/'\"$(printf 'p%.0s' {1..9000})\"''");
    }

    #[test]
    fn a_request_as_a_command() {
        let curl = ask().curl(Ipv4Addr::LOCALHOST);
        assert!(curl.contains("-X POST") && curl.ends_with("'http://127.0.0.1:81/a?b='\\'''"), "{curl}");
        let tls = Front { tls: true, ..ask().front };
        let curl = Ask { front: tls, ..ask() }.curl(Ipv4Addr::LOCALHOST);
        assert!(
            curl.contains("--connect-to ::127.0.0.1:81") && curl.contains("https://x.example:81/"),
            "{curl}"
        );
    }
}
