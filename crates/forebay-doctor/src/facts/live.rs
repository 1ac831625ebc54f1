//! The server that runs with the configuration: its processes, its error log, its counters.

use crate::scene::Scene;
use forebay_core::control::blocking::{Address, Connection, Limits, Patience};
use forebay_sys::files;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that are read from the end of an error log.
const TAIL: u64 = 8 << 20;

/// Facts about a running server.
#[derive(Debug, Default)]
pub struct Running {
    /// Its master.
    pub pid: u32,
    /// Its program; empty where that is not visible.
    pub program: PathBuf,
    /// Name of its process.
    pub name: String,
    /// Words of its command line, which is its title.
    pub title: Vec<String>,
    /// Of each process: descriptors in use, and how many it may have.
    pub descriptors: Vec<(u64, u64)>,
    /// The error log, and the text of its end.
    pub log: Option<(PathBuf, String)>,
    /// From `stub_status`: connections accepted and handled.
    pub accepted: Option<(u64, u64)>,
}

impl Running {
    /// Returns the server whose pid file the configuration names. `None` if none runs, or it is not visible.
    pub fn find(scene: &Scene<'_>, prefix: &Path) -> Option<Running> {
        let named = scene.all("pid").last().map(|n| prefix.join(scene.arg(n, 0)));
        let usual = ["/run/nginx.pid", "/run/forebay.pid"].map(PathBuf::from);
        let places = named.map_or_else(|| usual.to_vec(), |p| vec![p]);
        let pid = places
            .iter()
            .find_map(|p| files::read_text(p, files::MAX_WHOLE).ok()?.trim().parse::<u32>().ok())?;
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return None;
        }
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let title = String::from_utf8_lossy(&title).replace('\0', " ");
        let title = title.split_whitespace().map(str::to_owned).collect();
        let name = name.trim().to_owned();
        let mut running = Running { pid, program, name, title, ..Running::default() };
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let all = std::iter::once(pid).chain(children.split_whitespace().filter_map(|c| c.parse().ok()));
        running.descriptors = all.filter_map(descriptors).collect();
        running.log = log_file(scene, prefix).and_then(|p| Some((p.clone(), tail(&p)?)));
        running.accepted = status(scene);
        Some(running)
    }

    /// Returns `true` if the server runs with a file: by `-c` in its title, or as the file of its own directory. The pid file alone does
    /// not prove it, because most configurations name the same one.
    pub fn runs(&self, conf: &Path) -> bool {
        let option = self.title.iter().position(|word| word.starts_with("-c"));
        let named = option.and_then(|i| {
            let glued = self.title.get(i)?.strip_prefix("-c").filter(|rest| !rest.is_empty());
            glued.or_else(|| self.title.get(i.saturating_add(1)).map(String::as_str))
        });
        match named.map(Path::new) {
            Some(file) if file.is_absolute() => is_same_file(file, conf),
            Some(file) => conf.ends_with(file.file_name().unwrap_or_default()),
            None => self.directory().is_some_and(|dir| conf.starts_with(dir)),
        }
    }

    /// Returns the directory of a program that has one of its own, as `/opt/nginx` of `/opt/nginx/sbin/nginx`.
    fn directory(&self) -> Option<&Path> {
        let directory = self.program.parent()?.parent()?;
        let is_shared = ["", "/", "/usr", "/usr/local"].iter().any(|shared| directory == Path::new(shared));
        (!is_shared).then_some(directory)
    }

    /// Returns the number of lines of the log that have a message.
    pub fn lines(&self, message: &str) -> usize {
        self.log.as_ref().map_or(0, |(_, text)| text.lines().filter(|l| l.contains(message)).count())
    }
}

/// Returns `true` if two paths name one file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

fn descriptors(pid: u32) -> Option<(u64, u64)> {
    let used = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|l| l.strip_prefix("Max open files"))?;
    let most = line.split_whitespace().next()?;
    Some((used, most.parse().unwrap_or(u64::MAX)))
}

fn log_file(scene: &Scene<'_>, prefix: &Path) -> Option<PathBuf> {
    let named = scene.all("error_log").map(|n| scene.arg(n, 0));
    let file = named
        .filter(|f| *f != "stderr" && *f != "off" && !f.starts_with("syslog:") && !f.starts_with("memory:"))
        .last();
    let path = file.map_or_else(|| PathBuf::from("/var/log/nginx/error.log"), |f| prefix.join(f));
    path.is_file().then_some(path)
}

fn tail(path: &Path) -> Option<String> {
    let mut file = files::open_regular(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Longest parts of an answer, bytes.
const LIMITS: Limits = Limits { head: 64 << 10, body: 64 << 10 };

/// Asks the first `stub_status` that listens on this machine.
fn status(scene: &Scene<'_>) -> Option<(u64, u64)> {
    let at = scene.all("stub_status").next()?;
    let location = scene.parent(at).filter(|l| scene.is(*l, "location"))?;
    let args = scene.args(location);
    let path = args.last().filter(|p| p.starts_with('/'))?;
    let server = scene.around(at, "server")?;
    let listen = scene.child(Some(server), "listen").map_or("80", |n| scene.arg(n, 0));
    let listen = if listen.bytes().all(|b| b.is_ascii_digit()) {
        format!("0.0.0.0:{listen}")
    } else {
        listen.to_owned()
    };
    let mut addr: SocketAddr = listen.replace("*:", "0.0.0.0:").parse().ok()?;
    if addr.ip().is_unspecified() {
        addr.set_ip([127, 0, 0, 1].into());
    }
    let name = scene.child(Some(server), "server_name").map_or("localhost", |n| scene.arg(n, 0));
    parse_status(&ask(addr, path, name)?)
}

/// Returns the answer to a GET request.
fn ask(addr: SocketAddr, path: &str, host: &str) -> Option<String> {
    let patience = Patience::Each(Duration::from_secs(1));
    let mut connection = Connection::open(&Address::Inet(addr), patience).ok()?;
    connection.request(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).ok()?;
    let response = connection.response(LIMITS).ok()?;
    String::from_utf8(response.body).ok()
}

fn parse_status(answer: &str) -> Option<(u64, u64)> {
    let line = answer.split("accepts handled requests").nth(1)?;
    let mut numbers = line.split_whitespace().map_while(|w| w.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_stub_status() {
        let text = "HTTP/1.1 200 OK\r\n\r\nActive connections: 2 \nserver accepts handled requests\n 41 40 99 \nReading: 0\n";
        assert_eq!(parse_status(text), Some((41, 40)));
        assert_eq!(parse_status("HTTP/1.1 404 Not Found\r\n\r\n"), None);
    }

    #[test]
    fn a_server_runs_with_the_file_of_its_title() {
        let of = |program: &str, title: &str| Running {
            program: program.into(),
            title: title.split(' ').map(str::to_owned).collect(),
            ..Running::default()
        };
        let named = of("/usr/sbin/nginx", "nginx: master process /usr/sbin/nginx -c /srv/none/a.conf");
        assert!(named.runs(Path::new("/srv/none/a.conf")) && !named.runs(Path::new("/srv/none/b.conf")));
        let glued = of("/usr/sbin/nginx", "nginx: master process nginx -c/srv/none/a.conf");
        assert!(glued.runs(Path::new("/srv/none/a.conf")) && !glued.runs(Path::new("/srv/b/a.conf")));
        let relative = of("/usr/sbin/nginx", "nginx: master process nginx -p /srv/x -c conf/a.conf");
        assert!(relative.runs(Path::new("/srv/x/conf/a.conf")) && !relative.runs(Path::new("/srv/x/b.conf")));
        let plain = of("/usr/sbin/nginx", "nginx: master process /usr/sbin/nginx");
        assert!(!plain.runs(Path::new("/home/a/nginx.conf")));
        let own = of("/opt/web/sbin/nginx", "nginx: master process ./nginx");
        assert!(own.runs(Path::new("/opt/web/conf/nginx.conf")) && !own.runs(Path::new("/home/nginx.conf")));
    }

    #[test]
    fn lines_of_a_log() {
        let log = "2026/01/01 [alert] 1#1: 512 worker_connections are not enough\n\
                   2026/01/01 [crit] 1#1: accept4() failed (24: Too many open files)\n\
                   2026/01/01 [alert] 1#1: 512 worker_connections are not enough\n";
        let running = Running { log: Some(("x".into(), log.to_owned())), ..Running::default() };
        let lines = ["worker_connections are not enough", "Too many open files", "no live upstreams"];
        assert_eq!(lines.map(|m| running.lines(m)), [2, 1, 0]);
    }
}
