//! The method: noise first, a screening design, a model with expected improvement, a paired knock-out of each line, and a
//! confirmation of the whole against the user's configuration, with runs that were used for nothing else. The confirmation looks
//! after each pair and ends when it has proven the gain (`sequential`); its time is set aside first.
//!
//! A line with a large gain hides what others do: a server that spends nine tenths of its time in one place does not show what the
//! rest costs. So such lines are fixed after the screening, and all others are screened again beside them.
//!
//! It sees a server only as the trait `Rig`, so its tests run against a simulated machine.

mod judge;
mod phases;
mod screen;
mod trial;
mod whole;

use crate::model::{Model, Sample};
use crate::random::Random;
use crate::sequential;
use crate::stats::{self, Interval};
use phases::Phases;

/// Something that can be set.
#[derive(Clone, Debug)]
pub struct SearchKnob {
    /// Name, for reports.
    pub name: String,
    /// Number of levels. Level 0 is the user's own setting, level 1 the most promising other one.
    pub levels: u8,
    /// It has a price beside what is measured (stale files, memory, logs that come late): it is judged first, and has to gain
    /// more.
    pub costly: bool,
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
    /// An earlier process had its share of the time: the confirmation goes on as long as there is any.
    pub resumed: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { runs: 200, seed: 1, least: 0.004, resumed: false }
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
    /// Gain in the final settings, or over all that were measured, whichever is known better, with an approximate 95 % interval.
    pub gain: Interval,
    /// Runs without it, each beside one with it.
    pub pairs: usize,
    /// Kept: it was left out, and the interval is above zero.
    pub kept: bool,
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
    /// The gain is proven at 99 %, however often the search has looked.
    pub proven: bool,
    /// Pairs of the confirmation.
    pub confirmed: Confirmed,
    /// Lines of the incumbent, kept or not.
    pub lines: Vec<Line>,
    /// The smallest gain that this many pairs would have shown.
    pub could_see: f64,
    /// Settings that could not be run, and why.
    pub infeasible: Vec<(Point, String)>,
    /// All runs.
    pub samples: Vec<Sample>,
    /// Pairs of fresh starts in the confirmation, and by how much the worst of them was below the median, as a logarithm.
    pub starts: (usize, f64),
    /// The phase in which time or patience ended before all was judged.
    pub ended: Option<&'static str>,
}

/// Pairs of the confirmation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmed {
    /// Pairs of the original and the final settings.
    pub pairs: usize,
    /// Those in which the final settings were better.
    pub won: usize,
    /// Pairs more that would prove the gain, where it is not proven and so many can prove it.
    pub missing: Option<usize>,
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
    /// Levels of the lines with a large gain, which all points of the second stage have; 0 for the other knobs.
    fixed: Point,
    /// Runs before the second stage, which say little about what matters in it.
    before: usize,
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

    /// Returns `true` while a phase that ends at the run `until` may go on.
    fn left(&self, until: usize) -> bool {
        self.spent < until && self.has_time(until)
    }

    /// Returns `true` while the phases after the one that ends at the run `until` still have their share of the time.
    fn has_time(&self, until: usize) -> bool {
        let share = until as f64 / self.settings.runs as f64;
        !self.rig.over() && self.rig.used() < share + 0.02
    }

    /// Returns `true` if a point has a knob level that could never be run, so that it is not tried again.
    fn barred(&self, point: &Point) -> bool {
        self.infeasible.iter().any(|(p, _)| {
            let moved = p.iter().filter(|l| **l != 0).count();
            p == point || (moved == 1 && p.iter().zip(point).any(|(a, b)| *a != 0 && a == b))
        })
    }

    /// Fits a model to the runs of the stage. Beside lines with a large gain, of which few runs say something, all other effects are
    /// usual ones.
    fn fitted(&self, noise: f64) -> Model {
        if self.fixed == self.base() {
            return Model::fit(self.stage(), noise);
        }
        Model::near(self.stage(), noise, &self.fixed)
    }

    /// Returns the best settings by the model. Moves one knob after the other as long as that helps.
    fn incumbent(&self, m: &Model) -> Point {
        let mut best = self.fixed.clone();
        for _ in 0..4 {
            let before = best.clone();
            for k in (0..self.knobs.len()).filter(|k| self.fixed[*k] == 0) {
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
    ///
    /// Ends early where so many lines look good that their knock-out, which ends at the run `judged`, needs the time.
    fn model(&mut self, noise: f64, until: usize, judged: usize) {
        let base = self.fixed.clone();
        let mut tired = 0;
        let mut picks = 0;
        let mut m = self.fitted(noise);
        while self.left(until) && tired < 8 {
            picks += 1;
            if picks % 8 == 0 {
                self.run(&base, false);
                continue;
            }
            m = if picks % 12 == 0 { self.fitted(noise) } else { m.update(self.stage()) };
            let best = self.incumbent(&m);
            // Where runs say little, all lines will be judged near the incumbent.
            let lines = if m.scale.noise > LOUD { vec![1; best.len()] } else { best.clone() };
            if self.spent + judging(&lines) > judged {
                break;
            }
            let (chosen, hope) = self.most_promising(&m, &best);
            tired = if hope < 0.001 { tired + 1 } else { 0 };
            if self.run(&chosen, false).is_none() {
                self.find_culprit(&chosen, until);
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
                if self.fixed[k] != 0 {
                    continue;
                }
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
        spread(&same)
    }

    /// Screens the original, and again beside the lines with a large gain.
    fn screen_twice(&mut self, noise: f64, phases: &Phases) -> f64 {
        (self.tell)(Event::Phase("screen", phases.screen - phases.noise));
        self.screen(noise, phases.screen.min(phases.all), phases.model);
        self.second_stage(noise, phases.model)
    }

    /// Begins a phase that ends at the run `until`.
    fn phase(&mut self, name: &'static str, until: usize) {
        let runs = until.saturating_sub(self.spent);
        (self.tell)(Event::Phase(name, runs));
    }

    fn report(self, found: Found, phases: &Phases) -> Report {
        let Found { best, lines, differences, mut ended, noise } = found;
        let base = self.base();
        let moved = best != base;
        // All runs together give a better estimate of the noise than the first ones.
        let noise = Model::fit(self.stage(), noise).scale.noise;
        let gain = if moved { sequential::interval(&differences) } else { Interval::default() };
        let proven = moved && sequential::proves(&differences);
        let confirmed = Confirmed {
            pairs: differences.len(),
            won: differences.iter().filter(|d| **d > 0.0).count(),
            missing: sequential::pairs_to_proof(&differences).filter(|_| moved && !proven),
        };
        if moved && differences.is_empty() {
            ended = ended.or(Some("confirmation"));
        }
        let seen = if differences.is_empty() { phases.confirming / 2 } else { differences.len() };
        Report {
            noise,
            best: if proven { best } else { base },
            gain,
            proven,
            confirmed,
            lines,
            could_see: sequential::visible(noise, seen),
            infeasible: self.infeasible,
            samples: self.samples,
            starts: steadiness(&differences),
            ended,
        }
    }
}

/// A gain by which a line hides what others do.
const LARGE: f64 = 1.4;
/// Noise beyond which the model is asked whether it holds near the incumbent, as a logarithm.
const LOUD: f64 = 0.1;
/// Runs of a second stage at least: the noise, the screening, and some for the model.
const STAGE: usize = 34;
/// Most runs without a line for one run of the whole.
const OUT_AT_A_TIME: usize = 3;
/// Runs without a line that judge it at least.
const LEAST_PAIRS: usize = 2;

/// Returns the spread of a run, as a logarithm, from scores of the same settings.
fn spread(same: &[f64]) -> f64 {
    // Neighbouring runs, so that drift does not count.
    let steps: Vec<f64> = same.windows(2).map(|w| (w[1] - w[0]) / std::f64::consts::SQRT_2).collect();
    let mean_square = steps.iter().map(|x| x * x).sum::<f64>() / steps.len().max(1) as f64;
    stats::spread(&steps).max(0.6 * mean_square.sqrt()).max(0.002)
}

/// Returns the runs that it takes to judge each line of an incumbent.
fn judging(best: &Point) -> usize {
    let lines = best.iter().filter(|level| **level != 0).count();
    (lines * LEAST_PAIRS * (OUT_AT_A_TIME + 1)).div_ceil(OUT_AT_A_TIME)
}

/// Returns a point with one knob as the user has it.
fn without(point: &Point, knob: usize) -> Point {
    let mut p = point.clone();
    p[knob] = 0;
    p
}

/// Results of the phases.
struct Found {
    best: Point,
    lines: Vec<Line>,
    /// Differences of the confirmation's pairs.
    differences: Vec<f64>,
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
        fixed: vec![0; knobs.len()],
        before: 0,
    };
    let phases = Phases::of(settings.runs);
    s.phase("noise", phases.noise);
    let noise = s.noise(phases.noise);
    let noise = s.all_at_once(noise, phases.model).unwrap_or_else(|| s.screen_twice(noise, &phases));
    let mut ended = s.rig.over().then_some("screening");
    s.phase("model", phases.model);
    s.model(noise, phases.model, phases.knock_out);
    s.phase("knock-out", phases.knock_out);
    let (best, lines) = s.knock_out(noise, &phases);
    ended = ended.or(s.rig.over().then_some("knock-out"));
    let mut differences = Vec::new();
    if best != s.base() {
        s.phase("confirm", phases.all);
        differences = s.confirm(&best, phases.all);
    }
    s.report(Found { best, lines, differences, ended, noise }, &phases)
}

/// Returns the number of pairs, and by how much the worst was below the median, as a logarithm.
fn steadiness(differences: &[f64]) -> (usize, f64) {
    let worst = differences.iter().copied().fold(f64::INFINITY, f64::min);
    let fell = if differences.is_empty() { 0.0 } else { stats::median(&mut differences.to_vec()) - worst };
    (differences.len(), fell)
}

#[cfg(test)]
mod tests;
