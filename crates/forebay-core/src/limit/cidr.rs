//! Networks, and the client address behind trusted proxies (nginx: allow, geo, set_real_ip_from).

use forebay_net::addr::Peer;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A network, or all unix sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cidr {
    /// Address and number of leading bits that count (0 to 32).
    V4(u32, u8),
    /// Address and number of leading bits that count (0 to 128).
    V6(u128, u8),
    /// `unix:`.
    Unix,
}

/// Returns a mask of the leading `bits` of 32.
fn mask4(bits: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0)
}

/// Returns a mask of the leading `bits` of 128.
fn mask6(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0)
}

impl Cidr {
    /// Reads `ADDRESS` or `ADDRESS/BITS`; bits beyond the prefix are cleared. The flag tells whether there
    /// were any: nginx warns of them. `None` for anything else, and for 255.255.255.255, which nginx takes
    /// for the lack of an address.
    pub fn parse(text: &[u8]) -> Option<(Cidr, bool)> {
        let text = std::str::from_utf8(text).ok()?;
        let (addr, bits) = match text.split_once('/') {
            Some((a, b)) if !b.is_empty() && b.len() <= 3 && b.bytes().all(|c| c.is_ascii_digit()) => {
                (a, Some(b.parse().ok()?))
            }
            Some(_) => return None,
            None => (text, None),
        };
        Some(match addr.parse().ok()? {
            IpAddr::V4(Ipv4Addr::BROADCAST) => return None,
            IpAddr::V4(a) => {
                let bits = bits.unwrap_or(32);
                let kept = a.to_bits() & mask4(bits);
                ((bits <= 32).then_some(Cidr::V4(kept, bits))?, kept != a.to_bits())
            }
            IpAddr::V6(a) => {
                let bits = bits.unwrap_or(128);
                let kept = a.to_bits() & mask6(bits);
                ((bits <= 128).then_some(Cidr::V6(kept, bits))?, kept != a.to_bits())
            }
        })
    }

    /// Creates the network of one address.
    pub fn host(ip: IpAddr) -> Cidr {
        match ip {
            IpAddr::V4(a) => Cidr::V4(a.to_bits(), 32),
            IpAddr::V6(a) => Cidr::V6(a.to_bits(), 128),
        }
    }

    /// Returns `true` if the peer is in the network. An IPv4 address that came as IPv6 (`::ffff:a.b.c.d`) counts as IPv4.
    pub fn contains(&self, peer: Peer) -> bool {
        match (self, peer.ip().map(|ip| ip.to_canonical())) {
            (Cidr::Unix, None) => true,
            (Cidr::V4(net, bits), Some(IpAddr::V4(a))) => a.to_bits() & mask4(*bits) == *net,
            (Cidr::V6(net, bits), Some(IpAddr::V6(a))) => a.to_bits() & mask6(*bits) == *net,
            _ => false,
        }
    }
}

/// Returns `true` if a peer is in one of the networks.
pub fn any_contains(networks: &[Cidr], peer: Peer) -> bool {
    networks.iter().any(|n| n.contains(peer))
}

/// Reads an address as proxies write it: with or without a port, IPv6 in brackets or bare. Port 0 = none.
pub fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, 0));
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        return inner.parse::<Ipv6Addr>().ok().map(|ip| SocketAddr::new(IpAddr::V6(ip), 0));
    }
    text.parse::<SocketAddr>().ok().filter(|a| a.port() > 0)
}

/// Returns the client's address from a list to which each trusted proxy has appended one.
///
/// `lines` are the values of the field lines in order. Returns `None` if the peer is not trusted or its entry is no address.
/// With `recursive`, skips addresses that are trusted themselves as long as there is another one before them.
pub fn forwarded<'l>(
    peer: Peer,
    lines: impl DoubleEndedIterator<Item = &'l [u8]>,
    trusted: &[Cidr],
    recursive: bool,
) -> Option<SocketAddr> {
    let mut peer = peer;
    let mut found = None;
    let words = lines.rev().flat_map(|l| l.rsplit(|b| matches!(b, b' ' | b','))).filter(|w| !w.is_empty());
    for word in words {
        if !any_contains(trusted, peer) {
            break;
        }
        let Some(a) = address(word) else { break };
        found = Some(a);
        peer = Peer::Inet(a);
        if !recursive {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet(text: &str) -> Peer {
        Peer::Inet(SocketAddr::new(text.parse().expect("an address"), 1))
    }

    #[test]
    fn networks() {
        let net = |t: &str| Cidr::parse(t.as_bytes());
        assert_eq!(net("10.0.0.0/8"), Some((Cidr::V4(0x0a00_0000, 8), false)));
        assert_eq!(net("10.0.0.1/8"), Some((Cidr::V4(0x0a00_0000, 8), true)));
        assert_eq!(net("::1/0"), Some((Cidr::V6(0, 0), true)));
        assert_eq!(net("0.0.0.0/0"), Some((Cidr::V4(0, 0), false)));
        for bad in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0/8",
            "::/129",
            "a",
            "255.255.255.255",
            "::/999",
        ] {
            assert_eq!(net(bad), None, "{bad}");
        }
        let inside = |n: &str, p: &str| net(n).is_some_and(|(n, _)| n.contains(inet(p)));
        assert!(inside("10.0.0.0/8", "10.255.0.1"));
        assert!(!inside("10.0.0.0/8", "11.0.0.1"));
        assert!(inside("10.0.0.0/8", "::ffff:10.1.1.1"));
        assert!(inside("0.0.0.0/0", "1.2.3.4"));
        assert!(!inside("::/0", "1.2.3.4"));
        assert!(inside("::/0", "::1"));
        assert!(inside("2001:db8::/32", "2001:db8:1::1"));
        assert!(Cidr::Unix.contains(Peer::Unix));
        assert!(!Cidr::Unix.contains(inet("1.2.3.4")));
    }

    #[test]
    fn addresses() {
        let text = |t: &str| address(t.as_bytes()).map(|a| a.to_string());
        assert_eq!(text("1.2.3.4").as_deref(), Some("1.2.3.4:0"));
        assert_eq!(text("1.2.3.4:80").as_deref(), Some("1.2.3.4:80"));
        assert_eq!(text("[::1]:80").as_deref(), Some("[::1]:80"));
        assert_eq!(text("[::1]").as_deref(), Some("[::1]:0"));
        assert_eq!(text("::1").as_deref(), Some("[::1]:0"));
        for bad in ["", "1.2.3.4:0", "1.2.3.4:99999", "1.2.3.4:", "example.org", "[::1", "unix:"] {
            assert_eq!(text(bad), None, "{bad}");
        }
    }

    #[test]
    fn forwarded_addresses() {
        let trusted = [Cidr::V4(0x7f00_0001, 32), Cidr::V4(0xc000_0200, 24)];
        let run = |peer: &str, lines: &[&[u8]], recursive| {
            forwarded(inet(peer), lines.iter().copied(), &trusted, recursive).map(|a| a.ip().to_string())
        };
        assert_eq!(run("10.0.0.1", &[b"1.1.1.1"], false), None);
        assert_eq!(run("127.0.0.1", &[b"1.1.1.1"], false).as_deref(), Some("1.1.1.1"));
        assert_eq!(run("127.0.0.1", &[b"1.1.1.1, 192.0.2.1"], false).as_deref(), Some("192.0.2.1"));
        assert_eq!(run("127.0.0.1", &[b"1.1.1.1, 192.0.2.1"], true).as_deref(), Some("1.1.1.1"));
        assert_eq!(run("127.0.0.1", &[b"5.5.5.5,1.1.1.1", b"192.0.2.1 ,"], true).as_deref(), Some("1.1.1.1"));
        assert_eq!(run("127.0.0.1", &[b"192.0.2.7, 192.0.2.1"], true).as_deref(), Some("192.0.2.7"));
        assert_eq!(run("127.0.0.1", &[b"junk, 192.0.2.1"], true).as_deref(), Some("192.0.2.1"));
        assert_eq!(run("127.0.0.1", &[b"junk"], true), None);
        assert_eq!(run("127.0.0.1", &[b" , "], true), None);
    }
}
