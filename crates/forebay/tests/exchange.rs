//! The conversation with upstreams: what comes early, late, too often or not at all.

use forebay_testkit::{DEADLINE, Origin, Server, Talk, accept, fragments, http, run, server, wait_for};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

forebay_testkit::cases!("cases/exchange.cases":
    interim_responses_have_an_end, content_that_cannot_be_is_not_waited_for, a_body_that_is_there_goes_to_the_next_server,
    a_streamed_body_is_in_no_file, the_log_names_who_breaks_off, a_failed_tunnel_has_its_error_page,
    a_client_that_sends_on_gets_its_last_answer, the_body_of_an_upgrade_is_sent_once, an_answer_before_the_end_of_the_body, a_body_that_stops);

fn serve(http: &str, server: &str) -> Server {
    Server::start(http!(
        "{http}\n\
         server {{ listen 127.0.0.1:%PORT0%; {server} }}"
    ))
}

/// Asks on a connection that goes on, for an answer that ends so.
fn ask(stream: &mut TcpStream, target: &str, end: &str) -> String {
    stream.get(target);
    stream.until(end)
}

/// Lifetime of a switched connection: the timeout is the one of the side that the tunnel waits for (nginx:
/// proxy_read_timeout, proxy_send_timeout, send_timeout).
#[test]
fn a_tunnel_waits_for_each_side_by_its_own_time() {
    const LONG: usize = 16 << 20;
    let up = Origin::at_head(|a| {
        a.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
        if a.target().ends_with("push") {
            a.write(vec![b'x'; LONG]);
        } else if a.target().ends_with("deaf") {
            std::thread::sleep(DEADLINE);
        }
        while a.more() {}
        false
    });
    let location = |name: &str, times: [&str; 3]| {
        format!(
            "location /{name} {{ proxy_read_timeout {}; proxy_send_timeout {}; send_timeout {}; \
             proxy_set_header Upgrade x; proxy_set_header Connection upgrade; proxy_pass http://{up}; }}",
            times[0], times[1], times[2]
        )
    };
    let server = serve(
        "",
        &[
            location("read/", ["300ms", "60s", "60s"]),
            location("send/", ["60s", "300ms", "60s"]),
            location("client/", ["60s", "60s", "300ms"]),
        ]
        .concat(),
    );
    let open = |path: &str| {
        server.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"))
    };
    let rest = |client: &mut TcpStream| {
        let (mut n, mut buf) = (0, vec![0; 1 << 20]);
        while let Ok(got @ 1..) = client.read(&mut buf) {
            n += got;
        }
        n
    };
    let logged = |who: &str, path: &str| {
        let text = format!("{who} timed out (110: Connection timed out) while proxying upgraded connection");
        wait_for(&format!("{who}, {path}"), || {
            let log = server.error_log();
            let line = log.lines().find(|l| l.contains(&text) && l.contains(path))?;
            let name = format!(", upstream: \"http://{up}/");
            assert!(line.contains(" [info] ") && line.contains(&name), "{line}");
            Some(())
        });
    };
    // A client that pauses is not the upstream's silence; all that was sent is still passed on.
    let mut paused = open("/read/push");
    std::thread::sleep(std::time::Duration::from_millis(1000));
    assert!(rest(&mut paused) > LONG);
    logged("upstream", "/read/push");
    // Silence of the upstream, which reads.
    rest(&mut open("/read/listen"));
    logged("upstream", "/read/listen");
    // An upstream that does not read, and a client that does not.
    let mut flood = open("/send/deaf");
    flood.set_write_timeout(Some(std::time::Duration::from_millis(100))).expect("timeout");
    while !server.error_log().contains("/send/deaf") {
        // What is full stays so; who is gone takes anything.
        let _ = flood.write(&[b'y'; 65536]);
    }
    logged("upstream", "/send/deaf");
    let _unread = open("/client/push");
    logged("client", "/client/push");
}

const UNBUFFERED: &str = "proxy_request_buffering off;";

/// An answer that keeps pace with the body.
#[test]
fn an_answer_beside_the_body() {
    let up = Origin::at_head(|a| {
        a.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut sent = 0;
        while sent < 8 << 20 && (!a.buffer.is_empty() || a.more()) {
            let piece = std::mem::take(&mut a.buffer);
            sent += piece.len();
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat();
            if !a.write(&chunk) || piece.ends_with(b"END") {
                break;
            }
        }
        a.write(b"0\r\n\r\n")
    });
    let server = serve(
        &format!("upstream u {{ server {up}; }}"),
        &format!(
            "client_max_body_size 0; location /buffered {{ {UNBUFFERED} proxy_pass http://u; }}\n\
             location / {{ {UNBUFFERED} proxy_buffering off; proxy_pass http://u; }}"
        ),
    );
    for path in ["/buffered", "/"] {
        let mut client = server.send(format!("PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 13\r\n\r\n"));
        for (piece, framed) in
            [("hello", "5\r\nhello\r\n"), ("world", "5\r\nworld\r\n"), ("END", "3\r\nEND\r\n0\r\n\r\n")]
        {
            client.send(piece);
            assert!(client.until(framed).ends_with(framed), "{path} {piece}");
        }
        assert!(server.error_log().lines().all(|l| !l.contains("[error]")), "{}", server.error_log());
    }
    // A client that sends all before it reads, and one that reads nothing for a while.
    let mut client =
        server.send(format!("PUT /buffered HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", 8 << 20));
    for _ in 0..128 {
        client.send([b'x'; 65536]);
    }
    let answer = client.all_until("\r\n0\r\n\r\n");
    assert_eq!(answer.bytes().filter(|b| *b == b'x').count(), 8 << 20);
}

/// A request that an upstream has not read to its end ends the connection with it.
#[test]
fn a_connection_with_half_a_request_on_it() {
    let up = Origin::at_head(|a| match a.target() {
        "/early" => {
            a.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly");
            std::thread::sleep(std::time::Duration::from_millis(200));
            true
        }
        _ => a.name(),
    });
    let server = serve(
        &format!("upstream u {{ server {up}; }}"),
        "client_max_body_size 0; location / { proxy_pass http://u; }",
    );
    let mut client =
        server.send(format!("PUT /early HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", 32 << 20));
    for _ in 0..512 {
        client.send([b'x'; 65536]);
    }
    assert!(client.until("early").starts_with("HTTP/1.1 200 "));
    assert!(ask(&mut client, "/", "conn1").ends_with("conn1"));
}

/// `limit_rate` holds for the head, too.
#[test]
fn a_rate_below_the_head() {
    let slow = server("limit_rate 50; return 200 slow;").start();
    let mut stream = slow.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut answer = vec![0; 4096];
    let n = stream.read(&mut answer).expect("the first bytes");
    assert_eq!(n, 50);
    answer.truncate(n);
    stream.read_to_end(&mut answer).expect("the rest");
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n") && answer.ends_with(b"\r\n\r\nslow"));
}

/// A head has `proxy_read_timeout` to come, however it trickles in.
#[test]
fn a_head_that_drips_in() {
    let up = Origin::at_head(|a| {
        let line = match a.target() {
            "/lines" => {
                a.write(b"HTTP/1.1 200 OK\r\n");
                "X-Line: 1\r\n"
            }
            _ => "HTTP/1.1 103 Early Hints\r\n\r\n",
        };
        let begun = std::time::Instant::now();
        while begun.elapsed() < DEADLINE && a.write(line) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        false
    });
    // A program whose head never ends.
    let cgi = accept(|mut stream, _| {
        let begun = std::time::Instant::now();
        while begun.elapsed() < DEADLINE && stream.write_all(b"X-Line: 1\r\n").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    let server = serve(
        "",
        &format!(
            "proxy_read_timeout 500ms; scgi_read_timeout 500ms; location / {{ proxy_pass http://{up}; }}\n\
             location /cgi {{ scgi_pass {cgi}; }}"
        ),
    );
    for path in ["/lines", "/interim", "/cgi"] {
        assert!(server.get(path).starts_with("HTTP/1.1 504 "), "{path}");
    }
    server
        .wait_for_log("timed out (110: Connection timed out) while reading response header from upstream", 3);
}

/// An answer that another server might better, were it asked in time and with the whole request, is the client's.
#[test]
fn an_answer_that_is_not_asked_for_elsewhere() {
    let start = || {
        Origin::at_head(|a| {
            if a.target() == "/late" {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            let piece = if a.target() == "/streamed" { "3\r\nabc\r\n" } else { "abc" };
            a.take(piece.len());
            a.close_with(b"HTTP/1.1 503 Busy\r\nContent-Length: 3\r\nConnection: close\r\n\r\nown")
        })
    };
    let server = serve(
        &format!("upstream u {{ server {} max_fails=0; server {} max_fails=0; }}", start(), start()),
        "proxy_next_upstream http_503; add_header X-Asked $upstream_status always;\n\
         location / { proxy_pass http://u; }\n\
         location /late { proxy_next_upstream_timeout 20ms; proxy_pass http://u; }\n\
         location /streamed { proxy_request_buffering off; proxy_pass http://u; }",
    );
    for (uri, statuses) in [("/", "503, 503"), ("/late", "503"), ("/streamed", "503")] {
        let mut client = server.connect();
        let head =
            format!("PUT {uri} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked");
        client.send(format!("{head}\r\n\r\n3\r\nabc\r\n"));
        if uri != "/streamed" {
            client.send("0\r\n\r\n");
        }
        let answer = client.until("\r\n\r\nown");
        assert!(answer.starts_with("HTTP/1.1 503 Busy\r\n"), "{uri}: {answer}");
        assert!(answer.contains(&format!("X-Asked: {statuses}\r\n")), "{uri}: {answer}");
    }
}

/// A kept connection that turns out to be closed: another server has its turn, where `proxy_next_upstream` says so, and the
/// same one only where there is no other.
#[test]
fn a_kept_connection_that_was_dropped() {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let start = |name: &'static str| {
        let asked = asked.clone();
        Origin::at_head(move |a| {
            if a.target().ends_with("/warm") {
                return a.name();
            }
            asked.lock().expect("lock").push(name);
            // It reads the request and goes, as one does whose time for idle connections is over.
            (name == "B" || a.conn > 0) && a.name()
        })
    };
    let group = |name: &str, a: Origin, more: &str| format!("upstream {name} {{ server {a}; {more} }}\n");
    let up: Vec<Origin> = ["A", "A", "A", "B", "A"].into_iter().map(start).collect();
    let backup = format!("server {} backup;", up[3]);
    let http = [
        group("alone", up[0], ""),
        group("off", up[1], ""),
        group("two", up[2], &backup),
        group("down", up[4], "server 127.0.0.1:1 down;"),
    ]
    .concat();
    let server = serve(
        &http,
        "add_header X-Asked $upstream_addr always; location /alone { proxy_pass http://alone; }\n\
         location /off { proxy_next_upstream off; proxy_pass http://off; }\n\
         location /two { proxy_pass http://two; } location /down { proxy_pass http://down; }",
    );
    let cases = [
        ("/alone", "200", "AA", format!("{0}, {0}", up[0])),
        ("/off", "502", "A", format!("{}", up[1])),
        ("/two", "200", "AB", format!("{}, {}", up[2], up[3])),
        ("/down", "200", "AA", format!("{0}, {0}", up[4])),
    ];
    for (group, status, names, addrs) in cases {
        assert!(server.get(format!("{group}/warm")).ends_with("conn0"), "{group}");
        asked.lock().expect("lock").clear();
        let answer = server.get(format!("{group}/x"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{group}: {answer}");
        assert_eq!(asked.lock().expect("lock").concat(), names, "{group}");
        assert!(answer.contains(&format!("X-Asked: {addrs}\r\n")), "{group}: {answer}");
    }
}

/// A request body that was streamed to one upstream goes to the upstream of an error page complete or not at all.
#[test]
fn a_body_that_another_upstream_had() {
    let failing = Origin::at_head(|a| {
        a.take(3);
        a.write(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno")
    });
    let other = Origin::at_head(|a| {
        let body = a.take_body();
        let text = format!("{} {}.", a.method(), String::from_utf8_lossy(&body));
        a.answer("200 OK", "", text)
    });
    let server = serve(
        "client_body_buffer_size 8; proxy_intercept_errors on;",
        &format!(
            "location /named {{ {UNBUFFERED} error_page 500 = @other; proxy_pass http://{failing}; }}\n\
             location @other {{ {UNBUFFERED} proxy_pass http://{other}; }}\n\
             location /stored {{ {UNBUFFERED} error_page 500 = @stored; proxy_pass http://{failing}; }}\n\
             location @stored {{ proxy_pass http://{other}; }}\n\
             location /page {{ {UNBUFFERED} error_page 500 = /error; proxy_pass http://{failing}; }}\n\
             location /error {{ proxy_pass http://{other}; }}"
        ),
    );
    // As much as memory has room for is remembered.
    for (path, first, then, end) in [
        ("/named", "abc", "def", "PUT abcdef."),
        ("/stored", "abc", "def", "PUT abcdef."),
        ("/named", "abcdefghij", "", "</html>\r\n"),
        ("/stored", "abcdefghij", "", "</html>\r\n"),
        ("/page", "abcdefghij", "", "GET ."),
    ] {
        let mut client = server.connect();
        let length = if then.is_empty() { 12 } else { first.len() + then.len() };
        client.send(format!("PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{first}"));
        client.send(then);
        let answer = client.until(end);
        assert!(answer.ends_with(end), "{path} {first}: {answer}");
        assert_eq!(answer.starts_with("HTTP/1.1 502 "), end.contains("html"), "{path} {first}: {answer}");
    }
}

/// All that has come of an answer that breaks off reaches a client that was slow meanwhile, also what filters hold back.
#[test]
fn bytes_before_a_break_reach_a_slow_client() {
    const LENGTH: usize = 600_000;
    let (told, sent) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let up = Origin::at_head(move |a| {
        let content = b"0123456789abcdef".repeat(LENGTH / 16);
        let head = |fields: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{fields}\r\n\r\n");
        if a.target().contains("chunks") {
            a.write(head("Transfer-Encoding: chunked"));
            a.write(format!("{LENGTH:x}\r\n"));
        } else {
            a.write(head(&format!("Content-Length: {}", 2 * LENGTH)));
        }
        a.write(&content);
        let _ = told.lock().expect("the channel").send(());
        // The one that stalls is given up by the proxy.
        while a.target().contains("stall") && a.more() {}
        false
    });
    let ways = [
        "",
        "sub_filter zzz ZZZ; sub_filter_types text/plain;",
        "gzip on; gzip_types text/plain; gzip_min_length 1;",
        "gzip on; gzip_types text/plain; gzip_min_length 1; sub_filter zzz Z; sub_filter_types text/plain;",
        "charset utf-8;",
        "proxy_max_temp_file_size 0; sub_filter zzz ZZZ; sub_filter_types text/plain;",
        "proxy_buffering off; sub_filter zzz ZZZ; sub_filter_types text/plain;",
        "proxy_buffering off; gzip on; gzip_types text/plain; gzip_min_length 1;",
        "limit_rate 100m; sub_filter zzz ZZZ; sub_filter_types text/plain;",
    ];
    let location = |(i, way): (usize, &&str)| {
        format!(
            "location /{i}/ {{ {way} proxy_pass http://{up}; proxy_read_timeout 2s; proxy_buffers 4 16k; proxy_temp_path %DIR%/temp; }}\n"
        )
    };
    let locations: String = ways.iter().enumerate().map(location).collect();
    let server = serve("", &locations);
    for (i, way) in ways.iter().enumerate() {
        for how in ["length", "chunks", "stall"] {
            let mut client = server.send(format!(
                "GET /{i}/{how} HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
            ));
            // Without a file the upstream waits for the client.
            if !way.contains("buffering off") && !way.contains("file_size 0") {
                sent.recv_timeout(DEADLINE).expect("all is sent");
            }
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer);
            let head = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
            let text = String::from_utf8_lossy(&answer[..head]).into_owned();
            let mut content = answer.split_off(head);
            if text.contains("chunked") {
                content = fragments(&content);
            }
            if text.contains("Content-Encoding: gzip") {
                let file = server.dir().join("answer.gz");
                std::fs::write(&file, &content).expect("write");
                // It complains about the end that is missing.
                let name = file.display().to_string();
                let Some((_, plain, _)) = run("gzip", &["-dc", &name]) else { continue };
                content = plain.into_bytes();
            }
            assert_eq!(content.len(), LENGTH, "{way} {how}: {text}");
            while sent.try_recv().is_ok() {}
        }
    }
}
