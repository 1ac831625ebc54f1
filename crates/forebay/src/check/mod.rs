//! `forebay check`: every mistake of a configuration at once, for people (carets) or for programs (JSON).

pub(crate) mod hints;
pub(crate) mod machine;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level as Shown, Renderer, Snippet};
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::tree::Span;
use serde_json::{Value, json};
use std::ops::Range;

/// Lines longer than this many bytes are cut around the place of the mistake.
const LONGEST_LINE: usize = 160;

/// Formats one report an error, with the line, a caret and the hint; at the end a line that counts them.
///
/// `color`: with terminal colors. Text from the configuration cannot smuggle in escape sequences.
pub(crate) fn render_text(errors: &[Error], files: &Files, color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let renderer = renderer.decor_style(DecorStyle::Ascii);
    let mut out = String::new();
    for error in errors {
        let text = renderer.render(&[report(error, files)]);
        out.push_str(&match error.span.or(error.at) {
            Some(span) => Excerpt::new(files.bytes(span.file), span).with_column(text, span),
            None => text,
        });
        out.push_str("\n\n");
    }
    out.push_str(&summary(errors));
    out.push('\n');
    out
}

/// Returns a JSON list of `{level, message, file, line, column, end_column, hint}`, with a newline at the end.
///
/// Lines and columns count from 1, columns in bytes; `end_column` is the one after the last byte. `file`
/// is `command line` for the `-g` option. What does not apply is `null`.
pub(crate) fn render_json(errors: &[Error], files: &Files) -> String {
    let list: Vec<Value> = errors.iter().map(|error| entry(error, files)).collect();
    format!("{:#}\n", Value::from(list))
}

fn report<'a>(error: &'a Error, files: &'a Files) -> Group<'a> {
    let level = if is_warning(error) { Shown::WARNING } else { Shown::ERROR };
    let mut group = Group::with_title(level.primary_title(error.message.as_str()));
    if let Some(span) = error.span.or(error.at) {
        let excerpt = Excerpt::new(files.bytes(span.file), span);
        group = group.element(
            Snippet::source(excerpt.text)
                .line_start(span.line as usize)
                .path(files.path(span.file).to_string_lossy().into_owned())
                .annotation(AnnotationKind::Primary.span(excerpt.mark)),
        );
    }
    match &error.hint {
        Some(hint) => group.element(Shown::HELP.message(hint.as_str())),
        None => group,
    }
}

/// The line of a mistake as text, and where in it the mistake is.
pub(crate) struct Excerpt {
    /// The line, or the part of it that is shown.
    pub text: String,
    /// The place in it.
    pub mark: Range<usize>,
}

impl Excerpt {
    /// Cuts out the line around a place.
    pub(crate) fn new(source: &[u8], span: Span) -> Excerpt {
        let start = (span.start as usize).min(source.len());
        let (before, after) = source.split_at(start);
        let before = before.rsplit(|&b| b == b'\n').next().unwrap_or_default();
        let after = after.split(|&b| b == b'\n').next().unwrap_or_default();
        let after = after.strip_suffix(b"\r").unwrap_or(after);
        let len = (span.end.saturating_sub(span.start) as usize).min(after.len());
        let (marked, rest) = after.split_at(len);

        let mut text = String::new();
        let skipped = before.len().saturating_sub(LONGEST_LINE / 2);
        if skipped > 0 {
            text.push_str("... ");
        }
        text.push_str(&String::from_utf8_lossy(before.get(skipped..).unwrap_or_default()));
        let from = text.len();
        push_cut(&mut text, marked);
        let mark = from..text.len();
        push_cut(&mut text, rest);
        Excerpt { text, mark }
    }

    /// Puts the column of the line in the place of the column of the part that is shown.
    pub(crate) fn with_column(&self, rendered: String, span: Span) -> String {
        let shown = self.text.get(..self.mark.start).unwrap_or_default().chars().count() + 1;
        if shown == span.column as usize || !self.text.starts_with("... ") {
            return rendered;
        }
        let place = |column: usize| format!(":{}:{column}", span.line);
        rendered.replacen(&place(shown), &place(span.column as usize), 1)
    }
}

fn push_cut(text: &mut String, bytes: &[u8]) {
    let kept = bytes.get(..LONGEST_LINE / 2).unwrap_or(bytes);
    text.push_str(&String::from_utf8_lossy(kept));
    if kept.len() < bytes.len() {
        text.push_str(" ...");
    }
}

fn summary(errors: &[Error]) -> String {
    let warnings = errors.iter().filter(|error| is_warning(error)).count();
    let count = |n: usize, what: &str| match n {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{n} {what}s"),
    };
    format!("{}, {}", count(errors.len() - warnings, "error"), count(warnings, "warning"))
}

fn is_warning(error: &Error) -> bool {
    error.level >= Level::Warn
}

fn entry(error: &Error, files: &Files) -> Value {
    let span = error.span.or(error.at);
    let end_column = span.map(|span| {
        let source = files.bytes(span.file);
        let bytes = source.get(span.start as usize..span.end as usize).unwrap_or_default();
        let in_line = bytes.iter().position(|&b| b == b'\n').unwrap_or(bytes.len());
        span.column as usize + in_line
    });
    json!({
        "level": error.level.as_str(),
        "message": error.message,
        "file": span.map(|span| files.path(span.file).to_string_lossy().into_owned()),
        "line": span.map(|span| span.line),
        "column": span.map(|span| span.column),
        "end_column": end_column,
        "hint": error.hint,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn parsed(conf: &[u8]) -> (Vec<Error>, Files) {
        let mut files = Files::recorded([("/etc/n.conf", conf)]);
        let parsed = forebay_conf::parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
        (parsed.errors, files)
    }

    #[test]
    fn carets_and_hints() {
        let (errors, files) = parsed(b"events {}\nhttp {\n    directio 1m;\n    sever { }\n}\n");
        let text = render_text(&errors, &files, false);
        assert_eq!(
            text,
            r#"warning: "directio" directive is not supported yet, ignored
 --> /etc/n.conf:3:5
  |
3 |     directio 1m;
  |     ^^^^^^^^

error: unknown directive "sever"
 --> /etc/n.conf:4:5
  |
4 |     sever { }
  |     ^^^^^
  |
  = help: did you mean "server"?

1 error, 1 warning
"#
        );
        assert!(render_text(&errors, &files, true).contains("\x1b["));
    }

    #[test]
    fn json() {
        let (errors, files) = parsed(b"events {}\n\n  usr \"a\nb\";");
        let list: Value = serde_json::from_str(&render_json(&errors, &files)).expect("JSON");
        assert_eq!(
            list,
            json!([{
                "level": "emerg", "message": "unknown directive \"usr\"", "file": "/etc/n.conf", "line": 3,
                "column": 3, "end_column": 6, "hint": "did you mean \"user\"?",
            }])
        );
        assert_eq!(render_json(&[], &files), "[]\n");
    }

    #[test]
    fn any_bytes() {
        for conf in [
            &b"\xff\xfe\x1b[31m;"[..],
            b"a\t\"\xc3\xa4\xff\"\xc3\xa4;",
            b"",
            b"http {",
            b"\"abc\n\n",
            b"http {\r\n  \xe2\x82",
            b"}",
            b"user\n\n\"x\ny\" 1 2 3",
        ] {
            let (errors, files) = parsed(conf);
            let text = render_text(&errors, &files, false);
            assert!(!text.contains('\x1b'), "{text}");
            render_json(&errors, &files);
        }
        let long = [b"user ".to_vec(), vec![b'x'; 3000], b" a b;".to_vec()].concat();
        let (errors, files) = parsed(&long);
        assert!(render_text(&errors, &files, false).lines().all(|line| line.len() < 400));
    }
}
