//! TLS sessions of clients, as variables and access decisions see them.

use forebay_net::tls::hello::Hello;
use forebay_net::tls::sessions::Context;
use forebay_net::tls::stream::Agreed;
use forebay_net::tls::verify::VerifyError;
use rustls::pki_types::CertificateDer;
use std::cell::Cell;

/// Result of verifying a client's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// The client sent no certificate.
    #[default]
    None,
    /// The certificate is valid.
    Success,
    /// The certificate is not valid.
    Failed(VerifyError),
    /// The certificate is valid, but revoked or of unknown status (OCSP).
    Refused(&'static str),
}

/// Parameters of a TLS session.
#[derive(Debug, Default)]
pub struct Session {
    /// `true` for TLS 1.3, `false` for 1.2.
    pub v13: bool,
    /// Number of the cipher suite.
    pub suite: u16,
    /// Number of the group.
    pub group: u16,
    /// Number of the server's signature algorithm; 0 if it signed nothing.
    pub sigalg: u16,
    /// Number of the client's signature algorithm; 0 if it signed nothing.
    pub client_sigalg: u16,
    /// Protocol chosen by ALPN.
    pub alpn: Option<Box<[u8]>>,
    /// Server name that the client asked for, in lower case, without a final dot.
    pub name: Option<Box<[u8]>>,
    /// Server name as the client wrote it, if different.
    pub written_name: Option<Box<[u8]>>,
    /// The session was resumed.
    pub resumed: bool,
    /// Over TCP: the first request came with the handshake (0-RTT). Over QUIC: requests do, and the handshake is not complete.
    pub early: Cell<bool>,
    /// The client's certificates.
    pub peer: Vec<CertificateDer<'static>>,
    /// Result of verifying `peer`.
    pub verdict: Cell<Verdict>,
    /// Settings by which `verdict` was reached (anchors, revocation lists, depth, mode); `None` if the server did not ask for a
    /// certificate.
    pub basis: Cell<Option<Context>>,
    /// Serial number of the configuration with which `basis` was last compared; 0 before the first time.
    pub compared: Cell<u64>,
    /// A reload changed the settings in a way that only a new handshake can satisfy.
    pub outdated: Cell<bool>,
    /// Session identifier, if a variable needs it.
    pub id: Option<Box<[u8]>>,
    /// ClientHello, if a variable needs it.
    pub hello: Option<Box<Hello>>,
}

impl Session {
    /// Notes the results of a completed handshake. `early`: content came with it (0-RTT).
    pub fn complete(&mut self, agreed: Agreed, early: bool) {
        self.v13 = agreed.v13;
        self.suite = agreed.suite;
        self.group = agreed.group;
        self.alpn = agreed.alpn;
        self.resumed = agreed.resumed;
        self.early.set(early);
        if self.hello.is_some() {
            self.identify();
        }
        self.peer = agreed.peer;
    }

    /// Sets the identifier that OpenSSL would show. A resumed TLS 1.2 session has the one that the client sent; a TLS
    /// 1.3 session that was not stored gets a random one.
    fn identify(&mut self) {
        if !self.v13 && self.resumed {
            self.id = self.hello.as_ref().map(|h| h.session_id.as_slice().into());
        } else if self.v13 && self.id.is_none() {
            let words: [u64; 4] = std::array::from_fn(|_| forebay_sys::random::random_u64());
            self.id = Some(words.iter().flat_map(|w| w.to_ne_bytes()).collect());
        }
    }
}
