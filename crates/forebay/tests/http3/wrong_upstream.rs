//! Upstreams that break the rules of HTTP/3: each request fails with an answer and a line in the log, and nothing else does.

use super::{conf, site};
use forebay_http::h3::frame::{kind, push_goaway, push_settings};
use forebay_net::quic::{
    Arrival, Choose, Congestion, Dir, Endpoint, Event, HostKey, Mask, Owner, Place, Received, Settings,
    StreamEvent, StreamId, Streams, TlsConfig,
};
use forebay_net::tls::hello::Hello;
use forebay_sys::datagrams::Batch;
use forebay_testkit::h3::steps::{frame, only as head};
use forebay_testkit::{DEADLINE, Server, Site, wait_for, wait_until};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Behaviour of an upstream after it has received a request.
#[derive(Clone)]
enum Answer {
    /// It sends these bytes and ends the stream.
    Whole(Vec<u8>),
    /// It sends these bytes and no more.
    Part(Vec<u8>),
    Reset(u32),
    /// It sends these bytes and ends the stream, and its encoder stream has [`INSERTION`] once it may.
    Blocked(Vec<u8>, Arc<Late>),
}

/// Encoder stream with one insertion, `x-late: y`.
const INSERTION: &[u8] = b"\x02\x3f\xa9\x01\x46x-late\x01y";
/// Prefix of a field section that needs that insertion.
const LATE: &[u8] = &[2, 0];
/// `:status: 200`, and the insertion.
const STATUS: u8 = 0xd9;
const INSERTED: u8 = 0x80;

/// An upstream whose encoder stream is late.
#[derive(Default)]
struct Late {
    may_insert: AtomicBool,
    /// Bytes received on unidirectional streams, by the number of the stream.
    told: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Late {
    /// Waits for an instruction on the front's decoder stream.
    fn wait_for_feedback(&self, instruction: u8) {
        wait_for("feedback", || {
            let told = self.told.lock().expect("lock");
            let feedback = told.values().find(|bytes| bytes.first() == Some(&3))?;
            feedback.contains(&instruction).then_some(())
        });
    }
}

struct Chooser(Arc<TlsConfig>);

impl Choose for Chooser {
    fn choose(&self, _: u32, _: Hello) -> Result<Arc<TlsConfig>, u8> {
        Ok(self.0.clone())
    }

    fn refused(&self, _: u32) {}
}

struct Everyone;

impl Owner for Everyone {
    fn begin(&self, _: &Arrival) -> Option<u32> {
        Some(0)
    }

    fn redirect(&self, _: &Received<'_>) -> bool {
        false
    }

    fn pass(&self, _: Place, _: bool, _: &Received<'_>) -> bool {
        false
    }
}

/// Starts an upstream whose control stream has these bytes. Also returns the number of requests that it gets.
fn start(site: &Site, control: Vec<u8>, answer: Answer) -> (SocketAddr, Arc<AtomicUsize>) {
    let own = CertificateDer::from_pem_file(site.dir().join("localhost.crt")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(site.dir().join("localhost.key")).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        TlsConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let made = builder.expect("TLS 1.3").with_no_client_auth().with_single_cert(vec![own], key);
    let mut tls = made.expect("a configuration");
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket.set_nonblocking(true).expect("flags");
    let addr = socket.local_addr().expect("an address");
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = requests.clone();
    std::thread::spawn(move || serve(socket, Arc::new(tls), &control, &answer, &counter));
    (addr, requests)
}

fn serve(socket: UdpSocket, tls: Arc<TlsConfig>, control: &[u8], answer: &Answer, requests: &AtomicUsize) {
    let settings = Settings {
        streams: 30,
        stream_window: 65536,
        send_window: 1 << 20,
        max_send_window: 1 << 20,
        idle: Duration::from_secs(20),
        ids: 2,
        retry: false,
        connections: 100,
        congestion: Congestion::Cubic,
        key: HostKey::new(b"a secret"),
    };
    let place = Place { process: 0, thread: 0, endpoint: 0 };
    let mask = Arc::new(Mask::new(&[7; 16]).expect("a mask"));
    let endpoint = Endpoint::new(Arc::new(socket.into()), false, settings, place, mask).expect("an endpoint");
    let chooser: Rc<dyn Choose> = Rc::new(Chooser(tls));
    let mut batch = Batch::new();
    let mut blocked = Vec::new();
    let end = Instant::now() + DEADLINE;
    while Instant::now() < end {
        let now = Instant::now();
        let count = endpoint.receive(&mut batch).unwrap_or(0);
        endpoint.handle(&batch, 0..count, now, &chooser, &Everyone);
        endpoint.expire(now);
        while let Some(link) = endpoint.take_ready() {
            loop {
                let event = link.quic().poll();
                match event {
                    None => break,
                    Some(Event::Connected) => {
                        endpoint.established(&link);
                        let mut streams = link.streams();
                        let id = streams.open(Dir::Uni).expect("a stream");
                        let _ = streams.write_slice(id, &[&[0], control].concat());
                    }
                    Some(Event::Stream(StreamEvent::Opened { dir: Dir::Bi })) => {
                        while let Some(id) = { link.streams().accept(Dir::Bi) } {
                            requests.fetch_add(1, Ordering::SeqCst);
                            react(&mut link.streams(), id, answer);
                        }
                        if let Answer::Blocked(..) = answer {
                            blocked.push(link.clone());
                        }
                    }
                    Some(Event::Stream(
                        StreamEvent::Opened { dir: Dir::Uni } | StreamEvent::Readable { .. },
                    )) => {
                        if let Answer::Blocked(_, late) = answer {
                            listen(&mut link.streams(), late);
                        }
                    }
                    Some(_) => {}
                }
            }
            endpoint.mark_sending(&link);
        }
        if let Answer::Blocked(_, late) = answer
            && late.may_insert.load(Ordering::SeqCst)
        {
            for link in blocked.drain(..) {
                let mut streams = link.streams();
                let id = streams.open(Dir::Uni).expect("a stream");
                let _ = streams.write_slice(id, INSERTION);
                drop(streams);
                endpoint.mark_sending(&link);
            }
        }
        endpoint.flush(now, |_| {});
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn react(streams: &mut Streams, id: StreamId, answer: &Answer) {
    match answer {
        Answer::Whole(bytes) | Answer::Blocked(bytes, _) => {
            let _ = streams.write_slice(id, bytes);
            let _ = streams.finish(id);
        }
        Answer::Part(bytes) => {
            let _ = streams.write_slice(id, bytes);
        }
        Answer::Reset(code) => {
            let _ = streams.reset(id, (*code).into());
        }
    }
}

/// Reads the unidirectional streams of the client.
fn listen(streams: &mut Streams, late: &Late) {
    let mut told = late.told.lock().expect("lock");
    while let Some(id) = streams.accept(Dir::Uni) {
        told.insert(id.0, Vec::new());
    }
    for (id, bytes) in told.iter_mut() {
        while let Ok(Some(chunk)) = streams.read(StreamId(*id), usize::MAX) {
            bytes.extend_from_slice(&chunk.bytes);
        }
    }
}

fn front(back: SocketAddr) -> Server {
    front_with(back, "proxy_read_timeout 500ms;")
}

fn front_with(back: SocketAddr, lines: &str) -> Server {
    Server::start_on(Site::new(
        conf(&format!(
            "server {{ listen 127.0.0.1:%PORT0%; location = /here {{ return 200 here; }} location / {{ proxy_http_version 3;\n\
             proxy_http3_fallback off; {lines} proxy_pass https://{back}; }} }}"
        ))
        .replace("ssl_certificate localhost.crt; ssl_certificate_key localhost.key;", ""),
    ))
}

#[test]
fn forbidden_frames_of_upstreams_are_refused() {
    let keys = site("server { listen 127.0.0.1:%PORT0%; }");
    let settings = |pairs: &[(u64, u64)]| {
        let mut out = Vec::new();
        push_settings(&mut out, pairs);
        out
    };
    let mut goaway = Vec::new();
    push_goaway(&mut goaway, 0);
    let ok = settings(&[]);
    let good = Answer::Whole(
        [head(&[(":status", "200"), ("content-length", "2")]), frame(kind::DATA, b"ok")].concat(),
    );
    // A control stream that ends the connection, and an answer on a stream. 9: any number of requests.
    let control = |bytes: Vec<u8>, text| (bytes, Answer::Part(Vec::new()), "502", text, 9);
    let whole = |bytes: Vec<u8>, text| (ok.clone(), Answer::Whole(bytes), "502", text, 1);
    let fields = |more: (&'static str, &str), text| whole(head(&[(":status", "200"), more]), text);
    let cases = [
        (ok.clone(), good.clone(), "200", "", 1),
        control(ok.repeat(2), "sent SETTINGS frame twice (H3_FRAME_UNEXPECTED)"),
        control(goaway.clone(), "began the control stream without SETTINGS (H3_MISSING_SETTINGS)"),
        control(settings(&[(2, 1)]), "sent invalid SETTINGS frame (H3_SETTINGS_ERROR)"),
        whole(frame(kind::DATA, b"a"), "sent DATA or HEADERS frame out of order (H3_FRAME_UNEXPECTED)"),
        whole(frame(kind::SETTINGS, b""), "(H3_FRAME_UNEXPECTED)"),
        whole(frame(kind::HEADERS, &[0xff]), "sent invalid field section (QPACK_DECOMPRESSION_FAILED)"),
        whole(head(&[("a", "b")]), "sent invalid header without \":status\""),
        fields(("connection", "close"), "sent invalid connection-specific header"),
        fields(("a", &"x".repeat(9000)), "sent too big header"),
        whole(head(&[(":status", "101")]), "switched protocols over HTTP/3"),
        whole(Vec::new(), "closed stream without a response"),
        whole(vec![1, 20, 0], "ended a stream within a frame (H3_FRAME_ERROR)"),
        whole(head(&[(":status", "103")]).repeat(200), "sent too many interim responses"),
        (ok.clone(), Answer::Reset(0x102), "502", "reset the request (H3_INTERNAL_ERROR)", 1),
        // Sent again by itself, as the server has not looked at it.
        (ok.clone(), Answer::Reset(0x10b), "502", "reset the request (H3_REQUEST_REJECTED)", 3),
    ];
    for (control, answer, status, text, requests) in cases {
        let (back, counter) = start(&keys, control, answer);
        let front = front(back);
        let told = front.get("/");
        assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{text}: {told} {}", front.error_log());
        front.wait_for_log(text, 1);
        let counted = counter.load(Ordering::SeqCst);
        assert!(counted == requests || requests == 9, "{text}: {counted} {}", front.error_log());
        assert!(front.get("/here").ends_with("here"));
    }
}

/// A thread waits for the rest of a frame; it does not look for it all the time.
#[test]
fn the_begin_of_a_frame_stops_nobody() {
    let keys = site("server { listen 127.0.0.1:%PORT0%; }");
    let mut ok = Vec::new();
    push_settings(&mut ok, &[]);
    for begin in [vec![1], vec![1, 20, 0, 0], [head(&[(":status", "200")]), vec![0]].concat()] {
        let (back, counter) = start(&keys, ok.clone(), Answer::Part(begin.clone()));
        let front = front(back);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| front.get("/"));
            wait_until("the request", || counter.load(Ordering::SeqCst) == 1);
            let begun = Instant::now();
            for _ in 0..20 {
                assert!(front.get("/here").ends_with("here"), "{begin:?}");
            }
            assert!(begun.elapsed() < Duration::from_secs(5), "{begin:?}");
            let _ = waits.join().expect("an end");
        });
        front.wait_for_log("upstream timed out (110: Connection timed out)", 1);
    }
}

fn settings() -> Vec<u8> {
    let mut out = Vec::new();
    push_settings(&mut out, &[]);
    out
}

/// Answers whose head or trailers need an insertion that comes later.
fn late_answers() -> [Vec<u8>; 2] {
    let head_only = [LATE, &[STATUS, INSERTED]].concat();
    let trailers = [LATE, &[INSERTED]].concat();
    [
        [frame(kind::HEADERS, &head_only), frame(kind::DATA, b"ok")].concat(),
        [head(&[(":status", "200")]), frame(kind::DATA, b"ok"), frame(kind::HEADERS, &trailers)].concat(),
    ]
}

/// A section waits for the insertions that it refers to (RFC 9204, section 2.1.2), and nothing else does.
#[test]
fn sections_wait_for_insertions() {
    let keys = site("server { listen 127.0.0.1:%PORT0%; }");
    for (at, answer) in late_answers().into_iter().enumerate() {
        let late = Arc::new(Late::default());
        let (back, counter) = start(&keys, settings(), Answer::Blocked(answer, late.clone()));
        let front = front_with(back, "proxy_read_timeout 20s; proxy_pass_trailers on;");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| front.get("/"));
            wait_until("the request", || counter.load(Ordering::SeqCst) == 1);
            assert!(front.get("/here").ends_with("here"));
            assert!(!waits.is_finished());
            late.may_insert.store(true, Ordering::SeqCst);
            let told = waits.join().expect("an answer");
            assert!(told.starts_with("HTTP/1.1 200 ") && told.contains("ok"), "{at}: {told}");
            assert!(at == 1 || told.contains("\r\nx-late: y\r\n"), "{told}");
        });
        // Section Acknowledgment of stream 0 (section 4.4.1).
        late.wait_for_feedback(0x80);
    }
}

/// A section whose insertions do not come ends with the time-out, and the upstream's encoder learns that the section was not decoded (RFC 9204, section 4.4.2).
#[test]
fn sections_do_not_wait_for_ever() {
    let keys = site("server { listen 127.0.0.1:%PORT0%; }");
    let [head, _] = late_answers();
    let late = Arc::new(Late::default());
    let (back, _) = start(&keys, settings(), Answer::Blocked(head, late.clone()));
    let front = front(back);
    let told = front.get("/");
    assert!(told.starts_with("HTTP/1.1 504 "), "{told}");
    front.wait_for_log("upstream timed out (110: Connection timed out)", 1);
    late.wait_for_feedback(0x40);
}

/// No more streams may wait than we allow (RFC 9204, section 2.1.2).
#[test]
fn too_many_sections_that_wait_end_the_connection() {
    let keys = site("server { listen 127.0.0.1:%PORT0%; }");
    let [head, _] = late_answers();
    let (back, _) = start(&keys, settings(), Answer::Blocked(head, Arc::default()));
    let front = front_with(back, "proxy_read_timeout 20s;");
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..17).map(|_| scope.spawn(|| front.get("/"))).collect();
        for waits in all {
            let told = waits.join().expect("an answer");
            assert!(told.starts_with("HTTP/1.1 502 "), "{told}");
        }
    });
    front.wait_for_log("blocked too many streams (QPACK_DECOMPRESSION_FAILED)", 1);
}
