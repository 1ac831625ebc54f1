//! The chunked transfer coding (RFC 9112, section 7.1), resumable at any byte. Accepts the same bodies as nginx, but limits
//! chunk extensions and trailers, which nginx does not. Hot path.

use crate::field::{FieldLine, Name, Slice};
use crate::uri::HEX;

/// Limits for the parts of a chunked body that carry no content.
#[derive(Clone, Copy, Debug)]
pub struct ChunkedLimits {
    /// Most bytes of chunk extensions in one body.
    pub extensions: usize,
    /// Most bytes of the trailer section.
    pub trailers: usize,
}

impl ChunkedLimits {
    // Unlike nginx: it reads both without end. nginx's own test of a long one stays below these.
    const NEW: ChunkedLimits = ChunkedLimits { extensions: 64 * 1024, trailers: 32 * 1024 };
}

impl Default for ChunkedLimits {
    fn default() -> Self {
        ChunkedLimits::NEW
    }
}

/// The body is not well-formed, or is over a limit. The connection cannot be used further; nginx answers
/// 400 and logs `client sent invalid chunked body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidChunked;

/// Result of `decode`. Offsets count from the start of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Content from `start` to `end`. Input up to `end` is used up; call again with the rest.
    Data {
        /// Offset of the first byte of content.
        start: usize,
        /// Offset after the last one.
        end: usize,
    },
    /// All of the input is used up and the body goes on.
    More,
    /// The body is over; input from `consumed` on belongs to the next message.
    End {
        /// Bytes of the input that belonged to the body.
        consumed: usize,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    /// Before the first digit of a size.
    #[default]
    Start,
    Size,
    Extension,
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    LastLf,
    Done,
}

/// Decoder of one chunked body.
#[derive(Clone, Debug, Default)]
pub struct Chunked {
    state: ChunkState,
    /// Size of the chunk that is being read, then the bytes of it that are left.
    left: u64,
    extensions: usize,
    limits: ChunkedLimits,
    /// Trailer section as received.
    trailer: Vec<u8>,
    trailer_start: usize,
    fields: Vec<FieldLine>,
}

impl Chunked {
    /// Decoder with the default limits.
    pub const NEW: Chunked = Chunked {
        state: ChunkState::Start,
        left: 0,
        extensions: 0,
        limits: ChunkedLimits::NEW,
        trailer: Vec::new(),
        trailer_start: 0,
        fields: Vec::new(),
    };

    /// Creates a decoder with these limits.
    pub fn new(limits: ChunkedLimits) -> Self {
        Chunked { limits, ..Chunked::default() }
    }

    /// Makes the decoder ready for another body; capacities stay.
    pub fn reset(&mut self) {
        let (mut trailer, mut fields) = (std::mem::take(&mut self.trailer), std::mem::take(&mut self.fields));
        trailer.clear();
        fields.clear();
        *self = Chunked { trailer, fields, ..Chunked::new(self.limits) };
    }

    /// Returns `true` if the end of the body is in `input`. The decoder stays as it is.
    pub fn has_end(&self, input: &[u8]) -> bool {
        let mut ahead = self.clone();
        let mut rest = input;
        loop {
            match ahead.decode(rest) {
                Ok(Step::Data { end, .. }) => rest = rest.get(end..).unwrap_or_default(),
                Ok(Step::End { .. }) => return true,
                Ok(Step::More) | Err(_) => return false,
            }
        }
    }

    /// Returns the trailer fields, once the body is over: lines with a proper name and value. nginx ignores all trailer
    /// lines, so others are skipped rather than refused.
    pub fn trailers(&self) -> impl Iterator<Item = (Name, &[u8], &[u8])> {
        self.fields.iter().map(|f| (f.id, f.name.of(&self.trailer), f.value.of(&self.trailer)))
    }

    /// Reads on. Content is not copied: see `Step::Data`.
    ///
    /// # Errors
    /// Bad size or one of 2^63 or more, bytes after a chunk, a line end other than CRLF, or too long
    /// extensions or trailers.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, InvalidChunked> {
        let mut p = 0;
        while let Some(&b) = input.get(p) {
            match self.state {
                ChunkState::Data => return Ok(self.data(p, input.len())),
                ChunkState::Done => return Ok(Step::End { consumed: p }),
                ChunkState::Trailer => {
                    p += self.trailer_line(input.get(p..).unwrap_or_default())?;
                    continue;
                }
                ChunkState::Start => self.first_digit(b)?,
                ChunkState::Size => self.size(b)?,
                ChunkState::Extension => self.extension(b)?,
                ChunkState::SizeEnd => self.size_end(b)?,
                ChunkState::DataCr => self.expect(b, b'\r', ChunkState::DataLf)?,
                ChunkState::DataLf => self.expect(b, b'\n', ChunkState::Start)?,
                ChunkState::TrailerStart if b == b'\r' => self.state = ChunkState::LastLf,
                ChunkState::TrailerStart => {
                    // The byte is part of the line: it is not used up here.
                    self.trailer_start = self.trailer.len();
                    self.state = ChunkState::Trailer;
                    continue;
                }
                ChunkState::TrailerLf => {
                    self.expect(b, b'\n', ChunkState::TrailerStart)?;
                    self.take_trailer();
                }
                ChunkState::LastLf => self.expect(b, b'\n', ChunkState::Done)?,
            }
            p += 1;
        }
        if self.state == ChunkState::Done { Ok(Step::End { consumed: p }) } else { Ok(Step::More) }
    }

    fn data(&mut self, start: usize, input_len: usize) -> Step {
        // `start` is the place of a byte of the input, so there is at least one.
        let here = input_len - start;
        let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(here);
        self.left -= len as u64;
        if self.left == 0 {
            self.state = ChunkState::DataCr;
        }
        Step::Data { start, end: start + len }
    }

    fn expect(&mut self, got: u8, want: u8, next: ChunkState) -> Result<(), InvalidChunked> {
        if got != want {
            return Err(InvalidChunked);
        }
        self.state = next;
        Ok(())
    }

    fn first_digit(&mut self, b: u8) -> Result<(), InvalidChunked> {
        let digit = HEX[b as usize];
        if digit == 0xff {
            return Err(InvalidChunked);
        }
        self.left = u64::from(digit);
        self.state = ChunkState::Size;
        Ok(())
    }

    fn size(&mut self, b: u8) -> Result<(), InvalidChunked> {
        let digit = HEX[b as usize];
        if digit != 0xff {
            // Below 2^59 before the shift, so below 2^63 after it.
            if self.left >= i64::MAX as u64 >> 4 {
                return Err(InvalidChunked);
            }
            self.left = self.left << 4 | u64::from(digit);
            return Ok(());
        }
        self.state = match b {
            b'\r' => ChunkState::SizeEnd,
            b';' | b' ' | b'\t' => ChunkState::Extension,
            _ => return Err(InvalidChunked),
        };
        Ok(())
    }

    fn extension(&mut self, b: u8) -> Result<(), InvalidChunked> {
        // Counted for the whole body: a limit for each chunk would let small chunks carry extensions without end.
        self.extensions += 1;
        match b {
            b'\r' => self.state = ChunkState::SizeEnd,
            // A server that takes a bare LF for the end of the line would see another body here.
            b'\n' => return Err(InvalidChunked),
            _ if self.extensions > self.limits.extensions => return Err(InvalidChunked),
            _ => {}
        }
        Ok(())
    }

    fn size_end(&mut self, b: u8) -> Result<(), InvalidChunked> {
        let next = if self.left == 0 { ChunkState::TrailerStart } else { ChunkState::Data };
        self.expect(b, b'\n', next)
    }

    /// Takes trailer bytes up to and including a CR. Returns how many.
    fn trailer_line(&mut self, rest: &[u8]) -> Result<usize, InvalidChunked> {
        let end = memchr::memchr2(b'\r', b'\n', rest);
        let text = rest.get(..end.unwrap_or(rest.len())).unwrap_or(rest);
        if self.trailer.len() + text.len() > self.limits.trailers {
            return Err(InvalidChunked);
        }
        self.trailer.extend_from_slice(text);
        match end.and_then(|i| rest.get(i)) {
            None => Ok(text.len()),
            Some(b'\r') => {
                self.state = ChunkState::TrailerLf;
                Ok(text.len() + 1)
            }
            Some(_) => Err(InvalidChunked),
        }
    }

    /// Keeps the line that just ended if it is a field line.
    fn take_trailer(&mut self) {
        let base = self.trailer_start;
        let line = self.trailer.get(base..).unwrap_or_default();
        let Some(colon) = memchr::memchr(b':', line) else { return };
        let (name, value) =
            (line.get(..colon).unwrap_or_default(), line.get(colon + 1..).unwrap_or_default());
        if name.is_empty() || !name.iter().all(|&b| is_token(b)) || !value.iter().all(|&b| is_text(b)) {
            return;
        }
        let id = Name::of(name);
        let trimmed = value.trim_ascii();
        let lead = value.len() - value.trim_ascii_start().len();
        let start = base + colon + 1 + lead;
        // Fits: the trailer section is limited to less.
        let at = |n| u32::try_from(n).unwrap_or(u32::MAX);
        self.fields.push(FieldLine {
            id,
            name: Slice { start: at(base), end: at(base + colon) },
            value: Slice { start: at(start), end: at(start + trimmed.len()) },
        });
    }
}

/// Returns `true` for a `tchar` of RFC 9110, section 5.6.2.
pub(crate) fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Returns `true` for bytes of a field value (RFC 9110, section 5.5), tab and blank included.
pub(crate) fn is_text(b: u8) -> bool {
    b == b'\t' || (b >= b' ' && b != 0x7f)
}

/// Encoding: the line before a chunk, and the end of the body.
pub mod encode {
    /// Last chunk and empty trailer section.
    pub const LAST: &[u8] = b"0\r\n\r\n";

    /// A chunk size line on the stack.
    #[derive(Clone, Copy, Debug)]
    pub struct SizeLine {
        bytes: [u8; 18],
        start: u8,
    }

    impl SizeLine {
        /// Makes the line for a chunk of `len` bytes. The length 0 would end the body: use `LAST`.
        pub fn new(len: u64) -> SizeLine {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            // Sixteen digits are enough for any u64.
            let mut bytes = *b"0000000000000000\r\n";
            let mut rest = len;
            let mut start = 15u8;
            for (i, byte) in bytes[..16].iter_mut().enumerate().rev() {
                *byte = DIGITS[(rest & 15) as usize];
                start = i as u8;
                rest >>= 4;
                if rest == 0 {
                    break;
                }
            }
            SizeLine { bytes, start }
        }

        /// Returns the line, with its line end.
        pub fn as_bytes(&self) -> &[u8] {
            self.bytes.get(self.start as usize..).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content and trailers, or an error; also how many bytes the body took.
    fn run(input: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), InvalidChunked> {
        let mut chunked = Chunked::default();
        let mut content = Vec::new();
        let mut used = 0;
        for part in input.chunks(piece) {
            let mut rest = part;
            loop {
                match chunked.decode(rest)? {
                    Step::Data { start, end } => {
                        content.extend_from_slice(&rest[start..end]);
                        used += end;
                        rest = &rest[end..];
                    }
                    Step::More => {
                        used += rest.len();
                        break;
                    }
                    Step::End { consumed } => return Ok((content, used + consumed, true)),
                }
            }
        }
        Ok((content, used, (chunked.state == ChunkState::Done)))
    }

    fn outcome(input: &[u8]) -> Option<(Vec<u8>, bool)> {
        let whole = run(input, input.len()).ok();
        for piece in [1, 2, 3, 7] {
            assert_eq!(run(input, piece).ok(), whole, "{}", input.escape_ascii());
        }
        whole.map(|(content, _, done)| (content, done))
    }

    #[test]
    fn accepts_what_nginx_accepts() {
        for input in [
            &b"3\r\nabc\r\n0\r\n\r\n"[..],
            b"3 \r\nabc\r\n0\r\n\r\n",
            b"3\t;x\r\nabc\r\n0 x\r\n\r\n",
            b"3;x=\"y\r\nabc\r\n0;x\r\n\r\n",
            b"3;\x00\x01\x7f\r\nabc\r\n000\r\n\r\n",
            b"0000000000000000000003\r\nabc\r\n0\r\n\r\n",
            b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
            b"3\r\nabc\r\n0\r\nX: 1\r\n\r\n",
            b"3\r\nabc\r\n0\r\n X\r\n: 1\r\nX : \x00\r\n\r\n",
        ] {
            assert_eq!(outcome(input), Some((b"abc".to_vec(), true)), "{}", input.escape_ascii());
        }
        assert_eq!(run(b"0\r\n\r\nGET", 8), Ok((vec![], 5, true)));
        assert_eq!(outcome(b"7ffffffffffffff\r\nab"), Some((b"ab".to_vec(), false)));
    }

    #[test]
    fn refuses_what_nginx_refuses() {
        for input in [
            &b"3\nabc\r\n0\r\n\r\n"[..],
            b"3\r\nabc\n0\r\n\r\n",
            b"3\r\nabc\r\n0\n\r\n",
            b"3\r\nabc\r\n0\r\n\n",
            b" 3\r\nabc",
            b"3;x\nabc",
            b"3;x\ry\r\nabc",
            b"3\r\nabcd\r\n",
            b"3\r\nabc0\r\n",
            b"3\r\nabc\r\r\n",
            b"3\r\r\nabc",
            b"0x3\r\n",
            b"+3\r\n",
            b"-3\r\n",
            b"\r\n",
            b"g\r\n",
            b"3x\r\n",
            b"7fffffffffffffff\r\n",
            b"8000000000000000\r\n",
            b"10000000000000000\r\n",
            b"0\r\nX: 1\n\r\n",
            b"0\r\nX: a\rb\r\n\r\n",
            b"0\r\n\r\r\n",
        ] {
            assert_eq!(outcome(input), None, "{}", input.escape_ascii());
        }
    }

    #[test]
    fn trailers_are_kept_as_fields() {
        let mut chunked = Chunked::default();
        let input = b"0\r\nX-Sum:  ab \r\nbad line\r\n a: 1\r\nServer:\r\n\r\n";
        assert_eq!(chunked.decode(input), Ok(Step::End { consumed: input.len() }));
        let got: Vec<_> = chunked.trailers().collect();
        let want: [(Name, &[u8], &[u8]); 2] =
            [(Name::Other, b"X-Sum", b"ab"), (Name::Server, b"Server", b"")];
        assert_eq!(got, want);
        chunked.reset();
        assert_eq!((chunked.trailers().count(), (chunked.state == ChunkState::Done)), (0, false));
    }

    #[test]
    fn limits_hold() {
        let limits = ChunkedLimits { extensions: 4, trailers: 4 };
        let run = |input: &[u8]| Chunked::new(limits).decode(input);
        assert_eq!(run(b"3;1234\r\n"), Ok(Step::More));
        assert_eq!(run(b"3;12345\r\n"), Err(InvalidChunked));
        assert_eq!(run(b"0\r\na:bc\r\n"), Ok(Step::More));
        assert_eq!(run(b"0\r\na:b\r\nc:\r\n"), Err(InvalidChunked));
    }

    #[test]
    fn size_lines() {
        for (len, want) in [(1, "1\r\n"), (255, "ff\r\n"), (u64::MAX, "ffffffffffffffff\r\n"), (0, "0\r\n")] {
            assert_eq!(encode::SizeLine::new(len).as_bytes(), want.as_bytes());
        }
    }
}
