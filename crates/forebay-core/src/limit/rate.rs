//! Leaky buckets (nginx: ngx_http_limit_req_module).

use super::zones::KEY_COST;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Buckets of a zone, one for each key.
#[derive(Debug)]
pub struct Buckets {
    map: HashMap<Box<[u8]>, Bucket, foldhash::fast::RandomState>,
    /// Keys in approximate order of their last use, each once, with the number of that use. A use does not move its key:
    /// only [`Buckets::evict`] moves keys that were used in the meantime to the end.
    order: std::collections::VecDeque<(u64, Box<[u8]>)>,
    uses: u64,
    room: usize,
    used: usize,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    excess: u64,
    last: Instant,
    use_number: u64,
}

impl Buckets {
    /// Returns the bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Creates an empty set; `room` is the size of the zone, bytes.
    pub fn new(room: usize) -> Buckets {
        Buckets { map: HashMap::default(), order: Default::default(), uses: 0, room, used: 0 }
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
        self.uses += 1;
        let use_number = self.uses;
        if let Some(b) = self.map.get_mut(key) {
            // Threads take the time of their turn, so `now` may be before the last use.
            let since = now.saturating_duration_since(b.last);
            let ms = since.as_secs().saturating_mul(1000) + u64::from(since.subsec_millis());
            let leaked = rate.saturating_mul(ms) / 1000;
            // The rest of a millisecond is kept for the next request; else frequent requests would never leak.
            let seen = b.last.checked_add(Duration::from_millis(ms)).unwrap_or(now);
            let excess = (b.excess + 1000).saturating_sub(leaked);
            b.use_number = use_number;
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
            let cost = KEY_COST + key.len();
            while self.used + cost > self.room && self.evict() {}
            self.used += cost;
            self.map.insert(key.into(), Bucket { excess: 0, last: now, use_number });
            self.order.push_back((use_number, key.into()));
        }
        Ok(0)
    }

    /// Removes the least recently used key. Returns `false` if there is none.
    fn evict(&mut self) -> bool {
        while let Some((n, key)) = self.order.pop_front() {
            match self.map.get(&key) {
                // Moved once at most: the next time its number is that of the key's last use, since no use comes in
                // between.
                Some(b) if b.use_number != n => self.order.push_back((b.use_number, key)),
                known => {
                    if known.is_some() {
                        self.map.remove(&key);
                        self.used = self.used.saturating_sub(KEY_COST + key.len());
                    }
                    return true;
                }
            }
        }
        false
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

    #[test]
    fn the_least_recently_used_key_gives_way() {
        let mut b = Buckets::new(3 * (KEY_COST + 1));
        let t = Instant::now();
        for k in [b"a", b"b", b"c", b"a", b"d"] {
            let _ = b.account(k, 1000, 5000, t, true);
        }
        assert_eq!(b.map.len(), 3);
        assert!(b.map.contains_key(&b"a"[..]) && !b.map.contains_key(&b"b"[..]));
        for _ in 0..1000 {
            let _ = b.account(b"a", 1000, 0, t, true);
        }
        assert_eq!(b.order.len(), 3);
    }
}
