//! Paths of the API below `forebay`, which NGINX Plus does not have: history, latencies, protocols, reloads, certificates,
//! warnings, and all that the dashboard shows in one answer.

use super::api::{self, ApiError, NOT_FOUND};
use super::history::{COLUMNS, Excerpt, HEAT_ROWS, MOST_ROWS, Point, QUANTILES, Range, excerpt, heat_start};
use super::{Block, facts, quic, time, total, usage};
use forebay_core::config::Listener;
use forebay_core::latency::{BUCKETS, quantile};
use forebay_server::counting::{self, life};
use forebay_server::request::Request;
use serde_json::{Map, Value, json};

/// Reads a value.
type Read = fn(&Request) -> Result<Value, ApiError>;

/// Names below `forebay`, with their readers.
const PATHS: &[(&str, Read)] = &[
    ("overview", |req| Ok(overview(req))),
    ("history", history),
    ("latency", |req| Ok(latency(req))),
    ("tls", |req| Ok(tls(req))),
    ("protocols", |req| Ok(protocols(req))),
    ("quic", |req| Ok(quic::value(req))),
    ("process", |req| Ok(process(req))),
    ("reloads", |_| Ok(facts::reloads())),
    ("certificates", |_| Ok(facts::certificates())),
    ("warnings", |_| Ok(facts::warnings())),
];

/// Returns the value of a path below `forebay`.
pub(super) fn find(req: &Request, path: &[&str]) -> Result<Value, ApiError> {
    match path {
        [] => Ok(PATHS.iter().map(|(name, _)| *name).collect::<Vec<_>>().into()),
        [name] => {
            let (_, read) = PATHS.iter().find(|(known, _)| known == name).ok_or(NOT_FOUND)?;
            read(req)
        }
        _ => Err(NOT_FOUND),
    }
}

/// Returns the content of the dashboard, except the history.
fn overview(req: &Request) -> Value {
    json!({
        "nginx": api::program(req),
        "started": time(life().started),
        "processes": api::processes(),
        "process": process(req),
        "connections": api::connections(counting::totals(req)),
        "requests": api::requests(req),
        "evicted": total(req, |c| &c.evicted),
        "workers": api::workers(req),
        "latency": latency(req),
        "tls": tls(req),
        "protocols": protocols(req),
        "quic": quic::value(req),
        "http": api::collections(req, Block::Http),
        "stream": api::collections(req, Block::Stream),
        "slabs": api::slabs(req),
        "resolvers": api::resolvers(),
        "reloads": facts::reloads(),
        "certificates": facts::certificates(),
        "warnings": facts::warnings(),
    })
}

/// Returns the percentiles of the times of all requests since the start, milliseconds.
fn latency(req: &Request) -> Value {
    let mut counts = [0; BUCKETS];
    req.thread.all_counters.iter().for_each(|c| c.times.add_to(&mut counts));
    let mut value: Map<String, Value> = QUANTILES
        .iter()
        .map(|(name, share)| {
            ((*name).to_owned(), quantile(&counts, *share).map(|micros| ms(micros as f32)).into())
        })
        .collect();
    value.insert("count".into(), counts.iter().fold(0, |sum: u64, n| sum.wrapping_add(*n)).into());
    value.into()
}

/// Largest number of listening addresses that are named.
const MOST_ADDRESSES: usize = 50;

/// Returns what the process takes of the machine, and where it listens.
fn process(req: &Request) -> Value {
    let listeners = &req.conf.config.listeners;
    let address = |l: &Listener| {
        let options = [(l.addr.is_udp(), " udp"), (l.default.options.ssl, " ssl")];
        let options = options.into_iter().filter(|(is_set, _)| *is_set);
        options.fold(l.addr.to_string(), |text, (_, option)| text + option)
    };
    let threads = req.thread.all_counters.len();
    json!({
        "cpu_us": usage::cpu_micros(),
        "memory": usage::memory(),
        "connections_max": req.thread.max_connections.saturating_mul(threads),
        "listening": listeners.iter().take(MOST_ADDRESSES).map(address).collect::<Vec<_>>(),
        "listening_left_out": listeners.len().saturating_sub(MOST_ADDRESSES),
    })
}

fn tls(req: &Request) -> Value {
    json!({
        "tls12": total(req, |c| &c.tls12),
        "tls13": total(req, |c| &c.tls13),
        "resumed": total(req, |c| &c.tls_resumed),
        "failed": total(req, |c| &c.tls_failed),
    })
}

/// Returns the requests by version of HTTP.
fn protocols(req: &Request) -> Value {
    let (http2, http3) = (total(req, |c| &c.http2), total(req, |c| &c.http3));
    // The counters of threads are read while they run, so the parts may exceed the sum for a moment.
    let http1 = total(req, |c| &c.requests).saturating_sub(http2 + http3);
    json!({"http1": http1, "http2": http2, "http3": http3})
}

/// Returns the value of an argument of the request.
fn argument(req: &Request, name: &str) -> Option<String> {
    let args = String::from_utf8_lossy(&req.uri.args);
    args.split('&').find_map(|a| a.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

/// Returns the samples of `?range=`, which is a minute by default, that follow the sample with the number
/// `since=`.
fn history(req: &Request) -> Result<Value, ApiError> {
    let name = argument(req, "range").unwrap_or_else(|| Range::Minute.name().to_owned());
    let range = Range::ALL.into_iter().find(|range| range.name() == name);
    let range = range.ok_or((400, "range is minute, hour or day", "InvalidRange"))?;
    let after = argument(req, "since").and_then(|n| n.parse().ok()).unwrap_or(0);
    let shown = excerpt(range, after);
    Ok(json!({
        "range": range.name(),
        "step": range.step(),
        "length": range.length(),
        "since": shown.since,
        "last": shown.last,
        "samples": shown.points.len(),
        "values": values(&shown.points),
        "latency": latencies(&shown.points),
        "heat": heat(&shown.points),
        "rows": rows(&shown),
        "rows_most": MOST_ROWS,
        "rows_left_out": shown.left_out,
    }))
}

/// Returns a number with at most two decimals, as short as JSON allows.
fn short(value: f32) -> Value {
    let rounded = (f64::from(value) * 100.0).round() / 100.0;
    // A whole number takes two characters less than a fraction, in thousands of values.
    if rounded.fract() == 0.0 { (rounded as u64).into() } else { rounded.into() }
}

/// Returns microseconds as milliseconds, to the microsecond.
fn ms(micros: f32) -> f64 {
    f64::from(micros).round() / 1000.0
}

fn values(points: &[Point]) -> Value {
    let column = |n: usize| points.iter().map(move |p| p.values.get(n).copied().map_or(Value::Null, short));
    let named = COLUMNS.iter().enumerate();
    named.map(|(n, (name, _))| ((*name).to_owned(), column(n).collect())).collect::<Map<_, _>>().into()
}

fn latencies(points: &[Point]) -> Value {
    let column = |n: usize| points.iter().map(move |p| p.quantiles.get(n).copied().flatten().map(ms));
    let named = QUANTILES.iter().enumerate();
    named.map(|(n, (name, _))| ((*name).to_owned(), column(n).collect())).collect::<Map<_, _>>().into()
}

/// Returns the heat map: for each sample the first row with requests, and the counts from there to the last one.
fn heat(points: &[Point]) -> Value {
    let bounds: Vec<f64> = (0..HEAT_ROWS).map(|row| heat_start(row) as f64 / 1000.0).collect();
    let sample = |p: &Point| -> Value {
        let first = p.heat.iter().position(|n| *n > 0);
        let last = p.heat.iter().rposition(|n| *n > 0);
        let (Some(first), Some(last)) = (first, last) else { return json!([]) };
        let counts = p.heat.get(first..=last).unwrap_or_default().iter().map(|n| u64::from(*n));
        // Most rows of a sample are empty, so only the part with requests is sent.
        std::iter::once(first as u64).chain(counts).collect::<Vec<_>>().into()
    };
    json!({"bounds": bounds, "samples": points.iter().map(sample).collect::<Vec<_>>()})
}

/// Returns the rows by their collections, and peers by their groups as well. Each row has two lists.
fn rows(shown: &Excerpt) -> Value {
    let mut all = Map::new();
    for (key, samples) in &shown.rows {
        let list = |n: usize| samples.iter().map(|s| short(s[n])).collect::<Vec<_>>();
        let place = match key.group.as_str() {
            "" => object(&mut all, key.kind),
            group => object(&mut all, key.kind).and_then(|kind| object(kind, group)),
        };
        // A configuration may have a group without a name. Its peers must not replace rows of other
        // collections.
        if let Some(place) = place {
            place.insert(key.name.clone(), json!([list(0), list(1)]));
        }
    }
    all.into()
}

/// Returns the object with a name in another object, or makes it. Returns `None` if the name has a value that
/// is no object.
fn object<'v>(all: &'v mut Map<String, Value>, name: &str) -> Option<&'v mut Map<String, Value>> {
    all.entry(name).or_insert_with(|| Map::new().into()).as_object_mut()
}

#[cfg(test)]
mod tests {
    use super::super::history::Key;
    use super::*;

    #[test]
    fn numbers_are_short() {
        let text = |v: f32| short(v).to_string();
        assert_eq!((text(3.0), text(0.126), text(1e9)), ("3".into(), "0.13".into(), "1000000000".into()));
        assert_eq!(ms(1234.4), 1.234);
    }

    #[test]
    fn the_heat_map_begins_with_the_first_row_that_has_requests() {
        let mut point = Point { values: [0.0; COLUMNS.len()], quantiles: [None; 4], heat: [0; HEAT_ROWS] };
        assert_eq!(heat(&[point.clone()])["samples"], json!([[]]));
        (point.heat[3], point.heat[5]) = (7, 9);
        let value = heat(&[point]);
        assert_eq!(value["samples"], json!([[3, 7, 0, 9]]));
        assert_eq!(value["bounds"].as_array().map(Vec::len), Some(HEAT_ROWS));
    }

    /// A group may have an empty name, and a peer of it the name of another group.
    #[test]
    fn rows_of_equal_names_do_not_collide() {
        let row = |kind, group: &str, name: &str| {
            (Key { kind, group: group.to_owned(), name: name.to_owned() }, vec![[1.0, 2.0]])
        };
        let peers = "http/upstreams";
        for turned in [false, true] {
            let mut all = vec![row(peers, "", "a:1"), row(peers, "a:1", "b"), row("workers", "", "0")];
            if turned {
                all.reverse();
            }
            let shown = Excerpt { since: 0, last: 1, points: Vec::new(), rows: all, left_out: 0 };
            assert_eq!(rows(&shown)["workers"], json!({"0": [[1], [2]]}));
        }
    }
}
