//! Requests that are made for another one, inside the server: who asks decides when they run and what becomes of
//! the answer (nginx: subrequests). A subrequest is a [`Request`] of its own without a connection, which goes through
//! the phases as any other, except that access has been decided on.

use crate::access_log;
use crate::phases;
use crate::request::Request;
use crate::upstream::stream::Pulled;
use forebay_http::request::{Framing, Method};

/// Whose body it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// None.
    None,
    /// That of the request it is made for, as far as that has been read.
    Shared,
}

/// Most of an answer that is read to keep the connection to the upstream, bytes.
const WORTH_READING: usize = 1 << 20;

/// A subrequest for a path, by GET.
pub fn make(parent: &Request, uri: &[u8], args: &[u8], body: Body) -> Box<Request> {
    let mut sub = Box::new(Request::new(parent.thread.clone()));
    sub.conf = parent.conf.clone();
    *sub.conn = parent.conn.known();
    sub.head = parent.head.clone();
    sub.head.expect_continue = false;
    match body {
        Body::None => {
            sub.head.framing = Framing::None;
            sub.body.begin(Framing::None, sub.head.len);
        }
        Body::Shared => sub.body = parent.body.share(),
    }
    sub.method = Method::Get;
    sub.uri.extend_from_slice(uri);
    sub.args.extend_from_slice(args);
    sub.server = parent.server;
    sub.location = parent.http().server(parent).root;
    sub.slots.clone_from(&parent.slots);
    sub.arena.clone_from(&parent.arena);
    sub.started = parent.started;
    sub.internal = true;
    sub.rewritten = true;
    sub.subrequest = true;
    sub.client_get = parent.client_turned_to_get();
    sub.uri_changes = phases::MAX_URI_CHANGES;
    sub.received = parent.received;
    sub.peer = parent.peer;
    sub.remote.clone_from(&parent.remote);
    sub.modules.request_id = parent.modules.request_id;
    sub.modules.replaced_peer = parent.modules.replaced_peer;
    // What limits has counted the request already.
    sub.modules.limit_req = parent.modules.limit_req;
    sub.modules.limit_conn = parent.modules.limit_conn.counted();
    sub
}

/// Runs it to its end; what it answers is thrown away but for its head. A path that begins with `@` in `target` is the
/// name of a location.
pub async fn run(sub: &mut Request, target: &[u8]) {
    phases::subrequest(sub, target).await;
    if let Some(mut source) = sub.resp.source.take() {
        let mut piece = sub.take_buf();
        let mut read = 0;
        while read < WORTH_READING {
            let mut pulled = source.pull(sub, &mut piece);
            if source.unsettled() {
                source.settle(sub).await;
            }
            if pulled == Pulled::Stored {
                pulled = source.load(sub, &mut piece).await;
            }
            read += piece.len();
            piece.clear();
            match pulled {
                Pulled::Data | Pulled::Stored => {}
                Pulled::Blocked if source.wait(sub).await => {}
                _ => break,
            }
        }
        sub.give_buf(piece);
        source.drain(sub).await;
        source.abandon(sub);
    }
    let http = sub.http();
    if http.location(sub).settings.core.log_subrequest {
        access_log::log_request(sub);
    }
    sub.body.end();
    sub.modules.limit_conn.clear();
}
