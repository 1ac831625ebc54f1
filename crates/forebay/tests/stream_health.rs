//! Health checks of the stream block: by connections, by exchanges and by datagrams.

use forebay_testkit::{Server, Talk, connect, echo, free_port, wait_for};
use std::io::Read;
use std::net::TcpListener;

forebay_testkit::cases!("cases/stream_health.cases":
    an_exchange_decides, no_more_than_the_buffer_is_looked_at, datagrams_are_answered_or_at_least_not_refused,
    checks_connect_as_sessions_do, servers_come_from_a_file_and_stay_unhealthy_over_a_reload,
    checks_come_from_the_local_address);

fn conf(stream: &str) -> String {
    format!(
        "worker_processes 2; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         stream {{\n{stream}\n}}\n"
    )
}

/// Returns the line about a check of a server that failed.
fn failure(server: &Server, group: &str) -> String {
    let end = format!(" in upstream \"{group}\"");
    let is_failure = |l: &&str| l.contains("peer is unhealthy while") && l.ends_with(&end);
    wait_for("a failed check", || server.error_log().lines().find(is_failure).map(str::to_owned))
}

/// A server that accepts no connections gets no sessions, and gets them again once it does.
#[test]
fn a_dead_server_gets_no_sessions_until_it_is_back() {
    let (alive, _) = echo();
    let dead = format!("127.0.0.1:{}", free_port());
    let server = Server::start(conf(&format!(
        "upstream u {{ zone u 64k; server {dead} max_fails=0; server {alive}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_pass u; health_check interval=50ms; }}"
    )));
    let line = failure(&server, "u");
    let words = format!("connecting to upstream (111: Connection refused), health check of peer {dead} in");
    assert!(line.contains(&words), "{line}");
    // Sessions that came before the first check.
    let met = || server.error_log().matches("while connecting to upstream, client").count();
    let before = met();
    for _ in 0..6 {
        assert_eq!(server.connect().echo(b"hello"), b"hello");
    }
    assert_eq!(met(), before);
    let back = TcpListener::bind(&dead).expect("the port is still free");
    server.wait_for_log(format!("peer {dead} is healthy in upstream \"u\""), 1);
    let sessions = [server.connect(), server.connect()];
    sessions.iter().for_each(|mut s| s.send(b"x"));
    back.set_nonblocking(true).expect("set");
    wait_for("a session", || {
        let (mut accepted, _) = back.accept().ok()?;
        accepted.set_nonblocking(false).expect("set");
        // The checks are connections, too, and bring no bytes.
        accepted.read_exact(&mut [0]).ok()
    });
}

/// A server that comes back gets few sessions at first, and all of its share without `slow_start`.
#[test]
fn a_server_that_is_back_starts_slowly() {
    let (alive, _) = echo();
    let slow = format!("127.0.0.1:{}", free_port());
    let server = Server::start(conf(&format!(
        "upstream slow {{ zone slow 64k; server {slow} slow_start=1h; server {alive}; }}\n\
         upstream fast {{ zone fast 64k; server {slow}; server {alive}; }}\n\
         log_format l '$server_port $upstream_addr'; access_log logs/access.log l;\n\
         server {{ listen 127.0.0.1:%PORT0%; return ready; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass slow; health_check interval=50ms; }}\n\
         server {{ listen 127.0.0.1:%PORT2%; proxy_pass fast; health_check interval=50ms; }}"
    )));
    failure(&server, "slow");
    failure(&server, "fast");
    let back = TcpListener::bind(&slow).expect("the port is still free");
    std::thread::spawn(move || back.incoming().for_each(drop));
    server.wait_for_log("is healthy in upstream \"slow\"", 1);
    server.wait_for_log("is healthy in upstream \"fast\"", 1);
    let sessions = |n: usize| {
        (0..10).for_each(|_| drop(connect(server.addr(n))));
        let port = server.addr(n).port();
        let of_port = |l: &&str| l.starts_with(&format!("{port} "));
        let log = wait_for("ten lines", || {
            let log = server.read("logs/access.log");
            (log.lines().filter(of_port).count() == 10).then_some(log)
        });
        log.lines().filter(|l| of_port(l) && l.ends_with(&format!(" {slow}"))).count()
    };
    assert!(sessions(1) <= 1);
    assert_eq!(sessions(2), 5);
}
