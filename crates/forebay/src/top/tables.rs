//! Tables of servers, locations, upstreams, caches, limits and threads, from the answers of the API.

use super::Snapshot;
use super::numbers::{bytes, count, ms, number, numbers, percent, printable, rate};
use serde_json::Value;

/// Cell of a table.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    /// Text on the left.
    Text(String),
    /// Number, and how it is written. It counts as bad if the flag is set.
    Number(f64, fn(f64) -> String, bool),
    /// Spark line.
    Trend(Vec<f64>),
}

impl Cell {
    /// Returns what is written, without a spark line.
    pub(super) fn text(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Number(value, show, _) => show(*value),
            Cell::Trend(_) => String::new(),
        }
    }
}

/// Table of one collection.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) heads: Vec<&'static str>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// Text in place of an empty table.
    pub(super) empty: &'static str,
}

/// Tab with its tables.
type Tab = (&'static str, fn(&Snapshot) -> Vec<Table>);

/// All tabs.
pub(super) const TABS: [Tab; 5] = [
    ("Servers", |s| {
        vec![
            zones(s, "Servers", "server_zones", "no server"),
            zones(s, "Locations", "location_zones", "status_zone NAME; in a location counts what it answers"),
        ]
    }),
    ("Upstreams", |s| vec![peers(s, "http")]),
    ("Caches", |s| vec![caches(s), limits(s)]),
    ("Streams", |s| vec![sessions(s), peers(s, "stream")]),
    ("System", |s| vec![threads(s), certificates(s)]),
];

const BAD: bool = true;
const PLAIN: bool = false;

fn of(value: &Value, cls: bool) -> Cell {
    Cell::Number(number(value), count, cls)
}

fn size(value: &Value) -> Cell {
    Cell::Number(number(value), bytes, PLAIN)
}

fn time(value: &Value) -> Cell {
    Cell::Number(number(value), ms, PLAIN)
}

fn text(value: &Value) -> Cell {
    Cell::Text(printable(value.as_str().unwrap_or_default()))
}

/// Returns the members of an object.
fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Returns the spark line of a row, and its last value for each second.
fn trend(row: &Value) -> [Cell; 2] {
    let values = numbers(&row[0]);
    let last = values.last().copied().unwrap_or(0.0);
    [Cell::Trend(values), Cell::Number(last, rate, PLAIN)]
}

/// Values in a row of which the outcome is judged.
const JUDGED: usize = 10;

/// Returns `true` if the last requests of a server have failed. A server that is alone in its group is up all the same: nobody else
/// could get its requests.
pub(super) fn fails(row: &Value) -> bool {
    let last = |list: &Value| numbers(list).iter().rev().take(JUDGED).sum::<f64>();
    let (all, bad) = (last(&row[0]), last(&row[1]));
    // An attempt and its failure may be counted in different seconds.
    all > 0.0 && bad >= 0.9 * all
}

fn zones(s: &Snapshot, title: &'static str, collection: &'static str, empty: &'static str) -> Table {
    let history = &s.history["rows"][format!("http/{collection}")];
    let row = |(name, z): (&String, &Value)| {
        let [line, per_second] = trend(&history[name.as_str()]);
        let classes = &z["responses"];
        vec![
            Cell::Text(printable(name)),
            line,
            per_second,
            of(&z["requests"], PLAIN),
            of(&classes["2xx"], PLAIN),
            of(&classes["3xx"], PLAIN),
            of(&classes["4xx"], PLAIN),
            of(&classes["5xx"], BAD),
            time(&z["request_time"]),
            size(&z["received"]),
            size(&z["sent"]),
        ]
    };
    Table {
        title,
        heads: vec!["NAME", "TREND", "REQ/S", "REQUESTS", "2XX", "3XX", "4XX", "5XX", "MEAN", "IN", "OUT"],
        rows: members(&s.overview["http"][collection]).map(row).collect(),
        empty,
    }
}

fn peers(s: &Snapshot, block: &'static str) -> Table {
    let history = &s.history["rows"][format!("{block}/upstreams")];
    let total = if block == "http" { "requests" } else { "connections" };
    let row = |group: &str, p: &Value| {
        let server = p["server"].as_str().unwrap_or_default();
        let [line, per_second] = trend(&history[group][server]);
        let backup = if p["backup"] == true { " (backup)" } else { "" };
        vec![
            Cell::Text(printable(group)),
            Cell::Text(printable(server) + backup),
            match p["state"] == "up" && fails(&history[group][server]) {
                true => Cell::Text("failing".to_owned()),
                false => text(&p["state"]),
            },
            line,
            per_second,
            of(&p["active"], PLAIN),
            of(&p[total], PLAIN),
            of(&p["responses"]["5xx"], BAD),
            of(&p["fails"], BAD),
            time(&p["response_time"]),
            size(&p["received"]),
        ]
    };
    let groups = members(&s.overview[block]["upstreams"]);
    let of_group = |(group, u): (&String, &Value)| -> Vec<Vec<Cell>> {
        u["peers"].as_array().into_iter().flatten().map(|p| row(group, p)).collect()
    };
    Table {
        title: "Upstreams",
        heads: vec!["GROUP", "SERVER", "STATE", "TREND", "PER S", "NOW", "ALL", "5XX", "FAILS", "TIME", "IN"],
        rows: groups.flat_map(of_group).collect(),
        empty: "there is no upstream { } group",
    }
}

fn caches(s: &Snapshot) -> Table {
    let history = &s.history["rows"]["http/caches"];
    let row = |(name, c): (&String, &Value)| {
        let [line, per_second] = trend(&history[name.as_str()]);
        let kinds = ["hit", "miss", "expired", "stale", "updating", "revalidated", "bypass"];
        let all: f64 = kinds.iter().map(|kind| c[kind]["responses"].as_f64().unwrap_or(0.0)).sum();
        let hits = number(&c["hit"]["responses"]);
        vec![
            Cell::Text(printable(name)),
            line,
            per_second,
            Cell::Number(100.0 * hits / all, percent, PLAIN),
            of(&c["hit"]["responses"], PLAIN),
            of(&c["miss"]["responses"], PLAIN),
            of(&c["expired"]["responses"], PLAIN),
            of(&c["entries"], PLAIN),
            size(&c["size"]),
            size(&c["max_size"]),
        ]
    };
    Table {
        title: "Caches",
        heads: vec!["NAME", "TREND", "PER S", "HITS", "HIT", "MISS", "EXPIRED", "ENTRIES", "SIZE", "MOST"],
        rows: members(&s.overview["http"]["caches"]).map(row).collect(),
        empty: "there is no cache",
    }
}

fn limits(s: &Snapshot) -> Table {
    let collections = [
        ("http", "limit_reqs", "requests"),
        ("http", "limit_conns", "connections"),
        ("stream", "limit_conns", "sessions"),
    ];
    let rows = collections.into_iter().flat_map(|(block, collection, what)| {
        let history = &s.history["rows"][format!("{block}/{collection}")];
        members(&s.overview[block][collection]).map(move |(name, l)| {
            let [line, per_second] = trend(&history[name.as_str()]);
            let rest = [of(&l["passed"], PLAIN), of(&l["delayed"], PLAIN), of(&l["rejected"], BAD)];
            let first = [Cell::Text(printable(name)), Cell::Text(what.to_owned()), line, per_second];
            first.into_iter().chain(rest).collect()
        })
    });
    Table {
        title: "Limits",
        heads: vec!["NAME", "LIMITS", "TREND", "PER S", "PASSED", "DELAYED", "REJECTED"],
        rows: rows.collect(),
        empty: "nothing is limited",
    }
}

fn sessions(s: &Snapshot) -> Table {
    let history = &s.history["rows"]["stream/server_zones"];
    let row = |(name, z): (&String, &Value)| {
        let [line, per_second] = trend(&history[name.as_str()]);
        vec![
            Cell::Text(printable(name)),
            line,
            per_second,
            of(&z["processing"], PLAIN),
            of(&z["connections"], PLAIN),
            of(&z["sessions"]["4xx"], PLAIN),
            of(&z["sessions"]["5xx"], BAD),
            size(&z["received"]),
            size(&z["sent"]),
        ]
    };
    Table {
        title: "Stream servers",
        heads: vec!["NAME", "TREND", "PER S", "NOW", "ALL", "4XX", "5XX", "IN", "OUT"],
        rows: members(&s.overview["stream"]["server_zones"]).map(row).collect(),
        empty: "no server of stream has a zone",
    }
}

fn threads(s: &Snapshot) -> Table {
    let history = &s.history["rows"]["workers"];
    let row = |t: &Value| {
        let id = t["id"].to_string();
        let [line, per_second] = trend(&history[id.as_str()]);
        let connections = &t["connections"];
        vec![
            Cell::Text(id),
            line,
            per_second,
            of(&t["http"]["requests"]["total"], PLAIN),
            of(&t["http"]["requests"]["current"], PLAIN),
            of(&connections["active"], PLAIN),
            of(&connections["idle"], PLAIN),
            of(&connections["accepted"], PLAIN),
        ]
    };
    Table {
        title: "Threads",
        heads: vec!["THREAD", "TREND", "REQ/S", "REQUESTS", "NOW", "ACTIVE", "IDLE", "ACCEPTED"],
        rows: s.overview["workers"].as_array().into_iter().flatten().map(row).collect(),
        empty: "no thread",
    }
}

fn certificates(s: &Snapshot) -> Table {
    let row = |c: &Value| {
        let names: Vec<&str> =
            c["names"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let days = number(&c["days_left"]);
        let from = if c["source"] == "acme" { text(&c["issuer"]) } else { text(&c["file"]) };
        vec![
            Cell::Text(printable(&names.join(", "))),
            Cell::Number(days, count, days.is_nan() || days < 14.0),
            text(&c["expires"]),
            from,
        ]
    };
    Table {
        title: "Certificates",
        heads: vec!["NAMES", "DAYS", "EXPIRES", "FROM"],
        rows: s.overview["certificates"].as_array().into_iter().flatten().map(row).collect(),
        empty: "no certificate",
    }
}
