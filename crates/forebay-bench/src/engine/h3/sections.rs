//! Field sections of responses (RFC 9204). Hot path.

use super::Fatal;
use forebay_http::compression::{Field, Label, Sink};
use forebay_http::field::Name;
use forebay_http::h3::Code;
use forebay_http::h3::qpack::{self, Decoder, TABLE_CAPACITY};
use forebay_net::quic::StreamId;

/// Meaning of a field section for the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meaning {
    /// 0 in trailers.
    pub(super) status: u16,
    pub(super) length: Option<u64>,
}

impl Sink for Meaning {
    fn field(&mut self, Field { label, value, .. }: Field<'_>) {
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        match label {
            Label::Status => self.status = number().filter(|n| (100..1000).contains(n)).unwrap_or(0) as u16,
            Label::Field(Name::ContentLength) => self.length = number(),
            _ => {}
        }
    }
}

/// Decoder of a connection.
pub(super) struct Sections {
    decoder: Decoder,
    scratch: Vec<u8>,
    /// The last section without the dynamic table. Equal bytes have the same meaning, and comparing costs less than decoding.
    known: (Vec<u8>, Meaning),
    /// Entries of the dynamic table that the server knows to have arrived.
    told: u64,
    /// Instructions for the server that wait to be sent.
    pub(super) feedback: Vec<u8>,
}

impl Default for Sections {
    fn default() -> Sections {
        Sections {
            decoder: Decoder::new(TABLE_CAPACITY),
            scratch: Vec::new(),
            known: Default::default(),
            told: 0,
            feedback: Vec::new(),
        }
    }
}

const BAD_SECTION: Fatal = (Code::DecompressionFailed, "the server sent fields that cannot be decoded");

impl Sections {
    /// Returns what a section means; `None` if it waits for the dynamic table.
    pub(super) fn meaning(&mut self, id: StreamId, section: &[u8]) -> Result<Option<Meaning>, Fatal> {
        if !section.is_empty() && self.known.0 == section {
            return Ok(Some(self.known.1));
        }
        if self.decoder.required(section).map_err(|_| BAD_SECTION)? > self.decoder.inserted() {
            return Ok(None);
        }
        let mut meaning = Meaning::default();
        let dynamic =
            self.decoder.decode(section, &mut self.scratch, &mut meaning).map_err(|_| BAD_SECTION)?;
        if dynamic {
            qpack::push_section_ack(&mut self.feedback, id.0);
        } else {
            self.known.0.clear();
            self.known.0.extend_from_slice(section);
            self.known.1 = meaning;
        }
        Ok(Some(meaning))
    }

    /// Carries out instructions of the server's encoder. Returns the number of bytes that were whole ones.
    pub(super) fn instructions(&mut self, bytes: &[u8]) -> Result<usize, Fatal> {
        let bad = (Code::EncoderStreamError, "the server sent an invalid QPACK instruction");
        let done = self.decoder.instructions(bytes, &mut self.scratch).map_err(|_| bad)?;
        if done == 0 && bytes.len() > 2 * TABLE_CAPACITY {
            return Err((Code::EncoderStreamError, "the server sent too large a QPACK instruction"));
        }
        let inserted = self.decoder.inserted();
        if inserted > self.told {
            qpack::push_insert_count_increment(&mut self.feedback, inserted - self.told);
            self.told = inserted;
        }
        Ok(done)
    }
}
