//! A request over HTTP/2 (nginx: proxy_http_version 2). A connection carries one stream at a time and is kept like one
//! of HTTP/1; what the frames mean is decided in forebay-http, `h2/link.rs`. Hot path.

use super::{Fault, Outgoing, READ, Upstreamed, client_gone};
use crate::body::{self, BodyError};
use crate::modules::proxy::{NextUpstream, Settings};
use crate::modules::static_file::errno_text;
use crate::request::Request;
use crate::upstream::conn::{Conn, For, Waited, Watch};
use crate::upstream::upload::remember;
use forebay_conf::error::Level;
use forebay_http::h1::client;
use forebay_http::h1::request::Status;
use forebay_http::h2::link::{Link, Problem, WINDOW};
use rustix::io::Errno;
use std::time::Instant;

/// Tells connections of this version from others.
pub const MADE_FOR: u64 = 0x6832_0000_0000_0000;

const SENDING: &str = "while sending request to upstream";
const READING: &str = "while reading response header from upstream";

/// Calls `f` with the state of a connection that speaks HTTP/2.
fn with<R>(conn: &Conn, f: impl FnOnce(&mut Link) -> R) -> R {
    f(conn.link().get_or_insert_default())
}

fn failed(req: &mut Request, conn: &Conn, p: &Problem, doing: &str) -> Fault {
    // A connection that was idle may be closed at any time: the request goes to another one.
    let level = if p.unsent && conn.reused { Level::Info } else { Level::Error };
    req.log(level, &format!("upstream {} {doing}", p.text));
    let kind = if p.head { NextUpstream::InvalidHeader } else { NextUpstream::Error };
    Fault { unsent: p.unsent, ..Fault::new(kind, 502) }
}

/// What reading came to.
#[derive(PartialEq, Eq)]
enum Came {
    Something,
    Nothing,
    End,
}

/// Takes in what has come. Content stays in [`Upstreamed::early`] until the body is read.
fn take_in(req: &mut Request, conn: &Conn, doing: &str) -> Result<Came, Fault> {
    let mut raw = req.take_buf();
    let got = conn.read(&mut raw, READ);
    let Upstreamed { attempts, early, .. } = &mut req.modules.upstream;
    let came = match got {
        Ok(0) => Ok(Came::End),
        Ok(n) => {
            if let Some(a) = attempts.last_mut() {
                a.received += n as u64;
            }
            with(conn, |link| link.take(&raw, early)).map(|()| Came::Something)
        }
        Err(Errno::AGAIN) => Ok(Came::Nothing),
        Err(e) => {
            req.give_buf(raw);
            req.log(Level::Error, &format!("recv() failed {} {doing}", errno_text(e)));
            return Err(Fault::new(NextUpstream::Error, 502));
        }
    };
    req.give_buf(raw);
    came.map_err(|p| failed(req, conn, &p, doing))
}

/// Whether more of the request is of no use: the response is over, or as much of it has come as may come before
/// it is read.
fn answered(req: &Request, conn: &Conn) -> bool {
    let full = req.modules.upstream.early.len() as i64 >= WINDOW / 2;
    with(conn, |link| link.is_over() || (link.has_answer() && full))
}

/// Writes the frames that wait. `false`: the server reads no more, what it said before is still to be read.
async fn flush(
    req: &mut Request,
    conn: &Conn,
    s: &Settings,
    watch: &mut Watch,
    doing: &str,
) -> Result<bool, Fault> {
    loop {
        let mut out = with(conn, |link| std::mem::take(link.out()));
        let wrote = if out.is_empty() && !conn.wire().owes() { None } else { Some(conn.send(&out)) };
        if let Some(Ok(sent)) = &wrote {
            out.drain(..sent.bytes);
            if let Some(a) = req.modules.upstream.current() {
                a.sent += sent.bytes as u64;
            }
        }
        // Its memory is used again.
        with(conn, |link| *link.out() = out);
        match wrote {
            None => return Ok(true),
            Some(Ok(_)) => {}
            Some(Err(Errno::AGAIN)) if answered(req, conn) => return Ok(false),
            Some(Err(Errno::AGAIN)) => wait(req, conn, For::Both, s, watch, doing).await?,
            Some(Err(Errno::PIPE | Errno::CONNRESET)) if !conn.reused && conn.has_input() => {
                return Ok(false);
            }
            Some(Err(e)) => {
                req.log(Level::Error, &format!("send() failed {} {doing}", errno_text(e)));
                return Err(Fault::new(NextUpstream::Error, 502));
            }
        }
    }
}

/// Waits while the request is sent, and takes in what comes.
async fn wait(
    req: &mut Request,
    conn: &Conn,
    what: For,
    s: &Settings,
    watch: &mut Watch,
    doing: &str,
) -> Result<(), Fault> {
    match conn.wait(what, Instant::now() + s.send_timeout.0, watch).await {
        Waited::Ready => {}
        Waited::Timeout => {
            req.log(Level::Error, &format!("upstream timed out (110: Connection timed out) {doing}"));
            return Err(Fault::new(NextUpstream::Timeout, 504));
        }
        Waited::ClientGone => return Err(client_gone(req, "sending request to upstream")),
    }
    if conn.readable() && take_in(req, conn, doing)? == Came::End {
        req.log(Level::Error, &format!("upstream prematurely closed connection {doing}"));
        return Err(Fault::new(NextUpstream::Error, 502));
    }
    Ok(())
}

/// Sends the request: its head, then as much content as the server takes.
pub async fn send(
    req: &mut Request,
    conn: &Conn,
    head: &[u8],
    body: &Outgoing,
    s: &Settings,
    watch: &mut Watch,
) -> Result<(), Fault> {
    let end = match body {
        Outgoing::None => true,
        Outgoing::Bytes(b) => b.is_empty(),
        Outgoing::Stored => req.body.stored.is_empty(),
        Outgoing::Streamed(_) => false,
    };
    let https = req.modules.upstream.encrypted;
    let limit = s.buffer_size.0 as usize;
    req.modules.upstream.early.clear();
    with(conn, |link| link.request(head, https, s.pass_trailers, end, limit));
    match body {
        _ if end => flush(req, conn, s, watch, SENDING).await.map(|_| ()),
        Outgoing::None => Ok(()),
        Outgoing::Bytes(b) => content(req, conn, b, true, s, watch).await.map(|_| ()),
        Outgoing::Stored => stored(req, conn, s, watch).await,
        Outgoing::Streamed(_) => streamed(req, conn, s, watch).await,
    }
}

/// Sends content that is in memory. `false`: the server has answered already.
async fn content(
    req: &mut Request,
    conn: &Conn,
    mut bytes: &[u8],
    last: bool,
    s: &Settings,
    watch: &mut Watch,
) -> Result<bool, Fault> {
    loop {
        let taken = with(conn, |link| link.content(bytes, last));
        bytes = bytes.get(taken..).unwrap_or_default();
        if !flush(req, conn, s, watch, SENDING).await? {
            return Ok(false);
        }
        if bytes.is_empty() && (!last || with(conn, |link| link.is_sent())) {
            return Ok(true);
        }
        if answered(req, conn) {
            return Ok(false);
        }
        if with(conn, |link| link.sendable()) == 0 {
            wait(req, conn, For::Read, s, watch, SENDING).await?;
        }
    }
}

/// Sends the client's body, read before: from memory, then from its file.
async fn stored(req: &mut Request, conn: &Conn, s: &Settings, watch: &mut Watch) -> Result<(), Fault> {
    let mem = std::mem::take(&mut req.body.stored.mem);
    let file = req.body.stored.file.clone().filter(|_| req.body.stored.in_file > 0);
    let sent = content(req, conn, &mem, file.is_none(), s, watch).await;
    req.body.stored.mem = mem;
    let (true, Some(file)) = (sent?, file) else { return Ok(()) };
    let end = req.body.stored.in_file;
    let mut offset = 0;
    while offset < end {
        let piece = with(conn, |link| link.piece()).min(usize::try_from(end - offset).unwrap_or(usize::MAX));
        if answered(req, conn) {
            return Ok(());
        }
        if piece == 0 {
            wait(req, conn, For::Read, s, watch, SENDING).await?;
            if !flush(req, conn, s, watch, SENDING).await? {
                return Ok(());
            }
            continue;
        }
        let to = offset + piece as u64;
        with(conn, |link| link.content_header(piece, to == end));
        if !flush(req, conn, s, watch, SENDING).await? {
            return Ok(());
        }
        while offset < to {
            let count = (to - offset) as usize;
            match conn.send_file(&file, &mut offset, count) {
                Ok(sent) if sent.bytes == 0 && !sent.full => {
                    return Err(Fault::new(NextUpstream::Error, 500));
                }
                Ok(sent) => {
                    if let Some(a) = req.modules.upstream.current() {
                        a.sent += sent.bytes as u64;
                    }
                }
                Err(Errno::AGAIN) => wait(req, conn, For::Both, s, watch, SENDING).await?,
                Err(Errno::PIPE | Errno::CONNRESET) if conn.has_input() => return Ok(()),
                Err(e) => {
                    req.log(Level::Error, &format!("sendfile() failed {} {SENDING}", errno_text(e)));
                    return Err(Fault::new(NextUpstream::Error, 502));
                }
            }
        }
    }
    flush(req, conn, s, watch, SENDING).await.map(|_| ())
}

/// Passes the client's body on as it comes; what has come already leaves together with the head.
async fn streamed(req: &mut Request, conn: &Conn, s: &Settings, watch: &mut Watch) -> Result<(), Fault> {
    if !req.body.is_buffered(&req.head.buf) && !flush(req, conn, s, watch, SENDING).await? {
        return Ok(());
    }
    let mut piece = Vec::new();
    loop {
        piece.clear();
        let more = match body::read_piece_beside(req, &mut piece, conn).await {
            Ok(Some(more)) => more,
            Ok(None) => {
                wait(req, conn, For::Read, s, watch, SENDING).await?;
                if !flush(req, conn, s, watch, SENDING).await? || answered(req, conn) {
                    return Ok(());
                }
                continue;
            }
            Err(BodyError::Status(status)) => return Err(Fault::client(status)),
            Err(BodyError::Gone) => return Err(Fault::client(400)),
        };
        remember(req, &piece);
        if !content(req, conn, &piece, !more, s, watch).await? || !more {
            return Ok(());
        }
    }
}

/// Reads until the head of the response is there; all of it in the time for reading.
pub async fn read_head(req: &mut Request, conn: &Conn, s: &Settings, watch: &mut Watch) -> Result<(), Fault> {
    let deadline = req.thread.reactor.now() + s.read_timeout.0;
    loop {
        while let Some(text) = with(conn, Link::next_head) {
            let head = &mut req.modules.upstream.head;
            head.advance(usize::MAX);
            head.buf.extend_from_slice(&text);
            match client::parse(head, s.buffer_size.0 as usize) {
                Ok(Status::Complete) if head.is_interim() => crate::modules::early_hints::pass(req).await,
                Ok(Status::Complete) => {
                    let status = head.status;
                    if let Some(a) = req.modules.upstream.current() {
                        a.header = Some(req.thread.reactor.since(a.started));
                        a.status = status;
                    }
                    return Ok(());
                }
                Ok(Status::Partial) => {
                    let p = Problem { text: "sent invalid header".into(), unsent: false, head: true };
                    return Err(failed(req, conn, &p, READING));
                }
                Err(bad) => {
                    let mut message = Vec::new();
                    bad.message(head, &mut message);
                    req.log(Level::Error, &format!("{} {READING}", String::from_utf8_lossy(&message)));
                    return Err(Fault::new(NextUpstream::InvalidHeader, 502));
                }
            }
        }
        match take_in(req, conn, READING)? {
            Came::Something => {
                // Answers to SETTINGS and PING.
                if with(conn, |link| !link.out().is_empty()) {
                    flush(req, conn, s, watch, READING).await?;
                }
            }
            Came::End => {
                req.log(Level::Error, &format!("upstream prematurely closed connection {READING}"));
                return Err(Fault::new(NextUpstream::Error, 502));
            }
            Came::Nothing => match conn.wait(For::Read, deadline, watch).await {
                Waited::Ready => {}
                Waited::Timeout => {
                    let text = format!("upstream timed out (110: Connection timed out) {READING}");
                    req.log(Level::Error, &text);
                    return Err(Fault::new(NextUpstream::Timeout, 504));
                }
                Waited::ClientGone => return Err(client_gone(req, "sending request to upstream")),
            },
        }
    }
}
