//! `forebay help WORD`: what a directive or a variable of nginx.conf does.

use forebay_conf::descriptions::{Description, describe};
use forebay_conf::differences;
use forebay_conf::grammar::{self, Row, Status, Support};
use forebay_conf::variables::{self, Variable};
use forebay_terminal::print;
use std::ffi::OsString;
use std::fmt::Write as _;

/// Longest line that is printed, unless a single word is longer.
const WIDTH: usize = 78;

/// Column at which values begin.
const VALUES: usize = 13;

/// Returns the words of a command line `forebay help WORD...`.
pub(crate) fn words(arguments: &[OsString]) -> Option<Vec<&str>> {
    match arguments {
        [_, help, words @ ..] if help == "help" && !words.is_empty() => {
            words.iter().map(|word| word.to_str().filter(|word| !word.starts_with('-'))).collect()
        }
        _ => None,
    }
}

/// Prints the help for a directive, or for a variable (`$name`). Returns exit code 1 if there is none of that name.
pub(crate) fn main(name: &str) -> u8 {
    if let Some(name) = name.strip_prefix('$') {
        return variable_main(name.trim_matches(['{', '}']));
    }
    let rows = grammar::rows(name.as_bytes());
    if rows.is_empty()
        && let Some(variable) = variables::describe(name)
    {
        print(variable_page(&variable));
        return 0;
    }
    if rows.is_empty() {
        eprintln!("forebay help: {}", unknown(name));
        return 1;
    }
    print(render(name, rows));
    0
}

fn variable_main(name: &str) -> u8 {
    if let Some(variable) = variables::describe(&name.to_ascii_lowercase()) {
        print(variable_page(&variable));
        return 0;
    }
    let near = grammar::nearest(name, variables::all().map(|v| v.name));
    let hint = near.map_or(String::new(), |near| format!("\ndid you mean ${near}?"));
    eprintln!("forebay help: no variable \"${}\"{hint}", name.escape_default());
    1
}

/// Returns the page of a variable.
fn variable_page(variable: &Variable) -> String {
    let mut out = format!("${}\n\n", variable.name);
    fact("In", &variable.fronts.replace(',', ", "), &mut out);
    out.push('\n');
    fill("  ", variable.text, &mut out);
    out
}

/// Returns the message about a name that is no directive.
fn unknown(name: &str) -> String {
    let names = || grammar::all().iter().map(|row| row.name);
    let mut near: Vec<&str> = grammar::nearest(name, names()).into_iter().collect();
    // Few remember more than a part of a long name.
    near.extend(names().filter(|known| name.len() > 2 && known.contains(name)).take(8));
    near.dedup();
    let mut text = format!("no directive or subcommand \"{}\"", name.escape_default());
    if !near.is_empty() {
        let _ = write!(text, "\ndid you mean {}?", near.join(", "));
    }
    text
}

/// Returns the page of a directive.
fn render(name: &str, rows: &[Row]) -> String {
    let mut out = format!("{name}\n");
    let mut rows = Vec::from_iter(rows);
    rows.sort_by_key(|row| row.support != Support::Yes);
    for (i, row) in rows.iter().enumerate() {
        out.push('\n');
        facts(row, &mut out);
        let own = describe(name, row.module);
        let next = rows.get(i + 1).and_then(|next| describe(name, next.module));
        // One text for several modules is below the last of them.
        if let Some(own) = own.filter(|own| next.as_ref() != Some(own)) {
            description(&own, &mut out);
        }
    }
    let differences = differences::about(name);
    if !differences.is_empty() {
        out.push_str("\n  Differences to nginx, in docs/differences.md:\n");
        for difference in differences {
            let subject = difference.subject.split_whitespace().collect::<Vec<_>>().join(" ");
            fill("    - ", &format!("{}: {subject}", difference.section), &mut out);
        }
    }
    out
}

/// Writes where a directive is allowed, and its arguments, default and support.
fn facts(row: &Row, out: &mut String) {
    let contexts = row.contexts.names().collect::<Vec<_>>().join(", ");
    fact("Contexts", &contexts, out);
    fact("Arguments", &row.arguments(), out);
    fact("Default", if matches!(row.default, "" | "(unset)") { "none" } else { row.default }, out);
    if row.status != Status::Current {
        fact("In nginx", &row.status.to_string(), out);
    }
    fact("Support", &support(row.support), out);
}

fn fact(label: &str, value: &str, out: &mut String) {
    fill(&format!("  {label:<width$}", width = VALUES - 2), value, out);
}

fn support(support: Support) -> String {
    match support {
        Support::Yes => "works".to_owned(),
        Support::Met => "accepted; what it asks for holds without it, or there is nothing to tune".to_owned(),
        Support::Hint => "accepted with a warning, without effect".to_owned(),
        Support::Later("") => "refused: not supported yet".to_owned(),
        Support::Later(advice) => format!("refused: not supported yet; {advice}"),
        Support::Never(why) => format!("refused: {why}"),
    }
}

fn description(own: &Description, out: &mut String) {
    out.push('\n');
    fill("  ", &own.text, out);
    if !own.example.is_empty() {
        out.push_str("\n  Example:\n\n");
        for line in own.example.lines() {
            let _ = writeln!(out, "      {line}");
        }
    }
}

/// Writes a text in lines of at most [`WIDTH`], the first after `begin` and the others below it.
fn fill(begin: &str, text: &str, out: &mut String) {
    let indent = " ".repeat(begin.len());
    let mut line = begin.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{line}");
            line.clone_from(&indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    let _ = writeln!(out, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directive_has_a_page_within_the_width() {
        for row in grammar::all() {
            let page = render(row.name, grammar::rows(row.name.as_bytes()));
            assert!(page.contains("Contexts") && page.contains("Support"), "{page}");
            for line in page.lines().filter(|line| line.trim().contains(' ')) {
                // Examples are as they are written.
                assert!(line.chars().count() <= 100, "{}: {line}", row.name);
                assert!(line.starts_with("      ") || line.chars().count() <= WIDTH, "{}: {line}", row.name);
            }
        }
    }

    #[test]
    fn every_variable_has_a_page_and_every_page_a_variable() {
        for (front, names) in [
            ("http", forebay_modules::parts::variable_names().collect::<Vec<_>>()),
            ("stream", forebay_stream::variable_names().collect()),
        ] {
            let mut names = names;
            names.sort_unstable();
            names.dedup();
            let described: Vec<&str> = variables::all()
                .filter(|v| v.fronts.split(',').any(|f| f == front))
                .map(|v| v.name)
                .collect();
            assert_eq!(described, names, "{front}");
        }
        for variable in variables::all() {
            assert!(variable.text.ends_with('.'), "{variable:?}");
            assert!(
                variable_page(&variable).lines().all(|line| line.chars().count() <= WIDTH),
                "{variable:?}"
            );
        }
    }

    #[test]
    fn names_that_are_no_directive() {
        assert!(unknown("proxy_pas").contains("proxy_pass"));
        assert!(unknown("hide_header").contains("fastcgi_hide_header"));
        assert!(!unknown("xyzzy").contains("mean"));
    }

    #[test]
    fn lines_break_between_words() {
        let mut out = String::new();
        fill("- ", &"word ".repeat(40), &mut out);
        assert!(out.lines().all(|line| line.len() <= WIDTH && !line.ends_with(' ')), "{out}");
        assert!(out.lines().skip(1).all(|line| line.starts_with("  word")), "{out}");
    }

    #[test]
    fn words_behind_help() {
        let line = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(words(&line(&["forebay", "help", "root"])), Some(vec!["root"]));
        assert_eq!(words(&line(&["forebay", "help", "bench", "compare"])), Some(vec!["bench", "compare"]));
        assert_eq!(words(&line(&["forebay", "help"])), None);
        assert_eq!(words(&line(&["forebay", "help", "--help"])), None);
        assert_eq!(words(&line(&["forebay", "serve", "root"])), None);
    }
}
