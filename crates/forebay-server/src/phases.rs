//! The phases of a request, one after the other (nginx: the phase engine). Only this file awaits. Hot path.

use crate::error_page::{self, Next};
use crate::location;
use crate::metrics::{api, prometheus};
use crate::modules::core::Satisfy;
use crate::modules::{
    Content, Verdict, auth_request, autoindex, dav, empty_gif, gzip_static, mirror, proxy, random_index,
    rewrite, static_file, stub_status, try_files, tunnel,
};
use crate::request::Request;
use forebay_conf::error::Level;
use forebay_http::request::{Framing, Method};
use std::task::Poll;

/// Where a walk through the phases begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    ServerRewrite,
    FindLocation,
    Rewrite,
}

/// How a walk ended.
pub enum Outcome {
    /// The response is made.
    Done,
    /// To be answered with this status.
    Status(u16),
    /// Starts over with the path in `Request::uri`.
    Redirect,
    /// Goes on in the named location that `Request::location` has been set to.
    Named,
}

/// Internal redirects and rewrites that a request may take (nginx: 10).
pub const MAX_URI_CHANGES: u8 = 11;

/// Runs the phases until the response is made.
pub async fn run(req: &mut Request) {
    post_read(req);
    let outcome = walk(req, Start::ServerRewrite).await;
    follow_up(req, outcome).await;
}

/// Answers a status that was found outside of the phases (a head that was refused, a header filter), with its error
/// page.
pub async fn refuse(req: &mut Request, status: u16) {
    follow_up(req, Outcome::Status(status)).await;
}

/// Runs the phases for a subrequest. A name of a location in `target` is where it begins.
pub async fn subrequest(req: &mut Request, target: &[u8]) {
    let status = req.resp.status;
    let outcome = match target.first() {
        Some(b'@') => match error_page::named(req, target) {
            Ok(()) => {
                // What the request came to that this one is about.
                req.resp.status = status;
                walk(req, Start::Rewrite).await
            }
            Err(status) => Outcome::Status(status),
        },
        _ => walk(req, Start::ServerRewrite).await,
    };
    follow_up(req, outcome).await;
}

/// As [`subrequest`], for one whose body is wanted. `bare`: an error is not answered but given back.
pub async fn included(req: &mut Request, bare: bool) -> Option<u16> {
    let mut outcome = walk(req, Start::ServerRewrite).await;
    loop {
        let start = match outcome {
            Outcome::Redirect => Start::ServerRewrite,
            Outcome::Named => Start::Rewrite,
            Outcome::Status(status) if bare && status >= 300 => return Some(status),
            other => {
                follow_up(req, other).await;
                return None;
            }
        };
        outcome = walk(req, start).await;
    }
}

/// Runs further phases as long as an outcome asks for it: after redirects, and for pages of errors.
async fn follow_up(req: &mut Request, first: Outcome) {
    let mut outcome = first;
    loop {
        let start = match outcome {
            Outcome::Done => return,
            Outcome::Redirect => Start::ServerRewrite,
            Outcome::Named => Start::Rewrite,
            Outcome::Status(status) => match error_page::special(req, status) {
                Next::Done => return,
                Next::Redirect => Start::ServerRewrite,
                Next::Named => Start::Rewrite,
            },
        };
        outcome = walk(req, start).await;
    }
}

async fn walk(req: &mut Request, start: Start) -> Outcome {
    // What `try_files` of another location has said.
    req.add_uri_to_alias = false;
    let http = req.http();
    if start == Start::ServerRewrite {
        req.location = http.server(req).root;
        let ops = &http.location(req).ops;
        if !ops.is_empty() {
            match rewrite::run(req, ops) {
                rewrite::Ran::Status(s) => return Outcome::Status(s),
                rewrite::Ran::Done => return Outcome::Done,
                rewrite::Ran::UriChanged | rewrite::Ran::Through => {}
            }
        }
    }
    let mut start = start;
    loop {
        if start != Start::Rewrite
            && let Some(out) = find_location(req)
        {
            return out;
        }
        let ops = &http.location(req).ops;
        // Where no location matches, the server's own directives have run already.
        if ops.is_empty() || req.location == http.server(req).root {
            break;
        }
        match rewrite::run(req, ops) {
            rewrite::Ran::Status(s) => return Outcome::Status(s),
            rewrite::Ran::Done => return Outcome::Done,
            rewrite::Ran::Through => break,
            rewrite::Ran::UriChanged => {}
        }
        if !spend_uri_change(req, "rewrite or internal redirection cycle while processing") {
            return Outcome::Status(500);
        }
        start = Start::FindLocation;
    }
    if let Some(out) = preaccess(req).await {
        return out;
    }
    if let Some(out) = access(req).await {
        return out;
    }
    if let Some(t) = &http.location(req).try_files
        && let Some(out) = try_files::run(req, t).await
    {
        return out;
    }
    if http.location(req).plan.mirror
        && let Some(out) = Box::pin(mirror::run(req)).await
    {
        return out;
    }
    content(req).await
}

/// Takes one of the changes of the path that a request may make.
pub fn spend_uri_change(req: &mut Request, what: &str) -> bool {
    req.uri_changes = req.uri_changes.saturating_sub(1);
    if req.uri_changes == 0 {
        let uri = String::from_utf8_lossy(&req.uri).into_owned();
        req.log(Level::Error, &format!("{what} \"{uri}\""));
        return false;
    }
    true
}

fn find_location(req: &mut Request) -> Option<Outcome> {
    let http = req.http();
    if location::choose(&http, req).is_err() {
        return Some(Outcome::Status(500));
    }
    if let Some(out) = add_slash(req) {
        return Some(out);
    }
    let l = http.location(req);
    if l.internal && !req.internal {
        return Some(Outcome::Status(404));
    }
    if l.limit_except.is_some() {
        limit_except(req);
    }
    let settings = &http.location(req).settings.core;
    if let Framing::Length(n) = req.head.framing {
        let max = settings.client_max_body_size.0;
        if max != 0 && n > max && !req.body_checked() {
            req.log(Level::Error, &format!("client intended to send too large body: {n} bytes"));
            return Some(Outcome::Status(413));
        }
    }
    req.update_connection_settings();
    None
}

/// Goes to the level for methods that `limit_except` of the location does not except.
pub fn limit_except(req: &mut Request) {
    let http = req.http();
    if let Some((methods, level)) = &http.location(req).limit_except {
        let method = req.method_text();
        let excepted = methods.iter().any(|m| m == method || (method == b"HEAD" && m == b"GET"));
        if !excepted {
            req.location = *level;
        }
    }
}

/// Once for a request, before the first rewrite. The hooks there are only look at the head.
fn post_read(req: &mut Request) {
    let http = req.http();
    if let Some(l) = http.locations.get(http.server(req).root) {
        for hook in &l.plan.post_read {
            let _ = hook(req);
        }
    }
}

/// A path that lacks only the final slash of a location taken by an upstream is redirected to it.
fn add_slash(req: &mut Request) -> Option<Outcome> {
    let http = req.http();
    if !http.has_auto_redirect || http.location(req).kind.is_exact() {
        return None;
    }
    let id = location::with_slash(&http, req)?;
    if !http.locations.get(id).is_some_and(|l| l.auto_redirect) {
        return None;
    }
    let mut target = Vec::new();
    forebay_http::uri::escape(&req.uri, forebay_http::uri::Escape::Uri, &mut target);
    target.push(b'/');
    if !req.args.is_empty() {
        target.push(b'?');
        target.extend_from_slice(&req.args);
    }
    req.resp.location = target;
    Some(Outcome::Status(301))
}

async fn preaccess(req: &mut Request) -> Option<Outcome> {
    let http = req.http();
    for hook in &http.location(req).plan.preaccess {
        let verdict = hook(req);
        match await_verdict(req, verdict).await {
            Verdict::Declined | Verdict::Allowed => {}
            v => return Some(outcome(v)),
        }
    }
    None
}

async fn access(req: &mut Request) -> Option<Outcome> {
    if req.is_subrequest() {
        return None;
    }
    let http = req.http();
    let l = http.location(req);
    let any = l.settings.core.satisfy == Satisfy::Any;
    let mut refused = None;
    let mut hooks = l.plan.access.iter();
    let mut asks = l.plan.auth_request;
    loop {
        let verdict = match hooks.next() {
            Some(hook) => {
                let verdict = hook(req);
                await_verdict(req, verdict).await
            }
            None if std::mem::take(&mut asks) => Box::pin(auth_request::check(req)).await,
            None => break,
        };
        match verdict {
            Verdict::Declined => {}
            Verdict::Allowed if any => {
                // What an earlier hook asked for (authentication) is not asked for after all.
                req.resp.fields.remove(b"WWW-Authenticate");
                req.resp.fields.remove(b"Proxy-Authenticate");
                return None;
            }
            Verdict::Allowed => {}
            Verdict::Status(s @ (401 | 403 | 407)) if any => {
                refused =
                    Some(if refused == Some(401) || refused == Some(407) { refused.unwrap_or(s) } else { s })
            }
            Verdict::Status(s) => return Some(delayed(req, s).await),
            v => return Some(outcome(v)),
        }
    }
    let status = refused?;
    if status == 403 {
        req.log(Level::Error, "access forbidden by rule");
    }
    Some(delayed(req, status).await)
}

/// `auth_delay` slows down whoever guesses passwords.
async fn delayed(req: &mut Request, status: u16) -> Outcome {
    let http = req.http();
    let delay = http.location(req).settings.core.auth_delay.0;
    if matches!(status, 401 | 407) && !delay.is_zero() {
        req.log(Level::Info, "delaying unauthorized request");
        let thread = req.thread.clone();
        thread.io.poller.sleep(delay).await;
    }
    Outcome::Status(status)
}

/// Waits. `false`: the client has left meanwhile.
async fn pause(req: &Request, wait: std::time::Duration) -> bool {
    let thread = &req.thread;
    let mut watch = req.conn.wire.watch();
    let end = thread.io.poller.now() + wait;
    std::future::poll_fn(|cx| {
        if watch.poll_gone(&thread.io.poller, cx).is_ready() {
            return Poll::Ready(false);
        }
        thread.io.poller.poll_deadline(end).map(|()| true)
    })
    .await
}

/// Waits as long as a verdict asks for it.
async fn await_verdict(req: &mut Request, v: Verdict) -> Verdict {
    let mut v = v;
    loop {
        v = match v {
            Verdict::Delay(d, then) => {
                if !pause(req, d).await {
                    req.log(Level::Info, "client prematurely closed connection");
                    return Verdict::Status(499);
                }
                *then
            }
            Verdict::Offload(o) => match tokio::task::spawn_blocking(o.work).await {
                Ok(result) => (o.then)(req, result),
                // It panicked, or the process ends.
                Err(_) => Verdict::Status(500),
            },
            v => return v,
        }
    }
}

fn outcome(v: Verdict) -> Outcome {
    match v {
        Verdict::Status(s) => Outcome::Status(s),
        Verdict::Redirect => Outcome::Redirect,
        Verdict::Done | Verdict::Declined | Verdict::Allowed => Outcome::Done,
        Verdict::Delay(_, then) => outcome(*then),
        // Settled before; nothing may come through unchecked.
        Verdict::Offload(_) => Outcome::Status(500),
    }
}

/// CONTENT, in nginx's order: random_index, index, autoindex, gzip_static, static_file, unless a
/// handler took the location.
async fn content(req: &mut Request) -> Outcome {
    let http = req.http();
    let l = http.location(req);
    if req.head.method == Method::Connect && !matches!(l.content, Some(Content::Tunnel(_))) {
        return Outcome::Status(405);
    }
    match &l.content {
        Some(Content::StubStatus) => return outcome(stub_status::handle(req)),
        Some(Content::EmptyGif) => return outcome(empty_gif::handle(req)),
        Some(Content::Tunnel(pass)) => return Box::pin(tunnel::run(req, pass)).await,
        Some(Content::Prometheus) => return outcome(prometheus::handle(req)),
        Some(Content::Api) => return outcome(api::handle(req)),
        Some(Content::Dashboard) => return outcome(api::dashboard(req)),
        Some(Content::Proxy(pass)) => return proxy::run(req, pass).await,
        None => {}
    }
    if l.settings.dav.methods.has(req.method) && !req.is_subrequest() {
        return Box::pin(dav::run(req)).await;
    }
    if !matches!(req.method, Method::Get | Method::Head | Method::Post) {
        return Outcome::Status(405);
    }
    if req.uri.last() == Some(&b'/') {
        if l.settings.random_index.enabled
            && let Some(out) = random_index::run(req).await
        {
            return out;
        }
        if let Some(out) = static_file::index(req).await {
            return out;
        }
        if l.settings.autoindex.enabled
            && let Some(out) = autoindex::run(req).await
        {
            return out;
        }
        let path = static_file::path_text(req);
        req.log(Level::Error, &format!("directory index of \"{path}\" is forbidden"));
        return Outcome::Status(403);
    }
    if let Some(out) = gzip_static::run(req).await {
        return out;
    }
    static_file::run(req).await
}
