//! State of a connection: its requests, and what they share.

use super::super::Stream;
use super::Fatal;
use forebay_http::h3::connection::{Connection, Offer, Role};
use forebay_http::h3::qpack::TABLE_CAPACITY;
use forebay_http::h3::tables::Required;
use forebay_net::quic::StreamId;
use std::rc::Rc;

/// Number of places for streams that are kept while there are no streams.
const KEPT: usize = 16;
/// Number of streams whose field sections may wait for insertions.
const BLOCKED_STREAMS: usize = 16;

/// State of a connection.
#[derive(Debug)]
pub(super) struct State {
    /// Streams with their identifiers next to them: a search that went to each stream would wait for memory.
    pub(super) streams: Vec<(StreamId, Rc<Stream>)>,
    pub(super) connection: Connection,
    pub(super) requests: u32,
    pub(super) closed: bool,
    /// Content received and sent, bytes.
    pub(super) moved: u64,
}

impl State {
    /// Creates the state of a connection that begins. `requests` is the number of requests that the client may have open at a time.
    pub(super) fn new(requests: u32) -> State {
        let offer = Offer { table: TABLE_CAPACITY, blocked_streams: BLOCKED_STREAMS, requests };
        State {
            streams: Vec::new(),
            connection: Connection::new(Role::Server, offer),
            requests: 0,
            closed: false,
            moved: 0,
        }
    }

    pub(super) fn stream(&self, id: StreamId) -> Option<Rc<Stream>> {
        let at = self.place(id)?;
        self.streams.get(at).map(|(_, stream)| stream.clone())
    }

    /// Returns the position of a stream.
    fn place(&self, id: StreamId) -> Option<usize> {
        // Usually it is the oldest stream.
        match self.streams.first() {
            Some((first, _)) if *first == id => Some(0),
            _ => self.streams.binary_search_by_key(&id, |(id, _)| *id).ok(),
        }
    }

    /// Removes a stream. Returns it if it was there.
    pub(super) fn remove(&mut self, id: StreamId) -> Option<Rc<Stream>> {
        let at = self.place(id)?;
        let stream = self.streams.remove(at).1;
        if self.streams.is_empty() {
            self.streams.shrink_to(KEPT);
        }
        Some(stream)
    }

    /// Returns the number of insertions that a field section needs. The number of streams that may wait for insertions is limited.
    pub(super) fn required(&self, section: &[u8]) -> Result<Required, Fatal> {
        let blocked = |(_, stream): &&(StreamId, Rc<Stream>)| stream.is_waiting();
        self.connection.tables.required(section, || self.streams.iter().filter(blocked).count())
    }
}
