//! The stream block: sessions that are routed by their first message, and sessions that stick to a server.

use crate::harness::{Server, Site, wait_for};
use crate::health::certificate;
use crate::stream::connect;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

fn conf(stream: &str) -> String {
    format!(
        "worker_processes 2; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\nstream {{\n\
         log_format l '$status [$mqtt_preread_clientid] [$mqtt_preread_username] [$rdp_cookie] \
         [$rdp_cookie_mstshash] [$rdp_cookie_msts]';\n\
         access_log logs/access.log l;\n{stream}\n}}\n"
    )
}

/// Starts a server that writes its name and then sends back what it receives.
fn named(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut from = stream.try_clone().expect("clone");
                let _ = stream.write_all(name.as_bytes());
                let _ = std::io::copy(&mut from, &mut stream);
            });
        }
    });
    addr
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
    stream.write_all(message).expect("sent");
    let mut answer = vec![0; 1 + message.len()];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer[1..], message);
    answer[0].into()
}

fn wait_for_line(server: &Server, line: &str) {
    wait_for(line, || server.site.read("logs/access.log").lines().any(|l| l == line).then_some(()));
}

/// The client identifier leads to one server, also if its packet comes in single bytes, and the packet arrives whole.
#[test]
fn mqtt_is_routed_by_client_id() {
    let (a, b) = (named("A"), named("B"));
    let server = Server::start(&conf(&format!(
        "upstream u {{ hash $mqtt_preread_clientid consistent; server {a}; server {b}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; mqtt_preread on; ssl_preread on; rdp_preread on; proxy_pass u; }}"
    )));
    let mut reached = Vec::new();
    for n in 0..12 {
        let packet = mqtt(&format!("sensor-{n}"), "alice");
        let first = server_of(&mut connect(server.addr(0)), &packet);
        for _ in 0..4 {
            assert_eq!(server_of(&mut connect(server.addr(0)), &packet), first);
        }
        reached.push(first);
    }
    assert!(reached.contains(&'A') && reached.contains(&'B'), "{reached:?}");
    let packet = mqtt("sensor-3", "alice");
    let mut slow = connect(server.addr(0));
    slow.set_nodelay(true).expect("set");
    let (last, most) = packet.split_last().expect("bytes");
    most.iter().for_each(|byte| slow.write_all(&[*byte]).expect("sent"));
    let mut answer = vec![0; 1 + packet.len()];
    slow.write_all(&[*last]).expect("sent");
    slow.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, [&[reached[3] as u8], packet.as_slice()].concat());
    drop(slow);
    wait_for_line(&server, "200 [sensor-3] [alice] [-] [-] [-]");
}

/// MQTT inside of TLS: the listener ends TLS, and the packet is read behind it.
#[test]
fn mqtt_is_read_behind_tls() {
    let a = named("A");
    let site = Site::new(&conf(&format!(
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
fn what_is_no_mqtt_is_passed_on() {
    let a = named("A");
    let server = Server::start(&conf(&format!(
        "mqtt_preread on;\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_pass {a}; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass {a}; preread_buffer_size 16; }}\n\
         server {{ listen 127.0.0.1:%PORT2%; proxy_pass {a}; preread_timeout 50ms; }}"
    )));
    for other in [b"GET / HTTP/1.0\r\n".as_slice(), b"\x10\xff\xff\xff\xff", b"\x10\x10\0\x04MQTX"] {
        assert_eq!(server_of(&mut connect(server.addr(0)), other), 'A');
    }
    wait_for_line(&server, "200 [-] [-] [-] [-] [-]");
    let ended = |port: usize, bytes: &[u8]| {
        let mut stream = connect(server.addr(port));
        stream.write_all(bytes).expect("sent");
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
    let server = Server::start(&conf(&format!(
        "map $rdp_cookie_mstshash $to {{ alice {a}; default {b}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; rdp_preread on; proxy_pass $to; }}"
    )));
    let ask = |message: &[u8]| server_of(&mut connect(server.addr(0)), message);
    assert_eq!(ask(&rdp("Cookie: mstshash=alice")), 'A');
    assert_eq!(ask(&rdp("Cookie: mstshash=bob")), 'B');
    assert_eq!(ask(&rdp("Cookie: msts=3640205228.15629.0000")), 'B');
    assert_eq!(ask(&rdp("tsv://MS Terminal Services Plugin.1.x")), 'B');
    wait_for_line(&server, "200 [-] [-] [mstshash=alice] [alice] [-]");
    wait_for_line(&server, "200 [-] [-] [msts=3640205228.15629.0000] [-] [3640205228.15629.0000]");
    wait_for_line(&server, "200 [-] [-] [] [-] [-]");
    let mut slow = connect(server.addr(0));
    slow.set_nodelay(true).expect("set");
    let request = rdp("Cookie: mstshash=alice");
    request.iter().for_each(|byte| slow.write_all(&[*byte]).expect("sent"));
    let mut answer = vec![0; 1 + request.len()];
    slow.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, [b"A", request.as_slice()].concat());
}
