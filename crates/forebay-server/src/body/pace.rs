//! Rate of a response (nginx: limit_rate). Hot path.

use std::time::{Duration, Instant};

/// Keeps a response at its rate (nginx: limit_rate).
pub(super) struct Pace {
    rate: u64,
    after: u64,
    /// Bytes sent so far, with the head.
    pub(super) sent: u64,
    /// Start of the response, where there is a rate.
    started: Option<Instant>,
}

impl Pace {
    /// Creates it for a response that begins. The head counts, as in nginx.
    pub(super) fn new(rate: Option<(u64, u64)>) -> Pace {
        let (rate, after) = rate.unwrap_or((0, 0));
        Pace { rate, after, sent: 0, started: (rate > 0).then(Instant::now) }
    }

    /// Returns `true` if there is no rate.
    pub(super) fn is_unlimited(&self) -> bool {
        self.rate == 0
    }

    /// Returns how many bytes may go now, or how long to wait.
    pub(super) fn allowance(&self, want: u64) -> Result<u64, Duration> {
        if self.rate == 0 {
            return Ok(want);
        }
        self.allowance_after(self.started.map_or(Duration::ZERO, |t| t.elapsed()), want)
    }

    /// Computes the allowance for a time since the beginning of the response.
    fn allowance_after(&self, elapsed: Duration, want: u64) -> Result<u64, Duration> {
        // nginx counts in whole seconds and allows the first second's bytes at once, hence the one that is added.
        let allowed =
            elapsed.as_secs().saturating_add(1).saturating_mul(self.rate).saturating_add(self.after);
        if self.sent < allowed {
            return Ok(want.min(allowed - self.sent));
        }
        // The next bytes may go when the next second begins, so an earlier wake-up would be in vain.
        let second = self.sent.saturating_sub(self.after).checked_div(self.rate).unwrap_or(0);
        let wait = Duration::from_secs(second).saturating_sub(elapsed);
        // nginx adds this millisecond as well.
        Err(wait + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_response_waits_until_more_may_go() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new(Some((100, 50)));
        assert_eq!(pace.allowance_after(ms(0), 1000), Ok(150));
        pace.sent = 150;
        assert_eq!(pace.allowance_after(ms(0), 1000), Err(ms(1001)));
        assert_eq!(pace.allowance_after(ms(999), 1000), Err(ms(2)));
        assert_eq!(pace.allowance_after(ms(1000), 1000), Ok(100));
        pace.sent = 420;
        assert_eq!(pace.allowance_after(ms(1500), 1000), Err(ms(1501)));
        assert_eq!(pace.allowance_after(ms(3000), 10), Ok(10));
    }
}
