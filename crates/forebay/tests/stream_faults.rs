//! Faults of clients, of servers and of the system: they end the sessions that they concern, and no other.

use crate::stream_udp::{ask, port};
use forebay_testkit::{DEADLINE, Echo, Server, Talk, connect, echo, memory, receive, wait_for, wait_until};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Returns a configuration of one thread. All its sessions count for the limit of the second port, which echoes: there it is
/// [`LIMIT`].
fn conf(main: &str, stream: &str) -> String {
    let (backend, _) = echo();
    format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; {main}\n\
         stream {{ limit_conn_zone $hostname zone=all:1m; limit_conn all 1000;\n\
         server {{ listen 127.0.0.1:%PORT0%; return ready; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass {backend}; limit_conn all {LIMIT}; }}\n{stream} }}\n"
    )
}

const LIMIT: usize = 3;

const EVENTS: &str = "events { worker_connections 200; }";

/// Opens a connection that echoes; `None` if it is closed at once.
fn echoing(addr: SocketAddr) -> Option<TcpStream> {
    let mut stream = connect(addr);
    let passes = stream.write_all(b"x").is_ok() && matches!(stream.read(&mut [0]), Ok(1));
    passes.then_some(stream)
}

/// Waits until no session is open: there is room for as many as the limit says, and not for another.
fn wait_for_the_end_of_all(server: &Server) {
    let open = || echoing(server.addr(1));
    let full = wait_for("the end of all sessions", || (0..LIMIT).map(|_| open()).collect::<Option<Vec<_>>>());
    assert!(open().is_none(), "{} and more", full.len());
}

/// Closes a connection by a reset.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("option");
}

/// Serves each connection in a thread.
fn serve(each: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || each(stream));
        }
    });
    addr
}

/// Number of bytes that a server sends before it resets its connection.
const SOME: usize = 100_000;

/// Resets a connection: at a datum, in the middle of a transfer, or when the client has ended.
fn reset_as_asked(mut stream: TcpStream) {
    let mut byte = [0];
    let asked = stream.read(&mut byte);
    match &byte {
        _ if asked.is_err() => {}
        b"m" => {
            stream.send([b'y'; SOME]);
            stream.read_exact(&mut byte).expect("the client has them");
        }
        b"e" => assert_eq!(stream.read(&mut byte).expect("the end"), 0),
        _ => {}
    }
    reset(stream);
}

#[test]
fn servers_and_clients_that_reset() {
    let (at_once, as_asked) = (serve(reset), serve(reset_as_asked));
    let server = Server::start(conf(
        EVENTS,
        &format!(
            "server {{ listen 127.0.0.1:%PORT2%; proxy_pass {at_once}; }}\n\
             server {{ listen 127.0.0.1:%PORT3%; proxy_pass {as_asked}; proxy_half_close on; }}"
        ),
    ));
    let other = echoing(server.addr(1)).expect("an echo");
    assert_eq!(connect(server.addr(2)).rest(), "");
    for asked in ["d", "m", "e"] {
        let mut stream = connect(server.addr(3));
        stream.send(asked);
        match asked {
            "m" => {
                let mut some = [0; SOME];
                stream.read_exact(&mut some).expect("the bytes before the reset");
                stream.send(b"!");
            }
            "e" => stream.shutdown(Shutdown::Write).expect("shut down"),
            _ => {}
        }
        assert_eq!(stream.rest(), "", "{asked}");
    }
    let text = |side| {
        format!("recv() failed (104: Connection reset by peer) while proxying and reading from {side}")
    };
    server.wait_for_log(text("upstream"), 3);
    // The first one may be noticed before it counts as connected.
    server.wait_for_log("failed (104: Connection reset by peer) while", 4);
    server.wait_for_log("upstream disconnected, bytes from/to client:2/100000", 1);
    reset(other);
    server.wait_for_log(text("client"), 1);
    wait_for_the_end_of_all(&server);
}

#[test]
fn a_client_that_stops_reading() {
    let endless = serve(|mut stream| {
        let block = vec![b'z'; 1 << 20];
        for _ in 0..100 {
            if stream.write_all(&block).is_err() {
                return;
            }
        }
        panic!("all bytes were taken");
    });
    let server = Server::start(conf(
        EVENTS,
        &format!("server {{ listen 127.0.0.1:%PORT2%; proxy_pass {endless}; proxy_timeout 300ms; }}"),
    ));
    // The first session takes what a thread needs once.
    assert!(echoing(server.addr(1)).is_some());
    let worker = server.worker();
    let before = memory(worker);
    let mut stream = connect(server.addr(2));
    server.wait_for_log("connection timed out (110: Connection timed out) while proxying connection", 1);
    let after = memory(worker);
    assert!(after < before + 4096, "{before} KiB before, {after} KiB after");
    // The client still gets the bytes that the kernel has taken.
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(!got.is_empty() && got.iter().all(|b| *b == b'z'));
    wait_for_the_end_of_all(&server);
}

#[test]
fn a_rate_outlives_a_reload() {
    const LEN: usize = 60_000;
    let backend = serve(|mut stream| stream.send([b'r'; LEN]));
    let text = |rate: &str| {
        format!("server {{ listen 127.0.0.1:%PORT2%; proxy_pass {backend}; proxy_download_rate {rate}; }}")
    };
    let with = conf(EVENTS, &text("40k"));
    let server = Server::start(&with);
    let begun = Instant::now();
    let mut stream = connect(server.addr(2));
    let mut first = [0; 10_000];
    stream.read_exact(&mut first).expect("the first bytes");
    let slower = with.replace("return ready", "return slower").replace("rate 40k", "rate 100");
    server.reload_with(slower);
    wait_until("the new configuration", || server.connect().rest() == "slower");
    assert_eq!(stream.rest().len(), LEN - first.len());
    // All but a buffer of 16 KiB waits for the rate.
    let least = Duration::from_secs_f64((LEN - 2 * 16_384) as f64 / 40_960.0);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    wait_for_the_end_of_all(&server);
}

#[test]
fn beginnings_that_are_never_completed() {
    let (backend, _) = echo();
    let server = Server::start(conf(
        EVENTS,
        &format!(
            "server {{ listen 127.0.0.1:%PORT2% proxy_protocol; proxy_protocol_timeout 200ms; return x; }}\n\
             server {{ listen 127.0.0.1:%PORT3%; ssl_preread on; preread_timeout 200ms; proxy_pass {backend}; }}"
        ),
    ));
    let begin = |port, bytes: &[u8]| {
        let mut stream = connect(server.addr(port));
        stream.send(bytes);
        stream.rest()
    };
    for bytes in ["", "PROXY TCP4 192.0.2.1 198."] {
        assert_eq!(begin(2, bytes.as_bytes()), "");
    }
    server.wait_for_log("client timed out (110: Connection timed out) while reading PROXY protocol", 2);
    for bytes in [&b""[..], &[22, 3, 1, 2], &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]] {
        assert_eq!(begin(3, bytes), "");
    }
    server.wait_for_log("client timed out (110: Connection timed out) while prereading client data", 3);
    wait_for_the_end_of_all(&server);
}

/// Clients beyond what the descriptors allow wait in the kernel's queue, and a line says so. The sessions there are go on.
#[test]
fn descriptors_run_out() {
    let udp = Echo::start();
    let server = Server::start(conf(
        "worker_rlimit_nofile 60; events { worker_connections 500; }",
        &format!(
            "server {{ listen 127.0.0.1:%PORT2% udp; proxy_pass {}; proxy_timeout 500ms; }}\n\
             server {{ listen 127.0.0.1:%PORT3%; proxy_pass {}; }}",
            udp.addr,
            echo().0
        ),
    ));
    let mut kept = echoing(server.addr(3)).expect("an echo");
    let many: Vec<TcpStream> = (0..80).map(|_| connect(server.addr(3))).collect();
    server.wait_for_log("descriptors are not enough for more than", 1);
    assert_eq!(kept.echo(b"goes on"), b"goes on");
    // Each that ends makes room for another that waits.
    for mut stream in many {
        assert_eq!(stream.echo(b"at last"), b"at last");
    }
    port(&forebay_testkit::udp(server.addr(2)));
    drop(kept);
    wait_for_the_end_of_all(&server);
}

/// Datagrams of 10,000 clients, none of which takes its answer. The answers come back as ICMP errors.
#[test]
fn a_flood_of_clients_over_udp() {
    let echo = Echo::start();
    let server = Server::start(conf(
        EVENTS,
        &format!("server {{ listen 127.0.0.1:%PORT2% udp; proxy_pass {}; proxy_timeout 500ms; }}", echo.addr),
    ));
    let good = forebay_testkit::udp(server.addr(2));
    let first = port(&good);
    for n in 0..10_000_u32 {
        let from =
            SocketAddr::from(([127, 1 + (n / 2500) as u8, (n / 50 % 50) as u8, (1 + n % 50) as u8], 0));
        let socket = UdpSocket::bind(from).expect("bind");
        socket.send_to(b"flood", server.addr(2)).expect("sent");
        if n % 50 == 0 {
            assert_eq!(port(&good), first, "client {n}");
        }
    }
    server.wait_for_log("200 worker_connections are not enough, reusing the oldest udp sessions", 1);
    wait_for_the_end_of_all(&server);
}

#[test]
fn the_smallest_and_the_largest_datagram() {
    let backend = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let to = backend.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut buf = [0; 65536];
        while let Ok((count, from)) = backend.recv_from(&mut buf) {
            backend.send_to(&buf[..count], from).expect("sent");
        }
    });
    let server = Server::start(conf(
        EVENTS,
        &format!("server {{ listen 127.0.0.1:%PORT2% udp; proxy_pass {to}; proxy_timeout 300ms; }}"),
    ));
    let socket = forebay_testkit::udp(server.addr(2));
    for len in [0, 65_507, 1, 65_507, 0] {
        let text = "l".repeat(len);
        assert!(ask(&socket, &text).is_some_and(|answer| answer == text), "{len}");
    }
    server.wait_for_log("udp timed out, packets from/to client:5/5, bytes from/to client:131015/131015", 1);
    wait_for_the_end_of_all(&server);
}

/// The listener's socket gets an ICMP error for a client that is gone. The others go on.
#[test]
fn a_client_that_is_gone_before_its_answer() {
    let late = UdpSocket::bind("127.0.0.1:0").expect("bind");
    late.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let server = Server::start(conf(
        EVENTS,
        &format!(
            "server {{ listen 127.0.0.1:%PORT2% udp; proxy_pass {}; proxy_timeout 1s; }}",
            late.local_addr().expect("bound")
        ),
    ));
    let staying = forebay_testkit::udp(server.addr(2));
    let mut buf = [0; 10];
    let mut sender_of = |socket: &UdpSocket| {
        socket.send(b"x").expect("sent");
        late.recv_from(&mut buf).expect("the datagram").1
    };
    let to = sender_of(&staying);
    for n in 0..10 {
        let gone = forebay_testkit::udp(server.addr(2));
        let to_gone = sender_of(&gone);
        drop(gone);
        late.send_to(b"lost", to_gone).expect("sent");
        late.send_to(n.to_string().as_bytes(), to).expect("sent");
        assert_eq!(receive(&staying), Some(n.to_string()));
    }
    wait_for_the_end_of_all(&server);
}
