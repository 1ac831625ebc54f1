//! DATAGRAM frames (RFC 9221).

use super::Connection;
use crate::error::{Code, Error};
use crate::frame::datagram_head_len;
use bytes::Bytes;
use std::collections::VecDeque;

/// Most bytes that wait to be sent or to be taken; the oldest are dropped.
const MOST: usize = 64 * 1024;
/// Bytes that a datagram takes beside its content: empty ones have a bound, too.
const COST: usize = 64;

/// DATAGRAM frames that wait.
#[derive(Debug, Default)]
pub struct Datagrams {
    received: Queue,
    unsent: Queue,
}

/// Datagrams in order.
#[derive(Debug, Default)]
struct Queue {
    all: VecDeque<Bytes>,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, datagram: Bytes) {
        self.bytes += datagram.len() + COST;
        self.all.push_back(datagram);
        while self.bytes > MOST {
            self.pop();
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        let datagram = self.all.pop_front()?;
        self.bytes -= datagram.len() + COST;
        Some(datagram)
    }
}

impl Datagrams {
    /// Returns the next datagram that is to be sent, if it fits.
    pub fn take_unsent(&mut self, fits: impl FnOnce(usize) -> bool) -> Option<Bytes> {
        self.unsent.all.front().filter(|next| fits(next.len()))?;
        self.unsent.pop()
    }

    /// Returns `true` if datagrams are to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.all.is_empty()
    }

    /// Drops the next datagrams, as long as no packet can carry them.
    pub fn drop_longer(&mut self, longest: usize) {
        while self.unsent.all.front().is_some_and(|next| next.len() > longest) {
            self.unsent.pop();
        }
    }
}

impl Connection {
    /// Returns the longest datagram that can be sent, bytes; `None` if the peer takes none.
    pub fn longest_datagram(&self) -> Option<usize> {
        let peer = usize::try_from(self.peer?.datagrams).ok().filter(|most| *most > 0)?;
        // The header and the tag of a packet.
        let packet = usize::from(self.path.mtu.current()) - 1 - self.outbound.remote.active().len() - 4 - 16;
        let most = peer.min(packet);
        // Type and length.
        Some(most.saturating_sub(datagram_head_len(most, false)))
    }

    /// Sends a datagram, if no more than 64 KB wait; otherwise the oldest is dropped. Returns `false` if it is too long.
    pub fn send_datagram(&mut self, content: Bytes) -> bool {
        let fits = self.longest_datagram().is_some_and(|most| content.len() <= most);
        if fits {
            self.datagrams.get_or_insert_default().unsent.push(content);
            self.has_sent_all = false;
        }
        fits
    }

    /// Takes a datagram that came.
    pub fn receive_datagram(&mut self) -> Option<Bytes> {
        self.datagrams.as_mut()?.received.pop()
    }

    /// Handles a DATAGRAM frame of `len` bytes.
    pub(super) fn datagram_frame(&mut self, content: Bytes, len: usize) -> Result<(), Error> {
        if len > usize::from(self.config.datagrams) {
            return Err(Error::new(Code::PROTOCOL_VIOLATION, "sent a DATAGRAM frame that was not asked for"));
        }
        let queue = &mut self.datagrams.get_or_insert_default().received;
        let was_empty = queue.all.is_empty();
        // Copied, so that a few bytes do not keep a large datagram.
        queue.push(Bytes::copy_from_slice(&content));
        if was_empty {
            self.events.push_back(super::Event::Datagram);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_dropped() {
        let mut queue = Queue::default();
        for n in 0..70u8 {
            queue.push(Bytes::from(vec![n; 1024]));
        }
        assert_eq!((queue.all.len(), queue.bytes), (60, 60 * (1024 + COST)));
        assert_eq!(queue.pop().map(|d| d[0]), Some(10));
        (0..10_000).for_each(|_| queue.push(Bytes::new()));
        assert_eq!(queue.all.len(), MOST / COST);
    }
}
