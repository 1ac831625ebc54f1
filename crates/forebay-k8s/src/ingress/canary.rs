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
        if !routes.contains_key(&path.path) {
            let text = "no other Ingress has this host and path, so the canary takes no requests";
            let problem = parsed.problem(format!("{}.path", path.field), text);
            self.problems.push(problem.reason("CanaryAlone"));
            return;
        }
        if let Some(owner) = routes.get(&path.path).map(|route| &route.origin.object)
            && owner.namespace != parsed.key.namespace
        {
            let text =
                format!("the path is that of {owner}, and a canary takes no requests of another namespace");
            let problem = parsed.problem(format!("{}.path", path.field), text);
            self.problems.push(problem.reason("CanaryForeign"));
            return;
        }
        let Some(mut spec) = self.spec(parsed, path) else { return };
        spec.fallback = None;
        let sticky = self.stays(parsed, routes.get(&path.path), &mut spec);
        let group = self.use_group(parsed, spec, &format!("{}.backend", path.field));
        let a = &parsed.annotations;
        let value = match (a.get("canary-by-header-value"), a.get("canary-by-header-pattern")) {
            (Some(text), _) => Some(HeaderValue::Exact(text.to_owned())),
            (None, Some(regex)) => Some(HeaderValue::Regex(regex.to_owned())),
            (None, None) => None,
        };
        let header = a.get("canary-by-header").map(|name| HeaderChoice { name: name.to_owned(), value });
        let total = a.number("canary-weight-total").unwrap_or(100).max(1);
        let weight = a.number("canary-weight").unwrap_or(0).clamp(0, total);
        let share = u32::try_from(weight.saturating_mul(10_000) / total).unwrap_or(0);
        let cookie = a.get("canary-by-cookie").map(str::to_owned);
        let (service, port) = path.backend.clone().unwrap_or_default();
        let name = upstream_name(&parsed.key.namespace, &service, &port_text(&port));
        if let Some(Action::Forward(forward)) = routes.get_mut(&path.path).map(|r| &mut r.action) {
            if forward.alternatives.is_empty() {
                forward.alternatives.push(Alternative { group, name, header, cookie, share, sticky });
            } else {
                let text = "the path has a canary already, the older Ingress counts";
                self.problems
                    .push(parsed.problem(format!("{}.path", path.field), text).reason("PathConflict"));
            }
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
