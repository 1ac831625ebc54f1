//! The pages docs/kubernetes-annotations.md and docs/kubernetes-configmap.md, printed from the tables.

use crate::annotations::{self, Risk, Verdict};
use crate::cases::shown_by;
use crate::settings;

/// Begins both pages.
const PRINTED: &str = "<!-- Printed by `cargo run -p forebay-k8s --example tables_md`. Do not edit. -->\n";

/// Explains the last column.
const SHOWN: &str = "The column *shown by* names the case in `crates/forebay/tests/ingress/` that shows it, as `TABLE: CASE`; `written` is the table \
                     of lines of the configuration that values become. Nothing works without a case or a reason.\n\n";

fn verdict(verdict: Verdict) -> (&'static str, String) {
    match verdict {
        Verdict::Works => ("works", String::new()),
        Verdict::Differs(how) if how.starts_with("accepted without effect") => ("ignored", how.to_owned()),
        Verdict::Differs(how) => ("differs", how.to_owned()),
        Verdict::Refused(why) => ("refused", why.to_owned()),
    }
}

/// Returns a text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

fn code(text: &str) -> String {
    // Long defaults, such as lists of types, stand in the documentation of nginx.
    let short: String = text.chars().take(60).collect();
    match text {
        "" => String::new(),
        _ if short.len() < text.len() => format!("`{}...`", cell(&short)),
        _ => format!("`{}`", cell(text)),
    }
}

fn counts(verdicts: impl Iterator<Item = Verdict> + Clone) -> String {
    let count = |name: &str| verdicts.clone().filter(|v| verdict(*v).0 == name).count();
    let words = ["works", "differs", "ignored", "refused"].map(|name| format!("{} {name}", count(name)));
    words.join(", ")
}

/// Returns the page of annotations.
pub fn annotations() -> String {
    let mut page = String::from(PRINTED);
    page.push_str("# Annotations of Ingresses\n\n");
    page.push_str(
        "The annotations of ingress-nginx, under `nginx.ingress.kubernetes.io/` or `forebay.io/`, and what Forebay does with each. \
         The columns *value* and *default* say what may be written and what holds without it; *risk* is compared with \
         `annotations-risk-level` of the ConfigMap. An annotation marked with ● decides on access: if its value is refused, the paths \
         of the Ingress answer 503 instead of being served without the check.\n\n",
    );
    let rows = annotations::ROWS;
    page.push_str(&format!("{} annotations: {}.\n\n", rows.len(), counts(rows.iter().map(|r| r.verdict))));
    page.push_str(SHOWN);
    page.push_str("| Annotation | Value | Default | Risk | Verdict | How, or why not | Shown by |\n| --- | --- | --- | --- | --- | --- | --- |\n");
    for row in rows {
        let (word, how) = verdict(row.verdict);
        let aliases: String = row.aliases.iter().map(|a| format!(", `{a}`")).collect();
        let access = if row.access { " ●" } else { "" };
        page.push_str(&format!(
            "| `{}`{aliases}{access} | {} | {} | {} | {word} | {} | {} |\n",
            row.name,
            row.value.shape(),
            code(row.default),
            row.risk.as_str(),
            cell(&how),
            cell(shown_by(&format!("@{}", row.name)).unwrap_or_default())
        ));
    }
    page.push_str("\n## Our own\n\nThese are under `forebay.io/` only.\n\n");
    page.push_str("| Annotation | Value | Default |\n| --- | --- | --- |\n");
    for row in annotations::OWN {
        page.push_str(&format!("| `{}` | {} | {} |\n", row.name, row.value.shape(), code(row.default)));
    }
    page
}

/// Returns the page of keys.
pub fn configmap() -> String {
    let mut page = String::from(PRINTED);
    page.push_str("# Keys of the ConfigMap\n\n");
    page.push_str(
        "The keys of ingress-nginx's ConfigMap (`--configmap`), and what Forebay does with each. A value that is not valid, or that the \
         server does not accept, is set aside with an Event, and the default stays; all others have effect. A key marked with ● decides on \
         access: its last value that worked stays, and without one all paths of Ingresses answer 503. The same holds for a snippet with a \
         directive that decides on access, such as `deny`, `auth_basic` or `return`. `annotations-risk-level` falls back to `Low`.\n\n",
    );
    let rows = settings::ROWS;
    page.push_str(&format!("{} keys: {}.\n\n", rows.len(), counts(rows.iter().map(|r| r.verdict))));
    page.push_str(SHOWN);
    page.push_str("| Key | Value | Default | Verdict | How, or why not | Shown by |\n| --- | --- | --- | --- | --- | --- |\n");
    for row in rows {
        let (word, how) = verdict(row.verdict);
        let trusted = if row.risk == Risk::Critical {
            " Only whom you trust with the server may write it."
        } else {
            ""
        };
        page.push_str(&format!(
            "| `{}`{} | {} | {} | {word} | {}{trusted} | {} |\n",
            row.name,
            if settings::closes(row.name) { " ●" } else { "" },
            row.value.shape(),
            code(row.default),
            cell(&how),
            cell(shown_by(row.name).unwrap_or_default())
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The pages in docs/ are what the tables say.
    #[test]
    fn the_pages_are_current() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        for (name, page) in
            [("kubernetes-annotations.md", annotations()), ("kubernetes-configmap.md", configmap())]
        {
            let there = std::fs::read_to_string(docs.join(name)).unwrap_or_default();
            assert!(there == page, "docs/{name} is old: cargo run -p forebay-k8s --example tables_md");
        }
    }

    /// Keys that ingress-nginx does not have.
    const OWN_KEYS: [&str; 1] = ["use-http3"];

    /// The tables have every name of ingress-nginx once.
    #[test]
    fn the_tables_are_complete() {
        let annotations: BTreeSet<&str> = annotations::ROWS.iter().map(|r| r.name).collect();
        assert_eq!((annotations::ROWS.len(), annotations.len()), (136, 136));
        let aliases: Vec<&str> = annotations::ROWS.iter().flat_map(|r| r.aliases).copied().collect();
        assert!(aliases.iter().all(|a| !annotations.contains(a)));
        let of_others = settings::ROWS.iter().map(|r| r.name).filter(|name| !OWN_KEYS.contains(name));
        let (count, keys): (usize, BTreeSet<&str>) = (of_others.clone().count(), of_others.collect());
        assert_eq!((count, keys.len()), (209, 209));
        assert_eq!(names(include_str!("../tests/annotations.txt")), annotations);
        assert_eq!(names(include_str!("../tests/keys.txt")), keys);
    }

    fn names(text: &str) -> BTreeSet<&str> {
        text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).collect()
    }

    /// A name that is said to work is read somewhere.
    #[test]
    fn supported_fields_are_read() {
        let mut sources = String::new();
        let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("sources").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.ends_with("rows.rs") {
                    sources.push_str(&std::fs::read_to_string(path).expect("text"));
                }
            }
        }
        let annotations = annotations::ROWS.iter().map(|r| (r.name, r.verdict));
        let keys = settings::ROWS.iter().map(|r| (r.name, r.verdict));
        for (name, _) in annotations.chain(keys).filter(|(_, v)| *v == Verdict::Works) {
            assert!(sources.contains(&format!("\"{name}\"")), "{name}");
        }
    }

    /// Defaults are values themselves.
    #[test]
    fn defaults_are_valid() {
        let known = crate::variables::Known::new();
        for row in annotations::ROWS.iter().filter(|r| !r.default.is_empty()) {
            assert_eq!(row.value.check(row.default, &known), Ok(()), "{}", row.name);
        }
        for row in settings::ROWS.iter().filter(|r| !r.default.is_empty()) {
            assert_eq!(row.value.check(row.default, &known), Ok(()), "{}", row.name);
        }
    }
}
