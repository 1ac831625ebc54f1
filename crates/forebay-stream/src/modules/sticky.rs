//! Sessions of one client go to one server (Angie: stream_upstream_sticky).

use crate::config::{Scope, Upstream};
use crate::session::Session;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::config::value::first;
use forebay_core::upstream::balance::Key;
use forebay_core::upstream::group::Group;
use forebay_core::upstream::sticky::{Learn, Route, salted};
use forebay_core::vars::{Template, VarError};
use std::sync::Arc;

/// `sticky`, `sticky_secret` and `sticky_strict` of a group.
#[derive(Debug, Default)]
pub(crate) struct Sticky {
    method: Option<Method>,
    secret: Option<Template>,
    strict: Option<bool>,
}

#[derive(Debug)]
enum Method {
    Route(Route),
    Learn(Learn, Refresh),
}

/// Effect of a session that comes back on its time at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refresh {
    /// The time begins again.
    Prolong,
    /// The session ends at its time (`norefresh`).
    Keep,
}

/// Relation of a session to the server that it goes to (`$upstream_sticky_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The session was bound to no server.
    New,
    /// It is bound to this one.
    Hit,
    /// It is bound to another one.
    Miss,
}

impl Status {
    /// Returns the word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Status::New => "NEW",
            Status::Hit => "HIT",
            Status::Miss => "MISS",
        }
    }
}

/// State of a session in a group with `sticky`.
#[derive(Debug)]
pub(crate) struct Binding {
    upstream: Arc<Upstream>,
    /// Name of the server that the session is bound to.
    wanted: Option<Vec<u8>>,
    /// Session that has been learnt.
    learnt: Option<Learnt>,
}

#[derive(Debug)]
struct Learnt {
    key: Vec<u8>,
    sid: Vec<u8>,
}

impl Sticky {
    /// Reads a directive of an `upstream` block. Returns `false` if it is another.
    ///
    /// # Errors
    /// In the words of HTTP's directive.
    pub(crate) fn directive(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
        let known = match d.name.text.as_slice() {
            b"sticky" => self.method.is_some(),
            b"sticky_secret" => self.secret.is_some(),
            b"sticky_strict" => self.strict.is_some(),
            _ => return Ok(false),
        };
        if known {
            return Err(cx.directive_error(d, "is duplicate"));
        }
        match d.name.text.as_slice() {
            b"sticky" => self.method = Some(Method::parse(d, cx)?),
            b"sticky_secret" => self.secret = d.args.first().map(|w| cx.template(d, w)).transpose()?,
            _ => self.strict = Some(first(d).eq_ignore_ascii_case(b"on")),
        }
        Ok(true)
    }

    /// Returns `true` if sessions stick.
    pub(crate) fn is_on(&self) -> bool {
        self.method.is_some()
    }

    /// Takes over the sessions of the former configuration.
    pub(crate) fn adopt(&self, old: &Sticky) {
        if let (Some(Method::Learn(mine, _)), Some(Method::Learn(theirs, _))) = (&self.method, &old.method) {
            mine.adopt(theirs);
        }
    }

    /// Returns the name of the server that a session is bound to. It is empty, as no server's, if what the client has sent names
    /// none.
    fn wanted(&self, s: &mut Session, group: &Group) -> Result<Option<Vec<u8>>, VarError> {
        match &self.method {
            None => Ok(None),
            Some(Method::Learn(learn, _)) => {
                let key = learn.looked_up(s)?;
                Ok(key.and_then(|key| learn.find(&key, s.thread.io.poller.now())))
            }
            Some(Method::Route(route)) => {
                let named = route.wanted(s)?;
                let (Some(secret), Some(named)) = (&self.secret, &named) else { return Ok(named) };
                let secret = secret.value(s)?;
                let set = group.set();
                let peer = set.peers.iter().find(|peer| salted(&peer.sid, &secret) == *named);
                Ok(Some(peer.map(|peer| peer.sid.clone()).unwrap_or_default()))
            }
        }
    }
}

impl Method {
    fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Method, Error> {
        match first(d) {
            b"route" => Route::parse(d, cx).map(Method::Route),
            b"learn" => {
                let mut refresh = Refresh::Prolong;
                let learn = Learn::parse(d, cx, |w| match w.text.as_slice() {
                    b"norefresh" => {
                        refresh = Refresh::Keep;
                        true
                    }
                    // Sessions begin with the connection to the server in any case.
                    b"connect" => true,
                    _ => false,
                })?;
                Ok(Method::Learn(learn, refresh))
            }
            other => Err(cx.error(d, format!("unknown parameter \"{}\"", String::from_utf8_lossy(other)))),
        }
    }
}

impl Binding {
    /// Finds the server that a session is bound to, and adds it to the key of the choice. Returns `None` if sessions of the group
    /// do not stick.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub(crate) fn find(
        s: &mut Session,
        upstream: &Arc<Upstream>,
        key: &mut Key,
    ) -> Result<Option<Binding>, VarError> {
        let sticky = &upstream.extras.sticky;
        if !sticky.is_on() {
            return Ok(None);
        }
        let wanted = sticky.wanted(s, &upstream.group)?;
        key.sticky.clone_from(&wanted);
        key.strict = sticky.strict == Some(true);
        Ok(Some(Binding { upstream: upstream.clone(), wanted, learnt: None }))
    }

    /// Returns the status of the session at a server; `None`: no server could be chosen.
    pub(crate) fn status(&self, sid: Option<&[u8]>) -> Status {
        match &self.wanted {
            None => Status::New,
            wanted if wanted.as_deref() == sid => Status::Hit,
            Some(_) => Status::Miss,
        }
    }

    /// Learns the server of a session that has been connected to it. Logs a failure.
    pub(crate) fn connected(&mut self, s: &mut Session, sid: &[u8]) {
        let Some(Method::Learn(learn, refresh)) = &self.upstream.extras.sticky.method else { return };
        if *refresh == Refresh::Keep && self.status(Some(sid)) == Status::Hit {
            return;
        }
        match self.key(learn, s, sid) {
            Ok(Some(key)) => {
                learn.set(&key, sid, s.thread.io.poller.now());
                self.learnt = Some(Learnt { key, sid: sid.to_vec() });
            }
            Ok(None) => {}
            Err(e) => s.log(Level::Error, &e.0),
        }
    }

    /// Returns the key by which a session at a server is learnt: that of `create`, or the one by which it has been found there.
    fn key(&self, learn: &Learn, s: &mut Session, sid: &[u8]) -> Result<Option<Vec<u8>>, VarError> {
        match learn.created(s)? {
            None if self.status(Some(sid)) == Status::Hit => learn.looked_up(s),
            created => Ok(created),
        }
    }

    /// Prolongs a session that has been learnt, at the end of its connection. That may have been open for longer than the
    /// session's time.
    pub(crate) fn ended(&self, s: &Session) {
        let Some(Method::Learn(learn, Refresh::Prolong)) = &self.upstream.extras.sticky.method else {
            return;
        };
        let Some(Learnt { key, sid }) = &self.learnt else { return };
        learn.renew(key, sid, s.thread.io.poller.now());
    }
}
