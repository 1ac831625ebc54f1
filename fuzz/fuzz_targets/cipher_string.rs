//! Any text as a cipher string, a list of groups, PEM text with a password.
#![no_main]

use forebay_net::tls::{ciphers, pem};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let list = ciphers::parse(&text);
    let names: Vec<_> = list.names().collect();
    assert_eq!(list.suites().count(), names.len());
    // What a list came to, written as a list, comes to the same.
    let again = ciphers::parse(&names.join(":"));
    assert_eq!(again.names().collect::<Vec<_>>(), names);
    assert!(again.unserved.is_empty());
    let _ = ciphers::groups(&text);
    let _ = ciphers::suites13(&text);
    for cert in pem::certificates(data) {
        let _ = forebay_net::tls::verify::public_key(&cert);
        let _ = forebay_net::tls::verify::is_for_host(&cert, "example.com");
    }
    let _ = pem::private_key(data, &[]);
});
