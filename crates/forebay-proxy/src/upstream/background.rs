//! Work for the groups of a configuration that goes on independently of requests: names are resolved again, the health of servers is
//! checked, sessions are shared. Tasks on the process's tokio thread.

use super::health_check::{self, Ask, Checks};
use super::sticky;
use forebay_core::shared_store::Tells;
use forebay_core::upstream::resolve;
use forebay_core::upstream::servers::Server;
use forebay_server::config::http::Http;
use forebay_server::config::upstreams::Upstream;
use forebay_server::module::message;
use forebay_server::module::process::Beginning;
use std::sync::Arc;

/// Takes over the state of the groups of the configuration before, and starts the tasks of the groups.
pub(super) fn begin(b: &mut Beginning<'_>) {
    let ask: Ask = {
        let (outside, front) = (b.outside.clone(), b.front);
        Arc::new(move |question| message::send(&outside, front, question))
    };
    let tokio = &b.outside.tokio;
    for upstream in &b.http.upstreams {
        if let Some(former) = b.former.and_then(|former| find(former, upstream)) {
            adopt(upstream, former);
        }
        let sessions = sticky::of(&upstream.extras).and_then(|s| s.shared(&upstream.group));
        b.tells.extend(sessions.map(|sessions| Arc::new(sessions) as Arc<dyn Tells>));
        resolve::start(&upstream.group, &mut b.tasks, tokio, b.log);
        if upstream.extras.get::<Checks>().is_some() {
            let watch = health_check::watch(b.http.clone(), upstream.clone(), b.log.clone(), ask.clone());
            b.tasks.spawn(tokio, "checking health", watch);
        }
    }
}

/// Returns the group of a former configuration that is the same as this one.
fn find<'f>(former: &'f Http, upstream: &Upstream) -> Option<&'f Upstream> {
    let all = &former.upstreams;
    // Numbers stay the same as long as configurations take over from each other.
    let same = all.at(upstream.group.number).filter(|u| is_same(u, upstream));
    let found = same.or_else(|| all.with_name(&upstream.group.name).find(|u| is_same(u, upstream)));
    found.map(|found| &**found)
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
    // A reload may take an unchanged group over as a whole. Its state is then shared already.
    if Arc::ptr_eq(&upstream.group, &former.group) {
        return;
    }
    upstream.group.adopt(&former.group);
    if let (Some(mine), Some(theirs)) = (sticky::of(&upstream.extras), sticky::of(&former.extras)) {
        mine.adopt(&theirs);
    }
}
