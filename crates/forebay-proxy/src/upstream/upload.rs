//! Sends the client's body to an upstream: before the head of the response, and together with the response if that begins before
//! the body ends. Over HTTP/1 and FastCGI it sends bodies that are passed on as they come (nginx: proxy_request_buffering
//! off), over HTTP/2 and HTTP/3 all bodies. Called by `exchange.rs`, and by `stream.rs` once there is a head.

use super::CALL;
use forebay_core::upstream::conn::Conn;
use forebay_net::wait::{For, Waited};
use forebay_net::wire::Watch;
use forebay_server::body::{self, BodyError, Input, Piece};
use forebay_server::request::Request;
use rustix::io::Errno;
use std::task::Poll;
use std::time::Duration;

/// Rest of a request that is still to be sent.
#[derive(Debug)]
pub struct Upload {
    source: ContentSource,
    /// Framed bytes, of which `at` are written.
    out: Vec<u8>,
    at: usize,
    piece: Vec<u8>,
    left: Untaken,
    /// `true` if content that came with the head is sent together with it.
    together: bool,
    send_timeout: Duration,
    turns: u32,
}

/// Number of turns after which other requests of the thread get a chance to run.
const TURNS: u32 = 64;

/// Largest number of bytes of a kept body that are taken at once.
const PIECE: usize = 64 * 1024;

/// Least number of bytes to come for which content passes inside the kernel where possible: the copies saved outweigh the
/// calls.
const LONG: u64 = 32 * 1024;

/// Largest number of bytes that pass inside the kernel at once.
const STRETCH: usize = 256 * 1024;

/// Source of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentSource {
    /// The client, as it sends it.
    Client,
    /// The body that was read before, of which this many bytes are taken.
    Kept(u64),
}

/// Part of the content that has not been taken from its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Untaken {
    Content,
    /// Only the end of the client's HTTP/2 stream: all announced bytes have come.
    End,
    Nothing,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There is more to be sent.
    More,
    /// All is sent.
    All,
    /// The upstream has sent something, which is to be read first.
    Answer,
    /// The upstream reads no more, but has sent something.
    Unwanted,
}

/// Result of a write.
enum WriteResult {
    All,
    /// The connection has no room for now.
    NoRoom,
    /// The server reads no more.
    Over,
}

/// Reason for which a body cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The body cannot be read, which has been logged.
    Body(BodyError),
    /// The client is gone.
    ClientGone,
    /// The upstream took nothing for too long.
    Timeout,
    /// The body cannot be sent.
    Send(Errno),
}

impl From<BodyError> for Stopped {
    fn from(e: BodyError) -> Stopped {
        Stopped::Body(e)
    }
}

impl Upload {
    /// Begins with the head of a request, and with the part of its body that is remembered. `send_timeout`: longest time for
    /// which the upstream may read nothing.
    pub fn new(req: &Request, head: &[u8], send_timeout: Duration) -> Upload {
        let asks = req.head.expect_continue && !req.body.continued;
        // Content in the buffer of the head can leave in the same write as the head. A client that waits for 100
        // (Continue) has sent none.
        let together = req.body.is_buffered(&req.head.buf) && !asks;
        let mut out = head.to_vec();
        // Another server was given this part of the body before, but did not act upon it.
        CALL.of(req).codec.push_content(&req.body.stored.mem, &mut out);
        Upload { together, ..Upload::of(ContentSource::Client, out, send_timeout) }
    }

    /// Sends the body that was read before, in frames.
    pub fn kept(send_timeout: Duration) -> Upload {
        Upload::of(ContentSource::Kept(0), Vec::new(), send_timeout)
    }

    /// Sends content in frames.
    pub fn bytes(content: &[u8], send_timeout: Duration) -> Upload {
        Upload {
            left: Untaken::Nothing,
            ..Upload::of(ContentSource::Kept(0), content.to_vec(), send_timeout)
        }
    }

    fn of(source: ContentSource, out: Vec<u8>, send_timeout: Duration) -> Upload {
        Upload {
            source,
            out,
            at: 0,
            piece: Vec::new(),
            left: Untaken::Content,
            together: false,
            send_timeout,
            turns: 0,
        }
    }

    /// Sends content that has come, or waits for more. May be dropped while it waits, except while it asks the client to
    /// continue.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn pass(&mut self, req: &mut Request, conn: &Conn, watch: &mut Watch) -> Result<Turn, Stopped> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS) {
            req.thread.clone().io.poller.yield_now().await;
        }
        // Head and content leave in one segment if the content is there already. Nothing waits for it here.
        if std::mem::take(&mut self.together)
            && let Some(read) = at_once(self.read(req, conn)).await
        {
            return read;
        }
        if let Some(turn) = self.write(req, conn, watch).await? {
            return Ok(turn);
        }
        if self.left == Untaken::Nothing {
            if CALL.of(req).codec.facts().is_multiplexed {
                // HTTP/2 and HTTP/3 mark the end by a flag of the stream rather than by bytes.
                conn.wire().end();
            }
            return Ok(Turn::All);
        }
        if self.can_splice(req, conn)
            && let Some(turn) = self.splice(req, conn).await
        {
            return turn;
        }
        self.read(req, conn).await
    }

    /// Returns `true` if much content follows that may pass inside the kernel: unchanged, and remembered for no other server.
    fn can_splice(&self, req: &Request, conn: &Conn) -> bool {
        // Content may stay in the kernel only if it is sent unchanged and is too long to be remembered, since bytes that
        // were not read cannot go to another server. The client of an unanswered `Expect` sends nothing yet.
        let left = req.body.left(&req.head.buf);
        let codec = CALL.of(req).codec;
        codec.sends_plain()
            && !codec.facts().is_multiplexed
            && self.source == ContentSource::Client
            && left >= LONG
            && req.body.len + left > memory(req)
            && (req.body.continued || !req.head.expect_continue)
            && req.conn.wire.has_sendfile()
            && conn.wire().has_sendfile()
    }

    /// Passes content that has come on inside the kernel. What the server does not take is framed. Returns `None` if the content
    /// has to be read.
    async fn splice(&mut self, req: &mut Request, conn: &Conn) -> Option<Result<Turn, Stopped>> {
        let thread = req.thread.clone();
        let want = usize::try_from(req.body.left(&[])).unwrap_or(usize::MAX).min(STRETCH);
        let filled = req.conn.wire.fill_pipe(&thread.io, &mut thread.io.pipe.borrow_mut(), want);
        let n = match filled {
            Ok(n) if n > 0 => n as u64,
            Err(Errno::AGAIN) => {
                let came = body::client_comes(req, Some(conn)).await;
                return Some(match came {
                    Ok(Input::Client) => Ok(Turn::More),
                    Ok(Input::Upstream) => Ok(Turn::Answer),
                    Err(e) => Err(Stopped::from(e)),
                });
            }
            // At the end, after an error or without a pipe, an ordinary read finds out what is the case.
            _ => return None,
        };
        req.body.passed(n);
        req.tally.received += n;
        if req.body.done() {
            self.left = Untaken::Nothing;
        }
        let mut pipe = thread.io.pipe.borrow_mut();
        let sent = conn.send_pipe(&mut pipe);
        if let Some(a) = req.modules.upstream.current() {
            a.sent += sent as u64;
        }
        // The bytes have left the client's connection, so a failure to take them out of the pipe loses them.
        Some(pipe.take(&mut self.out).map(|()| Turn::More).map_err(Stopped::Send))
    }

    /// Sends content as far as possible without waiting. Returns `None` if it would have to wait.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn pass_at_once(&mut self, req: &mut Request, conn: &Conn) -> Option<Result<Turn, Stopped>> {
        at_once(self.pass(req, conn, &mut Watch::Nothing)).await
    }

    /// Polls for readiness of the side that the upload depends on.
    pub fn poll(&self, req: &Request, conn: &Conn, cx: &mut std::task::Context<'_>) -> Poll<()> {
        let wire = conn.wire();
        let waits = self.at < self.out.len();
        if waits || wire.has_unsent() {
            return wire.poll_writable(&req.thread.io, cx);
        }
        match self.source {
            ContentSource::Client => req.conn.wire.poll_readable(&req.thread.io, cx),
            // A kept body is always ready, so the budget of the task decides when other requests have their turn.
            ContentSource::Kept(_) => req.thread.io.poller.spend(cx),
        }
    }

    /// Writes framed content as far as the server takes it. Returns `None` if all of it is written.
    async fn write(
        &mut self,
        req: &mut Request,
        conn: &Conn,
        watch: &mut Watch,
    ) -> Result<Option<Turn>, Stopped> {
        loop {
            match self.write_at_once(req, conn)? {
                WriteResult::All => {
                    self.out.clear();
                    self.at = 0;
                    return Ok(None);
                }
                WriteResult::Over => return Ok(Some(Turn::Unwanted)),
                WriteResult::NoRoom => {}
            }
            match conn.wait(For::Both, req.thread.io.poller.after(self.send_timeout), watch).await {
                // A server that takes nothing may be answering already. It may never read the rest, so the answer is read
                // first.
                Waited::Ready if conn.readable() => return Ok(Some(Turn::Answer)),
                Waited::Ready => {}
                Waited::Timeout => return Err(Stopped::Timeout),
                Waited::ClientGone => return Err(Stopped::ClientGone),
            }
        }
    }

    fn write_at_once(&mut self, req: &mut Request, conn: &Conn) -> Result<WriteResult, Stopped> {
        match self.send(req, conn) {
            Ok(written) => Ok(written),
            Err(Errno::AGAIN) => Ok(WriteResult::NoRoom),
            // The server has stopped the stream, and its response may follow.
            Err(Errno::PIPE) if CALL.of(req).codec.facts().is_multiplexed => Ok(WriteResult::Over),
            // The server may have answered before it stopped reading, for example with 413.
            Err(Errno::PIPE | Errno::CONNRESET) if !conn.reused && conn.has_input() => Ok(WriteResult::Over),
            Err(e) => Err(Stopped::Send(e)),
        }
    }

    /// Writes framed content without waiting.
    fn send(&mut self, req: &mut Request, conn: &Conn) -> Result<WriteResult, Errno> {
        while self.at < self.out.len() || conn.wire().has_unsent() {
            let sent = conn.send(self.out.get(self.at..).unwrap_or_default())?.bytes;
            self.at += sent;
            if let Some(a) = req.modules.upstream.current() {
                a.sent += sent as u64;
            }
        }
        Ok(WriteResult::All)
    }

    /// Takes the next piece of a body that was read before.
    fn take_kept(&mut self, req: &Request, at: u64) -> Result<Turn, Stopped> {
        let stored = &req.body.stored;
        let failed = Stopped::Body(BodyError::Status(500));
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let n = match (stored.mem.get(from..), stored.file()) {
            (Some(mem), _) if !mem.is_empty() => {
                let piece = mem.get(..PIECE).unwrap_or(mem);
                self.out.extend_from_slice(piece);
                piece.len()
            }
            (_, Some(file)) if at < stored.len() => {
                self.out.resize(PIECE, 0);
                let n = file.read_at(&mut self.out, at - stored.mem.len() as u64).map_err(|_| failed)?;
                self.out.truncate(n);
                n
            }
            _ => 0,
        };
        let at = at + n as u64;
        // A file that is shorter than it was must not end the request, which would look complete to the server.
        if n == 0 && at < stored.len() {
            return Err(failed);
        }
        self.source = ContentSource::Kept(at);
        self.left = if at < stored.len() { Untaken::Content } else { Untaken::Nothing };
        Ok(Turn::More)
    }

    /// Takes and frames the next piece of the body.
    async fn read(&mut self, req: &mut Request, conn: &Conn) -> Result<Turn, Stopped> {
        let turn = match (self.source, self.left) {
            (ContentSource::Kept(at), _) => return self.take_kept(req, at),
            (ContentSource::Client, Untaken::End) => self.read_end(req, conn).await?,
            (ContentSource::Client, _) => self.read_piece(req, conn).await?,
        };
        if turn == Turn::More && self.left == Untaken::Nothing {
            CALL.of(req).codec.push_end(&mut self.out);
        }
        Ok(turn)
    }

    /// Waits for the end of the client's HTTP/2 stream.
    async fn read_end(&mut self, req: &mut Request, conn: &Conn) -> Result<Turn, Stopped> {
        if body::wait_for_end(req, conn).await? == Input::Upstream {
            return Ok(Turn::Answer);
        }
        self.left = Untaken::Nothing;
        Ok(Turn::More)
    }

    async fn read_piece(&mut self, req: &mut Request, conn: &Conn) -> Result<Turn, Stopped> {
        self.piece.clear();
        let piece = body::read_piece_beside(req, &mut self.piece, conn).await?;
        if piece == Piece::Upstream {
            return Ok(Turn::Answer);
        }
        let rest = body::follows(req, &mut self.piece, piece)?;
        remember(req, &self.piece);
        let codec = CALL.of(req).codec;
        // Such content has no bytes between its pieces, so swapping the buffers saves a copy.
        if self.out.is_empty() && codec.sends_plain() {
            std::mem::swap(&mut self.out, &mut self.piece);
        } else {
            codec.push_content(&self.piece, &mut self.out);
        }
        self.left = match rest {
            body::Rest::Content => Untaken::Content,
            // The end is sent only once it is certain, since it cannot be taken back.
            body::Rest::End if codec.facts().ends_apart => Untaken::End,
            body::Rest::End | body::Rest::Nothing => Untaken::Nothing,
        };
        Ok(Turn::More)
    }
}

/// Polls a future once.
async fn at_once<T>(f: impl Future<Output = T>) -> Option<T> {
    let mut f = std::pin::pin!(f);
    std::future::poll_fn(|cx| match f.as_mut().poll(cx) {
        Poll::Ready(v) => Poll::Ready(Some(v)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Returns the length up to which a body is kept in memory.
fn memory(req: &Request) -> u64 {
    let http = req.http();
    http.location(req).settings.core.client_body_buffer_size.0
}

/// Remembers a piece of a body that is passed on as it comes, if all of the body fits: for `$request_body`, and for another server.
pub fn remember(req: &mut Request, piece: &[u8]) {
    if req.body.len <= memory(req) {
        req.body.stored.mem.extend_from_slice(piece);
    } else {
        // A part of a body is of no use, neither for another server nor for `$request_body`.
        req.body.stored.mem.clear();
    }
}
