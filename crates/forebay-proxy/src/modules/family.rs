//! Directives that several modules have under names of their own: `proxy_buffering` for `proxy_pass` is
//! `fastcgi_buffering` for `fastcgi_pass`. The tables of `proxy_*` read them, once more for each family. A location
//! passes requests on by one protocol, so its settings of `proxy`, `proxy_cache`, `proxy_bind` and `proxy_ssl` are the
//! settings of the family that it uses. Nothing that serves requests knows of families.

use super::proxy::{self, Redirects, To, buffers};
use super::proxy_cache::CacheZone;
use super::{proxy_bind, proxy_cache, proxy_cookie, proxy_ssl};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::config::value::first;
use forebay_server::config::Scope;
use forebay_server::config::http::LocationBuild;
use forebay_server::module::Directives;
use forebay_server::module::levels::LocationWritten;
use forebay_server::module::levels::{LocationSettings, Sharing};
use forebay_server::module::settings::Value;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

/// A family of directives.
pub trait Prefix: Send + Sync + 'static {
    /// Beginning of the names, with its underscore.
    const PREFIX: &'static str;
    /// `true` if the sizes of several buffers can be set.
    const HAS_BUFFERS: bool;

    /// Changes the settings of `proxy` that are in effect to the defaults of the family.
    fn adapt(_s: &mut proxy::Settings) {}
}

/// Directives of a family at one level of the configuration.
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

/// Empty, since the values in effect are in the settings of `proxy_*`.
#[derive(Clone, Copy, Debug)]
pub struct Settings;

impl<P: Prefix> Directives for Written<P> {
    type Settings = Settings;
    const DIRECTIVES: &'static [&'static str] = &[];

    fn names() -> Vec<&'static str> {
        let all = forebay_conf::grammar::names();
        all.filter(|name| Written::<P>::binds(name.as_bytes())).collect()
    }

    /// The parser has refused directives that only `proxy_*` has.
    fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
        let Some(rest) = d.name.text.strip_prefix(P::PREFIX.as_bytes()) else { return Ok(false) };
        let name = [b"proxy_", rest].concat();
        Ok(self.proxy.set_as(&name, d, cx)?
            || self.cache.set_as(&name, d, cx)?
            || self.bind.set_as(&name, d, cx)?
            || self.ssl.set_as(&name, d, cx)?)
    }

    fn inherit(&mut self, outer: &Self) {
        self.proxy.inherit(&outer.proxy);
        self.cache.inherit(&outer.cache);
        self.bind.inherit(&outer.bind);
        self.ssl.inherit(&outer.ssl);
    }

    /// Returns a placeholder: `Written::values` makes the settings.
    fn resolve(&self) -> Settings {
        Settings
    }
}

impl<P: Prefix> Written<P> {
    /// Returns `true` if a directive of this name belongs to the family.
    fn binds(name: &[u8]) -> bool {
        let Some(rest) = name.strip_prefix(P::PREFIX.as_bytes()) else { return false };
        let name = [b"proxy_", rest].concat();
        proxy::Written::binds(&name)
            || proxy_cache::Written::binds(&name)
            || proxy_bind::Written::binds(&name)
            || proxy_ssl::Written::binds(&name)
    }
}

/// Directives of any family at one level of the configuration.
trait Level {
    /// Returns an address: equal addresses mean equal directives.
    fn address(&self) -> usize;

    /// Returns `true` if the level both stores responses as files and caches them.
    fn stores_and_caches(&self) -> bool;

    /// Returns `true` if the level has several certificates for upstreams.
    fn has_several_certificates(&self) -> bool;

    /// Checks that the sizes of buffers fit together.
    ///
    /// # Errors
    /// In nginx's words.
    fn buffers(&self) -> Result<(), String>;

    /// Translates the directives to the settings by which a location passes requests on. Also returns a warning if responses are
    /// cached without a key of their own.
    fn values(&self) -> (Values, Option<String>);
}

impl<P: Prefix> Level for Written<P> {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn stores_and_caches(&self) -> bool {
        both(&self.proxy, &self.cache)
    }

    fn has_several_certificates(&self) -> bool {
        several(&self.ssl)
    }

    fn buffers(&self) -> Result<(), String> {
        if P::HAS_BUFFERS { buffers::check(P::PREFIX, &self.proxy) } else { Ok(()) }
    }

    fn values(&self) -> (Values, Option<String>) {
        // Directives that only `proxy_*` has are not in effect for a family.
        let mut proxied = proxy::Settings { redirect: Redirects(Arc::default()), ..self.proxy.resolve() };
        P::adapt(&mut proxied);
        let cache = proxy_cache::Settings { convert_head: false, ..self.cache.resolve() };
        let values = vec![
            proxy::SETTINGS.value(proxied),
            proxy_cache::SETTINGS.value(cache),
            proxy_bind::SETTINGS.value(self.bind.resolve()),
            proxy_ssl::SETTINGS.value(self.ssl.resolve()),
            proxy_cookie::SETTINGS.value(proxy_cookie::Written::default().resolve()),
        ];
        let cached = !matches!(self.cache.zone, None | Some(CacheZone::Off));
        let warning = (cached && self.cache.key.is_none())
            .then(|| format!("no \"{0}cache_key\" for \"{0}cache\"", P::PREFIX));
        (values, warning)
    }
}

/// Settings of several modules, with their places.
type Values = Vec<Value>;

/// Makes the families.
macro_rules! families {
    ($($(#[$doc:meta])* $module:ident: $ty:ident = $prefix:literal, $has_buffers:literal $(, $adapt:path)?;)*) => {
        $($(#[$doc])*
        pub mod $module {
            /// Prefix of the directives.
            pub struct $ty;

            impl super::Prefix for $ty {
                const PREFIX: &'static str = $prefix;
                const HAS_BUFFERS: bool = $has_buffers;

                $(fn adapt(s: &mut super::proxy::Settings) {
                    $adapt(s);
                })?
            }

            /// Directives of the family.
            pub static SETTINGS: forebay_server::module::SettingsOf<super::Written<$ty>> =
                forebay_server::module::SettingsOf::new();
        })*

        /// Prefixes of the families, and their directives at a level.
        const FAMILIES: &[(&str, for<'l> fn(&'l LocationWritten) -> &'l dyn Level)] =
            &[$(($prefix, |level| $module::SETTINGS.written(level)),)*];
    };
}

// The prefix, and whether the sizes of buffers can be set. A family with defaults of its own names the function that sets them.
families! {
    /// `fastcgi_*`.
    fastcgi_family: FastCgi = "fastcgi_", true;
    /// `uwsgi_*`.
    uwsgi_family: Uwsgi = "uwsgi_", true;
    /// `scgi_*`.
    scgi_family: Scgi = "scgi_", true;
    /// `grpc_*`.
    grpc_family: Grpc = "grpc_", false, crate::modules::grpc::set_defaults;
    /// `memcached_*`.
    memcached_family: Memcached = "memcached_", false, crate::modules::memcached::set_defaults;
}

/// Returns the directives of all families at a level.
fn levels(w: &LocationWritten) -> impl Iterator<Item = &dyn Level> {
    FAMILIES.iter().map(|(_, of)| of(w))
}

/// Returns the directives of the family with this prefix at a level; `None` if there is no such family.
fn level<'l>(prefix: &str, w: &'l LocationWritten) -> Option<&'l dyn Level> {
    FAMILIES.iter().find(|(p, _)| *p == prefix).map(|(_, of)| of(w))
}

/// Checks a directive of a level, which has just been taken, against the others there.
///
/// # Errors
/// In nginx's words.
pub fn agrees(d: &Directive, l: &LocationBuild, cx: &Scope<'_>) -> Result<(), Error> {
    let name = d.name.text.as_slice();
    let word = first(d);
    // Checked here rather than by the table, since the answer depends on the `proxy_pass` of the same level.
    if name == b"proxy_redirect" && d.args.len() == 1 && word == b"default" {
        return check_default_redirect(d, l, cx);
    }
    if name.ends_with(b"_limit_rate") && !word.contains(&b'$') && units::size(word).is_none() {
        return Err(cx.directive_error(d, "invalid value"));
    }
    if name.ends_with(b"_store") && word.is_empty() {
        return Err(cx.error(d, "empty path"));
    }
    if has_several_certificates(&l.written) {
        return Err(cx.directive_error(d, "is duplicate"));
    }
    check_store_or_cache(d, &l.written, cx)
}

/// Returns `true` if a level has several certificates for upstreams. The table of `ssl_certificate` reads them, which may
/// be repeated, while these directives may not.
fn has_several_certificates(w: &LocationWritten) -> bool {
    several(proxy_ssl::SETTINGS.written(w)) || levels(w).any(Level::has_several_certificates)
}

fn several(ssl: &proxy_ssl::Written) -> bool {
    [&ssl.certificate, &ssl.certificate_key].into_iter().flatten().any(|names| names.0.len() > 1)
}

/// Refuses a directive that makes a level both store and cache responses.
fn check_store_or_cache(d: &Directive, w: &LocationWritten, cx: &Scope<'_>) -> Result<(), Error> {
    let name = d.name.as_str();
    for (suffix, other) in [("store", "cache"), ("cache", "store")] {
        if let Some(prefix) = name.strip_suffix(suffix)
            && stores_and_caches(prefix, w)
        {
            return Err(cx.directive_error(d, &format!("is incompatible with \"{prefix}{other}\"")));
        }
    }
    Ok(())
}

fn check_default_redirect(d: &Directive, l: &LocationBuild, cx: &Scope<'_>) -> Result<(), Error> {
    let what = "\"proxy_redirect default\"";
    let why = match proxy::destination(l.content.as_ref()) {
        Some(p) if matches!(p.to, To::Template(_)) => {
            "cannot be used with \"proxy_pass\" directive with variables"
        }
        Some(_) => return Ok(()),
        _ => "should be placed after the \"proxy_pass\" directive",
    };
    Err(cx.error(d, format!("{what} {why}")))
}

/// Returns `true` if a level both stores and caches responses by directives with this prefix.
fn stores_and_caches(prefix: &str, w: &LocationWritten) -> bool {
    match prefix {
        "proxy_" => both(proxy::SETTINGS.written(w), proxy_cache::SETTINGS.written(w)),
        prefix => level(prefix, w).is_some_and(Level::stores_and_caches),
    }
}

/// Returns `true` if a level both stores responses as files and caches them.
fn both(proxy: &proxy::Written, cache: &proxy_cache::Written) -> bool {
    proxy.store.as_ref().is_some_and(|s| !matches!(s, proxy::Store::Off))
        && cache.zone.as_ref().is_some_and(|z| !matches!(z, CacheZone::Off))
}

/// Translates the directives of families to settings of `proxy_`, for one configuration.
#[derive(Debug, Default)]
pub struct Translated {
    /// Settings by the addresses of the directives of a family. Locations with the same directives share them.
    known: HashMap<usize, Values>,
    /// The directives, so that no others get their addresses.
    held: Vec<LocationWritten>,
}

impl Translated {
    /// Puts the settings of the family by which a location passes requests on into effect there. Returns a warning the first time.
    pub fn apply(
        &mut self,
        prefix: &str,
        written: &LocationWritten,
        settings: &mut LocationSettings,
        sharing: &mut Sharing,
    ) -> Option<String> {
        let level = level(prefix, written)?;
        let mut warning = None;
        let values = self.known.entry(level.address()).or_insert_with(|| {
            // Held for as long as the address serves as the key of the map.
            self.held.push(written.clone());
            let (values, text) = level.values();
            warning = text;
            values
        });
        settings.modules = settings.modules.with(values, &mut sharing.modules);
        warning
    }
}

/// Checks the sizes of buffers of a level.
///
/// # Errors
/// In nginx's words.
pub fn buffers(level: &LocationWritten) -> Result<(), String> {
    buffers::check("proxy_", proxy::SETTINGS.written(level))?;
    levels(level).try_for_each(Level::buffers)
}

#[cfg(test)]
mod tests {
    use crate::testing::error;

    #[test]
    fn conflicting_directives_are_refused_in_nginxs_words() {
        let at = |line: &str| {
            error(&format!("proxy_cache_path /c keys_zone=z:1m; server {{ location / {{ {line} }} }}"))
        };
        for (line, want) in [
            (
                "proxy_store on; proxy_cache z;",
                "\"proxy_cache\" directive is incompatible with \"proxy_store\"",
            ),
            (
                "proxy_cache z; proxy_store on;",
                "\"proxy_store\" directive is incompatible with \"proxy_cache\"",
            ),
            ("scgi_cache z; scgi_store /x;", "\"scgi_store\" directive is incompatible with \"scgi_cache\""),
            (
                "proxy_redirect default; proxy_pass http://127.0.0.1;",
                "\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive",
            ),
            (
                "proxy_pass http://$host; proxy_redirect default;",
                "\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables",
            ),
            ("grpc_next_upstream updating;", "invalid value \"updating\""),
            ("memcached_next_upstream http_500;", "invalid value \"http_500\""),
            ("scgi_next_upstream not_found;", "invalid value \"not_found\""),
            ("uwsgi_next_upstream http_502;", "invalid value \"http_502\""),
            ("proxy_redirect / /a; proxy_redirect off;", "\"proxy_redirect\" directive is duplicate"),
            ("proxy_redirect off; proxy_redirect / /a;", "\"proxy_redirect\" directive is duplicate"),
        ] {
            assert_eq!(at(line).as_deref(), Some(want), "{line}");
        }
        for line in [
            "proxy_store off; proxy_cache z;",
            "proxy_cache off; proxy_store on;",
            "scgi_next_upstream updating off; grpc_next_upstream http_502 HTTP_429; memcached_next_upstream not_found invalid_response off;",
            "proxy_pass http://127.0.0.1; proxy_redirect default; proxy_redirect / /a;",
        ] {
            assert_eq!(at(line), None, "{line}");
        }
    }

    #[test]
    fn a_directory_has_one_use() {
        let cache = "proxy_cache_path /c keys_zone=z:1m;";
        let used = "the same path name \"/c\" used in /test/nginx.conf:5 and";
        let other = "the same path name \"/c\" in /test/nginx.conf:5 has the different levels than";
        for (conf, want) in [
            (format!("{cache} proxy_cache_path /c keys_zone=y:1m;"), Some(used)),
            (format!("{cache} client_body_temp_path /c;"), Some(used)),
            (format!("proxy_temp_path /c; {cache}"), Some(used)),
            ("proxy_temp_path /c 1; client_body_temp_path /c 2;".into(), Some(other)),
            ("proxy_temp_path /c 1; client_body_temp_path /c 1;".into(), None),
        ] {
            assert_eq!(error(&conf).as_deref(), want, "{conf}");
        }
    }
}
