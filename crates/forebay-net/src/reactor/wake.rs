//! Wake-ups of tasks, also from other threads.

use forebay_sys::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};

/// Tasks to be polled, by number. Other threads (the blocking pool) may add to it.
pub(super) struct WakeList {
    ids: Mutex<Vec<u32>>,
    /// Set whenever an id has been added since the last [`WakeList::take`].
    any: AtomicBool,
    /// An eventfd in the epoll set; written to only while the loop sleeps.
    event: OwnedFd,
    sleeping: AtomicBool,
}

impl WakeList {
    /// Creates an empty list with its eventfd.
    ///
    /// # Errors
    /// Errors of eventfd(2).
    pub(super) fn new() -> std::io::Result<Arc<WakeList>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(WakeList {
            ids: Mutex::default(),
            any: AtomicBool::new(false),
            event,
            sleeping: AtomicBool::new(false),
        }))
    }

    /// Returns the descriptor that becomes readable when a task is woken while the loop sleeps.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Adds a task and ends the loop's sleep.
    pub(super) fn add(&self, id: u32) {
        // The order matters: a thread that sees `any` has to find the id in the list.
        self.lock().push(id);
        self.any.store(true, Ordering::SeqCst);
        // `any` is stored before `sleeping` is read, and the loop does both the other way round (`begin_sleep`). With
        // SeqCst at least one side sees the other, so no wake-up is lost. The swap lets only the first of many wakers
        // write.
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // The write fails only if the counter is full (eventfd(2)), and the descriptor is readable then
            // in any case.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Adds tasks from the loop's own thread, which is awake.
    pub(super) fn extend(&self, ids: impl IntoIterator<Item = u32>) {
        self.lock().extend(ids);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Swaps the list with `ids`, which should be empty.
    pub(super) fn take(&self, ids: &mut Vec<u32>) {
        if self.any.load(Ordering::SeqCst) {
            // Cleared before the swap: an id that is added in between is found by this call or by the next one.
            self.any.store(false, Ordering::SeqCst);
            std::mem::swap(ids, &mut *self.lock());
        }
    }

    /// Notes that the loop is about to sleep. Returns whether it must not, because a task has been woken.
    pub(super) fn begin_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        // A thread that adds an id after this line sees `sleeping` and makes the event descriptor readable.
        self.any.load(Ordering::SeqCst)
    }

    /// Notes that the loop is awake.
    pub(super) fn end_sleep(&self) {
        // Otherwise a waker would make a system call for a loop that is awake and finds the id anyway.
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Resets the event descriptor.
    pub(super) fn clear_event(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.event, &mut count);
    }

    /// Creates the waker of a task.
    pub(super) fn waker(self: &Arc<Self>, id: u32) -> Waker {
        Waker::from(Arc::new(TaskWaker { id, list: self.clone() }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        lock(&self.ids)
    }
}

struct TaskWaker {
    id: u32,
    list: Arc<WakeList>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.list.add(self.id);
    }
}

/// Handle that wakes a reactor from another thread.
#[derive(Clone)]
pub struct Remote(pub(super) Arc<WakeList>);

impl Remote {
    /// Makes the loop take another turn.
    pub fn wake(&self) {
        // No task has this number; a list that is not empty keeps the loop from sleeping.
        self.0.add(u32::MAX);
    }
}
