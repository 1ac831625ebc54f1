//! What else gets a request of a route: default backends, in place of its upstream, and the target of copies.

use super::super::node;
use super::{Out, access, fields, location, policy_id, route_id};
use crate::groups::{NO_SERVERS, short_hash};
use crate::model::{Errors, Mirror, Route};
use forebay_conf::Node;

/// Adds the pages for statuses.
pub(super) fn errors(out: &mut Out<'_>, route: &Route, errors: &Errors, nodes: &mut Vec<Node>) {
    nodes.push(node("proxy_intercept_errors", ["on"]));
    let signin = route.policy.authority.as_ref().is_some_and(|a| a.signin.is_some());
    for code in errors.codes.iter().filter(|c| !(signin && **c == 401)) {
        let origin = &route.origin;
        let named = format!("{} {} {}", policy_id(out.server, route), origin.service, origin.port);
        let name = format!("@error_{}_{code}", short_hash(&named));
        // Answers that deny access keep their status, whatever the page's own is.
        if matches!(code, 401 | 403) {
            nodes.push(node("error_page", [code.to_string(), name.clone()]));
        } else {
            nodes.push(node("error_page", [code.to_string(), "=".into(), name.clone()]));
        }
        if out.once(&name) {
            StandIn { name, code: *code, group: &errors.group, at_root: true }.add(out, route);
        }
    }
}

/// Default backend that answers in place of a route's upstream.
struct StandIn<'a> {
    /// Name of its location.
    name: String,
    /// Status that it gets.
    code: u16,
    group: &'a str,
    /// Its path is `/`, whatever the path of the request.
    at_root: bool,
}

impl StandIn<'_> {
    /// Adds the location of the default backend.
    fn add(self, out: &mut Out<'_>, route: &Route) {
        let mut own = fields::reasons(self.code, route);
        own.extend(fields::password(out, route));
        let mut body = vec![node("internal", [] as [&str; 0]), node("proxy_intercept_errors", ["off"])];
        body.extend(fields::beside(out, route, &own));
        body.extend(self.at_root.then(|| node("rewrite", ["^", "/", "break"])));
        body.push(node("proxy_pass", [format!("http://{}", self.group)]));
        location::add_helper(out, route, [self.name], body);
    }
}

/// Adds the default backend of an Ingress, for while the Service of a route has no servers.
pub(super) fn stand_in(out: &mut Out<'_>, route: &Route, group: &str, nodes: &mut Vec<Node>) {
    let name = format!("@empty_{}", route_id(out.server, route));
    nodes.push(node("error_page", [NO_SERVERS.to_string(), "=".into(), name.clone()]));
    if out.once(&name) {
        StandIn { name, code: 503, group, at_root: false }.add(out, route);
    }
}

/// Adds the copies of requests.
pub(super) fn mirror(out: &mut Out<'_>, route: &Route, mirror: &Mirror, nodes: &mut Vec<Node>) {
    let path = format!("/_mirror-{}", policy_id(out.server, route));
    nodes.push(node("mirror", [path.as_str()]));
    nodes.push(node("mirror_request_body", [if mirror.body { "on" } else { "off" }]));
    if !out.once(&path) {
        return;
    }
    let mut body = vec![node("internal", [] as [&str; 0])];
    let mut own = vec![
        ("Host".to_owned(), mirror.host.clone()),
        ("Upgrade".into(), String::new()),
        ("Connection".into(), String::new()),
    ];
    own.extend(fields::password(out, route));
    if !mirror.body {
        body.push(node("proxy_pass_request_body", ["off"]));
        own.push(("Content-Length".into(), String::new()));
    }
    body.extend(fields::beside(out, route, &own));
    body.extend(access::pass_url(&mirror.target));
    location::add_helper(out, route, ["=".to_owned(), path], body);
}
