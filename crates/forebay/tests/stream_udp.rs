//! Sessions over UDP.

use forebay_testkit::{DEADLINE, Echo, Server, Signal, Talk, connect, receive, wait_for, wait_until};
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

forebay_testkit::cases!("cases/stream_udp.cases": the_check_knows_udp);

/// Returns a configuration with a TCP server at the first port, which tells the harness that the program is ready.
pub(crate) fn conf(main: &str, stream: &str) -> String {
    format!(
        "error_log logs/error.log info; pid logs/nginx.pid; {main}\nstream {{\n\
         log_format l '$status $protocol $bytes_received $bytes_sent $server_addr [$upstream_addr]';\n\
         access_log logs/access.log l;\nserver {{ listen 127.0.0.1:%PORT0%; access_log off; return ready; }}\n\
         {stream}\n}}\n"
    )
}

const ONE: &str = "worker_processes 1; events { worker_connections 64; }";

/// Sends a datagram and returns the answer.
pub(crate) fn ask(socket: &UdpSocket, text: &str) -> Option<String> {
    socket.send(text.as_bytes()).expect("sent");
    receive(socket)
}

/// Sends a datagram and returns the port that the server has got it from.
pub(crate) fn port(socket: &UdpSocket) -> u16 {
    let answer = ask(socket, "x").expect("an answer");
    answer.strip_suffix(" x").and_then(|port| port.parse().ok()).expect("a port")
}

/// Waits for lines of the access log.
pub(crate) fn wait_for_lines(server: &Server, count: usize) -> String {
    wait_for("lines of the access log", || {
        let log = server.read("logs/access.log");
        (log.lines().count() >= count).then_some(log)
    })
}

#[test]
fn datagrams_pass_both_ways() {
    let echo = Echo::start();
    let server = Server::start(conf(
        ONE,
        &format!(
            "server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; proxy_timeout 300ms; }}\n\
             server {{ listen 127.0.0.1:%PORT1% udp; return 'hi $remote_port $protocol'; }}\n\
             server {{ listen 127.0.0.1:%PORT2% udp; deny all; return no; }}\n\
             server {{ listen 127.0.0.1:%PORT3% udp; pass 127.0.0.1:%PORT0%; }}",
            echo.addr
        ),
    ));
    let socket = forebay_testkit::udp(server.addr(0));
    let first = port(&socket);
    assert_eq!(port(&socket), first);
    // An empty datagram is one, too, and a large one passes whole.
    assert_eq!(ask(&socket, ""), Some(format!("{first} ")));
    let large = "y".repeat(60_000);
    assert_eq!(ask(&socket, &large), Some(format!("{first} {large}")));
    assert_ne!(port(&forebay_testkit::udp(server.addr(0))), first);
    let greeted = forebay_testkit::udp(server.addr(1));
    let hi = format!("hi {} UDP", greeted.local_addr().expect("bound").port());
    assert_eq!(ask(&greeted, "a"), Some(hi));
    forebay_testkit::udp(server.addr(2)).send(b"abc").expect("sent");
    server.wait_for_log("access forbidden by rule while initializing session, udp client: 127.0.0.1", 1);
    forebay_testkit::udp(server.addr(3)).send(b"pass").expect("sent");
    server.wait_for_log(
        "cannot pass udp connection while passing connection to port, udp client: 127.0.0.1",
        1,
    );
    let log = wait_for_lines(&server, 5);
    let digits = first.to_string().len();
    let sent = 4 * (digits + 1) + 2 + 60_000;
    for line in
        [format!("200 UDP 60002 {sent} 127.0.0.1 [{}]", echo.addr), "403 UDP 3 0 127.0.0.1 [-]".to_owned()]
    {
        assert!(log.contains(&line), "{line} in {log}");
    }
    server.wait_for_log(
        format!("udp timed out, packets from/to client:4/4, bytes from/to client:60002/{sent}"),
        1,
    );
}

/// The header of the PROXY protocol is in front of the first datagram of a session, and names the transport.
#[test]
fn servers_see_the_client() {
    let echo = Echo::start();
    let server = Server::start(conf(
        ONE,
        &format!(
            "proxy_bind 127.0.0.9; proxy_responses 1; proxy_requests 2;\n\
             server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {0}; proxy_protocol on; }}\n\
             server {{ listen 127.0.0.1:%PORT1% udp; proxy_pass {0}; proxy_protocol v2; }}",
            echo.addr
        ),
    ));
    let ports =
        |n: usize, socket: &UdpSocket| [socket.local_addr().expect("bound").port(), server.addr(n).port()];
    let socket = forebay_testkit::udp(server.addr(0));
    let [from, to] = ports(0, &socket);
    let answer = ask(&socket, "a").expect("an answer");
    let header = format!(" PROXY TCP4 127.0.0.1 127.0.0.1 {from} {to}\r\na");
    assert!(answer.ends_with(&header), "{answer}");
    let answer = ask(&socket, "b").expect("an answer");
    assert!(answer.ends_with(" b"), "{answer}");
    let socket = forebay_testkit::udp(server.addr(1));
    let [from, to] = ports(1, &socket);
    socket.send(b"a").expect("sent");
    let mut buf = [0; 100];
    let count = socket.recv(&mut buf).expect("an answer");
    let mut header = b" \r\n\r\n\0\r\nQUIT\n\x21\x12\0\x13\x7f\0\0\x01\x7f\0\0\x01".to_vec();
    header.extend_from_slice(&[from.to_be_bytes(), to.to_be_bytes()].concat());
    header.extend_from_slice(b"\x03\0\x04");
    // The checksum and the text follow.
    assert!(buf[..count - 5].ends_with(&header) && buf[count - 1] == b'a', "{}", buf[..count].escape_ascii());
    server.wait_for_log("udp proxy 127.0.0.9:", 2);
}

#[test]
fn sessions_end_after_the_datagrams_that_are_expected() {
    let echo = Echo::start();
    let server = Server::start(conf(
        ONE,
        &format!(
            "server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {0}; proxy_requests 2; proxy_responses 1; }}\n\
             server {{ listen 127.0.0.1:%PORT1% udp; proxy_pass {0}; proxy_responses 0; }}\n\
             server {{ listen 127.0.0.1:%PORT2% udp; proxy_pass {0}; proxy_responses 2; proxy_timeout 200ms; }}",
            echo.addr
        ),
    ));
    let socket = forebay_testkit::udp(server.addr(0));
    let ports: Vec<u16> = (0..4).map(|_| port(&socket)).collect();
    assert!(ports[0] == ports[1] && ports[1] != ports[2] && ports[2] == ports[3], "{ports:?}");
    server.wait_for_log("udp done, packets from/to client:2/2", 2);
    forebay_testkit::udp(server.addr(1)).send(b"z").expect("sent");
    server.wait_for_log("udp done, packets from/to client:1/0", 1);
    // A server that answers less is at fault.
    port(&forebay_testkit::udp(server.addr(2)));
    server.wait_for_log(
        "upstream timed out (110: Connection timed out) while proxying connection, udp client",
        1,
    );
    let log = wait_for_lines(&server, 4);
    assert!(log.contains("502 UDP 1 "), "{log}");
}

/// A session uses the socket of a former one, with another port. Late answers of that one reach nobody.
#[test]
fn late_answers_do_not_reach_the_next_session() {
    let upstream = UdpSocket::bind("127.0.0.1:0").expect("bind");
    upstream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let server = Server::start(conf(
        ONE,
        &format!(
            "server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; proxy_responses 1; }}",
            upstream.local_addr().expect("bound")
        ),
    ));
    let mut former = Vec::new();
    for n in 0..20 {
        let asking = forebay_testkit::udp(server.addr(0));
        asking.send(b"?").expect("sent");
        let (_, from) = upstream.recv_from(&mut [0; 9]).expect("received");
        // A port that comes up again is the one of this session.
        for late in former.iter().filter(|late| **late != from) {
            let _ = upstream.send_to(b"late", late);
        }
        upstream.send_to(n.to_string().as_bytes(), from).expect("sent");
        assert_eq!(receive(&asking), Some(n.to_string()));
        wait_for_lines(&server, n + 1);
        // Between the sessions, too.
        let _ = upstream.send_to(b"late", from);
        former.push(from);
    }
    former.sort();
    former.dedup();
    assert!(former.len() > 10, "ports are chosen anew: {former:?}");
}

#[test]
fn a_dying_server_loses_its_sessions_to_the_other() {
    let (mut dying, living) = (Echo::start(), Echo::start());
    let server = Server::start(conf(
        ONE,
        &format!(
            "upstream u {{ server {}; server {}; }}\n\
             server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass u; proxy_responses 1; proxy_timeout 2s; }}",
            dying.addr, living.addr
        ),
    ));
    let answered = |count: usize| {
        let ask_once = || {
            let socket = forebay_testkit::udp(server.addr(0));
            socket.set_read_timeout(Some(Duration::from_millis(500))).expect("timeout");
            ask(&socket, "x").is_some()
        };
        (0..count).filter(|_| ask_once()).count()
    };
    assert_eq!(answered(10), 10);
    dying.end();
    // The datagram that finds out is lost.
    assert!(answered(2) >= 1);
    server
        .wait_for_log("recv() failed (111: Connection refused) while proxying and reading from upstream", 1);
    server.wait_for_log("upstream server temporarily disabled while proxying connection", 1);
    assert_eq!(answered(20), 20);
}

/// Reads what the TCP server at the first port says.
fn said(server: &Server) -> String {
    let mut text = String::new();
    let mut stream = TcpStream::connect_timeout(&server.addr(0), DEADLINE).expect("connect");
    stream.read_to_string(&mut text).expect("the end");
    text
}

fn reload(server: &Server, conf: &str, expected: &str) {
    server.reload_with(conf);
    // Each thread applies it for itself; so many connections reach all threads.
    wait_until("the new configuration", || (0..16).all(|_| said(server) == expected));
}

#[test]
fn sessions_outlive_reloads() {
    let (echo, other) = (Echo::start(), Echo::start());
    let main = "worker_processes 2; events { worker_connections 64; }";
    let with = |n: usize, to: &Echo| {
        let udp = format!("server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; }}", to.addr);
        conf(main, &udp).replace("return ready", &format!("return {n}"))
    };
    let server = Server::start(with(0, &echo));
    let socket = forebay_testkit::udp(server.addr(0));
    let first = port(&socket);
    for n in 1..=20 {
        // The session keeps its server, too.
        reload(&server, &with(n, &other), &n.to_string());
        assert_eq!(port(&socket), first, "reload {n}");
    }
    // Without the listener the session gets late answers, and new datagrams are refused.
    let late = UdpSocket::bind("127.0.0.1:0").expect("bind");
    late.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let to_late = format!(
        "server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; }}",
        late.local_addr().expect("bound")
    );
    reload(&server, &conf(main, &to_late).replace("return ready", "return late"), "late");
    let waiting = forebay_testkit::udp(server.addr(0));
    waiting.send(b"x").expect("sent");
    let mut buf = [0; 10];
    let (_, from) = late.recv_from(&mut buf).expect("the datagram");
    reload(&server, &conf(main, "").replace("return ready", "return gone"), "gone");
    late.send_to(b"late", from).expect("sent");
    assert_eq!(receive(&waiting).as_deref(), Some("late"));
    wait_for("a refusal", || {
        let refused = forebay_testkit::udp(server.addr(0));
        refused.send(b"x").expect("sent");
        refused.recv(&mut buf).is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused).then_some(())
    });
    // The listener comes back: its socket gets all new clients, although the old one still exists.
    reload(&server, &with(99, &echo), "99");
    for _ in 0..20 {
        port(&forebay_testkit::udp(server.addr(0)));
    }
}

/// Datagrams that come while the name of the server is resolved wait, and arrive in order.
#[test]
fn datagrams_wait_for_the_server() {
    let echo = Echo::start();
    let names = UdpSocket::bind("127.0.0.1:0").expect("bind");
    names.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let udp = format!(
        "resolver {} ipv6=off;\n\
         server {{ listen 127.0.0.1:%PORT0% udp; set $name late.test; proxy_pass $name:{}; proxy_requests 4; }}\n\
         server {{ listen 127.0.0.1:%PORT1% udp; return later; }}",
        names.local_addr().expect("bound"),
        echo.addr.port()
    );
    let server = Server::start(conf(ONE, &udp));
    let socket = forebay_testkit::udp(server.addr(0));
    let mut query = [0; 512];
    socket.send(b"0").expect("sent");
    let (length, from) = names.recv_from(&mut query).expect("a query");
    for text in ["1", "2", "3"] {
        socket.send(text.as_bytes()).expect("sent");
    }
    // The same thread answers this after it has received those.
    assert_eq!(ask(&forebay_testkit::udp(server.addr(1)), "x").as_deref(), Some("later"));
    let mut reply = query[..length].to_vec();
    (reply[2], reply[3], reply[7]) = (0x81, 0x80, 1);
    reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    names.send_to(&reply, from).expect("sent");
    let answers: Vec<String> = (0..4).filter_map(|_| receive(&socket)).collect();
    let port = answers[0].strip_suffix(" 0").expect("the first").to_owned();
    assert_eq!(answers[1..], [1, 2, 3].map(|n| format!("{port} {n}")));
    // They count: the next one begins a new session.
    assert_ne!(ask(&socket, "4"), Some(format!("{port} 4")));
}

#[test]
fn a_graceful_shutdown_waits_for_answers() {
    let late = UdpSocket::bind("127.0.0.1:0").expect("bind");
    late.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let udp = format!(
        "server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; proxy_responses 1; }}",
        late.local_addr().expect("bound")
    );
    let mut server = Server::start(conf(ONE, &udp));
    let socket = forebay_testkit::udp(server.addr(0));
    socket.send(b"x").expect("sent");
    let mut buf = [0; 10];
    let (_, from) = late.recv_from(&mut buf).expect("the datagram");
    server.signal(Signal::SIGQUIT);
    server.wait_for_log("gracefully shutting down", 1);
    late.send_to(b"late", from).expect("sent");
    assert_eq!(receive(&socket).as_deref(), Some("late"));
    assert_eq!(server.wait_end(), Some(0));
}

#[test]
fn the_oldest_session_makes_way_for_a_new_client() {
    let echo = Echo::start();
    let udp = format!("server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; }}", echo.addr);
    let server = Server::start(conf("worker_processes 1; events { worker_connections 8; }", &udp));
    let first = forebay_testkit::udp(server.addr(0));
    let (before, busy) = (port(&first), forebay_testkit::udp(server.addr(0)));
    let kept = port(&busy);
    // Kept, so that each has a port of its own.
    let mut others = Vec::new();
    for _ in 0..30 {
        others.push(forebay_testkit::udp(server.addr(0)));
        others.last().map(port);
        assert_eq!(port(&busy), kept, "not the oldest");
    }
    assert_ne!(port(&first), before);
    server.wait_for_log("8 worker_connections are not enough, reusing the oldest udp sessions", 1);
    server.wait_for_log("udp ended for another client, packets from/to client:1/1", 24);
    // Connections get room, too.
    assert_eq!(said(&server), "ready");
}

#[test]
fn sessions_without_a_descriptor_are_refused() {
    let echo = Echo::start();
    let udp = format!("server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; }}", echo.addr);
    let main = "worker_processes 1; worker_rlimit_nofile 60; events { worker_connections 500; }";
    let server = Server::start(conf(main, &udp));
    let first = forebay_testkit::udp(server.addr(0));
    let kept = port(&first);
    let others: Vec<UdpSocket> = (0..80).map(|_| forebay_testkit::udp(server.addr(0))).collect();
    others.iter().for_each(|other| assert_eq!(other.send(b"x").expect("sent"), 1));
    server.wait_for_log(
        "socket() failed (24: Too many open files) while connecting to upstream, udp client",
        1,
    );
    assert_eq!(port(&first), kept);
    // One line a second, and one of the access log for each.
    wait_for("refused sessions", || {
        let log = server.read("logs/access.log");
        (log.lines().filter(|line| line.starts_with("500 UDP")).count() >= 20).then_some(())
    });
    assert!(server.error_log().matches("socket() failed (24").count() < 10);
}

/// The end of `worker_shutdown_timeout` cuts sessions off, and they are logged as in nginx.
#[test]
fn sessions_that_are_cut_off_are_logged() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("bind");
    silent.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let servers = format!(
        "server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; proxy_responses 1; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass {}; }}",
        silent.local_addr().expect("bound"),
        listener.local_addr().expect("bound"),
    );
    let mut server = Server::start(conf(&format!("{ONE} worker_shutdown_timeout 200ms;"), &servers));
    forebay_testkit::udp(server.addr(0)).send(b"abc").expect("sent");
    silent.recv_from(&mut [0; 10]).expect("the datagram");
    let mut connection = connect(server.addr(1));
    connection.send(b"abcd");
    let (mut accepted, _) = listener.accept().expect("a connection");
    accepted.read_exact(&mut [0; 4]).expect("the bytes");
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.wait_end(), Some(0));
    let log = server.read("logs/access.log");
    let text = "shutdown timeout while proxying connection, ";
    for (protocol, bytes, name) in [("UDP", 3, "udp client"), ("TCP", 4, "client")] {
        assert!(log.contains(&format!("200 {protocol} {bytes} 0 ")), "{log}");
        let line = format!("{text}{name}: 127.0.0.1, server: ");
        assert!(server.error_log().contains(&line), "{}", server.error_log());
    }
}

/// The end of a session over UDP prolongs what `sticky learn` has learnt, as that of a connection does.
#[test]
fn a_session_that_ends_is_remembered() {
    let servers = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bind"));
    let [first, second] = servers.each_ref().map(|s| s.local_addr().expect("bound"));
    servers.iter().for_each(|s| s.set_read_timeout(Some(DEADLINE)).expect("timeout"));
    let server = Server::start(conf(
        ONE,
        &format!(
            "upstream two {{ zone two 64k; server {first}; server {second};\n\
             sticky learn create=$remote_addr lookup=$remote_addr zone=clients:64k timeout=1s; }}\n\
             server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass two; proxy_responses 1; }}",
        ),
    ));
    let socket = forebay_testkit::udp(server.addr(0));
    socket.send(b"long").expect("sent");
    let mut buf = [0; 9];
    let (_, from) = servers[0].recv_from(&mut buf).expect("the datagram");
    let begun = std::time::Instant::now();
    wait_until("the end of the time", || begun.elapsed() > Duration::from_millis(1100));
    servers[0].send_to(b"done", from).expect("sent");
    assert_eq!(receive(&socket).as_deref(), Some("done"));
    socket.send(b"again").expect("sent");
    assert_eq!(servers[0].recv(&mut buf).expect("the same server"), 5);
}

/// Sessions whose server has no address yet cannot make way. Half of the places remain for others.
#[test]
fn sessions_that_wait_for_a_name_leave_room() {
    let (silent, echo) = (UdpSocket::bind("127.0.0.1:0").expect("bind"), Echo::start());
    let servers = format!(
        "resolver {}; resolver_timeout 60s; map '' $name {{ default a.test:1; }}\n\
         server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; }}\n\
         server {{ listen 127.0.0.1:%PORT1% udp; proxy_pass $name; }}",
        silent.local_addr().expect("bound"),
        echo.addr
    );
    let server = Server::start(conf("worker_processes 1; events { worker_connections 8; }", &servers));
    let first = forebay_testkit::udp(server.addr(0));
    let kept = port(&first);
    for _ in 0..20 {
        forebay_testkit::udp(server.addr(1)).send(b"x").expect("sent");
    }
    server.wait_for_log("8 worker_connections are not enough for udp sessions", 1);
    assert_eq!((port(&first), said(&server).as_str()), (kept, "ready"));
    let log = server.error_log();
    assert_eq!(log.matches(&format!("connected to {}", server.addr(1))).count(), 4, "{log}");
}

/// Connections get the places of sessions only where these have more than half, or have had no datagram for a while.
#[test]
fn connections_leave_half_of_the_places_to_sessions() {
    let echo = Echo::start();
    let servers = format!(
        "server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass 127.0.0.1:%PORT2%; }}",
        echo.addr
    );
    let server = Server::start(conf("worker_processes 1; events { worker_connections 16; }", &servers));
    let accepted = TcpListener::bind(server.addr(2)).expect("bind");
    let sessions: Vec<UdpSocket> = (0..16).map(|_| forebay_testkit::udp(server.addr(0))).collect();
    let ports: Vec<u16> = sessions.iter().map(port).collect();
    // More than there are places: some wait in the kernel's queue.
    let _connections: Vec<TcpStream> = (0..20).map(|_| connect(server.addr(1))).collect();
    for _ in 0..8 {
        accepted.accept().expect("proxied");
    }
    server.wait_for_log("16 worker_connections are not enough, new connections wait", 1);
    let kept = sessions.iter().zip(&ports).skip(8);
    assert!(kept.map(|(socket, before)| (port(socket), before)).all(|(now, before)| now == *before));
}

#[test]
fn answers_come_from_the_address_that_was_asked() {
    let echo = Echo::start();
    let udp = format!(
        "server {{ listen %PORT0% udp; listen [::]:%PORT0% udp; proxy_pass {}; proxy_responses 1; }}",
        echo.addr
    );
    let server = Server::start(conf(ONE, &udp));
    for host in ["127.0.0.1", "127.0.0.7"] {
        let at = SocketAddr::new(host.parse().expect("address"), server.addr(0).port());
        // A connected socket takes answers of that address only.
        port(&forebay_testkit::udp(at));
    }
    let six = UdpSocket::bind("[::1]:0").and_then(|socket| {
        socket.set_read_timeout(Some(DEADLINE))?;
        socket.connect(("::1", server.addr(0).port()))?;
        Ok(socket)
    });
    if let Ok(six) = six {
        port(&six);
    }
    let log = wait_for_lines(&server, 2);
    assert!(log.contains(" 127.0.0.1 [") && log.contains(" 127.0.0.7 ["), "{log}");
}

/// Many datagrams at once, of which the kernel coalesces later ones, arrive whole and in order.
#[test]
fn bursts() {
    let echo = Echo::start();
    let udp = format!("server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {}; }}", echo.addr);
    let server = Server::start(conf(ONE, &udp));
    let socket = forebay_testkit::udp(server.addr(0));
    let from = port(&socket);
    for round in 0..20 {
        let texts: Vec<String> = (0..24).map(|n| format!("{round} {n} {}", "z".repeat(1000))).collect();
        texts.iter().for_each(|text| assert!(socket.send(text.as_bytes()).is_ok()));
        for text in &texts {
            assert_eq!(receive(&socket), Some(format!("{from} {text}")));
        }
    }
}

/// With `proxy_protocol` at `listen`, a header in front of the first datagram of a session names the client. Later datagrams may
/// have one, and a client without one gets no session.
#[test]
fn datagrams_name_their_client() {
    let echo = Echo::start();
    let server = Server::start(conf(
        ONE,
        &format!(
            "set_real_ip_from 127.0.0.1;\n\
             server {{ listen 127.0.0.1:%PORT0% udp proxy_protocol; proxy_responses 1; proxy_requests 1;\n\
             return '$remote_addr $proxy_protocol_port $bytes_received'; }}\n\
             server {{ listen 127.0.0.1:%PORT1% udp proxy_protocol; proxy_pass {}; }}",
            echo.addr
        ),
    ));
    let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c\xc0\0\x02\x07\x7f\0\0\x01\x04\xd2\0\x35";
    let with = |text: &str| [header.as_slice(), text.as_bytes()].concat();
    let socket = forebay_testkit::udp(server.addr(0));
    socket.send(b"no header").expect("sent");
    server.wait_for_log("no PROXY protocol header in a datagram, udp client: 127.0.0.1", 1);
    socket.send(&with("hello")).expect("sent");
    assert_eq!(receive(&socket).as_deref(), Some("192.0.2.7 1234 5"));
    let socket = forebay_testkit::udp(server.addr(1));
    for bytes in [with("one"), b"two".to_vec(), with("three")] {
        socket.send(&bytes).expect("sent");
        let answer = receive(&socket).expect("an answer");
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(5)..]).into_owned();
        let word = answer.rsplit(' ').next().expect("a word");
        assert!(text.ends_with(word) && word.len() >= 3, "{answer}");
    }
}
