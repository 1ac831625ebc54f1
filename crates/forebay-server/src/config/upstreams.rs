//! `upstream` blocks of the http block, and the groups that `proxy_pass` implies (nginx: ngx_http_upstream_module).

use super::Scope;
use super::parts::Parts;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::upstream::config::{self, Block};
use forebay_core::upstream::group::Group;
use forebay_net::addr::Place;
use forebay_net::resolver::Resolver;
use std::sync::Arc;

/// A group of the http block.
pub type Upstream = config::Upstream<Parts>;
/// A group that a directive of the http block names.
pub type Named = config::Named<Parts>;
/// All groups of an http block.
pub type Table = config::Table<Parts>;

/// All groups of an http block that is being read.
#[derive(Debug, Default)]
pub struct Groups {
    pub(crate) all: config::Groups<Parts>,
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

    /// Returns a group that is being read, to change it, with the additions of modules. Returns `None` for a group that was taken over,
    /// which then has to be read as well.
    pub fn change(&mut self, group: Named) -> Option<(&mut Group, &mut Parts)> {
        self.misfit |= self.all.entry(group).is_none();
        self.all.entry(group)
    }

    /// Completes the groups. Looks up names that no block defines. `resolver` is the resolver of the http level, and `complete` completes
    /// the additions of modules. Also returns the errors of all groups: `host not found in upstream "x"`, `no resolver defined to resolve
    /// names at run time in upstream "x"`.
    pub fn finish(
        self,
        resolver: Option<&Arc<Resolver>>,
        complete: impl FnMut(&mut Parts, &mut Vec<Error>),
    ) -> (Table, Vec<Error>) {
        self.all.finish(resolver, self.start_unresolved, complete)
    }
}

/// Reads `upstream NAME { ... }`.
///
/// # Errors
/// In nginx's words.
pub fn block(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let mut parts = Parts::default();
    let mut block = Block::new(d, cx.tables.upstreams.start_unresolved);
    for inner in d.block.iter().flatten() {
        let name = inner.name.text.as_slice();
        let named = crate::module::list::all().iter().flat_map(|module| module.config.upstream_directives);
        match named.into_iter().find(|(of_module, _)| of_module.as_bytes() == name) {
            Some((_, read)) => read(inner, &mut block.group, &mut parts, cx)?,
            None => block.directive(inner, cx)?,
        }
    }
    block.check(d, cx)?;
    let defined = cx.tables.upstreams.all.define(block, parts, cx.error(d, ""));
    defined.map_err(|message| cx.error(d, message))
}

/// Names of the directives of the block.
#[cfg(any(test, feature = "testing"))]
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
    "queue",
    "zone",
    "resolver",
    "resolver_timeout",
    "upstream_start_unresolved",
    "state",
    "fallback",
    "peers",
];
