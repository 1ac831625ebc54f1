//! `--json`: see docs/bench.md for the schema. Fields are added, never renamed; `schema` counts up when one
//! changes its meaning.

use super::{QUANTILES, percent};
use crate::histogram::Histogram;
use crate::record::FAILURES;
use crate::run::Report;
use serde_json::{Map, Value, json};

/// Version of the schema.
pub const SCHEMA: u32 = 1;

/// Times are in microseconds, rates a second.
pub fn report(report: &Report) -> Value {
    let outcome = &report.outcome;
    let record = &outcome.record;
    let errors: Map<String, Value> =
        FAILURES.iter().zip(&record.failures).map(|(k, n)| ((*k).to_owned(), json!(n))).collect();
    let statuses: Map<String, Value> = record.seen().map(|(s, n)| (s.to_string(), json!(n))).collect();
    let threads: Vec<Value> = outcome
        .threads
        .iter()
        .map(|t| {
            let wall = t.wall.max(1) as f64;
            json!({"cpu": t.cpu, "busy": t.cpu_time as f64 / wall, "run_queue": t.run_delay as f64 / wall,
                   "voluntary_switches": t.switches.0, "involuntary_switches": t.switches.1})
        })
        .collect();
    let series: Vec<Value> = report
        .points
        .iter()
        .map(|p| {
            json!({"at": p.at, "span": p.span, "warmup": p.warmup, "rate": p.rate, "errors": p.errors,
                   "p50_us": p.p50 as f64 / 1e3, "p99_us": p.p99 as f64 / 1e3, "bytes": p.bytes,
                   "client_cpus": p.client_cpu, "server_cpus": p.server_cpu})
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "program": concat!("forebay bench ", env!("CARGO_PKG_VERSION")),
        "target": report.target,
        "manner": report.manner,
        "connections": report.connections,
        "offered_rate": report.rate.map(|r| json!({"from": r.from, "to": r.to, "poisson": r.poisson})),
        "seconds": outcome.measured.as_secs_f64(),
        "interrupted": outcome.interrupted,
        "requests_per_second": outcome.rate(),
        "requests": {"complete": record.complete, "ok": record.ok, "retried": record.retried,
                     "due": report.rate.map(|_| record.due)},
        "bytes": {"received": record.bytes_in, "content": record.body_in, "sent": record.bytes_out},
        "statuses": statuses,
        "errors": errors,
        "first_error": outcome.first_error,
        "connections_made": record.connections,
        "tls": {"handshakes": record.handshake.len(), "resumed": record.resumed},
        "latency_us": quantiles(&record.latency),
        "latency_from_sent_us": report.rate.map(|_| quantiles(&record.uncorrected)),
        "send_lateness_us": report.rate.map(|_| quantiles(&record.lateness)),
        "connect_us": quantiles(&record.connect),
        "handshake_us": quantiles(&record.handshake),
        "client": {"cpu_us_per_request": outcome.client_cpu_per_request() / 1e3, "threads": threads},
        "server": report.server.as_ref().map(|s| json!({
            "pid": s.pid, "name": s.name, "processes": s.processes, "cpu_us_per_request": s.cpu_per_request / 1e3,
            "cpus": s.cpus, "switches_per_request": s.switches_per_request, "resident_bytes": s.memory})),
        "machine": {"busy": report.machine.0, "stolen": report.machine.1},
        "void": report.is_void(),
        "client_limited": report.findings.iter().any(|f| f.client),
        "findings": report.findings.iter().map(|f| json!({"void": f.void, "client": f.client, "text": f.text})).collect::<Vec<_>>(),
        "series": series,
    })
}

fn quantiles(h: &Histogram) -> Value {
    let mut map = Map::new();
    map.insert("count".into(), json!(h.len()));
    map.insert("min".into(), json!(h.min() as f64 / 1e3));
    map.insert("mean".into(), json!(h.mean() / 1e3));
    map.insert("max".into(), json!(h.max() as f64 / 1e3));
    for q in QUANTILES {
        map.insert(format!("p{}", percent(q)), json!(h.quantile(q) as f64 / 1e3));
    }
    Value::Object(map)
}
