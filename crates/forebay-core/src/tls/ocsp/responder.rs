//! Exchange with an OCSP responder: one GET over HTTP (RFC 6960, appendix A), as in nginx. Runs on the process's tokio
//! thread.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use crate::control::{self, Line};
use base64::Engine;
use forebay_http::field::Name;
use forebay_http::h1::client::{ResponseHead, framing_of_response};
use forebay_http::request::Framing;
use forebay_net::addr::PeerAddr;
use forebay_net::addr::{Place, address_text};
use forebay_net::blame::Blamed;
use forebay_net::resolver::Resolver;
use forebay_net::tls::ocsp_message::MAX_RESPONSE;
use forebay_sys::errno::errno_text;
use forebay_sys::sync::lock;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time limit for a whole exchange.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest head of a response, bytes.
const MAX_HEAD: usize = 8 * 1024;
/// Port if the URL has none.
const PORT: u16 = 80;
/// Most addresses of a responder to try.
const MAX_ADDRESSES: usize = 3;

/// A responder.
#[derive(Clone, Debug)]
pub(crate) struct Responder {
    /// Address as in the URL.
    place: Place,
    uri: Vec<u8>,
    /// Host and port as written.
    host: Vec<u8>,
    /// Addresses found while the configuration was read.
    addresses: Vec<PeerAddr>,
}

/// Method of resolving a responder's name.
#[derive(Clone, Debug, Default)]
pub(crate) enum NameLookup {
    /// The configuration's `resolver`. `None` makes every lookup fail.
    Resolver(Option<Arc<Resolver>>),
    /// The system's resolver.
    #[default]
    System,
}

/// Reason for having no response, in nginx's words.
#[derive(Clone, Debug)]
pub(crate) struct ResponderFailure {
    text: Blamed<String>,
    peer: Option<PeerAddr>,
}

/// Response of a responder.
#[derive(Debug)]
pub(crate) struct Answered<T> {
    /// Body as received.
    pub(crate) body: Vec<u8>,
    /// Result of the caller's check.
    pub(crate) answer: T,
    peer: PeerAddr,
}

impl ResponderFailure {
    fn new(text: impl Into<String>) -> ResponderFailure {
        ResponderFailure { text: Blamed::Peer(text.into()), peer: None }
    }

    /// Creates a failure about a complete response.
    pub(crate) fn of<T>(answered: &Answered<T>, text: String) -> ResponderFailure {
        ResponderFailure { text: Blamed::Peer(text), peer: Some(answered.peer.clone()) }
    }

    /// Returns `true` if the responder is not to blame, since this machine could not ask it.
    pub(crate) fn is_own(&self) -> bool {
        self.text.is_own()
    }
}

impl Responder {
    /// Parses `http://HOST[:PORT][/PATH]`.
    ///
    /// # Errors
    /// In nginx's words, as `WHAT in OCSP responder "URL"`.
    pub(crate) fn parse(url: &[u8]) -> Result<Responder, String> {
        let shown = |u: &[u8]| String::from_utf8_lossy(u).into_owned();
        let prefix = || format!("invalid URL prefix in OCSP responder \"{}\"", shown(url));
        let scheme = url.get(..7).filter(|s| s.eq_ignore_ascii_case(b"http://")).ok_or_else(prefix)?;
        let rest = url.get(scheme.len()..).filter(|r| !r.is_empty()).ok_or_else(prefix)?;
        let broken = |what: &str| format!("{what} in OCSP responder \"{}\"", shown(rest));
        if rest.iter().any(|b| b.is_ascii_control() || *b == b' ') {
            return Err(broken("invalid character"));
        }
        let (host, uri) = split_host(rest);
        let place = Place::parse(host).map_err(broken)?;
        Ok(Responder { place, uri: uri.to_vec(), host: host.to_vec(), addresses: Vec::new() })
    }

    /// Resolves the name with the system's resolver. Blocks, so use it only while a configuration is read.
    ///
    /// # Errors
    /// In nginx's words.
    pub(crate) fn found(mut self) -> Result<Responder, String> {
        self.addresses = self.place.addresses(PORT);
        if self.addresses.is_empty() {
            let text = [self.host.as_slice(), &self.uri].concat();
            return Err(format!("host not found in OCSP responder \"{}\"", String::from_utf8_lossy(&text)));
        }
        Ok(self)
    }

    /// Returns a key that identifies the responder.
    pub(crate) fn key(&self) -> Vec<u8> {
        [self.host.as_slice(), b" ", &self.uri].concat()
    }

    /// Returns the text about a failure for the error log.
    pub(crate) fn describe(&self, f: &ResponderFailure) -> String {
        let name = self.shown_host();
        let mut text = format!("{} while requesting certificate status, responder: {name}", f.text.inner());
        if let Some(peer) = &f.peer {
            text += &format!(", peer: {}", String::from_utf8_lossy(&address_text(peer)));
        }
        text
    }

    /// Returns the responder's addresses.
    async fn find(&self, names: &NameLookup) -> Result<Vec<PeerAddr>, ResponderFailure> {
        if !self.addresses.is_empty() {
            return Ok(self.addresses.clone());
        }
        if let Some(literal) = self.place.literal(PORT) {
            return Ok(vec![literal]);
        }
        match names {
            NameLookup::Resolver(Some(resolver)) => self.resolve(resolver).await,
            NameLookup::Resolver(None) => {
                Err(ResponderFailure::new(format!("no resolver defined to resolve {}", self.shown_host())))
            }
            NameLookup::System => self.look_up().await,
        }
    }

    /// Asks the configuration's resolver.
    async fn resolve(&self, resolver: &Arc<Resolver>) -> Result<Vec<PeerAddr>, ResponderFailure> {
        let found = resolver.addresses(&self.place.host(), false).await;
        let failed = |e| ResponderFailure::new(format!("{} could not be resolved ({e})", self.shown_host()));
        let port = self.place.port().unwrap_or(PORT);
        let ips = found.map_err(failed)?.ips.into_iter();
        Ok(ips.map(|ip| PeerAddr::Inet(SocketAddr::new(ip, port))).collect())
    }

    /// Asks the system's resolver.
    async fn look_up(&self) -> Result<Vec<PeerAddr>, ResponderFailure> {
        let place = self.place.clone();
        let found = tokio::task::spawn_blocking(move || place.addresses(PORT)).await.unwrap_or_default();
        if found.is_empty() {
            let text = format!("host not found in OCSP responder \"{}\"", self.shown_host());
            return Err(ResponderFailure::new(text));
        }
        Ok(found)
    }

    /// Returns the host for messages.
    fn shown_host(&self) -> String {
        String::from_utf8_lossy(&self.place.host()).into_owned()
    }

    /// Sends a request and returns the first response that `check` accepts.
    ///
    /// # Errors
    /// In nginx's words.
    pub(crate) async fn ask<T>(
        &self,
        question: &[u8],
        names: &NameLookup,
        check: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<Answered<T>, ResponderFailure> {
        let peer = Mutex::new(None);
        match tokio::time::timeout(TIMEOUT, self.ask_each(question, names, check, &peer)).await {
            Ok(done) => done,
            Err(_) => {
                let text = "OCSP responder timed out (110: Connection timed out)".to_owned();
                Err(ResponderFailure { text: Blamed::Peer(text), peer: lock(&peer).clone() })
            }
        }
    }

    /// Asks one address after the other. `peer` receives the address that is being asked.
    async fn ask_each<T>(
        &self,
        question: &[u8],
        names: &NameLookup,
        check: impl Fn(&[u8]) -> Result<T, String>,
        peer: &Mutex<Option<PeerAddr>>,
    ) -> Result<Answered<T>, ResponderFailure> {
        let mut last = ResponderFailure::new("OCSP responder has no address");
        for addr in self.find(names).await?.into_iter().take(MAX_ADDRESSES) {
            *lock(peer) = Some(addr.clone());
            let got = self.fetch(&addr, question).await;
            let checked = got.and_then(|body| match check(&body) {
                Ok(answer) => Ok((body, answer)),
                Err(text) => Err(Blamed::Peer(text)),
            });
            match checked {
                Ok((body, answer)) => return Ok(Answered { body, answer, peer: addr }),
                Err(text) => last = ResponderFailure { text, peer: Some(addr) },
            }
        }
        Err(last)
    }

    /// Returns the response of one address.
    async fn fetch(&self, addr: &PeerAddr, question: &[u8]) -> Result<Vec<u8>, Blamed<String>> {
        let open = Line::open(addr).await;
        let mut line = open.map_err(|e| e.map(|e| format!("connect() failed {}", io_text(&e))))?;
        line.request(&self.request(question)).await.map_err(text_of)?;
        let mut head = ResponseHead::default();
        line.head(&mut head, MAX_HEAD).await.map_err(text_of)?;
        check_head(&head).map_err(Blamed::Peer)?;
        // One byte more tells that a response is too long.
        let body = line.body(&head, MAX_RESPONSE + 1).await.map_err(text_of)?;
        if body.bytes.len() > MAX_RESPONSE {
            return Err(Blamed::Peer(TOO_BIG.to_owned()));
        }
        Ok(body.bytes)
    }

    /// Returns the request for a question.
    fn request(&self, question: &[u8]) -> Vec<u8> {
        let mut out = b"GET ".to_vec();
        out.extend_from_slice(&self.uri);
        if !self.uri.ends_with(b"/") {
            out.push(b'/');
        }
        push_base64(question, &mut out);
        out.extend_from_slice(b" HTTP/1.0\r\nHost: ");
        let host = if matches!(self.place, Place::Unix(_)) { b"localhost".as_slice() } else { &self.host };
        out.extend_from_slice(host);
        out.extend_from_slice(b"\r\nAccept: application/ocsp-response\r\n\r\n");
        out
    }
}

/// Splits a URL without its scheme into the host and the rest.
fn split_host(url: &[u8]) -> (&[u8], &[u8]) {
    let Some(path) = url.strip_prefix(b"unix:") else {
        let end = url.iter().position(|b| matches!(b, b'/' | b'?'));
        return url.split_at(end.unwrap_or(url.len()));
    };
    // The path of a socket ends at a colon, as in proxy_pass.
    match memchr::memchr(b':', path) {
        Some(at) => (url.get(..5 + at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (url, b""),
    }
}

/// Appends bytes in base64, escaped for a path.
fn push_base64(bytes: &[u8], out: &mut Vec<u8>) {
    for b in base64::engine::general_purpose::STANDARD.encode(bytes).bytes() {
        match b {
            b'+' => out.extend_from_slice(b"%2B"),
            b'/' => out.extend_from_slice(b"%2F"),
            b'=' => out.extend_from_slice(b"%3D"),
            b => out.push(b),
        }
    }
}

const TOO_BIG: &str = "OCSP responder sent too big response";

/// Refuses responses that have no OCSP response.
fn check_head(head: &ResponseHead) -> Result<(), String> {
    if head.is_interim() {
        // The request is HTTP/1.0, which has no interim responses.
        return Err("OCSP responder sent invalid response".to_owned());
    }
    if head.status != 200 {
        let text = String::from_utf8_lossy(head.status_text.of(&head.buf));
        return Err(format!("OCSP responder sent status \"{text}\""));
    }
    let kind = head.get(Name::ContentType).unwrap_or_default();
    let essence = kind.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    if !essence.eq_ignore_ascii_case(b"application/ocsp-response") {
        let text = String::from_utf8_lossy(kind);
        return Err(format!("OCSP responder sent invalid \"Content-Type\" header: \"{text}\""));
    }
    match framing_of_response(head, false) {
        Framing::Length(n) if n > MAX_RESPONSE as u64 => Err(TOO_BIG.to_owned()),
        _ => Ok(()),
    }
}

/// Returns the text about a failure for the error log.
fn text_of(failure: control::Failure) -> Blamed<String> {
    failure.blamed().map(|failure| match failure {
        control::Failure::Send(e) => format!("send() failed {}", io_text(&e)),
        control::Failure::Receive(e) => format!("recv() failed {}", io_text(&e)),
        control::Failure::NoHead | control::Failure::Incomplete => {
            "OCSP responder prematurely closed connection".to_owned()
        }
        control::Failure::InvalidHead => "OCSP responder sent invalid response".to_owned(),
        control::Failure::InvalidChunk => "OCSP responder sent invalid chunked response".to_owned(),
    })
}

fn io_text(e: &std::io::Error) -> String {
    errno_text(rustix::io::Errno::from_io_error(e).unwrap_or(rustix::io::Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let line = |url: &str| {
            let r = Responder::parse(url.as_bytes()).unwrap().request(b"\xff\xef\xfe");
            String::from_utf8(r).unwrap().lines().take(2).collect::<Vec<_>>().join("|")
        };
        assert_eq!(line("http://a.test"), "GET /%2F%2B%2F%2B HTTP/1.0|Host: a.test");
        assert_eq!(line("HTTP://a.test:8080/x/"), "GET /x/%2F%2B%2F%2B HTTP/1.0|Host: a.test:8080");
        assert_eq!(line("http://[::1]/x"), "GET /x/%2F%2B%2F%2B HTTP/1.0|Host: [::1]");
        assert_eq!(line("http://unix:/s:/x"), "GET /x/%2F%2B%2F%2B HTTP/1.0|Host: localhost");
        let error = |url: &str| Responder::parse(url.as_bytes()).unwrap_err();
        assert_eq!(error("https://a/"), "invalid URL prefix in OCSP responder \"https://a/\"");
        assert_eq!(error("http://"), "invalid URL prefix in OCSP responder \"http://\"");
        assert_eq!(error("http://127.0.0.1:x/"), "invalid port in OCSP responder \"127.0.0.1:x/\"");
        assert!(error("http://a/\r\nX: y").starts_with("invalid character"));
    }
}
