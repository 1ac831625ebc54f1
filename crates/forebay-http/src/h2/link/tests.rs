use super::super::encode;
use super::super::frame::FrameHeader;
use super::*;

fn request(l: &mut Link, head: &[u8], end: bool) {
    l.request(&Request { head, https: false, trailers: false, end, limit: 4096 });
}

/// A link with a request without content on it, past the server's SETTINGS.
fn open(end: bool) -> Link {
    let mut l = Link::default();
    request(&mut l, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", end);
    let mut server = Vec::new();
    frame::push_settings(&mut server, &[]);
    l.take(&server, &mut Vec::new()).unwrap();
    l.out.clear();
    l
}

fn headers(status: u16, flags: u8) -> Vec<u8> {
    let mut block = Vec::new();
    encode::status(&mut block, status);
    let mut out = Vec::new();
    frame::push_header(&mut out, block.len(), kind::HEADERS, flags, 1);
    [out, block].concat()
}

fn data(text: &[u8], flags: u8) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_header(&mut out, text.len(), kind::DATA, flags, 1);
    [&out, text].concat()
}

const DONE: u8 = flag::END_HEADERS | flag::END_STREAM;

#[test]
fn a_response_in_any_pieces() {
    let mut all = headers(103, flag::END_HEADERS);
    all.extend(headers(200, flag::END_HEADERS));
    all.extend(data(b"one ", 0));
    all.extend(data(&[2, b't', b'w', b'o', 0, 0], flag::PADDED));
    let mut block = Vec::new();
    encode::field(&mut block, b"x-sum", b"12");
    frame::push_header(&mut all, block.len(), kind::HEADERS, DONE, 1);
    all.extend(block);
    for piece in [1, 7, all.len()] {
        let (mut l, mut content) = (open(true), Vec::new());
        for part in all.chunks(piece) {
            l.take(part, &mut content).unwrap();
        }
        assert_eq!(l.next_head().unwrap(), b"HTTP/1.1 103 Early Hints\r\n\r\n");
        assert_eq!(l.next_head().unwrap(), b"HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(content, b"one two");
        assert_eq!(l.trailers().collect::<Vec<_>>(), [(&b"x-sum"[..], &b"12"[..])]);
        assert!(l.is_over());
        l.out.clear();
        assert!(l.is_reusable());
    }
}

#[test]
fn content_waits_for_the_window() {
    let mut l = open(false);
    let mut settings = Vec::new();
    frame::push_settings(&mut settings, &[(setting::INITIAL_WINDOW_SIZE, 2)]);
    l.take(&settings, &mut Vec::new()).unwrap();
    l.out.clear();
    assert_eq!(l.content(b"abcd", true), 2);
    assert_eq!(l.content(b"cd", true), 0);
    assert!(!l.is_sent());
    let mut update = Vec::new();
    frame::push_window_update(&mut update, 1, 7);
    l.take(&update, &mut Vec::new()).unwrap();
    assert_eq!(l.content(b"cd", true), 2);
    assert!(l.is_sent());
    assert_eq!(l.out, [data(b"ab", 0), data(b"cd", flag::END_STREAM)].concat());
}

#[test]
fn long_heads_are_continued() {
    let mut l = Link::default();
    l.out.clear();
    let head = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "{".repeat(40_000));
    request(&mut l, head.as_bytes(), true);
    let (mut at, mut kinds) = (0, Vec::new());
    while let Some(h) = FrameHeader::parse(&l.out[at..]) {
        kinds.push((h.kind, h.flags));
        at += frame::HEADER_LEN + h.len;
    }
    assert_eq!(kinds, [(1, flag::END_STREAM), (9, 0), (9, flag::END_HEADERS)]);
}

#[test]
fn room_is_given_again() {
    let (mut l, mut content) = (open(true), Vec::new());
    l.take(&headers(200, flag::END_HEADERS), &mut content).unwrap();
    let frames = WINDOW as usize / MAX_FRAME;
    for _ in 0..frames {
        l.take(&data(&[0; MAX_FRAME], 0), &mut content).unwrap();
    }
    assert!(l.clone_for_test().take(&data(b"x", 0), &mut content).unwrap_err().text.contains("flow control"));
    l.replenish();
    assert_eq!(l.out.len(), 2 * (frame::HEADER_LEN + 4));
    l.take(&data(b"x", flag::END_STREAM), &mut content).unwrap();
    assert_eq!(content.len(), WINDOW as usize + 1);
}

impl Link {
    /// The same receive windows and stream.
    fn clone_for_test(&self) -> Link {
        let mut l = open(true);
        l.connection.recv_window = self.connection.recv_window;
        (l.recv_window, l.final_head) = (self.recv_window, self.final_head);
        l
    }
}

#[test]
fn what_servers_may_not_send() {
    let f = |len: &[u8], kind: u8, flags: u8, stream: u32| {
        let mut out = Vec::new();
        frame::push_header(&mut out, len.len(), kind, flags, stream);
        [&out, len].concat()
    };
    let ok = headers(200, flag::END_HEADERS);
    for (bytes, text) in [
        (data(b"x", 0), "unexpected DATA"),
        (f(&[], kind::PUSH_PROMISE, 4, 1), "PUSH_PROMISE"),
        (f(&[], kind::CONTINUATION, 4, 1), "CONTINUATION"),
        (f(&[0; 7], kind::PING, 0, 0), "PING"),
        (f(&[0; 5], kind::SETTINGS, 0, 0), "SETTINGS"),
        (f(&[0, 4, 0x80, 0, 0, 0], kind::SETTINGS, 0, 0), "initial window"),
        (f(&[0, 5, 0, 0, 0, 1], kind::SETTINGS, 0, 0), "max frame size"),
        (f(&[0; 4], kind::WINDOW_UPDATE, 0, 0), "WINDOW_UPDATE"),
        (f(&[0x7f, 255, 255, 255], kind::WINDOW_UPDATE, 0, 0), "too large window"),
        (f(&[0; 3], kind::GOAWAY, 0, 0), "GOAWAY"),
        (f(&[0; 8], kind::GOAWAY, 0, 0), "GOAWAY frame with error 0"),
        (f(&[0, 0, 0, 7], kind::RST_STREAM, 0, 1), "error 7"),
        (f(&[0, 0, 0, 7], kind::RST_STREAM, 0, 3), "unknown stream 3"),
        (f(&[0x80], kind::HEADERS, 4, 1), "header block"),
        (f(&[0x88], kind::HEADERS, 4, 3), "unknown stream 3"),
        (f(&[9, 0x88], kind::HEADERS, 4 | flag::PADDED, 1), "padding"),
        (f(&[0x88], kind::HEADERS, 4 | flag::PRIORITY, 1), "too short"),
        ([f(&[0x88], kind::HEADERS, 0, 1), data(b"", 0)].concat(), "inside a field block"),
        ([ok.clone(), data(b"", 1), data(b"", 1)].concat(), "closed stream"),
        ([ok.clone(), ok.clone()].concat(), "pseudo-header in trailers"),
        (headers(103, DONE), "without a final response"),
        (headers(101, flag::END_HEADERS), "switched protocols"),
        (vec![0, 64, 1, 0, 0, 0, 0, 0, 1], "too large http2 frame"),
    ] {
        let e = open(true).take(&bytes, &mut Vec::new()).unwrap_err();
        assert!(e.text.contains(text), "{} for {text}", e.text);
        assert_eq!(e.unsent, matches!(bytes[3], kind::GOAWAY | kind::RST_STREAM) && e.text.contains("error"));
    }
    let mut l = Link::default();
    request(&mut l, b"GET / HTTP/1.1\r\n\r\n", true);
    assert!(l.take(b"HTTP/1.1 400 Bad Request\r\n", &mut Vec::new()).is_err());
}

#[test]
fn a_byte_of_padding_behind_huffman_code_is_taken() {
    // "&" is eight bits of code, so that one more byte is too much.
    let block = [0x88, 0, 1, b'x', 0x82, 0xf8, 0xff];
    let mut bytes = Vec::new();
    frame::push_header(&mut bytes, block.len(), kind::HEADERS, DONE, 1);
    bytes.extend_from_slice(&block);
    let mut l = open(true);
    l.take(&bytes, &mut Vec::new()).unwrap();
    assert_eq!(l.next_head().unwrap(), b"HTTP/1.1 200 OK\r\nx: &\r\n\r\n");
}

#[test]
fn floods_are_cut_off() {
    let mut ping = Vec::new();
    frame::push_header(&mut ping, 8, kind::PING, 0, 0);
    ping.extend_from_slice(&[0; 8]);
    let mut l = open(true);
    assert!((0..20_000).any(|_| l.take(&ping, &mut Vec::new()).is_err()));
    let mut l = open(true);
    l.take(&headers(200, 0), &mut Vec::new()).unwrap();
    let mut more = Vec::new();
    frame::push_header(&mut more, 0, kind::CONTINUATION, 0, 1);
    assert!((0..20_000).any(|_| l.take(&more, &mut Vec::new()).is_err()));
    let mut l = open(true);
    let hints = headers(103, flag::END_HEADERS);
    assert!((0..200).any(|_| l.take(&hints, &mut Vec::new()).is_err()));
}

#[test]
fn a_leaving_server_is_not_asked_again() {
    let mut goaway = Vec::new();
    frame::push_goaway(&mut goaway, 1, Code::NoError);
    let mut l = open(true);
    l.take(&headers(200, DONE), &mut Vec::new()).unwrap();
    assert!(l.is_reusable());
    l.take(&goaway, &mut Vec::new()).unwrap();
    assert!(!l.is_reusable());
}

/// A server may answer before it has read the request. The stream is over once either side has reset it, and the connection goes on.
#[test]
fn a_connection_goes_on_after_an_early_answer() {
    let mut reset = Vec::new();
    frame::push_reset(&mut reset, 1, Code::NoError);
    for by_server in [false, true] {
        let mut l = open(false);
        l.take(&headers(200, DONE), &mut Vec::new()).unwrap();
        l.out.clear();
        assert!(l.is_over() && !l.is_reusable());
        if by_server {
            l.take(&reset, &mut Vec::new()).unwrap();
        }
        l.leave();
        assert_eq!(l.out, if by_server { &[][..] } else { &reset });
        l.out.clear();
        assert!(l.is_reusable());
        // A late frame of the earlier stream leaves the next one alone.
        request(&mut l, b"GET / HTTP/1.1\r\n\r\n", true);
        l.take(&reset, &mut Vec::new()).unwrap();
        let mut next = headers(200, DONE);
        next[5..9].copy_from_slice(&3u32.to_be_bytes());
        l.take(&next, &mut Vec::new()).unwrap();
        assert!(l.is_over());
    }
}

/// Content that the server discards has to be acknowledged before the next request, which may have content, too.
#[test]
fn a_connection_without_window_does_not_go_on() {
    let mut reset = Vec::new();
    frame::push_reset(&mut reset, 1, Code::NoError);
    let mut l = open(false);
    while l.sendable() > 0 {
        l.content(&[0; 16384], false);
        l.out.clear();
    }
    l.take(&headers(200, DONE), &mut Vec::new()).unwrap();
    l.take(&reset, &mut Vec::new()).unwrap();
    l.out.clear();
    assert!(!l.is_reusable());
    let mut update = Vec::new();
    frame::push_window_update(&mut update, 0, 60_000);
    l.take(&update, &mut Vec::new()).unwrap();
    assert!(l.is_reusable());
}
