//! Who is let in to a rule: what closes it, and its checks.

use super::{Place, Ruled, paths};
use crate::gateway::route_policy::Applied;
use crate::ingress::Globals;
use crate::tree::guard::{self, Guard};
use crate::tree::other_spellings;
use std::collections::BTreeSet;

/// Returns the status of a rule that is closed: it cannot be done, or nobody knows whom it is for.
pub(super) fn closed(ruled: &Ruled<'_>) -> Option<&'static str> {
    if !ruled.faults.is_empty() {
        return Some("500");
    }
    ruled.policy.is_closed().then_some("503")
}

/// Makes the checks of a rule at a place. `made` has the names of what the server has already.
pub(super) fn guard(
    ruled: &Ruled<'_>,
    place: &Place<'_>,
    globals: &Globals,
    made: &mut BTreeSet<String>,
) -> Guard {
    let policy = &ruled.policy.policy;
    let mut guard = guard::guard(place.server, &paths::prefix(place.found), policy, globals, made);
    // The service gets no field of the client beside one of these.
    let asked = policy.authority.iter().flat_map(|authority| authority.headers.iter());
    guard.gate.extend(other_spellings(asked.map(|(name, _)| name.as_str())));
    guard
}

/// Returns the fields that services give, empty, for paths that these are not asked for. Those in which clients show who they are
/// stay.
pub(super) fn unasked(applied: &Applied) -> impl Iterator<Item = (&str, String)> {
    let asked = applied.policy.authority.iter().flat_map(|authority| authority.response_headers.iter());
    let stays = |name: &str| {
        name == "*" || name.eq_ignore_ascii_case("Authorization") || name.eq_ignore_ascii_case("Cookie")
    };
    let names = applied.unasked.iter().chain(asked).map(String::as_str);
    names.filter(move |name| !stays(name)).map(|name| (name, String::new()))
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
