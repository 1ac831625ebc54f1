//! Bodies that come from an upstream or a cache while they are sent. Hot path.

use super::pace::Pace;
use super::send::{
    Follows, GATHERED, PIECE, after_last, client_gone_within, end_chunks, flush, flush_then, memory,
    piece_limit, push_piece,
};
use crate::modules::slice;
use crate::request::Request;
use crate::thread::Thread;
use crate::upstream::stream::{Body, Pulled};
use forebay_conf::error::Level;
use forebay_net::wire::Then;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes that are sent without waiting for the next slice (nginx: postpone_output).
const POSTPONED: usize = 1460;

/// A body on its way from its source to the client.
struct Relay<'t> {
    thread: &'t Rc<Thread>,
    source: Box<Body>,
    chunked: bool,
    pace: Pace,
    /// Whether the bytes are sent as they come, so that they are read to where they are sent from.
    direct: bool,
    /// Whether bytes may pass inside the kernel.
    passes: bool,
    /// Whether the bytes that came with the head wait for those that are passed on after them.
    hold: bool,
    /// Filtered and framed, not sent yet.
    pending: Vec<u8>,
    /// Read and not filtered yet; unused where `direct`.
    piece: Vec<u8>,
}

/// The connection is of no more use, or the source has failed.
struct Broken;

/// Result of reading from the source.
struct Read {
    pulled: Pulled,
    /// Whether the bytes passed inside the kernel.
    passed: bool,
}

/// Sends head, parts and the bytes of a source. What the client does not take at once is read ahead as far as the
/// configuration allows. Returns `false` if the connection is of no more use.
pub(super) async fn send(
    thread: &Rc<Thread>,
    req: &mut Request,
    head: &[u8],
    source: Box<Body>,
    chunked: bool,
    rate: Option<(u64, u64)>,
) -> bool {
    let direct = req.resp.filters.is_empty() && !chunked && rate.is_none();
    // A small fixed buffer may hold just one segment, for whose acknowledgement the client's kernel takes 40 ms.
    let passes = direct && req.conn.wire.has_sendfile() && !req.conn.client.has_fixed_send_buffer(&req.conf);
    let mut pending = thread.io.large.take();
    pending.extend_from_slice(head);
    let piece = req.take_buf();
    let hold = passes && source.can_pass();
    let pace = Pace::new(rate);
    let mut relay = Relay { thread, source, chunked, pace, direct, passes, hold, pending, piece };
    let mut ok = relay.run(req).await.is_ok();
    if ok {
        if chunked {
            end_chunks(req, &mut relay.pending);
        }
        let then = after_last(req);
        ok = flush_then(thread, req, &mut relay.pending, &mut relay.source, then).await;
    }
    // A response that is stored is read to its end for the next client.
    relay.source.drain(req).await;
    relay.source.abandon(req);
    req.give_buf(relay.piece);
    thread.io.large.give(relay.pending);
    ok
}

impl Relay<'_> {
    /// Sends until the source has ended.
    async fn run(&mut self, req: &mut Request) -> Result<(), Broken> {
        let mut turn = req.sent;
        let mut read = Read { pulled: self.take_parts(req), passed: false };
        loop {
            if read.pulled == Pulled::Blocked {
                read = self.read(req).await;
            }
            read.pulled = self.next_slice(req, read.pulled).await?;
            if read.pulled == Pulled::Failed {
                if !slice::active(req) {
                    self.flush(req).await?;
                }
                return Err(Broken);
            }
            self.forward(req, &read).await?;
            self.piece.clear();
            match read.pulled {
                Pulled::End => return Ok(()),
                Pulled::Blocked => {
                    self.flush(req).await?;
                    if !self.source.wait(req).await {
                        return Err(Broken);
                    }
                }
                _ => {}
            }
            read = Read { pulled: Pulled::Blocked, passed: false };
            if req.sent - turn >= PIECE {
                // Other requests of the thread run, too, however fast the upstream is.
                self.thread.io.poller.yield_now().await;
                turn = req.sent;
            }
        }
    }

    /// Takes the parts of the response that go before the source.
    fn take_parts(&mut self, req: &mut Request) -> Pulled {
        let into = if self.direct { &mut self.pending } else { &mut self.piece };
        let before = into.len();
        for p in std::mem::take(&mut req.resp.body) {
            into.extend_from_slice(memory(&req.resp.text, &p));
        }
        if into.len() == before { Pulled::Blocked } else { Pulled::Data }
    }

    /// Reads from the source, or passes its bytes on inside the kernel.
    async fn read(&mut self, req: &mut Request) -> Read {
        let mut passed = None;
        if self.passes && self.source.can_pass() {
            passed = pass(self.thread, req, &mut self.pending, &mut self.source);
        }
        let into = if self.direct { &mut self.pending } else { &mut self.piece };
        let mut pulled = match passed {
            Some(pulled) => pulled,
            None => self.source.pull(req, into),
        };
        if self.source.unsettled() {
            self.source.settle(req).await;
        }
        if pulled == Pulled::Stored {
            pulled = self.source.load(req, into).await;
        }
        Read { pulled, passed: passed.is_some() }
    }

    /// Goes on with the next slice of the response where one has ended (nginx: slice).
    async fn next_slice(&mut self, req: &mut Request, pulled: Pulled) -> Result<Pulled, Broken> {
        if pulled != Pulled::End || !slice::wants_more(req) {
            return Ok(pulled);
        }
        // Bytes that are there do not wait for the next slice, except for those that nginx would hold back, too.
        if self.pending.len() >= POSTPONED {
            self.flush(req).await?;
        }
        Ok(match Box::pin(slice::next(req)).await {
            Some(next) => {
                self.source.abandon(req);
                *self.source = next;
                Pulled::Data
            }
            None => Pulled::Failed,
        })
    }

    /// Filters, frames and sends what was read, as far as enough has gathered.
    async fn forward(&mut self, req: &mut Request, read: &Read) -> Result<(), Broken> {
        if !self.direct {
            let follows = match read.pulled {
                Pulled::End => Follows::End,
                Pulled::Blocked if self.source.unbuffered() => Follows::Pause,
                _ => Follows::More,
            };
            return self.send_piece(req, follows).await;
        }
        // Bytes that a client did not take inside the kernel are sent before anything else is read.
        let enough = if read.passed { 1 } else { GATHERED };
        let wait = std::mem::take(&mut self.hold) || self.pending.len() < enough;
        if read.pulled == Pulled::End || wait { Ok(()) } else { self.flush(req).await }
    }

    /// Puts the piece through the filters and sends what has gathered, no faster than the rate allows.
    async fn send_piece(&mut self, req: &mut Request, follows: Follows) -> Result<(), Broken> {
        let piece = std::mem::take(&mut self.piece);
        let done = self.send_paced(req, &piece, follows).await;
        self.piece = piece;
        done
    }

    async fn send_paced(&mut self, req: &mut Request, piece: &[u8], follows: Follows) -> Result<(), Broken> {
        let mut rest = piece;
        let filtered = !req.resp.filters.is_empty();
        let limit = if filtered { piece_limit(req) } else { u64::MAX };
        loop {
            let n = match self.pace.allowance((rest.len() as u64).min(limit)) {
                Ok(n) => n as usize,
                Err(_) if rest.is_empty() => 0,
                Err(wait) => {
                    self.wait(req, wait).await?;
                    continue;
                }
            };
            let (now, later) = rest.split_at(n.min(rest.len()));
            rest = later;
            let then = if rest.is_empty() { follows } else { Follows::More };
            if !push_piece(req, now, then, self.chunked, &mut self.pending) {
                self.flush(req).await?;
                return Err(Broken);
            }
            self.pace.sent += now.len() as u64;
            if filtered && then == Follows::More && !now.is_empty() {
                // Filters compute: other requests of the thread run in between.
                self.thread.io.poller.yield_now().await;
            }
            if self.pending.len() >= GATHERED {
                self.flush(req).await?;
            }
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits until more may be sent; the source is read ahead meanwhile.
    async fn wait(&mut self, req: &mut Request, wait: Duration) -> Result<(), Broken> {
        self.flush(req).await?;
        self.source.meanwhile(req, false, Instant::now() + wait).await;
        if client_gone_within(self.thread, req, Duration::ZERO).await { Err(Broken) } else { Ok(()) }
    }

    async fn flush(&mut self, req: &mut Request) -> Result<(), Broken> {
        let sent = flush(self.thread, req, &mut self.pending, &mut self.source).await;
        if sent { Ok(()) } else { Err(Broken) }
    }
}

/// Passes on what has come inside the kernel, behind what is pending; what the client does not take is pending afterwards.
/// `None`: it has to be read.
fn pass(thread: &Thread, req: &mut Request, pending: &mut Vec<u8>, source: &mut Body) -> Option<Pulled> {
    let mut pipe = thread.io.pipe.borrow_mut();
    let pulled = source.pass(req, &mut pipe)?;
    if !matches!(pulled, Pulled::Data | Pulled::End) {
        return Some(pulled);
    }
    if !pending.is_empty()
        && let Ok(sent) = req.conn.wire.send(&thread.io, pending, Then::More)
    {
        req.sent += sent.bytes as u64;
        pending.drain(..sent.bytes);
    }
    if pending.is_empty() {
        req.sent += req.conn.wire.send_pipe(&thread.io, &mut pipe) as u64;
    }
    match pipe.take(pending) {
        Ok(()) => Some(pulled),
        Err(e) => {
            let text = format!("read() of a pipe failed {}", forebay_sys::errno::errno_text(e));
            req.log(Level::Alert, &text);
            Some(Pulled::Failed)
        }
    }
}
