//! Requests that wait for a server (nginx Plus: queue).

use super::Group;
use forebay_sys::sync::lock;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// `queue NUMBER [timeout=TIME]`.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Most requests that wait at a time.
    pub length: usize,
    /// How long one waits.
    pub timeout: Duration,
}

/// Requests that wait, in order.
#[derive(Debug, Default)]
pub struct Waiting {
    count: AtomicUsize,
    wakers: Mutex<VecDeque<(usize, Waker)>>,
    serial: AtomicUsize,
}

/// A place in the queue; given up when dropped.
pub struct Ticket {
    group: Arc<crate::config::http::Http>,
    number: usize,
    id: usize,
}

/// How often a request in the queue looks by itself: nobody tells when `fail_timeout` is over.
pub const LOOK: Duration = Duration::from_millis(100);

impl Group {
    /// Wakes the request that has waited longest.
    pub fn wake_one(&self) {
        if self.waiting.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let next = lock(&self.waiting.wakers).pop_front();
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

impl Ticket {
    /// Takes a place in the queue of a group; `None`: it has none, or it is full.
    pub fn take(config: &Arc<crate::config::http::Http>, number: usize) -> Option<(Ticket, Duration)> {
        let group = config.upstreams.get(number)?;
        let queue = group.queue?;
        let w = &group.waiting;
        let more = |n: usize| (n < queue.length).then_some(n + 1);
        w.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let id = w.serial.fetch_add(1, Ordering::Relaxed);
        Some((Ticket { group: config.clone(), number, id }, queue.timeout))
    }

    fn waiting(&self) -> Option<&Waiting> {
        self.group.upstreams.get(self.number).map(|g| &g.waiting)
    }

    /// Ready when a server may have become free.
    pub fn turn(&self) -> Turn<'_> {
        Turn { ticket: self, listed: false }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(w) = self.waiting() {
            w.count.fetch_sub(1, Ordering::Relaxed);
            lock(&w.wakers).retain(|(id, _)| *id != self.id);
        }
    }
}

/// See [`Ticket::turn`].
pub struct Turn<'t> {
    ticket: &'t Ticket,
    listed: bool,
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(w) = self.ticket.waiting() else { return Poll::Ready(()) };
        let id = self.ticket.id;
        let mut wakers = lock(&w.wakers);
        let listed = wakers.iter().any(|(i, _)| *i == id);
        if self.listed && !listed {
            return Poll::Ready(());
        }
        if !listed {
            // By age: who has waited longest is the first again.
            let at = wakers.partition_point(|(i, _)| *i < id);
            wakers.insert(at, (id, cx.waker().clone()));
        }
        drop(wakers);
        self.listed = true;
        Poll::Pending
    }
}
