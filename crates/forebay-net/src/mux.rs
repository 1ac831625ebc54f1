//! Streams of connections that carry several requests at a time.

use crate::wire::{Sent, Then};
use bytes::Bytes;
use rustix::io::Errno;
use std::any::Any;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A stream of a multiplexed connection (HTTP/2, RFC 9113 section 5). Content goes through `read` and `send` without its
/// framing; field blocks are encoded by the caller.
pub trait Mux: Any + std::fmt::Debug {
    /// Moves received content to the spare capacity of `buf`; 0 is the end.
    ///
    /// # Errors
    /// `AGAIN` when there is none yet, `CONNRESET` when the client is gone, `PROTO` when the content is shorter or
    /// longer than its `Content-Length`.
    fn read(&self, buf: &mut Vec<u8>) -> Result<usize, Errno>;

    /// Queues content as far as there is room.
    ///
    /// # Errors
    /// `CONNRESET` when the client is gone.
    fn send(&self, bytes: &[u8]) -> Result<Sent, Errno>;

    /// Queues content as [`Mux::send`] does, without a copy if the stream can keep a part of `bytes`. After [`Then::Close`] nothing but
    /// [`Mux::end`] follows once all of it is taken: the stream may send its end along with the content.
    ///
    /// # Errors
    /// Those of [`Mux::send`].
    fn send_shared(&self, bytes: &Bytes, then: Then) -> Result<Sent, Errno> {
        let _ = then;
        self.send(bytes)
    }

    /// Returns the number of bytes that [`Mux::send`] would take now.
    fn room(&self) -> usize;

    /// Queues a field block: the head of a response, or its trailers. With [`Then::More`] the stream may hold it back until content
    /// or the end follows.
    fn send_head(&self, block: &[u8], then: Then);

    /// Queues the field block of an interim response (RFC 9110, section 15.2).
    fn send_interim(&self, block: &[u8]);

    /// Ends our side of the stream. The last queued frame carries the end if it has not been sent. Nothing may be sent
    /// afterwards.
    fn end(&self);

    /// Returns the length of the content, if all of it has been received.
    fn whole(&self) -> Option<usize>;

    /// Returns `true` if the stream or its connection is gone.
    fn is_broken(&self) -> bool;

    /// Returns `false` if it is known that [`Mux::read`] would find nothing.
    fn is_readable(&self) -> bool {
        true
    }

    /// Is ready when [`Mux::read`] may return content or an error.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Is ready when [`Mux::send`] may take content.
    fn poll_writable(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()>;

    /// Is ready when the stream or its connection is gone.
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Counts the request among those that wait for their client, or no longer. A connection all of whose streams wait
    /// may be closed when its place is needed.
    fn wait_for_client(&self, begins: bool, now: Instant);

    /// Returns `true` if the worker needs the connection's place for another one.
    fn is_given_up(&self) -> bool;
}
