//! The load that a server gets, and its figures.

use crate::figures::Figures;
use forebay_bench::load::{Load, Order, Protocol, Stop, Wanted};
use forebay_bench::observe::{Server, choose_cpus};
use forebay_bench::record::{Failure, Record};
use forebay_bench::schedule::Rate;
use forebay_bench::tls::{Trust, config};
use forebay_bench::url::Url;
use forebay_bench::{run, signals, sources};
use forebay_copy::scene::Target;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Plan by which requests are sent.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Connections.
    pub connections: usize,
    /// Seed.
    pub seed: u64,
    /// Version of HTTP.
    pub protocol: Protocol,
    /// Compressed answers are accepted, by gzip and brotli as browsers do.
    pub gzip: bool,
    /// Each request has a new connection.
    pub close: bool,
    /// An access log whose requests replace those of the targets.
    pub access_log: Option<PathBuf>,
    /// Requests a second of an open loop; `None`: as fast as they go.
    pub rate: Option<f64>,
}

impl LoadPlan {
    /// Returns plain HTTP/1.1 in a closed loop.
    pub(crate) fn closed_loop(connections: usize, seed: u64) -> LoadPlan {
        LoadPlan {
            connections,
            seed,
            protocol: Protocol::Http1,
            gzip: false,
            close: false,
            access_log: None,
            rate: None,
        }
    }
}

/// Returns the load for targets.
///
/// # Errors
/// Errors of forebay-bench: a malformed URL or access log, or no certificates.
pub fn load(targets: &[Target], manner: &LoadPlan) -> Result<Load, String> {
    let text = |e: forebay_bench::Error| e.to_string();
    let wanted = wanted(targets, manner).map_err(text)?;
    let protocol = manner.protocol;
    // Targets in turn: a random mix would differ from window to window, as a small file costs less than a large one.
    let order = if manner.access_log.is_some() { Order::Mixed } else { Order::Listed };
    let mut load = Load::new(&wanted, protocol, order, manner.seed).map_err(text)?;
    load.connections = manner.connections;
    load.per_connection = u64::from(manner.close);
    load.timeout = Duration::from_secs(5);
    load.drain = Some(Duration::from_millis(500));
    if manner.access_log.is_some() {
        // A log has its own share of 404.
        load.checks.status = Some((200..500).collect());
    }
    load.rate = manner.rate.map(|r| Rate { from: r, to: r, poisson: true });
    if load.is_encrypted() {
        load.tls = Some(config(&Trust::Anyone, protocol).map_err(text)?);
    }
    Ok(load)
}

/// Returns the request for a target.
fn request(target: &Target) -> Result<Wanted, forebay_bench::Error> {
    let mut request = Wanted::get(Url::parse(&target.url)?);
    name_host(&mut request, target);
    Ok(request)
}

/// Returns the requests for targets, or the requests of an access log, sent to the first target's server.
fn requests(targets: &[Target], access_log: Option<&Path>) -> Result<Vec<Wanted>, forebay_bench::Error> {
    let (Some(log), Some(base)) = (access_log, targets.first()) else {
        return targets.iter().map(request).collect();
    };
    let mut requests = sources::access_log(log, &Url::parse(&base.url)?)?;
    requests.iter_mut().for_each(|request| name_host(request, base));
    Ok(requests)
}

/// Returns the requests in the manner in which they are to be sent.
fn wanted(targets: &[Target], manner: &LoadPlan) -> Result<Vec<Wanted>, forebay_bench::Error> {
    let mut wanted = requests(targets, manner.access_log.as_deref())?;
    if manner.close {
        Load::close_each(&mut wanted);
    }
    if manner.gzip {
        for request in &mut wanted {
            request.fields.push(("Accept-Encoding".into(), "gzip, br".into()));
        }
    }
    Ok(wanted)
}

fn name_host(request: &mut Wanted, target: &Target) {
    request.fields.extend(target.host.clone().map(|host| ("Host".to_owned(), host)));
}

/// Returns the failures of a run. A request that is under way when the window ends is none: each connection has one at most.
fn failures(record: &Record, connections: usize) -> u64 {
    let hanging = record.failures.get(Failure::Unanswered as usize).copied().unwrap_or_default();
    record.errors() - hanging.min(connections as u64)
}

/// Loads a server for a time, after a warm-up that does not count.
///
/// # Errors
/// Errors of forebay-bench: no connection can be made.
pub fn measure(
    load: &Load,
    pid: u32,
    warm: Duration,
    time: Duration,
) -> Result<(Figures, Option<String>), String> {
    let server = Server::of(pid);
    let mut load = load.clone();
    load.cpus = choose_cpus(server.as_ref(), 0);
    let go = |load: &Load, server: Option<Server>| {
        run::run(load, server, |_| !signals::interrupted()).map_err(|e| e.to_string())
    };
    if load.is_encrypted() {
        // The handshakes of a run of its own would count in the next one again.
        load.warmup = warm;
    } else {
        load.stop = Stop::After(warm);
        go(&load, None)?;
    }
    load.stop = Stop::After(time);
    let r = go(&load, server)?;
    let record = &r.outcome.record;
    let (cpu, memory) = r.server.as_ref().map_or((0.0, 0), |s| (s.cpu_per_request / 1e3, s.memory));
    let figures = Figures {
        rate: r.outcome.rate(),
        p50: record.latency.quantile(0.5),
        p99: record.latency.quantile(0.99),
        cpu,
        bytes: record.bytes_in as f64 / record.complete.max(1) as f64,
        memory,
        errors: failures(record, load.connections),
        page: 0.0,
    };
    Ok((figures, r.outcome.first_error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_over_the_end_of_a_window_is_no_failure() {
        let mut record = Record::default();
        record.failures[Failure::Unanswered as usize] = 32;
        assert_eq!(failures(&record, 32), 0);
        // More than one for each connection were never sent, or never answered.
        assert_eq!(failures(&record, 8), 24);
        record.failures[Failure::Status as usize] = 3;
        assert_eq!(failures(&record, 32), 3);
    }
}
