//! The summary of a run.

use super::{QUANTILES, bytes_text, percent};
use crate::duration_text;
use crate::histogram::Histogram;
use crate::record::FAILURES;
use crate::run::Report;
use crate::verdict;
use std::fmt::Write;

/// The whole summary.
pub fn summary(report: &Report) -> String {
    let mut out = String::new();
    let outcome = &report.outcome;
    let record = &outcome.record;
    let seconds = outcome.measured.as_secs_f64();
    let _ = writeln!(out, "{}", report.target);
    let _ = writeln!(out, "{}", report.manner);
    let _ = writeln!(out);
    let _ = writeln!(out, "  requests/s   {:.1}", outcome.rate());
    let took = if seconds < 0.1 { duration_text((seconds * 1e9) as u64) } else { format!("{seconds:.2} s") };
    let _ = writeln!(out, "  answered     {} in {took}", record.complete);
    let rate = record.bytes_in as f64 / seconds.max(1e-9);
    let _ = writeln!(out, "  received     {} ({}/s)", bytes_text(record.bytes_in as f64), bytes_text(rate));
    let statuses: Vec<String> = record.seen().map(|(status, n)| format!("{status}: {n}")).collect();
    let _ = writeln!(
        out,
        "  status       {}",
        if statuses.is_empty() { "none".into() } else { statuses.join(", ") }
    );
    let failed: Vec<String> = FAILURES
        .iter()
        .zip(&record.failures)
        .filter(|(_, n)| **n > 0)
        .map(|(k, n)| format!("{k}: {n}"))
        .collect();
    let _ =
        writeln!(out, "  errors       {}", if failed.is_empty() { "none".into() } else { failed.join(", ") });
    if record.retried > 0 {
        let _ = writeln!(out, "  sent again   {}", record.retried);
    }
    let _ = write!(out, "  connections  {}", record.connections);
    if record.connections > 0 && seconds > 0.0 && record.connections > report.connections as u64 {
        let _ = write!(out, " (made in {} at the median)", duration_text(record.connect.quantile(0.5)));
    }
    if !record.handshake.is_empty() {
        let full = record.handshake.len() - record.resumed.min(record.handshake.len());
        let time = duration_text(record.handshake.quantile(0.5));
        let _ = write!(out, ", TLS handshakes {full} full, {} resumed, median {time}", record.resumed);
    }
    let _ = writeln!(out, "\n");
    if record.complete > 0 {
        latencies(&mut out, report);
        let _ = writeln!(out);
    }
    let busiest =
        outcome.threads.iter().map(|t| t.cpu_time as f64 / t.wall.max(1) as f64).fold(0.0, f64::max);
    if record.complete == 0 {
        // Nothing to divide by.
        for finding in &report.findings {
            let _ =
                writeln!(out, "  {}         {}", if finding.void { "VOID" } else { "note" }, finding.text);
        }
        return out;
    }
    let _ = writeln!(
        out,
        "  client CPU   {:.2} us a request, busiest thread {:.0} %",
        outcome.client_cpu_per_request() / 1e3,
        busiest * 100.0
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
    for finding in &report.findings {
        let mark = if finding.void { "VOID" } else { "note" };
        let _ = writeln!(out, "  {mark}         {}", finding.text);
    }
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

fn latencies(out: &mut String, report: &Report) {
    let record = &report.outcome.record;
    let open = report.rate.is_some();
    let columns: &[(&str, &Histogram)] = if open {
        &[("from due", &record.latency), ("from sent", &record.uncorrected)]
    } else {
        &[("latency", &record.latency)]
    };
    let _ = write!(out, "  {:<12}", "quantile");
    columns.iter().for_each(|(name, _)| {
        let _ = write!(out, " {name:>12}");
    });
    let _ = writeln!(out);
    for q in QUANTILES {
        // A percentile with fewer than ten values above it is chance.
        if (record.latency.len() as f64) * (1.0 - q) < 10.0 && q > 0.5 {
            continue;
        }
        let _ = write!(out, "  {:<12}", format!("{} %", percent(q)));
        columns.iter().for_each(|(_, h)| {
            let _ = write!(out, " {:>12}", duration_text(h.quantile(q)));
        });
        let _ = writeln!(out);
    }
    let _ = write!(out, "  {:<12}", "longest");
    columns.iter().for_each(|(_, h)| {
        let _ = write!(out, " {:>12}", duration_text(h.max()));
    });
    let _ = writeln!(out);
    if open {
        let late = record.lateness.quantile(0.99);
        let _ =
            writeln!(out, "  99 % of the requests left within {} of when they could", duration_text(late));
    }
}

/// The distribution as HdrHistogram's tools read it, in milliseconds.
pub fn hgrm(h: &Histogram) -> String {
    let head = "       Value     Percentile TotalCount 1/(1-Percentile)";
    spectrum(h, head, |value, reached, count, last| {
        format!("{value:12.3} {reached:14.12} {count:10} {last:>14}")
    })
}

/// The same in the columns of wrk2.
pub fn hgrm_wrk2(h: &Histogram) -> String {
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
