//! Lines of the screen: a summary, the problems, and the tables of a tab.

use super::Snapshot;
use super::keys::Key;
use super::layout::{render, sort};
use super::summary::{notes, problems, short_summary, summary};
use super::tables::TABS;
use forebay_terminal::{Line, Look};

/// Range of time that trends cover.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Range {
    /// Name in the API.
    pub(super) name: &'static str,
    /// Length.
    pub(super) text: &'static str,
}

pub(super) const MINUTE: Range = Range { name: "minute", text: "60 s" };
pub(super) const HOUR: Range = Range { name: "hour", text: "1 h" };
pub(super) const DAY: Range = Range { name: "day", text: "24 h" };

impl Default for Range {
    fn default() -> Range {
        MINUTE
    }
}

/// Lines and columns below which a screen shows less around its tables.
const LOW: usize = 16;
const NARROW: usize = 60;

/// State of the screen.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) range: Range,
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
            Key::Range(range) => self.range = range,
            Key::Quit | Key::Tab(_) | Key::Other => {}
        }
    }

    fn turn_to(&mut self, tab: usize) {
        *self = View { tab, paused: self.paused, range: self.range, ..View::default() };
    }

    /// Returns the lines of a screen.
    pub(super) fn lines(&mut self, snapshot: &Snapshot, width: usize, height: usize) -> Vec<Line> {
        let is_low = height < LOW;
        let summary = if is_low { short_summary } else { summary };
        let mut lines = summary(snapshot, &self.range, width);
        lines.extend(problems(snapshot).into_iter().take(if is_low { 1 } else { 4 }));
        lines.extend((!is_low).then(Line::default));
        lines.push(self.tabs(width));
        let Some((_, tables)) = TABS.get(self.tab) else { return lines };
        let mut rows = Vec::new();
        for mut table in tables(snapshot) {
            let column = self.sort.map(|n| n % table.heads.len().max(1));
            sort(&mut table, column, self.reverse);
            rows.extend(render(&table, width, column));
        }
        if self.tab + 1 == TABS.len() {
            rows.extend(notes(&snapshot.overview));
        }
        if is_low {
            // The empty line before the first title.
            rows.remove(0);
        }
        let room = height.saturating_sub(lines.len() + 1).max(1);
        self.scroll = self.scroll.min(rows.len().saturating_sub(room));
        lines.extend(rows.into_iter().skip(self.scroll).take(room));
        lines.resize(height.saturating_sub(1).max(lines.len()), Line::default());
        let keys = "q quit  Tab 1-5 tabs  m h d range  s S sort by next, last column  r reverse  ↑ ↓ scroll  p pause";
        lines.push(Line::dim(if self.paused { format!("PAUSED  {keys}") } else { keys.to_owned() }));
        lines
    }

    fn tabs(&self, width: usize) -> Line {
        TABS.iter().enumerate().fold(Line::default(), |line, (n, (name, _))| {
            let look = if n == self.tab { Look::Chosen } else { Look::Dim };
            let name = if width < NARROW && n != self.tab { String::new() } else { format!("{name} ") };
            line.add(format!(" {} {name}", n + 1), look).add(" ", Look::Plain)
        })
    }
}

/// Returns all there is, for `--once`.
pub(super) fn everything(snapshot: &Snapshot, width: usize) -> Vec<Line> {
    let mut lines = summary(snapshot, &MINUTE, width);
    lines.extend(problems(snapshot));
    for mut table in TABS.iter().flat_map(|(_, tables)| tables(snapshot)) {
        sort(&mut table, None, false);
        lines.extend(render(&table, width, None));
    }
    lines.extend(notes(&snapshot.overview));
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
                    "upstreams": {"app": {"peers": [peer("10.0.0.1:80", "up"), peer("10.0.0.2:80", "unavail")]},
                        "broken": {"peers": [peer("10.0.0.3:80", "up")]}}},
                "reloads": {"last_failed": true, "events": [{"time": "t", "error": "unknown directive\u{1b}"}]},
                "certificates": [{"names": ["a.test"], "days_left": 3, "source": "file", "file": "/a.pem", "expires": "x"},
                    {"names": [], "days_left": -1, "source": "file", "file": "/old.pem", "expires": "x"}],
                "process": {"memory": 16_500_000},
                "warnings": {"warnings": [{"rule": "gzip-off", "severity": "harm", "message": "no compression", "place": "nginx.conf:3"}]},
            }),
            history: json!({
                "values": {"requests": [1, 2, 1234], "cpu_us": [0, 123_000]},
                "latency": {"p99": [null, 2.5]},
                "rows": {"http/server_zones": {"a9.test": [[0, 4, 8], [0, 0, 0]]},
                    "http/upstreams": {"app": {"10.0.0.1:80": [[3, 3], [0, 1]]}, "broken": {"10.0.0.3:80": [[3, 3], [2, 4]]}}},
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
            "! broken: 1 of 1 servers fail all requests",
            "! the last reload was refused: unknown directive?",
            "! a.test: the certificate has 3 days left",
            "! /old.pem: the certificate has expired",
            "CPU 12.3%  memory 16.5MB",
            "harm no compression  gzip-off, nginx.conf:3",
            "unavail",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        assert!(!text.contains("app: 1 of 2 servers fail") && text.matches("failing").count() == 1, "{text}");
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
    fn a_low_and_narrow_terminal_shows_rows() {
        let mut view = View::default();
        view.press(Key::Range(HOUR));
        view.press(Key::Tab(1));
        let lines: Vec<String> =
            view.lines(&snapshot(), 40, 10).iter().map(|l| l.colored(40, false)).collect();
        let text = lines.join("\n");
        assert_eq!(lines.len(), 10, "{text}");
        for part in [
            "1234 requests/s",
            "1 h",
            "p99 2.50ms",
            "\x1b[7m 2 Upstreams \x1b[0m  3   4   5 ",
            "10.0.0.2:80",
            "q quit",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        view.press(Key::Tab(4));
        for _ in 0..99 {
            view.press(Key::Down);
        }
        let text: String = view.lines(&snapshot(), 80, 24).iter().map(|l| l.plain() + "\n").collect();
        assert!(text.contains("Reloads") && text.contains("harm no compression"), "{text}");
    }
}
