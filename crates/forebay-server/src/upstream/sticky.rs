//! Requests of one session go to one server (nginx: sticky cookie, route, learn).

use crate::config::Scope;
use crate::config::value::split_parameter;
use crate::request::Request;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::upstream::peer::{clock, ms};
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_http::h1::response::number;
use forebay_sys::sync::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// `sticky`.
#[derive(Debug)]
pub(crate) enum Sticky {
    /// `sticky cookie`.
    Cookie(Cookie),
    /// `sticky route`: variables. The first one with a value counts.
    Route(Vec<Template>),
    /// `sticky learn`.
    Learn(Learn),
}

/// `sticky cookie NAME ...`.
#[derive(Debug, Default)]
pub(crate) struct Cookie {
    name: Vec<u8>,
    expires: Option<StickyExpires>,
    domain: Option<Template>,
    path: Option<Template>,
    samesite: Option<Template>,
    secure: bool,
    httponly: bool,
}

#[derive(Clone, Copy, Debug)]
enum StickyExpires {
    Max,
    In(u64),
}

/// `sticky learn ...`.
#[derive(Debug)]
pub(crate) struct Learn {
    create: Vec<Template>,
    lookup: Vec<Template>,
    timeout: Duration,
    /// `header`: a session begins with the head of the response rather than with its end.
    pub header: bool,
    sessions: Mutex<Arc<Mutex<Sessions>>>,
}

/// Returns the first value that is not empty.
fn first_of(all: &[Template], req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
    for t in all {
        let v = t.value(req)?;
        if !v.is_empty() {
            return Ok(Some(v));
        }
    }
    Ok(None)
}

impl Sticky {
    /// Reads the directive.
    ///
    /// # Errors
    /// In nginx's words.
    pub(crate) fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Sticky, Error> {
        match crate::config::value::first(d) {
            b"cookie" => Cookie::parse(d, cx).map(Sticky::Cookie),
            b"route" => {
                let variables = d.args.iter().skip(1).map(|w| variable(&w.text, d, w, cx));
                variables.collect::<Result<_, Error>>().map(Sticky::Route)
            }
            b"learn" => Learn::parse(d, cx).map(Sticky::Learn),
            other => Err(cx.error(d, format!("unknown parameter \"{}\"", String::from_utf8_lossy(other)))),
        }
    }

    /// Returns the name of the server that the request sticks to.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub(crate) fn wanted(&self, req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
        match self {
            Sticky::Cookie(c) => c.wanted(req),
            Sticky::Route(all) => first_of(all, req),
            Sticky::Learn(l) => l.wanted(req),
        }
    }

    /// Sets the cookie, or begins the session, when a server has sent the head of a response.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub(crate) fn answered(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        match self {
            Sticky::Cookie(c) => c.answered(req, sid),
            Sticky::Learn(l) => l.answered(req, sid),
            Sticky::Route(_) => Ok(()),
        }
    }

    /// Begins or prolongs the session when a response is over.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub(crate) fn ended(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        match self {
            Sticky::Learn(l) => l.learn(req, sid),
            _ => Ok(()),
        }
    }

    /// Takes over the sessions of the former configuration.
    pub(crate) fn adopt(&self, old: &Sticky) {
        if let (Sticky::Learn(mine), Sticky::Learn(theirs)) = (self, old) {
            let sessions = lock(&theirs.sessions).clone();
            let room = lock(&mine.sessions()).room;
            lock(&sessions).room = room;
            *lock(&mine.sessions) = sessions;
        }
    }
}

impl Cookie {
    fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Cookie, Error> {
        let name = d.args.get(1).map(|w| w.text.clone()).unwrap_or_default();
        let mut c = Cookie { name, ..Cookie::default() };
        for w in d.args.iter().skip(2) {
            c.parameter(d, w, cx)?;
        }
        Ok(c)
    }

    fn parameter(&mut self, d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<(), Error> {
        match split_parameter(&w.text) {
            (b"expires", Some(v)) => {
                let expires =
                    StickyExpires::parse(v).ok_or_else(|| invalid("\"expires\" parameter value", v));
                self.expires = Some(expires.map_err(|m| cx.error_at(d, w, m))?);
            }
            (b"domain", Some(v)) => self.domain = Some(template(v, d, w, cx)?),
            (b"path", Some(v)) => self.path = Some(template(v, d, w, cx)?),
            (b"samesite", Some(v)) => self.samesite = Some(template(v, d, w, cx)?),
            (b"secure", None) => self.secure = true,
            (b"httponly", None) => self.httponly = true,
            _ => return Err(unknown(d, w, cx)),
        }
        Ok(())
    }

    fn wanted(&self, req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
        let mut v = Vec::new();
        crate::modules::vars::cookie(req, &self.name, &mut v)?;
        Ok(Some(v).filter(|v| !v.is_empty() && v.len() <= 256))
    }

    fn answered(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        let mut line = Vec::new();
        self.write(req, sid, &mut line)?;
        req.modules.upstream.set_cookie = line;
        Ok(())
    }

    /// Writes the value of `Set-Cookie`.
    fn write(&self, req: &mut Request, sid: &[u8], out: &mut Vec<u8>) -> Result<(), VarError> {
        out.extend_from_slice(&self.name);
        out.push(b'=');
        out.extend_from_slice(sid);
        if let Some(expires) = self.expires {
            expires.write(req.thread.clock.unix(), out);
        }
        attribute(req, b"; domain=", self.domain.as_ref(), out)?;
        if self.httponly {
            out.extend_from_slice(b"; httponly");
        }
        if self.secure {
            out.extend_from_slice(b"; secure");
        }
        let samesite = self.samesite.as_ref().map(|t| t.value(req)).transpose()?;
        out.extend_from_slice(same_site(&samesite.unwrap_or_default()));
        attribute(req, b"; path=", self.path.as_ref(), out)
    }
}

impl StickyExpires {
    fn parse(text: &[u8]) -> Option<StickyExpires> {
        match text {
            b"max" => Some(StickyExpires::Max),
            _ => Some(StickyExpires::In(units::duration_secs(text)?.as_secs())),
        }
    }

    /// Appends the attributes at a time, in seconds.
    fn write(self, now: i64, out: &mut Vec<u8>) {
        match self {
            StickyExpires::Max => {
                out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000");
            }
            StickyExpires::In(secs) => {
                out.extend_from_slice(b"; expires=");
                crate::modules::userid::cookie_date(now.saturating_add_unsigned(secs), out);
                out.extend_from_slice(b"; max-age=");
                number(out, secs);
            }
        }
    }
}

/// Returns the attribute for a value of `samesite=`, empty for an empty value. An unknown value means the strictest one, as in nginx.
fn same_site(value: &[u8]) -> &'static [u8] {
    match value.to_ascii_lowercase().as_slice() {
        b"" => b"",
        b"lax" => b"; samesite=lax",
        b"none" => b"; samesite=none",
        _ => b"; samesite=strict",
    }
}

fn invalid(what: &str, value: &[u8]) -> String {
    format!("invalid {what} \"{}\"", String::from_utf8_lossy(value))
}

fn unknown(d: &Directive, w: &Word, cx: &Scope<'_>) -> Error {
    cx.error_at(d, w, format!("unknown parameter \"{}\"", w.as_str()))
}

fn template(v: &[u8], d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<Template, Error> {
    let compiled = Template::compile(v, &mut cx.vars);
    compiled.map_err(|m| cx.error_at(d, w, m))
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

/// `sticky learn` that is being read.
struct LearnLine {
    create: Vec<Template>,
    lookup: Vec<Template>,
    timeout: Duration,
    header: bool,
    room: Option<usize>,
}

impl LearnLine {
    fn parameter(&mut self, d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<(), Error> {
        match split_parameter(&w.text) {
            (b"create", Some(v)) => self.create.push(variable(v, d, w, cx)?),
            (b"lookup", Some(v)) => self.lookup.push(variable(v, d, w, cx)?),
            (b"zone", Some(v)) => self.room = Some(zone(v).map_err(|m| cx.error_at(d, w, m))?),
            (b"timeout", Some(v)) => {
                let timeout = units::duration_ms(v);
                self.timeout = timeout.ok_or_else(|| cx.error_at(d, w, invalid("timeout", v)))?;
            }
            (b"header", None) => self.header = true,
            (b"sync", None) => {
                cx.warn(d, "the \"sync\" parameter of \"sticky learn\" is not supported, ignored");
            }
            _ => return Err(unknown(d, w, cx)),
        }
        Ok(())
    }
}

/// Reads `zone=NAME:SIZE`: its size.
fn zone(v: &[u8]) -> Result<usize, String> {
    let size = memchr::memchr(b':', v).and_then(|at| units::size(&v[at + 1..]));
    match size.ok_or_else(|| invalid("zone", v))? {
        0..0x8000 => Err("\"sticky\" directive zone is too small".to_owned()),
        size => Ok(usize::try_from(size).unwrap_or(usize::MAX)),
    }
}

impl Learn {
    fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Learn, Error> {
        let timeout = Duration::from_secs(600);
        let mut line =
            LearnLine { create: Vec::new(), lookup: Vec::new(), timeout, header: false, room: None };
        for w in d.args.iter().skip(1) {
            line.parameter(d, w, cx)?;
        }
        let LearnLine { create, lookup, timeout, header, room } = line;
        let absent = [(create.is_empty(), "create"), (lookup.is_empty(), "lookup"), (room.is_none(), "zone")];
        if let Some((_, what)) = absent.iter().find(|(absent, _)| *absent) {
            let text = format!("\"sticky\" directive \"{what}\" parameter is not specified");
            return Err(cx.error(d, text));
        }
        let sessions = Sessions { room: room.unwrap_or(0), ..Sessions::default() };
        Ok(Learn { create, lookup, timeout, header, sessions: Mutex::new(Arc::new(Mutex::new(sessions))) })
    }

    fn wanted(&self, req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
        let key = first_of(&self.lookup, req)?;
        let now = clock(req.thread.io.poller.now());
        Ok(key.and_then(|key| self.sessions().find(&key, now)))
    }

    fn answered(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        // Evaluated now, since the head is gone when the response is over.
        req.modules.upstream.session = first_of(&self.create, req)?.unwrap_or_default();
        if self.header { self.learn(req, sid) } else { Ok(()) }
    }

    fn sessions(&self) -> SessionsRef {
        SessionsRef(lock(&self.sessions).clone())
    }

    fn learn(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        let now = clock(req.thread.io.poller.now());
        let until = now.saturating_add(ms(self.timeout));
        // If the response names a session, the session of the request is not prolonged.
        let key = std::mem::take(&mut req.modules.upstream.session);
        if !key.is_empty() {
            self.sessions().set(&key, sid, until, now);
            req.modules.upstream.session = key;
        } else if let Some(key) = first_of(&self.lookup, req)? {
            self.sessions().prolong(&key, sid, until, now);
        }
        Ok(())
    }
}

fn variable(v: &[u8], d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<Template, Error> {
    let t = template(v, d, w, cx)?;
    match t.as_var() {
        Some(_) => Ok(t),
        None => Err(cx.error_at(d, w, invalid("variable name", v))),
    }
}

/// Sessions of `sticky learn`.
#[derive(Debug, Default)]
struct Sessions {
    map: HashMap<Box<[u8]>, LearnedSession, foldhash::fast::RandomState>,
    /// Sessions by the time they end. Skips entries of sessions that were prolonged.
    order: VecDeque<(u64, Box<[u8]>)>,
    room: usize,
    used: usize,
}

#[derive(Debug)]
struct LearnedSession {
    sid: Box<[u8]>,
    until: u64,
}

/// Bytes of one session in addition to its texts. About as many sessions fit into a zone as in nginx.
const COST: usize = 96;

/// Longest key of a session, bytes.
const MAX_KEY: usize = 1024;

struct SessionsRef(Arc<Mutex<Sessions>>);

impl std::ops::Deref for SessionsRef {
    type Target = Mutex<Sessions>;
    fn deref(&self) -> &Mutex<Sessions> {
        &self.0
    }
}

impl SessionsRef {
    fn find(&self, key: &[u8], now: u64) -> Option<Vec<u8>> {
        let s = lock(self);
        s.map.get(key).filter(|s| now < s.until).map(|s| s.sid.to_vec())
    }

    fn set(&self, key: &[u8], sid: &[u8], until: u64, now: u64) {
        if key.len() <= MAX_KEY {
            lock(self).put(key, sid, until, now);
        }
    }

    fn prolong(&self, key: &[u8], sid: &[u8], until: u64, now: u64) {
        let mut s = lock(self);
        if s.map.get(key).is_some_and(|s| now < s.until && *s.sid == *sid) {
            s.put(key, sid, until, now);
        }
    }

    #[cfg(test)]
    fn lock_room(&self) -> usize {
        lock(self).map.len()
    }
}

impl Sessions {
    fn put(&mut self, key: &[u8], sid: &[u8], until: u64, now: u64) {
        self.forget(now);
        let cost = COST + key.len() + sid.len();
        if let Some(old) = self.map.get_mut(key) {
            if *old.sid != *sid {
                self.used = self.used + sid.len() - old.sid.len();
                old.sid = sid.into();
            }
            // One entry for each quarter of a second, since one for each request would let the list grow.
            if until > old.until.saturating_add(250) {
                old.until = until;
                self.order.push_back((until, key.into()));
            }
            return;
        }
        while self.used + cost > self.room {
            let Some((at, key)) = self.order.pop_front() else { return };
            self.drop_if(&key, at);
        }
        self.used += cost;
        self.map.insert(key.into(), LearnedSession { sid: sid.into(), until });
        self.order.push_back((until, key.into()));
    }

    /// Removes sessions that have ended.
    fn forget(&mut self, now: u64) {
        while self.order.front().is_some_and(|(at, _)| *at <= now) {
            let Some((at, key)) = self.order.pop_front() else { return };
            self.drop_if(&key, at);
        }
    }

    /// Drops a session unless it was prolonged since the entry was made.
    fn drop_if(&mut self, key: &[u8], at: u64) {
        if self.map.get(key).is_some_and(|s| s.until == at)
            && let Some(s) = self.map.remove(key)
        {
            self.used = self.used.saturating_sub(COST + key.len() + s.sid.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_and_are_bounded() {
        let s = SessionsRef(Arc::new(Mutex::new(Sessions { room: 1000, ..Sessions::default() })));
        s.set(b"a", b"x", 500, 1);
        assert_eq!(s.find(b"a", 499), Some(b"x".to_vec()));
        assert_eq!(s.find(b"a", 500), None);
        s.prolong(b"a", b"x", 900, 100);
        assert_eq!(s.find(b"a", 600), Some(b"x".to_vec()));
        s.prolong(b"a", b"y", 2000, 100);
        assert_eq!(s.find(b"a", 1000), None);
        for n in 0..100u8 {
            s.set(&[n], b"x", 5000, 1000);
        }
        assert!(s.lock_room() <= 10, "{}", s.lock_room());
        assert_eq!(s.find(&[99], 1000), Some(b"x".to_vec()));
        assert_eq!(s.find(&[0], 1000), None);
    }
}
