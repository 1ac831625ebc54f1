//! Identifiers of this side.

use super::{IdChange, Identity};
use crate::error::{Code, Error};
use crate::id::ConnectionId;

/// Most identifiers of ours that a peer has at a time: one in use, and others for a change of its network.
const MOST_LOCAL: u64 = 3;

/// Identifiers that this side has given out.
#[derive(Debug)]
pub struct LocalIds {
    /// Sequence number and identifier, in order.
    live: Vec<(u64, ConnectionId)>,
    next: u64,
    /// Number behind the greatest that the peer was told.
    told: u64,
    /// Sequence numbers whose NEW_CONNECTION_ID is to be sent.
    unsent: Vec<u64>,
    /// Identifiers that the peer may have at a time.
    limit: u64,
    /// Identifier that the peer has sent to last.
    pub used: Option<ConnectionId>,
}

impl LocalIds {
    /// Begins with the identifier of the handshake.
    pub fn new(first: ConnectionId) -> LocalIds {
        LocalIds { live: vec![(0, first)], next: 1, told: 1, unsent: Vec::new(), limit: 1, used: None }
    }

    /// Returns the identifier of the handshake, or the oldest after it.
    pub fn first(&self) -> ConnectionId {
        self.live.first().map(|(_, id)| *id).unwrap_or_default()
    }

    /// Sets the number that the peer takes (`active_connection_id_limit`), and makes as many.
    pub fn fill(&mut self, limit: u64, source: &dyn Identity, changes: &mut Vec<IdChange>) {
        self.limit = limit.min(MOST_LOCAL);
        while (self.live.len() as u64) < self.limit {
            let id = source.make();
            changes.push(IdChange::Add(id));
            self.live.push((self.next, id));
            self.unsent.push(self.next);
            self.next += 1;
        }
    }

    /// Handles RETIRE_CONNECTION_ID; `used` is the identifier of the packet with the frame.
    ///
    /// # Errors
    /// PROTOCOL_VIOLATION for a number that the peer was not told, or the identifier of the packet itself (RFC 9000, section 19.16).
    pub fn retire(
        &mut self,
        number: u64,
        used: &ConnectionId,
        source: &dyn Identity,
        changes: &mut Vec<IdChange>,
    ) -> Result<(), Error> {
        // One that waits to be sent is replaced as those are that were: a single packet could ask for hundreds.
        if number >= self.told {
            return Err(Error::new(Code::PROTOCOL_VIOLATION, "retired a connection id that was not issued"));
        }
        let Some(at) = self.live.iter().position(|(n, _)| *n == number) else { return Ok(()) };
        if self.live.get(at).is_some_and(|(_, id)| id == used) {
            return Err(Error::new(Code::PROTOCOL_VIOLATION, "retired the connection id of the packet"));
        }
        let (_, id) = self.live.remove(at);
        self.unsent.retain(|n| *n != number);
        changes.push(IdChange::Remove(id));
        self.fill(self.limit, source, changes);
        Ok(())
    }

    /// Takes the sequence number and the identifier of a NEW_CONNECTION_ID frame that is to be sent.
    pub fn take_unsent(&mut self) -> Option<(u64, ConnectionId)> {
        let number = self.unsent.pop()?;
        self.told = self.told.max(number + 1);
        self.live.iter().find(|(n, _)| *n == number).copied()
    }

    /// Returns `true` if NEW_CONNECTION_ID frames are to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends NEW_CONNECTION_ID again, unless the identifier has been retired.
    pub fn lost(&mut self, number: u64) {
        if self.live.iter().any(|(n, _)| *n == number) && !self.unsent.contains(&number) {
            self.unsent.push(number);
        }
    }

    /// Has the endpoint forget all of them.
    pub fn remove_all(&mut self, changes: &mut Vec<IdChange>) {
        changes.extend(self.live.drain(..).map(|(_, id)| IdChange::Remove(id)));
    }

    /// Returns `true`, once, if the peer uses another identifier than before: then packets to it get another one, too.
    pub fn uses_other(&mut self, dst: &ConnectionId) -> bool {
        let is_other = self.used.is_some_and(|used| used != *dst);
        self.used = Some(*dst);
        is_other
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ResetToken, four as id};
    use super::*;
    use std::cell::Cell;

    struct Counting(Cell<u8>);

    impl Identity for Counting {
        fn make(&self) -> ConnectionId {
            self.0.set(self.0.get() + 1);
            id(self.0.get())
        }

        fn id_len(&self) -> usize {
            4
        }

        fn reset_token(&self, id: &ConnectionId) -> ResetToken {
            [id[0]; 16]
        }
    }

    #[test]
    fn local_ids_are_replaced_when_retired() {
        let source = Counting(Cell::new(10));
        let mut changes = Vec::new();
        let mut ids = LocalIds::new(id(10));
        ids.fill(8, &source, &mut changes);
        assert_eq!(changes, [IdChange::Add(id(11)), IdChange::Add(id(12))]);
        changes.clear();
        let mut sent: Vec<_> = std::iter::from_fn(|| ids.take_unsent()).collect();
        sent.sort();
        assert_eq!(sent, [(1, id(11)), (2, id(12))]);
        assert_eq!(ids.retire(0, &id(11), &source, &mut changes), Ok(()));
        assert_eq!(changes, [IdChange::Remove(id(10)), IdChange::Add(id(13))]);
        assert_eq!((ids.first(), ids.take_unsent()), (id(11), Some((3, id(13)))));
        // It is retired already, and its loss means nothing.
        assert_eq!(ids.retire(0, &id(11), &source, &mut changes), Ok(()));
        ids.lost(0);
        assert!(!ids.has_unsent());
        ids.lost(3);
        assert!(ids.has_unsent());
        for number in [1, 4] {
            let error = ids.retire(number, &id(11), &source, &mut changes).expect_err("a violation");
            assert_eq!(error.code, Code::PROTOCOL_VIOLATION);
        }
    }

    #[test]
    fn an_identifier_that_was_not_sent_cannot_be_retired() {
        let (source, mut changes) = (Counting(Cell::new(10)), Vec::new());
        let mut ids = LocalIds::new(id(10));
        ids.fill(3, &source, &mut changes);
        let retire = |ids: &mut LocalIds, number| {
            ids.retire(number, &id(10), &source, &mut Vec::new()).map_err(|e| e.code)
        };
        assert_eq!(retire(&mut ids, 1), Err(Code::PROTOCOL_VIOLATION));
        assert_eq!(ids.take_unsent(), Some((2, id(12))));
        // The peer may know that there is one before it, whatever became of its frame.
        assert_eq!((retire(&mut ids, 1), retire(&mut ids, 2)), (Ok(()), Ok(())));
        assert_eq!(retire(&mut ids, 3), Err(Code::PROTOCOL_VIOLATION));
    }
}
