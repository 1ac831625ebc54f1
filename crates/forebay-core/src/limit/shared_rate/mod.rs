//! Hot path. Rates that several replicas of the server keep together (`limit_req_zone ... sync`).
//!
//! The store has one number for each key: the time at which the next request is due if requests come at exactly the rate
//! (the "theoretical arrival time" of the generic cell rate algorithm, ITU-T I.371). A *cell* is the right to one request. Every
//! cell has such a time of its own, its *slot*, and the slots of a key are one interval apart, whichever replica has them. A
//! request may use a cell at most `burst` intervals before its slot; how much before is the excess that nginx's leaky bucket
//! would have.
//!
//! No request waits for the store. A replica spends cells in two ways:
//!
//! - from a *lease*: cells that the store has granted in advance, as many as the replica is likely to need in 100 ms. What
//!   it has not spent 200 ms after the grant is given back.
//! - without a lease, if the last known time of the key allows it. These cells are a *debt*, which the next message to the
//!   store reports. The first requests of a key are spent like this, and all those of keys with few requests.
//!
//! All times here are nanoseconds of this process's clock ([`Clock`]). The store computes with its own clock only.

use super::keys::Keys;
use super::zones::Tables;
use crate::shared_store::{Answer, Ask, Client, Link, Question, Shares};
use forebay_net::tls::sessions::Usage;
use forebay_sys::sync::lock;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Time for which cells are leased in advance, nanoseconds.
const LEASE: i64 = 100_000_000;
/// Time after which a leased cell is given back, nanoseconds.
const EXPIRY: i64 = 2 * LEASE;
/// Pause before the store is asked again when it had fewer cells than wanted, nanoseconds.
const AGAIN: i64 = LEASE / 5;
/// Time after which a question counts as lost, nanoseconds. The task that asks may have ended.
const OVERDUE: i64 = 3 * LEASE;
/// Time over which the demand for a key is averaged, seconds.
const MEMORY: f32 = 0.3;
/// Most grants that a lease consists of. With [`AGAIN`] and [`LEASE`] there are about six.
const RUNS: usize = 8;
/// Longest time that is computed with, nanoseconds: about 36 years.
const FOREVER: i64 = i64::MAX / 8;
/// Most keys that wait to be asked for in a zone, in bytes with their lengths. Others follow with their next request.
const MAX_WAITING: usize = 4 << 20;

/// Clock of this process.
#[derive(Debug)]
pub struct Clock;

impl Clock {
    /// Returns a time in nanoseconds since some moment.
    pub fn nanos(now: Instant) -> i64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let nanos = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(FOREVER);
        // Not before 1: 0 means never.
        match now.checked_duration_since(*START) {
            Some(since) => nanos(since) + LEASE,
            None => (LEASE - nanos(START.saturating_duration_since(now))).max(1),
        }
    }
}

/// Rate with the excess that requests may have.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Time between two slots, nanoseconds.
    interval: i64,
    /// Time before its slot at which a cell may be spent, nanoseconds.
    tolerance: i64,
}

impl Pace {
    /// `rate` is in thousandths of a request per second, `burst` in thousandths of a request.
    fn new(rate: u64, burst: u64) -> Pace {
        let interval = i64::try_from(1_000_000_000_000 / rate.max(1)).unwrap_or(FOREVER).max(1);
        let tolerance = i128::from(interval) * i128::from(burst) / 1000;
        Pace { interval, tolerance: i64::try_from(tolerance).unwrap_or(FOREVER).min(FOREVER) }
    }

    /// Returns the share of one of so many replicas.
    fn shared_by(self, replicas: u32) -> Pace {
        // The tolerance in time stays: as many cells fewer as the interval is longer.
        Pace { interval: self.interval.saturating_mul(i64::from(replicas.max(1))).min(FOREVER), ..self }
    }

    /// Returns an excess in thousandths of a request.
    fn thousandths(self, excess: i64) -> u64 {
        u64::try_from(i128::from(excess) * 1000 / i128::from(self.interval)).unwrap_or(0)
    }
}

/// Cells of one grant.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Slot of the first.
    slot: i64,
    /// Number of cells that are left.
    left: u32,
    /// Time at which they are given back.
    expires: i64,
}

/// Cells that are there to be spent, in order of their slots.
#[derive(Debug, Default)]
struct Lease([Run; RUNS]);

impl Lease {
    fn left(&self) -> u32 {
        self.0.iter().map(|r| r.left).fold(0, u32::saturating_add)
    }

    /// Removes cells that have expired. Returns their number.
    fn expire(&mut self, now: i64) -> u32 {
        let mut gone = 0u32;
        for run in &mut self.0 {
            if run.left > 0 && run.expires <= now {
                gone = gone.saturating_add(run.left);
                run.left = 0;
            }
        }
        gone
    }

    /// Returns the run with the earliest cell.
    fn first(&mut self) -> Option<&mut Run> {
        self.0.iter_mut().filter(|r| r.left > 0).min_by_key(|r| r.slot)
    }

    /// Adds a run. Returns the number of cells for which there is no room.
    fn add(&mut self, run: Run) -> u32 {
        match self.0.iter_mut().find(|r| r.left == 0) {
            Some(place) => {
                *place = run;
                0
            }
            None => run.left,
        }
    }
}

/// State of a key in this replica.
#[derive(Debug, Default)]
struct Share {
    /// Time at which the next request is due, as far as this replica knows.
    due: i64,
    /// Cells that the store does not know to be spent. Negative: cells to give back.
    debt: i32,
    /// Requests a second.
    demand: f32,
    /// Time of the last request.
    noted: i64,
    /// Time at which the question was queued that is under way; 0 if there is none.
    asked: i64,
    /// Time before which the store is not asked for cells.
    not_before: i64,
    /// Longest tolerance of the limits that count requests of this key.
    tolerance: i64,
    /// Made when there first is a demand for one. Then kept, so that no request allocates.
    lease: Option<Box<Lease>>,
}

impl Share {
    /// Notes a request in the demand.
    fn note(&mut self, now: i64) {
        let gap = now.saturating_sub(self.noted).max(0) as f32 / 1e9;
        self.demand = self.demand * (-gap / MEMORY).exp() + 1.0 / MEMORY;
        self.noted = now;
    }

    /// Returns the number of cells that the replica is likely to need during a lease.
    fn need(&self, pace: Pace) -> u32 {
        let most = LEASE as f32 / pace.interval as f32;
        (self.demand * (LEASE as f32 / 1e9)).min(most) as u32
    }

    /// Spends a cell, one without a lease at the pace `own`. Returns the excess in nanoseconds, as an error if there is no cell to
    /// spend. With `count` unset, only looks whether there is one.
    fn spend(&mut self, pace: Pace, own: Pace, now: i64, count: bool) -> Result<i64, i64> {
        if let Some(lease) = &mut self.lease {
            self.debt = self.debt.saturating_sub_unsigned(lease.expire(now));
            if let Some(run) = lease.first() {
                let excess = (run.slot - now).max(0);
                if excess > pace.tolerance {
                    return Err(excess);
                }
                if count {
                    run.slot = run.slot.saturating_add(pace.interval);
                    run.left -= 1;
                }
                return Ok(excess);
            }
        }
        let excess = self.unleased(own, now, count)?;
        self.debt = self.debt.saturating_add(i32::from(count));
        Ok(excess)
    }

    /// Spends a cell by what this replica knows alone. Results: as [`Share::spend`].
    fn unleased(&mut self, pace: Pace, now: i64, count: bool) -> Result<i64, i64> {
        let due = self.due.max(now);
        let excess = due - now;
        if excess > pace.tolerance {
            return Err(excess);
        }
        if count {
            self.due = due.saturating_add(pace.interval);
        }
        Ok(excess)
    }

    /// Spends a cell of this replica's share, without the store. Results: as [`Share::spend`].
    fn alone(&mut self, pace: Pace, now: i64, count: bool) -> Result<i64, i64> {
        if let Some(lease) = &mut self.lease {
            **lease = Lease::default();
        }
        (self.debt, self.asked) = (0, 0);
        // Leases and debts of all replicas may have taken the time far ahead.
        self.due = self.due.min(now.saturating_add(pace.tolerance).saturating_add(pace.interval));
        self.unleased(pace, now, count)
    }

    /// Returns whether an answer is late. Until it is there, or the store is known to be away, this replica has its share only.
    fn is_late(&self, now: i64) -> bool {
        self.asked != 0 && now.saturating_sub(self.asked) > LEASE
    }

    /// Returns `true` if the store is to be asked now.
    fn wants(&self, pace: Pace, now: i64) -> bool {
        if self.asked != 0 && now.saturating_sub(self.asked) < OVERDUE {
            return false;
        }
        if self.debt != 0 {
            return true;
        }
        self.lack(pace, now) > 0
    }

    /// Returns the number of cells to ask for: once half of the lease is spent, as many as a lease should have.
    fn lack(&self, pace: Pace, now: i64) -> u32 {
        let need = self.need(pace);
        let low = now >= self.not_before && self.left().saturating_mul(2) <= need;
        if low { need } else { 0 }
    }

    fn left(&self) -> u32 {
        self.lease.as_ref().map_or(0, |l| l.left())
    }

    /// Takes over an answer. `wanted` is the number of cells that were asked for.
    fn take(&mut self, pace: Pace, answer: &Answer, wanted: u32, now: i64) {
        self.asked = 0;
        let since = i64::from(self.debt).saturating_mul(pace.interval);
        self.due = now.saturating_add(answer.due).saturating_add(since);
        if answer.granted > 0 {
            let run = Run {
                slot: now.saturating_add(answer.first),
                left: answer.granted,
                expires: now.saturating_add(EXPIRY),
            };
            let lease = self.lease.get_or_insert_default();
            self.debt = self.debt.saturating_sub_unsigned(lease.add(run));
        }
        if answer.granted < wanted {
            let free = answer.due - self.tolerance - LEASE + pace.interval;
            self.not_before = now.saturating_add(free.clamp(AGAIN, EXPIRY));
        }
    }
}

/// Keys of a zone. They are kept across reloads.
#[derive(Debug)]
pub struct Table {
    keys: Keys<Share>,
    /// Keys to ask for, each after its length. The buffer is used again, so that no request allocates.
    waiting: Vec<u8>,
    /// Requests that wait for the store.
    exact: Vec<Exact>,
}

impl Table {
    fn new(room: usize) -> Table {
        let more = size_of::<Share>() + size_of::<Lease>();
        Table { keys: Keys::new(room, more), waiting: Vec::new(), exact: Vec::new() }
    }

    /// Has the store asked for a key.
    fn queue(waiting: &mut Vec<u8>, share: &mut Share, key: &[u8], now: i64) -> bool {
        let Ok(length) = u32::try_from(key.len()) else { return false };
        if waiting.len() > MAX_WAITING {
            return false;
        }
        share.asked = now;
        waiting.extend_from_slice(&length.to_le_bytes());
        waiting.extend_from_slice(key);
        true
    }
}

/// Takes the next key from those that wait.
fn next_key<'w>(rest: &mut &'w [u8]) -> Option<&'w [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let (key, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = after;
    Some(key)
}

/// Request that waits for the store (`exact`).
#[derive(Debug)]
struct Exact {
    key: Box<[u8]>,
    tolerance: i64,
    sender: oneshot::Sender<Answer>,
}

/// Tables by zone name. They are kept across reloads.
static TABLES: Tables<Table> = Tables::new();

/// Returns the memory use of the zones.
pub fn usage() -> Vec<Usage> {
    TABLES.usage(|t| t.keys.used())
}

/// A zone whose rate all replicas keep together.
#[derive(Debug)]
pub struct SharedRate {
    name: Vec<u8>,
    /// Thousandths of a request per second.
    rate: u64,
    /// Whether requests wait for the store (`exact`).
    pub exact: bool,
    table: Arc<Mutex<Table>>,
    link: Arc<Link>,
}

/// Definition of a zone.
#[derive(Clone, Copy, Debug)]
pub struct Definition<'d> {
    /// Name.
    pub name: &'d [u8],
    /// Key as written.
    pub key: &'d [u8],
    /// Size, bytes.
    pub size: usize,
    /// Thousandths of a request per second.
    pub rate: u64,
    /// `exact`.
    pub exact: bool,
}

impl SharedRate {
    /// Creates a zone over the table of this name, key and size.
    pub fn new(d: &Definition<'_>, link: Arc<Link>) -> SharedRate {
        let table = TABLES.get(d.name, d.key, d.size, || Table::new(d.size));
        SharedRate::over(table, d, link)
    }

    fn over(table: Arc<Mutex<Table>>, d: &Definition<'_>, link: Arc<Link>) -> SharedRate {
        SharedRate { name: d.name.to_vec(), rate: d.rate, exact: d.exact, table, link }
    }

    /// Returns the excess of a key after one more request, in thousandths. With `count` the request is counted. `burst` is in
    /// thousandths of a request.
    ///
    /// # Errors
    /// The excess, if it is above `burst`. The request is not counted then.
    pub fn account(&self, key: &[u8], burst: u64, now: Instant, count: bool) -> Result<u64, u64> {
        let (accounted, wake) = self.account_at(key, burst, Clock::nanos(now), count);
        if wake {
            self.link.wake();
        }
        accounted
    }

    /// As [`SharedRate::account`]. Also returns whether the store is to be asked.
    fn account_at(&self, key: &[u8], burst: u64, now: i64, count: bool) -> (Result<u64, u64>, bool) {
        let pace = Pace::new(self.rate, burst);
        let shared = self.link.is_up();
        let mut table = lock(&self.table);
        let Table { keys, waiting, .. } = &mut *table;
        if keys.touch(key).is_none() {
            if !count {
                return (Ok(0), false);
            }
            keys.insert(key, Share::default());
        }
        let Some(share) = keys.find(key) else { return (Ok(0), false) };
        let part = pace.shared_by(self.link.replicas());
        if !shared {
            return (scaled(pace, share.alone(part, now, count)), false);
        }
        let own = if share.is_late(now) { part } else { pace };
        let excess = share.spend(pace, own, now, count);
        let mut wake = false;
        if count || excess.is_err() {
            share.note(now);
            share.tolerance = share.tolerance.max(pace.tolerance);
            wake = share.wants(pace, now) && Table::queue(waiting, share, key, now);
        }
        (scaled(pace, excess), wake)
    }

    /// Asks the store for one request and returns the receiver of the answer. Returns `None` if there is nothing to wait for: the
    /// store is known to be away, or to refuse. `burst` is in thousandths of a request.
    pub fn ask(&self, key: &[u8], burst: u64, now: Instant) -> Option<oneshot::Receiver<Answer>> {
        if !self.link.is_up() {
            return None;
        }
        let (pace, now) = (Pace::new(self.rate, burst), Clock::nanos(now));
        let mut table = lock(&self.table);
        let known = table.keys.touch(key).map_or(0, |share| share.due);
        if known.saturating_sub(now) > pace.tolerance || table.exact.len() >= MAX_WAITING / 64 {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        table.exact.push(Exact { key: key.into(), tolerance: pace.tolerance, sender });
        drop(table);
        self.link.wake();
        Some(receiver)
    }

    /// Returns the excess of a request that the store has been asked for, in thousandths.
    ///
    /// # Errors
    /// The excess, if the request was refused.
    pub fn judge(&self, answer: &Answer) -> Result<u64, u64> {
        let pace = Pace::new(self.rate, 0);
        match answer.granted {
            0 => Err(pace.thousandths(answer.due.max(pace.interval))),
            _ => Ok(pace.thousandths(answer.first.max(0))),
        }
    }

    /// Gives back a request that the store has granted and that another limit refuses.
    pub fn give_back(&self, key: &[u8], now: Instant) {
        let mut table = lock(&self.table);
        let Table { keys, waiting, .. } = &mut *table;
        let Some(share) = keys.find(key) else { return };
        share.debt = share.debt.saturating_sub(1);
        let wake = share.asked == 0 && Table::queue(waiting, share, key, Clock::nanos(now));
        drop(table);
        if wake {
            self.link.wake();
        }
    }
}

/// Converts an excess or its error to thousandths of a request.
fn scaled(pace: Pace, excess: Result<i64, i64>) -> Result<u64, u64> {
    excess.map(|e| pace.thousandths(e)).map_err(|e| pace.thousandths(e))
}

impl Shares for SharedRate {
    fn name(&self) -> &[u8] {
        &self.name
    }

    fn take_asks(&self, asks: &mut Vec<Ask>) {
        self.take_asks_at(asks, Clock::nanos(Instant::now()));
    }

    fn answer(&self, ask: Ask, answer: Answer) {
        self.answer_at(ask, answer, Clock::nanos(Instant::now()));
    }
}

impl SharedRate {
    fn take_asks_at(&self, asks: &mut Vec<Ask>, now: i64) {
        let (mut waiting, exact) = {
            let mut table = lock(&self.table);
            (std::mem::take(&mut table.waiting), std::mem::take(&mut table.exact))
        };
        let pace = Pace::new(self.rate, 0);
        let mut rest = waiting.as_slice();
        while let Some(key) = next_key(&mut rest) {
            // Each key takes the lock for itself, so that no request waits for thousands of keys.
            if let Some(share) = lock(&self.table).keys.find(key) {
                let want = share.lack(pace, now);
                let question = Question::Cells {
                    interval: pace.interval,
                    tolerance: share.tolerance.saturating_add(LEASE).min(FOREVER),
                    debt: std::mem::take(&mut share.debt),
                    want,
                };
                asks.push(Ask { key: key.into(), question, client: Client::Zone });
            }
        }
        for Exact { key, tolerance, sender } in exact {
            let question = Question::Cells { interval: pace.interval, tolerance, debt: 0, want: 1 };
            asks.push(Ask { key, question, client: Client::Request(sender) });
        }
        waiting.clear();
        let mut table = lock(&self.table);
        if table.waiting.is_empty() {
            table.waiting = waiting;
        }
    }

    fn answer_at(&self, ask: Ask, answer: Answer, now: i64) {
        let pace = Pace::new(self.rate, 0);
        let Question::Cells { want, tolerance, .. } = ask.question else { return };
        // As in the script: the clock of the store may have been set back.
        let latest = tolerance.saturating_add(pace.interval).saturating_mul(100).min(FOREVER);
        let answer = Answer { first: answer.first.min(latest), due: answer.due.min(latest), ..answer };
        let mut table = lock(&self.table);
        match ask.client {
            Client::Zone => {
                if let Some(share) = table.keys.find(&ask.key) {
                    share.take(pace, &answer, want, now);
                }
            }
            Client::Request(sender) => {
                // If the store fails, the last known count of the key decides.
                if table.keys.find(&ask.key).is_none() {
                    table.keys.insert(&ask.key, Share::default());
                }
                let Some(share) = table.keys.find(&ask.key) else { return };
                share.due = now.saturating_add(answer.due);
                if sender.send(answer).is_err() && answer.granted > 0 {
                    // The request has not waited for it: it was counted in another way.
                    share.debt = share.debt.saturating_sub(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
