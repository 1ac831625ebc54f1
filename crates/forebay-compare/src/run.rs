//! One comparison from start to end.

use crate::client::Tls;
use crate::coverage::{self, Coverage};
use crate::differ::Part;
use crate::expect::write;
use crate::known::Knowledge;
use crate::live::{self, Live};
use crate::observe::{self, Finding, Observed};
use crate::pair::{Logs, Pair, Side};
use crate::report::{Group, Report, groups};
use crate::requests::from_conf;
use crate::requests::log::{self, COMBINED, Follower, Format};
use crate::requests::{Ask, Front};
use forebay_bench::signals;
use forebay_copy::patch::{Source, View};
use forebay_copy::scene::Copy;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most requests that are sent again to see whether differences come again.
const MOST_AGAIN: usize = 6000;

/// The question of a comparison.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) sides: [Side; 2],
    /// Names of the programs for people.
    pub(crate) names: [String; 2],
    /// Both have the same files.
    pub(crate) same_files: bool,
    pub(crate) log: Option<PathBuf>,
    pub(crate) most: usize,
    pub(crate) threads: usize,
    /// Servers stay until ^C when all is said.
    pub(crate) hold: bool,
    /// File for tests of what both servers agree on.
    pub(crate) tests: Option<PathBuf>,
    /// Time between two lines of a live comparison.
    pub(crate) every: Option<Duration>,
    pub(crate) knowledge: Knowledge,
}

/// Compares. The servers have ended when it returns.
///
/// # Errors
/// A program does not take its configuration, or the log has another format.
pub(crate) fn compare(question: &Question) -> Result<Report, String> {
    let started = Instant::now();
    let tls = [Tls::new()?, Tls::new()?];
    let dir = temporary()?;
    let mut pair = Pair::start(&question.sides, &dir.path().join("1"), BTreeMap::new(), Logs::Compared)?;
    let asks = asks(question, &pair.sides[0].copy)?;
    if asks.is_empty() {
        return Err(format!("{} has no server that could be asked", question.sides[0].source.path.display()));
    }
    let mut observed = observe::pass(&mut pair, &asks, question.threads, &tls, question.same_files);
    let ports = pair.sides[0].copy.ports.clone();
    drop(pair);
    let elapsed = started.elapsed();
    let repeated = again(question, (&dir.path().join("2"), ports), &asks, &observed, &tls);
    let coverage = coverage::of(&question.sides[0].source, &asks, &observed);
    let mut findings = std::mem::take(&mut observed.findings);
    findings.retain(|f| !is_count(question, &observed, f));
    write_tests(question, dir.path(), &asks, &findings)?;
    let places = |at: usize| place(question, &asks, &observed, at);
    let groups: Vec<Group> = groups(question.knowledge, &asks, findings, &places, &repeated);
    let numbers = Numbers { requests: observed.sent, planned: asks.len(), elapsed };
    Ok(report(question, numbers, coverage, groups))
}

/// Numbers of a comparison.
struct Numbers {
    requests: u64,
    planned: usize,
    elapsed: Duration,
}

fn report(question: &Question, numbers: Numbers, coverage: Coverage, groups: Vec<Group>) -> Report {
    let Numbers { requests, planned, elapsed } = numbers;
    Report {
        names: question.names.clone(),
        configuration: question.sides[0].source.path.display().to_string(),
        with: (!question.same_files).then(|| question.sides[1].source.path.display().to_string()),
        requests,
        planned,
        elapsed,
        coverage,
        groups,
        left_out: left_out(&question.sides[0].source),
        interrupted: signals::interrupted() && planned > 0,
    }
}

/// Compares live traffic until ^C. The mirror sends it to an address, or it is what a log gets.
///
/// # Errors
/// Errors of [`compare`].
pub(crate) fn live(
    question: &Question,
    listen: Option<SocketAddr>,
    all_methods: bool,
) -> Result<Report, String> {
    let started = Instant::now();
    let tls = [Tls::new()?, Tls::new()?];
    let dir = temporary()?;
    let pair = Pair::start(&question.sides, &dir.path().join("1"), BTreeMap::new(), Logs::Off)?;
    let view = question.sides[0].source.view();
    let bases = from_conf::requests(&view, &pair.sides[0].copy, usize::MAX);
    let first = bases.first().ok_or("the configuration has no server that could be asked")?;
    let (front, host) = (first.front, first.host.clone());
    let by_host = bases.iter().rev().filter(|a| !a.front.quic && !a.front.stream);
    let fronts = by_host.filter_map(|a| Some((a.host.clone()?, a.front))).collect();
    let log = question.log.as_ref().map(|path| Follower::new(path, formats(&view))).transpose()?;
    let live = Live {
        listen,
        log,
        all_methods,
        fronts,
        front,
        host,
        every: question.every,
        knowledge: question.knowledge,
    };
    let (groups, requests) =
        live::run(live, &pair, question.threads, &tls).map_err(|e| format!("the address of --live: {e}"))?;
    let coverage = Coverage::default();
    let elapsed = started.elapsed();
    Ok(report(question, Numbers { requests, planned: 0, elapsed }, coverage, groups))
}

/// Writes the tests that are asked for.
fn write_tests(question: &Question, dir: &Path, asks: &[Ask], findings: &[Finding]) -> Result<(), String> {
    let Some(path) = &question.tests else { return Ok(()) };
    // Where a difference is explained, the test has what Forebay does.
    let unknown = |f: &&Finding| {
        asks.get(f.at).is_some_and(|ask| question.knowledge.explained(ask, &f.difference).is_none())
    };
    let differing: HashSet<usize> = findings.iter().filter(unknown).map(|f| f.at).collect();
    let (text, count) = write::tests(&question.sides[1], &dir.join("3"), asks, &differing)?;
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    forebay_terminal::print(format!("{}: {count} tests, for forebay test\n", path.display()));
    Ok(())
}

/// Runs both servers until ^C.
///
/// # Errors
/// Errors of [`compare`].
pub(crate) fn hold(question: &Question) -> Result<(), String> {
    let dir = temporary()?;
    let pair = Pair::start(&question.sides, &dir.path().join("1"), BTreeMap::new(), Logs::Compared)?;
    let ports: BTreeMap<&String, &u16> = pair.sides[0].copy.ports.iter().collect();
    for (address, port) in ports {
        forebay_terminal::print(format!(
            "{address} is 127.0.0.1:{port} in {} and 127.0.0.2:{port} in {}\n",
            question.names[0], question.names[1]
        ));
    }
    forebay_terminal::print("Both run until ^C.\n");
    while !signals::interrupted() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Makes a directory that workers of another user can enter.
pub(crate) fn temporary() -> Result<tempfile::TempDir, String> {
    let dir = tempfile::Builder::new().prefix("forebay-compare-").tempdir().map_err(|e| e.to_string())?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))
        .map_err(|e| e.to_string())?;
    for sub in ["1", "2", "3"] {
        let _ = std::fs::create_dir(dir.path().join(sub));
    }
    Ok(dir)
}

/// Makes the requests, with their numbers.
fn asks(question: &Question, copy: &Copy) -> Result<Vec<Ask>, String> {
    let view = question.sides[0].source.view();
    let logged = match &question.log {
        Some(path) => of_log(path, &view, copy)?,
        None => Vec::new(),
    };
    let mut asks = logged;
    asks.truncate(question.most);
    let rest = question.most - asks.len();
    asks.extend(from_conf::requests(&view, copy, rest));
    for (i, ask) in asks.iter_mut().enumerate() {
        ask.number = u32::try_from(i + 1).unwrap_or(u32::MAX);
    }
    Ok(asks)
}

/// Returns the formats that a log may have.
fn formats(view: &View<'_>) -> Vec<Format> {
    let own = view.all("log_format").map(|n| {
        let args = view.args(n);
        let texts = args.iter().skip(1).filter(|a| !a.starts_with("escape="));
        Format::new(&texts.map(String::as_str).collect::<String>())
    });
    own.chain([Format::new(COMBINED)]).collect()
}

/// Returns the requests of a log, each at the first address of the server that has its host, or of the first server.
fn of_log(path: &Path, view: &View<'_>, copy: &Copy) -> Result<Vec<Ask>, String> {
    let bases = from_conf::requests(view, copy, usize::MAX);
    let first = bases.first().cloned().unwrap_or_default();
    let by_host: HashMap<&str, Front> =
        bases.iter().rev().filter_map(|a| Some((a.host.as_deref()?, a.front))).collect();
    let mut asks = log::requests(path, &formats(view))?;
    for (i, ask) in asks.iter_mut().enumerate() {
        ask.front = ask.host.as_deref().and_then(|h| by_host.get(h).copied()).unwrap_or(first.front);
        ask.host = ask.host.take().or_else(|| first.host.clone());
        ask.lane = i % 16;
    }
    Ok(asks)
}

/// Sends the requests with unknown differences again, with all that came before them in their lanes and one after the other, to
/// servers that have just been started. Returns the differences that came again; `None`: there was no second pass.
fn again(
    question: &Question,
    (dir, ports): (&Path, BTreeMap<String, u16>),
    asks: &[Ask],
    observed: &Observed,
    tls: &[Tls; 2],
) -> Option<BTreeSet<(usize, String)>> {
    let unknown: Vec<&Finding> = observed
        .findings
        .iter()
        .filter(|f| {
            asks.get(f.at).is_some_and(|ask| question.knowledge.explained(ask, &f.difference).is_none())
        })
        .collect();
    if unknown.is_empty() || signals::interrupted() {
        return None;
    }
    let positions = lanes_of(asks, &unknown);
    let part: Vec<Ask> = positions.iter().filter_map(|at| asks.get(*at)).cloned().collect();
    let mut pair = Pair::start(&question.sides, dir, ports, Logs::Compared).ok()?;
    let part: Vec<Ask> = part.into_iter().map(|ask| Ask { lane: 0, ..ask }).collect();
    let second = observe::pass(&mut pair, &part, 1, tls, question.same_files);
    let sent: BTreeSet<usize> = positions.iter().copied().collect();
    let came = second.findings.iter().filter_map(|f| Some((*positions.get(f.at)?, f.difference.part.text())));
    // What was not sent again counts as if it had come again.
    let unsent = unknown.iter().filter(|f| !sent.contains(&f.at)).map(|f| (f.at, f.difference.part.text()));
    Some(came.chain(unsent).collect())
}

/// Returns the positions of requests with differences, and of those before them in their lanes.
fn lanes_of(asks: &[Ask], unknown: &[&Finding]) -> Vec<usize> {
    let mut ends: BTreeMap<usize, usize> = BTreeMap::new();
    for finding in unknown {
        if let Some(ask) = asks.get(finding.at) {
            let end = ends.entry(ask.lane).or_default();
            *end = (*end).max(finding.at);
        }
    }
    let in_lane = |(at, ask): &(usize, &Ask)| ends.get(&ask.lane).is_some_and(|end| at <= end);
    asks.iter().enumerate().filter(in_lane).map(|(at, _)| at).take(MOST_AGAIN).collect()
}

/// Returns the place that a request ended in, or was made for.
fn place(question: &Question, asks: &[Ask], observed: &Observed, at: usize) -> String {
    let source = &question.sides[0].source;
    let view = source.view();
    let last = observed.blocks.get(&at).and_then(|b| b.last().copied());
    let Some(n) = last.or_else(|| asks.get(at).and_then(|a| a.aim)) else { return String::new() };
    let mut words = vec![view.name(n).to_owned()];
    words.extend(view.args(n));
    format!("{} ({})", words.join(" "), coverage::place(source, &view, n))
}

/// Returns `true` for the counts that a server shows of itself.
fn is_count(question: &Question, observed: &Observed, finding: &Finding) -> bool {
    let view = question.sides[0].source.view();
    let last = observed.blocks.get(&finding.at).and_then(|b| b.last().copied());
    let shows = last.is_some_and(|n| view.child(Some(n), "stub_status").is_some());
    let length = Part::Field("content-length".into());
    shows && (finding.difference.part == Part::Body || finding.difference.part == length)
}

/// Returns what the copies leave out.
fn left_out(source: &Source) -> Vec<String> {
    let view = source.view();
    let mut out: Vec<String> = source.unserved_names().map(|n| format!("the {n} block")).collect();
    let limited = ["limit_req", "limit_conn"].iter().any(|n| view.all(n).next().is_some());
    out.extend(limited.then(|| "limit_req and limit_conn (the copies have higher limits)".to_owned()));
    for name in [
        "stub_status",
        "dav_methods",
        "proxy_store",
        "fastcgi_store",
        "uwsgi_store",
        "scgi_store",
        "ssl_stapling",
    ] {
        out.extend(view.all(name).next().map(|_| name.to_owned()));
    }
    out
}
