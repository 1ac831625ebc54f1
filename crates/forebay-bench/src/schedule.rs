//! Times at which requests of an open loop are due.

/// Rate of requests over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests a second at the start.
    pub from: f64,
    /// Requests a second at the end; the same as `from` unless it is a ramp.
    pub to: f64,
    /// Requests come at random, as from independent users, rather than evenly.
    pub poisson: bool,
}

impl Rate {
    /// Returns a rate that is always the same, evenly spread.
    pub fn constant(rate: f64) -> Rate {
        Rate { from: rate, to: rate, poisson: false }
    }

    /// Returns the highest rate.
    pub fn highest(&self) -> f64 {
        self.from.max(self.to)
    }
}

/// Gives the times of one thread's requests, in order, without end. Hot path.
#[derive(Clone, Debug)]
pub struct Schedule {
    rate: Rate,
    /// ns of the ramp; the rate stays at `to` afterwards.
    span: f64,
    threads: f64,
    /// Requests before the next one, of all threads.
    position: f64,
    random: Random,
}

impl Schedule {
    /// Returns the share of thread `index` of `threads`. `span_ns`: length of the ramp.
    pub fn new(rate: Rate, span_ns: u64, index: usize, threads: usize, seed: u64) -> Schedule {
        let mut schedule = Schedule {
            rate,
            span: span_ns as f64,
            threads: threads as f64,
            position: index as f64,
            random: Random::new(seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        };
        if rate.poisson {
            schedule.position = 0.0;
            schedule.step();
        }
        schedule
    }

    fn step(&mut self) {
        // Each thread's process is independent; together they make one of the whole rate.
        self.position += self.threads * if self.rate.poisson { self.random.exponential() } else { 1.0 };
    }

    /// Returns the time of the next request, ns from the start.
    #[inline]
    pub fn following(&mut self) -> u64 {
        let at = self.time_of(self.position);
        self.step();
        at
    }

    /// Returns the time by which `n` requests are due, ns.
    fn time_of(&self, n: f64) -> u64 {
        let (a, b) = (self.rate.from / 1e9, self.rate.to / 1e9);
        if a == b {
            return (n / a) as u64;
        }
        // n = a t + (b - a) t^2 / 2 span; beyond the span the rate is b.
        let whole = (a + b) / 2.0 * self.span;
        if n >= whole {
            return (self.span + (n - whole) / b) as u64;
        }
        let k = (b - a) / self.span;
        (2.0 * n / (a + (a * a + 2.0 * k * n).max(0.0).sqrt())) as u64
    }
}

/// A small generator of random numbers (xorshift64*), the same on every machine for the same seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts with a seed.
    pub fn new(seed: u64) -> Random {
        // Seeds that lie near each other must not give like sequences.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((z ^ z >> 31) | 1)
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number from 0 to below 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number below `n`; 0 when `n` is 0.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Returns an exponentially distributed number with mean 1.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Returns a normally distributed number with mean 0 and deviation 1.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn threads_together_are_even() {
        let mut all: Vec<u64> = (0..3)
            .flat_map(|i| {
                let mut s = Schedule::new(Rate::constant(1000.0), SECOND, i, 3, 1);
                (0..100).map(move |_| s.following()).collect::<Vec<_>>()
            })
            .collect();
        all.sort_unstable();
        assert!(all.iter().enumerate().all(|(i, t)| t.abs_diff(i as u64 * 1_000_000) <= 1), "{all:?}");
    }

    #[test]
    fn poisson_has_the_rate_and_the_spread() {
        let mut s = Schedule::new(Rate { from: 1000.0, to: 1000.0, poisson: true }, SECOND, 0, 1, 7);
        let times: Vec<f64> = (0..100_000).map(|_| s.following() as f64 / 1e6).collect();
        let gaps: Vec<f64> = times.windows(2).map(|w| w[1] - w[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{variance}");
    }

    #[test]
    fn ramps_rise_and_fall() {
        for (from, to) in [(100.0, 300.0), (300.0, 100.0)] {
            let mut s = Schedule::new(Rate { from, to, poisson: false }, 10 * SECOND, 0, 1, 0);
            let times: Vec<u64> = (0..4000).map(|_| s.following()).collect();
            let within =
                |a: u64, b: u64| times.iter().filter(|t| (a * SECOND..b * SECOND).contains(t)).count() as f64;
            let slope = (to - from) / 10.0;
            assert!((within(0, 1) - (from + slope / 2.0)).abs() < 3.0);
            assert!((within(9, 10) - (to - slope / 2.0)).abs() < 3.0);
            assert!((within(0, 10) - 2000.0).abs() < 3.0);
            assert!((within(11, 12) - to).abs() < 3.0);
        }
    }
}
