//! Wakes threads when files of caches have been removed or replaced, so that the threads close them.

use forebay_net::reactor::{NOTICE_CACHES, notice};
use forebay_sys::sync::lock;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};

/// Bells of all threads that have opened a cached file at least once.
static BELLS: Mutex<Vec<Weak<Bell>>> = Mutex::new(Vec::new());

/// Descriptor that wakes one thread.
#[derive(Debug)]
pub(crate) struct Bell {
    event: OwnedFd,
    /// The thread has files of caches open.
    holds: AtomicBool,
    /// The thread has been woken and has not looked yet.
    rung: AtomicBool,
}

impl Bell {
    /// Creates the bell of a thread with this epoll set: it gets the notice [`NOTICE_CACHES`].
    ///
    /// # Errors
    /// Errors of eventfd(2) and epoll_ctl(2).
    pub(super) fn new(epoll: &OwnedFd) -> rustix::io::Result<Arc<Bell>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(epoll, &event, notice(NOTICE_CACHES), epoll::EventFlags::IN)?;
        let bell = Arc::new(Bell { event, holds: AtomicBool::new(false), rung: AtomicBool::new(false) });
        let mut bells = lock(&BELLS);
        // Threads that have ended leave dead references here.
        bells.retain(|b| b.strong_count() > 0);
        bells.push(Arc::downgrade(&bell));
        Ok(bell)
    }

    /// Notes whether the thread has files open. Only then it is woken.
    pub(super) fn hold(&self, holds: bool) {
        self.holds.store(holds, Ordering::Relaxed);
        // Either the caller sees the generation that changed before `ring`, or `ring` sees the flag.
        fence(Ordering::SeqCst);
    }

    /// Resets the bell before the thread looks through its files.
    pub(super) fn heard(&self) {
        let mut count = [0u8; 8];
        // Fails only if nothing has been written, and then there is nothing to reset.
        let _ = rustix::io::read(&self.event, &mut count);
        // Reset before the files are looked at: a file that is removed from here on rings again.
        self.rung.swap(false, Ordering::AcqRel);
    }
}

/// Wakes the threads that have files open, after the generation of an entry has changed.
pub(super) fn ring() {
    // See `Bell::hold`.
    fence(Ordering::SeqCst);
    for bell in lock(&BELLS).iter().filter_map(Weak::upgrade) {
        if bell.holds.load(Ordering::Relaxed) && !bell.rung.swap(true, Ordering::AcqRel) {
            // Fails only if the counter is full (eventfd(2)); the descriptor is readable then anyway.
            let _ = rustix::io::write(&bell.event, &1u64.to_ne_bytes());
        }
    }
}
