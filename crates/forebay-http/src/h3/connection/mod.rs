//! The state of an HTTP/3 connection that its requests share (RFC 9114, section 6.2; RFC 9204). No I/O. Hot path.
//!
//! An end passes the unidirectional streams that QUIC has news of to [`Connection::receive`], and gets one [`Event`] at a time. Frames are
//! checked before that, and what a peer may send in vain is counted ([`Budget`]). What this writes waits until [`Connection::send`].
//!
//! Requests and their streams belong to the ends: the server is in forebay-server, the client of upstreams in forebay-proxy, and the load generator
//! in forebay-bench.

use super::budget::Budget;
use super::frame::{self, Header, MAX_CONTROL_FRAME, Settings, kind, setting, stream as stream_kind};
use super::peer::{OwnStream, PeerStreams, Purpose};
use super::tables::Tables;
use super::transport::Transport;
use super::{Code, Fatal};
use crate::priority::{Early, Priority};

/// Request that GOAWAY names as long as further requests are taken: the greatest number of a stream that a client opens.
const LAST_REQUEST: u64 = (1 << 62) - 4;

/// Our side of the connection. It decides which frames the peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    Client,
    Server,
}

/// What we offer the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Size of the dynamic table for what it sends, bytes.
    pub table: usize,
    /// Streams whose field sections may wait for insertions.
    pub blocked_streams: usize,
    /// Requests that a client may have open at a time.
    pub requests: u32,
}

/// Something that an end has to act upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer takes no further requests, or pushes. This is the first that it does not handle.
    GoAway(u64),
    /// Insertions have arrived: so many in sum. Field sections may have waited for them.
    Inserted(u64),
    /// A request that has begun gets another priority.
    Priority {
        /// Its stream.
        stream: u64,
        /// The priority.
        priority: Priority,
    },
}

/// An end's view of a connection.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    offer: Offer,
    /// The dynamic tables.
    pub tables: Tables,
    /// What the peer may do that costs it little.
    pub budget: Budget,
    peer: PeerStreams,
    control: Option<OwnStream>,
    /// Settings of the peer, once they have come.
    settings: Option<Settings>,
    /// Identifiers of the peer's last GOAWAY and MAX_PUSH_ID.
    goaway: Option<u64>,
    max_push: Option<u64>,
    /// GOAWAY has been sent, and no further requests are taken.
    leaving: bool,
    /// First request stream that the client has not opened.
    next: u64,
    /// Priorities that came before their requests.
    early: Early,
    /// Bytes received on unidirectional streams.
    received: u64,
}

/// Our side.
impl Connection {
    /// Creates the state of a connection that begins.
    pub fn new(role: Role, offer: Offer) -> Connection {
        Connection {
            role,
            offer,
            tables: Tables::new(offer.table, offer.blocked_streams),
            budget: Budget::default(),
            peer: PeerStreams::default(),
            control: None,
            settings: None,
            goaway: None,
            max_push: None,
            leaving: false,
            next: 0,
            early: Early::default(),
            received: 0,
        }
    }

    /// Opens our control and decoder streams.
    ///
    /// # Errors
    /// The peer allows too few streams. Without SETTINGS requests can be served all the same.
    pub fn open(&mut self, quic: &impl Transport) -> Result<(), Fatal> {
        self.control = OwnStream::open(quic, stream_kind::CONTROL);
        let connect = (setting::ENABLE_CONNECT_PROTOCOL, 1);
        if let Some(OwnStream { waiting, .. }) = &mut self.control {
            let table = (setting::QPACK_MAX_TABLE_CAPACITY, self.offer.table as u64);
            let blocked = (setting::QPACK_BLOCKED_STREAMS, self.offer.blocked_streams as u64);
            match self.role {
                Role::Client => frame::push_settings(waiting, &[table, blocked]),
                Role::Server => frame::push_settings(waiting, &[table, blocked, connect]),
            }
        }
        match self.tables.open(quic) && self.control.is_some() {
            true => Ok(()),
            // RFC 9114, section 6.2: at least three.
            false => Err(Fatal::new(Code::StreamCreationError, "allows too few unidirectional streams")),
        }
    }

    /// Returns our unidirectional streams.
    pub fn own(&self) -> impl Iterator<Item = u64> {
        self.control.iter().map(|own| own.id).chain(self.tables.own())
    }

    /// Notes that the peer reads no more of a stream.
    ///
    /// # Errors
    /// The stream is a critical one.
    pub fn stopped(&self, id: u64) -> Result<(), Fatal> {
        match self.own().any(|own| own == id) {
            true => Err(Fatal::new(Code::ClosedCriticalStream, "stopped a critical stream")),
            false => Ok(()),
        }
    }

    /// Appends a HEADERS frame of a stream to `out`. `section` is encoded by the static table.
    pub fn push_section(&mut self, quic: &impl Transport, id: u64, section: &[u8], out: &mut Vec<u8>) {
        if self.tables.push_section(quic, id, section, out) {
            self.send(quic);
        }
    }

    /// Sends what waits on our streams. Returns the number of bytes that QUIC has taken.
    pub fn send(&mut self, quic: &impl Transport) -> usize {
        let control = self.control.as_mut().map_or(0, |control| control.send(quic));
        control + self.tables.send(quic)
    }

    /// Asks the client for no further requests, and takes those that are on their way (RFC 9114, section 5.2).
    pub fn announce(&mut self) {
        self.push_goaway(LAST_REQUEST);
    }

    /// Has the connection take no further requests.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.push_goaway(self.next);
    }

    /// Returns `true` if no further requests are taken.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    fn push_goaway(&mut self, next: u64) {
        if let Some(OwnStream { waiting, .. }) = &mut self.control {
            frame::push_goaway(waiting, next);
        }
    }
}

/// The peer's side.
impl Connection {
    /// Returns the first request or push that the peer does not handle, if it takes no more.
    pub fn goaway(&self) -> Option<u64> {
        self.goaway
    }

    /// Returns the number of bytes received on unidirectional streams.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Notes a request stream of the client. Returns the priority that came before it.
    pub fn begin_request(&mut self, id: u64) -> Option<Priority> {
        self.next = id + 4;
        if self.leaving { None } else { self.early.take(id) }
    }

    /// Accepts a unidirectional stream. [`Connection::receive`] is to be called for it.
    ///
    /// # Errors
    /// There are too many.
    pub fn accept(&mut self, quic: &impl Transport) -> Result<Option<u64>, Fatal> {
        let Some(id) = quic.accept() else { return Ok(None) };
        self.budget.spend(1)?;
        self.peer.add(id);
        Ok(Some(id))
    }

    /// Handles what has come of a unidirectional stream, up to the next event. It is to be called again after an event.
    ///
    /// # Errors
    /// The connection ends.
    pub fn receive(&mut self, quic: &impl Transport, id: u64) -> Result<Option<Event>, Fatal> {
        while let Some(piece) = self.peer.take(quic, id)? {
            let (done, event) = match piece.purpose {
                Purpose::Control => self.control(&piece.bytes)?,
                Purpose::Encoder => self.instructions(&piece.bytes)?,
                Purpose::Decoder => {
                    let (done, count) = self.tables.take_feedback(&piece.bytes)?;
                    self.budget.spend(count)?;
                    (done, None)
                }
                Purpose::Push => return Err(self.pushed()),
                Purpose::Ignored => (piece.bytes.len(), None),
            };
            self.received += done as u64;
            self.peer.put_back(piece, done, event.is_none());
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Carries out instructions of the encoder stream. Returns the length of those that were whole.
    fn instructions(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), Fatal> {
        let before = (self.tables.carried_out(), self.tables.inserted());
        let done = self.tables.instructions(input)?;
        self.budget.spend(self.tables.carried_out() - before.0)?;
        let inserted = self.tables.inserted();
        Ok((done, (inserted > before.1).then_some(Event::Inserted(inserted))))
    }

    /// Handles frames of the control stream. Returns the length of those that were whole.
    fn control(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), Fatal> {
        let mut at = 0;
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) {
            self.budget.spend(1)?;
            let Some((header, begin)) = Header::read(rest) else { break };
            if self.settings.is_none() && header.kind != kind::SETTINGS {
                return Err(Fatal::new(Code::MissingSettings, "began the control stream without SETTINGS"));
            }
            if header.len > MAX_CONTROL_FRAME {
                return Err(Fatal::new(Code::ExcessiveLoad, "sent too large control frame"));
            }
            let Some(payload) = rest.get(begin..begin + header.len as usize) else { break };
            at += begin + payload.len();
            if let Some(event) = self.control_frame(header, payload)? {
                return Ok((at, Some(event)));
            }
        }
        Ok((at, None))
    }

    /// Handles a frame of the control stream (RFC 9114, section 7.2).
    fn control_frame(&mut self, header: Header, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        let id = || frame::id(payload).map_err(|code| Fatal::new(code, "sent malformed control frame"));
        let unexpected = Fatal::new(Code::FrameUnexpected, "sent unexpected frame on the control stream");
        match (header.kind, self.role) {
            (kind::SETTINGS, _) => self.take_settings(payload)?,
            (kind::GOAWAY, _) => return self.take_goaway(id()?).map(Some),
            (kind::CANCEL_PUSH, _) => {
                id()?;
                // Neither side pushes.
                return Err(Fatal::new(Code::IdError, "cancelled a push that does not exist"));
            }
            (kind::MAX_PUSH_ID, Role::Server) => {
                let id = id()?;
                if self.max_push.replace(id).is_some_and(|before| id < before) {
                    return Err(Fatal::new(
                        Code::IdError,
                        "sent MAX_PUSH_ID frame with a smaller identifier",
                    ));
                }
            }
            (kind::PRIORITY_UPDATE, Role::Server) => return self.update_priority(payload),
            (kind::PRIORITY_UPDATE_PUSH, Role::Server) => {
                return Err(Fatal::new(Code::IdError, "sent PRIORITY_UPDATE frame for no push"));
            }
            (kind::DATA | kind::HEADERS | kind::PUSH_PROMISE, _)
            | (kind::MAX_PUSH_ID | kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH, Role::Client) => {
                return Err(unexpected);
            }
            _ if header.is_reserved() => return Err(Fatal::new(Code::FrameUnexpected, "sent HTTP/2 frame")),
            _ => {}
        }
        Ok(None)
    }

    fn take_settings(&mut self, payload: &[u8]) -> Result<(), Fatal> {
        if self.settings.is_some() {
            return Err(Fatal::new(Code::FrameUnexpected, "sent SETTINGS frame twice"));
        }
        let settings = Settings::read(payload);
        let settings = settings.map_err(|code| Fatal::new(code, "sent invalid SETTINGS frame"))?;
        self.tables.note_settings(&settings);
        self.settings = Some(settings);
        Ok(())
    }

    fn take_goaway(&mut self, id: u64) -> Result<Event, Fatal> {
        // A server names a request, a client a push (RFC 9114, section 5.2).
        if self.role == Role::Client && !id.is_multiple_of(4) {
            return Err(Fatal::new(Code::IdError, "sent GOAWAY frame with an invalid identifier"));
        }
        if self.goaway.replace(id).is_some_and(|before| id > before) {
            return Err(Fatal::new(Code::IdError, "sent GOAWAY frame with a greater identifier"));
        }
        Ok(Event::GoAway(id))
    }

    /// Takes the priority of a request. Returns an event if the request has begun; else the priority is kept.
    fn update_priority(&mut self, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        let (stream, value) = frame::priority_update(payload)
            .map_err(|code| Fatal::new(code, "sent malformed PRIORITY_UPDATE frame"))?;
        // No stream beyond can have been allowed: for each that ends there is one more.
        if !stream.is_multiple_of(4) || stream >= self.next.saturating_add(4 * u64::from(self.offer.requests))
        {
            return Err(Fatal::new(Code::IdError, "sent PRIORITY_UPDATE frame for no request"));
        }
        let priority = Priority::parse(value);
        if stream < self.next {
            return Ok(Some(Event::Priority { stream, priority }));
        }
        self.early.note(stream, priority);
        Ok(None)
    }

    /// Returns the error of a push stream.
    fn pushed(&self) -> Fatal {
        let code = match self.role {
            // Without MAX_PUSH_ID none is allowed (RFC 9114, section 4.6).
            Role::Client => Code::IdError,
            Role::Server => Code::StreamCreationError,
        };
        Fatal::new(code, "opened a push stream")
    }
}

#[cfg(test)]
mod tests;
