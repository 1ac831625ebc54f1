//! Findings for people: those of one rule together, the worst first.

use crate::check;
use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level as Shown, Renderer, Snippet};
use forebay_conf::tree::FileId;
use forebay_doctor::output::{Report, explain_command, refusal};
use forebay_doctor::{Finding, Host, Safety, Scene, Severity, Target, Worst};

/// Most lines that are named for one rule.
const MOST_LINES: usize = 12;

/// What is printed.
#[derive(Clone, Copy)]
pub(super) struct Page<'r> {
    pub report: Report<'r>,
    /// The server that is advised.
    pub target: Target,
    pub host: &'r Host,
    /// The block that the file was read as a part of.
    pub part_of: Option<&'static str>,
    /// Number of findings that only `--all` shows.
    pub optional: usize,
}

impl Page<'_> {
    /// Renders text with carets, and a summary at the end.
    pub(super) fn text(&self, scene: &Scene<'_>, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let renderer = renderer.decor_style(DecorStyle::Ascii);
        let mut out = self.part_of.map_or_else(String::new, |block| {
            format!("The file is read as a part of a block {block}; what stands around it is not known.\n\n")
        });
        out.push_str(&self.refused(color));
        for group in self.groups() {
            out.push_str(&self.group(&group, &renderer));
            out.push_str("\n\n");
        }
        out.push_str(&self.host.text());
        out.push_str(&arithmetic(scene, self.host));
        out.push_str(&self.summary());
        out
    }

    fn summary(&self) -> String {
        let findings = self.report.findings;
        let count = |s: Severity| findings.iter().filter(|f| f.rule.severity == s).count();
        let mendable = findings.iter().filter_map(|f| f.fix.as_ref());
        let (safe, others): (Vec<_>, Vec<_>) = mendable.partition(|fix| fix.safety == Safety::Safe);
        let mut out = format!(
            "for {}: {} harmful, {} warnings, {} without effect, {} to think about\n",
            self.target,
            count(Severity::Harm),
            count(Severity::Warning),
            count(Severity::NoEffect),
            count(Severity::Advice)
        );
        if self.optional > 0 {
            out.push_str(&format!("{} more of taste or measurement: --all\n", self.optional));
        }
        // Fixes need the whole configuration.
        if self.part_of.is_none() && !(safe.is_empty() && others.is_empty()) {
            out.push_str(&format!(
                "--fix mends {} of them, --unsafe-fixes {} more; --diff shows how\n",
                safe.len(),
                others.len()
            ));
        }
        out
    }

    fn refused(&self, color: bool) -> String {
        let mut out = String::new();
        let errors = self.report.errors;
        if errors.is_empty() {
            return out;
        }
        if errors.iter().any(|e| refusal(e).1 == Severity::Harm) {
            out.push_str(
                "The configuration does not parse, so no server starts with it. The errors come first; what follows them \
                 is about the lines that could be read.\n\n",
            );
        }
        out.push_str(&check::render_text(errors, self.report.files, color));
        out.push('\n');
        out
    }

    /// Returns the findings by rule, in their order.
    fn groups(&self) -> Vec<Vec<&Finding>> {
        let mut groups: Vec<Vec<&Finding>> = Vec::new();
        for finding in self.report.findings {
            // Faults of versions have nothing in common but the rule.
            let may = finding.rule.family != "versions";
            let same =
                |g: &&mut Vec<&Finding>| may && g.first().is_some_and(|f| f.rule.id == finding.rule.id);
            match groups.iter_mut().find(same) {
                Some(group) => group.push(finding),
                None => groups.push(vec![finding]),
            }
        }
        groups
    }

    fn group(&self, findings: &[&Finding], renderer: &Renderer) -> String {
        let Some((f, others)) = findings.split_first() else { return String::new() };
        let level = match f.rule.severity {
            Severity::Harm => Shown::ERROR.with_name("harm"),
            Severity::Warning => Shown::WARNING,
            Severity::NoEffect => Shown::NOTE.with_name("no effect"),
            Severity::Advice => Shown::NOTE.with_name("advice"),
        };
        let files = self.report.files;
        let title = format!("{} [{}]", f.message, f.rule.id);
        let mut group = level
            .primary_title(title.as_str())
            .elements(std::iter::empty::<annotate_snippets::Message<'_>>());
        let excerpt = f.span.map(|span| check::Excerpt::new(files.bytes(span.file), span));
        if let (Some(span), Some(excerpt)) = (f.span, &excerpt) {
            group = group.element(
                Snippet::source(excerpt.text.as_str())
                    .line_start(span.line as usize)
                    .path(files.path(span.file).to_string_lossy().into_owned())
                    .annotation(AnnotationKind::Primary.span(excerpt.mark.clone())),
            );
        }
        let more = self.more(f, others);
        if !more.is_empty() {
            group = group.element(Shown::NOTE.no_name().message(more.as_str()));
        }
        group = group.element(Shown::NOTE.with_name("why").message(f.rule.why.as_str()));
        group = group.element(Shown::HELP.with_name("instead").message(f.rule.instead.as_str()));
        let command = explain_command(&f.rule.id);
        group = group.element(Shown::NOTE.with_name("more").message(command.as_str()));
        let text = renderer.render(&[group]);
        match (f.span, &excerpt) {
            (Some(span), Some(excerpt)) => excerpt.with_column(text, span),
            _ => text,
        }
    }

    /// Returns the places of the other findings: `and 4 more: lines 22, 23, 24, 37`.
    fn more(&self, first: &Finding, others: &[&Finding]) -> String {
        if others.is_empty() {
            return String::new();
        }
        let mut places: Vec<(FileId, Vec<u32>)> = Vec::new();
        for span in others.iter().filter_map(|f| f.span) {
            match places.iter_mut().find(|(file, _)| *file == span.file) {
                Some((_, lines)) => lines.push(span.line),
                None => places.push((span.file, vec![span.line])),
            }
        }
        let here = first.span.map(|s| s.file);
        let parts = places.iter().map(|(file, lines)| self.lines(*file, lines, here));
        let parts: Vec<String> = parts.collect();
        let count = others.len();
        match parts.is_empty() {
            true => {
                let texts: Vec<&str> = others.iter().map(|f| f.message.as_str()).collect();
                format!("and {count} more: {}", texts.join("; "))
            }
            false => format!("and {count} more: {}", parts.join("; ")),
        }
    }

    fn lines(&self, file: FileId, lines: &[u32], here: Option<FileId>) -> String {
        let mut lines = lines.to_vec();
        lines.dedup();
        let shown: Vec<String> = lines.iter().take(MOST_LINES).map(u32::to_string).collect();
        let rest = match lines.len().saturating_sub(MOST_LINES) {
            0 => String::new(),
            n => format!(" and {n} others"),
        };
        let word = if lines.len() == 1 { "line" } else { "lines" };
        let path = match here == Some(file) {
            true => String::new(),
            false => format!("{} ", self.report.files.path(file).display()),
        };
        format!("{path}{word} {}{rest}", shown.join(", "))
    }
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
        let own = h.descriptors.0.to_string();
        line.push_str(&format!(" (limit {})", limit.unwrap_or(&own)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_conf::files::Files;
    use std::path::Path;

    #[test]
    fn the_worst_case_is_printed() {
        let conf = "worker_processes 4; events { worker_connections 1000; } http { client_body_buffer_size 64k; \
                fastcgi_buffers 16 16k; server { location / { fastcgi_pass 127.0.0.1:9; } } }";
        let mut files = Files::recorded([("/n.conf", conf)]);
        let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
        let host = Host { cpus: 4, memory: 8 << 30, descriptors: (1024, 1 << 20), ..Host::default() };
        let report = Report { findings: &[], errors: &[], files: &files };
        let page = Page { report, target: Target::Forebay, host: &host, part_of: None, optional: 0 };
        let text = page.text(&Scene::new(&parsed.tree), false);
        // 33 kB for the head, 64 kB, and 16 x 16 kB with 4 kB for 2000 clients.
        for part in [
            "at most 2000 clients",
            "2064 descriptors for each worker (limit 1024)",
            "697 MB of buffers",
            "260 kB for the response",
            "8192 MB of memory",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn findings_of_one_rule_come_together() {
        let conf = "events {}\nhttp {\n    server_tokens off;\n    include more.conf;\n    keepalive_timeout 0;\n    server {\n        keepalive_timeout 0;\n    }\n}\n";
        let more = "server {\n    keepalive_timeout 0s;\n}\nserver {\n    keepalive_timeout 0;\n}\n";
        let mut files = Files::recorded([("/n.conf", conf), ("/more.conf", more)]);
        let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
        let (scene, host) = (Scene::new(&parsed.tree), Host::default());
        let findings = forebay_doctor::examine(&scene, &host, Target::Forebay);
        let report = Report { findings: &findings, errors: &[], files: &files };
        let text = Page { report, target: Target::Forebay, host: &host, part_of: None, optional: 0 }
            .text(&scene, false);
        assert_eq!(text.matches("[keepalive-off]").count(), 1, "{text}");
        assert!(text.contains("and 3 more: line 7; /more.conf lines 2, 5"), "{text}");
        assert!(text.contains("forebay doctor --explain keepalive-off") && !text.contains("docs/"), "{text}");
        assert!(text.contains("for Forebay: 4 harmful") && text.contains("--fix mends 4"), "{text}");
    }
}
