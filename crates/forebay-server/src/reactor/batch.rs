//! The system calls of a busy turn, one kind behind the other: what has arrived on idle connections is read before the
//! first of them is served, and short answers leave behind the last. Serving a connection takes some 30 KiB of this
//! program's code and as much of the kernel's, about what the innermost cache holds: going to and fro between them for
//! each request loads both again each time. Hot path.

use super::{Handler, Reactor, Role, Slot, Token, Watched, register};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::cell::{Cell, RefCell, RefMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Most that is read early from a connection, bytes: heads are rarely longer.
const READ: usize = 4096;

/// Most that is read early in a turn, bytes.
const READS: usize = 64 * 1024;

/// Longest answer that is copied to wait for the end of the turn, bytes.
pub const ANSWER: usize = 4096;

/// Longest answer that is made where it waits, bytes: a full TLS record.
pub const MADE: usize = 16 * 1024 + 512;

/// Most answers that wait, and the bytes after which they leave.
const ANSWERS: usize = 32;
const WAITING: usize = 64 * 1024;

/// What is between the kernel and the connections of this turn.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// What was read early; slots say which of it is theirs.
    early: RefCell<Box<[u8]>>,
    /// Slots whose bytes have not been taken yet.
    untaken: Cell<u32>,
    answers: RefCell<Answers>,
    /// Slots that owe something since the last look.
    owing: RefCell<Vec<Token>>,
}

#[derive(Debug, Default)]
struct Answers {
    /// Room for them; the first `used` bytes are theirs.
    bytes: Box<[u8]>,
    used: usize,
    /// Whose they are, and where they end.
    list: Vec<(Token, usize)>,
}

impl Answers {
    /// Room for another one, at most [`MADE`] bytes.
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.bytes.is_empty() {
            self.bytes = vec![0; WAITING + MADE].into();
        }
        self.bytes.get_mut(self.used..self.used + len)
    }
}

/// Where an answer is made that leaves at the end of the turn.
#[derive(Debug)]
pub struct Place<'r> {
    answers: RefMut<'r, Answers>,
    len: usize,
}

impl Place<'_> {
    /// As much room as was asked for.
    pub fn room(&mut self) -> &mut [u8] {
        let len = self.len;
        self.answers.room(len).unwrap_or_default()
    }
}

/// What a slot has in the batch.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Place and length of what was read early.
    early: (u32, u32),
    /// An answer waits for the end of the turn.
    waits: bool,
    /// What of such an answer found no room.
    #[allow(clippy::box_collection)]
    owed: Option<Box<Vec<u8>>>,
}

impl Share {
    /// Whether an answer has not left yet, or not all of it.
    pub fn is_sending(&self) -> bool {
        self.waits || self.owed.is_some()
    }
}

/// One send; 0 when there is no room.
fn send(fd: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            r => return r,
        }
    }
}

/// Sends what a slot owes. `true`: nothing is owed any more; what cannot be sent at all is given up, and whoever reads
/// learns why.
pub(super) fn pay<C>(s: &mut Slot<C>) -> bool {
    let Some(owed) = &mut s.share.owed else { return true };
    let sent = s.fd.as_ref().map_or(Err(Errno::BADF), |fd| send(fd, owed));
    match sent {
        Ok(n) if n < owed.len() => {
            owed.drain(..n);
            s.writable = false;
            false
        }
        _ => {
            s.share.owed = None;
            true
        }
    }
}

impl<C: 'static> Reactor<C> {
    /// Reads what has arrived on connections that wait for a request.
    pub(super) fn read_early(&self, events: &[epoll::Event]) {
        use epoll::EventFlags as F;
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
            let token = Token::unpack(e.data.u64());
            let Some(s) = slots.get_mut(token.index as usize).filter(|s| s.age == token.age) else {
                continue;
            };
            let flags = e.flags;
            // Ends and errors are for the reader to find. What the event does not tell of may have come since: once it is
            // read, nothing else tells of it.
            let readable = flags.contains(F::IN) && !flags.intersects(F::RDHUP | F::HUP | F::ERR);
            if !readable || !matches!(s.role, Role::Idle(_)) {
                continue;
            }
            let (Some(fd), Some(room)) = (&s.fd, early.get_mut(at..at + READ)) else { continue };
            if let Ok((_, n @ 1..)) = rustix::net::recv(fd, room, RecvFlags::empty()) {
                s.share.early = (at as u32, n as u32);
                self.batch.untaken.set(self.batch.untaken.get() + 1);
                at += n;
            }
        }
    }

    /// Appends what was read early from a connection; `None`: nothing was. `buf` is to have room.
    #[inline]
    pub fn take_early(&self, token: Token, buf: &mut Vec<u8>) -> Option<usize> {
        if self.batch.untaken.get() == 0 {
            return None;
        }
        let mut slots = self.slots.borrow_mut();
        let s = slots.get_mut(token.index as usize).filter(|s| s.age == token.age)?;
        let (at, n) = (s.share.early.0 as usize, s.share.early.1 as usize);
        if n == 0 {
            return None;
        }
        buf.extend_from_slice(self.batch.early.borrow().get(at..at + n)?);
        self.forget_early(s);
        if n < READ {
            // All there was.
            s.readable = s.ended;
        }
        Some(n)
    }

    fn forget_early(&self, s: &mut Slot<C>) {
        if s.share.early.1 > 0 {
            s.share.early = (0, 0);
            self.batch.untaken.set(self.batch.untaken.get() - 1);
        }
    }

    /// Takes an answer that is to leave at the end of the turn. `false`: the caller is to send it, since it is too long or
    /// there is little to do this turn.
    #[inline]
    pub fn answer_later(&self, token: Token, bytes: &[u8]) -> bool {
        if bytes.len() > ANSWER || bytes.is_empty() {
            return false;
        }
        let Some(mut place) = self.answer_place(token, bytes.len()) else { return false };
        place.room().copy_from_slice(bytes);
        self.answer_made(token, place, bytes.len());
        true
    }

    /// Where to make an answer of at most `len` bytes that is to leave at the end of the turn: [`Reactor::answer_made`] says that it
    /// has been. `None`: as [`Reactor::answer_later`], or it is longer than a TLS record.
    #[inline]
    pub fn answer_place(&self, token: Token, len: usize) -> Option<Place<'_>> {
        if !self.busy.get() || len > MADE {
            return None;
        }
        let slots = self.slots.borrow();
        let s = slots.get(token.index as usize).filter(|s| s.age == token.age)?;
        if s.share.owed.is_some() {
            return None;
        }
        let mut answers = self.batch.answers.borrow_mut();
        answers.room(len)?;
        Some(Place { answers, len })
    }

    /// The first `len` bytes of the place are the answer.
    #[inline]
    pub fn answer_made(&self, token: Token, mut place: Place<'_>, len: usize) {
        let answers = &mut *place.answers;
        answers.used += len.min(place.len);
        answers.list.push((token, answers.used));
        let full = answers.list.len() >= ANSWERS || answers.used >= WAITING;
        drop(place);
        if let Some(s) = self.slots.borrow_mut().get_mut(token.index as usize) {
            s.share.waits = true;
        }
        if full {
            self.send_answers();
        }
    }

    /// Sends the answers that wait. What finds no room is owed by the slot, which sends it when there is some; until then
    /// nothing else is written there.
    pub fn send_answers(&self) {
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
            let Some(s) = slots.get_mut(token.index as usize).filter(|s| s.age == token.age) else {
                continue;
            };
            s.share.waits = false;
            if let Some(owed) = &mut s.share.owed {
                owed.extend_from_slice(bytes);
                continue;
            }
            let sent = s.fd.as_ref().map_or(Err(Errno::BADF), |fd| send(fd, bytes));
            // A broken connection says so to whoever reads.
            if let Ok(n) = sent
                && n < bytes.len()
            {
                s.share.owed = Some(Box::new(bytes.get(n..).unwrap_or_default().to_vec()));
                s.writable = false;
                register(&self.epoll, s, token, Watched::Both);
                self.batch.owing.borrow_mut().push(token);
            }
        }
        answers.used = 0;
    }

    /// Sends the answers of the turn. A connection that waits for its next request already and owes a part of the last answer
    /// is given to a runner once more, which waits for room as for any other answer.
    pub(super) fn answers_leave<H: Handler<Conn = C>>(&self, handler: &Rc<H>) {
        loop {
            self.send_answers();
            let Some(token) = self.batch.owing.borrow_mut().pop() else { return };
            let conn = {
                let mut slots = self.slots.borrow_mut();
                let slot = slots.get_mut(token.index as usize).filter(|s| s.age == token.age);
                let Some(s) = slot.filter(|s| matches!(s.role, Role::Idle(_))) else { continue };
                match std::mem::replace(&mut s.role, Role::Busy) {
                    Role::Idle(conn) => conn,
                    _ => continue,
                }
            };
            self.idle.set(self.idle.get() - 1);
            self.start(handler, token, conn);
        }
    }

    /// To be asked before anything else is written to a slot: sends what waits there. `false`: some of it has found no
    /// room, so nothing else has.
    #[inline]
    pub fn is_clear(&self, token: Token) -> bool {
        let share = |s: &Slot<C>| (s.share.waits, s.share.owed.is_some());
        let known = self.slots.borrow().get(token.index as usize).filter(|s| s.age == token.age).map(share);
        match known {
            None | Some((false, false)) => true,
            Some((waits, _)) => self.clear(token, waits),
        }
    }

    /// Whether a part of an answer has found no room yet.
    #[inline]
    pub fn owes(&self, token: Token) -> bool {
        let slots = self.slots.borrow();
        slots.get(token.index as usize).is_some_and(|s| s.age == token.age && s.share.owed.is_some())
    }

    #[cold]
    fn clear(&self, token: Token, waits: bool) -> bool {
        if waits {
            self.send_answers();
        }
        let mut slots = self.slots.borrow_mut();
        slots.get_mut(token.index as usize).filter(|s| s.age == token.age).is_none_or(pay)
    }

    /// A slot is taken away: what it was to send leaves, as far as there is room.
    pub(super) fn settle(&self, token: Token) {
        let touched = |s: &Slot<C>| s.share.waits || s.share.owed.is_some() || s.share.early.1 > 0;
        let known = self.slots.borrow().get(token.index as usize).filter(|s| s.age == token.age).map(touched);
        if known != Some(true) {
            return;
        }
        self.is_clear(token);
        let mut slots = self.slots.borrow_mut();
        if let Some(s) = slots.get_mut(token.index as usize).filter(|s| s.age == token.age) {
            self.forget_early(s);
            s.share = Share::default();
        }
    }
}

const _: () = assert!(READS <= u32::MAX as usize);
