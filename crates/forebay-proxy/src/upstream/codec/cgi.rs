//! Heads of CGI programs (RFC 3875, section 6): FastCGI, uwsgi, SCGI. The latter two may send heads of HTTP instead. Hot path.

use super::{Came, took_head};
use crate::upstream::fault::{Fault, bad_head};
use forebay_http::cgi;
use forebay_http::h1::client::{self, ResponseHead};
use forebay_http::h1::request::Status;
use forebay_http::request::Framing;
use forebay_server::request::Request;

/// Prepares for a head.
pub(super) fn begin(req: &mut Request) {
    req.begin_head_text();
    let u = &mut req.modules.upstream;
    cgi::begin(&mut u.head);
    u.early.clear();
}

/// Parses the part of a head that has come, which may begin with a status line.
pub(super) fn parse_either_head(req: &mut Request, limit: usize) -> Result<Came, Fault> {
    let head = &mut req.modules.upstream.head;
    match cgi::has_status_line(head) {
        None => Ok(Came::Part),
        Some(false) => parse_head(req, limit),
        Some(true) => {
            let mut message = Vec::new();
            let parsed = client::parse(head, limit).map_err(|bad| bad.message(head, &mut message));
            parsed_head(req, parsed, message)
        }
    }
}

/// Parses the part of a head that has come, which does not begin with a status line.
pub(super) fn parse_head(req: &mut Request, limit: usize) -> Result<Came, Fault> {
    let head = &mut req.modules.upstream.head;
    let mut message = Vec::new();
    let parsed = cgi::parse(head, limit).map_err(|bad| bad.message(head, &mut message));
    parsed_head(req, parsed, message)
}

/// Takes over a head that has been parsed; `message` says why it cannot be.
fn parsed_head(req: &mut Request, parsed: Result<Status, ()>, mut message: Vec<u8>) -> Result<Came, Fault> {
    let head = &req.modules.upstream.head;
    match parsed {
        // CGI has no interim responses (RFC 3875, section 6), so no other head would follow this one.
        Ok(Status::Complete) if head.status < 200 => {
            message.extend_from_slice(b"upstream sent invalid status \"");
            message.extend_from_slice(head.status_text.of(&head.buf));
            message.push(b'"');
            Err(bad_head(req, &message))
        }
        Ok(Status::Complete) => {
            took_head(req);
            Ok(Came::All)
        }
        Ok(Status::Partial) => Ok(Came::Part),
        Err(()) => Err(bad_head(req, &message)),
    }
}

/// Returns the framing of a response's content, whose end the protocol marks. `stored`: the response is stored.
pub(super) fn framing_of_response(head: &ResponseHead, to_head: bool, stored: bool) -> Framing {
    // As in nginx, the content that a program sends in answer to HEAD is stored.
    match client::framing_of_response(head, to_head && !stored) {
        Framing::Chunked => Framing::Stream,
        framing => framing,
    }
}
