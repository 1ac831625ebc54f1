//! The rate at which a response is read (nginx: proxy_limit_rate).

use super::READ;
use std::time::{Duration, Instant};

/// Bytes that have been read, and the limit for them.
#[derive(Debug)]
pub(super) struct ReadRate {
    /// Limit, bytes a second; 0 = no limit.
    limit: u64,
    /// Bytes read.
    pub(super) read: u64,
    /// Start of the time in which they were read.
    since: Option<Instant>,
}

impl ReadRate {
    /// No limit, and nothing read.
    pub(super) const NONE: ReadRate = ReadRate { limit: 0, read: 0, since: None };

    /// Begins with bytes that have been read. `limit`: bytes a second; 0 = no limit.
    pub(super) fn new(limit: u64, read: u64) -> ReadRate {
        ReadRate { limit, read, since: (limit > 0).then(Instant::now) }
    }

    /// Returns `true` if there is a limit.
    pub(super) fn is_limited(&self) -> bool {
        self.limit > 0
    }

    /// Returns the number of bytes that the rate has allowed so far.
    fn allowed(&self) -> u64 {
        let seconds = self.since.map_or(0, |t| t.elapsed().as_secs());
        // As in nginx, the bytes of the first second are allowed at once.
        (seconds + 1).saturating_mul(self.limit)
    }

    /// Returns the time for which the rate forbids to read on.
    pub(super) fn delay(&self) -> Option<Duration> {
        if !self.is_limited() {
            return None;
        }
        let over = self.read.checked_sub(self.allowed())?;
        // The additional millisecond makes up for the division, which rounds down: waking too early would only lead to
        // another wait.
        Some(Duration::from_millis(over.saturating_mul(1000) / self.limit + 1))
    }

    /// Returns the number of bytes to read at once.
    pub(super) fn room(&self) -> usize {
        if !self.is_limited() {
            return READ;
        }
        usize::try_from(self.allowed().saturating_sub(self.read)).unwrap_or(READ).clamp(1, READ)
    }
}
