//! List of all modules: their settings, directives, variables and the order in which their hooks run. Files that
//! give a module a special part name it themselves: `phases.rs` those that wait or take the content, `response/` those whose
//! filters have a fixed place.

use crate::compress;
use crate::config::Scope;
use crate::config::http::{Kind, LocationBuild};
use crate::metrics;
use crate::request::Request;
use crate::request::rare::Rare;
use crate::variables::Row;
use foldhash::fast::RandomState;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::blocks;
use forebay_core::shared_store::Answer;
use forebay_core::tls::vars::Variables;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

pub(crate) mod access;
pub(crate) mod acme;
pub(crate) mod addition;
pub(crate) mod alt_svc;
pub(crate) mod auth_basic;
pub(crate) mod auth_request;
pub(crate) mod autoindex;
pub(crate) mod brotli;
pub(crate) mod charset;
pub(crate) mod core;
pub(crate) mod dav;
pub(crate) mod early_hints;
pub(crate) mod empty_gif;
pub(crate) mod family;
pub(crate) mod fastcgi;
pub(crate) mod grpc;
pub(crate) mod gunzip;
pub(crate) mod gzip;
pub(crate) mod gzip_accept;
pub(crate) mod gzip_static;
pub(crate) mod headers;
pub(crate) mod headers_more;
pub(crate) mod http2;
pub(crate) mod index;
pub(crate) mod limit_conn;
pub(crate) mod limit_req;
pub(crate) mod log;
pub(crate) mod memcached;
pub(crate) mod mirror;
pub(crate) mod params;
pub(crate) mod post_action;
pub(crate) mod prometheus_labels;
pub(crate) mod proxy;
pub(crate) mod proxy_bind;
pub(crate) mod proxy_cache;
pub(crate) mod proxy_cookie;
pub(crate) mod proxy_http3;
pub(crate) mod proxy_protocol;
pub(crate) mod random_index;
pub(crate) mod realip;
pub(crate) mod referer;
pub(crate) mod resolver;
pub(crate) mod rewrite;
pub(crate) mod route;
pub(crate) mod scgi;
pub(crate) mod secure_link;
pub(crate) mod server;
pub(crate) mod set_misc;
pub(crate) mod sharing;
pub(crate) mod slice;
pub(crate) mod ssi;
pub(crate) mod ssl;
pub(crate) mod static_file;
pub(crate) mod stub_status;
pub(crate) mod sub_filter;
pub(crate) mod try_files;
pub(crate) mod tunnel;
pub(crate) mod userid;
pub(crate) mod uwsgi;
pub(crate) mod vars;
pub(crate) mod zstd;

pub(crate) use forebay_core::tls::proxy_ssl;
/// Settings of `ssl_*` that all front ends have.
pub(crate) use forebay_core::tls::settings as tls;

use crate::upstream::protocol::Protocol;
use family::{fastcgi_family, grpc_family, memcached_family, scgi_family, uwsgi_family};

/// Combines the settings of all modules into one set per location. A level shares the settings of a module with the level
/// around it if it sets none of them itself, so servers and locations with few directives take little memory.
macro_rules! modules {
    ($($module:ident,)*) => {
        /// Settings of all modules that one level sets itself.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub(crate) struct LocationWritten { $(pub(crate) $module: Arc<$module::Written>,)* }

        /// Settings of all modules that are in effect at a location.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub(crate) struct LocationSettings { $(pub(crate) $module: Arc<$module::Settings>,)* }

        /// A level without directives.
        static NOTHING: LazyLock<LocationWritten> =
            LazyLock::new(|| LocationWritten { $($module: Arc::default(),)* });

        impl Default for LocationWritten {
            fn default() -> LocationWritten {
                NOTHING.clone()
            }
        }

        impl LocationWritten {
            /// Reads a directive. Returns its module, or `None` if no module binds it.
            ///
            /// # Errors
            /// In nginx's words.
            pub(crate) fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<Option<Module>, Error> {
                let Some(module) = MODULES.get(d.name.text.as_slice()).copied() else { return Ok(None) };
                let set = match module {
                    $(Module::$module => Arc::make_mut(&mut self.$module).set(d, cx)?,)*
                };
                Ok(set.then_some(module))
            }
            /// Replaces the directives of a module, whose words are `text`, by those of another level with the same words.
            pub(crate) fn share(&mut self, module: Module, text: sharing::Text, sharing: &mut Sharing) {
                // `root` and `alias` depend on the location.
                if module == Module::core && self.core.root.is_some() {
                    return;
                }
                match module {
                    $(Module::$module => sharing.$module.share(&mut self.$module, text),)*
                }
            }
            /// Copies the settings that this level left unset from `parent`.
            pub(crate) fn inherit(&mut self, parent: &LocationWritten, sharing: &mut Sharing) {
                $(if Arc::ptr_eq(&self.$module, &NOTHING.$module) {
                    self.$module = parent.$module.clone();
                } else if !Arc::ptr_eq(&self.$module, &parent.$module) {
                    sharing.$module.inherit(&mut self.$module, &parent.$module, |own, outer| own.inherit(outer));
                })*
            }
            /// Applies the defaults. `parent` is the level around it: its own settings, and those in effect there.
            pub(crate) fn resolve(
                &self,
                parent: Option<(&LocationWritten, &LocationSettings)>,
                sharing: &mut Sharing,
            ) -> LocationSettings {
                LocationSettings { $($module: match parent {
                    Some((w, s)) if Arc::ptr_eq(&self.$module, &w.$module) => s.$module.clone(),
                    _ => sharing.$module.resolve(&self.$module, $module::Written::resolve),
                },)* }
            }
        }

        /// A module with settings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types)]
        pub(crate) enum Module { $($module,)* }

        /// Modules by the names of their directives.
        static MODULES: LazyLock<HashMap<&'static [u8], Module, RandomState>> = LazyLock::new(|| {
            let module = |name: &[u8]| {
                $(if $module::Written::binds(name) { return Some(Module::$module); })*
                None
            };
            let names = forebay_conf::grammar::all().iter().map(|row| row.name.as_bytes());
            names.filter_map(|name| Some((name, module(name)?))).collect()
        });

        /// Settings that the levels of a configuration share.
        #[derive(Debug, Default)]
        pub(crate) struct Sharing { $($module: sharing::Shared<$module::Written, $module::Settings>,)* }

        /// Names of all directives bound by settings at location level.
        #[cfg(test)]
        pub(crate) const BOUND: &[&[&str]] = &[$($module::Written::DIRECTIVES,)*];
    };
}

modules! {
    core, log, headers, headers_more, index, autoindex, random_index, rewrite, access, auth_basic, auth_request, mirror, post_action,
    realip, charset, gzip_accept, gzip_static, gzip, gunzip, brotli, zstd, sub_filter, referer, secure_link, userid,
    proxy, proxy_cache, proxy_cookie, proxy_bind, proxy_http3, early_hints, prometheus_labels, tunnel, slice, limit_req, limit_conn, http2, ssl,
    tls, proxy_ssl, resolver, addition, ssi, acme,
    dav, fastcgi, fastcgi_family, uwsgi, uwsgi_family, scgi, scgi_family, grpc_family, memcached, memcached_family,
}

impl LocationWritten {
    /// Checks that the buffer sizes of each family are consistent.
    ///
    /// # Errors
    /// In nginx's words.
    pub(crate) fn buffers(&self) -> Result<(), String> {
        crate::config::checks::buffers("proxy_", &self.proxy)?;
        self.fastcgi_family.buffers()?;
        self.uwsgi_family.buffers()?;
        self.scgi_family.buffers()
    }
}

/// Decision of a hook.
#[derive(Debug)]
#[cfg_attr(test, derive(PartialEq, Eq))]
pub(crate) enum Verdict {
    /// Goes on with the next hook.
    Declined,
    /// Grants access (with `satisfy any` the other hooks are then skipped).
    Allowed,
    /// Answers with this status: its error page, or `Request::resp` if that is already filled in.
    Status(u16),
    /// The response in `Request::resp` is complete.
    Done,
    /// Waits, then continues with the second verdict.
    Delay(std::time::Duration, Box<Verdict>),
    /// Computes on another thread, then continues depending on the result.
    Offload(Offload),
    /// Waits for answers of the shared store, then continues.
    Wait(Box<Waiting>),
}

/// Answers of the shared store that a request waits for (`exact` of `limit_req_zone`, `sync` of `limit_conn_zone`).
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Receivers of the answers, in the order of the limits; `None` where the store was not asked.
    pub answers: Vec<Option<tokio::sync::oneshot::Receiver<Answer>>>,
    /// Time at which the request goes on without the answers that are missing.
    pub until: std::time::Instant,
    /// Runs with the answers that have come, in the same order.
    pub then: fn(&mut Request, &[Option<Answer>]) -> Verdict,
}

#[cfg(test)]
impl PartialEq for Waiting {
    /// Always `false`: receivers cannot be compared.
    fn eq(&self, _: &Waiting) -> bool {
        false
    }
}

#[cfg(test)]
impl Eq for Waiting {}

/// Function that turns the result of an [`Offload`] into a verdict.
pub(crate) type Then = Box<dyn FnOnce(&mut Request, bool) -> Verdict>;

/// Work that takes too long for the worker thread, on which other requests wait.
pub(crate) struct Offload {
    /// Computation for the other thread.
    pub work: Box<dyn FnOnce() -> bool + Send>,
    /// Runs on the worker thread with the result.
    pub then: Then,
}

impl std::fmt::Debug for Offload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Offload")
    }
}

/// Always `false`: closures cannot be compared.
#[cfg(test)]
impl PartialEq for Offload {
    fn eq(&self, _: &Offload) -> bool {
        false
    }
}

#[cfg(test)]
impl Eq for Offload {}

/// Function that looks at the request and decides how it continues.
pub(crate) type Hook = fn(&mut Request) -> Verdict;

/// One hook of a phase, with the settings that enable it.
pub(crate) struct PhaseHook {
    enabled: fn(&LocationSettings) -> bool,
    hook: Hook,
}

/// Hooks that run first, with the settings of the server, in this order (nginx: POST_READ).
const POST_READ: &[PhaseHook] = &[PhaseHook { enabled: realip::enabled, hook: realip::replace }];

/// Hooks that run before access, in this order (nginx: PREACCESS).
const PREACCESS: &[PhaseHook] = &[
    PhaseHook { enabled: realip::enabled, hook: realip::replace },
    PhaseHook { enabled: limit_req::enabled, hook: limit_req::check },
    PhaseHook { enabled: limit_conn::enabled, hook: limit_conn::check },
];

/// Hooks that decide on access, in this order (nginx: ACCESS).
const ACCESS: &[PhaseHook] = &[
    PhaseHook { enabled: access::enabled, hook: access::check },
    PhaseHook { enabled: auth_basic::enabled, hook: auth_basic::check },
];

/// Hooks enabled in one location, selected once when the configuration is built.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// POST_READ.
    pub post_read: Vec<Hook>,
    /// `true` if anything runs between REWRITE and CONTENT.
    pub before_content: bool,
    /// `true` if fields of the request are changed at the end of REWRITE.
    pub changes_request: bool,
    /// PREACCESS.
    pub preaccess: Vec<Hook>,
    /// ACCESS.
    pub access: Vec<Hook>,
    /// `true` if `auth_request` runs, as the last of ACCESS.
    pub auth_request: bool,
    /// `true` if `mirror` runs, as the last of PRECONTENT.
    pub mirror: bool,
    /// HEADER_FILTERS.
    pub header_filters: Vec<HeaderFilter>,
    /// `true` if the head of a response for a file depends on the file alone, so that it can be remembered.
    pub plain_head: bool,
    /// `true` if responses may be compressed here.
    pub compresses: bool,
}

/// Changes the response before its head is written.
pub(crate) type HeaderFilter = fn(&mut Request) -> Result<(), forebay_core::vars::VarError>;

/// One header filter.
pub(crate) struct FilterEntry {
    enabled: fn(&LocationSettings) -> bool,
    filter: HeaderFilter,
    /// `true` if the filter leaves the head of a plain answer as it is. True also for conditions and ranges, which
    /// the request asks for, and for compression, because remembered heads are kept per encoding.
    standard: bool,
}

/// Header filters in the order in which they run; the response is written after the last.
const HEADER_FILTERS: &[FilterEntry] = &[
    FilterEntry { enabled: slice::enabled, filter: slice::filter, standard: false },
    FilterEntry { enabled: |_| true, filter: static_file::not_modified, standard: true },
    FilterEntry { enabled: headers_more::changes_response, filter: headers_more::filter, standard: false },
    FilterEntry { enabled: headers::enabled, filter: headers::filter, standard: false },
    FilterEntry { enabled: userid::enabled, filter: userid::filter, standard: false },
    FilterEntry { enabled: gunzip::enabled, filter: gunzip::filter, standard: false },
    FilterEntry { enabled: sub_filter::enabled, filter: sub_filter::filter, standard: false },
    FilterEntry { enabled: charset::enabled, filter: charset::filter, standard: false },
    FilterEntry { enabled: charset::by_upstream, filter: charset::filter_upstream, standard: true },
    FilterEntry { enabled: addition::enabled, filter: addition::filter, standard: false },
    FilterEntry { enabled: ssi::enabled, filter: ssi::filter, standard: false },
    FilterEntry { enabled: compress::enabled, filter: compress::filter, standard: true },
    FilterEntry { enabled: |_| true, filter: static_file::ranges, standard: true },
];

/// Filters for the body of a subrequest that becomes part of another body, in this order.
const SUBREQUEST_FILTERS: &[FilterEntry] = &[
    FilterEntry { enabled: slice::enabled, filter: slice::filter, standard: false },
    FilterEntry { enabled: gunzip::enabled, filter: gunzip::filter, standard: false },
    FilterEntry { enabled: sub_filter::enabled, filter: sub_filter::filter, standard: false },
    FilterEntry { enabled: charset::enabled, filter: charset::filter, standard: false },
    FilterEntry { enabled: charset::by_upstream, filter: charset::filter_upstream, standard: false },
    FilterEntry { enabled: ssi::enabled, filter: ssi::filter, standard: false },
];

/// Runs the filters of a subrequest whose body becomes part of another.
///
/// # Errors
/// If a variable cannot be evaluated.
pub(crate) fn run_subrequest_filters(req: &mut Request) -> Result<(), forebay_core::vars::VarError> {
    let http = req.http();
    let s = &http.location(req).settings;
    SUBREQUEST_FILTERS.iter().filter(|e| (e.enabled)(s)).try_for_each(|e| (e.filter)(req))
}

impl Plan {
    /// Selects the hooks that these settings enable. `tries_files`: the location has `try_files`.
    pub(crate) fn for_location(s: &LocationSettings, tries_files: bool) -> Plan {
        let pick = |entries: &[PhaseHook]| -> Vec<Hook> {
            entries.iter().filter(|e| (e.enabled)(s)).map(|e| e.hook).collect()
        };
        let changes_request = headers_more::changes_request(s);
        let (preaccess, access) = (pick(PREACCESS), pick(ACCESS));
        let (auth_request, mirror) = (auth_request::enabled(s), mirror::enabled(s));
        Plan {
            post_read: pick(POST_READ),
            before_content: changes_request
                || !preaccess.is_empty()
                || !access.is_empty()
                || auth_request
                || tries_files
                || mirror,
            changes_request,
            preaccess,
            access,
            auth_request,
            mirror,
            plain_head: (HEADER_FILTERS.iter()).all(|e| e.standard || !(e.enabled)(s))
                && s.core.keepalive_timeout.header.is_none()
                // `alias` in a regular expression: paths with different extensions, and so types, share a file.
                && !matches!(s.core.root.alias, Some(None))
                && !matches!(s.core.server_tokens, core::ServerTokens::Value(_)),
            compresses: compress::enabled(s),
            header_filters: HEADER_FILTERS.iter().filter(|e| (e.enabled)(s)).map(|e| e.filter).collect(),
        }
    }
}

/// Content handler of a location, in place of static files.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// `stub_status`.
    StubStatus,
    /// `empty_gif`.
    EmptyGif,
    /// `tunnel_pass`.
    Tunnel(Arc<proxy::Pass>),
    /// `prometheus`.
    Prometheus(metrics::prometheus::Page),
    /// `api`.
    Api,
    /// `dashboard`.
    Dashboard,
    /// `proxy_pass`, `fastcgi_pass` and the other upstream protocols.
    Proxy(Arc<proxy::Pass>),
}

/// Reader of a directive of the http level.
type HttpDirective = fn(&Directive, &mut Scope<'_>) -> Result<(), Error>;

/// Directives of the http level that define something by name.
pub(crate) const HTTP_DIRECTIVES: &[(&str, HttpDirective)] = &[
    ("log_format", log::format),
    ("map", blocks::map::block),
    ("geo", blocks::geo::block),
    ("split_clients", blocks::split_clients::block),
    ("charset_map", charset::map),
    ("upstream", crate::upstream::config::block),
    ("match", crate::upstream::config::matching),
    ("limit_conn_zone", forebay_core::limit::concurrency::zone),
    ("limit_req_zone", limit_req::zone),
    ("shared_store", forebay_core::shared_store::directive),
    ("acme_issuer", acme::issuer),
    ("acme_shared_zone", acme::shared_zone),
    ("acme_client", acme::client),
    ("acme_client_path", acme::client_path),
    ("acme_dns_port", acme::dns_port),
    ("acme_dns_program", acme::dns_program),
    ("acme_dns_ttl", acme::dns_ttl),
    ("acme_http_port", acme::http_port),
    ("acme_max_response_size", acme::max_response_size),
    ("proxy_cache_path", crate::cache::path),
    ("fastcgi_cache_path", crate::cache::path),
    ("uwsgi_cache_path", crate::cache::path),
    ("scgi_cache_path", crate::cache::path),
];

/// Reads a directive of [`HTTP_DIRECTIVES`]. Returns `Ok(false)` if it is not one of them.
///
/// # Errors
/// In nginx's words.
pub(crate) fn http_directive(d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
    match HTTP_DIRECTIVES.iter().find(|(name, _)| name.as_bytes() == d.name.text) {
        Some((_, read)) => read(d, cx).map(|()| true),
        None => Ok(false),
    }
}

/// Names that [`location_directive`] takes.
#[cfg(test)]
pub(crate) const LOCATION_DIRECTIVES: &[&str] = &[
    "rewrite",
    "return",
    "set",
    "break",
    "set_if_empty",
    "set_quote_json_str",
    "set_escape_uri",
    "set_unescape_uri",
    "set_encode_base64",
    "set_decode_base64",
    "set_encode_base64url",
    "set_decode_base64url",
    "set_encode_hex",
    "set_decode_hex",
    "set_md5",
    "set_sha1",
    "set_random",
    "set_secure_random_alphanum",
    "set_secure_random_lcalpha",
    "try_files",
    "internal",
    "root",
    "alias",
    "proxy_pass",
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "grpc_pass",
    "memcached_pass",
    "health_check",
    "stub_status",
    "empty_gif",
    "prometheus",
    "tunnel_pass",
    "dashboard",
    "api",
    "status_zone",
    "acme_hook",
];

/// Reads a directive of a location that is not inherited. Returns `Ok(false)` if it is not one of them.
///
/// # Errors
/// In nginx's words.
pub(crate) fn location_directive(
    d: &Directive,
    l: &mut LocationBuild,
    cx: &mut Scope<'_>,
) -> Result<bool, Error> {
    match d.name.text.as_slice() {
        b"rewrite" | b"return" | b"set" | b"break" => rewrite::directive(d, l, cx)?,
        name if set_misc::Function::named(name).is_some() => set_misc::directive(d, l, cx)?,
        b"try_files" => l.try_files = Some(try_files::parse(d, l.try_files.is_some(), cx)?),
        b"internal" => {
            if l.internal {
                return Err(cx.error(d, "\"internal\" directive is duplicate"));
            }
            l.internal = true;
        }
        b"root" | b"alias" => core::root(d, l, cx)?,
        b"proxy_pass" => proxy::pass(d, l, cx)?,
        b"fastcgi_pass" => proxy::pass_by(Protocol::FastCgi, d, l, cx)?,
        b"uwsgi_pass" => proxy::pass_by(Protocol::Uwsgi, d, l, cx)?,
        b"scgi_pass" => proxy::pass_by(Protocol::Scgi, d, l, cx)?,
        b"grpc_pass" => proxy::pass_by(Protocol::Grpc, d, l, cx)?,
        b"memcached_pass" => proxy::pass_by(Protocol::Memcached, d, l, cx)?,
        b"health_check" => l.health_check = Some(crate::upstream::health_check::Check::parse(d, cx)?),
        b"acme_hook" => l.acme_hooks.push(acme::Hook::parse(d, cx)?),
        b"stub_status" => l.content = Some(Content::StubStatus),
        b"empty_gif" => l.content = Some(Content::EmptyGif),
        b"tunnel_pass" => tunnel::pass(d, l, cx)?,
        b"prometheus" => l.content = Some(Content::Prometheus(metrics::prometheus::Page::parse(d, cx)?)),
        b"dashboard" => l.content = Some(Content::Dashboard),
        b"api" => {
            if let Some(w) = d.args.first().filter(|w| w.text != b"write=off") {
                return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())));
            }
            l.content = Some(Content::Api);
        }
        b"status_zone" => {
            if l.status_zone.is_some() {
                return Err(cx.error(d, "\"status_zone\" directive is duplicate"));
            }
            let kind = if is_location(&l.kind) { metrics::kind::LOCATION } else { metrics::kind::SERVER };
            l.status_zone = Some(forebay_core::status_zone::zone(kind, crate::config::value::first(d)));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns `true` if a level is a location of its own (not an `if` or a server).
pub(crate) fn is_location(kind: &Kind) -> bool {
    !matches!(kind, Kind::Http | Kind::Server | Kind::If | Kind::LimitExcept)
}

/// Rows of all built-in variables.
pub(crate) fn variables() -> impl Iterator<Item = &'static Row> {
    [
        vars::PLAIN,
        vars::VARIABLES,
        proxy_protocol::VARIABLES,
        realip::VARIABLES,
        referer::VARIABLES,
        secure_link::VARIABLES,
        userid::VARIABLES,
        crate::upstream::vars::VARIABLES,
        limit_req::VARIABLES,
        limit_conn::VARIABLES,
        Variables::ROWS,
        ssl::VARIABLES,
        proxy_cache::VARIABLES,
        fastcgi::VARIABLES,
        slice::VARIABLES,
        gzip::VARIABLES,
        ssi::VARIABLES,
        acme::VARIABLES,
        acme::hook::VARIABLES,
    ]
    .into_iter()
    .flatten()
}

/// State of the modules for one request. It is reset for each request.
#[derive(Debug, Default)]
pub(crate) struct ModuleState {
    /// `$request_id`, made when first asked for.
    pub request_id: Option<[u8; 32]>,
    /// Address of the connection, if realip replaced it.
    pub replaced_peer: Option<forebay_net::addr::Peer>,
    /// `$secure_link`.
    pub secure_link: Rare<secure_link::LinkState>,
    /// `$uid_got` and `$uid_set`.
    pub userid: Rare<userid::UserIdState>,
    /// Upstream servers that the request was sent to.
    pub upstream: crate::upstream::exchange::Upstreamed,
    /// `$limit_req_status`.
    pub limit_req: Option<forebay_core::limit::outcomes::Outcome>,
    /// Slots that the request occupies in the zones of `limit_conn`.
    pub limit_conn: Rare<forebay_core::limit::concurrency::Counted>,
    /// Guard that counts the request as being processed.
    pub processing: Option<metrics::Processing>,
    /// State of the upstream cache for the request.
    pub proxy_cache: Rare<proxy_cache::CacheState>,
    /// Slices of the response.
    pub slice: Rare<slice::SliceState>,
    /// Compression of the response.
    pub compress: Rare<compress::CompressState>,
    /// SSI state shared by all pages of the request.
    pub ssi: Rare<ssi::SsiState>,
    /// Challenge that the request is about (`acme_hook`).
    pub acme_hook: Option<Box<forebay_acme::HookCall>>,
}

impl ModuleState {
    /// Empties it for the next request.
    pub(crate) fn clear(&mut self) {
        // Named one by one, so that none is forgotten.
        let ModuleState {
            request_id,
            replaced_peer,
            secure_link,
            userid,
            upstream,
            limit_req,
            limit_conn,
            processing,
            proxy_cache,
            slice,
            compress,
            ssi,
            acme_hook,
        } = self;
        *request_id = None;
        *replaced_peer = None;
        secure_link.clear();
        userid.clear();
        upstream.clear();
        *limit_req = None;
        limit_conn.clear();
        *processing = None;
        proxy_cache.clear();
        slice.clear();
        compress.clear();
        ssi.clear();
        *acme_hook = None;
    }
}

#[cfg(test)]
mod tests;
