//! Lines of the screen: a summary, the problems, and the tables of a tab.

use super::Snapshot;
use super::numbers::{bytes, count, ms, number, numbers, percent, printable, rate, spark};
use super::screen::Key;
use super::tables::{Cell, TABS, Table};
use serde_json::Value;
use std::cmp::Ordering;

/// Look of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
    Line,
    Chosen,
}

impl Look {
    /// Returns the parameters of the escape sequence that sets it.
    fn code(self) -> &'static str {
        match self {
            Look::Plain => "0",
            Look::Bold => "1",
            Look::Dim => "2",
            Look::Good => "32",
            Look::Warn => "33",
            Look::Bad => "31",
            Look::Line => "36",
            Look::Chosen => "7",
        }
    }
}

/// Line of the screen.
#[derive(Clone, Debug, Default)]
pub(super) struct Line(Vec<(String, Look)>);

impl Line {
    pub(super) fn bad(text: String) -> Line {
        Line(vec![(text, Look::Bad)])
    }

    pub(super) fn dim(text: String) -> Line {
        Line(vec![(text, Look::Dim)])
    }

    fn add(mut self, text: impl Into<String>, look: Look) -> Line {
        self.0.push((text.into(), look));
        self
    }

    /// Adds a name and a value.
    fn figure(self, name: &str, value: String, look: Look) -> Line {
        self.add(format!("{name} "), Look::Dim).add(value, look).add("  ", Look::Plain)
    }

    /// Returns the text.
    pub(super) fn plain(&self) -> String {
        let text: String = self.0.iter().map(|(text, _)| text.as_str()).collect();
        text.trim_end().to_owned()
    }

    /// Returns the text for a terminal, cut to a width.
    pub(super) fn colored(&self, width: usize, color: bool) -> String {
        let (mut out, mut room) = (String::new(), width);
        for (text, look) in &self.0 {
            let piece: String = text.chars().take(room).collect();
            room -= piece.chars().count();
            match (*look, color) {
                (Look::Plain, _) => out.push_str(&piece),
                // Without colours the chosen one must show.
                (look, false) if look != Look::Chosen => out.push_str(&piece),
                (look, _) => out.push_str(&format!("\x1b[{}m{piece}\x1b[0m", look.code())),
            }
        }
        out
    }
}

/// State of the screen.
#[derive(Debug, Default)]
pub(super) struct View {
    tab: usize,
    /// Column by which tables are sorted; `None` keeps the order of names.
    sort: Option<usize>,
    reverse: bool,
    /// Rows above the screen.
    scroll: usize,
    pub(super) paused: bool,
}

impl View {
    pub(super) fn press(&mut self, key: Key) {
        let tabs = TABS.len();
        match key {
            Key::Tab(n) if n < tabs => self.turn_to(n),
            Key::NextTab => self.turn_to((self.tab + 1) % tabs),
            Key::FormerTab => self.turn_to((self.tab + tabs - 1) % tabs),
            Key::NextColumn => self.sort = Some(self.sort.map_or(0, |n| n + 1)),
            Key::FormerColumn => self.sort = self.sort.and_then(|n| n.checked_sub(1)),
            Key::Reverse => self.reverse = !self.reverse,
            Key::Up => self.scroll = self.scroll.saturating_sub(1),
            Key::Down => self.scroll += 1,
            Key::PageUp => self.scroll = self.scroll.saturating_sub(10),
            Key::PageDown => self.scroll += 10,
            Key::Top => self.scroll = 0,
            Key::Pause => self.paused = !self.paused,
            Key::Quit | Key::Tab(_) | Key::Other => {}
        }
    }

    fn turn_to(&mut self, tab: usize) {
        *self = View { tab, paused: self.paused, ..View::default() };
    }

    /// Returns the lines of a screen.
    pub(super) fn lines(&mut self, snapshot: &Snapshot, width: usize, height: usize) -> Vec<Line> {
        let mut lines = summary(snapshot, width);
        lines.extend(problems(&snapshot.overview).into_iter().take(4));
        lines.push(Line::default());
        lines.push(self.tabs());
        let Some((_, tables)) = TABS.get(self.tab) else { return lines };
        let mut rows = Vec::new();
        for mut table in tables(snapshot) {
            let column = self.sort.map(|n| n % table.heads.len().max(1));
            sort(&mut table, column, self.reverse);
            rows.extend(render(&table, width, column));
        }
        let room = height.saturating_sub(lines.len() + 1).max(1);
        self.scroll = self.scroll.min(rows.len().saturating_sub(room));
        lines.extend(rows.into_iter().skip(self.scroll).take(room));
        lines.resize(height.saturating_sub(1).max(lines.len()), Line::default());
        let keys =
            "q quit  Tab 1-5 tabs  s S sort by the next or last column  r reverse  ↑ ↓ scroll  p pause";
        lines.push(Line::dim(if self.paused { format!("PAUSED  {keys}") } else { keys.to_owned() }));
        lines
    }

    fn tabs(&self) -> Line {
        TABS.iter().enumerate().fold(Line::default(), |line, (n, (name, _))| {
            let look = if n == self.tab { Look::Chosen } else { Look::Dim };
            line.add(format!(" {} {name} ", n + 1), look).add(" ", Look::Plain)
        })
    }
}

/// Returns all there is, for `--once`.
pub(super) fn everything(snapshot: &Snapshot, width: usize) -> Vec<Line> {
    let mut lines = summary(snapshot, width);
    lines.extend(problems(&snapshot.overview));
    for mut table in TABS.iter().flat_map(|(_, tables)| tables(snapshot)) {
        sort(&mut table, None, false);
        lines.extend(render(&table, width, None));
    }
    lines.push(Line::default());
    lines.push(Line::default().add("Reloads", Look::Bold));
    lines.extend(reloads(&snapshot.overview["reloads"]));
    lines
}

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

fn summary(s: &Snapshot, width: usize) -> Vec<Line> {
    let (o, program) = (&s.overview, &s.overview["nginx"]);
    let values = |name: &str| numbers(&s.history["values"][name]);
    let last = |name: &str| values(name).last().copied().unwrap_or(f64::NAN);
    let time = |name: &str| {
        let all = s.history["latency"][name].as_array();
        ms(all.and_then(|all| all.last()).map_or(f64::NAN, number))
    };
    let head = Line::default()
        .add("forebay ", Look::Bold)
        .add(printable(program["version"].as_str().unwrap_or("?")), Look::Plain)
        .add(
            format!(
                "  pid {}  up {}  {} threads  configuration {}, loaded {} ago",
                program["pid"],
                between(&o["started"], &program["timestamp"]),
                program["threads"],
                program["generation"],
                between(&program["load_timestamp"], &program["timestamp"]),
            ),
            Look::Dim,
        );
    let wide = width.saturating_sub(34).clamp(10, 60);
    let requests = Line::default()
        .add(format!("{:>9}", rate(last("requests"))), Look::Bold)
        .add(" requests/s  ", Look::Dim)
        .add(spark(&values("requests"), wide), Look::Line)
        .add(" 60 s", Look::Dim);
    let errors = last("5xx");
    let classes = Line::default()
        .figure("2xx", rate(last("2xx")), Look::Good)
        .figure("3xx", rate(last("3xx")), Look::Plain)
        .figure("4xx", rate(last("4xx")), Look::Warn)
        .figure("5xx", rate(errors), if errors > 0.0 { Look::Bad } else { Look::Plain })
        .figure("no answer", rate(last("discarded")), Look::Plain)
        .figure("in", bytes(last("received")) + "/s", Look::Plain)
        .figure("out", bytes(last("sent")) + "/s", Look::Plain);
    let latency = Line::default()
        .figure("time p50", time("p50"), Look::Plain)
        .figure("p90", time("p90"), Look::Plain)
        .figure("p99", time("p99"), Look::Bold)
        .figure("max", time("max"), Look::Plain)
        .add(spark(&numbers(&s.history["latency"]["p99"]), wide / 2), Look::Line)
        .add(" p99", Look::Dim);
    let handshakes = last("tls12") + last("tls13");
    let connections = Line::default()
        .figure("connections", count(last("active")), Look::Plain)
        .figure("idle", count(last("idle")), Look::Plain)
        .figure("accepted", rate(last("accepted")) + "/s", Look::Plain)
        .figure("TLS", rate(handshakes) + "/s", Look::Plain)
        .figure("resumed", percent(100.0 * last("tls_resumed") / handshakes), Look::Plain)
        .figure("failed", rate(last("tls_failed")) + "/s", Look::Plain)
        .figure("HTTP/2", percent(100.0 * last("http2") / last("requests")), Look::Plain);
    vec![head, requests, classes, latency, connections]
}

/// Returns what somebody should look at.
fn problems(o: &Value) -> Vec<Line> {
    let mut found = Vec::new();
    for block in ["http", "stream"] {
        for (group, u) in o[block]["upstreams"].as_object().into_iter().flatten() {
            let peers: Vec<_> = u["peers"].as_array().into_iter().flatten().collect();
            let down = peers.iter().filter(|p| p["state"] != "up" && p["state"] != "draining").count();
            if down > 0 {
                found.push(format!("{}: {down} of {} servers not in use", printable(group), peers.len()));
            }
        }
    }
    if o["reloads"]["last_failed"] == true {
        let reason = o["reloads"]["events"][0]["error"].as_str().unwrap_or_default();
        found.push(format!("the last reload was refused: {}", printable(reason)));
    }
    for c in o["certificates"].as_array().into_iter().flatten().filter(|c| c["days_left"].as_i64() < Some(14))
    {
        let name = printable(c["names"][0].as_str().unwrap_or_default());
        found.push(match c["days_left"].as_i64() {
            None => format!("{name}: no certificate yet"),
            Some(days) => format!("{name}: the certificate has {days} days left"),
        });
    }
    let warnings = o["warnings"]["warnings"].as_array().into_iter().flatten();
    let harm = warnings.filter(|w| w["severity"] == "harm").count();
    for (n, text) in [
        (harm as u64, "harmful settings: forebay doctor"),
        (o["processes"]["respawned"].as_u64().unwrap_or(0), "worker processes died and were replaced"),
        (o["nginx"]["panics"].as_u64().unwrap_or(0), "panics, each of which cost a connection"),
        (o["nginx"]["log_lines_lost"].as_u64().unwrap_or(0), "lines of logs lost"),
    ] {
        if n > 0 {
            found.push(format!("{n} {text}"));
        }
    }
    found.into_iter().map(|text| Line::bad(format!("! {text}"))).collect()
}

fn reloads(value: &Value) -> Vec<Line> {
    let events: Vec<_> = value["events"].as_array().into_iter().flatten().collect();
    if events.is_empty() {
        return vec![Line::dim("none since the start of the process".to_owned())];
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

/// Compares texts, the numbers in them by their values.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.chars().peekable(), b.chars().peekable());
    let take = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| -> u64 {
        let mut n = 0u64;
        while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
            n = n.saturating_mul(10).saturating_add(digit.into());
            chars.next();
        }
        n
    };
    loop {
        let digits = |c: Option<&char>| c.is_some_and(char::is_ascii_digit);
        let order = if digits(a.peek()) && digits(b.peek()) {
            take(&mut a).cmp(&take(&mut b))
        } else {
            match (a.next(), b.next()) {
                (None, None) => return Ordering::Equal,
                (x, y) => x.cmp(&y),
            }
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn compare(a: &Cell, b: &Cell) -> Ordering {
    match (a, b) {
        // Great numbers first.
        (Cell::Number(a, ..), Cell::Number(b, ..)) => {
            let known = |v: &f64| if v.is_nan() { f64::NEG_INFINITY } else { *v };
            known(b).total_cmp(&known(a))
        }
        (Cell::Trend(a), Cell::Trend(b)) => b.iter().sum::<f64>().total_cmp(&a.iter().sum()),
        (a, b) => natural(&a.text(), &b.text()),
    }
}

/// Sorts the rows by a column, and by their names.
fn sort(table: &mut Table, column: Option<usize>, reverse: bool) {
    let by = |a: &[Cell], b: &[Cell], n: usize| match (a.get(n), b.get(n)) {
        (Some(a), Some(b)) => compare(a, b),
        _ => Ordering::Equal,
    };
    table.rows.sort_by(|a, b| {
        let chosen = column.map_or(Ordering::Equal, |n| by(a, b, n));
        let chosen = chosen.then_with(|| by(a, b, 0)).then_with(|| by(a, b, 1));
        if reverse { chosen.reverse() } else { chosen }
    });
}

/// Least and greatest width of a spark line.
const TREND: (usize, usize) = (8, 30);
/// Greatest width of a text, unless there is room.
const TEXT: usize = 40;

/// Returns the widths of the columns, as far as they fit: the last ones are left out, and the spark line takes what is left.
fn widths(table: &Table, width: usize) -> Vec<usize> {
    let wanted = |n: usize, head: &str| {
        let cells = table.rows.iter().filter_map(|row| row.get(n));
        let cell = |cell: &Cell| match cell {
            Cell::Trend(_) => TREND.0,
            Cell::Text(text) => text.chars().count().min(TEXT),
            other => other.text().chars().count(),
        };
        cells.map(cell).max().unwrap_or(0).max(head.chars().count())
    };
    let mut widths: Vec<usize> = table.heads.iter().enumerate().map(|(n, head)| wanted(n, head)).collect();
    let total = |widths: &[usize]| widths.iter().map(|w| w + 2).sum::<usize>().saturating_sub(2);
    while widths.len() > 2 && total(&widths) > width {
        widths.pop();
    }
    let left = width.saturating_sub(total(&widths));
    let trend = table.heads.iter().position(|head| *head == "TREND");
    if let Some(w) = trend.and_then(|n| widths.get_mut(n)) {
        *w = (*w + left).min(TREND.1);
    }
    widths
}

/// Writes a cell into its width.
fn cell(cell: &Cell, width: usize) -> (String, Look) {
    match cell {
        Cell::Trend(values) => (spark(values, width), Look::Line),
        Cell::Number(value, show, bad) => {
            let look = if *bad && *value != 0.0 { Look::Bad } else { Look::Plain };
            (format!("{:>width$}", show(*value)), look)
        }
        Cell::Text(text) => {
            let look = match text.as_str() {
                "up" => Look::Good,
                "down" | "unavail" | "unhealthy" => Look::Bad,
                "draining" | "checking" => Look::Warn,
                _ => Look::Plain,
            };
            let long = text.chars().count() > width;
            let mut text: String =
                text.chars().take(if long { width.saturating_sub(1) } else { width }).collect();
            if long {
                text.push('…');
            }
            (format!("{text:width$}"), look)
        }
    }
}

/// Returns the lines of a table. The head of the column that it is sorted by is marked.
fn render(table: &Table, width: usize, sorted: Option<usize>) -> Vec<Line> {
    let mut lines = vec![Line::default(), Line::default().add(table.title, Look::Bold)];
    if table.rows.is_empty() {
        lines.push(Line::dim(table.empty.to_owned()));
        return lines;
    }
    let widths = widths(table, width);
    let head = table.heads.iter().zip(&widths).enumerate().fold(Line::default(), |line, (n, (head, &w))| {
        let left = table.rows.iter().all(|row| !matches!(row.get(n), Some(Cell::Number(..))));
        let text = if left { format!("{head:w$}") } else { format!("{head:>w$}") };
        line.add(text, if sorted == Some(n) { Look::Chosen } else { Look::Dim }).add("  ", Look::Plain)
    });
    lines.push(head);
    lines.extend(table.rows.iter().map(|row| {
        row.iter().zip(&widths).fold(Line::default(), |line, (c, &w)| {
            let (text, look) = cell(c, w);
            line.add(text, look).add("  ", Look::Plain)
        })
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot() -> Snapshot {
        let zone = |requests: u64| json!({"requests": requests, "responses": {"2xx": requests, "5xx": 3}, "sent": 1500, "received": 10, "request_time": 0.25});
        let peer = |server: &str, state: &str| json!({"server": server, "state": state, "active": 0, "requests": 7, "fails": 0});
        Snapshot {
            overview: json!({
                "nginx": {"version": "0.1.0", "pid": 7, "threads": 2, "generation": 3, "load_timestamp": "2026-01-01T00:10:00.000Z",
                    "timestamp": "2026-01-01T02:00:00.000Z"},
                "started": "2026-01-01T00:00:00.000Z",
                "http": {"server_zones": {"a10.test": zone(5), "a9.test": zone(50)},
                    "upstreams": {"app": {"peers": [peer("10.0.0.1:80", "up"), peer("10.0.0.2:80", "unavail")]}}},
                "reloads": {"last_failed": true, "events": [{"time": "t", "error": "unknown directive\u{1b}"}]},
                "certificates": [{"names": ["a.test"], "days_left": 3, "source": "file", "file": "/a.pem", "expires": "x"}],
            }),
            history: json!({
                "values": {"requests": [1, 2, 1234]},
                "latency": {"p99": [null, 2.5]},
                "rows": {"http/server_zones": {"a9.test": [[0, 4, 8], [0, 0, 0]]}},
            }),
        }
    }

    #[test]
    fn a_snapshot_is_readable_as_text() {
        let lines: Vec<String> = everything(&snapshot(), 100).iter().map(Line::plain).collect();
        let text = lines.join("\n");
        for part in [
            "forebay 0.1.0  pid 7  up 2 h  2 threads  configuration 3, loaded 1 h ago",
            "1234 requests/s",
            "p99 2.50ms",
            "! app: 1 of 2 servers not in use",
            "! the last reload was refused: unknown directive?",
            "! a.test: the certificate has 3 days left",
            "unavail",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        // Numbers in names count as such.
        let at = |name: &str| lines.iter().position(|l| l.starts_with(name)).expect(name);
        assert!(at("a9.test") < at("a10.test"), "{text}");
        let row = &lines[at("a9.test")];
        assert!(row.contains("▄█") && row.contains("1.50kB"), "{row}");
        assert!(lines.iter().all(|l| l.chars().count() <= 100), "{text}");
    }

    #[test]
    fn tabs_sorting_and_narrow_terminals() {
        let mut view = View::default();
        let text = |view: &mut View, width| -> Vec<String> {
            view.lines(&snapshot(), width, 30).iter().map(|l| l.colored(width, false)).collect()
        };
        for _ in 0..4 {
            view.press(Key::NextColumn);
        }
        let rows = text(&mut view, 60);
        let at = |name: &str| rows.iter().position(|l| l.starts_with(name)).expect(name);
        assert!(at("a9.test") < at("a10.test"), "most requests first: {rows:#?}");
        view.press(Key::Reverse);
        let rows = text(&mut view, 60);
        assert!(
            rows.iter().position(|l| l.starts_with("a10")) < rows.iter().position(|l| l.starts_with("a9"))
        );
        assert_eq!(rows.len(), 30);
        view.press(Key::Tab(1));
        let rows = text(&mut view, 40).join("\n");
        assert!(rows.contains("10.0.0.2:80") && !rows.contains("FAILS"), "{rows}");
        view.press(Key::FormerTab);
        assert_eq!((view.tab, view.sort), (0, None));
    }

    #[test]
    fn lines_are_cut_to_the_width() {
        let line = Line::default().add("abc", Look::Bold).add("def", Look::Bad);
        assert_eq!(line.colored(4, true), "\x1b[1mabc\x1b[0m\x1b[31md\x1b[0m");
        assert_eq!((line.colored(4, false), line.plain()), ("abcd".into(), "abcdef".into()));
    }
}
