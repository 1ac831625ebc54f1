//! A request over HTTP/3 (Angie: proxy_http_version 3). Many streams share a connection, which `upstream/h3/` has. Hot path.

use super::decoder::{Content, Decoded, Input, TOO_LONG};
use super::facts::Facts;
use super::http1::{self, Form, HTTP};
use super::muxed::{self, Ask, Terms};
use super::{Asked, Came, Speak, Written};
use crate::modules::proxy_http3;
use crate::upstream::contact::Contact;
use crate::upstream::exchange::Outgoing;
use crate::upstream::fault::{Fault, READING};
use crate::upstream::h3::alternatives::{Origin, Said};
use crate::upstream::h3::{self, Need, Stream};
use crate::upstream::open;
use crate::upstream::pooled::{Opened, Trouble};
use forebay_conf::error::Level;
use forebay_core::tls::client::{Unencrypted, Wanted};
use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::dial_error::CONNECTING;
use forebay_core::upstream::greeting::SendProxy;
use forebay_http::request::Framing;
use forebay_net::addr::PeerAddr;
use forebay_net::wire::{Watch, Wire};
use forebay_server::modules::alt_svc;
use forebay_server::request::Request;
use std::net::SocketAddr;

/// Largest number of times that a request is sent again because the server has certainly not acted upon it.
const AGAIN: u32 = 2;
/// Status by which a server refuses requests for a name (RFC 9110, section 15.5.20). An alternative that answers with it
/// is not used any more (RFC 7838, section 6).
const MISDIRECTED: u16 = 421;

/// HTTP/3 (`proxy_http_version 3`). A request that goes over TCP instead has the codec of its connection then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3;

static FACTS: Facts = Facts {
    is_reused_unasked: true,
    quic_alpn: Some(&[b"h3"]),
    is_multiplexed: true,
    ends_apart: true,
    ..HTTP
};

impl Speak for Http3 {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn can_stream(&self, _framing: Framing) -> bool {
        true
    }

    fn write_request(&self, req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Written {
        http1::write_head(req, asked, &Form::STREAM, out)
    }

    fn parse_head(&self, req: &mut Request, limit: usize, _headless: bool) -> Result<Came, Fault> {
        muxed::parse_head(req, limit)
    }

    fn keeps_alive(&self, req: &Request) -> bool {
        req.modules.upstream.head.keep_alive
    }

    fn decode(&mut self, c: &mut Content, _: &mut Request, input: Input<'_>, out: &mut Vec<u8>) -> Decoded {
        let length = input.bytes.len() as u64;
        match c.framing {
            Framing::None => return Decoded::content(0, true),
            // A response whose content differs from its `content-length` is malformed (RFC 9114, section 4.1.2).
            Framing::Length(_) if length > c.left => return Decoded::failed(length, TOO_LONG),
            Framing::Length(_) => c.left -= length,
            _ => {}
        }
        out.extend_from_slice(input.bytes);
        Decoded::content(input.bytes.len(), false)
    }

    fn ends_with_connection(&self, c: &Content) -> bool {
        c.left == 0
    }

    fn note_trailers(&self, c: &Content, req: &mut Request, conn: Option<&Conn>) {
        muxed::note_trailers(c, req, conn);
    }
}

/// Transport of a request after [`ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The request was sent over QUIC, and the head of its response has come.
    Quic,
    /// The request is to go over TCP.
    Tcp,
}

/// Sends the request over HTTP/3 and reads the head of the response. It goes over TCP if there is no connection over QUIC and
/// `proxy_http3_fallback` allows that.
///
/// # Errors
/// The fault for which there is no response.
pub async fn ask(
    req: &mut Request,
    contact: &mut Contact,
    wanted: Option<&Wanted>,
    ask: &Ask<'_>,
    watch: &mut Watch,
) -> Result<Transport, Fault> {
    let (Some(wanted), Some(origin)) = (wanted, target(ask)) else {
        return not_over_quic(req, wanted.is_some());
    };
    let now = req.thread.io.poller.now();
    let addr = match follows(req) {
        true => match h3::POOL.of(&req.thread).alternatives.of(origin, now) {
            Some(addr) => addr,
            // A server that has not offered HTTP/3 by `Alt-Svc` is asked over TCP, without trying QUIC first.
            None => return Ok(Transport::Tcp),
        },
        false => origin.addr,
    };
    let mut again = AGAIN;
    loop {
        let opened = match connect(req, contact, wanted, At { ask, addr }, watch).await {
            Ok(opened) => opened,
            Err(trouble) => return fall_back(req, At { ask, addr }, trouble),
        };
        if let Some(a) = req.modules.upstream.current() {
            a.connect = Some(req.thread.io.poller.since(a.started));
        }
        let now = req.thread.io.poller.now();
        let mut conn = Conn::opened(&req.thread.io, Wire::Mux(opened.stream), now);
        (conn.reused, conn.made_for) = (opened.reused && !ask.fresh, ask.made_for);
        contact.connected(conn);
        let fault = match muxed::exchange(req, contact, ask, watch).await {
            Ok(()) => {
                learn(req, wanted, origin);
                return Ok(Transport::Quic);
            }
            Err(fault) => fault,
        };
        // A body that is passed on as it comes can be sent again as long as its whole beginning is remembered.
        let has_body = !matches!(ask.body, Outgoing::Streamed(_)) || req.body.len == req.body.stored.len();
        if !fault.unsent || again == 0 || !has_body {
            if let Some(conn) = contact.lease.conn.as_mut().filter(|_| fault.unsent) {
                // The request was sent often enough, so this counts as a failure of the server rather than of an idle
                // connection.
                conn.reused = false;
            }
            return Err(fault);
        }
        again -= 1;
        // The server has not taken the content, so the upload starts from the beginning on the next connection.
        contact.upload = None;
        drop(contact.disconnect());
    }
}

/// Returns the server if QUIC can go to it. A connection over QUIC has no place for a PROXY protocol header.
fn target(ask: &Ask<'_>) -> Option<Origin> {
    match ask.addr {
        PeerAddr::Inet(addr) if ask.settings.protocol_header == SendProxy::Off => {
            Some(Origin { addr: *addr, made_for: ask.made_for })
        }
        _ => None,
    }
}

/// Returns `true` if a request goes over HTTP/3 only if the server has offered that before (`proxy_http3_alt_svc`).
fn follows(req: &Request) -> bool {
    proxy_http3::SETTINGS.of(&req.own_location().settings).alt_svc
}

/// Learns from a response where the server takes HTTP/3. The response has come over TLS or QUIC.
pub fn learn(req: &mut Request, wanted: &Wanted, origin: Origin) {
    if !follows(req) {
        return;
    }
    let (head, alternatives) = (&req.modules.upstream.head, &h3::POOL.of(&req.thread).alternatives);
    if head.status == MISDIRECTED {
        alternatives.forget(origin);
        return;
    }
    let values = |name: &'static [u8]| {
        let lines = head.fields.iter().filter(move |f| f.name.of(&head.buf).eq_ignore_ascii_case(name));
        lines.map(|f| f.value.of(&head.buf))
    };
    // Without verified certificates, whoever controls another port of the server could attract its requests (RFC 7838,
    // section 9.1).
    let verified = wanted.tls.verifies();
    let mut said = None;
    for value in values(alt_svc::NAME) {
        said.get_or_insert_with(Said::default).add(value, |port| origin.may_move_to(port, verified));
    }
    let Some(said) = said else { return };
    let age = values(b"Age").next().and_then(forebay_conf::units::duration_secs).unwrap_or_default();
    if let Some((port, time)) = alternatives.learn(origin, &said, age, req.thread.io.poller.now()) {
        let text = format!("upstream takes HTTP/3 at port {port} for {}s {READING}", time.as_secs());
        req.log(Level::Info, &text);
    }
}

/// Decides about a request that cannot go over QUIC: without encryption, to a unix socket, or behind a PROXY protocol header.
fn not_over_quic(req: &mut Request, encrypted: bool) -> Result<Transport, Fault> {
    let http = req.http();
    if encrypted && proxy_http3::SETTINGS.of(&http.location(req).settings).fallback.0.is_some() {
        return Ok(Transport::Tcp);
    }
    let why = if encrypted { "an address and no \"proxy_protocol\"" } else { "\"https://\"" };
    req.log(Level::Error, &format!("\"proxy_http_version 3\" needs {why} {CONNECTING}"));
    Err(Fault::own(500))
}

/// A request, and the address at which it is asked.
#[derive(Clone, Copy)]
struct At<'a> {
    ask: &'a Ask<'a>,
    addr: SocketAddr,
}

/// Opens a stream.
async fn connect(
    req: &mut Request,
    contact: &Contact,
    wanted: &Wanted,
    at: At<'_>,
    watch: &mut Watch,
) -> Result<Opened<Stream>, Trouble> {
    let At { ask, addr } = at;
    let (thread, conf, http) = (req.thread.clone(), req.conf.clone(), req.http());
    let s = proxy_http3::SETTINGS.of(&http.location(req).settings);
    let mut timeout = ask.settings.connect_timeout.0;
    if let Some(terms) = s.fallback.0 {
        if h3::POOL.of(&thread).is_without(addr, thread.io.poller.now()) {
            return Err(Trouble::Unspoken(String::new()));
        }
        // Where UDP is blocked nothing answers at all, so the wait for QUIC is shorter than `proxy_connect_timeout`.
        timeout = timeout.min(terms.after);
    }
    let shared =
        muxed::need(req, contact, ask, Terms { addr: PeerAddr::Inet(addr), limits: s.limits(), timeout });
    let need = Need { shared, addr, wanted, base: &conf.http.conf_dir };
    h3::POOL.of(&thread).open(&thread, &need, watch).await
}

/// Decides about a request for which there is no connection.
fn fall_back(req: &mut Request, at: At<'_>, trouble: Trouble) -> Result<Transport, Fault> {
    let At { ask, addr } = at;
    let http = req.http();
    let s = proxy_http3::SETTINGS.of(&http.location(req).settings);
    // A server that fails the handshake at its alternative may only be wrong about the alternative, not be the wrong
    // server (RFC 7838, section 2.1).
    let is_mistaken = s.alt_svc && matches!(trouble, Trouble::Tls(Unencrypted::Failed(_)));
    if let Some(terms) = s.fallback.0.filter(|_| trouble.may_fall_back() || is_mistaken) {
        req.thread.counters.upstream_quic_fallbacks.add(1);
        let now = req.thread.io.poller.now();
        let is_known = h3::POOL.of(&req.thread).is_without(addr, now);
        // Requests under way at the same time fail for the same reason, but one line in the log is enough.
        if !is_known && h3::POOL.of(&req.thread).note_without(addr, now, terms.valid) {
            let (why, time) = (text_of(&trouble), terms.valid.as_secs_f64());
            req.log(Level::Warn, &format!("upstream {why}, it is asked over TCP for {time}s {CONNECTING}"));
        }
        return Ok(Transport::Tcp);
    }
    Err(open::no_stream(req, ask.addr, ask.local, trouble))
}

/// Returns the reason for which there is no connection over QUIC, to be written behind "upstream ".
fn text_of(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Unspoken(text) => text.clone(),
        Trouble::Timeout => "does not answer over QUIC".to_owned(),
        Trouble::Tls(Unencrypted::Failed(text)) => format!("failed the handshake over QUIC ({text})"),
        _ => "refuses QUIC".to_owned(),
    }
}
