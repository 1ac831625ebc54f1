//! Keys of TLS session tickets in a Secret, so that a session goes on at any replica. The leader replaces them.
//!
//! A key is in use for three periods: as the next one, which replicas only accept until all of them have it; as the current one,
//! which encrypts; and as the previous one, until the tickets that it encrypted have ended.

use crate::api::{Api, Error};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forebay_k8s::Key;
use forebay_k8s::options::{TICKET_KEY_BYTES, TICKET_KEYS};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;

/// Time for which a key is the current one.
const PERIOD: jiff::SignedDuration = jiff::SignedDuration::from_hours(12);
/// Pause between two looks at the Secret.
const LOOK: Duration = Duration::from_secs(60);
/// Annotation with the time of the last change.
const CHANGED: &str = "forebay.io/session-ticket-keys-changed";

/// Makes the Secret, and replaces its keys, while this replica leads.
pub(crate) async fn keep(api: Api, secret: Key, mut leads: watch::Receiver<bool>, log: impl Fn(&str)) {
    let mut failing = false;
    loop {
        if leads.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        match rotate(&api, &secret, Timestamp::now()).await {
            Ok(()) => failing = false,
            // Another replica was faster.
            Err(error) if error.is_conflict() => {}
            Err(error) if !std::mem::replace(&mut failing, true) => {
                log(&format!("keys of session tickets in Secret {secret} stay as they are: {error}"));
            }
            Err(_) => {}
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn rotate(api: &Api, secret: &Key, now: Timestamp) -> Result<(), Error> {
    let all = format!("/api/v1/namespaces/{}/secrets", secret.namespace);
    let one = format!("{all}/{}", secret.name);
    let old: Option<Value> = match api.get(&one).await {
        Ok(old) => Some(old),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    let Some(new) = due(secret, old.as_ref(), now, &mut key) else { return Ok(()) };
    match old {
        Some(_) => api.replace(&one, &new).await.map(|_| ()),
        None => api.create(&all, &new).await.map(|_| ()),
    }
}

/// Returns the Secret as it has to be written, or `None` while the keys are young enough. What is no Secret with such keys gets new
/// ones.
fn due(secret: &Key, old: Option<&Value>, now: Timestamp, key: &mut dyn FnMut() -> String) -> Option<Value> {
    let text = |pointer: &str| old.and_then(|o| o.pointer(pointer)).and_then(Value::as_str);
    let changed = text(&format!("/metadata/annotations/{}", CHANGED.replace('/', "~1")));
    let changed = changed.and_then(|t| t.parse::<Timestamp>().ok());
    let of = |name: &str| text(&format!("/data/{name}")).filter(|t| is_key(t)).map(str::to_owned);
    let [current, previous, next] = TICKET_KEYS.map(of);
    let whole = current.is_some() && previous.is_some() && next.is_some();
    // A time in the future is that of a clock that was wrong.
    if whole && changed.is_some_and(|t| t <= now && now.duration_since(t) < PERIOD) {
        return None;
    }
    let mut fresh = |old: Option<String>| old.unwrap_or_else(&mut *key);
    let (current, previous) = (fresh(next), fresh(current));
    let data: serde_json::Map<String, Value> = TICKET_KEYS
        .iter()
        .zip([current, previous, fresh(None)])
        .map(|(n, k)| ((*n).into(), k.into()))
        .collect();
    let mut metadata = json!({
        "name": secret.name, "namespace": secret.namespace,
        "labels": {"app.kubernetes.io/managed-by": crate::api::MANAGER},
        "annotations": {CHANGED: now.to_string()},
    });
    // Two replicas that both take themselves for the leader do not both write.
    if let Some(version) = text("/metadata/resourceVersion") {
        metadata["resourceVersion"] = version.into();
    }
    Some(json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}))
}

fn is_key(text: &str) -> bool {
    STANDARD.decode(text).is_ok_and(|bytes| bytes.len() == TICKET_KEY_BYTES)
}

/// Makes a key, in base64.
fn key() -> String {
    let mut bytes = [0; TICKET_KEY_BYTES];
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random.fill(&mut bytes).expect("the system has random bytes");
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(old: Option<&Value>, now: Timestamp, made: &mut u8) -> Option<Value> {
        let mut key = || {
            *made += 1;
            STANDARD.encode([*made; TICKET_KEY_BYTES])
        };
        due(&Key::new("edge", "tickets"), old, now, &mut key)
    }

    #[test]
    fn keys_move_from_next_to_current_to_previous() {
        let (start, mut made) = (Timestamp::UNIX_EPOCH + PERIOD, 0);
        let mut first = step(None, start, &mut made).expect("a new Secret");
        assert_eq!(made, 3);
        assert!(first["metadata"].get("resourceVersion").is_none());
        first["metadata"]["resourceVersion"] = "7".into();
        assert_eq!(step(Some(&first), start + PERIOD / 2, &mut made), None);
        let second = step(Some(&first), start + PERIOD, &mut made).expect("new keys");
        assert_eq!(made, 4);
        assert_eq!(second["data"]["current"], first["data"]["next"]);
        assert_eq!(second["data"]["previous"], first["data"]["current"]);
        assert_eq!(second["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn invalid_keys_are_replaced() {
        let (now, mut made) = (Timestamp::UNIX_EPOCH + PERIOD, 0);
        let mut secret = step(None, now, &mut made).expect("a new Secret");
        let current = secret["data"]["current"].clone();
        secret["data"]["next"] = "c2hvcnQ=".into();
        let new = step(Some(&secret), now, &mut made).expect("new keys");
        assert!(is_key(new["data"]["current"].as_str().unwrap()));
        assert_eq!(new["data"]["previous"], current);
        let future = step(Some(&new), now - PERIOD, &mut made);
        assert!(future.is_some(), "a time in the future");
    }
}
