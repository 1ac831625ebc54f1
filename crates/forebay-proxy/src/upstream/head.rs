//! Reads the head of a response, and sends the rest of the request meanwhile. Hot path.

use super::CALL;
use super::codec::Came;
use super::contact::Contact;
use super::exchange::upload;
use super::fault::{Fault, READING, bad_head, client_gone, closed, receive_failed, timed_out};
use crate::modules::proxy::{NextUpstream, Settings};
use forebay_net::reactor::Deadline;
use forebay_net::wait::{For, Waited};
use forebay_net::wire::Watch;
use forebay_server::request::Request;
use forebay_server::request::waiting::LONG;
use rustix::io::Errno;

/// Largest number of interim responses (RFC 9110, section 15.2) before the final one.
const MAX_INTERIM: u32 = 100;

/// Reader of one head.
pub(crate) struct HeadReader<'r> {
    pub(super) settings: &'r Settings,
    pub(super) watch: &'r mut Watch,
    /// Time at which the head must be complete. It is set again when the request has been sent.
    deadline: Deadline,
    /// Number of interim responses that have come.
    interim: u32,
}

/// Returns the fault of a server to which there is no connection.
pub(super) fn unconnected() -> Fault {
    Fault::new(NextUpstream::Error, 502)
}

impl<'r> HeadReader<'r> {
    pub(super) fn new(req: &Request, settings: &'r Settings, watch: &'r mut Watch) -> HeadReader<'r> {
        let deadline = req.thread.io.poller.after(settings.read_timeout.0);
        HeadReader { settings, watch, deadline, interim: 0 }
    }

    /// Returns the longest length of a head, bytes.
    pub(super) fn limit(&self) -> usize {
        self.settings.buffer_size.0 as usize
    }

    /// Reads until the head is complete; `headless`: an answer without a head is accepted. On a kept connection it never
    /// is, since unexpected bytes may be the rest of the previous response.
    pub(super) async fn read(
        &mut self,
        req: &mut Request,
        contact: &mut Contact,
        headless: bool,
    ) -> Result<(), Fault> {
        let headless = headless && contact.conn().is_some_and(|conn| !conn.reused);
        while !self.parse(req, headless).await? {
            self.more(req, contact).await?;
        }
        Ok(())
    }

    /// Parses the bytes that have come; `headless`: they may be no head. Returns `true` if the head is complete.
    async fn parse(&mut self, req: &mut Request, headless: bool) -> Result<bool, Fault> {
        while !req.modules.upstream.head.buf.is_empty() {
            let codec = CALL.of(req).codec;
            match codec.parse_head(req, self.limit(), headless)? {
                Came::All => return Ok(true),
                Came::Interim => Box::pin(self.pass_interim(req)).await?,
                Came::Part => break,
            }
        }
        Ok(false)
    }

    /// Passes an interim response on if the client wants it, and removes it.
    async fn pass_interim(&mut self, req: &mut Request) -> Result<(), Fault> {
        if self.interim >= MAX_INTERIM {
            return Err(bad_head(req, b"upstream sent too many interim responses"));
        }
        self.interim += 1;
        crate::modules::early_hints::pass(req).await;
        let head = &mut req.modules.upstream.head;
        let len = head.len;
        head.advance(len);
        Ok(())
    }

    /// Reads bytes that have come, or waits for some.
    async fn more(&mut self, req: &mut Request, contact: &mut Contact) -> Result<(), Fault> {
        let conn = contact.conn().ok_or_else(unconnected)?;
        let codec = CALL.of(req).codec;
        match codec.read_head(req, conn, self.limit())? {
            Ok(0) => Err(closed(req, READING)),
            Ok(n) => {
                if let Some(a) = req.modules.upstream.current() {
                    a.received += n as u64;
                }
                Ok(())
            }
            Err(Errno::AGAIN) => self.wait(req, contact).await,
            Err(e) => Err(receive_failed(req, e, READING)),
        }
    }

    /// Sends the rest of the request, or waits until more of the head has come.
    pub(super) async fn wait(&mut self, req: &mut Request, contact: &mut Contact) -> Result<(), Fault> {
        if contact.upload.is_some() {
            // Boxed, since few requests send and receive at once: the others keep no room for it.
            Box::pin(upload(req, contact, self.watch)).await?;
            // As in nginx, the time for the response begins once the request has been sent.
            self.deadline = req.thread.io.poller.after(self.settings.read_timeout.0);
            return Ok(());
        }
        req.lend_head();
        let conn = contact.conn().ok_or_else(unconnected)?;
        // Most answers come soon. A request that waits for longer first gives back the memory that it can do without.
        let soon = self.deadline.min(req.thread.io.poller.after(LONG));
        let mut waited = conn.wait(For::Read, soon, self.watch).await;
        if waited == Waited::Timeout && soon < self.deadline {
            req.shrink();
            waited = conn.wait(For::Read, self.deadline, self.watch).await;
        }
        match waited {
            Waited::Ready => Ok(()),
            Waited::Timeout => Err(timed_out(req, READING)),
            Waited::ClientGone => Err(client_gone(req, "sending request to upstream")),
        }
    }
}
