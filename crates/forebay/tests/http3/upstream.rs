//! HTTP/3 to upstreams: Forebay on both sides.

use super::{conf, serve, site};
use forebay_testkit::{Asked, DEADLINE, Origin, Server, Signal, Site, get, kill, wait_for, wait_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub(super) use forebay_testkit::body;

forebay_testkit::cases!("../cases/http3/upstream.cases":
    configurations_that_cannot_work, requests_share_a_connection, content_goes_both_ways, content_without_a_length,
    interim_responses_and_trailers_pass, requests_go_over_tcp_where_nothing_speaks_quic, certificates_are_verified,
    a_certificate_for_the_server_is_shown, a_cache_in_front, requests_to_switch_protocols_go_over_tcp,
    connections_come_from_the_address_that_is_set);

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
