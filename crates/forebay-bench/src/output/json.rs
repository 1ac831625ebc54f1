//! `--json`: see docs/bench.md for the schema. Fields are added, never renamed; `schema` counts up when one
//! changes its meaning.

use super::{QUANTILES, percent};
use crate::histogram::Histogram;
use crate::record::{FAILURES, ThreadUse};
use crate::run::{Point, Report, ServerUse};
use crate::verdict::Finding;
use serde_json::{Map, Value, json};

/// Version of the schema.
pub(crate) const SCHEMA: u32 = 1;

/// Returns the report of a run. Times are in microseconds, rates a second.
pub(crate) fn report(report: &Report) -> Value {
    let outcome = &report.outcome;
    let record = &outcome.record;
    let errors: Map<String, Value> =
        FAILURES.iter().zip(&record.failures).map(|(k, n)| ((*k).to_owned(), json!(n))).collect();
    let statuses: Map<String, Value> = record.seen().map(|(s, n)| (s.to_string(), json!(n))).collect();
    let mut value = json!({
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
        "quic": {"packets_sent": record.packets, "packets_lost": record.packets_lost, "datagrams_dropped": record.dropped},
        "machine": {"busy": report.machine.0, "stolen": report.machine.1},
        "void": report.is_void(),
        "client_limited": report.findings.iter().any(|f| f.client),
        "findings": findings(&report.findings),
        "series": report.points.iter().map(point).collect::<Vec<_>>(),
    });
    add_times(&mut value, report);
    add_cpu(&mut value, report);
    value
}

/// Adds the distributions of times.
fn add_times(value: &mut Value, report: &Report) {
    let record = &report.outcome.record;
    value["latency_us"] = quantiles(&record.latency);
    value["latency_from_sent_us"] = json!(report.rate.map(|_| quantiles(&record.uncorrected)));
    value["send_lateness_us"] = json!(report.rate.map(|_| quantiles(&record.lateness)));
    value["connect_us"] = quantiles(&record.connect);
    value["handshake_us"] = quantiles(&record.handshake);
}

/// Adds the CPU time of client and server.
fn add_cpu(value: &mut Value, report: &Report) {
    let outcome = &report.outcome;
    let thread = |t: &ThreadUse| {
        let wall = t.wall.max(1) as f64;
        json!({"cpu": t.cpu, "busy": t.cpu_time as f64 / wall, "run_queue": t.run_delay as f64 / wall,
               "voluntary_switches": t.switches.0, "involuntary_switches": t.switches.1})
    };
    let threads: Vec<Value> = outcome.threads.iter().map(thread).collect();
    value["client"] =
        json!({"cpu_us_per_request": outcome.client_cpu_per_request() / 1e3, "threads": threads});
    let server = |s: &ServerUse| {
        json!({"pid": s.pid, "name": s.name, "processes": s.processes, "cpu_us_per_request": s.cpu_per_request / 1e3,
               "cpus": s.cpus, "switches_per_request": s.switches_per_request, "resident_bytes": s.memory})
    };
    value["server"] = json!(report.server.as_ref().map(server));
}

fn point(p: &Point) -> Value {
    json!({"at": p.at, "span": p.span, "warmup": p.warmup, "rate": p.rate, "errors": p.errors,
           "p50_us": p.p50 as f64 / 1e3, "p99_us": p.p99 as f64 / 1e3, "bytes": p.bytes,
           "client_cpus": p.client_cpu, "server_cpus": p.server_cpu})
}

/// Returns findings as an array.
pub(crate) fn findings(findings: &[Finding]) -> Value {
    findings.iter().map(|f| json!({"void": f.void, "client": f.client, "text": f.text})).collect()
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
