//! Passes that make the levels that were read into settings that serve. Their order matters and is that of
//! [`Builder::finish`].

use super::build::{Builder, LocationBuild, ServerBuild};
use super::{Http, Kind, Location, LocationId, Server};
use crate::config::Scope;
use crate::config::{Listener, checks, names::ServerName, plain};
use crate::location::LocationTree;
use crate::modules::{self, Content, LocationSettings, LocationWritten, Sharing, acme};
use forebay_conf::error::{Error, Level};
use forebay_core::config::{Lacking, check_certificates};
use forebay_core::tls::client::ClientTls;
use forebay_core::tls::loader::{Loader, ServerInput};
use forebay_core::tls::vars::shows_hello;
use forebay_http::h1::request::Limits;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

impl Builder<'_, '_> {
    /// Ends the construction. Keeps errors such as conflicting listen options ([`forebay_core::config::Build::keep_late`]).
    /// `front` is the number of the HTTP front end.
    pub(crate) fn finish(mut self, front: u8) -> (Http, Vec<Listener>) {
        let listening: Vec<_> = self.servers.iter().map(ServerBuild::listening).collect();
        let listeners = forebay_core::config::listeners(&listening, front, self.cx);
        let mut frames: Vec<_> =
            self.servers.iter_mut().map(|s| resolve_server(s, &self.http_server)).collect();
        self.check_pools(&frames);
        self.find_routes(&mut frames);
        let Builder { cx, level, servers: mut built, sharing, .. } = self;
        let mut assembly = Assembly {
            cx,
            listeners,
            http: HttpLevel::default(),
            servers: Vec::with_capacity(built.len()),
            sharing,
            loader: Loader::default(),
            acme: Default::default(),
            hooks: Vec::new(),
            families: HashMap::new(),
        };
        assembly.http = assembly.http_level(level);
        for (frame, built) in frames.into_iter().zip(&mut built) {
            assembly.server(frame, std::mem::take(&mut built.locations));
        }
        assembly.check_tables();
        assembly.load_server_tls(&built, front);
        assembly.load_upstream_tls();
        assembly.check_certificates(&built);
        assembly.allow_tunnels();
        assembly.finish()
    }

    /// Checks `connection_pool_size` of each server.
    fn check_pools(&mut self, servers: &[Server]) {
        for (built, s) in self.servers.iter().zip(servers) {
            let pool = built.pool.or(self.pool).unwrap_or(checks::CONNECTION_POOL);
            if s.settings.large_client_header_buffers.size < pool {
                let text = "the \"large_client_header_buffers\" size must be equal to or greater than \"connection_pool_size\"";
                let error = self.cx.error_at_end(text);
                self.cx.keep_late(error);
            }
        }
    }

    /// Finds the named locations of `route`s.
    fn find_routes(&mut self, servers: &mut [Server]) {
        for (built, s) in self.servers.iter_mut().zip(servers) {
            for route in std::mem::take(&mut built.routes) {
                match route.find(&s.named) {
                    Ok(route) => s.routes.push(route),
                    Err(error) => self.cx.keep_late(error),
                }
            }
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
        acme: None,
        tls: None,
        named: std::mem::take(&mut s.named),
        routes: Vec::new(),
        names: std::mem::take(&mut s.names),
    }
}

/// Has a level take what it does not set from the level around it.
fn inherit(l: &mut LocationBuild, outer: &LocationWritten, sharing: &mut Sharing) {
    if l.written.headers.merges_lines(&outer.headers) {
        Arc::make_mut(&mut l.written.headers).merge_lines(&outer.headers);
    }
    l.written.inherit(outer, sharing);
}

/// Gives `if` and `limit_except` blocks what they do not inherit as settings: they stand for their location.
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
        // As in nginx `if` keeps every handler, `limit_except` those that pass requests on.
        let kept = |c: &&Content| matches!(l.kind, Kind::If) || matches!(c, Content::Proxy(_));
        if l.content.is_none() {
            l.content = outer.content.as_ref().filter(kept).cloned();
        }
    }
}

/// Returns the facts about a server that its certificates by ACME depend on. `l`: its own level.
fn subject<'s>(s: &'s Server, built: &'s ServerBuild, l: &'s Location) -> acme::Subject<'s> {
    acme::Subject {
        settings: &l.settings.acme,
        names: &s.names,
        listens: &built.listens,
        certified: !l.settings.tls.certificate.0.is_empty(),
    }
}

/// Limits of request heads of a server. Whether it accepts CONNECT is known when all locations are.
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
    servers: Vec<Server>,
    sharing: Sharing,
    loader: Loader,
    /// Certificates that are got by ACME.
    acme: acme::Acme,
    /// `acme_hook`s.
    hooks: Vec<acme::Hook>,
    /// Results of [`Assembly::apply_family`]. Locations with the same directives of a family share one.
    families: HashMap<*const (), (LocationSettings, LocationWritten)>,
}

impl Assembly<'_, '_> {
    fn http_level(&mut self, mut l: LocationBuild) -> HttpLevel {
        self.complete(&mut l);
        let settings = l.written.resolve(None, &mut self.sharing);
        let location = self.level(&mut l, settings, None, LocationTree::default());
        HttpLevel { written: l.written, location: Some(location) }
    }

    /// Makes the levels of a server, parents first, and adds it.
    fn server(&mut self, mut server: Server, levels: Vec<LocationBuild>) {
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
            self.apply_family(l, written);
        }
        self.servers.push(server);
    }

    /// Makes a level of its settings in effect. `at`: the numbers of its server and of the level there.
    fn level(
        &mut self,
        l: &mut LocationBuild,
        settings: LocationSettings,
        at: Option<(usize, LocationId)>,
        tree: LocationTree,
    ) -> Location {
        self.check_level(at.is_some(), &settings);
        let (server, location) = at.unwrap_or_default();
        if let Some(check) = l.health_check.take() {
            let place = ((server, location), settings.proxy.as_ref());
            if let Err(error) = modules::proxy::check(check, l.content.as_ref(), place, self.cx) {
                self.cx.keep_late(error);
            }
        }
        let hooks = std::mem::take(&mut l.acme_hooks);
        self.hooks.extend(hooks.into_iter().map(|hook| hook.at(server, location)));
        let ops = std::mem::take(&mut l.ops);
        let plan = modules::Plan::for_location(&settings, &ops);
        let kind = std::mem::replace(&mut l.kind, Kind::Http);
        let auto_redirect = matches!(kind, Kind::Prefix | Kind::PrefixOnly)
            && l.name.last() == Some(&b'/')
            && l.content.as_ref().is_some_and(Content::redirects);
        Location {
            name: std::mem::take(&mut l.name),
            kind,
            parent: l.parent,
            settings,
            ops,
            content: l.content.take(),
            try_files: l.try_files.take(),
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
        // The default log is opened only where no level has an `access_log`.
        if !matches!(l.kind, Kind::Http) && l.written.log.access_log.is_none() {
            Arc::make_mut(&mut l.written.log).access_log = Some(modules::log::default_log(self.cx));
        }
        if !matches!(l.kind, Kind::Http)
            && let Err(text) = l.written.buffers()
        {
            let error = self.cx.error_at_end(text);
            self.cx.keep_late(error);
        }
    }

    /// Checks settings of a level; `inner`: it is not the http level.
    fn check_level(&mut self, inner: bool, settings: &LocationSettings) {
        if let Err(text) = settings.referer.check() {
            self.cx.keep_late(plain(text));
        }
        if inner && let Err(text) = self.cx.tables.charset_maps.check(settings) {
            self.cx.keep_late(plain(&text));
        }
    }

    /// Translates the directives of `fastcgi_`, `uwsgi_` and the like to those of `proxy_`.
    fn apply_family(&mut self, l: &mut Location, written: &LocationWritten) {
        let Some(Content::Proxy(pass)) = &l.content else { return };
        let Some(family) = modules::family::identity(pass.protocol, written) else { return };
        if let Some((same, _)) = self.families.get(&family) {
            modules::family::share(&mut l.settings, same);
            return;
        }
        let warning = modules::family::apply(pass.protocol, written, &mut l.settings);
        // The directives are kept, so that others do not get their address.
        self.families.insert(family, (l.settings.clone(), written.clone()));
        let warning = warning.map(|text| Error { level: Level::Warn, ..self.cx.error_at_end(text) });
        self.cx.warnings.extend(warning);
    }

    /// Reports names that are used and not defined.
    fn check_tables(&mut self) {
        for error in self.cx.tables.undefined(self.cx.end) {
            self.cx.keep_late(error);
        }
    }

    /// Makes the TLS configuration of each server.
    fn load_server_tls(&mut self, built: &[ServerBuild], front: u8) {
        let http = self.http.location.as_ref().and_then(|l| l.settings.resolver.resolver.0.clone());
        let (issuers, hooks) = (std::mem::take(&mut self.cx.tables.acme), std::mem::take(&mut self.hooks));
        let listens = built.iter().flat_map(|b| &b.listens);
        let mut ordering = acme::Ordering::new(issuers, hooks, http.as_ref(), listens);
        // The certificate of a client is for the names of all its servers.
        for (s, built) in self.servers.iter().zip(built) {
            let Some(l) = s.locations.first() else { continue };
            let collected = ordering.collect(&subject(s, built, l), self.cx);
            collected.unwrap_or_else(|error| self.cx.keep_late(error));
        }
        for server in std::mem::take(&mut self.cx.client_names) {
            ordering.grant(&server).unwrap_or_else(|error| self.cx.keep_late(error));
        }
        let ordered = ordering.order_for_clients(&mut self.cx.issued_to_clients);
        let ordered = ordered.and_then(|()| ordering.check_hooks());
        ordered.unwrap_or_else(|error| self.cx.keep_late(error));
        for (s, built) in self.servers.iter_mut().zip(built) {
            let Some(l) = s.locations.first() else { continue };
            let (issued, own) = match ordering.server(&subject(s, built, l), self.cx) {
                Ok(certificates) => certificates,
                Err(error) => {
                    self.cx.keep_late(error);
                    continue;
                }
            };
            s.acme = own;
            let resolver = l.settings.resolver.resolver.0.as_ref();
            let application = l.settings.ssl.application();
            let input = ServerInput { settings: &l.settings.tls, application, resolver, issued };
            match self.loader.server(&input, self.cx) {
                Ok(tls) => s.tls = tls,
                Err(error) => self.cx.keep_late(error),
            }
        }
        let (acme, listeners) = ordering.finish(front);
        self.acme = acme;
        self.listeners.extend(listeners);
    }

    /// Makes the TLS configuration for upstreams. Locations with the same settings share it.
    fn load_upstream_tls(&mut self) {
        let mut made: HashMap<(*const modules::proxy_ssl::Settings, bool), Arc<ClientTls>> = HashMap::new();
        for l in self.servers.iter_mut().flat_map(|s| &mut s.locations) {
            if !matches!(&l.content, Some(Content::Proxy(pass)) if pass.may_encrypt()) {
                continue;
            }
            let s = &l.settings.proxy_ssl;
            let h2 = l.settings.proxy.http_version == modules::proxy::HttpVersion::V2;
            let key = (Arc::as_ptr(s), h2);
            if let Some(same) = made.get(&key) {
                l.upstream_tls = Some(same.clone());
                continue;
            }
            let alpn: &[&[u8]] = if h2 { &[b"h2"] } else { &[] };
            match ClientTls::new(s, alpn, &mut self.loader, self.cx) {
                Ok(tls) => {
                    let tls = Arc::new(tls);
                    made.insert(key, tls.clone());
                    l.upstream_tls = Some(tls);
                }
                Err(error) => self.cx.keep_late(error),
            }
        }
    }

    /// Checks that the default server of each TLS address has what its handshakes need.
    fn check_certificates(&mut self, built: &[ServerBuild]) {
        let listening: Vec<_> = built.iter().map(ServerBuild::listening).collect();
        let lacks = |server: usize| {
            let s = self.servers.get(server)?;
            let v13 = s.locations.first().is_none_or(|l| l.settings.tls.protocols.v13);
            match (&s.tls, v13) {
                (None, _) => Some(Lacking::Certificate),
                (Some(_), false) => Some(Lacking::Tls13),
                (Some(_), true) => None,
            }
        };
        check_certificates(&self.listeners, &listening, lacks, self.cx);
    }

    /// Has all servers accept CONNECT if any location has `tunnel_pass`: the location is not known when a head is read.
    fn allow_tunnels(&mut self) {
        let tunnels = self
            .servers
            .iter()
            .flat_map(|s| &s.locations)
            .any(|l| matches!(l.content, Some(Content::Tunnel(_))));
        self.servers.iter_mut().for_each(|s| s.head.connect = tunnels);
    }

    fn finish(self) -> (Http, Vec<Listener>) {
        let Assembly {
            cx,
            mut listeners,
            http: HttpLevel { location: level, .. },
            servers,
            loader,
            acme,
            ..
        } = self;
        let locations = || servers.iter().flat_map(|s| &s.locations);
        for l in listeners.iter_mut().filter(|l| !l.outside) {
            // The default server's setting applies, since the server name is not known when a connection is accepted.
            let root = servers.get(l.default.default_server).and_then(|s| s.locations.first());
            l.nodelay = root.map(|root| root.settings.core.tcp_nodelay);
        }
        let resolver = level.as_ref().and_then(|l| l.settings.resolver.resolver.0.as_ref());
        let tables = std::mem::take(&mut cx.tables);
        let (upstreams, errors) = tables.upstreams.finish(resolver);
        errors.into_iter().for_each(|error| cx.keep_late(error));
        let mut log_formats = tables.log_formats;
        for f in &mut log_formats {
            f.plan(&cx.vars);
        }
        let http = Http {
            upstreams,
            shows_hello: shows_hello(&cx.vars),
            certificate_files: loader.paths,
            acme,
            staplings: loader.staplings.into_iter().map(Arc::new).collect(),
            conf_dir: cx.conf_path(b""),
            caches: tables.caches.finish(),
            shared_store: tables.shared_store,
            heads_differ: servers.windows(2).any(|pair| pair[0].head != pair[1].head),
            has_auto_redirect: locations().any(|l| l.auto_redirect),
            is_watched: locations().any(|l| matches!(l.content, Some(Content::Api | Content::Dashboard))),
            servers,
            serial: forebay_sys::serial::next(),
            system_resolver: OnceLock::new(),
            log_formats,
            charset_maps: tables.charset_maps,
            ..Http::default()
        };
        (http, listeners)
    }
}
