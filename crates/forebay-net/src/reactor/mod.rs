//! The event loop of one thread: readiness, timers and the tasks that serve connections. Hot path.
//!
//! A turn of the loop is one `epoll_wait`, the events it returned, the wake-ups of other threads and the timers.
//! An idle connection is a slot of about a hundred bytes. When it becomes readable, a *runner* (a task made
//! once and used for one connection after another) takes it and is polled at once, so a request that can
//! be answered without waiting costs no task, no waker and no allocation.
//!
//! [`Poller`] is the part that sockets, TLS and waiting need; it does not know what a connection is. [`Reactor`] adds the
//! loop and the tasks. Each front end (http, stream) has its [`Runners`] with the state of its idle connections; the
//! reactor names a front end by a number when it calls the thread's [`Handler`].
//!
//! The thread is inside the context of the process's tokio runtime, whose own thread drives its timers and
//! sockets: everything tokio offers (the blocking pool above all) works inside a runner. The connections
//! themselves do not go through tokio: nesting this epoll set in tokio's cost two more system calls and a
//! second wake-up a turn (empty responses: 1.13 times nginx's economy nested, 1.24 like this, medians of one hour).
//!
//! An idle connection, its `Connection` and its `Client` take some 300 bytes together. The reactor names front end and slot of a
//! connection that becomes readable ([`Handler::resume`]). Runners wait by futures. Work that needs no task names itself to the poller
//! instead (`direct.rs`), and each event of its descriptors and its deadline is a step: relays and sessions over UDP.
//!
//! `batch.rs` groups the system calls of a turn with several events. `budget.rs` ends the poll of a task whose waits are ready too
//! often, so that a loop without progress costs one connection. Loops that go on as long as the other side sends call
//! [`Poller::be_fair`]. `progress.rs` publishes the turns of a thread for the watchdog. A panic in a task is caught and costs one
//! connection (`tasks.rs`).

mod batch;
mod budget;
mod direct;
mod poller;
mod progress;
mod readiness;
mod runners;
mod tasks;
mod timers;
mod wake;

pub use batch::{ANSWER, MADE, Reserved};
pub use direct::Direct;
pub use poller::{NOTICE_CACHES, NOTICE_FILES, NOTICE_MOUNTS, Poller, Token, Waiter, notice};
pub use progress::{Place, Progress};
pub use runners::{Job, Runners, idle_bytes};
pub use tasks::Body;
pub use timers::Deadline;
pub use wake::Remote;

use crate::io::Io;
use poller::{Due, notice_of};
use rustix::event::epoll;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tasks::Tasks;
use timers::Target;

/// Number of events in a turn after which more are likely to be there at once.
const BUSY: usize = 4;

/// Events taken from the kernel at a time.
const EVENTS: usize = 512;

/// Callbacks of the reactor of a thread. `front` is the number of a front end.
pub trait Handler {
    /// Accepts the connections of a listener that has some.
    fn accept(&self, listener: u32);
    /// Gives a connection that was idle to a runner: data has arrived on it.
    fn resume(&self, front: u8, token: Token);
    /// Closes a connection that was idle until its deadline, or gives it to a runner once more.
    fn expired(&self, front: u8, token: Token);
    /// Starts the queued work of a front end.
    fn start_queued(&self, front: u8);
    /// Closes the descriptor of a connection that was set aside: something arrived on it, or its deadline is over. The
    /// reactor frees its slot afterwards.
    fn set_aside_ended(&self, token: Token, owner: u32);
    /// Goes on with work that has no task: an event has happened on one of its descriptors, its deadline has passed, or it had
    /// more to do.
    fn step(&self, _direct: Direct) {}
    /// Runs first in each turn of the loop.
    fn tick(&self, now: Instant);
    /// Handles a notice, before the events of the turn. Also called for [`NOTICE_FILES`] when a notice may be hidden
    /// behind more events than are taken at a time.
    fn noticed(&self, _number: u32) {}
    /// Runs last in each turn of the loop, for work that belongs to no connection.
    fn turn(&self);
    /// Runs before the loop waits, possibly for long. `busy`: more is likely to happen at once, so that work may be
    /// left for a later turn. Returns whether work was left; then the loop does not wait.
    fn before_wait(&self, _busy: bool) -> bool {
        false
    }
    /// Returns the latest time at which [`Handler::turn`] wants to run again.
    fn due(&self) -> Option<Instant>;
    /// Returns `true` if the loop should end.
    fn finished(&self) -> bool;
}

/// Event loop of a thread, with its tasks.
pub struct Reactor {
    /// Descriptors and buffers of the thread.
    pub io: Rc<Io>,
    tasks: Tasks,
}

impl Reactor {
    /// Creates a reactor on a thread's poller.
    pub fn new(io: Rc<Io>) -> Rc<Reactor> {
        Rc::new(Reactor { io, tasks: Tasks::default() })
    }

    fn poller(&self) -> &Poller {
        &self.io.poller
    }

    /// Sets the function that reports a task's panic. Only the first call counts.
    pub fn on_panic(&self, report: impl Fn() + 'static) {
        let _ = self.tasks.on_panic.set(Box::new(report));
    }

    /// Waits until the queued work has begun.
    pub async fn after_queue(&self) {
        let mut waited = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            self.tasks.resume_after_queue(self.poller().current.get());
            Poll::Pending
        })
        .await
    }

    /// Wakes every task that has work, so that it notices a change of state.
    pub fn wake_all(&self) {
        self.poller().wakes.extend(self.tasks.busy());
    }

    /// Ends all tasks after [`Reactor::run`] has returned. What they hold is dropped: connections close, and requests get their
    /// lines in the access log.
    pub fn end_tasks(&self) {
        for body in self.tasks.end_all() {
            // A destructor that panics must not keep others from their end.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(body)));
        }
    }

    /// Serves until the handler has finished.
    ///
    /// # Errors
    /// Errors of epoll_wait(2).
    pub fn run(&self, handler: &impl Handler) -> std::io::Result<()> {
        let poller = self.poller();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let (mut ids, mut work) = (Vec::new(), Vec::new());
        // Whether the last wait ended without an event.
        let mut idle = false;
        loop {
            // The count of turns is odd during a turn and even during the wait, so a watchdog knows which of them lasts.
            poller.progress().turn();
            self.begin_turn(handler, &events);
            let busy = poller.is_busy();
            self.on_events(handler, &mut events, &mut ids);
            let mut woken = self.poll_woken(handler, &mut ids);
            if woken {
                // The streams of an HTTP/2 connection may have answered in the first round. The connection
                // writes before the loop waits again.
                woken = self.poll_woken(handler, &mut ids);
            }
            self.step_unfinished(handler, &mut work);
            let fired = self.fire_timers(handler);
            self.send_answers(handler);
            handler.turn();
            if handler.finished() {
                poller.progress().turn();
                return Ok(());
            }
            // `turn` may have queued work and answers: neither may wait for the next event.
            self.start_queued(handler);
            self.send_answers(handler);
            let left = handler.before_wait(busy);
            let timeout = if woken || fired || left {
                // Work is left, so the loop only asks for events that are there, and does not wait.
                Some(Duration::ZERO)
            } else {
                poller.patience(handler.due(), idle)
            };
            poller.progress().turn();
            poller.wait(&mut events, timeout)?;
            idle = events.is_empty();
        }
    }

    /// Sets the time of a turn, passes on its notices, and reads early if it has many events, of many
    /// connections.
    fn begin_turn(&self, handler: &impl Handler, events: &[epoll::Event]) {
        let now = Instant::now();
        self.poller().begin_turn(now);
        handler.tick(now);
        // A turn with one event says nothing about the number of clients, since they may take turns.
        if events.len() > 1 {
            self.poller().note_clients(events);
        }
        let busy = events.len() >= BUSY;
        self.poller().busy.set(busy);
        // Notices come before the connections' events: requests of this turn must not see what a notice makes stale.
        events.iter().filter_map(notice_of).for_each(|number| handler.noticed(number));
        // The kernel may have more events than the buffer holds, and the notice may be one of them.
        if events.len() == EVENTS {
            handler.noticed(NOTICE_FILES);
        }
        if busy && !self.poller().clients.are_few() {
            self.poller().read_early(events);
        }
    }

    #[inline]
    fn start_queued(&self, handler: &impl Handler) {
        self.tasks.start_queued(self.poller(), |front| handler.start_queued(front));
    }

    /// Handles the events of a turn. Polls the tasks of each at once if the clients are few: none should wait until the
    /// requests of all are handled.
    fn on_events(&self, handler: &impl Handler, events: &mut Vec<epoll::Event>, ids: &mut Vec<u32>) {
        let few = self.poller().clients.are_few();
        for e in events.drain(..) {
            self.on_event(handler, Token::unpack(e.data.u64()), e.flags);
            self.start_queued(handler);
            // The second round is for an HTTP/2 connection whose streams have answered in the first.
            if few && self.poll_woken(handler, ids) {
                self.poll_woken(handler, ids);
            }
        }
    }

    fn on_event(&self, handler: &impl Handler, token: Token, flags: epoll::EventFlags) {
        let due = self.poller().on_event(token, flags);
        self.act(handler, token, due);
    }

    fn act(&self, handler: &impl Handler, token: Token, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Accept(listener) => handler.accept(listener),
            Due::Serve(front) => handler.resume(front, token),
            Due::Expired(front) => handler.expired(front, token),
            Due::Close(owner) => {
                handler.set_aside_ended(token, owner);
                self.poller().remove(token);
            }
            Due::Step(direct) => self.step(handler, direct),
        }
    }

    /// Reports a panic that has been contained elsewhere.
    pub fn report_panic(&self) {
        self.tasks.report_panic();
    }

    /// Goes on with work that has no task.
    fn step(&self, handler: &impl Handler, direct: Direct) {
        // A panic ends this work only: the front end takes it out of its table for the step, and puts it back afterwards.
        self.poller().progress().set_place(progress::of_direct(direct));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handler.step(direct)));
        self.poller().progress().set_place(0);
        if done.is_err() {
            self.tasks.report_panic();
        }
    }

    /// Goes on with the work without a task that has more to do.
    fn step_unfinished(&self, handler: &impl Handler, work: &mut Vec<Direct>) {
        self.poller().take_unfinished(work);
        for direct in work.drain(..) {
            self.step(handler, direct);
            self.start_queued(handler);
        }
    }

    /// Polls the tasks that were woken. Returns whether there were any.
    fn poll_woken(&self, handler: &impl Handler, ids: &mut Vec<u32>) -> bool {
        self.poller().take_woken(ids);
        let any = !ids.is_empty();
        for id in ids.drain(..) {
            if self.tasks.poll_busy(self.poller(), id) {
                self.start_queued(handler);
            }
        }
        any
    }

    /// Fires the timers that are due. Returns whether there were any.
    fn fire_timers(&self, handler: &impl Handler) -> bool {
        let mut any = false;
        while let Some(target) = self.poller().next_due() {
            any = true;
            match target {
                Target::Slot(token) => {
                    let due = self.poller().on_slot_timer(token);
                    self.act(handler, token, due);
                }
                Target::Task(id) => {
                    // A timer outlives the wait that set it, so the task may be idle.
                    self.tasks.poll_busy(self.poller(), id);
                }
            }
        }
        any
    }

    /// Sends the queued answers. An idle connection of which a part found no room gets a runner again, which waits for room
    /// as for any other answer.
    fn send_answers(&self, handler: &impl Handler) {
        loop {
            self.poller().flush_answers();
            let Some((front, token)) = self.poller().take_unsent() else { return };
            handler.resume(front, token);
        }
    }
}

#[cfg(test)]
mod tests;
