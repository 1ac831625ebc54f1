//! Unidirectional streams that a peer opens: control, and those of QPACK (RFC 9114, section 6.2; RFC 9204, section 4.2). Clients and
//! upstreams are read by the same code.

use super::session::{Fatal, code};
use forebay_http::h3::Code;
use forebay_http::h3::frame::{self, Header, MAX_CONTROL_FRAME, kind, stream as stream_kind};
use forebay_net::quic::{Link, Next, ReadError, StreamId};
use std::cell::RefCell;

/// Purpose of a unidirectional stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Its type has not been read.
    Unknown,
    Control,
    Encoder,
    Decoder,
    Push,
    /// Of a type that we do not know.
    Ignored,
}

impl Purpose {
    fn of(kind: u64) -> Purpose {
        match kind {
            stream_kind::CONTROL => Purpose::Control,
            stream_kind::ENCODER => Purpose::Encoder,
            stream_kind::DECODER => Purpose::Decoder,
            stream_kind::PUSH => Purpose::Push,
            _ => Purpose::Ignored,
        }
    }

    /// Returns `true` for a stream that the peer opens once and never closes.
    fn is_critical(self) -> bool {
        matches!(self, Purpose::Control | Purpose::Encoder | Purpose::Decoder)
    }
}

/// Unidirectional stream of the peer.
#[derive(Debug)]
struct Uni {
    id: StreamId,
    purpose: Purpose,
    /// Bytes that have not been handled.
    input: Vec<u8>,
}

/// The unidirectional streams of a peer that are open.
#[derive(Debug, Default)]
pub struct Unis(RefCell<Vec<Uni>>);

impl Unis {
    /// Adds a stream that the peer has opened.
    pub fn add(&self, id: StreamId) {
        self.0.borrow_mut().push(Uni { id, purpose: Purpose::Unknown, input: Vec::new() });
    }

    /// Reads what has come of a stream. `handle` gets the bytes of a stream whose purpose is known, and returns the number of those that
    /// it has taken; it gets the others again, with what follows them.
    pub(crate) fn read(
        &self,
        link: &Link,
        id: StreamId,
        mut handle: impl FnMut(Purpose, &[u8]) -> Result<usize, Fatal>,
    ) -> Result<(), Fatal> {
        loop {
            // A statement of its own: handlers use the link.
            let read = link.streams().read(id, 4096);
            let next = match read {
                Ok(Some(chunk)) => {
                    self.bytes(link, id, &chunk.bytes, &mut handle)?;
                    chunk.next
                }
                Ok(None) | Err(ReadError::Reset(_)) => Next::End,
                Err(ReadError::Blocked | ReadError::Closed) => return Ok(()),
            };
            match next {
                Next::More => {}
                Next::Blocked => return Ok(()),
                Next::End => return self.ended(id),
            }
        }
    }

    fn bytes(
        &self,
        link: &Link,
        id: StreamId,
        bytes: &[u8],
        handle: &mut impl FnMut(Purpose, &[u8]) -> Result<usize, Fatal>,
    ) -> Result<(), Fatal> {
        let mut unis = self.0.borrow_mut();
        let Some(uni) = unis.iter_mut().find(|uni| uni.id == id) else { return Ok(()) };
        let mut purpose = uni.purpose;
        if uni.input.is_empty() && purpose != Purpose::Unknown {
            drop(unis);
            let done = handle(purpose, bytes)?;
            if let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
                self.keep(id, rest.to_vec(), purpose);
            }
            return Ok(());
        }
        let mut input = std::mem::take(&mut uni.input);
        input.extend_from_slice(bytes);
        if purpose == Purpose::Unknown
            && let Some((kind, len)) = frame::varint(&input)
        {
            input.drain(..len);
            purpose = Purpose::of(kind);
            if purpose.is_critical() && unis.iter().any(|other| other.purpose == purpose) {
                return Err((Code::StreamCreationError, "opened a critical stream twice"));
            }
        }
        if purpose == Purpose::Ignored {
            unis.retain(|uni| uni.id != id);
            let _ = link.streams().stop(id, code(Code::StreamCreationError));
            return Ok(());
        }
        drop(unis);
        let done = if purpose == Purpose::Unknown { 0 } else { handle(purpose, &input)? };
        input.drain(..done);
        self.keep(id, input, purpose);
        Ok(())
    }

    /// Keeps the purpose of a stream, and bytes that have not been handled.
    fn keep(&self, id: StreamId, input: Vec<u8>, purpose: Purpose) {
        if let Some(uni) = self.0.borrow_mut().iter_mut().find(|uni| uni.id == id) {
            (uni.input, uni.purpose) = (input, purpose);
        }
    }

    fn ended(&self, id: StreamId) -> Result<(), Fatal> {
        let mut unis = self.0.borrow_mut();
        let Some(at) = unis.iter().position(|uni| uni.id == id) else { return Ok(()) };
        match unis.swap_remove(at).purpose.is_critical() {
            true => Err((Code::ClosedCriticalStream, "closed a critical stream")),
            false => Ok(()),
        }
    }
}

/// Frame of a control stream: its header, its payload, and the length of both.
pub type ControlFrame<'i> = (Header, &'i [u8], usize);

/// Reads the first frame of a control stream, if it is whole.
pub fn control_frame(input: &[u8], has_settings: bool) -> Result<Option<ControlFrame<'_>>, Fatal> {
    let Some((header, begin)) = Header::read(input) else { return Ok(None) };
    if !has_settings && header.kind != kind::SETTINGS {
        return Err((Code::MissingSettings, "began the control stream without SETTINGS"));
    }
    if header.len > MAX_CONTROL_FRAME {
        return Err((Code::ExcessiveLoad, "sent too large control frame"));
    }
    let payload = input.get(begin..begin + header.len as usize);
    Ok(payload.map(|payload| (header, payload, begin + payload.len())))
}
