//! Events about objects (events.k8s.io/v1), each once.

use crate::api::{Api, MANAGER};
use forebay_k8s::{Problem, Severity};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Events that are remembered as sent.
const REMEMBERED: usize = 50_000;
/// Longest note of an Event, bytes (the API server's limit is 1024).
const LONGEST: usize = 1000;

/// Events that were sent.
#[derive(Debug, Default)]
pub(crate) struct Events {
    sent: HashSet<u64>,
}

impl Events {
    /// Returns at most `most` Events that have not been sent, and counts them as sent.
    pub(crate) fn due(&mut self, problems: &[Problem], reporter: &str, most: usize) -> Vec<Value> {
        if self.sent.len() > REMEMBERED {
            self.sent.clear();
        }
        let mut due = Vec::new();
        for problem in problems.iter().filter(|p| p.severity > Severity::Ignored) {
            if due.len() == most {
                break;
            }
            let hash = hash(problem);
            if self.sent.insert(hash) {
                due.push(event(problem, hash, reporter));
            }
        }
        due
    }
}

fn hash(problem: &Problem) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&problem.uid, &problem.key.namespace, &problem.key.name, &problem.field, &problem.text)
        .hash(&mut hasher);
    hasher.finish()
}

/// Returns the Event of a problem. Its name follows from the problem, so that another replica's attempt to create it fails.
fn event(problem: &Problem, hash: u64, reporter: &str) -> Value {
    let namespace = if problem.key.namespace.is_empty() { "default" } else { &problem.key.namespace };
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": format!("{}.{hash:016x}", problem.key.name), "namespace": namespace },
        "eventTime": now,
        "reportingController": format!("forebay.io/{MANAGER}"),
        "reportingInstance": reporter,
        "action": "Translate",
        "reason": problem.reason,
        "type": if problem.severity == Severity::Refused { "Warning" } else { "Normal" },
        "note": cut(problem_text(problem)),
        "regarding": {
            "apiVersion": problem.kind.api_version(),
            "kind": problem.kind.name(),
            "namespace": problem.key.namespace,
            "name": problem.key.name,
            "uid": problem.uid,
        },
    })
}

fn problem_text(problem: &Problem) -> String {
    let mut text = format!("{}: {}", problem.field, problem.text);
    if let (Some((line, column)), Some(shown)) = (problem.place, &problem.shown) {
        text.push_str(&format!(" (line {line}, column {column})\n{shown}"));
    }
    text
}

fn cut(mut text: String) -> String {
    let mut end = LONGEST.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// Creates Events. One that exists already was created by another replica, or before a restart.
pub(crate) async fn send(api: &Api, events: Vec<Value>, log: impl Fn(&str)) {
    for event in events {
        let namespace = event.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        match api.create(&path, &event).await {
            Ok(_) => {}
            Err(error) if error.is_conflict() => {}
            Err(error) => log(&format!("an Event could not be created: {error}")),
        }
    }
}
