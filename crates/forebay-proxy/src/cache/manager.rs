//! Background thread that loads cache directories at the start, in steps, and removes entries that are unused or exceed
//! a limit (nginx: cache loader and cache manager).

use super::index::millis;
use super::{Cache, Steps, saved, unhex};
use forebay_sys::sync::lock;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// State that the thread shares with its callers.
struct ManagerState {
    caches: Vec<Arc<Cache>>,
    running: bool,
    nudged: bool,
}

static WORK: Mutex<ManagerState> =
    Mutex::new(ManagerState { caches: Vec::new(), running: false, nudged: false });
static CHANGED: Condvar = Condvar::new();

/// Longest pause between two checks of a cache (nginx: 10 seconds).
const PAUSE: Duration = Duration::from_secs(10);

/// Longest pause if `min_free` is set: other programs may fill the file system at any time.
const WATCH: Duration = Duration::from_secs(1);

fn work() -> MutexGuard<'static, ManagerState> {
    lock(&WORK)
}

/// Replaces the caches that the thread manages.
pub fn attend(caches: &[Arc<Cache>]) {
    let mut w = work();
    w.caches = caches.to_vec();
    w.nudged = true;
    if !w.running && !caches.is_empty() {
        w.running = forebay_core::essential::spawn("cache manager".into(), None, run).is_ok();
    }
    drop(w);
    CHANGED.notify_all();
}

/// Wakes the thread, since there may be something to remove.
pub fn nudge() {
    work().nudged = true;
    CHANGED.notify_all();
}

fn run() {
    loop {
        forebay_core::essential::panic_on_purpose("cache manager");
        let caches = work().caches.clone();
        let mut pause = PAUSE;
        for cache in &caches {
            if !cache.index.loaded() {
                if !saved::read(cache) {
                    load(cache);
                }
                cache.index.set_loaded();
            }
            pause = pause.min(trim(cache));
        }
        drop(caches);
        let mut w = work();
        // A notice that came during the work must not be lost in a wait.
        if !w.nudged {
            w = CHANGED.wait_timeout(w, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
        w.nudged = false;
    }
}

/// Counter of work that pauses after each step.
struct Pacer {
    steps: Steps,
    files: u64,
    begun: Instant,
}

impl Pacer {
    fn new(steps: Steps) -> Pacer {
        Pacer { steps, files: 0, begun: Instant::now() }
    }

    fn step(&mut self) {
        self.files += 1;
        if self.files >= self.steps.files || self.begun.elapsed() >= self.steps.threshold {
            // As in nginx, the pauses leave the disk to requests while a large cache is read.
            std::thread::sleep(self.steps.sleep);
            *self = Pacer::new(self.steps);
        }
    }
}

/// Adds the files of the directory to the index, at the pace of the loader.
fn load(cache: &Cache) {
    let mut pacer = Pacer::new(cache.loader);
    read_in(cache, || pacer.step());
}

/// Adds all files of the directory to the index. Calls `step` after each. Blocks.
pub(super) fn read_in(cache: &Cache, mut step: impl FnMut()) {
    let mut dirs = vec![(cache.path.clone(), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        // A directory that cannot be read only hides its own entries, so the loader goes on with the others.
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < cache.levels.len() {
                dirs.push((entry.path(), depth + 1));
            } else if kind.is_file() {
                found(cache, &entry.path());
                step();
            }
        }
    }
}

fn found(cache: &Cache, path: &Path) {
    let name = path.file_name().unwrap_or_default().as_bytes();
    match unhex(name) {
        // A file at another depth is of an earlier `levels` parameter, and no request would find it there.
        Some(hash) if cache.file(&hash) == path => {
            let Ok(meta) = path.metadata() else { return };
            if let Some(node) = cache.index.obtain(&hash, millis(Instant::now())) {
                cache.index.note(&node, meta.len());
            }
        }
        _ if abandoned(name) => drop(std::fs::remove_file(path)),
        _ => {}
    }
}

/// Returns `true` for a temporary file, `HASH.PID.NUMBER`, whose process no longer exists.
fn abandoned(name: &[u8]) -> bool {
    let mut parts = name.split(|b| *b == b'.');
    let (hash, pid, number) = (parts.next(), parts.next(), parts.next());
    let digits = |t: &[u8]| !t.is_empty() && t.iter().all(u8::is_ascii_digit);
    let (Some(hash), Some(pid), Some(number)) = (hash, pid, number) else { return false };
    if unhex(hash).is_none() || !digits(pid) || !digits(number) || parts.next().is_some() {
        return false;
    }
    let pid = String::from_utf8_lossy(pid).into_owned();
    pid != std::process::id().to_string() && !PathBuf::from("/proc").join(pid).exists()
}

/// Removes inactive entries, and the least recently used entries while a limit is exceeded. Returns the time until the
/// next check.
fn trim(cache: &Cache) -> Duration {
    let mut pacer = Pacer::new(cache.manager);
    let inactive = u64::try_from(cache.inactive.as_millis()).unwrap_or(u64::MAX);
    let mut free = free_bytes(cache);
    loop {
        let Some((used, node)) = cache.index.oldest() else { return pause(cache, cache.inactive) };
        let now = millis(Instant::now());
        let idle = now.saturating_sub(used);
        // An empty cache does not help a file system that others have filled, so only its own size counts against
        // `min_free`.
        let too_much = cache.max_size.is_some_and(|max| cache.index.size() > max)
            || cache.index.crowded()
            || free.is_some_and(|f| f < cache.min_free && cache.index.size() > 0);
        if idle < inactive && !too_much {
            return pause(cache, Duration::from_millis(inactive - idle));
        }
        cache.index.remove(cache, &node);
        pacer.step();
        if free.is_some() {
            free = free_bytes(cache);
        }
    }
}

fn pause(cache: &Cache, wanted: Duration) -> Duration {
    let most = if cache.min_free > 0 { WATCH } else { PAUSE };
    // The lower bound keeps the thread from spinning around entries that are about to expire.
    wanted.clamp(Duration::from_millis(10), most)
}

/// Returns the free bytes of the file system if `min_free` is set.
fn free_bytes(cache: &Cache) -> Option<u64> {
    if cache.min_free == 0 {
        return None;
    }
    let s = rustix::fs::statvfs(&cache.path).ok()?;
    Some(s.f_bavail.saturating_mul(s.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoned_files_are_removed() {
        let hash = "b7f54b2df7773722d382f4809d65029c";
        let own = std::process::id();
        assert!(abandoned(format!("{hash}.4194999.12").as_bytes()));
        for kept in
            [format!("{hash}.{own}.12"), hash.to_owned(), "x.4194999.1".into(), format!("{hash}.1.2.3")]
        {
            assert!(!abandoned(kept.as_bytes()), "{kept}");
        }
    }
}
