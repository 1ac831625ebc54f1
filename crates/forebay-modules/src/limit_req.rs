//! `limit_req`: a leaky bucket per key, in zones that all threads share (nginx: ngx_http_limit_req_module). With `sync` all
//! replicas share them, through the store of `shared_store` (NGINX Plus has `sync`, too; how it works here is our own
//! design).

use crate::store_answers::gather;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::config::Context;
use forebay_core::config::plain;
use forebay_core::config::value::{Setting, once};
use forebay_core::limit::LogLevel;
use forebay_core::limit::outcomes::{Limited, Outcome};
use forebay_core::limit::rate::Buckets;
use forebay_core::limit::shared_rate::{Definition, SharedRate};
use forebay_core::limit::zones::{self, Tables};
use forebay_core::shared_store::{Answer, Link};
use forebay_core::trace;
use forebay_core::vars::RowSource;
use forebay_core::vars::Template;
use forebay_server::config::{HttpContext, Scope};
use forebay_server::module::ConfigHooks;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::phases::pause;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::request::{Origin, Request};
use forebay_server::variables::Row;
use forebay_server::way;
use forebay_sys::sync::lock;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot::Receiver;

forebay_server::module_settings! {
    /// `limit_req`.
    "limit_req" => limits: RateLimits = RateLimits::default();
    /// `limit_req_dry_run`.
    "limit_req_dry_run" => dry_run: bool = false;
    /// `limit_req_log_level`.
    "limit_req_log_level" => log_level: LogLevel = LogLevel::Error;
    /// `limit_req_status`.
    "limit_req_status" => status: RefusalStatus = RefusalStatus(503);
}

/// `limit_req_status`.
#[derive(Clone, Copy, Debug)]
pub struct RefusalStatus(u16);

impl RefusalStatus {
    /// The default, 503.
    pub const UNAVAILABLE: RefusalStatus = RefusalStatus(503);

    /// Returns the status as a number.
    pub fn code(self) -> u16 {
        self.0
    }
}

impl Setting<HttpContext> for RefusalStatus {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let n = units::number(forebay_core::config::value::first(d))
            .ok_or_else(|| cx.directive_error(d, "invalid number"))?;
        match u16::try_from(n) {
            Ok(n @ 400..=599) => Ok(RefusalStatus(n)),
            _ => Err(cx.error(d, "value must be between 400 and 599")),
        }
    }
}

/// One `limit_req`.
#[derive(Clone, Debug)]
pub struct Limit {
    zone: Arc<RateZone>,
    /// Excess above which requests are refused, in thousandths of a request.
    burst: u64,
    /// Excess above which requests are delayed, in thousandths of a request.
    delay: u64,
}

/// All `limit_req` directives of a level.
#[derive(Clone, Debug, Default)]
pub struct RateLimits(pub Arc<Vec<Limit>>);

impl Setting<HttpContext> for RateLimits {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.map(|p| p.0.as_ref().clone()).unwrap_or_default();
        let mut p = Parameters { zone: None, burst: 0, delay: 0 };
        for w in &d.args {
            p.read(w).map_err(|what| cx.error_at(d, w, format!("invalid {what} \"{}\"", w.as_str())))?;
        }
        let Some(name) = p.zone else {
            return Err(cx.error(d, "\"limit_req\" must have \"zone\" parameter"));
        };
        cx.share_zone(d, &name, (HttpContext::BLOCK, "limit_req"), None)?;
        // The zone may be defined further below in the file. A zone that has no definition at the end is an
        // error then.
        let zone = cx.tables.parts.get_mut::<RateZones>().find_or_promise(
            &name,
            HttpContext::BLOCK,
            Limited::Requests,
        );
        if all.iter().any(|l| Arc::ptr_eq(&l.zone, &zone)) {
            return Err(cx.error(d, "\"limit_req\" directive is duplicate"));
        }
        all.push(Limit { zone, burst: p.burst.saturating_mul(1000), delay: p.delay.saturating_mul(1000) });
        Ok(RateLimits(Arc::new(all)))
    }
}

/// Parameters of `limit_req`. Numbers are requests.
struct Parameters {
    zone: Option<Vec<u8>>,
    burst: u64,
    delay: u64,
}

impl Parameters {
    /// Reads a parameter. The error says what is invalid.
    fn read(&mut self, w: &Word) -> Result<(), &'static str> {
        let text = w.text.as_slice();
        let end = memchr::memchr(b'=', text);
        let value = end.and_then(|at| text.get(at + 1..));
        match (text.get(..end.unwrap_or(text.len())).unwrap_or_default(), value) {
            (b"zone", Some(name)) => self.zone = Some(name.to_vec()),
            (b"burst", Some(n)) => self.burst = positive(n).ok_or("burst value")?,
            (b"delay", Some(n)) => self.delay = positive(n).ok_or("delay value")?,
            // No excess gets this high, and the number can still be counted in thousandths.
            (b"nodelay", None) => self.delay = u64::MAX / 1000,
            _ => return Err("parameter"),
        }
        Ok(())
    }
}

fn positive(text: &[u8]) -> Option<u64> {
    units::number(text).filter(|n| *n > 0)
}

/// A `limit_req_zone`.
pub type RateZone = zones::Zone<Defined>;

/// Definition of a zone by `limit_req_zone`.
#[derive(Debug)]
pub struct Defined {
    key: Template,
    /// Rate in thousandths of a request per second.
    rate: u64,
    buckets: Counting,
}

/// State of a zone's keys.
#[derive(Debug)]
enum Counting {
    /// In this process.
    Local(Arc<Mutex<Buckets>>),
    /// In the shared store, too.
    Shared(Arc<SharedRate>),
}

/// Zones of a configuration under construction.
pub type RateZones = zones::Zones<Defined>;

/// Counts by zone name. They are kept across reloads.
static TABLES: Tables<Buckets> = Tables::new();

/// Returns the memory use of the zones.
pub fn usage() -> Vec<forebay_net::tls::sessions::Usage> {
    let mut all = TABLES.usage(Buckets::used);
    all.extend(forebay_core::limit::shared_rate::usage());
    all
}

/// Parameters of `limit_req_zone`.
struct ZoneParameters {
    name: Vec<u8>,
    size: usize,
    /// Rate in thousandths of a request per second.
    rate: u64,
    /// `sync`, with the error if there is no store.
    sync: Option<Error>,
    exact: bool,
}

impl ZoneParameters {
    fn read(d: &Directive, words: &[Word], cx: &Scope<'_>) -> Result<ZoneParameters, Error> {
        let mut p = ZoneParameters { name: Vec::new(), size: 0, rate: 1000, sync: None, exact: false };
        for w in words {
            let invalid = |what: &str| cx.error_at(d, w, format!("invalid {what} \"{}\"", w.as_str()));
            if let Some(zone) = zones::name_and_size(d, w, cx)? {
                (p.name, p.size) = zone;
            } else if let Some(text) = w.text.strip_prefix(b"rate=") {
                p.rate = parse_rate(text).ok_or_else(|| invalid("rate"))?;
            } else if w.text == b"sync" {
                let what = "\"sync\" needs a \"shared_store\" in the http block";
                p.sync = Some(cx.error_at(d, w, what));
            } else if w.text == b"exact" {
                p.exact = true;
            } else {
                return Err(invalid("parameter"));
            }
        }
        if p.exact && p.sync.is_none() {
            return Err(cx.error(d, "\"exact\" of \"limit_req_zone\" needs \"sync\""));
        }
        Ok(p)
    }
}

/// Reads `limit_req_zone`.
///
/// # Errors
/// In nginx's words.
pub fn zone(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let Some((key_word, options)) = d.args.split_first() else { return Err(cx.error(d, "no key")) };
    let key = cx.template(d, key_word)?;
    let ZoneParameters { name, size, rate, sync, exact } = ZoneParameters::read(d, options, cx)?;
    if name.is_empty() {
        return Err(cx.error(d, "\"limit_req_zone\" must have \"zone\" parameter"));
    }
    cx.share_zone(d, &name, (HttpContext::BLOCK, "limit_req"), Some(size as u64))?;
    let z =
        cx.tables.parts.get_mut::<RateZones>().find_or_promise(&name, HttpContext::BLOCK, Limited::Requests);
    let buckets = match sync {
        // A zone with the same key and size goes on with its counts after a reload, or each reload would let
        // a burst pass.
        None => Counting::Local(TABLES.get(&name, &key_word.text, size, || Buckets::new(size))),
        // The store may be defined further below in the block, so the error is kept until the end of it.
        Some(missing) => {
            let d = Definition { name: &name, key: &key_word.text, size, rate, exact };
            let shared = Arc::new(SharedRate::new(&d, Link::of_process()));
            cx.tables.shared_store.add(shared.clone(), missing);
            Counting::Shared(shared)
        }
    };
    if z.defined.set(Defined { key, rate, buckets }).is_err() {
        let text = String::from_utf8_lossy(&name).into_owned();
        let key = key_word.as_str();
        return Err(cx.error(d, format!("limit_req_zone \"{text}\" is already bound to key \"{key}\"")));
    }
    Ok(())
}

/// Reads `5r/s` or `30r/m`, in thousandths of a request per second.
fn parse_rate(text: &[u8]) -> Option<u64> {
    let (digits, per) = match (text.strip_suffix(b"r/s"), text.strip_suffix(b"r/m")) {
        (Some(n), _) => (n, 1),
        (_, Some(n)) => (n, 60),
        _ => (text, 1),
    };
    units::number(digits).filter(|n| *n > 0).map(|n| n.saturating_mul(1000) / per)
}

/// Outcome for a request.
static STATE: Slot<Counted> = Slot::new();

/// Outcome for a request; `None`: no limit has counted it.
#[derive(Debug, Default)]
struct Counted(Option<Outcome>);

impl Unused for Counted {
    const UNUSED: &'static Counted = &Counted(None);

    fn clear(&mut self) {
        self.0 = None;
    }

    /// The limits have counted the client's request already.
    fn for_request(&self, origin: Origin) -> Option<Counted> {
        matches!(origin, Origin::Sub { .. }).then_some(Counted(self.0))
    }
}

/// `limit_req`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    http_directives: &[("limit_req_zone", zone)],
    config: ConfigHooks {
        undefined: Some(|tables, _| {
            let zones = tables.parts.get::<RateZones>();
            zones.and_then(RateZones::undefined).map(|message| plain(&message)).into_iter().collect()
        }),
        ..ConfigHooks::NONE
    },
    variables: &[VARIABLES],
    hooks: &[PhaseHook::new(Phase::PreAccess, enabled, check)],
    ..Module::NONE
};

const VARIABLES: &[Row] = &[Row { name: "limit_req_status", get: RowSource::Get(status), settable: false }];

fn status(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, forebay_core::vars::VarError> {
    let Some(outcome) = STATE.of(r).0 else { return Ok(false) };
    out.extend_from_slice(outcome.text().as_bytes());
    Ok(true)
}

/// Returns `true` if a location has `limit_req`.
fn enabled(s: &LocationSettings) -> bool {
    !SETTINGS.of(s).limits.0.is_empty()
}

/// Counts a request and delays or refuses it. Runs once per request, even after internal redirects.
fn check(req: &mut Request) -> Step<'_> {
    if STATE.of(req).0.is_some() {
        return Verdict::Declined.into();
    }
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    // All zones are asked before the request waits, so that it waits for one round trip and not for one per
    // zone.
    if s.limits.0.iter().any(Limit::is_exact)
        && let Some(asked) = ask_all(req, s)
    {
        return Step::later(async move {
            let answers = gather(req, asked.answers, asked.until).await;
            decide(req, &answers).decide().await
        });
    }
    decide(req, &[])
}

/// Counts a request for which the store has answered, in the order of its limits.
fn decide<'r>(req: &'r mut Request, answers: &[Option<Answer>]) -> Step<'r> {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    let mut key = req.take_buf();
    let passed = pass_all(req, s, &mut key, answers);
    req.give_buf(key);
    match passed {
        Ok(delay) if delay.ms == 0 => Verdict::Declined.into(),
        Ok(delay) => wait(req, s, &delay),
        Err(refused) => refused.into(),
    }
}

/// Questions that the shared store has been asked.
struct Asked {
    /// Receivers of the answers, in the order of the limits; `None` where the store was not asked.
    answers: Vec<Option<Receiver<Answer>>>,
    /// Time at which the request goes on without the answers that are missing.
    until: Instant,
}

/// Asks the store for the zones in which requests wait for it. Returns `None` if there is nothing to wait for.
fn ask_all(req: &mut Request, s: &Settings) -> Option<Asked> {
    let now = req.thread.io.poller.now();
    let mut key = req.take_buf();
    let mut answers = Vec::new();
    for limit in s.limits.0.iter() {
        let asked = limit.zone.defined.get().and_then(|z| {
            let shared = z.shared().filter(|shared| shared.exact)?;
            // An error of the key is reported when the request is counted.
            if z.key_of(req, &mut key) == Ok(true) { shared.ask(&key, limit.burst, now) } else { None }
        });
        answers.push(asked);
    }
    req.give_buf(key);
    let longest = req.http().shared_store.settings().map(|s| s.timeout)?;
    let waits = answers.iter().any(Option::is_some);
    waits.then(|| Asked { answers, until: now + longest })
}

/// Counts the request in the zone of each limit. Returns the longest delay, or the verdict of a zone that refuses. `key` is a
/// buffer. `answers` has the answers of the store for the limits for which it was asked.
fn pass_all(
    req: &mut Request,
    s: &Settings,
    key: &mut Vec<u8>,
    answers: &[Option<Answer>],
) -> Result<Delayed, Verdict> {
    let now = req.thread.io.poller.now();
    let mut delay = Delayed::default();
    let mut uncounted = Uncounted { of: Vec::new(), now };
    for (i, limit) in s.limits.0.iter().enumerate() {
        let last = i + 1 == s.limits.0.len();
        let Some(z) = limit.zone.defined.get() else { continue };
        if !z.key_of(req, key).map_err(Verdict::Status)? {
            continue;
        }
        let answer = answers.get(i).and_then(Option::as_ref);
        let accounted = match (answer, z.shared()) {
            (Some(answer), Some(shared)) => shared.judge(answer),
            _ => z.account(key, limit.burst, now, last),
        };
        limit.count(accounted, s.dry_run);
        way::note(req, || {
            let step = trace::Step::new("limit").fact("zone", &limit.zone.name).fact("key", &*key);
            let result = if accounted.is_ok() { "counted" } else { "refused" };
            step.fact("rate", format!("{} r/1000 s", z.rate)).fact("result", result).about(&["limit_req"])
        });
        let excess = match accounted {
            Ok(excess) => excess,
            Err(excess) => {
                uncounted.give_back();
                return Err(refuse(req, s, excess, &limit.zone.name));
            }
        };
        delay.take(limit, z.rate, excess);
        if !last {
            uncounted.of.push((z, key.clone(), limit.burst, answer.is_some()));
        }
        // A limit without a value for its key leaves the variable unset, so only a limit that counts gets
        // here.
        STATE.of_mut(req).0 = Some(Outcome::Passed);
    }
    uncounted.count();
    Ok(delay)
}

/// Zones that have let a request pass but not counted it, with its keys and their bursts. A refused request must not count in
/// any zone. Only the last zone counts at once; the zones before it count after all of them have let the request pass. A zone
/// for whose answer the request waited has counted it already, which the flag says.
struct Uncounted<'z> {
    of: Vec<(&'z Defined, Vec<u8>, u64, bool)>,
    now: Instant,
}

impl Uncounted<'_> {
    fn count(self) {
        for (z, key, burst, counted) in self.of {
            if !counted {
                // The request has been let in already, so a result that another thread has changed meanwhile
                // does not count.
                let _ = z.account(&key, burst, self.now, true);
            }
        }
    }

    fn give_back(self) {
        for (z, key, _, counted) in self.of {
            if let (true, Some(shared)) = (counted, z.shared()) {
                shared.give_back(&key, self.now);
            }
        }
    }
}

impl Limit {
    /// Returns whether requests wait for the store.
    fn is_exact(&self) -> bool {
        self.zone.defined.get().and_then(Defined::shared).is_some_and(|shared| shared.exact)
    }

    /// Counts the outcome of a request with this excess, in thousandths of a request.
    fn count(&self, accounted: Result<u64, u64>, dry_run: bool) {
        self.zone.outcomes.count(match accounted {
            Err(_) => Outcome::rejected(dry_run),
            Ok(excess) if excess > self.delay => Outcome::delayed(dry_run),
            Ok(_) => Outcome::Passed,
        });
    }
}

/// Longest key, bytes. Longer ones are logged and not limited.
const MAX_KEY: usize = 65535;

impl Defined {
    /// Returns the zone in the shared store.
    fn shared(&self) -> Option<&Arc<SharedRate>> {
        match &self.buckets {
            Counting::Local(_) => None,
            Counting::Shared(shared) => Some(shared),
        }
    }

    /// Accounts for a request with a key. Returns its excess in thousandths of a request, as an error if that is too much. Counts
    /// the request with `count` only.
    fn account(&self, key: &[u8], burst: u64, now: Instant, count: bool) -> Result<u64, u64> {
        match &self.buckets {
            Counting::Local(buckets) => lock(buckets).account(key, self.rate, burst, now, count),
            Counting::Shared(shared) => shared.account(key, burst, now, count),
        }
    }

    /// Evaluates the key of a request. Returns whether the request is limited by it.
    ///
    /// # Errors
    /// The status, if the key cannot be evaluated.
    fn key_of(&self, req: &mut Request, key: &mut Vec<u8>) -> Result<bool, u16> {
        key.clear();
        self.key.eval(req, key).map_err(|_| 500u16)?;
        if key.len() > MAX_KEY {
            let text = format!("the value of the key is more than {MAX_KEY} bytes: \"{} bytes\"", key.len());
            req.log(Level::Error, &text);
            return Ok(false);
        }
        // Requests with an empty key are not limited, so that a `map` can exempt some of them.
        Ok(!key.is_empty())
    }
}

/// The longest delay among the zones.
#[derive(Default)]
struct Delayed {
    ms: u64,
    excess: u64,
    zone: Vec<u8>,
}

impl Delayed {
    /// Takes the delay of a zone for this excess, if it is the longest so far. `rate` is in thousandths per second.
    fn take(&mut self, limit: &Limit, rate: u64, excess: u64) {
        let ms = excess.saturating_sub(limit.delay).saturating_mul(1000) / rate.max(1);
        if ms > self.ms {
            *self = Delayed { ms, excess, zone: limit.zone.name.clone() };
        }
    }
}

fn line(what: &str, excess: u64, zone: &[u8], dry: bool) -> String {
    format!(
        "{what} requests{}, excess: {}.{:03} by zone \"{}\"",
        if dry { ", dry run" } else { "" },
        excess / 1000,
        excess % 1000,
        String::from_utf8_lossy(zone)
    )
}

fn refuse(req: &mut Request, s: &Settings, excess: u64, zone: &[u8]) -> Verdict {
    req.log(s.log_level.level(), &line("limiting", excess, zone, s.dry_run));
    if s.dry_run {
        STATE.of_mut(req).0 = Some(Outcome::RejectedDryRun);
        return Verdict::Declined;
    }
    STATE.of_mut(req).0 = Some(Outcome::Rejected);
    Verdict::Status(s.status.0)
}

fn wait<'r>(req: &'r mut Request, s: &Settings, d: &Delayed) -> Step<'r> {
    let level = match s.log_level {
        // As in nginx, a delay is logged one level below a refusal.
        LogLevel::Info | LogLevel::Notice => Level::Info,
        LogLevel::Warn => Level::Notice,
        LogLevel::Error => Level::Warn,
    };
    // The messages of nginx about delays and about refusals differ in these words.
    let text = line("delaying", d.excess, &d.zone, s.dry_run).replacen("requests", "request", 1).replacen(
        " by zone",
        ", by zone",
        1,
    );
    req.log(level, &text);
    if s.dry_run {
        STATE.of_mut(req).0 = Some(Outcome::DelayedDryRun);
        return Verdict::Declined.into();
    }
    STATE.of_mut(req).0 = Some(Outcome::Delayed);
    let delay = Duration::from_millis(d.ms);
    Step::later(async move {
        // The pause ends early where the client goes away, so that its request does not hold memory until the
        // delay is over.
        if pause(req, delay).await.is_ok() {
            return Verdict::Declined;
        }
        req.log(Level::Info, "client prematurely closed connection");
        Verdict::Status(499)
    })
}
