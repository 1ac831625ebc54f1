//! Sources of frames, and the handling of their loss and acknowledgment.

use super::crypto::Crypto;
use super::ids::{LocalIds, RemoteIds};
use super::items::{Items, Span};
use crate::item::Item;
use crate::recovery::Space;
use crate::recovery::acks::Acks;
use crate::stream::Streams;

/// State of one packet number space.
#[derive(Debug, Default)]
pub struct SpaceState {
    /// Packets that came.
    pub acks: Acks,
    /// Bytes of the handshake.
    pub crypto: Crypto,
    /// Packets that are to be sent because nothing was acknowledged for too long (RFC 9002, section 6.2.4).
    pub probes: u8,
}

/// Sources of frames.
#[derive(Debug)]
pub struct Outbound {
    pub items: Items,
    pub streams: Streams,
    pub local: LocalIds,
    pub remote: RemoteIds,
    /// Initial and Handshake, as long as they have keys.
    pub early: [Option<Box<SpaceState>>; 2],
    pub data: SpaceState,
    /// HANDSHAKE_DONE is to be sent.
    pub handshake_done: bool,
    /// Token that is to be sent.
    pub token: Option<Box<[u8]>>,
    /// Token that was sent and is not acknowledged.
    pub sent_token: Option<Box<[u8]>>,
    /// PING is to be sent.
    pub ping: bool,
}

impl SpaceState {
    /// Returns the packet number that is expected next.
    pub fn expected(&self) -> u64 {
        self.acks.largest().map_or(0, |largest| largest + 1)
    }
}

impl Outbound {
    /// Returns the state of a space.
    pub fn space(&mut self, space: Space) -> Option<&mut SpaceState> {
        match space {
            Space::Initial => self.early[0].as_deref_mut(),
            Space::Handshake => self.early[1].as_deref_mut(),
            Space::Data => Some(&mut self.data),
        }
    }

    /// Forgets a space whose keys are gone.
    pub fn discard(&mut self, space: Space) {
        match space {
            Space::Initial => self.early[0] = None,
            Space::Handshake => self.early[1] = None,
            Space::Data => {}
        }
    }

    /// Notes that a packet has arrived.
    pub fn acked(&mut self, span: Span) {
        let mut items = std::mem::take(&mut self.items);
        items.take(span, |item| self.item_acked(span.space, item));
        self.items = items;
    }

    /// Notes that what a packet carried does not matter any more.
    pub fn forget(&mut self, span: Span) {
        self.items.take(span, drop);
    }

    fn item_acked(&mut self, space: Space, item: Item) {
        match item {
            Item::Crypto { offset, len } => {
                if let Some(state) = self.space(space) {
                    state.crypto.out.acked(offset, len);
                }
            }
            Item::Ack(largest) => {
                if let Some(state) = self.space(space) {
                    state.acks.on_acked(largest);
                }
            }
            Item::RetireConnectionId(_) => self.remote.acked(),
            Item::NewToken => self.sent_token = None,
            Item::NewConnectionId(_) | Item::HandshakeDone | Item::Datagram => {}
            of_stream => self.streams.acked(of_stream),
        }
    }

    /// Has the content of a lost packet sent again.
    pub fn lost(&mut self, span: Span) {
        let mut items = std::mem::take(&mut self.items);
        items.take(span, |item| self.item_lost(span.space, item));
        self.items = items;
    }

    fn item_lost(&mut self, space: Space, item: Item) {
        match item {
            Item::Crypto { offset, len } => {
                if let Some(state) = self.space(space) {
                    state.crypto.out.lost(offset, len);
                }
            }
            Item::NewConnectionId(number) => self.local.lost(number),
            Item::RetireConnectionId(number) => self.remote.lost(number),
            Item::NewToken => self.token = self.sent_token.take(),
            Item::HandshakeDone => self.handshake_done = true,
            // A later one says more, and DATAGRAM frames are not sent again.
            Item::Ack(_) | Item::Datagram => {}
            of_stream => self.streams.lost(of_stream),
        }
    }

    /// Returns `true` if there is something for 1-RTT packets that asks for an acknowledgment, apart from probes.
    pub fn has_data(&mut self) -> bool {
        self.streams.wants_to_send()
            || self.ping
            || self.handshake_done
            || self.token.is_some()
            || self.data.crypto.out.has_unsent()
            || self.local.has_unsent()
            || self.remote.has_unsent()
    }

    /// Gives memory back that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.items.shrink();
        self.streams.shrink();
    }
}
