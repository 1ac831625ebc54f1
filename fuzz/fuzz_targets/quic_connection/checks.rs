//! What holds after each step.

use crate::lab::Lab;
use forebay_quic::connection::{Event, Reason};
use forebay_quic::error::Code;
use forebay_quic::id::Side;
use forebay_sys::alloc::CountingAllocator;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Most bytes that a connection and its peer keep, and the rest of a test.
const MOST: i64 = 1 << 20;
/// Most packets and frames under way that a connection remembers.
const MOST_KEPT: usize = 5000;

/// Counts over a whole run.
pub struct Checks {
    /// Bytes in use at the beginning.
    base: i64,
    received: BTreeMap<SocketAddr, usize>,
    sent: BTreeMap<SocketAddr, usize>,
    pub proved: BTreeSet<SocketAddr>,
    /// Addresses that Retry packets were sent to.
    pub retried: Vec<SocketAddr>,
    /// Connections that the application has closed.
    pub closed: usize,
    /// Packets under way have a timer: the handshake is confirmed when it is complete (RFC 9002, section 6.2.1), and one path is used.
    pub has_timers: bool,
}

impl Checks {
    /// Begins before anything is allocated.
    pub fn begin() -> Checks {
        Checks {
            base: CountingAllocator::counts().live(),
            received: BTreeMap::new(),
            sent: BTreeMap::new(),
            proved: BTreeSet::new(),
            retried: Vec::new(),
            closed: 0,
            has_timers: true,
        }
    }

    pub fn received(&mut self, from: SocketAddr, bytes: usize) {
        *self.received.entry(from).or_default() += bytes;
    }

    pub fn prove(&mut self, addr: SocketAddr) {
        self.proved.insert(addr);
    }

    /// Checks everything, and forgets what only tests keep.
    pub fn check(&mut self, lab: &mut Lab) {
        for datagram in lab.sent.drain(..) {
            *self.sent.entry(datagram.to).or_default() += datagram.bytes.len();
            if crate::packets::is_retry(&datagram.bytes) {
                self.retried.push(datagram.to);
            }
        }
        lab.raw.got.clear();
        let old = lab.raw.others.len().saturating_sub(4);
        lab.raw.others.drain(..old);
        let old = lab.raw.challenges.len().saturating_sub(8);
        lab.raw.challenges.drain(..old);
        lab.node.events.retain(|event| matches!(event, Event::Lost(_)));
        self.amplification();
        self.ends(lab);
        self.timers(lab);
        self.memory(lab);
    }

    /// RFC 9000, section 8.
    fn amplification(&self) {
        for (to, sent) in &self.sent {
            let received = self.received.get(to).copied().unwrap_or(0);
            assert!(self.proved.contains(to) || *sent <= 3 * received, "{to}: {sent} for {received}");
        }
    }

    /// A connection is open, or has ended once for a reason.
    fn ends(&self, lab: &Lab) {
        let begun = if lab.node.side.is_client() { 1 } else { lab.node.begun as usize };
        let open = lab.node.connections.values().filter(|c| !c.is_closed()).count();
        assert_eq!(open + lab.node.events.len() + self.closed, begun, "{:?}", lab.node.events);
        for event in &lab.node.events {
            if let Event::Lost(Reason::Error(e)) = event {
                let is_known = matches!(e.code.0, 1..=0x11 | 0x100..=0x1ff);
                let is_expected = e.code != Code::INTERNAL_ERROR || e.reason.contains("too many gaps");
                assert!(is_known && is_expected, "{e:?}");
            }
        }
    }

    /// Nothing is due that was not done, and what is outstanding has a timer.
    fn timers(&self, lab: &Lab) {
        for connection in lab.node.connections.values().filter(|c| !c.is_closed()) {
            let deadline = connection.deadline();
            assert!(deadline.is_none_or(|at| at > lab.now), "{}", connection.recovery());
            let waits = connection.kept().packets > 0 && !connection.is_handshaking() && self.has_timers;
            assert!(!waits || deadline.is_some(), "{}", connection.recovery());
        }
    }

    fn memory(&self, lab: &Lab) {
        for connection in lab.node.connections.values() {
            let kept = connection.kept();
            assert!(
                kept.packets.max(kept.items) <= MOST_KEPT,
                "{kept:?} {} at {:?}",
                connection.recovery(),
                lab.now
            );
            assert_eq!(kept.events, 0);
        }
        let live = CountingAllocator::counts().live() - self.base;
        let most = MOST * (1 + lab.node.connections.len() as i64);
        assert!(live <= most, "{live} bytes, {} connections", lab.node.connections.len());
    }

    /// Checks what is left after a time in which the peer was silent.
    pub fn end(&self, lab: &Lab, ends: bool) {
        if ends {
            assert!(lab.node.connections.is_empty(), "{:?}", lab.node.connections);
            assert_eq!(lab.node.endpoint.counts(), (0, 0));
        }
    }
}

/// Returns the address that needs no proof: the server's, which the tested client has chosen.
pub fn chosen(lab: &Lab) -> Option<SocketAddr> {
    (lab.node.side == Side::Client).then_some(lab.raw.addr)
}
