//! Network paths: validation of addresses, and the limit for those that are not proved (RFC 9000, sections 8 and 9).

use super::mtu::Mtu;
use crate::recovery::PathState;
use crate::time::Time;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Bytes that may go to an address that is not proved, for each byte that came from it (RFC 9000, section 8.1).
const AMPLIFICATION: u64 = 3;

/// Addresses of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Local address, where it is known.
    pub local: Option<IpAddr>,
}

/// Question to an address (PATH_CHALLENGE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Bytes that the answer has to have.
    pub data: [u8; 8],
    /// The frame is to be sent.
    pub is_due: bool,
    /// Time at which it is sent again, once it was sent.
    pub again: Option<Time>,
    /// Times that it was sent.
    times: u32,
    /// Time at which the path is given up.
    pub end: Time,
}

impl Challenge {
    /// Notes that it was sent. It is sent again as rarely as an Initial packet would be (RFC 9000, section 8.2.1): after twice the time each time.
    pub fn note_sent(&mut self, now: Time, pto: Duration) {
        /// Most doublings.
        const MOST: u32 = 16;
        self.is_due = false;
        self.again = Some(now + pto.saturating_mul(1 << self.times.min(MOST)));
        self.times = self.times.saturating_add(1);
    }
}

/// Path between two addresses.
#[derive(Debug)]
pub struct Path {
    /// Its addresses.
    pub route: Route,
    /// Packets to it have an identifier of their own while another path is in use (RFC 9000, section 9.5).
    pub has_own_id: bool,
    /// The peer has shown that it receives at its address.
    pub is_proved: bool,
    /// Bytes received from an address that is not proved.
    received: u64,
    /// Bytes sent to it.
    sent: u64,
    /// Question that is not answered.
    pub challenge: Option<Challenge>,
    /// Answer that is to be sent (PATH_RESPONSE). Only the last question of the peer counts.
    pub response: Option<[u8; 8]>,
    /// Search for the size of datagrams.
    pub mtu: Mtu,
    /// Round-trip time and congestion, as they were when the path was left.
    pub recovery: Option<PathState>,
}

impl Path {
    /// Creates a path.
    pub fn new(route: Route, is_proved: bool, most: u16) -> Path {
        Path {
            route,
            has_own_id: false,
            is_proved,
            received: 0,
            sent: 0,
            challenge: None,
            response: None,
            mtu: Mtu::new(most),
            recovery: None,
        }
    }

    /// Notes a datagram from the path.
    pub fn note_received(&mut self, bytes: usize) {
        if !self.is_proved {
            self.received += bytes as u64;
        }
    }

    /// Notes a datagram that leaves on the path.
    pub fn note_sent(&mut self, bytes: usize) {
        if !self.is_proved {
            self.sent += bytes as u64;
        }
    }

    /// Returns the number of bytes that may be sent.
    pub fn allowance(&self) -> u64 {
        match self.is_proved {
            true => u64::MAX,
            false => (self.received * AMPLIFICATION).saturating_sub(self.sent),
        }
    }

    /// Returns `true` if a question or an answer is to be sent.
    pub fn has_probe(&self) -> bool {
        self.response.is_some() || self.challenge.as_ref().is_some_and(|c| c.is_due)
    }

    /// Returns `true` if so little may be sent to a new address that it is kept for questions: each of them may get lost.
    pub fn is_scarce(&self) -> bool {
        self.challenge.is_some() && self.allowance() < u64::from(super::mtu::BASE)
    }

    /// Asks the peer to show that it receives here.
    pub fn ask(&mut self, data: [u8; 8], end: Time) {
        self.challenge = Some(Challenge { data, is_due: true, again: None, times: 0, end });
    }

    /// Handles a PATH_RESPONSE. Returns `true` if it answers the question of this path.
    pub fn answered(&mut self, data: &[u8; 8]) -> bool {
        // A question that was not sent cannot be answered.
        let is_answer = self.challenge.as_ref().is_some_and(|c| c.data == *data && c.again.is_some());
        if is_answer {
            self.challenge = None;
            self.is_proved = true;
        }
        is_answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(is_proved: bool) -> Path {
        let route = Route { remote: SocketAddr::from(([127, 0, 0, 1], 4433)), local: None };
        Path::new(route, is_proved, 1452)
    }

    #[test]
    fn three_bytes_for_each() {
        let mut p = path(false);
        assert_eq!(p.allowance(), 0);
        p.note_received(1200);
        p.note_sent(2400);
        assert_eq!(p.allowance(), 1200);
        p.note_sent(1300);
        assert_eq!(p.allowance(), 0);
        assert_eq!(path(true).allowance(), u64::MAX);
    }

    #[test]
    fn an_answer_proves_the_address() {
        let mut p = path(false);
        p.ask([1; 8], Time::from_nanos(1));
        assert!(!p.answered(&[1; 8]), "it was not sent");
        if let Some(challenge) = &mut p.challenge {
            challenge.again = Some(Time::default());
        }
        assert!(!p.answered(&[2; 8]) && !p.is_proved);
        assert!(p.answered(&[1; 8]) && p.is_proved && p.challenge.is_none());
        assert!(!p.answered(&[1; 8]));
    }

    /// The end may be far away, if the path before had a long round-trip time.
    #[test]
    fn questions_are_repeated_ever_more_rarely() {
        let (mut path, pto) = (path(true), Duration::from_millis(26));
        let mut now = Time::from_nanos(1);
        path.ask([1; 8], now + Duration::from_secs(1000));
        let challenge = path.challenge.as_mut().expect("a question");
        let mut times = 0;
        while now < challenge.end {
            challenge.note_sent(now, pto);
            now = challenge.again.expect("a time");
            times += 1;
        }
        assert_eq!(times, 16);
    }
}
