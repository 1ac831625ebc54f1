//! Publication of proofs: in this process, by a request to a location, or by a program.

use crate::challenge::{Posted, Proof};
use crate::failure::Failure;
use crate::program;
use crate::settings::{Challenge, Issuer, Program, Publication};
use forebay_conf::error::Level;
use forebay_core::tasks::Log;
use forebay_sys::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limit of a request to a location.
const HOOK_LIMIT: Duration = Duration::from_secs(60);

/// Locks of issuers by their names. The life of a proof outside of the process holds one: a program may remove all values of a record,
/// among them the one that the task of the next configuration has just added.
static TURNS: LazyLock<Mutex<HashMap<String, Arc<Turn>>>> = LazyLock::new(Mutex::default);

/// Lock of an issuer.
type Turn = tokio::sync::Mutex<()>;

/// Returns the lock of an issuer.
fn turn(issuer: &str) -> Arc<Turn> {
    let mut turns = lock(&TURNS);
    turns.retain(|_, turn| Arc::strong_count(turn) > 1);
    turns.entry(issuer.to_owned()).or_default().clone()
}

/// Half of the life of a published proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is published.
    Add,
    /// It is withdrawn.
    Remove,
}

impl Step {
    /// Returns the word for programs and for `$acme_hook_name`.
    pub fn text(self) -> &'static str {
        match self {
            Step::Add => "add",
            Step::Remove => "remove",
        }
    }
}

/// Request to a location that publishes or withdraws a proof (Angie: acme_hook).
#[derive(Debug)]
pub struct HookCall {
    /// Name of the issuer (`$acme_hook_client`).
    pub client: String,
    /// `$acme_hook_name`.
    pub step: Step,
    /// `$acme_hook_challenge`.
    pub challenge: &'static str,
    /// `$acme_hook_domain`.
    pub domain: String,
    /// `$acme_hook_token`.
    pub token: String,
    /// `$acme_hook_keyauth`: the key authorization, or the value of the record of DNS-01.
    pub authorization: String,
    /// Takes the result.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// Function that has a worker thread carry out a [`HookCall`].
pub type Hooks = Arc<dyn Fn(HookCall) + Send + Sync>;

/// Publisher of the proofs of an issuer.
#[derive(Clone)]
pub(crate) struct Publisher {
    pub(crate) issuer: Arc<Issuer>,
    pub(crate) hooks: Hooks,
    pub(crate) log: Log,
}

/// Proof that the authority can find until this is dropped.
pub(crate) enum Published {
    /// It is in this process.
    Here {
        /// Withdraws it when dropped.
        _posted: Posted,
    },
    /// It is elsewhere.
    Elsewhere {
        /// Withdraws it when dropped.
        announced: Announced,
    },
}

impl Published {
    /// Withdraws the proof. Errors are logged.
    pub(crate) async fn withdraw(self) {
        if let Published::Elsewhere { announced } = self {
            announced.withdraw().await;
        }
    }
}

impl Publisher {
    /// Publishes a proof for a challenge.
    ///
    /// # Errors
    /// If the hook or the program fails.
    pub(crate) async fn publish(&self, challenge: Challenge, proof: Proof) -> Result<Published, Failure> {
        let posted = match (challenge, &self.issuer.publication) {
            (Challenge::TlsAlpn01, _) => Posted::tls(&proof).map_err(Failure::temporary)?,
            (_, Publication::Hook) => return self.announce(challenge, Way::Hook, proof).await,
            (Challenge::Dns01, Publication::Program(p)) => {
                return self.announce(challenge, Way::Program(p.clone()), proof).await;
            }
            (Challenge::Dns01, Publication::Own) => Posted::dns(&proof),
            _ => Posted::http(&proof),
        };
        Ok(Published::Here { _posted: posted })
    }

    async fn announce(&self, challenge: Challenge, way: Way, proof: Proof) -> Result<Published, Failure> {
        let delay = way.delay();
        let external = External { publisher: self.clone(), challenge, way, proof };
        let (added, has_added) = oneshot::channel();
        let (withdraw, asked) = oneshot::channel::<()>();
        // In a task of its own, since a reload may end that of the issuer in the middle of either step.
        let turn = turn(&self.issuer.name);
        let life = tokio::spawn(async move {
            let _turn = turn.lock_owned().await;
            if added.is_closed() {
                return;
            }
            let _ = added.send(external.take(Step::Add).await);
            // A sender that is dropped asks, too.
            let _ = asked.await;
            external.withdraw().await;
        });
        let announced = Announced { withdraw, life };
        let has_added = has_added.await.unwrap_or_else(|_| Err("the addition was given up".to_owned()));
        has_added.map_err(Failure::temporary)?;
        tokio::time::sleep(delay).await;
        Ok(Published::Elsewhere { announced })
    }
}

/// Means outside of the process.
#[derive(Clone)]
enum Way {
    Hook,
    Program(Program),
}

impl Way {
    fn delay(&self) -> Duration {
        match self {
            Way::Hook => Duration::ZERO,
            Way::Program(program) => program.delay,
        }
    }
}

/// Proof that something outside of the process publishes.
struct External {
    publisher: Publisher,
    challenge: Challenge,
    way: Way,
    proof: Proof,
}

impl External {
    /// Publishes or withdraws the proof.
    async fn take(&self, step: Step) -> Result<(), String> {
        match &self.way {
            Way::Hook => {
                let called = timeout(HOOK_LIMIT, self.call_hook(step)).await;
                let called = called.unwrap_or_else(|_| Err("it takes too long".to_owned()));
                called.map_err(|text| format!("acme_hook \"{}\" failed: {text}", step.text()))
            }
            Way::Program(program) => {
                let (name, value) = (self.proof.record_name(), self.proof.record_value());
                program::run(program, [step.text(), &name, &value]).await
            }
        }
    }

    /// Withdraws the proof. Errors are logged.
    async fn withdraw(self) {
        if let Err(text) = self.take(Step::Remove).await {
            let Publisher { issuer, log, .. } = &self.publisher;
            log(Level::Warn, &format!("acme issuer \"{}\": {text}", issuer.name));
        }
    }

    async fn call_hook(&self, step: Step) -> Result<(), String> {
        let (done, ended) = oneshot::channel();
        let Proof { identifier, token, authorization } = &self.proof;
        let (challenge, authorization) = match self.challenge {
            Challenge::Dns01 => ("dns", self.proof.record_value()),
            _ => ("http", authorization.clone()),
        };
        (self.publisher.hooks)(HookCall {
            client: self.publisher.issuer.name.clone(),
            step,
            challenge,
            domain: identifier.to_string(),
            token: token.clone(),
            authorization,
            done,
        });
        ended.await.unwrap_or_else(|_| Err("no thread answered".to_owned()))
    }
}

/// Proof that a hook or a program has published, or may have. Its withdrawal begins when this is dropped, but not before its
/// addition has ended.
pub(crate) struct Announced {
    /// Asks for the withdrawal when dropped.
    withdraw: oneshot::Sender<()>,
    /// Both steps.
    life: JoinHandle<()>,
}

impl Announced {
    /// Withdraws the proof.
    async fn withdraw(self) {
        let Announced { withdraw, life } = self;
        drop(withdraw);
        // It fails only if the process ends.
        let _ = life.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Identifier;
    use std::time::Instant;

    /// A reload drops the task of an issuer in the middle of an addition, and another one begins.
    #[test]
    fn a_proof_is_withdrawn_after_its_addition_has_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let script = format!(
            "echo $1 >> {calls}; [ $1 = remove ] || while [ ! -e {go} ]; do sleep 0.01; done; echo $1 ended >> {calls}",
            calls = path("calls"),
            go = path("go")
        );
        let program = Program {
            path: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into(), "sh".into()],
            delay: Duration::ZERO,
        };
        let publisher = Publisher {
            issuer: Arc::new(Issuer {
                publication: Publication::Program(program),
                ..Issuer::new("a", "https://b/")
            }),
            hooks: Arc::new(|_| {}),
            log: Arc::new(|_, _| {}),
        };
        let proof = Proof {
            identifier: Identifier::Dns("a.example".to_owned()),
            token: "token".to_owned(),
            authorization: "token.thumb".to_owned(),
        };
        let calls = || std::fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let wait_for = async |wanted: &str| {
            let end = Instant::now() + Duration::from_secs(20);
            while calls() != wanted {
                assert!(Instant::now() < end, "{:?} instead of {wanted:?}", calls());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio.block_on(async {
            let next = (publisher.clone(), proof.clone());
            let order = tokio::spawn(async move { publisher.publish(Challenge::Dns01, proof).await.is_ok() });
            wait_for("add\n").await;
            order.abort();
            assert!(order.await.is_err());
            let next = tokio::spawn(async move { next.0.publish(Challenge::Dns01, next.1).await.is_ok() });
            // Time for steps that do not wait.
            tokio::time::sleep(Duration::from_millis(100)).await;
            std::fs::write(dir.path().join("go"), "").expect("written");
            assert!(next.await.is_ok_and(|published| published));
            let both = "add\nadd ended\nremove\nremove ended\n".repeat(2);
            wait_for(&both).await;
        });
    }
}
