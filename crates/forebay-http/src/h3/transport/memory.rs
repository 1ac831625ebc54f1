//! Streams in memory, for tests: bytes of the peer go in, our bytes come out.

use super::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

/// See the module.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Bytes of the peer that nobody has read, and the end of a stream.
    pub(crate) input: RefCell<BTreeMap<u64, VecDeque<Received>>>,
    /// Bytes that were written.
    pub(crate) output: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// Streams that the peer has opened.
    pub(crate) opened: RefCell<VecDeque<u64>>,
    /// Streams that were stopped.
    pub(crate) stopped: RefCell<Vec<(u64, Code)>>,
    /// Streams that we have ended.
    pub(crate) finished: RefCell<Vec<u64>>,
    /// Bytes that all streams together still take.
    pub(crate) room: Cell<usize>,
    /// Streams that we may open.
    pub(crate) allowed: Cell<u64>,
    next: Cell<u64>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            input: RefCell::default(),
            output: RefCell::default(),
            opened: RefCell::default(),
            stopped: RefCell::default(),
            finished: RefCell::default(),
            room: Cell::new(usize::MAX),
            allowed: Cell::new(3),
            next: Cell::new(0),
        }
    }
}

impl Memory {
    /// Adds bytes of the peer to a stream.
    pub(crate) fn push(&self, id: u64, bytes: &[u8]) {
        let bytes = Received::Bytes(Bytes::copy_from_slice(bytes), Follows::More);
        self.input.borrow_mut().entry(id).or_default().push_back(bytes);
    }

    /// Ends a stream of the peer.
    pub(crate) fn end(&self, id: u64) {
        self.input.borrow_mut().entry(id).or_default().push_back(Received::End);
    }

    /// Takes the bytes that were written to a stream.
    pub(crate) fn take(&self, id: u64) -> Vec<u8> {
        self.output.borrow_mut().remove(&id).unwrap_or_default()
    }
}

impl Transport for Memory {
    fn open(&self) -> Option<u64> {
        let n = self.next.get();
        self.next.set(n + 1);
        (n < self.allowed.get()).then_some(4 * n + 3)
    }

    fn accept(&self) -> Option<u64> {
        self.opened.borrow_mut().pop_front()
    }

    fn read(&self, id: u64, max: usize) -> Received {
        let mut input = self.input.borrow_mut();
        let Some(waiting) = input.get_mut(&id) else { return Received::Blocked };
        match waiting.pop_front() {
            None => Received::Blocked,
            Some(Received::Bytes(mut bytes, follows)) if bytes.len() > max => {
                let first = bytes.split_to(max);
                waiting.push_front(Received::Bytes(bytes, follows));
                Received::Bytes(first, Follows::More)
            }
            Some(Received::Bytes(bytes, Follows::More)) if waiting.is_empty() => {
                Received::Bytes(bytes, Follows::Blocked)
            }
            Some(received) => received,
        }
    }

    fn write(&self, id: u64, bytes: &[u8]) -> Result<usize, Unwritten> {
        let n = bytes.len().min(self.room.get());
        if n == 0 && !bytes.is_empty() {
            return Err(Unwritten::Blocked);
        }
        self.room.set(self.room.get() - n);
        self.output.borrow_mut().entry(id).or_default().extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn write_shared(&self, id: u64, bytes: &mut Bytes) -> Result<usize, Unwritten> {
        let n = self.write(id, bytes)?;
        drop(bytes.split_to(n));
        Ok(n)
    }

    fn finish(&self, id: u64) {
        self.finished.borrow_mut().push(id);
    }

    fn stop(&self, id: u64, code: Code) {
        self.stopped.borrow_mut().push((id, code));
    }
}
