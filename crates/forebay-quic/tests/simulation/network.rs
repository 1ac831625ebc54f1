//! Network with delay, loss, and other faults.

use crate::random::Random;
use forebay_quic::time::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

/// Faults of a network, in thousandths of all datagrams.
#[derive(Clone, Debug)]
pub struct Faults {
    pub delay: Duration,
    /// Most by which the delay varies. Datagrams overtake each other by it.
    pub jitter: Duration,
    pub loss: u64,
    /// Begins of bursts of losses.
    pub bursts: u64,
    pub duplicates: u64,
    pub corrupt: u64,
    /// Datagrams that are marked with CE, if they can be.
    pub marked: u64,
    /// Marks are removed.
    pub bleaches: bool,
    /// Largest datagram that gets through.
    pub mtu: usize,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            delay: Duration::from_millis(10),
            jitter: Duration::ZERO,
            loss: 0,
            bursts: 0,
            duplicates: 0,
            corrupt: 0,
            marked: 0,
            bleaches: false,
            mtu: 1500,
        }
    }
}

/// Datagram on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Datagram {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub ecn: u8,
    pub bytes: Vec<u8>,
}

/// Network between two nodes.
pub struct Network {
    pub faults: Faults,
    random: Random,
    on_the_way: BinaryHeap<Reverse<(Time, u64, Datagram)>>,
    sent: u64,
    pub dropped: u64,
    /// Datagrams that the burst of losses still takes.
    burst: u64,
    burst_until: Time,
    /// Nothing gets through before.
    pub stalled_until: Time,
}

impl Network {
    pub fn new(faults: Faults, seed: u64) -> Network {
        Network {
            faults,
            random: Random::new(seed),
            on_the_way: BinaryHeap::new(),
            sent: 0,
            dropped: 0,
            burst: 0,
            burst_until: Time::default(),
            stalled_until: Time::default(),
        }
    }

    /// Sends a datagram, unless it gets lost.
    pub fn send(&mut self, now: Time, mut datagram: Datagram) {
        let Faults { loss, duplicates, corrupt, marked, bleaches, mtu, .. } = self.faults;
        if self.random.happens(self.faults.bursts) {
            self.burst = 2 + self.random.below(8);
            self.burst_until = now + Duration::from_millis(50);
        }
        let in_burst = self.burst > 0 && now < self.burst_until;
        self.burst = self.burst.saturating_sub(1);
        let is_lost = self.random.happens(loss);
        if datagram.bytes.len() > mtu || is_lost || in_burst || now < self.stalled_until {
            self.dropped += 1;
            return;
        }
        if self.random.happens(corrupt) {
            let at = self.random.below(datagram.bytes.len() as u64) as usize;
            datagram.bytes[at] ^= 1 << self.random.below(8);
        }
        if bleaches {
            datagram.ecn = 0;
        } else if datagram.ecn != 0 && self.random.happens(marked) {
            datagram.ecn = 3;
        }
        if self.random.happens(duplicates) {
            self.deliver_later(now, datagram.clone());
        }
        self.deliver_later(now, datagram);
    }

    fn deliver_later(&mut self, now: Time, datagram: Datagram) {
        let jitter = self.random.below(self.faults.jitter.as_nanos() as u64 + 1);
        let at = now + self.faults.delay + Duration::from_nanos(jitter);
        self.sent += 1;
        self.on_the_way.push(Reverse((at, self.sent, datagram)));
    }

    /// Returns the time at which the next datagram arrives.
    pub fn next(&self) -> Option<Time> {
        self.on_the_way.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes a datagram that has arrived.
    pub fn take(&mut self, now: Time) -> Option<Datagram> {
        if self.next()? > now {
            return None;
        }
        self.on_the_way.pop().map(|Reverse((_, _, datagram))| datagram)
    }
}
