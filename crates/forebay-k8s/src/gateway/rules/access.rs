//! Who is let in to a rule: what closes it, and its checks.

use super::Ruled;
use crate::ingress::Globals;
use crate::model::{Networks, Policy};
use crate::tree::guard::{self, Guard};
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
    guard::guard(place, &policy, globals, made)
}
