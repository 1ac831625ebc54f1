//! Any pattern: what the bridge lets through, an engine compiles or refuses, and running it ends.
#![no_main]

use forebay_core::pattern::Pattern;
use forebay_core::pattern::bridge::bridge;
use forebay_core::vars::{Registry, Source};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let at = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let (pattern, text) = data.split_at(at);
    if pattern.len() > 200 || text.len() > 1000 {
        return;
    }
    match bridge(pattern) {
        Err(e) => assert!(e.at <= pattern.len()),
        Ok(b) => {
            assert!(b.fancy.is_ascii() && (b.hard || b.plain.is_ascii()));
            if let Ok(p) =
                Pattern::compile(pattern, false, &mut Registry::<()>::new(|_| (Source::Unknown, true)))
            {
                let _ = p.is_match(text);
            }
        }
    }
});
