//! The time of a worker thread, read once a turn of its loop. Hot path.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time, read once a turn of the loop and formatted once a second.
pub struct Clock {
    now: Cell<Instant>,
    /// Time of the next look at the system clock: the start of its next second.
    look: Cell<Instant>,
    unix: Cell<i64>,
    http: Cell<[u8; 29]>,
    log: Cell<[u8; 26]>,
    iso: Cell<[u8; 25]>,
    error: Cell<[u8; 19]>,
    zone: jiff::tz::TimeZone,
}

impl Default for Clock {
    fn default() -> Self {
        let now = Instant::now();
        let c = Clock {
            now: Cell::new(now),
            look: Cell::new(now),
            unix: Cell::new(-1),
            http: Cell::new([b' '; 29]),
            log: Cell::new([b' '; 26]),
            iso: Cell::new([b' '; 25]),
            error: Cell::new([b' '; 19]),
            zone: jiff::tz::TimeZone::system(),
        };
        c.tick(now);
        c
    }
}

impl Clock {
    /// Sets the time of this turn. Reads the system clock only when its next second should have begun, so a change of
    /// the system clock takes effect up to a second late.
    #[inline]
    pub fn tick(&self, now: Instant) {
        self.now.set(now);
        if now >= self.look.get() {
            self.look_at_clock(now);
        }
    }

    fn look_at_clock(&self, now: Instant) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = Duration::from_secs(1).saturating_sub(Duration::from_nanos(time.subsec_nanos().into()));
        self.look.set(now.checked_add(left).unwrap_or(now));
        let unix = time.as_secs() as i64;
        if unix != self.unix.replace(unix) {
            self.format(unix);
        }
    }

    fn format(&self, unix: i64) {
        let offset = self.offset(unix);
        self.http.set(forebay_http::date::imf(unix));
        self.log.set(forebay_http::date::log(unix, offset));
        self.iso.set(forebay_http::date::iso8601(unix, offset));
        self.error.set(forebay_http::date::error_log(unix, offset));
    }

    /// Returns the offset of local time from UTC at a time, in seconds.
    pub fn offset(&self, unix: i64) -> i32 {
        jiff::Timestamp::from_second(unix).map_or(0, |t| self.zone.to_offset(t).seconds())
    }

    /// Returns the abbreviation of the local time zone at a time.
    pub fn zone(&self, unix: i64) -> String {
        let time = jiff::Timestamp::from_second(unix);
        time.map_or_else(|_| String::new(), |t| self.zone.to_offset_info(t).abbreviation().to_owned())
    }

    /// Returns the time of this turn.
    pub fn now(&self) -> Instant {
        self.now.get()
    }
    /// Returns the Unix time in seconds.
    pub fn unix(&self) -> i64 {
        self.unix.get()
    }
    /// Returns the value of a `Date` field: `Sun, 06 Nov 1994 08:49:37 GMT`.
    pub fn http_date(&self) -> [u8; 29] {
        self.http.get()
    }
    /// Returns the value of `$time_local`.
    pub fn log_time(&self) -> [u8; 26] {
        self.log.get()
    }
    /// Returns the value of `$time_iso8601`.
    pub fn iso8601(&self) -> [u8; 25] {
        self.iso.get()
    }
    /// Returns the value of `$time_iso8601_ms`.
    pub fn iso8601_ms(&self) -> [u8; 29] {
        let now = self.msec();
        let unix = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        forebay_http::date::iso8601_ms(unix, now.subsec_millis(), self.offset(unix))
    }
    /// Returns the time for an error log line.
    pub fn error_time(&self) -> [u8; 19] {
        self.error.get()
    }
    /// Reads the system clock: time since the epoch, for milliseconds.
    pub fn msec(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_looked_at_when_a_second_begins() {
        let c = Clock::default();
        let second = Duration::from_secs(1);
        let first = c.look.get();
        assert!(first > c.now() && first <= c.now() + second);
        // Before that second begins, `tick` must not touch the cached time.
        let unix = c.unix();
        c.unix.set(7);
        c.tick(c.now());
        assert_eq!(c.unix(), 7);
        c.tick(first);
        assert!((unix..unix + 60).contains(&c.unix()));
        assert!(c.look.get() > first && c.look.get() <= first + second);
    }
}
