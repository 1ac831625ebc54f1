//! Congestion control: how much may be in flight, and at which rate it leaves. Hot path.

use std::time::Duration;

use crate::recovery::Rtt;
use crate::time::Time;

mod bbr;
mod cubic;
mod hystart;
#[cfg(test)]
mod link;
mod reno;
#[cfg(test)]
mod tests;

use bbr::Bbr;
use cubic::Cubic;
use reno::NewReno;

/// Algorithm of congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// RFC 9002, section 7.
    NewReno,
    /// RFC 9438, with the slow start of RFC 9406.
    Cubic,
    /// BBR version 3 (draft-ietf-ccwg-bbr).
    Bbr,
}

/// Acknowledgments that came together.
pub(crate) struct Acked<'r> {
    pub(crate) now: Time,
    /// Bytes that left the flight.
    pub(crate) bytes: u64,
    /// Bytes for which the window may grow: the window was used, and they were sent after it was reduced last.
    pub(crate) bytes_to_grow: u64,
    /// Time at which the newest of them was sent.
    pub(crate) newest_sent: Time,
    /// Bytes that are still in flight.
    pub(crate) in_flight: u64,
    /// A packet is among them that was sent since the last round trip began.
    pub(crate) round_starts: bool,
    /// Sample of the round-trip time.
    pub(crate) sample: Option<Duration>,
    /// Estimate of the round-trip time.
    pub(crate) rtt: &'r Rtt,
}

/// Congestion controller of a path.
#[derive(Debug)]
pub(crate) enum Controller {
    NewReno(NewReno),
    Cubic(Cubic),
    Bbr(Box<Bbr>),
}

impl Controller {
    pub(crate) fn new(algorithm: Algorithm, now: Time, datagram_size: u16, seed: u64) -> Controller {
        match algorithm {
            Algorithm::NewReno => Controller::NewReno(NewReno::new(datagram_size)),
            Algorithm::Cubic => Controller::Cubic(Cubic::new(datagram_size)),
            Algorithm::Bbr => Controller::Bbr(Box::new(Bbr::new(now, datagram_size, seed))),
        }
    }

    /// Notes bytes that were sent, after which `in_flight` bytes are in flight.
    pub(crate) fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64) {
        match self {
            Controller::NewReno(_) => {}
            Controller::Cubic(x) => x.on_sent(in_flight <= bytes),
            Controller::Bbr(x) => x.on_sent(now, bytes, in_flight),
        }
    }

    /// Notes that the application has nothing to send.
    pub(crate) fn on_app_limited(&mut self, in_flight: u64) {
        match self {
            Controller::NewReno(_) | Controller::Cubic(_) => {}
            Controller::Bbr(x) => x.on_app_limited(in_flight),
        }
    }

    /// Takes acknowledgments.
    pub(crate) fn on_ack(&mut self, acked: &Acked) {
        match self {
            Controller::NewReno(x) => x.on_ack(acked),
            Controller::Cubic(x) => x.on_ack(acked),
            Controller::Bbr(x) => x.on_ack(acked),
        }
    }

    /// Takes losses, of which the newest packet was sent at `newest`. `reduces` if it was sent after the last reduction.
    pub(crate) fn on_lost(&mut self, now: Time, newest: Time, bytes: u64, reduces: bool) {
        match self {
            Controller::NewReno(x) if reduces => x.on_congestion(),
            Controller::Cubic(x) if reduces => x.on_congestion(),
            Controller::NewReno(_) | Controller::Cubic(_) => {}
            Controller::Bbr(x) => x.on_lost(now, newest, bytes),
        }
    }

    /// Takes a congestion mark on a packet that was sent at `sent`. `reduces` if that was after the last reduction.
    pub(crate) fn on_marked(&mut self, now: Time, sent: Time, reduces: bool) {
        match self {
            Controller::NewReno(x) if reduces => x.on_congestion(),
            Controller::Cubic(x) if reduces => x.on_congestion(),
            Controller::NewReno(_) | Controller::Cubic(_) => {}
            Controller::Bbr(x) => x.on_marked(now, sent),
        }
    }

    pub(crate) fn on_persistent_congestion(&mut self) {
        match self {
            Controller::NewReno(x) => x.on_persistent_congestion(),
            Controller::Cubic(x) => x.on_persistent_congestion(),
            Controller::Bbr(x) => x.on_persistent_congestion(),
        }
    }

    /// Undoes the last reduction: nothing was lost.
    pub(crate) fn undo(&mut self) {
        match self {
            Controller::NewReno(x) => x.undo(),
            Controller::Cubic(x) => x.undo(),
            Controller::Bbr(_) => {}
        }
    }

    pub(crate) fn on_datagram_size(&mut self, size: u16) {
        match self {
            Controller::NewReno(x) => x.datagram_size = size.into(),
            Controller::Cubic(x) => x.set_datagram_size(size),
            Controller::Bbr(x) => x.set_datagram_size(size),
        }
    }

    /// Returns the congestion window, bytes.
    pub(crate) fn window(&self) -> u64 {
        match self {
            Controller::NewReno(x) => x.window,
            Controller::Cubic(x) => x.window(),
            Controller::Bbr(x) => x.window(),
        }
    }

    /// Returns the rate in bytes per second at which packets are to leave, if it does not follow from the window.
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        match self {
            Controller::NewReno(_) | Controller::Cubic(_) => None,
            Controller::Bbr(x) => x.pacing_rate(),
        }
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        match self {
            Controller::NewReno(x) => x.in_slow_start(),
            Controller::Cubic(x) => x.in_slow_start(),
            Controller::Bbr(x) => x.in_startup(),
        }
    }

    /// Gives memory back.
    pub(crate) fn shrink(&mut self) {
        match self {
            Controller::NewReno(_) | Controller::Cubic(_) => {}
            Controller::Bbr(x) => x.shrink(),
        }
    }
}

/// Returns the window at the beginning (RFC 9002, section 7.2).
fn initial_window(datagram_size: u64) -> u64 {
    (10 * datagram_size).min((2 * datagram_size).max(14_720))
}

/// Returns the next of a row of numbers that are random enough for choices that nobody must guess easily (SplitMix64).
pub(crate) fn mix(state: u64) -> u64 {
    let x = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
