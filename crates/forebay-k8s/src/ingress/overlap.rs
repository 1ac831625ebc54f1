//! Hosts and paths that two Ingresses have, for the admission webhook: the younger one would not be served there.

use super::{PathMatch, path_match};
use crate::annotations::PREFIX;
use crate::objects::{Ingress, Kind};
use crate::options::Options;
use crate::problem::Problem;
use std::collections::BTreeMap;

/// Returns the problems of an Ingress whose paths one of the others has. Canaries are for paths of others, so they have none.
/// `before`: the Ingress as it was. Paths that it had then stay allowed, so that it can be changed.
pub fn overlaps<'a>(
    ingress: &Ingress,
    before: Option<&Ingress>,
    others: impl Iterator<Item = &'a Ingress>,
    options: &Options,
) -> Vec<Problem> {
    if is_canary(ingress, options) {
        return Vec::new();
    }
    let mut own: BTreeMap<(String, PathMatch), String> = paths(ingress).collect();
    for (place, _) in before.filter(|i| !is_canary(i, options)).into_iter().flat_map(paths) {
        own.remove(&place);
    }
    let same = |other: &Ingress| {
        (&other.metadata.namespace, &other.metadata.name)
            == (&ingress.metadata.namespace, &ingress.metadata.name)
    };
    let mut problems = Vec::new();
    for other in others.filter(|o| !same(o) && !is_canary(o, options)) {
        for (place, _) in paths(other) {
            let Some(field) = own.get(&place) else { continue };
            let (host, path) = place;
            let host = if host.is_empty() { "all hosts".to_owned() } else { format!("the host \"{host}\"") };
            let text = format!(
                "the path \"{}\" of {host} is taken by the Ingress {}/{}",
                path.path(),
                other.metadata.namespace,
                other.metadata.name
            );
            let problem = Problem::new(Kind::Ingress, &ingress.metadata, format!("{field}.path"), text);
            problems.push(problem.reason("PathConflict"));
        }
    }
    problems
}

fn is_canary(ingress: &Ingress, options: &Options) -> bool {
    [PREFIX, options.annotations_prefix.as_str()].iter().any(|prefix| {
        let text = ingress.metadata.annotations.get(&format!("{prefix}/canary"));
        text.is_some_and(|t| crate::value::parse_bool(t) == Some(true))
    })
}

/// Returns the hosts and paths of an Ingress, and their fields. The host is empty for all hosts.
fn paths(ingress: &Ingress) -> impl Iterator<Item = ((String, PathMatch), String)> + '_ {
    ingress.spec.rules.iter().enumerate().flat_map(|(i, rule)| {
        let host = rule.host.trim_end_matches('.').to_ascii_lowercase();
        rule.http.iter().flat_map(|http| &http.paths).enumerate().filter_map(move |(j, path)| {
            let kind = path.path_type.as_deref().unwrap_or("ImplementationSpecific");
            let found = path_match(&path.path, kind, false, false).ok()?;
            Some(((host.clone(), found), format!("spec.rules[{i}].http.paths[{j}]")))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ingress(name: &str, canary: &str, host: &str, path: &str, kind: &str) -> Ingress {
        let object = json!({
            "metadata": {"name": name, "namespace": "a", "annotations": {"nginx.ingress.kubernetes.io/canary": canary}},
            "spec": {"rules": [{"host": "first.test"}, {"host": host, "http": {"paths": [{
                "path": path, "pathType": kind, "backend": {"service": {"name": "web", "port": {"number": 80}}},
            }]}}]},
        });
        serde_json::from_value(object).expect("an Ingress")
    }

    #[test]
    fn the_same_place_is_found() {
        let old = ingress("old", "false", "a.test", "/x", "Prefix");
        for (name, canary, host, path, kind, found) in [
            ("new", "false", "a.test", "/x", "Prefix", true),
            ("new", "false", "A.test.", "/x/", "Prefix", true),
            ("new", "false", "b.test", "/x", "Prefix", false),
            ("new", "false", "a.test", "/y", "Prefix", false),
            ("new", "false", "a.test", "/x", "Exact", false),
            ("new", "true", "a.test", "/x", "Prefix", false),
            ("old", "false", "a.test", "/x", "Prefix", false),
        ] {
            let new = ingress(name, canary, host, path, kind);
            let problems = overlaps(&new, None, std::iter::once(&old), &Options::default());
            assert_eq!(!problems.is_empty(), found, "{name} {canary} {host} {path} {kind}");
            assert!(problems.iter().all(|p| p.field == "spec.rules[1].http.paths[0].path"));
        }
        let canary = ingress("old", "true", "a.test", "/x", "Prefix");
        let new = ingress("new", "false", "a.test", "/x", "Prefix");
        assert!(overlaps(&new, None, std::iter::once(&canary), &Options::default()).is_empty());
        // It had the path before.
        assert!(overlaps(&new, Some(&new), std::iter::once(&old), &Options::default()).is_empty());
        let was_canary = ingress("new", "true", "a.test", "/x", "Prefix");
        assert!(!overlaps(&new, Some(&was_canary), std::iter::once(&old), &Options::default()).is_empty());
    }
}
