//! The stream block, from the tree to immutable settings. What all front ends share is in [`forebay_core::config`].

use crate::access_log::Format;
use crate::modules::{
    self, Content, core, health_check, limit_conn, log, pass, preread, proxy, proxy_protocol, realip,
    return_text, set, status_zone, sticky,
};
use crate::session::Session;
use crate::udp;
use forebay_conf::error::Error;
use forebay_conf::tree::{Block, Directive};
use forebay_core::config::access_log::Formats;
use forebay_core::config::listen::{self, ListenDirective};
use forebay_core::config::names::{self, ServerName};
use forebay_core::config::{Build, Context, Lacking, Listener, Listening, check_certificates, plain};
use forebay_core::keyval;
use forebay_core::limit::access;
use forebay_core::limit::concurrency::ConnZones;
use forebay_core::shared_store::{SharedStore, Stores};
use forebay_core::status_zone::StatusZone;
use forebay_core::tls;
use forebay_core::tls::client::{ClientTls, OfferedProtocols};
use forebay_core::tls::issued::ClientNames;
use forebay_core::tls::loader::{Issued, Loader, ServerInput};
use forebay_core::tls::ocsp::staple::Stapling;
use forebay_core::tls::server::VirtualTls;
use forebay_core::tls::vars::shows_hello;
use forebay_core::upstream::balance::Timed;
use forebay_core::upstream::bind;
use forebay_core::upstream::config as upstream;
use forebay_core::vars::Var;
use std::path::PathBuf;
use std::sync::Arc;

/// Context of the stream block, for its settings and variables.
#[derive(Debug)]
pub(crate) struct StreamContext;

impl Context for StreamContext {
    const BLOCK: &'static str = "stream";
    const TIMES: &'static [(&'static str, Timed)] =
        &[("connect", Timed::Connect), ("first_byte", Timed::Header), ("last_byte", Timed::LastByte)];
    type Eval = Session;
    type Tables = Tables;
}

/// State that the setters of the stream block share.
pub(crate) type Scope<'a> = forebay_core::config::Scope<'a, StreamContext>;

/// Properties that stream adds to a group.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    /// `sticky` and the directives about it.
    pub sticky: sticky::Sticky,
    /// Health checks, in the order of the group's schedules.
    pub checks: Vec<health_check::Check>,
}

/// A group of the stream block.
pub(crate) type Upstream = upstream::Upstream<Extras>;
/// A group that `proxy_pass` names.
pub(crate) type Named = upstream::Named<Extras>;

/// Tables that directives of the stream level fill and others refer to by name.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// Log formats in order of definition. None is built in.
    pub log_formats: Vec<Format>,
    /// Upstream groups, named and implied.
    pub upstreams: upstream::Groups<Extras>,
    /// `match` blocks of health checks.
    pub matches: health_check::Matches,
    /// Zones of `limit_conn`.
    pub conn_zones: ConnZones,
    /// Zones of `keyval`.
    pub keyvals: keyval::Zones,
}

impl AsMut<ConnZones> for Tables {
    fn as_mut(&mut self) -> &mut ConnZones {
        &mut self.conn_zones
    }
}

impl Stores for Tables {
    fn shared_store(&mut self) -> Option<&mut SharedStore> {
        None
    }
}

impl Formats for Tables {
    fn format(&self, name: &[u8]) -> Option<usize> {
        self.log_formats.iter().position(|f| f.name == name)
    }
}

/// Settings of a level, as they are written.
#[derive(Clone, Debug, Default)]
struct LevelWritten {
    core: core::Written,
    proxy: proxy::Written,
    proxy_protocol: proxy_protocol::Written,
    udp: udp::Written,
    log: log::Written,
    limit_conn: limit_conn::Written,
    realip: realip::Written,
    access: access::Written,
    preread: preread::Written,
    health_check: health_check::Written,
    bind: bind::Written,
    alpn: tls::alpn::Written,
    offered: tls::alpn::upstream::Written,
    tls: tls::settings::Written,
    proxy_ssl: tls::proxy_ssl::Written,
}

impl LevelWritten {
    fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
        Ok(self.core.set(d, cx)?
            || self.proxy.set(d, cx)?
            || self.proxy_protocol.set(d, cx)?
            || self.udp.set(d, cx)?
            || self.log.set(d, cx)?
            || self.limit_conn.set(d, cx)?
            || self.realip.set(d, cx)?
            || self.access.set(d, cx)?
            || self.preread.set(d, cx)?
            || self.health_check.set(d, cx)?
            || self.bind.set(d, cx)?
            || self.alpn.set(d, cx)?
            || self.offered.set(d, cx)?
            || self.tls.set(d, cx)?
            || self.proxy_ssl.set(d, cx)?)
    }

    fn inherit(&mut self, outer: &LevelWritten) {
        self.core.inherit(&outer.core);
        self.proxy.inherit(&outer.proxy);
        self.proxy_protocol.inherit(&outer.proxy_protocol);
        self.udp.inherit(&outer.udp);
        self.log.inherit(&outer.log);
        self.limit_conn.inherit(&outer.limit_conn);
        self.realip.inherit(&outer.realip);
        self.access.inherit(&outer.access);
        self.preread.inherit(&outer.preread);
        self.health_check.inherit(&outer.health_check);
        self.bind.inherit(&outer.bind);
        self.proxy_ssl.inherit(&outer.proxy_ssl);
        self.tls.inherit(&outer.tls);
        self.alpn.inherit(&outer.alpn);
        self.offered.inherit(&outer.offered);
    }

    fn resolve(&self) -> Settings {
        Settings {
            core: self.core.resolve(),
            proxy: self.proxy.resolve(),
            proxy_protocol: self.proxy_protocol.resolve(),
            udp: self.udp.resolve(),
            log: self.log.resolve(),
            limit_conn: self.limit_conn.resolve(),
            realip: self.realip.resolve(),
            access: self.access.resolve(),
            preread: self.preread.resolve(),
            health_check: self.health_check.resolve(),
            bind: self.bind.resolve(),
            proxy_ssl: self.proxy_ssl.resolve(),
            tls: self.tls.resolve(),
            alpn: self.alpn.resolve(),
            offered: self.offered.resolve(),
        }
    }
}

/// Settings in effect at a server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub core: core::Settings,
    pub proxy: proxy::Settings,
    pub proxy_protocol: proxy_protocol::Settings,
    pub udp: udp::Settings,
    pub log: log::Settings,
    pub limit_conn: limit_conn::Settings,
    pub realip: realip::Settings,
    pub access: access::Settings,
    pub preread: preread::Settings,
    pub health_check: health_check::Settings,
    pub bind: bind::Settings,
    pub alpn: tls::alpn::Settings,
    pub offered: tls::alpn::upstream::Settings,
    pub tls: tls::settings::Settings,
    pub proxy_ssl: tls::proxy_ssl::Settings,
}

/// A virtual server.
#[derive(Debug)]
pub(crate) struct Server {
    /// First name of `server_name`; empty if it has none (`$server_name`).
    pub name: Vec<u8>,
    /// Settings.
    pub settings: Settings,
    /// `set` directives, in order.
    pub assignments: Vec<set::Assignment>,
    /// Handler of its sessions.
    pub content: Option<Content>,
    /// `status_zone`.
    pub status_zone: Option<Arc<StatusZone>>,
    /// TLS of its clients.
    pub tls: VirtualTls,
    /// TLS of its upstreams.
    pub upstream_tls: Option<Arc<ClientTls>>,
}

/// The stream block.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Servers by number.
    pub servers: Vec<Server>,
    /// Upstream groups.
    pub upstreams: upstream::Table<Extras>,
    /// Log formats.
    pub log_formats: Vec<Format>,
    /// Variables by number.
    pub vars: Vec<Var<Session>>,
    /// A variable may show a part of a ClientHello.
    pub shows_hello: bool,
    /// A server has `ssl_passthrough`.
    pub passes_tls: bool,
    /// Serial number of the configuration.
    pub serial: u64,
    /// Directory of certificates that are loaded in a handshake.
    pub conf_dir: PathBuf,
    /// Certificates whose OCSP responses are to be stapled.
    pub staplings: Vec<Arc<Stapling>>,
    /// Files of certificates and keys.
    pub certificate_files: Vec<PathBuf>,
    /// Zones of `keyval`.
    pub keyvals: keyval::Zones,
}

/// A server under construction.
#[derive(Default)]
struct ServerBuild {
    written: LevelWritten,
    names: Vec<ServerName>,
    listens: Vec<ListenDirective>,
    assignments: Vec<set::Assignment>,
    content: Option<Content>,
    health_check: Option<health_check::Check>,
    status_zone: Option<Arc<StatusZone>>,
    /// Names of `acme_client`s, each with an error without a message at the directive.
    clients: Vec<(String, Error)>,
    ordinal: u32,
}

/// Reads the stream block.
pub(crate) struct Builder<'s, 'f> {
    cx: &'s mut Scope<'f>,
    written: LevelWritten,
    servers: Vec<ServerBuild>,
    /// The process starts even if the name of an upstream server cannot be resolved (`upstream_start_unresolved`).
    start_unresolved: bool,
}

impl<'s, 'f> Builder<'s, 'f> {
    /// Creates a builder that has read nothing.
    pub(crate) fn new(cx: &'s mut Scope<'f>) -> Self {
        Builder { cx, written: LevelWritten::default(), servers: Vec::new(), start_unresolved: false }
    }

    /// Reads the directives of the block. Leaves out those with errors and keeps the errors, so that all are reported at once.
    pub(crate) fn block(&mut self, block: &Block) {
        // The directive holds for the whole block, whatever its place.
        for d in block.iter().filter(|d| d.name.text == b"upstream_start_unresolved") {
            self.start_unresolved = first_word(d).eq_ignore_ascii_case("on");
        }
        for d in block {
            let taken = self.directive(d);
            self.cx.keep(taken);
        }
    }

    fn directive(&mut self, d: &Directive) -> Result<(), Error> {
        match d.name.text.as_slice() {
            b"server" => self.server(d),
            b"upstream" => self.upstream(d),
            _ if modules::block_directive(d, self.cx)? => Ok(()),
            // Some directives need no code (map_hash_max_size).
            _ => self.written.set(d, self.cx).map(|_| ()),
        }
    }

    /// Reads `upstream NAME { ... }`.
    fn upstream(&mut self, d: &Directive) -> Result<(), Error> {
        let mut extras = Extras::default();
        let mut block = upstream::Block::new(d, self.start_unresolved);
        for inner in d.block.iter().flatten() {
            if !extras.sticky.directive(inner, self.cx)? {
                block.directive(inner, self.cx)?;
            }
        }
        block.group.sticky = extras.sticky.is_on();
        block.check(d, self.cx)?;
        let defined = self.cx.tables.upstreams.define(block, extras, self.cx.error(d, ""));
        defined.map_err(|message| self.cx.error(d, message))
    }

    fn server(&mut self, d: &Directive) -> Result<(), Error> {
        let mut s = ServerBuild { ordinal: d.ordinal, ..ServerBuild::default() };
        for inner in d.block.iter().flatten() {
            let taken = self.server_directive(inner, &mut s);
            self.cx.keep(taken);
        }
        self.servers.push(s);
        listen::require(d, self.cx)
    }

    fn server_directive(&mut self, d: &Directive, s: &mut ServerBuild) -> Result<(), Error> {
        match d.name.text.as_slice() {
            b"listen" => s.listens.push(listen::parse(&listen::STREAM, d, self.cx)?),
            b"server_name" => return names::parse(d, self.cx, &mut s.names),
            b"set" => s.assignments.push(set::parse(d, self.cx)?),
            b"proxy_pass" => s.content = Some(proxy::pass(d, s.content.as_ref(), self.cx)?),
            b"pass" => s.content = Some(pass::parse(d, s.content.as_ref(), self.cx)?),
            b"health_check" => {
                s.health_check = Some(health_check::parse(d, s.health_check.as_ref(), self.cx)?);
            }
            b"status_zone" => {
                s.status_zone = Some(status_zone::parse(d, s.status_zone.as_ref(), self.cx)?);
            }
            b"acme" => s.clients.push((first_word(d), self.cx.error(d, ""))),
            b"return" => s.content = Some(return_text::parse(d, s.content.as_ref(), self.cx)?),
            _ => return s.written.set(d, self.cx).map(|_| ()),
        }
        Ok(())
    }

    /// Ends the construction. `front` is the number of the front end.
    pub(crate) fn finish(mut self, front: u8) -> (Stream, Vec<Listener>) {
        self.attach_checks();
        let unnamed = [ServerName::Exact(Vec::new())];
        let listening: Vec<_> = (self.servers.iter())
            .map(|s| Listening {
                names: if s.names.is_empty() { &unnamed } else { &s.names },
                listens: &s.listens,
                ordinal: s.ordinal,
            })
            .collect();
        let mut listeners = forebay_core::config::listeners(&listening, front, self.cx);
        let mut loader = Loader::default();
        let servers: Vec<Server> =
            self.servers.iter().map(|s| complete(s, &self.written, &mut loader, self.cx)).collect();
        let lacks = |n: usize| {
            let ends = |s: &&Server| s.tls.handshakes.is_none() && !s.settings.preread.passes;
            servers.get(n).filter(ends).map(|_| Lacking::Certificate)
        };
        check_certificates(&listeners, &listening, lacks, self.cx);
        for l in &mut listeners {
            l.nodelay = servers.get(l.default.default_server).map(|s| s.settings.core.tcp_nodelay);
        }
        let resolver = self.written.core.resolve().resolver.0;
        let tables = std::mem::take(&mut self.cx.tables);
        let undefined = tables.conn_zones.undefined().into_iter().chain(tables.keyvals.undefined());
        undefined.for_each(|text| self.cx.keep_late(plain(&text)));
        let matches = tables.matches;
        let (upstreams, errors) =
            tables.upstreams.finish(resolver.as_ref(), self.start_unresolved, |extras, errors| {
                errors.extend(extras.checks.iter_mut().filter_map(|c| c.find_match(&matches).err()));
            });
        errors.into_iter().for_each(|error| self.cx.keep_late(error));
        let stream = Stream {
            passes_tls: servers.iter().any(|s| s.settings.preread.passes),
            servers,
            upstreams,
            log_formats: tables.log_formats,
            keyvals: tables.keyvals,
            vars: Vec::new(),
            shows_hello: shows_hello(&self.cx.vars),
            serial: forebay_sys::serial::next(),
            conf_dir: self.cx.conf_path(b""),
            staplings: loader.staplings.into_iter().map(Arc::new).collect(),
            certificate_files: loader.paths,
        };
        (stream, listeners)
    }

    /// Adds the `health_check` of each server to its group. Keeps the errors.
    fn attach_checks(&mut self) {
        for (number, s) in self.servers.iter_mut().enumerate() {
            let Some(check) = s.health_check.take() else { continue };
            let attached = health_check::attach(check, number, s.content.as_ref(), self.cx);
            attached.unwrap_or_else(|error| self.cx.keep_late(error));
        }
    }
}

fn first_word(d: &Directive) -> String {
    d.args.first().map(|w| w.as_str().into_owned()).unwrap_or_default()
}

/// Notes the names of the servers of the stream block with `acme`: the http block, which defines the clients, makes the orders.
pub(crate) fn announce(block: &Directive, build: &mut Build<'_>) {
    let is = |name: &'static str| move |d: &&Directive| d.name.text == name.as_bytes();
    for server in block.block.iter().flatten().filter(is("server")) {
        let inner = || server.block.iter().flatten();
        let words = inner().filter(is("server_name")).flat_map(|d| &d.args);
        let names: Vec<String> = words.map(|w| w.as_str().into_owned()).collect();
        for d in inner().filter(is("acme")) {
            let server =
                ClientNames { client: first_word(d), names: names.clone(), place: build.error(d, "") };
            build.client_names.push(server);
        }
    }
}

/// Returns the certificates that a server may present without files. Keeps errors.
fn issued(s: &ServerBuild, settings: &Settings, cx: &mut Scope<'_>) -> Vec<Issued> {
    for (client, place) in &s.clients {
        if !cx.issued_to_clients.has(client) {
            let message =
                format!("acme client \"{client}\" is not defined in an \"http\" block before this one");
            cx.keep_late(Error { message, ..place.clone() });
        }
    }
    let encrypts = s.listens.iter().any(|l| l.address_options.ssl);
    let implied = encrypts && settings.tls.certificate.0.is_empty();
    cx.issued_to_clients.issued(implied, |name| s.clients.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)))
}

/// Completes a server with what it inherits, and loads its certificates. Keeps the errors.
fn complete(s: &ServerBuild, outer: &LevelWritten, loader: &mut Loader, cx: &mut Scope<'_>) -> Server {
    let mut written = s.written.clone();
    written.inherit(outer);
    let settings = written.resolve();
    let input = ServerInput {
        settings: &settings.tls,
        application: settings.alpn.application(),
        resolver: settings.core.resolver.0.as_ref(),
        issued: issued(s, &settings, cx),
    };
    let tls = loader.server(&input, cx).map_err(|error| cx.keep_late(error));
    let alpn = settings.offered.alpn.constants().unwrap_or_default();
    let upstream_tls = settings.proxy.ssl.then(|| {
        ClientTls::new(&settings.proxy_ssl, OfferedProtocols { alpn: &alpn, quic: None }, loader, cx)
    });
    let upstream_tls = upstream_tls.transpose().map_err(|error| cx.keep_late(error)).ok().flatten();
    Server {
        name: s.names.first().map(ServerName::text).unwrap_or_default(),
        settings,
        assignments: s.assignments.clone(),
        content: s.content.clone(),
        status_zone: s.status_zone.clone(),
        tls: tls.unwrap_or_else(|()| VirtualTls::unread()),
        upstream_tls: upstream_tls.map(Arc::new),
    }
}
