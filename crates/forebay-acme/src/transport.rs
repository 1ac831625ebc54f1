//! HTTP over TLS to an authority. A connection is kept for the requests that follow.

use crate::failure::Failure;
use crate::settings::Issuer;
use forebay_core::control::{self, Line, Read};
use forebay_http::h1::client::ResponseHead;
use forebay_net::addr::{PeerAddr, Place};
use forebay_net::resolver::Resolver;
use forebay_net::tls::certified::VerifyLater;
use forebay_net::tls::verify::{self, Purpose, Trust};
use forebay_sys::errno::errno;
use forebay_sys::printable::is_hidden;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for a request with its response.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest head of a response, bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Most redirects that are followed.
const MAX_REDIRECTS: usize = 10;
/// Most addresses of the authority that are tried.
const MAX_ADDRESSES: usize = 4;
/// Longest chain of the authority's own certificate.
const MAX_DEPTH: usize = 9;

/// `https://HOST[:PORT][/PATH]`.
struct Url {
    /// Host and port as written.
    authority: String,
    place: Place,
    /// Path with query.
    target: String,
}

impl Url {
    fn parse(text: &str) -> Result<Url, Failure> {
        let invalid = || Failure::temporary(format!("invalid URL \"{}\"", clean(text)));
        let rest = text.strip_prefix("https://").ok_or_else(invalid)?;
        if rest.bytes().any(|b| b.is_ascii_control() || b == b' ') {
            return Err(invalid());
        }
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        let place = Place::parse(authority.as_bytes()).map_err(|_| invalid())?;
        if matches!(place, Place::Unix(_)) {
            return Err(invalid());
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Url { authority: authority.to_owned(), place, target: format!("{slash}{target}") })
    }

    /// Returns the host without port and brackets.
    fn host(&self) -> String {
        let host = String::from_utf8_lossy(&self.place.host()).into_owned();
        match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(inner) => inner.to_owned(),
            None => host,
        }
    }
}

/// Replaces hidden characters of a text that came from outside, and cuts it off after 500 characters.
pub(crate) fn clean(text: &str) -> String {
    text.chars().take(500).map(|c| if is_hidden(c) { ' ' } else { c }).collect()
}

/// A response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Field lines; names in lower case.
    fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    fn new(head: &ResponseHead, body: Vec<u8>) -> Answer {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let field = |line: &forebay_http::field::FieldLine| {
            (text(line.name.of(&head.buf)).to_ascii_lowercase(), text(line.value.of(&head.buf)))
        };
        Answer { status: head.status, fields: head.fields.iter().map(field).collect(), body }
    }

    /// Returns the value of the first line of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Returns the values of all lines of a field.
    pub(crate) fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Reads the body as JSON.
    ///
    /// # Errors
    /// If it is not an object.
    pub(crate) fn json(&self) -> Result<Value, Failure> {
        let parsed: Option<Value> = serde_json::from_slice(&self.body).ok();
        parsed.filter(Value::is_object).ok_or_else(|| Failure::temporary("the authority sent no JSON object"))
    }

    /// Returns the time that `Retry-After` asks for, seconds or a date (RFC 9110, section 10.2.3).
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let value = self.field("retry-after")?;
        if let Ok(seconds) = value.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let at = forebay_http::date::parse(value.as_bytes())?;
        u64::try_from(at.saturating_sub(verify::now())).ok().map(Duration::from_secs)
    }
}

/// Content of a request.
pub(crate) struct Content<'c> {
    pub(crate) media_type: &'static str,
    pub(crate) bytes: &'c [u8],
}

/// Connections to an authority.
pub(crate) struct Transport {
    issuer: Arc<Issuer>,
    tls: Arc<ClientConfig>,
    trust: Option<Trust>,
    resolver: Arc<Resolver>,
    /// Connection that may serve another request, with its authority.
    kept: Option<(String, Line)>,
}

impl Transport {
    /// Prepares connections to an authority. Reads the roots of the system if the issuer has none.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(crate) async fn new(issuer: Arc<Issuer>) -> Result<Transport, Failure> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Failure::last(e.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(VerifyLater))
            .with_no_client_auth();
        let own = issuer.clone();
        let read = tokio::task::spawn_blocking(move || files_of(&own)).await;
        let (trust, resolver) = read.map_err(|e| Failure::temporary(e.to_string()))?;
        Ok(Transport { issuer, tls: Arc::new(tls), trust, resolver, kept: None })
    }

    /// Gets a resource and follows redirects.
    ///
    /// # Errors
    /// If there is no response.
    pub(crate) async fn get(&mut self, url: &str) -> Result<Answer, Failure> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.send("GET", &url, None).await?;
            match answer.field("location").filter(|_| (300..400).contains(&answer.status)) {
                Some(target) if target.starts_with('/') => {
                    url = format!("https://{}{target}", Url::parse(&url)?.authority);
                }
                Some(target) => url = target.to_owned(),
                None => return Ok(answer),
            }
        }
        Err(Failure::temporary("too many redirects"))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// If there is no response.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        url: &str,
        content: Option<Content<'_>>,
    ) -> Result<Answer, Failure> {
        let url = Url::parse(url)?;
        let text = request_text(method, &url, content.as_ref());
        // On the heap: it holds buffers, and each of the many futures around it would move them over the thread's stack.
        let exchange = Box::pin(self.exchange(&url, &text));
        let limited = tokio::time::timeout(TIMEOUT, exchange).await;
        let failed = |f: Failure| f.during(&format!("\"{}\"", url.authority));
        limited.unwrap_or_else(|_| Err(Failure::temporary("timed out"))).map_err(failed)
    }

    async fn exchange(&mut self, url: &Url, text: &[u8]) -> Result<Answer, Failure> {
        if let Some((authority, line)) = self.kept.take()
            && authority == url.authority
            && let Ok(answer) = self.ask(url, line, text).await
        {
            return Ok(answer);
        }
        // An authority may close an idle connection at any time, so a failure there is no answer.
        let line = self.open(url).await?;
        self.ask(url, line, text).await
    }

    async fn ask(&mut self, url: &Url, mut line: Line, text: &[u8]) -> Result<Answer, Failure> {
        line.request(text).await.map_err(described)?;
        let head = line.final_head(MAX_HEAD).await.map_err(described)?;
        let body = line.body(&head, self.issuer.max_response).await.map_err(described)?;
        if body.read == Read::Part {
            return Err(Failure::temporary("too long response"));
        }
        if body.read == Read::All && head.keep_alive {
            self.kept = Some((url.authority.clone(), line));
        }
        Ok(Answer::new(&head, body.bytes))
    }

    /// Opens a connection to the first address that accepts one.
    async fn open(&mut self, url: &Url) -> Result<Line, Failure> {
        let mut last = Failure::temporary("no address");
        for addr in self.addresses(url).await?.into_iter().take(MAX_ADDRESSES) {
            match Line::open(&addr).await {
                Ok(line) => return self.secure(url, line).await,
                Err(e) => last = Failure::blamed(e.map(|e| format!("connect() failed ({})", errno(&e)))),
            }
        }
        Err(last)
    }

    async fn addresses(&mut self, url: &Url) -> Result<Vec<PeerAddr>, Failure> {
        const PORT: u16 = 443;
        if let Some(literal) = url.place.literal(PORT) {
            return Ok(vec![literal]);
        }
        let found = self.resolver.addresses(&url.place.host(), false).await;
        let found =
            found.map_err(|e| Failure::temporary(format!("{} could not be resolved ({e})", url.host())))?;
        let port = url.place.port().unwrap_or(PORT);
        Ok(found.ips.into_iter().map(|ip| PeerAddr::Inet(SocketAddr::new(ip, port))).collect())
    }

    async fn secure(&mut self, url: &Url, mut line: Line) -> Result<Line, Failure> {
        let host = url.host();
        let name = ServerName::try_from(host.clone()).map_err(|e| Failure::temporary(e.to_string()))?;
        let tls =
            ClientConnection::new(self.tls.clone(), name).map_err(|e| Failure::temporary(e.to_string()))?;
        let handshake = |e| Failure::temporary(format!("SSL_do_handshake() failed ({})", errno(&e)));
        let chain = line.secure(tls).await.map_err(handshake)?;
        if let Some(trust) = &self.trust {
            let unverified = |why: &str| {
                let issuer = &self.issuer.name;
                Failure::temporary(format!(
                    "certificate of acme issuer \"{issuer}\" cannot be verified: {why}"
                ))
            };
            trust.verify(chain, Purpose::Server, verify::now()).map_err(|e| unverified(e.text()))?;
            if !chain.first().is_some_and(|c| verify::is_for_host(c, &host)) {
                return Err(unverified("it is for another name"));
            }
        }
        Ok(line)
    }
}

/// Returns the roots that verify an authority, and the resolver for its name. Those of the system are in files.
fn files_of(issuer: &Issuer) -> (Option<Trust>, Arc<Resolver>) {
    let trust = issuer.verify.then(|| {
        let roots = issuer.roots.clone().unwrap_or_else(|| rustls_native_certs::load_native_certs().certs);
        Trust::new(roots, Vec::new(), Vec::new(), MAX_DEPTH)
    });
    let resolver = issuer.resolver.clone().unwrap_or_else(|| Arc::new(Resolver::system()));
    (trust, resolver)
}

fn request_text(method: &str, url: &Url, content: Option<&Content<'_>>) -> Vec<u8> {
    let Url { authority, target, .. } = url;
    let agent = concat!("forebay/", env!("CARGO_PKG_VERSION"));
    let mut text = format!(
        "{method} {target} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: {agent}\r\nAccept-Language: en\r\n"
    );
    if let Some(content) = content {
        text +=
            &format!("Content-Type: {}\r\nContent-Length: {}\r\n", content.media_type, content.bytes.len());
    }
    text += "\r\n";
    [text.as_bytes(), content.map_or(&[], |c| c.bytes)].concat()
}

fn described(failure: control::Failure) -> Failure {
    use control::Failure as F;
    Failure::temporary(match failure {
        F::Send(e) => format!("send() failed ({})", errno(&e)),
        F::Receive(e) => format!("recv() failed ({})", errno(&e)),
        F::NoHead => "no response".to_owned(),
        F::InvalidHead => "invalid head of the response".to_owned(),
        F::InvalidChunk => "invalid chunk of the response".to_owned(),
        F::Incomplete => "the response is incomplete".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_https_only() {
        let parsed = |text: &str| Url::parse(text).ok().map(|u| (u.authority.clone(), u.host(), u.target));
        let whole = |a: &str, h: &str, t: &str| Some((a.to_owned(), h.to_owned(), t.to_owned()));
        assert_eq!(parsed("https://a.example"), whole("a.example", "a.example", "/"));
        assert_eq!(
            parsed("https://a.example:14000/dir?x=1"),
            whole("a.example:14000", "a.example", "/dir?x=1")
        );
        assert_eq!(parsed("https://[::1]:1/x"), whole("[::1]:1", "::1", "/x"));
        for bad in
            ["http://a.example/", "https://", "https://a b/", "https://a\r\nX: y/", "https://unix:/x", "a"]
        {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
