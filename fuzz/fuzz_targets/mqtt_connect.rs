//! Any bytes where a CONNECT packet is expected, whole and cut: the outcome must not depend on what is still to come.
#![no_main]

use forebay_http::mqtt::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    match &whole {
        Ok(Some(connect)) => {
            let user_name = connect.user_name.as_deref().unwrap_or_default();
            // Both are parts of the packet, behind the headers.
            assert!(12 + connect.client_id.len() + user_name.len() <= data.len());
            assert!(contains(data, &connect.client_id) && contains(data, user_name));
        }
        // More bytes cannot turn it into a packet.
        Err(_) => assert!(parse(&[data, b"behind"].concat()).is_err()),
        Ok(None) => {}
    }
    if let Ok(Some(_)) = &whole {
        assert_eq!(parse(&[data, b"behind"].concat()), whole);
    }
    for n in 0..data.len().min(64) {
        match parse(&data[..n]) {
            Ok(None) => {}
            decided => assert_eq!(decided, whole),
        }
    }
});

/// Returns `true` if the text is in the data.
fn contains(data: &[u8], text: &[u8]) -> bool {
    text.is_empty() || data.windows(text.len()).any(|w| w == text)
}
