//! Streams of a connection, as HTTP/3 uses them. Hot path.

use super::Link;
use bytes::Bytes;
use forebay_http::h3::Code;
use forebay_http::h3::transport::{Follows, Received, Transport, Unwritten};
use forebay_quic::id::{Dir, StreamId};
use forebay_quic::stream::{Chunk, Next, ReadError, WriteError};

/// Each call borrows the connection for itself: whether there is something to send is found at the end of the turn.
impl Transport for Link {
    fn open(&self) -> Option<u64> {
        let mut streams = self.streams();
        let id = streams.open(Dir::Uni)?;
        let _ = streams.set_priority(id, i32::MAX);
        Some(id.0)
    }

    fn accept(&self) -> Option<u64> {
        self.streams().accept(Dir::Uni).map(|id| id.0)
    }

    #[inline]
    fn read(&self, id: u64, max: usize) -> Received {
        match self.streams().read(StreamId(id), max) {
            Ok(Some(Chunk { bytes, next })) => Received::Bytes(bytes, follows(next)),
            Ok(None) => Received::End,
            Err(ReadError::Blocked) => Received::Blocked,
            Err(ReadError::Reset(_)) => Received::Reset,
            Err(ReadError::Closed) => Received::Closed,
        }
    }

    #[inline]
    fn write(&self, id: u64, bytes: &[u8]) -> Result<usize, Unwritten> {
        self.streams().write_slice(StreamId(id), bytes).map_err(unwritten)
    }

    #[inline]
    fn write_shared(&self, id: u64, bytes: &mut Bytes) -> Result<usize, Unwritten> {
        self.streams().write(StreamId(id), bytes).map_err(unwritten)
    }

    fn finish(&self, id: u64) {
        let _ = self.streams().finish(StreamId(id));
    }

    fn stop(&self, id: u64, code: Code) {
        let _ = self.streams().stop(StreamId(id), code.number());
    }
}

fn follows(next: Next) -> Follows {
    match next {
        Next::More => Follows::More,
        Next::Blocked => Follows::Blocked,
        Next::End => Follows::End,
    }
}

fn unwritten(error: WriteError) -> Unwritten {
    match error {
        WriteError::Blocked => Unwritten::Blocked,
        WriteError::Stopped(_) => Unwritten::Stopped,
        WriteError::Closed => Unwritten::Closed,
    }
}
