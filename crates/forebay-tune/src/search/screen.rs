//! The screening, the second one beside lines with a large gain, and the search for settings that cannot be run.

use super::{Event, LARGE, Point, STAGE, Search, spread};
use crate::design;
use crate::model::{Model, Sample};

impl Search<'_> {
    /// Screens: each knob at two levels in a balanced design, with the baseline in between. Ends early when lines with a large gain
    /// show and a second stage, which would end at the run `staged`, has room.
    pub(super) fn screen(&mut self, noise: f64, until: usize, staged: usize) {
        let room = until.saturating_sub(self.spent);
        let rows = self.screening_rows(room >= 48 && (noise > 0.03 || self.before > 0));
        for (i, row) in rows.iter().enumerate() {
            if !self.left(until) {
                return;
            }
            if i % 7 == 6 {
                self.run(&self.fixed.clone(), false);
            }
            let row = self.without_barred(row);
            if self.run(&row, false).is_none() {
                self.find_culprit(&row, until);
            }
            if i % 6 == 5 && i > 12 && self.has_room(staged) && self.large(noise).is_some() {
                return;
            }
        }
    }

    /// Returns `true` if a second stage that ends at the run `until` has enough runs.
    fn has_room(&self, until: usize) -> bool {
        self.before == 0 && until >= self.spent + STAGE && self.left(until)
    }

    /// Returns the levels of the lines whose gain is large beyond doubt, all others at 0; `None` without any.
    fn large(&self, noise: f64) -> Option<Point> {
        // Nothing was measured if the tuning was ended at once.
        if self.samples.is_empty() {
            return None;
        }
        let model = Model::fit(&self.samples, noise);
        let best = self.incumbent(&model);
        let is_large = |k: usize| {
            let (mid, sd) = model.average_gain(k, best[k]);
            best[k] != 0 && mid > LARGE.ln() && mid > 3.0 * sd
        };
        let large: Point = (0..best.len()).map(|k| if is_large(k) { best[k] } else { 0 }).collect();
        (large != self.base() && !self.barred(&large)).then_some(large)
    }

    /// Screens again with the lines that have a large gain: what they hid shows then, and with less noise, as nothing slow is left
    /// that takes most of the time.
    pub(super) fn second_stage(&mut self, noise: f64, until: usize) -> f64 {
        let Some(large) = self.large(noise).filter(|_| self.has_room(until)) else { return noise };
        let first = self.samples.len();
        (self.tell)(Event::Phase("screen again, with the large gains", STAGE));
        if self.run(&large, true).is_none() {
            return noise;
        }
        (self.fixed, self.before) = (large.clone(), first);
        for _ in 0..3 {
            self.run(&large, true);
        }
        let quiet = spread(&self.stage().iter().map(|s| s.score).collect::<Vec<_>>());
        self.screen(quiet, until, 0);
        quiet
    }

    /// Returns the runs that models learn from.
    pub(super) fn stage(&self) -> &[Sample] {
        self.samples.get(self.before..).unwrap_or_default()
    }

    /// Makes the rows of the screening, in random order. A knob with several levels gets any of them. `fold`: twice as many
    /// rows (see [`design::screening`]).
    fn screening_rows(&mut self, fold: bool) -> Vec<Point> {
        let mut rows = design::screening(self.knobs.len(), fold);
        for row in &mut rows {
            for (level, knob) in row.iter_mut().zip(self.knobs) {
                if *level == 1 && knob.levels > 2 {
                    *level = 1 + self.random.below(usize::from(knob.levels) - 1) as u8;
                }
            }
            for (level, fixed) in row.iter_mut().zip(&self.fixed) {
                *level = if *fixed == 0 { *level } else { *fixed };
            }
        }
        self.random.shuffle(&mut rows);
        rows
    }

    /// Returns a row without the levels that cannot be run. A row with one of them would tell nothing about the others.
    pub(super) fn without_barred(&self, row: &Point) -> Point {
        let mut row = row.clone();
        for k in 0..row.len() {
            let mut alone = self.base();
            alone[k] = row[k];
            if row[k] != 0 && self.barred(&alone) {
                row[k] = 0;
            }
        }
        row
    }

    /// Finds the knob because of which settings did not run, by halves.
    pub(super) fn find_culprit(&mut self, row: &Point, until: usize) {
        let moved: Vec<usize> = (0..row.len()).filter(|k| row[*k] != 0).collect();
        let mut suspects = moved;
        while suspects.len() > 1 && self.has_time(until) {
            let half = suspects[..suspects.len() / 2].to_vec();
            let mut point = self.base();
            for k in &half {
                point[*k] = row[*k];
            }
            let runs = self.infeasible.iter().all(|(p, _)| p != &point) && self.run(&point, false).is_some();
            suspects = if runs { suspects[suspects.len() / 2..].to_vec() } else { half };
        }
        if let Some(k) = suspects.first().filter(|_| self.has_time(until)) {
            let mut point = self.base();
            point[*k] = row[*k];
            self.run(&point, false);
        }
    }
}
