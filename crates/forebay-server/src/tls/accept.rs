//! The server's side of a handshake: the virtual server is chosen by the name asked for, its configuration
//! meets the client, and the client's certificate is judged. Runs in the connection's own steps, so that a slow
//! handshake holds no runner.

use super::hello::Hello;
use super::ocsp::client::{self, Check};
use super::ocsp::responder::TIMEOUT;
use super::server::ServerTls;
use super::sessions::{Context, take_stored};
use super::sigalg;
use super::stream::{Greeting, Step};
use super::verify::{self, Failure, Purpose};
use crate::config::names::NameTable;
use crate::error_log;
use crate::modules::ssl::VerifyClient;
use crate::pattern::LimitExceeded;
use crate::request::{Request, Slot};
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_sys::errno::errno_text;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// What a step came to.
#[derive(Debug)]
pub enum Accept {
    /// Requests may come.
    Done,
    /// More has to come first.
    Wait,
    /// It will come to nothing; the log says why.
    Over,
    /// Something that is not the client's has to be waited for: see [`resume`].
    Later(Box<Later>),
}

/// What a handshake waits for besides the client.
#[derive(Debug)]
pub enum Later {
    /// Certificate and key are to be read from files.
    Files {
        /// The virtual server.
        server: usize,
        /// What the handshake begins with, but for the certificate.
        config: Arc<ServerConfig>,
        /// Names of certificates and keys.
        names: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Issuers are to be asked about the client's certificate, first of its path.
    State(Arc<Check>, Vec<CertificateDer<'static>>),
}

/// What is thought of a client's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// There is none.
    #[default]
    None,
    /// Good.
    Success,
    /// Not good.
    Failed(Failure),
    /// Good, but not in force, or nobody says that it is.
    Refused(&'static str),
}

/// What a handshake came to.
#[derive(Debug, Default)]
pub struct Session {
    /// TLS 1.3, else 1.2.
    pub v13: bool,
    /// Number of the cipher suite.
    pub suite: u16,
    /// Number of the group.
    pub group: u16,
    /// Number of the algorithm that the server has signed by; 0: it has not.
    pub sigalg: u16,
    /// The same of the client.
    pub client_sigalg: u16,
    /// ALPN.
    pub alpn: Option<Box<[u8]>>,
    /// Name asked for, lower case, without a final dot.
    pub name: Option<Box<[u8]>>,
    /// The same as the client has written it, where that is different.
    pub written_name: Option<Box<[u8]>>,
    /// Resumed.
    pub resumed: bool,
    /// The first request came with the handshake (0-RTT).
    pub early: bool,
    /// The client's certificates.
    pub peer: Vec<CertificateDer<'static>>,
    /// What is thought of them.
    pub verdict: Cell<Verdict>,
    /// What the verdict rests on ([`ServerTls::basis`]); `None`: the client was asked for nothing.
    basis: Cell<Option<Context>>,
    /// The configuration in which that was last compared (`Http::serial`); 0: none yet.
    compared: Cell<u64>,
    /// Only a new handshake can tell what the configuration in effect wants to know of the client.
    pub outdated: Cell<bool>,
    /// Identifier of the session, if somebody wants to know.
    pub id: Option<Box<[u8]>>,
    /// What the client offered, if somebody wants to know.
    pub hello: Option<Box<Hello>>,
}

impl Session {
    /// Gives the session the identifier that OpenSSL would show: what the client has come with (TLS 1.2), what it was
    /// stored under, and with TLS 1.3 a number in any case.
    fn identify(&mut self) {
        if !self.v13 && self.resumed {
            self.id = self.hello.as_ref().map(|h| h.session_id.as_slice().into());
        } else if self.v13 && self.id.is_none() {
            let mut id = [0; 32];
            self.id = aws_lc_rs::rand::fill(&mut id).is_ok().then(|| Box::from(id));
        }
    }
}

/// Alert `unrecognized_name`.
const UNRECOGNIZED_NAME: u8 = 112;
/// Alert `internal_error`.
const INTERNAL_ERROR: u8 = 80;

/// Goes on with a handshake as far as it can without waiting.
pub fn step(t: &Rc<Thread>, req: &mut Request) -> Accept {
    let token = req.conn.wire.token();
    loop {
        let Some(stream) = req.conn.wire.tls() else { return Accept::Done };
        if !stream.greeted() {
            match stream.greeting(t, token) {
                Ok(Some(Greeting::Partial)) => return Accept::Wait,
                Ok(Some(Greeting::Plain(bytes))) => {
                    req.conn.wire.decrypt();
                    req.conn.unencrypted = true;
                    req.head.buf = bytes;
                    req.started = t.clock.now();
                    return Accept::Done;
                }
                Ok(Some(Greeting::Broken(alert))) => {
                    stream.refuse(t, token, alert);
                    return fail(req, "SSL_do_handshake() failed (SSL: no ClientHello)");
                }
                Ok(Some(Greeting::Hello(hello))) => match choose(t, req, *hello) {
                    Accept::Done => continue,
                    other => return other,
                },
                Ok(None) => return fail(req, "peer closed connection in SSL handshake"),
                Err(e) => return fail(req, &format!("recv() failed {}", errno_text(e))),
            }
        }
        sigalg::take();
        take_stored();
        let stepped = stream.handshake(t, token);
        let early = stream.early;
        note_sigalgs(req);
        return match stepped {
            Step::Read | Step::Write => Accept::Wait,
            Step::Done(agreed) => {
                // Nobody shares it yet.
                let Some(session) = Rc::get_mut(req.conn.tls.get_or_insert_default()) else {
                    return Accept::Over;
                };
                session.v13 = agreed.v13;
                session.suite = agreed.suite;
                session.group = agreed.group;
                session.alpn = agreed.alpn;
                session.resumed = agreed.resumed;
                session.early = early;
                if session.hello.is_some() {
                    session.identify();
                }
                session.peer = agreed.peer;
                verify_client(req)
            }
            Step::Closed => fail(req, "peer closed connection in SSL handshake"),
            Step::Failed(e) => fail(req, &format!("SSL_do_handshake() failed {}", errno_text(e))),
            Step::Refused(text) => fail(req, &format!("SSL_do_handshake() failed (SSL: {text})")),
        };
    }
}

fn fail(req: &mut Request, what: &str) -> Accept {
    log(req, Level::Info, what);
    Accept::Over
}

fn log(req: &Request, level: Level, what: &str) {
    if !error_log::enabled(req, level) {
        return;
    }
    let mut client = Vec::new();
    crate::request::push_peer(req.conn.peer, &mut client);
    let tail = format!(", client: {}, server: {}", String::from_utf8_lossy(&client), req.listener_text());
    error_log::log_connection(req, level, &format!("{what} while SSL handshaking"), &tail);
}

/// Keeps what the step that was just made has signed and checked by.
fn note_sigalgs(req: &mut Request) {
    let (own, client) = sigalg::take();
    if let Some(session) = req.conn.tls.as_mut().and_then(Rc::get_mut) {
        session.sigalg = if own != 0 { own } else { session.sigalg };
        session.client_sigalg = if client != 0 { client } else { session.client_sigalg };
        if session.hello.is_some() {
            let stored = take_stored();
            session.id = if stored.is_empty() { session.id.take() } else { Some(stored.into()) };
        }
    }
}

/// Does what a handshake waits for. `false`: it came to nothing; the log says why.
pub async fn resume(t: &Rc<Thread>, req: &mut Request, later: Later) -> bool {
    match later {
        Later::Files { server, config: base, names } => {
            let config = req.conf.config.clone();
            let loaded = tokio::task::spawn_blocking(move || {
                let tls = config.http.servers.get(server).and_then(|s| s.tls.as_ref());
                let gone = || "no certificate".to_owned();
                tls.ok_or_else(gone)?.load(&names, &config.http.conf_dir, &base)
            });
            let loaded = loaded.await.unwrap_or_else(|_| Err("reading a certificate ended".to_owned()));
            begin(t, req, server, loaded.map_err(|text| (INTERNAL_ERROR, text)))
        }
        Later::State(check, path) => {
            // One limit for all of a chain; what is known in time is kept for the next handshake.
            let until = std::time::Instant::now() + TIMEOUT;
            let ran = t.reactor.deadline(until, check.run(&path)).await;
            let verdict = match ran.unwrap_or_else(|| Err(client::timed_out())) {
                Ok(()) => Verdict::Success,
                Err(refusal) => {
                    if let Some(text) = &refusal.log {
                        error_log::log_connection(req, Level::Error, text, "");
                    }
                    Verdict::Refused(refusal.verdict)
                }
            };
            if let Some(session) = req.conn.tls.as_mut().and_then(Rc::get_mut) {
                session.verdict.set(verdict);
            }
            true
        }
    }
}

/// Chooses the virtual server and begins the handshake with its configuration.
fn choose(t: &Rc<Thread>, req: &mut Request, mut hello: Hello) -> Accept {
    let conf = req.conf.clone();
    let http = &conf.config.http;
    let (mut chosen, mut fallback) = (0, 0);
    let mut known = Ok(());
    if let Some(a) = req.address_in(&conf) {
        (chosen, fallback) = (a.default_server, a.default_server);
        if let Some(name) = &hello.server_name {
            match choose_by_name(req, &a.names, name) {
                Ok(server) => chosen = server.unwrap_or(chosen),
                Err(e) => known = Err(e),
            }
        }
    }
    let tls = |i: usize| http.servers.get(i).and_then(|s| s.tls.as_ref());
    let server = if tls(chosen).is_some() { chosen } else { fallback };
    let name = hello.server_name.clone().map(Vec::into_boxed_slice);
    let written_name = hello.written_name.take().map(Vec::into_boxed_slice);
    let http2 = http.servers.get(chosen).is_some_and(|s| s.settings.http2)
        || req.address_in(&conf).is_some_and(|a| a.options.http2);
    let config = tls(server).map(|tls| tls.config_for(&hello.ciphers, http2));
    let wanted = http.shows_hello.then(|| Box::new(hello));
    req.conn.tls = Some(Rc::new(Session { name, written_name, hello: wanted, ..Session::default() }));
    let config = match tls(server).zip(config) {
        _ if known.is_err() => Err((INTERNAL_ERROR, "no server could be chosen".to_owned())),
        Some((tls, _)) if tls.reject => Err((UNRECOGNIZED_NAME, String::new())),
        Some((tls, config)) if tls.dynamic.is_empty() => Ok(config.clone()),
        Some((tls, config)) => {
            // The names are evaluated as for a request that has not begun.
            req.slots.clear();
            req.slots.resize(http.vars.len(), Slot::Empty);
            req.arena.clear();
            req.server = server;
            req.location = http.servers.get(server).map_or(0, |s| s.root);
            let mut names = Vec::new();
            for (cert, key) in &tls.dynamic {
                let cert = cert.template.value(req).unwrap_or_default();
                let key = key.template.value(req).unwrap_or_default();
                if !cert.is_empty() {
                    names.push((cert, key));
                }
            }
            req.slots.fill(Slot::Empty);
            req.arena.clear();
            match tls.known(&names, config) {
                Ok(Some(config)) => Ok(config),
                Ok(None) => {
                    return Accept::Later(Box::new(Later::Files { server, config: config.clone(), names }));
                }
                Err(text) => Err((INTERNAL_ERROR, text)),
            }
        }
        None => Err((
            INTERNAL_ERROR,
            "no \"ssl_certificate\" is defined in server listening on SSL port".to_owned(),
        )),
    };
    if begin(t, req, server, config) { Accept::Done } else { Accept::Over }
}

/// Finds the virtual server of a name and sets the captures of its pattern.
fn choose_by_name(req: &mut Request, names: &NameTable, name: &[u8]) -> Result<Option<usize>, LimitExceeded> {
    let found = names.find(name).map_err(|p| p.log_failure(req, name))?;
    if let Some((_, Some(pattern))) = found {
        pattern.exec(req, name)?;
    }
    Ok(found.map(|(server, _)| server))
}

/// Begins the handshake with a configuration, or refuses it with an alert and a line in the log.
fn begin(
    t: &Rc<Thread>,
    req: &mut Request,
    server: usize,
    config: Result<Arc<ServerConfig>, (u8, String)>,
) -> bool {
    let conf = req.conf.clone();
    let token = req.conn.wire.token();
    let tls = conf.config.http.servers.get(server).and_then(|s| s.tls.as_ref());
    let record = tls.map_or(super::record::MAX_CONTENT, |t| t.record);
    let made = config.and_then(|c| {
        UnbufferedServerConnection::new(c).map_err(|e| (INTERNAL_ERROR, format!("SSL_new() failed ({e})")))
    });
    let refused = match (made, req.conn.wire.tls()) {
        (Ok(conn), Some(stream)) => {
            stream.record = record;
            stream.choose(conn);
            return true;
        }
        (Err((alert, text)), Some(stream)) => {
            stream.refuse(t, token, alert);
            text
        }
        _ => String::new(),
    };
    if refused.is_empty() {
        log(
            req,
            Level::Info,
            "SSL_do_handshake() failed (SSL: error:0A0000E2:SSL routines::callback failed)",
        );
    } else {
        log(req, Level::Error, &refused);
    }
    false
}

/// The server whose name was asked for, which made the handshake.
fn handshake_server(req: &Request) -> Option<usize> {
    let conf = req.conf.clone();
    let a = req.address_in(&conf)?;
    let name = req.conn.tls.as_ref().and_then(|t| t.name.as_deref());
    // The handshake has failed where the name could not be looked up.
    let found = name.and_then(|n| a.names.find(n).ok().flatten()).map(|(s, _)| s);
    let tls = |i: usize| conf.config.http.servers.get(i).is_some_and(|s| s.tls.is_some());
    Some(found.filter(|s| tls(*s)).unwrap_or(a.default_server))
}

/// Judges the client's certificate, but for what its issuer says.
fn verify_client(req: &mut Request) -> Accept {
    let conf = req.conf.clone();
    let http = &conf.config.http;
    let server = handshake_server(req).and_then(|s| http.servers.get(s));
    let Some(session) = req.conn.tls.as_ref() else { return Accept::Done };
    session.compared.set(http.serial);
    let Some(tls) = server.and_then(|s| s.tls.as_ref()) else { return Accept::Done };
    session.basis.set(tls.basis());
    match session.judge_by(tls) {
        None => Accept::Done,
        Some((check, path)) => Accept::Later(Box::new(Later::State(check, path))),
    }
}

impl Session {
    /// Judges the client's certificate as this server does. What it gives is to be asked of issuers; until they have said
    /// something the certificate is good for nothing.
    fn judge_by(&self, tls: &ServerTls) -> Option<(Arc<Check>, Vec<CertificateDer<'static>>)> {
        let Some(trust) = tls.trust.as_ref().filter(|_| !self.peer.is_empty()) else {
            self.verdict.set(Verdict::None);
            return None;
        };
        let (judged, ask) = match &tls.ocsp {
            None => (trust.verify(&self.peer, Purpose::Client, verify::now()), None),
            Some(check) => match trust.path(&self.peer, Purpose::Client, verify::now()) {
                Ok(path) => (Ok(()), Some((check.clone(), path))),
                Err(f) => (Err(f), None),
            },
        };
        self.verdict.set(match judged {
            Err(f) => Verdict::Failed(f),
            Ok(()) if ask.is_some() => Verdict::Refused(client::REQUEST_FAILED),
            Ok(()) => Verdict::Success,
        });
        ask
    }

    /// Compares what the verdict rests on with the configuration in effect, which a reload may have changed since the
    /// handshake. The certificate is judged again by `server`, which would make the handshake now. Where that takes more than
    /// the certificate, the session is [`Session::outdated`].
    fn compare(&self, server: Option<&ServerTls>) {
        let basis = server.and_then(ServerTls::basis);
        if self.basis.get() == basis {
            return;
        }
        match server {
            // Nobody asked the client for a certificate, which it might have.
            Some(_) if self.basis.get().is_none() => self.outdated.set(true),
            Some(tls) => {
                self.basis.set(basis);
                if self.judge_by(tls).is_some() {
                    self.outdated.set(true);
                }
            }
            None => self.verdict.set(Verdict::None),
        }
    }
}

/// What a request on this connection is answered with before anything looks at it (nginx: errors 421, 495, 496
/// and 497).
pub fn judge(req: &mut Request) -> Option<u16> {
    if req.conn.unencrypted {
        req.log(Level::Info, "client sent plain HTTP request to HTTPS port");
        return Some(497);
    }
    let session = req.conn.tls.as_ref()?;
    let conf = req.conf.clone();
    let servers = &conf.config.http.servers;
    let tls = |i: usize| servers.get(i).and_then(|s| s.tls.as_deref());
    // Unlike nginx, whose connections keep the configuration that they began with.
    if session.compared.replace(conf.config.http.serial) != conf.config.http.serial {
        session.compare(handshake_server(req).and_then(tls));
    }
    let own = tls(req.server)?;
    if own.verify_client == VerifyClient::Off {
        return None;
    }
    let outdated = session.outdated.get();
    if outdated && !(own.verify_client == VerifyClient::Optional && session.verdict.get() == Verdict::None) {
        req.log(Level::Info, "client certificate is to be judged by other settings since a reload");
        req.keep_alive = false;
        return Some(421);
    }
    // A server that asks for certificates is reached by its own name only.
    if session.name.as_deref().is_some_and(|n| n != req.head.host.as_slice())
        && handshake_server(req) != Some(req.server)
    {
        req.log(
            Level::Info,
            "client attempted to request the server name different from the one that was negotiated",
        );
        return Some(421);
    }
    let verdict = session.verdict.get();
    // A client may come without a name, and then ask for a server that trusts others than the one that has judged
    // its certificate. Unlike nginx, which believes that judgement.
    if verdict != Verdict::None && session.basis.get() != own.basis() {
        req.log(Level::Info, "client certificate was judged by a server that trusts others");
        return Some(421);
    }
    match verdict {
        Verdict::Success => None,
        Verdict::None if own.verify_client != VerifyClient::On => None,
        Verdict::None => {
            req.log(Level::Info, "client sent no required SSL certificate");
            Some(496)
        }
        Verdict::Failed(f) if own.verify_client == VerifyClient::OptionalNoCa && f.is_trust() => None,
        Verdict::Failed(f) => {
            let text = format!("client SSL certificate verify error: ({}:{})", f.0, f.text());
            req.log(Level::Info, &text);
            Some(495)
        }
        Verdict::Refused(what) => {
            req.log(Level::Info, &format!("client SSL certificate verify error: {what}"));
            Some(495)
        }
    }
}

impl Request {
    /// Whether the client's connection is encrypted.
    #[inline]
    pub fn is_encrypted(&self) -> bool {
        self.conn.tls.is_some()
    }

    /// `http` or `https`.
    #[inline]
    pub fn scheme(&self) -> &'static [u8] {
        if self.is_encrypted() { b"https" } else { b"http" }
    }
}
