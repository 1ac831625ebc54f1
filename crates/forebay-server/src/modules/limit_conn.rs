//! `limit_conn`: limit on concurrent requests per key, in zones that all threads share (nginx:
//! ngx_http_limit_conn_module). As in nginx, a connection counts only while a request of it is processed, and each HTTP/2
//! stream counts as a connection.

use crate::config::Scope;
use crate::config::value::Setting;
use crate::metrics::Limit;
use crate::modules::limit_req::{LogLevel, Status};
use crate::modules::zones::{self, KEY_COST, Tables};
use crate::modules::{LocationSettings, Verdict};
use crate::request::Request;
use crate::variables::Row;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::vars::RowSource;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_sys::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

crate::settings! {
    /// `limit_conn`.
    "limit_conn" => limits: Limits = Limits::default();
    /// `limit_conn_dry_run`.
    "limit_conn_dry_run" => dry_run: bool = false;
    /// `limit_conn_log_level`.
    "limit_conn_log_level" => log_level: LogLevel = LogLevel::Error;
    /// `limit_conn_status`.
    "limit_conn_status" => status: Status = Status::UNAVAILABLE;
}

/// All `limit_conn` directives of a level, each with its zone and its limit.
#[derive(Clone, Debug, Default)]
pub struct Limits(Arc<Vec<(Arc<Zone>, u32)>>);

impl Setting<crate::HttpContext> for Limits {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.map(|p| p.0.as_ref().clone()).unwrap_or_default();
        let [name, most] = d.args.as_slice() else { return Ok(Limits(Arc::new(all))) };
        let zone = cx.tables.conn_zones.find_or_promise(&name.text, || Limit::named(false, &name.text));
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
pub type Zone = zones::Zone<Defined>;

/// Definition of a zone by `limit_conn_zone`.
#[derive(Debug)]
pub struct Defined {
    key: Template,
    table: Arc<Mutex<Table>>,
}

/// Zones of a configuration under construction.
pub type Zones = zones::Zones<Defined>;

/// Number of active requests for each key of a zone. Active keys cannot be evicted, so a full zone refuses new keys.
#[derive(Debug)]
pub struct Table {
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
pub fn usage() -> Vec<forebay_net::tls::sessions::Usage> {
    TABLES.usage(|t| t.used)
}

/// Reads `limit_conn_zone`.
///
/// # Errors
/// In nginx's words.
pub fn zone(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
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
    let z = cx.tables.conn_zones.find_or_promise(&name, || Limit::named(false, &name));
    let make = || Table { map: HashMap::default(), room: size, used: 0 };
    let table = TABLES.get(&name, &key_word.text, size, make);
    if let Err(_again) = z.defined.set(Defined { key, table }) {
        let text = String::from_utf8_lossy(&name).into_owned();
        let key = key_word.as_str();
        return Err(cx.error(d, format!("limit_conn_zone \"{text}\" is already bound to key \"{key}\"")));
    }
    Ok(())
}

/// Result of the limits for a request (`$limit_conn_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Outcome {
    Passed,
    Rejected,
    RejectedDryRun,
}

/// One counted request in a zone. Dropping it ends the count.
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

/// Result and counts of a request.
#[derive(Debug, Default)]
pub struct State {
    outcome: Option<Outcome>,
    places: Vec<Place>,
}

impl State {
    /// Returns the state for a subrequest. The main request has been counted already, so the subrequest is not.
    pub fn counted(&self) -> State {
        State { outcome: self.outcome, places: Vec::new() }
    }

    /// Ends the counts of the request.
    #[inline]
    pub fn clear(&mut self) {
        self.outcome = None;
        self.places.clear();
    }
}

/// Variables of this module.
pub const VARIABLES: &[Row] =
    &[Row { name: "limit_conn_status", get: RowSource::Get(status), settable: false }];

fn status(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    let Some(o) = r.modules.limit_conn.outcome else { return Ok(false) };
    out.extend_from_slice(match o {
        Outcome::Passed => b"PASSED",
        Outcome::Rejected => b"REJECTED",
        Outcome::RejectedDryRun => b"REJECTED_DRY_RUN",
    });
    Ok(true)
}

/// Whether a location has `limit_conn`.
pub fn enabled(s: &LocationSettings) -> bool {
    !s.limit_conn.limits.0.is_empty()
}

/// Counts a request or refuses it. Runs once per request, even after internal redirects.
pub fn check(req: &mut Request) -> Verdict {
    if req.modules.limit_conn.outcome.is_some() {
        return Verdict::Declined;
    }
    let http = req.http();
    let s = &http.location(req).settings.limit_conn;
    let mut key = req.take_buf();
    for (zone, most) in s.limits.0.iter() {
        let Some(z) = zone.defined.get() else { continue };
        key.clear();
        if z.key.eval(req, &mut key).is_err() {
            return Verdict::Status(500);
        }
        if key.is_empty() {
            continue;
        }
        if key.len() > 255 {
            let text = String::from_utf8_lossy(&key).into_owned();
            let what = format!("the value of the key is more than 255 bytes: \"{text}\"");
            req.log(forebay_conf::error::Level::Error, &what);
            continue;
        }
        let entered = lock(&z.table).enter(&key, *most);
        if entered {
            req.modules.limit_conn.outcome = Some(Outcome::Passed);
            zone.counts.count(0);
            let place = Place { table: z.table.clone(), key: key.as_slice().into() };
            req.modules.limit_conn.places.push(place);
            continue;
        }
        let name = String::from_utf8_lossy(&zone.name).into_owned();
        let dry = if s.dry_run { ", dry run," } else { "" };
        req.log(s.log_level.level(), &format!("limiting connections{dry} by zone \"{name}\""));
        req.modules.limit_conn.places.clear();
        req.give_buf(key);
        zone.counts.count(if s.dry_run { 4 } else { 2 });
        if s.dry_run {
            req.modules.limit_conn.outcome = Some(Outcome::RejectedDryRun);
            return Verdict::Declined;
        }
        req.modules.limit_conn.outcome = Some(Outcome::Rejected);
        return Verdict::Status(s.status.code());
    }
    req.give_buf(key);
    Verdict::Declined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{again, error, request, value};

    #[test]
    fn places_are_given_back() {
        let conf = "limit_conn_zone $arg_k zone=own:32k;\n\
                    server { limit_conn own 1; set $x $limit_conn_status; }";
        let (mut a, mut b) = (request(conf, "k=1"), request(conf, "k=1"));
        assert_eq!(check(&mut a), Verdict::Declined);
        assert_eq!(value(&mut a, "limit_conn_status").as_deref(), Some("PASSED"));
        assert_eq!(check(&mut b), Verdict::Status(503));
        assert_eq!(value(&mut b, "limit_conn_status").as_deref(), Some("REJECTED"));
        again(&mut b, "k=2");
        assert_eq!(check(&mut b), Verdict::Declined);
        again(&mut b, "k=1");
        drop(a);
        assert_eq!(check(&mut b), Verdict::Declined);
    }

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

    #[test]
    fn mistakes_are_refused() {
        let says = |conf: &str, what: &str| error(conf).is_some_and(|m| m.contains(what));
        assert!(says("limit_conn none 1;", "zero size shared memory zone \"none\""));
        assert!(says("limit_conn_zone $host zone=a:1m; limit_conn a 0;", "invalid number of connections"));
        assert!(says("limit_conn_zone $host zone=a:1m; limit_conn a 70000;", "must be less 65536"));
        assert!(says("limit_conn_zone $host zone=a:1k;", "is too small"));
        assert!(says("limit_conn_zone $host zone=a:1m; limit_conn_zone $host zone=a:1m;", "already bound"));
        assert!(says("limit_conn_zone $host zone=a:1m; limit_conn a 1; limit_conn a 2;", "is duplicate"));
    }
}
