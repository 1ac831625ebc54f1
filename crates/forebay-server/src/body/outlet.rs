//! Outlet of a response: filters the content, frames it, keeps to the rate, and holds the bytes that are about to leave. Content
//! is filtered and framed nowhere else. Hot path.

use super::pace::Pace;
use super::write::{Ahead, Broken, Done, client_gone_within, write_on, write_some};
use crate::request::Request;
use crate::response::fields::{Sink, add_trailers, push_trailers};
use crate::response::head::BodyFraming;
use crate::response::streamed::Body;
use crate::response::{BodyFilter, FilterError};
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_net::io::LargeBuffers;
use forebay_net::wire::{Sent, Then};
use std::time::{Duration, Instant};

/// Number of gathered bytes from which on they are sent instead of waiting for more.
const GATHERED: usize = 16 * 1024;

/// Maximum of bytes that pass the filters at once.
pub const PIECE: usize = 32 * 1024;

/// Maximum of bytes at once if a filter may expand them, as decompression does.
const EXPANDING: usize = 2 * 1024;

/// Returns `limit_rate` and `limit_rate_after` in effect, bytes/s and bytes.
pub(super) fn limit_rate(req: &mut Request) -> Option<(u64, u64)> {
    if !has_limit_rate(req) {
        return None;
    }
    let http = req.http();
    let core = &http.location(req).settings.core;
    let set = req.resp.limit_rate;
    let eval = |t: &Option<forebay_core::vars::Template>, req: &mut Request| {
        // A value that is no size means no limit, since it comes from variables and may be anything.
        let v = t.as_ref().and_then(|t| t.value(req).ok()).unwrap_or_default();
        forebay_conf::units::size(&v).unwrap_or(0)
    };
    // `X-Accel-Limit-Rate` and `$limit_rate` go before the directive, as in nginx.
    let rate = if set != 0 { set } else { eval(&core.limit_rate.0, req) };
    let after = eval(&core.limit_rate_after.0, req);
    (rate > 0).then_some((rate, after))
}

/// Returns `true` if a response may have a rate.
#[inline]
pub(super) fn has_limit_rate(req: &Request) -> bool {
    req.resp.limit_rate != 0 || req.own_location().settings.core.limit_rate.0.is_some()
}

/// Continuation of the content after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// More, soon.
    More,
    /// A pause: the filters must not hold bytes back.
    Pause,
    /// No bytes.
    End,
}

/// Outlet of a response. A request and the subrequests whose content it includes use one outlet, one after the other.
pub struct Outlet {
    to: Destination,
    /// Filters that all bytes pass, in order.
    filters: Vec<Box<dyn BodyFilter>>,
    framing: BodyFraming,
    pace: Pace,
    /// Maximum of bytes that pass the filters at once.
    most: usize,
    /// Amount of pending bytes from which on they are sent.
    pub(super) enough: usize,
    /// Bytes of [`Outlet::push`] that have not been filtered yet. Small pieces would make small chunks.
    pub(super) gathered: Vec<u8>,
    /// Bytes that are filtered and framed, but not sent yet.
    pub(super) pending: Vec<u8>,
    /// Number of bytes that came by [`Outlet::push`].
    pushed: u64,
}

/// Destination of bytes.
enum Destination {
    Client,
    /// Memory, up to a limit in bytes (nginx: subrequest_output_buffer_size).
    Memory(Vec<u8>, usize),
}

impl Outlet {
    /// Creates an outlet to the client. `pending` is an empty buffer.
    pub(super) fn client(
        filters: Vec<Box<dyn BodyFilter>>,
        framing: BodyFraming,
        pace: Pace,
        pending: Vec<u8>,
    ) -> Outlet {
        let most = if filters.is_empty() { usize::MAX } else { most_at_once(&filters) };
        Outlet { to: Destination::Client, filters, framing, pace, most, pending, ..Outlet::memory(0) }
    }

    /// Creates an outlet to memory, of at most `limit` bytes.
    pub(super) fn memory(limit: usize) -> Outlet {
        Outlet {
            to: Destination::Memory(Vec::new(), limit),
            filters: Vec::new(),
            framing: BodyFraming::Plain,
            pace: Pace::new(None),
            most: usize::MAX,
            enough: GATHERED,
            gathered: Vec::new(),
            pending: Vec::new(),
            pushed: 0,
        }
    }

    /// Returns `true` if bytes leave as they are, apart from the rate.
    pub(super) fn is_transparent(&self) -> bool {
        self.filters.is_empty()
            && self.framing != BodyFraming::Chunked
            && matches!(self.to, Destination::Client)
    }

    /// Returns `true` if bytes leave as fast as they come.
    pub(super) fn is_unpaced(&self) -> bool {
        self.pace.is_unlimited()
    }

    /// Returns the number of bytes that [`Outlet::push`] has taken.
    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Takes the head, no faster than the rate allows. It leaves with what follows.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub(super) async fn put_head(&mut self, req: &mut Request, head: &[u8]) -> Done {
        let mut rest = head;
        while !rest.is_empty() {
            let n = self.allowed(req, rest.len(), None).await?;
            let (now, later) = rest.split_at(n);
            self.pending.extend_from_slice(now);
            self.pace.sent += n as u64;
            rest = later;
        }
        Ok(())
    }

    /// Takes bytes of a response that has the content of several requests (`compose.rs`). Gathers short ones.
    ///
    /// # Errors
    /// The connection cannot be used for another response, or memory has reached its limit.
    pub async fn push(&mut self, req: &mut Request, bytes: &[u8]) -> Done {
        if bytes.is_empty() {
            return Ok(());
        }
        self.pushed += bytes.len() as u64;
        if let Destination::Memory(all, limit) = &mut self.to {
            let len = all.len() + bytes.len();
            // nginx ends the request with the same message when a subrequest's content does not fit its buffer.
            if len > *limit {
                req.log(Level::Error, &format!("too big subrequest response: {len}"));
                return Err(Broken::Connection);
            }
            all.extend_from_slice(bytes);
            return Ok(());
        }
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() < GATHERED {
            return Ok(());
        }
        // Boxed, so that the futures of all callers have no room for it.
        Box::pin(self.drain(req, Follows::More, None)).await
    }

    /// Filters, frames and sends the bytes that [`Outlet::push`] has gathered, as [`Outlet::put`] does.
    pub(super) async fn drain(
        &mut self,
        req: &mut Request,
        follows: Follows,
        ahead: Option<&mut Body>,
    ) -> Done {
        if matches!(self.to, Destination::Memory(..)) {
            return Ok(());
        }
        let gathered = std::mem::take(&mut self.gathered);
        let done = self.put(req, &gathered, follows, ahead).await;
        // The buffer keeps its capacity for the next pieces.
        self.gathered = gathered;
        self.gathered.clear();
        done
    }

    /// Filters and frames bytes, no faster than the rate allows, and sends them once there are enough. While the client or the
    /// rate delays them, reads ahead from the body `ahead`, if there is one.
    pub(super) async fn put(
        &mut self,
        req: &mut Request,
        bytes: &[u8],
        follows: Follows,
        mut ahead: Option<&mut Body>,
    ) -> Done {
        let mut rest = bytes;
        loop {
            let n = self.allowed(req, rest.len(), ahead.as_deref_mut()).await?;
            let (now, later) = rest.split_at(n);
            rest = later;
            let then = if rest.is_empty() { follows } else { Follows::More };
            if self.push_piece(req, now, then).is_err() {
                // The earlier pieces have passed the filters, so they still go to the client.
                self.send(req, ahead).await?;
                return Err(Broken::Connection);
            }
            self.pace.sent += n as u64;
            if !self.filters.is_empty() && then == Follows::More && n > 0 {
                // Filters such as gzip use the CPU for long, so other requests of the thread run in between.
                let thread = req.thread.clone();
                thread.io.poller.yield_now().await;
            }
            if self.pending.len() >= self.enough {
                self.send(req, ahead.as_deref_mut()).await?;
            }
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits until the rate allows to send, and returns how many of `len` bytes may go.
    pub(super) async fn allowed(
        &mut self,
        req: &mut Request,
        len: usize,
        mut ahead: Option<&mut Body>,
    ) -> Result<usize, Broken> {
        let want = len.min(self.most);
        loop {
            match self.pace.allowance(want as u64) {
                Ok(n) => return Ok(n as usize),
                // With no bytes to send, only the filters are flushed, which no rate delays.
                Err(_) if len == 0 => return Ok(0),
                // Boxed, so that responses without a rate have no room for it.
                Err(wait) => Box::pin(self.wait(req, wait, ahead.as_deref_mut())).await?,
            }
        }
    }

    /// Counts bytes that have left without [`Outlet::put`].
    pub(super) fn count(&mut self, bytes: u64) {
        self.pace.sent += bytes;
    }

    /// Sends the pending bytes, then waits for a time and reads ahead meanwhile.
    async fn wait(&mut self, req: &mut Request, wait: Duration, mut ahead: Option<&mut Body>) -> Done {
        // The client gets everything that the rate has allowed so far before the pause begins.
        self.send(req, ahead.as_deref_mut()).await?;
        let thread = req.thread.clone();
        let left = match ahead {
            Some(body) => {
                body.read_ahead(req, false, Instant::now() + wait).await;
                // The time is over, so this only checks whether the client is still there.
                Duration::ZERO
            }
            None => wait,
        };
        if !client_gone_within(&thread, req, left).await {
            return Ok(());
        }
        req.log(Level::Info, "client prematurely closed connection while sending response to client");
        Err(Broken::Connection)
    }

    /// Filters and frames a piece, and adds it to the pending bytes.
    fn push_piece(&mut self, req: &mut Request, piece: &[u8], follows: Follows) -> Done {
        if self.filters.is_empty() {
            frame(piece, self.framing, &mut self.pending);
            return Ok(());
        }
        let mut out = req.take_buf();
        let done = filter(req, &mut self.filters, piece, follows, &mut out);
        if done.is_ok() {
            frame(&out, self.framing, &mut self.pending);
        }
        req.give_buf(out);
        done
    }

    /// Sends the gathered and the pending bytes.
    pub(super) async fn flush(&mut self, req: &mut Request, mut ahead: Option<&mut Body>) -> Done {
        if !self.gathered.is_empty() {
            // Boxed, because only responses with the content of several requests gather bytes.
            Box::pin(self.drain(req, Follows::More, ahead.as_deref_mut())).await?;
        }
        self.send(req, ahead).await
    }

    /// Sends the pending bytes.
    async fn send(&mut self, req: &mut Request, ahead: Option<&mut Body>) -> Done {
        self.send_then(req, Then::Nothing, ahead).await
    }

    /// Sends the pending bytes, with the hint `then` for the wire.
    async fn send_then(&mut self, req: &mut Request, then: Then, ahead: Option<&mut Body>) -> Done {
        if self.pending.is_empty() {
            return Ok(());
        }
        let thread = req.thread.clone();
        let mut done = Ok(());
        match write_some(&thread, req, &self.pending, then) {
            Ok(Sent { bytes, full: false }) if bytes == self.pending.len() => {}
            Ok(Sent { mut bytes, full }) => {
                let is_large = self.pending.capacity() >= LargeBuffers::LEAST;
                // The thread lends a bounded number of large buffers to slow clients. Without one of them, the rest moves to a buffer of
                // its size.
                let held = if is_large { thread.io.large.hold() } else { None };
                let moves = is_large && held.is_none();
                if moves {
                    self.keep_rest(&thread, bytes);
                    bytes = 0;
                }
                let rest = self.pending.get(bytes..).unwrap_or_default();
                done = write_on(&thread, req, rest, full, then, &mut Ahead(ahead)).await;
                if moves {
                    // The next read borrows a large buffer again.
                    self.pending = Vec::new();
                }
            }
            Err(broken) => done = Err(broken),
        }
        self.pending.clear();
        done
    }

    /// Moves the pending bytes after the first `sent` to a buffer of their size, before a wait for the client. Thousands of slow clients
    /// may have pending bytes, and each would keep a large buffer.
    fn keep_rest(&mut self, thread: &Thread, sent: usize) {
        let rest = self.pending.get(sent..).unwrap_or_default().to_vec();
        thread.give_buffer(std::mem::replace(&mut self.pending, rest));
    }

    /// Sends the pending bytes before a file. The kernel holds them back, so that they leave with the first bytes of the file.
    pub(super) async fn send_before_file(&mut self, req: &mut Request) -> Done {
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Ok(sent) = req.conn.wire.send(&req.thread.io, &self.pending, Then::More) {
            req.tally.sent += sent.bytes as u64;
            self.pending.drain(..sent.bytes);
        }
        // The kernel may have had no room for all of the bytes.
        self.send(req, None).await
    }

    /// Sends the pending bytes and the end of the framing, with the trailers.
    pub(super) async fn finish(&mut self, req: &mut Request, then: Then, ahead: Option<&mut Body>) -> Done {
        self.return_filters(req);
        if self.framing == BodyFraming::Chunked {
            add_trailers(req);
            self.pending.extend_from_slice(b"0\r\n");
            push_trailers(&req.resp, &mut Sink::Http1(&mut self.pending));
            self.pending.extend_from_slice(b"\r\n");
        }
        self.send_then(req, then, ahead).await
    }

    /// Gives the filters back to the response, since `$gzip_ratio` reads their figures.
    fn return_filters(&mut self, req: &mut Request) {
        if req.resp.filters.body.is_empty() {
            std::mem::swap(&mut req.resp.filters.body, &mut self.filters);
        } else {
            req.resp.filters.body.append(&mut self.filters);
        }
    }

    /// Ends the outlet and returns its buffers: pending and gathered.
    pub(super) fn end(mut self, req: &mut Request) -> (Vec<u8>, Vec<u8>) {
        self.return_filters(req);
        (self.pending, self.gathered)
    }

    /// Ends an outlet to memory and returns its bytes.
    pub(super) fn into_memory(self) -> Vec<u8> {
        match self.to {
            Destination::Memory(bytes, _) => bytes,
            Destination::Client => Vec::new(),
        }
    }
}

/// Returns the number of bytes that pass the filters at once.
pub(super) fn most_at_once(filters: &[Box<dyn BodyFilter>]) -> usize {
    if filters.iter().any(|f| f.expands()) { EXPANDING } else { PIECE }
}

/// Passes bytes through filters in order. Appends the output of the last one to `out`, which must be empty.
pub(super) fn filter(
    req: &mut Request,
    filters: &mut [Box<dyn BodyFilter>],
    bytes: &[u8],
    follows: Follows,
    out: &mut Vec<u8>,
) -> Done {
    let Some((first, others)) = filters.split_first_mut() else {
        out.extend_from_slice(bytes);
        return Ok(());
    };
    let mut fed = feed(first, bytes, follows, out);
    if !others.is_empty() {
        let mut input = req.take_buf();
        for f in others {
            if fed.is_err() {
                break;
            }
            std::mem::swap(&mut input, out);
            out.clear();
            fed = feed(f, &input, follows, out);
        }
        req.give_buf(input);
    }
    fed.map_err(|FilterError(what)| {
        req.log(Level::Error, &format!("{what} while sending response to client"));
        Broken::Connection
    })
}

/// Passes bytes through one filter, and flushes it before a pause.
fn feed(
    filter: &mut Box<dyn BodyFilter>,
    bytes: &[u8],
    follows: Follows,
    out: &mut Vec<u8>,
) -> Result<(), FilterError> {
    filter.feed(bytes, follows == Follows::End, out)?;
    if follows == Follows::Pause { filter.flush(out) } else { Ok(()) }
}

/// Appends content; as a chunk if the framing is chunked (RFC 9112, section 7.1).
fn frame(bytes: &[u8], framing: BodyFraming, out: &mut Vec<u8>) {
    // A chunk of length zero would end the body.
    if bytes.is_empty() {
        return;
    }
    if framing != BodyFraming::Chunked {
        out.extend_from_slice(bytes);
        return;
    }
    // The length in hexadecimal digits, without leading zeros.
    let digits = (usize::BITS - bytes.len().leading_zeros()).div_ceil(4);
    for i in (0..digits).rev() {
        out.push(b"0123456789abcdef"[bytes.len() >> (4 * i) & 15]);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}
