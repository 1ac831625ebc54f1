//! Order in which streams send: the greatest priority first; those of the same one take turns. Hot path.

use super::send::Send;
use super::table::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Place of a stream. It counts as long as its turn is that of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    priority: i32,
    turn: Reverse<u64>,
    slot: u32,
}

/// Places that do not count, from which on they are cleared away.
const STALE: usize = 32;

/// Streams that have something to send.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Those that may send.
    ready: BinaryHeap<Place>,
    /// Those that wait for connection flow control: slot and turn.
    parked: Vec<(u32, u64)>,
    /// Places in `ready` that count.
    live: usize,
    last: u64,
}

impl Order {
    /// Returns `true` if no stream may send.
    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Gives a stream its place, if it has something to send. Returns `true` if it has to wait for connection flow control.
    pub(super) fn queue(&mut self, sends: &mut Slab<Send>, slot: u32, credit: u64) -> bool {
        let Some(send) = sends.get_mut(slot) else { return false };
        if send.turn != 0 && !send.parked {
            return false;
        }
        if send.next(credit).is_some() {
            self.last += 1;
            (send.turn, send.parked) = (self.last, false);
            self.live += 1;
            self.ready.push(Place { priority: send.priority, turn: Reverse(self.last), slot });
        } else if send.turn == 0 && send.next(u64::MAX).is_some() {
            self.last += 1;
            (send.turn, send.parked) = (self.last, true);
            self.parked.push((slot, self.last));
            return true;
        }
        false
    }

    /// Returns the stream that sends next.
    #[inline]
    pub(super) fn first(&mut self, sends: &Slab<Send>) -> Option<u32> {
        while let Some(place) = self.ready.peek() {
            if is_valid(sends, place) {
                return Some(place.slot);
            }
            self.ready.pop();
        }
        None
    }

    /// Has the first stream wait for its next turn.
    pub(super) fn rotate(&mut self, sends: &mut Slab<Send>) {
        let Some(mut place) = self.ready.peek_mut() else { return };
        let Some(send) = sends.get_mut(place.slot) else { return };
        self.last += 1;
        send.turn = self.last;
        place.turn = Reverse(self.last);
    }

    /// Takes a stream out that has nothing to send.
    pub(super) fn remove(&mut self, send: &mut Send) {
        if send.turn != 0 && !send.parked {
            self.live -= 1;
        }
        (send.turn, send.parked) = (0, false);
    }

    /// Takes the first stream out, which has nothing to send.
    pub(super) fn pop(&mut self, sends: &mut Slab<Send>) {
        if let Some(place) = self.ready.pop()
            && let Some(send) = sends.get_mut(place.slot)
        {
            self.remove(send);
        }
    }

    /// Gives a stream its place by a new priority.
    pub(super) fn prioritize(&mut self, sends: &mut Slab<Send>, slot: u32, priority: i32) {
        let Some(send) = sends.get_mut(slot) else { return };
        if std::mem::replace(&mut send.priority, priority) == priority || send.turn == 0 || send.parked {
            return;
        }
        self.last += 1;
        send.turn = self.last;
        self.ready.push(Place { priority, turn: Reverse(self.last), slot });
        if self.ready.len() > self.live + STALE {
            self.ready.retain(|place| is_valid(sends, place));
        }
    }

    /// Has the streams that only have new content wait for connection flow control, which allows none. Returns `true` if there are some.
    pub(super) fn park(&mut self, sends: &mut Slab<Send>) -> bool {
        let before = self.parked.len();
        let parked = &mut self.parked;
        self.ready.retain(|place| {
            if !is_valid(sends, place) {
                return false;
            }
            let Some(send) = sends.get_mut(place.slot) else { return false };
            send.parked = send.next(0).is_none();
            if send.parked {
                parked.push((place.slot, place.turn.0));
            }
            !send.parked
        });
        self.live = self.ready.len();
        self.parked.len() > before
    }

    /// Has the streams send that have waited for connection flow control.
    pub(super) fn unpark(&mut self, sends: &mut Slab<Send>) {
        for (slot, turn) in self.parked.drain(..) {
            if let Some(send) = sends.get_mut(slot).filter(|send| send.parked && send.turn == turn) {
                send.parked = false;
                self.live += 1;
                self.ready.push(Place { priority: send.priority, turn: Reverse(turn), slot });
            }
        }
    }

    /// Takes all streams out.
    pub(super) fn clear(&mut self, sends: &mut Slab<Send>) {
        self.ready.clear();
        self.parked.clear();
        self.live = 0;
        sends.for_each(|_, send| (send.turn, send.parked) = (0, false));
    }

    /// Returns the number of places, those that do not count included.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.ready.len() + self.parked.len()
    }

    /// Gives memory back that is not needed.
    pub(super) fn shrink(&mut self) {
        self.ready.shrink_to_fit();
        self.parked.shrink_to_fit();
    }
}

fn is_valid(sends: &Slab<Send>, place: &Place) -> bool {
    sends.get(place.slot).is_some_and(|send| send.turn == place.turn.0 && !send.parked)
}
