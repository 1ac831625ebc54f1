//! Demands of virtual servers on their clients (nginx: ssl_verify_client). They come from the settings of a server, which need not
//! have a certificate: the handshakes of such a server are made with the default server's.

use super::settings::{Ocsp, Settings, VERIFY_DEPTH, VerifyClient};
use super::{Session, Verdict};
use forebay_net::tls::sessions;

/// Demands of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demands {
    /// `ssl_verify_client`.
    verify_client: VerifyClient,
    /// Hash of the settings that verdicts on certificates have to be reached by; see [`ServerTls::basis`](super::server::ServerTls::basis).
    /// `None`: the settings name none, and the server accepts the verdict of any handshake.
    basis: Option<sessions::Context>,
}

/// Reason for which a server refuses a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client sent no certificate.
    Missing,
    /// The certificate is not valid; the text for the error log.
    Invalid(String),
    /// A server that trusts other authorities has judged the certificate.
    JudgedByOthers,
    /// A reload changed the settings in a way that only a new handshake can satisfy.
    Outdated,
}

impl Demands {
    /// Demands that no client meets: those of a server that does not exist.
    pub const UNMEETABLE: Demands = Demands { verify_client: VerifyClient::On, basis: Some([0; 32]) };

    /// Creates the demands of a server with these settings. `basis`: hash of those that verdicts have to be reached by.
    pub(super) fn new(settings: &Settings, basis: Option<sessions::Context>) -> Demands {
        Demands { verify_client: settings.verify_client, basis }
    }

    /// Returns `true` if the server demands something of clients.
    #[inline]
    pub fn any(&self) -> bool {
        self.verify_client != VerifyClient::Off
    }

    /// Returns the reason for which the server refuses the client of a session.
    pub fn refuse(&self, session: &Session) -> Option<Refusal> {
        if !self.any() {
            return None;
        }
        let verdict = session.verdict.get();
        let may_come_without = self.verify_client == VerifyClient::Optional && verdict == Verdict::None;
        if session.outdated.get() && !may_come_without {
            return Some(Refusal::Outdated);
        }
        // Unlike nginx: a certificate that the handshake's server trusts may be one that this server does not trust.
        let by_others = verdict != Verdict::None && self.basis.is_some() && session.basis.get() != self.basis;
        self.unverified(verdict).or(by_others.then_some(Refusal::JudgedByOthers))
    }

    /// Returns the reason for which a verdict is not sufficient.
    fn unverified(&self, verdict: Verdict) -> Option<Refusal> {
        let why = match verdict {
            Verdict::Success => return None,
            Verdict::None if self.verify_client != VerifyClient::On => return None,
            Verdict::None => return Some(Refusal::Missing),
            Verdict::Failed(f) if self.verify_client == VerifyClient::OptionalNoCa && f.is_trust() => {
                return None;
            }
            Verdict::Failed(f) => format!("({}:{})", f.0, f.text()),
            Verdict::Refused(what) => what.to_owned(),
        };
        Some(Refusal::Invalid(format!("client SSL certificate verify error: {why}")))
    }
}

impl Refusal {
    /// Returns the text for the error log.
    pub fn text(self) -> String {
        let text = match self {
            Refusal::Missing => "client sent no required SSL certificate",
            Refusal::Invalid(text) => return text,
            Refusal::JudgedByOthers => "client certificate was judged by a server that trusts others",
            Refusal::Outdated => "client certificate is to be judged by other settings since a reload",
        };
        text.to_owned()
    }
}

/// Returns `true` if settings say how certificates are to be judged, apart from `ssl_verify_client`.
pub(super) fn say_how(s: &Settings) -> bool {
    !s.client_certificate.0.is_empty()
        || !s.trusted_certificate.0.is_empty()
        || !s.crl.0.is_empty()
        || s.ocsp != Ocsp::Off
        || s.verify_depth.0 != VERIFY_DEPTH
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_net::tls::verify::VerifyError;

    const MODES: [VerifyClient; 4] =
        [VerifyClient::Off, VerifyClient::On, VerifyClient::Optional, VerifyClient::OptionalNoCa];

    fn refusals(session: &Session, basis: Option<sessions::Context>) -> [Option<Refusal>; 4] {
        MODES.map(|verify_client| Demands { verify_client, basis }.refuse(session))
    }

    fn session(verdict: Verdict, basis: Option<sessions::Context>) -> Session {
        Session { verdict: verdict.into(), basis: basis.into(), ..Session::default() }
    }

    #[test]
    fn a_client_is_refused_by_what_the_server_demands() {
        let own = Some([1; 32]);
        let of = |verdict| refusals(&session(verdict, own), own);
        let invalid =
            |why: &str| Some(Refusal::Invalid(format!("client SSL certificate verify error: {why}")));
        assert_eq!(of(Verdict::Success), [const { None }; 4]);
        assert_eq!(of(Verdict::None), [None, Some(Refusal::Missing), None, None]);
        let revoked = invalid("certificate revoked");
        assert_eq!(
            of(Verdict::Refused("certificate revoked")),
            [None, revoked.clone(), revoked.clone(), revoked]
        );
        // `optional_no_ca` tolerates a missing trusted issuer.
        let expired = invalid("(10:certificate has expired)");
        let unknown = invalid("(18:self-signed certificate)");
        assert_eq!(of(Verdict::Failed(VerifyError(10))), [None, expired.clone(), expired.clone(), expired]);
        assert_eq!(of(Verdict::Failed(VerifyError(18))), [None, unknown.clone(), unknown, None]);
    }

    #[test]
    fn the_verdict_of_a_server_that_trusts_others_is_not_accepted() {
        let (own, other) = (Some([1; 32]), Some([2; 32]));
        let others = || Some(Refusal::JudgedByOthers);
        let of = |verdict, by, own| refusals(&session(verdict, by), own);
        assert_eq!(of(Verdict::Success, other, own), [None, others(), others(), others()]);
        assert_eq!(of(Verdict::Success, None, own), [None, others(), others(), others()]);
        // A server without a certificate that names no authorities accepts those of the handshake.
        assert_eq!(of(Verdict::Success, other, None), [const { None }; 4]);
        assert_eq!(of(Verdict::None, other, own), [None, Some(Refusal::Missing), None, None]);
    }

    #[test]
    fn a_reload_that_needs_a_new_handshake_refuses() {
        let own = Some([1; 32]);
        let outdated = || Some(Refusal::Outdated);
        let of = |verdict| {
            let session = Session { outdated: true.into(), ..session(verdict, own) };
            refusals(&session, own)
        };
        assert_eq!(of(Verdict::Success), [None, outdated(), outdated(), outdated()]);
        assert_eq!(of(Verdict::None), [None, outdated(), None, outdated()]);
    }

    #[test]
    fn nobody_meets_the_demands_of_no_server() {
        for verdict in [Verdict::None, Verdict::Success, Verdict::Failed(VerifyError(18))] {
            for basis in [None, Some([1; 32])] {
                assert!(Demands::UNMEETABLE.refuse(&session(verdict, basis)).is_some(), "{verdict:?}");
            }
        }
    }
}
