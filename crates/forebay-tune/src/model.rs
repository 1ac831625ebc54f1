//! What is learned from runs: a Gaussian process over settings and time.
//!
//! A setting is a level for each knob, 0 being what the user has. The kernel is that of a linear model with an effect for
//! each level and for each pair of levels; slow drift of the machine is a process in time, and each run has noise of its
//! own. Runs that fit nothing else (a neighbour's burst) are given more noise.

use crate::stats::normal_cdf;

/// Spread of the effects of one level, in logarithms.
const MAIN: f64 = 0.05;
/// Spread of what two levels do together.
const PAIR: f64 = 0.015;
/// Runs after which drift has forgotten itself.
const MEMORY: f64 = 30.0;

/// One run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Level of each knob.
    pub point: Vec<u8>,
    /// Number of the run in time.
    pub time: f64,
    /// Logarithm of the objective; more is better.
    pub score: f64,
}

/// A fitted model.
pub struct Model {
    samples: Vec<Sample>,
    mean: f64,
    /// Lower triangle of the Cholesky factor, row by row.
    factor: Vec<f64>,
    /// Inverse covariance times centred scores.
    weights: Vec<f64>,
    /// Noise of a run.
    pub noise: f64,
    /// Spread of the drift.
    pub drift: f64,
}

/// Covariance of two settings.
fn settings(a: &[u8], b: &[u8]) -> f64 {
    let same = a.iter().zip(b).filter(|(x, y)| x == y && **x != 0).count() as f64;
    MAIN * MAIN * same + PAIR * PAIR * same * (same - 1.0) / 2.0
}

impl Model {
    /// Fits to runs; `noise` is what is known of it beforehand.
    pub fn fit(samples: &[Sample], noise: f64) -> Model {
        let mut best: Option<(f64, Model)> = None;
        for n in [0.7, 1.0, 1.4] {
            for d in [0.1, 0.5, 1.0] {
                let extra = vec![1.0; samples.len()];
                if let Some((likelihood, m)) = Model::with(samples, noise * n, noise * d, &extra)
                    && best.as_ref().is_none_or(|(l, _)| likelihood > *l)
                {
                    best = Some((likelihood, m));
                }
            }
        }
        let Some((_, m)) = best else {
            return Model {
                samples: Vec::new(),
                mean: 0.0,
                factor: Vec::new(),
                weights: Vec::new(),
                noise,
                drift: 0.0,
            };
        };
        m.robust()
    }

    /// Fits to more runs with what an earlier fit has learned of noise and drift.
    pub fn update(&self, samples: &[Sample]) -> Model {
        let extra = vec![1.0; samples.len()];
        match Model::with(samples, self.noise, self.drift, &extra) {
            Some((_, m)) => m.robust(),
            None => Model::fit(samples, self.noise),
        }
    }

    /// The same with more noise for runs that fit nothing else, by their leave-one-out residuals.
    fn robust(self) -> Model {
        let extra: Vec<f64> =
            self.residuals().iter().map(|r| if r.abs() > 3.0 { 25.0 } else { 1.0 }).collect();
        if extra.iter().all(|e| *e == 1.0) {
            return self;
        }
        Model::with(&self.samples, self.noise, self.drift, &extra).map_or(self, |(_, robust)| robust)
    }

    fn with(samples: &[Sample], noise: f64, drift: f64, extra: &[f64]) -> Option<(f64, Model)> {
        let n = samples.len();
        let mean = crate::stats::median(&mut samples.iter().map(|s| s.score).collect::<Vec<_>>());
        let mut factor = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..=i {
                let (a, b) = (&samples[i], &samples[j]);
                let time = (a.time - b.time).abs();
                // The level of the machine itself is not known either.
                let mut k = 0.01 + settings(&a.point, &b.point) + drift * drift * (-time / MEMORY).exp();
                if i == j {
                    k += noise * noise * extra[i];
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
        let mut m = Model { samples: samples.to_vec(), mean, factor, weights: Vec::new(), noise, drift };
        let centred: Vec<f64> = samples.iter().map(|s| s.score - mean).collect();
        let half = m.forward(&centred);
        let log_det: f64 = (0..n).map(|i| m.factor[i * n + i].ln()).sum();
        let likelihood = -0.5 * half.iter().map(|v| v * v).sum::<f64>() - log_det;
        m.weights = m.backward(half);
        Some((likelihood, m))
    }

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

    /// Residual of each run against what all others say of it, in its standard deviations.
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

    /// Expected score of a setting, without drift.
    pub fn expect(&self, point: &[u8]) -> f64 {
        self.mean
            + self
                .samples
                .iter()
                .zip(&self.weights)
                .map(|(s, w)| (0.01 + settings(&s.point, point)) * w)
                .sum::<f64>()
    }

    /// Expected gain of `b` over `a` and its standard deviation.
    pub fn gain(&self, a: &[u8], b: &[u8]) -> (f64, f64) {
        let differ: Vec<f64> =
            self.samples.iter().map(|s| settings(&s.point, b) - settings(&s.point, a)).collect();
        let mid: f64 = differ.iter().zip(&self.weights).map(|(d, w)| d * w).sum();
        let prior = settings(a, a) + settings(b, b) - 2.0 * settings(a, b);
        let half = self.forward(&differ);
        let known: f64 = half.iter().map(|v| v * v).sum();
        (mid, (prior - known).max(0.0).sqrt())
    }

    /// Expected improvement of a setting over the incumbent.
    pub fn improvement(&self, incumbent: &[u8], point: &[u8]) -> f64 {
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
        assert!(m.improvement(&zero, &one(0)) > m.improvement(&zero, &one(1)));
    }
}
