//! Memory that requests take while they wait, and that answers leave behind. Limits are for the allocator that the program has by default.

use forebay_bench::load::{Load, Order, Protocol, Stop, Wanted};
use forebay_bench::tls::{self, Trust};
use forebay_bench::{run, url::Url};
use forebay_testkit::{
    DEADLINE, Origin, P256, Server, Site, Talk, connect_with_small_buffer, memory, wait_until,
};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Answers of each kind. A build without optimisation takes a minute for ten thousand: `FOREBAY_TEST_ANSWERS=10000` asks for them.
fn answers() -> u64 {
    std::env::var("FOREBAY_TEST_ANSWERS").ok().and_then(|n| n.parse().ok()).unwrap_or(600)
}

/// Content of streamed answers, bytes: more than encoders take in one call.
const CONTENT: usize = 100 * 1024;

/// Kinds of answers: name, path, whether over TLS, and codings that the client accepts.
const KINDS: [(&str, &str, bool, &str); 7] = [
    ("plain", "/plain", false, ""),
    ("gzip", "/gzip", false, "gzip"),
    ("brotli", "/brotli", false, "br"),
    ("zstd", "/zstd", false, "zstd"),
    ("TLS", "/plain", true, ""),
    ("cached", "/cached", false, ""),
    ("sliced", "/sliced", false, ""),
];

/// Memory that answers may leave, KiB: pages that the allocator has not given back yet. An encoder that leaked would take this much for
/// every ten answers.
const LEFT: u64 = 4096;

fn conf(upstream: SocketAddr) -> String {
    let pass = format!("proxy_pass http://{upstream}");
    format!(
        "worker_processes 1; error_log logs/error.log; pid logs/nginx.pid; events {{ worker_connections 4096; }}\n\
         http {{ access_log off; client_body_temp_path %DIR%/body; proxy_temp_path %DIR%/temp; keepalive_requests 1000000;\n\
         proxy_cache_path %DIR%/cache keys_zone=c:1m max_size=100m;\n\
         ssl_certificate own.crt; ssl_certificate_key own.key;\n\
         server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% ssl;\n\
         listen 127.0.0.1:%PORT2% sndbuf=32k; location / {{ {pass}; }}\n\
           location /gzip {{ gzip on; gzip_types *; {pass}; }}\n\
           location /brotli {{ brotli on; brotli_types *; brotli_comp_level 1; {pass}; }}\n\
           location /zstd {{ zstd on; zstd_types *; {pass}; }}\n\
           location /cached {{ proxy_cache c; proxy_cache_valid 1h; {pass}/plain; }}\n\
           location /sliced {{ slice 16k; proxy_set_header Range $slice_range; proxy_cache c; proxy_cache_valid 206 1h;\n\
             proxy_cache_key $uri$slice_range; {pass}/ranges; }} }} }}"
    )
}

/// Starts an upstream for everything here. It counts requests that it leaves open, and long answers that it has sent.
fn upstream(open: Arc<AtomicUsize>) -> SocketAddr {
    let content: String = (0..CONTENT).map(|n| char::from(b'a' + (n * n / 7 % 26) as u8)).collect();
    Origin::start(move |asked| {
        match asked.target() {
            "/unanswered" => drop(open.fetch_add(1, SeqCst)),
            "/events" => {
                open.fetch_add(1, SeqCst);
                let head =
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Accel-Buffering: no\r\n\r\n";
                asked.write(format!("{head}data: 1\n\n"));
            }
            "/long" => {
                asked.answer("200 OK", "", "0123456789abcdef".repeat(LONG / 16));
                open.fetch_add(1, SeqCst);
            }
            "/ranges" => {
                let range = asked.field("Range").trim_start_matches("bytes=").to_owned();
                let (from, to) = range.split_once('-').expect("a range");
                let from: usize = from.parse().expect("a number");
                let to = to.parse().map_or(CONTENT, |to: usize| (to + 1).min(CONTENT));
                let fields = format!("ETag: \"1\"\r\nContent-Range: bytes {from}-{}/{CONTENT}\r\n", to - 1);
                asked.answer("206 Partial Content", &fields, &content[from..to]);
            }
            _ => {
                // The length is unknown at first, and the end is that of the connection.
                asked.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nETag: \"1\"\r\n\r\n");
                asked.write(&content);
                return false;
            }
        }
        true
    })
    .addr
}

/// Has eight clients get answers of a kind.
fn get(server: &Server, (name, path, encrypted, codings): (&str, &str, bool, &str), count: u64) {
    let (scheme, addr) = if encrypted { ("https", server.addr(1)) } else { ("http", server.addr(0)) };
    let url = Url::parse(&format!("{scheme}://{addr}{path}")).expect("URL");
    let fields = vec![("Accept-Encoding".to_owned(), codings.to_owned())];
    let wanted = Wanted { fields, ..Wanted::get(url) };
    let mut load = Load::new(&[wanted], Protocol::Http1, Order::Listed, 1).expect("load");
    load.connections = 8;
    load.stop = Stop::Count(count, Some(Duration::from_secs(600)));
    load.tls = encrypted.then(|| tls::config(&Trust::Anyone, Protocol::Http1).expect("TLS"));
    let record = run::run(&load, None, |_| true).expect("runs").outcome.record;
    assert_eq!((record.ok, record.errors()), (count, 0), "{name}");
}

fn start(open: &Arc<AtomicUsize>) -> Server {
    let site = Site::new(conf(upstream(open.clone())));
    site.certificate("own", P256, "a.test", "");
    Server::start_on(site)
}

#[test]
fn streamed_answers_leave_memory_where_it_was() {
    let server = start(&Arc::default());
    let worker = server.worker();
    for kind in KINDS {
        get(&server, kind, 40);
    }
    let before = memory(worker);
    for kind in KINDS {
        get(&server, kind, answers());
        // Connections to the upstream may still be closing, and the allocator gives pages back a moment after they are free.
        let after = falls_to(worker, before + LEFT, Duration::from_secs(10));
        assert!(after <= before + LEFT, "{}: {before} KiB, and {after} after {} answers", kind.0, answers());
    }
}

/// Clients that wait together.
const WAITING: usize = 400;

/// Opens connections, and waits until the upstream has all requests, and memory that is given back in a wait is free.
fn wait_together(server: &Server, path: &str, open: &AtomicUsize) -> Vec<TcpStream> {
    let before = open.load(SeqCst);
    let mut clients = Vec::with_capacity(WAITING);
    for _ in 0..WAITING {
        let mut client = TcpStream::connect_timeout(&server.addr(0), DEADLINE).expect("connect");
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        clients.push(client);
    }
    wait_until(path, || open.load(SeqCst) - before >= WAITING);
    if path == "/events" {
        for client in &mut clients {
            client.set_read_timeout(Some(DEADLINE)).expect("timeout");
            assert_eq!(client.read(&mut [0]).expect(path), 1);
        }
    }
    clients
}

/// Waits until the memory of a process is at most `most`, KiB, and returns what it is then.
fn falls_to(worker: i32, most: u64, within: Duration) -> u64 {
    let end = Instant::now() + within;
    loop {
        let now = memory(worker);
        if now <= most || Instant::now() > end {
            return now;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_request_that_waits_takes_little() {
    let open = Arc::new(AtomicUsize::new(0));
    let server = start(&open);
    let worker = server.worker();
    drop(wait_together(&server, "/events", &open));
    // nginx takes 9,956 and 18,180 bytes. Tables that have doubled, and pages that are not full, are in the limits, too.
    for (path, most) in [("/unanswered", 7_600), ("/events", 9_200)] {
        let idle = falls_to(worker, 0, Duration::from_secs(1));
        for wave in 0..4 {
            let clients = wait_together(&server, path, &open);
            let limit = idle + (WAITING * most / 1024) as u64;
            // Connections of the wave before may still be closing.
            let with = falls_to(worker, limit, Duration::from_secs(5));
            let each = with.saturating_sub(idle) * 1024 / WAITING as u64;
            // What one wave leaves, the next one uses.
            assert!(with <= limit, "{path}: {each} bytes a request in wave {wave}");
            drop(clients);
        }
    }
}

/// Content of an answer to a slow client, bytes: much more than sockets hold.
const LONG: usize = 1 << 20;

/// Clients that take an answer slowly.
const SLOW: usize = 200;

#[test]
fn memory_of_slow_clients_is_back_soon() {
    let sent = Arc::new(AtomicUsize::new(0));
    let server = start(&sent);
    let worker = server.worker();
    // What the first answers need stays.
    for _ in 0..4 {
        let mut first = TcpStream::connect_timeout(&server.addr(2), DEADLINE).expect("connect");
        first.send(b"GET /long HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        first.read_to_end(&mut Vec::new()).expect("an answer");
    }
    sent.store(0, SeqCst);
    let before = memory(worker);
    let mut clients: Vec<TcpStream> = (0..SLOW).map(|_| connect_with_small_buffer(server.addr(2))).collect();
    for client in &mut clients {
        client.send(b"GET /long HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(client.read(&mut [0]).expect("the head"), 1);
    }
    wait_until("the upstream", || sent.load(SeqCst) == SLOW);
    // A part of each answer: the bytes in between come from files.
    for client in &mut clients {
        client.read_exact(&mut vec![0; LONG / 2]).expect("half");
    }
    for client in &mut clients {
        let rest = client.rest_bytes();
        assert!(rest.ends_with(b"0123456789abcdef"), "{} bytes", rest.len());
        assert!(rest.len() > LONG / 2 - 1, "{} bytes", rest.len());
    }
    // Within two seconds. A busy machine takes more: a thread that gets no time makes no pause.
    let limit = before + LEFT;
    let with = falls_to(worker, limit, Duration::from_secs(8));
    assert!(with <= limit, "{before} KiB, and {with} afterwards");
}

/// Bytes that came while a client took nothing leave once it does, although the upstream is silent then.
#[test]
fn bytes_that_were_read_ahead_do_not_wait_for_the_upstream() {
    const PIECE: usize = 8 * 1024;
    const PIECES: usize = 512;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let upstream = Origin::start(move |asked| {
        asked.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = format!("{PIECE:x}\r\n{}\r\n", "x".repeat(PIECE));
        for _ in 0..PIECES {
            asked.write(&chunk);
            count.fetch_add(1, SeqCst);
            // The server reads each piece by itself.
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    });
    let site = Site::new(conf(upstream.addr));
    site.certificate("own", P256, "a.test", "");
    let server = Server::start_on(site);
    let mut client = connect_with_small_buffer(server.addr(0));
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the pieces", || sent.load(SeqCst) == PIECES);
    client.read_exact(&mut vec![0; PIECE * PIECES]).expect("all that the upstream has sent");
}
