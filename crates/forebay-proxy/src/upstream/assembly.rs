//! Locations that pass requests on, while a configuration is made: their health checks, the settings of their families of directives,
//! their TLS.

use super::health_check::{self, Check, Checks};
use super::sticky;
use crate::modules::proxy::{self, HttpVersion, To};
use crate::modules::{family, proxy_http3, proxy_ssl};
use forebay_conf::error::{Error, Level};
use forebay_core::config::plain;
use forebay_core::tls::client::{ClientTls, OfferedProtocols};
use forebay_server::config::http::Location;
use forebay_server::module::ConfigHooks;
use forebay_server::module::assembly::{Loaded, LoadingTls, Placing, Settling};
use forebay_server::module::levels::{LocationSettings, LocationWritten};
use std::collections::HashMap;
use std::sync::Arc;

/// Functions of these locations.
pub(super) const HOOKS: ConfigHooks = ConfigHooks {
    check_directive: Some(family::agrees),
    check_level: Some(family::buffers),
    place: Some(add_check),
    settle: Some(apply_family),
    load_tls: Some(load_tls),
    default_proxy_temp: Some(has_default_temp),
    upstream_directives: &[("sticky", sticky::directive)],
    complete_group: Some(health_check::complete),
    ..ConfigHooks::NONE
};

/// Adds the `health_check` of a location to the upstream group that the location passes requests to.
///
/// # Errors
/// If the location passes requests to no group that the configuration knows.
fn add_check(level: &mut Placing<'_, '_>) -> Result<(), Error> {
    let Some(mut check) = level.parts.take::<Option<Check>>() else { return Ok(()) };
    let Some(pass) = proxy::destination(level.content) else {
        return Err(check.common.error("\"health_check\" requires \"proxy_pass\""));
    };
    if !pass.codec.facts().takes_url {
        let message = format!("\"health_check\" is not supported with \"{}pass\"", pass.codec.facts().prefix);
        return Err(check.common.error(message));
    }
    let To::Fixed { group, host, encrypted, .. } = &pass.to else {
        return Err(check.common.error("\"health_check\" requires a constant \"proxy_pass\""));
    };
    check.bind(host, *encrypted, (level.server, level.location), proxy::SETTINGS.of(level.settings));
    if let Some((group, parts)) = level.cx.tables.upstreams.change(*group) {
        Checks::add(check, group, parts);
    }
    Ok(())
}

/// Translates the directives of `fastcgi_`, `uwsgi_` and the like to directives of `proxy_`.
fn apply_family(l: &mut Location, written: &LocationWritten, s: &mut Settling<'_, '_>) {
    let Some(pass) = proxy::destination(l.content.as_ref()) else { return };
    let prefix = pass.codec.facts().prefix;
    let translated = s.memory.get_mut::<family::Translated>();
    let warning = translated.apply(prefix, written, &mut l.settings, s.sharing);
    let warning = warning.map(|text| Error { level: Level::Warn, ..s.cx.error_at_end(text) });
    s.cx.warnings.extend(warning);
}

/// Returns `true` if a location uses the default of `proxy_temp_path`.
fn has_default_temp(l: &Location) -> bool {
    let passes = proxy::destination(l.content.as_ref()).is_some();
    passes && proxy::SETTINGS.of(&l.settings).temp_path.0.is_none()
}

/// TLS configurations by the addresses of settings and the version of HTTP. The settings are held, so that no others get their address.
#[derive(Default)]
struct Shared(HashMap<(usize, HttpVersion), (LocationSettings, Arc<ClientTls>)>);

/// Makes the TLS configuration for the upstreams of a location, if it may need one.
fn load_tls(l: &mut Location, loading: &mut LoadingTls<'_, '_>) -> Loaded {
    load(l, loading);
    // A location that shares the TLS configuration of another location has not read the files itself, so what the result
    // depends on is not known.
    let has_certificate = !proxy_ssl::SETTINGS.of(&l.settings).certificate.0.is_empty();
    match l.upstream_tls.is_some() && has_certificate {
        true => Loaded::Unrepeatable,
        false => Loaded::Repeatable,
    }
}

fn load(l: &mut Location, loading: &mut LoadingTls<'_, '_>) {
    let Some(pass) = proxy::destination(l.content.as_ref()) else { return };
    let version = proxy::SETTINGS.of(&l.settings).http_version;
    if version == HttpVersion::V3 && pass.is_unencrypted() {
        let error = plain("\"proxy_http_version 3\" needs \"https://\" in \"proxy_pass\"");
        loading.cx.keep_late(pass.place(error));
    }
    let http3 = proxy_http3::SETTINGS.of(&l.settings);
    if version == HttpVersion::V3 && http3.alt_svc && http3.fallback.0.is_none() {
        let error = plain("\"proxy_http3_alt_svc\" needs \"proxy_http3_fallback on\"");
        loading.cx.keep_late(pass.place(error));
    }
    if !pass.may_encrypt() {
        return;
    }
    let s = proxy_ssl::SETTINGS.of(&l.settings);
    let key = (std::ptr::from_ref(s).addr(), version);
    if let Some((_, same)) = loading.memory.get_mut::<Shared>().0.get(&key) {
        l.upstream_tls = Some(same.clone());
        return;
    }
    // With HTTP/3, connections over TCP offer what each request needs.
    let facts = pass.codec.in_version(version).facts();
    match ClientTls::new(
        s,
        OfferedProtocols { alpn: facts.alpn, quic: facts.quic_alpn },
        loading.loader,
        loading.cx,
    ) {
        Ok(tls) => {
            let tls = Arc::new(tls);
            let shared = loading.memory.get_mut::<Shared>();
            shared.0.insert(key, (l.settings.clone(), tls.clone()));
            l.upstream_tls = Some(tls);
        }
        Err(error) if version == HttpVersion::V3 => loading.cx.keep_late(pass.place(error)),
        Err(error) => {
            // Families have their own names for the directives, which the message must use.
            let prefix = format!("{}ssl_", facts.prefix);
            loading.cx.keep_late(Error { message: error.message.replace("proxy_ssl_", &prefix), ..error });
        }
    }
}
