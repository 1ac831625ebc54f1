//! A request over HTTP/3 (Angie: proxy_http_version 3). Many streams share a connection, which `upstream/h3/` has. Hot path.

use super::decoder::{Decoded, Decoder, TOO_LONG};
use super::protocol::Framing as Sending;
use super::{Came, parse_text_of_head};
use crate::modules::alt_svc;
use crate::modules::proxy::{NextUpstream, Settings};
use crate::request::Request;
use crate::upstream::Reuse;
use crate::upstream::contact::Contact;
use crate::upstream::exchange::{self, Outgoing};
use crate::upstream::fault::{Fault, READING, SENDING, client_gone, timed_out};
use crate::upstream::h3::alternatives::{Origin, Said};
use crate::upstream::h3::{Key, Need, Opened, Problem, ProblemKind, Stream, Trouble};
use crate::upstream::head::{HeadReader, unconnected};
use crate::upstream::open;
use crate::upstream::upload::Upload;
use forebay_conf::error::Level;
use forebay_core::tls::client::Wanted;
use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::dial_error::CONNECTING;
use forebay_core::upstream::greeting::SendProxy;
use forebay_http::h3::client::request_section;
use forebay_http::request::Framing;
use forebay_net::addr::PeerAddr;
use forebay_net::dial::{DialError, LocalAddress};
use forebay_net::wire::{Watch, Wire};
use std::any::Any;
use std::net::SocketAddr;
use std::rc::Rc;

/// Most times that a request is sent again because the server has certainly not acted upon it.
const AGAIN: u32 = 2;
/// Status by which a server refuses requests for a name (RFC 9110, section 15.5.20). An alternative that does so is not used any more
/// (RFC 7838, section 6).
const MISDIRECTED: u16 = 421;

/// Returns the stream behind a connection, if that is one of HTTP/3.
pub(crate) fn stream(conn: &Conn) -> Option<Rc<Stream>> {
    let mux = conn.wire().as_mux()?.clone();
    let any: Rc<dyn Any> = mux;
    any.downcast().ok()
}

/// Returns why a request over HTTP/3 has failed.
pub(crate) fn problem(conn: &Conn) -> Option<Problem> {
    stream(conn)?.problem()
}

/// A request to one server.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a Outgoing,
    pub(crate) settings: &'a Settings,
    pub(crate) addr: &'a PeerAddr,
    pub(crate) local: Option<LocalAddress>,
    /// See [`Conn::made_for`].
    pub(crate) made_for: u64,
    /// The connection must not be one that was idle.
    pub(crate) fresh: bool,
}

/// Sends the request over HTTP/3 and reads the head of the response. Returns `false` if it is to go over TCP: there is no connection over
/// QUIC, and `proxy_http3_fallback` allows that.
pub(crate) async fn ask(
    req: &mut Request,
    contact: &mut Contact,
    wanted: Option<&Wanted>,
    ask: &Ask<'_>,
    watch: &mut Watch,
) -> Result<bool, Fault> {
    let (Some(wanted), Some(origin)) = (wanted, target(ask)) else {
        return not_over_quic(req, wanted.is_some());
    };
    let now = req.thread.io.poller.now();
    let addr = match follows(req) {
        true => match req.thread.upstream_quic.alternatives.of(origin, now) {
            Some(addr) => addr,
            None => return Ok(false),
        },
        false => origin.addr,
    };
    let mut again = AGAIN;
    loop {
        let opened = match connect(req, contact, wanted, (ask, addr), watch).await {
            Ok(opened) => opened,
            Err(trouble) => return fall_back(req, (ask, addr), trouble),
        };
        if let Some(a) = req.modules.upstream.current() {
            a.connect = Some(req.thread.io.poller.since(a.started));
        }
        let now = req.thread.io.poller.now();
        let mut conn = Conn::opened(&req.thread.io, Wire::Mux(opened.stream), now);
        (conn.reused, conn.made_for) = (opened.reused && !ask.fresh, ask.made_for);
        contact.connected(conn);
        let fault = match exchange(req, contact, ask, watch).await {
            Ok(()) => {
                learn(req, wanted, origin);
                return Ok(true);
            }
            Err(fault) => fault,
        };
        // A body that is passed on as it comes can be sent again as long as all of it is remembered.
        let has_body = !matches!(ask.body, Outgoing::Streamed(_)) || req.body.len == req.body.stored.len();
        if !fault.unsent || again == 0 || !has_body {
            if let Some(conn) = contact.lease.conn.as_mut().filter(|_| fault.unsent) {
                // It was tried often enough: this is a failure of the server, not of a connection that was idle.
                conn.reused = false;
            }
            return Err(fault);
        }
        again -= 1;
        contact.upload = None;
        drop(contact.disconnect());
    }
}

/// Returns a server that QUIC can go to. Nothing precedes a connection over it, as a PROXY protocol header would.
fn target(ask: &Ask<'_>) -> Option<Origin> {
    match ask.addr {
        PeerAddr::Inet(addr) if ask.settings.protocol_header == SendProxy::Off => {
            Some(Origin { addr: *addr, made_for: ask.made_for })
        }
        _ => None,
    }
}

/// Returns `true` if a request goes over HTTP/3 only where the server has said that it takes that (`proxy_http3_alt_svc`).
fn follows(req: &Request) -> bool {
    req.own_location().settings.proxy_http3.alt_svc
}

/// Takes over what a response, which has come over TLS or QUIC, says about where the server takes HTTP/3.
pub(crate) fn learn(req: &mut Request, wanted: &Wanted, origin: Origin) {
    if !follows(req) {
        return;
    }
    let (head, alternatives) = (&req.modules.upstream.head, &req.thread.upstream_quic.alternatives);
    if head.status == MISDIRECTED {
        alternatives.forget(origin);
        return;
    }
    let values = |name: &'static [u8]| {
        let lines = head.fields.iter().filter(move |f| f.name.of(&head.buf).eq_ignore_ascii_case(name));
        lines.map(|f| f.value.of(&head.buf))
    };
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
fn not_over_quic(req: &mut Request, encrypted: bool) -> Result<bool, Fault> {
    let http = req.http();
    if encrypted && http.location(req).settings.proxy_http3.fallback.0.is_some() {
        return Ok(false);
    }
    let why = if encrypted { "an address and no \"proxy_protocol\"" } else { "\"https://\"" };
    req.log(Level::Error, &format!("\"proxy_http_version 3\" needs {why} {CONNECTING}"));
    Err(Fault::own(500))
}

/// Opens a stream.
async fn connect(
    req: &mut Request,
    contact: &Contact,
    wanted: &Wanted,
    (ask, addr): (&Ask<'_>, SocketAddr),
    watch: &mut Watch,
) -> Result<Opened, Trouble> {
    let (thread, conf, http) = (req.thread.clone(), req.conf.clone(), req.http());
    let s = &http.location(req).settings.proxy_http3;
    let mut timeout = ask.settings.connect_timeout.0;
    if let Some(terms) = s.fallback.0 {
        if thread.upstream_quic.is_without(addr, thread.io.poller.now()) {
            return Err(Trouble::Unspoken(String::new()));
        }
        timeout = timeout.min(terms.after);
    }
    let shares = req.modules.upstream.reuse != Reuse::No;
    let group = contact.lease.group().filter(|_| shares);
    let (group, opener, keep) =
        group.map_or((0, 0, None), |(group, opener)| (group.number, opener, Some(group.keepalive)));
    let key = Key { addr, local: ask.local, made_for: ask.made_for, limits: s.limits(), group, opener };
    let need = Need {
        key,
        wanted,
        keep,
        may_be_idle: !ask.fresh,
        longest: ask.settings.buffer_size.0 as usize,
        timeout,
        base: &conf.http.conf_dir,
    };
    thread.upstream_quic.open(&thread, &need, watch).await
}

/// Decides about a request for which there is no connection. Returns `false` if it goes over TCP.
fn fall_back(
    req: &mut Request,
    (ask, addr): (&Ask<'_>, SocketAddr),
    trouble: Trouble,
) -> Result<bool, Fault> {
    let http = req.http();
    let s = &http.location(req).settings.proxy_http3;
    // A server may be wrong about its alternative. It is not wrong itself then (RFC 7838, section 2.1).
    let is_mistaken = s.alt_svc && matches!(trouble, Trouble::Tls(_));
    if let Some(terms) = s.fallback.0.filter(|_| trouble.may_fall_back() || is_mistaken) {
        req.thread.counters.upstream_quic_fallbacks.add(1);
        let now = req.thread.io.poller.now();
        let is_known = req.thread.upstream_quic.is_without(addr, now);
        if !is_known && req.thread.upstream_quic.note_without(addr, now, terms.valid) {
            let (why, time) = (text_of(&trouble), terms.valid.as_secs_f64());
            req.log(Level::Warn, &format!("upstream {why}, it is asked over TCP for {time}s {CONNECTING}"));
        }
        return Ok(false);
    }
    let unsent = |kind, status| Fault::unsent(kind, status, CONNECTING);
    Err(match trouble {
        Trouble::ClientGone => client_gone(req, "connecting to upstream"),
        Trouble::Tls(text) => open::unencrypted(req, &text),
        Trouble::Own(text) => open::unready(req, &text),
        Trouble::Dial(e) => open::not_dialled(req, (ask.addr, ask.local), e),
        Trouble::Timeout => open::not_dialled(req, (ask.addr, ask.local), DialError::Timeout),
        Trouble::Unspoken(text) => {
            req.log(Level::Error, &format!("upstream {text} {CONNECTING}"));
            unsent(NextUpstream::Error, 502)
        }
    })
}

/// Returns the reason for which there is no connection over QUIC, to be written behind "upstream ".
fn text_of(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Unspoken(text) => text.clone(),
        Trouble::Timeout => "does not answer over QUIC".to_owned(),
        Trouble::Tls(text) => format!("failed the handshake over QUIC ({text})"),
        _ => "refuses QUIC".to_owned(),
    }
}

/// Sends the request and reads the head of the response.
async fn exchange(
    req: &mut Request,
    contact: &mut Contact,
    ask: &Ask<'_>,
    watch: &mut Watch,
) -> Result<(), Fault> {
    send(req, contact, ask, watch).await?;
    read_head(req, contact, HeadReader::new(req, ask.settings, watch)).await
}

/// Sends the head of the request, then as much content as the server takes until it has something to say.
async fn send(
    req: &mut Request,
    contact: &mut Contact,
    ask: &Ask<'_>,
    watch: &mut Watch,
) -> Result<(), Fault> {
    let s = ask.settings;
    let stream = contact.conn().and_then(stream).ok_or_else(unconnected)?;
    let timeout = s.send_timeout.0;
    let upload = match ask.body {
        Outgoing::Bytes(b) if !b.is_empty() => Some(Upload::bytes(b, Sending::Stream, timeout)),
        Outgoing::Stored if req.body.stored.len() > 0 => Some(Upload::kept(Sending::Stream, timeout)),
        Outgoing::Streamed(_) => Some(Upload::new(req, &[], Sending::Stream, timeout)),
        _ => None,
    };
    let mut section = req.take_buf();
    request_section(ask.head, s.pass_trailers, &mut section);
    if let Some(a) = req.modules.upstream.current() {
        a.sent += section.len() as u64;
    }
    stream.request(&section, upload.is_none());
    req.give_buf(section);
    let Some(upload) = upload else { return Ok(()) };
    contact.upload = Some(Box::new(upload));
    exchange::upload(req, contact, watch).await
}

/// Reads until the head of the response is complete, and sends the rest of the request meanwhile.
async fn read_head(
    req: &mut Request,
    contact: &mut Contact,
    mut reader: HeadReader<'_>,
) -> Result<(), Fault> {
    let stream = contact.conn().and_then(stream).ok_or_else(unconnected)?;
    loop {
        let head = stream.next_head(reader.limit());
        if let Some(a) = req.modules.upstream.current() {
            a.received += stream.take_uncounted();
        }
        match head {
            Ok(Some(text)) => match parse_text_of_head(req, &text, reader.limit())? {
                Came::All => return Ok(()),
                _ => crate::modules::early_hints::pass(req).await,
            },
            Ok(None) => reader.wait(req, contact).await?,
            Err(problem) => return Err(failed(req, contact.conn(), &problem, READING)),
        }
    }
}

/// Logs why a request has failed.
fn failed(req: &mut Request, conn: Option<&Conn>, problem: &Problem, doing: &'static str) -> Fault {
    let unsent = problem.kind == ProblemKind::Unsent;
    if problem.kind == ProblemKind::Silent {
        return timed_out(req, doing);
    }
    // A connection that was idle may be closed at any time. The request is sent by another one then.
    let reused = conn.is_some_and(|conn| conn.reused);
    let level =
        if unsent || reused && problem.kind == ProblemKind::Gone { Level::Info } else { Level::Error };
    req.log(level, &format!("upstream {} {doing}", problem.text));
    let kind =
        if problem.kind == ProblemKind::Invalid { NextUpstream::InvalidHeader } else { NextUpstream::Error };
    Fault { unsent, doing, ..Fault::new(kind, 502) }
}

/// Returns the fault of a request that cannot be sent because its stream has failed.
pub(crate) fn send_failed(req: &mut Request, conn: &Conn) -> Option<Fault> {
    let problem = problem(conn)?;
    Some(failed(req, Some(conn), &problem, SENDING))
}

/// Takes content of a response. Its end is that of the stream.
pub(super) fn decode(c: &mut Decoder, input: &[u8], out: &mut Vec<u8>) -> Decoded {
    let length = input.len() as u64;
    match c.framing {
        Framing::None => return Decoded::content(0, true),
        Framing::Length(_) if length > c.left => return Decoded::failed(length, TOO_LONG),
        Framing::Length(_) => c.left -= length,
        _ => {}
    }
    out.extend_from_slice(input);
    Decoded::content(input.len(), false)
}
