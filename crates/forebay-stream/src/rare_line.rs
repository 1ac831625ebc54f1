//! Lines of the error log that many events could cause.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Line that is logged at most once a second. The next one has the number of those that are left out.
#[derive(Debug, Default)]
pub(crate) struct RareLine {
    last: Cell<Option<Instant>>,
    left_out: Cell<u64>,
}

impl RareLine {
    /// Returns the text to log. `None`: the last line is too recent, and this one is only counted.
    pub(crate) fn admit(&self, now: Instant, text: &str) -> Option<String> {
        if self.last.get().is_some_and(|last| now < last + PAUSE) {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        }
        self.last.set(Some(now));
        Some(match self.left_out.take() {
            0 => text.to_owned(),
            n => format!("{text}, and {n} more since the last such line"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_line_counts_those_left_out() {
        let (line, start) = (RareLine::default(), Instant::now());
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        assert_eq!(line.admit(at(0), "full").as_deref(), Some("full"));
        assert_eq!((line.admit(at(1), "full"), line.admit(at(9), "full")), (None, None));
        let counted = "full, and 2 more since the last such line";
        assert_eq!(line.admit(at(10), "full").as_deref(), Some(counted));
        assert_eq!(line.admit(at(30), "full").as_deref(), Some("full"));
    }
}
