//! Requests by the labels of `prometheus_labels`. Each thread has a table of its own; readers add them up.

use super::prometheus::{Exposition, label};
use crate::prometheus_labels;
use forebay_core::histogram::{Histogram, bucket};
use forebay_http::h1::response;
use forebay_http::request::Method;
use forebay_server::request::Request;
use forebay_sys::sync::lock;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Largest number of series of a thread. Requests that would need another one are counted among [`OTHERS`].
const MOST: usize = 10_000;
/// Labels of the requests beyond that number.
const OTHERS: &[u8] = b"(others)";
/// Series without a request for this long make room for others.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// Upper ends of the buckets of sizes, bytes; one more bucket has the rest.
pub(super) const SIZES: [u64; 7] = [10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// Numbers of sizes.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    /// Number of sizes in each bucket.
    pub counts: [u64; SIZES.len() + 1],
    /// Sum of all sizes, bytes.
    pub sum: u64,
}

impl Sizes {
    fn add(&mut self, size: u64) {
        if let Some(count) = self.counts.get_mut(SIZES.partition_point(|end| *end < size)) {
            *count += 1;
        }
        self.sum = self.sum.wrapping_add(size);
    }

    fn join(&mut self, other: &Sizes) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, n)| *sum += n);
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// Counts of the requests with the same labels.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    /// Requests.
    pub requests: u64,
    /// Times from the first byte of the request to the last of its response.
    pub duration: Histogram,
    /// Times until a connection to the last upstream server was there.
    pub connect: Histogram,
    /// Times until the head of its response was there.
    pub header: Histogram,
    /// Times until the end of its response.
    pub response: Histogram,
    /// Sizes of requests.
    pub received: Sizes,
    /// Sizes of responses.
    pub sent: Sizes,
}

fn add(h: &mut Histogram, time: Option<Duration>) {
    let Some(time) = time else { return };
    if let Some(count) = h.counts.get_mut(bucket(time)) {
        *count += 1;
    }
    h.sum = h.sum.saturating_add(time);
}

/// Adds the counts of a histogram to another.
pub(super) fn join(sum: &mut Histogram, other: &Histogram) {
    sum.counts.iter_mut().zip(other.counts).for_each(|(sum, n)| *sum += n);
    sum.sum = sum.sum.saturating_add(other.sum);
}

impl Series {
    fn join(&mut self, other: &Series) {
        self.requests += other.requests;
        join(&mut self.duration, &other.duration);
        join(&mut self.connect, &other.connect);
        join(&mut self.header, &other.header);
        join(&mut self.response, &other.response);
        self.received.join(&other.received);
        self.sent.join(&other.sent);
    }
}

/// Names of labels with their values.
pub(super) type Pairs = Vec<(String, Vec<u8>)>;

/// Series of a thread, by their labels: `name=value` and a NUL each.
type Table = HashMap<Box<[u8]>, Box<(Instant, Series)>>;

/// Tables of all threads, for the life of the process.
static TABLES: Mutex<Vec<Arc<Mutex<Table>>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: RefCell<Option<Arc<Mutex<Table>>>> = const { RefCell::new(None) };
}

fn own_table() -> Arc<Mutex<Table>> {
    OWN.with_borrow_mut(|own| {
        let table = own.get_or_insert_with(|| {
            let made = Arc::new(Mutex::new(Table::new()));
            lock(&TABLES).push(made.clone());
            made
        });
        table.clone()
    })
}

/// Counts a request by the labels of its location.
pub(crate) fn count(req: &mut Request) {
    // The time is taken first, so that it does not include the work of counting.
    let time = req.tally.started.elapsed();
    if req.is_subrequest() || req.is_background() {
        return;
    }
    let labels = prometheus_labels::SETTINGS.of(&req.own_location().settings).labels.clone();
    let mut key = req.take_buf();
    labels.append(req, &mut key);
    key.extend_from_slice(b"method=");
    // A client may send any word as the method, and each would be a series of its own.
    key.extend_from_slice(if req.method == Method::Other { b"invalid_method" } else { req.method_text() });
    key.extend_from_slice(b"\0status=");
    key.extend_from_slice(&response::three_digits(req.logged_status()));
    key.push(0);
    let now = req.thread.io.poller.now();
    let table = own_table();
    let mut table = lock(&table);
    // A known series needs no search for old ones, which takes time with a full table.
    if !table.contains_key(&*key) {
        make_room(&mut table, &mut key, now);
    }
    let (last, series) =
        &mut **table.entry(key.as_slice().into()).or_insert_with(|| Box::new((now, Series::default())));
    *last = now;
    series.requests += 1;
    add(&mut series.duration, Some(time));
    if let Some(attempt) = req.modules.upstream.attempts.last() {
        add(&mut series.connect, attempt.connect);
        add(&mut series.header, attempt.header);
        add(&mut series.response, attempt.response);
    }
    series.received.add(req.tally.received);
    series.sent.add(req.tally.sent);
    // The lock ends before the buffer goes back, as a reader may wait for it.
    drop(table);
    req.give_buf(key);
}

/// Forgets old series if there are too many. If that does not help, gives the key the labels that stand for
/// all others.
fn make_room(table: &mut Table, key: &mut Vec<u8>, now: Instant) {
    if table.len() < MOST {
        return;
    }
    table.retain(|_, series| now.saturating_duration_since(series.0) < FORGOTTEN);
    if table.len() < MOST {
        return;
    }
    // The names of the labels stay, since all series of a metric should have the same ones.
    let others = key.split(|b| *b == 0).filter_map(|pair| pair.split(|b| *b == b'=').next());
    let others = others.filter(|name| !name.is_empty()).map(|name| [name, b"=", OTHERS, b"\0"].concat());
    *key = others.collect::<Vec<_>>().concat();
}

/// Returns all series: their labels as pairs of name and value, and the sums over all threads.
pub(super) fn all() -> Vec<(Pairs, Series)> {
    let mut sums: BTreeMap<Box<[u8]>, Series> = BTreeMap::new();
    // The list of tables is copied, so that a new thread does not wait until all series are added up.
    let tables = lock(&TABLES).clone();
    for table in tables {
        for (key, series) in lock(&table).iter() {
            sums.entry(key.clone()).or_default().join(&series.1);
        }
    }
    sums.into_iter().map(|(key, series)| (pairs(&key), series)).collect()
}

/// Adds the series under our own names.
pub(super) fn series(page: &mut Exposition) {
    let all = all();
    if all.is_empty() {
        return;
    }
    let all: Vec<(String, Series)> = all.into_iter().map(|(pairs, s)| (text(&pairs, |_| true), s)).collect();
    let requests = all.iter().map(|(labels, s)| (labels.clone(), s.requests));
    page.many("forebay_labelled_requests_total", "counter", "Requests by prometheus_labels", requests);
    let received = all.iter().map(|(labels, s)| (labels.clone(), s.received.sum));
    page.many("forebay_labelled_received_bytes_total", "counter", "Bytes received", received);
    let sent = all.iter().map(|(labels, s)| (labels.clone(), s.sent.sum));
    page.many("forebay_labelled_sent_bytes_total", "counter", "Bytes sent", sent);
    let help = "Time from the first byte of a request to the last of its response";
    let times = all.iter().map(|(labels, s)| (labels.as_str(), &s.duration));
    page.histograms("forebay_labelled_request_duration_seconds", help, times);
}

/// Returns some of the labels as text.
pub(super) fn text(pairs: &[(String, Vec<u8>)], wanted: impl Fn(&str) -> bool) -> String {
    let pairs = pairs.iter().filter(|(name, _)| wanted(name));
    pairs.map(|(name, value)| format!("{name}=\"{}\"", label(value))).collect::<Vec<_>>().join(",")
}

fn pairs(key: &[u8]) -> Pairs {
    let pair = |pair: &[u8]| {
        let at = pair.iter().position(|b| *b == b'=')?;
        Some((String::from_utf8_lossy(pair.get(..at)?).into_owned(), pair.get(at + 1..)?.to_vec()))
    };
    key.split(|b| *b == 0).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_beyond_the_limit_are_counted_together() {
        let (mut table, now) = (Table::new(), Instant::now());
        let later = now + FORGOTTEN;
        let insert = |table: &mut Table, n: usize, at: Instant| {
            let mut key = format!("path=/{n}\0status=200\0").into_bytes();
            make_room(table, &mut key, at);
            table.entry(key.as_slice().into()).or_insert_with(|| Box::new((at, Series::default())));
            key
        };
        for n in 0..MOST {
            insert(&mut table, n, now);
        }
        let others = insert(&mut table, MOST, now);
        assert_eq!(
            pairs(&others),
            [("path".to_owned(), OTHERS.to_vec()), ("status".to_owned(), OTHERS.to_vec())]
        );
        assert_eq!(insert(&mut table, MOST + 1, now), others);
        // An hour later nobody has asked for the first ones again.
        assert_eq!(insert(&mut table, MOST + 2, later), b"path=/10002\0status=200\0");
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn sizes_fall_into_buckets() {
        let mut sizes = Sizes::default();
        [0, 10, 11, 10_000_000, 10_000_001].into_iter().for_each(|n| sizes.add(n));
        assert_eq!(sizes.counts, [2, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!(sizes.sum, 20_000_022);
    }
}
