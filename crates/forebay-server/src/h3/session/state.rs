//! State of a connection: its streams, the tables of its fields, and what its client has spent.

use super::super::Stream;
use super::{FAILED, Fatal};
use forebay_http::h3::Code;
use forebay_http::h3::encoder::Encoder;
use forebay_http::h3::frame::Settings;
use forebay_http::h3::qpack::{self, Decoder, TABLE_CAPACITY};
use forebay_http::priority::Early;
use forebay_net::quic::{StreamId, VarInt};
use std::rc::Rc;

/// Streams whose field sections may wait for insertions.
pub(super) const BLOCKED_STREAMS: usize = 16;
/// Control frames, QPACK instructions and unidirectional streams after which the connection ends, if no response was finished.
const OVERHEAD: u64 = 1000;

/// Purpose of a unidirectional stream of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Its type has not been read.
    Unknown,
    Control,
    Encoder,
    Decoder,
    /// Of a type that we do not know.
    Ignored,
}

/// Unidirectional stream of the client.
#[derive(Debug)]
pub(super) struct Uni {
    pub(super) id: StreamId,
    pub(super) purpose: Purpose,
    /// Bytes that have not been handled.
    pub(super) input: Vec<u8>,
}

/// State of a connection.
#[derive(Debug)]
pub(super) struct State {
    pub(super) streams: Vec<Rc<Stream>>,
    pub(super) unis: Vec<Uni>,
    pub(super) decoder: Decoder,
    /// Insertions that the client has been told of.
    pub(super) told: u64,
    pub(super) settings: Option<Settings>,
    /// Encoder of what we send, once the client has offered a table for it and there was a response.
    pub(super) encoder: Option<Box<Encoder>>,
    /// Our control, decoder and encoder streams, with bytes that QUIC has not taken.
    pub(super) control: Option<(StreamId, Vec<u8>)>,
    pub(super) feedback: Option<(StreamId, Vec<u8>)>,
    pub(super) inserts: Option<(StreamId, Vec<u8>)>,
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
    /// See [`OVERHEAD`].
    pub(super) overhead: u64,
    pub(super) closed: bool,
    pub(super) scratch: Vec<u8>,
    /// Content received and sent, bytes.
    pub(super) moved: u64,
}

impl State {
    /// Creates the state of a connection that begins.
    pub(super) fn new() -> State {
        State {
            streams: Vec::new(),
            unis: Vec::new(),
            decoder: Decoder::new(TABLE_CAPACITY),
            told: 0,
            settings: None,
            encoder: None,
            control: None,
            feedback: None,
            inserts: None,
            leaving: false,
            next: 0,
            early: Early::default(),
            max_push: None,
            goaway: None,
            requests: 0,
            resets: 0,
            overhead: 0,
            closed: false,
            scratch: Vec::new(),
            moved: 0,
        }
    }

    /// Returns our unidirectional streams.
    pub(super) fn own(&self) -> impl Iterator<Item = StreamId> {
        [&self.control, &self.feedback, &self.inserts].into_iter().flatten().map(|(id, _)| *id)
    }

    pub(super) fn stream(&self, id: StreamId) -> Option<Rc<Stream>> {
        let at = self.streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.streams.get(at).cloned()
    }

    /// Returns the number of insertions that a field section needs, if they have not arrived. Only so many streams may wait.
    pub(super) fn must_wait(&self, section: &[u8]) -> Result<Option<u64>, Fatal> {
        let required = self.decoder.required(section).map_err(|_| FAILED)?;
        if required <= self.decoder.inserted() {
            return Ok(None);
        }
        let waiting = self.streams.iter().filter(|stream| stream.blocked_section.borrow().is_some()).count();
        match waiting >= BLOCKED_STREAMS {
            true => Err((Code::DecompressionFailed, "client blocked too many streams")),
            false => Ok(Some(required)),
        }
    }

    /// Counts what a client may send without a limit of its own.
    pub(super) fn spend(&mut self, n: u64) -> Result<(), Fatal> {
        self.overhead += n;
        match self.overhead > OVERHEAD {
            true => Err((Code::ExcessiveLoad, "client sent too many frames and instructions")),
            false => Ok(()),
        }
    }

    pub(super) fn acknowledge(&mut self, id: StreamId) {
        if let Some((_, out)) = &mut self.feedback {
            qpack::push_section_ack(out, u64::from(VarInt::from(id)));
        }
    }
}
