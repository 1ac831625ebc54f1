//! Places of docs/differences.md that are about a directive.

const PAGE: &str = include_str!("../../../docs/differences.md");

/// Directives whose names are also everyday words of the page. Only a paragraph that begins with one is about it.
const EVERYDAY: [&str; 9] =
    ["http", "server", "location", "upstream", "stream", "events", "mail", "if", "map"];

/// A paragraph of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Heading of its section.
    pub section: &'static str,
    /// Its first words, which name the subject, in Markdown.
    pub subject: &'static str,
}

/// Returns the paragraphs that mention a directive, in the order of the page.
pub fn about(directive: &str) -> Vec<Difference> {
    let mut section = "";
    let mut found = vec![];
    for paragraph in PAGE.split("\n\n") {
        if let Some(heading) = paragraph.strip_prefix("## ") {
            section = heading.trim_end();
        }
        let Some(subject) = subject(paragraph) else { continue };
        let searched = if EVERYDAY.contains(&directive) { subject } else { paragraph };
        if mentions(searched, directive) {
            found.push(Difference { section, subject });
        }
    }
    found
}

/// Returns the paragraph whose subject begins with these words.
pub fn paragraph(subject_start: &str) -> Option<&'static str> {
    PAGE.split("\n\n").find(|p| subject(p).is_some_and(|s| s.starts_with(subject_start)))
}

/// Returns the words in bold at the beginning of a paragraph.
fn subject(paragraph: &'static str) -> Option<&'static str> {
    paragraph.strip_prefix("**")?.split_once("**").map(|(subject, _)| subject)
}

/// Returns `true` if a code span of the text begins with the directive's name, or is a pattern for it such as `ssl_*`.
fn mentions(text: &str, directive: &str) -> bool {
    let spans = text.split('`').skip(1).step_by(2);
    let mut words = spans.filter_map(|span| span.split([' ', ';', '=', '\n']).next());
    words.any(|word| match word.strip_suffix("_*") {
        Some(family) => directive.strip_prefix(family).is_some_and(|rest| rest.starts_with('_')),
        None => word == directive,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(directive: &str) -> Vec<&'static str> {
        about(directive).iter().map(|difference| difference.section).collect()
    }

    #[test]
    fn paragraphs_that_name_a_directive() {
        assert!(sections("worker_processes").contains(&"Processes and threads"));
        assert!(sections("proxy_download_rate").contains(&"Stream"));
        assert!(about("proxy_pass").iter().any(|d| d.subject.contains("keeps connections")));
        assert_eq!(sections("gzip_min_length"), Vec::<&str>::new());
        assert_eq!(sections("worker"), Vec::<&str>::new());
        assert!(about("ssl_crl").iter().any(|d| d.subject.starts_with("Files, ciphers")), "by a pattern");
    }

    #[test]
    fn every_subject_is_in_a_section() {
        let subjects = PAGE.split("\n\n").filter_map(subject).count();
        assert!(subjects > 50, "{subjects}");
        assert!(PAGE.find("## ") < PAGE.find("\n**"));
    }
}
