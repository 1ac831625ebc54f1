//! Points in time, given by the owner of a connection.

use std::ops::{Add, AddAssign};
use std::time::Duration;

/// Point in time: nanoseconds since a begin that is the same for all connections of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Creates a time from nanoseconds since the begin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Returns the nanoseconds since the begin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time that has passed since an earlier point; zero if that is later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Returns a later point. It saturates after some 584 years.
    fn add(self, more: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(more.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, more: Duration) {
        *self = *self + more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let early = Time::from_nanos(5);
        let late = early + Duration::from_nanos(7);
        assert_eq!((late.as_nanos(), late.since(early)), (12, Duration::from_nanos(7)));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late + Duration::MAX, Time::from_nanos(u64::MAX));
    }
}
