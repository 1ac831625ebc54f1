//! Several requests at a time on a connection over HTTP/2 to an upstream, whose frames are made here.

use forebay_http::h2::frame::{Code, flag, kind, setting};
use forebay_testkit::{Answer, DEADLINE, Origin, Server, Talk, h2, http, wait_for};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const END: u8 = flag::END_STREAM;

/// Answers each request with the numbers of its connection and its stream.
fn tell(peer: &mut h2::Peer, number: usize) {
    while let Some(stream) = peer.request() {
        peer.answer(stream, &format!("{number}.{stream}"));
    }
}

fn front(upstream: SocketAddr, group: &str, location: &str) -> Server {
    Server::start(http!(
        "client_max_body_size 100m;\n\
           proxy_http_version 2; upstream u {{ server {upstream}; {group} }}\n\
           server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; {location} }}\n\
             location /grpc {{ grpc_pass u; }} }}"
    ))
}

/// Asks, without waiting for an answer.
fn ask(server: &Server, method: &str, uri: &str) -> TcpStream {
    server.send(format!("{method} {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
}

/// Reads an answer to its end and returns its content.
fn content(stream: TcpStream) -> String {
    let mut stream = stream;
    stream.answer().text()
}

fn get(server: &Server, uri: &str) -> TcpStream {
    ask(server, "GET", uri)
}

/// The upstream answers when all requests are there, the last one first.
#[test]
fn requests_share_a_connection() {
    const COUNT: usize = 20;
    let (there, connections) = h2::upstream(&[], |peer, number| {
        // One comes before the others, so that the settings are known.
        tell_one(peer, number);
        let all: Vec<_> = (0..COUNT).filter_map(|_| peer.request()).collect();
        all.iter().rev().for_each(|stream| peer.answer(*stream, &format!("{number}.{stream}")));
        tell(peer, number);
    });
    for uri in ["/", "/grpc"] {
        let server = front(there, "keepalive 4;", "");
        let begun = connections.load(SeqCst);
        assert_eq!(content(get(&server, uri)), format!("{}.1", begun + 1));
        let clients: Vec<_> = (0..COUNT).map(|_| get(&server, uri)).collect();
        let mut answers: Vec<_> = clients.into_iter().map(content).collect();
        answers.sort_unstable();
        answers.dedup();
        assert_eq!(answers.len(), COUNT, "{uri}: {answers:?}");
        assert_eq!(connections.load(SeqCst), begun + 1, "{uri}");
        assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
    }
}

fn tell_one(peer: &mut h2::Peer, number: usize) {
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
            h2::upstream(&[(setting::MAX_CONCURRENT_STREAMS, allowed)], move |peer, number| {
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
        get(&server, "/").rest();
        let clients: Vec<_> = (0..6).map(|_| get(&server, "/")).collect();
        for answer in clients.into_iter().map(content) {
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
    let (there, _) = h2::upstream(&[(setting::MAX_CONCURRENT_STREAMS, 0)], tell);
    let server = front(there, "keepalive 4;", "");
    for _ in 0..3 {
        assert!(get(&server, "/").rest().starts_with("HTTP/1.1 200 "));
    }
}

/// Requests that the server has not acted upon go elsewhere, those before them go on.
#[test]
fn refused_requests_are_sent_elsewhere() {
    for by_goaway in [true, false] {
        let (there, connections) = h2::upstream(&[], move |peer, number| {
            if number > 1 {
                return tell(peer, number);
            }
            tell_one(peer, number);
            let (Some(first), Some(second)) = (peer.request(), peer.request()) else { return };
            peer.send(&[if by_goaway {
                h2::goaway(first)
            } else {
                h2::reset(second, Code::RefusedStream as u32)
            }]);
            if !by_goaway {
                // It comes again.
                tell_one(peer, number);
            }
            std::thread::sleep(Duration::from_millis(20));
            peer.answer(first, "the first");
            tell(peer, number);
        });
        let server = front(there, "keepalive 4;", "");
        get(&server, "/").rest();
        let first = get(&server, "/");
        let second = ask(&server, "POST", "/");
        let second = content(second);
        // The order in which the two arrive is not certain.
        let answers = [content(first), second];
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
    let (there, connections) = h2::upstream(&[], move |peer, number| {
        tell_one(peer, number);
        let (Some(one), Some(two)) = (peer.request(), peer.request()) else { return };
        let _ = tells.send(Vec::new());
        let Some(h) = peer.next_of(kind::RST_STREAM) else { return };
        let _ = tells.send(h.payload);
        let (left, stays) = (h.stream, if h.stream == one { two } else { one });
        peer.send(&[
            h2::status(left, 200, 0),
            h2::data(left, &[b'x'; 16_384], 0),
            h2::window_update(left, 9),
            h2::reset(left, Code::Cancel as u32),
        ]);
        peer.answer(stays, "stays");
        tell(peer, number);
    });
    let server = front(there, "keepalive 4;", "");
    get(&server, "/").rest();
    let (leaves, stays) = (get(&server, "/leaves"), get(&server, "/stays"));
    assert_eq!(told.recv_timeout(DEADLINE), Ok(Vec::new()));
    drop(leaves);
    assert_eq!(told.recv_timeout(DEADLINE), Ok(8u32.to_be_bytes().to_vec()), "CANCEL");
    assert_eq!(content(stays), "stays");
    assert_eq!(content(get(&server, "/")), "1.7");
    assert_eq!(connections.load(SeqCst), 1);
}

/// Frames without a request do not end an idle connection, and are answered.
#[test]
fn frames_on_an_idle_connection() {
    let (tells, told) = mpsc::channel();
    let (there, connections) = h2::upstream(&[], move |peer, number| {
        tell_one(peer, number);
        peer.send(&[
            h2::window_update(1, 9),
            h2::window_update(0, 9),
            h2::settings(&[(setting::INITIAL_WINDOW_SIZE, 1000)]),
            h2::frame(kind::PING, 0, 0, b"12345678"),
        ]);
        let _ = tells.send(peer.next_of(kind::PING).map(|f| (f.flags, f.payload)));
        tell(peer, number);
    });
    let server = front(there, "keepalive 4;", "");
    assert_eq!(content(get(&server, "/")), "1.1");
    assert_eq!(told.recv_timeout(DEADLINE), Ok(Some((flag::ACK, b"12345678".to_vec()))));
    assert_eq!(content(get(&server, "/")), "1.3");
    assert_eq!(connections.load(SeqCst), 1);
}

/// A client that reads nothing fills the window of its stream, and others go on.
#[test]
fn a_slow_client_holds_up_nobody() {
    const WINDOW: usize = 256 * 1024;
    let (there, connections) = h2::upstream(&[], |peer, number| {
        tell_one(peer, number);
        let Some(slow) = peer.request() else { return };
        peer.send(&[h2::status(slow, 200, 0)]);
        let mut room = WINDOW as i64;
        let _ = peer.stream.set_read_timeout(Some(Duration::from_millis(50)));
        let mut sent = 0;
        // Until no window comes any more.
        loop {
            while room >= 16_384 {
                peer.send(&[h2::data(slow, &[b'x'; 16_384], 0)]);
                (room, sent) = (room - 16_384, sent + 16_384);
            }
            match peer.next() {
                Some(h) if h.kind == kind::WINDOW_UPDATE && h.stream == slow => {
                    room += i64::from(u32::from_be_bytes(h.payload.try_into().expect("four bytes")));
                }
                Some(h) if h.kind == kind::HEADERS => {
                    peer.answer(h.stream, &format!("{number}.{sent}"));
                }
                Some(_) => {}
                None if peer.is_gone() => return,
                None => {}
            }
        }
    });
    let server = front(there, "keepalive 4;", "proxy_max_temp_file_size 0;");
    get(&server, "/").rest();
    let _slow = get(&server, "/slow");
    // Other requests are answered, and in the end the upstream cannot send more.
    let sent = |server: &Server| -> usize {
        let answer = content(get(server, "/"));
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
        let (there, connections) = h2::upstream(&[], move |peer, number| {
            if number > 1 {
                return tell(peer, number);
            }
            tell_one(peer, number);
            let Some(_never) = peer.request() else { return };
            let _ = peer.stream.set_read_timeout(Some(Duration::from_millis(30)));
            while !peer.is_gone() {
                match peer.next() {
                    Some(h) if h.kind == kind::HEADERS && !silent => peer.answer(h.stream, "1"),
                    None if !silent => peer.send(&[h2::frame(kind::PING, 0, 0, b"12345678")]),
                    // An acknowledgement is no reason to send the next.
                    _ => {}
                }
            }
        });
        let server = front(there, "keepalive 4;", "proxy_read_timeout 1s; proxy_next_upstream off;");
        get(&server, "/").rest();
        let never = get(&server, "/never").rest();
        assert!(never.starts_with("HTTP/1.1 504 "), "{silent}: {never}{}", server.error_log());
        let answer = content(get(&server, "/"));
        assert_eq!(answer, if silent { "2.1" } else { "1" });
        assert_eq!(connections.load(SeqCst), if silent { 2 } else { 1 });
    }
}

/// A server that answers before it has read the request, and resets the stream, keeps the connection.
#[test]
fn a_connection_stays_after_an_early_answer() {
    let (there, connections) = h2::upstream(&[], |peer, number| {
        while let Some(stream) = peer.request() {
            peer.answer(stream, &format!("{number}.{stream}"));
            // It has taken the content, which it does not need.
            let taken = h2::frame(kind::WINDOW_UPDATE, 0, 0, &20_000u32.to_be_bytes());
            peer.send(&[h2::reset(stream, Code::NoError as u32), taken]);
        }
    });
    let server = front(there, "keepalive 4;", "");
    for n in 0..5 {
        let mut client = server.connect();
        let head = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 20000\r\n\r\n";
        client.write_all(head.as_bytes()).and_then(|()| client.write_all(&[b'x'; 20_000])).expect("written");
        assert_eq!(content(client), format!("1.{}", 2 * n + 1));
    }
    assert_eq!(connections.load(SeqCst), 1);
}

/// An idle connection is closed when its time is over, and one that ends its side is not asked again.
#[test]
fn idle_connections_end() {
    let (tells, told) = mpsc::channel();
    let (there, _) = h2::upstream(&[], move |peer, number| {
        tell(peer, number);
        let _ = tells.send(number);
    });
    let server = front(there, "keepalive 4; keepalive_timeout 200ms;", "");
    assert_eq!(content(get(&server, "/")), "1.1");
    assert_eq!(told.recv_timeout(DEADLINE), Ok(1));
    assert_eq!(content(get(&server, "/")), "2.1");
    // The server closes.
    let (there, connections) = h2::upstream(&[], tell_one);
    let server = front(there, "keepalive 4;", "");
    for _ in 0..5 {
        assert!(get(&server, "/").rest().starts_with("HTTP/1.1 200 "));
    }
    assert!(connections.load(SeqCst) >= 5);
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

/// Large bodies at the same time, in windows that the server opens bit by bit and changes.
#[test]
fn uploads_take_turns() {
    const LENGTH: usize = 400_000;
    let (there, connections) = h2::upstream(&[], |peer, number| {
        tell_one(peer, number);
        peer.send(&[h2::settings(&[(setting::INITIAL_WINDOW_SIZE, 10_000)])]);
        let mut came = std::collections::HashMap::new();
        while let Some(h) = peer.next() {
            if !matches!(h.kind, kind::HEADERS | kind::DATA) {
                continue;
            }
            let all: &mut usize = came.entry(h.stream).or_default();
            if h.kind == kind::DATA {
                *all += h.payload.len();
            }
            if h.has(END) {
                peer.answer(h.stream, &format!("{number} {all}"));
            } else if !h.payload.is_empty() && h.kind == kind::DATA {
                let increment = (h.payload.len() as u32).to_be_bytes();
                peer.send(&[
                    h2::frame(kind::WINDOW_UPDATE, 0, h.stream, &increment),
                    h2::frame(kind::WINDOW_UPDATE, 0, 0, &increment),
                ]);
            }
        }
    });
    let server = Arc::new(front(there, "keepalive 4;", ""));
    get(&server, "/").rest();
    let clients: Vec<_> = (0..5)
        .map(|_| {
            let server = server.clone();
            std::thread::spawn(move || {
                let head = format!(
                    "PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {LENGTH}\r\n\r\n"
                );
                Answer::of(&server.raw([head.as_bytes(), &[b'x'; LENGTH]].concat())).text()
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
    let (there, _) = h2::upstream(&[], |peer, number| {
        if number > 1 {
            return tell(peer, number);
        }
        tell_one(peer, number);
        let _ = (peer.request(), peer.request());
    });
    let server = front(there, "keepalive 4;", "");
    get(&server, "/").rest();
    let (one, two) = (get(&server, "/"), get(&server, "/"));
    let mut answers = [content(one), content(two)];
    answers.sort_unstable();
    assert_eq!(answers, ["2.1", "2.3"]);
}

/// A server that stops accepting holds up its own requests only as long as each of them says.
#[test]
fn waiting_for_a_connection_has_its_time() {
    let good = Origin::start(|asked| asked.answer("200 OK", "", "other"));
    // Nobody accepts, and the queue is full.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let there = listener.local_addr().expect("address");
    let server = Server::start(http!(
        "upstream u {{ server {there}; keepalive 4; }}\n\
           server {{ listen 127.0.0.1:%PORT0%; proxy_read_timeout 300ms; proxy_connect_timeout 300ms;\n\
             location / {{ proxy_http_version 2; proxy_pass http://u; }} location /good {{ proxy_pass http://{good}; }} }}"
    ));
    let clients: Vec<_> = (0..5).map(|_| get(&server, "/")).collect();
    assert_eq!(content(get(&server, "/good")), "other");
    for mut client in clients {
        assert!(client.rest().starts_with("HTTP/1.1 504 "));
    }
}
