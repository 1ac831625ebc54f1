//! The one place where the bytes of a connection enter and leave, whatever speaks over it: HTTP/1 heads and
//! bodies, HTTP/2 frames, tunnels, and connections to upstreams. Nothing here waits: a call that would block
//! says `AGAIN`, and the caller waits by [`Wire::wait_readable`] or [`Wire::wait_writable`]. Hot path.
//!
//! Rules for whoever writes: go on until everything is taken **and** [`Sent::full`] is false. Over TLS the
//! last bytes may be taken but not have left yet; a call with nothing to send then sends what is owed.

use crate::h2::Stream as H2Stream;
use crate::pipe::Pipe;
use crate::reactor::{Reactor, Token};
use crate::request::Conn;
use crate::thread::Thread;
use crate::tls::stream::Stream;
use rustix::io::{Errno, IoSlice};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};

/// What a connection's bytes go through. It moves with the connection, into the idle slot and back.
#[derive(Debug)]
pub struct Wire {
    token: Token,
    /// A stream of an HTTP/2 connection instead of a socket.
    stream: Option<Rc<H2Stream>>,
    /// The encryption, if there is any.
    tls: Option<Box<Stream>>,
}

/// What follows the bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing, or nobody knows.
    Nothing,
    /// Nothing, and the connection goes on: the bytes may leave together with others at the end of the turn.
    Wait,
    /// More bytes at once: the kernel may hold these back until then.
    More,
    /// The end of the connection: bytes and FIN leave as one packet.
    Close,
}

/// What a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes taken.
    pub bytes: usize,
    /// The socket has no room for now: wait before asking again, also when all bytes were taken.
    pub full: bool,
}

fn flags(then: Then) -> SendFlags {
    match then {
        Then::Nothing | Then::Wait => SendFlags::NOSIGNAL,
        Then::More | Then::Close => SendFlags::NOSIGNAL | SendFlags::MORE,
    }
}

fn retry<R>(mut f: impl FnMut() -> Option<Result<R, Errno>>) -> Result<R, Errno> {
    loop {
        match f() {
            Some(Err(Errno::INTR)) => {}
            Some(r) => return r,
            // The slot was taken away.
            None => return Err(Errno::BADF),
        }
    }
}

impl Wire {
    /// The plain bytes of a socket.
    pub fn plain(token: Token) -> Wire {
        Wire { token, stream: None, tls: None }
    }

    /// The bytes of a socket with the encryption that it had in another slot.
    pub fn with(token: Token, tls: Option<Box<Stream>>) -> Wire {
        Wire { token, stream: None, tls }
    }

    /// The encryption, for [`Wire::with`].
    pub fn into_tls(self) -> Option<Box<Stream>> {
        self.tls
    }

    /// A stream of an HTTP/2 connection.
    pub fn stream(stream: Rc<H2Stream>) -> Wire {
        Wire { token: Token::NONE, stream: Some(stream), tls: None }
    }

    /// The stream of an HTTP/2 connection, if it is one.
    #[inline]
    pub fn as_stream(&self) -> Option<&Rc<H2Stream>> {
        self.stream.as_ref()
    }

    /// Takes the stream out, if it is one.
    pub fn take_stream(&mut self) -> Option<Rc<H2Stream>> {
        self.stream.take()
    }

    /// From now on encrypted.
    pub fn encrypt(&mut self, stream: Stream) {
        self.tls = Some(Box::new(stream));
    }

    /// Plain after all.
    pub fn decrypt(&mut self) {
        self.tls = None;
    }

    /// The encryption, if there is any.
    pub fn tls(&mut self) -> Option<&mut Stream> {
        self.tls.as_deref_mut()
    }

    /// Whether nothing is encrypted.
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Whether an end that has come may be somebody else's: the other side speaks TLS and has not said that it sends no more.
    pub fn is_cut(&self) -> bool {
        self.tls.as_ref().is_some_and(|s| !s.ended())
    }

    /// Whether its keys have sealed as much as they should and cannot change.
    #[inline]
    pub fn is_worn(&self) -> bool {
        self.tls.as_ref().is_some_and(|s| s.worn())
    }

    /// Whether files can go from the kernel to the client without passing through user space.
    #[inline]
    pub fn has_sendfile(&self) -> bool {
        self.tls.is_none() && self.stream.is_none()
    }

    /// Whether a handshake is not over.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|s| !s.established())
    }

    /// Gives memory back before a pause.
    pub fn shrink(&mut self) {
        if let Some(s) = &mut self.tls {
            s.shrink();
        }
    }

    /// Says to the other side that this is the end (`close_notify`), without waiting.
    pub fn close(&mut self, t: &Thread) {
        if let Some(s) = &mut self.tls {
            s.close(t, self.token);
        }
    }

    /// The wire of nothing.
    pub fn none() -> Wire {
        Wire::plain(Token::NONE)
    }

    /// Slot of the socket.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether a read may give something, as far as is known without asking the kernel.
    #[inline]
    pub fn is_readable(&self, t: &Thread) -> bool {
        if self.stream.is_some() {
            return true;
        }
        self.tls.as_ref().is_some_and(|s| s.has_ready()) || t.reactor.is_readable(self.token)
    }

    /// Reads into the spare capacity of `buf`, which must not be empty; 0 is the end.
    ///
    /// # Errors
    /// `AGAIN` when there is nothing; other errors end the connection.
    #[inline]
    pub fn read(&mut self, t: &Thread, buf: &mut Vec<u8>) -> Result<usize, Errno> {
        if let Some(s) = &self.stream {
            return s.read(buf);
        }
        if let Some(s) = &mut self.tls {
            return s.read(t, self.token, buf);
        }
        if let Some(n) = t.reactor.take_early(self.token, buf) {
            return Ok(n);
        }
        let room = buf.capacity() - buf.len();
        let got = retry(|| {
            t.reactor.with_fd(self.token, |fd| {
                rustix::net::recv(fd, rustix::buffer::spare_capacity(buf), RecvFlags::empty()).map(|(n, _)| n)
            })
        });
        match got {
            // All there was: only a new event makes it readable.
            Ok(n) if n > 0 && n < room => t.reactor.drained(self.token),
            Err(Errno::AGAIN) => t.reactor.drained(self.token),
            _ => {}
        }
        got
    }

    /// What was written before is to leave first; see [`Reactor::is_clear`].
    #[inline]
    fn clear(&self, t: &Thread) -> Result<(), Errno> {
        if t.reactor.is_clear(self.token) { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// Sends what waits for the end of the turn. `false`: some of it has no room.
    pub fn settle(&self, t: &Thread) -> bool {
        self.clear(t).is_ok()
    }

    /// Whether bytes that were taken have not left yet.
    #[inline]
    pub fn owes(&self) -> bool {
        self.tls.as_ref().is_some_and(|s| s.owes())
    }

    /// Writes bytes; over TLS none sends what is owed.
    ///
    /// # Errors
    /// `AGAIN` when there is no room; other errors end the connection.
    #[inline]
    pub fn send(&mut self, t: &Thread, bytes: &[u8], then: Then) -> Result<Sent, Errno> {
        if let Some(s) = &self.stream {
            return s.send(bytes);
        }
        if let Some(s) = &mut self.tls {
            return s.send(t, self.token, &[IoSlice::new(bytes)], false, then);
        }
        if then == Then::Wait && t.reactor.answer_later(self.token, bytes) {
            return Ok(Sent { bytes: bytes.len(), full: false });
        }
        self.clear(t)?;
        let sent = retry(|| t.reactor.with_fd(self.token, |fd| rustix::net::send(fd, bytes, flags(then))))?;
        Ok(Sent { bytes: sent, full: sent < bytes.len() })
    }

    /// Writes several pieces in one call.
    ///
    /// # Errors
    /// As [`Wire::send`].
    #[inline]
    pub fn send_pieces(&mut self, t: &Thread, pieces: &[IoSlice<'_>], then: Then) -> Result<Sent, Errno> {
        if let [one] = pieces {
            return self.send(t, one, then);
        }
        if let Some(s) = &self.stream {
            let mut sum = Sent { bytes: 0, full: false };
            for piece in pieces {
                let sent = s.send(piece)?;
                sum.bytes += sent.bytes;
                sum.full = sent.full;
                if sent.full {
                    break;
                }
            }
            return Ok(sum);
        }
        if let Some(s) = &mut self.tls {
            return s.send(t, self.token, pieces, false, then);
        }
        self.clear(t)?;
        let want: usize = pieces.iter().map(|s| s.len()).sum();
        let sent = retry(|| {
            t.reactor.with_fd(self.token, |fd| {
                rustix::net::sendmsg(fd, pieces, &mut SendAncillaryBuffer::default(), flags(then))
            })
        })?;
        Ok(Sent { bytes: sent, full: sent < want })
    }

    /// Writes several pieces over TLS; the last one is from [`crate::file_cache::OpenFile::inner`], and its last byte is not
    /// content.
    ///
    /// # Errors
    /// As [`Wire::send`]; `PROTO` without TLS.
    pub fn send_typed(&mut self, t: &Thread, pieces: &[IoSlice<'_>], then: Then) -> Result<Sent, Errno> {
        let Some(s) = &mut self.tls else { return Err(Errno::PROTO) };
        s.send(t, self.token, pieces, true, then)
    }

    /// Writes up to `count` bytes of a file and moves `offset` on. No bytes and not full: the file ends there.
    /// What is not in the page cache blocks the thread.
    ///
    /// # Errors
    /// As [`Wire::send`].
    pub fn send_file(
        &mut self,
        t: &Thread,
        file: &impl std::os::fd::AsFd,
        offset: &mut u64,
        count: usize,
    ) -> Result<Sent, Errno> {
        if let Some(s) = &self.stream {
            let n = s.room().min(count);
            if n == 0 {
                return if s.is_broken() { Err(Errno::CONNRESET) } else { Err(Errno::AGAIN) };
            }
            let mut piece = Vec::with_capacity(n);
            let got = rustix::io::pread(file, rustix::buffer::spare_capacity(&mut piece), *offset)?;
            let sent = s.send(&piece)?;
            *offset += sent.bytes as u64;
            return Ok(Sent { bytes: sent.bytes, full: sent.bytes < got || (got > 0 && n < count) });
        }
        if let Some(s) = &mut self.tls {
            return s.send_file(t, self.token, file, offset, count);
        }
        self.clear(t)?;
        let sent = retry(|| {
            t.reactor.with_fd(self.token, |fd| rustix::fs::sendfile(fd, file, Some(&mut *offset), count))
        })?;
        Ok(Sent { bytes: sent, full: sent > 0 && sent < count })
    }

    /// Writes what a pipe holds, where [`Wire::has_sendfile`]; gives how many bytes went. What stays has no room, or the
    /// connection is broken: the next write tells.
    pub fn send_pipe(&mut self, t: &Thread, pipe: &mut Pipe) -> usize {
        if self.clear(t).is_err() {
            return 0;
        }
        t.reactor.with_fd(self.token, |fd| pipe.drain(fd)).unwrap_or(0)
    }

    /// Says that nothing more will be sent.
    pub fn shutdown(&mut self, t: &Thread) {
        self.close(t);
        let _ = self.clear(t);
        let how = rustix::net::Shutdown::Write;
        let _ = t.reactor.with_fd(self.token, |fd| rustix::net::shutdown(fd, how));
    }

    /// Reads what nobody wants to know, as it comes from the socket; 0 is the end.
    ///
    /// # Errors
    /// As [`Wire::read`].
    pub fn discard(&mut self, t: &Thread, scratch: &mut Vec<u8>) -> Result<usize, Errno> {
        scratch.clear();
        retry(|| {
            t.reactor.with_fd(self.token, |fd| rustix::io::read(fd, rustix::buffer::spare_capacity(scratch)))
        })
    }

    /// Waits until a read may give something; call it after a read that said `AGAIN`.
    pub async fn wait_readable(&self, t: &Thread) {
        if let Some(s) = &self.stream {
            return std::future::poll_fn(|cx| s.poll_readable(cx)).await;
        }
        if !self.tls.as_ref().is_some_and(|s| s.has_ready()) {
            t.reactor.readable(self.token).await;
        }
    }

    /// Waits until a write may take something; call it after a write that found no room.
    pub async fn wait_writable(&self, t: &Thread) {
        if let Some(s) = &self.stream {
            return std::future::poll_fn(|cx| s.poll_writable(cx)).await;
        }
        t.reactor.writable(self.token).await;
    }

    /// As [`Wire::wait_readable`]; `clear` first says that the last read found nothing.
    pub fn poll_readable(&self, t: &Thread, clear: bool, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(s) = &self.stream {
            return s.poll_readable(cx);
        }
        if self.tls.as_ref().is_some_and(|s| s.has_ready()) {
            return Poll::Ready(());
        }
        t.reactor.poll_readable(self.token, clear, cx)
    }

    /// As [`Wire::wait_writable`]; `clear` first says that the last write found no room.
    pub fn poll_writable(&self, t: &Thread, clear: bool, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(s) = &self.stream {
            return s.poll_writable(cx);
        }
        t.reactor.poll_writable(self.token, clear, cx)
    }

    /// Calls `f` with the descriptor, for socket options.
    pub fn with_fd<R>(&self, t: &Thread, f: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        t.reactor.with_fd(self.token, f)
    }
}

/// Looks at what a socket would give next without taking it: the number of bytes (at most 1), 0 is the end.
///
/// # Errors
/// `AGAIN` when there is nothing; other errors end the connection.
pub fn peek(reactor: &Reactor<Box<Conn>>, token: Token) -> Result<usize, Errno> {
    let mut byte = [0u8; 1];
    retry(|| {
        reactor.with_fd(token, |fd| rustix::net::recv(fd, &mut byte[..], RecvFlags::PEEK).map(|(n, _)| n))
    })
}
