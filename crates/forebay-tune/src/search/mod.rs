//! The method: noise first, a screening design, a model with expected improvement, a paired knock-out of each line, and a
//! confirmation of the whole against the user's configuration, with runs that were used for nothing else.
//!
//! It sees a server only as the trait `Rig`, so its tests run against a simulated machine.

use crate::design;
use crate::model::{Model, Sample};
use crate::random::Random;
use crate::stats::{self, Interval, normal_cdf};

/// Something that can be set.
#[derive(Clone, Debug)]
pub struct SearchKnob {
    /// Name, for reports.
    pub name: String,
    /// Number of levels. Level 0 is the user's own setting, level 1 the most promising other one.
    pub levels: u8,
}

/// Levels of all knobs.
pub type Point = Vec<u8>;

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Logarithm of the objective; more is better.
    Score(f64),
    /// A limit was broken, or the server refused the settings; with its words.
    Infeasible(String),
    /// The user ended it in the middle: it does not count.
    Void,
}

/// Measures settings.
pub trait Rig {
    /// Does one run; `fresh`: the server is started again.
    fn run(&mut self, point: &Point, fresh: bool) -> Outcome;
    /// Returns `true` if the search has to end early, since the time is over or the user has stopped it. The results so far are
    /// kept.
    fn over(&self) -> bool {
        false
    }
    /// Returns the part of the time that is gone. Phases end by it where runs take longer than planned, so that the last ones
    /// have their share.
    fn used(&self) -> f64 {
        0.0
    }
}

/// Parameters of a search.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Runs in all; at least 60 are needed to claim anything.
    pub runs: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// A line that gains less is not worth having, as a logarithm.
    pub least: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { runs: 200, seed: 1, least: 0.004 }
    }
}

/// Progress of a search.
#[derive(Clone, Debug)]
pub enum Event {
    /// A phase begins: its name and how many runs it may take.
    Phase(&'static str, usize),
    /// A run is over.
    Run {
        /// Number of the run.
        number: usize,
        /// The settings that were measured.
        point: Point,
        /// Its result.
        outcome: Outcome,
    },
}

/// One knob that was moved.
#[derive(Clone, Debug)]
pub struct Line {
    /// Number of the knob.
    pub knob: usize,
    /// Its level.
    pub level: u8,
    /// Gain with an approximate 95 % interval, from the model.
    pub gain: Interval,
    /// Pairs of runs with and without it.
    pub pairs: usize,
    /// Kept.
    pub kept: bool,
    /// Significant also when all lines are claimed together (Holm); else it is kept as part of the group.
    pub proven: bool,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Report {
    /// Spread of the same settings measured again, as a logarithm.
    pub noise: f64,
    /// Settings proposed; all at 0 when nothing is.
    pub best: Point,
    /// Gain of the whole, from the confirmation alone.
    pub gain: Interval,
    /// The interval excludes no gain.
    pub proven: bool,
    /// Lines of the incumbent, kept or not.
    pub lines: Vec<Line>,
    /// The smallest gain that this many pairs would have shown.
    pub could_see: f64,
    /// Settings that could not be run, and why.
    pub infeasible: Vec<(Point, String)>,
    /// All runs.
    pub samples: Vec<Sample>,
    /// Fresh starts of the confirmation, and by how much the worst of them was below the median, as a logarithm.
    pub starts: (usize, f64),
    /// The phase in which time or patience ended before all was judged.
    pub ended: Option<&'static str>,
}

struct Search<'s> {
    knobs: &'s [SearchKnob],
    settings: &'s Settings,
    rig: &'s mut dyn Rig,
    tell: &'s mut dyn FnMut(Event),
    random: Random,
    samples: Vec<Sample>,
    infeasible: Vec<(Point, String)>,
    spent: usize,
}

impl Search<'_> {
    fn run(&mut self, point: &Point, fresh: bool) -> Option<f64> {
        if self.infeasible.iter().any(|(p, _)| p == point) {
            return None;
        }
        let outcome = self.rig.run(point, fresh);
        if outcome == Outcome::Void {
            return None;
        }
        self.spent += 1;
        (self.tell)(Event::Run { number: self.spent, point: point.clone(), outcome: outcome.clone() });
        match outcome {
            Outcome::Score(score) => {
                self.samples.push(Sample { point: point.clone(), time: self.spent as f64, score });
                Some(score)
            }
            Outcome::Infeasible(why) => {
                self.infeasible.push((point.clone(), why));
                None
            }
            Outcome::Void => None,
        }
    }

    fn base(&self) -> Point {
        vec![0; self.knobs.len()]
    }

    fn left(&self, until: usize) -> bool {
        let share = until as f64 / self.settings.runs as f64;
        self.spent < until && !self.rig.over() && self.rig.used() < share + 0.03
    }

    /// Returns `true` if a point has a knob level that could never be run, so that it is not tried again.
    fn barred(&self, point: &Point) -> bool {
        self.infeasible.iter().any(|(p, _)| {
            let moved = p.iter().filter(|l| **l != 0).count();
            p == point || (moved == 1 && p.iter().zip(point).any(|(a, b)| *a != 0 && a == b))
        })
    }

    /// Screens: each knob at two levels in a balanced design, with the baseline in between.
    fn screen(&mut self, noise: f64, until: usize) {
        let rows = self.screening_rows(noise > 0.03 && until - self.spent >= 48);
        let base = self.base();
        for (i, row) in rows.iter().enumerate() {
            if !self.left(until) {
                return;
            }
            if i % 7 == 6 {
                self.run(&base, false);
            }
            let row = self.without_barred(row);
            if self.run(&row, false).is_none() {
                self.find_culprit(&row);
            }
        }
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
        }
        self.random.shuffle(&mut rows);
        rows
    }

    /// Returns a row without the levels that cannot be run. A row with one of them would tell nothing about the others.
    fn without_barred(&self, row: &Point) -> Point {
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
    fn find_culprit(&mut self, row: &Point) {
        let moved: Vec<usize> = (0..row.len()).filter(|k| row[*k] != 0).collect();
        let mut suspects = moved;
        while suspects.len() > 1 && !self.rig.over() {
            let half = suspects[..suspects.len() / 2].to_vec();
            let mut point = self.base();
            for k in &half {
                point[*k] = row[*k];
            }
            let runs = self.infeasible.iter().all(|(p, _)| p != &point) && self.run(&point, false).is_some();
            suspects = if runs { suspects[suspects.len() / 2..].to_vec() } else { half };
        }
        if let Some(k) = suspects.first().filter(|_| !self.rig.over()) {
            let mut point = self.base();
            point[*k] = row[*k];
            self.run(&point, false);
        }
    }

    /// Returns the best settings by the model. Moves one knob after the other as long as that helps.
    fn incumbent(&self, m: &Model) -> Point {
        let mut best = self.base();
        for _ in 0..4 {
            let before = best.clone();
            for k in 0..self.knobs.len() {
                best[k] = self.best_level(m, &best, k);
            }
            if best == before {
                break;
            }
        }
        best
    }

    /// Returns the level of a knob that goes best with the other settings of a point.
    fn best_level(&self, m: &Model, at: &Point, k: usize) -> u8 {
        let mut choice = (at[k], 0.0);
        for level in 0..self.knobs[k].levels {
            let mut p = at.clone();
            p[k] = level;
            let gain = m.gain(at, &p).0;
            // A line has to earn its place.
            let least = if level == 0 { -self.settings.least } else { self.settings.least };
            if level != at[k] && gain > choice.1 + least && !self.barred(&p) {
                choice = (level, gain);
            }
        }
        choice.0
    }

    /// Runs the settings of which the model expects most.
    fn model(&mut self, noise: f64, until: usize) {
        let base = self.base();
        let mut tired = 0;
        let mut picks = 0;
        let mut m = Model::fit(&self.samples, noise);
        while self.left(until) && tired < 8 {
            picks += 1;
            if picks % 8 == 0 {
                self.run(&base, false);
                continue;
            }
            m = if picks % 12 == 0 { Model::fit(&self.samples, noise) } else { m.update(&self.samples) };
            let best = self.incumbent(&m);
            let (chosen, hope) = self.most_promising(&m, &best);
            tired = if hope < 0.001 { tired + 1 } else { 0 };
            if self.run(&chosen, false).is_none() {
                self.find_culprit(&chosen);
            }
        }
    }

    /// Returns the most promising of some random points near the best one, and its expected improvement.
    fn most_promising(&mut self, m: &Model, best: &Point) -> (Point, f64) {
        let mut chosen = (best.clone(), 0.0);
        for i in 0..160 {
            let mut p = best.clone();
            let moves = if i < 110 { 1 + self.random.below(3) } else { self.knobs.len() / 2 };
            for _ in 0..moves {
                let k = self.random.below(self.knobs.len());
                p[k] = self.random.below(usize::from(self.knobs[k].levels)) as u8;
            }
            if self.barred(&p) {
                continue;
            }
            let hope = m.improvement(best, &p);
            if hope > chosen.1 {
                chosen = (p, hope);
            }
        }
        chosen
    }

    /// Judges each line of the incumbent by runs with and without it.
    fn knock_out(&mut self, noise: f64, until: usize) -> (Point, Vec<Line>) {
        let model = Model::fit(&self.samples, noise);
        let best = self.incumbent(&model);
        let mut trial = Trial::new(model, best, self.settings.least);
        loop {
            trial.drop_hopeless();
            let Some(k) = trial.next() else { break };
            if !self.left(until.saturating_sub(3)) {
                break;
            }
            let scored = self.block(&trial.best, &without(&trial.best, k));
            if scored < 4 && self.rig.over() {
                break;
            }
            trial.pairs[k] += 2;
            trial.model = trial.model.update(&self.samples);
        }
        trial.drop_unlikely();
        let lines = trial.lines();
        (trial.best, lines)
    }

    /// Runs a block ABBA, the first run on a fresh start. Returns how many of the runs count.
    fn block(&mut self, a: &Point, b: &Point) -> usize {
        let mut scored = 0;
        for (i, p) in [a, b, b, a].into_iter().enumerate() {
            scored += usize::from(self.run(p, i == 0).is_some());
        }
        scored
    }

    /// Measures the original against the final settings, on fresh starts, until the budget is used up.
    fn confirm(&mut self, best: &Point, until: usize) -> Vec<Vec<f64>> {
        let mut starts: Vec<Vec<f64>> = Vec::new();
        while self.left(until.saturating_sub(3)) {
            // Two blocks a start.
            let mut here = self.confirm_block(best, true);
            if self.left(until.saturating_sub(3)) {
                here.extend(self.confirm_block(best, false));
            }
            if here.is_empty() {
                break;
            }
            starts.push(here);
        }
        starts
    }

    /// Runs a block ABBA or BAAB. Returns the differences of its pairs.
    fn confirm_block(&mut self, best: &Point, fresh: bool) -> Vec<f64> {
        let base = self.base();
        let flip = self.random.below(2) == 1;
        let order = if flip { [1, 0, 0, 1] } else { [0, 1, 1, 0] };
        let mut scores = [Vec::new(), Vec::new()];
        for (i, which) in order.into_iter().enumerate() {
            let p = if which == 1 { best } else { &base };
            if let Some(s) = self.run(p, fresh && i < 2) {
                scores[which].push(s);
            }
        }
        scores[1].iter().zip(&scores[0]).map(|(b, a)| b - a).collect()
    }

    /// Runs the original `runs` times. Returns the spread of a run, as a logarithm.
    fn noise(&mut self, runs: usize) -> f64 {
        let base = self.base();
        let mut same = Vec::new();
        for i in 0..runs {
            if !self.left(self.settings.runs) {
                break;
            }
            same.extend(self.run(&base, i % 3 == 0));
        }
        // Neighbouring runs, so that drift does not count.
        let steps: Vec<f64> = same.windows(2).map(|w| (w[1] - w[0]) / std::f64::consts::SQRT_2).collect();
        let mean_square = steps.iter().map(|x| x * x).sum::<f64>() / steps.len().max(1) as f64;
        stats::spread(&steps).max(0.6 * mean_square.sqrt()).max(0.002)
    }

    /// Begins a phase that ends at the run `until`.
    fn phase(&mut self, name: &'static str, until: usize) {
        let runs = until.saturating_sub(self.spent);
        (self.tell)(Event::Phase(name, runs));
    }

    fn report(mut self, found: Found, phases: &Phases) -> Report {
        let Found { best, lines, starts, mut ended, noise } = found;
        let base = self.base();
        let moved = best != base;
        // All runs together give a better estimate of the noise than the first ones.
        let noise = Model::fit(&self.samples, noise).scale.noise;
        let gain = if moved { stats::interval(&starts, 2000, &mut self.random) } else { Interval::default() };
        let pairs: usize = starts.iter().map(Vec::len).sum();
        let seen = if pairs > 0 { pairs } else { phases.confirming / 2 };
        let proven = moved && gain.low > 0.0;
        if moved && pairs == 0 {
            ended = ended.or(Some("confirmation"));
        }
        Report {
            noise,
            best: if proven { best } else { base },
            gain,
            proven,
            lines,
            could_see: 2.8 * noise * std::f64::consts::SQRT_2 / (seen as f64).sqrt(),
            infeasible: self.infeasible,
            samples: self.samples,
            starts: steadiness(&starts),
            ended,
        }
    }
}

/// Returns a point with one knob as the user has it.
fn without(point: &Point, knob: usize) -> Point {
    let mut p = point.clone();
    p[knob] = 0;
    p
}

/// The lines of an incumbent on trial: each has to earn its place.
struct Trial {
    model: Model,
    /// A line that gains less is not worth having, as a logarithm.
    least: f64,
    best: Point,
    /// Pairs of runs with and without each knob.
    pairs: Vec<usize>,
    /// Lines that were taken out: knob and level.
    gone: Vec<(usize, u8)>,
}

impl Trial {
    fn new(model: Model, best: Point, least: f64) -> Trial {
        let pairs = vec![0; best.len()];
        Trial { model, least, best, pairs, gone: Vec::new() }
    }

    /// Returns the knobs that the incumbent moves.
    fn moved(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.best.len()).filter(|k| self.best[*k] != 0)
    }

    /// Returns the expected gain of a knob in the incumbent, and its standard deviation.
    fn gain(&self, knob: usize) -> (f64, f64) {
        self.model.gain(&without(&self.best, knob), &self.best)
    }

    fn take_out(&mut self, knob: usize) {
        self.gone.push((knob, self.best[knob]));
        self.best[knob] = 0;
    }

    /// Removes lines that gain too little, one at a time, since each changes the expected gain of the others.
    fn drop_hopeless(&mut self) {
        loop {
            let hopeless = self.moved().find(|k| self.is_hopeless(*k));
            let Some(knob) = hopeless else { return };
            self.take_out(knob);
        }
    }

    fn is_hopeless(&self, knob: usize) -> bool {
        let (mid, sd) = self.gain(knob);
        let judged = self.pairs[knob] >= 4 || mid < 0.0;
        (mid < self.least && judged) || mid + 1.64 * sd < 3.0 * self.least
    }

    /// Returns the line that is judged next.
    fn next(&self) -> Option<usize> {
        let doubtful = self.most_doubtful();
        if let Some(knob) = doubtful.filter(|k| self.pairs[*k] == 0) {
            return Some(knob);
        }
        // The model alone is no proof: a line that was never taken out comes before those in doubt.
        let unproven = self.moved().find(|k| self.pairs[*k] == 0);
        unproven.or(doubtful)
    }

    /// Returns the doubtful line that could matter most. No line has a second turn before all have had a first.
    fn most_doubtful(&self) -> Option<usize> {
        let mut chosen: Option<(usize, usize, f64)> = None;
        for k in self.moved() {
            let (mid, sd) = self.gain(k);
            let pairs = self.pairs[k];
            let open = mid - 1.64 * sd < 0.0 && pairs < 16;
            let sooner = |(_, n, s): (usize, usize, f64)| pairs < n || pairs == n && sd > s;
            if open && chosen.is_none_or(sooner) {
                chosen = Some((k, pairs, sd));
            }
        }
        chosen.map(|(knob, ..)| knob)
    }

    /// Takes out lines that are still in doubt, unless they are likely.
    fn drop_unlikely(&mut self) {
        for knob in 0..self.best.len() {
            if self.best[knob] != 0 {
                let (mid, sd) = self.gain(knob);
                if mid < 0.6 * sd || mid < self.least {
                    self.take_out(knob);
                }
            }
        }
    }

    /// Returns all lines, kept or not, with their gains.
    fn lines(&self) -> Vec<Line> {
        let kept = self.moved().map(|k| (k, self.best[k], true));
        let gone = self.gone.iter().map(|(k, level)| (*k, *level, false));
        let mut lines: Vec<Line> =
            kept.chain(gone).map(|(knob, level, kept)| self.line(knob, level, kept)).collect();
        let p: Vec<f64> = lines
            .iter()
            .map(|l| 1.0 - normal_cdf(l.gain.mid / ((l.gain.high - l.gain.low) / 3.92).max(1e-9)))
            .collect();
        for (line, holds) in lines.iter_mut().zip(stats::holm(&p, 0.05)) {
            line.proven = holds && line.kept;
        }
        lines
    }

    fn line(&self, knob: usize, level: u8, kept: bool) -> Line {
        let mut with = self.best.clone();
        with[knob] = level;
        let (mid, sd) = self.model.gain(&without(&with, knob), &with);
        let gain = Interval { mid, low: mid - 1.96 * sd, high: mid + 1.96 * sd };
        Line { knob, level, gain, pairs: self.pairs[knob], kept, proven: false }
    }
}

/// Numbers of the runs at which the phases of a search end.
struct Phases {
    noise: usize,
    screen: usize,
    model: usize,
    knock_out: usize,
    all: usize,
    /// Runs of the confirmation.
    confirming: usize,
}

impl Phases {
    fn of(runs: usize) -> Phases {
        let share = |f: f64| (runs as f64 * f) as usize;
        let noise = share(0.05).clamp(6, 12);
        // The confirmation has a fifth, and at least twelve pairs; the knock-out has at least six blocks, also when
        // there are few runs: the model alone is no proof.
        let confirming = share(0.22).max(24);
        let judging = share(0.16).max(24);
        Phases {
            noise,
            screen: share(0.30).max(noise + 26),
            model: share(0.60).min(runs.saturating_sub(confirming + judging)),
            knock_out: runs.saturating_sub(confirming),
            all: runs,
            confirming,
        }
    }
}

/// Results of the phases.
struct Found {
    best: Point,
    lines: Vec<Line>,
    /// Differences of pairs by fresh start.
    starts: Vec<Vec<f64>>,
    ended: Option<&'static str>,
    /// Spread of a run by the first phase, as a logarithm.
    noise: f64,
}

/// Tunes. `tell` gets each event as it happens.
pub fn tune(
    knobs: &[SearchKnob],
    rig: &mut dyn Rig,
    settings: &Settings,
    tell: &mut dyn FnMut(Event),
) -> Report {
    let mut s = Search {
        knobs,
        settings,
        rig,
        tell,
        random: Random::new(settings.seed),
        samples: Vec::new(),
        infeasible: Vec::new(),
        spent: 0,
    };
    let phases = Phases::of(settings.runs);
    s.phase("noise", phases.noise);
    let noise = s.noise(phases.noise);
    (s.tell)(Event::Phase("screen", phases.screen - phases.noise));
    s.screen(noise, phases.screen.min(phases.all));
    let mut ended = s.rig.over().then_some("screening");
    s.phase("model", phases.model);
    s.model(noise, phases.model);
    s.phase("knock-out", phases.knock_out);
    let (best, lines) = s.knock_out(noise, phases.knock_out);
    ended = ended.or(s.rig.over().then_some("knock-out"));
    let mut starts = Vec::new();
    if best != s.base() {
        s.phase("confirm", phases.all);
        starts = s.confirm(&best, phases.all);
    }
    s.report(Found { best, lines, starts, ended, noise }, &phases)
}

/// Returns the number of fresh starts, and by how much the worst was below the median, as a logarithm.
fn steadiness(starts: &[Vec<f64>]) -> (usize, f64) {
    let each: Vec<f64> = starts.iter().map(|s| stats::hodges_lehmann(s)).collect();
    let worst = each.iter().copied().fold(f64::INFINITY, f64::min);
    let fell = if each.is_empty() { 0.0 } else { stats::median(&mut each.clone()) - worst };
    (each.len(), fell)
}

#[cfg(test)]
mod tests;
