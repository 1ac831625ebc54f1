//! Addresses as they are written in a configuration.

use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Host of an address.
#[derive(Debug, PartialEq, Eq)]
pub enum Host {
    /// All addresses of IPv4, or of IPv6 if `v6`.
    Any {
        /// The addresses are of IPv6.
        v6: bool,
    },
    /// One address.
    Ip(IpAddr),
    /// A name, which may have any address.
    Name(String),
}

/// Address of `listen`, `pass` or `server`.
#[derive(Debug, PartialEq, Eq)]
pub enum Address {
    /// Path of a unix socket.
    Unix(String),
    /// Host and ports: several where `listen` has a range.
    Inet(Host, RangeInclusive<u16>),
}

impl Address {
    /// Parses an address. `default_port`: the port of an address without one.
    pub fn parse(text: &str, default_port: Option<u16>) -> Option<Address> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Some(Address::Unix(path.to_owned()));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ if text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains('.') => ("*", Some(text)),
            _ => (text, None),
        };
        let (first, last) = match port {
            Some(port) => port.split_once('-').unwrap_or((port, port)),
            None => return Some(Address::Inet(Host::parse(host), default_port?..=default_port?)),
        };
        Some(Address::Inet(Host::parse(host), first.parse().ok()?..=last.parse().ok()?))
    }

    /// Returns the first port.
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Unix(_) => None,
            Address::Inet(_, ports) => Some(*ports.start()),
        }
    }

    /// Returns `true` if a listener at this address may take connections to another one.
    pub fn takes(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Unix(own), Address::Unix(path)) => own == path,
            (Address::Inet(host, ports), Address::Inet(wanted, port)) => {
                ports.contains(port.start()) && host.takes(wanted)
            }
            _ => false,
        }
    }
}

impl Host {
    fn parse(text: &str) -> Host {
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        match bare.parse::<IpAddr>() {
            _ if text == "*" => Host::Any { v6: false },
            Ok(ip) if ip.is_unspecified() => Host::Any { v6: ip.is_ipv6() },
            Ok(ip) => Host::Ip(ip),
            Err(_) => Host::Name(text.to_owned()),
        }
    }

    /// Returns `true` if this host includes `other`. Names may have any address.
    fn takes(&self, other: &Host) -> bool {
        match (self, other) {
            (Host::Name(_), _) | (_, Host::Name(_)) => true,
            (Host::Any { v6 }, Host::Ip(ip)) => *v6 == ip.is_ipv6(),
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_take_addresses() {
        let takes = |listen: &str, other: &str| {
            let parse = |text| Address::parse(text, None).expect("an address");
            parse(listen).takes(&parse(other))
        };
        for (listen, other) in [
            ("8000", "127.0.0.1:8000"),
            ("*:8000", "0.0.0.0:8000"),
            ("[::]:8000", "[::1]:8000"),
            ("127.0.0.1:9000-9010", "127.0.0.1:9010"),
            ("name:1", "10.0.0.1:1"),
            ("unix:/s", "unix:/s"),
        ] {
            assert!(takes(listen, other), "{listen} {other}");
        }
        for (listen, other) in [
            ("[::]:8000", "127.0.0.1:8000"),
            ("127.0.0.1:8000", "0.0.0.0:8000"),
            ("8000", "127.0.0.1:8001"),
            ("unix:/s", "unix:/t"),
            ("8000", "unix:/s"),
        ] {
            assert!(!takes(listen, other), "{listen} {other}");
        }
        assert_eq!(Address::parse("10.0.0.1", Some(80)).and_then(|a| a.port()), Some(80));
        assert!(Address::parse("10.0.0.1", None).is_none() && Address::parse("a:x", None).is_none());
    }
}
