//! Descriptors over a unix stream socket (SCM_RIGHTS).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Descriptors in one message; the kernel takes 253 (SCM_MAX_FD).
const BATCH: usize = 250;

/// Sends descriptors, in batches of one byte each. The receiver must know their number.
///
/// # Errors
/// Errors of sendmsg(2), `EPIPE` when the other side is gone; `TimedOut` when it has not taken all by `until`.
pub fn send(socket: impl AsFd, fds: &[BorrowedFd<'_>], until: Instant) -> io::Result<()> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    for batch in fds.chunks(BATCH) {
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(batch)) {
            return Err(io::Error::other("no room for descriptors in a message"));
        }
        // A stream socket passes descriptors only together with at least one byte (unix(7)).
        retry(&socket, until, || sendmsg(&socket, &[IoSlice::new(b"f")], &mut ancillary, FLAGS))?;
    }
    Ok(())
}

/// Writes all bytes to a socket, which may be a blocking one.
///
/// # Errors
/// Errors of [`send`].
pub fn write_all(socket: impl AsFd, bytes: &[u8], until: Instant) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = retry(&socket, until, || rustix::net::send(&socket, rest, FLAGS))?;
        rest = rest.get(count..).unwrap_or_default();
    }
    Ok(())
}

/// The function waits for a peer that takes nothing in poll(2) only, so that a deadline holds.
const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Repeats a call until the socket takes something, or the time is over.
fn retry<T>(socket: &impl AsFd, until: Instant, mut call: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => continue,
            // Too many descriptors of this user are on their way: they become fewer without an event.
            Err(e @ (Errno::AGAIN | Errno::TOOMANYREFS)) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let most = if e == Errno::AGAIN { left } else { left.min(Duration::from_millis(10)) };
                let events = if e == Errno::AGAIN { PollFlags::OUT } else { PollFlags::empty() };
                let timeout = Timespec::try_from(most).map_err(io::Error::other)?;
                match poll(&mut [PollFd::new(socket, events)], Some(&timeout)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            other => return Ok(other?),
        }
    }
}

/// Reads received bytes of a socket, at most as many as `buffer` holds, without waiting. Returns their number; `None` if there
/// are none, 0 if the other side has closed. Closes descriptors that were sent with them.
///
/// # Errors
/// Errors of recv(2).
pub fn read_ready(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        // Without room for control messages the kernel drops what was passed.
        match rustix::net::recv(&socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((count, _)) => return Ok(Some(count)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives exactly `count` descriptors that [`send`] sent. They are closed on exec.
///
/// # Errors
/// Errors of recvmsg(2); `UnexpectedEof` when the other side closed; `InvalidData` when descriptors are
/// missing, for instance because this process may not open more.
pub fn receive(socket: impl AsFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut fds = Vec::with_capacity(count.min(1 << 16));
    while fds.len() < count {
        let expected = BATCH.min(count - fds.len());
        let before = fds.len();
        let mut byte = [0u8];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            match recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(list) = message {
                fds.extend(list);
            }
        }
        // The kernel drops descriptors beyond the limit of this process, and sets the flag.
        if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() != before + expected {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors were lost on the way"));
        }
    }
    Ok(fds)
}

/// Takes over listening and bound UDP sockets that the program which started this one left open, by number. Numbers that
/// are no such socket are left alone. They are closed on exec from now on. Only the first call gives any:
/// a descriptor has one owner.
pub fn inherited_listeners(numbers: &[RawFd]) -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Vec::new();
    }
    let mut numbers: Vec<RawFd> = numbers.iter().copied().filter(|&fd| fd > 2).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().filter(|&fd| is_listener(fd)).map(take_over).collect()
}

/// Takes over one side of a pair of sequenced sockets that this process has inherited. `None` if the number is not that of one. It is
/// closed on exec from now on. Only the first call gives one: a descriptor has one owner.
pub fn inherited_pair(number: RawFd) -> Option<OwnedFd> {
    use rustix::net::{AddressFamily, SocketType, getpeername, getsockname, sockopt::socket_type};
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if number <= 2 || TAKEN.swap(true, Ordering::SeqCst) {
        return None;
    }
    // SAFETY: the borrow ends with this function; a number that is not open makes the calls fail with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let is_pair = matches!(socket_type(borrowed), Ok(SocketType::SEQPACKET))
        && getpeername(borrowed).is_ok()
        && getsockname(borrowed).is_ok_and(|name| name.address_family() == AddressFamily::UNIX);
    is_pair.then(|| take_over(number))
}

/// Takes over a listening socket that this process has inherited besides those of [`inherited_listeners`]. `None` if the number is not
/// that of one. It is closed on exec from now on. Only the first call gives one: a descriptor has one owner.
pub fn inherited_listener(number: RawFd) -> Option<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if number <= 2 || TAKEN.swap(true, Ordering::SeqCst) {
        return None;
    }
    is_listener(number).then(|| take_over(number))
}

fn is_listener(fd: RawFd) -> bool {
    // SAFETY: the borrow ends with this function; a number that is not open makes the call fail with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    matches!(rustix::net::sockopt::socket_acceptconn(borrowed), Ok(true)) || receives_datagrams(borrowed)
}

/// Returns `true` for a UDP socket that is bound to a port and not connected, and for a unix socket of datagrams with a path.
fn receives_datagrams(socket: BorrowedFd<'_>) -> bool {
    use rustix::net::{SocketAddrUnix, SocketType, getpeername, getsockname, sockopt::socket_type};
    let is_bound = || {
        let name = getsockname(socket).ok()?;
        let port = SocketAddr::try_from(name.clone()).ok().map(|addr| addr.port());
        Some(match port {
            Some(port) => port != 0,
            None => SocketAddrUnix::try_from(name).ok()?.path_bytes().is_some(),
        })
    };
    matches!(socket_type(socket), Ok(SocketType::DGRAM))
        && is_bound() == Some(true)
        && getpeername(socket).is_err()
}

fn take_over(fd: RawFd) -> OwnedFd {
    // SAFETY: the number is open and a listening or UDP socket, checked before; it is taken once, as numbers are
    // unique and `inherited_listeners` works once. Nothing else in the program owns it: it was open when the
    // program started, and this is called before the program opens listeners of its own.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    let _ = rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC);
    owned
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up() {
        let (left, right) = UnixStream::pair().expect("socket pair");
        let until = Instant::now() + Duration::from_millis(20);
        let kind = |result: io::Result<()>| result.map_err(|e| e.kind()).err();
        assert_eq!(kind(write_all(&left, &[0; 8 << 20], until)), Some(io::ErrorKind::TimedOut));
        assert!(Instant::now() >= until);
        // The buffer is full: no descriptor goes either.
        let until = Instant::now() + Duration::from_millis(20);
        assert_eq!(kind(send(&left, &[right.as_fd()], until)), Some(io::ErrorKind::TimedOut));
    }

    #[test]
    fn reading_does_not_wait_and_takes_no_descriptors() {
        let (left, right) = UnixStream::pair().expect("socket pair");
        let mut buffer = [0; 9];
        assert_eq!(read_ready(&right, &mut buffer).expect("read"), None);
        let (pipe, writer) = std::io::pipe().expect("pipe");
        send(&left, &[writer.as_fd()], soon()).expect("send");
        drop(writer);
        assert_eq!(read_ready(&right, &mut buffer).expect("read"), Some(1));
        // The pipe has no writer any more.
        let mut rest = Vec::new();
        (&pipe).read_to_end(&mut rest).expect("the end of the pipe");
        assert!(rest.is_empty());
        drop(left);
        assert_eq!(read_ready(&right, &mut buffer).expect("read"), Some(0));
    }

    #[test]
    fn many_descriptors_between_bytes() {
        crate::limits::raise_descriptors();
        let (mut left, mut right) = UnixStream::pair().expect("socket pair");
        let (reader, writer) = std::io::pipe().expect("pipe");
        let list = vec![writer.as_fd(); 600];
        left.write_all(b"before").expect("write");
        send(&left, &list, soon()).expect("send");
        left.write_all(b"after").expect("write");
        let mut text = [0; 6];
        right.read_exact(&mut text).expect("read");
        assert_eq!(&text, b"before");
        let got = receive(&right, 600).expect("receive");
        assert_eq!(got.len(), 600);
        let mut text = [0; 5];
        right.read_exact(&mut text).expect("read");
        assert_eq!(&text, b"after");
        drop(writer);
        let mut last = std::fs::File::from(got.into_iter().next_back().expect("600 of them"));
        last.write_all(b"x").expect("write through the copy");
        drop(last);
        let mut all = Vec::new();
        (&reader).read_to_end(&mut all).expect("read");
        assert_eq!(all, b"x");
    }

    #[test]
    fn takes_over_listeners_only_and_once() {
        use std::os::fd::IntoRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("bound");
        let number = listener.into_raw_fd();
        let (pipe, _writer) = std::io::pipe().expect("pipe");
        let other = std::os::fd::AsRawFd::as_raw_fd(&pipe);
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        let port = datagrams.local_addr().expect("bound");
        let connected = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        connected.connect(port).expect("connected");
        let connected = std::os::fd::AsRawFd::as_raw_fd(&connected);
        let datagrams = datagrams.into_raw_fd();
        let mut got = inherited_listeners(&[number, other, number, 9999, -1, 0, datagrams, connected]);
        got.sort_by_key(|fd| std::os::fd::AsRawFd::as_raw_fd(fd) != number);
        assert_eq!(got.len(), 2);
        let back = std::net::UdpSocket::from(got.pop().expect("two"));
        assert_eq!(back.local_addr().expect("bound"), port);
        let back = std::net::TcpListener::from(got.pop().expect("one"));
        assert_eq!(back.local_addr().expect("bound"), address);
        assert!(inherited_listeners(&[number]).is_empty());
    }

    #[test]
    fn a_closed_peer_is_an_error() {
        let (left, right) = UnixStream::pair().expect("socket pair");
        drop(left);
        assert_eq!(receive(&right, 1).map_err(|e| e.kind()).err(), Some(io::ErrorKind::UnexpectedEof));
    }
}
