//! Texts about directives and variables, as Markdown.

use forebay_conf::descriptions::describe;
use forebay_conf::grammar::{self, Contexts, Row, Support};
use forebay_conf::variables;

/// Returns the help for a directive: where it is allowed, arguments, default, support, description, example.
pub(crate) fn directive(name: &str, context: Option<Contexts>) -> Option<String> {
    let rows = grammar::rows(name.as_bytes());
    let here = context.and_then(|context| grammar::row(name.as_bytes(), context));
    Some(of_row(here.or(rows.first())?))
}

/// Returns the help for a row of the table.
pub(crate) fn of_row(row: &Row) -> String {
    let name = row.name;
    let mut out = format!("**{name}** {}\n\n", arguments(row));
    if !matches!(row.default, "" | "(unset)") {
        out.push_str(&format!("Default: `{}`  \n", row.default));
    }
    let contexts = row.contexts.names().collect::<Vec<_>>().join(", ");
    out.push_str(&format!("In: {contexts}\n"));
    match row.support {
        Support::Later(why) | Support::Never(why) => out.push_str(&format!("\nRefused here: {why}\n")),
        Support::Met => out.push_str("\nAccepted: what it asks for holds without it.\n"),
        Support::Hint => out.push_str("\nAccepted with a warning, without effect.\n"),
        Support::Yes => {}
    }
    if let Some(description) = describe(name, row.module) {
        out.push_str(&format!("\n{}\n", description.text));
        if !description.example.is_empty() {
            out.push_str(&format!("\n```nginx\n{}\n```\n", description.example));
        }
    }
    out
}

/// Returns the number of words that a directive takes, and whether it has a block.
pub(crate) fn arguments(row: &Row) -> String {
    format!("`{}`", row.arguments())
}

/// Returns the help for a built-in variable.
pub(crate) fn variable(name: &str) -> Option<String> {
    let known = variables::describe(name)?;
    Some(format!("**${}** ({})\n\n{}\n", known.name, known.fronts.replace(',', ", "), known.text))
}
