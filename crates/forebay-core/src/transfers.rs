//! Requests that are blocked on a slow client: on more of the body, or on room in the socket. When a worker runs out of
//! connections and none is idle, it drops the slowest clients, so that a client cannot hold a connection by sending or
//! reading a byte now and then. Clients of the network with the most slow clients go first. An HTTP/2 connection counts
//! as one transfer while all of its streams are blocked on the client.

use crate::limit::shares::{self, Candidate, Network};
use forebay_net::mux::Mux;
use forebay_net::reactor::Poller;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Rate from which on a client does not count as slow, bytes a second.
const LEAST_RATE: u64 = 240;

/// Time for which a client may be slow before its connection can go to another client.
const GRACE: Duration = Duration::from_secs(5);

/// Part of the exchange that a transfer measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Direction {
    Body,
    Response,
}

/// Progress of one client: in one direction of a request, or on a whole HTTP/2 connection.
#[derive(Debug)]
pub struct Transfer {
    direction: Direction,
    /// Network of the client.
    network: Network,
    /// Time since which the transfer also waits for something other than the client. Such time does not count against
    /// the client.
    busy: Cell<Option<Instant>>,
    /// Start of the period over which the rate is measured, and bytes moved before it (`from`).
    since: Cell<Instant>,
    from: Cell<u64>,
    /// Start of the current wait for the client, and bytes moved before it (`bytes`).
    stuck: Cell<Instant>,
    bytes: Cell<u64>,
    given_up: Cell<bool>,
    /// Index in [`Transfers`] while the transfer waits.
    place: Cell<usize>,
}

impl Transfer {
    /// Creates a transfer that is not waiting yet. `bytes` is the count moved so far.
    pub fn new(direction: Direction, network: Network, bytes: u64, now: Instant) -> Rc<Transfer> {
        Rc::new(Transfer {
            direction,
            network,
            busy: Cell::new(None),
            since: Cell::new(now),
            from: Cell::new(bytes),
            stuck: Cell::new(now),
            bytes: Cell::new(bytes),
            given_up: Cell::new(false),
            place: Cell::new(usize::MAX),
        })
    }

    /// Creates the transfer of an HTTP/2 connection, which counts both directions.
    pub fn of_connection(network: Network, bytes: u64, now: Instant) -> Rc<Transfer> {
        Transfer::new(Direction::Body, network, bytes, now)
    }

    /// Returns `true` if the client was too slow and must leave its connection to another one.
    pub fn is_given_up(&self) -> bool {
        self.given_up.get()
    }

    /// Records the current state: `only_client` if nothing but the client blocks the transfer, and the bytes moved so
    /// far.
    pub fn look(&self, only_client: bool, bytes: u64, now: Instant) {
        match (self.busy.get(), only_client) {
            (None, false) => self.busy.set(Some(now)),
            (Some(busy), true) => {
                self.busy.set(None);
                // Time in which the client was not alone to blame moves the start of the period.
                self.since.set(self.since.get() + now.saturating_duration_since(busy));
                self.again(bytes, now);
            }
            (None, true) if bytes != self.bytes.get() => self.again(bytes, now),
            _ => {}
        }
    }

    /// Returns the client's rate in bytes a second if it has been slow for at least [`GRACE`].
    fn rate(&self, now: Instant) -> Option<u64> {
        if self.busy.get().is_some() {
            return None;
        }
        if now.saturating_duration_since(self.stuck.get()) >= GRACE {
            return Some(0);
        }
        let age = now.saturating_duration_since(self.since.get());
        // Not below 0: `again` keeps `bytes` at or above `from`.
        let rate = (self.bytes.get() - self.from.get()) / age.as_secs().max(1);
        (age >= GRACE && rate < LEAST_RATE).then_some(rate)
    }

    /// Begins another wait for the client.
    fn again(&self, bytes: u64, now: Instant) {
        self.bytes.set(bytes.max(self.from.get()));
        self.stuck.set(now);
        // Begin another period, so that an average over a fast start does not hide a client that slows down later.
        if now.saturating_duration_since(self.since.get()) >= GRACE && self.rate(now).is_none() {
            self.since.set(now);
            self.from.set(self.bytes.get());
        }
    }
}

/// Reason for which the wait for a client ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Its timeout has passed.
    Timeout,
    /// The client is slow and its connection is needed for another client.
    GivenUp,
}

impl Over {
    /// Returns the text for the error log.
    pub fn text(self) -> &'static str {
        match self {
            Over::Timeout => "client timed out (110: Connection timed out)",
            Over::GivenUp => "client is too slow and its connection is needed",
        }
    }
}

/// The kind of connection on which a request waits for its client.
#[derive(Debug)]
pub enum Waiting {
    /// HTTP/1: the request has the connection to itself.
    Alone(Rc<Transfer>),
    /// HTTP/2: the request shares the connection with others.
    Among(Rc<dyn Mux>),
}

impl Waiting {
    fn is_given_up(&self) -> bool {
        match self {
            Waiting::Alone(t) => t.given_up.get(),
            Waiting::Among(s) => s.is_given_up(),
        }
    }
}

/// The waiting transfers of a thread, and those of its HTTP/2 connections.
#[derive(Debug, Default)]
pub struct Transfers(RefCell<Vec<Rc<Transfer>>>);

impl Transfers {
    /// Returns `true` if no transfer waits.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Marks one in eight of the slow transfers to be dropped, and returns their number. The network with the most slow
    /// transfers loses some first, the slowest ones before others. The caller has to wake the runners, which notice the
    /// mark only when they are polled.
    pub fn give_up(&self, now: Instant) -> usize {
        let all = self.0.borrow();
        let waiting = all.iter().enumerate().filter(|(_, t)| !t.given_up.get());
        let slow: Vec<_> = waiting
            .filter_map(|(number, t)| {
                let rank = (t.rate(now)?, t.stuck.get());
                Some(Candidate { number, network: t.network, rank })
            })
            .collect();
        // At least one if any is slow.
        let count = slow.len().div_ceil(8);
        for number in shares::choose_slow(slow, count) {
            if let Some(t) = all.get(number) {
                t.given_up.set(true);
            }
        }
        count
    }

    /// Adds a transfer that begins to wait.
    pub fn add(&self, transfer: &Rc<Transfer>) {
        let mut all = self.0.borrow_mut();
        transfer.place.set(all.len());
        all.push(transfer.clone());
    }

    /// Removes a transfer. It must have been added.
    pub fn remove(&self, transfer: &Transfer) {
        let mut all = self.0.borrow_mut();
        let place = transfer.place.get();
        all.swap_remove(place);
        // The last one has taken its place.
        if let Some(moved) = all.get(place) {
            moved.place.set(place);
        }
    }

    /// Runs `f`, which needs the client to do something, until `deadline`.
    ///
    /// # Errors
    /// [`Over`].
    pub async fn wait<T>(
        &self,
        poller: &Poller,
        client: Waiting,
        deadline: Instant,
        f: impl Future<Output = T>,
    ) -> Result<T, Over> {
        let _waits = Waits::new(self, &client, poller);
        let mut f = std::pin::pin!(f);
        let ready = std::future::poll_fn(|cx| match f.as_mut().poll(cx) {
            // Dropping an HTTP/2 connection completes `f` with an end of input, which must not pass for a result.
            Poll::Ready(_) if matches!(client, Waiting::Among(_)) && client.is_given_up() => {
                Poll::Ready(None)
            }
            Poll::Ready(v) => Poll::Ready(Some(v)),
            Poll::Pending if client.is_given_up() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        poller.deadline(deadline, ready).await.ok_or(Over::Timeout)?.ok_or(Over::GivenUp)
    }
}

/// Returns the transfer of a request in `direction`. Replaces one of the other direction.
pub fn transfer(
    of: &mut Option<Rc<Transfer>>,
    network: impl FnOnce() -> Network,
    direction: Direction,
    bytes: u64,
    now: Instant,
) -> Rc<Transfer> {
    match of {
        Some(t) if t.direction == direction => {
            t.again(bytes, now);
            t.clone()
        }
        _ => {
            let t = Transfer::new(direction, network(), bytes, now);
            *of = Some(t.clone());
            t
        }
    }
}

/// Guard that counts a client among the slow candidates while it lives.
struct Waits<'a> {
    all: &'a Transfers,
    client: &'a Waiting,
    poller: &'a Poller,
}

impl<'a> Waits<'a> {
    fn new(all: &'a Transfers, client: &'a Waiting, poller: &'a Poller) -> Self {
        match client {
            Waiting::Alone(t) => all.add(t),
            Waiting::Among(s) => s.wait_for_client(true, poller.now()),
        }
        Waits { all, client, poller }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        match self.client {
            Waiting::Alone(t) => self.all.remove(t),
            Waiting::Among(s) => s.wait_for_client(false, self.poller.now()),
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
        // Creates a transfer that begins to wait at `since`, and again at each `(second, bytes moved)` of `then`.
        let make = |since: u64, then: &[(u64, u64)]| {
            let (mut of, none) = (None, Network::default);
            let first = transfer(&mut of, none, Direction::Body, 90, at(since));
            then.iter().for_each(|(s, bytes)| drop(transfer(&mut of, none, Direction::Body, *bytes, at(*s))));
            first
        };
        let slow = make(0, &[(10, 190), (19, 290)]);
        let slower = make(0, &[(19, 100)]);
        let stuck = make(0, &[(1, 9_000_000)]);
        let fast = make(0, &[(10, 100_000), (19, 102_400)]);
        let young = make(17, &[]);
        let each = [&slow, &slower, &stuck, &fast, &young];
        each.iter().for_each(|t| all.add(t));
        let given_up = || each.map(|t| t.given_up.get());
        assert_eq!(all.give_up(at(20)), 1);
        assert_eq!(given_up(), [false, false, true, false, false]);
        assert_eq!(all.give_up(at(20)), 1);
        assert_eq!(given_up(), [false, true, true, false, false]);
        assert_eq!(all.give_up(at(20)), 1);
        assert_eq!(given_up(), [true, true, true, false, false]);
        assert_eq!(all.give_up(at(20)), 0);
        // Four seconds later the transfer that was fast at first is slow, too.
        assert_eq!((all.give_up(at(24)), all.give_up(at(24))), (1, 1));
        each.iter().for_each(|t| all.remove(t));
        assert!(all.is_empty());
    }

    #[test]
    fn a_network_that_has_most_of_the_slow_is_given_up_first() {
        let all = Transfers::default();
        let start = Instant::now();
        let make = |address: &str, bytes: u64| {
            let address: std::net::SocketAddr = address.parse().expect("an address");
            let network = || Network::of(Some(address.ip()));
            let mut of = None;
            let t = transfer(&mut of, network, Direction::Body, 0, start);
            transfer(&mut of, network, Direction::Body, bytes, start + GRACE);
            all.add(&t);
            t
        };
        let alone = make("10.0.0.1:1", 10);
        let many: Vec<_> = (1..=15).map(|i| make(&format!("10.0.1.{i}:1"), 100 + i)).collect();
        let now = start + GRACE;
        assert_eq!((all.give_up(now), all.give_up(now)), (2, 2));
        let left: Vec<_> = many.iter().map(|t| t.is_given_up()).collect();
        assert_eq!(left, (0..15).map(|i| i < 4).collect::<Vec<_>>(), "the slowest of the many");
        assert!(!alone.is_given_up(), "though it is slower than they are");
        // HTTP/2 connections count in the same way.
        let network = |third| Network::of(Some([10, 0, third, 1].into()));
        let session = |third| {
            let t = Transfer::of_connection(network(third), 0, start);
            all.add(&t);
            t
        };
        let (lonely, among): (_, Vec<_>) = (session(2), (0..40).map(|_| session(3)).collect());
        all.give_up(now);
        let given = among.iter().filter(|t| t.is_given_up()).count();
        assert_eq!((given, lonely.is_given_up(), alone.is_given_up()), (7, false, false));
    }

    #[test]
    fn the_other_direction_is_another_transfer() {
        let (mut of, now) = (None, Instant::now());
        let none = Network::default;
        let body = transfer(&mut of, none, Direction::Body, 10, now);
        assert!(Rc::ptr_eq(&body, &transfer(&mut of, none, Direction::Body, 20, now)));
        assert!(!Rc::ptr_eq(&body, &transfer(&mut of, none, Direction::Response, 0, now)));
    }

    #[test]
    fn other_waits_take_no_time_of_the_client() {
        let all = Transfers::default();
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let t = Transfer::of_connection(Network::default(), 0, start);
        all.add(&t);
        t.look(false, 100, at(1));
        // The upstream takes an hour, then the client reads a lot.
        assert_eq!(all.give_up(at(3600)), 0);
        t.look(true, 50_000, at(3601));
        assert_eq!((t.rate(at(3602)), all.give_up(at(3604))), (None, 0));
        // Small requests in between do not hide a client that moves hardly anything.
        (3604..3620).for_each(|s| {
            t.look(false, 50_000, at(s));
            t.look(true, 50_000 + (s - 3604) * 20, at(s));
        });
        // The period began at 3605, when the client last counted as fast.
        assert_eq!(t.rate(at(3620)), Some(14 * 20 / 15));
        assert_eq!((all.give_up(at(3620)), t.is_given_up()), (1, true));
    }
}
