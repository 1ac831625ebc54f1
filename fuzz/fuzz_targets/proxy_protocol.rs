//! Any bytes as the beginning of a connection with a PROXY protocol header: no panic, a header never ends
//! behind the bytes, and what is complete stays so when more follows.
#![no_main]

use forebay_http::proxy_protocol::{MAX, Parsed, parse, tlv};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let parsed = parse(data);
    if let Ok(Parsed::Complete(len, header)) = &parsed {
        assert!(*len > 0 && *len <= data.len() && *len <= MAX);
        assert_eq!(parse(&data[..*len]), parsed);
        assert_eq!(parse(&[data, b"x"].concat()), parsed);
        for kind in 0..=255 {
            let _ = header.as_ref().map(|h| tlv(&h.tlvs, kind));
        }
    }
    let _ = tlv(data, 1);
});
