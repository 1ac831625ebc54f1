//! The event loop of one thread: readiness, timers and the runners that serve connections. Hot path.
//!
//! A turn of the loop is one `epoll_wait`, the events it returned, the wake-ups of other threads and the timers.
//! An idle connection is a slot of about a hundred bytes. When it becomes readable, a *runner* (a future made
//! once and used for one connection after another) takes it and is polled at once, so a request that can
//! be answered without waiting costs no task, no waker and no allocation.
//!
//! [`Poller`] is the part that sockets, TLS and waiting need; it does not know what a connection is. [`Reactor`] adds
//! the runners and the state of idle connections.
//!
//! The thread is inside the context of the process's tokio runtime, whose own thread drives its timers and
//! sockets: everything tokio offers (the blocking pool above all) works inside a runner. The connections
//! themselves do not go through tokio: nesting this epoll set in tokio's cost two more system calls and a
//! second wake-up a turn (empty responses: 1.13 times nginx's economy nested, 1.24 like this, medians of one hour).

mod batch;
mod poller;
mod runners;
mod timers;
mod wake;

pub use batch::{ANSWER, MADE, Reserved};
pub use poller::{NOTICE_FILES, NOTICE_MOUNTS, Poller, Token, notice};
pub use runners::Job;
pub use wake::Remote;

use crate::io::Io;
use poller::{Due, notice_of};
use runners::Runners;
use rustix::event::epoll;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};
use timers::Target;

/// Number of events in a turn after which more are likely to be there at once.
const BUSY: usize = 4;

/// Events taken from the kernel at a time.
const EVENTS: usize = 512;

/// Memory that an idle connection with the state `C` takes in the reactor, bytes.
pub const fn idle_bytes<C>() -> usize {
    size_of::<poller::Slot>() + size_of::<Option<C>>() + timers::ENTRY
}

/// Callbacks of a reactor's user.
pub trait Handler {
    /// State that an idle connection keeps.
    type Conn: 'static;
    /// Work of a runner; a connection that is no longer idle is one kind of it.
    type Work: From<Self::Conn> + 'static;
    /// Creates the future of a runner. It calls [`Reactor::next_job`] in a loop, forever.
    fn runner(self: Rc<Self>, id: u32) -> Pin<Box<dyn Future<Output = ()>>>;
    /// Accepts the connections of a listener that has some.
    fn accept(self: Rc<Self>, listener: u32);
    /// Closes an idle connection that has reached its deadline, or gives it to a runner once more.
    fn expired(self: Rc<Self>, token: Token, conn: Self::Conn);
    /// Closes the descriptor of a connection that was set aside: something arrived on it, or its deadline is over. The
    /// reactor frees its slot afterwards.
    fn set_aside_ended(&self, token: Token, owner: u32);
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
    /// Latest time at which [`Handler::turn`] wants to run again.
    fn due(&self) -> Option<Instant>;
    /// Whether the loop should end.
    fn finished(&self) -> bool;
    /// Counts a runner's panic. The drop of its future has closed its connection.
    fn panicked(&self);
}

/// Event loop of a thread: idle connections have the state `C`, runners do the work `W`.
pub struct Reactor<C, W> {
    io: Rc<Io>,
    /// State of the idle connections, by the numbers of their slots.
    parked: RefCell<Vec<Option<C>>>,
    runners: Runners<W>,
}

impl<C: 'static, W: From<C> + 'static> Reactor<C, W> {
    /// Creates a reactor on a thread's poller.
    pub fn new(io: Rc<Io>) -> Self {
        Reactor { io, parked: RefCell::default(), runners: Runners::default() }
    }

    fn poller(&self) -> &Poller {
        &self.io.poller
    }

    /// Hands a connection to a runner and polls it.
    pub fn start<H: Handler<Conn = C, Work = W>>(&self, handler: &Rc<H>, token: Token, conn: C) {
        self.runners.start(self.poller(), handler, Job { token, work: conn.into() });
    }

    /// Hands the connection of a slot that has just left the idle ones to a runner.
    fn start_parked<H: Handler<Conn = C, Work = W>>(&self, handler: &Rc<H>, token: Token) {
        if let Some(conn) = self.take_parked(token) {
            self.start(handler, token, conn);
        }
    }

    fn take_parked(&self, token: Token) -> Option<C> {
        self.parked.borrow_mut().get_mut(token.index as usize)?.take()
    }

    /// Adds work for another runner. It begins when the runner that calls this waits.
    pub fn queue(&self, job: Job<W>) {
        self.runners.queue(job);
    }

    /// Waits until the queued work has begun.
    pub async fn after_queue(&self) {
        let mut waited = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            self.runners.resume_after_queue(self.poller().current.get());
            Poll::Pending
        })
        .await
    }

    /// Waits for the next connection of the calling runner, which is idle in between.
    pub fn next_job(&self) -> impl Future<Output = Job<W>> + '_ {
        let id = self.poller().current.get();
        std::future::poll_fn(move |_| self.runners.take_job(id))
    }

    /// Makes a connection idle: its descriptor waits in the epoll set, `deadline` closes it.
    ///
    /// # Errors
    /// Gives the connection back if something has arrived meanwhile.
    pub fn park(&self, token: Token, conn: C, deadline: Instant) -> Result<(), C> {
        if !self.poller().park(token, deadline) {
            return Err(conn);
        }
        let mut parked = self.parked.borrow_mut();
        let at = token.index as usize;
        if parked.len() <= at {
            parked.resize_with(at + 1, || None);
        }
        parked[at] = Some(conn);
        Ok(())
    }

    /// Takes the idle connections that `f` selects out of their slots, as work for a runner.
    pub fn take_idle(&self, f: impl Fn(&C) -> bool) -> Vec<Job<W>> {
        let chosen = self.idle_tokens(|conn, _| f(conn));
        chosen
            .into_iter()
            .filter_map(|token| {
                let conn = self.take_parked(token)?;
                self.poller().unpark(token);
                Some(Job { token, work: conn.into() })
            })
            .collect()
    }

    /// Closes the idle connections that `f` selects by their state and deadline. Returns their number.
    pub fn close_idle(&self, f: impl FnMut(&C, Instant) -> bool) -> usize {
        let chosen = self.idle_tokens(f);
        for token in &chosen {
            let conn = self.take_parked(*token);
            self.poller().remove(*token);
            drop(conn);
        }
        chosen.len()
    }

    fn idle_tokens(&self, mut f: impl FnMut(&C, Instant) -> bool) -> Vec<Token> {
        let mut chosen = Vec::new();
        self.each_parked(|token, conn, deadline, _| {
            if f(conn, deadline) {
                chosen.push(token);
            }
        });
        chosen
    }

    /// Calls `f` for each idle connection with its deadline and whether a part of an answer has not left yet; closing the
    /// connection would cut that off.
    pub fn each_idle(&self, mut f: impl FnMut(&C, Instant, bool)) {
        self.each_parked(|_, conn, deadline, sending| f(conn, deadline, sending));
    }

    fn each_parked(&self, mut f: impl FnMut(Token, &C, Instant, bool)) {
        let parked = self.parked.borrow();
        self.poller().each_idle(|token, deadline, sending| {
            if let Some(Some(conn)) = parked.get(token.index as usize) {
                f(token, conn, deadline, sending);
            }
        });
    }

    /// Wakes every runner that has work, so that it notices a change of state.
    pub fn wake_all(&self) {
        self.poller().wakes.extend(self.runners.busy());
    }

    /// Serves until the handler has finished.
    ///
    /// # Errors
    /// When the epoll set can no longer be waited for.
    pub fn run<H: Handler<Conn = C, Work = W>>(&self, handler: &Rc<H>) -> std::io::Result<()> {
        let poller = self.poller();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let mut ids = Vec::new();
        // Whether the last wait ended without an event.
        let mut idle = false;
        loop {
            self.begin_turn(handler, &events);
            let busy = poller.is_busy();
            for e in events.drain(..) {
                self.on_event(handler, Token::unpack(e.data.u64()), e.flags);
                self.runners.start_queued(poller, handler);
            }
            let mut woken = self.poll_woken(handler, &mut ids);
            if woken {
                // The streams of an HTTP/2 connection have answered: it writes before the loop waits again.
                woken = self.poll_woken(handler, &mut ids);
            }
            let fired = self.fire_timers(handler);
            self.send_answers(handler);
            handler.turn();
            if handler.finished() {
                return Ok(());
            }
            self.runners.start_queued(poller, handler);
            self.send_answers(handler);
            let left = handler.before_wait(busy);
            let timeout = if woken || fired || left {
                Some(Duration::ZERO)
            } else {
                poller.patience(handler.due(), idle)
            };
            poller.wait(&mut events, timeout)?;
            idle = events.is_empty();
        }
    }

    /// Sets the time of a turn, passes on its notices, and reads early if it has many events.
    fn begin_turn<H: Handler<Conn = C, Work = W>>(&self, handler: &Rc<H>, events: &[epoll::Event]) {
        let now = Instant::now();
        self.poller().begin_turn(now);
        handler.tick(now);
        let busy = events.len() >= BUSY;
        self.poller().busy.set(busy);
        // Notices come before the connections' events: requests of this turn must not see what a notice makes stale.
        events.iter().filter_map(notice_of).for_each(|number| handler.noticed(number));
        if events.len() == EVENTS {
            handler.noticed(NOTICE_FILES);
        }
        if busy {
            self.poller().read_early(events);
        }
    }

    fn on_event<H: Handler<Conn = C, Work = W>>(
        &self,
        handler: &Rc<H>,
        token: Token,
        flags: epoll::EventFlags,
    ) {
        let due = self.poller().on_event(token, flags);
        self.act(handler, token, due);
    }

    fn act<H: Handler<Conn = C, Work = W>>(&self, handler: &Rc<H>, token: Token, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Accept(listener) => handler.clone().accept(listener),
            Due::Serve => self.start_parked(handler, token),
            Due::Expired => {
                if let Some(conn) = self.take_parked(token) {
                    handler.clone().expired(token, conn);
                }
            }
            Due::Close(owner) => {
                handler.set_aside_ended(token, owner);
                self.poller().remove(token);
            }
        }
    }

    /// Polls the runners that were woken; returns whether there were any.
    fn poll_woken<H: Handler<Conn = C, Work = W>>(&self, handler: &Rc<H>, ids: &mut Vec<u32>) -> bool {
        self.poller().take_woken(ids);
        let any = !ids.is_empty();
        for id in ids.drain(..) {
            if self.runners.poll_busy(self.poller(), handler, id) {
                self.runners.start_queued(self.poller(), handler);
            }
        }
        any
    }

    /// Fires the timers that are due; returns whether there were any.
    fn fire_timers<H: Handler<Conn = C, Work = W>>(&self, handler: &Rc<H>) -> bool {
        let mut any = false;
        while let Some(target) = self.poller().next_due() {
            any = true;
            match target {
                Target::Slot(token) => {
                    let due = self.poller().on_slot_timer(token);
                    self.act(handler, token, due);
                }
                Target::Runner(id) => {
                    // A timer outlives the wait that set it, so the runner may be idle.
                    self.runners.poll_busy(self.poller(), handler, id);
                }
            }
        }
        any
    }

    /// Sends the queued answers. An idle connection of which a part found no room gets a runner again, which waits for room
    /// as for any other answer.
    fn send_answers<H: Handler<Conn = C, Work = W>>(&self, handler: &Rc<H>) {
        loop {
            self.poller().flush_answers();
            let Some(token) = self.poller().take_unsent() else { return };
            self.start_parked(handler, token);
        }
    }
}

#[cfg(test)]
mod tests;
