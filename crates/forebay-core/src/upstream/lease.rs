//! A request's place at a server: chosen, counted, and given back when dropped. Hot path.

use super::balance::Picker;
use super::conn::Conn;
use super::idle::Idle;
use super::local::LocalSet;
use super::peer::{Figures, Peer};
use forebay_net::io::Io;
use std::rc::Rc;
use std::time::Instant;

/// A connection with its place in a group.
#[derive(Debug)]
pub struct Lease {
    /// The connection, once there is one.
    pub conn: Option<Conn>,
    /// `None` if the server belongs to no group.
    seat: Option<Seat>,
}

/// A request's place among those of a peer.
#[derive(Debug)]
struct Seat {
    local: Rc<LocalSet>,
    peer: usize,
    begun: Instant,
    /// Number of the location that the request is for.
    opener: usize,
}

impl Lease {
    /// Takes the place at a peer that [`Picker::choose`] has returned at time `begun`. `opener`: number of the location, or
    /// what else `keepalive ... local` keeps connections apart by.
    pub fn new(picker: &Picker, peer: usize, begun: Instant, opener: usize) -> Lease {
        Lease { conn: None, seat: Some(Seat { local: picker.local.clone(), peer, begun, opener }) }
    }

    /// Creates a lease of a server that belongs to no group.
    pub fn direct() -> Lease {
        Lease { conn: None, seat: None }
    }

    /// Returns an idle connection to the peer that was made for the same (see [`Conn::made_for`]).
    pub fn take_idle(&self, io: &Rc<Io>, made_for: u64) -> Option<Conn> {
        self.seat.as_ref()?.take_idle(io, made_for)
    }

    /// Returns the peer.
    pub fn peer(&self) -> Option<&Peer> {
        self.seat.as_ref()?.peer()
    }

    /// Leaves the connection to other requests, or closes it.
    pub fn keep(&mut self) {
        let conn = self.conn.take();
        let Some(seat) = &self.seat else { return };
        if let (Some(conn), Some(peer)) = (conn, seat.peer()) {
            conn.keep(&seat.local, peer.live.id, seat.opener);
        }
    }

    /// Counts an attempt that was successful so far.
    pub fn succeeded(&self) {
        if let Some(seat) = &self.seat {
            seat.local.succeed(seat.peer, seat.begun);
        }
    }

    /// Counts the figures of an attempt that has ended.
    pub fn count(&self, f: &Figures, now: Instant) {
        let Some(seat) = &self.seat else { return };
        if let Some(shard) = seat.local.shards.get(seat.peer) {
            shard.count(f);
        }
        seat.local.measure(seat.peer, f, now);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(seat) = &self.seat {
            seat.local.end(seat.peer, seat.begun);
        }
    }
}

impl Seat {
    fn peer(&self) -> Option<&Peer> {
        self.local.set.peers.get(self.peer)
    }

    fn take_idle(&self, io: &Rc<Io>, made_for: u64) -> Option<Conn> {
        let peer = self.peer()?.live.id;
        let (group, me) = (&self.local.group, self.local.owner.thread);
        let fits = |i: &Idle| {
            i.peer == peer && i.made_for == made_for && (!group.keepalive.local || i.opener == self.opener)
        };
        let (idle, taken) = group.idle.take(me, fits);
        for t in taken {
            io.poller.remove(t);
        }
        if let Some(c) = idle.and_then(|idle| Conn::reuse(io, idle)) {
            return Some(c);
        }
        group.idle.steal(me, io.poller.now(), fits).and_then(|idle| Conn::adopt(io, idle))
    }
}
