//! The phases of a request, one after the other (nginx: the phase engine). Modules take part by hooks, see [`crate::module`]. Hot path.

use crate::config::http::{Http, Location, ROOT};
use crate::connection::ClientGone;
use crate::error_page::{self, NextStep};
use crate::location;
use crate::module::levels::LocationSettings;
use crate::module::{Phase, Verdict};
use crate::modules::core::Satisfy;
use crate::modules::{rewrite, static_file};
use crate::request::Request;
use crate::way;
use forebay_conf::error::Level;
use forebay_http::request::Method;
use std::task::Poll;

/// First phase of a walk through the phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    ServerRewrite,
    Rewrite,
}

/// Result of a walk.
pub enum Outcome {
    /// The response is made.
    Done,
    /// The request is answered with this status.
    Status(u16),
    /// The phases start over with the path in `Request::uri`.
    Redirect,
    /// The phases go on in the named location that `Request::location` has been set to.
    Named,
}

/// Runs the phases until the response is made.
pub async fn run(req: &mut Request) {
    #[cfg(debug_assertions)]
    forebay_core::essential::panic_on_purpose(&String::from_utf8_lossy(&req.uri.path));
    let mut start = match post_read(req).await {
        Some(outcome) => next_start(req, outcome),
        // nginx refuses CONNECT with the same message and status before any phase runs.
        None if req.method == Method::Connect && !has_tunnel(req) => {
            req.log(Level::Info, "client sent CONNECT method");
            next_start(req, Outcome::Status(405))
        }
        None => Some(Start::ServerRewrite),
    };
    while let Some(from) = start {
        let outcome = walk(req, from).await;
        start = next_start(req, outcome);
    }
}

/// Returns `true` if the server of a request has `tunnel_pass`. On other servers nothing may answer CONNECT, not even `return`, since a
/// status of success would mean a tunnel (RFC 9110, section 9.3.6).
fn has_tunnel(req: &Request) -> bool {
    let http = req.http();
    http.server(req).locations.iter().any(takes_connect)
}

/// Returns `true` if a location answers CONNECT.
fn takes_connect(l: &Location) -> bool {
    l.content.as_ref().is_some_and(|content| content.needs().connect)
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
                // A named location answers for another request, and keeps its status.
                req.resp.status = status;
                walk(req, Start::Rewrite).await
            }
            Err(status) => Outcome::Status(status),
        },
        _ => walk(req, Start::ServerRewrite).await,
    };
    follow_up(req, outcome).await;
}

/// Runs the phases for a subrequest that begins in the location of `Request::location`.
pub async fn in_location(req: &mut Request) {
    let outcome = walk(req, Start::Rewrite).await;
    follow_up(req, outcome).await;
}

/// Runs the phases for a subrequest whose body is wanted. With `bare`, an error is returned instead of answered.
pub async fn included(req: &mut Request, bare: bool) -> Option<u16> {
    let mut outcome = walk(req, Start::ServerRewrite).await;
    loop {
        let start = match outcome {
            Outcome::Redirect => Start::ServerRewrite,
            // A named location is chosen by its name, so no location is looked up for the path.
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

/// Starts over as long as an outcome asks for it: after redirects, and for pages of errors.
async fn follow_up(req: &mut Request, first: Outcome) {
    let mut outcome = first;
    while let Some(start) = next_start(req, outcome) {
        outcome = walk(req, start).await;
    }
}

/// Returns where to start over after an outcome, if at all.
fn next_start(req: &mut Request, outcome: Outcome) -> Option<Start> {
    match outcome {
        Outcome::Done => None,
        Outcome::Redirect => Some(Start::ServerRewrite),
        Outcome::Named => Some(Start::Rewrite),
        Outcome::Status(status) => match error_page::special(req, status) {
            NextStep::Done => None,
            NextStep::Redirect => Some(Start::ServerRewrite),
            NextStep::Named => Some(Start::Rewrite),
        },
    }
}

/// Runs the phases from a start to the end.
async fn walk(req: &mut Request, start: Start) -> Outcome {
    let conf = req.http();
    let http: &Http = &conf;
    // The `try_files` of an earlier location may have set it.
    req.uri.add_uri_to_alias = false;
    if start == Start::ServerRewrite
        && let Some(out) = server_rewrite(http, req)
    {
        return out;
    }
    if let Some(out) = choose_location(http, req, start) {
        return out;
    }
    // Few locations have hooks here, and all others skip four phases with one test.
    if http.location(req).plan.has_hooks_before_content()
        && let Some(out) = before_content(http, req).await
    {
        return out;
    }
    content(http, req).await
}

/// Runs the hooks of a location between its rewrite directives and its content.
async fn before_content(http: &Http, req: &mut Request) -> Option<Outcome> {
    if let Some(out) = run_hooks(http, req, Phase::Rewrite).await {
        return Some(out);
    }
    if let Some(out) = run_hooks(http, req, Phase::PreAccess).await {
        return Some(out);
    }
    if let Some(out) = access(http, req).await {
        return Some(out);
    }
    run_hooks(http, req, Phase::PreContent).await
}

/// Runs the hooks of a phase until one of them does not let the request pass.
async fn run_hooks(http: &Http, req: &mut Request, phase: Phase) -> Option<Outcome> {
    for hook in http.location(req).plan.hooks(phase) {
        let verdict = hook(req).decide().await;
        way::hook(req, phase, *hook, &verdict);
        match verdict {
            Verdict::Declined | Verdict::Allowed => {}
            verdict => return Some(verdict.outcome()),
        }
    }
    None
}

/// Runs SERVER_REWRITE: the rewrite directives of the server.
#[inline]
fn server_rewrite(http: &Http, req: &mut Request) -> Option<Outcome> {
    req.location = ROOT;
    let ops = &http.location(req).ops;
    if ops.is_empty() {
        return None;
    }
    match rewrite::run(req, ops) {
        rewrite::Ran::Status(s) => Some(Outcome::Status(s)),
        rewrite::Ran::Done => Some(Outcome::Done),
        rewrite::Ran::Named => Some(Outcome::Named),
        rewrite::Ran::UriChanged | rewrite::Ran::Through => None,
    }
}

/// Runs FIND_CONFIG and REWRITE, again for each path that the rewrite directives of a location make.
#[inline]
fn choose_location(http: &Http, req: &mut Request, start: Start) -> Option<Outcome> {
    if start == Start::Rewrite {
        way::location(http, req);
    } else if let Some(out) = find_location(http, req) {
        return Some(out);
    }
    loop {
        let ops = &http.location(req).ops;
        // If no location matches, the request is at the level of the server, whose directives have run already.
        if ops.is_empty() || req.location == ROOT {
            return None;
        }
        match rewrite::run(req, ops) {
            rewrite::Ran::Status(s) => return Some(Outcome::Status(s)),
            rewrite::Ran::Done => return Some(Outcome::Done),
            rewrite::Ran::Named => return Some(Outcome::Named),
            rewrite::Ran::Through => return None,
            rewrite::Ran::UriChanged => {}
        }
        // nginx stops such a cycle after ten changes (NGX_HTTP_MAX_URI_CHANGES).
        if let Err(status) = spend_uri_change(req, "rewrite or internal redirection cycle while processing") {
            return Some(Outcome::Status(status));
        }
        if let Some(out) = find_location(http, req) {
            return Some(out);
        }
    }
}

/// Counts a change of the path.
///
/// # Errors
/// The status to answer with, since the request has used up its changes.
pub fn spend_uri_change(req: &mut Request, what: &str) -> Result<(), u16> {
    req.uri.changes_left = req.uri.changes_left.saturating_sub(1);
    if req.uri.changes_left == 0 {
        let uri = String::from_utf8_lossy(&req.uri.path).into_owned();
        req.log(Level::Error, &format!("{what} \"{uri}\""));
        return Err(500);
    }
    Ok(())
}

fn find_location(http: &Http, req: &mut Request) -> Option<Outcome> {
    if let Err(why) = location::choose(http, req) {
        req.log_var_error(&why);
        return Some(Outcome::Status(500));
    }
    way::location(http, req);
    // The redirect comes last, as in nginx: the limits of the location apply to it first.
    let lacks_slash = http.has_auto_redirect && choose_with_slash(http, req);
    let l = http.location(req);
    // nginx hides internal locations by 404, as if they did not exist.
    if l.internal && !req.uri.internal {
        return Some(Outcome::Status(404));
    }
    let mut core = &l.settings.core;
    if l.limit_except.is_some() {
        limit_except(req);
        core = &http.location(req).settings.core;
    }
    if let Err(status) = check_body_length(req) {
        return Some(Outcome::Status(status));
    }
    req.update_connection_settings(core);
    lacks_slash.then(|| add_slash(req))
}

/// Compares the length of the body with `client_max_body_size`, as far as it is known. A limit of 0 is none.
///
/// # Errors
/// The status to answer with, since the body is too large.
#[inline]
pub fn check_body_length(req: &mut Request) -> Result<(), u16> {
    let Some(n) = req.body.known_len(req.head.framing) else { return Ok(()) };
    let max = req.own_location().settings.core.client_max_body_size.0;
    if max == 0 || n <= max || req.body_checked() {
        return Ok(());
    }
    req.log(Level::Error, &format!("client intended to send too large body: {n} bytes"));
    Err(413)
}

/// Goes to the level of settings that `limit_except` has for all methods that it does not name.
pub fn limit_except(req: &mut Request) {
    let http = req.http();
    if let Some((methods, level)) = &http.location(req).limit_except {
        let method = req.method_text();
        // GET allows HEAD as well, as nginx documents for limit_except.
        let excepted = methods.iter().any(|m| m == method || (method == b"HEAD" && m == b"GET"));
        if !excepted {
            req.location = *level;
        }
    }
}

/// Runs the hooks that come once for a request: for all servers, then for its own.
async fn post_read(req: &mut Request) -> Option<Outcome> {
    let http = req.http();
    let own = http.server(req).root().map(|l| l.plan.hooks(Phase::PostRead)).unwrap_or_default();
    for hook in http.first_hooks.iter().chain(own) {
        let verdict = hook(req).decide().await;
        way::hook(req, Phase::PostRead, *hook, &verdict);
        match verdict {
            Verdict::Declined | Verdict::Allowed => {}
            verdict => return Some(verdict.outcome()),
        }
    }
    None
}

/// Chooses the location whose name is the path of the request plus a slash, if an upstream answers there. Returns `false` if there is no
/// such location.
fn choose_with_slash(http: &Http, req: &mut Request) -> bool {
    // An exact location matches this very path, so that no slash is missing.
    if http.location(req).kind.is_exact() {
        return false;
    }
    let found = location::with_slash(http, req);
    if let Some(id) = found {
        req.location = id;
    }
    found.is_some()
}

/// Redirects to the path of the request with a slash at its end.
fn add_slash(req: &mut Request) -> Outcome {
    let mut target = Vec::new();
    // The path is decoded, and `Location` needs it encoded.
    forebay_http::uri::escape(&req.uri.path, forebay_http::uri::Escape::Uri, &mut target);
    target.push(b'/');
    if !req.uri.args.is_empty() {
        target.push(b'?');
        target.extend_from_slice(&req.uri.args);
    }
    req.resp.location = target;
    Outcome::Status(301)
}

/// Runs ACCESS.
async fn access(http: &Http, req: &mut Request) -> Option<Outcome> {
    // nginx checks access for the main request only; its subrequests are the work of the server.
    if req.is_subrequest() {
        return None;
    }
    let l = http.location(req);
    let mut access = AccessPhase { any: l.settings.core.satisfy == Satisfy::Any, refused: None };
    for hook in l.plan.hooks(Phase::Access) {
        let verdict = hook(req).decide().await;
        way::hook(req, Phase::Access, *hook, &verdict);
        match access.judge(req, verdict) {
            Judged::GoOn => {}
            Judged::Allowed => return None,
            Judged::Ended(verdict) => return Some(ended(req, verdict).await),
        }
    }
    let status = access.refused?;
    // With `satisfy all`, the hook that refuses logs this itself.
    if status == 403 {
        req.log(Level::Error, "access forbidden by rule");
    }
    Some(delayed(req, status).await)
}

/// State of ACCESS between its hooks.
struct AccessPhase {
    /// One hook that allows is enough (nginx: satisfy).
    any: bool,
    /// Status to answer with if no hook allows.
    refused: Option<u16>,
}

/// Meaning of a verdict for ACCESS.
enum Judged {
    /// The next hook decides.
    GoOn,
    Allowed,
    Ended(Verdict),
}

impl AccessPhase {
    #[inline]
    fn judge(&mut self, req: &mut Request, verdict: Verdict) -> Judged {
        match verdict {
            Verdict::Declined => Judged::GoOn,
            // nginx ends the phase with the first hook that allows, if one is enough.
            Verdict::Allowed if self.any => {
                // An earlier hook may have asked for authentication, which is no longer needed.
                req.resp.fields.remove(b"WWW-Authenticate");
                req.resp.fields.remove(b"Proxy-Authenticate");
                Judged::Allowed
            }
            Verdict::Allowed => Judged::GoOn,
            Verdict::Status(s @ (401 | 403 | 407)) if self.any => {
                // A refusal that asks for authentication goes before 403, because the client can do something about it.
                self.refused = self.refused.filter(|r| matches!(r, 401 | 407)).or(Some(s));
                Judged::GoOn
            }
            v => Judged::Ended(v),
        }
    }
}

/// Ends ACCESS with a verdict.
async fn ended(req: &mut Request, verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Status(s) => delayed(req, s).await,
        verdict => verdict.outcome(),
    }
}

/// Delays a refusal, to slow down the guessing of passwords (nginx: auth_delay).
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

/// Waits for a time.
///
/// # Errors
/// [`ClientGone`] if the client leaves before its end.
pub async fn pause(req: &Request, wait: std::time::Duration) -> Result<(), ClientGone> {
    let thread = &req.thread;
    let mut watch = req.conn.wire.watch();
    let end = thread.io.poller.now() + wait;
    std::future::poll_fn(|cx| {
        if watch.poll_gone(&thread.io.poller, cx).is_ready() {
            return Poll::Ready(Err(ClientGone));
        }
        thread.io.poller.poll_deadline(end).map(Ok)
    })
    .await
}

/// Runs CONTENT: the handler that took the location, else its hooks, else files.
async fn content(http: &Http, req: &mut Request) -> Outcome {
    let l = http.location(req);
    // Content for other methods must not answer CONNECT with success, as the client would take the rest of the connection for its tunnel.
    if req.method == Method::Connect && !takes_connect(l) {
        return Outcome::Status(405);
    }
    if let Some(content) = &l.content {
        return content.handle(req).decide().await.outcome();
    }
    if !l.plan.hooks(Phase::Content).is_empty()
        && let Some(out) = run_hooks(http, req, Phase::Content).await
    {
        return out;
    }
    files(&l.settings, req).await
}

/// Answers from files, by the settings of the location.
async fn files(settings: &LocationSettings, req: &mut Request) -> Outcome {
    if !matches!(req.method, Method::Get | Method::Head | Method::Post) {
        return Outcome::Status(405);
    }
    if req.uri.path.last() == Some(&b'/') {
        return directory(req).await;
    }
    static_file::run(settings, req).await
}

/// Answers a path that ends in a slash.
async fn directory(req: &mut Request) -> Outcome {
    if let Some(out) = static_file::index(req).await {
        return out;
    }
    let path = static_file::path_text(req);
    req.log(Level::Error, &format!("directory index of \"{path}\" is forbidden"));
    Outcome::Status(403)
}
