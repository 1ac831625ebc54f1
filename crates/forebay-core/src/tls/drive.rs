//! Drives handshakes with clients to their ends, for every front end.

use super::accept::{Accept, Handshake, TlsServers};
use forebay_net::reactor::Deadline;

/// Result of driving a handshake.
#[derive(Debug, PartialEq, Eq)]
pub enum Driven {
    /// The handshake is complete, and the client's certificate has been judged.
    Done,
    /// The handshake failed, which has been logged.
    Over,
    /// The client sent these plain bytes instead of TLS, perhaps HTTP.
    Plain(Vec<u8>),
    /// The handshake goes on when the client sends more; see [`Patience::Room`].
    Paused,
    /// The client was too slow.
    TimedOut,
}

/// Limit of the wait for the client.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// Wait until this time.
    Until(Deadline),
    /// Wait for room to send until this time, but not for bytes of the client: a connection that only waits for these needs no
    /// runner.
    Room(Deadline),
}

impl<S: TlsServers> Handshake<'_, S> {
    /// Continues the handshake until it has ended. Waits for the client as long as `patience` says, and for the work that the
    /// handshake needs done.
    pub async fn drive(&mut self, patience: Patience) -> Driven {
        if !self.wire.is_handshaking() {
            return Driven::Done;
        }
        let mut reached = self.step();
        loop {
            reached = match reached {
                Accept::Done => return Driven::Done,
                Accept::Over => return Driven::Over,
                Accept::Plain(bytes) => return Driven::Plain(bytes),
                Accept::Later(later) => self.resume(*later).await,
                Accept::Wait => match self.wait(patience).await {
                    None => self.step(),
                    Some(end) => return end,
                },
            };
        }
    }

    /// Waits for the client. Returns the result of driving if the handshake cannot go on now.
    async fn wait(&mut self, patience: Patience) -> Option<Driven> {
        let thread = self.thread;
        let io = &thread.io;
        let waited = match patience {
            Patience::Until(until) | Patience::Room(until) if self.wire.has_unsent() => {
                io.poller.until(until, self.wire.wait_writable(io)).await
            }
            Patience::Until(until) => io.poller.until(until, self.wire.wait_readable(io)).await,
            Patience::Room(_) => return Some(Driven::Paused),
        };
        if waited.is_none() { Some(Driven::TimedOut) } else { None }
    }
}
