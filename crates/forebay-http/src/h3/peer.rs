//! Unidirectional streams of a connection (RFC 9114, section 6.2; RFC 9204, section 4.2): those of the peer, and our own.

use super::frame::{self, stream as stream_kind};
use super::input::append;
use super::transport::{Follows, Received, Transport};
use super::{Code, Fatal};
use bytes::{Buf, Bytes};

/// Largest number of bytes that are taken from QUIC at a time.
const PIECE: usize = 4096;
/// Largest number of bytes of a stream of ours that wait for the peer.
const MAX_UNSENT: usize = 64 * 1024;

/// Purpose of a unidirectional stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
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
struct PeerStream {
    id: u64,
    /// `None` until its type has been read.
    purpose: Option<Purpose>,
    /// Bytes that have not been handled.
    bytes: Bytes,
    /// What follows them.
    follows: Follows,
    /// They are only the begin of a frame or an instruction.
    is_partial: bool,
}

impl PeerStream {
    /// Takes bytes from QUIC. Returns `false` if there is nothing new but the end.
    fn fill(&mut self, quic: &impl Transport) -> bool {
        let received = match std::mem::replace(&mut self.follows, Follows::More) {
            Follows::More => quic.read(self.id, PIECE),
            Follows::Blocked => Received::Blocked,
            Follows::End => Received::End,
        };
        match received {
            Received::Bytes(more, follows) => {
                self.bytes = append(std::mem::take(&mut self.bytes), more);
                (self.follows, self.is_partial) = (follows, false);
                true
            }
            Received::End | Received::Reset => {
                self.follows = Follows::End;
                false
            }
            Received::Blocked | Received::Closed => {
                // A few bytes must not keep a datagram.
                self.bytes = Bytes::copy_from_slice(&self.bytes);
                false
            }
        }
    }
}

/// Bytes of a stream whose purpose is known.
pub(super) struct Piece {
    /// Place of the stream.
    at: usize,
    pub(super) purpose: Purpose,
    pub(super) bytes: Bytes,
}

/// The unidirectional streams of a peer that are open.
#[derive(Debug, Default)]
pub(super) struct PeerStreams(Vec<PeerStream>);

impl PeerStreams {
    /// Adds a stream that the peer has opened.
    pub(super) fn add(&mut self, id: u64) {
        let (bytes, follows) = (Bytes::new(), Follows::More);
        self.0.push(PeerStream { id, purpose: None, bytes, follows, is_partial: false });
    }

    /// Takes the bytes of a stream that have not been handled. [`PeerStreams::put_back`] gets the rest of them. Returns `None` if there is
    /// nothing before QUIC has more.
    ///
    /// # Errors
    /// A critical stream ends, or comes a second time.
    pub(super) fn take(&mut self, quic: &impl Transport, id: u64) -> Result<Option<Piece>, Fatal> {
        let Some(at) = self.0.iter().position(|stream| stream.id == id) else { return Ok(None) };
        loop {
            let Some(stream) = self.0.get_mut(at) else { return Ok(None) };
            if (stream.bytes.is_empty() || stream.is_partial) && !stream.fill(quic) {
                return match stream.follows {
                    Follows::End => self.end(at).map(|()| None),
                    Follows::More | Follows::Blocked => Ok(None),
                };
            }
            if let Some(purpose) = stream.purpose {
                return Ok(self.piece(at, purpose));
            }
            let Some((kind, len)) = frame::varint(&stream.bytes) else {
                stream.is_partial = true;
                continue;
            };
            stream.bytes.advance(len);
            let purpose = Purpose::of(kind);
            self.begin(at, purpose)?;
            if purpose != Purpose::Ignored {
                return Ok(self.piece(at, purpose));
            }
            self.0.swap_remove(at);
            quic.stop(id, Code::StreamCreationError);
            return Ok(None);
        }
    }

    /// Takes the bytes of a stream.
    fn piece(&mut self, at: usize, purpose: Purpose) -> Option<Piece> {
        let bytes = std::mem::take(&mut self.0.get_mut(at)?.bytes);
        Some(Piece { at, purpose, bytes })
    }

    /// Keeps what follows the first `done` bytes of a piece. `is_partial`: it cannot be handled before there is more.
    pub(super) fn put_back(&mut self, mut piece: Piece, done: usize, is_partial: bool) {
        if let Some(stream) = self.0.get_mut(piece.at) {
            piece.bytes.advance(done.min(piece.bytes.len()));
            (stream.bytes, stream.is_partial) = (piece.bytes, is_partial);
        }
    }

    /// Notes the purpose of a stream.
    fn begin(&mut self, at: usize, purpose: Purpose) -> Result<(), Fatal> {
        if purpose.is_critical() && self.0.iter().any(|other| other.purpose == Some(purpose)) {
            return Err(Fatal::new(Code::StreamCreationError, "opened a critical stream twice"));
        }
        if let Some(stream) = self.0.get_mut(at) {
            stream.purpose = Some(purpose);
        }
        Ok(())
    }

    fn end(&mut self, at: usize) -> Result<(), Fatal> {
        match self.0.swap_remove(at).purpose.is_some_and(Purpose::is_critical) {
            true => Err(Fatal::new(Code::ClosedCriticalStream, "closed a critical stream")),
            false => Ok(()),
        }
    }
}

/// Unidirectional stream of ours, and bytes that QUIC has not taken.
#[derive(Debug)]
pub(super) struct OwnStream {
    pub(super) id: u64,
    pub(super) waiting: Vec<u8>,
}

impl OwnStream {
    /// Opens a stream of a type. Returns `None` if the peer allows no more.
    pub(super) fn open(quic: &impl Transport, kind: u64) -> Option<OwnStream> {
        let id = quic.open()?;
        let mut waiting = Vec::new();
        frame::push_varint(&mut waiting, kind);
        Some(OwnStream { id, waiting })
    }

    /// Sends what waits. Returns the number of bytes that QUIC has taken.
    pub(super) fn send(&mut self, quic: &impl Transport) -> usize {
        if self.waiting.is_empty() {
            return 0;
        }
        let sent = quic.write(self.id, &self.waiting).unwrap_or(0);
        self.waiting.drain(..sent);
        // A peer that takes nothing does not need it. Of insertions only few can wait.
        self.waiting.truncate(MAX_UNSENT);
        sent
    }
}
