//! `bench matrix`: one server measured the way vendors publish it.

use crate::cli::print;
use crate::compare::{Started, accepts};
use crate::load::{Load, Stop};
use crate::observe::Server;
use crate::options::LoadArgs;
use crate::output::html::{self, Curve, Plot};
use crate::ports::free_port;
use crate::tls::{Kind, self_signed};
use crate::url::Address;
use crate::{Error, run, units};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// `bench matrix`.
#[derive(Args, Debug)]
pub(crate) struct MatrixArgs {
    /// Measured time of a cell
    #[arg(short, long, default_value = "3s", value_parser = units::duration)]
    pub duration: Duration,
    /// Connections
    #[arg(short, long, default_value = "50", value_parser = units::count)]
    pub connections: u64,
    /// Most CPUs for the server (default: all)
    #[arg(long, value_parser = units::count)]
    pub max_cpus: Option<u64>,
    /// Times each cell is measured; the median counts
    #[arg(long, default_value = "1", value_parser = units::count)]
    pub rounds: u64,
    /// Which parts
    #[arg(long, value_delimiter = ',', default_value = "http,https,connections,throughput")]
    pub parts: Vec<String>,
    /// Program of Forebay (default: this one)
    #[arg(long)]
    pub forebay: Option<PathBuf>,
    /// Program of nginx, measured beside it; left out when it is not installed
    #[arg(long, default_value = "nginx")]
    pub nginx: PathBuf,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write tables and plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

const SIZES: [(&str, usize); 6] = [
    ("0 KB", 0),
    ("1 KB", 1024),
    ("10 KB", 10 << 10),
    ("100 KB", 100 << 10),
    ("1 MB", 1 << 20),
    ("10 MB", 10 << 20),
];

/// Published sizing study of nginx 1.9.7 on two Xeon E5-2699 v3: CPUs, then a figure per column.
const HTTP: [(usize, [f64; 4]); 7] = [
    (1, [145_551.0, 74_091.0, 54_684.0, 33_125.0]),
    (2, [249_293.0, 131_466.0, 102_069.0, 62_554.0]),
    (4, [543_061.0, 261_269.0, 207_848.0, 88_691.0]),
    (8, [1_048_421.0, 524_745.0, 392_151.0, 91_640.0]),
    (16, [2_001_846.0, 972_382.0, 663_921.0, 91_623.0]),
    (32, [3_019_182.0, 1_316_362.0, 774_567.0, 91_640.0]),
    (36, [3_298_511.0, 1_309_358.0, 764_744.0, 91_655.0]),
];
const HTTPS: [(usize, [f64; 4]); 7] = [
    (1, [71_561.0, 40_207.0, 23_308.0, 4_830.0]),
    (2, [151_325.0, 85_139.0, 48_654.0, 9_871.0]),
    (4, [324_654.0, 178_395.0, 96_808.0, 19_355.0]),
    (8, [647_213.0, 359_576.0, 198_818.0, 38_900.0]),
    (16, [1_262_999.0, 690_329.0, 383_860.0, 77_427.0]),
    (32, [2_197_336.0, 1_207_959.0, 692_804.0, 90_430.0]),
    (36, [2_175_945.0, 1_239_624.0, 733_745.0, 89_842.0]),
];
const NEW: [(usize, [f64; 2]); 4] =
    [(1, [34_344.0, 428.0]), (2, [54_368.0, 869.0]), (4, [123_164.0, 1_735.0]), (8, [194_967.0, 3_399.0])];
const GBITS: [(usize, [f64; 3]); 4] =
    [(1, [13.0, 48.0, 68.0]), (2, [20.0, 69.0, 71.0]), (4, [45.0, 67.0, 71.0]), (8, [50.0, 68.0, 72.0])];

fn published(part: &str, column: usize, cpus: usize) -> Option<f64> {
    let look = |rows: &[(usize, &[f64])]| {
        rows.iter().find(|(n, _)| *n == cpus).and_then(|(_, v)| v.get(column).copied())
    };
    match part {
        "http" => look(&HTTP.each_ref().map(|(n, v)| (*n, &v[..]))),
        "https" => look(&HTTPS.each_ref().map(|(n, v)| (*n, &v[..]))),
        "connections" => look(&NEW.each_ref().map(|(n, v)| (*n, &v[..]))),
        "throughput" => look(&GBITS.each_ref().map(|(n, v)| (*n, &v[..]))),
        _ => None,
    }
}

struct Column {
    part: &'static str,
    index: usize,
    name: String,
    path: String,
    /// Offset of the port: plain, RSA, ECDSA.
    port: usize,
    close: bool,
}

fn columns(parts: &[String]) -> Vec<Column> {
    let mut all = Vec::new();
    let path = |i: usize| format!("/{}", SIZES.get(i).map_or(0, |s| s.1));
    let wanted = |part: &str| parts.iter().any(|p| p == part);
    for (part, port) in [("http", 0), ("https", 1)] {
        if wanted(part) {
            for (index, (name, _)) in SIZES.iter().take(4).enumerate() {
                all.push(Column { part, index, name: (*name).into(), path: path(index), port, close: false });
            }
        }
    }
    if wanted("connections") {
        for (index, name) in ["HTTP", "HTTPS RSA 2048", "HTTPS ECDSA P-256"].into_iter().enumerate() {
            all.push(Column {
                part: "connections",
                index,
                name: name.into(),
                path: path(0),
                port: index,
                close: true,
            });
        }
    }
    if wanted("throughput") {
        for (index, (name, _)) in SIZES.iter().skip(3).enumerate() {
            let path = path(index + 3);
            all.push(Column { part: "throughput", index, name: (*name).into(), path, port: 0, close: false });
        }
    }
    all
}

fn certificates(dir: &Path) -> Result<(), Error> {
    for (name, kind) in [("rsa", Kind::Rsa), ("ec", Kind::Ecdsa)] {
        self_signed(kind, &dir.join(format!("{name}.crt")), &dir.join(format!("{name}.key")))?;
    }
    Ok(())
}

fn configuration(dir: &Path, cpus: &[usize], ports: &[u16; 3]) -> String {
    let d = dir.display();
    let width = cpus.iter().max().copied().unwrap_or(0) + 1;
    let masks: Vec<String> = cpus
        .iter()
        .map(|cpu| (0..width).rev().map(|i| if i == *cpu { '1' } else { '0' }).collect())
        .collect();
    let user = if forebay_sys::identity::is_root() { "user root;\n" } else { "" };
    format!(
        "daemon off;\n{user}worker_processes {};\nworker_cpu_affinity {};\npid {d}/pid;\nerror_log {d}/error.log warn;\n\
         events {{ worker_connections 8192; }}\nhttp {{\n  sendfile on; tcp_nopush on; keepalive_requests 1000000000;\n  \
         access_log off;\n  open_file_cache max=100 inactive=60s;\n  client_body_temp_path {d}/body;\n  proxy_temp_path {d}/proxy;\n  \
         fastcgi_temp_path {d}/fastcgi;\n  uwsgi_temp_path {d}/uwsgi;\n  scgi_temp_path {d}/scgi;\n  default_type text/plain;\n  root {d}/www;\n  \
         ssl_protocols TLSv1.2 TLSv1.3;\n  server {{ listen 127.0.0.1:{} backlog=4096; }}\n  \
         server {{ listen 127.0.0.1:{} ssl; ssl_certificate {d}/rsa.crt; ssl_certificate_key {d}/rsa.key; }}\n  \
         server {{ listen 127.0.0.1:{} ssl; ssl_certificate {d}/ec.crt; ssl_certificate_key {d}/ec.key; }}\n}}\n",
        cpus.len(),
        masks.join(" "),
        ports[0],
        ports[1],
        ports[2]
    )
}

fn free_ports() -> Result<[u16; 3], Error> {
    let port = || free_port().map_err(Error::io("a free port"));
    Ok([port()?, port()?, port()?])
}

/// A figure of a cell.
#[derive(Clone, Copy, Debug)]
struct Cell {
    value: f64,
    /// The client was the limit.
    limited: bool,
}

/// A cell by column, CPUs and server.
type Figures = BTreeMap<(usize, usize, usize), Cell>;

/// A server with its program.
type ServerProgram = (&'static str, PathBuf);

/// A matrix that is being measured.
struct Matrix<'a> {
    args: &'a MatrixArgs,
    dir: &'a Path,
    servers: Vec<ServerProgram>,
    /// CPUs of this process.
    allowed: Vec<usize>,
    columns: Vec<Column>,
    figures: Figures,
}

/// Runs the subcommand.
///
/// # Errors
/// A server does not start, or nothing could be measured.
pub(crate) fn main(args: &MatrixArgs) -> Result<u8, Error> {
    if let Some(bad) =
        args.parts.iter().find(|p| !["http", "https", "connections", "throughput"].contains(&p.as_str()))
    {
        return Err(Error::Usage(format!(
            "--parts {bad}: there are http, https, connections and throughput"
        )));
    }
    let dir = tempfile::Builder::new().prefix("forebay-matrix-").tempdir().map_err(Error::io("a folder"))?;
    site(dir.path())?;
    let servers = servers(args)?;
    let allowed = forebay_sys::affinity::allowed().map_err(Error::io("CPUs"))?;
    let counts = counts(args, allowed.len());
    let columns = columns(&args.parts);
    let mut matrix = Matrix { args, dir: dir.path(), servers, allowed, columns, figures: Figures::new() };
    for cpus in counts.iter().copied() {
        matrix.measure(cpus)?;
        if crate::signals::interrupted() {
            break;
        }
    }
    let results = Results {
        columns: &matrix.columns,
        counts: &counts,
        names: matrix.servers.iter().map(|(n, _)| *n).collect(),
        figures: &matrix.figures,
        shared: counts.last().is_some_and(|n| *n == matrix.allowed.len()),
    };
    results.write(args)?;
    Ok(u8::from(results.figures.is_empty()))
}

/// Makes the files that are requested, and the certificates.
fn site(dir: &Path) -> Result<(), Error> {
    let www = dir.join("www");
    std::fs::create_dir(&www).map_err(Error::io(www.display()))?;
    for (_, size) in SIZES {
        let file = www.join(size.to_string());
        std::fs::write(&file, vec![b'x'; size]).map_err(Error::io(file.display()))?;
    }
    certificates(dir)
}

fn servers(args: &MatrixArgs) -> Result<Vec<ServerProgram>, Error> {
    let own = || std::env::current_exe().map_err(Error::io("this program"));
    let mut servers = vec![("forebay", args.forebay.clone().map_or_else(own, Ok)?)];
    match Command::new(&args.nginx).arg("-v").stderr(std::process::Stdio::null()).status() {
        Ok(_) => servers.push(("nginx", args.nginx.clone())),
        Err(e) => eprintln!("{}: {e}; Forebay alone is measured", args.nginx.display()),
    }
    Ok(servers)
}

/// Returns the numbers of CPUs that servers get in turn: 1, 2, 4 and so on, and the most.
fn counts(args: &MatrixArgs, allowed: usize) -> Vec<usize> {
    let most = args.max_cpus.map_or(allowed, |n| n as usize).min(allowed).max(1);
    let mut counts: Vec<usize> = (0..).map(|i| 1 << i).take_while(|n| *n < most).collect();
    counts.push(most);
    counts
}

/// A server that runs.
struct Contender {
    process: Started,
    ports: [u16; 3],
}

impl Matrix<'_> {
    /// Returns the CPUs that servers leave free, or all if they leave none.
    fn client_cpus(&self, used: &[usize]) -> Vec<usize> {
        let rest: Vec<usize> = self.allowed.iter().copied().filter(|c| !used.contains(c)).collect();
        if rest.is_empty() { self.allowed.clone() } else { rest }
    }

    /// Measures all columns with servers on so many CPUs.
    fn measure(&mut self, cpus: usize) -> Result<(), Error> {
        let used: Vec<usize> = self.allowed.iter().copied().take(cpus).collect();
        let running = self.start(&used)?;
        let rest = self.client_cpus(&used);
        for at in 0..self.columns.len() {
            for (s, cell) in self.column(at, &running, &rest)? {
                let Column { part, name, .. } = &self.columns[at];
                eprintln!("{cpus} CPUs  {part:<12} {name:<18} {:<8} {:>12.1}", self.servers[s].0, cell.value);
                self.figures.insert((at, cpus, s), cell);
            }
            if crate::signals::interrupted() {
                break;
            }
        }
        Ok(())
    }

    /// Starts all servers on CPUs.
    fn start(&self, cpus: &[usize]) -> Result<Vec<Contender>, Error> {
        let ports: Vec<[u16; 3]> = self.servers.iter().map(|_| free_ports()).collect::<Result<_, _>>()?;
        let mut running = Vec::new();
        for ((name, program), ports) in self.servers.iter().zip(ports) {
            let folder = format!("{name}-{}", cpus.len());
            let home = self.dir.join(&folder);
            std::fs::create_dir(&home).map_err(Error::io(home.display()))?;
            let conf = home.join("nginx.conf");
            let text = configuration(self.dir, cpus, &ports).replace("/pid;", &format!("/{folder}/pid;"));
            std::fs::write(&conf, text).map_err(Error::io(conf.display()))?;
            let mut process = Started::new(program, &conf)?;
            let addr = Address::Tcp(([127, 0, 0, 1], ports[0]).into());
            process.wait(|| accepts(&addr)).map_err(|e| Error::Usage(format!("{name}: {e}")))?;
            running.push(Contender { process, ports });
        }
        Ok(running)
    }

    /// Measures a column in rounds. Returns the median of each server that was measured.
    fn column(&self, at: usize, running: &[Contender], cpus: &[usize]) -> Result<Vec<(usize, Cell)>, Error> {
        let mut all: Vec<Vec<Cell>> = vec![Vec::new(); running.len()];
        for round in 0..self.args.rounds {
            let mut turn: Vec<usize> = (0..running.len()).collect();
            if round % 2 == 1 {
                turn.reverse();
            }
            for s in turn {
                all[s].push(measure(self.args, &self.columns[at], &running[s], cpus)?);
            }
            if crate::signals::interrupted() {
                break;
            }
        }
        let median = |cells: &[Cell]| Cell {
            value: crate::stats::median(&cells.iter().map(|c| c.value).collect::<Vec<_>>()),
            limited: cells.iter().any(|c| c.limited),
        };
        Ok(all.iter().enumerate().filter(|(_, c)| !c.is_empty()).map(|(s, c)| (s, median(c))).collect())
    }
}

fn measure(args: &MatrixArgs, column: &Column, server: &Contender, cpus: &[usize]) -> Result<Cell, Error> {
    let scheme = if column.port == 0 { "http" } else { "https" };
    let port = server.ports.get(column.port).copied().unwrap_or(0);
    let url = format!("{scheme}://127.0.0.1:{port}{}", column.path);
    let pid = server.process.pid();
    let mut options = LoadArgs::plain();
    options.connections = args.connections;
    options.duration = args.duration;
    options.insecure = true;
    options.no_keepalive = column.close;
    options.server_pid = Some(pid);
    let (mut load, _): (Load, _) = options.load(&[url])?;
    load.cpus = cpus.to_vec();
    load.stop = Stop::After(args.duration);
    load.warmup = (args.duration / 5).min(Duration::from_millis(500));
    let report = run::run(&load, Server::of(pid), |_| !crate::signals::interrupted())?;
    if report.is_void() && !report.outcome.interrupted {
        let why = report.findings.iter().find(|f| f.void).map_or("", |f| f.text.as_str());
        return Err(Error::Usage(format!("{} {}: {why}", column.part, column.name)));
    }
    let outcome = &report.outcome;
    let value = match column.part {
        "throughput" => outcome.record.bytes_in as f64 * 8.0 / 1e9 / outcome.measured.as_secs_f64().max(1e-9),
        _ => outcome.rate(),
    };
    Ok(Cell { value, limited: report.findings.iter().any(|f| f.client) })
}

fn thousands(value: f64) -> String {
    if value < 1000.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

const TITLES: [(&str, &str); 4] = [
    ("http", "Requests per second over HTTP"),
    ("https", "Requests per second over HTTPS (RSA 2048)"),
    ("connections", "New connections per second (one request of 0 bytes each)"),
    ("throughput", "Throughput in Gbit/s"),
];

/// A matrix that was measured.
struct Results<'a> {
    columns: &'a [Column],
    /// Numbers of CPUs.
    counts: &'a [usize],
    names: Vec<&'static str>,
    figures: &'a Figures,
    /// Servers and client had the same CPUs at the highest number.
    shared: bool,
}

/// Returns a ratio for tables.
fn factor(a: Option<f64>, b: Option<f64>) -> String {
    match (a, b) {
        (Some(a), Some(b)) if b > 0.0 => format!("{:.2}", a / b),
        _ => "-".into(),
    }
}

impl Results<'_> {
    /// Prints the tables and writes the files that were asked for.
    fn write(&self, args: &MatrixArgs) -> Result<(), Error> {
        let text = self.tables();
        print(&text);
        if let Some(file) = &args.json {
            crate::cli::write_out(file, &format!("{:#}\n", self.json()))?;
        }
        if let Some(file) = &args.html {
            crate::cli::write_out(file, &self.page(&text))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let cell = |((at, cpus, s), cell): (&(usize, usize, usize), &Cell)| {
            let Column { part, name, index, .. } = &self.columns[*at];
            json!({"part": part, "column": name, "cpus": cpus, "server": self.names[*s], "value": cell.value,
                   "client_limited": cell.limited, "published": published(part, *index, *cpus)})
        };
        let cells: Vec<Value> = self.figures.iter().map(cell).collect();
        json!({"schema": crate::output::json::SCHEMA, "cells": cells})
    }

    fn value(&self, column: usize, cpus: usize, server: usize) -> Option<f64> {
        self.figures.get(&(column, cpus, server)).map(|cell| cell.value)
    }

    /// Returns the columns of a part with their numbers.
    fn part(&self, part: &str) -> Vec<(usize, &Column)> {
        self.columns.iter().enumerate().filter(|(_, c)| c.part == part).collect()
    }

    /// Returns the tables as Markdown.
    fn tables(&self) -> String {
        let mut out = String::new();
        for (part, title) in TITLES {
            let columns = self.part(part);
            if columns.is_empty() {
                continue;
            }
            let _ = writeln!(out, "\n## {title}\n");
            self.head(&mut out);
            for cpus in self.counts {
                for (at, column) in &columns {
                    self.row(&mut out, *cpus, *at, column);
                }
            }
        }
        let _ = writeln!(out, "\n\\* the client was the limit: the server can do at least this.");
        let _ = writeln!(
            out,
            "Published: nginx 1.9.7 on two Xeon E5-2699 v3 over 40 GbE; compare the shape, not the height."
        );
        if self.shared {
            let _ = writeln!(out, "With all CPUs for the server the client ran on the same ones.");
        }
        out
    }

    fn head(&self, out: &mut String) {
        let mut head = String::from("| CPUs | what |");
        for name in &self.names {
            let _ = write!(head, " {name} |");
        }
        if let [a, b] = self.names.as_slice() {
            let _ = write!(head, " {a}/{b} |");
        }
        let first = self.names[0];
        let _ = writeln!(out, "{head} published | {first} to 1 CPU | published to 1 CPU |");
        let columns = self.names.len() + 5 + usize::from(self.names.len() == 2);
        let _ = writeln!(out, "|{}", " ---: |".repeat(columns));
    }

    fn row(&self, out: &mut String, cpus: usize, at: usize, column: &Column) {
        let _ = write!(out, "| {cpus} | {} |", column.name);
        for s in 0..self.names.len() {
            let cell = match self.figures.get(&(at, cpus, s)) {
                Some(cell) => format!("{}{}", thousands(cell.value), if cell.limited { "*" } else { "" }),
                None => "-".into(),
            };
            let _ = write!(out, " {cell} |");
        }
        let value = |s: usize| self.value(at, cpus, s);
        if self.names.len() == 2 {
            let _ = write!(out, " {} |", factor(value(0), value(1).map(|b| b.max(1e-9))));
        }
        let published_here = published(column.part, column.index, cpus);
        let own = factor(value(0), self.value(at, 1, 0));
        let theirs = factor(published_here, published(column.part, column.index, 1));
        let _ = writeln!(out, " {} | {own} | {theirs} |", published_here.map_or("-".into(), thousands));
    }

    /// Returns tables and plots as HTML.
    fn page(&self, text: &str) -> String {
        let mut body = markdown(text);
        for (part, title) in TITLES {
            let title = title.split(" (").next().unwrap_or(title);
            for (at, column) in self.part(part) {
                body.push_str(&self.scaling(title, at, column).svg());
            }
        }
        html::page("forebay bench matrix", &body)
    }

    /// Returns the plot of a column: figures relative to those with one CPU.
    fn scaling(&self, title: &str, at: usize, column: &Column) -> Plot {
        let factors = |f: &dyn Fn(usize) -> Option<f64>| -> Vec<(f64, f64)> {
            let one = f(1).unwrap_or(0.0);
            let points = self.counts.iter().filter_map(|n| Some((*n as f64, f(*n)? / one)));
            points.filter(|p| p.1.is_finite()).collect()
        };
        let line =
            |name: &str, f: &dyn Fn(usize) -> Option<f64>| Curve { name: name.into(), points: factors(f) };
        let mut lines: Vec<Curve> =
            self.names.iter().enumerate().map(|(s, name)| line(name, &|n| self.value(at, n, s))).collect();
        lines.push(line("published", &|n| published(column.part, column.index, n)));
        Plot {
            title: format!("{title}, {}: scaling", column.name),
            x_label: "CPUs of the server".into(),
            y_label: "times 1 CPU".into(),
            lines,
            x_ticks: self.counts.iter().map(|n| (*n as f64, n.to_string())).collect(),
            log: false,
        }
    }
}

/// Returns tables of Markdown as HTML.
fn markdown(text: &str) -> String {
    let mut out = String::new();
    let mut rows = 0;
    for line in text.lines() {
        if let Some(cells) = line.strip_prefix('|') {
            let cells: Vec<&str> = cells.trim_end_matches('|').split('|').map(str::trim).collect();
            if !cells.iter().all(|c| c.starts_with('-') && c.ends_with(':')) {
                markdown_row(&mut out, &cells, rows == 0);
                rows += 1;
            }
            continue;
        }
        if rows > 0 {
            out.push_str("</table>\n");
            rows = 0;
        }
        markdown_line(&mut out, line);
    }
    out
}

/// Writes a line outside of tables as HTML.
fn markdown_line(out: &mut String, line: &str) {
    if let Some(title) = line.strip_prefix("## ") {
        let _ = writeln!(out, "<h2>{}</h2>", html::escape(title));
    } else if !line.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", html::escape(line.trim_start_matches('\\')));
    }
}

fn markdown_row(out: &mut String, cells: &[&str], is_head: bool) {
    let tag = if is_head { "th" } else { "td" };
    out.push_str(if is_head { "<table><tr>" } else { "<tr>" });
    for cell in cells {
        let _ = write!(out, "<{tag}>{}</{tag}>", html::escape(cell));
    }
    out.push_str("</tr>\n");
}
