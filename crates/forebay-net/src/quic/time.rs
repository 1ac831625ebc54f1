//! Times of the state machine, which counts from a point that is the same in the whole process.

use forebay_quic::time::Time;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Instant of the first time. It lies before all that happens.
static BEGIN: LazyLock<Instant> = LazyLock::new(|| {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
});

/// Returns the time of an instant, as connections take it.
pub fn time(at: Instant) -> Time {
    let nanos = at.saturating_duration_since(*BEGIN).as_nanos();
    Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Returns the instant of a time.
pub(super) fn instant(at: Time) -> Instant {
    *BEGIN + Duration::from_nanos(at.as_nanos())
}

/// Returns the seconds since 1970, which tokens carry.
pub(super) fn unix() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_times_agree() {
        let now = Instant::now();
        assert_eq!(instant(time(now)), now);
        assert!(time(now) > Time::default());
        let later = now + Duration::from_millis(5);
        assert_eq!(time(later).since(time(now)), Duration::from_millis(5));
    }
}
