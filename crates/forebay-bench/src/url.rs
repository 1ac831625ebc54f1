//! URLs of targets, and which of them may be loaded.

use crate::Error;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Address that connections go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// UDP.
    Udp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Returns the IP address and the port, which a unix socket does not have.
    pub(crate) fn socket_addr(&self) -> Option<&SocketAddr> {
        match self {
            Address::Tcp(addr) | Address::Udp(addr) => Some(addr),
            Address::Unix(_) => None,
        }
    }
}

/// Protocol of a target, as its URL names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP.
    Http,
    /// HTTP over TLS.
    Https,
    /// Bytes over TCP.
    Tcp,
    /// Bytes over TLS.
    Tls,
    /// Datagrams.
    Udp,
}

/// Names of schemes.
const SCHEMES: [(&str, Scheme); 5] = [
    ("http", Scheme::Http),
    ("https", Scheme::Https),
    ("tcp", Scheme::Tcp),
    ("tls", Scheme::Tls),
    ("udp", Scheme::Udp),
];

impl Scheme {
    /// Returns the name in a URL.
    pub(crate) fn name(self) -> &'static str {
        SCHEMES.iter().find(|(_, scheme)| *scheme == self).map_or("", |(name, _)| name)
    }

    /// Returns `true` if the connection is encrypted.
    pub(crate) fn is_encrypted(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Tls)
    }

    /// Returns `true` if messages are bytes of any protocol instead of HTTP.
    pub fn is_raw(self) -> bool {
        matches!(self, Scheme::Tcp | Scheme::Tls | Scheme::Udp)
    }

    /// Returns the port of a URL without one.
    fn default_port(self) -> Option<u16> {
        match self {
            Scheme::Http => Some(80),
            Scheme::Https => Some(443),
            Scheme::Tcp | Scheme::Tls | Scheme::Udp => None,
        }
    }
}

/// An absolute URL: `http://host[:port]/path?query`, `https://...`, `unix:/path/of/socket[:/path]`, or `tcp://host:port`,
/// `tls://...` and `udp://...`, which have no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Protocol.
    pub scheme: Scheme,
    /// Host without brackets; `localhost` for a unix socket.
    pub host: String,
    /// Port; 0 for a unix socket.
    pub port: u16,
    /// Path and query, never empty.
    pub path: String,
    /// The unix socket, if it is one.
    pub socket: Option<PathBuf>,
}

impl Url {
    /// Reads a URL. Without a scheme it is taken for `http://`.
    ///
    /// # Errors
    /// The text is no URL.
    pub fn parse(text: &str) -> Result<Url, Error> {
        Url::read(text).map_err(|why| Error::Usage(format!("URL \"{text}\": {why}")))
    }

    fn read(text: &str) -> Result<Url, String> {
        if text.is_empty() {
            return Err("is empty".into());
        }
        if text.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err("contains a blank or a control character".into());
        }
        if let Some(rest) = text.strip_prefix("unix:") {
            return Url::read_unix(rest);
        }
        let (scheme, rest) = split_scheme(text)?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        if authority.contains('@') {
            return Err("user names belong into -A or an Authorization field".into());
        }
        let (host, port) = host_and_port(authority)?;
        if host.is_empty() || host.contains(':') && !authority.starts_with('[') {
            return Err("has no host".into());
        }
        if scheme.is_raw() && path != "/" {
            return Err(format!("{} has no path", scheme.name()));
        }
        let port = match port {
            None | Some("") => scheme.default_port().ok_or("needs a port, such as :5432")?,
            Some(port) => {
                let port = port.parse().ok().filter(|p| *p > 0);
                port.ok_or("the port is not a number from 1 to 65535")?
            }
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Url { scheme, host: host.to_owned(), port, path, socket: None })
    }

    /// Reads the text behind `unix:`.
    fn read_unix(rest: &str) -> Result<Url, String> {
        let (socket, path) = rest.split_once(':').unwrap_or((rest, "/"));
        if socket.is_empty() || !path.starts_with('/') {
            return Err("expected unix:/path/of/socket:/path".into());
        }
        let (host, port, path) = ("localhost".to_owned(), 0, path.to_owned());
        Ok(Url { scheme: Scheme::Http, host, port, path, socket: Some(PathBuf::from(socket)) })
    }

    /// Returns the value of `Host` or `:authority`.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match self.port {
            0 => host,
            port if self.scheme.default_port() == Some(port) => host,
            port => format!("{host}:{port}"),
        }
    }

    /// Looks up the address of the URL. `datagrams`: it is one for UDP.
    ///
    /// # Errors
    /// The name has no address.
    pub fn resolve(&self, datagrams: bool) -> Result<Address, Error> {
        if let Some(socket) = &self.socket {
            return Ok(Address::Unix(socket.clone()));
        }
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let mut all: Vec<SocketAddr> = found.map_err(|e| Error::Resolve(self.host.clone(), e))?.collect();
        // Servers more often listen on IPv4 alone than on IPv6 alone.
        all.sort_by_key(SocketAddr::is_ipv6);
        let reachable =
            all.iter().find(|a| all.len() > 1 && a.ip().is_loopback() && !datagrams && accepts(a));
        let first = reachable.or(all.first()).copied();
        first.map(if datagrams { Address::Udp } else { Address::Tcp }).ok_or_else(|| {
            Error::Resolve(self.host.clone(), std::io::Error::other("the name has no address"))
        })
    }
}

/// Splits off the scheme.
fn split_scheme(text: &str) -> Result<(Scheme, &str), String> {
    let Some((word, rest)) = text.split_once("://") else { return Ok((Scheme::Http, text)) };
    let known = SCHEMES.iter().find(|(name, _)| word.eq_ignore_ascii_case(name));
    known.map(|(_, scheme)| (*scheme, rest)).ok_or_else(|| format!("unknown scheme \"{word}\""))
}

/// Splits `host:port` or `[address]:port`; the brackets are removed.
fn host_and_port(authority: &str) -> Result<(&str, Option<&str>), String> {
    let Some(v6) = authority.strip_prefix('[') else {
        return Ok(match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        });
    };
    let (host, after) = v6.split_once(']').ok_or("\"[\" is not closed")?;
    host.parse::<std::net::Ipv6Addr>().map_err(|_| "no IPv6 address between the brackets")?;
    // Anything but a port is refused as a bad one.
    Ok((host, if after.is_empty() { None } else { Some(after.strip_prefix(':').unwrap_or("x")) }))
}

fn accepts(addr: &SocketAddr) -> bool {
    std::net::TcpStream::connect_timeout(addr, std::time::Duration::from_millis(200)).is_ok()
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.socket {
            Some(socket) => write!(f, "unix:{}:{}", socket.display(), self.path),
            None if self.scheme.is_raw() => write!(f, "{}://{}", self.scheme.name(), self.authority()),
            None => write!(f, "{}://{}{}", self.scheme.name(), self.authority(), self.path),
        }
    }
}

/// Returns `true` if an address belongs to this machine or a private network, which may be loaded unasked.
pub fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local() || ip.is_unspecified(),
        IpAddr::V6(ip) => {
            ip.is_loopback() || ip.is_unspecified() || ip.is_unique_local() || ip.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (text, shown, host, port) in [
            ("http://a/", "http://a/", "a", 80),
            ("a", "http://a/", "a", 80),
            ("HTTPS://a:8443/x?y#z", "https://a:8443/x?y", "a", 8443),
            ("http://[::1]:81?q", "http://[::1]:81/?q", "::1", 81),
            ("https://a:443", "https://a/", "a", 443),
            ("unix:/run/x.sock", "unix:/run/x.sock:/", "localhost", 0),
            ("tcp://a:80", "tcp://a:80", "a", 80),
            ("TLS://[::1]:443/", "tls://[::1]:443", "::1", 443),
            ("udp://a:53", "udp://a:53", "a", 53),
            ("unix:/run/x.sock:/a?b", "unix:/run/x.sock:/a?b", "localhost", 0),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!((url.to_string().as_str(), url.host.as_str(), url.port), (shown, host, port));
        }
        for bad in [
            "",
            "ftp://a/",
            "http://",
            "http://a:0/",
            "http://a:x/",
            "http://[::1/",
            "http://[a]/",
            "http://a b/",
            "http://u@a/",
            "http://::1/",
            "unix::/",
            "http://[::1]x/",
            "tcp://a",
            "tcp://a:1/x",
            "udp://a:1?x",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn private_addresses() {
        for ip in [
            "127.0.0.1",
            "10.1.1.1",
            "192.168.0.1",
            "172.16.9.9",
            "169.254.1.1",
            "::1",
            "fd00::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(is_private(ip.parse().expect("address")), "{ip}");
        }
        for ip in ["8.8.8.8", "172.32.0.1", "2001:db8::1", "100.64.0.1"] {
            assert!(!is_private(ip.parse().expect("address")), "{ip}");
        }
    }
}
