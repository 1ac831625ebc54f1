//! The http block: servers, locations and addresses.
//!
//! `build.rs` reads the tree, `addresses.rs` groups the listen directives, `assemble.rs` makes the levels that were read into
//! settings that serve.

mod addresses;
mod assemble;
mod build;

#[cfg(test)]
pub use build::DIRECTIVES;
pub use build::{Builder, LocationBuild};

use super::listen::AddressOptions;
use super::names::{NameTable, ServerName};
use crate::location::LocationTree;
use crate::modules::{self, LocationSettings, rewrite};
use crate::request::Request;
use crate::tls::client::ClientTls;
use forebay_core::pattern::Pattern;
use forebay_core::vars::Var;
use forebay_http::h1::request::Limits;
use std::collections::HashMap;
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
    /// Servers of each listener, in the order of `Config::listeners`.
    pub addresses: Vec<ListenerAddresses>,
    /// Log formats.
    pub log_formats: Vec<crate::access_log::Format>,
    /// Resolver for names where there is no `resolver`; made when it is first needed.
    pub system_resolver: std::sync::OnceLock<Arc<forebay_net::resolver::Resolver>>,
    /// A number that no other configuration of this process has.
    pub serial: u64,
    /// Whether some variable shows a field of the response head.
    pub logs_sent_fields: bool,
    /// `charset_map`s.
    pub charset_maps: modules::charset::Maps,
    /// Upstream groups.
    pub upstreams: Vec<Arc<crate::upstream::config::Upstream>>,
    /// Whether some variable shows what a ClientHello offers.
    pub shows_hello: bool,
    /// Files of certificates and keys, which may be renewed.
    pub certificate_files: Vec<std::path::PathBuf>,
    /// Certificates whose state is asked for, to be shown to clients.
    pub staplings: Vec<crate::tls::ocsp::staple::Stapling>,
    /// Directory of the configuration file: certificates that are loaded later are found from there.
    pub conf_dir: std::path::PathBuf,
    /// Caches of responses.
    pub caches: Vec<Arc<crate::cache::Cache>>,
    /// Whether servers differ in their limits of heads, so that these depend on the name that a client asks for.
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
    /// Limits of request heads.
    pub head: Limits,
    /// The location level of the server itself.
    pub root: LocationId,
    /// Locations.
    pub tree: LocationTree,
    /// Named locations.
    pub named: HashMap<Vec<u8>, LocationId>,
    /// All its names.
    pub names: Vec<ServerName>,
    /// TLS, if it has any.
    pub tls: Option<Arc<crate::tls::server::ServerTls>>,
    /// Names with regular expressions, whose captures are set when the server is chosen.
    pub has_captures: bool,
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
    /// TLS of connections to upstreams.
    pub upstream_tls: Option<Arc<ClientTls>>,
    /// Hooks that are enabled here.
    pub plan: modules::Plan,
    /// A prefix location that ends in a slash and is taken by a proxying handler: the name without the
    /// slash is redirected to it.
    pub auto_redirect: bool,
}
