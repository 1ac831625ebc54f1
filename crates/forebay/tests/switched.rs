//! Connections that leave HTTP: their requests end as others do, though only the relay is left of them meanwhile.

use forebay_testkit::{
    DEADLINE, Oracle, Server, Site, Talk, accept, connect, memory, oracle, reset, wait_for,
};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

/// Starts a server that switches to a protocol which echoes, until the client has sent `end`.
fn echo() -> SocketAddr {
    accept(move |mut stream, _| {
        stream.until("\r\n\r\n");
        let head =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\nX-Up: yes\r\n\r\n";
        stream.send(head);
        let text = stream.until("end");
        let _ = stream.write_all(text.as_bytes());
    })
}

/// Starts a server that switches to another protocol and resets the connection.
fn resetting() -> SocketAddr {
    accept(|mut stream, _| {
        stream.head();
        stream.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
        // Once the client has the head, it sends a byte.
        stream.until("x");
        reset(&stream);
    })
}

fn open(addr: SocketAddr) -> TcpStream {
    let mut stream = connect(addr);
    let head = "GET /chat/room?x=7 HTTP/1.1\r\nHost: h.example\r\nConnection: upgrade\r\nUpgrade: x\r\n\
                Authorization: Basic bWU6c2VjcmV0\r\nUser-Agent: \"me\"\r\n\r\n";
    stream.send(head);
    stream
}

fn site(up: SocketAddr) -> Site {
    Site::new(format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;\n\
         map $arg_x $kind {{ 7 seven; default none; }}\n\
         map $status:$body_bytes_sent $size {{ ~:0$ nothing; ~^101:(.)...$ $1thousand; default some; }}\n\
         map $size $loggable {{ nothing 0; default 1; }}\n\
         limit_conn_zone $server_name zone=z:64k;\n\
         log_format l '$remote_addr $remote_user \"$request\" $status $body_bytes_sent $request_length '\n\
         '\"$http_user_agent\" $http_host $arg_x $kind $size $part $room $upstream_status $upstream_http_x_up '\n\
         '$upstream_bytes_sent $upstream_bytes_received $sent_http_upgrade $connection_requests '\n\
         '$request_completion $limit_conn_status $server_name $uri $absent_no [$https] $scheme';\n\
         map $arg_none $absent_no {{ default \"\"; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; server_name h.example; set $part $arg_x$kind;\n\
         location ~ ^/chat/(?<room>\\w+) {{ limit_conn z 1; access_log logs/access.log l; access_log logs/some.log l if=$loggable;\n\
         proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;\n\
         proxy_read_timeout 500ms; proxy_pass http://{up}; }} }} }}"
    ))
}

/// Runs a dialogue of two connections: one that is closed, and one that is silent for too long.
fn talk(addr: SocketAddr) {
    let mut stream = open(addr);
    assert!(stream.until("\r\n\r\n").starts_with("HTTP/1.1 101 "));
    // Its place is taken until it ends.
    let refused = open(addr).until("\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    let text = "x".repeat(2000) + "end";
    stream.send(&text);
    assert_eq!(stream.until("end"), text);
    assert_eq!(stream.until("closed"), "");
    let mut silent = wait_for("a place", || {
        let mut stream = open(addr);
        stream.until("\r\n\r\n").starts_with("HTTP/1.1 101 ").then_some(stream)
    });
    assert_eq!(silent.until("closed"), "");
}

/// A connection that has left HTTP keeps neither a runner nor its request, whatever else the configuration has.
#[test]
fn switched_connections_take_little_memory() {
    const MANY: usize = 300;
    // Bytes for each. With a runner and its request it is 12,800 in a build for tests.
    const MOST: u64 = 6000;
    let up = echo();
    let server = Server::start(format!(
        "worker_processes 1; error_log logs/error.log; pid logs/nginx.pid; events {{ worker_connections 4096; }}\n\
         http {{ access_log logs/access.log; proxy_cache_path %DIR%/c keys_zone=c:1m; log_format l $upstream_cache_status;\n\
         server {{ listen 127.0.0.1:%PORT0%; status_zone front; location /stored {{ proxy_cache c; proxy_pass http://{up}; }}\n\
         location / {{ proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; proxy_pass http://{up}; }} }} }}"
    ));
    let switched = |count: usize| -> Vec<TcpStream> {
        let one = |_| {
            let mut stream = open(server.addr(0));
            assert!(stream.until("\r\n\r\n").starts_with("HTTP/1.1 101 "));
            stream
        };
        (0..count).map(one).collect()
    };
    let warm = switched(20);
    let before = memory(server.worker());
    let mut many = switched(MANY);
    let each = memory(server.worker()).saturating_sub(before) * 1024 / MANY as u64;
    assert!(each < MOST, "{each} bytes for a connection");
    drop(warm);
    many[0].send("passed on end");
    assert_eq!(many[0].until("end"), "passed on end");
}

/// The lines of the access log and of the error log are those of nginx, with values from the beginning and from the end.
#[test]
fn a_switched_connection_is_logged_at_its_end() {
    let up = echo();
    let lines = |site: &Site| {
        wait_for("lines", || {
            let lines = |name: &str| -> Vec<String> {
                let text = site.read(name);
                text.lines().filter(|l| l.contains(" 101 ")).map(str::to_owned).collect()
            };
            let (all, some) = (lines("logs/access.log"), lines("logs/some.log"));
            (all.len() == 2 && some.len() == 1).then_some((all, some))
        })
    };
    let server = Server::start_on(site(up));
    talk(server.addr(0));
    let ours = lines(&server.site);
    server.wait_for_log(format!(
            "upstream timed out (110: Connection timed out) while proxying upgraded connection, client: 127.0.0.1, \
             server: h.example, request: \"GET /chat/room?x=7 HTTP/1.1\", upstream: \"http://{up}/chat/room?x=7\", \
             host: \"h.example\""
        ), 1);
    assert!(ours.0[0].contains(" me \"GET /chat/room?x=7 HTTP/1.1\" 101 2003 "), "{ours:?}");
    if let Some(nginx) = oracle() {
        let oracle = Oracle::start(&nginx, site(up));
        talk(oracle.addr());
        assert_eq!(ours, lines(oracle.site()));
    }
}

/// A server that resets a switched connection is an error in the log, in nginx's words.
#[test]
fn a_reset_of_a_switched_connection_is_logged() {
    let up = resetting();
    let text = |site: &Site| {
        wait_for("a line", || {
            let log = site.read("logs/error.log");
            let line = log.lines().find(|l| l.contains("[error]") && l.contains("recv() failed"))?;
            let (_, text) = line.split_once(": *")?;
            Some(text.split_once(' ')?.1.to_owned())
        })
    };
    let talk = |addr: SocketAddr| {
        let mut stream = open(addr);
        assert!(stream.until("\r\n\r\n").starts_with("HTTP/1.1 101 "));
        stream.send(b"x");
        stream.until("closed");
    };
    let server = Server::start_on(site(up));
    talk(server.addr(0));
    let ours = text(&server.site);
    assert!(
        ours.starts_with(
            "recv() failed (104: Connection reset by peer) while proxying upgraded connection, client: "
        ),
        "{ours}"
    );
    if let Some(nginx) = oracle() {
        let oracle = Oracle::start(&nginx, site(up));
        talk(oracle.addr());
        assert_eq!(ours, text(oracle.site()));
    }
}

/// The connections that the log counts are those at the end of a request, not those at the beginning of its tunnel.
#[test]
fn numbers_of_connections_are_those_of_the_end() {
    let up = echo();
    let server = Server::start(format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;\n\
         log_format l '$status $connections_active $connections_waiting';\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ return 200 here; access_log off; }}\n\
         location /chat {{ access_log logs/access.log l; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;\n\
         proxy_set_header Connection upgrade; proxy_pass http://{up}; }} }} }}"
    ));
    let mut tunnel = open(server.addr(0));
    assert!(tunnel.until("\r\n\r\n").starts_with("HTTP/1.1 101 "));
    let kept: Vec<_> = (0..5).map(|_| server.connect()).collect();
    for mut stream in &kept {
        stream.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
        assert!(stream.try_clone().expect("clone").until("here").ends_with("here"));
    }
    tunnel.send(b"end");
    assert_eq!(tunnel.until("closed"), "end");
    let line = wait_for("a line", || {
        let log = server.read("logs/access.log");
        log.strip_suffix('\n').map(str::to_owned)
    });
    // The harness may have left one that is about to close.
    assert!(["101 6 5", "101 7 5", "101 7 6"].contains(&line.as_str()), "{line}");
}
