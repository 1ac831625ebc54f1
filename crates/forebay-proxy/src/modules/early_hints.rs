//! `early_hints`: 103 responses of an upstream for the client (nginx: ngx_http_core_module; RFC 8297).

use crate::modules::proxy;
use crate::modules::proxy_cache::Predicates;
use forebay_http::field::{Classes, Name};
use forebay_http::request::Version;
use forebay_server::body;
use forebay_server::module::Module;
use forebay_server::request::Request;
use forebay_server::response::fields::Sink;

forebay_server::module_settings! {
    /// `early_hints`: 103 responses are passed if one of the values is neither empty nor 0.
    "early_hints" => conditions: Predicates = Predicates::default();
}

/// `early_hints`.
pub static MODULE: Module = Module { settings: &[&SETTINGS], ..Module::NONE };

/// Returns `true` for a field that is not passed on: it belongs to the connection, or is hidden from clients.
fn withheld(name: Name) -> bool {
    name.is(Classes::INTERIM_HOP | Classes::OF_SERVER | Classes::PRIVATE)
}

/// Passes the interim response on whose head has been read, if `early_hints` allows it.
pub async fn pass(req: &mut Request) {
    let http = req.http();
    let l = http.location(req);
    let wanted = req.modules.upstream.head.status == 103
        // A client of HTTP/1.0 does not know interim responses (RFC 9110, section 15.2).
        && req.head.version >= Version::Http11
        && !req.is_subrequest()
        && !req.is_background()
        && SETTINGS.of(&l.settings).conditions.test(req).unwrap_or(false);
    if !wanted {
        return;
    }
    let mut out = req.take_buf();
    match req.head.version {
        Version::Http11 => out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\n"),
        version => Sink::new(version, &mut out).status(103),
    }
    push_fields(req, proxy::SETTINGS.of(&l.settings), &mut out);
    if !req.conn.wire.send_interim(&out) {
        out.extend_from_slice(b"\r\n");
        let (thread, sent) = (req.thread.clone(), req.tally.sent);
        // Ignore errors: writing the final response will notice that the client is gone.
        let _ = body::write_all(&thread, req, &out).await;
        // The log counts the bytes of the final response only.
        req.tally.sent = sent;
    }
    req.give_buf(out);
}

/// Appends the fields of the interim response that the client may see.
fn push_fields(req: &Request, s: &proxy::Settings, out: &mut Vec<u8>) {
    let mut sink = Sink::new(req.head.version, out);
    let h = &req.modules.upstream.head;
    for f in h.fields.iter().filter(|f| !withheld(f.id)) {
        let (name, value) = (f.name.of(&h.buf), f.value.of(&h.buf));
        if !s.hide_header.has(name) {
            // Cannot fail: the values were parsed from a head, so they contain no line breaks.
            let _ = sink.field(name, value);
        }
    }
}
