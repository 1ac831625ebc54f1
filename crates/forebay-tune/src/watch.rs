//! A process beside the tuner that puts kernel settings back and ends the measured server when the tuner is killed:
//! nothing can be done by who gets SIGKILL.

use crate::cli;
use crate::sysctl;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// `tune watch`, which the tuner starts itself.
#[derive(clap::Args, Clone, Debug)]
pub struct WatchArgs {
    /// Where the lock, the private copy and the journal are
    state: PathBuf,
}

/// The watcher, as long as it is held.
#[derive(Debug)]
pub struct Watcher(Option<Child>);

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // The end of its input is the sign; by now there is nothing to put back.
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

/// Starts the watcher. Without it everything works, and the next start cleans up.
pub fn start(state: &Path) -> Watcher {
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

/// Waits for the end of the tuner, and cleans up if it left anything.
///
/// # Errors
/// A setting cannot be put back.
pub fn main(args: &WatchArgs) -> Result<(), String> {
    let mut byte = [0];
    while !matches!(std::io::stdin().read(&mut byte), Ok(0)) {}
    let file = std::fs::File::open(args.state.join("lock")).map_err(|e| e.to_string())?;
    // A tuner that has started meanwhile cleans up itself; one that ends in good order still has the lock.
    if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    cli::clean(&args.state);
    sysctl::restore(&args.state.join("journal")).map(drop)
}
