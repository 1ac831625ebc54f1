//! What applications need of a transport, and how a connection of the crate gives it.

use bytes::Bytes;
use forebay_quic::connection::{Connection, Event, Reason};
use forebay_quic::id::{Dir, StreamId};
use forebay_quic::stream::{Next, ReadError, StreamEvent, WriteError};

/// Reason for the end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The application of the peer wanted it.
    Closed(u64, Vec<u8>),
    /// The peer's application wanted it before the handshake was complete, so that the peer says no more.
    ClosedEarly,
    TimedOut,
    Reset,
    /// Nothing that should happen.
    Other(String),
}

/// News of a connection.
#[derive(Clone, Debug)]
pub enum News {
    Connected,
    Opened,
    Available(Dir),
    Readable(StreamId),
    Writable(StreamId),
    Finished(StreamId),
    Stopped(StreamId, u64),
    Datagram,
    Token(Vec<u8>),
    Lost(End),
}

pub enum Write {
    Taken(usize),
    Blocked,
    Stopped(u64),
    Closed,
}

pub enum Read {
    /// Content; the stream ends behind it; there may be more.
    Some(Bytes, bool, bool),
    Blocked,
    End,
    Reset(u64),
    Closed,
}

/// Connection.
pub trait Transport {
    fn news(&mut self) -> Option<News>;
    fn open(&mut self, dir: Dir) -> Option<StreamId>;
    fn accept(&mut self, dir: Dir) -> Option<StreamId>;
    fn write(&mut self, id: StreamId, content: Vec<u8>) -> Write;
    fn finish(&mut self, id: StreamId) -> bool;
    fn reset(&mut self, id: StreamId, code: u64);
    fn stop(&mut self, id: StreamId, code: u64);
    /// The peer has stopped a stream.
    fn after_stop(&mut self, id: StreamId, code: u64);
    fn read(&mut self, id: StreamId, most: usize) -> Read;
    fn prioritize(&mut self, id: StreamId, priority: i32);
    fn send_datagram(&mut self, content: Bytes);
    fn receive_datagram(&mut self) -> Option<Bytes>;
}

impl Transport for Connection {
    fn news(&mut self) -> Option<News> {
        loop {
            return Some(match self.poll()? {
                Event::Connected => News::Connected,
                Event::Stream(StreamEvent::Opened { .. }) => News::Opened,
                Event::Stream(StreamEvent::Available { dir }) => News::Available(dir),
                Event::Stream(StreamEvent::Readable { id }) => News::Readable(id),
                Event::Stream(StreamEvent::Writable { id }) => News::Writable(id),
                Event::Stream(StreamEvent::Finished { id }) => News::Finished(id),
                Event::Stream(StreamEvent::Stopped { id, code }) => News::Stopped(id, code),
                Event::Stream(StreamEvent::ResetAfterEnd { .. }) => continue,
                Event::Token(token) => News::Token(token.into()),
                Event::Datagram => News::Datagram,
                Event::Lost(Reason::PeerClosed { code, reason }) => {
                    News::Lost(End::Closed(code, reason.into()))
                }
                Event::Lost(Reason::TimedOut) => News::Lost(End::TimedOut),
                Event::Lost(Reason::Reset) => News::Lost(End::Reset),
                Event::Lost(Reason::PeerError(e)) if e.code.0 == 0xc => News::Lost(End::ClosedEarly),
                Event::Lost(reason) => News::Lost(End::Other(format!("{reason:?}"))),
            });
        }
    }

    fn open(&mut self, dir: Dir) -> Option<StreamId> {
        self.streams().open(dir)
    }

    fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.streams().accept(dir)
    }

    fn write(&mut self, id: StreamId, content: Vec<u8>) -> Write {
        let written = if content.len().is_multiple_of(2) {
            self.streams().write_slice(id, &content)
        } else {
            self.streams().write(id, &mut Bytes::from(content))
        };
        match written {
            Ok(n) => Write::Taken(n),
            Err(WriteError::Blocked) => Write::Blocked,
            Err(WriteError::Stopped(code)) => Write::Stopped(code),
            Err(WriteError::Closed) => Write::Closed,
        }
    }

    fn finish(&mut self, id: StreamId) -> bool {
        self.streams().finish(id).is_ok()
    }

    fn reset(&mut self, id: StreamId, code: u64) {
        let _ = self.streams().reset(id, code);
    }

    fn stop(&mut self, id: StreamId, code: u64) {
        self.streams().stop(id, code).expect("a stream that is open");
    }

    fn after_stop(&mut self, _: StreamId, _: u64) {}

    fn read(&mut self, id: StreamId, most: usize) -> Read {
        match self.streams().read(id, most) {
            Ok(Some(chunk)) => Read::Some(chunk.bytes, chunk.next == Next::End, chunk.next == Next::More),
            Ok(None) => Read::End,
            Err(ReadError::Blocked) => Read::Blocked,
            Err(ReadError::Reset(code)) => Read::Reset(code),
            Err(ReadError::Closed) => Read::Closed,
        }
    }

    fn prioritize(&mut self, id: StreamId, priority: i32) {
        self.streams().set_priority(id, priority).expect("a stream that is open");
    }

    fn send_datagram(&mut self, content: Bytes) {
        Connection::send_datagram(self, content);
    }

    fn receive_datagram(&mut self) -> Option<Bytes> {
        Connection::receive_datagram(self)
    }
}
