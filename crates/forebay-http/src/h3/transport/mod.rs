//! The QUIC streams of a connection, as HTTP/3 uses them (RFC 9000, section 2). Hot path.

use super::Code;
use bytes::Bytes;

/// QUIC streams of a connection. Identifiers are QUIC's.
pub trait Transport {
    /// Opens a unidirectional stream whose bytes are sent before those of others. Returns `None` if the peer allows no more.
    fn open(&self) -> Option<u64>;
    /// Returns the next unidirectional stream that the peer has opened.
    fn accept(&self) -> Option<u64>;
    /// Reads at most `max` bytes of a stream.
    fn read(&self, id: u64, max: usize) -> Received;
    /// Copies bytes to a stream. Returns their number, which may be less than all.
    ///
    /// # Errors
    /// [`Unwritten`] if the stream takes none.
    fn write(&self, id: u64, bytes: &[u8]) -> Result<usize, Unwritten>;
    /// Writes bytes without a copy, and removes them from `bytes`. Returns their number.
    ///
    /// # Errors
    /// [`Unwritten`] if the stream takes none.
    fn write_shared(&self, id: u64, bytes: &mut Bytes) -> Result<usize, Unwritten>;
    /// Ends our side of a stream.
    fn finish(&self, id: u64);
    /// Asks the peer to send no more on a stream.
    fn stop(&self, id: u64, code: Code);
}

/// Result of reading a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes, and what follows them. There are none only if the stream ends.
    Bytes(Bytes, Follows),
    /// The stream ends.
    End,
    /// There is nothing now. QUIC says when there is more.
    Blocked,
    /// The peer has reset the stream.
    Reset,
    /// The stream does not exist any more.
    Closed,
}

/// What follows bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// There are more bytes.
    More,
    /// There is nothing now. QUIC says when there is more.
    Blocked,
    /// The stream ends.
    End,
}

/// Reason for which nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// There is no room now. QUIC says when there is.
    Blocked,
    /// The peer reads no more.
    Stopped,
    /// The stream has ended, was reset, or does not exist.
    Closed,
}

#[cfg(test)]
pub(super) mod memory;
