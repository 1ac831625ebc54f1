//! Work for a configuration that goes on independently of requests: names are resolved again, the health of servers is
//! checked, responses for certificates are fetched, and certificates are renewed. Tasks on the process's tokio thread.

use super::config::Upstream;
use crate::config::http::Http;
use forebay_core::tasks::{Log, Tasks};
use forebay_core::tls::ocsp::staple;
use forebay_core::upstream::resolve;
use forebay_core::upstream::servers::Server;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Starts the tasks of a configuration. First takes over the state of the groups of the `old` one.
pub(crate) fn start(
    config: &Arc<Http>,
    old: Option<&Http>,
    tokio: &Handle,
    log: &Log,
    ask: &super::health_check::Ask,
) -> Tasks {
    let mut tasks = Tasks::default();
    for upstream in &config.upstreams {
        let former = old.and_then(|o| o.upstreams.iter().find(|u| is_same(u, upstream)));
        if let Some(former) = former {
            adopt(upstream, former);
        }
        resolve::start(&upstream.group, &mut tasks, tokio, log);
        if !upstream.extras.checks.is_empty() {
            let watch =
                super::health_check::watch(config.clone(), upstream.clone(), log.clone(), ask.clone());
            tasks.spawn(tokio, "checking health", watch);
        }
    }
    forebay_acme::start(&config.acme, &mut tasks, tokio, log);
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
    upstream.group.adopt(&former.group);
    if let (Some(mine), Some(theirs)) = (&upstream.extras.sticky, &former.extras.sticky) {
        mine.adopt(theirs);
    }
}
