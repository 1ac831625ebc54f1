//! Servers that clients stay with: session persistence of rules, and the affinity of policies.

use super::fields;
use super::limits::duration;
use super::matches::{escape, is_token, shown, text};
use crate::gateway::objects::{SessionCookie, SessionPersistence};
use crate::groups::{Spec, Sticky};
use std::sync::Arc;

/// Server that a client stays with.
pub(crate) type Stay = Sticky;

/// Reads the session persistence of a rule. `id` makes the name of a cookie without one.
///
/// # Errors
/// What cannot be done.
pub(super) fn read(wish: &SessionPersistence, id: &str) -> Result<Stay, String> {
    let mut words = Vec::new();
    let lifetime = seconds("absoluteTimeout", wish.absolute_timeout.as_deref())?;
    let idle = seconds("idleTimeout", wish.idle_timeout.as_deref())?;
    words.extend(lifetime.map(|secs| format!("lifetime={secs}s")));
    words.extend(idle.map(|secs| format!("idle={secs}s")));
    match wish.kind.as_deref() {
        None | Some("Cookie") if wish.header.is_none() => {
            let cookie = wish.cookie.clone().unwrap_or_default();
            let given = cookie.name.clone().or_else(|| wish.session_name.clone());
            let name = given.unwrap_or_else(|| format!("forebay-{id}"));
            words.extend(attributes(&name, cookie, lifetime)?);
            Ok(Stay { name, words, field: false })
        }
        Some("Header") if wish.cookie.is_none() => {
            let given = wish.header.as_ref().map(|header| header.name.clone());
            let name = given.or_else(|| wish.session_name.clone()).unwrap_or_default();
            match bad_field(&name) {
                true => Err(format!("sessionPersistence: \"{}\" cannot be its field", shown(&name))),
                false => Ok(Stay { name, words, field: true }),
            }
        }
        _ => Err("sessionPersistence is by a cookie or by a field".into()),
    }
}

/// Returns the words for the attributes of a cookie.
fn attributes(name: &str, cookie: SessionCookie, lifetime: Option<u64>) -> Result<Vec<String>, String> {
    if name.is_empty() || name.len() > 256 || !is_token(name) {
        return Err("sessionPersistence: the name of the cookie is no token".into());
    }
    let path = cookie.path.unwrap_or_else(|| "/".into());
    if !path.starts_with('/') || path.contains([';', ',', ' ', '$']) || text(&path).is_err() {
        return Err("sessionPersistence: the path of the cookie is none".into());
    }
    let mut words = Vec::new();
    match (cookie.lifetime_type.as_deref(), lifetime) {
        (None | Some("Session"), _) => {}
        (Some("Permanent"), Some(secs)) => words.push(format!("expires={secs}s")),
        _ => return Err("sessionPersistence: the lifetime of the cookie is not supported".into()),
    }
    words.push(format!("path={path}"));
    words.push("httponly".into());
    Ok(words)
}

/// Reads a time after which a session is over.
fn seconds(field: &str, text: Option<&str>) -> Result<Option<u64>, String> {
    let Some(text) = text else { return Ok(None) };
    match duration(text).map(|time| time.as_secs()) {
        Some(secs) if secs > 0 && secs <= LONGEST => Ok(Some(secs)),
        _ => Err(format!("sessionPersistence.{field} is no duration of 1 second to 10 years")),
    }
}

/// Longest time of a session, seconds.
const LONGEST: u64 = 10 * 366 * 86_400;

/// Returns `true` for a field that means something else, or whose name no variable can have.
fn bad_field(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let taken = [
        "host",
        "cookie",
        "set-cookie",
        "authorization",
        "location",
        "date",
        "server",
        "vary",
        "range",
        "expect",
    ];
    let lower = name.to_ascii_lowercase();
    !plain
        || fields::bad_name(name).is_some()
        || taken.contains(&lower.as_str())
        || ["content-", "accept", "access-control-", "if-", "x-forwarded-"]
            .iter()
            .any(|start| lower.starts_with(start))
}

/// Returns the group of a backend whose clients stay with their servers. Each backend of a rule has a cookie of its own, or a mark in
/// the field, which leads back to it: the share of a backend is one of new clients.
pub(crate) fn staying(spec: &Arc<Spec>, stay: Option<&Stay>, index: Option<usize>) -> Arc<Spec> {
    let Some(stay) = stay else { return spec.clone() };
    let mut sticky = Sticky { name: cookie(stay, index), ..stay.clone() };
    if stay.field {
        sticky.words.extend(index.map(|index| format!("mark={index}")));
    }
    Arc::new(Spec { sticky: Some(sticky), ..Spec::clone(spec) })
}

/// Returns the name of the cookie of a backend; `None` for the index of the only one. A field has one name.
fn cookie(stay: &Stay, index: Option<usize>) -> String {
    match index {
        Some(index) if !stay.field => format!("{}-{index}", stay.name),
        _ => stay.name.clone(),
    }
}

/// Returns the variable that shows whether a request belongs to a session, and the pattern of those of a backend.
pub(super) fn sign(stay: &Stay, index: usize) -> (String, String) {
    if stay.field {
        let name = stay.name.to_ascii_lowercase().replace('-', "_");
        return (format!("$http_{name}"), format!("~^{index}\\."));
    }
    ("$http_cookie".to_owned(), format!("~(?:^|; *){}=", escape(&cookie(stay, Some(index)))))
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
        assert_eq!(of(before), Ok("a lifetime=3600s expires=3600s path=/ httponly".into()));
        let times = json!({ "absoluteTimeout": "1h", "idleTimeout": "90s" });
        assert_eq!(of(times), Ok("forebay-id lifetime=3600s idle=90s path=/ httponly".into()));
        for wrong in [
            json!({ "type": "Header", "header": { "name": "a" }, "cookie": { "name": "a" } }),
            json!({ "type": "Cookie", "header": { "name": "a" } }),
            json!({ "type": "Other" }),
            json!({ "idleTimeout": "1x" }),
            json!({ "idleTimeout": "500ms" }),
            json!({ "absoluteTimeout": "999999h" }),
            json!({ "cookie": { "lifetimeType": "Permanent" } }),
            json!({ "cookie": { "lifetimeType": "Permanent" }, "absoluteTimeout": "1x" }),
            json!({ "cookie": { "name": "a b" } }),
            json!({ "cookie": { "path": "/; Domain=x" } }),
        ] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fields() {
        let of_name =
            |name: &str| of(json!({ "type": "Header", "header": { "name": name }, "idleTimeout": "1m" }));
        assert_eq!(of_name("X-Session"), Ok("X-Session idle=60s".into()));
        assert_eq!(of(json!({ "type": "Header", "sessionName": "X-S" })), Ok("X-S ".into()));
        for wrong in
            ["", "a b", "a_b", "Host", "Content-Length", "Set-Cookie", "authorization", "Upgrade", "If-Match"]
        {
            assert!(of_name(wrong).is_err(), "{wrong}");
        }
    }
}
