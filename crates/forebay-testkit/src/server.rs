//! The program, running.

use crate::{
    DEADLINE, Signal, Site, alive, children, connect, get, get_with, kill, program, raw, title, wait_for,
};
use std::fmt::Display;
use std::net::TcpStream;
use std::ops::Deref;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server. It ends with the value, by pid.
pub struct Server {
    /// Its directory.
    pub site: Site,
    child: Option<Child>,
}

impl Deref for Server {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Server {
    /// Starts it in the foreground and waits until it accepts on `%PORT0%`.
    pub fn start(conf: impl Display) -> Server {
        Server::start_on(Site::new(conf))
    }

    /// The same on a directory that was prepared before.
    pub fn start_on(site: Site) -> Server {
        let child = Server::spawn(&site);
        Server { site, child: Some(child) }.ready()
    }

    /// Starts it in the foreground with further arguments.
    pub fn start_with(site: Site, arguments: &[&str]) -> Server {
        let arguments = [&["-g", "daemon off;"], arguments].concat();
        let child = Server::spawn_as(&site, site.command(program(), &arguments));
        Server { site, child: Some(child) }.ready()
    }

    fn spawn(site: &Site) -> Child {
        Server::spawn_as(site, site.command(program(), &["-g", "daemon off;"]))
    }

    fn spawn_as(site: &Site, mut command: Command) -> Child {
        site.prepare();
        let stderr = std::fs::File::create(site.dir().join("stderr")).expect("file");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().expect("starts")
    }

    /// Ends it and starts it again on the same directory.
    pub fn restart(&mut self) {
        self.signal(Signal::SIGTERM);
        self.wait_end();
        self.restart_dead();
    }

    /// Starts it again after it has been killed.
    pub fn restart_dead(&mut self) {
        self.child = Some(Server::spawn(&self.site));
        self.wait_until_ready();
    }

    /// Starts it where no file may grow beyond so many KiB: writing more fails.
    pub fn start_limited(site: Site, kib: u32) -> Server {
        let own = site.command(program(), &["-g", "daemon off;"]);
        let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", kib * 2);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).arg(own.get_program()).args(own.get_args()).env_remove("NGINX");
        let child = Server::spawn_as(&site, command);
        Server { site, child: Some(child) }.ready()
    }

    /// Starts it as a daemon, as init systems do.
    pub fn start_daemon(conf: impl Display) -> Server {
        Server::daemon_on(Site::new(conf))
    }

    /// The same on a directory that was prepared before.
    pub fn daemon_on(site: Site) -> Server {
        Server::daemon_with(site, &[])
    }

    /// The same with further arguments.
    pub fn daemon_with(site: Site, arguments: &[&str]) -> Server {
        let status = Server::spawn_as(&site, site.command(program(), arguments)).wait().expect("starts");
        assert!(status.success(), "{}", site.read("stderr"));
        Server { site, child: None }.ready()
    }

    fn ready(mut self) -> Server {
        self.wait_until_ready();
        self
    }

    fn wait_until_ready(&mut self) {
        let addr = self.site.addr(0);
        wait_for("a server that accepts", || {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().expect("child")) {
                panic!("ended with {status}: {}", self.site.read("stderr"));
            }
            self.site.pid_in_file()?;
            TcpStream::connect_timeout(&addr, DEADLINE).ok()
        });
        // The kernel accepts before there is a worker process.
        if !self.site.read("nginx.conf").contains("master_process off") {
            self.worker();
        }
    }

    /// Returns the pid of the master.
    pub fn pid(&self) -> i32 {
        match &self.child {
            Some(child) => child.id() as i32,
            None => wait_for("a pid file", || self.site.pid_in_file()),
        }
    }

    /// Opens a connection to `%PORT0%`.
    pub fn connect(&self) -> TcpStream {
        connect(self.addr(0))
    }

    /// Opens a connection to `%PORT0%` and sends bytes.
    pub fn send(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = self.connect();
        crate::Talk::send(&mut stream, bytes);
        stream
    }

    /// Sends bytes to `%PORT0%`, see [`raw`].
    pub fn raw(&self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        raw(self.addr(0), bytes)
    }

    /// Sends bytes to `%PORT0%` and returns the answer as text, see [`raw`].
    pub fn ask(&self, bytes: impl AsRef<[u8]>) -> String {
        String::from_utf8_lossy(&self.raw(bytes)).into_owned()
    }

    /// Sends a `GET` with `Connection: close`, and returns the whole answer as text.
    pub fn get(&self, target: impl Display) -> String {
        self.ask(get(target))
    }

    /// The same with more fields, each with its line end.
    pub fn get_with(&self, target: impl Display, fields: impl Display) -> String {
        self.ask(get_with(target, fields))
    }

    /// Sends a signal to the master.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Has the master read the configuration again.
    pub fn reload(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// Writes another configuration and has the master read it.
    pub fn reload_with(&self, conf: impl Display) {
        self.write("nginx.conf", conf.to_string());
        self.reload();
    }

    /// Kills the worker process, and waits until there is another one.
    pub fn kill_worker(&self) {
        let old = self.worker();
        kill(old, Signal::SIGKILL);
        crate::wait_until("another worker", || self.workers(self.pid()).iter().any(|pid| *pid != old));
    }

    /// Has another master process follow that of a pid. Returns its pid.
    pub fn successor(&self, old: i32) -> i32 {
        self.signal(Signal::SIGUSR2);
        wait_for("a new master", || self.pid_in_file().filter(|pid| *pid != old))
    }

    /// Returns the error log.
    pub fn error_log(&self) -> String {
        self.site.read("logs/error.log")
    }

    /// Waits until the error log contains a text `count` times.
    pub fn wait_for_log(&self, text: impl AsRef<str>, count: usize) {
        let (text, end) = (text.as_ref(), Instant::now() + DEADLINE);
        while self.error_log().matches(text).count() < count {
            let log = self.error_log();
            assert!(
                Instant::now() < end,
                "waited in vain for {count} times {text:?} in the error log: {log}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a log has so many lines, and returns it.
    pub fn wait_for_lines(&self, name: &str, count: usize) -> String {
        wait_for("lines of a log", || Some(self.read(name)).filter(|log| log.lines().count() >= count))
    }

    /// Returns the pid of the worker process, for which it waits.
    pub fn worker(&self) -> i32 {
        wait_for("a worker process", || self.workers(self.pid()).first().copied())
    }

    /// Returns the pids of the worker processes of a master.
    pub fn workers(&self, master: i32) -> Vec<i32> {
        children(master).into_iter().filter(|pid| title(*pid).starts_with("nginx: worker process")).collect()
    }

    /// Waits until the foreground process has ended, and returns its exit code.
    pub fn wait_end(&mut self) -> Option<i32> {
        let child = self.child.as_mut().expect("in the foreground");
        wait_for("the end of the server", || child.try_wait().expect("child")).code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            if let Ok(None) = child.try_wait() {
                kill(child.id() as i32, Signal::SIGTERM);
                let _ = child.wait();
            }
            return;
        }
        for name in ["logs/nginx.pid.oldbin", "logs/nginx.pid"] {
            if let Ok(pid) = self.site.read(name).trim().parse() {
                kill(pid, Signal::SIGTERM);
                let end = Instant::now() + DEADLINE;
                while alive(pid) && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }
}
