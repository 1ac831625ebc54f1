//! Several requests at a time on a connection over HTTP/2 to an upstream, whose frames are made here.

use crate::harness::certificates::P256;
use crate::harness::{DEADLINE, Server, Site, origin, wait_for};
use forebay_http::h2::encode;
use forebay_http::h2::frame::{self, Code, FrameHeader, flag, kind, setting};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const END: u8 = flag::END_STREAM;

/// A connection to an upstream, as that sees it.
struct Peer {
    stream: TcpStream,
    got: Vec<u8>,
}

impl Peer {
    /// Returns the next frame; `None` at the end.
    fn next(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        let mut buf = [0; 65_536];
        loop {
            if let Some(h) = FrameHeader::parse(&self.got)
                && self.got.len() >= frame::HEADER_LEN + h.len
            {
                let payload = self.got[frame::HEADER_LEN..frame::HEADER_LEN + h.len].to_vec();
                self.got.drain(..frame::HEADER_LEN + h.len);
                return Some((h, payload));
            }
            let n = self.stream.read(&mut buf).ok().filter(|n| *n > 0)?;
            self.got.extend_from_slice(&buf[..n]);
        }
    }

    /// Returns the next frame of a kind.
    fn next_of(&mut self, kind: u8) -> Option<(FrameHeader, Vec<u8>)> {
        loop {
            let (h, payload) = self.next()?;
            if h.kind == kind && !(kind == kind::SETTINGS && h.has(flag::ACK)) {
                return Some((h, payload));
            }
        }
    }

    /// Returns the stream of the next request.
    fn request(&mut self) -> Option<u32> {
        self.next_of(kind::HEADERS).map(|(h, _)| h.stream)
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        let _ = self.stream.write_all(&frames.concat());
    }

    /// Answers a request.
    fn answer(&mut self, stream: u32, text: &str) {
        self.send(&[headers(stream, 200, 0), data(stream, text.as_bytes(), END)]);
    }
}

fn frame_of(payload: &[u8], kind: u8, flags: u8, stream: u32) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_header(&mut out, payload.len(), kind, flags, stream);
    [&out, payload].concat()
}

fn headers(stream: u32, status: u16, flags: u8) -> Vec<u8> {
    let mut block = Vec::new();
    encode::status(&mut block, status);
    frame_of(&block, kind::HEADERS, flags | flag::END_HEADERS, stream)
}

fn data(stream: u32, text: &[u8], flags: u8) -> Vec<u8> {
    frame_of(text, kind::DATA, flags, stream)
}

fn reset(stream: u32, code: Code) -> Vec<u8> {
    frame_of(&(code as u32).to_be_bytes(), kind::RST_STREAM, 0, stream)
}

fn goaway(last: u32) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_goaway(&mut out, last, Code::NoError);
    out
}

fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_settings(&mut out, pairs);
    out
}

/// Starts an upstream with these settings; `serve` has each connection, with its number from 1.
fn upstream(
    pairs: &[(u16, u32)],
    serve: impl Fn(&mut Peer, usize) + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    let (first, serve) = (settings(pairs), Arc::new(serve));
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let number = count.fetch_add(1, SeqCst) + 1;
            let (serve, first) = (serve.clone(), first.clone());
            std::thread::spawn(move || {
                let mut ack = Vec::new();
                frame::push_settings_ack(&mut ack);
                let mut preface = [0; frame::PREFACE.len()];
                if stream.write_all(&first).is_ok() && stream.read_exact(&mut preface).is_ok() {
                    let _ = stream.write_all(&ack);
                    serve(&mut Peer { stream, got: Vec::new() }, number);
                }
            });
        }
    });
    (addr, connections)
}

/// Answers each request with the numbers of its connection and its stream.
fn tell(peer: &mut Peer, number: usize) {
    while let Some(stream) = peer.request() {
        peer.answer(stream, &format!("{number}.{stream}"));
    }
}

fn front(upstream: SocketAddr, group: &str, location: &str) -> Server {
    Server::start(&format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; client_body_temp_path %DIR%/body; client_max_body_size 100m;\n\
           proxy_http_version 2; upstream u {{ server {upstream}; {group} }}\n\
           server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; {location} }}\n\
             location /grpc {{ grpc_pass u; }} }} }}"
    ))
}

/// Asks, without waiting for an answer.
fn ask(server: &Server, method: &str, uri: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.addr(0)).expect("connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    write!(stream, "{method} {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("written");
    stream
}

fn get(server: &Server, uri: &str) -> TcpStream {
    ask(server, "GET", uri)
}

fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

fn body(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    match head.contains("chunked") {
        true => body.split("\r\n").nth(1).unwrap_or_default().to_owned(),
        false => body.to_owned(),
    }
}

/// The upstream answers when all requests are there, the last one first.
#[test]
fn requests_share_a_connection() {
    const COUNT: usize = 20;
    let (there, connections) = upstream(&[], |peer, number| {
        // One comes before the others, so that the settings are known.
        tell_one(peer, number);
        let all: Vec<_> = (0..COUNT).filter_map(|_| peer.request()).collect();
        all.iter().rev().for_each(|stream| peer.answer(*stream, &format!("{number}.{stream}")));
        tell(peer, number);
    });
    for uri in ["/", "/grpc"] {
        let server = front(there, "keepalive 4;", "");
        let begun = connections.load(SeqCst);
        assert_eq!(body(&rest(get(&server, uri))), format!("{}.1", begun + 1));
        let clients: Vec<_> = (0..COUNT).map(|_| get(&server, uri)).collect();
        let mut answers: Vec<_> = clients.into_iter().map(|c| body(&rest(c))).collect();
        answers.sort_unstable();
        answers.dedup();
        assert_eq!(answers.len(), COUNT, "{uri}: {answers:?}");
        assert_eq!(connections.load(SeqCst), begun + 1, "{uri}");
        assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
    }
}

fn tell_one(peer: &mut Peer, number: usize) {
    if let Some(stream) = peer.request() {
        peer.answer(stream, &format!("{number}.{stream}"));
    }
}

/// As many at a time as the server allows; others take another connection after a short while.
#[test]
fn the_server_says_how_many_requests_there_are() {
    for (allowed, expected) in [(1, 6), (2, 3), (3, 2), (100, 1)] {
        let waiting = Arc::new(AtomicUsize::new(0));
        let all = waiting.clone();
        let (there, connections) =
            upstream(&[(setting::MAX_CONCURRENT_STREAMS, allowed)], move |peer, number| {
                if number == 1 {
                    // One comes before the others, so that the settings are known.
                    tell_one(peer, number);
                }
                let (mut streams, mut most) = (Vec::new(), 0);
                let _ = peer.stream.set_read_timeout(Some(Duration::from_millis(20)));
                // Answers when all six requests are there.
                while all.load(SeqCst) < 6 {
                    if let Some(stream) = peer.request() {
                        streams.push(stream);
                        most = most.max(streams.len());
                        all.fetch_add(1, SeqCst);
                    }
                }
                streams.iter().for_each(|stream| peer.answer(*stream, &format!("{number}:{most}")));
                std::thread::sleep(Duration::from_millis(20));
            });
        let server = front(there, "keepalive 10;", "");
        rest(get(&server, "/"));
        let clients: Vec<_> = (0..6).map(|_| get(&server, "/")).collect();
        for answer in clients.into_iter().map(|c| body(&rest(c))) {
            let most: u32 = answer.split(':').nth(1).expect("a number").parse().expect("a number");
            assert!(most <= allowed, "{allowed}: {answer}");
        }
        // A request whose patience is over before the settings of a new connection have come opens another one.
        let opened = connections.load(SeqCst);
        assert!(opened == expected || (expected..6).contains(&opened) && expected > 1, "{allowed}: {opened}");
        assert_eq!(waiting.load(SeqCst), 6);
    }
}

/// A server that allows none has the one that is sent before its settings are known.
#[test]
fn a_server_that_allows_no_requests_holds_nobody_up() {
    let (there, _) = upstream(&[(setting::MAX_CONCURRENT_STREAMS, 0)], tell);
    let server = front(there, "keepalive 4;", "");
    for _ in 0..3 {
        assert!(rest(get(&server, "/")).starts_with("HTTP/1.1 200 "));
    }
}

/// Requests that the server has not acted upon go elsewhere, those before them go on.
#[test]
fn refused_requests_are_sent_elsewhere() {
    for by_goaway in [true, false] {
        let (there, connections) = upstream(&[], move |peer, number| {
            if number > 1 {
                return tell(peer, number);
            }
            tell_one(peer, number);
            let (Some(first), Some(second)) = (peer.request(), peer.request()) else { return };
            peer.send(&[if by_goaway { goaway(first) } else { reset(second, Code::RefusedStream) }]);
            if !by_goaway {
                // It comes again.
                tell_one(peer, number);
            }
            std::thread::sleep(Duration::from_millis(20));
            peer.answer(first, "the first");
            tell(peer, number);
        });
        let server = front(there, "keepalive 4;", "");
        rest(get(&server, "/"));
        let first = get(&server, "/");
        let second = ask(&server, "POST", "/");
        let second = body(&rest(second));
        // The order in which the two arrive is not certain.
        let answers = [body(&rest(first)), second];
        assert!(answers.contains(&"the first".to_owned()), "{by_goaway}: {answers:?}");
        let other = if by_goaway { "2.1" } else { "1.7" };
        assert!(answers.contains(&other.to_owned()), "{by_goaway}: {answers:?}");
        assert_eq!(connections.load(SeqCst), if by_goaway { 2 } else { 1 });
        assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
    }
}

/// A client that leaves cancels its stream and nothing else; what comes late for it does no harm.
#[test]
fn a_client_that_leaves_cancels_its_stream() {
    let (tells, told) = mpsc::channel();
    let (there, connections) = upstream(&[], move |peer, number| {
        tell_one(peer, number);
        let (Some(one), Some(two)) = (peer.request(), peer.request()) else { return };
        let _ = tells.send(Vec::new());
        let Some((h, code)) = peer.next_of(kind::RST_STREAM) else { return };
        let _ = tells.send(code);
        let (left, stays) = (h.stream, if h.stream == one { two } else { one });
        peer.send(&[
            headers(left, 200, 0),
            data(left, &[b'x'; 16_384], 0),
            frame_of(&[0, 0, 0, 9], kind::WINDOW_UPDATE, 0, left),
            reset(left, Code::Cancel),
        ]);
        peer.answer(stays, "stays");
        tell(peer, number);
    });
    let server = front(there, "keepalive 4;", "");
    rest(get(&server, "/"));
    let (leaves, stays) = (get(&server, "/leaves"), get(&server, "/stays"));
    assert_eq!(told.recv_timeout(DEADLINE), Ok(Vec::new()));
    drop(leaves);
    assert_eq!(told.recv_timeout(DEADLINE), Ok(8u32.to_be_bytes().to_vec()), "CANCEL");
    assert_eq!(body(&rest(stays)), "stays");
    assert_eq!(body(&rest(get(&server, "/"))), "1.7");
    assert_eq!(connections.load(SeqCst), 1);
}

/// Frames without a request do not end an idle connection, and are answered.
#[test]
fn frames_on_an_idle_connection() {
    let (tells, told) = mpsc::channel();
    let (there, connections) = upstream(&[], move |peer, number| {
        tell_one(peer, number);
        peer.send(&[
            frame_of(&[0, 0, 0, 9], kind::WINDOW_UPDATE, 0, 1),
            frame_of(&[0, 0, 0, 9], kind::WINDOW_UPDATE, 0, 0),
            settings(&[(setting::INITIAL_WINDOW_SIZE, 1000)]),
            frame_of(b"12345678", kind::PING, 0, 0),
        ]);
        let _ = tells.send(peer.next_of(kind::PING).map(|(h, payload)| (h.flags, payload)));
        tell(peer, number);
    });
    let server = front(there, "keepalive 4;", "");
    assert_eq!(body(&rest(get(&server, "/"))), "1.1");
    assert_eq!(told.recv_timeout(DEADLINE), Ok(Some((flag::ACK, b"12345678".to_vec()))));
    assert_eq!(body(&rest(get(&server, "/"))), "1.3");
    assert_eq!(connections.load(SeqCst), 1);
}

/// A client that reads nothing fills the window of its stream, and others go on.
#[test]
fn a_slow_client_holds_up_nobody() {
    const WINDOW: usize = 256 * 1024;
    let (there, connections) = upstream(&[], |peer, number| {
        tell_one(peer, number);
        let Some(slow) = peer.request() else { return };
        peer.send(&[headers(slow, 200, 0)]);
        let mut room = WINDOW as i64;
        let _ = peer.stream.set_read_timeout(Some(Duration::from_millis(50)));
        let mut sent = 0;
        // Until no window comes any more.
        loop {
            while room >= 16_384 {
                peer.send(&[data(slow, &[b'x'; 16_384], 0)]);
                (room, sent) = (room - 16_384, sent + 16_384);
            }
            match peer.next() {
                Some((h, payload)) if h.kind == kind::WINDOW_UPDATE && h.stream == slow => {
                    room += i64::from(u32::from_be_bytes(payload.try_into().expect("four bytes")));
                }
                Some((h, _)) if h.kind == kind::HEADERS => {
                    peer.answer(h.stream, &format!("{number}.{sent}"));
                }
                Some(_) => {}
                None if peer.stream.write(&[]).is_err() => return,
                None => {}
            }
        }
    });
    let server = front(there, "keepalive 4;", "proxy_max_temp_file_size 0;");
    rest(get(&server, "/"));
    let _slow = get(&server, "/slow");
    // Other requests are answered, and in the end the upstream cannot send more.
    let sent = |server: &Server| -> usize {
        let answer = body(&rest(get(server, "/")));
        answer.strip_prefix("1.").unwrap_or_else(|| panic!("{answer}")).parse().expect("a number")
    };
    let mut before = 0;
    wait_for("an end of the content", || {
        let now = sent(&server);
        let stands = now == before && now >= WINDOW;
        before = now;
        std::thread::sleep(Duration::from_millis(100));
        stands.then_some(())
    });
    assert!(before < 16 << 20, "{before} bytes");
    assert_eq!(connections.load(SeqCst), 1);
}

/// A request whose time is over ends its stream; the connection stays for others if something has come on it meanwhile.
#[test]
fn a_request_that_times_out() {
    for silent in [false, true] {
        let (there, connections) = upstream(&[], move |peer, number| {
            if number > 1 {
                return tell(peer, number);
            }
            tell_one(peer, number);
            let Some(_never) = peer.request() else { return };
            let _ = peer.stream.set_read_timeout(Some(Duration::from_millis(30)));
            loop {
                match peer.next() {
                    Some((h, _)) if h.kind == kind::HEADERS && !silent => peer.answer(h.stream, "1"),
                    _ if silent => {}
                    _ => peer.send(&[frame_of(b"12345678", kind::PING, 0, 0)]),
                }
            }
        });
        let server = front(there, "keepalive 4;", "proxy_read_timeout 300ms; proxy_next_upstream off;");
        rest(get(&server, "/"));
        assert!(rest(get(&server, "/never")).starts_with("HTTP/1.1 504 "), "{silent}");
        let answer = body(&rest(get(&server, "/")));
        assert_eq!(answer, if silent { "2.1" } else { "1" });
        assert_eq!(connections.load(SeqCst), if silent { 2 } else { 1 });
    }
}

/// A server that answers before it has read the request, and resets the stream, keeps the connection.
#[test]
fn a_connection_stays_after_an_early_answer() {
    let (there, connections) = upstream(&[], |peer, number| {
        while let Some(stream) = peer.request() {
            peer.answer(stream, &format!("{number}.{stream}"));
            // It has taken the content, which it does not need.
            let taken = frame_of(&20_000u32.to_be_bytes(), kind::WINDOW_UPDATE, 0, 0);
            peer.send(&[reset(stream, Code::NoError), taken]);
        }
    });
    let server = front(there, "keepalive 4;", "");
    for n in 0..5 {
        let mut client = TcpStream::connect(server.addr(0)).expect("connect");
        client.set_read_timeout(Some(DEADLINE)).expect("timeout");
        let head = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 20000\r\n\r\n";
        client.write_all(head.as_bytes()).and_then(|()| client.write_all(&[b'x'; 20_000])).expect("written");
        assert_eq!(body(&rest(client)), format!("1.{}", 2 * n + 1));
    }
    assert_eq!(connections.load(SeqCst), 1);
}

/// The directives about kept connections count requests, not connections.
#[test]
fn limits_of_connections() {
    for (group, uses, most) in [
        ("keepalive 4;", 9, 1),
        ("keepalive 4; keepalive_requests 3;", 9, 3),
        ("keepalive 0;", 9, 9),
        ("keepalive 4; keepalive_time 0;", 3, 3),
    ] {
        let (there, connections) = upstream(&[], tell);
        let server = front(there, group, "");
        for _ in 0..uses {
            assert!(rest(get(&server, "/")).starts_with("HTTP/1.1 200 "), "{group}");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(connections.load(SeqCst), most, "{group}");
    }
}

/// An idle connection is closed when its time is over, and one that ends its side is not asked again.
#[test]
fn idle_connections_end() {
    let (tells, told) = mpsc::channel();
    let (there, _) = upstream(&[], move |peer, number| {
        tell(peer, number);
        let _ = tells.send(number);
    });
    let server = front(there, "keepalive 4; keepalive_timeout 200ms;", "");
    assert_eq!(body(&rest(get(&server, "/"))), "1.1");
    assert_eq!(told.recv_timeout(DEADLINE), Ok(1));
    assert_eq!(body(&rest(get(&server, "/"))), "2.1");
    // The server closes.
    let (there, connections) = upstream(&[], tell_one);
    let server = front(there, "keepalive 4;", "");
    for _ in 0..5 {
        assert!(rest(get(&server, "/")).starts_with("HTTP/1.1 200 "));
    }
    assert!(connections.load(SeqCst) >= 5);
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

/// What belongs to one client is not shared.
#[test]
fn connections_of_one_client_are_not_shared() {
    let (there, connections) = upstream(&[], tell);
    let server = front(there, "keepalive 4;", "proxy_bind 127.0.0.$arg_a;");
    for (uri, answer) in [("/?a=1", "1.1"), ("/?a=2", "2.1"), ("/?a=1", "1.3"), ("/?a=2", "2.3")] {
        assert_eq!(body(&rest(get(&server, uri))), answer, "{uri}");
    }
    assert_eq!(connections.load(SeqCst), 2);
    // Connections of locations with `local`.
    let (there, connections) = upstream(&[], tell);
    let server = front(there, "keepalive 4 local;", "");
    for (uri, answer) in [("/", "1.1"), ("/grpc", "2.1"), ("/", "1.3"), ("/grpc", "2.3")] {
        assert_eq!(body(&rest(get(&server, uri))), answer, "{uri}");
    }
    assert_eq!(connections.load(SeqCst), 2);
}

/// Connections are used again whatever they go over; one that begins with the address of a client is not.
#[test]
fn ways_to_the_upstream() {
    let site = Site::new(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {}\n\
         http { access_log off; proxy_http_version 2; proxy_socket_keepalive on;\n\
           upstream plain { server 127.0.0.1:%PORT1%; keepalive 4; } upstream tls { server 127.0.0.1:%PORT2%; keepalive 4; }\n\
           upstream unix { server unix:%DIR%/h2; keepalive 4; } upstream named { server 127.0.0.1:%PORT3%; keepalive 4; }\n\
           server { listen 127.0.0.1:%PORT0%;\n\
             location /plain { proxy_pass http://plain; } location /tls { proxy_pass https://tls; }\n\
             location /unix { proxy_pass http://unix; } location /grpcs { grpc_pass grpcs://tls; }\n\
             location /named { proxy_protocol on; proxy_pass http://named; } }\n\
           server { listen 127.0.0.1:%PORT1%; listen unix:%DIR%/h2; listen 127.0.0.1:%PORT2% ssl;\n\
             listen 127.0.0.1:%PORT3% proxy_protocol; http2 on; ssl_certificate a.crt; ssl_certificate_key a.key;\n\
             location / { return 200 $connection_requests; } } }",
    );
    site.certificate("a", P256, "a", "");
    let server = Server::start_on(site);
    for (uri, requests) in [
        ("/plain", ["1", "2", "3"]),
        ("/tls", ["1", "2", "3"]),
        ("/unix", ["1", "2", "3"]),
        ("/named", ["1", "1", "1"]),
    ] {
        assert_eq!([(); 3].map(|()| body(&rest(get(&server, uri)))), requests, "{uri}");
    }
    assert!(rest(get(&server, "/grpcs")).starts_with("HTTP/1.1 200 "));
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

/// Large bodies at the same time, in windows that the server opens bit by bit and changes.
#[test]
fn uploads_take_turns() {
    const LENGTH: usize = 400_000;
    let (there, connections) = upstream(&[], |peer, number| {
        tell_one(peer, number);
        peer.send(&[settings(&[(setting::INITIAL_WINDOW_SIZE, 10_000)])]);
        let mut came = std::collections::HashMap::new();
        while let Some((h, payload)) = peer.next() {
            if !matches!(h.kind, kind::HEADERS | kind::DATA) {
                continue;
            }
            let all: &mut usize = came.entry(h.stream).or_default();
            if h.kind == kind::DATA {
                *all += payload.len();
            }
            if h.has(END) {
                peer.answer(h.stream, &format!("{number} {all}"));
            } else if h.len > 0 && h.kind == kind::DATA {
                let increment = (h.len as u32).to_be_bytes();
                peer.send(&[
                    frame_of(&increment, kind::WINDOW_UPDATE, 0, h.stream),
                    frame_of(&increment, kind::WINDOW_UPDATE, 0, 0),
                ]);
            }
        }
    });
    let server = Arc::new(front(there, "keepalive 4;", ""));
    rest(get(&server, "/"));
    let clients: Vec<_> = (0..5)
        .map(|_| {
            let server = server.clone();
            std::thread::spawn(move || {
                let head = format!(
                    "PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {LENGTH}\r\n\r\n"
                );
                body(&String::from_utf8_lossy(&server.raw(&[head.as_bytes(), &[b'x'; LENGTH]].concat())))
            })
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().expect("an answer"), format!("1 {LENGTH}"));
    }
    assert_eq!(connections.load(SeqCst), 1);
}

/// The end of a connection ends the requests on it; those that may be are sent again.
#[test]
fn a_connection_that_breaks_off() {
    let (there, _) = upstream(&[], |peer, number| {
        if number > 1 {
            return tell(peer, number);
        }
        tell_one(peer, number);
        let _ = (peer.request(), peer.request());
    });
    let server = front(there, "keepalive 4;", "");
    rest(get(&server, "/"));
    let (one, two) = (get(&server, "/"), get(&server, "/"));
    let mut answers = [body(&rest(one)), body(&rest(two))];
    answers.sort_unstable();
    assert_eq!(answers, ["2.1", "2.3"]);
}

/// A server that stops accepting holds up its own requests only as long as each of them says.
#[test]
fn waiting_for_a_connection_has_its_time() {
    let good = origin::start(|mut asked| {
        asked.answer("200 OK", "", "other");
        true
    });
    // Nobody accepts, and the queue is full.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let there = listener.local_addr().expect("address");
    let server = Server::start(&format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; upstream u {{ server {there}; keepalive 4; }}\n\
           server {{ listen 127.0.0.1:%PORT0%; proxy_read_timeout 300ms; proxy_connect_timeout 300ms;\n\
             location / {{ proxy_http_version 2; proxy_pass http://u; }} location /good {{ proxy_pass http://{good}; }} }} }}"
    ));
    let clients: Vec<_> = (0..5).map(|_| get(&server, "/")).collect();
    assert_eq!(body(&rest(get(&server, "/good"))), "other");
    for client in clients {
        assert!(rest(client).starts_with("HTTP/1.1 504 "));
    }
}
