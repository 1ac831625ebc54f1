//! Certificates of the process, with what is known about each. They survive a reload.

use crate::challenge;
use crate::schedule::Suggestion;
use crate::settings::{Identifier, Order};
use crate::x509::{self, Leaf};
use forebay_core::tls::slot::Slot;
use forebay_net::tls::certified::certified;
use forebay_net::tls::pem;
use forebay_sys::sync::lock;
use rustls::sign::CertifiedKey;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::SystemTime;
use zeroize::Zeroizing;

/// Progress of getting a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No request has been made yet.
    #[default]
    Waiting,
    /// It is being asked for.
    Requesting,
    /// The last request succeeded, or the certificate was found.
    Ready,
    /// The last request failed.
    Failed,
    /// The authority refuses it, or other attempts are not wanted: nothing is asked for until the configuration changes.
    Refused,
    /// Certificates of its issuer are not asked for.
    Disabled,
}

impl Phase {
    /// Returns the word for people.
    pub fn text(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::Requesting => "requesting",
            Phase::Ready => "ready",
            Phase::Failed => "failed",
            Phase::Refused => "refused",
            Phase::Disabled => "disabled",
        }
    }
}

/// Chain and key in PEM.
pub(crate) struct Pem {
    chain: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

/// State of a certificate.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) pem: Option<Pem>,
    /// The certificate, if there is one.
    pub(crate) leaf: Option<Leaf>,
    /// Time of the last change of its file that has been read.
    pub(crate) changed: Option<SystemTime>,
    /// Time of the next attempt or look, seconds since 1970.
    pub(crate) next: i64,
    /// Time at which this process last got a certificate, seconds since 1970.
    pub(crate) issued_at: i64,
    /// Failures in a row.
    pub(crate) failures: u32,
    /// An earlier certificate for some of the names is presented.
    pub(crate) has_earlier: bool,
    /// A proof failed: another directory of the authority is asked before the next attempt.
    pub(crate) rehearses: bool,
    /// All failures of the process.
    pub(crate) total_failures: u64,
    /// All certificates that the process got.
    pub(crate) total_issued: u64,
    /// The last failure.
    pub(crate) error: String,
    /// Time of renewal, chosen once for each certificate.
    pub(crate) renewal: Option<i64>,
    /// Time that the authority suggests.
    pub(crate) suggestion: Option<Suggestion>,
    /// Time of the next question for renewal information.
    pub(crate) ask_at: i64,
}

/// Certificate that servers present and that is renewed in place. Until it is there, servers present one that is signed by its
/// own key.
pub struct Certificate {
    names: String,
    issuer: String,
    slot: Arc<Slot>,
    pub(crate) state: Mutex<State>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("names", &self.names).finish_non_exhaustive()
    }
}

/// Certificates by [`Order::id`].
static ALL: LazyLock<Mutex<BTreeMap<String, Arc<Certificate>>>> = LazyLock::new(Mutex::default);

/// Certificate for servers that have none yet.
static PLACEHOLDER: LazyLock<Result<Arc<CertifiedKey>, String>> =
    LazyLock::new(|| challenge::self_made(&[], "Forebay: no certificate yet").map(Arc::new));

impl Certificate {
    /// Returns the certificate of an order, the same one for each equal order of the process.
    ///
    /// # Errors
    /// If no key can be made.
    pub fn of(order: &Order) -> Result<Arc<Certificate>, String> {
        let mut all = lock(&ALL);
        if let Some(known) = all.get(&order.id()) {
            return Ok(known.clone());
        }
        let certificate = Arc::new(Certificate {
            names: order.names(),
            issuer: order.issuer.name.clone(),
            slot: Arc::new(Slot::provisional(PLACEHOLDER.clone()?)),
            state: Mutex::default(),
        });
        all.insert(order.id(), certificate.clone());
        Ok(certificate)
    }

    /// Returns the place that servers present it from.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Presents an earlier certificate for some of the names, until there is one for all.
    pub(crate) fn present_earlier(&self, made: CertifiedKey) {
        self.slot.replace_provisional(Arc::new(made));
        lock(&self.state).has_earlier = true;
    }

    /// Appends the chain in PEM. Returns `false` if there is no certificate.
    pub fn chain(&self, out: &mut Vec<u8>) -> bool {
        let state = lock(&self.state);
        state.pem.as_ref().map(|pem| out.extend_from_slice(&pem.chain)).is_some()
    }

    /// Appends the private key in PEM. Returns `false` if there is no certificate.
    pub fn key(&self, out: &mut Vec<u8>) -> bool {
        let state = lock(&self.state);
        state.pem.as_ref().map(|pem| out.extend_from_slice(&pem.key)).is_some()
    }

    /// Presents a chain with its key.
    ///
    /// # Errors
    /// If they are not a certificate for the identifiers with its key.
    pub(crate) fn present(
        &self,
        identifiers: &[Identifier],
        chain: &[u8],
        key: Zeroizing<Vec<u8>>,
        changed: Option<SystemTime>,
    ) -> Result<(), String> {
        let (made, leaf) = checked(identifiers, chain, &key)?;
        self.slot.replace(Arc::new(made));
        let mut state = lock(&self.state);
        state.pem = Some(Pem { chain: chain.to_vec(), key });
        if state.leaf.as_ref() != Some(&leaf) {
            // Those of another certificate.
            (state.renewal, state.suggestion, state.ask_at) = (None, None, 0);
        }
        state.leaf = Some(leaf);
        state.changed = changed;
        (state.phase, state.failures, state.error) = (Phase::Ready, 0, String::new());
        state.rehearses = false;
        Ok(())
    }
}

/// Reads a chain with its key.
///
/// # Errors
/// If they are not a certificate for the identifiers with its key.
pub(crate) fn checked(
    identifiers: &[Identifier],
    chain: &[u8],
    key: &[u8],
) -> Result<(CertifiedKey, Leaf), String> {
    let certificates = pem::certificates(chain);
    let first = certificates.first().ok_or("there is no certificate")?;
    let leaf = x509::leaf(first).ok_or("the certificate cannot be read")?;
    if !x509::covers(first, identifiers) {
        return Err("the certificate is for other names".to_owned());
    }
    Ok((certified(("acme", chain), ("acme", key), &[])?, leaf))
}

/// State of a certificate, for `forebay acme status`, the API and metrics.
#[derive(Clone, Debug)]
pub struct Report {
    /// Names with commas between them.
    pub names: String,
    /// Name of the issuer.
    pub issuer: String,
    /// State.
    pub phase: Phase,
    /// Times from and until which the certificate is valid, seconds since 1970, if there is one.
    pub validity: Option<(i64, i64)>,
    /// Time of the next attempt or look, seconds since 1970.
    pub next: i64,
    /// Failures in a row.
    pub failures: u32,
    /// All failures of the process.
    pub total_failures: u64,
    /// All certificates that the process got.
    pub total_issued: u64,
    /// The last failure, or empty.
    pub error: String,
}

/// Returns what is known about all certificates of the process.
pub fn reports() -> Vec<Report> {
    let all: Vec<Arc<Certificate>> = lock(&ALL).values().cloned().collect();
    all.iter().map(|c| c.report()).collect()
}

impl Certificate {
    fn report(&self) -> Report {
        let state = lock(&self.state);
        Report {
            names: self.names.clone(),
            issuer: self.issuer.clone(),
            phase: state.phase,
            validity: state.leaf.as_ref().map(|l| (l.from, l.until)),
            next: state.next,
            failures: state.failures,
            total_failures: state.total_failures,
            total_issued: state.total_issued,
            error: state.error.clone(),
        }
    }
}

/// Forgets the certificates that no order of a new configuration wants.
pub(crate) fn keep_only(orders: &[Order]) {
    let wanted: Vec<String> = orders.iter().map(Order::id).collect();
    lock(&ALL).retain(|id, _| wanted.contains(id));
}
