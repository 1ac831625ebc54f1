//! Congestion control of QUIC connections (RFC 9002, section 7).

use forebay_quic::congestion::Algorithm;

/// Congestion control of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    Cubic,
    /// BBR, in its third version (draft-ietf-ccwg-bbr).
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

    pub(super) fn algorithm(self) -> Algorithm {
        match self {
            Congestion::Cubic => Algorithm::Cubic,
            Congestion::Bbr => Algorithm::Bbr,
            Congestion::Reno => Algorithm::NewReno,
        }
    }
}
