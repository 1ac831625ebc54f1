//! Work for a configuration that goes on independently of requests: names are resolved again, the health of servers is
//! checked, responses for certificates are fetched, certificates are renewed, and the shared store is asked. Tasks on the process's tokio thread.

use super::config::Upstream;
use super::health_check::Question;
use crate::config::http::Http;
use crate::modules::acme::hook;
use forebay_core::process::Outside;
use forebay_core::tasks::{Log, Tasks};
use forebay_core::tls::ocsp::staple;
use forebay_core::upstream::resolve;
use forebay_core::upstream::servers::Server;
use std::collections::HashMap;
use std::sync::Arc;

/// Starts the tasks of a configuration. First takes over the state of the groups of the `old` one. `number`: that of the front end.
pub(crate) fn start(config: &Arc<Http>, old: Option<&Http>, (outside, number): (&Outside, u8)) -> Tasks {
    let log: &Log = &{
        let outside = outside.clone();
        Arc::new(move |level, line: &str| outside.log(level, line))
    };
    let ask: super::health_check::Ask = {
        let outside = outside.clone();
        Arc::new(move |question: Box<Question>| outside.message(number, question))
    };
    let tokio = &outside.tokio;
    let mut tasks = Tasks::default();
    let mut by_name: HashMap<&[u8], Vec<&Arc<Upstream>>> = HashMap::new();
    for former in old.iter().flat_map(|old| &old.upstreams) {
        by_name.entry(&former.group.name).or_default().push(former);
    }
    for upstream in &config.upstreams {
        let same_name = by_name.get(upstream.group.name.as_slice());
        if let Some(former) = same_name.into_iter().flatten().find(|u| is_same(u, upstream)) {
            adopt(upstream, former);
        }
        resolve::start(&upstream.group, &mut tasks, tokio, log);
        if !upstream.extras.checks.is_empty() {
            let watch =
                super::health_check::watch(config.clone(), upstream.clone(), log.clone(), ask.clone());
            tasks.spawn(tokio, "checking health", watch);
        }
    }
    let environment = forebay_acme::Environment { tokio, log, hooks: hook::hooks(outside, number, config) };
    config.acme.start(&mut tasks, &environment, |addr| outside.sockets(addr));
    config.shared_store.start(&mut tasks, tokio, log);
    for stapling in &config.staplings {
        tasks.spawn(tokio, "asking responders", staple::start(stapling, log));
    }
    tasks
}

/// Returns `true` if two groups have the same name, and the same servers if `proxy_pass` implies them.
fn is_same(a: &Upstream, b: &Upstream) -> bool {
    let (a, b) = (&a.group, &b.group);
    let place = |all: &[Server]| all.first().map(|s| s.place.clone());
    a.name == b.name
        && a.explicit == b.explicit
        && (a.explicit || a.with_servers(place) == b.with_servers(place))
}

fn adopt(upstream: &Upstream, former: &Upstream) {
    if Arc::ptr_eq(&upstream.group, &former.group) {
        return;
    }
    upstream.group.adopt(&former.group);
    if let (Some(mine), Some(theirs)) = (&upstream.extras.sticky, &former.extras.sticky) {
        mine.adopt(theirs);
    }
}
