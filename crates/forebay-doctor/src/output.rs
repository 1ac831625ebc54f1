//! Findings for programs (JSON) and for code hosts (SARIF 2.1.0), and the manual.

use super::{Finding, Severity};
use forebay_conf::error::Error;
use forebay_conf::files::Files;
use serde_json::{Value, json};

/// Returns the section of the manual about a rule.
pub fn link(rule: &str) -> String {
    format!("docs/doctor.md#{rule}")
}

/// Returns the rule that a line outside of the tree breaks, and its severity: nginx may well accept a directive that is not there
/// yet.
pub fn refusal(e: &Error) -> (&'static str, Severity) {
    let ours = e.message.contains("\" directive is not supported") || e.message.starts_with("module \"");
    if ours { ("not-supported", Severity::Warning) } else { ("syntax", Severity::Harm) }
}

/// Returns a JSON list of findings: `{rule, severity, message, why, instead, see, file, line, column}`.
pub fn json(findings: &[Finding], errors: &[Error], files: &Files) -> String {
    let mut list: Vec<Value> = Vec::new();
    for e in errors {
        let span = e.span.or(e.at);
        list.push(json!({
            "rule": refusal(e).0, "severity": refusal(e).1.name(), "message": e.message, "why": Value::Null, "instead": e.hint,
            "file": span.map(|s| files.path(s.file).to_string_lossy().into_owned()),
            "line": span.map(|s| s.line), "column": span.map(|s| s.column),
        }));
    }
    for f in findings {
        list.push(json!({
            "rule": f.rule.id, "severity": f.rule.severity.name(), "message": f.message, "why": f.rule.why,
            "instead": f.rule.instead, "see": link(f.rule.id),
            "file": f.span.map(|s| files.path(s.file).to_string_lossy().into_owned()),
            "line": f.span.map(|s| s.line), "column": f.span.map(|s| s.column),
        }));
    }
    format!("{:#}\n", Value::from(list))
}

/// Returns a path as a relative reference (RFC 3986).
fn uri(path: &str) -> String {
    let mut out = String::new();
    for b in path.trim_start_matches('/').bytes() {
        match b {
            b'/' | b'.' | b'_' | b'-' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                out.push(char::from(b))
            }
            _ => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

/// Renders SARIF 2.1.0.
pub fn sarif(findings: &[Finding], errors: &[Error], files: &Files) -> String {
    let index = |id: &str| super::rules().position(|r| r.id == id).map_or(0, |n| n + 2);
    let refused = errors.iter().map(|e| {
        let (id, severity) = refusal(e);
        json!({
            "ruleId": id, "ruleIndex": u8::from(id != "syntax"), "level": sarif_level(severity),
            "message": {"text": e.message}, "locations": sarif_place(files, e.span.or(e.at)),
        })
    });
    let found = findings.iter().map(|f| {
        json!({
            "ruleId": f.rule.id, "ruleIndex": index(f.rule.id), "level": sarif_level(f.rule.severity),
            "message": {"text": f.message}, "locations": sarif_place(files, f.span),
        })
    });
    let results: Vec<Value> = refused.chain(found).collect();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "forebay doctor", "version": env!("CARGO_PKG_VERSION"), "rules": sarif_rules()}},
            "results": results,
        }],
    });
    format!("{log:#}\n")
}

fn sarif_level(s: Severity) -> &'static str {
    match s {
        Severity::Harm => "error",
        Severity::Warning => "warning",
        Severity::NoEffect | Severity::Advice => "note",
    }
}

fn sarif_place(files: &Files, span: Option<forebay_conf::tree::Span>) -> Value {
    match span {
        Some(s) => json!([{"physicalLocation": {
            "artifactLocation": {"uri": uri(&files.path(s.file).to_string_lossy())},
            "region": {"startLine": s.line, "startColumn": s.column},
        }}]),
        None => json!([]),
    }
}

/// Returns the rules of the doctor, behind the two for lines that do not parse.
fn sarif_rules() -> Vec<Value> {
    let syntax = json!({"id": "syntax", "shortDescription": {"text": "a line that nginx refuses"}, "defaultConfiguration": {"level": "error"}});
    let missing = json!({"id": "not-supported", "shortDescription": {"text": "a line that Forebay does not have"}, "defaultConfiguration": {"level": "warning"}});
    let rules = super::rules().map(|r| {
        json!({"id": r.id, "shortDescription": {"text": r.title}, "fullDescription": {"text": r.why},
               "help": {"text": r.instead}, "defaultConfiguration": {"level": sarif_level(r.severity)}})
    });
    [syntax, missing].into_iter().chain(rules).collect()
}

/// Makes docs/doctor.md.
pub fn manual() -> String {
    let mut out = String::from(
        "# Rules of `forebay doctor`\n\n`forebay doctor -c FILE` reads a configuration, the machine and, when a server runs \
         with that configuration (by its pid file), its error log, descriptors and stub_status, asks name servers about the names of \
         certificates by ACME, and changes nothing. With `--no-host` it reads the configuration only. What the rules say was checked against nginx 1.31 and Linux 6.18. \
         Made by `forebay doctor --explain all`.\n",
    );
    for r in super::rules() {
        out.push_str(&format!(
            "\n## {}\n\n**{}** ({})\n\n{}\n\nInstead: {}\n",
            r.id,
            r.title,
            r.severity.name(),
            r.why,
            r.instead
        ));
    }
    out
}

/// Makes docs/security.md.
pub fn security_manual() -> String {
    super::cve_rules::manual()
}
