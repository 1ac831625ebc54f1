//! HTTP/1 to upstreams (nginx: ngx_http_proxy_module). For HTTP/2 the head of a request is made into a field block later. Hot
//! path.

use super::{Asked, Came, Unwritten, protocol::Protocol, took_head};
use crate::modules::grpc;
use crate::modules::proxy::{HttpVersion, SetHeader, Settings};
use crate::modules::proxy_cache;
use crate::upstream::CALL;
use crate::upstream::Reuse;
use crate::upstream::exchange::Outgoing;
use crate::upstream::fault::{Fault, READING, bad_head};
use forebay_conf::error::Level;
use forebay_http::field::{self, Classes, Name, Unsafe};
use forebay_http::h1::client;
use forebay_http::h1::request::Status;
use forebay_http::h1::response::{copied_field, field, number};
use forebay_http::request::Framing;
use forebay_server::request::Request;

/// Parses the part of a head that has come. With `headless`, what is no head is the content of a response of HTTP/0.9, as in nginx.
pub(super) fn parse_head(req: &mut Request, limit: usize, headless: bool) -> Result<Came, Fault> {
    let head = &mut req.modules.upstream.head;
    match client::parse(head, limit) {
        Ok(Status::Complete) if head.is_interim() => Ok(Came::Interim),
        Ok(Status::Complete) => {
            took_head(req);
            Ok(Came::All)
        }
        Ok(Status::Partial) => Ok(Came::Part),
        Err(bad) => {
            let mut message = Vec::new();
            bad.message(head, &mut message);
            if bad.not_http && headless {
                client::take_as_content(head);
                req.log(Level::Error, &format!("{} {READING}", String::from_utf8_lossy(&message)));
                took_head(req);
                return Ok(Came::All);
            }
            Err(bad_head(req, &message))
        }
    }
}

/// Appends the head of a request, in one form whatever the client wrote. Returns whether it asks for another protocol. A
/// connection that it asks to close is not kept if `proxy_pass` implies the group.
pub(super) fn write_head(req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<bool, Unwritten> {
    request_line(req, asked, out)?;
    let upgrade = set_fields(req, asked, out)?;
    validators(req, asked, out)?;
    body_fields(req, asked, out)?;
    client_fields(req, asked, out);
    hop_fields(req, asked, upgrade, out)?;
    out.extend_from_slice(b"\r\n");
    Ok(upgrade)
}

/// Appends `TE` and `Connection` if they are needed and not set.
fn hop_fields(req: &Request, asked: &Asked<'_>, upgrade: bool, out: &mut Vec<u8>) -> Result<(), Unsafe> {
    let set = &asked.settings.set_header;
    let grpc = CALL.of(req).protocol == Protocol::Grpc;
    if grpc && grpc::wants_trailers(req) && !set.has(Name::Te, b"") {
        field(out, b"TE", b"trailers")?;
    }
    // The side that closes first keeps the port in TIME_WAIT. If that were this side, its ports to the server would run short.
    let last = CALL.of(req).reuse == Reuse::No;
    let v11 = asked.settings.http_version == HttpVersion::V11;
    if last && v11 && !upgrade && !set.has(Name::Connection, b"") {
        field(out, b"Connection", b"close")?;
    }
    Ok(())
}

fn request_line(req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<(), Unwritten> {
    match &asked.settings.method.0 {
        Some(t) => {
            t.eval(req, out)?;
            out.make_ascii_uppercase();
        }
        None if asked.as_get => out.extend_from_slice(b"GET"),
        None => out.extend_from_slice(req.method_text()),
    }
    out.push(b' ');
    out.extend_from_slice(asked.uri);
    // Both may have variables in them, with any value.
    field::check(b"request line", out)?;
    out.extend_from_slice(match asked.settings.http_version {
        HttpVersion::V10 => b" HTTP/1.0\r\n",
        HttpVersion::V11 | HttpVersion::V2 | HttpVersion::V3 => b" HTTP/1.1\r\n",
    });
    Ok(())
}

/// Appends the fields of `proxy_set_header`, and always `Host`. Returns whether one of them is `Upgrade`.
fn set_fields(req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<bool, Unwritten> {
    let mut value = req.take_buf();
    let mut host = false;
    let mut upgrade = false;
    for SetHeader { name, id, value: template } in asked.settings.set_header.0.iter() {
        value.clear();
        template.eval(req, &mut value)?;
        if *id == Name::Host {
            host = true;
            // HTTP/1.1 demands one (RFC 9112, section 3.2).
            if value.is_empty() && asked.settings.http_version != HttpVersion::V10 {
                value.extend_from_slice(&req.modules.upstream.host);
            }
        } else if !std::mem::replace(&mut host, true) {
            field(out, b"Host", &req.modules.upstream.host)?;
        }
        // The configuration must not set the framing of the body: a request with two of them is an attack.
        if value.is_empty() || id.is(Classes::FRAMING) {
            continue;
        }
        upgrade |= *id == Name::Upgrade;
        if *id == Name::Connection && CALL.of(req).reuse == Reuse::Implied && asks_to_close(&value) {
            CALL.of_mut(req).reuse = Reuse::No;
        }
        field(out, name, &value)?;
    }
    req.give_buf(value);
    if !host {
        field(out, b"Host", &req.modules.upstream.host)?;
    }
    Ok(upgrade)
}

/// Returns `true` if `close` is among the options of a `Connection` field.
fn asks_to_close(value: &[u8]) -> bool {
    value.split(|b| *b == b',').any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// Appends the conditions for a stored response, by which the server validates it (RFC 9111, section 4.3.1).
fn validators(req: &Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<(), Unsafe> {
    if !asked.stored {
        return Ok(());
    }
    let set = &asked.settings.set_header;
    let stale = proxy_cache::STATE.of(req);
    if let Some(t) = stale.last_modified.filter(|_| !set.has(Name::IfModifiedSince, b"")) {
        field(out, b"If-Modified-Since", &forebay_http::date::imf(t))?;
    }
    if !stale.etag.is_empty() && !set.has(Name::IfNoneMatch, b"") {
        field(out, b"If-None-Match", &stale.etag)?;
    }
    Ok(())
}

/// Appends the framing of the body.
fn body_fields(req: &Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<(), Unsafe> {
    match asked.body {
        Outgoing::None => {}
        // A body that is passed on as it came keeps its framing, even if all of it has come already.
        Outgoing::Stored if keeps_framing(req, asked.settings) => {}
        Outgoing::Bytes(b) => length(out, b.len() as u64),
        Outgoing::Stored => length(out, req.body.stored.len()),
        Outgoing::Streamed(true) => field(out, b"Transfer-Encoding", b"chunked")?,
        Outgoing::Streamed(false) => {
            if let Framing::Length(n) = req.head.framing {
                length(out, n);
            }
        }
    }
    Ok(())
}

/// Returns `true` if a body goes from one HTTP/2 stream to another as it comes: without a length, if it came so.
fn keeps_framing(req: &Request, s: &Settings) -> bool {
    req.head.framing == Framing::Stream && s.http_version == HttpVersion::V2 && !s.request_buffering
}

/// Appends the client's fields that are not set otherwise (nginx: proxy_pass_request_headers).
fn client_fields(req: &Request, asked: &Asked<'_>, out: &mut Vec<u8>) {
    let h = &req.head;
    for f in h.fields.iter().filter(|_| asked.settings.pass_request_headers) {
        let name = f.name.of(&h.buf);
        // A cache is to have the whole.
        let own = asked.stored && f.id.is(Classes::CONDITIONAL);
        if !f.id.is(Classes::REQUEST_HOP) && !own && !asked.settings.set_header.has(f.id, name) {
            copied_field(out, &h.buf, f);
        }
    }
}

fn length(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(b"Content-Length: ");
    number(out, n);
    out.extend_from_slice(b"\r\n");
}
