//! HTTP/2 over plain TCP, by frames made here: what is answered, what is refused, and what a client may cost.

use crate::harness::{Server, Site, origin, wait_for};
use forebay_http::h2::encode;
use forebay_http::h2::frame::{self, Code, FrameHeader, HEADER_LEN, PREFACE, flag, kind};
use forebay_http::h2::hpack::{Decoder, Field, Sink, push_int};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

fn serve(http: &str, server: &str) -> Server {
    let site = Site::new(&format!(
        "worker_processes 1;\nerror_log logs/error.log info;\nevents {{ worker_connections 256; }}\nhttp {{ access_log \
         logs/access.log; http2 on; {http}\nserver {{ listen 127.0.0.1:%PORT0%; {server} }} }}\n"
    ));
    site.write("html/page", &"x".repeat(10_000));
    site.write("html/large", &"0123456789".repeat(30_000));
    site.write("html/small", "small");
    Server::start_on(site)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn code(&self) -> u32 {
        let at = if self.kind == kind::GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("a code"))
    }
}

#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl Sink for Fields {
    fn field(&mut self, Field { name, value, .. }: Field<'_>) {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        self.0.push((text(name), text(value)));
    }
}

#[derive(Debug, Default, Clone)]
struct Answer {
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    ended: bool,
    reset: Option<u32>,
}

impl Answer {
    fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v)
    }
}

struct Client {
    stream: TcpStream,
    decoder: Decoder,
    buf: Vec<u8>,
    /// Window updates are sent for what is read.
    reads: bool,
}

impl Client {
    fn new(server: &Server) -> Client {
        Client::on(TcpStream::connect(server.addr(0)).expect("connect"))
    }

    fn on(mut stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(Duration::from_secs(15))).expect("timeout");
        let mut hello = PREFACE.to_vec();
        frame::push_settings(&mut hello, &[]);
        stream.write_all(&hello).expect("preface");
        Client { stream, decoder: Decoder::default(), buf: Vec::new(), reads: true }
    }

    /// Sends bytes; a connection that the server has closed takes none.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let mut out = Vec::new();
        frame::push_header(&mut out, payload.len(), kind, flags, stream);
        out.extend_from_slice(payload);
        self.send(&out)
    }

    fn request(&mut self, stream: u32, path: &str, more: &[(&str, &str)], end: bool) -> bool {
        let mut block = Vec::new();
        let pseudo = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", path)];
        for (name, value) in pseudo.iter().filter(|(n, _)| !more.iter().any(|(m, _)| m == n)).chain(more) {
            block.push(0);
            push_int(&mut block, 0, 7, name.len());
            block.extend_from_slice(name.as_bytes());
            push_int(&mut block, 0, 7, value.len());
            block.extend_from_slice(value.as_bytes());
        }
        let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
        self.frame(kind::HEADERS, flags, stream, &block)
    }

    /// The next frame; `None` at the end of the connection.
    fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(h) = FrameHeader::parse(&self.buf)
                && let Some(payload) = self.buf.get(HEADER_LEN..HEADER_LEN + h.len)
            {
                let f = Frame { kind: h.kind, flags: h.flags, stream: h.stream, payload: payload.to_vec() };
                self.buf.drain(..HEADER_LEN + h.len);
                return Some(f);
            }
            let mut piece = [0; 16384];
            match self.stream.read(&mut piece) {
                Ok(n) if n > 0 => self.buf.extend_from_slice(&piece[..n]),
                _ => return None,
            }
        }
    }

    /// Reads until the stream ends.
    fn answer(&mut self, stream: u32) -> Answer {
        let mut a = Answer::default();
        let mut block = Vec::new();
        while let Some(f) = self.next() {
            if matches!(f.kind, kind::HEADERS | kind::CONTINUATION) {
                block.extend_from_slice(&f.payload);
                if f.flags & flag::END_HEADERS != 0 {
                    let mut fields = Fields::default();
                    self.decoder.decode(&block, &mut Vec::new(), &mut fields).expect("HPACK");
                    block.clear();
                    if f.stream == stream {
                        if a.fields.is_empty() || a.field(":status").starts_with('1') {
                            a.fields = fields.0;
                        } else {
                            a.trailers = fields.0;
                        }
                    }
                }
            }
            if f.stream == stream {
                match f.kind {
                    kind::DATA => {
                        a.body.extend_from_slice(&f.payload);
                        if self.reads && !f.payload.is_empty() {
                            let mut out = Vec::new();
                            frame::push_window_update(&mut out, 0, f.payload.len() as u32);
                            frame::push_window_update(&mut out, stream, f.payload.len() as u32);
                            self.send(&out);
                        }
                    }
                    kind::RST_STREAM => {
                        a.reset = Some(f.code());
                        return a;
                    }
                    _ => {}
                }
                let ends = matches!(f.kind, kind::HEADERS | kind::DATA);
                if ends && f.flags & flag::END_STREAM != 0 {
                    a.ended = true;
                    return a;
                }
            }
            if f.kind == kind::GOAWAY && f.code() != 0 {
                return a;
            }
        }
        a
    }

    /// Reads until the server says goodbye; its code.
    fn goodbye(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(f) = self.next() {
            if f.kind == kind::GOAWAY {
                code = Some(f.code());
            }
        }
        code
    }
}

#[test]
fn files_of_all_sizes_and_bodies_both_ways() {
    let server = serve(
        "",
        "client_body_temp_path %DIR%/body; location /echo { client_body_buffer_size 1k; proxy_pass http://127.0.0.1:%PORT0%/body; } location /body { \
         client_max_body_size 10m; proxy_pass http://127.0.0.1:%PORT0%/size; } location /size { return 200 \
         $content_length; } location /trailer { add_trailer X-End \"yes\"; alias html/page; }",
    );
    let mut c = Client::new(&server);
    let mut stream = 1;
    for (path, len) in [("/small", 5), ("/page", 10_000), ("/large", 300_000)] {
        assert!(c.request(stream, path, &[], true));
        let a = c.answer(stream);
        assert_eq!((a.field(":status"), a.body.len(), a.ended), ("200", len, true), "{path}");
        assert_eq!(a.field("content-length"), len.to_string());
        stream += 2;
    }
    // Without a length, in pieces, with padding.
    c.request(stream, "/echo", &[(":method", "POST")], false);
    let mut padded = vec![3];
    padded.extend_from_slice(&[b'a'; 1000]);
    padded.extend_from_slice(&[0; 3]);
    c.frame(kind::DATA, flag::PADDED, stream, &padded);
    for _ in 0..9 {
        c.frame(kind::DATA, 0, stream, &[b'b'; 5000]);
    }
    c.frame(kind::DATA, flag::END_STREAM, stream, b"");
    let a = c.answer(stream);
    let log = server.error_log();
    assert_eq!((a.field(":status"), a.body.as_slice()), ("200", &b"46000"[..]), "{log}");
    c.request(stream + 2, "/trailer", &[], true);
    let a = c.answer(stream + 2);
    assert_eq!((a.body.len(), a.trailers), (10_000, vec![("x-end".to_owned(), "yes".to_owned())]));
    c.request(stream + 4, "/page", &[(":method", "HEAD")], true);
    let a = c.answer(stream + 4);
    assert_eq!((a.field("content-length"), a.body.len(), a.ended), ("10000", 0, true));
    let log = wait_for("lines", || Some(server.site.read("logs/access.log")).filter(|l| l.contains("HEAD")));
    assert!(log.contains("\"GET /large HTTP/2.0\" 200 300000"), "{log}");
}

#[test]
fn many_streams_share_a_connection() {
    let server = serve("", "");
    let mut c = Client::new(&server);
    c.reads = false;
    // Room for all of it.
    let mut out = Vec::new();
    frame::push_window_update(&mut out, 0, 1 << 30);
    frame::push_settings(&mut out, &[(frame::setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
    c.send(&out);
    let streams: Vec<u32> = (0..50).map(|i| 1 + 2 * i).collect();
    for s in &streams {
        c.request(*s, "/large", &[], true);
    }
    let mut got = std::collections::HashMap::new();
    let mut ended = 0;
    while ended < streams.len() {
        let f = c.next().expect("a frame");
        if f.kind == kind::DATA {
            *got.entry(f.stream).or_insert(0) += f.payload.len();
            ended += usize::from(f.flags & flag::END_STREAM != 0);
        }
    }
    assert!(streams.iter().all(|s| got[s] == 300_000), "{got:?}");
}

#[test]
fn urgent_streams_come_first() {
    let server = serve("", "");
    let mut c = Client::new(&server);
    c.reads = false;
    c.request(1, "/large", &[("priority", "u=5")], true);
    c.request(3, "/large", &[("priority", "u=1")], true);
    // The window of the connection is full when this many bytes are here.
    let mut n = 0;
    while n < 65535 {
        let f = c.next().expect("a frame");
        n += if f.kind == kind::DATA { f.payload.len() } else { 0 };
    }
    let mut out = Vec::new();
    for s in [1, 3, 0] {
        frame::push_window_update(&mut out, s, 1 << 20);
    }
    c.send(&out);
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let f = c.next().expect("a frame");
        if f.kind == kind::DATA && f.flags & flag::END_STREAM != 0 {
            ends.push(f.stream);
        }
    }
    assert_eq!(ends, [3, 1]);
}

#[test]
fn a_broken_preface_and_http_1_on_one_address() {
    let server = serve("", "");
    assert!(server.get("/small").starts_with("HTTP/1.1 200 OK"));
    let mut preface = TcpStream::connect(server.addr(0)).expect("connect");
    preface.write_all(&PREFACE[..10]).expect("half");
    preface.write_all(&PREFACE[10..]).expect("half");
    let mut first = [0; HEADER_LEN];
    preface.read_exact(&mut first).expect("settings");
    assert_eq!(FrameHeader::parse(&first).map(|h| h.kind), Some(kind::SETTINGS));
    let said = server.raw(b"INVALID CONNECTION PREFACE\r\n\r\n");
    assert_eq!(FrameHeader::parse(&said).map(|h| h.kind), Some(kind::GOAWAY), "{said:?}");
}

#[test]
fn a_refused_head_is_answered_and_has_its_error_page() {
    let server = serve("", "error_page 400 /sorry; location /sorry { return 200 \"sorry\"; }");
    let mut c = Client::new(&server);
    c.request(1, "/", &[("X-Upper", "1")], true);
    let a = c.answer(1);
    assert_eq!((a.field(":status"), a.body.as_slice()), ("400", &b"sorry"[..]));
    // Malformed: the stream is reset behind the answer.
    let reset = loop {
        let f = c.next().expect("a frame");
        if f.kind == kind::RST_STREAM {
            break f.code();
        }
    };
    assert_eq!(reset, Code::ProtocolError as u32);
    // HTTP/1 has the same page.
    let said = String::from_utf8_lossy(&server.raw(b"GET / HTTP/1.1\r\nHost: .\r\n\r\n")).into_owned();
    assert!(said.starts_with("HTTP/1.1 400 ") && said.ends_with("sorry"), "{said}");
}

#[test]
fn a_graceful_end_says_goodbye_and_answers_what_was_asked() {
    let server = serve("", "location /slow { limit_rate 20k; alias html/page; }");
    let mut idle = Client::new(&server);
    idle.request(1, "/small", &[], true);
    assert!(idle.answer(1).ended);
    let mut busy = Client::new(&server);
    busy.request(1, "/slow", &[], true);
    let first = loop {
        let f = busy.next().expect("a frame");
        if f.kind == kind::HEADERS {
            break f;
        }
    };
    assert_eq!(first.stream, 1);
    server.signal(nix::sys::signal::Signal::SIGQUIT);
    assert_eq!(idle.goodbye(), Some(0));
    let mut n = 0;
    let mut goodbye = None;
    while let Some(f) = busy.next() {
        match f.kind {
            kind::DATA => n += f.payload.len(),
            kind::GOAWAY => goodbye = Some(f.code()),
            _ => {}
        }
    }
    assert_eq!((n, goodbye), (10_000, Some(0)));
}

/// A client that sends `frames` again and again; what GOAWAY said, and how often it was sent.
fn flood(server: &Server, most: usize, mut frames: impl FnMut(u32) -> Vec<u8>) -> (Option<u32>, usize) {
    let mut c = Client::new(server);
    c.request(1, "/small", &[], true);
    c.answer(1);
    let mut sent = 0;
    for i in 0..most {
        if !c.send(&frames(3 + 2 * i as u32)) {
            break;
        }
        sent += 1;
    }
    let _ = c.stream.shutdown(Shutdown::Write);
    (c.goodbye(), sent)
}

fn one(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_header(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

fn head(stream: u32, flags: u8) -> Vec<u8> {
    // GET / of http, the authority as a literal.
    let mut block = vec![0x82, 0x86, 0x84];
    encode::indexed_plain(&mut block, encode::AUTHORITY, b"localhost");
    one(kind::HEADERS, flags, stream, &block)
}

/// A client whose request is answered before it is complete is told to stop (RFC 9113, section 8.1): at once where it
/// has announced content, otherwise when it sends some.
#[test]
fn requests_that_are_answered_early_are_stopped() {
    let server = serve("", "");
    let mut c = Client::new(&server);
    let reset = |c: &mut Client, stream: u32| loop {
        let f = c.next().expect("a frame");
        if f.kind == kind::RST_STREAM && f.stream == stream {
            return f.code();
        }
    };
    let early = |c: &mut Client, stream: u32, more: &[(&str, &str)]| {
        c.request(stream, "/small", more, false);
        let a = c.answer(stream);
        assert!(a.ended && a.reset.is_none(), "{stream}");
    };
    early(&mut c, 1, &[("content-length", "5")]);
    assert_eq!(reset(&mut c, 1), Code::NoError as u32);
    early(&mut c, 3, &[]);
    c.frame(kind::DATA, 0, 3, b"abc");
    assert_eq!(reset(&mut c, 3), Code::NoError as u32);
    // It still has to keep the rules.
    early(&mut c, 5, &[]);
    c.frame(kind::WINDOW_UPDATE, 0, 5, &0x7fff_ffffu32.to_be_bytes());
    assert_eq!(reset(&mut c, 5), Code::FlowControlError as u32);
    early(&mut c, 7, &[]);
    c.frame(kind::DATA, flag::END_STREAM, 7, b"abc");
    early(&mut c, 9, &[]);
}

#[test]
fn floods_end_in_enhance_your_calm() {
    let calm = Some(Code::EnhanceYourCalm as u32);
    let whole = flag::END_HEADERS | flag::END_STREAM;
    type Frames = Box<dyn FnMut(u32) -> Vec<u8>>;
    let floods: Vec<(&str, usize, Frames)> = vec![
        (
            "rapid reset",
            2000,
            Box::new(move |s| {
                let mut out = head(s, flag::END_HEADERS);
                frame::push_reset(&mut out, s, Code::Cancel);
                out
            }),
        ),
        (
            "reset by a window of nothing",
            2000,
            Box::new(move |s| {
                let mut out = head(s, flag::END_HEADERS);
                frame::push_window_update(&mut out, s, 0);
                out
            }),
        ),
        (
            "reset by too large a window",
            2000,
            Box::new(move |s| {
                let mut out = head(s, flag::END_HEADERS);
                frame::push_window_update(&mut out, s, 0x7fff_ffff);
                out
            }),
        ),
        (
            "data behind the end",
            2000,
            Box::new(move |s| {
                let mut out = head(s, whole);
                out.extend(one(kind::DATA, 0, s, b"x"));
                out
            }),
        ),
        ("SETTINGS", 5000, Box::new(|_| one(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]))),
        ("PING", 5000, Box::new(|_| one(kind::PING, 0, 0, &[0; 8]))),
        ("unknown frames", 5000, Box::new(|_| one(0x77, 0, 0, b"x"))),
        ("PRIORITY", 5000, Box::new(|_| one(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 1]))),
        ("WINDOW_UPDATE", 5000, Box::new(|_| one(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))),
        ("GOAWAY, PING", 5000, Box::new(|_| one(kind::PING, flag::ACK, 0, &[0; 8]))),
    ];
    for (what, most, frames) in floods {
        // A server for each: a source that misbehaved has less.
        let server = serve("", "location = / { return 204; }");
        let (code, sent) = flood(&server, most, frames);
        // The goodbye may be lost where the client goes on sending into a closed connection.
        assert!(code == calm || (code.is_none() && sent < most), "{what}: {code:?} after {sent}");
        server.wait_for_log("client sent too many", 1);
        assert!(server.get("/small").starts_with("HTTP/1.1 200"), "{what}");
    }
}

#[test]
fn field_blocks_have_an_end() {
    let server = serve("", "");
    // Without an end.
    let mut c = Client::new(&server);
    c.send(&head(1, flag::END_STREAM));
    for _ in 0..5 {
        c.frame(kind::CONTINUATION, 0, 1, &[0x82; 16_000]);
    }
    assert_eq!(c.goodbye(), Some(Code::EnhanceYourCalm as u32));
    // Of empty frames.
    let mut c = Client::new(&server);
    c.send(&head(1, flag::END_STREAM));
    let mut out = Vec::new();
    for _ in 0..20 {
        out.extend(one(kind::CONTINUATION, 0, 1, b""));
    }
    c.send(&out);
    assert_eq!(c.goodbye(), Some(Code::EnhanceYourCalm as u32));
    // One field of four kilobytes, referred to again and again.
    let mut c = Client::new(&server);
    let mut block = vec![0x82, 0x86, 0x84];
    encode::indexed_plain(&mut block, encode::AUTHORITY, b"localhost");
    block.push(0x40);
    push_int(&mut block, 0, 7, 1);
    block.push(b'x');
    push_int(&mut block, 0, 7, 3900);
    block.extend_from_slice(&[b'a'; 3900]);
    block.extend_from_slice(&[0x80 | 62; 12_000]);
    c.frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block);
    assert_eq!(c.goodbye(), Some(Code::EnhanceYourCalm as u32));
    // None of this is a flood: the reason stands in the log as it is, and the network stays trusted.
    server.wait_for_log("client sent too large field block", 1);
    assert!(!server.error_log().contains("client sent too many client"), "{}", server.error_log());
}

#[test]
fn a_client_that_does_not_read_costs_no_more_than_its_windows() {
    let server = serve("", "send_timeout 1s;");
    let mut c = Client::new(&server);
    c.reads = false;
    c.send(&one(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for i in 0..200 {
        c.request(1 + 2 * i, "/large", &[], true);
    }
    // Those beyond http2_max_concurrent_streams are refused; the others end when nobody reads them.
    let mut refused = 0;
    let mut ended = 0;
    while refused < 72 || ended < 128 {
        let f = c.next().expect("a frame");
        if f.kind == kind::RST_STREAM && f.code() == Code::RefusedStream as u32 {
            refused += 1;
        } else if f.kind == kind::RST_STREAM {
            ended += 1;
        }
        assert_ne!(f.kind, kind::DATA);
    }
    assert!(server.get("/small").starts_with("HTTP/1.1 200"));
}

/// What is idle is closed by the default server's `keepalive_timeout`, what has asked for nothing by `client_header_timeout`,
/// whatever else the client says meanwhile.
#[test]
fn idle_connections_are_closed_in_time() {
    let server = serve("client_header_timeout 1s;", "keepalive_timeout 1s; location / { return 204; }");
    let (mut ping, mut long) = (Vec::new(), Vec::new());
    frame::push_header(&mut ping, 8, kind::PING, 0, 0);
    ping.extend_from_slice(b"together");
    frame::push_header(&mut long, 4096, 0xbb, 0, 0);
    long.resize(4096, 0);
    // PINGs are answered, but are no requests; nor is the beginning of a frame.
    for (all, step) in [(&b""[..], 1), (&ping.repeat(200), ping.len()), (&long, 1)] {
        for asks in [false, true] {
            let begin = || {
                let mut client = Client::new(&server);
                if asks {
                    client.request(1, "/", &[], true);
                    assert_eq!(client.answer(1).field(":status"), "204");
                }
                client.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("timeout");
                (client, all.chunks(step))
            };
            let (mut client, mut pieces) = begin();
            let told = wait_for("the end", || {
                if !client.send(pieces.next().unwrap_or_default()) {
                    // A piece that crossed the end has reset the connection, and what the server said is lost: once more.
                    (client, pieces) = begin();
                }
                client.goodbye()
            });
            assert_eq!(told, 0, "{step} {asks}");
        }
    }
}

/// The end of a connection goes by its own server, not by the last that its runner had to do with.
#[test]
fn connections_without_requests_end_behind_a_reload() {
    let conf = |listen: &str, more: &str| {
        format!(
            "worker_processes 1; error_log logs/error.log info; events {{}} # %PORT1%\n\
             http {{ access_log off; http2 on; server {{ {listen} location / {{ return 204; }} {more} }} }}\n"
        )
    };
    let old: String = (0..20).map(|n| format!("location /{n} {{ return 204; }} ")).collect();
    let server = Server::start(&conf("listen 127.0.0.1:%PORT0%;", &old));
    assert!(server.get("/19").starts_with("HTTP/1.1 204"));
    server.site.write("nginx.conf", &conf("listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1%;", ""));
    server.signal(nix::sys::signal::Signal::SIGHUP);
    // Nobody else is answered there before the new configuration is in effect.
    let connect = || wait_for("the new address", || TcpStream::connect(server.addr(1)).ok());
    let mut client = Client::on(connect());
    client.frame(kind::GOAWAY, 0, 0, &[0; 8]);
    assert_eq!(client.goodbye(), None);
    let mut stranger = connect();
    stranger.write_all(b"nonsense\r\n\r\n").expect("write");
    stranger.shutdown(Shutdown::Write).expect("half closed");
    let mut told = Vec::new();
    stranger.read_to_end(&mut told).expect("an answer");
    assert_eq!(FrameHeader::parse(&told).map(|h| h.kind), Some(kind::GOAWAY));
    assert!(server.get("/").starts_with("HTTP/1.1 204"));
    assert!(!server.error_log().contains("panic"), "{}", server.error_log());
}

/// Requests that come together are served together, but not without end.
#[test]
fn a_client_that_never_stops_asking_does_not_hold_up_others() {
    let server = serve("keepalive_requests 100000000;", "location / { return 204; }");
    let client = Client::new(&server);
    let (mut writing, mut reading) = (client.stream.try_clone().expect("clone"), &client.stream);
    let (asked, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let asked = &asked;
    let (others, meanwhile) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for batch in 0.. {
                let frames: Vec<u8> = (0..16).flat_map(|n| head(1 + 2 * (16 * batch + n), 5)).collect();
                if over.load(Relaxed) || writing.write_all(&frames).is_err() {
                    return;
                }
                asked.fetch_add(16, Relaxed);
            }
        });
        scope.spawn(move || {
            let mut answers = [0; 65536];
            while matches!(reading.read(&mut answers), Ok(1..)) {}
        });
        let begun = asked.load(Relaxed);
        let mut others = Vec::new();
        while others.len() < 20 && others.last().is_none_or(|o: &String| o.starts_with("HTTP/1.1 204")) {
            others.push(server.get("/"));
        }
        let meanwhile = asked.load(Relaxed) - begun;
        over.store(true, Relaxed);
        let _ = client.stream.shutdown(Shutdown::Both);
        (others, meanwhile)
    });
    assert!(others.iter().all(|o| o.starts_with("HTTP/1.1 204")), "{others:?}");
    assert!(meanwhile > 1000, "the flood went on: {meanwhile}");
}

#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    let server = serve("", "location /status { stub_status; }");
    for _ in 0..20 {
        let mut c = Client::new(&server);
        for s in [1, 3, 5] {
            c.request(s, "/large", &[], true);
        }
        c.next();
    }
    wait_for("closed connections", || server.get("/status").contains("Active connections: 1 ").then_some(()));
}

/// Clients refuse a response with such a field as malformed (RFC 9113, section 8.2.2).
#[test]
fn responses_have_no_fields_of_a_connection() {
    const SPECIFIC: [&str; 7] = [
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "Transfer-Encoding",
        "Upgrade",
        "HTTP2-Settings",
        "TE",
    ];
    let there = origin::start(|mut asked| {
        let fields = "Connection: close\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\n\
                      HTTP2-Settings: AAAA\r\nTE: trailers\r\nX-Other: 1\r\n";
        asked.answer("200 OK", fields, "answer");
        false
    });
    let added: String =
        SPECIFIC.iter().map(|name| format!("add_header {name} x; add_trailer {name} x; ")).collect();
    let server = serve(
        "proxy_cache_path %DIR%/cache keys_zone=z:1m;",
        &format!(
            "location / {{ proxy_pass http://{there}; }}\n\
             location /cached {{ proxy_cache z; proxy_cache_valid 1m; proxy_pass http://{there}; }}\n\
             location /added {{ {added} add_header X-Other 1; alias %DIR%/html/small; }}"
        ),
    );
    for uri in ["/", "/cached", "/cached", "/added"] {
        let mut client = Client::new(&server);
        client.request(1, uri, &[], true);
        let answer = client.answer(1);
        assert_eq!((answer.field(":status"), answer.field("x-other")), ("200", "1"), "{uri}");
        for name in SPECIFIC {
            let has = |fields: &[(String, String)]| fields.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
            assert!(!has(&answer.fields) && !has(&answer.trailers), "{uri}: {name}");
        }
    }
    // Over HTTP/1 those that are not about the connection to the upstream pass, as in nginx.
    let answer = server.get("/");
    for line in [
        "Proxy-Connection: keep-alive\r\n",
        "Upgrade: h2c\r\n",
        "HTTP2-Settings: AAAA\r\n",
        "TE: trailers\r\n",
    ] {
        assert!(answer.contains(line), "{line}: {answer}");
    }
}

#[test]
fn curl_and_h2load_are_served() {
    let server = serve("keepalive_requests 100000;", "");
    let url = format!("http://{}/page", server.addr(0));
    let got = std::process::Command::new("curl")
        .args(["-s", "-o", "/dev/null", "-w", "%{http_version} %{http_code} %{size_download}"])
        .args(["--http2-prior-knowledge", &url])
        .output()
        .expect("curl");
    assert_eq!(String::from_utf8_lossy(&got.stdout), "2 200 10000");
    let got = std::process::Command::new("h2load")
        .args(["-n", "20000", "-c", "10", "-m", "20", &url])
        .output()
        .expect("h2load");
    let text = String::from_utf8_lossy(&got.stdout);
    assert!(text.contains("20000 succeeded, 0 failed, 0 errored"), "{text}");
}

/// A client that does not know of our window yet may send again what has come too early, as it may to nginx.
#[test]
fn content_before_a_smaller_window_is_known_can_be_sent_again() {
    let server = serve("http2_body_preread_size 0;", "location / { return 200 x; }");
    let mut c = Client::new(&server);
    c.request(1, "/", &[(":method", "POST")], false);
    c.frame(kind::DATA, flag::END_STREAM, 1, &[b'x'; 1000]);
    assert_eq!(c.answer(1).reset, Some(Code::RefusedStream as u32));
    // What has no content is answered, and so is all once the window is known.
    c.request(3, "/", &[], true);
    assert_eq!(c.answer(3).field(":status"), "200");
    c.frame(kind::SETTINGS, flag::ACK, 0, &[]);
    c.request(5, "/", &[(":method", "POST")], false);
    assert_eq!(c.answer(5).field(":status"), "200");
}

/// As in nginx a location does not end the connection of other streams.
#[test]
fn keepalive_of_a_location_leaves_the_connection_open() {
    let server = serve(
        "",
        "location / { return 200 x; } location /time { keepalive_timeout 0; return 200 x; }
         location /requests { keepalive_requests 1; return 200 x; }",
    );
    let mut c = Client::new(&server);
    for (stream, path) in [(1, "/time"), (3, "/requests"), (5, "/")] {
        c.request(stream, path, &[], true);
        let answer = c.answer(stream);
        assert!(answer.field(":status") == "200" && answer.ended, "{path}: {answer:?}");
    }
    // That of the server does.
    let server = serve("", "keepalive_requests 2; location / { keepalive_requests 9; return 200 x; }");
    let mut c = Client::new(&server);
    for stream in [1, 3] {
        c.request(stream, "/", &[], true);
        assert_eq!(c.answer(stream).field(":status"), "200");
    }
    while c.next().is_some() {}
}

#[test]
fn line_breaks_in_variables_make_no_fields() {
    let server = serve(
        "",
        "location /a/ { return 302 $uri; } location /b/ { return 302 http://x$uri; }
         location /c/ { add_header X-U $uri; return 200 x; }",
    );
    let mut c = Client::new(&server);
    for (stream, path) in [(1, "/a/%0d%0aEvil"), (3, "/b/%0aEvil"), (5, "/c/%0dEvil")] {
        c.request(stream, path, &[], true);
        let answer = c.answer(stream);
        assert_eq!((answer.field(":status"), answer.field("location")), ("500", ""), "{answer:?}");
        assert_eq!(answer.field("x-u"), "", "{answer:?}");
    }
}

/// An upstream's answer to half a body is passed on at once, and the client told that the rest is not wanted.
#[test]
fn an_answer_before_the_end_of_the_body() {
    let up = crate::exchange::upstream(|asked| {
        asked.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig");
        false
    });
    let server = serve(
        "",
        &format!(
            "client_body_timeout 60s; location / {{ proxy_request_buffering off; proxy_pass http://{up}; }}"
        ),
    );
    let mut c = Client::new(&server);
    for (stream, length) in [(1, &[("content-length", "100")][..]), (3, &[])] {
        c.request(stream, "/", &[&[(":method", "PUT")], length].concat(), false);
        c.frame(kind::DATA, 0, stream, b"abc");
        let a = c.answer(stream);
        assert_eq!(
            (a.field(":status"), a.body.as_slice(), a.ended),
            ("413", &b"big"[..], true),
            "{length:?}"
        );
    }
    c.request(5, "/", &[], true);
    assert_eq!(c.answer(5).field(":status"), "413");
}

/// More clients than connections that send, or take, a byte now and then, or stop within a frame: they are given up for
/// others, with one line each.
#[test]
fn slow_clients_do_not_take_the_service_down() {
    let server = Server::start(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events { worker_connections 64; }\n\
         http { access_log logs/a.log; http2 on; server { listen 127.0.0.1:%PORT0%; location / { root html; }\n\
           location /up { client_max_body_size 0; proxy_pass http://127.0.0.1:%PORT1%; } }\n\
         server { listen 127.0.0.1:%PORT1%; return 200 ok; } }",
    );
    server.site.write("html/index.html", "one");
    server.site.write("html/large", &"x".repeat(1 << 20));
    let one = 1u32.to_be_bytes();
    type Trickle<'a> = &'a dyn Fn(&mut Client, u32) -> bool;
    let attacks: [(&str, Trickle, usize); 3] = [
        ("/up", &|c, id| c.frame(kind::DATA, 0, id, b"x"), 2),
        (
            "/large",
            &|c, id| c.frame(kind::WINDOW_UPDATE, 0, 0, &one) && c.frame(kind::WINDOW_UPDATE, 0, id, &one),
            2,
        ),
        ("", &|c, _| c.send(b""), 0),
    ];
    let text = "client is too slow and its connection is needed while processing HTTP/2 connection, client";
    let mut lines = 0;
    for (path, trickle, streams) in attacks {
        let mut slow: Vec<Client> = (0..80)
            .map(|_| {
                let mut c = Client::new(&server);
                for id in (1..).step_by(2).take(streams) {
                    let method = if path == "/up" { "POST" } else { "GET" };
                    c.request(id, path, &[(":method", method)], path != "/up");
                }
                // The beginning of a frame that never comes.
                assert!(streams > 0 || c.send(&[0, 0, 4, 1]));
                c
            })
            .collect();
        let (sender, answers) = std::sync::mpsc::channel();
        let addr = server.addr(0);
        std::thread::spawn(move || {
            for _ in 0..3 {
                let _ = sender.send(crate::harness::raw(addr, b"GET / HTTP/1.0\r\n\r\n"));
            }
        });
        let mut served = 0;
        wait_for("three answers", || {
            for client in &mut slow {
                (1..).step_by(2).take(streams).for_each(|id| {
                    trickle(client, id);
                });
            }
            while let Ok(answer) = answers.try_recv() {
                assert!(answer.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
                served += 1;
            }
            std::thread::sleep(Duration::from_millis(100));
            (served == 3).then_some(())
        });
        let log = server.error_log();
        let told = log.matches(text).count();
        assert!(told > lines, "{path}: {log}");
        lines = told;
        // Whoever is given up is told as much as there is room for.
        let left = slow.iter_mut().any(|c| {
            c.stream.set_nonblocking(true).expect("mode");
            std::iter::from_fn(|| c.next()).any(|f| f.kind == kind::GOAWAY)
        });
        assert!(left, "{path}");
    }
    let log = server.error_log();
    assert!(!log.contains("too slow and its connection is needed while reading"), "{log}");
    assert!(!log.contains("too slow and its connection is needed while sending"), "{log}");
}

/// Limits of names, values and their sum, as nginx 1.31.5 has them: they count what has been decoded. What follows a field for
/// which the request is refused is not judged.
#[test]
fn sizes_of_fields_at_the_edge() {
    let server = Server::start(
        "error_log logs/error.log info; pid logs/nginx.pid; events {}\n\
         http { access_log off; server { http2 on; listen 127.0.0.1:%PORT0%; large_client_header_buffers 4 2k; return 200; } }",
    );
    let status = |fields: &[(String, String)]| {
        let mut c = Client::new(&server);
        let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        c.request(1, "/", &fields, true);
        c.answer(1).field(":status").to_owned()
    };
    let field = |name: &str, value: usize| (name.to_owned(), "v".repeat(value));
    // Names and values of the pseudo-header fields count, too: 46 bytes.
    let all = |n: usize| {
        [1, 2, 3, 4, 5].map(|i| field(&format!("x{i}"), if i == 5 { n - 46 - 4 * 2002 - 2 } else { 2000 }))
    };
    assert_eq!(status(&[field("x", 2048)]), "200");
    assert_eq!(status(&[field("x", 2049)]), "");
    assert_eq!(status(&[field(&"n".repeat(2048), 1)]), "200");
    assert_eq!(status(&[field(&"n".repeat(2049), 1)]), "");
    assert_eq!(status(&[(":path".to_owned(), format!("/{}", "p".repeat(2047)))]), "200");
    assert_eq!(status(&[(":path".to_owned(), format!("/{}", "p".repeat(2048)))]), "");
    assert_eq!(status(&all(8192)), "200");
    assert_eq!(status(&all(8193)), "");
    for refused in ["X", "host"] {
        let twice = [field(refused, 1), field(refused, 1)];
        assert_eq!(status(&twice), "400");
        assert_eq!(status(&[&twice[..], &[field("x", 3000)]].concat()), "400", "{refused}");
        assert_eq!(status(&[&twice[..], &all(8192)].concat()), "400", "{refused}");
    }
    server.wait_for_log("client sent too large header field", 3);
}

/// A response to HEAD has no content, so it ends with its head, though the body of the upstream's response goes into a cache.
#[test]
fn a_response_to_head_ends_before_the_upstreams_body() {
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let up = origin::start(move |mut asked| {
        asked.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nCache-Control: max-age=60\r\n\r\nSEE-");
        let _ = wait.lock().expect("lock").recv();
        asked.write(b"THIS");
        true
    });
    let server = Server::start(&format!(
        "worker_processes 1; error_log logs/error.log; events {{}} http {{ access_log off; http2 on; \
         proxy_cache_path cache keys_zone=c:1m; server {{ listen 127.0.0.1:%PORT0%; location / {{ \
         proxy_pass http://{up}; proxy_cache c; }} }} }}"
    ));
    let mut client = Client::new(&server);
    client.request(1, "/a", &[(":method", "HEAD")], true);
    let answer = client.answer(1);
    assert_eq!((answer.field(":status"), answer.field("content-length")), ("200", "8"));
    assert!(answer.ended && answer.body.is_empty());
    drop(go_on);
    client.request(3, "/a", &[], true);
    assert_eq!(client.answer(3).body, b"SEE-THIS");
}

/// What a client's certificate was judged by may change while its connection stays open.
#[test]
fn a_reload_that_revokes_reaches_open_connections() {
    let site = crate::tls::site(
        "http2 on; server { listen 127.0.0.1:%PORT0% ssl; ssl_client_certificate ec.crt; ssl_verify_client on; \
         ssl_crl none.crl; return 200 $ssl_client_verify; }",
    );
    crate::tls::revocation_list(&site, "none.crl", false);
    crate::tls::revocation_list(&site, "revoked.crl", true);
    let server = Server::start_on(site);
    // openssl reads and writes the other end of a connection on which frames are made here.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let far = std::os::fd::OwnedFd::from(listener.accept().expect("accept").0);
    let mut openssl = std::process::Command::new("openssl")
        .args(["s_client", "-quiet", "-alpn", "h2", "-cert", "ec.crt", "-key", "ec.key", "-connect"])
        .arg(server.addr(0).to_string())
        .current_dir(server.site.dir())
        .stdin(far.try_clone().expect("clone"))
        .stdout(far)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("openssl");
    let mut client = Client::on(near);
    let mut stream = 1;
    let mut get = || {
        stream += 2;
        client.request(stream, "/", &[], true);
        let answer = client.answer(stream);
        (answer.field(":status").to_owned(), String::from_utf8_lossy(&answer.body).into_owned())
    };
    assert_eq!(get(), ("200".to_owned(), "SUCCESS".to_owned()));
    let text = server.site.read("nginx.conf").replace("none.crl", "revoked.crl");
    server.site.write("nginx.conf", &text);
    server.signal(nix::sys::signal::Signal::SIGHUP);
    wait_for("the new list", || {
        let (status, body) = get();
        assert!(status == "200" || status == "400", "{status}");
        body.contains("The SSL certificate error").then_some(())
    });
    openssl.kill().expect("kill");
    openssl.wait().expect("end");
}
