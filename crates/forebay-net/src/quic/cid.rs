//! Connection identifiers that tell the thread of a connection.

use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use std::time::Duration;

/// Length of an identifier, bytes: the thread, and random ones.
pub(super) const LENGTH: usize = 9;

/// Maker of identifiers.
pub(super) struct Generator {
    thread: u8,
}

impl Generator {
    pub(super) fn new(thread: u8) -> Generator {
        Generator { thread }
    }
}

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [self.thread; LENGTH];
        if let Some(rest) = bytes.get_mut(1..) {
            rest.copy_from_slice(&forebay_sys::random::random_u64().to_ne_bytes());
        }
        ConnectionId::new(&bytes)
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
