//! Memory that a burst of work leaves behind: what a thread has not needed for a while is given back, also to the system.
//!
//! Runners that a thread has not needed for ten seconds end. A thread that is idle for ten seconds frees its buffers, and the free
//! pages of the heap go back to the system (`forebay-sys/src/heap.rs`). After a burst of work a second is enough for both. A reload
//! ends idle runners, since they keep the configuration of their last request.

use crate::front::Front;
use crate::pattern::cpu_time;
use forebay_net::io::Io;
use forebay_sys::sync::lock;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time without a use after which something is given back, and between two looks for it.
const UNUSED: Duration = Duration::from_secs(10);

/// Turns of a thread in that time up to which it counts as idle.
const QUIET: u32 = 32;

/// Time with little work that counts as a pause. A burst of work is over after two of them.
const PAUSE: Duration = Duration::from_millis(500);

/// Turns of a thread that are no burst: the requests of a few clients.
const FEW: u32 = 4;

/// CPU time of a thread in a pause. Turns would not do: those with work for many clients are few and long.
const LITTLE: Duration = Duration::from_millis(5);

/// Result of [`Front::end_unneeded`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Something was given back.
    pub some: bool,
    /// Something is left that may be given back later.
    pub left: bool,
}

/// Clock of one thread for giving back what it does not need.
#[derive(Debug, Default)]
pub(crate) struct IdleMemory {
    /// Time of the next look for what was not needed; `None`: nothing has happened since the last one.
    due: Cell<Option<Instant>>,
    /// Turns of the loop since the last look.
    turns: Cell<u32>,
    burst: Cell<Option<Burst>>,
}

/// Work whose end gives memory back.
#[derive(Clone, Copy, Debug)]
struct Burst {
    /// Time of the next look for its end.
    due: Instant,
    /// CPU time of the thread at the last one.
    spent: Duration,
    /// The time before that was a pause.
    pausing: bool,
}

impl Burst {
    fn look_later(now: Instant, pausing: bool) -> Burst {
        Burst { due: now + PAUSE, spent: cpu_time(), pausing }
    }
}

impl IdleMemory {
    /// Returns the time at which [`IdleMemory::turn`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        [self.due.get(), self.burst.get().map(|b| b.due)].into_iter().flatten().min()
    }

    /// Has the front ends give back what they have not needed since the last look, and the heap its free pages. Runs in each turn of
    /// the loop.
    #[inline]
    pub(crate) fn turn(&self, io: &Io, fronts: &[Rc<dyn Front>], now: Instant, tokio: impl Fn(fn())) {
        self.turns.set(self.turns.get().saturating_add(1));
        match self.burst.get() {
            Some(burst) if now < burst.due => {}
            Some(burst) => self.burst.set(self.look_for_pause(io, fronts, now, burst, &tokio)),
            None if self.turns.get() > FEW => self.burst.set(Some(Burst::look_later(now, false))),
            None => {}
        }
        match self.due.get() {
            Some(due) if now < due => {}
            Some(_) => self.look(io, fronts, now, tokio),
            None => self.due.set(Some(now + UNUSED)),
        }
    }

    /// Gives memory back if a burst of work is over: what it took is too much for what follows.
    fn look_for_pause(
        &self,
        io: &Io,
        fronts: &[Rc<dyn Front>],
        now: Instant,
        burst: Burst,
        tokio: impl Fn(fn()),
    ) -> Option<Burst> {
        if cpu_time().saturating_sub(burst.spent) > LITTLE {
            return Some(Burst::look_later(now, false));
        }
        // The first pause begins the time in which things are not needed, and the second one ends it.
        for front in fronts {
            front.end_unneeded();
        }
        if burst.pausing {
            io.free_buffers();
            forebay_sys::heap::release_of_thread();
            if may_trim(now) {
                tokio(forebay_sys::heap::trim);
                self.turns.set(0);
                return None;
            }
        }
        Some(Burst::look_later(now, true))
    }

    fn look(&self, io: &Io, fronts: &[Rc<dyn Front>], now: Instant, tokio: impl Fn(fn())) {
        let ended = fronts.iter().map(|front| front.end_unneeded());
        let ended =
            ended.fold(Ended::default(), |a, b| Ended { some: a.some | b.some, left: a.left | b.left });
        let quiet = self.turns.replace(0) <= QUIET;
        if quiet {
            io.free_buffers();
        }
        let mut again = ended.left || !quiet;
        if ended.some || quiet {
            forebay_sys::heap::release_of_thread();
            if may_trim(now) {
                // Takes milliseconds.
                tokio(forebay_sys::heap::trim);
            } else {
                again = true;
            }
        } else {
            tokio(forebay_sys::heap::decay);
        }
        self.due.set(again.then(|| now + UNUSED));
    }
}

/// Returns `true` if the heap was not trimmed lately by any thread of the process.
fn may_trim(now: Instant) -> bool {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = lock(&LAST);
    let may = last.is_none_or(|last| now.saturating_duration_since(last) >= UNUSED / 2);
    if may {
        *last = Some(now);
    }
    may
}
