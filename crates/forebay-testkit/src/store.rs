//! Debian's redis-server as the store that servers share.

use crate::{Running, Server, Signal, Talk, body, connect, free_port, series, tool, wait_until};
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// A store. Ends with the test.
pub struct Redis {
    running: Running,
    /// Port of 127.0.0.1.
    pub port: u16,
    /// Directory with its configuration.
    directory: tempfile::TempDir,
}

/// Lines of a store without anything special.
pub const PLAIN: &str = "port %PORT%";

impl Redis {
    /// Starts it with these lines of its configuration; `%PORT%` is its port. Returns `None` where it is not installed.
    pub fn start(lines: &str) -> Option<Redis> {
        if !tool("redis-server") {
            return None;
        }
        let (directory, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let lines = format!("bind 127.0.0.1\nsave \"\"\nappendonly no\n{lines}\n");
        let lines = lines.replace("%PORT%", &port.to_string());
        std::fs::write(directory.path().join("redis.conf"), lines).expect("written");
        let running = Redis::spawn(directory.path(), port);
        Some(Redis { running, port, directory })
    }

    fn spawn(directory: &Path, port: u16) -> Running {
        let mut command = Command::new("redis-server");
        Running::start_at(command.arg("redis.conf").current_dir(directory), ([127, 0, 0, 1], port).into())
    }

    /// Sends a command and returns the reply.
    pub fn says(&self, command: &str) -> String {
        let mut stream = connect(([127, 0, 0, 1], self.port).into());
        stream.send(format!("{command}\r\n"));
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).expect("a reply");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        crate::kill(self.running.pid(), signal);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.running.end(Signal::SIGKILL);
    }

    /// Starts it again after [`Redis::kill`], without what it knew.
    pub fn restart(&mut self) {
        self.running = Redis::spawn(self.directory.path(), self.port);
    }
}

/// Starts servers and waits until each of them knows all.
pub fn servers(count: usize, conf: &str) -> Vec<Server> {
    let servers: Vec<Server> = (0..count).map(|_| Server::start(conf)).collect();
    for server in &servers {
        wait_until_up(server);
        let known = || metric(server, "forebay_shared_limit_replicas") as usize;
        wait_until("all replicas", || known() == count);
    }
    servers
}

/// Waits until a server uses the store.
pub fn wait_until_up(server: &Server) {
    // The series are there once the background work of the configuration has begun.
    let up = || body(&server.get("/metrics")).contains("\nforebay_shared_limit_degraded 0\n");
    wait_until("the store", up);
}

/// Returns the value of a series.
pub fn metric(server: &Server, name: &str) -> f64 {
    series(&server.get("/metrics"), name)
}

/// Way to a store that can be cut.
pub struct Way {
    /// Port of 127.0.0.1.
    pub port: u16,
    state: Arc<Mutex<WayState>>,
}

struct WayState {
    cut: bool,
    streams: Vec<TcpStream>,
}

impl Way {
    /// Opens a way to a port of 127.0.0.1.
    pub fn to(port: u16) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let own = listener.local_addr().expect("address").port();
        let state = Arc::new(Mutex::new(WayState { cut: false, streams: Vec::new() }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let mut state = shared.lock().expect("no panic");
                if state.cut {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for stream in [&near, &far] {
                    stream.set_nodelay(true).expect("set");
                    state.streams.push(stream.try_clone().expect("a copy"));
                }
                let both = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
                for (from, to) in both {
                    let (mut from, mut to) = (from.expect("a copy"), to.expect("a copy"));
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Way { port: own, state }
    }

    /// Cuts all connections, and lets no new ones through.
    pub fn cut(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.cut = true;
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets connections through again.
    pub fn mend(&self) {
        self.state.lock().expect("no panic").cut = false;
    }
}
