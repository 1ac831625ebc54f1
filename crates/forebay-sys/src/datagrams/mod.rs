//! Datagrams received and sent several at a time (recvmmsg(2), sendmmsg(2)), with the local address of each (ip(7),
//! IP_PKTINFO) and in the coalesced form of the kernel (udp(7), UDP_GRO and UDP_SEGMENT).

mod address;
mod outbox;

pub use address::{Address, Destination, UnixName};
pub use outbox::Outbox;

use address::Name;
use nix::libc;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

/// Most datagrams of a batch.
pub const MOST: usize = 32;

/// Room for a datagram, or for several that the kernel has coalesced.
const ROOM: usize = 64 * 1024;

/// Distance of two buffers. A power of two would put the beginnings of all into the same few lines of a cache.
const STRIDE: usize = ROOM + 1088;

/// Room for the control messages of a datagram: the local address of IPv6 takes 40 bytes, the size of segments and the traffic
/// class 24 each.
const CONTROL: usize = 128;

/// Fewest datagrams that leave in one piece. Splitting costs about as much as it saves for fewer.
const JOINED: usize = 4;

/// Most bytes in one piece: those of the largest datagram.
const PIECE: usize = 65_507 - 20;

/// Bits of the traffic class for explicit congestion notification.
const ECN: u8 = 3;

/// Control messages of a datagram, aligned for their heads.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// Arguments of a system call. They hold pointers to each other and to the buffers.
#[repr(C)]
struct Space {
    headers: [libc::mmsghdr; MOST],
    pieces: [libc::iovec; MOST],
    names: [Name; MOST],
    controls: [Control; MOST],
}

/// Received datagram, or several of one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'b> {
    /// Its bytes.
    pub bytes: &'b [u8],
    /// Size of each of the coalesced datagrams, of which the last may be smaller; 0: it is a single one.
    pub segment: usize,
}

impl<'b> Datagram<'b> {
    /// Returns the number of datagrams.
    pub fn count(&self) -> usize {
        if self.segment == 0 { 1 } else { self.bytes.len().div_ceil(self.segment).max(1) }
    }

    /// Returns the datagrams one by one.
    pub fn parts(self) -> impl Iterator<Item = &'b [u8]> {
        let size = if self.segment == 0 { self.bytes.len() } else { self.segment };
        // An empty datagram is one, too.
        let empty = self.bytes.is_empty().then_some(self.bytes);
        empty.into_iter().chain(self.bytes.chunks(size.max(1)))
    }
}

/// Buffers for datagrams and the arguments of the system calls.
pub struct Batch {
    receiving: NonNull<Space>,
    sending: NonNull<Space>,
    buffers: NonNull<u8>,
    /// Number of datagrams received.
    received: usize,
    /// Number of headers for receiving that calls may have changed.
    used: usize,
    /// Where each of the datagrams is sent to; `None`: the peer of a connected socket. Boxed: batches are moved at every turn.
    targets: Box<[Option<Destination>; MOST]>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("received", &self.received).finish_non_exhaustive()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: all three come from `Box::into_raw` in `new`, of the same types and sizes, and nothing else frees them.
        unsafe {
            drop(Box::from_raw(self.receiving.as_ptr()));
            drop(Box::from_raw(self.sending.as_ptr()));
            let buffers = ptr::slice_from_raw_parts_mut(self.buffers.as_ptr(), MOST * STRIDE);
            drop(Box::from_raw(buffers));
        }
    }
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

/// Leaks zeroed arguments, which [`Batch::drop`] frees.
fn space() -> NonNull<Space> {
    // SAFETY: `Space` consists of integers and pointers, for which zeroes are valid.
    let space = unsafe { Box::<Space>::new(MaybeUninit::zeroed().assume_init()) };
    NonNull::from(Box::leak(space))
}

impl Batch {
    /// Creates a batch without datagrams. Its buffers take memory once datagrams use them.
    pub fn new() -> Batch {
        let buffers = Box::leak(vec![0u8; MOST * STRIDE].into_boxed_slice());
        let mut batch = Batch {
            receiving: space(),
            sending: space(),
            buffers: NonNull::from(buffers).cast(),
            received: 0,
            used: MOST,
            targets: Box::new([const { None }; MOST]),
        };
        let receiving = batch.receiving.as_ptr();
        for n in 0..MOST {
            // SAFETY: the indices are in bounds of live allocations; no references to them exist, and pointers to places
            // in them stay valid because they are never moved.
            unsafe {
                let header = &raw mut (*receiving).headers[n].msg_hdr;
                let piece = &raw mut (*receiving).pieces[n];
                (*piece).iov_base = batch.buffers.as_ptr().add(n * STRIDE).cast();
                (*piece).iov_len = ROOM;
                (*header).msg_iov = piece;
                (*header).msg_iovlen = 1;
                (*header).msg_name = (&raw mut (*receiving).names[n]).cast();
                (*header).msg_control = (&raw mut (*receiving).controls[n]).cast();
            }
        }
        batch.restore(0);
        batch
    }

    /// Restores the arguments from `start` on that calls have changed.
    fn restore(&mut self, start: usize) {
        let receiving = self.receiving.as_ptr();
        for n in start..self.used {
            // SAFETY: as in `new`.
            unsafe {
                let header = &raw mut (*receiving).headers[n].msg_hdr;
                (*header).msg_namelen = size_of::<Name>() as libc::socklen_t;
                (*header).msg_controllen = CONTROL as _;
                (*header).msg_flags = 0;
            }
        }
    }

    /// Forgets the datagrams.
    pub fn clear(&mut self) {
        self.received = 0;
    }

    /// Receives at most `most` datagrams behind those that are there, without waiting. Returns the number of new ones.
    ///
    /// # Errors
    /// Errors of recvmmsg(2); `AGAIN`: there are none. `NOBUFS`: the batch is full.
    pub fn receive(&mut self, socket: impl AsFd, most: usize) -> Result<usize, Errno> {
        let start = self.received;
        let most = most.min(MOST - start);
        if most == 0 {
            return Err(Errno::NOBUFS);
        }
        self.restore(start);
        self.used = start;
        let fd = socket.as_fd().as_raw_fd();
        loop {
            // SAFETY: `fd` is open during the call. The headers and all they point to are allocated, initialised in `new`
            // and of the lengths that they state; from `start` on there are at least `most`. There is no timeout.
            let count = unsafe {
                let headers = (&raw mut (*self.receiving.as_ptr()).headers).cast::<libc::mmsghdr>();
                let flags = libc::MSG_DONTWAIT as _;
                libc::recvmmsg(fd, headers.add(start), most as libc::c_uint, flags, ptr::null_mut())
            };
            match usize::try_from(count) {
                Ok(count) => {
                    self.received = (start + count).min(MOST);
                    self.used = self.received;
                    return Ok(count);
                }
                Err(_) => match last_error() {
                    Errno::INTR => {}
                    e => return Err(e),
                },
            }
        }
    }

    /// Returns the number of datagrams received.
    pub fn len(&self) -> usize {
        self.received
    }

    /// Returns `true` if there are no datagrams.
    pub fn is_empty(&self) -> bool {
        self.received == 0
    }

    /// Sets where datagrams are sent to; `None`: the peer of a connected socket.
    pub fn direct(&mut self, range: Range<usize>, to: Option<&Destination>) {
        self.targets.iter_mut().take(range.end).skip(range.start).for_each(|target| *target = to.cloned());
    }

    /// Returns where a datagram is sent to.
    pub fn target(&self, n: usize) -> Option<&Destination> {
        self.targets.get(n)?.as_ref()
    }

    /// Returns a datagram; `None` if there are fewer.
    pub fn get(&self, n: usize) -> Option<Datagram<'_>> {
        if n >= self.received {
            return None;
        }
        // SAFETY: `n` is in bounds, and the kernel has filled this header and what it points to. The slices live as long
        // as `self` is borrowed, and only methods that borrow it mutably write to them.
        unsafe {
            let space = self.receiving.as_ptr();
            let header = &(*space).headers[n];
            let len = (header.msg_len as usize).min(ROOM);
            let bytes = std::slice::from_raw_parts(self.buffers.as_ptr().add(n * STRIDE), len);
            let control = Controls::of(&header.msg_hdr);
            Some(Datagram { bytes, segment: control.segment })
        }
    }

    /// Returns the sender of a datagram and its local address; `None` for an address of another family.
    pub fn sender(&self, n: usize) -> Option<Destination> {
        let (name, length, local) = self.origin(n)?;
        Some(Destination { addr: name.read(length)?, local })
    }

    /// Returns the end of the datagrams from `at` on that have the same sender and local address.
    pub fn run(&self, at: usize) -> usize {
        let Some((name, length, local)) = self.origin(at) else { return at + 1 };
        let same = |other: (&Name, usize, Option<IpAddr>)| {
            other.0.bytes(other.1) == name.bytes(length) && other.2 == local
        };
        let others = (at + 1..self.received).take_while(|n| self.origin(*n).is_some_and(same));
        at + 1 + others.count()
    }

    /// Returns the name of a datagram's sender, its length, and the local address.
    fn origin(&self, n: usize) -> Option<(&Name, usize, Option<IpAddr>)> {
        if n >= self.received {
            return None;
        }
        // SAFETY: as in `get`.
        unsafe {
            let space = self.receiving.as_ptr();
            let header = &(*space).headers[n].msg_hdr;
            Some((&(*space).names[n], header.msg_namelen as usize, Controls::of(header).local))
        }
    }

    /// Returns the bits for explicit congestion notification of a datagram (RFC 3168, section 5), if
    /// [`crate::sockets::set_ecn_info`] has been called for the socket; else 0.
    pub fn ecn(&self, n: usize) -> u8 {
        if n >= self.received {
            return 0;
        }
        // SAFETY: as in `get`.
        unsafe { Controls::of(&(*self.receiving.as_ptr()).headers[n].msg_hdr).ecn }
    }

    /// Forgets the datagrams from `n` on.
    pub fn truncate(&mut self, n: usize) {
        self.received = self.received.min(n);
    }

    /// Sends received datagrams to where [`Batch::direct`] says, without waiting. Returns the number of those that were sent,
    /// which may be fewer: call again with the rest.
    ///
    /// # Errors
    /// Errors of sendmsg(2) for the first datagram.
    pub fn send(&mut self, socket: impl AsFd, range: Range<usize>) -> Result<usize, Errno> {
        let range = range.start.min(self.received)..range.end.min(self.received);
        let alike = self.alike(range.clone());
        if alike >= JOINED {
            match self.send_joined(&socket, range.start..range.start + alike) {
                // Some devices cannot split the piece.
                Err(e) if !matches!(e, Errno::AGAIN | Errno::NOBUFS | Errno::CONNREFUSED) => {}
                sent => return sent.map(|()| alike),
            }
        }
        self.send_each(&socket, range)
    }

    /// Returns the number of datagrams that can leave in one piece: they have the same target, and all but the last the same
    /// size.
    fn alike(&self, range: Range<usize>) -> usize {
        let size = self.get(range.start).map_or(0, |d| d.bytes.len());
        let to = self.target(range.start);
        if to.is_some_and(|to| to.unix().is_some()) {
            // Nothing would split the piece.
            return 0;
        }
        let (mut count, mut total) = (0, 0);
        for (n, d) in range.map_while(|n| Some((n, self.get(n)?))) {
            total += d.bytes.len();
            if self.target(n) != to
                || d.segment > 0
                || d.bytes.is_empty()
                || d.bytes.len() > size
                || total > PIECE
            {
                break;
            }
            count += 1;
            if d.bytes.len() < size {
                break;
            }
        }
        count
    }

    /// Sends datagrams in one piece, which the kernel or the device splits.
    fn send_joined(&mut self, socket: impl AsFd, range: Range<usize>) -> Result<(), Errno> {
        let Some(first) = self.get(range.start) else { return Ok(()) };
        let segment = first.bytes.len();
        let space = self.sending.as_ptr();
        // SAFETY: the indices are in bounds, since a range of datagrams has at most `MOST`. The allocation is live, not moved,
        // and borrowed by nothing else. The header points to pieces that are all initialised, and the kernel only reads.
        let sent = unsafe {
            let pieces = (&raw mut (*space).pieces).cast::<libc::iovec>();
            for (at, d) in range.clone().filter_map(|n| self.get(n)).enumerate() {
                let place = &mut *pieces.add(at);
                place.iov_base = d.bytes.as_ptr().cast_mut().cast();
                place.iov_len = d.bytes.len();
            }
            let header = &mut (*space).headers[0].msg_hdr;
            let places = (&mut (*space).names[0], &mut (*space).controls[0]);
            write_head(header, places, segment, self.target(range.start));
            (header.msg_iov, header.msg_iovlen) = (pieces, range.len() as _);
            libc::sendmsg(socket.as_fd().as_raw_fd(), header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        };
        if sent < 0 { Err(last_error()) } else { Ok(()) }
    }

    fn send_each(&mut self, socket: impl AsFd, range: Range<usize>) -> Result<usize, Errno> {
        if range.len() == 1
            && let Some(datagram) = self.get(range.start)
            && datagram.count() == 1
        {
            return send(socket, datagram.bytes, self.target(range.start)).map(|()| 1);
        }
        let space = self.sending.as_ptr();
        for (at, n) in range.clone().enumerate() {
            let Some(datagram) = self.get(n) else { break };
            // SAFETY: as in `send_joined`.
            unsafe {
                let header = &raw mut (*space).headers[at].msg_hdr;
                let (piece, name) = (&raw mut (*space).pieces[at], &raw mut (*space).names[at]);
                let control = &raw mut (*space).controls[at];
                let places = (&mut *name, &mut *control);
                write(&mut *header, &mut *piece, places, datagram, self.target(n));
            }
        }
        let fd = socket.as_fd().as_raw_fd();
        let count = range.len() as libc::c_uint;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `fd` is open during the call; `write` has initialised as many headers as `count` says.
        let sent = unsafe {
            match count {
                0 => return Ok(0),
                // Returns the length.
                1 => libc::sendmsg(fd, &raw const (*space).headers[0].msg_hdr, flags).min(1),
                _ => libc::sendmmsg(fd, (&raw mut (*space).headers).cast(), count, flags as _) as isize,
            }
        };
        match usize::try_from(sent) {
            Ok(sent) => Ok(sent.max(1)),
            Err(_) => Err(last_error()),
        }
    }
}

/// Sends a datagram, without waiting: to the peer of a connected socket, or to `to`.
///
/// # Errors
/// Errors of sendmsg(2).
pub fn send(socket: impl AsFd, bytes: &[u8], to: Option<&Destination>) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // These calls cost less than sendmsg(2), since there is no header to copy.
    match to {
        None => rustix::net::send(socket, bytes, flags).map(|_| ()),
        Some(Destination { addr: Address::Inet(addr), local: None }) => {
            rustix::net::sendto(socket, bytes, flags, addr).map(|_| ())
        }
        to => send_from(socket, bytes, to),
    }
}

fn send_from(socket: impl AsFd, bytes: &[u8], to: Option<&Destination>) -> Result<(), Errno> {
    send_marked(socket, Datagram { bytes, segment: 0 }, to, None)
}

/// Sends a datagram, or several in one piece, without waiting. `ecn`: bits for explicit congestion notification (RFC 3168, section
/// 5). `None`: those of the socket ([`crate::sockets::set_ecn`]), which the kernel has at hand.
///
/// # Errors
/// Errors of sendmsg(2). `IO` or `INVAL`: the device cannot split the piece.
pub fn send_marked(
    socket: impl AsFd,
    datagram: Datagram<'_>,
    to: Option<&Destination>,
    ecn: Option<u8>,
) -> Result<(), Errno> {
    // SAFETY: these consist of integers and pointers, for which zeroes are valid.
    let (mut header, mut piece, mut name): (libc::msghdr, libc::iovec, Name) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
    let mut control = Control([0; CONTROL]);
    write(&mut header, &mut piece, (&mut name, &mut control), datagram, to);
    mark(&mut header, &mut control, to, ecn);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `fd` is open, and the header points to values on the stack that live until the call has returned.
    let sent = unsafe { libc::sendmsg(fd, &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(last_error()) } else { Ok(()) }
}

/// Adds the bits for explicit congestion notification, if they are not those of the socket, behind the control messages of a datagram
/// to `to`.
fn mark(header: &mut libc::msghdr, control: &mut Control, to: Option<&Destination>, ecn: Option<u8>) {
    let Some(ecn) = ecn else { return };
    // Of another type with musl.
    #[allow(clippy::unnecessary_cast)]
    let used = header.msg_controllen as usize;
    let used = match to {
        Some(Destination { addr: Address::Inet(SocketAddr::V6(_)), .. }) => {
            push(control, used, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::c_int::from(ecn))
        }
        _ => push(control, used, libc::IPPROTO_IP, libc::IP_TOS, libc::c_int::from(ecn)),
    };
    (header.msg_control, header.msg_controllen) = (ptr::from_mut(control).cast(), used as _);
}

/// Has a socket coalesce datagrams of one sender that arrive together (udp(7), UDP_GRO).
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_coalescing(socket: impl AsFd, on: bool) -> io::Result<()> {
    crate::sockets::set_option(socket, libc::IPPROTO_UDP, libc::UDP_GRO, on.into())
}

/// Fills in the arguments for a datagram.
fn write(
    header: &mut libc::msghdr,
    piece: &mut libc::iovec,
    places: (&mut Name, &mut Control),
    datagram: Datagram<'_>,
    to: Option<&Destination>,
) {
    piece.iov_base = datagram.bytes.as_ptr().cast_mut().cast();
    piece.iov_len = datagram.bytes.len();
    (header.msg_iov, header.msg_iovlen) = (piece, 1);
    write_head(header, places, if datagram.count() > 1 { datagram.segment } else { 0 }, to);
}

/// Fills in where a datagram goes. `segment`: size of the datagrams that it is to be split into; 0: it is one.
fn write_head(
    header: &mut libc::msghdr,
    (name, control): (&mut Name, &mut Control),
    segment: usize,
    to: Option<&Destination>,
) {
    (header.msg_name, header.msg_namelen) = (ptr::null_mut(), 0);
    if let Some(to) = to {
        header.msg_namelen = name.write(&to.addr);
        header.msg_name = ptr::from_mut(name).cast();
    }
    let mut used = 0;
    match to.and_then(|to| to.local) {
        Some(IpAddr::V4(local)) => {
            used = push(control, used, libc::IPPROTO_IP, libc::IP_PKTINFO, info4(local))
        }
        Some(IpAddr::V6(local)) => {
            used = push(control, used, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info6(local));
        }
        None => {}
    }
    if segment > 0 {
        used = push(control, used, libc::IPPROTO_UDP, libc::UDP_SEGMENT, segment as u16);
    }
    header.msg_control = if used == 0 { ptr::null_mut() } else { ptr::from_mut(control).cast() };
    header.msg_controllen = used as _;
}

/// Appends a control message behind `used` bytes. Returns the bytes used then.
fn push<T: Copy>(control: &mut Control, used: usize, level: i32, kind: i32, value: T) -> usize {
    let size = size_of::<T>() as libc::c_uint;
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
    let (space, length) = unsafe { (libc::CMSG_SPACE(size) as usize, libc::CMSG_LEN(size) as usize) };
    let end = used + space;
    let Some(place) = control.0.get_mut(used..end) else { return used };
    place.fill(0);
    // SAFETY: a head is plain numbers. That of musl has padding in addition.
    let mut head: libc::cmsghdr = unsafe { std::mem::zeroed() };
    (head.cmsg_len, head.cmsg_level, head.cmsg_type) = (length as _, level, kind);
    // SAFETY: `place` has room for the head and the value behind it, and unaligned writes need no alignment.
    unsafe {
        place.as_mut_ptr().cast::<libc::cmsghdr>().write_unaligned(head);
        place.as_mut_ptr().add(libc::CMSG_LEN(0) as usize).cast::<T>().write_unaligned(value);
    }
    end
}

fn info4(local: Ipv4Addr) -> libc::in_pktinfo {
    let addr = |a: Ipv4Addr| libc::in_addr { s_addr: u32::from_ne_bytes(a.octets()) };
    libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: addr(local), ipi_addr: addr(Ipv4Addr::UNSPECIFIED) }
}

fn info6(local: Ipv6Addr) -> libc::in6_pktinfo {
    libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: local.octets() }, ipi6_ifindex: 0 }
}

/// Values of the control messages of a datagram.
#[derive(Default)]
struct Controls {
    local: Option<IpAddr>,
    segment: usize,
    /// Bits for explicit congestion notification (RFC 3168, section 5).
    ecn: u8,
}

impl Controls {
    /// Reads control messages.
    ///
    /// # Safety
    /// The kernel has filled the header, or its length of control messages is 0.
    unsafe fn of(header: &libc::msghdr) -> Controls {
        let mut found = Controls::default();
        // SAFETY: the caller guarantees that `header` describes valid control messages; these functions stay inside them,
        // and the values are read without alignment.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(header);
            while !message.is_null() {
                let data = libc::CMSG_DATA(message);
                match ((*message).cmsg_level, (*message).cmsg_type) {
                    (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                        // Not `ipi_addr`: that may be a broadcast address, which no answer can come from.
                        let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                        found.local = Some(Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into());
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                        let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                        found.local = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => found.ecn = data.read_unaligned() & ECN,
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                        let class = data.cast::<libc::c_int>().read_unaligned();
                        found.ecn = class as u8 & ECN;
                    }
                    (libc::IPPROTO_UDP, libc::UDP_GRO) => {
                        let size = data.cast::<libc::c_int>().read_unaligned();
                        found.segment = usize::try_from(size).unwrap_or(0);
                    }
                    _ => {}
                }
                message = libc::CMSG_NXTHDR(header, message);
            }
        }
        found
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    fn bound(addr: &str) -> UdpSocket {
        let socket = UdpSocket::bind(addr).expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        socket
    }

    fn got(socket: &UdpSocket) -> Vec<u8> {
        let mut buf = [0; 2048];
        let count = socket.recv(&mut buf).expect("a datagram");
        buf[..count].to_vec()
    }

    #[test]
    fn several_at_once() {
        let (server, client, next) = (bound("127.0.0.1:0"), bound("127.0.0.1:0"), bound("127.0.0.1:0"));
        let at = server.local_addr().expect("bound");
        let mut batch = Batch::new();
        assert_eq!(batch.receive(&server, MOST), Err(Errno::AGAIN));
        for text in [&b"one"[..], b"", b"three"] {
            client.send_to(text, at).expect("sent");
        }
        assert_eq!(batch.receive(&server, 2), Ok(2));
        assert_eq!((batch.len(), batch.is_empty(), batch.get(2)), (2, false, None));
        let from = Destination { addr: client.local_addr().expect("bound").into(), local: None };
        let one = Datagram { bytes: b"one", segment: 0 };
        assert_eq!((batch.sender(0).as_ref(), batch.sender(2)), (Some(&from), None));
        assert_eq!((batch.get(0), batch.get(1).map(|d| d.bytes.len())), (Some(one), Some(0)));
        // Back to the sender, and on to another over a connected socket.
        batch.direct(0..2, Some(&from));
        assert_eq!(batch.send(&server, 0..2), Ok(2));
        assert_eq!((got(&client), got(&client)), (b"one".to_vec(), Vec::new()));
        // Behind the others.
        assert_eq!((batch.receive(&server, MOST), batch.len()), (Ok(1), 3));
        assert_eq!((batch.get(0), batch.get(2).map(|d| d.bytes)), (Some(one), Some(&b"three"[..])));
        let out = bound("127.0.0.1:0");
        out.connect(next.local_addr().expect("bound")).expect("connected");
        assert_eq!(batch.send(&out, 2..5), Ok(1));
        assert_eq!(got(&next), b"three");
        assert_eq!(send(&out, b"four", None), Ok(()));
        assert_eq!(got(&next), b"four");
        assert_eq!(batch.send(&out, 1..1), Ok(0));
        batch.clear();
        assert_eq!((batch.is_empty(), batch.get(0)), (true, None));
        for n in 0..=MOST as u8 {
            client.send_to(&[n], at).expect("sent");
        }
        assert_eq!(batch.receive(&server, MOST + 1), Ok(MOST));
        assert_eq!(batch.receive(&server, 1), Err(Errno::NOBUFS));
    }

    /// An answer leaves from the address that the datagram was sent to.
    #[test]
    fn local_addresses() {
        for (any, host) in [("0.0.0.0:0", "127.0.0.3"), ("[::]:0", "::1")] {
            let Ok(server) = UdpSocket::bind(any) else { continue };
            crate::sockets::set_packet_info(&server, any.starts_with('[')).expect("option");
            let ip: IpAddr = host.parse().expect("address");
            let client = bound(&SocketAddr::new(ip, 0).to_string());
            let at = SocketAddr::new(ip, server.local_addr().expect("bound").port());
            client.connect(at).expect("connected");
            client.send(b"x").expect("sent");
            let mut batch = Batch::new();
            assert_eq!(batch.receive(&server, 1), Ok(1));
            let from = batch.sender(0).expect("a sender");
            assert_eq!(from.local, Some(ip));
            // A connected client takes datagrams from that address only.
            batch.direct(0..1, Some(&from));
            assert_eq!(batch.send(&server, 0..1), Ok(1));
            assert_eq!(got(&client), b"x");
        }
    }

    /// The bits of explicit congestion notification arrive as they were sent, also with segments.
    #[test]
    fn congestion_bits() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(server) = UdpSocket::bind(host) else { continue };
            crate::sockets::set_ecn_info(&server, host.starts_with('[')).expect("option");
            let client = bound(host);
            let to = Destination { addr: server.local_addr().expect("bound").into(), local: None };
            let mut batch = Batch::new();
            let sent = [
                (&b"a"[..], 0, Some(2), 2),
                (b"aabbc", 2, Some(1), 1),
                (b"d", 0, None, 0),
                (b"e", 0, None, 2),
            ];
            for (bytes, segment, marks, ecn) in sent {
                if bytes == b"e" {
                    crate::sockets::set_ecn(&client, host.starts_with('['), ecn).expect("option");
                }
                send_marked(&client, Datagram { bytes, segment }, Some(&to), marks).expect("sent");
                let mut left = bytes.len();
                while left > 0 {
                    batch.clear();
                    assert_eq!(batch.receive(&server, 1), Ok(1));
                    assert_eq!(batch.ecn(0), ecn);
                    left -= batch.get(0).expect("a datagram").bytes.len();
                }
            }
            assert_eq!(batch.ecn(1), 0);
            // The marks of a datagram go before those of the socket.
            send_marked(&client, Datagram { bytes: b"f", segment: 0 }, Some(&to), Some(0)).expect("sent");
            batch.clear();
            assert_eq!((batch.receive(&server, 1), batch.ecn(0)), (Ok(1), 0));
        }
    }

    #[test]
    fn coalesced_datagrams() {
        let (server, client) = (bound("127.0.0.1:0"), bound("127.0.0.1:0"));
        set_coalescing(&server, true).expect("UDP_GRO");
        let mut batch = Batch::new();
        client.connect(server.local_addr().expect("bound")).expect("connected");
        // Sent as the batch sends what it has received in one piece.
        let mut space = (Control([0; CONTROL]), [0u8; 2500]);
        space.1[2400..].fill(1);
        let (mut header, mut piece, mut name): (libc::msghdr, libc::iovec, Name) =
            // SAFETY: zeroes are valid for integers and pointers.
            unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
        let datagram = Datagram { bytes: &space.1, segment: 1200 };
        assert_eq!((datagram.count(), datagram.parts().count()), (3, 3));
        write(&mut header, &mut piece, (&mut name, &mut space.0), datagram, None);
        // SAFETY: the header points to live values.
        assert_eq!(unsafe { libc::sendmsg(client.as_raw_fd(), &raw const header, 0) }, 2500);
        assert_eq!(batch.receive(&server, MOST), Ok(1));
        let received = batch.get(0).expect("one");
        assert_eq!((received.bytes.len(), received.segment, received.count()), (2500, 1200, 3));
        assert_eq!(received.parts().map(<[u8]>::len).collect::<Vec<_>>(), [1200, 1200, 100]);
        let from = batch.sender(0).expect("a sender");
        batch.direct(0..1, Some(&from));
        assert_eq!(batch.send(&server, 0..1), Ok(1));
        assert_eq!((got(&client).len(), got(&client).len(), got(&client)), (1200, 1200, vec![1; 100]));
    }

    /// Datagrams of one size leave in one piece with a smaller last one, and arrive one by one.
    #[test]
    fn joined_datagrams() {
        let (server, client) = (bound("127.0.0.1:0"), bound("127.0.0.1:0"));
        client.connect(server.local_addr().expect("bound")).expect("connected");
        let sizes = [9, 9, 9, 9, 8, 9, 0, 7, 7, 7, 7, 7, 2000, 2000, 2000, 2000];
        for (n, size) in sizes.iter().enumerate() {
            client.send(&vec![n as u8; *size]).expect("sent");
        }
        let mut batch = Batch::new();
        assert_eq!(batch.receive(&server, MOST), Ok(sizes.len()));
        let from = batch.sender(0).expect("a sender");
        batch.direct(0..sizes.len(), Some(&from));
        let alike = |at: usize| batch.alike(at..sizes.len());
        assert_eq!([alike(0), alike(4), alike(5), alike(6), alike(7), alike(12)], [5, 1, 1, 0, 5, 4]);
        assert_eq!(batch.send(&server, 0..sizes.len()), Ok(5));
        assert_eq!(batch.send(&server, 5..7), Ok(2));
        assert_eq!(batch.send(&server, 7..sizes.len()), Ok(5));
        assert_eq!(batch.send(&server, 12..sizes.len()), Ok(4));
        for (n, size) in sizes.iter().enumerate() {
            assert_eq!(got(&client), vec![n as u8; *size]);
        }
        // Those for others do not join them.
        let other = bound("127.0.0.1:0");
        let to = Destination { addr: other.local_addr().expect("bound").into(), local: None };
        batch.direct(2..3, Some(&to));
        assert_eq!((batch.alike(0..4), batch.send(&server, 0..4)), (2, Ok(4)));
        assert_eq!((got(&client), got(&client), got(&client)), (vec![0; 9], vec![1; 9], vec![3; 9]));
        assert_eq!(got(&other), vec![2; 9]);
    }

    /// Unix sockets pass every datagram by itself, since nothing would split a joined one.
    #[test]
    fn datagrams_of_unix_sockets() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram};
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = dir.path().join("server");
        let server = UnixDatagram::bind(&at).expect("bind");
        let abstract_name = SocketAddr::from_abstract_name(at.as_os_str().as_encoded_bytes()).expect("name");
        let clients = [
            UnixDatagram::bind(dir.path().join("client")).expect("bind"),
            UnixDatagram::bind_addr(&abstract_name).expect("bind"),
            UnixDatagram::unbound().expect("socket"),
        ];
        let mut batch = Batch::new();
        for client in &clients {
            (0..3).for_each(|n| assert_eq!(client.send_to(&[n; 9], &at).expect("sent"), 9));
            client.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        }
        assert_eq!(batch.receive(&server, MOST), Ok(9));
        assert_eq!((batch.run(0), batch.run(3), batch.run(6)), (3, 6, 9));
        let senders = [0, 3, 6].map(|n| batch.sender(n).expect("a sender"));
        let paths = senders.each_ref().map(|from| from.unix().expect("a unix socket").path());
        assert_eq!(paths, [dir.path().join("client").as_os_str().as_encoded_bytes(), b"", b""]);
        assert_eq!(senders.each_ref().map(Destination::is_nameless), [false, false, true]);
        assert_ne!(senders[1], senders[2]);
        for (n, client) in clients.iter().enumerate().take(2) {
            let range = 3 * n..3 * n + 3;
            batch.direct(range.clone(), Some(&senders[n]));
            assert_eq!(batch.send(&server, range), Ok(3));
            let mut buf = [0; 99];
            for byte in 0..3 {
                assert_eq!(client.recv(&mut buf).expect("a datagram"), 9);
                assert_eq!(buf[..9], [byte; 9]);
            }
        }
        assert!(send(&server, b"x", Some(&senders[2])).is_err());
        batch.truncate(2);
        assert_eq!((batch.len(), batch.sender(2)), (2, None));
    }
}
