use std::collections::{BinaryHeap, VecDeque};

use crate::StreamId;

/// A queue of streams with pending outgoing data, sorted by priority
pub(super) struct PendingStreamsQueue {
    /// Streams of the priority `level`. All of them came after those of the same priority in `others`.
    queue: VecDeque<StreamId>,
    level: i32,
    /// Streams of other priorities, and older ones of the same
    others: BinaryHeap<PendingStream>,
    /// The next stream to write out. This is `Some` when `TransportConfig::send_fairness(false)` and writing a stream is
    /// interrupted while the stream still has some pending data. See `reinsert_pending()`.
    next: Option<StreamId>,
    /// A monotonically decreasing counter, used to implement round-robin scheduling for streams of the same priority.
    /// Underflowing is not a practical concern, as it is initialized to u64::MAX and only decremented by 1 in `push_pending`
    recency: u64,
}

impl PendingStreamsQueue {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            level: 0,
            others: BinaryHeap::new(),
            next: None,
            recency: u64::MAX,
        }
    }

    /// Give back the memory for more streams than there are
    pub(super) fn shrink(&mut self) {
        self.queue.shrink_to_fit();
        self.others.shrink_to_fit();
    }

    /// Reinsert a stream that was pending and still contains unsent data.
    pub(super) fn reinsert_pending(&mut self, id: StreamId) {
        assert!(self.next.is_none());

        self.next = Some(id);
    }

    /// Push a pending stream ID with the given priority, queued after any already-queued streams for the priority
    pub(super) fn push_pending(&mut self, id: StreamId, priority: i32) {
        // Note that in the case where fairness is disabled, if we have a reinserted stream we don't
        // bump it even if priority > next.priority. In order to minimize fragmentation we
        // always try to complete a stream once part of it has been written.

        if self.queue.is_empty() {
            self.level = priority;
        }
        if priority == self.level {
            self.queue.push_back(id);
            return;
        }

        // As the recency counter is monotonically decreasing, we know that using its value to sort this stream will queue it
        // after all other queued streams of the same priority.
        // This is enough to implement round-robin scheduling for streams that are still pending even after being handled,
        // as in that case they are removed from the `BinaryHeap`, handled, and then immediately reinserted.
        self.recency -= 1;
        self.others.push(PendingStream {
            priority,
            recency: self.recency,
            id,
        });
    }

    pub(super) fn pop(&mut self) -> Option<StreamId> {
        if let Some(id) = self.next.take() {
            return Some(id);
        }
        let other = self.others.peek();
        if other.is_some_and(|x| self.queue.is_empty() || x.priority >= self.level) {
            return self.others.pop().map(|x| x.id);
        }
        self.queue.pop_front()
    }

    pub(super) fn clear(&mut self) {
        self.next = None;
        self.queue.clear();
        self.others.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = StreamId> + '_ {
        let others = self.others.iter().map(|x| x.id);
        let queue = self.queue.iter().copied();
        self.next.into_iter().chain(queue).chain(others)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queue.len() + self.others.len() + self.next.is_some() as usize
    }
}

/// The [`StreamId`] of a stream with pending data queued, ordered by its priority and recency
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PendingStream {
    /// The priority of the stream
    // Note that this field should be kept above the `recency` field, in order for the `Ord` derive to be correct
    // (See https://doc.rust-lang.org/stable/std/cmp/trait.Ord.html#derivable)
    priority: i32,
    /// A tie-breaker for streams of the same priority, used to improve fairness by implementing round-robin scheduling:
    /// Larger values are prioritized, so it is initialised to `u64::MAX`, and when a stream writes data, we know
    /// that it currently has the highest recency value, so it is deprioritized by setting its recency to 1 less than the
    /// previous lowest recency value, such that all other streams of this priority will get processed once before we get back
    /// round to this one
    recency: u64,
    /// The ID of the stream
    // The way this type is used ensures that every instance has a unique `recency` value, so this field should be kept below
    // the `priority` and `recency` fields, so that it does not interfere with the behaviour of the `Ord` derive
    id: StreamId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dir, Side};

    fn id(index: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, index)
    }

    fn drain(queue: &mut PendingStreamsQueue) -> Vec<u64> {
        let len = queue.len();
        assert_eq!(queue.iter().count(), len);
        let all: Vec<u64> = std::iter::from_fn(|| queue.pop().map(StreamId::index)).collect();
        assert_eq!((all.len(), queue.len()), (len, 0));
        all
    }

    #[test]
    fn pending_streams_of_one_priority_need_no_heap() {
        let mut queue = PendingStreamsQueue::new();
        for priority in [0, 5, -5] {
            for i in 0..10 {
                queue.push_pending(id(i), priority);
            }
            assert!(queue.others.is_empty());
            assert_eq!(drain(&mut queue), (0..10).collect::<Vec<_>>());
        }
    }

    #[test]
    fn pending_streams_by_priority() {
        let mut queue = PendingStreamsQueue::new();
        for (i, priority) in [0, 3, 0, -2, 3, i32::MAX, i32::MIN, 0]
            .into_iter()
            .enumerate()
        {
            queue.push_pending(id(i as u64), priority);
        }
        queue.reinsert_pending(id(9));
        assert_eq!(drain(&mut queue), [9, 5, 1, 4, 0, 2, 7, 3, 6]);
    }

    #[test]
    fn older_pending_streams_come_first() {
        let mut queue = PendingStreamsQueue::new();
        queue.push_pending(id(0), 1);
        queue.push_pending(id(1), 0);
        queue.push_pending(id(2), 0);
        assert_eq!(queue.pop(), Some(id(0)));
        // The queue is of priority 0 now, and the heap has older streams of it
        queue.push_pending(id(3), 0);
        queue.push_pending(id(4), 1);
        assert_eq!(drain(&mut queue), [4, 1, 2, 3]);
    }

    #[test]
    fn pending_streams_are_as_those_of_a_sorted_list() {
        let mut random = 1u32;
        let mut below = |n: u32| {
            random = random.wrapping_mul(1664525).wrapping_add(1013904223);
            (random >> 16) % n
        };
        let mut queue = PendingStreamsQueue::new();
        let mut list: Vec<(i32, u64)> = Vec::new();
        for i in 0..20_000 {
            if below(5) < 2 + (i / 1000 % 2) as u32 {
                let priority = below(4) as i32;
                queue.push_pending(id(i), priority);
                let at = list.partition_point(|x| x.0 >= priority);
                list.insert(at, (priority, i));
            } else {
                let expected = (!list.is_empty()).then(|| id(list.remove(0).1));
                assert_eq!(queue.pop(), expected);
            }
            assert_eq!(queue.len(), list.len());
        }
        queue.clear();
        assert_eq!(queue.pop(), None);
    }
}
