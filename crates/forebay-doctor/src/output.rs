//! Findings for programs: JSON, SARIF 2.1.0 for code hosts, and annotations of GitHub's workflows.

use crate::fix::{Fix, Safety, laid_out};
use crate::{Finding, Severity, rules};
use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_conf::tree::Span;
use serde_json::{Value, json};

/// Returns the rule that a line outside of the tree breaks, and its severity: nginx may well accept a directive that is not there
/// yet.
pub fn refusal(e: &Error) -> (&'static str, Severity) {
    if e.message.starts_with(MISSING) {
        return ("include-missing", Severity::Advice);
    }
    let ours = e.message.contains("\" directive is not supported") || e.message.starts_with("module \"");
    if ours { ("not-supported", Severity::Warning) } else { ("syntax", Severity::Harm) }
}

/// Begin of the message about included files of another machine.
pub const MISSING: &str = "not looked at: ";

/// Findings, with lines that do not parse and the files that they are about.
#[derive(Clone, Copy)]
pub struct Report<'r> {
    /// What was found.
    pub findings: &'r [Finding],
    /// Lines that do not parse.
    pub errors: &'r [Error],
    /// The files.
    pub files: &'r Files,
}

/// One line of output: a finding or an error, in the same form.
struct Entry<'r> {
    rule: &'r str,
    severity: Severity,
    message: &'r str,
    why: Option<&'r str>,
    instead: Option<&'r str>,
    span: Option<Span>,
    fix: Option<&'r Fix>,
}

impl<'r> Report<'r> {
    fn entries(self) -> impl Iterator<Item = Entry<'r>> {
        let errors = self.errors.iter().map(|e| {
            let (rule, severity) = refusal(e);
            let instead = e.hint.as_deref();
            Entry {
                rule,
                severity,
                message: &e.message,
                why: None,
                instead,
                span: e.span.or(e.at),
                fix: None,
            }
        });
        let findings = self.findings.iter().map(|f| Entry {
            rule: &f.rule.id,
            severity: f.rule.severity,
            message: &f.message,
            why: Some(&f.rule.why),
            instead: Some(&f.rule.instead),
            span: f.span,
            fix: f.fix.as_ref(),
        });
        errors.chain(findings)
    }

    fn path(self, span: Span) -> String {
        self.files.path(span.file).to_string_lossy().into_owned()
    }

    /// Returns a JSON list: `{rule, severity, message, why, instead, explain, file, line, column, fix}`. A fix is
    /// `{safety, edits: [{file, start, end, text}]}`, with offsets in bytes.
    pub fn json(self) -> String {
        let list: Vec<Value> = self.entries().map(|e| self.json_entry(&e)).collect();
        format!("{:#}\n", Value::from(list))
    }

    fn json_entry(self, e: &Entry<'_>) -> Value {
        json!({
            "rule": e.rule, "severity": e.severity.name(), "message": e.message, "why": e.why, "instead": e.instead,
            "explain": e.why.map(|_| explain_command(e.rule)),
            "file": e.span.map(|s| self.path(s)), "line": e.span.map(|s| s.line), "column": e.span.map(|s| s.column),
            "fix": e.fix.map(|fix| self.json_fix(fix)),
        })
    }

    fn json_fix(self, fix: &Fix) -> Value {
        let edits = fix.edits.iter().map(|edit| {
            let change = laid_out(edit, self.files.bytes(edit.span.file));
            json!({
                "file": self.path(edit.span), "start": change.range.start, "end": change.range.end, "text": change.text,
            })
        });
        json!({"safety": name_of(fix.safety), "edits": edits.collect::<Vec<_>>()})
    }

    /// Renders annotations of GitHub's workflows, one a line.
    pub fn github(self) -> String {
        self.entries().map(|e| self.annotation(&e)).collect()
    }

    fn annotation(self, e: &Entry<'_>) -> String {
        let level = match e.severity {
            Severity::Harm => "error",
            Severity::Warning => "warning",
            Severity::NoEffect | Severity::Advice => "notice",
        };
        let place =
            e.span.map(|s| format!("file={},line={},col={},", property(&self.path(s)), s.line, s.column));
        let instead = e.instead.map(|text| format!(" Instead: {text}"));
        let text = data(&format!("{}.{}", e.message, instead.unwrap_or_default()));
        format!("::{level} {}title={}::{text}\n", place.unwrap_or_default(), property(e.rule))
    }

    /// Renders SARIF 2.1.0, with fixes.
    pub fn sarif(self) -> String {
        let results: Vec<Value> = self.entries().map(|e| self.sarif_result(&e)).collect();
        let log = json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": {"driver": {"name": "forebay doctor", "version": env!("CARGO_PKG_VERSION"), "rules": sarif_rules()}},
                "columnKind": "unicodeCodePoints",
                "results": results,
            }],
        });
        format!("{log:#}\n")
    }

    fn sarif_result(self, e: &Entry<'_>) -> Value {
        let mut result = json!({
            "ruleId": e.rule, "ruleIndex": rule_index(e.rule), "level": sarif_level(e.severity),
            "message": {"text": e.message}, "locations": self.sarif_place(e.span),
        });
        if let Some(fix) = e.fix {
            result["fixes"] = json!([self.sarif_fix(e, fix)]);
        }
        result
    }

    fn sarif_place(self, span: Option<Span>) -> Value {
        match span {
            Some(s) => json!([{"physicalLocation": {
                "artifactLocation": {"uri": uri(&self.path(s))},
                "region": {"startLine": s.line, "startColumn": s.column},
            }}]),
            None => json!([]),
        }
    }

    fn sarif_fix(self, e: &Entry<'_>, fix: &Fix) -> Value {
        let changes = fix.edits.iter().map(|edit| {
            let source = self.files.bytes(edit.span.file);
            let change = laid_out(edit, source);
            let (start, end) =
                (Position::of(source, change.range.start), Position::of(source, change.range.end));
            json!({
                "artifactLocation": {"uri": uri(&self.path(edit.span))},
                "replacements": [{
                    "deletedRegion": {
                        "startLine": start.line, "startColumn": start.column,
                        "endLine": end.line, "endColumn": end.column,
                    },
                    "insertedContent": {"text": change.text},
                }],
            })
        });
        let text = format!("{} ({})", e.instead.unwrap_or(e.message), name_of(fix.safety));
        json!({"description": {"text": text}, "artifactChanges": changes.collect::<Vec<_>>()})
    }
}

/// Line and column of a byte, both from 1; columns are characters.
struct Position {
    line: usize,
    column: usize,
}

impl Position {
    fn of(source: &[u8], at: usize) -> Position {
        let before = source.get(..at).unwrap_or(source);
        let line = before.iter().filter(|b| **b == b'\n').count();
        let last = before.rsplit(|b| *b == b'\n').next().unwrap_or_default();
        Position {
            line: line.saturating_add(1),
            column: String::from_utf8_lossy(last).chars().count().saturating_add(1),
        }
    }
}

/// Returns the command that prints a rule.
pub fn explain_command(rule: &str) -> String {
    format!("forebay doctor --explain {rule}")
}

fn name_of(safety: Safety) -> &'static str {
    match safety {
        Safety::Safe => "safe",
        Safety::Unsafe => "unsafe",
    }
}

/// Escapes the text of an annotation.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of an annotation.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Returns a path as a relative reference (RFC 3986).
fn uri(path: &str) -> String {
    let mut out = String::new();
    for b in path.trim_start_matches('/').bytes() {
        match b {
            b'/' | b'.' | b'_' | b'-' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                out.push(char::from(b));
            }
            _ => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

fn sarif_level(s: Severity) -> &'static str {
    match s {
        Severity::Harm => "error",
        Severity::Warning => "warning",
        Severity::NoEffect | Severity::Advice => "note",
    }
}

/// Returns the place of a rule in [`sarif_rules`].
fn rule_index(id: &str) -> usize {
    match id {
        "syntax" => 0,
        "not-supported" => 1,
        _ => rules().position(|r| r.id == id).map_or(0, |n| n.saturating_add(2)),
    }
}

/// Returns the rules of the doctor, behind the two for lines that do not parse.
fn sarif_rules() -> Vec<Value> {
    let syntax = json!({"id": "syntax", "shortDescription": {"text": "a line that nginx refuses"}, "defaultConfiguration": {"level": "error"}});
    let missing = json!({"id": "not-supported", "shortDescription": {"text": "a line that Forebay does not have"}, "defaultConfiguration": {"level": "warning"}});
    let rules = rules().map(|r| {
        json!({"id": r.id, "shortDescription": {"text": r.title}, "fullDescription": {"text": r.why},
               "help": {"text": format!("{} (evidence: {})", r.instead, r.evidence)},
               "properties": {"tags": [r.family]}, "defaultConfiguration": {"level": sarif_level(r.severity)}})
    });
    [syntax, missing].into_iter().chain(rules).collect()
}
