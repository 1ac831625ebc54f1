//! Completion: directives of the block, and in their words variables, groups, zones, formats, named locations and values.

use crate::cursor::Cursor;
use crate::symbols::{Kind, Occurrence};
use crate::words;
use forebay_conf::grammar::{self, Contexts, Row};
use forebay_conf::variables;
use lsp_types::{CompletionItem, CompletionItemKind, Documentation, MarkupContent, MarkupKind};

/// Most items of an answer.
const MOST: usize = 1000;

/// Returns what fits at a place.
pub(crate) fn items(cursor: &Cursor, names: &[Occurrence]) -> Vec<CompletionItem> {
    let mut items = match (cursor.in_comment, cursor.words.first()) {
        (true, _) => Vec::new(),
        (_, None) => cursor.context.map(directives).unwrap_or_default(),
        (_, Some(directive)) => values(directive, cursor, names),
    };
    items.truncate(MOST);
    items
}

/// Returns the directives that a context allows, without those that are refused.
fn directives(context: Contexts) -> Vec<CompletionItem> {
    let allowed = grammar::all()
        .iter()
        .enumerate()
        .filter(|(_, row)| row.contexts.meets(context) && !row.support.is_refused());
    let mut items: Vec<CompletionItem> = allowed.map(|(number, row)| directive(number, row)).collect();
    items.dedup_by(|a, b| a.label == b.label);
    items
}

/// Returns an item without its help, which [`resolved`] adds: a client asks for it when the item is chosen. `number`: place of the row.
fn directive(number: usize, row: &Row) -> CompletionItem {
    CompletionItem {
        label: row.name.to_owned(),
        kind: Some(if row.block { CompletionItemKind::MODULE } else { CompletionItemKind::PROPERTY }),
        detail: Some(row.arguments()),
        data: Some(number.into()),
        ..CompletionItem::default()
    }
}

/// Adds the help to an item of a directive. Other items stay as they are.
pub(crate) fn resolved(mut item: CompletionItem) -> CompletionItem {
    let number = item.data.as_ref().and_then(serde_json::Value::as_u64).and_then(|n| usize::try_from(n).ok());
    if let Some(row) = number.and_then(|number| grammar::all().get(number)) {
        item.documentation = Some(Documentation::MarkupContent(MarkupContent {
            kind: MarkupKind::Markdown,
            value: words::of_row(row),
        }));
    }
    item
}

/// Returns what fits as a word of a directive.
fn values(directive: &str, cursor: &Cursor, names: &[Occurrence]) -> Vec<CompletionItem> {
    if let Some(at) = cursor.partial.rfind('$') {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '{');
        if cursor.partial.get(at + 1..).is_some_and(|name| name.chars().all(is_name)) {
            return variable_items(names);
        }
    }
    let own = |kind: Kind| defined(names, kind);
    if directive.ends_with("_pass") {
        return own(Kind::Upstream);
    }
    match directive {
        "limit_req" | "limit_conn" | "proxy_cache" | "fastcgi_cache" | "uwsgi_cache" | "scgi_cache" => {
            own(Kind::Zone)
        }
        "access_log" if cursor.words.len() == 2 => own(Kind::LogFormat),
        "try_files" | "error_page" | "goto" | "internal_redirect" => own(Kind::Location),
        _ => flags(directive, cursor.context),
    }
}

/// Returns `on` and `off` for a flag.
fn flags(directive: &str, context: Option<Contexts>) -> Vec<CompletionItem> {
    let row = context.and_then(|context| grammar::row(directive.as_bytes(), context));
    let words: &[&str] = if row.is_some_and(|row| row.args.flag) { &["on", "off"] } else { &[] };
    words.iter().map(|word| item(word, CompletionItemKind::VALUE)).collect()
}

fn item(label: &str, kind: CompletionItemKind) -> CompletionItem {
    CompletionItem { label: label.to_owned(), kind: Some(kind), ..CompletionItem::default() }
}

/// Returns the names of a kind that the configuration defines.
fn defined(names: &[Occurrence], kind: Kind) -> Vec<CompletionItem> {
    let mut found: Vec<&str> =
        names.iter().filter(|n| n.kind == kind && n.defines).map(|n| n.name.as_str()).collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(|name| item(name, CompletionItemKind::REFERENCE)).collect()
}

/// Returns the variables: those of the configuration, then those that are built in.
fn variable_items(names: &[Occurrence]) -> Vec<CompletionItem> {
    let mut items = defined(names, Kind::Variable);
    items.iter_mut().for_each(|i| i.kind = Some(CompletionItemKind::VARIABLE));
    items.extend(variables::all().map(|v| CompletionItem {
        detail: Some(v.text.to_owned()),
        ..item(v.name.trim_end_matches('*'), CompletionItemKind::VARIABLE)
    }));
    items
}
