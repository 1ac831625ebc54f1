//! Memory that a burst of work leaves behind: what a thread has not needed for a while is given back, also to the system.

use crate::front::Front;
use forebay_net::io::Io;
use forebay_sys::sync::lock;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time without a use after which something is given back, and between two looks.
const UNUSED: Duration = Duration::from_secs(10);

/// Turns of a thread between two looks up to which it counts as idle.
const QUIET: u32 = 32;

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
pub(crate) struct Spare {
    /// Time of the next look; `None`: nothing has happened since the last one.
    due: Cell<Option<Instant>>,
    /// Turns of the loop since the last look.
    turns: Cell<u32>,
}

impl Spare {
    /// Returns the time at which [`Spare::turn`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.get()
    }

    /// Has the front ends give back what they have not needed since the last look, and the heap its free pages. Runs in each turn of
    /// the loop.
    #[inline]
    pub(crate) fn turn(&self, io: &Io, fronts: &[Rc<dyn Front>], now: Instant, tokio: impl FnOnce(fn())) {
        self.turns.set(self.turns.get().saturating_add(1));
        match self.due.get() {
            Some(due) if now < due => {}
            Some(_) => self.look(io, fronts, now, tokio),
            None => self.due.set(Some(now + UNUSED)),
        }
    }

    fn look(&self, io: &Io, fronts: &[Rc<dyn Front>], now: Instant, tokio: impl FnOnce(fn())) {
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
