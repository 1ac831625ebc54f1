//! Servers that clients stay with: session persistence of rules, and the affinity of policies.

use super::limits::duration;
use super::matches::{is_token, text};
use crate::gateway::objects::SessionPersistence;
use crate::groups::{Spec, Sticky};
use std::sync::Arc;

/// Server that a client stays with.
pub(crate) type Stay = Sticky;

/// Reads the session persistence of a rule. `id` makes the name of a cookie without one.
///
/// # Errors
/// What cannot be done.
pub(super) fn read(wish: &SessionPersistence, id: &str) -> Result<Stay, String> {
    match wish.kind.as_deref() {
        None | Some("Cookie") if wish.header.is_none() => {}
        _ => return Err("sessionPersistence works with cookies only".into()),
    }
    if wish.idle_timeout.is_some() {
        return Err("sessionPersistence.idleTimeout is not supported".into());
    }
    let cookie = wish.cookie.clone().unwrap_or_default();
    let name = cookie.name.or_else(|| wish.session_name.clone()).unwrap_or_else(|| format!("forebay-{id}"));
    if name.is_empty() || name.len() > 256 || !is_token(&name) {
        return Err("sessionPersistence: the name of the cookie is no token".into());
    }
    let path = cookie.path.unwrap_or_else(|| "/".into());
    if !path.starts_with('/') || path.contains([';', ',', ' ', '$']) || text(&path).is_err() {
        return Err("sessionPersistence: the path of the cookie is none".into());
    }
    let mut words = Vec::new();
    match (cookie.lifetime_type.as_deref(), wish.absolute_timeout.as_deref()) {
        (None | Some("Session"), None) => {}
        (Some("Permanent"), Some(time)) => match duration(time).map(|d| d.as_secs()) {
            Some(seconds) if seconds > 0 => words.push(format!("expires={seconds}s")),
            _ => return Err("sessionPersistence.absoluteTimeout is no duration of seconds".into()),
        },
        (None | Some("Session"), Some(_)) => {
            return Err("sessionPersistence.absoluteTimeout needs a cookie of the type Permanent".into());
        }
        _ => return Err("sessionPersistence: the lifetime of the cookie is not supported".into()),
    }
    words.push(format!("path={path}"));
    words.push("httponly".into());
    Ok(Stay { name, words })
}

/// Returns the group of a backend whose clients stay with their servers. Each backend of a rule has a cookie of its own, which leads
/// back to it: the share of a backend is one of new clients.
pub(crate) fn staying(spec: &Arc<Spec>, stay: Option<&Stay>, index: Option<usize>) -> Arc<Spec> {
    let Some(stay) = stay else { return spec.clone() };
    let sticky = Sticky { name: cookie(stay, index), words: stay.words.clone() };
    Arc::new(Spec { sticky: Some(sticky), ..Spec::clone(spec) })
}

/// Returns the name of the cookie of a backend; `None` for the index of the only one.
pub(super) fn cookie(stay: &Stay, index: Option<usize>) -> String {
    index.map_or_else(|| stay.name.clone(), |index| format!("{}-{index}", stay.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(value: Value) -> Result<String, String> {
        let wish = serde_json::from_value(value).expect("session persistence");
        read(&wish, "id").map(|stay| format!("{} {}", stay.name, stay.words.join(" ")))
    }

    #[test]
    fn cookies() {
        assert_eq!(of(json!({})), Ok("forebay-id path=/ httponly".into()));
        assert_eq!(
            of(json!({ "type": "Cookie", "cookie": { "name": "a", "path": "/b" } })),
            Ok("a path=/b httponly".into())
        );
        let before = json!({ "sessionName": "a", "cookieConfig": { "lifetimeType": "Permanent" }, "absoluteTimeout": "1h" });
        assert_eq!(of(before), Ok("a expires=3600s path=/ httponly".into()));
        for wrong in [
            json!({ "type": "Header", "header": { "name": "a" } }),
            json!({ "type": "Other" }),
            json!({ "idleTimeout": "1h" }),
            json!({ "absoluteTimeout": "1h" }),
            json!({ "cookie": { "lifetimeType": "Permanent" } }),
            json!({ "cookie": { "lifetimeType": "Permanent" }, "absoluteTimeout": "1x" }),
            json!({ "cookie": { "name": "a b" } }),
            json!({ "cookie": { "path": "/; Domain=x" } }),
        ] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
