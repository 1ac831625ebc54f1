//! Any bytes as what a FastCGI server sends, whole and byte by byte: records, and the head of CGI inside them.
#![no_main]

use forebay_http::cgi::{self, BadHead};
use forebay_http::fastcgi::{BadRecord, RecordPart, Records};
use forebay_http::h1::client::ResponseHead;
use forebay_http::h1::request::Status;
use libfuzzer_sys::fuzz_target;

/// Output and words of the program, and how the reading ended.
fn feed(input: &[u8], piece: usize) -> (Vec<u8>, Vec<u8>, Result<bool, BadRecord>) {
    let mut records = Records::default();
    let (mut out, mut said) = (Vec::new(), Vec::new());
    for part in input.chunks(piece.max(1)) {
        let mut rest = part;
        loop {
            let took = match records.next(rest) {
                Ok(RecordPart::Stdout { start, end }) => {
                    out.extend_from_slice(&rest[start..end]);
                    end
                }
                Ok(RecordPart::Stderr { start, end, .. }) => {
                    said.extend_from_slice(&rest[start..end]);
                    end
                }
                Ok(RecordPart::More | RecordPart::End { .. }) => break,
                Err(bad) => return (out, said, Err(bad)),
            };
            rest = &rest[took..];
        }
    }
    (out, said, Ok(records.is_over()))
}

fn head(output: &[u8], piece: usize) -> (ResponseHead, Result<Status, BadHead>) {
    let mut head = ResponseHead::default();
    cgi::begin(&mut head);
    for part in output.chunks(piece.max(1)) {
        head.buf.extend_from_slice(part);
        match cgi::parse(&mut head, 512) {
            Ok(Status::Partial) => {}
            done => return (head, done),
        }
    }
    (head, Ok(Status::Partial))
}

fuzz_target!(|input: &[u8]| {
    let whole = feed(input, input.len());
    assert_eq!(whole, feed(input, 1));
    let (one, outcome) = head(&whole.0, whole.0.len());
    let (slow, slowly) = head(&whole.0, 1);
    assert_eq!(outcome.is_ok(), slowly.is_ok());
    match outcome {
        Ok(Status::Complete) => {
            assert!((200..1000).contains(&one.status));
            assert_eq!((one.status, one.len), (slow.status, slow.len));
        }
        Ok(Status::Partial) => {}
        Err(bad) => bad.message(&one, &mut Vec::new()),
    }
});
