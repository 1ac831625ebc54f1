//! Decisions about a cache: which requests it answers, which responses are fetched, and which of them are stored (nginx:
//! proxy_cache). Hot path.

use super::{Settings, Stop};
use crate::cache::entry::{self, MAX_VARY, Meta};
use crate::cache::index::{Forgotten, Node, Ticket, millis};
use crate::cache::local::{self, CACHED, Entry, Unusable};
use crate::cache::{Cache, Hash, purges};
use crate::modules::proxy_cache;
use crate::modules::proxy_cache::{CacheStatus, CacheZone, Settings as CacheSettings};
use crate::upstream::CALL;
use crate::upstream::spool::Keep;
use forebay_conf::error::Level;
use forebay_core::trace::{self, Step};
use forebay_http::field::Name;
use forebay_http::request::Method;
use forebay_server::request::Request;
use forebay_server::way;
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Decision about a request.
pub(super) enum CacheAnswer {
    /// The entry answers.
    Entry(Rc<Entry>),
    /// The upstream is asked.
    Fetch(Fetch),
    /// The request was a purge, which is done.
    Purged,
    /// A background request has nothing to do: another request renews the entry.
    Nothing,
}

impl CacheAnswer {
    /// Returns the answer in a word.
    fn text(&self) -> &'static str {
        match self {
            CacheAnswer::Entry(_) => "hit",
            CacheAnswer::Fetch(Fetch { stale: Some(_), .. }) => "expired",
            CacheAnswer::Fetch(_) => "miss",
            CacheAnswer::Purged => "purged",
            CacheAnswer::Nothing => "renewed by another request",
        }
    }
}

/// A request to an upstream, as the cache sees it.
#[derive(Default)]
pub(super) struct Fetch {
    /// Place at which the response is to be stored. Boxed, so that requests without a cache keep no room for it.
    place: Option<Box<Place>>,
    /// A response that is no longer fresh.
    pub stale: Option<Rc<Entry>>,
    /// `true` if a HEAD request is sent as GET, so that there is something to store.
    pub convert: bool,
}

/// Place of a response in a cache.
struct Place {
    cache: Arc<Cache>,
    ticket: Ticket,
    key: Vec<u8>,
    /// The entry under the key, if the response will be stored as another variant.
    main: Option<Main>,
    family: u64,
}

/// Entry under a key that has several variants.
struct Main {
    /// `Vary` of its response.
    vary: Vec<u8>,
    /// Number that its variants share.
    family: u64,
}

impl Fetch {
    /// Returns `true` if the response may be stored, so that the request goes without conditions and ranges.
    pub(super) fn cacheable(&self) -> bool {
        self.place.is_some()
    }
}

/// State of index and files for a key.
struct Lookup {
    node: Option<Arc<Node>>,
    entry: Option<Rc<Entry>>,
    /// The key has been requested too rarely for its response to be stored.
    scarce: bool,
    /// Status of a remembered error.
    error: Option<u16>,
    main: Option<Main>,
}

impl Lookup {
    fn of(node: Option<Arc<Node>>) -> Lookup {
        Lookup { node, entry: None, scarce: false, error: None, main: None }
    }
}

/// Decides whether a cache answers. `uri` is path and query of the request to the upstream.
pub(super) async fn look(req: &mut Request, uri: &[u8], cs: &CacheSettings) -> Result<CacheAnswer, Stop> {
    let purge = cs.purge.test(req)?;
    if !purge && !cs.methods.has(req.method) {
        return Ok(CacheAnswer::Fetch(Fetch::default()));
    }
    // A constant zone is borrowed, because a counted reference would be written to by all threads.
    let named;
    let cache = match &cs.zone {
        CacheZone::Zone(z) => z.cache(),
        zone => {
            named = zone.cache(req).map_err(Stop::Status)?;
            named.as_ref()
        }
    };
    let Some(cache) = cache else { return Ok(CacheAnswer::Fetch(Fetch::default())) };
    let state = proxy_cache::STATE.of_mut(req);
    (state.zone, state.is_former) = (Some(cache.counts.id), false);
    let mut key = req.take_buf();
    push_key(req, uri, cs, &mut key)?;
    // A copy for `$upstream_cache_key`, which the log may need after the request.
    let kept = &mut proxy_cache::STATE.of_mut(req).key;
    kept.clear();
    kept.extend_from_slice(&key);
    let found = match purge {
        // Nothing is removed where the way of a request is only recorded.
        true if trace::is_on() => CacheAnswer::Purged,
        true => purged(req, cache, &key).await,
        false => look_up(req, cs, cache, &key).await?,
    };
    way::note(req, || {
        let step = Step::new("cache").fact("zone", &cache.name).fact("key", &key);
        step.fact("result", found.text()).about(&["proxy_cache", "proxy_cache_key"])
    });
    req.give_buf(key);
    Ok(found)
}

/// Appends the key of a request (nginx: proxy_cache_key).
fn push_key(req: &mut Request, uri: &[u8], cs: &CacheSettings, key: &mut Vec<u8>) -> Result<(), Stop> {
    if let Some(t) = &cs.key.0 {
        t.eval(req, key)?;
    } else if CALL.of(req).codec.facts().takes_url {
        key.extend_from_slice(if CALL.of(req).encrypted { b"https://" } else { b"http://" });
        key.extend_from_slice(&req.modules.upstream.host);
        key.extend_from_slice(uri);
    }
    Ok(())
}

async fn look_up(
    req: &mut Request,
    cs: &CacheSettings,
    cache: &Arc<Cache>,
    key: &[u8],
) -> Result<CacheAnswer, Stop> {
    let convert = req.method == Method::Head && cs.convert_head;
    let query = Query { cs, cache, key, convert, range: range_too_far(req, cs) };
    // A bypass asks the upstream even if the thread has a fresh entry, so it is tested first.
    if cs.bypass.test(req)? {
        return Ok(query.bypass(req));
    }
    if let Some(e) = fresh(req, cache, key) {
        proxy_cache::STATE.of_mut(req).status = Some(CacheStatus::Hit);
        return Ok(CacheAnswer::Entry(e));
    }
    let mut lock = LockWait { began: Instant::now(), patient: true };
    loop {
        let found = find(req, &query).await;
        if let Some(status) = found.error {
            proxy_cache::STATE.of_mut(req).status = Some(CacheStatus::Hit);
            return Err(Stop::Status(status));
        }
        if let (Some(node), Some(e)) = (&found.node, found.entry) {
            return Ok(query.answer(req, node, e, found.main));
        }
        proxy_cache::STATE.of_mut(req).status = Some(CacheStatus::Miss);
        // As in nginx, a response that is asked for too rarely is passed on without being stored.
        let Some(node) = found.node.filter(|_| !found.scarce && !query.range) else {
            return Ok(CacheAnswer::Fetch(Fetch::default()));
        };
        if !cs.lock {
            return Ok(query.fetch(Some(Ticket::plain(node)), None, found.main));
        }
        // Boxed, so that requests that do not wait for others keep no room for it.
        if let Some(found) = Box::pin(query.take_lock(req, &node, found.main, &mut lock)).await {
            return Ok(found);
        }
    }
}

/// Wait for a request that fetches the same response (nginx: proxy_cache_lock).
struct LockWait {
    began: Instant,
    /// `true` until the request took the lock and found that the entry exists. It then looks the entry up again, once.
    patient: bool,
}

/// A question to a cache.
struct Query<'q> {
    cs: &'q CacheSettings,
    cache: &'q Arc<Cache>,
    key: &'q [u8],
    /// `true` if a HEAD request is sent as GET.
    convert: bool,
    /// `true` if a range is requested that begins too far from the start for the response to be stored.
    range: bool,
}

impl Query<'_> {
    /// Asks the upstream whatever the cache has. The response is stored.
    fn bypass(&self, req: &mut Request) -> CacheAnswer {
        proxy_cache::STATE.of_mut(req).status = Some(CacheStatus::Bypass);
        let now = millis(req.thread.clock.now());
        let node = self.cache.index.obtain(&entry::hash([self.key]), now);
        self.fetch(node.map(Ticket::plain).filter(|_| !self.range), None, None)
    }

    /// Answers with an entry, or renews it where it is no longer fresh.
    fn answer(&self, req: &mut Request, node: &Arc<Node>, e: Rc<Entry>, main: Option<Main>) -> CacheAnswer {
        let unix = req.thread.clock.unix();
        if e.meta.fresh(unix) {
            proxy_cache::STATE.of_mut(req).status = Some(CacheStatus::Hit);
            return CacheAnswer::Entry(e);
        }
        let cs = self.cs;
        let background = req.is_background();
        let may_serve = cs.use_stale.updating || e.meta.valid.saturating_add(e.meta.updating) >= unix;
        let own = proxy_cache::STATE.of_mut(req).ticket.take();
        let ticket = match own.or_else(|| Ticket::take(node, None, Instant::now())) {
            // A request with a body is never renewed in the background, which could not send the body.
            Some(t) if may_serve && cs.background_update && !background && !req.has_body() => {
                forebay_server::background::renew(req, |new| proxy_cache::STATE.of_mut(new).ticket = Some(t));
                proxy_cache::STATE.of_mut(req).status = Some(CacheStatus::Stale);
                return CacheAnswer::Entry(e);
            }
            Some(t) => t,
            None if background => return CacheAnswer::Nothing,
            None if may_serve => {
                proxy_cache::STATE.of_mut(req).status = Some(CacheStatus::Updating);
                return CacheAnswer::Entry(e);
            }
            None => Ticket::plain(node.clone()),
        };
        self.set_expired(req, &e.meta);
        self.fetch(Some(ticket).filter(|_| !self.range), Some(e), main)
    }

    /// Notes that an entry has expired, with its validators for the request to the upstream.
    fn set_expired(&self, req: &mut Request, meta: &Meta) {
        let state = proxy_cache::STATE.of_mut(req);
        state.status = Some(CacheStatus::Expired);
        // As in nginx, only a stored 200 or 206 is confirmed by conditions. A 304 says nothing about other statuses.
        if self.cs.revalidate && matches!(meta.status, 200 | 206) {
            state.last_modified = meta.last_modified;
            state.etag.clear();
            state.etag.extend_from_slice(&meta.etag);
        }
    }

    /// Fetches a response that no other request fetches. Otherwise waits for that request; `None` means that it has
    /// ended, so that the entry is to be looked up again.
    async fn take_lock(
        &self,
        req: &mut Request,
        node: &Arc<Node>,
        main: Option<Main>,
        lock: &mut LockWait,
    ) -> Option<CacheAnswer> {
        let now = Instant::now();
        // Enabled before the lock is tried, so that a notice in between is not missed.
        let filled = node.filled.notified();
        let mut filled = std::pin::pin!(filled);
        filled.as_mut().enable();
        if let Some(t) = Ticket::take(node, Some(now + self.cs.lock_age.0), now) {
            // The request that held the lock may have stored the response after it was looked up.
            if node.with(|s| s.exists) && std::mem::take(&mut lock.patient) {
                return None;
            }
            return Some(self.fetch(Some(t), None, main));
        }
        let end = lock.began + self.cs.lock_timeout.0;
        // After `proxy_cache_lock_timeout` the request goes to the upstream, but as in nginx its response is not stored.
        if now >= end {
            return Some(CacheAnswer::Fetch(Fetch { convert: self.convert, ..Fetch::default() }));
        }
        // The lock may also expire by its age, after which this request can take it.
        let aged = node.with(|s| s.locked_until).unwrap_or(end);
        let thread = req.thread.clone();
        thread.io.poller.deadline(aged.min(end), filled).await;
        None
    }

    /// Asks the upstream. The response is stored with a ticket.
    fn fetch(&self, ticket: Option<Ticket>, stale: Option<Rc<Entry>>, main: Option<Main>) -> CacheAnswer {
        let family = main.as_ref().map(|m| m.family).or_else(|| stale.as_ref().map(|e| e.meta.family));
        let place = ticket.map(|ticket| {
            let (cache, key) = (self.cache.clone(), self.key.to_vec());
            Box::new(Place { cache, ticket, key, main, family: family.unwrap_or_else(new_family) })
        });
        CacheAnswer::Fetch(Fetch { convert: self.convert && place.is_some(), place, stale })
    }
}

/// Returns the entry in this thread's memory, if it is fresh and the requested variant.
fn fresh(req: &mut Request, cache: &Arc<Cache>, key: &[u8]) -> Option<Rc<Entry>> {
    let mut name = req.take_buf();
    local_name(cache, key, &mut name);
    let found = CACHED.of(&req.thread).get(&name);
    req.give_buf(name);
    let e = found.filter(|e| e.meta.fresh(req.thread.clock.unix()) && fits(req, &e.meta))?;
    e.node.touch(millis(req.thread.clock.now()));
    Some(e)
}

/// Appends the name by which the memory of a thread knows an entry. The number of the index is a part of it, since
/// different caches may use the same key.
fn local_name(cache: &Arc<Cache>, key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(key);
    out.extend_from_slice(&cache.index.id().to_ne_bytes());
}

/// Returns a number that no other response has.
fn new_family() -> u64 {
    let t = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Entries outlive processes, so a counter alone would repeat numbers that are in files.
    (t.as_nanos() as u64) ^ (u64::from(std::process::id()) << 48) ^ (forebay_sys::serial::next() << 32)
}

/// Returns `true` if the requested range begins so far from the start that the whole response is not fetched for it
/// (nginx: proxy_cache_max_range_offset).
fn range_too_far(req: &Request, cs: &CacheSettings) -> bool {
    let (Some(max), Some(value)) = (cs.max_range_offset.0, req.head.get(Name::Range)) else { return false };
    let Some((unit, rest)) = value.split_at_checked(6) else { return false };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return false;
    }
    let rest = rest.trim_ascii_start();
    let digits = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
    // A range from the end begins too far from the start by its nature, unless the response is short.
    if rest.first() == Some(&b'-') {
        return true;
    }
    match forebay_conf::units::number(&rest[..digits]) {
        Some(start) => start >= max,
        None => digits > 0,
    }
}

/// Returns a hash of the request's fields that `vary` names.
fn variant(req: &Request, vary: &[u8]) -> Hash {
    let mut text = Vec::new();
    for name in vary.split(|b| *b == b',') {
        let name = name.trim_ascii();
        text.extend_from_slice(&name.to_ascii_lowercase());
        text.push(b':');
        // Clients write the list of `Accept-Encoding` in many ways, so blanks and empty elements in it do not make
        // another variant. Empty lines of any field do not either.
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

/// Looks up a key, then the requested variant of the response under the key.
async fn find(req: &mut Request, query: &Query<'_>) -> Lookup {
    let mut name = req.take_buf();
    local_name(query.cache, query.key, &mut name);
    let mut hash = None;
    let mut main: Option<Main> = None;
    let found = loop {
        let entry = match get(req, query, &name, hash).await {
            Ok(e) => e,
            Err(missing) => break Lookup { main, ..missing },
        };
        let node = Some(entry.node.clone());
        match &main {
            None if !fits(req, &entry.meta) => {
                // The entry under the key varies, and the requested variant is stored under a hash of key and field
                // values.
                let v = variant(req, &entry.meta.vary);
                main = Some(Main { vary: entry.meta.vary.clone(), family: entry.meta.family });
                hash = Some(entry::hash([query.key, v.as_slice()]));
                name.extend_from_slice(&v);
            }
            // A variant of another family is left over from an earlier response under the key, and is no longer valid.
            Some(m) if m.family != entry.meta.family || !fits(req, &entry.meta) => {
                break Lookup { main, ..Lookup::of(node) };
            }
            _ => break Lookup { entry: Some(entry), main, ..Lookup::of(node) },
        }
    };
    req.give_buf(name);
    found
}

/// Returns an entry from this thread's memory, or from its file. Without a hash, the hash of the key is used.
async fn get(
    req: &mut Request,
    query: &Query<'_>,
    name: &[u8],
    hash: Option<Hash>,
) -> Result<Rc<Entry>, Lookup> {
    let thread = req.thread.clone();
    let now = millis(thread.clock.now());
    if let Some(e) = CACHED.of(&thread).get(name) {
        e.node.touch(now);
        return Ok(e);
    }
    let hash = hash.unwrap_or_else(|| entry::hash([query.key]));
    let e = open(req, query, &hash, now).await?;
    CACHED.of(&thread).put(name, &e);
    Ok(e)
}

/// Opens the file of an entry. The error says what the index knows instead.
async fn open(req: &mut Request, query: &Query<'_>, hash: &Hash, now: u64) -> Result<Rc<Entry>, Lookup> {
    let cache = query.cache;
    let Some(node) = cache.index.obtain(hash, now) else {
        let name = String::from_utf8_lossy(&cache.name).into_owned();
        req.log(Level::Alert, &format!("could not allocate node in cache keys zone \"{name}\""));
        return Err(Lookup { scarce: true, ..Lookup::of(None) });
    };
    node.touch(now);
    let unix = req.thread.clock.unix();
    let (exists, uses, error) = node.with(|s| {
        s.uses += 1;
        (s.exists, s.uses, s.error.filter(|(_, until)| *until >= unix).map(|e| e.0))
    });
    let missing = Lookup { error, scarce: uses < query.cs.min_uses.0, ..Lookup::of(Some(node.clone())) };
    if error.is_some() || (!exists && cache.index.loaded()) {
        return Err(missing);
    }
    // A file that is replaced or renewed while it is read may look broken: it is read once more then.
    for _ in 0..2 {
        let generation = node.generation();
        let unusable = match local::open(cache, &node, generation, query.key).await {
            Ok(e) => {
                let len = e.len() + e.meta.body_start() as u64;
                cache.index.note(&node, len);
                return Ok(Rc::new(e));
            }
            Err(unusable) => unusable,
        };
        let leftover = unusable.leftover().filter(|file| exists || *file == Leftover::Remove);
        let mut forgotten = Forgotten::Yes;
        if let Some(file) = leftover {
            let (cache, node, remove) = (cache.clone(), node.clone(), file == Leftover::Remove);
            let forget = move || cache.index.forget_file(&cache, &node, generation, remove);
            forgotten = tokio::task::spawn_blocking(forget).await.unwrap_or(Forgotten::Yes);
        }
        if forgotten == Forgotten::Yes {
            explain(req, &unusable, &cache.file(hash));
            break;
        }
    }
    Err(missing)
}

/// File of an entry that is removed from the index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leftover {
    /// The file is missing.
    Missing,
    /// The file is useless and is removed.
    Remove,
}

impl Unusable {
    /// Returns what is done about the file. `None`: another request may succeed.
    fn leftover(&self) -> Option<Leftover> {
        match self {
            Unusable::Missing => Some(Leftover::Missing),
            Unusable::Broken(_) => Some(Leftover::Remove),
            Unusable::Failed(_) => None,
        }
    }
}

/// Logs why a file cannot be used.
fn explain(req: &mut Request, unusable: &Unusable, path: &std::path::Path) {
    match unusable {
        Unusable::Missing => {}
        Unusable::Broken(why) => req.log(Level::Crit, &format!("cache file \"{}\" {why}", path.display())),
        Unusable::Failed(e) => {
            // Entries that are merely kept open give their descriptors up, so that the next requests succeed.
            if matches!(*e, Errno::MFILE | Errno::NFILE) {
                CACHED.of(&req.thread).shed();
            }
            req.log(Level::Crit, &format!("open() \"{}\" failed {}", path.display(), errno_text(*e)));
        }
    }
}

/// Removes the entry of a key. A key that ends in `*` stands for all keys that begin like it.
async fn purged(req: &mut Request, cache: &Arc<Cache>, key: &[u8]) -> CacheAnswer {
    if let Err(why) = purges::tell(cache, key) {
        req.log(Level::Error, &format!("the purge is not passed on to other servers: {why}"));
    }
    let (cache, key) = (cache.clone(), key.to_vec());
    let index = cache.index.clone();
    let _turn = match key.last() {
        Some(b'*') => Some(index.purge_one_at_a_time().await),
        _ => None,
    };
    let _ = tokio::task::spawn_blocking(move || match key.strip_suffix(b"*") {
        Some(prefix) => cache.index.purge(&cache, &[prefix]),
        None => cache.index.purge_entry(&cache, &entry::hash([&*key])),
    })
    .await;
    CacheAnswer::Purged
}

/// Rules for caches in the fields of a response: whether it is stored, and how long it is fresh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CacheRules {
    /// The response is never stored.
    never: bool,
    /// `Cache-Control` or `Expires` forbid it.
    no_cache: bool,
    expired: bool,
    /// End of its freshness, Unix seconds; 0 if no field has it.
    valid: i64,
    updating: i64,
    error: i64,
}

impl CacheRules {
    fn forbids(&self) -> bool {
        self.never || self.no_cache || self.expired
    }

    /// Returns the end of freshness of a response with this status, if it has one (nginx: proxy_cache_valid).
    fn valid_until(&self, cs: &CacheSettings, status: u16, now: i64) -> Option<i64> {
        match self.valid {
            0 => cs.valid.seconds(status).filter(|n| *n > 0).map(|n| now_plus(now, n)),
            t => Some(t),
        }
    }

    /// Reads `X-Accel-Expires`.
    fn accel_expires(&mut self, value: &[u8], now: i64) {
        let (absolute, digits) = match value {
            // As in nginx, `@` marks a point in time rather than a number of seconds.
            [b'@', rest @ ..] => (true, rest),
            all => (false, all),
        };
        let Some(n) = forebay_conf::units::number(digits) else { return };
        match (n, absolute) {
            (0, false) => self.never = true,
            // As in nginx, a time of 0 means that no field says it, so `proxy_cache_valid` decides.
            (n, true) => self.valid = i64::try_from(n).unwrap_or(i64::MAX),
            (n, false) => self.valid = now_plus(now, n),
        }
        (self.no_cache, self.expired) = (false, false);
    }

    /// Reads `Expires`.
    fn expires(&mut self, value: &[u8], now: i64) {
        match forebay_http::date::parse(value) {
            // `X-Accel-Expires` and `Cache-Control` have precedence over `Expires`.
            _ if self.valid != 0 => {}
            Some(t) if t >= now => self.valid = t,
            _ => self.expired = true,
        }
    }
}

fn now_plus(now: i64, seconds: u64) -> i64 {
    now.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX / 2))
}

/// Returns the number after `name=`, anywhere in a field value. A number that does not fit counts as very long.
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

/// Reads the rules from the fields in their order, on which the result depends as in nginx.
fn cache_rules(req: &Request, s: &Settings) -> CacheRules {
    let h = &req.modules.upstream.head;
    let now = req.thread.clock.unix();
    let mut rules = CacheRules::default();
    // The first of these fields counts.
    let (mut accel, mut expires) = (false, false);
    let mut vary_len = 0;
    for f in &h.fields {
        let value = f.value.of(&h.buf);
        let counts = |name: &[u8]| !s.ignore_headers.has(name);
        match f.id {
            Name::XAccelExpires if !std::mem::replace(&mut accel, true) && counts(b"X-Accel-Expires") => {
                rules.accel_expires(value, now);
            }
            Name::CacheControl if counts(b"Cache-Control") => {
                cache_control(value, now, accel && rules.valid != 0, &mut rules);
            }
            Name::Expires if !std::mem::replace(&mut expires, true) && counts(b"Expires") => {
                rules.expires(value, now);
            }
            Name::SetCookie if counts(b"Set-Cookie") => rules.never = true,
            Name::Vary if counts(b"Vary") => {
                // The lines are stored as one value, with a comma between them.
                vary_len += value.len() + 1;
                rules.never |= value == b"*" || vary_len > MAX_VARY + 1;
            }
            _ => {}
        }
    }
    rules
}

/// Reads `Cache-Control`. After an `X-Accel-Expires` (`accel`) only its extensions count.
fn cache_control(value: &[u8], now: i64, accel: bool, rules: &mut CacheRules) {
    let has = |word: &[u8]| value.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word));
    if !accel {
        // This is a shared cache, so `s-maxage` has precedence (RFC 9111, section 5.2.2.10).
        let age = [&b"s-maxage="[..], b"max-age="].into_iter().find(|name| has(name));
        let seconds = age.map(|name| seconds_after(value, name).unwrap_or(0));
        if has(b"no-cache") || has(b"no-store") || has(b"private") || seconds == Some(0) {
            rules.no_cache = true;
            return;
        }
        if let Some(n) = seconds {
            rules.valid = now_plus(now, n);
            rules.expired = false;
        }
    }
    if let Some(n) = seconds_after(value, b"stale-while-revalidate=") {
        (rules.updating, rules.expired) = (n.min(i64::MAX as u64) as i64, false);
    }
    if let Some(n) = seconds_after(value, b"stale-if-error=") {
        (rules.error, rules.expired) = (n.min(i64::MAX as u64) as i64, false);
    }
}

/// Remembers the status of a failure for which no server has sent a response. Only `proxy_cache_valid` says for how long, since there
/// are no fields.
pub(super) fn remember_failure(req: &Request, fetch: Fetch, cs: &CacheSettings, status: u16) {
    if let Some(valid) = cs.valid.seconds(status).filter(|n| *n > 0) {
        remember(req, fetch, status, now_plus(req.thread.clock.unix(), valid));
    }
}

/// Has requests for the entry answered with a status until a time. As in nginx, a request that bypasses the cache changes
/// nothing there unless it brings a response.
fn remember(req: &Request, fetch: Fetch, status: u16, until: i64) {
    let Some(place) = fetch.place.filter(|_| proxy_cache::STATE.of(req).status != Some(CacheStatus::Bypass))
    else {
        return;
    };
    place.ticket.node.with(|s| s.error = Some((status, until)));
    place.ticket.node.renewed();
}

/// Remembers the status of an error that `error_page` answers, not its response.
pub(super) fn remember_error(req: &mut Request, fetch: Fetch, s: &Settings, cs: &CacheSettings) {
    let rules = cache_rules(req, s);
    if !fetch.cacheable() || rules.forbids() {
        return;
    }
    let status = req.modules.upstream.head.status;
    if let Some(valid) = rules.valid_until(cs, status, req.thread.clock.unix()).filter(|t| *t > 0) {
        remember(req, fetch, status, valid);
    }
}

/// Decides whether the response whose head has been read is stored.
pub(super) fn keep(
    req: &mut Request,
    fetch: &mut Fetch,
    s: &Settings,
    cs: &CacheSettings,
) -> Result<Option<Keep>, Stop> {
    let Some(place) = fetch.place.take().filter(|_| !trace::is_on()) else { return Ok(None) };
    let rules = cache_rules(req, s);
    if rules.forbids() || cs.no_cache.test(req)? {
        return Ok(None);
    }
    let status = req.modules.upstream.head.status;
    let Some(valid) = rules.valid_until(cs, status, req.thread.clock.unix()) else { return Ok(None) };
    let vary = vary(req, s);
    let cache = place.cache.clone();
    let ticket = match place.main {
        // The response varies by other fields than the entry under the key, so it replaces that entry.
        Some(ref main) if main.vary != vary => {
            let now = millis(req.thread.clock.now());
            let node = cache.index.obtain(&entry::hash([place.key.as_slice()]), now);
            let Some(node) = node else { return Ok(None) };
            Ticket::plain(node)
        }
        _ => place.ticket,
    };
    let meta = Meta { valid, family: place.family, key: place.key, ..meta(req, &rules, vary) };
    Ok(Some(Keep::Cache { cache, meta: Box::new(meta), ticket }))
}

/// Returns the values of `Vary`, separated by commas.
fn vary(req: &Request, s: &Settings) -> Vec<u8> {
    let h = &req.modules.upstream.head;
    let mut vary = Vec::new();
    if s.ignore_headers.has(b"Vary") {
        return vary;
    }
    for f in h.fields.iter().filter(|f| f.id == Name::Vary) {
        if !vary.is_empty() {
            vary.push(b',');
        }
        vary.extend_from_slice(f.value.of(&h.buf));
    }
    vary
}

/// Describes the response for its file, except for its place and the end of its freshness.
fn meta(req: &Request, rules: &CacheRules, vary: Vec<u8>) -> Meta {
    let h = &req.modules.upstream.head;
    // As in nginx, only these statuses are renewed by conditions later.
    let validators = matches!(h.status, 200 | 206);
    let variant = if vary.is_empty() { Hash::default() } else { variant(req, &vary) };
    Meta {
        valid: 0,
        updating: rules.updating,
        error: rules.error,
        date: req.thread.clock.unix(),
        last_modified: h.get(Name::LastModified).filter(|_| validators).and_then(forebay_http::date::parse),
        etag: h.get(Name::Etag).filter(|e| validators && e.len() <= 128).unwrap_or_default().to_vec(),
        status: h.status,
        head: h.buf.get(..h.len).unwrap_or_default().to_vec(),
        variant,
        family: 0,
        key: Vec::new(),
        vary,
    }
}

/// Gives a stale entry that the upstream has confirmed a new time. Returns the entry as it was.
pub(super) async fn revalidated(
    req: &mut Request,
    mut fetch: Fetch,
    s: &Settings,
    cs: &CacheSettings,
) -> Option<Rc<Entry>> {
    let e = fetch.stale.take()?;
    proxy_cache::STATE.of_mut(req).status = Some(CacheStatus::Revalidated);
    let Some(place) = fetch.place else { return Some(e) };
    let said_now = said_of_both(req, &e, s);
    let now = req.thread.clock.unix();
    let Some(valid) = said_now.valid_until(cs, e.meta.status, now) else { return Some(e) };
    let mut meta = e.meta.clone();
    (meta.valid, meta.updating, meta.error, meta.date) = (valid, said_now.updating, said_now.error, now);
    let (cache, renewal) = (place.cache.clone(), e.renewal());
    let start = meta.encode(e.len());
    let thread = req.thread.clone();
    let written = thread.disk.run(move || cache.index.renew(&cache, &renewal, &start)).await;
    if let Some(Err(error)) = written {
        req.log(Level::Crit, &format!("cache file cannot be renewed ({error})"));
    }
    Some(e)
}

/// Reads the rules of a 304, and the rules of the stored response if the 304 says no time. Loads the head of the stored
/// response in that case.
fn said_of_both(req: &mut Request, e: &Rc<Entry>, s: &Settings) -> CacheRules {
    let confirmed = cache_rules(req, s);
    if confirmed.valid != 0 {
        return confirmed;
    }
    super::respond::load_head(req, e);
    let stored = cache_rules(req, s);
    if stored.valid != 0 { stored } else { confirmed }
}

/// Returns `true` if a stale entry may serve in place of a failure.
pub(super) fn serves_instead(
    req: &Request,
    fetch: &Fetch,
    cs: &CacheSettings,
    kind: Option<super::NextUpstream>,
) -> bool {
    let Some(e) = &fetch.stale else { return false };
    let Some(kind) = kind else { return false };
    // RFC 5861, section 4, allows a stale response in place of a 500, 502, 503 or 504 as well, but nginx does not.
    use super::NextUpstream as On;
    let failed = matches!(kind, On::Error | On::Timeout | On::InvalidHeader);
    cs.use_stale.has(kind) || failed && e.meta.valid.saturating_add(e.meta.error) >= req.thread.clock.unix()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(value: &str) -> CacheRules {
        let mut rules = CacheRules::default();
        cache_control(value.as_bytes(), 100, false, &mut rules);
        rules
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
