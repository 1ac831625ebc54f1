//! `listen` (nginx: ngx_http_core_module).

use super::scope::Build;
use super::{KeepaliveProbes, ListenAddr, SocketOptions};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Span, Word};
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
        if subject == Subject::Socket {
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
enum Subject {
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
    /// The error in nginx's words.
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
    fn flag(&mut self, word: &[u8]) -> Option<Subject> {
        match word {
            b"default_server" | b"default" => self.default_server = true,
            b"proxy_protocol" => self.address_options.proxy_protocol = true,
            b"ssl" => self.address_options.ssl = true,
            b"http2" => self.address_options.http2 = true,
            _ => return self.socket_flag(word),
        }
        Some(Subject::Address)
    }

    fn socket_flag(&mut self, word: &[u8]) -> Option<Subject> {
        match word {
            b"bind" => self.bind = true,
            b"deferred" | b"deferred=on" => self.options.deferred = Some(true),
            b"deferred=off" => self.options.deferred = Some(false),
            b"reuseport" => self.options.reuseport = true,
            b"multipath" => self.options.multipath = true,
            b"ipv6only=on" | b"ipv6only=off" => {
                // As in nginx it says nothing of other addresses.
                if self.addrs.iter().any(|a| matches!(a, ListenAddr::Inet(SocketAddr::V6(_)))) {
                    self.options.ipv6only = Some(word == b"ipv6only=on");
                }
            }
            _ => return None,
        }
        Some(Subject::Socket)
    }

    /// Takes a parameter with a value.
    fn valued(&mut self, word: &[u8]) -> Result<Subject, Fault> {
        if word == b"quic" {
            return Err(Fault::Later);
        }
        let equals = word.iter().position(|b| *b == b'=').ok_or(Fault::Unknown)?;
        let (name, value) = (&word[..equals], &word[equals + 1..]);
        let count = |least| units::number(value).filter(|n| *n >= least).and_then(|n| i32::try_from(n).ok());
        let size = || units::size(value).and_then(|n| usize::try_from(n).ok());
        match name {
            b"backlog" => self.options.backlog = Some(count(1).ok_or(Fault::Value("backlog"))?),
            b"fastopen" => self.options.fastopen = Some(count(0).ok_or(Fault::Value("fastopen"))?),
            b"rcvbuf" => self.options.rcvbuf = Some(size().ok_or(Fault::Value("rcvbuf"))?),
            b"sndbuf" => self.options.sndbuf = Some(size().ok_or(Fault::Value("sndbuf"))?),
            b"so_keepalive" => {
                let fault = || Fault::Keepalive(String::from_utf8_lossy(value).into_owned());
                self.options.so_keepalive = Some(keepalive(value).ok_or_else(fault)?);
            }
            b"setfib" => return Err(Fault::Platform("setfib")),
            b"accept_filter" => return Err(Fault::Platform("accept_filter")),
            _ => return Err(Fault::Unknown),
        }
        Ok(Subject::Socket)
    }
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
