//! Any document and any path: what is found lies in the document, and a value that is
//! found is a document of its own.
#![no_main]

use forebay_modules::parts::json::document::{Value, read};
use forebay_modules::parts::json::path::{Paths, parse};
use libfuzzer_sys::fuzz_target;

/// Paths that are always asked for.
const PATHS: [&[u8]; 4] = [b"$", b"a.b[0]", b"[1][\"\"]", b"a"];

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first() else { return };
    let (path, text) = rest.split_at(usize::from(*length).min(rest.len()));
    let mut paths = Paths::default();
    PATHS.iter().chain([&path]).filter_map(|path| parse(path).ok()).for_each(|steps| paths.add(&steps));
    let Ok(found) = read(text, &paths, 16) else { return };
    assert_eq!(found.len(), paths.len());
    for value in found.iter().flatten() {
        let mut out = Vec::new();
        value.push(text, &mut out);
        let (Value::String(range) | Value::Other(range)) = value;
        // Escapes never grow: six bytes for a character become three at most.
        assert!(range.end <= text.len() && out.len() <= range.len());
        if let Value::Other(range) = value {
            // A part that is a value is a document of its own.
            assert!(read(&text[range.clone()], &Paths::default(), 16).is_ok());
        }
    }
    let whole = found.first().and_then(Option::as_ref);
    assert!(whole.is_some());
});
