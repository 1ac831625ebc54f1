//! `bench compare A B`: two targets in interleaved rounds.

use crate::cli::print;
use crate::load::{Load, Protocol, Stop};
use crate::observe::Server;
use crate::options::LoadArgs;
use crate::stats::{self, Comparison, Verdict};
use crate::{Error, engine, run, sources, units};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Default number of rounds: enough to find 5 % where single rounds vary by 3 %.
pub(crate) const ROUNDS: usize = 20;

/// `bench compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// A URL, or forebay:CONF or nginx:CONF, a server that is started for it
    pub a: String,
    /// The other one
    pub b: String,
    /// Rounds, each with both targets
    #[arg(long, default_value_t = ROUNDS as u64, value_parser = units::count)]
    pub rounds: u64,
    /// Measured time of a turn
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    pub turn: Duration,
    /// Path that is asked for, where a configuration is given; else its static files
    #[arg(long, conflicts_with = "url")]
    pub path: Option<String>,
    /// URL that is loaded, where a configuration is given: tcp://..., udp://... for a stream block
    #[arg(long)]
    pub url: Option<String>,
    /// Program for nginx:CONF
    #[arg(long, default_value = "nginx")]
    pub nginx: PathBuf,
    /// Program for forebay:CONF (default: this one)
    #[arg(long)]
    pub forebay: Option<PathBuf>,
    /// Write the result as JSON to a file, - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// No lines while it runs
    #[arg(short, long)]
    pub quiet: bool,
    #[allow(missing_docs)]
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Figures of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Turn {
    /// Requests a second.
    pub rate: f64,
    /// ns of server CPU per request, where the server is seen.
    pub cpu: Option<f64>,
    /// 99 % of latencies are at most this, ns.
    pub p99: f64,
    /// The client was the limit.
    pub limited: bool,
}

/// Something that can be measured again and again.
pub(crate) trait Target {
    /// Measures for `turn`.
    ///
    /// # Errors
    /// It could not be started, or no figure can be trusted.
    fn measure(&mut self, turn: Duration, warmup: Duration) -> Result<Turn, Error>;
}

/// A running server.
pub(crate) struct Running {
    load: Load,
    server: Option<Server>,
}

impl Running {
    /// Prepares measurements with a load, and of the server's process if that is known.
    pub(crate) fn new(load: Load, server: Option<Server>) -> Running {
        Running { load, server }
    }
}

impl Target for Running {
    fn measure(&mut self, turn: Duration, warmup: Duration) -> Result<Turn, Error> {
        self.load.stop = Stop::After(turn);
        self.load.warmup = warmup;
        let report = run::run(&self.load, self.server.clone(), |_| !crate::signals::interrupted())?;
        if report.is_void() || report.outcome.interrupted {
            let why = report.findings.iter().find(|f| f.void).or(report.findings.first());
            let why = why.map_or("nothing was measured", |f| f.text.as_str());
            return Err(Error::Usage(format!("{}: {why}", report.target)));
        }
        Ok(Turn {
            rate: report.outcome.rate(),
            cpu: report.server.as_ref().map(|s| s.cpu_per_request),
            p99: report.outcome.record.latency.quantile(0.99) as f64,
            limited: report.findings.iter().any(|f| f.client),
        })
    }
}

/// A server that is started for each turn: both may listen on the same port, and what differs from start to
/// start is part of the spread.
pub(crate) struct Configured {
    program: PathBuf,
    conf: PathBuf,
    urls: Vec<String>,
    args: LoadArgs,
}

impl Configured {
    /// Starts a program with a configuration. `path` is requested from its first server, instead of the static files of all.
    ///
    /// # Errors
    /// The configuration cannot be read or has no server.
    pub(crate) fn new(
        program: &Path,
        conf: &Path,
        path: Option<&str>,
        args: &LoadArgs,
    ) -> Result<Configured, Error> {
        let wanted = sources::nginx_conf(conf)?;
        let mut args = args.clone();
        let mut urls = Vec::new();
        match (path, wanted.first()) {
            (Some(path), Some(first)) => {
                let mut url = first.url.clone();
                path.clone_into(&mut url.path);
                urls.push(url.to_string());
                args.headers.extend(first.fields.iter().map(|(n, v)| format!("{n}: {v}")));
            }
            _ => args.nginx_conf = Some(conf.to_owned()),
        }
        Ok(Configured { program: program.to_owned(), conf: conf.to_owned(), urls, args })
    }

    /// Starts a program with a configuration, and loads a URL.
    fn at(program: &Path, conf: &Path, url: &str, args: &LoadArgs) -> Configured {
        let urls = vec![url.to_owned()];
        Configured { program: program.to_owned(), conf: conf.to_owned(), urls, args: args.clone() }
    }
}

/// A server's process that ends with this value.
pub(crate) struct Started(Child, std::fs::File);

impl Started {
    /// Starts `PROGRAM -c CONF` in the foreground.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn new(program: &Path, conf: &Path) -> Result<Started, Error> {
        let conf = std::path::absolute(conf).map_err(Error::io(conf.display()))?;
        let text = std::fs::read_to_string(&conf).map_err(Error::io(conf.display()))?;
        let mut command = Command::new(program);
        command.arg("-c").arg(&conf);
        if let Some(dir) = conf.parent() {
            command.arg("-p").arg(dir);
        }
        if !text.lines().any(|l| l.trim_start().starts_with("daemon ")) {
            command.args(["-g", "daemon off;"]);
        }
        // Its messages go to a file: a pipe without a reader would fill up and block it.
        let said = tempfile::tempfile().map_err(Error::io("a temporary file"))?;
        let copy = said.try_clone().map_err(Error::io("a temporary file"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(copy);
        Ok(Started(
            forebay_sys::child::unblock_signals(&mut command)
                .spawn()
                .map_err(Error::io(program.display()))?,
            said,
        ))
    }

    /// Returns the pid.
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until the server is `ready`.
    ///
    /// # Errors
    /// It ended, or ten seconds went by.
    pub(crate) fn wait(&mut self, ready: impl Fn() -> bool) -> Result<(), Error> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if let Ok(Some(status)) = self.0.try_wait() {
                let mut text = vec![0; 4096];
                let read = std::os::unix::fs::FileExt::read_at(&self.1, &mut text, 0).unwrap_or(0);
                let text = String::from_utf8_lossy(text.get(..read).unwrap_or_default()).trim().to_owned();
                return Err(Error::Usage(format!("the server ended at once, {status}: {text}")));
            }
            if ready() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Error::Usage("the server did not listen within 10 s".into()))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let start = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(5) {
                let _ = self.0.kill();
                let _ = self.0.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns `true` if a server accepts connections there, or receives datagrams on this machine.
pub(crate) fn accepts(address: &crate::url::Address) -> bool {
    match address {
        crate::url::Address::Tcp(addr) => {
            std::net::TcpStream::connect_timeout(addr, Duration::from_millis(200)).is_ok()
        }
        crate::url::Address::Udp(_) => Server::listening(address).is_some(),
        crate::url::Address::Unix(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
    }
}

/// Returns `true` if HTTP/3 is answered. A socket for datagrams is there before anybody reads it, and a first packet that nobody reads
/// would cost the turn a second.
fn answers(load: &Load) -> bool {
    if load.protocol != Protocol::Http3 {
        return true;
    }
    let mut probe = load.clone();
    (probe.connections, probe.rate, probe.warmup) = (1, None, Duration::ZERO);
    probe.stop = Stop::Count(1, Some(Duration::from_millis(300)));
    (probe.timeout, probe.drain) = (Duration::from_millis(300), Some(Duration::ZERO));
    engine::run(&probe, |_| true).is_ok_and(|outcome| outcome.record.complete > 0)
}

impl Target for Configured {
    fn measure(&mut self, turn: Duration, warmup: Duration) -> Result<Turn, Error> {
        let (load, _) = self.args.load(&self.urls)?;
        if load.origins.iter().any(|o| accepts(&o.address)) {
            return Err(Error::Usage(format!(
                "{}: another server listens there already",
                self.conf.display()
            )));
        }
        let mut started = Started::new(&self.program, &self.conf)?;
        started
            .wait(|| load.origins.iter().all(|o| accepts(&o.address)) && answers(&load))
            .map_err(|e| Error::Usage(format!("{}: {e}", self.conf.display())))?;
        // Again, now that it is known where the server runs.
        let mut args = self.args.clone();
        args.server_pid = Some(started.pid());
        let (load, server) = args.load(&self.urls)?;
        Running::new(load, server).measure(turn, warmup.max(Duration::from_millis(300)))
    }
}

/// All turns and the comparisons of their figures.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// Turns of A.
    pub a: Vec<Turn>,
    /// Turns of B.
    pub b: Vec<Turn>,
    /// Requests a second.
    pub rate: Comparison,
    /// Server CPU per request, as speed: above 1, B needs less.
    pub cpu: Option<Comparison>,
    /// 99 % latency, as speed.
    pub p99: Comparison,
}

/// Plan of a comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    /// Rounds, each with both targets.
    pub(crate) rounds: usize,
    /// Measured time of a turn.
    pub(crate) turn: Duration,
    /// Seed of the bootstrap.
    pub(crate) seed: u64,
}

/// Measures both targets in interleaved rounds. `show` gets each round and returns `false` to end.
///
/// # Errors
/// A target that cannot be measured in its first turn, or three times.
pub(crate) fn compare(
    a: &mut dyn Target,
    b: &mut dyn Target,
    course: Course,
    mut show: impl FnMut(usize, &Turn, &Turn) -> bool,
) -> Result<Rounds, Error> {
    let Course { rounds, turn, seed } = course;
    let warmup = (turn / 5).min(Duration::from_millis(500));
    // Caches and connections of the first use belong to neither target's figures.
    a.measure(turn / 4, warmup)?;
    b.measure(turn / 4, warmup)?;
    let (mut all_a, mut all_b) = (Vec::new(), Vec::new());
    let mut lost = 0;
    for (number, order) in stats::order(rounds).into_iter().enumerate() {
        let round = measure_round(a, b, order, turn, warmup);
        if crate::signals::interrupted() {
            break;
        }
        let (x, y) = match round {
            Ok(round) => round,
            Err(e) if lost == 2 => return Err(e),
            Err(_) => {
                lost += 1;
                continue;
            }
        };
        all_a.push(x);
        all_b.push(y);
        if !show(number, &x, &y) {
            break;
        }
    }
    Ok(Rounds::of(all_a, all_b, seed))
}

/// Measures both targets once; with an error, if only one of them could be measured.
fn measure_round(
    a: &mut dyn Target,
    b: &mut dyn Target,
    order: [bool; 2],
    turn: Duration,
    warmup: Duration,
) -> Result<(Turn, Turn), Error> {
    // The second target has its turn also if the first one failed.
    let [b_first, _] = order;
    if b_first {
        let y = b.measure(turn, warmup);
        let x = a.measure(turn, warmup);
        // The later error is reported.
        Ok((x?, y?))
    } else {
        let x = a.measure(turn, warmup);
        let y = b.measure(turn, warmup)?;
        Ok((x?, y))
    }
}

impl Rounds {
    fn of(a: Vec<Turn>, b: Vec<Turn>, seed: u64) -> Rounds {
        let values = |all: &[Turn], f: &dyn Fn(&Turn) -> f64| all.iter().map(f).collect::<Vec<f64>>();
        let by = |f: &dyn Fn(&Turn) -> f64| {
            let (x, y) = (values(&a, f), values(&b, f));
            stats::gate(stats::compare(&x, &y, seed), &x, seed)
        };
        let seen = a.iter().chain(&b).all(|t| t.cpu.is_some());
        Rounds {
            rate: by(&|t| t.rate),
            cpu: seen.then(|| by(&|t| 1.0 / t.cpu.unwrap_or(1.0).max(1.0))),
            p99: by(&|t| 1.0 / t.p99.max(1.0)),
            a,
            b,
        }
    }
}

fn target(text: &str, args: &CompareArgs) -> Result<Box<dyn Target>, Error> {
    let Some((program, conf)) = program(text, args)? else {
        let (load, server) = args.load.load(&[text.to_owned()])?;
        return Ok(Box::new(Running::new(load, server)));
    };
    let conf = Path::new(conf);
    Ok(Box::new(match &args.url {
        Some(url) => Configured::at(&program, conf, url, &args.load),
        None => Configured::new(&program, conf, args.path.as_deref(), &args.load)?,
    }))
}

/// Returns the program and the configuration of a target, unless that is a URL.
fn program<'a>(text: &'a str, args: &CompareArgs) -> Result<Option<(PathBuf, &'a str)>, Error> {
    Ok(match text.split_once(':') {
        Some(("nginx", conf)) => Some((args.nginx.clone(), conf)),
        Some(("forebay", conf)) => {
            let own = || std::env::current_exe().map_err(Error::io("this program"));
            Some((args.forebay.clone().map_or_else(own, Ok)?, conf))
        }
        _ => None,
    })
}

/// Runs the subcommand; the exit code is 0 whatever the verdict.
///
/// # Errors
/// Nothing could be compared.
pub(crate) fn main(args: &CompareArgs) -> Result<u8, Error> {
    let mut a = target(&args.a, args)?;
    let mut b = target(&args.b, args)?;
    let rounds = usize::try_from(args.rounds).unwrap_or(ROUNDS).min(100_000);
    let course = Course { rounds, turn: args.turn, seed: args.load.seed };
    let result = compare(&mut *a, &mut *b, course, |n, x, y| {
        if !args.quiet {
            eprintln!(
                "round {:>3}/{rounds}   A {:>10.0}/s   B {:>10.0}/s   B/A {:.3}",
                n + 1,
                x.rate,
                y.rate,
                y.rate / x.rate.max(1e-9)
            );
        }
        true
    })?;
    if result.a.is_empty() {
        return Err(Error::Usage("no round was measured".into()));
    }
    write(args, &result)?;
    Ok(0)
}

/// Writes the result as text, as JSON, or both.
fn write(args: &CompareArgs, result: &Rounds) -> Result<(), Error> {
    let text = render(&args.a, &args.b, result);
    match &args.json {
        Some(file) => {
            let json = to_json(&args.a, &args.b, result);
            crate::cli::write_out(file, &format!("{json:#}\n"))?;
            if file.as_os_str() != "-" {
                print(&text);
            }
        }
        None => print(&text),
    }
    Ok(())
}

fn rows(result: &Rounds) -> Vec<(&'static str, f64, f64, Comparison)> {
    let med = |all: &[Turn], f: &dyn Fn(&Turn) -> f64| stats::median(&all.iter().map(f).collect::<Vec<_>>());
    let row = |name, f: &dyn Fn(&Turn) -> f64, c: Comparison| (name, med(&result.a, f), med(&result.b, f), c);
    let mut rows = vec![row("requests/s", &|t| t.rate, result.rate)];
    if let Some(cpu) = result.cpu {
        rows.push(row("server CPU us/request", &|t| t.cpu.unwrap_or(0.0) / 1e3, cpu));
    }
    rows.push(row("p99 latency us", &|t| t.p99 / 1e3, result.p99));
    rows
}

/// Compares A with itself, in successive rounds, which shows the effect of chance alone.
fn itself(all: &[Turn]) -> Comparison {
    let (x, y): (Vec<f64>, Vec<f64>) = all.chunks_exact(2).map(|p| (p[0].rate, p[1].rate)).unzip();
    stats::compare(&x, &y, 1)
}

/// Formats the result for people.
pub(crate) fn render(a: &str, b: &str, result: &Rounds) -> String {
    let mut out = format!("A  {a}\nB  {b}\n{} rounds, ABBA\n\n", result.a.len());
    out.push_str(&format!(
        "{:<22} {:>11} {:>11}   {:<24} B is\n",
        "median", "A", "B", "speed B/A, 95 % interval"
    ));
    for (name, x, y, c) in rows(result) {
        let interval = format!("{:.3}  {:.3} to {:.3}", c.ratio, c.low, c.high);
        out.push_str(&format!("{name:<22} {x:>11.2} {y:>11.2}   {interval:<24} {}\n", c.verdict.as_str()));
    }
    let rates: Vec<f64> = result.a.iter().map(|t| t.rate).collect();
    out.push_str(&format!(
        "\nspread of A's requests/s from round to round: {:.1} %\n",
        stats::spread(&rates) * 100.0
    ));
    let same = itself(&result.a);
    if same.high.is_finite() {
        out.push_str(&format!(
            "A against itself, round by round: {:.3}  {:.3} to {:.3}\n",
            same.ratio, same.low, same.high
        ));
    }
    if same.verdict != Verdict::NoDifference {
        out.push_str(
            "note: A differs from itself, so something changed on this machine meanwhile: measure again\n",
        );
    }
    let limited = result.a.iter().chain(&result.b).filter(|t| t.limited).count();
    if limited * 2 > result.a.len() {
        out.push_str(
            "note: the client was the limit in most turns; of the rows, server CPU is the one to go by\n",
        );
    }
    if result.rate.verdict == Verdict::NoDifference {
        let width = (result.rate.high.min(9.99) - 1.0).max(1.0 - result.rate.low) * 100.0;
        out.push_str(&format!("no difference shown: one of up to {width:.1} % cannot be ruled out\n"));
    }
    out
}

fn to_json(a: &str, b: &str, result: &Rounds) -> Value {
    let turns = |all: &[Turn]| {
        all.iter()
            .map(|t| json!({"rate": t.rate, "server_cpu_us": t.cpu.map(|c| c / 1e3), "p99_us": t.p99 / 1e3, "client_limited": t.limited}))
            .collect::<Vec<_>>()
    };
    let rows: Vec<Value> = rows(result)
        .into_iter()
        .map(|(name, x, y, c)| json!({"name": name, "a": x, "b": y, "ratio": c.ratio, "low": c.low, "high": c.high, "verdict": c.verdict.as_str()}))
        .collect();
    json!({"schema": crate::output::json::SCHEMA, "a": a, "b": b, "rounds": result.a.len(), "results": rows,
           "turns": {"a": turns(&result.a), "b": turns(&result.b)}})
}
