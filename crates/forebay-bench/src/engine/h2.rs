//! HTTP/2 from the client's side (RFC 9113). Hot path.

use super::context::{Ctx, append_limited};
use super::flight::Flight;
use crate::record::Failure;
use forebay_http::compression::{Field, Label, Sink};
use forebay_http::field::Name;
use forebay_http::h2::connection::{Connection, FlowControlError, Window};
use forebay_http::h2::frame::{self, Code, FrameHeader, flag, kind, setting};
use forebay_http::h2::frame::{HEADER_LEN, INITIAL_WINDOW, MAX_FRAME, MAX_WINDOW, PREFACE};
use forebay_http::h2::hpack::Decoder;
use forebay_http::h2::received::{Frame, Role, Section, Setting, Settings, Violation};

/// Windows that we grant, large enough never to limit the server.
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
    window: Window,
    content: Vec<u8>,
}

/// The last received field block with its meaning, if it used no dynamic table.
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
    connection: Connection,
    /// The peer's limits.
    max_streams: usize,
    max_frame: usize,
    unreported: u64,
    decoder: Decoder,
    scratch: Vec<u8>,
    known: Known,
    /// A frame that is not whole yet.
    partial: Vec<u8>,
    /// DATA frame that is being read.
    data: Option<Data>,
    goaway: bool,
    contents: Vec<Vec<u8>>,
    /// No request is sent before this time, ns ([`crate::load::Load::think`]).
    pub(super) gate: u64,
}

/// A DATA frame whose content is counted as it comes: it is not worth the copy to wait for all of it.
#[derive(Clone, Copy)]
struct Data {
    stream: u32,
    end_stream: bool,
    /// Bytes that have not been received.
    left: usize,
}

impl From<Violation> for Failure {
    fn from(_: Violation) -> Failure {
        Failure::Protocol
    }
}

impl From<FlowControlError> for Failure {
    fn from(_: FlowControlError) -> Failure {
        Failure::Protocol
    }
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
    /// Starts a connection. Appends our first frames to `out`.
    pub(super) fn new(out: &mut Vec<u8>, parallel: usize) -> H2 {
        out.extend_from_slice(PREFACE);
        let most = (setting::MAX_CONCURRENT_STREAMS, 100);
        frame::push_settings(out, &[(setting::ENABLE_PUSH, 0), most, (setting::INITIAL_WINDOW_SIZE, WINDOW)]);
        frame::push_window_update(out, 0, WINDOW - INITIAL_WINDOW as u32);
        H2 {
            streams: Vec::with_capacity(parallel),
            next_id: 1,
            connection: Connection::new(Role::Client, WINDOW),
            max_streams: parallel,
            max_frame: MAX_FRAME,
            unreported: 0,
            decoder: Decoder::default(),
            scratch: Vec::new(),
            known: Known::default(),
            partial: Vec::new(),
            data: None,
            goaway: false,
            contents: Vec::new(),
            gate: 0,
        }
    }

    /// Returns `true` if another stream may be opened.
    pub(super) fn has_room(&self, parallel: usize) -> bool {
        !self.goaway
            && self.streams.len() < parallel.min(self.max_streams)
            && self.next_id < MAX_WINDOW as u32 - 2
    }

    /// Returns `true` if the peer wants the connection to end.
    pub(super) fn is_ending(&self) -> bool {
        self.goaway || self.next_id >= MAX_WINDOW as u32 - 2
    }

    /// Returns the requests under way.
    pub(super) fn flights(&self) -> impl Iterator<Item = Flight> + '_ {
        self.streams.iter().map(|s| s.flight)
    }

    /// Returns the number of requests under way.
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
        let window = self.connection.initial_window();
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
                let room = stream.window.available().min(self.connection.send_window.available());
                let n = rest.len().min(room).min(self.max_frame);
                if n == 0 {
                    break;
                }
                let last = n == rest.len();
                frame::push_header(out, n, kind::DATA, if last { flag::END_STREAM } else { 0 }, stream.id);
                out.extend_from_slice(rest.get(..n).unwrap_or_default());
                stream.window.sent(n);
                self.connection.send_window.sent(n);
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
            ctx.answered(stream.flight, Some(stream.status), stream.got, &stream.content);
            self.gate = ctx.gate();
        } else {
            ctx.failed(stream.flight, if stream.status == 0 { Failure::Protocol } else { Failure::Length });
        }
        stream.content.clear();
        self.contents.push(stream.content);
    }

    /// Takes bytes of the server. Appends the frames that answer them to `out`.
    pub(super) fn bytes(&mut self, ctx: &mut Ctx<'_>, data: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let mut rest = data;
        while !rest.is_empty() {
            rest = if let Some(data) = self.data {
                let (content, behind) = rest.split_at(data.left.min(rest.len()));
                self.take_data(ctx, data, content, out);
                behind
            } else if self.partial.is_empty() {
                self.next(ctx, rest, out)?
            } else {
                self.gather(ctx, rest, out)?
            };
        }
        Ok(())
    }

    /// Takes the frame at the start of `bytes`. Returns the bytes behind it.
    fn next<'b>(
        &mut self,
        ctx: &mut Ctx<'_>,
        bytes: &'b [u8],
        out: &mut Vec<u8>,
    ) -> Result<&'b [u8], Failure> {
        let Some(header) = FrameHeader::parse(bytes) else { return self.gather(ctx, bytes, out) };
        self.connection.admit(&header)?;
        let payload = bytes.get(HEADER_LEN..).unwrap_or_default();
        if header.kind == kind::DATA && !header.has(flag::PADDED) {
            self.check_stream(header.stream)?;
            let end_stream = header.has(flag::END_STREAM);
            let data = Data { stream: header.stream, end_stream, left: header.len };
            let (content, behind) = payload.split_at(data.left.min(payload.len()));
            self.take_data(ctx, data, content, out);
            return Ok(behind);
        }
        let Some((payload, behind)) = payload.split_at_checked(header.len) else {
            return self.gather(ctx, bytes, out);
        };
        let frame = self.connection.frame(&header, payload)?;
        self.frame(ctx, frame, out)?;
        Ok(behind)
    }

    /// Gathers a frame that comes in pieces, and takes it when it is whole. Returns the bytes behind it.
    fn gather<'b>(
        &mut self,
        ctx: &mut Ctx<'_>,
        bytes: &'b [u8],
        out: &mut Vec<u8>,
    ) -> Result<&'b [u8], Failure> {
        let wanted = FrameHeader::parse(&self.partial).map_or(HEADER_LEN, |header| HEADER_LEN + header.len);
        let (part, behind) = bytes.split_at((wanted - self.partial.len()).min(bytes.len()));
        self.partial.extend_from_slice(part);
        let Some(header) = FrameHeader::parse(&self.partial) else { return Ok(behind) };
        self.connection.admit(&header)?;
        if self.partial.len() < HEADER_LEN + header.len {
            return Ok(behind);
        }
        let mut whole = std::mem::take(&mut self.partial);
        let frame = self.connection.frame(&header, whole.get(HEADER_LEN..).unwrap_or_default())?;
        self.frame(ctx, frame, out)?;
        whole.clear();
        self.partial = whole;
        Ok(behind)
    }

    /// Checks that a frame is on a stream that was opened.
    fn check_stream(&self, stream: u32) -> Result<(), Failure> {
        let opened = !stream.is_multiple_of(2) && stream < self.next_id;
        if opened { Ok(()) } else { Err(Failure::Protocol) }
    }

    /// Takes content of a DATA frame. When the frame is not whole, the next bytes belong to it, too.
    fn take_data(&mut self, ctx: &mut Ctx<'_>, mut data: Data, content: &[u8], out: &mut Vec<u8>) {
        data.left -= content.len();
        self.data = (data.left > 0).then_some(data);
        let n = content.len() as u64;
        self.unreported += n;
        if self.unreported >= REOPEN {
            frame::push_window_update(out, 0, self.unreported as u32);
            self.unreported = 0;
        }
        let Some(at) = self.position(data.stream) else { return };
        let Some(stream) = self.streams.get_mut(at) else { return };
        stream.got += n;
        stream.unreported += n;
        if stream.unreported >= REOPEN {
            frame::push_window_update(out, stream.id, stream.unreported as u32);
            stream.unreported = 0;
        }
        if ctx.keep_content {
            append_limited(&mut stream.content, content);
        }
        if data.end_stream && data.left == 0 {
            self.end_stream(ctx, at);
        }
    }

    fn frame(&mut self, ctx: &mut Ctx<'_>, frame: Frame<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        match frame {
            Frame::Data { stream, content, len, end_stream } => {
                self.check_stream(stream)?;
                // The padding counts for the windows, not for the content.
                self.unreported += (len - content.len()) as u64;
                self.take_data(ctx, Data { stream, end_stream, left: content.len() }, content, out);
            }
            Frame::Headers { section, fragment, end_headers } => {
                self.check_stream(section.stream)?;
                if end_headers {
                    return self.fields(ctx, section, fragment);
                }
                self.connection.field_block.begin(section, fragment);
            }
            Frame::Continuation { fragment, end_headers } => {
                return self.continuation(ctx, fragment, end_headers);
            }
            Frame::Settings(settings) => self.settings(ctx, &settings, out)?,
            Frame::Ping { ack: false, data } => frame::push_ping_ack(out, data),
            Frame::RstStream { stream, code } => self.rst_stream(ctx, stream, code),
            Frame::GoAway { last, .. } => {
                self.goaway = true;
                for stream in self.streams.extract_if(.., |s| s.id > last) {
                    ctx.again(stream.flight);
                }
            }
            Frame::WindowUpdate { stream, increment } => self.window_update(ctx, stream, increment, out)?,
            Frame::SettingsAck
            | Frame::Ping { .. }
            | Frame::Priority
            | Frame::PriorityUpdate { .. }
            | Frame::Unknown => {}
        }
        Ok(())
    }

    fn continuation(&mut self, ctx: &mut Ctx<'_>, fragment: &[u8], last: bool) -> Result<(), Failure> {
        let block = &mut self.connection.field_block;
        block.extend(fragment);
        if block.len() > BLOCK {
            return Err(Failure::Protocol);
        }
        let Some((section, bytes)) = last.then(|| block.finish()).flatten() else { return Ok(()) };
        let done = self.fields(ctx, section, &bytes);
        self.connection.field_block.recycle(bytes);
        done
    }

    fn rst_stream(&mut self, ctx: &mut Ctx<'_>, id: u32, code: u32) {
        let Some(at) = self.position(id) else { return };
        let stream = self.streams.swap_remove(at);
        // RFC 9113, section 8.7: not processed, may be sent again.
        if code == Code::RefusedStream as u32 {
            ctx.again(stream.flight);
        } else {
            ctx.failed(stream.flight, Failure::Read);
        }
    }

    fn window_update(
        &mut self,
        ctx: &Ctx<'_>,
        id: u32,
        increment: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        if id == 0 {
            self.connection.send_window.widen(i64::from(increment))?;
        } else if let Some(stream) = self.streams.iter_mut().find(|s| s.id == id) {
            stream.window.widen(i64::from(increment))?;
        }
        self.send_bodies(ctx, out);
        Ok(())
    }

    fn settings(&mut self, ctx: &Ctx<'_>, settings: &Settings<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        for setting in settings.iter(Role::Client) {
            self.apply(setting?)?;
        }
        frame::push_settings_ack(out);
        self.send_bodies(ctx, out);
        Ok(())
    }

    fn apply(&mut self, setting: Setting) -> Result<(), Failure> {
        match setting {
            Setting::MaxConcurrentStreams(n) => self.max_streams = n,
            Setting::MaxFrameSize(n) => self.max_frame = n,
            Setting::InitialWindowSize(size) => {
                let change = self.connection.set_initial_window(size);
                self.streams.iter_mut().try_for_each(|s| s.window.widen(change))?;
            }
            Setting::HeaderTableSize(_) | Setting::Other => {}
        }
        Ok(())
    }

    fn fields(&mut self, ctx: &mut Ctx<'_>, section: Section, block: &[u8]) -> Result<(), Failure> {
        let (status, length) = if !block.is_empty() && self.known.block == block {
            (self.known.status, self.known.length)
        } else {
            let before = self.decoder.size();
            let mut fields = Fields::default();
            self.decoder.decode(block, &mut self.scratch, &mut fields).map_err(|_| Failure::Protocol)?;
            // Equal bytes have the same meaning only without a dynamic table.
            let stateless = before == 0 && self.decoder.size() == 0;
            self.known.block.clear();
            if stateless && block.first().is_some_and(|b| b & 0xe0 != 0x20) {
                self.known.block.extend_from_slice(block);
                (self.known.status, self.known.length) = (fields.status, fields.length);
            }
            (fields.status, fields.length)
        };
        let Some(at) = self.position(section.stream) else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
        if stream.status == 0 && !(100..200).contains(&status) {
            if status == 0 {
                return Err(Failure::Protocol);
            }
            (stream.status, stream.length) = (status, length);
        }
        if section.end_stream {
            self.end_stream(ctx, at);
        }
        Ok(())
    }
}
