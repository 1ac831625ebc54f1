//! The stream block: sessions that are routed by their first message, and sessions that stick to a server.

use crate::health::certificate;
use forebay_testkit::{DEADLINE, Server, Site, Talk, accept, connect, free_port, wait_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};

fn conf(stream: &str) -> String {
    format!(
        "worker_processes 2; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\nstream {{\n\
         log_format l '$status [$mqtt_preread_clientid] [$mqtt_preread_username] [$rdp_cookie] \
         [$rdp_cookie_mstshash] [$rdp_cookie_msts]';\n\
         log_format s '$status $upstream_sticky_status [$upstream_addr]';\n\
         access_log logs/sticky.log s;\n\
         access_log logs/access.log l;\n{stream}\n}}\n"
    )
}

/// Starts a server that writes its name and then sends back what it receives.
fn named(name: &'static str) -> SocketAddr {
    accept(move |mut stream, _| {
        let mut from = stream.try_clone().expect("clone");
        let _ = stream.write_all(name.as_bytes());
        let _ = std::io::copy(&mut from, &mut stream);
    })
}

fn text(bytes: &str) -> Vec<u8> {
    [&u16::try_from(bytes.len()).expect("short").to_be_bytes(), bytes.as_bytes()].concat()
}

/// Returns a CONNECT packet of MQTT 5.0 with properties and a will.
fn mqtt(client_id: &str, user_name: &str) -> Vec<u8> {
    let head: &[u8] = b"\0\x04MQTT\x05\x86\0\x3c\x05\x11\0\0\0\x0a";
    let will = [b"\0".as_slice(), &text("topic"), &text("gone")].concat();
    let body = [head, &text(client_id), &will, &text(user_name)].concat();
    [&[0x10, u8::try_from(body.len()).expect("short")], body.as_slice()].concat()
}

/// Returns a connection request of RDP with a line.
fn rdp(line: &str) -> Vec<u8> {
    let length = 11 + line.len() + 2;
    let head = [3, 0, 0, length as u8, length as u8 - 5, 0xe0, 0, 0, 0, 0, 0];
    [head.as_slice(), line.as_bytes(), b"\r\n"].concat()
}

/// Sends a message and reads it back behind the name of a server, which is one letter.
fn server_of(stream: &mut TcpStream, message: &[u8]) -> char {
    stream.send(message);
    let mut answer = vec![0; 1 + message.len()];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer[1..], message);
    answer[0].into()
}

fn wait_for_line(server: &Server, line: &str) {
    wait_for_line_in(server, "logs/access.log", line);
}

fn wait_for_line_in(server: &Server, log: &str, line: &str) {
    wait_until(line, || server.read(log).lines().any(|l| l == line));
}

/// The client identifier leads to one server, also if its packet comes in single bytes, and the packet arrives whole.
#[test]
fn mqtt_is_routed_by_client_id() {
    let (a, b) = (named("A"), named("B"));
    let server = Server::start(conf(&format!(
        "upstream u {{ hash $mqtt_preread_clientid consistent; server {a}; server {b}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; mqtt_preread on; ssl_preread on; rdp_preread on; proxy_pass u; }}"
    )));
    let mut reached = Vec::new();
    for n in 0..12 {
        let packet = mqtt(&format!("sensor-{n}"), "alice");
        let first = server_of(&mut server.connect(), &packet);
        for _ in 0..4 {
            assert_eq!(server_of(&mut server.connect(), &packet), first);
        }
        reached.push(first);
    }
    assert!(reached.contains(&'A') && reached.contains(&'B'), "{reached:?}");
    let packet = mqtt("sensor-3", "alice");
    let mut slow = server.connect();
    slow.set_nodelay(true).expect("set");
    let (last, most) = packet.split_last().expect("bytes");
    most.iter().for_each(|byte| slow.send([*byte]));
    let mut answer = vec![0; 1 + packet.len()];
    slow.send([*last]);
    slow.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, [&[reached[3] as u8], packet.as_slice()].concat());
    drop(slow);
    wait_for_line(&server, "200 [sensor-3] [alice] [-] [-] [-]");
}

/// MQTT inside of TLS: the listener ends TLS, and the packet is read behind it.
#[test]
fn mqtt_is_read_behind_tls() {
    let a = named("A");
    let site = Site::new(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; ssl_certificate %DIR%/c.crt; ssl_certificate_key %DIR%/c.key;\n\
           mqtt_preread on; proxy_pass {a}; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_ssl on; proxy_pass 127.0.0.1:%PORT0%; }}"
    )));
    certificate(&site, "c");
    let server = Server::start_on(site);
    assert_eq!(server_of(&mut connect(server.addr(1)), &mqtt("behind", "tls")), 'A');
    wait_for_line(&server, "200 [behind] [tls] [-] [-] [-]");
}

/// Other protocols pass at once, with empty variables; limits of size and time hold.
#[test]
fn other_bytes_than_mqtt_are_passed_on() {
    let a = named("A");
    let server = Server::start(conf(&format!(
        "mqtt_preread on;\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_pass {a}; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass {a}; preread_buffer_size 16; }}\n\
         server {{ listen 127.0.0.1:%PORT2%; proxy_pass {a}; preread_timeout 50ms; }}"
    )));
    for other in [b"GET / HTTP/1.0\r\n".as_slice(), b"\x10\xff\xff\xff\xff", b"\x10\x10\0\x04MQTX"] {
        assert_eq!(server_of(&mut server.connect(), other), 'A');
    }
    wait_for_line(&server, "200 [-] [-] [-] [-] [-]");
    let ended = |port: usize, bytes: &[u8]| {
        let mut stream = connect(server.addr(port));
        stream.send(bytes);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    };
    ended(1, &mqtt("a-long-client-id", "")[..16]);
    server.wait_for_log("preread buffer full", 1);
    wait_for_line(&server, "400 [-] [-] [-] [-] [-]");
    ended(2, b"\x10");
    server.wait_for_log("client timed out (110: Connection timed out) while prereading client data", 1);
}

#[test]
fn rdp_is_routed_by_its_cookie() {
    let (a, b) = (named("A"), named("B"));
    let server = Server::start(conf(&format!(
        "map $rdp_cookie_mstshash $to {{ alice {a}; default {b}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; rdp_preread on; proxy_pass $to; }}"
    )));
    let ask = |message: &[u8]| server_of(&mut server.connect(), message);
    assert_eq!(ask(&rdp("Cookie: mstshash=alice")), 'A');
    assert_eq!(ask(&rdp("Cookie: mstshash=bob")), 'B');
    assert_eq!(ask(&rdp("Cookie: msts=3640205228.15629.0000")), 'B');
    assert_eq!(ask(&rdp("tsv://MS Terminal Services Plugin.1.x")), 'B');
    wait_for_line(&server, "200 [-] [-] [mstshash=alice] [alice] [-]");
    wait_for_line(&server, "200 [-] [-] [msts=3640205228.15629.0000] [-] [3640205228.15629.0000]");
    wait_for_line(&server, "200 [-] [-] [] [-] [-]");
    let mut slow = server.connect();
    slow.set_nodelay(true).expect("set");
    let request = rdp("Cookie: mstshash=alice");
    request.iter().for_each(|byte| slow.send([*byte]));
    let mut answer = vec![0; 1 + request.len()];
    slow.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, [b"A", request.as_slice()].concat());
}

/// Returns a group of two servers, of which nearly all sessions go to the first by weight.
fn weighted(a: &str, b: &str, sticky: &str) -> String {
    format!(
        "upstream u {{ zone u 64k; server {a} weight=50 fail_timeout=60s sid=a; server {b} sid=b; {sticky} }}\n"
    )
}

const LEARN: &str =
    "sticky learn create=$mqtt_preread_clientid lookup=$mqtt_preread_clientid zone=s:64k timeout=1h;";

/// A client stays at the server of its first session although the weights say otherwise, also after a reload.
#[test]
fn a_client_that_is_learnt_keeps_its_server() {
    let (a, b) = (named("A").to_string(), named("B").to_string());
    let text = conf(&format!(
        "{}server {{ listen 127.0.0.1:%PORT0%; mqtt_preread on; proxy_pass u; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; return former; }}",
        weighted(&a, &b, LEARN)
    ));
    let server = Server::start(&text);
    let ask = |id: &str| server_of(&mut server.connect(), &mqtt(id, ""));
    // The second server is the first one's for a session in 51.
    let mut ids = (0..60).map(|n| format!("client-{n}"));
    let at_b = ids.find(|id| ask(id) == 'B').expect("a session for the second server");
    let keeps = || (0..20).all(|_| ask(&at_b) == 'B') && (0..20).all(|_| ask("client-0") == 'A');
    assert!(keeps());
    wait_for_line_in(&server, "logs/sticky.log", &format!("200 NEW [{b}]"));
    wait_for_line_in(&server, "logs/sticky.log", &format!("200 HIT [{b}]"));
    let before = server.workers(server.pid());
    server.reload_with(text.replace("former", "next"));
    wait_until("the next configuration", || connect(server.addr(1)).rest() == "next");
    assert!(keeps());
    assert_eq!(server.workers(server.pid()), before);
}

/// A bound session goes elsewhere when its server is dead, and stays there.
#[test]
fn a_dead_sticky_server_gives_way() {
    let b = named("B").to_string();
    let dead = format!("127.0.0.1:{}", free_port());
    let server = Server::start(conf(&format!(
        "{}\
         server {{ listen 127.0.0.1:%PORT0%; mqtt_preread on; proxy_pass u; }}\n\
         {}\
         server {{ listen 127.0.0.1:%PORT1%; mqtt_preread on; proxy_pass v; }}\n",
        weighted(&dead, &b, "sticky route $mqtt_preread_username;"),
        weighted(&dead, &b, "sticky route $mqtt_preread_username; sticky_strict on;").replace(" u ", " v "),
    )));
    let ask = |name: &str| server_of(&mut server.connect(), &mqtt("c", name));
    assert_eq!(ask("b"), 'B');
    wait_for_line_in(&server, "logs/sticky.log", &format!("200 HIT [{b}]"));
    assert_eq!(ask("a"), 'B');
    wait_for_line_in(&server, "logs/sticky.log", &format!("200 HIT, MISS [{dead}, {b}]"));
    // A name of no server, and no name.
    assert_eq!(ask("x"), 'B');
    wait_for_line_in(&server, "logs/sticky.log", &format!("200 MISS [{b}]"));
    assert_eq!(ask(""), 'B');
    wait_for_line_in(&server, "logs/sticky.log", &format!("200 NEW [{b}]"));
    // A strict group has no other server for it.
    let mut strict = connect(server.addr(1));
    strict.send(mqtt("c", "a"));
    let mut rest = Vec::new();
    let _ = strict.read_to_end(&mut rest);
    assert_eq!(rest, b"");
    wait_for_line_in(&server, "logs/sticky.log", &format!("502 HIT, MISS [{dead}, v]"));
    assert_eq!(server_of(&mut connect(server.addr(1)), &mqtt("c", "b")), 'B');
}

/// With a secret the client has to send the MD5 of the name and the secret.
#[test]
fn a_route_may_need_a_secret() {
    let (a, b) = (named("A").to_string(), named("B").to_string());
    let sticky = "sticky route $rdp_cookie_msts; sticky_secret salt; sticky_strict on;";
    let server = Server::start(conf(&format!(
        "{}server {{ listen 127.0.0.1:%PORT0%; rdp_preread on; proxy_pass u; }}",
        weighted(&a, &b, sticky)
    )));
    let mut stream = server.connect();
    // printf bsalt | md5sum
    assert_eq!(server_of(&mut stream, &rdp("Cookie: msts=962d76aee3a009625027690183c56864")), 'B');
    let mut plain = server.send(rdp("Cookie: msts=b"));
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest);
    assert_eq!(rest, b"");
    wait_for_line_in(&server, "logs/sticky.log", "502 MISS [u]");
}

/// A session over UDP is learnt by the client's address.
#[test]
fn a_session_over_udp_is_learnt() {
    let echo = || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let addr = socket.local_addr().expect("address").to_string();
        std::thread::spawn(move || {
            let mut buf = [0; 10];
            while let Ok((_, from)) = socket.recv_from(&mut buf) {
                let _ = socket.send_to(socket.local_addr().expect("address").to_string().as_bytes(), from);
            }
        });
        addr
    };
    let learn = "sticky learn create=$remote_addr lookup=$remote_addr zone=s:64k;";
    let server = Server::start(conf(&format!(
        "upstream u {{ server {}; server {}; {learn} }}\n\
         server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass u; proxy_responses 1; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; return up; }}",
        echo(),
        echo()
    )));
    let ask = || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(DEADLINE)).expect("set");
        socket.send_to(b"x", server.addr(0)).expect("sent");
        let mut buf = [0; 30];
        let n = socket.recv(&mut buf).expect("an answer");
        buf[..n].to_vec()
    };
    let first = ask();
    assert!((0..9).all(|_| ask() == first));
}
