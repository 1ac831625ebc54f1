//! Conditions of `--fail-if`, under which a run has failed, and their results for CI: exit code, JUnit, GitHub's summary of a job.

use crate::output::{is_known, percent};
use crate::run::Report;
use crate::{Error, duration_text, units};
use std::fmt::Write;
use std::io::Write as _;

/// Exit code of a run that fails.
const FAILED: u8 = 3;

/// Figure of a run that has a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    /// Latency, ns.
    Quantile(f64),
    /// Longest latency, ns.
    Longest,
    /// Mean latency, ns.
    Mean,
    /// Failures.
    Errors,
    /// Failures, as a share of the requests.
    ErrorShare,
    /// Requests a second.
    Rate,
    /// CPU time of the server per request, ns.
    Cpu,
}

/// Names of the figures. `errors` has two.
const FIGURES: [(&str, Figure); 14] = [
    ("p50", Figure::Quantile(0.5)),
    ("p75", Figure::Quantile(0.75)),
    ("p90", Figure::Quantile(0.9)),
    ("p95", Figure::Quantile(0.95)),
    ("p99", Figure::Quantile(0.99)),
    ("p99.9", Figure::Quantile(0.999)),
    ("p999", Figure::Quantile(0.999)),
    ("p99.99", Figure::Quantile(0.9999)),
    ("p9999", Figure::Quantile(0.9999)),
    ("max", Figure::Longest),
    ("mean", Figure::Mean),
    ("errors", Figure::Errors),
    ("rate", Figure::Rate),
    ("cpu", Figure::Cpu),
];

/// Side of the limit at which a run has failed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Above,
    NotBelow,
    Below,
    NotAbove,
}

/// Operators, the longer ones first.
const SIDES: [(&str, Side); 4] =
    [(">=", Side::NotBelow), ("<=", Side::NotAbove), (">", Side::Above), ("<", Side::Below)];

/// A condition under which a run has failed.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    /// As it was given.
    text: String,
    figure: Figure,
    side: Side,
    limit: f64,
}

impl Condition {
    /// Parses `p99>10ms`, `errors>0`, `errors>0.1%`, `rate<5000`, `cpu>50us`.
    pub(crate) fn parse(text: &str) -> Result<Condition, String> {
        let squeezed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let found =
            SIDES.iter().find_map(|(word, side)| squeezed.split_once(word).map(|parts| (parts, *side)));
        let Some(((name, limit), side)) = found else {
            return Err(format!("\"{text}\": expected a figure, > or <, and a limit, such as p99>10ms"));
        };
        let Some((_, figure)) = FIGURES.iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
            return Err(format!("\"{text}\": no figure \"{name}\"; there are {}", names.join(", ")));
        };
        let (figure, limit) = limit_of(*figure, limit).map_err(|e| format!("\"{text}\": {e}"))?;
        Ok(Condition { text: squeezed, figure, side, limit })
    }

    fn holds(&self, value: f64) -> bool {
        match self.side {
            Side::Above => value > self.limit,
            Side::NotBelow => value >= self.limit,
            Side::Below => value < self.limit,
            Side::NotAbove => value <= self.limit,
        }
    }
}

/// Reads the limit of a figure. `errors` with a `%` is a share.
fn limit_of(figure: Figure, text: &str) -> Result<(Figure, f64), String> {
    Ok(match figure {
        Figure::Errors | Figure::ErrorShare => match text.strip_suffix('%') {
            Some(share) => (Figure::ErrorShare, units::number(share)? / 100.0),
            None => (Figure::Errors, units::number(text)?),
        },
        Figure::Rate => (figure, units::number(text)?),
        _ if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') => {
            return Err("the limit is a time and needs a unit, such as 10ms".into());
        }
        _ => (figure, units::duration(text)?.as_nanos() as f64),
    })
}

impl Figure {
    /// Returns the value in a run, or the reason for which there is none.
    fn value(self, report: &Report) -> Result<f64, String> {
        let record = &report.outcome.record;
        let latency = &record.latency;
        if latency.is_empty() && !matches!(self, Figure::Errors | Figure::ErrorShare) {
            return Err("nothing was measured".into());
        }
        match self {
            Figure::Quantile(q) if !is_known(q, latency.len() as f64) => {
                Err(format!("{} requests are too few for {} %", latency.len(), percent(q)))
            }
            Figure::Quantile(q) => Ok(latency.quantile(q) as f64),
            Figure::Longest => Ok(latency.max() as f64),
            Figure::Mean => Ok(latency.mean()),
            Figure::Errors => Ok(record.errors() as f64),
            Figure::ErrorShare => Ok(record.errors() as f64 / (record.ok + record.errors()).max(1) as f64),
            Figure::Rate => Ok(report.outcome.rate()),
            Figure::Cpu => {
                let server =
                    report.server.as_ref().ok_or("the server is not a process that can be watched here")?;
                Ok(server.cpu_per_request)
            }
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Figure::Errors => format!("{value:.0}"),
            Figure::ErrorShare => format!("{:.3} %", value * 100.0),
            Figure::Rate => format!("{value:.1} requests/s"),
            _ => duration_text(value as u64),
        }
    }
}

/// Result of a condition.
#[derive(Debug)]
pub(crate) struct Verdict {
    condition: String,
    failed: bool,
    /// The value, or why there is none.
    found: String,
}

/// Judges a run by conditions. One whose figure is not known has failed: a gate that cannot look must not open.
pub(crate) fn judge(conditions: &[Condition], report: &Report) -> Vec<Verdict> {
    let judge = |c: &Condition| {
        let (failed, found) = match c.figure.value(report) {
            Ok(value) => (c.holds(value), c.figure.text(value)),
            Err(why) => (true, format!("not known: {why}")),
        };
        Verdict { condition: c.text.clone(), failed, found }
    };
    conditions.iter().map(judge).collect()
}

/// Returns the exit code: 1 if nothing was measured, 3 if a condition holds, else that of the run.
pub(crate) fn exit_code(verdicts: &[Verdict], report: &Report) -> u8 {
    match report.exit_code() {
        1 => 1,
        _ if verdicts.iter().any(|v| v.failed) => FAILED,
        code => code,
    }
}

/// Returns the lines of the summary.
pub(crate) fn text(verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    for v in verdicts {
        let mark = if v.failed { "FAILED" } else { "passed" };
        let _ = writeln!(out, "  {mark}       {}: {}", v.condition, v.found);
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

/// Escapes text for XML, and leaves out what XML cannot have.
fn xml(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control() || *c == '\n');
    let text: String = plain.collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a JUnit report: a test for each condition, and one for the figures themselves, which fails if they are void.
pub(crate) fn junit(verdicts: &[Verdict], report: &Report) -> String {
    let seconds = report.outcome.measured.as_secs_f64();
    let void: Vec<&str> = report.findings.iter().filter(|f| f.void).map(|f| f.text.as_str()).collect();
    let mut cases = vec![("the figures can be trusted".to_owned(), void.join("; "))];
    for v in verdicts {
        let why = if v.failed { format!("{} is {}", v.condition, v.found) } else { String::new() };
        cases.push((format!("not {}", v.condition), why));
    }
    let failures = cases.iter().filter(|(_, why)| !why.is_empty()).count();
    let target = xml(&report.target);
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"forebay bench {target}\" tests=\"{}\" \
         failures=\"{failures}\" errors=\"0\" skipped=\"0\" time=\"{seconds:.3}\">\n",
        cases.len()
    );
    for (name, why) in cases {
        let name = xml(&name);
        let _ = write!(out, "<testcase classname=\"forebay bench\" name=\"{name}\" time=\"{seconds:.3}\"");
        if why.is_empty() {
            out.push_str("/>\n");
        } else {
            let why = xml(&why);
            let _ = writeln!(out, "><failure message=\"{why}\">{why}</failure></testcase>");
        }
    }
    out + "</testsuite>\n</testsuites>\n"
}

/// Returns the summary of a job at GitHub, in Markdown.
fn markdown(verdicts: &[Verdict], report: &Report) -> String {
    let record = &report.outcome.record;
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let mut out = format!("### forebay bench {}\n\n", cell(&report.target));
    if !verdicts.is_empty() {
        out.push_str("| fails if | found | |\n| --- | --- | --- |\n");
        for v in verdicts {
            let mark = if v.failed { "❌ failed" } else { "✅ passed" };
            let _ = writeln!(out, "| `{}` | {} | {mark} |", cell(&v.condition), cell(&v.found));
        }
        out.push('\n');
    }
    let time = |q: f64| duration_text(record.latency.quantile(q));
    let _ = writeln!(
        out,
        "| requests/s | p50 | p99 | errors |\n| ---: | ---: | ---: | ---: |\n| {:.1} | {} | {} | {} |\n",
        report.outcome.rate(),
        time(0.5),
        time(0.99),
        record.errors()
    );
    for f in &report.findings {
        let mark = if f.void { "**Void**: " } else { "" };
        let _ = writeln!(out, "- {mark}{}", cell(&f.text));
    }
    out
}

/// Adds the summary to the one of the job, where GitHub runs this (`GITHUB_STEP_SUMMARY`).
///
/// # Errors
/// The file cannot be written.
pub(crate) fn summarize(verdicts: &[Verdict], report: &Report) -> Result<(), Error> {
    let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|p| !p.is_empty()) else { return Ok(()) };
    let name = path.to_string_lossy().into_owned();
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    let mut file = file.map_err(Error::io(&name))?;
    file.write_all(markdown(verdicts, report).as_bytes()).map_err(Error::io(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Outcome;
    use crate::load::Protocol;
    use crate::record::{Failure, Record};
    use std::time::Duration;

    fn report() -> Report {
        let mut record = Record { ok: 1990, complete: 2000, in_time: 2000, ..Record::default() };
        for n in 1..=2000u64 {
            record.latency.record(n * 10_000);
        }
        record.failures[Failure::Status as usize] = 10;
        let outcome = Outcome { record, measured: Duration::from_secs(2), ..Outcome::default() };
        Report {
            target: "http://a/?x=1&y=<2>".into(),
            manner: String::new(),
            protocol: Protocol::Http1,
            connections: 1,
            rate: None,
            outcome,
            points: Vec::new(),
            server: None,
            machine: (0.0, 0.0),
            findings: Vec::new(),
        }
    }

    fn failed(text: &str) -> bool {
        let condition = Condition::parse(text).unwrap_or_else(|e| panic!("{e}"));
        judge(&[condition], &report()).iter().all(|v| v.failed)
    }

    #[test]
    fn conditions_hold_or_not() {
        for (text, expected) in [
            ("p50>9ms", true),
            ("p50 > 11ms", false),
            ("p99>19ms", true),
            ("p99>=25ms", false),
            ("max<1s", true),
            ("mean>20ms", false),
            ("errors>0", true),
            ("errors>10", false),
            ("errors>=10", true),
            ("errors>0.4%", true),
            ("errors>1%", false),
            ("rate<1001", true),
            ("rate<1k", false),
            // Two lie above the 99.9th percentile, and nobody watches the server.
            ("p999>1h", true),
            ("cpu>1s", true),
        ] {
            assert_eq!(failed(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("p99", "expected a figure, > or <, and a limit"),
            ("p98>1ms", "no figure \"p98\"; there are p50, p75"),
            ("p99>10", "needs a unit"),
            ("p99>10s10", "expected a time"),
            ("errors>x%", "expected a number"),
            ("rate<", "expected a number"),
            (">1ms", "no figure \"\""),
        ] {
            let e = Condition::parse(text).expect_err(text);
            assert!(e.contains(words) && e.contains(text), "{text}: {e}");
        }
    }

    #[test]
    fn results_are_told_to_machines() {
        let conditions = ["p50>9ms", "errors>99"].map(|c| Condition::parse(c).expect("a condition"));
        let (report, verdicts) = (report(), judge(&conditions, &report()));
        assert_eq!((exit_code(&verdicts, &report), exit_code(&[], &report)), (3, 0));
        let xml = junit(&verdicts, &report);
        assert!(xml.contains("tests=\"3\" failures=\"1\"") && xml.contains("x=1&amp;y=&lt;2&gt;"), "{xml}");
        assert_eq!(xml.matches("<failure message=\"p50&gt;9ms is ").count(), 1, "{xml}");
        let markdown = markdown(&verdicts, &report);
        assert!(markdown.contains("| `p50>9ms` | 10.00ms | ❌ failed |"), "{markdown}");
        assert!(text(&verdicts).contains("  passed       errors>99: 10\n"), "{}", text(&verdicts));
    }

    #[test]
    fn nothing_measured_is_no_pass() {
        let mut report = report();
        report.outcome.record = Record::default();
        let verdicts = judge(&[Condition::parse("p50>9ms").expect("a condition")], &report);
        assert!(verdicts.iter().all(|v| v.failed && v.found.contains("nothing was measured")));
        assert_eq!(exit_code(&verdicts, &report), 1);
    }
}
