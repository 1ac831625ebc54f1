//! Parts of a connection that its requests share, at either end: our control and QPACK streams, the tables of field compression, and what
//! the peer may send without a limit of its own (RFC 9114, section 6.2; RFC 9204). Hot path.

use super::session::Fatal;
use forebay_http::h3::Code;
use forebay_http::h3::encoder::Encoder;
use forebay_http::h3::frame::{self, Header, Settings, kind, setting, stream as stream_kind};
use forebay_http::h3::qpack::{self, Decoder, Feedback};
use forebay_http::h3::repeats::{Repeats, TableState};
use forebay_net::quic::{Dir, Link, StreamId};

/// Streams whose field sections may wait for insertions.
pub const BLOCKED_STREAMS: usize = 16;
/// Most bytes of our control and decoder streams that wait for the peer.
const MOST_UNSENT: usize = 64 * 1024;
/// Bytes of our encoder stream that wait for the peer, from which on nothing is inserted.
const UNSENT_INSERTS: usize = 4096;
/// Control frames, QPACK instructions and unidirectional streams after which the connection ends, if no response was finished.
const OVERHEAD: u64 = 1000;
/// Part of these that a finished response makes up for: a peer may send priorities and insertions with each request.
pub const OVERHEAD_OF_REQUEST: u64 = 64;
/// Bytes of Section Acknowledgments that leave together while requests follow each other, some 16 of them. One lets the encoder evict
/// entries of its table, which can wait. It is told at once of insertions that have arrived.
const ACKNOWLEDGMENTS: usize = 32;
/// Memory of the scratch buffer that stays, bytes.
const SCRATCH: usize = 64 * 1024;

pub(crate) const FAILED: Fatal = (Code::DecompressionFailed, "sent invalid field section");

/// Insertions that a field section needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// All of these have arrived.
    Here(u64),
    /// Not all of these have.
    Awaited(u64),
}

impl Required {
    /// Returns their number if the section has to wait for some.
    pub fn awaited(self) -> Option<u64> {
        match self {
            Required::Here(_) => None,
            Required::Awaited(required) => Some(required),
        }
    }
}

/// Stream of ours, and bytes that QUIC has not taken.
type Own = Option<(StreamId, Vec<u8>)>;

/// See the module.
#[derive(Debug)]
pub struct Controls {
    pub(crate) decoder: Decoder,
    /// Number of the connection among those of its thread, once a request has referred to the table of the decoder.
    number: Option<u64>,
    /// Insertions that the peer has been told of.
    told: u64,
    /// Those of the peer, once they are there.
    pub settings: Option<Settings>,
    /// Encoder of what we send, once the peer has offered a table for it and there was something to encode.
    encoder: Option<Box<Encoder>>,
    control: Own,
    feedback: Own,
    /// `feedback` has more than a few Section Acknowledgments.
    feedback_is_due: bool,
    inserts: Own,
    /// See [`OVERHEAD`].
    overhead: u64,
    pub(crate) scratch: Vec<u8>,
}

impl Controls {
    /// Creates those of a connection that begins. `table`: size of the dynamic table for what the peer sends, bytes.
    pub fn new(table: usize) -> Controls {
        Controls {
            decoder: Decoder::new(table),
            number: None,
            told: 0,
            settings: None,
            encoder: None,
            control: None,
            feedback: None,
            feedback_is_due: false,
            inserts: None,
            overhead: 0,
            scratch: Vec::new(),
        }
    }

    /// Opens our control and decoder streams. `more`: settings beside those of QPACK. Returns `false` if the peer allows too few streams.
    pub fn open(&mut self, link: &Link, table: usize, more: &[(u64, u64)]) -> bool {
        self.control = open(link, stream_kind::CONTROL);
        if let Some((_, bytes)) = &mut self.control {
            let own = [
                (setting::QPACK_MAX_TABLE_CAPACITY, table as u64),
                (setting::QPACK_BLOCKED_STREAMS, BLOCKED_STREAMS as u64),
            ];
            frame::push_settings(bytes, &[&own, more].concat());
        }
        self.feedback = open(link, stream_kind::DECODER);
        self.feedback_is_due = true;
        self.control.is_some() && self.feedback.is_some()
    }

    /// Returns our unidirectional streams.
    pub fn own(&self) -> impl Iterator<Item = StreamId> {
        [&self.control, &self.feedback, &self.inserts].into_iter().flatten().map(|(id, _)| *id)
    }

    /// Counts what a peer may send without a limit of its own.
    ///
    /// # Errors
    /// It is too much.
    pub fn spend(&mut self, n: u64) -> Result<(), Fatal> {
        self.overhead += n;
        match self.overhead > OVERHEAD {
            true => Err((Code::ExcessiveLoad, "sent too many frames and instructions")),
            false => Ok(()),
        }
    }

    /// Notes a response that was finished.
    pub fn note_finished(&mut self) {
        self.overhead = self.overhead.saturating_sub(OVERHEAD_OF_REQUEST);
    }

    /// Takes the payload of a SETTINGS frame.
    ///
    /// # Errors
    /// It is wrong, or the second one.
    pub fn take_settings(&mut self, payload: &[u8]) -> Result<(), Fatal> {
        if self.settings.is_some() {
            return Err((Code::FrameUnexpected, "sent SETTINGS frame twice"));
        }
        self.settings = Some(Settings::read(payload).map_err(|code| (code, "sent invalid SETTINGS frame"))?);
        Ok(())
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
        match waiting() >= BLOCKED_STREAMS {
            true => Err((Code::DecompressionFailed, "blocked too many streams")),
            false => Ok(Required::Awaited(required)),
        }
    }

    /// Returns the state of the table that a section refers to.
    pub fn table_state(&mut self, repeats: &mut Repeats, required: u64) -> TableState {
        let connection = *self.number.get_or_insert_with(|| repeats.next_connection());
        TableState::of(connection, &self.decoder, required)
    }

    /// Empties the scratch buffer.
    pub fn clear_scratch(&mut self) {
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH);
    }

    /// Tells the peer's encoder that a section of a stream that needed insertions was decoded (RFC 9204, section 4.4.1). `may_wait`: until
    /// there are more, or something else to tell.
    pub fn acknowledge(&mut self, id: StreamId, may_wait: bool) {
        if let Some((_, out)) = &mut self.feedback {
            qpack::push_section_ack(out, id.0);
            self.feedback_is_due |= !may_wait || out.len() >= ACKNOWLEDGMENTS;
        }
    }

    /// Tells the peer's encoder that the field sections of a stream will not be decoded (RFC 9204, section 4.4.2).
    pub fn cancel(&mut self, id: StreamId) {
        if let Some((_, out)) = &mut self.feedback {
            qpack::push_stream_cancellation(out, id.0);
            self.feedback_is_due = true;
        }
    }

    /// Carries out instructions of the peer's encoder stream. `table`: size of the dynamic table that it may have, bytes. Returns the length
    /// of those that were whole.
    ///
    /// # Errors
    /// One is wrong or too large, or there are too many.
    pub fn instructions(&mut self, input: &[u8], table: usize) -> Result<usize, Fatal> {
        let before = self.decoder.carried_out();
        let done = self.decoder.instructions(input, &mut self.scratch);
        let done = done.map_err(|_| (Code::EncoderStreamError, "sent invalid QPACK instruction"))?;
        if done == 0 && input.len() > 2 * table.max(64) {
            return Err((Code::EncoderStreamError, "sent too large QPACK instruction"));
        }
        self.spend(self.decoder.carried_out() - before)?;
        // An encoder that inserts may need room.
        self.feedback_is_due |= done > 0;
        let inserted = self.decoder.inserted();
        if inserted > self.told
            && let Some((_, out)) = &mut self.feedback
        {
            qpack::push_insert_count_increment(out, inserted - self.told);
            self.told = inserted;
        }
        Ok(done)
    }

    /// Reads the peer's decoder stream. Returns the length of whole instructions.
    ///
    /// # Errors
    /// One is wrong, or there are too many.
    pub fn take_feedback(&mut self, input: &[u8]) -> Result<usize, Fatal> {
        const WRONG: Fatal = (Code::DecoderStreamError, "acknowledged what was not sent");
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
        self.spend(count)?;
        Ok(at)
    }

    /// Appends a HEADERS frame of a stream. `section` is encoded by the static table. Returns `true` if there are insertions to send.
    pub fn push_section(
        &mut self,
        link: Option<&Link>,
        id: StreamId,
        section: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        self.begin_encoder(link);
        let waiting = self.inserts.as_ref().map_or(0, |(_, waiting)| waiting.len());
        self.scratch.clear();
        let encoded = self.encoder.as_mut().and_then(|encoder| {
            let inserts = self.inserts.as_mut().map(|(_, out)| out).filter(|_| waiting < UNSENT_INSERTS);
            encoder.encode(id.0, section, &mut self.scratch, inserts)
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
        self.inserts.as_ref().is_some_and(|(_, out)| out.len() > waiting)
    }

    /// Opens the encoder stream, if the peer offers a table and its settings are there.
    fn begin_encoder(&mut self, link: Option<&Link>) {
        if self.inserts.is_some() {
            return;
        }
        let encoder = self.settings.and_then(|settings| Encoder::new(settings.table_capacity));
        let (Some(encoder), Some(link)) = (encoder, link) else { return };
        self.inserts = open(link, stream_kind::ENCODER);
        if self.inserts.is_some() {
            self.encoder = Some(Box::new(encoder));
        }
    }

    /// Has our control stream say that no further requests are served, or which ones (RFC 9114, section 5.2).
    pub fn push_goaway(&mut self, next: u64) {
        if let Some((_, out)) = &mut self.control {
            frame::push_goaway(out, next);
        }
    }

    /// Has Section Acknowledgments wait no longer.
    pub fn hurry(&mut self) {
        self.feedback_is_due = true;
    }

    /// Sends what waits on our own streams.
    pub fn send_unsent(&mut self, link: &Link) {
        let mut streams = link.streams();
        let feedback = self.feedback.as_mut().filter(|_| self.feedback_is_due);
        let own = [self.control.as_mut(), feedback, self.inserts.as_mut()];
        for (id, bytes) in own.into_iter().flatten() {
            if bytes.is_empty() {
                continue;
            }
            let sent = streams.write_slice(*id, bytes).unwrap_or(0);
            bytes.drain(..sent);
            // A peer that takes nothing does not need it. Of insertions only few can wait.
            bytes.truncate(MOST_UNSENT);
        }
        self.feedback_is_due &= self.feedback.as_ref().is_some_and(|(_, bytes)| !bytes.is_empty());
    }
}

/// Opens a unidirectional stream of a type, in front of all others.
fn open(link: &Link, kind: u64) -> Own {
    let mut bytes = Vec::new();
    frame::push_varint(&mut bytes, kind);
    let mut streams = link.streams();
    let id = streams.open(Dir::Uni)?;
    let _ = streams.set_priority(id, i32::MAX);
    Some((id, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_acknowledgments_wait_for_more() {
        let id = StreamId(4);
        let mut controls = Controls::new(4096);
        controls.feedback = Some((id, Vec::new()));
        for n in 1..ACKNOWLEDGMENTS {
            controls.acknowledge(id, true);
            assert!(!controls.feedback_is_due, "{n}");
        }
        controls.acknowledge(id, true);
        assert!(controls.feedback_is_due);
        // Other instructions do not wait, nor does what is in front of them.
        let in_haste: [&dyn Fn(&mut Controls); 4] = [
            &|controls| controls.hurry(),
            &|controls| controls.acknowledge(id, false),
            &|controls| controls.cancel(id),
            // Set Dynamic Table Capacity
            &|controls| assert_eq!(controls.instructions(&[0x3f, 0x21], 4096), Ok(2)),
        ];
        for hurry in in_haste {
            controls.feedback_is_due = false;
            hurry(&mut controls);
            assert!(controls.feedback_is_due);
        }
    }
}
