//! Canaries: Ingresses that add a second group to the paths of others.

use super::{HostPath, Making, Parsed, upstream_name};
use crate::groups::{Spec, port_text, short_hash};
use crate::model::{Action, Alternative, HeaderChoice, HeaderValue, PathMatch, Route};
use std::collections::BTreeMap;

/// Digits of the mark of a canary, which tells it from one group only.
const MARK_DIGITS: usize = 10;

impl Making<'_> {
    /// Adds the backend of a canary Ingress to the route of the same host and path.
    pub(super) fn canary(
        &mut self,
        parsed: &Parsed,
        path: &HostPath,
        routes: &mut BTreeMap<PathMatch, Route>,
    ) {
        let report = |reason: &'static str, text: String| {
            parsed.problem(format!("{}.path", path.field), text).reason(reason)
        };
        let Some(route) = routes.get_mut(&path.path) else {
            let text = "no other Ingress has this host and path, so the canary takes no requests";
            return self.problems.push(report("CanaryAlone", text.to_owned()));
        };
        let owner = &route.origin.object;
        if owner.namespace != parsed.key.namespace {
            let text =
                format!("the path is that of {owner}, and a canary takes no requests of another namespace");
            return self.problems.push(report("CanaryForeign", text));
        }
        let Some(mut spec) = self.spec(parsed, path) else { return };
        spec.fallback = None;
        let sticky = self.stays(parsed, Some(route), &mut spec);
        let group = self.use_group(parsed, spec, &format!("{}.backend", path.field));
        let Action::Forward(forward) = &mut route.action else { return };
        if forward.alternatives.is_empty() {
            forward.alternatives.push(Alternative { sticky, ..alternative(parsed, path, group) });
        } else {
            let text = "the path has a canary already, the older Ingress counts";
            self.problems.push(report("PathConflict", text.to_owned()));
        }
    }

    /// Gives the group of a canary the cookie of the route's own group, with a mark. Clients with a cookie of one group stay with it.
    /// Returns the name of the cookie and the mark. `None`: the canary has affinity of its own (`legacy`), or there is none.
    fn stays(&self, parsed: &Parsed, main: Option<&Route>, spec: &mut Spec) -> Option<(String, String)> {
        if parsed.annotations.or_default("affinity-canary-behavior") == "legacy" {
            return None;
        }
        let group = match main.map(|route| &route.action) {
            Some(Action::Forward(forward)) => forward.group.as_str(),
            _ => return None,
        };
        let main = self.uses.iter().find(|used| &*used.name == group)?;
        spec.sticky.clone_from(&main.spec.sticky);
        let sticky = spec.sticky.as_mut()?;
        let mut mark = short_hash(&format!("{} {}", spec.service, port_text(&spec.port)));
        // It stands in cookies.
        mark.truncate(MARK_DIGITS);
        sticky.words.push(format!("mark={mark}"));
        Some((sticky.name.clone(), mark))
    }
}

/// Makes the alternative of a canary Ingress.
fn alternative(parsed: &Parsed, path: &HostPath, group: String) -> Alternative {
    let a = &parsed.annotations;
    let value = match (a.get("canary-by-header-value"), a.get("canary-by-header-pattern")) {
        (Some(text), _) => Some(HeaderValue::Exact(text.to_owned())),
        (None, Some(regex)) => Some(HeaderValue::Regex(regex.to_owned())),
        (None, None) => None,
    };
    let total = a.number("canary-weight-total").unwrap_or(100).max(1);
    let weight = a.number("canary-weight").unwrap_or(0).clamp(0, total);
    let (service, port) = path.backend.clone().unwrap_or_default();
    Alternative {
        group,
        name: upstream_name(&parsed.key.namespace, &service, &port_text(&port)),
        header: a.get("canary-by-header").map(|name| HeaderChoice { name: name.to_owned(), value }),
        cookie: a.get("canary-by-cookie").map(str::to_owned),
        share: u32::try_from(weight.saturating_mul(10_000) / total).unwrap_or(0),
        sticky: None,
    }
}
