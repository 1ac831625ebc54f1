//! Recognition of a load of few clients. Hot path.

use std::cell::Cell;

/// Number of events in a window.
const WINDOW: u32 = 64;

/// Maximum number of busy connections that count as few.
const FEW: usize = 8;

/// Last window in which a connection had an event. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(u8);

/// Count of the connections that were busy in the last window of events.
///
/// Answers that leave together cost less. Few clients, though, would all wait for the same answers: clients and server
/// would take turns, and each would sleep while the other works. So these are answered one by one.
#[derive(Debug)]
pub(crate) struct Clients {
    window: Cell<Seen>,
    /// Events in the window.
    events: Cell<u32>,
    /// Connections that had some of them.
    connections: Cell<usize>,
    few: Cell<bool>,
}

impl Default for Clients {
    fn default() -> Clients {
        Clients {
            window: Cell::new(Seen(1)),
            events: Cell::new(0),
            connections: Cell::new(0),
            few: Cell::new(false),
        }
    }
}

impl Clients {
    /// Returns `true` if at most eight connections were busy in the last window. `false` at the beginning.
    #[inline]
    pub(crate) fn are_few(&self) -> bool {
        self.few.get()
    }

    /// Notes an event of a connection. `seen` belongs to the connection.
    #[inline]
    pub(crate) fn note(&self, seen: &mut Seen) {
        let window = self.window.get();
        // The connection remembers the window, so that counting it once needs no table of connections.
        if *seen != window {
            *seen = window;
            self.connections.set(self.connections.get() + 1);
        }
        self.events.set(self.events.get() + 1);
        if self.events.get() >= WINDOW {
            self.few.set(self.connections.take() <= FEW);
            self.events.set(0);
            // A connection that was last busy 255 windows ago goes uncounted, which does no harm.
            // 0 is no window: it is the number of connections that have had no event yet.
            self.window.set(Seen(window.0.checked_add(1).unwrap_or(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_eight_busy_connections_are_few() {
        assert!(!Clients::default().are_few());
        for (busy, few) in [(1, true), (8, true), (9, false), (64, false), (1000, false)] {
            let clients = Clients::default();
            let mut seen = vec![Seen::default(); busy];
            // More windows than there are numbers.
            for n in 0..WINDOW as usize * 600 {
                clients.note(&mut seen[n % busy]);
                if n >= WINDOW as usize {
                    assert_eq!(clients.are_few(), few, "{busy}, after {n} events");
                }
            }
        }
    }
}
