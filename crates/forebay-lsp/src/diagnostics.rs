//! Mistakes and findings of a configuration, by file, and the edits that mend them.

use crate::project::Project;
use crate::text;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Span;
use forebay_doctor::fix::{Safety, laid_out};
use forebay_doctor::{Finding, Host, Scene, Severity, Target};
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

/// Returns the diagnostics of each file of a configuration, with an empty list for files without any. `errors` are those of all stages.
pub(crate) fn of(project: &Project, errors: &[Error]) -> BTreeMap<PathBuf, Vec<Diagnostic>> {
    let mut all: BTreeMap<PathBuf, Vec<Diagnostic>> =
        project.files.iter().map(|(_, path, _)| (path.to_owned(), Vec::new())).collect();
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
    for finding in findings(project) {
        if let Some(span) = finding.span {
            add(span, diagnosis(project, &finding, span));
        }
    }
    all
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

/// Returns what doctor finds for Forebay, without the machine.
fn findings(project: &Project) -> Vec<Finding> {
    let findings = forebay_doctor::examine(&Scene::new(&project.tree), &Host::default(), Target::Forebay);
    findings.into_iter().filter(|f| !f.rule.is_optional).collect()
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
    for finding in findings(project) {
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
                diagnostics: Some(vec![diagnosis(project, &finding, span)]),
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
