//! A client of one server, which keeps its connection.

use forebay_core::control::blocking::{Connection, Limits, NoResponse, Patience, Response};
use forebay_core::control::{Failure, Read};
use forebay_net::tls::certified::VerifyLater;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(super) use forebay_core::control::blocking::Address;

/// Longest wait for the server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest parts of an answer, bytes.
const LIMITS: Limits = Limits { head: 64 << 10, body: 64 << 20 };

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
            Address::Host(host, port) => write!(f, "{scheme}://{host}:{port}{}", self.path),
            Address::Inet(address) => write!(f, "{scheme}://{address}{}", self.path),
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
            None => Address::Host(host.trim_matches(['[', ']']).to_owned(), port),
        };
        Ok(Target { address, host: authority.to_owned(), path: path.to_owned(), tls, insecure: false })
    }

    /// Returns a location behind a unix socket.
    pub(super) fn of_socket(socket: &Path, path: &str) -> Target {
        let address = Address::Unix(socket.to_owned());
        Target { address, host: "localhost".to_owned(), path: path.to_owned(), tls: false, insecure: false }
    }

    fn connect(&self) -> Result<Connection, String> {
        let mut connection = Connection::open(&self.address, Patience::Each(PATIENCE)).map_err(text)?;
        if self.tls {
            let name = ServerName::try_from(host_and_port(&self.host).0.trim_matches(['[', ']']).to_owned());
            let name = name.map_err(text)?;
            let tls = ClientConnection::new(Arc::new(tls_config(self.insecure)?), name).map_err(text)?;
            connection.secure(tls).map_err(text)?;
        }
        Ok(connection)
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

/// Client of a server.
pub(super) struct Client {
    target: Target,
    connection: Option<Connection>,
}

impl Client {
    pub(super) fn new(target: Target) -> Client {
        Client { target, connection: None }
    }

    /// Asks for a path and reads the JSON of the answer.
    ///
    /// # Errors
    /// The server does not answer, or with something else.
    pub(super) fn get(&mut self, path: &str) -> Result<Value, String> {
        let response = match self.connection.take() {
            // The server may have closed an idle connection.
            Some(connection) => self.exchange(connection, path).or_else(|_| self.fresh(path)),
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
        let connection = self.target.connect()?;
        self.exchange(connection, path)
    }

    fn exchange(&mut self, mut connection: Connection, path: &str) -> Result<Response, String> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: forebay-top\r\n\r\n", self.target.host);
        connection.request(request.as_bytes()).map_err(said)?;
        let response = connection.response(LIMITS).map_err(said)?;
        if response.read == Read::Part {
            return Err("the answer is too long".to_owned());
        }
        self.connection = Some(connection).filter(|_| response.keeps);
        Ok(response)
    }
}

fn said(why: impl Into<NoResponse>) -> String {
    let NoResponse::Failed(failure) = why.into() else {
        return "the head of the answer is too long".to_owned();
    };
    match failure {
        Failure::Send(e) | Failure::Receive(e) => e.to_string(),
        Failure::NoHead => "the connection was closed".to_owned(),
        Failure::InvalidHead | Failure::InvalidChunk => "the answer is not HTTP".to_owned(),
        Failure::Incomplete => "the answer was cut off".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let target = |url: &str| Target::of_url(url, None).map(|t| (t.address, t.host, t.path, t.tls));
        let inet = |host: &str, port| Address::Host(host.to_owned(), port);
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
}
