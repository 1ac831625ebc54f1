//! `bench wrk`: options and output of wrk 4 and wrk2.

use crate::cli::print;
use crate::histogram::Histogram;
use crate::load::{Load, Order, Protocol, Stop, Wanted};
use crate::observe::Server;
use crate::record::Failure;
use crate::run::Report;
use crate::schedule::Rate;
use crate::tls::{Trust, config};
use crate::url::{Address, Url, is_private};
use crate::{Error, run, units};
use std::fmt::Write;
use std::time::Duration;

const USAGE: &str = "Usage: forebay bench wrk <options> <url>
  WrkOptions:
    -c, --connections <N>  Connections to keep open
    -d, --duration    <T>  Duration of test
    -t, --threads     <N>  Number of threads to use
    -H, --header      <H>  Add header to request
    -L, --latency          Print latency statistics
    -U, --u_latency        Print uncorrected latency statistics (wrk2)
        --timeout     <T>  Socket/request timeout
    -R, --rate        <T>  work rate (throughput) in requests/sec (wrk2)
    -v, --version          Print version details

  Numeric arguments may include a SI unit (1k, 1M, 1G)
  Time arguments may include a time unit (2s, 2m, 2h)
";

/// The options.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WrkOptions {
    threads: usize,
    connections: usize,
    duration: Duration,
    timeout: Duration,
    latency: bool,
    uncorrected: bool,
    rate: Option<f64>,
    fields: Vec<(String, String)>,
    url: String,
    own: bool,
}

impl Default for WrkOptions {
    fn default() -> WrkOptions {
        WrkOptions {
            threads: 2,
            connections: 10,
            duration: Duration::from_secs(10),
            timeout: Duration::from_secs(2),
            latency: false,
            uncorrected: false,
            rate: None,
            fields: Vec::new(),
            url: String::new(),
            own: false,
        }
    }
}

fn bad(text: String) -> Error {
    Error::Usage(format!("{text}\n{USAGE}"))
}

/// Splits an option as it was given: its name, and its value if that is in the same word.
fn split_option(word: &str) -> Option<(String, Option<String>)> {
    if word.starts_with("--") {
        return Some(match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word.to_owned(), None),
        });
    }
    if !word.starts_with('-') || word.len() == 1 {
        return None;
    }
    let mut chars = word.chars();
    let name: String = chars.by_ref().take(2).collect();
    let value = chars.as_str().to_owned();
    Some((name, (!value.is_empty()).then_some(value)))
}

/// Setter of an option without a value.
type SetFlag = fn(&mut WrkOptions);

/// Options without a value, by their names.
const FLAGS: [([&str; 2], SetFlag); 4] = [
    (["--latency", "-L"], |o| o.latency = true),
    (["--u_latency", "-U"], |o| (o.latency, o.uncorrected) = (true, true)),
    // Requests of wrk2's scripts that leave together; there are no scripts here.
    (["--batch_latency", "-B"], |_| {}),
    (["--i-own-this-target", "--i-own-this-target"], |o| o.own = true),
];

/// Setter of an option with a value.
type WrkSetter = fn(&mut WrkOptions, &str) -> Result<(), Error>;

/// Options with a value, by their names.
const SETTERS: [([&str; 2], WrkSetter); 6] = [
    (["-t", "--threads"], |o, value| count(value).map(|n| o.threads = n)),
    (["-c", "--connections"], |o, value| count(value).map(|n| o.connections = n)),
    (["-d", "--duration"], |o, value| read_time(value).map(|t| o.duration = t)),
    (["--timeout", "-T"], |o, value| read_time(value).map(|t| o.timeout = t)),
    (["-R", "--rate"], |o, value| count(value).map(|n| o.rate = Some(n as f64))),
    (["-H", "--header"], WrkOptions::add_field),
];

fn count(value: &str) -> Result<usize, Error> {
    units::count(value).map(|n| usize::try_from(n).unwrap_or(usize::MAX)).map_err(bad)
}

fn read_time(value: &str) -> Result<Duration, Error> {
    let time = units::duration(value).ok().filter(|t| !t.is_zero());
    time.ok_or_else(|| bad(format!("bad time \"{value}\"")))
}

/// Prints help or the version, if the option is for that.
fn is_printed(name: &str) -> bool {
    match name {
        "-h" | "--help" => print(USAGE),
        "-v" | "--version" => print(format!("forebay bench {}, as wrk 4.1\n", env!("CARGO_PKG_VERSION"))),
        _ => return false,
    }
    true
}

/// Reads wrk's options. `Ok(None)`: help or version was printed.
///
/// # Errors
/// An option that is not known, or a bad value.
pub(crate) fn parse(args: &[String]) -> Result<Option<WrkOptions>, Error> {
    let mut o = WrkOptions::default();
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        if o.word(word, &mut rest)? == FlagOutcome::Print {
            return Ok(None);
        }
    }
    o.check()?;
    Ok(Some(o))
}

/// Result of looking for an option among those without a value.
#[derive(PartialEq, Eq)]
enum FlagOutcome {
    Set,
    /// Help or version was printed.
    Print,
    No,
}

impl WrkOptions {
    fn set_url(&mut self, word: &str) -> Result<(), Error> {
        if !self.url.is_empty() {
            return Err(bad(format!("unexpected \"{word}\"")));
        }
        word.clone_into(&mut self.url);
        Ok(())
    }

    /// Takes a word: an option or the URL.
    fn word(&mut self, word: &str, rest: &mut std::slice::Iter<'_, String>) -> Result<FlagOutcome, Error> {
        let Some((name, glued)) = split_option(word) else {
            self.set_url(word)?;
            return Ok(FlagOutcome::Set);
        };
        let flag = self.flag(&name)?;
        if flag != FlagOutcome::No {
            return Ok(flag);
        }
        let value = glued.or_else(|| rest.next().cloned());
        let value = value.ok_or_else(|| bad(format!("option {name} needs a value")))?;
        self.value(&name, &value)?;
        Ok(FlagOutcome::Set)
    }

    fn add_field(&mut self, text: &str) -> Result<(), Error> {
        let (name, value) = text.split_once(':').ok_or_else(|| bad(format!("bad header \"{text}\"")))?;
        self.fields.push((name.trim().to_owned(), value.trim().to_owned()));
        Ok(())
    }

    /// Sets an option without a value.
    fn flag(&mut self, name: &str) -> Result<FlagOutcome, Error> {
        if is_printed(name) {
            return Ok(FlagOutcome::Print);
        }
        if matches!(name, "-s" | "--script") {
            return Err(Error::Usage(
                "Lua scripts (-s) are not run. Methods, fields, bodies and mixes: see forebay bench --help (-X, -H, -b, --urls)".into(),
            ));
        }
        let Some((_, set)) = FLAGS.iter().find(|(names, _)| names.contains(&name)) else {
            return Ok(FlagOutcome::No);
        };
        set(self);
        Ok(FlagOutcome::Set)
    }

    /// Sets an option with a value.
    fn value(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let set = SETTERS.iter().find(|(names, _)| names.contains(&name));
        let (_, set) = set.ok_or_else(|| bad(format!("unknown option {name}")))?;
        set(self, value)
    }

    fn check(&self) -> Result<(), Error> {
        if self.url.is_empty() {
            return Err(bad("there is no URL".into()));
        }
        if self.connections < self.threads {
            return Err(bad("number of connections must be >= threads".into()));
        }
        Ok(())
    }

    fn load(&self) -> Result<(Load, Option<Server>), Error> {
        let mut wanted = Wanted::get(Url::parse(&self.url)?);
        wanted.fields.clone_from(&self.fields);
        let mut load = Load::new(&[wanted], Protocol::Http1, Order::Listed, 1)?;
        load.connections = self.connections;
        load.stop = Stop::After(self.duration);
        load.timeout = self.timeout;
        // wrk counts a response of any status and reports the bad ones at the end.
        load.checks.status = Some((100..1000).collect());
        load.rate = self.rate.map(Rate::constant);
        prepare(load, self.threads, self.own)
    }
}

/// Prepares a load from options of other tools: trust, CPUs and the server's process are as these tools have them.
pub(crate) fn prepare(mut load: Load, threads: usize, own: bool) -> Result<(Load, Option<Server>), Error> {
    let mut server = None;
    for origin in &load.origins {
        if let Some(addr) = origin.address.socket_addr() {
            if !is_private(addr.ip()) && !own {
                return Err(Error::Usage(format!(
                    "{} is neither on this machine nor in a private network; if it is yours, say --i-own-this-target",
                    addr.ip()
                )));
            }
            server = Server::listening(&origin.address);
        }
    }
    if load.is_encrypted() {
        // These tools do not verify.
        load.tls = Some(config(&Trust::Anyone, load.protocol)?);
    }
    // More threads than CPUs only get in each other's way; the output still has the number of the option.
    let mut cpus = crate::observe::choose_cpus(server.as_ref(), 0);
    cpus.truncate(threads.max(1));
    load.cpus = cpus;
    Ok((load, server))
}

/// Runs the subcommand.
///
/// # Errors
/// Bad options, or a run that is not possible.
pub(crate) fn main(args: &[String]) -> Result<u8, Error> {
    let Some(o) = parse(args)? else { return Ok(0) };
    let (load, server) = o.load()?;
    if let Some(why) = refusal(&load, o.timeout) {
        eprintln!("{why}");
        return Ok(1);
    }
    print(format!("Running {} test @ {}\n", whole_units(o.duration), o.url));
    print(format!("  {} threads and {} connections\n", o.threads, o.connections));
    let report = run::run(&load, server, |_| !crate::signals::interrupted())?;
    print(render(&o, &report));
    say_findings(&report);
    Ok(u8::from(report.outcome.record.complete == 0))
}

/// Writes the findings to standard error, since the output of the other tool has no place for them.
pub(crate) fn say_findings(report: &Report) {
    for finding in report.findings.iter().filter(|f| f.client || f.void) {
        eprintln!("forebay bench: {}", finding.text);
    }
}

/// Tries to connect. Returns wrk's words if that fails.
fn refusal(load: &Load, timeout: Duration) -> Option<String> {
    let Address::Tcp(addr) = &load.origins.first()?.address else { return None };
    let why = std::net::TcpStream::connect_timeout(addr, timeout).err()?.to_string();
    let why = why.split(" (os error").next().unwrap_or_default();
    Some(format!("unable to connect to {}:{} {why}", addr.ip(), addr.port()))
}

/// Returns a time in the largest unit of which it is a multiple.
fn whole_units(t: Duration) -> String {
    match t.as_secs() {
        s if s >= 3600 && s % 3600 == 0 => format!("{}h", s / 3600),
        s if s >= 60 && s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

/// Formats a number with a unit, as wrk chooses it: the next one from 85 % of it on.
fn scaled(mut n: f64, scale: f64, base: &str, units: &[&str]) -> String {
    let mut unit = base;
    for next in units {
        if n < scale * 0.85 {
            break;
        }
        (n, unit) = (n / scale, next);
    }
    format!("{n:.2}{unit}")
}

/// Formats a time, given in microseconds.
fn time(us: f64) -> String {
    if us >= 1e6 { scaled(us / 1e6, 60.0, "s", &["m"]) } else { scaled(us, 1e3, "us", &["ms"]) }
}

/// Formats a number of bytes, to be followed by `B`.
fn binary(bytes: f64) -> String {
    scaled(bytes, 1024.0, "", &["K", "M", "G", "T"])
}

fn metric(n: f64) -> String {
    scaled(n, 1e3, "", &["k", "M", "G", "T"])
}

/// Aligns a figure as wrk's table does: a unit of one letter or none leaves room for two, so that points align.
fn column(text: &str, width: usize) -> String {
    let letters = text.bytes().rev().take(2).filter(u8::is_ascii_alphabetic).count();
    let pad = 2 - letters.min(2);
    format!("{text:>width$}{:pad$}", "", width = width - pad)
}

/// Appends a distribution as wrk2 prints it.
fn wrk2_distribution(out: &mut String, what: &str, h: &Histogram) {
    let _ = writeln!(out, "  Latency Distribution (HdrHistogram - {what})");
    for percent in [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0] {
        let value = time(h.quantile(percent / 100.0) as f64 / 1e3);
        let _ = writeln!(out, "{percent:>7.3}%{}", column(&value, 10));
    }
    let _ = writeln!(out, "\n  Detailed Percentile spectrum:");
    out.push_str(&crate::output::text::hgrm_wrk2(h));
    let _ = writeln!(out, "----------------------------------------------------------");
}

/// Returns the lines after the first two.
pub(crate) fn render(o: &WrkOptions, report: &Report) -> String {
    let mut out = String::new();
    thread_stats(&mut out, o, report);
    if o.latency {
        distributions(&mut out, o, report);
    }
    totals(&mut out, report);
    out
}

/// Adds the table of latency and requests a second of a thread.
fn thread_stats(out: &mut String, o: &WrkOptions, report: &Report) {
    let h = &report.outcome.record.latency;
    let rates: Vec<f64> =
        report.points.iter().filter(|p| !p.warmup).map(|p| p.rate / o.threads.max(1) as f64).collect();
    let n = rates.len().max(1) as f64;
    let mean = rates.iter().sum::<f64>() / n;
    let deviation = (rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n).sqrt();
    let max = rates.iter().copied().fold(0.0, f64::max);
    let near = rates.iter().filter(|r| (**r - mean).abs() <= deviation).count() as f64 / n * 100.0;
    let _ = writeln!(out, "  Thread Stats{:>6}{:>11}{:>8}{:>12}", "Avg", "Stdev", "Max", "+/- Stdev");
    let mut row = |name: &str, [mean, deviation, max]: [String; 3], share: f64| {
        let cells = [column(&mean, 8), column(&deviation, 10), column(&max, 9)].concat();
        let _ = writeln!(out, "    {name:<10}{cells}{share:>8.2}%");
    };
    let times = [h.mean() / 1e3, h.deviation() / 1e3, h.max() as f64 / 1e3].map(time);
    row("Latency", times, share_near_mean(h));
    row("Req/Sec", [mean, deviation, max].map(metric), near);
}

/// Returns the percentage of times within a standard deviation of the mean.
fn share_near_mean(h: &Histogram) -> f64 {
    let (low, high) = ((h.mean() - h.deviation()).max(0.0), h.mean() + h.deviation());
    let below = if low > 0.0 { h.count_up_to(low as u64) } else { 0 };
    let within = h.count_up_to(high as u64).saturating_sub(below);
    within as f64 / h.len().max(1) as f64 * 100.0
}

/// Adds the distributions of latency.
fn distributions(out: &mut String, o: &WrkOptions, report: &Report) {
    let record = &report.outcome.record;
    if o.rate.is_none() {
        let _ = writeln!(out, "  Latency Distribution");
        for q in [0.5, 0.75, 0.9, 0.99] {
            let value = time(record.latency.quantile(q) as f64 / 1e3);
            let _ = writeln!(out, "{:>7.0}%{}", q * 100.0, column(&value, 10));
        }
        return;
    }
    wrk2_distribution(out, "Recorded Latency", &record.latency);
    if o.uncorrected {
        let what = "Uncorrected Latency (measured without taking delayed starts into account)";
        wrk2_distribution(out, what, &record.uncorrected);
    }
}

/// Adds requests, bytes and errors.
fn totals(out: &mut String, report: &Report) {
    let outcome = &report.outcome;
    let record = &outcome.record;
    let seconds = outcome.measured.as_secs_f64();
    let read = binary(record.bytes_in as f64);
    let _ = writeln!(out, "  {} requests in {}, {read}B read", record.in_time, time(seconds * 1e6));
    let sum = |kinds: &[Failure]| kinds.iter().map(|k| record.failed(*k)).sum::<u64>();
    let connect = sum(&[Failure::Connect, Failure::Tls]);
    let read = sum(&[Failure::Read, Failure::Length, Failure::Protocol]);
    let write = sum(&[Failure::Write]);
    let timeout = sum(&[Failure::Timeout, Failure::Unanswered]);
    if connect + read + write + timeout > 0 {
        let _ = writeln!(
            out,
            "  Socket errors: connect {connect}, read {read}, write {write}, timeout {timeout}"
        );
    }
    // Those that came after the end are no requests here.
    let bad = (record.class(4) + record.class(5) + record.class(1)).min(record.in_time);
    if bad > 0 {
        let _ = writeln!(out, "  Non-2xx or 3xx responses: {bad}");
    }
    let _ = writeln!(out, "Requests/sec: {:>9.2}", outcome.rate());
    let _ = writeln!(out, "Transfer/sec: {:>10}B", binary(record.bytes_in as f64 / seconds.max(1e-9)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Option<WrkOptions>, Error> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    /// Lines of wrk 4.1.
    #[test]
    fn figures_stand_where_wrk_has_them() {
        let row = |avg: String, dev: String, max: String| {
            format!("{}{}{}", column(&avg, 8), column(&dev, 10), column(&max, 9))
        };
        for (ours, theirs) in [
            (row(time(141.72), time(190.74), time(4320.0)), "141.72us  190.74us   4.32ms"),
            (row(metric(75_920.0), metric(2810.0), metric(83_110.0)), " 75.92k     2.81k   83.11k "),
            (row(time(464.81), time(940.0), time(9450.0)), "464.81us    0.94ms   9.45ms"),
            (row(metric(6.0), metric(0.5), metric(7.0)), "  6.00      0.50     7.00  "),
            (row(time(2e6), time(1.5e6), time(55e6)), "  2.00s     1.50s    0.92m "),
        ] {
            assert_eq!(ours, theirs);
        }
        assert_eq!(
            (binary(0.0), binary(900.0), binary(95_000_000.0)),
            ("0.00".into(), "0.88K".into(), "90.60M".into())
        );
    }

    #[test]
    fn command_lines_of_the_articles() {
        let o = options("-t12 -c400 -d30s --latency http://127.0.0.1:8080/index.html")
            .expect("good")
            .expect("options");
        assert_eq!(
            (o.threads, o.connections, o.duration, o.latency),
            (12, 400, Duration::from_secs(30), true)
        );
        let o =
            options("-t 2 -c 1k -d 1m --timeout=5s -R2000 -H X:y http://a/").expect("good").expect("options");
        assert_eq!(
            (o.connections, o.duration, o.timeout, o.rate),
            (1000, Duration::from_secs(60), Duration::from_secs(5), Some(2000.0))
        );
        assert_eq!(o.fields, [("X".to_owned(), "y".to_owned())]);
        for bad in [
            "",
            "-t",
            "-c0 http://a/",
            "-t4 -c2 http://a/",
            "-x http://a/",
            "http://a/ http://b/",
            "-d0 http://a/",
            "-s x.lua http://a/",
        ] {
            assert!(options(bad).is_err(), "{bad}");
        }
    }
}
