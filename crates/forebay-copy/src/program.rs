//! The server's program: where it is, its test, its start and its end.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that this process started.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Its pid.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it: TERM first, KILL for it and its workers when that takes longer than three seconds.
    pub fn end(&mut self) {
        use nix::sys::signal::{Signal, kill};
        use nix::unistd::Pid;
        let pid = self.child.id();
        let children = children(pid);
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        for c in children {
            let _ = kill(Pid::from_raw(c as i32), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn children(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect()
}

/// A program with nginx's command line.
#[derive(Clone, Debug)]
pub struct Program {
    /// Executable.
    pub path: PathBuf,
    /// Prefix that is handed to it.
    pub prefix: PathBuf,
    /// CPUs that it may use; none: all.
    pub cpus: Vec<usize>,
    /// It ends with the thread that starts it, even if that is killed.
    pub is_bound: bool,
}

impl Program {
    fn command(&self, conf: &Path) -> Command {
        let mut c = Command::new(&self.path);
        c.arg("-p").arg(&self.prefix).arg("-c").arg(conf).stdin(Stdio::null()).env_remove("NGINX");
        c
    }

    /// Tests a configuration (`-t`).
    ///
    /// # Errors
    /// The server's words.
    pub fn test(&self, conf: &Path) -> Result<(), String> {
        let out =
            self.command(conf).arg("-t").output().map_err(|e| format!("{}: {e}", self.path.display()))?;
        if out.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&out.stderr);
        let line =
            text.lines().find(|l| l.contains("[emerg]")).or(text.lines().next()).unwrap_or_default().trim();
        if line.is_empty() {
            return Err(format!("{} -t fails without a word ({})", self.path.display(), out.status));
        }
        Err(line.to_owned())
    }

    /// Starts it and waits until the addresses accept.
    ///
    /// # Errors
    /// It ended, or did not accept within five seconds.
    pub fn start(&self, conf: &Path, addresses: &[SocketAddr], log: &Path) -> Result<Process, String> {
        let say = |e: std::io::Error| format!("{}: {e}", self.path.display());
        let err = File::create(log).map_err(say)?;
        let mut command = self.command(conf);
        // ^C is for the program that started it.
        command.stdout(Stdio::null()).stderr(err).process_group(0);
        if self.is_bound {
            forebay_sys::child::die_with_starter(&mut command);
        }
        let start = || forebay_sys::child::unblock_signals(&mut command).spawn();
        let child = forebay_sys::affinity::pinned(&self.cpus, start).map_err(say)?.map_err(say)?;
        let mut process = Process { child };
        let until = Instant::now() + Duration::from_secs(5);
        for address in addresses {
            while TcpStream::connect(address).is_err() {
                if let Ok(Some(status)) = process.child.try_wait() {
                    let text = std::fs::read_to_string(log).unwrap_or_default();
                    return Err(format!(
                        "the server ended ({status}): {}",
                        text.lines().last().unwrap_or_default()
                    ));
                }
                if Instant::now() > until {
                    return Err(format!("the server does not accept at {address}"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(process)
    }
}
