//! The client's body on its way to an upstream: before the head of the response, and beside the response where that begins
//! earlier than the body ends. Over HTTP/1 and FastCGI that is a body which is passed on as it comes (nginx:
//! proxy_request_buffering off), over HTTP/2 any. Comes from `exchange.rs`, and from `stream.rs` once there is a head.

use super::codec::http2;
use super::codec::protocol::Framing;
use super::conn::Conn;
use crate::body::{self, BodyError};
use crate::request::Request;
use forebay_net::wait::{For, Waited};
use forebay_net::wire::Watch;
use rustix::io::Errno;
use std::os::unix::fs::FileExt;
use std::task::Poll;
use std::time::{Duration, Instant};

/// What is still to be sent of a request.
#[derive(Debug)]
pub struct Upload {
    framing: Framing,
    source: Source,
    /// Framed bytes, of which `at` are written; content, of which `at` are in frames, where the connection makes those.
    out: Vec<u8>,
    at: usize,
    piece: Vec<u8>,
    left: Left,
    /// What came with the head leaves together with it.
    together: bool,
    send_timeout: Duration,
    turns: u32,
}

/// Turns after which others of the thread have theirs, however fast both sides are.
const TURNS: u32 = 64;

/// Most bytes of a kept body that are taken at once.
const PIECE: usize = 64 * 1024;

/// Where the content comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// From the client, as it sends it.
    Client,
    /// From what was read of it before; so many bytes are taken.
    Kept(u64),
}

/// What is not to be had yet, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Content,
    /// All that was announced has come, but the end of its HTTP/2 stream has not.
    End,
    Nothing,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There is more to be sent.
    More,
    /// All is sent.
    All,
    /// The upstream has something to say; that comes first.
    Answer,
    /// The upstream reads no more, but has something to say.
    Unwanted,
}

/// What writing came to.
enum Written {
    All,
    /// The server takes no more content for now.
    NoWindow,
    /// The response is over.
    Over,
}

/// Why a body cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It cannot be read, which has been logged.
    Body(BodyError),
    /// The client is gone.
    ClientGone,
    /// The upstream took nothing for too long.
    Timeout,
    /// It cannot be sent.
    Send(Errno),
}

impl From<BodyError> for Stopped {
    fn from(e: BodyError) -> Stopped {
        Stopped::Body(e)
    }
}

impl Upload {
    /// Begins with the head of a request, and with what is remembered of its body. `send_timeout`: how long the upstream may take nothing.
    pub fn new(req: &Request, head: &[u8], framing: Framing, send_timeout: Duration) -> Upload {
        let asks = req.head.expect_continue && !req.body.continued;
        let together = req.body.is_buffered(&req.head.buf) && !asks;
        let mut out = head.to_vec();
        // What another server was given that did not take it.
        framing.piece(&mut out, &req.body.stored.mem);
        Upload { framing, together, ..Upload::of(Source::Client, out, send_timeout) }
    }

    /// The body that was read before, in frames of HTTP/2.
    pub fn kept(send_timeout: Duration) -> Upload {
        Upload::of(Source::Kept(0), Vec::new(), send_timeout)
    }

    /// Content in frames of HTTP/2.
    pub fn bytes(content: &[u8], send_timeout: Duration) -> Upload {
        Upload { left: Left::Nothing, ..Upload::of(Source::Kept(0), content.to_vec(), send_timeout) }
    }

    fn of(source: Source, out: Vec<u8>, send_timeout: Duration) -> Upload {
        Upload {
            framing: Framing::Frames,
            source,
            out,
            at: 0,
            piece: Vec::new(),
            left: Left::Content,
            together: false,
            send_timeout,
            turns: 0,
        }
    }

    /// Sends what has come, or waits for more. May be dropped where it waits, once the client need not be told to go on.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn pass(&mut self, req: &mut Request, conn: &Conn, watch: &mut Watch) -> Result<Turn, Stopped> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS) {
            req.thread.clone().io.poller.yield_now().await;
        }
        if std::mem::take(&mut self.together)
            && let Some(read) = at_once(self.read(req, conn)).await
        {
            return read;
        }
        if let Some(turn) = self.write(req, conn, watch).await? {
            return Ok(turn);
        }
        if self.left == Left::Nothing {
            return Ok(Turn::All);
        }
        self.read(req, conn).await
    }

    /// The same as far as it goes without waiting; `None`: no further for now.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn pass_at_once(&mut self, req: &mut Request, conn: &Conn) -> Option<Result<Turn, Stopped>> {
        at_once(self.pass(req, conn, &mut Watch::Nothing)).await
    }

    /// Ready when there may be something to do.
    pub fn poll(&self, req: &Request, conn: &Conn, cx: &mut std::task::Context<'_>) -> Poll<()> {
        let wire = conn.wire();
        let waits = self.at < self.out.len();
        if let Some(mut link) = http2::link(conn) {
            if !link.out().is_empty() || wire.has_unsent() {
                return wire.poll_writable(&req.thread.io, false, cx);
            }
            if waits {
                // Without room the server has to give some first, which is read with the response.
                return if link.sendable() > 0 { Poll::Ready(()) } else { Poll::Pending };
            }
        } else if waits || wire.has_unsent() {
            return wire.poll_writable(&req.thread.io, false, cx);
        }
        match self.source {
            Source::Client => req.conn.wire.poll_readable(&req.thread.io, false, cx),
            Source::Kept(_) => Poll::Ready(()),
        }
    }

    /// Writes what is framed, as far as the windows of a server of HTTP/2 allow. `None`: all of it.
    async fn write(
        &mut self,
        req: &mut Request,
        conn: &Conn,
        watch: &mut Watch,
    ) -> Result<Option<Turn>, Stopped> {
        loop {
            let wrote = match self.framing {
                Framing::Frames => self.send_frames(req, conn),
                _ => self.send(req, conn),
            };
            let what = match wrote {
                Ok(Written::All) => {
                    self.out.clear();
                    self.at = 0;
                    return Ok(None);
                }
                Ok(Written::Over) => return Ok(Some(Turn::Unwanted)),
                Ok(Written::NoWindow) => For::Read,
                Err(Errno::AGAIN) => For::Both,
                // What it said before it stopped reading is still worth having.
                Err(Errno::PIPE | Errno::CONNRESET) if !conn.reused && conn.has_input() => {
                    return Ok(Some(Turn::Unwanted));
                }
                Err(e) => return Err(Stopped::Send(e)),
            };
            match conn.wait(what, Instant::now() + self.send_timeout, watch).await {
                Waited::Ready if conn.readable() => return Ok(Some(Turn::Answer)),
                Waited::Ready => {}
                Waited::Timeout => return Err(Stopped::Timeout),
                Waited::ClientGone => return Err(Stopped::ClientGone),
            }
        }
    }

    /// Writes what is framed, without waiting.
    fn send(&mut self, req: &mut Request, conn: &Conn) -> Result<Written, Errno> {
        while self.at < self.out.len() || conn.wire().has_unsent() {
            let sent = conn.send(self.out.get(self.at..).unwrap_or_default())?.bytes;
            self.at += sent;
            if let Some(a) = req.modules.upstream.current() {
                a.sent += sent as u64;
            }
        }
        Ok(Written::All)
    }

    /// Puts content into frames, and writes them, without waiting.
    fn send_frames(&mut self, req: &mut Request, conn: &Conn) -> Result<Written, Errno> {
        let last = self.left == Left::Nothing;
        loop {
            {
                let mut link = http2::link(conn).ok_or(Errno::BADF)?;
                if link.is_over() {
                    return Ok(Written::Over);
                }
                self.at += link.content(self.out.get(self.at..).unwrap_or_default(), last);
            }
            let (sent, done) = http2::send_frames(conn);
            if let Some(a) = req.modules.upstream.current() {
                a.sent += sent;
            }
            done?;
            let link = http2::link(conn).ok_or(Errno::BADF)?;
            if self.at == self.out.len() && (!last || link.is_sent()) {
                return Ok(Written::All);
            }
            if link.sendable() == 0 {
                return Ok(Written::NoWindow);
            }
        }
    }

    /// Takes the next piece of a body that was read before.
    fn take_kept(&mut self, req: &Request, at: u64) -> Result<Turn, Stopped> {
        let stored = &req.body.stored;
        let failed = Stopped::Body(BodyError::Status(500));
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let n = match (stored.mem.get(from..), &stored.file) {
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
        if n == 0 && at < stored.len() {
            return Err(failed);
        }
        self.source = Source::Kept(at);
        self.left = if at < stored.len() { Left::Content } else { Left::Nothing };
        Ok(Turn::More)
    }

    /// Frames the next piece of the body.
    async fn read(&mut self, req: &mut Request, conn: &Conn) -> Result<Turn, Stopped> {
        if let Source::Kept(at) = self.source {
            return self.take_kept(req, at);
        }
        if self.left == Left::End {
            if !body::wait_for_end(req, conn).await? {
                return Ok(Turn::Answer);
            }
            self.left = Left::Nothing;
        } else {
            self.piece.clear();
            let Some(more) = body::read_piece_beside(req, &mut self.piece, conn).await? else {
                return Ok(Turn::Answer);
            };
            let follows = body::follows(req, &mut self.piece, more)?;
            remember(req, &self.piece);
            if self.out.is_empty() && self.framing == Framing::Frames {
                std::mem::swap(&mut self.out, &mut self.piece);
            } else {
                self.framing.piece(&mut self.out, &self.piece);
            }
            self.left = match follows {
                Some(true) => Left::Content,
                // An end that the server is told cannot be taken back.
                None if self.framing.ends_apart() => Left::End,
                _ => Left::Nothing,
            };
        }
        if self.left == Left::Nothing {
            self.framing.end(&mut self.out);
        }
        Ok(Turn::More)
    }
}

/// What a future gives when it is polled once.
async fn at_once<T>(f: impl Future<Output = T>) -> Option<T> {
    let mut f = std::pin::pin!(f);
    std::future::poll_fn(|cx| match f.as_mut().poll(cx) {
        Poll::Ready(v) => Poll::Ready(Some(v)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Keeps a piece of a body that is passed on as it comes for `$request_body`, if all of it fits.
pub fn remember(req: &mut Request, piece: &[u8]) {
    let room = {
        let http = req.http();
        http.location(req).settings.core.client_body_buffer_size.0
    };
    if req.body.len <= room {
        req.body.stored.mem.extend_from_slice(piece);
    } else {
        req.body.stored.mem.clear();
    }
}
