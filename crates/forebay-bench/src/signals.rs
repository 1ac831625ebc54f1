//! ^C and SIGTERM: noticed, not obeyed at once, so that what was measured is still told.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static FD: OnceLock<Option<SignalFd>> = OnceLock::new();
static SEEN: AtomicBool = AtomicBool::new(false);

/// From now on the signals are only noted. To be called before any thread is started.
pub fn catch() {
    FD.get_or_init(|| {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        set.thread_block().ok()?;
        SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).ok()
    });
}

/// Whether one has come.
pub fn interrupted() -> bool {
    if let Some(Some(fd)) = FD.get()
        && matches!(fd.read_signal(), Ok(Some(_)))
    {
        SEEN.store(true, Ordering::Relaxed);
    }
    SEEN.load(Ordering::Relaxed)
}

/// As if one had come.
pub fn interrupt() {
    SEEN.store(true, Ordering::Relaxed);
}
