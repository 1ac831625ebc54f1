//! OCSP responses for the server's own certificates, stapled to the handshake (nginx: ssl_stapling). For each
//! certificate, a task on the process's tokio thread fetches the response at the start and again after half of its
//! lifetime. All threads share the response, and the next configuration takes it over. A failing responder is logged
//! and never fails a handshake.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::responder::{Answered, NameLookup, Responder, ResponderFailure};
use crate::tasks::Log;
use crate::tls::presented::Presented;
use forebay_conf::error::Level;
use forebay_net::tls::ocsp_message::{self, Answer, Signers, State, Subject};
use forebay_net::tls::verify::{self, Purpose, Trust};
use forebay_sys::sync::lock;
use rustls::pki_types::CertificateDer;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// First pause after a failure; each one is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Number of failures whose pause follows a request that could not be made: some seconds.
const OWN_PAUSE: u32 = 4;
/// Longest pause after failures.
const LAST_PAUSE: Duration = Duration::from_secs(300);
/// Shortest time to the next question after an answer.
const AT_LEAST: i64 = 5;
/// Seconds until the next request if a response has no `nextUpdate`.
const UNSAID: i64 = 3600;
/// Longest use of a response without `nextUpdate`, seconds.
const LAST_UNSAID: i64 = 24 * 3600;
/// Longest sleep, seconds, so that changes of the system clock are noticed.
const NAP: i64 = 3600;
/// Time after which a repeated failure is logged again.
const TELL_AGAIN: Duration = Duration::from_secs(3600);
/// Time for which a response is used after its end, seconds, since clocks differ.
const SKEW: i64 = 300;

/// Limit of concurrent requests.
static AT_ONCE: Semaphore = Semaphore::const_new(64);

/// A certificate to fetch responses for, and the places that use them.
#[derive(Debug)]
pub struct Stapling {
    /// The certificate.
    pub(crate) subject: Subject,
    /// Chain of the certificate, without the certificate itself.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// Certificates that may sign responses in addition to the issuer.
    pub(crate) signers: Vec<CertificateDer<'static>>,
    /// `ssl_stapling_verify`: authorities by which the issuer must be verified.
    pub(crate) trust: Option<Arc<Trust>>,
    /// Responder.
    pub(crate) responder: Responder,
    /// Resolver for the responder's name.
    pub(crate) names: NameLookup,
    /// Name of the certificate for the log.
    pub(crate) file: String,
    /// Places that present the certificate: a server's certificates and the index there.
    pub(crate) slots: Vec<(Arc<Presented>, usize)>,
}

type StaplingKey = [u8; 32];
type KnownResponses = HashMap<StaplingKey, (Arc<[u8]>, Answer)>;

/// Locks the responses of this process, which the next configuration takes over.
fn known() -> std::sync::MutexGuard<'static, KnownResponses> {
    static KNOWN: OnceLock<Mutex<KnownResponses>> = OnceLock::new();
    lock(KNOWN.get_or_init(Mutex::default))
}

/// Returns `true` if a response may be used at a time.
fn holds(a: &Answer, now: i64) -> bool {
    now < a.until.unwrap_or(a.from + LAST_UNSAID) + SKEW
}

/// Returns the seconds until the next request: half of the response's lifetime.
fn refresh_in(a: &Answer, now: i64) -> i64 {
    let Some(until) = a.until else { return UNSAID };
    let half = a.from + (until - a.from) / 2 - now;
    // Responders may return old responses, which are past half of their lifetime: wait for half of the rest.
    let wait = if half > 0 { half } else { (until - now) / 2 };
    wait.max(AT_LEAST)
}

/// Returns the pause after a number of failures in a row.
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LAST_PAUSE)
}

impl Stapling {
    /// Returns a key for the request and the rules by which its response is verified.
    pub(crate) fn key(&self) -> StaplingKey {
        let responder = self.responder.key();
        let signers = self.signers.iter().map(AsRef::as_ref);
        let trust = self.trust.as_ref().map(|t| t.fingerprint());
        let parts: [&[u8]; 3] = [&self.subject.cert, &self.subject.issuer, &responder];
        let trust = trust.as_ref().map_or(&[][..], |t| t.as_slice());
        forebay_net::tls::sessions::context(parts.into_iter().chain([trust]).chain(signers))
    }

    /// Uses the response that an earlier configuration fetched, if it is still valid.
    fn adopt(&self) -> Option<Answer> {
        let (bytes, answer) = known().get(&self.key()).filter(|(_, a)| holds(a, verify::now())).cloned()?;
        self.show(Some(&bytes));
        Some(answer)
    }

    fn show(&self, response: Option<&[u8]>) {
        for (presented, at) in &self.slots {
            presented.staple(*at, response.map(<[u8]>::to_vec));
        }
    }

    fn check(&self, body: &[u8]) -> Result<Answer, String> {
        let now = verify::now();
        let answer = ocsp_message::check(body, &self.subject, Signers(&self.signers), now)?;
        if let Some(trust) = &self.trust {
            let chain = [std::slice::from_ref(&self.subject.issuer), &self.chain].concat();
            trust.verify(&chain, Purpose::Issuer, now).map_err(|f| {
                format!(
                    "OCSP_basic_verify() failed (SSL: error:13800065:OCSP routines::certificate verify \
                     error:Verify error: {})",
                    f.text()
                )
            })?;
        }
        Ok(answer)
    }

    async fn ask(&self) -> Result<Answered<Answer>, ResponderFailure> {
        let _permit = AT_ONCE.acquire().await;
        let question = ocsp_message::request(&self.subject).unwrap_or_default();
        self.responder.ask(&question, &self.names, |body| self.check(body)).await
    }
}

/// Starts stapling for a certificate. Uses a known response at once.
pub fn start(stapling: &Arc<Stapling>, log: &Log) -> impl Future<Output = ()> + Send + 'static {
    let held = stapling.adopt();
    let (stapling, log) = (stapling.clone(), log.clone());
    async move { Renewal::new(&stapling, held, log).attend().await }
}

/// Returns a sleep of some seconds, at most [`NAP`].
fn in_seconds(n: i64) -> Duration {
    Duration::from_secs(n.clamp(0, NAP) as u64)
}

/// Renewal of one certificate's response.
struct Renewal<'s> {
    stapling: &'s Stapling,
    key: StaplingKey,
    log: Log,
    /// The response that is stapled.
    held: Option<Answer>,
    /// Time of the next request.
    due: Instant,
    /// Failures in a row.
    failures: u32,
    /// The last failure that was logged, and when.
    logged: Option<(String, Instant)>,
}

impl Renewal<'_> {
    fn new(stapling: &Stapling, held: Option<Answer>, log: Log) -> Renewal<'_> {
        let wait = held.map_or(Duration::ZERO, |a| in_seconds(refresh_in(&a, verify::now())));
        let due = Instant::now() + wait;
        Renewal { key: stapling.key(), stapling, log, held, due, failures: 0, logged: None }
    }

    /// Fetches responses for ever.
    async fn attend(mut self) {
        loop {
            let nap = self.nap();
            if !nap.is_zero() {
                tokio::time::sleep(nap).await;
            }
            if self.held.is_some_and(|a| !holds(&a, verify::now())) {
                self.drop_response();
            }
            if self.is_due() {
                self.fetch().await;
            }
        }
    }

    /// Returns the time until there is something to do.
    fn nap(&self) -> Duration {
        let nap = self.due.saturating_duration_since(Instant::now());
        match self.held.and_then(|a| a.until) {
            Some(until) => nap.min(in_seconds(until + SKEW - verify::now())),
            None => nap,
        }
    }

    /// Returns `true` if a request is to be sent now. Responses may be valid for days. Sleeps at most an hour at a time, so
    /// that changes of the system clock are noticed.
    fn is_due(&mut self) -> bool {
        if Instant::now() < self.due {
            return false;
        }
        let is_far = |a: Answer| a.until.is_some() && refresh_in(&a, verify::now()) > NAP;
        if self.failures == 0 && self.held.is_some_and(is_far) {
            self.due = Instant::now() + in_seconds(NAP);
            return false;
        }
        true
    }

    async fn fetch(&mut self) {
        let failure = match self.stapling.ask().await {
            Ok(Answered { body, answer, .. }) if answer.state == State::Good => {
                return self.use_response(&body, answer);
            }
            Ok(other) => {
                // The earlier response says that the certificate is good, so it must not be stapled any more.
                self.drop_response();
                let state = other.answer.state.text();
                ResponderFailure::of(&other, format!("certificate status \"{state}\" in the OCSP response"))
            }
            Err(e) => e,
        };
        self.failed(&failure);
    }

    fn use_response(&mut self, body: &[u8], answer: Answer) {
        self.failures = 0;
        self.logged = None;
        self.stapling.show(Some(body));
        let now = verify::now();
        let mut known = known();
        known.retain(|_, (_, a)| holds(a, now));
        known.insert(self.key, (body.into(), answer));
        self.held = Some(answer);
        self.due = Instant::now() + in_seconds(refresh_in(&answer, now));
    }

    /// Staples nothing from now on.
    fn drop_response(&mut self) {
        self.held = None;
        known().remove(&self.key);
        self.stapling.show(None);
    }

    fn failed(&mut self, failure: &ResponderFailure) {
        // The pauses spare a responder that fails. One that could not be asked is asked again soon.
        if !failure.is_own() {
            self.failures = self.failures.saturating_add(1);
        }
        self.due = Instant::now() + pause(if failure.is_own() { OWN_PAUSE } else { self.failures });
        let text = self.stapling.responder.describe(failure);
        let text = format!("{text}, certificate: \"{}\"", self.stapling.file);
        let is_new = self.logged.as_ref().is_none_or(|(t, at)| *t != text || at.elapsed() > TELL_AGAIN);
        if is_new {
            (self.log)(Level::Error, &text);
            self.logged = Some((text, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_renewed_at_half_of_its_life() {
        let a = |from, until| Answer { state: State::Good, from, until };
        assert_eq!(refresh_in(&a(1000, Some(2000)), 1000), 500);
        assert_eq!(refresh_in(&a(1000, Some(2000)), 1400), 100);
        // An old one: half of the rest.
        assert_eq!(refresh_in(&a(1000, Some(2000)), 1600), 200);
        assert_eq!(refresh_in(&a(1000, Some(2000)), 1999), AT_LEAST);
        assert_eq!(refresh_in(&a(1000, Some(2000)), 9999), AT_LEAST);
        assert_eq!(refresh_in(&a(1000, None), 1000), UNSAID);
        assert!(holds(&a(1000, Some(2000)), 2000 + SKEW - 1) && !holds(&a(1000, Some(2000)), 2000 + SKEW));
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        assert_eq!(pause(1), FIRST_PAUSE);
        assert_eq!(pause(3), FIRST_PAUSE * 4);
        assert_eq!(pause(u32::MAX), LAST_PAUSE);
    }
}
