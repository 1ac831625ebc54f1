//! Field compression of a connection (RFC 9204): the dynamic tables of both directions, and our encoder and decoder streams. Hot path.

use super::encoder::Encoder;
use super::frame::{Header, Settings, kind, stream as stream_kind};
use super::peer::OwnStream;
use super::qpack::{self, Decoder, Feedback};
use super::repeats::{Repeats, TableState};
use super::transport::Transport;
use super::{Code, Fatal};

/// Bytes of our encoder stream that wait for the peer, from which on nothing is inserted.
const UNSENT_INSERTS: usize = 4096;
/// Bytes of Section Acknowledgments that leave together while requests follow each other, some 16 of them. One lets the encoder evict
/// entries of its table, which can wait. Insertions are acknowledged at once.
const ACKNOWLEDGMENTS: usize = 32;
/// Memory of the scratch buffer that stays, bytes.
const SCRATCH: usize = 64 * 1024;

/// Error of a field section that cannot be decoded.
pub const FAILED: Fatal = Fatal::new(Code::DecompressionFailed, "sent invalid field section");

/// Insertions that a field section needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// All of these have arrived.
    Here(u64),
    /// Not all of these have.
    Awaited(u64),
}

/// Time at which a Section Acknowledgment leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledge {
    /// With the next bytes that are sent.
    AtOnce,
    /// With others, or with something more urgent.
    Later,
}

/// See the module.
#[derive(Debug)]
pub struct Tables {
    decoder: Decoder,
    /// Size of the table that the peer's encoder may use, bytes.
    capacity: usize,
    /// Streams whose field sections may wait for insertions.
    blocked_streams: usize,
    /// Number of the connection among those of its thread, once a request has referred to the table of the decoder.
    number: Option<u64>,
    /// Insertions that have been acknowledged.
    acknowledged: u64,
    /// Size of the table that the peer keeps for what we send, once it has said so, bytes.
    offered: Option<u64>,
    /// Encoder of what we send, once the peer has offered a table for it and there was something to encode.
    encoder: Option<Box<Encoder>>,
    feedback: Option<OwnStream>,
    /// `feedback` has more than a few Section Acknowledgments.
    feedback_is_due: bool,
    inserts: Option<OwnStream>,
    scratch: Vec<u8>,
}

/// Our streams.
impl Tables {
    /// Creates the tables of a connection that begins.
    pub(super) fn new(capacity: usize, blocked_streams: usize) -> Tables {
        Tables {
            decoder: Decoder::new(capacity),
            capacity,
            blocked_streams,
            number: None,
            acknowledged: 0,
            offered: None,
            encoder: None,
            feedback: None,
            feedback_is_due: false,
            inserts: None,
            scratch: Vec::new(),
        }
    }

    /// Opens our decoder stream. Returns `true` if there is one.
    pub(super) fn open(&mut self, quic: &impl Transport) -> bool {
        self.feedback = OwnStream::open(quic, stream_kind::DECODER);
        self.feedback_is_due = true;
        self.feedback.is_some()
    }

    /// Returns our streams.
    pub(super) fn own(&self) -> impl Iterator<Item = u64> {
        [&self.feedback, &self.inserts].into_iter().flatten().map(|own| own.id)
    }

    /// Has Section Acknowledgments wait no longer.
    pub fn hurry(&mut self) {
        self.feedback_is_due = true;
    }

    /// Sends what waits on our streams. Returns the number of bytes that QUIC has taken.
    pub(super) fn send(&mut self, quic: &impl Transport) -> usize {
        let feedback = self.feedback.as_mut().filter(|_| self.feedback_is_due);
        let sent = feedback.into_iter().chain(self.inserts.as_mut()).map(|own| own.send(quic)).sum();
        self.feedback_is_due &= self.feedback.as_ref().is_some_and(|own| !own.waiting.is_empty());
        sent
    }
}

/// Field sections of the peer.
impl Tables {
    /// Sets the length of the longest name and value that the peer may insert, bytes.
    pub fn limit_strings(&mut self, longest: usize) {
        self.decoder.limit_strings(longest);
    }

    /// Returns the number of insertions so far.
    pub fn inserted(&self) -> u64 {
        self.decoder.inserted()
    }

    /// Returns the number of insertions that a field section needs. `waiting` counts the streams that wait already for some; only so many
    /// may.
    ///
    /// # Errors
    /// The section is wrong, or too many wait.
    pub fn required(&self, section: &[u8], waiting: impl FnOnce() -> usize) -> Result<Required, Fatal> {
        let required = self.decoder.required(section).map_err(|_| FAILED)?;
        if required <= self.decoder.inserted() {
            return Ok(Required::Here(required));
        }
        match waiting() >= self.blocked_streams {
            true => Err(Fatal::new(Code::DecompressionFailed, "blocked too many streams")),
            false => Ok(Required::Awaited(required)),
        }
    }

    /// Calls `decode` with the decoder and a buffer for its use.
    pub fn decode<R>(&mut self, decode: impl FnOnce(&Decoder, &mut Vec<u8>) -> R) -> R {
        let decoded = decode(&self.decoder, &mut self.scratch);
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH);
        decoded
    }

    /// Returns the state of the table that a section refers to.
    pub fn state(&mut self, repeats: &mut Repeats, required: u64) -> TableState {
        let connection = *self.number.get_or_insert_with(|| repeats.next_connection());
        TableState::of(connection, &self.decoder, required)
    }

    /// Has the peer's encoder know that a section of a stream that needed insertions was decoded (RFC 9204, section 4.4.1).
    pub fn acknowledge(&mut self, id: u64, when: Acknowledge) {
        if let Some(OwnStream { waiting, .. }) = &mut self.feedback {
            qpack::push_section_ack(waiting, id);
            self.feedback_is_due |= when == Acknowledge::AtOnce || waiting.len() >= ACKNOWLEDGMENTS;
        }
    }

    /// Has the peer's encoder know that the field sections of a stream will not be decoded (RFC 9204, section 4.4.2).
    pub fn cancel(&mut self, id: u64) {
        // Without a table it need not know (section 2.2.2.2).
        if let Some(OwnStream { waiting, .. }) = self.feedback.as_mut().filter(|_| self.capacity > 0) {
            qpack::push_stream_cancellation(waiting, id);
            self.feedback_is_due = true;
        }
    }

    /// Carries out instructions of the peer's encoder stream. Returns the length of those that were whole.
    ///
    /// # Errors
    /// One is wrong or too large.
    pub(super) fn instructions(&mut self, input: &[u8]) -> Result<usize, Fatal> {
        let done = self.decoder.instructions(input, &mut self.scratch);
        let done =
            done.map_err(|_| Fatal::new(Code::EncoderStreamError, "sent invalid QPACK instruction"))?;
        if done == 0 && input.len() > 2 * self.capacity.max(64) {
            return Err(Fatal::new(Code::EncoderStreamError, "sent too large QPACK instruction"));
        }
        // An encoder that inserts may need room.
        self.feedback_is_due |= done > 0;
        let inserted = self.decoder.inserted();
        if inserted > self.acknowledged
            && let Some(OwnStream { waiting, .. }) = &mut self.feedback
        {
            qpack::push_insert_count_increment(waiting, inserted - self.acknowledged);
            self.acknowledged = inserted;
        }
        Ok(done)
    }

    /// Returns the number of instructions of the peer's encoder stream that have been carried out.
    pub(super) fn carried_out(&self) -> u64 {
        self.decoder.carried_out()
    }
}

/// Field sections that we send.
impl Tables {
    /// Reads the peer's decoder stream. Returns the length of whole instructions, and their number.
    ///
    /// # Errors
    /// One is wrong.
    pub(super) fn take_feedback(&mut self, input: &[u8]) -> Result<(usize, u64), Fatal> {
        const WRONG: Fatal = Fatal::new(Code::DecoderStreamError, "acknowledged what was not sent");
        let (mut at, mut count) = (0, 0);
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) {
            let (instruction, len) = match qpack::feedback(rest) {
                Ok(read) => read,
                Err(qpack::Error::Truncated) => break,
                Err(qpack::Error::Invalid) => return Err(WRONG),
            };
            match (&mut self.encoder, instruction) {
                (Some(encoder), Feedback::SectionAck(id)) => encoder.acknowledge(id).map_err(|_| WRONG)?,
                (Some(encoder), Feedback::InsertCountIncrement(n)) => {
                    encoder.increment(n).map_err(|_| WRONG)?
                }
                (Some(encoder), Feedback::StreamCancellation(id)) => encoder.cancel(id),
                (None, Feedback::StreamCancellation(_)) => {}
                (None, _) => return Err(WRONG),
            }
            (at, count) = (at + len, count + 1);
        }
        Ok((at, count))
    }

    /// Takes the peer's settings over.
    pub(super) fn note_settings(&mut self, settings: &Settings) {
        self.offered = Some(settings.table_capacity);
    }

    /// Appends a HEADERS frame of a stream. `section` is encoded by the static table. Returns `true` if there are insertions to send.
    pub(super) fn push_section(
        &mut self,
        quic: &impl Transport,
        id: u64,
        section: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        self.begin_encoder(quic);
        let waiting = self.inserts.as_ref().map_or(0, |own| own.waiting.len());
        self.scratch.clear();
        let encoded = self.encoder.as_mut().and_then(|encoder| {
            let inserts = self.inserts.as_mut().filter(|_| waiting < UNSENT_INSERTS);
            encoder.encode(id, section, &mut self.scratch, inserts.map(|own| &mut own.waiting))
        });
        let (head, rest) = match encoded.and_then(|at| self.scratch.split_at_checked(at)) {
            // The lines are there before the prefix.
            Some((lines, prefix)) => (prefix, lines),
            None => (section, &[][..]),
        };
        out.reserve(head.len() + rest.len() + 16);
        Header { kind: kind::HEADERS, len: (head.len() + rest.len()) as u64 }.push(out);
        out.extend_from_slice(head);
        out.extend_from_slice(rest);
        self.inserts.as_ref().is_some_and(|own| own.waiting.len() > waiting)
    }

    /// Opens the encoder stream, if the peer offers a table and its settings are there.
    fn begin_encoder(&mut self, quic: &impl Transport) {
        if self.inserts.is_some() {
            return;
        }
        let Some(encoder) = self.offered.and_then(Encoder::new) else { return };
        self.inserts = OwnStream::open(quic, stream_kind::ENCODER);
        if self.inserts.is_some() {
            self.encoder = Some(Box::new(encoder));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::transport::memory::Memory;
    use super::*;

    #[test]
    fn few_acknowledgments_wait_for_more() {
        let mut tables = Tables::new(4096, 16);
        tables.feedback = Some(OwnStream { id: 3, waiting: Vec::new() });
        for n in 1..ACKNOWLEDGMENTS {
            tables.acknowledge(4, Acknowledge::Later);
            assert!(!tables.feedback_is_due, "{n}");
        }
        tables.acknowledge(4, Acknowledge::Later);
        assert!(tables.feedback_is_due);
        // Other instructions do not wait, nor does what is in front of them.
        let in_haste: [&dyn Fn(&mut Tables); 4] = [
            &|tables| tables.hurry(),
            &|tables| tables.acknowledge(4, Acknowledge::AtOnce),
            &|tables| tables.cancel(4),
            // Set Dynamic Table Capacity
            &|tables| assert_eq!(tables.instructions(&[0x3f, 0x21]), Ok(2)),
        ];
        for hurry in in_haste {
            tables.feedback_is_due = false;
            hurry(&mut tables);
            assert!(tables.feedback_is_due);
        }
    }

    #[test]
    fn without_a_table_nothing_is_cancelled() {
        let (quic, mut tables) = (Memory::default(), Tables::new(0, 0));
        assert!(tables.open(&quic));
        tables.cancel(4);
        tables.send(&quic);
        assert_eq!(quic.take(3), [stream_kind::DECODER as u8]);
    }
}
