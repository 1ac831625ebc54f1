//! Requests on streams of HTTP/2 and HTTP/3 connections.

use crate::connection::websocket;
use crate::phases;
use crate::request::Request;
use crate::response::respond::{finish, respond};
use crate::thread::Thread;
use crate::tls;
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_http::h2::request::Refusal;
use forebay_http::request::{RequestHead, Version};
use forebay_net::mux::Mux;
use forebay_net::wire::Wire;
use std::rc::Rc;

/// Reason for ending a stream without a whole response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The server has failed.
    Internal,
    /// The response cannot be completed.
    Cancelled,
}

/// Stream with a request.
pub trait RequestStream: Mux {
    /// Returns the client of the connection.
    fn client(&self) -> Rc<Client>;
    /// Returns the number of the request on its connection.
    fn number(&self) -> u32;
    /// Takes the request; `None` from the second call on.
    fn take_head(&self) -> Option<Box<RequestHead>>;
    /// Returns the size of the field section as received (`$request_length`), in bytes.
    fn head_len(&self) -> u32;
    /// Returns the reason for refusing the request.
    fn refusal(&self) -> Option<Refusal>;
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
    /// Placeholder connection of the streams kept: a kept stream must not keep its connection alive.
    nobody: Option<Rc<S::Session>>,
}

impl<S: Reused> Default for SpareStreams<S> {
    fn default() -> SpareStreams<S> {
        SpareStreams { streams: Vec::new(), nobody: None }
    }
}

impl<S: Reused> SpareStreams<S> {
    /// Streams kept: as many as a thread has at a time, most often.
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

/// Resets a stream that its runner has left without an end, also by a panic.
struct StreamGuard<S: RequestStream>(Rc<S>);

impl<S: RequestStream> Drop for StreamGuard<S> {
    fn drop(&mut self) {
        self.0.reset(Reset::Internal);
    }
}

/// Serves the request of a stream.
pub(super) async fn serve<S: RequestStream>(thread: &Rc<Thread>, req: &mut Request, stream: Rc<S>) {
    let guard = StreamGuard(stream.clone());
    let Some(head) = stream.take_head() else { return };
    thread.h2.give(std::mem::replace(&mut req.head, head));
    req.take_stream(Wire::Mux(stream.clone()), stream.client(), stream.number());
    if req.head.is_websocket {
        websocket::complete(&mut req.head);
    }
    thread.io.poller.note_place(req.conn.client.number);
    req.begin_request();
    req.received = u64::from(stream.head_len());
    thread.counters.requests.add(1);
    match req.head.version {
        Version::Http2 => &thread.counters.http2,
        _ => &thread.counters.http3,
    }
    .add(1);
    // Settings of a location end HTTP/1 connections only: here they would end other requests, too.
    let unknown_server = req.choose_server().err().map(|_| 500);
    let old = req.connection_is_old(&req.own_location().settings.core);
    req.log_ignored();
    if let Some(refusal) = stream.refusal() {
        req.refused = refusal.status;
        req.log(Level::Info, &format!("{} while reading client request headers", refusal.reason));
        Box::pin(phases::refuse(req, refusal.status)).await;
    } else if let Some(status) = unknown_server.or_else(|| tls::judge(req)).or_else(|| misdirected(req)) {
        Box::pin(phases::refuse(req, status)).await;
    } else {
        phases::run(req).await;
    }
    if req.refused == 0 && old {
        stream.leave();
    }
    stream.set_chunk(req.own_location().settings.http2.chunk_size.0 as usize);
    let sent = !req.drop_connection && respond(thread, req).await;
    finish(req);
    req.give_buffers();
    if sent {
        stream.finish();
    } else {
        stream.reset(Reset::Cancelled);
    }
    // The stream's memory can only be used again once nothing else holds it.
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
    Some(421)
}
