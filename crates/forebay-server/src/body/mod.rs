//! Bodies. This file reads and discards the bodies of requests; `body/pump.rs` and the files around it send the bodies of responses. Hot
//! path.

pub mod compose;
mod files;
mod outlet;
mod pace;
mod pump;
mod send;
mod source;
mod write;

pub use outlet::{Outlet, PIECE};
pub use send::{Attempt, send, send_at_once};
pub use source::{Further, Progress, Source};
pub use write::{Broken, Done, flush_answers, send_continue, write_all, write_last, write_shared};

use crate::config::http::ROOT;
use crate::draft::{Draft, Readable};
use crate::modules::core::{BodyInFile, TempDir};
use crate::phases::Outcome;
use crate::request::Request;
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_core::transfers::{Direction, Over};
use forebay_core::upstream::conn::Conn;
use forebay_http::h1::chunked::{Chunked, Step};
use forebay_http::request::{Framing, Version};
use forebay_sys::errno::errno;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

/// Reading state of a request's body.
#[derive(Debug, Default)]
pub struct RequestBody {
    pub(crate) framing: Framing,
    /// Bytes of a body with a length that are still to come.
    left: u64,
    /// Decoder of chunks, made when it is needed.
    chunked: Option<Box<Chunked>>,
    /// Offset in the head's buffer of the first byte not taken yet.
    at: usize,
    done: bool,
    /// `100 (Continue)` has been sent, or need not be.
    pub continued: bool,
    /// Bytes of content read so far.
    pub len: u64,
    /// The whole body must be in a separate file, which can be renamed.
    pub in_file: bool,
    /// The body is read by [`read_early`].
    is_early: bool,
    /// The whole body, once [`read_all`] has been called.
    pub stored: Stored,
}

/// A body that has been read.
#[derive(Debug, Default)]
pub struct Stored {
    /// `true` if the body is complete.
    pub complete: bool,
    /// Part of the body in memory.
    pub mem: Vec<u8>,
    /// File with the part that did not fit into `client_body_buffer_size`.
    file: BodyFile,
    /// Name of the file (`$request_body_file`).
    pub path: Option<PathBuf>,
    /// Bytes in the file.
    pub in_file: u64,
    /// The file is removed when the request is over.
    remove: bool,
}

/// File of a body.
#[derive(Debug, Default)]
enum BodyFile {
    /// There is none.
    #[default]
    None,
    /// The body is being read.
    Draft(Draft),
    /// The body is complete, and other requests may read it.
    Whole(Readable),
}

impl Stored {
    /// Returns the file with the part that is not in memory.
    pub fn file(&self) -> Option<Readable> {
        match &self.file {
            BodyFile::None => None,
            BodyFile::Draft(draft) => Some(draft.reader()),
            BodyFile::Whole(file) => Some(file.clone()),
        }
    }

    /// Ends the body: its file is not written any more.
    fn end(&mut self) {
        self.complete = true;
        self.file = self.file().map_or(BodyFile::None, BodyFile::Whole);
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.mem.len() as u64 + self.in_file
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Clears the state for the next request.
    fn clear(&mut self) {
        self.complete = false;
        self.mem.clear();
        // One large upload must not make a connection keep its memory for all later requests.
        if self.mem.capacity() > 1 << 16 {
            self.mem = Vec::new();
        }
        self.file = BodyFile::None;
        self.in_file = 0;
        // A shared body (`share`) leaves the file alone, since the request that owns it removes it.
        if let Some(path) = self.path.take()
            && self.remove
        {
            let _ = std::fs::remove_file(path);
        }
        self.remove = false;
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.clear();
    }
}

impl RequestBody {
    /// Starts a body after a head of `len` bytes.
    pub fn begin(&mut self, framing: Framing, len: usize) {
        self.framing = framing;
        self.at = len;
        self.continued = false;
        self.len = 0;
        self.in_file = false;
        self.is_early = false;
        self.stored.clear();
        (self.left, self.done) = match framing {
            Framing::None => (0, true),
            Framing::Length(n) => (n, n == 0),
            Framing::Chunked | Framing::Stream => {
                // The decoder is kept, so that a connection with many chunked bodies allocates it once.
                self.chunked.get_or_insert_default().reset();
                (0, false)
            }
        };
    }

    /// Returns a body for a subrequest: the part of this one that has been read.
    pub fn share(&self) -> RequestBody {
        let s = &self.stored;
        let stored = Stored {
            complete: true,
            mem: s.mem.clone(),
            file: s.file().map_or(BodyFile::None, BodyFile::Whole),
            path: s.path.clone(),
            in_file: s.in_file,
            remove: false,
        };
        RequestBody {
            framing: self.framing,
            at: self.at,
            done: true,
            len: self.len,
            stored,
            ..Default::default()
        }
    }

    /// Removes files at the end of the request.
    pub fn end(&mut self) {
        self.stored.clear();
    }

    /// Returns `true` if bytes that came with the head have not been taken yet.
    pub fn is_buffered(&self, head: &[u8]) -> bool {
        !self.done && self.at < head.len()
    }

    /// Returns `true` if the whole rest is in the head's buffer.
    fn is_whole(&self, head: &[u8]) -> bool {
        let came = head.get(self.at..).unwrap_or_default();
        match self.framing {
            Framing::Length(_) => self.left <= came.len() as u64,
            // Only a scan for the last chunk can tell, because the length of a chunked body is not known before.
            Framing::Chunked => self.chunked.as_ref().is_some_and(|chunks| chunks.has_end(came)),
            Framing::None | Framing::Stream => self.done,
        }
    }

    /// Returns the length to be compared with `client_max_body_size`, as far as it is known before the body is read.
    #[inline]
    pub fn known_len(&self, framing: Framing) -> Option<u64> {
        match framing {
            Framing::Length(n) => Some(n),
            _ => self.is_early.then_some(self.len),
        }
    }

    /// Returns the part of the body in memory (`$request_body`). As in nginx there is none of a body whose early reading has failed.
    pub fn text(&self) -> &[u8] {
        if self.is_early && !self.stored.complete { b"" } else { &self.stored.mem }
    }

    /// Returns `true` if the whole body has been read.
    pub fn done(&self) -> bool {
        self.done
    }

    /// Returns the room for the next read.
    fn room(&self) -> usize {
        match self.framing {
            // The read asks for more than the body has, since the next request may follow it. A read that does not fill its buffer also
            // shows that the socket is empty, which saves a read that would find nothing.
            Framing::Length(_) if self.left > SHORT as u64 => LONG.min(self.left as usize + 1024),
            // A body that is short so far may stay short, so it does not borrow a large buffer.
            Framing::Chunked if self.len > SHORT as u64 => LONG,
            _ => SHORT,
        }
    }

    /// Returns how many bytes of a body with a length are still to be read from the connection. They come unencoded, so that the kernel
    /// can pass them on.
    pub fn left(&self, head: &[u8]) -> u64 {
        if matches!(self.framing, Framing::Length(_)) && self.at >= head.len() { self.left } else { 0 }
    }

    /// Counts bytes of a body with a length that have been passed on unread.
    pub fn passed(&mut self, n: u64) {
        self.left = self.left.saturating_sub(n);
        self.len += n;
        self.done = self.left == 0;
        self.stored.mem.clear();
    }

    /// Moves the place where the rest of the body begins, because the head before it grew by `bytes`.
    pub fn shift(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Returns the bytes of the head's buffer that head and body used.
    pub fn consumed(&self, head: usize) -> usize {
        self.at.max(head)
    }

    /// Parses bytes and appends their content to `out`. Returns how many bytes belonged to the body.
    fn take_into(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Malformed> {
        let before = out.len();
        let used = match self.framing {
            Framing::Chunked => self.take_chunks(input, |content| out.extend_from_slice(content))?,
            _ => {
                let n = self.take(input)?;
                out.extend_from_slice(input.get(..n).unwrap_or_default());
                n
            }
        };
        self.len += (out.len() - before) as u64;
        Ok(used)
    }

    /// Parses bytes. Returns how many belonged to the body.
    fn take(&mut self, input: &[u8]) -> Result<usize, Malformed> {
        match self.framing {
            Framing::None => Ok(0),
            Framing::Stream => Ok(input.len()),
            Framing::Length(_) => {
                let n = self.left.min(input.len() as u64);
                self.left -= n;
                self.done = self.left == 0;
                Ok(n as usize)
            }
            Framing::Chunked => self.take_chunks(input, |_| {}),
        }
    }

    /// Parses chunks and hands their content to `content`. Returns how many bytes belonged to the body.
    fn take_chunks(&mut self, input: &[u8], mut content: impl FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            match self.chunked.get_or_insert_default().decode(rest) {
                Ok(Step::Data { start, end }) => {
                    content(rest.get(start..end).unwrap_or_default());
                    at += end;
                }
                Ok(Step::More) => return Ok(input.len()),
                Ok(Step::End { consumed }) => {
                    self.done = true;
                    return Ok(at + consumed);
                }
                Err(_) => return Err(Malformed),
            }
        }
    }
}

/// A chunked body that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Returns `true` if the whole body has arrived and fits into memory.
pub fn has_come(req: &Request) -> bool {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let (len, whole) = match req.conn.wire.as_mux() {
        // Ask the stream even without `Content-Length`, since it may have content.
        Some(s) => s.whole().map_or((0, false), |len| (len, true)),
        None if req.body.done => (0, true),
        None => (req.head.buf.len().saturating_sub(req.body.at), req.body.is_whole(&req.head.buf)),
    };
    // Streamed bodies are in no file.
    whole && len as u64 <= core.client_body_buffer_size.0 && core.client_body_in_file_only == BodyInFile::Off
}

/// Discards the part of the body that came with the head.
///
/// # Errors
/// [`Malformed`]; the response of the request is a 400 then, unless it has failed before.
pub(crate) fn discard_buffered(req: &mut Request) -> Result<(), Malformed> {
    if req.body.done {
        return Ok(());
    }
    let at = req.body.at;
    match req.body.take(req.head.buf.get(at..).unwrap_or_default()) {
        Ok(n) => {
            req.body.at = at + n;
            req.tally.received += n as u64;
            Ok(())
        }
        // The framing is lost: nobody knows where the next request begins, so nothing after this is read as a request.
        Err(Malformed) => {
            req.log(Level::Error, "client sent invalid chunked body");
            // Marked as done so that no one tries to read the rest of it.
            req.body.done = true;
            // The rest of the head's buffer cannot be trusted. A request that has failed before keeps its status.
            if !req.resp.origin.is_error_page() {
                req.resp.location.clear();
                crate::error_page::built_in(req, 400);
            }
            Err(Malformed)
        }
    }
}

/// Reads and discards the rest of a body.
///
/// # Errors
/// [`Unfinished`].
pub(crate) async fn discard(thread: &Rc<Thread>, req: &mut Request) -> Result<(), Unfinished> {
    let http = req.http();
    let core = &http.location(req).settings.core;
    // nginx bounds the whole of the lingering as well as each wait in it, so that a client cannot hold the connection by sending bytes
    // slowly.
    let end = Instant::now() + core.lingering_time.0;
    let mut scratch = req.take_buf();
    let at = req.body.at;
    let mut goes_on = match req.body.take(req.head.buf.get(at..).unwrap_or_default()) {
        Ok(used) => {
            req.body.at = at + used;
            req.tally.received += used as u64;
            true
        }
        Err(Malformed) => false,
    };
    while !req.body.done && goes_on {
        // A client that sends without a pause would otherwise keep the thread from its other connections.
        thread.io.poller.be_fair().await;
        scratch.clear();
        scratch.reserve(16384);
        goes_on = match req.conn.wire.read(&thread.io, &mut scratch) {
            Ok(n) if n > 0 => discard_bytes(req, &scratch).is_ok(),
            Err(Errno::AGAIN) => {
                let until = (Instant::now() + core.lingering_timeout.0).min(end);
                thread.io.poller.deadline(until, req.conn.wire.wait_readable(&thread.io)).await.is_some()
            }
            _ => false,
        };
    }
    req.give_buf(scratch);
    if goes_on && req.body.done { Ok(()) } else { Err(Unfinished) }
}

/// A body whose end has not come in time or cannot be found, so that the connection can serve no other request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished;

/// Discards the bytes that belong to the body. The bytes after it belong to the next request and stay for it.
fn discard_bytes(req: &mut Request, bytes: &[u8]) -> Result<(), Malformed> {
    let used = req.body.take(bytes)?;
    req.tally.received += used as u64;
    if used < bytes.len() {
        let len = req.head.len;
        req.head.buf.truncate(len.max(req.body.at));
        req.body.at = req.head.buf.len();
        req.head.buf.extend_from_slice(bytes.get(used..).unwrap_or_default());
    }
    Ok(())
}

/// Reason for which the client's body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// Answer with this status.
    Status(u16),
    /// Send no response: the client is gone or too slow.
    Gone,
}

impl BodyError {
    /// Returns the outcome of a request that needs its body.
    pub fn outcome(self, req: &mut Request) -> Outcome {
        match self {
            BodyError::Status(status) => Outcome::Status(status),
            BodyError::Gone => {
                req.ending.drop_connection();
                Outcome::Done
            }
        }
    }
}

/// Result of reading a piece of the client's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// There is a piece, and more of the body follows.
    More,
    /// It was the last piece.
    Last,
    /// There is none: input from the upstream arrived first.
    Upstream,
}

/// Continuation of the client's body after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// More content.
    Content,
    /// Only the end of the stream follows, and it has yet to arrive: see [`wait_for_end`].
    End,
    /// Nothing: the body is over.
    Nothing,
}

/// Side from which input has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The client.
    Client,
    /// The upstream.
    Upstream,
}

/// Appends the next piece of the client's body to `out`.
///
/// # Errors
/// A malformed or too large body, a client that is slow (`client_body_timeout`) or gone.
pub async fn read_piece(req: &mut Request, out: &mut Vec<u8>) -> Result<Piece, BodyError> {
    piece(req, out, None).await
}

/// Reads like [`read_piece`], unless input from the upstream arrives first.
///
/// # Errors
/// As [`read_piece`].
pub async fn read_piece_beside(
    req: &mut Request,
    out: &mut Vec<u8>,
    upstream: &Conn,
) -> Result<Piece, BodyError> {
    piece(req, out, Some(upstream)).await
}

/// Room for a read of a short body, bytes.
const SHORT: usize = 16 * 1024;

/// Room for a read of a long body, bytes.
const LONG: usize = 64 * 1024;

async fn piece(req: &mut Request, out: &mut Vec<u8>, upstream: Option<&Conn>) -> Result<Piece, BodyError> {
    if req.body.done {
        return Ok(Piece::Last);
    }
    // A client that waits for `100 (Continue)` sends nothing before it (RFC 9110, section 10.1.1), so the interim response has to leave
    // before the first read.
    ask_for_body(req).await?;
    // `out` may hold earlier pieces, which are no reason to return without a new one.
    let before = out.len();
    take_buffered(req, out)?;
    if out.len() > before || req.body.done {
        return Ok(after_piece(req));
    }
    // Content with a length needs no decoding, so it is read straight into its destination and not copied.
    if matches!(req.body.framing, Framing::Length(_)) {
        return piece_as_it_is(req, out, upstream).await;
    }
    let mut scratch = req.take_buf();
    let got = loop {
        match receive(req, &mut scratch, upstream).await {
            Ok(Received::Bytes) => {}
            Ok(Received::End) => {
                req.body.done = true;
                break Ok(Piece::Last);
            }
            Ok(Received::Upstream) => break Ok(Piece::Upstream),
            Err(e) => break Err(e),
        }
        if let Err(e) = take_received(req, &scratch, out) {
            break Err(e);
        }
        scratch.clear();
        if !out.is_empty() || req.body.done {
            break Ok(after_piece(req));
        }
        // A read may bring no content, as when it has only an extension of a chunk. A client that sends only such bytes must not keep the
        // thread busy.
        req.thread.clone().io.poller.be_fair().await;
    };
    req.give_buf(scratch);
    got
}

/// Reads a piece of a body with a length directly into the buffer of the caller.
async fn piece_as_it_is(
    req: &mut Request,
    out: &mut Vec<u8>,
    upstream: Option<&Conn>,
) -> Result<Piece, BodyError> {
    let before = out.len();
    match receive(req, out, upstream).await? {
        Received::Bytes => {}
        Received::End => {
            req.body.done = true;
            return Ok(Piece::Last);
        }
        Received::Upstream => return Ok(Piece::Upstream),
    }
    let received = out.get(before..).unwrap_or_default();
    let taken = req.body.take(received);
    req.body.len += taken.as_ref().map_or(0, |n| *n as u64);
    let used = accept(req, taken)?;
    // The read may have taken the beginning of a pipelined request along.
    leave(req, out.get(before + used..).unwrap_or_default());
    out.truncate(before + used);
    Ok(after_piece(req))
}

/// Returns the result for a piece that has been read.
fn after_piece(req: &Request) -> Piece {
    if req.body.done { Piece::Last } else { Piece::More }
}

/// Sends `100 (Continue)` to a client that waits for it.
async fn ask_for_body(req: &mut Request) -> Result<(), BodyError> {
    // HTTP/1.0 has no interim responses, so the expectation of such a client is ignored (RFC 9110, section 10.1.1).
    if !req.head.expect_continue || req.body.continued || req.head.version < Version::Http11 {
        return Ok(());
    }
    let thread = req.thread.clone();
    send_continue(&thread, req).await.map_err(|_| BodyError::Gone)?;
    // The interim response is no part of the response, and `$bytes_sent` leaves it out.
    req.tally.sent = 0;
    Ok(())
}

/// Takes content that has arrived together with the head.
fn take_buffered(req: &mut Request, out: &mut Vec<u8>) -> Result<(), BodyError> {
    let at = req.body.at;
    if at >= req.head.buf.len() {
        return Ok(());
    }
    // The buffer leaves the request for a moment, because its body is changed while the buffer is read.
    let buffered = std::mem::take(&mut req.head.buf);
    let taken = req.body.take_into(buffered.get(at..).unwrap_or_default(), out);
    req.head.buf = buffered;
    req.body.at = at + accept(req, taken)?;
    Ok(())
}

/// Takes content that has been received. The bytes after it belong to the next request and stay for it.
fn take_received(req: &mut Request, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
    let taken = req.body.take_into(bytes, out);
    let used = accept(req, taken)?;
    leave(req, bytes.get(used..).unwrap_or_default());
    Ok(())
}

/// Leaves the bytes after the body to the next request.
fn leave(req: &mut Request, bytes: &[u8]) {
    if !bytes.is_empty() {
        let len = req.head.len;
        // The body that came with the head has been taken by now, so only the head is kept.
        req.head.buf.truncate(len);
        req.head.buf.extend_from_slice(bytes);
        req.body.at = len;
    }
}

/// Returns `true` if there is no body, so that [`read_all`] need not be called.
#[inline]
pub fn is_none(req: &mut Request) -> bool {
    let b = &mut req.body;
    if b.framing != Framing::None
        || !b.done
        || b.in_file
        || !matches!(b.stored.file, BodyFile::None)
        || !b.stored.mem.is_empty()
    {
        return false;
    }
    let http = req.http();
    // With `client_body_in_file_only`, nginx makes a file even for an empty body, but not for a request without a body.
    let none = req.head.framing == Framing::None
        || http.location(req).settings.core.client_body_in_file_only == BodyInFile::Off;
    req.body.stored.complete |= none;
    none
}

/// Returns what follows a piece of the body, without waiting. The end of a stream of HTTP/2 or HTTP/3 usually comes together with the
/// last content, so that both can be passed on at once.
///
/// # Errors
/// As [`read_piece`].
pub fn follows(req: &mut Request, out: &mut Vec<u8>, piece: Piece) -> Result<Rest, BodyError> {
    let more = piece == Piece::More;
    let looked_for = match req.body.framing {
        // Without a length, nothing but a read shows whether the stream is over.
        Framing::Stream => more,
        // All announced content has come, but a stream may still send more or end later (RFC 9113, section 8.1.1).
        Framing::Length(_) => !more,
        _ => false,
    };
    if !looked_for || !req.head.version.is_multiplexed() {
        return Ok(if more { Rest::Content } else { Rest::Nothing });
    }
    let thread = req.thread.clone();
    let mut scratch = req.take_buf();
    scratch.reserve(16384);
    let follows = match (req.conn.wire.read(&thread.io, &mut scratch), more) {
        (Ok(0), _) => {
            req.body.done = true;
            Ok(Rest::Nothing)
        }
        (Ok(_), true) => {
            let taken = req.body.take_into(&scratch, out);
            accept(req, taken).map(|_| Rest::Content)
        }
        (Err(Errno::AGAIN), false) => Ok(Rest::End),
        // An error stays in the stream, so the next read reports it.
        (Err(_), true) => Ok(Rest::Content),
        // Content after the announced length makes the request malformed (RFC 9113, section 8.1.1).
        (_, false) => Err(too_much(req)),
    };
    req.give_buf(scratch);
    follows
}

/// Waits for the end of an HTTP/2 stream whose announced content has arrived, or for input from the upstream.
///
/// # Errors
/// As [`read_piece`].
pub async fn wait_for_end(req: &mut Request, upstream: &Conn) -> Result<Input, BodyError> {
    let mut scratch = req.take_buf();
    let got = receive(req, &mut scratch, Some(upstream)).await;
    req.give_buf(scratch);
    match got? {
        Received::End => Ok(Input::Client),
        Received::Bytes => Err(too_much(req)),
        Received::Upstream => Ok(Input::Upstream),
    }
}

fn too_much(req: &mut Request) -> BodyError {
    req.log(Level::Info, "client sent a body of another length than \"Content-Length\" says");
    req.body.done = true;
    BodyError::Status(400)
}

/// Checks the result of taking bytes of the body, and the body's length against its limit.
fn accept(req: &mut Request, taken: Result<usize, Malformed>) -> Result<usize, BodyError> {
    let Ok(used) = taken else {
        req.log(Level::Error, "client sent invalid chunked body");
        req.body.done = true;
        req.ending.close();
        return Err(BodyError::Status(400));
    };
    req.tally.received += used as u64;
    let http = req.http();
    let max = http.location(req).settings.core.client_max_body_size.0;
    // A body with a length was checked against the limit when its location was found, before a byte of it was read.
    if max != 0 && matches!(req.body.framing, Framing::Chunked | Framing::Stream) && req.body.len > max {
        let text = format!("client intended to send too large chunked body: {} bytes", req.body.len);
        req.log(Level::Error, &text);
        req.ending.close();
        // The rest of the body stays unread, which is why the connection ends as well.
        return Err(BodyError::Status(413));
    }
    Ok(used)
}

/// Result of [`receive`].
enum Received {
    Bytes,
    /// The end of a body without a length, which ends with its stream. The buffer is empty.
    End,
    /// There is input from the upstream, but none from the client.
    Upstream,
}

/// Reads once from the client and appends to a buffer. While it waits for the client, it gives back the room that it does not need.
async fn receive(
    req: &mut Request,
    buf: &mut Vec<u8>,
    upstream: Option<&Conn>,
) -> Result<Received, BodyError> {
    let thread = req.thread.clone();
    loop {
        make_room(&thread, buf, req.body.room());
        match req.conn.wire.read(&thread.io, buf) {
            Ok(n) if n > 0 => return Ok(Received::Bytes),
            Ok(_) if req.body.framing == Framing::Stream || req.body.done => return Ok(Received::End),
            // The stream reports this when its content and its `Content-Length` differ.
            Err(Errno::PROTO) => return Err(too_much(req)),
            Err(Errno::AGAIN) => {
                // Thousands of slow uploads may wait here, and each would hold a large buffer.
                give_room(&thread, buf);
                if client_comes(req, upstream).await? == Input::Upstream {
                    return Ok(Received::Upstream);
                }
            }
            _ => {
                req.log(Level::Info, "client prematurely closed connection");
                // nginx logs 400 for a client that has closed its connection, although no response is sent.
                req.resp.status = 400;
                return Err(BodyError::Gone);
            }
        }
    }
}

/// Makes room for a read.
fn make_room(thread: &Thread, buf: &mut Vec<u8>, room: usize) {
    // The thread keeps large buffers for all of its connections, which saves an allocation for each upload.
    if buf.is_empty() && buf.capacity() < room && room > SHORT {
        *buf = thread.io.large.take();
    }
    buf.reserve(room);
}

/// Gives the room of a large buffer back while nothing comes.
fn give_room(thread: &Thread, buf: &mut Vec<u8>) {
    if buf.capacity() > 2 * SHORT && buf.len() <= SHORT {
        let large = std::mem::take(buf);
        buf.extend_from_slice(&large);
        thread.io.large.give(large);
    }
}

/// Waits for input from the client or the upstream.
///
/// # Errors
/// The client sends nothing in time (nginx: client_body_timeout).
pub async fn client_comes(req: &mut Request, upstream: Option<&Conn>) -> Result<Input, BodyError> {
    let thread = req.thread.clone();
    let http = req.http();
    let timeout = http.location(req).settings.core.client_body_timeout.0;
    let now = Instant::now();
    // The wait is recorded, so that the slowest clients can be found when the worker runs out of connections.
    let client = req.waiting(Direction::Body, now);
    let came = input(&thread, req, upstream);
    let waited = thread.transfers.wait(&thread.io.poller, client, now + timeout, came).await;
    waited.map_err(|over| too_slow(req, over))
}

/// Ends the body of a client that sends nothing in time.
fn too_slow(req: &mut Request, over: Over) -> BodyError {
    if req.tells(over) {
        req.log(Level::Info, &[over.text(), " while reading client request body"].concat());
    }
    // A client that has timed out gets no more time, so answers that still wait are not flushed.
    req.timed_out = true;
    req.resp.status = 408;
    BodyError::Gone
}

/// Waits for input from the client or the upstream.
async fn input(thread: &Thread, req: &Request, upstream: Option<&Conn>) -> Input {
    std::future::poll_fn(|cx| {
        if req.conn.wire.poll_readable(&thread.io, cx).is_ready() {
            return Poll::Ready(Input::Client);
        }
        match upstream {
            Some(u) => u.wire().poll_readable(&thread.io, cx).map(|()| Input::Upstream),
            None => Poll::Pending,
        }
    })
    .await
}

/// Reads the whole body into `RequestBody::stored`: up to `client_body_buffer_size` in memory, beyond that
/// into a file.
///
/// # Errors
/// As [`read_piece`]; status 500 when the file cannot be written.
pub async fn read_all(req: &mut Request) -> Result<(), BodyError> {
    if req.body.stored.complete {
        // Only a file that a request removes at its end has a name.
        let lacks_name = req.body.is_early && req.body.in_file && !req.body.stored.remove;
        return if lacks_name { name_file(req).await } else { Ok(()) };
    }
    let http = req.http();
    let core = &http.location(req).settings.core;
    let max = core.client_body_buffer_size.0;
    // A PUT renames the file of the body, so all of the body has to be in it.
    let only_file =
        req.body.in_file || wanted_file(req) != BodyInFile::Off && req.head.framing != Framing::None;
    let mut mem = std::mem::take(&mut req.body.stored.mem);
    let read = loop {
        match read_piece(req, &mut mem).await {
            Err(e) => break Err(e),
            Ok(piece) => {
                let more = piece == Piece::More;
                // Once a file exists, the last bytes follow the others into it, as in nginx, so that `$request_body_file` names the whole
                // body.
                let spill = mem.len() as u64 > max || (only_file && !more);
                if (spill || (!more && !matches!(req.body.stored.file, BodyFile::None)))
                    && let Err(e) = write_temporary(req, &mut mem).await
                {
                    break Err(e);
                }
                if !more {
                    break Ok(());
                }
            }
        }
    };
    // The body may stay in memory for as long as the upstream takes, so the unused part of a large buffer goes back now.
    give_room(&req.thread.clone(), &mut mem);
    req.body.stored.mem = mem;
    if read.is_ok() {
        req.body.stored.end();
    }
    read
}

/// Reads the whole body before a location is chosen, with the settings of the server (nginx: client_body_early_read).
///
/// # Errors
/// As [`read_all`]; status 413 for a body that is announced as too large.
pub async fn read_early(req: &mut Request) -> Result<(), BodyError> {
    req.location = ROOT;
    crate::phases::check_body_length(req).map_err(BodyError::Status)?;
    req.body.is_early = true;
    read_all(req).await
}

/// Returns where `client_body_in_file_only` wants the body. As in nginx it has no effect on a body that is read early.
fn wanted_file(req: &Request) -> BodyInFile {
    if req.body.is_early {
        return BodyInFile::Off;
    }
    req.http().location(req).settings.core.client_body_in_file_only
}

/// Moves a body that has been read early into a file with a name.
async fn name_file(req: &mut Request) -> Result<(), BodyError> {
    let from = req.body.stored.file();
    let mut piece = std::mem::take(&mut req.body.stored.mem);
    let (start, end) = (piece.len() as u64, req.body.stored.in_file + piece.len() as u64);
    req.body.stored.clear();
    let failed = |_: io::Error| BodyError::Status(500);
    write_temporary(req, &mut piece).await?;
    while let Some(from) = &from
        && req.body.stored.in_file < end
    {
        piece.resize(PIECE, 0);
        let n = from.read_at(&mut piece, req.body.stored.in_file - start).map_err(failed)?;
        if n == 0 {
            return Err(BodyError::Status(500));
        }
        piece.truncate(n);
        write_temporary(req, &mut piece).await?;
    }
    req.body.stored.end();
    Ok(())
}

/// Appends to the temporary file of the body and empties `mem`.
async fn write_temporary(req: &mut Request, mem: &mut Vec<u8>) -> Result<(), BodyError> {
    let mut draft = match std::mem::take(&mut req.body.stored.file) {
        BodyFile::None => open_temporary(req)?,
        BodyFile::Draft(draft) => draft,
        // A complete body is never written again, since other requests may be reading it.
        BodyFile::Whole(_) => return Err(BodyError::Status(500)),
    };
    let offset = req.body.stored.in_file;
    let n = mem.len() as u64;
    let bytes = std::mem::take(mem);
    let thread = req.thread.clone();
    // While the disk is slow, the write runs on the blocking pool, because it would stop all connections of the thread.
    let written = thread.disk.run(move || {
        let done = draft.write_at(&bytes, offset);
        (done, bytes, draft)
    });
    let Some((done, mut bytes, draft)) = written.await else { return Err(BodyError::Status(500)) };
    req.body.stored.file = BodyFile::Draft(draft);
    match done {
        Ok(()) => {
            bytes.clear();
            // The buffer comes back from the pool, so that the next piece needs no new one.
            *mem = bytes;
            req.body.stored.in_file += n;
            Ok(())
        }
        Err(e) => {
            let path = req.body.stored.path.clone().unwrap_or_default();
            req.log(Level::Crit, &format!("pwrite() \"{}\" failed ({})", path.display(), errno(&e)));
            Err(BodyError::Status(500))
        }
    }
}

/// Opens the temporary file of the body.
fn open_temporary(req: &mut Request) -> Result<Draft, BodyError> {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let given = core.client_body_temp_path.0.clone();
    let dir = given.unwrap_or_else(|| req.conf.http.client_body_temp.clone().into());
    let (mut draft, path) = create_in(&dir).map_err(|(call, path, e)| {
        req.log(Level::Crit, &format!("{call} \"{}\" failed ({})", path.display(), errno(&e)));
        BodyError::Status(500)
    })?;
    let wanted = wanted_file(req);
    match wanted {
        _ if req.body.in_file => req.body.stored.remove = true,
        // Nobody asks for the file by its name, so the name goes at once and the kernel frees the file when its last descriptor closes,
        // even after a crash. An error means that the directory is gone, and the name with it.
        BodyInFile::Off => drop(draft.remove_name()),
        BodyInFile::Clean => req.body.stored.remove = true,
        BodyInFile::On => req.body.stored.remove = false,
    }
    // The request decides how long the name stays.
    draft.leave_name();
    // The line points at a `client_body_buffer_size` that is too small. It says nothing where the configuration asks for a file.
    let level = match wanted {
        _ if req.body.in_file => None,
        BodyInFile::Off => Some(Level::Warn),
        BodyInFile::Clean | BodyInFile::On => Some(Level::Notice),
    };
    if let Some(level) = level {
        let text = format!("a client request body is buffered to a temporary file {}", path.display());
        req.log(level, &text);
    }
    req.body.stored.path = Some(path);
    Ok(draft)
}

/// Creates a file that did not exist, and the directories above it. The error names the call and its path.
fn create_in(dir: &TempDir) -> Result<(Draft, PathBuf), (&'static str, PathBuf, io::Error)> {
    use forebay_sys::files;
    let mut path = dir.next_file();
    // A file of an earlier process may have the name already. The number of attempts is bounded, so that a full directory ends in an
    // error.
    for _ in 0..16 {
        let e = match Draft::create(&path) {
            Ok(f) => return Ok((f, path)),
            Err(e) => e,
        };
        match e.kind() {
            io::ErrorKind::AlreadyExists => path = dir.next_file(),
            // The levels of `client_body_temp_path` are made when they are first needed, as in nginx.
            io::ErrorKind::NotFound => {
                let dir = path.parent().unwrap_or(&path);
                let made = files::create_directories(dir, files::PRIVATE_DIRECTORY);
                made.map_err(|e| ("mkdir()", dir.to_path_buf(), e))?;
            }
            _ => return Err(("open()", path, e)),
        }
    }
    Err(("open()", path, io::Error::from(io::ErrorKind::AlreadyExists)))
}
