//! A RoutePolicy as annotations.

use super::table::{FIELDS, Field, Form, GROUPS};
use crate::gateway::objects::{GROUP, PolicyTarget};
use serde_json::Value;
use std::collections::BTreeMap;

/// Most targets of a policy (GEP-713).
const MOST_TARGETS: usize = 16;

/// A policy as it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Written {
    /// What it is about.
    pub targets: Vec<PolicyTarget>,
    /// Annotations without a prefix.
    pub annotations: BTreeMap<String, String>,
    /// What cannot be read.
    pub faults: Vec<String>,
}

/// Reads the specification of a policy.
pub(super) fn read(spec: &Value) -> Written {
    let mut written = Written::default();
    let Value::Object(fields) = spec else {
        written.faults.push("there is no specification".into());
        return written;
    };
    for (name, value) in fields {
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("targetRefs", value) => targets(value, &mut written),
            (name, Value::Object(group)) if is_group(name) => {
                if let Some((_, annotation, text)) = GROUPS.iter().find(|(group, ..)| *group == name) {
                    written.annotations.insert((*annotation).to_owned(), (*text).to_owned());
                }
                for (leaf, value) in group.iter().filter(|(_, value)| !value.is_null()) {
                    field(&format!("{name}.{leaf}"), value, &mut written);
                }
            }
            (name, value) => field(name, value, &mut written),
        }
    }
    if written.targets.is_empty() {
        written.faults.push("targetRefs is empty".into());
    }
    written
}

fn is_group(name: &str) -> bool {
    FIELDS.iter().any(|f| f.path.split_once('.').is_some_and(|(group, _)| group == name))
}

fn targets(value: &Value, written: &mut Written) {
    // A word that is not read could have made a target smaller.
    let names = value.as_array().into_iter().flatten().filter_map(Value::as_object).flat_map(|t| t.keys());
    for name in names.filter(|name| !["group", "kind", "name", "sectionName"].contains(&name.as_str())) {
        written.faults.push(format!("targetRefs: there is no such field {name}"));
    }
    match serde_json::from_value::<Vec<PolicyTarget>>(value.clone()) {
        Ok(targets) if targets.len() <= MOST_TARGETS => {
            for target in &targets {
                if target.group != GROUP
                    || !["HTTPRoute", "GRPCRoute", "Gateway"].contains(&target.kind.as_str())
                {
                    let text = format!(
                        "targetRefs: a policy is about HTTPRoutes, GRPCRoutes and Gateways, not about {}",
                        target.kind
                    );
                    written.faults.push(text);
                }
            }
            written.targets = targets;
        }
        Ok(_) => written.faults.push(format!("targetRefs has more than {MOST_TARGETS} entries")),
        Err(error) => written.faults.push(format!("targetRefs: {error}")),
    }
}

fn field(path: &str, value: &Value, written: &mut Written) {
    let Some(field) = FIELDS.iter().find(|f| f.path == path) else {
        return written.faults.push(format!("{path}: there is no such field"));
    };
    match text(field, value) {
        Some(text) => drop(written.annotations.insert(field.annotation.to_owned(), text)),
        None => written.faults.push(format!("{path}: the value is empty or of another type")),
    }
}

/// Returns the value of an annotation. An empty one would be taken for an absent one.
fn text(field: &Field, value: &Value) -> Option<String> {
    let text = match (field.form, value) {
        (Form::Text, Value::String(text)) => text.clone(),
        (Form::Number, Value::Number(number)) => number.as_i64()?.to_string(),
        (Form::Bool, Value::Bool(flag)) => flag.to_string(),
        (Form::Switch, Value::Bool(flag)) => (if *flag { "on" } else { "off" }).to_owned(),
        (Form::List, Value::Array(items)) => {
            let items: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            let items = items?;
            // A comma in an entry would make two of it.
            if items.iter().any(|item| item.is_empty() || item.contains(',')) {
                return None;
            }
            items.join(",")
        }
        _ => return None,
    };
    Some(text).filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_become_annotations() {
        let written = read(&json!({
            "targetRefs": [{ "group": GROUP, "kind": "HTTPRoute", "name": "a" }],
            "basicAuth": { "secret": "users", "realm": "Shop" },
            "limit": { "rps": 5, "allowlist": ["10.0.0.0/8", "::1"] },
            "proxy": { "buffering": true, "bodySize": "8m" },
            "cors": {}, "sessionCookie": { "secure": true }, "limits": null,
        }));
        assert_eq!(written.faults, [""; 0]);
        let text = written.annotations.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>();
        assert_eq!(
            text,
            [
                "affinity=cookie",
                "auth-realm=Shop",
                "auth-secret=users",
                "auth-type=basic",
                "enable-cors=true",
                "limit-allowlist=10.0.0.0/8,::1",
                "limit-rps=5",
                "proxy-body-size=8m",
                "proxy-buffering=on",
                "session-cookie-secure=true",
            ]
        );
    }

    #[test]
    fn wrong_policies() {
        let target = json!([{ "group": GROUP, "kind": "HTTPRoute", "name": "a" }]);
        for spec in [
            json!(null),
            json!({}),
            json!({ "targetRefs": target, "snippet": "return 200;" }),
            json!({ "targetRefs": target, "limit": { "rpx": 5 } }),
            json!({ "targetRefs": target, "limit": { "rps": "5" } }),
            json!({ "targetRefs": target, "limit": 5 }),
            json!({ "targetRefs": target, "externalAuth": { "url": "" } }),
            json!({ "targetRefs": target, "allowlistSourceRange": [] }),
            json!({ "targetRefs": target, "allowlistSourceRange": ["10.0.0.1,10.0.0.2"] }),
            json!({ "targetRefs": [{ "group": GROUP, "kind": "TCPRoute", "name": "a" }] }),
            json!({ "targetRefs": [{ "group": "", "kind": "Service", "name": "a" }] }),
        ] {
            assert_eq!(read(&spec).faults.len(), 1, "{spec}");
        }
    }
}
