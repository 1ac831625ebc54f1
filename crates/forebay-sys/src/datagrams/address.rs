//! Addresses of peers of datagrams, and their forms in system calls.

use nix::libc;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;

/// Address of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4 or IPv6.
    Inet(SocketAddr),
    /// Unix socket.
    Unix(UnixName),
}

/// Name of a unix socket as the kernel has it: a path with the byte 0 behind it, or an abstract name, which begins with the byte 0
/// (unix(7)). It is empty for a socket that is not bound, which cannot get answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnixName(Arc<[u8]>);

impl UnixName {
    /// Returns `true` for a socket without a name.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the path; empty for an abstract name or none.
    pub fn path(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Address {
        Address::Inet(addr)
    }
}

/// Place that a datagram goes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Address of the receiver.
    pub addr: Address,
    /// Local address that the datagram comes from; `None` leaves it to the socket.
    pub local: Option<IpAddr>,
}

impl Destination {
    /// Returns the name of a unix socket; `None` for IPv4 and IPv6.
    pub fn unix(&self) -> Option<&UnixName> {
        match &self.addr {
            Address::Inet(_) => None,
            Address::Unix(name) => Some(name),
        }
    }

    /// Returns `true` for a unix socket without a name, to which nothing can be sent.
    pub fn is_nameless(&self) -> bool {
        self.unix().is_some_and(UnixName::is_empty)
    }
}

/// Address in a system call.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Name {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    unix: libc::sockaddr_un,
}

/// Bytes in front of the name of a unix socket.
const UNIX_HEAD: usize = offset_of!(libc::sockaddr_un, sun_path);

impl Name {
    /// Writes an address. Returns its length.
    pub(super) fn write(&mut self, addr: &Address) -> libc::socklen_t {
        let length = match addr {
            Address::Inet(SocketAddr::V4(a)) => {
                self.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
                size_of::<libc::sockaddr_in>()
            }
            Address::Inet(SocketAddr::V6(a)) => {
                self.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
                size_of::<libc::sockaddr_in6>()
            }
            Address::Unix(name) => self.write_unix(&name.0),
        };
        length as libc::socklen_t
    }

    fn write_unix(&mut self, name: &[u8]) -> usize {
        let mut unix =
            libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
        for (place, byte) in unix.sun_path.iter_mut().zip(name) {
            *place = *byte as libc::c_char;
        }
        self.unix = unix;
        UNIX_HEAD + name.len().min(unix.sun_path.len())
    }

    /// Reads an address that the kernel has written, of this length. `None`: another family.
    pub(super) fn read(&self, length: usize) -> Option<Address> {
        if length < size_of::<libc::sa_family_t>() {
            return Some(Address::Unix(UnixName(Arc::default())));
        }
        // SAFETY: all variants are plain integers and start with the family, which tells which one the kernel has written. The
        // rest is initialised memory in any case.
        unsafe {
            match i32::from(self.family) {
                libc::AF_INET => {
                    let ip = Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes());
                    Some(Address::Inet(SocketAddrV4::new(ip, u16::from_be(self.v4.sin_port)).into()))
                }
                libc::AF_INET6 => {
                    let v6 = &self.v6;
                    let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
                    // Flow labels are not needed for answers.
                    Some(Address::Inet(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into()))
                }
                libc::AF_UNIX => {
                    let path = self.unix.sun_path.iter().take(length.saturating_sub(UNIX_HEAD));
                    Some(Address::Unix(UnixName(path.map(|byte| *byte as u8).collect())))
                }
                _ => None,
            }
        }
    }

    /// Returns the bytes that the kernel has written, of which there are this many.
    pub(super) fn bytes(&self, length: usize) -> &[u8] {
        // SAFETY: a `Name` is initialised memory of this size.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), length.min(size_of::<Name>())) }
    }
}
