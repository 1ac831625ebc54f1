//! Sending of a response's body after its head. A body that is in memory and leaves as it is takes one write; every
//! other body goes through a [`Pump`]. Hot path.

use super::compose;
use super::files::{memory, shared};
use super::outlet::{Outlet, has_limit_rate, limit_rate};
use super::pace::Pace;
use super::pump::Pump;
use super::write::{Done, Idle, after_last, failed, give_shared, room, write_last};
use crate::request::Request;
use crate::response::Part;
use crate::response::head::BodyFraming;
use crate::thread::Thread;
use bytes::Bytes;
use forebay_net::wire::Then;
use rustix::io::{Errno, IoSlice};
use std::rc::Rc;

/// Longest body that is copied after its head into one buffer, bytes.
const COPY: u64 = 4096;

/// Longest body of an upstream that leaves in one write, bytes. With its head it must not fill a segment of the loopback device.
const WHOLE: u64 = 56 * 1024;

/// Maximum number of parts of a body that leaves in one vectored write.
const VECTORED: usize = 6;

/// Result of [`send_at_once`].
pub enum Attempt {
    /// The response has been sent, or cannot be.
    Done(Done),
    /// The client has to take more before the rest: see [`write_shared`](super::write_shared).
    Rest(Bytes),
    /// The response needs the way that can wait: no byte has been sent.
    No,
}

/// Sends a body of one part that is in memory over a stream, after its head, as far as that is possible without waiting. Most responses
/// end with this. The future of [`send`] holds the state of every kind of wait, and making it costs more than such a response.
#[inline]
pub fn send_at_once(thread: &Thread, req: &mut Request, head: &[u8], framing: BodyFraming) -> Attempt {
    let r = &req.resp;
    let is_plain = head.is_empty() && r.join.is_none() && r.filters.body.is_empty() && r.source.is_none();
    if !is_plain || framing == BodyFraming::Chunked || !req.conn.wire.is_multiplexed() || has_limit_rate(req)
    {
        return Attempt::No;
    }
    bring_to_memory(thread, &r.body);
    // Several parts need the vectored write, which can wait.
    let [part] = r.body.as_slice() else { return Attempt::No };
    let Some(mut rest) = shared(part) else { return Attempt::No };
    // The head of an empty response already carries the end of the stream.
    if rest.is_empty() {
        return Attempt::Done(Ok(()));
    }
    // Trailers follow the content in a frame of their own, so that the content must not end the stream.
    let then = if req.resp.has_trailers() { Then::More } else { Then::Close };
    match give_shared(req, &mut rest, then) {
        Ok(false) if rest.is_empty() => Attempt::Done(Ok(())),
        Ok(_) => Attempt::Rest(rest),
        Err(broken) => Attempt::Done(Err(broken)),
    }
}

/// Sends head and body.
///
/// # Errors
/// The connection cannot be used for another response; the reason has been logged.
pub async fn send(thread: &Rc<Thread>, req: &mut Request, head: &mut Vec<u8>, framing: BodyFraming) -> Done {
    if let Some(join) = req.resp.join.take() {
        // Boxed, so that the future of every other response has no room for the composition.
        return Box::pin(compose::send(req, head, framing, join)).await;
    }
    let rate = limit_rate(req);
    let unchanged = req.resp.filters.body.is_empty() && rate.is_none() && framing != BodyFraming::Chunked;
    if unchanged && req.resp.source.is_none() {
        let sendfile = req.conn.wire.has_sendfile();
        // Where sendfile can send a file, its bytes need not be in memory.
        if !sendfile {
            bring_to_memory(thread, &req.resp.body);
        }
        if is_in_memory(&req.resp.body, sendfile) {
            return send_memory(thread, req, head).await;
        }
    }
    pump(thread, req, head, framing, Pace::new(rate)).await
}

/// Sends head and body through a pump.
async fn pump(
    thread: &Rc<Thread>,
    req: &mut Request,
    head: &mut Vec<u8>,
    framing: BodyFraming,
    pace: Pace,
) -> Done {
    let streamed = req.resp.source.is_some();
    // If a file leaves by sendfile, the buffer holds only the head, and a small one is enough.
    let bare = !streamed && req.resp.filters.body.is_empty() && framing != BodyFraming::Chunked;
    let pending = if bare { req.take_buf() } else { thread.io.large.take() };
    let filters = std::mem::take(&mut req.resp.filters.body);
    let mut out = Outlet::client(filters, framing, pace, pending);
    if !streamed {
        // Parts are complete, so no client waits for a first piece: larger writes cost less.
        out.enough = 64 * 1024;
    } else if let Some(len) = req.resp.content_length.filter(|len| *len < WHOLE) {
        // Content that came together with the head waits for the rest of a short response, unless the rest is late. So the response
        // leaves in one write.
        out.enough = head.len() + len as usize;
    }
    let mut done = out.put_head(req, head).await;
    // The content may take long, so its request gives the buffer of the head back.
    req.give_buf(std::mem::take(head));
    let mut pump = Pump::new(req, &mut out);
    if done.is_ok() {
        done = pump.run(req).await;
    }
    if done.is_ok() {
        let then = if streamed { after_last(req) } else { Then::Nothing };
        done = pump.finish(req, then).await;
    }
    pump.end(req).await;
    let (pending, _) = out.end(req);
    thread.give_buffer(pending);
    done
}

/// Reads files into memory if their bytes have to pass through user space anyway. They are then read once, and not for each response.
fn bring_to_memory(thread: &Thread, parts: &[Part]) {
    for p in parts {
        if let Part::File { file, .. } = p
            && file.bytes().is_none()
        {
            thread.files.borrow_mut().read_again(file, thread.clock.now());
        }
    }
}

/// Returns `true` if all parts should be sent from memory. Where the wire has sendfile, longer files leave by it instead.
fn is_in_memory(parts: &[Part], sendfile: bool) -> bool {
    let leaves = |part: &Part| match part {
        Part::File { file, start, end } if sendfile => file.leaves_by_sendfile(*start, *end),
        Part::File { file, .. } => file.bytes().is_none(),
        _ => false,
    };
    parts.len() <= VECTORED && !parts.iter().any(leaves)
}

/// Sends a body that is in memory.
async fn send_memory(thread: &Rc<Thread>, req: &mut Request, head: &mut Vec<u8>) -> Done {
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
        let done = write_last(thread, req, parts.first().map_or(&[][..], |p| memory(&text, p))).await;
        req.resp.text = text;
        req.resp.body = parts;
        return done;
    }
    write_vectored(thread, req, head).await
}

/// Writes head and body in one call, and in more only if the socket is full.
async fn write_vectored(thread: &Rc<Thread>, req: &mut Request, head: &[u8]) -> Done {
    let mut done = 0usize;
    let then = after_last(req);
    let mut full = false;
    loop {
        let mut slices: [IoSlice<'_>; VECTORED + 1] = [IoSlice::new(&[]); VECTORED + 1];
        let body = req.resp.body.iter().map(|p| memory(&req.resp.text, p));
        let n = describe(std::iter::once(head).chain(body), done, &mut slices);
        if n == 0 && !full {
            return Ok(());
        }
        let wire = &mut req.conn.wire;
        // The cached file has the type byte of the TLS record after its content, so that the content is sealed without a copy. This holds
        // only for a write from the first byte on.
        let inner = if done == 0 && wire.is_tls() { inner(&req.resp.body) } else { None };
        let sent = match inner {
            Some(inner) => wire.send_typed(&thread.io, &[IoSlice::new(head), IoSlice::new(inner)], then),
            None => wire.send_pieces(&thread.io, &slices[..n], then),
        };
        match sent {
            Ok(sent) => {
                req.tally.sent += sent.bytes as u64;
                done += sent.bytes;
                full = sent.full;
            }
            Err(Errno::AGAIN) => full = true,
            Err(e) => return Err(failed(req, "writev()", e)),
        }
        if full {
            // The text buffer may be large, and a slow client would keep it from other requests.
            req.lend_text();
            room(thread, req, &mut Idle).await?;
        }
    }
}

/// Fills a list with pieces without their first `skip` bytes. Returns the number of entries.
#[inline]
fn describe<'b>(
    pieces: impl Iterator<Item = &'b [u8]>,
    mut skip: usize,
    slices: &mut [IoSlice<'b>; VECTORED + 1],
) -> usize {
    let mut n = 0;
    for piece in pieces {
        if skip >= piece.len() {
            skip -= piece.len();
            continue;
        }
        slices[n] = IoSlice::new(&piece[skip..]);
        skip = 0;
        n += 1;
    }
    n
}

/// Returns a body that is the rest of a small file, with the type of TLS records after it.
#[inline]
fn inner(parts: &[Part]) -> Option<&[u8]> {
    match parts {
        [Part::File { file, start, end }] => file.inner(*start, *end),
        _ => None,
    }
}
