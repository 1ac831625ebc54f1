//! Caches of sessions, of certificates and of their states, as directives set them (nginx: ssl_session_cache,
//! ssl_certificate_cache, ssl_ocsp_cache).

use crate::config::value::{Setting, first, once};
use crate::config::{Context, Scope};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_net::tls::sessions;
use std::sync::Arc;
use std::time::Duration;

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

/// `ssl_certificate_cache`; `None` if it is off.
#[derive(Clone, Copy, Debug)]
pub struct CertificateCache(pub Option<CacheLimits>);

/// Limits of a cache of certificates.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Most entries, each a certificate with its key.
    pub max: usize,
    /// Time after which an entry that is not used leaves.
    pub inactive: Duration,
    /// Time after which an entry is loaded again.
    pub valid: Duration,
}

impl CacheLimits {
    /// Creates the limits that hold without parameters.
    pub(super) fn of(max: usize) -> CacheLimits {
        CacheLimits { max, inactive: Duration::from_secs(10), valid: Duration::from_secs(60) }
    }

    /// Reads a parameter. Returns `None` if it is invalid.
    fn set(&mut self, parameter: &str) -> Option<()> {
        let (name, value) = parameter.split_once('=')?;
        let time = || units::time_secs(value.as_bytes()).map(Duration::from_secs);
        match name {
            // nginx counts a certificate and its key as two.
            "max" => self.max = (units::number(value.as_bytes()).filter(|n| *n > 0)? as usize).div_ceil(2),
            "inactive" => self.inactive = time()?,
            "valid" => self.valid = time()?,
            _ => return None,
        }
        Some(())
    }
}

impl<C: Context> Setting<C> for CertificateCache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if first(d) == b"off" && d.args.len() == 1 {
            return Ok(CertificateCache(None));
        }
        let mut limits = CacheLimits::of(0);
        for w in &d.args {
            let text = w.as_str();
            let invalid = || cx.error_at(d, w, format!("invalid parameter \"{text}\""));
            limits.set(&text).ok_or_else(invalid)?;
        }
        if limits.max == 0 {
            let name = d.name.as_str();
            return Err(cx.error(d, format!("\"{name}\" must have the \"max\" parameter")));
        }
        Ok(CertificateCache(Some(limits)))
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
        Ok(match text {
            b"off" => SessionCache::Off,
            b"none" => SessionCache::None,
            b"builtin" => SessionCache::builtin(20480),
            _ => return SessionCache::sized(text),
        })
    }

    /// Reads `builtin:SESSIONS` or `shared:NAME:SIZE`.
    fn sized(text: &[u8]) -> Result<SessionCache, String> {
        let shown = String::from_utf8_lossy(text);
        let invalid = || format!("invalid session cache \"{shown}\"");
        if let Some(n) = text.strip_prefix(b"builtin:") {
            let n = units::number(n).filter(|n| (1..1 << 24).contains(n));
            return n.map(SessionCache::builtin).ok_or_else(invalid);
        }
        let (name, size) = shared(text).ok_or_else(invalid)?;
        if size < MIN_ZONE {
            return Err(format!("session cache \"{shown}\" is too small"));
        }
        Ok(SessionCache::Kept(sessions::zone(name, size as usize)))
    }

    /// Creates the storage for this number of sessions.
    fn builtin(sessions: u64) -> SessionCache {
        SessionCache::Kept(sessions::zone(b"builtin", (sessions * BUILTIN_SESSION) as usize))
    }
}

impl<C: Context> Setting<C> for SessionCache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut cache = previous;
        for w in &d.args {
            cache = Some(SessionCache::of(&w.text).map_err(|message| cx.error_at(d, w, message))?);
            if let Some((name, size)) = shared(&w.text) {
                cx.share_zone(d, name, (C::BLOCK, "ssl"), Some(size))?;
            }
        }
        Ok(cache.unwrap_or(SessionCache::None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_and_its_key_count_as_two() {
        for (text, pairs) in [("max=1", 1), ("max=2", 1), ("max=3", 2), ("max=100", 50)] {
            let mut limits = CacheLimits::of(0);
            assert_eq!((limits.set(text), limits.max), (Some(()), pairs), "{text}");
        }
        assert_eq!(CacheLimits::of(0).set("max=0"), None);
    }
}
