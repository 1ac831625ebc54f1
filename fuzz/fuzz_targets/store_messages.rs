//! Any bytes as messages of the shared store. Assertions are in `read_any`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let read = forebay_core::shared_store::read_any(bytes);
    // What follows a reply does not change it.
    if read.is_some() {
        let more = [bytes, b"\r\n"].concat();
        assert_eq!(forebay_core::shared_store::read_any(&more), read);
    }
});
