//! Judges how far a figure can be trusted.

use crate::Error;
use crate::load::Load;
use crate::record::{FAILURES, Failure};
use crate::run::Report;
use crate::schedule::Rate;
use crate::{clock, duration_text, stats};
use std::io::{Read, Write};

/// Something that the reader of a figure has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The figure may not be used.
    pub void: bool,
    /// The client was the limit.
    pub client: bool,
    /// In words.
    pub text: String,
}

/// Share of a CPU from which on a thread of the client counts as saturated.
const BUSY: f64 = 0.85;
/// Share of failures from which on the figures are void.
const FAILED: f64 = 0.01;
/// Share of lost packets of QUIC from which on they are told.
const LOST: f64 = 0.001;
/// Spread of the rate over time, interquartile range over median, that is too large.
const SPREAD: f64 = 0.15;
/// Number of `steady_rates` needed to judge their spread.
pub const ENOUGH: usize = 8;

/// Judges a run.
pub(crate) fn judge(report: &Report) -> Vec<Finding> {
    let mut judge = Judge { report, findings: Vec::new() };
    judge.answers();
    if report.outcome.record.complete > 0 {
        judge.errors();
        judge.client();
    }
    judge.datagrams();
    if report.rate.is_some() {
        judge.lateness();
        judge.open_loop();
    }
    judge.noise();
    judge.hypervisor();
    judge.interruption();
    judge.findings
}

/// A judgement of a run that is under way.
struct Judge<'r> {
    report: &'r Report,
    findings: Vec<Finding>,
}

/// Subject of a finding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// The server or the machine.
    Run,
    /// The client was the limit.
    Client,
}

impl Judge<'_> {
    fn note(&mut self, about: About, text: String) {
        self.findings.push(Finding { void: false, client: about == About::Client, text });
    }

    fn void(&mut self, about: About, text: String) {
        self.findings.push(Finding { void: true, client: about == About::Client, text });
    }

    /// Returns the first error, in parentheses.
    fn reason(&self) -> String {
        self.report.outcome.first_error.as_deref().map(|e| format!(" ({e})")).unwrap_or_default()
    }

    fn answers(&mut self) {
        if self.report.outcome.record.complete > 0 {
            return;
        }
        let why = if self.report.distrusts().is_some() {
            "nobody is there whom this client believes"
        } else if self.report.outcome.interrupted {
            "interrupted before there was an answer that counts"
        } else {
            "no answer at all"
        };
        self.void(About::Run, format!("nothing was measured: {why}{}", self.reason()));
    }

    fn errors(&mut self) {
        let record = &self.report.outcome.record;
        let errors = record.errors();
        // An answer that is not as expected is an answer and a failure.
        let share = errors as f64 / (record.ok + errors).max(1) as f64;
        let reason = self.reason();
        if share > FAILED {
            let kinds = FAILURES.iter().zip(record.failures).filter(|(_, n)| *n > 0);
            let kinds: Vec<String> = kinds.map(|(k, n)| format!("{k} {n}")).collect();
            let (share, kinds) = (share * 100.0, kinds.join(", "));
            self.void(
                About::Run,
                format!("errors make the figures void: {share:.1} % failed: {kinds}{reason}"),
            );
        } else if errors > 0 {
            self.note(About::Run, format!("{errors} requests failed{reason}"));
        }
    }

    /// Judges whether the client had CPU time to spare.
    fn client(&mut self) {
        let outcome = &self.report.outcome;
        let busiest = outcome.busiest_thread();
        let delay =
            outcome.threads.iter().map(|t| t.run_delay as f64 / t.wall.max(1) as f64).fold(0.0, f64::max);
        if busiest > BUSY {
            let most = format!("a thread of the client used {:.0} % of its CPU", busiest * 100.0);
            self.note(
                About::Client,
                format!("the client was the limit: {most}; the server can do at least this"),
            );
        }
        if delay > 0.1 {
            let delay = delay * 100.0;
            self.note(
                About::Client,
                format!("the client waited for its CPU {delay:.0} % of the time: something else ran there"),
            );
        }
    }

    /// Judges whether the client read the datagrams of QUIC in time, and whether its own arrived.
    fn datagrams(&mut self) {
        let record = &self.report.outcome.record;
        let (dropped, lost) = (record.dropped, record.packets_lost as f64 / record.packets.max(1) as f64);
        if dropped > 0 {
            self.note(
                About::Client,
                format!(
                    "the client read too late: {dropped} datagrams were dropped and had to be sent again; fewer connections a \
                     thread, or a larger net.core.rmem_max"
                ),
            );
        }
        if lost > LOST {
            let lost = lost * 100.0;
            self.note(
                About::Run,
                format!(
                    "{lost:.1} % of the packets that the client sent were lost and had to be sent again; a server loses those for \
                     which the buffer of its socket is too small (rcvbuf of listen, net.core.rmem_default)"
                ),
            );
        }
    }

    /// Judges whether the client sent the requests of an open loop in time.
    fn lateness(&mut self) {
        let record = &self.report.outcome.record;
        let median = record.latency.quantile(0.5).max(1);
        let late = record.lateness.quantile(0.99);
        // Below some tens of microseconds lateness is the resolution of timers.
        if late <= (median / 10).max(200_000) {
            return;
        }
        let text =
            format!("requests left late (99 %: {}) although connections were free", duration_text(late));
        if late > 10_000_000 && late > median {
            self.void(About::Client, format!("{text}: this machine cannot hold the rate"));
        } else {
            self.note(About::Client, format!("{text}: this machine barely holds the rate"));
        }
    }

    /// Judges whether the requests of an open loop were answered in time.
    fn open_loop(&mut self) {
        let outcome = &self.report.outcome;
        let record = &outcome.record;
        // Of those that were due, not of the rate: it changes in a ramp, chance moves it, and a run may end early.
        let wanted = record.due as f64 / outcome.measured.as_secs_f64().max(1e-9);
        if record.complete <= 100 || outcome.rate() >= 0.97 * wanted {
            return;
        }
        let text = format!("{:.0} requests/s were answered of the {wanted:.0} that were due", outcome.rate());
        let busiest = outcome.busiest_thread();
        if busiest > BUSY {
            // Requests waited in the client; no percentile of the server may be made of that.
            let busy = format!("with a thread at {:.0} % of its CPU", busiest * 100.0);
            self.void(About::Client, format!("{text}, {busy}: this machine cannot hold the rate"));
        } else {
            let waiting = record.failed(Failure::Unanswered);
            self.note(
                About::Run,
                format!("{text}; {waiting} were not answered at the end, and count with their age"),
            );
        }
    }

    fn noise(&mut self) {
        let rates: Vec<f64> = steady_rates(self.report);
        let spread = stats::spread(&rates);
        let is_ramp = self.report.rate.is_some_and(|r| r.from != r.to);
        if rates.len() >= ENOUGH && spread > SPREAD && !is_ramp {
            let spread = spread * 100.0;
            self.note(
                About::Run,
                format!(
                    "the noise was large: the rate varied by {spread:.0} % (interquartile range) during the run"
                ),
            );
        }
    }

    fn hypervisor(&mut self) {
        let stolen = self.report.machine.1;
        if stolen > 0.02 {
            let stolen = stolen * 100.0;
            self.note(About::Run, format!("the hypervisor took {stolen:.0} % of the CPU time away"));
        }
    }

    fn interruption(&mut self) {
        let outcome = &self.report.outcome;
        if outcome.interrupted && outcome.record.complete > 0 {
            self.note(About::Run, "interrupted: what was measured until then".into());
        }
    }
}

/// Returns the rates of quarter seconds or more, without the warm-up.
pub(crate) fn steady_rates(report: &Report) -> Vec<f64> {
    let points: Vec<f64> = report.points.iter().filter(|p| !p.warmup).map(|p| p.rate).collect();
    points.chunks_exact(3).map(|c| c.iter().sum::<f64>() / 3.0).collect()
}

/// Refuses a rate that this machine cannot send.
///
/// # Errors
/// The machine is too slow; the text has the rate that it can send.
pub fn refuse_rate(rate: Rate, load: &Load) -> Result<(), Error> {
    if !(rate.from > 0.0 && rate.to > 0.0 && rate.highest().is_finite()) {
        return Err(Error::Usage("a rate is a number above 0".into()));
    }
    let threads = load.cpus.len().max(1).min(load.connections.max(1)) as f64;
    // Timers, scheduling and TLS cost too: asked for only where a request costs next to nothing else.
    if rate.highest() < 20_000.0 * threads {
        return Ok(());
    }
    let most = round_trips().unwrap_or(f64::INFINITY) * threads;
    if rate.highest() > most {
        let plural = if threads > 1.0 { "s" } else { "" };
        return Err(Error::Usage(format!(
            "{:.0} requests/s are more than {threads:.0} thread{plural} of this machine can send (about {most:.0}); more \
             CPUs (--cpus), fewer requests, or several machines (--agents)",
            rate.highest()
        )));
    }
    Ok(())
}

/// Connects two sockets over loopback.
fn loopback_pair() -> std::io::Result<(std::net::TcpStream, std::net::TcpStream)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let client = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    Ok((client, server))
}

/// Measures how many messages a second one thread can send and have answered over loopback, at best.
fn round_trips() -> Option<f64> {
    let (mut client, mut server) = loopback_pair().ok()?;
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut buf = [0u8; 512];
    let (start, mut n) = (clock(), 0u64);
    while clock() - start < 30_000_000 {
        // Four calls, of which two are the client's.
        client.write_all(&buf[..100]).and_then(|()| server.read_exact(&mut buf[..100])).ok()?;
        server.write_all(&buf[..200]).and_then(|()| client.read_exact(&mut buf[..200])).ok()?;
        n += 1;
    }
    Some(n as f64 * 2.0 / ((clock() - start) as f64 / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Outcome;
    use crate::record::{Record, ThreadUse};
    use std::time::Duration;

    /// A second in which 1000 requests were due.
    fn report(answered: u64, busy: f64) -> Report {
        let mut record =
            Record { complete: answered, ok: answered, in_time: answered, due: 1000, ..Record::default() };
        (0..answered).for_each(|_| record.latency.record(1_000_000));
        let cpu_time = (busy * 1e9) as u64;
        let thread = ThreadUse { cpu_time, wall: 1_000_000_000, ..ThreadUse::default() };
        let measured = Duration::from_secs(1);
        Report {
            target: String::new(),
            manner: String::new(),
            protocol: crate::load::Protocol::Http1,
            connections: 1,
            rate: Some(Rate::constant(1000.0)),
            outcome: Outcome { record, threads: vec![thread], measured, ..Outcome::default() },
            points: Vec::new(),
            server: None,
            machine: (0.0, 0.0),
            findings: Vec::new(),
        }
    }

    #[test]
    fn a_rate_that_was_not_held_is_the_servers_fault_or_ours() {
        for (answered, busy, void, words) in [
            (1000, 0.2, false, None),
            (900, 0.2, false, Some("were not answered at the end")),
            (900, 0.95, true, Some("this machine cannot hold the rate")),
        ] {
            let findings = judge(&report(answered, busy));
            assert_eq!(findings.iter().any(|f| f.void), void, "{findings:?}");
            assert!(words.is_none_or(|w| findings.iter().any(|f| f.text.contains(w))), "{findings:?}");
            assert_eq!(findings.is_empty(), words.is_none(), "{findings:?}");
        }
    }
}
