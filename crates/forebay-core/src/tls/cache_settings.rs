//! Caches of sessions, of certificates and of their states, as directives set them (nginx: ssl_session_cache,
//! ssl_certificate_cache, ssl_ocsp_cache).

use crate::config::value::{Setting, first, once};
use crate::config::{Context, Scope};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_net::tls::sessions;
use std::sync::Arc;

/// Splits `shared:NAME:SIZE` into the name and the size in bytes.
fn shared(text: &[u8]) -> Option<(&[u8], u64)> {
    let zone = text.strip_prefix(b"shared:")?;
    let at = memchr::memchr(b':', zone).filter(|at| *at > 0)?;
    let (name, size) = zone.split_at(at);
    Some((name, units::size(size.get(1..)?)?))
}

/// `ssl_ocsp_cache`: cache of certificate states; `None` if it is off.
#[derive(Clone, Debug, Default)]
pub struct OcspCache(pub Option<Arc<sessions::Sessions>>);

impl<C: Context> Setting<C> for OcspCache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let text = first(d);
        if text == b"off" {
            return Ok(OcspCache(None));
        }
        let shown = String::from_utf8_lossy(text);
        let Some((name, size)) = shared(text) else {
            return Err(cx.error(d, format!("invalid OCSP cache \"{shown}\"")));
        };
        if size < MIN_ZONE {
            return Err(cx.error(d, format!("OCSP cache \"{shown}\" is too small")));
        }
        // The prefix keeps this zone apart from a session cache of the same name.
        let name = [b"ocsp:", name].concat();
        Ok(OcspCache(Some(sessions::zone(&name, size as usize))))
    }
}

/// `ssl_certificate_cache`: `(max entries, inactive seconds, valid seconds)`, or `None` for `off`.
#[derive(Clone, Copy, Debug)]
pub struct Cache(pub Option<(usize, u64, u64)>);

impl<C: Context> Setting<C> for Cache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if first(d) == b"off" && d.args.len() == 1 {
            return Ok(Cache(None));
        }
        let (mut max, mut inactive, mut valid) = (0, 10, 60);
        for w in &d.args {
            let text = w.as_str();
            let (name, value) = text.split_once('=').unwrap_or_default();
            let read = match name {
                "max" => units::number(value.as_bytes()).filter(|n| *n > 0).map(|n| max = n as usize),
                "inactive" => units::time_secs(value.as_bytes()).map(|n| inactive = n),
                "valid" => units::time_secs(value.as_bytes()).map(|n| valid = n),
                _ => None,
            };
            read.ok_or_else(|| cx.error_at(d, w, format!("invalid parameter \"{text}\"")))?;
        }
        if max == 0 {
            let name = d.name.as_str();
            return Err(cx.error(d, format!("\"{name}\" must have the \"max\" parameter")));
        }
        Ok(Cache(Some((max, inactive, valid))))
    }
}

/// `ssl_session_cache`: storage of TLS sessions.
#[derive(Clone, Debug)]
pub enum SessionCache {
    /// No storage, but clients are led to believe that sessions may be reused.
    None,
    /// No storage, and clients learn that sessions cannot be reused.
    Off,
    /// Storage in this process.
    Kept(Arc<sessions::Sessions>),
}

/// Memory for a session of `builtin`, whose size is a number of sessions, bytes.
const BUILTIN_SESSION: u64 = 512;

/// Smallest size of a zone, bytes.
const MIN_ZONE: u64 = 8 * 4096;

impl SessionCache {
    /// Reads one word of the directive.
    ///
    /// # Errors
    /// In nginx's words.
    fn of(text: &[u8]) -> Result<SessionCache, String> {
        let kept = |name: &[u8], size: u64| SessionCache::Kept(sessions::zone(name, size as usize));
        let shown = || String::from_utf8_lossy(text).into_owned();
        let cache = match text {
            b"off" => Some(SessionCache::Off),
            b"none" => Some(SessionCache::None),
            b"builtin" => Some(kept(b"builtin", 20480 * BUILTIN_SESSION)),
            _ => None,
        };
        if let Some(cache) = cache {
            return Ok(cache);
        }
        if let Some(n) = text.strip_prefix(b"builtin:") {
            let n = units::number(n).filter(|n| *n > 0 && *n < 1 << 24);
            let cache = n.map(|n| kept(b"builtin", n * BUILTIN_SESSION));
            return cache.ok_or_else(|| format!("invalid session cache \"{}\"", shown()));
        }
        match shared(text) {
            Some((name, size)) if size >= MIN_ZONE => Ok(kept(name, size)),
            Some(_) => Err(format!("session cache \"{}\" is too small", shown())),
            None => Err(format!("invalid session cache \"{}\"", shown())),
        }
    }
}

impl<C: Context> Setting<C> for SessionCache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut cache = previous;
        for w in &d.args {
            cache = Some(SessionCache::of(&w.text).map_err(|message| cx.error_at(d, w, message))?);
        }
        Ok(cache.unwrap_or(SessionCache::None))
    }
}
