//! Estimates from pairs of runs, with intervals.

use crate::random::Random;

/// A gain with its interval, as differences of logarithms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Estimate.
    pub mid: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Returns the median of the means of all pairs of values (Hodges and Lehmann): unmoved by a few wild ones.
pub(crate) fn hodges_lehmann(v: &[f64]) -> f64 {
    let mut means = Vec::with_capacity(v.len() * (v.len() + 1) / 2);
    for (i, a) in v.iter().enumerate() {
        means.extend(v[i..].iter().map(|b| (a + b) / 2.0));
    }
    median(&mut means)
}

/// Returns the median, 0 for no values.
pub(crate) fn median(v: &mut [f64]) -> f64 {
    if v.is_empty() {
        return 0.0;
    }
    v.sort_unstable_by(f64::total_cmp);
    let n = v.len();
    if n % 2 == 1 { v[n / 2] } else { (v[n / 2 - 1] + v[n / 2]) / 2.0 }
}

/// Returns the spread of values as a standard deviation, from the median of absolute deviations.
pub(crate) fn spread(v: &[f64]) -> f64 {
    let mid = median(&mut v.to_vec());
    1.4826 * median(&mut v.iter().map(|x| (x - mid).abs()).collect::<Vec<_>>())
}

/// Returns the factor by which an interval of `n` values is wider than one of many: Student's t at 95 % over 1.96.
fn few(n: usize) -> f64 {
    const T: [f64; 15] =
        [12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13];
    let t = match n.saturating_sub(2) {
        i if i < T.len() => T[i],
        _ => 2.09,
    };
    t / 1.96
}

/// Returns the estimate and 95 % interval of the differences in `starts`: one list for each fresh start of the servers, each
/// value from one pair of runs. Bootstrap over starts, then over pairs within them.
pub(crate) fn interval(starts: &[Vec<f64>], draws: usize, random: &mut Random) -> Interval {
    let all: Vec<f64> = starts.iter().flatten().copied().collect();
    let mid = hodges_lehmann(&all);
    if all.len() < 3 {
        return Interval { mid, low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    let starts: Vec<&Vec<f64>> = starts.iter().filter(|s| !s.is_empty()).collect();
    let mut means: Vec<f64> = (0..draws)
        .map(|_| {
            let mut drawn = Vec::with_capacity(all.len());
            for _ in 0..starts.len() {
                let s = starts[random.below(starts.len())];
                drawn.extend((0..s.len()).map(|_| s[random.below(s.len())]));
            }
            hodges_lehmann(&drawn)
        })
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    let at = |q: f64| means[((means.len() - 1) as f64 * q) as usize];
    // Drawing from few values makes intervals too narrow.
    let wide = few(all.len()) * (all.len() as f64 / (all.len() - 1) as f64).sqrt();
    Interval { mid, low: mid - (mid - at(0.025)) * wide, high: mid + (at(0.975) - mid) * wide }
}

/// Returns the probability that a standard normal value is below `z` (Abramowitz and Stegun 7.1.26).
pub(crate) fn normal_cdf(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let poly = t
        * (0.254_829_592
            + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    let half = poly * (-x * x).exp() / 2.0;
    if z < 0.0 { half } else { 1.0 - half }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_of_known_data() {
        assert_eq!(hodges_lehmann(&[1.0, 2.0, 3.0]), 2.0);
        // One wild value hardly moves it.
        assert!((hodges_lehmann(&[1.0, 1.1, 0.9, 1.0, 1.05, 50.0]) - 1.0).abs() < 0.2);
        assert!((normal_cdf(1.96) - 0.975).abs() < 1e-4 && (normal_cdf(-1.0) - 0.158_655).abs() < 1e-4);
    }

    #[test]
    fn intervals_hold_the_truth() {
        let mut random = Random::new(1);
        let mut held = 0;
        for _ in 0..300 {
            let starts: Vec<Vec<f64>> =
                (0..4).map(|_| (0..5).map(|_| 0.1 + 0.07 * random.normal()).collect()).collect();
            let i = interval(&starts, 400, &mut random);
            held += usize::from(i.low <= 0.1 && 0.1 <= i.high);
        }
        assert!((279..=299).contains(&held), "{held} of 300");
    }
}
