//! Responses for error statuses: `error_page` or the built-in page (nginx: error_page).

use crate::phases::spend_uri_change;
use crate::request::Request;
use forebay_conf::error::Level;
use forebay_http::request::Method;

/// Next step of a request after [`special`].
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Send the response, which is ready.
    Done,
    /// Start over with the path in `Request::uri`.
    Redirect,
    /// Go on in the named location.
    Named,
}

/// Returns `true` for statuses after which the connection is closed, because further input from the client cannot be
/// trusted or is not wanted.
fn closes(status: u16) -> bool {
    matches!(status, 400 | 413 | 414 | 494..=497 | 500 | 501 | 505)
}

/// Prepares the response for a status.
pub fn special(req: &mut Request, status: u16) -> Next {
    if matches!(status, 408 | 444 | 499) {
        // The client is gone, too slow, or must get no response (444).
        req.drop_connection = true;
        req.keep_alive = false;
        req.resp.status = status;
        return Next::Done;
    }
    if closes(status) {
        req.keep_alive = false;
    }
    if status == 204 || status < 300 && !matches!(status, 0) {
        req.resp.status = status;
        return Next::Done;
    }
    // If an error page fails, its own status counts.
    req.status_override = None;
    let http = req.http();
    let core = &http.location(req).settings.core;
    if req.error_status == 0 || core.recursive_error_pages {
        let page = core.error_page.0.iter().find(|p| p.status == status);
        if let Some(page) = page {
            if req.error_status == 0 {
                req.error_status = status;
            }
            return send_to_page(req, status, page);
        }
    }
    built_in(req, status);
    Next::Done
}

fn send_to_page(req: &mut Request, status: u16, page: &crate::modules::core::ErrorPage) -> Next {
    let status = page.overwrite.unwrap_or(status);
    // Status to send. 0 leaves it to the response of the target (`error_page 404 = /x`).
    req.status_override = (status != 0).then_some(status);
    let Ok(target) = page.target.value(req) else {
        built_in(req, 500);
        return Next::Done;
    };
    if target.first() == Some(&b'/') {
        if !spend_uri_change(req, "rewrite or internal redirection cycle while internally redirecting to") {
            built_in(req, 500);
            return Next::Done;
        }
        if req.method != Method::Head {
            req.method = Method::Get;
        }
        let mut split = target.splitn(2, |b| *b == b'?');
        req.uri = split.next().unwrap_or_default().to_vec();
        req.args = split.next().unwrap_or_default().to_vec();
        req.internal = true;
        req.rewritten = true;
        forget_all_but_location(req);
        return Next::Redirect;
    }
    if target.first() == Some(&b'@') {
        return match named(req, &target) {
            Ok(()) => Next::Named,
            Err(status) => {
                built_in(req, status);
                Next::Done
            }
        };
    }
    // The target is a URL: redirect with 302, unless the directive names another redirect status.
    let status = page.overwrite.filter(|s| matches!(s, 301..=303 | 307 | 308)).unwrap_or(302);
    req.status_override = None;
    req.resp.location = target;
    built_in(req, status);
    Next::Done
}

/// Continues in a named location.
///
/// # Errors
/// The status to answer with when there is none of that name.
pub fn named(req: &mut Request, name: &[u8]) -> Result<(), u16> {
    if !spend_uri_change(req, "rewrite or internal redirection cycle while redirect to named location") {
        return Err(500);
    }
    if req.uri.is_empty() {
        req.log(
            Level::Error,
            &format!("empty URI in redirect to named location \"{}\"", String::from_utf8_lossy(name)),
        );
        return Err(500);
    }
    let http = req.http();
    match http.server(req).named.get(name) {
        Some(id) => {
            req.internal = true;
            req.location = *id;
            crate::phases::limit_except(req);
            forget_all_but_location(req);
            req.update_connection_settings();
            Ok(())
        }
        None => {
            req.log(
                Level::Error,
                &format!("could not find named location \"{}\"", String::from_utf8_lossy(name)),
            );
            Err(500)
        }
    }
}

/// Clears the response, except for the `Location` of a redirect.
fn forget_all_but_location(req: &mut Request) {
    let location = std::mem::take(&mut req.resp.location);
    req.forget_response();
    req.resp.location = location;
}

/// Builds the built-in page.
pub fn built_in(req: &mut Request, status: u16) {
    req.status_override = None;
    let location = std::mem::take(&mut req.resp.location);
    req.forget_response();
    req.resp.location = location;
    req.resp.fields.remove(b"Accept-Ranges");
    if status != 401 {
        req.resp.fields.remove(b"WWW-Authenticate");
    }
    if status != 407 {
        req.resp.fields.remove(b"Proxy-Authenticate");
    }
    req.resp.status = status;
    req.resp.error_page = true;
    if status == 304 || status == 204 || status < 300 {
        return;
    }
    // As in nginx, the client does not see internal statuses such as 494; the log does.
    let title = title(status);
    if title.is_empty() {
        req.resp.content_length = Some(0);
        return;
    }
    let http = req.http();
    let core = &http.location(req).settings.core;
    if core.msie_refresh && matches!(status, 301 | 302) && !req.resp.location.is_empty() && is_msie(req) {
        refresh(req);
        return;
    }
    let mut tail = req.take_buf();
    crate::response::fields::push_server_token(req, core, &mut tail);
    let mut page = std::mem::take(&mut req.resp.text);
    for piece in [
        b"<html>\r\n<head><title>".as_slice(),
        match status {
            494 => b"400 Request Header Or Cookie Too Large",
            495 => b"400 The SSL certificate error",
            496 => b"400 No required SSL certificate was sent",
            497 => b"400 The plain HTTP request was sent to HTTPS port",
            _ => title.as_bytes(),
        },
        b"</title></head>\r\n<body>\r\n<center><h1>",
        title.as_bytes(),
        b"</h1></center>\r\n",
    ] {
        page.extend_from_slice(piece);
    }
    page.extend_from_slice(match status {
        494 => b"<center>Request Header Or Cookie Too Large</center>\r\n".as_slice(),
        495 => b"<center>The SSL certificate error</center>\r\n",
        496 => b"<center>No required SSL certificate was sent</center>\r\n",
        497 => b"<center>The plain HTTP request was sent to HTTPS port</center>\r\n",
        _ => b"",
    });
    page.extend_from_slice(b"<hr><center>");
    page.extend_from_slice(&tail);
    req.give_buf(tail);
    page.extend_from_slice(b"</center>\r\n</body>\r\n</html>\r\n");
    if core.msie_padding
        && status >= 400
        && (is_msie(req) || memchr::memmem::find(agent(req), b"Chrome/").is_some())
    {
        for _ in 0..6 {
            page.extend_from_slice(b"<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n");
        }
    }
    req.resp.content_type.extend_from_slice(b"text/html");
    req.resp.text = page;
    req.resp.body_from_text();
}

/// Builds a page that leads to the target of a redirect (nginx: msie_refresh).
fn refresh(req: &mut Request) {
    let location = std::mem::take(&mut req.resp.location);
    let mut page = std::mem::take(&mut req.resp.text);
    page.extend_from_slice(b"<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=");
    for b in location {
        match b {
            b'"' | b'\'' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'~' | 0..=b' ' | 0x7f.. => {
                page.extend_from_slice(format!("%{b:02X}").as_bytes());
            }
            _ => page.push(b),
        }
    }
    page.extend_from_slice(b"\"></head><body></body></html>\r\n");
    req.resp.status = 200;
    req.resp.content_type.extend_from_slice(b"text/html");
    req.resp.text = page;
    req.resp.body_from_text();
}

fn agent(req: &Request) -> &[u8] {
    req.head.get(forebay_http::field::Name::UserAgent).unwrap_or_default()
}

/// Returns `true` if `User-Agent` is that of Internet Explorer, with a version of at least three characters.
fn is_msie(req: &Request) -> bool {
    let agent = agent(req);
    memchr::memmem::find(agent, b"MSIE ").is_some_and(|at| agent.len() > at + 7)
        && memchr::memmem::find(agent, b"Opera").is_none()
}

/// Returns the heading of the built-in page; empty for statuses without one.
pub fn title(status: u16) -> &'static str {
    match status {
        301 => "301 Moved Permanently",
        302 => "302 Found",
        303 => "303 See Other",
        307 => "307 Temporary Redirect",
        308 => "308 Permanent Redirect",
        400 | 494..=497 => "400 Bad Request",
        401 => "401 Authorization Required",
        402 => "402 Payment Required",
        403 => "403 Forbidden",
        404 => "404 Not Found",
        405 => "405 Not Allowed",
        406 => "406 Not Acceptable",
        407 => "407 Proxy Authentication Required",
        408 => "408 Request Time-out",
        409 => "409 Conflict",
        410 => "410 Gone",
        411 => "411 Length Required",
        412 => "412 Precondition Failed",
        413 => "413 Request Entity Too Large",
        414 => "414 Request-URI Too Large",
        415 => "415 Unsupported Media Type",
        416 => "416 Requested Range Not Satisfiable",
        421 => "421 Misdirected Request",
        429 => "429 Too Many Requests",
        500 => "500 Internal Server Error",
        501 => "501 Not Implemented",
        502 => "502 Bad Gateway",
        503 => "503 Service Temporarily Unavailable",
        504 => "504 Gateway Time-out",
        505 => "505 HTTP Version Not Supported",
        507 => "507 Insufficient Storage",
        _ => "",
    }
}

/// Returns `true` if `error_page` has a page for a status.
pub fn has_page(req: &Request, status: u16) -> bool {
    let http = req.http();
    let core = &http.location(req).settings.core;
    (req.error_status == 0 || core.recursive_error_pages)
        && core.error_page.0.iter().any(|p| p.status == status)
}
