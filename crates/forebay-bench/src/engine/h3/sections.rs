//! Field sections of responses, and what else the requests of a connection share. Hot path.

use forebay_http::compression::{Field, Label, Sink};
use forebay_http::field::Name;
use forebay_http::h3::Fatal;
use forebay_http::h3::connection::{Connection, Offer, Role};
use forebay_http::h3::qpack::TABLE_CAPACITY;
use forebay_http::h3::tables::{Acknowledge, FAILED, Required};
use forebay_net::quic::StreamId;

/// Limits that servers have for their fields.
const OFFER: Offer = Offer { table: TABLE_CAPACITY, blocked_streams: 100, requests: 0 };

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

/// State of a connection.
pub(super) struct Sections {
    pub(super) connection: Connection,
    /// The last section without the dynamic table. Equal bytes have the same meaning, and comparing costs less than decoding.
    known: (Vec<u8>, Meaning),
}

impl Default for Sections {
    fn default() -> Sections {
        Sections { connection: Connection::new(Role::Client, OFFER), known: Default::default() }
    }
}

impl Sections {
    /// Returns what a section means; `None` if it waits for the dynamic table.
    pub(super) fn meaning(&mut self, id: StreamId, section: &[u8]) -> Result<Option<Meaning>, Fatal> {
        if !section.is_empty() && self.known.0 == section {
            return Ok(Some(self.known.1));
        }
        let tables = &mut self.connection.tables;
        // A server that blocks too many streams only spoils its own figures.
        if let Required::Awaited(_) = tables.required(section, || 0)? {
            return Ok(None);
        }
        let mut meaning = Meaning::default();
        let dynamic = tables
            .decode(|decoder, scratch| decoder.decode(section, scratch, &mut meaning))
            .map_err(|_| FAILED)?;
        if dynamic {
            tables.acknowledge(id.0, Acknowledge::AtOnce);
        } else {
            self.known.0.clear();
            self.known.0.extend_from_slice(section);
            self.known.1 = meaning;
        }
        Ok(Some(meaning))
    }
}
