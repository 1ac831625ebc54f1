//! Server side of a TLS handshake: chooses the virtual server by the name in ClientHello, completes the handshake with
//! its configuration, and verifies the client's certificate. Works in steps that never wait, so that a slow handshake
//! occupies no runner.

use crate::connection::Connection;
use crate::error_log;
use crate::request::Request;
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::pattern::LimitExceeded;
use forebay_core::tls::ocsp::client::{self, Check};
use forebay_core::tls::ocsp::responder::TIMEOUT;
use forebay_core::tls::server::ServerTls;
use forebay_core::tls::settings::VerifyClient;
use forebay_core::tls::{Session, Verdict};
use forebay_net::tls::hello::Hello;
use forebay_net::tls::sessions::take_stored;
use forebay_net::tls::sigalg;
use forebay_net::tls::stream::{Greeting, Step};
use forebay_net::tls::verify::{self, Purpose};
use forebay_sys::errno::errno_text;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

/// Result of a [`step`] of the handshake.
#[derive(Debug)]
pub(crate) enum Accept {
    /// The handshake is complete.
    Done,
    /// The handshake needs more input or room in the socket.
    Wait,
    /// The handshake failed, which has been logged.
    Over,
    /// The client sent these plain bytes instead of TLS, perhaps HTTP.
    Plain(Vec<u8>),
    /// The handshake waits for something other than the client: see [`resume`].
    Later(Box<Later>),
}

/// File names of certificates and their keys.
type CertificateNames = Vec<(Vec<u8>, Vec<u8>)>;

/// Work that a handshake needs done before it can go on.
#[derive(Debug)]
pub(crate) enum Later {
    /// Read certificate and key from files.
    Files {
        /// The virtual server.
        server: usize,
        /// Configuration of the handshake, without the certificate.
        config: Arc<ServerConfig>,
        /// Names of certificates and keys.
        names: CertificateNames,
    },
    /// Ask OCSP responders about the path of the client's certificate, which begins with that certificate.
    State(Arc<Check>, Vec<CertificateDer<'static>>),
}

/// Alert `unrecognized_name`.
const UNRECOGNIZED_NAME: u8 = 112;
/// Alert `internal_error`.
const INTERNAL_ERROR: u8 = 80;

/// Continues a handshake as far as it can without waiting.
pub(crate) fn step(t: &Rc<Thread>, conf: &Rc<ThreadConfig>, conn: &mut Connection) -> Accept {
    while conn.wire.tls().is_some_and(|stream| !stream.greeted()) {
        match greet(t, conf, conn) {
            Accept::Done => {}
            other => return other,
        }
    }
    let token = conn.wire.token();
    let Some(stream) = conn.wire.tls() else { return Accept::Done };
    sigalg::take();
    take_stored();
    let stepped = stream.handshake(&t.io, token);
    let early = stream.early;
    note_sigalgs(conn);
    match stepped {
        Step::Read | Step::Write => Accept::Wait,
        Step::Done(agreed) => {
            if let Some(session) = session_mut(conn) {
                session.complete(*agreed, early);
            }
            verify_client(conf, conn)
        }
        Step::Closed => fail(t, conf, conn, "peer closed connection in SSL handshake"),
        Step::Failed(e) => fail(t, conf, conn, &format!("SSL_do_handshake() failed {}", errno_text(e))),
        Step::Refused(text) => fail(t, conf, conn, &format!("SSL_do_handshake() failed (SSL: {text})")),
    }
}

/// Reads the first bytes of a connection and chooses the server by them.
fn greet(t: &Rc<Thread>, conf: &Rc<ThreadConfig>, conn: &mut Connection) -> Accept {
    let token = conn.wire.token();
    let Some(stream) = conn.wire.tls() else { return Accept::Done };
    match stream.greeting(&t.io, token) {
        Ok(Some(Greeting::Hello(hello))) => choose(t, conf, conn, *hello),
        Ok(Some(Greeting::Partial)) => Accept::Wait,
        Ok(Some(Greeting::Plain(bytes))) => {
            conn.wire.decrypt();
            conn.client_mut().unencrypted = true;
            Accept::Plain(bytes)
        }
        Ok(Some(Greeting::Broken(alert))) => {
            stream.refuse(&t.io, token, alert);
            fail(t, conf, conn, "SSL_do_handshake() failed (SSL: no ClientHello)")
        }
        Ok(None) => fail(t, conf, conn, "peer closed connection in SSL handshake"),
        Err(e) => fail(t, conf, conn, &format!("recv() failed {}", errno_text(e))),
    }
}

/// The session of a handshake in progress, which nothing shares yet.
fn session_mut(conn: &mut Connection) -> Option<&mut Session> {
    conn.client_mut().tls.as_mut().and_then(Rc::get_mut)
}

fn fail(t: &Thread, conf: &ThreadConfig, conn: &Connection, what: &str) -> Accept {
    log(t, conf, conn, Level::Info, what);
    Accept::Over
}

fn log(t: &Thread, conf: &ThreadConfig, conn: &Connection, level: Level, what: &str) {
    if !error_log::enabled(t, &conn.client, level) {
        return;
    }
    let tail = format!(", client: {}, server: {}", conn.client.text(), conn.client.listener_text(conf));
    error_log::log_connection(t, &conn.client, level, &format!("{what} while SSL handshaking"), &tail);
}

/// Notes the signature algorithms that the last step used.
fn note_sigalgs(conn: &mut Connection) {
    let (own, client) = sigalg::take();
    if let Some(session) = session_mut(conn) {
        session.sigalg = if own != 0 { own } else { session.sigalg };
        session.client_sigalg = if client != 0 { client } else { session.client_sigalg };
        if session.hello.is_some() {
            let stored = take_stored();
            session.id = if stored.is_empty() { session.id.take() } else { Some(stored.into()) };
        }
    }
}

/// Does the work that a handshake waits for. Returns `false` if that failed, which has been logged.
pub(crate) async fn resume(
    t: &Rc<Thread>,
    conf: &Rc<ThreadConfig>,
    conn: &mut Connection,
    later: Later,
) -> bool {
    match later {
        Later::Files { server, config: base, names } => {
            let http = conf.http.clone();
            let loaded = tokio::task::spawn_blocking(move || {
                let tls = http.servers.get(server).and_then(|s| s.tls.as_ref());
                let gone = || "no certificate".to_owned();
                tls.ok_or_else(gone)?.load(&names, &http.conf_dir, &base)
            });
            let loaded = loaded.await.unwrap_or_else(|_| Err("reading a certificate ended".to_owned()));
            begin(t, conf, conn, server, loaded.map_err(|text| (INTERNAL_ERROR, text)))
        }
        Later::State(check, path) => {
            // One deadline for the whole chain. Answers that arrive before it stay cached for the next handshake.
            let until = std::time::Instant::now() + TIMEOUT;
            let ran = t.io.poller.deadline(until, check.run(&path)).await;
            let verdict = match ran.unwrap_or_else(|| Err(client::timed_out())) {
                Ok(()) => Verdict::Success,
                Err(refusal) => {
                    if let Some(text) = &refusal.log {
                        error_log::log_connection(t, &conn.client, Level::Error, text, "");
                    }
                    Verdict::Refused(refusal.verdict)
                }
            };
            if let Some(session) = session_mut(conn) {
                session.verdict.set(verdict);
            }
            true
        }
    }
}

/// Alert and text for the error log of a handshake that is refused.
type Denial = (u8, String);

fn denied(text: &str) -> Denial {
    (INTERNAL_ERROR, text.to_owned())
}

/// Chooses the virtual server and begins the handshake with its configuration.
fn choose(t: &Rc<Thread>, conf: &Rc<ThreadConfig>, conn: &mut Connection, mut hello: Hello) -> Accept {
    let http = &conf.http;
    let address = conn.client.address(conf);
    let fallback = address.map_or(0, |a| a.default_server);
    let named = named_server(t, conf, conn, &hello);
    let chosen = named.as_ref().map_or(fallback, |found| found.unwrap_or(fallback));
    let tls = |i: usize| http.servers.get(i).and_then(|s| s.tls.as_ref());
    let server = if tls(chosen).is_some() { chosen } else { fallback };
    let http2 = http.servers.get(chosen).is_some_and(|s| s.settings.http2)
        || address.is_some_and(|a| a.options.http2);
    let config = tls(server).map(|tls| tls.config_for(&hello.ciphers, http2));
    let name = hello.server_name.clone().map(Vec::into_boxed_slice);
    let written_name = hello.written_name.take().map(Vec::into_boxed_slice);
    let wanted = http.shows_hello.then(|| Box::new(hello));
    conn.client_mut().tls =
        Some(Rc::new(Session { name, written_name, hello: wanted, ..Session::default() }));
    let config = match (named, tls(server).zip(config)) {
        (Err(denial), _) => Err(denial),
        (Ok(_), Some((tls, config))) => match presented(t, conf, conn, (server, tls), config) {
            Ok(Presented::Now(config)) => Ok(config),
            Ok(Presented::Later(later)) => return Accept::Later(later),
            Err(denial) => Err(denial),
        },
        (Ok(_), None) => Err(denied("no \"ssl_certificate\" is defined in server listening on SSL port")),
    };
    if begin(t, conf, conn, server, config) { Accept::Done } else { Accept::Over }
}

/// Finds the server of the name in a ClientHello; `None` if there is none.
fn named_server(
    t: &Thread,
    conf: &ThreadConfig,
    conn: &Connection,
    hello: &Hello,
) -> Result<Option<usize>, Denial> {
    let (Some(a), Some(name)) = (conn.client.address(conf), &hello.server_name) else { return Ok(None) };
    match a.names.find(name) {
        Ok(found) => Ok(found.map(|(server, _)| server)),
        Err(pattern) => {
            let text = String::from_utf8_lossy(&pattern.failure(name)).into_owned();
            log(t, conf, conn, Level::Alert, &text);
            Err(denied("no server could be chosen"))
        }
    }
}

/// Configuration of a handshake with the certificate to present.
enum Presented {
    Now(Arc<ServerConfig>),
    /// The certificate has to be read first.
    Later(Box<Later>),
}

/// Adds the certificate to a server's configuration.
fn presented(
    t: &Rc<Thread>,
    conf: &Rc<ThreadConfig>,
    conn: &Connection,
    (server, tls): (usize, &ServerTls),
    config: &Arc<ServerConfig>,
) -> Result<Presented, Denial> {
    if tls.reject {
        return Err((UNRECOGNIZED_NAME, String::new()));
    }
    if tls.dynamic.is_empty() {
        return Ok(Presented::Now(config.clone()));
    }
    let names = certificate_names(t, conf, conn, server)
        .map_err(|LimitExceeded| denied("no server could be chosen"))?;
    let known = tls.known(&names, config).map_err(|text| (INTERNAL_ERROR, text))?;
    Ok(match known {
        Some(config) => Presented::Now(config),
        None => Presented::Later(Box::new(Later::Files { server, config: config.clone(), names })),
    })
}

/// Evaluates the names of a server's certificates and keys that have variables, as for a request that has not begun.
fn certificate_names(
    t: &Rc<Thread>,
    conf: &Rc<ThreadConfig>,
    conn: &Connection,
    server: usize,
) -> Result<CertificateNames, LimitExceeded> {
    let Some(own) = conf.http.servers.get(server) else { return Ok(Vec::new()) };
    let mut req = Request::of_connection(t, conf, conn);
    req.server = server;
    req.location = own.root;
    let name = conn.client.tls.as_ref().and_then(|s| s.name.as_deref());
    if let (Some(name), Some(a)) = (name, conn.client.address(conf))
        && let Ok(Some((_, Some(pattern)))) = a.names.find(name)
    {
        // Sets the captures of `server_name`.
        pattern.exec(&mut req, name)?;
    }
    let mut names = Vec::new();
    for (cert, key) in own.tls.iter().flat_map(|tls| &tls.dynamic) {
        let cert = cert.template.value(&mut req).unwrap_or_default();
        let key = key.template.value(&mut req).unwrap_or_default();
        if !cert.is_empty() {
            names.push((cert, key));
        }
    }
    Ok(names)
}

/// Begins the handshake with a configuration. Otherwise refuses it with an alert, logs that and returns `false`.
fn begin(
    t: &Rc<Thread>,
    conf: &ThreadConfig,
    conn: &mut Connection,
    server: usize,
    config: Result<Arc<ServerConfig>, Denial>,
) -> bool {
    let token = conn.wire.token();
    let tls = conf.http.servers.get(server).and_then(|s| s.tls.as_ref());
    let record = tls.map_or(forebay_net::tls::record::MAX_CONTENT, |t| t.record());
    let made = config.and_then(|c| {
        UnbufferedServerConnection::new(c).map_err(|e| (INTERNAL_ERROR, format!("SSL_new() failed ({e})")))
    });
    let refused = match (made, conn.wire.tls()) {
        (Ok(made), Some(stream)) => {
            stream.record = record;
            stream.choose(made);
            return true;
        }
        (Err((alert, text)), Some(stream)) => {
            stream.refuse(&t.io, token, alert);
            text
        }
        _ => String::new(),
    };
    if refused.is_empty() {
        let text = "SSL_do_handshake() failed (SSL: error:0A0000E2:SSL routines::callback failed)";
        log(t, conf, conn, Level::Info, text);
    } else {
        log(t, conf, conn, Level::Error, &refused);
    }
    false
}

/// The server that made the handshake: the one whose name the client asked for.
fn handshake_server(conf: &ThreadConfig, client: &Client) -> Option<usize> {
    let a = client.address(conf)?;
    let name = client.tls.as_ref().and_then(|t| t.name.as_deref());
    // An error of `find` would have failed the handshake already.
    let found = name.and_then(|n| a.names.find(n).ok().flatten()).map(|(s, _)| s);
    let tls = |i: usize| conf.http.servers.get(i).is_some_and(|s| s.tls.is_some());
    Some(found.filter(|s| tls(*s)).unwrap_or(a.default_server))
}

/// Verifies the client's certificate, except for OCSP.
fn verify_client(conf: &ThreadConfig, conn: &Connection) -> Accept {
    let http = &conf.http;
    let server = handshake_server(conf, &conn.client).and_then(|s| http.servers.get(s));
    let Some(session) = conn.client.tls.as_ref() else { return Accept::Done };
    session.compared.set(http.serial);
    let Some(tls) = server.and_then(|s| s.tls.as_ref()) else { return Accept::Done };
    session.basis.set(tls.basis());
    match judge_by(session, tls) {
        None => Accept::Done,
        Some((check, path)) => Accept::Later(Box::new(Later::State(check, path))),
    }
}

/// Verifies the client's certificate by this server's settings. Returns the OCSP check that is still to be run, if
/// any. Until it has succeeded the certificate counts as refused.
fn judge_by(session: &Session, tls: &ServerTls) -> Option<(Arc<Check>, Vec<CertificateDer<'static>>)> {
    let Some(trust) = tls.trust.as_ref().filter(|_| !session.peer.is_empty()) else {
        session.verdict.set(Verdict::None);
        return None;
    };
    let (judged, ask) = match &tls.ocsp {
        None => (trust.verify(&session.peer, Purpose::Client, verify::now()), None),
        Some(check) => match trust.path(&session.peer, Purpose::Client, verify::now()) {
            Ok(path) => (Ok(()), Some((check.clone(), path))),
            Err(f) => (Err(f), None),
        },
    };
    session.verdict.set(match judged {
        Err(f) => Verdict::Failed(f),
        Ok(()) if ask.is_some() => Verdict::Refused(client::REQUEST_FAILED),
        Ok(()) => Verdict::Success,
    });
    ask
}

/// Compares the verdict's basis with the configuration in effect, which a reload may have changed since the
/// handshake. If it differs, verifies the certificate again by `server`, which would make the handshake now. Sets
/// [`Session::outdated`] if the certificate alone is not enough for that.
fn compare_basis(session: &Session, server: Option<&ServerTls>) {
    let basis = server.and_then(ServerTls::basis);
    if session.basis.get() == basis {
        return;
    }
    match server {
        // The old configuration did not ask for a certificate, so the client may have one that we do not know.
        Some(_) if session.basis.get().is_none() => session.outdated.set(true),
        Some(tls) => {
            session.basis.set(basis);
            if judge_by(session, tls).is_some() {
                session.outdated.set(true);
            }
        }
        None => session.verdict.set(Verdict::None),
    }
}

/// Returns the error for a request that this connection may not carry (nginx: errors 421, 495, 496 and 497).
pub(crate) fn judge(req: &mut Request) -> Option<u16> {
    if req.conn.client.unencrypted {
        req.log(Level::Info, "client sent plain HTTP request to HTTPS port");
        return Some(497);
    }
    req.conn.client.tls.as_ref()?;
    let conf = req.conf.clone();
    compare(req, &conf);
    let own = conf.http.servers.get(req.server)?.tls.as_deref()?;
    if own.verify_client == VerifyClient::Off {
        return None;
    }
    let rejection = misdirected(req, &conf, own).or_else(|| unverified(req, own))?;
    req.log(Level::Info, &rejection.text);
    if rejection.closes {
        req.keep_alive = false;
    }
    Some(rejection.status)
}

/// Error for a request of a client that did not show the certificate which the server demands.
struct Rejection {
    status: u16,
    /// Text for the error log.
    text: Cow<'static, str>,
    /// Only a new connection can satisfy the server.
    closes: bool,
}

impl Rejection {
    fn new(status: u16, text: impl Into<Cow<'static, str>>) -> Rejection {
        Rejection { status, text: text.into(), closes: false }
    }
}

/// Compares the session's verdict with the configuration of the request. Unlike in nginx, that may be newer than the
/// one of the handshake.
fn compare(req: &Request, conf: &ThreadConfig) {
    let Some(session) = req.conn.client.tls.as_ref() else { return };
    let http = &conf.http;
    if session.compared.replace(http.serial) != http.serial {
        let server = handshake_server(conf, req.client()).and_then(|s| http.servers.get(s));
        compare_basis(session, server.and_then(|s| s.tls.as_deref()));
    }
}

/// Checks that the handshake was made with the server of the request, or with one that trusts the same authorities.
fn misdirected(req: &Request, conf: &ThreadConfig, own: &ServerTls) -> Option<Rejection> {
    let session = req.conn.client.tls.as_ref()?;
    let verdict = session.verdict.get();
    let may_come_without = own.verify_client == VerifyClient::Optional && verdict == Verdict::None;
    if session.outdated.get() && !may_come_without {
        let text = "client certificate is to be judged by other settings since a reload";
        return Some(Rejection { closes: true, ..Rejection::new(421, text) });
    }
    // A server that asks for certificates may be reached only through a handshake under its own name.
    if session.name.as_deref().is_some_and(|n| n != req.head.host.as_slice())
        && handshake_server(conf, req.client()) != Some(req.server)
    {
        let text = "client attempted to request the server name different from the one that was negotiated";
        return Some(Rejection::new(421, text));
    }
    // A client without SNI may request a server that trusts other authorities than the one that verified its
    // certificate. Refuse that, unlike nginx.
    let trusts_others = verdict != Verdict::None && session.basis.get() != own.basis();
    trusts_others.then(|| Rejection::new(421, "client certificate was judged by a server that trusts others"))
}

/// Checks the verdict on the client's certificate.
fn unverified(req: &Request, own: &ServerTls) -> Option<Rejection> {
    match req.conn.client.tls.as_ref()?.verdict.get() {
        Verdict::Success => None,
        Verdict::None if own.verify_client != VerifyClient::On => None,
        Verdict::None => Some(Rejection::new(496, "client sent no required SSL certificate")),
        Verdict::Failed(f) if own.verify_client == VerifyClient::OptionalNoCa && f.is_trust() => None,
        Verdict::Failed(f) => {
            let text = format!("client SSL certificate verify error: ({}:{})", f.0, f.text());
            Some(Rejection::new(495, text))
        }
        Verdict::Refused(what) => {
            Some(Rejection::new(495, format!("client SSL certificate verify error: {what}")))
        }
    }
}

impl Request {
    /// Returns `true` if the client's connection is encrypted.
    #[inline]
    pub(crate) fn is_encrypted(&self) -> bool {
        self.conn.client.tls.is_some()
    }

    /// Returns `http` or `https`.
    #[inline]
    pub(crate) fn scheme(&self) -> &'static [u8] {
        if self.is_encrypted() { b"https" } else { b"http" }
    }
}
