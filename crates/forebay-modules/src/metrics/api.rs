//! `api`: the counters as JSON, with the paths and field names of NGINX Plus. What can be changed by it is in `super::keyvals`. Paths
//! that NGINX Plus does not have are in `super::details`.

use super::HISTORY;
use super::keyvals::{self, Place};
use super::{Block, Totals, details, time, total};
use crate::limit_req;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::limit::concurrency;
use forebay_core::limit::outcomes::{Limited, Outcomes};
use forebay_core::status_zone::sessions::{CLASSES, SessionTotals};
use forebay_core::status_zone::{ZoneKind, zones};
use forebay_core::upstream::group::Group;
use forebay_core::upstream::peer::{PeerStatus, State, ms};
use forebay_http::request::Method;
use forebay_net::resolver::Stats;
use forebay_net::tls::sessions;
use forebay_net::tls::sessions::Usage;
use forebay_proxy::cache::counts;
use forebay_server::config::Scope;
use forebay_server::config::http::LocationBuild;
use forebay_server::counting::{self, LOCATION, SERVER, life, now_ms};
use forebay_server::module::{Content, Handler, Needs, Step, Verdict};
use forebay_server::modules::vars::request_id;
use forebay_server::request::Request;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::time::Duration;

/// Versions of NGINX Plus's interface that are answered, all alike.
const VERSIONS: std::ops::RangeInclusive<u64> = 1..=9;

/// Reads `api`.
///
/// # Errors
/// `invalid parameter "..."`.
pub(super) fn directive(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    let writes = match d.args.first() {
        None => Writes::Refused,
        Some(w) if w.text == b"write=off" => Writes::Refused,
        Some(w) if w.text == b"write=on" => Writes::Allowed,
        Some(w) => return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()))),
    };
    l.content = Content::of(writes);
    Ok(())
}

/// `write` of `api`: whether something can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    Refused,
    Allowed,
}

impl Handler for Writes {
    fn handle<'r>(&'r self, req: &'r mut Request) -> Step<'r> {
        let path = below(req);
        match req.method {
            Method::Get | Method::Head => match Place::find(&path) {
                Some(place) => {
                    let read = place.read(req).map(Reply::Value);
                    reply(req, read).into()
                }
                None => answer(req, &path).into(),
            },
            Method::Post | Method::Patch | Method::Delete if *self == Writes::Allowed => {
                Step::later(async move { keyvals::write(req, &path).await })
            }
            _ => reply(req, Err(METHOD_DISABLED.into())).into(),
        }
    }

    fn needs(&self) -> Needs {
        HISTORY
    }
}

/// Returns the part of the path after the location, without slashes at its ends.
pub(super) fn below(req: &Request) -> String {
    let http = req.http();
    let l = http.location(req);
    let rest = req.uri.path.strip_prefix(l.kind.path(&l.name)).unwrap_or(&req.uri.path);
    String::from_utf8_lossy(rest).trim_matches('/').to_owned()
}

/// Answers a request that reads what this file has.
pub(super) fn answer(req: &mut Request, path: &str) -> Verdict {
    let made = match req.method {
        Method::Get | Method::Head => find(req, path).map(|value| Reply::Value(select(req, value))),
        _ => Err(METHOD_DISABLED),
    };
    reply(req, made.map_err(Failure::from))
}

/// Answer to a request that has succeeded.
pub(super) enum Reply {
    /// 200 with a value.
    Value(Value),
    /// A status alone.
    Empty(u16),
}

/// Answer to a request that has failed.
pub(super) struct Failure {
    status: u16,
    text: Cow<'static, str>,
    code: &'static str,
}

impl Failure {
    pub(super) fn new(status: u16, text: impl Into<Cow<'static, str>>, code: &'static str) -> Failure {
        Failure { status, text: text.into(), code }
    }
}

impl From<ApiError> for Failure {
    fn from((status, text, code): ApiError) -> Failure {
        Failure::new(status, text, code)
    }
}

/// Makes the response.
pub(super) fn reply(req: &mut Request, made: Result<Reply, Failure>) -> Verdict {
    req.resp.fields.push(b"Cache-Control", b"no-store");
    let (status, value) = match made {
        Ok(Reply::Value(value)) => (200, value),
        Ok(Reply::Empty(status)) => {
            req.resp.status = status;
            if status != 204 {
                req.resp.content_length = Some(0);
            }
            return Verdict::Done;
        }
        Err(failure) => (failure.status, error(req, &failure)),
    };
    req.resp.status = status;
    req.resp.content_type = b"application/json".to_vec();
    // Takes half the time of `Value::to_string`, which formats piece by piece.
    req.resp.set_body(serde_json::to_vec(&value).expect("all keys of a value are text"));
    Verdict::Done
}

/// Returns the error object of a failure.
fn error(req: &mut Request, failure: &Failure) -> Value {
    let mut id = Vec::new();
    // A random number cannot fail to be evaluated.
    let _ = request_id(req, &mut id);
    json!({
        "error": {"status": failure.status, "text": failure.text, "code": failure.code},
        "request_id": text(&id),
        "href": "https://nginx.org/en/docs/http/ngx_http_api_module.html",
    })
}

/// Applies `?fields=a,b`: keeps only these members of an object, or of each object in it.
fn select(req: &Request, value: Value) -> Value {
    let args = String::from_utf8_lossy(&req.uri.args).into_owned();
    let Some(wanted) = args.split('&').find_map(|a| a.strip_prefix("fields=")) else { return value };
    let wanted: Vec<&str> = wanted.split(',').filter(|w| !w.is_empty()).collect();
    let Value::Object(all) = value else { return value };
    let direct = all.keys().any(|k| wanted.contains(&k.as_str()));
    let pick = |m: Map<String, Value>| m.into_iter().filter(|(k, _)| wanted.contains(&k.as_str())).collect();
    if direct || wanted.is_empty() {
        return Value::Object(pick(all));
    }
    let each = all.into_iter().map(|(k, v)| match v {
        Value::Object(m) => (k, Value::Object(pick(m))),
        v => (k, v),
    });
    Value::Object(each.collect())
}

/// Status, text and code of an error.
pub(super) type ApiError = (u16, &'static str, &'static str);
pub(super) const NOT_FOUND: ApiError = (404, "path not found", "PathNotFound");
pub(super) const METHOD_DISABLED: ApiError = (405, "method disabled", "MethodDisabled");

/// Returns `true` for a version that is answered.
pub(super) fn is_version(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|v| VERSIONS.contains(&v))
}

fn find(req: &Request, path: &str) -> Result<Value, ApiError> {
    if path.is_empty() {
        return Ok(VERSIONS.collect::<Vec<_>>().into());
    }
    let mut parts = path.split('/');
    if !parts.next().is_some_and(is_version) {
        return Err((404, "unknown version", "UnknownVersion"));
    }
    let parts: Vec<&str> = parts.collect();
    let value = |value: Value| if parts.len() > 1 { Err(NOT_FOUND) } else { Ok(value) };
    match parts.split_first() {
        None => Ok(json!([
            "nginx",
            "processes",
            "connections",
            "slabs",
            "ssl",
            "http",
            "stream",
            "resolvers",
            "workers",
            "acme",
            "forebay"
        ])),
        Some((&"nginx", _)) => value(program(req)),
        Some((&"processes", _)) => value(processes()),
        Some((&"connections", _)) => value(connections(counting::totals(req))),
        Some((&"workers", _)) => value(workers(req)),
        Some((&"acme", _)) => value(super::acme::value()),
        Some((&"ssl", _)) => value(ssl(req)),
        Some((&"forebay", rest)) => details::find(req, rest),
        Some((&"slabs", rest)) => member(slabs(req), rest),
        Some((&"resolvers", rest)) => member(resolvers(), rest),
        Some((&"http", ["requests"])) => Ok(requests(req)),
        Some((&"http", rest)) => block(req, Block::Http, rest),
        Some((&"stream", rest)) => block(req, Block::Stream, rest),
        _ => Err(NOT_FOUND),
    }
}

/// Returns a collection, or one member of it.
fn member(all: Map<String, Value>, path: &[&str]) -> Result<Value, ApiError> {
    match path {
        [] => Ok(Value::Object(all)),
        [name] => all.get(*name).cloned().ok_or(NOT_FOUND),
        _ => Err(NOT_FOUND),
    }
}

/// Zones that have a size, in pages as nginx counts them: the pages in use, and the free ones.
pub(super) fn slabs(req: &Request) -> Map<String, Value> {
    // Zones have no pages here, so their sizes are given in pages of nginx, which its API reports.
    const PAGE: usize = 4096;
    let caches = forebay_proxy::cache::all(&req.conf.http).iter().map(|c| {
        let (used, size) = c.index.room();
        Usage { name: c.name.clone(), used, size }
    });
    let zones = caches.chain(limit_req::usage()).chain(concurrency::usage()).chain(sessions::usage());
    let zones = zones.chain(forebay_core::keyval::usage());
    let each = zones.map(|z| {
        let used = z.used.div_ceil(PAGE);
        let free = (z.size / PAGE).saturating_sub(used);
        (text(&z.name), json!({"pages": {"used": used, "free": free}, "slots": {}}))
    });
    each.collect()
}

pub(super) fn resolvers() -> Map<String, Value> {
    let each = Stats::zones().into_iter().map(|(name, s)| {
        let [by_name, srv, addr] = s.requests();
        let responses: Map<_, _> = s.responses().map(|(what, n)| (what.to_owned(), n.into())).collect();
        let requests = json!({"name": by_name, "srv": srv, "addr": addr});
        (text(&name), json!({"requests": requests, "responses": responses}))
    });
    each.collect()
}

/// Reads a collection.
type Collection = fn(&Request) -> Map<String, Value>;

/// Collections below `http`, with their readers.
const HTTP: &[(&str, Collection)] = &[
    ("server_zones", |req| totals(SERVER, super::servers(&req.http()))),
    ("location_zones", |_| {
        totals(LOCATION, zones(LOCATION).iter().map(|z| (z.name.clone(), Totals::of(z))).collect())
    }),
    ("caches", caches),
    ("limit_conns", |_| limits(Block::Http, Limited::Connections)),
    ("limit_reqs", |_| limits(Block::Http, Limited::Requests)),
    ("upstreams", |req| upstreams(req, Block::Http)),
];

/// Collections below `stream`, with their readers.
const STREAM: &[(&str, Collection)] = &[
    ("server_zones", |_| session_zones()),
    ("limit_conns", |_| limits(Block::Stream, Limited::Connections)),
    ("upstreams", |req| upstreams(req, Block::Stream)),
];

/// Reads all collections of a block.
pub(super) fn collections(req: &Request, block: Block) -> Value {
    let all = match block {
        Block::Http => HTTP,
        Block::Stream => STREAM,
    };
    all.iter()
        .map(|(name, read)| ((*name).to_owned(), Value::Object(read(req))))
        .collect::<Map<_, _>>()
        .into()
}

/// Returns the names below a block, a collection, or one member of it.
fn block(req: &Request, block: Block, path: &[&str]) -> Result<Value, ApiError> {
    let (single, collections) = match block {
        Block::Http => (Some("requests"), HTTP),
        Block::Stream => (None, STREAM),
    };
    let Some((what, rest)) = path.split_first() else {
        let names = collections.iter().map(|(name, _)| *name).chain(["keyvals"]);
        let names = single.into_iter().chain(names);
        return Ok(names.collect::<Vec<_>>().into());
    };
    let (_, read) = collections.iter().find(|(name, _)| name == what).ok_or(NOT_FOUND)?;
    match rest {
        [name, "servers", rest @ ..] if *what == "upstreams" => server(req, block, name, rest),
        _ => member(read(req), rest),
    }
}

pub(super) fn processes() -> Value {
    json!({"respawned": life().respawned})
}

/// Returns the TLS handshakes with clients.
pub(super) fn ssl(req: &Request) -> Value {
    json!({
        "handshakes": total(req, |c| &c.tls12).wrapping_add(total(req, |c| &c.tls13)),
        "handshakes_failed": total(req, |c| &c.tls_failed),
        "session_reuses": total(req, |c| &c.tls_resumed),
    })
}

pub(super) fn requests(req: &Request) -> Value {
    let [_, _, _, requests, reading, writing, _] = counting::totals(req);
    json!({"total": requests, "current": reading.wrapping_add(writing)})
}

/// Returns the configured servers of a group, or one of them.
fn server(req: &Request, block: Block, group: &str, path: &[&str]) -> Result<Value, ApiError> {
    let mut groups = req.conf.config.upstreams(block.name());
    let group = groups.find(|g| g.name == group.as_bytes()).ok_or(NOT_FOUND)?;
    let servers = servers(block, group);
    match path {
        [] => Ok(servers.into()),
        [id] => {
            let at = id.parse::<usize>().map_err(|_| (400, "invalid server ID", "UpstreamBadServerId"))?;
            let server = servers.into_iter().nth(at);
            server.ok_or((404, "server with the given ID does not exist", "UpstreamServerNotFound"))
        }
        _ => Err(NOT_FOUND),
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn program(req: &Request) -> Value {
    let address = req.local_address().map(|a| a.ip().to_string()).unwrap_or_default();
    let (generation, loaded) = super::generation();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "build": "forebay",
        "address": address,
        "generation": generation,
        "load_timestamp": time(loaded),
        "timestamp": time(now_ms()),
        "pid": req.thread.pid,
        "ppid": rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get()),
        "threads": req.thread.all_counters.len(),
        "panics": total(req, |c| &c.panics),
        "long_turns": total(req, |c| &c.long_turns),
        "log_lines_lost": total(req, |c| &c.log_lines_lost),
        "shared_store": super::shared_store::state(),
    })
}

pub(super) fn connections([active, accepted, handled, _, _, _, waiting]: [u64; 7]) -> Value {
    json!({
        "accepted": accepted,
        "dropped": accepted.saturating_sub(handled),
        "active": active.saturating_sub(waiting),
        "idle": waiting,
    })
}

/// Lists the threads of the worker process, each of which corresponds to a worker process of nginx.
pub(super) fn workers(req: &Request) -> Value {
    let each = req.thread.all_counters.iter().enumerate().map(|(n, c)| {
        let busy = c.reading.get().wrapping_add(c.writing.get());
        let (accepted, handled, active) = (c.accepted.get(), c.handled.get(), c.active.get());
        // The counters of a thread are read one after the other while it runs, so a difference may be below
        // zero for a moment.
        let idle = active.saturating_sub(busy.wrapping_add(c.sessions.get()));
        let counts = [active, accepted, handled, 0, 0, 0, idle];
        json!({
            "id": n,
            "pid": req.thread.pid,
            "connections": connections(counts),
            "http": {"requests": {"total": c.requests.get(), "current": busy}},
        })
    });
    Value::Array(each.collect())
}

fn responses(classes: [u64; 5], codes: Option<&[(u16, u64)]>) -> Value {
    let mut all = Map::new();
    for (class, n) in (1..).zip(classes) {
        all.insert(format!("{class}xx"), n.into());
    }
    if let Some(codes) = codes {
        let codes: Map<_, _> = codes.iter().map(|(c, n)| (c.to_string(), (*n).into())).collect();
        all.insert("codes".into(), codes.into());
    }
    all.insert("total".into(), classes.iter().sum::<u64>().into());
    all.into()
}

fn totals(of: ZoneKind, all: Vec<(Vec<u8>, Totals)>) -> Map<String, Value> {
    let each = all.into_iter().map(|(name, t)| {
        // The zone of a name does not count single statuses, so the member is left out.
        let codes = t.classes_only.is_none().then_some(t.codes.as_slice());
        let mut value = json!({
            "requests": t.requests,
            "responses": responses(t.classes(), codes),
            "discarded": t.discarded,
            "received": t.received,
            "sent": t.sent,
            // Beyond NGINX Plus: the mean, in milliseconds.
            "request_time": t.times.mean().as_secs_f64() * 1000.0,
        });
        if let (SERVER, None, Value::Object(m)) = (of, t.classes_only, &mut value) {
            m.insert("processing".into(), t.processing.into());
        }
        (text(&name), value)
    });
    each.collect()
}

fn caches(req: &Request) -> Map<String, Value> {
    let each = forebay_proxy::cache::all(&req.conf.http).iter().map(|c| {
        let mut value = Map::new();
        value.insert("size".into(), c.index.size().into());
        if let Some(max) = c.max_size {
            value.insert("max_size".into(), max.into());
        }
        value.insert("cold".into(), (!c.index.loaded()).into());
        value.insert("entries".into(), c.index.count().into());
        for (status, (responses, bytes)) in counts::CACHE_STATUSES.iter().zip(counts::cache_totals(&c.counts))
        {
            value.insert((*status).into(), json!({"responses": responses, "bytes": bytes}));
        }
        (text(&c.name), Value::Object(value))
    });
    each.collect()
}

/// Zones of servers of stream.
fn session_zones() -> Map<String, Value> {
    let each = SessionTotals::all().into_iter().map(|(zone, t)| {
        let mut sessions: Map<_, _> =
            CLASSES.iter().zip(t.sessions).map(|(class, n)| ((*class).to_owned(), n.into())).collect();
        sessions.insert("total".into(), t.sessions.iter().sum::<u64>().into());
        let value = json!({
            "processing": t.processing,
            "connections": t.connections,
            "sessions": sessions,
            "discarded": t.discarded,
            "received": t.received,
            "sent": t.sent,
        });
        (text(&zone.name), value)
    });
    each.collect()
}

fn limits(block: Block, limited: Limited) -> Map<String, Value> {
    let each = Outcomes::all(block.name(), limited).into_iter().map(|l| {
        let outcomes: Map<_, _> = l.counts().map(|(o, n)| (o.to_owned(), n.into())).collect();
        (text(&l.zone), Value::Object(outcomes))
    });
    each.collect()
}

fn upstreams(req: &Request, block: Block) -> Map<String, Value> {
    let now = req.thread.io.poller.now();
    let each = req.conf.config.upstreams(block.name()).map(|g| {
        let peers: Vec<Value> = g.status(now).iter().enumerate().map(|(n, p)| peer(block, n, p)).collect();
        let mut group = json!({"peers": peers, "zombies": 0, "zone": text(&g.name)});
        if block == Block::Http {
            group["keepalive"] = g.idle.count().into();
        }
        (text(&g.name), group)
    });
    each.collect()
}

/// Lists the servers of a group as they are configured.
fn servers(block: Block, group: &Group) -> Vec<Value> {
    let mut id = 0..;
    group.settings(|p| {
        let mut value = json!({
            "id": id.next().unwrap_or(0),
            "server": text(&p.name),
            "weight": p.weight,
            "max_conns": p.max_conns,
            "max_fails": p.max_fails,
            "fail_timeout": format!("{}s", p.fail_timeout.as_secs()),
            "slow_start": format!("{}s", p.slow_start.as_secs()),
            "backup": p.backup,
            "down": p.down,
        });
        if block == Block::Http {
            value["route"] = if p.routed { text(&p.sid) } else { String::new() }.into();
            value["drain"] = p.drain.into();
        }
        value
    })
}

/// Returns the time that is `d` ago.
fn ago(d: Duration) -> Value {
    time(now_ms().saturating_sub_unsigned(ms(d))).into()
}

fn peer(block: Block, number: usize, p: &PeerStatus) -> Value {
    let mut value = json!({
        "id": number,
        "server": text(&p.name),
        "name": text(&p.server),
        "backup": p.backup,
        "weight": p.weight,
        "state": match p.state {
            State::Up => "up",
            State::Down => "down",
            State::Unavail => "unavail",
            State::Draining => "draining",
            State::Unhealthy => "unhealthy",
            State::Checking => "checking",
        },
        "active": p.active,
        "sent": p.sent,
        "received": p.received,
        "fails": p.fails,
        "unavail": p.unavail,
        "downtime": p.downtime.saturating_add(p.down_for.map_or(0, ms)),
        "health_checks": {"checks": p.checks, "fails": p.check_fails, "unhealthy": p.unhealthy},
    });
    let optional = [
        ("selected", p.selected_ago.map(ago)),
        ("downstart", p.down_for.map(ago)),
        (
            "last_failure",
            p.last_failure.as_ref().map(|(since, why)| json!({"time": ago(*since), "reason": **why})),
        ),
        ("max_conns", Some(p.max_conns).filter(|n| *n > 0).map(Value::from)),
        ("response_time", p.response_time.map(|t| ms(t).into())),
    ];
    for (name, v) in optional.into_iter().chain(own(block, p)) {
        if let Some(v) = v {
            value[name] = v;
        }
    }
    if let Some(passed) = p.last_check_passed {
        value["health_checks"]["last_passed"] = passed.into();
    }
    value
}

/// Returns the members of a peer that only this block has.
fn own(block: Block, p: &PeerStatus) -> [(&'static str, Option<Value>); 3] {
    let first = p.header_time.map(|t| ms(t).into());
    match block {
        Block::Http => [
            ("requests", Some(p.requests.into())),
            ("responses", Some(responses(p.responses, None))),
            ("header_time", first),
        ],
        Block::Stream => [
            ("connections", Some(p.requests.into())),
            ("connect_time", p.connect_time.map(|t| ms(t).into())),
            ("first_byte_time", first),
        ],
    }
}
