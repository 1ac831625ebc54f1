//! Requests under way that wait for their HTTP/1 client: for more of the body, or for room in the socket. Where connections
//! run short and none is idle, the clients that move least are given up, so that nobody holds a place by sending or
//! reading a byte now and then.

use crate::reactor::Reactor;
use crate::request::Request;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// A client that moves at least so many bytes a second is not slow.
const LEAST_RATE: u64 = 240;

/// How long a client may be slow before it can be given up for another one.
const GRACE: Duration = Duration::from_secs(5);

/// What moves between a client and a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Direction {
    Body,
    Response,
}

/// The part of a request in which its client is waited for now and then.
#[derive(Debug)]
pub struct Transfer {
    direction: Direction,
    /// Start of the period over which its rate counts, and what had been moved by then, bytes.
    since: Cell<Instant>,
    from: Cell<u64>,
    /// Since when it is waited for now, and what had been moved by then.
    stuck: Cell<Instant>,
    bytes: Cell<u64>,
    given_up: Cell<bool>,
    /// Its place among those that wait.
    place: Cell<usize>,
}

impl Transfer {
    /// Bytes a second; `None`: it has not been slow for long enough.
    fn rate(&self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.stuck.get()) >= GRACE {
            return Some(0);
        }
        let age = now.saturating_duration_since(self.since.get());
        let rate = (self.bytes.get() - self.from.get()) / age.as_secs().max(1);
        (age >= GRACE && rate < LEAST_RATE).then_some(rate)
    }

    /// It is waited for again.
    fn again(&self, bytes: u64, now: Instant) {
        self.bytes.set(bytes.max(self.from.get()));
        self.stuck.set(now);
        // Who was fast at first may be slow later.
        if now.saturating_duration_since(self.since.get()) >= GRACE && self.rate(now).is_none() {
            self.since.set(now);
            self.from.set(self.bytes.get());
        }
    }
}

/// Why a client is waited for no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Its timeout has passed.
    Timeout,
    /// Its place is needed.
    GivenUp,
}

impl Over {
    /// How the log says it.
    pub fn text(self) -> &'static str {
        match self {
            Over::Timeout => "client timed out (110: Connection timed out)",
            Over::GivenUp => "client is too slow and its connection is needed",
        }
    }
}

/// The transfers of a thread that wait.
#[derive(Debug, Default)]
pub struct Transfers(RefCell<Vec<Rc<Transfer>>>);

impl Transfers {
    /// Whether no transfer waits.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Gives up the slowest, one in eight of those that are slow; says how many. Their runners have to be woken.
    pub fn give_up(&self, now: Instant) -> usize {
        let all = self.0.borrow();
        let waiting = all.iter().filter(|t| !t.given_up.get());
        let mut slow: Vec<_> =
            waiting.filter_map(|t| t.rate(now).map(|rate| (rate, t.stuck.get(), t))).collect();
        slow.sort_unstable_by_key(|(rate, since, _)| (*rate, *since));
        slow.truncate(slow.len().div_ceil(8));
        slow.iter().for_each(|(.., t)| t.given_up.set(true));
        slow.len()
    }

    /// Waits for `f`, for which the client has to do something, until `deadline`. `transfer`: of a request that has a
    /// connection of its own.
    ///
    /// # Errors
    /// [`Over`].
    pub async fn wait<C: 'static, T>(
        &self,
        reactor: &Reactor<C>,
        transfer: Option<Rc<Transfer>>,
        deadline: Instant,
        f: impl Future<Output = T>,
    ) -> Result<T, Over> {
        let _waits = transfer.as_ref().map(|t| Waits::new(self, t));
        let given_up = || transfer.as_ref().is_some_and(|t| t.given_up.get());
        let mut f = std::pin::pin!(f);
        let ready = std::future::poll_fn(|cx| match f.as_mut().poll(cx) {
            Poll::Ready(v) => Poll::Ready(Some(v)),
            Poll::Pending if given_up() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        reactor.deadline(deadline, ready).await.ok_or(Over::Timeout)?.ok_or(Over::GivenUp)
    }
}

/// The transfer of a request: the one it has, unless that went the other way.
fn transfer(of: &mut Option<Rc<Transfer>>, direction: Direction, bytes: u64, now: Instant) -> Rc<Transfer> {
    match of {
        Some(t) if t.direction == direction => {
            t.again(bytes, now);
            t.clone()
        }
        _ => {
            let (time, bytes) = (Cell::new(now), Cell::new(bytes));
            let t = Rc::new(Transfer {
                direction,
                since: time.clone(),
                from: bytes.clone(),
                stuck: time,
                bytes,
                given_up: Cell::new(false),
                place: Cell::new(usize::MAX),
            });
            *of = Some(t.clone());
            t
        }
    }
}

impl Request {
    /// What is moved now; `None`: it shares its connection with others (HTTP/2), which would not be free without it.
    pub fn transfer(&mut self, direction: Direction, now: Instant) -> Option<Rc<Transfer>> {
        let bytes = if direction == Direction::Body { self.received } else { self.sent };
        self.conn.wire.as_stream().is_none().then(|| transfer(&mut self.transfer, direction, bytes, now))
    }
}

/// Keeps a transfer among those that wait.
struct Waits<'a> {
    all: &'a Transfers,
    transfer: &'a Transfer,
}

impl<'a> Waits<'a> {
    fn new(all: &'a Transfers, transfer: &'a Rc<Transfer>) -> Waits<'a> {
        let mut waiting = all.0.borrow_mut();
        transfer.place.set(waiting.len());
        waiting.push(transfer.clone());
        Waits { all, transfer }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut waiting = self.all.0.borrow_mut();
        let place = self.transfer.place.get();
        waiting.swap_remove(place);
        if let Some(moved) = waiting.get(place) {
            moved.place.set(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_are_given_up_first() {
        let all = Transfers::default();
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        // Waited for first, then again for each second and what had been moved by then.
        let make = |since: u64, then: &[(u64, u64)]| {
            let mut of = None;
            let first = transfer(&mut of, Direction::Body, 90, at(since));
            then.iter().for_each(|(s, bytes)| drop(transfer(&mut of, Direction::Body, *bytes, at(*s))));
            first
        };
        let slow = make(0, &[(10, 190), (19, 290)]);
        let slower = make(0, &[(19, 100)]);
        let stuck = make(0, &[(1, 9_000_000)]);
        let fast = make(0, &[(10, 100_000), (19, 102_400)]);
        let young = make(17, &[]);
        let each = [&slow, &slower, &stuck, &fast, &young];
        let waits: Vec<_> = each.map(|t| Waits::new(&all, t)).into();
        let given_up = || each.map(|t| t.given_up.get());
        assert_eq!(all.give_up(at(20)), 1);
        assert_eq!(given_up(), [false, false, true, false, false]);
        assert_eq!(all.give_up(at(20)), 1);
        assert_eq!(given_up(), [false, true, true, false, false]);
        assert_eq!(all.give_up(at(20)), 1);
        assert_eq!(given_up(), [true, true, true, false, false]);
        assert_eq!(all.give_up(at(20)), 0);
        // Fast at first, then not.
        assert_eq!((all.give_up(at(24)), all.give_up(at(24))), (1, 1));
        waits.into_iter().for_each(drop);
        assert!(all.is_empty());
    }

    #[test]
    fn the_other_direction_is_another_transfer() {
        let (mut of, now) = (None, Instant::now());
        let body = transfer(&mut of, Direction::Body, 10, now);
        assert!(Rc::ptr_eq(&body, &transfer(&mut of, Direction::Body, 20, now)));
        assert!(!Rc::ptr_eq(&body, &transfer(&mut of, Direction::Response, 0, now)));
    }
}
