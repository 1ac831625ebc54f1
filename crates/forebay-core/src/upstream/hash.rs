//! Maps keys to servers for `hash`, `hash ... consistent` and `ip_hash`. A key leads to the same server as in nginx, which
//! follows Cache::Memcached and, for `consistent`, Cache::Memcached::Fast (ketama points).

use super::peer::Peer;
use std::net::IpAddr;

/// Table of the CRC-32 of Ethernet and gzip.
static CRC: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let (mut c, mut k) = (i as u32, 0);
        while k < 8 {
            c = if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
            k += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
};

/// Returns the CRC-32 of the concatenated pieces.
pub(super) fn crc32(pieces: &[&[u8]]) -> u32 {
    !pieces.iter().flat_map(|p| p.iter()).fold(!0, |c, b| CRC[usize::from((c as u8) ^ b)] ^ (c >> 8))
}

/// Points of a server for each unit of weight.
const POINTS: i64 = 160;

/// Most points of all servers, approximately (a sum of weights of 12 500). Above it, all servers get fewer points. This limits
/// the memory that a `weight=` or a SRV record can ask for.
const MAX_POINTS: i64 = 2_000_000;

/// Points of all servers on the circle.
#[derive(Debug, Default)]
pub struct Ring {
    /// Hashes, and the number of the first peer of each point's server.
    points: Vec<(u32, u32)>,
}

impl Ring {
    /// Creates the points of the peers that are not backups.
    pub(super) fn new(peers: &[Peer]) -> Ring {
        let mut points = Vec::new();
        let asked = peers.iter().filter(|p| !p.backup).map(|p| p.weight * POINTS).sum::<i64>();
        let share = asked / MAX_POINTS + 1;
        for (i, p) in peers.iter().enumerate().filter(|(_, p)| !p.backup) {
            // Several addresses of one server share its points.
            let first = peers.iter().position(|q| !q.backup && q.server == p.server).unwrap_or(i);
            if first != i {
                continue;
            }
            let (host, port) = host_and_port(&p.server);
            let mut before = 0u32;
            for _ in 0..(p.weight * POINTS / share).max(1) {
                let point = crc32(&[host, b"\0", port, &before.to_le_bytes()]);
                points.push((point, first as u32));
                before = point;
            }
        }
        points.sort_by_key(|(point, _)| *point);
        // The sort is stable: of equal points that of the first server stays.
        points.dedup_by_key(|(point, _)| *point);
        Ring { points }
    }

    /// Returns the number of the first point that is not before a hash.
    pub(super) fn find(&self, hash: u32) -> usize {
        self.points.partition_point(|(p, _)| *p < hash)
    }

    /// Returns the first peer of the server at a point. Numbers start again after the last point.
    pub(super) fn server_at(&self, at: usize) -> Option<usize> {
        if self.points.is_empty() {
            return None;
        }
        self.points.get(at % self.points.len()).map(|(_, s)| *s as usize)
    }
}

/// Returns host and port as they enter the hash of a point.
fn host_and_port(server: &[u8]) -> (&[u8], &[u8]) {
    if server.get(..5).is_some_and(|p| p.eq_ignore_ascii_case(b"unix:")) {
        return (&server[5..], b"");
    }
    // The last colon; one inside the brackets of an address without a port does not count.
    match memchr::memrchr(b':', server) {
        Some(at) if !server[at..].contains(&b']') => (&server[..at], &server[at + 1..]),
        _ => (server, b""),
    }
}

/// Returns the next value for `hash`; `again`: number of servers that were found before and are not usable.
pub(super) fn memcached(key: &[u8], again: u32) -> u32 {
    let digits;
    let prefix: &[u8] = if again > 0 {
        digits = itoa::Buffer::new().format(again).to_owned();
        digits.as_bytes()
    } else {
        b""
    };
    (crc32(&[prefix, key]) >> 16) & 0x7fff
}

/// First value of `ip_hash`.
pub(super) const IP_START: u32 = 89;

/// Returns the next value of `ip_hash`, from the first three octets of an IPv4 address or all of an IPv6 address.
pub(super) fn ip(client: Option<IpAddr>, mut hash: u32) -> u32 {
    let mut step = |octets: &[u8]| {
        for o in octets {
            // Cannot overflow: the value is below 6271 before each step.
            hash = (hash * 113 + u32::from(*o)) % 6271;
        }
    };
    match client {
        Some(IpAddr::V4(a)) => step(&a.octets()[..3]),
        Some(IpAddr::V6(a)) => step(&a.octets()),
        None => step(&[0, 0, 0]),
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum() {
        assert_eq!(crc32(&[b"123456789"]), 0xcbf4_3926);
        assert_eq!(crc32(&[b"1234", b"56789"]), 0xcbf4_3926);
    }

    #[test]
    fn points_are_bounded() {
        let peers: Vec<Peer> = (1..=100)
            .map(|port| {
                let mut p = Peer::new(forebay_net::addr::PeerAddr::Inet(([127, 0, 0, 1], port).into()));
                p.weight = 65535;
                p
            })
            .collect();
        let ring = Ring::new(&peers);
        assert!((1_000_000..=2_000_000).contains(&ring.points.len()), "{}", ring.points.len());
        assert_eq!(Ring::new(&peers[..0]).server_at(3), None);
        let mut one = peers[..1].to_vec();
        one[0].weight = 1;
        assert!(Ring::new(&one).points.len() <= 160);
    }

    #[test]
    fn names_and_ports() {
        assert_eq!(host_and_port(b"a.b:80"), (&b"a.b"[..], &b"80"[..]));
        assert_eq!(host_and_port(b"a.b"), (&b"a.b"[..], &b""[..]));
        assert_eq!(host_and_port(b"[::1]"), (&b"[::1]"[..], &b""[..]));
        assert_eq!(host_and_port(b"[::1]:8"), (&b"[::1]"[..], &b"8"[..]));
        assert_eq!(host_and_port(b"unix:/a:b"), (&b"/a:b"[..], &b""[..]));
    }
}
