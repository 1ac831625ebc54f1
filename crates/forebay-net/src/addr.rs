//! Addresses of clients and servers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Address of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// TCP.
    Inet(SocketAddr),
    /// A unix socket; has no address.
    Unix,
}

impl Peer {
    /// Returns the IP address, if any.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Peer::Inet(a) => Some(a.ip()),
            Peer::Unix => None,
        }
    }
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerAddr {
    /// TCP.
    Inet(SocketAddr),
    /// `unix:PATH`.
    Unix(PathBuf),
}

/// Host and port of a server, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Name or address; `None`: no port was written.
    Host(Vec<u8>, Option<u16>),
    /// `unix:PATH`.
    Unix(Vec<u8>),
}

/// Splits a host from its port. Returns `None` if the brackets of an IPv6 address are wrong.
fn split_port(text: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    // Only in brackets can an address of IPv6 have a port, since it has colons of its own.
    if text.first() != Some(&b'[') {
        let at = memchr::memchr(b':', text);
        return Some(at.map_or((text, None), |at| (&text[..at], text.get(at + 1..))));
    }
    let (host, rest) = text.split_at(memchr::memchr(b']', text)? + 1);
    match rest {
        [] => Some((host, None)),
        [b':', port @ ..] => Some((host, Some(port))),
        _ => None,
    }
}

impl Place {
    /// Reads `host`, `host:port`, `[v6]:port` or `unix:path`.
    ///
    /// # Errors
    /// nginx's words: `no host`, `invalid port`, `invalid host`.
    pub fn parse(text: &[u8]) -> Result<Place, &'static str> {
        if let Some(path) = text.strip_prefix(b"unix:") {
            return match path {
                [] => Err("no path in the unix domain socket"),
                p => Ok(Place::Unix(p.to_vec())),
            };
        }
        let (host, port) = split_port(text).ok_or("invalid host")?;
        if host.is_empty() {
            return Err("no host");
        }
        let number = |p| port_number(p).filter(|n| *n > 0).ok_or("invalid port");
        Ok(Place::Host(host.to_ascii_lowercase(), port.map(number).transpose()?))
    }

    /// Returns the address, if it is one rather than a name.
    pub fn literal(&self, default_port: u16) -> Option<PeerAddr> {
        match self {
            Place::Unix(p) => Some(PeerAddr::Unix(PathBuf::from(std::ffi::OsStr::from_bytes(p)))),
            Place::Host(h, port) => {
                let port = port.unwrap_or(default_port);
                let text = std::str::from_utf8(h).ok()?;
                let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
                let ip = match inner {
                    Some(v6) => IpAddr::V6(v6.parse::<Ipv6Addr>().ok()?),
                    None => IpAddr::V4(text.parse::<Ipv4Addr>().ok()?),
                };
                Some(PeerAddr::Inet(SocketAddr::new(ip, port)))
            }
        }
    }

    /// Returns all addresses; names are looked up with the system's resolver, which blocks. Empty: not found.
    pub fn addresses(&self, default_port: u16) -> Vec<PeerAddr> {
        if let Some(a) = self.literal(default_port) {
            return vec![a];
        }
        let Place::Host(h, port) = self else { return Vec::new() };
        let Ok(name) = std::str::from_utf8(h) else { return Vec::new() };
        let found = look_up(name, port.unwrap_or(default_port));
        let mut all: Vec<PeerAddr> = Vec::new();
        for a in found.into_iter().flatten().map(PeerAddr::Inet) {
            // The system may list an address more than once.
            if !all.contains(&a) {
                all.push(a);
            }
        }
        all
    }

    /// Returns the name or address without the port.
    pub fn host(&self) -> Vec<u8> {
        match self {
            Place::Host(h, _) => h.clone(),
            Place::Unix(p) => [b"unix:", p.as_slice()].concat(),
        }
    }

    /// Returns the port that was written.
    pub fn port(&self) -> Option<u16> {
        match self {
            Place::Host(_, port) => *port,
            Place::Unix(_) => None,
        }
    }
}

/// Parses a port of decimal digits.
fn port_number(text: &[u8]) -> Option<u16> {
    let digits = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// Returns an address as in `$upstream_addr`.
pub fn address_text(a: &PeerAddr) -> Vec<u8> {
    match a {
        PeerAddr::Inet(a) => a.to_string().into_bytes(),
        PeerAddr::Unix(p) => [b"unix:", p.as_os_str().as_bytes()].concat(),
    }
}

/// Appends an address as text.
pub fn push_peer(peer: Peer, out: &mut Vec<u8>) {
    match peer.ip() {
        Some(IpAddr::V4(a)) => {
            let mut text = [0u8; 16];
            let mut len = 0;
            for o in a.octets() {
                let (digits, n) = OCTETS[usize::from(o)];
                // Copies always take four bytes, of which the next one overwrites what is too much; four of them end
                // at 16.
                text[len..len + 4].copy_from_slice(&digits);
                len += usize::from(n);
            }
            // Each piece ends in a dot; the last one is not wanted.
            out.extend_from_slice(&text[..len - 1]);
        }
        Some(IpAddr::V6(a)) => out.extend_from_slice(a.to_string().as_bytes()),
        None => out.extend_from_slice(b"unix:"),
    }
}

/// Decimal text of a byte with a dot after it, and its length.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut t = [([b'.'; 4], 0u8); 256];
    let mut i = 0;
    while i < 256 {
        let (h, d, u) = ((i / 100) as u8 + b'0', (i / 10 % 10) as u8 + b'0', (i % 10) as u8 + b'0');
        t[i] = if i >= 100 {
            ([h, d, u, b'.'], 4)
        } else if i >= 10 {
            ([d, u, b'.', b'.'], 3)
        } else {
            ([u, b'.', b'.', b'.'], 2)
        };
        i += 1;
    }
    t
};

thread_local! {
    static LOOKUPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    static OFFLINE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Asks the system for the addresses of a name, while a configuration is read. Within [`offline`] each name has one address, that of
/// this machine, and nobody is asked.
///
/// # Errors
/// The name is not found.
pub fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if OFFLINE.get() {
        return Ok(vec![(Ipv4Addr::LOCALHOST, port).into()]);
    }
    LOOKUPS.set(LOOKUPS.get() + 1);
    Ok((host, port).to_socket_addrs()?.collect())
}

/// Reads a configuration for its errors alone, in this thread: a name server that does not answer must not hold it up.
pub fn offline<T>(read: impl FnOnce() -> T) -> T {
    let before = OFFLINE.replace(true);
    let result = read();
    OFFLINE.set(before);
    result
}

/// Returns how often this thread has asked the system for addresses: what depends on them may change though the configuration does
/// not.
pub fn lookups() -> u64 {
    LOOKUPS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_asked_offline() {
        let before = lookups();
        let found = offline(|| look_up("no.such.host.invalid", 7)).expect("an address");
        assert_eq!((found, lookups()), (vec![(Ipv4Addr::LOCALHOST, 7).into()], before));
    }

    #[test]
    fn places() {
        let host = |h: &[u8], p| Ok(Place::Host(h.to_vec(), p));
        assert_eq!(Place::parse(b"Example.com"), host(b"example.com", None));
        assert_eq!(Place::parse(b"127.0.0.1:8080"), host(b"127.0.0.1", Some(8080)));
        assert_eq!(Place::parse(b"[::1]:80"), host(b"[::1]", Some(80)));
        assert_eq!(Place::parse(b"unix:/a.sock"), Ok(Place::Unix(b"/a.sock".to_vec())));
        for bad in [&b":80"[..], b"", b"a:0", b"a:65536", b"a:x", b"[::1", b"[::1]x", b"unix:"] {
            assert!(Place::parse(bad).is_err(), "{}", bad.escape_ascii());
        }
        let v6 = Place::parse(b"[::1]:81").ok().and_then(|p| p.literal(80));
        assert_eq!(v6.map(|a| address_text(&a)), Some(b"[::1]:81".to_vec()));
    }
}
