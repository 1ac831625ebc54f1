//! Passes sessions on to upstreams (nginx: ngx_stream_proxy_module, ngx_stream_upstream_module). Hot path.

use super::sticky::{Binding, Status};
use super::{Content, proxy_protocol};
use crate::config::{Named, Scope, StreamContext, Upstream};
use crate::passing::Connected;
use crate::session::{Outcome, Session};
use crate::udp::Counts;
use crate::variables::seconds;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::config::value::{Msec, Number, Setting, first, once};
use forebay_core::tls::client::Unencrypted;
use forebay_core::upstream::balance::{Key, Picker, Timed};
use forebay_core::upstream::config::Serving;
use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::dial_error::{self, Blame};
use forebay_core::upstream::dialing;
use forebay_core::upstream::lease::{ConnectionDrop, DropRule, Lease};
use forebay_core::upstream::peer::Figures;
use forebay_core::upstream::peer::Peer;
use forebay_core::upstream::push_address;
use forebay_core::vars::{Template, VarError};
use forebay_net::addr::{PeerAddr, Place, address_text};
use forebay_net::dial::DialSettings;
use forebay_net::relay::{Pair, Rules, Side};
use forebay_net::wire::Watch;
use rustix::net::SocketType;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

forebay_core::settings! {
    /// `proxy_connect_timeout`.
    "proxy_connect_timeout" => connect_timeout: Msec = Msec(Duration::from_secs(60));
    /// `proxy_timeout`: time without a byte in either direction.
    "proxy_timeout" => timeout: Msec = Msec(Duration::from_secs(600));
    /// `proxy_next_upstream`.
    "proxy_next_upstream" => next_upstream: bool = true;
    /// `proxy_next_upstream_tries`; 0 = no limit.
    "proxy_next_upstream_tries" => next_upstream_tries: Number = Number(0);
    /// `proxy_next_upstream_timeout`; 0 = no limit.
    "proxy_next_upstream_timeout" => next_upstream_timeout: Msec = Msec(Duration::ZERO);
    /// `proxy_ssl`.
    "proxy_ssl" => ssl: bool = false;
    /// `proxy_half_close`.
    "proxy_half_close" => half_close: bool = false;
    /// `proxy_upload_rate`, bytes per second; 0 = no limit.
    "proxy_upload_rate" => upload_rate: Rate = Rate::default();
    /// `proxy_download_rate`, bytes per second; 0 = no limit.
    "proxy_download_rate" => download_rate: Rate = Rate::default();
    /// `proxy_connection_drop` (Angie).
    "proxy_connection_drop" => connection_drop: ConnectionDrop = ConnectionDrop::default();
    /// `proxy_session_drop` (NGINX Plus).
    "proxy_session_drop" => session_drop: bool = false;
    /// `proxy_socket_keepalive`.
    "proxy_socket_keepalive" => socket_keepalive: bool = false;
}

/// Bytes per second, which may have variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate(Template);

impl Setting<StreamContext> for Rate {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let rate = d.args.first().map(|w| cx.template(d, w)).transpose()?.unwrap_or_default();
        match rate.as_const() {
            Some(text) if units::size(text).is_none() => Err(cx.directive_error(d, "invalid value")),
            _ => Ok(Rate(rate)),
        }
    }
}

impl Rate {
    /// Evaluates the rate. A value that is not a size is logged and is no limit, as in nginx.
    fn value(&self, s: &mut Session) -> u64 {
        // The default, which most servers have.
        if self.0.as_const() == Some(b"") {
            return 0;
        }
        let rate = self.0.value(s).and_then(|text| {
            units::size(&text).ok_or_else(|| {
                let text = String::from_utf8_lossy(&text);
                VarError(format!("invalid size \"{text}\" while connecting to upstream"))
            })
        });
        rate.unwrap_or_else(|e| {
            s.log(Level::Error, &e.0);
            0
        })
    }
}

/// `proxy_pass`.
#[derive(Clone, Debug)]
pub(crate) enum Pass {
    /// A group, or the group that an address implies.
    Group(Named),
    /// An address with variables.
    Variable(Template),
}

/// Reads `proxy_pass`.
///
/// # Errors
/// In nginx's words.
pub(crate) fn pass(d: &Directive, known: Option<&Content>, cx: &mut Scope<'_>) -> Result<Content, Error> {
    if matches!(known, Some(Content::Proxy(_))) {
        return Err(cx.directive_error(d, "is duplicate"));
    }
    let text = first(d);
    if let Some(w) = d.args.first().filter(|w| w.text.contains(&b'$')) {
        return Ok(Content::Proxy(Pass::Variable(cx.template(d, w)?)));
    }
    let written = String::from_utf8_lossy(text).into_owned();
    let place = Place::parse(text).map_err(|m| cx.error(d, format!("{m} in upstream \"{written}\"")))?;
    // A name without a port is that of a block, which may come later in the file.
    let at = cx.error(d, "");
    Ok(Content::Proxy(Pass::Group(cx.tables.upstreams.reference(&place, 0, at))))
}

/// Attempt at one server.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Address of the server (`$upstream_addr`).
    name: Vec<u8>,
    begun: Instant,
    connected: Option<Duration>,
    answered: Option<Duration>,
    ended: Option<Duration>,
    /// Bytes sent to the server, with the PROXY protocol header.
    sent: u64,
    received: u64,
    /// `$upstream_sticky_status`; `None` without `sticky`.
    sticky: Option<Status>,
}

impl Attempt {
    fn new(name: Vec<u8>, begun: Instant, sticky: Option<Status>) -> Attempt {
        Attempt { name, begun, connected: None, answered: None, ended: None, sent: 0, received: 0, sticky }
    }

    /// Notes the end.
    fn end(&mut self, now: Instant) {
        self.ended = Some(now.saturating_duration_since(self.begun));
    }

    /// Notes the end of the relay and its bytes. Returns the figures for the server.
    pub(crate) fn relayed(&mut self, pair: &Pair, now: Instant) -> Figures {
        self.sent += pair.passed_from(Side::Client);
        self.received += pair.received_from(Side::Server);
        self.answered =
            pair.time_to_answer().zip(self.connected).map(|(answer, connected)| connected + answer);
        self.end(now);
        self.figures()
    }

    /// Returns `true` if the server has a unix socket.
    pub(crate) fn is_unix(&self) -> bool {
        self.name.starts_with(b"unix:")
    }

    /// Notes the datagrams that have passed. `answered`: time of the server's first.
    pub(crate) fn note(&mut self, counts: &Counts, answered: Option<Instant>) {
        (self.sent, self.received) = (counts.passed_up, counts.answered);
        self.answered = answered.map(|t| t.saturating_duration_since(self.begun));
    }

    /// Notes the end of a session over UDP. Returns the figures for the server.
    pub(crate) fn finish(&mut self, now: Instant) -> Figures {
        self.end(now);
        self.figures()
    }

    fn figures(&self) -> Figures {
        Figures {
            status: 0,
            sent: self.sent,
            received: self.received,
            connect: self.connected,
            header: self.answered,
            response: self.ended,
        }
    }
}

/// State of the proxy in a session.
#[derive(Debug, Default)]
pub(crate) struct State {
    attempts: Vec<Attempt>,
    /// Binding to a server; `None` without `sticky`.
    binding: Option<Box<Binding>>,
}

impl State {
    /// Begins an attempt. `sid`: name of the server in sticky sessions; `None` if none could be chosen.
    fn attempt(&mut self, name: Vec<u8>, now: Instant, sid: Option<&[u8]>) {
        let sticky = self.binding.as_ref().map(|binding| binding.status(sid));
        self.attempts.push(Attempt::new(name, now, sticky));
    }

    /// Returns the bytes received from the present server and sent to it.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        self.attempts.last().map_or((0, 0), |a| (a.received, a.sent))
    }

    /// Appends the server for a line of the error log.
    pub(crate) fn describe(&self, out: &mut Vec<u8>) {
        if let Some(a) = self.attempts.last() {
            out.extend_from_slice(b", upstream: \"");
            out.extend_from_slice(&a.name);
            out.push(b'"');
        }
    }

    /// Returns the attempt that is in progress.
    pub(crate) fn present(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
    }
}

/// Reason for which a session ends without a server: its status. It has been logged.
struct Refused(u16);

/// Connects a session to a server.
pub(crate) async fn serve(s: &mut Session, pass: &Pass, settings: &Settings) -> Outcome {
    // One attempt is the rule, and a vector that grows by itself takes room for four.
    s.upstream = Some(Box::new(State { attempts: Vec::with_capacity(1), binding: None }));
    match connect(s, pass, settings).await {
        Ok((mut lease, conn)) => {
            lease.drop_by(drop_rule(settings));
            lease.reached(Timed::Connect);
            if s.udp.is_none() {
                lease.succeeded();
            }
            // A datagram has its header in the same packet.
            let header = match s.udp.is_some() {
                true => header(s, lease.peer()),
                false => Ok(Vec::new()),
            };
            let Ok(header) = header else { return Outcome::Over(500) };
            bind(s, &lease);
            let rules = Rules {
                idle: settings.timeout.0,
                half_close: settings.half_close,
                upload_rate: settings.upload_rate.value(s),
                download_rate: settings.download_rate.value(s),
                ..Rules::default()
            };
            Outcome::Connected(Box::new(Connected { lease, conn, rules, header }))
        }
        Err(Refused(status)) => Outcome::Over(status),
    }
}

/// Returns what happens to a session whose server is removed. NGINX Plus ends it also if the server becomes unhealthy.
fn drop_rule(settings: &Settings) -> DropRule {
    let at_once = settings.session_drop.then_some(Duration::ZERO);
    DropRule { after: at_once.or(settings.connection_drop.0), if_unhealthy: settings.session_drop }
}

/// Binds a session to the server that it is connected to, if sessions of the group stick.
fn bind(s: &mut Session, lease: &Lease) {
    let binding = s.upstream.as_mut().and_then(|u| u.binding.take());
    if let (Some(mut binding), Some(peer)) = (binding, lease.peer()) {
        binding.connected(s, &peer.sid);
        s.upstream.get_or_insert_default().binding = Some(binding);
    }
}

/// Notes the end of a session.
pub(crate) fn ended(s: &Session) {
    if let Some(binding) = s.upstream.as_ref().and_then(|u| u.binding.as_ref()) {
        binding.ended(s);
    }
}

/// Servers that a session may be passed to.
enum Servers {
    Group(Picker),
    /// Addresses that belong to no group.
    Direct(Vec<PeerAddr>),
}

impl Servers {
    fn choose(&mut self, tried: usize, now: Instant) -> Option<usize> {
        match self {
            Servers::Group(p) => p.choose(now),
            Servers::Direct(addrs) => (tried < addrs.len()).then_some(tried),
        }
    }

    /// Waits while the names of a group are resolved for the first time, and chooses a server.
    async fn wait(&mut self, s: &Session) -> Option<usize> {
        let Servers::Group(p) = self else { return None };
        p.wait(&s.conf.groups, &s.thread.io, &mut Watch::Nothing).await.ok().flatten()
    }

    fn server(&self, n: usize) -> Option<(PeerAddr, Vec<u8>)> {
        match self {
            Servers::Group(p) => p.peer(n).map(|p| (p.addr.clone(), p.name.clone())),
            Servers::Direct(addrs) => addrs.get(n).map(|a| (a.clone(), address_text(a))),
        }
    }

    /// Returns the name of a server in sticky sessions.
    fn sid(&self, n: usize) -> Option<&[u8]> {
        match self {
            Servers::Group(p) => p.peer(n).map(|p| p.sid.as_slice()),
            Servers::Direct(_) => None,
        }
    }

    fn lease(&self, n: usize, now: Instant, server: usize) -> Lease {
        match self {
            Servers::Group(p) => Lease::new(p, n, now, server),
            Servers::Direct(_) => Lease::direct(),
        }
    }

    /// Passes over a server, and counts the failure if the server is to blame. Returns `true` if it gets no sessions for now.
    fn failed(&mut self, n: usize, since: Instant, failed: &Failed) -> bool {
        match self {
            Servers::Group(p) => {
                p.give_up(n);
                if failed.blame != Blame::Server {
                    return false;
                }
                p.local.note_failure(n, &failed.text, since);
                p.local.fail(n, since)
            }
            Servers::Direct(_) => false,
        }
    }

    /// Returns the number of servers that may be tried.
    fn number(&self) -> usize {
        match self {
            Servers::Group(p) => p.number(),
            Servers::Direct(addrs) => addrs.len(),
        }
    }
}

/// Connects to a server; after a failure, to the next one (nginx: proxy_next_upstream).
async fn connect(s: &mut Session, pass: &Pass, settings: &Settings) -> Result<(Lease, Conn), Refused> {
    let thread = s.thread.clone();
    let begun = thread.io.poller.now();
    let (mut servers, group) = servers(s, pass).await?;
    let tries = match settings.next_upstream_tries.0 {
        0 => usize::MAX,
        n => usize::try_from(n).unwrap_or(usize::MAX),
    };
    let mut tried = 0;
    loop {
        let now = thread.io.poller.now();
        let mut chosen = servers.choose(tried, now);
        if chosen.is_none() && tried == 0 {
            chosen = servers.wait(s).await;
        }
        let Some(n) = chosen else {
            // The attempt is counted, and has the name of the group.
            s.upstream.get_or_insert_default().attempt(group, now, None);
            s.log(Level::Error, "no live upstreams while connecting to upstream");
            end_attempt(s);
            return Err(Refused(502));
        };
        let Some((addr, name)) = servers.server(n) else { return Err(Refused(500)) };
        s.upstream.get_or_insert_default().attempt(name, now, servers.sid(n));
        let lease = servers.lease(n, now, s.server);
        let opened = match open(s, &addr, lease.peer(), settings).await {
            Ok(conn) => encrypt(s, conn, &group, settings).await,
            Err(failed) => Err(failed),
        };
        match opened {
            Ok(conn) => {
                connected(s, &conn, &addr);
                return Ok((lease, conn));
            }
            Err(failed) => {
                tried += 1;
                // Gives the place back first, so that it counts as free when another server is chosen.
                drop(lease);
                let last = failed.blame == Blame::Ours;
                if servers.failed(n, now, &failed) {
                    let doing = failed.while_doing;
                    s.log(Level::Warn, &format!("upstream server temporarily disabled while {doing}"));
                }
                end_attempt(s);
                let limit_of_time = settings.next_upstream_timeout.0;
                let late = !limit_of_time.is_zero() && thread.io.poller.since(begun) >= limit_of_time;
                if last || !settings.next_upstream || tried >= servers.number().min(tries) || late {
                    return Err(Refused(if last { 500 } else { 502 }));
                }
            }
        }
    }
}

fn end_attempt(s: &mut Session) {
    let now = s.thread.io.poller.now();
    if let Some(a) = s.upstream.as_mut().and_then(|u| u.present()) {
        a.end(now);
    }
}

/// Failure of an attempt, which has been logged.
struct Failed {
    /// Consequence for the choice of servers.
    blame: Blame,
    /// Step that has failed, for the error log.
    while_doing: &'static str,
    /// Text of the error log.
    text: String,
}

/// Failure for which no server is at fault.
const OURS: Failed = Failed { blame: Blame::Ours, while_doing: CONNECTING, text: String::new() };

const CONNECTING: &str = "connecting to upstream";
const HANDSHAKING: &str = "SSL handshaking to upstream";

/// Opens a connection to a server.
async fn open(
    s: &mut Session,
    addr: &PeerAddr,
    server_of: Option<&Peer>,
    settings: &Settings,
) -> Result<Conn, Failed> {
    let thread = s.thread.clone();
    let stream = s.stream();
    let server = stream.servers.get(s.server).ok_or(OURS)?;
    let sockets = &server.settings.bind;
    let local = sockets.local(s).map_err(|e| {
        s.log(Level::Error, &e.0);
        OURS
    })?;
    let over_udp = s.udp.is_some();
    // Over UDP the first datagram has it.
    let greeting = if over_udp { Vec::new() } else { header(s, server_of)? };
    let to = DialSettings {
        addr,
        kind: if over_udp { SocketType::DGRAM } else { SocketType::STREAM },
        local,
        timeout: settings.connect_timeout.0,
        receive_buffer: sockets.rcvbuf.0 as usize,
        send_buffer: sockets.sndbuf.0 as usize,
        keepalive: settings.socket_keepalive && !over_udp,
        greeting: &greeting,
    };
    let opened = thread.io.poller.now();
    match dialing::dial(&thread, &to, &mut Watch::Nothing).await {
        Ok(wire) => {
            let mut conn = Conn::opened(&thread.io, wire, opened);
            conn.spare = to.spare();
            if server.settings.core.tcp_nodelay && !over_udp {
                conn.hurry();
            }
            if let Some(a) = s.upstream.as_mut().and_then(|u| u.present()) {
                a.sent = greeting.len() as u64;
            }
            Ok(conn)
        }
        Err(e) => {
            let (level, text) = dial_error::text(&to, &e);
            let blame = dial_error::blame(&e);
            match s.udp.is_some() && blame != Blame::Server {
                true => thread.udp.log_refused(s, level, &text),
                false => s.log(level, &text),
            }
            Err(Failed { blame, while_doing: CONNECTING, text })
        }
    }
}

/// Encrypts a connection, if the server has `proxy_ssl`. `host` is the name in `proxy_pass`.
async fn encrypt(s: &mut Session, mut conn: Conn, host: &[u8], settings: &Settings) -> Result<Conn, Failed> {
    let stream = s.stream();
    let tls = stream.servers.get(s.server).and_then(|server| server.upstream_tls.as_ref());
    // Over UDP `proxy_ssl` has no effect, as in nginx.
    let Some(tls) = tls.filter(|_| s.udp.is_none()) else {
        return Ok(conn);
    };
    let thread = s.thread.clone();
    let mut wanted = tls.wanted(s, |_| host.to_vec());
    let offered = stream.servers.get(s.server).map(|server| &server.settings.offered.alpn);
    if let Some(offered) = offered.filter(|o| o.constants().is_none()) {
        match offered.values(s) {
            Ok(names) => wanted.offer(names),
            Err(e) => {
                s.log(Level::Error, &e.0);
                return Err(OURS);
            }
        }
    }
    let timeout = settings.connect_timeout.0;
    let (wire, base) = (conn.wire_mut(), &stream.conf_dir);
    let encrypted = wanted.encrypt(&thread.io, wire, base, timeout, &mut Watch::Nothing).await;
    let (text, blame) = match encrypted {
        Ok(_) => return Ok(conn),
        Err(Unencrypted::Failed(text)) => (text, Blame::Server),
        Err(Unencrypted::Own(text)) => (text, Blame::Ours),
        Err(Unencrypted::Timeout | Unencrypted::ClientGone) => {
            ("upstream timed out (110: Connection timed out)".to_owned(), Blame::Server)
        }
    };
    let text = format!("{text} while {HANDSHAKING}");
    s.log(Level::Error, &text);
    Err(Failed { blame, while_doing: HANDSHAKING, text })
}

/// Returns the PROXY protocol header for a server.
fn header(s: &mut Session, server: Option<&Peer>) -> Result<Vec<u8>, Failed> {
    proxy_protocol::header(s, server).map_err(|e| {
        s.log(Level::Error, &e.0);
        OURS
    })
}

/// Notes the time at which the connection is ready, after the handshake of `proxy_ssl`, and logs it.
fn connected(s: &mut Session, conn: &Conn, addr: &PeerAddr) {
    if s.logs_connections() {
        log_connected(s, conn, addr);
    }
    let now = s.thread.io.poller.now();
    if let Some(a) = s.upstream.as_mut().and_then(|u| u.present()) {
        a.connected = Some(now.saturating_duration_since(a.begun));
    }
}

fn log_connected(s: &Session, conn: &Conn, addr: &PeerAddr) {
    let local = conn.with_fd(|fd| rustix::net::getsockname(fd)).ok();
    let local = local.and_then(|a| SocketAddr::try_from(a).ok());
    let local = local.map_or_else(|| "unix:".to_owned(), |a| a.to_string());
    let to = address_text(addr);
    let (protocol, to) = (s.log_prefix(), String::from_utf8_lossy(&to));
    s.log_bare(Level::Info, &format!("{protocol}proxy {local} connected to {to}"));
}

/// Finds the servers. Also returns the name by which the error log names them all.
async fn servers(s: &mut Session, pass: &Pass) -> Result<(Servers, Vec<u8>), Refused> {
    match pass {
        Pass::Group(named) => {
            let upstream = s.stream().upstreams.get(*named).cloned().ok_or(Refused(500))?;
            group(s, &upstream)
        }
        Pass::Variable(template) => {
            let text = template.value(s).map_err(|e| refuse(s, &e))?;
            find(s, &text).await
        }
    }
}

fn refuse(s: &Session, e: &VarError) -> Refused {
    s.log(Level::Error, &e.0);
    Refused(500)
}

fn group(s: &mut Session, upstream: &Arc<Upstream>) -> Result<(Servers, Vec<u8>), Refused> {
    let (conf, stream) = (s.conf.clone(), s.stream());
    let (upstream, local) = match upstream.serving(&stream.upstreams, &conf.groups) {
        Serving::Group(upstream, local) => (upstream, local),
        Serving::Status(status) => return Err(Refused(status)),
    };
    let mut key = Key::of(&upstream.group, s).map_err(|e| refuse(s, &e))?;
    let binding = Binding::find(s, upstream, &mut key).map_err(|e| refuse(s, &e))?;
    s.upstream.get_or_insert_default().binding = binding.map(Box::new);
    let picker = Picker::new(local, key);
    Ok((Servers::Group(picker), upstream.group.name.clone()))
}

/// Finds the servers of an address that became known with the session: a group, an address, or a name that is resolved.
async fn find(s: &mut Session, text: &[u8]) -> Result<(Servers, Vec<u8>), Refused> {
    let written = String::from_utf8_lossy(text).into_owned();
    let place = Place::parse(text).map_err(|m| {
        s.log(Level::Error, &format!("{m} in upstream \"{written}\""));
        Refused(500)
    })?;
    let name = place.host();
    let stream = s.stream();
    if place.port().is_none()
        && let Some(upstream) = stream.upstreams.with_name(&name).find(|u| u.group.explicit)
    {
        return group(s, upstream);
    }
    if place.port().is_none() && matches!(place, Place::Host(..)) {
        let name = String::from_utf8_lossy(&name);
        s.log(Level::Error, &format!("no port in upstream \"{name}\""));
        return Err(Refused(500));
    }
    let addrs = match place.literal(0) {
        Some(addr) => vec![addr],
        None => resolve(s, &name, place.port().unwrap_or(0)).await?,
    };
    Ok((Servers::Direct(addrs), text.to_vec()))
}

async fn resolve(s: &mut Session, name: &[u8], port: u16) -> Result<Vec<PeerAddr>, Refused> {
    let stream = s.stream();
    let core = stream.servers.get(s.server).map(|server| &server.settings.core).ok_or(Refused(500))?;
    let text = String::from_utf8_lossy(name);
    let Some(resolver) = &core.resolver.0 else {
        s.log(Level::Error, &format!("no resolver defined to resolve {text}"));
        return Err(Refused(500));
    };
    let thread = s.thread.clone();
    let until = thread.io.poller.now() + core.resolver_timeout.0;
    let found = thread.io.poller.deadline(until, resolver.addresses(name, false)).await;
    match found.unwrap_or(Err(forebay_net::resolver::Failure::Timeout)) {
        Ok(a) => Ok(a.ips.into_iter().map(|ip| PeerAddr::Inet(SocketAddr::new(ip, port))).collect()),
        Err(e) => {
            s.log(Level::Error, &format!("{text} could not be resolved ({e})"));
            Err(Refused(500))
        }
    }
}

/// Appends a value of each attempt, separated by ", ". Returns `false` if there was none.
fn each(s: &Session, out: &mut Vec<u8>, push: impl Fn(&Attempt, &mut Vec<u8>)) -> Result<bool, VarError> {
    let Some(upstream) = s.upstream.as_ref().filter(|u| !u.attempts.is_empty()) else { return Ok(false) };
    for (n, a) in upstream.attempts.iter().enumerate() {
        if n > 0 {
            out.extend_from_slice(b", ");
        }
        push(a, out);
    }
    Ok(true)
}

/// Appends a time of each attempt; `-` for one without it.
fn each_time(
    s: &Session,
    out: &mut Vec<u8>,
    time: impl Fn(&Attempt) -> Option<Duration>,
) -> Result<bool, VarError> {
    each(s, out, |a, out| match time(a) {
        Some(t) => seconds(out, t),
        None => out.push(b'-'),
    })
}

/// Variables of the proxy.
pub(crate) const VARIABLES: &[crate::variables::Row] = &[
    crate::variables::row("upstream_addr", |s, o| each(s, o, |a, o| o.extend_from_slice(&a.name))),
    crate::variables::row("upstream_last_addr", |s, o| {
        let last = s.upstream.as_ref().and_then(|u| u.attempts.last());
        Ok(last.is_some_and(|a| push_address(&a.name, o)))
    }),
    crate::variables::row("upstream_bytes_sent", |s, o| {
        each(s, o, |a, o| o.extend_from_slice(a.sent.to_string().as_bytes()))
    }),
    crate::variables::row("upstream_bytes_received", |s, o| {
        each(s, o, |a, o| o.extend_from_slice(a.received.to_string().as_bytes()))
    }),
    crate::variables::row("upstream_connect_time", |s, o| each_time(s, o, |a| a.connected)),
    crate::variables::row("upstream_first_byte_time", |s, o| each_time(s, o, |a| a.answered)),
    crate::variables::row("upstream_sticky_status", |s, o| {
        let is_sticky = s.upstream.as_ref().is_some_and(|u| u.binding.is_some());
        Ok(is_sticky && each(s, o, |a, o| o.extend_from_slice(a.sticky.map_or("", Status::word).as_bytes()))?)
    }),
    crate::variables::row("upstream_session_time", |s, o| each_time(s, o, |a| a.ended)),
];
