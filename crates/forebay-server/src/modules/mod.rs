//! The list of all modules, and their settings. A module is a file here with a [`Module`], and a line in the list.

use crate::config::Scope;
use crate::config::http::LocationBuild;
use crate::module::{HttpDirective, LocationDirective, Module, settings};
use crate::variables::Row;
use crate::{compress, metrics, upstream};
use foldhash::fast::RandomState;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::blocks;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

pub mod access;
pub mod acme;
pub mod addition;
pub mod alt_svc;
pub mod auth_basic;
pub mod auth_request;
pub mod autoindex;
pub mod brotli;
pub mod charset;
pub mod core;
pub mod dav;
pub mod early_hints;
pub mod empty_gif;
pub mod family;
pub mod fastcgi;
pub mod grpc;
pub mod gunzip;
pub mod gzip;
pub mod gzip_accept;
pub mod gzip_static;
pub mod headers;
pub mod headers_more;
pub mod http2;
pub mod index;
pub mod limit_conn;
pub mod limit_req;
pub mod log;
pub mod memcached;
pub mod mirror;
pub mod not_modified;
pub mod params;
pub mod post_action;
pub mod prometheus_labels;
pub mod proxy;
pub mod proxy_bind;
pub mod proxy_cache;
pub mod proxy_cookie;
pub mod proxy_http3;
pub mod proxy_protocol;
pub mod proxy_ssl;
pub mod random_index;
pub mod range;
pub mod realip;
pub mod referer;
pub mod resolver;
pub mod rewrite;
pub mod route;
pub mod scgi;
pub mod secure_link;
pub mod server;
pub mod set_misc;
pub mod slice;
pub mod ssi;
pub mod ssl;
pub mod static_file;
pub mod store_answers;
pub mod stub_status;
pub mod sub_filter;
pub mod try_files;
pub mod tunnel;
pub mod userid;
pub mod uwsgi;
pub mod vars;
pub mod zstd;

/// Settings of `ssl_*` that all front ends have.
pub use forebay_core::tls::settings as tls;

/// Combines the settings of all modules into one set per location. A level shares the settings of a module with the level
/// around it if it sets none of them itself, so servers and locations with few directives take little memory.
macro_rules! modules {
    ($($module:ident,)*) => {
        /// Settings of all modules that one level sets itself.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub struct LocationWritten {
            $(pub $module: Arc<$module::Written>,)*
            pub modules: settings::Written,
        }

        /// Settings of all modules that are in effect at a location.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub struct LocationSettings {
            $(pub $module: Arc<$module::Settings>,)*
            pub modules: settings::InEffect,
        }

        /// A level without directives.
        static NOTHING: LazyLock<LocationWritten> =
            LazyLock::new(|| LocationWritten { $($module: Arc::default(),)* modules: settings::Written::default() });

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
            pub fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<Option<Part>, Error> {
                let Some(module) = PARTS.get(d.name.text.as_slice()).copied() else {
                    return Ok(self.modules.set(d, cx)?.map(Part::Other));
                };
                let set = match module {
                    $(Part::$module => Arc::make_mut(&mut self.$module).set(d, cx)?,)*
                    Part::Other(_) => false,
                };
                Ok(set.then_some(module))
            }
            /// Replaces the directives of a module, whose words are `text`, by those of another level with the same words.
            pub fn share(&mut self, module: Part, text: crate::module::sharing::Text, sharing: &mut Sharing) {
                // `root` and `alias` depend on the location.
                if module == Part::core && self.core.root.is_some() {
                    return;
                }
                match module {
                    $(Part::$module => sharing.$module.share(&mut self.$module, text),)*
                    Part::Other(place) => self.modules.share(place, text, &mut sharing.modules),
                }
            }
            /// Copies the settings that this level left unset from `parent`.
            pub fn inherit(&mut self, parent: &LocationWritten, sharing: &mut Sharing) {
                $(if Arc::ptr_eq(&self.$module, &NOTHING.$module) {
                    self.$module = parent.$module.clone();
                } else if !Arc::ptr_eq(&self.$module, &parent.$module) {
                    sharing.$module.inherit(&mut self.$module, &parent.$module, |own, outer| {
                        let mut own = (**own).clone();
                        own.inherit(outer);
                        Arc::new(own)
                    });
                })*
                self.modules.inherit(&parent.modules, &mut sharing.modules);
            }
            /// Applies the defaults. `parent` is the level around it: its own settings, and those in effect there.
            pub fn resolve(
                &self,
                parent: Option<(&LocationWritten, &LocationSettings)>,
                sharing: &mut Sharing,
            ) -> LocationSettings {
                LocationSettings { $($module: match parent {
                    Some((w, s)) if Arc::ptr_eq(&self.$module, &w.$module) => s.$module.clone(),
                    _ => sharing.$module.resolve(&self.$module, |written| Arc::new(written.resolve())),
                },)* modules: self.modules.resolve(
                    parent.map(|(written, settings)| (&written.modules, &settings.modules)),
                    &mut sharing.modules,
                ) }
            }
        }

        /// The settings of a module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum Part { $($module,)* Other(usize) }

        /// Settings by the names of their directives.
        static PARTS: LazyLock<HashMap<&'static [u8], Part, RandomState>> = LazyLock::new(|| {
            let module = |name: &[u8]| {
                $(if $module::Written::binds(name) { return Some(Part::$module); })*
                None
            };
            let names = forebay_conf::grammar::all().iter().map(|row| row.name.as_bytes());
            names.filter_map(|name| Some((name, module(name)?))).collect()
        });

        /// Settings that the levels of a configuration share.
        #[derive(Debug, Default)]
        pub struct Sharing {
            $($module: crate::module::sharing::Shared<$module::Written, $module::Settings>,)*
            modules: settings::Sharing,
        }

        /// Names of all directives bound by settings at location level.
        #[cfg(test)]
        pub const BOUND: &[&[&str]] = &[$($module::Written::DIRECTIVES,)*];
    };
}

modules! {
    core, log, rewrite, http2, ssl, tls, resolver,
}

/// All modules. The order is the order of their hooks in a phase and of their header filters.
static MODULES: &[&Module] = &[
    &core::MODULE,
    &log::MODULE,
    &BLOCKS,
    &upstream::MODULE,
    &acme::MODULE,
    &index::MODULE,
    &dav::MODULE,
    &random_index::MODULE,
    &autoindex::MODULE,
    &gzip_static::MODULE,
    &early_hints::MODULE,
    &prometheus_labels::MODULE,
    &realip::MODULE,
    &rewrite::MODULE,
    &set_misc::MODULE,
    &referer::MODULE,
    &secure_link::MODULE,
    &ssl::MODULE,
    &proxy_protocol::MODULE,
    &limit_req::MODULE,
    &limit_conn::MODULE,
    &access::MODULE,
    &auth_basic::MODULE,
    &auth_request::MODULE,
    &try_files::MODULE,
    &mirror::MODULE,
    &proxy::MODULE,
    &proxy_cache::MODULE,
    &fastcgi::MODULE,
    &uwsgi::MODULE,
    &scgi::MODULE,
    &grpc::MODULE,
    &memcached::MODULE,
    &tunnel::MODULE,
    &stub_status::MODULE,
    &empty_gif::MODULE,
    &metrics::MODULE,
    // Header filters, from the first to the last.
    &slice::MODULE,
    &not_modified::MODULE,
    &headers_more::MODULE,
    &headers::MODULE,
    &userid::MODULE,
    &gunzip::MODULE,
    &sub_filter::MODULE,
    &charset::MODULE,
    &addition::MODULE,
    &ssi::MODULE,
    &gzip::MODULE,
    &gzip_accept::MODULE,
    &brotli::MODULE,
    &zstd::MODULE,
    &compress::MODULE,
    &range::MODULE,
    &post_action::MODULE,
];

/// Blocks and zones that HTTP has in common with other front ends.
static BLOCKS: Module = Module {
    http_directives: &[
        ("upstream", crate::config::upstreams::block),
        ("map", blocks::map::block),
        ("geo", blocks::geo::block),
        ("split_clients", blocks::split_clients::block),
        ("shared_store", forebay_core::shared_store::directive),
    ],
    ..Module::NONE
};

/// These modules, and those that have been installed.
static ALL: OnceLock<Vec<&'static Module>> = OnceLock::new();

/// Returns all modules.
#[inline]
pub fn all() -> &'static [&'static Module] {
    ALL.get_or_init(|| MODULES.to_vec())
}

/// Adds modules after those of this crate, before the first configuration is read. Their directives need rows in the grammar
/// ([`forebay_conf::grammar::extend`]).
///
/// # Errors
/// The modules are in use, or have been installed.
pub fn install(further: &[&'static Module]) -> Result<(), &'static str> {
    let all = MODULES.iter().chain(further).copied().collect();
    ALL.set(all).map_err(|_| "the modules are in use")
}

/// Reads a directive of the http level that defines something by name. Returns `Ok(false)` if no module has it.
///
/// # Errors
/// In nginx's words.
pub fn http_directive(d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
    static READERS: OnceLock<HashMap<&'static [u8], HttpDirective, RandomState>> = OnceLock::new();
    let named = || all().iter().flat_map(|m| m.http_directives).map(|(name, read)| (name.as_bytes(), *read));
    match READERS.get_or_init(|| named().collect()).get(d.name.text.as_slice()) {
        Some(read) => read(d, cx).map(|()| true),
        None => Ok(false),
    }
}

/// Reads a directive of a level that is not inherited. Returns `Ok(false)` if no module has it.
///
/// # Errors
/// In nginx's words.
pub fn location_directive(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<bool, Error> {
    static READERS: OnceLock<HashMap<&'static [u8], LocationDirective, RandomState>> = OnceLock::new();
    let named =
        || all().iter().flat_map(|m| m.location_directives).map(|(name, read)| (name.as_bytes(), *read));
    match READERS.get_or_init(|| named().collect()).get(d.name.text.as_slice()) {
        Some(read) => read(d, l, cx).map(|()| true),
        None => Ok(false),
    }
}

/// Rows of all built-in variables.
pub fn variables() -> impl Iterator<Item = &'static Row> {
    all().iter().flat_map(|module| module.variables).copied().flatten()
}

#[cfg(test)]
mod tests;
