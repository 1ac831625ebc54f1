//! What the application does with streams. Hot path.

use super::recv::Phase;
use super::send::{Fin, Reset};
use super::table::Half;
use super::{Chunk, Closed, DIRS, Next, ReadError, StreamEvent, Streams, WriteError, of};
use crate::id::{Dir, StreamId};
use bytes::Bytes;

impl Streams {
    /// Returns what is new.
    pub fn poll(&mut self) -> Option<StreamEvent> {
        for dir in DIRS {
            if std::mem::take(&mut of(&mut self.theirs, dir).has_new) {
                return Some(StreamEvent::Opened { dir });
            }
            if std::mem::take(&mut of(&mut self.ours, dir).has_more) {
                return Some(StreamEvent::Available { dir });
            }
        }
        self.events.pop_front()
    }

    /// Opens a stream. Returns `None` if the peer allows no more; [`StreamEvent::Available`] follows.
    pub fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let ours = of(&mut self.ours, dir);
        if self.index.opened(self.side, dir) >= ours.limit {
            ours.note_blocked();
            return None;
        }
        Some(self.index.open(self.side, dir))
    }

    /// Returns the next stream that the peer has opened. There may be content already: it is to be read without an event.
    pub fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        let opener = self.side.other();
        let theirs = of(&mut self.theirs, dir);
        if theirs.accepted >= self.index.opened(opener, dir) {
            return None;
        }
        theirs.accepted += 1;
        Some(StreamId::new(opener, dir, theirs.accepted - 1))
    }

    /// Takes content to send from the front of `content`, without a copy unless it is short. Returns the number of bytes. If some are left,
    /// [`StreamEvent::Writable`] follows once there is room.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write(&mut self, id: StreamId, content: &mut Bytes) -> Result<usize, WriteError> {
        let (slot, n) = self.room(id, content.len())?;
        if let Some(send) = self.sends.get_mut(slot) {
            let taken = if n == content.len() { std::mem::take(content) } else { content.split_to(n) };
            send.append(taken);
        }
        self.written(slot, n);
        Ok(n)
    }

    /// Copies content to send. Returns the number of bytes. If some are left, [`StreamEvent::Writable`] follows once there is room.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write_slice(&mut self, id: StreamId, content: &[u8]) -> Result<usize, WriteError> {
        let (slot, n) = self.room(id, content.len())?;
        if let Some(send) = self.sends.get_mut(slot)
            && let Some(content) = content.get(..n)
        {
            send.append_copy(content);
        }
        self.written(slot, n);
        Ok(n)
    }

    /// Returns the slot of a stream and the number of bytes of `len` that it takes.
    fn room(&mut self, id: StreamId, len: usize) -> Result<(u32, usize), WriteError> {
        let room = self.outgoing.room();
        let slot = self.sending(id).ok_or(WriteError::Closed)?;
        let send = self.sends.get_mut(slot).ok_or(WriteError::Closed)?;
        if let Some(code) = send.stopped {
            return Err(WriteError::Stopped(code));
        }
        if !send.is_open() {
            return Err(WriteError::Closed);
        }
        let n = usize::try_from(room.min(send.room())).unwrap_or(usize::MAX).min(len);
        if n == len {
            return Ok((slot, n));
        }
        send.waits = true;
        let becomes_due = send.room() == n as u64 && send.note_blocked();
        if room == n as u64 {
            self.wait_for_room(id, slot);
        }
        if becomes_due {
            self.controls.push_back(id);
        }
        if n == 0 { Err(WriteError::Blocked) } else { Ok((slot, n)) }
    }

    /// Notes content that was written.
    fn written(&mut self, slot: u32, n: usize) {
        self.outgoing.kept += n as u64;
        if n > 0 {
            self.queue(slot);
        }
    }

    /// Ends a stream behind what was written.
    ///
    /// # Errors
    /// It has ended or was reset, or does not exist.
    pub fn finish(&mut self, id: StreamId) -> Result<(), Closed> {
        let slot = self.sending(id).ok_or(Closed)?;
        let send = self.sends.get_mut(slot).filter(|send| send.is_open()).ok_or(Closed)?;
        (send.fin, send.waits) = (Fin::Due, false);
        self.queue(slot);
        Ok(())
    }

    /// Resets a stream: content that was not sent is dropped, and what is lost is not sent again.
    ///
    /// # Errors
    /// It was reset, the peer has acknowledged everything, or it does not exist.
    pub fn reset(&mut self, id: StreamId, code: u64) -> Result<(), Closed> {
        let slot = self.sending(id).ok_or(Closed)?;
        let send = self.sends.get_mut(slot).ok_or(Closed)?;
        match (send.reset, send.stopped) {
            (Reset::No, _) => self.begin_reset(id, slot, code),
            // The peer has stopped it. The code of the application is better than the peer's, if there still is time.
            (Reset::Due(was), Some(stop)) if was == stop => send.reset = Reset::Due(code),
            _ => return Err(Closed),
        }
        Ok(())
    }

    /// Sets the priority with which a stream sends. Streams of greater ones go first; those of the same one take turns. It is 0 at first.
    ///
    /// # Errors
    /// The sending half is over, or does not exist.
    pub fn set_priority(&mut self, id: StreamId, priority: i32) -> Result<(), Closed> {
        let slot = self.sending(id).ok_or(Closed)?;
        self.order.prioritize(&mut self.sends, slot, priority);
        Ok(())
    }

    /// Returns the priority with which a stream sends.
    ///
    /// # Errors
    /// The sending half is over, or does not exist.
    pub fn priority(&self, id: StreamId) -> Result<i32, Closed> {
        let half = self.index.get(id).map(|entry| entry.send).filter(|half| !half.is_over());
        let slot = half.ok_or(Closed)?.slot();
        Ok(slot.and_then(|slot| self.sends.get(slot)).map_or(0, |send| send.priority))
    }

    /// Returns the code with which the peer has stopped a stream.
    pub fn stopped(&self, id: StreamId) -> Option<u64> {
        let slot = self.index.get(id)?.send.slot()?;
        self.sends.get(slot)?.stopped
    }

    /// Takes content that was received: as much as lies together in memory, at most `max` bytes, and what follows it. Returns `None` if
    /// the stream has ended without more; the receiving half is over then.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&mut self, id: StreamId, max: usize) -> Result<Option<Chunk>, ReadError> {
        let slot = self.receiving(id).ok_or(ReadError::Closed)?;
        let recv = self.recvs.get_mut(slot).ok_or(ReadError::Closed)?;
        match recv.phase {
            Phase::Open => {}
            Phase::Stopped(_) => return Err(ReadError::Closed),
            Phase::Reset(code) => {
                self.close_recv(id, slot);
                return Err(ReadError::Reset(code));
            }
        }
        let bytes = recv.assembler.read(max.max(1));
        let next = match (recv.is_read(), recv.assembler.is_readable()) {
            (true, _) => Next::End,
            (_, true) => Next::More,
            _ => Next::Blocked,
        };
        recv.waits = next == Next::Blocked;
        if let Some(bytes) = &bytes {
            self.incoming.consume(bytes.len() as u64);
            if recv.limit_becomes_due(self.stream_window) {
                self.controls.push_back(id);
            }
        }
        if next == Next::End {
            self.close_recv(id, slot);
        }
        match (bytes, next) {
            (Some(bytes), next) => Ok(Some(Chunk { bytes, next })),
            (None, Next::End) => Ok(None),
            (None, _) => Err(ReadError::Blocked),
        }
    }

    /// Returns the code with which the peer has reset a stream. The receiving half is over then. A reset that came when everything had
    /// arrived is no such one, see [`StreamEvent::ResetAfterEnd`].
    pub fn received_reset(&mut self, id: StreamId) -> Option<u64> {
        let slot = self.index.get(id)?.recv.slot()?;
        let Phase::Reset(code) = self.recvs.get(slot)?.phase else { return None };
        self.close_recv(id, slot);
        Some(code)
    }

    /// Reads no more of a stream: what arrives is dropped. The peer is told so if it may not have sent everything.
    ///
    /// # Errors
    /// The receiving half is over, or does not exist.
    pub fn stop(&mut self, id: StreamId, code: u64) -> Result<(), Closed> {
        let slot = self.receiving(id).ok_or(Closed)?;
        let recv = self.recvs.get_mut(slot).ok_or(Closed)?;
        match recv.phase {
            Phase::Stopped(_) => return Err(Closed),
            Phase::Reset(_) => self.close_recv(id, slot),
            Phase::Open => {
                let unread = recv.discard();
                recv.phase = Phase::Stopped(code);
                recv.stop_is_due = true;
                let has_end = recv.has_end();
                self.incoming.consume(unread);
                match has_end {
                    true => self.close_recv(id, slot),
                    false => self.controls.push_back(id),
                }
            }
        }
        Ok(())
    }

    /// Sets the number of streams that the peer may have open at a time. Fewer count once streams are over.
    pub fn set_max_streams(&mut self, dir: Dir, most: u64) {
        of(&mut self.theirs, dir).set_most(most);
    }

    /// Sets the bytes that are kept until the peer has acknowledged them.
    pub fn set_send_window(&mut self, bytes: u64) {
        self.outgoing.window = bytes;
        self.wake_writers();
    }

    /// Sets the bytes of all streams that the peer may send ahead. What it was allowed before stays allowed.
    pub fn set_receive_window(&mut self, bytes: u64) {
        self.incoming.set_window(bytes);
    }

    /// Returns the number of streams whose sending half has begun and of which the peer has not acknowledged everything.
    pub fn send_streams(&self) -> usize {
        self.sends.len()
    }

    /// Returns the bytes that are kept until the peer has acknowledged them.
    pub fn kept(&self) -> u64 {
        self.outgoing.kept
    }

    /// Returns `true` if a stream exists of which one half at least is not over.
    pub fn is_open(&self, id: StreamId) -> bool {
        self.index.get(id).is_some_and(|entry| !entry.is_over())
    }

    /// Has a stream wait for room in the send window.
    fn wait_for_room(&mut self, id: StreamId, slot: u32) {
        if let Some(send) = self.sends.get_mut(slot)
            && !std::mem::replace(&mut send.is_listed, true)
        {
            self.waiting.push(id);
        }
    }

    /// Tells the applications of streams that wait for room in the send window, if there is enough.
    pub(super) fn wake_writers(&mut self) {
        if self.waiting.is_empty() || !self.outgoing.has_room() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        for id in waiting.drain(..) {
            let half = self.index.get(id).map_or(Half::OVER, |entry| entry.send);
            if let Some(slot) = half.slot()
                && let Some(send) = self.sends.get_mut(slot)
            {
                send.is_listed = false;
                self.wake_writer(id, slot);
            }
        }
        self.waiting = waiting;
    }

    /// Tells the application of a stream that waits, if both the peer's limit and the send window leave room.
    pub(super) fn wake_writer(&mut self, id: StreamId, slot: u32) {
        let Some(send) = self.sends.get_mut(slot) else { return };
        if !send.waits || send.room() == 0 {
            return;
        }
        if !self.outgoing.has_room() {
            return self.wait_for_room(id, slot);
        }
        send.waits = false;
        self.events.push_back(StreamEvent::Writable { id });
    }
}
