//! CPU time and memory of the worker process.

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// Returns the time of all CPUs that the process has taken since its start, microseconds.
pub(super) fn cpu_micros() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(time.tv_nsec / 1000).unwrap_or(0))
}

/// Returns the memory of the machine that the process takes, bytes. Returns `None` where `/proc` is missing, as it may be after a change of
/// the root directory.
pub(super) fn memory() -> Option<u64> {
    // The file is kept open: it is read once a second, and opening it takes longer than reading all counters
    // of the history.
    static STATM: OnceLock<Option<File>> = OnceLock::new();
    let file = STATM.get_or_init(|| File::open("/proc/self/statm").ok()).as_ref()?;
    let mut text = [0; 128];
    let count = file.read_at(&mut text, 0).ok()?;
    // The fields of proc_pid_statm(5): size, resident pages, and others.
    let text = std::str::from_utf8(text.get(..count)?).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_memory_are_noticed() {
        let before = cpu_micros();
        let mut work = 0u64;
        while cpu_micros() < before + 2000 {
            work = std::hint::black_box(work + 1);
        }
        // Other tests of this process take memory and give it back at the same time, so only bounds hold: no less than this block, no more
        // than the kernel's own record of the most, read afterwards. The record is updated late, by some pages for each thread.
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let taken = memory().expect("/proc");
        assert!(taken >= block.len() as u64, "{taken}");
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
        let most = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        assert!(taken <= most.expect("VmHWM") * 1024 + (8 << 20), "{taken}, {most:?}");
    }
}
