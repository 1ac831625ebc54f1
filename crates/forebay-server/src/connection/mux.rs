//! Requests on streams of HTTP/2 and HTTP/3 connections.
//!
//! Both kinds of streams have the state of their request in a `RequestState`. Streams that have ended lend later ones their memory
//! (`SpareStreams`).

use crate::connection::websocket;
use crate::modules::http2;
use crate::phases;
use crate::request::Request;
use crate::response::respond::{finish, respond};
use crate::thread::Thread;
use crate::tls;
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_http::h2::request::Refusal;
use forebay_http::priority::Priority;
use forebay_http::request::{RequestHead, Version};
use forebay_net::mux::Mux;
use forebay_net::wire::Wire;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Reason for ending a stream without a whole response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The server has failed.
    Internal,
    /// The response cannot be completed.
    Cancelled,
}

/// State of a request on a stream that does not depend on the version of HTTP.
#[derive(Debug)]
pub struct RequestState {
    /// Number of the request on its connection.
    pub number: Cell<u32>,
    /// The request, until its runner takes it.
    head: RefCell<Option<Box<RequestHead>>>,
    /// Reason for refusing the request.
    refusal: Cell<Option<Refusal>>,
    /// Bytes of the field section as received.
    head_len: Cell<u32>,
    /// Bytes of the announced `Content-Length` that have not arrived.
    promised: Cell<Option<u64>>,
    /// The length of the content differs from `Content-Length`, or trailers are malformed (RFC 9113, section 8.1.1; RFC 9114, section
    /// 4.1.2).
    malformed: Cell<bool>,
    /// The stream or the connection is gone.
    broken: Cell<bool>,
    /// The response is over.
    finished: Cell<bool>,
    /// Its priority (RFC 9218).
    pub priority: Cell<Priority>,
    /// Number of current waits for the client.
    waits: Cell<u32>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

/// Effect of a wait that begins or ends, on a stream that may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitChange {
    /// The stream still waits for its client, or still does not.
    None,
    /// The stream has just begun to wait, or does not wait any more.
    Changed,
}

impl RequestState {
    /// Makes the state of a stream without a request.
    #[inline]
    pub(crate) fn new() -> RequestState {
        RequestState {
            number: Cell::new(0),
            head: RefCell::new(None),
            refusal: Cell::new(None),
            head_len: Cell::new(0),
            promised: Cell::new(None),
            malformed: Cell::new(false),
            broken: Cell::new(false),
            finished: Cell::new(false),
            priority: Cell::new(Priority::DEFAULT),
            waits: Cell::new(0),
            reader: RefCell::default(),
            writer: RefCell::default(),
        }
    }

    /// Releases the memory that it holds.
    pub fn retire(&mut self) {
        self.reader = RefCell::default();
        self.writer = RefCell::default();
    }

    /// Takes the request, and `None` from the second call on.
    pub(super) fn take_head(&self) -> Option<Box<RequestHead>> {
        self.head.take()
    }

    /// Keeps a request for its runner. `len`: bytes of its field section as received.
    pub fn begin(&self, head: Box<RequestHead>, len: usize, refusal: Option<Refusal>) {
        self.head_len.set(u32::try_from(len).unwrap_or(u32::MAX));
        self.refusal.set(refusal);
        *self.head.borrow_mut() = Some(head);
    }

    /// Returns `true` if the content or the trailers are malformed.
    pub fn is_malformed(&self) -> bool {
        self.malformed.get()
    }

    /// Returns `true` if anything of the request is malformed, so that its stream is reset.
    pub fn ends_malformed(&self) -> bool {
        self.malformed.get() || self.refusal.get().is_some_and(|refusal| refusal.malformed)
    }

    /// Notes that the request is malformed.
    pub fn set_malformed(&self) {
        self.malformed.set(true);
    }

    /// Sets the length that `Content-Length` announces, bytes.
    pub fn promise(&self, len: u64) {
        self.promised.set(Some(len));
    }

    /// Returns the bytes of `Content-Length` that have not arrived.
    pub fn promised(&self) -> Option<u64> {
        self.promised.get()
    }

    /// Counts content against `Content-Length`. `ends` means that no more follows.
    ///
    /// # Errors
    /// `PROTO` if the lengths differ, which makes the request malformed.
    #[inline]
    pub fn receive(&self, len: usize, ends: bool) -> Result<(), Errno> {
        let Some(promised) = self.promised.get() else { return Ok(()) };
        match promised.checked_sub(len as u64).filter(|left| !ends || *left == 0) {
            Some(left) => {
                self.promised.set(Some(left));
                Ok(())
            }
            None => {
                self.malformed.set(true);
                Err(Errno::PROTO)
            }
        }
    }

    /// Returns `true` if the stream or the connection is gone.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Notes that the stream or the connection is gone. Returns `true` if it was before.
    pub fn set_broken(&self) -> bool {
        self.broken.replace(true)
    }

    /// Returns `true` if the response is over.
    pub fn has_finished(&self) -> bool {
        self.finished.get()
    }

    /// Notes that the response is over. Returns `true` if it was before.
    pub fn set_finished(&self) -> bool {
        self.finished.replace(true)
    }

    /// Wakes the task that reads the request.
    #[inline]
    pub fn wake_reader(&self) {
        if let Some(w) = self.reader.borrow_mut().take() {
            w.wake();
        }
    }

    /// Wakes the task that writes the response.
    #[inline]
    pub fn wake_writer(&self) {
        if let Some(w) = self.writer.borrow_mut().take() {
            w.wake();
        }
    }

    /// Is ready if `is_readable` or the stream is gone. Else the task is woken as the reader.
    #[inline]
    pub fn poll_reader(&self, is_readable: bool, cx: &mut Context<'_>) -> Poll<()> {
        // The reader of a stream that is gone has to run once more, to find that out.
        if self.is_broken() || is_readable {
            return Poll::Ready(());
        }
        *self.reader.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Is ready if `is_writable` or the stream is gone. Else the task is woken as the writer.
    #[inline]
    pub fn poll_writer(&self, is_writable: bool, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_broken() || is_writable {
            return Poll::Ready(());
        }
        *self.writer.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Notes that a wait for the client begins or ends.
    pub fn wait(&self, begins: bool) -> WaitChange {
        let n = if begins { self.waits.get() + 1 } else { self.waits.get().saturating_sub(1) };
        // For the connection it matters only whether the stream waits, not how often.
        match (self.waits.replace(n) == 0) == (n == 0) {
            true => WaitChange::None,
            false => WaitChange::Changed,
        }
    }
}

/// Stream with a request.
pub trait RequestStream: Mux {
    /// Returns the state of the request.
    fn state(&self) -> &RequestState;
    /// Returns the client of the connection.
    fn client(&self) -> Rc<Client>;
    /// Has the connection take no further requests.
    fn leave(&self);
    /// Sets the length of DATA frames (nginx: http2_chunk_size).
    fn set_chunk(&self, n: usize) {
        let _ = n;
    }
    /// Ends the stream after a complete response.
    fn finish(&self);
    /// Ends the stream without a whole response, if it has not ended.
    fn reset(&self, why: Reset);
    /// Takes the stream back once its request is over.
    fn recycle(self: Rc<Self>, thread: &Thread);
}

/// Stream whose memory serves another one after it.
pub trait Reused {
    /// Connection of the stream.
    type Session;
    /// Leaves the connection for `nobody`, a placeholder, and releases the memory that the stream holds.
    fn retire(&mut self, nobody: Rc<Self::Session>);
}

/// Memory of ended streams, for reuse: streams are many and short-lived.
#[derive(Debug)]
pub struct SpareStreams<S: Reused> {
    streams: Vec<Rc<S>>,
    /// Placeholder for the connection of kept streams, so that a kept stream does not keep its connection alive.
    nobody: Option<Rc<S::Session>>,
}

impl<S: Reused> Default for SpareStreams<S> {
    fn default() -> SpareStreams<S> {
        SpareStreams { streams: Vec::new(), nobody: None }
    }
}

impl<S: Reused> SpareStreams<S> {
    /// Number of streams that are kept, as many as a thread usually has at a time.
    const KEPT: usize = 128;

    /// Keeps the memory of a stream, if there are no other references to it. `nobody` creates a placeholder connection.
    pub fn give(&mut self, mut stream: Rc<S>, nobody: impl FnOnce() -> Rc<S::Session>) {
        if self.streams.len() < Self::KEPT
            && let Some(place) = Rc::get_mut(&mut stream)
        {
            place.retire(self.nobody.get_or_insert_with(nobody).clone());
            self.streams.push(stream);
        }
    }

    /// Creates a stream with `new`, in kept memory if there is any.
    #[inline]
    pub fn take(&mut self, new: impl FnOnce() -> S) -> Rc<S> {
        if let Some(mut spare) = self.streams.pop()
            && let Some(place) = Rc::get_mut(&mut spare)
        {
            *place = new();
            return spare;
        }
        Rc::new(new())
    }
}

/// Resets a stream whose runner has left it without an end, even after a panic.
struct StreamGuard<S: RequestStream>(Rc<S>);

impl<S: RequestStream> Drop for StreamGuard<S> {
    fn drop(&mut self) {
        self.0.reset(Reset::Internal);
    }
}

/// Serves the request of a stream.
pub(super) async fn serve<S: RequestStream>(thread: &Rc<Thread>, req: &mut Request, stream: Rc<S>) {
    let guard = StreamGuard(stream.clone());
    let state = stream.state();
    let Some(head) = state.take_head() else { return };
    // The heads are swapped, not copied, and the one that the runner had serves a later request.
    thread.h2.give(std::mem::replace(&mut req.head, head));
    req.take_stream(Wire::Mux(stream.clone()), stream.client(), state.number.get());
    // An extended CONNECT lacks the fields that an upstream over HTTP/1 expects.
    if req.head.is_websocket {
        websocket::complete(&mut req.head);
    }
    thread.io.poller.note_place(req.conn.client.number);
    req.begin_request();
    req.tally.received = u64::from(state.head_len.get());
    thread.counters.requests.add(1);
    match req.head.version {
        Version::Http2 => &thread.counters.http2,
        _ => &thread.counters.http3,
    }
    .add(1);
    // The settings of a location end connections of HTTP/1 only. Here other requests share the connection, so the settings of the server
    // decide.
    let unknown_server = req.choose_server().err().map(|_| 500);
    let old = req.connection_is_old(&req.own_location().settings.core);
    req.log_ignored();
    if let Some(refusal) = state.refusal.get() {
        req.errors.rejected = refusal.status;
        req.log(Level::Info, &format!("{} while reading client request headers", refusal.reason));
        Box::pin(phases::refuse(req, refusal.status)).await;
    } else if let Some(status) = unknown_server.or_else(|| tls::judge(req)).or_else(|| misdirected(req)) {
        Box::pin(phases::refuse(req, status)).await;
    } else {
        phases::run(req).await;
    }
    if req.errors.rejected == 0 && old {
        stream.leave();
    }
    // Only now is the location known, and with it the length of DATA frames.
    stream.set_chunk(http2::SETTINGS.of(&req.own_location().settings).chunk_size.0 as usize);
    let sent = respond(thread, req).await;
    finish(req);
    req.give_buffers();
    if sent.is_ok() {
        stream.finish();
    } else {
        stream.reset(Reset::Cancelled);
    }
    // The memory of the stream can be used again only when nothing else refers to it.
    drop(guard);
    req.end_stream();
    stream.recycle(thread);
}

/// Status for a request whose server does not speak its version of HTTP.
fn misdirected(req: &mut Request) -> Option<u16> {
    let http = req.http();
    let settings = &http.server(req).settings;
    let on = match req.head.version {
        Version::Http3 => settings.http3,
        Version::Http09 => settings.http3_hq,
        _ => settings.http2 || req.address().is_some_and(|a| a.options.http2),
    };
    if on {
        return None;
    }
    req.log(
        Level::Info,
        "client attempted to request the server name for which the negotiated protocol is disabled",
    );
    // The client may send the request again over another connection (RFC 9110, section 15.5.20).
    Some(421)
}
