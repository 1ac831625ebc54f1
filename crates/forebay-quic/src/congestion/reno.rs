//! NewReno (RFC 9002, section 7 and appendix B).

use super::hystart::{Growth, HyStart};
use super::{Acked, initial_window};

/// NewReno controller.
#[derive(Debug)]
pub(crate) struct NewReno {
    pub(super) datagram_size: u64,
    pub(super) window: u64,
    threshold: u64,
    /// Bytes acknowledged since the window grew last, in congestion avoidance.
    acked: u64,
    /// Window and threshold before the last reduction.
    before: Option<(u64, u64)>,
    hystart: HyStart,
}

impl NewReno {
    pub(super) fn new(datagram_size: u16) -> NewReno {
        let datagram_size = datagram_size.into();
        let window = initial_window(datagram_size);
        NewReno {
            datagram_size,
            window,
            threshold: u64::MAX,
            acked: 0,
            before: None,
            hystart: HyStart::new(),
        }
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    pub(super) fn on_ack(&mut self, acked: &Acked) {
        if self.in_slow_start() {
            return self.grow_in_slow_start(acked);
        }
        self.acked += acked.bytes_to_grow;
        if self.acked >= self.window {
            self.acked -= self.window;
            self.window += self.datagram_size;
        }
    }

    fn grow_in_slow_start(&mut self, acked: &Acked) {
        // Later slow starts know where to end.
        let growth = if self.threshold == u64::MAX {
            self.hystart.on_ack(acked)
        } else {
            Growth::By(acked.bytes_to_grow)
        };
        match growth {
            Growth::By(bytes) => self.window += bytes,
            Growth::End => self.threshold = self.window,
        }
    }

    pub(super) fn on_congestion(&mut self) {
        self.before = Some((self.window, self.threshold));
        self.window = (self.window / 2).max(self.least());
        self.threshold = self.window;
        self.acked = 0;
    }

    pub(super) fn on_persistent_congestion(&mut self) {
        self.before = None;
        self.window = self.least();
        self.acked = 0;
    }

    pub(super) fn undo(&mut self) {
        if let Some((window, threshold)) = self.before.take() {
            self.window = self.window.max(window);
            self.threshold = threshold;
        }
    }

    fn least(&self) -> u64 {
        2 * self.datagram_size
    }
}
