//! One tuning, step by step: prepare, choose, calibrate, search, check, report, apply.

use crate::choice::{Choice, LeftOut};
use crate::cli::{RunArgs, Workload, cpus};
use crate::knobs::{KNOBS, Place, Safety};
use crate::load::{LoadPlan, load};
use crate::load_point::{self, CAPACITY, Check};
use crate::output::{self, Summary, gain};
use crate::program::{Which, executable};
use crate::results::{self, KERNEL};
use crate::resume::ResumeLog;
use crate::rig::{Active, Goal, Limits, Live, RunLog, Subject, Task, Timetable};
use crate::search::{self, Event, Outcome, Point, Report, SearchKnob, Settings};
use crate::sysctl::Journal;
use crate::{apply, storable, upstream};
use forebay_bench::load::{Protocol, Stop};
use forebay_bench::observe::shares;
use forebay_bench::{duration_text, signals};
use forebay_copy::patch::Source;
use forebay_copy::program::Program;
use forebay_copy::scene::{Copy, CopyPlace, Target, Upstreams};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Runs of the shortest search.
const LEAST_RUNS: usize = 72;
/// Most targets of a load.
const TARGETS: usize = 48;

/// Tunes in a state directory that is locked.
///
/// # Errors
/// Nothing could be measured, or no result be written.
pub(crate) fn tune(args: &RunArgs, state: &Path) -> Result<(), String> {
    let raises_rate = matches!(args.goal, Goal::Throughput | Goal::Speed);
    if args.load.is_some() && raises_rate {
        return Err(
            "--load fixes the requests a second, which --for throughput and --for speed are to raise".into(),
        );
    }
    let (journal, restored) = Journal::open(&args.sysctl_root, &state.join("journal"))?;
    if restored > 0 {
        say!("Put back {restored} kernel settings that an earlier run had left.");
    }
    let source = read_source(args)?;
    let tuning = Tuning::new(args, &source, state.join("copy"))?;
    tuning.run(journal)
}

fn read_source(args: &RunArgs) -> Result<Source, String> {
    match args.server {
        Which::Forebay => Source::read(&args.conf),
        Which::Nginx => Source::of_nginx(&args.conf),
    }
}

/// A tuning of one configuration.
struct Tuning<'a> {
    args: &'a RunArgs,
    source: &'a Source,
    /// Folder of the private copy.
    dir: PathBuf,
    /// Folder of the results.
    out: PathBuf,
}

impl<'a> Tuning<'a> {
    fn new(args: &'a RunArgs, source: &'a Source, dir: PathBuf) -> Result<Tuning<'a>, String> {
        let io = |e: std::io::Error| format!("{}: {e}", args.out.display());
        std::fs::create_dir_all(&args.out).map_err(io)?;
        let out = std::path::absolute(&args.out).map_err(io)?;
        Ok(Tuning { args, source, dir, out })
    }

    fn run(&self, journal: Journal) -> Result<(), String> {
        for name in self.source.unserved_names() {
            say!("Leaving out {name}: its servers are not measured, and its settings stay as they are.");
        }
        let Prepared { subject, storable } = self.prepare()?;
        let view = self.source.view();
        let choice = Choice {
            args: self.args,
            view: &view,
            targets: &subject.targets,
            journal: &journal,
            known: &self.args.known,
            storable: &storable,
        };
        let (active, left_out) = choice.make()?;
        if active.is_empty() {
            say!("Nothing to try: all that could matter for this load is so already.");
            return Ok(());
        }
        let about = self.about(&subject);
        say!("{about}");
        self.announce(&active, &left_out);
        let plan = Plan::new(self.args);
        let log = self.out.join("runs.jsonl");
        let past = self.past(&log, &self.question(&active, &plan))?;
        let left = if self.args.resume { plan.left_again(past.done()) } else { plan.searching };
        let mut live = self.rig(subject, active.clone(), &plan, RunLog { path: log, past: past.runs });
        live.journal = Some(journal);
        let capacity = self.fix_load(&mut live, past.capacity)?;
        if signals::interrupted() {
            return Ok(());
        }
        live.time.until = Instant::now() + left;
        prove(&mut live)?;
        let (report, points) = self.search(&active, &mut live, plan.runs);
        let figures = std::mem::take(&mut live.figures);
        let mut summary = Summary {
            known: &self.args.known,
            report: &report,
            active: &active,
            figures: &figures,
            points: &points,
            aim: self.args.goal,
            goal: &self.goal(&live),
            about,
            left_out: &left_out,
            run_time: plan.searching / plan.runs.max(1) as u32,
            half: None,
        };
        live.time.until += plan.reserve;
        summary.half = self.check_half(&mut live, &summary, capacity, past.half);
        live.end();
        self.finish(&live, &summary)
    }

    /// Makes the private copy, with a file of `--static-size`, and finds the targets that can be requested.
    fn prepare(&self) -> Result<Prepared<'a>, String> {
        let copy = Copy::new(self.source, self.place()?)?;
        let path = executable(self.args.server, self.args.program.as_deref())?;
        let program = Program { path, prefix: self.dir.clone(), cpus: shares().0, is_bound: false };
        let conf = copy.write(self.source, &[])?;
        let targets = self.chosen(copy.targets(self.source, self.args.http3));
        if targets.is_empty() && self.args.http3 {
            return Err(
                "--http3 needs a server with a listen with quic that serves a file or passes requests on"
                    .into(),
            );
        }
        let mut subject = Subject { source: self.source, copy, program, targets, manner: self.manner() };
        let storable = answering(&mut subject, &conf, self.args.real_upstreams)?;
        Ok(Prepared { subject, storable })
    }

    /// Returns the surroundings of the private copy. Starts the upstream that answers in it, unless the real ones are used.
    fn place(&self) -> Result<CopyPlace, String> {
        let args = self.args;
        let io = |e: std::io::Error| format!("{}: {e}", args.out.display());
        let upstreams = match args.real_upstreams {
            true => Upstreams::Real,
            false => {
                let size = args.upstream_size as usize;
                Upstreams::Http(upstream::start(args.upstream_latency, size).map_err(io)?)
            }
        };
        let root = self.plant_file().map_err(io)?;
        let prefix = args.prefix.clone().unwrap_or_else(|| "/usr/share/nginx".into());
        let prefix = std::path::absolute(prefix).map_err(io)?;
        Ok(CopyPlace { upstreams, root, ..CopyPlace::new(self.dir.clone(), prefix) })
    }

    /// Writes the file of `--static-size`. Returns its folder.
    fn plant_file(&self) -> std::io::Result<Option<PathBuf>> {
        let Some(size) = self.args.static_size else { return Ok(None) };
        let root = self.dir.join("html");
        std::fs::create_dir_all(&root)?;
        let words = b"the quick brown fox jumps over the lazy dog\n";
        let bytes: Vec<u8> = words.iter().copied().cycle().take(size.min(1 << 30) as usize).collect();
        std::fs::write(root.join("f.html"), bytes)?;
        Ok(Some(root))
    }

    fn manner(&self) -> LoadPlan {
        LoadPlan {
            connections: self.args.connections.min(20_000) as usize,
            seed: self.args.seed,
            protocol: match (self.args.http2, self.args.http3) {
                (_, true) => Protocol::Http3,
                (true, _) => Protocol::Http2,
                _ => Protocol::Http1,
            },
            gzip: self.args.goal == Goal::Transfer || self.source.view().any_on("gzip"),
            close: false,
            access_log: self.args.access_log.clone(),
            rate: self.args.rate.map(|r| r as f64),
        }
    }

    /// Keeps the targets of `--workload`, as many as a load has at most.
    fn chosen(&self, all: Vec<Target>) -> Vec<Target> {
        let wanted = |t: &Target| match self.args.workload {
            Workload::Static => !t.proxied,
            Workload::Proxied => t.proxied,
            Workload::Tls => t.url.starts_with("https"),
            Workload::Auto | Workload::Mixed => true,
        };
        all.into_iter().filter(wanted).take(TARGETS).collect()
    }

    /// Returns the name of the server.
    fn server(&self) -> &'static str {
        match self.args.server {
            Which::Nginx => "nginx",
            Which::Forebay => "Forebay",
        }
    }

    /// Returns server and load, in a line.
    fn about(&self, subject: &Subject<'_>) -> String {
        let proxied = subject.targets.iter().filter(|t| t.proxied).count();
        format!(
            "{} with {}: {} files and {proxied} proxied locations, {} connections, {} CPUs, {} of them for the server",
            self.server(),
            self.source.path.display(),
            subject.targets.len() - proxied,
            subject.manner.connections,
            cpus(),
            subject.program.cpus.len()
        )
    }

    fn announce(&self, active: &[Active], left_out: &LeftOut) {
        let names: Vec<&str> = active.iter().map(|a| a.knob.name).collect();
        say!("Trying {}: {}", active.len(), names.join(", "));
        for (name, why) in left_out.iter().filter(|(n, _)| self.args.sysctl && is_kernel(n)) {
            say!("Not trying {name}: {why}");
        }
    }

    /// Returns the parameters that have to be the same for `--resume`.
    fn question(&self, active: &[Active], plan: &Plan) -> Value {
        let knobs: Vec<Vec<&str>> =
            active.iter().map(|a| a.levels.iter().map(|l| l.0.as_str()).collect()).collect();
        json!({"conf": self.source.path, "server": self.server(), "seed": self.args.seed, "runs": plan.runs,
               "goal": format!("{:?}", self.args.goal), "rate": self.args.rate, "load": self.args.load, "knobs": knobs})
    }

    fn past(&self, log: &Path, question: &Value) -> Result<ResumeLog, String> {
        if !self.args.resume {
            return ResumeLog::start(&self.out, log, question);
        }
        let past = ResumeLog::resume(&self.out, log, question)?;
        if self.args.goal == Goal::Transfer {
            past.check_pages(!self.args.http3)?;
        }
        Ok(past)
    }

    fn rig(&self, subject: Subject<'a>, active: Vec<Active>, plan: &Plan, log: RunLog) -> Live<'a> {
        let limits = Limits { p99: self.args.p99.map(|t| t.as_nanos() as u64), memory: self.args.memory };
        let task = Task { active, goal: self.args.goal, limits };
        let until = Instant::now() + plan.measuring;
        Live::new(subject, task, Timetable { until, budget: plan.searching, planned: plan.runs }, log)
    }

    /// Fixes the load at a part of the capacity, with `--load`. The capacity is measured unless an earlier process did;
    /// `None` after ^C or without `--load`.
    fn fix_load(&self, live: &mut Live<'_>, known: Option<f64>) -> Result<Option<f64>, String> {
        let Some(percent) = self.args.load else { return Ok(None) };
        let measured = known.map_or_else(|| live.capacity(CAPACITY), |c| Ok(Some(c)))?;
        if let Some(capacity) = measured {
            let rate = load_point::share(capacity, percent);
            say!(
                "capacity: {capacity:.0} requests/s; the load is fixed at {percent} % of it: {rate:.0} requests/s"
            );
            live.subject.manner.rate = Some(rate);
        }
        Ok(measured)
    }

    /// Searches, and prints each run.
    fn search(&self, active: &[Active], live: &mut Live<'_>, runs: usize) -> (Report, Vec<Point>) {
        let knobs: Vec<SearchKnob> = active
            .iter()
            .map(|a| SearchKnob {
                name: a.knob.name.into(),
                levels: a.levels.len() as u8 + 1,
                costly: a.knob.safety != Safety::Safe,
            })
            .collect();
        let settings =
            Settings { runs, seed: self.args.seed, resumed: self.args.resume, ..Settings::default() };
        let mut progress = Progress { active, planned: runs, first: None, points: Vec::new() };
        let report = search::tune(&knobs, live, &settings, &mut |event| progress.take(event));
        (report, progress.points)
    }

    /// Returns the objective in words.
    fn goal(&self, live: &Live<'_>) -> String {
        let goal = match self.args.goal {
            Goal::Cpu => "requests per CPU second",
            Goal::Throughput => "requests/s",
            Goal::Latency => "1/p99",
            Goal::Speed => "requests/s and requests per CPU second, in their geometric mean",
            Goal::Transfer if self.args.http3 => {
                "answers in the same time over 4 Mbit/s and 60 ms, reckoned from their bytes"
            }
            Goal::Transfer => "pages in the same time over 4 Mbit/s and 60 ms",
        };
        match live.subject.manner.rate {
            Some(rate) => format!("{goal} at {rate} requests/s"),
            None => goal.to_owned(),
        }
    }

    /// Measures original and final configuration at half of the load, where a gain is proven.
    fn check_half(
        &self,
        live: &mut Live<'_>,
        summary: &Summary<'_>,
        capacity: Option<f64>,
        past: VecDeque<Value>,
    ) -> Option<Check> {
        let report = summary.report;
        let original = || summary.at(&live.original()).map(|f| f.rate);
        let full = capacity.or(live.subject.manner.rate).or_else(original).filter(|_| report.proven)?;
        let rate = load_point::share(full, 50);
        say!("-- half of the load: {rate:.0} requests/s");
        Some(Check::run(live, &report.best, rate, past, self.args.seed))
    }

    /// Reports, writes the results and applies them if asked to.
    fn finish(&self, live: &Live<'_>, summary: &Summary<'_>) -> Result<(), String> {
        say!("{}", summary.text());
        let edits = results::write(self.source, summary, &self.out, live.journal.as_ref())?;
        say!("Results are in {}", self.out.display());
        let _ = std::fs::remove_dir_all(&self.dir);
        if !self.args.apply {
            return Ok(());
        }
        if let Some(worse) = summary.half.as_ref().and_then(Check::worse) {
            let conf = self.out.join("tuned.conf");
            say!("Not applied: {worse}. Who wants it all the same finds it in {}.", conf.display());
            return Ok(());
        }
        if !summary.report.proven || signals::interrupted() {
            return Ok(());
        }
        let server = apply::Server {
            program: &live.subject.program.path,
            prefix: self.args.prefix.as_deref(),
            conf: &self.source.path,
        };
        apply::apply(self.source, &edits, &self.out, &server, self.args.canary)?;
        if summary.keeps_kernel_settings() {
            let file = self.out.join(KERNEL);
            say!("Without the kernel settings: {} is for /etc/sysctl.d.", file.display());
        }
        say!("Applied {}; --rollback undoes it.", gain(&summary.report.gain));
        Ok(())
    }
}

/// Runs and time of a tuning.
struct Plan {
    runs: usize,
    /// Time for the check at the end, which the search cannot take.
    reserve: Duration,
    /// Time for measuring the capacity.
    measuring: Duration,
    /// Time for the search.
    searching: Duration,
}

impl Plan {
    fn new(args: &RunArgs) -> Plan {
        // Short runs are noisy, few runs prove nothing: first a hundred short ones, then longer ones, then more.
        let seconds = args.budget.as_secs_f64();
        let runs = ((seconds / 3.0).min(200.0).max((seconds / 0.6).min(100.0)) as usize).max(LEAST_RUNS);
        let reserve = load_point::reserve(args.budget);
        let all = args.budget - reserve;
        // The capacity has the share of as many runs.
        let measuring = match args.load {
            Some(_) => all.mul_f64(CAPACITY as f64 / runs as f64),
            None => Duration::ZERO,
        };
        Plan { runs, reserve, measuring, searching: all - measuring }
    }

    /// Returns the time of a search that has `done` runs behind it.
    fn left(&self, done: usize) -> Duration {
        self.searching.mul_f64(self.runs.saturating_sub(done) as f64 / self.runs as f64)
    }

    /// Returns the time of a search that goes on: what is left of it, and at least a confirmation's share, since the time may have
    /// been gone before.
    fn left_again(&self, done: usize) -> Duration {
        self.left(done).max(self.searching.mul_f64(0.25)).max(Duration::from_secs(20))
    }
}

/// Reports the runs of a search as they happen.
struct Progress<'a> {
    active: &'a [Active],
    planned: usize,
    /// Score of the first run, which is the original's.
    first: Option<f64>,
    points: Vec<Point>,
}

impl Progress<'_> {
    fn take(&mut self, event: Event) {
        match event {
            Event::Phase(name, runs) => say!("-- {name}: up to {runs} runs"),
            Event::Run { number, point, outcome } => {
                self.say_run(number, &point, &outcome);
                self.points.push(point);
            }
        }
    }

    fn say_run(&mut self, number: usize, point: &Point, outcome: &Outcome) {
        let planned = self.planned;
        let moved = self.active.iter().zip(point).filter(|(_, l)| **l > 0);
        let moved: Vec<&str> = moved.map(|(a, _)| a.knob.name).collect();
        let moved = if moved.is_empty() { "as it is".to_owned() } else { moved.join(" ") };
        match outcome {
            Outcome::Score(s) => {
                let first = *self.first.get_or_insert(*s);
                say!("{number:>4}/{planned} {:>8}  {moved}", output::percent(s - first));
            }
            Outcome::Infeasible(why) => say!("{number:>4}/{planned}  refused  {moved}: {why}"),
            Outcome::Void => {}
        }
    }
}

/// A subject that answers, and numbers of locations whose answers may be stored.
struct Prepared<'s> {
    subject: Subject<'s>,
    storable: Vec<usize>,
}

/// Keeps the targets that answer well as the configuration is; at least one does. Returns the locations whose answers may be stored,
/// where the upstreams are the `real` ones.
fn answering(subject: &mut Subject<'_>, conf: &Path, real: bool) -> Result<Vec<usize>, String> {
    let Subject { copy, program, .. } = &*subject;
    program.test(conf)?;
    let _process = program.start(conf, &copy.addresses(subject.source), &copy.place.dir.join("stderr"))?;
    let mut kept = Vec::new();
    let mut why = None;
    for target in &subject.targets {
        match ask(target, &subject.manner)? {
            Answer::Good => kept.push(target.clone()),
            Answer::Bad(e) => why = why.or(e.map(|e| format!("{}: {e}", target.url))),
        }
    }
    if kept.is_empty() {
        return Err(format!(
            "nothing to ask for: no file below a root and no location with proxy_pass answers; --static-size plants a \
             file{}",
            why.map_or_else(String::new, |w| format!(". The first refusal: {w}"))
        ));
    }
    // What does not answer well is refused, too.
    let asked = std::mem::replace(&mut subject.targets, kept);
    Ok(if real { storable::locations(&subject.source.view(), &asked) } else { Vec::new() })
}

/// Answer of a target to one request.
enum Answer {
    Good,
    /// The request failed, perhaps with this error.
    Bad(Option<String>),
}

/// Requests a target once.
fn ask(target: &Target, manner: &LoadPlan) -> Result<Answer, String> {
    let one = LoadPlan { access_log: None, rate: None, ..manner.clone() };
    let mut load = load(std::slice::from_ref(target), &one)?;
    load.connections = 1;
    load.stop = Stop::Count(1, Some(Duration::from_secs(20)));
    load.timeout = Duration::from_secs(20);
    let r = forebay_bench::run::run(&load, None, |_| !signals::interrupted()).map_err(|e| e.to_string())?;
    let good = r.outcome.record.errors() == 0 && r.outcome.record.ok > 0;
    Ok(if good { Answer::Good } else { Answer::Bad(r.outcome.first_error) })
}

/// Measures the original and prints its figures.
fn prove(live: &mut Live<'_>) -> Result<(), String> {
    let first = live.prove()?;
    say!(
        "As it is: {:.0} requests/s, p99 {}, {:.1} us of CPU per request",
        first.rate,
        duration_text(first.p99),
        first.cpu
    );
    if let Some((run, all)) = live.wants(LEAST_RUNS as u32) {
        say!(
            "Answers take long, and so does a run: {:.1} s. A search wants {LEAST_RUNS} of them, --budget {}m.",
            run.as_secs_f64(),
            all.as_secs().div_ceil(60)
        );
    }
    Ok(())
}

fn is_kernel(name: &str) -> bool {
    KNOBS.iter().any(|k| k.name == name && k.place == Place::Sysctl)
}
