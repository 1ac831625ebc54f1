//! Logs sent to syslog (nginx: syslog:), as datagrams in the form of RFC 3164.

use crate::thread::Thread;
use forebay_conf::error::Level;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Facilities; the place is the code.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv", "ftp",
    "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];

/// Severities; the place is the code.
const SEVERITIES: [&str; 8] = ["emerg", "alert", "crit", "error", "warn", "notice", "info", "debug"];

const DEFAULT_FACILITY: u8 = 23;
const DEFAULT_SEVERITY: u8 = 6;
const DEFAULT_PORT: u16 = 514;
/// Longest tag, bytes.
const MAX_TAG: usize = 32;

/// Address of a syslog server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SyslogServer {
    Inet(SocketAddr),
    Unix(PathBuf),
}

/// A compiled `syslog:` target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syslog {
    server: SyslogServer,
    /// As written, for messages.
    server_text: String,
    facility: u8,
    severity: u8,
    tag: String,
    hostname: bool,
}

impl Syslog {
    /// Parses the parameters after `syslog:`. Resolves a host name, only this once.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn parse(parameters: &str) -> Result<Syslog, String> {
        let mut given = Parameters::default();
        for p in parameters.split(',') {
            given.take(p)?;
        }
        let (server, text) = given.server.ok_or("no syslog server specified")?;
        Ok(Syslog {
            server,
            server_text: text.to_owned(),
            facility: given.facility.unwrap_or(DEFAULT_FACILITY),
            severity: given.severity.unwrap_or(DEFAULT_SEVERITY),
            tag: given.tag.unwrap_or_else(|| "nginx".to_owned()),
            hostname: !given.no_host_name,
        })
    }

    /// Builds the datagram for a line.
    fn datagram(&self, severity: u8, time: &[u8], line: &[u8]) -> Vec<u8> {
        let mut out = format!("<{}>", u16::from(self.facility) * 8 + u16::from(severity)).into_bytes();
        out.extend_from_slice(time);
        out.push(b' ');
        if self.hostname {
            out.extend_from_slice(host_name());
            out.push(b' ');
        }
        out.extend_from_slice(self.tag.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        out
    }
}

/// Parameters that have been read.
#[derive(Default)]
struct Parameters<'t> {
    /// The server, and its text.
    server: Option<(SyslogServer, &'t str)>,
    facility: Option<u8>,
    severity: Option<u8>,
    tag: Option<String>,
    no_host_name: bool,
}

impl<'t> Parameters<'t> {
    /// Takes one parameter.
    fn take(&mut self, p: &'t str) -> Result<(), String> {
        match p.split_once('=') {
            Some(("server", v)) => put(&mut self.server, "server", || Ok((parse_server(v)?, v))),
            Some(("facility", v)) => put(&mut self.facility, "facility", || {
                code(&FACILITIES, v).ok_or_else(|| format!("unknown syslog facility \"{v}\""))
            }),
            Some(("severity", v)) => put(&mut self.severity, "severity", || {
                code(&SEVERITIES, v).ok_or_else(|| format!("unknown syslog severity \"{v}\""))
            }),
            Some(("tag", v)) => put(&mut self.tag, "tag", || parse_tag(v)),
            None if p == "nohostname" => {
                self.no_host_name = true;
                Ok(())
            }
            _ => Err(format!("unknown syslog parameter \"{p}\"")),
        }
    }
}

/// Fills a slot, which must be empty.
fn put<T>(slot: &mut Option<T>, name: &str, read: impl FnOnce() -> Result<T, String>) -> Result<(), String> {
    if slot.is_some() {
        return Err(format!("duplicate syslog \"{name}\""));
    }
    *slot = Some(read()?);
    Ok(())
}

fn code(names: &[&str], name: &str) -> Option<u8> {
    names.iter().position(|n| *n == name).and_then(|i| u8::try_from(i).ok())
}

fn parse_tag(v: &str) -> Result<String, String> {
    if v.len() > MAX_TAG {
        return Err(format!("syslog tag length exceeds {MAX_TAG}"));
    }
    if !v.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err("syslog \"tag\" only allows alphanumeric characters and underscore".to_owned());
    }
    Ok(v.to_owned())
}

fn parse_server(text: &str) -> Result<SyslogServer, String> {
    let wrong = |what: &str| format!("{what} in syslog server \"{text}\"");
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() {
            Err(wrong("no path in the unix domain socket"))
        } else {
            Ok(SyslogServer::Unix(path.into()))
        };
    }
    if text.contains('/') {
        return Err(wrong("invalid host"));
    }
    let (host, port) = split_port(text).ok_or_else(|| wrong("invalid host"))?;
    let port = match port {
        None => DEFAULT_PORT,
        Some(p) => parse_port(p).ok_or_else(|| wrong("invalid port"))?,
    };
    if host.is_empty() {
        return Err(wrong("no host"));
    }
    let found = forebay_net::addr::look_up(host, port).map_err(|_| wrong("host not found"))?;
    found.into_iter().next().map(SyslogServer::Inet).ok_or_else(|| wrong("host not found"))
}

/// Divides `HOST[:PORT]` and `[ADDRESS][:PORT]`.
fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(host, tail)| (host, tail.strip_prefix(':'))),
        None => Some(text.split_once(':').map_or((text, None), |(h, p)| (h, Some(p)))),
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| digits && *n > 0)
}

/// Returns the host name of the machine, which is read once.
fn host_name() -> &'static [u8] {
    static NAME: OnceLock<Vec<u8>> = OnceLock::new();
    NAME.get_or_init(|| rustix::system::uname().nodename().to_bytes().to_vec())
}

/// A socket connected to its server.
#[derive(Debug)]
enum SyslogSocket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl SyslogSocket {
    fn connect(server: &SyslogServer) -> std::io::Result<SyslogSocket> {
        match server {
            SyslogServer::Inet(a) => {
                let any: SocketAddr =
                    if a.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
                let s = UdpSocket::bind(any)?;
                s.connect(a)?;
                s.set_nonblocking(true)?;
                Ok(SyslogSocket::Udp(s))
            }
            SyslogServer::Unix(path) => {
                let s = UnixDatagram::unbound()?;
                s.connect(path)?;
                s.set_nonblocking(true)?;
                Ok(SyslogSocket::Unix(s))
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            SyslogSocket::Udp(s) => s.send(bytes),
            SyslogSocket::Unix(s) => s.send(bytes),
        }
    }
}

thread_local! {
    /// Sockets of this thread; shared by targets with the same server.
    static SOCKETS: RefCell<HashMap<SyslogServer, SyslogSocket>> = RefCell::default();
    /// Set while a failure to send is logged, so that its line is not sent to syslog as well, which would recurse.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Sends a datagram, with a new socket if the old one fails: the server may have been restarted.
fn deliver(server: &SyslogServer, bytes: &[u8]) -> Result<(), (&'static str, std::io::Error)> {
    SOCKETS.with_borrow_mut(|sockets| {
        if let Some(s) = sockets.get(server) {
            match s.send(bytes) {
                Ok(_) => return Ok(()),
                // Drop the line rather than wait for a slow server.
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Err(("send()", e)),
                Err(_) => drop(sockets.remove(server)),
            }
        }
        let s = SyslogSocket::connect(server).map_err(|e| ("connect()", e))?;
        let sent = s.send(bytes).map_err(|e| ("send()", e));
        sockets.insert(server.clone(), s);
        sent.map(drop)
    })
}

/// Time of a line.
#[derive(Clone, Copy, Debug)]
pub struct LocalTime {
    /// Unix time, seconds.
    pub unix: i64,
    /// Offset from UTC, seconds.
    pub offset: i32,
}

/// Sends a line with its time.
///
/// # Errors
/// If the line was not sent: the text for the error log.
fn send_at(target: &Syslog, severity: u8, at: LocalTime, line: &[u8]) -> Result<(), String> {
    let time = forebay_http::date::syslog(at.unix, at.offset);
    deliver(&target.server, &target.datagram(severity, &time, line)).map_err(|(call, e)| {
        let why = forebay_sys::errno::errno(&e);
        format!("{call} failed ({why}) while logging to syslog, server: {}", target.server_text)
    })
}

fn send_line(thread: &Thread, target: &Syslog, severity: u8, line: &[u8]) {
    if BUSY.get() {
        return;
    }
    let unix = thread.clock.unix();
    let at = LocalTime { unix, offset: thread.clock.offset(unix) };
    if let Err(message) = send_at(target, severity, at, line) {
        BUSY.set(true);
        super::error::log(thread, Level::Error, &message);
        BUSY.set(false);
    }
}

fn severity_of(level: Level) -> u8 {
    code(&SEVERITIES, level.as_str()).unwrap_or(DEFAULT_SEVERITY)
}

/// Sends an error log line; the level is its severity.
pub fn send(thread: &Thread, target: &Syslog, level: Level, line: &[u8]) {
    send_line(thread, target, severity_of(level), line);
}

/// Sends a line from a process that serves no requests.
///
/// # Errors
/// If the line was not sent: the text for the other logs.
pub fn send_from_master(target: &Syslog, level: Level, at: LocalTime, line: &[u8]) -> Result<(), String> {
    send_at(target, severity_of(level), at, line)
}

/// Sends an access log line.
pub fn send_access(thread: &Thread, target: &Syslog, line: &[u8]) {
    send_line(thread, target, target.severity, line);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(p: &str) -> String {
        Syslog::parse(p).unwrap_err()
    }

    #[test]
    fn parameters_are_checked_in_nginx_words() {
        let cases = [
            ("", "unknown syslog parameter \"\""),
            ("facility=user", "no syslog server specified"),
            ("server=", "no host in syslog server \"\""),
            ("server=127.0.0.1:0", "invalid port in syslog server \"127.0.0.1:0\""),
            ("server=127.0.0.1:80a", "invalid port in syslog server \"127.0.0.1:80a\""),
            ("server=[::1", "invalid host in syslog server \"[::1\""),
            ("server=127.0.0.1:514x/", "invalid host in syslog server \"127.0.0.1:514x/\""),
            ("server=unix:", "no path in the unix domain socket in syslog server \"unix:\""),
            ("server=127.0.0.1,server=127.0.0.2", "duplicate syslog \"server\""),
            ("server=127.0.0.1,severity=err", "unknown syslog severity \"err\""),
            ("server=127.0.0.1,facility=USER", "unknown syslog facility \"USER\""),
            ("server=127.0.0.1,tag=a-b", "syslog \"tag\" only allows alphanumeric characters and underscore"),
            ("server=127.0.0.1,tag=abcdefghijklmnopqrstuvwxyz0123456", "syslog tag length exceeds 32"),
        ];
        for (p, text) in cases {
            assert_eq!(wrong(p), text);
        }
    }

    #[test]
    fn datagrams_have_the_form_of_rfc_3164() {
        let s = Syslog::parse("server=127.0.0.1,facility=local3,tag=foo_1,severity=warn,nohostname").unwrap();
        assert_eq!(
            s.datagram(s.severity, b"Nov 21 07:29:58", b"line\n"),
            b"<156>Nov 21 07:29:58 foo_1: line"
        );
        let s = Syslog::parse("server=[::1]:1514").unwrap();
        assert_eq!(s.server, SyslogServer::Inet(([0, 0, 0, 0, 0, 0, 0, 1], 1514).into()));
        let text = [b"<190>Nov 21 07:29:58 ".as_slice(), host_name(), b" nginx: line"].concat();
        assert_eq!(s.datagram(s.severity, b"Nov 21 07:29:58", b"line"), text);
    }

    #[test]
    fn a_server_that_comes_back_is_found() {
        let path = std::env::temp_dir().join(format!("forebay-syslog-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let server = SyslogServer::Unix(path.clone());
        assert!(deliver(&server, b"nobody").is_err());
        for round in 0..2 {
            let listener = UnixDatagram::bind(&path).unwrap();
            deliver(&server, b"hello").unwrap();
            let mut buf = [0; 16];
            assert_eq!(listener.recv(&mut buf).unwrap(), 5, "round {round}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
