//! Limits: floods, sizes, slow clients, and the service of others meanwhile.

use super::serve;
use forebay_http::h2::encode;
use forebay_http::h2::frame::{self, Code, flag, kind};
use forebay_testkit::{DEADLINE, Server, h2, raw, wait_for, wait_until};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

forebay_testkit::cases!("../cases/http2/limits.cases":
    field_blocks_have_an_end, sizes_of_fields_at_the_edge);

/// A client that sends `frames` again and again; what GOAWAY said, and how often it was sent.
fn flood(server: &Server, most: usize, mut frames: impl FnMut(u32) -> Vec<u8>) -> (Option<u32>, usize) {
    let mut c = h2::Client::new(server);
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

#[test]
fn floods_end_in_enhance_your_calm() {
    let calm = Some(Code::EnhanceYourCalm as u32);
    let whole = flag::END_HEADERS | flag::END_STREAM;
    type Frames = Box<dyn FnMut(u32) -> Vec<u8>>;
    // A request, and what ends it.
    let request = |end: u8, then: fn(u32) -> Vec<u8>| -> Frames {
        Box::new(move |stream| [h2::get(stream, end), then(stream)].concat())
    };
    let floods: Vec<(&str, usize, Frames)> = vec![
        ("rapid reset", 2000, request(flag::END_HEADERS, |s| h2::reset(s, Code::Cancel as u32))),
        ("reset by a window of nothing", 2000, request(flag::END_HEADERS, |s| h2::window_update(s, 0))),
        (
            "reset by too large a window",
            2000,
            request(flag::END_HEADERS, |s| h2::window_update(s, 0x7fff_ffff)),
        ),
        ("data behind the end", 2000, request(whole, |s| h2::data(s, b"x", 0))),
        ("SETTINGS", 5000, Box::new(|_| h2::frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]))),
        ("PING", 5000, Box::new(|_| h2::frame(kind::PING, 0, 0, &[0; 8]))),
        ("unknown frames", 5000, Box::new(|_| h2::frame(0x77, 0, 0, b"x"))),
        ("PRIORITY", 5000, Box::new(|_| h2::frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 1]))),
        ("WINDOW_UPDATE", 5000, Box::new(|_| h2::frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))),
        ("GOAWAY, PING", 5000, Box::new(|_| h2::frame(kind::PING, flag::ACK, 0, &[0; 8]))),
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
fn a_client_that_does_not_read_costs_no_more_than_its_windows() {
    let server = serve("", "send_timeout 1s;");
    let mut c = h2::Client::new(&server);
    c.reads = false;
    c.send(&h2::frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
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

/// Requests that come together are served together, but not without end.
#[test]
fn a_client_that_never_stops_asking_does_not_hold_up_others() {
    let server = serve("keepalive_requests 100000000;", "location / { return 204; }");
    let client = h2::Client::new(&server);
    let (mut writing, mut reading) = (client.stream.try_clone().expect("clone"), &client.stream);
    let (asked, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let asked = &asked;
    let (others, meanwhile) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for batch in 0.. {
                let frames: Vec<u8> = (0..16).flat_map(|n| h2::get(1 + 2 * (16 * batch + n), 5)).collect();
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
        wait_until("the flood", || asked.load(Relaxed) > 0);
        let (begun, end) = (asked.load(Relaxed), Instant::now() + DEADLINE);
        let mut others = Vec::new();
        // On a busy machine the others may be served before the flood is sent.
        while (others.len() < 20 || asked.load(Relaxed) - begun <= 1000)
            && others.last().is_none_or(|o: &String| o.starts_with("HTTP/1.1 204"))
            && Instant::now() < end
        {
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
    server.write("html/index.html", "one");
    server.write("html/large", "x".repeat(1 << 20));
    let one = 1u32.to_be_bytes();
    type Trickle<'a> = &'a dyn Fn(&mut h2::Client, u32) -> bool;
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
        let mut slow: Vec<h2::Client> = (0..80)
            .map(|_| {
                let mut c = h2::Client::new(&server);
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
                let _ = sender.send(raw(addr, b"GET / HTTP/1.0\r\n\r\n"));
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

/// A field counts as it was received, so that a long cookie fits in Huffman code. One that does not fit ends its request alone.
#[test]
fn a_large_field_ends_its_request_alone() {
    let server = serve(
        "",
        "error_page 494 /large; location = /large { return 200 large; } location = / { return 200 ok; } location /up { proxy_pass http://127.0.0.1:%PORT0%/echo; } location /echo { return 200 ok; }",
    );
    let mut c = h2::Client::new(&server);
    c.request(1, "/up", &[(":method", "POST")], false);
    let mut stream = 3;
    let sizes = [
        (8_000, "200"),
        (8_200, "200"),
        (10_900, "200"),
        (12_000, "200"),
        (13_200, "400"),
        (20_000, "400"),
        (60_000, "400"),
    ];
    for (size, status) in sizes {
        // `a` takes five bits.
        let mut block = vec![0x82, 0x86, 0x84];
        encode::indexed_plain(&mut block, encode::AUTHORITY, b"localhost");
        encode::field(&mut block, b"cookie", "a".repeat(size).as_bytes());
        let mut frames = Vec::new();
        frame::push_field_block(&mut frames, stream, flag::END_STREAM, &block);
        assert!(c.send(&frames));
        let answer = loop {
            let f = c.next().expect("the connection lives");
            if f.kind == kind::HEADERS && f.stream == stream {
                c.put_back(&f);
                break c.answer(stream);
            }
        };
        assert_eq!(answer.field(":status"), status, "{size}");
        assert_eq!(answer.body == b"large", status == "400", "{size}");
        stream += 2;
    }
    // The first one goes on, and so does the connection.
    c.frame(kind::DATA, flag::END_STREAM, 1, b"abc");
    assert_eq!(c.answer(1).field(":status"), "200");
    c.request(stream, "/small", &[], true);
    assert_eq!(c.answer(stream).field(":status"), "200");
    // Memory is bounded all the same.
    let mut c = h2::Client::new(&server);
    let mut block = vec![0x82, 0x86, 0x84];
    encode::field(&mut block, b"cookie", &[b'{'; 200_000]);
    let mut frames = Vec::new();
    frame::push_field_block(&mut frames, 1, flag::END_STREAM, &block);
    c.send(&frames);
    assert_eq!(c.goodbye(), Some(Code::EnhanceYourCalm as u32));
}

/// A head that stalls belongs to its stream: it has its own clock, also beside others, and its line in the log. The connection lives.
#[test]
fn a_head_that_stalls_ends_its_stream() {
    let server = serve(
        "client_header_timeout 500ms; client_body_timeout 1m; keepalive_timeout 1m; send_timeout 1m;",
        "location /up { proxy_pass http://127.0.0.1:%PORT0%/echo; } location /echo { access_log off; return 200 ok; }",
    );
    let lines = |count: usize| {
        let log = wait_for("lines", || {
            Some(server.read("logs/access.log")).filter(|log| log.matches("\" 408 0 ").count() == count)
        });
        assert!(log.lines().filter(|l| l.contains("\" 408 ")).all(|l| l.contains("\"-\" 408 0")), "{log}");
    };
    let mut block = vec![0x82, 0x86, 0x84];
    encode::indexed_plain(&mut block, encode::AUTHORITY, b"localhost");
    let mut all = Vec::new();
    frame::push_header(&mut all, block.len(), kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3);
    all.extend_from_slice(&block);
    // A block without an end, one that breaks off in a field, and a frame that does.
    let open = h2::frame(kind::HEADERS, flag::END_STREAM, 3, &block);
    let cut = h2::frame(kind::HEADERS, flag::END_STREAM, 3, &block[..block.len() - 3]);
    let rest = |from: usize| h2::frame(kind::CONTINUATION, flag::END_HEADERS, 3, &block[from..]);
    let stalls =
        [(open, rest(block.len())), (cut, rest(block.len() - 3)), (all[..12].to_vec(), all[12..].to_vec())];
    let mut count = 0;
    for upload in [false, true] {
        for (begin, rest) in &stalls {
            let mut c = h2::Client::new(&server);
            if upload {
                c.request(1, "/up", &[(":method", "POST")], false);
            } else {
                c.request(1, "/small", &[], true);
                assert_eq!(c.answer(1).field(":status"), "200");
            }
            assert!(c.send(begin));
            let reset = loop {
                let f = c.next().expect("a frame");
                if f.kind == kind::RST_STREAM {
                    break (f.stream, f.code());
                }
            };
            assert_eq!(reset, (3, Code::ProtocolError as u32), "{upload}");
            count += 1;
            lines(count);
            // What comes late is for the table of the connection alone.
            assert!(c.send(rest));
            c.request(5, "/small", &[], true);
            assert_eq!(c.answer(5).field(":status"), "200", "{upload}");
            if upload {
                c.frame(kind::DATA, flag::END_STREAM, 1, b"abc");
                assert_eq!(c.answer(1).field(":status"), "200");
            }
        }
    }
    // A client that goes, or breaks the rules, within a head has its line, too.
    let begun = || {
        let mut c = h2::Client::new(&server);
        assert!(c.send(&stalls[1].0));
        c
    };
    drop(begun());
    let mut broken = begun();
    broken.frame(kind::PING, 0, 0, b"together");
    assert_eq!(broken.goodbye(), Some(Code::ProtocolError as u32));
    let mut undecoded = h2::Client::new(&server);
    undecoded.frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0xff, 0xff, 0xff, 0xff, 0xff]);
    while undecoded.next().is_some() {}
    wait_until("three lines", || server.read("logs/access.log").matches("\"-\" 400 0 ").count() == 3);
}
