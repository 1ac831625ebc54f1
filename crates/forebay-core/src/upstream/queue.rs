//! Requests that wait until a server is free (nginx Plus: queue).

use super::balance::Picker;
use super::group::Group;
use super::local::{LocalGroups, LocalSet};
use forebay_net::io::Io;
use forebay_net::wire::Watch;
use forebay_sys::sync::lock;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// `queue NUMBER [timeout=TIME]`.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Most requests that wait at a time.
    pub length: usize,
    /// Longest time that a request waits.
    pub timeout: Duration,
}

/// Requests that wait, in order.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    count: AtomicUsize,
    wakers: Mutex<VecDeque<(usize, Waker)>>,
    serial: AtomicUsize,
}

/// The client is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Longest time after which a request in the queue tries again by itself. No event says that a `fail_timeout` is over.
const LOOK: Duration = Duration::from_millis(100);

/// Queue of a group while its names are resolved for the first time: the addresses that a process has found are gone with it.
const RESOLVING: Queue = Queue { length: 4096, timeout: Duration::from_secs(2) };

impl Group {
    /// Returns the rules by which requests wait now.
    fn queue_now(&self) -> Option<Queue> {
        self.queue.or_else(|| self.is_unanswered().then_some(RESOLVING))
    }

    /// Wakes all requests that wait.
    pub(super) fn wake_all(&self) {
        let all = std::mem::take(&mut *lock(&self.waiting.wakers));
        all.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Wakes the request that has waited longest.
    pub(super) fn wake_one(&self) {
        // Called at the end of each request: a group in which no request waits takes no lock.
        if self.waiting.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        // A statement of its own: the lock is free again when the waker runs.
        let next = lock(&self.waiting.wakers).pop_front();
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

impl Picker {
    /// Waits in the queue of the group until a server is free, and chooses it. Returns `None` if there is no queue, it is
    /// full, or its time is over. Without `queue`, there is one while names are resolved for the first time.
    ///
    /// # Errors
    /// If the client is gone, which `watch` watches.
    pub async fn wait(
        &mut self,
        groups: &LocalGroups,
        io: &Io,
        watch: &mut Watch,
    ) -> Result<Option<usize>, Gone> {
        // The addresses may have come after the choice that failed.
        let Some((ticket, timeout)) = Ticket::take(&self.local) else {
            return Ok(self.choose_of_others(groups, io));
        };
        let end = Instant::now() + timeout;
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(None);
            }
            // A server that became free after the failed choice, before this request was in the list, has woken no
            // one: LOOK covers that, too.
            ticket.wait(io, end.min(now + LOOK), watch).await?;
            // Looked at before the choice: otherwise addresses that come in between would be overlooked.
            let over = self.local.group.queue_now().is_none();
            // The servers may have changed meanwhile.
            self.local = groups.local(&self.local.group);
            if let Some(chosen) = self.choose(io.poller.now()) {
                return Ok(Some(chosen));
            }
            if over {
                return Ok(None);
            }
        }
    }

    /// Chooses a server if they have changed since the last choice.
    fn choose_of_others(&mut self, groups: &LocalGroups, io: &Io) -> Option<usize> {
        let now = groups.local(&self.local.group);
        let same = Rc::ptr_eq(&std::mem::replace(&mut self.local, now), &self.local);
        if same { None } else { self.choose(io.poller.now()) }
    }
}

/// A place in the queue; free when dropped.
struct Ticket {
    local: Rc<LocalSet>,
    id: usize,
}

impl Ticket {
    /// Takes a place in the queue of a group. Returns `None` if there is no queue or no place in it.
    fn take(local: &Rc<LocalSet>) -> Option<(Ticket, Duration)> {
        let queue = local.group.queue_now()?;
        let w = &local.group.waiting;
        let more = |n: usize| (n < queue.length).then_some(n + 1);
        // Checked and counted in one step: two threads must not share the last place.
        w.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let id = w.serial.fetch_add(1, Ordering::Relaxed);
        Some((Ticket { local: local.clone(), id }, queue.timeout))
    }

    /// Waits until a server may have become free, or until `look`.
    async fn wait(&self, io: &Io, look: Instant, watch: &mut Watch) -> Result<(), Gone> {
        let mut turn = std::pin::pin!(Turn { ticket: self, listed: false });
        std::future::poll_fn(|cx| {
            if turn.as_mut().poll(cx).is_ready() || io.poller.poll_deadline(look).is_ready() {
                return Poll::Ready(Ok(()));
            }
            watch.poll_gone(&io.poller, cx).map(|()| Err(Gone))
        })
        .await
    }

    fn waiting(&self) -> &Waiters {
        &self.local.group.waiting
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let w = self.waiting();
        w.count.fetch_sub(1, Ordering::Relaxed);
        lock(&w.wakers).retain(|(id, _)| *id != self.id);
    }
}

/// Future that is ready when it is this request's turn.
struct Turn<'t> {
    ticket: &'t Ticket,
    /// Its waker is in the list.
    listed: bool,
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let id = self.ticket.id;
        let mut wakers = lock(&self.ticket.waiting().wakers);
        let listed = wakers.iter().any(|(i, _)| *i == id);
        // The waker is gone from the list: `wake_one` has taken it.
        if self.listed && !listed {
            return Poll::Ready(());
        }
        if !listed {
            // In order of age: a request that was woken in vain becomes the first again.
            let at = wakers.partition_point(|(i, _)| *i < id);
            wakers.insert(at, (id, cx.waker().clone()));
        }
        drop(wakers);
        self.listed = true;
        Poll::Pending
    }
}
