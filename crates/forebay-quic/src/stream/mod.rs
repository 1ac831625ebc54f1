//! Streams: their content, flow control and order (RFC 9000, sections 2 to 4). Hot path.
//!
//! - [`Streams`] has all streams of a connection: `application` is what the application calls, `input` takes frames that came, `output`
//!   makes frames to send.
//! - [`Assembler`] puts what arrives in order; the handshake uses it also.
//! - `recv` and `send` are the halves of a stream, `table` finds them, `order` says which one sends next, and `flow` counts for the
//!   whole connection.

mod application;
mod assembler;
mod flow;
mod input;
mod order;
mod output;
mod recv;
mod segments;
mod send;
mod table;
#[cfg(test)]
mod tests;

pub use assembler::{Assembler, GAPS, TooManyGaps};

use crate::id::{Dir, Side, StreamId};
use bytes::Bytes;
use flow::{Incoming, Ours, Outgoing, Theirs};
use order::Order;
use recv::{Phase, Recv};
use send::Send;
use std::collections::VecDeque;
use table::{Half, Index, Slab};

/// Limits of this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Content of one stream that the peer may send ahead, bytes.
    pub stream_window: u64,
    /// Content of all streams that the peer may send ahead, bytes.
    pub window: u64,
    /// Bidirectional streams that the peer may have open at a time.
    pub bi: u64,
    /// Unidirectional streams that the peer may have open at a time.
    pub uni: u64,
    /// Content that is kept until the peer has acknowledged it, bytes of all streams.
    pub send_window: u64,
}

/// Limits of the peer, as in its transport parameters (RFC 9000, section 18.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerLimits {
    /// initial_max_data.
    pub max_data: u64,
    /// initial_max_stream_data_bidi_local: for streams that the peer opens.
    pub max_stream_data_bidi_local: u64,
    /// initial_max_stream_data_bidi_remote: for streams that this side opens.
    pub max_stream_data_bidi_remote: u64,
    /// initial_max_stream_data_uni.
    pub max_stream_data_uni: u64,
    /// initial_max_streams_bidi.
    pub max_streams_bi: u64,
    /// initial_max_streams_uni.
    pub max_streams_uni: u64,
}

impl PeerLimits {
    /// Returns the content that this side may send at first on a stream, bytes.
    fn of(&self, side: Side, id: StreamId) -> u64 {
        match (id.dir(), id.opener() == side) {
            (Dir::Uni, _) => self.max_stream_data_uni,
            (Dir::Bi, true) => self.max_stream_data_bidi_remote,
            (Dir::Bi, false) => self.max_stream_data_bidi_local,
        }
    }
}

/// News for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// The peer has opened streams: [`Streams::accept`] returns them.
    Opened {
        /// Their directions.
        dir: Dir,
    },
    /// [`Streams::open`] returned none, and there is room now.
    Available {
        /// Directions of the streams.
        dir: Dir,
    },
    /// There is something to read after a read that found nothing more: content, the end or a reset.
    Readable {
        /// The stream.
        id: StreamId,
    },
    /// There is room after a write that found too little.
    Writable {
        /// The stream.
        id: StreamId,
    },
    /// The peer has acknowledged all content and the end.
    Finished {
        /// The stream.
        id: StreamId,
    },
    /// The peer reads no more.
    Stopped {
        /// The stream.
        id: StreamId,
        /// Error code of the peer.
        code: u64,
    },
    /// The peer has reset a stream of which everything has arrived.
    ResetAfterEnd {
        /// The stream.
        id: StreamId,
    },
}

/// Reason for which nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// There is nothing now. [`StreamEvent::Readable`] follows.
    Blocked,
    /// The peer has reset the stream with this code.
    Reset(u64),
    /// The receiving half is over, or does not exist.
    Closed,
}

/// Reason for which nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// There is no room now. [`StreamEvent::Writable`] follows.
    Blocked,
    /// The peer reads no more, for this reason.
    Stopped(u64),
    /// The sending half has ended, was reset, or does not exist.
    Closed,
}

/// The half of a stream is over, or does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// What follows content that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is more.
    More,
    /// There is nothing now. [`StreamEvent::Readable`] follows.
    Blocked,
    /// The stream ends here, and the receiving half is over.
    End,
}

/// Content that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The content. It is empty only if the stream ends.
    pub bytes: Bytes,
    /// What follows it, so that most often one read suffices.
    pub next: Next,
}

/// All streams of a connection.
#[derive(Debug)]
pub struct Streams {
    side: Side,
    stream_window: u64,
    index: Index,
    sends: Slab<Send>,
    recvs: Slab<Recv>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Streams of the peer, by [`of`].
    theirs: [Theirs; 2],
    /// Streams of this side, by [`of`].
    ours: [Ours; 2],
    peer: PeerLimits,
    order: Order,
    /// Streams with control frames to send: once for each frame that became due.
    controls: VecDeque<StreamId>,
    events: VecDeque<StreamEvent>,
    /// Streams whose application waits for room.
    waiting: Vec<StreamId>,
    /// 0-RTT was refused.
    was_refused: bool,
}

/// Returns the place of a direction in a pair.
const fn of<T>(pair: &mut [T; 2], dir: Dir) -> &mut T {
    let [bi, uni] = pair;
    match dir {
        Dir::Bi => bi,
        Dir::Uni => uni,
    }
}

/// Both directions.
const DIRS: [Dir; 2] = [Dir::Bi, Dir::Uni];

impl Streams {
    /// Creates the streams of a connection that begins. The peer allows nothing until [`Streams::set_peer`].
    pub fn new(side: Side, limits: Limits) -> Streams {
        Streams {
            side,
            stream_window: limits.stream_window,
            index: Index::new(side),
            sends: Slab::new(),
            recvs: Slab::new(),
            incoming: Incoming::new(limits.window),
            outgoing: Outgoing::new(limits.send_window),
            theirs: [Theirs::new(limits.bi), Theirs::new(limits.uni)],
            ours: Default::default(),
            peer: PeerLimits::default(),
            order: Order::default(),
            controls: VecDeque::new(),
            events: VecDeque::new(),
            waiting: Vec::new(),
            was_refused: false,
        }
    }

    /// Takes the peer's limits over where they are greater than those that are known: for 0-RTT those that were remembered come first.
    pub fn set_peer(&mut self, limits: PeerLimits) {
        self.peer = limits;
        self.on_max_data(limits.max_data);
        self.on_max_streams(Dir::Bi, limits.max_streams_bi);
        self.on_max_streams(Dir::Uni, limits.max_streams_uni);
        // Only a client with early data has streams now, and they are few.
        for dir in DIRS {
            for index in 0..self.index.opened(self.side, dir) {
                let id = StreamId::new(self.side, dir, index);
                self.raise(id, limits.of(self.side, id));
            }
        }
    }

    /// Begins again after the server has refused 0-RTT: everything is to be sent from the first byte on, and the peer's limits are those
    /// that [`Streams::set_peer`] gets next. Nothing that was sent before may be told as acknowledged or lost afterwards.
    pub fn reject_early(&mut self) {
        self.was_refused = true;
        self.order.clear(&mut self.sends);
        self.outgoing.rewind();
        self.ours.iter_mut().for_each(Ours::rewind);
        self.peer = PeerLimits::default();
        self.sends.for_each(|_, send| send.rewind());
    }

    /// Has streams send that the peer allows now, from a number on, after 0-RTT was refused.
    fn release(&mut self, dir: Dir, from: u64) {
        let limit = of(&mut self.ours, dir).limit.min(self.index.opened(self.side, dir));
        for index in from..limit {
            let id = StreamId::new(self.side, dir, index);
            let Some(entry) = self.index.get(id) else { continue };
            if let Some(recv) = entry.recv.slot().and_then(|slot| self.recvs.get_mut(slot)) {
                recv.stop_is_due = matches!(recv.phase, Phase::Stopped(_));
            }
            if let Some(slot) = entry.send.slot()
                && let Some(send) = self.sends.get_mut(slot)
            {
                send.is_held = false;
                self.queue(slot);
            }
            self.controls.push_back(id);
        }
    }

    /// Returns `false` for a stream that the peer does not allow any more since it has refused 0-RTT.
    fn is_allowed(&mut self, id: StreamId) -> bool {
        !self.was_refused || id.opener() != self.side || id.index() < of(&mut self.ours, id.dir()).limit
    }

    /// Gives memory back that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.index.shrink();
        self.sends.shrink();
        self.recvs.shrink();
        self.order.shrink();
        self.controls.shrink_to_fit();
        self.events.shrink_to_fit();
        self.waiting.shrink_to_fit();
    }

    /// Returns the half of a stream that sends: its slot, with a new state if it had none. Returns `None` if it is over.
    #[inline]
    fn sending(&mut self, id: StreamId) -> Option<u32> {
        let entry = self.index.get_mut(id)?;
        if entry.send != Half::FRESH {
            return entry.send.slot();
        }
        let mut send = Send::new(id, self.peer.of(self.side, id));
        send.is_held = !self.is_allowed(id);
        let slot = self.sends.insert(send);
        self.index.get_mut(id)?.send = Half::in_slot(slot);
        Some(slot)
    }

    /// Returns the half of a stream that receives: its slot, with a new state if it had none. Returns `None` if it is over.
    #[inline]
    fn receiving(&mut self, id: StreamId) -> Option<u32> {
        let entry = self.index.get_mut(id)?;
        if entry.recv == Half::FRESH {
            let slot = self.recvs.insert(Recv::new(self.stream_window));
            entry.recv = Half::in_slot(slot);
        }
        entry.recv.slot()
    }

    /// Forgets the state of a sending half that is over.
    fn close_send(&mut self, id: StreamId, slot: u32) {
        if let Some(send) = self.sends.get_mut(slot) {
            self.order.remove(send);
        }
        self.sends.remove(slot);
        if let Some(entry) = self.index.get_mut(id) {
            entry.send = Half::OVER;
        }
        self.close(id);
    }

    /// Forgets the state of a receiving half that is over.
    fn close_recv(&mut self, id: StreamId, slot: u32) {
        let was_reset = self.recvs.get_mut(slot).is_some_and(|recv| recv.reset_after_end);
        self.recvs.remove(slot);
        if let Some(entry) = self.index.get_mut(id) {
            entry.recv = if was_reset { Half::RESET_AFTER_END } else { Half::OVER };
        }
        self.close(id);
    }

    /// Forgets a stream if it is over, and lets the peer open another one.
    fn close(&mut self, id: StreamId) {
        if self.index.forget(id) && id.opener() != self.side {
            let opened = self.index.opened(id.opener(), id.dir());
            of(&mut self.theirs, id.dir()).close(opened);
        }
    }

    /// Gives a stream its place in the order, if it has content to send.
    fn queue(&mut self, slot: u32) {
        if self.order.queue(&mut self.sends, slot, self.outgoing.credit()) {
            self.outgoing.note_blocked();
        }
    }
}
