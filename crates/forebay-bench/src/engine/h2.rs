//! HTTP/2 from the client's side (RFC 9113). Hot path.

use super::context::{Ctx, append_limited};
use super::flight::Flight;
use crate::record::Failure;
use forebay_http::field::Name;
use forebay_http::h2::frame::{self, Code, Header, flag, kind, setting};
use forebay_http::h2::frame::{HEADER_LEN, INITIAL_WINDOW, MAX_FRAME, MAX_WINDOW, PREFACE};
use forebay_http::h2::hpack::{Decoder, Field, Label, Sink};

/// Windows that we grant: large enough never to be what limits.
const WINDOW: u32 = 1 << 30;
/// Bytes after which a window is opened again.
const REOPEN: u64 = 1 << 28;
/// Most bytes of the field block of one answer.
const BLOCK: usize = 256 * 1024;

struct Stream {
    id: u32,
    flight: Flight,
    status: u16,
    length: Option<u64>,
    got: u64,
    unreported: u64,
    /// Content that is still to be sent: bytes of the request's body that went out, if not all did.
    sent: Option<usize>,
    window: i64,
    content: Vec<u8>,
}

/// The last field block that came and what it meant, when it used no dynamic table.
#[derive(Default)]
struct Known {
    block: Vec<u8>,
    status: u16,
    length: Option<u64>,
}

/// State of an HTTP/2 connection.
pub(super) struct H2 {
    streams: Vec<Stream>,
    next_id: u32,
    /// The peer's limits.
    max_streams: usize,
    initial_window: i64,
    max_frame: usize,
    window: i64,
    unreported: u64,
    decoder: Decoder,
    scratch: Vec<u8>,
    known: Known,
    /// A frame that is not whole yet.
    partial: Vec<u8>,
    /// DATA frame that is being read: header, bytes left, and whether it may count.
    data: Option<(Header, usize)>,
    /// Field block being gathered: stream, flags of HEADERS, bytes.
    block: Option<(u32, u8, Vec<u8>)>,
    goaway: bool,
    contents: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Fields {
    status: u16,
    length: Option<u64>,
}

impl Sink for Fields {
    fn field(&mut self, Field { label, value, .. }: Field<'_>) {
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        match label {
            Label::Status => self.status = number().filter(|n| (100..1000).contains(n)).unwrap_or(0) as u16,
            Label::Field(Name::ContentLength) => self.length = number(),
            _ => {}
        }
    }
}

impl H2 {
    /// Starts a connection: what we send first is appended to `out`.
    pub(super) fn new(out: &mut Vec<u8>, parallel: usize) -> H2 {
        out.extend_from_slice(PREFACE);
        let most = (setting::MAX_CONCURRENT_STREAMS, 100);
        frame::push_settings(out, &[(setting::ENABLE_PUSH, 0), most, (setting::INITIAL_WINDOW_SIZE, WINDOW)]);
        frame::push_window_update(out, 0, WINDOW - INITIAL_WINDOW as u32);
        H2 {
            streams: Vec::with_capacity(parallel),
            next_id: 1,
            max_streams: parallel,
            initial_window: INITIAL_WINDOW,
            max_frame: MAX_FRAME,
            window: INITIAL_WINDOW,
            unreported: 0,
            decoder: Decoder::default(),
            scratch: Vec::new(),
            known: Known::default(),
            partial: Vec::new(),
            data: None,
            block: None,
            goaway: false,
            contents: Vec::new(),
        }
    }

    /// Whether another stream may be opened.
    pub(super) fn has_room(&self, parallel: usize) -> bool {
        !self.goaway
            && self.streams.len() < parallel.min(self.max_streams)
            && self.next_id < MAX_WINDOW as u32 - 2
    }

    /// Whether the peer wants the connection to end.
    pub(super) fn is_ending(&self) -> bool {
        self.goaway || self.next_id >= MAX_WINDOW as u32 - 2
    }

    /// Requests under way.
    pub(super) fn flights(&self) -> impl Iterator<Item = Flight> + '_ {
        self.streams.iter().map(|s| s.flight)
    }

    /// How many those are.
    pub(super) fn active(&self) -> usize {
        self.streams.len()
    }

    /// Appends a request to `out`.
    pub(super) fn send(&mut self, ctx: &Ctx<'_>, flight: Flight, out: &mut Vec<u8>) {
        let Some(request) = ctx.load.requests.get(flight.request as usize) else { return };
        let id = self.next_id;
        self.next_id += 2;
        let end = if request.body.is_empty() { flag::END_STREAM } else { 0 };
        frame::push_header(out, request.h2.len(), kind::HEADERS, flag::END_HEADERS | end, id);
        out.extend_from_slice(&request.h2);
        let content = self.contents.pop().unwrap_or_default();
        let sent = (!request.body.is_empty()).then_some(0);
        let window = self.initial_window;
        let stream =
            Stream { id, flight, status: 0, length: None, got: 0, unreported: 0, sent, window, content };
        self.streams.push(stream);
        if sent.is_some() {
            self.send_bodies(ctx, out);
        }
    }

    /// Sends as much content as the windows allow.
    fn send_bodies(&mut self, ctx: &Ctx<'_>, out: &mut Vec<u8>) {
        for stream in self.streams.iter_mut().filter(|s| s.sent.is_some()) {
            let Some(request) = ctx.load.requests.get(stream.flight.request as usize) else { continue };
            while let Some(at) = stream.sent {
                let rest = request.body.get(at..).unwrap_or_default();
                let room = stream.window.min(self.window).max(0) as usize;
                let n = rest.len().min(room).min(self.max_frame);
                if n == 0 {
                    break;
                }
                let last = n == rest.len();
                frame::push_header(out, n, kind::DATA, if last { flag::END_STREAM } else { 0 }, stream.id);
                out.extend_from_slice(rest.get(..n).unwrap_or_default());
                stream.window -= n as i64;
                self.window -= n as i64;
                stream.sent = (!last).then_some(at + n);
            }
        }
    }

    fn position(&self, id: u32) -> Option<usize> {
        self.streams.iter().position(|s| s.id == id)
    }

    fn end_stream(&mut self, ctx: &mut Ctx<'_>, at: usize) {
        let mut stream = self.streams.swap_remove(at);
        let complete =
            stream.status != 0 && stream.length.is_none_or(|n| n == stream.got || ctx.is_head(stream.flight));
        if complete {
            ctx.answered(stream.flight, stream.status, stream.got, &stream.content);
        } else {
            ctx.failed(stream.flight, if stream.status == 0 { Failure::Protocol } else { Failure::Length });
        }
        stream.content.clear();
        self.contents.push(stream.content);
    }

    /// Takes bytes of the server; what is to be answered goes to `out`.
    pub(super) fn bytes(&mut self, ctx: &mut Ctx<'_>, data: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let mut data = data;
        loop {
            if let Some((header, left)) = self.data {
                let n = left.min(data.len());
                let (content, rest) = data.split_at(n);
                data = rest;
                self.take_data(ctx, header, content, left - n, out);
                if left > n {
                    return Ok(());
                }
                continue;
            }
            if data.is_empty() {
                return Ok(());
            }
            if self.partial.is_empty()
                && let Some(header) = Header::parse(data)
            {
                if header.len > MAX_FRAME {
                    return Err(Failure::Protocol);
                }
                if header.kind == kind::DATA && !header.has(flag::PADDED) {
                    self.begin_data(&header)?;
                    data = data.get(HEADER_LEN..).unwrap_or_default();
                    continue;
                }
                if let Some(payload) = data.get(HEADER_LEN..HEADER_LEN + header.len) {
                    self.frame(ctx, &header, payload, out)?;
                    data = data.get(HEADER_LEN + header.len..).unwrap_or_default();
                    continue;
                }
            }
            // Not whole: gather it.
            let wanted = match Header::parse(&self.partial) {
                None => HEADER_LEN,
                Some(header) if header.len > MAX_FRAME => return Err(Failure::Protocol),
                Some(header) => HEADER_LEN + header.len,
            };
            let n = (wanted - self.partial.len()).min(data.len());
            let (part, rest) = data.split_at(n);
            self.partial.extend_from_slice(part);
            data = rest;
            let Some(header) = Header::parse(&self.partial) else { continue };
            if self.partial.len() < HEADER_LEN + header.len {
                continue;
            }
            let whole = std::mem::take(&mut self.partial);
            self.frame(ctx, &header, whole.get(HEADER_LEN..).unwrap_or_default(), out)?;
            self.partial = whole;
            self.partial.clear();
        }
    }

    fn begin_data(&mut self, header: &Header) -> Result<(), Failure> {
        if self.block.is_some() || header.stream == 0 || header.stream >= self.next_id {
            return Err(Failure::Protocol);
        }
        self.data = Some((*header, header.len));
        Ok(())
    }

    fn take_data(
        &mut self,
        ctx: &mut Ctx<'_>,
        header: Header,
        content: &[u8],
        left: usize,
        out: &mut Vec<u8>,
    ) {
        let n = content.len() as u64;
        self.unreported += n;
        if self.unreported >= REOPEN {
            frame::push_window_update(out, 0, self.unreported as u32);
            self.unreported = 0;
        }
        let at = self.position(header.stream);
        if let Some(stream) = at.and_then(|at| self.streams.get_mut(at)) {
            stream.got += n;
            stream.unreported += n;
            if stream.unreported >= REOPEN {
                frame::push_window_update(out, stream.id, stream.unreported as u32);
                stream.unreported = 0;
            }
            if ctx.keep_content {
                append_limited(&mut stream.content, content);
            }
        }
        if left > 0 {
            self.data = Some((header, left));
            return;
        }
        self.data = None;
        if header.has(flag::END_STREAM)
            && let Some(at) = at
        {
            self.end_stream(ctx, at);
        }
    }

    fn frame(
        &mut self,
        ctx: &mut Ctx<'_>,
        header: &Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        if self.block.is_some() && header.kind != kind::CONTINUATION {
            return Err(Failure::Protocol);
        }
        match header.kind {
            kind::DATA => {
                let (start, end) = frame::unpad(header, payload).map_err(|_| Failure::Protocol)?;
                self.begin_data(header)?;
                // The padding counts for the windows, not for the content.
                self.unreported += (payload.len() - (end - start)) as u64;
                self.take_data(ctx, *header, payload.get(start..end).unwrap_or_default(), 0, out);
            }
            kind::HEADERS => {
                let (mut start, end) = frame::unpad(header, payload).map_err(|_| Failure::Protocol)?;
                if header.has(flag::PRIORITY) {
                    start += 5;
                }
                let block = payload.get(start..end).ok_or(Failure::Protocol)?;
                if header.stream.is_multiple_of(2) || header.stream >= self.next_id {
                    return Err(Failure::Protocol);
                }
                if header.has(flag::END_HEADERS) {
                    return self.fields(ctx, header.stream, header.flags, block);
                }
                self.block = Some((header.stream, header.flags, block.to_vec()));
            }
            kind::CONTINUATION => {
                let Some((stream, flags, mut block)) = self.block.take() else {
                    return Err(Failure::Protocol);
                };
                if stream != header.stream || block.len() + payload.len() > BLOCK {
                    return Err(Failure::Protocol);
                }
                block.extend_from_slice(payload);
                if header.has(flag::END_HEADERS) {
                    return self.fields(ctx, stream, flags, &block);
                }
                self.block = Some((stream, flags, block));
            }
            kind::SETTINGS => self.settings(ctx, header, payload, out)?,
            kind::PING if !header.has(flag::ACK) => {
                if payload.len() != 8 {
                    return Err(Failure::Protocol);
                }
                frame::push_header(out, 8, kind::PING, flag::ACK, 0);
                out.extend_from_slice(payload);
            }
            kind::RST_STREAM => {
                if let Some(at) = self.position(header.stream) {
                    let stream = self.streams.swap_remove(at);
                    // RFC 9113, section 8.7: not processed, may be sent again.
                    if frame::number(payload) == Some(Code::RefusedStream as u32) {
                        ctx.again(stream.flight);
                    } else {
                        ctx.failed(stream.flight, Failure::Read);
                    }
                }
            }
            kind::GOAWAY => {
                let last = frame::number(payload).ok_or(Failure::Protocol)? & 0x7fff_ffff;
                self.goaway = true;
                for stream in self.streams.extract_if(.., |s| s.id > last) {
                    ctx.again(stream.flight);
                }
            }
            kind::WINDOW_UPDATE => {
                let n = i64::from(frame::number(payload).ok_or(Failure::Protocol)? & 0x7fff_ffff);
                if header.stream == 0 {
                    self.window = self.window.saturating_add(n);
                } else if let Some(stream) =
                    self.position(header.stream).and_then(|at| self.streams.get_mut(at))
                {
                    stream.window = stream.window.saturating_add(n);
                }
                self.send_bodies(ctx, out);
            }
            kind::PUSH_PROMISE => return Err(Failure::Protocol),
            _ => {}
        }
        Ok(())
    }

    fn settings(
        &mut self,
        ctx: &Ctx<'_>,
        header: &Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        if header.has(flag::ACK) {
            return Ok(());
        }
        if !payload.len().is_multiple_of(6) || header.stream != 0 {
            return Err(Failure::Protocol);
        }
        for (id, value) in frame::settings(payload) {
            match id {
                setting::MAX_CONCURRENT_STREAMS => self.max_streams = value as usize,
                setting::INITIAL_WINDOW_SIZE if i64::from(value) <= MAX_WINDOW => {
                    let change = i64::from(value) - self.initial_window;
                    self.initial_window = i64::from(value);
                    self.streams.iter_mut().for_each(|s| s.window += change);
                }
                setting::MAX_FRAME_SIZE if (16_384..=16_777_215).contains(&value) => {
                    self.max_frame = value as usize
                }
                setting::INITIAL_WINDOW_SIZE | setting::MAX_FRAME_SIZE => return Err(Failure::Protocol),
                _ => {}
            }
        }
        frame::push_settings_ack(out);
        self.send_bodies(ctx, out);
        Ok(())
    }

    fn fields(&mut self, ctx: &mut Ctx<'_>, id: u32, flags: u8, block: &[u8]) -> Result<(), Failure> {
        let (status, length) = if !block.is_empty() && self.known.block == block {
            (self.known.status, self.known.length)
        } else {
            let before = self.decoder.size();
            let mut fields = Fields::default();
            self.decoder.decode(block, &mut self.scratch, &mut fields).map_err(|_| Failure::Protocol)?;
            // The same bytes mean the same only as long as there is no dynamic table.
            let stateless = before == 0 && self.decoder.size() == 0;
            self.known.block.clear();
            if stateless && block.first().is_some_and(|b| b & 0xe0 != 0x20) {
                self.known.block.extend_from_slice(block);
                (self.known.status, self.known.length) = (fields.status, fields.length);
            }
            (fields.status, fields.length)
        };
        let Some(at) = self.position(id) else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
        if stream.status == 0 && !(100..200).contains(&status) {
            if status == 0 {
                return Err(Failure::Protocol);
            }
            (stream.status, stream.length) = (status, length);
        }
        if flags & flag::END_STREAM != 0 {
            self.end_stream(ctx, at);
        }
        Ok(())
    }
}
