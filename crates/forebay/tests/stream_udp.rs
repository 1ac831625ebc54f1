//! Sessions over UDP.

use forebay_testkit::{DEADLINE, Echo, Server, receive, wait_for};
use std::net::UdpSocket;
use std::time::Duration;

forebay_testkit::cases!("cases/stream_udp.cases":
    the_check_knows_udp, datagrams_pass_both_ways, servers_see_the_client, sessions_end_after_the_datagrams_that_are_expected,
    sessions_outlive_reloads, a_graceful_shutdown_waits_for_answers, sessions_that_are_cut_off_are_logged,
    a_session_that_ends_is_remembered, answers_come_from_the_address_that_was_asked, datagrams_name_their_client,
    the_oldest_session_makes_way_for_a_new_client, sessions_without_a_descriptor_are_refused,
    sessions_that_wait_for_a_name_leave_room, connections_leave_half_of_the_places_to_sessions);

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
