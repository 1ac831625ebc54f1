//! The client's end of an HTTP/2 connection to an upstream server (RFC 9113), with several streams. No I/O: received bytes are given
//! in, bytes to be written are taken out. Hot path.
//!
//! - [`Link::reserve`] takes a place for a request, and [`Link::open`] begins it; its number names the stream in all other calls, until
//!   [`Link::remove`].
//! - [`Link::take`] (in `link/receive.rs`) takes received bytes. Streams about which there is news are noted, see [`Link::news`].
//! - `link/response.rs` gives heads, content and trailers; `link/stream.rs` has the state of a stream, `link/streams.rs` all of them,
//!   `link/problem.rs` what can go wrong.
//!
//! `W` is what the caller keeps for each stream.

mod problem;
mod receive;
mod response;
mod stream;
mod streams;

pub use problem::{Fatal, Problem};
use stream::Stream;
use streams::Streams;

use super::client;
use super::connection::{Connection, Window};
use super::frame::{self, Code, INITIAL_WINDOW, MAX_FRAME, flag, kind, setting};
use super::hpack::Decoder;
use super::received::Role;

/// Most streams at a time.
pub const MOST_STREAMS: usize = 100;

/// Window for the content of a response, bytes. A server may send so much that nobody has read.
pub const WINDOW: u32 = 256 * 1024;

/// Window of a connection, bytes. It is opened again for all that comes: the windows of the streams bound what waits in memory, so that a
/// stream that nobody reads does not hold up the others.
const CONNECTION_WINDOW: u32 = WINDOW * MOST_STREAMS as u32;

/// Bytes of frames waiting to be written beyond which no more content is put behind them.
const OUT: usize = 64 * 1024;

/// Content that each stream may put there, where many wait for room, bytes.
const LEAST_SHARE: usize = 4096;

/// Last stream of a connection, far below the highest identifier.
const LAST_STREAM: u32 = 1 << 30;

/// Least room in the window of a connection after content that the server has not read, bytes.
const LEAST_WINDOW: usize = INITIAL_WINDOW as usize / 2;

/// A request to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Request<'h> {
    /// HTTP/1 head.
    pub head: &'h [u8],
    /// Its scheme is `https`.
    pub https: bool,
    /// `te: trailers` is sent even where the head has no such field.
    pub trailers: bool,
    /// It has no content.
    pub end: bool,
    /// Most bytes of a head of the response.
    pub limit: usize,
}

/// A stream takes no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room, or no window.
    Full,
    /// The server needs no more of it.
    Over,
    /// The request has failed.
    Failed,
}

/// Result of reading content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// So many bytes.
    Bytes(usize),
    /// No bytes have come.
    Nothing,
    /// The response is over.
    End,
    /// The request has failed.
    Failed,
}

/// A connection and its streams.
#[derive(Debug)]
pub struct Link<W> {
    connection: Connection,
    decoder: Decoder,
    /// Memory for decoding, and for the field block of a request.
    scratch: Vec<u8>,
    /// The beginning of an incomplete frame.
    input: Vec<u8>,
    /// Frames to be written, of which `written` bytes are. Before them `gone` bytes have left.
    out: Vec<u8>,
    written: usize,
    gone: u64,
    streams: Streams<W>,
    /// Number of streams that are going to be opened.
    reserved: usize,
    /// Identifier of the next stream.
    next: u32,
    /// Streams about which there is news.
    news: Vec<u32>,
    /// Streams that wait for room, or for a window.
    waiting: usize,
    /// Content that a stream may put into `out` before that has been written.
    share: usize,
    /// Number of times that `out` has been written.
    round: u64,
    /// SETTINGS_MAX_CONCURRENT_STREAMS of the server.
    allowed: usize,
    /// The server has sent GOAWAY.
    leaving: bool,
    /// Bytes of acknowledgements in `out`.
    answers: usize,
    /// Frames since the last one that has moved a request on.
    fruitless: u32,
    /// Bytes that may still come on streams that we have reset.
    owed: u64,
    /// The server wants a smaller HPACK table than is the default. The next field block has to begin with a size of 0.
    shrink: bool,
}

impl<W: Default> Default for Link<W> {
    fn default() -> Self {
        let mut out = frame::PREFACE.to_vec();
        frame::push_settings(
            &mut out,
            &[
                // Without a table an idle connection costs next to nothing.
                (setting::HEADER_TABLE_SIZE, 0),
                (setting::ENABLE_PUSH, 0),
                (setting::INITIAL_WINDOW_SIZE, WINDOW),
            ],
        );
        // The setting above counts for streams only; the window of the connection needs a frame (RFC 9113, section
        // 6.9.2).
        frame::push_window_update(&mut out, 0, CONNECTION_WINDOW - INITIAL_WINDOW as u32);
        Link {
            connection: Connection::new(Role::Client, CONNECTION_WINDOW),
            decoder: Decoder::lenient(),
            scratch: Vec::new(),
            input: Vec::new(),
            out,
            written: 0,
            gone: 0,
            streams: Streams::default(),
            reserved: 0,
            next: 1,
            news: Vec::new(),
            waiting: 0,
            share: OUT,
            round: 0,
            allowed: MOST_STREAMS,
            leaving: false,
            answers: 0,
            fruitless: 0,
            owed: 0,
            shrink: false,
        }
    }
}

/// The connection.
impl<W: Default> Link<W> {
    /// Returns the number of streams, those included that are to be opened.
    pub fn streams(&self) -> usize {
        self.streams.len() + self.reserved
    }

    /// Counts a stream that is going to be opened.
    pub fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Takes [`Link::reserve`] back.
    pub fn release(&mut self) {
        self.reserved -= 1;
    }

    /// Returns `true` if the server has said how many streams it allows.
    pub fn is_settled(&self) -> bool {
        self.connection.has_settings()
    }

    /// Returns the number of streams that there may be. It is 1 until the server has said how many it allows.
    pub fn most(&self) -> usize {
        if self.is_settled() { self.allowed.min(MOST_STREAMS) } else { 1 }
    }

    /// Returns `true` if another stream may be opened now.
    pub fn has_room(&self) -> bool {
        self.streams() < self.most() && !self.is_dried_up()
    }

    /// Returns `false` if no further stream may be opened: the server leaves, the identifiers are used up, or content that the server
    /// discards is not acknowledged, so that the next request could not be sent.
    pub fn goes_on(&self) -> bool {
        !self.leaving && self.next <= LAST_STREAM && !(self.streams() == 0 && self.is_dried_up())
    }

    /// Returns `true` if there is hardly a window, and no stream that fills it.
    fn is_dried_up(&self) -> bool {
        self.connection.send_window.available() < LEAST_WINDOW
            && self.streams.iter().all(|s| s.sends_no_more())
    }

    /// Returns bytes to be written.
    pub fn pending(&self) -> &[u8] {
        self.out.get(self.written..).unwrap_or_default()
    }

    /// Notes that bytes of [`Link::pending`] have been written.
    pub fn wrote(&mut self, n: usize) {
        self.written += n;
        let left = self.pending().len();
        if left == 0 || self.written > OUT {
            self.gone += self.written as u64;
            self.out.drain(..self.written);
            self.written = 0;
        }
        if left == 0 && self.out.capacity() > 2 * OUT {
            self.out = Vec::new();
        }
        self.answers = self.answers.min(left);
        if left < OUT / 2 {
            self.round += 1;
            self.share = OUT;
            self.grant();
        }
    }

    /// Ends the connection with a code for the server.
    pub fn leave(&mut self, code: Code) {
        // No stream of the server's has been handled: there are none.
        frame::push_goaway(&mut self.out, 0, code);
    }

    /// Calls `f` for each stream about which there is news: something has come, there is room, or it has failed.
    pub fn news(&mut self, mut f: impl FnMut(&mut W)) {
        let mut news = std::mem::take(&mut self.news);
        for id in news.drain(..) {
            if let Some(s) = self.stream(id) {
                s.noted = false;
                f(&mut s.kept);
            }
        }
        self.news = news;
    }

    /// Has all streams be among the news: the connection is over.
    pub fn note_all(&mut self) {
        let places: Vec<_> = self.streams.places().collect();
        places.into_iter().for_each(|at| self.note(at));
    }

    fn note(&mut self, at: usize) {
        if let Some(s) = self.streams.get_mut(at)
            && !std::mem::replace(&mut s.noted, true)
        {
            self.news.push(s.id);
        }
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.streams.place(id)
    }

    fn stream(&mut self, id: u32) -> Option<&mut Stream<W>> {
        let at = self.place(id)?;
        self.streams.get_mut(at)
    }

    fn of(&self, id: u32) -> Option<&Stream<W>> {
        self.streams.get(self.place(id)?)
    }

    /// Notes streams that wait for room, if there is any: those that were served longest ago come first, and share it.
    fn grant(&mut self) {
        if self.waiting == 0 || self.connection.send_window.available() == 0 {
            return;
        }
        let ready = |s: &Stream<W>| s.waits && s.send_window.available() > 0;
        let mut places: Vec<usize> =
            self.streams.places().filter(|at| self.streams.get(*at).is_some_and(ready)).collect();
        places.sort_by_key(|at| self.streams.get(*at).map(|s| s.round));
        self.share = (OUT / places.len().max(1)).max(LEAST_SHARE);
        for at in places {
            if let Some(s) = self.streams.get_mut(at) {
                s.waits = false;
                self.waiting -= 1;
            }
            self.note(at);
        }
    }
}

/// Requests.
impl<W: Default> Link<W> {
    /// Opens a stream that was reserved, with a request. Returns its identifier.
    pub fn open(&mut self, request: &Request<'_>) -> u32 {
        // A client's streams have odd numbers (RFC 9113, section 5.1.1). LAST_STREAM keeps them from overflowing.
        let id = self.next;
        self.release();
        self.next += 2;
        self.fruitless = 0;
        let send_window = self.connection.initial_window();
        self.streams.add(Stream {
            limit: request.limit,
            sent_end: request.end,
            ..Stream::new(id, send_window)
        });
        self.scratch.clear();
        if std::mem::take(&mut self.shrink) {
            // A dynamic table of size 0 (RFC 7541, section 4.2).
            self.scratch.push(0x20);
        }
        client::request_block(request.head, request.https, request.trailers, &mut self.scratch);
        let end = if request.end { flag::END_STREAM } else { 0 };
        frame::push_field_block(&mut self.out, id, end, &self.scratch);
        id
    }

    /// Returns what the caller keeps for a stream.
    pub fn kept(&mut self, id: u32) -> Option<&mut W> {
        self.stream(id).map(|s| &mut s.kept)
    }

    /// Returns the number of bytes of content that a stream may add now.
    pub fn room(&self, id: u32) -> usize {
        let Some(s) = self.of(id).filter(|s| !s.sends_no_more()) else { return 0 };
        let window = self.connection.send_window.available().min(s.send_window.available());
        let taken = if s.round == self.round { s.added } else { 0 };
        let room = match self.share {
            OUT => OUT.saturating_sub(self.pending().len()),
            share => share.saturating_sub(taken),
        };
        window.min(room)
    }

    /// Puts content into frames as far as windows and memory allow. Returns the number of bytes that it has taken.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn content(&mut self, id: u32, bytes: &[u8]) -> Result<usize, Refused> {
        let room = self.room(id);
        let (round, at) = (self.round, self.gone + self.out.len() as u64);
        let Some(s) = self.stream(id).filter(|s| s.problem.is_none()) else { return Err(Refused::Failed) };
        if s.sends_no_more() {
            return Err(Refused::Over);
        }
        let bytes = bytes.get(..room).unwrap_or(bytes);
        if bytes.is_empty() {
            return if room == 0 { Err(Refused::Full) } else { Ok(0) };
        }
        s.added = bytes.len() + if s.round == round { s.added } else { 0 };
        s.round = round;
        s.send_window.sent(bytes.len());
        let frames = bytes.len().div_ceil(MAX_FRAME);
        s.last_frame = Some(at + ((frames - 1) * (frame::HEADER_LEN + MAX_FRAME)) as u64);
        self.connection.send_window.sent(bytes.len());
        self.fruitless = 0;
        for piece in bytes.chunks(MAX_FRAME) {
            frame::push_header(&mut self.out, piece.len(), kind::DATA, 0, id);
            self.out.extend_from_slice(piece);
        }
        Ok(bytes.len())
    }

    /// Has a stream be among the news once it may add content.
    pub fn await_room(&mut self, id: u32) {
        if let Some(s) = self.stream(id)
            && !std::mem::replace(&mut s.waits, true)
        {
            self.waiting += 1;
        }
    }

    /// Ends a request. Its last frame carries the end, unless that has left.
    pub fn end(&mut self, id: u32) {
        let written = self.gone + self.written as u64;
        let gone = self.gone;
        let Some(s) = self.stream(id).filter(|s| !s.sends_no_more()) else { return };
        s.sent_end = true;
        let unsent = s.last_frame.filter(|at| *at >= written);
        // The flags are the fifth byte of a frame.
        let flags = unsent.and_then(|at| usize::try_from(at - gone + 4).ok());
        match flags.and_then(|at| self.out.get_mut(at)) {
            Some(flags) => *flags |= flag::END_STREAM,
            None => frame::push_header(&mut self.out, 0, kind::DATA, flag::END_STREAM, id),
        }
    }

    /// Removes a stream, and tells the server if it need not go on with it.
    pub fn remove(&mut self, id: u32) {
        let Some(at) = self.place(id) else { return };
        let Some((ended, sent, reset)) = self.streams.get(at).map(|s| (s.ended, s.sent_end, s.reset)) else {
            return;
        };
        if !(reset || ended && sent) {
            // A response that is whole is no failure (RFC 9113, section 8.1).
            self.reset(at, if ended { Code::NoError } else { Code::Cancel });
        }
        self.waiting -= usize::from(self.streams.get(at).is_some_and(|s| s.waits));
        self.streams.remove(id);
    }

    /// Gives memory back before a pause, if there is no stream.
    pub fn shrink(&mut self) {
        self.streams.shrink();
        if self.pending().is_empty() {
            (self.out, self.news) = (Vec::new(), Vec::new());
            self.gone += std::mem::take(&mut self.written) as u64;
        }
        self.scratch = Vec::new();
    }

    /// Resets a stream.
    fn reset(&mut self, at: usize, code: Code) {
        let Some(s) = self.streams.get_mut(at) else { return };
        s.reset = true;
        if !s.ended {
            // The server may have sent content before it learns of the reset: that is allowed.
            self.owed += s.recv_window.available() as u64 + (s.limit + 2 * MAX_FRAME) as u64;
        }
        frame::push_reset(&mut self.out, s.id, code);
    }
}

#[cfg(test)]
mod tests;
