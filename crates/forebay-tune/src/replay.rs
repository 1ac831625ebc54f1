//! `forebay tune replay`: the ladders of published tuning articles, measured here. Heights of other machines mean nothing;
//! which steps help does.

use crate::figures::Figures;
use crate::load::{self, LoadPlan};
use crate::program::{Which, executable};
use crate::state::{lock, state_dir};
use crate::stats::median;
use forebay_bench::load::Load;
use forebay_bench::ports::free_port;
use forebay_bench::tls::{Kind, self_signed};
use forebay_bench::{duration_text, signals, units};
use forebay_copy::program::Program;
use forebay_copy::scene::Target;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A step of an article: the rate it claims, and the directives that it adds to those before it.
struct Step {
    name: &'static str,
    /// Requests a second that the article reports; 0: none for this step.
    claimed: u32,
    main: &'static str,
    events: &'static str,
    http: &'static str,
}

struct Article {
    name: &'static str,
    about: &'static str,
    connections: usize,
    keepalive: bool,
    tls: bool,
    size: usize,
    steps: &'static [Step],
}

const fn step(
    name: &'static str,
    claimed: u32,
    main: &'static str,
    events: &'static str,
    http: &'static str,
) -> Step {
    Step { name, claimed, main, events, http }
}

const ARTICLES: &[Article] = &[
    Article {
        name: "step-by-step",
        about: "8 kB page, ab with 40 connections, 2 CPUs",
        connections: 40,
        keepalive: false,
        tls: false,
        size: 8192,
        steps: &[
            step("default", 2958, "worker_processes 1;", "worker_connections 512;", ""),
            step("4 workers", 3051, "worker_processes 4;", "", ""),
            step("8 workers", 5204, "worker_processes 8;", "", ""),
            step("1,024 connections", 6068, "", "worker_connections 1024;", ""),
            step(
                "4,096 connections, descriptors",
                6350,
                "worker_rlimit_nofile 4096;",
                "worker_connections 4096;",
                "",
            ),
            step(
                "open_file_cache",
                6949,
                "",
                "",
                "open_file_cache max=1024 inactive=10s; open_file_cache_valid 120s;",
            ),
        ],
    },
    Article {
        name: "vps-guide",
        about: "static page over HTTPS, wrk with 200 connections, 4 CPUs",
        connections: 200,
        keepalive: true,
        tls: true,
        size: 8192,
        steps: &[
            step("before", 16442, "worker_processes 1;", "worker_connections 768;", ""),
            step(
                "workers",
                0,
                "worker_processes auto; worker_rlimit_nofile 8192;",
                "worker_connections 4096; multi_accept on;",
                "",
            ),
            step(
                "sendfile, open files",
                0,
                "",
                "",
                "sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000; open_file_cache max=10000 inactive=30s; \
                 open_file_cache_valid 60s; open_file_cache_min_uses 2;",
            ),
            step(
                "all layers",
                39014,
                "",
                "",
                "ssl_session_cache shared:SSL:10m; ssl_session_timeout 1d; access_log {dir}/logs/access.log combined buffer=64k flush=5s;",
            ),
        ],
    },
    Article {
        name: "high-concurrency",
        about: "612 bytes, ab with 10,000 connections",
        connections: 10_000,
        keepalive: false,
        tls: false,
        size: 612,
        steps: &[
            step("default", 0, "worker_processes 1;", "worker_connections 768;", ""),
            step(
                "as published",
                7819,
                "worker_rlimit_nofile 20000;",
                "worker_connections 20000; multi_accept on;",
                "keepalive_timeout 0;",
            ),
        ],
    },
    Article {
        name: "production",
        about: "wrk with 400 connections, 4 CPUs",
        connections: 400,
        keepalive: true,
        tls: false,
        size: 4096,
        steps: &[
            step("default", 8200, "worker_processes 1;", "worker_connections 768;", ""),
            step(
                "workers and epoll",
                28100,
                "worker_processes auto; worker_rlimit_nofile 65535;",
                "worker_connections 4096; use epoll; multi_accept on;",
                "",
            ),
            step("keep-alive", 51300, "", "", "keepalive_timeout 30; keepalive_requests 10000;"),
            step("sendfile and tcp", 71400, "", "", "sendfile on; tcp_nopush on; tcp_nodelay on;"),
            step(
                "all",
                103_800,
                "",
                "",
                "output_buffers 1 512k; postpone_output 1460; open_file_cache max=10000 inactive=30s; open_file_cache_valid 60s; \
                 open_file_cache_min_uses 2;",
            ),
        ],
    },
];

/// Which article.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// step-by-step, vps-guide, high-concurrency, production, or all
    pub article: String,
    /// Measured time of a run; each step has three
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    pub time: Duration,
    /// Most connections
    #[arg(long, default_value = "1000", value_parser = units::count)]
    pub connections: u64,
    /// Executable of nginx
    #[arg(long, value_name = "FILE")]
    pub nginx: Option<PathBuf>,
    /// Executable of Forebay (default: this one)
    #[arg(long, value_name = "FILE")]
    pub forebay: Option<PathBuf>,
    /// Write figures to a file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where the lock and the private files are
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// Returns the directives of the steps up to now. A later one replaces an earlier one of its name.
fn merge(steps: &[Step], part: fn(&Step) -> &'static str) -> String {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for s in steps {
        for d in part(s).split(';').map(str::trim).filter(|d| !d.is_empty()) {
            let name = d.split(' ').next().unwrap_or(d);
            all.retain(|(n, _)| *n != name);
            all.push((name, d));
        }
    }
    all.iter().map(|(_, d)| format!("{d};\n")).collect()
}

fn configuration(a: &Article, steps: usize, dir: &Path, port: u16) -> String {
    let steps = &a.steps[..steps];
    let (main, events) = (merge(steps, |s| s.main), merge(steps, |s| s.events));
    let mut http = merge(steps, |s| s.http).replace("{dir}", &dir.display().to_string());
    let dir = dir.display();
    if !http.contains("access_log") {
        http.push_str(&format!("access_log {dir}/logs/access.log;\n"));
    }
    for t in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        http.push_str(&format!("{t}_temp_path {dir}/temp/{t};\n"));
    }
    let (ssl, keys) = match a.tls {
        true => (" ssl", format!("ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem;")),
        false => ("", String::new()),
    };
    format!(
        "daemon off;\npid {dir}/pid;\nerror_log {dir}/logs/error.log;\n{main}events {{\n{events}}}\nhttp {{\n{http}\
         server {{ listen 127.0.0.1:{port}{ssl}; {keys} root {dir}/html; }}\n}}\n"
    )
}

/// Makes a key and a certificate in `dir`.
///
/// # Errors
/// There is no openssl.
pub(crate) fn certificate(dir: &Path) -> Result<(), String> {
    self_signed(Kind::Rsa, &dir.join("cert.pem"), &dir.join("key.pem")).map_err(|e| e.to_string())
}

/// A server that is measured: its name and executable.
type NamedProgram = (&'static str, PathBuf);

/// Measures the ladders of articles, for nginx and Forebay in turn.
///
/// # Errors
/// There is no such article, no nginx, or a server does not start.
pub(crate) fn main(args: &ReplayArgs) -> Result<(), String> {
    let articles = chosen(&args.article)?;
    let state = state_dir(args.state.as_deref())?;
    let _lock = lock(&state)?;
    let servers = servers(args)?;
    Replay { args, dir: state.join("copy"), servers, results: Vec::new() }.run(&articles)
}

/// Returns the article of a name, or all of them for `all`.
fn chosen(name: &str) -> Result<Vec<&'static Article>, String> {
    let chosen: Vec<&Article> = ARTICLES.iter().filter(|a| name == "all" || name == a.name).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = ARTICLES.iter().map(|a| a.name).collect();
        return Err(format!("there is no article \"{name}\"; known: {}, all", names.join(", ")));
    }
    Ok(chosen)
}

fn servers(args: &ReplayArgs) -> Result<Vec<NamedProgram>, String> {
    let mut servers = vec![("Forebay", executable(Which::Forebay, args.forebay.as_deref())?)];
    match executable(Which::Nginx, args.nginx.as_deref()) {
        Ok(p) => servers.insert(0, ("nginx", p)),
        Err(e) => say!("Only Forebay is measured: {e}"),
    }
    Ok(servers)
}

/// A replay that is under way.
struct Replay<'a> {
    args: &'a ReplayArgs,
    /// Folder of the site and the configurations.
    dir: PathBuf,
    servers: Vec<NamedProgram>,
    /// A row for each step and server, for `--json`.
    results: Vec<Value>,
}

/// End of an article's ladder.
#[derive(PartialEq, Eq)]
enum Ladder {
    Measured,
    /// By ^C.
    Interrupted,
}

/// Medians of a step's runs.
struct Medians {
    rate: f64,
    p99: f64,
    cpu: f64,
    errors: u64,
}

/// Result of a step with one server.
enum Measured {
    Medians(Medians),
    /// The server's words.
    Refused(String),
    Interrupted,
}

impl Replay<'_> {
    fn io(&self) -> impl Fn(std::io::Error) -> String {
        let dir = self.dir.display().to_string();
        move |e| format!("{dir}: {e}")
    }

    /// Measures the ladders of articles and writes the results. Writes nothing after ^C.
    fn run(&mut self, articles: &[&Article]) -> Result<(), String> {
        for article in articles {
            if self.article(article)? == Ladder::Interrupted {
                return Ok(());
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
        if let Some(file) = &self.args.json {
            std::fs::write(file, format!("{:#}\n", json!(self.results)))
                .map_err(|e| format!("{}: {e}", file.display()))?;
        }
        Ok(())
    }

    fn article(&mut self, a: &Article) -> Result<Ladder, String> {
        self.site(a)?;
        let connections = self.connections(a);
        say!("\n{}: {}. Here: {connections} connections", a.name, a.about);
        let columns: String = self
            .servers
            .iter()
            .map(|(n, _)| format!("{n:>11} {:>7} {:>9} {:>9}", "", "p99", "CPU"))
            .collect();
        say!("{:<32} {:>9} {:>7}   {columns}", "step", "claimed", "");
        // Requests a second of each server at the first step.
        let mut first = vec![0.0; self.servers.len()];
        for steps in 1..=a.steps.len() {
            match self.step(a, steps, &mut first)? {
                Some(line) => say!("{line}"),
                None => return Ok(Ladder::Interrupted),
            }
        }
        Ok(Ladder::Measured)
    }

    /// Makes the folders and files of an article.
    fn site(&self, a: &Article) -> Result<(), String> {
        for sub in ["html", "logs", "temp", "conf"] {
            std::fs::create_dir_all(self.dir.join(sub)).map_err(self.io())?;
        }
        std::fs::write(self.dir.join("html/f.html"), vec![b'a'; a.size]).map_err(self.io())?;
        if a.tls { certificate(&self.dir) } else { Ok(()) }
    }

    fn connections(&self, a: &Article) -> usize {
        a.connections.min(self.args.connections as usize)
    }

    /// Measures the first `steps` steps with each server. Returns the line for people, `None` after ^C.
    fn step(&mut self, a: &Article, steps: usize, first: &mut [f64]) -> Result<Option<String>, String> {
        let step = &a.steps[steps - 1];
        let claimed = if step.claimed == 0 { "-".to_owned() } else { step.claimed.to_string() };
        let times = factor(f64::from(step.claimed), f64::from(a.steps[0].claimed));
        let mut line = format!("{:<32} {claimed:>9} {times:>7}   ", step.name);
        for (k, (name, path)) in self.servers.iter().enumerate() {
            let m = match self.measure(a, steps, path)? {
                Measured::Interrupted => return Ok(None),
                Measured::Refused(e) => {
                    line.push_str(&format!(" refused: {e}"));
                    continue;
                }
                Measured::Medians(m) => m,
            };
            if steps == 1 {
                first[k] = m.rate;
            }
            line.push_str(&m.columns(first[k]));
            self.results
                .push(json!({"article": a.name, "step": step.name, "claimed": step.claimed, "server": name,
                                     "rate": m.rate, "p99_ns": m.p99, "cpu_us": m.cpu, "errors": m.errors}));
        }
        Ok(Some(line))
    }

    fn measure(&self, a: &Article, steps: usize, path: &Path) -> Result<Measured, String> {
        let (conf, port) = self.write_configuration(a, steps)?;
        // As published: the steps say how many workers there are.
        let cpus = Vec::new();
        let program = Program { path: path.to_owned(), prefix: self.dir.clone(), cpus, is_bound: false };
        if let Err(e) = program.test(&conf) {
            return Ok(Measured::Refused(e));
        }
        let process =
            program.start(&conf, &[(Ipv4Addr::LOCALHOST, port).into()], &self.dir.join("stderr"))?;
        let _ = std::fs::write(self.dir.join("server.pid"), process.id().to_string());
        let load = self.load(a, port)?;
        let mut runs = Vec::new();
        for _ in 0..3 {
            let (f, _) = load::measure(&load, process.id(), self.args.time.mul_f64(0.2), self.args.time)?;
            runs.push(f);
            if signals::interrupted() {
                return Ok(Measured::Interrupted);
            }
        }
        Ok(Measured::Medians(Medians::of(&runs)))
    }

    /// Writes the configuration after the first `steps` steps. Returns its path and the server's port.
    fn write_configuration(&self, a: &Article, steps: usize) -> Result<(PathBuf, u16), String> {
        let port = free_port().map_err(self.io())?;
        let conf = self.dir.join("conf/replay.conf");
        std::fs::write(&conf, configuration(a, steps, &self.dir, port)).map_err(self.io())?;
        Ok((conf, port))
    }

    fn load(&self, a: &Article, port: u16) -> Result<Load, String> {
        let scheme = if a.tls { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{port}/f.html");
        let target = Target { url, host: None, location: None, proxied: false, size: 0 };
        let manner = LoadPlan { close: !a.keepalive, ..LoadPlan::closed_loop(self.connections(a), 1) };
        load::load(&[target], &manner)
    }
}

impl Medians {
    fn of(runs: &[Figures]) -> Medians {
        let mid = |f: &dyn Fn(&Figures) -> f64| median(&mut runs.iter().map(f).collect::<Vec<_>>());
        Medians {
            rate: mid(&|f| f.rate),
            p99: mid(&|f| f.p99 as f64),
            cpu: mid(&|f| f.cpu),
            errors: runs.iter().map(|f| f.errors).sum(),
        }
    }

    /// Returns the columns of a server, with the rate compared to the first step.
    fn columns(&self, first: f64) -> String {
        let Medians { rate, p99, cpu, errors } = self;
        let mut text = format!(
            "{rate:>11.0} {:>7} {:>9} {cpu:>6.1} us",
            factor(*rate, first),
            duration_text(*p99 as u64)
        );
        if *errors > 0 {
            text.push_str(&format!(" ({errors} failed)"));
        }
        text
    }
}

/// Returns a ratio for people, nothing where it is not known.
fn factor(v: f64, of: f64) -> String {
    if v > 0.0 && of > 0.0 { format!("x{:.2}", v / of) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_copy::patch::Source;

    #[test]
    fn every_step_is_a_configuration() {
        let dir = tempfile::tempdir().expect("dir");
        for a in ARTICLES {
            for n in 1..=a.steps.len() {
                let path = dir.path().join("x.conf");
                std::fs::write(&path, configuration(a, n, dir.path(), 8080)).expect("written");
                Source::read(&path).unwrap_or_else(|e| panic!("{} {n}: {e}", a.name));
            }
        }
    }

    #[test]
    fn later_steps_replace() {
        assert_eq!(merge(&ARTICLES[0].steps[..3], |s| s.main), "worker_processes 8;\n");
    }
}
