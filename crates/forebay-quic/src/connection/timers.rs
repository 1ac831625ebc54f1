//! Timers of a connection.

use super::close::State;
use super::outbound::Outbound;
use super::{Connection, Reason, Space};
use crate::recovery::{Fate, Timeout};
use crate::time::Time;
use std::time::Duration;

/// Probe timeouts in a row after which datagrams may be too large for the path.
const SILENT_PROBES: u32 = 2;

/// Time without any acknowledgment, in spite of probes, after which a connection ends. A peer that sends nothing at all ends it earlier.
const UNACKNOWLEDGED: Duration = Duration::from_secs(120);

impl Connection {
    /// Returns the time at which [`Connection::expire`] has something to do, or [`Connection::transmit`] has something to send that the
    /// pacer holds back.
    pub fn deadline(&self) -> Option<Time> {
        if !matches!(self.state, State::Open) {
            return self.end_of_closing();
        }
        let challenges = [Some(&self.path), self.other.as_deref()].into_iter().flatten();
        let challenge = challenges
            .filter_map(|path| path.challenge.as_ref())
            .map(|c| c.again.filter(|_| !c.is_due).map_or(c.end, |again| again.min(c.end)))
            .min();
        let early = self.handshake.as_ref().and_then(|h| h.early.as_ref()).and_then(|(_, end)| *end);
        let is_limited = self.is_amplification_limited();
        [
            self.recovery.deadline(is_limited),
            self.outbound.data.acks.deadline().filter(|_| !is_limited),
            self.idle_deadline(),
            self.keep_alive_deadline(),
            self.paced_until,
            challenge,
            self.keys.as_ref().and_then(|keys| keys.deadline()),
            early,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns the time without packets after which the connection ends (RFC 9000, section 10.1).
    fn idle_timeout(&self) -> Option<Duration> {
        let peer = self.peer.map_or(Duration::ZERO, |peer| peer.idle);
        let both = [self.config.idle, peer].into_iter().filter(|idle| !idle.is_zero());
        both.min().map(|idle| idle.max(self.pto() * 3))
    }

    pub(super) fn idle_deadline(&self) -> Option<Time> {
        self.idle_timeout().map(|idle| self.active + idle)
    }

    pub(super) fn keep_alive_deadline(&self) -> Option<Time> {
        let after =
            self.config.keep_alive.filter(|_| !self.outbound.ping && self.is_confirmed && !self.has_asked)?;
        Some(self.active + after)
    }

    /// Does what is due.
    pub fn expire(&mut self, now: Time) {
        self.has_sent_all = false;
        if !matches!(self.state, State::Open) {
            return self.expire_closing(now);
        }
        if self.idle_deadline().is_some_and(|at| at <= now) {
            return self.vanish(Reason::TimedOut);
        }
        if self.keep_alive_deadline().is_some_and(|at| at <= now) {
            self.outbound.ping = true;
        }
        if self.paced_until.is_some_and(|at| at <= now) {
            self.paced_until = None;
        }
        if let Some(keys) = &mut self.keys {
            keys.expire(now);
        }
        if let Some(handshake) = &mut self.handshake {
            handshake.early.take_if(|(_, end)| end.is_some_and(|end| end <= now));
            self.free_handshake();
        }
        self.expire_paths(now);
        self.expire_packets(now);
    }

    /// Has lost packets sent again, or probes.
    fn expire_packets(&mut self, now: Time) {
        if self.recovery.deadline(self.is_amplification_limited()).is_none_or(|at| at > now) {
            return;
        }
        let (outbound, mtu, stats) = (&mut self.outbound, &mut self.path.mtu, &mut self.stats);
        let timeout = self.recovery.on_timeout(now, |packet| {
            if packet.fate == Fate::Lost {
                stats.lost_packets += 1;
                if !mtu.probe_lost(packet.number, now) {
                    mtu.lost(packet.number, packet.size, now);
                }
                outbound.lost(packet.content);
            }
        });
        if let Timeout::Probe(space) = timeout {
            // Each packet since the unacknowledged one is remembered, so that a peer that only sends would have us remember ever more.
            if self.recovery.probed_for(now) >= UNACKNOWLEDGED {
                return self.vanish(Reason::TimedOut);
            }
            if self.recovery.pto_count() >= SILENT_PROBES {
                self.path.mtu.suspect(now);
            }
            self.probe(space);
        }
        self.settle_mtu();
    }

    /// Has packets sent that ask for an acknowledgment (RFC 9002, section 6.2.4).
    fn probe(&mut self, space: Space) {
        if let Some(state) = self.outbound.space(space) {
            state.probes = 2;
        }
        for of_handshake in self.outbound.early.iter_mut().flatten() {
            if of_handshake.crypto.out.is_outstanding() {
                of_handshake.probes = of_handshake.probes.max(1);
            }
        }
        // All that can be read goes along. No timer runs for 1-RTT packets before the handshake is confirmed, and the peer may have given up
        // the keys of the handshake.
        let with_data = space == Space::Data || self.keys.is_some();
        if with_data {
            self.outbound.data.probes = self.outbound.data.probes.max(1);
        }
        if with_data && !self.outbound.streams.wants_to_send() {
            // Content is worth sending again; of tickets and the like the acknowledgment of a PING shows the loss.
            let Outbound { streams, items, .. } = &mut self.outbound;
            let oldest = self.recovery.unacked(Space::Data).find(|span| items.has_content(*span));
            if let Some(oldest) = oldest {
                items.look(oldest, |item| streams.again(item));
            }
        }
    }
}
