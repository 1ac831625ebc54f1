//! Descriptions of directives, from `data/descriptions.tsv`.
//!
//! Only `forebay help` and the generator of docs/directives.md use them, so the table is searched where it is and
//! never read as a whole. Its column `module` may name several modules, with commas between them.
//!
//! A text `@proxy_NAME` stands for that of `proxy_NAME`, with the family's own prefix in its place (`fastcgi_` for
//! `fastcgi_NAME`). Words behind it are added.

const TSV: &str = include_str!("../data/descriptions.tsv");

/// Description of a directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// A few sentences. Backticks mark what is written in a configuration.
    pub text: String,
    /// Lines of a configuration; empty where there is no need of any.
    pub example: String,
}

/// Returns the description of the directive that a module has.
pub fn describe(name: &str, module: &str) -> Option<Description> {
    lines_of(name).find(|line| line.modules.split(',').any(|m| m == module)).map(|line| line.resolved())
}

/// A line of the table.
#[derive(Clone, Copy)]
struct Line {
    name: &'static str,
    modules: &'static str,
    text: &'static str,
    example: &'static str,
}

/// Returns the lines of a directive.
fn lines_of(name: &str) -> impl Iterator<Item = Line> {
    TSV.lines().skip(1).filter(move |line| line.split('\t').next() == Some(name)).filter_map(Line::parse)
}

impl Line {
    fn parse(line: &'static str) -> Option<Line> {
        let mut columns = line.split('\t');
        let mut next = || columns.next();
        let (name, modules, text, example) = (next()?, next()?, next()?, next()?);
        Some(Line { name, modules, text, example })
    }

    /// Returns the description in the directive's own words.
    fn resolved(self) -> Description {
        let Some((model, more)) = self.model() else {
            return Description { text: self.text.to_owned(), example: unescaped(self.example) };
        };
        let own = |text: &str| text.replace(prefix(model.name), prefix(self.name));
        let text = format!("{} {more}", own(model.text)).trim_end().to_owned();
        let example = match self.example {
            "" => own(&unescaped(model.example)),
            example => unescaped(example),
        };
        Description { text, example }
    }

    /// Returns the line that the text refers to, and the words behind the reference.
    fn model(self) -> Option<(Line, &'static str)> {
        let reference = self.text.strip_prefix('@')?;
        let (name, more) = reference.split_once(' ').unwrap_or((reference, ""));
        let model = lines_of(name).find(|line| !line.text.starts_with('@'))?;
        Some((model, more))
    }
}

/// Returns the first word of a directive's name with its underscore: `proxy_` of `proxy_pass`.
fn prefix(name: &str) -> &str {
    name.find('_').and_then(|at| name.get(..=at)).unwrap_or(name)
}

fn unescaped(example: &str) -> String {
    example.replace("\\n", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;
    use crate::grammar::{self, Row, Support};
    use crate::{error::Level, parse};
    use std::path::Path;

    /// Number of directives that work and have no description yet. It may only become smaller.
    const UNDESCRIBED: usize = 0;

    fn lines() -> Vec<Line> {
        TSV.lines().skip(1).map(|line| Line::parse(line).expect(line)).collect()
    }

    fn row(line: Line, module: &str) -> &'static Row {
        let rows = grammar::rows(line.name.as_bytes());
        rows.iter().find(|row| row.module == module).unwrap_or_else(|| panic!("{} of {module}", line.name))
    }

    #[test]
    fn every_line_describes_known_directives_in_order() {
        let lines = lines();
        for line in &lines {
            for module in line.modules.split(',') {
                assert!(describe(row(*line, module).name, module).is_some_and(|d| !d.text.is_empty()));
            }
        }
        let keys: Vec<_> = lines.iter().map(|line| (line.name, line.modules)).collect();
        assert!(keys.is_sorted(), "sort the lines by name and modules");
        assert!(keys.windows(2).all(|pair| pair.first() != pair.last()), "no line twice");
    }

    #[test]
    fn every_directive_that_works_is_described_once() {
        let works = grammar::all().iter().filter(|row| row.support == Support::Yes);
        let undescribed: Vec<_> = works
            .filter(|row| {
                let own = lines_of(row.name).filter(|line| line.modules.split(',').any(|m| m == row.module));
                let count = own.count();
                assert!(count <= 1, "{} of {} is described {count} times", row.name, row.module);
                count == 0
            })
            .map(|row| (row.name, row.module))
            .collect();
        assert_eq!(undescribed.len(), UNDESCRIBED, "{undescribed:?}");
    }

    #[test]
    fn references_use_the_words_of_their_family() {
        for line in lines().into_iter().filter(|line| line.text.starts_with('@')) {
            let (model, _) = line.model().unwrap_or_else(|| panic!("{}: {}", line.name, line.text));
            let Description { text, example } = line.resolved();
            assert!(prefix(model.name) == prefix(line.name) || !text.contains(prefix(model.name)), "{text}");
            for span in text.split('`').skip(1).step_by(2).chain(example.split_whitespace()) {
                let word = span.split([' ', ';']).next().unwrap_or_default();
                let own = word.starts_with(prefix(line.name)) && !word.ends_with('*');
                assert!(!own || !grammar::rows(word.as_bytes()).is_empty(), "{}: no {word}", line.name);
            }
        }
    }

    /// Text around an example.
    const PLACES: [(&str, &str); 12] = [
        ("", ""),
        ("events {\n", "\n}"),
        ("http {\n", "\n}"),
        ("http { server {\n", "\n} }"),
        ("http { server { location / {\n", "\n} } }"),
        ("http { server { location / { limit_except GET {\n", "\n} } } }"),
        ("http { server { if ($arg_a) {\n", "\n} } }"),
        ("http { upstream a {\n", "\n} }"),
        ("http { acme_issuer a {\n", "\n} }"),
        ("stream {\n", "\n}"),
        ("stream { server {\n", "\n} }"),
        ("stream { upstream a {\n", "\n} }"),
    ];

    /// Files that examples include.
    const INCLUDED: [&str; 4] = ["/mime.types", "/fastcgi_params", "/uwsgi_params", "/scgi_params"];

    fn parses(text: String) -> bool {
        let included = INCLUDED.map(|name| (name, String::new()));
        let mut files = Files::recorded(included.into_iter().chain([("/nginx.conf", text)]));
        let parsed = parse(Path::new("/nginx.conf"), "", Path::new("/"), &mut files);
        parsed.errors.iter().all(|error| error.level != Level::Emerg)
    }

    #[test]
    fn examples_are_allowed_where_their_directive_is() {
        for line in lines() {
            let example = line.resolved().example;
            if example.is_empty() {
                continue;
            }
            let name = line.name;
            assert!(example.contains(name), "{name}: {example}");
            for module in line.modules.split(',') {
                let wanted = PLACES.iter().filter(|(before, _)| {
                    before.is_empty() || before.starts_with("stream") == module.starts_with("stream")
                });
                let mut texts = wanted.map(|(before, after)| format!("{before}{example}{after}"));
                assert!(texts.any(parses), "{name} of {module}: {example}");
            }
        }
    }

    #[test]
    fn unknown_names_have_no_description() {
        assert_eq!(describe("proxy_pass", "http_fastcgi"), None);
        assert_eq!(describe("directive", "module"), None);
        assert_eq!(describe("", ""), None);
    }
}
