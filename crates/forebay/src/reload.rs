//! `forebay reload`: a reload that returns when the new configuration is in effect, or has been refused.
//!
//! A signal carries no result back. The command binds a unix socket of datagrams beside the pid file and sends HUP. The
//! master looks for such sockets when a reload begins, and sends the result to them when it is known. A socket that is
//! there by then belongs to a command whose changes to the files the reload reads.

use crate::cli::{self, Options, Signal as Wish};
use crate::control_api::{self, client::Failed};
use crate::front_ends::load_all;
use crate::master_log::errno;
use crate::server::Found;
use crate::{check, in_effect, title};
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_terminal::print;
use nix::unistd::Pid;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Part of a socket's name between that of the pid file and the process number of the command.
const INFIX: &str = ".reload.";
/// Most commands that one reload answers. Each is a file, and others than root may be able to make files there.
const MOST: usize = 64;
/// Longest text of an answer, bytes.
const LONGEST: usize = 4096;
/// First byte of an answer.
const IN_EFFECT: u8 = b'+';
const REFUSED: u8 = b'-';
/// Time between two looks whether the master still runs.
const LOOK: Duration = Duration::from_millis(100);

/// Result of a reload: the number of the configuration in effect, or the reason why the new one was refused.
pub(crate) type Outcome = Result<u64, String>;

/// Commands that wait for the result of a reload.
#[derive(Debug, Default)]
pub(crate) struct Askers(Vec<PathBuf>);

impl Askers {
    /// Finds the sockets of commands beside a pid file.
    pub(crate) fn beside(pid_file: &Path) -> Askers {
        let (Some(directory), Some(name)) = (pid_file.parent(), pid_file.file_name()) else {
            return Askers::default();
        };
        let prefix = [name.as_bytes(), INFIX.as_bytes()].concat();
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        // Not what a link leads to: others than root may be able to make files there.
        let is_socket =
            |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| FileTypeExt::is_socket(&kind));
        let sockets =
            entries.filter(|entry| entry.file_name().as_bytes().starts_with(&prefix) && is_socket(entry));
        Askers(sockets.map(|entry| entry.path()).take(MOST).collect())
    }

    /// Adds others.
    pub(crate) fn extend(&mut self, others: Askers) {
        self.0.extend(others.0);
    }

    /// Sends the result to all. Removes the socket of a command that was killed.
    pub(crate) fn answer(self, outcome: &Outcome) {
        let Ok(socket) = UnixDatagram::unbound() else { return };
        let _ = socket.set_nonblocking(true);
        let (kind, text) = match outcome {
            Ok(number) => (IN_EFFECT, number.to_string()),
            Err(reason) => (REFUSED, reason.clone()),
        };
        let message = [&[kind], text.as_bytes().get(..LONGEST).unwrap_or(text.as_bytes())].concat();
        for path in self.0 {
            let sent = socket.send_to(&message, &path);
            if sent.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

/// The socket of a command, whose file is removed in the end.
struct Ear {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Drop for Ear {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Ear {
    /// Binds a socket that the owner of the pid file, who is the user of the master, may write to.
    fn beside(pid_file: &Path) -> Result<Ear, String> {
        let mut path = OsString::from(pid_file);
        path.push(OsStr::new(&format!("{INFIX}{}", std::process::id())));
        let path = PathBuf::from(path);
        let fail = |e: io::Error| format!("bind() to unix:{} failed ({})", path.display(), errno(&e));
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).map_err(fail)?;
        let ear = Ear { socket, path: path.clone() };
        ear.socket.set_read_timeout(Some(LOOK)).map_err(fail)?;
        let owner = std::fs::metadata(pid_file).map_err(fail)?.uid();
        if forebay_sys::identity::is_root() {
            std::os::unix::fs::chown(&path, Some(owner), None).map_err(fail)?;
        }
        Ok(ear)
    }

    /// Waits for the answer of a master.
    fn wait(&self, master: Pid, patience: Duration) -> Outcome {
        let end = Instant::now() + patience;
        let mut buffer = [0; LONGEST + 1];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(count) => match buffer.get(..count).unwrap_or_default() {
                    [IN_EFFECT, text @ ..] => {
                        // A server of before has no number in its answer.
                        return Ok(String::from_utf8_lossy(text).parse().unwrap_or_default());
                    }
                    [REFUSED, text @ ..] => return Err(refusal(&String::from_utf8_lossy(text))),
                    _ => {}
                },
                Err(e) if is_pause(&e) => {}
                Err(e) => return Err(format!("recv() failed ({})", errno(&e))),
            }
            if nix::sys::signal::kill(master, None).is_err() {
                return Err(format!("the master process {master} has ended"));
            }
            if Instant::now() >= end {
                return Err(format!(
                    "the master process {master} has not answered for {} seconds: it may be another program, or an older one",
                    patience.as_secs()
                ));
            }
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn refusal(reason: &str) -> String {
    format!("the new configuration was refused, the one before stays in effect: {reason}")
}

/// Reloads by way of the control API, and prints the lines of the reload. Returns the exit code.
pub(crate) fn by_control_api(options: &Options, patience: Duration) -> u8 {
    let address = match options.control_address() {
        Ok(Some(address)) => address,
        Ok(None) => return complain("no address of the control API"),
        Err(text) => return complain(&text),
    };
    show(control_api::client::reload(&address, patience))
}

/// Prints the lines of a reload. Returns the exit code.
fn show(result: Result<Vec<String>, Failed>) -> u8 {
    let (lines, code) = match result {
        Ok(lines) => (lines, 0),
        Err(failed) => (failed.lines(), 1),
    };
    for line in lines {
        eprintln!("nginx: {line}");
    }
    code
}

/// Reloads by way of the control API that the master was started with. `None` if there is none, or nobody answers there.
fn by_api_of(master: Pid, patience: Duration) -> Option<u8> {
    let arguments = title::arguments_of(master)?;
    let words: Vec<String> =
        arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let address = cli::parse(&words).ok()?.control_address().ok()??;
    match control_api::client::reload(&address, patience) {
        Err(Failed::Unreachable(_)) => None,
        result => Some(show(result)),
    }
}

/// Runs `forebay reload`. Returns the exit code.
pub(crate) fn main(options: &Options, patience: Duration) -> u8 {
    if options.control.is_some() {
        return by_control_api(options, patience);
    }
    // Errors of the configuration are in the log and on the console already.
    let Ok(master) = Found::by_main_level(options) else { return 1 };
    let record = in_effect::of(master.pid);
    let begun = Instant::now();
    if let Some(code) = by_api_of(master.pid, patience) {
        if code == 0 {
            say(None, begun.elapsed(), changed(options, record));
        }
        return code;
    }
    let ear = match Ear::beside(&master.pid_file) {
        Ok(ear) => ear,
        Err(text) => return complain(&text),
    };
    if master.signal(Wish::Reload).is_err() {
        return 1;
    }
    match ear.wait(master.pid, patience) {
        Ok(number) => {
            say(Some(number), begun.elapsed(), changed(options, record));
            0
        }
        Err(text) => complain(&text),
    }
}

/// Prints which configuration is in effect, and what has changed.
fn say(number: Option<u64>, time: Duration, changes: Option<String>) {
    let number =
        number.filter(|n| *n > 0).map_or("the configuration".into(), |n| format!("configuration {n}"));
    let changes = changes.map_or(String::new(), |text| format!(": {text}"));
    print(format!("{number} is in effect after {} ms{changes}\n", time.as_millis()));
}

/// Returns the changes since a record, as text.
fn changed(options: &Options, record: Option<Vec<u8>>) -> Option<String> {
    let (record, (environment, _)) = (record?, options.places());
    let (config, _) = load_all(&environment, &mut Files::disk());
    let certificates = config.map(|config| config.certificate_files).unwrap_or_default();
    Some(in_effect::text(&in_effect::changes(&record, &environment, &certificates)?))
}

/// Runs `forebay reload --dry-run`: checks the configuration, and prints what a reload would change. Returns the exit code.
pub(crate) fn dry_run(options: &Options) -> u8 {
    let Ok(master) = Found::by_main_level(options) else { return 1 };
    let (environment, _) = options.places();
    let mut files = Files::disk();
    let (_, errors) = load_all(&environment, &mut files);
    if errors.iter().any(|e| e.level == Level::Emerg) {
        eprint!("{}", check::render_text(&errors, &files, io::stderr().is_terminal()));
        return complain("a reload would be refused");
    }
    match changed(options, in_effect::of(master.pid)) {
        Some(text) => print(format!("a reload would be accepted: {text}\n")),
        None => print(
            "a reload would be accepted; what it would change is not known: the server is another program, of another user, or its configuration is larger than 4 MB\n",
        ),
    }
    0
}

fn complain(text: &str) -> u8 {
    eprintln!("forebay: {text}");
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_beside_the_pid_file_are_answered() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let command = UnixDatagram::bind(at("pid.reload.1")).expect("bound");
        let other = UnixDatagram::bind(at("other")).expect("bound");
        std::os::unix::fs::symlink(at("other"), at("pid.reload.2")).expect("a link");
        std::fs::write(at("pid.reload.3"), "").expect("written");
        let askers = Askers::beside(&at("pid"));
        assert_eq!(askers.0, [at("pid.reload.1")]);
        askers.answer(&Err("no".to_owned()));
        let mut buffer = [0; 9];
        assert_eq!(command.recv(&mut buffer).expect("an answer"), 3);
        other.set_nonblocking(true).expect("option");
        assert!(other.recv(&mut buffer).is_err());
    }
}
