//! Keys of packets, and their change (RFC 9001, sections 5 and 6).

use crate::error::{Code, Error};
use crate::time::Time;
use rustls::quic::{DirectionalKeys, PacketKey, PacketKeySet, Secrets};
use std::fmt;

/// Keys of 1-RTT packets.
pub struct DataKeys {
    /// Keys of packets that are sent.
    pub local: DirectionalKeys,
    /// Keys of packets that are received.
    pub remote: DirectionalKeys,
    /// Where the keys of the next phase come from.
    secrets: Secrets,
    /// Keys of the next phase, made once a packet of it may come.
    next: Option<PacketKeySet>,
    /// Key of received packets of the phase before, and the time until which it serves: as long as the peer has sent nothing in this
    /// phase there is none (RFC 9001, sections 6.1 and 6.5).
    previous: Option<(Box<dyn PacketKey>, Option<Time>)>,
    /// Bit of the phase of packets that are sent.
    pub phase: bool,
    /// First packet number sent in this phase.
    first_sent: Option<u64>,
    /// A packet that was sent in this phase has been acknowledged.
    is_confirmed: bool,
    /// Smallest packet number received in this phase.
    first_received: Option<u64>,
    /// Largest packet number received with the keys of the phase before, since the keys changed.
    last_of_previous: Option<u64>,
    /// Packets sent in this phase.
    sealed: u64,
    /// Packets received that could not be opened, in all phases.
    failures: u64,
}

impl fmt::Debug for DataKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataKeys").field("phase", &self.phase).finish_non_exhaustive()
    }
}

/// Key with which a received packet is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The key in use.
    Current,
    /// The key before it.
    Previous,
    /// The key after it: the peer changes keys, if the packet can be opened.
    Next,
}

impl DataKeys {
    /// Creates the keys of the first phase.
    pub fn new(keys: rustls::quic::Keys, secrets: Secrets) -> DataKeys {
        DataKeys {
            local: keys.local,
            remote: keys.remote,
            secrets,
            next: None,
            previous: None,
            phase: false,
            first_sent: None,
            is_confirmed: false,
            first_received: None,
            last_of_previous: None,
            sealed: 0,
            failures: 0,
        }
    }

    /// Returns the phase of a packet that has come with this bit and number.
    pub fn phase_of(&self, bit: bool, number: u64) -> Phase {
        if bit == self.phase {
            return Phase::Current;
        }
        // Reordered packets of the phase before have smaller numbers (RFC 9001, section 6.5).
        match self.first_received {
            Some(first) if number >= first => Phase::Next,
            None if self.previous.is_none() => Phase::Next,
            _ => Phase::Previous,
        }
    }

    /// Returns the key of a phase; `None` if it serves no longer.
    pub fn opener(&mut self, phase: Phase) -> Option<&dyn PacketKey> {
        match phase {
            Phase::Current => Some(&*self.remote.packet),
            Phase::Previous => self.previous.as_ref().map(|(key, _)| &**key),
            Phase::Next => {
                let secrets = &mut self.secrets;
                Some(&*self.next.get_or_insert_with(|| secrets.next_packet_keys()).remote)
            }
        }
    }

    /// Notes that a packet of a phase has been opened. `until`: time until which packets of the phase before are opened.
    ///
    /// # Errors
    /// KEY_UPDATE_ERROR if the peer changes keys again before anything was acknowledged in this phase, or goes back (RFC 9001, sections
    /// 6.2 and 6.4).
    pub fn opened(&mut self, phase: Phase, number: u64, until: Time) -> Result<(), Error> {
        match phase {
            Phase::Current => {
                if self.last_of_previous.is_some_and(|last| number < last) {
                    return Err(Error::new(Code::KEY_UPDATE_ERROR, "used old keys behind new ones"));
                }
                if self.first_received.is_none()
                    && let Some((_, end)) = &mut self.previous
                {
                    *end = Some(until);
                }
                if self.first_received.is_none_or(|first| number < first) {
                    self.first_received = Some(number);
                }
                Ok(())
            }
            Phase::Previous if self.first_received.is_some_and(|first| number > first) => {
                Err(Error::new(Code::KEY_UPDATE_ERROR, "went back to old keys"))
            }
            Phase::Previous => {
                self.last_of_previous = self.last_of_previous.max(Some(number));
                Ok(())
            }
            Phase::Next => {
                // Without a packet of ours in this phase the peer has no acknowledgment in it.
                if self.first_sent.is_none() {
                    return Err(Error::new(Code::KEY_UPDATE_ERROR, "changed keys twice"));
                }
                self.change(Some(until));
                self.first_received = Some(number);
                Ok(())
            }
        }
    }

    /// Begins the next phase. `until`: time until which the keys of this one serve, if the peer has begun it.
    fn change(&mut self, until: Option<Time>) {
        let next = self.next.take().unwrap_or_else(|| self.secrets.next_packet_keys());
        self.local.packet = next.local;
        let old = std::mem::replace(&mut self.remote.packet, next.remote);
        self.previous = Some((old, until));
        self.phase = !self.phase;
        (self.first_sent, self.is_confirmed, self.first_received, self.sealed) = (None, false, None, 0);
        self.last_of_previous = None;
    }

    /// Begins the next phase if this side may (RFC 9001, section 6.1): the handshake is confirmed, and the peer has acknowledged a packet of this
    /// phase. Returns `false` otherwise.
    pub fn update(&mut self) -> bool {
        let may = self.is_confirmed;
        if may {
            self.change(None);
        }
        may
    }

    /// Notes that a packet is sealed. Returns `true` if keys have to change soon (RFC 9001, section 6.6).
    pub fn sealed(&mut self, number: u64) -> bool {
        self.first_sent.get_or_insert(number);
        self.sealed += 1;
        let limit = self.local.packet.confidentiality_limit();
        self.sealed >= limit - limit / 8
    }

    /// Returns `true` if no packet may be sealed any more.
    pub fn is_used_up(&self) -> bool {
        self.sealed >= self.local.packet.confidentiality_limit()
    }

    /// Notes that a packet was acknowledged.
    pub fn acked(&mut self, number: u64) {
        self.is_confirmed |= self.first_sent.is_some_and(|first| number >= first);
    }

    /// Notes a packet that could not be opened.
    ///
    /// # Errors
    /// AEAD_LIMIT_REACHED once there are too many (RFC 9001, section 6.6).
    pub fn failed(&mut self) -> Result<(), Error> {
        self.failures += 1;
        match self.failures >= self.remote.packet.integrity_limit() {
            true => Err(Error::new(Code::AEAD_LIMIT_REACHED, "too many packets could not be opened")),
            false => Ok(()),
        }
    }

    /// Returns the time at which the keys of the phase before have no more use.
    pub fn deadline(&self) -> Option<Time> {
        self.previous.as_ref().and_then(|(_, until)| *until)
    }

    /// Gives up the keys of the phase before, once their time is over.
    pub fn expire(&mut self, now: Time) {
        self.previous.take_if(|(_, until)| until.is_some_and(|until| until <= now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::quic::{ClientConnection, Connection, KeyChange, ServerConnection, Version};
    use std::sync::Arc;
    use std::time::Duration;

    /// Returns both sides of a handshake that begins.
    fn sides() -> [Connection; 2] {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let made = rcgen::generate_simple_self_signed(vec!["h".to_owned()]).expect("a certificate");
        let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
        let server = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key)))
            .expect("a certificate");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).expect("a root");
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "h".try_into().expect("a name");
        let client = ClientConnection::new(Arc::new(client), Version::V1, name, Vec::new());
        let server = ServerConnection::new(Arc::new(server), Version::V1, Vec::new());
        [client.expect("a client").into(), server.expect("a server").into()]
    }

    /// Returns the keys of a server.
    fn keys() -> DataKeys {
        let [mut client, mut server] = sides();
        loop {
            let mut bytes = Vec::new();
            while client.write_hs(&mut bytes).is_some() {}
            server.read_hs(&bytes).expect("a client");
            bytes.clear();
            while let Some(change) = server.write_hs(&mut bytes) {
                if let KeyChange::OneRtt { keys, next } = change {
                    return DataKeys::new(keys, next);
                }
            }
            client.read_hs(&bytes).expect("a server");
        }
    }

    #[test]
    fn old_keys_serve_until_the_peer_has_followed() {
        let mut keys = keys();
        let start = Time::from_nanos(1);
        let (later, much_later) = (start + Duration::from_secs(3), start + Duration::from_secs(3600));
        assert!(!keys.update(), "nothing was acknowledged");
        keys.sealed(0);
        keys.acked(0);
        assert!(keys.update());
        // However long that takes: the peer may be silent, or have lost the first packets with the new keys.
        keys.expire(much_later);
        assert_eq!((keys.deadline(), keys.phase_of(false, 5)), (None, Phase::Previous));
        assert!(keys.opener(Phase::Previous).is_some());
        assert_eq!(keys.opened(Phase::Previous, 5, later), Ok(()));
        assert_eq!(keys.opened(Phase::Current, 6, later), Ok(()));
        assert_eq!(keys.deadline(), Some(later));
        assert_eq!(keys.opened(Phase::Current, 7, much_later), Ok(()));
        assert_eq!(keys.deadline(), Some(later), "it counts from the first one");
        keys.expire(later);
        assert!(keys.opener(Phase::Previous).is_none() && keys.deadline().is_none());
    }
}
