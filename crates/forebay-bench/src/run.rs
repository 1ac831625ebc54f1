//! One run with everything that is watched meanwhile.

use crate::engine::{self, Outcome};
use crate::histogram::Coarse;
use crate::load::{Load, Stop};
use crate::observe::{Machine, Server, Usage};
use crate::record::Sample;
use crate::schedule::Rate;
use crate::verdict::{self, Finding};
use crate::{Error, clock};
use std::collections::BTreeMap;
use std::time::Duration;

/// A tenth of a second to a second of a run.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// Seconds since the start, at its end.
    pub at: f64,
    /// Seconds it covers.
    pub span: f64,
    /// Whether it belongs to the warm-up.
    pub warmup: bool,
    /// Answers a second.
    pub rate: f64,
    /// Failures a second.
    pub errors: f64,
    /// Median latency, ns.
    pub p50: u64,
    /// 99 % of latencies are at most this, ns.
    pub p99: u64,
    /// Bytes received a second.
    pub bytes: f64,
    /// CPUs used by the client.
    pub client_cpu: f64,
    /// CPUs used by the server, if it is known.
    pub server_cpu: Option<f64>,
}

/// What the server used during a run.
#[derive(Clone, Debug)]
pub struct ServerUse {
    /// Its pid.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Processes at the end.
    pub processes: usize,
    /// ns of CPU time.
    pub cpu: u64,
    /// ns of CPU time per answer.
    pub cpu_per_request: f64,
    /// Context switches per answer, voluntary and not together.
    pub switches_per_request: f64,
    /// Resident bytes at the end.
    pub memory: u64,
    /// CPUs' worth of time it used.
    pub cpus: f64,
}

/// All that is known after a run.
#[derive(Debug)]
pub struct Report {
    /// What was loaded.
    pub target: String,
    /// How, in a line.
    pub manner: String,
    /// Connections.
    pub connections: usize,
    /// The rate that was asked for.
    pub rate: Option<Rate>,
    /// Counts.
    pub outcome: Outcome,
    /// Over time.
    pub points: Vec<Point>,
    /// The server.
    pub server: Option<ServerUse>,
    /// Shares of the machine's CPU time: busy, stolen.
    pub machine: (f64, f64),
    /// What has to be said about the figures.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether the figures may not be used.
    pub fn is_void(&self) -> bool {
        self.findings.iter().any(|f| f.void)
    }

    /// 0, or 1 when nothing was measured, or 2 when the figures are void.
    pub fn exit_code(&self) -> u8 {
        match () {
            () if self.outcome.record.complete == 0 => 1,
            () if self.is_void() => 2,
            () => 0,
        }
    }
}

/// The state of a run that is under way.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Points so far.
    pub points: &'a [Point],
    /// Seconds since the start.
    pub elapsed: f64,
    /// Seconds that the run takes with warm-up, if that is known.
    pub total: Option<f64>,
    /// Requests that it takes, if that is how it ends.
    pub count: Option<u64>,
    /// Answers so far.
    pub complete: u64,
    /// Failures so far.
    pub errors: u64,
    /// Latencies so far.
    pub latency: &'a Coarse,
}

/// Runs a load and watches. `show` is called some ten times a second and gives `false` to stop.
///
/// # Errors
/// Those of [`engine::run`], and a rate that this machine cannot hold.
pub fn run(
    load: &Load,
    server: Option<Server>,
    mut show: impl FnMut(&Progress<'_>) -> bool,
) -> Result<Report, Error> {
    if let Some(rate) = load.rate {
        verdict::refuse_rate(rate, load)?;
    }
    let mut gather = Gather::default();
    let before = server.as_ref().map(Server::usage);
    let machine = Machine::now();
    let start = clock();
    let total = match load.stop {
        Stop::After(time) | Stop::Count(_, Some(time)) => Some((time + load.warmup).as_secs_f64()),
        Stop::Count(_, None) => None,
    };
    let count = if let Stop::Count(n, _) = load.stop { Some(n) } else { None };
    let threads = load.cpus.len().max(1).min(load.connections.max(1));
    let outcome = engine::run(load, |samples| {
        gather.take(samples, threads, server.as_ref());
        show(&Progress {
            points: &gather.points,
            elapsed: (clock() - start) as f64 / 1e9,
            total,
            count,
            complete: gather.complete,
            errors: gather.errors,
            latency: &gather.latency,
        })
    })?;
    let wall = clock() - start;
    let machine = Machine::now().since(machine);
    let server =
        server.zip(before).map(|(server, before)| server_use(&server, &before, gather.complete, wall));
    let names: Vec<&str> = load.origins.iter().map(|o| o.name.as_str()).collect();
    let target = match load.requests.as_slice() {
        [only] => {
            let name = names.join(" ");
            let colon = if name.starts_with("unix:") { ":" } else { "" };
            format!("{name}{colon}{}", only.name.split_once(' ').map_or("", |(_, path)| path))
        }
        all => format!("{} ({} requests)", names.join(" "), all.len()),
    };
    let mut report = Report {
        target,
        manner: manner(load),
        connections: load.connections,
        rate: load.rate,
        outcome,
        points: gather.points,
        server,
        machine,
        findings: Vec::new(),
    };
    report.findings = verdict::judge(&report);
    Ok(report)
}

fn server_use(server: &Server, before: &Usage, complete: u64, wall: u64) -> ServerUse {
    let after = server.usage();
    let cpu = after.cpu.saturating_sub(before.cpu);
    let n = complete.max(1) as f64;
    let both = |u: &Usage| u.switches.0 + u.switches.1;
    ServerUse {
        pid: server.pid,
        name: server.name(),
        processes: after.processes,
        cpu,
        cpu_per_request: cpu as f64 / n,
        switches_per_request: both(&after).saturating_sub(both(before)) as f64 / n,
        memory: after.memory,
        cpus: cpu as f64 / wall.max(1) as f64,
    }
}

fn manner(load: &Load) -> String {
    use crate::load::Protocol;
    let protocol = match load.protocol {
        Protocol::Http1 => "HTTP/1.1",
        Protocol::Http10 => "HTTP/1.0",
        Protocol::Http2 => "HTTP/2",
    };
    let tls = if load.is_encrypted() { " over TLS" } else { "" };
    let threads = load.cpus.len().max(1);
    let several = |n: usize| if n == 1 { "" } else { "s" };
    let mut text = format!(
        "{protocol}{tls}, {} connection{}, {threads} thread{}",
        load.connections,
        several(load.connections),
        several(threads)
    );
    if !load.cpus.is_empty() {
        let cpus: Vec<String> = load.cpus.iter().map(ToString::to_string).collect();
        text.push_str(&format!(" on CPU{} {}", several(cpus.len()), cpus.join(",")));
    }
    if load.parallel > 1 {
        let what = if load.protocol == Protocol::Http2 { "streams" } else { "requests in a pipeline" };
        text.push_str(&format!(", {} {what}", load.parallel));
    }
    match load.per_connection {
        0 => {}
        1 => text.push_str(", a new connection for each request"),
        n => text.push_str(&format!(", {n} requests on a connection")),
    }
    match load.rate {
        None => text.push_str(", closed loop"),
        Some(Rate { from, to, poisson }) => {
            let how = if poisson { " at random (Poisson)" } else { "" };
            let way = if from < to { "rising" } else { "falling" };
            let rate = if from == to { format!("{from}") } else { format!("{from} {way} to {to}") };
            text.push_str(&format!(", open loop: {rate} requests/s{how}"));
        }
    }
    text
}

/// Samples of all threads, put together by time.
#[derive(Default)]
struct Gather {
    points: Vec<Point>,
    /// By tenth of a second: samples that still miss those of other threads.
    open: BTreeMap<u64, (usize, Sum)>,
    complete: u64,
    errors: u64,
    latency: Coarse,
    server: Option<(u64, u64)>,
    server_cpu: Option<f64>,
}

#[derive(Default)]
struct Sum {
    at: u64,
    span: u64,
    warmup: bool,
    complete: u64,
    errors: u64,
    bytes: u64,
    cpu: u64,
    latency: Coarse,
}

impl Gather {
    fn take(&mut self, samples: &[Sample], threads: usize, server: Option<&Server>) {
        if let Some(server) = server {
            let now = clock();
            let last = self.server.get_or_insert_with(|| (now, server.usage().cpu));
            if now - last.0 >= 500_000_000 {
                let cpu = server.usage().cpu;
                self.server_cpu = Some(cpu.saturating_sub(last.1) as f64 / (now - last.0) as f64);
                *last = (now, cpu);
            }
        }
        for sample in samples {
            self.complete += sample.complete;
            self.errors += sample.errors;
            self.latency.merge(&sample.latency);
            let slot = self.open.entry(sample.at / engine::TICK).or_default();
            slot.0 += 1;
            let sum = &mut slot.1;
            sum.at = sum.at.max(sample.at);
            sum.span = sum.span.max(sample.span);
            sum.warmup |= sample.warmup;
            sum.complete += sample.complete;
            sum.errors += sample.errors;
            sum.bytes += sample.bytes;
            sum.cpu += sample.cpu;
            sum.latency.merge(&sample.latency);
        }
        // A thread that is late by more than a few ticks is not waited for.
        let newest = self.open.keys().next_back().copied().unwrap_or(0);
        while let Some(entry) = self.open.first_entry() {
            if entry.get().0 < threads && entry.key() + 3 > newest {
                break;
            }
            let (_, sum) = entry.remove();
            let seconds = (sum.span as f64 / 1e9).max(1e-3);
            if sum.span < engine::TICK / 2 {
                continue;
            }
            self.points.push(Point {
                at: sum.at as f64 / 1e9,
                span: seconds,
                warmup: sum.warmup,
                rate: sum.complete as f64 / seconds,
                errors: sum.errors as f64 / seconds,
                p50: sum.latency.quantile(0.5),
                p99: sum.latency.quantile(0.99),
                bytes: sum.bytes as f64 / seconds,
                client_cpu: sum.cpu as f64 / 1e9 / seconds,
                server_cpu: self.server_cpu,
            });
        }
    }
}

/// What [`find_limit`] found.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The highest rate that was held; 0 when none was.
    pub rate: f64,
    /// All that was tried: rate, latency at the quantile in ns, whether it was held.
    pub tried: Vec<(f64, u64, bool)>,
    /// Whether the client was what ended it.
    pub client_limited: bool,
}

/// Searches the highest open-loop rate at which the share `quantile` of requests is answered within
/// `within`, failures at most one in a thousand. Steps up by 1.6 until it fails, then halves the distance
/// in logarithms until it is below 4 %.
///
/// # Errors
/// Those of [`run`], other than for a rate that this machine cannot hold, which ends the search.
pub fn find_limit(
    load: &Load,
    server: Option<&Server>,
    quantile: f64,
    within: Duration,
    mut show: impl FnMut(f64, u64, bool) -> bool,
) -> Result<Limit, Error> {
    let mut tried: Vec<(f64, u64, bool)> = Vec::new();
    let (mut good, mut bad) = (0.0f64, f64::INFINITY);
    let mut limited = false;
    let mut rate = load.rate.map_or(1000.0, |r| r.from);
    while tried.len() < 24 && (bad / good.max(1e-9) > 1.04) && rate >= 1.0 {
        let mut step = load.clone();
        step.rate = Some(Rate { from: rate, to: rate, poisson: load.rate.is_none_or(|r| r.poisson) });
        let report = match run(&step, server.cloned(), |_| !crate::signals::interrupted()) {
            Ok(report) => report,
            Err(Error::Usage(_)) if good > 0.0 => {
                limited = true;
                break;
            }
            Err(e) => return Err(e),
        };
        let at = report.outcome.record.latency.quantile(quantile);
        let record = &report.outcome.record;
        let few = record.errors() * 1000 <= record.complete;
        // What comes in the last moments is answered after the end.
        let due = record.due as f64;
        let held = record.in_time as f64 >= 0.97 * due - 3.0 * due.sqrt();
        if report.outcome.interrupted {
            break;
        }
        let passed = at <= within.as_nanos() as u64 && few && held;
        limited = report.findings.iter().any(|f| f.client) && !passed;
        tried.push((rate, at, passed));
        if !show(rate, at, passed) {
            break;
        }
        if passed {
            good = rate
        } else {
            bad = rate
        }
        rate = match () {
            () if bad.is_infinite() => rate * 1.6,
            () if good == 0.0 => rate / 4.0,
            () => (good * bad).sqrt(),
        };
    }
    Ok(Limit { rate: good, tried, client_limited: limited })
}
