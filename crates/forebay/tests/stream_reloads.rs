//! Reloads and upgrades of the program under load: no session of the stream block, no tunnel and no upgraded connection notices.

use crate::stream_udp::{conf, port};
use forebay_testkit::{
    DEADLINE, Echo, Server, Signal, Talk, accept, alive, connect, echo, kill, memory, receive, wait_for,
    wait_until,
};
use std::io::Read;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Clients over UDP that keep their sockets.
const UDP_CLIENTS: usize = 4;

/// Returns a configuration whose first port answers with a number. The next ones: TCP, UDP, UDP with one answer for each datagram,
/// an upgrade, a tunnel. Threads keep little free memory at hand (they may have up to 17 MB each): growth is then a leak.
fn numbered(n: usize, tcp: SocketAddr, udp: SocketAddr, upgrade: SocketAddr) -> String {
    format!(
        "worker_processes 2; error_log logs/error.log notice; pid logs/nginx.pid; events {{ worker_connections 500; }}\n\
         env GLIBC_TUNABLES=glibc.malloc.tcache_count=7;\n\
         stream {{ server {{ listen 127.0.0.1:%PORT0%; return {n}; }}\n\
           upstream tcp {{ zone tcp 64k; server {tcp}; }}\n\
           server {{ listen 127.0.0.1:%PORT1%; proxy_pass tcp; }}\n\
           server {{ listen 127.0.0.1:%PORT2% udp; proxy_pass {udp}; }}\n\
           server {{ listen 127.0.0.1:%PORT3% udp; proxy_pass {udp}; proxy_responses 1; }} }}\n\
         http {{ access_log off; server {{ listen 127.0.0.1:%PORT4%; location / {{ proxy_pass http://{upgrade};\n\
             proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }} }}\n\
           server {{ listen 127.0.0.1:%PORT5%; tunnel_pass; }} }}\n"
    )
}

/// Starts a server of HTTP that switches to a protocol which echoes.
fn upgrading() -> SocketAddr {
    accept(move |stream, _| {
        head(&stream);
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        (&stream).send(answer);
        let _ = std::io::copy(&mut &stream, &mut &stream);
    })
}

/// Reads a head of HTTP.
fn head(mut stream: &TcpStream) -> String {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        text.push(byte[0]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Opens a connection by a request of HTTP.
fn open(addr: SocketAddr, request: &str, status: &str) -> TcpStream {
    let mut stream = connect(addr);
    stream.send(request);
    let answer = head(&stream);
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    stream
}

/// Load that goes on until it is ended, and what it has done.
#[derive(Default)]
struct Load {
    ends: AtomicBool,
    exchanges: AtomicUsize,
}

impl Load {
    /// Repeats a step, with its number, until the load is ended.
    fn repeat(&self, mut step: impl FnMut(usize)) {
        for n in 0.. {
            if self.ends.load(SeqCst) {
                return;
            }
            step(n);
            self.exchanges.fetch_add(1, SeqCst);
            // The reloads need some of the CPUs, too.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Echoes messages over a connection.
    fn talk(&self, mut stream: TcpStream) {
        self.repeat(|n| {
            let text = n.to_string();
            assert_eq!(stream.echo(text.as_bytes()), text.as_bytes());
        });
    }

    /// Echoes blocks that pass inside the kernel.
    fn bulk(&self, mut stream: TcpStream) {
        self.repeat(|n| {
            let block: Vec<u8> = (0..60_000).map(|i| ((i + n) % 251) as u8).collect();
            assert!(stream.echo(&block) == block, "block {n}");
        });
    }

    /// Exchanges datagrams over one socket, which the server has to see as one port.
    fn datagrams(&self, to: SocketAddr) {
        let socket = forebay_testkit::udp(to);
        let first = port(&socket);
        self.repeat(|n| {
            socket.send(n.to_string().as_bytes()).expect("sent");
            assert_eq!(receive(&socket), Some(format!("{first} {n}")));
        });
    }
}

/// Ends the load when it is dropped, also after a panic: otherwise its threads would keep the test from failing.
struct Ending<'a>(&'a Load);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.ends.store(true, SeqCst);
    }
}

fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count()
}

#[test]
fn a_hundred_reloads_under_load() {
    let ((tcp, _), udp, upgrade) = (echo(), Echo::start(), upgrading());
    let text = |n: usize| numbered(n, tcp, udp.addr, upgrade);
    let server = Server::start(text(0));
    let worker = server.worker();
    // Enough connections for both threads, so that both have opened what they need.
    (0..20).for_each(|_| assert_eq!(server.connect().rest(), "0"));
    let before = descriptors(worker);
    let load = Load::default();
    let reload = |n: usize| {
        server.reload_with(text(n));
        wait_until("the new configuration", || server.connect().rest() == n.to_string());
        assert_eq!(server.workers(server.pid()), [worker], "reload {n}: the same worker process");
    };
    std::thread::scope(|scope| {
        let _ending = Ending(&load);
        let (addr, load) = (|n: usize| server.addr(n), &load);
        let kept = [
            connect(addr(1)),
            open(addr(4), "GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "101"),
            open(addr(5), &format!("CONNECT {tcp} HTTP/1.1\r\nHost: x\r\n\r\n"), "200"),
        ];
        for stream in kept {
            scope.spawn(move || load.talk(stream));
        }
        scope.spawn(move || load.bulk(connect(addr(1))));
        scope.spawn(move || load.repeat(|_| assert_eq!(connect(addr(1)).echo(b"short"), b"short")));
        for _ in 0..UDP_CLIENTS {
            scope.spawn(move || load.datagrams(addr(2)));
        }
        scope.spawn(move || load.repeat(|_| assert_ne!(port(&forebay_testkit::udp(addr(3))), 0)));
        (1..=50).for_each(reload);
        let half = memory(worker);
        (51..=100).for_each(reload);
        let most = half + half / 10;
        wait_until("as much memory as after fifty reloads", || memory(worker) <= most);
    });
    assert!(load.exchanges.load(SeqCst) > 1000, "{:?}", load.exchanges);
    // A pipe for each thread that has spliced, that of the thread that builds configurations, and the log of the first configuration,
    // which the sessions over UDP still have.
    let most = before + UDP_CLIENTS + 2 * 2 + 2 + 1;
    wait_until("the descriptors", || descriptors(worker) <= most);
    for text in ["[warn]", "[error]", "[crit]", "[alert]", "[emerg]"] {
        assert!(!server.error_log().contains(text), "{}", server.error_log());
    }
}

/// The old process keeps its pairs to their end and passes late answers on; the new one takes what is new.
#[test]
fn an_upgrade_of_the_program_with_sessions_open() {
    let (backend, _) = echo();
    let late = UdpSocket::bind("127.0.0.1:0").expect("bind");
    late.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let to_late = late.local_addr().expect("bound");
    let server = Server::start_daemon(conf(
        "worker_processes 1; events {}",
        &format!(
            "server {{ listen 127.0.0.1:%PORT1%; proxy_pass {backend}; }}\n\
             server {{ listen 127.0.0.1:%PORT2% udp; proxy_pass {to_late}; proxy_responses 1; }}"
        ),
    ));
    let old = server.pid();
    let mut pair = connect(server.addr(1));
    assert_eq!(pair.echo(b"before"), b"before");
    let waiting = forebay_testkit::udp(server.addr(2));
    waiting.send(b"x").expect("sent");
    let mut buf = [0; 10];
    let (_, first) = late.recv_from(&mut buf).expect("the datagram");
    let new = server.successor(old);
    let worker = wait_for("its worker", || server.workers(new).first().copied());
    assert_eq!(server.connect().rest(), "ready");
    assert_eq!(pair.echo(b"both"), b"both");
    kill(old, Signal::SIGQUIT);
    server.wait_for_log("gracefully shutting down", 1);
    assert_eq!(pair.echo(b"after"), b"after");
    // Only the new process receives: the client has a new session there, with another port.
    let deadline = Instant::now() + DEADLINE;
    let second = loop {
        waiting.send(b"y").expect("sent");
        let (_, from) = late.recv_from(&mut buf).expect("the datagram");
        if from != first {
            break from;
        }
        assert!(Instant::now() < deadline, "the old process still receives");
    };
    // Answers come over both.
    late.send_to(b"new", second).expect("sent");
    assert_eq!(receive(&waiting).as_deref(), Some("new"));
    late.send_to(b"late", first).expect("sent");
    assert_eq!(receive(&waiting).as_deref(), Some("late"));
    assert!(alive(old), "the pair is still open");
    drop(pair);
    wait_until("the end of the old process", || !alive(old));
    assert_eq!(connect(server.addr(1)).echo(b"new"), b"new");
    assert_eq!(server.workers(new), [worker]);
}
