//! Statuses of the Gateway API, as objects for server-side apply.

use super::objects::{GROUP, GatewayKind, ParentRef};
use crate::objects::{Key, Metadata};
use serde_json::{Value, json};

/// Something that a status says against its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// A condition does not hold. `false`: it holds, with a message.
    pub refused: bool,
    /// Reason of the condition.
    pub reason: String,
    /// Object, condition and message.
    pub text: String,
}

/// A status to write.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusUpdate {
    /// Kind of the object.
    pub kind: GatewayKind,
    /// Namespace and name.
    pub key: Key,
    /// The status, without times of transitions: they follow from a change of the status of a condition.
    pub status: Value,
}

impl StatusUpdate {
    /// Returns the path of the status, and the object to apply. `now` is the time of transitions (RFC 3339); those of conditions
    /// that `current` has with the same status are kept.
    pub fn request(&self, current: Option<&Value>, now: &str) -> (String, Value) {
        let namespace = match self.key.namespace.as_str() {
            "" => String::new(),
            namespace => format!("/namespaces/{namespace}"),
        };
        let (group, version, plural) = (self.kind.group(), self.kind.version(), self.kind.plural());
        let path = format!("/apis/{group}/{version}{namespace}/{plural}/{}/status", self.key.name);
        let mut status = self.status.clone();
        stamp(&mut status, current, now);
        keep_others(&mut status, current);
        let mut metadata = json!({ "name": self.key.name });
        if !self.key.namespace.is_empty() {
            metadata["namespace"] = json!(self.key.namespace);
        }
        let object = json!({
            "apiVersion": format!("{group}/{version}"),
            "kind": self.kind.name(),
            "metadata": metadata,
            "status": status,
        });
        (path, object)
    }

    /// Returns what the status says against the object, for people.
    pub fn complaints(&self) -> Vec<Complaint> {
        let mut all = Vec::new();
        let name = match self.key.namespace.as_str() {
            "" => self.key.name.clone(),
            _ => self.key.to_string(),
        };
        complain(&self.status, &format!("{} {name}: ", self.kind.name()), &mut all);
        all
    }

    /// Returns `true` if a status as the API server has it says the same.
    pub fn is_in(&self, current: Option<&Value>) -> bool {
        current.is_some_and(|current| contains(current, &self.status))
    }
}

/// Collects the conditions that do not hold, and those that hold with a message. `place` begins the text.
fn complain(value: &Value, place: &str, all: &mut Vec<Complaint>) {
    let word =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let own = match value.get("parentRef").or_else(|| value.get("ancestorRef")) {
        Some(parent) => format!("{place}{} {}: ", word(parent, "kind"), word(parent, "name")),
        None if value.get("attachedRoutes").is_some() => format!("{place}listener {}: ", word(value, "name")),
        None => place.to_owned(),
    };
    for condition in value.get("conditions").and_then(Value::as_array).into_iter().flatten() {
        let (kind, reason, text) =
            (word(condition, "type"), word(condition, "reason"), word(condition, "message"));
        // The conditions `Accepted` and `ResolvedRefs` say the reason.
        let repeats = kind == "Conflicted" || kind == "Programmed" && text.starts_with("see the other");
        let holds = word(condition, "status") == "True";
        if !(repeats || holds && text.is_empty()) {
            let not = if holds { "" } else { "not " };
            let text = format!("{own}{not}{kind} ({reason}): {text}");
            all.push(Complaint { refused: !holds, reason, text });
        }
    }
    for list in ["listeners", "parents", "ancestors"] {
        let entries = value.get(list).and_then(Value::as_array);
        entries.into_iter().flatten().for_each(|entry| complain(entry, &own, all));
    }
}

/// Adds the entries of other controllers: these lists are written as a whole.
fn keep_others(status: &mut Value, current: Option<&Value>) {
    for list in ["parents", "ancestors"] {
        let Some(ours) = status.get_mut(list).and_then(Value::as_array_mut) else { continue };
        let name = ours.first().and_then(|entry| entry.get("controllerName")).cloned();
        let all = current.and_then(|c| c.get(list)).and_then(Value::as_array);
        let others = all.into_iter().flatten().filter(|entry| entry.get("controllerName") != name.as_ref());
        let others: Vec<Value> = others.cloned().collect();
        ours.extend(others);
    }
}

/// Sets `lastTransitionTime` of all conditions.
fn stamp(value: &mut Value, current: Option<&Value>, now: &str) {
    match value {
        Value::Object(fields) => {
            let is_condition = fields.contains_key("type") && fields.contains_key("reason");
            for (name, field) in fields.iter_mut() {
                stamp(field, current.and_then(|c| c.get(name)), now);
            }
            if is_condition {
                let before = current.filter(|c| c.get("status") == fields.get("status"));
                let time = before.and_then(|c| c.get("lastTransitionTime")).cloned();
                fields.insert("lastTransitionTime".to_owned(), time.unwrap_or_else(|| json!(now)));
            }
        }
        Value::Array(items) => {
            for item in items {
                let same =
                    current.and_then(Value::as_array).and_then(|all| all.iter().find(|c| is_same(c, item)));
                stamp(item, same, now);
            }
        }
        _ => {}
    }
}

/// Returns `true` if two entries of a list are about the same: by type, name or parent.
fn is_same(a: &Value, b: &Value) -> bool {
    ["type", "name"].iter().any(|key| a.get(key).is_some() && a.get(key) == b.get(key))
        || ["parentRef", "ancestorRef"].iter().any(|key| a.get(key).is_some() && a.get(key) == b.get(key))
}

/// Returns `true` if all of `wanted` is in `current`, which may have more fields, such as times.
fn contains(current: &Value, wanted: &Value) -> bool {
    match (current, wanted) {
        (Value::Object(current), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| current.get(key).is_some_and(|c| contains(c, value)))
        }
        (Value::Array(current), Value::Array(wanted)) => {
            // Entries of other controllers may be among them, and the order is not ours.
            let ours = |c: &&Value| {
                c.get("controllerName").is_none()
                    || wanted.iter().any(|w| w.get("controllerName") == c.get("controllerName"))
            };
            let current: Vec<&Value> = current.iter().filter(ours).collect();
            current.len() == wanted.len() && wanted.iter().all(|w| current.iter().any(|c| contains(c, w)))
        }
        (current, wanted) => current == wanted,
    }
}

/// A condition.
pub(crate) fn condition(metadata: &Metadata, kind: &str, holds: bool, reason: &str, message: &str) -> Value {
    json!({
        "type": kind,
        "status": if holds { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "observedGeneration": metadata.generation,
    })
}

/// A reference to a Gateway as a status repeats it.
pub(crate) fn parent(reference: &ParentRef) -> Value {
    let mut value = json!({
        "group": reference.group.as_deref().unwrap_or(GROUP),
        "kind": reference.kind.as_deref().unwrap_or("Gateway"),
        "name": reference.name,
    });
    if let Some(namespace) = &reference.namespace {
        value["namespace"] = json!(namespace);
    }
    if let Some(section) = &reference.section_name {
        value["sectionName"] = json!(section);
    }
    if let Some(port) = reference.port {
        value["port"] = json!(port);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_change_with_the_status_of_a_condition() {
        let metadata = Metadata { generation: 3, ..Metadata::default() };
        let update = StatusUpdate {
            kind: GatewayKind::Gateway,
            key: Key::new("edge", "public"),
            status: json!({ "conditions": [condition(&metadata, "Accepted", true, "Accepted", "")] }),
        };
        let current = |status: &str| json!({ "conditions": [{ "type": "Accepted", "status": status, "lastTransitionTime": "then" }] });
        let time = |current: &Value| {
            update.request(Some(current), "now").1["status"]["conditions"][0]["lastTransitionTime"].clone()
        };
        assert_eq!(time(&current("True")), "then");
        assert_eq!(time(&current("False")), "now");
        let (path, object) = update.request(None, "now");
        assert_eq!(path, "/apis/gateway.networking.k8s.io/v1/namespaces/edge/gateways/public/status");
        assert!(update.is_in(Some(&object["status"])));
        assert!(!update.is_in(Some(&current("True"))));
        assert!(!update.is_in(None));
    }

    #[test]
    fn entries_of_other_controllers_do_not_count() {
        let update = StatusUpdate {
            kind: GatewayKind::HttpRoute,
            key: Key::new("a", "b"),
            status: json!({ "parents": [{ "controllerName": "us", "x": 1 }] }),
        };
        let both =
            json!({ "parents": [{ "controllerName": "them" }, { "controllerName": "us", "x": 1, "y": 2 }] });
        assert!(update.is_in(Some(&both)));
        assert!(!update.is_in(Some(&json!({ "parents": [{ "controllerName": "us", "x": 2 }] }))));
    }
}
