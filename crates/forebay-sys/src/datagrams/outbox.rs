//! Datagrams of several peers that leave with one system call (sendmmsg(2)). Hot path.

use super::{Datagram, Destination, MOST, Space, last_error, mark, send, send_marked, space, write};
use nix::libc;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

/// Bytes that may wait for the others. With more a system call of its own costs little, and one buffer that serves again and again stays in
/// the cache of the processor.
const MANY: usize = 16 * 1024;
/// Largest buffer that is kept for the next datagram, bytes. Ten answers of 1 KB that leave in one piece grow one beyond 16 KB.
const LARGEST: usize = 64 * 1024;
/// Memory of all buffers that are kept, bytes.
const KEPT: usize = 1 << 20;

/// Datagram, or several in one piece, that wait to be sent.
#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    segment: usize,
    to: Destination,
    ecn: Option<u8>,
}

impl Message {
    fn datagram(&self) -> Datagram<'_> {
        Datagram { bytes: &self.bytes, segment: self.segment }
    }
}

/// Datagrams that wait to be sent together.
pub struct Outbox {
    space: NonNull<Space>,
    messages: Vec<Message>,
    /// Sum of their lengths.
    bytes: usize,
    /// Memory of datagrams that have been sent.
    spare: Vec<Vec<u8>>,
    /// Sum of their capacities.
    kept: usize,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("messages", &self.messages.len()).finish_non_exhaustive()
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        // SAFETY: it comes from `space`, and nothing else frees it.
        drop(unsafe { Box::from_raw(self.space.as_ptr()) });
    }
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox { space: space(), messages: Vec::new(), bytes: 0, spare: Vec::new(), kept: 0 }
    }
}

impl Outbox {
    /// Returns an empty buffer for a datagram.
    pub fn buffer(&mut self) -> Vec<u8> {
        let buffer = self.spare.pop().unwrap_or_default();
        self.kept -= buffer.capacity();
        buffer
    }

    /// Keeps the memory of a buffer.
    pub fn give_back(&mut self, mut buffer: Vec<u8>) {
        let size = buffer.capacity();
        let fits = size <= LARGEST && self.kept + size <= KEPT;
        // A large one is kept, too, for the pieces of a long transfer.
        if self.spare.len() < MOST && (fits || self.spare.is_empty()) {
            self.kept += size;
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Adds a datagram. `segment`: size of the datagrams that it is to be split into; 0: it is one. `ecn`: see [`send_marked`].
    pub fn push(&mut self, bytes: Vec<u8>, segment: usize, to: Destination, ecn: Option<u8>) {
        self.bytes += bytes.len();
        self.messages.push(Message { bytes, segment, to, ecn });
    }

    /// Returns `true` if no more should wait.
    pub fn is_full(&self) -> bool {
        self.messages.len() >= MOST || self.bytes >= MANY
    }

    /// Returns `true` if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Sends all datagrams in their order, without waiting. Calls `failed` for each that could not be sent, with the error of sendmsg(2),
    /// the place it was to go to, and its marks. `IO` or `INVAL`: the device cannot split the piece.
    pub fn send(
        &mut self,
        socket: impl AsFd,
        mut failed: impl FnMut(Errno, Datagram<'_>, &Destination, Option<u8>),
    ) {
        let mut messages = std::mem::take(&mut self.messages);
        self.bytes = 0;
        let mut rest = messages.as_slice();
        while let Some((first, others)) = rest.split_first() {
            let sent = match (others.is_empty(), first.segment, first.ecn) {
                // The call without a header costs a twentieth less.
                (true, 0, None) => send(&socket, &first.bytes, Some(&first.to)).map(|()| 1),
                (true, ..) => send_marked(&socket, first.datagram(), Some(&first.to), first.ecn).map(|()| 1),
                (false, ..) => self.send_some(&socket, rest),
            };
            match sent {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(e) => {
                    failed(e, first.datagram(), &first.to, first.ecn);
                    rest = others;
                }
            }
        }
        for message in messages.drain(..) {
            self.give_back(message.bytes);
        }
        self.messages = messages;
    }

    /// Sends the first of several datagrams. Returns their number, at least 1.
    fn send_some(&mut self, socket: impl AsFd, messages: &[Message]) -> Result<usize, Errno> {
        let space = self.space.as_ptr();
        let mut count = 0;
        for (at, message) in messages.iter().take(MOST).enumerate() {
            // SAFETY: the index is in bounds, and the allocation is live, not moved, and borrowed by nothing else.
            unsafe {
                let header = &raw mut (*space).headers[at].msg_hdr;
                let (piece, name) = (&raw mut (*space).pieces[at], &raw mut (*space).names[at]);
                let control = &raw mut (*space).controls[at];
                let places = (&mut *name, &mut *control);
                write(&mut *header, &mut *piece, places, message.datagram(), Some(&message.to));
                mark(&mut *header, &mut *control, Some(&message.to), message.ecn);
            }
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the descriptor is open during the call; `count` headers have been initialised, and point to buffers that live longer.
        let sent = unsafe {
            let headers = (&raw mut (*space).headers).cast();
            libc::sendmmsg(socket.as_fd().as_raw_fd(), headers, count, flags as _)
        };
        match usize::try_from(sent) {
            Ok(sent) => Ok(sent.max(1)),
            Err(_) => Err(last_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    fn bound() -> (UdpSocket, Destination) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        let to = Destination { addr: socket.local_addr().expect("bound").into(), local: None };
        (socket, to)
    }

    fn got(socket: &UdpSocket) -> Vec<u8> {
        let mut buf = [0; 2048];
        let count = socket.recv(&mut buf).expect("a datagram");
        buf[..count].to_vec()
    }

    #[test]
    fn datagrams_of_several_peers_leave_together() {
        let (server, _) = bound();
        let peers = [bound(), bound()];
        let mut outbox = Outbox::default();
        assert!(outbox.is_empty());
        for n in 0..2 * MOST as u8 {
            let mut buffer = outbox.buffer();
            buffer.push(n);
            outbox.push(
                buffer,
                0,
                peers[usize::from(n) % 2].1.clone(),
                [None, Some(2), Some(1)][usize::from(n) % 3],
            );
            assert_eq!(outbox.is_full(), usize::from(n) + 1 >= MOST);
        }
        outbox.send(&server, |e, _, _, _| panic!("{e}"));
        assert!(outbox.is_empty() && !outbox.is_full() && outbox.buffer().is_empty());
        for n in 0..2 * MOST as u8 {
            assert_eq!(got(&peers[usize::from(n) % 2].0), [n]);
        }
        // Pieces that the kernel splits, beside one that it does not take and an empty one.
        outbox.push([[1; 1000], [2; 1000]].concat(), 1000, peers[0].1.clone(), Some(2));
        outbox.push(vec![7; 70_000], 0, peers[1].1.clone(), None);
        assert!(outbox.is_full());
        outbox.push(vec![3], 0, peers[1].1.clone(), None);
        outbox.push(Vec::new(), 0, peers[1].1.clone(), None);
        let mut errors = Vec::new();
        outbox.send(&server, |e, datagram, to, _| errors.push((e, datagram.bytes.len(), to.clone())));
        assert_eq!(errors, [(Errno::MSGSIZE, 70_000, peers[1].1.clone())]);
        assert_eq!((got(&peers[0].0), got(&peers[0].0)), (vec![1; 1000], vec![2; 1000]));
        assert_eq!((got(&peers[1].0), got(&peers[1].0)), (vec![3], Vec::new()));
        // The only one.
        outbox.push(vec![4], 0, peers[0].1.clone(), None);
        outbox.send(&server, |e, _, _, _| panic!("{e}"));
        assert_eq!(got(&peers[0].0), [4]);
    }

    #[test]
    fn little_memory_is_kept() {
        let mut outbox = Outbox::default();
        for _ in 0..3 {
            outbox.give_back(Vec::with_capacity(2 * LARGEST));
        }
        assert_eq!(outbox.spare.len(), 1);
        for _ in 0..2 * MOST {
            outbox.give_back(Vec::with_capacity(10));
        }
        assert_eq!(outbox.spare.len(), MOST);
    }
}
