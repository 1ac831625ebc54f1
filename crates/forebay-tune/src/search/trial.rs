//! The knock-out's judgement of lines.

use super::{LEAST_PAIRS, Line, Point, without};
use crate::model::Model;
use crate::random::Random;
use crate::stats::Interval;

/// What lines have to gain.
pub(super) struct Price {
    /// A line that gains less is not worth having, as a logarithm.
    pub(super) least: f64,
    /// Knobs with a price of their own.
    pub(super) costly: Vec<bool>,
}

impl Price {
    pub(super) fn is_costly(&self, knob: usize) -> bool {
        self.costly.get(knob).copied().unwrap_or_default()
    }

    /// Returns the gain that a line has to have.
    pub(super) fn of(&self, knob: usize) -> f64 {
        if self.is_costly(knob) { 3.0 * self.least } else { self.least }
    }
}

/// The lines of an incumbent on trial: each has to earn its place.
pub(super) struct Trial {
    pub(super) model: Model,
    pub(super) price: Price,
    pub(super) best: Point,
    /// Lines with a large gain.
    pub(super) fixed: Point,
    /// Runs without each knob.
    pub(super) pairs: Vec<usize>,
    /// Lines that were taken out: knob and level.
    pub(super) gone: Vec<(usize, u8)>,
    /// Lines in doubt that are left out the next time.
    other_half: Vec<usize>,
}

/// Runs without a line that is in doubt at most.
const MOST_PAIRS: usize = 40;
/// Standard deviations of a gain that needs no more runs.
const CERTAIN: f64 = 2.8;
/// Lines that are left out one by one.
const FEW: usize = 4;

impl Trial {
    pub(super) fn new(model: Model, best: Point, price: Price) -> Trial {
        let pairs = vec![0; best.len()];
        let fixed = vec![0; best.len()];
        Trial { model, price, best, fixed, pairs, gone: Vec::new(), other_half: Vec::new() }
    }

    /// Returns the knobs that the incumbent moves.
    pub(super) fn moved(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.best.len()).filter(|k| self.best[*k] != 0)
    }

    /// Returns the expected gain of a knob in the incumbent, and its standard deviation.
    pub(super) fn gain(&self, knob: usize) -> (f64, f64) {
        self.model.gain(&without(&self.best, knob), &self.best)
    }

    /// Returns the gain of a knob's level, and its standard deviation: in the incumbent, or over all settings that were measured,
    /// whichever is known better. Runs without the line tell the former, the screening tells the latter.
    pub(super) fn measured(&self, knob: usize, level: u8) -> (f64, f64) {
        let mut with = self.best.clone();
        with[knob] = level;
        let here = self.model.gain(&without(&with, knob), &with);
        let average = self.model.average_gain(knob, level);
        if average.1 < here.1 { average } else { here }
    }

    pub(super) fn take_out(&mut self, knob: usize) {
        self.gone.push((knob, self.best[knob]));
        self.best[knob] = 0;
    }

    /// Removes lines that gain too little, one at a time, since each changes the expected gain of the others.
    pub(super) fn drop_hopeless(&mut self) {
        loop {
            let hopeless = self.moved().find(|k| self.is_hopeless(*k));
            let Some(knob) = hopeless else { return };
            self.take_out(knob);
        }
    }

    pub(super) fn is_hopeless(&self, knob: usize) -> bool {
        if self.fixed[knob] != 0 && self.pairs[knob] < LEAST_PAIRS {
            return false;
        }
        let (mid, sd) = self.gain(knob);
        let judged = self.pairs[knob] >= 6 * LEAST_PAIRS || mid < -sd;
        let least = self.price.of(knob);
        (mid < least && judged) || mid + 1.64 * sd < least.max(3.0 * self.price.least)
    }

    /// Takes out all but so many lines: what cannot be measured by itself in the time that is left will not be kept.
    pub(super) fn keep_most_certain(&mut self, most: usize) {
        while self.moved().count() > most.max(1) {
            let weakest = self.moved().min_by(|a, b| self.certainty(*a).total_cmp(&self.certainty(*b)));
            let Some(knob) = weakest else { return };
            self.take_out(knob);
        }
    }

    /// Returns the expected gain of a knob in standard deviations.
    pub(super) fn certainty(&self, knob: usize) -> f64 {
        // The first stage has shown it.
        if self.fixed[knob] != 0 && self.pairs[knob] < LEAST_PAIRS {
            return f64::INFINITY;
        }
        let (mid, sd) = self.measured(knob, self.best[knob]);
        mid / sd.max(1e-9)
    }

    /// Returns the lines that are left out next. One with a large gain is left out by itself, since it hides the others. Of the others a
    /// half is left out, and the other half the next time: such runs tell about each line, and far more than runs without one.
    pub(super) fn next(&mut self, random: &mut Random) -> Vec<usize> {
        let unmeasured = |k: &usize| self.pairs[*k] < LEAST_PAIRS;
        if let Some(k) = self.moved().filter(|k| self.fixed[*k] != 0).find(unmeasured) {
            return vec![k];
        }
        let rest: Vec<usize> =
            std::mem::take(&mut self.other_half).into_iter().filter(|k| self.best[*k] != 0).collect();
        if !rest.is_empty() {
            return rest;
        }
        let mut open: Vec<usize> = self.moved().filter(|k| self.is_open(*k)).collect();
        if open.len() < FEW {
            return open.into_iter().min_by_key(|k| self.pairs[*k]).into_iter().collect();
        }
        random.shuffle(&mut open);
        self.other_half = open.split_off(open.len() / 2);
        open
    }

    /// Returns `true` if more runs are to tell about a line.
    fn is_open(&self, knob: usize) -> bool {
        let (mid, sd) = self.measured(knob, self.best[knob]);
        // To stop at the first interval above zero would find too many of them.
        self.pairs[knob] < LEAST_PAIRS || mid <= CERTAIN * sd && self.pairs[knob] < MOST_PAIRS
    }

    /// Returns `true` if a line was left out, and its gain is above zero beyond doubt.
    pub(super) fn is_measured(&self, knob: usize) -> bool {
        let (mid, sd) = self.measured(knob, self.best[knob]);
        // Beside lines with a large gain all settings are judged, not only those of which the model expects something, and more of them
        // would pass by chance.
        let beyond = if self.fixed.iter().all(|l| *l == 0) { 1.96 } else { 2.6 };
        self.pairs[knob] >= LEAST_PAIRS && mid > beyond * sd && self.gain(knob).0 >= self.price.of(knob)
    }

    /// Takes out lines without a measured interval above zero, the least certain first, since each changes the expected gain of
    /// the others.
    pub(super) fn drop_unmeasured(&mut self) {
        while let Some(knob) = self.least_certain() {
            self.take_out(knob);
        }
    }

    /// Returns the line without a measured interval above zero that is the least certain.
    pub(super) fn least_certain(&self) -> Option<usize> {
        let unmeasured = self.moved().filter(|k| !self.is_measured(*k));
        unmeasured.min_by(|a, b| self.certainty(*a).total_cmp(&self.certainty(*b)))
    }

    /// Returns all lines, kept or not, with their gains.
    pub(super) fn lines(&self) -> Vec<Line> {
        let kept = self.moved().map(|k| (k, self.best[k], true));
        let gone = self.gone.iter().map(|(k, level)| (*k, *level, false));
        kept.chain(gone).map(|(knob, level, kept)| self.line(knob, level, kept)).collect()
    }

    pub(super) fn line(&self, knob: usize, level: u8, kept: bool) -> Line {
        let (mid, sd) = self.measured(knob, level);
        let gain = Interval { mid, low: mid - 1.96 * sd, high: mid + 1.96 * sd };
        Line { knob, level, gain, pairs: self.pairs[knob], kept }
    }
}
