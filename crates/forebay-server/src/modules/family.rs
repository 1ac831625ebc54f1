//! Directives that several modules have under names of their own: what `proxy_buffering` is to `proxy_pass` is
//! `fastcgi_buffering` to `fastcgi_pass`. They are read by the tables of `proxy_*`, once more for each family. A location
//! passes requests on by one protocol, so its `settings.proxy`, `proxy_cache`, `proxy_bind` and `proxy_ssl` are those of the family that
//! it uses: nothing that serves requests knows of families.

use super::LocationSettings;
use super::proxy::{self, Redirects};
use super::{proxy_bind, proxy_cache, proxy_cookie, proxy_ssl};
use crate::config::scope::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::marker::PhantomData;
use std::sync::Arc;

/// How the names of a family begin.
pub trait Prefix {
    /// With its underscore.
    const PREFIX: &'static str;
}

/// What one level of the configuration says in the names of a family.
pub struct Written<P> {
    proxy: proxy::Written,
    cache: proxy_cache::Written,
    bind: proxy_bind::Written,
    ssl: proxy_ssl::Written,
    prefix: PhantomData<P>,
}

impl<P> Default for Written<P> {
    fn default() -> Self {
        let (proxy, cache, bind, ssl) = Default::default();
        Written { proxy, cache, bind, ssl, prefix: PhantomData }
    }
}

impl<P> Clone for Written<P> {
    fn clone(&self) -> Self {
        let (proxy, cache) = (self.proxy.clone(), self.cache.clone());
        let (bind, ssl) = (self.bind.clone(), self.ssl.clone());
        Written { proxy, cache, bind, ssl, prefix: PhantomData }
    }
}

impl<P> std::fmt::Debug for Written<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written").finish_non_exhaustive()
    }
}

/// What is in effect stands in the settings of `proxy_*`.
#[derive(Clone, Copy, Debug)]
pub struct Settings;

impl<P: Prefix> Written<P> {
    /// Those of the tables of `proxy_*`, under other names.
    pub const DIRECTIVES: &'static [&'static str] = &[];

    /// Takes a directive; `Ok(false)` if it is not one of this family. What `proxy_*` has and this family has not is no
    /// directive at all for the parser.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
        let Some(rest) = d.name.text.strip_prefix(P::PREFIX.as_bytes()) else { return Ok(false) };
        let name = [b"proxy_", rest].concat();
        Ok(self.proxy.set_as(&name, d, cx)?
            || self.cache.set_as(&name, d, cx)?
            || self.bind.set_as(&name, d, cx)?
            || self.ssl.set_as(&name, d, cx)?)
    }

    /// Takes over what this level left unset.
    pub fn inherit(&mut self, parent: &Self) {
        self.proxy.inherit(&parent.proxy);
        self.cache.inherit(&parent.cache);
        self.bind.inherit(&parent.bind);
        self.ssl.inherit(&parent.ssl);
    }

    /// Nothing yet: see [`Written::apply`].
    pub fn resolve(&self) -> Settings {
        Settings
    }

    /// Makes these the settings by which a location passes requests on. Gives a warning where responses are cached without
    /// a key that tells them apart.
    pub fn apply(&self, s: &mut LocationSettings) -> Option<String> {
        s.proxy = self.proxy.resolve();
        s.proxy_cache = self.cache.resolve();
        s.proxy_bind = self.bind.resolve();
        s.proxy_ssl = self.ssl.resolve();
        // What only `proxy_*` has.
        s.proxy.redirect = Redirects(Arc::default());
        s.proxy_cookie = proxy_cookie::Written::default().resolve();
        s.proxy_cache.convert_head = false;
        let cached = !matches!(self.cache.zone, None | Some(proxy_cache::CacheZone::Off));
        (cached && self.cache.key.is_none())
            .then(|| format!("no \"{0}cache_key\" for \"{0}cache\"", P::PREFIX))
    }
}

/// Makes a family.
macro_rules! families {
    ($($(#[$doc:meta])* $module:ident: $ty:ident = $prefix:literal;)*) => {
        $($(#[$doc])*
        pub mod $module {
            /// Its names.
            pub struct $ty;

            impl super::Prefix for $ty {
                const PREFIX: &'static str = $prefix;
            }

            pub use super::Settings;
            /// What one level says.
            pub type Written = super::Written<$ty>;
        })*

        /// How the names of each family begin.
        #[cfg(test)]
        pub const PREFIXES: &[&str] = &[$($prefix,)*];
    };
}

families! {
    /// `fastcgi_*`.
    fastcgi_family: FastCgi = "fastcgi_";
    /// `uwsgi_*`.
    uwsgi_family: Uwsgi = "uwsgi_";
    /// `scgi_*`.
    scgi_family: Scgi = "scgi_";
}
