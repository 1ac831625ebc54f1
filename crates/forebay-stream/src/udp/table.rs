//! Sessions of a thread by client and by number, in the order of their last datagrams. Hot path.

use forebay_sys::datagrams::Destination;
use std::collections::HashMap;

/// Client of a session, at a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Slot of the listener.
    pub listener: u32,
    /// Address of the client, and the local address where the listener's is a wildcard.
    pub from: Destination,
}

/// Number of no place.
const NONE: u32 = u32::MAX;

/// Sessions with the state `S`.
#[derive(Debug)]
pub(super) struct Table<S> {
    places: Vec<Place<S>>,
    free: Vec<u32>,
    /// Places that take the datagrams of a client. The standard hasher has a random key: clients choose their ports.
    bound: HashMap<Key, u32>,
    /// End of the list of lined up sessions.
    oldest: u32,
    newest: u32,
}

#[derive(Debug)]
struct Place<S> {
    state: Option<S>,
    key: Key,
    /// The session takes further datagrams of its client.
    is_bound: bool,
    /// The session is in the list.
    in_line: bool,
    older: u32,
    newer: u32,
}

impl<S> Default for Table<S> {
    fn default() -> Table<S> {
        Table { places: Vec::new(), free: Vec::new(), bound: HashMap::new(), oldest: NONE, newest: NONE }
    }
}

impl<S> Table<S> {
    /// Returns the number of the session that takes the datagrams of a client.
    #[inline]
    pub(super) fn find(&self, key: &Key) -> Option<u32> {
        self.bound.get(key).copied()
    }

    /// Adds a session, which takes the datagrams of its client from now on. Returns its number.
    pub(super) fn insert(&mut self, key: Key, state: S) -> u32 {
        let place = Place {
            state: Some(state),
            key: key.clone(),
            is_bound: true,
            in_line: false,
            older: NONE,
            newer: NONE,
        };
        let number = match self.free.pop() {
            Some(number) => {
                if let Some(free) = self.place(number) {
                    *free = place;
                }
                number
            }
            None => {
                self.places.push(place);
                self.places.len() as u32 - 1
            }
        };
        if let Some(former) = self.bound.insert(key, number).and_then(|n| self.place(n)) {
            former.is_bound = false;
        }
        number
    }

    #[inline]
    fn place(&mut self, number: u32) -> Option<&mut Place<S>> {
        self.places.get_mut(number as usize)
    }

    /// Returns the state of a session; `None` while it is taken.
    #[inline]
    pub(super) fn get(&mut self, number: u32) -> Option<&mut S> {
        self.place(number)?.state.as_mut()
    }

    /// Replaces the state of a session. Returns the state before.
    pub(super) fn replace(&mut self, number: u32, state: S) -> Option<S> {
        self.place(number)?.state.replace(state)
    }

    /// Takes the state of a session, which keeps its number and takes no further datagrams.
    pub(super) fn take(&mut self, number: u32) -> Option<S> {
        self.unbind(number);
        self.leave_line(number);
        self.place(number)?.state.take()
    }

    /// Makes the next datagram of a session's client begin a new session.
    pub(super) fn unbind(&mut self, number: u32) {
        if let Some(place) = self.place(number)
            && std::mem::replace(&mut place.is_bound, false)
        {
            let key = place.key.clone();
            self.bound.remove(&key);
        }
    }

    /// Removes a session. Its number becomes free.
    pub(super) fn remove(&mut self, number: u32) -> Option<S> {
        let state = self.take(number);
        self.free.push(number);
        state
    }

    /// Puts a session at the end of the line, as the one with the latest datagram.
    #[inline]
    pub(super) fn touch(&mut self, number: u32) {
        if self.newest == number {
            return;
        }
        self.leave_line(number);
        let older = self.newest;
        let Some(place) = self.place(number) else { return };
        (place.in_line, place.older, place.newer) = (true, older, NONE);
        self.newest = number;
        match self.place(older) {
            Some(before) => before.newer = number,
            None => self.oldest = number,
        }
    }

    fn leave_line(&mut self, number: u32) {
        let Some(place) = self.place(number) else { return };
        if !std::mem::replace(&mut place.in_line, false) {
            return;
        }
        let (older, newer) = (place.older, place.newer);
        match self.place(older) {
            Some(before) => before.newer = newer,
            None => self.oldest = newer,
        }
        match self.place(newer) {
            Some(behind) => behind.older = older,
            None => self.newest = older,
        }
    }

    /// Returns the number of the session in the line whose last datagram is oldest.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Returns the number of sessions, with those whose state is taken.
    pub(super) fn len(&self) -> usize {
        self.places.len().saturating_sub(self.free.len())
    }

    /// Returns the numbers of the sessions whose state fulfils a condition.
    pub(super) fn numbers(&self, holds: impl Fn(&S) -> bool) -> impl Iterator<Item = u32> {
        let all = (0..).zip(&self.places);
        all.filter(move |(_, place)| place.state.as_ref().is_some_and(&holds)).map(|(number, _)| number)
    }

    /// Returns the states of all sessions that are not taken.
    pub(super) fn states(&self) -> impl Iterator<Item = &S> {
        self.places.iter().filter_map(|place| place.state.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_sys::datagrams::Address;

    fn key(port: u16) -> Key {
        Key {
            listener: 1,
            from: Destination { addr: Address::Inet(([127, 0, 0, 1], port).into()), local: None },
        }
    }

    /// Takes the sessions in the order of the line.
    fn line(table: &mut Table<u16>) -> Vec<u16> {
        let mut line = Vec::new();
        while let Some(number) = table.oldest() {
            line.extend(table.take(number));
        }
        assert_eq!(table.newest, NONE);
        line
    }

    #[test]
    fn a_client_has_one_session_that_takes_its_datagrams() {
        let mut table = Table::default();
        let first = table.insert(key(1), 1);
        let other = table.insert(key(2), 2);
        assert_eq!((table.find(&key(1)), table.find(&key(2)), table.find(&key(3))), (Some(0), Some(1), None));
        let local = Key { from: Destination { local: Some([127, 0, 0, 2].into()), ..key(1).from }, ..key(1) };
        assert_eq!((table.find(&local), table.find(&Key { listener: 2, ..key(1) })), (None, None));
        table.unbind(first);
        assert_eq!((table.find(&key(1)), table.get(first)), (None, Some(&mut 1)));
        // The end of the former session does not concern the next one of the client.
        let next = table.insert(key(1), 3);
        assert_eq!(table.remove(first), Some(1));
        assert_eq!(table.find(&key(1)), Some(next));
        assert_eq!(table.replace(other, 4), Some(2));
        assert_eq!((table.take(other), table.find(&key(2))), (Some(4), None));
        assert_eq!(table.get(other), None);
        // A number that is taken is not given to another session before it is free.
        assert_eq!(table.insert(key(5), 5), first);
        assert_eq!(table.insert(key(6), 6), 3);
        assert_eq!(table.remove(other), None);
        assert_eq!(table.insert(key(7), 7), other);
        assert_eq!(table.states().copied().collect::<Vec<_>>(), [5, 7, 3, 6]);
        assert_eq!(table.numbers(|state| *state > 5).collect::<Vec<_>>(), [1, 3]);
        table.remove(next);
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn the_oldest_comes_first() {
        let mut table = Table::default();
        let all: Vec<u32> = (0..5).map(|n| table.insert(key(n), n)).collect();
        assert_eq!(table.oldest(), None, "none is in line");
        all.iter().for_each(|n| table.touch(*n));
        // Last, first, in between.
        for n in [4, 0, 2] {
            table.touch(n);
        }
        table.remove(3);
        table.remove(3);
        assert_eq!(line(&mut table), [1, 4, 0, 2]);
        table.touch(99);
    }
}
