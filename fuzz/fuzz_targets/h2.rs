//! Any bytes as frames of a connection's peer, and as field blocks of one connection, one after the other; what was encoded
//! decodes to itself.
#![no_main]

use forebay_http::compression::huffman;
use forebay_http::compression::{Field, Sink};
use forebay_http::h1::request::Limits;
use forebay_http::h2::connection::Connection;
use forebay_http::h2::hpack::Decoder;
use forebay_http::h2::link::{Got, Link, Request};
use forebay_http::h2::received::{Frame, Role};
use forebay_http::h2::{encode, frame, request};
use forebay_http::request::RequestHead;
use libfuzzer_sys::fuzz_target;

struct Fields(Vec<(Vec<u8>, Vec<u8>)>);

impl Sink for Fields {
    fn field(&mut self, Field { name, value, .. }: Field<'_>) {
        self.0.push((name.to_vec(), value.to_vec()));
    }
}

/// Reads all frames, as the end in `role`.
fn frames(role: Role, mut input: &[u8]) {
    let mut connection = Connection::new(role, frame::MAX_WINDOW as u32);
    while let Ok(Some((frame, len))) = connection.read(input) {
        assert!((frame::HEADER_LEN..=frame::HEADER_LEN + frame::MAX_FRAME).contains(&len));
        input = &input[len..];
        let block = &mut connection.field_block;
        match frame {
            Frame::Headers { section, fragment, end_headers: false } => block.begin(section, fragment),
            Frame::Continuation { fragment, end_headers } => {
                block.extend(fragment);
                if end_headers {
                    let (_, bytes) = block.finish().expect("a block was begun");
                    block.recycle(bytes);
                }
            }
            Frame::Settings(settings) => assert!(settings.iter(role).count() == settings.count()),
            Frame::Data { content, len, .. } => assert!(content.len() <= len),
            _ => {}
        }
    }
}

/// Takes the frames of an upstream with three requests, one of which is given up in the middle.
fn upstream(input: &[u8]) {
    let mut link: Link<()> = Link::default();
    let request =
        Request { head: b"GET / HTTP/1.1\r\n\r\n", https: false, trailers: true, end: true, limit: 4096 };
    let ids = [(); 3].map(|()| {
        link.reserve();
        link.open(&request)
    });
    let sent = link.pending().len();
    link.wrote(sent);
    let (first, second) = input.split_at(input.len() / 2);
    let mut content = Vec::new();
    let is_sound = link.take(first).is_ok();
    link.remove(ids[1]);
    let is_sound = is_sound && link.take(second).is_ok();
    for id in [ids[0], ids[2]] {
        let mut head = Vec::new();
        while link.next_head(id, &mut head) {
            assert!(head.ends_with(b"\r\n\r\n"));
            head.clear();
        }
        while let Got::Bytes(n) = link.read(id, &mut content) {
            assert!(n > 0);
        }
        link.trailers(id, &mut |name, value| {
            assert!(!name.is_empty() && !value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
        });
    }
    assert!(content.len() <= input.len());
    if is_sound {
        assert_eq!(link.streams(), 2);
    }
}

fuzz_target!(|input: &[u8]| {
    frames(Role::Client, input);
    frames(Role::Server, input);
    upstream(input);
    let mut decoder = Decoder::default();
    let mut scratch = Vec::new();
    let mut rest = input;
    while let Some(h) = frame::FrameHeader::parse(rest) {
        let len = h.len.min(rest.len() - frame::HEADER_LEN);
        let (payload, next) = rest[frame::HEADER_LEN..].split_at(len);
        rest = next;
        let h = frame::FrameHeader { kind: frame::kind::HEADERS, ..h };
        let Ok(Frame::Headers { section, fragment, .. }) = Frame::read(&h, payload, Role::Client) else {
            continue;
        };
        let mut head = RequestHead::default();
        let end = section.end_stream;
        if request::parse(&mut decoder, fragment, end, &mut head, &mut scratch, &Limits::default()).is_err() {
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
