//! `bench wrk`: options and output of wrk 4 and wrk2.

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
  Options:
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
pub struct Options {
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

/// Reads wrk's options. `Ok(None)`: help or version was printed.
///
/// # Errors
/// What is wrong.
pub fn parse(args: &[String]) -> Result<Option<Options>, Error> {
    let bad = |text: String| Error::Usage(format!("{text}\n{USAGE}"));
    let mut o = Options {
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
    };
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        let (name, glued) = match word.as_str() {
            w if w.starts_with("--") => match w.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (w.to_owned(), None),
            },
            w if w.starts_with('-') && w.len() > 1 => {
                let mut chars = w.chars();
                let name: String = chars.by_ref().take(2).collect();
                let value = chars.as_str().to_owned();
                (name, (!value.is_empty()).then_some(value))
            }
            url if o.url.is_empty() => {
                url.clone_into(&mut o.url);
                continue;
            }
            other => return Err(bad(format!("unexpected \"{other}\""))),
        };
        match name.as_str() {
            "-h" | "--help" => {
                print!("{USAGE}");
                return Ok(None);
            }
            "-v" | "--version" => {
                println!("forebay bench {}, as wrk 4.1", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            "--latency" | "-L" => {
                o.latency = true;
                continue;
            }
            "--u_latency" | "-U" => {
                (o.latency, o.uncorrected) = (true, true);
                continue;
            }
            // Requests of wrk2's scripts that leave together; there are no scripts here.
            "--batch_latency" | "-B" => continue,
            "--i-own-this-target" => {
                o.own = true;
                continue;
            }
            "-s" | "--script" => {
                return Err(Error::Usage(
                    "Lua scripts (-s) are not run. Methods, fields, bodies and mixes: see forebay bench --help (-X, -H, -b, --urls)".into(),
                ));
            }
            _ => {}
        }
        let value = match glued {
            Some(value) => value,
            None => rest.next().cloned().ok_or_else(|| bad(format!("option {name} needs a value")))?,
        };
        let count = || units::count(&value).map(|n| usize::try_from(n).unwrap_or(usize::MAX)).map_err(&bad);
        let time = || {
            units::duration(&value)
                .ok()
                .filter(|t| !t.is_zero())
                .ok_or_else(|| bad(format!("bad time \"{value}\"")))
        };
        match name.as_str() {
            "-t" | "--threads" => o.threads = count()?,
            "-c" | "--connections" => o.connections = count()?,
            "-d" | "--duration" => o.duration = time()?,
            "--timeout" | "-T" => o.timeout = time()?,
            "-R" | "--rate" => o.rate = Some(count()? as f64),
            "-H" | "--header" => {
                let (name, value) =
                    value.split_once(':').ok_or_else(|| bad(format!("bad header \"{value}\"")))?;
                o.fields.push((name.trim().to_owned(), value.trim().to_owned()));
            }
            _ => return Err(bad(format!("unknown option {name}"))),
        }
    }
    if o.url.is_empty() {
        return Err(bad("there is no URL".into()));
    }
    if o.connections < o.threads {
        return Err(bad("number of connections must be >= threads".into()));
    }
    Ok(Some(o))
}

/// A load from options of other tools: everything that is not said is as that tool has it.
pub(crate) fn prepare(mut load: Load, threads: usize, own: bool) -> Result<(Load, Option<Server>), Error> {
    let mut server = None;
    for origin in &load.origins {
        if let Address::Tcp(addr) = &origin.address {
            if !is_private(addr.ip()) && !own {
                return Err(Error::Usage(format!(
                    "{} is neither on this machine nor in a private network; if it is yours, say --i-own-this-target",
                    addr.ip()
                )));
            }
            server = Server::listening(*addr);
        }
    }
    if load.is_encrypted() {
        // These tools do not verify.
        load.tls = Some(config(&Trust::Anyone, load.protocol)?);
    }
    // More threads than CPUs only get in each other's way; the output still says what was asked for.
    let mut cpus = crate::observe::choose_cpus(server.as_ref(), 0);
    cpus.truncate(threads.max(1));
    load.cpus = cpus;
    Ok((load, server))
}

/// Runs the subcommand.
///
/// # Errors
/// Bad options, or a run that is not possible.
pub fn main(args: &[String]) -> Result<u8, Error> {
    let Some(o) = parse(args)? else { return Ok(0) };
    let url = Url::parse(&o.url)?;
    let mut wanted = Wanted::get(url);
    wanted.fields.clone_from(&o.fields);
    let mut load = Load::new(&[wanted], Protocol::Http1, Order::Listed, 1)?;
    load.connections = o.connections;
    load.stop = Stop::After(o.duration);
    load.timeout = o.timeout;
    // wrk takes any status for an answer and tells the bad ones apart at the end.
    load.checks.status = Some((100..1000).collect());
    load.rate = o.rate.map(Rate::constant);
    let (load, server) = prepare(load, o.threads, o.own)?;
    if let Some(origin) = load.origins.first()
        && let Address::Tcp(addr) = &origin.address
        && let Err(e) = std::net::TcpStream::connect_timeout(addr, o.timeout)
    {
        let why = e.to_string();
        let why = why.split(" (os error").next().unwrap_or_default();
        eprintln!("unable to connect to {}:{} {why}", addr.ip(), addr.port());
        return Ok(1);
    }
    let unit = |t: Duration| match t.as_secs() {
        s if s >= 3600 && s % 3600 == 0 => format!("{}h", s / 3600),
        s if s >= 60 && s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    };
    println!("Running {} test @ {}", unit(o.duration), o.url);
    println!("  {} threads and {} connections", o.threads, o.connections);
    let report = run::run(&load, server, |_| !crate::signals::interrupted())?;
    print!("{}", render(&o, &report));
    for finding in report.findings.iter().filter(|f| f.client || f.void) {
        eprintln!("forebay bench: {}", finding.text);
    }
    Ok(u8::from(report.outcome.record.complete == 0))
}

/// A number with a unit, as wrk chooses it: the next one from 85 % of it on.
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

/// Times, from microseconds.
fn time(us: f64) -> String {
    if us >= 1e6 { scaled(us / 1e6, 60.0, "s", &["m"]) } else { scaled(us, 1e3, "us", &["ms"]) }
}

/// Bytes, to be followed by `B`.
fn binary(bytes: f64) -> String {
    scaled(bytes, 1024.0, "", &["K", "M", "G", "T"])
}

fn metric(n: f64) -> String {
    scaled(n, 1e3, "", &["k", "M", "G", "T"])
}

/// As in wrk's table: units of one letter or none leave room where those of two stand, so that points align.
fn column(text: &str, width: usize) -> String {
    let letters = text.bytes().rev().take(2).filter(u8::is_ascii_alphabetic).count();
    let pad = 2 - letters.min(2);
    format!("{text:>width$}{:pad$}", "", width = width - pad)
}

/// A distribution as wrk2 prints it.
fn wrk2_distribution(out: &mut String, what: &str, h: &crate::histogram::Histogram) {
    let _ = writeln!(out, "  Latency Distribution (HdrHistogram - {what})");
    for percent in [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0] {
        let value = time(h.quantile(percent / 100.0) as f64 / 1e3);
        let _ = writeln!(out, "{percent:>7.3}%{}", column(&value, 10));
    }
    let _ = writeln!(out, "\n  Detailed Percentile spectrum:");
    out.push_str(&crate::output::text::hgrm_wrk2(h));
    let _ = writeln!(out, "----------------------------------------------------------");
}

/// The lines after the first two.
pub fn render(o: &Options, report: &Report) -> String {
    let mut out = String::new();
    let outcome = &report.outcome;
    let record = &outcome.record;
    let h = &record.latency;
    let (mean, deviation) = (h.mean() / 1e3, h.deviation() / 1e3);
    let share = |h: &crate::histogram::Histogram| {
        let (low, high) = ((h.mean() - h.deviation()).max(0.0), h.mean() + h.deviation());
        let within =
            h.count_up_to(high as u64).saturating_sub(if low > 0.0 { h.count_up_to(low as u64) } else { 0 });
        within as f64 / h.len().max(1) as f64 * 100.0
    };
    let rates: Vec<f64> =
        report.points.iter().filter(|p| !p.warmup).map(|p| p.rate / o.threads.max(1) as f64).collect();
    let n = rates.len().max(1) as f64;
    let rate_mean = rates.iter().sum::<f64>() / n;
    let rate_dev = (rates.iter().map(|r| (r - rate_mean).powi(2)).sum::<f64>() / n).sqrt();
    let rate_max = rates.iter().copied().fold(0.0, f64::max);
    let near = rates.iter().filter(|r| (**r - rate_mean).abs() <= rate_dev).count() as f64 / n * 100.0;
    let _ = writeln!(out, "  Thread Stats{:>6}{:>11}{:>8}{:>12}", "Avg", "Stdev", "Max", "+/- Stdev");
    let _ = writeln!(
        out,
        "    {:<10}{}{}{}{:>8.2}%",
        "Latency",
        column(&time(mean), 8),
        column(&time(deviation), 10),
        column(&time(h.max() as f64 / 1e3), 9),
        share(h)
    );
    let _ = writeln!(
        out,
        "    {:<10}{}{}{}{near:>8.2}%",
        "Req/Sec",
        column(&metric(rate_mean), 8),
        column(&metric(rate_dev), 10),
        column(&metric(rate_max), 9)
    );
    if o.latency {
        if o.rate.is_some() {
            wrk2_distribution(&mut out, "Recorded Latency", h);
            if o.uncorrected {
                let what = "Uncorrected Latency (measured without taking delayed starts into account)";
                wrk2_distribution(&mut out, what, &record.uncorrected);
            }
        } else {
            let _ = writeln!(out, "  Latency Distribution");
            for q in [0.5, 0.75, 0.9, 0.99] {
                let value = time(h.quantile(q) as f64 / 1e3);
                let _ = writeln!(out, "{:>7.0}%{}", q * 100.0, column(&value, 10));
            }
        }
    }
    let seconds = outcome.measured.as_secs_f64();
    let _ = writeln!(
        out,
        "  {} requests in {}, {}B read",
        record.in_time,
        time(seconds * 1e6),
        binary(record.bytes_in as f64)
    );
    let connect = record.failed(Failure::Connect) + record.failed(Failure::Tls);
    let read =
        [Failure::Read, Failure::Length, Failure::Protocol].iter().map(|k| record.failed(*k)).sum::<u64>();
    let write = record.failed(Failure::Write);
    let timeout = record.failed(Failure::Timeout) + record.failed(Failure::Unanswered);
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
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Option<Options>, Error> {
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
