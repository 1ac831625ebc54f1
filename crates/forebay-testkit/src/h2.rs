//! HTTP/2 by frames made here, on both sides. Field blocks are written without compression; those of the program are read by its
//! own decoder, whose tests have the examples of RFC 7541.

use crate::{DEADLINE, Server, accept};
use forebay_http::compression::{Field, Sink};
use forebay_http::h2::frame::{PREFACE, flag, kind};
use forebay_http::h2::hpack::Decoder;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Length of the header of a frame.
const HEADER: usize = 9;

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Type.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// Stream, 0 for the connection.
    pub stream: u32,
    /// Content.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Takes the first frame out of bytes, once it is complete.
    pub fn take(bytes: &mut Vec<u8>) -> Option<Frame> {
        let &[a, b, c, kind, flags, s @ ..] = bytes.first_chunk::<HEADER>()?;
        let end = HEADER + u32::from_be_bytes([0, a, b, c]) as usize;
        let payload = bytes.get(HEADER..end)?.to_vec();
        bytes.drain(..end);
        Some(Frame { kind, flags, stream: u32::from_be_bytes(s) & 0x7fff_ffff, payload })
    }

    /// Returns the bytes of the frame.
    pub fn bytes(&self) -> Vec<u8> {
        frame(self.kind, self.flags, self.stream, &self.payload)
    }

    /// Returns `true` if a flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the error code of RST_STREAM or GOAWAY.
    pub fn code(&self) -> u32 {
        let at = if self.kind == kind::GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("a code"))
    }
}

/// Returns the bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it fits").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Adds a length with seven bits in its first byte (RFC 7541, section 5.1).
fn push_length(out: &mut Vec<u8>, length: usize) {
    if length < 127 {
        return out.push(length as u8);
    }
    out.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        out.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    out.push(rest as u8);
}

/// Returns a field block: literals without indexing and without Huffman's code.
pub fn block<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name.as_ref(), value.as_ref()] {
            push_length(&mut out, text.len());
            out.extend_from_slice(text);
        }
    }
    out
}

/// Returns HEADERS with fields, which end in it.
pub fn headers(stream: u32, fields: &[(&str, &str)], flags: u8) -> Vec<u8> {
    frame(kind::HEADERS, flags | flag::END_HEADERS, stream, &block(fields))
}

/// Returns HEADERS of a response without fields.
pub fn status(stream: u32, status: u16, flags: u8) -> Vec<u8> {
    headers(stream, &[(":status", &status.to_string())], flags)
}

/// Returns HEADERS of `GET /`, with more flags.
pub fn get(stream: u32, flags: u8) -> Vec<u8> {
    // `GET`, `http` and `/` by their numbers, the authority as a literal of number 1.
    frame(kind::HEADERS, flags, stream, &[&[0x82, 0x86, 0x84, 1, 9], b"localhost".as_slice()].concat())
}

/// Returns DATA.
pub fn data(stream: u32, text: &[u8], flags: u8) -> Vec<u8> {
    frame(kind::DATA, flags, stream, text)
}

/// Returns RST_STREAM.
pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// Returns GOAWAY without an error.
pub fn goaway(last: u32) -> Vec<u8> {
    frame(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

/// Returns SETTINGS.
pub fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let pair = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(kind::SETTINGS, 0, 0, &pairs.iter().flat_map(pair).collect::<Vec<u8>>())
}

/// Returns the acknowledgement of SETTINGS.
pub fn settings_ack() -> Vec<u8> {
    frame(kind::SETTINGS, flag::ACK, 0, &[])
}

/// Returns WINDOW_UPDATE.
pub fn window_update(stream: u32, more: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl Sink for Fields {
    fn field(&mut self, Field { name, value, .. }: Field<'_>) {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        self.0.push((text(name), text(value)));
    }
}

/// Returns the fields of the first block of a connection.
pub fn fields(block: &[u8]) -> Vec<(String, String)> {
    let mut fields = Fields::default();
    Decoder::default().decode(block, &mut Vec::new(), &mut fields).expect("HPACK");
    fields.0
}

/// An answer as a client received it.
#[derive(Debug, Default, Clone)]
pub struct Answer {
    /// Fields, with `:status`.
    pub fields: Vec<(String, String)>,
    /// Content.
    pub body: Vec<u8>,
    /// Trailers.
    pub trailers: Vec<(String, String)>,
    /// Heads before the last.
    pub interim: Vec<Vec<(String, String)>>,
    /// The stream ended without a reset.
    pub ended: bool,
    /// Code of the reset that ended it.
    pub reset: Option<u32>,
}

impl Answer {
    /// Returns the value of a field, empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v)
    }

    /// Takes the fields of a block as the next head, or as the trailers.
    fn take(&mut self, fields: Vec<(String, String)>) {
        if self.fields.is_empty() || self.field(":status").starts_with('1') {
            let before = std::mem::replace(&mut self.fields, fields);
            self.interim.extend(Some(before).filter(|head| !head.is_empty()));
        } else {
            self.trailers = fields;
        }
    }
}

/// A client.
pub struct Client<S = TcpStream> {
    /// The connection.
    pub stream: S,
    decoder: Decoder,
    buf: Vec<u8>,
    /// Window updates are sent for what is read.
    pub reads: bool,
}

impl Client {
    /// Connects to `%PORT0%` of a server.
    pub fn new(server: &Server) -> Client {
        Client::on(TcpStream::connect(server.addr(0)).expect("connect"))
    }

    /// Begins on a connection.
    pub fn on(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(Duration::from_secs(15))).expect("timeout");
        Client::over(stream)
    }
}

impl<S: Read + Write> Client<S> {
    /// Begins on a connection that has a timeout.
    pub fn over(mut stream: S) -> Client<S> {
        stream.write_all(&[PREFACE.as_slice(), &settings(&[])].concat()).expect("preface");
        Client { stream, decoder: Decoder::default(), buf: Vec::new(), reads: true }
    }

    /// Sends bytes. Returns `false` if the server has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends a frame.
    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.send(&frame(kind, flags, stream, payload))
    }

    /// Sends the head of a `GET`, with more fields or pseudo-fields in the place of the usual ones.
    pub fn request(&mut self, stream: u32, path: &str, more: &[(&str, &str)], end: bool) -> bool {
        let pseudo = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", path)];
        let own = pseudo.iter().filter(|(n, _)| !more.iter().any(|(m, _)| m == n));
        let fields: Vec<(&str, &str)> = own.chain(more).copied().collect();
        let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
        self.frame(kind::HEADERS, flags, stream, &block(&fields))
    }

    /// Reads the next frame; `None` at the end of the connection.
    #[allow(clippy::should_implement_trait, reason = "a frame, then maybe something else")]
    pub fn next(&mut self) -> Option<Frame> {
        next(&mut self.stream, &mut self.buf)
    }

    /// Makes a frame the next one again.
    pub fn put_back(&mut self, f: &Frame) {
        self.buf.splice(..0, f.bytes());
    }

    /// Asks for a path by `GET` and returns the answer.
    pub fn get(&mut self, stream: u32, path: &str) -> Answer {
        self.request(stream, path, &[], true);
        self.answer(stream)
    }

    /// Asks for a path by `GET` and returns the status.
    pub fn get_status(&mut self, stream: u32, path: &str) -> String {
        self.get(stream, path).field(":status").to_owned()
    }

    /// Reads until the stream ends.
    pub fn answer(&mut self, stream: u32) -> Answer {
        let mut a = Answer::default();
        let mut block = Vec::new();
        while let Some(f) = self.next() {
            if matches!(f.kind, kind::HEADERS | kind::CONTINUATION) {
                block.extend_from_slice(&f.payload);
                if f.has(flag::END_HEADERS) {
                    let mut fields = Fields::default();
                    self.decoder.decode(&block, &mut Vec::new(), &mut fields).expect("HPACK");
                    block.clear();
                    if f.stream == stream {
                        a.take(fields.0);
                    }
                }
            }
            if f.stream == stream {
                if f.kind == kind::RST_STREAM {
                    a.reset = Some(f.code());
                    return a;
                }
                if f.kind == kind::DATA {
                    a.body.extend_from_slice(&f.payload);
                    if self.reads && !f.payload.is_empty() {
                        let more = f.payload.len() as u32;
                        self.send(&[window_update(0, more), window_update(stream, more)].concat());
                    }
                }
                if matches!(f.kind, kind::HEADERS | kind::DATA) && f.has(flag::END_STREAM) {
                    a.ended = true;
                    return a;
                }
            }
            if f.kind == kind::GOAWAY && f.code() != 0 {
                return a;
            }
        }
        a
    }

    /// Reads to the end of the connection. Returns the code of the last GOAWAY.
    pub fn goodbye(&mut self) -> Option<u32> {
        let frames = std::iter::from_fn(|| self.next());
        frames.filter(|f| f.kind == kind::GOAWAY).map(|f| f.code()).last()
    }
}

fn next(stream: &mut impl Read, buf: &mut Vec<u8>) -> Option<Frame> {
    loop {
        if let Some(frame) = Frame::take(buf) {
            return Some(frame);
        }
        let mut piece = [0; 65536];
        let n = stream.read(&mut piece).ok().filter(|n| *n > 0)?;
        buf.extend_from_slice(&piece[..n]);
    }
}

/// A connection of an upstream.
pub struct Peer {
    /// The connection.
    pub stream: TcpStream,
    buf: Vec<u8>,
}

impl Peer {
    /// Reads the next frame; `None` at the end.
    #[allow(clippy::should_implement_trait, reason = "a frame, then maybe something else")]
    pub fn next(&mut self) -> Option<Frame> {
        next(&mut self.stream, &mut self.buf)
    }

    /// Tells whether the client has closed the connection. A read that ran out of time tells nothing.
    pub fn is_gone(&self) -> bool {
        self.buf.is_empty() && matches!(self.stream.peek(&mut [0]), Ok(0))
    }

    /// Reads up to the next frame of a kind that is no acknowledgement of SETTINGS.
    pub fn next_of(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let f = self.next()?;
            if f.kind == kind && !(kind == kind::SETTINGS && f.has(flag::ACK)) {
                return Some(f);
            }
        }
    }

    /// Returns the stream of the next request.
    pub fn request(&mut self) -> Option<u32> {
        self.next_of(kind::HEADERS).map(|f| f.stream)
    }

    /// Sends frames; a client that is gone is no error.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        let _ = self.stream.write_all(&frames.concat());
    }

    /// Answers a request with 200 and a text.
    pub fn answer(&mut self, stream: u32, text: &str) {
        self.send(&[status(stream, 200, 0), data(stream, text.as_bytes(), flag::END_STREAM)]);
    }
}

/// Starts an upstream with these settings; `serve` gets each connection, with its number from 1. Counts the connections.
pub fn upstream(
    pairs: &[(u16, u32)],
    serve: impl Fn(&mut Peer, usize) + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let first = settings(pairs);
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    let addr = accept(move |mut stream, _| {
        let number = count.fetch_add(1, SeqCst) + 1;
        let _ = stream.set_read_timeout(Some(DEADLINE * 3));
        let mut preface = [0; PREFACE.len()];
        if stream.write_all(&first).is_ok() && stream.read_exact(&mut preface).is_ok() {
            let _ = stream.write_all(&settings_ack());
            serve(&mut Peer { stream, buf: Vec::new() }, number);
        }
    });
    (addr, connections)
}
