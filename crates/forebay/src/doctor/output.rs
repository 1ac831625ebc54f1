//! Findings for people, for programs (JSON) and for code hosts (SARIF 2.1.0).

use super::conf_rules::Worst;
use super::host::Host;
use super::scene::Scene;
use super::{Finding, Severity};
use crate::check;
use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level as Shown, Renderer, Snippet};
use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_terminal::print;
use serde_json::{Value, json};

/// Findings, with the files that they are about.
#[derive(Clone, Copy)]
pub(super) struct Report<'r> {
    pub findings: &'r [Finding],
    /// Lines that do not parse.
    pub errors: &'r [Error],
    pub files: &'r Files,
}

impl Report<'_> {
    /// Renders text with carets, and a summary at the end.
    pub(super) fn text(&self, scene: &Scene<'_>, host: &Host, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let renderer = renderer.decor_style(DecorStyle::Ascii);
        let mut out = self.refused(color);
        for finding in self.findings {
            out.push_str(&self.finding(finding, &renderer));
            out.push_str("\n\n");
        }
        out.push_str(&host.text());
        out.push_str(&arithmetic(scene, host));
        let count = |s: Severity| self.findings.iter().filter(|f| f.rule.severity == s).count();
        out.push_str(&format!(
            "{} harmful, {} warnings, {} without effect, {} to think about\n",
            count(Severity::Harm),
            count(Severity::Warning),
            count(Severity::NoEffect),
            count(Severity::Advice)
        ));
        out
    }

    fn refused(&self, color: bool) -> String {
        let mut out = String::new();
        if self.errors.is_empty() {
            return out;
        }
        if self.errors.iter().any(|e| refusal(e).1 == Severity::Harm) {
            out.push_str(
                "The configuration does not parse, so no server starts with it. The errors come first; what follows them \
                 is about the lines that could be read.\n\n",
            );
        }
        out.push_str(&check::render_text(self.errors, self.files, color));
        out.push('\n');
        out
    }

    fn finding(&self, f: &Finding, renderer: &Renderer) -> String {
        let level = match f.rule.severity {
            Severity::Harm => Shown::ERROR.with_name("harm"),
            Severity::Warning => Shown::WARNING,
            Severity::NoEffect => Shown::NOTE.with_name("no effect"),
            Severity::Advice => Shown::NOTE.with_name("advice"),
        };
        let title = format!("{} [{}]", f.message, f.rule.id);
        let mut group = level
            .primary_title(title.as_str())
            .elements(std::iter::empty::<annotate_snippets::Message<'_>>());
        let excerpt = f.span.map(|span| check::Excerpt::new(self.files.bytes(span.file), span));
        if let (Some(span), Some(excerpt)) = (f.span, &excerpt) {
            group = group.element(
                Snippet::source(excerpt.text.as_str())
                    .line_start(span.line as usize)
                    .path(self.files.path(span.file).to_string_lossy().into_owned())
                    .annotation(AnnotationKind::Primary.span(excerpt.mark.clone())),
            );
        }
        group = group.element(Shown::NOTE.with_name("why").message(f.rule.why));
        group = group.element(Shown::HELP.with_name("instead").message(f.rule.instead));
        let link = link(f.rule.id);
        group = group.element(Shown::NOTE.with_name("see").message(link.as_str()));
        renderer.render(&[group])
    }
}

/// Returns the section of the manual about a rule.
fn link(rule: &str) -> String {
    format!("docs/doctor.md#{rule}")
}

/// Resources that the settings allow in the worst case.
fn arithmetic(s: &Scene<'_>, h: &Host) -> String {
    let w = Worst::of(s, h);
    let passes_on = w.response > 0;
    let mut line =
        format!("at most {} clients at a time ({} x {} connections", w.clients, w.workers, w.connections);
    line.push_str(if passes_on { ", two for each request that is passed on)" } else { ")" });
    line.push_str(&format!("\nworst case: {} descriptors for each worker", w.descriptors));
    if h.descriptors.0 > 0 {
        let limit = s.all("worker_rlimit_nofile").last().map(|n| s.arg(n, 0));
        line.push_str(&format!(" (limit {})", limit.unwrap_or_else(|| h.descriptors.0.to_string())));
    }
    line.push_str(&format!(
        ", {} MB of buffers: a client may hold {} kB for its head, {} kB for a body",
        w.memory() >> 20,
        w.head >> 10,
        w.body >> 10
    ));
    if passes_on {
        line.push_str(&format!(", {} kB for the response of an upstream", w.response >> 10));
    }
    if h.memory > 0 {
        line.push_str(&format!("; {} MB of memory", h.memory >> 20));
    }
    line.push('\n');
    line
}

/// Returns the rule that a line outside of the tree breaks, and its severity: nginx may well accept a directive that is not there
/// yet.
pub(super) fn refusal(e: &Error) -> (&'static str, Severity) {
    let ours = e.message.contains("\" directive is not supported") || e.message.starts_with("module \"");
    if ours { ("not-supported", Severity::Warning) } else { ("syntax", Severity::Harm) }
}

/// Returns a JSON list of findings: `{rule, severity, message, why, instead, see, file, line, column}`.
pub(super) fn json(findings: &[Finding], errors: &[Error], files: &Files) -> String {
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
pub(super) fn sarif(findings: &[Finding], errors: &[Error], files: &Files) -> String {
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

/// Prints a rule; exit code 2 if there is none of this name.
pub(super) fn explain(id: &str) -> u8 {
    let text = match super::rules().find(|r| r.id == id) {
        _ if id == "all" => manual(),
        _ if id == "nginx-cves" => super::cve_rules::manual(),
        Some(r) => format!("{} ({})\n\n{}\n\nInstead: {}\n", r.title, r.severity.name(), r.why, r.instead),
        None => {
            eprintln!("forebay doctor: no rule \"{id}\"");
            return 2;
        }
    };
    print(text);
    0
}

/// Makes docs/doctor.md.
pub(super) fn manual() -> String {
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
