//! Requests of one session go to one server (nginx: sticky cookie, route, learn).

use super::session_times::Times;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::config::value::split_parameter;
use forebay_core::upstream::group::Group;
use forebay_core::upstream::lease::Lease;
use forebay_core::upstream::sticky::{self, Look, Route, SharedSessions, invalid, template, unknown};
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_http::h1::response::number;
use forebay_server::config::Scope;
use forebay_server::config::parts::Parts;
use forebay_server::request::Request;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use std::sync::Arc;
use std::time::Duration;

/// `sticky` of a group, if it has one.
#[derive(Debug, Default)]
struct OfGroup(Option<Arc<Sticky>>);

/// Returns `sticky` of a group.
pub fn of(parts: &Parts) -> Option<Arc<Sticky>> {
    parts.get::<OfGroup>()?.0.clone()
}

/// Reads `sticky`.
///
/// # Errors
/// In nginx's words.
pub(super) fn directive(
    d: &Directive,
    group: &mut Group,
    parts: &mut Parts,
    cx: &mut Scope<'_>,
) -> Result<(), Error> {
    let own = &mut parts.get_mut::<OfGroup>().0;
    if own.is_some() {
        return Err(cx.error(d, "\"sticky\" directive is duplicate"));
    }
    *own = Some(Arc::new(Sticky::parse(d, cx)?));
    group.sticky = true;
    Ok(())
}

/// State of `sticky` in a request.
#[derive(Debug, Default)]
struct StickyState {
    /// Value of `Set-Cookie`; empty: none.
    set_cookie: Vec<u8>,
    /// Name of the field that has this value in place of `Set-Cookie`; empty: none.
    field: Vec<u8>,
    /// The session that `sticky learn` begins when the response is over; empty: none.
    session: Vec<u8>,
}

static STATE: Slot<StickyState> = Slot::new();

impl Unused for StickyState {
    const UNUSED: &'static StickyState =
        &StickyState { set_cookie: Vec::new(), field: Vec::new(), session: Vec::new() };

    fn clear(&mut self) {
        for text in [&mut self.set_cookie, &mut self.field, &mut self.session] {
            text.clear();
        }
    }
}

/// Adds the field that names the server to a response.
pub fn add_field(req: &mut Request) {
    if STATE.of(req).set_cookie.is_empty() {
        return;
    }
    let state = STATE.of_mut(req);
    let (set_cookie, field) = (std::mem::take(&mut state.set_cookie), std::mem::take(&mut state.field));
    if field.is_empty() {
        req.resp.fields.push(b"Set-Cookie", &set_cookie);
    } else {
        // Only this server may name a server in this field, so a field of the upstream is removed.
        req.resp.fields.remove_named(|name| name.eq_ignore_ascii_case(&field));
        req.resp.fields.push(&field, &set_cookie);
    }
    let state = STATE.of_mut(req);
    (state.set_cookie, state.field) = (set_cookie, field);
}

/// `sticky`.
#[derive(Debug)]
pub enum Sticky {
    /// `sticky cookie` and `sticky header`.
    Cookie(Cookie),
    /// `sticky route`.
    Route(Route),
    /// `sticky learn`.
    Learn(Learn),
}

/// `sticky cookie NAME ...`, and `sticky header NAME ...`, a field that clients send back.
#[derive(Debug, Default)]
pub struct Cookie {
    name: Vec<u8>,
    /// It is a field.
    field: bool,
    /// `lifetime` and `idle`.
    times: Times,
    expires: Option<StickyExpires>,
    /// `max_age`, in seconds. Without it, `expires` also writes a `max-age`.
    max_age: Option<u64>,
    /// `change_on_failure=off`: a client that was sent elsewhere for once keeps its cookie.
    stays: bool,
    domain: Option<Template>,
    path: Option<Template>,
    samesite: Option<Template>,
    secure: Secure,
    httponly: bool,
    /// `mark`: text in front of the name of the server, with a dot between them. Cookies without it belong to other
    /// groups.
    mark: Option<Vec<u8>>,
}

/// When a cookie is for encrypted connections only.
#[derive(Debug, Default)]
enum Secure {
    #[default]
    Never,
    Always,
    /// If a value is neither empty nor `0`.
    If(Template),
}

#[derive(Clone, Copy, Debug)]
enum StickyExpires {
    Max,
    In(u64),
}

/// `sticky learn ...`.
#[derive(Debug)]
pub struct Learn {
    sessions: Arc<sticky::Learn>,
    /// `header`: a session begins when the head of the response comes rather than when the response ends.
    header: bool,
}

impl Sticky {
    /// Reads the directive.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Sticky, Error> {
        match forebay_core::config::value::first(d) {
            kind @ (b"cookie" | b"header") => Cookie::parse(d, kind == b"header", cx).map(Sticky::Cookie),
            b"route" => Route::parse(d, cx).map(Sticky::Route),
            b"learn" => Learn::parse(d, cx).map(Sticky::Learn),
            other => Err(cx.error(d, format!("unknown parameter \"{}\"", String::from_utf8_lossy(other)))),
        }
    }

    /// Returns the name of the server that the request sticks to.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub async fn wanted(&self, req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
        match self {
            Sticky::Cookie(c) => c.wanted(req),
            Sticky::Route(route) => route.wanted(req),
            // Boxed, so that other requests do not keep room for it.
            Sticky::Learn(l) => Box::pin(l.wanted(req)).await,
        }
    }

    /// Sets the cookie, or begins the session, when a server has sent the head of a response.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn answered(&self, req: &mut Request, lease: &Lease, sid: &[u8]) -> Result<(), VarError> {
        match self {
            Sticky::Cookie(c) => c.answered(req, lease, sid),
            Sticky::Learn(l) => l.answered(req, sid),
            Sticky::Route(_) => Ok(()),
        }
    }

    /// Begins or prolongs the session when a response is over.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn ended(&self, req: &mut Request, _: &Lease, sid: &[u8]) -> Result<(), VarError> {
        match self {
            Sticky::Learn(l) => l.learn(req, sid),
            _ => Ok(()),
        }
    }

    /// Returns the sessions that a group shares with other replicas (`sticky learn ... sync`).
    pub fn shared(&self, group: &Arc<Group>) -> Option<SharedSessions> {
        match self {
            Sticky::Learn(l) => SharedSessions::of(&l.sessions, group),
            _ => None,
        }
    }

    /// Takes over the sessions of the former configuration.
    pub fn adopt(&self, old: &Sticky) {
        if let (Sticky::Learn(mine), Sticky::Learn(theirs)) = (self, old) {
            mine.sessions.adopt(&theirs.sessions);
        }
    }
}

impl Cookie {
    fn parse(d: &Directive, field: bool, cx: &mut Scope<'_>) -> Result<Cookie, Error> {
        let name = d.args.get(1).map(|w| w.text.clone()).unwrap_or_default();
        let plain = |b: &u8| b.is_ascii_alphanumeric() || *b == b'-';
        if field && !name.iter().all(plain) {
            return Err(cx.error(d, format!("invalid header name \"{}\"", String::from_utf8_lossy(&name))));
        }
        let mut c = Cookie { name, field, ..Cookie::default() };
        for w in d.args.iter().skip(2) {
            c.parameter(d, w, cx)?;
        }
        Ok(c)
    }

    fn parameter(&mut self, d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<(), Error> {
        match split_parameter(&w.text) {
            (b"lifetime", Some(v)) => self.times.lifetime = Some(seconds("lifetime", v, d, w, cx)?),
            (b"idle", Some(v)) => self.times.idle = Some(seconds("idle", v, d, w, cx)?),
            (b"mark", Some(v)) if is_mark(v) => self.mark = Some(v.to_vec()),
            (b"mark", Some(v)) => return Err(cx.error_at(d, w, invalid("\"mark\" parameter value", v))),
            (b"change_on_failure", Some(v)) => {
                self.stays = match v {
                    b"on" => false,
                    b"off" => true,
                    _ => return Err(cx.error_at(d, w, invalid("\"change_on_failure\" parameter value", v))),
                };
            }
            // All other parameters are attributes of a cookie, which a field does not have.
            _ if self.field => return Err(unknown(d, w, cx)),
            (b"expires", Some(v)) => {
                let expires =
                    StickyExpires::parse(v).ok_or_else(|| invalid("\"expires\" parameter value", v));
                self.expires = Some(expires.map_err(|m| cx.error_at(d, w, m))?);
            }
            (b"max_age", Some(v)) => {
                let age = units::duration_secs(v).ok_or_else(|| invalid("\"max_age\" parameter value", v));
                self.max_age = Some(age.map_err(|m| cx.error_at(d, w, m))?.as_secs());
            }
            (b"domain", Some(v)) => self.domain = Some(template(v, d, w, cx)?),
            (b"path", Some(v)) => self.path = Some(template(v, d, w, cx)?),
            (b"samesite", Some(v)) => self.samesite = Some(template(v, d, w, cx)?),
            (b"secure", None) => self.secure = Secure::Always,
            (b"secure", Some(v)) => self.secure = Secure::If(template(v, d, w, cx)?),
            (b"httponly", None) => self.httponly = true,
            _ => return Err(unknown(d, w, cx)),
        }
        Ok(())
    }

    fn wanted(&self, req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
        Ok(self.session(req)?.map(|(sid, _)| sid))
    }

    /// Returns the server of the request's session, and the time at which it began, in Unix seconds.
    fn session(&self, req: &mut Request) -> Result<Option<(Vec<u8>, i64)>, VarError> {
        let mut v = Vec::new();
        if self.field {
            v.extend_from_slice(req.head.all(&self.name).next().unwrap_or_default());
        } else {
            forebay_server::modules::vars::cookie(req, &self.name, &mut v)?;
        }
        let mut rest = v.as_slice();
        if let Some(mark) = &self.mark {
            let marked = rest.strip_prefix(mark.as_slice()).and_then(|v| v.strip_prefix(b"."));
            let Some(marked) = marked else { return Ok(None) };
            rest = marked;
        }
        // The value comes from the client, so a name of unlikely length is not looked up at all.
        let found = self.times.read(rest, req.thread.clock.unix());
        Ok(found.filter(|(sid, _)| !sid.is_empty() && sid.len() <= 256).map(|(sid, at)| (sid.to_vec(), at)))
    }

    fn answered(&self, req: &mut Request, lease: &Lease, sid: &[u8]) -> Result<(), VarError> {
        let before = if self.stays || self.times.is_limited() { self.session(req)? } else { None };
        if self.stays
            && let Some((wanted, _)) = &before
            && *wanted != sid
            && lease.set().is_some_and(|set| set.peers.iter().any(|p| p.sid == *wanted))
        {
            return Ok(());
        }
        // A session at another server counts as a new session, whose time begins now.
        let begun = before.filter(|(wanted, _)| *wanted == sid).map(|(_, begun)| begun);
        let mut line = Vec::new();
        let begun = begun.unwrap_or_else(|| req.thread.clock.unix());
        self.write(req, sid, begun, &mut line)?;
        STATE.of_mut(req).set_cookie = line;
        if self.field {
            STATE.of_mut(req).field.clone_from(&self.name);
        }
        Ok(())
    }

    /// Writes the value of `Set-Cookie`, or of the field in its place.
    fn write(&self, req: &mut Request, sid: &[u8], begun: i64, out: &mut Vec<u8>) -> Result<(), VarError> {
        let now = req.thread.clock.unix();
        if !self.field {
            out.extend_from_slice(&self.name);
            out.push(b'=');
        }
        if let Some(mark) = &self.mark {
            out.extend_from_slice(mark);
            out.push(b'.');
        }
        out.extend_from_slice(sid);
        self.times.write(begun, now, out);
        if self.field {
            return Ok(());
        }
        if let Some(expires) = self.expires {
            // The cookie must not outlive the session, so the rest of the session's time replaces `expires`.
            let expires = self.times.left(begun, now).map_or(expires, StickyExpires::In);
            expires.write(now, self.max_age.is_none(), out);
        }
        if let Some(secs) = self.max_age {
            out.extend_from_slice(b"; max-age=");
            number(out, secs);
        }
        attribute(req, b"; domain=", self.domain.as_ref(), out)?;
        if self.httponly {
            out.extend_from_slice(b"; httponly");
        }
        if self.secure.holds(req)? {
            out.extend_from_slice(b"; secure");
        }
        let samesite = self.samesite.as_ref().map(|t| t.value(req)).transpose()?;
        out.extend_from_slice(same_site(&samesite.unwrap_or_default()));
        attribute(req, b"; path=", self.path.as_ref(), out)
    }
}

/// Reads a time of at least a second.
fn seconds(what: &str, v: &[u8], d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<u64, Error> {
    let time = units::duration_secs(v).map(|time| time.as_secs()).filter(|secs| *secs > 0);
    time.ok_or_else(|| cx.error_at(d, w, invalid(&format!("\"{what}\" parameter value"), v)))
}

/// Returns `true` for letters, digits, `-` and `_`, so that the mark ends at the first dot of a value.
fn is_mark(text: &[u8]) -> bool {
    let fine = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    !text.is_empty() && text.len() <= 64 && text.iter().all(fine)
}

impl Secure {
    fn holds(&self, req: &mut Request) -> Result<bool, VarError> {
        Ok(match self {
            Secure::Never => false,
            Secure::Always => true,
            Secure::If(value) => !matches!(value.value(req)?.as_slice(), b"" | b"0"),
        })
    }
}

impl StickyExpires {
    fn parse(text: &[u8]) -> Option<StickyExpires> {
        match text {
            b"max" => Some(StickyExpires::Max),
            _ => Some(StickyExpires::In(units::duration_secs(text)?.as_secs())),
        }
    }

    /// Appends the attributes at a time, in seconds; `max_age`: with `Max-Age`.
    fn write(self, now: i64, max_age: bool, out: &mut Vec<u8>) {
        let secs = match self {
            StickyExpires::Max => {
                out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT");
                315_360_000
            }
            StickyExpires::In(secs) => {
                out.extend_from_slice(b"; expires=");
                forebay_server::modules::vars::cookie_date(now.saturating_add_unsigned(secs), out);
                secs
            }
        };
        if max_age {
            out.extend_from_slice(b"; max-age=");
            number(out, secs);
        }
    }
}

/// Returns the attribute for a value of `samesite=`, empty for an empty value. As in nginx, an unknown value means the
/// strictest one.
fn same_site(value: &[u8]) -> &'static [u8] {
    match value.to_ascii_lowercase().as_slice() {
        b"" => b"",
        b"lax" => b"; samesite=lax",
        b"none" => b"; samesite=none",
        _ => b"; samesite=strict",
    }
}

fn attribute(
    req: &mut Request,
    name: &[u8],
    t: Option<&Template>,
    out: &mut Vec<u8>,
) -> Result<(), VarError> {
    let Some(t) = t else { return Ok(()) };
    let mut v = t.value(req)?;
    // A value from the client must not end the field or begin another attribute.
    v.retain(|b| !b.is_ascii_control() && *b != b';');
    if !v.is_empty() {
        out.extend_from_slice(name);
        out.extend_from_slice(&v);
    }
    Ok(())
}

impl Learn {
    fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Learn, Error> {
        let mut header = false;
        let sessions = sticky::Learn::parse(d, cx, |w| {
            let known = w.text == b"header";
            header |= known;
            known
        })?;
        Ok(Learn { sessions: Arc::new(sessions), header })
    }

    /// Returns the server of the request's session. With `sync`, waits for the shared store if the session is not known here.
    async fn wanted(&self, req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
        let Some(key) = self.sessions.looked_up(req)? else { return Ok(None) };
        let now = req.thread.io.poller.now();
        match self.sessions.look(&key, now) {
            Look::Known(sid) => Ok(sid),
            Look::Asked(answer) => {
                let longest = req.http().shared_store.settings().map_or(Duration::ZERO, |s| s.timeout);
                // A store that does not answer must not hold requests up: after its timeout the session counts as unknown.
                let answer = req.thread.io.poller.deadline(now + longest, answer).await;
                Ok(self.sessions.found(&key, answer.and_then(Result::ok).flatten(), now))
            }
        }
    }

    fn answered(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        // Evaluated now, since the head of the response is gone when the response is over.
        STATE.of_mut(req).session = self.sessions.created(req)?.unwrap_or_default();
        if self.header { self.learn(req, sid) } else { Ok(()) }
    }

    fn learn(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        let now = req.thread.io.poller.now();
        // If the response names a session, the session of the request is not prolonged.
        let key = std::mem::take(&mut STATE.of_mut(req).session);
        if !key.is_empty() {
            self.sessions.set(&key, sid, now);
            STATE.of_mut(req).session = key;
        } else if let Some(key) = self.sessions.looked_up(req)? {
            self.sessions.prolong(&key, sid, now);
        }
        Ok(())
    }
}
