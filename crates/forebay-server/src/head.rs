//! The response head as it goes onto an HTTP/1 connection (nginx: the header filter). Hot path.

use crate::config::http::Http;
use crate::modules::core::{ServerTokens, Settings};
use crate::request::{Peer, Request};
use forebay_http::h1::response;
use forebay_http::request::{Method, Version};

/// Name and version in `Server` and on built-in pages.
pub const PRODUCT: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

/// What `Server` says here.
pub fn server_token(req: &mut Request, core: &Settings) -> Vec<u8> {
    match &core.server_tokens {
        ServerTokens::On | ServerTokens::Build => PRODUCT.as_bytes().to_vec(),
        ServerTokens::Off => b"forebay".to_vec(),
        ServerTokens::Value(t) => match t.value(req).unwrap_or_default().as_slice() {
            b"on" | b"build" => PRODUCT.as_bytes().to_vec(),
            b"" | b"off" => b"forebay".to_vec(),
            other => other.to_vec(),
        },
    }
}

fn push(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// How the body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body is sent.
    None,
    /// By `Content-Length` or by the end of the connection.
    Plain,
    /// In chunks.
    Chunked,
}

/// Appends the head of the response and says how the body goes.
pub fn write(req: &mut Request, out: &mut Vec<u8>) -> BodyFraming {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let status = req.resp.status;
    if req.head.version == Version::Http09 {
        req.keep_alive = false;
        return if req.resp.head_only { BodyFraming::None } else { BodyFraming::Plain };
    }
    let head_only = req.method == Method::Head || req.head.method == Method::Head || matches!(status, 204 | 304) || status < 200;
    req.resp.head_only |= head_only;
    if req.resp.reason.is_empty() {
        response::status_line(out, status);
    } else {
        push(out, b"HTTP/1.1 ", &req.resp.reason.clone());
    }
    if req.resp.fields.get(b"Server").is_none() {
        match &core.server_tokens {
            ServerTokens::Off => out.extend_from_slice(b"Server: forebay\r\n"),
            ServerTokens::On | ServerTokens::Build => push(out, b"Server: ", PRODUCT.as_bytes()),
            ServerTokens::Value(_) => {
                let token = server_token(req, core);
                push(out, b"Server: ", &token);
            }
        }
    }
    if req.resp.fields.get(b"Date").is_none() {
        push(out, b"Date: ", &req.thread.clock.http_date());
    }
    let r = &req.resp;
    if !r.content_type.is_empty() && status != 204 {
        out.extend_from_slice(b"Content-Type: ");
        out.extend_from_slice(&r.content_type);
        if !r.charset.is_empty() {
            out.extend_from_slice(b"; charset=");
            out.extend_from_slice(&r.charset);
        }
        out.extend_from_slice(b"\r\n");
    }
    let mut framing = if r.head_only { BodyFraming::None } else { BodyFraming::Plain };
    let mut chunked = false;
    match r.content_length {
        Some(n) if status != 204 => {
            out.extend_from_slice(b"Content-Length: ");
            response::number(out, n);
            out.extend_from_slice(b"\r\n");
        }
        None if status != 304 && status != 204 => {
            if req.head.version >= Version::Http11 && core.chunked_transfer_encoding {
                if framing == BodyFraming::Plain {
                    chunked = true;
                    framing = BodyFraming::Chunked;
                }
            } else if !r.head_only {
                req.keep_alive = false;
            }
        }
        _ => {}
    }
    if let Some(t) = r.last_modified.filter(|_| matches!(status, 200 | 206 | 304)) {
        push(out, b"Last-Modified: ", &forebay_http::date::imf(t));
    }
    let made_absolute = r.location.first() == Some(&b'/') && core.absolute_redirect;
    if made_absolute {
        location(req, &http, core, out);
    }
    if chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if status == 101 {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    } else if req.keep_alive {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
        if let Some(n) = core.keepalive_timeout.header.filter(|n| *n > 0) {
            out.extend_from_slice(b"Keep-Alive: timeout=");
            response::number(out, n);
            out.extend_from_slice(b"\r\n");
        }
    } else {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    let r = &req.resp;
    if r.gzip_vary {
        out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    if !made_absolute && !r.location.is_empty() {
        push(out, b"Location: ", &r.location);
    }
    if !r.etag.is_empty() {
        push(out, b"ETag: ", &r.etag);
    }
    for (name, value) in r.fields.iter() {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        push(out, b"", value);
    }
    out.extend_from_slice(b"\r\n");
    framing
}

/// `Location`: made absolute where the configuration asks for it (nginx: absolute_redirect).
fn location(req: &Request, _http: &Http, core: &Settings, out: &mut Vec<u8>) {
    out.extend_from_slice(b"Location: ");
    let value = &req.resp.location;
    if value.first() == Some(&b'/') && core.absolute_redirect {
        out.extend_from_slice(b"http://");
        let http = req.http();
        if core.server_name_in_redirect {
            let name = &http.server(req).name;
            if name.is_empty() { local_address(req, out) } else { out.extend_from_slice(name) }
        } else if !req.head.host.is_empty() {
            out.extend_from_slice(&req.head.host);
        } else {
            local_address(req, out);
        }
        if core.port_in_redirect
            && let Some(port) = req.local_address().map(|a| a.port()).filter(|p| *p != 80)
        {
            out.push(b':');
            response::number(out, u64::from(port));
        }
    }
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn local_address(req: &Request, out: &mut Vec<u8>) {
    match req.local_address() {
        Some(a) if a.is_ipv6() => out.extend_from_slice(format!("[{}]", a.ip()).as_bytes()),
        Some(a) => out.extend_from_slice(a.ip().to_string().as_bytes()),
        None => {
            if req.conn.peer == Peer::Unix {
                out.extend_from_slice(b"localhost");
            }
        }
    }
}
