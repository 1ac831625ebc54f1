//! Health checks of the stream block: by connections, by exchanges and by datagrams.

use crate::health::certificate;
use forebay_testkit::{DEADLINE, Server, Site, Talk, connect, echo, free_port, wait_for, wait_until};
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::sync::mpsc;

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

/// Each group is one server that no session reaches before its check has passed.
#[test]
fn an_exchange_decides() {
    let (echo, _) = echo();
    let group = |name: &str, to: &str, expect: &str| {
        format!(
            "match {name} {{ {expect} }}\n\
             upstream {name} {{ zone {name} 64k; server {to}; }}\n\
             server {{ listen unix:%DIR%/{name}.sock; proxy_pass {name};\n\
               health_check mandatory interval=50ms match={name}; }}\n"
        )
    };
    let greets = "127.0.0.1:%PORT0%";
    let echo = echo.to_string();
    let server = Server::start(conf(&format!(
        "health_check_timeout 300ms;\n{}{}{}{}{}{}{}{}\n\
         server {{ listen 127.0.0.1:%PORT0%; return \"220 Ready\\r\\n\"; }}",
        group("literal", greets, "expect \"220 \";"),
        group("bytes", &echo, "send \"\\x70ing\\r\\n\"; expect \"ping\\x0d\\x0a\";"),
        group("pattern", greets, "expect ~ \"^220 R\\x65ady\\s+$\";"),
        group("caseless", greets, "expect ~* READY;"),
        group("other", greets, "expect 221;"),
        group("cased", greets, "expect ~ READY;"),
        group("silent", &echo, "expect ping;"),
        group("short", &echo, "send long; expect longer;"),
    )));
    for name in ["literal", "bytes", "pattern", "caseless"] {
        server.wait_for_log(format!("is healthy in upstream \"{name}\""), 1);
    }
    let faults = [
        ("other", "while checking data from upstream, "),
        ("cased", "while checking data from upstream, "),
        ("silent", "while receiving from upstream (timed out), "),
        ("short", "while receiving from upstream (timed out), "),
    ];
    for (name, why) in faults {
        let line = failure(&server, name);
        assert!(line.contains(why), "{line}");
    }
}

/// A bound on what is looked at: the word comes after it.
#[test]
fn no_more_than_the_buffer_is_looked_at() {
    let server = Server::start(conf(
        "match word { expect word; }\n\
         upstream all { zone all 64k; server 127.0.0.1:%PORT0%; }\n\
         upstream part { zone part 64k; server 127.0.0.1:%PORT0%; }\n\
         server { listen unix:%DIR%/a.sock; proxy_pass all; health_check mandatory interval=50ms match=word; }\n\
         server { listen unix:%DIR%/p.sock; proxy_pass part; proxy_buffer_size 6;\n\
           health_check mandatory interval=50ms match=word; }\n\
         server { listen 127.0.0.1:%PORT0%; return \"long word\"; }",
    ));
    server.wait_for_log("is healthy in upstream \"all\"", 1);
    assert!(failure(&server, "part").contains("while checking data from upstream, "));
}

/// Starts a UDP server that answers with `answer`, if there is one. Returns its address and what it receives first.
fn datagrams(answer: Option<&'static [u8]>) -> (String, mpsc::Receiver<Vec<u8>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let addr = socket.local_addr().expect("address").to_string();
    let (first, received) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buf = [0; 100];
        while let Ok((n, from)) = socket.recv_from(&mut buf) {
            let _ = first.send(buf[..n].to_vec());
            if let Some(answer) = answer {
                let _ = socket.send_to(answer, from);
            }
        }
    });
    (addr, received)
}

#[test]
fn datagrams_are_answered_or_at_least_not_refused() {
    let (answers, received) = datagrams(Some(b"\0pong"));
    let (silent, _) = datagrams(None);
    let dead = format!(
        "127.0.0.1:{}",
        UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a port").port()
    );
    let group = |name: &str, to: &str, check: &str| {
        format!(
            "upstream {name} {{ zone {name} 64k; server {to}; }}\n\
             server {{ listen unix:%DIR%/{name}.sock; proxy_pass {name}; health_check mandatory udp interval=50ms {check}; }}\n"
        )
    };
    let server = Server::start(conf(&format!(
        "health_check_timeout 200ms;\n\
         match ping {{ send \"\\x00ping\"; expect ~ \"^\\x00pong$\"; }}\n{}{}{}{}{}\n\
         server {{ listen 127.0.0.1:%PORT0%; return ready; }}",
        group("silent", &silent, ""),
        group("dead", &dead, ""),
        group("mute", &silent, "match=ping"),
        group("pong", &answers, "match=ping"),
        group("port", "127.0.0.1:1", &format!("port={}", answers.rsplit(':').next().expect("a port"))),
    )));
    for name in ["silent", "pong", "port"] {
        server.wait_for_log(format!("is healthy in upstream \"{name}\""), 1);
    }
    assert!(failure(&server, "dead").contains("receiving from upstream (111: Connection refused), "));
    assert!(failure(&server, "mute").contains("receiving from upstream (timed out), "));
    let sent: Vec<Vec<u8>> = received.try_iter().collect();
    for text in [b"nginx health check".as_slice(), b"\0ping"] {
        assert!(sent.iter().any(|s| s == text), "{sent:?}");
    }
}

/// `proxy_ssl` and `proxy_protocol` of the server that has the check count for it.
#[test]
fn checks_connect_as_sessions_do() {
    let site = Site::new(conf(
        "match text { expect served; } match protocol { expect \"served with postgresql.\"; }\n\
         upstream good { zone good 64k; server 127.0.0.1:%PORT1%; }\n\
         upstream name { zone name 64k; server 127.0.0.1:%PORT1%; }\n\
         upstream bare { zone bare 64k; server 127.0.0.1:%PORT1%; }\n\
         upstream alpn { zone alpn 64k; server 127.0.0.1:%PORT1%; }\n\
         proxy_ssl on; proxy_ssl_verify on; proxy_ssl_trusted_certificate a.crt; proxy_protocol v2;\n\
         server { listen 127.0.0.1:%PORT0%; proxy_pass good; proxy_ssl_name a.test;\n\
           health_check mandatory interval=50ms match=text; }\n\
         server { listen unix:%DIR%/n.sock; proxy_pass name; proxy_ssl_name b.test;\n\
           health_check mandatory interval=50ms match=text; }\n\
         server { listen unix:%DIR%/b.sock; proxy_pass bare; proxy_ssl_name a.test; proxy_protocol off;\n\
           health_check mandatory interval=50ms match=text; }\n\
         server { listen 127.0.0.1:%PORT1% ssl proxy_protocol; ssl_certificate a.crt; ssl_certificate_key a.key;\n\
           ssl_alpn postgresql; return \"served with $ssl_alpn_protocol.\"; }\n\
         server { listen unix:%DIR%/a.sock; proxy_pass alpn; proxy_ssl_name a.test; proxy_ssl_alpn postgresql;\n\
           health_check mandatory interval=50ms match=protocol; }",
    ));
    certificate(&site, "a");
    let server = Server::start_on(site);
    server.wait_for_log("is healthy in upstream \"good\"", 1);
    server.wait_for_log("is healthy in upstream \"alpn\"", 1);
    assert_eq!(server.connect().rest(), "served with .");
    let line = failure(&server, "name");
    assert!(line.contains("upstream SSL certificate does not match \"b.test\""), "{line}");
    let line = failure(&server, "bare");
    assert!(line.contains("while SSL handshaking to upstream ("), "{line}");
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

/// Failures in a row, the state over a reload, and the file of `state`.
#[test]
fn servers_come_from_a_file_and_stay_unhealthy_over_a_reload() {
    let (alive, _) = echo();
    let dead = format!("127.0.0.1:{}", free_port());
    let text = conf(
        "upstream u { zone u 64k; state state/u.conf; }\n\
         server { listen 127.0.0.1:%PORT0%; proxy_pass u; health_check interval=50ms fails=2; }",
    );
    let site = Site::new(&text);
    site.write("state/u.conf", format!("server {dead};\n"));
    let server = Server::start_on(site);
    failure(&server, "u");
    assert_eq!(server.connect().rest(), "");
    server.wait_for_log("no live upstreams while connecting to upstream", 1);
    server.write("state/u.conf", format!("server {dead};\nserver {alive};\n"));
    server.reload();
    let answers = || {
        let mut session = server.connect();
        session.write_all(b"x").is_ok() && session.read_exact(&mut [0]).is_ok()
    };
    // One of the threads may still have the first configuration.
    wait_until("the other server in each thread", || (0..20).all(|_| answers()));
    assert_eq!(server.error_log().matches("peer is unhealthy").count(), 1, "known over the reload");
    assert!(
        !server
            .error_log()
            .contains("while connecting to upstream, client: 127.0.0.1, server: 127.0.0.1, up")
    );
}

/// Checks come from the address of `proxy_bind`. Over UDP, the header of the PROXY protocol is in front of the datagram.
#[test]
fn checks_come_from_the_local_address() {
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
    let (tcp, udp) = (tcp.expect("a port"), udp.expect("a port"));
    udp.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let _server = Server::start(conf(&format!(
        "proxy_bind 127.0.0.2; proxy_protocol v2;\n\
         upstream t {{ zone t 64k; server {}; }} upstream u {{ zone u 64k; server {}; }}\n\
         server {{ listen unix:%DIR%/t.sock; proxy_pass t; health_check interval=50ms; }}\n\
         server {{ listen unix:%DIR%/u.sock; proxy_pass u; health_check udp interval=50ms; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; return ready; }}",
        tcp.local_addr().expect("bound"),
        udp.local_addr().expect("bound"),
    )));
    let (_, from) = tcp.accept().expect("a check");
    assert_eq!(from.ip().to_string(), "127.0.0.2");
    let mut buf = [0; 100];
    let (count, from) = udp.recv_from(&mut buf).expect("a check");
    assert_eq!(from.ip().to_string(), "127.0.0.2");
    assert!(buf.starts_with(b"\r\n\r\n\0\r\nQUIT\n\x20"), "{}", buf[..count].escape_ascii());
    assert!(buf[..count].ends_with(b"nginx health check"), "{}", buf[..count].escape_ascii());
}
