//! TLS of a server's connection (RFC 9001). It begins without a configuration: the ClientHello chooses it, as over TCP.

use crate::tls::hello::{Hello, Reading};
use crate::tls::sessions::{self, OverQuic};
use crate::tls::stream::Agreed;
use forebay_quic::error::{Code, Error};
use forebay_quic::id::Side;
use forebay_quic::parameters::{self, TransportParameters, VersionInformation};
use forebay_quic::tls::{Session, alert_of};
use forebay_quic::version::Version;
use forebay_sys::random::random_u64;
use rustls::quic::{Connection, ServerConnection};
use std::any::Any;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

/// Alert `internal_error` (RFC 8446, section 6).
pub(super) const INTERNAL_ERROR: u8 = 80;

/// Versions that are spoken, the preferred one first.
const VERSIONS: [Version; 2] = [Version::V2, Version::V1];

/// Chooser of configurations for handshakes.
pub trait Choose {
    /// Returns the configuration for a handshake of the connection of this owner.
    ///
    /// # Errors
    /// The alert with which the handshake is refused.
    fn choose(&self, owner: u32, hello: Hello) -> Result<Arc<rustls::ServerConfig>, u8>;

    /// Returns the address of the client of this owner's connection. Without it early data is refused.
    fn address(&self, _: u32) -> Option<IpAddr> {
        None
    }

    /// Notes that the connection of this owner was not established.
    fn refused(&self, owner: u32);
}

/// Facts of a handshake.
#[derive(Debug)]
pub struct HandshakeFacts {
    /// Parameters of the connection.
    pub agreed: Agreed,
}

/// Session of a connection.
pub(super) struct ServerSession {
    chooser: Rc<dyn Choose>,
    owner: u32,
    /// Version that the client has begun with.
    begun: Version,
    /// Version in use.
    version: Version,
    stage: Stage,
    /// Address of the client with its ClientHello, and whether it offers early data.
    early: (Option<IpAddr>, bool),
}

/// Stage of a session.
enum Stage {
    /// The ClientHello is not complete. Our transport parameters wait for it.
    Greeting(Reading, Box<TransportParameters>),
    /// rustls has it.
    Chosen(Box<Connection>),
}

impl ServerSession {
    pub(super) fn new(
        chooser: Rc<dyn Choose>,
        owner: u32,
        version: Version,
        parameters: TransportParameters,
    ) -> ServerSession {
        let stage = Stage::Greeting(Reading::default(), Box::new(parameters));
        ServerSession { chooser, owner, begun: version, version, stage, early: (None, false) }
    }

    /// Begins the handshake with a configuration once the ClientHello is complete. Returns its bytes.
    fn greet(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let Stage::Greeting(reading, parameters) = &mut self.stage else { return Ok(Some(bytes.to_vec())) };
        let hello = match reading.more_of_stream(bytes) {
            Ok(Some(hello)) => hello,
            Ok(None) => return Ok(None),
            Err(e) => return Err(refusal(e.alert().unwrap_or(INTERNAL_ERROR), "no ClientHello")),
        };
        let received = reading.stream().to_vec();
        // The version is settled before rustls gets the ClientHello, since it depends on the client's
        // parameters and the keys depend on it (RFC 9368).
        self.version = parameters::negotiate(&hello.transport_parameters, self.begun, hello.early_data)?;
        parameters.version_information = Some(VersionInformation::new(self.version, &VERSIONS));
        let mut encoded = Vec::new();
        parameters.push(&mut encoded, Side::Server, random_u64());
        // The chooser takes the ClientHello, so what later steps need of it is noted here.
        self.early = (self.chooser.address(self.owner), hello.early_data);
        let config = self.chooser.choose(self.owner, hello).map_err(|alert| refusal(alert, ""))?;
        let connection = ServerConnection::new(config, self.version.for_tls(), encoded)
            .map_err(|e| Error { reason: e.to_string().into(), ..refusal(INTERNAL_ERROR, "") })?;
        self.stage = Stage::Chosen(Box::new(connection.into()));
        Ok(Some(received))
    }
}

fn refusal(alert: u8, reason: &'static str) -> Error {
    Error::new(Code::crypto(alert), reason)
}

impl Session for ServerSession {
    fn tls(&self) -> Option<&Connection> {
        match &self.stage {
            Stage::Greeting(..) => None,
            Stage::Chosen(tls) => Some(tls),
        }
    }

    fn tls_mut(&mut self) -> Option<&mut Connection> {
        match &mut self.stage {
            Stage::Greeting(..) => None,
            Stage::Chosen(tls) => Some(tls),
        }
    }

    fn version(&self) -> Version {
        self.version
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(bytes) = self.greet(bytes)? else { return Ok(()) };
        let (address, has_early_data) = self.early;
        let [begun_by_v2, is_v2] = [self.begun, self.version].map(|v| v == Version::V2);
        let Stage::Chosen(connection) = &mut self.stage else { return Ok(()) };
        let handshake = OverQuic { begun_by_v2, is_v2, address, has_early_data };
        sessions::over_quic(handshake, || connection.read_hs(&bytes))
            .map_err(|e| alert_of(connection.alert(), &e))
    }

    fn facts(&self) -> Option<Box<dyn Any>> {
        let Connection::Server(tls) = self.tls()? else { return None };
        Some(Box::new(HandshakeFacts { agreed: Agreed::of(tls) }))
    }
}
