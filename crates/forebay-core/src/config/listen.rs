//! `listen` (nginx: ngx_http_core_module, ngx_stream_core_module).

use super::scope::Build;
use super::{KeepaliveProbes, ListenAddr, SocketOptions};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Span, Word};
use forebay_conf::units;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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
    /// `quic`.
    pub quic: bool,
}

impl AddressOptions {
    /// Adds the options of another directive for the same address.
    pub fn merge(&mut self, other: &AddressOptions) {
        self.proxy_protocol |= other.proxy_protocol;
        self.ssl |= other.ssl;
        self.http2 |= other.http2;
        self.quic |= other.quic;
    }
}

/// Form of `listen` in the block of a front end.
#[derive(Debug)]
pub struct Form {
    /// Port of an address that names none; `None`: it must name one. nginx has the system choose a port there, at which no
    /// client would look.
    default_port: Option<u16>,
    /// Parameters, as they are written up to and including `=`.
    parameters: &'static [&'static str],
    /// [`SocketOptions::deferred`] without a parameter.
    deferred: Option<bool>,
}

/// `listen` in the http block.
pub static HTTP: Form = Form {
    default_port: Some(80),
    parameters: &[
        "default_server",
        "default",
        "proxy_protocol",
        "ssl",
        "http2",
        "quic",
        "bind",
        "deferred",
        "deferred=",
        "reuseport",
        "multipath",
        "ipv6only=",
        "backlog=",
        "fastopen=",
        "rcvbuf=",
        "sndbuf=",
        "so_keepalive=",
        "setfib=",
        "accept_filter=",
    ],
    deferred: None,
};

/// `listen` in the stream block.
pub static STREAM: Form = Form {
    default_port: None,
    parameters: &[
        "default_server",
        "proxy_protocol",
        "ssl",
        "udp",
        "bind",
        "deferred",
        "reuseport",
        "multipath",
        "ipv6only=",
        "backlog=",
        "fastopen=",
        "rcvbuf=",
        "sndbuf=",
        "so_keepalive=",
        "accept_filter=",
    ],
    // Of many protocols the server sends the first bytes, which a deferred connection would delay.
    deferred: Some(false),
};

impl Form {
    /// Returns `true` if this form has a parameter.
    fn has(&self, word: &[u8]) -> bool {
        let end = word.iter().position(|b| *b == b'=').map_or(word.len(), |at| at + 1);
        self.parameters.iter().any(|name| word.get(..end) == Some(name.as_bytes()))
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
    /// `udp`.
    udp: bool,
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
            udp: false,
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
            ListenAddr::Inet(a) | ListenAddr::Udp(a) => write!(f, "{a}"),
            ListenAddr::Unix(p) | ListenAddr::UnixDatagram(p) => write!(f, "unix:{}", p.display()),
        }
    }
}

/// Checks that a server has a `listen` directive, which its front end needs. One that is refused counts.
///
/// # Errors
/// If there is none. Errors of directives in the block come before this one, as in nginx.
pub fn require(server: &Directive, cx: &Build<'_>) -> Result<(), Error> {
    let mut last = server.ordinal;
    for d in server.block.iter().flatten() {
        if d.name.text == b"listen" {
            return Ok(());
        }
        last = last.max(d.ordinal);
    }
    Err(Error { ordinal: last, ..cx.error(server, "no \"listen\" is defined for server") })
}

/// Reads one directive of this form.
///
/// # Errors
/// In nginx's words.
pub fn parse(form: &Form, d: &Directive, cx: &mut Build<'_>) -> Result<ListenDirective, Error> {
    let word = super::value::first(d);
    let addrs = addresses(word, form.default_port).map_err(|m| {
        cx.error(d, format!("{m} in \"{}\" of the \"listen\" directive", String::from_utf8_lossy(word)))
    })?;
    let mut l = ListenDirective {
        addrs,
        options: SocketOptions { deferred: form.deferred, ..SocketOptions::default() },
        at: Some((d.name.span, d.end, d.ordinal)),
        ..ListenDirective::default_port()
    };
    for w in d.args.iter().skip(1) {
        let subject = l.parameter(form, &w.text).map_err(|what| cx.error_at(d, w, what.text(w)))?;
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
    if l.udp {
        l.use_udp("udp").map_err(|text| cx.error(d, text))?;
    } else if l.address_options.quic {
        l.use_udp("quic").map_err(|text| cx.error(d, text))?;
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
        }
    }
}

impl ListenDirective {
    /// Takes a parameter that the form has.
    fn parameter(&mut self, form: &Form, word: &[u8]) -> Result<AppliesTo, Fault> {
        if !form.has(word) {
            return Err(Fault::Unknown);
        }
        match self.flag(word) {
            Some(subject) => Ok(subject),
            None => self.valued(word),
        }
    }

    /// Makes the addresses those of UDP sockets.
    ///
    /// # Errors
    /// If a parameter is only for connections.
    fn use_udp(&mut self, parameter: &str) -> Result<(), String> {
        let (options, protocols) = (&self.options, &self.address_options);
        // In the order in which nginx reports them.
        let incompatible = [
            (options.fastopen.is_some(), "fastopen"),
            (options.backlog.is_some(), "backlog"),
            (options.deferred == Some(true), "deferred"),
            (options.multipath, "multipath"),
            (protocols.ssl, "ssl"),
            (protocols.http2, "http2"),
            (options.so_keepalive.is_some(), "so_keepalive"),
            (protocols.proxy_protocol && protocols.quic, "proxy_protocol"),
        ];
        if let Some((_, name)) = incompatible.iter().find(|(given, _)| *given) {
            return Err(format!(
                "\"listen\" directive \"{name}\" parameter is incompatible with \"{parameter}\""
            ));
        }
        for addr in &mut self.addrs {
            *addr = match addr {
                ListenAddr::Inet(inet) | ListenAddr::Udp(inet) => ListenAddr::Udp(*inet),
                ListenAddr::Unix(path) | ListenAddr::UnixDatagram(path) => {
                    ListenAddr::UnixDatagram(std::mem::take(path))
                }
            };
        }
        Ok(())
    }

    /// Takes a parameter without a value. `None`: it is not one.
    fn flag(&mut self, word: &[u8]) -> Option<AppliesTo> {
        match word {
            b"default_server" | b"default" => self.default_server = true,
            b"proxy_protocol" => self.address_options.proxy_protocol = true,
            b"ssl" => self.address_options.ssl = true,
            b"http2" => self.address_options.http2 = true,
            b"quic" => self.address_options.quic = true,
            b"udp" => self.udp = true,
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
fn addresses(word: &[u8], default_port: Option<u16>) -> Result<Vec<ListenAddr>, &'static str> {
    if let Some(path) = word.strip_prefix(b"unix:") {
        if path.is_empty() {
            return Err("no path in the unix domain socket");
        }
        return Ok(vec![ListenAddr::Unix(PathBuf::from(std::ffi::OsStr::from_bytes(path)))]);
    }
    let text = std::str::from_utf8(word).map_err(|_| "invalid host")?;
    let (host, ports) = split(text)?;
    let ports = ports.or(default_port.map(|port| port..=port)).ok_or("no port")?;
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
    let found = forebay_net::addr::look_up(host, 0).map_err(|_| "host not found")?;
    let mut ips: Vec<IpAddr> = found.into_iter().map(|a| a.ip()).collect();
    ips.dedup();
    Ok(ips)
}

/// Host and ports as they are written.
type HostAndPorts<'t> = (Option<&'t str>, Option<RangeInclusive<u16>>);

/// Divides an address into host and ports.
fn split(text: &str) -> Result<HostAndPorts<'_>, &'static str> {
    if text.is_empty() {
        return Err("no host");
    }
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        return Ok((None, Some(port_range(text)?)));
    }
    let end = if text.starts_with('[') { text.find(']').ok_or("invalid host")? + 1 } else { 0 };
    let colon = text.get(end..).and_then(|rest| rest.find(':')).map(|at| end + at);
    match colon {
        Some(0) => Err("no host"),
        Some(at) if end == 0 || at == end => Ok((Some(&text[..at]), Some(port_range(&text[at + 1..])?))),
        None if end == 0 || end == text.len() => Ok((Some(text), None)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Lacking, Listener, Listening, check_certificates, listeners};
    use forebay_conf::files::Files;

    /// Reads servers, each the text of `listen` directives without that word, as a front end does. Returns what `with` makes
    /// of them, and the messages.
    fn read<T>(
        form: &Form,
        servers: &[&[&str]],
        with: impl FnOnce(&[Vec<ListenDirective>], &mut Build<'_>) -> T,
    ) -> (T, Vec<String>) {
        let env = Environment {
            prefix: "/p/".into(),
            conf_path: "/p/c".into(),
            globals: String::new(),
            error_log: None,
            access_log: "a".into(),
        };
        let listens = |s: &&[&str]| s.iter().map(|l| format!("listen {l};\n")).collect::<String>();
        let text: Vec<String> = servers.iter().map(listens).map(|l| format!("server {{ {l} }}")).collect();
        let mut files = Files::recorded([(&env.conf_path, format!("http {{ {} }}", text.join("\n")))]);
        let parsed = forebay_conf::parse::parse(&env.conf_path, "", &env.prefix, &mut files);
        let mut warnings = Vec::new();
        let mut cx = Build::new(&env, &mut files, &mut warnings);
        let block = parsed.tree.root.iter().find_map(|d| d.block.as_ref()).expect("http");
        let mut read = Vec::new();
        for server in block {
            let mut listens = Vec::new();
            for d in server.block.iter().flatten() {
                match parse(form, d, &mut cx) {
                    Ok(l) => listens.push(l),
                    Err(e) => cx.warnings.push(e),
                }
            }
            let required = require(server, &cx);
            cx.keep(required);
            read.push(listens);
        }
        let made = with(&read, &mut cx);
        let messages = warnings.iter().map(|e| files.render(e)).collect();
        (made, messages)
    }

    fn error(form: &Form, listen: &str) -> String {
        let ((), messages) = read(form, &[&[listen]], |_, _| {});
        messages.join("; ").replace(" in /p/c:1", "")
    }

    fn addrs(form: &Form, listen: &str) -> Vec<String> {
        let (addrs, messages) = read(form, &[&[listen]], |servers, _| {
            let shown = |a: &ListenAddr| format!("{}{a}", if a.is_udp() { "udp " } else { "" });
            servers[0].iter().flat_map(|l| l.addrs.iter().map(shown)).collect()
        });
        assert_eq!(messages, [""; 0]);
        addrs
    }

    #[test]
    fn only_http_has_a_default_port() {
        assert_eq!(addrs(&HTTP, "127.0.0.1"), ["127.0.0.1:80"]);
        assert_eq!(error(&STREAM, "127.0.0.1"), "no port in \"127.0.0.1\" of the \"listen\" directive");
        assert_eq!(error(&STREAM, "[::1]"), "no port in \"[::1]\" of the \"listen\" directive");
        assert_eq!(error(&STREAM, "*"), "no port in \"*\" of the \"listen\" directive");
        assert_eq!(addrs(&STREAM, "12345"), ["0.0.0.0:12345"]);
        assert_eq!(addrs(&STREAM, "[::1]:12345"), ["[::1]:12345"]);
        assert_eq!(addrs(&STREAM, "unix:/s"), ["unix:/s"]);
        assert_eq!(addrs(&STREAM, "unix:/s udp"), ["udp unix:/s"]);
        assert_eq!(addrs(&STREAM, "127.0.0.1:5-6 udp"), ["udp 127.0.0.1:5", "udp 127.0.0.1:6"]);
        assert_eq!(error(&STREAM, "6-5"), "invalid port range in \"6-5\" of the \"listen\" directive");
        assert_eq!(error(&STREAM, "0"), "invalid port in \"0\" of the \"listen\" directive");
    }

    #[test]
    fn each_form_has_its_parameters() {
        let unknown = |w: &str| format!("invalid parameter \"{w}\"");
        for w in ["http2", "quic", "default", "deferred=on", "setfib=1", "foo", "foo=1", "reuseport=on"] {
            assert_eq!(error(&STREAM, &format!("1 {w}")), unknown(w));
        }
        for w in ["udp", "foo", "default=1", "quic=1", "ipv6only=x", "deferred=x"] {
            assert_eq!(error(&HTTP, &format!("1 {w}")), unknown(w));
        }
        let both = "default_server ssl proxy_protocol bind deferred reuseport multipath backlog=1 fastopen=0 rcvbuf=1k \
                    sndbuf=1k so_keepalive=on ipv6only=on";
        for form in [&HTTP, &STREAM] {
            assert_eq!(error(form, &format!("[::1]:1 {both}")), "");
            assert_eq!(error(form, "1 backlog=0"), "invalid backlog \"backlog=0\"");
        }
    }

    #[test]
    fn parameters_of_connections_are_incompatible_with_udp() {
        let says = |parameters: &str| error(&STREAM, &format!("1 {parameters}"));
        let order = "so_keepalive=off ssl multipath deferred backlog=1 fastopen=0";
        let mut given = String::from("udp");
        for word in order.split(' ') {
            given = format!("{given} {word}");
            let name = word.split('=').next().expect("a name");
            let text = format!("\"listen\" directive \"{name}\" parameter is incompatible with \"udp\"");
            assert_eq!(says(&given), text, "{given}");
        }
        assert_eq!(
            says("udp proxy_protocol reuseport bind rcvbuf=1k sndbuf=1k ipv6only=on default_server udp"),
            ""
        );
        assert_eq!(says("udp ssl backlog=x"), "invalid backlog \"backlog=x\"");
    }

    #[test]
    fn parameters_of_connections_are_incompatible_with_quic() {
        for name in
            ["ssl", "proxy_protocol", "backlog=5", "deferred", "fastopen=3", "so_keepalive=on", "multipath"]
        {
            let word = name.split('=').next().expect("a name");
            let text = format!("\"listen\" directive \"{word}\" parameter is incompatible with \"quic\"");
            assert_eq!(error(&HTTP, &format!("1 quic {name}")), text);
            assert_eq!(error(&HTTP, &format!("1 {name} quic")), text);
        }
        // After the warning about the parameter.
        let text = error(&HTTP, "1 quic http2");
        assert!(text.ends_with("\"http2\" parameter is incompatible with \"quic\""), "{text}");
        assert_eq!(error(&HTTP, "1 quic reuseport bind default_server rcvbuf=1k sndbuf=1k"), "");
        assert_eq!(addrs(&HTTP, "127.0.0.1:7 quic"), ["udp 127.0.0.1:7"]);
    }

    #[test]
    fn quic_needs_certificates_and_tls_1_3() {
        let servers: &[&[&str]] = &[&["1 quic", "1 ssl"]];
        let check = |lacking: Option<Lacking>| {
            let (_, messages) = read(&HTTP, servers, |servers, cx| {
                let listening: Vec<_> =
                    servers.iter().map(|listens| Listening { names: &[], listens, ordinal: 0 }).collect();
                let listeners = listeners(&listening, 0, cx);
                check_certificates(&listeners, &listening, |_| lacking, cx);
            });
            messages
        };
        assert_eq!(check(None), [""; 0]);
        let text = "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive in /p/c:1";
        assert_eq!(check(Some(Lacking::Tls13)), [text]);
        let text = |word| {
            format!("no \"ssl_certificate\" is defined for the \"listen ... {word}\" directive in /p/c")
        };
        assert_eq!(check(Some(Lacking::Certificate)), [text("quic") + ":1", text("ssl") + ":2"]);
    }

    #[test]
    fn udp_and_tcp_have_listeners_of_their_own() {
        let servers: &[&[&str]] =
            &[&["127.0.0.1:7 udp", "7", "7 udp", "[::]:7"], &["127.0.0.1:7 ", "127.0.0.2:7 udp bind"]];
        let (made, messages) = read(&STREAM, servers, |servers, cx| {
            let listening: Vec<_> =
                servers.iter().map(|listens| Listening { names: &[], listens, ordinal: 0 }).collect();
            listeners(&listening, 3, cx)
        });
        assert_eq!(messages, [""; 0]);
        let shown = |l: &Listener| {
            let exact: Vec<_> = l.exact.iter().map(|(a, _)| a.to_string()).collect();
            (l.addr.is_udp(), l.text.clone(), exact.join(" "))
        };
        let shown: Vec<_> = made.iter().map(shown).collect();
        let row = |udp: bool, text: &str, exact: &str| (udp, text.to_owned(), exact.to_owned());
        assert_eq!(
            shown,
            [
                row(false, "0.0.0.0:7", "127.0.0.1:7"),
                row(true, "0.0.0.0:7", "127.0.0.1:7"),
                row(false, "[::]:7", ""),
                row(true, "127.0.0.2:7", ""),
            ]
        );
        assert!(made.iter().all(|l| l.front == 3 && l.options.deferred == Some(false)));
        let (_, messages) = read(&STREAM, &[&["7 udp", "7 udp"]], |servers, cx| {
            listeners(&[Listening { names: &[], listens: &servers[0], ordinal: 0 }], 0, cx)
        });
        assert_eq!(messages, ["a duplicate listen 0.0.0.0:7 in /p/c:2"]);
    }

    #[test]
    fn default_servers_of_tls_addresses_need_certificates() {
        let servers: &[&[&str]] = &[&["1", "2 ssl"], &["2"], &["127.0.0.1:2"], &["3 ssl"], &["4"]];
        let check = |without: &[usize]| {
            let (_, messages) = read(&STREAM, servers, |servers, cx| {
                let listening: Vec<_> =
                    servers.iter().map(|listens| Listening { names: &[], listens, ordinal: 0 }).collect();
                let listeners = listeners(&listening, 0, cx);
                check_certificates(
                    &listeners,
                    &listening,
                    |server| without.contains(&server).then_some(Lacking::Certificate),
                    cx,
                );
            });
            messages
        };
        let text = "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in /p/c";
        assert_eq!(check(&[1, 2, 4]), [""; 0]);
        assert_eq!(check(&[0, 3]), [format!("{text}:2"), format!("{text}:8")]);
    }

    #[test]
    fn a_server_without_listen() {
        let ((), messages) = read(&STREAM, &[&["1"], &[]], |_, _| {});
        assert_eq!(messages, ["no \"listen\" is defined for server in /p/c:3"]);
        // The fault is in the directive.
        let ((), messages) = read(&STREAM, &[&["0"]], |_, _| {});
        assert_eq!(messages, ["invalid port in \"0\" of the \"listen\" directive in /p/c:1"]);
    }
}
