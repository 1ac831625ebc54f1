//! The knock-out of lines and the confirmation of the whole.

use super::trial::{Price, Trial};
use super::{LEAST_PAIRS, Line, OUT_AT_A_TIME, Point, Search, without};
use crate::model::Model;
use crate::sequential;

impl Search<'_> {
    /// Judges each line of the incumbent by leaving it out. Each run without a line has one of the whole near it.
    pub(super) fn knock_out(&mut self, noise: f64, until: usize) -> (Point, Vec<Line>) {
        let model = Model::fit(self.stage(), noise).with_large(&self.fixed);
        let best = self.incumbent(&model);
        let costly = self.knobs.iter().map(|k| k.costly).collect();
        let mut trial = Trial::new(model, best, Price { least: self.settings.least, costly });
        trial.fixed = self.fixed.clone();
        trial.keep_most_certain(self.runs_left(until) * OUT_AT_A_TIME / (OUT_AT_A_TIME + 1) / LEAST_PAIRS);
        // Runs without a line since the last run of the whole, and what that whole was.
        let mut whole = (Point::new(), 0);
        loop {
            trial.drop_hopeless();
            let Some(k) = trial.next() else { break };
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
            self.run(&without(&trial.best, k), false);
            trial.pairs[k] += 1;
            trial.model = trial.model.update(self.stage());
        }
        trial.model = Model::fit(self.stage(), noise).with_large(&self.fixed);
        trial.drop_unmeasured();
        let lines = trial.lines();
        (trial.best, lines)
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
