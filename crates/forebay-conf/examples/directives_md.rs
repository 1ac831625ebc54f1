//! Prints docs/directives.md from the table of directives:
//! `cargo run -q -p forebay-conf --example directives_md > docs/directives.md`.

use forebay_conf::grammar::{self, Arity, Row, Status, Support};
use std::fmt::Write;

#[allow(dead_code)] // A test includes this file for `render`.
fn main() {
    print!("{}", render());
}

const HEAD: &str = "\
# Directives

Every directive that nginx 1.31.5 documents, and what Forebay does with it. This page is generated from
`crates/forebay-conf/data/directives.tsv`; do not edit it, run

    cargo run -q -p forebay-conf --example directives_md > docs/directives.md

A directive that several modules have (`allow` in http and in stream) has a row for each. *Arguments* is the
number of words after the name; *flag* is `on` or `off`, *block* a pair of braces. *Default* is nginx's;
where Forebay chooses another, [differences.md](differences.md) says so.
";

/// Heading, introduction and which rows stand below it.
type Group = (&'static str, &'static str, fn(Support) -> bool);

const GROUPS: [Group; 5] = [
    ("Works", "", |s| s == Support::Yes),
    (
        "Accepted, met by design",
        "What these ask for holds without them, or tunes a mechanism that Forebay does not have. They are \
         accepted in silence. [tuning-articles.md](tuning-articles.md) explains the best known.",
        |s| s == Support::Met,
    ),
    (
        "Accepted with a warning",
        "Without behaviour yet, and doing without is harmless: the same content goes to the same people. `-t` and \
         the error log name each: `\"gzip\" directive is not supported yet, ignored`. Many only refine a \
         directive of the next group.",
        |s| s == Support::Hint,
    ),
    (
        "Refused: not supported yet",
        "Leaving these out would change what is served, or to whom. `-t` fails and names them.",
        |s| s == Support::Later,
    ),
    ("Refused for good", "These will not come. `-t` fails and gives the reason.", |s| {
        matches!(s, Support::Never(_))
    }),
];

/// The whole page.
pub fn render() -> String {
    let mut out = String::from(HEAD);
    for (title, about, belongs) in GROUPS {
        let rows: Vec<&Row> = grammar::all().iter().filter(|row| belongs(row.support)).collect();
        let _ = write!(out, "\n## {title} ({})\n\n", rows.len());
        if !about.is_empty() {
            let _ = write!(out, "{about}\n\n");
        }
        let reasons = rows.iter().any(|row| matches!(row.support, Support::Never(_)));
        let (head, rule) = if reasons { (" Reason |", " --- |") } else { ("", "") };
        let _ = writeln!(out, "| Directive | Contexts | Arguments | Default |{head}");
        let _ = writeln!(out, "| --- | --- | --- | --- |{rule}");
        for row in rows {
            line(row, &mut out);
        }
    }
    out
}

fn line(row: &Row, out: &mut String) {
    let contexts = row.contexts.names().collect::<Vec<_>>().join(", ");
    let old = match row.status {
        Status::Current => String::new(),
        Status::Deprecated(instead) => format!(" (deprecated{})", replacement(instead)),
        Status::Obsolete(instead) => format!(" (obsolete{})", replacement(instead)),
    };
    let default = match row.default {
        "" => String::new(),
        text => code(text),
    };
    let _ = write!(out, "| `{}`{old} | {contexts} | {} | {default} |", row.name, arguments(row));
    if let Support::Never(why) = row.support {
        let _ = write!(out, " {} |", why.replace('|', "\\|"));
    }
    out.push('\n');
}

fn replacement(instead: Option<&str>) -> String {
    instead.map(|name| format!(": use `{name}`")).unwrap_or_default()
}

/// A code span that does not end its cell.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

fn arguments(row: &Row) -> String {
    let count = match row.args {
        Arity { flag: true, .. } => "flag".to_owned(),
        Arity { min, max: None, .. } => format!("{min} or more"),
        Arity { min, max: Some(max), .. } if min == max => min.to_string(),
        Arity { min, max: Some(max), .. } if max == min + 1 => format!("{min} or {max}"),
        Arity { min, max: Some(max), .. } => format!("{min} to {max}"),
    };
    match (row.block, count.as_str()) {
        (true, "0") => "block".to_owned(),
        (true, _) => format!("{count}, block"),
        (false, _) => count,
    }
}
