//! Who is let in to a rule: what closes it, and its checks.

use super::Ruled;
use crate::ingress::Globals;
use crate::model::{Networks, Policy};
use crate::tree::guard::{self, Guard};
use crate::tree::other_spellings;
use crate::value::cidrs;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Returns the status of a rule that is closed: it cannot be done, or nobody knows whom it is for.
pub(super) fn closed(ruled: &Ruled<'_>, globals: &Globals) -> Option<&'static str> {
    if !ruled.faults.is_empty() {
        return Some("500");
    }
    // Keys of the ConfigMap that decide on access close routes as they close Ingresses.
    let unknown = !globals.settings.closed.is_empty() || globals.lacks_firewall();
    (unknown || ruled.policy.is_some_and(|policy| policy.closed)).then_some("503")
}

/// Makes the checks of a rule for a path of a server. `made` has the names of what the server has already.
pub(super) fn guard(
    ruled: &Ruled<'_>,
    place: (&str, &str),
    globals: &Globals,
    made: &mut BTreeSet<String>,
) -> Guard {
    // The networks of a policy have those of the ConfigMap among them.
    let policy = match ruled.policy {
        Some(applied) => applied.policy.clone(),
        None => {
            let deny = cidrs(globals.settings.get("block-cidrs")).unwrap_or_default();
            Arc::new(Policy { networks: Networks { deny, allow: Vec::new() }, ..Policy::default() })
        }
    };
    let mut guard = guard::guard(place, &policy, globals, made);
    // The service gets no field of the client beside one of these.
    let asked = policy.authority.iter().flat_map(|authority| authority.headers.iter());
    guard.gate.extend(other_spellings(asked.map(|(name, _)| name.as_str())));
    guard
}

/// Returns the fields that the service of a policy gives, empty, for paths that it is not asked for. Those in which clients show who
/// they are stay.
pub(super) fn unasked(policy: &Policy) -> impl Iterator<Item = (&str, String)> {
    let names = policy.authority.iter().flat_map(|authority| authority.response_headers.iter());
    let stays = |name: &str| {
        name == "*" || name.eq_ignore_ascii_case("Authorization") || name.eq_ignore_ascii_case("Cookie")
    };
    names.map(String::as_str).filter(move |name| !stays(name)).map(|name| (name, String::new()))
}

/// Fields about the certificate of a client, with their values. The certificate itself is not passed on.
pub(crate) const SHOWN: [(&str, &str); 4] = [
    ("ssl-client-verify", "$ssl_client_verify"),
    ("ssl-client-subject-dn", "$ssl_client_s_dn"),
    ("ssl-client-issuer-dn", "$ssl_client_i_dn"),
    ("ssl-client-cert", ""),
];

/// Returns the fields about the certificate of a client, for places where clients show some.
pub(super) fn shown(verified: bool) -> impl Iterator<Item = (String, String)> {
    SHOWN.into_iter().filter(move |_| verified).map(|(name, value)| (name.to_owned(), value.to_owned()))
}
