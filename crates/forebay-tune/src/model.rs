//! Model that predicts the score of settings from runs: a Gaussian process over settings and time.
//!
//! A setting has a level for each knob; level 0 is the user's own value. The kernel is the sum of four parts: the unknown baseline
//! of the machine, a linear model with an effect for each level and for each pair of levels, slow drift of the machine in time, and
//! noise of each run. A run that does not fit (another program had a burst of work) gets more noise.

use crate::stats::normal_cdf;

/// Usual standard deviation of the effect of a level, as a logarithm.
const MAIN: f64 = 0.05;
/// Usual standard deviation of the effect that two levels have only together.
const PAIR: f64 = 0.015;
/// Usual variance of the baseline: the score of the machine with the user's own values, which is unknown, too.
const BASELINE: f64 = 0.01;
/// Factor by which a large effect exceeds the usual ones.
const LARGE: f64 = 15.0;
/// Lower limit of the noise, since no machine is quieter.
const LEAST_NOISE: f64 = 0.002;
/// Share of the runs that other work on the machine disturbs.
const WILD: f64 = 0.05;
/// Number of runs over which the correlation of the drift falls to 1/e.
const MEMORY: f64 = 30.0;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Level of each knob.
    pub point: Vec<u8>,
    /// Number of the run in the order of time.
    pub time: f64,
    /// Logarithm of the objective; more is better.
    pub score: f64,
}

/// Model fitted to runs.
pub(crate) struct Model {
    samples: Vec<Sample>,
    /// Lower triangle of the Cholesky factor, row by row.
    factor: Vec<f64>,
    /// Inverse covariance of the runs times their centred scores.
    weights: Vec<f64>,
    /// Assumptions of the fit.
    pub scale: Scale,
}

/// Assumptions of a fit about the machine and the knobs.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    /// Standard deviation of a run.
    pub noise: f64,
    /// Standard deviation of the drift.
    pub drift: f64,
    /// Factor by which the effects of each knob exceed the usual ones.
    pub sizes: Vec<f64>,
}

impl Scale {
    /// Returns the covariance of two settings. It comes from the levels other than 0 that both have.
    fn settings(&self, a: &[u8], b: &[u8]) -> f64 {
        let (mut sum, mut squares) = (0.0, 0.0);
        for ((x, y), size) in a.iter().zip(b).zip(&self.sizes) {
            if x == y && *x != 0 {
                sum += size;
                squares += size * size;
            }
        }
        // (sum² - squares) / 2 is the sum of size·size over all pairs of shared levels.
        MAIN * MAIN * squares + PAIR * PAIR * (sum * sum - squares) / 2.0
    }

    /// Returns the variance of the baseline, which is larger if the effects are.
    fn baseline(&self) -> f64 {
        BASELINE * self.sizes.iter().fold(1.0, |m: f64, s| m.max(s * s))
    }
}

impl Model {
    /// Fits a model to runs. `noise` is only a first guess, since the runs that it was measured by may have been disturbed.
    ///
    /// Chooses the noise, the drift and the size of effects under which the runs are most likely, with exceptions for runs that do
    /// not fit. Searches by changing one of the three at a time.
    pub(crate) fn fit(samples: &[Sample], noise: f64) -> Model {
        let knobs = samples.first().map_or(0, |s| s.point.len());
        let noise = noise.max(LEAST_NOISE);
        let mut best = (f64::NEG_INFINITY, Model::empty(noise, knobs));
        // Replaces the best fit if another scale makes the runs more likely.
        let consider = |best: &mut (f64, Model), scale: Scale| {
            if scale.noise >= LEAST_NOISE
                && let Some(fit) = Model::robust(samples, scale)
                && fit.0 > best.0
            {
                *best = fit;
            }
        };
        let guess = best.1.scale.clone();
        consider(&mut best, guess);
        for round in 0..2 {
            let at = best.1.scale.clone();
            for size in [5.0, 25.0] {
                consider(&mut best, Scale { sizes: vec![size; knobs], ..at.clone() });
            }
            // The sizes above are for all knobs. Knobs without a large effect get the usual size back.
            let at = best.1.scale.clone();
            let sizes = (0..knobs).map(|k| if best.1.large(k) { at.sizes[k] } else { 1.0 }).collect();
            consider(&mut best, Scale { sizes, ..at });
            let at = best.1.scale.clone();
            let wide: &[f64] =
                if round == 0 { &[0.1, 0.2, 0.4, 0.7, 1.4, 2.5, 5.0, 10.0] } else { &[0.4, 0.6, 0.8, 1.25] };
            for times in wide {
                consider(&mut best, Scale { noise: at.noise * times, drift: at.drift * times, ..at.clone() });
            }
            let at = best.1.scale.clone();
            for ratio in [0.1, 0.5, 1.0] {
                consider(&mut best, Scale { drift: at.noise * ratio, ..at.clone() });
            }
        }
        best.1
    }

    /// Returns the model before the first run.
    fn empty(noise: f64, knobs: usize) -> Model {
        let scale = Scale { noise, drift: 0.5 * noise, sizes: vec![1.0; knobs] };
        Model { samples: Vec::new(), factor: Vec::new(), weights: Vec::new(), scale }
    }

    /// Returns `true` if some level of a knob has an effect far beyond the usual.
    fn large(&self, knob: usize) -> bool {
        let zero = vec![0; self.scale.sizes.len()];
        let most = self.samples.iter().map(|s| s.point[knob]).max().unwrap_or(0);
        (1..=most).any(|level| {
            let mut p = zero.clone();
            p[knob] = level;
            self.gain(&zero, &p).0.abs() > 3.0 * MAIN
        })
    }

    /// Fits a model to more runs, with the noise, the drift and the size of effects of this one.
    pub(crate) fn update(&self, samples: &[Sample]) -> Model {
        match Model::robust(samples, self.scale.clone()) {
            Some((_, m)) => m,
            None => Model::fit(samples, self.scale.noise),
        }
    }

    /// Fits a model to runs near one setting, whose noise is known roughly: effects are usual ones, but for the lines `fixed`.
    pub(crate) fn near(samples: &[Sample], noise: f64, fixed: &[u8]) -> Model {
        let sizes: Vec<f64> = fixed.iter().map(|level| if *level == 0 { 1.0 } else { LARGE }).collect();
        let of = |times: f64| {
            let noise = (noise * times).max(LEAST_NOISE);
            Model::robust(samples, Scale { noise, drift: noise / 2.0, sizes: sizes.clone() })
        };
        let best = [0.7, 1.0, 1.4, 2.0, 3.0].into_iter().filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or_else(|| Model::fit(samples, noise), |(_, model)| model)
    }

    /// Fits a model with more noise for runs whose leave-one-out residuals are large. Also returns its log likelihood. `None`: the
    /// covariance is singular.
    fn robust(samples: &[Sample], scale: Scale) -> Option<(f64, Model)> {
        let extra = vec![1.0; samples.len()];
        let first = Model::with(samples, scale.clone(), &extra)?;
        let extra: Vec<f64> =
            first.1.residuals().iter().map(|r| if r.abs() > 3.0 { (r * r).max(25.0) } else { 1.0 }).collect();
        // Number of exceptions.
        let wild = extra.iter().filter(|e| **e != 1.0).count();
        if wild == 0 {
            return Some(first);
        }
        let (likelihood, m) = Model::with(samples, scale, &extra).unwrap_or(first);
        // Low noise with many exceptions would explain any result, so each exception lowers the likelihood.
        let rare = ((1.0 - WILD) / WILD).ln();
        Some((likelihood - rare * wild as f64, m))
    }

    /// Fits a model in which the variance of the noise of each run is multiplied by `extra`: factors the covariance (Cholesky) and
    /// solves for the weights.
    fn with(samples: &[Sample], scale: Scale, extra: &[f64]) -> Option<(f64, Model)> {
        let n = samples.len();
        let mean = crate::stats::median(&mut samples.iter().map(|s| s.score).collect::<Vec<_>>());
        let mut factor = vec![0.0; n * n];
        let (baseline, drift, noise) = (scale.baseline(), scale.drift.powi(2), scale.noise.powi(2));
        for i in 0..n {
            for j in 0..=i {
                let (a, b) = (&samples[i], &samples[j]);
                let time = (a.time - b.time).abs();
                let mut k = baseline + scale.settings(&a.point, &b.point) + drift * (-time / MEMORY).exp();
                if i == j {
                    k += noise * extra[i];
                }
                for c in 0..j {
                    k -= factor[i * n + c] * factor[j * n + c];
                }
                factor[i * n + j] = if i == j {
                    if k <= 0.0 {
                        return None;
                    }
                    k.sqrt()
                } else {
                    k / factor[j * n + j]
                };
            }
        }
        let mut m = Model { samples: samples.to_vec(), factor, weights: Vec::new(), scale };
        let centred: Vec<f64> = samples.iter().map(|s| s.score - mean).collect();
        let half = m.forward(&centred);
        let log_det: f64 = (0..n).map(|i| m.factor[i * n + i].ln()).sum();
        let likelihood = -0.5 * half.iter().map(|v| v * v).sum::<f64>() - log_det;
        m.weights = m.backward(half);
        Some((likelihood, m))
    }

    /// Solves L·x = v for the factor L.
    fn forward(&self, v: &[f64]) -> Vec<f64> {
        let n = v.len();
        let mut out = v.to_vec();
        for i in 0..n {
            let row = &self.factor[i * n..i * n + i];
            let sum: f64 = row.iter().zip(&out).map(|(a, b)| a * b).sum();
            out[i] = (out[i] - sum) / self.factor[i * n + i];
        }
        out
    }

    /// Solves Lᵀ·x = v for the factor L.
    fn backward(&self, mut v: Vec<f64>) -> Vec<f64> {
        let n = v.len();
        for i in (0..n).rev() {
            v[i] /= self.factor[i * n + i];
            let x = v[i];
            for (j, slot) in v.iter_mut().enumerate().take(i) {
                *slot -= self.factor[i * n + j] * x;
            }
        }
        v
    }

    /// Returns the residual of each run against the prediction from all others, in standard deviations of that prediction. They
    /// are the weights divided by the square roots of the diagonal of the inverse covariance.
    fn residuals(&self) -> Vec<f64> {
        let n = self.samples.len();
        (0..n)
            .map(|i| {
                let mut unit = vec![0.0; n];
                unit[i] = 1.0;
                let half = self.forward(&unit);
                let precision: f64 = half.iter().map(|v| v * v).sum();
                self.weights[i] / precision.sqrt()
            })
            .collect()
    }

    /// Returns the expected gain of `b` over `a` and its standard deviation.
    pub(crate) fn gain(&self, a: &[u8], b: &[u8]) -> (f64, f64) {
        let settings = |a, b| self.scale.settings(a, b);
        let differ: Vec<f64> =
            self.samples.iter().map(|s| settings(&s.point, b) - settings(&s.point, a)).collect();
        // The baseline, the drift and the noise are the same for both, and cancel.
        let mid: f64 = differ.iter().zip(&self.weights).map(|(d, w)| d * w).sum();
        let prior = settings(a, a) + settings(b, b) - 2.0 * settings(a, b);
        let half = self.forward(&differ);
        let known: f64 = half.iter().map(|v| v * v).sum();
        (mid, (prior - known).max(0.0).sqrt())
    }

    /// Returns the expected gain of a level over level 0 of its knob, averaged over the settings of all runs, and its standard
    /// deviation. It is known better than the gain at one setting, since all runs say something about it.
    pub(crate) fn average_gain(&self, knob: usize, level: u8) -> (f64, f64) {
        let size = self.scale.sizes[knob];
        let shares = self.shares();
        // Covariance of the average gain with the score of a run, and with itself.
        let partners = |weight: &dyn Fn(usize, usize) -> f64| -> f64 {
            let mut sum = 0.0;
            for (j, levels) in shares.iter().enumerate().filter(|(j, _)| *j != knob) {
                sum += (1..levels.len()).map(|l| weight(j, l) * self.scale.sizes[j]).sum::<f64>();
            }
            sum
        };
        let own = MAIN * MAIN * size * size;
        let with_run = |s: &Sample| {
            if s.point[knob] != level {
                return 0.0;
            }
            let shared = partners(&|j, l| if usize::from(s.point[j]) == l { shares[j][l] } else { 0.0 });
            own + PAIR * PAIR * size * shared
        };
        let differ: Vec<f64> = self.samples.iter().map(with_run).collect();
        let mid = differ.iter().zip(&self.weights).map(|(d, w)| d * w).sum();
        let squares = partners(&|j, l| shares[j][l] * shares[j][l] * self.scale.sizes[j]);
        let prior = own + PAIR * PAIR * size * size * squares;
        let known: f64 = self.forward(&differ).iter().map(|v| v * v).sum();
        (mid, (prior - known).max(0.0).sqrt())
    }

    /// Returns the share of the runs in which each knob had each level.
    fn shares(&self) -> Vec<Vec<f64>> {
        let one = 1.0 / self.samples.len().max(1) as f64;
        let mut shares = vec![Vec::new(); self.scale.sizes.len()];
        for s in &self.samples {
            for (levels, level) in shares.iter_mut().zip(&s.point) {
                let level = usize::from(*level);
                if levels.len() <= level {
                    levels.resize(level + 1, 0.0);
                }
                levels[level] += one;
            }
        }
        shares
    }

    /// Returns the expected improvement of a setting over the incumbent, the best one so far: the mean of its gain where it is
    /// positive, and 0 elsewhere.
    pub(crate) fn improvement(&self, incumbent: &[u8], point: &[u8]) -> f64 {
        let (mid, sd) = self.gain(incumbent, point);
        if sd < 1e-9 {
            return mid.max(0.0);
        }
        let z = mid / sd;
        let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        mid * normal_cdf(z) + sd * density
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn effects_are_found_behind_drift_and_bursts() {
        let mut random = Random::new(3);
        let mut drift = 0.0;
        let samples: Vec<Sample> = (0..80)
            .map(|i| {
                let point: Vec<u8> = (0..6).map(|_| random.below(2) as u8).collect();
                drift = 0.97 * drift + 0.007 * random.normal();
                let mut score = 0.1 * f64::from(point[0]) - 0.05 * f64::from(point[1]) + drift;
                score += 0.03 * random.normal() - if i % 20 == 0 { 0.4 } else { 0.0 };
                Sample { point, time: f64::from(i), score }
            })
            .collect();
        let m = Model::fit(&samples, 0.03);
        let zero = [0; 6];
        let one = |k: usize| {
            let mut p = [0; 6];
            p[k] = 1;
            p
        };
        let (a, sd) = m.gain(&zero, &one(0));
        assert!((a - 0.1).abs() < 3.0 * sd && sd < 0.02, "{a} {sd}");
        assert!(m.gain(&zero, &one(1)).0 < -0.02);
        assert!(m.gain(&zero, &one(3)).0.abs() < 0.03);
        let (average, narrow) = m.average_gain(0, 1);
        assert!((average - 0.1).abs() < 3.0 * narrow && narrow < sd, "{average} {narrow}");
        assert!(m.average_gain(3, 1).0.abs() < 0.03);
        assert!(m.improvement(&zero, &one(0)) > m.improvement(&zero, &one(1)));
    }
}
