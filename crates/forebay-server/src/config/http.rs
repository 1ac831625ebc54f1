//! The http block: servers, locations and addresses, built from the tree.

use super::checks;
use super::listen::{self, AddressOptions, ListenDirective};
use super::names::NameTable;
use super::scope::Scope;
use super::{ListenAddr, Listener, value};
use crate::location::LocationTree;
use crate::modules::{self, LocationSettings, LocationWritten, rewrite};
use crate::request::Request;
use crate::tls::client::ClientTls;
use crate::upstream::protocol::Protocol;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Block, Directive};
use forebay_core::pattern::Pattern;
use forebay_core::vars::Var;
use forebay_http::h1::request::Limits;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

/// Number of a location: index into [`Http::locations`].
pub type LocationId = usize;

/// Settings of the http block, ready to serve.
#[derive(Debug, Default)]
pub struct Http {
    /// Virtual servers in file order.
    pub servers: Vec<Server>,
    /// Every level that has settings: index 0 is the http level itself, parents come first.
    pub locations: Vec<Location>,
    /// Variables.
    pub vars: Vec<Var<Request>>,
    /// What answers at each listener, in the order of `Config::listeners`.
    pub addresses: Vec<ListenerAddresses>,
    /// Log formats.
    pub log_formats: Vec<crate::access_log::Format>,
    /// For names that come up where there is no `resolver`; made when it is first needed.
    pub system_resolver: std::sync::OnceLock<Arc<forebay_net::resolver::Resolver>>,
    /// A number that no other configuration of this process has.
    pub serial: u64,
    /// Some variable shows a field of the response head.
    pub logs_sent_fields: bool,
    /// `charset_map`s.
    pub charset_maps: modules::charset::Maps,
    /// Upstream groups.
    pub upstreams: Vec<crate::upstream::Group>,
    /// Some variable shows what a ClientHello offers.
    pub shows_hello: bool,
    /// Files of certificates and keys, which may be renewed.
    pub certificate_files: Vec<std::path::PathBuf>,
    /// Certificates whose state is asked for, to be shown to clients.
    pub staplings: Vec<crate::tls::ocsp::staple::Stapling>,
    /// Directory of the configuration file: certificates that are loaded later are found from there.
    pub conf_dir: std::path::PathBuf,
    /// Caches of responses.
    pub caches: Vec<Arc<crate::cache::Cache>>,
    /// Servers differ in what heads they take, so that it depends on the name that a client asks for.
    pub heads_differ: bool,
    /// Whether any location has `auto_redirect`.
    pub has_auto_redirect: bool,
}

/// Addresses served by one socket: a wildcard socket may stand for several.
#[derive(Debug)]
pub struct ListenerAddresses {
    /// For connections to any other local address.
    pub default: Address,
    /// Local addresses with servers of their own.
    pub exact: Vec<(SocketAddr, Address)>,
}

/// One listen address with its virtual servers.
#[derive(Debug, Default)]
pub struct Address {
    /// Index of the default server.
    pub default_server: usize,
    /// Other servers by name.
    pub names: NameTable,
    /// `proxy_protocol`, `ssl` and the like.
    pub options: AddressOptions,
}

/// A virtual server.
#[derive(Debug)]
pub struct Server {
    /// First `server_name`, empty if none.
    pub name: Vec<u8>,
    /// Settings of the server level.
    pub settings: modules::server::Settings,
    /// What it takes of heads.
    pub head: Limits,
    /// The location level of the server itself.
    pub root: LocationId,
    /// Locations.
    pub tree: LocationTree,
    /// Named locations.
    pub named: HashMap<Vec<u8>, LocationId>,
    /// All its names.
    pub names: Vec<super::names::ServerName>,
    /// TLS, if it has any.
    pub tls: Option<Arc<crate::tls::server::ServerTls>>,
    /// Names with regular expressions, whose captures are set when the server is chosen.
    pub has_captures: bool,
}

/// What a server takes of heads; whether it takes CONNECT is known when all locations are.
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

/// What kind of level a [`Location`] is.
#[derive(Debug)]
pub enum Kind {
    /// The http level.
    Http,
    /// A server's own level.
    Server,
    /// `location = /x`.
    Exact,
    /// `location /x`.
    Prefix,
    /// `location ^~ /x`.
    PrefixOnly,
    /// `location ~ x` or `~* x`.
    Regex(Pattern),
    /// `location @x`.
    Named,
    /// An `if` block.
    If,
    /// `limit_except`.
    LimitExcept,
}

impl Kind {
    /// `location = /x`.
    pub fn is_exact(&self) -> bool {
        matches!(self, Kind::Exact)
    }
}

/// A location, or another level with settings.
#[derive(Debug)]
pub struct Location {
    /// As written.
    pub name: Vec<u8>,
    /// Kind.
    pub kind: Kind,
    /// Enclosing level.
    pub parent: Option<LocationId>,
    /// Settings of all modules.
    pub settings: LocationSettings,
    /// Rewrite directives (nginx: the rewrite module), in order.
    pub ops: Vec<rewrite::Op>,
    /// Content handler, if one took the location.
    pub content: Option<modules::Content>,
    /// `try_files`.
    pub try_files: Option<modules::try_files::TryFiles>,
    /// `internal`.
    pub internal: bool,
    /// `limit_except`: methods that are excepted, as names, and the level for all others.
    pub limit_except: Option<(Vec<Vec<u8>>, LocationId)>,
    /// Locations inside this one.
    pub tree: LocationTree,
    /// `status_zone`.
    pub status_zone: Option<Arc<crate::metrics::Zone>>,
    /// How upstreams are spoken to where that is encrypted.
    pub upstream_tls: Option<Arc<ClientTls>>,
    /// Hooks that are enabled here.
    pub plan: modules::Plan,
    /// A prefix location that ends in a slash and is taken by a proxying handler: the name without the
    /// slash is redirected to it.
    pub auto_redirect: bool,
}

/// A location under construction.
#[derive(Debug)]
pub struct LocationBuild {
    /// As written.
    pub name: Vec<u8>,
    /// Kind.
    pub kind: Kind,
    /// Enclosing level.
    pub parent: Option<LocationId>,
    /// What this level says.
    pub written: LocationWritten,
    /// Rewrite directives.
    pub ops: Vec<rewrite::Op>,
    /// Content handler.
    pub content: Option<modules::Content>,
    /// `try_files`.
    pub try_files: Option<modules::try_files::TryFiles>,
    /// `internal`.
    pub internal: bool,
    /// `limit_except`.
    pub limit_except: Option<(Vec<Vec<u8>>, LocationId)>,
    /// `status_zone`.
    pub status_zone: Option<Arc<crate::metrics::Zone>>,
    /// `health_check`.
    pub health_check: Option<crate::upstream::health::Check>,
    /// Locations inside this one.
    pub children: Vec<LocationId>,
}

/// Directives that the builder takes itself.
#[cfg(test)]
pub const DIRECTIVES: &[&str] = &["server", "listen", "server_name", "location", "if", "limit_except"];

struct ServerBuild {
    root: LocationId,
    written: modules::server::Written,
    names: Vec<super::names::ServerName>,
    listens: Vec<ListenDirective>,
    /// `connection_pool_size`, bytes.
    pool: Option<u64>,
    named: HashMap<Vec<u8>, LocationId>,
    ordinal_directive: Option<Error>,
}

/// Builds the http level.
pub struct Builder<'s, 'f> {
    /// Shared state.
    pub cx: &'s mut Scope<'f>,
    /// Levels so far.
    pub locations: Vec<LocationBuild>,
    http_server: modules::server::Written,
    /// `connection_pool_size`, bytes.
    pool: Option<u64>,
    servers: Vec<ServerBuild>,
}

impl<'s, 'f> Builder<'s, 'f> {
    /// Starts with the http level.
    pub fn new(cx: &'s mut Scope<'f>) -> Self {
        let mut b = Builder {
            cx,
            locations: Vec::new(),
            http_server: Default::default(),
            pool: None,
            servers: Vec::new(),
        };
        b.add(Kind::Http, b"", None);
        b
    }

    fn add(&mut self, kind: Kind, name: &[u8], parent: Option<LocationId>) -> LocationId {
        self.locations.push(LocationBuild {
            name: name.to_vec(),
            kind,
            parent,
            written: LocationWritten::default(),
            ops: Vec::new(),
            content: None,
            try_files: None,
            internal: false,
            limit_except: None,
            health_check: None,
            status_zone: None,
            children: Vec::new(),
        });
        self.locations.len() - 1
    }

    /// Takes the http block. Directives with errors are left out and the errors kept, so that all are told at once.
    pub fn http_block(&mut self, block: &Block) {
        // Holds for the whole block, wherever it stands.
        for d in block.iter().filter(|d| d.name.text == b"upstream_start_unresolved") {
            self.cx.upstreams.start_unresolved = value::first(d).eq_ignore_ascii_case(b"on");
        }
        for d in block {
            let taken = self.http_directive(d);
            self.keep(taken);
        }
    }

    fn http_directive(&mut self, d: &Directive) -> Result<(), Error> {
        match d.name.text.as_slice() {
            b"server" => self.server_block(d),
            b"connection_pool_size" => self.pool = forebay_conf::units::size(value::first(d)),
            _ if self.http_server.set(d, self.cx)? => {}
            _ if modules::http_directive(d, self.cx)? => {}
            _ => self.location_directive(d, 0)?,
        }
        Ok(())
    }

    fn keep(&mut self, taken: Result<(), Error>) {
        self.cx.keep(taken);
    }

    fn server_block(&mut self, d: &Directive) {
        let root = self.add(Kind::Server, b"", Some(0));
        let mut s = ServerBuild {
            root,
            written: Default::default(),
            names: Vec::new(),
            listens: Vec::new(),
            pool: None,
            named: HashMap::new(),
            ordinal_directive: Some(self.cx.error(d, "")),
        };
        for d in d.block.iter().flatten() {
            let taken = self.server_directive(d, root, &mut s);
            self.keep(taken);
        }
        if s.listens.is_empty() {
            s.listens.push(ListenDirective::default_port());
        }
        if s.names.is_empty() {
            s.names.push(super::names::ServerName::Exact(Vec::new()));
        }
        self.servers.push(s);
    }

    fn server_directive(
        &mut self,
        d: &Directive,
        root: LocationId,
        s: &mut ServerBuild,
    ) -> Result<(), Error> {
        match d.name.text.as_slice() {
            b"listen" => s.listens.push(listen::parse(d, self.cx)?),
            b"server_name" => super::names::parse(d, self.cx, &mut s.names)?,
            b"connection_pool_size" => s.pool = forebay_conf::units::size(value::first(d)),
            _ if s.written.set(d, self.cx)? => {}
            _ => self.server_or_location_directive(d, root, s)?,
        }
        Ok(())
    }

    fn server_or_location_directive(
        &mut self,
        d: &Directive,
        at: LocationId,
        s: &mut ServerBuild,
    ) -> Result<(), Error> {
        match d.name.text.as_slice() {
            b"location" => self.location_block(d, at, s),
            b"if" => {
                let cond = rewrite::condition(d, self.cx)?;
                let level = self.add(Kind::If, b"", Some(at));
                self.body(d, level, s);
                let ops = std::mem::take(&mut self.locations[level].ops);
                self.locations[at].ops.push(rewrite::Op::If { cond, location: Some(level), ops });
                Ok(())
            }
            b"limit_except" => {
                let methods = d.args.iter().map(|w| w.text.to_ascii_uppercase()).collect::<Vec<_>>();
                for (w, m) in d.args.iter().zip(&methods) {
                    if !modules::core::KNOWN_METHODS.contains(&m.as_slice()) {
                        return Err(self.cx.error(d, format!("invalid method \"{}\"", w.as_str())));
                    }
                }
                if self.locations[at].limit_except.is_some() {
                    return Err(self.cx.error(d, "\"limit_except\" directive is duplicate"));
                }
                let level = self.add(Kind::LimitExcept, b"", Some(at));
                self.body(d, level, s);
                self.locations[at].limit_except = Some((methods, level));
                Ok(())
            }
            _ => self.location_directive(d, at),
        }
    }

    fn body(&mut self, d: &Directive, level: LocationId, s: &mut ServerBuild) {
        for inner in d.block.iter().flatten() {
            let taken = self.server_or_location_directive(inner, level, s);
            self.keep(taken);
        }
    }

    fn location_directive(&mut self, d: &Directive, at: LocationId) -> Result<(), Error> {
        let level = &mut self.locations[at];
        if level.written.set(d, self.cx)? {
            return modules::family::agrees(d, level, self.cx);
        }
        if modules::location_directive(d, level, self.cx)? {
            return Ok(());
        }
        // The grammar table has let it pass: a directive that is a hint or met by design.
        Ok(())
    }

    fn location_block(&mut self, d: &Directive, at: LocationId, s: &mut ServerBuild) -> Result<(), Error> {
        let (kind, name) = location_kind(d, self.cx)?;
        self.check_nesting(d, at, &kind, &name)?;
        let siblings = &self.locations[at].children;
        let duplicate = siblings.iter().any(|c| {
            let l = &self.locations[*c];
            l.name == name
                && matches!(
                    (&l.kind, &kind),
                    (Kind::Exact, Kind::Exact)
                        | (Kind::Named, Kind::Named)
                        | (Kind::Prefix | Kind::PrefixOnly, Kind::Prefix | Kind::PrefixOnly)
                )
        });
        if duplicate {
            return Err(self
                .cx
                .error(d, format!("duplicate location \"{}\"", String::from_utf8_lossy(&name))));
        }
        let named = matches!(kind, Kind::Named);
        let level = self.add(kind, &name, Some(at));
        self.locations[at].children.push(level);
        if named {
            s.named.insert(name, level);
        }
        self.body(d, level, s);
        Ok(())
    }

    fn check_nesting(&self, d: &Directive, at: LocationId, kind: &Kind, name: &[u8]) -> Result<(), Error> {
        let parent = &self.locations[at];
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let (own, outer) = (text(name), text(&parent.name));
        let message = match (&parent.kind, kind) {
            (Kind::Server, _) => return Ok(()),
            (Kind::Exact, _) => format!("location \"{own}\" cannot be inside the exact location \"{outer}\""),
            (Kind::Named, _) => format!("location \"{own}\" cannot be inside the named location \"{outer}\""),
            (_, Kind::Named) => format!("named location \"{own}\" can be on the server level only"),
            (Kind::Regex(_), Kind::Regex(_)) | (_, Kind::Regex(_)) => return Ok(()),
            (Kind::Prefix | Kind::PrefixOnly, _) if !name.starts_with(&parent.name) => {
                format!("location \"{own}\" is outside location \"{outer}\"")
            }
            (Kind::Regex(_), _) => format!("location \"{own}\" is outside location \"{outer}\""),
            _ => return Ok(()),
        };
        Err(self.cx.error(d, message))
    }

    /// Ends the construction: inheritance, defaults, tables. Keeps errors such as conflicting listen options
    /// ([`Scope::keep_late`]).
    pub fn finish(mut self) -> (Http, Vec<Listener>) {
        let (addresses, listeners) = self.addresses();
        let mut servers = Vec::new();
        for s in &mut self.servers {
            s.written.inherit(&self.http_server);
            let tree = LocationTree::build(&self.locations[s.root].children, &self.locations);
            let settings = s.written.resolve();
            if settings.large_client_header_buffers.size
                < s.pool.or(self.pool).unwrap_or(checks::CONNECTION_POOL)
            {
                let text = "the \"large_client_header_buffers\" size must be equal to or greater than \"connection_pool_size\"";
                let error = self.cx.error_at_end(text);
                self.cx.keep_late(error);
            }
            servers.push(Server {
                name: s.names.first().map(super::names::ServerName::text).unwrap_or_default(),
                head: head_limits(&settings),
                settings,
                root: s.root,
                tree,
                tls: None,
                named: std::mem::take(&mut s.named),
                has_captures: s.names.iter().any(super::names::ServerName::has_captures),
                names: std::mem::take(&mut s.names),
            });
        }
        let trees: Vec<LocationTree> = (self.locations.iter())
            .map(|l| {
                if matches!(l.kind, Kind::Server) {
                    LocationTree::default()
                } else {
                    LocationTree::build(&l.children, &self.locations)
                }
            })
            .collect();
        let mut inherited: Vec<LocationWritten> = Vec::new();
        let mut locations: Vec<Location> = Vec::with_capacity(self.locations.len());
        for (mut l, tree) in self.locations.into_iter().zip(trees) {
            if let Some(p) = l.parent {
                if l.written.headers.merges_lines(&inherited[p].headers) {
                    Arc::make_mut(&mut l.written.headers).merge_lines(&inherited[p].headers);
                }
                l.written.inherit(&inherited[p]);
                // The default log is opened only where nothing else is said.
                if l.written.log.access_log.is_none() {
                    Arc::make_mut(&mut l.written.log).access_log = Some(modules::log::default_log(self.cx));
                }
            }
            if l.parent.is_some()
                && let Err(text) = l.written.buffers()
            {
                let error = self.cx.error_at_end(text);
                self.cx.keep_late(error);
            }
            let around = l.parent.and_then(|p| Some((inherited.get(p)?, &locations.get(p)?.settings)));
            let settings = l.written.resolve(around);
            if let Err(text) = settings.referer.check() {
                self.cx.keep_late(super::plain(text));
            }
            if l.parent.is_some()
                && let Err(text) = self.cx.charset_maps.check(&settings)
            {
                self.cx.keep_late(super::plain(&text));
            }
            inherited.push(l.written);
            if let Some(check) = l.health_check.take() {
                let place = (locations.len(), settings.proxy.as_ref());
                if let Err(error) = modules::proxy::check(check, l.content.as_ref(), place, self.cx) {
                    self.cx.keep_late(error);
                }
            }
            let plan = modules::Plan::for_location(&settings, &l.ops);
            let auto_redirect = matches!(l.kind, Kind::Prefix | Kind::PrefixOnly)
                && l.name.last() == Some(&b'/')
                && l.content.as_ref().is_some_and(modules::Content::redirects);
            locations.push(Location {
                name: l.name,
                kind: l.kind,
                parent: l.parent,
                settings,
                ops: l.ops,
                content: l.content,
                try_files: l.try_files,
                internal: l.internal,
                limit_except: l.limit_except,
                tree,
                plan,
                status_zone: l.status_zone,
                upstream_tls: None,
                auto_redirect,
            });
        }
        // An `if` or `limit_except` block stands in for its location: what is not inherited by name is
        // taken from there.
        for i in 0..locations.len() {
            if let (Kind::LimitExcept | Kind::If, Some(p)) = (&locations[i].kind, locations[i].parent) {
                let (internal, content) = (locations[p].internal, locations[p].content.clone());
                locations[i].internal |= internal;
                if locations[i].status_zone.is_none() {
                    locations[i].status_zone = locations[p].status_zone.clone();
                }
                // As in nginx `if` keeps every handler, `limit_except` those that pass requests on.
                let kept = |c: &modules::Content| {
                    matches!(locations[i].kind, Kind::If) || matches!(c, modules::Content::Proxy(_))
                };
                if locations[i].content.is_none() && content.as_ref().is_some_and(kept) {
                    locations[i].content = content;
                }
            }
        }
        // Locations for which a family says the same share what is made of it.
        let mut applied: HashMap<*const (), LocationSettings> = HashMap::new();
        for (l, written) in locations.iter_mut().zip(&inherited) {
            let Some(modules::Content::Proxy(pass)) = &l.content else { continue };
            let family: *const () = match pass.protocol {
                Protocol::Http => continue,
                Protocol::FastCgi => Arc::as_ptr(&written.fastcgi_family).cast(),
                Protocol::Uwsgi => Arc::as_ptr(&written.uwsgi_family).cast(),
                Protocol::Scgi => Arc::as_ptr(&written.scgi_family).cast(),
                Protocol::Grpc => Arc::as_ptr(&written.grpc_family).cast(),
                Protocol::Memcached => Arc::as_ptr(&written.memcached_family).cast(),
            };
            if let Some(same) = applied.get(&family) {
                modules::family::share(&mut l.settings, same);
                continue;
            }
            let warning = match pass.protocol {
                Protocol::Http => None,
                Protocol::FastCgi => written.fastcgi_family.apply(&mut l.settings),
                Protocol::Uwsgi => written.uwsgi_family.apply(&mut l.settings),
                Protocol::Scgi => written.scgi_family.apply(&mut l.settings),
                Protocol::Grpc => {
                    let warning = written.grpc_family.apply(&mut l.settings);
                    modules::grpc::settle(Arc::make_mut(&mut l.settings.proxy));
                    warning
                }
                Protocol::Memcached => {
                    let warning = written.memcached_family.apply(&mut l.settings);
                    modules::memcached::settle(Arc::make_mut(&mut l.settings.proxy));
                    warning
                }
            };
            applied.insert(family, l.settings.clone());
            let warning = warning.map(|text| Error { level: Level::Warn, ..self.cx.error_at_end(text) });
            self.cx.warnings.extend(warning);
        }
        let zones = [self.cx.zones.undefined(), self.cx.conn_zones.undefined()];
        let caches = self.cx.caches.undefined().map(|error| Error { at: self.cx.end, ..error });
        for error in zones.into_iter().flatten().map(|m| super::plain(&m)).chain(caches) {
            self.cx.keep_late(error);
        }
        let mut loader = crate::tls::server::Loader::default();
        for s in &mut servers {
            if let Some(l) = locations.get(s.root) {
                let resolver = l.settings.resolver.resolver.0.as_ref();
                match loader.server(&l.settings.ssl, resolver, self.cx) {
                    Ok(tls) => s.tls = tls,
                    Err(error) => self.cx.keep_late(error),
                }
            }
        }
        // The same settings make the same connections.
        let mut upstream_tls: HashMap<(*const modules::proxy_ssl::Settings, bool), _> = HashMap::new();
        for l in &mut locations {
            if let Some(modules::Content::Proxy(pass)) = &l.content
                && pass.may_encrypt()
            {
                let s = &l.settings.proxy_ssl;
                let h2 = l.settings.proxy.http_version == modules::proxy::HttpVersion::V2;
                l.upstream_tls = match upstream_tls.entry((Arc::as_ptr(s), h2)) {
                    Entry::Occupied(same) => Some(Arc::clone(same.get())),
                    Entry::Vacant(place) => match ClientTls::new(s, h2, &mut loader, self.cx) {
                        Ok(made) => Some(place.insert(Arc::new(made)).clone()),
                        Err(error) => {
                            self.cx.keep_late(error);
                            None
                        }
                    },
                };
            }
        }
        // Who has no certificate takes that of the default server, which must have one.
        for a in
            addresses.iter().flat_map(|l| std::iter::once(&l.default).chain(l.exact.iter().map(|e| &e.1)))
        {
            let i = a.default_server;
            if a.options.ssl && servers.get(i).is_some_and(|s| s.tls.is_none()) {
                let listens = self.servers.get(i).map(|s| s.listens.as_slice()).unwrap_or_default();
                let at = listens.iter().find(|l| l.address_options.ssl).or(listens.first());
                let text = "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive";
                self.cx.keep_late(at.map_or_else(|| super::plain(text), |l| l.error(text.to_owned())));
            }
        }
        let has_tunnels = locations.iter().any(|l| matches!(l.content, Some(modules::Content::Tunnel(_))));
        servers.iter_mut().for_each(|s: &mut Server| s.head.connect = has_tunnels);
        let resolver = locations.first().and_then(|l| l.settings.resolver.resolver.0.as_ref());
        let (upstreams, errors) = std::mem::take(self.cx.upstreams).finish(resolver);
        errors.into_iter().for_each(|error| self.cx.keep_late(error));
        let mut log_formats = std::mem::take(self.cx.log_formats);
        for f in &mut log_formats {
            f.settle(self.cx.vars);
        }
        let http = Http {
            upstreams,
            shows_hello: [b"ssl_ciphers".as_slice(), b"ssl_curves", b"ssl_sigalgs", b"ssl_session_id"]
                .iter()
                .any(|v| self.cx.vars.uses_prefix(v)),
            certificate_files: loader.paths,
            staplings: loader.staplings,
            conf_dir: self.cx.conf_path(b""),
            caches: std::mem::take(self.cx.caches).finish(),
            heads_differ: servers.windows(2).any(|pair| pair[0].head != pair[1].head),
            has_auto_redirect: locations.iter().any(|l| l.auto_redirect),
            servers,
            locations,
            vars: Vec::new(),
            serial: forebay_sys::serial::next(),
            system_resolver: std::sync::OnceLock::new(),
            logs_sent_fields: false,
            addresses,
            log_formats,
            charset_maps: std::mem::take(self.cx.charset_maps),
        };
        (http, listeners)
    }

    /// Groups the listen directives by socket.
    fn addresses(&mut self) -> (Vec<ListenerAddresses>, Vec<Listener>) {
        struct At {
            listens: Vec<(usize, ListenDirective)>,
        }
        let mut by_addr: BTreeMap<ListenAddr, At> = BTreeMap::new();
        let mut order: Vec<ListenAddr> = Vec::new();
        for (i, s) in self.servers.iter().enumerate() {
            for l in &s.listens {
                for addr in &l.addrs {
                    if !by_addr.contains_key(addr) {
                        order.push(addr.clone());
                    }
                    let at = by_addr.entry(addr.clone()).or_insert(At { listens: Vec::new() });
                    if at.listens.iter().any(|(n, _)| *n == i) {
                        self.cx.keep_late(l.error(format!("a duplicate listen {}", l.text(addr))));
                        continue;
                    }
                    if l.set && at.listens.iter().any(|(_, o)| o.set) {
                        let message = format!("duplicate listen options for {}", l.text(addr));
                        self.cx.keep_late(l.error(message));
                    }
                    if at.listens.iter().any(|(_, o)| o.default_server && l.default_server) {
                        let message = format!("a duplicate default server for {}", l.text(addr));
                        self.cx.keep_late(l.error(message));
                    }
                    at.listens.push((i, l.clone()));
                }
            }
        }
        let mut sockets: Vec<(Listener, ListenerAddresses, bool)> = Vec::new();
        for addr in &order {
            let at = &by_addr[addr];
            let address = self.address(&at.listens);
            let options =
                at.listens.iter().find(|(_, l)| l.set).map(|(_, l)| l.options.clone()).unwrap_or_default();
            let bind = at.listens.iter().any(|(_, l)| l.bind);
            let text = at.listens[0].1.text(addr);
            let listener = Listener { addr: addr.clone(), text, options };
            sockets.push((listener, ListenerAddresses { default: address, exact: Vec::new() }, bind));
        }
        // A wildcard address takes over the sockets of addresses with the same port, unless they ask
        // for one of their own (nginx: listen, bind).
        let mut result: Vec<(Listener, ListenerAddresses)> = Vec::new();
        let mut folded = Vec::new();
        for (l, a, bind) in sockets {
            match &l.addr {
                ListenAddr::Inet(s) if !s.ip().is_unspecified() && !bind => folded.push((*s, l, a)),
                _ => result.push((l, a)),
            }
        }
        for (s, l, a) in folded {
            let wildcard = result.iter_mut().find(|(w, _)| match &w.addr {
                ListenAddr::Inet(w) => {
                    w.ip().is_unspecified() && w.port() == s.port() && w.is_ipv4() == s.is_ipv4()
                }
                ListenAddr::Unix(_) => false,
            });
            match wildcard {
                Some((_, w)) => w.exact.push((s, a.default)),
                None => result.push((l, a)),
            }
        }
        result.into_iter().map(|(l, a)| (a, l)).unzip()
    }

    fn address(&mut self, listens: &[(usize, ListenDirective)]) -> Address {
        let default = listens.iter().find(|(_, l)| l.default_server).unwrap_or(&listens[0]).0;
        let mut names = NameTable::default();
        let mut options = AddressOptions::default();
        for (i, l) in listens {
            options.merge(&l.address_options);
            for n in &self.servers[*i].names {
                // As in nginx, whose tables of names are only built where there is a choice.
                if listens.len() > 1 && !n.is_well_formed() {
                    self.cx.keep_late(super::plain(&format!(
                        "invalid server name or wildcard \"{}\" on {}",
                        String::from_utf8_lossy(&n.written()),
                        l.text(&l.addrs[0])
                    )));
                }
                if !names.add(n, *i) && listens.len() > 1 {
                    let message = format!(
                        "conflicting server name \"{}\" on {}, ignored",
                        String::from_utf8_lossy(&n.text()),
                        l.text(&l.addrs[0])
                    );
                    self.cx.warnings.push(Error {
                        level: Level::Warn,
                        message,
                        span: None,
                        at: None,
                        hint: None,
                        ordinal: self.servers[*i].ordinal_directive.as_ref().map_or(0, |e| e.ordinal),
                    });
                }
            }
        }
        Address { default_server: default, names, options }
    }
}

fn location_kind(d: &Directive, cx: &mut Scope<'_>) -> Result<(Kind, Vec<u8>), Error> {
    let first = value::first(d);
    if let Some(name) = d.args.get(1).map(|w| w.text.clone()) {
        let kind = match first {
            b"=" => Kind::Exact,
            b"^~" => Kind::PrefixOnly,
            b"~" => Kind::Regex(cx.pattern(d, &name, false)?),
            b"~*" => Kind::Regex(cx.pattern(d, &name, true)?),
            m => {
                return Err(
                    cx.error(d, format!("invalid location modifier \"{}\"", String::from_utf8_lossy(m)))
                );
            }
        };
        return Ok((kind, name));
    }
    // The modifier may be glued to the name.
    Ok(match first {
        [b'=', name @ ..] => (Kind::Exact, name.to_vec()),
        [b'^', b'~', name @ ..] => (Kind::PrefixOnly, name.to_vec()),
        [b'~', b'*', name @ ..] => (Kind::Regex(cx.pattern(d, name, true)?), name.to_vec()),
        [b'~', name @ ..] => (Kind::Regex(cx.pattern(d, name, false)?), name.to_vec()),
        [b'@', ..] => (Kind::Named, first.to_vec()),
        name => (Kind::Prefix, name.to_vec()),
    })
}
