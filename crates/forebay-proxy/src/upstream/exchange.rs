//! One request to an upstream: chooses a server, sends the request, and reads the head of the response; after a failure asks
//! the next server (nginx: proxy_next_upstream). `modules/proxy/mod.rs` calls this; `stream/mod.rs` reads the body. Hot path.

use super::Reuse;
use super::attempts::{Attempts, Decision, Kept, Repeat};
use super::codec::muxed::{self, Ask};
use super::codec::{Codec, http2, http3};
use super::contact::Contact;
use super::fault::{Fault, client_gone, send_failed, send_timeout, timed_out};
use super::h3::alternatives::Origin;
use super::head::{HeadReader, unconnected};
use super::open::{Open, encrypt, greeting, local_address, open, wanted, watch};
use super::send::{Sender, Wrote};
use super::sticky::{self, Sticky};
use super::upload::{Stopped, Turn, Upload};
use crate::modules::proxy::{NextUpstream, Settings};
use crate::upstream::CALL;
use forebay_core::tls::client::Wanted;
use forebay_core::trace;
use forebay_core::upstream::config::Serving;
use forebay_core::upstream::greeting::SendProxy;
use forebay_core::upstream::lease::Lease;
use forebay_core::upstream::local::LocalSet;
use forebay_net::addr::PeerAddr;
use forebay_net::dial::LocalAddress;
use forebay_net::reactor::Deadline;
use forebay_net::wire::Watch;
use forebay_server::body::BodyError;
use forebay_server::config::upstreams::Upstream;
use forebay_server::connection::ClientGone;
use forebay_server::request::Request;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Servers that a request goes to.
#[derive(Debug)]
pub enum Target {
    /// Servers of a group of the configuration.
    Group {
        /// The group.
        local: Rc<LocalSet>,
        /// `sticky`.
        sticky: Option<Arc<Sticky>>,
    },
    /// Addresses found while the request is served.
    Direct(Vec<PeerAddr>),
    /// None: the group has no servers, and its `fallback` is this status.
    None(u16),
}

impl Target {
    /// Creates the target for a group.
    pub fn of(req: &Request, upstream: &Arc<Upstream>) -> Target {
        match upstream.serving(&req.conf.http.upstreams, &req.conf.groups) {
            Serving::Group(u, local) => Target::Group { local, sticky: sticky::of(&u.extras) },
            Serving::Status(status) => Target::None(status),
        }
    }

    /// Decides whether connections are reused. A group that `proxy_pass` implies keeps connections over HTTP/1.1 and
    /// HTTP/3 only.
    pub fn reuse(&self, req: &Request, s: &Settings) -> Reuse {
        let Target::Group { local, .. } = self else { return Reuse::No };
        let group = &local.group;
        // A connection that begins with the address of one client must not serve another.
        if s.protocol_header != SendProxy::Off {
            return Reuse::No;
        }
        // A kept connection would go on presenting a certificate whose files have changed.
        let tls = || req.own_location().upstream_tls.as_ref().filter(|_| CALL.of(req).encrypted);
        match group.explicit {
            true if group.keepalive.connections > 0 => Reuse::Group,
            false if tls().is_some_and(|tls| tls.reads_certificates()) => Reuse::No,
            false if CALL.of(req).codec.facts().is_reused_unasked => Reuse::Implied,
            _ => Reuse::No,
        }
    }
}

/// The body that goes with a request.
#[derive(Debug)]
pub enum Outgoing {
    /// There is none.
    None,
    /// Made by `proxy_set_body`.
    Bytes(Vec<u8>),
    /// The client's, read before.
    Stored,
    /// The client's, read while it is sent (nginx: proxy_request_buffering off); `true`: in chunks.
    Streamed(bool),
}

/// Asks servers until one has sent the head of a response. The head is then in `Upstreamed::head`, and the connection to the
/// server in `place`, which is empty before.
///
/// # Errors
/// The status to answer with; 499 if the client is gone.
pub async fn run(
    req: &mut Request,
    target: &Target,
    exchange: &Exchange<'_>,
    place: &mut Option<Contact>,
) -> Result<(), u16> {
    let Exchange { body, settings: s, .. } = *exchange;
    let kept = kept(req, s, body);
    let mut attempts = Attempts::new(req, target, s.rules(), kept).await?;
    let thread = req.thread.clone();
    let limit = Some(s.response_timeout.0).filter(|limit| !limit.is_zero());
    // One limit for all attempts together. `proxy_read_timeout` would begin again with each server.
    let limit = limit.map(|limit| thread.io.poller.after(limit));
    loop {
        let contact = place.insert(attempts.begin(req).await?);
        let Some(addr) = attempts.address() else { return Err(502) };
        let repeat = repeat(req, s, body);
        // A response without a head (HTTP/0.9) is accepted only where no other server could be asked instead.
        let headless = !attempts.asks_another(req, NextUpstream::InvalidHeader, repeat);
        let terms = Terms { fresh: !attempts.may_reuse(), headless };
        let attempt = exchange.attempt(req, contact, addr, terms);
        let asked = match limit {
            None => attempt.await,
            // Boxed, so that other requests do not keep room for it.
            Some(limit) => match Box::pin(thread.io.poller.until(limit, attempt)).await {
                Some(asked) => asked,
                None => {
                    let fault = timed_out(req, "while waiting for a response (proxy_response_timeout)");
                    attempts.failed(req, place, &fault, Repeat::Never);
                    return Err(fault.status);
                }
            },
        };
        // Decided again, since the attempt may have taken more of the client's body than is remembered for another
        // server.
        let repeat = self::repeat(req, s, body);
        let verdict = match asked {
            Ok(()) => attempts.answered(req, place, repeat),
            Err(fault) => attempts.failed(req, place, &fault, repeat),
        };
        match verdict {
            Decision::Answered => return Ok(()),
            Decision::Again => {
                if let Some(pause) = attempts.pause() {
                    // Boxed, since few requests wait between two attempts.
                    Box::pin(wait(req, pause, s.ignore_client_abort, limit)).await?;
                }
            }
            Decision::Stop(status) => return Err(status),
        }
    }
}

/// Waits between two attempts, while no server has the request. `stays`: a client that is gone ends nothing.
///
/// # Errors
/// The status to answer with if the client is gone, or if the time for a response is over.
async fn wait(req: &mut Request, pause: Duration, stays: bool, limit: Option<Deadline>) -> Result<(), u16> {
    let thread = req.thread.clone();
    let waiting = async {
        if stays {
            thread.io.poller.sleep(pause).await;
            return Ok(());
        }
        forebay_server::phases::pause(req, pause).await
    };
    let waited = match limit {
        None => Some(waiting.await),
        Some(limit) => thread.io.poller.until(limit, waiting).await,
    };
    match waited {
        Some(Ok(())) => Ok(()),
        Some(Err(ClientGone)) => Err(client_gone(req, "waiting for the next attempt").status),
        None => Err(timed_out(req, "while waiting for the next attempt (proxy_response_timeout)").status),
    }
}

/// Decides which kept connections a request may use. A request that cannot be sent again would fail if the kept connection of an
/// implied group turned out to be closed, so it gets a new connection.
fn kept(req: &Request, s: &Settings, body: &Outgoing) -> Kept {
    match CALL.of(req).reuse {
        Reuse::No => Kept::No,
        Reuse::Group => Kept::Group,
        Reuse::Implied => {
            let again = s.next_upstream.has(NextUpstream::Error) && repeat(req, s, body) == Repeat::Always;
            if again { Kept::Implied } else { Kept::No }
        }
    }
}

/// Decides whether a request may be sent again. A request that changes something may be sent again only if the
/// configuration allows it (nginx: non_idempotent). A request whose body is passed on as it comes may be sent again if no
/// server has acted upon it and all content that was taken from the client is remembered.
fn repeat(req: &Request, s: &Settings, body: &Outgoing) -> Repeat {
    if matches!(body, Outgoing::Streamed(_)) {
        return if req.body.len == req.body.stored.len() { Repeat::Unsent } else { Repeat::Never };
    }
    // nginx counts the same three methods. PUT and DELETE are idempotent (RFC 9110, section 9.2.2).
    let changes = matches!(req.head.method_text.of(&req.head.buf), b"POST" | b"LOCK" | b"PATCH");
    if changes && !s.next_upstream.has(NextUpstream::NonIdempotent) { Repeat::Unsent } else { Repeat::Always }
}

/// A request and the settings for its attempts.
pub struct Exchange<'e> {
    /// Head as it is sent.
    pub head: &'e [u8],
    /// Body.
    pub body: &'e Outgoing,
    /// Way in which the location says that servers are spoken to.
    pub codec: Codec,
    /// Settings of the location.
    pub settings: &'e Settings,
    /// `true` if the request asks for another protocol.
    pub upgrade: bool,
}

/// Terms of one attempt.
#[derive(Clone, Copy)]
struct Terms {
    /// The connection must be a new one.
    fresh: bool,
    /// An answer without a head is taken.
    headless: bool,
}

/// The opening of a connection. Boxed, so that requests that wait for answers keep no room for it.
type Connecting<'a> = Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>>;

/// Ends of a connection, and a number that differs for connections that cannot serve the same requests.
#[derive(Clone, Copy)]
struct Way<'a> {
    addr: &'a PeerAddr,
    local: Option<LocalAddress>,
    made_for: u64,
}

/// Protocols that connections over TCP offer with `proxy_http_version 3`.
const OVER_TCP: [&[u8]; 2] = [b"h2", b"http/1.1"];

impl Exchange<'_> {
    /// Asks the server of a contact.
    ///
    /// Thousands of requests may wait in here. Rare steps are boxed, so that waiting requests keep no room for them.
    async fn attempt(
        &self,
        req: &mut Request,
        contact: &mut Contact,
        addr: &PeerAddr,
        terms: Terms,
    ) -> Result<(), Fault> {
        let mut watch = watch(req, self.settings.ignore_client_abort);
        // Set for each attempt: an earlier one over HTTP/3 that fell back to TCP has left the codec of its connection in
        // the request.
        self.codec.begin(req, self.is_chunked());
        match self.codec {
            Codec::Http3(_) => {
                return Box::pin(self.attempt_over_quic(req, contact, addr, terms, &mut watch)).await;
            }
            Codec::Http2(_) => {
                return Box::pin(self.attempt_in_frames(req, contact, addr, terms.fresh, &mut watch)).await;
            }
            _ => {}
        }
        if let Some(connecting) = self.connect(req, contact, addr, terms.fresh, &mut watch)? {
            connecting.await?;
        }
        connected(req);
        self.ask_in_text(req, contact, terms.headless, &mut watch).await
    }

    /// Takes a kept connection to the server of a contact. Returns the future that opens a new one if there is none.
    fn connect<'a>(
        &'a self,
        req: &'a mut Request,
        contact: &'a mut Contact,
        addr: &'a PeerAddr,
        fresh: bool,
        watch: &'a mut Watch,
    ) -> Result<Option<Connecting<'a>>, Fault> {
        let s = self.settings;
        let wanted = wanted(req)?;
        let local = local_address(req)?;
        let made_for = made_for(req, wanted.as_ref(), local);
        if !fresh && contact.take_idle(&req.thread.io, made_for) {
            return Ok(None);
        }
        Ok(Some(Box::pin(async move {
            connect(req, contact, s, Way { addr, local, made_for }, wanted.as_ref(), watch).await.map(drop)
        })))
    }

    /// Sends the request and reads the head of the response as text.
    async fn ask_in_text(
        &self,
        req: &mut Request,
        contact: &mut Contact,
        headless: bool,
        watch: &mut Watch,
    ) -> Result<(), Fault> {
        self.send(req, contact, watch).await?;
        HeadReader::new(req, self.settings, watch).read(req, contact, headless).await
    }

    /// Asks the server over HTTP/2.
    async fn attempt_in_frames(
        &self,
        req: &mut Request,
        contact: &mut Contact,
        addr: &PeerAddr,
        fresh: bool,
        watch: &mut Watch,
    ) -> Result<(), Fault> {
        let wanted = wanted(req)?;
        let local = local_address(req)?;
        let made_for = made_for(req, wanted.as_ref(), local);
        let ask = self.ask(Way { addr, local, made_for }, fresh);
        let conn = match http2::find(req, contact, &ask) {
            Some(conn) => conn,
            // Boxed, since few requests open a connection: the others share one.
            None => Box::pin(http2::open(req, contact, wanted.as_ref(), &ask, watch)).await?,
        };
        contact.connected(conn);
        connected(req);
        muxed::exchange(req, contact, &ask, watch).await
    }

    /// Asks the server over HTTP/3, or over TCP if it does not speak that.
    async fn attempt_over_quic(
        &self,
        req: &mut Request,
        contact: &mut Contact,
        addr: &PeerAddr,
        terms: Terms,
        watch: &mut Watch,
    ) -> Result<(), Fault> {
        let s = self.settings;
        let Terms { fresh, headless } = terms;
        let mut wanted = wanted(req)?;
        let local = local_address(req)?;
        let origin = made_for(req, wanted.as_ref(), local);
        let ask = self.ask(Way { addr, local, made_for: origin }, fresh);
        // The stand-in for upstreams speaks HTTP/2 to those who want HTTP/3.
        let stands_in = trace::is_on();
        if !self.upgrade
            && !stands_in
            && http3::ask(req, contact, wanted.as_ref(), &ask, watch).await? == http3::Transport::Quic
        {
            return Ok(());
        }
        // A connection that switches protocols is one of HTTP/1.1.
        let offered = OVER_TCP.iter().skip(usize::from(self.upgrade));
        if let Some(wanted) = &mut wanted {
            wanted.offer(offered.map(|protocol| protocol.to_vec()).collect());
        }
        // The offered protocols are part of the number, so that an upgrade never gets a kept connection that has agreed
        // on HTTP/2.
        let made_for = made_for(req, wanted.as_ref(), local);
        let ask = self.ask(Way { addr, local, made_for }, fresh);
        let shared = if self.upgrade { None } else { http2::find(req, contact, &ask) };
        if let Some(shared) = shared {
            contact.connected(shared);
        } else if fresh || !contact.take_idle(&req.thread.io, made_for) {
            let alpn =
                connect(req, contact, s, Way { addr, local, made_for }, wanted.as_ref(), watch).await?;
            // The server has chosen HTTP/2 during the handshake, so the connection moves to the pool where other requests
            // can share it.
            if alpn.as_deref() == Some(b"h2") || (stands_in && !self.upgrade) {
                let conn = contact.disconnect().ok_or_else(unconnected)?;
                let shared = http2::adopt(req, contact, &ask, conn).ok_or_else(unconnected)?;
                contact.connected(shared);
            }
        }
        connected(req);
        if contact.conn().is_some_and(|conn| conn.wire().is_multiplexed()) {
            // HTTP/2 has frames of its own and forbids chunks (RFC 9113, section 8.2.2).
            Codec::HTTP2.begin(req, false);
            muxed::exchange(req, contact, &ask, watch).await?;
        } else {
            Codec::HTTP1.begin(req, self.is_chunked());
            self.ask_in_text(req, contact, headless, watch).await?;
        }
        if let (Some(wanted), PeerAddr::Inet(addr)) = (&wanted, addr) {
            http3::learn(req, wanted, Origin { addr: *addr, made_for: origin });
        }
        Ok(())
    }

    /// Returns `true` if the length of the body is not known.
    fn is_chunked(&self) -> bool {
        matches!(self.body, Outgoing::Streamed(true))
    }

    /// Returns the request to a server.
    fn ask<'a>(&'a self, way: Way<'a>, fresh: bool) -> Ask<'a> {
        let Way { addr, local, made_for } = way;
        Ask { head: self.head, body: self.body, settings: self.settings, addr, local, made_for, fresh }
    }

    /// Sends the request, or the part of it that the server reads before it answers.
    async fn send(&self, req: &mut Request, contact: &mut Contact, watch: &mut Watch) -> Result<(), Fault> {
        let timeout = self.settings.send_timeout.0;
        if let Outgoing::Streamed(_) = self.body {
            // The contact owns the upload, because the response may begin before the client's body ends.
            contact.upload = Some(Box::new(Upload::new(req, self.head, timeout)));
            return Box::pin(upload(req, contact, watch)).await;
        }
        let Some(conn) = contact.conn() else { return Err(Fault::new(NextUpstream::Error, 502)) };
        let mut sender = Sender { conn, timeout, watch };
        // A server that answers early gets no more of the request, and no other request may follow on the connection.
        if let Wrote::Early = sender.request(req, self.head, self.body).await? {
            contact.leave_off();
        }
        Ok(())
    }
}

/// Returns a number that differs for connections that cannot serve the same requests.
fn made_for(req: &Request, wanted: Option<&Wanted>, local: Option<LocalAddress>) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let mut made_for = wanted.map_or(0, Wanted::key) ^ CALL.of(req).codec.facts().made_for;
    // Servers may know their clients by the address that `proxy_bind` chose, so connections from different addresses are
    // not shared.
    if let Some(a) = local {
        made_for ^= BuildHasherDefault::<DefaultHasher>::default().hash_one(a);
    }
    made_for
}

/// Opens a connection to the server of a contact, and encrypts it if `wanted`. Returns the protocol that ALPN has agreed on.
async fn connect(
    req: &mut Request,
    contact: &mut Contact,
    s: &Settings,
    way: Way<'_>,
    wanted: Option<&Wanted>,
    watch: &mut Watch,
) -> Result<Option<Box<[u8]>>, Fault> {
    let greeting = greeting(req, s.protocol_header);
    let (timeout, keepalive) = (s.connect_timeout.0, s.socket_keepalive);
    let o = Open { addr: way.addr, local: way.local, timeout, keepalive, greeting: &greeting };
    let mut conn = open(req, &o, watch).await?;
    let alpn = match wanted {
        // Boxed, so that other requests do not keep room for it.
        Some(wanted) => Box::pin(encrypt(req, &mut conn, wanted, timeout, watch)).await?,
        None => None,
    };
    conn.made_for = way.made_for;
    contact.connected(conn);
    Ok(alpn)
}

/// Notes that there is a connection to the server of the current attempt.
fn connected(req: &mut Request) {
    if let Some(a) = req.modules.upstream.attempts.last_mut() {
        a.connect = Some(req.thread.io.poller.since(a.started));
    }
}

/// Returns the fault for a client's body that cannot be read.
fn refused(req: &Request, e: BodyError) -> Fault {
    match e {
        BodyError::Status(status) => Fault::own(status),
        // The statuses are nginx's: 408 for a body that stalls, 400 for a connection that ends within the body.
        BodyError::Gone if req.timed_out => Fault::own(408),
        BodyError::Gone => Fault::own(400),
    }
}

/// Passes the client's body on as it comes, until all of it is sent or the server has sent something.
pub(super) async fn upload(req: &mut Request, contact: &mut Contact, watch: &mut Watch) -> Result<(), Fault> {
    while let Contact { lease: Lease { conn: Some(conn), .. }, upload: Some(upload), .. } = contact {
        match upload.pass(req, conn, watch).await {
            Ok(Turn::More) => {}
            Ok(Turn::Answer) => return Ok(()),
            Ok(Turn::All) => contact.upload = None,
            Ok(Turn::Unwanted) => contact.leave_off(),
            Err(Stopped::Body(e)) => return Err(refused(req, e)),
            Err(Stopped::ClientGone) => return Err(client_gone(req, "sending request to upstream")),
            Err(Stopped::Timeout) => return Err(send_timeout(req)),
            Err(Stopped::Send(e)) => {
                // A stream knows more than the error number of a write, for example that the server has refused it
                // without acting upon it.
                let fault = muxed::send_failed(req, conn);
                return Err(fault.unwrap_or_else(|| send_failed(req, e)));
            }
        }
    }
    Ok(())
}

/// Room for one read, bytes: of a head with the content that comes with it, or of content. What was read is sent in one piece,
/// which must not fill a segment of the loopback device (64 KiB): with a small `sndbuf` the client's kernel would then wait 40 ms with
/// each acknowledgement.
pub(super) const READ: usize = 48 * 1024;
