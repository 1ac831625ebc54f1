//! Any bytes, whole and in pieces: same outcome, slices within the buffer, no climb above the root.
#![no_main]

use forebay_http::field::Slice;
use forebay_http::h1::request::{Limits, Reject, Status, parse};
use forebay_http::request::RequestHead;
use libfuzzer_sys::fuzz_target;

fn feed(input: &[u8], limits: &Limits, piece: usize) -> (RequestHead, Result<Status, Reject>) {
    let mut head = RequestHead::default();
    for part in input.chunks(piece.max(1)) {
        head.buf.extend_from_slice(part);
        match parse(&mut head, limits) {
            Ok(Status::Partial) => {}
            done => return (head, done),
        }
    }
    (head, Ok(Status::Partial))
}

fn check(head: &RequestHead) {
    assert!(head.len > 0 && head.len <= head.buf.len());
    let within = |s: Slice| assert!(s.start <= s.end && s.end as usize <= head.len);
    within(head.request_line);
    within(head.target);
    within(head.args);
    within(head.method_text);
    within(head.protocol);
    head.ignored.iter().for_each(|&s| within(s));
    for line in &head.fields {
        within(line.name);
        within(line.value);
        assert!(!line.value.of(&head.buf).iter().any(|b| matches!(b, 0 | b'\r' | b'\n')));
    }
    assert!(!head.target.is_empty());
    assert_eq!(head.path.first(), Some(&b'/'));
    assert!(!head.path.contains(&0));
    assert!(!head.path.split(|&b| b == b'/').any(|s| s == b".." || s == b"."));
    assert!(!head.host.iter().any(|b| b.is_ascii_uppercase() || b"/\\@ ".contains(b)));
}

fuzz_target!(|data: &[u8]| {
    let Some((&options, input)) = data.split_first() else { return };
    let limits = Limits {
        client_header_buffer_size: if options & 1 == 0 { 1024 } else { 64 },
        large_client_header_buffers: if options & 2 == 0 { (4, 8192) } else { (2, 128) },
        max_headers: if options & 4 == 0 { 1000 } else { 3 },
        ignore_invalid_headers: options & 8 == 0,
        underscores_in_headers: options & 16 != 0,
        merge_slashes: options & 32 == 0,
        connect: options & 64 != 0,
    };
    let (head, outcome) = feed(input, &limits, input.len());
    let (slow_head, slow) = feed(input, &limits, 1 + (options >> 6) as usize);
    assert_eq!(outcome.map_err(|r| r.status), slow.map_err(|r| r.status));
    match outcome {
        Ok(Status::Complete) => {
            check(&head);
            assert_eq!((head.len, &head.path, &head.host), (slow_head.len, &slow_head.path, &slow_head.host));
            assert_eq!(format!("{:?}", head.fields), format!("{:?}", slow_head.fields));
            assert_eq!((head.framing, head.keep_alive), (slow_head.framing, slow_head.keep_alive));
        }
        Ok(Status::Partial) => {}
        Err(reject) => reject.message(&head, &mut Vec::new()),
    }
});
