//! A request on its way through the phases: what the client sent, what the configuration made of it,
//! and the response. One per runner, reused. Hot path.

use crate::body::RequestBody;
use crate::config::ListenAddr;
use crate::config::http::{Address, Http, Location, Server};
use crate::modules::ModuleState;
use crate::response::Response;
use crate::thread::{Thread, ThreadConfig};
use crate::variables::{Source, VarId};
use crate::wire::Wire;
use forebay_http::field::Slice;
use forebay_http::request::{Method, RequestHead};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

/// The reason why a variable cannot be evaluated; the request is answered with 500. The text is for the error log, and empty
/// where that has been told already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VarError(pub String);

impl VarError {
    /// An error that the error log has been told of.
    pub const LOGGED: VarError = VarError(String::new());
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// TCP.
    Inet(SocketAddr),
    /// A unix socket; has no address.
    Unix,
}

impl Peer {
    /// The IP address, if any.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Peer::Inet(a) => Some(a.ip()),
            Peer::Unix => None,
        }
    }
}

/// What a connection keeps between requests. Small: idle connections are counted in tens of thousands.
#[derive(Debug)]
pub struct Conn {
    /// What its bytes go through.
    pub wire: Wire,
    /// What its handshake came to.
    pub tls: Option<Rc<crate::tls::accept::Session>>,
    /// Plain where encryption was expected.
    pub unencrypted: bool,
    /// Serial number (`$connection`).
    pub number: u64,
    /// Client address.
    pub peer: Peer,
    /// Local address, where the listener's is a wildcard; asked for once.
    pub local: Option<SocketAddr>,
    /// PROXY protocol header.
    pub proxied: Option<Box<forebay_http::proxy_protocol::Header>>,
    /// The PROXY protocol header has been read, or there is none.
    pub greeted: bool,
    /// Listener.
    pub listener: u32,
    /// Requests so far.
    pub requests: u32,
    /// When it was accepted.
    pub accepted: Instant,
    /// Its time for a head is over: to be logged and closed.
    pub expired: bool,
    /// The beginning of a head whose rest has not come.
    pub partial: Option<Box<Partial>>,
    /// It speaks HTTP/2.
    pub session: Option<Rc<crate::h2::Session>>,
}

/// A head that is not complete.
#[derive(Debug)]
pub struct Partial {
    /// Bytes so far.
    pub buf: Box<[u8]>,
    /// When the first came.
    pub started: Instant,
}

impl Conn {
    /// What is known of it, for a request that is made inside the server for one of its own: without what its bytes
    /// go through.
    pub fn known(&self) -> Conn {
        Conn {
            tls: self.tls.clone(),
            unencrypted: self.unencrypted,
            number: self.number,
            peer: self.peer,
            local: self.local,
            proxied: self.proxied.clone(),
            greeted: true,
            listener: self.listener,
            requests: self.requests,
            ..Conn::none(self.accepted)
        }
    }

    /// The place of a connection where there is none.
    pub fn none(accepted: Instant) -> Conn {
        Conn {
            wire: Wire::none(),
            tls: None,
            unencrypted: false,
            number: 0,
            peer: Peer::Unix,
            local: None,
            proxied: None,
            greeted: false,
            listener: 0,
            requests: 0,
            accepted,
            expired: false,
            partial: None,
            session: None,
        }
    }
}

/// Appends an address as text.
pub fn push_peer(peer: Peer, out: &mut Vec<u8>) {
    match peer.ip() {
        Some(IpAddr::V4(a)) => {
            let mut text = [0u8; 16];
            let mut len = 0;
            for o in a.octets() {
                let (digits, n) = OCTETS[usize::from(o)];
                text[len..len + 4].copy_from_slice(&digits);
                len += usize::from(n);
            }
            // Each piece ends in a dot; the last one is not wanted.
            out.extend_from_slice(&text[..len - 1]);
        }
        Some(IpAddr::V6(a)) => out.extend_from_slice(a.to_string().as_bytes()),
        None => out.extend_from_slice(b"unix:"),
    }
}

/// Decimal text of a byte with a dot behind it, and its length.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut t = [([b'.'; 4], 0u8); 256];
    let mut i = 0;
    while i < 256 {
        let (h, d, u) = ((i / 100) as u8 + b'0', (i / 10 % 10) as u8 + b'0', (i % 10) as u8 + b'0');
        t[i] = if i >= 100 {
            ([h, d, u, b'.'], 4)
        } else if i >= 10 {
            ([d, u, b'.', b'.'], 3)
        } else {
            ([u, b'.', b'.', b'.'], 2)
        };
        i += 1;
    }
    t
};

/// A number that is used once in the life of the process (multipart boundaries).
pub fn next_serial() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// A stored value of a variable.
#[derive(Clone, Copy, Debug, Default)]
pub enum Slot {
    /// Not evaluated or set yet.
    #[default]
    Empty,
    /// Evaluated: no value.
    Missing,
    /// In the arena.
    Value(Slice),
}

/// Result of evaluating a regular expression last, for `$1` to `$9`.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    /// The text that was matched.
    pub text: Vec<u8>,
    /// Groups as offsets into `text`; (1, 0) = not part of the match.
    pub groups: Vec<(u32, u32)>,
}

/// What a header filter makes of a response that the client does not want.
#[derive(Debug)]
pub struct Refusal {
    /// Status that is answered instead.
    pub status: u16,
    /// `Content-Range` of that answer, if any.
    pub content_range: Vec<u8>,
}

/// A request.
pub struct Request {
    /// Thread that serves it.
    pub thread: Rc<Thread>,
    /// Configuration at the time it began.
    pub conf: Rc<ThreadConfig>,
    /// Connection.
    pub conn: Box<Conn>,
    /// The place holder of a request without a connection, while there is one.
    pub no_conn: Option<Box<Conn>>,
    /// Slot of the connection.
    pub token: crate::reactor::Token,
    /// Client address as text (`$remote_addr`); changed by realip.
    pub remote: Vec<u8>,
    /// Client address in effect; changed by realip.
    pub peer: Peer,
    /// Request head.
    pub head: Box<RequestHead>,
    /// Method in effect: an internal redirect for an error turns it into GET.
    pub method: Method,
    /// Decoded path in effect (`$uri`).
    pub uri: Vec<u8>,
    /// Query in effect (`$args`).
    pub args: Vec<u8>,
    /// Virtual server, index into [`Http::servers`].
    pub server: usize,
    /// Location, index into [`Http::locations`].
    pub location: usize,
    /// Response.
    pub resp: Response,
    /// Stored variables.
    pub slots: Vec<Slot>,
    /// Values of the stored variables.
    pub arena: Vec<u8>,
    /// Last captures.
    pub captures: Captures,
    /// When the first byte arrived.
    pub started: Instant,
    /// Redirected within the server, so `internal` locations are open.
    pub internal: bool,
    /// Internal redirects left.
    pub uri_changes: u8,
    /// Status that `error_page` is answering for, 0 if none.
    pub error_status: u16,
    /// Status was overridden by `error_page ... =`.
    pub status_override: Option<u16>,
    /// Set by a header filter.
    pub refusal: Option<Refusal>,
    /// Its first byte was there before this turn of the loop began, so what was found out in the turn is no older than it.
    pub early: bool,
    /// `try_files` found a file below the `alias` of a regular expression: the path is appended to it.
    pub add_uri_to_alias: bool,
    /// Path was changed by a rewrite or redirect (`path_changed` of the head no longer tells).
    pub rewritten: bool,
    /// The location is that of the path: not so after a rewrite that stays where it is, which a handler
    /// that replaces the location's part of the path must know.
    pub valid_location: bool,
    /// Bytes sent, head included (`$bytes_sent`).
    pub sent: u64,
    /// Bytes of the head sent.
    pub sent_head: u64,
    /// Bytes of the request received, head and body.
    pub received: u64,
    /// Where its client has been waited for.
    pub transfer: Option<Rc<crate::transfers::Transfer>>,
    /// What modules keep for this request.
    pub modules: ModuleState,
    /// `$request_completion`.
    pub complete: bool,
    /// Depth of variable evaluation, against cycles.
    pub depth: u8,
    /// Spare buffers.
    pub spare: Vec<Vec<u8>>,
    /// Whether the connection may serve another request.
    pub keep_alive: bool,
    /// The request was refused before its head was understood; 0 if not.
    pub refused: u16,
    /// Body of the request.
    pub body: RequestBody,
    /// How long the connection may be idle after this request; `None`: it has asked for nothing since it was idle.
    pub keepalive_timeout: Option<std::time::Duration>,
    /// The connection is closed right behind the response.
    pub closes_at_once: bool,
    /// The client did not read or write in time.
    pub timed_out: bool,
    /// `return 444`: closed without an answer.
    pub drop_connection: bool,
    /// Made for another request, inside the server.
    pub subrequest: bool,
    /// The client's request once more, which is over: `post_action`.
    pub post_action: bool,
    /// What it is made for is asked for by GET in place of the client's method.
    pub client_get: bool,
    /// How many requests it is away from that of the client.
    pub depth_of_subrequest: u8,
    /// Came in one packet with the request before it.
    pub pipelined: bool,
}

/// Deepest nesting of variables.
const MAX_DEPTH: u8 = 100;

impl Request {
    /// A request that has yet to begin.
    pub fn new(thread: Rc<Thread>) -> Request {
        let now = thread.clock.now();
        let conn = Box::new(Conn::none(now));
        Request {
            conf: thread.config(),
            thread,
            conn,
            no_conn: None,
            token: crate::reactor::Token::NONE,
            remote: Vec::new(),
            peer: Peer::Unix,
            head: Box::default(),
            method: Method::Get,
            uri: Vec::new(),
            args: Vec::new(),
            server: 0,
            location: 0,
            resp: Response::default(),
            slots: Vec::new(),
            arena: Vec::new(),
            captures: Captures::default(),
            started: now,
            internal: false,
            uri_changes: 0,
            error_status: 0,
            status_override: None,
            refusal: None,
            early: false,
            add_uri_to_alias: false,
            rewritten: false,
            valid_location: true,
            sent: 0,
            sent_head: 0,
            received: 0,
            transfer: None,
            modules: ModuleState::default(),
            complete: false,
            depth: 0,
            spare: Vec::new(),
            keep_alive: false,
            refused: 0,
            body: RequestBody::default(),
            keepalive_timeout: None,
            closes_at_once: false,
            timed_out: false,
            drop_connection: false,
            subrequest: false,
            post_action: false,
            client_get: false,
            depth_of_subrequest: 0,
            pipelined: false,
        }
    }

    /// The listen address that the connection came to.
    pub fn address(&self) -> Option<&Address> {
        self.address_in(&self.conf)
    }

    /// As [`Request::address`], borrowed from the configuration alone.
    pub fn address_in<'c>(&self, conf: &'c ThreadConfig) -> Option<&'c Address> {
        let n = conf.listeners.get(self.conn.listener as usize).copied().flatten()?;
        let at = conf.config.http.addresses.get(n)?;
        if at.exact.is_empty() {
            return Some(&at.default);
        }
        let local = self.conn.local?;
        Some(at.exact.iter().find(|(a, _)| *a == local).map_or(&at.default, |(_, a)| a))
    }

    /// Local address of the connection.
    pub fn local_address(&self) -> Option<SocketAddr> {
        if let Some(l) = self.conn.local {
            return Some(l);
        }
        let n = self.conf.listeners.get(self.conn.listener as usize).copied().flatten()?;
        match self.conf.config.listeners.get(n)?.addr {
            ListenAddr::Inet(a) => Some(a),
            ListenAddr::Unix(_) => None,
        }
    }

    /// Whether the listener's connections have send buffers of a size that was set (nginx: listen sndbuf=).
    pub fn has_fixed_send_buffer(&self) -> bool {
        let n = self.conf.listeners.get(self.conn.listener as usize).copied().flatten();
        n.and_then(|n| self.conf.config.listeners.get(n)).is_some_and(|l| l.options.sndbuf.is_some())
    }

    /// The listen address as text (`$server_addr` of unix sockets).
    pub fn listener_text(&self) -> String {
        let n = self.conf.listeners.get(self.conn.listener as usize).copied().flatten();
        n.and_then(|n| self.conf.config.listeners.get(n)).map(|l| l.text.clone()).unwrap_or_default()
    }

    /// Whether the client's method has given way to GET.
    fn turned_to_get(&self) -> bool {
        self.method == Method::Get && self.head.method != Method::Get
    }

    /// The method in effect.
    pub fn method_text(&self) -> &[u8] {
        if self.turned_to_get() { b"GET" } else { self.head.method_text.of(&self.head.buf) }
    }

    /// Whether the method in effect of the client's request, which this one may be made for, has given way to GET.
    pub fn client_turned_to_get(&self) -> bool {
        if self.subrequest { self.client_get } else { self.turned_to_get() }
    }

    /// Whether the size of the body has been checked for this request.
    pub fn body_checked(&self) -> bool {
        self.error_status == 413
    }

    /// Forgets a response that was begun; rates set by variables stay, and what was asked for with a 401,
    /// which a page of `error_page` is to carry.
    pub fn forget_response(&mut self) {
        let (rate, vary) = (self.resp.limit_rate, self.resp.gzip_vary);
        let proxy = self.resp.fields.get(b"Proxy-Authenticate").map(<[u8]>::to_vec);
        let authenticate: Vec<Vec<u8>> =
            self.resp.fields.all(b"WWW-Authenticate").map(<[u8]>::to_vec).collect();
        let handed_on = std::mem::take(&mut self.resp.handed_on);
        self.resp.clear();
        for (name, value) in handed_on.iter() {
            self.resp.fields.push(name, value);
        }
        self.resp.handed_on = handed_on;
        self.resp.limit_rate = rate;
        self.resp.gzip_vary = vary;
        for a in &authenticate {
            self.resp.fields.push(b"WWW-Authenticate", a);
        }
        if let Some(p) = proxy {
            self.resp.fields.push(b"Proxy-Authenticate", &p);
        }
    }

    /// The configuration's http block. A clone of the counter keeps it while the request changes.
    #[inline]
    pub fn http(&self) -> HttpRef {
        HttpRef(self.conf.clone())
    }

    /// A spare buffer, empty.
    pub fn take_buf(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives a spare buffer back.
    pub fn give_buf(&mut self, mut b: Vec<u8>) {
        if b.capacity() <= 65536 {
            b.clear();
            self.spare.push(b);
        }
    }

    /// Appends the value of a variable. `Ok(false)`: it has none.
    ///
    /// # Errors
    /// When the evaluation runs in a circle.
    pub fn var(&mut self, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        match self.slots.get(id.0 as usize) {
            Some(Slot::Value(s)) => {
                out.extend_from_slice(s.of(&self.arena));
                return Ok(true);
            }
            Some(Slot::Missing) => return Ok(false),
            _ => {}
        }
        let http = self.http();
        let Some(var) = http.vars.get(id.0 as usize) else { return Ok(false) };
        match &var.source {
            Source::Get(f) => f(self, out),
            Source::Prefix(f, rest) => f(self, rest, out),
            Source::Stored if var.by_set => {
                if http.location(self).settings.rewrite.uninitialized_variable_warn {
                    let name = String::from_utf8_lossy(&var.name);
                    self.log(
                        forebay_conf::error::Level::Warn,
                        &format!("using uninitialized \"{name}\" variable"),
                    );
                }
                self.store(id, Some(b""));
                Ok(true)
            }
            Source::Stored | Source::Absent | Source::Unknown => Ok(false),
            Source::Computed(c) => {
                if self.depth >= MAX_DEPTH {
                    return Err(VarError(format!(
                        "cycle while evaluating variable \"{}\"",
                        String::from_utf8_lossy(&var.name)
                    )));
                }
                self.depth += 1;
                let start = out.len();
                let found = c.compute(self, out);
                self.depth -= 1;
                let found = found?;
                if !c.volatile() {
                    let value = if found { Some(&out[start..]) } else { None };
                    store(&mut self.slots, &mut self.arena, id, value);
                }
                Ok(found)
            }
        }
    }

    /// Value of a variable as a vector of its own; `None` if it has none. For paths that are not hot.
    ///
    /// # Errors
    /// As [`Request::var`].
    pub fn var_value(&mut self, id: VarId) -> Result<Option<Vec<u8>>, VarError> {
        let mut out = Vec::new();
        Ok(self.var(id, &mut out)?.then_some(out))
    }

    /// Stores a variable's value for the rest of the request; `None` = it has no value.
    pub fn store(&mut self, id: VarId, value: Option<&[u8]>) {
        store(&mut self.slots, &mut self.arena, id, value);
    }

    /// Value of a variable by its name in lower case, whether or not the configuration mentions it. `None`: it is not
    /// known or has no value.
    ///
    /// # Errors
    /// As [`Request::var`].
    pub fn var_named(&mut self, name: &[u8]) -> Result<Option<Vec<u8>>, VarError> {
        let http = self.http();
        if let Some(at) = http.vars.iter().position(|v| *v.name == *name) {
            return self.var_value(VarId(at as u16));
        }
        let mut out = Vec::new();
        let found = match crate::variables::builtin(name).0 {
            Source::Get(f) => f(self, &mut out)?,
            Source::Prefix(f, rest) => f(self, &rest, &mut out)?,
            _ => false,
        };
        Ok(found.then_some(out))
    }

    /// Forgets values of variables that were replaced by others.
    pub fn compact_variables(&mut self) {
        let old = std::mem::take(&mut self.arena);
        for slot in &mut self.slots {
            if let Slot::Value(s) = slot {
                let start = self.arena.len() as u32;
                self.arena.extend_from_slice(s.of(&old));
                *s = Slice { start, end: self.arena.len() as u32 };
            }
        }
    }

    /// Appends the text of a numbered capture.
    pub fn capture(&self, n: u8, out: &mut Vec<u8>) {
        if let Some((a, b)) = self.captures.groups.get(n as usize)
            && a <= b
        {
            out.extend_from_slice(self.captures.text.get(*a as usize..*b as usize).unwrap_or_default());
        }
    }
}

fn store(slots: &mut Vec<Slot>, arena: &mut Vec<u8>, id: VarId, value: Option<&[u8]>) {
    let i = id.0 as usize;
    if slots.len() <= i {
        slots.resize(i + 1, Slot::Empty);
    }
    slots[i] = match value {
        None => Slot::Missing,
        Some(v) => {
            let start = arena.len() as u32;
            arena.extend_from_slice(v);
            Slot::Value(Slice { start, end: arena.len() as u32 })
        }
    };
}

/// Keeps the http configuration of a request at hand while the request is changed.
#[derive(Clone)]
pub struct HttpRef(Rc<ThreadConfig>);

impl std::ops::Deref for HttpRef {
    type Target = Http;
    #[inline]
    fn deref(&self) -> &Http {
        &self.0.config.http
    }
}

impl HttpRef {
    /// Location of a request.
    #[inline]
    pub fn location(&self, req: &Request) -> &Location {
        &self.locations[req.location]
    }
    /// Server of a request.
    #[inline]
    pub fn server(&self, req: &Request) -> &Server {
        &self.servers[req.server]
    }
}
