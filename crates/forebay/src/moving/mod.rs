//! `forebay move`: the steps from a running nginx to Forebay, what state each is in, and the command for the one that is next. It
//! reads and asks; it changes nothing.
//!
//! `nginx` finds the program, `running` the master, `configuration` reads and checks the configuration, `swap` says how the two change
//! places, `steps` makes the list of all that and of the records, `output` prints it. docs/move.md is the page about it.

mod configuration;
mod nginx;
mod output;
mod running;
mod steps;
mod swap;

use crate::cli;
use crate::paths::Paths;
use crate::subcommands::MoveArgs;
use configuration::Configuration;
use forebay_copy::record::{Compared, Digest, Record, Tested, Versions, version_in};
use forebay_core::config::Environment;
use forebay_sys::files;
use forebay_terminal::print;
use nginx::{Nginx, Origin};
use running::Running;
use std::path::{Path, PathBuf};

/// All that the steps are made of.
#[derive(Debug)]
struct Facts {
    /// Path of this program.
    program: PathBuf,
    /// Versions of both programs.
    versions: Versions,
    /// The nginx that is installed; `None` if there is none, or Forebay is in its place and no nginx beside it.
    nginx: Option<Nginx>,
    origin: Origin,
    configuration: Configuration,
    /// The master that runs the configuration.
    running: Option<Running>,
    compared: Option<Record<Compared>>,
    tested: Option<Record<Tested>>,
    /// Files of tests as they are now.
    tests: Digest,
    /// Access log for the comparison.
    log: Option<PathBuf>,
    /// The prefix that was asked for.
    prefix: Option<String>,
}

/// Runs the subcommand. Returns exit code 0, or 2 if what it was asked about is not there.
pub(crate) fn main(args: &MoveArgs) -> u8 {
    match facts(args) {
        Ok(facts) => {
            let steps = steps::of(&facts);
            print(if args.json { output::json(&facts, &steps) } else { output::text(&facts, &steps) });
            0
        }
        Err(why) => {
            eprintln!("forebay move: {why}");
            2
        }
    }
}

fn facts(args: &MoveArgs) -> Result<Facts, String> {
    let nginx = nginx::find(args.nginx.as_deref())?;
    let log = args.log.as_deref().map(file).transpose()?;
    let (environment, paths) = places(args, nginx.as_ref())?;
    let configuration = Configuration::read(&environment, &paths, nginx.as_ref())?;
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let running = Running::find(&configuration.pid, nginx.as_ref(), &program);
    let compared = Record::<Compared>::read(&configuration.path);
    let tested = Record::<Tested>::read(&configuration.path);
    Ok(Facts {
        versions: Versions {
            forebay: version_in(&cli::version_line()).unwrap_or_default(),
            nginx: nginx.as_ref().map(|nginx| nginx.version.clone()),
        },
        origin: Origin::find(nginx.as_ref(), &configuration, running.as_ref()),
        tests: tested.as_ref().map(|record| Digest::read(record.result.files.paths())).unwrap_or_default(),
        log: log.or_else(|| configuration.access_log.clone()),
        prefix: args.prefix.clone(),
        program,
        nginx,
        configuration,
        running,
        compared,
        tested,
    })
}

/// Returns the absolute path of a file that can be read.
///
/// # Errors
/// It cannot be read.
fn file(path: &Path) -> Result<PathBuf, String> {
    let say = |e: std::io::Error| format!("{}: {e}", path.display());
    files::open_regular(path).map_err(say)?;
    std::path::absolute(path).map_err(say)
}

/// Returns the places that the options name, and else those of nginx.
fn places(args: &MoveArgs, nginx: Option<&Nginx>) -> Result<(Environment, Paths), String> {
    let conf = args
        .conf
        .as_deref()
        .or(args.file.as_deref())
        .map(std::path::absolute)
        .transpose()
        .map_err(|e| e.to_string())?;
    let paths = match (&args.prefix, nginx) {
        (None, Some(nginx)) => nginx.paths.clone(),
        (prefix, _) => Paths::new(prefix.as_deref()),
    };
    let environment = Environment {
        prefix: paths.prefix.clone(),
        conf_path: conf.unwrap_or_else(|| paths.conf.clone()),
        globals: String::new(),
        error_log: Some(paths.error_log.clone()),
        access_log: paths.access_log.clone(),
    };
    Ok((environment, paths))
}
