//! Starts the program on a temporary directory and free ports, and stops it, by pid, at the end of the test.
//!
//! A configuration may contain `%DIR%` (the prefix) and `%PORT0%` to `%PORT9%` (free ports of 127.0.0.1).

pub mod certificates;
pub mod fastcgi;
pub mod origin;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time after which a test fails that waits for something.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay");

/// Tells an `Expires` that the server computed by its distance to `Date`, so that responses of two seconds are alike. A fixed one,
/// far from `Date`, stays.
pub fn expires_after(date: Option<&str>, expires: &str) -> String {
    let seconds = |text: &str| forebay_http::date::parse(text.as_bytes());
    match (date.and_then(seconds), seconds(expires)) {
        (Some(date), Some(then)) if (then - date).abs() < 7 * 86_400 => format!("Date and {} s", then - date),
        _ => expires.to_owned(),
    }
}

/// Waits until `done` gives something; panics with `what` after [`DEADLINE`].
pub fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A TCP port of 127.0.0.1 that is free, that no other test of this program was given and that no client takes.
pub fn free_port() -> u16 {
    forebay_bench::ports::free_port().expect("a free port")
}

/// The second of two ports in a row that are free. The server of `--ssl-passthrough-proxy-port` takes the one before, too.
pub fn free_pair() -> u16 {
    let mut before = free_port();
    loop {
        let port = free_port();
        if port == before + 1 {
            return port;
        }
        before = port;
    }
}

/// Sends bytes and reads until the server closes or is silent for two seconds.
pub fn raw(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect_timeout(&addr, DEADLINE).expect("connect");
    // A server that has begun and pauses is done, unless it was asked to close: then only the close counts. A busy machine
    // may pause for seconds.
    let closes = bytes.windows(17).any(|w| w.eq_ignore_ascii_case(b"connection: close"));
    let pause = if closes { DEADLINE } else { DEADLINE / 10 };
    stream.set_read_timeout(Some(DEADLINE / 2)).expect("timeout");
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 16384];
    while let Ok(length) = stream.read(&mut buffer) {
        if length == 0 {
            break;
        }
        answer.extend_from_slice(&buffer[..length]);
        stream.set_read_timeout(Some(pause)).expect("timeout");
    }
    answer
}

/// Runs a program to its end: code, standard output and standard error; `None` where it is not installed.
pub fn run(program: &str, args: &[&str]) -> Option<(i32, String, String)> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Some((output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr)))
}

/// A prefix directory with a configuration.
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

impl Site {
    /// Makes the directory with `logs/` and `html/`, and writes `nginx.conf`.
    pub fn new(conf: &str) -> Site {
        let dir = tempfile::Builder::new().prefix("forebay-test").tempdir().expect("temporary directory");
        // The worker may be another user.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("mode");
        for name in ["logs", "html", "conf"] {
            std::fs::create_dir(dir.path().join(name)).expect("directory");
        }
        let ports = (0..10).map_while(|i| conf.contains(&format!("%PORT{i}%")).then(free_port)).collect();
        let site = Site { dir, ports, runs: AtomicBool::new(false) };
        site.write("nginx.conf", conf);
        site
    }

    /// Prefix, without a slash at the end.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file below the prefix, with the placeholders replaced.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let mut text = text.replace("%DIR%", &self.dir().display().to_string());
        for (i, port) in self.ports.iter().enumerate() {
            text = text.replace(&format!("%PORT{i}%"), &port.to_string());
        }
        if name == "nginx.conf" && self.runs.load(Ordering::Relaxed) {
            text = patient(&text);
        }
        let path = self.dir().join(name);
        std::fs::create_dir_all(path.parent().expect("below the prefix")).expect("directory");
        std::fs::write(&path, text).expect("write");
        path
    }

    /// Reads a file below the prefix; empty if there is none.
    pub fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir().join(name)).unwrap_or_default()).into_owned()
    }

    /// Address of `%PORTi%`.
    pub fn addr(&self, i: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports[i]))
    }

    /// A command of `program` on this site: `-p DIR -c nginx.conf` and more arguments.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("-p").arg(self.dir()).args(["-c", "nginx.conf"]).args(args);
        command.env_remove("NGINX").env("LC_ALL", "C");
        command
    }

    /// Makes the configuration that a server is about to run, and those after it, patient.
    fn prepare(&self) {
        if !self.runs.swap(true, Ordering::Relaxed)
            && let Ok(text) = std::fs::read_to_string(self.dir().join("nginx.conf"))
        {
            self.write("nginx.conf", &text);
        }
    }

    /// Runs the program under test on this site to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(PROGRAM, args).stdin(Stdio::null()).output().expect("runs")
    }

    /// Pid in the pid file, if it is a number.
    pub fn pid(&self) -> Option<i32> {
        self.read("logs/nginx.pid").trim().parse().ok()
    }
}

/// A running server.
pub struct Server {
    /// Its directory.
    pub site: Site,
    child: Option<Child>,
}

impl Server {
    /// Starts it in the foreground and waits until it accepts on `%PORT0%`.
    pub fn start(conf: &str) -> Server {
        Server::start_on(Site::new(conf))
    }

    /// The same on a directory that was prepared before.
    pub fn start_on(site: Site) -> Server {
        let child = Server::spawn(&site);
        let mut server = Server { site, child: Some(child) };
        server.wait_until_ready();
        server
    }

    fn spawn(site: &Site) -> Child {
        site.prepare();
        let stderr = std::fs::File::create(site.dir().join("stderr")).expect("file");
        (site.command(PROGRAM, &["-g", "daemon off;"]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("starts")
    }

    /// Ends it and starts it again on the same directory.
    pub fn restart(&mut self) {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.wait_end();
        self.child = Some(Server::spawn(&self.site));
        self.wait_until_ready();
    }

    /// Starts it again after it has been killed.
    pub fn restart_dead(&mut self) {
        self.child = Some(Server::spawn(&self.site));
        self.wait_until_ready();
    }

    /// The same where no file may grow beyond so many KiB: writing more fails.
    pub fn start_limited(site: Site, kib: u32) -> Server {
        site.prepare();
        let stderr = std::fs::File::create(site.dir().join("stderr")).expect("file");
        let own = site.command(PROGRAM, &["-g", "daemon off;"]);
        let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", kib * 2);
        let child = Command::new("/bin/sh")
            .args(["-c", &script])
            .arg(own.get_program())
            .args(own.get_args())
            .env_remove("NGINX")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("starts");
        let mut server = Server { site, child: Some(child) };
        server.wait_until_ready();
        server
    }

    /// Starts it as a daemon, as init systems do.
    pub fn start_daemon(conf: &str) -> Server {
        Server::daemon_on(Site::new(conf))
    }

    /// The same on a directory that was prepared before.
    pub fn daemon_on(site: Site) -> Server {
        site.prepare();
        let stderr = std::fs::File::create(site.dir().join("stderr")).expect("file");
        let mut command = site.command(PROGRAM, &[]);
        let status =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).status().expect("starts");
        assert!(status.success(), "{}", site.read("stderr"));
        let mut server = Server { site, child: None };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&mut self) {
        let addr = self.site.addr(0);
        wait_for("a server that accepts", || {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().expect("child")) {
                panic!("ended with {status}: {}", self.site.read("stderr"));
            }
            self.site.pid()?;
            TcpStream::connect_timeout(&addr, DEADLINE).ok()
        });
        // The kernel accepts before there is a worker process.
        if !self.site.read("nginx.conf").contains("master_process off") {
            self.worker();
        }
    }

    /// Pid of the master.
    pub fn pid(&self) -> i32 {
        match &self.child {
            Some(child) => child.id() as i32,
            None => wait_for("a pid file", || self.site.pid()),
        }
    }

    /// Address of `%PORTi%`.
    pub fn addr(&self, i: usize) -> SocketAddr {
        self.site.addr(i)
    }

    /// Sends bytes to `%PORT0%`, see [`raw`].
    pub fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        raw(self.addr(0), bytes)
    }

    /// `GET` with `Connection: close`; the whole answer as text.
    pub fn get(&self, uri: &str) -> String {
        let request = format!("GET {uri} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        String::from_utf8_lossy(&self.raw(request.as_bytes())).into_owned()
    }

    /// Sends a signal to the master.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        kill(self.pid(), signal);
    }

    /// The error log.
    pub fn error_log(&self) -> String {
        self.site.read("logs/error.log")
    }

    /// Waits until the error log contains a text `count` times.
    pub fn wait_for_log(&self, text: &str, count: usize) {
        let end = Instant::now() + DEADLINE;
        while self.error_log().matches(text).count() < count {
            let log = self.error_log();
            assert!(
                Instant::now() < end,
                "waited in vain for {count} times {text:?} in the error log: {log}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Pid of the worker process, for which it waits.
    pub fn worker(&self) -> i32 {
        wait_for("a worker process", || self.workers(self.pid()).first().copied())
    }

    /// Pids of the worker processes of a master.
    pub fn workers(&self, master: i32) -> Vec<i32> {
        children(master).into_iter().filter(|pid| title(*pid).starts_with("nginx: worker process")).collect()
    }

    /// Waits until the foreground process has ended; its exit code.
    pub fn wait_end(&mut self) -> Option<i32> {
        let child = self.child.as_mut().expect("in the foreground");
        wait_for("the end of the server", || child.try_wait().expect("child")).code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        use nix::sys::signal::Signal::SIGTERM;
        match &mut self.child {
            Some(child) => {
                if let Ok(None) = child.try_wait() {
                    kill(child.id() as i32, SIGTERM);
                    let _ = child.wait();
                }
            }
            None => {
                for name in ["logs/nginx.pid.oldbin", "logs/nginx.pid"] {
                    if let Ok(pid) = self.site.read(name).trim().parse() {
                        kill(pid, SIGTERM);
                        let end = Instant::now() + DEADLINE;
                        while alive(pid) && Instant::now() < end {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                    }
                }
            }
        }
    }
}

/// Sends a signal to one process; one that is gone is no error.
pub fn kill(pid: i32, signal: nix::sys::signal::Signal) {
    assert!(pid > 1, "not a pid of ours: {pid}");
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// Returns `true` if a process exists and is not a zombie.
pub fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Memory that a process has allocated and written to, KiB. Pages of files do not count: which of them are resident depends on the
/// page cache, and how they are shared on other servers of the same program.
pub fn memory(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("its anonymous memory");
    line.trim().trim_end_matches(" kB").parse().expect("KiB")
}

/// Opens a connection that receives little at a time, so that the server has unsent bytes.
pub fn connect_with_small_buffer(addr: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
    socket.set_recv_buffer_size(8 * 1024).expect("a small buffer");
    socket.connect(&addr.into()).expect("connection");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    stream
}

/// Command line of a process, as `ps` shows it.
pub fn title(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned()
}

/// Children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
