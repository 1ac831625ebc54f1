//! Socket options that the safe crates lack.

use nix::libc;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Allows data in the SYN, with a queue of `length` (nginx: listen fastopen=).
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_fastopen(socket: impl AsFd, length: i32) -> io::Result<()> {
    set_tcp_option(socket, libc::TCP_FASTOPEN, length)
}

/// Wakes the listener when data has come, not on the connection alone (nginx: listen deferred). `seconds` is
/// how long the kernel waits for data, rounded by it to a number of retransmissions.
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_defer_accept(socket: impl AsFd, seconds: i32) -> io::Result<()> {
    set_tcp_option(socket, libc::TCP_DEFER_ACCEPT, seconds)
}

/// Makes bind(2) to port 0 leave the choice of the port to connect(2). The kernel then needs a port that is unused towards
/// one server instead of one that nothing uses, so that one local address serves as many connections for each server
/// (ip(7), IP_BIND_ADDRESS_NO_PORT).
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_bind_address_no_port(socket: impl AsFd) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Has a UDP socket report the local address and interface of each datagram (ip(7), IP_PKTINFO; ipv6(7), IPV6_RECVPKTINFO).
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_packet_info(socket: impl AsFd, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        // A socket that serves IPv4, too, reports its datagrams' addresses as mapped ones with this option.
        return set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1);
    }
    set_option(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
}

/// Has a UDP socket report the bits for explicit congestion notification of each datagram (ip(7), IP_RECVTOS; ipv6(7),
/// IPV6_RECVTCLASS).
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_ecn_info(socket: impl AsFd, ipv6: bool) -> io::Result<()> {
    match ipv6 {
        true => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
        false => set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
    }
}

/// Has a UDP socket mark its datagrams with these bits for explicit congestion notification (RFC 3168, section 5; ip(7), IP_TOS; ipv6(7),
/// IPV6_TCLASS). Datagrams that a socket for IPv6 sends to IPv4 are not marked.
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_ecn(socket: impl AsFd, ipv6: bool, ecn: u8) -> io::Result<()> {
    match ipv6 {
        true => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ecn.into()),
        false => set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, ecn.into()),
    }
}

/// Forbids to fragment the datagrams of a UDP socket, and ignores what the kernel believes of the path (ip(7), IP_PMTUDISC_PROBE):
/// QUIC finds the largest datagram itself (RFC 9000, section 14).
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_dont_fragment(socket: impl AsFd, ipv6: bool) -> io::Result<()> {
    match ipv6 {
        true => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
        false => set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
    }
}

/// Undoes [`set_ecn`] and [`set_dont_fragment`]. A socket for which the latter was not called stays as it is.
///
/// # Errors
/// Errors of getsockopt(2) and setsockopt(2).
pub fn reset_quic_options(socket: impl AsFd, ipv6: bool) -> io::Result<()> {
    let (level, option, probe, want) = match ipv6 {
        true => {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE, libc::IPV6_PMTUDISC_WANT)
        }
        false => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE, libc::IP_PMTUDISC_WANT),
    };
    if get_option(&socket, level, option)? != probe {
        return Ok(());
    }
    set_ecn(&socket, ipv6, 0)?;
    set_option(socket, level, option, want)
}

/// Has a connected UDP socket return every ICMP error, not those alone that are about its port (ip(7), IP_RECVERR; ipv6(7),
/// IPV6_RECVERR).
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_icmp_errors(socket: impl AsFd, ipv6: bool) -> io::Result<()> {
    match ipv6 {
        true => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
        false => set_option(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1),
    }
}

/// Lets a socket use addresses that are not this machine's (ip(7), IP_TRANSPARENT).
///
/// # Errors
/// Errors of setsockopt(2); `PERM` without CAP_NET_RAW and CAP_NET_ADMIN.
pub fn set_transparent(socket: impl AsFd, ipv6: bool) -> Result<(), Errno> {
    let set = match ipv6 {
        true => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
        false => set_option(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
    };
    set.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))
}

/// Returns the number of datagrams that the kernel has dropped at a socket, because its receive buffer was full or they could not be
/// checked (SO_MEMINFO of linux/sock_diag.h). The count wraps.
///
/// # Errors
/// Errors of getsockopt(2).
pub fn dropped(socket: impl AsFd) -> io::Result<u32> {
    /// Place of SK_MEMINFO_DROPS, the last of SK_MEMINFO_VARS.
    const DROPS: usize = 8;
    let mut values = [0u32; DROPS + 1];
    let mut size = size_of_val(&values) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `fd` is open during the call. The kernel writes at most `size` bytes, which is the size of `values`, and any bytes
    // are integers.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, values.as_mut_ptr().cast(), &raw mut size)
    };
    match values.last() {
        Some(drops) if result == 0 && size as usize == size_of_val(&values) => Ok(*drops),
        _ if result == 0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_tcp_option(socket: impl AsFd, option: libc::c_int, value: i32) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, option, value)
}

fn get_option(socket: impl AsFd, level: libc::c_int, option: libc::c_int) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `fd` is open during the call; the kernel writes at most `size` bytes, which is the size of `value`.
    let result = unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut size) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn set_option(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: i32,
) -> io::Result<()> {
    let value: libc::c_int = value;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `fd` is open during the call; the pointer is to an int on the stack and `size` is its size.
    let result = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_information() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        set_packet_info(&socket, false).expect("IPv4");
        assert!(set_packet_info(&socket, true).is_err(), "not a socket of IPv6");
    }

    #[test]
    fn errors_of_a_port_that_nothing_serves() {
        let unused = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a port");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        set_icmp_errors(&socket, false).expect("IPv4");
        assert!(set_icmp_errors(&socket, true).is_err(), "not a socket of IPv6");
        socket.connect(unused).expect("connected");
        socket.send(b"x").expect("sent");
        let e = socket.recv(&mut [0; 1]).expect_err("refused");
        assert_eq!(e.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn options_of_quic_can_be_undone() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        let options = || {
            [libc::IP_TOS, libc::IP_MTU_DISCOVER]
                .map(|option| get_option(&socket, libc::IPPROTO_IP, option).expect("option"))
        };
        let new = options();
        set_ecn(&socket, false, 2).expect("option");
        set_dont_fragment(&socket, false).expect("option");
        assert_eq!(options(), [2, libc::IP_PMTUDISC_PROBE]);
        reset_quic_options(&socket, false).expect("options");
        assert_eq!(options(), [0, libc::IP_PMTUDISC_WANT]);
        // One that QUIC has not had.
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT).expect("option");
        reset_quic_options(&socket, false).expect("options");
        assert_eq!(options(), [new[0], libc::IP_PMTUDISC_DONT]);
    }

    #[test]
    fn datagrams_that_found_no_room() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4096).expect("a small buffer");
        assert_eq!(dropped(&socket).expect("a count"), 0);
        let to = socket.local_addr().expect("bound");
        for _ in 0..100 {
            let _ = socket.send_to(&[0; 1000], to);
        }
        let lost = dropped(&socket).expect("a count");
        assert!((50..100).contains(&lost), "{lost}");
    }

    #[test]
    fn options_of_a_listener() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        set_fastopen(&listener, 16).expect("fastopen");
        set_defer_accept(&listener, 1).expect("deferred");
        let pipe = std::io::pipe().expect("pipe").0;
        assert!(set_fastopen(&pipe, 1).is_err());
    }
}
