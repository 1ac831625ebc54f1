//! Any bytes where a connection request of RDP is expected, whole and cut: the outcome must not depend on what is still to come.
#![no_main]

use forebay_http::rdp::{cookie, value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole = cookie(data);
    if let Ok(Some(text)) = whole {
        assert!(text.len() + 11 <= data.len());
        assert!(!text.windows(2).any(|w| w == b"\r\n"));
        if let Some(value) = value(text, b"mstshash") {
            assert!(text.ends_with(value) && text.len() == value.len() + 9);
        }
    }
    if whole != Ok(None) {
        assert_eq!(cookie(&[data, b"\r\nbehind"].concat()), whole);
    }
    for n in 0..data.len().min(64) {
        match cookie(&data[..n]) {
            Ok(None) => {}
            decided => assert_eq!(decided, whole),
        }
    }
});
