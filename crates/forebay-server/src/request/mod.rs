//! A request on its way through the phases: what the client sent, what the configuration made of it,
//! and the response. One per runner, reused. Hot path.

use crate::body::RequestBody;
use crate::config::http::{Http, Location, ROOT, Server};
use crate::connection::Connection;
use crate::modules::core::Settings as Core;
use crate::response::Response;
use crate::thread::{Thread, ThreadConfig};
use crate::way;
use ending::Ending;
use errors::Errors;
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::config::Address;
use forebay_core::pattern::LimitExceeded;
use forebay_core::vars::{Captures, VarStore};
use forebay_http::request::Framing;
use forebay_http::request::{Method, RequestHead};
use forebay_net::addr::{Peer, push_peer};
use forebay_net::wire::Wire;
use rare::Rare;
use states::States;
use std::net::SocketAddr;
use std::rc::Rc;
use tally::Tally;
use uri::Uri;

pub mod credentials;
mod derive;
pub mod ending;
pub mod errors;
pub mod rare;
pub mod reuse;
pub mod states;
pub mod tally;
pub mod upstream;
pub mod uri;
mod vars;
pub mod waiting;

pub use derive::SubBody;
pub use errors::Refusal;

/// Reason for which a request exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A client has sent it.
    #[default]
    Client,
    /// The server makes it for another request (nginx: subrequest).
    Sub {
        /// Number of requests between this one and the request of the client.
        depth: u8,
        /// `true` if the method of the client's request was changed to GET.
        client_get: bool,
    },
    /// A subrequest after the response (nginx: post_action); its log lines belong to the client's request.
    PostAction {
        /// As in [`Origin::Sub`].
        client_get: bool,
    },
    /// The server makes it to renew an entry of a cache.
    Background,
}

/// Facts about one request for handlers and modules. They are emptied for each request.
#[derive(Debug, Default)]
pub struct ModuleState {
    /// `$request_id`, made when first asked for.
    pub request_id: Option<[u8; 32]>,
    /// Upstream servers that the request was sent to.
    pub upstream: upstream::Upstreamed,
    /// Guard that counts the request as being processed.
    pub processing: Option<crate::counting::Processing>,
    /// States of modules.
    pub states: States,
}

impl ModuleState {
    /// Empties it for the next request.
    pub fn clear(&mut self) {
        // Every field is named, so that a new field cannot be left out.
        let ModuleState { request_id, upstream, processing, states } = self;
        *request_id = None;
        upstream.clear();
        *processing = None;
        states.clear();
    }
}

/// A request.
pub struct Request {
    /// Thread that serves it.
    pub thread: Rc<Thread>,
    /// Configuration at the time it began.
    pub conf: Rc<ThreadConfig>,
    /// Connection.
    pub conn: Connection,
    /// Reason for which the request exists.
    pub origin: Origin,
    /// Client address as text (`$remote_addr`); changed by realip.
    pub remote: Vec<u8>,
    /// Client address in effect; changed by realip.
    pub peer: Peer,
    /// Request head.
    pub head: Box<RequestHead>,
    /// Method in effect: an internal redirect for an error turns it into GET.
    pub method: Method,
    /// Path and query in effect.
    pub uri: Uri,
    /// Virtual server, index into [`Http::servers`].
    pub server: usize,
    /// Location, index into the locations of the server.
    pub location: usize,
    /// Response.
    pub resp: Response,
    /// Values of variables.
    pub vars: VarStore,
    /// Last captures.
    pub captures: Rare<Captures>,
    /// Times and bytes.
    pub tally: Tally,
    /// Errors, and what is answered for them.
    pub errors: Errors,
    /// Record of the waits for its client.
    pub transfer: Option<Rc<forebay_core::transfers::Transfer>>,
    /// State of modules.
    pub modules: ModuleState,
    /// A client has begun it, and its line in the access log has not been written.
    pub unlogged: bool,
    /// End of the connection.
    pub ending: Ending,
    /// Body of the request.
    pub body: RequestBody,
    /// Time for which the connection may be idle after this request; `None` if there has been no request since the connection was idle.
    pub keepalive_timeout: Option<std::time::Duration>,
    /// The client did not read or write in time.
    pub timed_out: bool,
    /// The head is gone. Variables of the log phase have stored values.
    pub without_head: bool,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let uri = String::from_utf8_lossy(&self.uri.path);
        f.debug_struct("Request").field("uri", &uri).field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Request {
    /// Makes a request that has yet to begin.
    pub fn new(thread: Rc<Thread>) -> Request {
        let now = thread.clock.now();
        let conn = Connection::closed(thread.no_client.clone(), 0);
        Request {
            conf: thread.config(),
            thread,
            conn,
            origin: Origin::Client,
            remote: Vec::new(),
            peer: Peer::Unix,
            head: Box::default(),
            method: Method::Get,
            uri: Uri::default(),
            server: 0,
            location: 0,
            resp: Response::default(),
            vars: VarStore::default(),
            captures: Rare::default(),
            tally: Tally::new(now),
            errors: Errors::default(),
            transfer: None,
            modules: ModuleState::default(),
            unlogged: false,
            ending: Ending::default(),
            body: RequestBody::default(),
            keepalive_timeout: None,
            timed_out: false,
            without_head: false,
        }
    }

    /// Returns the listen address that accepted the connection.
    pub fn address(&self) -> Option<&Address> {
        self.conn.client.address(&self.conf)
    }

    /// Returns the client of the connection.
    #[inline]
    pub fn client(&self) -> &Client {
        &self.conn.client
    }

    /// Returns the local address of the connection.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.conn.client.local_address(&self.conf)
    }

    /// Returns `true` if the request was made for another one.
    pub fn is_subrequest(&self) -> bool {
        matches!(self.origin, Origin::Sub { .. } | Origin::PostAction { .. })
    }

    /// Returns `true` if no client waits for the response: the request renews an entry of a cache.
    pub fn is_background(&self) -> bool {
        self.origin == Origin::Background
    }

    /// Returns `true` if the client's method was changed to GET.
    fn turned_to_get(&self) -> bool {
        self.method == Method::Get && self.head.method != Method::Get
    }

    /// Returns the method in effect.
    pub fn method_text(&self) -> &[u8] {
        if self.turned_to_get() { b"GET" } else { self.head.method_text.of(&self.head.buf) }
    }

    /// Returns `true` if the method of the client's request was changed to GET. For a subrequest, that is the request
    /// it was made for.
    pub fn client_turned_to_get(&self) -> bool {
        match self.origin {
            Origin::Sub { client_get, .. } | Origin::PostAction { client_get } => client_get,
            _ => self.turned_to_get(),
        }
    }

    /// Prepares for the first request of a connection, or for the request of a stream.
    pub fn start_clock(&mut self) {
        self.tally.start_clock(self.thread.clock.now());
        self.timed_out = false;
    }

    /// Takes a stream over: the wire, its client and the number of the request on its connection.
    pub fn take_stream(&mut self, wire: Wire, client: Rc<Client>, number: u32) {
        self.start_clock();
        self.conn.wire = wire;
        self.conn.client = client;
        self.conn.requests = number;
    }

    /// Lets a stream and its client go.
    pub fn end_stream(&mut self) {
        self.conn.wire = Wire::Closed;
        self.conn.client = self.thread.no_client.clone();
    }

    /// Takes a connection over.
    pub fn take_connection(&mut self, conn: Connection) {
        self.conn = conn;
    }

    /// Gives the connection back, for its slot.
    pub fn end_connection(&mut self) -> Connection {
        let none = Connection::closed(self.thread.no_client.clone(), 0);
        std::mem::replace(&mut self.conn, none)
    }

    /// Resets what belongs to one request.
    pub fn begin_request(&mut self) {
        self.conf = self.thread.config();
        self.resp.clear();
        self.method = self.head.method;
        self.uri.begin(&mut self.head);
        self.vars.clear();
        self.captures.clear();
        self.errors.clear();
        self.tally.begin(self.head.len as u64);
        self.transfer = None;
        self.modules.clear();
        self.timed_out = false;
        // A process that quits lets each connection end with its current response.
        self.ending = Ending::begin(self.head.keep_alive && !self.thread.quitting.get());
        self.body.begin(self.head.framing, self.head.len);
        // If its runner breaks off, only a request of a client has to get its line in the access log.
        self.unlogged = self.origin == Origin::Client;
        self.take_peer();
    }

    /// Takes over the address of the client and its text. The request before has often left the same text.
    fn take_peer(&mut self) {
        let peer = self.conn.client.peer;
        if self.remote.is_empty() || self.peer.ip() != peer.ip() {
            self.remote.clear();
            push_peer(peer, &mut self.remote);
        }
        self.peer = peer;
    }

    /// Chooses the virtual server by the host, and with it the first location level. If that fails it is the default server, and
    /// the request must not be served.
    ///
    /// # Errors
    /// A pattern of a `server_name` exceeded its limits, which is logged.
    pub fn choose_server(&mut self) -> Result<(), LimitExceeded> {
        let conf = self.conf.clone();
        let address = self.conn.client.address(&conf);
        // A head that was not read to its end may not have come to its `Host` field, so it does not count as a head without a host.
        let has_host = !self.head.host.is_empty() || self.head.len > 0;
        // Until then the server is that of the name in the TLS handshake, as in nginx.
        self.server = self.conn.client.server(&conf, !has_host);
        let (mut chosen, mut named) = (Ok(()), false);
        if let Some(a) = address
            && !a.names.is_empty()
            && has_host
        {
            // The host leaves the head for a moment, because a pattern stores its captures in the request.
            let host = std::mem::take(&mut self.head.host);
            match a.names.find(&host) {
                Ok(Some((s, pattern))) => {
                    (self.server, named) = (s, true);
                    if let Some(p) = pattern {
                        chosen = p.exec(self, &host).map(drop);
                    }
                }
                Ok(None) => {}
                Err(p) => chosen = Err(p.log_failure(self, &host)),
            }
            self.head.host = host;
        }
        // Until a location is chosen, the settings of the server apply.
        self.location = ROOT;
        way::server(self, named);
        let root = conf.http.location(self);
        crate::counting::begin(self, root);
        // nginx uses the settings of the server until a location is chosen.
        self.keepalive_timeout = Some(root.settings.core.keepalive_timeout.timeout);
        chosen
    }

    /// Returns a number of the request's location that no other location of its configuration has.
    pub fn place(&self) -> usize {
        // The number of a server and the number of a location both fit into half a word.
        self.server.rotate_left(usize::BITS / 2) ^ self.location
    }

    /// Returns the number of bytes of the head's buffer that this request used.
    pub fn consumed(&self) -> usize {
        self.body.consumed(self.head.len)
    }

    /// Applies the settings of a location that govern the connection.
    pub fn update_connection_settings(&mut self, core: &Core) {
        self.keepalive_timeout = Some(core.keepalive_timeout.timeout);
        if self.ending.keeps_alive() && (self.connection_is_old(core) || self.disabled_agent(core)) {
            self.ending.close();
        }
    }

    /// Returns `true` if the connection has served the maximum number of requests, or has been open for the maximum time, by the settings
    /// of a location.
    pub fn connection_is_old(&self, core: &Core) -> bool {
        // The keys have sealed as much as they should, or a reload asks for another handshake. Only a new connection helps.
        if self.conn.wire.is_worn() || self.conn.client.tls.as_ref().is_some_and(|s| s.outdated.get()) {
            return true;
        }
        core.keepalive_timeout.timeout.is_zero()
            || u64::from(self.conn.requests) >= core.keepalive_requests.0
            || self
                .conn
                .client
                .accepted
                // A very long time has no end that a clock can show, and so no effect.
                .checked_add(core.keepalive_time.0)
                .is_some_and(|end| self.tally.started > end)
    }

    /// Returns `true` if the client's browser must not send a second request (nginx: keepalive_disable).
    fn disabled_agent(&self, core: &Core) -> bool {
        let d = core.keepalive_disable;
        if self.method != Method::Post && !d.safari {
            return false;
        }
        let Some(agent) = self.head.get(forebay_http::field::Name::UserAgent) else { return false };
        let has = |what: &[u8]| memchr::memmem::find(agent, what).is_some();
        // nginx recognizes the old browsers by the same words: MSIE 4, 5, and 6 without SV1.
        let old_msie = match memchr::memmem::find(agent, b"MSIE ").and_then(|at| agent.get(at + 5..at + 7)) {
            Some([b'4' | b'5', b'.']) => true,
            Some([b'6', b'.']) => !has(b"SV1"),
            _ => false,
        };
        // Opera calls itself MSIE for compatibility, and Chrome calls itself Safari.
        (d.msie6 && self.method == Method::Post && old_msie && !has(b"Opera"))
            || (d.safari && has(b"Safari/") && has(b"Mac OS X") && !has(b"Chrome"))
    }

    /// Returns `true` if a body follows the head.
    pub fn has_body(&self) -> bool {
        !matches!(self.head.framing, Framing::None | Framing::Length(0))
    }

    /// Logs the field lines that were ignored.
    #[inline]
    pub fn log_ignored(&mut self) {
        if self.head.ignored.is_empty() {
            return;
        }
        for line in std::mem::take(&mut self.head.ignored) {
            let text = line.of(&self.head.buf).to_vec();
            self.log_with(Level::Info, |out| {
                let parts: [&[u8]; 3] = [
                    b"client sent invalid header line: \"",
                    &text,
                    b"\" while reading client request headers",
                ];
                parts.iter().for_each(|part| out.extend_from_slice(part));
            });
        }
    }

    /// Returns `true` if the size of the body has been checked for this request.
    pub fn body_checked(&self) -> bool {
        self.errors.original == 413
    }

    /// Drops a response that was begun. Rates that variables have set stay, and so do the challenges of a 401, because a page of
    /// `error_page` has to carry them.
    pub fn forget_response(&mut self) {
        let (rate, vary) = (self.resp.limit_rate, self.resp.server_fields.vary);
        let proxy = self.resp.fields.get(b"Proxy-Authenticate").map(<[u8]>::to_vec);
        let authenticate: Vec<Vec<u8>> =
            self.resp.fields.all(b"WWW-Authenticate").map(<[u8]>::to_vec).collect();
        // Fields that came with `X-Accel-Redirect` stay, whichever location answers.
        let handed_on = std::mem::take(&mut self.resp.handed_on);
        self.resp.clear();
        for (name, value) in handed_on.iter() {
            self.resp.fields.push(name, value);
        }
        self.resp.handed_on = handed_on;
        self.resp.limit_rate = rate;
        self.resp.server_fields.vary = vary;
        for a in &authenticate {
            self.resp.fields.push(b"WWW-Authenticate", a);
        }
        if let Some(p) = proxy {
            self.resp.fields.push(b"Proxy-Authenticate", &p);
        }
    }

    /// Returns the http block of the configuration. The reference is counted, so that the request can be changed meanwhile.
    #[inline]
    pub fn http(&self) -> HttpRef {
        HttpRef(self.conf.clone())
    }

    /// Returns the location of the request, for callers that do not change the request meanwhile.
    #[inline]
    pub fn own_location(&self) -> &Location {
        self.conf.http.location(self)
    }

    /// Takes a spare buffer of the thread, which is empty.
    #[inline]
    pub fn take_buf(&self) -> Vec<u8> {
        self.thread.buffers.take()
    }

    /// Gives a spare buffer back.
    #[inline]
    pub fn give_buf(&self, b: Vec<u8>) {
        self.thread.give_buffer(b);
    }
}

/// Keeps the http configuration of a request at hand while the request is changed.
#[derive(Clone)]
pub struct HttpRef(Rc<ThreadConfig>);

impl std::ops::Deref for HttpRef {
    type Target = Http;
    #[inline]
    fn deref(&self) -> &Http {
        &self.0.http
    }
}

impl Http {
    /// Returns the location of a request.
    #[inline]
    pub fn location(&self, req: &Request) -> &Location {
        &self.servers[req.server].locations[req.location]
    }
    /// Returns the server of a request.
    #[inline]
    pub fn server(&self, req: &Request) -> &Server {
        &self.servers[req.server]
    }
}

/// Returns the values of all lines with a name, from either end.
pub fn field_lines<'h>(head: &'h RequestHead, name: &'h [u8]) -> impl DoubleEndedIterator<Item = &'h [u8]> {
    let named = head.fields.iter().filter(move |f| f.name.of(&head.buf).eq_ignore_ascii_case(name));
    named.map(|f| f.value.of(&head.buf))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_text_of_the_address_is_that_of_the_client() {
        let mut req = testing::request("", "");
        let inet = |text: &str| Peer::Inet(text.parse().expect("an address"));
        let begin = |req: &mut Request, peer| {
            let none = Client::none(req.tally.started);
            req.conn.client = Rc::new(Client { peer, ..none });
            req.begin_request();
            (req.peer, String::from_utf8_lossy(&req.remote).into_owned())
        };
        for (peer, text) in [
            (Peer::Unix, "unix:"),
            (inet("192.0.2.1:1"), "192.0.2.1"),
            (inet("192.0.2.1:2"), "192.0.2.1"),
            (inet("[2001:db8::1]:2"), "2001:db8::1"),
            (Peer::Unix, "unix:"),
        ] {
            assert_eq!(begin(&mut req, peer), (peer, text.to_owned()));
        }
        // A trusted proxy has named the client in this way.
        req.peer = inet("198.51.100.7:1");
        req.remote = b"198.51.100.7".to_vec();
        let peer = inet("192.0.2.1:1");
        assert_eq!(begin(&mut req, peer), (peer, "192.0.2.1".to_owned()));
    }
}
