//! Sends responses, whatever the version of HTTP: header filters, head, body, trailers, and the log phase. Hot path.

use crate::access_log;
use crate::body::{self, Attempt, Broken, Done};
use crate::connection::{switched, websocket};
use crate::counting;
use crate::error_page;
use crate::phases;
use crate::request::Request;
use crate::response::coding::Coded;
use crate::response::fields::{Sink, add_trailers, push_trailers};
use crate::response::head::{self, BodyFraming};
use crate::response::origin::Origin;
use crate::response::sent;
use crate::thread::Thread;
use forebay_net::wire::Then;
use std::rc::Rc;

/// Room for a response head, bytes; longer ones grow.
const HEAD: usize = 1024;

/// Sends the response.
///
/// # Errors
/// The client is gone or too slow, or gets no response.
pub async fn respond(thread: &Rc<Thread>, req: &mut Request) -> Done {
    if req.ending.is_dropped() {
        return Err(Broken::Connection);
    }
    if req.head.is_websocket {
        websocket::check(req);
    }
    // The thread may have begun to quit while the request was held up.
    if thread.quitting.get() {
        req.ending.close();
    }
    let mut out = req.take_buf();
    out.reserve(HEAD);
    // A head that was sent before saves a run of the header filters.
    let framing = if sent::write_ready(req, &mut out) {
        BodyFraming::Plain
    } else {
        // Header filters change the response, so the file is looked for before they run.
        let file = sent::subject(req);
        run_header_filters(req).await;
        if req.ending.is_dropped() {
            return Err(Broken::Connection);
        }
        let framing = head::write(req, &mut out);
        sent::remember(req, file, &out);
        framing
    };
    // Nothing has to be awaited for content that is at hand, so the end of the connection can leave with the last bytes.
    if req.resp.source.is_none() {
        req.ending.close_at_once();
    }
    req.tally.sent_head = out.len() as u64;
    // If the content is at hand, it follows the head at once, or the end of the response does.
    let then = if req.resp.source.is_none() { Then::More } else { Then::Nothing };
    if req.conn.wire.send_head(&out, then) {
        req.tally.sent += out.len() as u64;
        out.clear();
    }
    let sent = send_body(thread, req, &mut out, framing).await;
    if sent.is_ok() && framing != BodyFraming::None {
        send_trailers(req, &mut out);
    }
    req.give_buf(out);
    req.tally.complete = sent.is_ok();
    sent
}

/// Sends head and body.
#[inline]
async fn send_body(thread: &Rc<Thread>, req: &mut Request, head: &mut Vec<u8>, framing: BodyFraming) -> Done {
    if framing != BodyFraming::None {
        return match body::send_at_once(thread, req, head, framing) {
            Attempt::Done(done) => done,
            Attempt::Rest(rest) => body::write_shared(thread, req, rest).await,
            Attempt::No => body::send(thread, req, head, framing).await,
        };
    }
    let sent = body::write_last(thread, req, head).await;
    if let Some(mut source) = req.resp.source.take() {
        if sent.is_ok() && switched::can_suspend(req, &*source) {
            req.ending.close();
            req.resp.source = Some(source);
            return sent;
        }
        if sent.is_ok() && source.relay(req).await {
            req.ending.close();
        } else {
            // The client gets no content (HEAD, 204, 304), so its stream ends before the rest of the source is read.
            req.conn.wire.end();
        }
        source.drain(req).await;
        source.abandon(req);
    }
    sent
}

/// Sends the trailers of a multiplexed stream. Over HTTP/1 they are part of the body's framing.
#[inline]
fn send_trailers(req: &mut Request, out: &mut Vec<u8>) {
    if !req.resp.has_trailers() || !req.conn.wire.is_multiplexed() {
        return;
    }
    out.clear();
    add_trailers(req);
    push_trailers(&req.resp, &mut Sink::new(req.head.version, out));
    if !out.is_empty() {
        req.conn.wire.send_head(out, Then::More);
    }
}

/// Runs the header filters. A filter may refuse the response (412, 416). The error that is answered instead passes the filters as
/// well, and none of them refuses an error.
async fn run_header_filters(req: &mut Request) {
    let mut content_range = Vec::new();
    loop {
        req.resp.coded = Coded::default();
        req.resp.filters.late = None;
        let http = req.http();
        if let Some(status) = req.errors.overwrite {
            // A page whose own status is the same also leaves with the usual phrase.
            req.resp.reason.clear();
            req.resp.status = status;
        }
        for filter in &http.location(req).plan.header_filters {
            if filter(req).is_err() {
                req.resp.coded = Coded::default();
                // A variable of a filter could not be evaluated. The built-in page needs no filters.
                error_page::built_in(req, 500);
                return;
            }
            if req.errors.refusal.is_some() {
                break;
            }
        }
        let Some(refusal) = req.errors.refusal.take() else {
            if let Some(filter) = req.resp.filters.late.take() {
                filter(req).await;
            }
            break;
        };
        if !refusal.content_range.is_empty() {
            content_range = refusal.content_range;
        }
        error_page::forget_challenges(req);
        // Boxed, like everything that is rare, so that other requests have no room for it.
        Box::pin(phases::refuse(req, refusal.status)).await;
    }
    if !content_range.is_empty() {
        req.resp.fields.push(b"Content-Range", &content_range);
    }
}

/// Runs the log phase of a request that its runner leaves unfinished: by a panic, or because the thread ends.
pub fn break_off(req: &mut Request) {
    if !req.unlogged {
        return;
    }
    // A response that has begun keeps the status that the client has seen.
    if req.tally.sent == 0 {
        // nginx logs 499 for a request whose client does not get a response.
        req.resp.status = if std::thread::panicking() { 500 } else { 499 };
    }
    // A second panic during the first one would end the process.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| finish(req)));
}

/// Runs the log phase and frees the resources of the request.
pub fn finish(req: &mut Request) {
    if let Some(mut source) = req.resp.source.take() {
        source.abandon(req);
    }
    if !req.own_location().plan.log.is_empty() {
        let http = req.http();
        for log in &http.location(req).plan.log {
            if (log.concerns)(req) {
                (log.hook)(req);
            }
        }
    }
    counting::count(req);
    // This comes before the line is made, so that a panic in there does not lead to a second line.
    req.unlogged = false;
    access_log::log_request(req);
    req.modules.states.end();
    req.body.end();
    // A runner without work must hold no open files, and no tables of an encoder whose response broke off.
    req.resp.body.clear();
    req.resp.origin = Origin::Own;
    req.resp.filters.body.clear();
}
