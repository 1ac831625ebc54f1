//! HTTP/3 to upstreams: Forebay on both sides.

use super::{conf, serve, site};
use forebay_testkit::{Asked, DEADLINE, Origin, Server, Signal, Site, Talk, get, kill, wait_for, wait_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub(super) use forebay_testkit::body;

forebay_testkit::cases!("../cases/http3/upstream.cases": configurations_that_cannot_work);

/// Log of the front: what each request has met.
const LOG: &str = "log_format met '$uri $status $upstream_addr $upstream_status $upstream_connect_time $upstream_response_length \
                   $upstream_bytes_received $upstream_trailer_x_sum'; access_log logs/met.log met;";

/// Starts a server in front of another. `http`: lines of its http block, `location`: lines of its location.
pub(super) fn front(back: SocketAddr, http: &str, location: &str) -> Server {
    Server::start_on(front_site(back, http, location))
}

fn front_site(back: SocketAddr, http: &str, location: &str) -> Site {
    Site::new(
        conf(&format!(
            "{http} server {{ listen 127.0.0.1:%PORT0%; client_max_body_size 0;\n\
             location / {{ proxy_http_version 3; proxy_pass https://{back}; {location} }} }}"
        ))
        .replace("ssl_certificate localhost.crt; ssl_certificate_key localhost.key;", "")
        .replace("access_log off;", LOG),
    )
}

fn met(front: &Server, lines: usize) -> Vec<String> {
    front.wait_for_lines("logs/met.log", lines).lines().map(str::to_owned).collect()
}

fn rest(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// Lines of a server that tells how it was asked.
pub(super) const TELLS: &str = "location /told { return 200 '$connection $connection_requests $server_protocol $host$request_uri $http_te\n'; }";

/// A gate that answers wait for.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().expect("lock") = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let guard = self.0.0.lock().expect("lock");
        let _ = self.0.1.wait_timeout_while(guard, DEADLINE, |open| !*open).expect("lock");
    }
}

#[test]
fn requests_share_a_connection() {
    let back = serve(TELLS);
    let front = front(back.addr(0), "", "");
    let first = front.get("/told?a=b");
    let words: Vec<&str> = body(&first).split_whitespace().collect();
    assert_eq!(words[1..], ["1", "HTTP/3.0", "127.0.0.1/told?a=b"], "{first} {}", front.error_log());
    for n in 2..5 {
        let again = front.get("/told");
        let now: Vec<&str> = body(&again).split_whitespace().collect();
        assert_eq!((now[0], now[1]), (words[0], n.to_string().as_str()), "{again}");
    }
    assert_eq!(body(&front.get("/index.html")), "hello");
    let large = front.get("/large");
    assert_eq!(body(&large).len(), 2_000_000);
    assert!(
        large.starts_with("HTTP/1.1 200 OK\r\n") && large.contains("Content-Length: 2000000\r\n"),
        "{}",
        &large[..300]
    );
    assert!(front.get("/none").starts_with("HTTP/1.1 404 "));
    let head = front.ask(b"HEAD /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(head.contains("Content-Length: 10000\r\n") && body(&head).is_empty(), "{head}");
    let told = front.get("/told");
    assert_eq!(body(&told).split_whitespace().next(), Some(words[0]), "HEAD leaves the connection open");
    let met = met(&front, 9);
    let port = back.addr(0).port();
    assert!(
        met[5].starts_with(&format!("/large 200 127.0.0.1:{port} 200 0."))
            && met[5].contains(" 2000000 2000"),
        "{met:?}"
    );
    assert!(met[1..].iter().all(|line| line.contains(" 0.000 ")), "kept connections need no time: {met:?}");
    assert!(!front.error_log().contains("[error]"), "{}", front.error_log());
}

/// An upstream over HTTP/3 whose answers come from an origin.
fn behind(lines: &str, answer: impl Fn(&mut Asked) -> bool + Send + Sync + 'static) -> Server {
    let origin = Origin::start(answer);
    serve(&format!(
        "{TELLS} client_max_body_size 0; proxy_http_version 1.1; proxy_buffering off; proxy_request_buffering off;\n\
         early_hints 1; proxy_pass_trailers on; {lines} location /o/ {{ proxy_pass http://{origin}; }}"
    ))
}

/// Returns the number of answers by each connection that they tell of.
fn connections(answers: &[String]) -> Vec<usize> {
    let field = |a: &String| Some(a.lines().find_map(|l| l.strip_prefix("x-connection: "))?.to_owned());
    let mut counts = std::collections::BTreeMap::new();
    answers.iter().filter_map(field).for_each(|connection| *counts.entry(connection).or_default() += 1);
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_by(|a, b| b.cmp(a));
    counts
}

/// The same, whose answers are a text and wait for a gate. Counts those that wait.
fn held(lines: &str, text: &'static str) -> (Server, Gate, Arc<AtomicUsize>) {
    let (gate, waiting) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (pass, counter) = (gate.clone(), waiting.clone());
    let back = behind(lines, move |asked| {
        counter.fetch_add(1, Ordering::SeqCst);
        pass.pass();
        asked.answer("200 OK", "", text);
        false
    });
    (back, gate, waiting)
}

#[test]
fn a_hundred_requests_at_a_time_share_a_connection() {
    let (back, gate, waiting) = held("add_header X-Connection $connection always;", "done");
    let front = front(back.addr(0), "", "");
    let all: Vec<TcpStream> = (0..100).map(|n| front.send(get(format!("/o/{n}")))).collect();
    wait_until("all requests", || waiting.load(Ordering::SeqCst) == 100);
    gate.open();
    let answers: Vec<String> = all.into_iter().map(rest).collect();
    assert!(answers.iter().all(|a| body(a) == "done"), "{:?}", answers.iter().find(|a| body(a) != "done"));
    assert_eq!(connections(&answers), [100], "{}", front.error_log());
}

#[test]
fn more_requests_than_allowed_take_another_connection() {
    let lines = "add_header X-Connection $connection always; http3_max_concurrent_streams 5;";
    let (back, gate, waiting) = held(lines, "done");
    let front = front(back.addr(0), "", "proxy_http3_max_concurrent_streams 50;");
    let all: Vec<TcpStream> = (0..12).map(|n| front.send(get(format!("/o/{n}")))).collect();
    wait_until("all requests", || waiting.load(Ordering::SeqCst) == 12);
    gate.open();
    let answers: Vec<String> = all.into_iter().map(rest).collect();
    assert!(answers.iter().all(|a| body(a) == "done"), "{answers:?}");
    assert_eq!(connections(&answers), [5, 5, 2], "{}", front.error_log());
}

#[test]
fn content_goes_both_ways() {
    let back = behind("", |asked| {
        let sum: u64 = asked.body().bytes().map(u64::from).sum();
        let text = format!("{} {sum}", asked.body().len());
        asked.answer("200 OK", "", &text);
        false
    });
    let content = "abcdefghij".repeat(300_000);
    let sum: u64 = content.bytes().map(u64::from).sum();
    for buffering in ["on", "off"] {
        // The origin wants a length, so the server between gathers what has none.
        let front = front(back.addr(0), "", &format!("proxy_request_buffering {buffering};"));
        let head = "PUT /o/a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
        let told = rest(front.send(format!("{head}Content-Length: {}\r\n\r\n{content}", content.len())));
        assert_eq!(body(&told), format!("3000000 {sum}"), "{buffering}: {}", front.error_log());
        let empty = rest(front.send(format!("{head}Content-Length: 0\r\n\r\n")));
        assert_eq!(body(&empty), "0 0", "{buffering}");
        let mut pieces = front.send(format!("{head}Expect: 100-continue\r\nContent-Length: 6\r\n\r\n"));
        let mut interim = [0; 25];
        pieces.read_exact(&mut interim).expect("an interim response");
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        pieces.send(b"abc");
        pieces.send(b"def");
        assert_eq!(body(&rest(pieces)), "6 597", "{buffering}");
    }
}

/// The length of a body without one is known at its end only.
#[test]
fn content_without_a_length() {
    let back = serve(
        "location /sum { client_max_body_size 0; client_body_buffer_size 8m; proxy_request_buffering off;\n\
         proxy_pass https://127.0.0.1:%PORT0%/body; } location /body { client_max_body_size 0; client_body_buffer_size 8m;\n\
         proxy_pass https://127.0.0.1:%PORT0%/made; } location /made { client_max_body_size 0; return 200 '$http_content_length $request_method'; }",
    );
    for buffering in ["on", "off"] {
        let front = front(back.addr(0), "", &format!("proxy_request_buffering {buffering};"));
        let mut request =
            "POST /body HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_owned();
        for _ in 0..40 {
            request.push_str(&format!("c350\r\n{}\r\n", "x".repeat(50_000)));
        }
        request.push_str("0\r\n\r\n");
        let told = rest(front.send(&request));
        assert_eq!(
            body(&told),
            "2000000 POST",
            "{buffering}: {told} {} {}",
            front.error_log(),
            back.error_log()
        );
    }
}

#[test]
fn interim_responses_and_trailers_pass() {
    let back = behind("", |asked| {
        asked.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n");
        asked.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n4\r\nmore\r\n0\r\nX-Sum: 42\r\n\r\n",
        );
        false
    });
    let front = front(back.addr(0), "", "early_hints 1; proxy_pass_trailers on;");
    let request = "GET /o/t HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n";
    let told = rest(front.send(request));
    assert!(told.starts_with("HTTP/1.1 103 Early Hints\r\n"), "{told}");
    assert!(told.to_ascii_lowercase().contains("link: </a.css>; rel=preload"), "{told}");
    assert!(told.ends_with("4\r\nmore\r\n0\r\nx-sum: 42\r\n\r\n"), "{told} {}", front.error_log());
    assert!(met(&front, 1)[0].ends_with(" 42"), "{:?}", met(&front, 1));
}

#[test]
fn a_slow_client_holds_the_server_back() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    let back = behind("", move |asked| {
        asked.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        for _ in 0..4000 {
            asked.write([b'x'; 16384]);
            counter.fetch_add(16384, Ordering::SeqCst);
        }
        false
    });
    let front = front(back.addr(0), "", "proxy_buffering off;");
    let mut slow = front.send(get("/o/long"));
    let mut some = [0; 1000];
    slow.read_exact(&mut some).expect("a part");
    // Once nothing moves, all that is held is in buffers of sockets and windows of streams.
    let mut last = 0;
    wait_for("a standstill", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = sent.load(Ordering::SeqCst);
        (std::mem::replace(&mut last, now) == now).then_some(())
    });
    assert!(last < 40_000_000, "{last} bytes were taken for a client that reads nothing");
    // Others are served meanwhile.
    assert_eq!(body(&front.get("/index.html")), "hello");
    let rest = rest(slow);
    assert!(
        rest.len() > 4000 * 16384 && rest.ends_with("\r\n0\r\n\r\n"),
        "everything arrives: {}",
        rest.len()
    );
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    let gone = Arc::new(AtomicUsize::new(0));
    let counter = gone.clone();
    let back = behind("", move |asked| {
        asked.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end && asked.stream.write_all(&[b'x'; 16384]).is_ok() {}
        counter.fetch_add(1, Ordering::SeqCst);
        false
    });
    let front = front(back.addr(0), "", "");
    let first = body(&front.get("/told")).to_owned();
    let mut stream = front.send(get("/o/endless"));
    stream.read_exact(&mut [0; 1000]).expect("a part");
    drop(stream);
    wait_until("the end at the origin", || gone.load(Ordering::SeqCst) == 1);
    let again = body(&front.get("/told")).to_owned();
    assert_eq!(
        first.split(' ').next(),
        again.split(' ').next(),
        "the connection goes on: {}",
        back.error_log()
    );
}

#[test]
fn a_server_that_dies_and_comes_back() {
    let mut back = serve(&format!("{TELLS} location /slow {{ limit_rate 1k; root %DIR%/html; }}"));
    back.write("html/slow/page", "0123456789".repeat(1000));
    let front = front(back.addr(0), "", "proxy_http3_fallback off; proxy_connect_timeout 5s;");
    assert!(body(&front.get("/told")).contains("HTTP/3.0"));
    let mut under_way = front.send(get("/slow/page"));
    under_way.read_exact(&mut [0; 100]).expect("a part");
    let master = back.pid();
    for worker in back.workers(master) {
        kill(worker, Signal::SIGSTOP);
    }
    let workers = back.workers(master);
    kill(master, Signal::SIGKILL);
    workers.iter().for_each(|worker| kill(*worker, Signal::SIGKILL));
    back.wait_end();
    let failed = front.get("/told");
    assert!(failed.starts_with("HTTP/1.1 502 "), "{failed} {}", front.error_log());
    let cut = rest(under_way);
    assert!(cut.len() < 10_000, "the response breaks off: {}", cut.len());
    front.wait_for_log("connect() failed (111: Connection refused) while connecting to upstream", 1);
    std::fs::remove_file(back.dir().join("logs/nginx.pid")).expect("a stale pid file");
    back.restart_dead();
    let again = front.get("/told");
    assert!(body(&again).contains("HTTP/3.0"), "{again} {}", front.error_log());
}

#[test]
fn nothing_is_lost_when_a_server_quits() {
    let (first, gate, waiting) = held("", "first");
    let second = behind("", |asked| {
        asked.answer("200 OK", "", "second");
        false
    });
    let group = format!(
        "upstream group {{ server {} max_fails=0; server {} backup; keepalive 8; }}",
        first.addr(0),
        second.addr(0)
    );
    let front = Server::start_on(Site::new(
        conf(&format!(
            "{group} server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_http_version 3; proxy_http3_fallback off;\n\
             proxy_pass https://group; proxy_next_upstream error timeout non_idempotent; }} }}"
        ))
        .replace("ssl_certificate localhost.crt; ssl_certificate_key localhost.key;", ""),
    ));
    let under_way: Vec<TcpStream> = (0..10).map(|n| front.send(get(format!("/o/{n}")))).collect();
    wait_until("all requests", || waiting.load(Ordering::SeqCst) == 10);
    first.signal(Signal::SIGQUIT);
    first.wait_for_log("gracefully shutting down", 1);
    // The server may have taken some of these before its GOAWAY.
    let later: Vec<TcpStream> = (0..20)
        .map(|n| {
            std::thread::sleep(Duration::from_millis(10));
            front.send(get(format!("/o/later{n}")))
        })
        .collect();
    gate.open();
    let answers: Vec<String> = under_way.into_iter().map(rest).collect();
    assert!(answers.iter().all(|a| body(a) == "first"), "{answers:?} {}", front.error_log());
    let later: Vec<String> = later.into_iter().map(rest).collect();
    assert!(later.iter().all(|a| ["first", "second"].contains(&body(a))), "{later:?} {}", front.error_log());
    assert_eq!(later.last().map(|a| body(a)), Some("second"), "{}", front.error_log());
}

#[test]
fn requests_go_over_tcp_where_nothing_speaks_quic() {
    let back =
        Server::start_on(site(&format!("server {{ listen 127.0.0.1:%PORT0% ssl; http2 on; {TELLS} }}")));
    let old =
        Server::start_on(site(&format!("server {{ listen 127.0.0.1:%PORT0% ssl; http2 off; {TELLS} }}")));
    for (server, version) in [(&back, "HTTP/2.0"), (&old, "HTTP/1.1")] {
        let front = front(server.addr(0), "", "");
        for _ in 0..3 {
            let told = front.get("/told");
            assert!(body(&told).contains(version), "{told} {}", front.error_log());
        }
        front.wait_for_log(
            "upstream refuses QUIC, it is asked over TCP for 60s while connecting to upstream",
            1,
        );
        assert_eq!(front.error_log().matches("refuses QUIC").count(), 1, "it is remembered");
        let put = rest(
            front.send("PUT /told HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"),
        );
        assert!(body(&put).contains(version), "{put}");
    }
    let front = front(back.addr(0), "", "proxy_http3_fallback off;");
    let told = front.get("/told");
    assert!(told.starts_with("HTTP/1.1 502 "), "{told}");
    front.wait_for_log("connect() failed (111: Connection refused) while connecting to upstream", 1);
}

/// A socket that is there and says nothing.
#[test]
fn a_silent_server_is_asked_over_tcp() {
    let back = Server::start_on(site(&format!("server {{ listen 127.0.0.1:%PORT0% ssl; {TELLS} }}")));
    let silent = std::net::UdpSocket::bind(back.addr(0)).expect("bound");
    let front = front(back.addr(0), "", "proxy_http3_fallback on after=200ms valid=1h;");
    let told = front.get("/told");
    assert!(body(&told).contains("HTTP/1.1"), "{told} {}", front.error_log());
    front.wait_for_log("upstream does not answer over QUIC, it is asked over TCP for 3600s", 1);
    drop(silent);
    let strict = self::front(back.addr(0), "", "proxy_http3_fallback off; proxy_connect_timeout 200ms;");
    let silent = std::net::UdpSocket::bind(back.addr(0)).expect("bound");
    let told = strict.get("/told");
    assert!(told.starts_with("HTTP/1.1 504 "), "{told} {}", strict.error_log());
    drop(silent);
}

#[test]
fn certificates_are_verified() {
    let back = serve(TELLS);
    let dir = back.dir().display();
    let good = format!(
        "proxy_ssl_verify on; proxy_ssl_trusted_certificate {dir}/localhost.crt; proxy_ssl_name localhost;"
    );
    let front = front(back.addr(0), "", &good);
    assert!(body(&front.get("/told")).contains("HTTP/3.0"), "{}", front.error_log());
    let wrong = [
        (
            format!(
                "proxy_ssl_verify on; proxy_ssl_trusted_certificate {dir}/other.crt; proxy_ssl_name localhost;"
            ),
            "verify error",
        ),
        (
            format!(
                "proxy_ssl_verify on; proxy_ssl_trusted_certificate {dir}/localhost.crt; proxy_ssl_name else;"
            ),
            "does not match",
        ),
    ];
    for (lines, text) in wrong {
        let front = self::front(back.addr(0), "", &lines);
        let told = front.get("/told");
        assert!(told.starts_with("HTTP/1.1 502 "), "{told}");
        front.wait_for_log(text, 1);
        assert!(!front.error_log().contains("over TCP"), "{}", front.error_log());
    }
}

#[test]
fn a_certificate_for_the_server_is_shown() {
    let back = serve(&format!(
        "ssl_verify_client optional_no_ca; {TELLS} location /who {{ return 200 $ssl_client_s_dn; }}"
    ));
    let dir = back.dir().display();
    let front = front(
        back.addr(0),
        "",
        &format!("proxy_ssl_certificate {dir}/client.crt; proxy_ssl_certificate_key {dir}/client.key;"),
    );
    let told = front.get("/who");
    assert_eq!(body(&told), "CN=client", "{told} {}", front.error_log());
}

#[test]
fn a_reload_leaves_a_download_alone() {
    let back = serve(&format!("{TELLS} location /slow/ {{ limit_rate 400k; root %DIR%/html; }}"));
    back.write("html/slow/page", "0123456789".repeat(100_000));
    let front = front(back.addr(0), "", "proxy_buffering off;");
    let first = body(&front.get("/told")).to_owned();
    let mut stream = front.send(get("/slow/page"));
    stream.read_exact(&mut [0; 1000]).expect("a part");
    front.reload();
    let again = wait_for("a new connection", || {
        let told = body(&front.get("/told")).to_owned();
        (told.split(' ').next() != first.split(' ').next()).then_some(told)
    });
    assert!(again.contains("HTTP/3.0"));
    assert!(rest(stream).len() > 999_000, "{}", front.error_log());
}

#[test]
fn a_cache_in_front() {
    let back = serve(&format!("{TELLS} expires 1h;"));
    let http = "proxy_cache_path %DIR%/cache keys_zone=z:1m;";
    let front = front(
        back.addr(0),
        http,
        "proxy_cache z; proxy_cache_valid 200 1h; add_header X-Cache $upstream_cache_status;",
    );
    for (n, status) in ["MISS", "HIT", "HIT"].iter().enumerate() {
        let told = front.get("/large");
        assert!(told.contains(&format!("X-Cache: {status}\r\n")), "{n}: {}", &told[..400]);
        assert_eq!(body(&told).len(), 2_000_000, "{n}");
    }
}

#[test]
fn idle_connections_are_closed_in_time() {
    let back = serve(TELLS);
    let group =
        format!("upstream group {{ server {}; keepalive 4; keepalive_timeout 300ms; }}", back.addr(0));
    let front = Server::start_on(Site::new(
        conf(&format!(
            "{group} server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_http_version 3; proxy_pass https://group; }} }}"
        ))
        .replace("ssl_certificate localhost.crt; ssl_certificate_key localhost.key;", ""),
    ));
    let first = body(&front.get("/told")).split(' ').next().map(str::to_owned);
    wait_for("another connection", || {
        std::thread::sleep(Duration::from_millis(400));
        (body(&front.get("/told")).split(' ').next().map(str::to_owned) != first).then_some(())
    });
}

#[test]
fn requests_to_switch_protocols_go_over_tcp() {
    let back = serve("location / { return 200 '$server_protocol $http_upgrade'; }");
    let front = front(
        back.addr(0),
        "",
        "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection;",
    );
    let told = rest(
        front.send("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n"),
    );
    assert_eq!(body(&told), "HTTP/1.1 websocket", "{told} {}", front.error_log());
    assert_eq!(body(&front.get("/")), "HTTP/3.0 ");
}

/// `proxy_bind` with variables: connections from different addresses are different ones.
#[test]
fn connections_come_from_the_address_that_is_set() {
    let back = serve("location /from { return 200 '$remote_addr $connection'; }");
    let front = front(back.addr(0), "", "proxy_http3_fallback off; proxy_bind $arg_a;");
    let from = |address: &str| {
        let told = front.get(format!("/from?a={address}"));
        let words: Vec<String> = body(&told).split(' ').map(str::to_owned).collect();
        assert_eq!(words.len(), 2, "{told} {}", front.error_log());
        (words[0].clone(), words[1].clone())
    };
    let (first, second) = (from("127.0.0.7"), from("127.0.0.8"));
    assert_eq!((first.0.as_str(), second.0.as_str()), ("127.0.0.7", "127.0.0.8"));
    assert_ne!(first.1, second.1);
    assert_eq!((from("127.0.0.7"), from("127.0.0.8")), (first, second));
    assert_eq!(from("").0, "127.0.0.1");
    let told = front.get("/from?a=192.0.2.1");
    assert!(told.starts_with("HTTP/1.1 500 "), "{told}");
    front.wait_for_log("bind(192.0.2.1) failed (99: ", 1);
}
