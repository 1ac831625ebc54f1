//! Clients of the tables that speak what openssl does not: TLS behind a PROXY header, HTTP/2 and HTTP/3.

use crate::http3;
use forebay_http::h2::frame::{flag, kind};
use forebay_net::tls::certified::VerifyLater;
use forebay_testkit::{DEADLINE, Server, h2};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

/// A request, and the connection that it takes.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) uri: &'a str,
    pub(super) host: &'a str,
    /// Name in the handshake; without one the connection is not encrypted.
    pub(super) sni: Option<&'a str>,
    pub(super) fields: Vec<(&'a str, &'a str)>,
    pub(super) body: &'a str,
    pub(super) certificate: Option<&'a str>,
    /// Field Host beside `:authority` (HTTP/2 and HTTP/3).
    pub(super) beside: Option<&'a str>,
    /// Host of a request that goes first on the connection.
    pub(super) first: Option<&'a str>,
    /// PROXY header.
    pub(super) header: Option<String>,
    pub(super) port: u16,
}

impl Request<'_> {
    /// Returns the request as text of HTTP/1.1. It closes the connection, unless a field says otherwise.
    pub(super) fn http1(&self) -> String {
        let Request { method, uri, host, body, .. } = self;
        let mut text = format!("{method} {uri} HTTP/1.1\r\nHost: {host}\r\n");
        if !self.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("connection")) {
            text.push_str("Connection: close\r\n");
        }
        for (name, value) in &self.fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        text + "\r\n" + body
    }
}

trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// Certificates of a site, by the names of their files.
pub(super) const CERTIFICATES: [&str; 3] = ["server", "client", "backend"];

fn config(dir: &Path, certificate: Option<&str>, alpn: &str) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder =
        builder.expect("versions").dangerous().with_custom_certificate_verifier(Arc::new(VerifyLater));
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let file = |ext: &str| dir.join(format!("{name}.{ext}"));
            let cert = CertificateDer::from_pem_file(file("crt")).expect("a certificate");
            let key = PrivateKeyDer::from_pem_file(file("key")).expect("a key");
            builder.with_client_auth_cert(vec![cert], key).expect("a pair")
        }
    };
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    config
}

/// Opens a connection. Returns it and the name of the server's certificate. `None`: the server refuses the handshake.
fn connect(dir: &Path, request: &Request<'_>, alpn: &str) -> Option<(Box<dyn Stream>, String)> {
    let addr = SocketAddr::from(([127, 0, 0, 1], request.port));
    let mut stream = TcpStream::connect_timeout(&addr, DEADLINE).expect("connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    if let Some(header) = &request.header {
        stream.write_all(header.as_bytes()).expect("written");
    }
    let Some(name) = request.sni else { return Some((Box::new(stream), String::new())) };
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let config = Arc::new(config(dir, request.certificate, alpn));
    let mut connection = ClientConnection::new(config, name).expect("a client");
    connection.complete_io(&mut stream).ok()?;
    let shown = connection.peer_certificates().and_then(|all| all.first()).cloned();
    let is_it = |name: &&&str| {
        let file = dir.join(format!("{name}.crt"));
        CertificateDer::from_pem_file(file).ok() == shown
    };
    let name = CERTIFICATES.iter().find(is_it).map_or("another", |name| *name);
    Some((Box::new(StreamOwned::new(connection, stream)), format!("\ncertificate: {name}\n")))
}

/// Sends bytes over HTTP/1.1, and reads to the end of the connection.
pub(super) fn http1(dir: &Path, request: &Request<'_>, text: &str) -> String {
    let Some((mut stream, certificate)) = connect(dir, request, "http/1.1") else { return String::new() };
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
    let mut answer = Vec::new();
    // Some servers end without an alert.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned() + &certificate
}

/// Returns an answer as text.
fn text(version: u8, fields: &[(String, String)], body: &str, trailers: &[(String, String)]) -> String {
    let Some((_, status)) = fields.iter().find(|(name, _)| name == ":status") else { return String::new() };
    let line = |(name, value): &(String, String)| format!("{name}: {value}\r\n");
    let of = |fields: &[(String, String)]| {
        fields.iter().filter(|(name, _)| !name.starts_with(':')).map(line).collect::<String>()
    };
    format!("HTTP/{version} {status}\r\n{}\r\n{body}{}", of(fields), of(trailers))
}

/// Sends a request over HTTP/2.
pub(super) fn http2(dir: &Path, request: &Request<'_>) -> String {
    let Some((stream, certificate)) = connect(dir, request, "h2") else { return String::new() };
    let mut client = h2::Client::over(stream);
    let scheme = if request.sni.is_some() { "https" } else { "http" };
    let mut id = 1;
    if let Some(host) = request.first {
        client.request(id, "/", &[(":scheme", scheme), (":authority", host)], true);
        let answer = client.answer(id);
        assert!(answer.ended, "the first request has an answer: {answer:?}");
        id += 2;
    }
    let mut fields = vec![(":method", request.method), (":scheme", scheme), (":authority", request.host)];
    fields.extend(request.beside.map(|host| ("host", host)));
    fields.extend(&request.fields);
    // What CONNECT opens goes on.
    let ends = request.body.is_empty() && request.method != "CONNECT";
    client.request(id, request.uri, &fields, ends);
    if !request.body.is_empty() {
        client.frame(kind::DATA, flag::END_STREAM, id, request.body.as_bytes());
    }
    let answer = client.answer(id);
    let body = String::from_utf8_lossy(&answer.body).into_owned() + &certificate;
    text(2, &answer.fields, &body, &answer.trailers)
}

/// Sends a request over HTTP/3.
pub(super) fn http3(client: &mut http3::Client, server: &Server, request: &Request<'_>) -> String {
    let mut options = json!({"name": request.sni.unwrap_or(request.host), "port": request.port, "within": 5});
    if let Some(name) = request.certificate {
        let file = |ext: &str| server.dir().join(format!("{name}.{ext}")).display().to_string();
        options["cert"] = file("crt").into();
        options["key"] = file("key").into();
    }
    let told = client.connect_with("table", server, options);
    if told["connected"] != true {
        return String::new();
    }
    let certificate = format!("\nsubject: {}\n", told["certificate"].as_str().unwrap_or_default());
    if let Some(host) = request.first {
        let told = client.ask("table", json!({"authority": host}));
        assert_ne!(told["status"], 0, "the first request has an answer: {told}");
    }
    let mut fields = request.fields.clone();
    fields.extend(request.beside.map(|host| ("host", host)));
    let asked = json!({
        "method": request.method, "authority": request.host, "path": request.uri, "fields": fields,
        "body": request.body, "text": true,
    });
    let told = client.ask("table", asked);
    client.call("close", json!({"on": "table"}));
    let pairs = |key: &str| -> Vec<(String, String)> {
        serde_json::from_value(told[key].clone()).expect("pairs of texts")
    };
    let body = told["whole"].as_str().unwrap_or_default().to_owned() + &certificate;
    text(3, &pairs("fields"), &body, &pairs("trailers"))
}
