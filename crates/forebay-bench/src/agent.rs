//! Several machines load one target: `bench agent` waits for work, `bench --agents` hands it out and merges
//! the results.
//!
//! Both sides prove that they know the secret (HMAC-SHA256 over fresh random numbers), and each job and
//! result carries a MAC of its own. Messages are not encrypted: they hold URLs, fields and figures.

use crate::Error;
use crate::cli::print;
use crate::engine::Outcome;
use crate::histogram::{Coarse, Histogram};
use crate::load::{Load, Stop};
use crate::options::{Arrival, LoadArgs};
use crate::raw::RawArgs;
use crate::record::{Record, ThreadUse};
use crate::run::{self, Point, Progress, Report};
use crate::url::Address;
use crate::verdict::{self, Finding};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, Parser};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longest message of a peer.
const MESSAGE: usize = 64 << 20;
/// Longest message of a peer that has not proved anything yet.
const GREETING: usize = 1024;
/// Shortest secret.
const SECRET: usize = 16;
/// Longest time that a peer may take for a message that is due at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval between the reports of an agent's progress.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// `bench agent`.
#[derive(Args, Debug)]
pub(crate) struct AgentArgs {
    /// Address and port to wait at
    #[arg(long, default_value = "127.0.0.1:7700")]
    pub listen: String,
    /// File with the shared secret, 16 bytes or more
    #[arg(long, value_name = "FILE")]
    pub secret_file: PathBuf,
    /// Hosts that may be loaded
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
    pub allow: Vec<String>,
    /// Longest run that is accepted
    #[arg(long, default_value = "1h", value_parser = crate::units::duration)]
    pub longest: Duration,
    /// End after one run
    #[arg(long)]
    pub once: bool,
}

/// A job is a command line without files.
#[derive(Parser)]
struct Job {
    urls: Vec<String>,
    #[command(flatten)]
    load: LoadArgs,
}

fn secret(file: &Path) -> Result<hmac::Key, Error> {
    let bytes = std::fs::read(file).map_err(Error::io(file.display()))?;
    let text = bytes.trim_ascii();
    if text.len() < SECRET {
        return Err(Error::Usage(format!("{}: the secret needs {SECRET} bytes or more", file.display())));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, text))
}

fn nonce() -> Result<String, Error> {
    let mut bytes = [0u8; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::Usage("no random numbers".into()))?;
    Ok(BASE64.encode(bytes))
}

/// A connection between leader and agent.
struct Peer {
    stream: TcpStream,
    key: hmac::Key,
    name: String,
    /// Both nonces, in the order leader, agent: ties every MAC to this conversation.
    session: String,
}

impl Peer {
    /// Prepares a connection to a leader.
    fn new(stream: TcpStream, name: String, key: &hmac::Key) -> Result<Peer, Error> {
        stream.set_read_timeout(Some(PATIENCE)).map_err(Error::io(&name))?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(Error::io(&name))?;
        Ok(Peer { stream, key: key.clone(), name, session: String::new() })
    }

    /// Has a leader prove that it knows the secret, and proves it in turn.
    fn admit(&mut self) -> Result<(), Error> {
        let own = nonce()?;
        self.write(&json!({"forebay": "bench agent", "version": 1, "nonce": own}))?;
        let hello = self.read(GREETING)?;
        self.session = format!("{}\n{own}", hello["nonce"].as_str().unwrap_or_default());
        self.check("leader", "", &hello["mac"])?;
        let proof = self.mac("agent", "");
        self.write(&json!({"mac": proof}))
    }

    fn lost(&self) -> impl FnOnce(std::io::Error) -> Error {
        Error::io(format!("agent connection {}", self.name))
    }

    fn write(&mut self, value: &Value) -> Result<(), Error> {
        let text = value.to_string();
        let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        self.stream.write_all(&bytes).map_err(self.lost())
    }

    fn read(&mut self, most: usize) -> Result<Value, Error> {
        let mut length = [0u8; 4];
        self.stream.read_exact(&mut length).map_err(self.lost())?;
        let length = u32::from_be_bytes(length) as usize;
        if length > most {
            return Err(Error::Usage(format!("{}: a message of {length} bytes is too long", self.name)));
        }
        let mut text = vec![0; length];
        self.stream.read_exact(&mut text).map_err(self.lost())?;
        serde_json::from_slice(&text)
            .map_err(|_| Error::Usage(format!("{}: no message of an agent", self.name)))
    }

    fn mac(&self, role: &str, text: &str) -> String {
        BASE64.encode(hmac::sign(&self.key, format!("{role}\n{}\n{text}", self.session).as_bytes()))
    }

    fn check(&self, role: &str, text: &str, mac: &Value) -> Result<(), Error> {
        let tag = mac.as_str().and_then(|m| BASE64.decode(m).ok()).unwrap_or_default();
        let data = format!("{role}\n{}\n{text}", self.session);
        hmac::verify(&self.key, data.as_bytes(), &tag)
            .map_err(|_| Error::Usage(format!("{}: the secret is another one", self.name)))
    }

    fn send(&mut self, role: &str, content: &Value) -> Result<(), Error> {
        let text = content.to_string();
        let mac = self.mac(role, &text);
        self.write(&json!({"text": text, "mac": mac}))
    }

    fn receive(&mut self, role: &str) -> Result<Value, Error> {
        let value = self.read(MESSAGE)?;
        let text = value["text"].as_str().unwrap_or_default();
        self.check(role, text, &value["mac"])?;
        serde_json::from_str(text).map_err(|_| Error::Usage(format!("{}: no message of an agent", self.name)))
    }
}

/// Rules of an agent for jobs.
struct Policy {
    /// Hosts that may be loaded.
    allowed: BTreeSet<IpAddr>,
    /// Longest run.
    longest: Duration,
}

impl Policy {
    fn of(args: &AgentArgs) -> Result<Policy, Error> {
        let mut allowed = BTreeSet::new();
        for host in &args.allow {
            let found = (host.as_str(), 0).to_socket_addrs().map_err(|e| Error::Resolve(host.clone(), e))?;
            allowed.extend(found.map(|a| a.ip()));
        }
        Ok(Policy { allowed, longest: args.longest })
    }

    /// Returns the load of a job.
    ///
    /// # Errors
    /// The job is not understood or not allowed.
    fn accept(&self, job: &Value) -> Result<Load, Error> {
        let Job { load: args, urls } = arguments(job)?;
        let (mut load, _) = args.load(&urls)?;
        self.check_hosts(&load)?;
        self.limit(&mut load)?;
        Ok(load)
    }

    fn check_hosts(&self, load: &Load) -> Result<(), Error> {
        let is_allowed = |address: &Address| match address {
            Address::Tcp(addr) | Address::Udp(addr) => self.allowed.contains(&addr.ip()),
            Address::Unix(_) => false,
        };
        match load.origins.iter().find(|o| !is_allowed(&o.address)) {
            Some(origin) => {
                Err(Error::Usage(format!("{} was not allowed when the agent was started", origin.name)))
            }
            None => Ok(()),
        }
    }

    /// Limits the time of a run.
    fn limit(&self, load: &mut Load) -> Result<(), Error> {
        match load.stop {
            Stop::After(time) if time + load.warmup > self.longest => {
                Err(Error::Usage(format!("a run may take {} s at most", self.longest.as_secs())))
            }
            Stop::After(_) => Ok(()),
            Stop::Count(n, _) => {
                load.stop = Stop::Count(n, Some(self.longest));
                Ok(())
            }
        }
    }
}

/// Returns the options of a job.
///
/// # Errors
/// They are not understood, or name files of this machine.
fn arguments(job: &Value) -> Result<Job, Error> {
    let words = job["args"].as_array().map(Vec::as_slice).unwrap_or_default();
    let words = words.iter().filter_map(Value::as_str).map(str::to_owned);
    let mut job_args = Job::try_parse_from(std::iter::once("job".to_owned()).chain(words))
        .map_err(|e| Error::Usage(e.to_string()))?;
    let args = &mut job_args.load;
    if args.files() || args.body.is_some() || args.raw.names_file() {
        return Err(Error::Usage("a job may not name files of the agent".into()));
    }
    let body = job["body"].as_str().map(|text| BASE64.decode(text)).transpose();
    args.content = body.map_err(|_| Error::Usage("the body is not base64".into()))?;
    // Only the list of allowed hosts decides here.
    args.i_own_this_target = true;
    args.many_hosts = true;
    Ok(job_args)
}

/// Listens for leaders.
fn listen(args: &AgentArgs) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(&args.listen).map_err(Error::io(&args.listen))?;
    let addr = listener.local_addr().map_err(Error::io(&args.listen))?;
    print(format!("agent at {addr}, loads {}\n", args.allow.join(", ")));
    listener.set_nonblocking(true).map_err(Error::io(&args.listen))?;
    Ok(listener)
}

fn log_served(peer: std::net::SocketAddr, served: &Result<(), Error>) {
    match served {
        Ok(()) => eprintln!("{peer}: done"),
        Err(e) => eprintln!("{peer}: {e}"),
    }
}

/// Runs `bench agent`.
///
/// # Errors
/// It cannot listen, or a host that is allowed has no address.
pub(crate) fn main(args: &AgentArgs) -> Result<u8, Error> {
    let key = secret(&args.secret_file)?;
    let policy = Policy::of(args)?;
    let listener = listen(args)?;
    while !crate::signals::interrupted() {
        let Ok((stream, peer)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let served = serve(stream, peer.to_string(), &key, &policy);
        log_served(peer, &served);
        if served.is_ok() && args.once {
            break;
        }
    }
    Ok(0)
}

/// Serves a leader: greets it, takes its job, and runs that.
fn serve(stream: TcpStream, name: String, key: &hmac::Key, policy: &Policy) -> Result<(), Error> {
    stream.set_nonblocking(false).map_err(Error::io(&name))?;
    let mut peer = Peer::new(stream, name, key)?;
    peer.admit()?;
    let load = take_job(&mut peer, policy)?;
    // The leader waits for the slowest agent here.
    peer.stream.set_read_timeout(Some(PATIENCE * 6)).map_err(peer.lost())?;
    peer.receive("go")?;
    run_job(&mut peer, &load)
}

/// Takes the job of a leader, and answers whether it is accepted.
fn take_job(peer: &mut Peer, policy: &Policy) -> Result<Load, Error> {
    let job = peer.receive("job")?;
    match policy.accept(&job) {
        Ok(load) => peer.send("answer", &json!({"ready": true})).map(|()| load),
        Err(e) => {
            peer.send("answer", &json!({"refused": e.to_string()}))?;
            Err(e)
        }
    }
}

/// Runs a job, and sends its progress and result.
fn run_job(peer: &mut Peer, load: &Load) -> Result<(), Error> {
    let watch = peer.stream.try_clone().map_err(peer.lost())?;
    let mut next = 0.0;
    let report = run::run(load, None, |p| {
        if p.elapsed >= next {
            next = p.elapsed + REPORT_EVERY.as_secs_f64();
            // A leader that has gone away is noticed below.
            let _ = peer.send("result", &json!({"progress": progress(p)}));
        }
        is_quiet(&watch) && !crate::signals::interrupted()
    });
    match report {
        Ok(report) => peer.send("result", &to_json(&report)),
        Err(e) => peer.send("result", &json!({"refused": e.to_string()})),
    }
}

/// Returns `true` if the leader has sent nothing. Bytes or the end mean that it wants no more.
fn is_quiet(stream: &TcpStream) -> bool {
    use rustix::net::{RecvFlags, recv};
    let mut byte = [0u8; 1];
    matches!(
        recv(stream, byte.as_mut_slice(), RecvFlags::PEEK | RecvFlags::DONTWAIT),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
    )
}

/// Returns the progress that an agent reports.
fn progress(p: &Progress<'_>) -> Value {
    // The last tenth of a second may be noise; the last report is half a second old.
    let recent: Vec<&Point> = p.points.iter().rev().take(5).collect();
    let mean =
        |f: &dyn Fn(&Point) -> f64| recent.iter().map(|x| f(x)).sum::<f64>() / recent.len().max(1) as f64;
    let last = p.points.last();
    json!({
        "elapsed": p.elapsed, "complete": p.complete, "errors": p.errors, "latency": p.latency.to_text(),
        "warmup": last.is_none_or(|x| x.warmup), "rate": mean(&|x| x.rate), "bytes": mean(&|x| x.bytes),
        "client_cpu": mean(&|x| x.client_cpu), "p50": last.map_or(0, |x| x.p50), "p99": last.map_or(0, |x| x.p99),
    })
}

/// The last reports of all agents, put together.
#[derive(Default)]
struct Together {
    last: Vec<Value>,
    points: Vec<Point>,
    latency: Coarse,
    complete: u64,
    errors: u64,
}

impl Together {
    fn take(&mut self, index: usize, report: Value) {
        if let Some(slot) = self.last.get_mut(index) {
            *slot = report;
        }
        let sum = |name: &str| self.last.iter().filter_map(|v| v[name].as_f64()).sum::<f64>();
        let most = |name: &str| self.last.iter().filter_map(|v| v[name].as_u64()).max().unwrap_or(0);
        self.complete = sum("complete") as u64;
        self.errors = sum("errors") as u64;
        self.latency = Coarse::default();
        for text in self.last.iter().filter_map(|v| v["latency"].as_str()) {
            if let Some(one) = Coarse::from_text(text) {
                self.latency.merge(&one);
            }
        }
        // Figures of quantiles do not add up: the worst agent's is shown.
        self.points.push(Point {
            at: self.last.iter().filter_map(|v| v["elapsed"].as_f64()).fold(0.0, f64::max),
            span: REPORT_EVERY.as_secs_f64() / self.last.len().max(1) as f64,
            warmup: self.last.iter().any(|v| v["warmup"] == true),
            rate: sum("rate"),
            errors: 0.0,
            p50: most("p50"),
            p99: most("p99"),
            bytes: sum("bytes"),
            client_cpu: sum("client_cpu"),
            server_cpu: None,
        });
    }
}

/// Waits for the results of all agents, and shows their progress meanwhile. When `show` returns `false` the agents are
/// asked to stop, and send what they have measured.
fn gather(
    peers: Vec<Peer>,
    load: &Load,
    wait: Option<Duration>,
    show: impl FnMut(&Progress<'_>) -> bool,
) -> Result<(Vec<Value>, Together), Error> {
    let stops = stop_streams(&peers, wait)?;
    let mut gathering = Gathering {
        together: Together { last: vec![Value::Null; peers.len()], ..Together::default() },
        results: vec![None; peers.len()],
        lost: None,
        stops,
    };
    let (sender, messages) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for (index, mut peer) in peers.into_iter().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                loop {
                    let message = peer.receive("result");
                    let more = matches!(&message, Ok(m) if !m["progress"].is_null());
                    if sender.send((index, message)).is_err() || !more {
                        return;
                    }
                }
            });
        }
        drop(sender);
        gathering.receive(&messages, load, show);
    });
    if let Some(e) = gathering.lost {
        return Err(e);
    }
    Ok((gathering.results.into_iter().flatten().collect(), gathering.together))
}

/// Returns streams on which agents are asked to stop; a read from an agent takes `wait` at most.
fn stop_streams(peers: &[Peer], wait: Option<Duration>) -> Result<Vec<TcpStream>, Error> {
    let mut stops = Vec::new();
    for peer in peers {
        peer.stream.set_read_timeout(wait).map_err(peer.lost())?;
        stops.push(peer.stream.try_clone().map_err(peer.lost())?);
    }
    Ok(stops)
}

/// Messages of agents that are under way.
struct Gathering {
    together: Together,
    results: Vec<Option<Value>>,
    /// The first agent that was lost.
    lost: Option<Error>,
    /// Connections on which agents are asked to stop.
    stops: Vec<TcpStream>,
}

impl Gathering {
    fn receive(
        &mut self,
        messages: &Receiver<(usize, Result<Value, Error>)>,
        load: &Load,
        mut show: impl FnMut(&Progress<'_>) -> bool,
    ) {
        let start = Instant::now();
        let (total, count) = (load.seconds(), load.count());
        loop {
            match messages.recv_timeout(Duration::from_millis(100)) {
                Ok((index, message)) => self.take(index, message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let Together { points, complete, errors, latency, .. } = &self.together;
            let elapsed = start.elapsed().as_secs_f64();
            let go_on = show(&Progress {
                points,
                elapsed,
                total,
                count,
                complete: *complete,
                errors: *errors,
                latency,
            });
            // The others are of no use without the one that was lost.
            if !go_on || self.lost.is_some() {
                self.stop();
            }
        }
    }

    fn take(&mut self, index: usize, message: Result<Value, Error>) {
        match message {
            Ok(mut message) if !message["progress"].is_null() => {
                self.together.take(index, message["progress"].take());
            }
            Ok(message) => {
                if let Some(slot) = self.results.get_mut(index) {
                    *slot = Some(message);
                }
            }
            Err(e) => {
                self.lost.get_or_insert(e);
            }
        }
    }

    /// Asks all agents to stop, once.
    fn stop(&mut self) {
        for mut stream in self.stops.drain(..) {
            let _ = stream.write_all(b"stop");
        }
    }
}

/// Hands a load out to agents and returns the sum.
///
/// # Errors
/// An agent cannot be reached, refuses, or is lost.
pub(crate) fn lead(
    agents: &[String],
    file: Option<&Path>,
    args: &LoadArgs,
    urls: &[String],
    show: impl FnMut(&Progress<'_>) -> bool,
) -> Result<Report, Error> {
    let file = file.ok_or_else(|| Error::Usage("--agents needs --secret-file".into()));
    let key = file.and_then(secret)?;
    // Mistakes are reported before any agent is asked.
    let (load, _) = check_shares(args, agents.len() as u64).and_then(|()| args.load(urls))?;
    let peers = start(agents, &key, args, urls)?;
    let longest = args.duration + load.warmup + args.timeout * 2 + PATIENCE * 6;
    let wait = args.requests.is_none().then_some(longest);
    let (results, together) = gather(peers, &load, wait, show)?;
    let (outcome, findings) = sum(agents, &results)?;
    let mut report = Report {
        target: load.origins.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(" "),
        manner: format!("{} agents: {}", agents.len(), agents.join(", ")),
        protocol: load.protocol,
        connections: load.connections,
        rate: load.rate,
        outcome,
        points: together.points,
        server: None,
        machine: (0.0, 0.0),
        findings: Vec::new(),
    };
    report.findings = verdict::judge(&report);
    // Threads of different agents cannot be judged together.
    report.findings.retain(|f| !f.client);
    report.findings.extend(findings);
    Ok(report)
}

/// Checks that a load can be shared among agents.
fn check_shares(args: &LoadArgs, agents: u64) -> Result<(), Error> {
    if args.files() {
        return Err(Error::Usage(
            "--urls, --access-log, --nginx-conf and --ca are not handed to agents".into(),
        ));
    }
    if args.find_limit.is_some() {
        return Err(Error::Usage("--find-limit is not for agents".into()));
    }
    if args.connections < agents || args.requests.is_some_and(|n| n < agents) {
        return Err(Error::Usage(format!("{agents} agents need as many connections and requests")));
    }
    Ok(())
}

/// Has each agent accept its share, and starts them all.
fn start(agents: &[String], key: &hmac::Key, args: &LoadArgs, urls: &[String]) -> Result<Vec<Peer>, Error> {
    let mut peers = Vec::new();
    for (index, agent) in agents.iter().enumerate() {
        let job = job(args, urls, index as u64, agents.len() as u64);
        peers.push(hire(agent, key, job)?);
    }
    for peer in &mut peers {
        peer.send("go", &json!({}))?;
    }
    Ok(peers)
}

/// Connects to an agent and has it accept a job.
fn hire(agent: &str, key: &hmac::Key, job: Result<Value, Error>) -> Result<Peer, Error> {
    let mut peer = greet(agent, key)?;
    job.and_then(|job| peer.send("job", &job))?;
    let answer = peer.receive("answer")?;
    match answer["refused"].as_str() {
        Some(why) => Err(Error::Usage(format!("{agent} refuses: {why}"))),
        None => Ok(peer),
    }
}

/// Adds up results. Returns also the agents' findings about themselves.
fn sum(agents: &[String], results: &[Value]) -> Result<(Outcome, Vec<Finding>), Error> {
    let mut outcome = Outcome::default();
    let mut findings = Vec::new();
    for (agent, result) in agents.iter().zip(results) {
        if let Some(why) = result["refused"].as_str() {
            return Err(Error::Usage(format!("{agent}: {why}")));
        }
        let bad = || Error::Usage(format!("{agent}: not the result of an agent"));
        let one = from_json(result).ok_or_else(bad)?;
        outcome.record.merge(&one.record);
        outcome.threads.extend(one.threads);
        outcome.measured = outcome.measured.max(one.measured);
        outcome.first_error = outcome.first_error.take().or(one.first_error);
        outcome.interrupted |= one.interrupted;
        let own = result["findings"].as_array().into_iter().flatten();
        for finding in own.filter(|f| f["client"].as_bool() == Some(true)) {
            let text = format!("agent {agent}: {}", finding["text"].as_str().unwrap_or_default());
            findings.push(Finding { void: finding["void"].as_bool() == Some(true), client: true, text });
        }
    }
    Ok((outcome, findings))
}

fn greet(agent: &str, key: &hmac::Key) -> Result<Peer, Error> {
    let stream = connect(agent)?;
    let own = nonce()?;
    let mut peer = Peer { stream, key: key.clone(), name: agent.to_owned(), session: String::new() };
    let hello = peer.read(GREETING)?;
    peer.session = format!("{own}\n{}", hello["nonce"].as_str().unwrap_or_default());
    let mac = peer.mac("leader", "");
    peer.write(&json!({"nonce": own, "mac": mac}))?;
    let proof = peer.read(GREETING);
    let proof = proof.map_err(|_| Error::Usage(format!("{agent} hung up: is the secret the same?")))?;
    peer.check("agent", "", &proof["mac"]).map(|()| peer)
}

fn connect(agent: &str) -> Result<TcpStream, Error> {
    let addr = agent.to_socket_addrs().map_err(|e| Error::Resolve(agent.into(), e))?.next();
    let addr = addr.ok_or_else(|| Error::Usage(format!("{agent} has no address")))?;
    let stream = TcpStream::connect_timeout(&addr, PATIENCE).map_err(Error::io(agent))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(Error::io(agent))?;
    Ok(stream)
}

/// Returns the share of agent `index` of `of`, as a command line.
fn job(args: &LoadArgs, urls: &[String], index: u64, of: u64) -> Result<Value, Error> {
    let share = |n: u64| n / of + u64::from(index < n % of);
    let micros = |t: Duration| format!("{}us", t.as_micros());
    let list = |numbers: &[u16]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut words = Words::default();
    words.put("connections", share(args.connections));
    words.put("duration", micros(args.duration));
    words.put_some("requests", args.requests.map(share));
    words.put_some("warmup", args.warmup.map(micros));
    if let Some(rate) = args.rate()? {
        words.put("rate", format!("{}..{}", rate.from / of as f64, rate.to / of as f64));
        words.put("arrival", if args.arrival == Arrival::Poisson { "poisson" } else { "constant" });
    }
    words.put("streams", args.streams);
    words.put("pipeline", args.pipeline);
    words.put("think", micros(args.think));
    words.put("timeout", micros(args.timeout));
    words.put("threads", args.threads);
    words.put("seed", args.seed + index);
    words.put_some("per-connection", args.per_connection);
    words.put_some("method", args.method.as_ref());
    args.headers.iter().for_each(|h| words.put("header", h));
    let statuses = (!args.expect_status.is_empty()).then(|| list(&args.expect_status));
    words.put_some("expect-status", statuses);
    words.put_some("expect-length", args.expect_length);
    words.put_some("expect-body", args.expect_body.as_ref());
    words.put_raw(&args.raw)?;
    words.flag("http2", args.http2);
    words.flag("http3", args.http3);
    words.flag("no-keepalive", args.no_keepalive);
    words.flag("insecure", args.insecure);
    words.flag("resume", args.resume);
    words.0.push("--".into());
    words.0.extend(urls.iter().cloned());
    let body = args.bytes()?.map(|b| BASE64.encode(b));
    Ok(json!({"args": words.0, "body": body}))
}

/// A command line that is being made.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn put(&mut self, name: &str, value: impl std::fmt::Display) {
        self.0.push(format!("--{name}={value}"));
    }

    fn put_some(&mut self, name: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    /// Adds the options for loads of bytes.
    fn put_raw(&mut self, args: &RawArgs) -> Result<(), Error> {
        self.put_some("size", args.size);
        self.put_some("payload", args.without_file()?);
        self.put_some("download", args.download);
        self.put_some("upload", args.upload);
        self.put_some("answer", args.answer);
        Ok(())
    }

    fn flag(&mut self, name: &str, set: bool) {
        if set {
            self.0.push(format!("--{name}"));
        }
    }
}

fn to_json(report: &Report) -> Value {
    let r = &report.outcome.record;
    let threads: Vec<Value> = report
        .outcome
        .threads
        .iter()
        .map(|t| json!([t.cpu_time, t.run_delay, t.wall, t.switches.0, t.switches.1]))
        .collect();
    json!({
        "counts": [r.ok, r.complete, r.in_time, r.due, r.connections, r.resumed, r.retried, r.bytes_in, r.body_in, r.bytes_out],
        "quic": [r.packets, r.packets_lost, r.dropped],
        "failures": r.failures,
        "statuses": r.seen().map(|(s, n)| json!([s, n])).collect::<Vec<_>>(),
        "latency": r.latency.to_text(),
        "uncorrected": r.uncorrected.to_text(),
        "lateness": r.lateness.to_text(),
        "connect": r.connect.to_text(),
        "handshake": r.handshake.to_text(),
        "threads": threads,
        "measured_ns": report.outcome.measured.as_nanos() as u64,
        "interrupted": report.outcome.interrupted,
        "first_error": report.outcome.first_error,
        "findings": crate::output::json::findings(&report.findings),
    })
}

fn from_json(value: &Value) -> Option<Outcome> {
    Some(Outcome {
        record: record_of(value)?,
        threads: value["threads"].as_array()?.iter().map(thread_of).collect::<Option<_>>()?,
        samples: Vec::new(),
        measured: Duration::from_nanos(value["measured_ns"].as_u64()?),
        interrupted: value["interrupted"].as_bool()?,
        first_error: value["first_error"].as_str().map(str::to_owned),
        head: Vec::new(),
    })
}

/// Returns the use of a thread.
fn thread_of(t: &Value) -> Option<ThreadUse> {
    Some(ThreadUse {
        cpu: None,
        cpu_time: t[0].as_u64()?,
        run_delay: t[1].as_u64()?,
        wall: t[2].as_u64()?,
        switches: (t[3].as_u64()?, t[4].as_u64()?),
    })
}

/// Returns the counts of a result.
fn record_of(value: &Value) -> Option<Record> {
    let numbers =
        |name: &str| Some(value[name].as_array()?.iter().filter_map(Value::as_u64).collect::<Vec<u64>>());
    let counts = numbers("counts")?;
    let &[ok, complete, in_time, due, connections, resumed, retried, bytes_in, body_in, bytes_out] =
        counts.as_slice()
    else {
        return None;
    };
    let mut record = Record::default();
    (record.ok, record.complete, record.in_time, record.due) = (ok, complete, in_time, due);
    (record.connections, record.resumed, record.retried) = (connections, resumed, retried);
    (record.bytes_in, record.body_in, record.bytes_out) = (bytes_in, body_in, bytes_out);
    let &[packets, packets_lost, dropped] = numbers("quic")?.as_slice() else { return None };
    (record.packets, record.packets_lost, record.dropped) = (packets, packets_lost, dropped);
    record.failures = numbers("failures").and_then(|all| all.try_into().ok())?;
    read_statuses(value, &mut record)?;
    read_histograms(value, &mut record)?;
    Some(record)
}

fn read_statuses(value: &Value, record: &mut Record) -> Option<()> {
    for pair in value["statuses"].as_array()? {
        *record.statuses.get_mut(pair[0].as_u64()? as usize)? = pair[1].as_u64()?;
    }
    Some(())
}

fn read_histograms(value: &Value, record: &mut Record) -> Option<()> {
    let histogram = |name: &str| value[name].as_str().and_then(Histogram::from_text);
    record.latency = histogram("latency")?;
    record.uncorrected = histogram("uncorrected")?;
    record.lateness = histogram("lateness")?;
    record.connect = histogram("connect")?;
    record.handshake = histogram("handshake")?;
    Some(())
}
