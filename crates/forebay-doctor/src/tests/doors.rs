//! Faults of guards, upstreams, caches and fallbacks in other forms than the examples of the rules, and good practice beside them.

use super::{fired, machine};

const FAULTS: &str = include_str!("doors.faults");
const GOOD: &str = include_str!("doors.good.conf");

/// Rules of the checks in aims.rs, carriage.rs, doors.rs and stores.rs.
fn own_rules() -> impl Iterator<Item = &'static str> {
    use crate::checks::{aims, carriage, doors, stores};
    let tables = [aims::CHECKS, carriage::CHECKS, doors::CHECKS, stores::CHECKS];
    tables.into_iter().flatten().map(|(id, _)| *id)
}

#[test]
fn other_forms_are_found() {
    super::detours::assert_found(FAULTS);
}

#[test]
fn good_practice_is_left_alone() {
    let found = fired(GOOD, &machine());
    let own: Vec<_> = found.iter().filter(|(rule, _)| own_rules().any(|id| id == rule)).collect();
    assert!(own.is_empty(), "{own:?}");
}
