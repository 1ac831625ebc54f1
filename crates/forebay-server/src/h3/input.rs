//! Bytes of a request stream on their way to the handler, and of a response from an upstream: frames are taken apart here (RFC 9114, section 7). Hot path.

use bytes::{Buf, Bytes, BytesMut};
use forebay_http::h3::Code;
use forebay_http::h3::frame::{Header, kind};
use forebay_net::quic::{Link, Next as Follows, ReadError, StreamId};

/// Most bytes that are taken from QUIC at a time.
const PIECE: usize = 16 * 1024;

/// Part of the request that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Head,
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
    /// A part of the datagram that they came with, as long as nothing had to be put together.
    raw: Bytes,
    /// Bytes of the payload of a DATA frame that have not been read.
    content: u64,
    /// Bytes of an unknown frame that have not been skipped.
    skip: u64,
    pub(crate) phase: Phase,
    /// The client has sent everything.
    pub ended: bool,
    /// QUIC may have more.
    pub readable: bool,
    /// The bytes held here are only the beginning of a frame.
    starved: bool,
    /// Longest field section, bytes.
    pub longest: usize,
    /// Frames without effect.
    idle_frames: u32,
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
    Connection(Code, &'static str),
    /// The client has given the request up.
    Reset,
}

/// The stream ends where a frame does not.
pub const CUT: Failure = Failure::Connection(Code::FrameError, "ended a stream within a frame");

fn unexpected<T>(reason: &'static str) -> Result<T, Failure> {
    Err(Failure::Connection(Code::FrameUnexpected, reason))
}

/// Puts bytes together. Takes amortized constant time for each byte while nothing else refers to the first ones.
fn append(first: Bytes, more: &[u8]) -> Bytes {
    let mut all = first.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    all.extend_from_slice(more);
    all.freeze()
}

/// Most frames of unknown types and empty DATA frames of a stream.
const IDLE_FRAMES: u32 = 100;

impl Input {
    pub(crate) fn new(longest: usize) -> Input {
        Input {
            raw: Bytes::new(),
            content: 0,
            skip: 0,
            phase: Phase::Head,
            ended: false,
            readable: true,
            starved: false,
            longest,
            idle_frames: 0,
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

    /// Takes bytes from QUIC. Returns `true` if there are new ones, or the end.
    pub fn fill(&mut self, link: &Link, id: StreamId) -> Result<bool, Failure> {
        if self.ended || !self.readable {
            return Ok(false);
        }
        // Whether something is to be sent is found at the end of the turn.
        let read = link.streams().read(id, PIECE);
        match read {
            Ok(Some(chunk)) => {
                self.starved = false;
                self.raw = match self.raw.is_empty() {
                    true => chunk.bytes,
                    false => append(std::mem::take(&mut self.raw), &chunk.bytes),
                };
                match chunk.next {
                    Follows::End => self.ended = true,
                    Follows::Blocked => self.readable = false,
                    Follows::More => {}
                }
                Ok(true)
            }
            Ok(None) => {
                self.ended = true;
                Ok(true)
            }
            Err(ReadError::Blocked) => {
                self.readable = false;
                Ok(false)
            }
            Err(ReadError::Reset(_)) => Err(Failure::Reset),
            Err(ReadError::Closed) => {
                self.readable = false;
                Err(Failure::Reset)
            }
        }
    }

    /// Copies what waits for more, so that a few bytes do not keep a datagram.
    pub fn detach(&mut self) {
        if !self.raw.is_empty() {
            self.raw = Bytes::copy_from_slice(&self.raw);
        }
    }

    /// Looks for the next frame that means something.
    pub fn next(&mut self) -> Result<Next, Failure> {
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
    pub fn line(&mut self) -> Next {
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
            return Err(Failure::Connection(Code::ExcessiveLoad, "sent too many frames without effect"));
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
    pub fn take_content(&mut self, out: &mut Vec<u8>) -> usize {
        let most = usize::try_from(self.content).unwrap_or(usize::MAX).min(out.capacity() - out.len());
        let n = self.rest().len().min(most);
        if let Some(bytes) = self.rest().get(..n) {
            out.extend_from_slice(bytes);
        }
        self.content -= n as u64;
        self.advance(n);
        n
    }

    /// Drops the content that is there.
    pub fn skip_content(&mut self) {
        let n = usize::try_from(self.content).unwrap_or(usize::MAX).min(self.rest().len());
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
    pub fn is_cut(&self) -> bool {
        self.ended && self.rest().is_empty() && (self.content > 0 || self.skip > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(bytes: &[u8], ended: bool) -> Input {
        Input { raw: Bytes::copy_from_slice(bytes), ended, readable: false, ..Input::new(100) }
    }

    fn section(bytes: &[u8]) -> Next {
        Next::Section(Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn bytes_are_put_together() {
        let all: Vec<u8> = (0..=255).collect();
        let datagram = Bytes::from(all.clone());
        let mut raw = datagram.slice(..1);
        for at in 1..all.len() {
            raw = append(raw, &all[at..=at]);
        }
        assert_eq!((&raw[..], &datagram[..]), (&all[..], &all[..]));
    }

    #[test]
    fn a_request_is_taken_apart() {
        // An unknown frame, HEADERS, two DATA frames with an empty one between, trailers.
        let mut i = input(&[0x21, 1, 9, 1, 2, 7, 8, 0, 3, b'a', b'b', b'c', 0, 0, 0, 1, b'd', 1, 1, 5], true);
        assert_eq!(i.next(), Ok(section(&[7, 8])));
        assert_eq!(i.whole(), None, "trailers follow");
        let mut out = Vec::with_capacity(2);
        assert_eq!((i.next(), i.take_content(&mut out)), (Ok(Next::Content), 2));
        out.reserve(8);
        assert_eq!((i.next(), i.take_content(&mut out)), (Ok(Next::Content), 1));
        assert_eq!((i.next(), i.take_content(&mut out)), (Ok(Next::Content), 1));
        assert_eq!(out, b"abcd");
        assert_eq!((i.next(), i.next()), (Ok(section(&[5])), Ok(Next::End)));
        let mut i = input(&[1, 0, 0, 2, b'a', b'b', 0x21, 0, 0, 2, b'c'], true);
        assert_eq!((i.next(), i.next()), (Ok(section(&[])), Ok(Next::Content)));
        i.skip_content();
        assert_eq!((i.next(), i.is_cut(), i.is_empty()), (Ok(Next::Content), false, false));
        i.skip_content();
        assert!(i.is_cut() && i.is_drained() && !i.is_empty(), "a byte is missing");
        let mut i = input(&[1, 0, 0, 2, b'a', b'b', 0, 1, b'c'], true);
        i.next().expect("a section");
        assert_eq!(i.whole(), Some(3));
    }

    /// A task that waits for more must not be told that there is something.
    #[test]
    fn the_begin_of_a_frame_gives_nothing() {
        for begin in [&[1u8][..], &[1, 2], &[1, 2, 7], &[1, 0, 0], &[1, 0, 0x21]] {
            let mut i = input(begin, false);
            assert!(i.may_give(), "nothing has been looked for: {begin:?}");
            while i.next() != Ok(Next::Nothing) {}
            assert!(!i.is_drained() && !i.may_give(), "{begin:?}");
        }
        let mut i = input(&[1, 0, 0, 2, b'a'], false);
        assert_eq!((i.next(), i.next(), i.may_give()), (Ok(section(&[])), Ok(Next::Content), true));
    }

    #[test]
    fn frames_out_of_order_end_the_connection() {
        for (bytes, code) in [
            (&[0u8, 1, 1][..], Code::FrameUnexpected),
            (&[4, 0], Code::FrameUnexpected),
            (&[2, 0], Code::FrameUnexpected),
            (&[1, 2, 0], Code::FrameError),
            (&[0x21], Code::FrameError),
        ] {
            let failed = input(bytes, true).next();
            assert!(matches!(failed, Err(Failure::Connection(c, _)) if c == code), "{bytes:?}: {failed:?}");
        }
        let mut i = input(&[1, 0, 1, 0, 1, 0], true);
        assert_eq!((i.next(), i.next()), (Ok(section(&[])), Ok(section(&[]))));
        assert!(i.next().is_err(), "a section behind the trailers");
        // Sections that are too large are skipped as they come.
        let large = [1, 0x40, 0x65];
        let mut i = input(&[&large, &[0; 0x65][..], &[0, 1, b'a'], &large, &[0; 0x64]].concat(), true);
        assert_eq!((i.next(), i.next()), (Ok(Next::TooLarge), Ok(Next::Content)));
        i.skip_content();
        assert_eq!((i.next(), i.next()), (Ok(Next::TooLarge), Err(CUT)));
        let mut many = input(&[vec![1, 0], [0x21, 0].repeat(101)].concat(), true);
        many.next().expect("a section");
        assert!(matches!(many.next(), Err(Failure::Connection(Code::ExcessiveLoad, _))));
    }
}
