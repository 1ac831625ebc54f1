//! One run with everything that is watched meanwhile.

use crate::engine::{self, DISTRUST, Outcome};
use crate::histogram::Coarse;
use crate::load::{Load, Protocol};
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
    /// The point belongs to the warm-up.
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

/// CPU time, switches and memory of the server during a run.
#[derive(Clone, Debug)]
pub struct ServerUse {
    /// Returns the pid.
    pub pid: u32,
    /// Returns the name of the process.
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

/// Figures and findings of a run.
#[derive(Debug)]
pub struct Report {
    /// Target of the load.
    pub target: String,
    /// Manner of the load, in a line.
    pub manner: String,
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// Connections.
    pub connections: usize,
    /// The rate that was asked for.
    pub rate: Option<Rate>,
    /// Counts.
    pub outcome: Outcome,
    /// Figures over time.
    pub points: Vec<Point>,
    /// The server.
    pub server: Option<ServerUse>,
    /// Shares of the machine's CPU time: busy, stolen.
    pub machine: (f64, f64),
    /// Findings about the figures.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns `true` if the figures may not be used.
    pub fn is_void(&self) -> bool {
        self.findings.iter().any(|f| f.void)
    }

    /// Returns the reason for not believing the server, if there is one: the run has ended at once.
    pub fn distrusts(&self) -> Option<&str> {
        self.outcome.first_error.as_deref().filter(|e| e.starts_with(DISTRUST))
    }

    /// Returns the exit code: 0; 1 if nothing was measured; 2 if the figures are void.
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

/// Runs a load and watches. `show` is called some ten times a second and returns `false` to stop.
///
/// # Errors
/// Errors of [`engine::run`]; a rate that this machine cannot hold.
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
    let (total, count) = (load.seconds(), load.count());
    let threads = load.cpus.len().max(1).min(load.connections.max(1));
    let outcome = engine::run(load, |samples| {
        gather.take(samples, threads, server.as_ref());
        let elapsed = (clock() - start) as f64 / 1e9;
        let Gather { points, complete, errors, latency, .. } = &gather;
        show(&Progress { points, elapsed, total, count, complete: *complete, errors: *errors, latency })
    })?;
    let wall = clock() - start;
    let machine = Machine::now().since(machine);
    let server =
        server.zip(before).map(|(server, before)| server_use(&server, &before, gather.complete, wall));
    let mut report = Report {
        target: target(load),
        manner: manner(load),
        protocol: load.protocol,
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

/// Returns the target of a load, in words.
fn target(load: &Load) -> String {
    let names: Vec<&str> = load.origins.iter().map(|o| o.name.as_str()).collect();
    let name = names.join(" ");
    match load.requests.as_slice() {
        [only] => {
            let colon = if name.starts_with("unix:") { ":" } else { "" };
            format!("{name}{colon}{}", only.name.split_once(' ').map_or("", |(_, path)| path))
        }
        all => format!("{name} ({} requests)", all.len()),
    }
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

/// Returns how a load is sent, in a line.
fn manner(load: &Load) -> String {
    let protocol = match load.protocol {
        Protocol::Http1 => "HTTP/1.1",
        Protocol::Http10 => "HTTP/1.0",
        Protocol::Http2 => "HTTP/2",
        Protocol::Http3 => "HTTP/3",
        Protocol::Raw if load.has_datagrams() => "UDP",
        Protocol::Raw => "TCP",
    };
    let tls = match load.protocol {
        _ if !load.is_encrypted() => "",
        Protocol::Http3 => " over QUIC",
        Protocol::Raw => " with TLS",
        _ => " over TLS",
    };
    let message = load.message.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
    let (places, parallel) = (places(load), parallel(load));
    format!("{protocol}{tls}{message}, {places}{parallel}{}{}", per_connection(load), pace(load))
}

/// Returns connections, threads and CPUs.
fn places(load: &Load) -> String {
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let threads = load.cpus.len().max(1);
    let mut text = format!(
        "{} connection{}, {threads} thread{}",
        load.connections,
        plural(load.connections),
        plural(threads)
    );
    if !load.cpus.is_empty() {
        let cpus: Vec<String> = load.cpus.iter().map(ToString::to_string).collect();
        text.push_str(&format!(" on CPU{} {}", plural(cpus.len()), cpus.join(",")));
    }
    text
}

fn parallel(load: &Load) -> String {
    match load.protocol {
        _ if load.parallel <= 1 => String::new(),
        Protocol::Http2 | Protocol::Http3 => format!(", {} streams", load.parallel),
        _ => format!(", {} requests in a pipeline", load.parallel),
    }
}

fn per_connection(load: &Load) -> String {
    match load.per_connection {
        0 => String::new(),
        1 => ", a new connection for each request".into(),
        n => format!(", {n} requests on a connection"),
    }
}

fn pace(load: &Load) -> String {
    let Some(Rate { from, to, poisson }) = load.rate else { return ", closed loop".into() };
    let how = if poisson { " at random (Poisson)" } else { "" };
    let way = if from < to { "rising" } else { "falling" };
    let rate = if from == to { format!("{from}") } else { format!("{from} {way} to {to}") };
    format!(", open loop: {rate} requests/s{how}")
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
            self.watch(server);
        }
        for sample in samples {
            self.complete += sample.complete;
            self.errors += sample.errors;
            self.latency.merge(&sample.latency);
            let (n, sum) = self.open.entry(sample.at / engine::TICK).or_default();
            *n += 1;
            sum.add(sample);
        }
        // A thread that is late by more than a few ticks does not hold up the others.
        let newest = self.open.keys().next_back().copied().unwrap_or(0);
        while let Some(entry) = self.open.first_entry() {
            if entry.get().0 < threads && entry.key() + 3 > newest {
                break;
            }
            let (_, sum) = entry.remove();
            self.points.extend(sum.point(self.server_cpu));
        }
    }

    /// Reads the server's CPU time twice a second.
    fn watch(&mut self, server: &Server) {
        let now = clock();
        let last = self.server.get_or_insert_with(|| (now, server.usage().cpu));
        if now - last.0 >= 500_000_000 {
            let cpu = server.usage().cpu;
            self.server_cpu = Some(cpu.saturating_sub(last.1) as f64 / (now - last.0) as f64);
            *last = (now, cpu);
        }
    }
}

impl Sum {
    fn add(&mut self, sample: &Sample) {
        self.at = self.at.max(sample.at);
        self.span = self.span.max(sample.span);
        self.warmup |= sample.warmup;
        self.complete += sample.complete;
        self.errors += sample.errors;
        self.bytes += sample.bytes;
        self.cpu += sample.cpu;
        self.latency.merge(&sample.latency);
    }

    /// Returns the point, unless the samples cover too little time for one.
    fn point(&self, server_cpu: Option<f64>) -> Option<Point> {
        let seconds = (self.span as f64 / 1e9).max(1e-3);
        (self.span >= engine::TICK / 2).then(|| Point {
            at: self.at as f64 / 1e9,
            span: seconds,
            warmup: self.warmup,
            rate: self.complete as f64 / seconds,
            errors: self.errors as f64 / seconds,
            p50: self.latency.quantile(0.5),
            p99: self.latency.quantile(0.99),
            bytes: self.bytes as f64 / seconds,
            client_cpu: self.cpu as f64 / 1e9 / seconds,
            server_cpu,
        })
    }
}

/// Result of `find_limit`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The highest rate that was held; 0 when none was.
    pub rate: f64,
    /// All that was tried: rate, latency at the quantile in ns, whether it was held.
    pub tried: Vec<(f64, u64, bool)>,
    /// The client was the limit at the end.
    pub client_limited: bool,
}

/// The demand on a rate that [`find_limit`] searches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Share of the requests, 0 to 1.
    pub(crate) quantile: f64,
    /// That share is answered within this time.
    pub(crate) within: Duration,
}

impl Demand {
    /// Returns `true` if a run met the demand: in time, at most one failure in a thousand, and the rate held.
    fn is_met(self, report: &Report) -> bool {
        let record = &report.outcome.record;
        let at = record.latency.quantile(self.quantile);
        let few = record.errors() * 1000 <= record.complete;
        // What comes in the last moments is answered after the end.
        let due = record.due as f64;
        let held = record.in_time as f64 >= 0.97 * due - 3.0 * due.sqrt();
        at <= self.within.as_nanos() as u64 && few && held
    }
}

/// Searches the highest open-loop rate that meets a demand. Steps up by 1.6 until it fails, then halves the distance in
/// logarithms until it is below 4 %.
///
/// # Errors
/// Errors of [`run`], other than for a rate that this machine cannot hold, which ends the search.
pub(crate) fn find_limit(
    load: &Load,
    server: Option<&Server>,
    demand: Demand,
    mut show: impl FnMut(f64, u64, bool) -> bool,
) -> Result<Limit, Error> {
    let mut limit = Limit { rate: 0.0, tried: Vec::new(), client_limited: false };
    let mut bad = f64::INFINITY;
    let mut rate = load.rate.map_or(1000.0, |r| r.from);
    while limit.tried.len() < 24 && (bad / limit.rate.max(1e-9) > 1.04) && rate >= 1.0 {
        let mut step = load.clone();
        step.rate = Some(Rate { from: rate, to: rate, poisson: load.rate.is_none_or(|r| r.poisson) });
        let report = match run(&step, server.cloned(), |_| !crate::signals::interrupted()) {
            Ok(report) => report,
            Err(Error::Usage(_)) if limit.rate > 0.0 => {
                limit.client_limited = true;
                break;
            }
            Err(e) => return Err(e),
        };
        if report.outcome.interrupted {
            break;
        }
        let at = report.outcome.record.latency.quantile(demand.quantile);
        let passed = demand.is_met(&report);
        limit.client_limited = report.findings.iter().any(|f| f.client) && !passed;
        limit.tried.push((rate, at, passed));
        if !show(rate, at, passed) {
            break;
        }
        *(if passed { &mut limit.rate } else { &mut bad }) = rate;
        rate = next_rate(rate, limit.rate, bad);
    }
    Ok(limit)
}

/// Returns the rate to try after `rate`, between the highest good one and the lowest bad one.
fn next_rate(rate: f64, good: f64, bad: f64) -> f64 {
    match () {
        () if bad.is_infinite() => rate * 1.6,
        () if good == 0.0 => rate / 4.0,
        () => (good * bad).sqrt(),
    }
}
