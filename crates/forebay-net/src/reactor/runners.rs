//! Runners of one front end: tasks that serve one connection after another, and the connections that are idle. Hot path.

use super::Reactor;
use super::poller::{Poller, Token};
use super::tasks::Body;
use super::timers::{self, Deadline};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

/// Work for a runner.
#[derive(Debug)]
pub struct Job<W> {
    /// Slot of its connection; [`Token::NONE`] if it has none.
    pub token: Token,
    /// The work.
    pub work: W,
}

/// Largest number of idle runners that are kept. A thousand requests that wait for upstreams at once end and begin in turns of hundreds,
/// and a new runner for each would be the cost of a tenth of a proxied request. Those that have had no work for a while end
/// ([`Runners::end_unneeded`]).
pub(super) const IDLE_RUNNERS: usize = if cfg!(test) { 64 } else { 1024 };

/// Returns the memory that an idle connection with the state `C` takes in the reactor, bytes.
pub const fn idle_bytes<C>() -> usize {
    size_of::<super::poller::Slot>() + size_of::<Option<C>>() + timers::ENTRY
}

/// Runners that do the work `W`, and idle connections with the state `C`; an idle connection that goes on is one kind of
/// work.
pub struct Runners<C, W> {
    reactor: Rc<Reactor>,
    /// Number of the front end, by which the reactor names it to its [`super::Handler`].
    front: u8,
    /// State of the idle connections, by the numbers of their slots.
    parked: RefCell<Vec<Option<C>>>,
    /// Work handed over and not begun yet, by the numbers of the tasks.
    jobs: RefCell<Vec<Option<Job<W>>>>,
    /// Tasks without work. The last ones worked last, and get the next work.
    idle: RefCell<Vec<u32>>,
    /// Smallest number of idle runners since [`Runners::end_unneeded`]. So many have had no work since then.
    unneeded: Cell<usize>,
    /// Work for other runners that runners have found.
    queue: RefCell<VecDeque<Job<W>>>,
}

impl<C: 'static, W: From<C> + 'static> Runners<C, W> {
    /// Creates the runners of a front end; none exists yet.
    pub fn new(reactor: Rc<Reactor>, front: u8) -> Self {
        Runners {
            reactor,
            front,
            parked: RefCell::default(),
            jobs: RefCell::default(),
            idle: RefCell::default(),
            unneeded: Cell::new(0),
            queue: RefCell::default(),
        }
    }

    fn poller(&self) -> &Poller {
        &self.reactor.io.poller
    }

    /// Hands work to an idle runner and polls it. If none is idle, `make` creates the future of a new one, which calls
    /// [`Runners::next_job`] in a loop, forever.
    pub fn start(&self, job: Job<W>, make: impl FnOnce() -> Body) {
        let idle = {
            let mut idle = self.idle.borrow_mut();
            let id = idle.pop();
            self.unneeded.set(self.unneeded.get().min(idle.len()));
            id
        };
        let tasks = &self.reactor.tasks;
        let id = idle.unwrap_or_else(|| tasks.add(self.poller(), make()));
        {
            let mut jobs = self.jobs.borrow_mut();
            let at = id as usize;
            if jobs.len() <= at {
                jobs.resize_with(at + 1, || None);
            }
            // The job is there before the poll below, in which `next_job` takes it.
            jobs[at] = Some(job);
        }
        tasks.begin(self.poller(), id);
    }

    /// Adds work for another runner. It begins when the runner that calls this waits: the reactor calls
    /// [`super::Handler::start_queued`].
    pub fn queue(&self, job: Job<W>) {
        let mut queue = self.queue.borrow_mut();
        // If the queue has work, the reactor knows of it already.
        if queue.is_empty() {
            self.reactor.tasks.queue(self.front);
        }
        queue.push_back(job);
    }

    /// Returns `true` if work is queued.
    pub fn has_queued(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Takes the work that is queued and has not begun.
    pub fn take_queued(&self) -> VecDeque<Job<W>> {
        self.queue.take()
    }

    /// Starts the work that is queued; `make` as for [`Runners::start`].
    pub fn start_queued(&self, make: impl Fn() -> Body) {
        loop {
            // This is a statement of its own. In an `if let` the borrow would last while the runner queues more work.
            let job = self.queue.borrow_mut().pop_front();
            let Some(job) = job else { return };
            self.start(job, &make);
        }
    }

    /// Ends the idle runners, with all that they keep for their next work. Returns their number.
    pub fn end_idle(&self) -> usize {
        self.end_first(usize::MAX)
    }

    /// Ends the runners that have been idle since the last call. Returns their number.
    pub fn end_unneeded(&self) -> usize {
        self.end_first(self.unneeded.get())
    }

    fn end_first(&self, most: usize) -> usize {
        let ended: Vec<u32> = {
            let mut idle = self.idle.borrow_mut();
            let count = most.min(idle.len());
            let ended = idle.drain(..count).collect();
            self.unneeded.set(idle.len());
            ended
        };
        // The borrow has ended here, since a future that is dropped may start work.
        for id in &ended {
            drop(self.reactor.tasks.end_idle(*id));
        }
        ended.len()
    }

    /// Returns `true` if a runner is idle.
    pub fn has_idle(&self) -> bool {
        !self.idle.borrow().is_empty()
    }

    /// Waits for the next work of the calling runner, which is idle in between. A runner that has finished goes on with queued
    /// work at once.
    pub fn next_job(&self) -> impl Future<Output = Job<W>> + '_ {
        // The number is taken outside of the future. A runner calls this while it is polled, so `current` is
        // its number.
        let id = self.poller().current.get();
        std::future::poll_fn(move |_| {
            let job = self.jobs.borrow_mut().get_mut(id as usize).and_then(Option::take);
            // Queued work is taken at once. This spares the way through the list of idle runners, which is one poll for each request of an
            // HTTP/2 connection.
            let job = job.or_else(|| self.queue.borrow_mut().pop_front());
            if let Some(job) = job {
                return Poll::Ready(job);
            }
            let mut idle = self.idle.borrow_mut();
            let keep = idle.len() < IDLE_RUNNERS;
            if keep {
                idle.push(id);
            }
            // A runner cannot drop its own future while it runs, so the reactor drops a surplus one after
            // this poll.
            self.reactor.tasks.finish(id, keep);
            Poll::Pending
        })
    }

    /// Makes a connection idle: its descriptor waits in the epoll set, `deadline` closes it.
    ///
    /// # Errors
    /// Gives the connection back if something has arrived meanwhile.
    pub fn park(&self, token: Token, conn: C, deadline: Deadline) -> Result<(), C> {
        if !self.poller().park(token, self.front, deadline) {
            return Err(conn);
        }
        let mut parked = self.parked.borrow_mut();
        let at = token.index as usize;
        if parked.len() <= at {
            parked.resize_with(at + 1, || None);
        }
        // No event can come between `park` above and this line, since this thread handles the events.
        parked[at] = Some(conn);
        Ok(())
    }

    /// Takes the state of a connection that was idle until now.
    pub fn take_parked(&self, token: Token) -> Option<C> {
        self.parked.borrow_mut().get_mut(token.index as usize)?.take()
    }

    /// Takes the idle connections that `f` selects out of their slots, as work for a runner.
    pub fn take_idle(&self, f: impl Fn(&C) -> bool) -> Vec<Job<W>> {
        let mut chosen = Vec::new();
        // The tokens are gathered first. The states and slots are borrowed during the walk and cannot be
        // taken then.
        self.each_idle(|token, conn, _, _| {
            if f(conn) {
                chosen.push(token);
            }
        });
        chosen
            .into_iter()
            .filter_map(|token| {
                let conn = self.take_parked(token)?;
                self.poller().unpark(token);
                Some(Job { token, work: conn.into() })
            })
            .collect()
    }

    /// Closes an idle connection and returns its state.
    pub fn close_parked(&self, token: Token) -> Option<C> {
        let conn = self.take_parked(token)?;
        self.poller().remove(token);
        Some(conn)
    }

    /// Calls `f` for each idle connection with its deadline and whether a part of an answer has not left yet; closing the
    /// connection would cut that off.
    pub fn each_idle(&self, mut f: impl FnMut(Token, &C, Instant, bool)) {
        let parked = self.parked.borrow();
        self.poller().each_idle(self.front, |token, deadline, sending| {
            if let Some(Some(conn)) = parked.get(token.index as usize) {
                f(token, conn, deadline, sending);
            }
        });
    }

    /// Returns the numbers of the idle runners.
    #[cfg(test)]
    pub(super) fn idle(&self) -> Vec<u32> {
        self.idle.borrow().clone()
    }
}
