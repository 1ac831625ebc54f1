//! The state of clients' certificates (nginx: ssl_ocsp), asked once a certificate has been found good, before its
//! first request is answered. Questions go out from the tokio thread; those who ask the same wait for one answer.

use super::responder::{Names, Responder};
use forebay_net::tls::ocsp_message::{Signers, State, Subject};
use forebay_net::tls::sessions::{Sessions, context};
use forebay_net::tls::{ocsp_message, verify};
use forebay_sys::sync::lock;
use rustls::pki_types::CertificateDer;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{OnceCell, Semaphore};

/// The verdict when nobody has said what is asked.
pub const REQUEST_FAILED: &str = "certificate status request failed";

/// Most questions at a time.
static AT_ONCE: Semaphore = Semaphore::const_new(512);

/// What is asked, and of whom.
#[derive(Debug)]
pub struct Check {
    /// About the issuers too (`ssl_ocsp on`), else about the client's own certificate only (`leaf`).
    pub all: bool,
    /// `ssl_ocsp_responder`; otherwise the certificate names it.
    pub responder: Option<Responder>,
    /// `ssl_ocsp_cache`.
    pub cache: Option<Arc<Sessions>>,
    /// How the name of a responder is looked up.
    pub names: Names,
}

/// Why a certificate is not good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What `$ssl_client_verify` and the log say.
    pub verdict: &'static str,
    /// A line of its own for the log.
    pub log: Option<String>,
}

/// When a chain has not been asked about in time.
pub fn timed_out() -> Refusal {
    let text = "OCSP responder timed out (110: Connection timed out) while requesting certificate status";
    Refusal { verdict: REQUEST_FAILED, log: Some(text.to_owned()) }
}

type Key = [u8; 32];
type Outcome = Result<State, String>;
type Flights = HashMap<Key, Arc<OnceCell<Outcome>>>;

/// Questions under way.
fn flights() -> std::sync::MutexGuard<'static, Flights> {
    static FLIGHTS: OnceLock<Mutex<Flights>> = OnceLock::new();
    lock(FLIGHTS.get_or_init(Mutex::default))
}

/// Takes a question off the list, also when nobody waits for it any more.
struct Landing(Key, Arc<OnceCell<Outcome>>);

impl Drop for Landing {
    fn drop(&mut self) {
        let mut all = flights();
        if all.get(&self.0).is_some_and(|c| Arc::ptr_eq(c, &self.1)) {
            all.remove(&self.0);
        }
    }
}

impl Check {
    /// Asks about a chain that has been found good, the client's own certificate first, its root last. Only inside a
    /// tokio context.
    ///
    /// # Errors
    /// [`Refusal`]: a certificate is not in force, or nobody says that it is.
    pub async fn run(&self, path: &[CertificateDer<'static>]) -> Result<(), Refusal> {
        let most = if self.all { usize::MAX } else { 1 };
        for pair in path.windows(2).take(most) {
            let [cert, issuer] = pair else { break };
            let subject = Subject { cert: cert.clone(), issuer: issuer.clone() };
            match self.state_of(subject).await {
                Ok(State::Good) => {}
                Ok(State::Revoked) => return Err(Refusal { verdict: "certificate revoked", log: None }),
                Ok(State::Unknown) => {
                    return Err(Refusal { verdict: "certificate status unknown", log: None });
                }
                Err(text) => {
                    return Err(Refusal { verdict: REQUEST_FAILED, log: Some(text) });
                }
            }
        }
        Ok(())
    }

    async fn state_of(&self, subject: Subject) -> Outcome {
        let id = context([subject.cert.as_ref(), subject.issuer.as_ref()].into_iter());
        if let Some(state) = self.cache.as_ref().and_then(|c| recall(c, &id)) {
            return Ok(state);
        }
        let responder = match &self.responder {
            Some(r) => r.clone(),
            None => {
                let url = verify::responder(&subject.cert).ok_or("no OCSP responder URL in certificate")?;
                Responder::parse(&url).map_err(|e| format!("{e} in certificate"))?
            }
        };
        let key = context([id.as_slice(), &responder.key()].into_iter());
        let cell = flights().entry(key).or_default().clone();
        let landing = Landing(key, cell.clone());
        let (names, cache) = (self.names.clone(), self.cache.clone());
        let ask = || async move {
            let asked = tokio::spawn(async move {
                let Ok(_permit) = AT_ONCE.try_acquire() else {
                    return Err("too many OCSP requests are under way".to_owned());
                };
                let question = ocsp_message::request(&subject).ok_or("the certificate cannot be read")?;
                let check = |body: &[u8]| ocsp_message::check(body, &subject, Signers(&[]), verify::now());
                match responder.ask(&question, &names, check).await {
                    Ok(answered) => {
                        let answer: ocsp_message::Answer = answered.answer;
                        if let (Some(cache), Some(until)) = (&cache, answer.until) {
                            remember(cache, id, answer.state, until - verify::now());
                        }
                        Ok(answer.state)
                    }
                    Err(e) => Err(responder.describe(&e)),
                }
            });
            asked.await.unwrap_or_else(|_| Err("OCSP request ended".to_owned()))
        };
        let outcome = cell.get_or_init(ask).await.clone();
        drop(landing);
        outcome
    }
}

fn remember(cache: &Sessions, id: Key, state: State, life: i64) {
    if let Ok(life @ 1..) = u64::try_from(life) {
        cache.put(id.to_vec(), vec![state as u8], Duration::from_secs(life.min(7 * 24 * 3600)));
    }
}

fn recall(cache: &Sessions, id: &Key) -> Option<State> {
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
