//! The manual: docs/doctor.md, and what `--explain` prints.

use crate::fix::Safety;
use crate::rule::{Example, FAMILIES, Rule, rule, rules};
use forebay_conf::tree::FileId;

/// Makes docs/doctor.md.
pub fn manual() -> String {
    let mut out = include_str!("../data/doctor.head.md").to_owned();
    for family in FAMILIES {
        out.push_str(&format!("\n## {}\n", family.heading));
        for rule in rules().filter(|r| r.family == family.name) {
            out.push_str(&section(rule));
        }
    }
    out
}

/// Returns the section of the manual about a rule.
fn section(rule: &Rule) -> String {
    let Rule { id, title, why, instead, holds, evidence, .. } = rule;
    let mut out = format!(
        "\n### {id}\n\n**{title}** ({}; {holds}{})\n\n{why}\n\nInstead: {instead}\n",
        rule.severity.name(),
        if rule.is_optional { "; shown by `--all`" } else { "" }
    );
    out.push_str(&format!("\nEvidence: {evidence}. {}\n", fix_of(rule)));
    if let Some(Example { bad, good }) = &rule.example {
        out.push_str(&format!(
            "\n```nginx\n# with it\n{}# without\n{}```\n",
            formatted(bad),
            formatted(good)
        ));
    }
    out
}

fn fix_of(rule: &Rule) -> &'static str {
    match rule.fix {
        Some((Safety::Safe, _)) => "`--fix` mends it.",
        Some((Safety::Unsafe, _)) => "`--fix --unsafe-fixes` mends it.",
        None => "Mended by hand.",
    }
}

fn formatted(example: &str) -> String {
    forebay_conf::fmt::format(example.as_bytes(), FileId::COMMAND_LINE)
        .map_or_else(|_| format!("{example}\n"), |text| String::from_utf8_lossy(&text).into_owned())
}

/// Describes a rule for a terminal; `None` if there is none of this name.
pub fn explained(id: &str) -> Option<String> {
    let rule = rule(id)?;
    let Rule { title, why, instead, holds, evidence, .. } = rule;
    let mut out = format!(
        "{title} ({})\n\n{why}\n\nInstead: {instead}\nHolds for: {holds}\nEvidence: {evidence}\n{}\n",
        rule.severity.name(),
        fix_of(rule).replace('`', "")
    );
    if let Some(Example { bad, good }) = &rule.example {
        out.push_str(&format!("\nWith it:\n{}\nWithout:\n{}", indented(bad), indented(good)));
    }
    Some(out)
}

fn indented(example: &str) -> String {
    formatted(example).lines().map(|line| format!("    {line}\n")).collect()
}

/// Makes docs/security.md.
pub fn security_manual() -> String {
    crate::checks::faults::manual()
}
