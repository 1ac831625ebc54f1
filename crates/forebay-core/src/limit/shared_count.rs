//! Numbers of requests under way that several replicas of the server keep together (`limit_conn_zone ... sync`).
//!
//! The store has the number of each replica for each key. A request takes a place in this replica at once, and waits for the store
//! to say that all together are within the limit. A place that is given back is reported without waiting. Numbers expire in the
//! store, so that a replica that ended leaves no places behind; each replica reports those of its keys again and again.

use super::zones::{KEY_COST, Tables};
use crate::shared_store::{Answer, Ask, Client, Link, Question, Shares};
use forebay_net::tls::sessions::Usage;
use forebay_sys::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Time between two reports of a number that does not change.
const REPORT: Duration = Duration::from_secs(2);

/// Request that waits for the store.
#[derive(Debug)]
struct Entering {
    key: Box<[u8]>,
    most: u32,
    sender: oneshot::Sender<Answer>,
}

/// Requests of this replica that are under way or wait for the store. Active keys cannot be evicted, so a full zone refuses new
/// keys.
#[derive(Debug)]
pub(super) struct Table {
    map: HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>,
    room: usize,
    used: usize,
    /// Keys whose number has become smaller.
    changed: Vec<Box<[u8]>>,
    entering: Vec<Entering>,
    /// Time of the last report of all numbers.
    reported: Option<Instant>,
}

impl Table {
    fn new(room: usize) -> Table {
        let (changed, entering) = (Vec::new(), Vec::new());
        Table { map: HashMap::default(), room, used: 0, changed, entering, reported: None }
    }

    /// Adds one to the number of a key and returns it, unless the zone is full or the number would be above `most`.
    fn add(&mut self, key: &[u8], most: u32) -> Option<u32> {
        if let Some(n) = self.map.get_mut(key) {
            *n = n.checked_add(1).filter(|n| *n <= most)?;
            return Some(*n);
        }
        let cost = KEY_COST + key.len();
        if self.used + cost > self.room || most == 0 {
            return None;
        }
        self.used += cost;
        self.map.insert(key.into(), 1);
        Some(1)
    }

    fn remove(&mut self, key: &[u8]) {
        let Some(n) = self.map.get_mut(key) else { return };
        *n = n.saturating_sub(1);
        if *n == 0 {
            self.map.remove(key);
            self.used = self.used.saturating_sub(KEY_COST + key.len());
        }
    }

    fn number(&self, key: &[u8]) -> u32 {
        self.map.get(key).copied().unwrap_or(0)
    }
}

/// Tables by zone name. They are kept across reloads.
static TABLES: Tables<Table> = Tables::new();

/// Returns the memory use of the zones.
pub(super) fn usage() -> Vec<Usage> {
    TABLES.usage(|t| t.used)
}

/// A zone whose numbers all replicas keep together.
#[derive(Debug)]
pub(super) struct SharedCount {
    name: Vec<u8>,
    table: Arc<Mutex<Table>>,
    link: Arc<Link>,
}

/// Result of taking a place.
#[derive(Debug)]
pub(super) enum Entry {
    /// The place is taken.
    Taken,
    /// There is none.
    Refused,
    /// The place is taken in this replica. The answer says whether the others leave it to it.
    Waits(oneshot::Receiver<Answer>),
}

impl SharedCount {
    /// Creates a zone over the table of this name, key and size.
    pub(super) fn new(name: &[u8], key: &[u8], size: usize, link: Arc<Link>) -> SharedCount {
        SharedCount { name: name.to_vec(), table: TABLES.get(name, key, size, || Table::new(size)), link }
    }

    /// Takes a place for a key that has `most` of them. Without the store, each replica has its share.
    pub(super) fn enter(&self, key: &[u8], most: u32) -> Entry {
        let mut table = lock(&self.table);
        if !self.link.is_up() {
            return if table.add(key, self.share(most)).is_some() { Entry::Taken } else { Entry::Refused };
        }
        if table.add(key, most).is_none() {
            return Entry::Refused;
        }
        let (sender, receiver) = oneshot::channel();
        table.entering.push(Entering { key: key.into(), most, sender });
        drop(table);
        self.link.wake();
        Entry::Waits(receiver)
    }

    /// Returns whether a request that has waited keeps its place. Without an answer, this replica's share decides.
    pub(super) fn keeps(&self, key: &[u8], most: u32, answer: Option<&Answer>) -> bool {
        match answer {
            Some(answer) => answer.granted > 0,
            None => lock(&self.table).number(key) <= self.share(most),
        }
    }

    /// Gives a place back.
    pub(super) fn leave(&self, key: &[u8]) {
        let mut table = lock(&self.table);
        table.remove(key);
        if self.link.is_up() {
            table.changed.push(key.into());
            drop(table);
            self.link.wake();
        }
    }

    /// Returns the share of this replica, at least 1.
    fn share(&self, most: u32) -> u32 {
        most.div_ceil(self.link.replicas()).max(1)
    }

    fn take_asks_at(&self, asks: &mut Vec<Ask>, now: Instant) {
        let mut table = lock(&self.table);
        let mut changed = std::mem::take(&mut table.changed);
        let entering = std::mem::take(&mut table.entering);
        if table.reported.is_none_or(|at| now.saturating_duration_since(at) >= REPORT) {
            table.reported = Some(now);
            changed.extend(table.map.keys().cloned());
        }
        changed.sort_unstable();
        changed.dedup();
        // The number of a key has those that enter already. Each of these is judged without those after it.
        let mut after: HashMap<Box<[u8]>, u32> = HashMap::new();
        for e in &entering {
            *after.entry(e.key.clone()).or_default() += 1;
        }
        for key in changed {
            let count = table.number(&key).saturating_sub(after.get(&key).copied().unwrap_or(0));
            let question = Question::Places { count, most: None };
            asks.push(Ask { key, question, client: Client::Zone });
        }
        for Entering { key, most, sender } in entering {
            let rest = after.entry(key.clone()).or_default();
            *rest = rest.saturating_sub(1);
            let count = table.number(&key).saturating_sub(*rest);
            let question = Question::Places { count, most: Some(most) };
            asks.push(Ask { key, question, client: Client::Request(sender) });
        }
    }
}

impl Shares for SharedCount {
    fn name(&self) -> &[u8] {
        &self.name
    }

    fn renew(&self) {
        lock(&self.table).reported = None;
    }

    fn take_asks(&self, asks: &mut Vec<Ask>) {
        self.take_asks_at(asks, Instant::now());
    }

    fn answer(&self, ask: Ask, answer: Answer) {
        if let Client::Request(sender) = ask.client {
            // A request that has gone gives its place back when it is dropped.
            let _ = sender.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(up: bool, replicas: u32) -> SharedCount {
        let link = Arc::new(Link::default());
        link.set_up(up);
        link.set_replicas(Some(replicas));
        SharedCount { name: b"z".to_vec(), table: Arc::new(Mutex::new(Table::new(1 << 16))), link }
    }

    fn questions(zone: &SharedCount, now: Instant) -> Vec<Question> {
        let mut asks = Vec::new();
        zone.take_asks_at(&mut asks, now);
        asks.iter().map(|a| a.question).collect()
    }

    #[test]
    fn requests_are_judged_one_after_the_other() {
        let (zone, now) = (zone(true, 3), Instant::now());
        assert_eq!(questions(&zone, now), []);
        let entries: Vec<Entry> = (0..4).map(|_| zone.enter(b"a", 3)).collect();
        assert!(matches!(
            entries.as_slice(),
            [Entry::Waits(_), Entry::Waits(_), Entry::Waits(_), Entry::Refused]
        ));
        let place = |count| Question::Places { count, most: Some(3) };
        assert_eq!(questions(&zone, now), [place(1), place(2), place(3)]);
        zone.leave(b"a");
        let again = zone.enter(b"a", 3);
        assert!(matches!(again, Entry::Waits(_)));
        assert_eq!(questions(&zone, now), [Question::Places { count: 2, most: None }, place(3)]);
        // All numbers are reported again after a while.
        assert_eq!(questions(&zone, now + REPORT), [Question::Places { count: 3, most: None }]);
        (0..3).for_each(|_| zone.leave(b"a"));
        assert_eq!(questions(&zone, now + REPORT), [Question::Places { count: 0, most: None }]);
        assert_eq!(lock(&zone.table).used, 0);
    }

    #[test]
    fn without_the_store_each_replica_has_its_share() {
        let zone = zone(false, 3);
        let taken = (0..10).filter(|_| matches!(zone.enter(b"a", 10), Entry::Taken)).count();
        assert_eq!(taken, 4);
        assert!(matches!(zone.enter(b"b", 1), Entry::Taken));
        assert!(matches!(zone.enter(b"b", 1), Entry::Refused));
        assert_eq!(questions(&zone, Instant::now()).len(), 2);
    }

    #[test]
    fn an_answer_or_the_share_decides() {
        let zone = zone(true, 2);
        let waits: Vec<Entry> = (0..3).map(|_| zone.enter(b"a", 4)).collect();
        assert_eq!(waits.len(), 3);
        assert!(zone.keeps(b"a", 4, Some(&Answer { granted: 1, ..Answer::default() })));
        assert!(!zone.keeps(b"a", 4, Some(&Answer::default())));
        assert!(!zone.keeps(b"a", 4, None));
        zone.leave(b"a");
        assert!(zone.keeps(b"a", 4, None));
    }
}
