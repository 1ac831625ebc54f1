//! The outline of a document: its blocks.

use crate::text;
use forebay_conf::grammar::Contexts;
use forebay_conf::parse::body;
use forebay_conf::tree::{Block, Directive, Span};
use lsp_types::{DocumentSymbol, SymbolKind};

/// Returns the blocks of a text.
pub(crate) fn of(bytes: &[u8], context: Contexts) -> Vec<DocumentSymbol> {
    let parsed = body(bytes, context);
    blocks(&parsed.tree.root, bytes)
}

fn blocks(block: &Block, bytes: &[u8]) -> Vec<DocumentSymbol> {
    block.items.iter().filter_map(|d| symbol(d, bytes)).collect()
}

fn symbol(d: &Directive, bytes: &[u8]) -> Option<DocumentSymbol> {
    let inner = d.block.as_ref().filter(|_| d.name.text != b"include")?;
    let end = inner.end.map_or(u32::try_from(bytes.len()).unwrap_or(u32::MAX), |end| end.end);
    let words: Vec<_> = d.args.iter().map(|w| w.as_str()).collect();
    let named = inner.items.iter().find(|i| i.name.text == b"server_name").and_then(|i| i.args.first());
    let detail = named.map_or_else(|| words.join(" "), |name| name.as_str().into_owned());
    #[expect(deprecated, reason = "the type has a field that is no longer used")]
    Some(DocumentSymbol {
        name: d.name.as_str().into_owned(),
        detail: Some(detail).filter(|detail| !detail.is_empty()),
        kind: SymbolKind::MODULE,
        tags: None,
        deprecated: None,
        range: text::range_of(bytes, Span { end, ..d.name.span }),
        selection_range: text::range_of(bytes, d.name.span),
        children: Some(if d.holds_data() { Vec::new() } else { blocks(inner, bytes) }),
    })
}
