//! A test that may look after every pair, and intervals that hold at every look.
//!
//! A plain 95 % interval that is looked at after each pair, until it excludes zero, excludes it far too often. So each look has a
//! stricter level of its own, the same for all (a group-sequential test with Pocock's constant boundary, Biometrika 64, 1977), and
//! Student's t takes the place of the normal distribution, since the spread is known from the same few pairs. The intervals are the
//! repeated confidence intervals that belong to the test (Jennison and Turnbull, "Interim analyses: the repeated confidence
//! interval approach", JRSS B 51, 1989): all of them hold together with the level that is named, so one may stop at any look and for
//! any reason, be it that time is over.
//!
//! The level of a look was found by simulation: 1,500,000 sequences of normal differences, looks from the third pair to the
//! hundredth. A test below repeats it with fewer. Pairs are neighbours in time in random order, so their differences are symmetric
//! where nothing helps, and runs that another program disturbs make the test stricter, not looser.

use crate::stats::Interval;

/// Pairs before the first look.
pub(crate) const FIRST_LOOK: usize = 3;
/// Pairs at the last look.
pub(crate) const LAST_LOOK: usize = 100;

/// Error of a look, at one side, so that all looks together are wrong in 2.5 % of cases at a side.
const LOOK_95: f64 = 0.0019;
/// The same for 0.5 %: a gain is claimed by this level, since a false claim costs more than a missed one.
const LOOK_99: f64 = 0.0003;

/// Mean and spread of differences.
#[derive(Clone, Copy, Debug)]
struct Spread {
    pairs: usize,
    mean: f64,
    /// Standard deviation of one difference.
    sd: f64,
}

impl Spread {
    fn of(differences: &[f64]) -> Spread {
        let n = differences.len();
        let mean = differences.iter().sum::<f64>() / n.max(1) as f64;
        let squares: f64 = differences.iter().map(|d| (d - mean) * (d - mean)).sum();
        Spread { pairs: n, mean, sd: (squares / n.saturating_sub(1).max(1) as f64).sqrt() }
    }

    /// Returns the half width of the interval whose looks have this error, if there were `pairs` pairs.
    fn width(&self, look: f64, pairs: usize) -> f64 {
        if self.pairs < 2 || pairs < FIRST_LOOK {
            return f64::INFINITY;
        }
        t_quantile(look, pairs - 1) * self.sd / (pairs as f64).sqrt()
    }
}

/// Returns the mean of the differences and its 95 % interval, which holds however often one has looked.
pub(crate) fn interval(differences: &[f64]) -> Interval {
    let s = Spread::of(differences);
    let width = s.width(LOOK_95, s.pairs);
    Interval { mid: s.mean, low: s.mean - width, high: s.mean + width }
}

/// Returns `true` if the differences prove a gain at 99 %.
pub(crate) fn proves(differences: &[f64]) -> bool {
    let s = Spread::of(differences);
    s.mean - s.width(LOOK_99, s.pairs) > 0.0
}

/// Returns `true` if more pairs are not worth their time: a gain is proven, and its interval is narrow beside it.
pub(crate) fn is_enough(differences: &[f64]) -> bool {
    let s = Spread::of(differences);
    s.pairs >= LAST_LOOK || proves(differences) && s.width(LOOK_95, s.pairs) < 0.35 * s.mean
}

/// Returns how many pairs more would prove a gain, if they are like those so far. `None`: there is no gain to prove, or it would
/// take more than the last look.
pub(crate) fn pairs_to_proof(differences: &[f64]) -> Option<usize> {
    let s = Spread::of(differences);
    let proven = |pairs: &usize| s.mean > s.width(LOOK_99, *pairs);
    (s.pairs.max(FIRST_LOOK)..=LAST_LOOK).find(proven).map(|n| n.max(s.pairs + 1) - s.pairs)
}

/// Returns how many pairs are enough for a gain, if a run has this noise and the gain is somewhat less than it seems.
pub(crate) fn pairs_for(gain: f64, noise: f64) -> Option<usize> {
    let sd = noise * std::f64::consts::SQRT_2;
    let s = |pairs| Spread { pairs, mean: 0.7 * gain, sd };
    let enough =
        |n: &usize| s(*n).width(LOOK_99, *n) < s(*n).mean && s(*n).width(LOOK_95, *n) < 0.5 * s(*n).mean;
    (FIRST_LOOK..=LAST_LOOK).find(enough)
}

/// Returns the gain that `pairs` pairs prove in four of five cases, for runs with this noise.
pub(crate) fn visible(noise: f64, pairs: usize) -> f64 {
    let pairs = pairs.max(FIRST_LOOK);
    (t_quantile(LOOK_99, pairs - 1) + 0.84) * noise * std::f64::consts::SQRT_2 / (pairs as f64).sqrt()
}

/// Returns the value that Student's t with this many degrees of freedom exceeds with probability `tail`.
fn t_quantile(tail: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0f64, 1e5f64);
    for _ in 0..80 {
        let mid = f64::midpoint(low, high);
        if t_tail(mid, freedom) > tail { low = mid } else { high = mid }
    }
    high
}

/// Returns the probability that Student's t exceeds a positive value (Abramowitz and Stegun 26.7.3 and 26.7.4).
fn t_tail(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let odd = freedom % 2 == 1;
    // The series goes by powers of the cosine, two at a time.
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = 0.0;
    for k in (if odd { 3 } else { 2 }..=freedom).step_by(2) {
        sum += term;
        term *= cos * cos * (k - 1) as f64 / k as f64;
    }
    let inside = if odd { 2.0 / std::f64::consts::PI * (angle + sin * sum) } else { sin * sum };
    (1.0 - inside) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (tail, freedom, table) in [
            (0.025, 1, 12.706),
            (0.025, 2, 4.303),
            (0.005, 3, 5.841),
            (0.001, 10, 4.144),
            (0.0005, 30, 3.646),
        ] {
            let t = t_quantile(tail, freedom);
            assert!((t - table).abs() < 0.002, "{tail} {freedom}: {t}");
        }
    }

    /// Looks at all pairs of a sequence. Returns whether any look proves a gain, and whether any 95 % interval misses it.
    fn looks(random: &mut Random, gain: f64) -> (bool, bool) {
        let all: Vec<f64> = (0..LAST_LOOK).map(|_| gain + 0.07 * random.normal()).collect();
        let upto = |n: usize| all.get(..n).unwrap_or_default();
        // Most looks in few pairs, and then fewer and fewer, as the sums below are slow.
        let places = (FIRST_LOOK..30).chain((30..=LAST_LOOK).step_by(5));
        places.fold((false, false), |(proven, missed), n| {
            let i = interval(upto(n));
            (proven || proves(upto(n)), missed || gain < i.low || i.high < gain)
        })
    }

    #[test]
    fn looking_often_proves_nothing_that_is_not_there() {
        let mut random = Random::new(3);
        let (mut proven, mut missed) = (0, 0);
        for _ in 0..1000 {
            let (p, m) = looks(&mut random, 0.0);
            proven += usize::from(p);
            missed += usize::from(m);
        }
        // 5 and 50 are expected.
        assert!(proven <= 12, "{proven} of 1000 are false claims");
        assert!((20..=70).contains(&missed), "{missed} of 1000 intervals miss");
    }

    #[test]
    fn a_large_effect_takes_few_pairs_and_a_small_one_more() {
        let mut random = Random::new(4);
        let mut pairs = |gain: f64, noise: f64| {
            let mut seen = Vec::new();
            while !proves(&seen) && seen.len() < LAST_LOOK {
                seen.push(gain + noise * std::f64::consts::SQRT_2 * random.normal());
            }
            seen.len()
        };
        for _ in 0..50 {
            assert!(pairs(4.0f64.ln(), 0.05) <= 6);
            assert!(pairs(1.3f64.ln(), 0.05) <= 14);
            assert!(pairs(1.05f64.ln(), 0.01) <= 10);
        }
    }

    #[test]
    fn what_is_missing_is_told_in_pairs() {
        let large = [1.40, 1.55, 1.25];
        assert!(
            !proves(&large) && pairs_to_proof(&large).is_some_and(|n| n <= 2),
            "{:?}",
            pairs_to_proof(&large)
        );
        assert_eq!(pairs_to_proof(&[-0.1, 0.05, 0.02]), None);
        assert_eq!(pairs_to_proof(&[0.1]), None);
        assert!(is_enough(&[1.40, 1.42, 1.35, 1.41, 1.38]) && !is_enough(&large));
        assert!(visible(0.05, 22) < visible(0.05, 8) && visible(0.05, 22) < 0.08);
    }
}
