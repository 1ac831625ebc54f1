//! `proxy_pass`: the request as it goes to an upstream, and the response as it comes back (nginx:
//! ngx_http_proxy_module). The conversation itself is in `upstream/`. Hot path.

mod cached;
mod respond;
mod url;

use crate::body::{self, BodyError};
use crate::cache::local::Entry;
use crate::config::http::{Kind, LocationBuild};
use crate::config::scope::Scope;
use crate::config::value::{Buffers, Msec, Number, Setting, Size, first, once};
use crate::keyword;
use crate::modules::Content;
use crate::modules::core::TempPath;
use crate::modules::proxy_cache::CacheZone;
use crate::modules::proxy_cache::Status as CacheStatus;
use crate::modules::{fastcgi, grpc, memcached, scgi, uwsgi};
use crate::phases::Outcome;
use crate::request::Request;
use crate::upstream::Reuse;
use crate::upstream::attempts::Rules;
use crate::upstream::exchange::{self, Outgoing};
use crate::upstream::protocol::Protocol;
use crate::upstream::spool::{Keep, Limits};
use crate::upstream::stream::{self, Body};
use cached::{Fetch, Found};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_http::field::{self, Classes, Name, Unsafe};
use forebay_http::h1::response::field;
use forebay_http::proxy_protocol;
use forebay_http::request::{Framing, Method};
use forebay_net::relay::Timeouts;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use url::{Pass, To};

crate::settings! {
    /// `proxy_set_header`.
    "proxy_set_header" => set_header: SetHeaders = SetHeaders::default();
    /// `proxy_set_body`.
    "proxy_set_body" => set_body: Value = Value(None);
    /// `proxy_method`.
    "proxy_method" => method: Value = Value(None);
    /// `proxy_http_version`.
    "proxy_http_version" => http_version: HttpVersion = HttpVersion::V11;
    /// `proxy_protocol`: what connections begin with.
    // nginx has it for streams only.
    "proxy_protocol" => protocol_header: SendProxy = SendProxy::Off;
    /// `proxy_pass_header`.
    "proxy_pass_header" => pass_header: Names = Names::default();
    /// `proxy_hide_header`.
    "proxy_hide_header" => hide_header: Names = Names::default();
    /// `proxy_ignore_headers`.
    "proxy_ignore_headers" => ignore_headers: Ignored = Ignored::default();
    /// `proxy_pass_request_headers`.
    "proxy_pass_request_headers" => pass_request_headers: bool = true;
    /// `proxy_pass_request_body`.
    "proxy_pass_request_body" => pass_request_body: bool = true;
    /// `proxy_redirect`.
    "proxy_redirect" => redirect: Redirects = Redirects(Arc::new(vec![Redirect::Default]));
    /// `proxy_intercept_errors`.
    "proxy_intercept_errors" => intercept_errors: bool = false;
    /// `proxy_next_upstream`.
    "proxy_next_upstream" => next_upstream: NextMask = NextMask::DEFAULT;
    /// `proxy_next_upstream_tries`; 0 = no limit.
    "proxy_next_upstream_tries" => next_upstream_tries: Number = Number(0);
    /// `proxy_next_upstream_timeout`; 0 = no limit.
    "proxy_next_upstream_timeout" => next_upstream_timeout: Msec = Msec(Duration::ZERO);
    /// `proxy_connect_timeout`.
    "proxy_connect_timeout" => connect_timeout: Msec = Msec(Duration::from_secs(60));
    /// `proxy_send_timeout`.
    "proxy_send_timeout" => send_timeout: Msec = Msec(Duration::from_secs(60));
    /// `proxy_read_timeout`.
    "proxy_read_timeout" => read_timeout: Msec = Msec(Duration::from_secs(60));
    /// `proxy_request_buffering`.
    "proxy_request_buffering" => request_buffering: bool = true;
    /// `proxy_buffer_size`: longest head of a response, bytes.
    "proxy_buffer_size" => buffer_size: Size = Size(4096);
    /// `proxy_ignore_client_abort`.
    "proxy_ignore_client_abort" => ignore_client_abort: bool = false;
    /// `proxy_pass_trailers`.
    "proxy_pass_trailers" => pass_trailers: bool = false;
    /// `proxy_socket_keepalive`.
    "proxy_socket_keepalive" => socket_keepalive: bool = false;
    /// `proxy_force_ranges`.
    "proxy_force_ranges" => force_ranges: bool = false;
    /// `proxy_buffering`.
    "proxy_buffering" => buffering: bool = true;
    /// `proxy_buffers`: how much is read ahead in memory.
    "proxy_buffers" => buffers: Buffers = Buffers { count: 8, size: 4096 };
    /// `proxy_busy_buffers_size`: checked only, what is sent is not held back from reading.
    "proxy_busy_buffers_size" => busy_buffers_size: Option<Size> = None;
    /// `proxy_max_temp_file_size`, bytes; 0 = no file.
    "proxy_max_temp_file_size" => max_temp_file_size: Size = Size(1024 << 20);
    /// `proxy_temp_file_write_size`: most bytes in memory before some are written.
    "proxy_temp_file_write_size" => temp_file_write_size: Option<Size> = None;
    /// `proxy_temp_path`.
    "proxy_temp_path" => temp_path: TempPath = TempPath(None);
    /// `proxy_limit_rate`.
    "proxy_limit_rate" => limit_rate: Value = Value(None);
    /// `proxy_store`.
    "proxy_store" => store: Store = Store::Off;
    /// `proxy_store_access`.
    "proxy_store_access" => store_access: Access = Access(0o600);
}

impl Settings {
    /// How much of a response is read ahead of the client.
    pub fn ahead(&self) -> Limits {
        let memory = self.buffers.count.saturating_mul(self.buffers.size).saturating_add(self.buffer_size.0);
        let memory = usize::try_from(memory).unwrap_or(usize::MAX).min(64 << 20);
        Limits { memory, file: self.max_temp_file_size.0 }
    }

    /// Times of an upstream whose protocol was switched.
    fn relay_timeouts(&self) -> Timeouts {
        Timeouts { read: self.read_timeout.0, send: self.send_timeout.0 }
    }

    /// Where a response is to be stored, if at all (nginx: proxy_store).
    fn store(&self, req: &mut Request) -> Result<Option<Keep>, VarError> {
        let mut path = Vec::new();
        match &self.store {
            Store::Off => return Ok(None),
            Store::On => crate::modules::static_file::map_path(req, &mut path)?,
            Store::Path(t) => t.eval(req, &mut path)?,
        }
        let h = &req.modules.upstream.head;
        if h.status != 200 || path.is_empty() || path.contains(&0) || path.ends_with(b"/") {
            return Ok(None);
        }
        let modified = h.get(Name::LastModified).and_then(forebay_http::date::parse);
        let path = std::ffi::OsStr::from_bytes(&path);
        let prefix = std::path::Path::new(std::ffi::OsStr::from_bytes(&req.conf.config.prefix));
        Ok(Some(Keep::Store { path: prefix.join(path), mode: self.store_access.0, modified }))
    }

    /// Rules by which another server is asked.
    pub(crate) fn rules(&self) -> Rules {
        let tries = tries(self.next_upstream_tries);
        Rules { next: self.next_upstream, tries, timeout: self.next_upstream_timeout.0 }
    }
}

/// Most servers to be asked for one request (nginx: proxy_next_upstream_tries).
pub(crate) fn tries(written: Number) -> usize {
    match written.0 {
        0 => usize::MAX,
        n => usize::try_from(n).unwrap_or(usize::MAX),
    }
}

/// A size that may be left out.
impl Setting for Option<Size> {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        Size::take(previous.flatten(), d, cx).map(Some)
    }
}

/// `proxy_store`.
#[derive(Clone, Debug)]
pub enum Store {
    /// Nothing is stored.
    Off,
    /// Where `root` or `alias` say.
    On,
    /// Under this name.
    Path(Template),
}

impl Setting for Store {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match d.args.first() {
            None => Ok(Store::Off),
            Some(w) if w.text == b"off" => Ok(Store::Off),
            Some(w) if w.text == b"on" => Ok(Store::On),
            Some(w) => Ok(Store::Path(cx.template(d, w)?)),
        }
    }
}

/// `proxy_store_access`: the mode of stored files.
#[derive(Clone, Copy, Debug)]
pub struct Access(pub u32);

impl Setting for Access {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let mut mode = 0o600;
        for w in &d.args {
            let invalid = || cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str()));
            let (who, what) = w.text.split_at(memchr::memchr(b':', &w.text).ok_or_else(invalid)?);
            let shift = match who {
                b"user" => 6,
                b"group" => 3,
                b"all" => 0,
                _ => return Err(invalid()),
            };
            let bits = match what {
                b":rw" => 6,
                b":r" => 4,
                _ => return Err(invalid()),
            };
            mode |= if shift == 0 { bits << 3 | bits } else { bits << shift };
        }
        Ok(Access(mode))
    }
}

keyword! {
    /// `proxy_http_version`.
    pub enum HttpVersion { V10 = "1.0", V11 = "1.1", V2 = "2", }
}

keyword! {
    /// `proxy_protocol`.
    pub enum SendProxy { Off = "off", On = "on", V1 = "v1", V2 = "v2", }
}

impl SendProxy {
    /// The header's version; `None`: none is sent.
    pub fn version(self) -> Option<proxy_protocol::Version> {
        match self {
            SendProxy::Off => None,
            SendProxy::On | SendProxy::V1 => Some(proxy_protocol::Version::One),
            SendProxy::V2 => Some(proxy_protocol::Version::Two),
        }
    }
}

/// A value that may be given once.
#[derive(Clone, Debug)]
pub struct Value(pub Option<Template>);

impl Setting for Value {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match d.args.first() {
            Some(w) => Ok(Value(Some(cx.template(d, w)?))),
            None => Ok(Value(None)),
        }
    }
}

/// Lines of `proxy_set_header`.
#[derive(Clone, Debug, Default)]
pub struct SetHeaders(pub Arc<Vec<SetHeader>>);

/// A line of `proxy_set_header`.
#[derive(Clone, Debug)]
pub struct SetHeader {
    /// Name of the field as written.
    pub name: Vec<u8>,
    /// What that is known as.
    pub id: Name,
    /// Its value.
    pub value: Template,
}

impl SetHeaders {
    /// Whether there is one for a field with this name.
    fn has(&self, id: Name, name: &[u8]) -> bool {
        self.0.iter().any(|h| h.id == id && (id != Name::Other || h.name.eq_ignore_ascii_case(name)))
    }
}

impl Setting for SetHeaders {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut lines = previous.map(|p| p.0.as_ref().clone()).unwrap_or_default();
        if let Some(value) = d.args.get(1) {
            let name = first(d).to_vec();
            let line = SetHeader { id: Name::of(&name), name, value: cx.template(d, value)?.folded() };
            if line.id == Name::Host {
                // A request has one. As in nginx the last counts and is sent first; of other names all are sent.
                lines.retain(|l| l.id != Name::Host);
                lines.insert(0, SetHeader { name: b"Host".to_vec(), ..line });
            } else {
                lines.push(line);
            }
        }
        Ok(SetHeaders(Arc::new(lines)))
    }
}

/// Field names.
#[derive(Clone, Debug, Default)]
pub struct Names(pub Arc<Vec<Vec<u8>>>);

impl Names {
    /// Whether a name is among them.
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.iter().any(|n| n.eq_ignore_ascii_case(name))
    }
}

impl Setting for Names {
    fn take(previous: Option<Self>, d: &Directive, _cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut names = previous.map(|p| p.0.as_ref().clone()).unwrap_or_default();
        names.extend(d.args.iter().map(|w| w.text.clone()));
        Ok(Names(Arc::new(names)))
    }
}

/// Fields of a response that this proxy would heed.
#[derive(Clone, Debug, Default)]
pub struct Ignored(Names);

impl Ignored {
    const ALL: [&[u8]; 9] = [
        b"X-Accel-Redirect",
        b"X-Accel-Expires",
        b"X-Accel-Limit-Rate",
        b"X-Accel-Buffering",
        b"X-Accel-Charset",
        b"Expires",
        b"Cache-Control",
        b"Set-Cookie",
        b"Vary",
    ];

    /// Whether a name is among them.
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.has(name)
    }
}

impl Setting for Ignored {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        for w in &d.args {
            if !Ignored::ALL.iter().any(|n| n.eq_ignore_ascii_case(&w.text)) {
                return Err(cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str())));
            }
        }
        Names::take(previous.map(|p| p.0), d, cx).map(Ignored)
    }
}

/// One `proxy_redirect`.
#[derive(Clone, Debug)]
pub enum Redirect {
    /// `default`: the location in place of the `proxy_pass`.
    Default,
    /// A prefix and what replaces it.
    Prefix(Template, Template),
    /// A pattern and what replaces the whole.
    Pattern(forebay_core::pattern::Pattern, Template),
}

/// All `proxy_redirect` of a level; empty: off.
#[derive(Clone, Debug)]
pub struct Redirects(pub Arc<Vec<Redirect>>);

impl Setting for Redirects {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let off = d.args.len() == 1 && first(d) == b"off";
        if previous.as_ref().is_some_and(|p| off || p.0.is_empty()) {
            return Err(cx.directive_error(d, "is duplicate"));
        }
        let mut all = previous.map(|p| p.0.as_ref().clone()).unwrap_or_default();
        match d.args.as_slice() {
            [w] if w.text == b"off" => {}
            [w] if w.text == b"default" => all.push(Redirect::Default),
            [w] => {
                return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())));
            }
            [from, to, ..] => {
                let to = cx.template(d, to)?;
                all.push(match from.text.as_slice() {
                    [b'~', b'*', p @ ..] => Redirect::Pattern(cx.pattern(d, p, true)?, to),
                    [b'~', p @ ..] => Redirect::Pattern(cx.pattern(d, p, false)?, to),
                    _ => Redirect::Prefix(cx.template(d, from)?, to),
                });
            }
            [] => {}
        }
        Ok(Redirects(Arc::new(all)))
    }
}

/// What may send a request to the next server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NextUpstream {
    Error,
    Timeout,
    InvalidHeader,
    NonIdempotent,
    Http403,
    Http404,
    Http429,
    Http500,
    Http502,
    Http503,
    Http504,
}

impl NextUpstream {
    /// The kind of a status.
    pub fn of_status(status: u16) -> Option<NextUpstream> {
        Some(match status {
            403 => NextUpstream::Http403,
            404 => NextUpstream::Http404,
            429 => NextUpstream::Http429,
            500 => NextUpstream::Http500,
            502 => NextUpstream::Http502,
            503 => NextUpstream::Http503,
            504 => NextUpstream::Http504,
            _ => return None,
        })
    }
}

/// `proxy_next_upstream`: a set.
#[derive(Clone, Copy, Debug)]
pub struct NextMask(u32);

/// Beside the bits of kinds: there are to be none.
pub const OFF: u32 = 1 << 31;

impl NextMask {
    /// What holds where nothing is said.
    pub const DEFAULT: NextMask =
        NextMask(1 << NextUpstream::Error as u32 | 1 << NextUpstream::Timeout as u32);

    /// Whether a kind is in it.
    pub fn has(self, kind: NextUpstream) -> bool {
        self.0 & (1 << kind as u32) != 0
    }
}

/// Whether servers that a directive is about may be gateways, which answer 502 and 504.
pub fn says_gateway(d: &Directive) -> bool {
    [&b"fastcgi_"[..], b"uwsgi_", b"scgi_"].iter().all(|prefix| !d.name.text.starts_with(prefix))
}

impl Setting for NextMask {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let name = d.name.text.as_slice();
        // A tunnel has no response to judge, and memcached no status.
        let (tunnel, memcached) = (name.starts_with(b"tunnel_"), name.starts_with(b"memcached_"));
        let http = !tunnel && !memcached;
        // As in nginx several of a level add up, and `off` stays.
        let mut mask = previous.map_or(0, |p| p.0);
        for w in &d.args {
            use NextUpstream as N;
            let kind = match w.text.to_ascii_lowercase().as_slice() {
                b"off" => {
                    mask |= OFF;
                    continue;
                }
                b"updating" if http && !name.starts_with(b"grpc_") => continue,
                b"error" => Some(N::Error),
                b"timeout" => Some(N::Timeout),
                b"not_found" if memcached => Some(N::Http404),
                b"invalid_response" if memcached => Some(N::InvalidHeader),
                _ if !http => None,
                b"invalid_header" => Some(N::InvalidHeader),
                b"non_idempotent" => Some(N::NonIdempotent),
                b"http_403" => Some(N::Http403),
                b"http_404" => Some(N::Http404),
                b"http_429" => Some(N::Http429),
                b"http_500" => Some(N::Http500),
                b"http_503" => Some(N::Http503),
                // Only a gateway says so.
                b"http_502" if says_gateway(d) => Some(N::Http502),
                b"http_504" if says_gateway(d) => Some(N::Http504),
                _ => None,
            };
            let invalid = || cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str()));
            mask |= 1 << kind.ok_or_else(invalid)? as u32;
        }
        Ok(NextMask(if mask & OFF != 0 { OFF } else { mask }))
    }
}

/// `proxy_pass`.
///
/// # Errors
/// In nginx's words.
pub fn pass(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    refuse_second(Protocol::Http, d, l, cx)?;
    let prefix = match l.kind {
        Kind::Exact | Kind::Prefix | Kind::PrefixOnly => Some(l.name.clone()),
        _ => None,
    };
    let pass = Pass::parse(d, prefix, cx)?;
    l.content = Some(Content::Proxy(Arc::new(pass)));
    Ok(())
}

/// `fastcgi_pass`, `uwsgi_pass`, `scgi_pass`, `grpc_pass`, `memcached_pass`.
///
/// # Errors
/// In nginx's words.
pub fn pass_by(
    protocol: Protocol,
    d: &Directive,
    l: &mut LocationBuild,
    cx: &mut Scope<'_>,
) -> Result<(), Error> {
    refuse_second(protocol, d, l, cx)?;
    l.content = Some(Content::Proxy(Arc::new(Pass::parse_place(d, protocol, cx)?)));
    Ok(())
}

/// Refuses a second directive that passes a location on by the same protocol. The last of several protocols counts, as
/// in nginx.
///
/// # Errors
/// `"x" directive is duplicate`.
fn refuse_second(protocol: Protocol, d: &Directive, l: &LocationBuild, cx: &Scope<'_>) -> Result<(), Error> {
    match &l.content {
        Some(Content::Proxy(pass)) if pass.protocol == protocol => {
            Err(cx.error(d, format!("\"{}\" directive is duplicate", d.name.as_str())))
        }
        _ => Ok(()),
    }
}

/// `health_check` of a location with these settings.
///
/// # Errors
/// When the location passes to no group that the configuration knows.
pub fn check(
    mut check: crate::upstream::health::Check,
    content: Option<&Content>,
    (location, s): (usize, &Settings),
    cx: &mut Scope<'_>,
) -> Result<(), Error> {
    let Some(Content::Proxy(pass)) = content else {
        return Err(Error { message: "\"health_check\" requires \"proxy_pass\"".into(), ..check.at });
    };
    if pass.protocol != Protocol::Http {
        let message = format!("\"health_check\" is not supported with \"{}\"", pass.protocol.directive());
        return Err(Error { message, ..check.at });
    }
    let To::Fixed { group, host, encrypted, .. } = &pass.to else {
        return Err(Error {
            message: "\"health_check\" requires a constant \"proxy_pass\"".into(),
            ..check.at
        });
    };
    check.bind(host, *encrypted, location, s);
    cx.upstreams.check(*group, check);
    Ok(())
}

/// The content handler.
pub async fn run(req: &mut Request, pass: &Arc<Pass>) -> Outcome {
    let http = req.http();
    let s = &http.location(req).settings.proxy;
    match handle(req, pass, s).await {
        Ok(out) => out,
        Err(Stop::Status(499)) => {
            req.resp.status = 499;
            req.drop_connection = true;
            Outcome::Done
        }
        Err(Stop::Status(status)) => Outcome::Status(status),
        Err(Stop::Gone) => {
            req.drop_connection = true;
            Outcome::Done
        }
    }
}

/// Why a request is not answered by an upstream.
enum Stop {
    Status(u16),
    /// There is nobody to answer.
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

/// Why the head of a request for an upstream cannot be made.
enum Unwritten {
    /// A variable has no value.
    Variable(VarError),
    /// A value would be more than one line.
    Unsafe(Unsafe),
}

impl From<VarError> for Unwritten {
    fn from(e: VarError) -> Unwritten {
        Unwritten::Variable(e)
    }
}

impl From<Unsafe> for Unwritten {
    fn from(e: Unsafe) -> Unwritten {
        Unwritten::Unsafe(e)
    }
}

impl Unwritten {
    /// The answer to it, with a line in the log.
    fn stop(self, req: &mut Request) -> Stop {
        match self {
            Unwritten::Variable(e) => e.into(),
            Unwritten::Unsafe(refused) => {
                let name = String::from_utf8_lossy(&refused.name).into_owned();
                // Unlike nginx: that sends the value as it is, a second request in it included.
                let text = format!("\"{name}\" for the upstream has a line break or NUL in its value");
                req.log(Level::Error, &text);
                Stop::Status(500)
            }
        }
    }
}

async fn handle(req: &mut Request, pass: &Arc<Pass>, s: &Settings) -> Result<Outcome, Stop> {
    let streamed = !s.request_buffering
        && s.set_body.0.is_none()
        && !req.body.stored.complete
        && s.pass_request_body
        && match pass.protocol {
            Protocol::Http => !(req.head.framing == Framing::Chunked && s.http_version == HttpVersion::V10),
            Protocol::FastCgi | Protocol::Grpc => true,
            // They are told the length beforehand.
            Protocol::Uwsgi | Protocol::Scgi => matches!(req.head.framing, Framing::Length(_)),
            Protocol::Memcached => false,
        }
        // What is there already need not be waited for, and can be sent again.
        && !body::has_come(req);
    // Another upstream may have been given some of it.
    let given = !req.body.stored.complete && req.body.len > 0;
    let streamed = streamed && !given;
    if given && req.body.len != req.body.stored.len() {
        // An error page needs none.
        let wanted = s.set_body.0.is_none() && s.pass_request_body;
        if wanted && !matches!(req.method, Method::Get | Method::Head) {
            req.log(Level::Error, "client request body has been passed to another upstream");
            return Err(Stop::Status(502));
        }
    } else if !streamed && !body::is_none(req) {
        body::read_all(req).await?;
    }
    let mut taken = Taken::default();
    let out = match ask(req, pass, s, streamed, &mut taken).await {
        Ok(Answer::Entry(e)) => respond::cached(req, &e, pass, s),
        Ok(Answer::Response { to_head, upgrade }) => {
            respond::take(req, &mut taken, (to_head, upgrade), pass, s)
        }
        Ok(Answer::Purged) => {
            req.resp.status = 204;
            Ok(Outcome::Done)
        }
        Ok(Answer::Nothing) => Ok(Outcome::Done),
        Err(stop) => Err(stop),
    };
    if taken.lease.is_some() {
        // Another answer than the upstream's is given: nobody reads the rest of its own, if there is one.
        let head = &req.modules.upstream.head;
        let missing = pass.protocol == Protocol::Memcached && head.status == 404;
        let whole = missing && head.buf.len() == head.len;
        stream::over(req, &mut taken.lease, whole);
    }
    out
}

/// The next slice of a response that has begun. `None`: it cannot be had.
pub async fn more(req: &mut Request) -> Option<Body> {
    let http = req.http();
    let l = http.location(req);
    let Some(Content::Proxy(pass)) = &l.content else { return None };
    let s = &l.settings.proxy;
    let mut taken = Taken::default();
    let got = ask(req, pass, s, false, &mut taken).await;
    req.modules.upstream.log_name.clear();
    match got {
        Ok(Answer::Entry(e)) => {
            respond::load_head(req, &e);
            Some(Body::of_entry(&e))
        }
        Ok(Answer::Response { to_head, .. }) => respond::slice(req, &mut taken, to_head, s).ok(),
        _ => None,
    }
}

/// What a request has taken for its answer; it stays where it is while that is asked for and passed on.
#[derive(Default)]
struct Taken {
    /// The place at an upstream.
    lease: Option<exchange::Lease>,
    /// What a cache has to do with the request.
    fetch: Fetch,
}

/// Who answers.
enum Answer {
    /// A cache.
    Entry(Rc<Entry>),
    /// An upstream, from [`Taken::lease`].
    Response { to_head: bool, upgrade: bool },
    /// Nobody has to: a purge is done.
    Purged,
    /// Nobody has to: a background request came too late.
    Nothing,
}

/// Asks the cache, and the upstream if that does not know.
async fn ask(
    req: &mut Request,
    pass: &Arc<Pass>,
    s: &Settings,
    streamed: bool,
    taken: &mut Taken,
) -> Result<Answer, Stop> {
    let http = req.http();
    let cs = &http.location(req).settings.proxy_cache;
    let (target, uri) = match pass.fixed(req) {
        Some(known) => known,
        None => pass.resolve(req).await.map_err(Stop::Status)?,
    };
    if !matches!(cs.zone, CacheZone::Off) {
        match cached::look(req, &uri, cs).await? {
            Found::Entry(e) => return Ok(Answer::Entry(e)),
            Found::Purged => return Ok(Answer::Purged),
            Found::Nothing => return Ok(Answer::Nothing),
            Found::Fetch(f) => taken.fetch = f,
        }
    }
    let Taken { lease, fetch } = taken;
    let body = outgoing(req, s, streamed)?;
    let mut head = req.take_buf();
    req.modules.upstream.reuse = target.reuse(req, s);
    let upgrade = match pass.protocol {
        Protocol::Http | Protocol::Grpc => {
            let written = write_head(req, &uri, &body, s, fetch, &mut head);
            written.map_err(|e| e.stop(req))? && s.http_version != HttpVersion::V2
        }
        Protocol::FastCgi => {
            fastcgi::write_params(req, s, fetch.cacheable(), matches!(body, Outgoing::None), &mut head)?;
            false
        }
        Protocol::Uwsgi => {
            if let Err(len) = uwsgi::write_params(req, s, fetch.cacheable(), &mut head)? {
                req.log(Level::Alert, &format!("uwsgi request is too big: {len}"));
                return Err(Stop::Status(500));
            }
            false
        }
        Protocol::Scgi => {
            scgi::write_params(req, s, fetch.cacheable(), &mut head)?;
            false
        }
        Protocol::Memcached => {
            if let Some(key) = &pass.key {
                memcached::write_command(req, key, &mut head).map_err(Stop::Status)?;
            }
            false
        }
    };
    req.modules.upstream.log_path = uri;
    if pass.protocol == Protocol::Grpc {
        // As nginx: the log names the server alone.
        req.modules.upstream.log_path.clear();
    }
    req.modules.proxy_cache.detached = fetch.cacheable() || req.is_background();
    let got = exchange::run(req, &target, &head, &body, s, lease).await;
    let to_head = match pass.protocol {
        Protocol::Http | Protocol::Grpc => head.starts_with(b"HEAD "),
        _ => req.method == Method::Head,
    };
    req.give_buf(head);
    let kind = match got {
        Ok(()) => NextUpstream::of_status(req.modules.upstream.head.status),
        Err(_) => req.modules.upstream.fault,
    };
    if cached::serves_instead(req, fetch, cs, kind)
        && let Some(e) = &fetch.stale
    {
        if let Some(lease) = lease.take() {
            Body::new(lease, Framing::None, false, s.read_timeout.0).abandon(req);
        }
        req.modules.proxy_cache.status = Some(CacheStatus::Stale);
        return Ok(Answer::Entry(e.clone()));
    }
    got.map_err(Stop::Status)?;
    if req.modules.upstream.head.status == 304
        && cs.revalidate
        && fetch.stale.is_some()
        && let Some(lease) = lease.take()
    {
        let reusable = keeps_alive(req);
        let clean = req.modules.upstream.head.buf.len() == req.modules.upstream.head.len;
        let mut body = Body::new(lease, Framing::None, reusable && clean, s.read_timeout.0).speaking(
            pass.protocol,
            reusable,
            false,
        );
        body.feed(req, b"", &mut Vec::new());
        return match cached::revalidated(req, std::mem::take(fetch), s, cs).await {
            Some(e) => Ok(Answer::Entry(e)),
            None => Err(Stop::Status(502)),
        };
    }
    Ok(Answer::Response { to_head, upgrade })
}

/// Whether the connection of the response whose head has been read may be used again.
fn keeps_alive(req: &Request) -> bool {
    req.modules.upstream.reuse != Reuse::No
        && match req.modules.upstream.protocol {
            Protocol::Http | Protocol::Grpc => req.modules.upstream.head.keep_alive,
            Protocol::FastCgi => req.http().location(req).settings.fastcgi.keep_conn,
            Protocol::Uwsgi | Protocol::Scgi => false,
            Protocol::Memcached => true,
        }
}

fn outgoing(req: &mut Request, s: &Settings, streamed: bool) -> Result<Outgoing, Stop> {
    if let Some(t) = &s.set_body.0 {
        return Ok(Outgoing::Bytes(t.value(req)?));
    }
    if !s.pass_request_body || (!streamed && !req.body.stored.complete) {
        return Ok(Outgoing::None);
    }
    Ok(match req.head.framing {
        Framing::None => Outgoing::None,
        framing if streamed => {
            Outgoing::Streamed(framing != Framing::Length(0) && !matches!(framing, Framing::Length(_)))
        }
        _ => Outgoing::Stored,
    })
}

/// Appends the head of the request. Whatever the client wrote, this is the one form it is passed on in. `true`: it
/// asks for another protocol. A connection that it asks to close is not kept where `proxy_pass` implies the group.
fn write_head(
    req: &mut Request,
    uri: &[u8],
    body: &Outgoing,
    s: &Settings,
    fetch: &Fetch,
    out: &mut Vec<u8>,
) -> Result<bool, Unwritten> {
    match &s.method.0 {
        Some(t) => {
            t.eval(req, out)?;
            out.make_ascii_uppercase();
        }
        None if fetch.convert => out.extend_from_slice(b"GET"),
        None => out.extend_from_slice(req.method_text()),
    }
    out.push(b' ');
    out.extend_from_slice(uri);
    // With variables both may be anything.
    field::check(b"request line", out)?;
    out.extend_from_slice(match s.http_version {
        HttpVersion::V10 => b" HTTP/1.0\r\n",
        // For HTTP/2 it is made into a field block later.
        HttpVersion::V11 | HttpVersion::V2 => b" HTTP/1.1\r\n",
    });
    let set = &s.set_header;
    let mut value = req.take_buf();
    let mut host = false;
    let mut upgrade = false;
    for SetHeader { name, id, value: template } in set.0.iter() {
        value.clear();
        template.eval(req, &mut value)?;
        if *id == Name::Host {
            host = true;
            // HTTP/1.1 demands one (RFC 9112, section 3.2).
            if value.is_empty() && s.http_version != HttpVersion::V10 {
                value.extend_from_slice(&req.modules.upstream.host);
            }
        } else if !std::mem::replace(&mut host, true) {
            field(out, b"Host", &req.modules.upstream.host)?;
        }
        // The framing of the body is not for the configuration to say: two of them are an attack.
        if value.is_empty() || id.is(Classes::FRAMING) {
            continue;
        }
        upgrade |= *id == Name::Upgrade;
        if *id == Name::Connection
            && req.modules.upstream.reuse == Reuse::Implied
            && value.split(|b| *b == b',').any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
        {
            req.modules.upstream.reuse = Reuse::No;
        }
        field(out, name, &value)?;
    }
    req.give_buf(value);
    if !host {
        field(out, b"Host", &req.modules.upstream.host)?;
    }
    if fetch.cacheable() {
        let stale = &req.modules.proxy_cache;
        if let Some(t) = stale.last_modified.filter(|_| !set.has(Name::IfModifiedSince, b"")) {
            field(out, b"If-Modified-Since", &forebay_http::date::imf(t))?;
        }
        if !stale.etag.is_empty() && !set.has(Name::IfNoneMatch, b"") {
            field(out, b"If-None-Match", &stale.etag)?;
        }
    }
    match body {
        Outgoing::None => {}
        Outgoing::Bytes(b) => length(out, b.len() as u64),
        Outgoing::Stored => length(out, req.body.stored.len()),
        Outgoing::Streamed(true) => field(out, b"Transfer-Encoding", b"chunked")?,
        Outgoing::Streamed(false) => {
            if let Framing::Length(n) = req.head.framing {
                length(out, n);
            }
        }
    }
    if s.pass_request_headers {
        let h = &req.head;
        for f in &h.fields {
            let name = f.name.of(&h.buf);
            // A cache is to have the whole.
            let own = fetch.cacheable() && f.id.is(Classes::CONDITIONAL);
            if !f.id.is(Classes::REQUEST_HOP) && !own && !set.has(f.id, name) {
                field(out, name, f.value.of(&h.buf))?;
            }
        }
    }
    if req.modules.upstream.protocol == Protocol::Grpc && grpc::wants_trailers(req) && !set.has(Name::Te, b"")
    {
        field(out, b"TE", b"trailers")?;
    }
    // Whoever closes first has the port in TIME_WAIT; here ports of the loopback would run short.
    let last = req.modules.upstream.reuse == Reuse::No;
    if last && s.http_version == HttpVersion::V11 && !upgrade && !set.has(Name::Connection, b"") {
        field(out, b"Connection", b"close")?;
    }
    out.extend_from_slice(b"\r\n");
    Ok(upgrade)
}

fn length(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(b"Content-Length: ");
    forebay_http::h1::response::number(out, n);
    out.extend_from_slice(b"\r\n");
}
