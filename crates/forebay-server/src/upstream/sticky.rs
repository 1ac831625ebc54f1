//! Requests of one session go to one server (nginx: sticky cookie, route, learn).

use super::peer::clock;
use crate::config::Scope;
use crate::request::Request;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_http::h1::response::number;
use forebay_sys::sync::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// `sticky`.
#[derive(Debug)]
pub enum Sticky {
    /// `sticky cookie`.
    Cookie(Cookie),
    /// `sticky route`: variables of which the first that has a value counts.
    Route(Vec<Template>),
    /// `sticky learn`.
    Learn(Learn),
}

/// `sticky cookie NAME ...`.
#[derive(Debug)]
pub struct Cookie {
    name: Vec<u8>,
    expires: Option<Expires>,
    domain: Option<Template>,
    path: Option<Template>,
    samesite: Option<Template>,
    secure: bool,
    httponly: bool,
}

#[derive(Clone, Copy, Debug)]
enum Expires {
    Max,
    In(u64),
}

/// `sticky learn ...`.
#[derive(Debug)]
pub struct Learn {
    create: Vec<Template>,
    lookup: Vec<Template>,
    timeout: Duration,
    /// `header`: a session begins with the head of the response, not with its end.
    pub header: bool,
    sessions: Mutex<Arc<Mutex<Sessions>>>,
}

/// The first that has a value.
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
    pub fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Sticky, Error> {
        match crate::config::value::first(d) {
            b"cookie" => Ok(Sticky::Cookie(Cookie::parse(d, cx)?)),
            b"route" => {
                let mut all = Vec::new();
                for w in d.args.iter().skip(1) {
                    let t = cx.template(d, w)?;
                    if t.as_var().is_none() {
                        return Err(cx.error_at(d, w, format!("invalid variable name \"{}\"", w.as_str())));
                    }
                    all.push(t);
                }
                Ok(Sticky::Route(all))
            }
            b"learn" => Ok(Sticky::Learn(Learn::parse(d, cx)?)),
            other => Err(cx.error(d, format!("unknown parameter \"{}\"", String::from_utf8_lossy(other)))),
        }
    }

    /// What the request sticks to.
    ///
    /// # Errors
    /// When a variable cannot be evaluated.
    pub fn wanted(&self, req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
        Ok(match self {
            Sticky::Cookie(c) => {
                let mut v = Vec::new();
                crate::modules::vars::cookie(req, &c.name, &mut v)?;
                Some(v).filter(|v| !v.is_empty() && v.len() <= 256)
            }
            Sticky::Route(all) => first_of(all, req)?,
            Sticky::Learn(l) => match first_of(&l.lookup, req)? {
                Some(key) => l.sessions().find(&key, clock(req.thread.io.poller.now())),
                None => None,
            },
        })
    }

    /// A server has sent the head of a response.
    ///
    /// # Errors
    /// When a variable cannot be evaluated.
    pub fn answered(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        match self {
            Sticky::Cookie(c) => {
                let mut line = Vec::new();
                c.write(req, sid, &mut line)?;
                req.modules.upstream.set_cookie = line;
            }
            Sticky::Learn(l) => {
                // The head is gone when the response is over.
                req.modules.upstream.session = first_of(&l.create, req)?.unwrap_or_default();
                if l.header {
                    l.learn(req, sid)?;
                }
            }
            Sticky::Route(_) => {}
        }
        Ok(())
    }

    /// A response is over.
    ///
    /// # Errors
    /// When a variable cannot be evaluated.
    pub fn ended(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        match self {
            Sticky::Learn(l) => l.learn(req, sid),
            _ => Ok(()),
        }
    }

    /// Sessions of the former configuration go on.
    pub fn adopt(&self, old: &Sticky) {
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
        let mut c = Cookie {
            name,
            expires: None,
            domain: None,
            path: None,
            samesite: None,
            secure: false,
            httponly: false,
        };
        for w in d.args.iter().skip(2) {
            let (key, value) = match memchr::memchr(b'=', &w.text) {
                Some(at) => (&w.text[..at], Some(&w.text[at + 1..])),
                None => (w.text.as_slice(), None),
            };
            let mut template =
                |v: &[u8]| Template::compile(v, &mut cx.vars).map_err(|m| cx.error_at(d, w, m)).map(Some);
            match (key, value) {
                (b"expires", Some(b"max")) => c.expires = Some(Expires::Max),
                (b"expires", Some(v)) => {
                    let secs = units::duration_secs(v).ok_or_else(|| {
                        cx.error_at(
                            d,
                            w,
                            format!("invalid \"expires\" parameter value \"{}\"", String::from_utf8_lossy(v)),
                        )
                    })?;
                    c.expires = Some(Expires::In(secs.as_secs()));
                }
                (b"domain", Some(v)) => c.domain = template(v)?,
                (b"path", Some(v)) => c.path = template(v)?,
                (b"samesite", Some(v)) => c.samesite = template(v)?,
                (b"secure", None) => c.secure = true,
                (b"httponly", None) => c.httponly = true,
                _ => return Err(cx.error_at(d, w, format!("unknown parameter \"{}\"", w.as_str()))),
            }
        }
        Ok(c)
    }

    /// Writes the value of `Set-Cookie`.
    fn write(&self, req: &mut Request, sid: &[u8], out: &mut Vec<u8>) -> Result<(), VarError> {
        out.extend_from_slice(&self.name);
        out.push(b'=');
        out.extend_from_slice(sid);
        match self.expires {
            Some(Expires::Max) => {
                out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000")
            }
            Some(Expires::In(secs)) => {
                let at = req.thread.clock.unix().saturating_add_unsigned(secs);
                out.extend_from_slice(b"; expires=");
                crate::modules::userid::cookie_date(at, out);
                out.extend_from_slice(b"; max-age=");
                number(out, secs);
            }
            None => {}
        }
        attribute(req, b"; domain=", self.domain.as_ref(), out)?;
        if self.httponly {
            out.extend_from_slice(b"; httponly");
        }
        if self.secure {
            out.extend_from_slice(b"; secure");
        }
        if let Some(t) = &self.samesite {
            let v = t.value(req)?;
            // What is not known is taken for the strictest (as nginx does).
            let word: &[u8] = match v.to_ascii_lowercase().as_slice() {
                b"" => b"",
                b"lax" => b"lax",
                b"none" => b"none",
                _ => b"strict",
            };
            if !word.is_empty() {
                out.extend_from_slice(b"; samesite=");
                out.extend_from_slice(word);
            }
        }
        attribute(req, b"; path=", self.path.as_ref(), out)
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
    // A value of the client must not end the field or begin another attribute.
    v.retain(|b| !b.is_ascii_control() && *b != b';');
    if !v.is_empty() {
        out.extend_from_slice(name);
        out.extend_from_slice(&v);
    }
    Ok(())
}

impl Learn {
    fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Learn, Error> {
        let (mut create, mut lookup) = (Vec::new(), Vec::new());
        let (mut timeout, mut header, mut room) = (Duration::from_secs(600), false, None);
        for w in d.args.iter().skip(1) {
            let t = w.text.as_slice();
            let invalid = |what: &str, v: &[u8]| format!("invalid {what} \"{}\"", String::from_utf8_lossy(v));
            if let Some(v) = t.strip_prefix(b"create=") {
                create.push(variable(v, d, w, cx)?);
            } else if let Some(v) = t.strip_prefix(b"lookup=") {
                lookup.push(variable(v, d, w, cx)?);
            } else if let Some(v) = t.strip_prefix(b"zone=") {
                let at = memchr::memchr(b':', v).ok_or_else(|| cx.error_at(d, w, invalid("zone", v)))?;
                let size = units::size(&v[at + 1..]).ok_or_else(|| cx.error_at(d, w, invalid("zone", v)))?;
                if size < 32 * 1024 {
                    return Err(cx.error_at(d, w, "\"sticky\" directive zone is too small"));
                }
                room = Some(usize::try_from(size).unwrap_or(usize::MAX));
            } else if let Some(v) = t.strip_prefix(b"timeout=") {
                timeout = units::duration_ms(v).ok_or_else(|| cx.error_at(d, w, invalid("timeout", v)))?;
            } else if t == b"header" {
                header = true;
            } else if t == b"sync" {
                cx.warn(d, "the \"sync\" parameter of \"sticky learn\" is not supported, ignored");
            } else {
                return Err(cx.error_at(d, w, format!("unknown parameter \"{}\"", w.as_str())));
            }
        }
        let missing = |what: &str| format!("\"sticky\" directive \"{what}\" parameter is not specified");
        for (absent, what) in
            [(create.is_empty(), "create"), (lookup.is_empty(), "lookup"), (room.is_none(), "zone")]
        {
            if absent {
                return Err(cx.error(d, missing(what)));
            }
        }
        let sessions = Sessions { room: room.unwrap_or(0), ..Sessions::default() };
        Ok(Learn { create, lookup, timeout, header, sessions: Mutex::new(Arc::new(Mutex::new(sessions))) })
    }

    fn sessions(&self) -> SessionsRef {
        SessionsRef(lock(&self.sessions).clone())
    }

    fn learn(&self, req: &mut Request, sid: &[u8]) -> Result<(), VarError> {
        let now = clock(req.thread.io.poller.now());
        let until = now.saturating_add(super::peer::ms(self.timeout));
        // Where the response names a session, that one is meant, and the one of the request is not prolonged.
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

fn variable(
    v: &[u8],
    d: &Directive,
    w: &forebay_conf::tree::Word,
    cx: &mut Scope<'_>,
) -> Result<Template, Error> {
    let t = Template::compile(v, &mut cx.vars).map_err(|m| cx.error_at(d, w, m))?;
    match t.as_var() {
        Some(_) => Ok(t),
        None => Err(cx.error_at(d, w, format!("invalid variable name \"{}\"", String::from_utf8_lossy(v)))),
    }
}

/// Sessions of `sticky learn`.
#[derive(Debug, Default)]
struct Sessions {
    map: HashMap<Box<[u8]>, Session, foldhash::fast::RandomState>,
    /// Sessions by the time they end; entries of sessions that were prolonged are skipped.
    order: VecDeque<(u64, Box<[u8]>)>,
    room: usize,
    used: usize,
}

#[derive(Debug)]
struct Session {
    sid: Box<[u8]>,
    until: u64,
}

/// Bytes that one session takes beside its texts: about as many fit into a zone as in nginx.
const COST: usize = 96;

/// Longest key, bytes: what is longer is no session.
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
            // An order entry a request would let the list grow: one for each quarter of a second is enough.
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
        self.map.insert(key.into(), Session { sid: sid.into(), until });
        self.order.push_back((until, key.into()));
    }

    /// Takes sessions away that have ended.
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
