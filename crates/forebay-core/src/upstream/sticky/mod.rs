//! Sticky sessions: what belongs to one session goes to one server (nginx: sticky route, sticky learn). A front end decides when a
//! session begins, and has methods of its own.

mod sessions;
mod shared;
mod unknown;

pub use shared::{Look, SharedSessions};

use super::peer::{self, clock, ms};
use crate::config::value::split_parameter;
use crate::config::{Build, Context, Scope};
use crate::shared_store::Stores;
use crate::vars::{Evaluate, Template, VarError};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_sys::sync::lock;
use sessions::Sessions;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// `sticky route`: variables. The first one with a value names the server.
#[derive(Debug)]
pub struct Route(Vec<Template>);

/// `sticky learn`: sessions by the values of variables.
#[derive(Debug)]
pub struct Learn {
    create: Vec<Template>,
    lookup: Vec<Template>,
    timeout: Duration,
    sessions: Mutex<Arc<Mutex<Sessions>>>,
    /// `sync`: all replicas know the sessions.
    sync: Option<shared::Sharing>,
}

/// Returns the first value that is not empty.
fn first_of<E: Evaluate>(all: &[Template], e: &mut E) -> Result<Option<Vec<u8>>, VarError> {
    for t in all {
        let v = t.value(e)?;
        if !v.is_empty() {
            return Ok(Some(v));
        }
    }
    Ok(None)
}

impl Route {
    /// Reads `sticky route $variable ...`.
    ///
    /// # Errors
    /// `invalid variable name`.
    pub fn parse<C: Context>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<Route, Error> {
        let variables = d.args.iter().skip(1).map(|w| variable(&w.text, d, w, cx));
        variables.collect::<Result<_, Error>>().map(Route)
    }

    /// Returns the name of the server.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn wanted<E: Evaluate>(&self, e: &mut E) -> Result<Option<Vec<u8>>, VarError> {
        first_of(&self.0, e)
    }
}

impl Learn {
    /// Reads `sticky learn ...`. `flag` reads a word without a value that only the front end knows. It returns `false` if it does
    /// not know the word either.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn parse<C>(
        d: &Directive,
        cx: &mut Scope<'_, C>,
        mut flag: impl FnMut(&Word) -> bool,
    ) -> Result<Learn, Error>
    where
        C: Context,
        C::Tables: Stores,
    {
        let mut line = Line { timeout: Duration::from_secs(600), ..Line::default() };
        for w in d.args.iter().skip(1) {
            if w.text == b"sync" {
                shared::need_store(d, w, cx)?;
                line.sync = true;
            } else if !line.parameter(d, w, cx)? && !flag(w) {
                return Err(unknown(d, w, cx));
            }
        }
        let Line { create, lookup, timeout, zone, sync } = line;
        let absent = [(create.is_empty(), "create"), (lookup.is_empty(), "lookup"), (zone.is_none(), "zone")];
        if let Some((_, what)) = absent.iter().find(|(absent, _)| *absent) {
            let text = format!("\"sticky\" directive \"{what}\" parameter is not specified");
            return Err(cx.error(d, text));
        }
        let (name, room) = zone.unwrap_or_default();
        let sync = sync.then(|| shared::Sharing::new(name));
        let sessions = Mutex::new(Arc::new(Mutex::new(Sessions::new(room))));
        Ok(Learn { create, lookup, timeout, sessions, sync })
    }

    /// Returns the key of a session that begins.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn created<E: Evaluate>(&self, e: &mut E) -> Result<Option<Vec<u8>>, VarError> {
        first_of(&self.create, e)
    }

    /// Returns the key of a session that goes on.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn looked_up<E: Evaluate>(&self, e: &mut E) -> Result<Option<Vec<u8>>, VarError> {
        first_of(&self.lookup, e)
    }

    /// Returns the name of the server of a session.
    pub fn find(&self, key: &[u8], now: Instant) -> Option<Vec<u8>> {
        let sessions = self.sessions();
        lock(&sessions).find(key, clock(now)).map(<[u8]>::to_vec)
    }

    /// Begins or prolongs a session. It moves if it was at another server.
    pub fn set(&self, key: &[u8], sid: &[u8], now: Instant) {
        match &self.sync {
            Some(sync) => self.set_shared(sync, key, sid, now),
            None => lock(&self.sessions()).set(key, sid, self.end(now), clock(now)),
        }
    }

    /// Prolongs a session, unless it has ended or is at another server.
    pub fn prolong(&self, key: &[u8], sid: &[u8], now: Instant) {
        match &self.sync {
            Some(sync) => self.prolong_shared(sync, key, sid, now),
            None => lock(&self.sessions()).prolong(key, sid, self.end(now), clock(now)),
        }
    }

    /// Prolongs a session whose connection ends, or begins it again if it has ended before. Leaves one that is at another server. Not for
    /// sessions with `sync`.
    pub fn renew(&self, key: &[u8], sid: &[u8], now: Instant) {
        lock(&self.sessions()).renew(key, sid, self.end(now), clock(now));
    }

    /// Takes over the sessions of the former configuration.
    pub fn adopt(&self, old: &Learn) {
        // Those that are shared have other keys and another zone.
        if self.sync.as_ref().map(|s| &s.zone) != old.sync.as_ref().map(|s| &s.zone) {
            return;
        }
        let room = lock(&self.sessions()).room;
        let former = old.sessions();
        lock(&former).room = room;
        *lock(&self.sessions) = former;
    }

    fn sessions(&self) -> Arc<Mutex<Sessions>> {
        lock(&self.sessions).clone()
    }

    fn end(&self, now: Instant) -> u64 {
        clock(now).saturating_add(ms(self.timeout))
    }
}

/// Returns the name by which clients know a server, with `sticky_secret`: the MD5 of its name and the secret, in hexadecimal.
pub fn salted(sid: &[u8], secret: &[u8]) -> Vec<u8> {
    peer::sid(&[sid, secret].concat())
}

/// `sticky learn` that is being read.
#[derive(Default)]
struct Line {
    create: Vec<Template>,
    lookup: Vec<Template>,
    timeout: Duration,
    /// Name and size.
    zone: Option<(Vec<u8>, usize)>,
    sync: bool,
}

impl Line {
    /// Reads a parameter that all front ends know. Returns `false` if it is another.
    fn parameter<C: Context>(
        &mut self,
        d: &Directive,
        w: &Word,
        cx: &mut Scope<'_, C>,
    ) -> Result<bool, Error> {
        match split_parameter(&w.text) {
            (b"create", Some(v)) => self.create.push(variable(v, d, w, cx)?),
            (b"lookup", Some(v)) => self.lookup.push(variable(v, d, w, cx)?),
            (b"zone", Some(v)) => self.zone = Some(zone(v).map_err(|m| cx.error_at(d, w, m))?),
            (b"timeout", Some(v)) => {
                let timeout = units::duration_ms(v);
                self.timeout = timeout.ok_or_else(|| cx.error_at(d, w, invalid("timeout", v)))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Reads `zone=NAME:SIZE`.
fn zone(v: &[u8]) -> Result<(Vec<u8>, usize), String> {
    let parts = memchr::memchr(b':', v).and_then(|at| Some((&v[..at], units::size(&v[at + 1..])?)));
    match parts.ok_or_else(|| invalid("zone", v))? {
        (_, 0..0x8000) => Err("\"sticky\" directive zone is too small".to_owned()),
        (name, size) => Ok((name.to_vec(), usize::try_from(size).unwrap_or(usize::MAX))),
    }
}

/// Returns the text of the error about a value.
pub fn invalid(what: &str, value: &[u8]) -> String {
    format!("invalid {what} \"{}\"", String::from_utf8_lossy(value))
}

/// Returns the error about a parameter that the directive does not have.
pub fn unknown(d: &Directive, w: &Word, cx: &Build<'_>) -> Error {
    cx.error_at(d, w, format!("unknown parameter \"{}\"", w.as_str()))
}

/// Compiles the value of a parameter.
///
/// # Errors
/// `invalid variable name`.
pub fn template<C: Context>(
    v: &[u8],
    d: &Directive,
    w: &Word,
    cx: &mut Scope<'_, C>,
) -> Result<Template, Error> {
    let compiled = Template::compile(v, &mut cx.vars);
    compiled.map_err(|m| cx.error_at(d, w, m))
}

fn variable<C: Context>(v: &[u8], d: &Directive, w: &Word, cx: &mut Scope<'_, C>) -> Result<Template, Error> {
    let t = template(v, d, w, cx)?;
    match t.as_var() {
        Some(_) => Ok(t),
        None => Err(cx.error_at(d, w, invalid("variable name", v))),
    }
}
