//! State of modules in a worker thread. A module with such state owns a [`ThreadSlot`] and lists it in
//! [`Module::threads`](super::Module::threads). Hot path.

use crate::thread::Thread;
use forebay_core::idle_memory::Ended;
use forebay_core::thread::Thread as WorkerThread;
use std::any::Any;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// State of a module in a worker thread, and its part in the events of the thread.
pub trait ThreadState: Any {
    /// Makes the state of a thread that starts.
    fn new(worker: &WorkerThread) -> Self
    where
        Self: Sized;

    /// Does work that the state has registered with the reactor by [`ThreadSlot::kind`].
    fn step(&self, thread: &Rc<Thread>, number: u32) {
        let _ = (thread, number);
    }

    /// Drops everything that belongs to the former configuration. Another configuration is in effect for new requests.
    fn applied(&self) {}

    /// Closes everything that the thread has open, since the thread ends.
    fn end(&self) {}

    /// Handles a notice of the reactor (`forebay_net::reactor`, `NOTICE_*`).
    fn noticed(&self, number: u32) {
        let _ = number;
    }

    /// Closes files that no request uses, since descriptors run short. Returns `true` if there were any.
    fn shed_files(&self) -> bool {
        false
    }

    /// Closes connections that no request uses, since descriptors run short. Returns `true` if there were any.
    fn shed_connections(&self) -> bool {
        false
    }

    /// Gives memory back that has not been used for a while.
    fn end_unneeded(&self, now: Instant) -> Ended {
        let _ = now;
        Ended { some: false, left: false }
    }
}

/// Name of a module's state in all threads. For a `static`.
pub struct ThreadSlot<T> {
    /// Index in the states of a thread, plus one; 0 until the modules have been counted.
    index: AtomicUsize,
    kind: PhantomData<fn() -> T>,
}

/// First kind of [`forebay_net::reactor::Direct`] work that belongs to a module.
pub const FIRST_KIND: u8 = 16;

impl<T: ThreadState> Default for ThreadSlot<T> {
    fn default() -> ThreadSlot<T> {
        ThreadSlot::new()
    }
}

impl<T: ThreadState> ThreadSlot<T> {
    /// Makes a name.
    pub const fn new() -> ThreadSlot<T> {
        ThreadSlot { index: AtomicUsize::new(0), kind: PhantomData }
    }

    /// Returns the state in a thread.
    #[inline]
    pub fn of<'t>(&self, thread: &'t Thread) -> &'t T {
        let state = thread.states.0.get(self.index()).expect("the slot is in `threads` of a module");
        let state: &dyn Any = &**state;
        state.downcast_ref().expect("an index belongs to one slot, and so to one type")
    }

    /// Returns the kind of [`forebay_net::reactor::Direct`] work that comes to [`ThreadState::step`].
    pub fn kind(&self) -> u8 {
        // There are fewer modules than kinds, so that the sum fits.
        FIRST_KIND + self.index() as u8
    }

    #[inline]
    fn index(&self) -> usize {
        self.index.load(Relaxed).wrapping_sub(1)
    }
}

/// [`ThreadSlot`] of any module.
pub trait AnyThreadSlot: Sync {
    /// Gives the state its place.
    fn place(&self, index: usize);
    /// Makes the state of a thread.
    fn make(&self, worker: &WorkerThread) -> Box<dyn ThreadState>;
}

impl<T: ThreadState> AnyThreadSlot for ThreadSlot<T> {
    fn place(&self, index: usize) {
        self.index.store(index + 1, Relaxed);
    }

    fn make(&self, worker: &WorkerThread) -> Box<dyn ThreadState> {
        Box::new(T::new(worker))
    }
}

/// Returns the slots of all modules, in the order of their places.
fn slots() -> &'static [&'static dyn AnyThreadSlot] {
    static SLOTS: OnceLock<Vec<&'static dyn AnyThreadSlot>> = OnceLock::new();
    SLOTS.get_or_init(|| {
        let slots: Vec<_> =
            crate::module::list::all().iter().flat_map(|module| module.threads).copied().collect();
        slots.iter().enumerate().for_each(|(index, slot)| slot.place(index));
        slots
    })
}

/// States of all modules in one thread.
pub struct ThreadStates(Box<[Box<dyn ThreadState>]>);

impl ThreadStates {
    /// Makes the states of a thread that starts.
    pub fn new(worker: &WorkerThread) -> ThreadStates {
        ThreadStates(slots().iter().map(|slot| slot.make(worker)).collect())
    }

    /// Has the state that has registered the work do it.
    pub fn step(&self, thread: &Rc<Thread>, kind: u8, number: u32) {
        if let Some(state) = self.0.get(usize::from(kind - FIRST_KIND)) {
            state.step(thread, number);
        }
    }

    /// Calls a function for all states.
    pub fn each(&self, f: impl FnMut(&dyn ThreadState)) {
        self.0.iter().map(|state| &**state).for_each(f);
    }

    /// Calls a function for all states, even after one has returned `true`. Returns `true` if any of them has.
    pub fn any(&self, mut f: impl FnMut(&dyn ThreadState) -> bool) -> bool {
        self.0.iter().fold(false, |any, state| f(&**state) | any)
    }

    /// Gives memory back that has not been used for a while.
    pub fn end_unneeded(&self, now: Instant) -> Ended {
        self.0.iter().fold(Ended { some: false, left: false }, |all, state| {
            let ended = state.end_unneeded(now);
            Ended { some: all.some | ended.some, left: all.left | ended.left }
        })
    }
}
