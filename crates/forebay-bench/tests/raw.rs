//! Loads of bytes over TCP and UDP, against servers that answer, are silent, or answer too much.
#![allow(missing_docs)]

use forebay_bench::load::{Load, Stop};
use forebay_bench::raw::{Answer, Message};
use forebay_bench::record::Failure;
use forebay_bench::run::{self, Report};
use forebay_bench::schedule::Rate;
use forebay_bench::url::Url;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

/// A server with one thread a connection, which gets what is read from it and the number of the read; the connection
/// ends when it gives `false`.
fn tcp(answer: impl Fn(&mut TcpStream, &[u8], usize) -> bool + Send + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            let _ = stream.set_nodelay(true);
            std::thread::spawn(move || {
                let mut buf = vec![0; 70_000];
                let mut number = 0;
                while let Ok(n @ 1..) = stream.read(&mut buf) {
                    if !answer(&mut stream, &buf[..n], number) {
                        return;
                    }
                    number += 1;
                }
            });
        }
    });
    addr
}

fn echo() -> SocketAddr {
    tcp(|stream, bytes, _| stream.write_all(bytes).is_ok())
}

/// A UDP server, which answers each datagram with those that `answers` gives for its number.
fn udp(answers: impl Fn(&[u8], usize) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let addr = socket.local_addr().expect("address");
    std::thread::spawn(move || {
        let mut buf = vec![0; 70_000];
        for number in 0.. {
            let Ok((n, peer)) = socket.recv_from(&mut buf) else { return };
            for answer in answers(&buf[..n], number) {
                let _ = socket.send_to(&answer, peer);
            }
        }
    });
    addr
}

fn message(bytes: &[u8], answer: Answer) -> Message {
    let length = if let Answer::Bytes(n) = answer { Some(n) } else { None };
    Message { bytes: bytes.to_vec(), answer, length, name: format!("{} bytes", bytes.len()) }
}

/// Forty messages on four connections.
fn load(scheme: &str, addr: SocketAddr, message: Message) -> Load {
    let url = Url::parse(&format!("{scheme}://{addr}")).expect("URL");
    let mut load = Load::raw(&[url], message, 1).expect("load");
    load.connections = 4;
    load.stop = Stop::Count(40, Some(Duration::from_secs(5)));
    load.timeout = Duration::from_millis(300);
    load
}

fn run(load: &Load) -> Report {
    run::run(load, None, |_| true).expect("runs")
}

#[test]
fn every_message_is_counted_once() {
    let addr = echo();
    let large = vec![7; 300_000];
    for (bytes, pipeline, per_connection) in [
        (&b"ping"[..], 1, 0),
        (b"ping", 4, 0),
        (b"ping", 1, 1),
        (b"ping", 1, 3),
        (&large, 1, 0),
        (&large, 2, 1),
    ] {
        let mut load = load("tcp", addr, message(bytes, Answer::Bytes(bytes.len() as u64)));
        (load.parallel, load.per_connection) = (pipeline, per_connection);
        let r = run(&load).outcome.record;
        let what = format!("{} {pipeline} {per_connection}: {:?}", bytes.len(), r.failures);
        assert_eq!((r.ok, r.complete, r.errors(), r.latency.len()), (40, 40, 0, 40), "{what}");
        let moved = 40 * bytes.len() as u64;
        assert_eq!((r.body_in, r.bytes_in, r.bytes_out), (moved, moved, moved), "{what}");
        assert_eq!(r.seen().count(), 0, "{what}");
        let connections = if per_connection == 1 { 40 } else { r.connections };
        assert_eq!(r.connections, connections, "{what}");
    }
}

#[test]
fn answers_end_as_the_load_says() {
    // A part of the answer comes later, and belongs to no message.
    let pieces = tcp(|stream, _, _| stream.write_all(b"+PONG\r\n").is_ok());
    let r = run(&load("tcp", pieces, message(b"PING\r\n", Answer::First))).outcome.record;
    assert_eq!((r.ok, r.errors(), r.body_in), (40, 0, 280));
    let closing = tcp(|stream, _, _| {
        let _ = stream.write_all(b"until the end");
        false
    });
    let r = run(&load("tcp", closing, message(b"?", Answer::Close))).outcome.record;
    assert_eq!((r.ok, r.errors(), r.body_in, r.connections), (40, 0, 13 * 40, 40));
    // The server speaks first.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let greeting = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"220 ready\r\n");
            std::thread::spawn(move || stream.read(&mut [0; 10]));
        }
    });
    let mut load = load("tcp", greeting, message(b"", Answer::First));
    load.per_connection = 1;
    let r = run(&load).outcome.record;
    assert_eq!((r.ok, r.errors(), r.body_in, r.connections), (40, 0, 11 * 40, 40));
}

#[test]
fn faults_of_a_connection_have_their_kinds() {
    type Answer1 = fn(&mut TcpStream, &[u8], usize) -> bool;
    let cases: [(&str, Failure, &str, Answer1); 4] = [
        ("close", Failure::Read, "instead of answering", |_, _, _| false),
        ("short", Failure::Length, "cut short", |s, b, _| s.write_all(&b[1..]).is_err()),
        ("silence", Failure::Timeout, "no answer within", |_, _, _| true),
        ("more", Failure::Protocol, "more bytes came", |s, b, _| s.write_all(&[b, b].concat()).is_ok()),
    ];
    for (name, kind, words, answer) in cases {
        let mut load = load("tcp", tcp(answer), message(b"ping", Answer::Bytes(4)));
        (load.connections, load.stop) = (1, Stop::Count(4, Some(Duration::from_secs(5))));
        load.timeout = Duration::from_millis(50);
        let report = run(&load);
        let r = &report.outcome.record;
        assert!(r.failed(kind) > 0 && r.errors() == r.failed(kind), "{name}: {:?}", r.failures);
        assert!(report.outcome.first_error.as_deref().is_some_and(|e| e.contains(words)), "{name}");
        assert!(report.is_void(), "{name}");
    }
}

#[test]
fn datagrams_are_counted_and_lost_ones_time_out() {
    let addr = udp(|bytes, _| vec![bytes.to_vec()]);
    for per_connection in [0, 1] {
        let mut load = load("udp", addr, message(b"ping", Answer::Bytes(4)));
        load.per_connection = per_connection;
        let r = run(&load).outcome.record;
        assert_eq!((r.ok, r.complete, r.errors(), r.body_in), (40, 40, 0, 160), "{:?}", r.failures);
        assert_eq!(r.connections, if per_connection == 1 { 40 } else { 4 });
    }
    // Every fourth is lost; each of these takes a new port, where no late answer is mistaken for the next one.
    let lossy = udp(|bytes, number| if number % 4 == 3 { Vec::new() } else { vec![bytes.to_vec()] });
    let mut load = load("udp", lossy, message(b"ping", Answer::Bytes(4)));
    load.timeout = Duration::from_millis(60);
    let report = run(&load);
    let r = &report.outcome.record;
    assert_eq!((r.ok, r.failed(Failure::Timeout), r.errors()), (30, 10, 10), "{:?}", r.failures);
    // The time that they took is a part of the distribution.
    assert!(r.latency.len() == 40 && r.latency.max() >= 60_000_000);
    assert!(report.is_void());
}

#[test]
fn datagrams_of_another_form_are_noticed() {
    let longer = udp(|bytes, _| vec![[bytes, b"!"].concat()]);
    let r = run(&load("udp", longer, message(b"ping", Answer::Bytes(4)))).outcome.record;
    assert_eq!((r.ok, r.complete, r.failed(Failure::Length)), (0, 40, 40));
    let empty = udp(|_, _| vec![Vec::new()]);
    let r = run(&load("udp", empty, message(b"ping", Answer::First))).outcome.record;
    assert_eq!((r.ok, r.errors(), r.body_in), (40, 0, 0));
    // The second answer does not count as the answer to the next datagram.
    let twice = udp(|bytes, _| vec![bytes.to_vec(), b"second answer".to_vec()]);
    let mut load = load("udp", twice, message(b"ping", Answer::First));
    load.think = Duration::from_millis(5);
    let r = run(&load).outcome.record;
    assert_eq!((r.ok, r.errors(), r.body_in), (40, 0, 160));
}

#[test]
fn a_port_without_a_server_is_an_error() {
    let closed = UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("address");
    let mut load = load("udp", closed, message(b"ping", Answer::Bytes(4)));
    load.stop = Stop::Count(8, Some(Duration::from_secs(5)));
    let report = run(&load);
    let r = &report.outcome.record;
    assert_eq!((r.complete, r.errors()), (0, 8), "{:?}", r.failures);
    let first = report.outcome.first_error.as_deref();
    assert!(first.is_some_and(|e| e.contains("refused")), "{first:?}");
}

#[test]
fn an_open_loop_keeps_its_rate() {
    for (scheme, addr) in [("tcp", echo()), ("udp", udp(|bytes, _| vec![bytes.to_vec()]))] {
        let mut load = load(scheme, addr, message(b"ping", Answer::Bytes(4)));
        load.stop = Stop::After(Duration::from_millis(500));
        load.rate = Some(Rate::constant(400.0));
        let report = run(&load);
        let r = &report.outcome.record;
        assert_eq!((r.due, r.errors()), (200, 0), "{scheme}: {:?}", r.failures);
        assert_eq!((r.complete, r.latency.len(), r.uncorrected.len()), (200, 200, 200), "{scheme}");
        assert!(
            report.manner.starts_with(if scheme == "tcp" { "TCP, 4 bytes" } else { "UDP, 4 bytes" }),
            "{}",
            report.manner
        );
    }
}

#[test]
fn an_empty_datagram_is_sent() {
    let addr = udp(|bytes, _| vec![vec![b'x'; 1 + bytes.len()]]);
    let r = run(&load("udp", addr, message(b"", Answer::First))).outcome.record;
    assert_eq!((r.ok, r.errors(), r.bytes_in, r.bytes_out), (40, 0, 40, 0), "{:?}", r.failures);
}

#[test]
fn bytes_count_as_sent_once_the_socket_has_taken_them() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    // Nothing is accepted or read, so that most of the message never leaves.
    let whole = vec![7; 32 << 20];
    let mut load = load("tcp", addr, message(&whole, Answer::First));
    (load.connections, load.stop) = (1, Stop::Count(1, Some(Duration::from_secs(5))));
    let r = run(&load).outcome.record;
    assert_eq!((r.failed(Failure::Timeout), r.complete), (1, 0), "{:?}", r.failures);
    assert!((1..whole.len() as u64).contains(&r.bytes_out), "{}", r.bytes_out);
    drop(listener);
}

#[test]
fn a_timeout_tells_of_an_answer_that_stopped() {
    let addr = tcp(|stream, bytes, _| stream.write_all(&bytes[..1]).is_ok());
    let report = run(&load("tcp", addr, message(b"ping", Answer::Bytes(4))));
    let why = report.outcome.first_error.expect("an error");
    assert!(why.starts_with("1 bytes came within 300") && why.ends_with("--answer sets its end"), "{why}");
}

#[test]
fn requests_that_never_left_have_no_time_from_sending() {
    let addr = tcp(|_, _, _| true);
    let mut load = load("tcp", addr, message(b"ping", Answer::First));
    load.connections = 1;
    load.rate = Some(Rate { from: 500.0, to: 500.0, poisson: false });
    load.stop = Stop::After(Duration::from_millis(250));
    let r = run(&load).outcome.record;
    assert_eq!((r.complete, r.latency.len()), (0, r.due), "{:?}", r.failures);
    // One connection had one request under way; the others waited for it.
    assert!(r.uncorrected.len() <= 2 && r.uncorrected.quantile(0.5) > 100_000_000, "{}", r.uncorrected.len());
}
