//! Leases: a request that is counted at a server from its choice until the lease is dropped. Hot path.

use super::balance::{Picker, Timed};
use super::conn::{Conn, Use};
use super::group::{Group, PeerSet};
use super::idle::IdleConn;
use super::local::LocalSet;
use super::peer::{Figures, Health, Peer};
use crate::config::value::{Setting, first, once};
use crate::config::{Context, Scope};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_net::io::Io;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Server of a request with the connection to it. While it exists, its peer counts the request as active.
#[derive(Debug)]
pub struct Lease {
    /// The connection, once there is one.
    pub conn: Option<Conn>,
    /// Place at the peer; `None` if the server belongs to no group.
    seat: Option<Seat>,
    drop: DropRule,
}

/// Rule by which connections to a server end that is removed from its group (Angie: proxy_connection_drop; NGINX Plus:
/// proxy_session_drop).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropRule {
    /// Time that they have after the removal; `None`: they end by themselves.
    pub after: Option<Duration>,
    /// They also end when the server becomes unhealthy.
    pub if_unhealthy: bool,
}

impl DropRule {
    fn ends(self, peer: &Peer) -> bool {
        let removed =
            peer.live.removed.get().zip(self.after).is_some_and(|(at, after)| at.elapsed() >= after);
        removed || (self.if_unhealthy && peer.live.health() == Health::Unhealthy)
    }
}

/// `time | on | off`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionDrop(pub Option<Duration>);

impl<C: Context> Setting<C> for ConnectionDrop {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match first(d) {
            b"on" => Ok(ConnectionDrop(Some(Duration::ZERO))),
            b"off" => Ok(ConnectionDrop(None)),
            time => match units::duration_ms(time) {
                Some(time) => Ok(ConnectionDrop(Some(time))),
                None => Err(cx.directive_error(d, "invalid value")),
            },
        }
    }
}

/// Request that a peer counts as active.
#[derive(Debug)]
struct Seat {
    local: Rc<LocalSet>,
    /// Index of the peer in the set.
    peer: usize,
    /// Time at which the peer was chosen.
    begun: Instant,
    /// Time for which the request counts as waiting, until it has come.
    awaited: Cell<Option<Timed>>,
    /// Number of the location or server whose connections the request may use, with `keepalive ... local`.
    opener: usize,
}

impl Lease {
    /// Creates the lease of a peer that [`Picker::choose`] has returned at time `begun`, and has counted. `opener`: number of the
    /// location or server by which `keepalive ... local` separates connections.
    pub fn new(picker: &Picker, peer: usize, begun: Instant, opener: usize) -> Lease {
        let local = picker.local.clone();
        let awaited = Cell::new(local.awaited());
        if awaited.get().is_some() {
            local.begin_wait(peer, begun);
        }
        Lease {
            conn: None,
            seat: Some(Seat { local, peer, begun, awaited, opener }),
            drop: DropRule::default(),
        }
    }

    /// Creates a lease of a server that belongs to no group.
    pub fn direct() -> Lease {
        Lease { conn: None, seat: None, drop: DropRule::default() }
    }

    /// Sets the rule for the case that the server is removed.
    pub fn drop_by(&mut self, rule: DropRule) {
        self.drop = rule;
    }

    /// Returns `true` if the connection has to end since its server is gone.
    pub fn is_revoked(&self) -> bool {
        // Nobody who has not asked for it pays for a look at the server.
        self.drop != DropRule::default() && self.peer().is_some_and(|peer| self.drop.ends(peer))
    }

    /// Takes an idle connection to the peer whose [`Conn::made_for`] is the same.
    pub fn take_idle(&self, io: &Rc<Io>, made_for: u64) -> Option<Conn> {
        self.seat.as_ref()?.take_idle(io, made_for)
    }

    /// Returns the group of the peer, and by which number its connections are told apart with `keepalive ... local`.
    pub fn group(&self) -> Option<(&Group, usize)> {
        let seat = self.seat.as_ref()?;
        let group = &seat.local.group;
        Some((group, if group.keepalive.local { seat.opener } else { 0 }))
    }

    /// Returns the servers from which the peer was chosen.
    pub fn set(&self) -> Option<&PeerSet> {
        Some(&self.seat.as_ref()?.local.set)
    }

    /// Returns the peer.
    pub fn peer(&self) -> Option<&Peer> {
        self.seat.as_ref()?.peer()
    }

    /// Puts the connection among the idle ones of the group. Closes it if the server belongs to no group.
    pub fn keep(&mut self) {
        let conn = self.conn.take();
        let Some(seat) = &self.seat else { return };
        if let (Some(conn), Some(peer)) = (conn, seat.peer()) {
            let busy = seat.local.shards.get(seat.peer).is_some_and(|shard| shard.has_others());
            conn.keep(&seat.local, Use { peer: peer.live.id, opener: seat.opener, busy });
        }
    }

    /// Counts a success: the server has answered. The body of its response may still fail.
    pub fn succeeded(&self) {
        if let Some(seat) = &self.seat {
            seat.local.succeed(seat.peer, seat.begun);
        }
    }

    /// Notes that a time of the request has come.
    pub fn reached(&self, timed: Timed) {
        if let Some(seat) = &self.seat
            && seat.awaited.get() == Some(timed)
        {
            seat.end_wait();
        }
    }

    /// Counts a failure. Returns `true` if the server gets no sessions for now.
    pub fn failed(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.local.fail(seat.peer, seat.begun))
    }

    /// Adds the figures of an attempt that has ended to those of the peer.
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
            seat.end_wait();
            seat.local.end(seat.peer);
        }
    }
}

impl Seat {
    fn end_wait(&self) {
        if self.awaited.take().is_some() {
            self.local.end_wait(self.peer, self.begun);
        }
    }

    fn peer(&self) -> Option<&Peer> {
        self.local.set.peers.get(self.peer)
    }

    fn take_idle(&self, io: &Rc<Io>, made_for: u64) -> Option<Conn> {
        let peer = self.peer()?.live.id;
        let (group, me) = (&self.local.group, self.local.owner.thread);
        let fits = |i: &IdleConn| {
            i.peer == peer && i.made_for == made_for && (!group.keepalive.local || i.opener == self.opener)
        };
        let (idle, taken) = group.idle.take(me, fits);
        // Slots of this thread whose connections other threads have taken.
        for t in taken {
            io.poller.remove(t);
        }
        // `reuse` fails if the slot is gone; then another thread's connection is still better than a new one.
        if let Some(c) = idle.and_then(|idle| Conn::reuse(io, idle)) {
            return Some(c);
        }
        group.idle.steal(me, io.poller.now(), fits).and_then(|idle| Conn::adopt(io, idle))
    }
}
