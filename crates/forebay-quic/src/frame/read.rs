//! Frames of a packet that arrived.

use super::ack::AckFrame;
use super::kind;
use crate::error::{Code, Error};
use crate::id::{ConnectionId, Dir, Side, StreamId};
use crate::packet::Kind;
use crate::varint::{MAX, Reader};

/// Largest number of streams of a kind: their identifiers have 62 bits (RFC 9000, section 4.6).
const MAX_STREAMS: u64 = 1 << 60;

const INITIAL: u64 = mask(Kind::Initial);
const ZERO_RTT: u64 = mask(Kind::ZeroRtt);
const HANDSHAKE: u64 = mask(Kind::Handshake);
const ONE_RTT: u64 = mask(Kind::OneRtt);

/// Returns one bit for each type of frame that packets of a kind may hold.
const fn mask(packet: Kind) -> u64 {
    let (mut mask, mut kind) = (0, 0);
    while kind < 64 {
        if kind::is_known(kind) && kind::allowed(kind, packet) {
            mask |= 1 << kind;
        }
        kind += 1;
    }
    mask
}

/// A frame. Content is borrowed from its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'b> {
    /// PADDING: a number of such frames behind each other.
    Padding(usize),
    /// PING.
    Ping,
    /// ACK.
    Ack(AckFrame<'b>),
    /// RESET_STREAM.
    ResetStream {
        /// The stream.
        id: StreamId,
        /// Error code of the application.
        code: u64,
        /// Bytes that the stream had.
        final_size: u64,
    },
    /// STOP_SENDING.
    StopSending {
        /// The stream.
        id: StreamId,
        /// Error code of the application.
        code: u64,
    },
    /// CRYPTO.
    Crypto {
        /// First byte.
        offset: u64,
        /// Bytes of the handshake.
        data: &'b [u8],
    },
    /// NEW_TOKEN with a token that is not empty.
    NewToken(&'b [u8]),
    /// STREAM.
    Stream {
        /// The stream.
        id: StreamId,
        /// First byte.
        offset: u64,
        /// Content. It ends below 2^62.
        data: &'b [u8],
        /// The stream ends with it.
        fin: bool,
    },
    /// MAX_DATA.
    MaxData(u64),
    /// MAX_STREAM_DATA.
    MaxStreamData {
        /// The stream.
        id: StreamId,
        /// Bytes that may be sent on it.
        limit: u64,
    },
    /// MAX_STREAMS.
    MaxStreams {
        /// Which streams.
        dir: Dir,
        /// Number of streams that may be opened, at most 2^60.
        limit: u64,
    },
    /// DATA_BLOCKED.
    DataBlocked(u64),
    /// STREAM_DATA_BLOCKED.
    StreamDataBlocked {
        /// The stream.
        id: StreamId,
        /// Limit that blocks it.
        limit: u64,
    },
    /// STREAMS_BLOCKED.
    StreamsBlocked {
        /// Which streams.
        dir: Dir,
        /// Limit that blocks them, at most 2^60.
        limit: u64,
    },
    /// NEW_CONNECTION_ID.
    NewConnectionId {
        /// Sequence number of the identifier.
        sequence: u64,
        /// Identifiers below this sequence number are to be retired. It is not above `sequence`.
        retire_prior_to: u64,
        /// The identifier, at least one byte.
        id: ConnectionId,
        /// Token of stateless resets for it.
        token: [u8; 16],
    },
    /// RETIRE_CONNECTION_ID with a sequence number.
    RetireConnectionId(u64),
    /// PATH_CHALLENGE.
    PathChallenge([u8; 8]),
    /// PATH_RESPONSE.
    PathResponse([u8; 8]),
    /// CONNECTION_CLOSE.
    ConnectionClose {
        /// Error code: the transport's if there is a type of frame, otherwise the application's.
        code: u64,
        /// Type of the frame that caused an error of the transport.
        frame: Option<u64>,
        /// Reason for people, which should be UTF-8.
        reason: &'b [u8],
    },
    /// HANDSHAKE_DONE.
    HandshakeDone,
    /// DATAGRAM.
    Datagram(&'b [u8]),
}

/// Iterator over the frames of a packet and their types. It ends after an error.
///
/// It checks all that does not depend on the state of the connection: the form of frames, ranges of their values, which packets they
/// may be in, and which side may send them. It does not know whether DATAGRAM frames were offered.
#[derive(Clone, Debug)]
pub struct Frames<'b> {
    reader: Reader<'b>,
    /// One bit for each type that may come, all of which are below 64.
    allowed: u64,
}

impl<'b> Frames<'b> {
    /// Creates an iterator over the payload of a packet that the side `from` sent.
    ///
    /// # Errors
    /// PROTOCOL_VIOLATION if there is no frame (RFC 9000, section 12.4).
    #[inline]
    pub fn new(payload: &'b [u8], packet: Kind, from: Side) -> Result<Frames<'b>, Error> {
        if payload.is_empty() {
            return Err(Error::new(Code::PROTOCOL_VIOLATION, "packet without a frame"));
        }
        let allowed = match (packet, from) {
            (Kind::Initial, _) => INITIAL,
            (Kind::Handshake, _) => HANDSHAKE,
            (Kind::ZeroRtt, _) => ZERO_RTT,
            (Kind::OneRtt, Side::Client) => ONE_RTT & !(1 << kind::NEW_TOKEN | 1 << kind::HANDSHAKE_DONE),
            (Kind::OneRtt, Side::Server) => ONE_RTT,
        };
        Ok(Frames { reader: Reader::new(payload), allowed })
    }

    /// Returns what is wrong with the type of the next frame. The reader is at the end then.
    #[cold]
    fn refuse(&mut self) -> Error {
        let mut reader = Reader::new(self.reader.rest());
        let Some(kind) = reader.varint() else { return malformed(0) };
        let (code, reason) = if !kind::is_known(kind) {
            (Code::FRAME_ENCODING_ERROR, "unknown frame type")
        } else if reader.position() > 1 {
            // All known types fit into one byte (RFC 9000, section 12.4).
            (Code::PROTOCOL_VIOLATION, "frame type is not in its shortest form")
        } else {
            (Code::PROTOCOL_VIOLATION, "frame type is not allowed in this packet, or from this side")
        };
        Error { frame: kind, ..Error::new(code, reason) }
    }

    /// Reads what follows the type of a frame. Returns `None` if it is malformed.
    #[inline]
    fn body(&mut self, kind: u64) -> Option<Frame<'b>> {
        match kind {
            kind::STREAM..=kind::STREAM_LAST => self.stream(kind),
            kind::PADDING => Some(self.padding()),
            kind::ACK | kind::ACK_ECN => {
                AckFrame::read(&mut self.reader, kind == kind::ACK_ECN).map(Frame::Ack)
            }
            kind::MAX_DATA..=kind::STREAMS_BLOCKED_UNI => self.flow(kind),
            kind::DATAGRAM => Some(Frame::Datagram(self.reader.rest())),
            kind::DATAGRAM_LEN => self.reader.sized().map(Frame::Datagram),
            _ => self.rare(kind),
        }
    }

    /// Reads the rest of a run of PADDING.
    fn padding(&mut self) -> Frame<'b> {
        let rest = self.reader.peek();
        // Sixteen at a time: an Initial packet has a thousand of them.
        let zeros = rest.as_chunks::<16>().0.iter().take_while(|chunk| u128::from_ne_bytes(**chunk) == 0);
        let whole = zeros.count() * 16;
        let run = rest.iter().skip(whole).take_while(|byte| **byte == 0).count() + whole;
        self.reader.bytes(run);
        Frame::Padding(run + 1)
    }

    #[inline]
    fn stream(&mut self, kind: u64) -> Option<Frame<'b>> {
        let id = StreamId(self.reader.varint()?);
        let offset = if kind & kind::STREAM_OFF != 0 { self.reader.varint()? } else { 0 };
        let data = if kind & kind::STREAM_LEN != 0 { self.reader.sized()? } else { self.reader.rest() };
        ends_in_range(offset, data).then_some(Frame::Stream {
            id,
            offset,
            data,
            fin: kind & kind::STREAM_FIN != 0,
        })
    }

    /// Reads a frame of flow control.
    fn flow(&mut self, kind: u64) -> Option<Frame<'b>> {
        let first = self.reader.varint()?;
        let streams = (first <= MAX_STREAMS).then_some(first);
        Some(match kind {
            kind::MAX_DATA => Frame::MaxData(first),
            kind::DATA_BLOCKED => Frame::DataBlocked(first),
            kind::MAX_STREAM_DATA => {
                Frame::MaxStreamData { id: StreamId(first), limit: self.reader.varint()? }
            }
            kind::STREAM_DATA_BLOCKED => {
                Frame::StreamDataBlocked { id: StreamId(first), limit: self.reader.varint()? }
            }
            kind::MAX_STREAMS_BIDI => Frame::MaxStreams { dir: Dir::Bi, limit: streams? },
            kind::MAX_STREAMS_UNI => Frame::MaxStreams { dir: Dir::Uni, limit: streams? },
            kind::STREAMS_BLOCKED_BIDI => Frame::StreamsBlocked { dir: Dir::Bi, limit: streams? },
            _ => Frame::StreamsBlocked { dir: Dir::Uni, limit: streams? },
        })
    }

    /// Reads a frame that is in few packets.
    fn rare(&mut self, kind: u64) -> Option<Frame<'b>> {
        let reader = &mut self.reader;
        Some(match kind {
            kind::PING => Frame::Ping,
            kind::RESET_STREAM => Frame::ResetStream {
                id: StreamId(reader.varint()?),
                code: reader.varint()?,
                final_size: reader.varint()?,
            },
            kind::STOP_SENDING => {
                Frame::StopSending { id: StreamId(reader.varint()?), code: reader.varint()? }
            }
            kind::CRYPTO => {
                let (offset, data) = (reader.varint()?, reader.sized()?);
                ends_in_range(offset, data).then_some(Frame::Crypto { offset, data })?
            }
            kind::NEW_TOKEN => reader.sized().filter(|token| !token.is_empty()).map(Frame::NewToken)?,
            kind::NEW_CONNECTION_ID => new_connection_id(reader)?,
            kind::RETIRE_CONNECTION_ID => Frame::RetireConnectionId(reader.varint()?),
            kind::PATH_CHALLENGE => Frame::PathChallenge(reader.array()?),
            kind::PATH_RESPONSE => Frame::PathResponse(reader.array()?),
            kind::CONNECTION_CLOSE => Frame::ConnectionClose {
                code: reader.varint()?,
                frame: Some(reader.varint()?),
                reason: reader.sized()?,
            },
            kind::CONNECTION_CLOSE_APP => {
                Frame::ConnectionClose { code: reader.varint()?, frame: None, reason: reader.sized()? }
            }
            kind::HANDSHAKE_DONE => Frame::HandshakeDone,
            _ => return None,
        })
    }
}

#[cold]
fn malformed(kind: u64) -> Error {
    Error { frame: kind, ..Error::new(Code::FRAME_ENCODING_ERROR, "malformed frame") }
}

/// Returns `true` if the last byte of content has an offset that can be written.
#[inline]
fn ends_in_range(offset: u64, data: &[u8]) -> bool {
    offset + data.len() as u64 <= MAX
}

fn new_connection_id<'b>(reader: &mut Reader<'_>) -> Option<Frame<'b>> {
    let sequence = reader.varint()?;
    let retire_prior_to = reader.varint().filter(|prior| *prior <= sequence)?;
    let n = reader.u8().filter(|n| *n > 0)?;
    let id = ConnectionId::new(reader.bytes(n.into())?)?;
    Some(Frame::NewConnectionId { sequence, retire_prior_to, id, token: reader.array()? })
}

impl<'b> Iterator for Frames<'b> {
    type Item = Result<(u64, Frame<'b>), Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let first = *self.reader.peek().first()?;
        if first >= 64 || self.allowed >> first & 1 == 0 {
            return Some(Err(self.refuse()));
        }
        self.reader.u8();
        let kind = first.into();
        let frame = self.body(kind);
        if frame.is_none() {
            self.reader.rest();
        }
        Some(frame.map(|frame| (kind, frame)).ok_or_else(|| malformed(kind)))
    }
}
