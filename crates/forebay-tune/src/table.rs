//! `forebay tune table`: five loads, each with nginx and Forebay, each as packages ship it and as the tuner leaves it.
//! Its Markdown is the table of docs/performance-notes.md.

use crate::figures::Figures;
use crate::load::{self, LoadPlan};
use crate::program::{Which, executable};
use crate::state::{lock, state_dir};
use crate::{cli, replay, tuning, upstream, watch};
use forebay_bench::load::Load;
use forebay_bench::observe::shares;
use forebay_bench::{duration_text, signals, units};
use forebay_copy::patch::Source;
use forebay_copy::program::{Process, Program};
use forebay_copy::scene::{Copy, CopyPlace, Upstreams};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `forebay tune table`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TableArgs {
    /// Time for each tuning; there are two for each load
    #[arg(long, default_value = "10m", value_parser = units::duration)]
    pub budget: Duration,
    /// Loads (default: all)
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub loads: Vec<String>,
    /// Times that the four are measured one after the other at the end
    #[arg(long, default_value = "7", value_parser = units::count)]
    pub rounds: u64,
    /// Measured time of each of those
    #[arg(long, default_value = "3s", value_parser = units::duration)]
    pub time: Duration,
    /// Connections
    #[arg(long, default_value = "50", value_parser = units::count)]
    pub connections: u64,
    /// Seed of all choices
    #[arg(long, default_value = "1")]
    pub seed: u64,
    /// Executable of nginx
    #[arg(long, value_name = "FILE")]
    pub nginx: Option<PathBuf>,
    /// Executable of Forebay (default: this one)
    #[arg(long, value_name = "FILE")]
    pub forebay: Option<PathBuf>,
    /// Where results go: table.md, and those of each tuning
    #[arg(long, value_name = "DIR", default_value = "forebay-table")]
    pub out: PathBuf,
    /// Where the lock and the private files are
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// A load: its name, its description, and the servers of its configuration.
struct Kind {
    name: &'static str,
    about: &'static str,
    servers: &'static str,
}

static KINDS: [Kind; 5] = [
    Kind { name: "static-small", about: "files of 1 kB", servers: "server { listen 80; root {dir}/small; }" },
    Kind { name: "static-large", about: "files of 1 MB", servers: "server { listen 80; root {dir}/large; }" },
    Kind {
        name: "tls",
        about: "files of 1 kB over TLS",
        servers: "server { listen 443 ssl; ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem; root {dir}/small; }",
    },
    Kind {
        name: "proxied",
        about: "4 kB from an upstream on the same machine",
        servers: "server { listen 80; root {dir}/none; location / { proxy_pass http://127.0.0.1:9; } }",
    },
    Kind {
        name: "mixed",
        about: "files of 1 kB and 100 kB, plain and over TLS, and proxied requests",
        servers: "server { listen 80; root {dir}/mixed; location /app { proxy_pass http://127.0.0.1:9; } }\n    \
                  server { listen 443 ssl; ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem; root {dir}/mixed; \
                  location /app { proxy_pass http://127.0.0.1:9; } }",
    },
];

const SERVERS: [(&str, Which); 2] = [("nginx", Which::Nginx), ("forebay", Which::Forebay)];

/// Returns a configuration as packages ship it, as far as it touches speed; compression is left out, since Forebay keeps
/// compressed files and nginx does not, which would hide everything else.
fn configuration(kind: &Kind, dir: &Path) -> String {
    format!(
        "worker_processes auto;\nevents {{\n    worker_connections 768;\n}}\nhttp {{\n    sendfile on;\n    tcp_nopush on;\n    \
         types_hash_max_size 2048;\n    access_log {0}/access.log;\n    {1}\n}}\n",
        dir.display(),
        kind.servers.replace("{dir}", &dir.display().to_string())
    )
}

/// Files of the site: folder, number, suffix, and size of each in bytes.
const FILES: [(&str, usize, &str, usize); 4] = [
    ("small", 8, "txt", 1024),
    ("mixed", 8, "txt", 1024),
    ("large", 2, "bin", 1 << 20),
    ("mixed", 2, "bin", 100 << 10),
];

fn write_text(folder: &Path, name: &str, size: usize) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let text = b"the quick brown fox jumps over the lazy dog\n".repeat(size / 44 + 1);
    std::fs::write(folder.join(name), text.get(..size).unwrap_or_default())
}

/// Makes the files that the servers serve.
fn site(dir: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let io = |e: std::io::Error| format!("{}: {e}", dir.display());
    std::fs::create_dir_all(dir.join("none")).map_err(io)?;
    for (folder, number, suffix, size) in FILES {
        for i in 0..number {
            write_text(&dir.join(folder), &format!("{i}.{suffix}"), size).map_err(io)?;
        }
    }
    replay::certificate(dir)?;
    // Workers of another user need access.
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).map_err(io)
}

/// A running server that is measured in turn with others.
struct Contender {
    load: Load,
    process: Process,
    runs: Vec<Figures>,
}

impl Contender {
    /// Starts `program` with a private copy of `conf` in `dir`. `upstream`: the port of the stand-in for upstreams.
    fn start(
        program: &Path,
        conf: &Path,
        dir: &Path,
        upstream: u16,
        args: &TableArgs,
    ) -> Result<Contender, String> {
        let source = Source::read(conf)?;
        let prefix = "/usr/share/nginx".into();
        let place =
            CopyPlace { upstreams: Upstreams::Http(upstream), ..CopyPlace::new(dir.to_owned(), prefix) };
        let copy = Copy::new(&source, place)?;
        let written = copy.write(&source, &[])?;
        let program =
            Program { path: program.to_owned(), prefix: dir.to_owned(), cpus: shares().0, is_bound: false };
        program.test(&written)?;
        let process = program.start(&written, &copy.addresses(&source), &dir.join("stderr"))?;
        let manner = LoadPlan::closed_loop(args.connections as usize, args.seed);
        let load = load::load(&copy.targets(&source, false), &manner)?;
        Ok(Contender { load, process, runs: Vec::new() })
    }

    fn measure(&mut self, time: Duration) -> Result<(), String> {
        let (f, first) = load::measure(&self.load, self.process.id(), time.mul_f64(0.2), time)?;
        if f.errors > 0 && !signals::interrupted() {
            say!("{} requests failed: {}", f.errors, first.unwrap_or_default());
        }
        self.runs.push(f);
        Ok(())
    }
}

/// Reads the figures of a tuning.
fn read(out: &Path) -> Value {
    std::fs::read(out.join("result.json"))
        .ok()
        .and_then(|b| serde_json::from_slice(&b).ok())
        .unwrap_or_default()
}

fn gained(result: &Value) -> String {
    let percent = |v: &Value| v.as_f64().map_or("?".to_owned(), |x| format!("{:+.1}", x * 100.0));
    if result["proven"] == true {
        let g = &result["gain"];
        return format!("{} % [{}, {}]", percent(&g["mid"]), percent(&g["low"]), percent(&g["high"]));
    }
    match result["could_see"].as_f64() {
        Some(seen) => format!("none proven; {:.1} % would have been seen", seen * 100.0),
        None => "nothing to try".into(),
    }
}

/// Tunes and measures everything, and prints the table.
///
/// # Errors
/// A server or openssl is missing, a load is not known, or a tuning fails.
pub(crate) fn main(args: &TableArgs) -> Result<(), String> {
    let kinds = chosen_kinds(&args.loads)?;
    let programs = programs(args)?;
    let state = state_dir(args.state.as_deref())?;
    let _lock = lock(&state)?;
    let _watch = watch::start(&state);
    Table::new(args, programs, state)?.make(&kinds)
}

/// Returns the loads of these names; all of them if there is no name.
fn chosen_kinds(names: &[String]) -> Result<Vec<&'static Kind>, String> {
    if let Some(bad) = names.iter().find(|l| KINDS.iter().all(|k| k.name != l.as_str())) {
        let known: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
        return Err(format!("there is no load \"{bad}\"; known: {}", known.join(", ")));
    }
    Ok(KINDS.iter().filter(|k| names.is_empty() || names.iter().any(|l| l == k.name)).collect())
}

/// Finds the executables of [`SERVERS`].
fn programs(args: &TableArgs) -> Result<[PathBuf; 2], String> {
    Ok([
        executable(Which::Nginx, args.nginx.as_deref())?,
        executable(Which::Forebay, args.forebay.as_deref())?,
    ])
}

/// A table that is being made.
struct Table<'a> {
    args: &'a TableArgs,
    /// In the order of [`SERVERS`].
    programs: [PathBuf; 2],
    state: PathBuf,
    /// Folder of the site and the configurations.
    dir: PathBuf,
    /// Folder of the results.
    out: PathBuf,
}

impl<'a> Table<'a> {
    fn new(args: &'a TableArgs, programs: [PathBuf; 2], state: PathBuf) -> Result<Table<'a>, String> {
        let dir = state.join("table");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        site(&dir)?;
        std::fs::create_dir_all(&args.out).map_err(|e| format!("{}: {e}", args.out.display()))?;
        let out = std::path::absolute(&args.out).map_err(|e| e.to_string())?;
        Ok(Table { args, programs, state, dir, out })
    }

    /// Makes all rows, and prints the table. The file is written after each row. Ends early after ^C.
    fn make(&self, kinds: &[&Kind]) -> Result<(), String> {
        let file = self.out.join("table.md");
        let mut rows = Vec::new();
        for kind in kinds {
            let Some(row) = self.row(kind)? else { return Ok(()) };
            rows.push(row);
            std::fs::write(&file, render(self.args, &rows))
                .map_err(|e| format!("{}: {e}", self.out.display()))?;
        }
        let _ = std::fs::remove_dir_all(&self.dir);
        say!("\n{}", render(self.args, &rows));
        say!("The same is in {}", file.display());
        Ok(())
    }

    /// Tunes both servers for a load and measures all four configurations; `None` after ^C.
    fn row<'k>(&self, kind: &'k Kind) -> Result<Option<Row<'k>>, String> {
        let conf = self.dir.join(format!("{}.conf", kind.name));
        std::fs::write(&conf, configuration(kind, &self.dir))
            .map_err(|e| format!("{}: {e}", self.dir.display()))?;
        let mut gains = Vec::new();
        let mut confs = Vec::new();
        for ((name, _), program) in SERVERS.iter().zip(&self.programs) {
            let place = self.out.join(format!("{}-{name}", kind.name));
            say!("\n== {}, {name}", kind.name);
            tune(self.args, name, program, &conf, &place)?;
            if signals::interrupted() {
                return Ok(None);
            }
            let tuned = place.join("tuned.conf");
            confs.push((program.as_path(), conf.clone()));
            confs.push((program.as_path(), if tuned.exists() { tuned } else { conf.clone() }));
            gains.push(gained(&read(&place)));
        }
        let figures = self.measure(&confs)?;
        Ok(figures.map(|figures| (kind, figures, gains)))
    }

    /// Measures configurations one after the other, round by round. Returns the medians, `None` after ^C.
    fn measure(&self, confs: &[(&Path, PathBuf)]) -> Result<Option<Vec<Figures>>, String> {
        let port = upstream::start(Duration::ZERO, 4096).map_err(|e| e.to_string())?;
        let start = |(n, (program, conf)): (usize, &(&Path, PathBuf))| {
            let dir = self.state.join("copy").join(n.to_string());
            Contender::start(program, conf, &dir, port, self.args)
        };
        let mut all = confs.iter().enumerate().map(start).collect::<Result<Vec<_>, _>>()?;
        for round in 0..self.args.rounds as usize {
            let mut order: Vec<usize> = (0..all.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for n in order {
                all[n].measure(self.args.time)?;
                if signals::interrupted() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(all.iter().map(|b| Figures::median(&b.runs)).collect()))
    }
}

fn tune(args: &TableArgs, name: &str, program: &Path, conf: &Path, out: &Path) -> Result<(), String> {
    // Of an earlier table nothing may pass for a result of this one.
    for old in ["result.json", "tuned.conf"] {
        let _ = std::fs::remove_file(out.join(old));
    }
    let text = |p: &Path| p.display().to_string();
    let words = [
        "-c".into(),
        text(conf),
        "--server".into(),
        name.to_owned(),
        "--program".into(),
        text(program),
        "--out".into(),
        text(out),
        "--budget".into(),
        format!("{}ms", args.budget.as_millis()),
        "--connections".into(),
        args.connections.to_string(),
        "--seed".into(),
        args.seed.to_string(),
    ];
    let state = state_dir(args.state.as_deref())?;
    tuning::tune(&cli::arguments(&words)?, &state)
}

type Row<'k> = (&'k Kind, Vec<Figures>, Vec<String>);

fn render(args: &TableArgs, rows: &[Row<'_>]) -> String {
    let about = format!(
        "CPU time of the server per request in microseconds, {} connections, closed loop; median of {} interleaved rounds of \
         {}. What tuning gains, with its 95 % interval, is from the tuner's own confirmation on fresh starts \
         (`forebay tune table --budget {}s`).\n",
        args.connections,
        args.rounds,
        duration_text(args.time.as_nanos() as u64),
        args.budget.as_secs()
    );
    format!("{about}\n{}\n{}", costs(rows), speeds(rows))
}

/// Returns the table of CPU times and gains.
fn costs(rows: &[Row<'_>]) -> String {
    let mut out = String::from(
        "| load | nginx, default | nginx, tuned | tuning gains | Forebay, default | Forebay, tuned | tuning gains |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (kind, f, gains) in rows {
        let _ = write!(out, "| {}: {} |", kind.name, kind.about);
        for (pair, gain) in f.chunks(2).zip(gains) {
            let _ = write!(out, " {:.1} | {:.1} | {gain} |", pair[0].cpu, pair[1].cpu);
        }
        let _ = writeln!(out);
    }
    out
}

/// Returns the table of rates and latencies.
fn speeds(rows: &[Row<'_>]) -> String {
    let mut out = String::from(
        "| load | nginx, default: requests/s, p99 ms | nginx, tuned | Forebay, default | Forebay, tuned |\n\
         | --- | ---: | ---: | ---: | ---: |\n",
    );
    for (kind, f, _) in rows {
        let _ = write!(out, "| {} |", kind.name);
        for x in f {
            let _ = write!(out, " {:.0}, {:.2} |", x.rate, x.p99 as f64 / 1e6);
        }
        let _ = writeln!(out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_sound_and_rows_complete() {
        let dir = tempfile::tempdir().expect("dir");
        for kind in &KINDS {
            let path = dir.path().join("x.conf");
            std::fs::write(&path, configuration(kind, dir.path())).expect("written");
            Source::read(&path).unwrap_or_else(|e| panic!("{}: {e}", kind.name));
        }
        use clap::{CommandFactory, FromArgMatches, Parser};
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: TableArgs,
        }
        let matches = Line::command().get_matches_from(["x"]);
        let args = Line::from_arg_matches(&matches).expect("defaults").args;
        let figures = vec![Figures { cpu: 2.0, rate: 1000.0, p99: 1_500_000, ..Figures::default() }; 4];
        let result = serde_json::json!({"proven": true, "gain": {"mid": 0.1, "low": 0.05, "high": 0.15}});
        let rows =
            [(&KINDS[0], figures, vec![gained(&result), gained(&serde_json::json!({"could_see": 0.021}))])];
        let text = render(&args, &rows);
        let wanted = "| static-small: files of 1 kB | 2.0 | 2.0 | +10.0 % [+5.0, +15.0] | 2.0 | 2.0 | none proven; 2.1 % would \
                      have been seen |";
        assert!(text.contains(wanted), "{text}");
        assert!(text.contains("| static-small | 1000, 1.50 | 1000, 1.50 |"), "{text}");
    }
}
