//! Heads of responses as they were sent last, for the next response with the same content. Hot path.

use super::coding::{Form, Ranked};
use forebay_http::request::Version;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Part of the configuration that a head depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeFor {
    /// Number of the server.
    pub server: usize,
    /// Number of the location.
    pub location: usize,
    /// Serial number of the configuration.
    pub serial: u64,
    /// Port with an `Alt-Svc` of its own, or 0.
    pub port: u16,
}

/// Head of a plain response as it was sent last. All but the date is the same from one request to the next.
#[derive(Debug)]
pub struct SentHead {
    /// Part of the configuration that it depends on.
    pub made_for: MadeFor,
    /// Codings of the location that the client accepts, best first.
    pub ranked: Ranked,
    /// Version of HTTP.
    pub version: Version,
    /// Bytes with the date as it was then.
    pub bytes: Box<[u8]>,
    /// Offset of the date in these bytes.
    pub date: usize,
    /// The body, if it is compressed.
    pub form: Option<Arc<Form>>,
}

/// Heads of a file or a cached response.
#[derive(Debug, Default)]
pub struct SentHeads(RefCell<Vec<Rc<SentHead>>>);

/// Number of heads kept of a file or a cached response.
const SENT_HEADS: usize = 8;

impl SentHeads {
    /// Returns the head that was kept for the same configuration, codings and version.
    pub fn find(&self, made_for: MadeFor, ranked: Ranked, version: Version) -> Option<Rc<SentHead>> {
        let heads = self.0.borrow();
        heads.iter().find(|h| h.made_for == made_for && h.ranked == ranked && h.version == version).cloned()
    }

    /// Keeps a head in place of others that are alike or old.
    pub fn put(&self, head: SentHead) {
        let mut heads = self.0.borrow_mut();
        // Heads of an earlier configuration can never be used again.
        heads.retain(|h| {
            h.made_for.serial == head.made_for.serial
                && (h.made_for, h.ranked, h.version) != (head.made_for, head.ranked, head.version)
        });
        // The oldest head gives way, since the list is searched for each request and has to stay short.
        if heads.len() >= SENT_HEADS {
            heads.remove(0);
        }
        heads.push(Rc::new(head));
    }
}
