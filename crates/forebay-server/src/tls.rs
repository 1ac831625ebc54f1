//! TLS of clients' connections to HTTP servers (nginx: ngx_http_ssl_module): the servers of a handshake, and the requests that
//! a connection may not carry.

use crate::config::http::ROOT;
use crate::connection::Connection;
use crate::error_log;
use crate::h3;
use crate::request::Request;
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::config::Address;
use forebay_core::tls::Session;
use forebay_core::tls::accept::{Handshake, TlsServers};
use forebay_core::tls::demands::{Demands, Refusal};
use forebay_core::tls::server::ServerTls;
use forebay_core::tls::verdict;
use forebay_net::wire::Wire;
use std::borrow::Cow;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Virtual servers of the http block in one thread.
#[derive(Clone, Copy)]
pub struct HttpServers<'h> {
    thread: &'h Rc<Thread>,
    conf: &'h Rc<ThreadConfig>,
}

impl TlsServers for HttpServers<'_> {
    type Eval = Request;

    #[inline]
    fn demands(&self, server: usize) -> Demands {
        self.conf.http.servers.get(server).map_or(Demands::UNMEETABLE, |s| s.tls.demands)
    }

    #[inline]
    fn tls(&self, server: usize) -> Option<&Arc<ServerTls>> {
        self.conf.http.servers.get(server)?.tls.handshakes.as_ref()
    }

    fn offers_optional(&self, server: usize, address: Option<&Address>) -> bool {
        self.conf.http.servers.get(server).is_some_and(|s| s.settings.http2)
            || address.is_some_and(|a| a.options.http2)
    }

    fn quic_protocols(&self, server: usize) -> &'static [&'static [u8]] {
        match self.conf.http.servers.get(server).map(|s| (s.settings.http3, s.settings.http3_hq)) {
            Some((true, false)) => &[b"h3"],
            Some((true, true)) => &[b"h3", h3::HQ],
            Some((false, true)) => &[h3::HQ],
            _ => &[],
        }
    }

    fn evaluator(&self, client: &Rc<Client>, server: usize) -> Request {
        let mut req = Request::of_connection(self.thread, self.conf, client);
        // What stands in the server block itself is the root of its locations.
        (req.server, req.location) = (server, ROOT);
        req
    }

    fn shows_hello(&self) -> bool {
        self.conf.http.shows_hello
    }

    fn serial(&self) -> u64 {
        self.conf.http.serial
    }

    fn certificate_dir(&self) -> &Path {
        &self.conf.http.conf_dir
    }

    fn is_logged(&self, client: &Client, level: Level) -> bool {
        error_log::enabled(self.thread, client, level)
    }

    fn log(&self, client: &Client, level: Level, message: &str, tail: &str) {
        error_log::log_connection(self.thread, client, level, message, tail);
    }
}

/// Returns the handshake of a connection.
pub fn handshake<'h>(
    thread: &'h Rc<Thread>,
    conf: &'h Rc<ThreadConfig>,
    conn: &'h mut Connection,
) -> Handshake<'h, HttpServers<'h>> {
    handshake_of(thread, conf, &mut conn.wire, &mut conn.client)
}

/// Returns the handshake of a client.
pub fn handshake_of<'h>(
    thread: &'h Rc<Thread>,
    conf: &'h Rc<ThreadConfig>,
    wire: &'h mut Wire,
    client: &'h mut Rc<Client>,
) -> Handshake<'h, HttpServers<'h>> {
    Handshake {
        thread: &thread.worker,
        active: &conf.active,
        servers: HttpServers { thread, conf },
        wire,
        client,
    }
}

/// Returns the error for a request that this connection may not carry (nginx: errors 421, 495, 496 and 497).
pub fn judge(req: &mut Request) -> Option<u16> {
    if req.conn.client.unencrypted {
        req.log(Level::Info, "client sent plain HTTP request to HTTPS port");
        return Some(497);
    }
    let rejection = rejection(req)?;
    req.log(Level::Info, &rejection.text);
    if rejection.closes {
        req.ending.close();
    }
    Some(rejection.status)
}

/// Error for a request of a client that does not meet the demands of the server.
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

    fn of(refusal: Refusal) -> Rejection {
        let status = match refusal {
            Refusal::Missing => 496,
            Refusal::Invalid(_) => 495,
            // The client may repeat the request over a new connection, whose handshake then suits the server.
            Refusal::JudgedByOthers | Refusal::Outdated => 421,
        };
        Rejection { closes: refusal == Refusal::Outdated, ..Rejection::new(status, refusal.text()) }
    }
}

/// Compares a request with the demands of its server.
fn rejection(req: &Request) -> Option<Rejection> {
    let servers = HttpServers { thread: &req.thread, conf: &req.conf };
    let demands = servers.demands(req.server);
    let Some(session) = req.conn.client.tls.as_ref() else {
        // The connection is older than the `ssl` of its listener, which a reload has added.
        let may_be_plain = !demands.any() || !req.address().is_some_and(|a| a.options.ssl);
        let text = "client sent plain HTTP request to HTTPS port";
        return (!may_be_plain).then(|| Rejection { closes: true, ..Rejection::new(497, text) });
    };
    verdict::compare(&servers, &req.conf, req.client());
    if demands.any() && is_misdirected(req, session) {
        let text = "client attempted to request the server name different from the one that was negotiated";
        return Some(Rejection::new(421, text));
    }
    demands.refuse(session).map(Rejection::of)
}

/// Returns `true` if the handshake was made for the name of a server, and the request is for another name.
fn is_misdirected(req: &Request, session: &Session) -> bool {
    let name = session.name.as_deref().filter(|name| *name != req.head.host.as_slice());
    name.is_some_and(|name| req.address().is_some_and(|a| a.has_server_of(name)))
}

impl Request {
    /// Returns `true` if the client's connection is encrypted.
    #[inline]
    pub fn is_encrypted(&self) -> bool {
        self.conn.client.tls.is_some()
    }

    /// Returns `http` or `https`.
    #[inline]
    pub fn scheme(&self) -> &'static [u8] {
        if self.is_encrypted() { b"https" } else { b"http" }
    }
}
