//! The memory of requests that have ended serves for requests that the server derives from others. Hot path.
//!
//! `reset` names every field, since a leftover would show one client what another one has sent.

use super::ending::Ending;
use super::tally::Tally;
use super::{Origin, Request};
use crate::body::RequestBody;
use crate::connection::Connection;
use crate::thread::Thread;
use forebay_http::request::Method;
use forebay_net::addr::Peer;
use std::rc::Rc;

/// Largest buffer of a request that is kept, bytes.
const LARGEST: usize = 16 * 1024;

impl Request {
    /// Makes a request that has yet to begin, as [`Request::new`] does, but in the memory of a request that has ended.
    pub(super) fn renewed(thread: &Rc<Thread>) -> Box<Request> {
        match thread.spare_requests.take() {
            Some(mut request) => {
                request.tally.started = thread.clock.now();
                request
            }
            None => Box::new(Request::new(thread.clone())),
        }
    }

    /// Gives the memory of a request that has ended to later ones.
    pub fn recycle(mut self: Box<Request>) {
        let thread = self.thread.clone();
        // A request of an old configuration would keep it alive after a reload.
        if thread.is_current(&self.conf) {
            self.reset();
            self.give_buffers();
            thread.spare_requests.give(self);
        }
    }

    /// Makes this the same as a new request, in the same memory. A leftover would show one client what another client has sent.
    fn reset(&mut self) {
        // Every field is named, so that a new field cannot be left out.
        let Request {
            thread,
            // The configuration is replaced when the memory is taken for the next request.
            conf: _,
            conn,
            origin,
            remote,
            peer,
            head,
            method,
            uri,
            server,
            location,
            resp,
            vars,
            captures,
            tally,
            errors,
            transfer,
            modules,
            unlogged,
            ending,
            body,
            keepalive_timeout,
            timed_out,
            without_head,
        } = self;
        *conn = Connection::closed(thread.no_client.clone(), 0);
        *origin = Origin::Client;
        *peer = Peer::Unix;
        head.clear();
        *method = Method::Get;
        remote.clear();
        uri.clear();
        captures.clear();
        (*server, *location) = (0, 0);
        resp.clear();
        vars.clear();
        errors.clear();
        // The time is set when the memory is taken for the next request.
        *tally = Tally::new(tally.started);
        *transfer = None;
        modules.clear();
        modules.upstream.reset();
        (*unlogged, *ending) = (false, Ending::default());
        // A body may own a temporary file, which ends with it.
        *body = RequestBody::default();
        *keepalive_timeout = None;
        (*timed_out, *without_head) = (false, false);
        // A single large head or body must not stay in memory for all small requests after it.
        for buf in
            [&mut head.buf, &mut resp.text, &mut modules.upstream.head.buf, &mut modules.upstream.early]
        {
            if buf.capacity() > LARGEST {
                *buf = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::errors::Errors;
    use crate::request::rare::Unused;
    use crate::request::states::Slot;
    use crate::request::tally::Arrival;
    use crate::request::uri::Uri;
    use crate::request::{Refusal, SubBody};
    use crate::response::coding::Coding;
    use crate::response::origin::{self, AllowedRanges};
    use crate::response::server_fields::ServerFields;
    use crate::response::{Part, Window};
    use crate::testing;
    use forebay_core::client::Client;
    use forebay_core::vars::VarId;
    use forebay_http::request::Framing;
    use forebay_sys::pooled::Pooled;
    use std::time::Duration;

    /// State of a module.
    static OF_MODULE: Slot<OfModule> = Slot::new();

    #[derive(Debug, Default)]
    struct OfModule(Vec<u8>);

    impl Unused for OfModule {
        const UNUSED: &'static OfModule = &OfModule(Vec::new());

        fn clear(&mut self) {
            self.0.clear();
        }
    }

    /// Returns all that a request knows, by field.
    fn known(req: &Request) -> Vec<(&'static str, String)> {
        let Request {
            thread: _,
            conf,
            conn,
            origin,
            remote,
            peer,
            head,
            method,
            uri,
            server,
            location,
            resp,
            vars,
            captures,
            tally,
            errors,
            transfer,
            modules,
            unlogged,
            ending,
            body,
            keepalive_timeout,
            timed_out,
            without_head,
        } = req;
        let Uri { path, args, internal, rewritten, valid_location, add_uri_to_alias, changes_left } = uri;
        let Tally { started, arrival, received, sent, sent_head, complete } = tally;
        let Errors { rejected, original, overwrite, refusal } = errors;
        let crate::response::Response { fields, handed_on, trailers, body: parts, source, ready, .. } = resp;
        let crate::response::Response { join, filters, coded, .. } = resp;
        macro_rules! shown {
            ($($what:expr),+ $(,)?) => { vec![$((stringify!($what), format!("{:?}", $what))),+] };
        }
        shown![
            Rc::as_ptr(conf),
            conn,
            origin,
            remote,
            peer,
            head,
            method,
            path,
            args,
            internal,
            rewritten,
            valid_location,
            add_uri_to_alias,
            changes_left,
            server,
            location,
            resp.status,
            resp.content_type,
            resp.charset,
            resp.override_charset,
            resp.content_length,
            resp.validators.last_modified,
            resp.validators.etag,
            resp.location,
            fields,
            handed_on,
            trailers,
            parts,
            resp.text,
            source.is_some(),
            resp.window,
            resp.origin,
            ready.is_some(),
            join.is_some(),
            filters.body.len(),
            filters.late.is_some(),
            coded.coding.is_some(),
            resp.allowed_ranges,
            resp.head_only,
            resp.server_fields.server,
            resp.server_fields.date,
            resp.server_fields.vary,
            resp.server_fields.trailers,
            resp.limit_rate,
            resp.reason,
            vars,
            captures,
            started,
            arrival,
            received,
            sent,
            sent_head,
            complete,
            rejected,
            original,
            overwrite,
            refusal,
            transfer.is_some(),
            modules,
            unlogged,
            ending,
            body,
            keepalive_timeout,
            timed_out,
            without_head,
        ]
    }

    /// Gives every field of a request that may be set a value that a new one does not have.
    fn use_up(req: &mut Request) {
        testing::head(req, "Cookie: secret=1\nX-Own: 1\n");
        req.conn = Connection::closed(Rc::new(Client { number: 7, ..Client::none(req.tally.started) }), 9);
        req.origin = Origin::Sub { depth: 3, client_get: true };
        req.remote = b"192.0.2.1".to_vec();
        req.peer = Peer::Inet("192.0.2.1:1".parse().expect("an address"));
        req.method = Method::Post;
        (req.uri.path, req.uri.args) = (b"/secret".to_vec(), b"secret".to_vec());
        (req.server, req.location) = (1, 2);
        use_up_response(req);
        req.vars.store(VarId(2), Some(b"secret"));
        (req.captures.text, req.captures.groups) = (b"secret".to_vec(), vec![(0, 6)]);
        (req.uri.internal, req.uri.add_uri_to_alias, req.uri.rewritten) = (true, true, true);
        (req.uri.valid_location, req.uri.changes_left) = (false, 3);
        (req.errors.original, req.errors.overwrite, req.errors.rejected) = (404, Some(500), 400);
        req.errors.refusal = Some(Box::new(Refusal { status: 416, content_range: b"secret".to_vec() }));
        (req.tally.sent, req.tally.sent_head, req.tally.received) = (1, 2, 3);
        (req.tally.arrival, req.tally.complete) = (Arrival::Pipelined, true);
        use_up_modules(req);
        (req.unlogged, req.timed_out, req.without_head) = (true, true, true);
        req.ending = Ending::CloseAtOnce;
        req.body.begin(Framing::Length(6), 3);
        req.body.continued = true;
        req.body.len = 6;
        req.body.in_file = true;
        req.body.stored.mem = b"secret".to_vec();
        req.body.stored.complete = true;
        req.body.stored.in_file = 3;
        req.keepalive_timeout = Some(Duration::from_secs(1));
    }

    fn use_up_response(req: &mut Request) {
        let secret = || b"secret".to_vec();
        let r = &mut req.resp;
        (r.status, r.content_length, r.validators.last_modified, r.limit_rate) = (200, Some(6), Some(1), 9);
        (r.content_type, r.charset, *r.override_charset) = (secret(), secret(), secret());
        (r.validators.etag, r.location, r.reason, r.text) = (secret(), secret(), secret(), secret());
        for list in [&mut r.fields, &mut *r.handed_on, &mut *r.trailers] {
            list.push(b"Set-Cookie", b"secret");
        }
        r.body.push(Part::Static(b"secret"));
        r.coded.coding = Some(Coding::Gzip);
        r.filters.late = Some(|_| Pooled::new(async {}));
        r.window = Window { skip: 1, left: 2 };
        r.origin = origin::Origin::Headless;
        (r.allowed_ranges, r.head_only) = (AllowedRanges::One, true);
        r.server_fields = ServerFields { server: false, date: false, vary: true, trailers: true };
    }

    fn use_up_modules(req: &mut Request) {
        let secret = || b"secret".to_vec();
        let m = &mut req.modules;
        m.request_id = Some([7; 32]);
        let u = &mut m.upstream;
        u.head.buf = b"HTTP/1.1 200 OK\r\nSet-Cookie: secret\r\n\r\n".to_vec();
        forebay_http::h1::client::parse(&mut u.head, usize::MAX).expect("sound");
        u.own_attempts = Some(1);
        (u.early, u.host, u.port, u.log_name, u.log_path) =
            (secret(), secret(), secret(), secret(), secret());
        u.trailers.push(b"X", b"secret");
        crate::body::compose::count(req);
        OF_MODULE.of_mut(req).0 = secret();
    }

    #[test]
    fn a_reused_request_is_like_new() {
        let mut parent = testing::request("server { set $a b; }", "");
        let thread = parent.thread.clone();
        let new = Box::new(Request::new(thread.clone()));
        let mut used = Request::renewed(&thread);
        use_up(&mut used);
        // Each field that a request may leave set has been set.
        let same = ["Rc::as_ptr(conf)", "started", "parts", "source.is_some()"];
        let same = same.iter().chain(&["ready.is_some()", "join.is_some()", "filters.body.len()"]);
        let same: Vec<_> = same.chain(&["transfer.is_some()"]).collect();
        for (new, used) in known(&new).iter().zip(&known(&used)) {
            assert!(new.1 != used.1 || same.contains(&&new.0), "{} is not tested: {}", new.0, new.1);
        }
        used.recycle();
        let again = Request::renewed(&thread);
        assert!(again.uri.path.capacity() > 0, "not the same");
        for ((name, new), (_, again)) in known(&new).iter().zip(&known(&again)) {
            // The last host as it was read, which is compared with the next, is left.
            let (new, again) = (without_last_host(new), without_last_host(again));
            assert!(name == &"started" || new == again, "{name}: {new} {again}");
            assert!(!again.contains("secret"), "{name}: {again}");
        }
        again.recycle();
        // A subrequest is the same, of either.
        testing::head(&mut parent, "X-Other: 2\n");
        let made = |parent: &Request| Request::subrequest(parent, b"/a", b"b", SubBody::None);
        let of_used = made(&parent);
        assert!(thread.spare_requests.is_empty());
        let of_new = made(&parent);
        for ((name, new), (_, used)) in known(&of_new).iter().zip(&known(&of_used)) {
            assert_eq!(without_last_host(new), without_last_host(used), "{name}");
        }
    }

    fn without_last_host(text: &str) -> &str {
        text.split(", last_host").next().unwrap_or_default()
    }

    #[test]
    fn a_request_of_a_former_configuration_is_not_kept() {
        let parent = testing::request("", "");
        let thread = parent.thread.clone();
        let conf = thread.config();
        let made = Request::subrequest(&parent, b"/a", b"", SubBody::None);
        *thread.conf.borrow_mut() =
            Rc::new(crate::thread::ThreadConfig::of(conf.active.clone(), conf.http.clone()));
        made.recycle();
        assert!(thread.spare_requests.is_empty());
    }
}
