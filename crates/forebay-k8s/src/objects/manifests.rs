//! Objects from YAML (or JSON, which is YAML) texts, for `render` and `audit`.

use super::set::{Key, Kind, Object};
use crate::gateway::GatewayKind;
use serde_json::Value;

/// An object and its place in a text.
#[derive(Clone, Debug)]
pub struct Document {
    /// The object.
    pub object: Object,
    /// Line of the text at which its document begins, from 1.
    pub line: usize,
}

/// An object of the Gateway API and its place in a text.
#[derive(Clone, Debug)]
pub struct GatewayDocument {
    /// Kind.
    pub kind: GatewayKind,
    /// Namespace and name.
    pub key: Key,
    /// The object as it is written.
    pub value: Value,
    /// Line of the text at which its document begins, from 1.
    pub line: usize,
}

/// A document that was not read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Line of the text at which the document begins, from 1.
    pub line: usize,
    /// Reason.
    pub reason: String,
    /// It is an object of another kind, which says nothing against the text.
    pub other_kind: bool,
}

/// Objects of a text.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    /// Objects of the kinds that are read.
    pub documents: Vec<Document>,
    /// Objects of the Gateway API.
    pub gateway: Vec<GatewayDocument>,
    /// The rest.
    pub skipped: Vec<Skipped>,
}

/// Objects in a `List` beyond this are not read.
const MAX_ITEMS: usize = 200_000;

impl Manifests {
    /// Reads the documents of a text. Objects in a namespaced kind without a namespace get `default`.
    pub fn read(text: &str) -> Manifests {
        let mut manifests = Manifests::default();
        for (line, part) in documents(text) {
            manifests.document(line, &part);
        }
        manifests
    }

    fn document(&mut self, line: usize, text: &str) {
        if text.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#')) {
            return;
        }
        match yaml(text) {
            Ok(value) => self.value(line, value),
            Err(error) => {
                let template = text.contains("{{");
                let reason = if template {
                    "it is a Helm template: render it with `helm template` first".into()
                } else {
                    error
                };
                self.skip(line, reason);
            }
        }
    }

    fn skip(&mut self, line: usize, reason: String) {
        self.skipped.push(Skipped { line, reason, other_kind: false });
    }

    fn value(&mut self, line: usize, value: Value) {
        if value.is_null() {
            return;
        }
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if kind.is_empty() {
            return self.skip(line, "it is no Kubernetes object: it has no \"kind\"".into());
        }
        if kind.ends_with("List") && value.get("items").is_some_and(Value::is_array) {
            return self.list(line, value);
        }
        if let Some(kind) = GatewayKind::find(&api_version, &kind) {
            let value = with_namespace(kind.namespaced(), value);
            let word = |pointer| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let key = Key::new(word("/metadata/namespace"), word("/metadata/name"));
            return self.gateway.push(GatewayDocument { kind, key, value, line });
        }
        let Some(found) = Kind::find(&api_version, &kind) else {
            let reason = if kind == "Ingress" {
                format!("its apiVersion is \"{api_version}\"; \"networking.k8s.io/v1\" is read")
            } else {
                format!("a {kind} of {api_version} is not read")
            };
            return self.skipped.push(Skipped { line, reason, other_kind: kind != "Ingress" });
        };
        match Object::of(found, with_namespace(found.namespaced(), value)) {
            Ok(object) => self.documents.push(Document { object, line }),
            Err(error) => self.skip(line, format!("the {kind} cannot be read: {error}")),
        }
    }

    fn list(&mut self, line: usize, mut value: Value) {
        let items = value.get_mut("items").map(Value::take);
        for item in
            items.and_then(|v| if let Value::Array(a) = v { Some(a) } else { None }).unwrap_or_default()
        {
            if self.documents.len() + self.gateway.len() >= MAX_ITEMS {
                return self.skip(line, format!("the list has more than {MAX_ITEMS} items"));
            }
            // A list in a list is none of the API.
            let nested = item.get("items").is_some();
            if !nested {
                self.value(line, item);
            }
        }
    }
}

fn with_namespace(namespaced: bool, mut value: Value) -> Value {
    if !namespaced {
        return value;
    }
    if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
        let given = metadata.get("namespace").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
        if !given {
            metadata.insert("namespace".into(), Value::String("default".into()));
        }
    }
    value
}

/// Reads one YAML document.
///
/// # Errors
/// In the parser's words, on one line.
pub fn yaml(text: &str) -> Result<Value, String> {
    serde_saphyr::from_str::<Value>(text).map_err(|e| {
        let text = e.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    })
}

/// Cuts a text at its `---` lines. Gives the line of each part and its text.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut parts = vec![(1, String::new())];
    for (index, line) in text.lines().enumerate() {
        let separator = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r']));
        if separator {
            // Content may follow on the same line.
            let rest = line.get(3..).unwrap_or_default().trim_start();
            let rest = if rest.starts_with('#') { "" } else { rest };
            parts.push((index + 1, format!("{rest}\n")));
        } else if let Some((_, part)) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
}
