//! Addresses other than that of a client, from which datagrams of its connection come. Whoever sends under the address of another must not
//! have that other receive more than three times what was sent (RFC 9000, sections 8.2 and 9.3.1). quinn-proto answers each
//! PATH_CHALLENGE, and each move of a client, with a datagram of 1200 bytes first.
//!
//! Nor may that other be taken for the client: a request counts as one of the address that was proved last.

use quinn_proto::Connection;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

/// Bytes that make up for a datagram of 1200.
const ENOUGH: usize = 400;
/// Most addresses to which quinn-proto answers in a turn.
const MOST: usize = 16;

/// Addresses that get nothing yet.
#[derive(Debug)]
pub(super) struct Strangers {
    /// Address that the handshake has proved. A client whose port changes behind a router does not know of it and cannot pad its packets.
    home: IpAddr,
    /// Address that the client has proved last, and thus receives at.
    proved: SocketAddr,
    /// Data of the challenge that was sent to the client's address.
    challenge: Option<u64>,
    /// PATH_CHALLENGE frames received.
    challenges: u64,
    /// Senders of PATH_CHALLENGE in datagrams that are shorter than a client may make them (section 8.2.1).
    short: Vec<SocketAddr>,
    /// Address that the client has moved to, until enough has come from there, or it has answered a challenge.
    moved: Option<Moved>,
}

/// Address that may get three times of what has come from there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Moved {
    to: SocketAddr,
    /// Bytes that have come from there and gone there.
    received: usize,
    sent: usize,
    /// The challenge for the address before has been asked for. quinn-proto makes it first.
    has_asked: Cell<bool>,
}

impl Strangers {
    pub(super) fn new(home: SocketAddr) -> Strangers {
        Strangers {
            home: home.ip(),
            proved: home,
            challenge: None,
            challenges: 0,
            short: Vec::new(),
            moved: None,
        }
    }

    /// Returns the address that the client has proved last. `client`: address of the client. Another port of it needs no proof.
    pub(super) fn proved(&self, client: SocketAddr) -> SocketAddr {
        if client.ip() == self.proved.ip() { client } else { self.proved }
    }

    /// Returns `true` if all addresses get what is for them.
    pub(super) fn is_empty(&self) -> bool {
        self.short.is_empty() && self.moved.is_none()
    }

    /// Notes a datagram that has been handled. `before`: address of the client before that.
    pub(super) fn note(&mut self, from: SocketAddr, len: usize, before: SocketAddr, connection: &Connection) {
        let challenges = connection.stats().frame_rx.path_challenge;
        let challenges = challenges - std::mem::replace(&mut self.challenges, challenges);
        self.note_one(from, len, (before, connection.remote_address()), challenges > 0);
    }

    fn note_one(
        &mut self,
        from: SocketAddr,
        len: usize,
        (before, now): (SocketAddr, SocketAddr),
        asks: bool,
    ) {
        if before != now {
            self.challenge = None;
        }
        if from == now {
            self.short.retain(|short| *short != from);
            let so_far = match self.moved.take() {
                Some(moved) if moved.to == from => Some(moved),
                other => (before != now && now.ip() != self.home).then(|| Moved {
                    to: from,
                    received: 0,
                    sent: 0,
                    // The address before is not asked if it was not proved itself.
                    has_asked: Cell::new(other.is_some()),
                }),
            };
            self.moved = so_far
                .map(|moved| Moved { received: moved.received + len, ..moved })
                .filter(|moved| moved.received < ENOUGH);
        } else if asks {
            self.short.retain(|short| *short != from);
            // Others get no answer from quinn-proto.
            if len < ENOUGH && self.short.len() < MOST {
                self.short.push(from);
            }
        }
    }

    /// Notes that an answer to a challenge has come from an address. `client`: address of the client. The challenge for the address before
    /// proves nothing here, for both can be the same sender.
    pub(super) fn note_answer(&mut self, data: u64, from: SocketAddr, client: SocketAddr) {
        if from == client && self.challenge == Some(data) {
            self.proved = client;
            self.moved = None;
        }
    }

    /// Returns the length that the next datagram for the client may have at most; `None` if it may have any, or is one for another
    /// address.
    pub(super) fn allowance(&self, client: SocketAddr) -> Option<usize> {
        let moved = self.moved.as_ref().filter(|moved| moved.to == client)?;
        moved.has_asked.replace(true).then(|| (3 * moved.received).saturating_sub(moved.sent))
    }

    /// Returns `true` if a datagram of this length may be sent to an address. `client`: address of the client. `challenge`: data of the
    /// PATH_CHALLENGE frame in it. Each packet to a client that has not answered yet has one.
    pub(super) fn may_have(
        &mut self,
        to: SocketAddr,
        len: usize,
        client: SocketAddr,
        challenge: Option<u64>,
    ) -> bool {
        if to == client {
            self.challenge = challenge.or(self.challenge);
            let Some(moved) = self.moved.as_mut().filter(|moved| moved.to == to) else { return true };
            let may = moved.sent + len <= 3 * moved.received;
            moved.sent += if may { len } else { 0 };
            return may;
        }
        match self.short.iter().position(|short| *short == to) {
            Some(at) => {
                self.short.remove(at);
                false
            }
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn short_challenges_get_no_answer() {
        let (home, other) = (addr("10.0.0.1:1"), addr("10.0.0.2:2"));
        let mut strangers = Strangers::new(home);
        strangers.note_one(other, 40, (home, home), true);
        assert!(strangers.may_have(home, 1200, home, None));
        assert!(!strangers.may_have(other, 1200, home, None));
        assert!(strangers.may_have(other, 1200, home, None) && strangers.is_empty());
        strangers.note_one(other, 40, (home, home), true);
        strangers.note_one(other, 1200, (home, home), true);
        assert!(strangers.may_have(other, 1200, home, None) && strangers.is_empty());
        strangers.note_one(other, 40, (home, home), false);
        assert!(strangers.is_empty());
        for port in 0..100 {
            strangers.note_one(addr(&format!("10.0.0.2:{port}")), 40, (home, home), true);
        }
        assert_eq!(strangers.short.len(), MOST);
    }

    #[test]
    fn who_moves_sends_enough_first() {
        let (home, other) = (addr("10.0.0.1:1"), addr("10.0.0.2:2"));
        let mut strangers = Strangers::new(home);
        strangers.note_one(other, 40, (home, other), false);
        assert!(!strangers.may_have(other, 1200, other, None) && strangers.may_have(home, 1200, other, None));
        strangers.note_one(other, 300, (other, other), false);
        assert!(!strangers.may_have(other, 1200, other, None));
        // To and fro begins anew.
        strangers.note_one(home, 40, (other, home), false);
        assert!(strangers.is_empty());
        strangers.note_one(other, 40, (home, other), false);
        assert!(!strangers.may_have(other, 1200, other, None));
        strangers.note_one(other, 360, (other, other), false);
        assert!(strangers.may_have(other, 1200, other, None) && strangers.is_empty());
        // What is short enough may go there, after the question to the address before. An answer proves the address.
        strangers.note_one(other, 40, (home, other), false);
        assert_eq!((strangers.allowance(other), strangers.allowance(other)), (None, Some(120)));
        assert!(strangers.may_have(other, 50, other, None) && strangers.may_have(other, 70, other, None));
        assert!(!strangers.may_have(other, 1, other, None));
        strangers.note_one(other, 40, (other, other), false);
        assert_eq!(strangers.allowance(other), Some(120));
        assert!(strangers.may_have(other, 1, other, Some(7)));
        for (data, from) in [(7, home), (8, other)] {
            strangers.note_answer(data, from, other);
            assert!(!strangers.is_empty());
        }
        strangers.note_answer(7, other, other);
        assert!(strangers.is_empty() && strangers.allowance(other).is_none());
        // Another port of the router in between.
        strangers.note_one(addr("10.0.0.1:9"), 40, (other, addr("10.0.0.1:9")), false);
        assert!(strangers.is_empty());
    }

    /// An attacker sends from `home`, and then with a forged sender address.
    #[test]
    fn the_address_of_another_proves_nothing() {
        let (home, other) = (addr("10.0.0.1:1"), addr("10.0.0.2:2"));
        let mut strangers = Strangers::new(home);
        strangers.note_one(other, 1200, (home, other), false);
        assert_eq!(strangers.proved(other), home);
        // The challenge for the address before reaches the sender, that for the new one does not.
        assert!(strangers.may_have(home, 1200, other, Some(1)));
        strangers.note_answer(1, other, other);
        assert!(strangers.may_have(other, 1200, other, Some(2)));
        strangers.note_answer(1, other, other);
        strangers.note_answer(2, home, other);
        assert_eq!(strangers.proved(other), home);
        strangers.note_answer(2, other, other);
        assert_eq!(strangers.proved(other), other);
        // An answer proves one address only, and a port needs none.
        let (third, port) = (addr("10.0.0.3:3"), addr("10.0.0.2:9"));
        strangers.note_one(third, 1200, (other, third), false);
        strangers.note_answer(2, third, third);
        assert_eq!((strangers.proved(third), strangers.proved(port)), (other, port));
    }
}
