//! Mistakes and findings of a configuration, by file, and the edits that mend them.

use crate::project::Project;
use crate::text;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Span;
use forebay_doctor::fix::{Safety, laid_out};
use forebay_doctor::{Finding, Severity};
use lsp_types::{
    CodeAction, CodeActionKind, CodeActionOrCommand, Diagnostic, DiagnosticSeverity, NumberOrString,
    TextEdit, Uri, WorkspaceEdit,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

/// Most diagnostics of a file.
const MOST: usize = 1000;
/// Name of the source of all diagnostics.
const SOURCE: &str = "forebay";

/// Diagnostics by file.
pub(crate) type ByFile = BTreeMap<PathBuf, Vec<Diagnostic>>;

/// Returns the diagnostics of each file of a configuration, with an empty list for files without any.
pub(crate) fn of(project: &Project, errors: &[Error], findings: &[Finding]) -> ByFile {
    let mut all: ByFile = project.files.iter().map(|(_, path, _)| (path.to_owned(), Vec::new())).collect();
    let mut told = HashSet::new();
    let mut add = |span: Span, diagnostic: Diagnostic| {
        let list = all.entry(project.files.path(span.file).to_owned()).or_default();
        // A file that several others include has the same mistake for each.
        if list.len() < MOST && told.insert((span.file, span.start, diagnostic.message.clone())) {
            list.push(diagnostic);
        }
    };
    // An error about the whole is shown at the beginning of the main file.
    let main = project.file(&project.main).unwrap_or_default();
    let whole = Span { file: main, line: 1, column: 1, ..Span::default() };
    for error in errors {
        let span = error.span.or(error.at).unwrap_or(whole);
        add(span, mistake(project, error, span));
    }
    for finding in findings.iter().filter(|f| !f.rule.is_optional) {
        if let Some(span) = finding.span {
            add(span, diagnosis(project, finding, span));
        }
    }
    all
}

/// Lines of a text that a change replaced, and the number of lines in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    first: u32,
    last: u32,
    added: u32,
    /// Whole lines were replaced: the last one stays as it is.
    is_of_lines: bool,
}

impl Change {
    /// Returns the change that makes one text of another.
    pub(crate) fn between(old: &[u8], new: &[u8]) -> Change {
        let before = old.iter().zip(new).take_while(|(a, b)| a == b).count();
        let (rest, rest_of_new) =
            (old.get(before..).unwrap_or_default(), new.get(before..).unwrap_or_default());
        let after = rest.iter().rev().zip(rest_of_new.iter().rev()).take_while(|(a, b)| a == b).count();
        let lines =
            |text: &[u8]| u32::try_from(text.iter().filter(|b| **b == b'\n').count()).unwrap_or(u32::MAX);
        let middle = |rest: &[u8]| rest.get(..rest.len().saturating_sub(after)).unwrap_or_default().to_vec();
        let (replaced, new_part) = (middle(rest), middle(rest_of_new));
        let before = old.get(..before).unwrap_or_default();
        let ends_line = |part: &[u8]| part.last().is_none_or(|b| *b == b'\n');
        let first = lines(before);
        Change {
            first,
            last: first.saturating_add(lines(&replaced)),
            added: lines(&new_part),
            is_of_lines: ends_line(before) && ends_line(&replaced) && ends_line(&new_part),
        }
    }

    /// Moves a diagnostic along. Returns `false` if the change touches its lines, so that it may no longer hold.
    pub(crate) fn moves(self, diagnostic: &mut Diagnostic) -> bool {
        let range = &mut diagnostic.range;
        if range.start.line > self.last || self.is_of_lines && range.start.line == self.last {
            let end = self.first.saturating_add(self.added);
            for line in [&mut range.start.line, &mut range.end.line] {
                *line = line.saturating_sub(self.last).saturating_add(end);
            }
            return true;
        }
        range.end.line < self.first
    }
}

fn mistake(project: &Project, error: &Error, span: Span) -> Diagnostic {
    let hint = error.hint.as_ref().map_or(String::new(), |hint| format!("\n{hint}"));
    Diagnostic {
        range: project.range(span),
        severity: Some(if error.level == Level::Emerg {
            DiagnosticSeverity::ERROR
        } else {
            DiagnosticSeverity::WARNING
        }),
        source: Some(SOURCE.to_owned()),
        message: format!("{}{hint}", error.message),
        ..Diagnostic::default()
    }
}

fn diagnosis(project: &Project, finding: &Finding, span: Span) -> Diagnostic {
    let severity = match finding.rule.severity {
        Severity::Harm | Severity::Warning => DiagnosticSeverity::WARNING,
        Severity::NoEffect => DiagnosticSeverity::INFORMATION,
        Severity::Advice => DiagnosticSeverity::HINT,
    };
    Diagnostic {
        range: project.range(span),
        severity: Some(severity),
        code: Some(NumberOrString::String(finding.rule.id.clone())),
        source: Some(SOURCE.to_owned()),
        message: format!("{}\n{}\nInstead: {}", finding.message, finding.rule.why, finding.rule.instead),
        ..Diagnostic::default()
    }
}

/// Returns the fixes of findings in a part of a file, safe ones first.
pub(crate) fn actions(
    project: &Project,
    path: &std::path::Path,
    part: lsp_types::Range,
) -> Vec<CodeActionOrCommand> {
    let Some(file) = project.file(path) else { return Vec::new() };
    let meets =
        |range: lsp_types::Range| range.start.line <= part.end.line && part.start.line <= range.end.line;
    let mut found: Vec<(Safety, CodeAction)> = Vec::new();
    for finding in project.findings() {
        let Some(span) = finding.span.filter(|span| span.file == file && meets(project.range(*span))) else {
            continue;
        };
        let Some(fix) = &finding.fix else { continue };
        let safety = if fix.safety == Safety::Safe { "" } else { " (changes what clients see)" };
        found.push((
            fix.safety,
            CodeAction {
                title: format!("{}{safety}", finding.rule.instead.lines().next().unwrap_or_default()),
                kind: Some(CodeActionKind::QUICKFIX),
                diagnostics: Some(vec![diagnosis(project, finding, span)]),
                edit: Some(workspace(project, fix.edits.iter())),
                is_preferred: Some(fix.safety == Safety::Safe),
                ..CodeAction::default()
            },
        ));
    }
    found.sort_by_key(|(safety, _)| *safety != Safety::Safe);
    found.into_iter().map(|(_, action)| CodeActionOrCommand::CodeAction(action)).collect()
}

#[expect(clippy::mutable_key_type, reason = "the protocol's own type has URIs as keys")]
fn workspace<'e>(project: &Project, edits: impl Iterator<Item = &'e forebay_doctor::Edit>) -> WorkspaceEdit {
    let mut changes: HashMap<Uri, Vec<TextEdit>> = HashMap::new();
    for edit in edits {
        let Some(uri) = text::uri(project.files.path(edit.span.file)) else { continue };
        let bytes = project.files.bytes(edit.span.file);
        let change = laid_out(edit, bytes);
        let range = text::range(bytes, change.range.start, change.range.end);
        changes.entry(uri).or_default().push(TextEdit { range, new_text: change.text });
    }
    WorkspaceEdit { changes: Some(changes), ..WorkspaceEdit::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsp_types::{Position, Range};

    #[test]
    fn diagnostics_move_with_the_lines_behind_a_change() {
        let at = |line| Diagnostic {
            range: Range::new(Position::new(line, 0), Position::new(line, 1)),
            ..Diagnostic::default()
        };
        let moved = |old: &str, new: &str, line| {
            let mut diagnostic = at(line);
            let stays = Change::between(old.as_bytes(), new.as_bytes()).moves(&mut diagnostic);
            stays.then_some(diagnostic.range.start.line)
        };
        let old = "a\nb\nc\nd\n";
        assert_eq!(moved(old, "a\nb\nx\nc\nd\n", 3), Some(4));
        assert_eq!(moved(old, "a\nd\n", 3), Some(1));
        assert_eq!(moved(old, "a\nb\ncc\nd\n", 1), Some(1));
        assert_eq!(moved(old, "a\nb\nxc\nd\n", 2), None);
        assert_eq!(moved(old, "a\nb\nxc\nd\n", 3), Some(3));
        assert_eq!(moved(old, old, 0), Some(0));
    }
}
