//! Any bytes as an upstream's response head, whole and byte by byte.
#![no_main]

use forebay_http::h1::client::{BadResponse, ResponseHead, framing_of_response, parse};
use forebay_http::h1::request::Status;
use libfuzzer_sys::fuzz_target;

fn feed(input: &[u8], piece: usize) -> (ResponseHead, Result<Status, BadResponse>) {
    let mut head = ResponseHead::default();
    for part in input.chunks(piece.max(1)) {
        head.buf.extend_from_slice(part);
        match parse(&mut head, 512) {
            Ok(Status::Partial) => {}
            done => return (head, done),
        }
    }
    (head, Ok(Status::Partial))
}

fuzz_target!(|input: &[u8]| {
    let (head, outcome) = feed(input, input.len());
    let (slow_head, slow) = feed(input, 1);
    assert_eq!(outcome.map_err(|e| e.reason), slow.map_err(|e| e.reason));
    match outcome {
        Ok(Status::Complete) => {
            assert!(head.len <= head.buf.len() && head.len == slow_head.len && head.status < 1000);
            assert_eq!(framing_of_response(&head, false), framing_of_response(&slow_head, false));
            for line in &head.fields {
                assert!(line.value.start <= line.value.end && line.value.end as usize <= head.len);
            }
        }
        Ok(Status::Partial) => {}
        Err(bad) => bad.message(&head, &mut Vec::new()),
    }
});
