//! What is answered from a cache, what is fetched, and what of that is stored (nginx: proxy_cache). Hot path.

use super::{Settings, Stop};
use crate::cache::entry::{self, MAX_VARY, Meta};
use crate::cache::index::{Node, Ticket, millis};
use crate::cache::local::{self, Entry, Unusable};
use crate::cache::{Cache, Hash};
use crate::modules::proxy_cache::{CacheZone, Settings as CacheSettings, Status};
use crate::request::Request;
use crate::upstream::spool::Keep;
use forebay_conf::error::Level;
use forebay_http::field::Name;
use forebay_http::request::Method;
use forebay_sys::errno::errno_text;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// What to do with a request.
pub enum Found {
    /// The entry answers.
    Entry(Rc<Entry>),
    /// The upstream is to be asked.
    Fetch(Fetch),
    /// It was a purge, and has been done.
    Purged,
    /// Nothing is left to do: somebody else renews the entry.
    Nothing,
}

/// A request to an upstream, as the cache sees it.
#[derive(Default)]
pub struct Fetch {
    /// Where the response is to be stored.
    place: Option<Place>,
    /// A response that is no longer fresh.
    pub stale: Option<Rc<Entry>>,
    /// A HEAD request is sent as GET, so that there is something to store.
    pub convert: bool,
}

struct Place {
    cache: Arc<Cache>,
    ticket: Ticket,
    key: Vec<u8>,
    /// `Vary` and family of the entry that stands under the key, where this is about another variant.
    main: Option<(Vec<u8>, u64)>,
    family: u64,
}

impl Fetch {
    /// Whether the response may be stored, so that the request goes without conditions and ranges.
    pub fn cacheable(&self) -> bool {
        self.place.is_some()
    }
}

/// What the index and the files have for a key.
struct Lookup {
    node: Option<Arc<Node>>,
    entry: Option<Rc<Entry>>,
    /// Asked for too rarely to be stored.
    scarce: bool,
    error: Option<u16>,
    main: Option<(Vec<u8>, u64)>,
}

/// Decides whether a cache answers. `uri`: path and query of the request to the upstream.
pub async fn look(req: &mut Request, uri: &[u8], cs: &CacheSettings) -> Result<Found, Stop> {
    let none = Ok(Found::Fetch(Fetch::default()));
    let purge = cs.purge.test(req)?;
    if !purge && !cs.methods.has(req.method) {
        return none;
    }
    // Of a constant zone no counter is touched that other threads touch.
    let named;
    let cache = match &cs.zone {
        CacheZone::Zone(z) => z.cache(),
        zone => {
            named = zone.cache(req).map_err(Stop::Status)?;
            named.as_ref()
        }
    };
    let Some(cache) = cache else { return none };
    req.modules.proxy_cache.zone = Some(cache.counts.id);
    let mut key = req.take_buf();
    match &cs.key.0 {
        Some(t) => t.eval(req, &mut key)?,
        None if !req.modules.upstream.protocol.takes_url() => {}
        None => {
            key.extend_from_slice(if req.modules.upstream.encrypted { b"https://" } else { b"http://" });
            key.extend_from_slice(&req.modules.upstream.host);
            key.extend_from_slice(uri);
        }
    }
    req.modules.proxy_cache.key.clear();
    req.modules.proxy_cache.key.extend_from_slice(&key);
    let found = if purge { purged(cache, &key).await } else { look_up(req, cs, cache, &key).await? };
    req.give_buf(key);
    Ok(found)
}

async fn look_up(
    req: &mut Request,
    cs: &CacheSettings,
    cache: &Arc<Cache>,
    key: &[u8],
) -> Result<Found, Stop> {
    let convert = req.method == Method::Head && cs.convert_head;
    let range = range_too_far(req, cs);
    if cs.bypass.test(req)? {
        req.modules.proxy_cache.status = Some(Status::Bypass);
        let now = millis(req.thread.clock.now());
        let node = cache.index.obtain(&entry::hash([key]), now);
        let ticket = node.map(Ticket::plain).filter(|_| !range);
        return Ok(Found::Fetch(fetch(cache, ticket, key, None, None, convert)));
    }
    if let Some(e) = fresh(req, cache, key) {
        req.modules.proxy_cache.status = Some(Status::Hit);
        return Ok(Found::Entry(e));
    }
    let background = req.is_background();
    let began = Instant::now();
    let mut patient = cs.lock;
    loop {
        let found = find(req, cs, cache, key).await;
        if let Some(status) = found.error {
            req.modules.proxy_cache.status = Some(Status::Hit);
            return Err(Stop::Status(status));
        }
        let Some(node) = found.node else {
            req.modules.proxy_cache.status = Some(Status::Miss);
            return Ok(Found::Fetch(Fetch::default()));
        };
        let now = Instant::now();
        if let Some(e) = found.entry {
            let unix = req.thread.clock.unix();
            if e.meta.fresh(unix) {
                req.modules.proxy_cache.status = Some(Status::Hit);
                return Ok(Found::Entry(e));
            }
            let may_serve = cs.use_stale.updating || e.meta.valid.saturating_add(e.meta.updating) >= unix;
            let own = req.modules.proxy_cache.ticket.take();
            let ticket = match own.or_else(|| Ticket::take(&node, None, now)) {
                Some(t) if may_serve && cs.background_update && !background && !req.has_body() => {
                    crate::background::update(req, t);
                    req.modules.proxy_cache.status = Some(Status::Stale);
                    return Ok(Found::Entry(e));
                }
                Some(t) => t,
                None if background => return Ok(Found::Nothing),
                None if may_serve => {
                    req.modules.proxy_cache.status = Some(Status::Updating);
                    return Ok(Found::Entry(e));
                }
                None => Ticket::plain(node),
            };
            let state = &mut req.modules.proxy_cache;
            state.status = Some(Status::Expired);
            if cs.revalidate && matches!(e.meta.status, 200 | 206) {
                state.last_modified = e.meta.last_modified;
                state.etag.clear();
                state.etag.extend_from_slice(&e.meta.etag);
            }
            let ticket = Some(ticket).filter(|_| !range);
            return Ok(Found::Fetch(fetch(cache, ticket, key, Some(e), found.main, convert)));
        }
        req.modules.proxy_cache.status = Some(Status::Miss);
        if found.scarce || range {
            return Ok(Found::Fetch(Fetch::default()));
        }
        if !cs.lock {
            let ticket = Some(Ticket::plain(node));
            return Ok(Found::Fetch(fetch(cache, ticket, key, None, found.main, convert)));
        }
        let filled = node.filled.notified();
        let mut filled = std::pin::pin!(filled);
        filled.as_mut().enable();
        if let Some(t) = Ticket::take(&node, Some(now + cs.lock_age.0), now) {
            // Whoever had it may have finished between the look and now.
            if node.with(|s| s.exists) && patient {
                patient = false;
                drop(t);
                continue;
            }
            return Ok(Found::Fetch(fetch(cache, Some(t), key, None, found.main, convert)));
        }
        let end = began + cs.lock_timeout.0;
        if now >= end {
            return Ok(Found::Fetch(Fetch { convert, ..Fetch::default() }));
        }
        let aged = node.with(|s| s.locked_until).unwrap_or(end);
        let thread = req.thread.clone();
        thread.io.poller.deadline(aged.min(end), filled).await;
    }
}

/// What this thread has in memory, if it is fresh and nothing more is to be asked.
fn fresh(req: &mut Request, cache: &Arc<Cache>, key: &[u8]) -> Option<Rc<Entry>> {
    let mut name = req.take_buf();
    local_name(cache, key, &mut name);
    let found = req.thread.cached.get(&name);
    req.give_buf(name);
    let e = found.filter(|e| e.meta.fresh(req.thread.clock.unix()) && fits(req, &e.meta))?;
    e.node.touch(millis(req.thread.clock.now()));
    Some(e)
}

/// Appends the name that the entries of one thread have: keys of several caches are together there.
fn local_name(cache: &Arc<Cache>, key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(key);
    out.extend_from_slice(&cache.index.id().to_ne_bytes());
}

fn fetch(
    cache: &Arc<Cache>,
    ticket: Option<Ticket>,
    key: &[u8],
    stale: Option<Rc<Entry>>,
    main: Option<(Vec<u8>, u64)>,
    convert: bool,
) -> Fetch {
    let family = main.as_ref().map(|m| m.1).or_else(|| stale.as_ref().map(|e| e.meta.family));
    let place = ticket.map(|ticket| Place {
        cache: cache.clone(),
        ticket,
        key: key.to_vec(),
        main,
        family: family.unwrap_or_else(new_family),
    });
    Fetch { convert: convert && place.is_some(), place, stale }
}

/// A number that no other response has.
fn new_family() -> u64 {
    let t = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (t.as_nanos() as u64) ^ (u64::from(std::process::id()) << 48) ^ (forebay_sys::serial::next() << 32)
}

/// Whether the range asked for begins so far from the start that the whole is not fetched for it (nginx:
/// proxy_cache_max_range_offset).
fn range_too_far(req: &Request, cs: &CacheSettings) -> bool {
    let (Some(max), Some(value)) = (cs.max_range_offset.0, req.head.get(Name::Range)) else { return false };
    let Some((unit, rest)) = value.split_at_checked(6) else { return false };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return false;
    }
    let rest = rest.trim_ascii_start();
    let digits = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
    if rest.first() == Some(&b'-') {
        return true;
    }
    match forebay_conf::units::number(&rest[..digits]) {
        Some(start) => start >= max,
        None => digits > 0,
    }
}

/// Hash of what the request says in the fields that `vary` names.
fn variant(req: &Request, vary: &[u8]) -> Hash {
    let mut text = Vec::new();
    for name in vary.split(|b| *b == b',') {
        let name = name.trim_ascii();
        text.extend_from_slice(&name.to_ascii_lowercase());
        text.push(b':');
        // Of a field that is known to be a list, blanks and empty elements do not make another variant; nor do empty lines
        // of any field.
        let list = name.eq_ignore_ascii_case(b"Accept-Encoding");
        let values = req.head.all(name).flat_map(|v| v.split(move |b| list && *b == b','));
        for (i, value) in values.map(<[u8]>::trim_ascii).filter(|v| !v.is_empty()).enumerate() {
            if i > 0 {
                text.push(b',');
            }
            text.extend_from_slice(value);
        }
        text.extend_from_slice(b"\r\n");
    }
    entry::hash([text.as_slice()])
}

fn fits(req: &Request, meta: &Meta) -> bool {
    meta.vary.is_empty() || meta.variant == variant(req, &meta.vary)
}

async fn find(req: &mut Request, cs: &CacheSettings, cache: &Arc<Cache>, key: &[u8]) -> Lookup {
    let thread = req.thread.clone();
    let now = millis(thread.clock.now());
    let mut name = req.take_buf();
    local_name(cache, key, &mut name);
    let mut hash = None;
    let mut main: Option<(Vec<u8>, u64)> = None;
    let found = loop {
        let entry = match thread.cached.get(&name) {
            Some(e) => {
                e.node.touch(now);
                e
            }
            None => {
                let hash = hash.unwrap_or_else(|| entry::hash([key]));
                match open(req, cs, cache, key, &hash, now).await {
                    Ok(e) => {
                        thread.cached.put(&name, &e);
                        e
                    }
                    Err(mut missing) => {
                        missing.main = main;
                        break missing;
                    }
                }
            }
        };
        let node = Some(entry.node.clone());
        let lookup = Lookup { node, entry: None, scarce: false, error: None, main: None };
        match &main {
            None if !fits(req, &entry.meta) => {
                // Another variant has a place of its own.
                let v = variant(req, &entry.meta.vary);
                main = Some((entry.meta.vary.clone(), entry.meta.family));
                hash = Some(entry::hash([key, v.as_slice()]));
                name.extend_from_slice(&v);
            }
            // Left over from before the response under the key was replaced.
            Some((_, family)) if *family != entry.meta.family || !fits(req, &entry.meta) => {
                break Lookup { main, ..lookup };
            }
            _ => break Lookup { entry: Some(entry), main, ..lookup },
        }
    };
    req.give_buf(name);
    found
}

async fn open(
    req: &mut Request,
    cs: &CacheSettings,
    cache: &Arc<Cache>,
    key: &[u8],
    hash: &Hash,
    now: u64,
) -> Result<Rc<Entry>, Lookup> {
    let mut missing = Lookup { node: None, entry: None, scarce: true, error: None, main: None };
    let Some(node) = cache.index.obtain(hash, now) else {
        let name = String::from_utf8_lossy(&cache.name).into_owned();
        req.log(Level::Alert, &format!("could not allocate node in cache keys zone \"{name}\""));
        return Err(missing);
    };
    node.touch(now);
    let unix = req.thread.clock.unix();
    let (exists, uses, error) = node.with(|s| {
        s.uses += 1;
        (s.exists, s.uses, s.error.filter(|(_, until)| *until >= unix).map(|e| e.0))
    });
    missing.node = Some(node.clone());
    missing.error = error;
    missing.scarce = uses < cs.min_uses.0;
    if error.is_some() || (!exists && cache.index.loaded()) {
        return Err(missing);
    }
    let opened = local::open(cache, &node, key).await;
    let gone = match opened {
        Ok(e) => {
            let len = e.len() + e.meta.body_start() as u64;
            cache.index.note(&node, len);
            return Ok(Rc::new(e));
        }
        Err(Unusable::Missing) => exists.then_some(false),
        Err(Unusable::Broken(why)) => {
            let path = cache.file(hash);
            req.log(Level::Crit, &format!("cache file \"{}\" {why}", path.display()));
            Some(true)
        }
        Err(Unusable::Failed(e)) => {
            if matches!(e, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) {
                req.thread.cached.shed();
            }
            let path = cache.file(hash);
            req.log(Level::Crit, &format!("open() \"{}\" failed {}", path.display(), errno_text(e)));
            None
        }
    };
    if let Some(remove) = gone {
        let (cache, node) = (cache.clone(), node.clone());
        let _ = tokio::task::spawn_blocking(move || cache.index.forget_file(&cache, &node, remove)).await;
    }
    Err(missing)
}

/// Removes what stands under a key, or under all keys that begin like it where it ends in `*`.
async fn purged(cache: &Arc<Cache>, key: &[u8]) -> Found {
    let (cache, key) = (cache.clone(), key.to_vec());
    let index = cache.index.clone();
    let _turn = match key.last() {
        Some(b'*') => Some(index.purge_one_at_a_time().await),
        _ => None,
    };
    let _ = tokio::task::spawn_blocking(move || match key.strip_suffix(b"*") {
        None => {
            let hash = entry::hash([key.as_slice()]);
            match cache.index.find(&hash) {
                Some(node) => cache.index.remove(&cache, &node),
                None if cache.index.loaded() => {}
                None => drop(std::fs::remove_file(cache.file(&hash))),
            }
        }
        Some(prefix) => cache.index.purge(&cache, prefix),
    })
    .await;
    Found::Purged
}

/// What a response says about its own storing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    /// Not to be stored at all.
    never: bool,
    /// `Cache-Control` or `Expires` forbid it.
    no_cache: bool,
    expired: bool,
    /// Fresh until then; 0: not said.
    valid: i64,
    updating: i64,
    error: i64,
}

fn now_plus(now: i64, seconds: u64) -> i64 {
    now.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX / 2))
}

/// The number behind `name=` in a field value, wherever it stands; what does not fit counts as very long.
fn seconds_after(value: &[u8], name: &[u8]) -> Option<u64> {
    let at = value.windows(name.len()).position(|w| w.eq_ignore_ascii_case(name))?;
    let rest = value.get(at + name.len()..).unwrap_or_default();
    let digits = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
    if !matches!(rest.get(digits), None | Some(b',' | b' ' | b';')) {
        return None;
    }
    match digits {
        0 => None,
        _ => Some(forebay_conf::units::number(&rest[..digits]).unwrap_or(i64::MAX as u64 / 2)),
    }
}

/// Reads the fields in the order in which they stand (nginx decides as they come).
fn said(req: &Request, s: &Settings) -> Said {
    let h = &req.modules.upstream.head;
    let now = req.thread.clock.unix();
    let mut said = Said::default();
    let mut accel = false;
    let (mut expires_seen, mut vary_len) = (false, 0);
    for f in &h.fields {
        let value = f.value.of(&h.buf);
        match f.id {
            Name::XAccelExpires if !accel => {
                accel = true;
                if s.ignore_headers.has(b"X-Accel-Expires") {
                    continue;
                }
                let (absolute, digits) = match value {
                    [b'@', rest @ ..] => (true, rest),
                    all => (false, all),
                };
                match (forebay_conf::units::number(digits), absolute) {
                    (Some(0), false) => said.never = true,
                    // A time of 0 is none: `proxy_cache_valid` says it.
                    (Some(n), true) => said.valid = i64::try_from(n).unwrap_or(i64::MAX),
                    (Some(n), false) => said.valid = now_plus(now, n),
                    (None, _) => continue,
                }
                (said.no_cache, said.expired) = (false, false);
            }
            Name::CacheControl if !s.ignore_headers.has(b"Cache-Control") => {
                cache_control(value, now, accel && said.valid != 0, &mut said);
            }
            Name::Expires if !expires_seen => {
                expires_seen = true;
                if s.ignore_headers.has(b"Expires") || said.valid != 0 {
                    continue;
                }
                match forebay_http::date::parse(value) {
                    Some(t) if t >= now => said.valid = t,
                    _ => said.expired = true,
                }
            }
            Name::SetCookie if !s.ignore_headers.has(b"Set-Cookie") => said.never = true,
            Name::Vary if !s.ignore_headers.has(b"Vary") => {
                vary_len += value.len() + 1;
                said.never |= value == b"*" || vary_len > MAX_VARY + 1;
            }
            _ => {}
        }
    }
    said
}

fn cache_control(value: &[u8], now: i64, accel: bool, said: &mut Said) {
    let has = |word: &[u8]| value.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word));
    if !accel {
        if has(b"no-cache") || has(b"no-store") || has(b"private") {
            said.no_cache = true;
            return;
        }
        let age = if has(b"s-maxage=") {
            Some(seconds_after(value, b"s-maxage="))
        } else if has(b"max-age=") {
            Some(seconds_after(value, b"max-age="))
        } else {
            None
        };
        match age {
            None => {}
            Some(None | Some(0)) => {
                said.no_cache = true;
                return;
            }
            Some(Some(n)) => {
                said.valid = now_plus(now, n);
                said.expired = false;
            }
        }
    }
    if let Some(n) = seconds_after(value, b"stale-while-revalidate=") {
        (said.updating, said.expired) = (n.min(i64::MAX as u64) as i64, false);
    }
    if let Some(n) = seconds_after(value, b"stale-if-error=") {
        (said.error, said.expired) = (n.min(i64::MAX as u64) as i64, false);
    }
}

/// An error that `error_page` answers is remembered, not its response.
pub fn remember_error(req: &mut Request, fetch: Fetch, s: &Settings, cs: &CacheSettings) {
    let Some(place) = fetch.place else { return };
    let said = said(req, s);
    if said.never || said.no_cache || said.expired {
        return;
    }
    let status = req.modules.upstream.head.status;
    let now = req.thread.clock.unix();
    let valid = match said.valid {
        0 => cs.valid.seconds(status).map_or(0, |n| if n == 0 { 0 } else { now_plus(now, n) }),
        t => t,
    };
    if valid > 0 {
        place.ticket.node.with(|s| s.error = Some((status, valid)));
        place.ticket.node.renewed();
    }
}

/// Decides whether the response whose head has been read is stored.
pub fn keep(
    req: &mut Request,
    fetch: &mut Fetch,
    s: &Settings,
    cs: &CacheSettings,
) -> Result<Option<Keep>, Stop> {
    let Some(place) = fetch.place.take() else { return Ok(None) };
    let said = said(req, s);
    if said.never || said.no_cache || said.expired || cs.no_cache.test(req)? {
        return Ok(None);
    }
    let now = req.thread.clock.unix();
    let h = &req.modules.upstream.head;
    let valid = match said.valid {
        0 => match cs.valid.seconds(h.status) {
            None | Some(0) => return Ok(None),
            Some(n) => now_plus(now, n),
        },
        t => t,
    };
    let mut vary = Vec::new();
    if !s.ignore_headers.has(b"Vary") {
        for f in h.fields.iter().filter(|f| f.id == Name::Vary) {
            if !vary.is_empty() {
                vary.push(b',');
            }
            vary.extend_from_slice(f.value.of(&h.buf));
        }
    }
    let validators = matches!(h.status, 200 | 206);
    let variant = if vary.is_empty() { Hash::default() } else { variant(req, &vary) };
    let meta = Meta {
        valid,
        updating: said.updating,
        error: said.error,
        date: now,
        last_modified: h.get(Name::LastModified).filter(|_| validators).and_then(forebay_http::date::parse),
        etag: h.get(Name::Etag).filter(|e| validators && e.len() <= 128).unwrap_or_default().to_vec(),
        status: h.status,
        head: h.buf.get(..h.len).unwrap_or_default().to_vec(),
        variant,
        family: place.family,
        key: place.key,
        vary,
    };
    let ticket = match place.main {
        // The response no longer varies as the one under the key does: it takes that place.
        Some((vary, _)) if vary != meta.vary => {
            let now = millis(req.thread.clock.now());
            let node = place.cache.index.obtain(&entry::hash([meta.key.as_slice()]), now);
            let Some(node) = node else { return Ok(None) };
            Ticket::plain(node)
        }
        _ => place.ticket,
    };
    Ok(Some(Keep::Cache { cache: place.cache, meta: Box::new(meta), ticket }))
}

/// The upstream says that the stale entry is still good: it gets a new time. Gives the entry as it is now.
pub async fn revalidated(
    req: &mut Request,
    mut fetch: Fetch,
    s: &Settings,
    cs: &CacheSettings,
) -> Option<Rc<Entry>> {
    let e = fetch.stale.take()?;
    req.modules.proxy_cache.status = Some(Status::Revalidated);
    let Some(place) = fetch.place else { return Some(e) };
    let mut said_now = said(req, s);
    if said_now.valid == 0 {
        // The 304 says nothing of it: what was stored does, and the configuration last.
        super::respond::load_head(req, &e);
        let stored = said(req, s);
        if stored.valid != 0 {
            said_now = stored;
        }
    }
    let now = req.thread.clock.unix();
    let valid = match said_now.valid {
        0 => cs.valid.seconds(e.meta.status).filter(|n| *n > 0).map(|n| now_plus(now, n)),
        t => Some(t),
    };
    let Some(valid) = valid else { return Some(e) };
    let mut meta = e.meta.clone();
    (meta.valid, meta.updating, meta.error, meta.date) = (valid, said_now.updating, said_now.error, now);
    let (cache, node, generation) = (place.cache.clone(), e.node.clone(), e.generation());
    let start = meta.encode(e.len());
    let written =
        tokio::task::spawn_blocking(move || cache.index.renew(&cache, &node, generation, &start)).await;
    if let Ok(Err(error)) = written {
        req.log(Level::Crit, &format!("cache file cannot be renewed ({error})"));
    }
    Some(e)
}

/// Whether a stale entry may serve in place of a failure.
pub fn serves_instead(
    req: &Request,
    fetch: &Fetch,
    cs: &CacheSettings,
    kind: Option<super::NextUpstream>,
) -> bool {
    let Some(e) = &fetch.stale else { return false };
    let Some(kind) = kind else { return false };
    // RFC 5861, section 4, allows it for 500, 502, 503 and 504, too; nginx does not.
    use super::NextUpstream as On;
    let failed = matches!(kind, On::Error | On::Timeout | On::InvalidHeader);
    cs.use_stale.has(kind) || failed && e.meta.valid.saturating_add(e.meta.error) >= req.thread.clock.unix()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(value: &str) -> Said {
        let mut said = Said::default();
        cache_control(value.as_bytes(), 100, false, &mut said);
        said
    }

    #[test]
    fn cache_control_is_read_as_nginx_does() {
        assert_eq!(judged("max-age=60").valid, 160);
        assert_eq!(judged("public, S-MaxAge=5, max-age=60").valid, 105);
        assert!(judged("max-age=60, No-Store").no_cache);
        assert!(judged("max-age=0").no_cache && judged("max-age=x").no_cache);
        assert!(judged("max-age=99999999999999999999").valid > 1 << 40);
        let both = judged("max-age=1, stale-while-revalidate=7, stale-if-error=9");
        assert_eq!((both.updating, both.error), (7, 9));
        assert_eq!(judged("stale-if-error=9").valid, 0);
    }
}
