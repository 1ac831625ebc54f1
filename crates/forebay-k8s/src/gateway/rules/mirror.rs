//! Copies of requests.

use super::backends::{self, Backend};
use super::{Served, Serving, node, percent, tls};
use crate::gateway::objects::RequestMirror;
use crate::model::CertificateFiles;
use forebay_conf::Node;

/// Adds the copies of a rule's requests. Returns the directives of its location. `fields`: those of the copies.
pub(super) fn mirrors<'c>(
    serving: &Serving<'_>,
    copies: impl Iterator<Item = &'c RequestMirror>,
    fields: &[Node],
    id: &str,
    certificate: Option<&CertificateFiles>,
    served: &mut Served,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    for (index, copy) in copies.enumerate() {
        let found = backends::backend(serving.cluster, serving.route, serving.kind, &copy.backend_ref);
        let Ok(target) = found else { continue };
        let path = format!("/_mirror_{id}_{index}");
        let share = match (copy.fraction, copy.percent) {
            (Some(f), _) => Some(percent(f.numerator.into(), f.denominator.unwrap_or(100).into())),
            (None, Some(p)) => Some(percent(p.into(), 100)),
            (None, None) => None,
        };
        nodes.push(node("mirror", [path.as_str()]));
        let encryption = tls::encryption("proxy", &target, certificate, &mut served.files);
        let passing = fields.iter().cloned().chain(encryption).collect();
        let location = location((&path, &format!("{id}_m{index}")), &target, (share, passing), served);
        served.locations.push(location);
    }
    nodes
}

fn location(
    (path, id): (&str, &str),
    target: &Backend,
    (share, passing): (Option<String>, Vec<Node>),
    served: &mut Served,
) -> Node {
    let mut nodes = vec![node("internal", [""; 0])];
    if let Some(share) = share {
        let variable = format!("$mirrored_{id}");
        let mut parts = vec![node("*", ["0"])];
        if share != "0.00%" {
            parts.insert(0, node(&share, ["1"]));
        }
        served.http.push(node("split_clients", ["$request_id", &variable]).block(parts));
        nodes.push(
            node("if", [format!("({variable}"), "=".into(), "0)".into()])
                .block(vec![node("return", ["204"])]),
        );
    }
    nodes.extend(passing);
    let scheme = if target.tls.is_some() { "https" } else { "http" };
    nodes.push(node("proxy_pass", [format!("{scheme}://{}$request_uri", target.spec.name())]));
    node("location", ["=", path]).block(nodes)
}
