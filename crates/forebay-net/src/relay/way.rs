//! One direction of a relay. Hot path.

use crate::io::Io;
use crate::pipe::Lent;
use crate::wire::{Sent, Then, Wire};
use rustix::io::Errno;
use std::time::Duration;

/// Largest number of bytes that are copied at once. A read that fills it makes the direction [`Mode::Bulk`].
pub(super) const READ: usize = 16 * 1024;

/// Smallest number of bytes that keep a direction [`Mode::Bulk`] when they come at once. Copying is cheaper below about 16
/// KiB; the bound is lower because the parts in which a long stream arrives may be small.
pub(super) const FEW: usize = 4 * 1024;

/// Largest number of bytes that a step moves, so that others have their turn.
pub(super) const STEP: usize = 256 * 1024;

/// Bytes per second, and the time since the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Bytes per second, 0: no limit.
    pub rate: u64,
    /// Time since the first byte could be read.
    pub elapsed: Duration,
}

impl Quota {
    /// Returns the number of bytes that may be read now, or the time until the next read. As in nginx a read takes what one
    /// second allows, or a full buffer if that is less, and the next one follows when the rate has made up for it.
    pub fn allow(self, received: u64) -> Result<usize, Duration> {
        const SECOND: u128 = 1_000_000_000;
        if self.rate == 0 {
            return Ok(usize::MAX);
        }
        let rate = u128::from(self.rate);
        let earned = rate.saturating_mul(self.elapsed.as_nanos()) / SECOND;
        let received = u128::from(received);
        if earned >= received {
            let most = (earned - received).saturating_add(rate.min(READ as u128));
            return Ok(usize::try_from(most).unwrap_or(usize::MAX));
        }
        let pause = (received - earned).saturating_mul(SECOND).div_ceil(rate);
        Err(Duration::from_nanos(u64::try_from(pause).unwrap_or(u64::MAX)))
    }
}

/// Connections and limits of a direction during a step.
pub(super) struct Link<'l> {
    pub io: &'l Io,
    pub from: &'l mut Wire,
    pub to: &'l mut Wire,
    /// The end of the sender is passed on to the receiver.
    pub half_close: bool,
    pub quota: Quota,
    /// Bytes have moved.
    pub moved: bool,
}

/// Reason for which a step of a direction stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It has moved [`STEP`] bytes.
    Budget,
    /// The sender has sent nothing more.
    Empty,
    /// The receiver has no room.
    Full,
    /// The rate limit allows the next read after this time.
    Paused(Duration),
    /// The sender has ended and all its bytes have been passed on.
    Ended,
    /// The connection of the sender is broken.
    SenderBroken(Errno),
    /// The connection of the receiver is broken.
    ReceiverBroken(Errno),
    /// The sender's end has been passed on.
    Shut,
}

/// Way in which bytes pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// By copying. It is not known whether the connections can be spliced.
    Unknown,
    /// By copying.
    Small,
    /// Through a pipe, inside the kernel.
    Bulk,
    /// By copying, since the connections cannot be spliced.
    Copied,
}

/// Bytes that have been read but not written.
#[derive(Debug)]
pub(super) enum Pending {
    None,
    Bytes {
        buf: Vec<u8>,
        /// Number of bytes that have been written.
        at: usize,
    },
    Pipe(Lent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The sender may send more.
    Open,
    /// The sender has ended.
    Ended,
    /// The receiver knows it.
    Shut,
}

/// State of a direction.
#[derive(Debug)]
pub(super) struct Way {
    received: u64,
    pending: Pending,
    mode: Mode,
    stage: Stage,
}

impl Way {
    /// Creates the state of a direction. `early` has been received but not passed on.
    pub(super) fn new(early: Vec<u8>) -> Way {
        let received = early.len() as u64;
        let pending = if early.is_empty() { Pending::None } else { Pending::Bytes { buf: early, at: 0 } };
        Way { received, pending, mode: Mode::Unknown, stage: Stage::Open }
    }

    /// Returns the number of bytes read.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of bytes that the receiver's connection has taken.
    pub(super) fn passed(&self) -> u64 {
        let pending = match &self.pending {
            Pending::None => 0,
            Pending::Bytes { buf, at } => buf.len().saturating_sub(*at),
            Pending::Pipe(pipe) => pipe.held(),
        };
        self.received.saturating_sub(pending as u64)
    }

    /// Returns `true` if the sender's end has been passed on.
    pub(super) fn is_shut(&self) -> bool {
        self.stage == Stage::Shut
    }

    /// Returns the way in which bytes pass.
    #[cfg(test)]
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns `true` if the direction holds a buffer or a pipe.
    #[cfg(test)]
    pub(super) fn is_holding(&self) -> bool {
        !matches!(self.pending, Pending::None)
    }

    /// Returns `true` if bytes wait for the receiver.
    fn is_writing(&self, to: &Wire) -> bool {
        !matches!(self.pending, Pending::None) || to.has_unsent()
    }

    /// Moves what can be moved now.
    pub(super) fn step(&mut self, link: &mut Link<'_>) -> Stop {
        // No bytes may follow the end. A TLS alert that found no room is lost.
        if self.stage == Stage::Shut {
            return Stop::Shut;
        }
        let mut left = STEP;
        loop {
            if let Err(stop) = self.write(link) {
                return stop;
            }
            if self.stage == Stage::Ended {
                return self.end(link);
            }
            // The rest would not fill a buffer, and a direction with more bytes has its next step after
            // others.
            if left < READ {
                return Stop::Budget;
            }
            if !link.from.is_readable(link.io) {
                return Stop::Empty;
            }
            let most = match link.quota.allow(self.received) {
                Ok(most) => most.min(left),
                Err(pause) => return Stop::Paused(pause),
            };
            match self.read(link, most) {
                Ok(0) => self.stage = Stage::Ended,
                Ok(n) => {
                    link.moved = true;
                    self.received += n as u64;
                    left = left.saturating_sub(n);
                }
                Err(Errno::AGAIN) => return Stop::Empty,
                Err(e) => return Stop::SenderBroken(e),
            }
        }
    }

    /// Ends the direction: all bytes have been passed on.
    fn end(&mut self, link: &mut Link<'_>) -> Stop {
        if !link.half_close {
            return Stop::Ended;
        }
        self.stage = Stage::Shut;
        match link.to.is_multiplexed() {
            true => link.to.end(),
            false => link.to.shutdown(link.io),
        }
        Stop::Shut
    }

    /// Reads up to `most` bytes; 0 is the end.
    fn read(&mut self, link: &mut Link<'_>, most: usize) -> Result<usize, Errno> {
        if self.mode == Mode::Bulk
            && most >= READ
            && let Some(pipe) = link.io.pipes.lend()
        {
            match self.splice(link, pipe, most) {
                // splice(2) does not support the connection, and will not later.
                Err(Errno::INVAL) => self.mode = Mode::Copied,
                read => return read,
            }
        }
        self.copy(link, most)
    }

    /// Reads into a pipe.
    fn splice(&mut self, link: &mut Link<'_>, mut pipe: Lent, most: usize) -> Result<usize, Errno> {
        let got = link.from.fill_pipe(link.io, &mut pipe, most)?;
        if got < FEW {
            self.mode = Mode::Small;
        }
        if got > 0 {
            self.pending = Pending::Pipe(pipe);
        }
        Ok(got)
    }

    /// Reads into a buffer.
    fn copy(&mut self, link: &mut Link<'_>, most: usize) -> Result<usize, Errno> {
        let mut buf = link.io.relayed.take();
        let got = match most < READ {
            true => link.from.read_up_to(link.io, &mut buf, most),
            false => link.from.read(link.io, &mut buf),
        };
        match got {
            Ok(n) if n > 0 => {
                if n >= READ {
                    self.enter_bulk(link);
                }
                self.pending = Pending::Bytes { buf, at: 0 };
            }
            // A direction without bytes holds no buffer, so that thousands of silent relays share a few.
            _ => link.io.relayed.give(buf),
        }
        got
    }

    fn enter_bulk(&mut self, link: &Link<'_>) {
        self.mode = match self.mode {
            Mode::Unknown if !link.from.can_splice(link.io) || !link.to.can_splice(link.io) => Mode::Copied,
            Mode::Copied => Mode::Copied,
            Mode::Unknown | Mode::Small | Mode::Bulk => Mode::Bulk,
        };
    }

    /// Writes the pending bytes. `Err`: some are left, or the connection is broken.
    fn write(&mut self, link: &mut Link<'_>) -> Result<(), Stop> {
        while self.is_writing(link.to) {
            if !link.to.is_writable(link.io) {
                return Err(Stop::Full);
            }
            match self.send(link) {
                Ok(sent) => {
                    // Over TLS, no bytes and room left means that sealed records have left.
                    link.moved |= sent.bytes > 0 || !sent.full;
                    self.release_written(link.io, sent.bytes);
                    // A full connection may have taken all bytes nevertheless.
                    if sent.full && self.is_writing(link.to) {
                        return Err(Stop::Full);
                    }
                }
                Err(Errno::AGAIN) => return Err(Stop::Full),
                Err(Errno::INVAL) => self.unsplice()?,
                Err(e) => return Err(Stop::ReceiverBroken(e)),
            }
        }
        Ok(())
    }

    fn send(&mut self, link: &mut Link<'_>) -> Result<Sent, Errno> {
        match &mut self.pending {
            Pending::None => link.to.send(link.io, &[], Then::Nothing),
            Pending::Bytes { buf, at } => {
                link.to.send(link.io, buf.get(*at..).unwrap_or_default(), Then::Nothing)
            }
            Pending::Pipe(pipe) => link.to.pour_pipe(link.io, pipe),
        }
    }

    /// Counts bytes that have been written, and gives the buffer or the pipe back if it is empty.
    fn release_written(&mut self, io: &Io, n: usize) {
        let empty = match &mut self.pending {
            Pending::None => false,
            Pending::Bytes { buf, at } => {
                *at += n;
                *at >= buf.len()
            }
            Pending::Pipe(pipe) => pipe.held() == 0,
        };
        if empty && let Pending::Bytes { buf, .. } = std::mem::replace(&mut self.pending, Pending::None) {
            io.relayed.give(buf);
        }
    }

    /// Takes the bytes out of the pipe: the receiver's connection takes none from it.
    fn unsplice(&mut self) -> Result<(), Stop> {
        let Pending::Pipe(pipe) = &mut self.pending else { return Err(Stop::ReceiverBroken(Errno::INVAL)) };
        let mut buf = Vec::new();
        // On an error the bytes in the pipe are lost, and the stream cannot go on without them.
        pipe.take(&mut buf).map_err(Stop::SenderBroken)?;
        self.mode = Mode::Copied;
        self.pending = Pending::Bytes { buf, at: 0 };
        Ok(())
    }
}
