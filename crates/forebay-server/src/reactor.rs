//! The event loop of one thread: readiness, timers and the runners that serve connections. Hot path.
//!
//! A turn of the loop is one `epoll_wait`, the events it gave, the wake-ups of other threads and the timers.
//! An idle connection is a slot of about a hundred bytes. When it becomes readable, a *runner* (a future made
//! once and used for one connection after another) takes it and is polled at once, so a request that can
//! be answered without waiting costs no task, no waker and no allocation.
//!
//! The thread is inside the context of the process's tokio runtime, whose own thread drives its timers and
//! sockets: everything tokio offers (the blocking pool above all) works inside a runner. The connections
//! themselves do not go through tokio: nesting this epoll set in tokio's cost two more system calls and a
//! second wake-up a turn (empty responses: 1.13 times nginx's economy nested, 1.24 like this, medians of one hour).

mod batch;

use forebay_sys::sync::lock;
use rustix::event::epoll;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Number of a slot; stale numbers are told apart by their age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    index: u32,
    age: u32,
}

impl Token {
    /// The slot of nothing.
    pub const NONE: Token = Token { index: u32::MAX, age: u32::MAX };

    /// A slot that was used once.
    #[cfg(test)]
    pub fn numbered(index: u32) -> Token {
        Token { index, age: 0 }
    }

    fn pack(self) -> u64 {
        u64::from(self.age) << 32 | u64::from(self.index)
    }
    fn unpack(v: u64) -> Token {
        Token { index: v as u32, age: (v >> 32) as u32 }
    }
}

/// What a slot's descriptor is for.
#[derive(Debug)]
pub enum Role<C> {
    /// A listening socket, with its number among the listeners.
    Listener(u32),
    /// A connection without a runner: the data wakes one, the deadline closes it.
    Idle(C),
    /// A descriptor that a runner works with.
    Busy,
    /// A connection to an upstream that waits for its next request, with the number of whoever holds its
    /// descriptor meanwhile: anything that arrives closes it, so does the deadline.
    Spare(u32),
}

/// What the epoll set watches a slot for. That there is room to write is an event which most connections never
/// wait for, and which would come for each of them at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Watched {
    Not,
    Reading,
    Both,
}

struct Slot<C> {
    fd: Option<OwnedFd>,
    age: u32,
    watched: Watched,
    readable: bool,
    writable: bool,
    /// The other end has sent its last: no further event will come for reading, so that what the flag says
    /// holds until the end has been read.
    ended: bool,
    /// When the earliest timer of this slot fires.
    armed: Option<Instant>,
    deadline: Instant,
    role: Role<C>,
    read_waker: Option<Waiter>,
    write_waker: Option<Waiter>,
    share: batch::Share,
}

/// Who waits for a slot.
enum Waiter {
    /// A runner itself: no more than its number is needed to poll it.
    Runner(u32),
    /// Something inside a runner.
    Other(Waker),
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Target {
    Slot(u64),
    Runner(u32),
}

struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Target)>>,
    /// Length at which timers of nothing are swept out.
    sweep_at: usize,
}

/// Fewest timers that are swept.
const SWEEP: usize = 1024;

/// Ids of runners to be polled; other threads (the blocking pool) may add to it.
struct WakeList {
    ids: Mutex<Vec<u32>>,
    /// Something has been added since the ids were taken out; none of them stays behind without it.
    any: AtomicBool,
    /// In the epoll set; written to when the loop sleeps.
    event: OwnedFd,
    sleeping: AtomicBool,
}

impl WakeList {
    fn add(&self, id: u32) {
        lock(&self.ids).push(id);
        self.any.store(true, Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// The event descriptor's place among the tokens.
const WAKE: Token = Token { index: u32::MAX, age: u32::MAX };

/// Numbers of notices: what changed that is no connection's.
pub const NOTICE_FILES: u32 = 0;
/// The mount table.
pub const NOTICE_MOUNTS: u32 = 1;

/// Event data of a notice, for a descriptor that is put into the epoll set by its owner. See [`Handler::noticed`].
pub fn notice(number: u32) -> epoll::EventData {
    epoll::EventData::new_u64(Token { index: u32::MAX, age: number }.pack())
}

/// The number of a notice, if an event is one.
#[inline]
fn notice_of(e: &epoll::Event) -> Option<u32> {
    let token = Token::unpack(e.data.u64());
    (token.index == u32::MAX && token.age != u32::MAX).then_some(token.age)
}

/// Events of one turn after which others are likely to be there at once.
const BUSY: usize = 4;

/// Events taken from the kernel at a time.
const EVENTS: usize = 512;

struct RunnerWaker {
    id: u32,
    list: Arc<WakeList>,
}

impl Wake for RunnerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.list.add(self.id);
    }
}

struct Runner<C> {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Its waker, unless it is being polled.
    waker: Option<Waker>,
    /// Work handed over, taken by [`Reactor::next_job`].
    job: Option<Job<C>>,
    timer: Option<Instant>,
    busy: bool,
}

/// A connection for a runner.
#[derive(Debug)]
pub struct Job<C> {
    /// Its slot.
    pub token: Token,
    /// What the idle slot held.
    pub conn: C,
}

/// What the reactor needs to know from its user.
pub trait Handler {
    /// What an idle connection keeps.
    type Conn;
    /// Makes the future of a runner. It calls [`Reactor::next_job`] in a loop, forever.
    fn runner(self: Rc<Self>, id: u32) -> Pin<Box<dyn Future<Output = ()>>>;
    /// A listener has connections to accept.
    fn accept(self: Rc<Self>, listener: u32);
    /// An idle connection reached its deadline and is to be closed, or given to a runner once more.
    fn expired(self: Rc<Self>, token: Token, conn: Self::Conn);
    /// A connection that was set aside has been heard of, or its deadline is over. Its slot is taken away; whoever
    /// holds its descriptor is to close it.
    fn spare_ended(&self, token: Token, holder: u32);
    /// Called first in each turn of the loop.
    fn tick(&self, now: Instant);
    /// Called before the events of a turn: there is a notice; of [`NOTICE_FILES`] also when there may be one behind
    /// more events than are taken at a time.
    fn noticed(&self, _number: u32) {}
    /// Called last in each turn of the loop, for work that is no connection's.
    fn turn(&self);
    /// Called before waiting: nothing else may happen for long. `busy`: more is likely to happen at once, so that work may be
    /// left for a later turn. `true`: it was, and the loop will not wait.
    fn before_wait(&self, _busy: bool) -> bool {
        false
    }
    /// When [`Handler::turn`] wants to be called at the latest.
    fn due(&self) -> Option<Instant>;
    /// Whether the loop should end.
    fn finished(&self) -> bool;
    /// A runner panicked; its connection is closed by the drop of its future.
    fn panicked(&self);
}

/// The event loop of a thread.
pub struct Reactor<C> {
    epoll: Arc<OwnedFd>,
    slots: RefCell<Vec<Slot<C>>>,
    free: RefCell<Vec<u32>>,
    runners: RefCell<Vec<Runner<C>>>,
    idle_runners: RefCell<Vec<u32>>,
    /// Places in `runners` without a future.
    free_runners: RefCell<Vec<u32>>,
    timers: RefCell<Timers>,
    wakes: Arc<WakeList>,
    /// Work for runners that other runners have found.
    queue: RefCell<VecDeque<Job<C>>>,
    /// Runners that go on when the queue is empty.
    behind: RefCell<Vec<u32>>,
    current: Cell<u32>,
    /// What tells the waker of the current runner from others.
    current_waker: Cell<usize>,
    /// Runners whose slots have had events.
    ready: RefCell<Vec<u32>>,
    now: Cell<Instant>,
    /// A time, and how long before this turn it was: one and the same is asked for several times as a rule.
    before: Cell<(Instant, Duration)>,
    /// This turn had many events.
    busy: Cell<bool>,
    in_use: Cell<usize>,
    idle: Cell<usize>,
    batch: batch::Batch,
}

/// Wakes a reactor from another thread.
#[derive(Clone)]
pub struct Remote(Arc<WakeList>);

impl Remote {
    /// Makes the loop take another turn.
    pub fn wake(&self) {
        // The id of no runner: the list is not empty, so the loop does not sleep.
        self.0.add(u32::MAX);
    }
}

/// Runners without work that are kept for the next burst.
const SPARE_RUNNERS: usize = 64;

impl<C: 'static> Reactor<C> {
    /// An empty reactor.
    ///
    /// # Errors
    /// When the epoll descriptor cannot be made.
    pub fn new() -> std::io::Result<Reactor<C>> {
        use rustix::event::{EventfdFlags, eventfd};
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let now = Instant::now();
        epoll::add(&epoll, &event, epoll::EventData::new_u64(WAKE.pack()), flags)?;
        Ok(Reactor {
            epoll: Arc::new(epoll),
            slots: RefCell::default(),
            free: RefCell::default(),
            runners: RefCell::default(),
            idle_runners: RefCell::default(),
            free_runners: RefCell::default(),
            timers: RefCell::new(Timers { heap: BinaryHeap::new(), sweep_at: SWEEP }),
            wakes: Arc::new(WakeList {
                ids: Mutex::default(),
                any: AtomicBool::new(false),
                event,
                sleeping: AtomicBool::new(false),
            }),
            queue: RefCell::default(),
            behind: RefCell::default(),
            current: Cell::new(u32::MAX),
            current_waker: Cell::new(usize::MAX),
            ready: RefCell::default(),
            now: Cell::new(now),
            before: Cell::new((now, Duration::ZERO)),
            busy: Cell::new(false),
            in_use: Cell::new(0),
            idle: Cell::new(0),
            batch: batch::Batch::default(),
        })
    }

    /// A handle for other threads.
    pub fn remote(&self) -> Remote {
        Remote(self.wakes.clone())
    }

    /// Whether there is much to do this turn, so that work is better done for all of it at once.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.busy.get()
    }

    /// The epoll set.
    pub fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// Time at the start of this turn of the loop.
    pub fn now(&self) -> Instant {
        self.now.get()
    }

    /// Time from `t` to the start of this turn.
    #[inline]
    pub fn since(&self, t: Instant) -> Duration {
        let (at, before) = self.before.get();
        if at == t {
            return before;
        }
        let before = self.now.get().saturating_duration_since(t);
        self.before.set((t, before));
        before
    }

    fn begin_turn(&self, now: Instant) {
        self.now.set(now);
        self.before.set((now, Duration::ZERO));
    }

    /// Slots in use, listeners included.
    pub fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// Idle connections.
    pub fn idle(&self) -> usize {
        self.idle.get()
    }

    /// Adds a descriptor. It is put into the epoll set when something first waits for it.
    pub fn insert(&self, fd: OwnedFd) -> Token {
        self.insert_as(fd, Role::Busy)
    }

    fn insert_as(&self, fd: OwnedFd, role: Role<C>) -> Token {
        self.in_use.set(self.in_use.get() + 1);
        let mut slots = self.slots.borrow_mut();
        let deadline = self.now.get();
        if let Some(index) = self.free.borrow_mut().pop() {
            let s = &mut slots[index as usize];
            s.fd = Some(fd);
            s.watched = Watched::Not;
            s.readable = true;
            s.writable = true;
            s.ended = false;
            s.deadline = deadline;
            s.role = role;
            return Token { index, age: s.age };
        }
        slots.push(Slot {
            fd: Some(fd),
            age: 0,
            watched: Watched::Not,
            readable: true,
            writable: true,
            ended: false,
            armed: None,
            deadline,
            role,
            read_waker: None,
            write_waker: None,
            share: batch::Share::default(),
        });
        Token { index: slots.len() as u32 - 1, age: 0 }
    }

    /// Adds a listening socket, level-triggered.
    ///
    /// # Errors
    /// When it cannot be put into the epoll set.
    pub fn listen(&self, fd: OwnedFd, number: u32, shared: bool) -> std::io::Result<Token> {
        let token = self.insert_as(fd, Role::Listener(number));
        self.arm_listener(token, shared)?;
        Ok(token)
    }

    fn arm_listener(&self, token: Token, shared: bool) -> std::io::Result<()> {
        let mut flags = epoll::EventFlags::IN;
        if shared {
            flags |= epoll::EventFlags::EXCLUSIVE;
        }
        let data = epoll::EventData::new_u64(token.pack());
        match self.with_fd(token, |fd| epoll::add(&self.epoll, fd, data, flags)) {
            Some(Err(e)) if e != Errno::EXIST => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Stops the readiness events of a listener: connections wait in its queue.
    pub fn pause_listener(&self, token: Token) {
        // One that is paused already is not in the set.
        let _ = self.with_fd(token, |fd| epoll::delete(&self.epoll, fd));
    }

    /// Starts the readiness events of a listener again.
    ///
    /// # Errors
    /// When it cannot be put into the epoll set.
    pub fn resume_listener(&self, token: Token, shared: bool) -> std::io::Result<()> {
        self.arm_listener(token, shared)
    }

    /// Calls `f` with the descriptor of a slot.
    #[inline]
    pub fn with_fd<R>(&self, token: Token, f: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        let slots = self.slots.borrow();
        slots.get(token.index as usize).filter(|s| s.age == token.age).and_then(|s| s.fd.as_ref()).map(f)
    }

    /// Takes a slot away and gives its descriptor back; dropping that closes it.
    pub fn remove(&self, token: Token) -> Option<OwnedFd> {
        self.settle(token);
        let (fd, wakers) = {
            let mut slots = self.slots.borrow_mut();
            let s = slots.get_mut(token.index as usize).filter(|s| s.age == token.age)?;
            let fd = s.fd.take();
            s.age = s.age.wrapping_add(1);
            if let Role::Idle(_) = std::mem::replace(&mut s.role, Role::Busy) {
                self.idle.set(self.idle.get() - 1);
            }
            // A timer left behind in the heap carries the old age and is dropped when it fires.
            s.armed = None;
            (fd, (s.read_waker.take(), s.write_waker.take()))
        };
        drop(wakers);
        self.free.borrow_mut().push(token.index);
        self.in_use.set(self.in_use.get() - 1);
        fd
    }

    /// Hands a connection to a runner and polls it.
    pub fn start<H: Handler<Conn = C>>(&self, handler: &Rc<H>, token: Token, conn: C) {
        let id = match self.idle_runners.borrow_mut().pop() {
            Some(id) => id,
            None => {
                let mut runners = self.runners.borrow_mut();
                let id = self.free_runners.borrow_mut().pop().unwrap_or(runners.len() as u32);
                let waker = Some(Waker::from(Arc::new(RunnerWaker { id, list: self.wakes.clone() })));
                let future = Some(handler.clone().runner(id));
                let runner = Runner { future, waker, job: None, timer: None, busy: false };
                match runners.get_mut(id as usize) {
                    Some(r) => *r = runner,
                    None => runners.push(runner),
                }
                id
            }
        };
        if let Some(r) = self.runners.borrow_mut().get_mut(id as usize) {
            r.job = Some(Job { token, conn });
            r.busy = true;
        }
        self.poll_runner(handler, id);
    }

    fn poll_runner<H: Handler<Conn = C>>(&self, handler: &Rc<H>, id: u32) {
        let taken = match self.runners.borrow_mut().get_mut(id as usize) {
            Some(r) => r.future.take().zip(r.waker.take()),
            None => None,
        };
        let Some((mut future, waker)) = taken else { return };
        let outer = self.current.replace(id);
        let outer_waker = self.current_waker.replace(waker.data() as usize);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            future.as_mut().poll(&mut Context::from_waker(&waker))
        }));
        self.current_waker.set(outer_waker);
        let alive = matches!(polled, Ok(Poll::Pending));
        if !alive {
            // The drop of the future closes the connection that it held.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(future)));
            if polled.is_err() {
                handler.panicked();
            }
            self.current.set(outer);
            if let Some(r) = self.runners.borrow_mut().get_mut(id as usize) {
                r.busy = false;
                r.job = None;
                r.waker = Some(waker);
                self.free_runners.borrow_mut().push(id);
            }
            return;
        }
        self.current.set(outer);
        let surplus = {
            let mut runners = self.runners.borrow_mut();
            let Some(r) = runners.get_mut(id as usize) else { return };
            r.waker = Some(waker);
            if r.busy {
                r.future = Some(future);
                return;
            }
            let mut idle = self.idle_runners.borrow_mut();
            if idle.len() < SPARE_RUNNERS {
                r.future = Some(future);
                idle.push(id);
                None
            } else {
                self.free_runners.borrow_mut().push(id);
                Some(future)
            }
        };
        drop(surplus);
    }

    /// Adds work for another runner. It begins when the runner that calls this waits.
    pub fn queue(&self, job: Job<C>) {
        self.queue.borrow_mut().push_back(job);
    }

    fn start_queued<H: Handler<Conn = C>>(&self, handler: &Rc<H>) {
        loop {
            let job = self.queue.borrow_mut().pop_front();
            if let Some(job) = job {
                self.start(handler, job.token, job.conn);
                continue;
            }
            let Some(id) = self.behind.borrow_mut().pop() else { return };
            self.poll_busy(handler, id);
        }
    }

    /// Polls a runner that has work; it may have been polled for another reason since somebody asked, and have finished. One
    /// that is idle would be listed as such once more. `false`: it is.
    fn poll_busy<H: Handler<Conn = C>>(&self, handler: &Rc<H>, id: u32) -> bool {
        let busy = self.runners.borrow().get(id as usize).is_some_and(|r| r.busy);
        if busy {
            self.poll_runner(handler, id);
        }
        busy
    }

    /// Lets what is in the queue begin, and goes on at once behind it.
    pub async fn behind_queue(&self) {
        let mut waited = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            self.behind.borrow_mut().push(self.current.get());
            Poll::Pending
        })
        .await
    }

    /// Takes idle connections for which `f` says so out of their slots, as work for a runner.
    pub fn take_idle(&self, f: impl Fn(&C) -> bool) -> Vec<Job<C>> {
        let mut taken = Vec::new();
        for (i, s) in self.slots.borrow_mut().iter_mut().enumerate() {
            if !matches!(&s.role, Role::Idle(c) if f(c)) {
                continue;
            }
            if let Role::Idle(conn) = std::mem::replace(&mut s.role, Role::Busy) {
                self.idle.set(self.idle.get() - 1);
                taken.push(Job { token: Token { index: i as u32, age: s.age }, conn });
            }
        }
        taken
    }

    /// The next connection for the runner that calls this. In between the runner is idle.
    pub fn next_job(&self) -> impl Future<Output = Job<C>> + '_ {
        let id = self.current.get();
        std::future::poll_fn(move |_| {
            let mut runners = self.runners.borrow_mut();
            let Some(r) = runners.get_mut(id as usize) else { return Poll::Pending };
            match r.job.take() {
                Some(job) => Poll::Ready(job),
                None => {
                    r.busy = false;
                    Poll::Pending
                }
            }
        })
    }

    /// Says that a read took all there was, so that only a new event makes the slot readable.
    #[inline]
    pub fn drained(&self, token: Token) {
        if let Some(s) = self.slots.borrow_mut().get_mut(token.index as usize).filter(|s| s.age == token.age)
        {
            s.readable = s.ended;
        }
    }

    /// Whether a read may give something, as far as is known without asking the kernel.
    #[inline]
    pub fn is_readable(&self, token: Token) -> bool {
        self.slots.borrow().get(token.index as usize).is_none_or(|s| s.age != token.age || s.readable)
    }

    /// Makes a connection idle: its descriptor waits in the epoll set, `deadline` closes it.
    ///
    /// # Errors
    /// Gives the connection back if something has arrived meanwhile.
    pub fn park(&self, token: Token, conn: C, deadline: Instant) -> Result<(), C> {
        let arm = {
            let mut slots = self.slots.borrow_mut();
            let Some(s) = slots.get_mut(token.index as usize).filter(|s| s.age == token.age) else {
                return Ok(());
            };
            if s.readable {
                return Err(conn);
            }
            self.idle.set(self.idle.get() + 1);
            self.put_aside(s, token, Role::Idle(conn), deadline)
        };
        if arm {
            self.arm(deadline, Target::Slot(token.pack()));
        }
        Ok(())
    }

    /// When a connection that was idle would have been closed; now, where there is none.
    pub fn deadline_of(&self, token: Token) -> Instant {
        let slots = self.slots.borrow();
        let slot = slots.get(token.index as usize).filter(|s| s.age == token.age);
        slot.map_or(self.now.get(), |s| s.deadline)
    }

    /// Gives a slot to the epoll set and its deadline. `true`: it needs a timer.
    fn put_aside(&self, s: &mut Slot<C>, token: Token, role: Role<C>, deadline: Instant) -> bool {
        s.role = role;
        s.deadline = deadline;
        s.read_waker = None;
        s.write_waker = None;
        register(&self.epoll, s, token, Watched::Reading);
        // A later deadline than the armed one is found out when that fires.
        let arm = s.armed.is_none_or(|t| t > deadline);
        if arm {
            s.armed = Some(deadline);
        }
        arm
    }

    /// Adds a timer. Those of connections that ended stay in the heap until they fire; where they are most of
    /// it (many short connections, long timeouts), they are swept out.
    fn arm(&self, deadline: Instant, target: Target) {
        let mut timers = self.timers.borrow_mut();
        timers.heap.push(Reverse((deadline, target)));
        if timers.heap.len() < timers.sweep_at {
            return;
        }
        let (slots, runners) = (self.slots.borrow(), self.runners.borrow());
        timers.heap.retain(|Reverse((t, target))| match *target {
            Target::Slot(packed) => {
                let token = Token::unpack(packed);
                slots.get(token.index as usize).is_some_and(|s| s.age == token.age && s.armed == Some(*t))
            }
            Target::Runner(id) => runners.get(id as usize).is_some_and(|r| r.timer == Some(*t)),
        });
        timers.sweep_at = SWEEP.max(timers.heap.len() * 2);
    }

    /// Makes a connection wait for [`Reactor::reuse`] and gives its descriptor, which is in the epoll set;
    /// [`Handler::spare_ended`] is told when anything arrives, and at `deadline`. `None`: something has arrived
    /// already, or it is gone.
    pub fn set_aside(&self, token: Token, deadline: Instant, holder: u32) -> Option<OwnedFd> {
        let (fd, arm) = {
            let mut slots = self.slots.borrow_mut();
            let s = slots.get_mut(token.index as usize).filter(|s| s.age == token.age)?;
            if s.readable || s.fd.is_none() {
                return None;
            }
            let arm = self.put_aside(s, token, Role::Spare(holder), deadline);
            (s.fd.take()?, arm)
        };
        if arm {
            self.arm(deadline, Target::Slot(token.pack()));
        }
        Some(fd)
    }

    /// Takes a connection back that was set aside. `false`: its slot is gone, it is closed.
    pub fn reuse(&self, token: Token, fd: OwnedFd) -> bool {
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(token.index as usize).filter(|s| s.age == token.age) {
            Some(s) => {
                s.fd = Some(fd);
                s.role = Role::Busy;
                true
            }
            None => false,
        }
    }

    /// Ready when a read may give something. `clear` first says that the last read found nothing.
    pub fn poll_readable(&self, token: Token, clear: bool, cx: &mut Context<'_>) -> Poll<()> {
        let mut slots = self.slots.borrow_mut();
        let Some(s) = slots.get_mut(token.index as usize).filter(|s| s.age == token.age) else {
            return Poll::Ready(());
        };
        if clear {
            s.readable = s.ended;
        }
        if s.readable {
            return Poll::Ready(());
        }
        register(&self.epoll, s, token, Watched::Reading);
        self.wait_on(&mut s.read_waker, cx);
        Poll::Pending
    }

    /// Notes whom an event is to wake.
    #[inline]
    fn wait_on(&self, place: &mut Option<Waiter>, cx: &Context<'_>) {
        let waker = cx.waker();
        match place {
            _ if waker.data() as usize == self.current_waker.get() => {
                *place = Some(Waiter::Runner(self.current.get()));
            }
            Some(Waiter::Other(w)) if w.will_wake(waker) => {}
            _ => *place = Some(Waiter::Other(waker.clone())),
        }
    }

    /// Ready when a write may take something. `clear` first says that the last write found no room.
    pub fn poll_writable(&self, token: Token, clear: bool, cx: &mut Context<'_>) -> Poll<()> {
        let mut slots = self.slots.borrow_mut();
        let Some(s) = slots.get_mut(token.index as usize).filter(|s| s.age == token.age) else {
            return Poll::Ready(());
        };
        if clear {
            s.writable = false;
        }
        if s.writable {
            return Poll::Ready(());
        }
        register(&self.epoll, s, token, Watched::Both);
        self.wait_on(&mut s.write_waker, cx);
        Poll::Pending
    }

    /// Waits until a read may give something; call it after a read that would have blocked.
    pub async fn readable(&self, token: Token) {
        let mut clear = true;
        std::future::poll_fn(|cx| self.poll_readable(token, std::mem::take(&mut clear), cx)).await;
    }

    /// Waits until a write may take something; call it after a write that would have blocked.
    pub async fn writable(&self, token: Token) {
        let mut clear = true;
        std::future::poll_fn(|cx| self.poll_writable(token, std::mem::take(&mut clear), cx)).await;
    }

    /// Ready at `deadline`. Only inside a runner.
    pub fn poll_deadline(&self, deadline: Instant) -> Poll<()> {
        if self.now.get() >= deadline {
            return Poll::Ready(());
        }
        let id = self.current.get();
        let arm = match self.runners.borrow_mut().get_mut(id as usize) {
            Some(r) if r.timer.is_none_or(|t| t > deadline) => {
                r.timer = Some(deadline);
                true
            }
            _ => false,
        };
        if arm {
            self.arm(deadline, Target::Runner(id));
        }
        Poll::Pending
    }

    /// Lets the other connections have their turn.
    pub async fn yield_now(&self) {
        // Whoever yields has much to do.
        self.send_answers();
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// Waits `d`.
    pub async fn sleep(&self, d: Duration) {
        let deadline = Instant::now() + d;
        std::future::poll_fn(|_| self.poll_deadline(deadline)).await;
    }

    /// Runs `f` until `deadline`. `None`: it was not ready by then.
    pub async fn deadline<T>(&self, deadline: Instant, f: impl Future<Output = T>) -> Option<T> {
        let mut f = std::pin::pin!(f);
        std::future::poll_fn(|cx| match f.as_mut().poll(cx) {
            Poll::Ready(v) => Poll::Ready(Some(v)),
            Poll::Pending => self.poll_deadline(deadline).map(|()| None),
        })
        .await
    }

    /// Closes idle connections for which `f` says so. Gives how many.
    pub fn close_idle(&self, mut f: impl FnMut(&C, Instant) -> bool) -> usize {
        let tokens: Vec<Token> = {
            let slots = self.slots.borrow();
            let each = slots.iter().enumerate();
            each.filter(|(_, s)| s.fd.is_some() && matches!(&s.role, Role::Idle(c) if f(c, s.deadline)))
                .map(|(i, s)| Token { index: i as u32, age: s.age })
                .collect()
        };
        for t in &tokens {
            self.remove(*t);
        }
        tokens.len()
    }

    /// Looks at every idle connection: until when it may be, and whether an answer is still on its way, which would be cut
    /// where there is no room.
    pub fn each_idle(&self, mut f: impl FnMut(&C, Instant, bool)) {
        for s in self.slots.borrow().iter().filter(|s| s.fd.is_some()) {
            if let Role::Idle(c) = &s.role {
                f(c, s.deadline, s.share.is_sending());
            }
        }
    }

    /// Wakes every runner that has work, so that it sees a change of state.
    pub fn wake_all(&self) {
        let ids = self
            .runners
            .borrow()
            .iter()
            .enumerate()
            .filter(|(_, r)| r.busy)
            .map(|(i, _)| i as u32)
            .collect::<Vec<_>>();
        lock(&self.wakes.ids).extend(ids);
        self.wakes.any.store(true, Ordering::SeqCst);
    }

    /// Serves until the handler says that it has finished.
    ///
    /// # Errors
    /// When the epoll set can no longer be waited for.
    pub fn run<H: Handler<Conn = C>>(&self, handler: &Rc<H>) -> std::io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let mut ids = Vec::new();
        // The last wait ended without an event.
        let mut idle = false;
        loop {
            let now = Instant::now();
            self.begin_turn(now);
            handler.tick(now);
            let busy = events.len() >= BUSY;
            self.busy.set(busy);
            // First: what the connections of this turn ask for is younger than these.
            events.iter().filter_map(notice_of).for_each(|number| handler.noticed(number));
            if events.len() == EVENTS {
                handler.noticed(NOTICE_FILES);
            }
            if busy {
                self.read_early(&events);
            }
            for e in events.drain(..) {
                self.on_event(handler, Token::unpack(e.data.u64()), e.flags);
                self.start_queued(handler);
            }
            let mut woken = self.poll_woken(handler, &mut ids);
            if woken {
                // A connection whose streams have just answered writes before the loop waits again.
                woken = self.poll_woken(handler, &mut ids);
            }
            let fired = self.fire_timers(handler);
            self.answers_leave(handler);
            handler.turn();
            if handler.finished() {
                return Ok(());
            }
            self.start_queued(handler);
            self.answers_leave(handler);
            let left = handler.before_wait(busy);
            let timeout = if woken || fired || left {
                Some(Duration::ZERO)
            } else {
                self.patience(handler.due(), idle)
            };
            self.wait(&mut events, timeout)?;
            idle = events.is_empty();
        }
    }

    /// Time to the next timer; `None`: there is none. Unless nothing happens (`idle`) a timer that is far away needs no look
    /// at the clock: something else will end the wait, or it is looked at then.
    fn patience(&self, due: Option<Instant>, idle: bool) -> Option<Duration> {
        const FAR: Duration = Duration::from_secs(2);
        let timer = self.timers.borrow().heap.peek().map(|Reverse((t, _))| *t);
        let next = [timer, due].into_iter().flatten().min()?;
        if !idle && self.now.get() + FAR < next {
            return Some(FAR / 2);
        }
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn wait(&self, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) -> std::io::Result<()> {
        self.wakes.sleeping.store(true, Ordering::SeqCst);
        // Whoever adds to the list from now on makes the event descriptor readable.
        let woken = self.wakes.any.load(Ordering::SeqCst) || !self.ready.borrow().is_empty();
        let timeout = if woken { Some(Duration::ZERO) } else { timeout };
        let spec = timeout.map(|t| rustix::time::Timespec {
            tv_sec: t.as_secs() as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let got = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), spec.as_ref());
        self.wakes.sleeping.store(false, Ordering::SeqCst);
        match got {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn on_event<H: Handler<Conn = C>>(&self, handler: &Rc<H>, token: Token, flags: epoll::EventFlags) {
        use epoll::EventFlags as F;
        enum Then<C> {
            Accept(u32),
            Serve(C),
            Close(u32),
            Wake(Option<Waiter>, Option<Waiter>),
        }
        if token == WAKE {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.wakes.event, &mut count);
            return;
        }
        let then = {
            let mut slots = self.slots.borrow_mut();
            let Some(s) = slots.get_mut(token.index as usize).filter(|s| s.age == token.age) else {
                return;
            };
            let failed = flags.intersects(F::ERR | F::HUP);
            let read = failed || flags.intersects(F::IN | F::RDHUP);
            let write = failed || flags.contains(F::OUT);
            s.readable |= read;
            s.ended |= flags.intersects(F::ERR | F::HUP | F::RDHUP);
            let write = write && batch::pay(s);
            s.writable |= write;
            match std::mem::replace(&mut s.role, Role::Busy) {
                Role::Listener(n) => {
                    s.role = Role::Listener(n);
                    Then::Accept(n)
                }
                Role::Idle(c) if read => {
                    self.idle.set(self.idle.get() - 1);
                    Then::Serve(c)
                }
                Role::Spare(n) => {
                    s.role = Role::Spare(n);
                    if !read {
                        return;
                    }
                    Then::Close(n)
                }
                Role::Idle(c) => {
                    s.role = Role::Idle(c);
                    return;
                }
                Role::Busy => Then::Wake(
                    if read { s.read_waker.take() } else { None },
                    if write { s.write_waker.take() } else { None },
                ),
            }
        };
        match then {
            Then::Accept(n) => handler.clone().accept(n),
            Then::Serve(conn) => self.start(handler, token, conn),
            Then::Close(holder) => {
                handler.spare_ended(token, holder);
                self.remove(token);
            }
            Then::Wake(r, w) => {
                for waiter in [r, w].into_iter().flatten() {
                    match waiter {
                        Waiter::Runner(id) => self.ready.borrow_mut().push(id),
                        Waiter::Other(w) => w.wake(),
                    }
                }
            }
        }
    }

    fn poll_woken<H: Handler<Conn = C>>(&self, handler: &Rc<H>, ids: &mut Vec<u32>) -> bool {
        if self.wakes.any.load(Ordering::SeqCst) {
            // What is added meanwhile is found the next time, if not now.
            self.wakes.any.store(false, Ordering::SeqCst);
            std::mem::swap(ids, &mut *lock(&self.wakes.ids));
        }
        ids.append(&mut self.ready.borrow_mut());
        let any = !ids.is_empty();
        ids.dedup();
        for id in ids.drain(..) {
            if self.poll_busy(handler, id) {
                self.start_queued(handler);
            }
        }
        any
    }

    fn fire_timers<H: Handler<Conn = C>>(&self, handler: &Rc<H>) -> bool {
        let now = self.now.get();
        let mut any = false;
        loop {
            let target = {
                let mut timers = self.timers.borrow_mut();
                match timers.heap.peek() {
                    Some(Reverse((t, _))) if *t <= now => {}
                    _ => return any,
                }
                let Some(Reverse((_, target))) = timers.heap.pop() else { return any };
                target
            };
            any = true;
            match target {
                Target::Slot(packed) => self.slot_timer(handler, Token::unpack(packed), now),
                Target::Runner(id) => {
                    if let Some(r) = self.runners.borrow_mut().get_mut(id as usize) {
                        r.timer = None;
                    }
                    // A timer outlives the wait that set it.
                    self.poll_busy(handler, id);
                }
            }
        }
    }

    fn slot_timer<H: Handler<Conn = C>>(&self, handler: &Rc<H>, token: Token, now: Instant) {
        let expired = {
            let mut slots = self.slots.borrow_mut();
            let Some(s) = slots.get_mut(token.index as usize).filter(|s| s.age == token.age) else {
                return;
            };
            if s.armed.is_some_and(|t| t <= now) {
                s.armed = None;
            }
            match &s.role {
                Role::Spare(n) if s.deadline <= now => Expired::Close(*n),
                Role::Idle(_) if s.deadline <= now => match std::mem::replace(&mut s.role, Role::Busy) {
                    Role::Idle(c) => {
                        self.idle.set(self.idle.get() - 1);
                        Expired::Conn(c)
                    }
                    other => {
                        s.role = other;
                        Expired::Nothing
                    }
                },
                Role::Idle(_) | Role::Spare(_) if s.armed.is_none() => {
                    s.armed = Some(s.deadline);
                    self.timers.borrow_mut().heap.push(Reverse((s.deadline, Target::Slot(token.pack()))));
                    Expired::Nothing
                }
                _ => Expired::Nothing,
            }
        };
        match expired {
            Expired::Nothing => {}
            Expired::Conn(conn) => handler.clone().expired(token, conn),
            Expired::Close(holder) => {
                handler.spare_ended(token, holder);
                self.remove(token);
            }
        }
    }
}

/// What a slot's timer found.
enum Expired<C> {
    Nothing,
    Conn(C),
    Close(u32),
}

/// Has the epoll set watch a slot, edge-triggered, if it does not already.
#[inline]
fn register<C>(ep: &OwnedFd, s: &mut Slot<C>, token: Token, want: Watched) {
    if s.watched < want {
        watch(ep, s, token, want);
    }
}

fn watch<C>(ep: &OwnedFd, s: &mut Slot<C>, token: Token, want: Watched) {
    use epoll::EventFlags as F;
    let Some(fd) = s.fd.as_ref() else { return };
    let mut flags = F::IN | F::RDHUP | F::ET;
    if want == Watched::Both {
        flags |= F::OUT;
    }
    let data = epoll::EventData::new_u64(token.pack());
    let done = match s.watched {
        Watched::Not => epoll::add(ep, fd.as_fd(), data, flags),
        _ => epoll::modify(ep, fd.as_fd(), data, flags),
    };
    // Out of memory or watches: the deadline of whoever waits ends the connection.
    if done.is_ok() {
        s.watched = want;
    }
}

#[cfg(test)]
mod tests;
