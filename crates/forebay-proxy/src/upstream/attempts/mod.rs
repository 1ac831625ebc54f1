//! Attempts of a request: chooses a server and judges the result; after a failure chooses the next one (nginx:
//! proxy_next_upstream). The caller asks the server. Hot path.

mod servers;

use super::codec::muxed;
use super::contact::Contact;
use super::exchange::Target;
use super::fault::{Fault, client_gone};
use crate::modules::proxy::{NextMask, NextUpstream};
use crate::upstream::CALL;
use forebay_conf::error::Level;
use forebay_core::trace::Step;
use forebay_core::upstream::dial_error::Blame;
use forebay_core::upstream::queue::Gone;
use forebay_net::addr::PeerAddr;
use forebay_server::request::Request;
use forebay_server::request::upstream::Attempt;
use forebay_server::thread::ThreadConfig;
use forebay_server::way;
use servers::Servers;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Rules of a location by which another server is asked.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// `proxy_next_upstream`.
    pub next: NextMask,
    /// `proxy_next_upstream_tries`; `usize::MAX` = no limit.
    pub tries: usize,
    /// `proxy_next_upstream_timeout`; 0 = no limit.
    pub timeout: Duration,
    /// `proxy_next_upstream_again`: servers that were tried are tried again, within a limited number of tries.
    pub again: bool,
    /// `proxy_next_upstream_delay`: time between a failure and the next attempt.
    pub delay: Duration,
}

/// Condition under which a request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    Always,
    /// If the server cannot have acted upon it.
    Unsent,
    Never,
}

impl Rules {
    fn tries_again(&self) -> bool {
        self.again && self.tries != usize::MAX
    }

    /// Returns `true` if another attempt may begin, after a pause.
    fn is_in_time(&self, elapsed: Duration) -> bool {
        self.timeout.is_zero() || elapsed.saturating_add(self.delay) < self.timeout
    }

    /// Returns `true` if the request may be sent again after a failure.
    fn allow(&self, fault: &Fault, repeat: Repeat, elapsed: Duration) -> bool {
        self.next.has(fault.kind) && self.is_in_time(elapsed) && repeat.allows(fault.unsent)
    }
}

impl Repeat {
    fn allows(self, unsent: bool) -> bool {
        match self {
            Repeat::Always => true,
            Repeat::Unsent => unsent,
            Repeat::Never => false,
        }
    }
}

/// Kept connections that a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// No kept connection.
    No,
    /// Connections of the group. A connection that turns out to be closed is listed among the attempts, but does not count
    /// as a try.
    Group,
    /// Connections of a group that `proxy_pass` implies. A connection that turns out to be closed is not listed, since nginx
    /// has no such connections.
    Implied,
}

/// Number of kept connections that may turn out to be closed before the request uses new connections only, whose failures
/// count. A server that vanished without closing anything leaves connections over which each request fails.
const MOST_CLOSED: u32 = 4;

/// The attempts of one request.
pub struct Attempts<'t> {
    conf: Rc<ThreadConfig>,
    servers: Servers<'t>,
    rules: Rules,
    kept: Kept,
    begun: Instant,
    /// Servers that failed.
    tried: Vec<usize>,
    /// Number of servers whose kept connections turned out to be closed.
    dropped: u32,
    /// Number of kept connections that turned out to be closed.
    closed: u32,
    /// The server that is being asked, and since when.
    current: (usize, Instant),
    /// `true` if the next attempt is the first of another location.
    redirected: bool,
    /// `true` if a server has failed since the last attempt.
    failed: bool,
}

/// Decision after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The response is passed on.
    Answered,
    /// Another attempt is made.
    Again,
    /// The client gets this status.
    Stop(u16),
}

impl<'t> Attempts<'t> {
    /// Evaluates the properties of the request that the choice of a server depends on.
    ///
    /// # Errors
    /// The status to answer with.
    pub async fn new(
        req: &mut Request,
        target: &'t Target,
        rules: Rules,
        kept: Kept,
    ) -> Result<Attempts<'t>, u16> {
        let conf = req.conf.clone();
        let begun = req.thread.io.poller.now();
        let servers = Servers::new(req, target).await?;
        CALL.of_mut(req).fault = Some(NextUpstream::Error);
        let redirected = !req.modules.upstream.attempts.is_empty();
        let (tried, current) = (Vec::new(), (0, begun));
        let (dropped, closed) = (0, 0);
        Ok(Attempts {
            conf,
            servers,
            rules,
            kept,
            begun,
            tried,
            dropped,
            closed,
            current,
            redirected,
            failed: false,
        })
    }

    /// Returns `true` if the next attempt may use a kept connection.
    pub fn may_reuse(&self) -> bool {
        self.kept != Kept::No
    }

    /// Returns the time to wait for before the next attempt. A kept connection that turned out to be closed is no failure.
    pub fn pause(&mut self) -> Option<Duration> {
        Some(self.rules.delay).filter(|delay| std::mem::take(&mut self.failed) && !delay.is_zero())
    }

    /// Chooses the next server, waits for one if need be, and begins an attempt at it.
    ///
    /// # Errors
    /// The status to answer with.
    pub async fn begin(&mut self, req: &mut Request) -> Result<Contact, u16> {
        let now = req.thread.io.poller.now();
        let mut chosen = self.servers.choose(&self.tried, now);
        if chosen.is_none() && self.tried.is_empty() {
            // Boxed, so that requests that wait for answers keep no room for it.
            chosen = Box::pin(self.choose_after_all(req, now)).await?;
        } else if chosen.is_none() && self.rules.tries_again() {
            chosen = self.servers.choose_again(now);
        }
        let peer =
            chosen.filter(|peer| self.servers.address(*peer).is_some()).ok_or_else(|| self.no_live(req))?;
        self.current = (peer, now);
        let contact = self.servers.contact(req, peer, now);
        let mut name = std::mem::take(&mut req.modules.upstream.spare_name);
        self.servers.push_name(peer, &mut name);
        let redirected = std::mem::take(&mut self.redirected);
        // Most requests make one attempt, so the vector does not grow in larger steps.
        req.modules.upstream.attempts.reserve_exact(1);
        req.modules.upstream.attempts.push(Attempt { redirected, ..Attempt::new(name, now) });
        name_in_log(req, self.address());
        way::note(req, || self.step(req));
        Ok(contact)
    }

    /// Returns the choice of a server as a step of the request's way.
    #[cold]
    fn step(&self, req: &Request) -> Step {
        let name = req.modules.upstream.attempts.last().map(|a| a.name.clone()).unwrap_or_default();
        let step = Step::new("upstream").fact("server", &name);
        let step = step.about(&[
            "proxy_pass",
            "fastcgi_pass",
            "uwsgi_pass",
            "scgi_pass",
            "grpc_pass",
            "memcached_pass",
        ]);
        match &self.servers {
            Servers::Group(picker, _) if picker.local.group.explicit => {
                step.fact("group", &picker.local.group.name)
            }
            _ => step,
        }
    }

    /// Chooses a server for a request that no server has refused, where none could be chosen at first.
    ///
    /// # Errors
    /// The status to answer with.
    async fn choose_after_all(&mut self, req: &mut Request, now: Instant) -> Result<Option<usize>, u16> {
        let Servers::Group(picker, _) = &mut self.servers else { return Ok(None) };
        match self.dropped {
            // The only server left had closed its kept connection, which says nothing about its health. It is asked again
            // over another connection.
            1 => {
                picker.ask_again();
                self.dropped = 0;
                Ok(picker.choose(now))
            }
            0 => {
                // No server refused the request, so all of them are busy or disabled: the request waits in the queue of
                // its group.
                let mut watch = req.conn.wire.watch();
                let waited = picker.wait(&self.conf.groups, &req.thread.io, &mut watch).await;
                waited.map_err(|Gone| client_gone(req, "waiting for a free upstream server").status)
            }
            _ => Ok(None),
        }
    }

    /// Address of the server that is being asked.
    pub fn address(&self) -> Option<&PeerAddr> {
        self.servers.address(self.current.0)
    }

    /// Returns `true` if another server would be asked after a failure of the request that has been sent.
    pub(crate) fn asks_another(&self, req: &Request, kind: NextUpstream, repeat: Repeat) -> bool {
        self.rules.next.has(kind)
            // The server that is being asked is not in `tried` yet.
            && self.tried.len() + 1 < self.limit()
            && self.rules.is_in_time(req.thread.io.poller.since(self.begun))
            && repeat.allows(false)
    }

    /// Ends an attempt that has led to a response, or to a connection if the request wants no more.
    pub(crate) fn answered(
        &mut self,
        req: &mut Request,
        place: &mut Option<Contact>,
        repeat: Repeat,
    ) -> Decision {
        let status = req.modules.upstream.head.status;
        let another = self.tried.len() + 1 < self.limit()
            && self.rules.is_in_time(req.thread.io.poller.since(self.begun));
        match self.rules.next.of_status(status) {
            // A server that sends a status has acted upon the request, so only a request that may be repeated in any case
            // goes to another server.
            Some(kind) if another && repeat == Repeat::Always => {
                self.failed(req, place, &Fault::new(kind, status), repeat)
            }
            _ => {
                if let Some(contact) = place {
                    contact.answered(req);
                }
                Decision::Answered
            }
        }
    }

    /// Ends an attempt that has failed, and gives its place back.
    pub(crate) fn failed(
        &mut self,
        req: &mut Request,
        place: &mut Option<Contact>,
        fault: &Fault,
        repeat: Repeat,
    ) -> Decision {
        let again = self.rules.allow(fault, repeat, req.thread.io.poller.since(self.begun));
        let reason = CALL.of_mut(req).reason.take();
        // The attempt is noted while the connection is still in its place, since the place is emptied below.
        let (reused, received) = note_failure(req, place.as_ref(), fault);
        if fault.kind == NextUpstream::Timeout
            && let Some(stream) = place.as_ref().and_then(Contact::conn).and_then(muxed::stream)
        {
            stream.timed_out();
        }
        // Gives the place back first, so that it counts as free when another server is chosen.
        *place = None;
        if fault.blame == Blame::Ours {
            // The server is not at fault, so `$upstream_status` must not show a status for it.
            if let Some(a) = req.modules.upstream.current() {
                a.status = 0;
            }
            return Decision::Stop(fault.status);
        }
        // The server may have closed an idle connection while the request was on its way. That is no failure of the server
        // and no try.
        if reused && (received == 0 || fault.unsent) && fault.kind == NextUpstream::Error {
            return self.closed(req, fault.status, again);
        }
        self.mark_failed(req, fault, reason);
        self.tried.push(self.current.0);
        self.failed = true;
        if again && self.tried.len() < self.limit() { Decision::Again } else { Decision::Stop(fault.status) }
    }

    /// Goes on after a kept connection that turned out to be closed.
    fn closed(&mut self, req: &mut Request, status: u16, again: bool) -> Decision {
        if self.kept == Kept::Implied {
            self.redirected = req.modules.upstream.attempts.pop().is_some_and(|a| a.redirected);
            self.kept = Kept::No;
            return Decision::Again;
        }
        if !again {
            return Decision::Stop(status);
        }
        // Another server is asked first. This one may have been restarted, which closes all its kept connections.
        if let Servers::Group(p, _) = &mut self.servers {
            p.give_up(self.current.0);
        }
        self.dropped += 1;
        self.closed += 1;
        if self.closed == MOST_CLOSED {
            self.kept = Kept::No;
        }
        Decision::Again
    }

    /// Counts a failure against the server (nginx: max_fails).
    fn mark_failed(&mut self, req: &mut Request, fault: &Fault, reason: Option<Box<str>>) {
        let Servers::Group(p, _) = &mut self.servers else { return };
        let (peer, since) = self.current;
        p.give_up(peer);
        // As in nginx, a status 403 or 404 never counts as a failure of the server, although another server may be asked.
        let refused =
            matches!(fault.kind, NextUpstream::Http403 | NextUpstream::Http404 | NextUpstream::HttpOther);
        if fault.blame != Blame::Server || refused {
            return;
        }
        let now = req.thread.io.poller.now();
        match reason {
            Some(reason) => p.local.note_failure(peer, &reason, now),
            // Its response has a status with which another server is asked.
            None => p.local.note_failure(peer, &format!("upstream answered with {}", fault.status), now),
        }
        if p.local.fail(peer, since) {
            req.log(Level::Warn, &format!("upstream server temporarily disabled {}", fault.doing));
        }
    }

    /// Returns the largest number of servers that may be tried.
    fn limit(&self) -> usize {
        match self.rules.tries_again() {
            // Without `proxy_next_upstream_again` each server is asked once at most, as in nginx.
            true => self.rules.tries,
            false => self.servers.number().min(self.rules.tries),
        }
    }

    /// Logs that no server can be asked.
    fn no_live(&self, req: &mut Request) -> u16 {
        if let Servers::Group(p, _) = &self.servers {
            // As nginx does, `$upstream_addr` shows the name of the group where no server could be chosen.
            let attempt = Attempt::new(p.local.group.name.clone(), req.thread.io.poller.now());
            let (response, redirected) = (Some(Duration::ZERO), self.redirected);
            req.modules.upstream.attempts.push(Attempt { status: 502, response, redirected, ..attempt });
            name_in_log(req, None);
        }
        req.log(Level::Error, "no live upstreams while connecting to upstream");
        502
    }
}

/// Notes the failure of the last attempt, and counts it unless a kept connection was closed. Returns whether the
/// connection was a kept one, and the number of bytes that it received.
fn note_failure(req: &mut Request, contact: Option<&Contact>, fault: &Fault) -> (bool, u64) {
    CALL.of_mut(req).fault = Some(fault.kind).filter(|_| fault.blame != Blame::Ours);
    let reused = contact.and_then(Contact::conn).is_some_and(|c| c.reused);
    let mut received = 0;
    if let Some(a) = req.modules.upstream.attempts.last_mut() {
        a.status = fault.status;
        a.response = Some(req.thread.io.poller.since(a.started));
        received = a.received;
    }
    if let Some(contact) = contact.filter(|_| !reused || received > 0) {
        contact.count(req);
    }
    (reused, received)
}

/// Sets the name of the server for the error log to the server of the last attempt.
fn name_in_log(req: &mut Request, addr: Option<&PeerAddr>) {
    let scheme = CALL.of(req).scheme();
    let u = &mut req.modules.upstream;
    let Some(a) = u.attempts.last() else { return };
    u.log_name.clear();
    u.log_name.extend_from_slice(scheme);
    u.log_name.extend_from_slice(&a.name);
    // As in a URL of `proxy_pass`, a colon separates the path of a socket from the path of the request.
    if matches!(addr, Some(PeerAddr::Unix(_))) {
        u.log_name.push(b':');
    }
}

#[cfg(test)]
mod tests;
