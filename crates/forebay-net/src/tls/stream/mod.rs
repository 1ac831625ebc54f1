//! An encrypted connection, from its first record to its last. rustls makes the handshake; afterwards [`super::record`] has its
//! keys. Nothing here waits. Hot path.

pub use super::handshake::{Agreed, Greeting, Step};
use super::handshake::{Flight, StreamState};
use super::record::{Broken, DATA, HEADER, Half, MAX_CONTENT, OVERHEAD};
use super::traffic::Traffic;
use crate::io::Io;
use crate::reactor::Token;
use crate::wire::{self, Sent, Then, transmit};
use rustix::io::{Errno, IoSlice};
use rustix::net::SendFlags;
use rustls::client::UnbufferedClientConnection;

/// Content sent with one call, bytes: to a client that has taken all so far, at first, and to a client that has not. Sealed
/// records that a client does not take stay in memory.
const BATCH: usize = 8 * MAX_CONTENT;
const FIRST_BATCH: usize = 4 * MAX_CONTENT;
const SMALL_BATCH: usize = 2 * MAX_CONTENT;
/// Length of the buffer that records are sealed into. A batch in small records has more overhead.
const OUTPUT: usize = BATCH + BATCH / 16;
/// Bytes received with one call.
const INPUT: usize = 32 * 1024;
/// Longest incomplete handshake flight, bytes.
pub(super) const MAX_FLIGHT: usize = 256 * 1024;

/// Buffers of a thread, shared by its connections.
#[derive(Debug, Default)]
pub struct Scratch {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Scratch {
    fn output(&mut self) -> &mut [u8] {
        if self.output.is_empty() {
            self.output = vec![0; OUTPUT];
        }
        &mut self.output
    }
}

/// An encrypted connection.
pub struct Stream {
    pub(super) state: StreamState,
    /// Content that was received during the handshake.
    pub(super) ready: Vec<u8>,
    /// An incomplete record.
    pub(super) partial: Vec<u8>,
    /// `partial` has whole records, which came together with the end of the handshake.
    pub(super) unopened: bool,
    /// Records that have not been sent.
    pub(super) owed: Vec<u8>,
    /// Bytes of `owed` that have been sent.
    pub(super) owed_at: usize,
    /// The other side sends no more.
    pub(super) ended: bool,
    /// `close_notify` has been sent.
    pub(super) closing: bool,
    /// Content was received before the end of the handshake (0-RTT).
    pub early: bool,
    /// Longest content of a record, bytes.
    pub record: usize,
    /// Content sent with one call, bytes.
    batch: usize,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("owed", &self.owed.len()).finish_non_exhaustive()
    }
}

pub(super) fn broken(_: Broken) -> Errno {
    Errno::PROTO
}

/// Content that is being sent in records.
struct Content<'p> {
    /// Pieces after `piece`.
    rest: std::slice::Iter<'p, IoSlice<'p>>,
    /// Piece that is being sent.
    piece: &'p [u8],
    /// The last piece has a byte more: the type of a record.
    typed: bool,
}

impl Content<'_> {
    /// Seals the next `n` bytes, of which there are as many, into a record.
    #[inline]
    fn seal(&mut self, n: usize, tx: &mut Half, record: &mut [u8]) -> Result<(), Errno> {
        while self.piece.is_empty() {
            let Some(piece) = self.rest.next() else { break };
            self.piece = piece;
        }
        if let Some((content, more)) = self.piece.split_at_checked(n) {
            self.piece = more;
            return tx.seal(DATA, content, record).map_err(broken);
        }
        if self.typed
            && tx.v13()
            && let [last] = self.rest.as_slice()
            && self.piece.len() + last.len() == n + 1
        {
            return tx.seal_inner(self.piece, last, record).map_err(broken);
        }
        // A record that covers several pieces is put together first.
        let at = tx.before();
        self.gather(record.get_mut(at..at + n).ok_or(Errno::NOBUFS)?)?;
        tx.seal_in_place(DATA, n, record).map_err(broken)
    }

    /// Copies the next bytes of the pieces until `room` is full.
    fn gather(&mut self, mut room: &mut [u8]) -> Result<(), Errno> {
        loop {
            let n = self.piece.len().min(room.len());
            let (head, more) = self.piece.split_at(n);
            let (filled, left) = room.split_at_mut(n);
            filled.copy_from_slice(head);
            self.piece = more;
            if left.is_empty() {
                return Ok(());
            }
            room = left;
            self.piece = self.rest.next().ok_or(Errno::NOBUFS)?;
        }
    }
}

/// Returns the sealed alert that ends a connection. `owed` stays as it is.
fn close_notify(traffic: &mut Traffic, owed: &mut Vec<u8>) -> Vec<u8> {
    let before = owed.len();
    traffic.alert(1, 0, owed);
    owed.split_off(before)
}

impl Stream {
    fn new(state: StreamState) -> Stream {
        Stream {
            state,
            ready: Vec::new(),
            partial: Vec::new(),
            unopened: false,
            owed: Vec::new(),
            owed_at: 0,
            ended: false,
            closing: false,
            early: false,
            record: MAX_CONTENT,
            batch: FIRST_BATCH,
        }
    }

    /// Creates the server's side. `received` has been read from the connection already.
    pub fn server(received: Vec<u8>) -> Stream {
        Stream::new(StreamState::Hello(received, super::hello::Reading::default()))
    }

    /// Creates the client's side.
    pub fn client(conn: UnbufferedClientConnection) -> Stream {
        Stream::new(StreamState::Client(Box::new(conn), Flight::default()))
    }

    /// Returns `true` if the handshake is over.
    #[inline]
    pub fn established(&self) -> bool {
        matches!(self.state, StreamState::Traffic(_))
    }

    /// Returns `true` if the keys have sealed as much as they should and cannot change. The connection should take no further
    /// request then.
    #[inline]
    pub fn worn(&self) -> bool {
        matches!(&self.state, StreamState::Traffic(t) if !t.v13 && t.tx.worn())
    }

    /// Returns `true` if the peer has announced the end of its data (`close_notify`). A connection that ends without it may have
    /// been cut by an attacker (RFC 8446, section 6.1).
    #[inline]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Returns `true` if content or a record has been received but not taken.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() || self.unopened
    }

    /// Returns `true` if sealed records have not been sent.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Returns the length of the sealed records that have not been sent, in bytes.
    #[inline]
    pub fn unsent(&self) -> usize {
        self.owed.len() - self.owed_at
    }

    /// Gives memory back before a pause.
    pub fn shrink(&mut self) {
        for b in [&mut self.partial, &mut self.owed, &mut self.ready] {
            if b.is_empty() && b.capacity() > 0 {
                *b = Vec::new();
            }
        }
    }

    /// Reads content like [`crate::wire::Wire::read`]. Appends up to 32 KiB, whatever the capacity.
    ///
    /// # Errors
    /// Errors of [`crate::wire::Wire::read`]; `PROTO` for bytes that are no record of this connection.
    pub fn read(&mut self, io: &Io, token: Token, out: &mut Vec<u8>) -> Result<usize, Errno> {
        if !self.ready.is_empty() {
            let ready = std::mem::take(&mut self.ready);
            out.extend_from_slice(&ready);
            return Ok(ready.len());
        }
        let mut scratch = io.tls.borrow_mut();
        let input = &mut scratch.input;
        loop {
            let StreamState::Traffic(traffic) = &mut self.state else { return Err(Errno::PROTO) };
            if self.ended {
                return Ok(0);
            }
            input.clear();
            input.append(&mut self.partial);
            // Records that have been received are opened first, since the end of the connection must not
            // overtake them.
            let got = match std::mem::take(&mut self.unopened) {
                true => Ok(input.len()),
                false => receive(io, token, input, INPUT),
            };
            let begin = out.len();
            // Records are opened after an error of the socket, too, since the records that came before it count.
            let used = traffic.open_all(input, out, &mut self.ended, &mut self.owed);
            let used = match used {
                Ok(used) => used,
                Err(e) => {
                    if let Some(alert) = e.alert() {
                        traffic.alert(2, alert, &mut self.owed);
                    }
                    // `flush` and `drain` use the buffers of the thread as well.
                    drop(scratch);
                    self.closing = true;
                    let _ = self.flush(io, token, SendFlags::NOSIGNAL);
                    drain(io, token);
                    return Err(Errno::PROTO);
                }
            };
            if used < input.len() {
                self.partial.extend_from_slice(input.get(used..).unwrap_or_default());
            }
            if !self.owed.is_empty() {
                // An answer to a change of keys must not wait until something else is sent.
                let _ = self.flush(io, token, SendFlags::NOSIGNAL);
            }
            if out.len() > begin {
                return Ok(out.len() - begin);
            }
            match got {
                Ok(0) => return Ok(0),
                // Only part of a record has come. If the slot is readable, another read costs less than a wait.
                Ok(_) if !io.poller.is_readable(token) && !self.ended => return Err(Errno::AGAIN),
                Ok(_) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Sends pieces like [`crate::wire::Wire::send_pieces`]. `typed`: the last piece has a byte more, the type of a record
    /// ([`crate::wire::Wire::send_typed`]).
    ///
    /// # Errors
    /// Errors of [`crate::wire::Wire::send`].
    pub fn send(
        &mut self,
        io: &Io,
        token: Token,
        pieces: &[IoSlice<'_>],
        typed: bool,
        then: Then,
    ) -> Result<Sent, Errno> {
        if self.has_unsent() && !self.flush(io, token, SendFlags::NOSIGNAL)? {
            let empty = pieces.iter().all(|p| p.is_empty());
            return if empty { Ok(Sent { bytes: 0, full: true }) } else { Err(Errno::AGAIN) };
        }
        let StreamState::Traffic(traffic) = &mut self.state else { return Err(Errno::PIPE) };
        if self.closing {
            return Err(Errno::PIPE);
        }
        traffic.renew(&mut self.owed)?;
        // A typed last piece has at least its type, so there is something to subtract from.
        let total = pieces.iter().map(|p| p.len()).sum::<usize>() - usize::from(typed);
        // A short answer is sealed in the queue in which it waits for the end of the turn, without a copy.
        let mut place = if then == Then::Wait && total > 0 && total <= self.record.min(self.batch) {
            io.poller.reserve_answer(token, self.owed.len() + total + OVERHEAD)
        } else {
            None
        };
        let mut scratch = None;
        let out = match &mut place {
            Some(place) => place.room(),
            None => scratch.insert(io.tls.borrow_mut()).output(),
        };
        let mut end = self.owed.len();
        // Records that were sealed earlier come first, since the peer opens records in the order of their
        // numbers.
        out.get_mut(..end).ok_or(Errno::NOBUFS)?.copy_from_slice(&self.owed);
        self.owed.clear();
        let most = self.batch.min(total);
        let mut content = Content { rest: pieces.iter(), piece: &[], typed };
        let mut taken = 0;
        while taken < most {
            let n = self.record.min(most - taken);
            let len = traffic.tx.sealed_len(n);
            let Some(record) = out.get_mut(end..end + len) else { break };
            content.seal(n, &mut traffic.tx, record)?;
            taken += n;
            end += len;
        }
        let mut flags = SendFlags::NOSIGNAL;
        // The alert follows the last byte only. If some bytes find no room, a later call sends it.
        if taken == total && then == Then::Close {
            let alert = close_notify(traffic, &mut self.owed);
            if let Some(room) = out.get_mut(end..end + alert.len()) {
                room.copy_from_slice(&alert);
                end += alert.len();
                self.closing = true;
                flags |= SendFlags::MORE;
            }
        } else if then == Then::More {
            flags |= SendFlags::MORE;
        }
        let Some(out) = scratch.as_mut().map(|s| s.output()) else {
            if let Some(place) = place {
                io.poller.commit_answer(token, place, end);
            }
            return Ok(Sent { bytes: taken, full: false });
        };
        // Bytes count as taken once they are sealed, even if they do not leave: sealing them again would use another
        // record number.
        let sent = transmit(&io.poller, token, out.get(..end).unwrap_or_default(), flags)?;
        self.batch = next_batch(self.batch, taken, sent < end);
        if sent < end {
            self.owed.extend_from_slice(out.get(sent..end).unwrap_or_default());
        }
        Ok(Sent { bytes: taken, full: sent < end })
    }

    /// Sends a part of a file like [`crate::wire::Wire::send_file`].
    ///
    /// # Errors
    /// Errors of [`crate::wire::Wire::send`], and of preadv(2).
    pub fn send_file(
        &mut self,
        io: &Io,
        token: Token,
        file: &impl std::os::fd::AsFd,
        offset: &mut u64,
        count: usize,
    ) -> Result<Sent, Errno> {
        if self.has_unsent() && !self.flush(io, token, SendFlags::NOSIGNAL)? {
            return Err(Errno::AGAIN);
        }
        let StreamState::Traffic(traffic) = &mut self.state else { return Err(Errno::PIPE) };
        let mut scratch = io.tls.borrow_mut();
        let out = scratch.output();
        traffic.renew(&mut self.owed)?;
        let first = self.owed.len();
        out.get_mut(..first).ok_or(Errno::NOBUFS)?.copy_from_slice(&self.owed);
        self.owed.clear();
        let (before, record) = (traffic.tx.before(), self.record);
        let full = traffic.tx.sealed_len(record);
        // Content is read to the place where it is sealed, which is known since all records but the last are
        // full.
        let fits = ((out.len() - first) / full).min(self.batch / record).clamp(1, 8);
        let want = count.min(fits * record);
        let got = {
            let mut slices: [rustix::io::IoSliceMut<'_>; 8] =
                std::array::from_fn(|_| rustix::io::IoSliceMut::new(&mut []));
            let mut used = 0;
            let mut left = want;
            for chunk in out.get_mut(first..).ok_or(Errno::NOBUFS)?.chunks_mut(full) {
                if left == 0 || used == slices.len() {
                    break;
                }
                let n = left.min(record);
                let Some(content) = chunk.get_mut(before..before + n) else { break };
                slices[used] = rustix::io::IoSliceMut::new(content);
                used += 1;
                left -= n;
            }
            rustix::io::preadv(file, slices.get_mut(..used).unwrap_or_default(), *offset)?
        };
        // The file has become shorter since it was opened. The caller sees it by a write of no bytes that
        // found room.
        if got == 0 && count > 0 {
            return Ok(Sent { bytes: 0, full: false });
        }
        let mut end = first;
        let mut left = got;
        while left > 0 {
            let n = left.min(record);
            let len = traffic.tx.sealed_len(n);
            let slot = out.get_mut(end..end + len).ok_or(Errno::NOBUFS)?;
            traffic.tx.seal_in_place(DATA, n, slot).map_err(broken)?;
            end += len;
            left -= n;
        }
        *offset += got as u64;
        let sent = transmit(&io.poller, token, out.get(..end).unwrap_or_default(), SendFlags::NOSIGNAL)?;
        self.batch = next_batch(self.batch, got, sent < end);
        if sent < end {
            self.owed.extend_from_slice(out.get(sent..end).unwrap_or_default());
        }
        Ok(Sent { bytes: got, full: sent < end })
    }

    /// Says `close_notify`, if there is room for it.
    pub fn close(&mut self, io: &Io, token: Token) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        if let StreamState::Traffic(traffic) = &mut self.state {
            traffic.alert(1, 0, &mut self.owed);
            let _ = self.flush(io, token, SendFlags::NOSIGNAL);
        }
    }

    /// Sends the owed records. Returns `false` if some are left.
    pub(super) fn flush(&mut self, io: &Io, token: Token, flags: SendFlags) -> Result<bool, Errno> {
        if self.owed.is_empty() {
            return Ok(true);
        }
        let rest = self.owed.get(self.owed_at..).unwrap_or_default();
        let sent = transmit(&io.poller, token, rest, flags)?;
        self.owed_at += sent;
        if self.owed_at < self.owed.len() {
            return Ok(false);
        }
        self.owed_at = 0;
        self.owed.clear();
        // A client that was slow once should not keep a large buffer for the life of its connection.
        if self.owed.capacity() > 4096 {
            self.owed = Vec::new();
        }
        Ok(true)
    }
}

/// Returns the number of bytes to send with the next call.
fn next_batch(now: usize, taken: usize, full: bool) -> usize {
    match (full, taken >= now.min(FIRST_BATCH)) {
        (true, _) => SMALL_BATCH,
        (false, true) => BATCH,
        (false, false) => now,
    }
}

pub(super) fn receive(io: &Io, token: Token, buf: &mut Vec<u8>, room: usize) -> Result<usize, Errno> {
    buf.reserve(room);
    wire::receive(&io.poller, token, buf)
}

/// Reads and drops the bytes that have come. A socket that is closed with bytes unread resets the connection, and the alert that
/// has just been sent may be lost with it.
pub(super) fn drain(io: &Io, token: Token) {
    let mut unread = Vec::new();
    while unread.len() < MAX_FLIGHT && io.poller.is_readable(token) {
        if !matches!(receive(io, token, &mut unread, INPUT), Ok(1..)) {
            return;
        }
    }
}

const _: () = assert!(OUTPUT >= BATCH + 5 * OVERHEAD + HEADER);

#[cfg(test)]
pub(crate) mod tests;
