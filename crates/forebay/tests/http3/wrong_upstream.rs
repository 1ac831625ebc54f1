//! Upstreams that break the rules of HTTP/3: each request fails with an answer and a line in the log, and nothing else does.

use super::{conf, site};
use crate::harness::{Server, Site};
use forebay_http::h3::encode;
use forebay_http::h3::frame::{Header, kind, push_goaway, push_settings};
use forebay_net::quic::{
    Arrival, Choose, Congestion, Dir, Endpoint, Event, HostKey, Mask, Owner, Place, Received, Settings,
    StreamEvent, StreamId, TlsConfig, VarInt,
};
use forebay_net::tls::hello::Hello;
use forebay_sys::datagrams::Batch;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Behaviour of an upstream after it has received a request.
#[derive(Clone)]
enum Answer {
    /// It sends these bytes and ends the stream.
    Whole(Vec<u8>),
    /// It sends these bytes and no more.
    Part(Vec<u8>),
    Reset(u32),
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
        streams: 10,
        stream_window: 65536,
        send_window: 1 << 20,
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
    let end = Instant::now() + crate::harness::DEADLINE;
    while Instant::now() < end {
        let now = Instant::now();
        let _ = endpoint.receive(&mut batch, now, &chooser, &Everyone);
        endpoint.expire(now);
        while let Some(link) = endpoint.take_ready() {
            loop {
                let event = link.quinn().poll();
                match event {
                    None => break,
                    Some(Event::Connected) => {
                        endpoint.established(&link);
                        let mut quinn = link.quinn();
                        let id = quinn.streams().open(Dir::Uni).expect("a stream");
                        let _ = quinn.send_stream(id).write(&[&[0], control].concat());
                    }
                    Some(Event::Stream(StreamEvent::Opened { dir: Dir::Bi })) => {
                        while let Some(id) = { link.quinn().streams().accept(Dir::Bi) } {
                            requests.fetch_add(1, Ordering::SeqCst);
                            react(&mut link.quinn(), id, answer);
                        }
                    }
                    Some(_) => {}
                }
            }
            endpoint.mark_sending(&link);
        }
        endpoint.flush(now, |_| {});
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn react(quinn: &mut forebay_net::quic::Connection, id: StreamId, answer: &Answer) {
    let mut stream = quinn.send_stream(id);
    match answer {
        Answer::Whole(bytes) => {
            let _ = stream.write(bytes);
            let _ = stream.finish();
        }
        Answer::Part(bytes) => {
            let _ = stream.write(bytes);
        }
        Answer::Reset(code) => {
            let _ = stream.reset(VarInt::from_u32(*code));
        }
    }
}

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Header { kind, len: payload.len() as u64 }.push(&mut out);
    [&out, payload].concat()
}

fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut section = Vec::new();
    encode::prefix(&mut section);
    fields.iter().for_each(|(name, value)| encode::field(&mut section, name.as_bytes(), value.as_bytes()));
    frame(kind::HEADERS, &section)
}

fn front(back: SocketAddr) -> Server {
    Server::start_on(Site::new(
        &conf(&format!(
            "server {{ listen 127.0.0.1:%PORT0%; location = /here {{ return 200 here; }} location / {{ proxy_http_version 3;\n\
             proxy_http3_fallback off; proxy_read_timeout 500ms; proxy_pass https://{back}; }} }}"
        ))
        .replace("ssl_certificate localhost.crt; ssl_certificate_key localhost.key;", ""),
    ))
}

#[test]
fn what_upstreams_must_not_send() {
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
    let whole = |bytes: Vec<u8>| Answer::Whole(bytes);
    let cases = [
        (ok.clone(), good.clone(), "200", "", 1),
        (
            [ok.clone(), ok.clone()].concat(),
            Answer::Part(Vec::new()),
            "502",
            "sent SETTINGS frame twice (H3_FRAME_UNEXPECTED)",
            9,
        ),
        (
            goaway.clone(),
            Answer::Part(Vec::new()),
            "502",
            "began the control stream without SETTINGS (H3_MISSING_SETTINGS)",
            9,
        ),
        (
            settings(&[(2, 1)]),
            Answer::Part(Vec::new()),
            "502",
            "sent invalid SETTINGS frame (H3_SETTINGS_ERROR)",
            9,
        ),
        (
            ok.clone(),
            whole(frame(kind::DATA, b"a")),
            "502",
            "sent DATA or HEADERS frame out of order (H3_FRAME_UNEXPECTED)",
            1,
        ),
        (ok.clone(), whole(frame(kind::SETTINGS, b"")), "502", "(H3_FRAME_UNEXPECTED)", 1),
        (
            ok.clone(),
            whole(frame(kind::HEADERS, &[0xff])),
            "502",
            "sent invalid field section (QPACK_DECOMPRESSION_FAILED)",
            1,
        ),
        (ok.clone(), whole(head(&[("a", "b")])), "502", "sent invalid header without \":status\"", 1),
        (
            ok.clone(),
            whole(head(&[(":status", "200"), ("connection", "close")])),
            "502",
            "sent invalid connection-specific header",
            1,
        ),
        (
            ok.clone(),
            whole(head(&[(":status", "200"), ("a", &"x".repeat(9000))])),
            "502",
            "sent too big header",
            1,
        ),
        (ok.clone(), whole(head(&[(":status", "101")])), "502", "switched protocols over HTTP/3", 1),
        (ok.clone(), whole(Vec::new()), "502", "closed stream without a response", 1),
        (ok.clone(), whole(vec![1, 20, 0]), "502", "ended a stream within a frame (H3_FRAME_ERROR)", 1),
        (
            ok.clone(),
            whole(head(&[(":status", "103")]).repeat(200)),
            "502",
            "sent too many interim responses",
            1,
        ),
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
            crate::harness::wait_for("the request", || (counter.load(Ordering::SeqCst) == 1).then_some(()));
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
