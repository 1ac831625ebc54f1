//! Any bytes as a configuration: no panic, and what the parser says about places holds.
#![no_main]

use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_conf::tree::{Block, Span, Word};
use forebay_conf::units;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    // Two files, so that includes are walked too: the text before and after a byte that is in neither.
    let (main, other) = data.split_once_at(0xfe);
    let globals = String::from_utf8_lossy(other).into_owned();
    let mut files = Files::recorded([("/n.conf", main), ("/x", other)]);
    let parsed = forebay_conf::parse(Path::new("/n.conf"), &globals, Path::new("/"), &mut files);

    check_errors(&parsed.errors, &files);
    check_block(&parsed.tree.root, &files);

    let bytes = files.to_bytes();
    let mut back = Files::from_bytes(&bytes).expect("its own record");
    let again = forebay_conf::parse(Path::new("/n.conf"), &globals, Path::new("/"), &mut back);
    assert_eq!(parsed.errors, again.errors);
    let _ = Files::from_bytes(data);
});

fn check_errors(errors: &[Error], files: &Files) {
    let mut last = 0;
    for error in errors {
        assert!(last <= error.ordinal, "errors are sorted");
        last = error.ordinal;
        files.render(error);
        error.span.into_iter().chain(error.at).for_each(|span| check_span(span, files));
    }
}

fn check_block(block: &Block, files: &Files) {
    for directive in &block.items {
        check_span(directive.end, files);
        std::iter::once(&directive.name).chain(&directive.args).for_each(|word| check_word(word, files));
        if let Some(inner) = &directive.block {
            check_block(inner, files);
        }
    }
}

fn check_word(word: &Word, files: &Files) {
    check_span(word.span, files);
    let written = (word.span.end - word.span.start) as usize;
    assert!(word.text.len() <= written, "unquoting never adds bytes");
    units::size(&word.text);
    units::offset(&word.text);
    units::time_ms(&word.text);
    units::time_secs(&word.text);
    units::rate(&word.text);
}

fn check_span(span: Span, files: &Files) {
    let source = files.bytes(span.file);
    let before = &source[..span.start as usize];
    assert!(span.start <= span.end && span.end as usize <= source.len().max(span.start as usize + 1));
    assert_eq!(span.line as usize, 1 + before.iter().filter(|b| **b == b'\n').count());
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    assert_eq!(span.column as usize, 1 + before.len() - line_start);
}

trait SplitOnceAt {
    fn split_once_at(&self, byte: u8) -> (&[u8], &[u8]);
}

impl SplitOnceAt for [u8] {
    fn split_once_at(&self, byte: u8) -> (&[u8], &[u8]) {
        match self.iter().position(|b| *b == byte) {
            Some(at) => (&self[..at], &self[at + 1..]),
            None => (self, &[]),
        }
    }
}
