//! Groups as one thread sees them: their servers, its counters, and whether it still keeps connections for them. Hot path.

use super::group::{Group, PeerSet};
use super::peer::Shard;
use forebay_net::io::Io;
use forebay_net::reactor::Token;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// A thread, and whether requests to come use the configuration.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// Number of the thread.
    pub(super) thread: usize,
    /// Number of threads.
    pub(super) threads: usize,
    /// Connections are kept. Those of a former configuration are not, since no later request asks for them.
    pub(super) current: Cell<bool>,
}

/// A group's servers at one time, as one thread sees them.
#[derive(Debug)]
pub struct LocalSet {
    /// The group.
    pub group: Arc<Group>,
    /// Its servers.
    pub set: Arc<PeerSet>,
    /// Counters of this thread, for each server.
    pub shards: Vec<Arc<Shard>>,
    version: u64,
    pub(super) owner: Rc<Owner>,
}

/// Groups of one configuration, as one thread sees them.
#[derive(Debug, Default)]
pub struct LocalGroups {
    /// The latest servers of each group that the thread has used, by the group's number.
    latest: RefCell<Vec<Option<Rc<LocalSet>>>>,
    owner: Rc<Owner>,
}

impl LocalGroups {
    /// Creates the state of thread number `thread` of `threads`. The default keeps no connections.
    pub fn new(thread: usize, threads: usize) -> LocalGroups {
        let owner = Rc::new(Owner { thread, threads, current: Cell::new(true) });
        LocalGroups { owner, ..LocalGroups::default() }
    }

    /// Returns the servers of a group as they are now.
    pub fn local(&self, group: &Arc<Group>) -> Rc<LocalSet> {
        // Read before the set: if both change in between, the number is too low and the next call looks again.
        let version = group.version();
        let mut all = self.latest.borrow_mut();
        let n = group.number as usize;
        if all.len() <= n {
            all.resize_with(n + 1, || None);
        }
        match all.get(n) {
            Some(Some(l)) if l.version == version && Arc::ptr_eq(&l.group, group) => l.clone(),
            _ => {
                let l = Rc::new(self.look(group.clone(), version));
                if let Some(place) = all.get_mut(n) {
                    *place = Some(l.clone());
                }
                l
            }
        }
    }

    fn look(&self, group: Arc<Group>, version: u64) -> LocalSet {
        let set = group.set();
        let shards = set.peers.iter().map(|p| p.live.shard()).collect();
        LocalSet { group, set, shards, version, owner: self.owner.clone() }
    }

    /// Closes an idle connection that became readable or whose time is over; `number`: of its group. If another thread has
    /// taken the connection meanwhile, only its slot here becomes free.
    pub fn set_aside_ended(&self, token: Token, number: u32) {
        if let Some(Some(l)) = self.latest.borrow().get(number as usize) {
            drop(l.group.idle.withdraw(self.owner.thread, token));
        }
    }

    /// Closes the oldest idle connections of this thread, one of each group, because descriptors run short. Returns `true` if there
    /// was one.
    pub fn shed(&self, io: &Io) -> bool {
        let mut any = false;
        for l in self.latest.borrow().iter().flatten() {
            let (oldest, taken) = l.group.idle.take_oldest(self.owner.thread);
            any |= oldest.is_some();
            for token in oldest.map(|i| i.token).into_iter().chain(taken) {
                io.poller.remove(token);
            }
        }
        any
    }

    /// Closes this thread's idle connections, and keeps no more.
    pub fn close(&self, io: &Io) {
        self.owner.current.set(false);
        for l in self.latest.borrow().iter().flatten() {
            let (entries, taken) = l.group.idle.clear(self.owner.thread);
            for token in entries.into_iter().map(|i| i.token).chain(taken) {
                io.poller.remove(token);
            }
        }
    }
}
