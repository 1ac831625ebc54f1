//! Directories with a configuration.

use crate::{Done, free_port, program};
use std::ffi::OsStr;
use std::fmt::Display;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// A prefix directory with a configuration, which may contain `%DIR%` (the prefix) and `%PORT0%` to `%PORT9%` (free ports of
/// 127.0.0.1).
pub struct Site {
    dir: tempfile::TempDir,
    ports: Vec<u16>,
    /// A server runs on it: its configurations are made patient.
    runs: AtomicBool,
}

/// Timeouts that end a connection on which nothing happens.
const TIMEOUTS: [&str; 4] =
    ["keepalive_timeout", "client_header_timeout", "client_body_timeout", "send_timeout"];

/// Sets the timeouts of a configuration that it does not mention to minutes: the test is not about them, and a machine that
/// stalls for a minute must not end its connections.
fn patient(conf: &str) -> String {
    let before = |at: &usize| {
        conf[..*at].bytes().last().is_none_or(|b| b.is_ascii_whitespace() || b"{};".contains(&b))
    };
    let Some((at, _)) = conf.match_indices("http {").find(|(at, _)| before(at)) else {
        return conf.to_owned();
    };
    let (head, rest) = conf.split_at(at + "http {".len());
    let missing = TIMEOUTS.iter().filter(|name| !conf.contains(*name));
    let lines: String = missing.map(|name| format!(" {name} 10m;")).collect();
    // On the same line, so that the numbers of the others stay.
    format!("{head}{lines}{rest}")
}

/// Lets everybody write into a directory: the worker may be another user.
pub fn open_up(dir: &Path) {
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).expect("permissions");
}

impl Site {
    /// Makes the directory with `logs/`, `html/` and `conf/`, and writes `nginx.conf`.
    pub fn new(conf: impl Display) -> Site {
        let conf = conf.to_string();
        let dir = tempfile::Builder::new().prefix("forebay-test").tempdir().expect("temporary directory");
        // The worker may be another user.
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("mode");
        for name in ["logs", "html", "conf"] {
            std::fs::create_dir(dir.path().join(name)).expect("directory");
        }
        let ports = (0..10).map_while(|i| conf.contains(&format!("%PORT{i}%")).then(free_port)).collect();
        let site = Site { dir, ports, runs: AtomicBool::new(false) };
        site.write("nginx.conf", &conf);
        site
    }

    /// Returns the prefix, without a slash at the end.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of a name below the prefix.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Writes a file below the prefix, with the placeholders replaced.
    pub fn write(&self, name: impl AsRef<str>, text: impl AsRef<str>) -> PathBuf {
        let name = name.as_ref();
        let mut text = text.as_ref().replace("%DIR%", &self.dir().display().to_string());
        for (i, port) in self.ports.iter().enumerate() {
            text = text.replace(&format!("%PORT{i}%"), &port.to_string());
        }
        if name == "nginx.conf" && self.runs.load(Ordering::Relaxed) {
            text = patient(&text);
        }
        self.write_bytes(name, text)
    }

    /// Writes a file below the prefix as it is.
    pub fn write_bytes(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir().join(name);
        std::fs::create_dir_all(path.parent().expect("below the prefix")).expect("directory");
        std::fs::write(&path, bytes).expect("write");
        path
    }

    /// Makes a directory below the prefix into which everybody may write.
    pub fn make_dir(&self, name: &str) -> PathBuf {
        let path = self.dir().join(name);
        std::fs::create_dir_all(&path).expect("directory");
        open_up(&path);
        path
    }

    /// Reads a file below the prefix; empty if there is none.
    pub fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir().join(name)).unwrap_or_default()).into_owned()
    }

    /// Returns the address of `%PORTi%`.
    pub fn addr(&self, i: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports[i]))
    }

    /// Returns how many ports the configuration has.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Returns a command of a program on this site: `-p DIR -c nginx.conf` and more arguments.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("-p").arg(self.dir()).args(["-c", "nginx.conf"]).args(args);
        command.env_remove("NGINX").env("LC_ALL", "C");
        command
    }

    /// Makes the configuration that a server is about to run, and those after it, patient.
    pub(crate) fn prepare(&self) {
        if !self.runs.swap(true, Ordering::Relaxed)
            && let Ok(text) = std::fs::read_to_string(self.dir().join("nginx.conf"))
        {
            self.write("nginx.conf", &text);
        }
    }

    /// Runs the program under test on this site to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(program(), args).stdin(Stdio::null()).output().expect("runs")
    }

    /// Returns a command of the program in this directory, where it has its data and temporary files, too.
    pub fn subcommand<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(program());
        command.args(args).current_dir(self.dir()).env_remove("NGINX").env("LC_ALL", "C");
        command.env("TMPDIR", self.dir()).env("XDG_DATA_HOME", self.path("data"));
        command.env("XDG_STATE_HOME", self.path("state"));
        command
    }

    /// Runs a subcommand, whose arguments are separated by blanks, to its end, see [`Site::subcommand`].
    pub fn forebay(&self, args: &str) -> Done {
        Done::of(&mut self.subcommand(args.split_whitespace()))
    }

    /// Returns the pid in the pid file, if it is a number.
    pub fn pid_in_file(&self) -> Option<i32> {
        self.read("logs/nginx.pid").trim().parse().ok()
    }
}
