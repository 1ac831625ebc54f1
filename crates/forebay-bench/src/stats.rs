//! Comparison of two sets of measurements: ratio of medians, bootstrap confidence interval, verdict.

use crate::schedule::Random;

/// Draws of a bootstrap.
const DRAWS: usize = 2000;

/// Verdict on B against A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// B is more than A, beyond chance.
    Faster,
    /// B is less than A, beyond chance.
    Slower,
    /// The interval holds 1: nothing was shown, which is not the same as being equal.
    NoDifference,
}

impl Verdict {
    /// Returns `faster`, `slower` or `no difference shown`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no difference shown",
        }
    }
}

/// B against A.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// Ratio of medians, B / A.
    pub ratio: f64,
    /// 95 % confidence interval of the ratio.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Verdict from the interval.
    pub verdict: Verdict,
}

/// Returns the median; 0 for an empty set. Values that are no number are left out.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    quantile_sorted(&sorted, 0.5)
}

fn quantile_sorted(sorted: &[f64], q: f64) -> f64 {
    let at = q * sorted.len().saturating_sub(1) as f64;
    let (low, share) = (at.floor() as usize, at.fract());
    match (sorted.get(low), sorted.get(low + 1)) {
        (Some(a), Some(b)) => a + (b - a) * share,
        (Some(a), None) => *a,
        _ => 0.0,
    }
}

/// Returns the spread: interquartile range over median, 0 for fewer than two values.
pub(crate) fn spread(values: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = quantile_sorted(&sorted, 0.5);
    if sorted.len() < 2 || middle == 0.0 {
        return 0.0;
    }
    (quantile_sorted(&sorted, 0.75) - quantile_sorted(&sorted, 0.25)) / middle
}

/// Compares values measured in interleaved rounds: `a[i]` and `b[i]` come from the same round, so what
/// disturbed the machine then disturbed both. Values are rates, where more is better; must be above 0.
///
/// The interval is a percentile bootstrap over rounds of the trimmed mean of the logarithms of `b[i] / a[i]`
/// (a median of few rounds takes few values), widened by the t distribution's factor because a bootstrap of
/// few rounds is too narrow. Fewer than five rounds never show a difference.
pub(crate) fn compare(a: &[f64], b: &[f64], seed: u64) -> Comparison {
    let pairs: Vec<f64> = a
        .iter()
        .zip(b)
        .filter(|(a, b)| **a > 0.0 && **b > 0.0 && a.is_finite() && b.is_finite())
        .map(|(a, b)| (b / a).ln())
        .collect();
    let ratio = match (median(a), median(b)) {
        (x, y) if x > 0.0 && y > 0.0 => y / x,
        _ => 1.0,
    };
    let n = pairs.len();
    if n < 5 {
        return Comparison { ratio, low: 0.0, high: f64::INFINITY, verdict: Verdict::NoDifference };
    }
    let center = trimmed_mean(&mut pairs.clone());
    let mut random = Random::new(seed);
    let mut draw = vec![0.0; n];
    let mut estimates: Vec<f64> = (0..DRAWS)
        .map(|_| {
            draw.iter_mut().for_each(|v| *v = pairs.get(random.below(n)).copied().unwrap_or(0.0));
            trimmed_mean(&mut draw)
        })
        .collect();
    estimates.sort_by(f64::total_cmp);
    let widen = t_factor(n);
    let low = center - (center - quantile_sorted(&estimates, 0.025)) * widen;
    let high = center + (quantile_sorted(&estimates, 0.975) - center) * widen;
    let verdict = if low > 0.0 {
        Verdict::Faster
    } else if high < 0.0 {
        Verdict::Slower
    } else {
        Verdict::NoDifference
    };
    Comparison { ratio, low: low.exp(), high: high.exp(), verdict }
}

/// Withdraws a claim that is no larger than what A shows against itself from one round to the next: a machine that
/// finds such differences between equals cannot tell others by them.
pub(crate) fn gate(claim: Comparison, a: &[f64], seed: u64) -> Comparison {
    let (x, y): (Vec<f64>, Vec<f64>) = a.chunks_exact(2).map(|p| (p[0], p[1])).unzip();
    let same = compare(&x, &y, seed);
    let differs = same.verdict != Verdict::NoDifference;
    if differs && claim.ratio.ln().abs() <= same.ratio.ln().abs() {
        return Comparison { verdict: Verdict::NoDifference, ..claim };
    }
    claim
}

/// Returns the mean without the lowest and the highest fifth: nearly as sharp as the mean where there are no outliers,
/// and unmoved by them. Puts the values in order.
fn trimmed_mean(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let cut = values.len() / 5;
    let middle = values.get(cut..values.len() - cut).unwrap_or_default();
    middle.iter().sum::<f64>() / middle.len().max(1) as f64
}

/// Returns the ratio of Student's 97.5 % point, with n - 1 degrees of freedom, to the normal one, times the
/// factor by which a bootstrap underestimates a deviation.
fn t_factor(n: usize) -> f64 {
    let df = n as f64 - 1.0;
    // Cornish-Fisher expansion; within 1 % from 4 degrees on.
    let z: f64 = 1.959_964;
    let t =
        z + (z.powi(3) + z) / (4.0 * df) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * df * df);
    t / z * (n as f64 / df).sqrt()
}

/// Returns the order of two targets in each round; `true` is B. It is ABBA, then BAAB, and so on, so that neither a drift nor the
/// first place favours one.
pub(crate) fn order(rounds: usize) -> Vec<[bool; 2]> {
    (0..rounds).map(|i| if matches!(i % 4, 0 | 3) { [false, true] } else { [true, false] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::ROUNDS;

    /// Runs two measurements in interleaved rounds and compares them. Each closure gives one value, more is
    /// better, or `None` when it could not measure, which leaves the round out. Gives the values and the result.
    fn interleave(
        rounds: usize,
        seed: u64,
        mut a: impl FnMut() -> Option<f64>,
        mut b: impl FnMut() -> Option<f64>,
    ) -> (Vec<f64>, Vec<f64>, Comparison) {
        let (mut all_a, mut all_b) = (Vec::new(), Vec::new());
        for turn in order(rounds) {
            let (mut x, mut y) = (None, None);
            for second in turn {
                if second {
                    y = b();
                } else {
                    x = a();
                }
            }
            if let (Some(x), Some(y)) = (x, y) {
                all_a.push(x);
                all_b.push(y);
            }
        }
        let result = compare(&all_a, &all_b, seed);
        (all_a, all_b, result)
    }

    /// Rates as machines give them: 3 % of noise, a drift that both see, and now and then a disturbed round.
    fn trial(effect: f64, seed: u64) -> Verdict {
        let mut random = Random::new(seed);
        let mut noise = Random::new(seed ^ 0xabcdef);
        let mut drift = 0.0f64;
        let mut rate = |factor: f64| {
            drift += 0.005 * random.normal();
            let mut value = 50_000.0 * factor * (drift + 0.03 * random.normal()).exp();
            if noise.unit() < 0.05 {
                value *= 0.8;
            }
            value
        };
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for turn in order(ROUNDS) {
            for second in turn {
                if second { b.push(rate(1.0 + effect)) } else { a.push(rate(1.0)) }
            }
        }
        gate(compare(&a, &b, seed), &a, seed).verdict
    }

    #[test]
    fn the_same_is_not_told_apart() {
        let quiet = (0..200).filter(|seed| trial(0.0, *seed) == Verdict::NoDifference).count();
        assert!(quiet >= 190, "{quiet} of 200");
    }

    #[test]
    fn five_percent_are_found() {
        for (effect, verdict) in [(0.05, Verdict::Faster), (-0.05, Verdict::Slower)] {
            let found = (1000..1200).filter(|seed| trial(effect, *seed) == verdict).count();
            assert!(found >= 160, "{found} of 200");
        }
    }

    #[test]
    fn differences_within_one_target_claim_nothing() {
        // Every second round of A is a tenth slower.
        let a: Vec<f64> = (0..20).map(|i| 1000.0 + f64::from(i % 7) - f64::from(i % 2) * 100.0).collect();
        let b: Vec<f64> = a.iter().map(|v| v * 1.03).collect();
        let claim = compare(&a, &b, 1);
        assert_eq!(claim.verdict, Verdict::Faster);
        assert_eq!(gate(claim, &a, 1).verdict, Verdict::NoDifference);
        let steady: Vec<f64> = (0..20).map(|i| 1000.0 + f64::from(i % 7)).collect();
        assert_eq!(gate(claim, &steady, 1).verdict, Verdict::Faster);
    }

    #[test]
    fn rounds_alternate() {
        let turns = order(4);
        assert_eq!(turns, [[false, true], [true, false], [true, false], [false, true]]);
        let mut seen = Vec::new();
        let log = std::cell::RefCell::new(&mut seen);
        let (a, b, result) = interleave(
            6,
            1,
            || {
                log.borrow_mut().push('a');
                Some(1.0)
            },
            || {
                log.borrow_mut().push('b');
                Some(2.0)
            },
        );
        assert_eq!((a.len(), b.len(), result.verdict), (6, 6, Verdict::Faster));
        assert!((result.ratio - 2.0).abs() < 1e-9 && result.low > 1.9);
        assert_eq!(seen.iter().collect::<String>(), "abbabaababba");
    }

    #[test]
    fn little_data_shows_nothing() {
        assert_eq!(compare(&[1.0; 4], &[9.0; 4], 1).verdict, Verdict::NoDifference);
        assert_eq!(compare(&[], &[], 1).verdict, Verdict::NoDifference);
        assert_eq!(compare(&[0.0; 9], &[f64::NAN; 9], 1).verdict, Verdict::NoDifference);
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[]), spread(&[5.0])), (2.0, 0.0, 0.0));
        assert!((spread(&[1.0, 2.0, 3.0]) - 0.5).abs() < 1e-9);
    }
}
