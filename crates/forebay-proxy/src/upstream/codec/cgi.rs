//! Heads of CGI programs (RFC 3875, section 6): FastCGI, uwsgi, SCGI. The latter two may send heads of HTTP instead. Hot path.

use super::{Came, fastcgi, protocol::Protocol, took_head};
use crate::upstream::fault::{Fault, bad_head};
use crate::upstream::{CALL, Call};
use forebay_http::cgi;
use forebay_http::h1::client;
use forebay_http::h1::request::Status;
use forebay_server::request::Request;
use forebay_server::request::upstream::Upstreamed;

/// Prepares for a head. `status_line`: whether it begins with a status line, if the protocol tells.
pub(super) fn begin(req: &mut Request, status_line: Option<bool>) {
    req.begin_head_text();
    let u = &mut req.modules.upstream;
    cgi::begin(&mut u.head);
    u.early.clear();
    fastcgi::LINK.clear(req);
    CALL.of_mut(req).status_line = status_line;
}

/// Parses the part of a head that has come.
pub(super) fn parse_head(req: &mut Request, limit: usize) -> Result<Came, Fault> {
    let Call { protocol, mut status_line, .. } = *CALL.of(req);
    let head = &mut req.modules.upstream.head;
    if status_line.is_none() {
        status_line = cgi::has_status_line(head);
    }
    let mut message = Vec::new();
    let parsed = match status_line {
        None => return Ok(Came::Part),
        Some(true) => client::parse(head, limit).map_err(|bad| bad.message(head, &mut message)),
        Some(false) => cgi::parse(head, limit).map_err(|bad| bad.message(head, &mut message)),
    };
    match parsed {
        Ok(Status::Complete) if head.status < 200 => {
            message.extend_from_slice(b"upstream sent invalid status \"");
            message.extend_from_slice(head.status_text.of(&head.buf));
            message.push(b'"');
            Err(bad_head(req, &message))
        }
        Ok(Status::Complete) => {
            complete(req);
            Ok(Came::All)
        }
        Ok(Status::Partial) if protocol == Protocol::FastCgi => fastcgi::may_go_on(req).map(|()| Came::Part),
        Ok(Status::Partial) => Ok(Came::Part),
        Err(()) => Err(bad_head(req, &message)),
    }
}

/// Takes over a complete head.
fn complete(req: &mut Request) {
    if CALL.of(req).protocol == Protocol::FastCgi {
        let Upstreamed { head, early, .. } = &mut req.modules.upstream;
        if early.capacity() == 0 {
            *early = req.thread.buffers.take();
        }
        // The content after it has been taken out of its records already.
        early.extend_from_slice(head.buf.get(head.len..).unwrap_or_default());
        head.buf.truncate(head.len);
    }
    took_head(req);
}
