//! Faults of redirects, lists and second ways in other forms than the examples of the rules, and good practice beside them.

use super::{fired, machine};

const FAULTS: &str = include_str!("detours.faults");
const GOOD: &str = include_str!("detours.good.conf");

/// Rules of the checks in detours.rs, leaks.rs and tellings.rs.
fn own_rules() -> impl Iterator<Item = &'static str> {
    use crate::checks::{detours, leaks, tellings};
    [detours::CHECKS, leaks::CHECKS, tellings::CHECKS].into_iter().flatten().map(|(id, _)| *id)
}

/// Checks that each fault of a list is found by the rule that it stands under.
pub(super) fn assert_found(list: &str) {
    let host = machine();
    let faults = list.split("\n== ").skip(1).filter_map(|text| text.split_once('\n'));
    let mut count = 0;
    for (id, text) in faults {
        count += 1;
        let conf = format!("events {{ worker_connections 600; }} http {{ {text} }}");
        let found = fired(&conf, &host);
        assert!(found.iter().any(|(rule, _)| rule == id), "{id}: {text}: {found:?}");
    }
    assert!(count > 20, "{count}");
}

#[test]
fn other_forms_are_found() {
    assert_found(FAULTS);
}

#[test]
fn good_practice_is_left_alone() {
    let found = fired(GOOD, &machine());
    let own: Vec<_> = found.iter().filter(|(rule, _)| own_rules().any(|id| id == rule)).collect();
    assert!(own.is_empty(), "{own:?}");
}
