//! `forebay bench`.

use crate::compare::{self, CompareArgs};
use crate::gate::{self, Condition};
use crate::options::{LoadArgs, limit};
use crate::output::live::Live;
use crate::output::{colour, html, is_known, json, text};
use crate::run::{self, Report};
use crate::{Error, ab, agent, backend, duration_text, matrix, wrk};
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

#[derive(Parser)]
#[command(
    name = "forebay bench",
    about = "Loads a server and says how far the figures can be trusted",
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true
)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Wish>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand)]
enum Wish {
    /// Compare two targets in interleaved rounds
    Compare(Box<CompareArgs>),
    /// The sizing matrix of vendors: sizes, CPUs, handshakes, throughput
    Matrix(matrix::MatrixArgs),
    /// Load on behalf of another machine
    Agent(agent::AgentArgs),
    /// A server for loads of bytes: it sends back what it gets
    Backend(backend::BackendArgs),
    /// Options and output of wrk and wrk2
    #[command(disable_help_flag = true)]
    Wrk(Foreign),
    /// Options and output of ab
    #[command(disable_help_flag = true)]
    Ab(Foreign),
}

#[derive(Args)]
struct Foreign {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// A plain run.
#[derive(Args)]
struct RunArgs {
    /// URLs: http://..., https://..., unix:/path/of/socket:/path, tcp://HOST:PORT, tls://HOST:PORT, udp://HOST:PORT
    urls: Vec<String>,
    #[command(flatten)]
    load: LoadArgs,
    /// Write the result as JSON to a file, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the latency distribution for HdrHistogram's tools
    #[arg(long, value_name = "FILE")]
    hgrm: Option<PathBuf>,
    /// Write a report with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// End with exit code 3 if this holds, such as p99>10ms: p50, p75, p90, p95, p99, p999, max or mean (a time), errors (a number or a share
    /// of the requests), rate (requests a second) or cpu (the server's CPU time a request), then > or <, then the limit. May be
    /// given several times
    #[arg(long, value_name = "CONDITION", value_parser = Condition::parse)]
    fail_if: Vec<Condition>,
    /// Write what --fail-if found as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// No view while it runs
    #[arg(short, long)]
    quiet: bool,
    /// Lines instead of a screen
    #[arg(long)]
    plain: bool,
    /// Agents that share the load, HOST:PORT,...
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    agents: Vec<String>,
    /// File with the secret shared with the agents
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

/// Returns the command as clap knows it, for man pages and completions.
pub fn command() -> clap::Command {
    <CommandLine as clap::CommandFactory>::command()
}

/// Runs `bench` with the arguments after it. Returns the exit code: 0; 1 nothing measured; 2 a mistake in the command line, or the
/// figures are void; 3 a condition of `--fail-if` holds.
pub fn main(arguments: Vec<OsString>) -> u8 {
    crate::signals::catch();
    let name = OsString::from("forebay bench");
    let line = match CommandLine::try_parse_from(std::iter::once(name).chain(arguments)) {
        Ok(line) => line,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { 2 } else { 0 };
        }
    };
    let texts = |f: Foreign| f.rest.into_iter().map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>();
    // wrk and ab end with 1, and scripts may look at that.
    let usage = if matches!(line.command, Some(Wish::Wrk(_) | Wish::Ab(_))) { 1 } else { 2 };
    let result = match line.command {
        None => plain(&line.run),
        Some(Wish::Compare(args)) => compare::main(&args),
        Some(Wish::Matrix(args)) => matrix::main(&args),
        Some(Wish::Agent(args)) => agent::main(&args),
        Some(Wish::Backend(args)) => backend::main(&args),
        Some(Wish::Wrk(rest)) => wrk::main(&texts(rest)),
        Some(Wish::Ab(rest)) => ab::main(&texts(rest)),
    };
    result.unwrap_or_else(|e| {
        eprintln!("forebay bench: {e}");
        if matches!(e, Error::Usage(_)) { usage } else { 1 }
    })
}

pub(crate) use forebay_terminal::print;

/// Writes to a file, or to standard output for `-`.
///
/// # Errors
/// The file cannot be written.
pub fn write_out(file: &Path, text: &str) -> Result<(), Error> {
    if file.as_os_str() == "-" {
        print(text);
        return Ok(());
    }
    std::fs::write(file, text).map_err(Error::io(file.display()))
}

fn live(args: &RunArgs) -> Live {
    if args.plain { Live::Lines(0.0) } else { Live::new(&title(args), args.quiet) }
}

fn plain(args: &RunArgs) -> Result<u8, Error> {
    if !args.agents.is_empty() {
        let mut live = live(args);
        let file = args.secret_file.as_deref();
        let report = agent::lead(&args.agents, file, &args.load, &args.urls, |p| live.show(p));
        drop(live);
        return finish(args, &report?);
    }
    let (load, server) = args.load.load(&args.urls)?;
    if let Some(wish) = &args.load.find_limit {
        return find(args, wish);
    }
    let mut live = live(args);
    let report = run::run(&load, server, |p| live.show(p));
    drop(live);
    finish(args, &report?)
}

fn title(args: &RunArgs) -> String {
    format!("forebay bench  {}", args.urls.first().map_or("", String::as_str))
}

fn finish(args: &RunArgs, report: &Report) -> Result<u8, Error> {
    if let (Some(why), 0) = (report.distrusts(), report.outcome.record.complete) {
        return Err(Error::Distrusted(format!("{}: {why}", report.target)));
    }
    let verdicts = gate::judge(&args.fail_if, report);
    let files = [&args.json, &args.hgrm, &args.html, &args.junit];
    if !files.into_iter().flatten().any(|file| file.as_os_str() == "-") {
        let bars = if std::io::stdout().is_terminal() {
            text::histogram(&report.outcome.record.latency)
        } else {
            String::new()
        };
        let text = text::summary(report) + &bars + &gate::text(&verdicts);
        write_out(Path::new("-"), &if colour::is_wanted() { colour::paint(&text) } else { text })?;
    }
    // Afterwards: a file that cannot be written shall not cost the figures.
    if let Some(file) = &args.json {
        write_out(file, &format!("{:#}\n", json::report(report)))?;
    }
    if let Some(file) = &args.hgrm {
        write_out(file, &text::hgrm(&report.outcome.record.latency))?;
    }
    if let Some(file) = &args.html {
        write_out(file, &html::report(report))?;
    }
    if let Some(file) = &args.junit {
        write_out(file, &gate::junit(&verdicts, report))?;
    }
    gate::summarize(&verdicts, report)?;
    Ok(gate::exit_code(&verdicts, report))
}

/// Searches the highest rate that meets the demand of `--find-limit`.
fn find(args: &RunArgs, wish: &str) -> Result<u8, Error> {
    let (quantile, within) = limit(wish)?;
    if args.hgrm.is_some() || args.html.is_some() || args.load.requests.is_some() {
        return Err(Error::Usage(
            "--find-limit goes by time (-d) and writes --json, not --hgrm or --html".into(),
        ));
    }
    if !args.fail_if.is_empty() || args.junit.is_some() {
        return Err(Error::Usage(
            "--find-limit has a demand of its own: --fail-if and --junit do not go with it".into(),
        ));
    }
    let (mut load, server) = args.load.load(&args.urls)?;
    // Steps need not be long; the search has many.
    load.stop = crate::load::Stop::After(args.load.duration);
    load.drain = Some(within * 2);
    let demand = run::Demand { quantile, within };
    let found = run::find_limit(&load, server.as_ref(), demand, |rate, at, passed| {
        if !args.quiet {
            let held = if passed { "held" } else { "not held" };
            eprintln!("{rate:>10.0}/s  {wish}: {:>9}  {held}", duration_text(at));
        }
        !crate::signals::interrupted()
    })?;
    report_limit(args, wish, &found)?;
    let answers = found.rate * args.load.duration.as_secs_f64();
    if found.rate > 0.0 && !is_known(quantile, answers) {
        print(format!("note: a step had {answers:.0} requests, too few for {wish}; -d makes it longer\n"));
    }
    Ok(u8::from(found.rate <= 0.0))
}

/// Prints and writes the result of `--find-limit`.
fn report_limit(args: &RunArgs, wish: &str, found: &run::Limit) -> Result<(), Error> {
    if let Some(file) = &args.json {
        write_out(file, &format!("{:#}\n", limit_json(wish, found)))?;
    }
    if found.rate <= 0.0 {
        print(format!("{wish} was not held at any rate that was tried\n"));
        return Ok(());
    }
    print(format!("highest rate with {wish}: {:.0} requests/s\n", found.rate));
    if found.client_limited {
        print("note: beyond that the client was the limit; the server may hold more\n");
    }
    Ok(())
}

fn limit_json(wish: &str, found: &run::Limit) -> Value {
    let step = |(rate, at, held): &(f64, u64, bool)| json!({"rate": rate, "latency_us": *at as f64 / 1e3, "held": held});
    let steps: Vec<_> = found.tried.iter().map(step).collect();
    json!({"schema": json::SCHEMA, "limit": wish, "rate": found.rate, "client_limited": found.client_limited,
           "steps": steps})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
        assert!(LoadArgs::plain().connections == 50);
    }
}
