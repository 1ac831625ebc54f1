//! `upstream` blocks, and the groups that `proxy_pass` implies (nginx: ngx_http_upstream_module).

use super::{Group, Keepalive, Peer, PeerAddr};
use crate::config::scope::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Host and port of a server, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Name or address; `None`: no port was written.
    Host(Vec<u8>, Option<u16>),
    /// `unix:PATH`.
    Unix(Vec<u8>),
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
        let (host, port) = if text.first() == Some(&b'[') {
            let end = memchr::memchr(b']', text).ok_or("invalid host")?;
            let (host, rest) = text.split_at(end + 1);
            match rest {
                [] => (host, None),
                [b':', port @ ..] => (host, Some(port)),
                _ => return Err("invalid host"),
            }
        } else {
            match memchr::memchr(b':', text) {
                Some(at) => (&text[..at], text.get(at + 1..)),
                None => (text, None),
            }
        };
        if host.is_empty() {
            return Err("no host");
        }
        let port = match port {
            None => None,
            Some(p) => Some(
                units::number(p)
                    .and_then(|n| u16::try_from(n).ok())
                    .filter(|n| *n > 0)
                    .ok_or("invalid port")?,
            ),
        };
        Ok(Place::Host(host.to_ascii_lowercase(), port))
    }

    /// The address, if it is one rather than a name.
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

    /// All addresses; names are looked up with the system's resolver. Empty: not found.
    fn addresses(&self, default_port: u16) -> Vec<PeerAddr> {
        if let Some(a) = self.literal(default_port) {
            return vec![a];
        }
        let Place::Host(h, port) = self else { return Vec::new() };
        let Ok(name) = std::str::from_utf8(h) else { return Vec::new() };
        let found = (name, port.unwrap_or(default_port)).to_socket_addrs();
        let mut all: Vec<PeerAddr> = Vec::new();
        for a in found.into_iter().flatten().map(PeerAddr::Inet) {
            if !all.contains(&a) {
                all.push(a);
            }
        }
        all
    }

    /// Name or address without the port.
    pub fn host(&self) -> Vec<u8> {
        match self {
            Place::Host(h, _) => h.clone(),
            Place::Unix(p) => [b"unix:", p.as_slice()].concat(),
        }
    }
}

/// An address as in `$upstream_addr`.
pub fn address_text(a: &PeerAddr) -> Vec<u8> {
    match a {
        PeerAddr::Inet(a) => a.to_string().into_bytes(),
        PeerAddr::Unix(p) => [b"unix:", p.as_os_str().as_bytes()].concat(),
    }
}

/// A group that is being built.
#[derive(Debug)]
struct Entry {
    group: Group,
    place: Place,
    default_port: u16,
    /// An error at the directive that first named it, with an empty text.
    at: Error,
}

/// All groups of a configuration under construction.
#[derive(Debug, Default)]
pub struct Groups {
    entries: Vec<Entry>,
}

impl Groups {
    /// Number of the group of a place named by `proxy_pass`.
    pub fn reference(&mut self, place: &Place, default_port: u16, at: Error) -> usize {
        let name = place.host();
        let port = |p: &Place, default: u16| match p {
            Place::Host(_, port) => port.unwrap_or(default),
            Place::Unix(_) => 0,
        };
        let no_port = matches!(place, Place::Host(_, None));
        let known = self.entries.iter().position(|e| {
            e.group.name == name
                && if e.group.explicit {
                    no_port
                } else {
                    port(&e.place, e.default_port) == port(place, default_port)
                        && no_port == matches!(e.place, Place::Host(_, None))
                }
        });
        known.unwrap_or_else(|| {
            let group = Group::new(name, false, Vec::new(), Keepalive::new(0));
            self.entries.push(Entry { group, place: place.clone(), default_port, at });
            self.entries.len() - 1
        })
    }

    /// Ends the construction: names that no block defines are looked up.
    ///
    /// # Errors
    /// `host not found in upstream "x"`.
    pub fn finish(self, cx: &Scope<'_>) -> Result<Vec<Group>, Error> {
        let _ = cx;
        let mut done = Vec::new();
        let explicit: Vec<Vec<u8>> =
            self.entries.iter().filter(|e| e.group.explicit).map(|e| e.group.name.clone()).collect();
        for mut e in self.entries {
            if !e.group.explicit {
                let text = String::from_utf8_lossy(&e.group.name).into_owned();
                if let (Place::Host(_, Some(port)), true) = (&e.place, explicit.contains(&e.group.name)) {
                    let message = format!("upstream \"{text}\" may not have port {port}");
                    return Err(Error { message, ..e.at });
                }
                e.group.set_peers(e.place.addresses(e.default_port).into_iter().map(peer).collect());
                if e.group.peers.is_empty() {
                    let message = format!("host not found in upstream \"{text}\"");
                    return Err(Error { message, ..e.at });
                }
            }
            done.push(e.group);
        }
        Ok(done)
    }
}

fn peer(addr: PeerAddr) -> Peer {
    Peer {
        name: address_text(&addr),
        addr,
        weight: 1,
        max_fails: 1,
        fail_timeout: Duration::from_secs(10),
        max_conns: 0,
        backup: false,
        down: false,
    }
}

/// `upstream NAME { ... }`.
///
/// # Errors
/// In nginx's words.
pub fn block(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let name = crate::config::value::first(d).to_ascii_lowercase();
    let text = String::from_utf8_lossy(&name).into_owned();
    let mut keepalive = Keepalive::new(32);
    let mut peers = Vec::new();
    for inner in d.block.iter().flatten() {
        directive(inner, cx, &mut peers, &mut keepalive)?;
    }
    if peers.is_empty() {
        return Err(cx.error(d, "no servers are inside upstream"));
    }
    let at = cx.error(d, "");
    let no_port = |e: &Entry| matches!(e.place, Place::Host(_, None));
    let group = Group::new(name.clone(), true, peers, keepalive);
    match cx.upstreams.entries.iter_mut().find(|e| e.group.name == name && no_port(e)) {
        Some(e) if e.group.explicit => return Err(cx.error(d, format!("duplicate upstream \"{text}\""))),
        Some(e) => e.group = group,
        None => {
            let place = Place::Host(name, None);
            cx.upstreams.entries.push(Entry { group, place, default_port: 80, at });
        }
    }
    Ok(())
}

/// Directives of the block that [`directive`] takes.
#[cfg(test)]
pub const DIRECTIVES: &[&str] =
    &["server", "keepalive", "keepalive_requests", "keepalive_time", "keepalive_timeout"];

fn directive(
    d: &Directive,
    cx: &mut Scope<'_>,
    peers: &mut Vec<Peer>,
    keepalive: &mut Keepalive,
) -> Result<(), Error> {
    let first = crate::config::value::first(d);
    let bad = |cx: &Scope<'_>| cx.error(d, format!("invalid value in \"{}\" directive", d.name.as_str()));
    match d.name.text.as_slice() {
        b"server" => server(d, cx, peers)?,
        b"keepalive" => {
            keepalive.connections = units::number(first).ok_or_else(|| {
                cx.error(
                    d,
                    format!(
                        "invalid value \"{}\" in \"keepalive\" directive",
                        String::from_utf8_lossy(first)
                    ),
                )
            })? as usize;
            keepalive.local = d.args.get(1).is_some_and(|w| w.text == b"local");
        }
        b"keepalive_requests" => {
            keepalive.requests = units::number(first).ok_or_else(|| cx.error(d, "invalid number"))?;
        }
        b"keepalive_time" => keepalive.time = units::duration_ms(first).ok_or_else(|| bad(cx))?,
        b"keepalive_timeout" => keepalive.timeout = units::duration_ms(first).ok_or_else(|| bad(cx))?,
        _ => {}
    }
    Ok(())
}

fn unsupported(d: &Directive, w: &Word, name: &str, cx: &Scope<'_>) -> Error {
    cx.error_at(d, w, format!("the \"{name}\" parameter of \"server\" is not supported yet"))
}

fn server(d: &Directive, cx: &mut Scope<'_>, peers: &mut Vec<Peer>) -> Result<(), Error> {
    let Some((word, options)) = d.args.split_first() else { return Err(cx.error(d, "no host")) };
    let mut p = peer(PeerAddr::Unix(PathBuf::new()));
    let is_name = Place::parse(&word.text).is_ok_and(|place| place.literal(80).is_none());
    for w in options {
        let invalid = || cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()));
        let number = |t: &[u8]| units::number(t).and_then(|n| u32::try_from(n).ok());
        match w.text.as_slice() {
            b"backup" => p.backup = true,
            b"down" => p.down = true,
            t if t.starts_with(b"weight=") => {
                p.weight = number(&t[7..]).filter(|n| *n > 0).map(i64::from).ok_or_else(invalid)?;
            }
            t if t.starts_with(b"max_fails=") => p.max_fails = number(&t[10..]).ok_or_else(invalid)?,
            t if t.starts_with(b"max_conns=") => p.max_conns = number(&t[10..]).ok_or_else(invalid)?,
            t if t.starts_with(b"fail_timeout=") => {
                p.fail_timeout = units::duration_secs(&t[13..]).ok_or_else(invalid)?;
            }
            // Who is asked would differ without these.
            b"drain" => return Err(unsupported(d, w, "drain", cx)),
            b"resolve" if is_name => return Err(unsupported(d, w, "resolve", cx)),
            // An address stays what it is.
            b"resolve" => {}
            t if t.starts_with(b"route=") => return Err(unsupported(d, w, "route", cx)),
            t if t.starts_with(b"service=") => return Err(unsupported(d, w, "service", cx)),
            t if t.starts_with(b"slow_start=") => {
                cx.warn(d, "the \"slow_start\" parameter of \"server\" is not supported yet, ignored");
            }
            _ => return Err(invalid()),
        }
    }
    let text = word.as_str();
    let place =
        Place::parse(&word.text).map_err(|m| cx.error_at(d, word, format!("{m} in upstream \"{text}\"")))?;
    let addresses = place.addresses(80);
    if addresses.is_empty() {
        return Err(cx.error_at(d, word, format!("host not found in upstream \"{text}\"")));
    }
    for addr in addresses {
        peers.push(Peer { name: address_text(&addr), addr, ..p.clone() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_without_behaviour() {
        let error = |server: &str| crate::testing::error(&format!("upstream u {{ server {server}; }}"));
        let refused = |name| Some(format!("the \"{name}\" parameter of \"server\" is not supported yet"));
        assert_eq!(error("localhost resolve"), refused("resolve"));
        assert_eq!(error("127.0.0.1 drain"), refused("drain"));
        assert_eq!(error("127.0.0.1 route=a"), refused("route"));
        assert_eq!(error("127.0.0.1 service=http"), refused("service"));
        assert_eq!(error("127.0.0.1 resolve"), None);
        assert_eq!(
            crate::testing::warnings("upstream u { server 127.0.0.1 slow_start=1s; }"),
            ["the \"slow_start\" parameter of \"server\" is not supported yet, ignored"]
        );
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
