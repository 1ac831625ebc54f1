//! Datagrams of servers on their way to clients. In a turn with many events they leave together, which takes one system call for
//! all and wakes a local receiver once. Hot path.

use super::sockets::Sockets;
use forebay_sys::datagrams::{self, Batch, Destination, MOST};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Result of sending some datagrams.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Bytes sent.
    pub bytes: u64,
    /// First error that is not a lack of room.
    pub error: Option<Errno>,
}

/// Sends datagrams of a batch. Those for which there is no room are lost, as elsewhere on their way.
pub(super) fn send(fd: &OwnedFd, batch: &mut Batch, range: Range<usize>) -> Sent {
    let mut sent = Sent::default();
    let mut at = range.start;
    while at < range.end {
        match batch.send(fd, at..range.end) {
            Ok(count) => {
                let passed = (at..at + count).filter_map(|n| batch.get(n));
                sent.bytes += passed.map(|d| d.bytes.len() as u64).sum::<u64>();
                at += count;
            }
            Err(Errno::AGAIN | Errno::NOBUFS) => break,
            // Caused by an earlier datagram: this one has not been sent. Not twice, since more may follow.
            Err(e @ Errno::CONNREFUSED) if sent.error.is_none() => sent.error = Some(e),
            Err(e) => {
                match batch.get(at).filter(|d| d.count() > 1) {
                    // Some devices cannot split a coalesced piece (udp(7), UDP_SEGMENT).
                    Some(coalesced) => {
                        let to = batch.target(at);
                        let whole = coalesced.parts().filter(|part| datagrams::send(fd, part, to).is_ok());
                        sent.bytes += whole.map(|part| part.len() as u64).sum::<u64>();
                    }
                    None => sent.error = sent.error.or(Some(e)),
                }
                at += 1;
            }
        }
    }
    sent
}

/// Datagrams that leave over the socket of one listener.
#[derive(Default)]
pub(super) struct Responses {
    batch: Option<Batch>,
    /// Socket of the listener. Its last session may end before its answers leave.
    socket: Option<Arc<OwnedFd>>,
    listener: u32,
    /// The poller has been asked for a step in which they leave.
    asked: bool,
    /// Error that has not been logged.
    error: Option<Errno>,
}

/// Time at which answers leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// At once.
    Now,
    /// In the step that the poller does after the other events.
    InTurn,
    /// In the step that it has been asked for already, or there are none.
    Asked,
}

impl Responses {
    /// Prepares for answers over the socket of a listener. Those over another socket leave.
    pub(super) fn prepare(&mut self, listener: u32, sockets: &Sockets) {
        if self.socket.is_none() || self.listener != listener {
            self.leave();
            (self.listener, self.socket) = (listener, sockets.get(listener));
        }
    }

    /// Receives at most `most` datagrams of a server. Returns those and the bytes of all. Those for a client without a name are
    /// discarded.
    ///
    /// # Errors
    /// Errors of recvmmsg(2).
    pub(super) fn receive(
        &mut self,
        server: &OwnedFd,
        most: usize,
        to: &Destination,
    ) -> Result<Received, Errno> {
        if self.batch.as_ref().is_some_and(|batch| batch.len() == MOST) {
            self.send();
        }
        let batch = self.batch.get_or_insert_with(Batch::new);
        let start = batch.len();
        // Otherwise the caller could not tell whether there are more.
        let most = most.min(MOST - start);
        let pieces = batch.receive(server, most)?;
        batch.direct(start..start + pieces, Some(to));
        let mut received = Received { datagrams: 0, bytes: 0, pieces, drained: pieces < most };
        for d in (start..start + pieces).filter_map(|n| batch.get(n)) {
            received.datagrams += d.count() as u64;
            received.bytes += d.bytes.len() as u64;
        }
        if to.is_nameless() {
            batch.truncate(start);
        }
        Ok(received)
    }

    /// Tells when the answers leave. `busy`: the turn has many events.
    pub(super) fn due(&mut self, busy: bool) -> Leave {
        if self.batch.as_ref().is_none_or(Batch::is_empty) {
            // Kept, it would keep the port of a removed listener.
            self.socket = None;
            return Leave::Asked;
        }
        match (busy, std::mem::replace(&mut self.asked, busy)) {
            (false, _) => Leave::Now,
            (true, false) => Leave::InTurn,
            (true, true) => Leave::Asked,
        }
    }

    /// Sends the answers, and forgets the socket.
    pub(super) fn leave(&mut self) {
        self.send();
        self.asked = false;
        self.socket = None;
    }

    fn send(&mut self) {
        let Some(batch) = &mut self.batch else { return };
        if let Some(socket) = &self.socket {
            let all = 0..batch.len();
            self.error = self.error.or(send(socket, batch, all).error);
        }
        batch.clear();
    }

    /// Takes the error of a send.
    pub(super) fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }
}

/// Numbers of received datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// Datagrams.
    pub datagrams: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pieces in which they have come: the kernel coalesces some.
    pub pieces: usize,
    /// There are no more: the next event reports others.
    pub drained: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    fn bound() -> (Arc<OwnedFd>, Destination) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        let to = Destination { addr: socket.local_addr().expect("bound").into(), local: None };
        (Arc::new(socket.into()), to)
    }

    #[test]
    fn answers_leave_together_over_the_socket_of_their_listener() {
        let ((first, _), (second, _)) = (bound(), bound());
        let (server, at) = bound();
        let (client, to) = bound();
        let sockets = Sockets::default();
        sockets.receiving(0, &first);
        sockets.receiving(1, &second);
        let mut answers = Responses::default();
        assert_eq!(answers.due(true), Leave::Asked);
        for byte in 0..3 {
            datagrams::send(&first, &[byte; 3], Some(&at)).expect("sent");
        }
        answers.prepare(0, &sockets);
        let two = Received { datagrams: 2, bytes: 6, pieces: 2, drained: false };
        assert_eq!(answers.receive(&server, 2, &to), Ok(two));
        assert_eq!((answers.due(true), answers.due(true)), (Leave::InTurn, Leave::Asked));
        let mut batch = Batch::new();
        assert_eq!(batch.receive(&client, MOST), Err(Errno::AGAIN));
        // Another listener, whose answer leaves at once.
        answers.prepare(1, &sockets);
        assert_eq!(batch.receive(&client, MOST), Ok(2));
        let last = Received { datagrams: 1, bytes: 3, pieces: 1, drained: true };
        assert_eq!(answers.receive(&server, 2, &to), Ok(last));
        assert_eq!(answers.due(false), Leave::Now);
        answers.leave();
        assert_eq!((batch.receive(&client, MOST), answers.take_error()), (Ok(1), None));
        assert_ne!(batch.sender(0), batch.sender(2));
        // Without answers it does not keep the socket, whose listener may be removed.
        answers.prepare(0, &sockets);
        assert_eq!(answers.receive(&server, 1, &to), Err(Errno::AGAIN));
        assert_eq!((answers.due(true), Arc::strong_count(&first)), (Leave::Asked, 2));
    }
}
