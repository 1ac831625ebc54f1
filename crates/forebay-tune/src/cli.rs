//! `forebay tune`.

use crate::knobs::{KNOBS, Safety, level_text};
use crate::program::Which;
use crate::rig::Goal;
use crate::state::{clean, lock, state_dir};
use crate::{apply, load_point, replay, table, tuning, watch};
use clap::{Args, Parser, Subcommand, ValueEnum};
use forebay_bench::{signals, units};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Parser)]
#[command(
    name = "forebay tune",
    about = "Finds out by measuring which settings make a server faster, and proves it",
    args_conflicts_with_subcommands = true
)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Wish>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand)]
enum Wish {
    /// Measure the steps of published tuning articles on this machine
    Replay(replay::ReplayArgs),
    /// Five loads, nginx and Forebay, each as it is and tuned: the table of docs/performance-notes.md
    Table(table::TableArgs),
    /// Cleans up behind a tuner that was killed
    #[command(hide = true)]
    Watch(watch::WatchArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    Auto,
    Static,
    Proxied,
    Tls,
    Mixed,
}

/// Command line of a tuning.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// Configuration
    #[arg(short = 'c', value_name = "FILE", default_value_os_t = forebay_conf::files::default_configuration())]
    pub(crate) conf: PathBuf,
    /// Prefix of its relative paths
    #[arg(short = 'p', value_name = "DIR")]
    pub(crate) prefix: Option<PathBuf>,
    /// What is measured
    #[arg(long, value_enum, default_value = "forebay")]
    pub(crate) server: Which,
    /// Executable of the server
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// What is to be better
    #[arg(long = "for", value_enum, default_value = "cpu")]
    pub(crate) goal: Goal,
    /// Limit of p99 that has to hold (default: 1.1 times that of the original)
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) p99: Option<Duration>,
    /// Requests a second that are sent, whatever the server does (default: as fast as they go); with --for latency
    /// p99 counts from the moment a request was due
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub(crate) rate: Option<u64>,
    /// Requests a second as a part of what the original can do at most, which is measured before: 10% to 95%, best 85% to
    /// 90%
    #[arg(long, value_name = "PERCENT", value_parser = load_point::percentage, conflicts_with = "rate")]
    pub(crate) load: Option<u8>,
    /// Most memory of the server (default: three times that of the original, and 256 MB)
    #[arg(long, value_name = "BYTES", value_parser = units::count)]
    pub(crate) memory: Option<u64>,
    /// Time for all runs
    #[arg(long, default_value = "25m", value_parser = units::duration)]
    pub(crate) budget: Duration,
    /// Seed of all choices
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,
    /// What is asked for: files below the roots, locations with proxy_pass, what is encrypted, or all
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) workload: Workload,
    /// One file of this size in place of the files below the roots
    #[arg(long, value_name = "BYTES", value_parser = units::count)]
    pub(crate) static_size: Option<u64>,
    /// Access log whose requests are sent
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,
    /// Time that the stand-in for upstreams takes
    #[arg(long, default_value = "0s", value_parser = units::duration)]
    pub(crate) upstream_latency: Duration,
    /// Bytes that it answers with
    #[arg(long, default_value = "4k", value_parser = units::count)]
    pub(crate) upstream_size: u64,
    /// Load the real upstreams
    #[arg(long)]
    pub(crate) real_upstreams: bool,
    /// Connections
    #[arg(long, default_value = "32", value_parser = units::count)]
    pub(crate) connections: u64,
    /// Speak HTTP/2
    #[arg(long, conflicts_with = "http3")]
    pub(crate) http2: bool,
    /// Speak HTTP/3, to the servers that have a listen with quic
    #[arg(long)]
    pub(crate) http3: bool,
    /// Settings to try (default: all that can matter)
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Directives that are known to be set badly: their settings come first
    #[arg(long, hide = true, value_delimiter = ',')]
    pub(crate) known: Vec<String>,
    /// Settings not to try
    #[arg(long, value_delimiter = ',')]
    pub(crate) skip: Vec<String>,
    /// Try kernel settings too; they are put back
    #[arg(long)]
    pub(crate) sysctl: bool,
    #[arg(long, hide = true, default_value = "/proc/sys")]
    pub(crate) sysctl_root: PathBuf,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "forebay-tune")]
    pub(crate) out: PathBuf,
    /// Where the lock, the private copy and the journal are
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Go on with the run in --out
    #[arg(long)]
    pub(crate) resume: bool,
    /// Put proven lines into the configuration, test it and reload; the old one is kept
    #[arg(long)]
    pub(crate) apply: bool,
    /// How long the running server is watched after --apply; what answered before has to go on, or the old files are
    /// put back
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub(crate) canary: Duration,
    /// Undo --apply
    #[arg(long, conflicts_with = "apply")]
    pub(crate) rollback: bool,
    /// List what can be set, and end
    #[arg(long)]
    pub(crate) list: bool,
}

/// Returns the command as clap knows it, for man pages and completions.
pub fn command() -> clap::Command {
    <CommandLine as clap::CommandFactory>::command()
}

/// Runs `forebay tune`; the exit code is 0 when there is a result, 1 when there is none, 2 for mistakes in the command
/// line, 130 after ^C.
pub fn main(rest: Vec<OsString>) -> u8 {
    main_knowing(rest, &|_| Vec::new())
}

/// Runs `forebay tune` as [`main`] does. `known` returns the directives that are known to be set badly in a configuration; the
/// settings that they belong to are tried first.
pub fn main_knowing(rest: Vec<OsString>, known: &dyn Fn(&Path) -> Vec<String>) -> u8 {
    let name = OsString::from("forebay tune");
    let mut line = match CommandLine::try_parse_from(std::iter::once(name).chain(rest)) {
        Ok(line) => line,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { 2 } else { 0 };
        }
    };
    signals::catch();
    if line.command.is_none() && !line.run.list && !line.run.rollback {
        line.run.known.extend(known(&line.run.conf));
    }
    match run(&line) {
        Ok(()) if signals::interrupted() => 130,
        Ok(()) => 0,
        Err(text) => {
            eprintln!("forebay tune: {text}");
            1
        }
    }
}

fn run(line: &CommandLine) -> Result<(), String> {
    match &line.command {
        Some(Wish::Replay(args)) => replay::main(args),
        Some(Wish::Table(args)) => table::main(args),
        Some(Wish::Watch(args)) => watch::main(args),
        None if line.run.list => {
            list();
            Ok(())
        }
        None if line.run.rollback => apply::rollback(&line.run.out),
        None => tune(&line.run),
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

/// Returns the arguments of a tuning, from words.
///
/// # Errors
/// A word that is no option, or a bad value.
pub(crate) fn arguments(words: &[String]) -> Result<RunArgs, String> {
    let line =
        CommandLine::try_parse_from(std::iter::once("forebay tune").chain(words.iter().map(String::as_str)))
            .map_err(|e| e.to_string())?;
    Ok(line.run)
}

/// Returns the number of CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Tunes in a state directory of its own, with a watcher that cleans up if this process is killed.
fn tune(args: &RunArgs) -> Result<(), String> {
    let state = state_dir(args.state.as_deref())?;
    let _lock = lock(&state)?;
    let _watch = watch::start(&state);
    let done = tuning::tune(args, &state);
    clean(&state);
    done
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
}
