//! Any text as a cipher string or a list of groups.
#![no_main]

use forebay_net::tls::ciphers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Ok(list) = ciphers::parse(&text) {
        let names: Vec<_> = list.names().collect();
        assert_eq!(list.suites().count(), names.len());
        // What a list came to, written as a list, comes to the same. A security level may leave nothing of it.
        if let Ok(again) = ciphers::parse(&names.join(":")) {
            assert_eq!(again.names().collect::<Vec<_>>(), names);
            assert!(again.unserved.is_empty());
        }
    }
    let _ = ciphers::groups(&text);
    let _ = ciphers::suites13(&text);
});
