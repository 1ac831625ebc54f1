//! Sessions of datagrams over unix sockets.

use crate::stream_udp::{conf, wait_for_lines};
use forebay_testkit::{
    DEADLINE, Echo, Oracle, Server, Signal, Site, alive, kill, oracle, run, wait_for, wait_until,
};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

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

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

#[test]
fn clients_with_names_have_sessions() {
    let echo = Echo::start();
    let server = Server::start(conf(
        MAIN,
        &format!(
            "server {{ listen unix:%DIR%/u.sock udp rcvbuf=64k; proxy_pass {}; proxy_timeout 500ms; }}\n\
             server {{ listen unix:%DIR%/t.sock; return tcp; }}\n\
             server {{ listen unix:%DIR%/r.sock udp; allow unix:; deny all;\n\
               return '$remote_addr|$binary_remote_addr|$remote_port|$server_addr|$server_port|$protocol'; }}\n\
             server {{ listen unix:%DIR%/d.sock udp; deny unix:; return no; }}",
            echo.addr
        ),
    ));
    let dir = server.dir();
    assert_eq!(["u.sock", "t.sock", "r.sock"].map(|name| mode(&dir.join(name))), [0o666; 3]);
    let client = named(&server.site, "c", "u.sock");
    let first = ask(&client, "x");
    let port = first.strip_suffix(" x").expect("a port").to_owned();
    for _ in 0..20 {
        assert_eq!(ask(&client, "x"), first, "one session, in one thread");
    }
    // More than leave in one piece over UDP, in both directions.
    (0..8).for_each(|n| assert_eq!(client.send(&[b'0' + n; 9]).expect("sent"), 9));
    for n in 0..8 {
        assert_eq!(receive(&client), format!("{port} {}", n.to_string().repeat(9)));
    }
    let large = "y".repeat(60_000);
    assert_eq!(ask(&client, &large), format!("{port} {large}"));
    assert_eq!(ask(&client, ""), format!("{port} "));
    let abstract_name = SocketAddr::from_abstract_name(dir.as_os_str().as_encoded_bytes()).expect("name");
    let other = connect(UnixDatagram::bind_addr(&abstract_name).expect("bind"), &server.site, "u.sock");
    let second = ask(&other, "x");
    assert_ne!(second, first);
    assert_eq!(ask(&other, "x"), second);
    let asking = named(&server.site, "r", "r.sock");
    let (path, at) = (dir.join("r"), dir.join("r.sock"));
    let name = format!("unix:{}", path.display());
    assert_eq!(ask(&asking, "?"), format!("{name}|{name}||unix:{}||UDP", at.display()));
    named(&server.site, "d", "d.sock").send(b"abc").expect("sent");
    let refused = "access forbidden by rule while initializing session, udp client: unix:";
    server.wait_for_log(format!("{refused}{}, server: unix:", dir.join("d").display()), 1);
    server.wait_for_log(format!("udp client unix:{} connected to unix:", dir.join("c").display()), 1);
    let mut stream = std::os::unix::net::UnixStream::connect(dir.join("t.sock")).expect("connected");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).expect("read");
    assert_eq!(text, "tcp");
}

/// Each datagram of a client without a name is a session, which its answer ends.
#[test]
fn clients_without_names_get_no_answers() {
    let echo = Echo::start();
    let server = Server::start(conf(
        MAIN,
        &format!(
            "server {{ listen unix:%DIR%/u.sock udp; proxy_pass {}; }}\n\
             server {{ listen unix:%DIR%/r.sock udp; return text; }}",
            echo.addr
        ),
    ));
    let client = connect(UnixDatagram::unbound().expect("socket"), &server.site, "u.sock");
    (0..3).for_each(|_| assert_eq!(client.send(b"abc").expect("sent"), 3));
    let log = wait_for_lines(&server, 3);
    assert!(log.lines().all(|line| line.starts_with("200 UDP 3 0 unix:")), "{log}");
    server.wait_for_log("udp client unix: connected to unix:", 3);
    connect(UnixDatagram::unbound().expect("socket"), &server.site, "r.sock").send(b"?").expect("sent");
    assert!(wait_for_lines(&server, 4).contains("500 UDP 1 0 unix:"));
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

/// Sessions stay over a reload; the file goes with its listener, and with the program.
#[test]
fn files_live_as_long_as_their_listeners() {
    let echo = Echo::start();
    let kept = format!("server {{ listen unix:%DIR%/u.sock udp; proxy_pass {}; }}", echo.addr);
    let gone = "server { listen unix:%DIR%/g.sock udp; return gone; }";
    let mut server = Server::start(conf(MAIN, &format!("{kept}\n{gone}")));
    let dir = server.dir().to_owned();
    let client = named(&server.site, "c", "u.sock");
    let session = ask(&client, "x");
    assert_eq!(ask(&named(&server.site, "g", "g.sock"), "x"), "gone");
    let text = server.read("nginx.conf");
    assert!(text.contains("listen unix:") && dir.join("g.sock").exists());
    let without: String =
        text.lines().filter(|line| !line.contains("g.sock")).map(|l| format!("{l}\n")).collect();
    server.reload_with(without);
    wait_until("the end of the file", || !dir.join("g.sock").exists());
    assert_eq!(ask(&client, "x"), session);
    server.signal(Signal::SIGQUIT);
    wait_until("the end of the file", || !dir.join("u.sock").exists());
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_end(), Some(0));
}

/// The next process receives from the same socket, and the file stays.
#[test]
fn an_upgrade_of_the_program_keeps_the_file() {
    let text = "server { listen unix:%DIR%/u.sock udp; return $pid; }";
    let server = Server::start_daemon(conf(MAIN, text));
    let (old, at) = (server.pid(), server.dir().join("u.sock"));
    let client = named(&server.site, "c", "u.sock");
    let former = ask(&client, "x");
    server.signal(Signal::SIGUSR2);
    let new = wait_for("a new master", || server.pid_in_file().filter(|pid| *pid != old));
    let worker = wait_for("its worker", || server.workers(new).first().copied());
    kill(old, Signal::SIGQUIT);
    wait_until("the end of the old process", || !alive(old));
    assert!(at.exists());
    assert_eq!(ask(&client, "x"), worker.to_string());
    assert_ne!(former, worker.to_string());
}

#[test]
fn a_file_that_a_killed_server_left_is_replaced() {
    let site = Site::new(conf(MAIN, "server { listen unix:%DIR%/u.sock udp; return hi; }"));
    drop(UnixDatagram::bind(site.dir().join("u.sock")).expect("bind"));
    let server = Server::start_on(site);
    assert_eq!(ask(&named(&server.site, "c", "u.sock"), "x"), "hi");
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
