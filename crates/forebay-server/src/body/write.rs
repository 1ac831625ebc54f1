//! Writing bytes to a client until it has taken all of them. Hot path.

use crate::request::Request;
use crate::response::fields::Sink;
use crate::response::streamed::{Awaited, Body};
use crate::thread::Thread;
use bytes::{Buf, Bytes};
use forebay_conf::error::Level;
use forebay_core::transfers::{Direction, Over};
use forebay_net::wire::{Sent, Then};
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Failure of a response that has begun. Its connection cannot be used for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Nothing more can be sent.
    Connection,
    /// The content breaks off. The bytes before that have been sent.
    Content,
}

/// Result of sending a part of a response.
pub type Done = Result<(), Broken>;

/// Answers `Expect: 100-continue`.
///
/// # Errors
/// The client is gone or too slow.
pub async fn send_continue(thread: &Rc<Thread>, req: &mut Request) -> Done {
    req.body.continued = true;
    // Over HTTP/2 and HTTP/3 an interim response is a field section of its own, and its stream takes it without waiting.
    if req.conn.wire.is_multiplexed() {
        let mut block = Vec::with_capacity(8);
        Sink::new(req.head.version, &mut block).status(100);
        req.conn.wire.send_interim(&block);
        return Ok(());
    }
    write_all(thread, req, b"HTTP/1.1 100 Continue\r\n\r\n").await
}

/// Sends the answers that wait for the end of the turn or have found no room, before the connection ends. A client that
/// has timed out gets no more time.
pub async fn flush_answers(thread: &Rc<Thread>, req: &mut Request) {
    while !req.timed_out && !req.conn.wire.flush(&thread.io) {
        if room(thread, req, &mut Idle).await.is_err() {
            return;
        }
    }
}

/// Writes bytes.
pub async fn write_all(thread: &Rc<Thread>, req: &mut Request, bytes: &[u8]) -> Done {
    write(thread, req, bytes, Then::Nothing, &mut Idle).await
}

/// Writes the last bytes of a response. If the connection is closed after it, the kernel holds them back for
/// the few instructions until then, so that data and FIN are one packet instead of two.
pub async fn write_last(thread: &Rc<Thread>, req: &mut Request, bytes: &[u8]) -> Done {
    let then = after_last(req);
    write(thread, req, bytes, then, &mut Idle).await
}

/// Returns the hint for the last bytes of a response.
pub(super) fn after_last(req: &Request) -> Then {
    if req.ending.closes_at_once() {
        Then::Close
    } else if req.ending.keeps_alive() {
        Then::Wait
    } else {
        Then::Nothing
    }
}

/// Work to do while a client takes nothing. Each kind of work has its own type, so that the future of a write that only waits has no room
/// for the states of reading ahead. Reading ahead can itself write `100 Continue`, so one type would contain itself.
pub(super) trait StallWork {
    /// Waits until the client takes more, or until a time.
    async fn until_writable(&mut self, req: &mut Request, until: Instant) -> Awaited;
}

/// Waits without other work; [`room`] has the deadline.
pub(super) struct Idle;

impl StallWork for Idle {
    #[inline]
    async fn until_writable(&mut self, req: &mut Request, _until: Instant) -> Awaited {
        req.conn.wire.wait_writable(&req.thread.io).await;
        Awaited::Writable
    }
}

/// Reads a body ahead, as far as the configuration allows.
pub(super) struct Ahead<'b>(pub(super) Option<&'b mut Body>);

impl StallWork for Ahead<'_> {
    async fn until_writable(&mut self, req: &mut Request, until: Instant) -> Awaited {
        match &mut self.0 {
            Some(body) => body.read_ahead(req, true, until).await,
            None => Idle.until_writable(req, until).await,
        }
    }
}

/// Writes bytes, all of them.
pub(super) async fn write(
    thread: &Rc<Thread>,
    req: &mut Request,
    bytes: &[u8],
    then: Then,
    meanwhile: &mut impl StallWork,
) -> Done {
    write_on(thread, req, bytes, false, then, meanwhile).await
}

/// Writes bytes as [`write`] does. With `full`, first waits until the client takes more.
pub(super) async fn write_on(
    thread: &Rc<Thread>,
    req: &mut Request,
    bytes: &[u8],
    mut full: bool,
    then: Then,
    meanwhile: &mut impl StallWork,
) -> Done {
    let mut rest = bytes;
    while !rest.is_empty() || full {
        // A socket that was full would only answer EAGAIN again, so the wait comes before the next call.
        if full {
            room(thread, req, meanwhile).await?;
        }
        let sent = write_some(thread, req, rest, then)?;
        rest = rest.get(sent.bytes..).unwrap_or_default();
        full = sent.full;
    }
    Ok(())
}

/// Writes what the client takes at once.
#[inline]
pub(super) fn write_some(
    thread: &Thread,
    req: &mut Request,
    bytes: &[u8],
    then: Then,
) -> Result<Sent, Broken> {
    match req.conn.wire.send(&thread.io, bytes, then) {
        Ok(sent) => {
            req.tally.sent += sent.bytes as u64;
            Ok(sent)
        }
        Err(Errno::AGAIN) => Ok(Sent { bytes: 0, full: true }),
        Err(e) => Err(failed(req, "writev()", e)),
    }
}

/// Has the client of a stream take content, as much as it takes at once, and without a copy where that is possible. Removes the bytes
/// taken from `rest`. Returns `true` if the client has to take more before anything else.
#[inline]
pub(super) fn give_shared(req: &mut Request, rest: &mut Bytes, then: Then) -> Result<bool, Broken> {
    let sent = req.conn.wire.send_shared(rest, then).map_err(|e| failed(req, "writev()", e))?;
    req.tally.sent += sent.bytes as u64;
    rest.advance(sent.bytes);
    Ok(sent.full)
}

/// Writes the content of a stream's response that its client has not taken at once.
///
/// # Errors
/// The client is gone or too slow; the reason has been logged.
pub async fn write_shared(thread: &Rc<Thread>, req: &mut Request, mut rest: Bytes) -> Done {
    let mut full = true;
    while !rest.is_empty() || full {
        if full {
            room(thread, req, &mut Idle).await?;
        }
        full = give_shared(req, &mut rest, Then::Nothing)?;
    }
    Ok(())
}

/// Writes what TLS has sealed but not sent yet. Does nothing on a plain connection.
pub(super) async fn write_unsent(thread: &Rc<Thread>, req: &mut Request) -> Done {
    while req.conn.wire.has_unsent() {
        // An empty write flushes the records that were sealed before.
        match req.conn.wire.send(&thread.io, b"", Then::Nothing) {
            Ok(sent) if !sent.full => break,
            Ok(_) | Err(Errno::AGAIN) => room(thread, req, &mut Idle).await?,
            Err(e) => return Err(failed(req, "writev()", e)),
        }
    }
    Ok(())
}

/// Waits until the client takes more, for at most `send_timeout`. The future is boxed, so that a request that waits for something else
/// has no room for it.
pub(super) fn room<'r>(
    thread: &'r Rc<Thread>,
    req: &'r mut Request,
    meanwhile: &'r mut impl StallWork,
) -> Pin<Box<impl Future<Output = Done> + 'r>> {
    Box::pin(wait_for_room(thread, req, meanwhile))
}

async fn wait_for_room(thread: &Rc<Thread>, req: &mut Request, meanwhile: &mut impl StallWork) -> Done {
    let http = req.http();
    let now = Instant::now();
    let until = now + http.location(req).settings.core.send_timeout.0;
    // The wait is recorded, so that the slowest clients can be found when the worker runs out of connections.
    let client = req.waiting(Direction::Response, now);
    let waited = {
        // Pinned here, since each function that passes a future on by value would hold room for it once more.
        let writable = std::pin::pin!(meanwhile.until_writable(req, until));
        thread.transfers.wait(&thread.io.poller, client, until, writable).await
    };
    match waited {
        Ok(Awaited::Writable) => Ok(()),
        Ok(Awaited::TimeOver) => Err(too_slow(req, Over::Timeout)),
        Err(over) => Err(too_slow(req, over)),
    }
}

/// Logs that the client takes nothing in time.
fn too_slow(req: &mut Request, over: Over) -> Broken {
    req.timed_out = true;
    if req.tells(over) {
        req.log(Level::Info, &[over.text(), " while sending response to client"].concat());
    }
    Broken::Connection
}

/// Logs that a response cannot be sent, which is mostly the client's doing.
pub(super) fn failed(req: &mut Request, call: &str, e: Errno) -> Broken {
    // EBADF means that the slot of the connection is gone already, which is no failure of this call.
    if e != Errno::BADF {
        // A client may leave at any time, so these are no faults of the server; every other error is worth an alert, as in nginx.
        let gone = matches!(e, Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN | Errno::TIMEDOUT);
        let level = if gone { Level::Info } else { Level::Alert };
        req.log_with(level, |out| {
            for piece in [call, " failed ", &errno_text(e), " while sending response to client"] {
                out.extend_from_slice(piece.as_bytes());
            }
        });
    }
    Broken::Connection
}

/// Waits for a time. Returns `true` if the client resets the connection meanwhile. A client that has only closed its sending direction
/// may still read the response.
pub(super) async fn client_gone_within(thread: &Rc<Thread>, req: &Request, wait: Duration) -> bool {
    let gone = req.conn.wire.wait_gone(&thread.io);
    thread.io.poller.deadline(Instant::now() + wait, gone).await.is_some()
}
