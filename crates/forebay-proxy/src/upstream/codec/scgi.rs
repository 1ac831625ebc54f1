//! SCGI (nginx: ngx_http_scgi_module). `modules/scgi.rs` writes the parameters. Hot path.

use super::facts::{Facts, Reasons};
use super::{Asked, Came, Speak, Written, cgi};
use crate::modules::scgi;
use crate::upstream::fault::Fault;
use forebay_http::h1::client::ResponseHead;
use forebay_http::request::Framing;
use forebay_server::request::Request;

/// SCGI (`scgi_pass`). A connection serves one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scgi;

static FACTS: Facts = Facts {
    prefix: "scgi_",
    scheme: b"scgi://",
    is_plain: true,
    reasons: Reasons::Optional,
    hides: b"Status",
    ..Facts::NONE
};

impl Speak for Scgi {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    // The parameters, which are sent first, include the length, so it must be known beforehand.
    fn can_stream(&self, framing: Framing) -> bool {
        matches!(framing, Framing::Length(_))
    }

    fn write_request(&self, req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Written {
        scgi::write_params(req, asked.settings, asked.stored, out)?;
        Ok(false)
    }

    fn begin(&self, req: &mut Request) {
        cgi::begin(req);
    }

    fn parse_head(&self, req: &mut Request, limit: usize, _headless: bool) -> Result<Came, Fault> {
        cgi::parse_either_head(req, limit)
    }

    fn keeps_alive(&self, _req: &Request) -> bool {
        false
    }

    fn framing_of_response(&self, head: &ResponseHead, to_head: bool, stored: bool) -> Framing {
        cgi::framing_of_response(head, to_head, stored)
    }
}
