//! HTTP/3 against servers that behave well, badly and not at all.
#![allow(missing_docs)]

use forebay_bench::load::{Load, Order, Protocol, Stop, Wanted};
use forebay_bench::record::Failure;
use forebay_bench::run::{self, Report};
use forebay_bench::tls::{self, Kind, Trust, self_signed};
use forebay_bench::url::Url;
use forebay_http::h3::encode;
use forebay_http::h3::frame::{self, Header, kind};
use forebay_net::quic::{
    Arrival, Choose, Congestion, Connection, Dir, Endpoint, Event, HostKey, Mask, Owner, Place, Received,
    Settings, StreamEvent, StreamId, time,
};
use forebay_net::tls::hello::Hello;
use forebay_sys::datagrams::Batch;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Behaviour of a server.
trait Manner: Send + 'static {
    /// Begins a connection.
    fn connected(&self, quic: &mut Connection) {
        control(quic, b"");
    }

    /// Answers a request. `n` counts requests of the connection.
    fn answer(&self, quic: &mut Connection, id: StreamId, n: usize);
}

impl<F: Fn(&mut Connection, StreamId, usize) + Send + 'static> Manner for F {
    fn answer(&self, quic: &mut Connection, id: StreamId, n: usize) {
        self(quic, id, n);
    }
}

struct OneConfig(Arc<rustls::ServerConfig>);

impl Choose for OneConfig {
    fn choose(&self, _: u32, _: Hello) -> Result<Arc<rustls::ServerConfig>, u8> {
        Ok(self.0.clone())
    }

    fn refused(&self, _: u32) {}
}

/// Owner that numbers connections.
struct Numbers(Cell<u32>);

impl Owner for Numbers {
    fn begin(&self, _: &Arrival) -> Option<u32> {
        Some(self.0.replace(self.0.get() + 1))
    }

    fn redirect(&self, _: &Received<'_>) -> bool {
        false
    }

    fn pass(&self, _: Place, _: bool, _: &Received<'_>) -> bool {
        false
    }
}

fn config(alpn: &[u8]) -> Arc<rustls::ServerConfig> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (crt, key) = (dir.path().join("crt"), dir.path().join("key"));
    self_signed(Kind::Ecdsa, &crt, &key).expect("openssl");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(crt).expect("a certificate")],
            PrivateKeyDer::from_pem_file(key).expect("a key"),
        )
        .expect("a pair");
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

/// Starts a server in a thread that ends with the test program.
fn server(manner: impl Manner) -> SocketAddr {
    server_for(b"h3", manner)
}

fn server_for(alpn: &'static [u8], manner: impl Manner) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket.set_nonblocking(true).expect("option");
    let addr = socket.local_addr().expect("bound");
    let config = config(alpn);
    std::thread::spawn(move || {
        let settings = Settings {
            streams: 4,
            stream_window: 1 << 20,
            send_window: 1 << 20,
            max_send_window: 1 << 20,
            idle: Duration::from_secs(30),
            ids: 2,
            retry: false,
            connections: 1000,
            congestion: Congestion::Cubic,
            key: HostKey::new(&[7; 64]),
        };
        let (place, mask) =
            (Place { process: 0, thread: 0, endpoint: 0 }, Mask::new(&[7; 16]).expect("a key"));
        let endpoint = Endpoint::new(Arc::new(socket.into()), false, settings, place, Arc::new(mask));
        let endpoint = endpoint.expect("an endpoint");
        let (chooser, mut batch): (Rc<dyn Choose>, _) = (Rc::new(OneConfig(config)), Batch::new());
        let owner = Numbers(Cell::new(0));
        let mut counts = Vec::new();
        loop {
            let now = Instant::now();
            let got = endpoint.receive(&mut batch);
            endpoint.handle(&batch, 0..got.unwrap_or(0), now, &chooser, &owner);
            counts.resize(owner.0.get() as usize, 0);
            endpoint.expire(now);
            while let Some(link) = endpoint.take_ready() {
                let n = &mut counts[link.owner.get() as usize];
                let mut quic = link.quic();
                while let Some(event) = quic.poll() {
                    match event {
                        Event::Connected => manner.connected(&mut quic),
                        Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                            while let Some(id) = quic.streams().accept(Dir::Bi) {
                                drain(&mut quic, id);
                                manner.answer(&mut quic, id, *n);
                                *n += 1;
                            }
                        }
                        Event::Stream(StreamEvent::Readable { id }) => drain(&mut quic, id),
                        _ => {}
                    }
                }
                drop(quic);
                endpoint.mark_sending(&link);
            }
            endpoint.flush(now, |_| {});
            if got.is_err() && !endpoint.has_unsent() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    addr
}

/// Reads what has come on a stream, so that the client may open more.
fn drain(quic: &mut Connection, id: StreamId) {
    while let Ok(Some(_)) = quic.streams().read(id, usize::MAX) {}
}

/// Opens a control stream with empty SETTINGS and these frames.
fn control(quic: &mut Connection, frames: &[u8]) -> StreamId {
    uni(quic, &[&[0, 4, 0], frames].concat())
}

fn uni(quic: &mut Connection, bytes: &[u8]) -> StreamId {
    let id = quic.streams().open(Dir::Uni).expect("a stream");
    send(quic, id, bytes);
    id
}

fn send(quic: &mut Connection, id: StreamId, bytes: &[u8]) {
    assert_eq!(quic.streams().write_slice(id, bytes).ok(), Some(bytes.len()));
}

fn finish(quic: &mut Connection, id: StreamId) {
    let _ = quic.streams().finish(id);
}

fn frame_of(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Header { kind, len: payload.len() as u64 }.push(&mut out);
    out.extend_from_slice(payload);
    out
}

/// HEADERS with a status and a length of content.
fn head(status: u16, length: Option<&str>) -> Vec<u8> {
    let mut section = Vec::new();
    encode::prefix(&mut section);
    encode::status(&mut section, status);
    if let Some(length) = length {
        encode::field(&mut section, b"content-length", length.as_bytes());
    }
    frame_of(kind::HEADERS, &section)
}

fn hello() -> Vec<u8> {
    [head(200, Some("5")), frame_of(kind::DATA, b"hello")].concat()
}

fn reply(quic: &mut Connection, id: StreamId, bytes: &[u8]) {
    send(quic, id, bytes);
    finish(quic, id);
}

fn load(addr: SocketAddr) -> Load {
    let url = Url::parse(&format!("https://{addr}/")).expect("URL");
    let mut load = Load::new(&[Wanted::get(url)], Protocol::Http3, Order::Listed, 1).expect("load");
    load.connections = 2;
    load.parallel = 3;
    load.stop = Stop::Count(20, Some(Duration::from_secs(10)));
    load.timeout = Duration::from_millis(1500);
    load.tls = Some(tls::config(&Trust::Anyone, Protocol::Http3).expect("TLS"));
    load
}

fn run(load: &Load) -> Report {
    run::run(load, None, |_| true).expect("runs")
}

#[test]
fn every_request_is_counted_once() {
    let addr = server(|quic: &mut Connection, id, _| reply(quic, id, &hello()));
    let mut load = load(addr);
    load.checks.contains = Some(b"hello".to_vec());
    // The server lets 4 streams be open: more are not asked for.
    for (cpus, parallel, per_connection) in [(1, 1, 0), (2, 3, 0), (1, 9, 0), (1, 1, 1), (2, 4, 3)] {
        load.cpus = (0..cpus).map(|_| 0).collect();
        (load.parallel, load.per_connection) = (parallel, per_connection);
        let report = run(&load);
        let r = &report.outcome.record;
        let what = format!("{cpus} {parallel} {per_connection}: {r:?} {:?}", report.outcome.first_error);
        assert_eq!((r.ok, r.complete, r.errors(), r.latency.len()), (20, 20, 0, 20), "{what}");
        assert_eq!((r.statuses[200], r.body_in, r.retried), (20, 100, 0), "{what}");
        assert_eq!(r.handshake.len(), r.connections, "{what}");
        // A packet may have several requests.
        assert!(r.packets >= 10 && r.packets_lost < r.packets && r.dropped == 0, "{what}");
        if per_connection == 1 {
            assert_eq!((r.connections, r.resumed), (20, 0), "{what}");
        }
    }
    (load.parallel, load.per_connection, load.resume, load.connections) = (1, 1, true, 1);
    let r = run(&load).outcome.record;
    assert_eq!((r.ok, r.connections, r.resumed), (20, 20, 19), "{r:?}");
    (load.per_connection, load.timeout) = (0, Duration::from_secs(30));
    load.connections = 200;
    load.stop = Stop::Count(1000, None);
    let r = run(&load).outcome.record;
    assert_eq!((r.ok, r.errors()), (1000, 0), "{r:?}");
}

#[test]
fn connections_pause_after_a_response() {
    let addr = server(|quic: &mut Connection, id, _| reply(quic, id, &hello()));
    let mut load = load(addr);
    (load.connections, load.parallel, load.think) = (1, 1, Duration::from_millis(20));
    load.stop = Stop::Count(5, Some(Duration::from_secs(10)));
    let start = Instant::now();
    assert_eq!(run(&load).outcome.record.ok, 5);
    assert!(start.elapsed() >= Duration::from_millis(80), "{:?}", start.elapsed());
}

#[test]
fn responses_of_all_forms_are_read() {
    let unknown = frame_of(0x21, b"nothing");
    let trailers = frame_of(kind::HEADERS, &[0, 0, 0x21, b'a', 1, b'b']);
    let forms: Vec<Vec<u8>> = vec![
        [head(200, None), frame_of(kind::DATA, b"hello")].concat(),
        [unknown.clone(), hello(), unknown.clone()].concat(),
        [head(103, None), head(200, Some("5")), frame_of(kind::DATA, b"hel"), frame_of(kind::DATA, b"lo")]
            .concat(),
        [hello(), trailers].concat(),
        [head(200, Some("5")), frame_of(kind::DATA, b""), frame_of(kind::DATA, b"hello")].concat(),
    ];
    let count = forms.len();
    let addr =
        server(move |quic: &mut Connection, id: StreamId, n: usize| reply(quic, id, &forms[n % count]));
    let mut load = load(addr);
    load.checks.contains = Some(b"hello".to_vec());
    load.checks.length = Some(5);
    let report = run(&load);
    let r = &report.outcome.record;
    assert_eq!((r.ok, r.body_in), (20, 100), "{r:?} {:?}", report.outcome.first_error);
}

#[test]
fn content_is_sent_whole() {
    let body = vec![b'x'; 3 << 20];
    let addr = server(|quic: &mut Connection, id: StreamId, _| {
        // Stopped at once: the response counts all the same.
        let _ = quic.streams().stop(id, 0x100);
        reply(quic, id, &hello());
    });
    let mut load = load(addr);
    let mut want = Wanted::get(Url::parse(&format!("https://{addr}/")).expect("URL"));
    (want.method, want.body) = ("POST".into(), body);
    load.requests = Load::new(&[want], Protocol::Http3, Order::Listed, 1).expect("load").requests;
    let r = run(&load).outcome.record;
    assert_eq!((r.ok, r.errors()), (20, 0), "{r:?}");
}

#[test]
fn faults_have_their_kinds_and_names() {
    type Answer = Box<dyn Fn(&mut Connection, StreamId, usize) + Send>;
    let reset = |code: u32| -> Answer {
        Box::new(move |quic, id, _| {
            let _ = quic.streams().reset(id, code.into());
        })
    };
    let close = |code: u32| -> Answer {
        Box::new(move |quic, _, _| quic.close(time(Instant::now()), code.into(), b""))
    };
    let say = |bytes: Vec<u8>| -> Answer { Box::new(move |quic, id, _| reply(quic, id, &bytes)) };
    let cases: Vec<(&str, Failure, &str, Answer)> = vec![
        ("reset", Failure::Read, "reset a stream: H3_INTERNAL_ERROR (0x102)", reset(0x102)),
        ("reset with a number of its own", Failure::Read, "reset a stream: 0x1234", reset(0x1234)),
        ("close", Failure::Read, "closed the connection: H3_EXCESSIVE_LOAD (0x107)", close(0x107)),
        (
            "cut content",
            Failure::Length,
            "",
            say([head(200, Some("9")), frame_of(kind::DATA, b"hel")].concat()),
        ),
        ("cut frame", Failure::Length, "", say([head(200, None), vec![0, 9, b'x']].concat())),
        ("nothing", Failure::Protocol, "", say(Vec::new())),
        ("content first", Failure::Protocol, "H3_FRAME_UNEXPECTED", say(frame_of(kind::DATA, b"x"))),
        ("a push", Failure::Protocol, "H3_ID_ERROR", say(frame_of(kind::PUSH_PROMISE, &[0, 0, 0]))),
        ("HTTP/2", Failure::Protocol, "H3_FRAME_UNEXPECTED", say(frame_of(6, b"12345678"))),
        ("no status", Failure::Protocol, "H3_MESSAGE_ERROR", say(frame_of(kind::HEADERS, &[0, 0]))),
        (
            "bad fields",
            Failure::Protocol,
            "QPACK_DECOMPRESSION_FAILED",
            say(frame_of(kind::HEADERS, &[0, 0, 0xff, 0x70])),
        ),
        ("status", Failure::Status, "status 503", say(head(503, Some("0")))),
    ];
    for (what, kind, words, answer) in cases {
        let mut load = load(server(answer));
        load.connections = 1;
        load.stop = Stop::Count(6, Some(Duration::from_secs(10)));
        let report = run(&load);
        let r = &report.outcome.record;
        let first = report.outcome.first_error.as_deref().unwrap_or_default();
        assert_eq!((r.failed(kind), r.errors()), (6, 6), "{what}: {r:?} {first}");
        assert!(first.contains(words), "{what}: {first}");
    }
}

#[test]
fn refused_requests_are_sent_again() {
    // The first of each connection is not processed, and the third connection is the last that goes away.
    let addr = server(|quic: &mut Connection, id: StreamId, n| match n {
        0 => drop(quic.streams().reset(id, 0x10b)),
        _ => reply(quic, id, &hello()),
    });
    let r = run(&load(addr)).outcome.record;
    assert_eq!((r.ok, r.errors(), r.retried), (20, 0, 2), "{r:?}");
}

/// Goes away with the sixth request, which is not served.
struct Leaving;

impl Manner for Leaving {
    fn connected(&self, _: &mut Connection) {}

    fn answer(&self, quic: &mut Connection, id: StreamId, n: usize) {
        match n {
            0..5 => reply(quic, id, &hello()),
            5 => {
                let mut goaway = Vec::new();
                frame::push_goaway(&mut goaway, 20);
                control(quic, &goaway);
            }
            _ => {}
        }
    }
}

#[test]
fn a_server_that_goes_away_loses_no_request() {
    let r = run(&load(server(Leaving))).outcome.record;
    assert_eq!((r.ok, r.errors()), (20, 0), "{r:?}");
    assert!(r.connections >= 4 && r.retried >= 1, "{r:?}");
}

/// Encodes `:status: 200` by the dynamic table. The instruction comes with the second request only.
struct Dynamic;

impl Manner for Dynamic {
    fn answer(&self, quic: &mut Connection, id: StreamId, n: usize) {
        // The name is entry 25 of the static table; the entry is the first one, and needs one insertion.
        let section = frame_of(kind::HEADERS, &[2, 0, 0x80]);
        reply(quic, id, &[section, frame_of(kind::DATA, b"hello")].concat());
        if n == 1 {
            // Capacity 220, then the insertion.
            uni(quic, &[2, 0x3f, 0xbd, 0x01, 0xc0 | 25, 3, b'2', b'0', b'0']);
        }
    }
}

#[test]
fn responses_wait_for_the_dynamic_table() {
    let mut load = load(server(Dynamic));
    load.checks.contains = Some(b"hello".to_vec());
    let report = run(&load);
    let r = &report.outcome.record;
    assert_eq!((r.ok, r.statuses[200]), (20, 20), "{r:?} {:?}", report.outcome.first_error);
}

/// Sends bytes on streams of its own, or without SETTINGS.
struct BadStreams(&'static [&'static [u8]]);

impl Manner for BadStreams {
    fn connected(&self, quic: &mut Connection) {
        for bytes in self.0 {
            uni(quic, bytes);
        }
    }

    fn answer(&self, _: &mut Connection, _: StreamId, _: usize) {}
}

#[test]
fn faults_of_control_streams_are_named() {
    const CASES: &[(&[&[u8]], &str)] = &[
        (&[&[0, 7, 1, 0]], "H3_MISSING_SETTINGS"),
        (&[&[0, 4, 2, 2, 1]], "H3_SETTINGS_ERROR"),
        (&[&[0, 4, 0, 4, 0]], "H3_FRAME_UNEXPECTED"),
        (&[&[0, 4, 0], &[0]], "H3_STREAM_CREATION_ERROR"),
        (&[&[0, 4, 0, 7, 1, 0, 7, 1, 4]], "H3_ID_ERROR"),
        (&[&[0, 4, 0, 0x21, 0x80, 0xff, 0xff, 0xff]], "H3_EXCESSIVE_LOAD"),
        (&[&[2, 0x3f, 0xff, 0xff, 0x7f]], "QPACK_ENCODER_STREAM_ERROR"),
        (&[&[3, 0x81]], "QPACK_DECODER_STREAM_ERROR"),
        (&[&[1, 0]], "H3_ID_ERROR"),
    ];
    for (streams, words) in CASES {
        let mut load = load(server(BadStreams(streams)));
        load.connections = 1;
        load.stop = Stop::Count(3, Some(Duration::from_secs(5)));
        let outcome = run(&load).outcome;
        let first = outcome.first_error.as_deref().unwrap_or_default();
        assert!(first.contains(words), "{streams:?}: {first:?}");
        assert_eq!(outcome.record.complete, 0);
    }
}

#[test]
fn connections_that_cannot_be_made_are_told() {
    // A port at which nobody listens.
    let closed = UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("bound");
    // One that answers nothing, and one that knows none of our versions.
    let silent = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let other = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let (at_silent, at_other) = (silent.local_addr().expect("bound"), other.local_addr().expect("bound"));
    std::thread::spawn(move || {
        let mut buf = [0; 2048];
        while let Ok((len, from)) = other.recv_from(&mut buf) {
            // RFC 9000, section 17.2.1: the identifiers change places.
            let packet = &buf[..len];
            let (to, rest) = packet[6..].split_at(packet[5] as usize);
            let from_id = &rest[1..][..rest[0] as usize];
            let mut out = vec![0x80, 0, 0, 0, 0, from_id.len() as u8];
            out.extend_from_slice(from_id);
            out.push(to.len() as u8);
            out.extend_from_slice(to);
            out.extend_from_slice(&[0x1a, 0x2a, 0x3a, 0x4a]);
            let _ = other.send_to(&out, from);
        }
    });
    let foreign = server_for(b"hq-interop", |_: &mut Connection, _: StreamId, _: usize| {});
    for (addr, kind, words) in [
        (closed, Failure::Connect, "nobody listens at that UDP port"),
        (at_silent, Failure::Timeout, "no answer within"),
        (at_other, Failure::Connect, "does not speak version 1 of QUIC"),
        (foreign, Failure::Tls, "does not speak HTTP/3"),
    ] {
        let mut load = load(addr);
        load.stop = Stop::Count(2, None);
        load.timeout = Duration::from_millis(400);
        let start = Instant::now();
        let outcome = run(&load).outcome;
        let first = outcome.first_error.as_deref().unwrap_or_default();
        assert!(first.contains(words), "{words}: {first:?}");
        assert!(
            outcome.record.failed(kind) > 0 && outcome.record.complete == 0,
            "{words}: {:?}",
            outcome.record
        );
        assert!(start.elapsed() < Duration::from_secs(10), "{words}: {:?}", start.elapsed());
    }
    drop(silent);
    let addr = server(|quic: &mut Connection, id: StreamId, _: usize| reply(quic, id, &hello()));
    let mut load = load(addr);
    load.tls = Some(tls::config(&Trust::System, Protocol::Http3).expect("TLS"));
    load.stop = Stop::Count(2, Some(Duration::from_secs(1)));
    let first = run(&load).outcome.first_error.unwrap_or_default();
    assert!(first.contains("does not verify") && first.contains("--insecure"), "{first}");
}

struct Stingy;

impl Manner for Stingy {
    fn connected(&self, quic: &mut Connection) {
        quic.streams().set_max_streams(Dir::Bi, 0);
        control(quic, b"");
    }

    fn answer(&self, quic: &mut Connection, id: StreamId, _: usize) {
        reply(quic, id, &hello());
    }
}

#[test]
fn a_silent_server_times_out() {
    let mut load = load(server(|_: &mut Connection, _: StreamId, _: usize| {}));
    load.timeout = Duration::from_millis(300);
    load.stop = Stop::Count(4, Some(Duration::from_secs(5)));
    let r = run(&load).outcome.record;
    assert_eq!((r.failed(Failure::Timeout), r.complete), (4, 0), "{r:?}");
    assert!(r.latency.quantile(0.5) >= 290_000_000, "{r:?}");
    // Answers, but lets the client open no more than the first four streams.
    let mut load = self::load(server(Stingy));
    load.timeout = Duration::from_millis(300);
    let report = run(&load);
    let r = &report.outcome.record;
    assert!(r.ok == 20 && r.connections >= 5 && r.failed(Failure::Timeout) >= 3, "{r:?}");
}

#[test]
fn only_https_is_taken() {
    for text in ["http://127.0.0.1/", "unix:/run/x.sock", "tcp://127.0.0.1:1"] {
        let url = Url::parse(text).expect("URL");
        let refused = Load::new(&[Wanted::get(url)], Protocol::Http3, Order::Listed, 1);
        assert!(refused.is_err_and(|e| e.to_string().contains("https://")), "{text}");
    }
}
