//! Discovery of the path's datagram size (RFC 9000, section 14.3; RFC 8899).

use crate::time::Time;
use std::time::Duration;

/// Size of datagrams that every path of QUIC carries (RFC 9000, section 14), bytes of UDP payload.
pub const BASE: u16 = 1200;
/// Probes of a size that are lost before it counts as too large (RFC 8899, section 5.1.2: MAX_PROBES).
const PROBES: u8 = 3;
/// Sizes closer than this are not told apart.
const PRECISION: u16 = 20;
/// Time after which a path may have become wider (RFC 8899, section 5.1.1: PMTU_RAISE_TIMER).
const RAISE: Duration = Duration::from_secs(600);
/// Losses of full datagrams in a row, with nothing that large acknowledged between, that show a black hole.
const BLACK_HOLE: u8 = 4;

/// State of the search.
#[derive(Debug)]
pub struct Mtu {
    /// Size that datagrams have.
    current: u16,
    /// Smallest size that was found to be too large, less one; at first the largest that is tried.
    upper: u16,
    /// Largest size that is tried.
    most: u16,
    /// Size and packet number of the probe that is under way.
    probe: Option<(u16, u64)>,
    /// Lost probes of the next size.
    lost: u8,
    /// Large datagrams lost in a row.
    suspicious: u8,
    /// Size of the smallest of them.
    smallest: u16,
    /// Time from which on a search may begin.
    next: Time,
    /// The end of the search is known.
    found: bool,
    /// Largest number of a packet of about the current size that arrived.
    arrived: u64,
}

impl Mtu {
    /// Creates a search from [`BASE`] up to `most` bytes. The peer may set a bound later.
    pub fn new(most: u16) -> Mtu {
        let most = most.max(BASE);
        Mtu {
            current: BASE,
            upper: most,
            most,
            probe: None,
            lost: 0,
            suspicious: 0,
            smallest: u16::MAX,
            next: Time::default(),
            found: most < BASE + PRECISION,
            arrived: 0,
        }
    }

    /// Returns the size of datagrams.
    pub fn current(&self) -> u16 {
        self.current
    }

    /// Takes the peer's `max_udp_payload_size`.
    pub fn set_peer_limit(&mut self, most: u64) {
        let most = u16::try_from(most).unwrap_or(u16::MAX).max(BASE);
        self.most = self.most.min(most);
        self.upper = self.upper.min(most);
        self.current = self.current.min(most);
        self.found |= self.is_near(self.upper);
    }

    /// Returns the size of a probe that is due.
    pub fn due(&self, now: Time) -> Option<u16> {
        if self.probe.is_some() || now < self.next || (self.found && self.is_near(self.most)) {
            return None;
        }
        let upper = if self.found { self.most } else { self.upper };
        // The largest first: most paths carry it.
        let is_first = upper == self.most && self.lost == 0 && self.current == BASE;
        Some(if is_first { upper } else { self.current + (upper - self.current).div_ceil(2) })
    }

    /// Notes that a probe has left in a packet.
    pub fn sent(&mut self, size: u16, packet: u64) {
        if std::mem::take(&mut self.found) {
            self.upper = self.most;
        }
        self.probe = Some((size, packet));
    }

    /// Notes that a packet arrived. Returns `true` if datagrams are larger from now on.
    pub fn acked(&mut self, packet: u64, size: u16, now: Time) -> bool {
        if size >= self.smallest {
            (self.suspicious, self.smallest) = (0, u16::MAX);
        }
        if size > BASE && size.saturating_add(PRECISION) >= self.current {
            self.arrived = self.arrived.max(packet);
        }
        let Some((size, _)) = self.probe.filter(|(_, probe)| *probe == packet) else { return false };
        self.probe = None;
        self.lost = 0;
        self.current = size.max(self.current);
        self.settle(now);
        true
    }

    /// Notes that a packet was lost. Returns `true` if it was a probe, whose loss says nothing about congestion.
    pub fn probe_lost(&mut self, packet: u64, now: Time) -> bool {
        let Some((size, _)) = self.probe.filter(|(_, probe)| *probe == packet) else { return false };
        self.probe = None;
        self.lost += 1;
        if self.lost >= PROBES {
            self.lost = 0;
            self.upper = size.saturating_sub(1).max(self.current);
            self.settle(now);
        }
        true
    }

    /// Notes that a packet of this size was lost. Returns `true` if datagrams are smaller from now on: the path carries large ones no
    /// longer (RFC 8899, section 4.3).
    pub fn lost(&mut self, packet: u64, size: u16, now: Time) -> bool {
        // A full queue drops many in a row, too: then a later one of the size arrived.
        if size <= BASE || self.current <= BASE || packet < self.arrived {
            return false;
        }
        self.suspicious += 1;
        self.smallest = self.smallest.min(size);
        if self.suspicious < BLACK_HOLE {
            return false;
        }
        self.shrink();
        self.found = true;
        self.next = now + RAISE;
        true
    }

    /// Notes that nothing was acknowledged for long: datagrams may be too large, and then nothing shows that they are lost. The search begins
    /// again (RFC 8899, section 4.3).
    pub fn suspect(&mut self, now: Time) {
        if self.current > BASE {
            self.shrink();
            (self.upper, self.found, self.next) = (self.most, false, now);
        }
    }

    fn shrink(&mut self) {
        (self.suspicious, self.smallest) = (0, u16::MAX);
        (self.current, self.probe, self.lost) = (BASE, None, 0);
    }

    /// Returns `true` if a size is hardly larger than that of datagrams.
    fn is_near(&self, size: u16) -> bool {
        size.saturating_sub(self.current) < PRECISION
    }

    /// Ends the search if nothing is left to try.
    fn settle(&mut self, now: Time) {
        if self.is_near(self.upper) {
            self.found = true;
            self.next = now + RAISE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size found on a path that carries `path` bytes, and the number of probes.
    fn search(path: u16, most: u16) -> (u16, usize) {
        let mut mtu = Mtu::new(most);
        let now = Time::from_nanos(1);
        for packet in 0..100 {
            let Some(size) = mtu.due(now) else { return (mtu.current(), packet as usize) };
            mtu.sent(size, packet);
            assert_eq!(mtu.due(now), None, "one probe at a time");
            if size <= path {
                assert!(mtu.acked(packet, size, now));
            } else {
                assert!(mtu.probe_lost(packet, now));
            }
        }
        panic!("no end");
    }

    #[test]
    fn the_search_ends_near_the_size_of_the_path() {
        assert_eq!(search(1500, 1452), (1452, 1));
        assert_eq!(search(9000, 1200), (1200, 0));
        for path in [1200, 1280, 1300, 1372, 1451] {
            let (found, probes) = search(path, 1452);
            assert!(
                found <= path && found + PRECISION > path.min(1452) && probes < 20,
                "{path}: {found}, {probes}"
            );
        }
        let (found, _) = search(8000, 65_000);
        assert!((7980..=8000).contains(&found), "{found}");
        assert_eq!(search(u16::MAX, u16::MAX), (u16::MAX, 1));
    }

    #[test]
    fn a_peer_sets_a_bound() {
        let mut mtu = Mtu::new(1452);
        mtu.set_peer_limit(1300);
        assert_eq!(mtu.due(Time::default()), Some(1300));
        mtu.set_peer_limit(1200);
        assert_eq!((mtu.due(Time::default()), mtu.current()), (None, 1200));
    }

    #[test]
    fn a_black_hole_is_left_and_tried_again_later() {
        let mut mtu = Mtu::new(1452);
        let now = Time::from_nanos(1);
        mtu.sent(1452, 0);
        assert!(mtu.acked(0, 1452, now));
        for _ in 0..BLACK_HOLE - 1 {
            assert!(!mtu.lost(1, 1452, now));
        }
        // One that arrives shows that the path is no black hole; smaller ones show nothing.
        mtu.acked(7, 1451, now);
        assert_eq!(mtu.suspicious, BLACK_HOLE - 1);
        mtu.acked(7, 1452, now);
        for _ in 0..BLACK_HOLE - 1 {
            assert!(!mtu.lost(8, 1452, now) && !mtu.lost(8, 900, now));
        }
        // Those that were sent before one that arrived show nothing either.
        assert!((0..100).all(|_| !mtu.lost(6, 1452, now)));
        assert!(mtu.lost(8, 1452, now));
        assert_eq!((mtu.current(), mtu.due(now)), (BASE, None));
        assert_eq!(mtu.due(now + RAISE), Some(1452));
        // Datagrams that are not quite full count, too.
        mtu.sent(1452, 9);
        assert!(mtu.acked(9, 1452, now));
        assert_eq!((0..BLACK_HOLE).filter(|_| mtu.lost(9, 1451, now)).count(), 1);
    }
}
