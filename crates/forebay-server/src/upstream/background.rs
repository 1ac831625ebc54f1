//! What goes on for the groups beside requests: names are resolved again, health is
//! checked, the state of certificates is asked for. One task each on the
//! process's tokio thread, for the life of a configuration.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::{Found, Source};
use crate::config::http::Http;
use forebay_conf::error::Level;
use forebay_core::essential::task;
use forebay_net::addr::PeerAddr;
use forebay_net::resolver::Failure;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// The tasks of a configuration; they end when it is dropped.
#[derive(Debug, Default)]
pub struct Background(Vec<AbortHandle>);

impl Drop for Background {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// Time until a name that was not found at the start is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Shortest time between two questions for one name.
const AT_LEAST: Duration = Duration::from_secs(1);

/// Writes a line of the error log from beside the worker threads.
pub type Log = Arc<dyn Fn(Level, &str) + Send + Sync>;

impl Background {
    /// Starts the tasks. What `old` knows goes over to `config` first.
    pub fn start(
        config: &Arc<Http>,
        old: Option<&Http>,
        tokio: &Handle,
        log: &Log,
        ask: &super::health::Ask,
    ) -> Background {
        let mut all = Background::default();
        for (n, group) in config.upstreams.iter().enumerate() {
            let former = old.and_then(|o| {
                let mut same = o.upstreams.iter();
                same.find(|g| g.name == group.name && g.explicit == group.explicit && same_ports(g, group))
            });
            if let Some(o) = former {
                group.adopt(o);
            }
            let sources: Vec<Source> = group.with_servers(|s| s.iter().map(|s| s.source.clone()).collect());
            for (server, source) in sources.into_iter().enumerate() {
                let at = Place { config: config.clone(), group: n, server, log: log.clone() };
                let task = match source {
                    Source::Fixed => continue,
                    Source::Resolve(service) => {
                        tokio.spawn(task("resolving names again", at.resolve(service)))
                    }
                    Source::Later => tokio.spawn(task("looking for a name", at.find())),
                };
                all.0.push(task.abort_handle());
            }
            if !group.checks.is_empty() {
                let watch = super::health::watch(config.clone(), n, log.clone(), ask.clone());
                all.0.push(tokio.spawn(task("checking health", watch)).abort_handle());
            }
        }
        for n in 0..config.staplings.len() {
            let staple = crate::tls::ocsp::staple::start(config, n, log);
            all.0.push(tokio.spawn(task("asking responders", staple)).abort_handle());
        }
        all
    }
}

/// Whether two groups that `proxy_pass` implies mean the same servers.
fn same_ports(a: &super::Group, b: &super::Group) -> bool {
    a.explicit
        || a.with_servers(|x| b.with_servers(|y| x.first().map(|s| &s.place) == y.first().map(|s| &s.place)))
}

/// A server of a group of a configuration.
struct Place {
    config: Arc<Http>,
    group: usize,
    server: usize,
    log: Log,
}

impl Place {
    fn group(&self) -> Option<&super::Group> {
        self.config.upstreams.get(self.group)
    }

    /// Resolves the name, and again when the answer no longer holds.
    async fn resolve(self, service: Option<String>) {
        let Some(group) = self.group() else { return };
        let Some(resolver) = group.resolver.clone() else { return };
        let (name, port) = group.with_servers(|all| match all.get(self.server) {
            Some(s) => (s.place.host(), s.place.port().unwrap_or(s.default_port)),
            None => (Vec::new(), 0),
        });
        loop {
            let question = async {
                match &service {
                    None => resolver.addresses(&name, true).await.map(|mut a| {
                        // The order of an answer is no change.
                        a.ips.sort_unstable();
                        let addr = |ip| Found::plain(PeerAddr::Inet(SocketAddr::new(ip, port)));
                        (a.ips.into_iter().map(addr).collect::<Vec<_>>(), a.ttl)
                    }),
                    Some(s) => resolver.services(s.as_bytes()).await.map(|(mut all, ttl)| {
                        let best = all.iter().map(|s| s.priority).min().unwrap_or(0);
                        all.sort_by_key(|s| (s.priority, s.addr));
                        let found = all.into_iter().map(|s| Found {
                            addr: PeerAddr::Inet(s.addr),
                            // Weight zero: hardly ever, which is what one is beside others.
                            weight: Some(i64::from(s.weight.max(1))),
                            backup: s.priority != best,
                        });
                        (found.collect(), ttl)
                    }),
                }
            };
            let answer = tokio::time::timeout(group.resolver_timeout, question).await;
            let wait = match answer.unwrap_or(Err(Failure::Timeout)) {
                Ok((found, ttl)) => {
                    group.found(self.server, found);
                    ttl
                }
                Err(e) => {
                    let text = match &service {
                        Some(s) => s.clone(),
                        None => String::from_utf8_lossy(&name).into_owned(),
                    };
                    (self.log)(
                        Level::Error,
                        &format!(
                            "{text} could not be resolved ({e}) while resolving upstream \"{}\"",
                            String::from_utf8_lossy(&group.name)
                        ),
                    );
                    // There is no such name: that is an answer. Otherwise what is known stays in use.
                    if e == Failure::NotFound {
                        group.found(self.server, Vec::new());
                    }
                    resolver.retry().unwrap_or(group.resolver_timeout)
                }
            };
            tokio::time::sleep(wait.max(AT_LEAST)).await;
        }
    }

    /// Looks for a name with the system's resolver until it is found.
    async fn find(self) {
        let Some(group) = self.group() else { return };
        let Some((place, port)) =
            group.with_servers(|all| all.get(self.server).map(|s| (s.place.clone(), s.default_port)))
        else {
            return;
        };
        loop {
            let asked = place.clone();
            let found = tokio::task::spawn_blocking(move || asked.addresses(port)).await.unwrap_or_default();
            let name = String::from_utf8_lossy(&place.host()).into_owned();
            if !found.is_empty() {
                group.found(self.server, found.into_iter().map(Found::plain).collect());
                (self.log)(Level::Notice, &format!("host \"{name}\" of upstream was found"));
                return;
            }
            (self.log)(Level::Error, &format!("host not found in upstream \"{name}\", looking for it again"));
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}
