//! OCSP status of clients' certificates (nginx: ssl_ocsp). It is requested after a certificate has been verified,
//! before the first request is answered. The tokio thread sends the requests; connections that need the same status
//! share one.

use super::responder::{NameLookup, Responder};
use forebay_net::tls::ocsp_message::{Answer, Signers, State, Subject};
use forebay_net::tls::sessions::{Sessions, context};
use forebay_net::tls::{ocsp_message, verify};
use forebay_sys::sync::lock;
use rustls::pki_types::CertificateDer;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{OnceCell, Semaphore};

/// Verdict if the status is not available.
pub(crate) const REQUEST_FAILED: &str = "certificate status request failed";

/// Limit of concurrent requests.
static AT_ONCE: Semaphore = Semaphore::const_new(512);

/// OCSP settings of a server.
#[derive(Debug)]
pub(crate) struct Check {
    /// `true` to check the issuers, too (`ssl_ocsp on`), `false` for the client's own certificate only (`leaf`).
    pub(crate) all: bool,
    /// `ssl_ocsp_responder`; `None` uses the responder named in the certificate.
    pub(crate) responder: Option<Responder>,
    /// `ssl_ocsp_cache`.
    pub(crate) cache: Option<Arc<Sessions>>,
    /// Resolver for the responder's name.
    pub(crate) names: NameLookup,
}

/// Reason for refusing a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Text for `$ssl_client_verify` and the log.
    pub(crate) verdict: &'static str,
    /// Additional line for the log.
    pub(crate) log: Option<String>,
}

/// Returns the refusal for a chain whose status did not arrive in time.
pub(crate) fn timed_out() -> Refusal {
    let text = "OCSP responder timed out (110: Connection timed out) while requesting certificate status";
    Refusal { verdict: REQUEST_FAILED, log: Some(text.to_owned()) }
}

type StatusKey = [u8; 32];
type StatusResult = Result<State, String>;
type Flights = HashMap<StatusKey, Arc<OnceCell<StatusResult>>>;

/// Locks the map of requests under way.
fn flights() -> std::sync::MutexGuard<'static, Flights> {
    static FLIGHTS: OnceLock<Mutex<Flights>> = OnceLock::new();
    lock(FLIGHTS.get_or_init(Mutex::default))
}

/// Guard that removes a request from [`flights`], even if all connections that need it have ended.
struct Landing(StatusKey, Arc<OnceCell<StatusResult>>);

impl Drop for Landing {
    fn drop(&mut self) {
        let mut all = flights();
        if all.get(&self.0).is_some_and(|c| Arc::ptr_eq(c, &self.1)) {
            all.remove(&self.0);
        }
    }
}

impl Check {
    /// Requests the status of a verified chain, the client's own certificate first, its root last. Needs a tokio
    /// context.
    ///
    /// # Errors [`Refusal`] if a certificate is revoked or its status is unknown.
    pub(crate) async fn run(&self, path: &[CertificateDer<'static>]) -> Result<(), Refusal> {
        let most = if self.all { usize::MAX } else { 1 };
        for pair in path.windows(2).take(most) {
            let [cert, issuer] = pair else { break };
            let subject = Subject { cert: cert.clone(), issuer: issuer.clone() };
            let (verdict, log) = match self.state_of(subject).await {
                Ok(State::Good) => continue,
                Ok(State::Revoked) => ("certificate revoked", None),
                Ok(State::Unknown) => ("certificate status unknown", None),
                Err(text) => (REQUEST_FAILED, Some(text)),
            };
            return Err(Refusal { verdict, log });
        }
        Ok(())
    }

    async fn state_of(&self, subject: Subject) -> StatusResult {
        let id = context([subject.cert.as_ref(), subject.issuer.as_ref()].into_iter());
        if let Some(state) = self.cache.as_ref().and_then(|c| recall(c, &id)) {
            return Ok(state);
        }
        let responder = self.responder_of(&subject)?;
        let key = context([id.as_slice(), &responder.key()].into_iter());
        let cell = flights().entry(key).or_default().clone();
        let landing = Landing(key, cell.clone());
        let request =
            StatusRequest { id, subject, responder, names: self.names.clone(), cache: self.cache.clone() };
        let fetch = || async move {
            // A task of its own goes on if this connection ends: others may wait for it.
            let asked = tokio::spawn(request.fetch());
            asked.await.unwrap_or_else(|_| Err("OCSP request ended".to_owned()))
        };
        let outcome = cell.get_or_init(fetch).await.clone();
        drop(landing);
        outcome
    }

    /// Returns the configured responder, or the one that the certificate names.
    fn responder_of(&self, subject: &Subject) -> Result<Responder, String> {
        if let Some(responder) = &self.responder {
            return Ok(responder.clone());
        }
        let url = verify::responder(&subject.cert).ok_or("no OCSP responder URL in certificate")?;
        Responder::parse(&url).map_err(|e| format!("{e} in certificate"))
    }
}

/// Request for the status of a certificate.
struct StatusRequest {
    /// Key of the status in the cache.
    id: StatusKey,
    subject: Subject,
    responder: Responder,
    names: NameLookup,
    cache: Option<Arc<Sessions>>,
}

impl StatusRequest {
    async fn fetch(self) -> StatusResult {
        let Ok(_permit) = AT_ONCE.try_acquire() else {
            return Err("too many OCSP requests are under way".to_owned());
        };
        let question = ocsp_message::request(&self.subject).ok_or("the certificate cannot be read")?;
        let check = |body: &[u8]| ocsp_message::check(body, &self.subject, Signers(&[]), verify::now());
        let asked = self.responder.ask(&question, &self.names, check).await;
        let answer: Answer = asked.map_err(|e| self.responder.describe(&e))?.answer;
        if let (Some(cache), Some(until)) = (&self.cache, answer.until) {
            remember(cache, self.id, answer.state, until - verify::now());
        }
        Ok(answer.state)
    }
}

fn remember(cache: &Sessions, id: StatusKey, state: State, life: i64) {
    if let Ok(life @ 1..) = u64::try_from(life) {
        cache.put(id.to_vec(), vec![state as u8], Duration::from_secs(life.min(7 * 24 * 3600)));
    }
}

fn recall(cache: &Sessions, id: &StatusKey) -> Option<State> {
    let states = [State::Good, State::Revoked, State::Unknown];
    let kept = cache.get(id, false)?;
    states.into_iter().find(|s| kept == [*s as u8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_kept_as_long_as_they_hold() {
        let cache = Sessions::new(1 << 20);
        remember(&cache, [1; 32], State::Revoked, 60);
        remember(&cache, [2; 32], State::Good, 0);
        remember(&cache, [3; 32], State::Good, -5);
        assert_eq!(recall(&cache, &[1; 32]), Some(State::Revoked));
        assert_eq!(recall(&cache, &[2; 32]), None);
        assert_eq!(recall(&cache, &[3; 32]), None);
    }
}
