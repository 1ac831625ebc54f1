//! State of a connection: its streams, the tables of its fields, and what its client has spent.

use super::super::Stream;
use super::super::controls::{Controls, Required};
use super::Fatal;
use forebay_http::h3::qpack::TABLE_CAPACITY;
use forebay_http::priority::Early;
use forebay_net::quic::StreamId;
use std::rc::Rc;

/// Streams whose places are kept while there are none.
const KEPT: usize = 16;

/// State of a connection.
#[derive(Debug)]
pub(super) struct State {
    /// Streams by their identifiers, which stand beside them: a search that went to each of them would wait for memory.
    pub(super) streams: Vec<(StreamId, Rc<Stream>)>,
    pub(super) controls: Controls,
    /// GOAWAY has been sent.
    pub(super) leaving: bool,
    /// First request stream that the client has not opened.
    pub(super) next: u64,
    /// Priorities that came before their requests.
    pub(super) early: Early,
    pub(super) max_push: Option<u64>,
    pub(super) goaway: Option<u64>,
    pub(super) requests: u32,
    pub(super) resets: u32,
    pub(super) closed: bool,
    /// Content received and sent, bytes.
    pub(super) moved: u64,
}

impl State {
    /// Creates the state of a connection that begins.
    pub(super) fn new() -> State {
        State {
            streams: Vec::new(),
            controls: Controls::new(TABLE_CAPACITY),
            leaving: false,
            next: 0,
            early: Early::default(),
            max_push: None,
            goaway: None,
            requests: 0,
            resets: 0,
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
        // Most often it is the oldest one.
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

    /// Returns the number of insertions that a field section needs. Only so many streams may wait for some.
    pub(super) fn required(&self, section: &[u8]) -> Result<Required, Fatal> {
        let blocked = |(_, stream): &&(StreamId, Rc<Stream>)| stream.is_waiting();
        self.controls.required(section, || self.streams.iter().filter(blocked).count())
    }
}
