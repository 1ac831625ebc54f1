//! Leaky buckets (nginx: ngx_http_limit_req_module).

use super::keys::Keys;
use std::time::{Duration, Instant};

/// Buckets of a zone, one for each key.
#[derive(Debug)]
pub struct Buckets(Keys<Bucket>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    excess: u64,
    last: Instant,
}

impl Buckets {
    /// Returns the bytes in use.
    pub fn used(&self) -> usize {
        self.0.used()
    }

    /// Creates an empty set; `room` is the size of the zone, bytes.
    pub fn new(room: usize) -> Buckets {
        Buckets(Keys::new(room, 0))
    }

    /// Returns the excess of a key after one more request, in thousandths. With `count` the request is counted.
    ///
    /// # Errors
    /// The excess, if it is above `burst`. The request is not counted then.
    pub fn account(
        &mut self,
        key: &[u8],
        rate: u64,
        burst: u64,
        now: Instant,
        count: bool,
    ) -> Result<u64, u64> {
        if let Some(b) = self.0.touch(key) {
            // Threads take the time of their turn, so `now` may be before the last use.
            let since = now.saturating_duration_since(b.last);
            let ms = since.as_secs().saturating_mul(1000) + u64::from(since.subsec_millis());
            let leaked = rate.saturating_mul(ms) / 1000;
            // The rest of a millisecond is kept for the next request; else frequent requests would never leak.
            let seen = b.last.checked_add(Duration::from_millis(ms)).unwrap_or(now);
            let excess = (b.excess + 1000).saturating_sub(leaked);
            if excess > burst {
                return Err(excess);
            }
            if count {
                b.excess = excess;
                b.last = seen;
            }
            return Ok(excess);
        }
        if count {
            self.0.insert(key, Bucket { excess: 0, last: now });
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_leaks() {
        let mut b = Buckets::new(1 << 20);
        let t = Instant::now();
        assert_eq!(b.account(b"a", 2000, 1000, t, true), Ok(0));
        assert_eq!(b.account(b"a", 2000, 1000, t, true), Ok(1000));
        assert_eq!(b.account(b"a", 2000, 1000, t, true), Err(2000));
        let later = t + Duration::from_millis(500);
        assert_eq!(b.account(b"a", 2000, 1000, later, true), Ok(1000));
        assert_eq!(b.account(b"b", 2000, 1000, later, true), Ok(0));
    }

    #[test]
    fn it_leaks_between_requests_that_follow_at_once() {
        let mut b = Buckets::new(1 << 20);
        let t = Instant::now();
        // 5,000 a second where 10,000 are allowed.
        for i in 0..1000 {
            let now = t + Duration::from_micros(200) * i;
            let excess = b.account(b"a", 10_000_000, 20_000, now, true).expect("within the burst");
            assert!(excess <= 5_000, "{i}: {excess}");
        }
    }
}
