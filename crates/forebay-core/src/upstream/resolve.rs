//! Names of servers that are resolved at run time, on the process's tokio thread.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::group::{Group, Unanswered};
use super::servers::{Discovery, Found};
use crate::tasks::{Log, Tasks};
use forebay_conf::error::Level;
use forebay_net::addr::PeerAddr;
use forebay_net::resolver::{Failure, Resolver};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Pause after a name was not found by the system's resolver.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Shortest time between two questions for one name.
const AT_LEAST: Duration = Duration::from_secs(1);

/// Starts the tasks that resolve the names of a group.
pub fn start(group: &Arc<Group>, tasks: &mut Tasks, tokio: &Handle, log: &Log) {
    let sources: Vec<Discovery> = group.with_servers(|s| s.iter().map(|s| s.source.clone()).collect());
    for (server, source) in sources.into_iter().enumerate() {
        let name = Resolving { group: group.clone(), server, log: log.clone() };
        match source {
            Discovery::Fixed | Discovery::External => {}
            Discovery::Resolve(service) => name.start(service, Arc::default(), tasks, tokio),
            Discovery::Search(domains) => name.start(None, domains, tasks, tokio),
            Discovery::Later => tasks.spawn(tokio, "looking for a name", name.find()),
        }
    }
}

/// Resolution of the name in a `server` line, by the number of the line.
struct Resolving {
    group: Arc<Group>,
    server: usize,
    log: Log,
}

/// A name to be resolved.
struct Question {
    host: Vec<u8>,
    port: u16,
    /// Name of the SRV record, if one is to be asked for.
    service: Option<String>,
    /// Domains below which the name is looked for first.
    search: Arc<[String]>,
}

impl Resolving {
    /// Starts the task for a name.
    fn start(self, service: Option<String>, search: Arc<[String]>, tasks: &mut Tasks, tokio: &Handle) {
        // Noted before the task runs: the threads take requests as soon as this returns.
        let unanswered = self.group.ask(self.server);
        tasks.spawn(tokio, "resolving names again", self.resolve(service, search, unanswered));
    }

    /// Resolves the name, and again whenever the answer expires. Requests wait for the first answer as long as there is `unanswered`.
    async fn resolve(
        self,
        service: Option<String>,
        search: Arc<[String]>,
        mut unanswered: Option<Unanswered>,
    ) {
        let Some(resolver) = self.group.resolver.clone() else { return };
        let place = |all: &[super::servers::Server]| {
            let s = all.get(self.server)?;
            Some((s.place.host(), s.place.port().unwrap_or(s.default_port)))
        };
        let Some((host, port)) = self.group.with_servers(place) else { return };
        let question = Question { host, port, service, search };
        loop {
            let answer = tokio::time::timeout(self.group.resolver_timeout, question.ask(&resolver)).await;
            let pause = match answer.unwrap_or(Err(Failure::Timeout)) {
                Ok((found, ttl)) => {
                    self.group.found(self.server, found);
                    ttl
                }
                Err(e) => {
                    self.failed(&question, e);
                    resolver.retry().unwrap_or(self.group.resolver_timeout)
                }
            };
            drop(unanswered.take());
            // Records may have a lifetime of 0, which would make this a busy loop.
            tokio::time::sleep(pause.max(AT_LEAST)).await;
        }
    }

    /// Logs a failure. The known addresses stay in use, except if there is no such name: that is an answer.
    fn failed(&self, question: &Question, e: Failure) {
        let (name, group) = (question.name(), String::from_utf8_lossy(&self.group.name));
        let text = format!("{name} could not be resolved ({e}) while resolving upstream \"{group}\"");
        (self.log)(Level::Error, &text);
        if e == Failure::NotFound {
            self.group.found(self.server, Vec::new());
        }
    }

    /// Asks the system's resolver until it finds the name.
    async fn find(self) {
        let place =
            self.group.with_servers(|all| all.get(self.server).map(|s| (s.place.clone(), s.default_port)));
        let Some((place, port)) = place else { return };
        loop {
            let asked = place.clone();
            let found = tokio::task::spawn_blocking(move || asked.addresses(port)).await.unwrap_or_default();
            let name = String::from_utf8_lossy(&place.host()).into_owned();
            if !found.is_empty() {
                self.group.found(self.server, found.into_iter().map(Found::plain).collect());
                (self.log)(Level::Notice, &format!("host \"{name}\" of upstream was found"));
                return;
            }
            let text = format!("host not found in upstream \"{name}\", looking for it again");
            (self.log)(Level::Error, &text);
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl Question {
    /// Returns the name as the log shows it.
    fn name(&self) -> String {
        match &self.service {
            Some(s) => s.clone(),
            None => String::from_utf8_lossy(&self.host).into_owned(),
        }
    }

    /// Returns the addresses, and the time for which they may be used.
    async fn ask(&self, resolver: &Arc<Resolver>) -> Result<(Vec<Found>, Duration), Failure> {
        match &self.service {
            None => self.searched(resolver).await,
            Some(name) => Question::services(resolver, name).await,
        }
    }

    /// Asks for the name below each of the domains, and then for the name itself. The first that exists counts. A name server that
    /// fails ends the search: a later name must not answer for an earlier one.
    async fn searched(&self, resolver: &Arc<Resolver>) -> Result<(Vec<Found>, Duration), Failure> {
        for domain in self.search.iter() {
            let name = [self.host.as_slice(), b".", domain.as_bytes()].concat();
            match self.addresses(resolver, &name).await {
                Err(Failure::NotFound) => {}
                answer => return answer,
            }
        }
        self.addresses(resolver, &self.host).await
    }

    async fn addresses(
        &self,
        resolver: &Arc<Resolver>,
        name: &[u8],
    ) -> Result<(Vec<Found>, Duration), Failure> {
        let mut answer = resolver.addresses(name, true).await?;
        // Name servers rotate the addresses; that must not count as a change.
        answer.ips.sort_unstable();
        let found = answer.ips.iter().map(|ip| PeerAddr::Inet(SocketAddr::new(*ip, self.port)));
        Ok((found.map(Found::plain).collect(), answer.ttl))
    }

    async fn services(resolver: &Arc<Resolver>, name: &str) -> Result<(Vec<Found>, Duration), Failure> {
        let (mut all, ttl) = resolver.services(name.as_bytes()).await?;
        let best = all.iter().map(|s| s.priority).min().unwrap_or(0);
        all.sort_by_key(|s| (s.priority, s.addr));
        let found = all.into_iter().map(|s| Found {
            addr: PeerAddr::Inet(s.addr),
            // Weight zero means a very small chance next to others, which a weight of one is.
            weight: Some(i64::from(s.weight.max(1))),
            backup: s.priority != best,
        });
        Ok((found.collect(), ttl))
    }
}
