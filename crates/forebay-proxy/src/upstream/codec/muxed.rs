//! A request on a connection that it shares with others (HTTP/2 and HTTP/3): sends it, and reads the head of the response. Hot path.

use super::decoder::Content;
use super::{Came, Codec, http2, took_head};
use crate::modules::proxy::{NextUpstream, Settings};
use crate::upstream::CALL;
use crate::upstream::contact::Contact;
use crate::upstream::exchange::{self, Outgoing};
use crate::upstream::fault::{self, Fault, READING, SENDING, bad_head, timed_out};
use crate::upstream::head::{HeadReader, unconnected};
use crate::upstream::pooled::{Key, Need, Problem, ProblemKind, RequestStream};
use crate::upstream::upload::Upload;
use crate::upstream::{Reuse, h2, h3};
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_http::h1::client;
use forebay_http::h1::request::Status;
use forebay_net::addr::PeerAddr;
use forebay_net::dial::LocalAddress;
use forebay_net::wire::Watch;
use forebay_server::request::Request;
use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

/// A request to one server.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a Outgoing,
    pub(crate) settings: &'a Settings,
    pub(crate) addr: &'a PeerAddr,
    pub(crate) local: Option<LocalAddress>,
    /// See [`Conn::made_for`].
    pub made_for: u64,
    /// The connection must not be one that was idle.
    pub fresh: bool,
}

/// Returns the stream of a connection, if there is one.
pub fn stream(conn: &Conn) -> Option<Rc<dyn RequestStream>> {
    let any: Rc<dyn Any> = conn.wire().as_mux()?.clone();
    match any.downcast::<h2::Stream>() {
        Ok(stream) => Some(stream),
        Err(any) => Some(any.downcast::<h3::Stream>().ok()?),
    }
}

/// Returns why a request on a stream has failed.
pub fn problem(conn: &Conn) -> Option<Problem> {
    stream(conn)?.problem()
}

/// Server of a connection, and the limits that it is opened with.
pub struct Terms<L> {
    /// Address of the server.
    pub addr: PeerAddr,
    /// Limits.
    pub limits: L,
    /// Time until it has to be there.
    pub timeout: Duration,
}

/// Returns what a request needs of its connection.
pub fn need<L>(req: &Request, contact: &Contact, ask: &Ask<'_>, terms: Terms<L>) -> Need<L> {
    let Terms { addr, limits, timeout } = terms;
    let shares = CALL.of(req).reuse != Reuse::No;
    let group = contact.lease.group().filter(|_| shares);
    let (group, opener, keep) =
        group.map_or((0, 0, None), |(group, opener)| (group.number, opener, Some(group.keepalive)));
    Need {
        key: Key { addr, local: ask.local, made_for: ask.made_for, limits, group, opener },
        keep,
        may_be_idle: !ask.fresh,
        longest: ask.settings.buffer_size.0 as usize,
        timeout,
    }
}

/// Sends the request and reads the head of the response.
pub async fn exchange(
    req: &mut Request,
    contact: &mut Contact,
    ask: &Ask<'_>,
    watch: &mut Watch,
) -> Result<(), Fault> {
    send(req, contact, ask, watch).await?;
    read_head(req, contact, HeadReader::new(req, ask.settings, watch)).await
}

/// Sends the head of the request, then as much content as the server takes until it has something to say. The rest is sent while the
/// response is read.
async fn send(
    req: &mut Request,
    contact: &mut Contact,
    ask: &Ask<'_>,
    watch: &mut Watch,
) -> Result<(), Fault> {
    let s = ask.settings;
    let conn = contact.conn().ok_or_else(unconnected)?;
    let stream = stream(conn).ok_or_else(unconnected)?;
    let facts = CALL.of(req).codec.facts();
    let timeout = s.send_timeout.0;
    let upload = match ask.body {
        Outgoing::Bytes(b) if !b.is_empty() => Some(Upload::bytes(b, timeout)),
        Outgoing::Stored if facts.sends_empty || !req.body.stored.is_empty() => Some(Upload::kept(timeout)),
        Outgoing::Streamed(_) => Some(Upload::new(req, &[], timeout)),
        _ => None,
    };
    // Clients of gRPC ask for trailers themselves. For other requests this server asks, if it passes trailers on.
    let trailers = s.pass_trailers && !facts.passes_te;
    req.modules.upstream.early.clear();
    let mut scratch = req.take_buf();
    let sent = stream.request(ask.head, trailers, upload.is_none(), &mut scratch);
    req.give_buf(scratch);
    if let Some(a) = req.modules.upstream.current() {
        a.sent += sent;
    }
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
        req.begin_head_text();
        let came = stream.next_head(reader.limit(), &mut req.modules.upstream.head.buf);
        if let Some(a) = req.modules.upstream.current() {
            a.received += stream.take_uncounted();
        }
        match came {
            Ok(true) => match parse_head(req, reader.limit())? {
                Came::All => {
                    http2::note_empty(req, contact);
                    http2::take_early(req, contact);
                    return Ok(());
                }
                _ => crate::modules::early_hints::pass(req).await,
            },
            Ok(false) => reader.wait(req, contact).await?,
            Err(problem) => return Err(failed(req, contact.conn(), &problem, READING)),
        }
    }
}

/// Parses a head that has come, which the stream has made into the text of HTTP/1.
pub(super) fn parse_head(req: &mut Request, limit: usize) -> Result<Came, Fault> {
    let head = &mut req.modules.upstream.head;
    match client::parse(head, limit) {
        Ok(Status::Complete) if head.is_interim() => Ok(Came::Interim),
        Ok(Status::Complete) => {
            took_head(req);
            Ok(Came::All)
        }
        // The stream hands over whole field sections, so a part of a head cannot be completed later.
        Ok(Status::Partial) => Err(bad_head(req, b"upstream sent invalid header")),
        Err(bad) => {
            let mut message = Vec::new();
            bad.message(head, &mut message);
            Err(bad_head(req, &message))
        }
    }
}

/// Notes the trailers of a response that is over.
pub(super) fn note_trailers(content: &Content, req: &mut Request, conn: Option<&Conn>) {
    if let Some(stream) = conn.and_then(stream) {
        stream.trailers(&mut |name, value| content.note_trailer(req, name, value));
    }
}

/// Logs why a request has failed.
fn failed(req: &mut Request, conn: Option<&Conn>, problem: &Problem, doing: &'static str) -> Fault {
    let unsent = problem.kind == ProblemKind::Unsent;
    if problem.kind == ProblemKind::Silent {
        return timed_out(req, doing);
    }
    // An idle connection may be closed at any time. The request is sent again on another connection, so this is no error
    // to report.
    let reused = conn.is_some_and(|conn| conn.reused);
    let is_quiet = reused && problem.kind == ProblemKind::Gone
        || unsent && (reused || matches!(CALL.of(req).codec, Codec::Http3(_)));
    let level = if is_quiet { Level::Info } else { Level::Error };
    fault::log(req, level, &format!("upstream {} {doing}", problem.text));
    // As in nginx, anything else in place of a head is an invalid head.
    let kind =
        if problem.kind == ProblemKind::Invalid { NextUpstream::InvalidHeader } else { NextUpstream::Error };
    Fault { unsent, doing, ..Fault::new(kind, 502) }
}

/// Returns the fault of a request that cannot be sent because its stream has failed.
pub fn send_failed(req: &mut Request, conn: &Conn) -> Option<Fault> {
    let problem = problem(conn)?;
    Some(failed(req, Some(conn), &problem, SENDING))
}
