//! `upstream` blocks of the http block, the groups that `proxy_pass` implies, and `match` blocks (nginx:
//! ngx_http_upstream_module and ngx_http_upstream_hc_module).

use super::health_check::{Check, Match};
use super::sticky::Sticky;
use crate::config::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::upstream::config::{self, Block};
use forebay_core::upstream::health::Matches;
use forebay_net::addr::Place;
use forebay_net::resolver::Resolver;
use std::sync::Arc;

/// Properties that HTTP adds to a group.
#[derive(Debug, Default)]
pub struct Extras {
    /// `sticky`.
    pub sticky: Option<Arc<Sticky>>,
    /// Health checks, in the order of the group's schedules.
    pub checks: Vec<Check>,
}

impl Extras {
    fn read_sticky(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        if self.sticky.is_some() {
            return Err(cx.error(d, "\"sticky\" directive is duplicate"));
        }
        self.sticky = Some(Arc::new(Sticky::parse(d, cx)?));
        Ok(())
    }
}

/// A group of the http block.
pub type Upstream = config::Upstream<Extras>;
/// A group that a directive of the http block names.
pub type Named = config::Named<Extras>;
/// All groups of an http block.
pub type Table = config::Table<Extras>;

/// All groups of an http block that is being read.
#[derive(Debug, Default)]
pub struct Groups {
    pub(crate) all: config::Groups<Extras>,
    matches: Matches<Match>,
    /// `upstream_start_unresolved` of the http level.
    pub start_unresolved: bool,
    /// A directive changes a group that was taken over from the configuration before.
    pub misfit: bool,
}

impl Groups {
    /// Returns the group of a place that `proxy_pass` names.
    pub fn reference(&mut self, place: &Place, default_port: u16, at: Error) -> Named {
        self.all.reference(place, default_port, at)
    }

    /// Adds a health check to a group.
    pub fn check(&mut self, group: Named, check: Check) {
        match self.all.entry(group) {
            Some((group, extras)) => {
                group.checks.push(check.common.schedule);
                extras.checks.push(check);
            }
            None => self.misfit = true,
        }
    }

    /// Completes the groups. Looks up names that no block defines. `resolver`: that of the http level. Also returns the
    /// errors of all groups: `host not found in upstream "x"`, `no resolver defined to resolve names at run time in
    /// upstream "x"`, `match "x" not found`.
    pub fn finish(self, resolver: Option<&Arc<Resolver>>) -> (Table, Vec<Error>) {
        let matches = self.matches;
        self.all.finish(resolver, self.start_unresolved, |extras, errors| {
            for check in &mut extras.checks {
                match matches.of(&check.common) {
                    Ok(conditions) => check.conditions = conditions,
                    Err(e) => errors.push(e),
                }
            }
        })
    }
}

/// Reads `upstream NAME { ... }`.
///
/// # Errors
/// In nginx's words.
pub fn block(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let mut extras = Extras::default();
    let mut block = Block::new(d, cx.tables.upstreams.start_unresolved);
    for inner in d.block.iter().flatten() {
        match inner.name.text.as_slice() {
            b"sticky" => {
                extras.read_sticky(inner, cx)?;
                block.group.sticky = true;
            }
            _ => block.directive(inner, cx)?,
        }
    }
    block.check(d, cx)?;
    let defined = cx.tables.upstreams.all.define(block, extras, cx.error(d, ""));
    defined.map_err(|message| cx.error(d, message))
}

/// Reads `match NAME { ... }`.
///
/// # Errors
/// With the place of what is not understood.
pub fn matching(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let conditions = Match::parse(d, cx)?;
    let Scope { tables, build, .. } = cx;
    tables.upstreams.matches.define(d, conditions, build)
}

/// Names of the directives of the block.
#[cfg(test)]
pub const DIRECTIVES: &[&str] = &[
    "server",
    "keepalive",
    "keepalive_requests",
    "keepalive_time",
    "keepalive_timeout",
    "hash",
    "ip_hash",
    "least_conn",
    "least_time",
    "random",
    "sticky",
    "queue",
    "zone",
    "resolver",
    "resolver_timeout",
    "upstream_start_unresolved",
    "state",
    "fallback",
    "peers",
];

#[cfg(test)]
mod tests;
