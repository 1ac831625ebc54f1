//! The list of all modules, and their settings. A module is a file here with a [`Module`](crate::module::Module), and a line in the list.

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
pub(crate) mod not_modified;
pub(crate) mod params;
pub(crate) mod post_action;
pub(crate) mod prometheus_labels;
pub(crate) mod proxy;
pub(crate) mod proxy_bind;
pub(crate) mod proxy_cache;
pub(crate) mod proxy_cookie;
pub(crate) mod proxy_http3;
pub(crate) mod proxy_protocol;
pub(crate) mod proxy_ssl;
pub(crate) mod random_index;
pub(crate) mod range;
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
pub(crate) mod store_answers;
pub(crate) mod stub_status;
pub(crate) mod sub_filter;
pub(crate) mod try_files;
pub(crate) mod tunnel;
pub(crate) mod userid;
pub(crate) mod uwsgi;
pub(crate) mod vars;
pub(crate) mod zstd;

/// Settings of `ssl_*` that all front ends have.
pub(crate) use forebay_core::tls::settings as tls;

/// Combines the settings of all modules into one set per location. A level shares the settings of a module with the level
/// around it if it sets none of them itself, so servers and locations with few directives take little memory.
macro_rules! modules {
    ($($module:ident,)*) => {
        /// Settings of all modules that one level sets itself.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub(crate) struct LocationWritten {
            $(pub(crate) $module: Arc<$module::Written>,)*
            pub(crate) modules: settings::Written,
        }

        /// Settings of all modules that are in effect at a location.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub(crate) struct LocationSettings {
            $(pub(crate) $module: Arc<$module::Settings>,)*
            pub(crate) modules: settings::InEffect,
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
            pub(crate) fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<Option<Part>, Error> {
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
            pub(crate) fn share(&mut self, module: Part, text: sharing::Text, sharing: &mut Sharing) {
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
            pub(crate) fn inherit(&mut self, parent: &LocationWritten, sharing: &mut Sharing) {
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
            pub(crate) fn resolve(
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
        #[allow(non_camel_case_types)]
        pub(crate) enum Part { $($module,)* Other(usize) }

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
        pub(crate) struct Sharing {
            $($module: sharing::Shared<$module::Written, $module::Settings>,)*
            modules: settings::Sharing,
        }

        /// Names of all directives bound by settings at location level.
        #[cfg(test)]
        pub(crate) const BOUND: &[&[&str]] = &[$($module::Written::DIRECTIVES,)*];
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
        ("map", blocks::map::block),
        ("geo", blocks::geo::block),
        ("split_clients", blocks::split_clients::block),
        ("shared_store", forebay_core::shared_store::directive),
    ],
    ..Module::NONE
};

/// Returns all modules.
pub(crate) fn all() -> &'static [&'static Module] {
    MODULES
}

/// Reads a directive of the http level that defines something by name. Returns `Ok(false)` if no module has it.
///
/// # Errors
/// In nginx's words.
pub(crate) fn http_directive(d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
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
pub(crate) fn location_directive(
    d: &Directive,
    l: &mut LocationBuild,
    cx: &mut Scope<'_>,
) -> Result<bool, Error> {
    static READERS: OnceLock<HashMap<&'static [u8], LocationDirective, RandomState>> = OnceLock::new();
    let named =
        || all().iter().flat_map(|m| m.location_directives).map(|(name, read)| (name.as_bytes(), *read));
    match READERS.get_or_init(|| named().collect()).get(d.name.text.as_slice()) {
        Some(read) => read(d, l, cx).map(|()| true),
        None => Ok(false),
    }
}

/// Rows of all built-in variables.
pub(crate) fn variables() -> impl Iterator<Item = &'static Row> {
    all().iter().flat_map(|module| module.variables).copied().flatten()
}

#[cfg(test)]
mod tests;
