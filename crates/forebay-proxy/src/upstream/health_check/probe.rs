//! One check of a server: an HTTP request, whose response is judged.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::require::{Ask, Checked, holds};
use super::{Check, Checks};
use crate::modules::proxy_bind;
use forebay_core::control::{Failure, Line, Read};
use forebay_core::upstream::health::{Probe, Visit};
use forebay_core::upstream::peer::Peer;
use forebay_http::h1::client::ResponseHead;
use forebay_net::blame::Blamed;
use forebay_net::dial::LocalAddress;
use forebay_server::config::http::Http;
use forebay_server::config::upstreams::Upstream;
use forebay_sys::errno::errno;
use std::sync::Arc;
use std::time::Instant;
use tokio::time::timeout;

/// Longest head of a response, bytes.
const MAX_HEAD: usize = 64 * 1024;
/// Number of bytes of a body that are read and compared.
const MAX_BODY: usize = 256 * 1024;

/// Checks one server by HTTP requests.
pub(super) struct HttpProbe {
    pub(super) subject: CheckedServer,
    /// Connection of the last check, if it may be used again.
    pub(super) line: Option<Line>,
}

/// A server, and the way in which it is checked.
pub(super) struct CheckedServer {
    pub(super) peer: Peer,
    pub(super) upstream: Arc<Upstream>,
    /// Number of the check in its group.
    pub(super) number: usize,
    pub(super) config: Arc<Http>,
    pub(super) ask: Ask,
}

impl Probe for HttpProbe {
    async fn check(&mut self) -> Result<(), Blamed<String>> {
        let subject = &self.subject;
        let checks = subject.upstream.extras.get::<Checks>();
        let Some(check) = checks.and_then(|checks| checks.0.get(subject.number)) else { return Ok(()) };
        let mut line = subject.connect(check, self.line.take()).await?;
        let asked = timeout(check.read_timeout, subject.ask(&mut line, check)).await;
        let timed_out = |_| Blamed::Peer("reading response from upstream (timed out)".to_owned());
        let read = asked.map_err(timed_out)??;
        if read == Read::All && check.keeps_alive() {
            self.line = Some(line);
        }
        Ok(())
    }
}

/// Returns the text about a failed exchange.
fn text_of(failure: Failure) -> Blamed<String> {
    failure.blamed().map(|failure| match failure {
        Failure::Send(e) => format!("sending request to upstream ({})", errno(&e)),
        Failure::Receive(e) => format!("reading response from upstream ({})", errno(&e)),
        Failure::NoHead => "reading response header from upstream (closed connection)".to_owned(),
        Failure::InvalidHead => "reading response header from upstream (invalid header)".to_owned(),
        Failure::InvalidChunk | Failure::Incomplete => {
            "reading response from upstream (incomplete)".to_owned()
        }
    })
}

impl CheckedServer {
    /// Returns the connection of the last check if it may still be used, or a new one.
    async fn connect(&self, check: &Check, last: Option<Line>) -> Result<Line, Blamed<String>> {
        match last.filter(|l| l.opened.elapsed() < check.keepalive_time) {
            Some(line) => Ok(line),
            None => self.open(check).await,
        }
    }

    /// Returns the address that connections come from (nginx: proxy_bind).
    fn local(&self, check: &Check) -> Option<LocalAddress> {
        let location = self.config.level(check.location.0, check.location.1)?;
        proxy_bind::SETTINGS.of(&location.settings).fixed_local()
    }

    /// Opens a connection, encrypted if the location encrypts its connections.
    async fn open(&self, check: &Check) -> Result<Line, Blamed<String>> {
        let location = self.config.level(check.location.0, check.location.1).filter(|_| check.encrypted);
        let visit = Visit {
            addr: &check.common.address(&self.peer),
            local: self.local(check),
            announce: check.announce,
            tls: location.and_then(|l| l.upstream_tls.as_ref()),
            host: &check.upstream,
            // The check is a request of HTTP/1, whatever protocol requests use, so nothing is offered by ALPN.
            protocols: &[],
            timeout: check.connect_timeout,
        };
        visit.open().await
    }

    /// Sends the request and judges the response. Returns how far the response was read, and [`Read::Last`] if the server
    /// closes the connection.
    async fn ask(&self, line: &mut Line, check: &Check) -> Result<Read, Blamed<String>> {
        let started = Instant::now();
        line.request(&check.request()).await.map_err(text_of)?;
        let head = line.final_head(MAX_HEAD).await.map_err(text_of)?;
        let body = line.body(&head, MAX_BODY).await.map_err(text_of)?;
        if let Some(fault) = check.fault(&head, &body.bytes) {
            return Err(Blamed::Peer(format!("checking {fault} of response (status {})", head.status)));
        }
        // A server that closes the connection after this response gets a new connection for the next check.
        let read = if head.keep_alive { body.read } else { Read::Last };
        self.check_required(check, head, body.bytes.len(), started).await?;
        Ok(read)
    }

    /// Checks the variables of `require`.
    async fn check_required(
        &self,
        check: &Check,
        head: ResponseHead,
        length: usize,
        started: Instant,
    ) -> Result<(), Blamed<String>> {
        if check.conditions.as_ref().is_none_or(|m| m.required.is_empty()) {
            return Ok(());
        }
        let (status, peer) = (head.status, self.peer.name.clone());
        let checked = Checked { check: check.clone(), peer, head, length: length as u64, started };
        match holds(&self.ask, &self.config, checked).await {
            true => Ok(()),
            false => Err(Blamed::Peer(format!("checking what is required of response (status {status})"))),
        }
    }
}
