//! Unidirectional streams of the server: control, and those of QPACK (RFC 9114, section 6.2; RFC 9204, section 4.2).

use super::{Session, State};
use crate::h3::session::Fatal;
use crate::h3::uni::{self, Purpose};
use crate::upstream::pooled::{Problem, ProblemKind, Session as _};
use forebay_http::h3::Code;
use forebay_http::h3::frame::{self, Header, kind};
use forebay_net::quic::StreamId;
use std::rc::Rc;

impl Session {
    /// Reads a unidirectional stream.
    pub(super) fn read_uni(self: &Rc<Self>, id: StreamId) -> Result<(), Fatal> {
        self.unis.read(&self.link, id, |purpose, input| match purpose {
            Purpose::Control => self.control(input),
            Purpose::Encoder => self.instructions(input),
            Purpose::Decoder => self.state.borrow_mut().controls.take_feedback(input),
            // Without MAX_PUSH_ID none is allowed (RFC 9114, section 4.6).
            Purpose::Push => Err((Code::IdError, "opened a push stream")),
            Purpose::Ignored | Purpose::Unknown => Ok(0),
        })
    }

    /// Handles frames of the control stream. Returns the number of bytes that were whole frames.
    fn control(&self, input: &[u8]) -> Result<usize, Fatal> {
        let mut at = 0;
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) {
            let mut s = self.state.borrow_mut();
            s.controls.spend(1)?;
            let frame = uni::control_frame(rest, s.controls.settings.is_some())?;
            let Some((header, payload, len)) = frame else { break };
            let leaving = s.control_frame(header, payload)?;
            drop(s);
            if let Some(first) = leaving {
                self.go_away(first);
            }
            at += len;
        }
        Ok(at)
    }

    /// Takes no further requests. Those that the server will not serve are sent elsewhere.
    fn go_away(&self, first: u64) {
        let unserved: Vec<_> = {
            let s = self.state.borrow();
            let later = s.streams.iter().filter(|(id, _)| id.0 >= first);
            later.filter_map(|(_, stream)| stream.upgrade()).collect()
        };
        for stream in unserved {
            let text = "sent GOAWAY frame instead of a response".into();
            stream.break_off(Problem { text, kind: ProblemKind::Unsent });
        }
        self.retire();
    }

    /// Carries out instructions of the encoder stream, and wakes requests that have waited for them.
    fn instructions(&self, input: &[u8]) -> Result<usize, Fatal> {
        let mut s = self.state.borrow_mut();
        let done = s.controls.instructions(input, self.key.limits.table)?;
        let inserted = s.controls.decoder.inserted();
        let streams: Vec<_> = s.streams.iter().filter_map(|(_, stream)| stream.upgrade()).collect();
        drop(s);
        streams.iter().for_each(|stream| stream.unblock(inserted));
        Ok(done)
    }
}

impl State {
    /// Handles a frame of the control stream (RFC 9114, section 7.2). Returns the first stream that the server does not serve, if it wants
    /// no more of them.
    fn control_frame(&mut self, header: Header, payload: &[u8]) -> Result<Option<u64>, Fatal> {
        match header.kind {
            kind::SETTINGS => self.controls.take_settings(payload).map(|()| None),
            kind::GOAWAY => {
                let id = frame::id(payload).map_err(|code| (code, "sent malformed control frame"))?;
                // The identifier of a request (RFC 9114, section 5.2).
                if id % 4 != 0 || self.goaway.replace(id).is_some_and(|before| id > before) {
                    return Err((Code::IdError, "sent GOAWAY frame with an invalid identifier"));
                }
                Ok(Some(id))
            }
            // We allow no pushes.
            kind::CANCEL_PUSH => Err((Code::IdError, "cancelled a push that does not exist")),
            kind::DATA
            | kind::HEADERS
            | kind::PUSH_PROMISE
            | kind::MAX_PUSH_ID
            | kind::PRIORITY_UPDATE
            | kind::PRIORITY_UPDATE_PUSH => {
                Err((Code::FrameUnexpected, "sent unexpected frame on the control stream"))
            }
            _ if header.is_reserved() => Err((Code::FrameUnexpected, "sent HTTP/2 frame")),
            _ => Ok(None),
        }
    }
}
