//! Memory that a burst of connections takes comes back once they are gone.

use forebay_testkit::{DEADLINE, Origin, Server, Talk, memory, wait_until};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Connections of a kind that are open together.
const MANY: usize = 200;

/// Time within which memory comes back: two looks of the threads, ten seconds apart, and a slow machine.
const BACK: Duration = Duration::from_secs(40);

/// Part of the memory before that may stay, percent.
const LEFT: u64 = 20;

/// Kinds of clients: name, number of the listener, and the bytes that each client sends before it waits.
const KINDS: [(&str, usize, &str); 6] = [
    ("event streams", 0, "GET /events HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("unanswered requests", 0, "GET /unanswered HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("answers that nobody reads", 0, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("compressed answers", 0, "GET /gzip HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n"),
    ("sent slowly", 0, "POST /unbuffered HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n123"),
    ("relayed", 1, "GET /events HTTP/1.1\r\nHost: a\r\n\r\n"),
];

fn conf(upstream: SocketAddr, silent: SocketAddr) -> String {
    format!(
        "worker_processes 2; error_log logs/error.log; pid logs/nginx.pid; events {{ worker_connections 4096; }}\n\
         http {{ access_log off; gzip_types *; client_body_temp_path %DIR%/body; proxy_temp_path %DIR%/temp;\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{upstream}; }}\n\
           location /gzip {{ gzip on; proxy_pass http://{upstream}; }}\n\
           location /unbuffered {{ proxy_request_buffering off; proxy_pass http://{silent}; }} }} }}\n\
         stream {{ server {{ listen 127.0.0.1:%PORT1%; proxy_pass {upstream}; }} }}"
    )
}

/// Starts an upstream that answers and keeps the connection, and counts requests.
fn upstream(asked_for: Arc<AtomicUsize>) -> SocketAddr {
    Origin::start(move |asked| {
        asked_for.fetch_add(1, SeqCst);
        let begun =
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Accel-Buffering: no\r\n\r\ndata: 1\n\n";
        match asked.target() {
            "/large" => asked.answer("200 OK", "", "x".repeat(1 << 20)),
            "/gzip" => {
                asked.answer("200 OK", "Content-Type: text/plain\r\n", "0123456789abcdef\n".repeat(4 << 10))
            }
            "/unanswered" => true,
            _ => asked.write(begun),
        }
    })
    .addr
}

/// Starts an upstream that accepts connections and neither reads nor answers, and counts them.
fn silent(accepted: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for connection in listener.incoming() {
            open.push(connection.expect("accepted"));
            accepted.fetch_add(1, SeqCst);
        }
    });
    addr
}

/// Opens connections, and waits until an upstream knows all of them, and the clients of answers have the first byte.
fn burst(
    server: &Server,
    (kind, listener, bytes): (&str, usize, &str),
    count: usize,
    asked: &AtomicUsize,
) -> Vec<TcpStream> {
    let before = asked.load(SeqCst);
    let mut clients: Vec<TcpStream> = Vec::with_capacity(count);
    for _ in 0..count {
        let mut client = TcpStream::connect_timeout(&server.addr(listener), DEADLINE).expect("connect");
        client.send(bytes);
        clients.push(client);
    }
    wait_until(kind, || asked.load(SeqCst) - before >= count);
    if !["sent slowly", "unanswered requests"].contains(&kind) {
        for client in &mut clients {
            client.set_read_timeout(Some(DEADLINE)).expect("timeout");
            assert_eq!(client.read(&mut [0]).expect(kind), 1);
        }
    }
    clients
}

#[test]
fn memory_of_a_burst_comes_back() {
    let asked = Arc::new(AtomicUsize::new(0));
    let server = Server::start(conf(upstream(asked.clone()), silent(asked.clone())));
    let worker = server.worker();
    // Everything has been used once, by both threads.
    for kind in KINDS {
        drop(burst(&server, kind, 8, &asked));
    }
    let before = memory(worker);
    let mut most = 0;
    for kind in KINDS {
        let clients = burst(&server, kind, MANY, &asked);
        most = most.max(memory(worker));
        drop(clients);
    }
    assert!(most > before + before / 2, "{before} KiB, {most} during the burst");
    let end = Instant::now() + BACK;
    let mut left = memory(worker);
    while left > before + before * LEFT / 100 {
        assert!(Instant::now() < end, "{before} KiB, {most} during the burst, and {left} a while after it");
        std::thread::sleep(Duration::from_millis(100));
        left = memory(worker);
    }
}
