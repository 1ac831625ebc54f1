//! Prints docs/directives.md from the tables of directives and of their descriptions:
//! `cargo run -q -p forebay-conf --example directives_md > docs/directives.md`.
//!
//! With a directory as argument it writes the same there for the site of docs/site: `directives.md` with the tables, and one
//! page for each module in `directives/`.

use forebay_conf::grammar::{self, Row, Status, Support};
use forebay_conf::{descriptions, differences};
use std::collections::BTreeMap;
use std::fmt::Write;

#[allow(dead_code)] // A test includes this file for `render`.
fn main() -> std::io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1) else {
        print!("{}", render());
        return Ok(());
    };
    let dir = std::path::PathBuf::from(dir);
    std::fs::create_dir_all(dir.join("directives"))?;
    for (page, text) in pages() {
        std::fs::write(dir.join(format!("directives/{page}.md")), text)?;
    }
    std::fs::write(
        dir.join("directives.md"),
        tables(&head(SITE_HEAD), |row| format!("directives/{}.md#{}", page(row), row.name)),
    )
}

const HEAD: &str = "\
# Directives

Every directive that nginx {VERSION} documents, and what Forebay does with it. This page is generated from
`directives.tsv` and `descriptions.tsv` in `crates/forebay-conf/data/`; do not edit it, run

    cargo run -q -p forebay-conf --example directives_md > docs/directives.md

A directive that several modules have (`allow` in http and in stream) has a row for each. *Arguments* is the
number of words after the name; *flag* is `on` or `off`, *block* a pair of braces. *Default* is nginx's;
where Forebay chooses another, [differences.md](differences.md) says so. A name in the first table leads to what the
directive does, [further down](#what-each-directive-does). `forebay help DIRECTIVE` prints the same.
";

const SITE_HEAD: &str = "\
# Directives

Every directive that nginx {VERSION} documents, and what Forebay does with it. A directive that several modules have
(`allow` in http and in stream) has a row for each. *Arguments* is the number of words after the name; *flag* is `on`
or `off`, *block* a pair of braces. *Default* is nginx's; where Forebay chooses another, [differences](differences.md)
says so. A name in the first table leads to what the directive does; `forebay help DIRECTIVE` prints the same.
";

/// Puts the followed version into the words before the tables.
fn head(text: &str) -> String {
    text.replace("{VERSION}", forebay_conf::NGINX_VERSION)
}

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
        |s| matches!(s, Support::Later(_)),
    ),
    ("Refused for good", "These will not come. `-t` fails and gives the reason.", |s| {
        matches!(s, Support::Never(_))
    }),
];

/// The whole page.
pub fn render() -> String {
    let mut out = tables(&head(HEAD), |row| format!("#{}", row.name));
    out.push_str("\n## What each directive does\n");
    let rows: Vec<&Row> = grammar::all().iter().filter(|row| row.support == Support::Yes).collect();
    for rows in rows.chunk_by(|a, b| a.name == b.name) {
        section(rows, "differences.md", &mut out);
    }
    out
}

/// Returns the pages of modules: name, and the text with the directives that work.
fn pages() -> BTreeMap<&'static str, String> {
    let mut pages = BTreeMap::new();
    for row in grammar::all().iter().filter(|row| row.support == Support::Yes) {
        let page = page(row);
        let text = pages.entry(page).or_insert_with(|| format!("# {page}\n"));
        let mut part = String::new();
        section(&[row], "../differences.md", &mut part);
        // One level up: the page has no other headings.
        text.push_str(&part.replacen("\n### ", "\n## ", 1));
    }
    pages
}

/// Returns the name of the page with a directive: that of its module, or of the module that a few small ones belong to.
fn page(row: &Row) -> &'static str {
    let module = row.module.strip_suffix("_filter").unwrap_or(row.module);
    match module {
        "conf" | "errlog" | "event_core" | "events" | "http" | "stream" => "core",
        _ if module.starts_with("http_upstream") => "http_upstream",
        _ if module.starts_with("stream_upstream") => "stream_upstream",
        _ => module,
    }
}

/// Returns the tables of all directives below `head`. `link` is where the name of one that works leads to.
fn tables(head: &str, link: impl Fn(&Row) -> String) -> String {
    let mut out = String::from(head);
    for (title, about, belongs) in GROUPS {
        let rows: Vec<&Row> = grammar::all().iter().filter(|row| belongs(row.support)).collect();
        let _ = write!(out, "\n## {title} ({})\n\n", rows.len());
        if !about.is_empty() {
            let _ = write!(out, "{about}\n\n");
        }
        let reasons = rows.iter().any(|row| row.support.is_refused());
        let (head, rule) = if reasons { (" Reason |", " --- |") } else { ("", "") };
        let _ = writeln!(out, "| Directive | Contexts | Arguments | Default |{head}");
        let _ = writeln!(out, "| --- | --- | --- | --- |{rule}");
        for row in rows {
            line(row, &link(row), &mut out);
        }
    }
    out
}

/// Writes the section of a directive: each module's row with its description, then links to the page of differences.
fn section(rows: &[&Row], differences_page: &str, out: &mut String) {
    let name = rows.first().map_or("", |row| row.name);
    let _ = write!(out, "\n### `{name}`\n");
    for (i, row) in rows.iter().enumerate() {
        let _ = write!(out, "\n*{}*", contexts(row));
        if !matches!(row.default, "" | "(unset)") {
            let _ = write!(out, " · default {}", code(row.default));
        }
        out.push('\n');
        let next = rows.get(i + 1).and_then(|next| descriptions::describe(name, next.module));
        let own = descriptions::describe(name, row.module);
        // One text for several modules is below the last of them.
        if let Some(own) = own.filter(|own| next.as_ref() != Some(own)) {
            description(&own, out);
        }
    }
    let mut sections: Vec<_> = differences::about(name).iter().map(|difference| difference.section).collect();
    sections.dedup();
    if !sections.is_empty() {
        let links = sections.iter().map(|s| format!("[{s}]({differences_page}#{})", anchor(s)));
        let _ = write!(out, "\nDifferences to nginx: {}.\n", links.collect::<Vec<_>>().join(", "));
    }
}

fn description(own: &descriptions::Description, out: &mut String) {
    let _ = write!(out, "\n{}\n", own.text);
    if !own.example.is_empty() {
        let _ = write!(out, "\n```nginx\n{}\n```\n", own.example);
    }
}

/// Returns the name by which a link reaches a heading.
fn anchor(heading: &str) -> String {
    heading.to_ascii_lowercase().replace(' ', "-")
}

fn line(row: &Row, link: &str, out: &mut String) {
    let name = match row.support {
        Support::Yes => format!("[`{}`]({link})", row.name),
        _ => code(row.name),
    };
    let old = match row.status {
        Status::Current => String::new(),
        status => format!(" ({status})"),
    };
    let default = match row.default {
        "" => String::new(),
        text => code(text),
    };
    let _ = write!(out, "| {name}{old} | {} | {} | {default} |", contexts(row), row.arguments());
    if let Support::Later(why) | Support::Never(why) = row.support {
        let _ = write!(out, " {} |", why.replace('|', "\\|"));
    }
    out.push('\n');
}

fn contexts(row: &Row) -> String {
    row.contexts.names().collect::<Vec<_>>().join(", ")
}

/// A code span that does not end its cell.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}
