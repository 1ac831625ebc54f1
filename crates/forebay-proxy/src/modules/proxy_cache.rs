//! Settings and variables of cached upstream responses (nginx: proxy_cache and what begins with it). What
//! they do is in `proxy/cached.rs`.

use crate::cache::local::CACHED;
use crate::cache::purges::Purges;
use crate::cache::{self, Cache, KeysZone, KeysZones, manager, saved, zone};
use crate::modules::proxy::{NextUpstream, OFF, Value, says_gateway};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::config::value::{Msec, Number, Setting, once};
use forebay_core::shared_store::Tells;
use forebay_core::vars::RowSource;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_http::request::Method;
use forebay_server::config::Scope;
use forebay_server::module::ConfigHooks;
use forebay_server::module::{LogHook, Module};
use forebay_server::request::Request;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::variables::{HasValue, Row};
use forebay_sys::errno::errno;
use std::sync::Arc;
use std::time::Duration;

forebay_server::module_settings! {
    /// `proxy_cache`.
    "proxy_cache" => zone: CacheZone = CacheZone::Off;
    /// `proxy_cache_key`.
    "proxy_cache_key" => key: Value = Value(None);
    /// `proxy_cache_valid`.
    "proxy_cache_valid" => valid: Valid = Valid::default();
    /// `proxy_cache_methods`.
    "proxy_cache_methods" => methods: CacheMethods = CacheMethods { post: false };
    /// `proxy_cache_convert_head`.
    "proxy_cache_convert_head" => convert_head: bool = true;
    /// `proxy_cache_min_uses`.
    "proxy_cache_min_uses" => min_uses: Number = Number(1);
    /// `proxy_cache_max_range_offset`.
    "proxy_cache_max_range_offset" => max_range_offset: MaxRange = MaxRange(None);
    /// `proxy_cache_use_stale`.
    "proxy_cache_use_stale" => use_stale: UseStale = UseStale { errors: 0, updating: false };
    /// `proxy_cache_background_update`.
    "proxy_cache_background_update" => background_update: bool = false;
    /// `proxy_cache_revalidate`.
    "proxy_cache_revalidate" => revalidate: bool = false;
    /// `proxy_cache_lock`.
    "proxy_cache_lock" => lock: bool = false;
    /// `proxy_cache_lock_age`.
    "proxy_cache_lock_age" => lock_age: Msec = Msec(Duration::from_secs(5));
    /// `proxy_cache_lock_timeout`.
    "proxy_cache_lock_timeout" => lock_timeout: Msec = Msec(Duration::from_secs(5));
    /// `proxy_cache_bypass`.
    "proxy_cache_bypass" => bypass: Predicates = Predicates::default();
    /// `proxy_no_cache`.
    "proxy_no_cache" => no_cache: Predicates = Predicates::default();
    /// `proxy_cache_purge`.
    "proxy_cache_purge" => purge: Predicates = Predicates::default();
}

/// `proxy_cache`.
#[derive(Clone, Debug)]
pub enum CacheZone {
    /// Nothing is cached.
    Off,
    /// In this zone.
    Zone(Arc<KeysZone>),
    /// In the zone with this name, or in none if it is empty.
    Value(Template),
}

impl Setting<forebay_server::config::HttpContext> for CacheZone {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let Some(w) = d.args.first() else { return Ok(CacheZone::Off) };
        if w.text == b"off" {
            return Ok(CacheZone::Off);
        }
        let t = cx.template(d, w)?;
        Ok(match t.as_const() {
            Some(name) => {
                let text = format!("\"{}\" zone \"{}\" is unknown", d.name.as_str(), w.as_str());
                let unknown = cx.error(d, text);
                cx.share_zone(d, name, ("http", "cache"), None)?;
                CacheZone::Zone(zone(name, unknown, cx))
            }
            None => CacheZone::Value(t),
        })
    }
}

impl CacheZone {
    /// Returns the cache for a request.
    ///
    /// # Errors
    /// The status to answer with if no cache has the name that a variable gives.
    pub fn cache(&self, req: &mut Request) -> Result<Option<Arc<Cache>>, u16> {
        match self {
            CacheZone::Off => Ok(None),
            CacheZone::Zone(z) => Ok(z.cache().cloned()),
            CacheZone::Value(t) => {
                let name = t.value(req).map_err(|_| 500u16)?;
                // As in nginx, a variable without a value turns the cache off for a request, as `off` does.
                if name.is_empty() || name == b"off" { Ok(None) } else { named(req, &name).map(Some) }
            }
        }
    }
}

/// Returns the cache with this name. The error is the status to answer with.
fn named(req: &mut Request, name: &[u8]) -> Result<Arc<Cache>, u16> {
    let http = req.http();
    cache::all(&http).iter().find(|c| c.name == name).cloned().ok_or_else(|| {
        let name = String::from_utf8_lossy(name).into_owned();
        req.log(Level::Error, &format!("cache \"{name}\" not found"));
        500
    })
}

/// Lines of `proxy_cache_valid`: status, 0 for any, and seconds.
#[derive(Clone, Debug, Default)]
pub struct Valid(Arc<Vec<(u16, u64)>>);

impl Valid {
    /// Returns how long a response with this status stays fresh, in seconds.
    pub fn seconds(&self, status: u16) -> Option<u64> {
        // As in nginx, the first line that fits counts, even if a later one names the status.
        self.0.iter().find(|(s, _)| *s == 0 || *s == status).map(|(_, t)| *t)
    }
}

/// Reads a status; 0 for `any`.
fn status_of(word: &[u8]) -> Option<u16> {
    if word == b"any" {
        return Some(0);
    }
    let status = units::number(word).and_then(|n| u16::try_from(n).ok());
    status.filter(|s| (100..=599).contains(s))
}

impl Setting<forebay_server::config::HttpContext> for Valid {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut lines = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        let Some((time, statuses)) = d.args.split_last() else { return Ok(Valid::default()) };
        let seconds = units::time_secs(&time.text)
            .ok_or_else(|| cx.error_at(d, time, format!("invalid time value \"{}\"", time.as_str())))?;
        // Without statuses, nginx caches these three.
        if statuses.is_empty() {
            lines.extend([200, 301, 302].map(|s| (s, seconds)));
        }
        for w in statuses {
            match status_of(&w.text) {
                Some(s) => lines.push((s, seconds)),
                None => return Err(cx.error_at(d, w, format!("invalid status \"{}\"", w.as_str()))),
            }
        }
        Ok(Valid(Arc::new(lines)))
    }
}

/// `proxy_cache_methods`; GET and HEAD are always among them.
#[derive(Clone, Copy, Debug)]
pub struct CacheMethods {
    post: bool,
}

impl CacheMethods {
    /// Returns `true` if responses to a method are cached.
    pub fn has(self, method: Method) -> bool {
        matches!(method, Method::Get | Method::Head) || self.post && method == Method::Post
    }
}

impl Setting<forebay_server::config::HttpContext> for CacheMethods {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut post = previous.is_some_and(|p| p.post);
        for w in &d.args {
            match w.text.to_ascii_uppercase().as_slice() {
                b"GET" | b"HEAD" => {}
                b"POST" => post = true,
                _ => return Err(cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str()))),
            }
        }
        Ok(CacheMethods { post })
    }
}

/// `proxy_cache_max_range_offset`, bytes.
#[derive(Clone, Copy, Debug)]
pub struct MaxRange(pub Option<u64>);

impl Setting<forebay_server::config::HttpContext> for MaxRange {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let n = units::offset(forebay_core::config::value::first(d));
        n.map(|n| MaxRange(Some(n))).ok_or_else(|| cx.directive_error(d, "invalid value"))
    }
}

/// `proxy_cache_use_stale`.
#[derive(Clone, Copy, Debug)]
pub struct UseStale {
    errors: u32,
    /// While the entry is renewed.
    pub updating: bool,
}

impl UseStale {
    /// Returns `true` if a stale response replaces this failure.
    pub fn has(self, kind: NextUpstream) -> bool {
        self.errors & (1 << kind as u32) != 0
    }

    /// Adds the failure with a name. Returns `None` if the name is unknown.
    fn add(&mut self, word: &[u8], gateway: bool) -> Option<()> {
        match word {
            // nginx reads this directive by the table of `proxy_next_upstream`, so it accepts the word, which has no
            // effect here.
            b"non_idempotent" => {}
            b"updating" => self.updating = true,
            b"off" => self.errors |= OFF,
            _ => self.errors |= 1 << failure(word, gateway)? as u32,
        }
        Some(())
    }
}

impl Setting<forebay_server::config::HttpContext> for UseStale {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut stale = previous.unwrap_or(UseStale { errors: 0, updating: false });
        for w in &d.args {
            let added = stale.add(&w.text.to_ascii_lowercase(), says_gateway(d));
            added.ok_or_else(|| cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str())))?;
        }
        // As in nginx, `off` stays, whatever other lines say.
        Ok(if stale.errors & OFF != 0 { UseStale { errors: OFF, updating: false } } else { stale })
    }
}

/// Returns the failure with a name.
fn failure(word: &[u8], gateway: bool) -> Option<NextUpstream> {
    match word {
        b"error" => Some(NextUpstream::Error),
        b"timeout" => Some(NextUpstream::Timeout),
        b"invalid_header" => Some(NextUpstream::InvalidHeader),
        _ => NextUpstream::of_status_name(word, gateway),
    }
}

/// Values that hold if one of them is neither empty nor `0`.
#[derive(Clone, Debug, Default)]
pub struct Predicates(Arc<Vec<Template>>);

impl Predicates {
    /// Returns `true` if one of the values is neither empty nor `0`.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn test(&self, req: &mut Request) -> Result<bool, VarError> {
        for t in self.0.iter() {
            let mut value = req.take_buf();
            t.eval(req, &mut value)?;
            let yes = !value.is_empty() && value != b"0";
            req.give_buf(value);
            if yes {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Setting<forebay_server::config::HttpContext> for Predicates {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        for w in &d.args {
            all.push(cx.template(d, w)?);
        }
        Ok(Predicates(Arc::new(all)))
    }
}

/// Part of the cache in a response (`$upstream_cache_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CacheStatus {
    Miss,
    Bypass,
    Expired,
    Stale,
    Updating,
    Revalidated,
    Hit,
}

/// Texts of [`CacheStatus`], in its order.
const STATUS_TEXTS: [&[u8]; 7] =
    [b"MISS", b"BYPASS", b"EXPIRED", b"STALE", b"UPDATING", b"REVALIDATED", b"HIT"];

/// State of the cache for a request.
pub static STATE: Slot<CacheState> = Slot::new();

/// Cache state of one request.
#[derive(Debug, Default)]
pub struct CacheState {
    /// `$upstream_cache_status`.
    pub status: Option<CacheStatus>,
    /// `$upstream_cache_age`, from when, Unix seconds.
    pub date: Option<i64>,
    /// Validators of the stale entry that is being renewed (`$upstream_cache_last_modified`).
    pub last_modified: Option<i64>,
    /// `$upstream_cache_etag`.
    pub etag: Vec<u8>,
    /// `$upstream_cache_key`.
    pub key: Vec<u8>,
    /// Number of the zone that counts the answers of the cache.
    pub zone: Option<usize>,
    /// The right to renew an entry, taken by the request that this one works for.
    pub ticket: Option<cache::index::Ticket>,
    /// A later location has asked an upstream without a cache: variables have no status any more.
    pub is_former: bool,
}

impl Unused for CacheState {
    const UNUSED: &'static CacheState = &CacheState {
        status: None,
        date: None,
        last_modified: None,
        etag: Vec::new(),
        key: Vec::new(),
        zone: None,
        ticket: None,
        is_former: false,
    };

    fn clear(&mut self) {
        self.status = None;
        self.date = None;
        self.last_modified = None;
        self.etag.clear();
        self.key.clear();
        self.zone = None;
        self.ticket = None;
        self.is_former = false;
    }
}

/// `proxy_cache`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    http_directives: &[
        ("proxy_cache_path", cache::path),
        ("fastcgi_cache_path", cache::path),
        ("uwsgi_cache_path", cache::path),
        ("scgi_cache_path", cache::path),
    ],
    variables: &[VARIABLES],
    // In all locations: a response may come from a location that another one has redirected to.
    log: Some(LogHook {
        enabled: |_| true,
        concerns: |req| STATE.of(req).zone.is_some(),
        hook: cache::counts::count,
    }),
    config: ConfigHooks {
        undefined: Some(|tables, end| {
            let zones = tables.parts.get::<KeysZones>();
            zones.and_then(KeysZones::undefined).map(|error| Error { at: end, ..error }).into_iter().collect()
        }),
        finish: Some(|tables, http| {
            *http.get_mut::<Vec<Arc<Cache>>>() = tables.parts.take::<KeysZones>().finish();
        }),
        ..ConfigHooks::NONE
    },
    prepare: Some(|http| manager::attend(cache::all(http))),
    ended: Some(|http, log| {
        for (path, e) in saved::write_all(cache::all(http)) {
            let text =
                format!("the index of a cache was not written to \"{}\" ({})", path.display(), errno(&e));
            log(Level::Error, &text);
        }
    }),
    begin: Some(|b| {
        let purges = cache::all(b.http).iter().filter_map(Purges::of);
        b.tells.extend(purges.map(|purges| Arc::new(purges) as Arc<dyn Tells>));
    }),
    threads: &[&CACHED],
    ..Module::NONE
};

const VARIABLES: &[Row] = &[
    Row { name: "upstream_cache_status", get: RowSource::Get(status), settable: false },
    Row { name: "upstream_cache_age", get: RowSource::Get(age), settable: false },
    Row { name: "upstream_cache_last_modified", get: RowSource::Get(last_modified), settable: false },
    Row { name: "upstream_cache_etag", get: RowSource::Get(etag), settable: false },
    Row { name: "upstream_cache_key", get: RowSource::Get(key), settable: false },
];

fn status(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    let state = STATE.of(r);
    let status = state.status.filter(|_| !state.is_former);
    out.extend_from_slice(status.map_or(&b""[..], |s| STATUS_TEXTS[s as usize]));
    Ok(status.is_some())
}

fn age(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    let Some(date) = STATE.of(r).date else { return Ok(false) };
    let age = r.thread.clock.unix().saturating_sub(date);
    forebay_http::h1::response::number(out, u64::try_from(age).unwrap_or(0));
    Ok(true)
}

fn last_modified(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    let Some(t) = STATE.of(r).last_modified else { return Ok(false) };
    out.extend_from_slice(&forebay_http::date::imf(t));
    Ok(true)
}

fn etag(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    out.extend_from_slice(&STATE.of(r).etag);
    Ok(!STATE.of(r).etag.is_empty())
}

fn key(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    out.extend_from_slice(&STATE.of(r).key);
    Ok(!STATE.of(r).key.is_empty())
}
