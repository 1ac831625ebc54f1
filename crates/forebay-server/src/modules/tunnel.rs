//! `tunnel_pass`: CONNECT requests become tunnels (nginx: ngx_http_tunnel_module; RFC 9110, section 9.3.6).

use crate::config::http::LocationBuild;
use crate::config::scope::Scope;
use crate::config::value::{Msec, Number};
use crate::modules::Content;
use crate::modules::proxy::{NextMask, Pass};
use crate::phases::Outcome;
use crate::request::Request;
use crate::upstream::exchange::{self, Outgoing};
use crate::upstream::stream::Body;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_http::request::{Method, Version};
use forebay_net::relay::Timeouts;
use std::sync::Arc;
use std::time::Duration;

crate::settings! {
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

/// `tunnel_pass`; without a word it goes where the client wants.
///
/// # Errors
/// In nginx's words.
pub fn pass(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    if matches!(l.content, Some(Content::Tunnel(_))) {
        return Err(cx.error(d, "\"tunnel_pass\" directive is duplicate"));
    }
    let mut url = d.clone();
    let mut word = d.args.first().cloned().unwrap_or_else(|| d.name.clone());
    let place = d.args.first().map_or(b"$host:$request_port".as_slice(), |w| &w.text);
    word.text = [b"http://", place].concat();
    url.args = vec![word];
    l.content = Some(Content::Tunnel(Arc::new(Pass::parse(&url, None, cx)?)));
    Ok(())
}

/// The content handler.
pub async fn run(req: &mut Request, pass: &Arc<Pass>) -> Outcome {
    if req.head.method != Method::Connect || req.head.version != Version::Http11 || req.is_subrequest() {
        return Outcome::Status(405);
    }
    let http = req.http();
    let l = http.location(req);
    let t = &l.settings.tunnel;
    let mut s = super::proxy::Settings::clone(&l.settings.proxy);
    s.connect_timeout = t.connect_timeout;
    s.next_upstream = t.next_upstream;
    s.next_upstream_tries = t.next_upstream_tries;
    s.next_upstream_timeout = t.next_upstream_timeout;
    s.socket_keepalive = t.socket_keepalive;
    let mut lease = None;
    let found = match pass.resolve(req).await {
        // Nothing is sent: the client speaks first.
        Ok((target, _)) => exchange::run(req, &target, b"", &Outgoing::None, &s, &mut lease).await,
        Err(status) => Err(status),
    };
    let found = found.and_then(|()| lease.ok_or(502));
    match found {
        Ok(lease) => {
            // It is not spoken to by HTTP any more.
            let u = &mut req.modules.upstream;
            u.log_name.drain(..u.protocol.scheme(u.encrypted).len().min(u.log_name.len()));
            u.log_path.clear();
            let timeouts = Timeouts { read: t.read_timeout.0, send: t.send_timeout.0 };
            req.keep_alive = false;
            req.resp.status = 200;
            req.resp.head_only = true;
            req.resp.source = Some(Box::new(Body::switched(lease, Vec::new(), timeouts)));
            Outcome::Done
        }
        Err(499) => {
            req.modules.upstream.log_name.clear();
            req.resp.status = 499;
            req.drop_connection = true;
            Outcome::Done
        }
        Err(status) => {
            req.modules.upstream.log_name.clear();
            Outcome::Status(status)
        }
    }
}
