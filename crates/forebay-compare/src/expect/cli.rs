//! `forebay test`.

use super::file::{self, SCHEMA};
use super::output::{self, Results};
use super::run::{self, Run, Setting};
use super::update;
use crate::outcome;
use clap::Parser;
use forebay_bench::signals;
use forebay_terminal::print;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Pause between two looks at the files of `--watch`.
const WATCH: Duration = Duration::from_millis(300);

/// Run the tests of a configuration: requests, and what is expected of them
#[derive(Parser, Debug)]
#[command(
    name = "test",
    after_help = "A file has requests and expectations in YAML, see docs/test.md. A private copy of the configuration runs at ports of its own, with \
                  a stand-in for all upstreams; nothing live is touched. Exit code 0: all expectations hold, 1: some do not, 2: a file or a \
                  configuration cannot be run."
)]
struct CommandLine {
    /// Files of expectations
    #[arg(required_unless_present = "schema")]
    files: Vec<PathBuf>,
    /// Configuration of files that name none
    #[arg(short = 'c', value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Prefix of relative paths in configurations
    #[arg(short = 'p', value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Run another program, such as nginx, with the configuration
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
    /// Only tests with this in their names
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print TAP
    #[arg(long, conflicts_with = "watch")]
    tap: bool,
    /// Write the results as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Run again when a file or a configuration changes, until ^C
    #[arg(long)]
    watch: bool,
    /// Write what there is into expectations that do not hold
    #[arg(long, conflicts_with = "watch")]
    update: bool,
    /// Print the schema of the files, for editors
    #[arg(long)]
    schema: bool,
}

/// Returns the command as clap knows it, for man pages and completions.
pub fn command() -> clap::Command {
    <CommandLine as clap::CommandFactory>::command()
}

/// Runs `forebay test`. Returns the exit code.
pub fn main(rest: Vec<OsString>) -> u8 {
    let name = OsString::from("forebay test");
    let line = match CommandLine::try_parse_from(std::iter::once(name).chain(rest)) {
        Ok(line) => line,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { 2 } else { 0 };
        }
    };
    if line.schema {
        print(SCHEMA);
        return 0;
    }
    signals::catch();
    match test(&line) {
        Ok(_) if signals::interrupted() => 130,
        Ok(code) => code,
        Err(text) => {
            eprintln!("forebay test: {text}");
            2
        }
    }
}

fn test(line: &CommandLine) -> Result<u8, String> {
    let setting = line.setting()?;
    if line.watch {
        watch(line, &setting);
        return Ok(0);
    }
    let began = Instant::now();
    let all = run_all(line, &setting);
    if line.update {
        return update_files(line, &all);
    }
    // Some of the tests, or those of another program, say nothing about the move.
    if line.filter.is_none() && line.program.is_none() && !signals::interrupted() {
        outcome::tested(&setting, &line.files, &all);
    }
    report(line, &all, began.elapsed())?;
    Ok(code(&all))
}

impl CommandLine {
    fn setting(&self) -> Result<Setting, String> {
        let program = match &self.program {
            Some(program) => crate::cli::executable(program)?,
            None => std::env::current_exe().map_err(|e| e.to_string())?,
        };
        let prefix = match &self.prefix {
            Some(prefix) => std::path::absolute(prefix).map_err(|e| format!("{}: {e}", prefix.display()))?,
            None => crate::cli::prefix_of(&program),
        };
        Ok(Setting { program, prefix, configuration: self.conf.clone(), filter: self.filter.clone() })
    }
}

fn run_all(line: &CommandLine, setting: &Setting) -> Vec<Results> {
    let run = |path: &PathBuf| {
        let run = file::read(path).and_then(|(file, _)| {
            run::run(path, &file, setting).map_err(|why| format!("{}: {why}", path.display()))
        });
        let file = path.display().to_string();
        match run {
            Ok(Run { tested, configuration }) => {
                Results { file, tests: Ok(tested), configuration: Some(configuration) }
            }
            Err(why) => Results { file, tests: Err(why), configuration: None },
        }
    };
    line.files.iter().take_while(|_| !signals::interrupted()).map(run).collect()
}

fn report(line: &CommandLine, all: &[Results], took: Duration) -> Result<(), String> {
    if let Some(path) = &line.junit {
        std::fs::write(path, output::junit(all)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    print(if line.tap { output::tap(all) } else { output::text(all, took) });
    Ok(())
}

fn code(all: &[Results]) -> u8 {
    let broken = all.iter().any(|results| results.tests.is_err());
    let failed = all.iter().flat_map(|results| results.tests.iter().flatten()).any(|test| !test.passed());
    if broken { 2 } else { u8::from(failed) }
}

/// Writes the values that there are into the files.
fn update_files(line: &CommandLine, all: &[Results]) -> Result<u8, String> {
    for (path, results) in line.files.iter().zip(all) {
        let tests = results.tests.as_ref().map_err(Clone::clone)?;
        let (_, text) = file::read(path)?;
        let (new, changed) = update::update(&text, tests);
        if changed > 0 {
            std::fs::write(path, new).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let left = tests.iter().flat_map(|t| &t.failures).filter(|f| f.update.is_none()).count();
        let errors = tests.iter().filter(|t| t.error.is_some()).count();
        let rest = match left + errors {
            0 => String::new(),
            n => format!(", {n} are left for you: rules, and what has no value"),
        };
        print(format!("{}: {changed} expectations updated{rest}\n", path.display()));
    }
    Ok(0)
}

/// Runs again after each change until ^C.
fn watch(line: &CommandLine, setting: &Setting) {
    let mut seen = None;
    while !signals::interrupted() {
        let now = stamps(line, setting);
        if seen.as_ref() != Some(&now) {
            seen = Some(now);
            let began = Instant::now();
            let all = run_all(line, setting);
            if let Err(why) = report(line, &all, began.elapsed()) {
                eprintln!("forebay test: {why}");
            }
        }
        std::thread::sleep(WATCH);
    }
}

/// Returns the times of change of all files that a run reads.
fn stamps(line: &CommandLine, setting: &Setting) -> Vec<(PathBuf, Option<SystemTime>)> {
    let stamp = |path: &Path| (path.to_owned(), std::fs::metadata(path).and_then(|m| m.modified()).ok());
    let mut stamps = Vec::new();
    for path in &line.files {
        stamps.push(stamp(path));
        let conf = file::read(path).and_then(|(file, _)| run::places(path, &file, setting));
        let Ok((conf, _)) = conf else { continue };
        stamps.push(stamp(&conf));
        let source = forebay_copy::patch::Source::with_streams(&conf);
        stamps.extend(source.iter().flat_map(|s| s.files.iter()).map(|(_, path, _)| stamp(path)));
    }
    stamps
}
