//! Identity of TLS settings within one configuration, so that servers with the same settings share one copy.

use super::cache_settings::SessionCache;
use super::loader::{Certificates, ServerInput};
use super::settings::Settings;
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

/// Shared values that keys name by their addresses. It holds them, so that no other value gets the address of one that is gone.
#[derive(Default)]
pub(super) struct Held(HashMap<usize, Box<dyn Any>>);

impl Held {
    /// Returns the address of a list as its identity. All empty lists are equal.
    pub(super) fn list<T: 'static>(&mut self, list: &Arc<Vec<T>>) -> usize {
        if list.is_empty() { 0 } else { self.at(list) }
    }

    /// Returns the address of a shared value as its identity.
    fn at<T: ?Sized + 'static>(&mut self, arc: &Arc<T>) -> usize {
        let address = Arc::as_ptr(arc).cast::<()>() as usize;
        self.0.entry(address).or_insert_with(|| Box::new(arc.clone()));
        address
    }
}

/// Returns a key of everything that the TLS settings of a server depend on. It compares shared values by address, so it
/// is valid only as long as `held`.
pub(super) fn identity(server: &ServerInput<'_>, made: &Certificates<'_>, held: &mut Held) -> String {
    // `made` covers the certificates that the server gets itself.
    let ServerInput { settings, application, resolver, issued: _ } = server;
    // Destructure without `..`, so that a new setting does not compile until it is considered here.
    let Settings {
        // `made` covers these, including those of `ssl_conf_command`.
        certificate: _,
        certificate_key: _,
        // Only checked.
        dhparam: _,
        certificate_cache,
        password_file,
        protocols,
        ciphers,
        prefer_server_ciphers,
        ecdh_curve,
        session_cache,
        session_tickets,
        session_ticket_key,
        session_timeout,
        verify_client,
        verify_depth,
        client_certificate,
        trusted_certificate,
        crl,
        certificate_compression,
        reject_handshake,
        conf_command,
        stapling,
        stapling_file,
        stapling_responder,
        stapling_verify,
        ocsp,
        ocsp_responder,
        ocsp_cache,
        key_log,
        keylog_file,
    } = settings;
    let names: Vec<_> = made.dynamic.iter().flat_map(|(cert, key)| [&cert.text, &key.text]).collect();
    let sessions = match session_cache {
        SessionCache::None => 0,
        SessionCache::Off => 1,
        SessionCache::Kept(zone) => held.at(zone),
    };
    let keys: Vec<usize> = session_ticket_key.0.iter().map(|k| held.at(k)).collect();
    let mut certificates: Vec<usize> = made.keys.iter().map(|k| held.at(k)).collect();
    certificates.extend(made.issued.iter().map(|i| held.at(&i.slot)));
    let authorities =
        [held.list(&client_certificate.0), held.list(&trusted_certificate.0), held.list(&crl.0)];
    let files = (authorities, held.list(&stapling_file.0), held.list(&password_file.0));
    let lists = [held.at(&ciphers.0), held.at(&ecdh_curve.0), resolver.map_or(0, |r| held.at(r))];
    let ocsp = (ocsp, ocsp_responder, ocsp_cache.0.as_ref().map(|c| held.at(c)));
    let stapling = (stapling, stapling_responder, stapling_verify);
    let numbers = (certificate_cache, session_timeout, verify_depth, protocols);
    let words = (prefer_server_ciphers, verify_client, session_tickets);
    let more = (certificate_compression, reject_handshake, conf_command, application, key_log, keylog_file);
    format!(
        "{names:?} {sessions} {keys:?} {certificates:?} {files:?} {lists:?} {ocsp:?} {stapling:?} {numbers:?} {words:?} {more:?}"
    )
}
