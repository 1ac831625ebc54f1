//! Settings of an endpoint.

use super::Congestion;
use aws_lc_rs::hkdf;
use forebay_quic::connection::Config;
use forebay_quic::stream::Limits;
use forebay_quic::token::TokenKey;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Streams that a client may have open at a time at first. Most connections use a few, so the others are allowed once it has many open.
const FIRST_STREAMS: u32 = 20;
/// Largest datagram that is tried: with the headers of IPv6 and UDP it fills a packet of 1500 bytes.
pub(super) const MOST_MTU: u16 = 1452;
/// Round-trip time that is assumed before the first measurement (RFC 9002, section 6.2.2).
pub(super) const INITIAL_RTT: Duration = Duration::from_millis(333);

/// Numbers of a peer's connection identifiers that can be kept (RFC 9000, section 18.2: no fewer than two).
pub const IDS: std::ops::RangeInclusive<u64> = 2..=5;

/// Limits and settings of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Streams that a client may have open at a time.
    pub streams: u32,
    /// Content of one stream that a client may send ahead, bytes.
    pub stream_window: u32,
    /// Largest content of a connection that is kept at first until the client has acknowledged it, bytes.
    pub send_window: u32,
    /// Largest content that is kept once the congestion window is large: three times that window, and at most
    /// this number of bytes.
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
        // Both calls fail only for an output longer than 255 hashes.
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

/// Returns the secret of address tokens.
pub(super) fn tokens(settings: &Settings) -> TokenKey {
    TokenKey::new(&settings.key.derive::<32>(b"token"), RETRY_LIFETIME, TOKEN_LIFETIME)
}

/// Seconds for which a token of Retry proves an address.
const RETRY_LIFETIME: u64 = 15;

/// Seconds for which a token of NEW_TOKEN proves an address: the client's next connection then needs no Retry (RFC 9000, section 8.1.3).
const TOKEN_LIFETIME: u64 = 3600;

/// Returns the configuration for clients of this machine, if it differs. BBR finds out the speed of a path, and the loopback device has
/// none. Pacing would only cost time there, as over TCP ([`crate::loopback`]).
pub(super) fn unpaced(settings: &Settings, whole: bool) -> Option<Rc<Config>> {
    let cubic = Settings { congestion: Congestion::Cubic, ..settings.clone() };
    (settings.congestion == Congestion::Bbr).then(|| Rc::new(config(&cubic, whole)))
}

/// Returns the configuration of connections. `whole`: the kernel keeps datagrams whole.
pub(super) fn config(settings: &Settings, whole: bool) -> Config {
    Config {
        limits: Limits {
            stream_window: settings.stream_window.into(),
            window: u64::from(settings.stream_window) * 4,
            bi: settings.streams.min(FIRST_STREAMS).into(),
            // Control and QPACK, and a few of unknown types (RFC 9114, section 6.2).
            uni: 8,
            send_window: settings.send_window.into(),
        },
        max_send_window: settings.max_send_window.into(),
        idle: settings.idle,
        keep_alive: None,
        ids: settings.ids,
        datagrams: 0,
        congestion: settings.congestion.algorithm(),
        is_paced: true,
        most_mtu: MOST_MTU,
        searches_mtu: whole,
        initial_rtt: INITIAL_RTT,
        gives_token: settings.retry,
    }
}
