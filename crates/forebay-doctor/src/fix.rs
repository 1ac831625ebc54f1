//! Fixes: edits of the operator's own text. A fix is computed for a finding in the tree, without the text; [`laid_out`] fits an edit
//! to the lines around it, so that layout and comments stay.

use crate::mends;
use crate::scene::Scene;
use forebay_conf::tree::{Directive, FileId, Span};
use std::ops::Range;

/// Risk of a fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// Answers stay as they are, but for what the finding is about.
    Safe,
    /// Behavior changes that somebody may rely on.
    Unsafe,
}

/// Replacement of a part of a file. A text that begins with a line feed is a line of its own behind the place, one that ends with a
/// line feed a line before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The part that is replaced; empty to insert.
    pub span: Span,
    /// The text in its place.
    pub text: String,
}

/// Edits that mend a finding. They belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// Its risk.
    pub safety: Safety,
    /// The edits.
    pub edits: Vec<Edit>,
}

/// Edit that mends a finding of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mend {
    /// Removes the directive.
    Remove,
    /// Replaces the argument at the finding.
    Argument(String),
    /// Replaces all arguments.
    Arguments(String),
    /// Replaces the directive.
    Directive(String),
    /// Adds a directive before that of the finding.
    Before(String),
    /// Adds a directive behind that of the finding.
    After(String),
    /// Has a function in `mends.rs`.
    Computed,
}

impl Mend {
    /// Reads `safe remove`, `unsafe argument off` and the like.
    pub(crate) fn parse(text: &str) -> Option<(Safety, Mend)> {
        let (safety, rest) = text.split_once(' ')?;
        let safety = match safety {
            "safe" => Safety::Safe,
            "unsafe" => Safety::Unsafe,
            _ => return None,
        };
        let (kind, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let text = text.to_owned();
        let mend = match kind {
            "remove" => Mend::Remove,
            "argument" => Mend::Argument(text),
            "arguments" => Mend::Arguments(text),
            "directive" => Mend::Directive(text),
            "before" => Mend::Before(text),
            "after" => Mend::After(text),
            "computed" => Mend::Computed,
            _ => return None,
        };
        Some((safety, mend))
    }

    /// Returns the edits for a finding of a rule at this place; `None` if there are none, or the place is in no file.
    pub(crate) fn edits(&self, rule: &str, scene: &Scene<'_>, span: Span) -> Option<Vec<Edit>> {
        let node = scene.node_at(span).filter(|_| span.file != FileId::COMMAND_LINE)?;
        let directive = scene.nodes.get(node)?.d;
        let one = |edit: Edit| Some(vec![edit]);
        match self {
            Mend::Remove => one(removal(directive)),
            Mend::Argument(text) => {
                let argument = directive.args.iter().find(|a| a.span == span).or(directive.args.first())?;
                one(Edit { span: argument.span, text: text.clone() })
            }
            Mend::Arguments(text) => one(arguments(directive, text)),
            Mend::Directive(text) => one(Edit { span: whole(directive), text: text.clone() }),
            Mend::Before(text) => one(instead(scene, node, text).unwrap_or_else(|| before(directive, text))),
            Mend::After(text) => one(instead(scene, node, text).unwrap_or_else(|| after(directive, text))),
            Mend::Computed => mends::edits(rule, scene, node, span).filter(|edits| !edits.is_empty()),
        }
    }
}

/// Returns the edit of the directive of the same name that stands on the level already.
fn instead(scene: &Scene<'_>, node: usize, text: &str) -> Option<Edit> {
    let (name, words) = text.trim_end_matches(';').split_once(' ')?;
    let there = scene.child(scene.parent(node), name)?;
    Some(arguments(scene.nodes.get(there)?.d, words))
}

/// Returns the text of a directive, with its block.
pub(crate) fn whole(d: &Directive) -> Span {
    let end = d.block.as_ref().filter(|_| d.name.text != b"include").and_then(|b| b.end).unwrap_or(d.end);
    Span { end: end.end, ..d.name.span }
}

/// Returns the edit that removes a directive.
pub(crate) fn removal(d: &Directive) -> Edit {
    Edit { span: whole(d), text: String::new() }
}

/// Returns the edit that gives a directive other arguments.
pub(crate) fn arguments(d: &Directive, text: &str) -> Edit {
    let text = if text.is_empty() { String::new() } else { format!(" {text}") };
    Edit { span: Span { start: d.name.span.end, end: d.end.start, ..d.name.span }, text }
}

/// Returns the edit that adds a directive before another one.
pub(crate) fn before(d: &Directive, text: &str) -> Edit {
    let at = d.name.span;
    Edit { span: Span { end: at.start, ..at }, text: format!("{text}\n") }
}

/// Returns the edit that adds a directive behind another one.
pub(crate) fn after(d: &Directive, text: &str) -> Edit {
    let end = whole(d).end;
    Edit { span: Span { start: end, end, ..d.name.span }, text: format!("\n{text}") }
}

/// Part of a text that is replaced, in bytes, and the text in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The part.
    pub range: Range<usize>,
    /// The new text.
    pub text: String,
}

/// Fits an edit to the text that it is made in: a removed directive takes its line with it, and a new line is indented as that of
/// the directive beside it.
pub fn laid_out(edit: &Edit, source: &[u8]) -> Change {
    let start = (edit.span.start as usize).min(source.len());
    let end = (edit.span.end as usize).clamp(start, source.len());
    if edit.text.is_empty() {
        return Change { range: without_line(source, start..end), text: String::new() };
    }
    let line = line_start(source, start);
    let indent: String = text_of(source, line..start).chars().take_while(|c| c.is_whitespace()).collect();
    let is_first = text_of(source, line..start).trim().is_empty();
    let lines = |text: &str, between: &str| text.split('\n').collect::<Vec<_>>().join(between);
    if edit.text.starts_with('\n') && ends_line(source, end) {
        // Behind a comment in the same line.
        let end = line_end(source, end);
        let text = edit.text.replace('\n', &format!("\n{indent}"));
        return Change { range: end..end, text };
    }
    let text = match (edit.text.strip_prefix('\n'), edit.text.strip_suffix('\n')) {
        (Some(text), _) => format!(" {}", lines(text, " ")),
        (_, Some(text)) if is_first => format!("{}\n{indent}", lines(text, &format!("\n{indent}"))),
        (_, Some(text)) => format!("{} ", lines(text, " ")),
        _ => edit.text.clone(),
    };
    Change { range: start..end, text }
}

fn text_of(source: &[u8], range: Range<usize>) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(source.get(range).unwrap_or_default())
}

fn line_start(source: &[u8], at: usize) -> usize {
    let before = source.get(..at).unwrap_or_default();
    before.iter().rposition(|b| *b == b'\n').map_or(0, |n| n.saturating_add(1))
}

/// Returns `true` if nothing but blanks or a comment follows in the line.
fn ends_line(source: &[u8], at: usize) -> bool {
    let rest = source.get(at..).unwrap_or_default();
    let line = rest.split(|b| *b == b'\n').next().unwrap_or_default();
    let first = line.iter().find(|b| !b.is_ascii_whitespace());
    first.is_none_or(|b| *b == b'#')
}

/// Returns the end of the line, without its line feed.
fn line_end(source: &[u8], at: usize) -> usize {
    let rest = source.get(at..).unwrap_or_default();
    let length = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    let is_cr = length > 0 && rest.get(length.saturating_sub(1)) == Some(&b'\r');
    at.saturating_add(length).saturating_sub(usize::from(is_cr))
}

/// Widens a removed part to its whole lines if they hold nothing else, or by the blanks before it.
fn without_line(source: &[u8], range: Range<usize>) -> Range<usize> {
    let line = line_start(source, range.start);
    let is_blank = |range: Range<usize>| text_of(source, range).trim().is_empty();
    let rest = source.get(range.end..).unwrap_or_default();
    let length = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    let end = range.end.saturating_add(length);
    if is_blank(line..range.start) && is_blank(range.end..end) {
        return line..end.saturating_add(1).min(source.len());
    }
    let blanks = source.get(line..range.start).unwrap_or_default();
    let kept = blanks.iter().rposition(|b| !matches!(b, b' ' | b'\t')).map_or(0, |n| n.saturating_add(1));
    // In the first place of a line the indentation stays for what follows.
    match is_blank(line..range.start) {
        true => range.start..range.end.saturating_add(rest.iter().take_while(|b| **b == b' ').count()),
        false => line.saturating_add(kept)..range.end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32, ..Span::default() }
    }

    fn applied(source: &str, part: &str, text: &str) -> String {
        let start = source.find(part).expect("there");
        let edit = Edit { span: span(start, start + part.len()), text: text.to_owned() };
        let change = laid_out(&edit, source.as_bytes());
        let mut out = source.to_owned();
        out.replace_range(change.range, &change.text);
        out
    }

    #[test]
    fn a_removed_directive_takes_its_line_with_it() {
        assert_eq!(applied("a {\n    b;\n    c;\n}\n", "b;", ""), "a {\n    c;\n}\n");
        assert_eq!(applied("a { b; c; }", "b;", ""), "a { c; }");
        assert_eq!(applied("a;\nb; # why\nc;\n", "b;", ""), "a;\n# why\nc;\n");
        assert_eq!(applied("a; b;\n", "b;", ""), "a;\n");
        assert_eq!(applied("b;", "b;", ""), "");
    }

    #[test]
    fn a_new_line_is_indented_as_its_neighbour() {
        let insert = |source: &str, at: usize, text: &str| {
            let edit = Edit { span: span(at, at), text: text.to_owned() };
            let change = laid_out(&edit, source.as_bytes());
            let mut out = source.to_owned();
            out.replace_range(change.range, &change.text);
            out
        };
        assert_eq!(insert("\ta;\n\tb;\n", 3, "\nnew;"), "\ta;\n\tnew;\n\tb;\n");
        assert_eq!(insert("a; # why\nb;", 2, "\nnew;"), "a; # why\nnew;\nb;");
        assert_eq!(insert("a { b; }", 6, "\nnew;"), "a { b; new; }");
        assert_eq!(insert("  a;\n", 2, "new;\n"), "  new;\n  a;\n");
        assert_eq!(insert("x { a; }", 4, "new;\n"), "x { new; a; }");
    }

    #[test]
    fn mends_are_read() {
        assert_eq!(Mend::parse("safe remove"), Some((Safety::Safe, Mend::Remove)));
        assert_eq!(
            Mend::parse("unsafe argument a b"),
            Some((Safety::Unsafe, Mend::Argument("a b".to_owned())))
        );
        for wrong in ["remove", "safe", "safe nothing", "maybe remove"] {
            assert_eq!(Mend::parse(wrong), None, "{wrong}");
        }
    }
}
