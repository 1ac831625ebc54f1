//! System calls of a busy turn, grouped by kind: the loop reads what has arrived on idle connections before it
//! serves the first of them, and short answers leave together after the last. Serving a connection takes some 30 KiB of this
//! program's code and as much of the kernel's, about the size of the innermost cache: alternating between them for
//! each request loads both again each time. Few clients get their answers one by one instead (`few_clients.rs`). Hot path.

use super::poller::{Poller, Role, Slot, Token, Watched, slot_of};
use rustix::event::epoll;
use rustix::io::{Errno, IoSlice};
use rustix::net::{RecvFlags, SendFlags};
use std::cell::{Cell, RefCell, RefMut};
use std::os::fd::OwnedFd;

/// Largest number of bytes that are read early from a connection. Heads are rarely longer.
const READ: usize = 4096;

/// Largest number of bytes that are read early in a turn.
const READS: usize = 64 * 1024;

/// Longest answer that is copied to the queue, bytes.
pub const ANSWER: usize = 4096;

/// Longest answer in several pieces that is copied to the queue, bytes. The copy costs a little less than a call between two requests,
/// which also has to describe the pieces to the kernel: 2 % of the CPU time for a file of 10 KB.
pub(super) const PIECES: usize = 16 * 1024;

/// Longest answer that is written in the queue itself, bytes: a full TLS record.
pub const MADE: usize = 16 * 1024 + 512;

/// Largest number of answers in the queue.
const ANSWERS: usize = 32;
/// Length of the queue, in bytes, at which it is sent.
const WAITING: usize = 64 * 1024;

/// Data between the kernel and the connections of this turn.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Bytes read early; slots know their parts.
    early: RefCell<Box<[u8]>>,
    /// Number of slots whose early bytes have not been taken.
    untaken: Cell<u32>,
    answers: RefCell<AnswerQueue>,
    /// Slots whose answer found no room since the last [`Poller::take_unsent`].
    unsent: RefCell<Vec<Token>>,
}

/// Queue of answers.
#[derive(Debug, Default)]
struct AnswerQueue {
    /// Bytes of the answers. The first `used` are taken.
    bytes: Box<[u8]>,
    used: usize,
    /// Slot and end of each answer.
    list: Vec<(Token, usize)>,
}

impl AnswerQueue {
    /// Returns room for another answer, at most [`MADE`] bytes.
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.bytes.is_empty() {
            // The queue is sent once it holds WAITING bytes, so below that the longest answer always fits.
            self.bytes = vec![0; WAITING + MADE].into();
        }
        self.bytes.get_mut(self.used..self.used + len)
    }
}

/// Reserved room for an answer in the queue.
#[derive(Debug)]
pub struct Reserved<'r> {
    answers: RefMut<'r, AnswerQueue>,
    len: usize,
}

impl Reserved<'_> {
    /// Returns the room, as long as was asked for.
    pub fn room(&mut self) -> &mut [u8] {
        let len = self.len;
        self.answers.room(len).unwrap_or_default()
    }
}

/// Part of a slot in the batch.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Position and length of the bytes read early.
    early: (u32, u32),
    /// An answer is in the queue.
    queued: bool,
    /// Bytes of an answer that found no room. It is boxed twice, as almost no slot has any, and each slot pays for the size of the field.
    #[allow(clippy::box_collection)]
    unsent: Option<Box<Vec<u8>>>,
}

impl Share {
    /// Returns `true` if an answer has not been sent, or not all of it.
    pub(super) fn is_sending(&self) -> bool {
        self.queued || self.unsent.is_some()
    }
}

/// Sends once; 0 when there is no room.
fn send(fd: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            r => return r,
        }
    }
}

/// Sends the unsent bytes of a slot. Returns whether none are left. On an error they are dropped; the next
/// read reports the error.
pub(super) fn send_unsent(s: &mut Slot) -> bool {
    let Some(unsent) = &mut s.share.unsent else { return true };
    let sent = s.fd.as_ref().map_or(Err(Errno::BADF), |fd| send(fd, unsent));
    match sent {
        Ok(n) if n < unsent.len() => {
            unsent.drain(..n);
            s.writable = false;
            false
        }
        _ => {
            s.share.unsent = None;
            true
        }
    }
}

impl Poller {
    /// Reads what has arrived on idle connections.
    pub(super) fn read_early(&self, events: &[epoll::Event]) {
        use epoll::EventFlags as F;
        // Bytes from an earlier turn are still in the buffer, and a read would overwrite them.
        if self.batch.untaken.get() > 0 {
            return;
        }
        let mut slots = self.slots.borrow_mut();
        let mut early = self.batch.early.borrow_mut();
        if early.is_empty() {
            *early = vec![0; READS].into();
        }
        let mut at = 0;
        for e in events {
            let Some(s) = slot_of(&mut slots, Token::unpack(e.data.u64())) else { continue };
            // Ends and errors are left to the reader. Bytes may have come after the event, and once they are read
            // here, no further event reports the end that follows them.
            let flags = e.flags;
            let readable = flags.contains(F::IN) && !flags.intersects(F::RDHUP | F::HUP | F::ERR);
            if !readable || !matches!(s.role, Role::Idle(_)) {
                continue;
            }
            // Without room the reader asks the kernel itself, as in a quiet turn.
            let (Some(fd), Some(room)) = (&s.fd, early.get_mut(at..at + READ)) else { continue };
            // An end or an error is not noted: the kernel reports it again to the reader.
            if let Ok((_, n @ 1..)) = rustix::net::recv(fd, room, RecvFlags::empty()) {
                s.share.early = (at as u32, n as u32);
                self.batch.untaken.set(self.batch.untaken.get() + 1);
                at += n;
            }
        }
    }

    /// Appends the bytes that were read early from a connection and returns their number; `None`: there are none.
    /// `buf` should have room.
    #[inline]
    pub fn take_early(&self, token: Token, buf: &mut Vec<u8>) -> Option<usize> {
        if self.batch.untaken.get() == 0 {
            return None;
        }
        let mut s = self.slot_mut(token)?;
        let (at, n) = (s.share.early.0 as usize, s.share.early.1 as usize);
        if n == 0 {
            return None;
        }
        buf.extend_from_slice(self.batch.early.borrow().get(at..at + n)?);
        self.forget_early(&mut s);
        if n < READ {
            // The read gave less than it had room for, so the socket is empty. An end that was reported is
            // still to be read.
            s.readable = s.ended;
        }
        Some(n)
    }

    /// Returns `true` if bytes were read early from a connection.
    pub fn has_early(&self, token: Token) -> bool {
        self.batch.untaken.get() > 0 && self.slot(token).is_some_and(|s| s.share.early.1 > 0)
    }

    fn forget_early(&self, s: &mut Slot) {
        if s.share.early.1 > 0 {
            s.share.early = (0, 0);
            self.batch.untaken.set(self.batch.untaken.get() - 1);
        }
    }

    /// Queues an answer to be sent at the end of the turn. Returns `false` if the caller has to send it: it is too long,
    /// the turn has little to do, or the clients are few.
    #[inline]
    pub fn queue_answer(&self, token: Token, bytes: &[u8]) -> bool {
        if bytes.len() > ANSWER || bytes.is_empty() {
            return false;
        }
        let Some(mut reserved) = self.reserve_answer(token, bytes.len()) else { return false };
        reserved.room().copy_from_slice(bytes);
        self.commit_answer(token, reserved, bytes.len());
        true
    }

    /// Queues an answer of `len` bytes in several pieces, as [`Poller::queue_answer`] does.
    #[inline]
    pub fn queue_slices(&self, token: Token, pieces: &[IoSlice<'_>], len: usize) -> bool {
        if len > PIECES || len == 0 {
            return false;
        }
        let Some(mut reserved) = self.reserve_answer(token, len) else { return false };
        let mut room = reserved.room();
        for piece in pieces {
            // `len` is the sum of the pieces, so each of them fits.
            let Some((place, rest)) = room.split_at_mut_checked(piece.len()) else { return false };
            place.copy_from_slice(piece);
            room = rest;
        }
        self.commit_answer(token, reserved, len);
        true
    }

    /// Reserves room in the queue for an answer of at most `len` bytes, which the caller writes there and
    /// [`Poller::commit_answer`] queues. `None` if the turn has little to do, the clients are few, an earlier answer has not been sent, or `len` is
    /// longer than a TLS record.
    #[inline]
    pub fn reserve_answer(&self, token: Token, len: usize) -> Option<Reserved<'_>> {
        if !self.busy.get() || self.clients.are_few() || len > MADE {
            return None;
        }
        if self.slot(token)?.share.unsent.is_some() {
            return None;
        }
        let mut answers = self.batch.answers.borrow_mut();
        answers.room(len)?;
        Some(Reserved { answers, len })
    }

    /// Queues the first `len` bytes of the reserved room.
    #[inline]
    pub fn commit_answer(&self, token: Token, mut reserved: Reserved<'_>, len: usize) {
        let answers = &mut *reserved.answers;
        answers.used += len.min(reserved.len);
        answers.list.push((token, answers.used));
        let full = answers.list.len() >= ANSWERS || answers.used >= WAITING;
        // `flush_answers` borrows the queue.
        drop(reserved);
        if let Some(s) = self.slots.borrow_mut().get_mut(token.index as usize) {
            s.share.queued = true;
        }
        if full {
            self.flush_answers();
        }
    }

    /// Sends the queued answers. A slot keeps bytes that find no room, and sends them before any others once there is room.
    pub fn flush_answers(&self) {
        let mut answers = self.batch.answers.borrow_mut();
        if answers.list.is_empty() {
            return;
        }
        let answers = &mut *answers;
        let mut slots = self.slots.borrow_mut();
        let mut start = 0;
        for (token, end) in answers.list.drain(..) {
            let bytes = answers.bytes.get(start..end).unwrap_or_default();
            start = end;
            let Some(s) = slot_of(&mut slots, token) else { continue };
            s.share.queued = false;
            if let Some(unsent) = &mut s.share.unsent {
                // An earlier answer of the same slot has just found no room, and these bytes have to follow
                // it.
                unsent.extend_from_slice(bytes);
                continue;
            }
            let sent = s.fd.as_ref().map_or(Err(Errno::BADF), |fd| send(fd, bytes));
            // An error is left to the next read, which reports it.
            if let Ok(n) = sent
                && n < bytes.len()
            {
                s.share.unsent = Some(Box::new(bytes.get(n..).unwrap_or_default().to_vec()));
                s.writable = false;
                // No task waits here, so the slot has to be registered for the event that sends the rest.
                self.watch(s, token, Watched::Both);
                self.batch.unsent.borrow_mut().push(token);
            }
        }
        answers.used = 0;
    }

    /// Takes an idle connection whose last answer has not been sent completely, with its front end. Makes its slot busy, since a
    /// runner has to wait for room as for any other answer.
    pub(super) fn take_unsent(&self) -> Option<(u8, Token)> {
        loop {
            let token = self.batch.unsent.borrow_mut().pop()?;
            if let Some(front) = self.unpark(token) {
                return Some((front, token));
            }
        }
    }

    /// Sends the queued answer of a slot. Has to be called before anything else is written there. Returns `false` if a part found
    /// no room, so that the caller has to wait.
    #[inline]
    pub fn clear_to_send(&self, token: Token) -> bool {
        let queued = match self.slot(token) {
            Some(s) if s.share.is_sending() => s.share.queued,
            _ => return true,
        };
        self.send_queued(token, queued)
    }

    /// Returns `true` if a part of an answer has found no room yet.
    #[inline]
    pub fn has_unsent(&self, token: Token) -> bool {
        self.slot(token).is_some_and(|s| s.share.unsent.is_some())
    }

    #[cold]
    fn send_queued(&self, token: Token, queued: bool) -> bool {
        if queued {
            self.flush_answers();
        }
        self.slot_mut(token).is_none_or(|mut s| send_unsent(&mut s))
    }

    /// Ends a slot's part in the batch: sends its answers, as far as there is room, and forgets its early bytes.
    pub(super) fn release(&self, token: Token) {
        let has_part = |s: &Slot| s.share.is_sending() || s.share.early.1 > 0;
        if !self.slot(token).is_some_and(|s| has_part(&s)) {
            return;
        }
        self.clear_to_send(token);
        if let Some(mut s) = self.slot_mut(token) {
            self.forget_early(&mut s);
            s.share = Share::default();
        }
    }
}

const _: () = assert!(READS <= u32::MAX as usize);
