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
use forebay_core::tls::Verdict;
use forebay_core::tls::accept::{Handshake, TlsServers};
use forebay_core::tls::server::ServerTls;
use forebay_core::tls::settings::VerifyClient;
use forebay_core::tls::verdict::{self, Unverified};
use forebay_net::wire::Wire;
use std::borrow::Cow;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Virtual servers of the http block in one thread.
#[derive(Clone, Copy)]
pub(crate) struct HttpServers<'h> {
    thread: &'h Rc<Thread>,
    conf: &'h Rc<ThreadConfig>,
}

impl TlsServers for HttpServers<'_> {
    type Eval = Request;

    #[inline]
    fn tls(&self, server: usize) -> Option<&Arc<ServerTls>> {
        self.conf.http.servers.get(server)?.tls.as_ref()
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
pub(crate) fn handshake<'h>(
    thread: &'h Rc<Thread>,
    conf: &'h Rc<ThreadConfig>,
    conn: &'h mut Connection,
) -> Handshake<'h, HttpServers<'h>> {
    handshake_of(thread, conf, &mut conn.wire, &mut conn.client)
}

/// Returns the handshake of a client.
pub(crate) fn handshake_of<'h>(
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
pub(crate) fn judge(req: &mut Request) -> Option<u16> {
    if req.conn.client.unencrypted {
        req.log(Level::Info, "client sent plain HTTP request to HTTPS port");
        return Some(497);
    }
    req.conn.client.tls.as_ref()?;
    let rejection = rejection(req)?;
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

/// Checks a request of an encrypted connection.
fn rejection(req: &Request) -> Option<Rejection> {
    let servers = HttpServers { thread: &req.thread, conf: &req.conf };
    verdict::compare(&servers, &req.conf, req.client());
    let own = servers.tls(req.server)?;
    if own.verify_client == VerifyClient::Off {
        return None;
    }
    misdirected(req, servers, own).or_else(|| unverified(req, own))
}

/// Checks that the handshake was made with the server of the request, or with one that trusts the same authorities.
fn misdirected(req: &Request, servers: HttpServers<'_>, own: &ServerTls) -> Option<Rejection> {
    let session = req.conn.client.tls.as_ref()?;
    let verdict = session.verdict.get();
    let may_come_without = own.verify_client == VerifyClient::Optional && verdict == Verdict::None;
    if session.outdated.get() && !may_come_without {
        let text = "client certificate is to be judged by other settings since a reload";
        return Some(Rejection { closes: true, ..Rejection::new(421, text) });
    }
    // A server that asks for certificates may be reached only through a handshake under its own name.
    if session.name.as_deref().is_some_and(|n| n != req.head.host.as_slice())
        && verdict::handshake_server(&servers, servers.conf, req.client()) != Some(req.server)
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
    let why = req.conn.client.tls.as_ref()?.unverified(own.verify_client)?;
    let status = match why {
        Unverified::Missing => 496,
        Unverified::Invalid(_) => 495,
    };
    Some(Rejection::new(status, why.text()))
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
