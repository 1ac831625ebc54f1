//! Copies of requests.

use super::backends::{self, Backend};
use super::{Place, Served, Serving, node, percent, tls};
use crate::gateway::objects::RequestMirror;
use forebay_conf::Node;

/// Adds the copies of a rule's requests. Returns the directives of its location. `fields`: those of the copies.
pub(super) fn mirrors<'c>(
    serving: &Serving<'_>,
    copies: impl Iterator<Item = &'c RequestMirror>,
    fields: &[Node],
    place: &Place<'_>,
    served: &mut Served,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    for (index, copy) in copies.enumerate() {
        let found = backends::backend(serving.cluster, serving.route, serving.kind, &copy.backend_ref);
        let Ok(target) = found else { continue };
        let mut mirror = Mirror { id: format!("{}_m{index}", place.id), body: Vec::new() };
        mirror.body.push(node("internal", [""; 0]));
        served.http.extend(share(copy).map(|share| mirror.split(&share)));
        mirror.body.extend(fields.iter().cloned());
        mirror.body.extend(tls::encryption("proxy", &target, place.certificate, &mut served.files));
        let path = format!("/_mirror_{}_{index}", place.id);
        nodes.push(node("mirror", [path.as_str()]));
        served.locations.push(mirror.location(&path, &target));
    }
    nodes
}

/// Returns the share of requests that are copied. `None`: all are.
fn share(copy: &RequestMirror) -> Option<String> {
    match (copy.fraction, copy.percent) {
        (Some(f), _) => Some(percent(f.numerator.into(), f.denominator.unwrap_or(100).into())),
        (None, Some(p)) => Some(percent(p.into(), 100)),
        (None, None) => None,
    }
}

/// Location of copies while it is made.
struct Mirror {
    /// Text that no other copy has, for the name of its variable.
    id: String,
    body: Vec<Node>,
}

impl Mirror {
    /// Leaves out the requests beyond a share. Returns the variable that decides.
    fn split(&mut self, share: &str) -> Node {
        let variable = format!("$mirrored_{}", self.id);
        let mut parts = vec![node("*", ["0"])];
        if share != "0.00%" {
            parts.insert(0, node(share, ["1"]));
        }
        let left_out = node("if", [format!("({variable}"), "=".into(), "0)".into()]);
        self.body.push(left_out.block(vec![node("return", ["204"])]));
        node("split_clients", ["$request_id", &variable]).block(parts)
    }

    fn location(mut self, path: &str, target: &Backend) -> Node {
        let scheme = if target.tls.is_some() { "https" } else { "http" };
        self.body.push(node("proxy_pass", [format!("{scheme}://{}$request_uri", target.spec.name())]));
        node("location", ["=", path]).block(self.body)
    }
}
