//! Configuration of a server for rustls, and hashes of the settings that sessions and verdicts depend on.

use super::cache_settings::SessionCache;
use super::loader::{Certificates, ServerInput};
use super::presented::Presented;
use super::settings::{Preference, Settings};
use forebay_net::tls::ciphers::is_post_quantum;
use forebay_net::tls::sessions::{self, Sessions, Stored, TicketKey, Tickets};
use forebay_net::tls::verify::Trust;
use rustls::crypto::CryptoProvider;
use rustls::server::NoServerSessionStorage;
use rustls::{ServerConfig, SupportedCipherSuite};
use std::sync::Arc;
use std::time::Duration;

/// Hashes the settings that verdicts on clients' certificates depend on: authorities, revocation lists, depth and OCSP
/// responder.
pub(super) fn basis(s: &Settings, trust: &Trust) -> sessions::Context {
    let asked = [s.ocsp as u8];
    let url = s.ocsp_responder.as_ref().map(|u| u.0.as_slice()).unwrap_or_default();
    sessions::context([trust.fingerprint().as_slice(), &asked, url].into_iter())
}

/// Hashes the settings that a resumed session must share with the current server: certificates and requirements on
/// clients.
pub(super) fn context(
    server: &ServerInput<'_>,
    made: &Certificates<'_>,
    basis: Option<sessions::Context>,
) -> sessions::Context {
    let leaf = made.keys.iter().filter_map(|k| k.cert.first()).map(AsRef::as_ref);
    let names = made.dynamic.iter().map(|(c, _)| c.text.as_slice());
    // Not the certificate, which may be renewed at any time: sessions outlive that.
    let names = names.chain(made.issued.iter().map(|i| i.name.as_bytes()));
    let demands = [server.settings.verify_client as u8, u8::from(server.application.early_data)];
    let basis = basis.unwrap_or_default();
    sessions::context(leaf.chain(names).chain([demands.as_slice(), &basis]))
}

/// Returns a provider with these suites and groups.
pub(super) fn provider(
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn rustls::crypto::SupportedKxGroup>,
) -> Arc<CryptoProvider> {
    let base = rustls::crypto::aws_lc_rs::default_provider();
    Arc::new(CryptoProvider { cipher_suites: suites, kx_groups: groups, ..base })
}

/// Returns a provider without its post-quantum groups. `None`: it has none, or no others.
pub(super) fn classical(provider: &CryptoProvider) -> Option<Arc<CryptoProvider>> {
    let mut groups = provider.kx_groups.clone();
    groups.retain(|group| !is_post_quantum(group.name().into()));
    let is_part = !groups.is_empty() && groups.len() < provider.kx_groups.len();
    is_part.then(|| Arc::new(CryptoProvider { kx_groups: groups, ..provider.clone() }))
}

/// Returns the enabled versions.
pub(super) fn versions(v12: bool, v13: bool) -> Vec<&'static rustls::SupportedProtocolVersion> {
    let mut versions = Vec::new();
    if v13 {
        versions.push(&rustls::version::TLS13);
    }
    if v12 {
        versions.push(&rustls::version::TLS12);
    }
    versions
}

/// Compressors of certificates.
static COMPRESSORS: [&dyn rustls::compress::CertCompressor; 2] =
    [rustls::compress::BROTLI_COMPRESSOR, rustls::compress::ZLIB_COMPRESSOR];

/// Returns `true` if no directive says whose order of suites counts.
pub(super) fn by_cost(s: &Settings) -> bool {
    s.prefer_server_ciphers == Preference::Unsaid && s.conf_command.server_preference.is_none()
}

pub(super) fn config(
    server: &ServerInput<'_>,
    provider: Arc<CryptoProvider>,
    presented: Arc<Presented>,
    trust: Option<&Trust>,
    context: sessions::Context,
) -> Result<Arc<ServerConfig>, String> {
    let ServerInput { settings: s, application, .. } = server;
    let c = &s.conf_command;
    let (v12, v13) = (c.v12.unwrap_or(s.protocols.v12), c.v13.unwrap_or(s.protocols.v13));
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(v12, v13))
        .map_err(|e| format!("protocols and ciphers do not fit together: {e}"))?;
    let builder = match trust {
        Some(trust) => builder.with_client_cert_verifier(trust.asker()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(presented);
    config.ignore_client_order = c.server_preference.unwrap_or(s.prefer_server_ciphers != Preference::Off);
    config.alpn_protocols = application.protocols.clone();
    config.enable_secret_extraction = true;
    keep_sessions(&mut config, server, context);
    if application.early_data {
        config.max_early_data_size = 16 * 1024;
    }
    config.cert_compressors = if s.certificate_compression { COMPRESSORS.to_vec() } else { Vec::new() };
    config.cert_decompressors = Vec::new();
    if let Some(log) = s.key_log.for_connections().or_else(|| s.keylog_file.for_connections()) {
        config.key_log = log;
    }
    Ok(Arc::new(config))
}

/// Sets the storage of sessions: here, in tickets of the clients, or nowhere.
fn keep_sessions(config: &mut ServerConfig, server: &ServerInput<'_>, context: sessions::Context) {
    let s = server.settings;
    let timeout = Duration::from_secs(s.session_timeout.0);
    let zone = session_zone(server);
    // Tickets would disable early data.
    let tickets = s.conf_command.tickets.unwrap_or(s.session_tickets) && !server.application.early_data;
    let number = s.conf_command.num_tickets.map_or(2, usize::from);
    config.send_tls13_tickets = if tickets || zone.is_some() { number } else { 0 };
    config.session_storage = match zone {
        Some(sessions) => Arc::new(Stored { sessions, context, timeout }),
        None => Arc::new(NoServerSessionStorage {}),
    };
    if tickets {
        let keys = s.session_ticket_key.0.iter().filter_map(|k| TicketKey::new(k)).collect();
        config.ticketer = Arc::new(Tickets { keys, context, timeout });
    }
}

/// Returns the zone of the sessions of a server, if it keeps them.
fn session_zone(server: &ServerInput<'_>) -> Option<Arc<Sessions>> {
    match &server.settings.session_cache {
        SessionCache::Kept(zone) => Some(zone.clone()),
        // rustls accepts early data only for sessions that it can remove from a store, which prevents replay.
        _ if server.application.early_data => Some(sessions::zone(b"early data", 1 << 20)),
        _ => None,
    }
}
