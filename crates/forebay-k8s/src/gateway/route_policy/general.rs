//! Access settings of the ConfigMap for routes. A policy with the same setting goes before them.

use crate::ingress::{Globals, general_authority, general_networks};
use crate::model::{Authority, Networks};
use crate::objects::Key;
use crate::settings::snippet_decides;

/// Access settings of the ConfigMap for routes.
#[derive(Debug, Default)]
pub(super) struct General {
    /// Networks that are let in.
    pub networks: Networks,
    /// Service that decides on requests.
    pub authority: Option<Authority>,
    /// Why nobody is let in.
    pub closed: Option<String>,
    /// Why no request is let in.
    pub closed_requests: Option<String>,
    /// Why nobody is let in where the service decides.
    pub broken: Option<String>,
}

impl General {
    /// Reads the settings.
    pub(super) fn new(globals: &Globals) -> General {
        let settings = &globals.settings;
        let map = name(globals);
        let closed = (!settings.closed.is_empty()).then(|| {
            let keys = settings.closed.join(", ");
            format!("{map}: {keys}: the value is not valid, and it decides on access")
        });
        let lacks = globals.lacks_firewall();
        let firewall = || format!("{map} asks for ModSecurity, which is not there (--ignore-missing-waf)");
        let broken = || format!("{map}: a key global-auth-* is not valid");
        General {
            networks: general_networks(settings),
            authority: general_authority(globals),
            closed,
            closed_requests: lacks.then(firewall),
            broken: globals.broken_authority.then(broken),
        }
    }
}

/// Returns what is said about the snippets of the ConfigMap that decide on access and that routes do not have.
pub(crate) fn unheard(globals: &Globals) -> Option<String> {
    let mut keys = vec!["server-snippet", "location-snippet"];
    keys.retain(|key| globals.settings.set(key).is_some_and(snippet_decides));
    let text =
        format!("{}: {} decides on access and has no effect on routes", name(globals), keys.join(", "));
    (!keys.is_empty()).then_some(text)
}

fn name(globals: &Globals) -> String {
    let key: Key = globals.options.config_map.clone().unwrap_or_default();
    format!("ConfigMap {key}")
}
