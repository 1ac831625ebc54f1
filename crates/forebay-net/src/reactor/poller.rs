//! Descriptors of a thread in their slots, the readiness that epoll reports, and deadlines. Hot path.

use super::batch::{self, Batch, Share};
use super::budget::Budget;
use super::direct::Direct;
use super::progress::Progress;
use super::timers::{Deadline, Target, Timers};
use super::wake::{Remote, WakeList};
use crate::few_clients::{Clients, Seen};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::cell::{Cell, Ref, RefCell, RefMut};
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Number of a slot. A slot is used again for other descriptors, and the age tells a stale number from the
/// current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub(super) index: u32,
    pub(super) age: u32,
}

impl Token {
    /// Token that belongs to no slot.
    pub const NONE: Token = Token { index: u32::MAX, age: u32::MAX };

    /// Returns the token of a slot's first descriptor, for tests.
    #[doc(hidden)]
    pub fn numbered(index: u32) -> Token {
        Token { index, age: 0 }
    }

    pub(super) fn pack(self) -> u64 {
        u64::from(self.age) << 32 | u64::from(self.index)
    }
    pub(super) fn unpack(v: u64) -> Token {
        Token { index: v as u32, age: (v >> 32) as u32 }
    }
}

/// Token of the wake list's event descriptor.
const WAKE: Token = Token::NONE;

/// Notice that watched files may have changed. Notices are events that belong to no connection.
pub const NOTICE_FILES: u32 = 0;
/// Notice that the mount table has changed.
pub const NOTICE_MOUNTS: u32 = 1;
/// Notice that files of caches are gone.
pub const NOTICE_CACHES: u32 = 2;

/// Returns the event data of a notice, for a descriptor that its owner puts into the epoll set. See [`super::Handler::noticed`].
pub fn notice(number: u32) -> epoll::EventData {
    epoll::EventData::new_u64(Token { index: u32::MAX, age: number }.pack())
}

/// Returns the number of a notice, if an event is one.
#[inline]
pub(super) fn notice_of(e: &epoll::Event) -> Option<u32> {
    let token = Token::unpack(e.data.u64());
    // The token of the wake list has the age u32::MAX.
    (token.index == u32::MAX && token.age != u32::MAX).then_some(token.age)
}

/// Purpose of a slot's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A listening socket, with its number among the listeners.
    Listener(u32),
    /// A connection of the front end of this number, without a runner: data wakes one, the deadline closes it.
    Idle(u8),
    /// A descriptor that a task works with.
    Busy,
    /// An upstream connection that waits for its next request. The number names the owner of its descriptor. Anything
    /// that arrives closes it, so does the deadline.
    SetAside(u32),
    /// A descriptor that a front end serves without a task. Each event is reported, and the deadline.
    Direct(Direct),
}

/// Events that the epoll set reports for a slot. Room to write is registered only once a connection waits for it:
/// most never do, and the event would come for each of them at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum Watched {
    Not,
    Reading,
    Both,
}

/// A descriptor and its readiness.
pub(super) struct Slot {
    pub(super) fd: Option<OwnedFd>,
    pub(super) age: u32,
    watched: Watched,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The peer has shut down its side. No further event reports readability, so the flag stays set until the end
    /// has been read.
    pub(super) ended: bool,
    /// See [`Clients::note`].
    seen: Seen,
    /// Time of the earliest timer of this slot, or [`Deadline::NEVER`].
    pub(super) armed: Deadline,
    pub(super) deadline: Deadline,
    pub(super) role: Role,
    pub(super) read_waker: Option<Waiter>,
    pub(super) write_waker: Option<Waiter>,
    pub(super) share: Share,
}

impl Slot {
    /// Returns `true` if bytes wait in the socket.
    #[cold]
    fn has_input(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peek = |fd| rustix::net::recv(fd, &mut byte[..], flags);
        matches!(self.fd.as_ref().map(peek), Some(Ok((1.., _))))
    }
}

/// Task that waits for an event, as [`Poller::set_waiter`] notes it.
#[derive(Debug)]
pub struct Waiter(Waits);

#[derive(Debug)]
enum Waits {
    /// A task of the reactor; its number is enough to poll it.
    Task(u32),
    /// A future inside a task with a waker of its own.
    Other(Waker),
}

/// Work that an event or a timer of a slot leaves for the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// A listener, by number, has connections to accept.
    Accept(u32),
    /// An idle connection of this front end has received data; its slot is busy now.
    Serve(u8),
    /// An idle connection of this front end has reached its deadline; its slot is busy now.
    Expired(u8),
    /// A connection that was set aside by this owner has ended.
    Close(u32),
    /// Work that has no task can go on, or its deadline has passed.
    Step(Direct),
}

/// Slots, the epoll set, timers and the clock of a turn. It knows neither connections nor futures.
pub struct Poller {
    epoll: Arc<OwnedFd>,
    pub(super) slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    pub(super) timers: RefCell<Timers>,
    /// Time of the earliest timer of each task, or [`Deadline::NEVER`].
    task_timers: RefCell<Vec<Deadline>>,
    pub(super) wakes: Arc<WakeList>,
    /// Task that is being polled.
    pub(super) current: Cell<u32>,
    /// Data pointer of its waker, to recognise it among others.
    pub(super) current_waker: Cell<usize>,
    /// Tasks that this thread has woken.
    ready: RefCell<Vec<u32>>,
    /// Work without a task that has more to do, see [`Poller::step_again`].
    pub(super) unfinished: RefCell<Vec<Direct>>,
    /// Beginning of all ticks.
    start: Instant,
    now: Cell<Instant>,
    /// `now` as a deadline.
    now_as_deadline: Cell<Deadline>,
    /// Result of the last [`Poller::since`], since most calls are for the same time.
    since: Cell<(Instant, Duration)>,
    /// This turn has many events.
    pub(super) busy: Cell<bool>,
    pub(super) clients: Clients,
    in_use: Cell<usize>,
    pub(super) idle: Cell<usize>,
    pub(super) batch: Batch,
    progress: Arc<Progress>,
    pub(super) budget: Budget,
    /// Connection that each task works on, by the number of the task.
    places: RefCell<Vec<u64>>,
}

impl Poller {
    /// Creates an empty poller.
    ///
    /// # Errors
    /// The epoll or event descriptor cannot be created.
    pub fn new() -> std::io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wakes = WakeList::new()?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let now = Instant::now();
        epoll::add(&epoll, wakes.event(), epoll::EventData::new_u64(WAKE.pack()), flags)?;
        Ok(Poller {
            epoll: Arc::new(epoll),
            slots: RefCell::default(),
            free: RefCell::default(),
            timers: RefCell::default(),
            task_timers: RefCell::default(),
            wakes,
            current: Cell::new(u32::MAX),
            current_waker: Cell::new(usize::MAX),
            ready: RefCell::default(),
            unfinished: RefCell::default(),
            start: now,
            now: Cell::new(now),
            now_as_deadline: Cell::new(Deadline(0)),
            since: Cell::new((now, Duration::ZERO)),
            busy: Cell::new(false),
            clients: Clients::default(),
            in_use: Cell::new(0),
            idle: Cell::new(0),
            batch: Batch::default(),
            progress: Arc::default(),
            budget: Budget::default(),
            places: RefCell::default(),
        })
    }

    /// Returns what other threads see of this one.
    #[inline]
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Notes that the task that is being polled works on the connection of this number from now on; 0: none.
    #[inline]
    pub fn note_place(&self, connection: u64) {
        if let Some(place) = self.places.borrow_mut().get_mut(self.current.get() as usize) {
            *place = connection;
        }
        self.progress.set_place(connection);
    }

    /// Notes that a task is polled, or one further up the stack again.
    #[inline]
    pub(super) fn enter(&self, id: u32) {
        self.current.set(id);
        self.progress.set_place(self.places.borrow().get(id as usize).copied().unwrap_or(0));
    }

    /// Returns a handle for other threads.
    pub fn remote(&self) -> Remote {
        Remote(self.wakes.clone())
    }

    /// Returns `true` if this turn has many events, so that it pays to do similar work together.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.busy.get()
    }

    /// Counts the connections of a turn's events.
    pub(super) fn note_clients(&self, events: &[epoll::Event]) {
        let mut slots = self.slots.borrow_mut();
        for e in events {
            if let Some(s) = slot_of(&mut slots, Token::unpack(e.data.u64())) {
                self.clients.note(&mut s.seen);
            }
        }
    }

    /// Returns the epoll set.
    pub fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// Returns the time at the start of this turn of the loop.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now.get()
    }

    /// Returns the time from `t` to the start of this turn.
    #[inline]
    pub fn since(&self, t: Instant) -> Duration {
        let (at, before) = self.since.get();
        if at == t {
            return before;
        }
        let before = self.now.get().saturating_duration_since(t);
        self.since.set((t, before));
        before
    }

    /// Sets the time of a turn.
    pub(crate) fn begin_turn(&self, now: Instant) {
        self.now.set(now);
        self.now_as_deadline.set(self.deadline_at(now));
        self.since.set((now, Duration::ZERO));
    }

    /// Returns the deadline that lies `d` after the start of this turn.
    #[inline]
    pub fn after(&self, d: Duration) -> Deadline {
        self.now_as_deadline.get().plus(d)
    }

    /// Returns the deadline at an instant. Prefer [`Poller::after`] on hot paths.
    pub fn deadline_at(&self, t: Instant) -> Deadline {
        Deadline(u64::try_from(t.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX - 1))
    }

    /// Returns the instant of a deadline.
    pub fn instant(&self, t: Deadline) -> Instant {
        self.start + Duration::from_nanos(t.0)
    }

    /// Returns the number of slots in use, listeners included.
    pub fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// Returns the number of idle connections.
    pub fn idle(&self) -> usize {
        self.idle.get()
    }

    /// Returns the slot of a token; `None` once its descriptor has been removed.
    #[inline]
    pub(super) fn slot(&self, token: Token) -> Option<Ref<'_, Slot>> {
        Ref::filter_map(self.slots.borrow(), |slots| {
            slots.get(token.index as usize).filter(|s| s.age == token.age)
        })
        .ok()
    }

    /// Returns the slot of a token, to be changed.
    #[inline]
    pub(super) fn slot_mut(&self, token: Token) -> Option<RefMut<'_, Slot>> {
        RefMut::filter_map(self.slots.borrow_mut(), |slots| slot_of(slots, token)).ok()
    }

    /// Adds a descriptor. It enters the epoll set when a task first waits for it.
    pub fn insert(&self, fd: OwnedFd) -> Token {
        self.insert_as(fd, Role::Busy)
    }

    fn insert_as(&self, fd: OwnedFd, role: Role) -> Token {
        self.in_use.set(self.in_use.get() + 1);
        let mut slots = self.slots.borrow_mut();
        let deadline = self.now_as_deadline.get();
        if let Some(index) = self.free.borrow_mut().pop() {
            let s = &mut slots[index as usize];
            s.fd = Some(fd);
            s.watched = Watched::Not;
            // Readiness is assumed here. A connection that is answered with its first read and write needs no
            // registration. If the guess is wrong, the call returns AGAIN and the slot waits.
            s.readable = true;
            s.writable = true;
            s.ended = false;
            s.deadline = deadline;
            s.role = role;
            // `remove` has reset the other fields.
            return Token { index, age: s.age };
        }
        slots.push(Slot {
            fd: Some(fd),
            age: 0,
            watched: Watched::Not,
            readable: true,
            writable: true,
            ended: false,
            seen: Seen::default(),
            armed: Deadline::NEVER,
            deadline,
            role,
            read_waker: None,
            write_waker: None,
            share: Share::default(),
        });
        Token { index: slots.len() as u32 - 1, age: 0 }
    }

    /// Adds a listening socket, level-triggered. `shared`: other processes or threads accept from it, too.
    ///
    /// # Errors
    /// The listener cannot be put into the epoll set.
    pub fn listen(&self, fd: OwnedFd, number: u32, shared: bool) -> std::io::Result<Token> {
        let token = self.insert_as(fd, Role::Listener(number));
        self.resume_listener(token, shared)?;
        Ok(token)
    }

    /// Stops the readiness events of a listener: connections wait in its queue.
    pub fn pause_listener(&self, token: Token) {
        // Fails for a listener that is paused already. The entry is removed and not changed: EPOLLEXCLUSIVE may
        // only be set when a descriptor is added (epoll_ctl(2)).
        let _ = self.with_fd(token, |fd| epoll::delete(&self.epoll, fd));
    }

    /// Starts the readiness events of a listener again.
    ///
    /// # Errors
    /// The listener cannot be put into the epoll set.
    pub fn resume_listener(&self, token: Token, shared: bool) -> std::io::Result<()> {
        let mut flags = epoll::EventFlags::IN;
        // Otherwise one connection would wake every process that accepts from this socket.
        if shared {
            flags |= epoll::EventFlags::EXCLUSIVE;
        }
        let data = epoll::EventData::new_u64(token.pack());
        match self.with_fd(token, |fd| epoll::add(&self.epoll, fd, data, flags)) {
            Some(Err(e)) if e != Errno::EXIST => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Calls `f` with the descriptor of a slot.
    #[inline]
    pub fn with_fd<R>(&self, token: Token, f: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        self.slot(token)?.fd.as_ref().map(f)
    }

    /// Frees a slot and returns its descriptor; dropping that closes it.
    pub fn remove(&self, token: Token) -> Option<OwnedFd> {
        // This comes first, since queued answers need the descriptor.
        self.release(token);
        let (fd, wakers) = {
            let mut s = self.slot_mut(token)?;
            let fd = s.fd.take();
            if let (Some(fd), Role::Listener(_)) = (&fd, s.role) {
                // Dropping the descriptor is not enough: epoll keeps an entry until the last descriptor of the socket is
                // closed, and the master has one (epoll(7)). Level-triggered, it would wake the loop again and again. A
                // listener that is paused has no entry.
                let _ = epoll::delete(&*self.epoll, fd);
            }
            // This makes stale tokens of the slot invalid, which events of this turn, timers and callers may
            // still have.
            s.age = s.age.wrapping_add(1);
            if matches!(std::mem::replace(&mut s.role, Role::Busy), Role::Idle(_)) {
                self.idle.set(self.idle.get() - 1);
            }
            // A timer left in the heap carries the old age and is dropped when it fires.
            s.armed = Deadline::NEVER;
            (fd, (s.read_waker.take(), s.write_waker.take()))
        };
        // A waker's drop may come back here, so the slots must not be borrowed any more.
        drop(wakers);
        self.free.borrow_mut().push(token.index);
        self.in_use.set(self.in_use.get() - 1);
        fd
    }

    /// Makes a slot of a front end idle until `deadline`, with its descriptor in the epoll set. Returns `false`, and
    /// changes nothing, if something has arrived meanwhile.
    pub(super) fn park(&self, token: Token, front: u8, deadline: Deadline) -> bool {
        let arm = {
            let Some(mut s) = self.slot_mut(token) else { return true };
            if s.readable {
                return false;
            }
            self.idle.set(self.idle.get() + 1);
            self.wait_for_data(&mut s, token, Role::Idle(front), deadline)
        };
        if arm {
            self.arm(deadline, Target::Slot(token));
        }
        true
    }

    /// Makes an idle slot busy. Returns the number of its front end, `None` if it is not idle.
    pub(super) fn unpark(&self, token: Token) -> Option<u8> {
        self.slot_mut(token).and_then(|mut s| self.take_idle(&mut s))
    }

    /// Makes an idle connection busy, like [`Poller::unpark`].
    pub(super) fn take_idle(&self, s: &mut Slot) -> Option<u8> {
        let Role::Idle(front) = s.role else { return None };
        s.role = Role::Busy;
        self.idle.set(self.idle.get() - 1);
        Some(front)
    }

    /// Calls `f` for each idle slot of a front end with its token, its deadline and whether an answer is still queued or
    /// unsent.
    pub(super) fn each_idle(&self, front: u8, mut f: impl FnMut(Token, Instant, bool)) {
        for (i, s) in self.slots.borrow().iter().enumerate() {
            if s.fd.is_some() && s.role == Role::Idle(front) {
                f(Token { index: i as u32, age: s.age }, self.instant(s.deadline), s.share.is_sending());
            }
        }
    }

    /// Returns the deadline that a slot had when it was last idle; the current time if there is no such slot.
    pub fn deadline_of(&self, token: Token) -> Deadline {
        self.slot(token).map_or(self.now_as_deadline.get(), |s| s.deadline)
    }

    /// Registers a slot without a runner for data, until `deadline`. Returns whether it needs a timer.
    fn wait_for_data(&self, s: &mut Slot, token: Token, role: Role, deadline: Deadline) -> bool {
        s.role = role;
        s.deadline = deadline;
        s.read_waker = None;
        s.write_waker = None;
        self.watch(s, token, Watched::Reading);
        // A deadline later than the armed timer is found when that fires.
        let arm = s.armed > deadline;
        if arm {
            s.armed = deadline;
        }
        arm
    }

    pub(super) fn arm(&self, deadline: Deadline, target: Target) {
        let mut timers = self.timers.borrow_mut();
        if !timers.add(deadline, target) {
            return;
        }
        let (slots, tasks) = (self.slots.borrow(), self.task_timers.borrow());
        timers.sweep(|t, target| match target {
            Target::Slot(token) => {
                slots.get(token.index as usize).is_some_and(|s| s.age == token.age && s.armed == t)
            }
            Target::Task(id) => tasks.get(id as usize).is_some_and(|r| *r == t),
        });
    }

    /// Sets a connection aside for [`Poller::reuse`] and returns its descriptor, which stays in the epoll set.
    /// [`super::Handler::set_aside_ended`] is called when anything arrives, and at `deadline`. `None`: something has arrived
    /// already, or the slot is gone.
    pub fn set_aside(&self, token: Token, deadline: Deadline, owner: u32) -> Option<OwnedFd> {
        let (fd, arm) = {
            let mut s = self.slot_mut(token)?;
            if s.readable || s.fd.is_none() {
                return None;
            }
            let arm = self.wait_for_data(&mut s, token, Role::SetAside(owner), deadline);
            (s.fd.take()?, arm)
        };
        if arm {
            self.arm(deadline, Target::Slot(token));
        }
        Some(fd)
    }

    /// Takes a connection back that was set aside. Returns `false` if its slot is gone: the connection is closed.
    pub fn reuse(&self, token: Token, fd: OwnedFd) -> bool {
        let Some(mut s) = self.slot_mut(token) else { return false };
        s.fd = Some(fd);
        s.role = Role::Busy;
        true
    }

    /// Is ready when a read may give something: always, until a read that found nothing has been noted ([`Poller::drained`]).
    pub fn poll_readable(&self, token: Token, cx: &mut Context<'_>) -> Poll<()> {
        let Some(mut s) = self.slot_mut(token) else { return self.spend(cx) };
        let s = &mut *s;
        if s.readable {
            return self.spend(cx);
        }
        self.watch(s, token, Watched::Reading);
        self.set_waiter(&mut s.read_waker, cx);
        Poll::Pending
    }

    /// Is ready when a write may take something: always, until a write that found no room has been noted.
    pub fn poll_writable(&self, token: Token, cx: &mut Context<'_>) -> Poll<()> {
        let Some(mut s) = self.slot_mut(token) else { return self.spend(cx) };
        let s = &mut *s;
        if s.writable {
            return self.spend(cx);
        }
        self.watch(s, token, Watched::Both);
        self.set_waiter(&mut s.write_waker, cx);
        Poll::Pending
    }

    /// Notes the task that is being polled as the one to [`Poller::wake`].
    #[inline]
    pub fn set_waiter(&self, place: &mut Option<Waiter>, cx: &Context<'_>) {
        let waker = cx.waker();
        match place {
            // The waker of the task itself: its number spares the clone, and waking it needs no lock.
            _ if self.is_current(cx) => *place = Some(Waiter(Waits::Task(self.current.get()))),
            Some(Waiter(Waits::Other(w))) if w.will_wake(waker) => {}
            _ => *place = Some(Waiter(Waits::Other(waker.clone()))),
        }
    }

    /// Has a task polled. Nothing of the poller may be borrowed.
    #[inline]
    pub fn wake(&self, waiter: &Waiter) {
        match &waiter.0 {
            Waits::Task(id) => self.ready.borrow_mut().push(*id),
            Waits::Other(waker) => waker.wake_by_ref(),
        }
    }

    /// Returns `true` if the waker is that of the task that is being polled.
    fn is_current(&self, cx: &Context<'_>) -> bool {
        cx.waker().data() as usize == self.current_waker.get()
    }

    /// Is ready at an instant, like [`Poller::poll_until`].
    pub fn poll_deadline(&self, deadline: Instant) -> Poll<()> {
        self.poll_until(self.deadline_at(deadline))
    }

    /// Is ready at `deadline`. Only inside a task.
    pub fn poll_until(&self, deadline: Deadline) -> Poll<()> {
        // The deadline is compared with the time of the turn, which spares a look at the clock.
        let id = self.current.get();
        if self.now_as_deadline.get() >= deadline {
            return self.budget.spend().then_poll(|| self.ready.borrow_mut().push(id));
        }
        let arm = match self.task_timers.borrow_mut().get_mut(id as usize) {
            // Only the earliest timer of a task is in the heap. When it fires, the task is polled, asks again, and
            // gets the next.
            Some(timer) if *timer > deadline => {
                *timer = deadline;
                true
            }
            _ => false,
        };
        if arm {
            self.arm(deadline, Target::Task(id));
        }
        Poll::Pending
    }

    /// Is ready, for a wait of the task that is being polled that nothing holds up. A task whose waits are ready too often in one
    /// poll has others run first: a loop that makes no progress costs its own connection only.
    #[inline]
    pub fn spend(&self, cx: &Context<'_>) -> Poll<()> {
        self.budget.spend().then_poll(|| self.poll_again(cx))
    }

    /// Has the task that is being polled polled again, after the others.
    fn poll_again(&self, cx: &Context<'_>) {
        if self.is_current(cx) {
            self.ready.borrow_mut().push(self.current.get());
        } else {
            cx.waker().wake_by_ref();
        }
    }

    /// Lets the other connections run first if this task has gone on for long. For loops that need not wait as long as the other
    /// side keeps sending.
    #[inline]
    pub async fn be_fair(&self) {
        std::future::poll_fn(|cx| self.spend(cx)).await;
    }

    /// Lets the other connections run first.
    pub async fn yield_now(&self) {
        // A task that yields has much to do. The answers that it has queued need not wait for the rest.
        self.flush_answers();
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.poll_again(cx);
            Poll::Pending
        })
        .await
    }

    /// Waits for `d`.
    pub async fn sleep(&self, d: Duration) {
        // A turn may have taken long until here, so the time of its beginning would make the wait too short.
        let deadline = Instant::now() + d;
        std::future::poll_fn(|_| self.poll_deadline(deadline)).await;
    }

    /// As [`Poller::until`], at an instant.
    pub async fn deadline<T>(&self, deadline: Instant, f: impl Future<Output = T>) -> Option<T> {
        self.until(self.deadline_at(deadline), f).await
    }

    /// Runs `f` until `deadline`. `None`: it was not ready by then.
    pub async fn until<T>(&self, deadline: Deadline, f: impl Future<Output = T>) -> Option<T> {
        let mut f = std::pin::pin!(f);
        std::future::poll_fn(|cx| match f.as_mut().poll(cx) {
            Poll::Ready(v) => Poll::Ready(Some(v)),
            Poll::Pending => self.poll_until(deadline).map(|()| None),
        })
        .await
    }

    /// Notes that a task of this number exists and has no timer.
    pub(super) fn add_task(&self, id: u32) {
        let mut timers = self.task_timers.borrow_mut();
        let at = id as usize;
        if timers.len() <= at {
            timers.resize(at + 1, Deadline::NEVER);
        }
        timers[at] = Deadline::NEVER;
        let mut places = self.places.borrow_mut();
        if places.len() <= at {
            places.resize(at + 1, 0);
        }
        places[at] = 0;
    }

    /// Records an event, wakes the task that waits for it, and returns what else has to be done.
    pub(super) fn on_event(&self, token: Token, flags: epoll::EventFlags) -> Due {
        use epoll::EventFlags as F;
        // This comes before the lookup, as the wake list has no slot. Notices have none either and end at the
        // lookup; `begin_turn` has handled them.
        if token == WAKE {
            self.wakes.clear_event();
            return Due::Nothing;
        }
        // An error wakes readers and writers, since only their next call returns it.
        let failed = flags.intersects(F::ERR | F::HUP);
        let read = failed || flags.intersects(F::IN | F::RDHUP);
        let waiters = {
            let Some(mut s) = self.slot_mut(token) else { return Due::Nothing };
            s.readable |= read;
            // The flag stays set while the connection lives, since an edge-triggered end is reported once.
            s.ended |= flags.intersects(F::ERR | F::HUP | F::RDHUP);
            // Bytes of an earlier answer leave before a task may write others.
            let write = (failed || flags.contains(F::OUT)) && batch::send_unsent(&mut s);
            s.writable |= write;
            match s.role {
                Role::Listener(n) => return Due::Accept(n),
                Role::Idle(front) if read => {
                    self.take_idle(&mut s);
                    return Due::Serve(front);
                }
                Role::SetAside(owner) if read => return Due::Close(owner),
                Role::Direct(direct) => return Due::Step(direct),
                Role::Idle(_) | Role::SetAside(_) => return Due::Nothing,
                Role::Busy => [
                    if read { s.read_waker.take() } else { None },
                    if write { s.write_waker.take() } else { None },
                ],
            }
        };
        // The borrow of the slots has ended here, since a waker may call the poller.
        for waiter in waiters.into_iter().flatten() {
            self.wake(&waiter);
        }
        Due::Nothing
    }

    /// Moves the tasks that were woken to `ids`.
    pub(super) fn take_woken(&self, ids: &mut Vec<u32>) {
        self.wakes.take(ids);
        ids.append(&mut self.ready.borrow_mut());
        // Only neighbours are compared, as reading and writing of one slot make most duplicates, and a poll
        // too many is harmless.
        ids.dedup();
    }

    /// Takes the next timer that is due.
    pub(super) fn next_due(&self) -> Option<Target> {
        let target = self.timers.borrow_mut().pop_due(self.now_as_deadline.get())?;
        if let Target::Task(id) = target
            && let Some(timer) = self.task_timers.borrow_mut().get_mut(id as usize)
        {
            // The entry is cleared before the poll that follows, which may set the next timer of the task.
            *timer = Deadline::NEVER;
        }
        Some(target)
    }

    /// Judges a slot whose timer has fired.
    pub(super) fn on_slot_timer(&self, token: Token) -> Due {
        let now = self.now_as_deadline.get();
        let again = {
            let Some(mut s) = self.slot_mut(token) else { return Due::Nothing };
            // The heap may hold older timers of this slot, too; only the one noted here counts.
            if s.armed <= now {
                s.armed = Deadline::NEVER;
            }
            match s.role {
                Role::SetAside(owner) if s.deadline <= now => return Due::Close(owner),
                Role::Idle(front) if s.deadline <= now => {
                    self.take_idle(&mut s);
                    // Events of a turn come before its timers, but a request may have arrived since the turn began. The end of the
                    // connection would cost the client its answer.
                    s.readable |= s.has_input();
                    return if s.readable { Due::Serve(front) } else { Due::Expired(front) };
                }
                Role::Direct(direct) if s.deadline <= now => return Due::Step(direct),
                Role::Idle(_) | Role::SetAside(_) | Role::Direct(_) if s.armed == Deadline::NEVER => {
                    s.armed = s.deadline;
                    s.deadline
                }
                _ => return Due::Nothing,
            }
        };
        // Without a sweep: one timer has just left the heap for this one.
        self.timers.borrow_mut().add(again, Target::Slot(token));
        Due::Nothing
    }

    /// Returns the time to the earlier of `due` and the next timer; `None` if there is neither. Unless nothing happens
    /// (`idle`), a time that is far away is not computed exactly, which saves a look at the clock: another event ends the wait
    /// first, or the loop looks again half-way.
    pub(super) fn patience(&self, due: Option<Instant>, idle: bool) -> Option<Duration> {
        const FAR: Duration = Duration::from_secs(2);
        let timer = self.timers.borrow().next().map(|t| self.instant(t));
        let next = [timer, due].into_iter().flatten().min()?;
        if !idle && self.now.get() + FAR < next {
            return Some(FAR / 2);
        }
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Waits for events, at most `timeout`.
    pub(super) fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
    ) -> std::io::Result<()> {
        // `ready` belongs to this thread; the flags of the wake list do not cover it.
        let left = !self.ready.borrow().is_empty() || !self.unfinished.borrow().is_empty();
        let woken = self.wakes.begin_sleep() || left;
        let timeout = if woken { Some(Duration::ZERO) } else { timeout };
        let spec = timeout.map(|t| rustix::time::Timespec {
            tv_sec: t.as_secs() as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let got = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), spec.as_ref());
        self.wakes.end_sleep();
        match got {
            // After a signal the loop takes a turn, in which it sees what the signal has asked for.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Has the epoll set report `want` for a slot, edge-triggered, if it does not already.
    #[inline]
    pub(super) fn watch(&self, s: &mut Slot, token: Token, want: Watched) {
        // Never reduced: edge-triggered, room is reported only when it appears, and a change is a system call.
        if s.watched < want {
            self.register(s, token, want);
        }
    }

    fn register(&self, s: &mut Slot, token: Token, want: Watched) {
        use epoll::EventFlags as F;
        let Some(fd) = s.fd.as_ref() else { return };
        let mut flags = F::IN | F::RDHUP | F::ET;
        if want == Watched::Both {
            flags |= F::OUT;
        }
        let data = epoll::EventData::new_u64(token.pack());
        // Both calls report at once what is ready already, so an edge from before the registration is not lost.
        let done = match s.watched {
            Watched::Not => epoll::add(&self.epoll, fd.as_fd(), data, flags),
            _ => epoll::modify(&self.epoll, fd.as_fd(), data, flags),
        };
        // Out of memory or of watches: the deadline of the waiting task ends the connection.
        if done.is_ok() {
            s.watched = want;
        }
    }
}

/// Returns the slot of a token among `slots`; `None` once its descriptor has been removed.
#[inline]
pub(super) fn slot_of(slots: &mut [Slot], token: Token) -> Option<&mut Slot> {
    slots.get_mut(token.index as usize).filter(|s| s.age == token.age)
}
