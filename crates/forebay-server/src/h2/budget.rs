//! Limits on the work that a client may cause in addition to its requests. Each kind of frame that costs work without
//! asking for content has an allowance; the connection of a client that exceeds one ends with ENHANCE_YOUR_CALM.

use std::time::{Duration, Instant};

/// Streams reset without a finished response in between (rapid reset, also where the client makes the server reset).
const RESETS: u32 = 200;
/// SETTINGS, PING and unknown frames in ten seconds.
const CONTROL: u32 = 1000;
/// DATA frames without content.
const EMPTY: u32 = 100;
/// PRIORITY frames, in addition to one for each request.
const PRIORITIES: u32 = 200;
/// WINDOW_UPDATE frames in ten seconds, in addition to two for each DATA frame that we send.
const UPDATES: u32 = 1000;
/// CONTINUATION frames without content in one field block.
pub(super) const EMPTY_CONTINUATIONS: u32 = 8;
/// Length of the period for rates.
const PERIOD: Duration = Duration::from_secs(10);
/// Divisor of the allowances for a network that has exceeded an allowance lately.
const STRICT: u32 = 10;

#[derive(Debug)]
pub(super) struct Budget {
    strict: bool,
    resets: u32,
    control: u32,
    updates: u32,
    empty: u32,
    priorities: u32,
    since: Instant,
}

/// The kind of frames that a client sent too many of.
pub(super) type Excess = &'static str;

impl Budget {
    pub(super) fn new(strict: bool) -> Budget {
        Budget { strict, resets: 0, control: 0, updates: 0, empty: 0, priorities: 0, since: Instant::now() }
    }

    fn check(&self, n: u32, most: u32, what: Excess) -> Result<(), Excess> {
        let most = if self.strict { most / STRICT } else { most };
        if n > most { Err(what) } else { Ok(()) }
    }

    fn period(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) >= PERIOD {
            self.since = now;
            self.control = 0;
            self.updates = 0;
        }
    }

    /// Counts a stream that ended before its response did.
    pub(super) fn reset(&mut self) -> Result<(), Excess> {
        self.resets += 1;
        self.check(self.resets, RESETS, "streams reset")
    }

    /// Counts a finished response, which restores part of the allowances.
    pub(super) fn finished(&mut self) {
        self.resets = self.resets.saturating_sub(1);
        self.priorities = self.priorities.saturating_sub(1);
        self.empty = self.empty.saturating_sub(1);
    }

    /// Counts a SETTINGS, PING or unknown frame.
    pub(super) fn control(&mut self, now: Instant) -> Result<(), Excess> {
        self.period(now);
        self.control += 1;
        self.check(self.control, CONTROL, "control frames")
    }

    pub(super) fn window_update(&mut self, now: Instant) -> Result<(), Excess> {
        self.period(now);
        self.updates += 1;
        self.check(self.updates, UPDATES, "WINDOW_UPDATE frames")
    }

    /// Allows two WINDOW_UPDATE frames for a DATA frame that we sent: one for the stream, one for the connection.
    pub(super) fn data_sent(&mut self) {
        self.updates = self.updates.saturating_sub(2);
    }

    pub(super) fn empty_data(&mut self) -> Result<(), Excess> {
        self.empty += 1;
        self.check(self.empty, EMPTY, "empty DATA frames")
    }

    pub(super) fn priority(&mut self) -> Result<(), Excess> {
        self.priorities += 1;
        self.check(self.priorities, PRIORITIES, "PRIORITY frames")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowances_end_and_come_back() {
        let mut b = Budget::new(false);
        let now = Instant::now();
        assert!((0..CONTROL).all(|_| b.control(now).is_ok()));
        assert!(b.control(now).is_err());
        assert!(b.control(now + PERIOD).is_ok());
        assert!((0..RESETS).all(|_| b.reset().is_ok()));
        b.finished();
        assert!(b.reset().is_ok());
        assert_eq!(b.reset(), Err("streams reset"));
    }

    #[test]
    fn sources_that_misbehaved_have_less() {
        let mut b = Budget::new(true);
        assert!((0..RESETS / STRICT).all(|_| b.reset().is_ok()));
        assert!(b.reset().is_err());
    }
}
