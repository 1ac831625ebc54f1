//! Protocols of upstreams, one file each: the form of a request, the head and the content of a response, and the condition under
//! which the connection may serve another request. Hot path.
//!
//! `http1.rs`, `http2.rs` and `http3.rs` have the forms of HTTP, `cgi.rs` with `fastcgi.rs` and `memcached.rs` the others. `decoder.rs`
//! finds the end of the content, and thereby when the connection may serve another request. The files of these names in `modules/`
//! write the parameters of FastCGI, uwsgi and SCGI. The heads of HTTP/2, HTTP/3, FastCGI, uwsgi, SCGI and memcached become heads of
//! HTTP/1, so all later code reads one form.

mod cgi;
pub mod decoder;
pub mod fastcgi;
mod http1;
pub mod http2;
pub mod http3;
pub mod memcached;
pub mod muxed;
pub mod protocol;

use super::Reuse;
use super::exchange::{Outgoing, READ};
use super::fault::{Fault, bad_head};
use crate::modules::proxy::Settings;
use crate::modules::{scgi, uwsgi};
use crate::upstream::CALL;
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_core::vars::{Template, VarError};
use forebay_http::field::Unsafe;
use forebay_http::h1::client;
use forebay_http::h1::request::Status;
use forebay_server::request::Request;
use protocol::Protocol;
use rustix::io::Errno;

/// Request as it is to be written for an upstream.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) uri: &'a [u8],
    pub(crate) body: &'a Outgoing,
    /// Key of memcached.
    pub key: Option<&'a Template>,
    /// `true` if the response is to be stored.
    pub stored: bool,
    /// `true` if the method is GET even if the client's is HEAD (nginx: proxy_cache_convert_head).
    pub as_get: bool,
}

/// Reason for which a request cannot be written.
pub enum Unwritten {
    /// A variable has no value, which has been logged.
    Variable,
    /// A value would be more than one line.
    Unsafe(Unsafe),
    /// The parameters of uwsgi are too long, so many bytes.
    TooBig(usize),
    /// The client gets this status.
    Status(u16),
}

impl From<VarError> for Unwritten {
    fn from(_: VarError) -> Unwritten {
        Unwritten::Variable
    }
}

impl From<Unsafe> for Unwritten {
    fn from(e: Unsafe) -> Unwritten {
        Unwritten::Unsafe(e)
    }
}

impl Unwritten {
    /// Logs the reason; returns the status to answer with.
    pub fn status(self, req: &mut Request) -> u16 {
        match self {
            Unwritten::Variable => {}
            Unwritten::Unsafe(refused) => {
                let name = String::from_utf8_lossy(&refused.name).into_owned();
                // Unlike nginx: that sends the value as it is, a second request in it included.
                let text = format!("\"{name}\" for the upstream has a line break or NUL in its value");
                req.log(Level::Error, &text);
            }
            Unwritten::TooBig(len) => {
                req.log(Level::Alert, &format!("uwsgi request is too big: {len}"));
            }
            Unwritten::Status(status) => return status,
        }
        500
    }
}

/// Appends a request up to its content. Returns whether it asks for another protocol.
pub fn write_request(req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<bool, Unwritten> {
    let Asked { settings: s, stored, .. } = *asked;
    match CALL.of(req).protocol {
        Protocol::Http | Protocol::Grpc => return http1::write_head(req, asked, out),
        Protocol::FastCgi => {
            let bare = matches!(asked.body, Outgoing::None);
            crate::modules::fastcgi::write_params(req, s, stored, bare, out)?;
        }
        Protocol::Uwsgi => uwsgi::write_params(req, s, stored, out)?.map_err(Unwritten::TooBig)?,
        Protocol::Scgi => scgi::write_params(req, s, stored, out)?,
        Protocol::Memcached => {
            if let Some(key) = asked.key {
                crate::modules::memcached::write_command(req, key, out).map_err(Unwritten::Status)?;
            }
        }
    }
    Ok(false)
}

/// Returns `true` if a written request asks for no content.
pub fn is_to_head(req: &Request, head: &[u8]) -> bool {
    use forebay_http::request::Method;
    match CALL.of(req).protocol.is_http() {
        true => head.starts_with(b"HEAD "),
        false => req.method == Method::Head,
    }
}

/// Result of parsing a head.
pub(crate) enum Came {
    Part,
    /// The head of an interim response.
    Interim,
    All,
}

/// Prepares for the head of a response.
pub fn begin(req: &mut Request) {
    match CALL.of(req).protocol {
        Protocol::Http | Protocol::Grpc | Protocol::Memcached => {
            req.modules.upstream.head.advance(usize::MAX);
        }
        Protocol::FastCgi => cgi::begin(req, Some(false)),
        Protocol::Uwsgi | Protocol::Scgi => cgi::begin(req, None),
    }
}

/// Parses the part of a head that has come. `limit`: longest head, bytes; `headless`: there may be none.
pub(crate) fn parse_head(req: &mut Request, limit: usize, headless: bool) -> Result<Came, Fault> {
    match CALL.of(req).protocol {
        Protocol::Http => http1::parse_head(req, limit, headless),
        Protocol::Memcached => memcached::parse_head(req, limit),
        Protocol::FastCgi | Protocol::Uwsgi | Protocol::Scgi | Protocol::Grpc => cgi::parse_head(req, limit),
    }
}

/// Reads bytes of a head that have come. The inner error is that of the connection.
pub fn read_head(req: &mut Request, conn: &Conn, limit: usize) -> Result<Result<usize, Errno>, Fault> {
    if !conn.readable() {
        // A read would return the same.
        return Ok(Err(Errno::AGAIN));
    }
    match CALL.of(req).protocol {
        Protocol::FastCgi => fastcgi::read_head(req, conn, limit),
        _ => Ok(read_into_head(req, conn)),
    }
}

/// Reads bytes of a head, and of the content behind it, into a buffer of the thread (see [`Request::lend_head`]).
pub(super) fn read_into_head(req: &mut Request, conn: &Conn) -> Result<usize, Errno> {
    req.borrow_head(READ);
    let buf = &mut req.modules.upstream.head.buf;
    let got = conn.read(buf, READ);
    if buf.is_empty() {
        req.thread.io.large.give(std::mem::take(buf));
    }
    got
}

/// Returns `true` if the connection of the response whose head has been read may be used again.
pub fn keeps_alive(req: &Request) -> bool {
    CALL.of(req).reuse != Reuse::No
        && match CALL.of(req).protocol {
            Protocol::Http | Protocol::Grpc => req.modules.upstream.head.keep_alive,
            Protocol::FastCgi => crate::modules::fastcgi::SETTINGS.of(&req.own_location().settings).keep_conn,
            Protocol::Uwsgi | Protocol::Scgi => false,
            Protocol::Memcached => true,
        }
}

/// Parses a head that has come, which an HTTP/2 or HTTP/3 connection has made into the text of HTTP/1.
fn parse_came_head(req: &mut Request, limit: usize) -> Result<Came, Fault> {
    let head = &mut req.modules.upstream.head;
    match client::parse(head, limit) {
        Ok(Status::Complete) if head.is_interim() => Ok(Came::Interim),
        Ok(Status::Complete) => {
            took_head(req);
            Ok(Came::All)
        }
        Ok(Status::Partial) => Err(bad_head(req, b"upstream sent invalid header")),
        Err(bad) => {
            let mut message = Vec::new();
            bad.message(head, &mut message);
            Err(bad_head(req, &message))
        }
    }
}

/// Notes that a head is complete.
fn took_head(req: &mut Request) {
    let status = req.modules.upstream.head.status;
    if let Some(a) = req.modules.upstream.attempts.last_mut() {
        a.header = Some(req.thread.io.poller.since(a.started));
        a.status = status;
    }
}
