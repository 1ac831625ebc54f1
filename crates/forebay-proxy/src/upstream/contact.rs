//! A server that is asked for a request: its lease, and the part of the request that is still to be sent. Hot path.

use super::sticky::Sticky;
use super::upload::Upload;
use forebay_conf::error::Level;
use forebay_core::upstream::balance::Timed;
use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::lease::Lease;
use forebay_core::vars::VarError;
use forebay_net::io::Io;
use forebay_server::request::Request;
use std::rc::Rc;
use std::sync::Arc;

/// A server that is asked.
#[derive(Debug)]
pub struct Contact {
    /// The connection and the place at the server.
    pub(super) lease: Lease,
    /// Rest of the request, which is sent as its body comes.
    pub(super) upload: Option<Box<Upload>>,
    /// `true` if the rest of the request will not be sent. No other request may follow on the connection then.
    unfinished: bool,
    sticky: Option<Arc<Sticky>>,
}

/// Takes the time of the current attempt, whose response is over.
pub(super) fn attempt_over(req: &mut Request) {
    if let Some(a) = req.modules.upstream.current() {
        a.response = Some(req.thread.io.poller.since(a.started));
    }
}

impl Contact {
    pub(super) fn new(lease: Lease, sticky: Option<Arc<Sticky>>) -> Contact {
        Contact { lease, upload: None, unfinished: false, sticky }
    }

    /// Returns the connection.
    pub fn conn(&self) -> Option<&Conn> {
        self.lease.conn.as_ref()
    }

    /// Takes an idle connection to the server whose [`Conn::made_for`] is the same. Returns `false` if there is none.
    pub(super) fn take_idle(&mut self, io: &Rc<Io>, made_for: u64) -> bool {
        self.lease.conn = self.lease.take_idle(io, made_for);
        self.lease.conn.is_some()
    }

    /// Sets the connection.
    pub fn connected(&mut self, conn: Conn) {
        self.lease.conn = Some(conn);
    }

    /// Takes the connection out.
    pub fn disconnect(&mut self) -> Option<Conn> {
        self.lease.conn.take()
    }

    /// Returns `true` if the end of the response counts for the choice of a server (nginx: sticky).
    pub(super) fn is_sticky(&self) -> bool {
        self.sticky.is_some()
    }

    /// Drops the rest of the request.
    pub(super) fn leave_off(&mut self) {
        self.upload = None;
        self.unfinished = true;
    }

    /// Returns `true` if all of the request has been sent.
    pub fn is_sent(&self) -> bool {
        self.upload.is_none() && !self.unfinished
    }

    /// Leaves the connection to other requests, unless the server still waits for the rest of this one.
    pub(super) fn keep(&mut self) {
        if self.is_sent() {
            self.lease.keep();
        }
    }

    /// Notes that the head of a response has come that is passed on.
    pub(super) fn answered(&self, req: &mut Request) {
        self.lease.succeeded();
        // `least_time header` measures up to this moment (nginx Plus).
        self.lease.reached(Timed::Header);
        self.stick(req, Sticky::answered);
    }

    /// Ends the response: takes its time, and counts it.
    pub fn over(&self, req: &mut Request) {
        attempt_over(req);
        self.ended(req);
    }

    /// Counts the response, which is over.
    pub(super) fn ended(&self, req: &mut Request) {
        self.count(req);
        self.stick(req, Sticky::ended);
    }

    fn stick(
        &self,
        req: &mut Request,
        event: fn(&Sticky, &mut Request, &Lease, &[u8]) -> Result<(), VarError>,
    ) {
        if let (Some(sticky), Some(peer)) = (&self.sticky, self.lease.peer())
            && let Err(e) = event(sticky, req, &self.lease, &peer.sid)
        {
            req.log(Level::Error, &e.0);
        }
    }

    /// Counts the attempt.
    pub(super) fn count(&self, req: &Request) {
        if let Some(attempt) = req.modules.upstream.attempts.last() {
            self.lease.count(&attempt.figures(), req.thread.io.poller.now());
        }
    }
}
