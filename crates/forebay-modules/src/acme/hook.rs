//! `acme_hook`: requests to a location, which publish and withdraw the proofs of challenges (Angie: ngx_http_acme_module).

use forebay_acme::{HookCall, Hooks};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::first;
use forebay_core::outside::Outside;
use forebay_core::vars::{RowSource, Template};
use forebay_http::h1::request::Limits;
use forebay_server::background::{self, Run, Task};
use forebay_server::config::Scope;
use forebay_server::config::http::{Http, LocationId};
use forebay_server::module::assembly::Placing;
use forebay_server::module::message::{self, Message};
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::request::{Origin, Request};
use forebay_server::thread::{Thread, ThreadConfig};
use forebay_server::variables::{HasValue, Row};
use forebay_sys::pooled::Pooled;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Challenge that a request is about.
static STATE: Slot<Challenge> = Slot::new();

/// Challenge that a request is about (`acme_hook`).
#[derive(Debug, Default)]
struct Challenge(Option<Box<HookCall>>);

impl Unused for Challenge {
    const UNUSED: &'static Challenge = &Challenge(None);

    fn clear(&mut self) {
        self.0 = None;
    }
}

/// Variables of a request that a hook makes.
pub const VARIABLES: &[Row] = &[
    row("acme_hook_client", |r, o| of(r, o, |c| &c.client)),
    row("acme_hook_name", |r, o| of(r, o, |c| c.step.text())),
    row("acme_hook_challenge", |r, o| of(r, o, |c| c.challenge)),
    row("acme_hook_domain", |r, o| of(r, o, |c| &c.domain)),
    row("acme_hook_token", |r, o| of(r, o, |c| &c.token)),
    row("acme_hook_keyauth", |r, o| of(r, o, |c| &c.authorization)),
];

const fn row(name: &'static str, get: fn(&mut Request, &mut Vec<u8>) -> HasValue) -> Row {
    Row { name, get: RowSource::Get(get), settable: false }
}

fn of(r: &mut Request, out: &mut Vec<u8>, part: fn(&HookCall) -> &str) -> HasValue {
    let call = STATE.of(r).0.as_deref();
    Ok(call.is_some_and(|call| {
        out.extend_from_slice(part(call).as_bytes());
        true
    }))
}

/// An `acme_hook`.
#[derive(Clone, Debug)]
pub struct Hook {
    /// Name of the client or issuer.
    pub(super) client: String,
    /// `uri=`.
    uri: Option<Template>,
    /// Location of the directive.
    location: LocationId,
    /// Server of the location.
    server: usize,
    /// Error without a message at the directive.
    pub(super) place: Error,
}

impl Hook {
    /// Reads `acme_hook NAME [uri=URI]`.
    ///
    /// # Errors
    /// `invalid parameter`.
    pub fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Hook, Error> {
        let client = String::from_utf8_lossy(first(d)).into_owned();
        let mut hook = Hook { client, uri: None, location: 0, server: 0, place: cx.error(d, "") };
        if let Some(w) = d.args.get(1) {
            let invalid = || cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()));
            let text = w.text.strip_prefix(b"uri=").ok_or_else(invalid)?;
            let uri = Template::compile(text, &mut cx.vars);
            hook.uri = Some(uri.map_err(|message| cx.error_at(d, w, message))?);
        }
        Ok(hook)
    }
}

/// `acme_hook`s of a configuration, with their places.
#[derive(Debug, Default)]
pub struct Placed(pub Vec<Hook>);

/// Notes the places of the hooks of a level.
///
/// # Errors
/// Never.
pub(super) fn place(level: &mut Placing<'_, '_>) -> Result<(), Error> {
    let hooks = level.parts.take::<Vec<Hook>>();
    let placed = hooks.into_iter().map(|hook| hook.at(level.server, level.location));
    level.cx.tables.parts.get_mut::<Placed>().0.extend(placed);
    Ok(())
}

impl Hook {
    /// Sets the place of the directive: a server, and a location there.
    pub fn at(self, server: usize, location: LocationId) -> Hook {
        Hook { server, location, ..self }
    }
}

/// Returns the function that has the first worker thread carry out hooks. `number` is the number of the HTTP
/// front end.
pub fn hooks(outside: &Outside, number: u8, http: &Arc<Http>) -> Hooks {
    let (outside, http) = (outside.clone(), http.clone());
    Arc::new(move |call| message::send(&outside, number, Asked { http: http.clone(), call }))
}

/// Message to a worker thread.
pub struct Asked {
    http: Arc<Http>,
    call: HookCall,
}

impl Message for Asked {
    /// Starts the request.
    fn deliver(self: Box<Self>, thread: &Rc<Thread>) {
        // A panic drops the call, which fails then. It must not end the thread, which serves clients.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let Asked { http, call } = *self;
            let client = &call.client;
            let Some(hook) =
                super::of_http(&http).hooks.iter().find(|h| h.client.eq_ignore_ascii_case(client)).cloned()
            else {
                return;
            };
            // The request keeps the call for its variables. The answer goes through the original sender, so
            // the call gets one without a receiver.
            let (done, unused) = oneshot::channel();
            drop(unused);
            let answer = call.done;
            let call = HookCall { done, ..call };
            let req = request(thread, http, &hook, call);
            let run: Run = Box::new(|req| Pooled::new(run(req, answer)));
            background::start(thread, Task::new(req, run));
        }));
    }
}

/// Makes the request of a hook, which begins in its location.
fn request(thread: &Rc<Thread>, http: Arc<Http>, hook: &Hook, call: HookCall) -> Box<Request> {
    let mut req = Box::new(Request::new(thread.clone()));
    let head = ["GET / HTTP/1.1\r\nHost: ", &call.domain, "\r\nConnection: close\r\n\r\n"].concat();
    req.head.buf.extend_from_slice(head.as_bytes());
    let _ = forebay_http::h1::request::parse(&mut req.head, &Limits::default());
    req.begin_request();
    // The hook belongs to one configuration, and the thread may have an earlier or a later one at this time.
    if req.conf.http.serial != http.serial {
        req.conf = Rc::new(ThreadConfig::of(thread.active(), http));
    }
    req.origin = Origin::Sub { depth: 1, client_get: false };
    (req.uri.internal, req.uri.rewritten) = (true, true);
    (req.server, req.location) = (hook.server, hook.location);
    STATE.of_mut(&mut req).0 = Some(Box::new(call));
    if let Some(uri) = &hook.uri {
        set_target(&mut req, uri);
    }
    req
}

/// Sets path and query of a request. Without a value they stay as they are.
fn set_target(req: &mut Request, uri: &Template) {
    let mut target = Vec::new();
    if uri.eval(req, &mut target).is_err() || target.is_empty() {
        return;
    }
    let end = memchr::memchr(b'?', &target).unwrap_or(target.len());
    req.uri.args = target.get(end + 1..).unwrap_or_default().to_vec();
    target.truncate(end);
    req.uri.path = target;
}

/// Runs the request of a hook and reports whether it succeeded.
async fn run(req: &mut Request, answer: oneshot::Sender<Result<(), String>>) {
    forebay_server::subrequest::run_in_location(req).await;
    let status = req.status();
    let result = if (200..300).contains(&status) { Ok(()) } else { Err(format!("status {status}")) };
    // The order may have ended by now, and then nobody waits for the answer.
    let _ = answer.send(result);
}
