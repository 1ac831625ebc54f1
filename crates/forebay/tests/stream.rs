//! The stream block: connections that are passed on as bytes.

use forebay_testkit::{Server, Site, Talk, connect, echo, free_port, http, wait_for, wait_until};
use std::io::Read;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;

fn conf(stream: &str) -> String {
    format!(
        "worker_processes 2; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\nstream {{\n\
         log_format l '$status $bytes_received $bytes_sent [$upstream_addr] $protocol';\n\
         access_log logs/access.log l;\n{stream}\n}}\n"
    )
}

#[test]
fn bytes_pass_both_ways_and_are_logged() {
    let (backend, _) = echo();
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; proxy_pass {backend}; proxy_half_close on; }}"
    )));
    let stream = server.connect();
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let mut writer = stream.try_clone().expect("clone");
    let copy = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.send(&copy);
        writer.shutdown(Shutdown::Write).expect("shut down");
    });
    let mut got = Vec::new();
    (&stream).read_to_end(&mut got).expect("the end");
    writing.join().expect("joined");
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    wait_for("a line", || {
        server
            .site
            .read("logs/access.log")
            .contains(&format!("200 3000000 3000000 [{backend}] TCP"))
            .then_some(())
    });
}

/// A server that refuses connections costs no session.
#[test]
fn a_dead_server_is_passed_over() {
    let (backend, _) = echo();
    let dead = format!("127.0.0.1:{}", free_port());
    let server = Server::start(conf(&format!(
        "upstream u {{ server {dead}; server {backend}; }}\n\
         upstream d {{ server {dead}; server {dead} backup; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_pass u; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass d; }}"
    )));
    for _ in 0..4 {
        assert_eq!(server.connect().echo(b"hello"), b"hello");
    }
    assert!(server.error_log().contains(
        "connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1"
    ));
    assert_eq!(connect(server.addr(1)).rest(), "");
    wait_for("a line", || {
        server.read("logs/access.log").contains(&format!("502 0 0 [{dead}, {dead}] TCP")).then_some(())
    });
}

/// Connections stay with the process and keep their settings while configurations come and go.
#[test]
fn reloads_do_not_touch_connections() {
    let (backend, count) = echo();
    let server =
        Server::start(conf(&format!("server {{ listen 127.0.0.1:%PORT0%; proxy_pass {backend}; }}")));
    let mut kept = server.connect();
    assert_eq!(kept.echo(b"before"), b"before");
    let before = count.load(SeqCst);
    let workers = server.workers(server.pid());
    for n in 1..=20 {
        server.reload();
        server.wait_for_log(": reconfiguring", n);
        assert_eq!(kept.echo(b"kept"), b"kept");
        assert_eq!(server.connect().echo(b"new"), b"new");
    }
    assert_eq!(server.workers(server.pid()), workers, "the same worker process");
    assert_eq!(count.load(SeqCst), before + 20, "no connection was made again");
}

/// Returns a ClientHello with a name.
fn client_hello(name: &str) -> Vec<u8> {
    let mut extension = vec![0, 0];
    let n = name.len() as u16;
    extension.extend((n + 5).to_be_bytes());
    extension.extend((n + 3).to_be_bytes());
    extension.push(0);
    extension.extend(n.to_be_bytes());
    extension.extend(name.as_bytes());
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend((extension.len() as u16).to_be_bytes());
    body.extend(extension);
    let mut record = vec![22, 3, 1];
    record.extend((body.len() as u16 + 4).to_be_bytes());
    record.extend([1, 0, (body.len() >> 8) as u8, body.len() as u8]);
    record.extend(body);
    record
}

/// Sends a ClientHello with a name in pieces of one byte, and returns the answer.
fn hello(addr: SocketAddr, name: &str) -> String {
    let mut stream = connect(addr);
    stream.set_nodelay(true).expect("option");
    for byte in client_hello(name) {
        stream.send([byte]);
    }
    stream.rest()
}

#[test]
fn names_of_tls_choose_the_server_without_its_certificate() {
    let server = Server::start(conf(
        "map $ssl_preread_server_name $to { a.example a; default b; }\n\
         upstream a { server 127.0.0.1:%PORT1%; } upstream b { server 127.0.0.1:%PORT2%; }\n\
         server { listen 127.0.0.1:%PORT0%; ssl_preread on; proxy_pass $to; }\n\
         server { listen 127.0.0.1:%PORT1%; return one; }\n\
         server { listen 127.0.0.1:%PORT2%; return two; }",
    ));
    assert_eq!(hello(server.addr(0), "a.example"), "one");
    assert_eq!(hello(server.addr(0), "b.example"), "two");
}

#[test]
fn a_proxy_header_in_pieces_names_the_client() {
    let server = Server::start(conf(
        "server { listen 127.0.0.1:%PORT0% proxy_protocol; set_real_ip_from 127.0.0.1; deny 192.0.2.2;\n\
         return $remote_addr:$remote_port; }",
    ));
    let ask = |header: &str| {
        let mut stream = server.connect();
        for piece in header.as_bytes().chunks(5) {
            stream.send(piece);
        }
        stream.rest()
    };
    assert_eq!(ask("PROXY TCP4 192.0.2.1 198.51.100.1 1234 80\r\n"), "192.0.2.1:1234");
    assert_eq!(ask("PROXY TCP4 192.0.2.2 198.51.100.1 1234 80\r\n"), "");
    server.wait_for_log("access forbidden by rule while initializing session, client: 192.0.2.2", 1);
    assert_eq!(ask("HELO\r\n"), "");
    server.wait_for_log("broken header: \"HELO\" while reading PROXY protocol", 1);
}

/// A session without a byte in either direction ends after `proxy_timeout`.
#[test]
fn silence_ends_a_session() {
    let (backend, _) = echo();
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; proxy_pass {backend}; proxy_timeout 200ms; }}"
    )));
    assert_eq!(server.connect().rest(), "");
    server.wait_for_log("connection timed out (110: Connection timed out) while proxying connection", 1);
}

/// The name in a ClientHello that is only read chooses the server as well. The default server's settings count until then.
#[test]
fn names_of_hellos_choose_the_server() {
    let server = Server::start(conf(
        "server { listen 127.0.0.1:%PORT0%; ssl_preread on; server_name a.x; return 'a $server_name'; }\n\
         server { listen 127.0.0.1:%PORT0%; server_name b.x; access_log off; return 'b $server_name'; }\n\
         server { listen 127.0.0.1:%PORT0%; server_name *.c.x; return c; }\n\
         server { listen 127.0.0.1:%PORT0%; server_name ~^(?<n>.+)\\.d\\.x$; return 'd $n'; }\n\
         server { listen 127.0.0.1:%PORT1%; server_name a.x; return a; }\n\
         server { listen 127.0.0.1:%PORT1%; ssl_preread on; server_name b.x; return b; }",
    ));
    for (name, answer) in [
        ("a.x", "a a.x"),
        ("B.x", "b b.x"),
        ("b.x.", "b b.x"),
        ("q.c.x", "c"),
        ("hey.d.x", "d hey"),
        ("none.y", "a a.x"),
    ] {
        assert_eq!(hello(server.addr(0), name), answer, "{name}");
    }
    let mut stream = connect(server.addr(1));
    stream.send(b"x");
    let mut answer = Vec::new();
    // Reset, since a byte has not been read.
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, b"a", "the default server does not read the hello");
}

/// A connection passes to another listener with its number, its client, its TLS and the bytes that have been read.
#[test]
fn connections_pass_to_other_listeners() {
    let server = Server::start(http(
        "server_tokens off;\n\
         server { listen 127.0.0.1:%PORT0%; return 200 'plain $remote_addr $server_port $scheme $proxy_protocol_addr'; }\n\
         server { listen 127.0.0.1:%PORT1% proxy_protocol; return 200 'header $proxy_protocol_addr'; }\n\
         server { listen %PORT2%; return 200 'any $server_addr'; } }\n\
         stream { log_format l '$server_port $status $connection'; access_log logs/access.log l;\n\
         limit_conn_zone $binary_remote_addr zone=z:64k;\n\
         map $server_port $to { %PORT6% 127.0.0.1:1; %PORT7% localhost:%PORT0%; default 127.0.0.1:%PORT2%; }\n\
         server { listen 127.0.0.1:%PORT3% proxy_protocol; ssl_preread on; limit_conn z 1; pass 127.0.0.1:%PORT0%; }\n\
         server { listen 127.0.0.1:%PORT4%; ssl_preread on; pass 127.0.0.1:%PORT1%; }\n\
         server { listen 127.0.0.1:%PORT5%; listen 127.0.0.1:%PORT6%; listen 127.0.0.1:%PORT7%; pass $to; }\n\
         server { listen 127.0.0.1:%PORT8%; pass 127.0.0.1:%PORT8%; }\n\
         server { listen 127.0.0.1:%PORT9%; pass 127.0.0.1:%PORT5%; }",
    ));
    let get = "GET / HTTP/1.0\r\n\r\n";
    let ask = |port: usize, text: &str| {
        let mut stream = connect(server.addr(port));
        stream.send(text);
        let mut answer = Vec::new();
        // A refused connection is reset, since bytes of it have not been read.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        answer.split_once("\r\n\r\n").map_or(answer.clone(), |(_, body)| body.to_owned())
    };
    let header = "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    let plain = format!("plain 127.0.0.1 {} http 192.0.2.1", server.addr(0).port());
    assert_eq!(ask(3, &format!("{header}{get}")), plain);
    assert_eq!(ask(4, &format!("{header}{get}")), "header 192.0.2.1");
    assert_eq!(ask(5, get), "any 127.0.0.1");
    assert_eq!(ask(9, get), "any 127.0.0.1", "by two listeners");
    for (port, text) in [
        (6, "port not found for \"127.0.0.1:1\"".to_owned()),
        (7, format!("no addresses in pass \"localhost:{}\"", server.addr(0).port())),
        (8, "stream pass cycle".to_owned()),
    ] {
        assert_eq!(ask(port, get), "");
        let at =
            format!(" while passing connection to port, client: 127.0.0.1, server: {}", server.addr(port));
        server.wait_for_log(&(text + &at), 1);
    }
    // A place in a zone is kept for as long as the connection is open.
    let mut kept = connect(server.addr(3));
    kept.send(format!("{header}GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
    let mut answer = vec![0; 12];
    kept.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 200");
    assert_eq!(ask(3, &format!("{header}{get}")), "");
    drop(kept);
    wait_until("a place", || ask(3, &format!("{header}{get}")) == plain);
    let log = server.read("logs/access.log");
    let statuses: Vec<_> = log.lines().filter_map(|l| l.split(' ').nth(1)).collect();
    assert_eq!(statuses[..4], ["200", "500", "500", "503"], "{log}");
}

/// The PROXY header depends on the client by a variable and on the server by a parameter, and has extensions with values of the
/// session. A value that is none refuses the session.
#[test]
fn proxy_headers_by_variable_and_server() {
    let (backend, _) = echo();
    let server = Server::start(conf(&format!(
        "map $ssl_preread_server_name $version {{ one.example v1; two.example v2; bad.example maybe; default ''; }}\n\
         upstream u {{ server {backend} proxy_protocol=v2; }}\n\
         proxy_protocol_tlv authority $ssl_preread_server_name; proxy_protocol_tlv alpn $ssl_preread_alpn_protocols;\n\
         proxy_protocol_tlv 0xe0 id-$connection;\n\
         server {{ listen 127.0.0.1:%PORT0%; ssl_preread on; proxy_protocol $version; proxy_pass {backend}; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_protocol v1; proxy_pass u; }}"
    )));
    let greet = |port: usize, name: &str, most: usize| {
        let mut stream = connect(server.addr(port));
        stream.send(client_hello(name));
        let mut answer = vec![0; most];
        stream.read_exact(&mut answer).map(|()| answer).ok()
    };
    let one = greet(0, "one.example", 12).expect("an answer");
    assert_eq!(one, b"PROXY TCP4 1");
    assert_eq!(greet(0, "other.example", 3).expect("an answer"), b"\x16\x03\x01", "no header");
    assert_eq!(greet(0, "bad.example", 1), None);
    server.wait_for_log("invalid value \"maybe\" of \"proxy_protocol\", client: 127.0.0.1", 1);
    let two = greet(0, "two.example", 28 + 14 + 8).expect("an answer");
    assert_eq!(two[..14], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    assert_eq!(two[28..42], *b"\x02\x00\x0btwo.example");
    assert_eq!(two[42..48], *b"\xe0\x00\x04id-");
    // The parameter of the server goes before the directive; without a name there is no extension for it.
    let own = greet(1, "two.example", 36).expect("an answer");
    assert_eq!((&own[..14], &own[28..34]), (&two[..14], &b"\xe0\x00\x04id-"[..]));
    let refused = |line: &str| {
        let site = Site::new(conf(&format!("upstream u {{ server 127.0.0.1:1; }} {line}")));
        String::from_utf8_lossy(&site.run(&["-t"]).stderr).into_owned()
    };
    for (line, text) in [
        ("proxy_protocol maybe;", "invalid value \"maybe\" in "),
        ("proxy_protocol_tlv name x;", "invalid TLV type \"name\" in "),
        ("upstream v { server 127.0.0.1:1 proxy_protocol=3; }", "invalid parameter \"proxy_protocol=3\" in "),
    ] {
        assert!(refused(line).contains(text), "{}", refused(line));
    }
}

/// The examples of the manual are accepted as they are, but for addresses and paths of this machine.
#[test]
fn the_examples_of_the_manual_are_configurations() {
    let manual = include_str!("../../../docs/stream.md");
    let examples: Vec<&str> =
        manual.split("```nginx\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() > 5, "{}", examples.len());
    for example in examples {
        let mut text = "error_log logs/error.log; pid logs/nginx.pid; events {}\n".to_owned();
        for line in example.lines() {
            match line.trim().strip_prefix("listen ").map(|words| words.trim_end_matches(';')) {
                Some(words) => {
                    let options = words.split_once(' ').map_or("", |(_, options)| options);
                    text += &format!("listen 127.0.0.1:{} {options};\n", free_port());
                }
                None => text += &format!("{line}\n"),
            }
        }
        for (path, here) in
            [("/etc/ssl/db", "%DIR%/db"), ("/etc/ssl/mqtt", "%DIR%/db"), ("/var/log/nginx/", "%DIR%/logs/")]
        {
            text = text.replace(path, here);
        }
        let site = Site::new(&text);
        site.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout db.key -out db.pem -subj /CN=db");
        let checked = site.run(&["-t"]);
        assert!(checked.status.success(), "{example}\n{}", String::from_utf8_lossy(&checked.stderr));
    }
}

#[test]
fn groups_without_servers_have_fallbacks() {
    let (backend, _) = echo();
    let server = Server::start(conf(&format!(
        "upstream none {{ fallback some; }} upstream some {{ server {backend}; }} upstream lost {{ fallback off; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_pass none; }} server {{ listen 127.0.0.1:%PORT1%; proxy_pass lost; }}"
    )));
    assert_eq!(server.connect().echo(b"hello"), b"hello");
    assert_eq!(connect(server.addr(1)).rest(), "");
    server.wait_for_log("no live upstreams while connecting to upstream", 1);
    let site =
        Site::new(conf("upstream u { fallback =503; } server { listen 127.0.0.1:%PORT0%; proxy_pass u; }"));
    let out = site.run(&["-t"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("\"fallback\" directive invalid value"));
}
