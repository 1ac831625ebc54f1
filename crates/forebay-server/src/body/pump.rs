//! The loop that moves the content of a response to its client. Hot path.
//!
//! ```text
//!  Source                      Pump                              Outlet
//!  parts of the response  -->  read a piece, what is stored  --> filter, frame, keep to the rate,
//!  body of an upstream         in a file included;               send once enough is pending
//!  entry of a cache            go on with the next segment;
//!                              own filters and SSI page;
//!                              wait for more; be fair
//! ```
//!
//! Every body that does not leave in one write (`send.rs`) passes through here, whatever its source. Shortcuts for
//! unchanged bytes are tried before the general way of the loop ([`Shortcuts`]): files leave by sendfile, an upstream's bytes
//! are read into the buffer that they are sent from, or pass through a pipe inside the kernel.
//!
//! A response with the content of several requests (`compose.rs`) has a pump for each of them, and one outlet for all. The
//! page of such a response (`ssi`) *pushes* its text into the outlet, since a command in the midst of a piece may start
//! another pump. So the outlet is no part of the pump, and page and own filters are a stage of the pump ([`Stage`]).
//!
//! While the client takes nothing or the rate holds bytes back, the source's body is read ahead as far as the
//! configuration allows.

use super::compose::Stage;
use super::files::{STRETCH, Stretch, send_file};
use super::outlet::{Follows, Outlet, PIECE};
use super::source::{Progress, Source};
use super::write::{Broken, Done, client_gone_within};
use crate::request::Request;
use crate::response::streamed::{Body, Pulled};
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_net::wire::Then;
use forebay_sys::errno::errno_text;
use std::rc::Rc;
use std::time::Duration;

/// Number of pending bytes that leave before the next segment has come (nginx: postpone_output).
const POSTPONED: usize = 1460;

/// Number of bytes after which other requests of the thread run.
const TURN: u64 = 2 * 1024 * 1024;

/// Moves the content of one response to an outlet.
pub(super) struct Pump<'p> {
    thread: Rc<Thread>,
    source: Source,
    /// Filters and commands before the outlet, if the response is part of another one.
    stage: Option<Stage<'p>>,
    out: &'p mut Outlet,
    shortcuts: Shortcuts,
    /// Bytes that have been read but not filtered yet. Unused with [`Shortcuts::direct`].
    piece: Vec<u8>,
    /// Number of bytes that the client had received when other requests of the thread last ran.
    turn: u64,
}

/// Shortcuts for bytes that leave unchanged.
struct Shortcuts {
    /// Files leave by sendfile.
    sendfile: bool,
    /// Bytes are read directly into the buffer that they are sent from.
    direct: bool,
    /// Bytes of an upstream may pass inside the kernel.
    pipe: bool,
    /// Bytes that came with the head wait, and leave together with the content that follows through the pipe.
    hold: bool,
}

/// Result of reading.
struct PieceRead {
    got: Progress,
    /// Number of pending bytes that are sent without waiting for more.
    enough: usize,
}

impl<'p> Pump<'p> {
    /// Takes the content of a response for an outlet.
    pub(super) fn new(req: &mut Request, out: &'p mut Outlet) -> Pump<'p> {
        let mut pump = Pump::staged(req, out, None);
        pump.shortcuts = pump.find_shortcuts(req);
        pump
    }

    /// Takes the content of a response that passes a stage first.
    pub(super) fn staged(req: &mut Request, out: &'p mut Outlet, stage: Option<Stage<'p>>) -> Pump<'p> {
        let source = Source::of(req);
        let shortcuts = Shortcuts { sendfile: false, direct: false, pipe: false, hold: false };
        Pump {
            thread: req.thread.clone(),
            source,
            stage,
            out,
            shortcuts,
            piece: Vec::new(),
            turn: req.tally.sent,
        }
    }

    fn find_shortcuts(&mut self, req: &Request) -> Shortcuts {
        let sendfile = self.out.is_transparent();
        let direct = sendfile && self.out.is_unpaced();
        // A small fixed send buffer may hold a single segment. The client's kernel delays its acknowledgement for 40 ms, and every
        // segment of the response would wait for that.
        let pipe =
            direct && req.conn.wire.has_sendfile() && !req.conn.client.has_fixed_send_buffer(&req.conf);
        let hold = pipe && self.source.body().is_some_and(|b| b.can_pass());
        Shortcuts { sendfile, direct, pipe, hold }
    }

    /// Moves the content until it is over.
    pub(super) async fn run(&mut self, req: &mut Request) -> Done {
        loop {
            if self.shortcuts.sendfile
                && let Some(stretch) = self.source.next_file()
            {
                self.send_file(req, stretch).await?;
                self.be_fair(req).await;
                continue;
            }
            let read = self.read(req).await?;
            self.forward(req, &read).await?;
            match read.got {
                Progress::End => return Ok(()),
                Progress::Blocked => self.wait(req).await?,
                _ => self.be_fair(req).await,
            }
        }
    }

    /// Sends the rest of the response after [`Pump::run`].
    pub(super) async fn finish(&mut self, req: &mut Request, then: Then) -> Done {
        self.out.finish(req, then, self.source.body()).await
    }

    /// Ends the source. The own filters go back to the response.
    pub(super) async fn end(self, req: &mut Request) {
        self.thread.give_buffer(self.piece);
        self.source.end(req).await;
        if let Some(stage) = self.stage {
            stage.end(req);
        }
    }

    /// Reads a piece, or has bytes pass inside the kernel.
    async fn read(&mut self, req: &mut Request) -> Result<PieceRead, Broken> {
        // Bytes that stay inside of the kernel cost no copy, so this way is tried first.
        if let Some(got) = self.pass(req) {
            // Bytes that a client did not take inside the kernel are sent before anything else is read.
            return Ok(PieceRead { got: self.follow(req, got).await?, enough: 1 });
        }
        self.borrow_buffers();
        let (into, most) = match self.shortcuts.direct {
            true => (&mut self.out.pending, STRETCH),
            false => (&mut self.piece, PIECE as u64),
        };
        let got = self.source.read(req, into, most).await;
        self.give_text();
        Ok(PieceRead { got: self.follow(req, got).await?, enough: self.out.enough })
    }

    /// Goes on with the next segment of the response when one has ended.
    async fn follow(&mut self, req: &mut Request, got: Progress) -> Result<Progress, Broken> {
        if got == Progress::Failed {
            // Boxed and cold, so that the future of a response that does not fail stays small.
            return Err(Box::pin(self.break_off(req)).await);
        }
        let segments = req.resp.segments.filter(|segments| got == Progress::End && segments.wants_more(req));
        let Some(segments) = segments else { return Ok(got) };
        // Fetching the next segment may take long, and the client need not wait for a segment's worth of bytes meanwhile.
        if self.out.pending.len() >= POSTPONED {
            self.out.flush(req, self.source.body()).await?;
        }
        let Some(next) = segments.next(req).await else { return Err(Broken::Connection) };
        self.source.go_on_with(req, next);
        Ok(Progress::Data)
    }

    /// Passes a piece that has been read to the stage or the outlet.
    async fn forward(&mut self, req: &mut Request, read: &PieceRead) -> Done {
        if self.shortcuts.direct {
            let held = std::mem::take(&mut self.shortcuts.hold);
            let waits = held || self.out.pending.len() < read.enough;
            // At the end, `finish` sends the pending bytes with the right hint for the wire.
            return if read.got == Progress::End || waits { Ok(()) } else { self.flush(req).await };
        }
        let follows = match read.got {
            Progress::End => Follows::End,
            // With `proxy_buffering off`, a filter such as gzip must not hold back bytes that the client waits for.
            Progress::Blocked if self.source.is_unbuffered() => Follows::Pause,
            _ => Follows::More,
        };
        if self.piece.is_empty() && follows == Follows::More {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece);
        let done = self.put(req, &piece, follows).await;
        self.piece = piece;
        self.piece.clear();
        done
    }

    async fn flush(&mut self, req: &mut Request) -> Done {
        self.out.flush(req, self.source.body()).await
    }

    /// Sends the bytes at hand, then waits until the source has more.
    async fn wait(&mut self, req: &mut Request) -> Done {
        self.flush(req).await?;
        self.lend();
        match self.source.wait(req).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Box::pin(self.break_off(req)).await),
        }
    }

    /// Lends the empty buffers to other requests of the thread during a wait.
    fn lend(&mut self) {
        for buffer in [&mut self.out.pending, &mut self.piece] {
            if buffer.is_empty() && buffer.capacity() > 0 {
                self.thread.give_buffer(std::mem::take(buffer));
            }
        }
        self.give_text();
    }

    /// Gives the text of the response back once all of it has been read, since a slow client would keep it for long.
    fn give_text(&mut self) {
        if let Some(text) = self.source.take_text() {
            self.thread.give_buffer(text);
        }
    }

    /// Borrows missing buffers of the thread for a read and its output.
    fn borrow_buffers(&mut self) {
        let pending = &mut self.out.pending;
        let read = if self.shortcuts.direct { &mut *pending } else { &mut self.piece };
        if read.capacity() == 0 {
            *read = self.thread.io.large.take();
        }
        if pending.capacity() == 0 {
            *pending = self.thread.buffers.take();
        }
    }

    /// Sends everything that has come of content that breaks off, including the bytes that filters hold back. Returns the failure of the
    /// response.
    #[cold]
    async fn break_off(&mut self, req: &mut Request) -> Broken {
        let readable = self.source.body().is_some();
        if !readable || client_gone_within(&self.thread, req, Duration::ZERO).await {
            return Broken::Connection;
        }
        let mut done = Ok(());
        if !self.shortcuts.direct {
            let piece = std::mem::take(&mut self.piece);
            done = self.put(req, &piece, Follows::Pause).await;
            self.piece = piece;
            self.piece.clear();
        }
        if done.is_ok() {
            done = self.flush(req).await;
        }
        done.err().unwrap_or(Broken::Content)
    }

    /// Passes bytes to the stage, or to the outlet if there is none.
    async fn put(&mut self, req: &mut Request, bytes: &[u8], follows: Follows) -> Done {
        match &mut self.stage {
            None => self.out.put(req, bytes, follows, self.source.body()).await,
            Some(stage) => Box::pin(stage.put(self.out, req, bytes, follows)).await,
        }
    }

    /// Lets other requests of the thread run, however fast content comes. Stages compute, so they run after each piece.
    async fn be_fair(&mut self, req: &Request) {
        if self.stage.is_some() || req.tally.sent - self.turn >= TURN {
            self.thread.io.poller.yield_now().await;
            self.turn = req.tally.sent;
        }
    }

    /// Sends a stretch of a file, no faster than the rate allows.
    async fn send_file(&mut self, req: &mut Request, mut stretch: Stretch) -> Done {
        let end = stretch.start + stretch.len;
        while stretch.start < end {
            let rest = usize::try_from(end - stretch.start).unwrap_or(usize::MAX);
            // The rate may allow only a part of the stretch at a time.
            stretch.len = self.out.allowed(req, rest, None).await? as u64;
            // The head has to be in the socket before the file, because sendfile bypasses the pending bytes.
            self.out.send_before_file(req).await?;
            send_file(&self.thread, req, &stretch).await?;
            self.out.count(stretch.len);
            stretch.start += stretch.len;
        }
        Ok(())
    }

    /// Passes received content on inside the kernel, after the pending bytes. Bytes that the client does not take become pending bytes.
    /// Returns `None` if content has to be read.
    fn pass(&mut self, req: &mut Request) -> Option<Progress> {
        if !self.shortcuts.pipe {
            return None;
        }
        let body = self.source.next_body()?;
        if !body.can_pass() {
            return None;
        }
        pass(&self.thread, req, &mut self.out.pending, body)
    }
}

fn pass(thread: &Thread, req: &mut Request, pending: &mut Vec<u8>, body: &mut Body) -> Option<Progress> {
    // One pipe serves all connections of the thread. It is empty again at the end, since bytes that do not leave are taken out of it.
    let mut pipe = thread.io.pipe.borrow_mut();
    let got = match body.pass(req, &mut pipe)? {
        Pulled::Data => Progress::Data,
        Pulled::End => Progress::End,
        Pulled::Blocked => return Some(Progress::Blocked),
        _ => return Some(Progress::Failed),
    };
    // The kernel holds a part of a segment back (MSG_MORE), so that the head and the content from the pipe share segments.
    if !pending.is_empty()
        && let Ok(sent) = req.conn.wire.send(&thread.io, pending, Then::More)
    {
        req.tally.sent += sent.bytes as u64;
        pending.drain(..sent.bytes);
    }
    let mut taken = None;
    if pending.is_empty() {
        req.tally.sent += req.conn.wire.send_pipe(&thread.io, &mut pipe) as u64;
    } else {
        taken = body.hold_back(req, &mut pipe).map(|taken| (taken, Progress::Data));
    }
    let (taken, got) = taken.unwrap_or_else(|| (pipe.take(pending), got));
    match taken {
        Ok(()) => Some(got),
        Err(e) => {
            req.log(Level::Alert, &format!("read() of a pipe failed {}", errno_text(e)));
            Some(Progress::Failed)
        }
    }
}
