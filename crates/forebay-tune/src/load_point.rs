//! The load point: `--load`, and the check at half of the load. A server that is always full shows only its capacity; one
//! with room to spare shows what a setting that waits or gathers costs.

use crate::figures::Figures;
use crate::random::Random;
use crate::rig::Live;
use crate::search::Point;
use crate::stats::{self, Interval};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Runs that measure the capacity.
pub const CAPACITY: usize = 3;

/// The blocks of the check, each run on a fresh start; 0: original, 1: final.
const BLOCKS: [[usize; 4]; 2] = [[0, 1, 1, 0], [1, 0, 0, 1]];

/// A p99 beyond this times that of the original is worse.
const WORSE_P99: f64 = 1.1;

/// Parses `87%` or `87`, a part of the capacity. Beyond 95 % queues grow without end, and no two runs agree.
///
/// # Errors
/// The text is not a whole number from 10 to 95.
pub fn percentage(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    number.parse().ok().filter(|n| (10..=95).contains(n)).ok_or_else(|| "from 10% to 95%".to_owned())
}

/// Returns a part of a rate, in whole requests: a log keeps these to the last bit.
pub fn share(rate: f64, percent: u8) -> f64 {
    (rate * f64::from(percent) / 100.0).round().max(1.0)
}

/// Returns the time that is set aside for the check: a twentieth, and enough for eight short runs.
pub fn reserve(budget: Duration) -> Duration {
    (budget / 20).max(Duration::from_secs(4)).min(budget / 4)
}

/// Figures of the check at half of the load.
#[derive(Clone, Debug, Default)]
pub struct Half {
    /// Requests a second that were sent.
    pub rate: f64,
    /// Pairs of runs.
    pub pairs: usize,
    /// Medians of the original.
    pub before: Figures,
    /// Medians of the final configuration.
    pub after: Figures,
    /// Logarithm of p99 after by before, with its interval.
    pub p99: Interval,
    /// Logarithm of CPU time per request after by before, with its interval.
    pub cpu: Interval,
}

/// Result of the check.
#[derive(Clone, Debug)]
pub enum Check {
    /// Both were measured.
    Done(Half),
    /// Not measured, with the reason: the time was over, the user stopped it, or the original did not answer.
    Unchecked(String),
    /// The final configuration does not answer there; with its words.
    Fails(String),
}

impl Half {
    /// Compares the runs of the original and the final configuration, pair by pair; three are needed for an interval.
    fn of(rate: f64, before: &[Figures], after: &[Figures], seed: u64) -> Option<Half> {
        let pairs = before.len().min(after.len());
        if pairs < 3 {
            return None;
        }
        let mut random = Random::new(seed);
        let mut compare = |of: &dyn Fn(&Figures) -> f64| {
            let each = before.iter().zip(after).map(|(b, a)| vec![(of(a) / of(b)).ln()]);
            stats::interval(&each.collect::<Vec<_>>(), 2000, &mut random)
        };
        let p99 = compare(&|f| f.p99.max(1) as f64);
        let cpu = compare(&|f| f.cpu);
        Some(Half { rate, pairs, before: Figures::median(before), after: Figures::median(after), p99, cpu })
    }

    /// Returns the figures that are worse with the final configuration, beyond the noise.
    pub fn worse(&self) -> Vec<String> {
        let mut out = Vec::new();
        if self.p99.low > 0.0 && self.p99.mid > WORSE_P99.ln() {
            out.push(format!("p99 is {} that of the original", times(&self.p99)));
        }
        if self.cpu.low > 0.0 {
            out.push(format!("a request costs {} the CPU time", times(&self.cpu)));
        }
        out
    }
}

/// Returns a difference of logarithms as a ratio with its interval.
fn times(i: &Interval) -> String {
    format!("{:.2} [{:.2}, {:.2}] times", i.mid.exp(), i.low.exp(), i.high.exp())
}

impl Check {
    /// Measures original against final at `rate` requests a second, in blocks ABBA, until the time of `live` is over. `past`:
    /// runs of an earlier process.
    pub fn run(live: &mut Live<'_>, best: &Point, rate: f64, mut past: VecDeque<Value>, seed: u64) -> Check {
        let points = [live.original(), best.clone()];
        let mut runs = [Vec::new(), Vec::new()];
        let order = BLOCKS.as_flattened();
        for (done, which) in order.iter().enumerate() {
            if past.is_empty() && Instant::now() > live.time.until {
                break;
            }
            match live.checked(&points[*which], rate, order.len() - done, &mut past) {
                None => return Check::Unchecked("it was interrupted".into()),
                Some(Ok(f)) => runs[*which].push(f),
                Some(Err(why)) if *which == 0 => {
                    return Check::Unchecked(format!("the original does not answer there: {why}"));
                }
                Some(Err(why)) => return Check::Fails(why),
            }
        }
        Half::of(rate, &runs[0], &runs[1], seed)
            .map_or_else(|| Check::Unchecked("the time was over".into()), Check::Done)
    }

    /// Returns the figures that are worse with the final configuration; `None` where it is as good or was not checked.
    pub fn worse(&self) -> Option<String> {
        let all = match self {
            Check::Done(half) => half.worse().join(", "),
            Check::Fails(why) => why.clone(),
            Check::Unchecked(_) => return None,
        };
        (!all.is_empty()).then(|| format!("at half of the load the tuned configuration is worse: {all}"))
    }

    /// Returns the text for people; `row` makes a line of figures.
    pub fn text(&self, row: impl Fn(&str, &Figures) -> String) -> String {
        let mut out = match self {
            Check::Done(h) => format!(
                "At half of the load ({:.0} requests/s, {} pairs on fresh starts):\n{}{}p99 {} that of the original, CPU per \
                 request {}\n",
                h.rate,
                h.pairs,
                row("as it is", &h.before),
                row("tuned", &h.after),
                times(&h.p99),
                times(&h.cpu)
            ),
            Check::Unchecked(why) => format!("Not checked at half of the load: {why}.\n"),
            Check::Fails(_) => String::new(),
        };
        if let Some(worse) = self.worse() {
            out.push_str(&format!("WORSE: {worse}\n"));
        }
        out
    }

    /// Returns the value for `result.json`.
    pub fn json(&self) -> Value {
        let ratio = |i: &Interval| json!({"mid": i.mid.exp(), "low": i.low.exp(), "high": i.high.exp()});
        match self {
            Check::Done(h) => {
                json!({"rate": h.rate, "pairs": h.pairs, "before": h.before.json(), "after": h.after.json(),
                "p99_ratio": ratio(&h.p99), "cpu_ratio": ratio(&h.cpu), "worse": h.worse()})
            }
            Check::Unchecked(why) => json!({"not_checked": why}),
            Check::Fails(why) => json!({"worse": [why]}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(figures: [(u64, f64); 4]) -> Vec<Figures> {
        figures.map(|(p99, cpu)| Figures { rate: 500.0, p99, cpu, ..Figures::default() }).to_vec()
    }

    fn check(after: [(u64, f64); 4]) -> Check {
        let before = runs([(1000, 20.0), (1010, 20.2), (990, 19.9), (1005, 20.1)]);
        Check::Done(Half::of(500.0, &before, &runs(after), 1).expect("enough pairs"))
    }

    #[test]
    fn percentages_of_the_capacity() {
        assert_eq!((percentage("87%"), percentage("10")), (Ok(87), Ok(10)));
        for bad in ["9", "96%", "87 %", "87%%", "-20", "half", ""] {
            assert!(percentage(bad).is_err(), "{bad}");
        }
        assert_eq!((share(12_345.6, 87), share(0.7, 50)), (10_741.0, 1.0));
    }

    #[test]
    fn the_check_has_its_share_of_the_time() {
        let of = |s: u64| reserve(Duration::from_secs(s)).as_secs_f64();
        assert_eq!((of(1500), of(40), of(4)), (75.0, 4.0, 1.0));
    }

    #[test]
    fn worse_is_what_is_beyond_the_limit_and_the_noise() {
        let slow = check([(1300, 15.0), (1350, 15.1), (1290, 14.9), (1320, 15.0)]);
        let worse = slow.worse().expect("slower");
        assert!(worse.contains("worse: p99 is 1.31 [") && !worse.contains("CPU"), "{worse}");
        // Less than a tenth more, and much more in half of the runs only.
        assert!(check([(1080, 15.0), (1085, 15.1), (1079, 14.9), (1082, 15.0)]).worse().is_none());
        assert!(check([(5000, 15.0), (990, 15.1), (1000, 14.9), (4000, 15.0)]).worse().is_none());
        let dear = check([(1000, 21.0), (1010, 21.2), (990, 21.1), (1005, 21.0)]);
        assert!(dear.worse().expect("dearer").contains("a request costs 1.05 ["));
        assert!(check([(1000, 19.0), (1010, 21.2), (990, 20.9), (1005, 19.5)]).worse().is_none());
    }

    #[test]
    fn equal_targets_are_hardly_ever_called_worse() {
        let mut random = Random::new(1);
        let mut false_alarms = 0;
        for seed in 0..300 {
            let mut some = || {
                runs([(); 4].map(|()| {
                    let p99 = (1e6 * (0.3 * random.normal()).exp()) as u64;
                    (p99, 20.0 * (0.05 * random.normal()).exp())
                }))
            };
            let half = Half::of(500.0, &some(), &some(), seed).expect("enough pairs");
            false_alarms += usize::from(!half.worse().is_empty());
        }
        assert!(false_alarms <= 15, "{false_alarms} of 300");
    }

    #[test]
    fn it_is_told_for_people_and_programs() {
        let row = |name: &str, f: &Figures| format!("{name} {} ns\n", f.p99);
        let good = check([(900, 15.0), (905, 15.1), (899, 14.9), (901, 15.0)]);
        let text = good.text(row);
        let head = "At half of the load (500 requests/s, 4 pairs on fresh starts):\nas it is 1002 ns\ntuned 900 ns\np99 0.90 [";
        assert!(text.starts_with(head) && !text.contains("WORSE"), "{text}");
        let json = good.json();
        assert!(json["cpu_ratio"]["mid"].as_f64().is_some_and(|x| (x - 0.748).abs() < 0.003), "{json}");
        assert!(json["before"]["p99_ns"] == 1002 && json["worse"] == json!([]), "{json}");
        let late = Check::Unchecked("the time was over".into());
        assert_eq!(late.text(row), "Not checked at half of the load: the time was over.\n");
        assert!(late.worse().is_none() && late.json()["not_checked"] == "the time was over");
        let fails = Check::Fails("3 requests failed".into());
        assert_eq!(
            fails.text(row),
            "WORSE: at half of the load the tuned configuration is worse: 3 requests failed\n"
        );
    }

    #[test]
    fn few_pairs_say_nothing() {
        let two = &runs([(1000, 20.0); 4])[..2];
        assert!(Half::of(500.0, two, two, 1).is_none());
    }
}
