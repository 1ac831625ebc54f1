//! Who is let in to a rule: what closes it, and its checks.

use super::Ruled;
use crate::ingress::Globals;
use crate::tree::guard::{self, Guard};
use std::collections::BTreeSet;

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
    let guard = ruled.policy.map(|applied| guard::guard(place, &applied.policy, globals, made));
    guard.unwrap_or_default()
}
