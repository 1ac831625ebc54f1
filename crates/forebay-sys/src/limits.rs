//! Resource limits of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Returns the soft and hard limit of open descriptors; `u64::MAX` stands for no limit.
pub fn descriptors() -> (u64, u64) {
    let limit = getrlimit(Resource::Nofile);
    (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
}

/// Raises the soft limit of open descriptors to the hard one and returns the limit in force then.
pub fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // A failure leaves the soft limit, which the caller then learns.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    descriptors().0
}

/// Sets both limits of open descriptors (nginx: worker_rlimit_nofile).
///
/// # Errors
/// `EPERM` when the hard limit would rise without privilege.
pub fn set_descriptors(count: u64) -> io::Result<()> {
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: Some(count) })?)
}

/// Sets both limits of the size of core files in bytes (nginx: worker_rlimit_core).
///
/// # Errors
/// `EPERM` when the hard limit would rise without privilege.
pub fn set_core(bytes: u64) -> io::Result<()> {
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(bytes), maximum: Some(bytes) })?)
}

/// Sets the scheduling priority of the process, -20 to 19 (nginx: worker_priority).
///
/// # Errors
/// `EACCES` when the priority would rise without privilege.
pub fn set_priority(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}

/// Returns how often this thread has waited so far: the number of its voluntary context switches (getrusage(2)). 0 if unknown.
pub fn waits_of_thread() -> u64 {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD);
    usage.map_or(0, |usage| u64::try_from(usage.voluntary_context_switches()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raises_to_the_hard_limit() {
        let (_, hard) = descriptors();
        assert_eq!(raise_descriptors(), hard);
    }
}
