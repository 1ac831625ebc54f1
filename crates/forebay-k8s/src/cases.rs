//! The cases that show what annotations and keys do. The pages of the documentation name them.

use std::collections::BTreeMap;

/// Tables of requests and answers, run against a server.
const TABLES: &[(&str, &str)] = &[
    ("access", include_str!("../../forebay/tests/ingress/access.cases")),
    ("identity", include_str!("../../forebay/tests/ingress/identity.cases")),
    ("ports", include_str!("../../forebay/tests/ingress/ports.cases")),
    ("proxying", include_str!("../../forebay/tests/ingress/proxying.cases")),
    ("protocols", include_str!("../../forebay/tests/ingress/protocols.cases")),
    ("proxy-protocol", include_str!("../../forebay/tests/ingress/proxy-protocol.cases")),
    ("routing", include_str!("../../forebay/tests/ingress/routing.cases")),
    ("settings", include_str!("../../forebay/tests/ingress/settings.cases")),
    ("expected", include_str!("../../forebay/tests/ingress/expected.cases")),
    ("expected-settings", include_str!("../../forebay/tests/ingress/expected-settings.cases")),
    ("expected-plain", include_str!("../../forebay/tests/ingress/expected-plain.cases")),
    ("logs", include_str!("../../forebay/tests/ingress/logs.cases")),
    ("upstreams", include_str!("../../forebay/tests/ingress/upstreams.cases")),
    ("backends", include_str!("../../forebay/tests/ingress/backends.cases")),
    ("snippets", include_str!("../../forebay/tests/ingress/snippets.cases")),
];

/// Table of lines of the configuration that values become.
const WRITTEN: &str = include_str!("../../forebay/tests/ingress/written.cases");

/// Returns what shows that an annotation (`@NAME`) or a key (`NAME`) works: the name of a case, or why there is none.
pub fn shown_by(name: &str) -> Option<&'static str> {
    use std::sync::OnceLock;
    static ALL: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    ALL.get_or_init(all).get(name).map(String::as_str)
}

fn all() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (table, text) in TABLES {
        let mut case = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("== ") {
                case = Some(name);
            } else if let Some((name, _)) = line.split_once(": ") {
                match case {
                    // Keys stand before the first case, and hold in all of them.
                    None => found.entry(name.to_owned()).or_insert_with(|| format!("{table}: all cases")),
                    Some(case) if name.starts_with('@') => {
                        // `@forebay.io/NAME` is an annotation, too.
                        let short = name.rsplit_once('/').map_or(name.to_owned(), |(_, n)| format!("@{n}"));
                        found.entry(short).or_insert_with(|| format!("{table}: {case}"))
                    }
                    Some(_) => continue,
                };
            }
        }
    }
    for line in WRITTEN.lines().filter(|l| !l.starts_with('#')) {
        let Some((name, rest)) = line.split_once(": ") else { continue };
        if let Some(name) = name.strip_prefix('~') {
            found.entry(name.to_owned()).or_insert_with(|| format!("no case: {rest}"));
        } else {
            found.entry(name.to_owned()).or_insert_with(|| "written".to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotations::{self, Verdict};
    use crate::settings;

    /// Nothing is said to work that no case shows.
    #[test]
    fn supported_rows_have_a_case_or_a_reason() {
        let annotations = annotations::ROWS.iter().map(|r| (format!("@{}", r.name), r.verdict));
        let keys = settings::ROWS.iter().map(|r| (r.name.to_owned(), r.verdict));
        let bare: Vec<String> = annotations
            .chain(keys)
            .filter(|(name, verdict)| *verdict == Verdict::Works && shown_by(name).is_none())
            .map(|(name, _)| name)
            .collect();
        assert!(bare.is_empty(), "no case in crates/forebay/tests/ingress: {bare:?}");
    }

    #[test]
    fn a_reason_is_only_for_what_has_no_case() {
        let reasons = WRITTEN.lines().filter_map(|l| l.strip_prefix('~')?.split_once(": "));
        for (name, _) in reasons {
            assert!(shown_by(name).is_some_and(|by| by.starts_with("no case")), "{name} has a case");
        }
    }
}
