//! The error log as the master and the main thread of the worker write it.
//!
//! One line, one write: `2026/11/21 02:14:40 [notice] 1234#1234: text`.

use forebay_conf::error::Level;
pub(crate) use forebay_sys::errno::errno;
use forebay_sys::errno::is_foreign;
use forebay_sys::files;
use forebay_sys::sync::lock;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use forebay_core::config::main_settings::{ErrorLog, ErrorLogTarget, Form};
use forebay_core::essential;
use forebay_core::log::json;
use forebay_core::log::syslog::{LocalTime, Syslog, send_from_master};

/// Target of lines.
#[derive(Debug)]
enum Sink {
    File(File),
    Stderr,
    Syslog(Arc<Syslog>),
}

/// An error log: several targets, each with a level.
#[derive(Debug, Default)]
pub(crate) struct Log {
    sinks: Vec<Output>,
    /// The least severe lines that are also printed, as `nginx: [warn] text`: until the server runs.
    console: Option<Level>,
    /// The last line at level emerg: why a configuration was refused.
    refusal: Mutex<Option<String>>,
    /// Lines from level warn on since [`Log::listen`], for the client that asked for a reload.
    heard: Mutex<Option<Vec<String>>>,
}

/// Most lines of a reload that its client gets.
const MOST_HEARD: usize = 1000;

/// One target, with the lines that it gets.
#[derive(Debug)]
struct Output {
    sink: Sink,
    /// The least severe level.
    least: Level,
    form: Form,
}

impl Sink {
    fn open(target: &ErrorLogTarget, files: &[(PathBuf, Arc<OwnedFd>)]) -> Option<Sink> {
        match target {
            ErrorLogTarget::Stderr => Some(Sink::Stderr),
            ErrorLogTarget::File(path) => {
                let (_, fd) = files.iter().find(|(name, _)| name == path)?;
                Some(Sink::File(File::from(fd.try_clone().ok()?)))
            }
            ErrorLogTarget::Syslog(target) => Some(Sink::Syslog(target.clone())),
        }
    }
}

impl Log {
    /// Opens the log for the time before the configuration is read: the default file (`stderr` is no file) at level notice, and
    /// the console. The second part is the complaint when the file cannot be opened, which nginx survives.
    pub(crate) fn early(path: &Path) -> (Log, Option<String>) {
        if path == Path::new("stderr") {
            return (Log::default_console(), None);
        }
        match open_log(path) {
            Ok(file) => {
                let sinks = vec![Output { sink: Sink::File(file), least: Level::Notice, form: Form::Text }];
                (Log { sinks, ..Log::default_console() }, None)
            }
            Err(e) => {
                let text = format!("could not open error log file: {}", failed("open()", path, &e));
                (Log::default_console(), Some(text))
            }
        }
    }

    /// Creates a log on the console only.
    pub(crate) fn default_console() -> Log {
        Log { console: Some(Level::Warn), ..Log::default() }
    }

    /// Returns this log without warnings on the console (`-q`).
    pub(crate) fn quiet(self) -> Log {
        Log { console: self.console.map(|_| Level::Error), ..self }
    }

    /// Returns the log that a configuration asks for. `files` are the opened ones by path.
    pub(crate) fn configured(targets: &[ErrorLog], files: &[(PathBuf, Arc<OwnedFd>)]) -> Log {
        let output = |log: &ErrorLog| {
            Some(Output { sink: Sink::open(&log.target, files)?, least: log.level, form: log.form })
        };
        let sinks = targets.iter().filter_map(output).collect();
        Log { sinks, ..Log::default() }
    }

    /// Writes a line to every target whose level allows it. Failures to write are ignored: there is nowhere
    /// to tell.
    pub(crate) fn write(&self, level: Level, text: &str) {
        if self.console.is_some_and(|least| level <= least) {
            eprintln!("nginx: [{}] {text}", level.as_str());
        }
        if level <= Level::Warn {
            self.hear(level, text);
        }
        let mut failures = Vec::new();
        self.put(level, text, Some(&mut failures));
        for failure in failures {
            self.put(Level::Error, &failure, None);
        }
    }

    /// Begins to keep lines.
    pub(crate) fn listen(&self) {
        *lock(&self.heard) = Some(Vec::new());
    }

    /// Takes the lines that were kept, and ends that.
    pub(crate) fn take_heard(&self) -> Vec<String> {
        lock(&self.heard).take().unwrap_or_default()
    }

    fn hear(&self, level: Level, text: &str) {
        if let Some(lines) = lock(&self.heard).as_mut().filter(|lines| lines.len() < MOST_HEARD) {
            lines.push(format!("[{}] {text}", level.as_str()));
        }
    }

    /// Writes a line. `failures` takes what syslog did not; without it syslog is left out.
    fn put(&self, level: Level, text: &str, mut failures: Option<&mut Vec<String>>) {
        debug_assert!(!is_foreign(text.as_bytes()), "{text}");
        let now = jiff::Zoned::now();
        for Output { sink, form, .. } in self.sinks.iter().filter(|output| level <= output.least) {
            let line = match form {
                Form::Text => format_line(&now, level, text),
                Form::Json => json_line(level, text),
            };
            let _ = match sink {
                Sink::File(file) => (&*file).write_all(line.as_bytes()),
                Sink::Stderr if self.console.is_some() => Ok(()),
                Sink::Stderr => std::io::stderr().write_all(line.as_bytes()),
                Sink::Syslog(target) => {
                    let at = LocalTime { unix: now.timestamp().as_second(), offset: now.offset().seconds() };
                    if let Some(failures) = &mut failures {
                        failures.extend(send_from_master(target, level, at, line.as_bytes()).err());
                    }
                    Ok(())
                }
            };
        }
    }

    /// Makes this the log that a process writes to which ends by itself: see [`essential`].
    pub(crate) fn take_last_words(self: &Arc<Self>) {
        let log = self.clone();
        essential::report_to(move |text| log.alert(text));
    }

    /// Writes a line at level emerg.
    pub(crate) fn emerg(&self, text: &str) {
        self.write(Level::Emerg, text);
        *lock(&self.refusal) = Some(text.to_owned());
    }

    /// Adds the causes to the last line that was written at level emerg.
    pub(crate) fn add_to_refusal(&self, causes: &str) {
        if let Some(text) = lock(&self.refusal).as_mut() {
            text.push_str(": ");
            text.push_str(causes);
        }
    }

    /// Takes the last line that was written at level emerg.
    pub(crate) fn take_refusal(&self) -> Option<String> {
        lock(&self.refusal).take()
    }

    /// Writes a line at level alert.
    pub(crate) fn alert(&self, text: &str) {
        self.write(Level::Alert, text);
    }

    /// Writes a line at level warn.
    pub(crate) fn warn(&self, text: &str) {
        self.write(Level::Warn, text);
    }

    /// Writes a line at level notice.
    pub(crate) fn notice(&self, text: &str) {
        self.write(Level::Notice, text);
    }
}

/// Opens a log file for appending, mode 0644.
///
/// # Errors
/// Errors of open(2).
pub(crate) fn open_log(path: &Path) -> std::io::Result<File> {
    files::append(path, files::READABLE)
}

/// Formats the failure of a call as nginx does: `open() "/x" failed (2: No such file or directory)`.
pub(crate) fn failed(call: &str, path: &Path, error: &std::io::Error) -> String {
    format!("{call} \"{}\" failed ({})", path.display(), errno(error))
}

fn json_line(level: Level, text: &str) -> String {
    let mut line = json::Line::new(level, std::process::id(), None);
    line.message(text.as_bytes());
    String::from_utf8_lossy(&line.end()).into_owned()
}

fn format_line(now: &jiff::Zoned, level: Level, text: &str) -> String {
    let pid = std::process::id();
    let time = now.strftime("%Y/%m/%d %H:%M:%S");
    format!("{time} [{}] {pid}#{pid}: {text}\n", level.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_by_level() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("error.log");
        let fd = Arc::new(OwnedFd::from(open_log(&path).expect("open")));
        let target =
            ErrorLog { target: ErrorLogTarget::File(path.clone()), level: Level::Error, form: Form::Text };
        let log = Log::configured(&[target], &[(path.clone(), fd)]);
        log.notice("not this");
        log.alert("this");
        let text = std::fs::read_to_string(&path).expect("read");
        let pid = std::process::id();
        assert_eq!(text.get(19..), Some(format!(" [alert] {pid}#{pid}: this\n").as_str()));
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn syslog_gets_lines_and_its_failures_go_elsewhere() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (path, socket) = (dir.path().join("error.log"), dir.path().join("syslog"));
        let server = std::os::unix::net::UnixDatagram::bind(&socket).expect("bind");
        let fd = Arc::new(OwnedFd::from(open_log(&path).expect("open")));
        let syslog = Syslog::parse(&format!("server=unix:{},tag=web", socket.display())).expect("parameters");
        let targets = [ErrorLogTarget::Syslog(Arc::new(syslog)), ErrorLogTarget::File(path.clone())];
        let log = Log::configured(
            &targets.map(|target| ErrorLog { target, level: Level::Notice, form: Form::Text }),
            &[(path.clone(), fd)],
        );
        log.notice("hello");
        let mut buf = [0; 500];
        let n = server.recv(&mut buf).expect("a datagram");
        let text = String::from_utf8_lossy(&buf[..n]);
        let pid = std::process::id();
        assert!(text.starts_with("<189>") && text.contains(" web: 2"), "{text}");
        assert!(text.ends_with(&format!(" [notice] {pid}#{pid}: hello")), "{text}");
        drop(server);
        std::fs::remove_file(&socket).expect("remove");
        log.notice("nobody hears this");
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains(
            "connect() failed (2: No such file or directory) while logging to syslog, server: unix:"
        ));
    }

    #[test]
    fn errno_texts() {
        let missing = std::io::Error::from_raw_os_error(2);
        assert_eq!(
            failed("open()", Path::new("/x"), &missing),
            "open() \"/x\" failed (2: No such file or directory)"
        );
    }
}
