//! Unidirectional streams of the client: control, and those of QPACK (RFC 9114, section 6.2; RFC 9204, section 4.2).

use super::{Fatal, Session, State};
use crate::h3::Stream;
use crate::h3::uni::{self, Purpose};
use crate::thread::Thread;
use forebay_http::h3::Code;
use forebay_http::h3::frame::{self, Header, kind};
use forebay_http::h3::qpack::TABLE_CAPACITY;
use forebay_http::priority::Priority;
use forebay_net::quic::{Link, StreamId};
use std::rc::Rc;

impl Session {
    /// Reads a unidirectional stream.
    pub(super) fn read_uni(
        self: &Rc<Self>,
        thread: &Rc<Thread>,
        link: &Rc<Link>,
        id: StreamId,
    ) -> Result<(), Fatal> {
        self.unis.read(link, id, |purpose, input| match purpose {
            Purpose::Control => self.control(input),
            Purpose::Encoder => self.instructions(thread, input),
            Purpose::Decoder => self.state.borrow_mut().controls.take_feedback(input),
            Purpose::Push => Err((Code::StreamCreationError, "opened a push stream")),
            Purpose::Ignored | Purpose::Unknown => Ok(0),
        })
    }

    /// Handles frames of the control stream. Returns the number of bytes that were whole frames.
    fn control(&self, input: &[u8]) -> Result<usize, Fatal> {
        let mut at = 0;
        let mut s = self.state.borrow_mut();
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) {
            s.controls.spend(1)?;
            let frame = uni::control_frame(rest, s.controls.settings.is_some())?;
            let Some((header, payload, len)) = frame else { break };
            s.control_frame(header, payload, self.streams_at_a_time)?;
            at += len;
        }
        Ok(at)
    }

    /// Carries out instructions of the encoder stream, and goes on with the field sections that have waited for them.
    fn instructions(self: &Rc<Self>, thread: &Rc<Thread>, input: &[u8]) -> Result<usize, Fatal> {
        // A field that is longer would be refused in each request.
        let (_, longest) = self.limits(thread).large_client_header_buffers;
        let mut s = self.state.borrow_mut();
        let state = &mut *s;
        state.controls.decoder.limit_strings(longest);
        let done = state.controls.instructions(input, TABLE_CAPACITY)?;
        let inserted = state.controls.decoder.inserted();
        let is_due = |stream: &Rc<Stream>| {
            stream.blocked_section.borrow().as_ref().is_some_and(|(required, _)| *required <= inserted)
        };
        let streams = state.streams.iter().map(|(_, stream)| stream);
        let due: Vec<Rc<Stream>> = streams.filter(|stream| is_due(stream)).cloned().collect();
        drop(s);
        for stream in due {
            let section = stream.blocked_section.take();
            match section {
                Some((_, section)) if stream.has_begun() => stream.end_by_trailers(&section)?,
                Some((_, section)) => self.begin(thread, &stream, section, self.limits(thread))?,
                None => {}
            }
        }
        Ok(done)
    }
}

impl State {
    /// Handles a frame of the control stream (RFC 9114, section 7.2). `streams`: requests that a client may have open.
    fn control_frame(&mut self, header: Header, payload: &[u8], streams: u32) -> Result<(), Fatal> {
        let id = || frame::id(payload).map_err(|code| (code, "sent malformed control frame"));
        match header.kind {
            kind::SETTINGS => self.controls.take_settings(payload),
            kind::GOAWAY => {
                let id = id()?;
                if self.goaway.replace(id).is_some_and(|before| id > before) {
                    return Err((Code::IdError, "sent GOAWAY frame with a greater identifier"));
                }
                Ok(())
            }
            kind::MAX_PUSH_ID => {
                let id = id()?;
                if self.max_push.replace(id).is_some_and(|before| id < before) {
                    return Err((Code::IdError, "sent MAX_PUSH_ID frame with a smaller identifier"));
                }
                Ok(())
            }
            // This server pushes nothing.
            kind::CANCEL_PUSH => {
                id()?;
                Err((Code::IdError, "cancelled a push that does not exist"))
            }
            kind::PRIORITY_UPDATE => {
                let (id, value) = frame::priority_update(payload)
                    .map_err(|code| (code, "sent malformed PRIORITY_UPDATE frame"))?;
                // No stream beyond can have been allowed: for each that ends there is one more.
                if id % 4 != 0 || id >= self.next.saturating_add(4 * u64::from(streams)) {
                    return Err((Code::IdError, "sent PRIORITY_UPDATE frame for no request"));
                }
                self.update_priority(id, Priority::parse(value));
                Ok(())
            }
            kind::PRIORITY_UPDATE_PUSH => Err((Code::IdError, "sent PRIORITY_UPDATE frame for no push")),
            kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => {
                Err((Code::FrameUnexpected, "sent unexpected frame on the control stream"))
            }
            _ if header.is_reserved() => Err((Code::FrameUnexpected, "sent HTTP/2 frame")),
            _ => Ok(()),
        }
    }

    /// Changes the priority of a request that is there, or remembers that of one to come.
    fn update_priority(&mut self, id: u64, priority: Priority) {
        if id >= self.next {
            return self.early.note(id, priority);
        }
        if let Some(stream) = self.stream(StreamId(id)) {
            stream.update_priority(priority);
        }
    }
}
