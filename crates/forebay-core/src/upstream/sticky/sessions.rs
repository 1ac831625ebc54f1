//! Table of the sessions that `sticky learn` has learnt: the server of each, for a time. Its size is bounded.

use super::shared::Outbox;
use std::collections::{HashMap, VecDeque};

/// Sessions by their keys. Times are those of [`crate::upstream::peer::clock`].
#[derive(Debug, Default)]
pub(super) struct Sessions {
    map: HashMap<Box<[u8]>, LearnedSession, foldhash::fast::RandomState>,
    /// Sessions by the time they end. Skips entries of sessions that were prolonged.
    order: VecDeque<(u64, Box<[u8]>)>,
    /// Most bytes of all sessions.
    pub(super) room: usize,
    used: usize,
    /// Messages and questions for the shared store. Empty without `sync`.
    pub(super) outbox: Outbox,
}

#[derive(Debug)]
struct LearnedSession {
    sid: Box<[u8]>,
    until: u64,
    /// Time at which the shared store had this server; 0 is never.
    told: u64,
}

/// Bytes of one session in addition to its texts. About as many sessions fit into a zone as in nginx.
const COST: usize = 96;

/// Longest key of a session, bytes.
const MAX_KEY: usize = 1024;

impl Sessions {
    /// Creates a table without sessions. `room`: most bytes.
    pub(super) fn new(room: usize) -> Sessions {
        Sessions { room, ..Sessions::default() }
    }

    /// Returns the server of a session.
    pub(super) fn find(&self, key: &[u8], now: u64) -> Option<&[u8]> {
        self.map.get(key).filter(|s| now < s.until).map(|s| &*s.sid)
    }

    /// Begins or prolongs a session. It moves if it was at another server. A long key is not learnt.
    pub(super) fn set(&mut self, key: &[u8], sid: &[u8], until: u64, now: u64) {
        if key.len() <= MAX_KEY {
            self.put(key, sid, until, now);
        }
    }

    /// Prolongs a session, unless it has ended or is at another server.
    pub(super) fn prolong(&mut self, key: &[u8], sid: &[u8], until: u64, now: u64) {
        if self.find(key, now).is_some_and(|present| present == sid) {
            self.put(key, sid, until, now);
        }
    }

    /// Prolongs a session, or begins it again if it has ended. Leaves one that is at another server.
    pub(super) fn renew(&mut self, key: &[u8], sid: &[u8], until: u64, now: u64) {
        if self.find(key, now).is_none_or(|present| present == sid) {
            self.set(key, sid, until, now);
        }
    }

    /// Returns the time at which the shared store had the server of a session; 0 is never.
    pub(super) fn told(&self, key: &[u8]) -> u64 {
        self.map.get(key).map_or(0, |s| s.told)
    }

    /// Notes that the shared store has the server of a session.
    pub(super) fn set_told(&mut self, key: &[u8], now: u64) {
        if let Some(s) = self.map.get_mut(key) {
            s.told = now;
        }
    }

    fn put(&mut self, key: &[u8], sid: &[u8], until: u64, now: u64) {
        self.forget(now);
        let cost = COST + key.len() + sid.len();
        if let Some(old) = self.map.get_mut(key) {
            if *old.sid != *sid {
                self.used = self.used + sid.len() - old.sid.len();
                old.sid = sid.into();
                old.told = 0;
            }
            // One entry for each quarter of a second, since one for each request would let the list grow.
            if until > old.until.saturating_add(250) {
                old.until = until;
                self.order.push_back((until, key.into()));
            }
            return;
        }
        while self.used + cost > self.room {
            let Some((at, key)) = self.order.pop_front() else { return };
            self.drop_if(&key, at);
        }
        self.used += cost;
        self.map.insert(key.into(), LearnedSession { sid: sid.into(), until, told: 0 });
        self.order.push_back((until, key.into()));
    }

    /// Removes sessions that have ended.
    fn forget(&mut self, now: u64) {
        while self.order.front().is_some_and(|(at, _)| *at <= now) {
            let Some((at, key)) = self.order.pop_front() else { return };
            self.drop_if(&key, at);
        }
    }

    /// Drops a session unless it was prolonged since the entry was made.
    fn drop_if(&mut self, key: &[u8], at: u64) {
        if self.map.get(key).is_some_and(|s| s.until == at)
            && let Some(s) = self.map.remove(key)
        {
            self.used = self.used.saturating_sub(COST + key.len() + s.sid.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_and_are_bounded() {
        let mut s = Sessions::new(1000);
        s.set(b"a", b"x", 500, 1);
        assert_eq!(s.find(b"a", 499), Some(b"x".as_slice()));
        assert_eq!(s.find(b"a", 500), None);
        s.prolong(b"a", b"x", 900, 100);
        assert_eq!(s.find(b"a", 600), Some(b"x".as_slice()));
        s.prolong(b"a", b"y", 2000, 100);
        assert_eq!(s.find(b"a", 1000), None);
        for n in 0..100u8 {
            s.set(&[n], b"x", 5000, 1000);
        }
        assert!(s.map.len() <= 10, "{}", s.map.len());
        assert_eq!(s.find(&[99], 1000), Some(b"x".as_slice()));
        assert_eq!(s.find(&[0], 1000), None);
    }

    #[test]
    fn a_long_connection_renews_its_session() {
        let mut s = Sessions::new(1000);
        s.set(b"a", b"x", 500, 1);
        s.renew(b"a", b"x", 1500, 1000);
        assert_eq!(s.find(b"a", 1400), Some(b"x".as_slice()));
        // The client has moved since.
        s.set(b"a", b"y", 2000, 1400);
        s.renew(b"a", b"x", 3000, 1400);
        assert_eq!(s.find(b"a", 1900), Some(b"y".as_slice()));
        assert_eq!(s.find(b"a", 2000), None);
    }
}
