//! The client's body on its way to an upstream while it comes (nginx: proxy_request_buffering off): before the head of the
//! response, and beside the response where that begins earlier than the body ends. Comes from `exchange.rs`, and from
//! `stream.rs` once there is a head.

use super::conn::{Conn, For, Waited, Watch};
use super::protocol::Framing;
use crate::body::{self, BodyError};
use crate::request::Request;
use rustix::io::Errno;
use std::task::Poll;
use std::time::{Duration, Instant};

/// What is still to be sent of a request.
#[derive(Debug)]
pub struct Upload {
    framing: Framing,
    /// Framed bytes, of which `at` are written.
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

/// What the client has not sent yet, as far as is known.
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
    /// Begins with the head of a request. `send_timeout`: how long the upstream may take nothing.
    pub fn new(req: &Request, head: &[u8], framing: Framing, send_timeout: Duration) -> Upload {
        let asks = req.head.expect_continue && !req.body.continued;
        Upload {
            framing,
            out: head.to_vec(),
            at: 0,
            piece: Vec::new(),
            left: Left::Content,
            together: req.body.is_buffered(&req.head.buf) && !asks,
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
            req.thread.clone().reactor.yield_now().await;
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
        at_once(self.pass(req, conn, &mut Watch::Nobody)).await
    }

    /// Ready when there may be something to do.
    pub fn poll(&self, req: &Request, conn: &Conn, cx: &mut std::task::Context<'_>) -> Poll<()> {
        let wire = conn.wire();
        if self.at < self.out.len() || wire.owes() {
            return wire.poll_writable(&req.thread, false, cx);
        }
        req.conn.wire.poll_readable(&req.thread, false, cx)
    }

    /// Writes what is framed. `None`: all of it.
    async fn write(
        &mut self,
        req: &mut Request,
        conn: &Conn,
        watch: &mut Watch,
    ) -> Result<Option<Turn>, Stopped> {
        while self.at < self.out.len() || conn.wire().owes() {
            match conn.send(self.out.get(self.at..).unwrap_or_default()) {
                Ok(sent) => {
                    self.at += sent.bytes;
                    if let Some(a) = req.modules.upstream.current() {
                        a.sent += sent.bytes as u64;
                    }
                }
                Err(Errno::AGAIN) => {
                    match conn.wait(For::Both, Instant::now() + self.send_timeout, watch).await {
                        Waited::Ready if conn.readable() => return Ok(Some(Turn::Answer)),
                        Waited::Ready => {}
                        Waited::Timeout => return Err(Stopped::Timeout),
                        Waited::ClientGone => return Err(Stopped::ClientGone),
                    }
                }
                // What it said before it stopped reading is still worth having.
                Err(Errno::PIPE | Errno::CONNRESET) if !conn.reused && conn.has_input() => {
                    return Ok(Some(Turn::Unwanted));
                }
                Err(e) => return Err(Stopped::Send(e)),
            }
        }
        self.out.clear();
        self.at = 0;
        Ok(None)
    }

    /// Frames the next piece of the body.
    async fn read(&mut self, req: &mut Request, conn: &Conn) -> Result<Turn, Stopped> {
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
            self.framing.piece(&mut self.out, &self.piece);
            self.left = match follows {
                Some(true) => Left::Content,
                // An end that the server is told cannot be taken back.
                None if self.framing == Framing::Records => Left::End,
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
