//! Interface to TLS (RFC 9001, section 4).

use crate::error::{Code, Error};
use crate::version::Version;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::quic::{Connection, DirectionalKeys, KeyChange};
use rustls::{HandshakeType, PeerMisbehaved};
use std::any::Any;
use std::sync::Arc;

/// Handshake of TLS 1.3 of one connection.
///
/// A server's may be without a configuration at first: the ClientHello chooses it.
pub trait Session {
    /// Returns the state of TLS, once there is a configuration.
    fn tls(&self) -> Option<&Connection>;

    /// Returns the state of TLS, once there is a configuration.
    fn tls_mut(&mut self) -> Option<&mut Connection>;

    /// Returns the version of packets. A server's may change with the ClientHello (RFC 9368, section 2.3).
    fn version(&self) -> Version;

    /// Reads bytes of the handshake, in order.
    ///
    /// # Errors
    /// The alert of TLS as [`Code::crypto`](crate::error::Code::crypto), or an error of the transport.
    fn read(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(tls) = self.tls_mut() else { return Ok(()) };
        tls.read_hs(bytes).map_err(|e| alert_of(tls.alert(), &e))
    }

    /// Appends bytes of the handshake that are to be sent. Returns keys after which bytes are sent with them. It is called until it
    /// appends nothing and returns nothing.
    fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange> {
        self.tls_mut()?.write_hs(out)
    }

    /// Returns the peer's transport parameters, once they are known.
    fn parameters(&self) -> Option<&[u8]> {
        self.tls()?.quic_transport_parameters()
    }

    /// Returns the keys of 0-RTT packets: at a client those of a remembered session, at a server once it takes early data.
    fn early_keys(&self) -> Option<DirectionalKeys> {
        self.tls()?.zero_rtt_keys()
    }

    /// Returns `true` until the handshake is complete.
    fn is_handshaking(&self) -> bool {
        self.tls().is_none_or(|tls| tls.is_handshaking())
    }

    /// Returns `true` if the server has taken early data. Asked at clients, after the handshake.
    fn is_early_data_accepted(&self) -> bool {
        matches!(self.tls(), Some(Connection::Client(tls)) if tls.is_early_data_accepted())
    }

    /// Returns facts of the handshake for the application, once they are known.
    fn facts(&self) -> Option<Box<dyn Any>> {
        None
    }
}

/// TLS of a server whose configuration is known from the beginning.
pub struct ServerSession {
    tls: Connection,
    version: Version,
}

impl ServerSession {
    /// Begins a handshake. `parameters`: the transport parameters of this side, encoded.
    ///
    /// # Errors
    /// INTERNAL_ERROR if the configuration does not allow TLS 1.3.
    pub fn new(
        config: Arc<rustls::ServerConfig>,
        version: Version,
        parameters: Vec<u8>,
    ) -> Result<ServerSession, Error> {
        let tls = rustls::quic::ServerConnection::new(config, version.for_tls(), parameters);
        let tls = tls.map_err(|_| Error::new(Code::INTERNAL_ERROR, "no configuration of TLS for QUIC"))?;
        Ok(ServerSession { tls: tls.into(), version })
    }
}

/// Returns the error of a message of the peer that TLS does not take.
pub fn alert_of(alert: Option<rustls::AlertDescription>, why: &rustls::Error) -> Error {
    /// Alert `internal_error` (RFC 8446, section 6).
    const INTERNAL_ERROR: u8 = 80;
    let code = match why {
        // RFC 9001, sections 4.1.3, 4.4 and 4.6.1.
        rustls::Error::PeerMisbehaved(
            PeerMisbehaved::KeyEpochWithPendingFragment | PeerMisbehaved::InvalidMaxEarlyDataSize,
        )
        | rustls::Error::InappropriateHandshakeMessage {
            got_type: HandshakeType::CertificateRequest, ..
        } => Code::PROTOCOL_VIOLATION,
        _ => Code::crypto(alert.map_or(INTERNAL_ERROR, u8::from)),
    };
    Error { reason: why.to_string().into(), ..Error::new(code, "") }
}

impl Session for ServerSession {
    fn tls(&self) -> Option<&Connection> {
        Some(&self.tls)
    }

    fn tls_mut(&mut self) -> Option<&mut Connection> {
        Some(&mut self.tls)
    }

    fn version(&self) -> Version {
        self.version
    }
}

/// TLS of a client.
pub struct ClientSession {
    tls: Connection,
    version: Version,
}

impl ClientSession {
    /// Begins a handshake with a server. `parameters`: the transport parameters of this side, encoded.
    ///
    /// # Errors
    /// INTERNAL_ERROR if the configuration does not allow TLS 1.3, or randomness is missing.
    pub fn new(
        config: Arc<rustls::ClientConfig>,
        version: Version,
        name: ServerName<'static>,
        parameters: Vec<u8>,
    ) -> Result<ClientSession, Error> {
        let tls = rustls::quic::ClientConnection::new(config, version.for_tls(), name, parameters);
        let tls = tls.map_err(|_| Error::new(Code::INTERNAL_ERROR, "no configuration of TLS for QUIC"))?;
        Ok(ClientSession { tls: tls.into(), version })
    }
}

/// Facts of a client's handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFacts {
    /// The handshake resumed a session.
    pub is_resumed: bool,
    /// Protocol chosen by ALPN.
    pub alpn: Option<Vec<u8>>,
    /// Certificates of the server, its own first.
    pub certificates: Vec<CertificateDer<'static>>,
}

impl Session for ClientSession {
    fn tls(&self) -> Option<&Connection> {
        Some(&self.tls)
    }

    fn tls_mut(&mut self) -> Option<&mut Connection> {
        Some(&mut self.tls)
    }

    fn version(&self) -> Version {
        self.version
    }

    fn facts(&self) -> Option<Box<dyn Any>> {
        let Connection::Client(tls) = &self.tls else { return None };
        if tls.is_handshaking() {
            return None;
        }
        let shown = tls.peer_certificates().unwrap_or_default();
        Some(Box::new(ClientFacts {
            is_resumed: tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed),
            alpn: tls.alpn_protocol().map(<[u8]>::to_vec),
            certificates: shown.iter().map(|c| c.clone().into_owned()).collect(),
        }))
    }
}
