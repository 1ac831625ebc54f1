//! The summary of a run.

use super::{QUANTILES, bytes_text, is_known, percent};
use crate::duration_text;
use crate::histogram::Histogram;
use crate::load::Protocol;
use crate::record::FAILURES;
use crate::run::Report;
use crate::verdict;
use std::fmt::Write;

/// Returns the whole summary.
pub(crate) fn summary(report: &Report) -> String {
    let mut out = format!("{}\n{}\n\n", report.target, report.manner);
    counts(&mut out, report);
    connections(&mut out, report);
    out.push_str("\n\n");
    if report.outcome.record.complete > 0 {
        latencies(&mut out, report);
        out.push('\n');
        cpu(&mut out, report);
    }
    for finding in &report.findings {
        let mark = if finding.void { "VOID" } else { "note" };
        let _ = writeln!(out, "  {mark}         {}", finding.text);
    }
    // Without a response there is always a finding.
    if report.findings.is_empty() {
        let steady = if verdict::steady_rates(report).len() >= verdict::ENOUGH {
            "steady"
        } else {
            "too short to tell whether it is steady"
        };
        let _ = writeln!(out, "  trust        the client had CPU to spare, no errors, {steady}");
    }
    out
}

/// Rows of the histogram.
const ROWS: u64 = 8;
/// Characters of its longest bar.
const BAR: u64 = 40;

/// Returns the distribution of latencies as bars: rows up to the 99th percentile, and one for all beyond.
pub(crate) fn histogram(h: &Histogram) -> String {
    let (first, last) = (h.min(), h.quantile(0.99));
    if h.len() < 100 || last <= first {
        return String::new();
    }
    // Each row is the same factor wide: latencies have long tails.
    let factor = last as f64 / first.max(1) as f64;
    let edge = |row: u64| (first.max(1) as f64 * factor.powf(row as f64 / ROWS as f64)).ceil() as u64;
    let mut below = 0;
    let mut rows = Vec::new();
    for row in 1..=ROWS {
        let upto = h.count_up_to(edge(row));
        rows.push((format!("{:>9.3} ms", edge(row) as f64 / 1e6), upto.saturating_sub(below)));
        below = upto.max(below);
    }
    rows.push((format!("{:>9.3} ms", h.max() as f64 / 1e6), h.len().saturating_sub(below)));
    let most = rows.iter().map(|(_, n)| *n).max().unwrap_or(1).max(1);
    let mut out = String::from("\n  up to            responses\n");
    for (name, n) in rows {
        // A few must not look like none.
        let bar = (n * BAR).div_ceil(most);
        let _ = writeln!(out, "  {name} {n:>10}  {}", "#".repeat(bar as usize));
    }
    out
}

/// Adds responses, bytes, statuses and errors.
fn counts(out: &mut String, report: &Report) {
    let outcome = &report.outcome;
    let record = &outcome.record;
    let seconds = outcome.measured.as_secs_f64();
    let _ = writeln!(out, "  requests/s   {:.1}", outcome.rate());
    let took = if seconds < 0.1 { duration_text((seconds * 1e9) as u64) } else { format!("{seconds:.2} s") };
    let _ = writeln!(out, "  answered     {} in {took}", record.complete);
    let rate = record.bytes_in as f64 / seconds.max(1e-9);
    let _ = writeln!(out, "  received     {} ({}/s)", bytes_text(record.bytes_in as f64), bytes_text(rate));
    if report.protocol == Protocol::Raw {
        let rate = record.bytes_out as f64 / seconds.max(1e-9);
        let _ =
            writeln!(out, "  sent         {} ({}/s)", bytes_text(record.bytes_out as f64), bytes_text(rate));
    } else {
        let _ = writeln!(out, "  status       {}", list(record.seen()));
    }
    let failed = FAILURES.iter().zip(record.failures).filter(|(_, n)| *n > 0);
    let _ = writeln!(out, "  errors       {}", list(failed));
    if record.retried > 0 {
        let _ = writeln!(out, "  sent again   {}", record.retried);
    }
}

/// Returns `name: count` pairs, or `none`.
fn list(pairs: impl Iterator<Item = (impl std::fmt::Display, u64)>) -> String {
    let texts: Vec<String> = pairs.map(|(name, n)| format!("{name}: {n}")).collect();
    if texts.is_empty() { "none".into() } else { texts.join(", ") }
}

/// Adds connections and TLS handshakes.
fn connections(out: &mut String, report: &Report) {
    let record = &report.outcome.record;
    let seconds = report.outcome.measured.as_secs_f64();
    let _ = write!(out, "  connections  {}", record.connections);
    if !record.connect.is_empty() && seconds > 0.0 && record.connections > report.connections as u64 {
        let _ = write!(out, " (made in {} at the median)", duration_text(record.connect.quantile(0.5)));
    }
    if !record.handshake.is_empty() {
        let full = record.handshake.len() - record.resumed.min(record.handshake.len());
        let time = duration_text(record.handshake.quantile(0.5));
        let _ = write!(out, ", TLS handshakes {full} full, {} resumed, median {time}", record.resumed);
    }
    if report.protocol == Protocol::Http3 {
        let _ = write!(out, "\n  packets      {} sent, {} of them lost", record.packets, record.packets_lost);
    }
}

/// Adds the CPU time of client and server.
fn cpu(out: &mut String, report: &Report) {
    let _ = writeln!(
        out,
        "  client CPU   {:.2} us a request, busiest thread {:.0} %",
        report.outcome.client_cpu_per_request() / 1e3,
        report.outcome.busiest_thread() * 100.0
    );
    if let Some(server) = &report.server {
        let _ = writeln!(
            out,
            "  server CPU   {:.2} us a request, {:.2} CPUs, {:.2} context switches a request\n  server       {} resident ({}, pid {}, {} \
             processes)",
            server.cpu_per_request / 1e3,
            server.cpus,
            server.switches_per_request,
            bytes_text(server.memory as f64),
            server.name,
            server.pid,
            server.processes
        );
    }
}

/// Adds the table of latencies.
fn latencies(out: &mut String, report: &Report) {
    let record = &report.outcome.record;
    let open = report.rate.is_some();
    let columns: &[(&str, &Histogram)] = if open {
        &[("from due", &record.latency), ("from sent", &record.uncorrected)]
    } else {
        &[("latency", &record.latency)]
    };
    let mut row = |name: String, cell: &dyn Fn(&(&str, &Histogram)) -> String| {
        let cells: String = columns.iter().map(|column| format!(" {:>12}", cell(column))).collect();
        let _ = writeln!(out, "  {name:<12}{cells}");
    };
    row("quantile".into(), &|(name, _)| (*name).to_owned());
    let values = record.latency.len() as f64;
    for q in QUANTILES.into_iter().filter(|q| is_known(*q, values)) {
        row(format!("{} %", percent(q)), &|(_, h)| duration_text(h.quantile(q)));
    }
    row("longest".into(), &|(_, h)| duration_text(h.max()));
    if open {
        let late = record.lateness.quantile(0.99);
        let _ =
            writeln!(out, "  99 % of the requests left within {} of when they could", duration_text(late));
    }
}

/// Formats the distribution as HdrHistogram's tools read it, in milliseconds.
pub(crate) fn hgrm(h: &Histogram) -> String {
    let head = "       Value     Percentile TotalCount 1/(1-Percentile)";
    spectrum(h, head, |value, reached, count, last| {
        format!("{value:12.3} {reached:14.12} {count:10} {last:>14}")
    })
}

/// Returns the percentiles in the columns of wrk2.
pub(crate) fn hgrm_wrk2(h: &Histogram) -> String {
    let head = "       Value   Percentile   TotalCount 1/(1-Percentile)";
    spectrum(h, head, |value, reached, count, last| {
        format!("{value:12.3} {reached:12.6} {count:12} {last:>12}")
    })
}

fn spectrum(h: &Histogram, head: &str, line: fn(f64, f64, u64, String) -> String) -> String {
    let mut out = format!("{head}\n\n");
    let ms = |n: u64| n as f64 / 1e6;
    let mut q = 0.0f64;
    let mut half = 1.0f64;
    let mut last = u64::MAX;
    while !h.is_empty() {
        let value = h.quantile(q);
        let count = h.count_up_to(value);
        let reached = count as f64 / h.len() as f64;
        if count != last {
            if count >= h.len() {
                break;
            }
            let text = line(ms(value), reached.min(q.max(0.0)), count, format!("{:.2}", 1.0 / (1.0 - q)));
            let _ = writeln!(out, "{text}");
            last = count;
        }
        // Five steps for each halving of what is left.
        q += half / 10.0;
        if 1.0 - q <= half / 2.0 + 1e-15 {
            half /= 2.0;
        }
        if half < 1e-12 {
            break;
        }
    }
    let _ = writeln!(out, "{}", line(ms(h.max()), 1.0, h.len(), "inf".to_owned()));
    let _ =
        writeln!(out, "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]", h.mean() / 1e6, h.deviation() / 1e6);
    let _ = writeln!(out, "#[Max     = {:12.3}, Total count    = {:12}]", ms(h.max()), h.len());
    let _ = writeln!(out, "#[Buckets = {:12}, SubBuckets     = {:12}]", 32, 2048);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_histogram_has_every_response() {
        let mut h = Histogram::default();
        (1..=1000u64).for_each(|n| h.record(n * 1000));
        h.record(50_000_000);
        let text = histogram(&h);
        let counts = text
            .lines()
            .filter_map(|l| l.split(" ms").nth(1)?.split_whitespace().next()?.parse::<u64>().ok());
        assert_eq!((text.lines().count(), counts.sum::<u64>()), (11, 1001), "{text}");
        assert!(text.lines().last().is_some_and(|l| l.contains("50.") && l.ends_with('#')), "{text}");
        assert_eq!(histogram(&Histogram::default()), "");
    }
}
