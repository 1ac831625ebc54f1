//! A small HTTP/1.1 client for one server, which keeps its connection.

use forebay_net::tls::certified::VerifyLater;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer, bytes.
const LONGEST: usize = 64 << 20;
/// Longest head of an answer, bytes.
const LONGEST_HEAD: usize = 64 << 10;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// Host and port.
    Inet(String, u16),
    /// Unix socket.
    Unix(PathBuf),
}

/// A location of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: Address,
    /// Name of the virtual server.
    pub(super) host: String,
    /// Path of the location.
    pub(super) path: String,
    pub(super) tls: bool,
    /// Any certificate will do.
    pub(super) insecure: bool,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        match &self.address {
            Address::Inet(host, port) => write!(f, "{scheme}://{host}:{port}{}", self.path),
            Address::Unix(path) => write!(f, "{}:{}", path.display(), self.path),
        }
    }
}

impl Target {
    /// Reads `http://host:port/path`; the scheme may be left out. `socket` is connected to instead of the host.
    pub(super) fn of_url(url: &str, socket: Option<&Path>) -> Result<Target, String> {
        let (tls, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) => return Err(format!("\"{scheme}\" is not http or https")),
            None => (false, url),
        };
        let (authority, path) = match rest.find(['/', '?', '#']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let (host, port) = host_and_port(authority);
        let port = match port {
            Some(port) => port.parse().map_err(|_| format!("\"{port}\" is no port"))?,
            None if tls => 443,
            None => 80,
        };
        if host.is_empty() && socket.is_none() {
            return Err(format!("\"{url}\" has no host"));
        }
        let address = match socket {
            Some(socket) => Address::Unix(socket.to_owned()),
            None => Address::Inet(host.trim_matches(['[', ']']).to_owned(), port),
        };
        Ok(Target { address, host: authority.to_owned(), path: path.to_owned(), tls, insecure: false })
    }

    /// Returns a location behind a unix socket.
    pub(super) fn of_socket(socket: &Path, path: &str) -> Target {
        let address = Address::Unix(socket.to_owned());
        Target { address, host: "localhost".to_owned(), path: path.to_owned(), tls: false, insecure: false }
    }

    fn connect(&self) -> Result<Box<dyn Stream>, String> {
        let socket: Box<dyn Stream> = match &self.address {
            Address::Unix(path) => {
                let socket = UnixStream::connect(path).map_err(text)?;
                socket.set_read_timeout(Some(PATIENCE)).map_err(text)?;
                Box::new(socket)
            }
            Address::Inet(host, port) => Box::new(tcp(host, *port)?),
        };
        if !self.tls {
            return Ok(socket);
        }
        let name = ServerName::try_from(host_and_port(&self.host).0.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(text)?;
        let connection = ClientConnection::new(Arc::new(tls_config(self.insecure)?), name).map_err(text)?;
        Ok(Box::new(StreamOwned::new(connection, socket)))
    }
}

/// Splits `host:port`.
fn host_and_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

/// Connects to the first address of a host that answers.
fn tcp(host: &str, port: u16) -> Result<TcpStream, String> {
    let mut addresses = (host, port).to_socket_addrs().map_err(text)?;
    let mut last = format!("{host} has no address");
    let connect = |a| TcpStream::connect_timeout(&a, PATIENCE).map_err(|e| last = e.to_string()).ok();
    let socket = addresses.find_map(connect).ok_or(last)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(text)?;
    Ok(socket)
}

fn text(e: impl fmt::Display) -> String {
    e.to_string()
}

fn tls_config(insecure: bool) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(text)?;
    if insecure {
        // Later is never.
        return Ok(builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(VerifyLater))
            .with_no_client_auth());
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Bytes in both directions.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Client of a server.
pub(super) struct Client {
    target: Target,
    stream: Option<Box<dyn Stream>>,
}

/// Response to a request.
struct Response {
    status: u16,
    body: Vec<u8>,
    /// The connection may serve another request.
    keeps: bool,
}

impl Client {
    pub(super) fn new(target: Target) -> Client {
        Client { target, stream: None }
    }

    /// Asks for a path and reads the JSON of the answer.
    ///
    /// # Errors
    /// The server does not answer, or with something else.
    pub(super) fn get(&mut self, path: &str) -> Result<Value, String> {
        let response = match self.stream.take() {
            // The server may have closed an idle connection.
            Some(stream) => self.exchange(stream, path).or_else(|_| self.fresh(path)),
            None => self.fresh(path),
        }?;
        match response.status {
            200 => serde_json::from_slice(&response.body)
                .map_err(|_| format!("{path} is not answered with JSON")),
            403 => Err("status 403: the location may be closed to this machine (allow, deny)".to_owned()),
            status => Err(format!("status {status} for {path}")),
        }
    }

    fn fresh(&mut self, path: &str) -> Result<Response, String> {
        let stream = self.target.connect()?;
        self.exchange(stream, path)
    }

    fn exchange(&mut self, mut stream: Box<dyn Stream>, path: &str) -> Result<Response, String> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: forebay-top\r\n\r\n", self.target.host);
        stream.write_all(request.as_bytes()).map_err(text)?;
        stream.flush().map_err(text)?;
        let response = read(&mut stream)?;
        self.stream = Some(stream).filter(|_| response.keeps);
        Ok(response)
    }
}

/// Bytes of a response so far.
struct Incoming<'s> {
    stream: &'s mut dyn Stream,
    bytes: Vec<u8>,
}

impl Incoming<'_> {
    /// Reads more bytes; returns `false` at the end of the connection.
    fn more(&mut self) -> Result<bool, String> {
        let mut piece = [0; 16 << 10];
        let count = self.stream.read(&mut piece).map_err(text)?;
        self.bytes.extend_from_slice(piece.get(..count).unwrap_or_default());
        if self.bytes.len() > LONGEST { Err("the answer is too long".to_owned()) } else { Ok(count > 0) }
    }

    /// Reads the head. Returns it in lower case, and takes it from the bytes.
    fn head(&mut self) -> Result<String, String> {
        loop {
            if let Some(at) = self.bytes.windows(4).position(|w| w == b"\r\n\r\n") {
                let rest = self.bytes.split_off(at + 4);
                let head = std::mem::replace(&mut self.bytes, rest);
                return Ok(String::from_utf8_lossy(&head).to_ascii_lowercase());
            }
            if self.bytes.len() > LONGEST_HEAD {
                return Err("the head of the answer is too long".to_owned());
            }
            if !self.more()? {
                return Err("the connection was closed".to_owned());
            }
        }
    }

    /// Reads the content: a number of bytes, or all until the connection ends.
    fn body(&mut self, length: Option<usize>) -> Result<(), String> {
        while length.is_none_or(|length| self.bytes.len() < length) {
            if !self.more()? {
                return if length.is_none() { Ok(()) } else { Err("the answer was cut off".to_owned()) };
            }
        }
        Ok(())
    }
}

/// Reads a response that has a length, or ends with the connection.
fn read(stream: &mut dyn Stream) -> Result<Response, String> {
    let mut incoming = Incoming { stream, bytes: Vec::new() };
    let head = incoming.head()?;
    let field =
        |name: &str| head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or("the answer is not HTTP")?;
    let length = field("content-length").and_then(|n| n.parse::<usize>().ok());
    incoming.body(length)?;
    let keeps = length.is_some() && field("connection") != Some("close");
    Ok(Response { status, body: incoming.bytes, keeps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let target = |url: &str| Target::of_url(url, None).map(|t| (t.address, t.host, t.path, t.tls));
        let inet = |host: &str, port| Address::Inet(host.to_owned(), port);
        let text = str::to_owned;
        assert_eq!(
            ["[::1]:8443", "[::1]", "a:1", "a"].map(host_and_port),
            [("[::1]", Some("8443")), ("[::1]", None), ("a", Some("1")), ("a", None)]
        );
        assert_eq!(
            target("https://[::1]:8443/dashboard?x"),
            Ok((inet("::1", 8443), text("[::1]:8443"), text("/dashboard"), true))
        );
        assert_eq!(target("a.test"), Ok((inet("a.test", 80), text("a.test"), text("/"), false)));
        assert!(target("ftp://a").is_err() && target("http://").is_err() && target("a:b/").is_err());
    }

    #[test]
    fn a_response_ends_with_its_length_or_the_connection() {
        let of = |text: &str| read(&mut std::io::Cursor::new(text.as_bytes().to_vec()));
        let kept = of("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").expect("a response");
        assert_eq!((kept.status, kept.body, kept.keeps), (200, b"{}".to_vec(), true));
        let closed = of("HTTP/1.1 404 No\r\n\r\nabc").expect("a response");
        assert_eq!((closed.status, closed.body, closed.keeps), (404, b"abc".to_vec(), false));
        assert!(of("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}").is_err());
        assert!(of("HTTP/1.1").is_err() && of("hello\r\n\r\n").is_err());
        let endless = format!("HTTP/1.1 200 OK\r\n{}", "a: b\r\n".repeat(LONGEST_HEAD));
        assert_eq!(of(&endless).err(), Some("the head of the answer is too long".to_owned()));
    }
}
