//! Objectives of a tuning.

use crate::figures::Figures;
use crate::link::{Link, SLOW};

/// Objective of a tuning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Goal {
    /// CPU time of the server per request
    Cpu,
    /// Requests a second
    Throughput,
    /// 99th percentile of latency
    Latency,
    /// CPU time per request and requests a second together: what makes the server work, and what makes its clients wait
    Speed,
    /// Time of a page over a slow link: its connections, its bytes, and what the server takes
    Transfer,
}

impl Link {
    /// Returns how long an answer of so many bytes takes on a connection that is open: a round trip for the request, one more for
    /// each doubling of the window while it is the limit, and the bytes. It is reckoned, not measured.
    fn seconds(&self, bytes: f64) -> f64 {
        let full = self.bytes_a_second * self.round_trip;
        let (mut window, mut sent, mut trips) = (self.first_window, 0.0, 1.0);
        while sent + window < bytes && window < full {
            sent += window;
            window *= 2.0;
            trips += 1.0;
        }
        trips * self.round_trip + (bytes - sent).max(0.0) / self.bytes_a_second
    }
}

impl Goal {
    /// Returns the logarithm of the objective; more is better.
    pub(crate) fn score(self, f: &Figures) -> f64 {
        match self {
            Goal::Cpu => -f.cpu.ln(),
            Goal::Throughput => f.rate.ln(),
            Goal::Latency => -(f.p99.max(1) as f64).ln(),
            Goal::Speed => (f.rate.ln() - f.cpu.ln()) / 2.0,
            Goal::Transfer if f.page > 0.0 => -f.page.ln(),
            Goal::Transfer => -(SLOW.seconds(f.bytes) + f.cpu / 1e6).ln(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_link_counts_bytes_and_round_trips() {
        let ms = |bytes: f64| (SLOW.seconds(bytes) * 1e3).round();
        assert_eq!((ms(0.0), ms(10_000.0)), (60.0, 80.0));
        // 14,600 bytes at first, the rest after a round trip.
        assert_eq!(ms(30_000.0), 151.0);
        assert!(ms(1e6) > 2000.0 && ms(1e6) < 2300.0, "{}", ms(1e6));
        let compressed = Figures { bytes: 20_000.0, cpu: 900.0, ..Figures::default() };
        let plain = Figures { bytes: 100_000.0, cpu: 20.0, ..Figures::default() };
        assert!(Goal::Transfer.score(&compressed) > Goal::Transfer.score(&plain));
        let page = |page: f64| Goal::Transfer.score(&Figures { page, ..plain });
        assert!(page(1.0) > page(2.0));
    }
}
