//! Streams of connections that carry several requests at a time.

use crate::wire::Sent;
use rustix::io::Errno;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A stream of a multiplexed connection (HTTP/2, RFC 9113 section 5). Content goes through `read` and `send` without its
/// framing; field blocks are encoded by the caller.
pub trait Mux: std::fmt::Debug {
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

    /// Number of bytes that [`Mux::send`] would take now.
    fn room(&self) -> usize;

    /// Queues a field block: the head of a response, or its trailers.
    fn send_head(&self, block: &[u8]);

    /// Queues the field block of an interim response (RFC 9110, section 15.2).
    fn send_interim(&self, block: &[u8]);

    /// Ends what is sent on the stream, with the last frame that was queued if it has not left. Nothing may be sent after it.
    fn end(&self);

    /// Length of the received content, if all of it has come.
    fn whole(&self) -> Option<usize>;

    /// Returns `true` if the stream or its connection is gone.
    fn is_broken(&self) -> bool;

    /// Is ready when [`Mux::read`] may give something.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Is ready when [`Mux::send`] may take something.
    fn poll_writable(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()>;

    /// Is ready when the stream or its connection is gone.
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Counts the request among those that wait for their client, or no longer. A connection all of whose streams wait
    /// may be closed when its place is needed.
    fn wait_for_client(&self, begins: bool, now: Instant);

    /// Returns `true` if the worker needs the connection's place for another one.
    fn is_given_up(&self) -> bool;
}
