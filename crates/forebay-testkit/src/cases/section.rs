//! Sections of tables.

use super::each::{List, repeated};

/// Part of a case.
pub(super) struct Section {
    pub kind: String,
    /// Words after the kind.
    pub argument: String,
    pub text: String,
}

/// Joins the lines of rows: a line that begins with two spaces continues the one before.
fn joined(text: &str) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match rows.last_mut() {
            Some(last) if line.starts_with("  ") => *last = format!("{last} {}", line.trim_start()),
            _ => rows.push(line.to_owned()),
        }
    }
    rows
}

impl Section {
    fn new(title: &str) -> Section {
        let (kind, argument) = title.split_once(' ').unwrap_or((title, ""));
        Section { kind: kind.to_owned(), argument: argument.trim().to_owned(), text: String::new() }
    }

    /// Returns its rows.
    pub fn rows(&self) -> Vec<String> {
        joined(&self.text)
    }

    /// Returns `true` if the lines are those of a file.
    fn is_text(&self) -> bool {
        let kinds = [
            "http", "server", "stream", "main", "compared", "outside", "file", "gzip", "write", "content",
            "access",
        ];
        kinds.contains(&self.kind.as_str())
    }

    /// Returns the section for each row of the lists that its title names, with its lines for each row that they name.
    fn repeated(&self, lists: &[List]) -> Vec<Section> {
        let text = if self.is_text() { self.text.clone() } else { self.rows().join("\n") };
        let all = format!("{} {}\n{}", self.kind, self.argument, text.strip_suffix('\n').unwrap_or(&text));
        let of_title = |whole: String| {
            let (title, text) = whole.split_once('\n').expect("a title");
            let lines = text.split('\n').flat_map(|line| repeated(line, lists));
            let text = lines.map(|line| format!("{line}\n")).collect();
            Section { text, ..Section::new(title) }
        };
        let named = lists.iter().filter(|list| list.is_in(&self.argument));
        repeated(&all, named).into_iter().map(of_title).collect()
    }
}

/// Returns the sections of a case.
pub(super) fn sections(case: &str) -> Vec<Section> {
    let mut all: Vec<Section> = Vec::new();
    for line in case.lines().skip(1) {
        match (line.strip_prefix("-- "), all.last_mut()) {
            (Some(title), _) => all.push(Section::new(title)),
            (None, Some(section)) => section.text = format!("{}{line}\n", section.text),
            (None, None) => assert!(line.is_empty() || line.starts_with('#'), "outside of a section: {line}"),
        }
    }
    let (lists, others): (Vec<Section>, Vec<Section>) = all.into_iter().partition(|s| s.kind == "each");
    let list = |s: &Section| List { name: s.argument.clone(), rows: s.rows() };
    let lists: Vec<List> = lists.iter().map(list).collect();
    if lists.is_empty() { others } else { others.iter().flat_map(|s| s.repeated(&lists)).collect() }
}
