//! History of the counters: the last minute, hour and day, kept while a location has `api` or `dashboard`.
//!
//! One task reads the counters of all threads each second (`reading`) and enters the growth into rings of fixed length
//! (`scale`). Requests count nothing in addition for it. The history survives a reload, and its memory is returned when no
//! location shows it any more.

mod reading;
mod scale;

use forebay_server::counting::now_ms;
use forebay_server::module::process::Beginning;
use forebay_sys::sync::lock;
use reading::{Reader, Running};
use scale::{Columns, Rows, Scale};
pub(crate) use scale::{HEAT_ROWS, Key, MOST_ROWS, Point, QUANTILES, Range, heat_start};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Values of all requests and connections that have a history.
pub use reading::COLUMNS;

/// Time between two readings.
const TICK: Duration = Duration::from_secs(1);

static HISTORY: Mutex<Option<History>> = Mutex::new(None);

/// History since the first configuration that shows it.
struct History {
    started: Instant,
    /// Unix time of the start in milliseconds. Numbers of samples count from there.
    started_ms: i64,
    running: Running,
    scales: [Scale; 3],
    rows: Rows,
}

impl History {
    /// Begins a history. What has been counted before is no part of it.
    fn new(now: Instant, columns: Columns, rows: Vec<(Key, [u64; 2])>) -> History {
        History {
            started: now,
            started_ms: now_ms(),
            running: Running::default(),
            scales: Range::ALL.map(|range| Scale::new(range, now, &columns)),
            rows: Rows::new(rows),
        }
    }

    /// Enters a reading.
    fn enter(&mut self, now: Instant, columns: Columns, rows: Vec<(Key, [u64; 2])>) {
        let seconds = now.saturating_duration_since(self.started).as_secs();
        self.rows.update(rows);
        for (scale, at) in self.scales.iter_mut().zip(0..) {
            if let Some(growth) = scale.enter(now, seconds, &columns) {
                self.rows.enter(at, &growth);
            }
        }
    }
}

/// Begins or continues the history if a configuration shows it. Ends it otherwise.
pub fn start(b: &mut Beginning<'_>) {
    if !b.http.is_watched {
        *lock(&HISTORY) = None;
        return;
    }
    let reader = Reader::new(b.http.clone(), b.config, b.outside.counters.clone());
    let started = {
        let mut history = lock(&HISTORY);
        let begin = || {
            let mut running = Running::default();
            let (columns, rows) = reader.read(&mut running);
            History { running, ..History::new(Instant::now(), columns, rows) }
        };
        // A history from before a reload goes on, with its start as the origin of the ticks.
        history.get_or_insert_with(begin).started
    };
    let sampling = async move {
        loop {
            tokio::time::sleep_until(next_tick(started, Instant::now()).into()).await;
            // The counters are read without the lock, for which a worker thread may wait to answer a request. All such tasks
            // share a thread, so nothing else takes the sums meanwhile.
            let Some(mut running) = lock(&HISTORY).as_mut().map(|h| std::mem::take(&mut h.running)) else {
                continue;
            };
            let (columns, rows) = reader.read(&mut running);
            if let Some(history) = lock(&HISTORY).as_mut() {
                history.running = running;
                history.enter(Instant::now(), columns, rows);
            }
        }
    };
    b.tasks.spawn(&b.outside.tokio, "keeping the history", sampling);
}

/// Returns the next time at which a whole number of ticks has passed.
fn next_tick(started: Instant, now: Instant) -> Instant {
    let passed = now.saturating_duration_since(started).as_secs();
    started + TICK * u32::try_from(passed + 1).unwrap_or(u32::MAX)
}

/// Part of the history, oldest sample first.
#[derive(Debug, Default)]
pub struct Excerpt {
    /// Unix time in milliseconds at which the history began; another one begins with another process.
    pub since: i64,
    /// Number of the last sample. The first one of a history has number 1.
    pub last: u64,
    /// Values of all requests and connections.
    pub points: Vec<Point>,
    /// Values of zones, peers and threads.
    pub rows: Vec<(Key, Vec<[f32; 2]>)>,
    /// Number of zones, peers and threads for which there was no room.
    pub left_out: usize,
}

/// Returns the samples of a range that follow the sample of number `after`. Without a history there are none.
pub(crate) fn excerpt(range: Range, after: u64) -> Excerpt {
    let history = lock(&HISTORY);
    let Some(history) = history.as_ref() else { return Excerpt::default() };
    let at = range as usize;
    let Some(scale) = history.scales.get(at) else { return Excerpt::default() };
    let numbers = scale.numbers(after);
    Excerpt {
        since: history.started_ms,
        last: scale.last(),
        points: numbers.clone().map(|number| scale.point(number)).collect(),
        rows: history.rows.excerpt(at, scale, numbers),
        left_out: history.rows.left_out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::latency::bucket;

    fn columns(requests: u64, micros: u64) -> Columns {
        let mut columns = Columns::default();
        columns.values[0] = requests;
        columns.times[bucket(micros)] = requests;
        columns
    }

    fn key(name: &str) -> Key {
        Key { kind: "zones", group: String::new(), name: name.to_owned() }
    }

    /// A history with a row, in which ten more requests come each second for `seconds`.
    fn running(seconds: u64) -> History {
        let start = Instant::now();
        let mut history = History::new(start, columns(1000, 100), Vec::new());
        for n in 1..=seconds {
            let rows = vec![(key("a"), [n * 10, n])];
            history.enter(start + TICK * n as u32, columns(1000 + n * 10, 100), rows);
        }
        history
    }

    #[test]
    fn each_range_has_its_resolution() {
        let history = running(1300);
        let [minute, hour, day] = &history.scales;
        assert_eq!((minute.last(), hour.last(), day.last()), (1300, 43, 2));
        assert_eq!((minute.numbers(0), hour.numbers(0), day.numbers(1)), (1241..=1300, 1..=43, 2..=2));
        for (scale, number) in [(minute, 1250), (hour, 40), (day, 1)] {
            let point = scale.point(number);
            assert!((point.values[0] - 10.0).abs() < 0.01, "{point:?}");
            let median = point.quantiles[0].expect("times");
            assert!((96.0..=112.0).contains(&median), "{median}");
        }
        let rows = history.rows.excerpt(1, hour, hour.numbers(41));
        assert_eq!((rows[0].0.name.as_str(), rows[0].1.len()), ("a", 2));
        assert!((rows[0].1[1][0] - 10.0).abs() < 0.01 && (rows[0].1[1][1] - 1.0).abs() < 0.01, "{rows:?}");
    }

    #[test]
    fn a_pause_is_filled_with_the_mean() {
        let mut history = running(3);
        let start = history.started;
        // The task had no chance to run for four seconds.
        history.enter(start + TICK * 7, columns(1030 + 80, 100), vec![(key("a"), [110, 3])]);
        let minute = &history.scales[0];
        assert_eq!(minute.last(), 7);
        let rates: Vec<f32> = minute.numbers(2).map(|n| minute.point(n).values[0]).collect();
        assert_eq!(rates, [10.0, 20.0, 20.0, 20.0, 20.0]);
        // A sleep for longer than the ring.
        history.enter(start + TICK * 1007, columns(1110 + 1000, 100), vec![(key("a"), [110, 3])]);
        assert_eq!(history.scales[0].numbers(0), 948..=1007);
        assert_eq!(history.scales[0].point(948).values[0], 1.0);
    }

    #[test]
    fn rows_leave_with_their_zones_and_their_number_is_limited() {
        let mut history = running(2);
        let start = history.started;
        let many = (0..MOST_ROWS + 5).map(|n| (key(&n.to_string()), [7, 0]));
        // Without requests they take no room.
        let quiet = (0..1000).map(|n| (key(&format!("quiet {n}")), [0, 0]));
        let rows = [(key("a"), [30, 2])].into_iter().chain(quiet).chain(many).collect();
        history.enter(start + TICK * 3, columns(0, 1), rows);
        assert_eq!((history.rows.len(), history.rows.left_out), (MOST_ROWS, 6));
        // Counters that begin again, as those of a zone that was away, do not go below zero.
        history.enter(start + TICK * 4, columns(0, 1), vec![(key("a"), [5, 0])]);
        assert_eq!((history.rows.len(), history.rows.left_out), (1, 0));
        let minute = &history.scales[0];
        let rows = history.rows.excerpt(0, minute, minute.numbers(2));
        assert_eq!(rows[0].1, [[10.0, 0.0], [5.0, 0.0]]);
    }
}
