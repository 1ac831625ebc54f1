//! Alternative services of upstreams (RFC 7838), for `proxy_http3_alt_svc`: a server that is asked over TCP says by `Alt-Svc` at which
//! port of the same address it takes HTTP/3.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Largest number of servers that are remembered. Further servers are asked over TCP.
const REMEMBERED: usize = 1000;
/// Time for which an alternative without `ma` is fresh, and the longest for which one is used (RFC 7838, section 3.1).
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A server as requests reach it over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub(crate) addr: SocketAddr,
    /// See [`forebay_core::upstream::conn::Conn::made_for`]. Several names of servers at one address are several origins.
    pub made_for: u64,
}

impl Origin {
    /// Returns `true` if an alternative at this port may be followed. `verified`: the server's certificates are verified.
    ///
    /// Without verified certificates, whoever may write fields of responses and bind another port of the server's machine
    /// would get all requests (RFC 7838, section 9.1). Ports below 1024 are reserved for the administrator of a machine,
    /// so a server on a higher port must not redirect to them.
    pub fn may_move_to(&self, port: u16, verified: bool) -> bool {
        let own = self.addr.port();
        port == own || verified && (port >= 1024 || own < 1024)
    }
}

/// Ports at which servers take HTTP/3, as a thread has learned them.
#[derive(Debug, Default)]
pub struct Alternatives(RefCell<HashMap<Origin, Alternative>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alternative {
    port: u16,
    until: Instant,
}

impl Alternatives {
    /// Returns the address at which a server takes HTTP/3, if it has said so.
    pub fn of(&self, origin: Origin, now: Instant) -> Option<SocketAddr> {
        let known = self.0.borrow().get(&origin).copied().filter(|known| known.until > now)?;
        Some(SocketAddr::new(origin.addr.ip(), known.port))
    }

    /// Takes over what the `Alt-Svc` fields of a response say, in place of all that was said before (RFC 7838, section 3). `age`: time
    /// that the response has spent in caches. Returns the alternative if that is news.
    pub fn learn(
        &self,
        origin: Origin,
        fields: &Said,
        age: Duration,
        now: Instant,
    ) -> Option<(u16, Duration)> {
        let mut known = self.0.borrow_mut();
        let fresh = fields.0.map(|(port, time)| (port, time.saturating_sub(age)));
        let Some((port, time)) = fresh.filter(|(_, time)| !time.is_zero()) else {
            known.remove(&origin);
            return None;
        };
        if known.len() >= REMEMBERED && !known.contains_key(&origin) {
            // Expired entries make room first. What does not fit is not learned, as the table must not grow without end.
            known.retain(|_, other| other.until > now);
            if known.len() >= REMEMBERED {
                return None;
            }
        }
        let before = known.insert(origin, Alternative { port, until: now + time });
        let is_news = before.is_none_or(|before| before.port != port || before.until <= now);
        is_news.then_some((port, time))
    }

    /// Forgets the alternative of a server.
    pub fn forget(&self, origin: Origin) {
        self.0.borrow_mut().remove(&origin);
    }
}

/// Port for HTTP/3, and the time for which that is fresh, that the fields of a response name; `None`: there is none that may be followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said(Option<(u16, Duration)>);

impl Said {
    /// Adds a field line. `accept` decides whether a port may be followed. The first alternative counts that may be.
    pub fn add(&mut self, value: &[u8], accept: impl Fn(u16) -> bool) {
        for entry in split(value, b',') {
            if let Some((port, time)) = alternative(entry).filter(|(port, _)| accept(*port)) {
                self.0.get_or_insert((port, time));
            }
        }
    }
}

/// Returns port and time of an alternative for HTTP/3 at the server's own address; `None` for any other, `clear`, and what is malformed.
fn alternative(entry: &[u8]) -> Option<(u16, Duration)> {
    let mut parts = split(entry, b';');
    let (protocol, authority) = pair(parts.next()?)?;
    // An alternative on another host would need a name lookup and other certificates, so only ports of the same address
    // are followed.
    let port = authority.strip_prefix(b"\"")?.strip_suffix(b"\"")?.strip_prefix(b":")?;
    if protocol != b"h3" || port.len() > 5 {
        return None;
    }
    let port = u16::try_from(number(port)?).ok().filter(|port| *port > 0)?;
    let mut time = DAY;
    for (name, value) in parts.filter_map(pair) {
        if name.eq_ignore_ascii_case(b"ma") {
            let value = value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value);
            time = Duration::from_secs(number(value)?).min(DAY);
        }
    }
    Some((port, time))
}

/// Parses digits. Numbers beyond 64 bits are the largest.
fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| text.iter().fold(0u64, |n, d| n.saturating_mul(10).saturating_add(u64::from(d - b'0'))))
}

/// Splits `name=value`.
fn pair(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(b'=', part)?;
    let (name, value) = part.split_at_checked(at)?;
    Some((name.trim_ascii(), value.get(1..)?.trim_ascii()))
}

/// Splits a value at a byte that is not within quotes. Parts have no spaces around them.
fn split(value: &[u8], at: u8) -> impl Iterator<Item = &[u8]> {
    // A comma or semicolon in a quoted authority does not end an entry (RFC 9110, section 5.6.4).
    let (mut quoted, mut escaped) = (false, false);
    let parts = value.split(move |byte| {
        let is_escaped = std::mem::take(&mut escaped);
        match byte {
            b'"' if !is_escaped => quoted = !quoted,
            b'\\' if quoted && !is_escaped => escaped = true,
            _ => {}
        }
        *byte == at && !quoted
    });
    parts.map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lines: &[&str]) -> Option<(u16, u64)> {
        let mut said = Said::default();
        lines.iter().for_each(|line| said.add(line.as_bytes(), |port| port != 666));
        said.0.map(|(port, time)| (port, time.as_secs()))
    }

    #[test]
    fn fields_of_servers() {
        for (line, port) in [
            ("h3=\":443\"", Some((443, 86400))),
            ("h3=\":443\"; ma=60", Some((443, 60))),
            ("h2=\":444\", h3-29=\":445\";ma=5 , h3=\":446\" ;persist=1; MA=\"7\"", Some((446, 7))),
            ("h3=\":1\", h3=\":2\"", Some((1, 86400))),
            ("h3=\":666\"; ma=1, h3=\":2\"; ma=3", Some((2, 3))),
            ("h3=\":443\"; ma=99999999999999999999999999", Some((443, 86400))),
            ("h3=\":443\"; ma=0", Some((443, 0))),
            ("h2=\"a,h3=:1;\\\"\", h3=\":9\"", Some((9, 86400))),
            ("clear", None),
            ("", None),
            ("h3", None),
            ("h3=:443", None),
            ("h3=\":443", None),
            ("h3=\"443\"", None),
            ("h3=\"example.org:443\"", None),
            ("h3=\":0\"", None),
            ("h3=\":65536\"", None),
            ("h3=\":000443\"", None),
            ("h3=\":+443\"", None),
            ("h3=\":443\"; ma=-1", None),
            ("h3=\":443\"; ma=", None),
            ("H3=\":443\"", None),
        ] {
            assert_eq!(said(&[line]), port, "{line}");
        }
        assert_eq!(said(&["h2=\":1\"", "h3=\":2\"", "h3=\":3\""]), Some((2, 86400)));
    }

    #[test]
    fn ports_that_may_be_followed() {
        let origin = |port| Origin { addr: SocketAddr::from(([127, 0, 0, 1], port)), made_for: 1 };
        for (own, port, verified, may) in [
            (443, 443, false, true),
            (443, 8443, false, false),
            (443, 8443, true, true),
            (443, 80, true, true),
            (8443, 8443, false, true),
            (8443, 9443, true, true),
            (8443, 443, true, false),
        ] {
            assert_eq!(origin(own).may_move_to(port, verified), may, "{own} {port} {verified}");
        }
    }

    #[test]
    fn alternatives_end_and_are_replaced() {
        let (known, begin) = (Alternatives::default(), Instant::now());
        let origin = |n: u64| Origin { addr: SocketAddr::from(([127, 0, 0, 1], 443)), made_for: n };
        let after = |secs| begin + Duration::from_secs(secs);
        let learn = |n, text: &str, age| {
            let mut said = Said::default();
            said.add(text.as_bytes(), |_| true);
            known.learn(origin(n), &said, Duration::from_secs(age), begin).map(|(port, _)| port)
        };
        assert_eq!(learn(1, "h3=\":444\"; ma=60", 20), Some(444));
        assert_eq!(learn(1, "h3=\":444\"; ma=60", 20), None, "no news");
        let at = |n, secs| known.of(origin(n), after(secs)).map(|addr| addr.port());
        assert_eq!((at(1, 39), at(1, 40), at(2, 0)), (Some(444), None, None));
        assert_eq!(learn(1, "h3=\":445\"", 0), Some(445));
        assert_eq!((at(1, 86399), at(1, 86400)), (Some(445), None));
        for text in ["clear", "h2=\":1\"", "h3=\":445\"; ma=0", "h3=\":445\"; ma=9"] {
            learn(1, "h3=\":445\"", 0);
            learn(1, text, 9);
            assert_eq!(at(1, 0), None, "{text}");
        }
        learn(1, "h3=\":445\"", 0);
        known.forget(origin(1));
        assert_eq!(at(1, 0), None);
        // The table has an end. What is over makes room.
        let learned = (0..2000).filter(|n| learn(*n, "h3=\":1\"", 0).is_some());
        assert_eq!(learned.count(), REMEMBERED);
        assert_eq!((known.0.borrow().len(), at(999, 0), at(1000, 0)), (REMEMBERED, Some(1), None));
        learn(999, "h3=\":2\"", 0);
        assert_eq!(at(999, 0), Some(2));
        let mut said = Said::default();
        said.add(b"h3=\":3\"", |_| true);
        known.learn(origin(3000), &said, Duration::ZERO, after(86401));
        assert_eq!(known.0.borrow().len(), 1);
    }
}
