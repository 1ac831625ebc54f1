//! The end of a connection (RFC 9000, section 10).

use super::transmit::{Built, LEAST, Transmit};
use super::{Connection, Event, IdChange, Reason, Space, mtu};
use crate::error::{Code, Error};
use crate::frame;
use crate::packet::Kind;
use crate::packet::build::TAG;
use crate::stream::Streams;
use crate::time::Time;
use std::collections::VecDeque;

/// State of a connection.
#[derive(Debug)]
pub(super) enum State {
    /// It works.
    Open,
    /// This side has closed it, and answers packets with CONNECTION_CLOSE.
    Closing(Box<Closing>),
    /// The peer has closed it. Nothing is sent until this time.
    Draining(Time),
    /// It is over, and its owner may drop it.
    Drained,
}

/// How this side has closed a connection.
#[derive(Debug)]
pub(super) struct Closing {
    pub why: Why,
    /// CONNECTION_CLOSE is to be sent.
    pub is_due: bool,
    /// Datagrams that came since.
    received: u32,
    /// End of the state.
    until: Time,
}

/// Content of CONNECTION_CLOSE.
#[derive(Debug)]
pub(super) enum Why {
    /// An error of the transport.
    Transport(Error),
    /// The application wanted it.
    Application { code: u64, reason: Box<[u8]> },
}

impl Connection {
    /// Closes the connection with an error code and a reason of the application. The peer is told with the next
    /// [`Connection::transmit`].
    pub fn close(&mut self, now: Time, code: u64, reason: &[u8]) {
        if matches!(self.state, State::Open) {
            self.begin_closing(now, Why::Application { code, reason: reason.into() });
        }
    }

    /// Closes the connection because of an error.
    pub(super) fn fail(&mut self, now: Time, error: Error) {
        if matches!(self.state, State::Open) {
            self.events.push_back(Event::Lost(Reason::Error(error.clone())));
            self.begin_closing(now, Why::Transport(error));
        }
    }

    fn begin_closing(&mut self, now: Time, why: Why) {
        let until = now + self.pto() * 3;
        self.state = State::Closing(Box::new(Closing { why, is_due: true, received: 0, until }));
        self.has_sent_all = false;
        self.forget_content();
    }

    /// Ends the connection without a word to the peer, which has closed or forgotten it (RFC 9000, section 10.2.2).
    pub(super) fn drain(&mut self, now: Time, reason: Option<Reason>) {
        let until = now + self.pto() * 3;
        if matches!(self.state, State::Open) {
            self.events.extend(reason.map(Event::Lost));
        }
        self.state = State::Draining(until);
        self.forget_content();
    }

    /// Ends the connection at once.
    pub(super) fn vanish(&mut self, reason: Reason) {
        if matches!(self.state, State::Open) {
            self.events.push_back(Event::Lost(reason));
        }
        self.state = State::Drained;
        self.forget_content();
        self.forget_ids();
    }

    /// Tells the peer that the connection is closed, with all keys that it may have (RFC 9000, section 10.2.3).
    pub(super) fn transmit_close(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Transmit> {
        let State::Closing(closing) = &mut self.state else { return None };
        if !std::mem::take(&mut closing.is_due) {
            return None;
        }
        let room = usize::from(mtu::BASE).min(usize::try_from(self.path.allowance()).unwrap_or(usize::MAX));
        let start = out.len();
        let mut built: [Option<Built>; 3] = [None, None, None];
        let spaces = [Space::Initial, Space::Handshake, Space::Data];
        for (slot, space) in built.iter_mut().zip(spaces) {
            let Some(level) = self.level(space).filter(|_| out.len() + LEAST <= start + room) else {
                continue;
            };
            let packet_start = out.len();
            let Some(mut place) = self.push_header(level, space, out) else { continue };
            let left = (start + room).saturating_sub(out.len() + TAG);
            let State::Closing(closing) = &self.state else { return None };
            if !push_close(out, &closing.why, level, left) {
                out.truncate(packet_start);
                continue;
            }
            place.finish(out);
            let span = self.outbound.items.close(space);
            *slot = Some(Built { level, place, asks: false, proves: false, is_mtu_probe: false, span });
        }
        self.pad(&mut built, out, start, room);
        let size = out.len() - start;
        for packet in built.iter().flatten() {
            if self.seal(now, packet, out).is_err() {
                out.truncate(start);
                return None;
            }
        }
        self.path.note_sent(size);
        (size > 0).then(|| self.departure(self.path.route, size, 1))
    }

    /// Counts a datagram that came after the end. The first, second, fourth and so on are answered (RFC 9000, section 10.2.1).
    pub(super) fn note_while_closing(&mut self) {
        if let State::Closing(closing) = &mut self.state {
            closing.received = closing.received.saturating_add(1);
            if closing.received.is_power_of_two() {
                closing.is_due = true;
                self.has_sent_all = false;
            }
        }
    }

    /// Returns `true` if the connection is closed, from whichever side.
    pub fn is_closed(&self) -> bool {
        !matches!(self.state, State::Open)
    }

    /// Returns `true` if nothing is left of the connection: its owner may drop it, once it has taken the last changes of identifiers.
    pub fn is_drained(&self) -> bool {
        matches!(self.state, State::Drained)
    }

    /// Returns the end of the state in which the connection is closed.
    pub(super) fn end_of_closing(&self) -> Option<Time> {
        match &self.state {
            State::Closing(closing) => Some(closing.until),
            State::Draining(until) => Some(*until),
            _ => None,
        }
    }

    /// Ends the connection once it has been closed for long enough.
    pub(super) fn expire_closing(&mut self, now: Time) {
        if self.end_of_closing().is_some_and(|until| until <= now) {
            self.state = State::Drained;
            self.forget_content();
            self.forget_ids();
        }
    }

    /// Frees what a closed connection does not need.
    fn forget_content(&mut self) {
        self.outbound.streams = Streams::new(self.side, self.config.limits);
        (self.datagrams, self.other, self.paced_until) = (None, None, None);
        let lost = std::mem::take(&mut self.events).into_iter().filter(|e| matches!(e, Event::Lost(_)));
        self.events = lost.collect::<VecDeque<_>>();
    }

    /// Has the endpoint forget the identifier that a client has made up.
    pub(super) fn forget_initial_id(&mut self) {
        if let Some(handshake) = self.handshake.as_ref().filter(|_| self.side.is_server()) {
            self.id_changes.push(IdChange::Remove(handshake.begin.initial));
        }
    }

    /// Has the endpoint forget the identifiers.
    pub fn forget_ids(&mut self) {
        self.outbound.local.remove_all(&mut self.id_changes);
        self.outbound.remote.remove_all(&mut self.id_changes);
        self.forget_initial_id();
        self.handshake = None;
    }
}

/// Adds CONNECTION_CLOSE. Before the handshake is complete an error of the application is not told (RFC 9000, section 10.2.3).
fn push_close(out: &mut Vec<u8>, why: &Why, level: Kind, room: usize) -> bool {
    match (why, level) {
        (Why::Transport(e), _) => {
            frame::push_connection_close(out, e.code.0, Some(e.frame), e.reason.as_bytes(), room)
        }
        (Why::Application { code, reason }, Kind::OneRtt | Kind::ZeroRtt) => {
            frame::push_connection_close(out, *code, None, reason, room)
        }
        (Why::Application { .. }, _) => {
            frame::push_connection_close(out, Code::APPLICATION_ERROR.0, Some(0), &[], room)
        }
    }
}
