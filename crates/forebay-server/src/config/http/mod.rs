//! The http block: servers and locations.
//!
//! `build.rs` reads the tree, `assemble.rs` makes the levels that were read into settings that serve.

mod assemble;
mod build;
mod units;

#[cfg(any(test, feature = "testing"))]
pub use build::DIRECTIVES;
pub use build::{Builder, LocationBuild};
pub use units::Memory;

use super::parts::Parts;
use crate::location::LocationTree;
use crate::module::levels::LocationSettings;
use crate::module::{Content, Hook, Plan};
use crate::modules;
use crate::modules::rewrite;
use crate::request::Request;
use forebay_conf::tree::Place;
use forebay_core::config::Environment;
use forebay_core::config::names::ServerName;
use forebay_core::pattern::Pattern;
use forebay_core::tls::client::ClientTls;
use forebay_core::tls::server::VirtualTls;
use forebay_core::vars::{Var, VarId};
use forebay_http::h1::request::Limits;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Number of a location in its server: index into [`Server::locations`].
pub type LocationId = usize;

/// Settings of the http block, ready to serve.
#[derive(Debug, Default)]
pub struct Http {
    /// Virtual servers in file order.
    pub servers: Vec<Arc<Server>>,
    /// Number of levels with settings that were made, and not taken over from the configuration before.
    pub new_levels: usize,
    /// `true` if a location uses the default of `client_body_temp_path`.
    pub default_body_temp: bool,
    /// `true` if a location uses the default of `proxy_temp_path`.
    pub default_proxy_temp: bool,
    /// Variables.
    pub vars: Vec<Var<Request>>,
    /// Default of `root`: `html` below the prefix.
    pub default_root: Vec<u8>,
    /// Default of `client_body_temp_path`.
    pub client_body_temp: PathBuf,
    /// Default of `proxy_temp_path`.
    pub proxy_temp: PathBuf,
    /// Log formats.
    pub log_formats: Vec<crate::access_log::Format>,
    /// Resolver for names where there is no `resolver`; made when it is first needed.
    pub system_resolver: std::sync::OnceLock<Arc<forebay_net::resolver::Resolver>>,
    /// A number that no other configuration of this process has.
    pub serial: u64,
    /// `true` if some variable shows a field of the response head.
    pub logs_sent_fields: bool,
    /// Values of modules.
    pub parts: Parts,
    /// Upstream groups.
    pub upstreams: forebay_core::upstream::config::Table<Parts>,
    /// `true` if some variable shows what a ClientHello offers.
    pub shows_hello: bool,
    /// Files of certificates and keys, which may be renewed.
    pub certificate_files: Vec<PathBuf>,
    /// Certificates whose OCSP responses are fetched for clients.
    pub staplings: Vec<Arc<forebay_core::tls::ocsp::staple::Stapling>>,
    /// Directories that modules need and no directive names, in the order in which they are made.
    pub directories: Vec<PathBuf>,
    /// Directory of the configuration file: certificates that are loaded later are found from there.
    pub conf_dir: PathBuf,
    /// `shared_store`, with the zones that use it.
    pub shared_store: forebay_core::shared_store::SharedStore,
    /// `true` if servers have different limits of heads, so that the limits depend on the name that a client asks for.
    pub heads_differ: bool,
    /// Hooks that run first in all requests.
    pub first_hooks: Vec<Hook>,
    /// `true` if any location has `auto_redirect`.
    pub has_auto_redirect: bool,
    /// `true` if a location has `api` or `dashboard`, which show a history.
    pub is_watched: bool,
    /// `true` if a location has `prometheus names=ingress-nginx`, which shows when certificates expire.
    pub shows_certificates: bool,
}

impl Http {
    /// Returns a location by the number of its server and its own.
    pub fn level(&self, server: usize, location: LocationId) -> Option<&Location> {
        self.servers.get(server)?.locations.get(location)
    }

    /// Sets the paths that hold where no directive names one.
    pub fn set_default_paths(&mut self, env: &Environment) {
        let prefix = env.prefix.as_os_str().as_bytes();
        let slash: &[u8] = if prefix.ends_with(b"/") { b"" } else { b"/" };
        self.default_root = [prefix, slash, b"html"].concat();
        self.client_body_temp = env.temp_path("/var/lib/nginx/body", "client_body_temp");
        self.proxy_temp = env.temp_path("/var/lib/nginx/proxy", "proxy_temp");
    }

    /// Returns the temporary directories that some location uses without a directive.
    pub fn default_temp_paths(&self) -> Vec<PathBuf> {
        let mut paths = self.directories.clone();
        if self.default_body_temp {
            paths.push(self.client_body_temp.clone());
        }
        if self.default_proxy_temp {
            paths.push(self.proxy_temp.clone());
        }
        paths
    }
}

/// A virtual server.
#[derive(Debug)]
pub struct Server {
    /// First `server_name`, empty if none.
    pub name: Vec<u8>,
    /// Settings of the server level.
    pub settings: modules::server::Settings,
    /// Limits of request heads.
    pub head: Limits,
    /// Every level of the server that has settings. The first is the level of the server itself, and parents come before their children.
    pub locations: Vec<Location>,
    /// Named locations.
    pub named: HashMap<Vec<u8>, LocationId>,
    /// `route`s, in file order.
    pub routes: Vec<modules::route::Route>,
    /// All its names.
    pub names: Arc<[ServerName]>,
    /// TLS.
    pub tls: VirtualTls,
    /// `Alt-Svc` of its responses over TLS.
    pub alt_svc: modules::alt_svc::Fields,
}

/// Number of the level of a server itself among its [`Server::locations`].
pub const ROOT: LocationId = 0;

impl Server {
    /// Returns the level of the server itself.
    pub fn root(&self) -> Option<&Location> {
        self.locations.get(ROOT)
    }

    /// Returns the locations at the level of the server.
    pub fn tree(&self) -> Option<&LocationTree> {
        Some(&self.root()?.tree)
    }
}

/// Kind of a level that a [`Location`] is.
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
    /// `location $x`: the variable that decides (nginx: predicate).
    Predicate(VarId),
    /// `location @x`.
    Named,
    /// An `if` block.
    If,
    /// `limit_except`.
    LimitExcept,
}

impl Kind {
    /// Returns `true` for a location, but not for an `if` block or a server.
    pub fn is_location(&self) -> bool {
        !matches!(self, Kind::Http | Kind::Server | Kind::If | Kind::LimitExcept)
    }

    /// Returns the part of a path that a location of this kind and name begins with: its name, or nothing where the name is no path.
    pub fn path<'n>(&self, name: &'n [u8]) -> &'n [u8] {
        if matches!(self, Kind::Exact | Kind::Prefix | Kind::PrefixOnly) { name } else { b"" }
    }

    /// Returns `true` for `location = /x`.
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
    /// Place of the directive that begins the level.
    pub at: Place,
    /// Enclosing level of the server; `None`: the http level.
    pub parent: Option<LocationId>,
    /// Settings of all modules.
    pub settings: LocationSettings,
    /// Rewrite directives (nginx: the rewrite module), in order.
    pub ops: Vec<rewrite::Statement>,
    /// Content handler, if one took the location.
    pub content: Option<Content>,
    /// `internal`.
    pub internal: bool,
    /// `limit_except`: methods that are excepted, as names, and the level for all others.
    pub limit_except: Option<(Vec<Vec<u8>>, LocationId)>,
    /// Locations inside this one.
    pub tree: LocationTree,
    /// `status_zone`.
    pub status_zone: Option<Arc<forebay_core::status_zone::StatusZone>>,
    /// TLS of connections to upstreams.
    pub upstream_tls: Option<Arc<ClientTls>>,
    /// Parts of modules that are enabled here.
    pub plan: Plan,
    /// A prefix location that ends in a slash and is taken by a proxying handler: the name without the
    /// slash is redirected to it.
    pub auto_redirect: bool,
}
