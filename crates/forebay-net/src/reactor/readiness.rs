//! Readiness of slots, as far as it is known without asking the kernel. Hot path.

use super::poller::{Poller, Token};

impl Poller {
    /// Notes that a read took all there was: only a new event makes the slot readable.
    #[inline]
    pub fn drained(&self, token: Token) {
        if let Some(mut s) = self.slot_mut(token) {
            s.readable = s.ended;
        }
    }

    /// Returns `true` if a read may give something, as far as is known without asking the kernel.
    #[inline]
    pub fn is_readable(&self, token: Token) -> bool {
        self.slot(token).is_none_or(|s| s.readable)
    }

    /// Notes that a write found no room: only a new event makes the slot writable.
    #[inline]
    pub(crate) fn filled(&self, token: Token) {
        if let Some(mut s) = self.slot_mut(token) {
            s.writable = false;
        }
    }

    /// Returns `true` if a write may take something, as far as is known without asking the kernel.
    #[inline]
    pub(crate) fn is_writable(&self, token: Token) -> bool {
        self.slot(token).is_none_or(|s| s.writable)
    }
}
