//! The body of the response, which leaves by writev or sendfile. Hot path.

use super::files::{load, resident, warm};
use super::pace::{Pace, limit_rate};
use crate::file_cache::OpenFile;
use crate::request::Request;
use crate::response::Part;
use crate::response::fields::{Sink, push_trailers};
use crate::thread::Thread;
use crate::upstream::stream::Body;
use forebay_conf::error::Level;
use forebay_core::transfers::{Direction, Over};
use forebay_http::h2::encode;
use forebay_net::wire::Then;
use rustix::io::{Errno, IoSlice};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Answers `Expect: 100-continue`.
pub async fn send_continue(thread: &Rc<Thread>, req: &mut Request) -> bool {
    req.body.continued = true;
    if req.conn.wire.is_multiplexed() {
        let mut block = Vec::with_capacity(8);
        encode::status(&mut block, 100);
        return req.conn.wire.send_interim(&block);
    }
    write_all(thread, req, b"HTTP/1.1 100 Continue\r\n\r\n").await
}

/// Waits until the socket takes more. `false`: `send_timeout` is over.
async fn room(thread: &Rc<Thread>, req: &mut Request) -> bool {
    let http = req.http();
    let timeout = http.location(req).settings.core.send_timeout.0;
    let now = Instant::now();
    let client = req.waiting(Direction::Response, now);
    let room = req.conn.wire.wait_writable(&thread.io);
    let waited = thread.transfers.wait(&thread.io.poller, client, now + timeout, room).await;
    waited.map_err(|over| too_slow(req, over)).is_ok()
}

/// Sends the answers that wait for the end of the turn or have found no room, before the connection ends. A client that
/// has timed out gets no more time.
pub async fn flush_answers(thread: &Rc<Thread>, req: &mut Request) {
    while !req.timed_out && !req.conn.wire.flush(&thread.io) {
        if !room(thread, req).await {
            return;
        }
    }
}

/// Logs that a response cannot be sent, which mostly is the client's doing.
fn failed(req: &mut Request, call: &str, e: Errno) -> bool {
    if e != Errno::BADF {
        let gone = matches!(e, Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN | Errno::TIMEDOUT);
        let level = if gone { Level::Info } else { Level::Alert };
        req.log_with(level, |out| {
            let text = forebay_sys::errno::errno_text(e);
            for piece in [call, " failed ", &text, " while sending response to client"] {
                out.extend_from_slice(piece.as_bytes());
            }
        });
    }
    false
}

/// Writes bytes, all of them.
pub async fn write_all(thread: &Rc<Thread>, req: &mut Request, bytes: &[u8]) -> bool {
    write_with(thread, req, bytes, Then::Nothing).await
}

/// Writes the last bytes of a response. If the connection is closed behind it, the kernel holds them back for
/// the few instructions until then, so that data and FIN are one packet instead of two.
pub async fn write_last(thread: &Rc<Thread>, req: &mut Request, bytes: &[u8]) -> bool {
    let then = after_last(req);
    write_with(thread, req, bytes, then).await
}

pub(super) fn after_last(req: &Request) -> Then {
    if req.closes_at_once {
        Then::Close
    } else if req.keep_alive {
        Then::Wait
    } else {
        Then::Nothing
    }
}

async fn write_with(thread: &Rc<Thread>, req: &mut Request, bytes: &[u8], then: Then) -> bool {
    let mut rest = bytes;
    let mut full = false;
    while !rest.is_empty() || full {
        match req.conn.wire.send(&thread.io, rest, then) {
            Ok(sent) => {
                req.sent += sent.bytes as u64;
                rest = rest.get(sent.bytes..).unwrap_or_default();
                full = sent.full;
            }
            Err(Errno::AGAIN) => full = true,
            Err(e) => return failed(req, "writev()", e),
        }
        // Asking a full socket again would only say so.
        if full && !room(thread, req).await {
            return false;
        }
    }
    true
}

/// Longest body that is copied behind its head, bytes.
const COPY: u64 = 4096;

/// Sends head and body.
pub async fn send(thread: &Rc<Thread>, req: &mut Request, head: &mut Vec<u8>, chunked: bool) -> bool {
    if let Some(join) = req.resp.join.take() {
        return Box::pin(super::compose::send(req, head, chunked, join)).await;
    }
    let rate = limit_rate(req);
    if let Some(source) = req.resp.source.take() {
        return super::source::send(thread, req, head, source, chunked, rate).await;
    }
    let untouched = req.resp.filters.is_empty() && rate.is_none() && !chunked;
    let sendfile = req.conn.wire.has_sendfile();
    if untouched && !sendfile {
        bring_to_memory(thread, &req.resp.body);
    }
    if untouched && all_in_memory(&req.resp.body, sendfile) {
        // Copying a small body costs less than describing two pieces to the kernel.
        if req.resp.body_len() <= COPY && !req.conn.wire.is_multiplexed() {
            for p in &req.resp.body {
                head.extend_from_slice(memory(&req.resp.text, p));
            }
            return write_last(thread, req, head).await;
        }
        // The head has left already, as over HTTP/2: one part needs no list of pieces.
        if head.is_empty() && req.resp.body.len() == 1 {
            let parts = std::mem::take(&mut req.resp.body);
            let text = std::mem::take(&mut req.resp.text);
            let ok = write_last(thread, req, parts.first().map_or(&[][..], |p| memory(&text, p))).await;
            req.resp.text = text;
            req.resp.body = parts;
            return ok;
        }
        return send_memory(thread, req, head).await;
    }
    let mut pace = Pace::new(rate);
    let parts = std::mem::take(&mut req.resp.body);
    let text = std::mem::take(&mut req.resp.text);
    let ok = send_parts(thread, req, head, (&parts, &text), chunked, &mut pace).await;
    req.resp.text = text;
    req.resp.body = parts;
    ok
}

/// Files whose bytes have to pass through user space anyway are read once, not each time.
fn bring_to_memory(thread: &Thread, parts: &[Part]) {
    for p in parts {
        if let Part::File { file, .. } = p
            && file.bytes().is_none()
        {
            thread.files.borrow_mut().read_again(file, thread.clock.now());
        }
    }
}

/// Whether all is in memory that should be sent from there: sendfile, where there is one, is better for larger files.
fn all_in_memory(parts: &[Part], sendfile: bool) -> bool {
    let elsewhere = |file: &OpenFile| if sendfile { file.content.is_none() } else { file.bytes().is_none() };
    parts.len() <= 6 && parts.iter().all(|p| !matches!(p, Part::File { file, .. } if elsewhere(file)))
}

/// The bytes of a part that is in memory.
pub(super) fn memory<'p>(text: &'p [u8], p: &'p Part) -> &'p [u8] {
    match p {
        Part::Text { start, end } => text.get(*start as usize..*end as usize).unwrap_or_default(),
        Part::Static(b) => b,
        Part::Bytes(b) => b,
        Part::File { file, start, end } => {
            file.bytes().and_then(|c| c.get(*start as usize..*end as usize)).unwrap_or_default()
        }
    }
}

/// A body that is the rest of a small file, the type of TLS records behind it.
#[inline]
fn inner(parts: &[Part]) -> Option<&[u8]> {
    match parts {
        [Part::File { file, start, end }] => file.inner(*start, *end),
        _ => None,
    }
}

/// One vectored write for head and body; more only if the socket is full.
async fn send_memory(thread: &Rc<Thread>, req: &mut Request, head: &[u8]) -> bool {
    let mut done = 0usize;
    let then = after_last(req);
    let mut full = false;
    loop {
        let mut slices: [IoSlice<'_>; 7] = [IoSlice::new(&[]); 7];
        let mut skip = done;
        let mut n = 0;
        for b in std::iter::once(head).chain(req.resp.body.iter().map(|p| memory(&req.resp.text, p))) {
            if skip >= b.len() {
                skip -= b.len();
                continue;
            }
            slices[n] = IoSlice::new(&b[skip..]);
            skip = 0;
            n += 1;
        }
        if n == 0 && !full {
            return true;
        }
        let wire = &mut req.conn.wire;
        let inner = if done == 0 && wire.is_tls() { inner(&req.resp.body) } else { None };
        let sent = match inner {
            Some(inner) => wire.send_typed(&thread.io, &[IoSlice::new(head), IoSlice::new(inner)], then),
            None => wire.send_pieces(&thread.io, &slices[..n], then),
        };
        match sent {
            Ok(sent) => {
                req.sent += sent.bytes as u64;
                done += sent.bytes;
                full = sent.full;
            }
            Err(Errno::AGAIN) => full = true,
            Err(e) => return failed(req, "writev()", e),
        }
        if full && !room(thread, req).await {
            return false;
        }
    }
}

/// Bytes that are sent without waiting for more of a source.
pub(super) const GATHERED: usize = 16 * 1024;

/// Longest piece sent at once where the file is not in memory, bytes.
pub(super) const PIECE: u64 = 2 * 1024 * 1024;

async fn send_parts(
    thread: &Rc<Thread>,
    req: &mut Request,
    head: &[u8],
    (parts, text): (&[Part], &[u8]),
    chunked: bool,
    pace: &mut Pace,
) -> bool {
    let mut pending = req.take_buf();
    pending.extend_from_slice(head);
    let filtered = !req.resp.filters.is_empty();
    // Empty parts behind it must not keep the filters from learning that it is the last.
    let total = parts.iter().rposition(|p| !p.is_empty()).map_or(0, |i| i + 1);
    let limit = if filtered {
        piece_limit(req)
    } else if chunked {
        32 * 1024
    } else {
        PIECE
    };
    for (i, part) in parts.iter().take(total).enumerate() {
        let last = i + 1 == total;
        let len = part.len();
        let mut at = 0;
        while at < len {
            let want = (len - at).min(limit);
            let n = match pace.allowance(want) {
                Ok(n) => n,
                Err(wait) => {
                    if !flush_parts(thread, req, &mut pending).await {
                        return false;
                    }
                    if client_gone_within(thread, req, wait).await {
                        req.log(
                            Level::Info,
                            "client prematurely closed connection while sending response to client",
                        );
                        return false;
                    }
                    continue;
                }
            };
            if !filtered
                && !chunked
                && let Part::File { file, start, .. } = part
                && file.content.is_none()
            {
                if !send_head_more(thread, req, &mut pending).await
                    || !send_file(thread, req, file, start + at, n).await
                {
                    return false;
                }
            } else {
                let mut piece = req.take_buf();
                if !load(text, part, at, n, &mut piece).await {
                    return false;
                }
                let follows = if last && at + n == len { Follows::End } else { Follows::More };
                let sound = push_piece(req, &piece, follows, chunked, &mut pending);
                req.give_buf(piece);
                if !sound {
                    flush_parts(thread, req, &mut pending).await;
                    return false;
                }
                if filtered && follows == Follows::More {
                    // Filters compute: others of the thread have their turn, too.
                    thread.io.poller.yield_now().await;
                }
                if pending.len() >= 64 * 1024 && !flush_parts(thread, req, &mut pending).await {
                    return false;
                }
            }
            at += n;
            pace.sent += n;
        }
    }
    if total == 0 && !push_piece(req, b"", Follows::End, chunked, &mut pending) {
        return false;
    }
    if chunked {
        end_chunks(req, &mut pending);
    }
    let ok = flush_parts(thread, req, &mut pending).await;
    req.give_buf(pending);
    ok
}

/// Writes what has gathered; while the client takes nothing, the source is read ahead.
pub(super) async fn flush(
    thread: &Rc<Thread>,
    req: &mut Request,
    pending: &mut Vec<u8>,
    source: &mut Body,
) -> bool {
    flush_then(thread, req, pending, source, Then::Nothing).await
}

pub(super) async fn flush_then(
    thread: &Rc<Thread>,
    req: &mut Request,
    pending: &mut Vec<u8>,
    source: &mut Body,
    then: Then,
) -> bool {
    let mut rest = pending.as_slice();
    let mut ok = true;
    let mut full = false;
    while (!rest.is_empty() || full) && ok {
        match req.conn.wire.send(&thread.io, rest, then) {
            Ok(sent) => {
                req.sent += sent.bytes as u64;
                rest = rest.get(sent.bytes..).unwrap_or_default();
                full = sent.full;
            }
            Err(Errno::AGAIN) => full = true,
            Err(e) => {
                ok = failed(req, "writev()", e);
                continue;
            }
        }
        if full {
            let http = req.http();
            let now = Instant::now();
            let until = now + http.location(req).settings.core.send_timeout.0;
            let client = req.waiting(Direction::Response, now);
            let meanwhile = source.meanwhile(req, true, until);
            let waited = thread.transfers.wait(&thread.io.poller, client, until, meanwhile).await;
            if let Some(over) = waited.map_or_else(Some, |in_time| (!in_time).then_some(Over::Timeout)) {
                too_slow(req, over);
                ok = false;
            }
        }
    }
    pending.clear();
    ok
}

/// Logs a client that takes nothing in time.
fn too_slow(req: &mut Request, over: Over) {
    req.timed_out = true;
    if req.tells(over) {
        req.log(Level::Info, &[over.text(), " while sending response to client"].concat());
    }
}

pub(super) fn end_chunks(req: &mut Request, pending: &mut Vec<u8>) {
    crate::modules::headers::trailers(req);
    pending.extend_from_slice(b"0\r\n");
    push_trailers(&req.resp, &mut Sink::Http1(pending));
    pending.extend_from_slice(b"\r\n");
}

/// Waits; `true` if the client resets the connection meanwhile. One that has only said that it will send no
/// more may still be reading.
pub(super) async fn client_gone_within(thread: &Rc<Thread>, req: &Request, wait: Duration) -> bool {
    let gone = req.conn.wire.wait_gone(&thread.io);
    thread.io.poller.deadline(Instant::now() + wait, gone).await.is_some()
}

/// Most of a body that is put through filters at once, bytes.
pub(super) fn piece_limit(req: &Request) -> u64 {
    if req.resp.filters.iter().any(|f| f.expands()) { 2 * 1024 } else { 32 * 1024 }
}

/// What follows a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Follows {
    /// More, soon.
    More,
    /// Nothing for a while: what the filters hold is to leave.
    Pause,
    /// Nothing.
    End,
}

/// Sends a piece through the filters and frames it. `false`: a filter cannot go on.
pub(super) fn push_piece(
    req: &mut Request,
    piece: &[u8],
    follows: Follows,
    chunked: bool,
    out: &mut Vec<u8>,
) -> bool {
    if req.resp.filters.is_empty() {
        frame(piece, chunked, out);
        return true;
    }
    let (mut from, mut to) = (req.take_buf(), req.take_buf());
    let mut done = Ok(());
    for (i, f) in req.resp.filters.iter_mut().enumerate() {
        let input = if i == 0 { piece } else { from.as_slice() };
        done = f.feed(input, follows == Follows::End, &mut to);
        if done.is_ok() && follows == Follows::Pause {
            done = f.flush(&mut to);
        }
        if done.is_err() {
            break;
        }
        std::mem::swap(&mut from, &mut to);
        to.clear();
    }
    if done.is_ok() {
        frame(&from, chunked, out);
    }
    req.give_buf(from);
    req.give_buf(to);
    if let Err(crate::response::Broken(what)) = done {
        req.log(Level::Error, &format!("{what} while sending response to client"));
    }
    done.is_ok()
}

/// Appends bytes of a body, as a chunk where it goes in chunks.
pub(super) fn frame(bytes: &[u8], chunked: bool, out: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    if !chunked {
        out.extend_from_slice(bytes);
        return;
    }
    let digits = (usize::BITS - bytes.len().leading_zeros()).div_ceil(4);
    for i in (0..digits).rev() {
        out.push(b"0123456789abcdef"[bytes.len() >> (4 * i) & 15]);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

async fn flush_parts(thread: &Rc<Thread>, req: &mut Request, pending: &mut Vec<u8>) -> bool {
    if pending.is_empty() {
        return true;
    }
    let ok = write_all(thread, req, pending).await;
    pending.clear();
    ok
}

/// The head before a file: held back by the kernel so that it leaves with the first bytes of the file.
async fn send_head_more(thread: &Rc<Thread>, req: &mut Request, pending: &mut Vec<u8>) -> bool {
    if pending.is_empty() {
        return true;
    }
    if let Ok(sent) = req.conn.wire.send(&thread.io, pending, Then::More) {
        req.sent += sent.bytes as u64;
        pending.drain(..sent.bytes);
    }
    flush_parts(thread, req, pending).await
}

/// Sends a stretch of a file without copying it to user space.
async fn send_file(thread: &Rc<Thread>, req: &mut Request, file: &Rc<OpenFile>, start: u64, n: u64) -> bool {
    let mut offset = start;
    let end = start + n;
    let mut checked = start;
    while offset < end {
        if offset >= checked {
            if offset > start {
                // A client that reads as fast as the file is sent must not hold up the thread.
                thread.io.poller.yield_now().await;
            }
            let stretch = (end - offset).min(PIECE);
            if !resident(file, offset, stretch) {
                warm(file, offset, stretch).await;
            }
            checked = offset + stretch;
        }
        let count = (checked - offset) as usize;
        match req.conn.wire.send_file(&thread.io, &file.fd, &mut offset, count) {
            // The file became shorter: what was promised cannot be kept.
            Ok(sent) if sent.bytes == 0 && !sent.full => {
                req.log(Level::Alert, &format!("sendfile() reported that file was truncated at {offset}"));
                return false;
            }
            Ok(sent) => {
                req.sent += sent.bytes as u64;
                if sent.full && !room(thread, req).await {
                    return false;
                }
            }
            Err(Errno::AGAIN) => {
                if !room(thread, req).await {
                    return false;
                }
            }
            Err(e) => return failed(req, "sendfile()", e),
        }
    }
    // Over TLS the last bytes may not have left yet.
    flush_wire(thread, req).await
}

/// Sends what the connection owes the socket; nothing where it is plain.
async fn flush_wire(thread: &Rc<Thread>, req: &mut Request) -> bool {
    while req.conn.wire.has_unsent() {
        match req.conn.wire.send(&thread.io, b"", Then::Nothing) {
            Ok(sent) if !sent.full => break,
            Ok(_) | Err(Errno::AGAIN) => {
                if !room(thread, req).await {
                    return false;
                }
            }
            Err(e) => return failed(req, "writev()", e),
        }
    }
    true
}
