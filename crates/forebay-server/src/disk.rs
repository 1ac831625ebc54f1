//! Work on files that seldom waits: writes, which end in the page cache, and changes of names. It runs in the worker thread, since
//! handing it to another thread costs more than a small write. When the disk makes such work wait, further work goes to the blocking pool
//! for a while, so that other requests of the thread go on. Hot path.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Maximum time that work should take in the worker thread.
const SLOW: Duration = Duration::from_millis(5);

/// Time for which work goes to the pool after the disk has made a longer piece wait.
const CAUTION: Duration = Duration::from_millis(300);

/// The disk as a worker thread knows it.
#[derive(Debug, Default)]
pub struct Disk {
    /// End of the time in which work goes to the pool.
    cautious_until: Cell<Option<Instant>>,
    /// Number of pieces of work that went to the pool.
    #[cfg(test)]
    pooled: Cell<u64>,
}

impl Disk {
    /// Runs work that may wait for the disk. Returns `None` if the pool has ended.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let start = Instant::now();
        // The write ends in the page cache, so nearly always it takes less time than the pool would need to begin it.
        if self.cautious_until.get().is_none_or(|end| start >= end) {
            let waits = forebay_sys::limits::waits_of_thread();
            let done = work();
            let took = start.elapsed();
            // A thread that lost the processor to others has taken long as well, but has not waited for the disk.
            if took > SLOW && forebay_sys::limits::waits_of_thread() > waits {
                self.beware();
            }
            return Some(done);
        }
        #[cfg(test)]
        self.pooled.set(self.pooled.get() + 1);
        tokio::task::spawn_blocking(work).await.ok()
    }

    /// Sends work to the pool for a while.
    fn beware(&self) {
        self.cautious_until.set(Some(Instant::now() + CAUTION));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_to_the_pool_after_slow_work() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let here = std::thread::current().id();
        let disk = Disk::default();
        let runs_here = || runtime.block_on(disk.run(|| std::thread::current().id())) == Some(here);
        assert!(runs_here() && runs_here());
        // Slow work that does not wait.
        runtime.block_on(disk.run(|| {
            let start = Instant::now();
            while start.elapsed() < SLOW * 2 {}
        }));
        assert_eq!(disk.pooled.get(), 0);
        runtime.block_on(disk.run(|| std::thread::sleep(SLOW * 2)));
        assert!(!runs_here() && !runs_here());
        assert_eq!(disk.pooled.get(), 2);
        // The time is over.
        disk.cautious_until.set(Some(Instant::now()));
        assert!(runs_here());
    }
}
