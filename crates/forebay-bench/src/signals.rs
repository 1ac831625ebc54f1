//! ^C and SIGTERM. They are noted instead of ending the process, so that the results so far are still printed.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static FD: OnceLock<Option<SignalFd>> = OnceLock::new();
static SEEN: AtomicBool = AtomicBool::new(false);

/// Blocks the signals, so that they are only noted. Call it before any thread is started.
pub fn catch() {
    FD.get_or_init(|| {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        set.thread_block().ok()?;
        SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).ok()
    });
}

/// Returns `true` if a signal has come.
pub fn interrupted() -> bool {
    if let Some(Some(fd)) = FD.get()
        && matches!(fd.read_signal(), Ok(Some(_)))
    {
        SEEN.store(true, Ordering::Relaxed);
    }
    SEEN.load(Ordering::Relaxed)
}

/// Stops the run as a signal would.
pub fn interrupt() {
    SEEN.store(true, Ordering::Relaxed);
}
