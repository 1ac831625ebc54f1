//! Congestion control of QUIC connections (RFC 9002, section 7).

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{
    BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};
use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

/// Congestion control of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    Cubic,
    /// BBR, in its first version.
    Bbr,
    /// NewReno (RFC 9002, section 7).
    Reno,
}

impl Congestion {
    /// Returns that of this system's TCP, as far as it is one of these; CUBIC otherwise.
    pub fn of_system() -> Congestion {
        let name = std::fs::read("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        match name.trim_ascii() {
            b"bbr" | b"bbr1" | b"bbr2" | b"bbr3" => Congestion::Bbr,
            b"reno" => Congestion::Reno,
            _ => Congestion::Cubic,
        }
    }

    /// Returns its name, as `quic_congestion_control` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Congestion::Cubic => "cubic",
            Congestion::Bbr => "bbr",
            Congestion::Reno => "reno",
        }
    }

    pub(super) fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        Arc::new(Factory(match self {
            Congestion::Cubic => Arc::new(CubicConfig::default()),
            Congestion::Bbr => Arc::new(BbrConfig::default()),
            Congestion::Reno => Arc::new(NewRenoConfig::default()),
        }))
    }
}

/// Window of a connection that is being closed.
const NO_LIMIT: u64 = 1 << 40;

thread_local! {
    static CLOSING: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function that sends the packets of a connection. Those of a closed one pass any congestion window.
///
/// A packet with CONNECTION_CLOSE is not congestion controlled (RFC 9002, section 3). quinn-proto 0.11.19 holds it back all the same
/// where content waits behind a full window (quinn issue 2785), and so never tells the peer.
pub(super) fn let_close_pass<R>(is_closed: bool, send: impl FnOnce() -> R) -> R {
    CLOSING.set(is_closed);
    let sent = send();
    CLOSING.set(false);
    sent
}

struct Factory(Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Closable(self.0.clone().build(now, current_mtu)))
    }
}

/// Controller that lets a closed connection send.
struct Closable(Box<dyn Controller>);

impl Controller for Closable {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.0.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.0.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.0.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.0.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        if CLOSING.get() { NO_LIMIT } else { self.0.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.0.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Closable(self.0.clone_box()))
    }

    fn initial_window(&self) -> u64 {
        self.0.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.0.into_any()
    }
}
