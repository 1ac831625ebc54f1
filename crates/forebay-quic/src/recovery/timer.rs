//! Timers of loss detection and probes (RFC 9002, sections 6.1.2 and 6.2, appendix A.8 and A.9).

use std::time::Duration;

use super::space::Spaces;
use super::{Outcome, Recovery, Space};
use crate::time::Time;

/// Most doublings of the probe timeout.
const MAX_BACKOFF: u32 = 16;

/// What a timer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// It was too early.
    Nothing,
    /// Packets were declared lost, or would have been.
    Lost,
    /// One or two ack-eliciting packets are to be sent in the space, whatever the congestion window says.
    Probe(Space),
}

impl<C: Copy> Recovery<C> {
    /// Sets the time that the peer may wait with acknowledgments, from its transport parameters.
    pub fn set_max_ack_delay(&mut self, delay: Duration) {
        self.max_ack_delay = delay;
    }

    /// Notes that there are keys of Handshake packets.
    pub fn set_handshake_keys(&mut self) {
        self.handshake.has_keys = true;
    }

    /// Notes that the peer has validated our address: it acknowledged a Handshake packet, or the handshake is confirmed. It holds
    /// for servers from the beginning.
    pub fn set_peer_validated(&mut self) {
        self.handshake.peer_validated = true;
    }

    /// Notes that the handshake is confirmed.
    pub fn set_handshake_confirmed(&mut self) {
        self.handshake.confirmed = true;
        self.handshake.peer_validated = true;
    }

    /// Returns the probe timeout of a space, without backoff.
    pub fn pto(&self, space: Space) -> Duration {
        let delay = if space == Space::Data { self.max_ack_delay } else { Duration::ZERO };
        self.path.rtt.pto(delay)
    }

    /// Returns the number of probe timeouts in a row.
    pub fn pto_count(&self) -> u32 {
        self.pto_count
    }

    /// Returns the time since the first probe timeout after which nothing has been acknowledged.
    pub fn probed_for(&self, now: Time) -> Duration {
        match self.pto_count {
            0 => Duration::ZERO,
            _ => now.since(self.probing_since),
        }
    }

    /// Returns when [`Recovery::on_timeout`] is to be called. `amplification_limited` says that nothing may be sent until the
    /// peer has sent more (RFC 9000, section 8.1).
    pub fn deadline(&self, amplification_limited: bool) -> Option<Time> {
        if let Some((time, _)) = self.loss_time() {
            return Some(time);
        }
        if amplification_limited {
            return None;
        }
        self.probe_time().map(|(time, _)| time)
    }

    /// Returns the earliest time at which a packet is lost.
    fn loss_time(&self) -> Option<(Time, Space)> {
        self.earliest(|recovery, space| recovery.spaces.get(space)?.loss_time)
    }

    /// Returns the earliest of the times of all spaces.
    fn earliest(&self, time: impl Fn(&Self, Space) -> Option<Time>) -> Option<(Time, Space)> {
        let times = Spaces::<C>::ALL.into_iter().filter_map(|space| Some((time(self, space)?, space)));
        times.min_by_key(|(time, _)| *time)
    }

    /// Returns when a probe is to be sent, and where.
    fn probe_time(&self) -> Option<(Time, Space)> {
        let next = self.earliest(|recovery, space| {
            // Peers may be unable to read 1-RTT packets before (section 6.2.1).
            if space == Space::Data && !recovery.handshake.confirmed {
                return None;
            }
            let state = recovery.spaces.get(space).filter(|x| x.eliciting != 0)?;
            Some(state.last_eliciting + recovery.backed_off_pto(space))
        });
        if next.is_some() || self.handshake.peer_validated {
            return next;
        }
        // The server may wait for bytes before it may send more (section 6.2.2.1).
        let space = if self.handshake.has_keys { Space::Handshake } else { Space::Initial };
        Some((self.timer_set + self.backed_off_pto(space), space))
    }

    fn backed_off_pto(&self, space: Space) -> Duration {
        self.pto(space).saturating_mul(1 << self.pto_count.min(MAX_BACKOFF))
    }

    /// Acts if a timer ran out. The fate of lost packets goes to `fate`.
    pub fn on_timeout(&mut self, now: Time, mut fate: impl FnMut(Outcome<C>)) -> Timeout {
        if let Some((time, space)) = self.loss_time() {
            if time > now {
                return Timeout::Nothing;
            }
            self.detect_losses(space, now, &mut fate);
            return Timeout::Lost;
        }
        let Some((_, space)) = self.probe_time().filter(|(time, _)| *time <= now) else {
            return Timeout::Nothing;
        };
        if self.pto_count == 0 {
            self.probing_since = now;
        }
        self.pto_count += 1;
        self.stats.probe_timeouts += 1;
        self.timer_set = now;
        // The next probe counts from this one, even if nothing may leave now: otherwise a timer of the past would stay.
        self.spaces.each(|_, state| state.last_eliciting = now);
        Timeout::Probe(space)
    }
}
