//! Passes bytes both ways between two connections until one of them ends (for HTTP: RFC 9110, sections 7.8 and 9.3.6).
//! One buffer a direction; nothing more is read before it has been written. Hot path.

use crate::io::Io;
use crate::wire::{Then, Wire};
use rustix::io::Errno;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Bytes read at once.
const READ: usize = 16 * 1024;

/// One of the two connections.
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

/// One side, and the bytes received from it before.
#[derive(Debug)]
pub struct End<'w> {
    /// Its connection.
    pub wire: &'w mut Wire,
    /// Bytes that it has sent and that have not been passed on.
    pub early: Vec<u8>,
    /// Its times.
    pub timeouts: Timeouts,
}

/// Reason for which a relay is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The side has shut down its sending direction, or its connection is broken.
    Closed(Side),
    /// The side took or sent nothing for too long.
    TimedOut(Side),
}

/// Result of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// Cause of the end.
    pub ended: Ended,
    /// Bytes of the client that the server's connection has taken.
    pub from_client: u64,
    /// Bytes of the server that the client's connection has taken.
    pub from_server: u64,
}

/// Passes bytes until one side ends or has done nothing for too long.
pub async fn relay(io: &Io, client: End<'_>, server: End<'_>) -> Relayed {
    let times = (client.timeouts, server.timeouts);
    let mut up = Way::new(Side::Client, client.early);
    let mut down = Way::new(Side::Server, server.early);
    let (client, server) = (client.wire, server.wire);
    let ended = loop {
        // Both directions take their step in each round, so a fast one cannot starve the other.
        let steps = (up.step(io, client, server), down.step(io, server, client));
        match steps {
            (Transfer::Over(side), _) | (_, Transfer::Over(side)) => break Ended::Closed(side),
            (Transfer::Blocked, Transfer::Blocked) => {}
            _ => continue,
        }
        let (timeout, side) = patience(up.is_writing(server), down.is_writing(client), times);
        let ready = std::future::poll_fn(|cx| {
            // Both are polled, so that each is registered for its event.
            let up = up.poll_ready(io, client, server, cx).is_ready();
            let down = down.poll_ready(io, server, client, cx).is_ready();
            if up || down { Poll::Ready(()) } else { Poll::Pending }
        });
        if io.poller.deadline(Instant::now() + timeout, ready).await.is_none() {
            break Ended::TimedOut(side);
        }
    };
    Relayed { ended, from_client: up.passed, from_server: down.passed }
}

/// Chooses the side whose time is over first when no bytes pass, and that time. `up` and `down`: whether bytes for the server
/// and for the client wait for room.
fn patience(up: bool, down: bool, (client, server): (Timeouts, Timeouts)) -> (Duration, Side) {
    let up = if up { (server.send, Side::Server) } else { (client.read, Side::Client) };
    let down = if down { (client.send, Side::Client) } else { (server.read, Side::Server) };
    if up.0 < down.0 { up } else { down }
}

/// One direction.
struct Way {
    /// The side that sends.
    from: Side,
    buf: Vec<u8>,
    /// Number of bytes of `buf` that have been written.
    at: usize,
    ended: bool,
    /// The last write found no room.
    blocked: bool,
    passed: u64,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    Progress,
    /// Nothing can be read, or nothing can be written.
    Blocked,
    /// This side has ended.
    Over(Side),
}

impl Way {
    fn new(from: Side, buf: Vec<u8>) -> Way {
        Way { from, buf, at: 0, ended: false, blocked: false, passed: 0 }
    }

    fn to(&self) -> Side {
        match self.from {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }

    /// Returns `true` if bytes wait for the receiver. If not, this direction waits for the sender.
    fn is_writing(&self, to: &Wire) -> bool {
        self.at < self.buf.len() || to.has_unsent()
    }

    fn step(&mut self, io: &Io, from: &mut Wire, to: &mut Wire) -> Transfer {
        if self.is_writing(to) { self.write(io, to) } else { self.read(io, from) }
    }

    fn read(&mut self, io: &Io, from: &mut Wire) -> Transfer {
        self.buf.clear();
        self.at = 0;
        if self.ended {
            return Transfer::Over(self.from);
        }
        if !from.is_readable(io) {
            return Transfer::Blocked;
        }
        self.buf.reserve(READ);
        match from.read(io, &mut self.buf) {
            Ok(n) => {
                self.ended = n == 0;
                Transfer::Progress
            }
            Err(Errno::AGAIN) => Transfer::Blocked,
            Err(_) => Transfer::Over(self.from),
        }
    }

    fn write(&mut self, io: &Io, to: &mut Wire) -> Transfer {
        let rest = self.buf.get(self.at..).unwrap_or_default();
        match to.send(io, rest, Then::Nothing) {
            // Over TLS, no bytes and room left means that sealed records have left: progress, too.
            Ok(sent) if sent.bytes > 0 || !sent.full => {
                self.at += sent.bytes;
                self.passed += sent.bytes as u64;
                Transfer::Progress
            }
            Ok(_) | Err(Errno::AGAIN) => {
                self.blocked = true;
                Transfer::Blocked
            }
            Err(_) => Transfer::Over(self.to()),
        }
    }

    fn poll_ready(&mut self, io: &Io, from: &Wire, to: &Wire, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_writing(to) {
            return from.poll_readable(io, false, cx);
        }
        // Once for each blocked write. A second time would wipe out the event that has come since.
        let clear = std::mem::take(&mut self.blocked);
        to.poll_writable(io, clear, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::task::Waker;

    const SECOND: Duration = Duration::from_secs(1);

    /// A connection and its other end.
    fn pair(io: &Io) -> (Wire, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Wire::Plain(io.poller.insert(ours.into())), theirs)
    }

    fn end<'w>(wire: &'w mut Wire, early: &[u8]) -> End<'w> {
        let timeouts = Timeouts { read: 60 * SECOND, send: 60 * SECOND };
        End { wire, early: early.to_vec(), timeouts }
    }

    /// Bytes received before are passed both ways before the end of one side ends the relay.
    #[test]
    fn bytes_pass_until_a_side_ends() {
        let io = Io::new().unwrap();
        let ((mut a, mut client), (mut b, mut server)) = (pair(&io), pair(&io));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let relay = relay(&io, end(&mut a, b"early"), end(&mut b, b"answer"));
        let done = std::pin::pin!(relay).poll(&mut Context::from_waker(Waker::noop()));
        let closed = Ended::Closed(Side::Client);
        assert_eq!(done, Poll::Ready(Relayed { ended: closed, from_client: 5, from_server: 6 }));
        let mut got = [[0; 6]; 2];
        server.read_exact(&mut got[0][..5]).unwrap();
        client.read_exact(&mut got[1]).unwrap();
        assert_eq!(got, [*b"early\0", *b"answer"]);
    }

    #[test]
    fn a_broken_connection_is_that_of_the_receiver() {
        let io = Io::new().unwrap();
        let ((mut a, _client), (mut b, server)) = (pair(&io), pair(&io));
        drop(server);
        let relay = relay(&io, end(&mut a, b"early"), end(&mut b, b""));
        let done = std::pin::pin!(relay).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(done.map(|r| (r.ended, r.from_client)), Poll::Ready((Ended::Closed(Side::Server), 0)));
    }

    /// The times count for the side that holds things up.
    #[test]
    fn the_slower_side_is_waited_for() {
        let client = Timeouts { read: Duration::MAX, send: 5 * SECOND };
        let server = Timeouts { read: 3 * SECOND, send: 2 * SECOND };
        let of = |up, down| patience(up, down, (client, server));
        assert_eq!(of(false, false), (3 * SECOND, Side::Server), "the client may be silent");
        assert_eq!(of(true, false), (2 * SECOND, Side::Server));
        assert_eq!(of(false, true), (5 * SECOND, Side::Client), "the server cannot speak");
        assert_eq!(of(true, true), (2 * SECOND, Side::Server));
    }
}
