//! Rings of samples: growth of the counters in each step of a range.

use super::reading::{COLUMNS, Kind};
use forebay_core::latency::{self, BUCKETS, Counts, quantile};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Instant;

/// Range of time that is kept at one resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    Minute,
    Hour,
    Day,
}

impl Range {
    /// All ranges, in the order of [`Range`] as a number.
    pub(crate) const ALL: [Range; 3] = [Range::Minute, Range::Hour, Range::Day];

    /// Returns the name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Range::Minute => "minute",
            Range::Hour => "hour",
            Range::Day => "day",
        }
    }

    /// Returns the seconds that one sample covers.
    pub(crate) fn step(self) -> u64 {
        match self {
            Range::Minute => 1,
            Range::Hour => 30,
            Range::Day => 600,
        }
    }

    /// Returns the number of samples.
    pub(crate) fn length(self) -> usize {
        match self {
            Range::Minute => 60,
            Range::Hour => 120,
            Range::Day => 144,
        }
    }
}

/// Largest number of zones, peers and threads with a history: 300 take less than a megabyte.
pub(crate) const MOST_ROWS: usize = 300;
/// Shares of requests that are faster than the values of [`Point::quantiles`].
pub(crate) const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];
/// Buckets of [`latency`] in a row of the heat map: two rows for each power of two.
const HEAT_PARTS: usize = 4;
/// Rows of the heat map.
pub(crate) const HEAT_ROWS: usize = (BUCKETS - 2) / HEAT_PARTS + 2;

/// Returns the row of the heat map that a bucket belongs to.
fn heat_row(bucket: usize) -> usize {
    match bucket {
        0 => 0,
        _ => (bucket - 1) / HEAT_PARTS + 1,
    }
}

/// Returns the lowest time of a row of the heat map, microseconds.
pub(crate) fn heat_start(row: usize) -> u64 {
    row.checked_sub(1).map_or(0, |row| latency::start(row * HEAT_PARTS + 1))
}

/// Counters of all requests and connections at a time.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    /// Values of [`COLUMNS`]. The values of gauges are added up at each reading.
    pub values: [u64; COLUMNS.len()],
    /// Times of requests.
    pub times: Counts,
}

impl Default for Columns {
    fn default() -> Columns {
        Columns { values: [0; COLUMNS.len()], times: [0; BUCKETS] }
    }
}

/// Sample of all requests and connections.
#[derive(Clone, Debug)]
pub struct Point {
    /// Values of [`COLUMNS`]: growth for each second, or the mean of a gauge.
    pub values: [f32; COLUMNS.len()],
    /// Times of requests in microseconds, for [`QUANTILES`]; `None` without requests.
    pub quantiles: [Option<f32>; QUANTILES.len()],
    /// Number of requests in each row of the heat map.
    pub heat: [u32; HEAT_ROWS],
}

const EMPTY: Point =
    Point { values: [0.0; COLUMNS.len()], quantiles: [None; QUANTILES.len()], heat: [0; HEAT_ROWS] };

impl Point {
    /// Makes the sample of the time between two readings.
    fn between(before: &Reading, now: &Reading) -> Point {
        // Two readings at the same instant must not divide by zero.
        let seconds = now.time.saturating_duration_since(before.time).as_secs_f64().max(0.001);
        let ticks = now.ticks.saturating_sub(before.ticks).max(1) as f64;
        let mut point = EMPTY;
        let grown = now.columns.values.iter().zip(&before.columns.values);
        for ((out, (_, kind)), (now, before)) in point.values.iter_mut().zip(COLUMNS).zip(grown) {
            // A gauge has its sum over all readings, so the number of readings gives its mean.
            let per = if kind == Kind::Gauge { ticks } else { seconds };
            *out = (now.saturating_sub(*before) as f64 / per) as f32;
        }
        let times: Counts = std::array::from_fn(|n| {
            let at = |r: &Reading| r.columns.times.get(n).copied().unwrap_or(0);
            at(now).saturating_sub(at(before))
        });
        for (out, (_, share)) in point.quantiles.iter_mut().zip(QUANTILES) {
            *out = quantile(&times, share).map(|micros| micros as f32);
        }
        for (n, count) in times.iter().enumerate() {
            if let Some(out) = point.heat.get_mut(heat_row(n)) {
                *out = out.saturating_add(u32::try_from(*count).unwrap_or(u32::MAX));
            }
        }
        point
    }
}

/// Counters with the time at which they were read.
#[derive(Clone, Debug)]
struct Reading {
    time: Instant,
    /// Readings so far.
    ticks: u64,
    columns: Columns,
}

/// Step that a range has made.
#[derive(Debug)]
pub(super) struct Growth {
    seconds: f64,
    /// Numbers of the samples that it fills; several after a pause.
    numbers: RangeInclusive<u64>,
    length: usize,
}

/// Samples of one range.
#[derive(Debug)]
pub(super) struct Scale {
    range: Range,
    points: Box<[Point]>,
    /// Number of the last sample.
    last: u64,
    before: Reading,
    ticks: u64,
}

impl Scale {
    /// Creates an empty ring. The first sample is the growth since these counters.
    pub(super) fn new(range: Range, now: Instant, columns: &Columns) -> Scale {
        let before = Reading { time: now, ticks: 0, columns: columns.clone() };
        Scale { range, points: vec![EMPTY; range.length()].into(), last: 0, before, ticks: 0 }
    }

    /// Takes a reading at a number of seconds since the start. Returns the step if it completes one.
    pub(super) fn enter(&mut self, now: Instant, seconds: u64, columns: &Columns) -> Option<Growth> {
        self.ticks += 1;
        let number = seconds / self.range.step();
        if number <= self.last {
            return None;
        }
        let reading = Reading { time: now, ticks: self.ticks, columns: columns.clone() };
        let point = Point::between(&self.before, &reading);
        let length = self.points.len();
        // After a pause, one reading fills several samples with the mean, but no more than the ring has.
        let oldest = number.saturating_sub(length as u64 - 1).max(self.last + 1);
        let growth = Growth {
            seconds: now.saturating_duration_since(self.before.time).as_secs_f64().max(0.001),
            numbers: oldest..=number,
            length,
        };
        for place in growth.places() {
            if let Some(out) = self.points.get_mut(place) {
                *out = point.clone();
            }
        }
        (self.last, self.before) = (number, reading);
        Some(growth)
    }

    /// Returns the number of the last sample.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the numbers of the samples that are kept and follow a number.
    pub(super) fn numbers(&self, after: u64) -> RangeInclusive<u64> {
        let oldest = (self.last + 1).saturating_sub(self.points.len() as u64).max(1);
        oldest.max(after.saturating_add(1))..=self.last
    }

    /// Returns a sample that is kept.
    pub(super) fn point(&self, number: u64) -> Point {
        self.points.get(place(number, self.points.len())).cloned().unwrap_or(EMPTY)
    }
}

impl Growth {
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let length = self.length;
        self.numbers.clone().map(move |number| place(number, length))
    }
}

/// Returns the place of a sample in a ring.
fn place(number: u64, length: usize) -> usize {
    usize::try_from(number % length.max(1) as u64).unwrap_or(0)
}

/// Name of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Collection of the API that it is in, such as `http/server_zones`.
    pub kind: &'static str,
    /// Upstream group of a peer; empty for anything else.
    pub group: String,
    /// Name of the zone, peer or thread.
    pub name: String,
}

/// History of a zone, peer or thread: two values, such as requests and errors.
#[derive(Debug)]
struct Row {
    now: [u64; 2],
    /// Values at the last step of each range.
    before: [[u64; 2]; 3],
    rings: [Box<[[f32; 2]]>; 3],
    /// The last reading had it.
    is_there: bool,
}

impl Row {
    fn new(now: [u64; 2], before: [u64; 2]) -> Row {
        let rings = Range::ALL.map(|range| vec![[0.0; 2]; range.length()].into());
        Row { now, before: [before; 3], rings, is_there: true }
    }

    fn update(&mut self, values: [u64; 2]) {
        if self.now.iter().zip(&values).any(|(before, now)| now < before) {
            // The counters have begun again, as the ones of a zone that was away do.
            self.before = [[0; 2]; 3];
        }
        (self.now, self.is_there) = (values, true);
    }

    fn enter(&mut self, scale: usize, growth: &Growth) {
        let (Some(ring), Some(before)) = (self.rings.get_mut(scale), self.before.get_mut(scale)) else {
            return;
        };
        let grown =
            std::array::from_fn(|n| (self.now[n].saturating_sub(before[n]) as f64 / growth.seconds) as f32);
        *before = self.now;
        for place in growth.places() {
            if let Some(out) = ring.get_mut(place) {
                *out = grown;
            }
        }
    }
}

/// All rows.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: HashMap<Key, Row>,
    /// Rows without room at the last reading.
    pub(super) left_out: usize,
}

impl Rows {
    /// Begins with what has been counted so far.
    pub(super) fn new(values: Vec<(Key, [u64; 2])>) -> Rows {
        let mut rows = Rows::default();
        rows.add(values.into_iter().filter(|(_, values)| *values != [0; 2]).collect(), |values| values);
        rows
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Takes the values of all rows that exist. Those that are gone free their place. A row takes one with its first count.
    pub(super) fn update(&mut self, values: Vec<(Key, [u64; 2])>) {
        self.rows.values_mut().for_each(|row| row.is_there = false);
        let mut new = Vec::new();
        for (key, values) in values {
            match self.rows.get_mut(&key) {
                Some(row) => row.update(values),
                None if values == [0; 2] => {}
                None => new.push((key, values)),
            }
        }
        self.rows.retain(|_, row| row.is_there);
        // A row that had no room may have counted for long; others had nothing to count before.
        let had_room = self.left_out == 0;
        self.add(new, |values| if had_room { [0; 2] } else { values });
    }

    /// Adds rows as far as there is room. `before` returns the values from which a row counts.
    fn add(&mut self, new: Vec<(Key, [u64; 2])>, before: impl Fn([u64; 2]) -> [u64; 2]) {
        let room = MOST_ROWS.saturating_sub(self.rows.len());
        self.left_out = new.len().saturating_sub(room);
        let new = new.into_iter().take(room).map(|(key, values)| (key, Row::new(values, before(values))));
        self.rows.extend(new);
    }

    /// Enters the growth of a step of a range.
    pub(super) fn enter(&mut self, scale: usize, growth: &Growth) {
        self.rows.values_mut().for_each(|row| row.enter(scale, growth));
    }

    /// Returns the samples of these numbers for all rows.
    pub(super) fn excerpt(
        &self,
        at: usize,
        scale: &Scale,
        numbers: RangeInclusive<u64>,
    ) -> Vec<(Key, Vec<[f32; 2]>)> {
        let length = scale.points.len();
        let values = |row: &Row| -> Vec<[f32; 2]> {
            let ring = row.rings.get(at);
            let value = |number| ring.and_then(|ring| ring.get(place(number, length))).copied();
            numbers.clone().map(|number| value(number).unwrap_or_default()).collect()
        };
        self.rows.iter().map(|(key, row)| (key.clone(), values(row))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_is_in_the_row_that_begins_below_it() {
        for bucket in 0..BUCKETS {
            let row = heat_row(bucket);
            assert!(row < HEAT_ROWS && heat_start(row) <= latency::start(bucket), "{bucket} {row}");
            assert!(row + 1 == HEAT_ROWS || latency::start(bucket) < heat_start(row + 1), "{bucket} {row}");
        }
    }
}
