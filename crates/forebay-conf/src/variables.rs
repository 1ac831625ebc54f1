//! Descriptions of built-in variables, from `data/variables.tsv`, for `forebay help`. They are searched where they are.

use crate::tree::{Directive, Word};

const TSV: &str = include_str!("../data/variables.tsv");

/// Description of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name without `$`. A family ends in `*`.
    pub name: &'static str,
    /// Blocks that have it: `http`, `stream`.
    pub fronts: &'static str,
    /// A sentence. Backticks mark what is written in a configuration.
    pub text: &'static str,
}

/// Directives that define the variable of their first word, and those that define that of their last one.
const FIRST: [&str; 4] = ["set", "auth_request_set", "json_set", "time_format"];
const LAST: [&str; 4] = ["map", "num_map", "geo", "split_clients"];
/// Those that define the variable of their second word.
const SECOND: [&str; 1] = ["keyval"];

/// Returns the word with the variable that a directive defines.
pub fn defined(d: &Directive) -> Option<&Word> {
    let is_in = |list: &[&str]| list.iter().any(|name| name.as_bytes() == d.name.text);
    if is_in(&SECOND) {
        return d.args.get(1);
    }
    match (is_in(&FIRST), is_in(&LAST)) {
        (true, _) => d.args.first(),
        (_, true) => d.args.last(),
        _ => None,
    }
}

/// Returns all descriptions.
pub fn all() -> impl Iterator<Item = Variable> {
    TSV.lines().skip(1).filter_map(|line| {
        let mut columns = line.split('\t');
        let mut next = || columns.next();
        Some(Variable { name: next()?, fronts: next()?, text: next()? })
    })
}

/// Returns the description of a variable, or of its family. `name` is without `$`.
pub fn describe(name: &str) -> Option<Variable> {
    let family =
        |v: &Variable| v.name.strip_suffix('*').is_some_and(|start| name.starts_with(start) && name != start);
    all().find(|v| v.name == name).or_else(|| all().filter(family).max_by_key(|v| v.name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_families() {
        let name = |name: &str| describe(name).map(|v| v.name);
        assert_eq!(name("uri"), Some("uri"));
        assert_eq!(name("http_user_agent"), Some("http_*"));
        assert_eq!(name("sent_http_x"), Some("sent_http_*"));
        assert_eq!(name("acme_cert_key_a"), Some("acme_cert_key_*"));
        assert_eq!(name("nothing"), None);
    }
}
