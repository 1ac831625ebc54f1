//! A request over HTTP/2 (nginx: proxy_http_version 2). A connection carries one stream at a time and is kept like one
//! of HTTP/1. forebay-http, `h2/link.rs`, reads and writes the frames. Hot path.

use super::decoder::{Decoded, Decoder, TOO_LONG};
use super::protocol;
use super::protocol::Protocol;
use super::{Came, parse_text_of_head};
use crate::modules::proxy::{NextUpstream, Settings};
use crate::request::Request;
use crate::upstream::contact::Contact;
use crate::upstream::exchange::{self, Outgoing, READ, Upstreamed};
use crate::upstream::fault::{Fault, READING, SENDING, client_gone, closed, receive_failed, timed_out};
use crate::upstream::head::{HeadReader, unconnected};
use crate::upstream::upload::Upload;
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_http::h2::link::{self, Link, Problem};
use forebay_http::request::Framing;
use forebay_net::wait::{For, Waited};
use forebay_net::wire::Watch;
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::cell::RefMut;

/// Tells connections of this version from others.
pub(crate) const MADE_FOR: u64 = 0x6832_0000_0000_0000;

/// Calls `f` with the state of a connection that speaks HTTP/2.
fn with<R>(conn: &Conn, f: impl FnOnce(&mut Link) -> R) -> R {
    conn.with_state(f)
}

/// Returns the state of a connection if it speaks HTTP/2.
pub(crate) fn link(conn: &Conn) -> Option<RefMut<'_, Link>> {
    conn.state()
}

/// Writes the frames that wait. Returns the number of bytes that have left, and whether all have.
pub(crate) fn send_frames(conn: &Conn) -> (u64, Result<(), Errno>) {
    let Some(mut link) = link(conn) else { return (0, Ok(())) };
    let out = link.out();
    let mut all = 0;
    while !out.is_empty() || conn.wire().has_unsent() {
        match conn.send(out) {
            Ok(sent) => {
                out.drain(..sent.bytes);
                all += sent.bytes as u64;
            }
            Err(e) => return (all, Err(e)),
        }
    }
    (all, Ok(()))
}

fn failed(req: &mut Request, conn: &Conn, p: &Problem, doing: &str) -> Fault {
    // A connection that was idle may be closed at any time. The request is sent by another one then.
    let level = if p.unsent && conn.reused { Level::Info } else { Level::Error };
    req.log(level, &format!("upstream {} {doing}", p.text));
    // As in nginx, anything else in place of a head is an invalid head.
    let kind = if p.unsent { NextUpstream::Error } else { NextUpstream::InvalidHeader };
    Fault { unsent: p.unsent, ..Fault::new(kind, 502) }
}

/// Result of a read.
#[derive(PartialEq, Eq)]
enum FramesRead {
    Something,
    Nothing,
    End,
}

/// Reads frames that have come. Content stays in [`Upstreamed::early`] until the body is read.
fn take_in(req: &mut Request, conn: &Conn, doing: &str) -> Result<FramesRead, Fault> {
    let mut raw = req.thread.io.large.take();
    let got = conn.read(&mut raw, READ);
    let Upstreamed { attempts, early, .. } = &mut req.modules.upstream;
    let came = match got {
        Ok(0) => Ok(FramesRead::End),
        Ok(n) => {
            if let Some(a) = attempts.last_mut() {
                a.received += n as u64;
            }
            with(conn, |link| link.take(&raw, early)).map(|()| FramesRead::Something)
        }
        Err(Errno::AGAIN) => Ok(FramesRead::Nothing),
        Err(e) => {
            req.give_buf(raw);
            return Err(receive_failed(req, e, doing));
        }
    };
    req.give_buf(raw);
    came.map_err(|p| failed(req, conn, &p, doing))
}

/// Writes the frames that wait. If the server stops reading but has sent something, that is left to be read.
async fn flush(
    req: &mut Request,
    conn: &Conn,
    s: &Settings,
    watch: &mut Watch,
    doing: &str,
) -> Result<(), Fault> {
    loop {
        let (sent, done) = send_frames(conn);
        if let Some(a) = req.modules.upstream.current() {
            a.sent += sent;
        }
        match done {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) if with(conn, |link| link.is_over()) => return Ok(()),
            Err(Errno::AGAIN) => wait(req, conn, s, watch, doing).await?,
            Err(Errno::PIPE | Errno::CONNRESET) if !conn.reused && conn.has_input() => return Ok(()),
            Err(e) => {
                req.log(Level::Error, &format!("send() failed {} {doing}", errno_text(e)));
                return Err(Fault::new(NextUpstream::Error, 502));
            }
        }
    }
}

/// Waits until there is room, and reads frames that come meanwhile.
async fn wait(
    req: &mut Request,
    conn: &Conn,
    s: &Settings,
    watch: &mut Watch,
    doing: &str,
) -> Result<(), Fault> {
    match conn.wait(For::Both, req.thread.io.poller.after(s.send_timeout.0), watch).await {
        Waited::Ready => {}
        Waited::Timeout => return Err(timed_out(req, doing)),
        Waited::ClientGone => return Err(client_gone(req, "sending request to upstream")),
    }
    if conn.readable() && take_in(req, conn, doing)? == FramesRead::End {
        return Err(closed(req, doing));
    }
    Ok(())
}

/// Sends the request: its head, then as much content as the server takes until it has something to say. The rest is sent
/// while the response is read.
pub(crate) async fn send(
    req: &mut Request,
    contact: &mut Contact,
    head: &[u8],
    body: &Outgoing,
    s: &Settings,
    watch: &mut Watch,
) -> Result<(), Fault> {
    let conn = contact.conn().ok_or_else(unconnected)?;
    let timeout = s.send_timeout.0;
    let upload = match body {
        Outgoing::Bytes(b) if !b.is_empty() => Some(Upload::bytes(b, protocol::Framing::Frames, timeout)),
        // Even where it is empty, as nginx does: a gRPC server may tell a message that ended from one that never began.
        Outgoing::Stored => Some(Upload::kept(protocol::Framing::Frames, timeout)),
        Outgoing::Streamed(_) => Some(Upload::new(req, &[], protocol::Framing::Frames, timeout)),
        _ => None,
    };
    let https = req.modules.upstream.encrypted;
    let limit = s.buffer_size.0 as usize;
    req.modules.upstream.early.clear();
    // gRPC clients ask for trailers themselves.
    let trailers = s.pass_trailers && req.modules.upstream.protocol == Protocol::Http;
    let request = link::Request { head, https, trailers, end: upload.is_none(), limit };
    with(conn, |link| link.request(&request));
    let Some(upload) = upload else { return flush(req, conn, s, watch, SENDING).await };
    contact.upload = Some(Box::new(upload));
    exchange::upload(req, contact, watch).await
}

/// Reads until the head of the response is complete, and sends the rest of the request meanwhile.
pub(crate) async fn read_head(
    req: &mut Request,
    contact: &mut Contact,
    mut reader: HeadReader<'_>,
) -> Result<(), Fault> {
    while !next_head(req, contact, reader.limit()).await? {
        let conn = contact.conn().ok_or_else(unconnected)?;
        match take_in(req, conn, READING)? {
            FramesRead::Something => {
                // A server may send other frames for as long as it likes.
                req.thread.clone().io.poller.be_fair().await;
                // Answers to SETTINGS and PING leave before content does.
                if contact.upload.is_none() && with(conn, |link| !link.out().is_empty()) {
                    flush(req, conn, reader.settings, reader.watch, READING).await?;
                }
            }
            FramesRead::End => return Err(closed(req, READING)),
            FramesRead::Nothing => reader.wait(req, contact).await?,
        }
    }
    Ok(())
}

/// Parses the heads that have come. Returns `true` if the final one is complete.
async fn next_head(req: &mut Request, contact: &Contact, limit: usize) -> Result<bool, Fault> {
    let conn = contact.conn().ok_or_else(unconnected)?;
    while let Some(text) = with(conn, Link::next_head) {
        match parse_text_of_head(req, &text, limit)? {
            Came::All => return Ok(true),
            _ => crate::modules::early_hints::pass(req).await,
        }
    }
    Ok(false)
}

/// Decodes the content of a response.
pub(super) fn decode(
    c: &mut Decoder,
    req: &mut Request,
    conn: Option<&Conn>,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Decoded {
    const TOO_SHORT: &str =
        "upstream sent response body smaller than indicated content length while reading upstream";
    let before = out.len();
    out.append(&mut req.modules.upstream.early);
    let over = match take(conn, input, out) {
        Ok(over) => over,
        Err(p) => return Decoded::failed(0, &format!("upstream {} while reading upstream", p.text)),
    };
    let length = (out.len() - before) as u64;
    match c.framing {
        Framing::None => out.truncate(before),
        Framing::Length(_) if length > c.left => {
            out.truncate(before);
            return Decoded::failed(length, TOO_LONG);
        }
        Framing::Length(_) => c.left -= length,
        _ => {}
    }
    if over && c.left > 0 {
        return Decoded::failed(length, TOO_SHORT);
    }
    if let Some(conn) = conn {
        // Answers to SETTINGS and PING. If the connection is broken, the next read will fail.
        let _ = send_frames(conn);
    }
    let over = over || c.framing == Framing::None;
    if over {
        end(c, req, conn);
    }
    Decoded { length, ..Decoded::content(out.len() - before, over) }
}

/// Takes frames. Returns `true` if the response is over.
fn take(conn: Option<&Conn>, input: &[u8], out: &mut Vec<u8>) -> Result<bool, Problem> {
    let Some(conn) = conn else { return Ok(true) };
    let Some(mut link) = link(conn) else { return Ok(true) };
    link.take(input, out)?;
    link.replenish();
    Ok(link.is_over())
}

/// Ends a stream whose response is complete, or whose rest is not needed.
fn end(c: &mut Decoder, req: &mut Request, conn: Option<&Conn>) {
    c.reusable = false;
    let Some(conn) = conn else { return };
    if let Some(mut link) = link(conn) {
        for (name, value) in link.trailers() {
            c.note_trailer(req, name, value);
        }
        link.leave();
    }
    let sent = send_frames(conn).1.is_ok();
    c.reusable = sent && super::keeps_alive(req) && link(conn).is_some_and(|link| link.is_reusable());
}
