//! Requests that the server derives from other requests.

use super::uri::MAX_CHANGES;
use super::{Origin, Request};
use crate::config::http::ROOT;
use crate::connection::Connection;
use crate::thread::{Thread, ThreadConfig};
use forebay_core::client::Client;
use forebay_http::request::{Framing, Method};
use forebay_net::addr::push_peer;
use std::rc::Rc;

/// Body of a subrequest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubBody {
    /// No body.
    None,
    /// The body of the parent, as far as it has been read.
    Shared,
}

impl Request {
    /// Makes a request of another one, for the same client and without a connection.
    fn derive(parent: &Request, origin: Origin) -> Box<Request> {
        let mut new = Request::renewed(&parent.thread);
        new.conf = parent.conf.clone();
        // The client is shared, but the wire stays with the parent until the subrequest is the one that sends.
        new.conn = Connection::closed(parent.conn.client.clone(), parent.conn.requests);
        new.origin = origin;
        new.head.copy(&parent.head);
        new.uri.changes_left = MAX_CHANGES;
        new.server = parent.server;
        // A subrequest sees the variables that its parent has set, as in nginx.
        new.vars.clone_from(&parent.vars);
        new.peer = parent.peer;
        new.remote.clone_from(&parent.remote);
        new.modules.request_id = parent.modules.request_id;
        new.modules.states.derive(&parent.modules.states, origin);
        new
    }

    /// Makes a subrequest for a path, by GET.
    pub fn subrequest(parent: &Request, uri: &[u8], args: &[u8], body: SubBody) -> Box<Request> {
        let depth = match parent.origin {
            Origin::Sub { depth, .. } => depth.saturating_add(1),
            _ => 1,
        };
        let mut sub =
            Request::derive(parent, Origin::Sub { depth, client_get: parent.client_turned_to_get() });
        sub.head.expect_continue = false;
        match body {
            SubBody::None => {
                sub.head.framing = Framing::None;
                sub.body.begin(Framing::None, sub.head.len);
            }
            SubBody::Shared => sub.body = parent.body.share(),
        }
        // nginx makes every subrequest a GET, whatever the method of the parent.
        sub.method = Method::Get;
        sub.uri.path.extend_from_slice(uri);
        sub.uri.args.extend_from_slice(args);
        sub.location = ROOT;
        sub.tally.started = parent.tally.started;
        // A subrequest may go to `internal` locations, which are there for such requests.
        sub.uri.internal = true;
        sub.uri.rewritten = true;
        sub.tally.received = parent.tally.received;
        sub
    }

    /// Makes a request that renews an entry of a cache (nginx: proxy_cache_background_update).
    pub fn renewal(parent: &Request) -> Box<Request> {
        let mut new = Request::derive(parent, Origin::Background);
        new.body.begin(new.head.framing, new.head.len);
        new.tally.received = new.head.len as u64;
        new.method = parent.method;
        new.uri.path.clone_from(&parent.uri.path);
        new.uri.args.clone_from(&parent.uri.args);
        new.location = parent.location;
        new.captures = parent.captures.clone();
        new.uri.valid_location = parent.uri.valid_location;
        new.uri.rewritten = parent.uri.rewritten;
        new
    }

    /// Makes a request of a client that has not sent any, to evaluate variables of its connection.
    pub fn of_connection(thread: &Rc<Thread>, conf: &Rc<ThreadConfig>, client: &Rc<Client>) -> Request {
        let mut new = Request::new(thread.clone());
        new.conf = conf.clone();
        new.conn = Connection::closed(client.clone(), 0);
        new.peer = client.peer;
        push_peer(new.peer, &mut new.remote);
        new
    }
}
