//! Every mode of a default server with every mode of a named one, by certificate and names of the client.

use super::{OF_D, OWN, TRUST, site};
use crate::http3;
use forebay_net::tls::certified::VerifyLater;
use forebay_testkit::{Oracle, Server, Site, connect, h2, is_before, oracle};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// Modes of `ssl_verify_client`. Those of the default servers of ports are in this order.
const MODES: [&str; 4] = ["off", "optional", "on", "optional_no_ca"];

/// Server that a name chooses.
#[derive(Clone, Copy, Debug)]
struct Named {
    mode: &'static str,
    own_certificate: bool,
}

impl Named {
    fn all() -> impl Iterator<Item = Named> {
        let of = |mode| [true, false].map(|own_certificate| Named { mode, own_certificate });
        MODES.into_iter().flat_map(of)
    }

    fn name(self) -> String {
        format!("{}-{}.test", self.mode.replace('_', "-"), if self.own_certificate { "own" } else { "none" })
    }
}

/// Block of the servers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Http,
    Stream,
}

/// Blocks with all servers. `quic`: they listen there, too.
fn blocks(block: Block, quic: bool, http2: &str) -> String {
    let (word, body) = match block {
        Block::Http => ("http", "return 200 \"%L% $ssl_client_verify\\n\";"),
        Block::Stream => ("stream", "return \"200 %L% $ssl_client_verify\\n\";"),
    };
    let mut servers = String::new();
    for (port, default) in MODES.iter().enumerate() {
        let quic = if quic { format!("listen 127.0.0.1:%PORT{port}% quic;") } else { String::new() };
        let listen = format!("listen 127.0.0.1:%PORT{port}% ssl{http2}; {quic}");
        let said = body.replace("%L%", "d");
        servers += &format!("server {{ {listen} {OF_D} {TRUST} ssl_verify_client {default}; {said} }}\n");
        for named in Named::all() {
            let own = if named.own_certificate { OWN } else { "" };
            let (name, mode, said) = (named.name(), named.mode, body.replace("%L%", "n"));
            servers += &format!(
                "server {{ {listen} server_name {name}; {own} {TRUST} ssl_verify_client {mode}; {said} }}\n"
            );
        }
    }
    let log = if block == Block::Http { "access_log off;" } else { "" };
    format!("{word} {{ {log}\n{servers} }}")
}

/// Names and certificate that a client gives.
#[derive(Clone, Debug)]
struct Visit {
    port: usize,
    named: Named,
    certificate: Option<&'static str>,
    sni: Option<String>,
    host: String,
}

/// Returns all visits. Sessions of stream have no host.
fn visits(block: Block) -> Vec<Visit> {
    let mut all = Vec::new();
    for (port, named) in (0..MODES.len()).flat_map(|port| Named::all().map(move |named| (port, named))) {
        let given = ["d.test".to_owned(), named.name(), "o.test".to_owned()];
        let hosts = if block == Block::Http { &given[..] } else { &given[..1] };
        for certificate in [None, Some("valid"), Some("foreign")] {
            for sni in std::iter::once(None).chain(given.iter().cloned().map(Some)) {
                let visit =
                    |host: &String| Visit { port, named, certificate, sni: sni.clone(), host: host.clone() };
                all.extend(hosts.iter().map(visit));
            }
        }
    }
    all
}

impl Visit {
    /// Returns the answer that nginx gives: its documentation says so, and [`agrees_with_nginx`] asks it.
    fn wanted(&self, block: Block) -> String {
        let default = MODES[self.port];
        let named = self.named.name();
        // A server without a certificate leaves handshakes to the default server.
        let made_by_named = self.named.own_certificate && self.sni.as_ref() == Some(&named);
        let verdict = match self.certificate {
            _ if (if made_by_named { self.named.mode } else { default }) == "off" => "NONE",
            None => "NONE",
            Some("valid") => "SUCCESS",
            Some(_) => "FAILED",
        };
        let chosen = if block == Block::Http { Some(&self.host) } else { self.sni.as_ref() };
        let (label, demand) = if chosen == Some(&named) { ("n", self.named.mode) } else { ("d", default) };
        // A name of no server counts as none.
        let negotiated = self.sni.as_ref().filter(|name| *name != "o.test");
        let refused = match (demand, verdict) {
            ("off", _) => None,
            _ if block == Block::Http && negotiated.is_some_and(|name| *name != self.host) => Some("421"),
            ("on", "NONE") => Some("400 No required SSL certificate was sent"),
            (_, "NONE" | "SUCCESS") | ("optional_no_ca", _) => None,
            _ => Some("400 The SSL certificate error"),
        };
        match (refused, block) {
            (None, _) => format!("200 {label} {verdict}"),
            (Some(status), Block::Http) => status.to_owned(),
            (Some(_), Block::Stream) => String::new(),
        }
    }
}

/// Status with the part of a body that tells what has happened.
fn told(status: &str, body: &str) -> String {
    match status {
        "200" => format!("200 {}", body.split([':', '\n']).next().unwrap_or_default()),
        "400" => {
            let title = body.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
            title.unwrap_or(body).to_owned()
        }
        other => other.to_owned(),
    }
}

/// A client over TCP: configurations of handshakes by certificate.
struct Visitor<'s> {
    site: &'s Site,
    configs: Vec<(Option<&'static str>, Arc<ClientConfig>)>,
}

impl<'s> Visitor<'s> {
    fn new(site: &'s Site, alpn: &str) -> Visitor<'s> {
        let config = |certificate: Option<&'static str>| {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
            let builder = builder.expect("versions").dangerous();
            let builder = builder.with_custom_certificate_verifier(Arc::new(VerifyLater));
            let mut config = match certificate {
                None => builder.with_no_client_auth(),
                Some(name) => {
                    let file = |ext: &str| site.dir().join(format!("{name}.{ext}"));
                    let cert = CertificateDer::from_pem_file(file("crt")).expect("a certificate");
                    let key = PrivateKeyDer::from_pem_file(file("key")).expect("a key");
                    builder.with_client_auth_cert(vec![cert], key).expect("a pair")
                }
            };
            config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
            // Every visit makes a handshake of its own.
            config.resumption = rustls::client::Resumption::disabled();
            (certificate, Arc::new(config))
        };
        let configs = [None, Some("valid"), Some("foreign")].map(config);
        Visitor { site, configs: configs.into() }
    }

    fn connect(&self, visit: &Visit) -> StreamOwned<ClientConnection, TcpStream> {
        let stream = connect(self.site.addr(visit.port));
        // An address is no server name.
        let name = visit.sni.clone().unwrap_or_else(|| "127.0.0.1".to_owned());
        let name = ServerName::try_from(name).expect("a name");
        let config = self.configs.iter().find(|(name, _)| *name == visit.certificate).expect("one of three");
        StreamOwned::new(ClientConnection::new(config.1.clone(), name).expect("a client"), stream)
    }

    /// Sends bytes, and reads to the end of the connection.
    fn exchange(&self, visit: &Visit, bytes: &[u8]) -> String {
        let mut stream = self.connect(visit);
        let _ = stream.write_all(bytes).and_then(|()| stream.flush());
        let mut answer = Vec::new();
        // Some servers end without an alert.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn http1(&self, visit: &Visit) -> String {
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", visit.host);
        let answer = self.exchange(visit, request.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        told(head.split(' ').nth(1).unwrap_or_default(), body)
    }

    fn http2(&self, visit: &Visit) -> String {
        let mut client = h2::Client::over(self.connect(visit));
        client.request(1, "/", &[(":scheme", "https"), (":authority", &visit.host)], true);
        let answer = client.answer(1);
        told(answer.field(":status"), &String::from_utf8_lossy(&answer.body))
    }

    fn session(&self, visit: &Visit) -> String {
        let answer = self.exchange(visit, b"");
        answer.split([':', '\n']).next().unwrap_or_default().to_owned()
    }
}

/// Makes all visits, those of each port on a thread of its own, and fails with every answer that is not wanted.
fn check(what: &str, block: Block, visit: impl Fn(&Visit) -> String + Sync) {
    let all = visits(block);
    let of_port = |port: usize| {
        let mut wrong = Vec::new();
        for v in all.iter().filter(|v| v.port == port) {
            let (got, wanted) = (visit(v), v.wanted(block));
            if got != wanted {
                let default = MODES[port];
                wrong.push(format!("{what}, default {default}, {v:?}: {got:?}, not {wanted:?}"));
            }
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let of_port = &of_port;
        let threads: Vec<_> = (0..MODES.len()).map(|port| scope.spawn(move || of_port(port))).collect();
        threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect()
    });
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn demands_hold_over_tcp() {
    let server = Server::start_on(site(&blocks(Block::Http, false, " http2")));
    let visitor = Visitor::new(&server.site, "http/1.1");
    check("HTTP/1", Block::Http, |visit| visitor.http1(visit));
    let visitor = Visitor::new(&server.site, "h2");
    check("HTTP/2", Block::Http, |visit| visitor.http2(visit));
}

#[test]
fn demands_hold_in_stream() {
    let server = Server::start_on(site(&blocks(Block::Stream, false, "")));
    let visitor = Visitor::new(&server.site, "any");
    check("stream", Block::Stream, |visit| visitor.session(visit));
}

#[test]
fn demands_hold_over_quic() {
    let Some(mut client) = http3::Client::start() else { return };
    let server = Server::start_on(site(&blocks(Block::Http, true, "")));
    let mut wrong = Vec::new();
    let mut open = String::new();
    for (number, v) in visits(Block::Http).iter().enumerate() {
        // The visits of one handshake follow each other.
        if number.is_multiple_of(3) {
            open = format!("c{number}");
            let mut options = json!({ "port": server.addr(v.port).port(), "name": v.sni });
            if let Some(name) = v.certificate {
                for (option, ext) in [("cert", "crt"), ("key", "key")] {
                    options[option] = json!(server.dir().join(format!("{name}.{ext}")));
                }
            }
            let told = client.connect_with(&open, &server, options);
            assert_eq!(told["connected"], true, "{v:?}: {told}");
        }
        let answer = client.ask(&open, json!({ "authority": v.host, "path": "/" }));
        let got = told(&answer["status"].to_string(), answer["text"].as_str().unwrap_or_default());
        if got != v.wanted(Block::Http) {
            wrong.push(format!("default {}, {v:?}: {got:?}", MODES[v.port]));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// nginx gives the answers that the other tests demand of Forebay.
#[test]
fn agrees_with_nginx() {
    let Some(nginx) = oracle() else { return };
    let theirs = Oracle::start(&nginx, site(&blocks(Block::Http, false, " http2")));
    let visitor = Visitor::new(theirs.site(), "http/1.1");
    check("nginx, HTTP/1", Block::Http, |visit| visitor.http1(visit));
    let visitor = Visitor::new(theirs.site(), "h2");
    check("nginx, HTTP/2", Block::Http, |visit| visitor.http2(visit));
    // Older ones choose no server of stream by name, and few are built with it.
    if is_before(&nginx, 27) || !has_stream(&nginx) {
        return;
    }
    let theirs = Oracle::start(&nginx, site(&blocks(Block::Stream, false, "")));
    let visitor = Visitor::new(theirs.site(), "any");
    // nginx takes the demands of the default server now and then, by how the records of a handshake arrive.
    let session = |visit: &Visit| {
        let wanted = visit.wanted(Block::Stream);
        let mut got = (0..20).map(|_| visitor.session(visit));
        got.find(|got| *got == wanted).unwrap_or_else(|| "something else each time".to_owned())
    };
    check("nginx, stream", Block::Stream, session);
}

fn has_stream(nginx: &str) -> bool {
    let said = std::process::Command::new(nginx).arg("-V").output().expect("nginx -V");
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    text.contains("--with-stream ") && text.contains("--with-stream_ssl_module")
}
