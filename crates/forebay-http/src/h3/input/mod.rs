//! Bytes of a request stream on their way from QUIC, at either end: frames are taken apart here (RFC 9114, section 7). Hot path.

use super::connection::Role;
use super::frame::{Header, kind};
use super::transport::{Follows, Received, Transport};
use super::{Code, Fatal};
use bytes::{Buf, Bytes, BytesMut};

/// Largest number of bytes that are taken from QUIC at a time.
const PIECE: usize = 16 * 1024;

/// Part of the request that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The head.
    Head,
    /// The content, or trailers.
    Content,
    /// Trailers have been read.
    End,
}

impl Phase {
    /// Returns the part behind the field section of this one.
    fn next(self) -> Phase {
        match self {
            Phase::Head => Phase::Content,
            Phase::Content | Phase::End => Phase::End,
        }
    }
}

/// Bytes that have been taken from QUIC.
#[derive(Debug)]
pub struct Input {
    role: Role,
    id: u64,
    /// A part of the datagram that they came with, as long as nothing had to be put together.
    raw: Bytes,
    /// Bytes of the payload of a DATA frame that have not been read.
    content: u64,
    /// Bytes of an unknown frame that have not been skipped.
    skip: u64,
    phase: Phase,
    /// Everything has been received.
    ended: bool,
    /// QUIC may have more.
    readable: bool,
    /// The bytes held here are only the beginning of a frame.
    starved: bool,
    /// Longest field section, bytes.
    longest: usize,
    /// Frames without effect.
    idle_frames: u32,
    /// Bytes received.
    received: u64,
}

/// Result of looking for the next frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// There are not enough bytes.
    Nothing,
    /// Content follows.
    Content,
    /// A field section.
    Section(Bytes),
    /// A field section that is too large. It is skipped.
    TooLarge,
    /// The stream has ended between frames.
    End,
}

/// Failure of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection ends.
    Connection(Fatal),
    /// The peer has given the request up.
    Reset,
}

/// The stream ends where a frame does not.
pub const CUT: Failure = Failure::Connection(Fatal::new(Code::FrameError, "ended a stream within a frame"));

fn unexpected<T>(reason: &'static str) -> Result<T, Failure> {
    Err(Failure::Connection(Fatal::new(Code::FrameUnexpected, reason)))
}

/// Puts bytes together. Takes amortized constant time for each byte while nothing else refers to the first ones.
pub(super) fn append(first: Bytes, more: Bytes) -> Bytes {
    if first.is_empty() {
        return more;
    }
    let mut all = first.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    all.extend_from_slice(&more);
    all.freeze()
}

/// Largest number of frames of unknown types and of empty DATA frames of a stream.
const IDLE_FRAMES: u32 = 100;

impl Input {
    /// Creates the input of a stream. `longest`: length of the longest field section, bytes.
    pub fn new(role: Role, id: u64, longest: usize) -> Input {
        Input {
            role,
            id,
            raw: Bytes::new(),
            content: 0,
            skip: 0,
            phase: Phase::Head,
            ended: false,
            readable: true,
            starved: false,
            longest,
            idle_frames: 0,
            received: 0,
        }
    }

    fn rest(&self) -> &[u8] {
        &self.raw
    }

    /// Returns the number of bytes that wait here.
    pub fn held(&self) -> usize {
        self.rest().len()
    }

    /// Returns `true` if nothing that was received waits here.
    pub fn is_drained(&self) -> bool {
        self.rest().is_empty()
    }

    /// Returns `false` if there is nothing to be had before QUIC has more: no end, and no bytes but the begin of a frame.
    pub fn may_give(&self) -> bool {
        self.readable || self.ended || !self.is_drained() && !self.starved
    }

    fn advance(&mut self, n: usize) {
        match n < self.raw.len() {
            true => self.raw.advance(n),
            // The memory behind it is free.
            false => self.raw = Bytes::new(),
        }
    }

    /// Returns `true` if everything has been received.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Has the stream end, since the peer has reset it.
    pub fn cut_off(&mut self) {
        self.ended = true;
    }

    /// Notes that QUIC has something to read.
    pub fn note_readable(&mut self) {
        self.readable = true;
    }

    /// Returns the length of the longest field section, bytes.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the number of bytes received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns `true` if the head has not been read.
    pub fn awaits_head(&self) -> bool {
        self.phase == Phase::Head
    }

    /// Has another head follow: the one before was of an interim response.
    pub fn await_head(&mut self) {
        self.phase = Phase::Head;
    }

    /// Takes bytes from QUIC. Returns `true` if there are new ones, or the end.
    ///
    /// # Errors
    /// The peer has reset the stream.
    pub fn fill(&mut self, quic: &impl Transport) -> Result<bool, Failure> {
        if self.ended || !self.readable {
            return Ok(false);
        }
        match quic.read(self.id, PIECE) {
            Received::Bytes(bytes, follows) => {
                self.starved = false;
                self.received += bytes.len() as u64;
                self.raw = append(std::mem::take(&mut self.raw), bytes);
                match follows {
                    Follows::End => self.ended = true,
                    Follows::Blocked => self.readable = false,
                    Follows::More => {}
                }
                Ok(true)
            }
            Received::End => {
                self.ended = true;
                Ok(true)
            }
            Received::Blocked => {
                self.readable = false;
                Ok(false)
            }
            Received::Reset => Err(Failure::Reset),
            Received::Closed => {
                self.readable = false;
                Err(Failure::Reset)
            }
        }
    }

    /// Copies what waits for more, so that a few bytes do not keep a datagram.
    fn detach(&mut self) {
        if !self.raw.is_empty() {
            self.raw = Bytes::copy_from_slice(&self.raw);
        }
    }

    /// Looks for the field section of a head, or its line if it `is_bare` (HTTP/0.9). Content is not returned.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn head(&mut self, quic: &impl Transport, is_bare: bool) -> Result<Next, Failure> {
        loop {
            match if is_bare { self.line() } else { self.next()? } {
                Next::Nothing | Next::Content => {}
                found => return Ok(found),
            }
            if !self.fill(quic)? {
                self.detach();
                return Ok(Next::Nothing);
            }
        }
    }

    /// Reads content into the spare capacity of `out`, or finds what comes in its place. Returns [`Next::Content`] also if there is no
    /// capacity.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn read(&mut self, quic: &impl Transport, out: &mut Vec<u8>) -> Result<Next, Failure> {
        loop {
            match self.next()? {
                Next::Content => {
                    let n = self.take_content(out);
                    if n > 0 || out.capacity() == out.len() {
                        return Ok(Next::Content);
                    }
                    if self.is_cut() {
                        return Err(CUT);
                    }
                }
                Next::Nothing => {}
                found => return Ok(found),
            }
            if !self.fill(quic)? {
                return Ok(Next::Nothing);
            }
        }
    }

    /// Passes all content to `f`, up to what comes in its place.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn drain(&mut self, quic: &impl Transport, mut f: impl FnMut(&[u8])) -> Result<Next, Failure> {
        loop {
            match self.next()? {
                Next::Content => {
                    self.skip_content(&mut f);
                    if self.is_cut() {
                        return Err(CUT);
                    }
                    if self.ended || !self.is_drained() {
                        continue;
                    }
                }
                Next::Nothing => {}
                found => return Ok(found),
            }
            if !self.fill(quic)? {
                return Ok(Next::Nothing);
            }
        }
    }

    /// Looks for the next frame that means something.
    fn next(&mut self) -> Result<Next, Failure> {
        loop {
            if self.skip > 0 {
                let n = usize::try_from(self.skip).unwrap_or(usize::MAX).min(self.rest().len());
                self.skip -= n as u64;
                self.advance(n);
            }
            if self.content > 0 {
                return Ok(Next::Content);
            }
            let Some((header, len)) = Header::read(self.rest()).filter(|_| self.skip == 0) else {
                return self.end_of_bytes();
            };
            match header.kind {
                kind::DATA if self.phase == Phase::Content => {
                    if header.len == 0 {
                        self.count_idle()?;
                    }
                    self.content = header.len;
                    self.advance(len);
                }
                kind::HEADERS if self.phase != Phase::End => return self.section(header, len),
                kind::DATA | kind::HEADERS => {
                    return unexpected("sent DATA or HEADERS frame out of order");
                }
                // Without MAX_PUSH_ID none is allowed (RFC 9114, section 7.2.5).
                kind::PUSH_PROMISE if self.role == Role::Client => {
                    return Err(Failure::Connection(Fatal::new(Code::IdError, "promised a push")));
                }
                kind::SETTINGS
                | kind::CANCEL_PUSH
                | kind::PUSH_PROMISE
                | kind::GOAWAY
                | kind::MAX_PUSH_ID
                | kind::PRIORITY_UPDATE
                | kind::PRIORITY_UPDATE_PUSH => {
                    return unexpected("sent unexpected frame on a request stream");
                }
                _ if header.is_reserved() => return unexpected("sent HTTP/2 frame"),
                _ => {
                    self.count_idle()?;
                    self.skip = header.len;
                    self.advance(len);
                }
            }
        }
    }

    /// Looks for the request line of HTTP/0.9, which the end of the stream ends, too.
    fn line(&mut self) -> Next {
        let end = memchr::memchr(b'\n', self.rest()).map(|at| at + 1);
        let rest = self.rest();
        let line = match end {
            Some(end) => Bytes::copy_from_slice(rest.get(..end).unwrap_or_default()),
            None if self.ended && rest.is_empty() => return Next::End,
            // The parser refuses one that is too long.
            None if self.ended || rest.len() > self.longest => [rest, b"\n"].concat().into(),
            None => return Next::Nothing,
        };
        self.phase = Phase::End;
        self.advance(self.held());
        Next::Section(line)
    }

    fn count_idle(&mut self) -> Result<(), Failure> {
        self.idle_frames += 1;
        if self.idle_frames > IDLE_FRAMES {
            return Err(Failure::Connection(Fatal::new(
                Code::ExcessiveLoad,
                "sent too many frames without effect",
            )));
        }
        Ok(())
    }

    fn end_of_bytes(&mut self) -> Result<Next, Failure> {
        match (self.ended, self.rest().is_empty() && self.skip == 0) {
            (true, true) => Ok(Next::End),
            (true, false) => Err(CUT),
            (false, _) => {
                self.starved = true;
                Ok(Next::Nothing)
            }
        }
    }

    fn section(&mut self, header: Header, len: usize) -> Result<Next, Failure> {
        let size = usize::try_from(header.len).unwrap_or(usize::MAX);
        if size > self.longest {
            self.advance(len);
            self.skip = header.len;
            self.phase = self.phase.next();
            return Ok(Next::TooLarge);
        }
        if self.rest().len() < len + size {
            return match self.ended {
                true => Err(CUT),
                false => self.end_of_bytes(),
            };
        }
        let section = self.raw.slice(len..len + size);
        self.advance(len + size);
        self.phase = self.phase.next();
        Ok(Next::Section(section))
    }

    /// Moves content to the spare capacity of `out`. Returns the number of bytes.
    fn take_content(&mut self, out: &mut Vec<u8>) -> usize {
        let most = usize::try_from(self.content).unwrap_or(usize::MAX).min(out.capacity() - out.len());
        let n = self.rest().len().min(most);
        if let Some(bytes) = self.rest().get(..n) {
            out.extend_from_slice(bytes);
        }
        self.content -= n as u64;
        self.advance(n);
        n
    }

    /// Passes the content that is there to `f`.
    fn skip_content(&mut self, f: &mut impl FnMut(&[u8])) {
        let n = usize::try_from(self.content).unwrap_or(usize::MAX).min(self.rest().len());
        f(self.rest().get(..n).unwrap_or_default());
        self.content -= n as u64;
        self.advance(n);
    }

    /// Returns `true` if no frame has begun that is not complete.
    pub fn is_empty(&self) -> bool {
        self.is_drained() && self.content == 0 && self.skip == 0
    }

    /// Returns the length of the content, if all of it has been taken from QUIC and nothing else follows.
    pub fn whole(&self) -> Option<usize> {
        if !self.ended || self.phase == Phase::Head || self.skip > 0 {
            return None;
        }
        let first = usize::try_from(self.content).ok()?;
        let mut rest = self.rest().get(first..)?;
        let mut sum = first;
        while !rest.is_empty() {
            let (header, len) = Header::read(rest).filter(|(h, _)| h.kind == kind::DATA)?;
            let size = usize::try_from(header.len).ok()?;
            rest = rest.get(len..)?.get(size..)?;
            sum += size;
        }
        Some(sum)
    }

    /// Returns `true` if the payload of a frame is not complete and nothing follows.
    fn is_cut(&self) -> bool {
        self.ended && self.rest().is_empty() && (self.content > 0 || self.skip > 0)
    }
}

#[cfg(test)]
mod tests;
