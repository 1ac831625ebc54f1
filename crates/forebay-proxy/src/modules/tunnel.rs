//! `tunnel_pass`: CONNECT requests become tunnels (nginx: ngx_http_tunnel_module; RFC 9110, section 9.3.6).

use crate::modules::proxy::{self, NextMask, Pass, tries};
use crate::upstream::CALL;
use crate::upstream::attempts::{Attempts, Decision, Kept, Repeat, Rules};
use crate::upstream::contact::Contact;
use crate::upstream::exchange::Target;
use crate::upstream::fault::Fault;
use crate::upstream::open::{self, Open};
use crate::upstream::stream::Body;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Msec, Number};
use forebay_core::upstream::conn::Conn;
use forebay_http::request::{Method, Version};
use forebay_net::addr::PeerAddr;
use forebay_net::relay::Timeouts;
use forebay_server::config::Scope;
use forebay_server::config::http::LocationBuild;
use forebay_server::module::{Content, Handler, Module, Needs, Step};
use forebay_server::phases::Outcome;
use forebay_server::request::Request;
use std::time::Duration;

forebay_server::module_settings! {
    /// `tunnel_connect_timeout`.
    "tunnel_connect_timeout" => connect_timeout: Msec = Msec(Duration::from_secs(60));
    /// `tunnel_read_timeout`: how long the other side may say nothing.
    "tunnel_read_timeout" => read_timeout: Msec = Msec(Duration::from_secs(60));
    /// `tunnel_send_timeout`: how long the other side may take nothing.
    "tunnel_send_timeout" => send_timeout: Msec = Msec(Duration::from_secs(60));
    /// `tunnel_next_upstream`.
    "tunnel_next_upstream" => next_upstream: NextMask = NextMask::DEFAULT;
    /// `tunnel_next_upstream_tries`; 0 = no limit.
    "tunnel_next_upstream_tries" => next_upstream_tries: Number = Number(0);
    /// `tunnel_next_upstream_timeout`; 0 = no limit.
    "tunnel_next_upstream_timeout" => next_upstream_timeout: Msec = Msec(Duration::ZERO);
    /// `tunnel_socket_keepalive`.
    "tunnel_socket_keepalive" => socket_keepalive: bool = false;
}

/// `tunnel`.
pub static MODULE: Module =
    Module { settings: &[&SETTINGS], location_directives: &[("tunnel_pass", pass)], ..Module::NONE };

/// Reads `tunnel_pass`. Without a parameter the target of the request is the destination.
///
/// # Errors
/// In nginx's words.
fn pass(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    if l.content.as_ref().is_some_and(|content| content.needs().connect) {
        return Err(cx.error(d, "\"tunnel_pass\" directive is duplicate"));
    }
    let mut url = d.clone();
    let mut word = d.args.first().cloned().unwrap_or_else(|| d.name.clone());
    let place = d.args.first().map_or(b"$host:$request_port".as_slice(), |w| &w.text);
    // The parser of `proxy_pass` reads the place, so it needs a scheme in front of it.
    word.text = [b"http://", place].concat();
    url.args = vec![word];
    l.content = Content::of(Tunnel(Pass::parse(&url, None, cx)?));
    Ok(())
}

/// Content handler of `tunnel_pass`.
#[derive(Debug)]
struct Tunnel(Pass);

impl Handler for Tunnel {
    fn handle<'r>(&'r self, req: &'r mut Request) -> Step<'r> {
        Step::later(async { run(req, &self.0).await.into() })
    }

    fn needs(&self) -> Needs {
        Needs { connect: true, ..Needs::default() }
    }
}

/// Opens a tunnel.
async fn run(req: &mut Request, pass: &Pass) -> Outcome {
    // Over HTTP/2 and HTTP/3 a stream would have to carry the tunnel, which this handler does not do.
    if req.method != Method::Connect || req.head.version != Version::Http11 || req.is_subrequest() {
        return Outcome::Status(405);
    }
    let connected = resolve_and_connect(req, pass).await;
    if connected.is_err() {
        req.modules.upstream.log_name.clear();
    }
    match connected {
        Ok(contact) => established(req, contact),
        Err(499) => {
            req.resp.status = 499;
            req.ending.drop_connection();
            Outcome::Done
        }
        Err(status) => Outcome::Status(status),
    }
}

/// Connects to a server of the directive's target.
async fn resolve_and_connect(req: &mut Request, pass: &Pass) -> Result<Contact, u16> {
    CALL.of_mut(req).codec = pass.codec;
    let (destination, _) = pass.destination(req)?;
    let target = destination.find(req).await?;
    connect(req, &target).await
}

/// Connects to a server of the target. Nothing is sent: the client speaks first.
///
/// # Errors
/// The status to answer with; 499 if the client is gone.
async fn connect(req: &mut Request, target: &Target) -> Result<Contact, u16> {
    let http = req.http();
    let l = http.location(req);
    let t = SETTINGS.of(&l.settings);
    let tries = tries(t.next_upstream_tries);
    let timeout = t.next_upstream_timeout.0;
    let rules = Rules { next: t.next_upstream, tries, timeout, again: false, delay: Duration::ZERO };
    // The head of an earlier response would be taken for the head of this one.
    req.modules.upstream.head.advance(usize::MAX);
    // A tunnel needs a connection that no request has used, so no kept one is taken.
    let mut attempts = Attempts::new(req, target, rules, Kept::No).await?;
    let mut place = None;
    loop {
        let contact = place.insert(attempts.begin(req).await?);
        let Some(addr) = attempts.address() else { return Err(502) };
        let verdict = match open_to(req, addr).await {
            Ok(conn) => {
                contact.connected(conn);
                attempts.answered(req, &mut place, Repeat::Always)
            }
            Err(fault) => attempts.failed(req, &mut place, &fault, Repeat::Always),
        };
        match verdict {
            Decision::Answered => return place.ok_or(502),
            Decision::Again => {}
            Decision::Stop(status) => return Err(status),
        }
    }
}

/// Opens the connection of an attempt.
async fn open_to(req: &mut Request, addr: &PeerAddr) -> Result<Conn, Fault> {
    let http = req.http();
    let s = &http.location(req).settings;
    let mut watch = open::watch(req, proxy::SETTINGS.of(s).ignore_client_abort);
    let local = open::local_address(req)?;
    let greeting = open::greeting(req, proxy::SETTINGS.of(s).protocol_header);
    let (timeout, keepalive) = (SETTINGS.of(s).connect_timeout.0, SETTINGS.of(s).socket_keepalive);
    let conn =
        open::open(req, &Open { addr, local, timeout, keepalive, greeting: &greeting }, &mut watch).await?;
    if let Some(a) = req.modules.upstream.current() {
        a.connect = Some(req.thread.io.poller.since(a.started));
    }
    Ok(conn)
}

/// Answers that the tunnel is there; bytes are passed both ways once the head has been sent.
fn established(req: &mut Request, contact: Contact) -> Outcome {
    let http = req.http();
    let t = SETTINGS.of(&http.location(req).settings);
    // Bytes of a tunnel need not be HTTP, so the error log names the server without a scheme.
    let scheme = CALL.of(req).scheme();
    let u = &mut req.modules.upstream;
    u.log_name.drain(..scheme.len().min(u.log_name.len()));
    u.log_path.clear();
    let timeouts = Timeouts { read: t.read_timeout.0, send: t.send_timeout.0 };
    // After a tunnel the connection cannot go back to requests.
    req.ending.close();
    req.resp.status = 200;
    req.resp.head_only = true;
    req.resp.source = Some(Box::new(Body::switched(contact, Vec::new(), timeouts)));
    Outcome::Done
}
