//! `bench matrix`: one server measured the way vendors publish it.

use crate::compare::{Started, accepts};
use crate::load::{Load, Stop};
use crate::observe::Server;
use crate::options::LoadArgs;
use crate::output::html::{self, Line, Plot};
use crate::ports::free_port;
use crate::tls::{Kind, self_signed};
use crate::{Error, run, units};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// `bench matrix`.
#[derive(Args, Debug)]
pub struct MatrixArgs {
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

/// Figure by part, column, CPUs and server, and whether the client was the limit.
type Figures = BTreeMap<(usize, usize, usize), (f64, bool)>;

/// Runs the subcommand.
///
/// # Errors
/// A server does not start, or nothing could be measured.
pub fn main(args: &MatrixArgs) -> Result<u8, Error> {
    if let Some(bad) =
        args.parts.iter().find(|p| !["http", "https", "connections", "throughput"].contains(&p.as_str()))
    {
        return Err(Error::Usage(format!(
            "--parts {bad}: there are http, https, connections and throughput"
        )));
    }
    let dir = tempfile::Builder::new().prefix("forebay-matrix-").tempdir().map_err(Error::io("a folder"))?;
    let www = dir.path().join("www");
    std::fs::create_dir(&www).map_err(Error::io(www.display()))?;
    for (_, size) in SIZES {
        let file = www.join(size.to_string());
        std::fs::write(&file, vec![b'x'; size]).map_err(Error::io(file.display()))?;
    }
    certificates(dir.path())?;
    let own = || std::env::current_exe().map_err(Error::io("this program"));
    let mut servers = vec![("forebay", args.forebay.clone().map_or_else(own, Ok)?)];
    match Command::new(&args.nginx).arg("-v").stderr(std::process::Stdio::null()).status() {
        Ok(_) => servers.push(("nginx", args.nginx.clone())),
        Err(e) => eprintln!("{}: {e}; Forebay alone is measured", args.nginx.display()),
    }
    let allowed = forebay_sys::affinity::allowed().map_err(Error::io("CPUs"))?;
    let most = args.max_cpus.map_or(allowed.len(), |n| n as usize).min(allowed.len()).max(1);
    let mut counts: Vec<usize> = (0..).map(|i| 1 << i).take_while(|n| *n < most).collect();
    counts.push(most);
    let columns = columns(&args.parts);
    let mut figures = Figures::new();
    for cpus in counts.iter().copied() {
        let ports: Vec<[u16; 3]> = servers.iter().map(|_| free_ports()).collect::<Result<_, _>>()?;
        let used: Vec<usize> = allowed.iter().copied().take(cpus).collect();
        let mut running = Vec::new();
        for ((name, program), ports) in servers.iter().zip(&ports) {
            let home = dir.path().join(format!("{name}-{cpus}"));
            std::fs::create_dir(&home).map_err(Error::io(home.display()))?;
            let conf = home.join("nginx.conf");
            let text =
                configuration(dir.path(), &used, ports).replace("/pid;", &format!("/{name}-{cpus}/pid;"));
            std::fs::write(&conf, text).map_err(Error::io(conf.display()))?;
            let mut started = Started::new(program, &conf)?;
            let addr = crate::url::Address::Tcp(([127, 0, 0, 1], ports[0]).into());
            started.wait(|| accepts(&addr)).map_err(|e| Error::Usage(format!("{name}: {e}")))?;
            running.push(started);
        }
        let rest: Vec<usize> = allowed.iter().copied().filter(|c| !used.contains(c)).collect();
        for (at, column) in columns.iter().enumerate() {
            let mut all: Vec<Vec<(f64, bool)>> = vec![Vec::new(); servers.len()];
            for round in 0..args.rounds {
                let mut turn: Vec<usize> = (0..servers.len()).collect();
                if round % 2 == 1 {
                    turn.reverse();
                }
                for s in turn {
                    let cell = measure(
                        args,
                        column,
                        &ports[s],
                        running[s].pid(),
                        if rest.is_empty() { &allowed } else { &rest },
                    )?;
                    all[s].push(cell);
                }
                if crate::signals::interrupted() {
                    break;
                }
            }
            for (s, cells) in all.iter().enumerate().filter(|(_, c)| !c.is_empty()) {
                let values: Vec<f64> = cells.iter().map(|c| c.0).collect();
                let cell = (crate::stats::median(&values), cells.iter().any(|c| c.1));
                figures.insert((at, cpus, s), cell);
                eprintln!(
                    "{cpus} CPUs  {:<12} {:<18} {:<8} {:>12.1}",
                    column.part, column.name, servers[s].0, cell.0
                );
            }
            if crate::signals::interrupted() {
                break;
            }
        }
        drop(running);
        if crate::signals::interrupted() {
            break;
        }
    }
    let names: Vec<&str> = servers.iter().map(|(n, _)| *n).collect();
    let shared = counts.last().is_some_and(|n| *n == allowed.len());
    let text = tables(&columns, &counts, &names, &figures, shared);
    print!("{text}");
    if let Some(file) = &args.json {
        let cells: Vec<_> = figures
            .iter()
            .map(|((at, cpus, s), (value, limited))| {
                json!({"part": columns[*at].part, "column": columns[*at].name, "cpus": cpus, "server": names[*s], "value": value,
                       "client_limited": limited, "published": published(columns[*at].part, columns[*at].index, *cpus)})
            })
            .collect();
        crate::cli::write_out(
            file,
            &format!("{:#}\n", json!({"schema": crate::output::json::SCHEMA, "cells": cells})),
        )?;
    }
    if let Some(file) = &args.html {
        crate::cli::write_out(file, &page(&columns, &counts, &names, &figures, &text))?;
    }
    Ok(u8::from(figures.is_empty()))
}

fn measure(
    args: &MatrixArgs,
    column: &Column,
    ports: &[u16; 3],
    pid: u32,
    cpus: &[usize],
) -> Result<(f64, bool), Error> {
    let scheme = if column.port == 0 { "http" } else { "https" };
    let url = format!("{scheme}://127.0.0.1:{}{}", ports.get(column.port).copied().unwrap_or(0), column.path);
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
    let value = match column.part {
        "throughput" => {
            report.outcome.record.bytes_in as f64 * 8.0
                / 1e9
                / report.outcome.measured.as_secs_f64().max(1e-9)
        }
        _ => report.outcome.rate(),
    };
    Ok((value, report.findings.iter().any(|f| f.client)))
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

fn tables(columns: &[Column], counts: &[usize], names: &[&str], figures: &Figures, shared: bool) -> String {
    let mut out = String::new();
    for (part, title) in TITLES {
        let here: Vec<(usize, &Column)> =
            columns.iter().enumerate().filter(|(_, c)| c.part == part).collect();
        if here.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n## {title}\n");
        let mut head = String::from("| CPUs | what |");
        names.iter().for_each(|n| {
            let _ = write!(head, " {n} |");
        });
        if names.len() == 2 {
            let _ = write!(head, " {}/{} |", names[0], names[1]);
        }
        let _ = writeln!(out, "{head} published | {} to 1 CPU | published to 1 CPU |", names[0]);
        let _ = writeln!(out, "|{}", " ---: |".repeat(names.len() + 5 + usize::from(names.len() == 2)));
        for cpus in counts {
            for (at, column) in &here {
                let cell = |s: usize| figures.get(&(*at, *cpus, s));
                let show = |c: Option<&(f64, bool)>| match c {
                    Some((v, limited)) => format!("{}{}", thousands(*v), if *limited { "*" } else { "" }),
                    None => "-".into(),
                };
                let _ = write!(out, "| {cpus} | {} |", column.name);
                (0..names.len()).for_each(|s| {
                    let _ = write!(out, " {} |", show(cell(s)));
                });
                if names.len() == 2 {
                    let ratio = cell(0)
                        .zip(cell(1))
                        .map_or("-".into(), |(a, b)| format!("{:.2}", a.0 / b.0.max(1e-9)));
                    let _ = write!(out, " {ratio} |");
                }
                let before = published(part, column.index, *cpus);
                let factor = |a: Option<f64>, b: Option<f64>| match (a, b) {
                    (Some(a), Some(b)) if b > 0.0 => format!("{:.2}", a / b),
                    _ => "-".into(),
                };
                let own = factor(cell(0).map(|c| c.0), figures.get(&(*at, 1, 0)).map(|c| c.0));
                let theirs = factor(before, published(part, column.index, 1));
                let _ = writeln!(out, " {} | {own} | {theirs} |", before.map_or("-".into(), thousands));
            }
        }
    }
    let _ = writeln!(out, "\n\\* the client was the limit: the server can do at least this.");
    let _ = writeln!(
        out,
        "Published: nginx 1.9.7 on two Xeon E5-2699 v3 over 40 GbE; compare the shape, not the height."
    );
    if shared {
        let _ = writeln!(out, "With all CPUs for the server the client ran on the same ones.");
    }
    out
}

/// The tables as HTML.
fn markdown(text: &str) -> String {
    let mut out = String::new();
    let mut rows = 0;
    for line in text.lines() {
        let cells = line.strip_prefix('|').map(|l| l.trim_end_matches('|').split('|').map(str::trim));
        match cells {
            Some(mut cells) if cells.clone().all(|c| c.starts_with('-') && c.ends_with(':')) => {
                let _ = cells.next();
            }
            Some(cells) => {
                let tag = if rows == 0 { "th" } else { "td" };
                out.push_str(if rows == 0 { "<table><tr>" } else { "<tr>" });
                cells.for_each(|c| {
                    let _ = write!(out, "<{tag}>{}</{tag}>", html::escape(c));
                });
                out.push_str("</tr>\n");
                rows += 1;
            }
            None => {
                if rows > 0 {
                    out.push_str("</table>\n");
                    rows = 0;
                }
                match line.strip_prefix("## ") {
                    Some(title) => {
                        let _ = writeln!(out, "<h2>{}</h2>", html::escape(title));
                    }
                    None if !line.is_empty() => {
                        let _ = writeln!(out, "<p>{}</p>", html::escape(line.trim_start_matches('\\')));
                    }
                    None => {}
                }
            }
        }
    }
    out
}

fn page(columns: &[Column], counts: &[usize], names: &[&str], figures: &Figures, text: &str) -> String {
    let mut body = markdown(text);
    for (part, title) in TITLES {
        let title = title.split(" (").next().unwrap_or(title);
        for (at, column) in columns.iter().enumerate().filter(|(_, c)| c.part == part) {
            let factors = |f: &dyn Fn(usize) -> Option<f64>| -> Vec<(f64, f64)> {
                let one = f(1).unwrap_or(0.0);
                counts
                    .iter()
                    .filter_map(|n| Some((*n as f64, f(*n)? / one)))
                    .filter(|p| p.1.is_finite())
                    .collect()
            };
            let mut lines: Vec<Line> = names
                .iter()
                .enumerate()
                .map(|(s, name)| Line {
                    name: (*name).into(),
                    points: factors(&|n| figures.get(&(at, n, s)).map(|c| c.0)),
                })
                .collect();
            lines.push(Line {
                name: "published".into(),
                points: factors(&|n| published(part, column.index, n)),
            });
            body.push_str(
                &Plot {
                    title: format!("{title}, {}: scaling", column.name),
                    x_label: "CPUs of the server".into(),
                    y_label: "times 1 CPU".into(),
                    lines,
                    x_ticks: counts.iter().map(|n| (*n as f64, n.to_string())).collect(),
                    log: false,
                }
                .svg(),
            );
        }
    }
    html::page("forebay bench matrix", &body)
}
