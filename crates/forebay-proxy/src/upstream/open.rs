//! Opens a connection to a chosen server for a request, and logs why there is none. Hot path.

use super::fault::{self, Fault, SENDING, client_gone};
use super::pooled::Trouble;
use crate::modules::proxy::NextUpstream;
use crate::modules::proxy_bind;
use crate::upstream::CALL;
use forebay_conf::error::Level;
use forebay_core::tls::client::{Unencrypted, Wanted};
use forebay_core::trace;
use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::dial_error::{self, Blame, CONNECTING};
use forebay_core::upstream::dialing;
use forebay_core::upstream::greeting::SendProxy;
use forebay_http::proxy_protocol;
use forebay_net::addr::{Peer, PeerAddr};
use forebay_net::dial::{DialError, DialSettings, LocalAddress};
use forebay_net::wire::Watch;
use forebay_server::request::Request;
use rustix::net::SocketType;
use std::time::Duration;

const HANDSHAKING: &str = "while SSL handshaking to upstream";

/// Returns a watch for the client while the request waits for an upstream (nginx: proxy_ignore_client_abort).
pub fn watch(req: &Request, ignore_abort: bool) -> Watch {
    // A response that will be stored is fetched to its end.
    let watched = !ignore_abort && !CALL.of(req).detached;
    if watched { req.conn.wire.watch() } else { Watch::Nothing }
}

/// Evaluates the address that connections for a request come from (nginx: proxy_bind).
pub fn local_address(req: &mut Request) -> Result<Option<LocalAddress>, Fault> {
    let http = req.http();
    proxy_bind::SETTINGS.of(&http.location(req).settings).local(req).map_err(|_| Fault::own(500))
}

/// Writes the PROXY protocol header that names the client; it is empty without `proxy_protocol`.
pub fn greeting(req: &Request, version: SendProxy) -> Vec<u8> {
    let mut header = Vec::new();
    if let Some(version) = version.version() {
        // The header has no place for a client without an IP address. The server then gets a header that names none.
        let client = match req.peer {
            Peer::Inet(a) => Some(a),
            _ => None,
        };
        proxy_protocol::write(version, client.zip(req.local_address()), b"", &mut header);
    }
    header
}

/// Parameters of a connection that the location of a request does not set for all connections alike.
pub struct Open<'o> {
    pub(crate) addr: &'o PeerAddr,
    pub(crate) local: Option<LocalAddress>,
    pub(crate) timeout: Duration,
    pub(crate) keepalive: bool,
    pub(crate) greeting: &'o [u8],
}

/// Opens a connection.
pub async fn open(req: &mut Request, o: &Open<'_>, watch: &mut Watch) -> Result<Conn, Fault> {
    let thread = req.thread.clone();
    let settings = settings(req, o);
    let opened = thread.io.poller.now();
    match dialing::dial(&thread, &settings, watch).await {
        Ok(wire) => Ok(Conn::opened(&thread.io, wire, opened)),
        Err(e) => Err(failed(req, &settings, e)),
    }
}

/// Returns the parameters of a socket.
pub fn settings<'o>(req: &Request, o: &Open<'o>) -> DialSettings<'o> {
    let http = req.http();
    let sockets = proxy_bind::SETTINGS.of(&http.location(req).settings);
    DialSettings {
        addr: o.addr,
        kind: SocketType::STREAM,
        local: o.local,
        timeout: o.timeout,
        receive_buffer: sockets.rcvbuf.0 as usize,
        send_buffer: sockets.sndbuf.0 as usize,
        keepalive: o.keepalive,
        greeting: o.greeting,
    }
}

/// Logs the reason for which there is no stream on a connection that requests share.
#[cold]
pub(super) fn no_stream(
    req: &mut Request,
    addr: &PeerAddr,
    local: Option<LocalAddress>,
    trouble: Trouble,
) -> Fault {
    match trouble {
        Trouble::Dial(e) => not_dialled(req, addr, local, e),
        Trouble::Timeout => not_dialled(req, addr, local, DialError::Timeout),
        Trouble::ClientGone => client_gone(req, "connecting to upstream"),
        Trouble::Tls(e) => handshake_failed(req, &e),
        Trouble::Unspoken(text) => {
            fault::log(req, Level::Error, &format!("upstream {text} {CONNECTING}"));
            Fault::unsent(NextUpstream::Error, 502, CONNECTING)
        }
    }
}

/// Logs the reason for which there is no connection.
fn not_dialled(req: &mut Request, addr: &PeerAddr, local: Option<LocalAddress>, e: DialError) -> Fault {
    let settings = DialSettings {
        addr,
        // These settings only serve the message. No socket is opened with them.
        kind: SocketType::DGRAM,
        local,
        timeout: Duration::ZERO,
        receive_buffer: 0,
        send_buffer: 0,
        keepalive: false,
        greeting: &[],
    };
    failed(req, &settings, e)
}

/// Logs the reason for which there is no connection.
fn failed(req: &mut Request, s: &DialSettings<'_>, e: DialError) -> Fault {
    let error = Fault::unsent(NextUpstream::Error, 502, CONNECTING);
    if let DialError::ClientGone = e {
        return client_gone(req, "connecting to upstream");
    }
    let (level, text) = dial_error::text(s, &e);
    fault::log(req, level, &text);
    let blame = dial_error::blame(&e);
    match e {
        _ if blame == Blame::Ours => Fault { blame, status: 500, ..error },
        DialError::Own(..) => Fault { blame, ..error },
        DialError::Greeting(_) => Fault { doing: SENDING, ..error },
        DialError::Timeout => Fault { kind: NextUpstream::Timeout, status: 504, ..error },
        _ => error,
    }
}

/// Returns the parameters of encryption, where there is any.
pub fn wanted(req: &mut Request) -> Result<Option<Wanted>, Fault> {
    // The stand-in speaks in plain text.
    if !CALL.of(req).encrypted || trace::is_on() {
        return Ok(None);
    }
    let http = req.http();
    match &http.location(req).upstream_tls {
        Some(tls) => Ok(Some(tls.wanted(req, |req| req.modules.upstream.host.clone()))),
        None => Err(Fault::own(500)),
    }
}

/// Encrypts a connection and verifies the server's certificate. Returns the protocol that ALPN has agreed on.
pub async fn encrypt(
    req: &mut Request,
    conn: &mut Conn,
    wanted: &Wanted,
    timeout: Duration,
    watch: &mut Watch,
) -> Result<Option<Box<[u8]>>, Fault> {
    // Several small writes make up a handshake, which Nagle's algorithm would delay.
    conn.hurry();
    let (thread, conf) = (req.thread.clone(), req.conf.clone());
    let encrypted = wanted.encrypt(&thread.io, conn.wire_mut(), &conf.http.conf_dir, timeout, watch).await;
    encrypted.map_err(|e| handshake_failed(req, &e))
}

#[cold]
fn handshake_failed(req: &mut Request, e: &Unencrypted) -> Fault {
    match e {
        Unencrypted::Failed(text) => unencrypted(req, text),
        Unencrypted::Own(text) => unready(req, text),
        Unencrypted::Timeout => {
            let fault = unencrypted(req, "upstream timed out (110: Connection timed out)");
            Fault { kind: NextUpstream::Timeout, status: 504, ..fault }
        }
        Unencrypted::ClientGone => client_gone(req, "SSL handshaking to upstream"),
    }
}

/// Logs that a handshake could not begin, which is not the server's fault.
fn unready(req: &mut Request, text: &str) -> Fault {
    req.log(Level::Error, &format!("{text} {HANDSHAKING}"));
    Fault::own(500)
}

/// Logs that a handshake failed.
fn unencrypted(req: &mut Request, text: &str) -> Fault {
    fault::log(req, Level::Error, &format!("{text} {HANDSHAKING}"));
    Fault::unsent(NextUpstream::Error, 502, HANDSHAKING)
}
