//! Faults of clients, of servers and of the system: they end the sessions that they concern, and no other.

use crate::stream_udp::port;
use forebay_testkit::{Echo, Server, Talk, connect, echo, memory, wait_for, wait_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

forebay_testkit::cases!("cases/stream_faults.cases":
    servers_and_clients_that_reset, beginnings_that_are_never_completed, descriptors_run_out,
    the_smallest_and_the_largest_datagram, a_client_that_is_gone_before_its_answer);

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
