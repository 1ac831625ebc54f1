//! Lines above the tables: figures of the last second, problems, and reloads.

use super::Snapshot;
use super::numbers::{bytes, count, ms, number, numbers, percent, printable, rate};
use super::tables::fails;
use super::view::Range;
use forebay_terminal::{Line, Look, spark};
use serde_json::Value;

/// Returns a duration between two times of the API in words.
fn between(from: &Value, to: &Value) -> String {
    let parse = |v: &Value| v.as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok());
    let (Some(from), Some(to)) = (parse(from), parse(to)) else { return "?".to_owned() };
    match to.as_second().saturating_sub(from.as_second()).max(0) {
        s if s < 90 => format!("{s} s"),
        s if s < 5400 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

/// Figures of the last second.
struct Figures<'s>(&'s Snapshot);

impl Figures<'_> {
    fn values(&self, name: &str) -> Vec<f64> {
        numbers(&self.0.history["values"][name])
    }

    fn last(&self, name: &str) -> f64 {
        self.values(name).last().copied().unwrap_or(f64::NAN)
    }

    fn time(&self, name: &str) -> String {
        let all = self.0.history["latency"][name].as_array();
        ms(all.and_then(|all| all.last()).map_or(f64::NAN, number))
    }

    fn program(&self) -> Line {
        let (o, program) = (&self.0.overview, &self.0.overview["nginx"]);
        let rest = format!(
            "  pid {}  up {}  {} threads  configuration {}, loaded {} ago",
            program["pid"],
            between(&o["started"], &program["timestamp"]),
            program["threads"],
            program["generation"],
            between(&program["load_timestamp"], &program["timestamp"]),
        );
        Line::default()
            .add("forebay ", Look::Bold)
            .add(printable(program["version"].as_str().unwrap_or("?")), Look::Plain)
            .add(rest, Look::Dim)
    }

    fn requests(&self, width: usize, range: &Range) -> Line {
        Line::default()
            .add(format!("{:>9}", rate(self.last("requests"))), Look::Bold)
            .add(" requests/s  ", Look::Dim)
            .add(spark(&self.values("requests"), width), Look::Line)
            .add(format!(" {}  ", range.text), Look::Dim)
            .figure("CPU", percent(self.last("cpu_us") / 1e4), Look::Plain)
            .figure("memory", bytes(number(&self.0.overview["process"]["memory"])), Look::Plain)
    }

    fn classes(&self) -> Line {
        let errors = self.last("5xx");
        Line::default()
            .figure("2xx", rate(self.last("2xx")), Look::Good)
            .figure("3xx", rate(self.last("3xx")), Look::Plain)
            .figure("4xx", rate(self.last("4xx")), Look::Warn)
            .figure("5xx", rate(errors), if errors > 0.0 { Look::Bad } else { Look::Plain })
            .figure("no answer", rate(self.last("discarded")), Look::Plain)
            .figure("in", bytes(self.last("received")) + "/s", Look::Plain)
            .figure("out", bytes(self.last("sent")) + "/s", Look::Plain)
    }

    fn latency(&self, width: usize) -> Line {
        Line::default()
            .figure("time p50", self.time("p50"), Look::Plain)
            .figure("p90", self.time("p90"), Look::Plain)
            .figure("p99", self.time("p99"), Look::Bold)
            .figure("max", self.time("max"), Look::Plain)
            .add(spark(&numbers(&self.0.history["latency"]["p99"]), width), Look::Line)
            .add(" p99", Look::Dim)
    }

    fn connections(&self) -> Line {
        let handshakes = self.last("tls12") + self.last("tls13");
        Line::default()
            .figure("connections", count(self.last("active")), Look::Plain)
            .figure("idle", count(self.last("idle")), Look::Plain)
            .figure("accepted", rate(self.last("accepted")) + "/s", Look::Plain)
            .figure("TLS", rate(handshakes) + "/s", Look::Plain)
            .figure("resumed", percent(100.0 * self.last("tls_resumed") / handshakes), Look::Plain)
            .figure("failed", rate(self.last("tls_failed")) + "/s", Look::Plain)
            .figure("HTTP/2", percent(100.0 * self.last("http2") / self.last("requests")), Look::Plain)
    }
}

/// Returns the figures of all requests and connections.
pub(super) fn summary(snapshot: &Snapshot, range: &Range, width: usize) -> Vec<Line> {
    let figures = Figures(snapshot);
    let wide = width.saturating_sub(56).clamp(10, 60);
    vec![
        figures.program(),
        figures.requests(wide, range),
        figures.classes(),
        figures.latency(wide * 3 / 4),
        figures.connections(),
    ]
}

/// Returns the two most important of these lines, for low terminals.
pub(super) fn short_summary(snapshot: &Snapshot, range: &Range, width: usize) -> Vec<Line> {
    let figures = Figures(snapshot);
    vec![figures.requests(width.saturating_sub(56).min(60), range), figures.latency(0)]
}

/// Returns the last reloads and the warnings of `forebay doctor`, under their titles.
pub(super) fn notes(o: &Value) -> Vec<Line> {
    let title = |text: &str| [Line::default(), Line::default().add(text, Look::Bold)];
    let mut lines = Vec::from(title("Reloads"));
    lines.extend(reloads(&o["reloads"]));
    lines.extend(title("Warnings"));
    lines.extend(warnings(&o["warnings"]));
    lines
}

fn warnings(value: &Value) -> Vec<Line> {
    let mut lines: Vec<Line> = elements(&value["warnings"])
        .map(|w| {
            let part = |name: &str| printable(w[name].as_str().unwrap_or_default());
            let look = match w["severity"].as_str() {
                Some("harm") => Look::Bad,
                Some("warning") => Look::Warn,
                _ => Look::Dim,
            };
            let rest = format!("  {}, {}", part("rule"), part("place"));
            let line = Line::default().add(part("severity"), look).add(" ", Look::Plain);
            line.add(part("message"), Look::Plain).add(rest, Look::Dim)
        })
        .collect();
    if lines.is_empty() {
        lines.push(Line::dim("none about the configuration"));
    }
    lines
}

/// Returns the elements of a list.
fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns the problems, a line for each.
pub(super) fn problems(s: &Snapshot) -> Vec<Line> {
    let o = &s.overview;
    let refused = o["reloads"]["events"][0]["error"].as_str().filter(|_| o["reloads"]["last_failed"] == true);
    let refused = refused.map(|reason| format!("the last reload was refused: {}", printable(reason)));
    let harm = elements(&o["warnings"]["warnings"]).filter(|w| w["severity"] == "harm").count();
    let counts = [
        (harm as u64, "harmful settings: forebay doctor"),
        (o["processes"]["respawned"].as_u64().unwrap_or(0), "worker processes died and were replaced"),
        (o["nginx"]["panics"].as_u64().unwrap_or(0), "panics, each of which cost a connection"),
        (o["nginx"]["long_turns"].as_u64().unwrap_or(0), "times a thread was held up for over a second"),
        (o["nginx"]["log_lines_lost"].as_u64().unwrap_or(0), "lines of logs lost"),
    ];
    let counts = counts.into_iter().filter(|(n, _)| *n > 0).map(|(n, text)| format!("{n} {text}"));
    let groups = ["http", "stream"].into_iter().flat_map(|block| {
        let history = &s.history["rows"][format!("{block}/upstreams")];
        groups_with_failures(&o[block]["upstreams"], history)
    });
    let all =
        groups.chain(refused).chain(elements(&o["certificates"]).filter_map(near_its_end)).chain(counts);
    all.map(|text| Line::bad(format!("! {text}"))).collect()
}

fn groups_with_failures<'s>(upstreams: &'s Value, history: &'s Value) -> impl Iterator<Item = String> + 's {
    upstreams.as_object().into_iter().flatten().flat_map(|(group, u)| {
        let count = |chosen: &dyn Fn(&Value) -> bool| elements(&u["peers"]).filter(|p| chosen(p)).count();
        let down = count(&|p| p["state"] != "up" && p["state"] != "draining");
        let failing = count(&|p| {
            let server = p["server"].as_str().unwrap_or_default();
            p["state"] == "up" && fails(&history[group.as_str()][server])
        });
        let all = count(&|_| true);
        let text = |n: usize, what: &str| {
            (n > 0).then(|| format!("{}: {n} of {all} servers {what}", printable(group)))
        };
        [text(down, "not in use"), text(failing, "fail all requests")].into_iter().flatten()
    })
}

/// Describes a certificate that has few days left, or none.
fn near_its_end(certificate: &Value) -> Option<String> {
    let name = certificate["names"][0].as_str().or(certificate["file"].as_str());
    let name = printable(name.unwrap_or_default());
    match certificate["days_left"].as_i64() {
        None => Some(format!("{name}: no certificate yet")),
        Some(days) if days < 0 => Some(format!("{name}: the certificate has expired")),
        Some(days) if days < 14 => Some(format!("{name}: the certificate has {days} days left")),
        Some(_) => None,
    }
}

/// Returns the last reloads.
fn reloads(value: &Value) -> Vec<Line> {
    let events: Vec<_> = value["events"].as_array().into_iter().flatten().collect();
    if events.is_empty() {
        return vec![Line::dim("none since the start of the process")];
    }
    let mut lines = Vec::new();
    for event in events {
        let time = event["time"].as_str().unwrap_or_default();
        if let Some(reason) = event["error"].as_str() {
            lines.push(Line::bad(format!("{time} refused: {}", printable(reason))));
            continue;
        }
        let c = &event["counts"];
        let text = format!(
            "{time} configuration {}: {} files, {} directives added, {} removed",
            event["generation"], c["files"], c["added"], c["removed"]
        );
        lines.push(Line::default().add(text, Look::Plain));
        for (sign, list) in [("-", "removed"), ("+", "added")] {
            let all = event[list].as_array().into_iter().flatten().filter_map(Value::as_str);
            lines.extend(all.map(|d| Line::dim(format!("  {sign} {}", printable(d)))));
        }
    }
    lines
}
