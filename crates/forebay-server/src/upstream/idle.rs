//! Idle connections of a group: a list for each thread, behind a lock that only the thread itself takes as a rule.
//! One that finds nothing in its own list looks at the lengths of the others' and takes a connection from there
//! rather than opening one: a small backend sees as many connections as are used at a time, however many
//! threads there are. Hot path.
//!
//! Whoever takes an entry out of its list, under the lock, owns the connection. The slot of the thread that
//! had put it there holds no descriptor meanwhile; where another thread has taken the entry, the slot is given back
//! when its thread next looks into the list, or when an event or the deadline finds nothing there. Nobody is woken.

use forebay_http::h2::link::Link;
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
pub struct Idle {
    /// Its socket.
    pub fd: OwnedFd,
    /// Its encryption, if there is any.
    pub tls: Option<Box<Stream>>,
    /// Its writes do not wait for acknowledgements.
    pub prompt: bool,
    /// HTTP/2 on it, if that is spoken.
    pub link: Option<Box<Link>>,
    /// What it was made for; 0 = plain.
    pub made_for: u64,
    /// Its slot in the thread whose list it is in.
    pub token: Token,
    /// [`super::peer::Live::id`] of the server.
    pub peer: u64,
    /// Location that it belongs to.
    pub location: usize,
    /// Requests it has served.
    pub requests: u64,
    /// When it was opened.
    pub opened: Instant,
    /// When it is closed.
    pub deadline: Instant,
}

impl Idle {
    /// Whether it is silent and open, as it must be between requests.
    fn is_sound(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(&self.fd, &mut byte[..], flags), Err(Errno::AGAIN))
    }
}

/// What one thread has.
#[derive(Debug, Default)]
#[repr(align(128))]
struct List {
    /// Length of `entries`, for others to look at; written by whoever holds the lock.
    len: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Latest last.
    entries: VecDeque<Idle>,
    /// Slots of connections that others have taken.
    taken: Vec<Token>,
    /// The epoll set of the thread.
    epoll: Option<Arc<OwnedFd>>,
}

/// The idle connections of a group.
#[derive(Debug, Default)]
pub struct Lists(OnceLock<Box<[List]>>);

/// What an owner is to do once the lock is free.
#[derive(Debug, Default)]
pub struct Leavings {
    /// The oldest connection, for which there was no room.
    pub oldest: Option<Idle>,
    /// Slots of connections that others have taken.
    pub taken: Vec<Token>,
}

impl List {
    /// Notes how many there are.
    fn noted(&self, inner: &Inner) {
        self.len.store(inner.entries.len(), Ordering::Release);
    }
}

impl Lists {
    fn list(&self, me: usize) -> Option<&List> {
        self.0.get()?.get(me)
    }

    /// Connections of all threads.
    pub fn count(&self) -> usize {
        self.0.get().map_or(0, |all| all.iter().map(|l| l.len.load(Ordering::Relaxed)).sum())
    }

    /// Puts a connection into the list of thread `me` of `threads`; the list then has at most `most`, which is not 0.
    pub fn put(
        &self,
        (me, threads): (usize, usize),
        idle: Idle,
        most: usize,
        epoll: &Arc<OwnedFd>,
    ) -> Leavings {
        let all = self.0.get_or_init(|| (0..threads.max(1)).map(|_| List::default()).collect());
        let Some(list) = all.get(me) else { return Leavings { oldest: Some(idle), taken: Vec::new() } };
        let mut inner = lock(&list.inner);
        let oldest = if inner.entries.len() >= most { inner.entries.pop_front() } else { None };
        if inner.epoll.is_none() {
            inner.epoll = Some(epoll.clone());
        }
        inner.entries.push_back(idle);
        list.noted(&inner);
        Leavings { oldest, taken: std::mem::take(&mut inner.taken) }
    }

    /// The latest connection of thread `me` that fits.
    pub fn take(&self, me: usize, fits: impl Fn(&Idle) -> bool) -> (Option<Idle>, Vec<Token>) {
        let Some(list) = self.list(me) else { return (None, Vec::new()) };
        let mut inner = lock(&list.inner);
        // Mostly it is the very last, and nothing has to move up.
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

    /// A connection that fits from another thread's list, sound and no longer in that thread's epoll set. Lists
    /// that somebody is looking into are passed over.
    pub fn steal(&self, me: usize, now: Instant, fits: impl Fn(&Idle) -> bool) -> Option<Idle> {
        let all = self.0.get()?;
        let others = (1..all.len()).filter_map(|n| all.get((me + n) % all.len()));
        for list in others {
            while list.len.load(Ordering::Acquire) > 0 {
                let (idle, epoll) = {
                    let mut inner = match list.inner.try_lock() {
                        Ok(inner) => inner,
                        Err(TryLockError::Poisoned(p)) => p.into_inner(),
                        Err(TryLockError::WouldBlock) => break,
                    };
                    // The oldest, since its owner takes the latest.
                    let at = inner.entries.iter().position(|i| i.deadline > now && fits(i));
                    let Some(idle) = at.and_then(|at| inner.entries.remove(at)) else { break };
                    inner.taken.push(idle.token);
                    list.noted(&inner);
                    (idle, inner.epoll.clone())
                };
                // An event that the owner has already, or gets until then, finds no entry.
                let alone = epoll.is_none_or(|e| epoll::delete(&e, &idle.fd).is_ok());
                if alone && idle.is_sound() {
                    return Some(idle);
                }
            }
        }
        None
    }

    /// Takes a connection of thread `me` out, which was heard of or is over; `None`: another thread has it.
    pub fn withdraw(&self, me: usize, token: Token) -> Option<Idle> {
        let list = self.list(me)?;
        let mut inner = lock(&list.inner);
        let at = inner.entries.iter().position(|i| i.token == token)?;
        let idle = inner.entries.remove(at);
        list.noted(&inner);
        idle
    }

    /// Takes everything out of the list of thread `me`.
    pub fn clear(&self, me: usize) -> (VecDeque<Idle>, Vec<Token>) {
        let Some(list) = self.list(me) else { return Default::default() };
        let mut inner = lock(&list.inner);
        let entries = std::mem::take(&mut inner.entries);
        list.noted(&inner);
        (entries, std::mem::take(&mut inner.taken))
    }
}

#[cfg(test)]
mod tests;
