//! Units: files of their own in the http block, whose servers and groups are taken over from one configuration to the next
//! ([`forebay_core::config::memory`]).
//!
//! A unit has `server` and `upstream` blocks only. The result of reading it is kept, together with the effects of the reading on the rest
//! of the configuration: variables that it uses, groups that it names, log files, zones. These effects are repeated in place of the
//! reading. A unit whose reading had other effects is read each time: messages, lookups of names, orders for certificates, health checks,
//! tunnels.
//!
//! A unit depends on the frame (formats, zones, inherited directives, certificates) and on the files that it was read from: what it
//! includes, certificates, password files. `Effects` (`forebay-core/src/config/scope.rs`) and `Uses` of variables
//! (`forebay-core/src/vars/registry.rs`) and of groups (`upstream/config/groups.rs` of forebay-core) note the effects. Other effects
//! have the unit read each time: what `Build::marks` counts (messages, directories, buffers of logs, names for certificates, foreign
//! addresses, lookups), certificates for upstreams, and stapling. A new effect of a directive of servers must be noted or counted
//! there, and the directive belongs into the forms of a site in `tests.rs`, which makes random changes and compares what was taken over
//! with what is read as a whole.
//!
//! Servers hold no reference to anything that may be replaced while they stay. Variables and groups have numbers, which stay the same
//! from one configuration to the next. `Table::get` finds the group of a number in the configuration under which a request runs. When
//! many numbers are unused, everything is read.
//!
//! Everything is read, with nothing taken over, if an error is found, or if a part that is taken over turns out not to fit
//! (`Again::misfit`). So messages and their places always come from reading the whole.

use super::build::{LocationBuild, ServerBuild};
use super::{Location, Server};
use crate::config::upstreams::{Named, Table, Upstream};
use crate::module::Needs;
use crate::module::list;
use forebay_conf::files::Reads;
use forebay_core::config::listen::ListenDirective;
use forebay_core::config::names::ServerName;
use forebay_core::config::{Effects, Listening};
use forebay_core::upstream::config as groups;
use forebay_core::vars::Uses;
use forebay_http::h1::request::Limits;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that the http block of one configuration leaves for the next.
#[derive(Debug, Default)]
pub struct Memory {
    /// Names of the variables by their numbers.
    pub names: Vec<Box<[u8]>>,
    /// Numbers of groups.
    pub numbers: groups::Numbers,
    /// Units of the last configuration.
    pub units: Units,
}

/// Units by their paths.
pub(crate) type Units = HashMap<Arc<[u8]>, Arc<Unit>, foldhash::fast::RandomState>;

/// Result of reading a unit.
#[derive(Debug)]
pub struct Unit {
    pub servers: Vec<UnitServer>,
    pub upstreams: Vec<Arc<Upstream>>,
    pub effects: UnitEffects,
    /// Files of certificates and keys.
    pub certificates: Vec<PathBuf>,
    /// All files that it was made of.
    pub reads: Arc<Reads>,
    /// Number of the last build that took it over.
    pub used_by: AtomicU64,
}

impl Unit {
    /// Notes that a build takes the unit over. Returns `false` if it has done so before.
    pub(super) fn is_first_use(&self, build: u64) -> bool {
        self.used_by.swap(build, Ordering::Relaxed) != build
    }
}

/// Effects of reading a unit.
#[derive(Debug, Default)]
pub struct UnitEffects {
    pub build: Effects,
    pub vars: Uses,
    pub groups: groups::Uses,
}

/// A server of a unit.
#[derive(Debug)]
pub struct UnitServer {
    /// `None` where the configuration is only checked.
    pub server: Option<Arc<Server>>,
    pub names: Arc<[ServerName]>,
    pub listens: Arc<[ListenDirective]>,
    pub facts: Facts,
}

/// Facts about a server on which the whole configuration depends.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Limits of heads.
    pub head: Limits,
    /// It has TLS settings.
    pub tls: bool,
    /// TLS 1.3 is enabled.
    pub v13: bool,
    /// `tcp_nodelay` of the server itself.
    pub nodelay: bool,
    /// A location has `tunnel_pass`.
    pub tunnels: bool,
    /// A location has `auto_redirect`.
    pub redirects: bool,
    /// A location has `api` or `dashboard`.
    pub is_watched: bool,
    /// A location has `prometheus names=ingress-nginx`.
    pub shows_certificates: bool,
    /// A location uses the default of `client_body_temp_path`.
    pub default_body_temp: bool,
    /// A location uses the default of `proxy_temp_path`.
    pub default_proxy_temp: bool,
}

impl Facts {
    pub(super) fn of(s: &Server) -> Facts {
        let any = |f: fn(&Location) -> bool| s.locations.iter().any(f);
        let needs = |f: fn(Needs) -> bool| {
            s.locations.iter().filter_map(|l| l.content.as_ref()).any(|content| f(content.needs()))
        };
        // A server without locations has the defaults, with TLS 1.3 and without Nagle's algorithm.
        let root = s.root().map(|l| &l.settings);
        Facts {
            head: s.head,
            tls: s.tls.handshakes.is_some(),
            v13: root.is_none_or(|settings| settings.tls.protocols.v13),
            nodelay: root.is_none_or(|settings| settings.core.tcp_nodelay),
            tunnels: needs(|needs| needs.connect),
            redirects: any(|l| l.auto_redirect),
            is_watched: needs(|needs| needs.history),
            shows_certificates: needs(|needs| needs.certificates),
            default_body_temp: any(|l| l.settings.core.client_body_temp_path.0.is_none()),
            default_proxy_temp: s.locations.iter().any(|l| {
                let mut uses = list::all().iter().filter_map(|m| m.config.default_proxy_temp);
                uses.any(|uses| uses(l))
            }),
        }
    }
}

/// A server on its way through the build.
pub(super) enum Slot {
    /// It has been read.
    New(Box<ServerBuild>),
    /// Server of a unit of the former configuration, by its index there.
    Kept {
        /// The unit.
        unit: Arc<Unit>,
        at: usize,
        /// Position of the `include` in the file.
        ordinal: u32,
    },
}

impl Slot {
    /// Returns the names and addresses.
    pub(super) fn listening(&self) -> Listening<'_> {
        match self {
            Slot::New(built) => built.listening(),
            Slot::Kept { unit, at, ordinal } => {
                let server = unit.servers.get(*at);
                Listening {
                    names: server.map_or(&[], |s| &s.names),
                    listens: server.map_or(&[], |s| &s.listens),
                    ordinal: *ordinal,
                }
            }
        }
    }
}

/// A unit on its way through the build.
pub(super) struct UnitBuild {
    pub path: Arc<[u8]>,
    /// Indices of its servers.
    pub servers: Range<usize>,
    pub state: State,
}

pub(super) enum State {
    /// Taken over from the former configuration.
    Kept(Arc<Unit>),
    /// It has been read.
    Read {
        /// Groups that it defines.
        upstreams: Vec<Named>,
        /// Effects so far; `None`: some of them cannot be repeated.
        effects: Option<Box<UnitEffects>>,
        certificates: Vec<PathBuf>,
    },
}

impl UnitBuild {
    /// Adds the effects of another step of its building.
    pub(super) fn add(&mut self, more: Option<UnitEffects>) {
        let State::Read { effects, .. } = &mut self.state else { return };
        *effects = match (effects.take(), more) {
            (Some(mut all), Some(more)) => {
                all.build.append(more.build);
                all.vars.append(more.vars);
                all.groups.append(more.groups);
                Some(all)
            }
            _ => None,
        };
    }

    /// Notes that the unit must be read each time.
    pub(super) fn spoil(&mut self) {
        self.add(None);
    }

    /// Makes the unit that is kept for the next configuration, if that is possible. `servers` are its servers.
    pub(super) fn finish(self, servers: Vec<UnitServer>, table: &Table) -> Option<(Arc<[u8]>, Arc<Unit>)> {
        let (upstreams, effects, certificates) = match self.state {
            State::Kept(unit) => return Some((self.path, unit)),
            State::Read { upstreams, effects, certificates } => (upstreams, *effects?, certificates),
        };
        let group = |named: Named| table.get(named).cloned();
        let upstreams: Vec<_> = upstreams.into_iter().map(group).collect::<Option<_>>()?;
        // A location of another unit may check the health of these groups.
        if !upstreams.iter().all(|u| u.is_self_contained() && u.group.checks.is_empty()) {
            return None;
        }
        let mut effects = effects;
        effects.build = effects.build.compacted();
        let reads = Arc::new(std::mem::take(&mut effects.build.reads));
        effects.vars = effects.vars.sorted();
        Some((
            self.path,
            Arc::new(Unit { servers, upstreams, effects, certificates, reads, used_by: AtomicU64::new(0) }),
        ))
    }
}

/// Returns `true` if reading these levels again has no effects that [`UnitEffects`] cannot record.
pub(super) fn are_repeatable(levels: &[LocationBuild]) -> bool {
    levels
        .iter()
        .all(|l| l.parts.is_empty() && !l.content.as_ref().is_some_and(|content| content.needs().connect))
}
