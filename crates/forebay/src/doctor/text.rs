//! Findings for people.

use crate::check;
use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level as Shown, Renderer, Snippet};
use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_doctor::{Finding, Host, Scene, Severity, Worst, link, refusal};
use forebay_terminal::print;

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

/// Prints a rule; exit code 2 if there is none of this name.
pub(super) fn explain(id: &str) -> u8 {
    let text = match forebay_doctor::rules().find(|r| r.id == id) {
        _ if id == "all" => forebay_doctor::manual(),
        _ if id == "nginx-cves" => forebay_doctor::security_manual(),
        Some(r) => format!("{} ({})\n\n{}\n\nInstead: {}\n", r.title, r.severity.name(), r.why, r.instead),
        None => {
            eprintln!("forebay doctor: no rule \"{id}\"");
            return 2;
        }
    };
    print(text);
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_worst_case_is_printed() {
        let conf = "worker_processes 4; events { worker_connections 1000; } http { client_body_buffer_size 64k; \
                fastcgi_buffers 16 16k; server { location / { fastcgi_pass 127.0.0.1:9; } } }";
        let mut files = Files::recorded([("/n.conf", conf)]);
        let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
        let host = Host { cpus: 4, memory: 8 << 30, descriptors: (1024, 1 << 20), ..Host::default() };
        let report = Report { findings: &[], errors: &[], files: &files };
        let text = report.text(&Scene::new(&parsed.tree), &host, false);
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
}
