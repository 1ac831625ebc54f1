//! Measures settings with a real server: a private copy of the user's configuration, loaded over the loopback.

use crate::figures::Figures;
pub use crate::goal::Goal;
use crate::knobs::{HTTP2, Knob, Place};
use crate::link::{Relays, SLOW};
use crate::load::{LoadPlan, load, measure};
use crate::search::{Outcome, Point, Rig};
use crate::stats::median;
use crate::sysctl::Journal;
use forebay_bench::load::Protocol;
use forebay_bench::signals;
use forebay_copy::patch::{Edit, Source};
use forebay_copy::program::{Process, Program};
use forebay_copy::scene::{Copy, Target};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A knob with the levels that change something here.
#[derive(Clone, Debug)]
pub struct Active {
    /// Row of the table.
    pub knob: &'static Knob,
    /// Levels from 1 on, with their edits.
    pub levels: Vec<(String, Vec<Edit>)>,
}

impl Active {
    /// Returns the kernel setting of a level: its name and value.
    fn kernel_setting(&self, level: u8) -> Option<(&str, &str)> {
        let (text, _) = self.levels.get(usize::from(level).checked_sub(1)?)?;
        text.split(';').next()?.split_once(" = ")
    }
}

/// Limits of a candidate, in addition to failures.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// 99th percentile, ns; `None`: 1.1 times the worst of the original.
    pub p99: Option<u64>,
    /// Resident bytes of the server; `None`: three times as many as the original has, and 256 MB.
    pub memory: Option<u64>,
}

/// The server that is measured, and its load.
#[derive(Debug)]
pub struct Subject<'s> {
    /// The user's configuration.
    pub source: &'s Source,
    /// Its private copy.
    pub copy: Copy,
    /// The program that runs the copy.
    pub program: Program,
    /// Targets of the load.
    pub targets: Vec<Target>,
    /// Plan by which requests are sent.
    pub manner: LoadPlan,
}

/// The question of a tuning.
#[derive(Debug)]
pub struct Task {
    /// Settings that can be tried.
    pub active: Vec<Active>,
    /// Objective of a tuning.
    pub goal: Goal,
    /// Limits that have to hold as well.
    pub limits: Limits,
}

/// The time of a tuning and the runs that share it.
#[derive(Debug)]
pub struct Timetable {
    /// The end.
    pub until: Instant,
    /// The whole time, with the time of earlier processes.
    pub budget: Duration,
    /// Runs that are planned.
    pub planned: usize,
}

/// The log of all runs, one a line.
#[derive(Debug)]
pub struct RunLog {
    /// The file.
    pub path: PathBuf,
    /// Runs of an earlier process that the search has not asked for again yet.
    pub past: VecDeque<Value>,
}

impl RunLog {
    fn append(&self, line: &Value) {
        if let Ok(mut log) = OpenOptions::new().create(true).append(true).open(&self.path) {
            let _ = log.write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// The rig with a real server.
#[derive(Debug)]
pub struct Live<'s> {
    /// The server and its load.
    pub subject: Subject<'s>,
    /// Settings and objective.
    pub task: Task,
    /// The time.
    pub time: Timetable,
    /// The log.
    pub log: RunLog,
    /// For kernel settings.
    pub journal: Option<Journal>,
    /// Figures of all runs, by number of the run.
    pub figures: Vec<Option<Figures>>,
    process: Option<(Point, Process)>,
    /// Runs of the original.
    base: Vec<Figures>,
    /// Time of a run in which nothing is measured.
    overhead: Duration,
    /// Part of the time that is gone.
    used: f64,
    /// Usual latency of the original.
    latency: Duration,
    last: Window,
    relays: Relays,
}

/// The window of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    length: Duration,
    /// No request ended in it, and none failed.
    silent: bool,
}

/// Returns the better of two times: what disturbs a page only makes it slower, or fail.
fn better(one: Result<f64, String>, other: Result<f64, String>) -> Result<f64, String> {
    match (one, other) {
        (Ok(a), Ok(b)) => Ok(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Latencies that a window has at least.
const LATENCIES: u32 = 3;
/// Shortest window.
const SHORTEST: Duration = Duration::from_millis(250);
/// Longest window.
const LONGEST: Duration = Duration::from_secs(60);

impl<'s> Live<'s> {
    /// Creates a rig that has measured nothing.
    pub fn new(subject: Subject<'s>, task: Task, time: Timetable, log: RunLog) -> Live<'s> {
        // Each run has two pages over the slow link.
        let pages = if task.goal == Goal::Transfer { 2000 } else { 0 };
        let overhead = Duration::from_millis(250 + pages);
        Live {
            subject,
            task,
            time,
            log,
            journal: None,
            figures: Vec::new(),
            process: None,
            base: Vec::new(),
            overhead,
            used: 0.0,
            latency: Duration::ZERO,
            last: Window::default(),
            relays: Relays::new(SLOW),
        }
    }

    /// Returns the knobs that a point moves, with their levels.
    fn moved<'a>(&'a self, point: &'a Point) -> impl Iterator<Item = (&'a Active, u8)> {
        self.task.active.iter().zip(point.iter().copied()).filter(|(_, level)| *level > 0)
    }

    fn edits(&self, point: &Point) -> Vec<Edit> {
        self.moved(point).flat_map(|(a, level)| a.levels[usize::from(level) - 1].1.clone()).collect()
    }

    /// Has the server run with these settings, started again if `fresh`. Returns its pid.
    fn ready(&mut self, point: &Point, fresh: bool) -> Result<u32, String> {
        if let Some((p, process)) = &self.process
            && p == point
            && !fresh
        {
            return Ok(process.id());
        }
        self.process = None;
        self.set_kernel(point)?;
        let process = self.start(point)?;
        let id = process.id();
        self.process = Some((point.clone(), process));
        Ok(id)
    }

    /// Sets the kernel settings of a point; all others are as they were.
    fn set_kernel(&self, point: &Point) -> Result<(), String> {
        let Some(journal) = &self.journal else { return Ok(()) };
        journal.restore()?;
        for (active, level) in self.moved(point).filter(|(a, _)| a.knob.place == Place::Sysctl) {
            if let Some((name, value)) = active.kernel_setting(level) {
                journal.set(name, value)?;
            }
        }
        Ok(())
    }

    /// Starts the server with the settings of a point.
    fn start(&self, point: &Point) -> Result<Process, String> {
        let Subject { source, copy, program, .. } = &self.subject;
        let conf = copy.write(source, &self.edits(point))?;
        program.test(&conf)?;
        copy.clear_logs();
        let process =
            program.start(&conf, &copy.addresses(self.subject.source), &copy.place.dir.join("stderr"))?;
        copy.note_server(process.id());
        Ok(process)
    }

    fn once(&mut self, point: &Point, fresh: bool) -> Result<Figures, String> {
        let runs = self.time.planned.saturating_sub(self.figures.len());
        self.at(point, fresh, self.subject.manner.rate, runs)
    }

    /// Measures at a load (requests a second; `None`: a closed loop), for a share of the time that is left for this many
    /// runs.
    fn at(&mut self, point: &Point, fresh: bool, rate: Option<f64>, runs: usize) -> Result<Figures, String> {
        let start = Instant::now();
        let pid = self.ready(point, fresh)?;
        let manner = LoadPlan { rate, protocol: self.protocol(point), ..self.subject.manner.clone() };
        let mut load = load(&self.subject.targets, &manner)?;
        load.timeout = load.timeout.max(self.latency * 4 * LATENCIES);
        let share = self.time.until.saturating_duration_since(start) / runs.max(1) as u32;
        let time = self.window(share.saturating_sub(self.overhead));
        let warm = (time / 5).clamp(Duration::from_millis(100), Duration::from_millis(1500));
        let time = time.mul_f64(0.8);
        let (figures, first) = measure(&load, pid, warm, time)?;
        let silent = figures.rate <= 0.0 && figures.errors == 0;
        self.last = Window { length: time, silent };
        let checked = self.sound(&figures, first, time);
        let page = checked.and_then(|()| self.page(&manner));
        let extra = start.elapsed().saturating_sub(warm + time);
        self.overhead = (self.overhead * 7 + extra) / 8;
        Ok(Figures { page: page?, ..figures })
    }

    /// Checks that a run has answers, and no more failures than the original has.
    fn sound(&self, figures: &Figures, first: Option<String>, time: Duration) -> Result<(), String> {
        let least = self.base.iter().map(|b| b.errors).max().unwrap_or_default();
        if figures.errors > least {
            let server = self.subject.targets.first().map_or("", |t| t.url.as_str());
            let why = first.unwrap_or_else(|| "no reason is known".into());
            return Err(format!("{} requests failed, the first at {server}: {why}", figures.errors));
        }
        if figures.rate <= 0.0 || figures.cpu <= 0.0 {
            let why = first.map_or_else(String::new, |e| format!(": {e}"));
            return Err(format!("no request was answered within {:.1} s{why}", time.as_secs_f64()));
        }
        Ok(())
    }

    /// Returns the time of a page over the slow link, 0 where pages are not measured.
    fn page(&mut self, manner: &LoadPlan) -> Result<f64, String> {
        if self.task.goal != Goal::Transfer || manner.protocol == Protocol::Http3 {
            return Ok(0.0);
        }
        let mut page = || self.relays.page(&self.subject.targets, manner);
        better(page(), page())
    }

    /// Returns the version of HTTP by which a point is loaded: the one that it allows, since its clients would take it.
    fn protocol(&self, point: &Point) -> Protocol {
        let given = self.subject.manner.protocol;
        let allows = self.moved(point).any(|(a, _)| a.knob.name == HTTP2);
        if allows && given == Protocol::Http1 { Protocol::Http2 } else { given }
    }

    /// Returns the window of a run whose share of the time is `share`: no shorter than several of the latencies that were seen.
    fn window(&self, share: Duration) -> Duration {
        let least = (self.latency * LATENCIES).clamp(SHORTEST, LONGEST);
        share.clamp(SHORTEST, Duration::from_secs(10)).max(least)
    }

    /// Measures the original with longer and longer windows, until they hold several of its latencies.
    fn find_window(&mut self) -> Result<Figures, String> {
        loop {
            let run = self.once(&self.original(), true);
            let seen = run.as_ref().map_or(Duration::ZERO, |f| Duration::from_nanos(f.p50));
            let Window { length, silent } = self.last;
            let too_short = silent || seen * LATENCIES > length;
            self.latency = seen;
            // A part of each window is for the warm-up.
            if !too_short || length >= LONGEST / 2 || signals::interrupted() {
                return run;
            }
            // Only the quickest of the requests end in a window that is too short, or none.
            self.latency = seen.max(length * 2 / LATENCIES);
        }
    }

    /// Returns the limit that figures break, in words.
    fn broken(&self, f: &Figures) -> Option<String> {
        self.broken_p99(f).or_else(|| self.broken_memory(f))
    }

    fn broken_p99(&self, f: &Figures) -> Option<String> {
        let text = forebay_bench::duration_text;
        let p99 = self.base.iter().map(|b| b.p99).max()?;
        match self.task.limits.p99 {
            Some(most) => (f.p99 > most).then(|| format!("p99 {}, beyond {}", text(f.p99), text(most))),
            // Compression takes its time, which a page over the link counts; a full server would only show that.
            None if self.task.goal == Goal::Transfer => None,
            None => (f.p99 as f64 > 1.1 * p99 as f64)
                .then(|| format!("p99 {}, beyond 1.1 x {}", text(f.p99), text(p99))),
        }
    }

    fn broken_memory(&self, f: &Figures) -> Option<String> {
        let memory = self.base.iter().map(|b| b.memory).max()?;
        let most = self.task.limits.memory.unwrap_or(3 * memory + (256 << 20));
        let mb = |n: u64| n >> 20;
        (f.memory > most).then(|| {
            format!(
                "{} MB of memory, {} are allowed; the original has {}",
                mb(f.memory),
                mb(most),
                mb(memory)
            )
        })
    }

    fn outcome(&mut self, point: &Point, fresh: bool) -> (Outcome, Option<Figures>) {
        let mut why = String::new();
        // Another program may have disturbed the run: a run that breaks a limit is repeated once.
        for attempt in 0..2 {
            let run = self.once(point, fresh || attempt > 0);
            if signals::interrupted() {
                return (Outcome::Void, None);
            }
            match run {
                Err(e) if self.process.is_none() => return (Outcome::Infeasible(e), None),
                Err(e) => why = e,
                Ok(f) => match self.judge(point, &f) {
                    Ok(score) => return (Outcome::Score(score), Some(f)),
                    Err(limit) => {
                        why = limit;
                        if attempt == 0 {
                            self.measure_original();
                        }
                    }
                },
            }
        }
        (Outcome::Infeasible(why), None)
    }

    /// Returns the score of a run, or the limit that it breaks.
    fn judge(&mut self, point: &Point, f: &Figures) -> Result<f64, String> {
        if is_original(point) {
            if self.base.len() < 64 {
                self.base.push(*f);
            }
        } else if let Some(limit) = self.broken(f) {
            return Err(limit);
        }
        Ok(self.task.goal.score(f))
    }

    /// Measures the original at the moment at which a candidate broke a limit: while another program disturbs, the
    /// original breaks it as well, and the candidate is not to blame.
    fn measure_original(&mut self) {
        let original = self.original();
        if let Ok(f) = self.once(&original, true)
            && !signals::interrupted()
        {
            self.base.push(f);
            let mut line = json!({"beside": true, "point": original});
            f.put_into(&mut line);
            self.log.append(&line);
        }
    }

    /// Ends the server and puts kernel settings back.
    pub fn end(&mut self) {
        self.process = None;
        if let Some(j) = &self.journal
            && let Err(e) = j.restore()
        {
            eprintln!("forebay tune: {e}");
        }
    }

    /// Does the first run, which also shows whether the user's own configuration works.
    ///
    /// # Errors
    /// The server's words.
    pub fn prove(&mut self) -> Result<Figures, String> {
        let f = self.find_window()?;
        if let Some(most) = self.task.limits.memory
            && f.memory > most
        {
            return Err(format!("{} MB of memory as it is, more than --memory allows", f.memory >> 20));
        }
        Ok(f)
    }

    /// Returns how long a run takes at least and the time for so many of them, where that is more than there is.
    pub(crate) fn wants(&self, runs: u32) -> Option<(Duration, Duration)> {
        let run = self.window(SHORTEST) + self.overhead;
        let all = run * runs;
        (all > self.time.budget).then_some((run, all))
    }

    /// Returns level 0 of all knobs, the user's own configuration.
    pub fn original(&self) -> Point {
        vec![0; self.task.active.len()]
    }

    /// Measures the requests a second of the original in a closed loop: the median of runs on fresh starts; `None`
    /// after ^C. A resumed tuning finds it in the log: another load would be another question.
    ///
    /// # Errors
    /// The server's words.
    pub fn capacity(&mut self, runs: usize) -> Result<Option<f64>, String> {
        let mut rates = Vec::new();
        for left in (1..=runs).rev() {
            let run = self.at(&self.original(), true, None, left);
            if signals::interrupted() {
                return Ok(None);
            }
            rates.push(run?.rate);
        }
        let capacity = median(&mut rates).round();
        self.log.append(&json!({"capacity": capacity}));
        Ok(Some(capacity))
    }

    /// Does a run of the check at half of the load, on a fresh start. `past`: runs of an earlier process. `None` after
    /// ^C.
    pub(crate) fn checked(
        &mut self,
        point: &Point,
        rate: f64,
        runs: usize,
        past: &mut VecDeque<Value>,
    ) -> Option<Result<Figures, String>> {
        if let Some(known) = next_check(past, point, rate) {
            return Some(Ok(known));
        }
        if signals::interrupted() {
            return None;
        }
        // Another program may have disturbed the first run.
        let mut run = self.at(point, true, Some(rate), runs);
        if run.is_err() && !signals::interrupted() {
            run = self.at(point, true, Some(rate), runs);
        }
        if signals::interrupted() {
            return None;
        }
        if let Ok(f) = &run {
            let mut line = json!({"half_load": rate, "point": point});
            f.put_into(&mut line);
            self.log.append(&line);
        }
        Some(run)
    }

    fn log_run(&self, point: &Point, outcome: &Outcome, f: Option<Figures>) {
        let mut line = json!({"point": point});
        match outcome {
            Outcome::Score(s) => {
                line["score"] = json!(s);
                // Text loses the last bit, on which the choices of a search depend.
                line["bits"] = json!(s.to_bits());
            }
            Outcome::Infeasible(why) => line["why"] = json!(why),
            Outcome::Void => {}
        }
        line["used"] = json!(self.used);
        if let Some(f) = f {
            f.put_into(&mut line);
        }
        self.log.append(&line);
    }

    /// Returns the outcome of the next run in the log, if it is of this point. A search repeats its runs in the same
    /// order as long as it gets the same results. Otherwise drops the rest of the log.
    fn past_run(&mut self, point: &Point) -> Option<Outcome> {
        while self.log.past.front().is_some_and(|line| line["beside"] == true) {
            self.base.extend(self.log.past.pop_front().as_ref().and_then(Figures::of_line));
        }
        let line = self.log.past.pop_front()?;
        if line["point"] != json!(point) {
            self.log.past.clear();
            return None;
        }
        self.used = line["used"].as_f64().unwrap_or_default();
        let f = Figures::of_line(&line);
        self.figures.push(f);
        self.base.extend(f.filter(|_| is_original(point)));
        Some(match line["bits"].as_u64() {
            Some(bits) => Outcome::Score(f64::from_bits(bits)),
            None => Outcome::Infeasible(line["why"].as_str().unwrap_or_default().to_owned()),
        })
    }
}

fn is_original(point: &Point) -> bool {
    point.iter().all(|level| *level == 0)
}

/// Returns the next check of an earlier process, if it is of this point and rate. Otherwise forgets the rest.
fn next_check(past: &mut VecDeque<Value>, point: &Point, rate: f64) -> Option<Figures> {
    let line = past.pop_front()?;
    let same = line["point"] == json!(point) && line["half_load"].as_f64() == Some(rate);
    let known = Figures::of_line(&line).filter(|_| same);
    if known.is_none() {
        past.clear();
    }
    known
}

impl Rig for Live<'_> {
    fn run(&mut self, point: &Point, fresh: bool) -> Outcome {
        if let Some(outcome) = self.past_run(point) {
            return outcome;
        }
        if signals::interrupted() {
            return Outcome::Void;
        }
        let (outcome, f) = self.outcome(point, fresh);
        if outcome != Outcome::Void {
            let left = self.time.until.saturating_duration_since(Instant::now());
            self.used = 1.0 - left.as_secs_f64() / self.time.budget.as_secs_f64().max(1e-3);
            self.figures.push(f);
            self.log_run(point, &outcome, f);
        }
        outcome
    }

    fn used(&self) -> f64 {
        self.used
    }

    fn over(&self) -> bool {
        self.log.past.is_empty() && (signals::interrupted() || Instant::now() > self.time.until)
    }
}
