//! Measures settings with a real server: a private copy of the user's configuration, loaded over the loopback.

use crate::knobs::{Knob, Place};
use crate::patch::{Edit, Source};
use crate::scene::{Copy, Target};
use crate::search::{Outcome, Point, Rig};
use crate::stats::median;
use crate::sysctl::Journal;
use forebay_bench::load::{Load, Order, Protocol, Stop, Wanted};
use forebay_bench::observe::{Server, choose_cpus};
use forebay_bench::schedule::Rate;
use forebay_bench::tls::{Trust, config};
use forebay_bench::url::Url;
use forebay_bench::{run, signals, sources};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A knob with those of its levels that change something here.
#[derive(Clone, Debug)]
pub struct Active {
    /// Row of the table.
    pub knob: &'static Knob,
    /// Levels from 1 on, with their edits.
    pub levels: Vec<(String, Vec<Edit>)>,
}

/// What is to be better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Goal {
    /// CPU time of the server per request
    Cpu,
    /// Requests a second
    Throughput,
    /// 99th percentile of latency
    Latency,
}

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Requests a second.
    pub rate: f64,
    /// ns.
    pub p50: u64,
    /// ns.
    pub p99: u64,
    /// Server CPU time per request, microseconds.
    pub cpu: f64,
    /// Resident bytes of the server.
    pub memory: u64,
    /// Failures.
    pub errors: u64,
}

impl Figures {
    /// The median of each; failures add up.
    pub fn median(runs: &[Figures]) -> Figures {
        let mid = |f: &dyn Fn(&Figures) -> f64| median(&mut runs.iter().map(f).collect::<Vec<_>>());
        Figures {
            rate: mid(&|f| f.rate),
            p50: mid(&|f| f.p50 as f64) as u64,
            p99: mid(&|f| f.p99 as f64) as u64,
            cpu: mid(&|f| f.cpu),
            memory: mid(&|f| f.memory as f64) as u64,
            errors: runs.iter().map(|f| f.errors).sum(),
        }
    }

    /// For `result.json`.
    pub fn json(&self) -> Value {
        json!({"rate": self.rate, "p50_ns": self.p50, "p99_ns": self.p99, "cpu_us": self.cpu, "memory": self.memory})
    }
}

/// A server that this process started.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Its pid.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it: TERM first, KILL for it and its workers when that takes longer than three seconds.
    pub fn end(&mut self) {
        use nix::sys::signal::{Signal, kill};
        use nix::unistd::Pid;
        let pid = self.child.id();
        let children = children(pid);
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        for c in children {
            let _ = kill(Pid::from_raw(c as i32), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn children(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect()
}

/// A program with nginx's command line.
#[derive(Clone, Debug)]
pub struct Program {
    /// Executable.
    pub path: PathBuf,
    /// Prefix that is handed to it.
    pub prefix: PathBuf,
    /// CPUs that it may use; none: all.
    pub cpus: Vec<usize>,
}

impl Program {
    fn command(&self, conf: &Path) -> Command {
        let mut c = Command::new(&self.path);
        c.arg("-p").arg(&self.prefix).arg("-c").arg(conf).stdin(Stdio::null()).env_remove("NGINX");
        c
    }

    /// `-t`.
    ///
    /// # Errors
    /// The server's words.
    pub fn test(&self, conf: &Path) -> Result<(), String> {
        let out =
            self.command(conf).arg("-t").output().map_err(|e| format!("{}: {e}", self.path.display()))?;
        if out.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&out.stderr);
        let line =
            text.lines().find(|l| l.contains("[emerg]")).or(text.lines().next()).unwrap_or_default().trim();
        if line.is_empty() {
            return Err(format!("{} -t fails without a word ({})", self.path.display(), out.status));
        }
        Err(line.to_owned())
    }

    /// Starts it and waits until the ports accept.
    ///
    /// # Errors
    /// It ended, or did not accept within five seconds.
    pub fn start(&self, conf: &Path, ports: &[u16], log: &Path) -> Result<Process, String> {
        let say = |e: std::io::Error| format!("{}: {e}", self.path.display());
        let err = File::create(log).map_err(say)?;
        let mut command = self.command(conf);
        // ^C is for the tuner.
        command.stdout(Stdio::null()).stderr(err).process_group(0);
        let start = || forebay_sys::child::unblock_signals(&mut command).spawn();
        let child = forebay_sys::affinity::pinned(&self.cpus, start).map_err(say)?.map_err(say)?;
        let mut process = Process { child };
        let until = Instant::now() + Duration::from_secs(5);
        for port in ports {
            while TcpStream::connect(("127.0.0.1", *port)).is_err() {
                if let Ok(Some(status)) = process.child.try_wait() {
                    let text = std::fs::read_to_string(log).unwrap_or_default();
                    return Err(format!(
                        "the server ended ({status}): {}",
                        text.lines().last().unwrap_or_default()
                    ));
                }
                if Instant::now() > until {
                    return Err(format!("the server does not accept at port {port}"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(process)
    }
}

/// What is sent.
#[derive(Clone, Debug)]
pub struct Manner {
    /// Connections.
    pub connections: usize,
    /// Seed.
    pub seed: u64,
    /// HTTP/2.
    pub http2: bool,
    /// Take compressed answers.
    pub gzip: bool,
    /// A new connection for each request.
    pub close: bool,
    /// An access log whose requests replace those of the targets.
    pub access_log: Option<PathBuf>,
    /// Requests a second of an open loop; `None`: as fast as they go.
    pub rate: Option<f64>,
}

/// What a candidate may not exceed, besides failures.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// 99th percentile, ns; `None`: 1.1 times the worst of the original.
    pub p99: Option<u64>,
    /// Resident bytes of the server; `None`: three times those of the original and 256 MB.
    pub memory: Option<u64>,
}

/// The load for targets.
///
/// # Errors
/// Those of forebay-bench.
pub fn load(targets: &[Target], manner: &Manner) -> Result<Load, String> {
    let text = |e: forebay_bench::Error| e.to_string();
    let mut wanted = Vec::new();
    for t in targets {
        let mut w = Wanted::get(Url::parse(&t.url).map_err(text)?);
        w.fields.extend(t.host.clone().map(|h| ("Host".to_owned(), h)));
        wanted.push(w);
    }
    if let (Some(log), Some(base)) = (&manner.access_log, targets.first()) {
        wanted = sources::access_log(log, &Url::parse(&base.url).map_err(text)?).map_err(text)?;
        for w in &mut wanted {
            w.fields.extend(base.host.clone().map(|h| ("Host".to_owned(), h)));
        }
    }
    if manner.close {
        Load::close_each(&mut wanted);
    }
    if manner.gzip {
        for w in &mut wanted {
            w.fields.push(("Accept-Encoding".into(), "gzip".into()));
        }
    }
    let protocol = if manner.http2 { Protocol::Http2 } else { Protocol::Http1 };
    let mut load = Load::new(&wanted, protocol, Order::Mixed, manner.seed).map_err(text)?;
    load.connections = manner.connections;
    load.per_connection = u64::from(manner.close);
    load.timeout = Duration::from_secs(5);
    load.drain = Some(Duration::from_millis(500));
    if manner.access_log.is_some() {
        // A log has its own share of 404.
        load.checks.status = Some((200..500).collect());
    }
    load.rate = manner.rate.map(|r| Rate { from: r, to: r, poisson: true });
    if load.is_encrypted() {
        load.tls = Some(config(&Trust::Anyone, protocol).map_err(text)?);
    }
    Ok(load)
}

/// Loads a server for a time, after a warm-up that does not count.
///
/// # Errors
/// Those of forebay-bench.
pub fn measure(
    load: &Load,
    pid: u32,
    warm: Duration,
    time: Duration,
) -> Result<(Figures, Option<String>), String> {
    let server = Server::of(pid);
    let mut load = load.clone();
    load.cpus = choose_cpus(server.as_ref(), 0);
    let go = |load: &Load, server: Option<Server>| {
        run::run(load, server, |_| !signals::interrupted()).map_err(|e| e.to_string())
    };
    if load.is_encrypted() {
        // The handshakes of a run of its own would count in the next one again.
        load.warmup = warm;
    } else {
        load.stop = Stop::After(warm);
        go(&load, None)?;
    }
    load.stop = Stop::After(time);
    let r = go(&load, server)?;
    let record = &r.outcome.record;
    let (cpu, memory) = r.server.as_ref().map_or((0.0, 0), |s| (s.cpu_per_request / 1e3, s.memory));
    let figures = Figures {
        rate: r.outcome.rate(),
        p50: record.latency.quantile(0.5),
        p99: record.latency.quantile(0.99),
        cpu,
        memory,
        errors: record.errors(),
    };
    Ok((figures, r.outcome.first_error))
}

/// The real rig.
#[derive(Debug)]
pub struct Live<'s> {
    /// The user's configuration.
    pub source: &'s Source,
    /// The copy.
    pub copy: Copy,
    /// What runs it.
    pub program: Program,
    /// What can be set.
    pub active: Vec<Active>,
    /// What is asked for.
    pub targets: Vec<Target>,
    /// How.
    pub manner: Manner,
    /// What is to be better.
    pub goal: Goal,
    /// What else has to hold.
    pub limits: Limits,
    /// For kernel settings.
    pub journal: Option<Journal>,
    /// File with a line a run.
    pub log: PathBuf,
    /// Runs of an earlier process, not asked for yet.
    pub past: VecDeque<Value>,
    /// Runs that are planned.
    pub planned: usize,
    /// When the time is over.
    pub until: Instant,
    /// All of the time, that of earlier processes too.
    pub budget: Duration,
    /// Figures of all runs, by number of the run.
    pub figures: Vec<Option<Figures>>,
    process: Option<(Point, Process)>,
    base: Vec<Figures>,
    overhead: Duration,
    used: f64,
}

impl<'s> Live<'s> {
    /// A rig that has measured nothing.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        source: &'s Source,
        copy: Copy,
        program: Program,
        active: Vec<Active>,
        targets: Vec<Target>,
        manner: Manner,
        goal: Goal,
        log: PathBuf,
        until: Instant,
        planned: usize,
    ) -> Live<'s> {
        Live {
            source,
            copy,
            program,
            active,
            targets,
            manner,
            goal,
            limits: Limits::default(),
            journal: None,
            log,
            past: VecDeque::new(),
            planned,
            until,
            budget: until.saturating_duration_since(Instant::now()),
            figures: Vec::new(),
            process: None,
            base: Vec::new(),
            overhead: Duration::from_millis(250),
            used: 0.0,
        }
    }

    fn edits(&self, point: &Point) -> Vec<Edit> {
        let chosen = self.active.iter().zip(point).filter(|(_, l)| **l > 0);
        chosen.flat_map(|(a, l)| a.levels[usize::from(*l) - 1].1.clone()).collect()
    }

    fn ready(&mut self, point: &Point, fresh: bool) -> Result<u32, String> {
        if let Some((p, process)) = &self.process
            && p == point
            && !fresh
        {
            return Ok(process.id());
        }
        self.process = None;
        if let Some(j) = &self.journal {
            j.restore()?;
            for (a, l) in
                self.active.iter().zip(point).filter(|(a, l)| **l > 0 && a.knob.place == Place::Sysctl)
            {
                let text = a.levels[usize::from(*l) - 1].0.split(';').next().unwrap_or_default().to_owned();
                if let Some((name, value)) = text.split_once(" = ") {
                    j.set(name, value)?;
                }
            }
        }
        let conf = self.copy.write(self.source, &self.edits(point))?;
        self.program.test(&conf)?;
        // Logs of a run are of no use after it.
        if let Ok(entries) = std::fs::read_dir(self.copy.place.dir.join("logs")) {
            for e in entries.flatten() {
                let _ = std::fs::remove_file(e.path());
            }
        }
        let ports: Vec<u16> = self.copy.ports.values().copied().collect();
        let process = self.program.start(&conf, &ports, &self.copy.place.dir.join("stderr"))?;
        let id = process.id();
        let _ = std::fs::write(self.copy.place.dir.join("server.pid"), id.to_string());
        self.process = Some((point.clone(), process));
        Ok(id)
    }

    fn once(&mut self, point: &Point, fresh: bool) -> Result<Figures, String> {
        let runs = self.planned.saturating_sub(self.figures.len());
        self.at(point, fresh, self.manner.rate, runs)
    }

    /// A run at a load (requests a second; `None`: a closed loop), which has its share of what is left of the time for
    /// this many runs.
    fn at(&mut self, point: &Point, fresh: bool, rate: Option<f64>, runs: usize) -> Result<Figures, String> {
        let start = Instant::now();
        let pid = self.ready(point, fresh)?;
        let load = load(&self.targets, &Manner { rate, ..self.manner.clone() })?;
        let left = self.until.saturating_duration_since(start).as_secs_f64();
        let time = (left / runs.max(1) as f64 - self.overhead.as_secs_f64()).clamp(0.25, 10.0);
        let warm = Duration::from_secs_f64((time * 0.2).clamp(0.1, 1.5));
        let time = Duration::from_secs_f64(time * 0.8);
        let (figures, first) = measure(&load, pid, warm, time)?;
        let extra = start.elapsed().saturating_sub(warm + time);
        self.overhead = (self.overhead * 7 + extra) / 8;
        let least = self.base.iter().map(|b| b.errors).max().unwrap_or(figures.errors);
        if figures.errors > least {
            return Err(format!("{} requests failed: {}", figures.errors, first.unwrap_or_default()));
        }
        if figures.rate <= 0.0 || figures.cpu <= 0.0 {
            return Err("no request was answered".into());
        }
        Ok(figures)
    }

    /// Limits that hold besides the score.
    fn broken(&self, f: &Figures) -> Option<String> {
        let text = forebay_bench::duration_text;
        let p99 = self.base.iter().map(|b| b.p99).max()?;
        match self.limits.p99 {
            Some(most) if f.p99 > most => return Some(format!("p99 {}, beyond {}", text(f.p99), text(most))),
            None if f.p99 as f64 > 1.1 * p99 as f64 => {
                return Some(format!("p99 {}, beyond 1.1 x {}", text(f.p99), text(p99)));
            }
            _ => {}
        }
        let memory = self.base.iter().map(|b| b.memory).max()?;
        let most = self.limits.memory.unwrap_or(3 * memory + (256 << 20));
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
        let is_base = point.iter().all(|l| *l == 0);
        let mut why = String::new();
        // A neighbour may have been loud: what breaks a limit gets a second chance.
        for attempt in 0..2 {
            let run = self.once(point, fresh || attempt > 0);
            if signals::interrupted() {
                return (Outcome::Void, None);
            }
            match run {
                Err(e) => {
                    why = e;
                    if self.process.is_none() {
                        break;
                    }
                }
                Ok(f) => {
                    if is_base {
                        if self.base.len() < 64 {
                            self.base.push(f);
                        }
                    } else if let Some(text) = self.broken(&f) {
                        why = text;
                        if attempt == 0 {
                            self.beside();
                        }
                        continue;
                    }
                    let score = match self.goal {
                        Goal::Cpu => -f.cpu.ln(),
                        Goal::Throughput => f.rate.ln(),
                        Goal::Latency => -(f.p99.max(1) as f64).ln(),
                    };
                    return (Outcome::Score(score), Some(f));
                }
            }
        }
        (Outcome::Infeasible(why), None)
    }

    /// A run of the original at the moment at which a candidate broke a limit: while a neighbour is loud, the original
    /// breaks it as well, and the candidate is not to blame.
    fn beside(&mut self) {
        let original = self.original();
        if let Ok(f) = self.once(&original, true)
            && !signals::interrupted()
        {
            self.base.push(f);
            let mut line = json!({"beside": true, "point": original});
            put_figures(&mut line, &f);
            self.write_down(&line);
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

    /// The first run: also tells whether the user's own configuration works.
    ///
    /// # Errors
    /// The server's words.
    pub fn prove(&mut self) -> Result<Figures, String> {
        let f = self.once(&self.original(), true)?;
        works(&f)?;
        if let Some(most) = self.limits.memory
            && f.memory > most
        {
            return Err(format!("{} MB of memory as it is, more than --memory allows", f.memory >> 20));
        }
        Ok(f)
    }

    /// Level 0 of everything: what the user has.
    pub fn original(&self) -> Point {
        vec![0; self.active.len()]
    }

    /// Requests a second of the original in a closed loop: the median of runs on fresh starts; `None` after ^C. A resumed
    /// tuning finds it in the log: a load that differs would be another question.
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
            let f = run?;
            works(&f)?;
            rates.push(f.rate);
        }
        let capacity = median(&mut rates).round();
        self.write_down(&json!({"capacity": capacity}));
        Ok(Some(capacity))
    }

    /// A run of the check at half of the load, on a fresh start; `past`: those of an earlier process. `None` after ^C.
    pub(crate) fn checked(
        &mut self,
        point: &Point,
        rate: f64,
        runs: usize,
        past: &mut VecDeque<Value>,
    ) -> Option<Result<Figures, String>> {
        if let Some(line) = past.pop_front() {
            let same = line["point"] == json!(point) && line["half_load"].as_f64() == Some(rate);
            if let Some(f) = figures(&line).filter(|_| same) {
                return Some(Ok(f));
            }
            past.clear();
        }
        if signals::interrupted() {
            return None;
        }
        // A neighbour may have been loud.
        let mut run = self.at(point, true, Some(rate), runs);
        if run.is_err() && !signals::interrupted() {
            run = self.at(point, true, Some(rate), runs);
        }
        if signals::interrupted() {
            return None;
        }
        if let Ok(f) = &run {
            let mut line = json!({"half_load": rate, "point": point});
            put_figures(&mut line, f);
            self.write_down(&line);
        }
        Some(run)
    }

    fn remember(&self, point: &Point, outcome: &Outcome, f: Option<Figures>) {
        let mut line = json!({"point": point});
        match outcome {
            Outcome::Score(s) => {
                line["score"] = json!(s);
                // Text loses the last bit, and the choices of a search hang on it.
                line["bits"] = json!(s.to_bits());
            }
            Outcome::Infeasible(why) => line["why"] = json!(why),
            Outcome::Void => {}
        }
        line["used"] = json!(self.used);
        if let Some(f) = f {
            put_figures(&mut line, &f);
        }
        self.write_down(&line);
    }

    fn write_down(&self, line: &Value) {
        if let Ok(mut log) = OpenOptions::new().create(true).append(true).open(&self.log) {
            let _ = log.write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// Whether the original can be measured at all.
fn works(f: &Figures) -> Result<(), String> {
    if f.errors > 0 {
        return Err(format!("{} of the requests fail already as it is", f.errors));
    }
    Ok(())
}

fn put_figures(line: &mut Value, f: &Figures) {
    line["rate"] = json!(f.rate);
    line["p50"] = json!(f.p50);
    line["p99"] = json!(f.p99);
    line["cpu"] = json!(f.cpu);
    line["memory"] = json!(f.memory);
    line["errors"] = json!(f.errors);
}

/// Figures of a line of the log.
pub fn figures(line: &Value) -> Option<Figures> {
    Some(Figures {
        rate: line["rate"].as_f64()?,
        p50: line["p50"].as_u64()?,
        p99: line["p99"].as_u64()?,
        cpu: line["cpu"].as_f64()?,
        memory: line["memory"].as_u64()?,
        errors: line["errors"].as_u64()?,
    })
}

impl Rig for Live<'_> {
    fn run(&mut self, point: &Point, fresh: bool) -> Outcome {
        // The search asks in the same order when it is given the same answers.
        while self.past.front().is_some_and(|line| line["beside"] == true) {
            self.base.extend(self.past.pop_front().as_ref().and_then(figures));
        }
        if let Some(line) = self.past.pop_front() {
            if line["point"] == json!(point) {
                self.used = line["used"].as_f64().unwrap_or_default();
                let f = figures(&line);
                self.figures.push(f);
                if let (true, Some(f)) = (point.iter().all(|l| *l == 0), f) {
                    self.base.push(f);
                }
                return match line["bits"].as_u64() {
                    Some(bits) => Outcome::Score(f64::from_bits(bits)),
                    None => Outcome::Infeasible(line["why"].as_str().unwrap_or_default().to_owned()),
                };
            }
            self.past.clear();
        }
        if signals::interrupted() {
            return Outcome::Void;
        }
        let (outcome, f) = self.outcome(point, fresh);
        if outcome != Outcome::Void {
            let left = self.until.saturating_duration_since(Instant::now());
            self.used = 1.0 - left.as_secs_f64() / self.budget.as_secs_f64().max(1e-3);
            self.figures.push(f);
            self.remember(point, &outcome, f);
        }
        outcome
    }

    fn used(&self) -> f64 {
        self.used
    }

    fn over(&self) -> bool {
        self.past.is_empty() && (signals::interrupted() || Instant::now() > self.until)
    }
}
