//! Any bytes where a ClientHello is expected, whole and cut: the outcome must not depend on what is still to come.
#![no_main]

use forebay_net::tls::hello::{Hello, Reading};
use forebay_net::tls::record::Broken;
use libfuzzer_sys::fuzz_target;

fn parse(data: &[u8]) -> Result<Option<Hello>, Broken> {
    Reading::default().more(data)
}

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
    // What was read of the first half is kept, and comes to the same.
    let mut reading = Reading::default();
    if let Ok(None) = reading.more(half) {
        assert_eq!(reading.more(data), whole);
    }
});
