//! A request's place at a peer: chosen, waited for, counted and given back. Hot path.

use super::balance::Picker;
use super::conn::Conn;
use super::exchange::Target;
use super::idle::Idle;
use super::queue::{LOOK, Ticket};
use super::upload::Upload;
use super::{Group, GroupState, LocalSet};
use crate::request::Request;
use crate::thread::ThreadConfig;
use forebay_conf::error::Level;
use forebay_net::addr::PeerAddr;
use std::rc::Rc;
use std::time::Instant;

/// The client is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A connection with its place in a group.
#[derive(Debug)]
pub struct Lease {
    /// The connection.
    pub conn: Option<Conn>,
    /// The rest of the request, which is sent while its body comes.
    pub upload: Option<Box<Upload>>,
    /// Not all of the request was sent, or will be: what stands on the connection is not the beginning of another.
    unfinished: bool,
    conf: Rc<ThreadConfig>,
    seat: Option<Seat>,
    location: usize,
}

/// A request's place among those of a peer.
#[derive(Debug)]
struct Seat {
    group: usize,
    local: Rc<LocalSet>,
    peer: usize,
    begun: Instant,
}

impl Lease {
    /// A place at a chosen peer, without a connection yet.
    pub fn new(req: &Request, target: &Target, picker: Option<&Picker>, peer: usize, now: Instant) -> Lease {
        let seat = match (target, picker) {
            (Target::Group(group), Some(p)) => {
                Some(Seat { group: *group, local: p.local.clone(), peer, begun: now })
            }
            _ => None,
        };
        Lease {
            conn: None,
            upload: None,
            unfinished: false,
            conf: req.conf.clone(),
            seat,
            location: req.location,
        }
    }

    /// An idle connection to the peer; `made_for` tells how it is encrypted.
    pub fn take_idle(&self, req: &Request, made_for: u64) -> Option<Conn> {
        take_idle(req, &self.conf, self.seat.as_ref()?, self.location, made_for)
    }

    fn group(&self) -> Option<(&Seat, &Group)> {
        let seat = self.seat.as_ref()?;
        Some((seat, self.conf.http.upstreams.get(seat.group)?))
    }

    /// The rest of the request is not sent.
    pub fn leave_off(&mut self) {
        self.upload = None;
        self.unfinished = true;
    }

    /// Whether all of the request has been sent.
    pub fn is_sent(&self) -> bool {
        self.upload.is_none() && !self.unfinished
    }

    /// The connection is sound and free: others may use it, unless half a request stands on it.
    pub fn keep(&mut self) {
        if !self.is_sent() {
            return;
        }
        let conn = self.conn.take();
        let Some((seat, group)) = self.group() else { return };
        let Some(peer) = seat.local.set.peers.get(seat.peer).map(|p| p.live.id) else { return };
        if let Some(conn) = conn {
            conn.keep(&self.conf, group, seat.group, peer, self.location);
        }
    }

    /// A head has been received that is passed on.
    pub fn answered(&self, req: &mut Request) {
        let Some((seat, group)) = self.group() else { return };
        group.succeed(&seat.local.set, seat.peer, seat.begun);
        if let (Some(s), Some(p)) = (&group.sticky, seat.local.set.peers.get(seat.peer))
            && let Err(e) = s.answered(req, &p.sid)
        {
            req.log(Level::Error, &e.0);
        }
    }

    /// The response is over. Counts it.
    pub fn ended(&self, req: &mut Request) {
        let Some((seat, group)) = self.group() else { return };
        self.count(req);
        if let (Some(s), Some(p)) = (&group.sticky, seat.local.set.peers.get(seat.peer))
            && let Err(e) = s.ended(req, &p.sid)
        {
            req.log(Level::Error, &e.0);
        }
    }

    /// Counts the attempt.
    pub fn count(&self, req: &mut Request) {
        let Some((seat, group)) = self.group() else { return };
        let Some(a) = req.modules.upstream.attempts.last() else { return };
        if let Some(shard) = seat.local.shards.get(seat.peer) {
            shard.count(a.status, a.sent, a.received, a.header, a.response);
        }
        group.measure(&seat.local.set, seat.peer, a.header, a.response, req.thread.io.poller.now());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((seat, group)) = self.group() {
            group.end(&seat.local, seat.peer, seat.begun);
        }
    }
}

fn with_state<R>(conf: &ThreadConfig, g: usize, f: impl FnOnce(&Group, &mut GroupState) -> R) -> Option<R> {
    let group = conf.http.upstreams.get(g)?;
    let mut states = conf.groups.borrow_mut();
    if states.is_empty() {
        states.resize_with(conf.http.upstreams.len(), GroupState::default);
    }
    states.get_mut(g).map(|s| f(group, s))
}

/// The choices for a request; `None` where there is no group.
///
/// # Errors
/// The status to answer with.
pub fn picker(req: &mut Request, conf: &ThreadConfig, target: &Target) -> Result<Option<Picker>, u16> {
    let Target::Group(g) = target else { return Ok(None) };
    let Some(group) = conf.http.upstreams.get(*g) else { return Err(502) };
    let Some(local) = with_state(conf, *g, |group, state| state.local(group)) else { return Err(502) };
    Picker::for_request(local, group, req).map(Some).map_err(|_| 500)
}

/// The number of the next server, if there is one that may be asked.
pub fn choose(
    conf: &ThreadConfig,
    target: &Target,
    picker: Option<&mut Picker>,
    tried: &[usize],
    now: Instant,
) -> Option<usize> {
    match (target, picker) {
        (Target::Group(g), Some(picker)) => picker.choose(conf.http.upstreams.get(*g)?, now),
        (Target::Direct(addrs), _) => (0..addrs.len()).find(|i| !tried.contains(i)),
        _ => None,
    }
}

/// Address of a chosen server.
pub fn address<'a>(target: &'a Target, picker: Option<&'a Picker>, peer: usize) -> Option<&'a PeerAddr> {
    match (target, picker) {
        (Target::Group(_), Some(p)) => p.local.set.peers.get(peer).map(|p| &p.addr),
        (Target::Direct(addrs), _) => addrs.get(peer),
        _ => None,
    }
}

/// Appends the name of a chosen server.
pub fn name_of(target: &Target, picker: Option<&Picker>, peer: usize, out: &mut Vec<u8>) {
    match (target, picker) {
        (Target::Group(_), Some(p)) => {
            if let Some(p) = p.local.set.peers.get(peer) {
                out.extend_from_slice(&p.name);
            }
        }
        (Target::Direct(addrs), _) => {
            if let Some(a) = addrs.get(peer) {
                out.extend_from_slice(&forebay_net::addr::address_text(a));
            }
        }
        _ => {}
    }
}

/// How many servers there are to ask.
pub fn number(target: &Target, picker: Option<&Picker>) -> usize {
    match (target, picker) {
        (Target::Group(_), Some(p)) => p.local.set.peers.iter().filter(|p| !p.down).count(),
        (Target::Direct(addrs), _) => addrs.len(),
        _ => 0,
    }
}

/// Waits in the queue of the group, if it has one, until a server is free (nginx Plus: queue). `None`: there is no queue, or its
/// time is over.
///
/// # Errors
/// The client is gone.
pub async fn wait_for_one(
    req: &mut Request,
    conf: &ThreadConfig,
    target: &Target,
    picker: &mut Option<Picker>,
) -> Result<Option<usize>, Gone> {
    let Target::Group(g) = target else { return Ok(None) };
    let Some((ticket, timeout)) = Ticket::take(&conf.http, *g) else { return Ok(None) };
    let thread = req.thread.clone();
    let end = Instant::now() + timeout;
    let mut watch = req.conn.wire.watch();
    loop {
        let now = Instant::now();
        if now >= end {
            return Ok(None);
        }
        let look = end.min(now + LOOK);
        let mut turn = std::pin::pin!(ticket.turn());
        let gone = std::future::poll_fn(|cx| {
            if turn.as_mut().poll(cx).is_ready() || thread.io.poller.poll_deadline(look).is_ready() {
                return std::task::Poll::Ready(false);
            }
            watch.poll_gone(&thread.io.poller, cx).map(|()| true)
        })
        .await;
        if gone {
            return Err(Gone);
        }
        // The servers may have changed meanwhile.
        let Some(local) = with_state(conf, *g, |group, state| state.local(group)) else { return Ok(None) };
        let Some(mut p) = picker.take() else { return Ok(None) };
        p.local = local;
        let chosen = choose(conf, target, Some(&mut p), &[], thread.io.poller.now());
        *picker = Some(p);
        if chosen.is_some() {
            return Ok(chosen);
        }
    }
}

fn take_idle(
    req: &Request,
    conf: &ThreadConfig,
    seat: &Seat,
    location: usize,
    made_for: u64,
) -> Option<Conn> {
    let peer = seat.local.set.peers.get(seat.peer)?.live.id;
    let group = conf.http.upstreams.get(seat.group)?;
    let fits = |i: &Idle| {
        i.peer == peer && i.made_for == made_for && (!group.keepalive.local || i.location == location)
    };
    let thread = &req.thread;
    let (idle, taken) = group.idle.take(thread.number, fits);
    for t in taken {
        thread.io.poller.remove(t);
    }
    if let Some(c) = idle.and_then(|idle| Conn::reuse(thread, idle)) {
        return Some(c);
    }
    group.idle.steal(thread.number, thread.io.poller.now(), fits).and_then(|idle| Conn::adopt(thread, idle))
}
