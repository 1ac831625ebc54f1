//! Facts about the upstream servers of a request, for its log lines, its variables and the counters. Hot path.

use super::rare::Rare;
use crate::response::FieldList;
use forebay_core::upstream::peer::Figures;
use forebay_http::h1::client::ResponseHead;
use std::time::{Duration, Instant};

/// An attempt at one server.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// `$upstream_addr`.
    pub name: Vec<u8>,
    /// `$upstream_status`; 0 = none.
    pub status: u16,
    /// Time at which it began.
    pub started: Instant,
    /// `$upstream_connect_time`.
    pub connect: Option<Duration>,
    /// `$upstream_header_time`.
    pub header: Option<Duration>,
    /// `$upstream_response_time`.
    pub response: Option<Duration>,
    /// `$upstream_bytes_sent`.
    pub sent: u64,
    /// `$upstream_bytes_received`.
    pub received: u64,
    /// `$upstream_response_length`.
    pub length: u64,
    /// `true` for the first attempt in another location, reached by an internal redirect.
    pub redirected: bool,
}

impl Attempt {
    /// Creates an attempt that has just begun.
    pub fn new(name: Vec<u8>, started: Instant) -> Attempt {
        Attempt {
            name,
            status: 0,
            started,
            connect: None,
            header: None,
            response: None,
            sent: 0,
            received: 0,
            length: 0,
            redirected: false,
        }
    }

    /// Returns the figures that are counted for its server.
    pub fn figures(&self) -> Figures {
        let Attempt { status, sent, received, header, response, .. } = *self;
        Figures { status, sent, received, connect: None, header, response }
    }
}

/// Upstream servers that a request was sent to, and the last response from them.
#[derive(Debug, Default)]
pub struct Upstreamed {
    /// Servers asked, in order.
    pub attempts: Vec<Attempt>,
    /// Number of servers that variables show. Servers after them were asked for further slices of the response.
    pub own_attempts: Option<usize>,
    /// Empty buffer for the name of the next server.
    pub spare_name: Vec<u8>,
    /// The last head received.
    pub head: ResponseHead,
    /// Content that has been taken out of its frames before the body was read (HTTP/2, FastCGI).
    pub early: Vec<u8>,
    /// Trailers of the last response.
    pub trailers: Rare<FieldList>,
    /// `$proxy_host`.
    pub host: Vec<u8>,
    /// `$proxy_port`.
    pub port: Vec<u8>,
    /// Name of the upstream in the error log; empty when none is involved.
    pub log_name: Vec<u8>,
    /// Path and query after that name.
    pub log_path: Vec<u8>,
}

impl Upstreamed {
    /// Forgets everything, but keeps buffers.
    pub fn clear(&mut self) {
        // The list of attempts alone does not show that there is nothing to clear: a cached response has a head without an attempt, and
        // not all protocols have a host.
        let unused = self.attempts.is_empty() && self.host.is_empty() && self.own_attempts.is_none();
        if !unused || !self.head.buf.is_empty() {
            self.reset();
        }
    }

    /// Does the same as [`Upstreamed::clear`] without looking at its use, because the memory goes to another client.
    pub fn reset(&mut self) {
        // Every field is named, so that a new field cannot be left out.
        let Upstreamed {
            attempts,
            own_attempts,
            spare_name,
            head,
            early,
            trailers,
            host,
            port,
            log_name,
            log_path,
        } = self;
        // The name of a server is needed again soon, so its buffer is kept for the next request.
        if let Some(first) = attempts.first_mut() {
            *spare_name = std::mem::take(&mut first.name);
        }
        attempts.clear();
        *own_attempts = None;
        head.advance(usize::MAX);
        trailers.clear();
        for text in [spare_name, early, host, port, log_name, log_path] {
            text.clear();
        }
    }

    /// Returns the attempt at the server that is being asked.
    pub fn current(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
    }
}
