//! Changes of the network path (RFC 9000, section 9).

use super::path::{Path, Route};
use super::receive::{Arrived, Opened};
use super::{Connection, Reason};
use crate::time::Time;
use std::time::Duration;

/// Probe timeouts after which a path is given up that does not answer. RFC 9000, section 8.2.4, wants three at least; a path with many losses
/// needs more.
const PATIENCE: u32 = 9;
/// Three probe timeouts of a path of which nothing is known (RFC 9002, section 6.2.2).
const LEAST_PATIENCE: Duration = Duration::from_secs(3);

impl Connection {
    /// Returns the path with an address of the peer.
    pub(super) fn path_of(&mut self, route: &Route) -> Option<&mut Path> {
        if self.path.route.remote == route.remote {
            return Some(&mut self.path);
        }
        self.other.as_deref_mut().filter(|other| other.route.remote == route.remote)
    }

    /// Handles PATH_CHALLENGE: the answer goes to where it came from.
    pub(super) fn challenged(&mut self, opened: &Opened, data: [u8; 8]) {
        let route = opened.arrived.route;
        if self.path_of(&route).is_none() {
            // A path that served is kept until the one in use is proved.
            if self.other.as_ref().is_some_and(|other| other.is_proved && !self.path.is_proved) {
                return;
            }
            self.leave_other();
            let is_rebinding = route.remote.ip() == self.path.route.remote.ip();
            let has_own_id = !is_rebinding && self.outbound.remote.reserve(&mut self.id_changes);
            // Nobody is to see that both addresses are of one peer, unless its own packets show it (RFC 9000, section 9.5).
            let shows_it = is_rebinding || self.outbound.local.used == Some(opened.dst);
            if !shows_it && !has_own_id && !self.outbound.remote.active().is_empty() {
                return;
            }
            let mut other = self.new_path(&opened.arrived);
            other.has_own_id = has_own_id;
            self.other = Some(Box::new(other));
        }
        if let Some(path) = self.path_of(&route) {
            path.response = Some(data);
        }
    }

    /// Gives up the path that is not in use, and its identifier.
    fn leave_other(&mut self) {
        self.other = None;
        self.outbound.remote.release(&mut self.id_changes);
    }

    /// Creates the path of the datagram that is handled.
    fn new_path(&self, arrived: &Arrived) -> Path {
        let most = if self.config.searches_mtu { self.config.most_mtu } else { super::mtu::BASE };
        let mut path = Path::new(arrived.route, false, most);
        path.mtu.set_peer_limit(self.peer.map_or(u64::MAX, |peer| peer.payload));
        path.note_received(arrived.size);
        path
    }

    /// Handles PATH_RESPONSE, which may come on any path (RFC 9000, section 8.2.2).
    pub(super) fn challenge_answered(&mut self, now: Time, data: &[u8; 8]) {
        if self.path.answered(data) {
            // The path before it is of no more use.
            self.leave_other();
            self.active = now;
        } else if let Some(other) = &mut self.other {
            other.answered(data);
        }
    }

    /// Moves the connection to the path of a packet, if the client has moved (RFC 9000, section 9.3).
    pub(super) fn moved(&mut self, now: Time, opened: &Opened, is_probing: bool) {
        let route = opened.arrived.route;
        let is_newest = self.largest.is_none_or(|largest| opened.number > largest);
        if self.path.route.remote == route.remote {
            self.path.route.local = route.local.or(self.path.route.local);
            if is_newest {
                self.outbound.local.used = Some(opened.dst);
            }
            return;
        }
        if is_probing || !is_newest || !self.is_confirmed {
            return;
        }
        let mut path = self.path_to(opened);
        path.route = route;
        // A change of the port alone is another binding of an address translator: the way is the same (RFC 9000, section 9.4).
        let is_same_host = path.route.remote.ip() == self.path.route.remote.ip();
        if is_same_host {
            std::mem::swap(&mut path.mtu, &mut self.path.mtu);
        }
        let end = now + (self.pto() * PATIENCE).max(LEAST_PATIENCE);
        if !path.is_proved && path.challenge.is_none() {
            path.ask(self.challenge_data(), end);
        }
        // The client answers on the old path if somebody else has sent its packet from the new one (RFC 9000, section 9.3.3).
        let data = self.challenge_data();
        let has_own_id = std::mem::take(&mut path.has_own_id);
        let mut old = std::mem::replace(&mut self.path, path);
        // The connection has the state of the path in use. This one may be of an earlier path to the same host.
        old.recovery = None;
        if has_own_id {
            self.outbound.remote.exchange();
        }
        if old.is_proved {
            old.has_own_id = has_own_id;
            old.ask(data, end);
            self.other = Some(Box::new(old));
        } else if self.other.is_none() {
            self.leave_other();
        }
        if !is_same_host {
            let config = super::recovery_config(&self.config, self.random);
            let known = self.path.recovery.take();
            let left = self.recovery.change_path(&config, now, known);
            // A path that was left before has its own: what is known of one that was not proved says nothing about it.
            if let Some(other) = &mut self.other {
                other.recovery.get_or_insert(left);
            }
        }
        self.settle_mtu();
    }

    /// Returns the path that a packet came from, to which the connection moves. It has an identifier of its own if the peer has given one,
    /// unless an address translator may have moved the peer without its knowledge: then the one in use may go on (RFC 9000, section 9.5).
    fn path_to(&mut self, opened: &Opened) -> Path {
        let route = opened.arrived.route;
        let known = self.other.take_if(|other| other.route.remote == route.remote);
        let mut path = match known {
            Some(known) => *known,
            None => {
                // A path that served is kept until another one is proved.
                if self.path.is_proved {
                    self.leave_other();
                }
                self.new_path(&opened.arrived)
            }
        };
        let is_rebinding = route.remote.ip() == self.path.route.remote.ip();
        let uses_other = self.outbound.local.uses_other(&opened.dst);
        if !path.has_own_id && (uses_other || !is_rebinding) {
            let remote = &mut self.outbound.remote;
            if self.path.is_proved {
                path.has_own_id = remote.reserve(&mut self.id_changes);
            } else {
                // The one in use is of the path that is left.
                remote.switch(&mut self.id_changes);
            }
        }
        path
    }

    fn challenge_data(&self) -> [u8; 8] {
        (self.random)().to_ne_bytes()
    }

    /// Gives up paths whose question was not answered in time.
    pub(super) fn expire_paths(&mut self, now: Time) {
        let is_over = |path: &Path| path.challenge.as_ref().is_some_and(|c| c.end <= now);
        if let Some(other) = self.other.as_deref_mut().filter(|other| is_over(other)) {
            // One that was proved is what is left if the new path does not answer either (RFC 9000, section 9.3.2).
            other.challenge = None;
            if !other.is_proved {
                self.leave_other();
            }
        }
        if is_over(&self.path) {
            self.path.challenge = None;
            if !self.path.is_proved {
                match self.other.take().filter(|other| other.is_proved) {
                    Some(other) => {
                        self.path = *other;
                        if std::mem::take(&mut self.path.has_own_id) {
                            self.outbound.remote.exchange();
                        }
                        self.leave_other();
                        if let Some(known) = self.path.recovery.take() {
                            let config = super::recovery_config(&self.config, self.random);
                            self.recovery.change_path(&config, now, Some(known));
                        }
                        self.settle_mtu();
                    }
                    // RFC 9000, section 9.3.2: no path is left.
                    None => self.vanish(Reason::TimedOut),
                }
            }
        }
        for path in [Some(&mut self.path), self.other.as_deref_mut()].into_iter().flatten() {
            if let Some(challenge) = &mut path.challenge
                && challenge.again.is_some_and(|again| again <= now)
            {
                challenge.is_due = true;
            }
        }
    }
}
