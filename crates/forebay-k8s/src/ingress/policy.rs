//! Annotations of an Ingress to the policy of its routes.

use super::{Making, Parsed};
use crate::model::Policy;
use std::sync::Arc;

impl Making<'_> {
    /// Makes the policy of an Ingress.
    pub(super) fn policy(&mut self, parsed: &Parsed) -> Arc<Policy> {
        let mut policy = Policy::default();
        let a = &parsed.annotations;
        let s = &self.globals.settings;
        policy.https = match a.get("ssl-redirect").and_then(crate::value::parse_bool) {
            Some(redirect) => redirect,
            None => s.flag("ssl-redirect"),
        };
        Arc::new(policy)
    }
}
