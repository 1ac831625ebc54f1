//! Settings of an endpoint, and what quinn-proto gets of them.

use super::{Congestion, UNVALIDATED, session, version};
use aws_lc_rs::hkdf;
use forebay_sys::sync::lock;
use quinn_proto::{
    IdleTimeout, ServerConfig, TokenLog, TokenReuseError, TransportConfig, ValidationTokenConfig,
};
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

/// Streams that a client may have open at a time at first. quinn-proto has room for all that are allowed from the start: 9 KB for 128. Most
/// connections use a few, so the others are allowed once it has many open.
const FIRST_STREAMS: u32 = 20;

/// Numbers of a peer's connection identifiers that can be kept (RFC 9000, section 18.2: no fewer than two; quinn-proto has room for five).
pub const IDS: std::ops::RangeInclusive<u64> = 2..=5;

/// Limits and settings of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Streams that a client may have open at a time.
    pub streams: u32,
    /// Content of one stream that a client may send ahead, bytes.
    pub stream_window: u32,
    /// Content that is kept until the client has acknowledged it, bytes of a connection, at first.
    pub send_window: u32,
    /// The same once the congestion window is large: three times that, and at most this.
    pub max_send_window: u32,
    /// Time without packets after which a connection ends.
    pub idle: Duration,
    /// Connection identifiers of a client that are kept at a time, one of [`super::IDS`] (nginx: quic_active_connection_id_limit).
    pub ids: u64,
    /// Every client must prove its address first (nginx: quic_retry).
    pub retry: bool,
    /// Connections at a time.
    pub connections: usize,
    /// Congestion control.
    pub congestion: Congestion,
    /// Secret behind stateless resets and tokens (nginx: quic_host_key).
    pub key: HostKey,
}

/// Secret of stateless resets and tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct HostKey(Arc<Vec<u8>>);

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostKey")
    }
}

impl HostKey {
    /// Creates a key from a secret of any length.
    pub fn new(secret: &[u8]) -> HostKey {
        HostKey(Arc::new(secret.to_vec()))
    }

    /// Derives a secret for a purpose.
    pub fn derive<const N: usize>(&self, purpose: &'static [u8]) -> [u8; N] {
        let mut out = [0; N];
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"forebay quic");
        let info = [purpose];
        let key = salt.extract(&self.0);
        // Both fail for more than 255 hashes only.
        let _ = key.expand(&info, Length(N)).and_then(|okm| okm.fill(&mut out));
        out
    }
}

/// Length of a derived secret.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Returns the configuration for clients of all places.
pub(super) fn server_config(settings: &Settings) -> ServerConfig {
    let key = |purpose| hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&settings.key.derive::<32>(purpose));
    let tokens = version::TokenKeys { v1: key(b"token"), v2: key(b"token of version 2") };
    let mut server = ServerConfig::new(Arc::new(session::Crypto), Arc::new(tokens));
    server.transport_config(Arc::new(transport(settings))).max_incoming(UNVALIDATED * 4);
    if settings.retry {
        let mut given = ValidationTokenConfig::default();
        given.lifetime(TOKEN_LIFETIME).log(Arc::new(Once)).sent(1);
        server.validation_token_config(given);
    }
    server
}

/// Time for which a token of NEW_TOKEN proves an address: the client's next connection then needs no Retry (RFC 9000, section 8.1.3).
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

/// Most tokens that are remembered as used.
const USED_TOKENS: usize = 16 * 1024;

/// Log that takes each token once, by all threads (RFC 9000, section 8.1.4).
struct Once;

/// Tokens that have been used, the oldest first.
#[derive(Default)]
struct Used {
    all: HashSet<u128>,
    order: VecDeque<u128>,
}

impl TokenLog for Once {
    fn check_and_insert(&self, nonce: u128, _: SystemTime, _: Duration) -> Result<(), TokenReuseError> {
        static USED: LazyLock<Mutex<Used>> = LazyLock::new(Mutex::default);
        lock(&USED).insert(nonce).then_some(()).ok_or(TokenReuseError)
    }
}

impl Used {
    /// Returns `true` if a token has not been used before.
    fn insert(&mut self, nonce: u128) -> bool {
        if !self.all.insert(nonce) {
            return false;
        }
        self.order.push_back(nonce);
        if self.order.len() > USED_TOKENS
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
        true
    }
}

/// Returns the configuration for clients of this machine: BBR finds out the speed of a path, and loopback has none. Its pacing would
/// only cost time, as over TCP ([`crate::loopback`]).
pub(super) fn unpaced(settings: &Settings) -> Option<Arc<ServerConfig>> {
    let cubic = Settings { congestion: Congestion::Cubic, ..settings.clone() };
    (settings.congestion == Congestion::Bbr).then(|| Arc::new(server_config(&cubic)))
}

fn transport(settings: &Settings) -> TransportConfig {
    let mut config = TransportConfig::default();
    let idle = IdleTimeout::try_from(settings.idle).ok();
    config
        .max_concurrent_bidi_streams(settings.streams.min(FIRST_STREAMS).into())
        // Control and QPACK, and a few of unknown types (RFC 9114, section 6.2).
        .max_concurrent_uni_streams(8u32.into())
        .stream_receive_window(settings.stream_window.into())
        .receive_window((settings.stream_window.saturating_mul(4)).into())
        .send_window(settings.send_window.into())
        .max_send_window(settings.max_send_window.into())
        .max_idle_timeout(idle)
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(settings.congestion.factory())
        .active_connection_id_limit(usize::try_from(settings.ids).unwrap_or(usize::MAX))
        .initial_mtu(1200);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_once() {
        let mut used = Used::default();
        assert!(used.insert(1) && !used.insert(1));
        for nonce in 2..=USED_TOKENS as u128 + 1 {
            assert!(used.insert(nonce));
        }
        assert_eq!((used.all.len(), used.order.len()), (USED_TOKENS, USED_TOKENS));
    }
}
