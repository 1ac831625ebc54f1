//! Pipes through which bytes pass from one socket to another inside the kernel (splice). They serve for the bytes of an
//! upstream's response that go to the client unchanged, and for relays. Hot path.

use crate::wire::Sent;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// Requested size of a pipe, bytes. The kernel may give less.
const ROOM: usize = 256 * 1024;

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// A pipe, which is created when it is first used.
#[derive(Debug, Default)]
pub struct Pipe {
    ends: Option<(OwnedFd, OwnedFd)>,
    /// Bytes in it.
    held: usize,
}

impl Pipe {
    /// Fills the pipe with at most `want` bytes from a socket. Returns their number; 0 is the end.
    ///
    /// # Errors
    /// `AGAIN` if no bytes have been received; errors of pipe2(2) and splice(2), also for sockets that cannot be spliced.
    pub fn fill(&mut self, from: impl AsFd, want: usize) -> Result<usize, Errno> {
        if self.held > 0 {
            // A request that ended early has left bytes, which must not reach another client.
            *self = Pipe::default();
        }
        self.open()?;
        let (_, write) = self.ends.as_ref().ok_or(Errno::BADF)?;
        // `held` was 0, and stays so on an error.
        self.held = rustix::pipe::splice(from, None, write, None, want, FLAGS)?;
        Ok(self.held)
    }

    /// Creates the pipe, unless it exists.
    fn open(&mut self) -> Result<(), Errno> {
        if self.ends.is_none() {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            // Users without privilege have a budget for pipes. The usual 64 KiB do as well.
            let _ = fcntl_setpipe_size(&write, ROOM);
            self.ends = Some((read, write));
        }
        Ok(())
    }

    /// Returns the number of bytes in the pipe.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Empties the pipe into a socket as far as that has room. Returns the number of bytes.
    pub fn drain(&mut self, to: impl AsFd) -> usize {
        self.pour(to).map_or(0, |sent| sent.bytes)
    }

    /// Empties the pipe into a socket like [`Pipe::drain`].
    ///
    /// # Errors
    /// Errors of splice(2), if no byte has left.
    pub(crate) fn pour(&mut self, to: impl AsFd) -> Result<Sent, Errno> {
        let before = self.held;
        while self.held > 0 {
            let (read, _) = self.ends.as_ref().ok_or(Errno::BADF)?;
            match rustix::pipe::splice(read, None, to.as_fd(), None, self.held, FLAGS) {
                Ok(n) if n > 0 => self.held = self.held.saturating_sub(n),
                Err(Errno::INTR) => {}
                Ok(_) | Err(Errno::AGAIN) => return Ok(Sent { bytes: before - self.held, full: true }),
                Err(e) if self.held == before => return Err(e),
                // The next call returns the error.
                Err(_) => break,
            }
        }
        Ok(Sent { bytes: before - self.held, full: false })
    }

    /// Empties it into memory.
    ///
    /// # Errors
    /// Errors of read(2). The bytes in the pipe are lost then.
    pub fn take(&mut self, out: &mut Vec<u8>) -> Result<(), Errno> {
        // Without spare capacity read(2) would return 0, which looks like the end.
        out.reserve(self.held);
        while self.held > 0 {
            let (read, _) = self.ends.as_ref().ok_or(Errno::BADF)?;
            match rustix::io::read(read, rustix::buffer::spare_capacity(out)) {
                Ok(n) if n > 0 => self.held = self.held.saturating_sub(n),
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => {
                    *self = Pipe::default();
                    return Err(Errno::IO);
                }
            }
        }
        Ok(())
    }
}

/// Pipes of a thread that are lent to relays.
#[derive(Debug, Default)]
pub(crate) struct Pipes(Rc<Stock>);

#[derive(Debug, Default)]
struct Stock {
    free: RefCell<Vec<Pipe>>,
    lent: Cell<usize>,
}

/// Most pipes of a thread that are lent at a time. Each takes two descriptors and, while a slow receiver leaves bytes in it,
/// up to 256 KiB. Four threads with as many reach the kernel's limit for a user without privilege (pipe-user-pages-soft).
const LENT: usize = 64;
/// Most pipes of a thread that are kept for the next use.
const FREE: usize = 8;

impl Pipes {
    /// Lends an empty pipe. `None`: too many are lent, or the system gives no more descriptors.
    pub(crate) fn lend(&self) -> Option<Lent> {
        let stock = &self.0;
        if stock.lent.get() >= LENT {
            return None;
        }
        let mut pipe = stock.free.borrow_mut().pop().unwrap_or_default();
        pipe.open().ok()?;
        stock.lent.set(stock.lent.get() + 1);
        Some(Lent { pipe, stock: stock.clone() })
    }

    /// Returns the number of pipes that are lent.
    #[cfg(test)]
    pub(crate) fn lent(&self) -> usize {
        self.0.lent.get()
    }

    /// Returns the number of pipes that are kept.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.0.free.borrow().len()
    }
}

/// Pipe that goes back to its thread when it is dropped empty. With bytes in it, it is closed.
#[derive(Debug)]
pub(crate) struct Lent {
    pipe: Pipe,
    stock: Rc<Stock>,
}

impl Deref for Lent {
    type Target = Pipe;

    fn deref(&self) -> &Pipe {
        &self.pipe
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Pipe {
        &mut self.pipe
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.stock.lent.set(self.stock.lent.get().saturating_sub(1));
        let mut free = self.stock.free.borrow_mut();
        if self.pipe.held == 0 && self.pipe.ends.is_some() && free.len() < FREE {
            free.push(std::mem::take(&mut self.pipe));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_that_the_other_side_refuses_are_taken_back() {
        let mut pipe = Pipe::default();
        let (mut up, from) = UnixStream::pair().expect("pair");
        let (to, mut down) = UnixStream::pair().expect("pair");
        from.set_nonblocking(true).expect("option");
        to.set_nonblocking(true).expect("option");
        assert_eq!(pipe.fill(&from, 100), Err(Errno::AGAIN));
        let sent: Vec<u8> = (0..2_000_000u32).map(|i| (i % 251) as u8).collect();
        let copy = sent.clone();
        let writer = std::thread::spawn(move || up.write_all(&copy).is_ok());
        // Nobody reads: some of it stays, and is not lost.
        let mut behind = Vec::new();
        let mut passed = 0;
        while behind.is_empty() {
            match pipe.fill(&from, 100_000) {
                Ok(n) => {
                    assert!(n > 0);
                    let went = pipe.drain(&to);
                    pipe.take(&mut behind).expect("taken back");
                    assert_eq!(went + behind.len(), n);
                    passed += went;
                }
                Err(e) => assert_eq!(e, Errno::AGAIN),
            }
        }
        let mut seen = vec![0; passed];
        down.read_exact(&mut seen).expect("read");
        seen.extend_from_slice(&behind);
        assert!(seen == sent[..seen.len()]);
        // One that is given up leaves nothing to the next.
        while pipe.fill(&from, 1000).is_err() {}
        drop(from);
        assert!(!writer.join().expect("joined"), "the rest has no reader");
        let (mut up, from) = UnixStream::pair().expect("pair");
        up.write_all(b"new").expect("written");
        assert_eq!(pipe.fill(&from, 1000), Ok(3));
        let mut out = Vec::new();
        pipe.take(&mut out).expect("taken");
        assert_eq!(out, b"new");
        drop(up);
        assert_eq!(pipe.fill(&from, 1000), Ok(0));
    }
}
