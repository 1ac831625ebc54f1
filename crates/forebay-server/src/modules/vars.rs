//! Variables of the request, the connection and the response (nginx: ngx_http_core_module, embedded
//! variables). Hot path: every line of the access log evaluates several.

use crate::request::Request;
use crate::request::tally::Arrival;
use crate::response::head;
use crate::variables::{HasValue, Row};
use forebay_core::vars::RowSource;
use forebay_core::vars::VarError;
use forebay_http::field::Name;
use forebay_http::h1::response;
use forebay_http::request::{Framing, Method, Version};
use forebay_net::addr::Peer;
use std::time::Duration;

macro_rules! rows {
    ($($name:literal => $get:expr,)*) => { &[$(Row { name: $name, get: RowSource::Get($get), settable: false },)*] };
}

/// Variables that can be set or whose name has a variable part.
pub const VARIABLES: &[Row] = &[
    Row { name: "args", get: RowSource::Get(args), settable: true },
    Row { name: "limit_rate", get: RowSource::Get(limit_rate), settable: true },
    Row { name: "arg_*", get: RowSource::Prefix(arg), settable: false },
    Row { name: "http_*", get: RowSource::Prefix(http), settable: false },
    Row { name: "sent_http_*", get: RowSource::Prefix(sent_http), settable: false },
    Row { name: "sent_trailer_*", get: RowSource::Prefix(sent_trailer), settable: false },
    Row { name: "cookie_*", get: RowSource::Prefix(cookie), settable: false },
];

/// All other variables.
pub const PLAIN: &[Row] = rows! {
    "binary_remote_addr" => |r, o| { push_binary(r.peer, o); Ok(true) },
    "body_bytes_sent" => |r, o| number(o, r.tally.sent_body()),
    "bytes_sent" => |r, o| number(o, r.tally.sent),
    "connection" => |r, o| number(o, r.conn.client.number),
    "connection_requests" => |r, o| number(o, u64::from(r.conn.requests)),
    "connection_time" => |r, o| seconds(o, r.conn.client.accepted.elapsed()),
    "connections_active" => |r, o| number(o, crate::counting::totals(r)[0]),
    "connections_reading" => |r, o| number(o, crate::counting::totals(r)[4]),
    "connections_writing" => |r, o| number(o, crate::counting::totals(r)[5]),
    "connections_waiting" => |r, o| number(o, crate::counting::totals(r)[6]),
    "content_length" => content_length,
    "content_type" => |r, o| field(r, Name::ContentType, o),
    "document_root" => |r, o| crate::modules::static_file::document_root(r, o).map(|()| true),
    "document_uri" => uri,
    "host" => host,
    "hostname" => |_, o| text(o, rustix::system::uname().nodename().to_bytes()),
    "http2" => |r, o| text(o, match r.head.version {
        Version::Http2 if r.is_encrypted() => b"h2",
        Version::Http2 => b"h2c",
        _ => b"",
    }),
    "http3" => |r, o| text(o, match r.head.version {
        Version::Http3 => b"h3",
        // HTTP/0.9 has streams only over QUIC.
        Version::Http09 if r.conn.wire.is_multiplexed() => b"hq",
        _ => b"",
    }),
    "https" => |r, o| text(o, if r.is_encrypted() { b"on" } else { b"" }),
    "is_args" => |r, o| text(o, if r.uri.args.is_empty() { b"" } else { b"?" }),
    "is_request_port" => |r, o| text(o, if r.head.port.is_some() { b":" } else { b"" }),
    "msec" => |r, o| { let d = r.thread.clock.msec(); seconds(o, d) },
    "nginx_version" => |_, o| text(o, forebay_core::NGINX_VERSION.as_bytes()),
    "pid" => |r, o| number(o, u64::from(r.thread.pid)),
    "pipe" => |r, o| text(o, if r.tally.arrival == Arrival::Pipelined { b"p" } else { b"." }),
    "query_string" => args,
    "realpath_root" => realpath_root,
    "remote_addr" => |r, o| text(o, &r.remote.clone()),
    "remote_port" => |r, o| port(r.peer, o),
    "remote_user" => remote_user,
    "request" => |r, o| { let l = r.head.request_line; o.extend_from_slice(l.of(&r.head.buf)); Ok(!l.is_empty()) },
    "request_body" => |r, o| { let body = r.body.text(); o.extend_from_slice(body); Ok(!body.is_empty()) },
    "request_body_file" => |r, o| Ok(r.body.stored.path.as_ref().map(|p| o.extend_from_slice(std::os::unix::ffi::OsStrExt::as_bytes(p.as_os_str()))).is_some()),
    "request_completion" => |r, o| text(o, if r.tally.complete { b"OK" } else { b"" }),
    "request_filename" => |r, o| crate::modules::static_file::map_path(r, o).map(|()| true),
    "request_id" => request_id,
    "request_length" => |r, o| number(o, r.tally.received),
    "request_method" => |r, o| if r.client_turned_to_get() { text(o, b"GET") } else { let m = r.head.method_text; o.extend_from_slice(m.of(&r.head.buf)); Ok(!m.is_empty()) },
    "request_port" => |r, o| Ok(r.head.port.map(|p| response::number(o, u64::from(p))).is_some()),
    "request_time" => |r, o| { let d = r.tally.started.elapsed(); seconds(o, d) },
    "request_uri" => |r, o| request_line_part(o, r.head.target.of(&r.head.buf)),
    "scheme" => |r, o| { let s = r.scheme(); text(o, s) },
    "sent_http_alt_svc" => |r, o| {
        let http = r.http();
        match super::alt_svc::of_response(r, &http.server(r).alt_svc) {
            Some(field) => text(o, &field.value),
            None => sent_http(r, b"alt_svc", o),
        }
    },
    "sent_http_cache_control" => |r, o| joined(r, b"Cache-Control", o),
    "sent_http_connection" => |r, o| text(o, match r.ending.keeps_alive() {
        _ if r.resp.status == 101 => b"upgrade",
        true => b"keep-alive",
        false => b"close",
    }),
    "sent_http_content_length" => |r, o| Ok(sent_length(r).map(|n| response::number(o, n)).is_some()),
    "sent_http_content_type" => sent_content_type,
    "sent_http_keep_alive" => sent_keep_alive,
    "sent_http_last_modified" => |r, o| match r.resp.validators.last_modified {
        Some(t) => text(o, &forebay_http::date::imf(t)),
        None => sent_http(r, b"last_modified", o),
    },
    "sent_http_link" => |r, o| joined(r, b"Link", o),
    "sent_http_location" => |r, o| {
        if r.resp.location.is_empty() {
            return sent_http(r, b"location", o);
        }
        text(o, &r.resp.location.clone())
    },
    "sent_http_transfer_encoding" => |r, o| {
        let chunked = sent_length(r).is_none() && !matches!(r.resp.status, 204 | 304);
        if chunked { text(o, b"chunked") } else { Ok(false) }
    },
    "server_addr" => |r, o| match r.local_address() {
        Some(a) => { o.extend_from_slice(a.ip().to_string().as_bytes()); Ok(true) }
        None => { o.extend_from_slice(r.conn.client.listener_text(&r.conf).as_bytes()); Ok(true) }
    },
    "server_name" => |r, o| { let h = r.http(); text(o, &h.server(r).name) },
    "server_port" => |r, o| Ok(r.local_address().map(|a| response::number(o, u64::from(a.port()))).is_some()),
    "server_protocol" => |r, o| request_line_part(o, r.head.protocol.of(&r.head.buf)),
    "status" => status,
    "tcpinfo_rtt" => |_, _| Ok(false),
    "tcpinfo_rttvar" => |_, _| Ok(false),
    "tcpinfo_snd_cwnd" => |_, _| Ok(false),
    "tcpinfo_rcv_space" => |_, _| Ok(false),
    "time_iso8601_ms" => |r, o| text(o, &r.thread.clock.iso8601_ms()),
    "time_iso8601" => |r, o| text(o, &r.thread.clock.iso8601()),
    "time_local" => |r, o| text(o, &r.thread.clock.log_time()),
    "uri" => uri,
    "http_host" => |r, o| field(r, Name::Host, o),
};

fn text(out: &mut Vec<u8>, t: &[u8]) -> HasValue {
    out.extend_from_slice(t);
    Ok(true)
}

/// Appends a part of the request line. The part may be missing if the line is malformed.
fn request_line_part(out: &mut Vec<u8>, t: &[u8]) -> HasValue {
    out.extend_from_slice(t);
    Ok(!t.is_empty())
}

fn number(out: &mut Vec<u8>, n: u64) -> HasValue {
    response::number(out, n);
    Ok(true)
}

/// Appends seconds with three decimals.
pub fn seconds(out: &mut Vec<u8>, d: Duration) -> HasValue {
    response::number(out, d.as_secs());
    let ms = d.subsec_millis();
    out.extend_from_slice(&[
        b'.',
        b'0' + (ms / 100) as u8,
        b'0' + (ms / 10 % 10) as u8,
        b'0' + (ms % 10) as u8,
    ]);
    Ok(true)
}

fn field(r: &mut Request, name: Name, out: &mut Vec<u8>) -> HasValue {
    Ok(push_field(r, name, out))
}

/// Appends the values of all lines with this name. Returns `false` if there are none.
pub fn push_field(r: &Request, name: Name, out: &mut Vec<u8>) -> bool {
    if !r.head.first.has(name) {
        return false;
    }
    let lines = r.head.fields.iter().filter(|f| f.id == name);
    join(lines.map(|f| f.value.of(&r.head.buf)), b", ", out)
}

fn uri(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    out.extend_from_slice(&r.uri.path);
    Ok(true)
}

fn args(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    out.extend_from_slice(&r.uri.args);
    Ok(!r.uri.args.is_empty() || r.head.has_args)
}

fn limit_rate(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    number(out, r.resp.limit_rate)
}

/// Appends the value of `Content-Length`, or the length of the body if it came without one and is complete.
fn content_length(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    let without_length = matches!(r.body.framing, Framing::Chunked | Framing::Stream);
    if without_length && r.body.done() {
        return number(out, r.body.len);
    }
    field(r, Name::ContentLength, out)
}

fn host(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    if r.head.host.is_empty() {
        // As in nginx, a request without a host has the name of its server.
        let http = r.http();
        out.extend_from_slice(&http.server(r).name);
    } else {
        out.extend_from_slice(&r.head.host);
    }
    Ok(true)
}

/// Appends the port of an address, or an empty value if it is unknown.
pub fn port(p: Peer, out: &mut Vec<u8>) -> HasValue {
    match p {
        Peer::Inet(a) if a.port() > 0 => number(out, u64::from(a.port())),
        Peer::Inet(_) | Peer::Unix => Ok(true),
    }
}

fn push_binary(p: Peer, out: &mut Vec<u8>) {
    match p.ip() {
        Some(std::net::IpAddr::V4(a)) => out.extend_from_slice(&a.octets()),
        Some(std::net::IpAddr::V6(a)) => out.extend_from_slice(&a.octets()),
        // nginx has this text as the address of all clients over unix sockets.
        None => out.extend_from_slice(b"unix:"),
    }
}

fn status(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    let status = r.logged_status();
    out.extend_from_slice(&response::three_digits(status));
    Ok(true)
}

fn remote_user(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    Ok(push_remote_user(r, out))
}

/// Appends the user name of Basic authentication. Returns `false` if there is none.
pub fn push_remote_user(r: &Request, out: &mut Vec<u8>) -> bool {
    let user =
        crate::request::credentials::credentials(&r.head).map(|(user, _)| user).filter(|u| !u.is_empty());
    user.map(|u| out.extend_from_slice(&u)).is_some()
}

fn realpath_root(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut root = Vec::new();
    crate::modules::static_file::document_root(r, &mut root)?;
    match std::fs::canonicalize(std::ffi::OsStr::from_bytes(&root)) {
        Ok(p) => {
            out.extend_from_slice(&p.into_os_string().into_vec());
            Ok(true)
        }
        Err(e) => {
            let (root, why) = (String::from_utf8_lossy(&root), forebay_sys::errno::errno(&e));
            Err(VarError(format!("realpath() \"{root}\" failed ({why})")))
        }
    }
}

/// Appends `$request_id`.
///
/// # Errors
/// None: the type is that of all variables.
pub fn request_id(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    // The value has to stay the same for the whole request, also in its subrequests.
    let id = r.modules.request_id.get_or_insert_with(|| {
        let mut raw = [0u8; 16];
        let _ = rustix::rand::getrandom(&mut raw, rustix::rand::GetRandomFlags::empty());
        let mut hex = [0u8; 32];
        for (i, b) in raw.iter().enumerate() {
            hex[2 * i] = b"0123456789abcdef"[usize::from(b >> 4)];
            hex[2 * i + 1] = b"0123456789abcdef"[usize::from(b & 15)];
        }
        hex
    });
    out.extend_from_slice(id.as_slice());
    Ok(true)
}

fn sent_length(r: &Request) -> Option<u64> {
    head::length(r, &r.http().location(r).settings.core)
}

fn sent_content_type(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    let t = &r.resp;
    if t.content_type.is_empty() || !t.has_type(r.head.version.is_multiplexed()) {
        return Ok(false);
    }
    out.extend_from_slice(&t.content_type);
    if !t.charset.is_empty() {
        out.extend_from_slice(b"; charset=");
        out.extend_from_slice(&t.charset);
    }
    Ok(true)
}

fn sent_keep_alive(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    let http = r.http();
    match http.location(r).settings.core.keepalive_timeout.header {
        Some(n) if r.ending.keeps_alive() && n > 0 => {
            out.extend_from_slice(b"timeout=");
            number(out, n)
        }
        _ => Ok(false),
    }
}

/// Returns `true` if the variable `$http_NAME` means this field: `_` matches `-`, and case is ignored.
pub fn same_name(variable: &[u8], name: &[u8]) -> bool {
    variable.len() == name.len()
        && variable.iter().zip(name).all(|(v, n)| match n {
            b'-' => *v == b'_',
            n => n.to_ascii_lowercase() == *v,
        })
}

/// Appends the values of lines with one name, with a separator between them. Returns `false` if there are none.
pub fn join<'a>(values: impl Iterator<Item = &'a [u8]>, separator: &[u8], out: &mut Vec<u8>) -> bool {
    let mut any = false;
    for v in values {
        if any {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(v);
        any = true;
    }
    any
}

fn http(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    // Lines of `Cookie` are joined by a semicolon, because its list is separated by semicolons (RFC 9113, section 8.2.3).
    let separator: &[u8] = if name == b"cookie" { b"; " } else { b", " };
    let h = &r.head;
    let values = h.fields.iter().filter(|f| same_name(name, f.name.of(&h.buf))).map(|f| f.value.of(&h.buf));
    Ok(join(values, separator, out))
}

fn sent_http(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    if name == b"etag" && !r.resp.validators.etag.is_empty() {
        out.extend_from_slice(&r.resp.validators.etag);
        return Ok(true);
    }
    let values = r.resp.fields.iter().filter(|(n, _)| same_name(name, n)).map(|(_, v)| v);
    Ok(join(values, b", ", out))
}

fn sent_trailer(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    let values = r.resp.trailers.iter().filter(|(n, _)| same_name(name, n)).map(|(_, v)| v);
    Ok(join(values, b", ", out))
}

fn joined(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    Ok(join(r.resp.fields.all(name), b", ", out))
}

fn arg(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    for pair in r.uri.args.split(|b| *b == b'&') {
        let at = memchr::memchr(b'=', pair);
        if let Some(at) = at
            && pair[..at].eq_ignore_ascii_case(name)
        {
            out.extend_from_slice(&pair[at + 1..]);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Appends the value of a cookie of the request. Returns `false` if the client has sent none of this name.
pub fn cookie(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    let h = &r.head;
    for f in h.fields.iter().filter(|f| f.id == Name::Cookie) {
        for pair in f.value.of(&h.buf).split(|b| *b == b';') {
            // As in nginx, spaces around the name and before the value are skipped, and spaces after the value belong to it.
            let mut halves = pair.splitn(2, |b| *b == b'=');
            if let (Some(key), Some(value)) = (halves.next(), halves.next())
                && key.trim_ascii().eq_ignore_ascii_case(name)
            {
                out.extend_from_slice(value.trim_ascii_start());
                return Ok(true);
            }
        }
    }
    Ok(false)
}

impl Request {
    /// Sets `$args` or `$limit_rate`, which change a property of the request. Returns `false` for all other variables.
    pub fn set_special(&mut self, id: forebay_core::vars::VarId, value: &[u8]) -> bool {
        let http = self.http();
        let Some(v) = http.vars.get(id.0 as usize) else { return false };
        match &*v.name {
            b"args" => {
                self.uri.args.clear();
                self.uri.args.extend_from_slice(value);
                // An upstream then gets the path with these arguments, and not the original request line.
                self.uri.rewritten = true;
            }
            b"limit_rate" => self.resp.limit_rate = forebay_conf::units::size(value).unwrap_or(0),
            _ => return false,
        }
        true
    }

    /// Returns the status of the response. The status of an error stays when its page is sent (nginx: error_page), although the page has
    /// a status of its own.
    pub fn status(&self) -> u16 {
        self.errors.overwrite.unwrap_or(self.resp.status)
    }

    /// Returns the status for the access log.
    pub fn logged_status(&self) -> u16 {
        // Log the status that was sent: 494 to 497 exist for `error_page` only.
        response::wire_status(match self.status() {
            0 if self.errors.rejected != 0 => self.errors.rejected,
            s => s,
        })
    }

    /// Makes a response from text (nginx: return CODE TEXT). The path decides on its content type.
    pub fn send_text(&mut self, status: u16, text: &[u8]) {
        self.resp.status = status;
        crate::modules::static_file::content_type(self);
        self.begin_text();
        self.resp.text.clear();
        self.resp.text.extend_from_slice(text);
        self.resp.body_from_text();
        if self.method == Method::Head {
            self.resp.head_only = true;
        }
    }
}

/// Appends a date like `Sat, 21-Nov-26 07:22:38 GMT`. After 2037 the year has four digits, because old clients read 38
/// as 1938.
pub fn cookie_date(at: i64, out: &mut Vec<u8>) {
    // Splits a date such as `Sat, 21 Nov 2026 07:22:38 GMT` into its parts.
    let date = forebay_http::date::imf(at);
    let Some(([day @ .., b' '], rest)) = date.split_at_checked(8) else { return };
    let (Some(month), Some(year), Some(time)) = (rest.get(..3), rest.get(4..8), rest.get(8..)) else {
        return;
    };
    let year = if year > b"2037".as_slice() { year } else { year.get(2..).unwrap_or(year) };
    for part in [day, b"-", month, b"-", year, time] {
        out.extend_from_slice(part);
    }
}
