//! The stream block: the ways in which sessions end, with the lines that they leave in the logs.

use forebay_testkit::cases::{self, row::unescaped};
use forebay_testkit::{Server, Talk, accept, connect, echo, free_port, reset, wait_for};
use std::io::Read;
use std::net::Shutdown;

/// Session that ends, a row of `stream_sessions.cases`.
struct Case<'a> {
    /// Directives of the server, `listen` included, at its port.
    server: String,
    port: u16,
    /// Conduct of the client, and what it sends.
    client: &'a str,
    bytes: Vec<u8>,
    line: &'a str,
    error: Option<&'a str>,
}

impl Case<'_> {
    fn parse(row: &str) -> Case<'_> {
        let mut sides = row.split(" => ");
        let parts: Vec<&str> = sides.next().expect("a session").split(" | ").collect();
        let [listen, directives, client] = parts[..] else { panic!("{row}") };
        let (client, bytes) = client.split_once(' ').expect("bytes");
        let port = free_port();
        let server = format!("listen 127.0.0.1:{port} {}; {directives}", listen.trim_matches('-'));
        let (line, error) = (sides.next().expect("a line"), sides.next());
        Case { server, port, client, bytes: unescaped(bytes.trim_matches('"')), line, error }
    }
}

/// Acts as the client of a case, and returns when the server has ended the session.
fn act(case: &Case<'_>, server: &Server) {
    let mut stream = connect(([127, 0, 0, 1], case.port).into());
    stream.send(&case.bytes);
    match case.client {
        "ends" => stream.shutdown(Shutdown::Write).expect("shut down"),
        "resets" => {
            server.wait_for_log(format!("connected to 127.0.0.1:{}", case.port), 1);
            if case.bytes.is_empty() {
                wait_for_line(server, case.port);
            }
            return reset(&stream);
        }
        other => assert_eq!(other, "waits"),
    }
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Waits for the line of the access log about the session of a port. Returns it without the port; times are `T`.
fn wait_for_line(server: &Server, port: u16) -> String {
    let line = wait_for("a line in the access log", || {
        let log = server.read("logs/access.log");
        log.lines().find_map(|line| Some(line.strip_prefix(&format!("{port} "))?.to_owned()))
    });
    let words = line.split(' ').map(|word| if word.contains('.') { "T" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn sessions_end() {
    let (echo, _) = echo();
    let dead = free_port();
    let rows = cases::rows(include_str!("cases/stream_sessions.cases"));
    let cases: Vec<Case<'_>> = rows.iter().map(|row| Case::parse(row)).collect();
    let servers: String = cases.iter().map(|case| format!("server {{ {} }}\n", case.server)).collect();
    // Servers that close each connection.
    let [a, b] = [(), ()].map(|()| accept(|stream, _| drop(stream)));
    let conf = format!(
        "worker_processes 2; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\nstream {{\n\
         log_format l '$server_port $status $bytes_received $bytes_sent $upstream_connect_time';\n\
         access_log logs/access.log l;\n\
         limit_conn_zone $hostname zone=one:1m;\n\
         upstream mute {{ server {a}; server {b}; }}\n\
         map $pid $kib {{ default {kib}; }}\n\
         map $pid $some {{ default {some}; }}\n\
         map $pid $long {{ default {long}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; return ready; access_log off; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; limit_conn one 1; proxy_pass {echo}; }}\n{servers} }}\n",
        kib = "x".repeat(1024),
        some = "$kib".repeat(128),
        long = "$some".repeat(128),
    );
    let conf = conf.replace("%ECHO%", &echo.to_string()).replace("%DEAD%", &format!("127.0.0.1:{dead}"));
    let server = Server::start(&conf);
    let mut only = connect(server.addr(1));
    assert_eq!(only.echo(b"x"), b"x");
    std::thread::scope(|scope| {
        for case in &cases {
            scope.spawn(|| act(case, &server));
        }
    });
    for case in &cases {
        let port = case.port;
        let line = wait_for_line(&server, port);
        let sent: u64 = line.split(' ').nth(2).and_then(|n| n.parse().ok()).expect("a number");
        let expected = match case.line.contains('N') {
            true => case.line.replace('N', &sent.to_string()),
            false => case.line.to_owned(),
        };
        assert_eq!(line, expected, "{}", case.server);
        let errors = server.error_log();
        let mut lines = errors.lines().filter(|l| l.contains(&format!("server: 127.0.0.1:{port}")));
        if let Some(text) = case.error {
            let text = format!("{text}, client: 127.0.0.1, server: 127.0.0.1:{port}");
            assert!(lines.any(|line| line.contains(&text)), "{text}\n{errors}");
        }
    }
    assert!(!server.error_log().contains(&format!("connected to {a}")), "not before the handshake");
}

/// The header of the PROXY protocol is a part of what the server gets.
#[test]
fn headers_are_counted_as_sent() {
    let (echo, _) = echo();
    let server = Server::start(format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\nstream {{\n\
         log_format l '$server_port $bytes_received $bytes_sent $upstream_bytes_sent $upstream_bytes_received';\n\
         access_log logs/access.log l;\n\
         server {{ listen 127.0.0.1:%PORT0%; return ready; access_log off; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_protocol v2; proxy_half_close on; proxy_pass {echo}; }} }}\n"
    ));
    let mut stream = connect(server.addr(1));
    stream.send(b"x");
    stream.shutdown(Shutdown::Write).expect("shut down");
    let echoed = stream.rest_bytes();
    assert_eq!(echoed.len(), 36, "the echo has the header in front");
    assert_eq!(wait_for_line(&server, server.addr(1).port()), "1 36 36 36");
}
