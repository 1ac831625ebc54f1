//! Identifiers of the peer.

use super::{IdChange, ResetToken};
use crate::error::{Code, Error};
use crate::id::ConnectionId;
use crate::packet::reset;
use crate::ranges::RangeSet;

/// Most identifiers of the peer that wait to be retired (RFC 9000, section 5.1.2).
const MOST_RETIRING: usize = 50;
/// Most gaps in the sequence numbers of the peer's identifiers.
const MOST_GAPS: usize = 64;

/// Identifier of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteId {
    number: u64,
    id: ConnectionId,
    token: Option<ResetToken>,
}

/// Identifiers that the peer has given out.
#[derive(Debug)]
pub struct RemoteIds {
    active: RemoteId,
    /// The one for another path (RFC 9000, section 9.5).
    aside: Option<RemoteId>,
    spare: Vec<RemoteId>,
    /// Sequence numbers of all identifiers that came.
    seen: RangeSet,
    /// Smaller numbers are retired.
    retire_prior_to: u64,
    /// Sequence numbers whose RETIRE_CONNECTION_ID is to be sent.
    unsent: Vec<u64>,
    /// RETIRE_CONNECTION_ID frames that were sent and are not acknowledged.
    in_flight: usize,
    /// Identifiers that are kept at a time.
    limit: u64,
}

impl RemoteIds {
    /// Begins with the identifier of the handshake. `limit`: the `active_connection_id_limit` of this side.
    pub fn new(first: ConnectionId, limit: u64) -> RemoteIds {
        RemoteIds {
            active: RemoteId { number: 0, id: first, token: None },
            aside: None,
            spare: Vec::new(),
            seen: RangeSet::default(),
            retire_prior_to: 0,
            unsent: Vec::new(),
            in_flight: 0,
            limit: limit.max(2),
        }
    }

    /// Returns the identifier that packets are sent to.
    pub fn active(&self) -> &ConnectionId {
        &self.active.id
    }

    /// Returns the identifier that packets to another path are sent to, if that path has its own.
    pub fn aside(&self) -> Option<&ConnectionId> {
        self.aside.as_ref().map(|aside| &aside.id)
    }

    /// Takes an unused identifier for another path. Returns `false` if there is none.
    pub fn reserve(&mut self, changes: &mut Vec<IdChange>) -> bool {
        if self.aside.is_none() {
            self.aside = self.take_spare();
            changes.extend(self.aside.and_then(|aside| aside.token).map(IdChange::AddToken));
        }
        self.aside.is_some()
    }

    /// Exchanges the identifiers of the path in use and of the other path: the connection moves.
    pub fn exchange(&mut self) {
        if let Some(aside) = &mut self.aside {
            std::mem::swap(aside, &mut self.active);
        }
    }

    /// Retires the identifier of the other path, which is of no more use.
    pub fn release(&mut self, changes: &mut Vec<IdChange>) {
        if let Some(old) = self.aside.take() {
            self.unsent.push(old.number);
            changes.extend(old.token.map(IdChange::RemoveToken));
        }
    }

    /// Replaces the first identifier: a Retry packet or the first packet of a server names another.
    pub fn replace_first(&mut self, id: ConnectionId) {
        self.active.id = id;
    }

    /// Sets the token of the first identifier, from the transport parameters of a server.
    pub fn set_first_token(&mut self, token: ResetToken, changes: &mut Vec<IdChange>) {
        if self.active.number == 0 {
            self.active.token = Some(token);
            changes.push(IdChange::AddToken(token));
        }
    }

    /// Returns `true` if a datagram's last 16 bytes are the token of an identifier in use. Takes the same time for all bytes.
    pub fn is_reset(&self, last: &ResetToken) -> bool {
        let tokens = [self.active.token.as_ref(), self.aside.as_ref().and_then(|aside| aside.token.as_ref())];
        tokens.into_iter().flatten().fold(false, |is_reset, token| is_reset | reset::is_same(token, last))
    }

    /// Handles NEW_CONNECTION_ID.
    ///
    /// # Errors
    /// PROTOCOL_VIOLATION if the peer uses no identifiers, or uses one number or identifier twice; CONNECTION_ID_LIMIT_ERROR for
    /// more than the limit, or if the peer does not take the retirement of others (RFC 9000, sections 5.1.1 and 19.15).
    pub fn add(
        &mut self,
        (number, retire_prior_to): (u64, u64),
        id: ConnectionId,
        token: ResetToken,
        changes: &mut Vec<IdChange>,
    ) -> Result<(), Error> {
        if self.active.id.is_empty() {
            return Err(Error::new(Code::PROTOCOL_VIOLATION, "issued a connection id without using any"));
        }
        let new = RemoteId { number, id, token: Some(token) };
        let is_repeated = self.is_repeated(&new)?;
        // One that is sent again may want more back than it did at first.
        self.retire_prior_to = self.retire_prior_to.max(retire_prior_to);
        if !is_repeated {
            self.seen.insert(number..number + 1);
            if number < self.retire_prior_to {
                self.unsent.push(number);
            } else {
                self.spare.push(new);
            }
        }
        self.retire_old(changes);
        let kept = self.spare.len() as u64 + 1 + u64::from(self.aside.is_some());
        let retiring = self.unsent.len() + self.in_flight;
        if kept > self.limit || retiring > MOST_RETIRING || self.seen.len() > MOST_GAPS {
            return Err(Error::new(Code::CONNECTION_ID_LIMIT_ERROR, "issued too many connection ids"));
        }
        Ok(())
    }

    /// Returns `true` if an identifier came before.
    fn is_repeated(&self, new: &RemoteId) -> Result<bool, Error> {
        let twice = Error::new(Code::PROTOCOL_VIOLATION, "used a connection id twice");
        let mut known = std::iter::once(&self.active).chain(&self.aside).chain(&self.spare);
        if let Some(old) = known.find(|old| old.number == new.number || old.id == new.id) {
            // The first identifier has no token before the handshake says one.
            let is_same = old.number == new.number
                && old.id == new.id
                && (old.token == new.token || old.token.is_none());
            return if is_same { Ok(true) } else { Err(twice) };
        }
        Ok(new.number == 0 || self.seen.contains(new.number))
    }

    /// Retires those that the peer wants back.
    fn retire_old(&mut self, changes: &mut Vec<IdChange>) {
        let prior_to = self.retire_prior_to;
        let unsent = &mut self.unsent;
        self.spare.retain(|old| {
            if old.number < prior_to {
                unsent.push(old.number);
            }
            old.number >= prior_to
        });
        if self.active.number < prior_to {
            self.switch(changes);
        }
        if self.aside.is_some_and(|aside| aside.number < prior_to) {
            self.release(changes);
            self.reserve(changes);
        }
    }

    /// Sends to another identifier from now on, and retires the one before. Returns `false` if there is none.
    pub fn switch(&mut self, changes: &mut Vec<IdChange>) -> bool {
        let Some(next) = self.take_spare() else { return false };
        let old = std::mem::replace(&mut self.active, next);
        self.unsent.push(old.number);
        changes.extend(old.token.map(IdChange::RemoveToken));
        changes.extend(next.token.map(IdChange::AddToken));
        true
    }

    /// Takes the unused identifier with the smallest sequence number.
    fn take_spare(&mut self) -> Option<RemoteId> {
        let at = (0..self.spare.len()).min_by_key(|at| self.spare.get(*at).map(|id| id.number))?;
        Some(self.spare.swap_remove(at))
    }

    /// Takes the sequence number of a RETIRE_CONNECTION_ID frame that is to be sent.
    pub fn take_unsent(&mut self) -> Option<u64> {
        let number = self.unsent.pop()?;
        self.in_flight += 1;
        Some(number)
    }

    /// Returns `true` if RETIRE_CONNECTION_ID frames are to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Notes that a RETIRE_CONNECTION_ID frame has arrived.
    pub fn acked(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Sends a RETIRE_CONNECTION_ID frame again.
    pub fn lost(&mut self, number: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.unsent.push(number);
    }

    /// Has the endpoint forget the tokens.
    pub fn remove_all(&mut self, changes: &mut Vec<IdChange>) {
        let tokens = [self.active.token.take(), self.aside.take().and_then(|aside| aside.token)];
        changes.extend(tokens.into_iter().flatten().map(IdChange::RemoveToken));
    }
}

#[cfg(test)]
mod tests {
    use super::super::four as id;
    use super::*;

    fn remote() -> RemoteIds {
        RemoteIds::new(id(100), 3)
    }

    #[test]
    fn remote_ids_are_used_and_retired() {
        let (mut ids, mut changes) = (remote(), Vec::new());
        ids.set_first_token([100; 16], &mut changes);
        for n in 1..3 {
            assert_eq!(ids.add((n.into(), 0), id(n), [n; 16], &mut changes), Ok(()));
        }
        assert!(ids.is_reset(&[100; 16]) && !ids.is_reset(&[1; 16]));
        // Again the same, which is no more than before.
        assert_eq!(ids.add((2, 0), id(2), [2; 16], &mut changes), Ok(()));
        changes.clear();
        assert!(ids.switch(&mut changes));
        assert_eq!((*ids.active(), ids.take_unsent()), (id(1), Some(0)));
        assert_eq!(changes, [IdChange::RemoveToken([100; 16]), IdChange::AddToken([1; 16])]);
        assert!(ids.is_reset(&[1; 16]));
        ids.lost(0);
        assert_eq!(ids.take_unsent(), Some(0));
        // The peer wants all back but the last.
        assert_eq!(ids.add((3, 3), id(3), [3; 16], &mut changes), Ok(()));
        let mut retired: Vec<_> = std::iter::from_fn(|| ids.take_unsent()).collect();
        retired.sort();
        assert_eq!((*ids.active(), retired), (id(3), vec![1, 2]));
        // An old one that comes late is retired at once, and those that came before mean nothing.
        for n in 0..3 {
            assert_eq!(ids.add((n.into(), 0), id(n), [n; 16], &mut changes), Ok(()));
        }
        assert!(!ids.has_unsent() && !ids.switch(&mut changes));
    }

    #[test]
    fn wrong_remote_ids() {
        let mut changes = Vec::new();
        let mut add = |ids: &mut RemoteIds, number: u64, n: u8, token: u8| {
            ids.add((number, 0), id(n), [token; 16], &mut changes).map_err(|e| e.code)
        };
        let mut ids = remote();
        assert_eq!(add(&mut ids, 1, 1, 1), Ok(()));
        assert_eq!(add(&mut ids, 1, 2, 1), Err(Code::PROTOCOL_VIOLATION));
        assert_eq!(add(&mut ids, 1, 1, 2), Err(Code::PROTOCOL_VIOLATION));
        assert_eq!(add(&mut ids, 2, 1, 1), Err(Code::PROTOCOL_VIOLATION));
        assert_eq!(add(&mut ids, 2, 100, 1), Err(Code::PROTOCOL_VIOLATION));
        assert_eq!(add(&mut ids, 2, 2, 2), Ok(()));
        assert_eq!(add(&mut ids, 2, 2, 2), Ok(()), "it comes again");
        assert_eq!(add(&mut ids, 3, 3, 3), Err(Code::CONNECTION_ID_LIMIT_ERROR));
        let mut none = RemoteIds::new(ConnectionId::default(), 3);
        assert_eq!(add(&mut none, 1, 1, 1), Err(Code::PROTOCOL_VIOLATION));
    }

    #[test]
    fn another_path_has_its_own_identifier() {
        let (mut ids, mut changes) = (remote(), Vec::new());
        assert!(!ids.reserve(&mut changes) && ids.aside().is_none());
        for n in 1..3 {
            assert_eq!(ids.add((n.into(), 0), id(n), [n; 16], &mut changes), Ok(()));
        }
        assert!(ids.reserve(&mut changes) && ids.reserve(&mut changes));
        assert_eq!(
            (*ids.active(), ids.aside().copied(), &changes[..]),
            (id(100), Some(id(1)), &[IdChange::AddToken([1; 16])][..])
        );
        assert!(ids.is_reset(&[1; 16]) && !ids.is_reset(&[2; 16]));
        // They count together.
        let error = ids.add((3, 0), id(3), [3; 16], &mut changes).expect_err("too many");
        assert_eq!(error.code, Code::CONNECTION_ID_LIMIT_ERROR);
        ids.exchange();
        assert_eq!((*ids.active(), ids.aside().copied()), (id(1), Some(id(100))));
        ids.release(&mut changes);
        assert_eq!((ids.take_unsent(), ids.aside()), (Some(0), None));
        // One that is wanted back is given up.
        assert!(ids.reserve(&mut changes));
        assert_eq!(ids.add((4, 4), id(4), [4; 16], &mut changes), Ok(()));
        assert_eq!((*ids.active(), ids.aside()), (id(4), None));
        assert_eq!(ids.add((5, 4), id(5), [5; 16], &mut changes), Ok(()));
        assert!(ids.reserve(&mut changes));
        changes.clear();
        ids.remove_all(&mut changes);
        assert_eq!(changes, [IdChange::RemoveToken([4; 16]), IdChange::RemoveToken([5; 16])]);
    }

    /// CVE-2024-22189: a peer has identifiers retired, and never acknowledges that.
    #[test]
    fn retirements_that_are_not_acknowledged_have_a_bound() {
        let (mut ids, mut changes) = (remote(), Vec::new());
        let mut added = 0;
        let failed = (1..1000u64).find_map(|n| {
            let bytes = n.to_be_bytes();
            let id = ConnectionId::new(&bytes).expect("eight bytes");
            let done = ids.add((n, n), id, [0; 16], &mut changes);
            while ids.take_unsent().is_some() {}
            added = n;
            done.err()
        });
        assert_eq!(failed.map(|e| e.code), Some(Code::CONNECTION_ID_LIMIT_ERROR));
        assert_eq!(added, MOST_RETIRING as u64 + 1);
    }
}
