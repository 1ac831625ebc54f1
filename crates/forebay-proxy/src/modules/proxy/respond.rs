//! The response of an upstream on its way to the client. Hot path.

use super::cached::{self, Fetch};
use super::url::{Pass, To};
use super::{HttpVersion, Redirect, SentRequest, Settings, Stop, Taken};
use crate::cache::local::Entry;
use crate::modules::proxy_cache;
use crate::modules::proxy_cache::Settings as CacheSettings;
use crate::modules::proxy_cookie;
use crate::modules::proxy_http3;
use crate::upstream::CALL;
use crate::upstream::codec::Place;
use crate::upstream::codec::decoder::{Announced, Decoder};
use crate::upstream::contact::Contact;
use crate::upstream::spool::Keep;
use crate::upstream::sticky;
use crate::upstream::stream::{self, Body};
use forebay_conf::error::Level;
use forebay_core::pattern::Pattern;
use forebay_core::vars::{Template, VarError};
use forebay_http::field::{Classes, FieldLine, Name};
use forebay_http::h1::client;
use forebay_http::request::{Framing, Method, Version};
use forebay_server::connection::websocket;
use forebay_server::error_page;
use forebay_server::modules::{alt_svc, static_file};
use forebay_server::phases::{Outcome, spend_uri_change};
use forebay_server::request::Request;
use forebay_server::request::upstream::Upstreamed;
use forebay_server::response::Part;
use forebay_server::response::origin::{AllowedRanges, Origin};
use forebay_server::response::streamed::Pulled;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Makes the response from the head that has been read; the body follows from the connection.
pub(super) fn take(
    req: &mut Request,
    taken: &mut Taken,
    asked: &SentRequest,
    pass: &Arc<Pass>,
    s: &Settings,
) -> Result<Outcome, Stop> {
    let status = req.modules.upstream.head.status;
    if status == 101 {
        return switch_protocols(req, taken, asked.upgrade, pass, s);
    }
    if let Some(out) = accel_redirect(req, s) {
        return Ok(out);
    }
    // A missing key of memcached has no content to pass on, so the server's own page answers.
    let bare = pass.codec.facts().missing == Some(status);
    if bare || s.intercept_errors && status >= 300 && error_page::has_page(req, status) {
        return Ok(intercept(req, taken, s));
    }
    pass_on(req, taken, asked.to_head, pass, s)
}

/// Answers with the protocol that the upstream has switched to (RFC 9110, section 7.8). `asked`: the request asks for one.
fn switch_protocols(
    req: &mut Request,
    taken: &mut Taken,
    asked: bool,
    pass: &Arc<Pass>,
    s: &Settings,
) -> Result<Outcome, Stop> {
    let multiplexed = req.head.version.is_multiplexed();
    // A 101 that nobody has asked for would turn the rest of the connection into bytes that this server does not
    // understand.
    let wrong = if !asked || multiplexed && !req.head.is_websocket {
        Some("unasked")
    } else if req.head.is_websocket && !websocket::is_accepted(req) {
        Some("with invalid \"Sec-WebSocket-Accept\" header")
    } else if !taken.contact.as_ref().is_some_and(Contact::is_sent) {
        Some("before the end of the request")
    } else {
        None
    };
    if let Some(wrong) = wrong {
        let text = format!("upstream switched protocols {wrong} while reading response header from upstream");
        req.log(Level::Error, &text);
        return Err(Stop::Status(502));
    }
    req.resp.origin = Origin::Upstream;
    req.resp.status = 101;
    fields(req, pass, s)?;
    if req.head.is_websocket {
        websocket::open(&mut req.resp);
    }
    let head = &req.modules.upstream.head;
    let early = head.buf.get(head.len..).unwrap_or_default().to_vec();
    let Some(contact) = taken.contact.take() else { return Err(Stop::Status(502)) };
    req.resp.source = Some(Box::new(Body::switched(contact, early, s.relay_timeouts())));
    Ok(Outcome::Done)
}

/// Answers with a page of the configuration in place of the response (nginx: proxy_intercept_errors).
fn intercept(req: &mut Request, taken: &mut Taken, s: &Settings) -> Outcome {
    let status = req.modules.upstream.head.status;
    // A page for 401 is of no use without the challenge of the upstream (RFC 9110, section 11.6.1).
    if status == 401 {
        copy_authenticate(req);
    }
    let http = req.http();
    let cs = proxy_cache::SETTINGS.of(&http.location(req).settings);
    cached::remember_error(req, std::mem::take(&mut taken.fetch), s, cs);
    Outcome::Status(status)
}

/// Answers with the response of the upstream.
fn pass_on(
    req: &mut Request,
    taken: &mut Taken,
    to_head: bool,
    pass: &Arc<Pass>,
    s: &Settings,
) -> Result<Outcome, Stop> {
    let http = req.http();
    let cs = proxy_cache::SETTINGS.of(&http.location(req).settings);
    let keep = keep(req, &mut taken.fetch, to_head, s, cs)?;
    req.resp.origin = match &keep {
        Some(Keep::Cache { .. }) => Origin::Cacheable,
        // A response without a head is never stored, so only this arm has one.
        None if req.modules.upstream.head.version == Version::Http09 => Origin::Headless,
        _ => Origin::Upstream,
    };
    // The body is still coming and cannot be read twice, so only a single range can be cut out of it.
    req.resp.allowed_ranges = if s.force_ranges { AllowedRanges::One } else { AllowedRanges::None };
    req.resp.status = req.modules.upstream.head.status;
    fields(req, pass, s)?;
    if pass.codec.facts().is_untyped {
        static_file::content_type(req);
    }
    req.resp.content_length = req.modules.upstream.head.content_length;
    rate(req, s);
    let whole = if keep.is_none() { at_once(req, &mut taken.contact, to_head, s) } else { None };
    let content = match whole {
        Some(content) => content,
        None => {
            let start = req.resp.text.len();
            begin_body(req, &mut taken.contact, to_head, s, keep)?;
            start..req.resp.text.len()
        }
    };
    if !content.is_empty() {
        req.resp.body.push(Part::Text { start: content.start as u32, end: content.end as u32 });
    }
    if req.method == Method::Head {
        req.resp.head_only = true;
    }
    Ok(Outcome::Done)
}

/// Applies `X-Accel-Limit-Rate`.
fn rate(req: &mut Request, s: &Settings) {
    if !s.ignore_headers.has(b"X-Accel-Limit-Rate")
        && let Some(n) =
            req.modules.upstream.head.get(Name::XAccelLimitRate).and_then(forebay_conf::units::number)
    {
        req.resp.limit_rate = n;
    }
}

/// Returns `true` if the response may be read ahead of the client.
fn buffering(req: &Request, s: &Settings) -> bool {
    let accel = req.modules.upstream.head.get(Name::XAccelBuffering);
    match accel.filter(|_| !s.ignore_headers.has(b"X-Accel-Buffering")) {
        Some(v) if v.eq_ignore_ascii_case(b"yes") => true,
        Some(v) if v.eq_ignore_ascii_case(b"no") => false,
        _ => s.buffering,
    }
}

/// Returns the place where a response is kept (cache, `proxy_store`), if any. A response that is not buffered is not kept, as in
/// nginx.
fn keep(
    req: &mut Request,
    fetch: &mut Fetch,
    to_head: bool,
    s: &Settings,
    cs: &CacheSettings,
) -> Result<Option<Keep>, Stop> {
    // HTTP/0.9 has no status, so nothing says whether the content is what was asked for.
    if !buffering(req, s) || req.modules.upstream.head.version == Version::Http09 {
        return Ok(None);
    }
    if fetch.cacheable() {
        return cached::keep(req, fetch, s, cs);
    }
    if to_head && CALL.of(req).codec.facts().is_http {
        // The answer to HEAD has no body, whatever length its head announces.
        return Ok(None);
    }
    Ok(s.store(req)?)
}

/// Passes on what of a body has come with its head; the rest follows from the connection.
#[inline(never)]
fn begin_body(
    req: &mut Request,
    contact: &mut Option<Contact>,
    to_head: bool,
    s: &Settings,
    keep: Option<Keep>,
) -> Result<(), Stop> {
    let head = &req.modules.upstream.head;
    if head.buf.len() - head.len > COPIED && req.resp.text.capacity() == 0 {
        req.resp.text = req.thread.io.large.take();
    }
    req.begin_text();
    let mut text = std::mem::take(&mut req.resp.text);
    let fed = body(req, contact, to_head, s, keep, &mut text);
    req.resp.text = text;
    let (body, pulled) = fed?;
    if pulled != Pulled::End || body.keeps() {
        req.resp.source = Some(Box::new(body));
    }
    Ok(())
}

/// Longest content that is copied away from the head that it came with, bytes.
const COPIED: usize = 4096;

/// Passes on a body that has come completely with its head, and that is neither stored nor limited in its rate. Returns
/// its place in the text of the response; `None` if the body needs a [`Body`].
fn at_once(
    req: &mut Request,
    contact: &mut Option<Contact>,
    to_head: bool,
    s: &Settings,
) -> Option<Range<usize>> {
    let Upstreamed { head, early, .. } = &req.modules.upstream;
    let codec = CALL.of(req).codec;
    let place = codec.at_once(contact.as_ref().and_then(Contact::conn)?)?;
    let came = match place {
        Place::Head => head.buf.get(head.len..).unwrap_or_default().len(),
        Place::Early => early.len(),
    };
    let announced = match codec.framing_of_response(head, to_head, false) {
        Framing::None => 0,
        Framing::Length(n) => n,
        _ => return None,
    };
    // More bytes than announced take the long way, which logs them and closes the connection.
    if came as u64 != announced || s.limit_rate.0.is_some() {
        return None;
    }
    let reusable = codec.keeps_alive(req) && !codec.may_follow(head);
    let content = match place {
        Place::Head => take_content(req),
        Place::Early => take_early(req),
    };
    if let Some(a) = req.modules.upstream.current() {
        a.length += announced;
    }
    stream::over(req, contact, reusable);
    Some(content)
}

/// Makes the content that has been taken out of its frames the text of the response. Returns its place.
fn take_early(req: &mut Request) -> Range<usize> {
    let Request { thread, resp, modules, .. } = req;
    let early = &mut modules.upstream.early;
    if resp.text.is_empty() {
        std::mem::swap(&mut resp.text, early);
        early.clear();
        return 0..resp.text.len();
    }
    let start = resp.text.len();
    resp.text.extend_from_slice(early);
    thread.give_buffer(std::mem::take(early));
    start..resp.text.len()
}

/// Makes the content that came with the head a part of the response's text. Returns its place.
fn take_content(req: &mut Request) -> Range<usize> {
    let Request { thread, resp, modules, .. } = req;
    let head = &mut modules.upstream.head;
    let (line, content) = head.buf.split_at(head.len);
    if content.len() > COPIED && resp.text.is_empty() {
        // Long content stays in its buffer, and the head, which is short, is copied out of it instead.
        let mut short = thread.buffers.take_short();
        short.extend_from_slice(line);
        let read = std::mem::replace(&mut head.buf, short);
        let all = head.len..read.len();
        thread.give_buffer(std::mem::replace(&mut resp.text, read));
        return all;
    }
    if resp.text.capacity() == 0 {
        resp.text = thread.buffers.take();
    }
    let start = resp.text.len();
    resp.text.extend_from_slice(content);
    start..resp.text.len()
}

/// Makes the body of a response whose head has been read, with the content that came together with the head.
fn body(
    req: &mut Request,
    contact: &mut Option<Contact>,
    to_head: bool,
    s: &Settings,
    keep: Option<Keep>,
    content: &mut Vec<u8>,
) -> Result<(Body, Pulled), Stop> {
    let head = &req.modules.upstream.head;
    let codec = CALL.of(req).codec;
    let framing = codec.framing_of_response(head, to_head, keep.is_some());
    let Some(contact) = contact.take() else { return Err(Stop::Status(502)) };
    let reusable = codec.keeps_alive(req) && contact.conn().is_some() && !codec.may_follow(head);
    let buffering = buffering(req, s);
    let head = &req.modules.upstream.head;
    let read = head.buf.len() as u64;
    let rate = match &s.limit_rate.0 {
        None => 0,
        Some(t) => forebay_conf::units::size(&t.value(req)?).unwrap_or(0),
    };
    let decoder = Decoder::new(codec, Announced { framing, to_head, reusable });
    let mut body = Body::new(contact, decoder, s.read_timeout.0);
    body.set(s.ignore_client_abort, s.pass_trailers);
    body.buffer(buffering.then(|| s.ahead()), rate, read);
    if let Some(keep) = keep {
        // Without `proxy_temp_path` a file is written where it is going to stay.
        body.keep(keep, s.ahead(), s.temp_path.0.clone().unwrap_or_default());
    }
    let mut buf = std::mem::take(&mut req.modules.upstream.head.buf);
    let len = req.modules.upstream.head.len;
    let pulled = body.feed(req, buf.get(len..).unwrap_or_default(), content);
    buf.truncate(len);
    req.modules.upstream.head.buf = buf;
    // The rest of the body may take a long time, so the buffer of the head goes back to the thread.
    req.lend_head();
    // The client has received no byte yet, so a broken beginning can still become an error.
    if pulled == Pulled::Failed {
        return Err(Stop::Status(502));
    }
    Ok((body, pulled))
}

/// Takes a further slice of a response, of which only the body is used.
pub(super) fn slice(req: &mut Request, taken: &mut Taken, to_head: bool, s: &Settings) -> Result<Body, Stop> {
    let http = req.http();
    let keep =
        keep(req, &mut taken.fetch, to_head, s, proxy_cache::SETTINGS.of(&http.location(req).settings))?;
    let mut content = Vec::new();
    let (mut body, _) = body(req, &mut taken.contact, to_head, s, keep, &mut content)?;
    if !content.is_empty() {
        body.put_before(content, s.ahead());
    }
    Ok(body)
}

/// Loads the head of a cached response into the place of an upstream's.
pub(super) fn load_head(req: &mut Request, e: &Entry) {
    req.begin_head_text();
    let head = &mut req.modules.upstream.head;
    head.buf.extend_from_slice(&e.meta.head);
    // The head was valid when it was stored, and a checksum protects the file.
    let _ = client::parse(head, usize::MAX);
}

/// Makes the response from an entry of a cache.
pub(super) fn cached(
    req: &mut Request,
    e: &Rc<Entry>,
    pass: &Arc<Pass>,
    s: &Settings,
) -> Result<Outcome, Stop> {
    proxy_cache::STATE.of_mut(req).date = Some(e.meta.date);
    if req.is_background() {
        return Ok(Outcome::Done);
    }
    req.resp.origin = Origin::Cache(e.clone());
    req.resp.status = e.meta.status;
    req.resp.allowed_ranges = if s.force_ranges { AllowedRanges::Any } else { AllowedRanges::None };
    // Most hits get the same head as the hit before, so it is made once and sent again.
    if let Some(head) = forebay_server::response::sent::ready(req, &e.made.heads) {
        forebay_server::response::sent::take_ready(req, head, e.len(), e.part());
        return Ok(Outcome::Done);
    }
    take_entry(req, e, pass, s)?;
    Ok(Outcome::Done)
}

/// Makes the response from the stored head and content of an entry.
fn take_entry(req: &mut Request, e: &Rc<Entry>, pass: &Arc<Pass>, s: &Settings) -> Result<(), Stop> {
    load_head(req, e);
    fields(req, pass, s)?;
    rate(req, s);
    let bare = req.resp.status == 204 || req.resp.status == 304;
    req.resp.content_length = Some(e.len()).filter(|_| !bare);
    if e.is_empty() && req.modules.upstream.head.content_length.is_some_and(|n| n > 0) {
        // A HEAD request stored this entry (nginx: proxy_cache_convert_head off). To other requests it promises a body
        // that is not there, so nothing may follow it on the connection.
        if req.method != Method::Head {
            req.ending.close();
        }
        req.resp.content_length = req.modules.upstream.head.content_length;
    }
    if !e.is_empty() {
        req.resp.body.push(e.part());
    }
    if req.method == Method::Head {
        req.resp.head_only = true;
    }
    Ok(())
}

fn copy_authenticate(req: &mut Request) {
    let h = &req.modules.upstream.head;
    for f in h.fields.iter().filter(|f| f.id == Name::WwwAuthenticate) {
        req.resp.fields.copy(&h.buf, f);
    }
}

/// Copies the fields that the client gets.
fn fields(req: &mut Request, pass: &Arc<Pass>, s: &Settings) -> Result<(), Stop> {
    if pass.codec.facts().is_http {
        req.resp.server_fields.server = !s.pass_header.has(b"Server");
        req.resp.server_fields.date = !s.pass_header.has(b"Date");
    }
    // Taken out while the fields are copied, because rewriting them needs the whole request.
    let lines = std::mem::take(&mut req.modules.upstream.head.fields);
    let buf = std::mem::take(&mut req.modules.upstream.head.buf);
    let mut done = Ok(());
    for place in 0..lines.len() {
        done = field(req, Line { lines: &lines, place }, &buf, pass, s);
        if done.is_err() {
            break;
        }
    }
    let head = &mut req.modules.upstream.head;
    head.fields = lines;
    head.buf = buf;
    sticky::add_field(req);
    let codec = match req.resp.origin.entry() {
        Some(_) => pass.codec.in_version(s.http_version),
        None => CALL.of(req).codec,
    };
    let head = &req.modules.upstream.head;
    req.resp.reason.clear();
    req.resp.reason.extend_from_slice(codec.facts().reasons.passed_on(head.status_text.of(&head.buf)));
    done
}

/// Field line of an upstream, among the lines of its head.
#[derive(Clone, Copy)]
struct Line<'l> {
    lines: &'l [FieldLine],
    /// Index of the line.
    place: usize,
}

impl Line<'_> {
    /// Returns `true` if the upstream has sent the field before.
    fn repeats(self, req: &Request, f: &FieldLine) -> bool {
        req.modules.upstream.head.first.place(f.id, self.lines) != Some(self.place)
    }
}

/// Copies a field of an upstream to the response, as the client shall see it.
fn field(req: &mut Request, line: Line<'_>, buf: &[u8], pass: &Arc<Pass>, s: &Settings) -> Result<(), Stop> {
    let Some(f) = line.lines.get(line.place) else { return Ok(()) };
    let (name, value) = (f.name.of(buf), f.value.of(buf));
    // Fields of this kind describe the connection to the upstream only (RFC 9110, section 7.6.1).
    if f.id.is(Classes::RESPONSE_HOP) {
        return Ok(());
    }
    if f.id == Name::XAccelCharset && !s.ignore_headers.has(b"X-Accel-Charset") {
        req.resp.override_charset.clear();
        req.resp.override_charset.extend_from_slice(value);
    }
    if s.hide_header.has(name) || (pass.codec.facts().hides(f.id, name) && !s.pass_header.has(name)) {
        return Ok(());
    }
    match f.id {
        // Only the first line of these fields counts: further lines would contradict it (nginx since 1.23).
        id if id.is(Classes::ONCE_IN_RESPONSE) && line.repeats(req, f) => {}
        Name::ContentType => req.resp.set_content_type(value),
        Name::Location => location(req, name, value, pass, s)?,
        Name::Refresh => {
            let mut out = Vec::new();
            refresh(req, value, pass, s, &mut out)?;
            req.resp.fields.push(name, &out);
        }
        Name::SetCookie => set_cookie(req, name, value)?,
        Name::AcceptRanges => accept_ranges(req, f, buf, s),
        // The field is meant for this server: clients cannot use the port of an upstream that it names.
        _ if s.http_version == HttpVersion::V3
            && name.eq_ignore_ascii_case(alt_svc::NAME)
            && follows(req) => {}
        _ => req.resp.fields.copy(buf, f),
    }
    Ok(())
}

/// Returns `true` if `Alt-Svc` of upstreams is followed.
fn follows(req: &Request) -> bool {
    proxy_http3::SETTINGS.of(&req.own_location().settings).alt_svc
}

fn location(
    req: &mut Request,
    name: &[u8],
    value: &[u8],
    pass: &Arc<Pass>,
    s: &Settings,
) -> Result<(), Stop> {
    let mut out = Vec::new();
    if redirect(req, value, pass, s, &mut out)? {
        // The value is now a path of this server, which is made absolute like any other.
        req.resp.location = out;
    } else {
        req.resp.fields.push(name, &out);
    }
    Ok(())
}

fn set_cookie(req: &mut Request, name: &[u8], value: &[u8]) -> Result<(), Stop> {
    let http = req.http();
    let cookies = proxy_cookie::SETTINGS.of(&http.location(req).settings);
    let new = match proxy_cookie::enabled(cookies) {
        true => proxy_cookie::rewrite(req, cookies, value)?,
        false => None,
    };
    req.resp.fields.push(name, new.as_deref().unwrap_or(value));
    Ok(())
}

fn accept_ranges(req: &mut Request, line: &FieldLine, buf: &[u8], s: &Settings) {
    if s.force_ranges {
        return;
    }
    if req.resp.origin.is_cacheable() {
        // A response that is whole here is cut into ranges here, whatever the upstream supports.
        let whole = req.resp.origin.entry().is_some();
        req.resp.allowed_ranges = if whole { AllowedRanges::Any } else { AllowedRanges::One };
    } else {
        req.resp.fields.copy(buf, line);
    }
}

/// Appends `Location` as the client shall see it (nginx: proxy_redirect). Returns `false` if it stays as it is.
fn redirect(
    req: &mut Request,
    value: &[u8],
    pass: &Arc<Pass>,
    s: &Settings,
    out: &mut Vec<u8>,
) -> Result<bool, Stop> {
    for r in s.redirect.0.iter() {
        if replace(req, r, value, pass, out)? {
            return Ok(true);
        }
    }
    out.extend_from_slice(value);
    Ok(false)
}

/// Appends a value with one `proxy_redirect` applied. Returns `false` if that does not apply.
fn replace(
    req: &mut Request,
    r: &Redirect,
    value: &[u8],
    pass: &Arc<Pass>,
    out: &mut Vec<u8>,
) -> Result<bool, Stop> {
    match r {
        Redirect::Default => {
            let Some((from, to)) = default_redirect(pass) else { return Ok(false) };
            let Some(rest) = value.strip_prefix(from.as_slice()) else { return Ok(false) };
            out.extend_from_slice(&to);
            out.extend_from_slice(rest);
        }
        Redirect::Prefix(from, to) => {
            let from = from.value(req)?;
            let Some(rest) = value.strip_prefix(from.as_slice()) else { return Ok(false) };
            to.eval(req, out)?;
            out.extend_from_slice(rest);
        }
        Redirect::Pattern(p, to) => return replace_all(req, p, to, value, out).map_err(Stop::from),
    }
    Ok(true)
}

/// Appends the replacement of a value that matches a pattern. Returns `false` if it does not.
fn replace_all(
    req: &mut Request,
    pattern: &Pattern,
    to: &Template,
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool, VarError> {
    if !pattern.exec(req, value)? {
        return Ok(false);
    }
    to.eval(req, out)?;
    Ok(true)
}

/// Returns the prefix that `proxy_redirect default` replaces, and its replacement.
fn default_redirect(pass: &Pass) -> Option<(Vec<u8>, Vec<u8>)> {
    let To::Fixed { uri, url, .. } = &pass.to else { return None };
    match (uri, &pass.location) {
        (Some(_), Some(location)) => Some((url.clone(), location.clone())),
        // A regular expression names no prefix that a redirect could be translated to.
        (Some(_), None) => None,
        (None, _) => Some(([url.as_slice(), b"/"].concat(), b"/".to_vec())),
    }
}

/// Appends `Refresh` as the client shall see it: with the URL in `5; url=...` changed as `Location` is.
fn refresh(
    req: &mut Request,
    value: &[u8],
    pass: &Arc<Pass>,
    s: &Settings,
    out: &mut Vec<u8>,
) -> Result<(), Stop> {
    let at = value.windows(4).position(|w| w.eq_ignore_ascii_case(b"url="));
    match at {
        Some(at) => {
            out.extend_from_slice(&value[..at + 4]);
            redirect(req, &value[at + 4..], pass, s, out).map(|_| ())
        }
        None => {
            out.extend_from_slice(value);
            Ok(())
        }
    }
}

/// Changes the path of the request to the path of `X-Accel-Redirect`. It is decoded and otherwise stays as the upstream
/// wrote it: a key of an object store or a URL inside of the path has double slashes and dots that mean something.
///
/// # Errors
/// The status to answer with.
fn accel_path(req: &mut Request, target: &[u8]) -> Result<(), u16> {
    let mut split = target.splitn(2, |b| *b == b'?');
    let path = split.next().unwrap_or_default();
    let mut uri = Vec::new();
    forebay_http::uri::unescape(path, &mut uri);
    // A backend may copy parts of the client's request into this field, so `..` must not lead out of the root.
    if path.first() != Some(&b'/') || forebay_http::uri::is_unsafe(&uri) {
        let path = String::from_utf8_lossy(path).into_owned();
        let text = format!("unsafe URI \"{path}\" was detected while reading response header from upstream");
        req.log(Level::Error, &text);
        return Err(404);
    }
    req.uri.path = uri;
    req.uri.args = split.next().unwrap_or_default().to_vec();
    req.uri.internal = true;
    req.uri.rewritten = true;
    if req.method != Method::Head {
        req.method = Method::Get;
    }
    Ok(())
}

/// Has another location answer, if the upstream wants that (nginx: X-Accel-Redirect).
fn accel_redirect(req: &mut Request, s: &Settings) -> Option<Outcome> {
    let target = req.modules.upstream.head.get(Name::XAccelRedirect)?.to_vec();
    if s.ignore_headers.has(b"X-Accel-Redirect") {
        return None;
    }
    // The response of the upstream is only an instruction, so another location makes the response for the client.
    req.forget_response();
    let kind = hand_on(req, s);
    let named = target.first() == Some(&b'@');
    let found = if named { error_page::named(req, &target) } else { accel_path(req, &target) };
    if let Err(status) = found {
        return Some(Outcome::Status(status));
    }
    if let Some(value) = kind {
        req.resp.set_content_type(&value);
    }
    Some(redirected(req, named))
}

fn redirected(req: &mut Request, named: bool) -> Outcome {
    if named {
        return Outcome::Named;
    }
    match spend_uri_change(req, "rewrite or internal redirection cycle while internally redirecting to") {
        Ok(()) => Outcome::Redirect,
        Err(status) => Outcome::Status(status),
    }
}

/// Copies the fields of the upstream that go with the response of another location. Returns `Content-Type`.
fn hand_on(req: &mut Request, s: &Settings) -> Option<Vec<u8>> {
    let Request { modules, resp, .. } = req;
    let h = &modules.upstream.head;
    let mut kind = None;
    for f in h.fields.iter() {
        let value = f.value.of(&h.buf);
        match f.id {
            Name::ContentType => kind = kind.or(Some(value.to_vec())),
            Name::XAccelLimitRate if !s.ignore_headers.has(b"X-Accel-Limit-Rate") => {
                resp.limit_rate = forebay_conf::units::number(value).unwrap_or(0);
            }
            id if id.is(Classes::KEPT_ON_REDIRECT) => {
                resp.fields.push(f.name.of(&h.buf), value);
                resp.handed_on.push(f.name.of(&h.buf), value);
            }
            _ => {}
        }
    }
    kind
}
