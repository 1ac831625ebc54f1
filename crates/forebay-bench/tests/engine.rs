//! The generator against servers that behave well, badly and not at all.
#![allow(missing_docs)]

use forebay_bench::engine;
use forebay_bench::load::{Load, Order, Protocol, Stop, Wanted};
use forebay_bench::ports::free_port;
use forebay_bench::record::Failure;
use forebay_bench::run::{self, Report};
use forebay_bench::schedule::Rate;
use forebay_bench::url::Url;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MS: u64 = 1_000_000;

/// A server with one thread a connection, which calls `answer` for each request with a number that counts
/// requests on that connection; the connection ends when it gives `false`.
fn server(answer: impl Fn(&mut TcpStream, usize) -> bool + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), answer) = (stream, Arc::clone(&answer)) else { continue };
            let _ = stream.set_nodelay(true);
            std::thread::spawn(move || {
                let (mut buf, mut seen, mut number) = ([0; 4096], Vec::new(), 0);
                loop {
                    while let Some(end) = seen.windows(4).position(|w| w == b"\r\n\r\n") {
                        seen.drain(..end + 4);
                        if !answer(&mut stream, number) {
                            return;
                        }
                        number += 1;
                    }
                    match stream.read(&mut buf) {
                        Ok(n) if n > 0 => seen.extend_from_slice(&buf[..n]),
                        _ => return,
                    }
                }
            });
        }
    });
    addr
}

fn say(stream: &mut TcpStream, text: &str) -> bool {
    stream.write_all(text.as_bytes()).is_ok()
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn load(addr: SocketAddr) -> Load {
    let url = Url::parse(&format!("http://{addr}/")).expect("URL");
    let mut load = Load::new(&[Wanted::get(url)], Protocol::Http1, Order::Mixed, 1).expect("load");
    load.connections = 4;
    load.stop = Stop::Count(40, Some(Duration::from_secs(5)));
    load.timeout = Duration::from_millis(300);
    load
}

fn run(load: &Load) -> Report {
    run::run(load, None, |_| true).expect("runs")
}

#[test]
fn every_request_is_counted_once() {
    let addr = server(|s, _| say(s, OK));
    let mut load = load(addr);
    for (cpus, pipeline, per_connection) in [(1, 1, 0), (2, 1, 0), (1, 4, 0), (1, 1, 1), (2, 1, 3)] {
        load.cpus = (0..cpus).map(|_| 0).collect();
        (load.parallel, load.per_connection) = (pipeline, per_connection);
        let report = run(&load);
        let r = &report.outcome.record;
        let what = format!("{cpus} {pipeline} {per_connection}: {r:?}");
        assert_eq!((r.ok, r.complete, r.errors(), r.latency.len()), (40, 40, 0, 40), "{what}");
        assert_eq!((r.statuses[200], r.body_in), (40, 200), "{what}");
        if per_connection == 1 {
            assert_eq!(r.connections, 40, "{what}");
        }
    }
}

#[test]
fn faults_have_their_kinds() {
    let reset = |s: &mut TcpStream| {
        let socket = socket2::SockRef::from(&*s);
        let _ = socket.set_linger(Some(Duration::ZERO));
        false
    };
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel";
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhel";
    type Answer = Box<dyn Fn(&mut TcpStream, usize) -> bool + Send + Sync>;
    let cases: Vec<(&str, Failure, Answer)> = vec![
        ("close", Failure::Read, Box::new(|_, _| false)),
        ("reset", Failure::Read, Box::new(move |s, _| reset(s))),
        ("garbage", Failure::Protocol, Box::new(|s, _| say(s, "\x16\x03\x01 hello there\r\n\r\n"))),
        (
            "cut head",
            Failure::Read,
            Box::new(|s, _| {
                say(s, "HTTP/1.1 200 OK\r\nCont");
                false
            }),
        ),
        (
            "cut body",
            Failure::Length,
            Box::new(move |s, _| {
                say(s, half);
                false
            }),
        ),
        (
            "cut chunk",
            Failure::Length,
            Box::new(move |s, _| {
                say(s, chunked);
                false
            }),
        ),
        (
            "bad chunk",
            Failure::Protocol,
            Box::new(|s, _| say(s, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")),
        ),
        ("status", Failure::Status, Box::new(|s, _| say(s, "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"))),
        ("more than asked for", Failure::Protocol, Box::new(|s, _| say(s, &format!("{OK}{OK}")))),
    ];
    for (name, kind, answer) in cases {
        let mut load = load(server(answer));
        load.stop = Stop::Count(12, Some(Duration::from_secs(3)));
        let report = run(&load);
        let r = &report.outcome.record;
        assert!(r.failed(kind) >= 11, "{name}: {:?}", r.failures);
        let words = report.outcome.first_error.as_deref();
        let told = kind == Failure::Status || words == Some(kind.words());
        assert!(told && report.outcome.measured > Duration::ZERO, "{name}: {words:?}");
        let others = r.errors() - r.failed(kind);
        assert!(others <= 1 && report.is_void(), "{name}: {:?}", r.failures);
    }
}

#[test]
fn silence_ends_in_timeouts_with_their_age() {
    for trickle in [false, true] {
        let addr = server(move |s, _| {
            while trickle && say(s, "H") {
                std::thread::sleep(Duration::from_millis(20));
            }
            std::thread::sleep(Duration::from_secs(2));
            false
        });
        let mut load = load(addr);
        load.stop = Stop::After(Duration::from_millis(700));
        let start = Instant::now();
        let report = run(&load);
        let r = &report.outcome.record;
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        if !trickle {
            assert!(r.failed(Failure::Timeout) >= 8, "{:?}", r.failures);
            assert!(r.latency.quantile(0.5) >= 290 * MS, "{:?}", r.latency);
        }
        assert_eq!((r.ok, report.exit_code()), (0, 1));
    }
}

#[test]
fn requests_hanging_since_the_warm_up_are_counted() {
    // Every other connection gets no answer.
    let begun = AtomicUsize::new(0);
    let addr = server(move |s, n| {
        if n == 0 && begun.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            std::thread::sleep(Duration::from_secs(2));
            return false;
        }
        say(s, OK)
    });
    let mut load = load(addr);
    load.connections = 16;
    (load.warmup, load.stop) = (Duration::from_millis(100), Stop::After(Duration::from_millis(300)));
    (load.timeout, load.drain) = (Duration::from_millis(600), Some(Duration::from_millis(100)));
    for rate in [None, Some(Rate::constant(1000.0))] {
        load.rate = rate;
        let r = run(&load).outcome.record;
        let silent = r.failed(Failure::Timeout) + r.failed(Failure::Unanswered);
        assert!(r.ok > 100 && silent == 8, "{} {:?}", r.ok, r.failures);
        assert!(r.latency.max() > 300 * MS, "{:?}", r.latency);
    }
}

#[test]
fn answers_of_all_forms_are_read() {
    let addr = server(|s, n| match n % 4 {
        0 => say(s, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
        1 => say(
            s,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\n\r\n",
        ),
        2 => OK.as_bytes().chunks(1).all(|b| s.write_all(b).is_ok()),
        _ => {
            say(s, "HTTP/1.0 200 OK\r\n\r\nhello");
            false
        }
    });
    let mut load = load(addr);
    load.checks.length = Some(5);
    load.checks.contains = Some(b"ell".to_vec());
    let report = run(&load);
    let r = &report.outcome.record;
    assert_eq!((r.ok, r.errors()), (40, 0), "{:?} {:?}", r.failures, report.outcome.first_error);
    load.checks.contains = Some(b"elephant".to_vec());
    assert_eq!(run(&load).outcome.record.failed(Failure::Body), 40);
    (load.checks.contains, load.checks.length) = (None, Some(4));
    assert_eq!(run(&load).outcome.record.failed(Failure::Length), 40);
}

#[test]
fn large_bodies_are_whole() {
    let body = "x".repeat(3 << 20);
    let addr = server(move |s, _| {
        say(s, &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
    });
    let mut load = load(addr);
    load.timeout = Duration::from_secs(5);
    load.checks.length = Some(3 << 20);
    for contains in [None, Some(b"xxx".to_vec())] {
        load.checks.contains = contains;
        let r = run(&load).outcome.record;
        assert_eq!((r.ok, r.body_in), (40, 40 * (3 << 20)), "{:?}", r.failures);
    }
}

#[test]
fn an_unreachable_target_is_told() {
    let free = SocketAddr::from(([127, 0, 0, 1], free_port().expect("a port")));
    let mut load = load(free);
    load.stop = Stop::After(Duration::from_millis(200));
    let report = run(&load);
    assert!(report.outcome.record.failed(Failure::Connect) > 0);
    assert_eq!(report.exit_code(), 1);
    assert!(report.outcome.first_error.is_some_and(|e| e.contains("refused")));
    // A number of requests is no reason to try for ever.
    load.stop = Stop::Count(1_000_000, None);
    for rate in [None, Some(Rate::constant(1000.0))] {
        load.rate = rate;
        let start = Instant::now();
        let report = run(&load);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert!(report.outcome.record.failed(Failure::Connect) > 0 && report.exit_code() == 1);
        assert!(report.outcome.measured >= load.timeout, "{:?}", report.outcome.measured);
    }
    load.rate = None;
    load.connections = 0;
    assert!(engine::run(&load, |_| true).is_err());
}

/// Answers at once, but for a stop of 200 ms every 2 s: a tenth of what is due falls into it.
fn stalling() -> SocketAddr {
    let start = Instant::now();
    server(move |s, _| {
        let at = start.elapsed().as_millis() as u64 % 2000;
        if at < 200 {
            std::thread::sleep(Duration::from_millis(200 - at));
        }
        say(s, OK)
    })
}

#[test]
fn an_open_loop_shows_a_stall_and_a_closed_one_does_not() {
    let addr = stalling();
    let mut load = load(addr);
    load.timeout = Duration::from_secs(5);
    load.stop = Stop::After(Duration::from_secs(4));
    load.rate = Some(Rate::constant(500.0));
    let report = run(&load);
    let r = &report.outcome.record;
    assert_eq!((r.complete, r.errors()), (2000, 0), "{:?}", r.failures);
    // 10 % of requests waited up to 200 ms, evenly: p95 near 100 ms, p99 near 180 ms.
    let (p50, p95, p99) = (r.latency.quantile(0.5), r.latency.quantile(0.95), r.latency.quantile(0.99));
    assert!((60 * MS..150 * MS).contains(&p95), "{p95}");
    assert!((140 * MS..230 * MS).contains(&p99), "{p99}");
    assert!(p50 < 20 * MS, "{p50}");
    assert!(r.uncorrected.quantile(0.95) < 30 * MS, "{:?}", r.uncorrected);
    // A closed loop, in which a stall hits one request a connection, does not show it.
    load.rate = None;
    load.stop = Stop::After(Duration::from_secs(2));
    let closed = run(&load).outcome.record;
    assert!(
        closed.latency.quantile(0.99) < 50 * MS && closed.latency.max() > 100 * MS,
        "{:?}",
        closed.latency
    );
}

#[test]
fn the_rate_is_held_and_the_unanswered_counted() {
    let addr = server(|s, _| say(s, OK));
    let mut load = load(addr);
    load.connections = 16;
    load.stop = Stop::After(Duration::from_secs(1));
    for poisson in [false, true] {
        load.rate = Some(Rate { from: 1000.0, to: 1000.0, poisson });
        let report = run(&load);
        let n = report.outcome.record.complete as f64;
        assert!((n - 1000.0).abs() < if poisson { 130.0 } else { 5.0 }, "{n}");
        assert_eq!(report.outcome.record.errors(), 0);
    }
    // What was due is counted, not computed from the rate: a ramp whose first and last part are not measured.
    (load.warmup, load.rate) =
        (Duration::from_secs(1), Some(Rate { from: 2000.0, to: 100.0, poisson: false }));
    for stop in [1.0, f64::INFINITY] {
        let report = run::run(&load, None, |p| p.elapsed < 1.0 + stop / 2.0).expect("runs");
        let (due, n) = (report.outcome.record.due, report.outcome.record.complete);
        let wanted = if stop > 1.0 { 575 } else { 406 };
        assert!(due.abs_diff(wanted) < 100 && due.abs_diff(n) <= 16, "{due} {n}");
        let short = report.findings.iter().any(|f| f.text.contains("that were due"));
        assert!(
            !short && report.manner.contains("2000 falling to 100"),
            "{} {:?}",
            report.manner,
            report.findings
        );
    }
    // A server that answers 5 a second and connection, and is asked for 400.
    let slow = server(|s, _| {
        std::thread::sleep(Duration::from_millis(200));
        say(s, OK)
    });
    let mut load = self::load(slow);
    load.stop = Stop::After(Duration::from_secs(1));
    load.drain = Some(Duration::from_millis(300));
    load.timeout = Duration::from_secs(5);
    load.rate = Some(Rate::constant(400.0));
    let report = run(&load);
    let r = &report.outcome.record;
    assert_eq!(r.latency.len(), 400, "all that were due are in the histogram");
    assert!(r.failed(Failure::Unanswered) > 300 && r.latency.quantile(0.5) > 400 * MS, "{r:?}");
    load.rate = Some(Rate::constant(1e9));
    assert!(run::run(&load, None, |_| true).is_err_and(|e| e.to_string().contains("more than")));
}

#[test]
fn stopping_early_keeps_what_was_measured() {
    let addr = server(|s, _| say(s, OK));
    let mut load = load(addr);
    load.stop = Stop::After(Duration::from_secs(60));
    let start = Instant::now();
    let report = run::run(&load, None, |p| p.elapsed < 0.3).expect("runs");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(report.outcome.interrupted && report.outcome.record.ok > 0 && !report.points.is_empty());
    assert!(report.outcome.measured < Duration::from_secs(2), "{:?}", report.outcome.measured);
}

/// A schedule in which every request is due between two milliseconds of the clock that epoll_wait(2) counts in.
#[test]
fn requests_leave_when_they_are_due() {
    let addr = server(|s, _| say(s, OK));
    let mut load = load(addr);
    load.connections = 16;
    load.stop = Stop::After(Duration::from_secs(1));
    load.rate = Some(Rate::constant(700.0));
    // The best of three: other work on this machine is not what is asked here.
    let late = || run(&load).outcome.record.lateness.quantile(0.5);
    let best = (0..3).map(|_| late()).min().expect("three");
    assert!(best < MS * 3 / 10, "{best} ns late at the median");
}

/// nginx with a plain, a cleartext HTTP/2 and a TLS server.
struct Nginx(
    std::process::Child,
    #[expect(dead_code, reason = "removed when it ends")] tempfile::TempDir,
    [u16; 3],
);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.0.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.0.wait();
    }
}

fn nginx() -> Option<Nginx> {
    let dir = tempfile::tempdir().ok()?;
    let d = dir.path().display();
    let (crt, key) = (dir.path().join("c"), dir.path().join("k"));
    if forebay_bench::tls::self_signed(forebay_bench::tls::Kind::Rsa, &crt, &key).is_err() {
        eprintln!("skipped: openssl is not installed");
        return None;
    }
    let port = || free_port().expect("a port");
    let ports = [port(), port(), port()];
    let user = if nix::unistd::Uid::effective().is_root() { "user root;" } else { "" };
    let conf = format!(
        "{user} daemon off; worker_processes 1; pid {d}/pid; error_log {d}/log; events {{ worker_connections 512; }} http {{ \
         access_log off; keepalive_requests 100; client_body_temp_path {d}/b; proxy_temp_path {d}/p; fastcgi_temp_path {d}/f; \
         uwsgi_temp_path {d}/u; scgi_temp_path {d}/s; server {{ listen 127.0.0.1:{}; location / {{ return 200 hello; }} }} \
         server {{ listen 127.0.0.1:{} http2; location / {{ return 200 hello; }} }} \
         server {{ listen 127.0.0.1:{} ssl http2; ssl_certificate {d}/c; ssl_certificate_key {d}/k; location / {{ return 200 hello; }} }} }}",
        ports[0], ports[1], ports[2]
    );
    std::fs::write(dir.path().join("nginx.conf"), conf).ok()?;
    let child =
        Command::new("nginx").arg("-c").arg(dir.path().join("nginx.conf")).stderr(Stdio::null()).spawn();
    let Ok(child) = child else {
        eprintln!("skipped: nginx is not installed");
        return None;
    };
    let nginx = Nginx(child, dir, ports);
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", ports[2])).is_err() {
        assert!(start.elapsed() < Duration::from_secs(5), "nginx does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(nginx)
}

#[test]
fn connections_pause_after_a_response() {
    let Some(nginx) = nginx() else { return };
    let [plain, h2c, _] = nginx.2;
    for (port, protocol) in [(plain, Protocol::Http1), (h2c, Protocol::Http2)] {
        let wanted = [Wanted::get(Url::parse(&format!("http://127.0.0.1:{port}/")).expect("URL"))];
        let mut load = Load::new(&wanted, protocol, Order::Mixed, 1).expect("load");
        (load.connections, load.parallel, load.think) = (1, 1, Duration::from_millis(20));
        load.stop = Stop::Count(5, Some(Duration::from_secs(10)));
        let start = Instant::now();
        assert_eq!(run(&load).outcome.record.ok, 5);
        assert!(start.elapsed() >= Duration::from_millis(80), "{protocol:?}: {:?}", start.elapsed());
    }
}

#[test]
fn nginx_over_all_protocols() {
    let Some(nginx) = nginx() else { return };
    let [plain, h2c, tls] = nginx.2;
    let mut bytes = Vec::new();
    for (url, protocol, parallel, per_connection, resume) in [
        (format!("http://127.0.0.1:{plain}/"), Protocol::Http1, 1, 0, false),
        (format!("http://127.0.0.1:{h2c}/"), Protocol::Http2, 10, 0, false),
        (format!("http://127.0.0.1:{h2c}/"), Protocol::Http2, 1, 1, false),
        (format!("https://localhost:{tls}/"), Protocol::Http1, 1, 0, false),
        (format!("https://localhost:{tls}/"), Protocol::Http2, 10, 0, false),
        (format!("https://localhost:{tls}/"), Protocol::Http1, 1, 1, false),
        (format!("https://localhost:{tls}/"), Protocol::Http1, 1, 1, true),
    ] {
        let mut wanted = [Wanted::get(Url::parse(&url).expect("URL"))];
        if per_connection == 1 && protocol == Protocol::Http1 {
            Load::close_each(&mut wanted);
        }
        let mut load = Load::new(&wanted, protocol, Order::Mixed, 1).expect("load");
        (load.connections, load.parallel, load.per_connection, load.resume) =
            (4, parallel, per_connection, resume);
        load.stop = Stop::Count(600, Some(Duration::from_secs(10)));
        load.checks.contains = Some(b"hello".to_vec());
        if load.is_encrypted() {
            load.tls =
                Some(forebay_bench::tls::config(&forebay_bench::tls::Trust::Anyone, protocol).expect("TLS"));
        }
        let report = run(&load);
        let r = &report.outcome.record;
        let what = format!(
            "{url} {protocol:?} {parallel} {per_connection}: {:?} {:?}",
            r.failures, report.outcome.first_error
        );
        assert_eq!((r.ok, r.errors()), (600, 0), "{what}");
        assert!(!resume || r.resumed > 500, "{what} {}", r.resumed);
        if protocol == Protocol::Http1 && per_connection == 0 {
            bytes.push(r.bytes_in);
        }
    }
    // As wrk and ab count: what HTTP says, not what TLS makes of it.
    assert!(bytes.len() == 2 && bytes[0] == bytes[1], "{bytes:?}");
    let url = Url::parse(&format!("https://localhost:{tls}/")).expect("URL");
    let mut load = Load::new(&[Wanted::get(url)], Protocol::Http1, Order::Mixed, 1).expect("load");
    load.stop = Stop::After(Duration::from_millis(200));
    load.tls =
        Some(forebay_bench::tls::config(&forebay_bench::tls::Trust::System, Protocol::Http1).expect("TLS"));
    let report = run(&load);
    assert!(report.outcome.record.failed(Failure::Tls) > 0 && report.exit_code() == 1);
    assert!(report.outcome.first_error.is_some_and(|e| e.contains("certificate")));
}
