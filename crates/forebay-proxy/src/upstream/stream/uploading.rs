//! Sends the rest of a request's body while the response is read. Hot path.

use super::Body;
use crate::upstream::contact::Contact;
use crate::upstream::upload::{Stopped, Turn};
use forebay_core::upstream::lease::Lease;
use forebay_net::wire::Watch;
use forebay_server::body::{Broken, Done};
use forebay_server::request::Request;
use std::time::Instant;

impl Body {
    /// Returns `true` while the request's body is being sent.
    pub fn uploads(&self) -> bool {
        self.contact.as_ref().is_some_and(|c| c.upload.is_some())
    }

    /// Sends the request's body until there may be more of the response; returns as [`Body::wait`] does. Returns `None` once
    /// all of the request has been sent.
    pub(super) async fn wait_beside(&mut self, req: &mut Request, watch: &mut Watch) -> Option<Done> {
        let thread = req.thread.clone();
        // The client has a response, so it must not be asked to continue.
        req.body.continued = true;
        while let Some(Contact { lease: Lease { conn: Some(conn), .. }, upload: Some(upload), .. }) =
            &mut self.contact
        {
            let deadline = Instant::now() + self.read_timeout;
            // A failed upload sets the status of the request, but the client has got the head of the response already.
            let status = req.resp.status;
            let Some(turn) = thread.io.poller.deadline(deadline, upload.pass(req, conn, watch)).await else {
                return Some(Err(self.timed_out(req, "reading upstream")));
            };
            req.resp.status = status;
            if let Some(over) = self.passed(req, turn) {
                return Some(over);
            }
            // The next look at the response ends it (Angie: proxy_connection_drop).
            if self.contact.as_ref().is_some_and(|c| c.lease.is_revoked()) {
                return Some(Ok(()));
            }
        }
        None
    }

    /// Handles the result of a turn of the upload. Returns `Ok` if the response is to be read, and an error if it breaks off.
    fn passed(&mut self, req: &mut Request, turn: Result<Turn, Stopped>) -> Option<Done> {
        match turn {
            Ok(Turn::More) => None,
            Ok(Turn::Answer) => Some(Ok(())),
            Ok(Turn::All) => {
                if let Some(c) = &mut self.contact {
                    c.upload = None;
                }
                None
            }
            // The server reads no more of the request, but it may have answered before, so its response is still read.
            Ok(Turn::Unwanted) | Err(Stopped::Send(_)) => {
                if let Some(c) = &mut self.contact {
                    c.leave_off();
                }
                None
            }
            Err(Stopped::Timeout) => Some(Err(self.timed_out(req, "sending request to upstream"))),
            Err(Stopped::ClientGone) => Some(Err(self.client_gone(req))),
            Err(Stopped::Body(_)) => {
                self.break_off(req);
                Some(Err(Broken::Content))
            }
        }
    }

    /// Sends what has come of the request's body, without waiting.
    pub(super) async fn pass_upload(&mut self, req: &mut Request) {
        req.body.continued = true;
        while let Some(Contact { lease: Lease { conn: Some(conn), .. }, upload: Some(upload), .. }) =
            &mut self.contact
        {
            let status = req.resp.status;
            let Some(turn) = upload.pass_at_once(req, conn).await else { return };
            // `upload` sets the status on a failure, but the response is under way already.
            req.resp.status = status;
            if self.passed(req, turn).is_some() {
                return;
            }
        }
    }
}
