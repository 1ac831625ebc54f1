//! Bytes of a connection before its first request: the PROXY protocol header and TLS, which all front ends have, and the preface of
//! HTTP/2.

use super::{Connection, close};
use crate::error_log;
use crate::h2::{self, Session};
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::greeting::{self, Greeting};
use forebay_http::h2::frame::{self, Code, PREFACE};
use forebay_http::proxy_protocol::Broken;
use forebay_net::wire::Then;
use std::rc::Rc;

/// Protocol that the first bytes of a connection indicate.
pub(super) enum Preface {
    Http1,
    /// Too few bytes to tell.
    Partial,
    /// HTTP/2; the session is in the connection.
    Http2,
    /// The client has agreed on HTTP/2 and does not speak it.
    Broken,
}

impl Connection {
    /// Reads the PROXY protocol header and begins TLS, as far as the listener asks for these. Bytes in `buf` after the header
    /// belong to the handshake.
    ///
    /// # Errors
    /// The bytes in `buf` are no such header.
    pub(super) fn take_greeting(&mut self, conf: &ThreadConfig, buf: &mut Vec<u8>) -> Result<(), Broken> {
        let greeting = greeting::take(&mut self.client, &mut self.wire, conf, buf)?;
        self.greeted = greeting == Greeting::Complete;
        Ok(())
    }

    /// Logs a client that does not begin with the PROXY protocol header that is asked for.
    pub(super) fn log_broken_greeting(
        &self,
        thread: &Thread,
        conf: &ThreadConfig,
        buf: &[u8],
        broken: Broken,
    ) {
        let what = greeting::failure(broken, buf);
        let tail = self.client.tail(conf);
        error_log::log_connection(thread, &self.client, Level::Error, &what, &tail);
    }

    /// Returns `true` if `buf` may be the beginning of an HTTP/2 connection.
    #[inline]
    pub(super) fn may_be_preface(&self, buf: &[u8]) -> bool {
        // The preface begins with `PRI`. A client that has agreed on HTTP/2 by ALPN has to send it, so other bytes of such a client are
        // checked as well.
        match buf.first() {
            Some(b'P') => true,
            Some(_) => self.client.alpn() == Some(Some(b"h2")),
            None => false,
        }
    }

    /// Looks for the preface of HTTP/2 in `buf` (RFC 9113, section 3.4), where the address speaks it.
    pub(super) fn preface(&mut self, thread: &Thread, conf: &ThreadConfig, buf: &[u8]) -> Preface {
        let n = buf.len().min(PREFACE.len());
        // Over TLS, ALPN has decided which protocol the client speaks.
        let agreed = self.client.alpn().map(|alpn| alpn == Some(b"h2"));
        if buf.get(..n) != PREFACE.get(..n) {
            return if agreed == Some(true) { Preface::Broken } else { Preface::Http1 };
        }
        // Plain bytes on a port of TLS are answered as HTTP/1, with an error page.
        if agreed == Some(false) || self.client.unencrypted {
            return Preface::Http1;
        }
        let Some(settings) = self.http2_settings(conf) else { return Preface::Http1 };
        if n < PREFACE.len() {
            return Preface::Partial;
        }
        let network = self.client.network();
        // A client whose network has misbehaved lately gets stricter limits.
        let strict = h2::drive::is_suspect(network, thread.clock.now());
        let session = Session::new(
            Some(thread.io.clone()),
            settings,
            self.client.clone(),
            thread.transfers.clone(),
            strict,
        );
        session.feed(buf.get(n..).unwrap_or_default());
        self.session = Some(session);
        Preface::Http2
    }

    /// Answers a client that has agreed on HTTP/2 by ALPN and does not speak it (RFC 9113, section 3.4).
    pub(super) async fn refuse_preface(&mut self, thread: &Rc<Thread>, conf: &ThreadConfig) {
        error_log::log_connection(thread, &self.client, Level::Info, "invalid connection preface", "");
        let mut goaway = Vec::new();
        frame::push_goaway(&mut goaway, 0, Code::ProtocolError);
        // The GOAWAY and the end of the connection leave together.
        if self.write_all(thread, conf, &goaway, Then::Close).await.is_ok()
            && let Some(location) = self.location(conf)
        {
            close::close(thread, self, &location.settings.core, true).await;
        }
    }
}
