//! Heads of responses and the framing of their bodies (nginx: the header filter). Hot path.

use super::coding::Coded;
use super::fields::{self, OfConnection, Sink};
use crate::error_page;
use crate::modules::core::Settings;
use crate::request::Request;
use forebay_conf::error::Level;
use forebay_http::field::{self, Unsafe};
use forebay_http::h1::response;
use forebay_http::request::{Method, Version};

/// Framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body is sent.
    None,
    /// By `Content-Length` or by the end of the connection.
    Plain,
    /// In chunks.
    Chunked,
}

/// Appends the head of the response and returns the framing of its body. Where a variable has brought CR, LF or NUL into a
/// field, the response becomes a built-in page for 500.
pub fn write(req: &mut Request, out: &mut Vec<u8>) -> BodyFraming {
    let start = out.len();
    try_write(req, out).unwrap_or_else(|refused| {
        out.truncate(start);
        let name = String::from_utf8_lossy(&refused.name).into_owned();
        // nginx would send the text after the line break as further fields.
        req.log(Level::Error, &format!("\"{name}\" of the response has a line break or NUL in its value"));
        req.resp.location.clear();
        req.resp.coded = Coded::default();
        error_page::forget_challenges(req);
        error_page::built_in(req, 500);
        // The page has no value from the request, so it cannot be refused again.
        try_write(req, out).unwrap_or(BodyFraming::None)
    })
}

fn try_write(req: &mut Request, out: &mut Vec<u8>) -> Result<BodyFraming, Unsafe> {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let status = req.resp.status;
    // HTTP/0.9 has no heads, and a response without a head from an upstream leaves as it came.
    if req.head.version == Version::Http09
        || req.resp.origin.is_headless() && !req.head.version.is_multiplexed()
    {
        req.resp.head_only |= req.method == Method::Head;
        // Only the end of the connection can mark the end of such a body.
        req.ending.close();
        return Ok(if req.resp.head_only { BodyFraming::None } else { BodyFraming::Plain });
    }
    // An internal redirect for an error turns the method into GET, but a client that has sent HEAD still expects no body.
    req.resp.head_only |= req.method == Method::Head
        || req.head.method == Method::Head
        || matches!(status, 100..=199 | 204 | 304);
    let (length, framing) = frame(req, core);
    let connection = OfConnection { chunked: framing == BodyFraming::Chunked };
    if req.head.version.is_multiplexed() {
        let mut sink = Sink::new(req.head.version, out);
        // Statuses that exist only for `error_page`, such as 494, leave as 400.
        sink.status(response::wire_status(status));
        fields::push_all(req, core, length, &connection, &mut sink)?;
        return Ok(framing);
    }
    if req.resp.reason.is_empty() {
        response::status_line(out, status);
    } else {
        // The line comes from an upstream and is checked like a field.
        field::check(b"status line", &req.resp.reason)?;
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(&req.resp.reason);
        out.extend_from_slice(b"\r\n");
    }
    fields::push_all(req, core, length, &connection, &mut Sink::Http1(out))?;
    out.extend_from_slice(b"\r\n");
    Ok(framing)
}

/// Decides on the framing of the body and the value of `Content-Length` (RFC 9112, section 6). A body whose end only the
/// connection can mark ends keep-alive.
fn frame(req: &mut Request, core: &Settings) -> (Option<u64>, BodyFraming) {
    let length = length(req, core);
    let framing = if req.resp.head_only { BodyFraming::None } else { BodyFraming::Plain };
    // Frames mark the end of the body there, so it needs neither chunks nor the end of the connection.
    if length.is_some() || req.resp.head_only || req.head.version.is_multiplexed() {
        return (length, framing);
    }
    if may_chunk(req, core) {
        return (None, BodyFraming::Chunked);
    }
    // Only the end of the connection can mark the end of this body.
    req.ending.close();
    (None, framing)
}

/// Returns the value of `Content-Length`.
pub fn length(req: &Request, core: &Settings) -> Option<u64> {
    let r = &req.resp;
    // Trailers can only follow a chunked body (RFC 9112, section 7.1.2).
    let has_trailers = r.server_fields.trailers && may_chunk(req, core);
    // A response with status 204 must not have the field (RFC 9110, section 8.6).
    r.content_length.filter(|_| r.status != 204 && !has_trailers)
}

/// Returns `true` if a body may be sent in chunks. Clients of HTTP/1.0 do not understand them (RFC 9112, section 6.1), and frames have no
/// need of them.
fn may_chunk(req: &Request, core: &Settings) -> bool {
    req.head.version == Version::Http11 && core.chunked_transfer_encoding
}
