//! Any key and any bytes as a reply of memcached.
#![no_main]

use forebay_http::memcached::{Reply, reply};
use forebay_http::uri::{Escape, escape};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (key, bytes) = input;
    let mut word = Vec::new();
    escape(key, Escape::Memcached, &mut word);
    assert!(word.len() <= 3 * key.len() && !word.iter().any(|b| *b <= b' '));
    // No key makes a command of two lines, and none is taken for another.
    assert_eq!(word == key, !key.iter().any(|b| *b <= b' ' || *b == b'%'));
    if let Some((end, said)) = reply(bytes, &word) {
        assert_eq!(bytes[end], b'\n');
        assert_eq!(reply(&bytes[..=end], &word), Some((end, said)), "the rest says nothing");
    }
    if !word.is_empty() {
        let line = [b"VALUE ", &*word, b" 7 9\r\n"].concat();
        assert_eq!(
            reply(&line, &word),
            Some((line.len() - 1, Ok(Reply::Found { flags: Some(7), length: 9 })))
        );
    }
});
