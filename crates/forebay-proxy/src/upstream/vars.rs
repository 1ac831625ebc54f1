//! `$upstream_*` and `$proxy_*` (nginx: ngx_http_upstream_module, ngx_http_proxy_module).

use forebay_core::upstream::push_address;
use forebay_core::vars::RowSource;
use forebay_http::h1::response;
use forebay_server::modules::vars::{join, same_name, seconds};
use forebay_server::request::Request;
use forebay_server::request::upstream::Attempt;
use forebay_server::variables::{HasValue, Row};
use std::time::Duration;

macro_rules! rows {
    ($($name:literal => $get:expr,)*) => { &[
        $(Row { name: $name, get: RowSource::Get($get), settable: false },)*
        // As in nginx these two can be set.
        Row { name: "proxy_host", get: RowSource::Get(proxy_host), settable: true },
        Row { name: "proxy_port", get: RowSource::Get(proxy_port), settable: true },
        Row { name: "upstream_http_*", get: RowSource::Prefix(field), settable: false },
        Row { name: "upstream_cookie_*", get: RowSource::Prefix(cookie), settable: false },
        Row { name: "upstream_trailer_*", get: RowSource::Prefix(trailer), settable: false },
    ] };
}

fn proxy_host(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    out.extend_from_slice(&r.modules.upstream.host);
    Ok(!r.modules.upstream.host.is_empty())
}

fn proxy_port(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    out.extend_from_slice(&r.modules.upstream.port);
    Ok(!r.modules.upstream.port.is_empty())
}

/// The rows.
pub const VARIABLES: &[Row] = rows! {
    "proxy_add_x_forwarded_for" => add_forwarded,
    "proxy_internal_body_length" => |_, _| Ok(false),
    "proxy_internal_chunked" => |_, _| Ok(false),
    "upstream_addr" => |r, o| list(r, o, |a, o| o.extend_from_slice(&a.name)),
    "upstream_last_addr" => |r, o| Ok(r.modules.upstream.attempts.last().is_some_and(|a| push_address(&a.name, o))),
    "upstream_status" => |r, o| list(r, o, |a, o| match a.status {
        0 => o.push(b'-'),
        s => o.extend_from_slice(&response::three_digits(s)),
    }),
    "upstream_connect_time" => |r, o| list(r, o, |a, o| time(a.connect, o)),
    "upstream_header_time" => |r, o| list(r, o, |a, o| time(a.header, o)),
    "upstream_response_time" => |r, o| list(r, o, |a, o| time(a.response, o)),
    "upstream_response_length" => length,
    "upstream_bytes_sent" => |r, o| list(r, o, |a, o| response::number(o, a.sent)),
    "upstream_bytes_received" => |r, o| list(r, o, |a, o| response::number(o, a.received)),
};

/// Appends one value for each server, with `, ` between servers. After the servers of a location that an internal
/// redirect left, ` : ` follows.
fn list(r: &mut Request, out: &mut Vec<u8>, value: fn(&Attempt, &mut Vec<u8>)) -> HasValue {
    let u = &r.modules.upstream;
    let attempts = u.attempts.get(..u.own_attempts.unwrap_or(usize::MAX)).unwrap_or(&u.attempts);
    for (i, a) in attempts.iter().enumerate() {
        if i > 0 {
            out.extend_from_slice(if a.redirected { b" : " } else { b", " });
        }
        value(a, out);
    }
    Ok(!attempts.is_empty())
}

/// Appends `$upstream_response_length`. Content that came with the head counts once the head is on its way, as in nginx.
fn length(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    // A response of HTTP/0.9 has no head, so its content is counted as well.
    let at_head =
        r.resp.origin.is_proxied() && r.tally.sent_head == 0 && r.tally.sent == 0 && !r.is_subrequest();
    if at_head && let Some(a) = r.modules.upstream.attempts.last_mut() {
        let length = std::mem::take(&mut a.length);
        let got = list(r, out, |a, o| response::number(o, a.length));
        if let Some(a) = r.modules.upstream.attempts.last_mut() {
            a.length = length;
        }
        return got;
    }
    list(r, out, |a, o| response::number(o, a.length))
}

fn time(d: Option<Duration>, out: &mut Vec<u8>) {
    match d {
        Some(d) => drop(seconds(out, d)),
        None => out.push(b'-'),
    }
}

fn add_forwarded(r: &mut Request, out: &mut Vec<u8>) -> HasValue {
    let h = &r.head;
    if join(h.all(b"x-forwarded-for"), b", ", out) {
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(&r.remote);
    Ok(true)
}

fn field(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    let h = &r.modules.upstream.head;
    let values = h.fields.iter().filter(|f| same_name(name, f.name.of(&h.buf))).map(|f| f.value.of(&h.buf));
    Ok(join(values, b", ", out))
}

fn trailer(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    let values = r.modules.upstream.trailers.iter().filter(|(n, _)| same_name(name, n)).map(|(_, v)| v);
    Ok(join(values, b", ", out))
}

fn cookie(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    let h = &r.modules.upstream.head;
    // As in nginx, the case of a cookie's name does not count, since names of variables are in lower case.
    let lines = h.fields.iter().filter(|f| f.id == forebay_http::field::Name::SetCookie);
    for value in lines.map(|f| f.value.of(&h.buf)) {
        if let Some(at) = memchr::memchr(b'=', value)
            && spaces_off(&value[..at]).eq_ignore_ascii_case(name)
        {
            let rest = &value[at + 1..];
            let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
            out.extend_from_slice(spaces_off(&rest[..end]));
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the spaces around a text; tabs stay.
fn spaces_off(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = text {
        text = rest;
    }
    text
}
