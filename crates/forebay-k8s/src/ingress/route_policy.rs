//! The policy of a RoutePolicy, made of the annotations that its fields stand for. It can do what annotations of an Ingress can.

use super::{Globals, HostPath, Making, Parsed, sticky};
use crate::annotations::{Annotations, PREFIX};
use crate::groups::{Balance, Sticky};
use crate::model::{File, Policy};
use crate::objects::{Ingress, Key, Metadata, Objects};
use crate::problem::{Problem, Severity};
use crate::value::parse_bool;
use crate::view::View;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What annotations become for routes.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoutePolicy {
    /// Checks, settings and fields.
    pub policy: Policy,
    /// Cookie that names the server.
    pub sticky: Option<Sticky>,
    /// Way to choose a server, if the annotations name one.
    pub balance: Option<Balance>,
    /// The service of the ConfigMap is asked, or not, where no policy has one.
    pub general_authority: Option<bool>,
    /// Files that the directives name.
    pub files: Vec<File>,
    /// What is refused. Anything of it closes the routes.
    pub refused: Vec<String>,
    /// What works in another way than it says.
    pub differs: Vec<String>,
}

/// Makes the policy of annotations, whose names come without a prefix.
pub(crate) fn route_policy(
    metadata: &Metadata,
    annotations: &BTreeMap<String, String>,
    objects: &Objects,
    globals: &Globals,
) -> RoutePolicy {
    let mut problems = Vec::new();
    let parsed = annotated(metadata, annotations, globals, &mut problems);
    let view = View::new(objects, &globals.options.judge);
    let mut making = Making::new(globals, &view);
    making.problems = problems;
    making.closed = parsed.annotations.closed;
    let mut policy = Policy::clone(&making.policy(&parsed, true));
    let a = &parsed.annotations;
    // Those of the ConfigMap hold where no policy has any.
    if a.get("allowlist-source-range").is_none() {
        policy.networks.allow.clear();
    }
    policy.errors = None;
    let has_balance = a.get("load-balance").is_some() || a.get("upstream-hash-by").is_some();
    let mut made = RoutePolicy {
        policy,
        sticky: affinity(&parsed),
        balance: has_balance.then(|| super::balance(&parsed, &globals.settings)),
        files: making.files,
        general_authority: annotations.get("enable-global-auth").and_then(|text| parse_bool(text)),
        ..RoutePolicy::default()
    };
    made.report(making.problems);
    if making.closed && made.refused.is_empty() {
        made.refused.push("a check of access cannot be made".into());
    }
    made
}

/// Makes an Ingress that has annotations and nothing else.
fn annotated(
    metadata: &Metadata,
    annotations: &BTreeMap<String, String>,
    globals: &Globals,
    problems: &mut Vec<Problem>,
) -> Parsed {
    let full = annotations.iter().map(|(name, value)| (format!("{PREFIX}/{name}"), value.clone()));
    let mut full: BTreeMap<String, String> = full.collect();
    // The service of the ConfigMap is asked where no policy has one, which is not known here.
    full.insert(format!("{PREFIX}/enable-global-auth"), "false".into());
    let metadata = Metadata { annotations: full, ..metadata.clone() };
    // No Ingress has such a name, so that no zone or file of one has the name of another.
    let key = Key::new(metadata.namespace.as_str(), format!("policy_{}", metadata.name));
    let ingress = Ingress { metadata, ..Ingress::default() };
    Parsed {
        key,
        annotations: Annotations::read(&ingress, &globals.options, &globals.settings, problems),
        ingress: Arc::new(ingress),
        rules: Vec::new(),
        problems: Vec::new(),
        canary: false,
        stream_snippet: Vec::new(),
        revision: 0,
    }
}

impl RoutePolicy {
    /// Takes the problems of annotations, without what they say about Ingresses.
    fn report(&mut self, problems: Vec<Problem>) {
        for problem in problems {
            let field = problem.field.trim_start_matches("metadata.annotations[").trim_end_matches(']');
            let name = field.split_once('/').map_or(field, |(_, name)| name);
            let text = problem.text.replace("; the paths of the Ingress answer 503", "");
            let text = format!("{name}: {text}");
            match problem.severity {
                Severity::Refused => self.refused.push(text),
                Severity::Differs | Severity::Ignored => self.differs.push(text),
            }
        }
    }
}

fn affinity(parsed: &Parsed) -> Option<Sticky> {
    let root = crate::model::PathMatch::Prefix("/".into());
    sticky(parsed, &HostPath { path: root, slash: false, backend: None, field: String::new() })
}
