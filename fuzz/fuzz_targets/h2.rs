//! Any bytes as field blocks of one connection, one after the other; what was encoded decodes to itself.
#![no_main]

use forebay_http::h1::request::Limits;
use forebay_http::h2::hpack::{Decoder, Field, Sink};
use forebay_http::h2::{encode, frame, huffman, request};
use forebay_http::request::RequestHead;
use libfuzzer_sys::fuzz_target;

struct Fields(Vec<(Vec<u8>, Vec<u8>)>);

impl Sink for Fields {
    fn field(&mut self, Field { name, value, .. }: Field<'_>) {
        self.0.push((name.to_vec(), value.to_vec()));
    }
}

fuzz_target!(|input: &[u8]| {
    let mut decoder = Decoder::default();
    let mut scratch = Vec::new();
    let mut rest = input;
    while let Some(h) = frame::Header::parse(rest) {
        let len = h.len.min(rest.len() - frame::HEADER_LEN);
        let (payload, next) = rest[frame::HEADER_LEN..].split_at(len);
        rest = next;
        let Ok((start, end)) = frame::unpad(&h, payload) else { continue };
        let block = &payload[start..end];
        let mut head = RequestHead::default();
        let end = h.has(frame::flag::END_STREAM);
        if request::parse(&mut decoder, block, end, &mut head, &mut scratch, &Limits::default()).is_err() {
            break;
        }
        assert!(decoder.size() <= 4096);
        for f in &head.fields {
            assert!(!f.value.of(&head.buf).iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
        }
    }
    let mut block = Vec::new();
    let (name, value) = input.split_at(input.len().min(5));
    encode::field(&mut block, name, value);
    let mut got = Fields(Vec::new());
    if value.len() < 100_000 && Decoder::default().decode(&block, &mut scratch, &mut got).is_ok() {
        assert_eq!(got.0, [(name.to_ascii_lowercase(), value.to_vec())]);
    }
    let mut coded = Vec::new();
    huffman::encode(input, &mut coded);
    let mut back = Vec::new();
    assert_eq!(huffman::decode(&coded, &mut back), Ok(()));
    assert_eq!(back, input);
});
