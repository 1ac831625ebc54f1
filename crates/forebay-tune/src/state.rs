//! The state directory: the lock, the private copy and the journal.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Returns the directory for lock, copy and journal.
///
/// # Errors
/// It cannot be made.
pub(crate) fn state_dir(wanted: Option<&Path>) -> Result<PathBuf, String> {
    let mut places: Vec<PathBuf> = wanted.map(Into::into).into_iter().collect();
    if places.is_empty() {
        places.push("/run/forebay-tune".into());
        let user = rustix::process::geteuid().as_raw();
        places.push(std::env::temp_dir().join(format!("forebay-tune-{user}")));
    }
    let mut last = String::new();
    for p in places {
        match std::fs::create_dir_all(&p).and_then(|()| std::path::absolute(&p)) {
            Ok(p) => {
                use std::os::unix::fs::MetadataExt;
                let mine = std::fs::symlink_metadata(&p)
                    .is_ok_and(|m| m.is_dir() && m.uid() == rustix::process::geteuid().as_raw());
                if mine {
                    return Ok(p);
                }
                last = format!("{} belongs to somebody else", p.display());
            }
            Err(e) => last = format!("{}: {e}", p.display()),
        }
    }
    Err(last)
}

/// Takes the lock, as two tuners would measure each other, and cleans up after a tuner that was killed.
///
/// # Errors
/// Another one runs.
pub(crate) fn lock(state: &Path) -> Result<File, String> {
    let path = state.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    // The watcher of a tuner that was killed may hold the lock for a moment while it cleans up.
    let patience = Instant::now() + Duration::from_secs(1);
    while rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > patience {
            return Err(format!(
                "another tuner runs (lock {}); two would measure each other",
                path.display()
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    clean(state);
    Ok(file)
}

/// Ends the server of a tuner that was killed, and removes its copy.
pub(crate) fn clean(state: &Path) {
    let copy = state.join("copy");
    if let Some(pid) =
        std::fs::read_to_string(copy.join("server.pid")).ok().and_then(|t| t.trim().parse::<i32>().ok())
    {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let needle = copy.join("conf").display().to_string();
        if String::from_utf8_lossy(&line).contains(&needle) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        }
    }
    let _ = std::fs::remove_dir_all(&copy);
}
