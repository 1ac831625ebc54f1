//! Any bytes where a ClientHello is expected, whole and cut: the outcome must not depend on what is still to come.
#![no_main]

use forebay_server::tls::hello::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    if let Ok(Some(hello)) = &whole {
        if let Some(name) = &hello.server_name {
            assert!(!name.is_empty() && name.len() < 256);
            assert!(name.iter().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()));
        }
        let more = [data, b"behind"].concat();
        assert_eq!(parse(&more), whole);
    }
    let half = data.get(..data.len() / 2).unwrap_or_default();
    if let Ok(Some(_)) = parse(half) {
        assert!(matches!(whole, Ok(Some(_))));
    }
});
