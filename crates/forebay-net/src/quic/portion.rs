//! Number of datagrams whose requests are answered together. Hot path.

use forebay_sys::datagrams::MOST;
use std::cell::Cell;

/// Number of datagrams in a window.
const WINDOW: u32 = 64;

/// Most busy connections whose requests are answered one by one.
const FEW: usize = 8;

/// Number of datagrams whose requests are answered together.
///
/// Answers that leave together cost less. Few clients, though, would all wait for the same answers: clients and server would take turns, and
/// each would sleep while the other works. So these are answered one by one.
#[derive(Debug)]
pub(super) struct Portion {
    /// Number of the present window, in which the connections that receive something are counted.
    window: Cell<u32>,
    /// Datagrams in the window.
    datagrams: Cell<u32>,
    /// Connections that have received some of them.
    connections: Cell<usize>,
    size: Cell<usize>,
}

impl Default for Portion {
    fn default() -> Portion {
        Portion {
            // Connections begin with 0.
            window: Cell::new(1),
            datagrams: Cell::new(0),
            connections: Cell::new(0),
            size: Cell::new(MOST),
        }
    }
}

impl Portion {
    /// Returns the number of datagrams in a portion: 1 or [`MOST`].
    pub(super) fn size(&self) -> usize {
        self.size.get()
    }

    /// Notes a datagram of a connection. `seen`: the window in which the connection has received one before; 0: none.
    pub(super) fn note(&self, seen: &Cell<u32>) {
        let window = self.window.get();
        if seen.replace(window) != window {
            self.connections.set(self.connections.get() + 1);
        }
        self.datagrams.set(self.datagrams.get() + 1);
        if self.datagrams.get() >= WINDOW {
            self.size.set(if self.connections.take() <= FEW { 1 } else { MOST });
            self.datagrams.set(0);
            self.window.set(window.wrapping_add(1).max(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has so many connections receive a datagram each, again and again.
    fn after(busy: usize) -> Portion {
        let portion = Portion::default();
        let seen: Vec<Cell<u32>> = vec![Cell::default(); busy];
        for n in 0..WINDOW as usize * 2 {
            portion.note(&seen[n % busy]);
        }
        portion
    }

    #[test]
    fn few_clients_are_answered_one_by_one() {
        assert_eq!(Portion::default().size(), MOST);
        for (busy, size) in [(1, 1), (8, 1), (9, MOST), (64, MOST), (1000, MOST)] {
            assert_eq!(after(busy).size(), size, "{busy}");
        }
    }
}
