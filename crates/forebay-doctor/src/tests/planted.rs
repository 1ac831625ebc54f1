//! Planted faults: planted.faults has one of each kind that people make, written in other ways than the examples of the rules.
//! `== RULE` begins one; several rules are alternatives. An include is a file of its own behind `-- PATH`.

use super::{machine, target_of, whole};
use crate::*;
use std::path::Path;

/// Returns the rules that speak about a fault.
fn fired(text: &str, target: Target) -> Vec<String> {
    let mut parts = text.split("\n-- ");
    let main = whole(parts.next().unwrap_or_default().trim());
    let others = parts.filter_map(|part| part.split_once('\n'));
    let others = others.map(|(path, text)| (path.trim().to_owned(), text.to_owned()));
    let mut files = Files::recorded(std::iter::once(("/etc/n.conf".to_owned(), main)).chain(others));
    let parsed = forebay_conf::parse::parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
    let findings = examine(&Scene::new(&parsed.tree), &machine(), target);
    findings.into_iter().map(|f| f.rule.id.clone()).collect()
}

#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    let mut count = 0;
    for text in include_str!("planted.faults").split("\n== ").skip(1) {
        let (names, body) = text.split_once('\n').expect("a line of rules");
        let rules: Vec<&Rule> = names.split_whitespace().map(|id| rule(id).expect(id)).collect();
        let is_found = rules.iter().any(|rule| fired(body, target_of(rule)).contains(&rule.id));
        count += 1;
        if !is_found {
            missed.push(format!("{names}: {body}"));
        }
    }
    assert!(missed.is_empty(), "{} of {count} are missed:\n{}", missed.len(), missed.join("\n"));
    assert!(count >= 60, "{count}");
}
