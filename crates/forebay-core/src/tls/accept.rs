//! Server side of a TLS handshake: chooses the virtual server by the name in ClientHello, completes the handshake with
//! its configuration, and verifies the client's certificate. Works in steps that never wait; `drive.rs` waits between them.

use super::demands::Demands;
use super::ocsp::client::{self, Check};
use super::ocsp::responder::TIMEOUT;
use super::server::ServerTls;
use super::{Session, Verdict, proof, verdict};
use crate::client::Client;
use crate::config::Address;
use crate::pattern::LimitExceeded;
use crate::thread::{ActiveConfig, Thread};
use crate::vars::Evaluate;
use forebay_conf::error::Level;
use forebay_net::tls::hello::Hello;
use forebay_net::tls::record::MAX_CONTENT;
use forebay_net::tls::sessions::take_stored;
use forebay_net::tls::sigalg;
use forebay_net::tls::stream::{Agreed, Greeting, Step};
use forebay_net::wire::Wire;
use forebay_sys::errno::errno_text;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Virtual servers of a front end, as far as handshakes with clients need them. Servers have the numbers of
/// [`Address::default_server`] and [`Address::names`].
pub trait TlsServers {
    /// Request or session for which the names of certificates are evaluated.
    type Eval: Evaluate;

    /// Returns the demands of a server on its clients, whether or not it makes handshakes.
    fn demands(&self, server: usize) -> Demands;

    /// Returns the handshakes of a server, if it makes any.
    fn tls(&self, server: usize) -> Option<&Arc<ServerTls>>;

    /// Returns `true` if handshakes for a server offer its optional protocol
    /// ([`Application::optional`](super::server::Application::optional)). `address` is the one that the client connected to.
    fn offers_optional(&self, server: usize, address: Option<&Address>) -> bool;

    /// Returns the protocols that a server speaks over QUIC, the preferred one first.
    fn quic_protocols(&self, server: usize) -> &'static [&'static [u8]];

    /// Creates a request or session of a client that has not sent any, with the settings of a server.
    fn evaluator(&self, client: &Rc<Client>, server: usize) -> Self::Eval;

    /// Returns `true` if a variable may show a part of the ClientHello.
    fn shows_hello(&self) -> bool;

    /// Returns the serial number of the configuration; see [`Session::compared`].
    fn serial(&self) -> u64;

    /// Returns the directory of certificates that are loaded in a handshake.
    fn certificate_dir(&self) -> &Path;

    /// Returns `true` if any log takes lines of this level about the client's connection.
    fn is_logged(&self, client: &Client, level: Level) -> bool;

    /// Writes a line about the client's connection to the error log. `tail` follows the message.
    fn log(&self, client: &Client, level: Level, message: &str, tail: &str);
}

/// Progress of a handshake. Only [`Accept::Wait`] and [`Accept::Later`] leave something to do.
#[derive(Debug)]
pub(super) enum Accept {
    /// The handshake is complete, and the client's certificate has been judged.
    Done,
    /// The handshake needs more input or room in the socket.
    Wait,
    /// The handshake failed, which has been logged.
    Over,
    /// The client sent these plain bytes instead of TLS, perhaps HTTP.
    Plain(Vec<u8>),
    /// The handshake waits for something other than the client: see [`Handshake::resume`].
    Later(Box<Later>),
}

/// The handshake failed, which has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HandshakeFailed;

/// File names of certificates and their keys.
type CertificateNames = Vec<(Vec<u8>, Vec<u8>)>;

/// Work that a handshake needs done before it can go on.
#[derive(Debug)]
pub(super) struct Later(Awaited);

#[derive(Debug)]
enum Awaited {
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

/// Alert `no_application_protocol` (RFC 9001, section 8.1).
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// Alert and text for the error log of a handshake that is refused.
type Denial = (u8, String);

fn denied(text: &str) -> Denial {
    (INTERNAL_ERROR, text.to_owned())
}

/// Virtual server of a handshake.
struct Chosen<'s> {
    /// Server that the name stands for.
    named: usize,
    /// Server whose certificate is presented.
    server: usize,
    tls: &'s Arc<ServerTls>,
}

/// Configuration of a handshake with the certificate to present.
enum Certified {
    Now(Arc<ServerConfig>),
    /// The certificate has to be read first.
    Later(Box<Later>),
}

/// Handshake of a client's connection.
pub struct Handshake<'h, S> {
    /// Thread of the connection.
    pub thread: &'h Thread,
    /// Configuration in effect.
    pub active: &'h ActiveConfig,
    /// Virtual servers.
    pub servers: S,
    /// Bytes of the connection.
    pub wire: &'h mut Wire,
    /// The client. [`Client::tls`] receives the session.
    pub client: &'h mut Rc<Client>,
}

impl<S: TlsServers> Handshake<'_, S> {
    /// Continues the handshake as far as it can without waiting.
    pub(super) fn step(&mut self) -> Accept {
        while self.wire.tls().is_some_and(|stream| !stream.greeted()) {
            match self.greet() {
                Accept::Done => {}
                other => return other,
            }
        }
        let token = self.wire.token();
        let Some(stream) = self.wire.tls() else { return Accept::Done };
        // Drops what another handshake of this thread may have left.
        sigalg::take();
        take_stored();
        let stepped = stream.handshake(&self.thread.io, token);
        self.note_sigalgs();
        match stepped {
            Step::Read | Step::Write => Accept::Wait,
            Step::Done(agreed) => self.complete(*agreed),
            Step::Closed => self.fail("peer closed connection in SSL handshake"),
            Step::Failed(e) => self.fail(&format!("SSL_do_handshake() failed {}", errno_text(e))),
            Step::Refused(text) => self.fail(&format!("SSL_do_handshake() failed (SSL: {text})")),
        }
    }

    /// Notes the results of a complete handshake and verifies the client's certificate.
    fn complete(&mut self, agreed: Agreed) -> Accept {
        let early = self.wire.tls().is_some_and(|stream| stream.early);
        let counters = &self.thread.counters;
        if agreed.v13 { &counters.tls13 } else { &counters.tls12 }.add(1);
        counters.tls_resumed.add(u64::from(agreed.resumed));
        if let Some(session) = self.session() {
            session.complete(agreed, early);
        }
        self.verify_client()
    }

    /// Does the work that the handshake waits for, and continues the handshake if that has not ended it.
    pub(super) async fn resume(&mut self, later: Later) -> Accept {
        match later.0 {
            Awaited::Files { server, config, names } => {
                let loaded = self.load(server, config, names).await;
                match self.begin(server, loaded) {
                    Ok(()) => self.step(),
                    Err(HandshakeFailed) => Accept::Over,
                }
            }
            Awaited::State(check, path) => {
                self.ask_status(&check, &path).await;
                Accept::Done
            }
        }
    }

    /// Reads the first bytes of the connection and chooses the server by them.
    fn greet(&mut self) -> Accept {
        let token = self.wire.token();
        let Some(stream) = self.wire.tls() else { return Accept::Done };
        match stream.greeting(&self.thread.io, token) {
            Ok(Some(Greeting::Hello(hello))) => self.choose(*hello),
            Ok(Some(Greeting::Partial)) => Accept::Wait,
            Ok(Some(Greeting::Plain(bytes))) => {
                self.wire.decrypt();
                Rc::make_mut(self.client).unencrypted = true;
                Accept::Plain(bytes)
            }
            Ok(Some(Greeting::Broken(alert))) => {
                stream.refuse(&self.thread.io, token, alert);
                self.fail("SSL_do_handshake() failed (SSL: no ClientHello)")
            }
            Ok(None) => self.fail("peer closed connection in SSL handshake"),
            Err(e) => self.fail(&format!("recv() failed {}", errno_text(e))),
        }
    }

    /// Returns the session of the handshake in progress, which nothing shares yet.
    fn session(&mut self) -> Option<&mut Session> {
        Rc::make_mut(self.client).tls.as_mut().and_then(Rc::get_mut)
    }

    fn fail(&self, what: &str) -> Accept {
        self.thread.counters.tls_failed.add(1);
        self.log(Level::Info, what);
        Accept::Over
    }

    fn log(&self, level: Level, what: &str) {
        if !self.servers.is_logged(self.client, level) {
            return;
        }
        let tail = self.client.tail(self.active);
        self.servers.log(self.client, level, &format!("{what} while SSL handshaking"), &tail);
    }

    /// Notes the signature algorithms that the last step used.
    fn note_sigalgs(&mut self) {
        let (own, client) = sigalg::take();
        if let Some(session) = self.session() {
            session.sigalg = if own != 0 { own } else { session.sigalg };
            session.client_sigalg = if client != 0 { client } else { session.client_sigalg };
            if session.hello.is_some() {
                let stored = take_stored();
                session.id = if stored.is_empty() { session.id.take() } else { Some(stored.into()) };
            }
        }
    }

    /// Chooses the virtual server and begins the handshake with its configuration.
    fn choose(&mut self, hello: Hello) -> Accept {
        if let Some(config) = proof::config_for(&hello) {
            return self.prove(hello, config);
        }
        let chosen = self.choose_server(&hello).map(|chosen| {
            let optional = self.servers.offers_optional(chosen.named, self.client.address(self.active));
            (chosen.server, chosen.tls.config_for(&hello, optional).clone())
        });
        self.begin_session(hello);
        let (server, config) = match chosen {
            Ok((server, config)) => (server, self.certified(server, config)),
            Err(denial) => (0, Err(denial)),
        };
        let config = match config {
            Ok(Certified::Later(later)) => return Accept::Later(later),
            Ok(Certified::Now(config)) => Ok(config),
            Err(denial) => Err(denial),
        };
        match self.begin(server, config) {
            Ok(()) => Accept::Done,
            Err(HandshakeFailed) => Accept::Over,
        }
    }

    /// Chooses the virtual server for the ClientHello of a QUIC connection. Returns the configuration of the handshake. Certificates
    /// whose names have variables are read from their files here, which blocks the thread, unless they are cached.
    ///
    /// # Errors
    /// The alert with which the handshake is refused. The reason has been logged.
    pub fn choose_for_quic(&mut self, hello: Hello) -> Result<Arc<ServerConfig>, u8> {
        // The optional protocol is one over TCP.
        let chosen =
            self.choose_server(&hello).and_then(|chosen| match self.servers.quic_protocols(chosen.named) {
                [] => Err((NO_APPLICATION_PROTOCOL, String::new())),
                protocols => Ok((chosen.server, chosen.tls.config_for(&hello, false).clone(), protocols)),
            });
        self.begin_session(hello);
        let certified = chosen.and_then(|(server, config, protocols)| {
            let config = match self.certified(server, config)? {
                Certified::Now(config) => config,
                Certified::Later(later) => self.load_now(*later)?,
            };
            let tls = self.servers.tls(server).ok_or_else(|| denied("no certificate"))?;
            Ok(tls.for_quic(&config, protocols))
        });
        certified.map_err(|(alert, text)| {
            self.thread.counters.tls_failed.add(1);
            if !text.is_empty() {
                self.log(Level::Error, &text);
            }
            alert
        })
    }

    /// Notes that requests of a QUIC connection come with its handshake (0-RTT). Clients of such servers show no certificates.
    pub fn begin_early_for_quic(&mut self, agreed: Agreed) {
        self.thread.counters.tls13.add(1);
        self.thread.counters.tls_resumed.add(1);
        if let Some(session) = self.session() {
            session.complete(agreed, true);
        }
    }

    /// Notes the results of the handshake of a QUIC connection, and verifies the client's certificate. Where a responder would have to
    /// be asked about that (ssl_ocsp), it is refused.
    pub fn complete_for_quic(&mut self, agreed: Agreed) {
        // Requests have the session by now.
        if let Some(session) = self.client.tls.as_ref().filter(|session| session.early.get()) {
            session.early.set(false);
            return;
        }
        self.thread.counters.tls13.add(1);
        self.thread.counters.tls_resumed.add(u64::from(agreed.resumed));
        if let Some(session) = self.session() {
            session.complete(agreed, false);
        }
        let _ = self.verify_client();
    }

    /// Reads the certificates of a handshake.
    fn load_now(&self, later: Later) -> Result<Arc<ServerConfig>, Denial> {
        let Awaited::Files { server, config, names } = later.0 else { return Err(denied("no certificate")) };
        let tls = self.servers.tls(server).ok_or_else(|| denied("no certificate"))?;
        tls.load(&names, self.servers.certificate_dir(), &config).map_err(|text| (INTERNAL_ERROR, text))
    }

    /// Begins the handshake of an authority, which reads nothing but the certificate.
    fn prove(&mut self, hello: Hello, config: Arc<ServerConfig>) -> Accept {
        self.begin_session(hello);
        match self.begin(0, Ok(config)) {
            Ok(()) => Accept::Done,
            Err(HandshakeFailed) => Accept::Over,
        }
    }

    /// Chooses the virtual server for a ClientHello.
    fn choose_server(&self, hello: &Hello) -> Result<Chosen<'_>, Denial> {
        let address = self.client.address(self.active);
        let fallback = address.map_or(0, |a| a.default_server);
        let chosen = self.named_server(address, hello)?.unwrap_or(fallback);
        // A server without a certificate uses that of the default server.
        let server = if self.servers.tls(chosen).is_some() { chosen } else { fallback };
        let missing = || denied("no \"ssl_certificate\" is defined in server listening on SSL port");
        let tls = self.servers.tls(server).ok_or_else(missing)?;
        Ok(Chosen { named: chosen, server, tls })
    }

    /// Finds the server of the name in a ClientHello; `None` if there is none.
    fn named_server(&self, address: Option<&Address>, hello: &Hello) -> Result<Option<usize>, Denial> {
        let (Some(a), Some(name)) = (address, &hello.server_name) else { return Ok(None) };
        match a.names.find(name) {
            Ok(found) => Ok(found.map(|(server, _)| server)),
            Err(pattern) => {
                let text = String::from_utf8_lossy(&pattern.failure(name)).into_owned();
                self.log(Level::Alert, &text);
                Err(denied("no server could be chosen"))
            }
        }
    }

    /// Notes the beginning of the session.
    fn begin_session(&mut self, mut hello: Hello) {
        let name = hello.server_name.clone().map(Vec::into_boxed_slice);
        let written_name = hello.written_name.take().map(Vec::into_boxed_slice);
        let hello = self.servers.shows_hello().then(|| Box::new(hello));
        let session = Session { name, written_name, hello, ..Session::default() };
        Rc::make_mut(self.client).tls = Some(Rc::new(session));
    }

    /// Adds the certificate to a server's configuration.
    fn certified(&self, server: usize, config: Arc<ServerConfig>) -> Result<Certified, Denial> {
        let Some(tls) = self.servers.tls(server) else { return Ok(Certified::Now(config)) };
        if tls.reject {
            return Err((UNRECOGNIZED_NAME, String::new()));
        }
        if tls.dynamic.is_empty() {
            return Ok(Certified::Now(config));
        }
        let names = self.certificate_names(server, tls);
        let names = names.map_err(|LimitExceeded| denied("no server could be chosen"))?;
        let known = tls.known(&names, &config).map_err(|text| (INTERNAL_ERROR, text))?;
        Ok(match known {
            Some(config) => Certified::Now(config),
            None => Certified::Later(Box::new(Later(Awaited::Files { server, config, names }))),
        })
    }

    /// Evaluates the names of a server's certificates and keys that have variables, as for a request that has not begun.
    fn certificate_names(&self, server: usize, tls: &ServerTls) -> Result<CertificateNames, LimitExceeded> {
        let mut eval = self.servers.evaluator(self.client, server);
        let name = self.client.tls.as_ref().and_then(|s| s.name.as_deref());
        if let (Some(name), Some(a)) = (name, self.client.address(self.active))
            && let Ok(Some((_, Some(pattern)))) = a.names.find(name)
        {
            // Sets the captures of `server_name`.
            pattern.exec(&mut eval, name)?;
        }
        let mut names = Vec::new();
        for (cert, key) in &tls.dynamic {
            let cert = cert.template.value(&mut eval).unwrap_or_default();
            let key = key.template.value(&mut eval).unwrap_or_default();
            if !cert.is_empty() {
                names.push((cert, key));
            }
        }
        Ok(names)
    }

    /// Reads the certificates of a handshake on the blocking pool.
    async fn load(
        &self,
        server: usize,
        config: Arc<ServerConfig>,
        names: CertificateNames,
    ) -> Result<Arc<ServerConfig>, Denial> {
        let tls = self.servers.tls(server).ok_or_else(|| denied("no certificate"))?.clone();
        let base = self.servers.certificate_dir().to_owned();
        let loaded = tokio::task::spawn_blocking(move || tls.load(&names, &base, &config));
        let loaded = loaded.await.unwrap_or_else(|_| Err("reading a certificate ended".to_owned()));
        loaded.map_err(|text| (INTERNAL_ERROR, text))
    }

    /// Begins the handshake with a configuration, or refuses it.
    fn begin(
        &mut self,
        server: usize,
        config: Result<Arc<ServerConfig>, Denial>,
    ) -> Result<(), HandshakeFailed> {
        let record = self.servers.tls(server).map_or(MAX_CONTENT, |tls| tls.record());
        let made = config.and_then(|c| {
            let made = UnbufferedServerConnection::new(c);
            made.map_err(|e| (INTERNAL_ERROR, format!("SSL_new() failed ({e})")))
        });
        match (made, self.wire.tls()) {
            (Ok(made), Some(stream)) => {
                stream.record = record;
                stream.choose(made);
                Ok(())
            }
            (Ok(_), None) => Err(self.refuse((INTERNAL_ERROR, String::new()))),
            (Err(denial), _) => Err(self.refuse(denial)),
        }
    }

    /// Refuses the handshake with an alert and logs that.
    fn refuse(&mut self, (alert, text): Denial) -> HandshakeFailed {
        let token = self.wire.token();
        self.thread.counters.tls_failed.add(1);
        if let Some(stream) = self.wire.tls() {
            stream.refuse(&self.thread.io, token, alert);
        }
        if text.is_empty() {
            let text = "SSL_do_handshake() failed (SSL: error:0A0000E2:SSL routines::callback failed)";
            self.log(Level::Info, text);
        } else {
            self.log(Level::Error, &text);
        }
        HandshakeFailed
    }

    /// Verifies the client's certificate, except for OCSP.
    fn verify_client(&self) -> Accept {
        let Some(session) = self.client.tls.as_ref() else { return Accept::Done };
        session.compared.set(self.servers.serial());
        let server = verdict::handshake_server(&self.servers, self.active, self.client);
        let Some(tls) = server.and_then(|s| self.servers.tls(s)) else { return Accept::Done };
        session.basis.set(tls.basis());
        match session.verify_by(tls) {
            None => Accept::Done,
            Some((check, path)) => Accept::Later(Box::new(Later(Awaited::State(check, path)))),
        }
    }

    /// Asks OCSP responders about a chain and sets the verdict.
    async fn ask_status(&mut self, check: &Check, path: &[CertificateDer<'static>]) {
        // One deadline for the whole chain. Answers that arrive before it stay cached for the next handshake.
        let until = Instant::now() + TIMEOUT;
        let ran = self.thread.io.poller.deadline(until, check.run(path)).await;
        let verdict = match ran.unwrap_or_else(|| Err(client::timed_out())) {
            Ok(()) => Verdict::Success,
            Err(refusal) => {
                if let Some(text) = &refusal.log {
                    self.servers.log(self.client, Level::Error, text, "");
                }
                Verdict::Refused(refusal.verdict)
            }
        };
        if let Some(session) = self.client.tls.as_ref() {
            session.verdict.set(verdict);
        }
    }
}
