//! Memory that the HTTP/2 and HTTP/3 connections of a thread share. Hot path.

use super::Stream;
use crate::connection::mux::SpareStreams;
use forebay_http::h3::repeats::Repeats;
use forebay_http::request::RequestHead;
use std::cell::RefCell;
use std::rc::Rc;

/// Number of heads kept for the next requests of a thread.
const SPARE: usize = 64;
/// Number of heads that a thread keeps if they are small. All requests of a turn over HTTP/3 begin before the first of them ends.
const SPARE_HEADS: usize = 512;
/// Memory of a small head, bytes.
const SMALL_HEAD: usize = 1024;

/// Memory that the HTTP/2 and HTTP/3 connections of a thread share, so that idle connections hold none.
#[derive(Debug, Default)]
pub struct Shared {
    #[allow(clippy::vec_box)]
    pub(super) heads: RefCell<Vec<Box<RequestHead>>>,
    pub(super) streams: RefCell<Vec<Rc<Stream>>>,
    pub(super) ended: RefCell<SpareStreams<Stream>>,
    pub(super) scratch: RefCell<Vec<u8>>,
    /// Buffers for receiving and for sending.
    pub(super) buffers: RefCell<Vec<Vec<u8>>>,
    /// Heads of field sections of HTTP/3.
    pub repeats: RefCell<Repeats>,
}

impl Shared {
    /// Returns an empty head.
    pub fn take_head(&self) -> Box<RequestHead> {
        let mut head = self.take_used_head();
        head.clear();
        head
    }

    /// Returns the head of a finished request as it is, or an empty one.
    pub fn take_used_head(&self) -> Box<RequestHead> {
        self.heads.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the head of a finished request for reuse.
    pub fn give(&self, head: Box<RequestHead>) {
        let mut heads = self.heads.borrow_mut();
        let most = if head.buf.capacity() <= SMALL_HEAD { SPARE_HEADS } else { SPARE };
        // A head that has grown far beyond the usual size must not hold its memory.
        if heads.len() < most && head.buf.capacity() <= 16 * 1024 {
            heads.push(head);
        }
    }
}
