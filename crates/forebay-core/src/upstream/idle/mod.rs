//! Idle connections of a group: a list for each thread, behind a lock that usually only the thread itself takes.
//! A thread that finds nothing in its own list looks at the lengths of the others' lists and takes a connection from there
//! instead of opening one. A small backend sees as many connections as are used at a time, however many threads there are.
//! Hot path.
//!
//! The thread that takes an entry out of its list, under the lock, owns the connection. The slot of the thread that put it
//! there holds no descriptor meanwhile. If another thread has taken the entry, the slot becomes free when its thread next
//! looks into the list, or when an event or the deadline finds nothing there. No thread is woken for it.

use forebay_net::reactor::Token;
use forebay_net::tls::stream::Stream;
use forebay_sys::sync::lock;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Instant;

/// An idle connection.
#[derive(Debug)]
pub(super) struct IdleConn {
    /// Its socket.
    pub fd: OwnedFd,
    /// Its encryption, if there is any.
    pub tls: Option<Box<Stream>>,
    /// Its writes do not wait for acknowledgements (TCP_NODELAY).
    pub prompt: bool,
    /// Tells connections apart that cannot serve the same requests; 0 = plain.
    pub made_for: u64,
    /// Its slot in the thread whose list it is in.
    pub token: Token,
    /// [`super::peer::Live::id`] of the server.
    pub peer: u64,
    /// Number of the location that opened it.
    pub opener: usize,
    /// Requests it has served.
    pub requests: u64,
    /// Time at which it was opened.
    pub opened: Instant,
    /// Time at which it is closed.
    pub deadline: Instant,
}

impl IdleConn {
    /// Returns `true` if it is open and nothing has come on it, as it must be between requests.
    fn is_sound(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // 0 is the end, bytes are an answer to no request: both make the connection useless.
        matches!(rustix::net::recv(&self.fd, &mut byte[..], flags), Err(Errno::AGAIN))
    }
}

/// Connections of one thread.
#[derive(Debug, Default)]
// Processors fetch pairs of cache lines: the list of another thread must not share one.
#[repr(align(128))]
struct List {
    /// Length of `entries`, for other threads to look at. Written under the lock.
    len: AtomicUsize,
    inner: Mutex<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    /// Connections, the latest last.
    entries: VecDeque<IdleConn>,
    /// Slots of connections that other threads have taken.
    taken: Vec<Token>,
    /// The epoll set of the thread.
    epoll: Option<Arc<OwnedFd>>,
}

/// The idle connections of a group.
#[derive(Debug, Default)]
pub struct Lists(OnceLock<Box<[List]>>);

/// Slots that their thread has to free once the lock is free.
#[derive(Debug, Default)]
pub(super) struct Leavings {
    /// The oldest connection, if there was no room for it.
    pub oldest: Option<IdleConn>,
    /// Slots of connections that others have taken.
    pub taken: Vec<Token>,
}

impl List {
    /// Updates the length that other threads see.
    fn noted(&self, inner: &Contents) {
        self.len.store(inner.entries.len(), Ordering::Release);
    }
}

/// A thread among all that use a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Number of the thread.
    pub thread: usize,
    /// Number of threads.
    pub threads: usize,
}

impl Lists {
    fn list(&self, me: usize) -> Option<&List> {
        self.0.get()?.get(me)
    }

    /// Returns the number of connections of all threads.
    pub fn count(&self) -> usize {
        self.0.get().map_or(0, |all| all.iter().map(|l| l.len.load(Ordering::Relaxed)).sum())
    }

    /// Returns `true` if the list of thread `me` has at least `count` connections.
    pub(super) fn has(&self, me: usize, count: usize) -> bool {
        self.list(me).is_some_and(|list| list.len.load(Ordering::Relaxed) >= count)
    }

    /// Puts a connection into the list of a thread, which then has at most `most`, which is not 0.
    pub(super) fn put(&self, place: Place, idle: IdleConn, most: usize, epoll: &Arc<OwnedFd>) -> Leavings {
        let all = self.0.get_or_init(|| (0..place.threads.max(1)).map(|_| List::default()).collect());
        let Some(list) = all.get(place.thread) else {
            return Leavings { oldest: Some(idle), taken: Vec::new() };
        };
        let mut inner = lock(&list.inner);
        // Only taken out here: closing needs the poller and must not hold up other threads at the lock.
        let oldest = if inner.entries.len() >= most { inner.entries.pop_front() } else { None };
        if inner.epoll.is_none() {
            inner.epoll = Some(epoll.clone());
        }
        inner.entries.push_back(idle);
        list.noted(&inner);
        Leavings { oldest, taken: std::mem::take(&mut inner.taken) }
    }

    /// Takes the latest connection of thread `me` that fits. Also returns slots for the thread to free.
    pub(super) fn take(&self, me: usize, fits: impl Fn(&IdleConn) -> bool) -> (Option<IdleConn>, Vec<Token>) {
        let Some(list) = self.list(me) else { return (None, Vec::new()) };
        let mut inner = lock(&list.inner);
        // Usually the very last one fits, and no entry has to move up.
        let idle = match inner.entries.pop_back_if(|last| fits(last)) {
            None => {
                let at = inner.entries.iter().rposition(fits);
                at.and_then(|at| inner.entries.remove(at))
            }
            last => last,
        };
        list.noted(&inner);
        (idle, std::mem::take(&mut inner.taken))
    }

    /// Takes a connection that fits from another thread's list, sound and no longer in that thread's epoll set. Skips
    /// lists that are locked.
    pub(super) fn steal(
        &self,
        me: usize,
        now: Instant,
        fits: impl Fn(&IdleConn) -> bool,
    ) -> Option<IdleConn> {
        let all = self.0.get()?;
        // Each thread begins behind itself, so that not all of them take from the first list.
        let others = (1..all.len()).filter_map(|n| all.get((me + n) % all.len()));
        for list in others {
            // Without the lock: an empty list costs one load. The length may be old; the entries are looked at again
            // below.
            while list.len.load(Ordering::Acquire) > 0 {
                let (idle, epoll) = {
                    let mut inner = match list.inner.try_lock() {
                        Ok(inner) => inner,
                        Err(TryLockError::Poisoned(p)) => p.into_inner(),
                        // A thread of connections never waits for another one; a new connection is cheaper.
                        Err(TryLockError::WouldBlock) => break,
                    };
                    // The oldest, since its owner takes the latest.
                    let at = inner.entries.iter().position(|i| i.deadline > now && fits(i));
                    let Some(idle) = at.and_then(|at| inner.entries.remove(at)) else { break };
                    inner.taken.push(idle.token);
                    list.noted(&inner);
                    (idle, inner.epoll.clone())
                };
                // The owner may already have an event for it, or get one until then; it will find no entry.
                let alone = epoll.is_none_or(|e| epoll::delete(&e, &idle.fd).is_ok());
                if alone && idle.is_sound() {
                    return Some(idle);
                }
            }
        }
        None
    }

    /// Takes out a connection of thread `me` that became readable or whose time is over. Returns `None` if another thread
    /// has it.
    pub(super) fn withdraw(&self, me: usize, token: Token) -> Option<IdleConn> {
        let list = self.list(me)?;
        let mut inner = lock(&list.inner);
        let at = inner.entries.iter().position(|i| i.token == token)?;
        let idle = inner.entries.remove(at);
        list.noted(&inner);
        idle
    }

    /// Takes the oldest connection of thread `me`. Also returns slots for the thread to free.
    pub(super) fn take_oldest(&self, me: usize) -> (Option<IdleConn>, Vec<Token>) {
        let Some(list) = self.list(me) else { return Default::default() };
        let mut inner = lock(&list.inner);
        let oldest = inner.entries.pop_front();
        list.noted(&inner);
        (oldest, std::mem::take(&mut inner.taken))
    }

    /// Takes everything out of the list of thread `me`.
    pub(super) fn clear(&self, me: usize) -> (VecDeque<IdleConn>, Vec<Token>) {
        let Some(list) = self.list(me) else { return Default::default() };
        let mut inner = lock(&list.inner);
        let entries = std::mem::take(&mut inner.entries);
        list.noted(&inner);
        (entries, std::mem::take(&mut inner.taken))
    }
}

#[cfg(test)]
mod tests;
