//! Work for a configuration that goes on independently of requests: names are resolved again, the health of servers is
//! checked, responses for certificates are fetched, certificates are renewed, and the shared store is asked. Tasks on the process's tokio thread.

use super::config::Upstream;
use super::health_check::Question;
use crate::cache::purges::Purges;
use crate::config::http::Http;
use crate::modules::acme::hook;
use forebay_core::process::Outside;
use forebay_core::shared_store::Tells;
use forebay_core::tasks::{Log, Tasks};
use forebay_core::tls::ocsp::staple;
use forebay_core::upstream::resolve;
use forebay_core::upstream::servers::Server;
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
    let mut telling: Vec<Arc<dyn Tells>> = Vec::new();
    for upstream in &config.upstreams {
        let former = old.and_then(|old| {
            // Numbers stay the same as long as configurations take over from each other.
            let same = old.upstreams.at(upstream.group.number).filter(|u| is_same(u, upstream));
            same.or_else(|| old.upstreams.with_name(&upstream.group.name).find(|u| is_same(u, upstream)))
        });
        if let Some(former) = former {
            adopt(upstream, former);
        }
        let sessions = upstream.extras.sticky.as_ref().and_then(|s| s.shared(&upstream.group));
        telling.extend(sessions.map(|sessions| Arc::new(sessions) as Arc<dyn Tells>));
        resolve::start(&upstream.group, &mut tasks, tokio, log);
        if !upstream.extras.checks.is_empty() {
            let watch =
                super::health_check::watch(config.clone(), upstream.clone(), log.clone(), ask.clone());
            tasks.spawn(tokio, "checking health", watch);
        }
    }
    let environment = forebay_acme::Environment { tokio, log, hooks: hook::hooks(outside, number, config) };
    config.acme.start(&mut tasks, &environment, |addr| outside.sockets(addr));
    telling.extend(config.caches.iter().filter_map(Purges::of).map(|p| Arc::new(p) as Arc<dyn Tells>));
    config.shared_store.start(telling, &mut tasks, tokio, log);
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
