use std::collections::{BTreeMap, VecDeque};

use super::{Recv, Send};
use crate::{Dir, Side, StreamId, VarInt};

/// State of all streams, found by their IDs
///
/// The indices of the streams of one initiator and direction are dense, and streams are opened and
/// mostly closed in their order. Hence each of the four kinds of streams has a ring of slots.
pub(super) struct StreamTable {
    /// Rows by the two low bits of stream IDs
    rows: [Row; 4],
    /// States of closed streams, to be used again
    free_send: Vec<Box<Send>>,
    free_recv: Vec<Box<Recv>>,
}

impl StreamTable {
    /// Construct a table for the endpoint `side` that permits no streams yet
    pub(super) fn new(side: Side) -> Self {
        let row = |initiator, dir| {
            Row::new(Slot {
                send: Half::new(dir == Dir::Bi || initiator == side),
                recv: Half::new(dir == Dir::Bi || initiator != side),
            })
        };
        Self {
            // In the order of the low bits (RFC 9000 section 2.1)
            rows: [
                row(Side::Client, Dir::Bi),
                row(Side::Server, Dir::Bi),
                row(Side::Client, Dir::Uni),
                row(Side::Server, Dir::Uni),
            ],
            free_send: Vec::new(),
            free_recv: Vec::new(),
        }
    }

    /// Whether no bidirectional stream is open
    pub(super) fn is_quiet(&self) -> bool {
        self.rows
            .iter()
            .all(|row| !row.is_bi() || row.live == 0 && row.old.is_empty())
    }

    /// Give back the memory that is kept for further streams
    pub(super) fn shrink(&mut self) {
        self.free_send = Vec::new();
        self.free_recv = Vec::new();
        self.rows
            .iter_mut()
            .for_each(|row| row.slots.shrink_to_fit());
    }

    /// Permit the streams of `initiator` and `dir` whose indices are below `limit`
    pub(super) fn permit(&mut self, initiator: Side, dir: Dir, limit: u64) {
        let row = self.row_mut(StreamId::new(initiator, dir, 0));
        row.limit = row.limit.max(limit);
    }

    /// Forget all streams of `initiator` and `dir`, and permit none any more
    pub(super) fn clear(&mut self, initiator: Side, dir: Dir) {
        let row = self.row_mut(StreamId::new(initiator, dir, 0));
        row.first = 0;
        row.slots.clear();
        row.live = 0;
        row.old.clear();
        row.limit = 0;
    }

    /// Whether a half of stream `id` is not closed
    pub(super) fn is_open(&self, id: StreamId) -> bool {
        !self.slot(id).is_closed()
    }

    /// State of the sending half of stream `id`
    pub(super) fn send_half(&self, id: StreamId) -> &Half<Send> {
        &self.slot(id).send
    }

    /// State of the receiving half of stream `id`
    pub(super) fn recv_half(&self, id: StreamId) -> &Half<Recv> {
        &self.slot(id).recv
    }

    /// The sending half of stream `id`, which becomes open with the limit `max_data` if it is idle
    ///
    /// `None` if it is closed, not permitted, or of a direction without one.
    pub(super) fn send(&mut self, id: StreamId, max_data: VarInt) -> Option<&mut Send> {
        let half = &mut self.rows[row_of(id)].slot_mut(id.index())?.send;
        if let Half::Idle = half {
            *half = Half::Open(match self.free_send.pop() {
                Some(mut send) => {
                    send.max_data = max_data.into();
                    send
                }
                None => Send::new(max_data),
            });
        }
        half.open_mut()
    }

    /// The receiving half of stream `id`, which becomes open with the window `max_data` if it is
    /// idle
    ///
    /// `None` if it is closed, not permitted, or of a direction without one.
    pub(super) fn recv(&mut self, id: StreamId, max_data: u64) -> Option<&mut Recv> {
        self.recv_to_take(id, max_data)?.open_mut()
    }

    /// As [`recv()`](Self::recv), but what [`take()`](Half::take) can be called on
    ///
    /// [`put_recv()`](Self::put_recv) or [`close_recv()`](Self::close_recv) has to follow then.
    #[inline]
    pub(super) fn recv_to_take(&mut self, id: StreamId, max_data: u64) -> Option<&mut Half<Recv>> {
        let half = &mut self.rows[row_of(id)].slot_mut(id.index())?.recv;
        if let Half::Idle = half {
            *half = Half::Open(match self.free_recv.pop() {
                Some(mut recv) => {
                    recv.record_sent_max_stream_data(max_data);
                    recv
                }
                None => Recv::new(max_data),
            });
        }
        Some(half)
    }

    /// The sending half of stream `id`, if it is open
    pub(super) fn open_send(&self, id: StreamId) -> Option<&Send> {
        self.slot(id).send.open()
    }

    /// The sending half of stream `id`, if it is open
    pub(super) fn open_send_mut(&mut self, id: StreamId) -> Option<&mut Send> {
        self.row_mut(id).slot_mut(id.index())?.send.open_mut()
    }

    /// The receiving half of stream `id`, if it is open
    pub(super) fn open_recv(&self, id: StreamId) -> Option<&Recv> {
        self.slot(id).recv.open()
    }

    /// The receiving half of stream `id`, if it is open
    pub(super) fn open_recv_mut(&mut self, id: StreamId) -> Option<&mut Recv> {
        self.row_mut(id).slot_mut(id.index())?.recv.open_mut()
    }

    /// Open streams of `initiator` and `dir` whose sending halves are open
    pub(super) fn all_open_send_mut(
        &mut self,
        initiator: Side,
        dir: Dir,
    ) -> impl Iterator<Item = &mut Send> {
        let row = self.row_mut(StreamId::new(initiator, dir, 0));
        let slots = row.slots.iter_mut().chain(row.old.values_mut());
        slots.filter_map(|slot| slot.send.open_mut())
    }

    /// Take the open receiving half of stream `id` out of the table, where it looks closed then
    ///
    /// [`put_recv()`](Self::put_recv) or [`close_recv()`](Self::close_recv) has to follow.
    pub(super) fn take_recv(&mut self, id: StreamId) -> Option<Box<Recv>> {
        self.row_mut(id).slot_mut(id.index())?.recv.take()
    }

    /// Put a receiving half back
    pub(super) fn put_recv(&mut self, id: StreamId, recv: Box<Recv>) {
        if let Some(slot) = self.row_mut(id).slot_mut(id.index()) {
            slot.recv = Half::Open(recv);
        }
    }

    /// Close the sending half of stream `id`
    ///
    /// Returns whether the whole stream is closed now.
    pub(super) fn close_send(&mut self, id: StreamId) -> bool {
        let row = &mut self.rows[row_of(id)];
        let Some(slot) = row.slot_mut(id.index()) else {
            return false;
        };
        let Some(mut send) = slot.send.take() else {
            return false;
        };
        let closed = slot.is_closed();
        if closed {
            row.remove(id.index());
        }
        if self.free_send.len() < MAX_FREE {
            send.reinit();
            self.free_send.push(send);
        }
        closed
    }

    /// Close the receiving half of stream `id`, which was taken out of the table
    ///
    /// Returns whether the whole stream is closed now.
    pub(super) fn close_recv(&mut self, id: StreamId, mut recv: Box<Recv>) -> bool {
        if self.free_recv.len() < MAX_FREE {
            recv.reinit();
            self.free_recv.push(recv);
        }
        let row = &mut self.rows[row_of(id)];
        let closed = row.slot_mut(id.index()).is_some_and(|x| x.is_closed());
        if closed {
            row.remove(id.index());
        }
        closed
    }

    fn row_mut(&mut self, id: StreamId) -> &mut Row {
        &mut self.rows[row_of(id)]
    }

    fn slot(&self, id: StreamId) -> &Slot {
        self.rows[row_of(id)].slot(id.index())
    }
}

/// The two low bits of a stream ID, which tell its initiator and direction
fn row_of(id: StreamId) -> usize {
    (id.0 & 0b11) as usize
}

/// State of the streams of one initiator and direction
struct Row {
    /// Index of the stream that the first slot belongs to. Older streams are closed or in `old`.
    first: u64,
    /// Slots of the streams from `first` to the last one used. The first of them is not closed.
    slots: VecDeque<Slot>,
    /// Number of `slots` that are not closed
    live: usize,
    /// Streams that stay open while many younger ones come and go
    old: BTreeMap<u64, Slot>,
    /// Streams from this index on are not permitted
    limit: u64,
    /// Permitted streams that nothing has happened on yet, which need no slots
    idle: Slot,
}

impl Row {
    fn new(idle: Slot) -> Self {
        Self {
            first: 0,
            slots: VecDeque::new(),
            live: 0,
            old: BTreeMap::new(),
            limit: 0,
            idle,
        }
    }

    /// Whether the streams have both halves
    fn is_bi(&self) -> bool {
        !self.idle.send.is_closed() && !self.idle.recv.is_closed()
    }

    #[inline]
    fn slot(&self, index: u64) -> &Slot {
        let at = index.wrapping_sub(self.first);
        if at < self.slots.len() as u64 {
            if let Some(slot) = self.slots.get(at as usize) {
                return slot;
            }
        }
        if index < self.first {
            self.old.get(&index).unwrap_or(&CLOSED)
        } else if index < self.limit {
            &self.idle
        } else {
            &CLOSED
        }
    }

    #[inline]
    fn slot_mut(&mut self, index: u64) -> Option<&mut Slot> {
        let at = index.wrapping_sub(self.first);
        if at < self.slots.len() as u64 {
            return self.slots.get_mut(at as usize);
        }
        self.other_slot_mut(index)
    }

    /// The slot of a stream that has none in `slots`
    #[cold]
    fn other_slot_mut(&mut self, index: u64) -> Option<&mut Slot> {
        if index < self.first {
            return self.old.get_mut(&index);
        }
        if index >= self.limit {
            return None;
        }
        self.extend(index);
        self.slots.back_mut()
    }

    /// Make slots for the streams up to `index`
    ///
    /// They are as many as streams are permitted and not closed at most. Their number is bounded by
    /// the limit of concurrent streams hence.
    fn extend(&mut self, index: u64) {
        while self.first + self.slots.len() as u64 <= index {
            // Closed streams behind an open one keep their slots, which must not become many
            if self.slots.len() >= MIN_SLOTS + 2 * self.live {
                self.move_first();
            }
            self.slots.push_back(Slot {
                send: Half::new(!self.idle.send.is_closed()),
                recv: Half::new(!self.idle.recv.is_closed()),
            });
            self.live += 1;
        }
    }

    /// Move the first stream to `old`
    #[cold]
    fn move_first(&mut self) {
        if let Some(slot) = self.slots.pop_front() {
            self.old.insert(self.first, slot);
            self.first += 1;
            self.live -= 1;
        }
        self.drop_closed();
    }

    /// Drop the slot of stream `index`, both halves of which are closed
    fn remove(&mut self, index: u64) {
        if index < self.first {
            self.old.remove(&index);
            return;
        }
        self.live -= 1;
        self.drop_closed();
    }

    fn drop_closed(&mut self) {
        while self.slots.front().is_some_and(Slot::is_closed) {
            self.slots.pop_front();
            self.first += 1;
        }
    }
}

/// State of one stream
struct Slot {
    send: Half<Send>,
    recv: Half<Recv>,
}

impl Slot {
    fn is_closed(&self) -> bool {
        self.send.is_closed() && self.recv.is_closed()
    }
}

static CLOSED: Slot = Slot {
    send: Half::Closed,
    recv: Half::Closed,
};

/// State of one direction of a stream
pub(super) enum Half<T> {
    /// Nothing has happened yet
    Idle,
    Open(Box<T>),
    /// Closed, or the stream has no such half
    Closed,
}

impl<T> Half<T> {
    fn new(exists: bool) -> Self {
        match exists {
            true => Self::Idle,
            false => Self::Closed,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }

    pub(super) fn open(&self) -> Option<&T> {
        match self {
            Self::Open(x) => Some(x),
            _ => None,
        }
    }

    pub(super) fn open_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Open(x) => Some(x),
            _ => None,
        }
    }

    /// Close an open half
    pub(super) fn take(&mut self) -> Option<Box<T>> {
        match std::mem::replace(self, Self::Closed) {
            Self::Open(x) => Some(x),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// Number of slots up to which closed streams may keep theirs without bound
const MIN_SLOTS: usize = 32;

/// Number of states of closed streams that are kept for other streams, per direction
const MAX_FREE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Side = Side::Server;

    fn client_bi(index: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, index)
    }

    fn table(limit: u64) -> StreamTable {
        let mut table = StreamTable::new(SERVER);
        table.permit(Side::Client, Dir::Bi, limit);
        table
    }

    fn row(table: &StreamTable) -> &Row {
        &table.rows[row_of(client_bi(0))]
    }

    fn open(table: &mut StreamTable, index: u64) {
        assert!(table.send(client_bi(index), 10u32.into()).is_some());
        assert!(table.recv(client_bi(index), 10).is_some());
    }

    fn close(table: &mut StreamTable, index: u64) {
        let recv = table.take_recv(client_bi(index)).unwrap();
        assert!(!table.close_recv(client_bi(index), recv));
        assert!(table.close_send(client_bi(index)));
    }

    #[test]
    fn memory_for_further_streams_is_given_back() {
        let mut table = table(100);
        table.permit(Side::Client, Dir::Uni, 1);
        assert!(
            table
                .recv(StreamId::new(Side::Client, Dir::Uni, 0), 10)
                .is_some()
        );
        assert!(table.is_quiet(), "a unidirectional stream stays open");
        (0..40).for_each(|index| open(&mut table, index));
        (0..39).for_each(|index| close(&mut table, index));
        assert!(!table.is_quiet());
        close(&mut table, 39);
        assert!(table.is_quiet());
        assert_eq!(
            (table.free_send.len(), table.free_recv.len()),
            (MAX_FREE, MAX_FREE)
        );
        table.shrink();
        assert_eq!(
            (table.free_send.capacity(), table.free_recv.capacity()),
            (0, 0)
        );
        assert_eq!(row(&table).slots.capacity(), 0);
        open(&mut table, 40);
        assert!(!table.is_quiet());
        close(&mut table, 40);
        assert!(
            table
                .open_recv(StreamId::new(Side::Client, Dir::Uni, 0))
                .is_some()
        );
    }

    #[test]
    fn rows_are_of_the_low_bits() {
        for side in [Side::Client, Side::Server] {
            let mut table = StreamTable::new(side);
            for initiator in [Side::Client, Side::Server] {
                for dir in Dir::iter() {
                    let id = StreamId::new(initiator, dir, 3);
                    assert!(table.send(id, 1u32.into()).is_none(), "not permitted");
                    assert!(table.recv(id, 1).is_none(), "not permitted");
                    table.permit(initiator, dir, 4);
                    let bi = dir == Dir::Bi;
                    assert_eq!(table.send_half(id).is_closed(), !bi && initiator != side);
                    assert_eq!(table.recv_half(id).is_closed(), !bi && initiator == side);
                    assert_eq!(
                        table.send(id, 1u32.into()).is_some(),
                        bi || initiator == side
                    );
                    assert_eq!(table.recv(id, 1).is_some(), bi || initiator != side);
                    assert!(table.recv(StreamId::new(initiator, dir, 4), 1).is_none());
                }
            }
        }
    }

    #[test]
    fn idle_streams_have_no_slots() {
        let mut table = table(1_000_000);
        assert!(matches!(table.send_half(client_bi(999_999)), Half::Idle));
        assert!(table.send_half(client_bi(1_000_000)).is_closed());
        assert!(table.open_send(client_bi(9)).is_none());
        assert!(table.slot(client_bi(9)).recv.open().is_none());
        assert_eq!(row(&table).slots.len(), 0);
        for index in 0..1000 {
            open(&mut table, index);
            assert_eq!(row(&table).slots.len(), 1);
            close(&mut table, index);
            assert_eq!((row(&table).slots.len(), row(&table).live), (0, 0));
            assert!(table.send(client_bi(index), 1u32.into()).is_none());
            assert!(table.send_half(client_bi(index)).is_closed());
            assert!(!table.close_send(client_bi(index)));
        }
        assert_eq!((table.free_send.len(), table.free_recv.len()), (1, 1));
    }

    #[test]
    fn high_index_first() {
        let mut table = table(100);
        open(&mut table, 99);
        assert_eq!((row(&table).slots.len(), row(&table).live), (100, 100));
        assert!(matches!(table.recv_half(client_bi(0)), Half::Idle));
        close(&mut table, 99);
        assert_eq!((row(&table).slots.len(), row(&table).live), (100, 99));
        for index in (0..99).rev() {
            open(&mut table, index);
            close(&mut table, index);
        }
        assert_eq!((row(&table).slots.len(), row(&table).live), (0, 0));
        assert_eq!(row(&table).first, 100);
        assert!(row(&table).old.is_empty());
        assert!(table.recv(client_bi(100), 1).is_none());
        table.permit(Side::Client, Dir::Bi, 101);
        open(&mut table, 100);
    }

    #[test]
    fn one_half_after_the_other() {
        let mut table = table(2);
        let id = client_bi(0);
        open(&mut table, 0);
        assert!(!table.close_send(id));
        assert!(table.send(id, 1u32.into()).is_none());
        assert!(table.open_send_mut(id).is_none());
        assert!(table.open_recv_mut(id).is_some());
        let recv = table.take_recv(id).unwrap();
        assert!(table.recv(id, 1).is_none());
        table.put_recv(id, recv);
        assert!(table.recv(id, 1).is_some());
        let recv = table.take_recv(id).unwrap();
        assert!(table.close_recv(id, recv));
        assert!(table.recv(id, 1).is_none() && table.take_recv(id).is_none());
        // A half that nothing happened on is not closed
        assert!(!table.close_send(client_bi(1)));
        assert!(table.take_recv(client_bi(1)).is_none());
        open(&mut table, 1);
    }

    #[test]
    fn states_are_used_again_as_new() {
        let mut table = table(2);
        open(&mut table, 0);
        let send = table.open_send_mut(client_bi(0)).unwrap();
        send.priority = 7;
        send.connection_blocked = true;
        send.data_blocked_limit = Some(3);
        send.pending.write(vec![0; 10].into());
        send.pending.write(vec![0; 10].into());
        send.pending.poll_transmit(100);
        send.pending.ack(5..8);
        send.pending.retransmit(0..2);
        assert!(send.try_stop(4u32.into()));
        send.reset();
        table.open_recv_mut(client_bi(0)).unwrap().end = 9;
        close(&mut table, 0);
        let send = table.send(client_bi(1), 77u32.into()).unwrap();
        assert_eq!(
            format!("{send:?}"),
            format!("{:?}", Send::new(77u32.into()))
        );
        let recv = table.recv(client_bi(1), 55).unwrap();
        assert_eq!(format!("{recv:?}"), format!("{:?}", Recv::new(55)));
        assert!(table.free_send.is_empty() && table.free_recv.is_empty());
    }

    #[test]
    fn old_streams_do_not_keep_slots_of_younger_ones() {
        let mut table = table(10_100);
        // Two streams that stay open
        open(&mut table, 0);
        open(&mut table, 7);
        let mut max = 0;
        for index in (1..10_000).filter(|&index| index != 7) {
            open(&mut table, index);
            max = max.max(row(&table).slots.len());
            close(&mut table, index);
        }
        assert!(max <= MIN_SLOTS + 2 * 3, "{max}");
        assert_eq!(row(&table).old.keys().collect::<Vec<_>>(), [&0, &7]);
        for index in [0, 7] {
            assert!(table.open_send(client_bi(index)).is_some());
            assert!(table.open_recv_mut(client_bi(index)).is_some());
            close(&mut table, index);
            assert!(table.send_half(client_bi(index)).is_closed());
            assert!(table.recv(client_bi(index), 1).is_none());
        }
        assert!(row(&table).old.is_empty());
        assert_eq!(row(&table).live, row(&table).slots.len());
        open(&mut table, 10_000);
    }

    #[test]
    fn memory_of_free_states_is_bounded() {
        let mut table = table(500);
        for index in 0..500 {
            open(&mut table, index);
        }
        assert_eq!(table.all_open_send_mut(Side::Client, Dir::Bi).count(), 500);
        for index in (0..500).rev() {
            close(&mut table, index);
        }
        assert_eq!(table.free_send.len(), MAX_FREE);
        assert_eq!(table.free_recv.len(), MAX_FREE);
        table.clear(Side::Client, Dir::Bi);
        assert!(table.send(client_bi(0), 1u32.into()).is_none());
        table.permit(Side::Client, Dir::Bi, 1);
        open(&mut table, 0);
    }

    #[test]
    fn closing_in_any_order() {
        let mut random = 1u32;
        let mut below = |n: u32| {
            random = random.wrapping_mul(1664525).wrapping_add(1013904223);
            u64::from((random >> 16) % n)
        };
        const CONCURRENT: u64 = 20;
        let mut table = table(CONCURRENT);
        let mut limit = CONCURRENT;
        let mut open_ones: Vec<u64> = Vec::new();
        let mut unused: Vec<u64> = (0..CONCURRENT).collect();
        for _ in 0..20_000 {
            if !unused.is_empty() && below(2) == 0 {
                let at = below(unused.len() as u32) as usize;
                let index = unused.swap_remove(at);
                open(&mut table, index);
                open_ones.push(index);
            } else if !open_ones.is_empty() {
                // Prefers young ones so that some become old
                let at = open_ones.len() - 1 - below(open_ones.len() as u32) as usize / 3;
                close(&mut table, open_ones.swap_remove(at));
                unused.push(limit);
                limit += 1;
                table.permit(Side::Client, Dir::Bi, limit);
            }
            let row = row(&table);
            assert!(row.live + row.old.len() <= CONCURRENT as usize);
            assert!(row.slots.len() <= MIN_SLOTS + 2 * CONCURRENT as usize);
            assert_eq!(
                row.live,
                row.slots.iter().filter(|x| !x.is_closed()).count()
            );
            for &index in &open_ones {
                assert!(table.open_recv(client_bi(index)).is_some());
            }
            for &index in &unused {
                assert!(matches!(table.send_half(client_bi(index)), Half::Idle));
            }
        }
        assert!(limit > 5000);
    }
}
