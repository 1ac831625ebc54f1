//! A second process that puts kernel settings back and ends the measured server when the tuner is killed: a process
//! that gets SIGKILL cannot do that itself.

use crate::{state, sysctl};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `tune watch`, which the tuner starts itself.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct WatchArgs {
    /// Where the lock, the private copy and the journal are
    state: PathBuf,
}

/// The watcher, as long as it is held.
#[derive(Debug)]
pub(crate) struct Watcher(Option<Child>);

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Nothing is left to put back by now.
            if let Some(mut input) = child.stdin.take() {
                let _ = input.write_all(b".");
            }
            let _ = child.wait();
        }
    }
}

/// Starts the watcher. Without it everything works, and the next start cleans up.
pub(crate) fn start(state: &Path) -> Watcher {
    let spawn = || {
        Command::new(std::env::current_exe()?)
            .args(["tune", "watch"])
            .arg(state)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // ^C is for the tuner.
            .process_group(0)
            .spawn()
    };
    Watcher(spawn().ok())
}

/// Waits for the end of the tuner. Returns whether it ended in good order.
fn ended_well() -> bool {
    let mut byte = [0];
    loop {
        match std::io::stdin().read(&mut byte) {
            Ok(n) => return n > 0,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

/// Waits for the end of the tuner, and cleans up if it left anything.
///
/// # Errors
/// A setting cannot be put back.
pub(crate) fn main(args: &WatchArgs) -> Result<(), String> {
    if ended_well() {
        return Ok(());
    }
    let file = std::fs::File::open(args.state.join("lock")).map_err(|e| e.to_string())?;
    // The files of a killed process are closed in no order, so its lock may outlive its pipe for a moment. A tuner that
    // has started meanwhile cleans up itself.
    let patience = Instant::now() + Duration::from_millis(500);
    while rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > patience {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    state::clean(&args.state);
    sysctl::restore(&args.state.join("journal")).map(drop)
}
