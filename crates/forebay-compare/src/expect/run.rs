//! Runs the tests of a file against a private copy of their configuration.

use super::file::{Case, File};
use super::judge::{self, Failure, Outcome};
use crate::client::{Client, Tls};
use crate::marks::MARKS;
use crate::pair::{self, Logs, Side};
use crate::recorder::{Recorder, Scripted};
use crate::requests::{Ask, Content, Front, Version, from_conf};
use forebay_bench::ports::free_port;
use forebay_bench::signals;
use forebay_bench::url::{Scheme, Url};
use forebay_copy::patch::{Source, View};
use forebay_copy::record::Digest;
use forebay_copy::scene::Copy;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Result of a test.
#[derive(Debug)]
pub(crate) struct Tested {
    pub(crate) title: String,
    /// Line of the request in its file.
    pub(crate) line: u64,
    pub(crate) took: Duration,
    pub(crate) failures: Vec<Failure>,
    /// Why there is no result.
    pub(crate) error: Option<String>,
}

impl Tested {
    pub(crate) fn passed(&self) -> bool {
        self.failures.is_empty() && self.error.is_none()
    }
}

/// A configuration that tests ran with.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// Absolute path.
    pub(crate) path: PathBuf,
    /// Its files.
    pub(crate) digest: Digest,
}

/// Results of the tests of a file.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) tested: Vec<Tested>,
    pub(crate) configuration: Configuration,
}

/// Program and places of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) program: PathBuf,
    /// Prefix that a file does not name.
    pub(crate) prefix: PathBuf,
    /// Configuration that a file does not name.
    pub(crate) configuration: Option<PathBuf>,
    /// Only tests with this in their names.
    pub(crate) filter: Option<String>,
}

/// Returns the configuration of a file and its prefix.
///
/// # Errors
/// Neither the file nor `-c` names a configuration.
pub(crate) fn places(path: &Path, file: &File, setting: &Setting) -> Result<(PathBuf, PathBuf), String> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let named = file.configuration.as_ref().map(|conf| folder.join(conf));
    let conf = named.or_else(|| setting.configuration.clone());
    let conf = conf.ok_or_else(|| format!("{}: name the configuration in it, or by -c", path.display()))?;
    let conf = std::path::absolute(&conf).map_err(|e| format!("{}: {e}", conf.display()))?;
    let prefix = match &file.prefix {
        Some(prefix) => {
            std::path::absolute(folder.join(prefix)).map_err(|e| format!("{}: {e}", prefix.display()))?
        }
        None => setting.prefix.clone(),
    };
    Ok((conf, prefix))
}

/// Runs the tests of a file.
///
/// # Errors
/// The configuration cannot be served.
pub(crate) fn run(path: &Path, file: &File, setting: &Setting) -> Result<Run, String> {
    let (conf, prefix) = places(path, file, setting)?;
    let source = Source::with_streams(&conf)?;
    let configuration = Configuration { path: source.path.clone(), digest: Digest::of(&source.files) };
    let side = Side { program: setting.program.clone(), prefix, source };
    let wanted =
        |case: &&Case| setting.filter.as_ref().is_none_or(|part| case.title().contains(part.as_str()));
    let cases: Vec<&Case> = file.tests.iter().filter(wanted).collect();
    let dir = crate::run::temporary()?;
    let outcomes = outcomes(&side, dir.path(), &cases)?;
    let tested = cases.iter().zip(outcomes).map(|(case, (outcome, took))| Tested {
        title: case.title().to_owned(),
        line: case.request.referenced.line(),
        took,
        failures: outcome.as_ref().map(|o| judge::failures(case, o)).unwrap_or_default(),
        error: outcome.as_ref().err().cloned(),
    });
    Ok(Run { tested: tested.collect(), configuration })
}

/// Result and time of each request, or the reason for which it could not be sent.
type Outcomes = Vec<(Result<Outcome, String>, Duration)>;

/// Sends the requests one after the other.
///
/// # Errors
/// The program does not take its configuration.
fn outcomes(side: &Side, dir: &Path, cases: &[&Case]) -> Result<Outcomes, String> {
    let port = free_port().map_err(|e| e.to_string())?;
    let mut running =
        pair::start(side, &dir.join("1"), (Ipv4Addr::LOCALHOST, port), BTreeMap::new(), Logs::Compared)?;
    let ways = Ways::of(&side.source.view(), &running.copy);
    let mut client = Client::new(Ipv4Addr::LOCALHOST, Tls::new()?);
    let mut outcomes = Outcomes::with_capacity(cases.len());
    for (n, case) in (1..).zip(cases) {
        if signals::interrupted() {
            break;
        }
        let began = Instant::now();
        let outcome = ways.ask(case, n).map(|ask| send(&mut client, &running.recorder, case, &ask));
        outcomes.push((outcome, began.elapsed()));
    }
    running.end();
    let logs = running.logs();
    for (n, (outcome, _)) in (1..).zip(&mut outcomes) {
        let Ok(outcome) = outcome else { continue };
        // Requests to upstreams that came after the answer, as by `mirror`.
        outcome.received.extend(running.recorder.take(n));
        let own = logs.iter().filter(|(name, _)| *name != MARKS);
        outcome.lines = own.filter_map(|(_, lines)| lines.get(&n)).flatten().cloned().collect();
    }
    Ok(outcomes)
}

fn send(client: &mut Client, recorder: &Recorder, case: &Case, ask: &Ask) -> Outcome {
    if let Some(given) = &case.answer {
        let fields = given.fields.clone().into_iter().collect();
        let body = given.body.clone().into_bytes();
        recorder.script(Some(ask.number), Scripted { status: given.status, fields, body });
    }
    client.send(ask);
    let answer = client.receive(ask);
    Outcome { answer, received: recorder.take(ask.number), lines: Vec::new() }
}

/// Ways to the servers of a copy.
pub(super) struct Ways {
    /// Hosts with the addresses of their servers, in the order of the configuration.
    fronts: Vec<(Option<String>, Front)>,
    /// Ports of the copy, by original port.
    ports: Vec<(u16, u16)>,
}

impl Ways {
    pub(super) fn of(view: &View<'_>, copy: &Copy) -> Ways {
        let asks = from_conf::requests(view, copy, usize::MAX);
        let mut fronts: Vec<(Option<String>, Front)> = Vec::new();
        for ask in asks.into_iter().filter(|ask| !ask.front.stream) {
            if !fronts.iter().any(|(host, front)| *host == ask.host && *front == ask.front) {
                fronts.push((ask.host, ask.front));
            }
        }
        let port = |address: &str| address.rsplit(':').next().and_then(|p| p.parse().ok());
        let ports = copy.ports.iter().filter_map(|(address, own)| Some((port(address)?, *own))).collect();
        Ways { fronts, ports }
    }

    /// Returns the address in this copy of a request that was made for another copy of the same configuration.
    pub(super) fn same(&self, ask: &Ask) -> Option<Front> {
        let is_same = |front: &Front| Front { port: 0, ..*front } == Front { port: 0, ..ask.front };
        self.fronts.iter().find(|(host, front)| *host == ask.host && is_same(front)).map(|(_, front)| *front)
    }

    /// Makes the request of a case.
    ///
    /// # Errors
    /// There is no server for it.
    fn ask(&self, case: &Case, number: u32) -> Result<Ask, String> {
        let (method, target) = case.request.value.split_once(' ').unwrap_or_default();
        let url =
            if target.contains("://") { Some(Url::parse(target).map_err(|e| e.to_string())?) } else { None };
        let host = case.host.clone().or_else(|| url.as_ref().map(|url| url.host.clone()));
        let quic = case.version.as_ref().is_some_and(|version| version.value == "3");
        let (front, host) = match &url {
            Some(url) => (self.at(url, quic)?, host),
            None => self.of_host(host, quic)?,
        };
        Ok(Ask {
            number,
            front,
            version: version(case, front)?,
            method: method.to_owned(),
            target: url.map_or_else(|| target.to_owned(), |url| url.path),
            host,
            fields: case.fields.clone().into_iter().collect(),
            content: case.body.clone().map(|body| Content::Length(body.into_bytes())),
            ..Ask::default()
        })
    }

    /// Returns the address that a URL leads to. `quic`: over QUIC, and not over TCP.
    fn at(&self, url: &Url, quic: bool) -> Result<Front, String> {
        let own = self.ports.iter().find(|(original, _)| *original == url.port).map(|(_, own)| *own);
        let tls = url.scheme == Scheme::Https;
        let fits = |front: &&Front| Some(front.port) == own && front.tls == tls && front.quic == quic;
        let fronts = || self.fronts.iter().map(|(_, front)| front);
        let found = fronts().find(fits).copied();
        found.ok_or_else(|| format!("{url}: nothing in the configuration listens there"))
    }

    /// Returns the first address of the server with a host, or the first of all with its host.
    fn of_host(&self, host: Option<String>, quic: bool) -> Result<(Front, Option<String>), String> {
        let fronts = || self.fronts.iter().filter(|(_, front)| front.quic == quic);
        let named = fronts().find(|(own, _)| host.is_some() && *own == host);
        let none = if quic {
            "no server of the configuration speaks HTTP/3"
        } else {
            "the configuration has no server of http"
        };
        let (own, front) = named.or_else(|| fronts().next()).ok_or(none)?;
        Ok((*front, host.or_else(|| own.clone())))
    }
}

fn version(case: &Case, front: Front) -> Result<Version, String> {
    match case.version.as_ref().map(|v| v.value.as_str()) {
        Some("1.0") => Ok(Version::Http10),
        Some("2") if front.http2 => Ok(Version::Http2),
        Some("2") => Err("the server does not speak HTTP/2".to_owned()),
        Some("3") => Ok(Version::Http3),
        _ => Ok(Version::Http11),
    }
}
