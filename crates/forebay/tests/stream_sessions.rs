//! The stream block: the ways in which sessions end, with the lines that they leave in the logs.

use forebay_testkit::{Server, Talk, connect, echo, free_port, wait_for};
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

/// Conduct of a client.
enum Client {
    /// Sends this and waits for the end.
    Waits(&'static [u8]),
    /// Sends this, ends its direction, and waits for the end.
    Ends(&'static [u8]),
    /// Sends this and resets the connection, once the server has it.
    Resets(&'static [u8]),
}
use Client::{Ends, Resets, Waits};

/// Session that ends.
struct Case {
    /// Directives of the server behind its `listen`.
    server: &'static str,
    /// Parameter of `listen`.
    listen: &'static str,
    client: Client,
    /// Status, bytes received and sent, and times to connect to servers.
    line: &'static str,
    /// Text of the error log before the name of the client; `None` if there is none.
    error: Option<&'static str>,
}

const fn case(
    listen: &'static str,
    server: &'static str,
    client: Client,
    line: &'static str,
    error: Option<&'static str>,
) -> Case {
    Case { server, listen, client, line, error }
}

const PART_OF_HELLO: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
const LONG_HELLO: &[u8] = &{
    let mut bytes = [7; 64];
    (bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]) = (22, 3, 1, 2, 0);
    (bytes[5], bytes[6], bytes[7], bytes[8], bytes[9], bytes[10]) = (1, 0, 1, 252, 3, 3);
    bytes
};
/// As long as a header of the PROXY protocol may be, without an end.
const ENDLESS: &[u8] = &{
    let mut bytes = [b'1'; 107];
    let (head, _) = bytes.split_at_mut(14);
    head.copy_from_slice(b"PROXY UNKNOWN ");
    bytes
};

const PREREAD: &str = "ssl_preread on; proxy_half_close on; proxy_pass %ECHO%;";

const CASES: &[Case] = &[
    // What has been read but not passed on is not counted.
    case("", "ssl_preread on; preread_timeout 50ms; return x;", Waits(PART_OF_HELLO), "200 0 0 -", None),
    case("", PREREAD, Ends(PART_OF_HELLO), "200 0 0 -", None),
    case(
        "",
        PREREAD,
        Resets(PART_OF_HELLO),
        "200 0 0 -",
        Some("recv() failed (104: Connection reset by peer) while prereading client data"),
    ),
    case(
        "",
        "ssl_preread on; preread_buffer_size 64; return x;",
        Waits(LONG_HELLO),
        "400 0 0 -",
        Some("preread buffer full while prereading client data"),
    ),
    case("", "ssl_preread on; return $bytes_received;", Waits(b"GET / HTTP/1.0"), "200 0 1 -", None),
    case("", PREREAD, Ends(b"GET / HTTP/1.0"), "200 14 14 T", None),
    case(
        "",
        "ssl_preread on; proxy_pass %DEAD%;",
        Waits(b"GET / HTTP/1.0"),
        "502 0 0 -",
        Some("connect() failed (111: Connection refused) while connecting to upstream"),
    ),
    case(
        "proxy_protocol",
        "return x;",
        Ends(b""),
        "400 0 0 -",
        Some("broken header: \"\" while reading PROXY protocol"),
    ),
    case(
        "proxy_protocol",
        "return x;",
        Ends(b"PROXY T"),
        "400 0 0 -",
        Some("broken header: \"PROXY T\" while reading PROXY protocol"),
    ),
    case(
        "proxy_protocol",
        "return x;",
        Resets(b"PROXY T"),
        "200 0 0 -",
        Some("recv() failed (104: Connection reset by peer) while reading PROXY protocol"),
    ),
    // Refused at once, not after `proxy_protocol_timeout`.
    case(
        "proxy_protocol",
        "return x;",
        Waits(ENDLESS),
        "400 0 0 -",
        Some("1\" while reading PROXY protocol"),
    ),
    case(
        "",
        "limit_conn one 1; return x;",
        Waits(b""),
        "503 0 0 -",
        Some("limiting connections by zone \"one\" while initializing session"),
    ),
    case(
        "",
        "proxy_download_rate $hostname-; proxy_half_close on; proxy_pass %ECHO%;",
        Ends(b"x"),
        "200 1 1 T",
        Some("-\" while connecting to upstream"),
    ),
    // A connection counts as made once it is encrypted.
    case(
        "",
        "proxy_ssl on; proxy_pass mute;",
        Waits(b""),
        "502 0 0 -, -",
        Some("upstream server temporarily disabled while SSL handshaking to upstream"),
    ),
    case(
        "",
        "return $long;",
        Resets(b"x"),
        "500 0 N -",
        Some("send() failed (104: Connection reset by peer) while returning text"),
    ),
    // The client takes nothing of it.
    case(
        "",
        "return $long; proxy_timeout 1h;",
        Resets(b""),
        "200 0 N -",
        Some("connection timed out (110: Connection timed out) while returning text"),
    ),
];

/// Starts a server that closes each connection.
fn mute() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    addr
}

/// Acts as the client of a case, and returns when the server has ended the session.
fn act(case: &Case, port: u16, server: &Server) {
    let mut stream = connect(([127, 0, 0, 1], port).into());
    let bytes = match case.client {
        Waits(bytes) | Ends(bytes) | Resets(bytes) => bytes,
    };
    stream.send(bytes);
    match case.client {
        Ends(_) => stream.shutdown(Shutdown::Write).expect("shut down"),
        Resets(_) => {
            let accepted = format!("connected to 127.0.0.1:{port}");
            server.wait_for_log(&accepted, 1);
            if bytes.is_empty() {
                wait_for_line(server, port);
            }
            return reset(stream);
        }
        Waits(_) => {}
    }
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut Vec::new());
}

fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("option");
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
    let ports: Vec<u16> = CASES.iter().map(|_| free_port()).collect();
    let mut servers = String::new();
    for (case, port) in CASES.iter().zip(&ports) {
        servers += &format!("server {{ listen 127.0.0.1:{port} {}; {} }}\n", case.listen, case.server);
    }
    let (a, b) = (mute(), mute());
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
        for (case, port) in CASES.iter().zip(&ports) {
            let server = &server;
            scope.spawn(move || act(case, *port, server));
        }
    });
    for (case, port) in CASES.iter().zip(ports) {
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
