//! Requests on streams of HTTP/2 connections.

use crate::h2::Stream;
use crate::phases;
use crate::request::Request;
use crate::response::respond::{finish, respond};
use crate::thread::Thread;
use crate::tls;
use forebay_conf::error::Level;
use forebay_http::h2::frame::Code;
use std::rc::Rc;

/// Resets a stream that its runner has left without an end, also by a panic.
struct StreamGuard(Rc<Stream>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.reset(Code::InternalError);
    }
}

/// Serves the request of a stream.
pub(super) async fn serve(thread: &Rc<Thread>, req: &mut Request, stream: Rc<Stream>) {
    let guard = StreamGuard(stream.clone());
    let mut conn = stream.connection();
    req.begin_connection(&mut conn);
    req.take_connection(conn);
    let Some(mut head) = stream.take_head() else { return };
    std::mem::swap(&mut req.head, &mut head);
    thread.h2.give(head);
    req.begin_request();
    req.received = u64::from(stream.head_len());
    thread.counters.requests.add(1);
    thread.counters.http2.add(1);
    // Settings of a location end HTTP/1 connections only: here they would end other requests, too.
    let unknown_server = req.choose_server().err().map(|_| 500);
    let old = req.connection_is_old();
    req.log_ignored();
    if let Some(refusal) = stream.refusal.get() {
        req.refused = refusal.status;
        req.log(Level::Info, &format!("{} while reading client request headers", refusal.reason));
        phases::refuse(req, refusal.status).await;
    } else if let Some(status) = unknown_server.or_else(|| tls::judge(req)).or_else(|| misdirected(req)) {
        phases::refuse(req, status).await;
    } else {
        phases::run(req).await;
    }
    if req.refused == 0 && old {
        stream.session().leave();
    }
    let http = req.http();
    stream.set_chunk(http.location(req).settings.http2.chunk_size.0 as usize);
    let sent = !req.drop_connection && respond(thread, req).await;
    finish(req);
    if sent {
        stream.finish();
    } else {
        stream.reset(Code::Cancel);
    }
    // The stream's memory can only be used again once nothing else holds it.
    drop(guard);
    drop(req.end_connection());
    thread.h2.give_stream(stream);
}

/// Status for a request whose server does not speak HTTP/2.
fn misdirected(req: &mut Request) -> Option<u16> {
    let http = req.http();
    let on = http.server(req).settings.http2 || req.address().is_some_and(|a| a.options.http2);
    if on {
        return None;
    }
    req.log(
        Level::Info,
        "client attempted to request the server name for which the negotiated protocol is disabled",
    );
    Some(421)
}
