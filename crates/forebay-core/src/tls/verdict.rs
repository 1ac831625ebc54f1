//! Verdicts on clients' certificates: verification in the handshake, and again after a reload. `demands.rs` has what servers make of
//! them.

use super::accept::TlsServers;
use super::ocsp::client::{self, Check};
use super::server::ServerTls;
use super::{Session, Verdict};
use crate::client::Client;
use crate::thread::ActiveConfig;
use forebay_net::tls::verify::{self, Purpose};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;

/// OCSP check to run, and the path of the client's certificate, which begins with that certificate.
type StatusQuestion = (Arc<Check>, Vec<CertificateDer<'static>>);

/// Returns the server that made the handshake: the one whose name the client asked for.
pub fn handshake_server(servers: &impl TlsServers, active: &ActiveConfig, client: &Client) -> Option<usize> {
    let a = client.address(active)?;
    let name = client.tls.as_ref().and_then(|t| t.name.as_deref());
    // An error of `find` would have failed the handshake already.
    let found = name.and_then(|n| a.names.find(n).ok().flatten()).map(|(s, _)| s);
    Some(found.filter(|s| servers.tls(*s).is_some()).unwrap_or(a.default_server))
}

/// Compares the verdict of a session with the configuration in effect. Unlike in nginx, that may be newer than the one of the
/// handshake.
pub fn compare(servers: &impl TlsServers, active: &ActiveConfig, client: &Client) {
    let Some(session) = client.tls.as_ref() else { return };
    if session.compared.replace(servers.serial()) != servers.serial() {
        let server = handshake_server(servers, active, client).and_then(|s| servers.tls(s));
        session.compare_basis(server.map(|tls| &**tls));
    }
}

impl Session {
    /// Verifies the client's certificate by the settings of a server. Returns the OCSP check that is still to be run, if
    /// any. Until it has succeeded the certificate counts as refused.
    pub(super) fn verify_by(&self, tls: &ServerTls) -> Option<StatusQuestion> {
        let Some(trust) = tls.trust.as_ref().filter(|_| !self.peer.is_empty()) else {
            self.verdict.set(Verdict::None);
            return None;
        };
        let (verified, question) = match &tls.ocsp {
            None => (trust.verify(&self.peer, Purpose::Client, verify::now()), None),
            Some(check) => match trust.path(&self.peer, Purpose::Client, verify::now()) {
                Ok(path) => (Ok(()), Some((check.clone(), path))),
                Err(f) => (Err(f), None),
            },
        };
        self.verdict.set(match verified {
            Err(f) => Verdict::Failed(f),
            Ok(()) if question.is_some() => Verdict::Refused(client::REQUEST_FAILED),
            Ok(()) => Verdict::Success,
        });
        question
    }

    /// Compares the verdict's basis with the configuration in effect, which a reload may have changed since the
    /// handshake. If it differs, verifies the certificate again by `server`, which would make the handshake now. Sets
    /// [`Session::outdated`] if the certificate alone is not enough for that.
    fn compare_basis(&self, server: Option<&ServerTls>) {
        let basis = server.and_then(ServerTls::basis);
        if self.basis.get() == basis {
            return;
        }
        match server {
            // The old configuration did not ask for a certificate, so the client may have one that we do not know.
            Some(_) if self.basis.get().is_none() => self.outdated.set(true),
            Some(tls) => {
                self.basis.set(basis);
                if self.verify_by(tls).is_some() {
                    self.outdated.set(true);
                }
            }
            None => self.verdict.set(Verdict::None),
        }
    }
}
