//! Responses for error statuses: `error_page` or the built-in page (nginx: error_page).

use crate::modules::core::{ErrorPage, Settings};
use crate::phases::spend_uri_change;
use crate::request::Request;
use crate::response::origin::Origin;
use crate::way;
use forebay_conf::error::Level;
use forebay_http::request::{Method, Version};

/// Next step of a request after [`special`].
#[derive(Debug, PartialEq, Eq)]
pub enum NextStep {
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
pub fn special(req: &mut Request, status: u16) -> NextStep {
    // As in nginx, these statuses end the connection without a response.
    if matches!(status, 408 | 444 | 499) {
        // The client is gone, too slow, or must get no response (444).
        req.ending.close();
        req.ending.drop_connection();
        req.resp.status = status;
        return NextStep::Done;
    }
    if closes(status) {
        req.ending.close();
    }
    if status == 204 || status < 300 && !matches!(status, 0) {
        req.resp.status = status;
        return NextStep::Done;
    }
    // If an error page fails, its own status counts.
    req.errors.overwrite = None;
    let http = req.http();
    let Some(page) = page_for(req, &http.location(req).settings.core, status) else {
        built_in(req, status);
        return NextStep::Done;
    };
    way::error_page(req, status);
    req.errors.begin_page(status);
    send_to_page(req, status, page)
}

/// Returns the `error_page` for a status. An error inside an error page has none, unless `recursive_error_pages` is on.
fn page_for<'c>(req: &Request, core: &'c Settings, status: u16) -> Option<&'c ErrorPage> {
    // An error page that fails would otherwise lead to itself again.
    let applies = !req.errors.has_page() || core.recursive_error_pages;
    core.error_page.0.iter().find(|p| applies && p.status == status)
}

fn send_to_page(req: &mut Request, status: u16, page: &ErrorPage) -> NextStep {
    let status = page.overwrite.unwrap_or(status);
    // Status to send. 0 leaves it to the response of the target (`error_page 404 = /x`).
    req.errors.overwrite = (status != 0).then_some(status);
    let Ok(target) = page.target.value(req) else {
        built_in(req, 500);
        return NextStep::Done;
    };
    let next = match target.first() {
        Some(b'/') => redirect_inside(req, &target).map(|()| NextStep::Redirect),
        Some(b'@') => {
            if req.method == Method::Connect {
                // No tunnel was opened, and the page is content like any other.
                req.method = Method::Get;
            }
            named(req, &target).map(|()| NextStep::Named)
        }
        _ => {
            // The target is a URL: redirect with 302, unless the directive names another redirect status.
            let status = page.overwrite.filter(|s| matches!(s, 301..=303 | 307 | 308)).unwrap_or(302);
            req.resp.location = target;
            Err(status)
        }
    };
    next.unwrap_or_else(|status| {
        built_in(req, status);
        NextStep::Done
    })
}

/// Starts over with another path. Errors are the status to answer with.
fn redirect_inside(req: &mut Request, target: &[u8]) -> Result<(), u16> {
    spend_uri_change(req, "rewrite or internal redirection cycle while internally redirecting to")?;
    // As in nginx, the page is fetched by GET whatever the method was, but a client that has sent HEAD gets no content.
    if req.method != Method::Head {
        req.method = Method::Get;
    }
    req.uri.replace(target);
    req.uri.internal = true;
    forget_all_but_location(req);
    Ok(())
}

/// Continues in a named location.
///
/// # Errors
/// The status to answer with when there is none of that name.
pub fn named(req: &mut Request, name: &[u8]) -> Result<(), u16> {
    spend_uri_change(req, "rewrite or internal redirection cycle while redirect to named location")?;
    if req.uri.path.is_empty() {
        req.log(
            Level::Error,
            &format!("empty URI in redirect to named location \"{}\"", String::from_utf8_lossy(name)),
        );
        return Err(500);
    }
    let http = req.http();
    match http.server(req).named.get(name) {
        Some(id) => {
            req.uri.internal = true;
            req.location = *id;
            // A named location is not found by its path, so this check of the search for locations is made here.
            crate::phases::limit_except(req);
            forget_all_but_location(req);
            req.update_connection_settings(&http.location(req).settings.core);
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

/// Removes the challenges of a 401 or 407, which otherwise stay whatever page is sent in its place.
pub fn forget_challenges(req: &mut Request) {
    req.resp.fields.remove(b"WWW-Authenticate");
    req.resp.fields.remove(b"Proxy-Authenticate");
}

/// Builds the built-in page. As in nginx, the challenges of a 401 stay where another status takes its place.
pub fn built_in(req: &mut Request, status: u16) {
    req.errors.overwrite = None;
    forget_all_but_location(req);
    req.resp.fields.remove(b"Accept-Ranges");
    req.resp.status = status;
    req.resp.origin = Origin::ErrorPage;
    if status == 304 || status < 300 {
        return;
    }
    let title = title(status);
    // Over HTTP/2, nginx ends the connection for a head that is too large. Here only its stream is answered, also without content.
    let is_bare = status == 494 && req.head.version == Version::Http2;
    if title.is_empty() || is_bare {
        req.resp.content_length = Some(0);
        return;
    }
    let http = req.http();
    let core = &http.location(req).settings.core;
    req.begin_text();
    let mut page = std::mem::take(&mut req.resp.text);
    if core.msie_refresh && matches!(status, 301 | 302) && !req.resp.location.is_empty() && is_msie(req) {
        refresh(req, &mut page);
    } else {
        write_page(req, core, status, title, &mut page);
    }
    req.resp.content_type.extend_from_slice(b"text/html");
    req.resp.text = page;
    req.resp.body_from_text();
}

fn write_page(req: &mut Request, core: &Settings, status: u16, title: &str, page: &mut Vec<u8>) {
    let explanation = EXPLANATIONS.iter().find(|(s, _)| *s == status).map(|(_, text)| *text);
    page.extend_from_slice(b"<html>\r\n<head><title>");
    match explanation {
        Some(text) => push_all(page, &["400 ", text]),
        None => push_all(page, &[title]),
    }
    push_all(page, &["</title></head>\r\n<body>\r\n<center><h1>", title, "</h1></center>\r\n"]);
    if let Some(text) = explanation {
        push_all(page, &["<center>", text, "</center>\r\n"]);
    }
    page.extend_from_slice(b"<hr><center>");
    let mut tail = req.take_buf();
    crate::response::fields::push_server_token(req, core, &mut tail);
    page.extend_from_slice(&tail);
    req.give_buf(tail);
    page.extend_from_slice(b"</center>\r\n</body>\r\n</html>\r\n");
    if core.msie_padding && status >= 400 && is_padded_for(req) {
        for _ in 0..6 {
            page.extend_from_slice(b"<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n");
        }
    }
}

fn push_all(page: &mut Vec<u8>, pieces: &[&str]) {
    for piece in pieces {
        page.extend_from_slice(piece.as_bytes());
    }
}

/// Builds a page that leads to the target of a redirect (nginx: msie_refresh).
fn refresh(req: &mut Request, page: &mut Vec<u8>) {
    let location = std::mem::take(&mut req.resp.location);
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
    // As in nginx, the refresh page itself has status 200.
    req.resp.status = 200;
}

fn agent(req: &Request) -> &[u8] {
    req.head.get(forebay_http::field::Name::UserAgent).unwrap_or_default()
}

/// Returns `true` for a browser that replaces short error pages by its own.
fn is_padded_for(req: &Request) -> bool {
    is_msie(req) || memchr::memmem::find(agent(req), b"Chrome/").is_some()
}

/// Returns `true` if `User-Agent` names Internet Explorer, with a version of at least three characters.
fn is_msie(req: &Request) -> bool {
    let agent = agent(req);
    memchr::memmem::find(agent, b"MSIE ").is_some_and(|at| agent.len() > at + 7)
        && memchr::memmem::find(agent, b"Opera").is_none()
}

/// Returns the heading of the built-in page; empty for statuses without one.
pub fn title(status: u16) -> &'static str {
    // As in nginx, the client does not see internal statuses such as 494; the log does.
    let shown = if matches!(status, 494..=497) { 400 } else { status };
    TITLES.iter().find(|(s, _)| *s == shown).map_or("", |(_, title)| title)
}

/// Headings of the built-in pages.
const TITLES: &[(u16, &str)] = &[
    (301, "301 Moved Permanently"),
    (302, "302 Found"),
    (303, "303 See Other"),
    (307, "307 Temporary Redirect"),
    (308, "308 Permanent Redirect"),
    (400, "400 Bad Request"),
    (401, "401 Authorization Required"),
    (402, "402 Payment Required"),
    (403, "403 Forbidden"),
    (404, "404 Not Found"),
    (405, "405 Not Allowed"),
    (406, "406 Not Acceptable"),
    (407, "407 Proxy Authentication Required"),
    (408, "408 Request Time-out"),
    (409, "409 Conflict"),
    (410, "410 Gone"),
    (411, "411 Length Required"),
    (412, "412 Precondition Failed"),
    (413, "413 Request Entity Too Large"),
    (414, "414 Request-URI Too Large"),
    (415, "415 Unsupported Media Type"),
    (416, "416 Requested Range Not Satisfiable"),
    (421, "421 Misdirected Request"),
    (429, "429 Too Many Requests"),
    (500, "500 Internal Server Error"),
    (501, "501 Not Implemented"),
    (502, "502 Bad Gateway"),
    (503, "503 Service Temporarily Unavailable"),
    (504, "504 Gateway Time-out"),
    (505, "505 HTTP Version Not Supported"),
    (507, "507 Insufficient Storage"),
];

/// Texts of the built-in pages for statuses whose title differs from their heading: the title after `400`, which is also a line below the
/// heading.
const EXPLANATIONS: &[(u16, &str)] = &[
    (494, "Request Header Or Cookie Too Large"),
    (495, "The SSL certificate error"),
    (496, "No required SSL certificate was sent"),
    (497, "The plain HTTP request was sent to HTTPS port"),
];

/// Returns `true` if the location has an `error_page` for a status. Inside an error page it need not apply, and the built-in page takes
/// its place.
pub fn has_page(req: &Request, status: u16) -> bool {
    let http = req.http();
    http.location(req).settings.core.error_page.0.iter().any(|page| page.status == status)
}
