//! `forebay compare`.

use crate::known::Knowledge;
use crate::outcome;
use crate::pair::Side;
use crate::run::{self, Question};
use clap::Parser;
use forebay_bench::signals;
use forebay_conf::version::NginxVersion;
use forebay_copy::patch::Source;
use forebay_terminal::print;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Run a configuration under nginx and under Forebay, send both the same requests, and show what differs
#[derive(Parser, Debug)]
#[command(
    name = "compare",
    after_help = "Private copies of the configuration run at ports of their own, with a recorder in place of all upstreams; nothing live is \
                  touched. Exit code 0: no unknown difference, 1: there are some, 2: no comparison was made. See docs/compare.md."
)]
struct CommandLine {
    /// Configuration
    #[arg(short = 'c', value_name = "FILE", default_value_os_t = forebay_conf::files::default_configuration())]
    conf: PathBuf,
    /// Prefix of its relative paths (default: that of nginx)
    #[arg(short = 'p', value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Executable of nginx (default: the one in the path)
    #[arg(long, value_name = "FILE", conflicts_with = "with")]
    nginx: Option<PathBuf>,
    /// Another program in place of nginx, such as another version of Forebay
    #[arg(long, value_name = "PROGRAM")]
    with: Option<PathBuf>,
    /// Executable of Forebay (default: this one)
    #[arg(long, value_name = "FILE")]
    forebay: Option<PathBuf>,
    /// Another configuration for the second server; without --nginx and --with both are this program
    #[arg(long, value_name = "FILE")]
    with_config: Option<PathBuf>,
    /// Send the requests of this access log too: in the combined format, or a log_format of the configuration
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Most requests
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Threads that send requests
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Write the report as JSON (`-`: to standard output, in place of the text)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write tests of what both agree on, for `forebay test`
    #[arg(long, value_name = "FILE")]
    write_tests: Option<PathBuf>,
    /// Compare live traffic until ^C, a line a minute: requests that nginx's mirror sends to this address, or with `log` the new
    /// lines of --log
    #[arg(long, value_name = "ADDRESS:PORT|log")]
    live: Option<String>,
    /// With --live: send methods that may change something, too
    #[arg(long, requires = "live")]
    all_methods: bool,
    #[arg(long, hide = true, value_name = "SECONDS")]
    every: Option<u64>,
    /// Run both copies until ^C and send nothing, to look at differences by hand
    #[arg(long)]
    hold: bool,
}

/// Returns the command as clap knows it, for man pages and completions.
pub fn command() -> clap::Command {
    <CommandLine as clap::CommandFactory>::command()
}

/// Runs `forebay compare`. Returns the exit code.
pub fn main(rest: Vec<OsString>) -> u8 {
    let name = OsString::from("forebay compare");
    let line = match CommandLine::try_parse_from(std::iter::once(name).chain(rest)) {
        Ok(line) => line,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { 2 } else { 0 };
        }
    };
    signals::catch();
    match compare(&line) {
        Ok(_) if signals::interrupted() && !line.hold && line.live.is_none() => 130,
        Ok(code) => code,
        Err(text) => {
            eprintln!("forebay compare: {text}");
            2
        }
    }
}

fn compare(line: &CommandLine) -> Result<u8, String> {
    let question = question(line)?;
    if question.hold {
        run::hold(&question)?;
        return Ok(0);
    }
    let report = match &line.live {
        Some(place) => run::live(&question, place_of(place, line)?, line.all_methods)?,
        None => run::compare(&question)?,
    };
    // Other programs, and what came in the meantime, say nothing about the move.
    if line.with.is_none() && question.same_files && line.live.is_none() && !signals::interrupted() {
        outcome::compared(&question, &report);
    }
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    let to_output = line.json.as_deref() == Some(Path::new("-"));
    if let Some(path) = &line.json {
        let text = format!("{:#}\n", report.json());
        if to_output {
            print(text);
        } else {
            write(path, text)?;
        }
    }
    if let Some(path) = &line.html {
        write(path, report.html())?;
    }
    if !to_output {
        print(report.text());
    }
    Ok(u8::from(report.unknown().next().is_some()))
}

/// Reads the value of `--live`; `None`: a log.
fn place_of(place: &str, line: &CommandLine) -> Result<Option<SocketAddr>, String> {
    match place {
        "log" if line.log.is_some() => Ok(None),
        "log" => Err("--live log needs --log FILE".into()),
        address => {
            address.parse().map(Some).map_err(|_| format!("--live {address}: expected ADDRESS:PORT or log"))
        }
    }
}

fn question(line: &CommandLine) -> Result<Question, String> {
    let this = match &line.forebay {
        Some(program) => executable(program)?,
        None => std::env::current_exe().map_err(|e| e.to_string())?,
    };
    let first = match (&line.nginx, &line.with, &line.with_config) {
        (Some(program), ..) | (None, Some(program), _) => executable(program)?,
        (None, None, Some(_)) => this.clone(),
        (None, None, None) => nginx()?,
    };
    let prefix = match &line.prefix {
        Some(prefix) => std::path::absolute(prefix).map_err(|e| format!("{}: {e}", prefix.display()))?,
        None => prefix_of(&first),
    };
    let second_conf = line.with_config.as_ref().unwrap_or(&line.conf);
    let side = |program: &Path, conf: &Path| -> Result<Side, String> {
        let source = Source::with_streams(conf)?;
        Ok(Side { program: program.to_owned(), prefix: prefix.clone(), source })
    };
    let names =
        names(&first, &this, line.with_config.as_ref().map(|second| (line.conf.as_path(), second.as_path())));
    let knowledge = Knowledge { nginx: NginxVersion::of_program(&first).ok() };
    Ok(Question {
        knowledge,
        sides: [side(&first, &line.conf)?, side(&this, second_conf)?],
        names,
        same_files: line.with_config.is_none(),
        log: line.log.clone(),
        most: line.requests as usize,
        threads: line.threads.into(),
        hold: line.hold,
        tests: line.write_tests.clone(),
        every: line.every.map(Duration::from_secs),
    })
}

/// Returns the names of both servers for people: those of the programs, or of the configurations if there is one program.
fn names(first: &Path, second: &Path, configurations: Option<(&Path, &Path)>) -> [String; 2] {
    let name = |p: &Path| p.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
    let programs = [name(first), name(second)];
    if programs[0] != programs[1] {
        return programs;
    }
    match configurations {
        Some((a, b)) if name(a) != name(b) => [name(a), name(b)],
        _ if first == second => ["the first".into(), "the second".into()],
        _ => [first.display().to_string(), second.display().to_string()],
    }
}

pub(crate) fn executable(path: &Path) -> Result<PathBuf, String> {
    let path = std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?;
    match path.metadata() {
        Ok(meta) if meta.is_file() => Ok(path),
        Ok(_) => Err(format!("{} is no program", path.display())),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

fn nginx() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|d| d.join("nginx"))
        .find(|p| p.is_file())
        .ok_or_else(|| "there is no nginx in the path; name it with --nginx".into())
}

/// Returns the prefix that a program was built with.
pub(crate) fn prefix_of(program: &Path) -> PathBuf {
    let output = Command::new(program).arg("-V").output().map(|o| o.stderr).unwrap_or_default();
    let text = String::from_utf8_lossy(&output).into_owned();
    let found = text.split_whitespace().find_map(|w| w.strip_prefix("--prefix="));
    found.map_or_else(|| "/usr/share/nginx".into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_names_that_differ() {
        let path = Path::new;
        assert_eq!(names(path("/a/nginx"), path("/b/forebay"), None), ["nginx", "forebay"]);
        let two = Some((path("/etc/old.conf"), path("/etc/new.conf")));
        assert_eq!(names(path("/b/forebay"), path("/b/forebay"), two), ["old.conf", "new.conf"]);
        assert_eq!(names(path("/a/forebay"), path("/b/forebay"), None), ["/a/forebay", "/b/forebay"]);
        assert_eq!(names(path("/b/forebay"), path("/b/forebay"), None), ["the first", "the second"]);
    }

    #[test]
    fn a_program_that_is_missing_is_told() {
        assert!(executable(path("/nowhere/nginx")).is_err_and(|e| e.contains("/nowhere/nginx")));
        fn path(text: &str) -> &Path {
            Path::new(text)
        }
    }
}
