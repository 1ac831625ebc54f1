//! `listen` (nginx: ngx_http_core_module).

use super::scope::Scope;
use super::{KeepaliveProbes, ListenAddr, SocketOptions};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Span};
use forebay_conf::units;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What connections to an address speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressOptions {
    /// `proxy_protocol`.
    pub proxy_protocol: bool,
    /// `ssl`.
    pub ssl: bool,
    /// `http2`.
    pub http2: bool,
}

impl AddressOptions {
    /// Options of all listen directives of one address add up.
    pub fn merge(&mut self, other: &AddressOptions) {
        self.proxy_protocol |= other.proxy_protocol;
        self.ssl |= other.ssl;
        self.http2 |= other.http2;
    }
}

/// One `listen` directive.
#[derive(Clone, Debug)]
pub struct ListenDirective {
    /// Addresses: a name may resolve to several, a port range makes one a port.
    pub addrs: Vec<ListenAddr>,
    /// Socket options.
    pub options: SocketOptions,
    /// An option of the socket was given, so that another directive may not give any.
    pub set: bool,
    /// `default_server`.
    pub default_server: bool,
    /// A socket of its own was asked for.
    pub bind: bool,
    /// What is spoken.
    pub address_options: AddressOptions,
    at: Option<(Span, Span, u32)>,
}

impl ListenDirective {
    /// `listen *:80`, or `*:8000` for those who may not bind that.
    pub fn default_port() -> ListenDirective {
        let port = if rustix::process::geteuid().is_root() { 80 } else { 8000 };
        ListenDirective {
            addrs: vec![ListenAddr::Inet(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))],
            options: SocketOptions::default(),
            set: false,
            default_server: false,
            bind: false,
            address_options: AddressOptions::default(),
            at: None,
        }
    }

    /// An address as nginx prints it.
    pub fn text(&self, addr: &ListenAddr) -> String {
        addr.to_string()
    }

    /// An error at this directive.
    pub fn error(&self, message: String) -> Error {
        Error {
            level: Level::Emerg,
            message,
            span: self.at.map(|a| a.0),
            at: self.at.map(|a| a.1),
            hint: None,
            ordinal: self.at.map_or(u32::MAX, |a| a.2),
        }
    }
}

impl std::fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ListenAddr::Inet(a) => write!(f, "{a}"),
            ListenAddr::Unix(p) => write!(f, "unix:{}", p.display()),
        }
    }
}

/// Reads one directive.
///
/// # Errors
/// In nginx's words.
pub fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<ListenDirective, Error> {
    let word = super::value::first(d);
    let addrs = addresses(word).map_err(|m| {
        cx.error(d, format!("{m} in \"{}\" of the \"listen\" directive", String::from_utf8_lossy(word)))
    })?;
    let mut l = ListenDirective {
        addrs,
        at: Some((d.name.span, d.end, d.ordinal)),
        ..ListenDirective::default_port()
    };
    for w in d.args.iter().skip(1) {
        let t = w.text.as_slice();
        let invalid = |cx: &Scope<'_>, what: &str| cx.error_at(d, w, what.to_string());
        let mut sets_socket = true;
        if t == b"default_server" || t == b"default" {
            l.default_server = true;
            sets_socket = false;
        } else if t == b"bind" {
            l.bind = true;
        } else if let Some(v) = t.strip_prefix(b"backlog=") {
            let n = units::number(v).filter(|n| *n > 0 && *n <= i32::MAX as u64);
            l.options.backlog =
                Some(n.ok_or_else(|| invalid(cx, &format!("invalid backlog \"{}\"", w.as_str())))? as i32);
        } else if let Some(v) = t.strip_prefix(b"rcvbuf=") {
            l.options.rcvbuf = Some(
                units::size(v).ok_or_else(|| invalid(cx, &format!("invalid rcvbuf \"{}\"", w.as_str())))?
                    as usize,
            );
        } else if let Some(v) = t.strip_prefix(b"sndbuf=") {
            l.options.sndbuf = Some(
                units::size(v).ok_or_else(|| invalid(cx, &format!("invalid sndbuf \"{}\"", w.as_str())))?
                    as usize,
            );
        } else if let Some(v) = t.strip_prefix(b"fastopen=") {
            let n = units::number(v).filter(|n| *n <= i32::MAX as u64);
            l.options.fastopen =
                Some(n.ok_or_else(|| invalid(cx, &format!("invalid fastopen \"{}\"", w.as_str())))? as i32);
        } else if t == b"deferred" || t == b"deferred=on" || t == b"deferred=off" {
            l.options.deferred = Some(t != b"deferred=off");
        } else if t == b"reuseport" {
            l.options.reuseport = true;
        } else if t == b"multipath" {
            l.options.multipath = true;
        } else if t == b"ipv6only=on" || t == b"ipv6only=off" {
            // As in nginx it says nothing of other addresses.
            if l.addrs.iter().any(|a| matches!(a, ListenAddr::Inet(SocketAddr::V6(_)))) {
                l.options.ipv6only = Some(t == b"ipv6only=on");
            }
        } else if let Some(v) = t.strip_prefix(b"so_keepalive=") {
            l.options.so_keepalive = Some(keepalive(v).ok_or_else(|| {
                invalid(cx, &format!("invalid so_keepalive value: \"{}\"", String::from_utf8_lossy(v)))
            })?);
        } else if t.starts_with(b"setfib=") || t.starts_with(b"accept_filter=") {
            let what = String::from_utf8_lossy(t.split(|b| *b == b'=').next().unwrap_or(t)).into_owned();
            return Err(invalid(cx, &format!("\"{what}\" is not supported on this platform, ignored")));
        } else if t == b"proxy_protocol" {
            l.address_options.proxy_protocol = true;
            sets_socket = false;
        } else if t == b"ssl" {
            l.address_options.ssl = true;
            sets_socket = false;
        } else if t == b"quic" {
            return Err(invalid(
                cx,
                &format!("the \"{}\" parameter of \"listen\" is not supported yet", w.as_str()),
            ));
        } else if t == b"http2" {
            cx.warn(
                d,
                "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead",
            );
            l.address_options.http2 = true;
            sets_socket = false;
        } else {
            return Err(invalid(cx, &format!("invalid parameter \"{}\"", w.as_str())));
        }
        if sets_socket {
            l.set = true;
            l.bind = true;
        }
    }
    Ok(l)
}

fn keepalive(v: &[u8]) -> Option<KeepaliveProbes> {
    match v {
        b"on" => return Some(KeepaliveProbes { on: true, ..Default::default() }),
        b"off" => return Some(KeepaliveProbes::default()),
        _ => {}
    }
    let mut parts = v.split(|b| *b == b':');
    let seconds = |parts: &mut dyn Iterator<Item = &[u8]>| match parts.next() {
        None | Some(b"") => Some(None),
        Some(p) => units::time_secs(p).filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok()).map(Some),
    };
    let idle = seconds(&mut parts)?;
    let interval = seconds(&mut parts)?;
    let count = match parts.next() {
        None | Some(b"") => None,
        Some(p) => Some(units::number(p).filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok())?),
    };
    let any = idle.is_some() || interval.is_some() || count.is_some();
    (any && parts.next().is_none()).then_some(KeepaliveProbes { on: true, idle, interval, count })
}

/// Addresses of `unix:PATH`, `PORT`, `HOST`, `HOST:PORT`, with port ranges.
fn addresses(word: &[u8]) -> Result<Vec<ListenAddr>, &'static str> {
    if let Some(path) = word.strip_prefix(b"unix:") {
        if path.is_empty() {
            return Err("no path in the unix domain socket");
        }
        return Ok(vec![ListenAddr::Unix(PathBuf::from(std::ffi::OsStr::from_bytes(path)))]);
    }
    let text = std::str::from_utf8(word).map_err(|_| "invalid host")?;
    let (host, ports) = split(text)?;
    let ips: Vec<IpAddr> = match host {
        None | Some("*") => vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
        Some(h) if h.starts_with('[') => {
            let inner = h.trim_start_matches('[').trim_end_matches(']');
            vec![IpAddr::V6(inner.parse::<Ipv6Addr>().map_err(|_| "invalid IPv6 address")?)]
        }
        Some(h) => match h.parse::<Ipv4Addr>() {
            Ok(ip) => vec![IpAddr::V4(ip)],
            Err(_) => {
                let found = (h, 0).to_socket_addrs().map_err(|_| "host not found")?;
                let mut ips: Vec<IpAddr> = found.map(|a| a.ip()).collect();
                ips.dedup();
                ips
            }
        },
    };
    let mut addrs = Vec::new();
    for port in ports.0..=ports.1 {
        addrs.extend(ips.iter().map(|ip| ListenAddr::Inet(SocketAddr::new(*ip, port))));
    }
    if addrs.is_empty() { Err("host not found") } else { Ok(addrs) }
}

fn split(text: &str) -> Result<(Option<&str>, (u16, u16)), &'static str> {
    let range = |p: &str| -> Result<(u16, u16), &'static str> {
        let one = |p: &str| p.parse::<u16>().ok().filter(|p| *p > 0).ok_or("invalid port");
        match p.split_once('-') {
            Some((a, b)) => {
                let (a, b) = (one(a)?, one(b)?);
                if a > b { Err("invalid port range") } else { Ok((a, b)) }
            }
            None => one(p).map(|p| (p, p)),
        }
    };
    if text.starts_with('[') {
        let end = text.find(']').ok_or("invalid host")?;
        let (host, rest) = text.split_at(end + 1);
        return match rest.strip_prefix(':') {
            Some(p) => Ok((Some(host), range(p)?)),
            None if rest.is_empty() => Ok((Some(host), (80, 80))),
            None => Err("invalid host"),
        };
    }
    match text.split_once(':') {
        Some((host, p)) if !host.is_empty() => Ok((Some(host), range(p)?)),
        Some(_) => Err("no host"),
        None if text.bytes().all(|b| b.is_ascii_digit() || b == b'-') && !text.is_empty() => {
            Ok((None, range(text)?))
        }
        None if text.is_empty() => Err("no host"),
        None => Ok((Some(text), (80, 80))),
    }
}
