//! State that all connections of a thread share: load, time, supply of requests and counts. Hot path.

use super::flight::Flight;
use super::known_head::KnownHead;
use super::supply::Supply;
use super::timing::{Lap, Times};
use crate::clock;
use crate::histogram::Coarse;
use crate::load::Load;
use crate::record::{Failure, Record, Sample};

/// Content that is kept of a response for checks.
const CONTENT: usize = 16 << 20;

/// Adds content as far as it is kept.
pub(super) fn append_limited(to: &mut Vec<u8>, content: &[u8]) {
    let room = CONTENT.saturating_sub(to.len()).min(content.len());
    to.extend_from_slice(content.get(..room).unwrap_or_default());
}

/// State of a thread that is no connection's own.
pub(super) struct Ctx<'a> {
    pub(super) load: &'a Load,
    /// The time, ns; read once for each event.
    pub(super) now: u64,
    /// The end comes earlier when the user stops the run.
    pub(super) times: Times,
    pub(super) supply: Supply,
    pub(super) record: Record,
    /// By index of [`Load::requests`].
    pub(super) known_heads: Vec<KnownHead>,
    /// Content is kept for checks.
    pub(super) keep_content: bool,
    /// Pause of a connection between response and next request, ns.
    pub(super) think: u64,
    /// Length of the first response, for [`crate::load::Checks::same_length`].
    learned_length: Option<u64>,
    /// Time at which the last response was complete, ns.
    last_response: u64,
    interval: Interval,
    first_error: Option<String>,
    /// The first error is a certificate that does not verify: no request will ever be answered.
    pub(super) distrusts: bool,
}

/// Beginning of the words for a certificate that does not verify.
pub(crate) const DISTRUST: &str = "the certificate does not verify";

/// Counts since the last report.
#[derive(Default)]
struct Interval {
    complete: u64,
    errors: u64,
    bytes: u64,
    latency: Coarse,
}

impl<'a> Ctx<'a> {
    /// Returns the state of thread `index` of `threads` before a run.
    pub(super) fn new(load: &'a Load, index: usize, threads: usize) -> Ctx<'a> {
        Ctx {
            load,
            now: clock(),
            times: Times::default(),
            supply: Supply::new(load, index, threads),
            record: Record::default(),
            known_heads: load.requests.iter().map(|_| KnownHead::default()).collect(),
            keep_content: load.checks.contains.is_some(),
            think: load.think.as_nanos() as u64,
            learned_length: None,
            last_response: 0,
            interval: Interval::default(),
            first_error: None,
            distrusts: false,
        }
    }

    /// Starts the run.
    pub(super) fn begin(&mut self, times: Times) {
        self.times = times;
        self.now = clock();
        self.supply.begin(times.start);
    }

    /// Returns the next request, if one is due.
    #[inline]
    pub(super) fn next_work(&mut self) -> Option<Flight> {
        self.supply.next(self.now, &self.times)
    }

    fn in_window(&self, flight: Flight) -> bool {
        flight.due >= self.times.from
    }

    /// Records the delay with which a request of an open loop is sent. `ready`: time from which on a connection could have sent
    /// it.
    #[inline]
    pub(super) fn record_lateness(&mut self, flight: Flight, ready: u64) {
        if self.supply.is_open_loop() && self.in_window(flight) {
            let could = flight.due.max(ready);
            self.record.lateness.record(self.now.saturating_sub(could));
        }
    }

    /// Counts bytes received.
    #[inline]
    pub(super) fn count_in(&mut self, n: u64) {
        self.interval.bytes += n;
        if self.times.measure(self.now) {
            self.record.bytes_in += n;
        }
    }

    /// Counts bytes sent.
    #[inline]
    pub(super) fn count_out(&mut self, n: u64) {
        if self.times.measure(self.now) {
            self.record.bytes_out += n;
        }
    }

    /// Returns the time before which a connection that has got a response sends no other request, ns.
    #[inline]
    pub(super) fn gate(&self) -> u64 {
        if self.think > 0 { self.now + self.think } else { 0 }
    }

    /// Counts a complete response. `status`: `None` in a protocol without statuses.
    #[inline]
    pub(super) fn answered(&mut self, flight: Flight, status: Option<u16>, length: u64, content: &[u8]) {
        self.supply.landed();
        self.last_response = self.now;
        let latency = self.now.saturating_sub(flight.due);
        self.interval.complete += 1;
        self.interval.latency.record(latency);
        if self.times.measure(self.now) {
            self.record.in_time += 1;
            self.record.body_in += length;
        }
        if !self.in_window(flight) {
            return;
        }
        self.record.complete += 1;
        self.record_latency(flight);
        if let Some(count) = status.and_then(|status| self.record.statuses.get_mut(status as usize)) {
            *count += 1;
        }
        match self.judge(flight, status, length, content) {
            None => self.record.ok += 1,
            Some(kind) => self.unexpected(kind, flight, status, length),
        }
    }

    #[inline]
    fn record_latency(&mut self, flight: Flight) {
        self.record.latency.record(self.now.saturating_sub(flight.due));
        if self.supply.is_open_loop() {
            self.record.uncorrected.record(self.now.saturating_sub(flight.start));
        }
    }

    /// Returns the check that a response fails.
    fn judge(&mut self, flight: Flight, status: Option<u16>, length: u64, content: &[u8]) -> Option<Failure> {
        let checks = &self.load.checks;
        if status.is_some_and(|status| !checks.status_ok(status)) {
            return Some(Failure::Status);
        }
        let mut wanted = checks.length;
        if checks.same_length {
            wanted = Some(*self.learned_length.get_or_insert(length));
        }
        if wanted.is_some_and(|n| n != length) && !self.is_head(flight) {
            return Some(Failure::Length);
        }
        let text = checks.contains.as_deref()?;
        let found = text.is_empty() || content.windows(text.len()).any(|w| w == text);
        (!found).then_some(Failure::Body)
    }

    #[cold]
    fn unexpected(&mut self, kind: Failure, flight: Flight, status: Option<u16>, length: u64) {
        self.record.fail(kind);
        self.interval.errors += 1;
        let request = self.load.requests.get(flight.request as usize).filter(|r| !r.name.is_empty());
        let to = request.map_or_else(String::new, |r| format!(" for {}", r.name));
        self.note(|| match kind {
            Failure::Status => format!("status {}{to}", status.unwrap_or_default()),
            Failure::Length => format!("{length} bytes of content{to}"),
            _ => format!("content without what was expected{to}"),
        });
    }

    /// Returns `true` if the request is a HEAD.
    pub(super) fn is_head(&self, flight: Flight) -> bool {
        self.load.requests.get(flight.request as usize).is_some_and(|r| r.head)
    }

    /// Counts a request that failed.
    pub(super) fn failed(&mut self, flight: Flight, kind: Failure) {
        self.supply.landed();
        // A request that was never answered had at least this latency.
        if self.count_failed(flight, kind) && kind.is_silence() {
            self.record_latency(flight);
        }
    }

    /// Counts a failure. Returns `true` if the request belongs to the measured time.
    fn count_failed(&mut self, flight: Flight, kind: Failure) -> bool {
        self.interval.errors += 1;
        // A request from the warm-up that hung until the measured time belongs to that.
        let counts = self.in_window(flight) || kind.is_silence() && self.now >= self.times.from;
        if counts {
            self.record.fail(kind);
        }
        counts
    }

    /// Sends a request again that the server did not process.
    pub(super) fn again(&mut self, flight: Flight) {
        self.record.retried += 1;
        self.supply.send_again(flight);
    }

    /// Counts a failure that belongs to no request.
    pub(super) fn failed_without_request(&mut self, kind: Failure) {
        if self.now >= self.times.from || kind == Failure::Connect || kind == Failure::Tls {
            self.record.fail(kind);
        }
        self.interval.errors += 1;
    }

    /// Keeps the first error in words.
    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if self.first_error.is_none() {
            let text = text();
            self.distrusts = text.starts_with(DISTRUST);
            self.first_error = Some(text);
        }
    }

    /// Returns the counts since the last report and starts again from 0.
    pub(super) fn sample(&mut self, thread: usize, lap: &Lap) -> Sample {
        let interval = std::mem::take(&mut self.interval);
        Sample {
            thread,
            at: self.now.saturating_sub(self.times.start),
            warmup: lap.since < self.times.from,
            complete: interval.complete,
            errors: interval.errors,
            bytes: interval.bytes,
            cpu: lap.cpu,
            span: self.now.saturating_sub(lap.since),
            latency: interval.latency,
        }
    }

    /// Counts the requests of an open loop that were due and never left as unanswered.
    pub(super) fn fail_unsent(&mut self) {
        // After an early stop, later requests were not due yet.
        let end = self.times.end.min(self.now);
        while let Some(flight) = self.supply.next_unsent(self.now, end, &self.times) {
            // It was never sent, so there is no time from sending.
            if self.count_failed(flight, Failure::Unanswered) {
                self.record.latency.record(self.now.saturating_sub(flight.due));
            }
        }
    }

    /// Returns when a run ended that ends by itself: with the last response, or now if there was none.
    pub(super) fn last_moment(&self) -> u64 {
        if self.record.complete > 0 { self.last_response } else { self.now }
    }

    /// Ends counting: returns the counts, the first error and the last head of the first request.
    pub(super) fn finish(mut self) -> (Record, Option<String>, Vec<u8>) {
        self.record.due = self.supply.due_in_window();
        let head = self.known_heads.first().map(|known| known.bytes().to_vec()).unwrap_or_default();
        (self.record, self.first_error, head)
    }
}
