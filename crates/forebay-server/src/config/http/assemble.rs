//! Passes that make the levels that were read into settings that serve. Their order matters, and [`Builder::finish`] has it.
//!
//! Twenty thousand servers have to fit into memory. So a level shares the settings of a module with the level around it if it has no
//! directive of that module, levels whose directives of a module have the same words share them (`module/sharing.rs`), and servers
//! with the same settings share their TLS configuration. A server owns its levels: a location has a number in its server.

use super::build::{Builder, LocationBuild, ServerBuild};
use super::units::{Facts, Memory, Slot, State, Unit, UnitBuild, UnitEffects, UnitServer, Units};
use super::{Http, Kind, Location, LocationId, Server};
use crate::config::Scope;
use crate::config::issued::{CertificateSource, Chosen, Issuing, Subject};
use crate::config::parts::Parts;
use crate::config::upstreams::Table;
use crate::location::LocationTree;
use crate::module::assembly::{InEffectAt, Loaded, LoadingTls, Placing, Settling};
use crate::module::levels::{LocationSettings, LocationWritten, Sharing};
use crate::module::list;
use crate::module::{self, ConfigHooks, Content, Plan};
use crate::modules::{self, resolver, rewrite, ssl};
use forebay_conf::files::Reads;
use forebay_core::config::listen::ListenDirective;
use forebay_core::config::names::ServerName;
use forebay_core::config::{Lacking, Listening, check_certificates};
use forebay_core::config::{Listener, plain};
use forebay_core::tls::loader::{Loader, ServerInput};
use forebay_core::tls::server::VirtualTls;
use forebay_core::tls::vars::shows_hello;
use forebay_http::h1::request::Limits;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Size of `connection_pool_size` where it is not given, bytes.
const CONNECTION_POOL: u64 = 512;

impl Builder<'_, '_> {
    /// Ends the construction. Keeps errors such as conflicting listen options ([`forebay_core::config::Build::keep_late`]).
    /// `front` is the number of the HTTP front end.
    /// The third part of the result is the memory for the next configuration.
    pub fn finish(self, front: u8) -> (Http, Vec<Listener>, Memory) {
        let listening: Vec<_> = self.servers.iter().map(Slot::listening).collect();
        let listeners = forebay_core::config::listeners(&listening, front, self.cx);
        let Builder { cx, level, servers: slots, units, sharing, http_server, pool, .. } = self;
        let mut assembly = Assembly {
            cx,
            listeners,
            http: HttpLevel::default(),
            servers: Vec::with_capacity(slots.len()),
            unit_of: unit_of(&units, slots.len()),
            units,
            sharing,
            loader: Loader::default(),
            memory: Parts::default(),
            parts: Parts::default(),
            directories: Vec::new(),
        };
        assembly.http = assembly.http_level(level);
        for (number, slot) in slots.into_iter().enumerate() {
            assembly.begin_step(number);
            match slot {
                Slot::New(built) => assembly.new_server(*built, &http_server, pool),
                Slot::Kept { unit, at, .. } => assembly.servers.push(Made::Kept(unit, at)),
            }
            assembly.end_step(number);
        }
        assembly.check_tables();
        assembly.load_server_tls(front);
        assembly.load_upstream_tls();
        assembly.allow_tunnels();
        assembly.check_certificates();
        assembly.finish()
    }
}

/// Returns the index of the unit of each server that is read.
fn unit_of(units: &[UnitBuild], servers: usize) -> Vec<Option<usize>> {
    let mut of = vec![None; servers];
    for (at, unit) in units.iter().enumerate().filter(|(_, u)| matches!(u.state, State::Read { .. })) {
        for place in of.get_mut(unit.servers.clone()).into_iter().flatten() {
            *place = Some(at);
        }
    }
    of
}

/// A server that has been assembled.
enum Made {
    New {
        server: Box<Server>,
        listens: Vec<ListenDirective>,
    },
    /// Server of a unit of the former configuration, by its index there.
    Kept(Arc<Unit>, usize),
}

impl Made {
    fn kept(&self) -> Option<&UnitServer> {
        match self {
            Made::New { .. } => None,
            Made::Kept(unit, at) => unit.servers.get(*at),
        }
    }

    fn listens(&self) -> &[ListenDirective] {
        match self {
            Made::New { listens, .. } => listens,
            Made::Kept(..) => self.kept().map_or(&[], |s| &s.listens),
        }
    }

    fn facts(&self) -> Option<Facts> {
        match self {
            Made::New { server, .. } => Some(Facts::of(server)),
            Made::Kept(..) => self.kept().map(|s| s.facts),
        }
    }
}

/// Resolves the settings of a server level. The result has no locations yet.
fn resolve_server(s: &mut ServerBuild, http: &modules::server::Written) -> Server {
    s.written.inherit(http);
    let settings = s.written.resolve();
    Server {
        name: s.names.first().map(ServerName::text).unwrap_or_default(),
        head: head_limits(&settings),
        alt_svc: modules::alt_svc::Fields::new(&settings.http3_alt_svc, settings.http3, &s.listens),
        settings,
        locations: Vec::new(),
        tls: VirtualTls::unread(),
        named: std::mem::take(&mut s.named),
        routes: Vec::new(),
        names: std::mem::take(&mut s.names).into(),
    }
}

/// Has a level take what it does not set from the level around it.
fn inherit(l: &mut LocationBuild, outer: &LocationWritten, sharing: &mut Sharing) {
    l.written.inherit(outer, sharing);
}

/// Gives `if` and `limit_except` blocks everything that is not inherited as a setting, because they stand for their location.
fn complete_conditional_levels(locations: &mut [Location]) {
    for i in 0..locations.len() {
        let (before, rest) = locations.split_at_mut(i);
        let Some(l) = rest.first_mut() else { continue };
        let (Kind::LimitExcept | Kind::If, Some(p)) = (&l.kind, l.parent) else { continue };
        let Some(outer) = before.get(p) else { continue };
        l.internal |= outer.internal;
        if l.status_zone.is_none() {
            l.status_zone.clone_from(&outer.status_zone);
        }
        // As in nginx, `if` keeps every handler, while `limit_except` keeps only handlers that pass requests on.
        let kept = |c: &&Content| matches!(l.kind, Kind::If) || c.needs().upstream;
        if l.content.is_none() {
            l.content = outer.content.as_ref().filter(kept).cloned();
        }
    }
}

/// Returns the facts about a server that its certificates depend on. `l` is the level of the server itself.
fn subject<'s>(number: usize, s: &'s Server, listens: &'s [ListenDirective], l: &'s Location) -> Subject<'s> {
    Subject {
        number,
        settings: &l.settings,
        names: &s.names,
        listens,
        certified: !l.settings.tls.certificate.0.is_empty(),
    }
}

/// Returns the limits of request heads of a server. Whether it accepts CONNECT is decided when all locations are known.
fn head_limits(s: &modules::server::Settings) -> Limits {
    Limits {
        client_header_buffer_size: s.client_header_buffer_size.0 as usize,
        large_client_header_buffers: (
            s.large_client_header_buffers.count as usize,
            s.large_client_header_buffers.size as usize,
        ),
        max_headers: s.max_headers.0 as usize,
        ignore_invalid_headers: s.ignore_invalid_headers,
        underscores_in_headers: s.underscores_in_headers,
        merge_slashes: s.merge_slashes,
        connect: false,
    }
}

/// The http level between reading and serving.
#[derive(Default)]
struct HttpLevel {
    written: LocationWritten,
    /// `None` until it is resolved.
    location: Option<Location>,
}

/// Http block between reading and serving.
struct Assembly<'s, 'f> {
    cx: &'s mut Scope<'f>,
    listeners: Vec<Listener>,
    http: HttpLevel,
    servers: Vec<Made>,
    units: Vec<UnitBuild>,
    /// Index of the unit of each server that is read.
    unit_of: Vec<Option<usize>>,
    sharing: Sharing,
    loader: Loader,
    /// Values that modules keep from one location to the next.
    memory: Parts,
    /// Values that modules leave for the configuration.
    parts: Parts,
    /// Directories that modules need and no directive names.
    directories: Vec<PathBuf>,
}

impl Assembly<'_, '_> {
    fn http_level(&mut self, mut l: LocationBuild) -> HttpLevel {
        self.complete(&mut l);
        let settings = l.written.resolve(None, &mut self.sharing);
        let location = self.level(&mut l, settings, None, LocationTree::default());
        HttpLevel { written: l.written, location: Some(location) }
    }

    /// Begins to note the effects of work on a server, if it belongs to a unit.
    fn begin_step(&mut self, server: usize) {
        if self.unit(server).is_some() {
            self.cx.begin_part();
            self.cx.vars.begin_uses();
        }
    }

    /// Adds the effects to the effects of the unit.
    fn end_step(&mut self, server: usize) {
        if self.unit(server).is_some() {
            let (vars, build) = (self.cx.vars.end_uses(), self.cx.end_part());
            let effects = build.map(|build| UnitEffects { build, vars, ..UnitEffects::default() });
            if let Some(unit) = self.unit(server) {
                unit.add(effects);
            }
        }
    }

    /// Returns the unit of a server that is read.
    fn unit(&mut self, server: usize) -> Option<&mut UnitBuild> {
        let at = self.unit_of.get(server).copied().flatten()?;
        self.units.get_mut(at)
    }

    /// Makes a server and adds it. `pool`: `connection_pool_size` of the http level.
    fn new_server(&mut self, mut built: ServerBuild, http: &modules::server::Written, pool: Option<u64>) {
        let mut frame = resolve_server(&mut built, http);
        for route in std::mem::take(&mut built.routes) {
            match route.find(&frame.named) {
                Ok(route) => frame.routes.push(route),
                Err(error) => self.cx.keep_late(error),
            }
        }
        for level in &built.locations {
            if let Err(error) = rewrite::check_targets(&level.ops, &|name| frame.named.contains_key(name)) {
                self.cx.keep_late(error);
            }
        }
        let pool = built.pool.or(pool).unwrap_or(CONNECTION_POOL);
        // nginx refuses such a configuration with the same message.
        if frame.settings.large_client_header_buffers.size < pool {
            let text = "the \"large_client_header_buffers\" size must be equal to or greater than \"connection_pool_size\"";
            let error = self.cx.error_at_end(text);
            self.cx.keep_late(error);
        }
        let server = Box::new(self.server(frame, std::mem::take(&mut built.locations)));
        self.servers.push(Made::New { server, listens: built.listens });
    }

    /// Makes the levels of a server, parents first.
    fn server(&mut self, mut server: Server, levels: Vec<LocationBuild>) -> Server {
        let tree = |l: &LocationBuild| LocationTree::build(&l.children, &levels);
        let trees: Vec<_> = levels.iter().map(tree).collect();
        let mut written: Vec<LocationWritten> = Vec::with_capacity(levels.len());
        let number = self.servers.len();
        for (mut l, tree) in levels.into_iter().zip(trees) {
            if let Some(outer) = l.parent.map_or(Some(&self.http.written), |p| written.get(p)) {
                inherit(&mut l, outer, &mut self.sharing);
            }
            self.complete(&mut l);
            let around = match l.parent {
                None => self.http.location.as_ref().map(|l| (&self.http.written, &l.settings)),
                Some(p) => written.get(p).zip(server.locations.get(p).map(|l| &l.settings)),
            };
            let settings = l.written.resolve(around, &mut self.sharing);
            let at = (number, server.locations.len());
            server.locations.push(self.level(&mut l, settings, Some(at), tree));
            written.push(l.written);
        }
        complete_conditional_levels(&mut server.locations);
        for (l, written) in server.locations.iter_mut().zip(&written) {
            let mut settling = Settling { memory: &mut self.memory, sharing: &mut self.sharing, cx: self.cx };
            config_hooks(|hooks| hooks.settle).for_each(|settle| settle(l, written, &mut settling));
        }
        server
    }

    /// Makes a level from its settings in effect. `at` has the numbers of its server and of the level there.
    fn level(
        &mut self,
        l: &mut LocationBuild,
        settings: LocationSettings,
        at: Option<(usize, LocationId)>,
        tree: LocationTree,
    ) -> Location {
        self.check_level(at.is_some(), &settings);
        let (server, location) = at.unwrap_or_default();
        let content = l.content.as_ref();
        for place in config_hooks(|hooks| hooks.place) {
            let (parts, settings, cx) = (&mut l.parts, &settings, &mut *self.cx);
            if let Err(error) = place(&mut Placing { parts, content, settings, server, location, cx }) {
                self.cx.keep_late(error);
            }
        }
        let ops = std::mem::take(&mut l.ops);
        let plan = Plan::new(list::all(), &settings);
        let auto_redirect = l.redirects();
        let kind = std::mem::replace(&mut l.kind, Kind::Http);
        Location {
            name: std::mem::take(&mut l.name),
            kind,
            at: l.at,
            parent: l.parent,
            settings,
            ops,
            content: l.content.take(),
            internal: l.internal,
            limit_except: l.limit_except.take(),
            tree,
            plan,
            status_zone: l.status_zone.take(),
            upstream_tls: None,
            auto_redirect,
        }
    }

    /// Fills in what a level needs that has inherited, and checks it.
    fn complete(&mut self, l: &mut LocationBuild) {
        // The default log is opened only if some level has no `access_log`.
        if !matches!(l.kind, Kind::Http) && l.written.log.access_log.is_none() {
            Arc::make_mut(&mut l.written.log).access_log = Some(modules::log::default_log(self.cx));
        }
        if !matches!(l.kind, Kind::Http) {
            for text in config_hooks(|hooks| hooks.check_level).filter_map(|check| check(&l.written).err()) {
                let error = self.cx.error_at_end(text);
                self.cx.keep_late(error);
            }
        }
    }

    /// Checks settings of a level. `inner` is `true` unless it is the http level.
    fn check_level(&mut self, inner: bool, settings: &LocationSettings) {
        for check in config_hooks(|hooks| hooks.check_settings) {
            let level = InEffectAt { settings, is_http: !inner, tables: &self.cx.tables };
            if let Err(text) = check(&level) {
                self.cx.keep_late(plain(&text));
            }
        }
    }

    /// Reports names that are used and not defined.
    fn check_tables(&mut self) {
        for error in self.cx.tables.undefined(self.cx.end) {
            self.cx.keep_late(error);
        }
    }

    /// Makes the TLS configuration of each server.
    fn load_server_tls(&mut self, front: u8) {
        let mut source = self.certificate_source();
        for number in 0..self.servers.len() {
            self.begin_step(number);
            let repeatable = self.load_tls_of(number, source.as_deref_mut());
            self.end_step(number);
            if let Some(unit) = self.unit(number)
                && !repeatable
            {
                unit.spoil();
            }
        }
        if let Some(source) = source {
            let needed = source.finish(front, &mut self.parts);
            self.directories = needed.directories;
            self.listeners.extend(needed.listeners);
        }
    }

    /// Returns the source of certificates that no directive names, which knows the names of all servers.
    fn certificate_source(&mut self) -> Option<Box<dyn CertificateSource>> {
        let resolver =
            self.http.location.as_ref().and_then(|l| resolver::SETTINGS.of(&l.settings).resolver.0.as_ref());
        let listens = self.servers.iter().flat_map(Made::listens).collect();
        let begin = config_hooks(|hooks| hooks.certificates).next()?;
        let mut source = begin(Issuing { resolver, listens, cx: self.cx });
        // A certificate may be for the names of several servers, so all names are collected before one is chosen.
        for (number, made) in self.servers.iter().enumerate() {
            let Made::New { server: s, listens, .. } = made else { continue };
            let Some(l) = s.root() else { continue };
            let collected = source.collect(&subject(number, s, listens, l), self.cx);
            collected.unwrap_or_else(|error| self.cx.keep_late(error));
        }
        source.prepare(self.cx);
        Some(source)
    }

    /// Makes the TLS configuration of a server. Returns `false` if a unit with it cannot be taken over.
    fn load_tls_of(&mut self, number: usize, source: Option<&mut (dyn CertificateSource + 'static)>) -> bool {
        let Some(made) = self.servers.get_mut(number) else { return false };
        let Made::New { server: s, listens, .. } = made else {
            // The servers of a unit have one list of certificates, so reading it with the first server is enough.
            if let Made::Kept(unit, 0) = made {
                self.loader.read_again(&unit.certificates);
            }
            return true;
        };
        let Some(l) = s.locations.first() else { return true };
        let chosen = source.map(|source| source.choose(&subject(number, s, listens, l), self.cx));
        let Chosen { issued, is_ordered } = match chosen.transpose() {
            Ok(chosen) => chosen.unwrap_or_default(),
            Err(error) => {
                self.cx.keep_late(error);
                return false;
            }
        };
        // Orders for certificates and stapling are effects of reading that cannot be repeated, so the unit has to be read each time.
        let repeatable = issued.is_empty() && !is_ordered && !l.settings.tls.stapling;
        let resolver = resolver::SETTINGS.of(&l.settings).resolver.0.as_ref();
        let application = ssl::SETTINGS.of(&l.settings).application();
        let input = ServerInput { settings: &l.settings.tls, application, resolver, issued };
        // The files that are read here are the certificates of the unit, so they are recorded apart from all others.
        let outer = self.cx.files.exchange_reads(Reads::default());
        match self.loader.server(&input, self.cx) {
            Ok(tls) => s.tls = tls,
            Err(error) => self.cx.keep_late(error),
        }
        let reads = self.cx.files.exchange_reads(outer);
        let unit = self.unit_of.get(number).copied().flatten().and_then(|at| self.units.get_mut(at));
        if let Some(State::Read { certificates, .. }) = unit.map(|unit| &mut unit.state) {
            certificates.extend(reads.paths().map(PathBuf::from));
        }
        self.cx.files.note_reads(reads);
        repeatable
    }

    /// Makes the TLS configuration for upstreams. Locations with the same settings share it.
    fn load_upstream_tls(&mut self) {
        for number in 0..self.servers.len() {
            self.begin_step(number);
            if let Some(Made::New { server, .. }) = self.servers.get_mut(number) {
                let mut loading =
                    LoadingTls { memory: &mut self.memory, loader: &mut self.loader, cx: self.cx };
                let mut loaded = Loaded::Repeatable;
                for l in &mut server.locations {
                    for load in config_hooks(|hooks| hooks.load_tls) {
                        loaded = loaded.and(load(l, &mut loading));
                    }
                }
                if let Some(unit) = self.unit(number)
                    && loaded == Loaded::Unrepeatable
                {
                    unit.spoil();
                }
            }
            self.end_step(number);
        }
    }

    /// Checks that the default server of each TLS address has what its handshakes need.
    fn check_certificates(&mut self) {
        let listening = |made| Listening { names: &[], listens: Made::listens(made), ordinal: 0 };
        let listening: Vec<_> = self.servers.iter().map(listening).collect();
        let lacks = |server: usize| {
            let facts = self.servers.get(server)?.facts()?;
            match (facts.tls, facts.v13) {
                (false, _) => Some(Lacking::Certificate),
                (true, false) => Some(Lacking::Tls13),
                (true, true) => None,
            }
        };
        check_certificates(&self.listeners, &listening, lacks, self.cx);
    }

    /// Has all servers accept CONNECT if any location has `tunnel_pass`, since the location is not known when a head is read. Servers
    /// that were taken over do not accept it, so they do not fit.
    fn allow_tunnels(&mut self) {
        let tunnels = self.servers.iter().filter_map(Made::facts).any(|facts| facts.tunnels);
        for made in self.servers.iter_mut().filter(|_| tunnels) {
            match (made, &mut self.cx.again) {
                (Made::New { server, .. }, _) => server.head.connect = true,
                (Made::Kept(..), Some(again)) => again.misfit = true,
                (Made::Kept(..), None) => {}
            }
        }
        // The next configuration may have no tunnels, so its units have to be read again.
        if tunnels {
            self.units.iter_mut().for_each(UnitBuild::spoil);
        }
    }

    fn finish(self) -> (Http, Vec<Listener>, Memory) {
        let Assembly {
            cx, mut listeners, http, servers: made, loader, units, mut parts, directories, ..
        } = self;
        let facts: Vec<Facts> = made.iter().filter_map(Made::facts).collect();
        for l in listeners.iter_mut().filter(|l| !l.outside) {
            // The default server's setting applies, since the server name is not known when a connection is accepted.
            l.nodelay = facts.get(l.default.default_server).map(|facts| facts.nodelay);
        }
        let resolver =
            http.location.as_ref().and_then(|l| resolver::SETTINGS.of(&l.settings).resolver.0.as_ref());
        let mut tables = std::mem::take(&mut cx.tables);
        if let Some(again) = &mut cx.again {
            again.misfit |= tables.upstreams.misfit;
        }
        let groups = std::mem::take(&mut tables.upstreams);
        let (upstreams, errors) = groups.finish(resolver, |parts, errors| {
            config_hooks(|hooks| hooks.complete_group).for_each(|complete| complete(parts, &tables, errors));
        });
        errors.into_iter().for_each(|error| cx.keep_late(error));
        config_hooks(|hooks| hooks.finish).for_each(|finish| finish(&mut tables, &mut parts));
        let mut log_formats = tables.log_formats;
        for f in &mut log_formats {
            // Only now is it known which variables directives have defined.
            f.plan(&cx.vars);
        }
        let levels = made.iter().map(|made| match made {
            Made::New { server, .. } => server.locations.len(),
            Made::Kept(..) => 0,
        });
        let new_levels = levels.sum();
        let serves = cx.again.as_ref().is_none_or(|again| again.serves);
        let units = if cx.again.is_some() { units } else { Vec::new() };
        let (servers, units) = hand_out(made, units, &facts, &upstreams, serves);
        let mut http = Http {
            upstreams,
            shows_hello: shows_hello(&cx.vars),
            certificate_files: loader.paths,
            directories,
            staplings: loader.staplings.into_iter().map(Arc::new).collect(),
            conf_dir: cx.conf_path(b""),
            parts,
            shared_store: tables.shared_store,
            // If any two servers differ, then two adjacent ones do.
            heads_differ: facts.windows(2).any(|pair| pair[0].head != pair[1].head),
            has_auto_redirect: facts.iter().any(|facts| facts.redirects),
            is_watched: facts.iter().any(|facts| facts.is_watched),
            shows_certificates: facts.iter().any(|facts| facts.shows_certificates),
            default_body_temp: facts.iter().any(|facts| facts.default_body_temp),
            default_proxy_temp: facts.iter().any(|facts| facts.default_proxy_temp),
            servers,
            new_levels,
            // Heads that are remembered with files carry this number, so that none outlives a reload.
            serial: forebay_sys::serial::next(),
            system_resolver: OnceLock::new(),
            log_formats,
            ..Http::default()
        };
        http.first_hooks = module::first_hooks(list::all(), &http);
        (http, listeners, Memory { units, ..Memory::default() })
    }
}

/// Returns the functions of one kind of all modules.
fn config_hooks<F>(kind: impl Fn(&ConfigHooks) -> Option<F>) -> impl Iterator<Item = F> {
    list::all().iter().filter_map(move |module| kind(&module.config))
}

/// Returns the servers, in order, and the units for the next configuration. Without `serves` there are no servers.
fn hand_out(
    made: Vec<Made>,
    units: Vec<UnitBuild>,
    facts: &[Facts],
    upstreams: &Table,
    serves: bool,
) -> (Vec<Arc<Server>>, Units) {
    let mut servers = Vec::with_capacity(if serves { made.len() } else { 0 });
    let mut kept = Units::default();
    let mut units = units.into_iter().peekable();
    let mut of_unit: Vec<UnitServer> = Vec::new();
    let mut made = made.into_iter().zip(facts).enumerate().peekable();
    loop {
        // Units without servers have an empty range.
        while let Some(unit) = units.next_if(|unit| made.peek().is_none_or(|(n, _)| unit.servers.end <= *n)) {
            kept.extend(unit.finish(std::mem::take(&mut of_unit), upstreams));
        }
        let Some((number, (made, facts))) = made.next() else { break };
        let new = match made {
            Made::Kept(unit, at) => {
                servers.extend(unit.servers.get(at).and_then(|s| s.server.clone()));
                continue;
            }
            Made::New { server, listens, .. } => (Arc::<Server>::from(server), listens),
        };
        let (server, listens) = new;
        if units.peek().is_some_and(|unit| unit.servers.contains(&number)) {
            of_unit.push(UnitServer {
                names: server.names.clone(),
                listens: listens.into(),
                facts: *facts,
                server: serves.then(|| server.clone()),
            });
        }
        if serves {
            servers.push(server);
        }
    }
    (servers, kept)
}
