//! CPUs that threads run on.

use rustix::thread::CpuSet;
use std::io;

/// Pins the calling thread to the given CPUs (numbers as in `/proc/cpuinfo`).
///
/// # Errors
/// `EINVAL` when none of the CPUs exists or is allowed; also for an empty list.
pub fn pin_current_thread(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Runs `work`, and starts what it starts, with the calling thread on the given CPUs; none: where it is. New threads and
/// processes inherit the CPUs of the thread that makes them.
///
/// # Errors
/// Errors of [`pin_current_thread`]; `work` has not run then.
pub fn pinned<T>(cpus: &[usize], work: impl FnOnce() -> T) -> io::Result<T> {
    if cpus.is_empty() {
        return Ok(work());
    }
    let before = allowed()?;
    pin_current_thread(cpus)?;
    let done = work();
    pin_current_thread(&before)?;
    Ok(done)
}

/// CPUs that the calling thread may run on, in ascending order.
///
/// # Errors
/// Errors of sched_getaffinity(2).
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Reads a list as the kernel writes it: `0-3,8,10-11`. `None` when it is malformed or names a CPU above
/// 65535; an empty text is an empty list.
pub fn parse_cpu_list(text: &str) -> Option<Vec<usize>> {
    const HIGHEST: usize = 65_535;
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        if first > last || last > HIGHEST {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse_cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_cpu_list(""), Some(vec![]));
        assert_eq!(parse_cpu_list("3-1"), None);
        assert_eq!(parse_cpu_list("x"), None);
        assert_eq!(parse_cpu_list("0-99999999999"), None);
    }

    #[test]
    fn pins_to_an_allowed_cpu() {
        let cpus = allowed().expect("own affinity");
        std::thread::spawn(move || {
            let last = *cpus.last().expect("at least one CPU runs this");
            pin_current_thread(&[last]).expect("allowed");
            assert_eq!(allowed().expect("own affinity"), [last]);
        })
        .join()
        .expect("no panic");
        let all = allowed().expect("own affinity");
        let first = all.first().copied().expect("at least one CPU runs this");
        let inside = pinned(&[first], || std::thread::spawn(allowed).join().expect("no panic"));
        assert_eq!(inside.expect("allowed").expect("its affinity"), [first]);
        assert_eq!(pinned(&[], allowed).expect("nothing to do").expect("own affinity"), all);
        std::thread::spawn(move || {
            assert_eq!(allowed().expect("own affinity"), all);
        })
        .join()
        .expect("no panic");
    }
}
