//! The method: noise first, a screening design, a model with expected improvement, a paired knock-out of each line, and a
//! confirmation of the whole against what the user has, on runs that were used for nothing else.

use crate::design;
use crate::model::{Model, Sample};
use crate::random::Random;
use crate::stats::{self, Interval, normal_cdf};

/// Something that can be set.
#[derive(Clone, Debug)]
pub struct Knob {
    /// Name, for reports.
    pub name: String,
    /// How many levels it has; level 0 is what the user has, level 1 the most promising other one.
    pub levels: u8,
}

/// Levels of all knobs.
pub type Point = Vec<u8>;

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Logarithm of the objective; more is better.
    Score(f64),
    /// A limit was broken, or the server refused the settings; with its words.
    Infeasible(String),
    /// The user ended it in the middle: it says nothing.
    Void,
}

/// Measures settings.
pub trait Rig {
    /// One run; `fresh`: the server is started anew.
    fn run(&mut self, point: &Point, fresh: bool) -> Outcome;
    /// Whether to end early (the time is over, the user has had enough). What is known is kept.
    fn over(&self) -> bool {
        false
    }
    /// The part of the time that is gone. Phases end by it where runs take longer than planned, so that the last ones
    /// have their share.
    fn used(&self) -> f64 {
        0.0
    }
}

/// How a search goes.
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

/// What is going on.
#[derive(Clone, Debug)]
pub enum Event {
    /// A phase begins: its name and how many runs it may take.
    Phase(&'static str, usize),
    /// A run is over.
    Run {
        /// Its number.
        number: usize,
        /// What was measured.
        point: Point,
        /// What it came to.
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
    /// Stands also when all lines are claimed together (Holm); else it is kept as part of the group.
    pub proven: bool,
}

/// What a search came to.
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
    knobs: &'s [Knob],
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

    /// A knob level that could never be run is not tried again.
    fn barred(&self, point: &Point) -> bool {
        self.infeasible.iter().any(|(p, _)| {
            let moved = p.iter().filter(|l| **l != 0).count();
            p == point || (moved == 1 && p.iter().zip(point).any(|(a, b)| *a != 0 && a == b))
        })
    }

    /// Screens: each knob at two levels in a balanced design, with the baseline in between.
    fn screen(&mut self, noise: f64, until: usize) {
        let fold = noise > 0.03 && until - self.spent >= 48;
        let mut rows = design::screening(self.knobs.len(), fold);
        for row in &mut rows {
            for (level, knob) in row.iter_mut().zip(self.knobs) {
                if *level == 1 && knob.levels > 2 {
                    *level = 1 + self.random.below(usize::from(knob.levels) - 1) as u8;
                }
            }
        }
        self.random.shuffle(&mut rows);
        let base = self.base();
        for (i, row) in rows.iter().enumerate() {
            if !self.left(until) {
                return;
            }
            if i % 7 == 6 {
                self.run(&base, false);
            }
            // A row with a level that cannot be run would say nothing of all the others.
            let mut row = row.clone();
            for k in 0..row.len() {
                let mut alone = base.clone();
                alone[k] = row[k];
                if row[k] != 0 && self.barred(&alone) {
                    row[k] = 0;
                }
            }
            if self.run(&row, false).is_none() {
                self.find_culprit(&row);
            }
        }
    }

    /// Settings did not run: which of the knobs is to blame is found by halves.
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

    /// The best settings by the model: each knob is moved as long as that helps.
    fn incumbent(&self, m: &Model) -> Point {
        let mut best = self.base();
        for _ in 0..4 {
            let before = best.clone();
            for k in 0..self.knobs.len() {
                let mut choice = (best[k], 0.0);
                for level in 0..self.knobs[k].levels {
                    let mut p = best.clone();
                    p[k] = level;
                    let gain = m.gain(&best, &p).0;
                    // A line has to earn its place.
                    let least = if level == 0 { -self.settings.least } else { self.settings.least };
                    if level != best[k] && gain > choice.1 + least && !self.barred(&p) {
                        choice = (level, gain);
                    }
                }
                best[k] = choice.0;
            }
            if best == before {
                break;
            }
        }
        best
    }

    /// Runs what the model expects most of.
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
                let hope = m.improvement(&best, &p);
                if hope > chosen.1 {
                    chosen = (p, hope);
                }
            }
            tired = if chosen.1 < 0.001 { tired + 1 } else { 0 };
            if self.run(&chosen.0, false).is_none() {
                self.find_culprit(&chosen.0);
            }
        }
    }

    /// Judges each line of the incumbent by runs with and without it.
    fn knock_out(&mut self, noise: f64, until: usize) -> (Point, Vec<Line>) {
        let least = self.settings.least;
        let mut m = Model::fit(&self.samples, noise);
        let mut best = self.incumbent(&m);
        let mut lines: Vec<Line> = Vec::new();
        let without = |best: &Point, k: usize| {
            let mut p = best.clone();
            p[k] = 0;
            p
        };
        let mut pairs = vec![0usize; self.knobs.len()];
        let mut gone: Vec<(usize, u8)> = Vec::new();
        loop {
            // The doubtful line that could matter most.
            let mut doubtful: Option<(usize, usize, f64)> = None;
            let mut dropped = None;
            for k in (0..best.len()).filter(|k| best[*k] != 0) {
                let (mid, sd) = m.gain(&without(&best, k), &best);
                let judged = pairs[k] >= 4 || mid < 0.0;
                if (mid < least && judged) || mid + 1.64 * sd < 3.0 * least {
                    dropped = Some(k);
                    break;
                }
                let open = mid - 1.64 * sd < 0.0 && pairs[k] < 16;
                // Each line has its turn before one has a second.
                let sooner = |(_, n, s): (usize, usize, f64)| pairs[k] < n || pairs[k] == n && sd > s;
                if open && doubtful.is_none_or(sooner) {
                    doubtful = Some((k, pairs[k], sd));
                }
            }
            if let Some(k) = dropped {
                gone.push((k, best[k]));
                best[k] = 0;
                continue;
            }
            // What only the model says is no proof: a line that was never taken out has its turn when none is doubtful.
            let unproven = |k: &usize| best[*k] != 0 && pairs[*k] == 0;
            let next = match doubtful {
                Some((k, 0, _)) => Some(k),
                other => (0..best.len()).find(unproven).or(other.map(|(k, _, _)| k)),
            };
            let Some(k) = next else { break };
            if !self.left(until.saturating_sub(3)) {
                break;
            }
            let bare = without(&best, k);
            let mut scored = 0;
            for (i, p) in [&best, &bare, &bare, &best].into_iter().enumerate() {
                scored += usize::from(self.run(p, i == 0).is_some());
            }
            if scored < 4 && self.rig.over() {
                break;
            }
            pairs[k] += 2;
            m = m.update(&self.samples);
        }
        // What is still in doubt stays out unless it is likely.
        for k in 0..best.len() {
            if best[k] != 0 {
                let (mid, sd) = m.gain(&without(&best, k), &best);
                if mid < 0.6 * sd || mid < least {
                    gone.push((k, best[k]));
                    best[k] = 0;
                }
            }
        }
        for (k, level, kept) in (0..best.len())
            .filter(|k| best[*k] != 0)
            .map(|k| (k, best[k], true))
            .chain(gone.iter().map(|(k, l)| (*k, *l, false)))
        {
            let mut with = best.clone();
            with[k] = level;
            let (mid, sd) = m.gain(&without(&with, k), &with);
            let gain = Interval { mid, low: mid - 1.96 * sd, high: mid + 1.96 * sd };
            lines.push(Line { knob: k, level, gain, pairs: pairs[k], kept, proven: false });
        }
        let p: Vec<f64> = lines
            .iter()
            .map(|l| 1.0 - normal_cdf(l.gain.mid / ((l.gain.high - l.gain.low) / 3.92).max(1e-9)))
            .collect();
        for (line, stands) in lines.iter_mut().zip(stats::holm(&p, 0.05)) {
            line.proven = stands && line.kept;
        }
        (best, lines)
    }

    /// Original against final, on fresh starts, until the budget is over.
    fn confirm(&mut self, best: &Point, until: usize) -> Vec<Vec<f64>> {
        let base = self.base();
        let mut starts: Vec<Vec<f64>> = Vec::new();
        while self.left(until.saturating_sub(3)) {
            let mut here = Vec::new();
            // Two blocks ABBA a start.
            for block in 0..2 {
                if !self.left(until.saturating_sub(3)) {
                    break;
                }
                let flip = self.random.below(2) == 1;
                let order = if flip { [1, 0, 0, 1] } else { [0, 1, 1, 0] };
                let mut scores = [Vec::new(), Vec::new()];
                for (i, which) in order.into_iter().enumerate() {
                    let p = if which == 1 { best } else { &base };
                    if let Some(s) = self.run(p, block == 0 && i < 2) {
                        scores[which].push(s);
                    }
                }
                here.extend(scores[1].iter().zip(&scores[0]).map(|(b, a)| b - a));
            }
            if here.is_empty() {
                break;
            }
            starts.push(here);
        }
        starts
    }
}

/// Tunes. Everything is reported through `tell` as it happens.
pub fn tune(knobs: &[Knob], rig: &mut dyn Rig, settings: &Settings, tell: &mut dyn FnMut(Event)) -> Report {
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
    let n = settings.runs;
    let share = |f: f64| (n as f64 * f) as usize;
    let base = s.base();
    let first = share(0.05).clamp(6, 12);
    (s.tell)(Event::Phase("noise", first));
    let mut same = Vec::new();
    for i in 0..first {
        if !s.left(n) {
            break;
        }
        same.extend(s.run(&base, i % 3 == 0));
    }
    // Neighbouring runs, so that drift does not count.
    let steps: Vec<f64> = same.windows(2).map(|w| (w[1] - w[0]) / std::f64::consts::SQRT_2).collect();
    let mean_square = steps.iter().map(|x| x * x).sum::<f64>() / steps.len().max(1) as f64;
    let noise = stats::spread(&steps).max(0.6 * mean_square.sqrt()).max(0.002);
    let screened = share(0.30).max(first + 26);
    (s.tell)(Event::Phase("screen", screened - first));
    s.screen(noise, screened.min(n));
    let mut ended = s.rig.over().then_some("screening");
    // The confirmation has a fifth, and at least twelve pairs; the knock-out has at least six blocks, also when
    // there are few runs: what only the model says is no proof.
    let confirming = share(0.22).max(24);
    let judging = share(0.16).max(24);
    let modelled = share(0.60).min(n.saturating_sub(confirming + judging));
    (s.tell)(Event::Phase("model", modelled.saturating_sub(s.spent)));
    s.model(noise, modelled);
    (s.tell)(Event::Phase("knock-out", n.saturating_sub(confirming + s.spent)));
    let (best, lines) = s.knock_out(noise, n.saturating_sub(confirming));
    ended = ended.or(s.rig.over().then_some("knock-out"));
    let moved = best != base;
    let mut starts = Vec::new();
    if moved {
        (s.tell)(Event::Phase("confirm", n.saturating_sub(s.spent)));
        starts = s.confirm(&best, n);
    }
    // All runs together say more of the noise than the first ones.
    let noise = Model::fit(&s.samples, noise).scale.noise;
    let gain = if moved { stats::interval(&starts, 2000, &mut s.random) } else { Interval::default() };
    let pairs: usize = starts.iter().map(Vec::len).sum();
    let seen = if pairs > 0 { pairs } else { confirming / 2 };
    let proven = moved && gain.low > 0.0;
    if moved && pairs == 0 {
        ended = ended.or(Some("confirmation"));
    }
    let each: Vec<f64> = starts.iter().map(|s| stats::hodges_lehmann(s)).collect();
    let worst = each.iter().copied().fold(f64::INFINITY, f64::min);
    let fell = if each.is_empty() { 0.0 } else { stats::median(&mut each.clone()) - worst };
    Report {
        noise,
        best: if proven { best } else { base },
        gain,
        proven,
        lines,
        could_see: 2.8 * noise * std::f64::consts::SQRT_2 / (seen as f64).sqrt(),
        infeasible: s.infeasible,
        samples: s.samples,
        starts: (each.len(), fell),
        ended,
    }
}

#[cfg(test)]
mod tests;
