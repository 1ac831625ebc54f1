//! Limits on what goes on at a time for a key, in zones that all threads share (nginx: ngx_http_limit_conn_module,
//! ngx_stream_limit_conn_module).

use super::outcomes::{Limited, Outcome};
use super::zones::{self, KEY_COST, Tables};
use crate::config::value::Setting;
use crate::config::{Context, Scope};
use crate::vars::{Evaluate, Template, VarError};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_net::tls::sessions::Usage;
use forebay_sys::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// All `limit_conn` directives of a level, each with its zone and its limit.
#[derive(Clone, Debug, Default)]
pub struct Limits(Arc<Vec<(Arc<ConnZone>, u32)>>);

impl Limits {
    /// Returns `true` if the level has no limit.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<C> Setting<C> for Limits
where
    C: Context,
    C::Tables: AsMut<ConnZones>,
{
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        let [name, most] = d.args.as_slice() else { return Ok(Limits(Arc::new(all))) };
        cx.share_zone(d, &name.text, (C::BLOCK, "limit_conn"), None)?;
        let zone = cx.tables.as_mut().find_or_promise(&name.text, C::BLOCK, Limited::Connections);
        if all.iter().any(|(z, _)| Arc::ptr_eq(z, &zone)) {
            return Err(cx.error(d, "\"limit_conn\" directive is duplicate"));
        }
        let n = units::number(&most.text).filter(|n| *n > 0);
        let n = n.ok_or_else(|| {
            cx.error_at(d, most, format!("invalid number of connections \"{}\"", most.as_str()))
        })?;
        if n > 65535 {
            return Err(cx.error_at(d, most, "connection limit must be less 65536"));
        }
        all.push((zone, n as u32));
        Ok(Limits(Arc::new(all)))
    }
}

/// A `limit_conn_zone`.
pub type ConnZone = zones::Zone<Defined>;

/// Definition of a zone by `limit_conn_zone`.
#[derive(Debug)]
pub struct Defined {
    key: Template,
    table: Arc<Mutex<Table>>,
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
    TABLES.usage(|t| t.used)
}

/// Reads `limit_conn_zone`.
///
/// # Errors
/// In nginx's words.
pub fn zone<C>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error>
where
    C: Context,
    C::Tables: AsMut<ConnZones>,
{
    let Some((key_word, options)) = d.args.split_first() else { return Err(cx.error(d, "no key")) };
    let key = cx.template(d, key_word)?;
    let (mut name, mut size) = (Vec::new(), 0);
    for w in options {
        match zones::name_and_size(d, w, cx)? {
            Some(zone) => (name, size) = zone,
            None => return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()))),
        }
    }
    if name.is_empty() {
        return Err(cx.error(d, "\"limit_conn_zone\" must have \"zone\" parameter"));
    }
    cx.share_zone(d, &name, (C::BLOCK, "limit_conn"), Some(size as u64))?;
    let z = cx.tables.as_mut().find_or_promise(&name, C::BLOCK, Limited::Connections);
    let make = || Table { map: HashMap::default(), room: size, used: 0 };
    let table = TABLES.get(&name, &key_word.text, size, make);
    if let Err(_again) = z.defined.set(Defined { key, table }) {
        let text = String::from_utf8_lossy(&name).into_owned();
        let key = key_word.as_str();
        return Err(cx.error(d, format!("limit_conn_zone \"{text}\" is already bound to key \"{key}\"")));
    }
    Ok(())
}

/// One counted request or session in a zone. Dropping it ends the count.
#[derive(Debug)]
struct Place {
    table: Arc<Mutex<Table>>,
    key: Box<[u8]>,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.table).leave(&self.key);
    }
}

/// Result and counts of a request or session.
#[derive(Debug, Default)]
pub struct Counted {
    outcome: Option<Outcome>,
    places: Vec<Place>,
}

impl Counted {
    /// Returns the state for a subrequest. The main request has been counted already, so the subrequest is not.
    pub fn counted(&self) -> Counted {
        Counted { outcome: self.outcome, places: Vec::new() }
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
        let entered = lock(&z.table).enter(&key, *most);
        let outcome = if entered { Outcome::Passed } else { Outcome::rejected(policy.dry_run) };
        state.outcome = Some(outcome);
        zone.outcomes.count(outcome);
        if entered {
            state.places.push(Place { table: z.table.clone(), key: key.as_slice().into() });
            continue;
        }
        let name = String::from_utf8_lossy(&zone.name);
        let dry = if policy.dry_run { ", dry run," } else { "" };
        let what = format!("limiting connections{dry} by zone \"{name}\"{}", policy.phase);
        subject.log_with(policy.level, |line| line.extend_from_slice(what.as_bytes()));
        state.places.clear();
        break;
    }
    subject.give_buf(key);
    Ok(())
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
