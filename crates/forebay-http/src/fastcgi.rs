//! Records of FastCGI as a web server writes and reads them (FastCGI Specification 1.0, in the role of a responder), one
//! request at a time on a connection. Hot path.
//!
//! A request is written straight into a buffer: [`begin`], [`param`] for each parameter, [`params_end`], then its content
//! by [`stdin`] and at last [`stdin_end`]. [`Records`] reads the response.

/// Number of the request in each record: there is one at a time.
const REQUEST_ID: u8 = 1;
const VERSION: u8 = 1;

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

const RESPONDER: u8 = 1;
const KEEP_CONN: u8 = 1;

/// Length of the header of a record, bytes.
const HEADER: usize = 8;

/// Most content that is put into one record, bytes: the most that its length can say, in whole words.
pub const MAX_CONTENT: usize = 65528;

/// Makes the header of a record. `len` is at most [`MAX_CONTENT`].
fn header(kind: u8, len: usize) -> [u8; HEADER] {
    let [.., high, low] = len.to_be_bytes();
    [VERSION, kind, 0, REQUEST_ID, high, low, 0, 0]
}

/// Begins a request: appends BEGIN_REQUEST and the header of the parameters. `keep`: the connection is to stay open
/// afterwards. Gives the mark that [`params_end`] asks for.
pub fn begin(out: &mut Vec<u8>, keep: bool) -> usize {
    out.extend_from_slice(&header(BEGIN_REQUEST, 8));
    out.extend_from_slice(&[0, RESPONDER, if keep { KEEP_CONN } else { 0 }, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&header(PARAMS, 0));
    out.len()
}

/// Appends one parameter.
pub fn param(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    param_lengths(out, name.len(), value.len());
    out.extend_from_slice(name);
    out.extend_from_slice(value);
}

/// Appends the lengths of a parameter, whose name and value then follow.
pub(crate) fn param_lengths(out: &mut Vec<u8>, name: usize, value: usize) {
    for len in [name, value] {
        match u8::try_from(len) {
            Ok(short) if short < 0x80 => out.push(short),
            _ => out.extend_from_slice(&((len as u32) | 1 << 31).to_be_bytes()),
        }
    }
}

/// Ends the parameters that began at `start`. Splits them into several records if they are too long for one.
pub fn params_end(out: &mut Vec<u8>, start: usize) {
    let len = out.len().saturating_sub(start);
    let more = len.saturating_sub(1) / MAX_CONTENT;
    // From the last to the first, each moves behind the headers that go before it.
    out.resize(out.len() + more * HEADER, 0);
    for i in (1..=more).rev() {
        let from = start + i * MAX_CONTENT;
        let piece = (start + len - from).min(MAX_CONTENT);
        let to = from + i * HEADER;
        out.copy_within(from..from + piece, to);
        put_header(out, to - HEADER, PARAMS, piece);
    }
    put_header(out, start - HEADER, PARAMS, len.min(MAX_CONTENT));
    if len > 0 {
        // An empty record ends the stream, and the first was that already.
        out.extend_from_slice(&header(PARAMS, 0));
    }
}

fn put_header(out: &mut [u8], at: usize, kind: u8, len: usize) {
    if let Some(place) = out.get_mut(at..at + HEADER) {
        place.copy_from_slice(&header(kind, len));
    }
}

/// Appends content of the request as records.
pub fn stdin(out: &mut Vec<u8>, content: &[u8]) {
    for piece in content.chunks(MAX_CONTENT) {
        stdin_header(out, piece.len());
        out.extend_from_slice(piece);
    }
}

/// Appends the header of a record with `len` bytes of content, 1 to [`MAX_CONTENT`], which then follow.
pub fn stdin_header(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&header(STDIN, len));
}

/// Appends the end of the content.
pub fn stdin_end(out: &mut Vec<u8>) {
    out.extend_from_slice(&header(STDIN, 0));
}

/// Reader of a server's records, resumable at any byte.
#[derive(Debug, Default)]
pub struct Records {
    header: [u8; HEADER],
    /// Received bytes of the header.
    have: u8,
    /// Bytes of content of the record that have not been read.
    left: u16,
    closed: bool,
    over: bool,
}

/// The next part of the input. Offsets are into the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordPart {
    /// Output of the program. The input behind `end` has not been read.
    Stdout {
        /// Offset of its first byte.
        start: usize,
        /// Offset behind its last byte.
        end: usize,
    },
    /// Text of the program for the error log.
    Stderr {
        /// Offset of their first byte.
        start: usize,
        /// Offset behind their last byte.
        end: usize,
        /// The record ends with them.
        last: bool,
    },
    /// All of the input is taken, and more is needed.
    More,
    /// The request is over.
    End {
        /// Bytes that were read. The input behind them belongs to no record.
        consumed: usize,
    },
}

/// The reason for refusing a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecord {
    /// The version of the protocol.
    Version(u8),
    /// A type that a server does not send.
    Type(u8),
    /// A record of another request, by the high byte of its number.
    RequestIdHigh(u8),
    /// A record of another request, by the low byte of its number.
    RequestIdLow(u8),
}

/// The text in nginx's error log behind `upstream`.
impl std::fmt::Display for BadRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BadRecord::Version(v) => write!(f, "sent unsupported FastCGI protocol version: {v}"),
            BadRecord::Type(t) => write!(f, "sent invalid FastCGI record type: {t}"),
            BadRecord::RequestIdHigh(b) => write!(f, "sent unexpected FastCGI request id high byte: {b}"),
            BadRecord::RequestIdLow(b) => write!(f, "sent unexpected FastCGI request id low byte: {b}"),
        }
    }
}

impl Records {
    /// Reader at the beginning of a response.
    pub const NEW: Records = Records { header: [0; HEADER], have: 0, left: 0, closed: false, over: false };

    /// Returns `true` if the program has closed its output.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns `true` if the request has ended.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Takes the next part from the start of the input.
    ///
    /// # Errors
    /// A record that cannot belong to the request; nothing can be read after it.
    pub fn next(&mut self, input: &[u8]) -> Result<RecordPart, BadRecord> {
        let mut at = 0;
        while !self.over {
            self.take_header(input, &mut at)?;
            if usize::from(self.have) < HEADER {
                return Ok(RecordPart::More);
            }
            if let Some(step) = self.take_content(input, &mut at) {
                return Ok(step);
            }
            self.skip_padding(input, &mut at);
            if self.header[6] > 0 {
                return Ok(RecordPart::More);
            }
            self.over = self.header[1] == END_REQUEST;
            self.have = 0;
        }
        Ok(RecordPart::End { consumed: at })
    }

    /// Takes bytes of a header until it is whole.
    fn take_header(&mut self, input: &[u8], at: &mut usize) -> Result<(), BadRecord> {
        while usize::from(self.have) < HEADER {
            let Some(b) = input.get(*at) else { break };
            *at += 1;
            self.header_byte(*b)?;
        }
        Ok(())
    }

    /// Takes content of a record. `None`: the record has no more of it.
    fn take_content(&mut self, input: &[u8], at: &mut usize) -> Option<RecordPart> {
        if self.left == 0 {
            return None;
        }
        let start = *at;
        let end = input.len().min(start + usize::from(self.left));
        if start == end {
            return Some(RecordPart::More);
        }
        *at = end;
        self.left -= (end - start) as u16;
        match self.header[1] {
            STDOUT => Some(RecordPart::Stdout { start, end }),
            STDERR => Some(RecordPart::Stderr { start, end, last: self.left == 0 }),
            // The content of END_REQUEST is for the program's own logs: nginx ignores it as well.
            _ => (self.left > 0).then_some(RecordPart::More),
        }
    }

    /// Skips padding. Its length in the header counts the bytes that are left.
    fn skip_padding(&mut self, input: &[u8], at: &mut usize) {
        let padding = &mut self.header[6];
        let skipped = usize::from(*padding).min(input.len() - *at);
        *padding -= skipped as u8;
        *at += skipped;
    }

    /// Takes a byte of a header and checks it at once: a server of another protocol may never send eight.
    fn header_byte(&mut self, b: u8) -> Result<(), BadRecord> {
        let at = usize::from(self.have);
        match at {
            0 if b != VERSION => return Err(BadRecord::Version(b)),
            1 if !matches!(b, STDOUT | STDERR | END_REQUEST) => return Err(BadRecord::Type(b)),
            2 if b != 0 => return Err(BadRecord::RequestIdHigh(b)),
            3 if b != REQUEST_ID => return Err(BadRecord::RequestIdLow(b)),
            _ => {}
        }
        self.header[at] = b;
        self.have += 1;
        if usize::from(self.have) == HEADER {
            self.left = u16::from_be_bytes([self.header[4], self.header[5]]);
            self.closed |= self.header[1] == STDOUT && self.left == 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, content: &[u8], padding: u8) -> Vec<u8> {
        let mut out = header(kind, content.len()).to_vec();
        out[6] = padding;
        out.extend_from_slice(content);
        out.resize(out.len() + usize::from(padding), b'#');
        out
    }

    /// Output, words, whether the output was closed, and what is left of the input behind the end.
    type Got = (Vec<u8>, Vec<u8>, bool, Option<usize>);

    fn read(input: &[u8], piece: usize) -> Result<Got, BadRecord> {
        let mut r = Records::default();
        let (mut out, mut said) = (Vec::new(), Vec::new());
        let mut behind = 0;
        for part in input.chunks(piece) {
            let mut rest = part;
            loop {
                let took = match r.next(rest)? {
                    RecordPart::Stdout { start, end } => {
                        out.extend_from_slice(&rest[start..end]);
                        end
                    }
                    RecordPart::Stderr { start, end, last } => {
                        said.extend_from_slice(&rest[start..end]);
                        if last {
                            said.push(b'|');
                        }
                        end
                    }
                    RecordPart::More => break,
                    RecordPart::End { consumed } => {
                        behind += rest.len() - consumed;
                        break;
                    }
                };
                rest = &rest[took..];
            }
        }
        Ok((out, said, r.is_closed(), r.is_over().then_some(behind)))
    }

    #[test]
    fn a_response_in_any_pieces() {
        let input = [
            record(STDERR, b"be careful", 6),
            record(STDOUT, b"Status: 200\r\n", 0),
            record(STDERR, b"", 0),
            record(STDOUT, b"\r\nhello", 255),
            record(STDERR, b"too late", 1),
            record(STDOUT, b"", 8),
            record(END_REQUEST, &[0; 8], 3),
            b"rest".to_vec(),
        ]
        .concat();
        for piece in 1..=input.len() {
            let got = read(&input, piece).expect("it is well formed");
            assert_eq!(got.0, b"Status: 200\r\n\r\nhello", "{piece}");
            assert_eq!(got.1, b"be careful|too late|");
            assert_eq!((got.2, got.3), (true, Some(4)));
        }
        for cut in 0..input.len() - 4 {
            assert_eq!(read(&input[..cut], 7).expect("a part of it").3, None);
        }
    }

    #[test]
    fn refusals_come_with_the_first_wrong_byte() {
        let says = |input: &[u8]| read(input, input.len()).expect_err("it is refused").to_string();
        assert_eq!(says(b"HTTP/1.1 200 OK"), "sent unsupported FastCGI protocol version: 72");
        assert_eq!(says(&[1, 9]), "sent invalid FastCGI record type: 9");
        assert_eq!(says(&[1, STDIN, 0, 1]), "sent invalid FastCGI record type: 5");
        assert_eq!(says(&[1, 6, 2, 1]), "sent unexpected FastCGI request id high byte: 2");
        assert_eq!(says(&[1, 6, 0, 0]), "sent unexpected FastCGI request id low byte: 0");
        let late = [record(STDOUT, b"x", 2), vec![2]].concat();
        assert_eq!(says(&late), "sent unsupported FastCGI protocol version: 2");
    }

    /// Records as (type, content), and all parameters.
    fn request(mut bytes: &[u8]) -> (Vec<(u8, usize)>, Vec<u8>) {
        let (mut all, mut params) = (Vec::new(), Vec::new());
        while let Some((h, rest)) = bytes.split_first_chunk::<HEADER>() {
            assert_eq!((h[0], h[2], h[3], h[6]), (1, 0, 1, 0));
            let len = usize::from(u16::from_be_bytes([h[4], h[5]]));
            all.push((h[1], len));
            if h[1] == PARAMS {
                params.extend_from_slice(&rest[..len]);
            }
            bytes = &rest[len..];
        }
        assert!(bytes.is_empty());
        (all, params)
    }

    #[test]
    fn a_request_without_parameters_or_content() {
        let mut out = Vec::new();
        let start = begin(&mut out, false);
        params_end(&mut out, start);
        stdin_end(&mut out);
        assert_eq!(out[8..16], [0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(request(&out).0, [(BEGIN_REQUEST, 8), (PARAMS, 0), (STDIN, 0)]);
    }

    #[test]
    fn parameters_and_their_lengths() {
        let mut out = Vec::new();
        let start = begin(&mut out, true);
        param(&mut out, b"A", b"");
        param(&mut out, b"BC", &[b'x'; 127]);
        param(&mut out, b"D", &[b'y'; 128]);
        params_end(&mut out, start);
        stdin(&mut out, b"body");
        stdin_end(&mut out);
        assert_eq!(out[10], KEEP_CONN);
        let (records, params) = request(&out);
        assert_eq!(records, [(1, 8), (PARAMS, 3 + 131 + 134), (PARAMS, 0), (STDIN, 4), (STDIN, 0)]);
        let want = [&b"\x01\0A\x02\x7fBC"[..], &[b'x'; 127], b"\x01\x80\0\0\x80D", &[b'y'; 128]].concat();
        assert_eq!(params, want);
    }

    #[test]
    fn many_parameters_take_several_records() {
        for len in [MAX_CONTENT - 7, MAX_CONTENT - 6, MAX_CONTENT - 5, 2 * MAX_CONTENT - 6, 400_000] {
            let value: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let mut out = b"before".to_vec();
            let start = begin(&mut out, false);
            param(&mut out, b"V", &value);
            params_end(&mut out, start);
            let (records, params) = request(&out[6..]);
            let total = len + 6;
            assert_eq!(records.len(), 2 + total.div_ceil(MAX_CONTENT), "{len}");
            assert_eq!(records.last(), Some(&(PARAMS, 0)));
            assert!(records.iter().all(|(_, n)| *n <= MAX_CONTENT));
            assert_eq!(params.len(), total);
            assert!(params.ends_with(&value));
        }
    }

    #[test]
    fn content_is_cut() {
        let mut out = Vec::new();
        stdin(&mut out, &vec![b'z'; 2 * MAX_CONTENT + 1]);
        assert_eq!(request(&out).0, [(STDIN, MAX_CONTENT), (STDIN, MAX_CONTENT), (STDIN, 1)]);
    }
}
