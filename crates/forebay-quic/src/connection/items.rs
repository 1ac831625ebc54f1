//! Record of what packets carried.

use crate::item::Item;
use crate::recovery::Space;
use std::collections::VecDeque;

/// Items of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of the first, modulo 2^32.
    first: u32,
    count: u16,
    /// Packet number space of the packet.
    pub space: Space,
}

/// Items of all packets under way, in the order in which they were sent.
#[derive(Debug, Default)]
pub struct Items {
    ring: VecDeque<Option<Item>>,
    /// Number of the first in the ring, modulo 2^32.
    first: u32,
    /// Number of the first of the packet that is put together.
    open: u32,
}

impl Items {
    fn end(&self) -> u32 {
        self.first.wrapping_add(u32::try_from(self.ring.len()).unwrap_or(u32::MAX))
    }

    /// Adds an item to the packet that is put together.
    pub fn push(&mut self, item: Item) {
        self.ring.push_back(Some(item));
    }

    /// Ends a packet, and returns its items.
    pub fn close(&mut self, space: Space) -> Span {
        let end = self.end();
        let count = end.wrapping_sub(self.open);
        let span = Span { first: self.open, count: u16::try_from(count).unwrap_or(u16::MAX), space };
        self.open = end;
        span
    }

    /// Calls `f` with the items of a packet, which needs them no longer.
    pub fn take(&mut self, span: Span, mut f: impl FnMut(Item)) {
        let at = span.first.wrapping_sub(self.first) as usize;
        for n in at..at + usize::from(span.count) {
            if let Some(item) = self.ring.get_mut(n).and_then(Option::take) {
                f(item);
            }
        }
        while self.first != self.open && matches!(self.ring.front(), Some(None)) {
            self.ring.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Calls `f` with the items of a packet, which keeps them.
    pub fn look(&self, span: Span, mut f: impl FnMut(Item)) {
        let at = span.first.wrapping_sub(self.first) as usize;
        self.ring
            .range(at.min(self.ring.len())..)
            .take(usize::from(span.count))
            .flatten()
            .for_each(|i| f(*i));
    }

    /// Returns the number of places that are kept.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Returns `true` if a packet has content of a stream.
    pub fn has_content(&self, span: Span) -> bool {
        let mut has = false;
        self.look(span, |item| has |= matches!(item, Item::Stream { .. }));
        has
    }

    /// Gives memory back if there are none.
    pub fn shrink(&mut self) {
        if self.ring.is_empty() {
            self.ring = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(items: &mut Items, span: Span) -> Vec<Item> {
        let mut all = Vec::new();
        items.take(span, |item| all.push(item));
        all
    }

    #[test]
    fn items_are_taken_once_and_in_any_order() {
        let mut items = Items { first: u32::MAX - 1, open: u32::MAX - 1, ..Items::default() };
        let spans: Vec<Span> = (0..4u64)
            .map(|n| {
                (0..n).for_each(|k| items.push(Item::MaxData(10 * n + k)));
                items.close(Space::Data)
            })
            .collect();
        let of = |n: u64| (0..n).map(|k| Item::MaxData(10 * n + k)).collect::<Vec<_>>();
        let mut looked = Vec::new();
        items.look(spans[2], |item| looked.push(item));
        assert_eq!(looked, of(2));
        for n in [2, 0, 3, 1] {
            assert_eq!(taken(&mut items, spans[n as usize]), of(n), "{n}");
            assert_eq!(taken(&mut items, spans[n as usize]), [], "{n}");
        }
        assert!(items.ring.is_empty());
        // The packet that is put together keeps its items.
        items.push(Item::NewToken);
        let first = Span { first: items.open, count: 0, space: Space::Data };
        taken(&mut items, first);
        let span = items.close(Space::Data);
        assert_eq!(taken(&mut items, span), [Item::NewToken]);
        items.shrink();
        assert_eq!(items.ring.capacity(), 0);
    }
}
