//! Passes bytes both ways between two connections: tunnels and protocols that were switched to (RFC 9110, sections 7.8 and
//! 9.3.6), and the sessions of stream. Hot path.
//!
//! A [`Pair`] is the state of a relay. It holds no future and no waker: [`Pair::step`] moves what can be moved now and
//! returns the events to wait for. [`Pairs`] steps relays from the events of their sockets, without a task; [`Pair::run`] waits
//! inside one, for streams of a multiplexed connection.
//!
//! A direction reads up to 16 KiB into a buffer of the thread and writes them at once. It keeps the buffer only while the
//! receiver has not taken all bytes. After a read that fills the buffer, the bytes of plain TCP connections pass through a pipe
//! inside the kernel, until few pass at a time.

mod pairs;
mod way;

pub use pairs::{Owner, Pairs};
pub use way::Quota;

use crate::io::Io;
use crate::reactor::Deadline;
use crate::wire::Wire;
use rustix::io::Errno;
use std::task::{Context, Poll};
use std::time::Duration;
use way::{Link, Stop, Way};

/// One of the two connections of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The connection that was accepted.
    Client,
    /// The connection that was opened.
    Server,
}

/// Times after which a side that does nothing ends the relay. They count only while no bytes pass in either direction.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For sending something. It does not count while the other side takes nothing.
    pub read: Duration,
    /// For taking the bytes that are sent to it.
    pub send: Duration,
}

impl Timeouts {
    /// No limits.
    pub const NEVER: Timeouts = Timeouts { read: Duration::MAX, send: Duration::MAX };
}

/// Rules of a relay. Several relays can have the same.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Times of the client.
    pub client: Timeouts,
    /// Times of the server.
    pub server: Timeouts,
    /// Time without any bytes, in either direction, after which the relay ends (nginx: proxy_timeout).
    pub idle: Duration,
    /// The end of one side does not end the other direction (nginx: proxy_half_close).
    pub half_close: bool,
    /// Bytes read per second from the client, 0: no limit (nginx: proxy_upload_rate).
    pub upload_rate: u64,
    /// Bytes read per second from the server, 0: no limit (nginx: proxy_download_rate).
    pub download_rate: u64,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            client: Timeouts::NEVER,
            server: Timeouts::NEVER,
            idle: Duration::MAX,
            half_close: false,
            upload_rate: 0,
            download_rate: 0,
        }
    }
}

/// Reason for which a relay is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The side has shut down its sending direction. If both sides have done so, this is the later one.
    Closed(Side),
    /// A call on the connection of the side has failed.
    Failed(Side, Call, Errno),
    /// The side took or sent nothing for too long.
    TimedOut(Side),
    /// No bytes passed for too long ([`Rules::idle`]).
    Idle,
    /// The process ends (nginx: worker_shutdown_timeout).
    CutOff,
    /// The server has been removed (Angie: proxy_connection_drop).
    Revoked,
}

/// Call by which bytes pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// recv(2), or what takes its place.
    Recv,
    /// send(2), or what takes its place.
    Send,
}

impl Call {
    /// Returns its name, as in the error log.
    pub fn name(self) -> &'static str {
        match self {
            Call::Recv => "recv()",
            Call::Send => "send()",
        }
    }
}

/// Event that a direction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Its sender's connection has bytes.
    Readable,
    /// Its receiver's connection has room.
    Writable,
    /// The rate limit allows more bytes at this time.
    Until(Deadline),
    /// Nothing: the direction has ended.
    Nothing,
}

impl Wait {
    /// Is ready when the event has happened. Times are left to the caller. The step has noted which connection has no bytes
    /// or no room.
    fn poll(self, io: &Io, from: &Wire, to: &Wire, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Wait::Readable => from.poll_readable(io, cx),
            Wait::Writable => to.poll_writable(io, cx),
            Wait::Until(_) | Wait::Nothing => Poll::Pending,
        }
    }
}

/// Result of [`Pair::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More can be moved now. Other connections should have their turn before.
    Again,
    /// No bytes can be moved before one of these events.
    Wait {
        /// Event of the direction from the client to the server.
        up: Wait,
        /// Event of the direction from the server to the client.
        down: Wait,
    },
    /// The relay is over.
    Over(Ended),
}

/// State of a relay. It holds no memory and no descriptors except for bytes that a receiver has not taken.
#[derive(Debug)]
pub struct Pair {
    up: Way,
    down: Way,
    /// Beginning of the relay, for the rate limits.
    began: Deadline,
    /// Time of the server's first byte.
    answered: Option<Deadline>,
    /// Time from which timeouts count: bytes passed last, or a pause of a rate limit ends.
    moved: Deadline,
}

impl Pair {
    /// Creates the state. `client` and `server` are bytes that these have sent and that have not been passed on.
    pub fn new(io: &Io, client: Vec<u8>, server: Vec<u8>) -> Pair {
        let now = io.poller.after(Duration::ZERO);
        Pair { up: Way::new(client), down: Way::new(server), began: now, answered: None, moved: now }
    }

    /// Returns the number of bytes that have been read from a side.
    pub fn received_from(&self, side: Side) -> u64 {
        self.way_from(side).received()
    }

    /// Returns the number of bytes of a side that the other side's connection has taken.
    pub fn passed_from(&self, side: Side) -> u64 {
        self.way_from(side).passed()
    }

    /// Returns the time from the beginning of the relay to the server's first byte.
    pub fn time_to_answer(&self) -> Option<Duration> {
        self.answered.map(|t| t.since(self.began))
    }

    fn way_from(&self, side: Side) -> &Way {
        match side {
            Side::Client => &self.up,
            Side::Server => &self.down,
        }
    }

    /// Moves what can be moved now, but not more in a direction than others should wait for. The wires have to be the same in
    /// each call.
    pub fn step(&mut self, io: &Io, client: &mut Wire, server: &mut Wire, rules: &Rules) -> Step {
        let now = io.poller.after(Duration::ZERO);
        let elapsed = now.since(self.began);
        let half_close = rules.half_close;
        let quota = Quota { rate: rules.upload_rate, elapsed };
        let mut link = Link { io, from: &mut *client, to: &mut *server, half_close, quota, moved: false };
        // This is looked up before the step, which may shut the second direction as well.
        let server_first = self.down.is_shut();
        let up = self.up.step(&mut link);
        let mut moved = link.moved;
        // The second direction moves even if the first one has ended the relay, so that bytes that have
        // arrived are passed on.
        let quota = Quota { rate: rules.download_rate, elapsed };
        let mut link = Link { io, from: server, to: client, half_close, quota, moved: false };
        let down = self.down.step(&mut link);
        moved |= link.moved;
        if self.answered.is_none() && self.down.received() > 0 {
            self.answered = Some(now);
        }
        for stop in [up, down] {
            match stop {
                Stop::Paused(pause) => self.moved = self.moved.max(now.plus(pause)),
                // A byte in either direction counts for both, as the timeouts are about a relay without any
                // traffic.
                _ if moved => self.moved = self.moved.max(now),
                _ => {}
            }
        }
        match (ended_by(up, down, server_first), up, down) {
            (Some(ended), ..) => Step::Over(ended),
            (None, Stop::Budget, _) | (None, _, Stop::Budget) => Step::Again,
            (None, up, down) => Step::Wait { up: wait_of(up, now), down: wait_of(down, now) },
        }
    }

    /// Returns the time of the next step if none of the events of a [`Step::Wait`] happens before. The relay has ended then, if
    /// there is a cause.
    pub fn deadline(&self, rules: &Rules, up: Wait, down: Wait) -> (Deadline, Option<Ended>) {
        let timeout = [
            Some((rules.idle, Ended::Idle)),
            patience(down, (rules.server, Side::Server), (rules.client, Side::Client)),
            patience(up, (rules.client, Side::Client), (rules.server, Side::Server)),
        ];
        let timeouts = timeout.into_iter().flatten().map(|(d, cause)| (self.moved.plus(d), Some(cause)));
        let pauses = [up, down].into_iter().filter_map(|wait| match wait {
            Wait::Until(deadline) => Some((deadline, None)),
            _ => None,
        });
        let next = timeouts.chain(pauses).min_by_key(|(deadline, _)| *deadline);
        next.unwrap_or((self.moved.plus(Duration::MAX), None))
    }

    /// Passes bytes until one side ends (with [`Rules::half_close`]: until both end), or has done nothing for too long. `is_revoked` is
    /// asked before bytes pass, and may end the relay.
    pub async fn run(
        &mut self,
        io: &Io,
        (client, server): (&mut Wire, &mut Wire),
        rules: &Rules,
        is_revoked: impl Fn() -> bool,
    ) -> Ended {
        loop {
            if is_revoked() {
                return Ended::Revoked;
            }
            let (up, down) = match self.step(io, client, server, rules) {
                Step::Over(ended) => return ended,
                Step::Again => {
                    io.poller.yield_now().await;
                    continue;
                }
                Step::Wait { up, down } => (up, down),
            };
            if up == Wait::Readable && down == Wait::Readable {
                // Neither side has anything to send, and that may last for long.
                client.shrink();
                server.shrink();
            }
            let (deadline, cause) = self.deadline(rules, up, down);
            let ready = std::future::poll_fn(|cx| {
                // Both are polled, so that each is registered for its event.
                let up = up.poll(io, client, server, cx).is_ready();
                let down = down.poll(io, server, client, cx).is_ready();
                if up || down { Poll::Ready(()) } else { Poll::Pending }
            });
            if io.poller.until(deadline, ready).await.is_none()
                && let Some(ended) = cause
            {
                return ended;
            }
        }
    }
}

/// Returns the reason for which the relay is over, if it is. `server_first`: the server's direction had ended before this step.
fn ended_by(up: Stop, down: Stop, server_first: bool) -> Option<Ended> {
    let ended = match (up, down) {
        (Stop::Ended, _) => Ended::Closed(Side::Client),
        (Stop::SenderBroken(e), _) => Ended::Failed(Side::Client, Call::Recv, e),
        (Stop::ReceiverBroken(e), _) => Ended::Failed(Side::Server, Call::Send, e),
        (_, Stop::Ended) => Ended::Closed(Side::Server),
        (_, Stop::SenderBroken(e)) => Ended::Failed(Side::Server, Call::Recv, e),
        (_, Stop::ReceiverBroken(e)) => Ended::Failed(Side::Client, Call::Send, e),
        (Stop::Shut, Stop::Shut) if server_first => Ended::Closed(Side::Client),
        (Stop::Shut, Stop::Shut) => Ended::Closed(Side::Server),
        _ => return None,
    };
    Some(ended)
}

/// Returns the event for which a direction that has stopped at `now` waits.
fn wait_of(stop: Stop, now: Deadline) -> Wait {
    match stop {
        Stop::Empty => Wait::Readable,
        Stop::Full => Wait::Writable,
        Stop::Paused(pause) => Wait::Until(now.plus(pause)),
        Stop::Budget | Stop::Ended | Stop::SenderBroken(_) | Stop::ReceiverBroken(_) | Stop::Shut => {
            Wait::Nothing
        }
    }
}

/// Returns the time that a direction waits for one of its sides, and that side.
fn patience(wait: Wait, from: (Timeouts, Side), to: (Timeouts, Side)) -> Option<(Duration, Ended)> {
    match wait {
        Wait::Readable => Some((from.0.read, Ended::TimedOut(from.1))),
        Wait::Writable => Some((to.0.send, Ended::TimedOut(to.1))),
        Wait::Until(_) | Wait::Nothing => None,
    }
}

#[cfg(test)]
mod tests;
