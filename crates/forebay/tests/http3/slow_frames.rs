//! A client whose frames come in parts.

use super::serve;
use forebay_http::h3::client::request_section;
use forebay_http::h3::frame::{Header, kind, push_settings};
use forebay_net::quic::client::{Client, Dialling, Limits};
use forebay_net::quic::{Dir, Event};
use forebay_net::tls::certified::VerifyLater;
use forebay_sys::datagrams::Batch;
use forebay_testkit::{DEADLINE, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Sends bytes on a request stream, and keeps the connection open until it is told to stop. `sent` is set once they have left.
fn send(addr: std::net::SocketAddr, bytes: &[u8], (sent, stop): (&AtomicBool, &AtomicBool)) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(VerifyLater))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let limits = Limits {
        window: 1 << 20,
        connection_window: 1 << 20,
        send_window: None,
        uni_streams: 8,
        idle: None,
        keep_alive: None,
        ids: None,
        tokens: false,
    };
    let client = Client::new(addr).expect("a socket");
    let dialling = Dialling::new(Arc::new(tls), limits);
    let link = client.connect(Instant::now(), &dialling, "localhost", 0).expect("begins");
    let mut batch = Batch::new();
    while !stop.load(Ordering::SeqCst) {
        let now = Instant::now();
        let _ = client.receive(&mut batch, now);
        client.expire(now);
        while client.take_ready().is_some() {
            while let Some(event) = { link.quic().poll() } {
                if !matches!(event, Event::Connected) {
                    continue;
                }
                let mut streams = link.streams();
                let mut control = vec![0];
                push_settings(&mut control, &[]);
                let own = streams.open(Dir::Uni).expect("a stream");
                streams.write_slice(own, &control).expect("sent");
                let request = streams.open(Dir::Bi).expect("a stream");
                streams.write_slice(request, bytes).expect("sent");
                sent.store(true, Ordering::SeqCst);
            }
        }
        client.mark_sending(&link);
        client.flush(now, |_| {});
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A thread that waits for the rest of a frame of content serves others. It once looked for the rest all the time.
#[test]
fn the_begin_of_a_frame_stops_nobody() {
    let server = serve(
        "location /put { client_body_timeout 1s; proxy_pass http://127.0.0.1:1; } location /here { return 200 here; }",
    );
    let mut section = Vec::new();
    request_section(
        b"PUT /put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
        false,
        &mut section,
    );
    let mut bytes = Vec::new();
    Header { kind: kind::HEADERS, len: section.len() as u64 }.push(&mut bytes);
    bytes.extend(section);
    // The type of a DATA frame, without its length.
    bytes.push(0);
    let (sent, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| send(server.addr(0), &bytes, (&sent, &stop)));
        wait_until("the request", || sent.load(Ordering::SeqCst));
        let begun = Instant::now();
        // The log line comes from the thread that waits, which has to see the time.
        server.wait_for_log("client timed out", 1);
        assert!(begun.elapsed() < DEADLINE / 2, "{}", server.error_log());
        stop.store(true, Ordering::SeqCst);
        client.join().expect("an end");
    });
}
