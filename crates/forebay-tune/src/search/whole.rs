//! A beginning with all settings at once, for a configuration in which something hides what the rest costs.

use super::{Event, LARGE, OUT_AT_A_TIME, Point, STAGE, Search, spread, without};
use crate::stats;

impl Search<'_> {
    /// Tries all settings at once. Where that is far better than the original, leaves each out once, fixes the lines without which
    /// nothing else would show, and screens the others beside them, all before the run `until`. Returns the noise there, or `None`
    /// where there is no such gain or no room: then a screening of the original comes first.
    pub(super) fn all_at_once(&mut self, noise: f64, until: usize) -> Option<f64> {
        let needed = self.knobs.len() * (OUT_AT_A_TIME + 1) / OUT_AT_A_TIME + STAGE;
        if self.samples.is_empty() || until < self.spent + needed || !self.left(until) {
            return None;
        }
        let usual = stats::median(&mut self.stage().iter().map(|s| s.score).collect::<Vec<_>>());
        (self.tell)(Event::Phase("all at once", needed));
        let first = self.samples.len();
        let (all, score) = self.run_all(until)?;
        // A slow original is anything but steady, and the run of all is not.
        if score - usual < LARGE.ln().max(1.5 * noise) {
            return None;
        }
        self.before = first;
        for _ in 0..3 {
            self.run(&all, true);
        }
        let quiet = spread(&self.stage().iter().map(|s| s.score).collect::<Vec<_>>());
        self.fix_large(&all, quiet, until);
        self.screen(quiet, until, 0);
        Some(quiet)
    }

    /// Runs the first level of all knobs, without those that cannot be run.
    fn run_all(&mut self, until: usize) -> Option<(Point, f64)> {
        for _ in 0..3 {
            let all = self.without_barred(&vec![1; self.knobs.len()]);
            if let Some(score) = self.run(&all, true) {
                return Some((all, score));
            }
            self.find_culprit(&all, until);
        }
        None
    }

    /// Leaves each line out once, and fixes those that the whole cannot do without.
    fn fix_large(&mut self, all: &Point, quiet: f64, until: usize) {
        let mut order: Vec<usize> = (0..all.len()).filter(|k| all[*k] != 0).collect();
        self.random.shuffle(&mut order);
        let mut out = Vec::new();
        for (n, k) in order.into_iter().enumerate() {
            if !self.left(until) {
                break;
            }
            if n % OUT_AT_A_TIME == OUT_AT_A_TIME - 1 {
                self.run(all, true);
            }
            out.extend(self.run(&without(all, k), false).map(|score| (k, score)));
        }
        for k in self.large_of(&out, quiet) {
            self.fixed[k] = all[k];
        }
    }

    /// Returns the lines without which the score falls far beyond the noise. Most lines do little, so the spread of all runs near the
    /// whole is that of one, or somewhat more.
    pub(super) fn large_of(&self, out: &[(usize, f64)], quiet: f64) -> Vec<usize> {
        let scores: Vec<f64> = self.stage().iter().map(|s| s.score).collect();
        let (usual, noise) = (stats::median(&mut scores.clone()), quiet.max(stats::spread(&scores)));
        let least = LARGE.ln().max(4.0 * noise);
        out.iter().filter(|(_, score)| usual - score > least).map(|(k, _)| *k).collect()
    }
}
