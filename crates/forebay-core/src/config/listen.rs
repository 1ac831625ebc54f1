//! `listen` (nginx: ngx_http_core_module).

use super::scope::Build;
use super::{KeepaliveProbes, ListenAddr, SocketOptions};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Span, Word};
use forebay_conf::units;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Protocols on the connections of an address.
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
    /// Adds the options of another directive for the same address.
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
    /// An option of the socket was given. Only one directive of an address may do so.
    pub set: bool,
    /// `default_server`.
    pub default_server: bool,
    /// The address gets a socket of its own (`bind`).
    pub bind: bool,
    /// Protocols.
    pub address_options: AddressOptions,
    at: Option<(Span, Span, u32)>,
}

impl ListenDirective {
    /// Creates the directive of a server without one: `listen *:80`, or `*:8000` for a user other than root.
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

    /// Creates an error at this directive.
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
pub fn parse(d: &Directive, cx: &mut Build<'_>) -> Result<ListenDirective, Error> {
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
        let subject = match l.flag(&w.text) {
            Some(subject) => subject,
            None => l.valued(&w.text).map_err(|what| cx.error_at(d, w, what.text(w)))?,
        };
        if subject == AppliesTo::Socket {
            l.set = true;
            l.bind = true;
        }
        if w.text == b"http2" {
            let text =
                "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead";
            cx.warn(d, text);
        }
    }
    Ok(l)
}

/// Subject of a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AppliesTo {
    /// The socket: only one directive of an address may have such a parameter.
    Socket,
    /// The server or the protocol.
    Address,
}

/// Fault of a parameter.
enum Fault {
    Unknown,
    /// The value of the parameter of this name.
    Value(&'static str),
    /// `so_keepalive` with this value.
    Keepalive(String),
    /// A parameter of other systems.
    Platform(&'static str),
    Later,
}

impl Fault {
    /// Returns the error in nginx's words.
    fn text(&self, w: &Word) -> String {
        let w = w.as_str();
        match self {
            Fault::Unknown => format!("invalid parameter \"{w}\""),
            Fault::Value(name) => format!("invalid {name} \"{w}\""),
            Fault::Keepalive(v) => format!("invalid so_keepalive value: \"{v}\""),
            Fault::Platform(name) => format!("\"{name}\" is not supported on this platform, ignored"),
            Fault::Later => format!("the \"{w}\" parameter of \"listen\" is not supported yet"),
        }
    }
}

impl ListenDirective {
    /// Takes a parameter without a value. `None`: it is not one.
    fn flag(&mut self, word: &[u8]) -> Option<AppliesTo> {
        match word {
            b"default_server" | b"default" => self.default_server = true,
            b"proxy_protocol" => self.address_options.proxy_protocol = true,
            b"ssl" => self.address_options.ssl = true,
            b"http2" => self.address_options.http2 = true,
            _ => return self.socket_flag(word),
        }
        Some(AppliesTo::Address)
    }

    fn socket_flag(&mut self, word: &[u8]) -> Option<AppliesTo> {
        let options = &mut self.options;
        match word {
            b"bind" => self.bind = true,
            b"deferred" | b"deferred=on" | b"deferred=off" => {
                options.deferred = Some(word != b"deferred=off")
            }
            b"reuseport" => options.reuseport = true,
            b"multipath" => options.multipath = true,
            b"ipv6only=on" | b"ipv6only=off" => {
                // As in nginx it says nothing of other addresses.
                let any = self.addrs.iter().any(|a| matches!(a, ListenAddr::Inet(SocketAddr::V6(_))));
                options.ipv6only = any.then_some(word == b"ipv6only=on").or(options.ipv6only);
            }
            _ => return None,
        }
        Some(AppliesTo::Socket)
    }

    /// Takes a parameter with a value.
    fn valued(&mut self, word: &[u8]) -> Result<AppliesTo, Fault> {
        if word == b"quic" {
            return Err(Fault::Later);
        }
        let equals = word.iter().position(|b| *b == b'=').ok_or(Fault::Unknown)?;
        let (name, value) = (&word[..equals], &word[equals + 1..]);
        let (_, set) = VALUED.iter().find(|(n, _)| n.as_bytes() == name).ok_or(Fault::Unknown)?;
        set(&mut self.options, value)?;
        Ok(AppliesTo::Socket)
    }
}

type SetOption = fn(&mut SocketOptions, &[u8]) -> Result<(), Fault>;

/// Options of the socket that have a value.
const VALUED: &[(&str, SetOption)] = &[
    ("backlog", |o, v| number(v, 1).map(|n| o.backlog = Some(n)).ok_or(Fault::Value("backlog"))),
    ("fastopen", |o, v| number(v, 0).map(|n| o.fastopen = Some(n)).ok_or(Fault::Value("fastopen"))),
    ("rcvbuf", |o, v| size(v).map(|n| o.rcvbuf = Some(n)).ok_or(Fault::Value("rcvbuf"))),
    ("sndbuf", |o, v| size(v).map(|n| o.sndbuf = Some(n)).ok_or(Fault::Value("sndbuf"))),
    ("so_keepalive", |o, v| {
        let fault = || Fault::Keepalive(String::from_utf8_lossy(v).into_owned());
        keepalive(v).map(|probes| o.so_keepalive = Some(probes)).ok_or_else(fault)
    }),
    ("setfib", |_, _| Err(Fault::Platform("setfib"))),
    ("accept_filter", |_, _| Err(Fault::Platform("accept_filter"))),
];

fn number(value: &[u8], least: u64) -> Option<i32> {
    units::number(value).filter(|n| *n >= least).and_then(|n| i32::try_from(n).ok())
}

fn size(value: &[u8]) -> Option<usize> {
    units::size(value).and_then(|n| usize::try_from(n).ok())
}

/// Reads `on`, `off` or `[IDLE]:[INTERVAL]:[COUNT]`, of which one must be given.
fn keepalive(v: &[u8]) -> Option<KeepaliveProbes> {
    if v == b"on" || v == b"off" {
        return Some(KeepaliveProbes { on: v == b"on", ..Default::default() });
    }
    let mut parts = v.split(|b| *b == b':').map(Some).chain([None; 3]);
    let mut part = |read: fn(&[u8]) -> Option<u64>| match parts.next()? {
        None | Some(b"") => Some(None),
        Some(p) => read(p).filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok()).map(Some),
    };
    let (idle, interval, count) = (part(units::time_secs)?, part(units::time_secs)?, part(units::number)?);
    let any = idle.is_some() || interval.is_some() || count.is_some();
    (any && parts.next().flatten().is_none()).then_some(KeepaliveProbes { on: true, idle, interval, count })
}

/// Returns the addresses of `unix:PATH`, `PORT`, `HOST` or `HOST:PORT`; a range of ports gives several.
fn addresses(word: &[u8]) -> Result<Vec<ListenAddr>, &'static str> {
    if let Some(path) = word.strip_prefix(b"unix:") {
        if path.is_empty() {
            return Err("no path in the unix domain socket");
        }
        return Ok(vec![ListenAddr::Unix(PathBuf::from(std::ffi::OsStr::from_bytes(path)))]);
    }
    let text = std::str::from_utf8(word).map_err(|_| "invalid host")?;
    let (host, ports) = split(text)?;
    let ips = addresses_of_host(host)?;
    let mut addrs = Vec::new();
    for port in ports {
        addrs.extend(ips.iter().map(|ip| ListenAddr::Inet(SocketAddr::new(*ip, port))));
    }
    if addrs.is_empty() { Err("host not found") } else { Ok(addrs) }
}

/// Returns the addresses of a literal or name; `None` and `*` stand for all.
fn addresses_of_host(host: Option<&str>) -> Result<Vec<IpAddr>, &'static str> {
    let Some(host) = host.filter(|h| *h != "*") else { return Ok(vec![Ipv4Addr::UNSPECIFIED.into()]) };
    if host.starts_with('[') {
        let inner = host.trim_start_matches('[').trim_end_matches(']');
        return inner.parse::<Ipv6Addr>().map(|ip| vec![ip.into()]).map_err(|_| "invalid IPv6 address");
    }
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Ok(vec![ip.into()]);
    }
    let found = (host, 0).to_socket_addrs().map_err(|_| "host not found")?;
    let mut ips: Vec<IpAddr> = found.map(|a| a.ip()).collect();
    ips.dedup();
    Ok(ips)
}

/// Port of an address that names none.
const DEFAULT_PORTS: RangeInclusive<u16> = 80..=80;

/// Divides an address into host and ports.
fn split(text: &str) -> Result<(Option<&str>, RangeInclusive<u16>), &'static str> {
    if text.is_empty() {
        return Err("no host");
    }
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        return Ok((None, port_range(text)?));
    }
    let end = if text.starts_with('[') { text.find(']').ok_or("invalid host")? + 1 } else { 0 };
    let colon = text.get(end..).and_then(|rest| rest.find(':')).map(|at| end + at);
    match colon {
        Some(0) => Err("no host"),
        Some(at) if end == 0 || at == end => Ok((Some(&text[..at]), port_range(&text[at + 1..])?)),
        None if end == 0 || end == text.len() => Ok((Some(text), DEFAULT_PORTS)),
        _ => Err("invalid host"),
    }
}

/// Reads `PORT` or `FIRST-LAST`.
fn port_range(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    let port = |p: &str| p.parse::<u16>().ok().filter(|p| *p > 0).ok_or("invalid port");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ports = port(first)?..=port(last)?;
    if ports.is_empty() { Err("invalid port range") } else { Ok(ports) }
}
