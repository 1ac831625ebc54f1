//! Content handler of `proxy_pass` and of the directives for other protocols, such as `fastcgi_pass` (nginx:
//! ngx_http_proxy_module). Asks the cache, makes the request to the upstream, and takes its response. The conversation
//! itself is in `upstream/`. Hot path.

pub mod buffers;
mod cached;
mod respond;
mod settings;
mod url;

use crate::cache::local::Entry;
use crate::modules::proxy_cache::CacheStatus;
use crate::modules::proxy_cache::CacheZone;
use crate::modules::{proxy_bind, proxy_cache, proxy_cookie, proxy_http3, proxy_ssl};
use crate::upstream::CALL;
use crate::upstream::codec::decoder::{Announced, Decoder};
use crate::upstream::codec::{Asked, Codec};
use crate::upstream::contact::Contact;
use crate::upstream::exchange::{self, Exchange, Outgoing};
use crate::upstream::stream::{self, Body};
use cached::{CacheAnswer, Fetch};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::vars::VarError;
use forebay_http::request::{Framing, Method, Version};
use forebay_server::body::{self, BodyError, Further};
use forebay_server::config::Scope;
use forebay_server::config::http::{Kind, LocationBuild};
use forebay_server::module::{Content, Handler, Module, Needs, Step};
use forebay_server::phases::Outcome;
use forebay_server::request::Request;
use std::rc::Rc;
use std::sync::Arc;

pub use settings::tries;
pub use settings::*;
pub use url::{Destination, Pass, To};

/// `proxy`.
pub static MODULE: Module = Module {
    settings: &[
        &SETTINGS,
        &proxy_cookie::SETTINGS,
        &proxy_bind::SETTINGS,
        &proxy_http3::SETTINGS,
        &proxy_ssl::SETTINGS,
    ],
    location_directives: &[("proxy_pass", pass)],
    ..Module::NONE
};

/// Reads `proxy_pass`.
///
/// # Errors
/// In nginx's words.
fn pass(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    refuse_second(Codec::HTTP1, d, l, cx)?;
    let prefix = match l.kind {
        // Only such a name is a part of the request's path that the URI of `proxy_pass` can replace.
        Kind::Exact | Kind::Prefix | Kind::PrefixOnly => Some(l.name.clone()),
        _ => None,
    };
    let pass = Pass::parse(d, prefix, cx)?;
    l.content = Content::of(Proxy(Arc::new(pass)));
    Ok(())
}

/// Reads `fastcgi_pass`, `uwsgi_pass`, `scgi_pass`, `grpc_pass` or `memcached_pass`.
///
/// # Errors
/// In nginx's words.
pub fn pass_by(codec: Codec, d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    refuse_second(codec, d, l, cx)?;
    l.content = Content::of(Proxy(Arc::new(Pass::parse_place(d, codec, cx)?)));
    Ok(())
}

/// Refuses a second directive of the same protocol in a location. If there are directives of several protocols, the last
/// one counts, as in nginx.
///
/// # Errors
/// `"x" directive is duplicate`.
fn refuse_second(codec: Codec, d: &Directive, l: &LocationBuild, cx: &Scope<'_>) -> Result<(), Error> {
    match destination(l.content.as_ref()) {
        Some(pass) if pass.codec == codec => {
            Err(cx.error(d, format!("\"{}\" directive is duplicate", d.name.as_str())))
        }
        _ => Ok(()),
    }
}

/// Content handler of `proxy_pass` and of the directives of the other protocols.
#[derive(Debug)]
struct Proxy(Arc<Pass>);

impl Handler for Proxy {
    fn handle<'r>(&'r self, req: &'r mut Request) -> Step<'r> {
        Step::later(async { run(req, &self.0).await.into() })
    }

    fn needs(&self) -> Needs {
        Needs { upstream: true, ..Needs::default() }
    }
}

/// Returns the destination of the requests of a location, if its content handler passes them on.
pub fn destination(content: Option<&Content>) -> Option<&Arc<Pass>> {
    Some(&content?.handler::<Proxy>()?.0)
}

/// Answers a request with the response of an upstream or a cache.
async fn run(req: &mut Request, pass: &Arc<Pass>) -> Outcome {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    match handle(req, pass, s).await {
        Ok(out) => out,
        Err(Stop::Status(499)) => {
            req.resp.status = 499;
            // As in nginx, 499 appears in the log only: the client is gone, and nothing is sent.
            req.ending.drop_connection();
            Outcome::Done
        }
        Err(Stop::Status(status)) => Outcome::Status(status),
        Err(Stop::Gone) => {
            req.ending.drop_connection();
            Outcome::Done
        }
    }
}

/// Reason for which a request gets no response of an upstream.
enum Stop {
    /// The request is answered with this status.
    Status(u16),
    /// The client is gone or too slow, so nothing is answered.
    Gone,
}

impl From<BodyError> for Stop {
    fn from(e: BodyError) -> Stop {
        match e {
            BodyError::Status(s) => Stop::Status(s),
            BodyError::Gone => Stop::Gone,
        }
    }
}

impl From<VarError> for Stop {
    fn from(_: VarError) -> Stop {
        Stop::Status(500)
    }
}

/// Reads the body of the request where that is needed, asks, and takes the response.
async fn handle(req: &mut Request, pass: &Arc<Pass>, s: &Settings) -> Result<Outcome, Stop> {
    let streamed = take_body(req, pass, s).await?;
    let mut taken = Taken { streamed, ..Taken::default() };
    let out = match ask(req, pass, s, &mut taken).await {
        Ok(Answer::Entry(e)) => respond::cached(req, &e, pass, s),
        Ok(Answer::Response(asked)) => respond::take(req, &mut taken, &asked, pass, s),
        Ok(Answer::Purged) => {
            req.resp.status = 204;
            Ok(Outcome::Done)
        }
        Ok(Answer::Nothing) => Ok(Outcome::Done),
        Err(stop) => Err(stop),
    };
    keep_failure(req, &mut taken, out.as_ref().err());
    if taken.contact.is_some() {
        // The client gets another response (an error page, an entry of the cache), so the rest of the upstream's is not read.
        // The connection is kept only if there is no rest.
        let head = &req.modules.upstream.head;
        let missing = pass.codec.facts().missing == Some(head.status);
        let whole = missing && head.buf.len() == head.len;
        stream::over(req, &mut taken.contact, whole);
    }
    out
}

/// Reads the body of the request. Returns `true` if it is not read here but streamed: sent to the upstream as it comes.
async fn take_body(req: &mut Request, pass: &Arc<Pass>, s: &Settings) -> Result<bool, Stop> {
    // Before an internal redirect, another upstream may have received the beginning of the body.
    let given = !req.body.stored.complete && req.body.len > 0;
    if given && req.body.len != req.body.stored.len() {
        // A part of the body is not stored. A request without a body can still be made, for example for an error page.
        let wanted = s.set_body.0.is_none() && s.pass_request_body;
        if wanted && !matches!(req.method, Method::Get | Method::Head) {
            req.log(Level::Error, "client request body has been passed to another upstream");
            return Err(Stop::Status(502));
        }
        return Ok(false);
    }
    // A body whose beginning another upstream has got is read to its end first, so that this upstream gets all of it.
    let streamed = !given && streams(req, pass, s);
    if !streamed && !body::is_none(req) {
        body::read_all(req).await?;
    }
    Ok(streamed)
}

/// Returns `true` if the body of the request is sent as it comes (nginx: proxy_request_buffering off).
fn streams(req: &Request, pass: &Pass, s: &Settings) -> bool {
    !s.request_buffering
        && s.set_body.0.is_none()
        && !req.body.stored.complete
        && s.pass_request_body
        && pass.codec.in_version(s.http_version).can_stream(req.head.framing)
        // A body that has arrived is stored instead: then it can be sent to another server after a failure.
        && (!body::has_come(req) || shows_framing(req, pass, s))
}

/// Returns `true` if the upstream learns that the body has come without a length. As in nginx, this goes by the version that the client
/// speaks: over HTTP/1 and HTTP/3 a body that has arrived with its head gets a length.
fn shows_framing(req: &Request, pass: &Pass, s: &Settings) -> bool {
    req.head.framing == Framing::Stream
        && req.head.version == Version::Http2
        && !pass.codec.in_version(s.http_version).facts().is_multiplexed
}

/// Fetches the next slice of a response that has begun (nginx: slice). Returns `None` if that fails.
pub async fn more(req: &mut Request) -> Option<Further> {
    let http = req.http();
    let l = http.location(req);
    let pass = destination(l.content.as_ref())?;
    let s = SETTINGS.of(&l.settings);
    let mut taken = Taken::default();
    let got = ask(req, pass, s, &mut taken).await;
    keep_failure(req, &mut taken, got.as_ref().err());
    req.modules.upstream.log_name.clear();
    match got {
        Ok(Answer::Entry(e)) => {
            respond::load_head(req, &e);
            Some(Further::Part(e.part()))
        }
        Ok(Answer::Response(asked)) => {
            respond::slice(req, &mut taken, asked.to_head, s).ok().map(|body| Further::Body(Box::new(body)))
        }
        _ => None,
    }
}

/// Notes in the cache that a request has failed without a response of any server, so that the next requests need not ask.
fn keep_failure(req: &Request, taken: &mut Taken, stop: Option<&Stop>) {
    if let Some(Stop::Status(status @ (502 | 504))) = stop {
        let http = req.http();
        let cs = proxy_cache::SETTINGS.of(&http.location(req).settings);
        cached::remember_failure(req, std::mem::take(&mut taken.fetch), cs, *status);
    }
}

/// Resources that a request holds while the upstream is asked and the response is passed on.
#[derive(Default)]
struct Taken {
    /// Server that is asked, with the connection to it.
    contact: Option<Contact>,
    /// Task of the cache: where the response is stored, and the stale one it replaces.
    fetch: Fetch,
    /// `true` if the body of the request is sent as it comes.
    streamed: bool,
}

/// Request as an upstream has got it.
struct SentRequest {
    /// `true` if its method is HEAD.
    to_head: bool,
    /// `true` if it asks to switch to another protocol.
    upgrade: bool,
}

/// Source of the response.
enum Answer {
    /// An entry of a cache.
    Entry(Rc<Entry>),
    /// An upstream, from [`Taken::contact`], which has got this request.
    Response(SentRequest),
    /// No answer: the request was a purge, which is done.
    Purged,
    /// No answer: another request renews the entry that this background request was made for.
    Nothing,
}

/// Asks the cache, and the upstream if the cache has no answer.
async fn ask(req: &mut Request, pass: &Arc<Pass>, s: &Settings, taken: &mut Taken) -> Result<Answer, Stop> {
    let http = req.http();
    let cs = proxy_cache::SETTINGS.of(&http.location(req).settings);
    CALL.of_mut(req).codec = pass.codec.in_version(s.http_version);
    // The block ends the life of what only the choice needs, so a request that waits for its upstream keeps no room for
    // it.
    let (target, uri) = {
        let (destination, uri) = pass.destination(req).map_err(Stop::Status)?;
        if proxy_cache::STATE.of(req).status.is_some() {
            proxy_cache::STATE.of_mut(req).is_former = true;
        }
        if !matches!(cs.zone, CacheZone::Off) {
            match cached::look(req, &uri, cs).await? {
                CacheAnswer::Entry(e) => return Ok(Answer::Entry(e)),
                CacheAnswer::Purged => return Ok(Answer::Purged),
                CacheAnswer::Nothing => return Ok(Answer::Nothing),
                CacheAnswer::Fetch(f) => taken.fetch = f,
            }
        }
        let target = match destination {
            Destination::Known(target) => target,
            // Boxed, so that other requests do not keep room for it.
            place => Box::pin(place.find(req)).await.map_err(Stop::Status)?,
        };
        (target, uri)
    };
    // Set before the request is written, because its `Connection` field depends on it.
    CALL.of_mut(req).reuse = target.reuse(req, s);
    let order = Order::new(req, pass, s, uri, taken)?;
    let got = exchange::run(req, &target, &order.exchange(s), &mut taken.contact).await;
    // The written request says more than the client's, since settings may have changed its method.
    let asked = SentRequest { to_head: order.codec.is_to_head(req, &order.head), upgrade: order.upgrade };
    req.give_buf(order.head);
    if let Some(e) = stale_instead(req, got, s, taken) {
        return Ok(Answer::Entry(e));
    }
    got.map_err(Stop::Status)?;
    // This 304 answers conditions that were made of the stale entry, so the entry is still right.
    let confirms = req.modules.upstream.head.status == 304 && cs.revalidate && taken.fetch.stale.is_some();
    match taken.contact.take_if(|_| confirms) {
        Some(contact) => {
            // Boxed, so that other requests do not keep room for it.
            Box::pin(confirmed(req, contact, s, std::mem::take(&mut taken.fetch))).await
        }
        None => Ok(Answer::Response(asked)),
    }
}

/// A request as it goes to a server.
struct Order {
    head: Vec<u8>,
    body: Outgoing,
    codec: Codec,
    /// `true` if the request asks to switch to another protocol.
    upgrade: bool,
}

impl Order {
    /// Writes the request.
    fn new(
        req: &mut Request,
        pass: &Arc<Pass>,
        s: &Settings,
        uri: Vec<u8>,
        taken: &Taken,
    ) -> Result<Order, Stop> {
        let Taken { fetch, streamed, .. } = taken;
        let body = outgoing(req, s, *streamed)?;
        // The head is kept while the request waits, so it gets a short buffer.
        let mut head = req.thread.buffers.take_short();
        let asked = Asked {
            settings: s,
            uri: &uri,
            body: &body,
            key: pass.key.as_ref(),
            stored: fetch.cacheable(),
            as_get: fetch.convert,
        };
        let codec = CALL.of(req).codec;
        let upgrade = codec.write_request(req, &asked, &mut head);
        let upgrade = upgrade.map_err(|e| Stop::Status(e.status(req)))?;
        req.modules.upstream.log_path = uri;
        if !pass.codec.facts().logs_path {
            // As in nginx, the error log names the server without a path.
            req.modules.upstream.log_path.clear();
        }
        // A response that is stored is fetched to its end even if the client leaves.
        CALL.of_mut(req).detached = fetch.cacheable() || req.is_background();
        Ok(Order { head, body, codec, upgrade })
    }

    fn exchange<'o>(&'o self, s: &'o Settings) -> Exchange<'o> {
        Exchange { head: &self.head, body: &self.body, codec: self.codec, settings: s, upgrade: self.upgrade }
    }
}

/// Returns the stale entry if it is served in place of the upstream's response or failure (nginx: proxy_cache_use_stale).
fn stale_instead(
    req: &mut Request,
    got: Result<(), u16>,
    s: &Settings,
    taken: &mut Taken,
) -> Option<Rc<Entry>> {
    let kind = match got {
        Ok(()) => NextUpstream::of_status(req.modules.upstream.head.status),
        Err(_) => CALL.of(req).fault,
    };
    let http = req.http();
    let cs = proxy_cache::SETTINGS.of(&http.location(req).settings);
    if !cached::serves_instead(req, &taken.fetch, cs, kind) {
        return None;
    }
    let stale = taken.fetch.stale.clone()?;
    // The rest of the failed response is not read, so its connection is closed.
    if let Some(contact) = taken.contact.take() {
        let decoder = Decoder::new(CALL.of(req).codec, Announced::NOTHING);
        Body::new(contact, decoder, s.read_timeout.0).abandon(req);
    }
    proxy_cache::STATE.of_mut(req).status = Some(CacheStatus::Stale);
    Some(stale)
}

/// Answers with the stored response that the upstream has confirmed (RFC 9111, section 4.3.3).
async fn confirmed(req: &mut Request, contact: Contact, s: &Settings, fetch: Fetch) -> Result<Answer, Stop> {
    let http = req.http();
    let cs = proxy_cache::SETTINGS.of(&http.location(req).settings);
    // A 304 has no content, so this body ends without any input, and its end keeps or closes the connection.
    let codec = CALL.of(req).codec;
    // Bytes after the head of a 304 belong to nothing, so another request on the connection could get them as its
    // response.
    let clean = req.modules.upstream.head.buf.len() == req.modules.upstream.head.len;
    let announced = Announced { reusable: codec.keeps_alive(req) && clean, ..Announced::NOTHING };
    let mut body = Body::new(contact, Decoder::new(codec, announced), s.read_timeout.0);
    body.feed(req, b"", &mut Vec::new());
    let entry = cached::revalidated(req, fetch, s, cs).await;
    entry.map(Answer::Entry).ok_or(Stop::Status(502))
}

/// Returns the body that goes to the upstream.
fn outgoing(req: &mut Request, s: &Settings, streamed: bool) -> Result<Outgoing, Stop> {
    // As in nginx, `proxy_set_body` applies even if `proxy_pass_request_body` is off.
    if let Some(t) = &s.set_body.0 {
        return t.value(req).map(Outgoing::Bytes).map_err(Stop::from);
    }
    if !s.pass_request_body || (!streamed && !req.body.stored.complete) {
        return Ok(Outgoing::None);
    }
    Ok(match req.head.framing {
        Framing::None => Outgoing::None,
        // Without an announced length, the body goes on in chunks or frames.
        framing if streamed => Outgoing::Streamed(!matches!(framing, Framing::Length(_))),
        _ => Outgoing::Stored,
    })
}
