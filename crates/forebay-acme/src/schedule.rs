//! Times of attempts. Nothing here reads a clock or draws a number: both are parameters.

use crate::settings::RenewalRule;
use std::time::Duration;

pub(crate) const MINUTE: i64 = 60;
pub(crate) const HOUR: i64 = 3600;
pub(crate) const DAY: i64 = 24 * HOUR;

/// Pauses after failures in a row, seconds. The last one repeats.
const PAUSES: [i64; 4] = [MINUTE, 10 * MINUTE, 100 * MINUTE, DAY];
/// The last pause if the authority has suggested a time.
const SUGGESTED_PAUSE: i64 = 6 * HOUR;
/// Time between two questions for renewal information, unless the authority names one.
pub(crate) const ASK_EVERY: Duration = Duration::from_hours(12);

/// Number from 0 to 1 that nobody can predict.
pub(crate) type Chance = f64;

/// Spreads a time: returns `seconds`, up to a part of it more or less.
fn spread(seconds: i64, part: f64, chance: Chance) -> i64 {
    seconds + (seconds as f64 * part * (chance * 2.0 - 1.0)) as i64
}

/// Returns the time at which a certificate is renewed if the authority suggests none.
pub(crate) fn renewal(from: i64, until: i64, rule: RenewalRule, chance: Chance) -> i64 {
    let life = until.saturating_sub(from).max(0);
    match rule {
        RenewalRule::Before(seconds) if seconds < life => until - seconds,
        // No certificate lives as long as the rule asks for: each would be renewed at once.
        RenewalRule::Before(_) | RenewalRule::Lifetime => {
            let used = if life < 10 * DAY { life / 2 } else { life / 3 * 2 };
            from + spread(used, 0.02, chance)
        }
    }
}

/// Returns the pause after a number of failures in a row, seconds. `suggested`: the authority has suggested a time.
pub(crate) fn pause(failures: u32, suggested: bool, chance: Chance) -> i64 {
    let index = usize::try_from(failures.saturating_sub(1)).unwrap_or(usize::MAX);
    let pause = PAUSES.get(index).copied().unwrap_or(DAY);
    let pause = if suggested { pause.min(SUGGESTED_PAUSE) } else { pause };
    spread(pause, 0.1, chance)
}

/// Time that the authority suggests for a renewal (RFC 9773).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suggestion {
    /// Begin of the window.
    pub(crate) start: i64,
    /// End of the window.
    pub(crate) end: i64,
    /// Chosen time in the window.
    pub(crate) chosen: i64,
}

impl Suggestion {
    /// Chooses a time of a window. Keeps that of the last answer if the window has not moved.
    pub(crate) fn choose(
        start: i64,
        end: i64,
        last: Option<Suggestion>,
        chance: Chance,
    ) -> Option<Suggestion> {
        if end <= start {
            return None;
        }
        match last.filter(|l| l.start == start && l.end == end) {
            Some(same) => Some(same),
            None => Some(Suggestion { start, end, chosen: start + ((end - start) as f64 * chance) as i64 }),
        }
    }
}

/// Returns the time of a suggested renewal, or the last tenth of the lifetime if that is earlier: an authority may suggest a time
/// after the end.
pub(crate) fn before_end(chosen: i64, (from, until): (i64, i64)) -> i64 {
    chosen.min(until - tenth(from, until))
}

/// Returns the first time at which a certificate is renewed that this process got at `issued_at`. An authority may suggest a time in
/// the past again and again, and by a wrong clock each new certificate is due.
pub(crate) fn earliest(issued_at: i64, (from, until): (i64, i64)) -> i64 {
    issued_at + tenth(from, until).clamp(1, HOUR)
}

/// Returns a tenth of a lifetime.
fn tenth(from: i64, until: i64) -> i64 {
    until.saturating_sub(from).max(0) / 10
}

/// Returns the seconds until renewal information is asked for again. At most a tenth of the lifetime, or a revocation of a short
/// certificate would not be noticed.
pub(crate) fn ask_again(asked: Duration, (from, until): (i64, i64)) -> i64 {
    let most = tenth(from, until).clamp(1, DAY);
    i64::try_from(asked.as_secs()).unwrap_or(DAY).clamp(most.min(MINUTE), most)
}

/// Returns the sleep until a time. At most an hour, so that changes of the clock and of files are noticed.
pub(crate) fn nap(next: i64, now: i64) -> Duration {
    Duration::from_secs(next.saturating_sub(now).clamp(1, HOUR) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_after_two_thirds() {
        let of = |days: i64, chance| renewal(0, days * DAY, RenewalRule::Lifetime, chance);
        assert_eq!(of(90, 0.5), 60 * DAY);
        assert_eq!(of(6, 0.5), 3 * DAY);
        assert_eq!((of(90, 0.0), of(90, 1.0)), (60 * DAY * 98 / 100, 60 * DAY * 102 / 100));
        assert_eq!(renewal(0, 90 * DAY, RenewalRule::Before(30 * DAY), 0.9), 60 * DAY);
        // A certificate that lives shorter than the rule asks for is not due from the start.
        assert_eq!(renewal(0, DAY, RenewalRule::Before(30 * DAY), 0.5), DAY / 2);
        assert_eq!(renewal(0, DAY, RenewalRule::Before(DAY), 0.5), DAY / 2);
        assert_eq!(renewal(10, 5, RenewalRule::Lifetime, 0.9), 10);
    }

    #[test]
    fn pauses_grow_to_a_day() {
        let of = |failures| pause(failures, false, 0.5);
        assert_eq!([1, 2, 3, 4, 5, u32::MAX].map(of), [60, 600, 6000, DAY, DAY, DAY]);
        assert_eq!([3, 4, 9].map(|n| pause(n, true, 0.5)), [6000, 6 * HOUR, 6 * HOUR]);
        assert_eq!((pause(1, false, 0.0), pause(1, false, 1.0)), (54, 66));
    }

    #[test]
    fn a_window_keeps_its_chosen_time_until_it_moves() {
        let first = Suggestion::choose(1000, 2000, None, 0.25);
        assert_eq!(first.map(|s| s.chosen), Some(1250));
        assert_eq!(Suggestion::choose(1000, 2000, first, 0.9), first);
        assert_eq!(Suggestion::choose(1000, 1800, first, 0.5).map(|s| s.chosen), Some(1400));
        assert_eq!(Suggestion::choose(2000, 2000, first, 0.5), None);
    }

    #[test]
    fn suggestions_are_taken_within_reason() {
        let life = (0, 100 * DAY);
        assert_eq!(before_end(50 * DAY, life), 50 * DAY);
        assert_eq!(before_end(200 * DAY, life), 90 * DAY);
        assert_eq!(earliest(10, life), 10 + HOUR);
        assert_eq!(earliest(0, (0, 20)), 2);
        assert_eq!(earliest(5, (20, 0)), 6);
    }

    #[test]
    fn questions_and_naps_have_bounds() {
        let of = |seconds, days| ask_again(Duration::from_secs(seconds), (0, days * DAY));
        assert_eq!(ask_again(ASK_EVERY, (0, 90 * DAY)), 12 * HOUR);
        assert_eq!((of(1, 90), of(1 << 40, 90)), (60, DAY));
        // Certificates of a week, of two minutes, and one that the clock makes nonsense of.
        assert_eq!(
            (of(1 << 40, 7), ask_again(ASK_EVERY, (0, 120)), ask_again(ASK_EVERY, (9, 0))),
            (7 * DAY / 10, 12, 1)
        );
        assert_eq!(nap(100, 40), Duration::from_secs(60));
        assert_eq!(nap(0, 40), Duration::from_secs(1));
        assert_eq!(nap(i64::MAX, 40), Duration::from_secs(3600));
    }
}
