//! Handshakes and records in pieces, cut off, or without room.

use super::{GET, site};
use forebay_testkit::{Origin, Server, Talk, s_client, s_client_at, wait_until};
use std::io::Write;
use std::process::Command;
use std::time::Duration;

#[test]
fn half_a_handshake_is_given_up() {
    let server =
        Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; client_header_timeout 300ms; }"));
    let mut stream = server.send([0x16, 3, 1, 0, 200, 1]);
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    assert_eq!(std::io::Read::read(&mut stream, &mut [0; 10]).expect("end"), 0);
    server.wait_for_log("client timed out (110: Connection timed out) while SSL handshaking", 1);
}

/// A client that is refused while it still sends gets the alert, and no reset in its place.
#[test]
fn an_alert_arrives_before_the_end() {
    let server = Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; return 200 fine; }"));
    for begin in [&[22, 3, 1, 0, 5, 9, 9, 9, 9, 9][..], &[22, 3, 1, 255, 255]] {
        let mut stream = server.send([begin, &[7; 40_000]].concat());
        let mut got = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut got).expect("an end");
        assert_eq!((got.len(), got[0]), (7, 21), "{got:?}");
    }
}

/// A ClientHello of TLS 1.2 with X25519 and ECDHE-RSA-AES128-GCM-SHA256.
fn old_hello() -> Vec<u8> {
    let extensions = [
        &[0, 10, 0, 4, 0, 2, 0, 29][..],
        &[0, 11, 0, 2, 1, 0],
        &[0, 13, 0, 6, 0, 4, 4, 1, 8, 4],
        &[255, 1, 0, 1, 0],
    ]
    .concat();
    let length = |bytes: &[u8]| (bytes.len() as u16).to_be_bytes();
    let fixed = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0xc0, 0x2f, 1, 0]].concat();
    let body = [&fixed[..], &length(&extensions), &extensions].concat();
    let message = [&[1, 0][..], &length(&body), &body].concat();
    [&[22, 3, 1][..], &length(&message), &message].concat()
}

/// A record between the pieces of a message ends the handshake by an alert, as in nginx.
#[test]
fn an_interleaved_handshake_ends_with_an_alert() {
    use std::io::Read;
    let server = Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; return 200 fine; }"));
    let mut stream = server.send(old_hello());
    let mut got = Vec::new();
    // ServerHelloDone is the last message of the server's flight.
    while !got.ends_with(&[14, 0, 0, 0]) {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a flight");
        got.push(byte[0]);
    }
    let piece = [&[22, 3, 3, 0, 9, 16, 0, 0, 33, 32][..], &[7; 4]].concat();
    stream.send([&piece[..], &[20, 3, 3, 0, 1, 1]].concat());
    let end = stream.rest_bytes();
    assert_eq!(end, [21, 3, 3, 0, 2, 2, 10]);
}

/// Passes bytes on, but holds back what the client sends behind its ClientHello until it sends more.
fn joiner(upstream: std::net::SocketAddr) -> std::net::SocketAddr {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a connection");
            let mut server = TcpStream::connect(upstream).expect("connect");
            let (mut from, mut to) = (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || {
                let mut read = |out: &mut Vec<u8>| {
                    let mut some = [0; 4096];
                    let n = client.read(&mut some).unwrap_or(0);
                    out.extend_from_slice(&some[..n]);
                    n
                };
                let mut hello = Vec::new();
                read(&mut hello);
                server.send(&hello);
                let mut last = Vec::new();
                // ChangeCipherSpec and Finished are shorter, with the request it is longer.
                while last.len() < 200 && read(&mut last) > 0 {}
                let _ = server.write_all(&last);
                let _ = std::io::copy(&mut client, &mut server);
            });
        }
    });
    addr
}

/// A request that comes in one piece with the end of the handshake waits for nothing more.
#[test]
fn a_request_may_come_with_the_end_of_the_handshake() {
    let server = Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; return 200 \"fine\\n\"; }"));
    let addr = joiner(server.addr(0));
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\nConnection: close\r\n\r\n", "x".repeat(200));
    let printed = s_client_at(addr, "-tls1_3", &request);
    assert!(printed.contains("\nfine\n"), "{printed}");
}

/// Passes records of TLS 1.3 on and leaves out alerts: nothing says any more that nothing follows.
fn cutter(upstream: std::net::SocketAddr) -> std::net::SocketAddr {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    /// Level, description, type and tag: nothing else is as short.
    const ALERT: usize = 2 + 1 + 16;
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a connection");
            let mut server = TcpStream::connect(upstream).expect("connect");
            let (mut from, mut to) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || {
                let mut head = [0; 5];
                while server.read_exact(&mut head).is_ok() {
                    let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
                    if server.read_exact(&mut body).is_err() {
                        break;
                    }
                    if body.len() != ALERT && client.write_all(&[head.as_slice(), &body].concat()).is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    addr
}

/// A response that ends with its connection may have been cut off by an attacker. It is sent to the client, but not stored.
#[test]
fn a_response_that_may_be_cut_off_is_not_kept() {
    let origin = Origin::start(|asked| {
        asked.close_with(b"HTTP/1.0 200 OK\r\nCache-Control: max-age=60\r\n\r\nhalf a page")
    });
    let behind = Server::start_on(site(&format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; location / {{ proxy_pass http://{origin}; }} }}"
    )));
    let (whole, cut) = (behind.addr(0), cutter(behind.addr(0)));
    let front = Server::start_on(site(&format!(
        "proxy_cache_path %DIR%/cache keys_zone=c:1m; proxy_cache c; proxy_cache_key $uri; proxy_http_version 1.0; \
         proxy_set_header Connection close; add_header X-Cache $upstream_cache_status; \
         server {{ listen 127.0.0.1:%PORT0%; location /whole {{ proxy_pass https://{whole}; }} \
         location /cut {{ proxy_pass https://{cut}; }} \
         location /stored {{ proxy_cache off; proxy_pass https://{cut}; proxy_store %DIR%/stored; }} }}"
    )));
    let cached = |uri: &str| {
        let got = front.get(uri);
        assert!(got.contains("half a page"), "{uri}: {got}");
        got.contains("X-Cache: HIT")
    };
    // A response is kept a moment after it was sent.
    wait_until("what came whole", || cached("/whole"));
    for _ in 0..3 {
        assert!(!cached("/cut"));
    }
    assert!(front.get("/stored").contains("half a page"));
    front.wait_for_log("upstream closed connection without close_notify, response is not kept", 4);
    assert!(!front.error_log().contains("GET /whole"), "it ended as it should");
    assert!(!front.dir().join("stored").exists());
}

/// A handshake whose messages do not fit into the socket continues once there is room.
#[test]
fn a_handshake_waits_for_room() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl sndbuf=2k; ssl_certificate chain.crt; return 200 whole; }",
    );
    // More than the kernel takes at once, less than the 100 kB that OpenSSL takes at most.
    let chain = [site.read("rsa.crt"), site.read("ec.crt").repeat(240)].concat();
    site.write("chain.crt", &chain);
    let server = Server::start_on(site);
    for n in 0..5 {
        let got = s_client(&server, 0, "", GET);
        assert!(got.contains("HTTP/1.1 200 OK") && got.contains("whole"), "{n}: {got}");
    }
}

/// Answers of busy turns are sealed one behind the other and leave together; clients that read late get all of them, whole and in
/// order, whatever found no room at first.
#[test]
fn answers_of_busy_turns_arrive_whole() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl sndbuf=8k; lingering_close off; add_header X-Uri $request_uri; \
         location = /short { return 200 short; } }",
    );
    let body: String = (0..1000).map(|n| format!("line {n:04} ")).collect();
    site.write("html/long", &body);
    let script = site.write("late.py", include_str!("late.py"));
    let server = Server::start_on(site);
    for old in [None, Some("1.2")] {
        let mut python = Command::new("python3");
        python.arg(&script).arg(server.addr(0).port().to_string()).arg(server.dir().join("html/long"));
        let out = python.args(old).output().expect("python3 runs");
        assert!(out.status.success(), "{old:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

/// Gets files of these sizes in bytes over HTTP/2, each on a connection of its own with a small receive buffer. The client pauses
/// before each read of at most 2 KiB.
fn get_over_http2(server: &Server, pause: Duration, sizes: &[usize]) {
    let script = server.write("http2.py", include_str!("http2.py"));
    for size in sizes {
        server.write(format!("html/{size}"), "x".repeat(*size));
    }
    let mut python = Command::new("python3");
    python.arg(&script).arg(server.addr(0).port().to_string()).arg(pause.as_secs_f64().to_string());
    let out = python.args(sizes.iter().map(usize::to_string)).output().expect("python3 runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A connection over HTTP/2 whose last stream has ended is not idle while the end of the answer has found no room: the client
/// gets it as soon as it reads.
#[test]
fn the_end_of_an_answer_over_http2_leaves_once_there_is_room() {
    let server = Server::start_on(site("http2 on; server { listen 127.0.0.1:%PORT0% ssl sndbuf=2k; }"));
    // Below the initial window, and more than the socket takes.
    get_over_http2(&server, Duration::ZERO, &[20_000, 40_000, 60_000]);
}

/// `send_timeout` is the time between two writes over HTTP/2, too, also if they send records that were sealed at once.
#[test]
fn a_slow_client_over_http2_gets_records_that_were_sealed_at_once() {
    let server = Server::start_on(site(
        "http2 on; send_timeout 2s; ssl_buffer_size 2k; server { listen 127.0.0.1:%PORT0% ssl sndbuf=2k; }",
    ));
    get_over_http2(&server, Duration::from_millis(100), &[60_000]);
}

/// The beginning of a record is no request: the connection is as idle as it was, and has its time for a head but once.
#[test]
fn pieces_of_records_do_not_keep_a_connection() {
    let site = site(
        "keepalive_timeout 1s; client_header_timeout 1s; \
         server { listen 127.0.0.1:%PORT0% ssl; return 200 whole; }",
    );
    let script = site.write("pieces.py", include_str!("pieces.py"));
    let server = Server::start_on(site);
    for asks in [None, Some("asks")] {
        let mut python = Command::new("python3");
        let out = python
            .arg(&script)
            .arg(server.addr(0).port().to_string())
            .args(asks)
            .output()
            .expect("python3 runs");
        assert!(out.status.success(), "{asks:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

/// curl before 8.2 loses an answer that is in one record with the reset behind it.
#[test]
fn curl_gets_answers_that_come_before_the_end_of_its_upload() {
    let up = Origin::at_head(|asked| {
        asked.close_with(b"HTTP/1.1 409 Early\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
    });
    let site = site(&format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; http2 on; client_max_body_size 0;
         location /413 {{ client_max_body_size 1k; proxy_pass http://{up}; }}
         location /401 {{ auth_basic x; auth_basic_user_file users; }}
         location /403 {{ return 403; }}
         location /302 {{ return 302 /x; }}
         location /409 {{ proxy_request_buffering off; proxy_pass http://{up}; }} }}"
    ));
    site.write("users", "");
    site.write("html/405", "a file");
    site.write("upload", "x".repeat(2_000_000));
    let server = Server::start_on(site);
    for status in ["413", "401", "403", "302", "405", "409"] {
        let done = Command::new("curl")
            .args(["-sk", "--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"])
            .args(["--data-binary", "@upload", &format!("https://{}/{status}", server.addr(0))])
            .current_dir(server.dir())
            .output()
            .expect("curl");
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!((said, done.status.code()), (format!("2 {status}"), Some(0)), "{status}");
    }
}
