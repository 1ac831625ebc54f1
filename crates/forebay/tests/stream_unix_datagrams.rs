//! Sessions of datagrams over unix sockets.

use crate::stream_udp::{conf, wait_for_lines};
use forebay_testkit::{DEADLINE, Oracle, Server, Site, oracle, run, wait_for};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;

forebay_testkit::cases!("cases/stream_unix_datagrams.cases":
    clients_with_names_have_sessions, clients_without_names_get_no_answers, files_live_as_long_as_their_listeners,
    an_upgrade_of_the_program_keeps_the_file, a_file_that_a_killed_server_left_is_replaced);

const MAIN: &str = "worker_processes 3; events { worker_connections 64; }";

/// Client with a path, which the server may write to.
fn named(site: &Site, name: &str, to: &str) -> UnixDatagram {
    let path = site.dir().join(name);
    let socket = UnixDatagram::bind(&path).expect("bind");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("mode");
    connect(socket, site, to)
}

fn connect(socket: UnixDatagram, site: &Site, to: &str) -> UnixDatagram {
    socket.connect(site.dir().join(to)).expect("connected");
    socket.set_read_timeout(Some(DEADLINE)).expect("timeout");
    socket
}

fn receive(socket: &UnixDatagram) -> String {
    let mut buf = [0; 65536];
    let count = socket.recv(&mut buf).expect("a datagram");
    String::from_utf8_lossy(&buf[..count]).into_owned()
}

fn ask(socket: &UnixDatagram, text: &str) -> String {
    socket.send(text.as_bytes()).expect("sent");
    receive(socket)
}

/// The server receives every datagram by itself. As in nginx it gets no name that it could answer to.
#[test]
fn servers_with_unix_sockets() {
    let site = Site::new(conf(
        MAIN,
        "upstream back { server unix:%DIR%/b.sock; }\n\
         server { listen unix:%DIR%/u.sock udp; proxy_pass back; proxy_responses 1; proxy_timeout 300ms; }\n\
         server { listen 127.0.0.1:%PORT0% udp; proxy_pass unix:%DIR%/b.sock; proxy_responses 0; }\n\
         server { listen unix:%DIR%/n.sock udp; proxy_pass unix:%DIR%/none; }",
    ));
    let back = UnixDatagram::bind(site.dir().join("b.sock")).expect("bind");
    back.set_read_timeout(Some(DEADLINE)).expect("timeout");
    std::fs::set_permissions(site.dir().join("b.sock"), std::fs::Permissions::from_mode(0o777))
        .expect("mode");
    let server = Server::start_on(site);
    let client = named(&server.site, "c", "u.sock");
    (0..8).for_each(|n| assert_eq!(client.send(&[n; 9]).expect("sent"), 9));
    for n in 0..8 {
        let mut buf = [0; 99];
        let (count, from) = back.recv_from(&mut buf).expect("a datagram");
        assert_eq!((&buf[..count], from.is_unnamed()), (&[n; 9][..], true));
    }
    let text = "upstream timed out (110: Connection timed out) while proxying connection, udp client: unix:";
    server.wait_for_log(text, 1);
    let inet = forebay_testkit::udp(server.addr(0));
    inet.send(b"inet").expect("sent");
    assert_eq!(receive(&back), "inet");
    named(&server.site, "n", "n.sock").send(b"x").expect("sent");
    server.wait_for_log("connect() to unix:", 1);
    let log = wait_for_lines(&server, 3);
    assert!(log.contains("502 UDP 72 0 unix:") && log.contains("200 UDP 4 0 127.0.0.1 [unix:"), "{log}");
}

/// Returns what clients of a program see, and the lines of its access log.
fn observed(site: &Site) -> (Vec<String>, Vec<String>) {
    let mut seen = Vec::new();
    let client = named(site, "c", "u.sock");
    seen.extend(["one", "two"].map(|text| ask(&client, text)));
    seen.push(ask(&named(site, "r", "r.sock"), "?"));
    let nameless = |to| connect(UnixDatagram::unbound().expect("socket"), site, to);
    nameless("u.sock").send(b"nameless").expect("sent");
    nameless("r.sock").send(b"nameless").expect("sent");
    named(site, "d", "d.sock").send(b"denied").expect("sent");
    named(site, "b", "b.sock").send(b"backend").expect("sent");
    let dir = site.dir().display().to_string();
    let log = wait_for("lines of the access log", || {
        let log = site.read("logs/access.log");
        (log.lines().count() >= 6).then_some(log)
    });
    let mut lines: Vec<String> = log.lines().map(|line| line.replace(&dir, "")).collect();
    lines.sort();
    (seen.into_iter().map(|text| text.replace(&dir, "")).collect(), lines)
}

#[test]
fn as_in_nginx() {
    let Some(nginx) = oracle() else { return };
    let known = run(&nginx, &["-V"]).is_some_and(|(_, _, built)| built.contains("--with-stream "));
    if !known {
        println!("skipped: {nginx} has no stream module built in");
        return;
    }
    // Answers without the port, which differs.
    let echo = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    let addr = echo.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut buf = [0; 99];
        while let Ok((count, from)) = echo.recv_from(&mut buf) {
            let _ = echo.send_to(&buf[..count], from);
        }
    });
    let text = format!(
        "worker_processes 1; pid logs/nginx.pid; error_log logs/error.log info; events {{}}\n\
         stream {{ log_format l '$protocol $remote_addr|$remote_port|$binary_remote_addr|$server_addr|$server_port|\
         $status $bytes_received $bytes_sent $upstream_addr $upstream_bytes_sent'; access_log logs/access.log l;\n\
         server {{ listen 127.0.0.1:%PORT0%; access_log off; return ready; }}\n\
         server {{ listen unix:%DIR%/u.sock udp; proxy_pass {addr}; proxy_timeout 400ms; }}\n\
         server {{ listen unix:%DIR%/r.sock udp; return '$remote_addr $protocol'; }}\n\
         server {{ listen unix:%DIR%/d.sock udp; allow 127.0.0.1; deny unix:; return no; }}\n\
         server {{ listen unix:%DIR%/b.sock udp; proxy_pass unix:%DIR%/back.sock; proxy_responses 1;\n\
           proxy_timeout 400ms; }} }}\n"
    );
    let bind_back = |site: &Site| {
        let path = site.dir().join("back.sock");
        let back = UnixDatagram::bind(&path).expect("bind");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("mode");
        back
    };
    let site = Site::new(&text);
    let _ours = bind_back(&site);
    let server = Server::start_on(site);
    let ours = observed(&server.site);
    let site = Site::new(&text);
    let _theirs = bind_back(&site);
    let oracle = Oracle::start(&nginx, site);
    assert_eq!(ours, observed(oracle.site()));
}
