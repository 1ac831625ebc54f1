//! Limits on what goes on at a time for a key, in zones that all threads share (nginx: ngx_http_limit_conn_module,
//! ngx_stream_limit_conn_module). With `sync` all replicas share them (`shared_count.rs`).

pub mod directives;

use super::outcomes::Outcome;
use super::shared_count::{self, Entry, SharedCount};
use super::zones::{self, KEY_COST, Tables};
use crate::shared_store::Answer;
use crate::vars::{Evaluate, Template, VarError};
use forebay_conf::error::Level;
use forebay_net::tls::sessions::Usage;
use forebay_sys::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot::Receiver;

/// All `limit_conn` directives of a level, each with its zone and its limit.
#[derive(Clone, Debug, Default)]
pub struct Limits(Arc<Vec<(Arc<ConnZone>, u32)>>);

impl Limits {
    /// Returns `true` if the level has no limit.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A `limit_conn_zone`.
pub type ConnZone = zones::Zone<Defined>;

/// Definition of a zone by `limit_conn_zone`.
#[derive(Debug)]
pub struct Defined {
    key: Template,
    counter: Counter,
}

/// Counter of a zone's keys.
#[derive(Clone, Debug)]
enum Counter {
    /// In this process.
    Local(Arc<Mutex<Table>>),
    /// In the shared store, too.
    Shared(Arc<SharedCount>),
}

impl Counter {
    fn enter(&self, key: &[u8], most: u32) -> Entry {
        match self {
            Counter::Local(table) if lock(table).enter(key, most) => Entry::Taken,
            Counter::Local(_) => Entry::Refused,
            Counter::Shared(shared) => shared.enter(key, most),
        }
    }

    fn leave(&self, key: &[u8]) {
        match self {
            Counter::Local(table) => lock(table).leave(key),
            Counter::Shared(shared) => shared.leave(key),
        }
    }

    /// Returns whether a place is kept that the store was asked for.
    fn keeps(&self, key: &[u8], most: u32, answer: Option<&Answer>) -> bool {
        match self {
            Counter::Local(_) => true,
            Counter::Shared(shared) => shared.keeps(key, most, answer),
        }
    }
}

/// Zones of a configuration under construction.
pub type ConnZones = zones::Zones<Defined>;

/// Number of active requests for each key of a zone. Active keys cannot be evicted, so a full zone refuses new keys.
#[derive(Debug)]
struct Table {
    map: HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>,
    room: usize,
    used: usize,
}

impl Table {
    fn enter(&mut self, key: &[u8], most: u32) -> bool {
        if let Some(n) = self.map.get_mut(key) {
            if *n >= most {
                return false;
            }
            *n += 1;
            return true;
        }
        let cost = KEY_COST + key.len();
        if self.used + cost > self.room {
            return false;
        }
        self.used += cost;
        self.map.insert(key.into(), 1);
        true
    }

    fn leave(&mut self, key: &[u8]) {
        let Some(n) = self.map.get_mut(key) else { return };
        // At least 1: keys with 0 are not in the map.
        *n -= 1;
        if *n == 0 {
            self.map.remove(key);
            self.used -= KEY_COST + key.len();
        }
    }
}

/// Counts by zone name. They are kept across reloads.
static TABLES: Tables<Table> = Tables::new();

/// Returns the memory use of the zones.
pub fn usage() -> Vec<Usage> {
    let mut all = TABLES.usage(|t| t.used);
    all.extend(shared_count::usage());
    all
}

/// One counted request or session in a zone. Dropping it ends the count.
#[derive(Debug)]
struct Place {
    counter: Counter,
    key: Box<[u8]>,
    /// Zone and limit, as long as the store has not said whether the place is kept.
    asked: Option<(Arc<ConnZone>, u32)>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.counter.leave(&self.key);
    }
}

/// Answers of the store that a request waits for, in the order of its places.
pub type Receivers = Vec<Option<Receiver<Answer>>>;

/// Result and counts of a request or session.
#[derive(Debug, Default)]
pub struct Counted {
    outcome: Option<Outcome>,
    places: Vec<Place>,
    /// Answers to wait for.
    receivers: Receivers,
}

impl Counted {
    /// State of a request that no limit has been checked for.
    pub const NONE: Counted = Counted { outcome: None, places: Vec::new(), receivers: Vec::new() };

    /// Returns the state for a subrequest. The main request has been counted already, so the subrequest is not.
    pub fn counted(&self) -> Counted {
        Counted { outcome: self.outcome, ..Counted::default() }
    }

    /// Returns the result, if some limit has been checked.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Ends the counts.
    #[inline]
    pub fn clear(&mut self) {
        self.outcome = None;
        self.places.clear();
        self.receivers.clear();
    }

    /// Takes the receivers of the answers that decide about this request; there are none if it has nothing to wait for. The
    /// answers go to [`settle`].
    pub fn take_receivers(&mut self) -> Receivers {
        std::mem::take(&mut self.receivers)
    }
}

/// Settings of a level.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'s> {
    /// `limit_conn`.
    pub limits: &'s Limits,
    /// `limit_conn_dry_run`.
    pub dry_run: bool,
    /// Level for a line about a limit that rejects.
    pub level: Level,
    /// End of lines of the error log, which names the phase; empty for requests.
    pub phase: &'static str,
}

/// Longest key, bytes. Longer ones are logged and not limited.
const MAX_KEY: usize = 255;

/// Counts a request or session in all zones of a level, or in none if a limit rejects it. The state has the outcome, if some
/// limit had a key.
///
/// # Errors
/// If a key cannot be evaluated.
pub fn enter<E: Evaluate>(policy: Policy<'_>, subject: &mut E, state: &mut Counted) -> Result<(), VarError> {
    let mut key = subject.take_buf();
    for (zone, most) in policy.limits.0.iter() {
        let Some(z) = zone.defined.get() else { continue };
        key.clear();
        z.key.eval(subject, &mut key)?;
        if key.is_empty() {
            continue;
        }
        if key.len() > MAX_KEY {
            let text = String::from_utf8_lossy(&key);
            let what =
                format!("the value of the key is more than {MAX_KEY} bytes: \"{text}\"{}", policy.phase);
            subject.log_with(Level::Error, |line| line.extend_from_slice(what.as_bytes()));
            continue;
        }
        let (receiver, asked) = match z.counter.enter(&key, *most) {
            Entry::Taken => (None, None),
            Entry::Waits(receiver) => (Some(receiver), Some((zone.clone(), *most))),
            Entry::Refused => {
                refuse(policy, subject, state, zone);
                break;
            }
        };
        if asked.is_none() {
            state.outcome = Some(Outcome::Passed);
            zone.outcomes.count(Outcome::Passed);
        }
        if asked.is_some() || !state.receivers.is_empty() {
            // Receivers of places that do not wait are left out as long as none waits.
            state.receivers.resize_with(state.places.len(), || None);
            state.receivers.push(receiver);
        }
        state.places.push(Place { counter: z.counter.clone(), key: key.as_slice().into(), asked });
    }
    subject.give_buf(key);
    Ok(())
}

/// Ends the wait of a request for the store: the places that other replicas have taken are given back, and the request is refused
/// then. `answers` are in the order of [`Counted::take_receivers`].
pub fn settle<E: Evaluate>(
    policy: Policy<'_>,
    subject: &mut E,
    state: &mut Counted,
    answers: &[Option<Answer>],
) {
    let mut refused = None;
    for (n, place) in state.places.iter_mut().enumerate() {
        let Some((zone, most)) = place.asked.take() else { continue };
        let answer = answers.get(n).and_then(Option::as_ref);
        if !place.counter.keeps(&place.key, most, answer) {
            refused = Some(zone);
            break;
        }
        zone.outcomes.count(Outcome::Passed);
    }
    state.outcome = Some(Outcome::Passed);
    if let Some(zone) = refused {
        refuse(policy, subject, state, &zone);
    }
}

/// Notes that a zone refuses the request, and ends its counts in all zones.
fn refuse<E: Evaluate>(policy: Policy<'_>, subject: &mut E, state: &mut Counted, zone: &ConnZone) {
    let outcome = Outcome::rejected(policy.dry_run);
    state.outcome = Some(outcome);
    zone.outcomes.count(outcome);
    let name = String::from_utf8_lossy(&zone.name);
    let dry = if policy.dry_run { ", dry run," } else { "" };
    let what = format!("limiting connections{dry} by zone \"{name}\"{}", policy.phase);
    subject.log_with(policy.level, |line| line.extend_from_slice(what.as_bytes()));
    state.places.clear();
    state.receivers.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_zone_refuses() {
        let mut t = Table { map: HashMap::default(), room: 2 * (KEY_COST + 1), used: 0 };
        assert!(t.enter(b"a", 2) && t.enter(b"b", 1) && !t.enter(b"c", 1) && t.enter(b"a", 2));
        t.leave(b"a");
        assert!(!t.enter(b"c", 1));
        t.leave(b"a");
        assert!(t.enter(b"c", 1));
        t.leave(b"nobody");
        assert_eq!(t.used, 2 * (KEY_COST + 1));
    }
}
