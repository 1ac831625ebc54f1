//! HTTP/2 for one stream at a time, on both sides: frames and field blocks of forebay-http over a connection that waits.

use crate::message::{Field, MOST_BODY, text};
use forebay_http::compression;
use forebay_http::h2::encode;
use forebay_http::h2::frame::{self, FrameHeader, HEADER_LEN, MAX_FRAME, flag, kind};
use forebay_http::h2::hpack::Decoder;
use std::io::{self, Read, Write};

/// Window that both sides give for what they receive.
const WINDOW: u32 = 0x7fff_ffff;

#[derive(Default)]
struct Fields(Vec<Field>);

impl compression::Sink for Fields {
    fn field(&mut self, field: compression::Field<'_>) {
        self.0.push((text(field.name), text(field.value)));
    }
}

/// A message of a stream: its fields, content and trailers.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub(crate) stream: u32,
    pub(crate) fields: Vec<Field>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<Field>,
}

/// Something that a peer sent.
enum Event {
    Fields { stream: u32, fields: Vec<Field>, last: bool },
    Data { stream: u32, bytes: Vec<u8>, last: bool },
    Reset { stream: u32, code: u32 },
    GoAway { code: u32 },
    Other,
}

/// A connection.
pub(crate) struct Session<S> {
    pub(crate) stream: S,
    client: bool,
    /// Stream whose response a client waits for.
    waits_for: u32,
    /// Messages whose end has not come.
    open: Vec<Message>,
    decoder: Decoder,
    scratch: Vec<u8>,
}

impl<S> std::fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

impl<S: Read + Write> Session<S> {
    /// Begins a connection: the preface of a client, if it is one, SETTINGS and a window for everything.
    pub(crate) fn begin(mut stream: S, client: bool) -> io::Result<Session<S>> {
        let mut out = if client { frame::PREFACE.to_vec() } else { Vec::new() };
        frame::push_settings(&mut out, &[(frame::setting::INITIAL_WINDOW_SIZE, WINDOW)]);
        frame::push_window_update(&mut out, 0, WINDOW - 65_535);
        stream.write_all(&out)?;
        Ok(Session {
            stream,
            client,
            waits_for: 0,
            open: Vec::new(),
            decoder: Decoder::default(),
            scratch: Vec::new(),
        })
    }

    /// Sends fields and content. A peer that gives no window gets what fits into the first one.
    pub(crate) fn send(&mut self, stream: u32, fields: &[Field], body: &[u8]) -> io::Result<()> {
        self.waits_for = stream;
        self.stream.write_all(&message(stream, fields, body, &[]))
    }

    /// Sends fields, content and trailers.
    pub(crate) fn send_with_trailers(
        &mut self,
        stream: u32,
        fields: &[Field],
        body: &[u8],
        trailers: &[Field],
    ) -> io::Result<()> {
        self.stream.write_all(&message(stream, fields, body, trailers))
    }

    /// Reads the next message that is complete.
    pub(crate) fn receive(&mut self) -> io::Result<Message> {
        loop {
            let (stream, last) = match self.event()? {
                Event::Fields { stream, fields, last } => (self.fields(stream, fields)?, last),
                Event::Data { stream, bytes, last } => (self.data(stream, &bytes)?, last),
                Event::Reset { stream, code } if self.client && stream == self.waits_for => {
                    return Err(bad(&format!("RST_STREAM with code {code}")));
                }
                Event::Reset { stream, .. } => {
                    self.open.retain(|m| m.stream != stream);
                    continue;
                }
                Event::GoAway { code } if self.open.is_empty() || code != 0 => {
                    return Err(bad(&format!("GOAWAY with code {code}")));
                }
                Event::GoAway { .. } | Event::Other => continue,
            };
            if last && let Some(at) = self.open.iter().position(|m| m.stream == stream) {
                return Ok(self.open.swap_remove(at));
            }
        }
    }

    fn fields(&mut self, stream: u32, fields: Vec<Field>) -> io::Result<u32> {
        let interim = fields.iter().any(|(n, v)| n == ":status" && v.starts_with('1'));
        let room = self.open.len() < 200;
        match self.open.iter_mut().find(|m| m.stream == stream) {
            _ if interim => {}
            Some(message) => message.trailers = fields,
            None if room => {
                self.open.push(Message { stream, fields, ..Message::default() });
            }
            None => return Err(bad("too many streams")),
        }
        Ok(stream)
    }

    fn data(&mut self, stream: u32, bytes: &[u8]) -> io::Result<u32> {
        if let Some(message) = self.open.iter_mut().find(|m| m.stream == stream) {
            message.body.extend_from_slice(bytes);
            if message.body.len() > MOST_BODY {
                return Err(bad("a body that is too large to compare"));
            }
        }
        Ok(stream)
    }

    fn frame(&mut self) -> io::Result<(FrameHeader, Vec<u8>)> {
        let mut head = [0; HEADER_LEN];
        self.stream.read_exact(&mut head)?;
        let header = FrameHeader::parse(&head).ok_or_else(|| bad("no frame"))?;
        if header.len > 1 << 20 {
            return Err(bad("a frame that is too long"));
        }
        let mut payload = vec![0; header.len];
        self.stream.read_exact(&mut payload)?;
        Ok((header, payload))
    }

    fn event(&mut self) -> io::Result<Event> {
        let (header, payload) = self.frame()?;
        let (stream, last) = (header.stream, header.has(flag::END_STREAM));
        let code = |at: usize| {
            let bytes = payload.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes.map_or(0, u32::from_be_bytes)
        };
        match header.kind {
            kind::HEADERS => {
                let fields = self.block(&header, unpadded(&header, payload)?)?;
                Ok(Event::Fields { stream, fields, last })
            }
            kind::DATA => {
                let taken = u32::try_from(payload.len()).unwrap_or_default();
                self.give_back(taken)?;
                Ok(Event::Data { stream, bytes: unpadded(&header, payload)?, last })
            }
            kind::RST_STREAM => Ok(Event::Reset { stream, code: code(0) }),
            kind::GOAWAY => Ok(Event::GoAway { code: code(4) }),
            kind::SETTINGS if !header.has(flag::ACK) => {
                let mut out = Vec::new();
                frame::push_settings_ack(&mut out);
                self.stream.write_all(&out)?;
                Ok(Event::Other)
            }
            kind::PING if !header.has(flag::ACK) => {
                let mut out = Vec::new();
                if let Ok(data) = payload.as_slice().try_into() {
                    frame::push_ping_ack(&mut out, data);
                }
                self.stream.write_all(&out)?;
                Ok(Event::Other)
            }
            _ => Ok(Event::Other),
        }
    }

    /// Keeps the window of the connection open; those of streams are larger than any body.
    fn give_back(&mut self, taken: u32) -> io::Result<()> {
        let mut out = Vec::new();
        if taken > 0 {
            frame::push_window_update(&mut out, 0, taken);
        }
        self.stream.write_all(&out)
    }

    /// Decodes a field block, with the frames that continue it.
    fn block(&mut self, header: &FrameHeader, mut block: Vec<u8>) -> io::Result<Vec<Field>> {
        let mut ended = header.has(flag::END_HEADERS);
        while !ended {
            let (more, payload) = self.frame()?;
            if more.kind != kind::CONTINUATION || block.len() > MOST_BODY {
                return Err(bad("a field block that does not end"));
            }
            block.extend(payload);
            ended = more.has(flag::END_HEADERS);
        }
        let mut fields = Fields::default();
        let decoded = self.decoder.decode(&block, &mut self.scratch, &mut fields);
        decoded.map_err(|_| bad("a field block that is not HPACK"))?;
        Ok(fields.0)
    }
}

/// Removes padding and priority of a frame.
fn unpadded(header: &FrameHeader, mut payload: Vec<u8>) -> io::Result<Vec<u8>> {
    if header.has(flag::PADDED) {
        let padding = payload.first().copied().map_or(0, usize::from);
        let end = payload.len().checked_sub(padding).filter(|end| *end >= 1);
        payload.truncate(end.ok_or_else(|| bad("padding without end"))?);
        payload.remove(0);
    }
    if header.kind == kind::HEADERS && header.has(flag::PRIORITY) {
        payload.drain(..payload.len().min(5));
    }
    Ok(payload)
}

/// Returns the frames of a message.
fn message(stream: u32, fields: &[Field], body: &[u8], trailers: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    let end = |last: bool| if last { flag::END_STREAM } else { 0 };
    frame::push_field_block(&mut out, stream, end(body.is_empty() && trailers.is_empty()), &encoded(fields));
    let mut rest = body;
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.len().min(MAX_FRAME));
        let last = behind.is_empty() && trailers.is_empty();
        frame::push_header(&mut out, part.len(), kind::DATA, end(last), stream);
        out.extend_from_slice(part);
        rest = behind;
    }
    if !trailers.is_empty() {
        frame::push_field_block(&mut out, stream, flag::END_STREAM, &encoded(trailers));
    }
    out
}

fn encoded(fields: &[Field]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        encode::field(&mut block, name.to_ascii_lowercase().as_bytes(), value.as_bytes());
    }
    block
}
