//! Programs that run to their end, or beside a test.

use crate::{DEADLINE, Signal, alive, kill, wait_for};
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Result of a program that has ended.
#[derive(Debug)]
pub struct Done {
    /// Exit code; -1 if a signal has ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Done {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Done {
        let done = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Done { code: done.status.code().unwrap_or(-1), out: text(&done.stdout), err: text(&done.stderr) }
    }

    /// Returns both outputs together.
    pub fn all(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// A program that ends with the value.
pub struct Running {
    child: Child,
    out: File,
    err: File,
}

impl Running {
    /// Starts a command, whose outputs are kept.
    pub fn start(command: &mut Command) -> Running {
        let [out, err] = [(); 2].map(|()| tempfile::tempfile().expect("a file"));
        let copy = |file: &File| file.try_clone().expect("a file");
        let child = command.stdin(Stdio::null()).stdout(copy(&out)).stderr(copy(&err)).spawn();
        Running { child: child.unwrap_or_else(|e| panic!("{command:?}: {e}")), out, err }
    }

    /// The same, and waits until it accepts connections at an address.
    pub fn start_at(command: &mut Command, addr: SocketAddr) -> Running {
        let mut running = Running::start(command);
        wait_for("a program that accepts", || {
            if let Some(status) = running.child.try_wait().expect("child") {
                panic!("{command:?} ended with {status}: {}", running.err());
            }
            TcpStream::connect(addr).ok()
        });
        running
    }

    /// Returns its pid.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Returns what it has written to its standard output.
    pub fn out(&self) -> String {
        read(&self.out)
    }

    /// Returns what it has written to its standard error.
    pub fn err(&self) -> String {
        read(&self.err)
    }

    /// Returns its exit code once it has ended.
    pub fn code(&mut self) -> Option<i32> {
        wait_for("the end of a program", || self.child.try_wait().expect("child")).code()
    }

    /// Sends it a signal and waits for its end. Returns its exit code.
    pub fn end(&mut self, signal: Signal) -> Option<i32> {
        kill(self.pid(), signal);
        self.code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            kill(self.pid(), Signal::SIGTERM);
            let end = Instant::now() + DEADLINE;
            while alive(self.pid()) && Instant::now() < end {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Reads a file from its beginning, wherever the program that writes to it is.
fn read(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |m| m.len() as usize)];
    let length = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}
