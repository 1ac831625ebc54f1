//! Election of the leader among replicas by a Lease (coordination.k8s.io/v1), with the times of client-go.

use crate::api::{Api, Error};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time for which a leader may be silent.
const DURATION: Duration = Duration::from_secs(15);
/// Time in which a leader has to renew the lease; after that it leads no longer.
const RENEW_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_secs(2);

/// Candidate for a lease.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Name of this replica, such as that of its pod.
    pub identity: String,
}

/// Replica that holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Us,
    Another,
}

/// Lease of another replica as this one has seen it.
struct Seen {
    /// Holder and time of its last renewal. The clock of the other machine may differ, so only a change counts.
    record: (String, String),
    since: Instant,
}

/// Gives the lease up if this replica holds it, so that another one leads at once.
///
/// # Errors
/// The API server cannot be reached, or refuses.
pub async fn release(api: &Api, candidate: &Candidate) -> Result<(), Error> {
    let path = format!("{}/{}", candidate.collection(), candidate.name);
    let lease: Value = api.get(&path).await?;
    if text(&lease, "/spec/holderIdentity") != candidate.identity {
        return Ok(());
    }
    let mut free = candidate.lease(Some(&lease));
    free["spec"]["holderIdentity"] = json!("");
    free["spec"]["leaseDurationSeconds"] = json!(1);
    api.replace(&path, &free).await.map(|_| ())
}

/// Takes part in the election until nobody looks at `leads`, which tells whether this replica leads.
pub async fn take_part(api: Api, candidate: Candidate, leads: watch::Sender<bool>, log: impl Fn(&str)) {
    let mut renewed: Option<Instant> = None;
    let mut seen: Option<Seen> = None;
    loop {
        match candidate.attempt(&api, &mut seen).await {
            Ok(Holder::Us) => {
                if renewed.replace(Instant::now()).is_none() {
                    log("this replica is the leader now");
                }
            }
            Ok(Holder::Another) => {
                if renewed.take().is_some() {
                    log("another replica is the leader now");
                }
            }
            // A leader that cannot reach the API server stays leader for a while: nobody else may take over before.
            Err(_) => {
                if renewed.take_if(|at| at.elapsed() > RENEW_WITHIN).is_some() {
                    log("the lease could not be renewed: this replica leads no longer");
                }
            }
        }
        let leading = renewed.is_some();
        leads.send_if_modified(|before| std::mem::replace(before, leading) != leading);
        if leads.is_closed() {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

impl Candidate {
    fn collection(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    /// Renews the lease, or takes it if it is free.
    async fn attempt(&self, api: &Api, seen: &mut Option<Seen>) -> Result<Holder, Error> {
        let path = format!("{}/{}", self.collection(), self.name);
        let lease: Value = match api.get(&path).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => {
                let created = api.create(&self.collection(), &self.lease(None)).await;
                return won(created);
            }
            Err(error) => return Err(error),
        };
        let held = text(&lease, "/spec/holderIdentity");
        if held != self.identity && !held.is_empty() && !has_expired(&lease, seen) {
            return Ok(Holder::Another);
        }
        won(api.replace(&path, &self.lease(Some(&lease))).await)
    }

    /// Returns the lease with this replica as its holder. `before` is the lease as it was read: its version makes the API server
    /// refuse the change if another replica was faster.
    fn lease(&self, before: Option<&Value>) -> Value {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let mut metadata = json!({ "name": self.name, "namespace": self.namespace });
        let (mut since, mut transitions) = (now.clone(), 0);
        if let Some(before) = before {
            metadata["resourceVersion"] =
                before.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
            transitions = before.pointer("/spec/leaseTransitions").and_then(Value::as_i64).unwrap_or(0);
            if text(before, "/spec/holderIdentity") == self.identity {
                since = text(before, "/spec/acquireTime");
            } else {
                transitions += 1;
            }
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": DURATION.as_secs(),
                "acquireTime": since,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        })
    }
}

/// Returns `true` if a lease has not been renewed for as long as it holds, by the clock of this machine.
fn has_expired(lease: &Value, seen: &mut Option<Seen>) -> bool {
    let record = (text(lease, "/spec/holderIdentity"), text(lease, "/spec/renewTime"));
    let seconds =
        lease.pointer("/spec/leaseDurationSeconds").and_then(Value::as_u64).unwrap_or(DURATION.as_secs());
    match seen {
        Some(seen) if seen.record == record => seen.since.elapsed() > Duration::from_secs(seconds),
        _ => {
            *seen = Some(Seen { record, since: Instant::now() });
            false
        }
    }
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Tells whether the API server has taken a lease. A conflict means that another replica was faster.
fn won(result: Result<Value, Error>) -> Result<Holder, Error> {
    match result {
        Ok(_) => Ok(Holder::Us),
        Err(error) if error.is_conflict() => Ok(Holder::Another),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate() -> Candidate {
        Candidate { namespace: "edge".into(), name: "forebay-ingress-leader".into(), identity: "a".into() }
    }

    #[test]
    fn a_renewal_keeps_the_time_of_the_election() {
        let mut lease = candidate().lease(None);
        lease["metadata"]["resourceVersion"] = json!("7");
        lease["spec"]["acquireTime"] = json!("2026-01-01T00:00:00.000000Z");
        let renewed = candidate().lease(Some(&lease));
        assert_eq!(renewed["metadata"]["resourceVersion"], "7");
        assert_eq!(renewed["spec"]["acquireTime"], "2026-01-01T00:00:00.000000Z");
        assert_eq!(renewed["spec"]["leaseTransitions"], 0);
        let taken = Candidate { identity: "b".into(), ..candidate() }.lease(Some(&lease));
        assert_eq!(taken["spec"]["leaseTransitions"], 1);
        assert_ne!(taken["spec"]["acquireTime"], "2026-01-01T00:00:00.000000Z");
    }

    #[test]
    fn only_silence_on_this_clock_ends_a_lease() {
        let mut lease = candidate().lease(None);
        // A clock that is far behind.
        lease["spec"]["renewTime"] = json!("2001-01-01T00:00:00.000000Z");
        lease["spec"]["leaseDurationSeconds"] = json!(0);
        let mut seen = None;
        assert!(!has_expired(&lease, &mut seen), "seen for the first time");
        assert!(has_expired(&lease, &mut seen), "not renewed since");
        lease["spec"]["renewTime"] = json!("2001-01-01T00:00:02.000000Z");
        assert!(!has_expired(&lease, &mut seen), "renewed");
    }
}
