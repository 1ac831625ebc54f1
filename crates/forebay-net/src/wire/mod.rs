//! Bytes of a connection: HTTP/1 heads and bodies, HTTP/2 frames, tunnels, and connections to upstreams all enter and
//! leave here. Nothing here waits: a call that would block returns `AGAIN`, and the caller waits by
//! [`Wire::wait_readable`] or [`Wire::wait_writable`]. Hot path.
//!
//! Rule for writers: go on until everything is taken **and** [`Sent::full`] is false. Over TLS the
//! last bytes may be taken but not have left yet; a call with nothing to send then sends the rest.

use crate::io::Io;
use crate::mux::Mux;
use crate::pipe::Pipe;
use crate::reactor::{Poller, Token};
use crate::tls::stream::Stream;
use bytes::Bytes;
use rustix::io::{Errno, IoSlice};
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Transport of a connection's bytes.
#[derive(Debug, Default)]
pub enum Wire {
    /// No connection: a request that the server makes for itself.
    #[default]
    Closed,
    /// A socket.
    Plain(Token),
    /// A socket with TLS.
    Tls(Token, Box<Stream>),
    /// A stream of a multiplexed connection.
    Mux(Rc<dyn Mux>),
}

/// Hint about the bytes that follow those of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// No bytes follow, or the caller does not know.
    Nothing,
    /// No bytes follow and the connection stays open: these may leave together with others at the end of the turn.
    Wait,
    /// More bytes follow at once: the kernel may hold these back until then.
    More,
    /// The connection ends: bytes and FIN leave as one packet. The caller shuts the wire down ([`Wire::shutdown`]), as a socket that is
    /// closed with bytes unread discards what the kernel has held back.
    Close,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Number of bytes taken.
    pub bytes: usize,
    /// The socket has no room for now: wait before the next write, also when all bytes were taken.
    pub full: bool,
}

/// Watch on a client's connection while its task waits for something else.
#[derive(Clone, Debug)]
pub enum Watch {
    /// Reports nothing (nginx: `proxy_ignore_client_abort`).
    Nothing,
    /// Reports the end of a socket.
    Socket(Token),
    /// Reports the end of a stream.
    Stream(Rc<dyn Mux>),
}

impl Watch {
    /// Is ready when the client has closed its connection.
    pub fn poll_gone(&mut self, poller: &Poller, cx: &mut Context<'_>) -> Poll<()> {
        let client = match self {
            Watch::Nothing => return Poll::Pending,
            Watch::Stream(s) => return s.poll_gone(cx),
            Watch::Socket(token) => *token,
        };
        let mut looked = false;
        loop {
            // In the first round the flag may be left from earlier, so the socket is looked at. The second round registers
            // for the next event. A slot that has ended stays readable, and the peek of the second round decides.
            if poller.poll_readable(client, cx).is_pending() {
                return Poll::Pending;
            }
            match peek(poller, client) {
                Err(Errno::AGAIN) if looked => return Poll::Pending,
                Err(Errno::AGAIN) => looked = true,
                // The next request has arrived, so the client is alive. Its unread bytes keep the slot
                // readable.
                Ok(n) if n > 0 => {
                    *self = Watch::Nothing;
                    return Poll::Pending;
                }
                _ => return Poll::Ready(()),
            }
        }
    }
}

fn flags(then: Then) -> SendFlags {
    match then {
        Then::Nothing | Then::Wait => SendFlags::NOSIGNAL,
        Then::More | Then::Close => SendFlags::NOSIGNAL | SendFlags::MORE,
    }
}

/// Repeats a call that a signal interrupted. `BADF`: the slot is gone.
fn retry<R>(mut f: impl FnMut() -> Option<Result<R, Errno>>) -> Result<R, Errno> {
    loop {
        match f() {
            Some(Err(Errno::INTR)) => {}
            Some(r) => return r,
            None => return Err(Errno::BADF),
        }
    }
}

/// Reads from a socket into the spare capacity of `buf`, first what the poller has read early.
#[inline]
pub(crate) fn receive(poller: &Poller, token: Token, buf: &mut Vec<u8>) -> Result<usize, Errno> {
    // Bytes that were read together with the event need no system call here.
    if let Some(n) = poller.take_early(token, buf) {
        return Ok(n);
    }
    let room = buf.capacity() - buf.len();
    let got = retry(|| {
        poller.with_fd(token, |fd| {
            rustix::net::recv(fd, rustix::buffer::spare_capacity(buf), RecvFlags::empty()).map(|(n, _)| n)
        })
    });
    match got {
        // The read gave less than it had room for. The socket is empty until a new event.
        Ok(n) if n > 0 && n < room => poller.drained(token),
        Err(Errno::AGAIN) => poller.drained(token),
        _ => {}
    }
    got
}

/// Sends once; 0 when there is no room, also while an earlier answer still waits for some.
pub(crate) fn transmit(
    poller: &Poller,
    token: Token,
    bytes: &[u8],
    flags: SendFlags,
) -> Result<usize, Errno> {
    // Bytes of an earlier answer go first, or the stream would be out of order.
    if !poller.clear_to_send(token) {
        return Ok(0);
    }
    let sent = retry(|| poller.with_fd(token, |fd| rustix::net::send(fd, bytes, flags)));
    match noted(poller, token, sent, bytes.len()) {
        Ok(sent) => Ok(sent.bytes),
        // Callers wait for room whenever less than all was taken.
        Err(Errno::AGAIN) => Ok(0),
        Err(e) => Err(e),
    }
}

/// Notes in the poller that a write found no room: `AGAIN`, or fewer bytes than `want`. All writes but those of
/// pipes and of queued answers, which note it themselves, pass here: no wait has to know how the write before it ended.
#[inline]
fn noted(poller: &Poller, token: Token, sent: Result<usize, Errno>, want: usize) -> Result<Sent, Errno> {
    // The kernel takes less than it is given only where it has no more room.
    let full = match sent {
        Ok(n) => n < want,
        Err(e) => e == Errno::AGAIN,
    };
    if full {
        poller.filled(token);
    }
    sent.map(|bytes| Sent { bytes, full })
}

/// Sends earlier answers of a socket first; `AGAIN` if they find no room. See [`Poller::clear_to_send`].
#[inline]
fn clear(poller: &Poller, token: Token) -> Result<(), Errno> {
    if poller.clear_to_send(token) { Ok(()) } else { Err(Errno::AGAIN) }
}

impl Wire {
    /// Creates a socket, with the TLS state that its connection had in another slot.
    pub fn with(token: Token, tls: Option<Box<Stream>>) -> Wire {
        match tls {
            Some(tls) => Wire::Tls(token, tls),
            None => Wire::Plain(token),
        }
    }

    /// Returns the TLS state, for [`Wire::with`].
    pub fn into_tls(self) -> Option<Box<Stream>> {
        match self {
            Wire::Tls(_, tls) => Some(tls),
            _ => None,
        }
    }

    /// Returns the stream of a multiplexed connection, which has other requests in progress.
    pub fn as_mux(&self) -> Option<&Rc<dyn Mux>> {
        match self {
            Wire::Mux(s) => Some(s),
            _ => None,
        }
    }

    /// Returns `true` if other requests share the connection.
    #[inline]
    pub fn is_multiplexed(&self) -> bool {
        matches!(self, Wire::Mux(_))
    }

    /// Encrypts a socket from now on.
    pub fn encrypt(&mut self, stream: Stream) {
        if let Some(token) = self.socket() {
            *self = Wire::Tls(token, Box::new(stream));
        }
    }

    /// Ends encryption: the peer has sent plain bytes.
    pub fn decrypt(&mut self) {
        if let Wire::Tls(token, _) = self {
            *self = Wire::Plain(*token);
        }
    }

    /// Returns the TLS state, if the socket is encrypted.
    #[inline]
    pub fn tls(&mut self) -> Option<&mut Stream> {
        match self {
            Wire::Tls(_, s) => Some(s),
            _ => None,
        }
    }

    #[inline]
    fn tls_ref(&self) -> Option<&Stream> {
        match self {
            Wire::Tls(_, s) => Some(s),
            _ => None,
        }
    }

    /// Returns `true` if the socket is encrypted.
    #[inline]
    pub fn is_tls(&self) -> bool {
        matches!(self, Wire::Tls(..))
    }

    /// Returns `true` if the end of the connection may be forged: the peer speaks TLS and has not sent `close_notify`.
    pub fn is_cut(&self) -> bool {
        self.tls_ref().is_some_and(|s| !s.ended())
    }

    /// Returns `true` if the keys have sealed as much as they should and cannot change.
    #[inline]
    pub fn is_worn(&self) -> bool {
        self.tls_ref().is_some_and(Stream::worn)
    }

    /// Returns `true` if files can go from the kernel to the client without passing through user space.
    #[inline]
    pub fn has_sendfile(&self) -> bool {
        // The records of TLS are made in user space, so content has to pass through it.
        matches!(self, Wire::Plain(_) | Wire::Closed)
    }

    /// Returns `true` if a TLS handshake is in progress.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.tls_ref().is_some_and(|s| !s.established())
    }

    /// Gives memory back before a pause.
    pub fn shrink(&mut self) {
        if let Some(s) = self.tls() {
            s.shrink();
        }
    }

    /// Sends `close_notify` over TLS, without waiting for room.
    pub fn close(&mut self, io: &Io) {
        if let Wire::Tls(token, s) = self {
            s.close(io, *token);
        }
    }

    /// Returns the slot of the socket; [`Token::NONE`] if there is none.
    #[inline]
    pub fn token(&self) -> Token {
        self.socket().unwrap_or(Token::NONE)
    }

    #[inline]
    fn socket(&self) -> Option<Token> {
        match self {
            Wire::Plain(token) | Wire::Tls(token, _) => Some(*token),
            Wire::Closed | Wire::Mux(_) => None,
        }
    }

    /// Watches the peer of this wire.
    pub fn watch(&self) -> Watch {
        match self {
            Wire::Closed => Watch::Nothing,
            Wire::Plain(token) | Wire::Tls(token, _) => Watch::Socket(*token),
            Wire::Mux(s) => Watch::Stream(s.clone()),
        }
    }

    /// Returns `true` if a read may give something, as far as is known without asking the kernel.
    #[inline]
    pub fn is_readable(&self, io: &Io) -> bool {
        match self {
            Wire::Plain(token) => io.poller.is_readable(*token),
            Wire::Tls(token, s) => s.has_ready() || io.poller.is_readable(*token),
            Wire::Mux(s) => s.is_readable(),
            // A read fails at once, and nobody has to wait for it.
            Wire::Closed => true,
        }
    }

    /// Reads into the spare capacity of `buf`, which must not be empty; 0 is the end.
    ///
    /// # Errors
    /// `AGAIN` when there is nothing; other errors end the connection.
    #[inline]
    pub fn read(&mut self, io: &Io, buf: &mut Vec<u8>) -> Result<usize, Errno> {
        match self {
            Wire::Plain(token) => receive(&io.poller, *token, buf),
            Wire::Tls(token, s) => s.read(io, *token, buf),
            Wire::Mux(s) => s.read(buf),
            Wire::Closed => Err(Errno::BADF),
        }
    }

    /// Reads like [`Wire::read`], from a plain socket at most `most` bytes.
    ///
    /// # Errors
    /// Errors of [`Wire::read`].
    pub(crate) fn read_up_to(&mut self, io: &Io, buf: &mut Vec<u8>, most: usize) -> Result<usize, Errno> {
        let begin = buf.len();
        let Wire::Plain(token) = self else { return self.read(io, buf) };
        if most >= buf.capacity() - begin {
            return receive(&io.poller, *token, buf);
        }
        if let Some(n) = io.poller.take_early(*token, buf) {
            return Ok(n);
        }
        buf.resize(begin + most, 0);
        let room = buf.get_mut(begin..).unwrap_or_default();
        let got = retry(|| {
            io.poller
                .with_fd(*token, |fd| rustix::net::recv(fd, &mut *room, RecvFlags::empty()).map(|(n, _)| n))
        });
        buf.truncate(begin + got.unwrap_or(0));
        if got == Err(Errno::AGAIN) {
            io.poller.drained(*token);
        }
        got
    }

    /// Returns `true` if bytes can pass between this wire and a pipe inside the kernel. Unix sockets could, but they
    /// gain nothing: their bytes are copied on the way out of a pipe.
    pub(crate) fn can_splice(&self, io: &Io) -> bool {
        let Wire::Plain(token) = self else { return false };
        let domain = io.poller.with_fd(*token, |fd| rustix::net::sockopt::socket_domain(fd));
        matches!(domain, Some(Ok(AddressFamily::INET | AddressFamily::INET6)))
    }

    /// Fills an empty pipe with at most `want` bytes from a socket; 0 is the end.
    ///
    /// # Errors
    /// Errors of [`Pipe::fill`]; `BADF` without a socket; `BUSY` if bytes have been read ahead, which come first.
    pub fn fill_pipe(&self, io: &Io, pipe: &mut Pipe, want: usize) -> Result<usize, Errno> {
        // The bytes that were read ahead come first in the stream, and a pipe cannot take them from memory.
        if io.poller.has_early(self.token()) {
            return Err(Errno::BUSY);
        }
        let got = retry(|| io.poller.with_fd(self.token(), |fd| pipe.fill(fd, want)));
        if got == Err(Errno::AGAIN) {
            io.poller.drained(self.token());
        }
        got
    }

    /// Writes the bytes in a pipe to a socket.
    ///
    /// # Errors
    /// Errors of [`Wire::send`], and those of splice(2).
    pub(crate) fn pour_pipe(&self, io: &Io, pipe: &mut Pipe) -> Result<Sent, Errno> {
        clear(&io.poller, self.token())?;
        let poured = io.poller.with_fd(self.token(), |fd| pipe.pour(fd)).unwrap_or(Err(Errno::BADF));
        if poured.is_ok_and(|sent| sent.full) {
            io.poller.filled(self.token());
        }
        poured
    }

    /// Returns `true` if a write may take something, as far as is known without asking the kernel.
    #[inline]
    pub(crate) fn is_writable(&self, io: &Io) -> bool {
        self.socket().is_none_or(|token| io.poller.is_writable(token))
    }

    /// Sends the answers that wait for the end of the turn. Returns `false` if some of them find no room.
    pub fn flush(&self, io: &Io) -> bool {
        self.socket().is_none_or(|token| io.poller.clear_to_send(token))
    }

    /// Returns `true` if TLS records have been sealed but not sent.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.tls_ref().is_some_and(Stream::has_unsent)
    }

    /// Returns the length of the TLS records that have been sealed but not sent, in bytes.
    #[inline]
    pub fn unsent(&self) -> usize {
        self.tls_ref().map_or(0, Stream::unsent)
    }

    /// Writes bytes. Over TLS a call without bytes sends the records that have not been sent.
    ///
    /// # Errors
    /// `AGAIN` when there is no room; other errors end the connection.
    #[inline]
    pub fn send(&mut self, io: &Io, bytes: &[u8], then: Then) -> Result<Sent, Errno> {
        let token = match self {
            Wire::Plain(token) => *token,
            Wire::Tls(token, s) => return s.send(io, *token, &[IoSlice::new(bytes)], false, then),
            Wire::Mux(s) => return s.send(bytes),
            Wire::Closed => return Err(Errno::BADF),
        };
        if then == Then::Wait && io.poller.queue_answer(token, bytes) {
            return Ok(Sent { bytes: bytes.len(), full: false });
        }
        clear(&io.poller, token)?;
        let sent = retry(|| io.poller.with_fd(token, |fd| rustix::net::send(fd, bytes, flags(then))));
        noted(&io.poller, token, sent, bytes.len())
    }

    /// Writes several pieces in one call.
    ///
    /// # Errors
    /// Errors of [`Wire::send`].
    #[inline]
    pub fn send_pieces(&mut self, io: &Io, pieces: &[IoSlice<'_>], then: Then) -> Result<Sent, Errno> {
        if let [one] = pieces {
            return self.send(io, one, then);
        }
        let token = match self {
            Wire::Plain(token) => *token,
            Wire::Tls(token, s) => return s.send(io, *token, pieces, false, then),
            Wire::Mux(s) => return send_each(&**s, pieces),
            Wire::Closed => return Err(Errno::BADF),
        };
        let want: usize = pieces.iter().map(|s| s.len()).sum();
        if then == Then::Wait && io.poller.queue_slices(token, pieces, want) {
            return Ok(Sent { bytes: want, full: false });
        }
        clear(&io.poller, token)?;
        let sent = retry(|| {
            io.poller.with_fd(token, |fd| {
                rustix::net::sendmsg(fd, pieces, &mut SendAncillaryBuffer::default(), flags(then))
            })
        });
        noted(&io.poller, token, sent, want)
    }

    /// Writes several pieces over TLS. The last byte of the last piece is not content but room for the type of a TLS 1.3
    /// record, so that the piece can be sealed without a copy.
    ///
    /// # Errors
    /// Errors of [`Wire::send`]; `PROTO` without TLS.
    pub fn send_typed(&mut self, io: &Io, pieces: &[IoSlice<'_>], then: Then) -> Result<Sent, Errno> {
        let Wire::Tls(token, s) = self else { return Err(Errno::PROTO) };
        s.send(io, *token, pieces, true, then)
    }

    /// Writes up to `count` bytes of a file and moves `offset` on. No bytes and not full: the file ends there.
    /// Bytes that are not in the page cache block the thread.
    ///
    /// # Errors
    /// Errors of [`Wire::send`].
    pub fn send_file(
        &mut self,
        io: &Io,
        file: &impl std::os::fd::AsFd,
        offset: &mut u64,
        count: usize,
    ) -> Result<Sent, Errno> {
        let token = match self {
            Wire::Plain(token) => *token,
            Wire::Tls(token, s) => return s.send_file(io, *token, file, offset, count),
            Wire::Mux(s) => return copy_file(&**s, file, offset, count),
            Wire::Closed => return Err(Errno::BADF),
        };
        clear(&io.poller, token)?;
        let sent = retry(|| {
            io.poller.with_fd(token, |fd| rustix::fs::sendfile(fd, file, Some(&mut *offset), count))
        });
        // 0 means the end of the file, since a socket without room gives AGAIN.
        let want = if sent == Ok(0) { 0 } else { count };
        noted(&io.poller, token, sent, want)
    }

    /// Writes the bytes in a pipe, where [`Wire::has_sendfile`]. Returns their number. Bytes that stay have no room, or the
    /// connection is broken, which the next write reports.
    pub fn send_pipe(&mut self, io: &Io, pipe: &mut Pipe) -> usize {
        let token = self.token();
        if clear(&io.poller, token).is_err() {
            return 0;
        }
        self.pour_pipe(io, pipe).map_or(0, |sent| sent.bytes)
    }

    /// Sends content on a stream, without a copy where that is possible; see [`Mux::send_shared`].
    ///
    /// # Errors
    /// Errors of [`Wire::send`]; `PROTO` on a socket.
    pub fn send_shared(&self, bytes: &Bytes, then: Then) -> Result<Sent, Errno> {
        self.as_mux().map_or(Err(Errno::PROTO), |s| s.send_shared(bytes, then))
    }

    /// Sends a field block on a stream; see [`Mux::send_head`]. Returns `false` on a socket, where a head is bytes like any others.
    pub fn send_head(&self, block: &[u8], then: Then) -> bool {
        let stream = self.as_mux();
        stream.inspect(|s| s.send_head(block, then)).is_some()
    }

    /// Ends our side of a stream; see [`Mux::end`]. Does nothing on other wires.
    pub fn end(&self) {
        if let Wire::Mux(stream) = self {
            stream.end();
        }
    }

    /// Sends the field block of an interim response, like [`Wire::send_head`].
    pub fn send_interim(&self, block: &[u8]) -> bool {
        let stream = self.as_mux();
        stream.inspect(|s| s.send_interim(block)).is_some()
    }

    /// Shuts down the sending side.
    pub fn shutdown(&mut self, io: &Io) {
        self.close(io);
        let token = self.token();
        // Queued answers must leave before the FIN, after which nothing can be sent.
        let _ = clear(&io.poller, token);
        // It fails if the peer is gone, and then there is nothing to shut down.
        let _ = io.poller.with_fd(token, |fd| rustix::net::shutdown(fd, rustix::net::Shutdown::Write));
    }

    /// Reads bytes from the socket to drop them, encrypted or not; 0 is the end.
    ///
    /// # Errors
    /// Errors of [`Wire::read`].
    pub fn discard(&mut self, io: &Io, scratch: &mut Vec<u8>) -> Result<usize, Errno> {
        scratch.clear();
        let token = self.token();
        let got = retry(|| {
            io.poller.with_fd(token, |fd| rustix::io::read(fd, rustix::buffer::spare_capacity(scratch)))
        });
        if got == Err(Errno::AGAIN) {
            io.poller.drained(token);
        }
        got
    }

    /// Waits until a read may give something; call it after a read that returned `AGAIN`.
    pub async fn wait_readable(&self, io: &Io) {
        std::future::poll_fn(|cx| self.poll_readable(io, cx)).await
    }

    /// Waits until a write may take something; call it after a write that found no room.
    pub async fn wait_writable(&self, io: &Io) {
        std::future::poll_fn(|cx| self.poll_writable(io, cx)).await
    }

    /// Is ready when [`Wire::wait_readable`] would be.
    pub fn poll_readable(&self, io: &Io, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Wire::Plain(token) => io.poller.poll_readable(*token, cx),
            Wire::Tls(_, s) if s.has_ready() => io.poller.spend(cx),
            Wire::Tls(token, _) => io.poller.poll_readable(*token, cx),
            Wire::Mux(s) if s.poll_readable(cx).is_pending() => Poll::Pending,
            Wire::Mux(_) | Wire::Closed => io.poller.spend(cx),
        }
    }

    /// Is ready when [`Wire::wait_writable`] would be.
    pub fn poll_writable(&self, io: &Io, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Wire::Plain(token) | Wire::Tls(token, _) => io.poller.poll_writable(*token, cx),
            Wire::Mux(s) if s.clone().poll_writable(cx).is_pending() => Poll::Pending,
            Wire::Mux(_) | Wire::Closed => io.poller.spend(cx),
        }
    }

    /// Waits until the peer is gone: it has reset the connection. A peer that has only shut down its sending side may
    /// still read, so that is no end.
    pub async fn wait_gone(&self, io: &Io) {
        if let Wire::Mux(s) = self {
            return std::future::poll_fn(|cx| s.poll_gone(cx)).await;
        }
        loop {
            match peek(&io.poller, self.token()) {
                Err(Errno::AGAIN) => self.wait_readable(io).await,
                // The next request or the end has arrived already, and will be read later.
                Ok(_) => std::future::pending().await,
                Err(_) => return,
            }
        }
    }

    /// Calls `f` with the descriptor, for socket options.
    pub fn with_fd<R>(&self, io: &Io, f: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        io.poller.with_fd(self.token(), f)
    }
}

/// Sends pieces on a stream until one of them finds no room.
fn send_each(stream: &dyn Mux, pieces: &[IoSlice<'_>]) -> Result<Sent, Errno> {
    let mut sum = Sent { bytes: 0, full: false };
    for piece in pieces {
        let sent = stream.send(piece)?;
        sum.bytes += sent.bytes;
        sum.full = sent.full;
        if sent.full {
            break;
        }
    }
    Ok(sum)
}

/// Reads a part of a file and sends it on a stream.
fn copy_file(
    stream: &dyn Mux,
    file: &impl std::os::fd::AsFd,
    offset: &mut u64,
    count: usize,
) -> Result<Sent, Errno> {
    // No more is read than the stream takes, since bytes that it refuses would have to be read again.
    let n = stream.room().min(count);
    if n == 0 {
        return if stream.is_broken() { Err(Errno::CONNRESET) } else { Err(Errno::AGAIN) };
    }
    let mut piece = Vec::with_capacity(n);
    let got = rustix::io::pread(file, rustix::buffer::spare_capacity(&mut piece), *offset)?;
    let sent = stream.send(&piece)?;
    *offset += sent.bytes as u64;
    // Fewer bytes than asked for because of the stream's room (`n < count`) is no end of the file.
    Ok(Sent { bytes: sent.bytes, full: sent.bytes < got || (got > 0 && n < count) })
}

/// Looks at the next bytes of a socket without taking them: returns their number (at most 1), 0 is the end. Notes in the poller
/// when there is nothing.
///
/// # Errors
/// `AGAIN` when there is nothing; other errors end the connection.
pub fn peek(poller: &Poller, token: Token) -> Result<usize, Errno> {
    let mut byte = [0u8; 1];
    let got = retry(|| {
        poller.with_fd(token, |fd| rustix::net::recv(fd, &mut byte[..], RecvFlags::PEEK).map(|(n, _)| n))
    });
    if got == Err(Errno::AGAIN) {
        poller.drained(token);
    }
    got
}

#[cfg(test)]
mod tests;
