//! Log files whose names have variables, kept open for a while (nginx: open_log_file_cache).

use forebay_sys::sync::lock;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// `open_log_file_cache`.
#[derive(Clone, Copy, Debug)]
pub struct FileLimits {
    /// Most files that are kept.
    pub max: u64,
    /// Time without use after which a file is closed.
    pub inactive: Duration,
    /// Time after which a file is opened again, in case it has been replaced.
    pub valid: Duration,
    /// Lines within `inactive` from which on a file is kept open.
    pub min_uses: u64,
}

#[derive(Debug)]
struct File {
    fd: Option<OwnedFd>,
    opened: Instant,
    used: Instant,
    uses: u64,
}

type Files = HashMap<PathBuf, File>;

/// Open files of all threads, since `open_log_file_cache` limits a worker process. Only logs whose names have variables take the
/// lock.
static FILES: Mutex<Option<Files>> = Mutex::new(None);

fn files() -> MutexGuard<'static, Option<Files>> {
    lock(&FILES)
}

/// Closes all files, so that the logs are opened again.
pub fn close() {
    *files() = None;
}

/// Appends a line to a file.
///
/// # Errors
/// If the file cannot be opened.
pub fn append(path: &Path, line: &[u8], policy: Option<FileLimits>) -> Result<(), Errno> {
    let Some(policy) = policy else {
        let _ = rustix::io::write(open(path)?, line);
        return Ok(());
    };
    let mut guard = files();
    append_cached(guard.get_or_insert_default(), path, line, policy, Instant::now())
}

fn append_cached(
    files: &mut Files,
    path: &Path,
    line: &[u8],
    p: FileLimits,
    now: Instant,
) -> Result<(), Errno> {
    files.retain(|_, f| now.duration_since(f.used) < p.inactive);
    if !files.contains_key(path) {
        // A name that cannot be opened takes no place from another.
        let fd = open(path)?;
        if files.len() as u64 >= p.max {
            let oldest = files.iter().min_by_key(|(_, f)| f.used).map(|(path, _)| path.clone());
            oldest.and_then(|o| files.remove(&o));
        }
        files.insert(path.to_owned(), File { fd: Some(fd), opened: now, used: now, uses: 0 });
    }
    let Some(file) = files.get_mut(path) else { return Ok(()) };
    file.uses += 1;
    file.used = now;
    if now.duration_since(file.opened) >= p.valid {
        file.fd = None;
    }
    let fd = match file.fd.take() {
        Some(fd) => fd,
        None => {
            file.opened = now;
            open(path)?
        }
    };
    let _ = rustix::io::write(&fd, line);
    // Otherwise the descriptor is closed here, and only the count of uses is kept.
    if file.uses >= p.min_uses {
        file.fd = Some(fd);
    }
    Ok(())
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_ones_stay_open_and_the_oldest_goes() {
        let dir = std::env::temp_dir().join(format!("forebay-logs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let second = Duration::from_secs(1);
        let policy = FileLimits { max: 2, inactive: 20 * second, valid: 60 * second, min_uses: 2 };
        let mut files = Files::new();
        let start = Instant::now();
        let mut at = start;
        let mut line = |name: &str, after: u32| {
            at += second * after;
            append_cached(&mut files, &dir.join(name), b"x", policy, at).expect("opened");
            let open = |name: &str| files.get(&dir.join(name)).is_some_and(|f| f.fd.is_some());
            (open("a"), open("b"), open("c"))
        };
        assert_eq!(line("a", 1), (false, false, false));
        assert_eq!(line("a", 1), (true, false, false));
        assert_eq!(line("b", 1), (true, false, false));
        assert_eq!(line("b", 1), (true, true, false));
        assert_eq!(line("c", 1), (false, true, false));
        assert_eq!(line("c", 1), (false, true, true));
        assert_eq!(line("b", 30), (false, false, false));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
