use super::super::encode;
use super::super::frame::FrameHeader;
use super::*;

type Plain = Link<()>;

fn request(l: &mut Plain, head: &[u8], end: bool) -> u32 {
    l.reserve();
    l.open(&Request { head, https: false, trailers: false, end, limit: 4096 })
}

fn get(l: &mut Plain) -> u32 {
    request(l, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true)
}

fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_settings(&mut out, pairs);
    out
}

/// A link past the server's SETTINGS, with a request, stream 1, on it.
fn open(end: bool) -> Plain {
    let mut l = Plain::default();
    request(&mut l, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", end);
    l.take(&settings(&[])).unwrap();
    written(&mut l);
    l
}

/// Returns what is to be written, which is written.
fn written(l: &mut Plain) -> Vec<u8> {
    let out = l.pending().to_vec();
    l.wrote(out.len());
    out
}

fn frame(payload: &[u8], kind: u8, flags: u8, stream: u32) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_header(&mut out, payload.len(), kind, flags, stream);
    [&out, payload].concat()
}

fn headers_on(stream: u32, status: u16, flags: u8) -> Vec<u8> {
    let mut block = Vec::new();
    encode::status(&mut block, status);
    frame(&block, kind::HEADERS, flags, stream)
}

fn headers(status: u16, flags: u8) -> Vec<u8> {
    headers_on(1, status, flags)
}

fn data_on(stream: u32, text: &[u8], flags: u8) -> Vec<u8> {
    frame(text, kind::DATA, flags, stream)
}

fn data(text: &[u8], flags: u8) -> Vec<u8> {
    data_on(1, text, flags)
}

fn reset(stream: u32, code: Code) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_reset(&mut out, stream, code);
    out
}

fn window(stream: u32, increment: u32) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_window_update(&mut out, stream, increment);
    out
}

fn goaway(last: u32) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_goaway(&mut out, last, Code::NoError);
    out
}

fn head(l: &mut Plain, id: u32) -> String {
    let mut out = Vec::new();
    l.next_head(id, &mut out);
    String::from_utf8(out).unwrap()
}

/// Reads all content that has come.
fn content(l: &mut Plain, id: u32) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut piece = Vec::with_capacity(20_000);
        match l.read(id, &mut piece) {
            Got::Bytes(_) => all.extend(piece),
            _ => return all,
        }
    }
}

/// Returns streams with news.
fn news(l: &mut Plain) -> Vec<u32> {
    let ids = l.news.clone();
    l.news(|()| ());
    ids
}

const HEAD: u8 = flag::END_HEADERS;
const DONE: u8 = flag::END_HEADERS | flag::END_STREAM;

#[test]
fn a_response_in_any_pieces() {
    let mut all = headers(103, HEAD);
    all.extend(headers(200, HEAD));
    all.extend(data(b"one ", 0));
    all.extend(data(&[2, b't', b'w', b'o', 0, 0], flag::PADDED));
    let mut block = Vec::new();
    encode::field(&mut block, b"x-sum", b"12");
    all.extend(frame(&block, kind::HEADERS, DONE, 1));
    for piece in [1, 7, all.len()] {
        let mut l = open(true);
        for part in all.chunks(piece) {
            l.take(part).unwrap();
        }
        assert_eq!(news(&mut l), [1]);
        assert_eq!(head(&mut l, 1), "HTTP/1.1 103 Early Hints\r\n\r\n");
        assert_eq!(head(&mut l, 1), "HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(content(&mut l, 1), b"one two");
        let mut trailers = Vec::new();
        l.trailers(1, &mut |name, value| trailers.push((name.to_vec(), value.to_vec())));
        assert_eq!(trailers, [(b"x-sum".to_vec(), b"12".to_vec())]);
        assert!(l.is_over(1) && l.has_trailers(1));
        l.remove(1);
        assert_eq!((written(&mut l), l.streams(), l.goes_on()), (Vec::new(), 0, true));
    }
}

/// Frames of streams come in any order, and all requests of a turn leave together.
#[test]
fn streams_share_a_connection() {
    let mut l = open(true);
    let (two, three) = (get(&mut l), get(&mut l));
    assert_eq!((two, three, l.streams()), (3, 5, 3));
    let kinds: Vec<_> = frames_of(&written(&mut l)).into_iter().map(|(h, _)| (h.kind, h.stream)).collect();
    assert_eq!(kinds, [(kind::HEADERS, 3), (kind::HEADERS, 5)]);
    let came = [
        headers_on(5, 200, HEAD),
        headers_on(3, 404, HEAD),
        data_on(5, b"five", 0),
        data_on(3, b"three", flag::END_STREAM),
        headers_on(1, 204, DONE),
    ];
    l.take(&came.concat()).unwrap();
    assert_eq!(news(&mut l), [5, 3, 1]);
    assert_eq!(head(&mut l, 3), "HTTP/1.1 404 Not Found\r\n\r\n");
    assert_eq!((content(&mut l, 3), content(&mut l, 5)), (b"three".to_vec(), b"five".to_vec()));
    assert!(l.is_over(1) && l.is_over(3) && !l.is_over(5));
    l.remove(3);
    l.remove(1);
    l.take(&data_on(5, b" more", flag::END_STREAM)).unwrap();
    assert_eq!(content(&mut l, 5), b" more");
    l.remove(5);
    assert!(written(&mut l).is_empty());
}

fn frames_of(bytes: &[u8]) -> Vec<(FrameHeader, Vec<u8>)> {
    let (mut at, mut all) = (0, Vec::new());
    while let Some(h) = FrameHeader::parse(&bytes[at..]) {
        let begin = at + frame::HEADER_LEN;
        at = begin + h.len;
        all.push((h, bytes[begin..at].to_vec()));
    }
    all
}

/// Before the server has said how many streams it allows there is one.
#[test]
fn the_server_says_how_many_streams_there_are() {
    for (said, most) in [(None, MOST_STREAMS), (Some(1), 1), (Some(0), 0), (Some(7), 7), (Some(1000), 100)] {
        let mut l = Plain::default();
        assert_eq!((l.most(), l.has_room()), (1, true), "{said:?}");
        get(&mut l);
        assert!(!l.has_room());
        let pairs: Vec<_> = said.map(|n| (setting::MAX_CONCURRENT_STREAMS, n)).into_iter().collect();
        l.take(&settings(&pairs)).unwrap();
        assert_eq!((l.most(), l.has_room()), (most, most > 1), "{said:?}");
        l.remove(1);
        assert_eq!(l.has_room(), most > 0, "{said:?}");
    }
}

#[test]
fn content_waits_for_the_window() {
    let mut l = open(false);
    l.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 2)])).unwrap();
    written(&mut l);
    assert_eq!(l.content(1, b"abcd"), Ok(2));
    assert_eq!(l.content(1, b"cd"), Err(Refused::Full));
    l.await_room(1);
    assert_eq!(written(&mut l), data(b"ab", 0));
    assert_eq!(news(&mut l), [0; 0], "there is room, but no window");
    l.take(&window(1, 7)).unwrap();
    assert_eq!(news(&mut l), [1]);
    assert_eq!(l.content(1, b"cd"), Ok(2));
    l.end(1);
    assert_eq!(written(&mut l), data(b"cd", flag::END_STREAM));
}

/// A change of the initial window concerns streams that are open, also below 0.
#[test]
fn windows_of_open_streams_change() {
    let mut l = open(false);
    let other = request(&mut l, b"PUT / HTTP/1.1\r\n\r\n", false);
    assert_eq!(l.content(1, &[0; 1000]), Ok(1000));
    written(&mut l);
    l.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 100)])).unwrap();
    assert_eq!((l.room(1), l.room(other)), (0, 100));
    l.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 1010)])).unwrap();
    assert_eq!((l.room(1), l.room(other)), (10, 1010));
    l.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff)])).unwrap();
    l.take(&window(1, 1000)).unwrap();
    let fatal = l.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff)]));
    assert!(fatal.is_ok());
    let text = l.take(&window(1, 1)).map(|()| l.problem(1).cloned());
    assert!(text.unwrap().unwrap().text.contains("too large window"), "of the stream alone");
    assert!(l.problem(other).is_none());
}

/// The end goes with the last content, unless that has left.
#[test]
fn the_end_of_a_request() {
    let mut l = open(false);
    l.content(1, &[b'x'; MAX_FRAME + 1]).unwrap();
    l.end(1);
    let flags: Vec<_> = frames_of(&written(&mut l)).into_iter().map(|(h, _)| (h.len, h.flags)).collect();
    assert_eq!(flags, [(MAX_FRAME, 0), (1, flag::END_STREAM)]);
    let mut l = open(false);
    l.content(1, b"x").unwrap();
    l.wrote(1);
    l.end(1);
    let ended = [data(b"x", 0), data(b"", flag::END_STREAM)].concat();
    assert_eq!(written(&mut l), ended[1..]);
    let mut l = open(false);
    l.end(1);
    assert_eq!(written(&mut l), data(b"", flag::END_STREAM));
    assert_eq!(l.content(1, b"x"), Err(Refused::Over));
}

/// Those that were served longest ago come first, and each gets a share.
#[test]
fn room_is_shared() {
    let mut l = open(false);
    let put = |l: &mut Plain| request(l, b"PUT / HTTP/1.1\r\n\r\n", false);
    let ids = [1, put(&mut l), put(&mut l)];
    l.take(&[window(0, 1 << 30), window(1, 1 << 30), window(3, 1 << 30), window(5, 1 << 30)].concat())
        .unwrap();
    written(&mut l);
    let large = vec![0; 4 * OUT];
    assert_eq!(l.content(1, &large), Ok(OUT));
    for id in ids {
        assert_eq!(l.content(id, &large), Err(Refused::Full));
        l.await_room(id);
    }
    written(&mut l);
    assert_eq!(news(&mut l), [3, 5, 1]);
    for id in [3, 5, 1] {
        assert_eq!(l.content(id, &large), Ok(OUT / 3), "{id}");
        assert_eq!(l.content(id, &large), Err(Refused::Full), "{id}");
    }
}

#[test]
fn long_heads_are_continued() {
    let mut l = Plain::default();
    written(&mut l);
    let head = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "{".repeat(40_000));
    request(&mut l, head.as_bytes(), true);
    let kinds: Vec<_> = frames_of(&written(&mut l)).into_iter().map(|(h, _)| (h.kind, h.flags)).collect();
    assert_eq!(kinds, [(1, flag::END_STREAM), (9, 0), (9, HEAD)]);
}

/// Content that nobody reads fills the window of its stream, and holds up no other.
#[test]
fn a_stream_has_the_room_of_its_window() {
    let mut l = open(true);
    let other = get(&mut l);
    l.take(&[headers(200, HEAD), headers_on(other, 200, HEAD)].concat()).unwrap();
    written(&mut l);
    for _ in 0..WINDOW as usize / MAX_FRAME {
        l.take(&data(&[0; MAX_FRAME], 0)).unwrap();
    }
    assert!(written(&mut l).is_empty());
    l.take(&data_on(other, b"x", 0)).unwrap();
    assert_eq!(content(&mut l, other), b"x");
    assert_eq!(content(&mut l, 1).len(), WINDOW as usize);
    // Once half of the window has been read, not with each read.
    let updates: Vec<_> = frames_of(&written(&mut l)).into_iter().map(|(h, _)| (h.kind, h.stream)).collect();
    assert_eq!(updates, [(kind::WINDOW_UPDATE, 1)]);
    let more = data(&[0; MAX_FRAME], 0);
    let taken = (0..20).take_while(|_| l.take(&more).is_ok()).count();
    assert!((8..16).contains(&taken), "{taken} frames, and no more than the window");
}

/// The window of the connection is opened for all that comes, read or not, wanted or not.
#[test]
fn the_window_of_the_connection_stays_open() {
    let mut l = open(true);
    let mut updates = 0;
    for _ in 0..300 {
        let id = l.next;
        get(&mut l);
        l.take(&headers_on(id, 200, HEAD)).unwrap();
        for n in 0..WINDOW as usize / MAX_FRAME {
            if n == 3 {
                l.remove(id);
            }
            l.take(&data_on(id, &[0; MAX_FRAME], 0)).unwrap();
        }
        updates += frames_of(&written(&mut l)).iter().filter(|(h, _)| h.kind == 8 && h.stream == 0).count();
    }
    assert!(updates >= 5, "{updates}");
}

#[test]
fn a_request_that_is_given_up_is_cancelled() {
    let mut l = open(true);
    l.take(&headers(200, HEAD)).unwrap();
    l.remove(1);
    assert_eq!(written(&mut l), reset(1, Code::Cancel));
    // Frames may be on their way.
    let late = [data(b"late", 0), headers(200, DONE), window(1, 5), reset(1, Code::Cancel)];
    l.take(&late.concat()).unwrap();
    assert!(l.goes_on() && written(&mut l).is_empty());
    let next = get(&mut l);
    l.take(&headers_on(next, 200, DONE)).unwrap();
    assert_eq!(head(&mut l, next), "HTTP/1.1 200 OK\r\n\r\n");
    // The server goes on sending after the reset.
    let more = data(&[0; MAX_FRAME], 0);
    assert!((0..40).any(|_| l.take(&more).is_err_and(|e| e.text.contains("closed stream"))));
}

/// Failures of one request leave the others alone.
#[test]
fn failures_of_a_request() {
    let ok = headers(200, HEAD);
    let big = vec![b'{'; 5000];
    let mut long = Vec::new();
    encode::status(&mut long, 200);
    encode::field(&mut long, b"x", &big);
    for (bytes, text, unsent) in [
        (data(b"x", 0), "unexpected DATA", false),
        (reset(1, Code::RefusedStream), "error 7", true),
        (reset(1, Code::InternalError), "error 2", false),
        (reset(1, Code::NoError), "error 0", false),
        ([ok.clone(), reset(1, Code::RefusedStream)].concat(), "error 7", false),
        ([ok.clone(), data(b"", 1), reset(1, Code::InternalError)].concat(), "error 2", false),
        (goaway(0), "GOAWAY frame with error 0", true),
        ([ok.clone(), goaway(0)].concat(), "GOAWAY frame with error 0", false),
        ([ok.clone(), ok.clone()].concat(), "pseudo-header in trailers", false),
        ([ok.clone(), frame(&[], kind::HEADERS, HEAD, 1)].concat(), "trailers that do not end", false),
        (headers(103, DONE), "without a final response", false),
        (headers(101, HEAD), "switched protocols", false),
        (frame(&long, kind::HEADERS, DONE, 1), "too big header", false),
        (frame(&[0; 4], kind::WINDOW_UPDATE, 0, 1), "WINDOW_UPDATE", false),
        (window(1, 0x7fff_ffff), "too large window", false),
        (headers(103, HEAD).repeat(101), "too many interim", false),
    ] {
        let mut l = open(false);
        let (other, goes) =
            (get(&mut l), !bytes.windows(9).any(|w| w[3] == kind::GOAWAY && w[5..9] == [0; 4]));
        l.take(&bytes).unwrap();
        let problem = l.problem(1).unwrap();
        assert!(problem.text.contains(text), "{} for {text}", problem.text);
        assert_eq!(problem.unsent, unsent, "{text}");
        assert_eq!(l.content(1, b"x"), Err(Refused::Failed), "{text}");
        assert_eq!((l.problem(other).is_none(), l.goes_on()), (goes, goes), "{text}");
        if goes {
            l.take(&headers_on(other, 200, DONE)).unwrap();
            assert!(l.is_over(other), "{text}");
        }
    }
}

/// A response in many frames that is too long for its request fails it alone.
#[test]
fn a_long_head_fails_its_request() {
    let mut block = Vec::new();
    encode::status(&mut block, 200);
    encode::field(&mut block, b"x", &[b'{'; 50_000]);
    let mut l = open(true);
    let other = get(&mut l);
    let mut all = Vec::new();
    frame::push_field_block(&mut all, 1, flag::END_STREAM, &block);
    l.take(&all).unwrap();
    assert!(l.problem(1).unwrap().text.contains("too big header"));
    l.take(&headers_on(other, 200, DONE)).unwrap();
    assert!(l.is_over(other));
}

#[test]
fn failures_of_the_connection() {
    let ok = headers(200, HEAD);
    for (bytes, text, code) in [
        (frame(&[], kind::PUSH_PROMISE, 4, 1), "PUSH_PROMISE", Code::ProtocolError),
        (frame(&[], kind::CONTINUATION, 4, 1), "CONTINUATION", Code::ProtocolError),
        (frame(&[0; 7], kind::PING, 0, 0), "PING", Code::FrameSizeError),
        (frame(&[0; 5], kind::SETTINGS, 0, 0), "SETTINGS", Code::FrameSizeError),
        (settings(&[(4, 0x8000_0000)]), "initial window", Code::FlowControlError),
        (settings(&[(5, 1)]), "max frame size", Code::ProtocolError),
        (window(0, 0), "WINDOW_UPDATE", Code::ProtocolError),
        (window(0, 0x7fff_ffff), "too large window", Code::FlowControlError),
        (window(3, 1), "unknown stream 3", Code::ProtocolError),
        (frame(&[0; 3], kind::GOAWAY, 0, 0), "GOAWAY", Code::FrameSizeError),
        (reset(3, Code::Cancel), "unknown stream 3", Code::ProtocolError),
        (frame(&[0x80], kind::HEADERS, 4, 1), "header block", Code::CompressionError),
        (headers_on(3, 200, HEAD), "unknown stream 3", Code::ProtocolError),
        (data_on(2, b"", 0), "unknown stream 2", Code::ProtocolError),
        (frame(&[9, 0x88], kind::HEADERS, 4 | flag::PADDED, 1), "padding", Code::ProtocolError),
        (frame(&[0x88], kind::HEADERS, 4 | flag::PRIORITY, 1), "too short", Code::FrameSizeError),
        ([frame(&[0x88], 1, 0, 1), data(b"", 0)].concat(), "inside a field block", Code::ProtocolError),
        ([ok.clone(), data(b"", 1), data(b"", 1)].concat(), "closed stream", Code::StreamClosed),
        (vec![0, 64, 1, 0, 0, 0, 0, 0, 1], "too large http2 frame", Code::FrameSizeError),
    ] {
        let e = open(true).take(&bytes).unwrap_err();
        assert!(e.text.contains(text), "{} for {text}", e.text);
        assert_eq!(e.code, code, "{text}");
    }
    let mut l = Plain::default();
    get(&mut l);
    assert!(l.take(b"HTTP/1.1 400 Bad Request\r\n").is_err());
}

#[test]
fn a_byte_of_padding_behind_huffman_code_is_taken() {
    // "&" is eight bits of code, so that one more byte is too much.
    let block = [0x88, 0, 1, b'x', 0x82, 0xf8, 0xff];
    let mut l = open(true);
    l.take(&frame(&block, kind::HEADERS, DONE, 1)).unwrap();
    assert_eq!(head(&mut l, 1), "HTTP/1.1 200 OK\r\nx: &\r\n\r\n");
}

#[test]
fn floods_are_cut_off() {
    let ping = frame(&[0; 8], kind::PING, 0, 0);
    let floods: [(&str, Vec<u8>, bool); 8] = [
        ("PING, not read", ping.clone(), false),
        ("SETTINGS, not read", settings(&[]), false),
        ("PING", ping, true),
        ("SETTINGS", settings(&[]), true),
        ("WINDOW_UPDATE", window(0, 1), true),
        ("empty DATA", data(b"", 0), true),
        ("acknowledgements", frame(&[0; 8], kind::PING, flag::ACK, 0), true),
        ("unknown frames", frame(&[], 99, 0, 1), true),
    ];
    for (what, bytes, reads) in floods {
        let mut l = open(true);
        l.take(&headers(200, HEAD)).unwrap();
        let ended = (0..20_000).any(|_| {
            if reads {
                written(&mut l);
            }
            l.take(&bytes).is_err_and(|e| e.code == Code::EnhanceYourCalm)
        });
        assert!(ended, "{what}");
    }
    let mut l = open(true);
    l.take(&headers(200, 0)).unwrap();
    let more = frame(&[], kind::CONTINUATION, 0, 1);
    assert!((0..20_000).any(|_| l.take(&more).is_err()));
}

/// Streams up to the last one that the server names go on, later ones were not acted upon.
#[test]
fn a_server_leaves() {
    let mut l = open(true);
    let ids = [1, get(&mut l), get(&mut l)];
    l.take(&goaway(3)).unwrap();
    assert_eq!(ids.map(|id| l.problem(id).is_some_and(|p| p.unsent)), [false, false, true]);
    assert!(!l.goes_on());
    l.take(&[headers_on(3, 200, DONE), headers(200, DONE)].concat()).unwrap();
    assert!(l.is_over(1) && l.is_over(3));
    written(&mut l);
    ids.iter().for_each(|id| l.remove(*id));
    assert!(written(&mut l).is_empty(), "none is cancelled");
}

/// A server may answer before it has read the request. The stream is over once either side has reset it, and the connection goes on.
#[test]
fn a_connection_goes_on_after_an_early_answer() {
    for by_server in [false, true] {
        let mut l = open(false);
        l.take(&headers(200, DONE)).unwrap();
        assert!(l.is_over(1));
        assert_eq!(l.content(1, b"x"), Err(Refused::Over));
        if by_server {
            l.take(&reset(1, Code::NoError)).unwrap();
        }
        assert!(l.problem(1).is_none());
        l.remove(1);
        assert_eq!(written(&mut l), if by_server { Vec::new() } else { reset(1, Code::NoError) });
        assert!(l.goes_on() && l.has_room());
        // A late frame of the earlier stream leaves the next one alone.
        let next = get(&mut l);
        l.take(&reset(1, Code::NoError)).unwrap();
        l.take(&headers_on(next, 200, DONE)).unwrap();
        assert!(l.is_over(next));
    }
}

/// Content that the server discards has to be acknowledged before the next request, which may have content, too.
#[test]
fn a_connection_without_window_does_not_go_on() {
    let mut l = open(false);
    while l.content(1, &[0; 16384]).is_ok() {
        written(&mut l);
    }
    assert!(l.has_room() && l.goes_on(), "the request that fills the window goes on");
    l.take(&headers(200, DONE)).unwrap();
    l.take(&reset(1, Code::NoError)).unwrap();
    assert!(!l.has_room());
    l.remove(1);
    assert!(!l.goes_on());
    l.take(&window(0, 60_000)).unwrap();
    assert!(l.goes_on() && l.has_room());
}

/// An idle connection takes frames that concern no request.
#[test]
fn late_frames_do_no_harm() {
    let mut l = open(true);
    l.take(&headers(200, DONE)).unwrap();
    l.remove(1);
    let late = [
        window(1, 9),
        window(0, 9),
        frame(&[1; 8], kind::PING, 0, 0),
        settings(&[(3, 9)]),
        reset(1, Code::NoError),
    ];
    l.take(&late.concat()).unwrap();
    assert!(l.goes_on() && l.most() == 9);
    let kinds: Vec<_> = frames_of(&written(&mut l)).into_iter().map(|(h, _)| (h.kind, h.flags)).collect();
    assert_eq!(kinds, [(kind::PING, flag::ACK), (kind::SETTINGS, flag::ACK)]);
}

#[test]
fn identifiers_come_to_an_end() {
    let mut l = open(true);
    l.next = LAST_STREAM - 1;
    assert!(l.goes_on());
    get(&mut l);
    assert!(!l.goes_on());
}

/// The server wants no table of ours, which the next field block has to say.
#[test]
fn a_smaller_table_is_acknowledged() {
    let mut l = open(true);
    l.take(&settings(&[(setting::HEADER_TABLE_SIZE, 0)])).unwrap();
    written(&mut l);
    get(&mut l);
    let frames = frames_of(&written(&mut l));
    assert_eq!(frames[0].1[0], 0x20);
}
