//! Calls of the program that adds and removes records of DNS-01.

use crate::settings::Program;
use crate::transport::clean;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a call.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest wait for output before another look at whether the program has ended.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Most bytes of the standard error that are kept for the log.
const MAX_OUTPUT: usize = 4096;

/// Calls a program with these arguments after its own, on the blocking pool.
///
/// # Errors
/// If it cannot be started, takes too long, or ends with another code than 0; with the end of its standard error.
pub(crate) async fn run(program: &Program, call: [&str; 3]) -> Result<(), String> {
    let (program, call) = (program.clone(), call.map(str::to_owned));
    let done = tokio::task::spawn_blocking(move || run_within(&program, &call, LIMIT)).await;
    done.unwrap_or_else(|e| Err(e.to_string()))
}

fn run_within(program: &Program, call: &[String; 3], limit: Duration) -> Result<(), String> {
    let what = format!("\"{} {}\"", program.path.display(), call[0]);
    let started = Command::new(&program.path)
        .args(&program.arguments)
        .args(call)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A group of its own, so that what a script has started ends with it.
        .process_group(0)
        .spawn();
    let child = started.map_err(|e| format!("{what} cannot be started ({e})"))?;
    let mut running = Running { child, output: Vec::new() };
    let status = running.wait(limit).map_err(|text| format!("{what} {text}"))?;
    if status.success() {
        return Ok(());
    }
    let output = clean(String::from_utf8_lossy(&running.output).trim());
    Err(format!("{what} failed ({status}): {output}"))
}

/// A program that runs.
struct Running {
    child: Child,
    /// Begin of its standard error.
    output: Vec<u8>,
}

impl Running {
    /// Waits until the program ends, and ends it after `limit`.
    fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let end = Instant::now() + limit;
        let mut stderr = self.child.stderr.take();
        loop {
            let has_ended = self.child.try_wait().map_err(|e| e.to_string())?;
            // After the look, so that nothing of its output is missed. A process in the background may keep the pipe open.
            stderr = stderr.and_then(|pipe| self.read_available(pipe));
            if let Some(status) = has_ended {
                return Ok(status);
            }
            if Instant::now() > end {
                self.kill();
                return Err(format!("takes longer than {} s", limit.as_secs()));
            }
            if stderr.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Waits a moment for output and reads it. Returns the pipe unless it is at its end.
    fn read_available(&mut self, mut pipe: ChildStderr) -> Option<ChildStderr> {
        let mut look = [PollFd::new(&pipe, PollFlags::IN)];
        if !matches!(poll(&mut look, Some(&LOOK)), Ok(1..)) {
            return Some(pipe);
        }
        let mut piece = [0; MAX_OUTPUT];
        let length = pipe.read(&mut piece).unwrap_or(0);
        self.output.extend_from_slice(piece.get(..length).unwrap_or_default());
        self.output.truncate(MAX_OUTPUT);
        (length > 0).then_some(pipe)
    }

    fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(script: &str, limit: Duration) -> Result<(), String> {
        let program = Program {
            path: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into(), "sh".into()],
            delay: Duration::ZERO,
        };
        let call = ["add", "_acme-challenge.a.example", "value"].map(str::to_owned);
        run_within(&program, &call, limit)
    }

    #[test]
    fn programs_get_their_arguments() {
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("out");
        assert_eq!(call(&format!("echo \"$@\" > {}", out.display()), LIMIT), Ok(()));
        let written = std::fs::read_to_string(out).expect("written");
        assert_eq!(written, "add _acme-challenge.a.example value\n");
    }

    #[test]
    fn failures_have_the_reason() {
        let text = call("echo no such zone >&2; exit 3", LIMIT).expect_err("fails");
        assert!(text.ends_with("add\" failed (exit status: 3): no such zone"), "{text}");
        let text = call("head -c 100000 /dev/zero >&2; exit 1", LIMIT).expect_err("fails");
        assert!(text.len() < 1000, "{text}");
        let none = Program { path: "/none".into(), arguments: Vec::new(), delay: Duration::ZERO };
        let text = run_within(&none, &["add", "a", "b"].map(str::to_owned), LIMIT).expect_err("not there");
        assert!(text.contains("cannot be started"), "{text}");
    }

    #[test]
    fn programs_that_hang_are_ended() {
        let text = call("sleep 1000 & sleep 1000", Duration::from_millis(1)).expect_err("hangs");
        assert!(text.contains("takes longer than"), "{text}");
    }

    /// The order does not wait for processes that a script leaves in the background.
    #[test]
    fn programs_may_leave_others_behind() {
        let begun = Instant::now();
        assert_eq!(call("sleep 20 & exit 0", LIMIT), Ok(()));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
