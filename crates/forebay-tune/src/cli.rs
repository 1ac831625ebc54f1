//! `forebay tune`.

use crate::knobs::{KNOBS, Need, Place, Safety, level_text};
use crate::load_point::{self, CAPACITY, Check};
use crate::output::{Result as Outcome, gain};
use crate::patch::{self, Edit, Source, View};
use crate::rig::{self, Active, Goal, Limits, Live, Manner, Program};
use crate::scene::{self, Copy, Target};
use crate::search::{self, Event, Knob, Outcome as Run, Settings};
use crate::sysctl::Journal;
use crate::{apply, replay, service, table, upstream, watch};
use clap::{Args, Parser, Subcommand, ValueEnum};
use forebay_bench::observe::shares;
use forebay_bench::{duration_text, signals, units};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(
    name = "forebay tune",
    about = "Finds out by measuring which settings make a server faster, and proves it",
    args_conflicts_with_subcommands = true
)]
struct Line {
    #[command(subcommand)]
    command: Option<Wish>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand)]
enum Wish {
    /// Measure the steps of published tuning articles on this machine
    Replay(replay::ReplayArgs),
    /// Five loads, nginx and Forebay, each as it is and tuned: the table of docs/performance.md
    Table(table::TableArgs),
    /// Cleans up behind a tuner that was killed
    #[command(hide = true)]
    Watch(watch::WatchArgs),
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// This program
    Forebay,
    /// nginx, in a process of its own
    Nginx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    Auto,
    Static,
    Proxied,
    Tls,
    Mixed,
}

/// A tuning.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// Configuration
    #[arg(short = 'c', value_name = "FILE", default_value = "/etc/nginx/nginx.conf")]
    conf: PathBuf,
    /// Prefix of its relative paths
    #[arg(short = 'p', value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// What is measured
    #[arg(long, value_enum, default_value = "forebay")]
    server: Which,
    /// Executable of the server
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// What is to be better
    #[arg(long = "for", value_enum, default_value = "cpu")]
    goal: Goal,
    /// Limit of p99 that has to hold (default: 1.1 times that of the original)
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    p99: Option<Duration>,
    /// Requests a second that are sent, whatever the server does (default: as fast as they go); with --for latency
    /// p99 counts from the moment a request was due
    #[arg(long, value_name = "N", value_parser = units::count)]
    rate: Option<u64>,
    /// Requests a second as a part of what the original can do at most, which is measured before: 10% to 95%, best 85% to
    /// 90%
    #[arg(long, value_name = "PERCENT", value_parser = load_point::percentage, conflicts_with = "rate")]
    load: Option<u8>,
    /// Most memory of the server (default: three times that of the original, and 256 MB)
    #[arg(long, value_name = "BYTES", value_parser = units::count)]
    memory: Option<u64>,
    /// Time for all runs
    #[arg(long, default_value = "25m", value_parser = units::duration)]
    budget: Duration,
    /// Seed of all choices
    #[arg(long, default_value = "1")]
    seed: u64,
    /// What is asked for: files below the roots, locations with proxy_pass, what is encrypted, or all
    #[arg(long, value_enum, default_value = "auto")]
    workload: Workload,
    /// One file of this size in place of the files below the roots
    #[arg(long, value_name = "BYTES", value_parser = units::count)]
    static_size: Option<u64>,
    /// Access log whose requests are sent
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Time that the stand-in for upstreams takes
    #[arg(long, default_value = "0s", value_parser = units::duration)]
    upstream_latency: Duration,
    /// Bytes that it answers with
    #[arg(long, default_value = "4k", value_parser = units::count)]
    upstream_size: u64,
    /// Load the real upstreams
    #[arg(long)]
    real_upstreams: bool,
    /// Connections
    #[arg(long, default_value = "32", value_parser = units::count)]
    connections: u64,
    /// Speak HTTP/2
    #[arg(long)]
    http2: bool,
    /// Settings to try (default: all that can matter)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Settings not to try
    #[arg(long, value_delimiter = ',')]
    skip: Vec<String>,
    /// Try kernel settings too; they are put back
    #[arg(long)]
    sysctl: bool,
    #[arg(long, hide = true, default_value = "/proc/sys")]
    sysctl_root: PathBuf,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "forebay-tune")]
    out: PathBuf,
    /// Where the lock, the private copy and the journal are
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Go on with the run in --out
    #[arg(long)]
    resume: bool,
    /// Put proven lines into the configuration, test it and reload; the old one is kept
    #[arg(long)]
    apply: bool,
    /// How long the running server is watched after --apply; what answered before has to go on, or the old files are
    /// put back
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    canary: Duration,
    /// Undo --apply
    #[arg(long, conflicts_with = "apply")]
    rollback: bool,
    /// List what can be set, and end
    #[arg(long)]
    list: bool,
}

/// Runs `forebay tune`; the exit code is 0 when there is a result, 1 when there is none, 2 for mistakes in the command
/// line, 130 after ^C.
pub fn main(rest: Vec<OsString>) -> u8 {
    let name = OsString::from("forebay tune");
    let line = match Line::try_parse_from(std::iter::once(name).chain(rest)) {
        Ok(line) => line,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { 2 } else { 0 };
        }
    };
    signals::catch();
    let done = match &line.command {
        Some(Wish::Replay(args)) => replay::main(args),
        Some(Wish::Table(args)) => table::main(args),
        Some(Wish::Watch(args)) => watch::main(args),
        None if line.run.list => {
            list();
            Ok(())
        }
        None if line.run.rollback => apply::rollback(&line.run.out),
        None => tune(&line.run),
    };
    match done {
        Ok(()) if signals::interrupted() => 130,
        Ok(()) => 0,
        Err(text) => {
            eprintln!("forebay tune: {text}");
            1
        }
    }
}

fn list() {
    for k in KNOBS {
        let levels: Vec<String> = k.levels.iter().map(|l| level_text(l, cpus())).collect();
        say!("{:<26} {}", k.name, levels.join(" | "));
        say!("{:<26} is {}", "", k.place.text());
        say!("{:<26} matters for: {}", "", k.need.text());
        if let Safety::Notice(text) = k.safety {
            say!("{:<26} note: {text}", "");
        }
    }
}

/// Directory for lock, copy and journal.
///
/// # Errors
/// It cannot be made.
pub fn state_dir(wanted: Option<&Path>) -> Result<PathBuf, String> {
    let mut places: Vec<PathBuf> = wanted.map(Into::into).into_iter().collect();
    if places.is_empty() {
        places.push("/run/forebay-tune".into());
        let user = rustix::process::geteuid().as_raw();
        places.push(std::env::temp_dir().join(format!("forebay-tune-{user}")));
    }
    let mut last = String::new();
    for p in places {
        match std::fs::create_dir_all(&p).and_then(|()| std::path::absolute(&p)) {
            Ok(p) => {
                use std::os::unix::fs::MetadataExt;
                let mine = std::fs::symlink_metadata(&p)
                    .is_ok_and(|m| m.is_dir() && m.uid() == rustix::process::geteuid().as_raw());
                if mine {
                    return Ok(p);
                }
                last = format!("{} belongs to somebody else", p.display());
            }
            Err(e) => last = format!("{}: {e}", p.display()),
        }
    }
    Err(last)
}

/// Only one tuner runs at a time: two would measure each other. What one that was killed left behind is cleaned up.
///
/// # Errors
/// Another one runs.
pub fn lock(state: &Path) -> Result<File, String> {
    let path = state.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    // Who cleans up behind a tuner that was killed has it for a moment.
    let patience = Instant::now() + Duration::from_secs(1);
    while rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > patience {
            return Err(format!(
                "another tuner runs (lock {}); two would measure each other",
                path.display()
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    clean(state);
    Ok(file)
}

/// Ends the server of a tuner that was killed, and removes its copy.
pub(crate) fn clean(state: &Path) {
    let copy = state.join("copy");
    if let Some(pid) =
        std::fs::read_to_string(copy.join("server.pid")).ok().and_then(|t| t.trim().parse::<i32>().ok())
    {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let needle = copy.join("conf").display().to_string();
        if String::from_utf8_lossy(&line).contains(&needle) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        }
    }
    let _ = std::fs::remove_dir_all(&copy);
}

/// The arguments of a tuning, from words.
///
/// # Errors
/// What clap says.
pub(crate) fn arguments(words: &[String]) -> Result<RunArgs, String> {
    let line = Line::try_parse_from(std::iter::once("forebay tune").chain(words.iter().map(String::as_str)))
        .map_err(|e| e.to_string())?;
    Ok(line.run)
}

/// The executable to measure.
///
/// # Errors
/// There is none.
pub fn program(which: Which, path: Option<&Path>) -> Result<PathBuf, String> {
    match (path, which) {
        (Some(p), _) => std::path::absolute(p).map_err(|e| e.to_string()),
        (None, Which::Forebay) => std::env::current_exe().map_err(|e| e.to_string()),
        (None, Which::Nginx) => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path)
                .chain([PathBuf::from("/usr/sbin")])
                .map(|d| d.join("nginx"))
                .find(|p| p.exists())
                .ok_or_else(|| "there is no nginx; name it with --program".into())
        }
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Settings that are not tried, and why.
type LeftOut = Vec<(&'static str, String)>;

fn active(
    args: &RunArgs,
    view: &View<'_>,
    targets: &[Target],
    journal: &Journal,
) -> Result<(Vec<Active>, LeftOut), String> {
    for name in args.only.iter().chain(&args.skip) {
        if KNOBS.iter().all(|k| k.name != name) {
            return Err(format!("there is no setting \"{name}\"; --list shows all"));
        }
    }
    let gzip = view.any_on("gzip");
    let allowed = |name: &str| view.all(name).last().and_then(|n| view.args(n).first()?.parse::<u64>().ok());
    let mut out = Vec::new();
    let mut not: LeftOut = Vec::new();
    for k in KNOBS {
        let matters = match k.need {
            Need::Nothing => true,
            Need::Cpus => shares().0.len() > 1,
            Need::Files => targets.iter().any(|t| !t.proxied),
            Need::LargeFiles => targets.iter().any(|t| t.size > 256 << 10),
            Need::Gzip => gzip,
            Need::Proxy => targets.iter().any(|t| t.proxied),
            Need::Tls => targets.iter().any(|t| t.url.starts_with("https")),
            Need::Http2 => args.http2,
            // A proxied request takes two, and one worker may get them all.
            Need::ManyConnections => args.connections * 4 > allowed("worker_connections").unwrap_or(512),
        };
        let named = args.only.iter().any(|n| n == k.name);
        let left_out = (!args.only.is_empty() && !named) || args.skip.iter().any(|n| n == k.name);
        let why = match () {
            () if left_out => Some("left out by --only or --skip"),
            () if k.place == Place::Sysctl && !args.sysctl => {
                Some("a setting of the machine, without --sysctl")
            }
            () if !matters => Some("without effect on this load"),
            () => None,
        };
        if let Some(why) = why {
            not.push((k.name, why.to_owned()));
            continue;
        }
        if k.place == Place::Sysctl {
            let text = k.levels.first().copied().unwrap_or_default();
            let (name, value) = text.split(';').next().and_then(|t| t.split_once(" = ")).unwrap_or_default();
            let more = journal.get(name).is_ok_and(|now| lowers(name, &now, value));
            let more = if more { Err("this machine has more already".to_owned()) } else { Ok(()) };
            if let Err(why) = journal.can(name, value).and(more) {
                not.push((k.name, why));
                continue;
            }
        }
        let mut levels: Vec<(String, Vec<Edit>)> = Vec::new();
        for text in k.levels {
            let text = level_text(text, cpus());
            let edits = view.edits(k, &text);
            let same = |t: &str| scene::scaled(t) == scene::scaled(&text);
            // On the server's share of the CPUs it may come to what is there already.
            let mut there =
                view.all(k.name).map(|n| same(&format!("{} {};", k.name, view.args(n).join(" ")))).peekable();
            if there.peek().is_some() && there.all(|same| same) {
                continue;
            }
            let known = levels.iter().any(|(t, e)| same(t) || (!edits.is_empty() && *e == edits));
            if !known && (!edits.is_empty() || k.place == Place::Sysctl) {
                levels.push((text, edits));
            }
        }
        if levels.is_empty() {
            not.push((k.name, "already so, or no place for it".into()));
        } else {
            out.push(Active { knob: k, levels });
        }
    }
    // The design has 23 columns.
    for a in out.drain(out.len().min(23)..) {
        not.push((a.knob.name, "more settings than one tuning can screen; name it with --only".into()));
    }
    Ok((out, not))
}

/// Whether a queue or a buffer of the kernel would become smaller.
fn lowers(name: &str, now: &str, value: &str) -> bool {
    let grows = ["somaxconn", "max_backlog", "rmem", "wmem"].iter().any(|end| name.ends_with(end));
    let most = |text: &str| text.split(' ').filter_map(|n| n.parse::<u64>().ok()).max();
    grows && most(now) > most(value)
}

fn choose(args: &RunArgs, all: Vec<Target>) -> Vec<Target> {
    let mut kept: Vec<Target> = all
        .into_iter()
        .filter(|t| match args.workload {
            Workload::Static => !t.proxied,
            Workload::Proxied => t.proxied,
            Workload::Tls => t.url.starts_with("https"),
            Workload::Auto | Workload::Mixed => true,
        })
        .collect();
    kept.truncate(48);
    kept
}

/// Keeps what answers well as it is; at least one does.
fn probe(
    targets: Vec<Target>,
    manner: &Manner,
    program: &Program,
    conf: &Path,
    copy: &Copy,
) -> Result<Vec<Target>, String> {
    program.test(conf)?;
    let ports: Vec<u16> = copy.ports.values().copied().collect();
    let _process = program.start(conf, &ports, &copy.place.dir.join("stderr"))?;
    let mut kept = Vec::new();
    let mut why = None;
    for t in targets {
        let one = Manner { access_log: None, rate: None, ..manner.clone() };
        let mut load = rig::load(std::slice::from_ref(&t), &one)?;
        load.connections = 1;
        load.stop = forebay_bench::load::Stop::Count(1, Some(Duration::from_secs(3)));
        let r =
            forebay_bench::run::run(&load, None, |_| !signals::interrupted()).map_err(|e| e.to_string())?;
        if r.outcome.record.errors() == 0 && r.outcome.record.ok > 0 {
            kept.push(t);
        } else {
            why = why.or(r.outcome.first_error.map(|e| format!("{}: {e}", t.url)));
        }
    }
    if kept.is_empty() {
        return Err(format!(
            "nothing to ask for: no file below a root and no location with proxy_pass answers; --static-size plants a \
             file{}",
            why.map_or_else(String::new, |w| format!(". The first refusal: {w}"))
        ));
    }
    Ok(kept)
}

fn tune(args: &RunArgs) -> Result<(), String> {
    let state = state_dir(args.state.as_deref())?;
    let _lock = lock(&state)?;
    let _watch = watch::start(&state);
    let done = tune_in(args, &state);
    clean(&state);
    done
}

/// Fixes the load at a part of the capacity, which is measured unless an earlier process did; `None` after ^C.
fn fix_load(live: &mut Live<'_>, percent: u8, known: Option<f64>) -> Result<Option<f64>, String> {
    let measured = known.map_or_else(|| live.capacity(CAPACITY), |c| Ok(Some(c)))?;
    if let Some(capacity) = measured {
        let rate = load_point::share(capacity, percent);
        say!(
            "capacity: {capacity:.0} requests/s; the load is fixed at {percent} % of it: {rate:.0} requests/s"
        );
        live.manner.rate = Some(rate);
    }
    Ok(measured)
}

/// A tuning in a state directory that is locked.
///
/// # Errors
/// Nothing could be measured, or no result be written.
pub(crate) fn tune_in(args: &RunArgs, state: &Path) -> Result<(), String> {
    if args.load.is_some() && args.goal == Goal::Throughput {
        return Err("--load fixes the requests a second, which --for throughput is to raise".into());
    }
    let (journal, restored) = Journal::open(&args.sysctl_root, &state.join("journal"))?;
    if restored > 0 {
        say!("Put back {restored} kernel settings that an earlier run had left.");
    }
    let source = match args.server {
        Which::Forebay => Source::read(&args.conf)?,
        Which::Nginx => Source::of_nginx(&args.conf)?,
    };
    let io = |e: std::io::Error| format!("{}: {e}", args.out.display());
    std::fs::create_dir_all(&args.out).map_err(io)?;
    let out = std::path::absolute(&args.out).map_err(io)?;
    let dir = state.join("copy");
    let upstream = match args.real_upstreams {
        true => None,
        false => Some(upstream::start(args.upstream_latency, args.upstream_size as usize).map_err(io)?),
    };
    let root = args.static_size.map(|_| dir.join("html"));
    if let (Some(root), Some(size)) = (&root, args.static_size) {
        std::fs::create_dir_all(root).map_err(io)?;
        let words = b"the quick brown fox jumps over the lazy dog\n";
        let bytes: Vec<u8> = words.iter().copied().cycle().take(size.min(1 << 30) as usize).collect();
        std::fs::write(root.join("f.html"), bytes).map_err(io)?;
    }
    let prefix = args.prefix.clone().unwrap_or_else(|| "/usr/share/nginx".into());
    let prefix = std::path::absolute(prefix).map_err(io)?;
    let copy = Copy::new(&source, scene::Place { dir: dir.clone(), prefix, upstream, root })?;
    let path = program(args.server, args.program.as_deref())?;
    let program = Program { path, prefix: dir.clone(), cpus: shares().0 };
    let manner = Manner {
        connections: args.connections.min(20_000) as usize,
        seed: args.seed,
        http2: args.http2,
        gzip: source.view().any_on("gzip"),
        close: false,
        access_log: args.access_log.clone(),
        rate: args.rate.map(|r| r as f64),
    };
    let conf = copy.write(&source, &[])?;
    let found = choose(args, copy.targets(&source));
    let targets = probe(found, &manner, &program, &conf, &copy)?;
    let (active, not) = active(args, &source.view(), &targets, &journal)?;
    if active.is_empty() {
        say!("Nothing to try: all that could matter for this load is so already.");
        return Ok(());
    }
    // Short runs are noisy, few runs prove nothing: first a hundred short ones, then longer ones, then more.
    let seconds = args.budget.as_secs_f64();
    let planned = ((seconds / 3.0).min(200.0).max((seconds / 0.6).min(100.0)) as usize).max(72);
    let what = if args.server == Which::Nginx { "nginx" } else { "Forebay" };
    let proxied = targets.iter().filter(|t| t.proxied).count();
    let about = format!(
        "{what} with {}: {} files and {proxied} proxied locations, {} connections, {} CPUs, {} of them for the server",
        source.path.display(),
        targets.len() - proxied,
        manner.connections,
        cpus(),
        program.cpus.len()
    );
    say!("{about}");
    let names: Vec<&str> = active.iter().map(|a| a.knob.name).collect();
    say!("Trying {}: {}", active.len(), names.join(", "));
    for (name, why) in not.iter().filter(|(n, _)| args.sysctl && is_kernel(n)) {
        say!("Not trying {name}: {why}");
    }
    let plan = json!({"conf": source.path, "server": what, "seed": args.seed, "runs": planned, "goal": format!("{:?}", args.goal),
        "rate": args.rate, "load": args.load,
        "knobs": active.iter().map(|a| a.levels.iter().map(|l| l.0.clone()).collect::<Vec<_>>()).collect::<Vec<_>>()});
    let log = out.join("runs.jsonl");
    let past = past(args.resume, &out, &log, &plan)?;
    // The check at the end has a share that the search cannot take; the capacity has that of as many runs.
    let reserve = load_point::reserve(args.budget);
    let searching = args.budget - reserve;
    let measuring = match args.load {
        Some(_) => searching.mul_f64(CAPACITY as f64 / planned as f64),
        None => Duration::ZERO,
    };
    let searching = searching - measuring;
    let gone = past.runs.iter().filter(|l| l["beside"] != true).count();
    let left = searching.mul_f64(planned.saturating_sub(gone) as f64 / planned as f64);
    let mut live = Live::new(
        &source,
        copy,
        program,
        active.clone(),
        targets,
        manner,
        args.goal,
        log,
        Instant::now() + measuring,
        planned,
    );
    live.past = past.runs;
    live.budget = searching;
    live.journal = Some(journal);
    live.limits = Limits { p99: args.p99.map(|t| t.as_nanos() as u64), memory: args.memory };
    let capacity = match args.load {
        Some(percent) => fix_load(&mut live, percent, past.capacity)?,
        None => None,
    };
    if signals::interrupted() {
        return Ok(());
    }
    live.until = Instant::now() + left;
    let first = live.prove()?;
    say!(
        "As it is: {:.0} requests/s, p99 {}, {:.1} us of CPU per request",
        first.rate,
        duration_text(first.p99),
        first.cpu
    );
    let knobs: Vec<Knob> =
        active.iter().map(|a| Knob { name: a.knob.name.into(), levels: a.levels.len() as u8 + 1 }).collect();
    let mut points = Vec::new();
    let mut zero = None;
    let report = search::tune(
        &knobs,
        &mut live,
        &Settings { runs: planned, seed: args.seed, ..Settings::default() },
        &mut |e| match e {
            Event::Phase(name, runs) => say!("-- {name}: up to {runs} runs"),
            Event::Run { number, point, outcome } => {
                let moved: Vec<&str> =
                    active.iter().zip(&point).filter(|(_, l)| **l > 0).map(|(a, _)| a.knob.name).collect();
                let moved = if moved.is_empty() { "as it is".to_owned() } else { moved.join(" ") };
                match outcome {
                    Run::Score(s) => {
                        let zero = *zero.get_or_insert(s);
                        say!("{number:>4}/{planned} {:>8}  {moved}", crate::output::percent(s - zero));
                    }
                    Run::Infeasible(why) => say!("{number:>4}/{planned}  refused  {moved}: {why}"),
                    Run::Void => {}
                }
                points.push(point);
            }
        },
    );
    let goal = match args.goal {
        Goal::Cpu => "requests per CPU second",
        Goal::Throughput => "requests/s",
        Goal::Latency => "1/p99",
    };
    let goal = match live.manner.rate {
        Some(rate) => format!("{goal} at {rate} requests/s"),
        None => goal.to_owned(),
    };
    let figures = std::mem::take(&mut live.figures);
    let mut result = Outcome {
        report: &report,
        active: &active,
        figures: &figures,
        points: &points,
        goal: &goal,
        about,
        not: &not,
        half: None,
    };
    let as_it_is = result.at(&live.original()).map(|f| f.rate);
    let full = capacity.or(live.manner.rate).or(as_it_is);
    if let Some(full) = full.filter(|_| report.proven) {
        let rate = load_point::share(full, 50);
        say!("-- half of the load: {rate:.0} requests/s");
        live.until += reserve;
        result.half = Some(Check::run(&mut live, &report.best, rate, past.half, args.seed));
    }
    live.end();
    say!("{}", result.text());
    let edits = write(&source, &result, &out, live.journal.as_ref())?;
    say!("Results are in {}", out.display());
    let _ = std::fs::remove_dir_all(&dir);
    let worse = result.half.as_ref().and_then(Check::worse);
    if let Some(worse) = worse.filter(|_| args.apply) {
        say!(
            "Not applied: {worse}. Who wants it all the same finds it in {}.",
            out.join("tuned.conf").display()
        );
    } else if args.apply && report.proven && !signals::interrupted() {
        apply::apply(&source, &edits, &out, &live.program.path, args.prefix.as_deref(), args.canary)?;
        if report.lines.iter().any(|l| l.kept && active[l.knob].knob.place == Place::Sysctl) {
            say!("Without the kernel settings: {} is for /etc/sysctl.d.", out.join(KERNEL).display());
        }
        say!("Applied {}; --rollback undoes it.", gain(&report.gain));
    }
    Ok(())
}

/// The file of kernel settings that were kept.
const KERNEL: &str = "90-forebay.conf";

fn is_kernel(name: &str) -> bool {
    KNOBS.iter().any(|k| k.name == name && k.place == Place::Sysctl)
}

/// What earlier processes of a tuning left in its log.
#[derive(Default)]
struct Past {
    /// Requests a second of the original in a closed loop.
    capacity: Option<f64>,
    /// Runs of the search.
    runs: VecDeque<Value>,
    /// Runs of the check at half of the load; a search that goes on has others after them.
    half: VecDeque<Value>,
}

impl Past {
    fn of(lines: impl Iterator<Item = Value>) -> Past {
        let mut past = Past::default();
        for line in lines {
            match (line["capacity"].as_f64(), &line["half_load"]) {
                (Some(capacity), _) => past.capacity = Some(capacity),
                (None, Value::Null) => past.runs.push_back(line),
                _ => past.half.push_back(line),
            }
        }
        past
    }
}

fn past(resume: bool, out: &Path, log: &Path, plan: &Value) -> Result<Past, String> {
    let path = out.join("plan.json");
    if !resume {
        let _ = std::fs::remove_file(log);
        std::fs::write(&path, format!("{plan:#}\n")).map_err(|e| format!("{}: {e}", path.display()))?;
        return Ok(Past::default());
    }
    let old: Value =
        std::fs::read(&path).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    if old != *plan {
        return Err(format!("--resume: {} is of another tuning", path.display()));
    }
    let file = File::open(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    Ok(Past::of(lines.map_while(|l| serde_json::from_str(&l).ok())))
}

/// Writes all results; gives the edits that are proposed.
fn write(
    source: &Source,
    result: &Outcome<'_>,
    out: &Path,
    journal: Option<&Journal>,
) -> Result<Vec<Edit>, String> {
    let mut edits = Vec::new();
    let mut kernel = String::new();
    for l in result.report.lines.iter().filter(|l| l.kept && result.report.proven) {
        let (text, e) = &result.active[l.knob].levels[usize::from(l.level) - 1];
        edits.extend(patch::explained(&source.files, e, &result.reason(l)));
        if result.active[l.knob].knob.place == Place::Sysctl {
            let line = text.split(';').next().unwrap_or_default();
            let name = line.split(" = ").next().unwrap_or_default();
            let old = journal.and_then(|j| j.get(name).ok()).unwrap_or_default();
            kernel.push_str(&format!("# {}; was {old}\n{line}\n", result.reason(l)));
        }
    }
    let put = |name: &str, bytes: &[u8]| {
        let path = out.join(name);
        std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))
    };
    let main = patch::apply(source.files.bytes(source.view().main), source.view().main, &edits);
    put("tuned.conf", &main)?;
    let mut diff = String::new();
    for (path, new) in patch::changed(source, &edits) {
        let old = std::fs::read(&path).unwrap_or_default();
        let (old, new) =
            (String::from_utf8_lossy(&old).into_owned(), String::from_utf8_lossy(&new).into_owned());
        let name = path.display().to_string();
        diff.push_str(
            &similar::TextDiff::from_lines(&old, &new).unified_diff().header(&name, &name).to_string(),
        );
    }
    put("tuned.patch", diff.as_bytes())?;
    put("result.json", format!("{:#}\n", result.json()).as_bytes())?;
    put("report.html", result.html().as_bytes())?;
    put("rejected.md", result.rejected().as_bytes())?;
    if !kernel.is_empty() {
        put(KERNEL, kernel.as_bytes())?;
    }
    let unit = out.join("nginx.service.d");
    std::fs::create_dir_all(&unit).map_err(|e| format!("{}: {e}", unit.display()))?;
    put("nginx.service.d/forebay.conf", service::unit(source, &edits).as_bytes())?;
    Ok(edits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_a_part_of_the_capacity_or_a_rate() {
        let words = |words: &[&str]| {
            arguments(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>()).map(|a| (a.load, a.rate))
        };
        assert_eq!(words(&["--load", "87%"]), Ok((Some(87), None)));
        assert_eq!(words(&[]), Ok((None, None)));
        assert!(words(&["--load", "100%"]).is_err_and(|e| e.contains("from 10% to 95%")));
        assert!(words(&["--load", "87", "--rate", "100"]).is_err_and(|e| e.contains("cannot be used")));
    }

    #[test]
    fn a_log_has_the_capacity_the_search_and_the_check() {
        let (a, b) = (json!({"point": [0], "score": 1.0}), json!({"point": [1], "why": "refused"}));
        let half = json!({"half_load": 50.0, "point": [0], "p99": 7});
        let past = Past::of([json!({"capacity": 100.0}), a.clone(), half.clone(), b.clone()].into_iter());
        assert_eq!((past.capacity, past.runs, past.half), (Some(100.0), [a, b].into(), [half].into()));
    }

    #[test]
    fn what_the_kernel_has_is_not_lowered() {
        let rmem = "net.ipv4.tcp_rmem";
        assert!(lowers(rmem, "4096 131072 67108864", "4096 131072 33554432"));
        assert!(!lowers(rmem, "4096 131072 6291456", "4096 131072 33554432"));
        assert!(lowers("net.core.somaxconn", "65535", "4096"));
        // Less is what these are tried for.
        assert!(!lowers("net.ipv4.tcp_notsent_lowat", "4294967295", "131072"));
        assert!(!lowers("net.ipv4.tcp_tw_reuse", "2", "1"));
    }
}
