//! Fields of requests to a backend and of answers.

use super::backends::Protocol;
use super::matches::text;
use super::{literal, node};
use crate::gateway::objects::HeaderModifier;
use crate::groups::short_hash;
use crate::ingress::Globals;
use crate::tree::other_spellings;
use forebay_conf::Node;
use std::collections::BTreeSet;

/// Most changes of a filter.
const MOST_CHANGES: usize = 64;

/// Fields of requests to a backend.
pub(super) struct Headers {
    directive: &'static str,
    fields: Vec<(String, String)>,
    /// Names of those that this rule sets.
    own: BTreeSet<String>,
}

impl Headers {
    /// Returns the fields that all requests have. They are those of Ingresses, so that the same fields of a client are believed.
    pub(super) fn new(protocol: Protocol, globals: &Globals) -> Headers {
        let directive = if protocol == Protocol::Grpc { "grpc_set_header" } else { "proxy_set_header" };
        // Over HTTP/2 there is no Connection field.
        let kept = |(name, _): &&(String, String)| {
            protocol == Protocol::Http || !["Upgrade", "Connection"].contains(&name.as_str())
        };
        let fields = globals.headers.iter().filter(kept).cloned().collect();
        Headers { directive, fields, own: BTreeSet::new() }
    }

    /// Sets a field. The value may have variables.
    pub(super) fn set(&mut self, name: &str, value: String) {
        self.own.insert(name.to_owned());
        self.fields.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.fields.push((name.to_owned(), value));
    }

    /// Sets, adds and removes fields. `nodes` gets what an addition needs before.
    pub(super) fn change(&mut self, changes: &HeaderModifier, id: &str, nodes: &mut Vec<Node>) {
        for field in &changes.set {
            self.set(&field.name, literal(&field.value));
        }
        for field in &changes.add {
            let own =
                self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(&field.name)).map(|(_, v)| v.clone());
            let before =
                own.unwrap_or_else(|| format!("$http_{}", field.name.to_ascii_lowercase().replace('-', "_")));
            let variable = format!("$before_{id}_{}", short_hash(&field.name.to_ascii_lowercase()));
            nodes.push(node("set", [variable.as_str(), ""]));
            let value = node("set", [variable.clone(), format!("{before},")]);
            nodes.push(node("set", ["$before".to_owned(), before.clone()]));
            // A value of 0 counts, too.
            nodes.push(node("if", ["($before", "~", ".)"]).block(vec![value]));
            let braced = format!("${{{}}}", variable.trim_start_matches('$'));
            self.set(&field.name, format!("{braced}{}", literal(&field.value)));
        }
        for name in &changes.remove {
            self.set(name, String::new());
        }
    }

    /// Returns the same fields for a copy of the request, whose protocol is HTTP/1.
    pub(super) fn of_copy(&self, globals: &Globals) -> Vec<Node> {
        let mut copy = Headers::new(Protocol::Http, globals);
        for (name, value) in self.fields.iter().filter(|(name, _)| self.own.contains(name)) {
            copy.set(name, value.clone());
        }
        copy.nodes().collect()
    }

    /// Returns the directives. A field of a client does not stand beside one of the same name with `-` in place of `_`.
    pub(super) fn nodes(self) -> impl Iterator<Item = Node> {
        let removal = other_spellings(self.own.iter().map(String::as_str));
        let directive = self.directive;
        let set = self.fields.into_iter().map(move |(name, value)| node(directive, [name, value]));
        removal.into_iter().chain(set)
    }
}

/// Adds the directives that change fields of answers.
pub(super) fn answer_fields(changes: &HeaderModifier, nodes: &mut Vec<Node>) {
    for name in &changes.remove {
        nodes.push(node("more_clear_headers", [name.as_str()]));
    }
    for field in &changes.set {
        nodes.push(node("more_set_headers", [format!("{}: {}", field.name, literal(&field.value))]));
    }
    for field in &changes.add {
        nodes.push(node("add_header", [field.name.clone(), literal(&field.value), "always".into()]));
    }
}

/// Fields that say where a message ends or which connection it is for. To change them would let a request in behind another.
const OF_CONNECTION: &[&str] = &[
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Returns what cannot be done of changes.
pub(super) fn faults(changes: &HeaderModifier) -> Vec<String> {
    let mut faults = Vec::new();
    let count = changes.set.len() + changes.add.len() + changes.remove.len();
    if count > MOST_CHANGES {
        faults.push(format!("a filter changes more than {MOST_CHANGES} fields"));
        return faults;
    }
    let names = changes.set.iter().chain(&changes.add).map(|f| &f.name).chain(&changes.remove);
    for name in names {
        faults.extend(bad_name(name));
    }
    for field in changes.set.iter().chain(&changes.add) {
        faults.extend(text(&field.value).err());
    }
    if changes.remove.iter().any(|name| name.eq_ignore_ascii_case("host")) {
        faults.push("a request has a field Host".into());
    }
    let added = changes.add.iter().find(|f| f.name.contains(['_', '.']));
    if let Some(field) = added {
        faults.push(format!("the field \"{}\" can be set, but not added to", field.name));
    }
    faults
}

/// Returns why a field cannot be changed.
pub(super) fn bad_name(name: &str) -> Option<String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty() || name.len() > 256 || !name.bytes().all(allowed) {
        return Some(format!("the field \"{}\" cannot be changed", super::matches::shown(name)));
    }
    let own = OF_CONNECTION.iter().any(|own| name.eq_ignore_ascii_case(own));
    own.then(|| format!("the field \"{name}\" belongs to the connection"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::objects::NameValue;

    #[test]
    fn fields_that_cannot_be_changed() {
        let of = |name: &str, value: &str| {
            let field = NameValue { name: name.into(), value: value.into() };
            faults(&HeaderModifier { set: vec![field], ..HeaderModifier::default() }).len()
        };
        assert_eq!(of("X-A", "any $text"), 0);
        for (name, value) in [
            ("", "1"),
            ("X A", "1"),
            ("X:A", "1"),
            ("$http_host", "1"),
            ("*", "1"),
            ("X-A", "1\r\nX-B: 2"),
            ("Content-Length", "1"),
            ("transfer-encoding", "chunked"),
        ] {
            assert_eq!(of(name, value), 1, "{name:?} {value:?}");
        }
        assert_eq!(of("X-A", &"x".repeat(5000)), 1);
        let remove =
            HeaderModifier { remove: vec!["Host".into(), "X-*".into()], ..HeaderModifier::default() };
        assert_eq!(faults(&remove).len(), 2);
    }
}
