//! `Accept-Encoding` of any bytes gives each coding at most once, and none that is switched off.
#![no_main]

use forebay_server::parts::{Coding, Set, rank};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let on = Set([first & 1 != 0, first & 2 != 0, first & 4 != 0]);
    let ranked: Vec<Coding> = rank(rest, on).iter().collect();
    for (i, c) in ranked.iter().enumerate() {
        assert!(on.has(*c) && !ranked[..i].contains(c));
    }
    if !rest.contains(&b'*') {
        // A coding that is not named is not taken.
        for c in &ranked {
            let name = c.name();
            assert!(rest.windows(name.len()).any(|w| w.eq_ignore_ascii_case(name)));
        }
    }
});
