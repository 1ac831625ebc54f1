//! Connections to upstreams that carry several requests at a time, whatever their protocol: who may use them, how long a
//! request waits for room, when they are idle, and when they end (nginx: keepalive and related directives). Hot path.
//!
//! - [`Session`] is a connection. [`Life`] is the part of its state that is alike for all protocols.
//! - [`Shared`] has the connections of a thread that take requests. Its [`Shared::open`] finds one for a request, or
//!   begins one.
//! - [`RequestStream`] is a request on it. To all code after it, it is a wire ([`forebay_net::wire::Wire::Mux`]).
//!
//! An upstream connection with many requests belongs to no lease. `codec/http2.rs` and `codec/http3.rs` ask the `Pool` of their
//! protocol for a stream, which is the wire of the request's `Conn`. `codec/muxed.rs` sends the request on it and reads the head.

mod life;

pub(super) use life::{Life, Stage};

use forebay_core::tls::client::Unencrypted;
use forebay_core::upstream::group::Keepalive;
use forebay_net::addr::PeerAddr;
use forebay_net::dial::{DialError, LocalAddress};
use forebay_net::mux::Mux;
use forebay_net::reactor::Poller;
use forebay_net::wire::Watch;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Shortest time for which a request waits for room on a connection before another one is opened.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);
/// Largest number of connections that a request goes to when they end before it has a stream.
const TRIES: usize = 3;
/// Number of pauses after which a request no longer waits to learn what new connections allow, but opens one itself.
const PAUSES: u32 = 3;

/// Properties that connections must have in common to serve the same requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key<L> {
    pub addr: PeerAddr,
    pub local: Option<LocalAddress>,
    /// See [`forebay_core::upstream::conn::Conn::made_for`].
    pub made_for: u64,
    pub limits: L,
    /// Number of the group.
    pub group: u32,
    /// Number of the location, with `keepalive ... local`.
    pub opener: usize,
}

/// A request that needs a stream.
#[derive(Clone, Debug)]
pub struct Need<L> {
    pub key: Key<L>,
    /// Rules for connections that are shared; `None`: the request has one of its own.
    pub keep: Option<Keepalive>,
    /// The connection may be one that was idle.
    pub may_be_idle: bool,
    /// Longest field section of a response, bytes.
    pub longest: usize,
    /// Longest time until there is a stream.
    pub timeout: Duration,
}

/// Reason for which there is no stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// There is no socket, or nobody listens.
    Dial(DialError),
    /// The server does not answer.
    Timeout,
    /// The client, which was watched, is gone.
    ClientGone,
    /// The protocol is not spoken: the text for the error log, to be written behind "upstream ".
    Unspoken(String),
    /// The connection could not be encrypted.
    Tls(Unencrypted),
}

/// Failure of a request that has a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Text for the error log, to be written behind "upstream ".
    pub text: Cow<'static, str>,
    pub kind: ProblemKind,
}

/// Kind of a [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The server has sent something that is not allowed.
    Invalid,
    /// The server or the connection is gone.
    Gone,
    /// The server has certainly not acted upon the request.
    Unsent,
    /// The server was silent for too long.
    Silent,
}

/// A request on a connection, and its response. Dropping it cancels what is not over.
pub trait RequestStream: Mux {
    /// Sends the head of the request, an HTTP/1 head. `trailers`: trailers are asked for, even if the head does not say so; `end`: there is no
    /// content; `scratch`: memory for fields. Returns the number of bytes.
    fn request(&self, head: &[u8], trailers: bool, end: bool, scratch: &mut Vec<u8>) -> u64;

    /// Appends the next head of the response, interim heads first, as an HTTP/1 head of at most `limit` bytes. Returns
    /// `false` if it has not come.
    ///
    /// # Errors
    /// [`Problem`].
    fn next_head(&self, limit: usize, out: &mut Vec<u8>) -> Result<bool, Problem>;

    /// Returns why the request has failed.
    fn problem(&self) -> Option<Problem>;

    /// Returns the number of bytes of field sections since the last call.
    fn take_uncounted(&self) -> u64;

    /// Calls `f` with each field of the trailers.
    fn trailers(&self, f: &mut dyn FnMut(&[u8], &[u8]));

    /// Notes that the time for the server to answer is over.
    fn timed_out(&self) {}
}

/// A stream, and whether its connection has served other requests.
#[derive(Debug)]
pub struct Opened<T> {
    pub stream: Rc<T>,
    pub reused: bool,
}

/// Result of asking a connection for a stream.
pub(super) enum Openable<T> {
    Yes(Opened<T>),
    /// There is no connection.
    No(Trouble),
    /// It takes no further requests.
    Elsewhere,
    /// There is no room for now.
    Full,
    /// There was none in time.
    Later,
}

/// A connection.
pub(super) trait Session {
    /// Limits of the configuration for a connection.
    type Limits: Clone + Eq + Hash;
    type Stream;

    fn key(&self) -> &Key<Self::Limits>;
    fn life(&self) -> &Life;
    /// Returns the number of requests on it.
    fn streams(&self) -> usize;
    /// Returns the number of requests that the connection may have, whatever the server allows.
    fn most(&self) -> usize;
    /// Returns `true` if the server allows no further requests for now.
    fn lacks_room(&self) -> bool;
    /// Returns `true` if it can serve another request at all.
    fn goes_on(&self) -> bool;
    /// Returns the time for which a request waits for room: the server may be about to allow more.
    fn patience(&self) -> Duration;
    /// Returns `true` if the connection is so new that the server has had no time to say how many requests it allows.
    fn is_settling(&self) -> bool {
        false
    }
    /// Opens a stream, if there is room.
    fn open_stream(self: &Rc<Self>, longest: usize) -> Option<Rc<Self::Stream>>;
    /// Notes that no request waits for the connection any more.
    fn abandoned(&self);
    /// Closes it. Requests on it fail.
    fn close(&self);

    /// Returns `true` if there are no requests on it.
    fn is_idle(&self) -> bool {
        self.streams() == 0
    }

    /// Returns `true` if it is established, and has no room.
    fn is_full(&self) -> bool {
        self.life().stage() == Stage::Open && (self.lacks_room() || self.streams() >= self.most())
    }

    /// Returns `true` if a request may be sent at once, as far as is known.
    fn has_room(&self) -> bool {
        self.life().stage() == Stage::Open && !self.is_full()
    }

    /// Returns `false` if it takes no further requests. That is so after a number of them and after a time (nginx: keepalive_requests,
    /// keepalive_time).
    fn takes_requests(&self, keep: &Keepalive, now: Instant) -> bool {
        let life = self.life();
        let is_spent = life.requests.get() >= keep.requests.max(1);
        let is_old = now.saturating_duration_since(life.opened) > keep.time;
        if is_spent || is_old || !self.goes_on() {
            self.retire();
        }
        matches!(life.stage(), Stage::Connecting | Stage::Open)
    }

    /// Takes no further requests; closes it if there are none.
    fn retire(&self) {
        let life = self.life();
        // Requests that wait for a connection which is still being established are sent on it first.
        if life.stage() != Stage::Open {
            return;
        }
        life.stage.set(Stage::Leaving);
        life.wake();
        if self.is_idle() {
            self.close();
        }
    }

    /// Opens a stream as soon as there is room.
    fn poll_open(self: &Rc<Self>, longest: usize, cx: &mut Context<'_>) -> Poll<Openable<Self::Stream>> {
        let life = self.life();
        match life.stage() {
            Stage::Connecting => {}
            Stage::Leaving => return Poll::Ready(Openable::Elsewhere),
            Stage::Closed => {
                let trouble = life.trouble.borrow().clone();
                return Poll::Ready(trouble.map_or(Openable::Elsewhere, Openable::No));
            }
            Stage::Open => {
                if let Some(opened) = self.opened(longest) {
                    return Poll::Ready(Openable::Yes(opened));
                }
            }
        }
        life.waiters.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }

    /// Opens a stream, if there is room.
    fn opened(self: &Rc<Self>, longest: usize) -> Option<Opened<Self::Stream>> {
        if self.is_full() {
            return None;
        }
        let stream = self.open_stream(longest)?;
        Some(Opened { stream, reused: self.life().opened_stream() })
    }
}

/// A request that waits for a connection.
struct Waiting<'s, S: Session>(&'s S);

impl<'s, S: Session> Waiting<'s, S> {
    fn new(session: &'s S) -> Waiting<'s, S> {
        let waiting = &session.life().waiting;
        waiting.set(waiting.get() + 1);
        Waiting(session)
    }
}

impl<S: Session> Drop for Waiting<'_, S> {
    fn drop(&mut self) {
        let waiting = &self.0.life().waiting;
        waiting.set(waiting.get() - 1);
        if waiting.get() == 0 {
            self.0.abandoned();
        }
    }
}

/// Connections by what they have in common.
type ByKey<S> = HashMap<Key<<S as Session>::Limits>, Vec<Rc<S>>>;

/// Connections of a thread that take requests.
pub(super) struct Shared<S: Session>(RefCell<ByKey<S>>);

impl<S: Session> Default for Shared<S> {
    fn default() -> Self {
        Shared(RefCell::default())
    }
}

impl<S: Session> Shared<S> {
    /// Opens a stream on a connection that has room, or on one that `connect` begins and adds.
    ///
    /// # Errors
    /// [`Trouble`].
    pub(super) async fn open(
        &self,
        poller: &Poller,
        need: &Need<S::Limits>,
        watch: &mut Watch,
        mut connect: impl AsyncFnMut(&mut Watch) -> Result<Rc<S>, Trouble>,
    ) -> Result<Opened<S::Stream>, Trouble> {
        let deadline = poller.after(need.timeout);
        let (mut pauses, mut tries) = (0, TRIES);
        loop {
            let session = match self.find(need, pauses, poller.now()) {
                Some(session) => session,
                None => connect(watch).await?,
            };
            let mut until = deadline;
            let waiting = Waiting::new(&*session);
            let result = std::future::poll_fn(|cx| {
                if let Poll::Ready(found) = session.poll_open(need.longest, cx) {
                    return Poll::Ready(found);
                }
                if watch.poll_gone(poller, cx).is_ready() {
                    return Poll::Ready(Openable::No(Trouble::ClientGone));
                }
                // How many requests the server allows is known only after the handshake, so a new connection may turn out
                // to have no room.
                if until == deadline && session.is_full() {
                    if pauses > 0 && !session.is_settling() {
                        return Poll::Ready(Openable::Full);
                    }
                    until = deadline.min(poller.after(session.patience()));
                }
                poller.poll_until(until).map(|()| Openable::Later)
            })
            .await;
            // Dropped before anything else is awaited, so that a connection which no request waits for can be given up.
            drop(waiting);
            match result {
                Openable::Yes(opened) => return Ok(opened),
                Openable::No(trouble) => return Err(trouble),
                // The connection ended or is retiring, so another one is looked for.
                Openable::Elsewhere if tries > 0 => tries -= 1,
                // Without requests on it, a full connection will not get room by waiting: the server allows none at all.
                Openable::Full if session.is_idle() => {
                    return Err(Trouble::Unspoken("allows no requests".to_owned()));
                }
                Openable::Full => {}
                Openable::Later if until < deadline => pauses += 1,
                Openable::Elsewhere => {
                    return Err(Trouble::Unspoken("closes connections before a request".to_owned()));
                }
                Openable::Later => return Err(Trouble::Timeout),
            }
        }
    }

    /// Opens a stream at once, on a connection that has room.
    pub(super) fn open_now(&self, need: &Need<S::Limits>, now: Instant) -> Option<Opened<S::Stream>> {
        self.find(need, PAUSES, now).filter(|session| session.has_room())?.opened(need.longest)
    }

    /// Finds a connection for a request that has made so many pauses. Before the first one it may be a connection without room.
    fn find(&self, need: &Need<S::Limits>, pauses: u32, now: Instant) -> Option<Rc<S>> {
        let keep = need.keep?;
        let mut open = self.0.borrow_mut();
        let sessions = open.get_mut(&need.key)?;
        sessions.retain(|session| session.takes_requests(&keep, now));
        let ready = sessions.iter().find(|s| s.has_room() && (need.may_be_idle || !s.is_idle()));
        let is_young = |s: &S| s.life().is_connecting() || pauses < PAUSES && s.is_settling();
        // Requests gather on a connection that is being established, up to the number that it may have, instead of each
        // making a handshake.
        let begun = || sessions.iter().find(|s| is_young(s) && s.life().waiting.get() < s.most());
        let full = || sessions.iter().find(|s| pauses == 0 && s.is_full());
        ready.or_else(begun).or_else(full).cloned()
    }

    /// Gives a connection to requests.
    pub(super) fn add(&self, session: &Rc<S>) {
        // A connection without `keep` belongs to one request, so no other request must find it.
        if session.life().keep.is_some() {
            self.0.borrow_mut().entry(session.key().clone()).or_default().push(session.clone());
        }
    }

    /// Gives a connection no more requests.
    pub(super) fn leave(&self, session: &Rc<S>) {
        let mut open = self.0.borrow_mut();
        if let Some(same) = open.get_mut(session.key()) {
            same.retain(|other| !Rc::ptr_eq(other, session));
            if same.is_empty() {
                open.remove(session.key());
            }
        }
    }

    /// Closes a connection that is idle if its time is over. If its group now has more idle connections than it keeps,
    /// closes the oldest of them.
    pub(super) fn trim(&self, session: &S, now: Instant) {
        let life = session.life();
        let (Some(since), Some(keep)) = (life.idle_since(), life.keep) else { return };
        if now.saturating_duration_since(since) >= keep.timeout || keep.connections == 0 {
            return session.close();
        }
        // The count below visits all connections of the thread, so it happens only once after a connection has become
        // idle.
        if !life.newly_idle.take() {
            return;
        }
        let in_group = |s: &&Rc<S>| s.key().group == session.key().group;
        let count = self
            .0
            .borrow()
            .values()
            .flatten()
            .filter(in_group)
            .filter(|s| s.life().idle_since().is_some())
            .count();
        if count > keep.connections
            && let Some(oldest) = self.oldest_idle(in_group)
        {
            oldest.close();
        }
    }

    /// Returns the connection that has been idle for the longest time, of some.
    pub(super) fn oldest_idle(&self, of: impl Fn(&&Rc<S>) -> bool) -> Option<Rc<S>> {
        let open = self.0.borrow();
        let idle = open.values().flatten().filter(of).filter_map(|s| Some((s.life().idle_since()?, s)));
        idle.min_by_key(|(since, _)| *since).map(|(_, session)| session.clone())
    }

    /// Gives no more requests to any connection. Connections without requests are closed.
    pub(super) fn retire(&self) {
        let sessions: Vec<_> = self.0.take().into_values().flatten().collect();
        sessions.iter().for_each(|session| session.retire());
    }
}
