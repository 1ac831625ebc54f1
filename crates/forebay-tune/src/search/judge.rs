//! The knock-out of lines and the confirmation of the whole.

use super::phases::Phases;
use super::trial::{Price, Trial};
use super::{LARGE, LEAST_PAIRS, LOUD, Line, OUT_AT_A_TIME, Point, Search, spread, without};
use crate::model::Model;
use crate::sequential;
use crate::stats;

/// Runs of a confirmation at least, where it gives some to the knock-out.
const SPARE: usize = 20;
/// Runs that judge any number of lines.
const ENOUGH: usize = 16;

impl Search<'_> {
    /// Judges each line of the incumbent by leaving it out. Each run without a line has one of the whole near it.
    ///
    /// Takes from the confirmation's share what a gain of that size does not need.
    pub(super) fn knock_out(&mut self, noise: f64, phases: &Phases) -> (Point, Vec<Line>) {
        let mut until = phases.knock_out;
        let model = self.fitted(noise);
        let best = self.incumbent(&model);
        let costly = self.knobs.iter().map(|k| k.costly).collect();
        let mut trial = Trial::new(model, best, Price { least: self.settings.least, costly });
        trial.fixed = self.fixed.clone();
        let left = self.runs_left(until);
        let mut calm = self.calm(&trial, until);
        if let Some(quiet) = &mut calm {
            self.add_all(&mut trial);
            *quiet = self.leave_each_out(&mut trial, *quiet, until);
        } else {
            // Few runs are for the lines that will be certain then.
            trial.keep_most_certain(if left < ENOUGH { left / (2 * LEAST_PAIRS) } else { trial.best.len() });
        }
        // Runs without a line since the last run of the whole, and what that whole was.
        let mut whole = (Point::new(), 0);
        loop {
            trial.drop_hopeless();
            let out = trial.next(&mut self.random);
            if out.is_empty() {
                break;
            }
            if !self.left(until) {
                until = phases.all.saturating_sub(self.needed_to_confirm(&trial, phases));
            }
            if !self.left(until) {
                break;
            }
            if whole.0 != trial.best || whole.1 >= OUT_AT_A_TIME {
                whole = (trial.best.clone(), 0);
                if self.run(&trial.best, true).is_none() && !self.replace_incumbent(&mut trial, until) {
                    break;
                }
                continue;
            }
            whole.1 += 1;
            let mut point = trial.best.clone();
            for k in &out {
                point[*k] = 0;
                trial.pairs[*k] += 1;
            }
            self.run(&point, false);
            trial.model = trial.model.update(self.stage());
        }
        trial.model = match calm {
            Some(quiet) => Model::near(self.stage(), quiet, &self.fixed),
            None => self.fitted(noise),
        };
        trial.drop_unmeasured();
        let lines = trial.lines();
        (trial.best, lines)
    }

    /// Returns the noise near the incumbent, where that is far less than the model's. Far from it something slow took most of the
    /// time, and hid what the other lines do; so only runs near it count from here on.
    fn calm(&mut self, trial: &Trial, until: usize) -> Option<f64> {
        if trial.model.scale.noise < LOUD || trial.best == self.base() {
            return None;
        }
        let before = self.samples.len();
        let mut same = Vec::new();
        for _ in 0..4 {
            if self.left(until) {
                same.extend(self.run(&trial.best, true));
            }
        }
        let quiet = spread(&same);
        if same.len() < 4 || quiet * 2.5 > trial.model.scale.noise {
            return None;
        }
        self.before = before;
        Some(quiet)
    }

    /// Adds all knobs that the model, which knows little, does not take for harmful, if the server then is as fast.
    fn add_all(&mut self, trial: &mut Trial) {
        let whole = self.whole();
        let mut all = trial.best.clone();
        for k in 0..all.len() {
            let gain = |level: &u8| trial.model.average_gain(k, *level);
            let best = (1..self.knobs[k].levels).max_by(|a, b| gain(a).0.total_cmp(&gain(b).0));
            let mut with = all.clone();
            if let Some(level) = best.filter(|_| all[k] == 0) {
                with[k] = level;
                let (mid, sd) = gain(&level);
                if mid > -1.64 * sd && !self.barred(&with) {
                    all = with;
                }
            }
        }
        if let Some(score) = self.run(&all, true)
            && score > whole - LARGE.ln() / 4.0
        {
            trial.best = all;
        }
    }

    /// Returns the median score of the runs near the incumbent.
    fn whole(&self) -> f64 {
        stats::median(&mut self.stage().iter().map(|s| s.score).collect::<Vec<_>>())
    }

    /// Leaves each line out once, to find those without which the others would be hidden. All that the model knows from then on is
    /// near the incumbent.
    /// Returns their noise.
    fn leave_each_out(&mut self, trial: &mut Trial, quiet: f64, until: usize) -> f64 {
        let mut out = Vec::new();
        let mut moved: Vec<usize> = trial.moved().collect();
        moved.sort_by(|a, b| trial.certainty(*b).total_cmp(&trial.certainty(*a)));
        for (n, k) in moved.into_iter().enumerate() {
            if !self.left(until) {
                break;
            }
            if n % OUT_AT_A_TIME == OUT_AT_A_TIME - 1 {
                self.run(&trial.best, true);
            }
            trial.pairs[k] += 1;
            out.extend(self.run(&without(&trial.best, k), false).map(|score| (k, score)));
        }
        for k in self.large_of(&out, quiet) {
            self.fixed[k] = trial.best[k];
        }
        let scores: Vec<f64> = self.stage().iter().map(|s| s.score).collect();
        let noise = quiet.max(stats::spread(&scores));
        trial.fixed = self.fixed.clone();
        trial.model = Model::near(self.stage(), noise, &self.fixed);
        noise
    }

    /// Returns how many runs a phase that ends at the run `until` still has, by number and by time.
    fn runs_left(&self, until: usize) -> usize {
        let share = until as f64 / self.settings.runs as f64 - self.rig.used();
        let by_time = share * self.spent as f64 / self.rig.used().max(1e-9);
        let by_number = until.saturating_sub(self.spent);
        by_number.min(by_time.max(0.0) as usize)
    }

    /// Takes other settings where the incumbent cannot be run. Returns `false` if there are none, or no time.
    fn replace_incumbent(&mut self, trial: &mut Trial, until: usize) -> bool {
        let refused = trial.best.clone();
        self.find_culprit(&refused, until);
        trial.model = trial.model.update(self.stage());
        trial.best = self.incumbent(&trial.model);
        trial.best != refused && !self.infeasible.iter().any(|(p, _)| *p == trial.best)
    }

    /// Returns the runs of a confirmation that proves the gain of the incumbent with room to spare.
    fn needed_to_confirm(&self, trial: &Trial, phases: &Phases) -> usize {
        let of = |point: &Point| -> Vec<f64> {
            self.samples.iter().filter(|s| s.point == *point).map(|s| s.score).collect()
        };
        let (base, whole) = (of(&self.base()), of(&trial.best));
        if base.len() < 3 || whole.is_empty() {
            return phases.confirming;
        }
        let gain = stats::median(&mut whole.clone()) - stats::median(&mut base.clone());
        let sd = spread(&base).hypot(trial.model.scale.noise);
        // A neighbour may spoil some of them, and runs may take longer than planned.
        let pairs = sequential::pairs_for(gain, sd).map_or(phases.confirming, |n| (2 * (n + 2)).max(SPARE));
        let pace = self.rig.used() * phases.all as f64 / self.spent.max(1) as f64;
        ((pairs as f64 * pace.max(1.0)) as usize).min(phases.confirming)
    }

    /// Measures the original against the final settings, pair by pair on fresh starts, until that proves a gain or the runs are
    /// used up. Returns the differences.
    pub(super) fn confirm(&mut self, best: &Point, until: usize) -> Vec<f64> {
        let mut differences = Vec::new();
        let (mut flip, mut refused) = (false, 0);
        while refused < 3 && self.may_confirm(until) && !sequential::is_enough(&differences) {
            // Pairs come in mirrored twos, so that a steady drift cancels out.
            flip = if differences.len() % 2 == 0 { self.random.below(2) == 1 } else { !flip };
            match self.confirming_pair(best, flip) {
                Some(difference) => differences.push(difference),
                None => refused += 1,
            }
        }
        differences
    }

    fn may_confirm(&self, until: usize) -> bool {
        if self.settings.resumed { !self.rig.over() } else { self.left(until.saturating_sub(1)) }
    }

    /// Runs the original and the final settings on fresh starts, the final ones first if `flip`. Returns the difference.
    fn confirming_pair(&mut self, best: &Point, flip: bool) -> Option<f64> {
        let base = self.base();
        let (first, second) = if flip { (best, &base) } else { (&base, best) };
        let a = self.run(first, true)?;
        let b = self.run(second, true)?;
        Some(if flip { a - b } else { b - a })
    }
}
