//! Ends of connections: idle, graceful, behind a reload, or by a client that vanishes.

use super::serve;
use forebay_http::h2::frame::{self, kind};
use forebay_testkit::{Server, Signal, Talk, h2, wait_for, wait_until};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

forebay_testkit::cases!("../cases/http2/ends.cases": keepalive_of_a_location_leaves_the_connection_open,
    keepalive_of_the_server_ends_the_connection);

#[test]
fn a_graceful_end_says_goodbye_and_answers_what_was_asked() {
    let server = serve("", "location /slow { limit_rate 20k; alias html/page; }");
    let mut idle = h2::Client::new(&server);
    idle.request(1, "/small", &[], true);
    assert!(idle.answer(1).ended);
    let mut busy = h2::Client::new(&server);
    busy.request(1, "/slow", &[], true);
    let first = loop {
        let f = busy.next().expect("a frame");
        if f.kind == kind::HEADERS {
            break f;
        }
    };
    assert_eq!(first.stream, 1);
    server.signal(Signal::SIGQUIT);
    assert_eq!(idle.goodbye(), Some(0));
    let mut n = 0;
    let mut goodbye = None;
    while let Some(f) = busy.next() {
        match f.kind {
            kind::DATA => n += f.payload.len(),
            kind::GOAWAY => goodbye = Some(f.code()),
            _ => {}
        }
    }
    assert_eq!((n, goodbye), (10_000, Some(0)));
}

/// A request that crosses the GOAWAY of a graceful end is answered: the first names no last request (RFC 9113, section 6.8).
#[test]
fn a_request_that_crosses_the_goodbye_is_answered() {
    let server = serve("", "location /slow { limit_rate 5k; alias html/page; }");
    let mut clients: Vec<h2::Client> = ["/small", "/slow"]
        .iter()
        .map(|path| {
            let mut client = h2::Client::new(&server);
            client.request(1, path, &[], true);
            while client.next().expect("a head").kind != kind::HEADERS {}
            client
        })
        .collect();
    server.signal(Signal::SIGQUIT);
    let last = |f: &h2::Frame| u32::from_be_bytes(f.payload[..4].try_into().expect("four bytes"));
    for client in &mut clients {
        let goodbye = std::iter::from_fn(|| client.next()).find(|f| f.kind == kind::GOAWAY).expect("GOAWAY");
        assert_eq!(last(&goodbye), (1 << 31) - 1);
        client.request(3, "/small", &[], true);
    }
    for mut client in clients {
        let rest: Vec<_> = std::iter::from_fn(|| client.next()).collect();
        assert!(rest.iter().any(|f| f.stream == 3 && f.kind == kind::DATA), "an answer");
        assert_eq!(rest.iter().filter(|f| f.kind == kind::GOAWAY).map(last).collect::<Vec<_>>(), [3]);
    }
}

/// An idle connection is closed after the default server's `keepalive_timeout`, and one without a request after
/// `client_header_timeout`. Other frames of the client do not change that.
#[test]
fn idle_connections_are_closed_in_time() {
    let server = serve("client_header_timeout 1s;", "keepalive_timeout 1s; location / { return 204; }");
    let (mut ping, mut long) = (Vec::new(), Vec::new());
    frame::push_header(&mut ping, 8, kind::PING, 0, 0);
    ping.extend_from_slice(b"together");
    frame::push_header(&mut long, 4096, 0xbb, 0, 0);
    long.resize(4096, 0);
    // PINGs are answered, but are no requests; nor is the beginning of a frame.
    for (all, step) in [(&b""[..], 1), (&ping.repeat(200), ping.len()), (&long, 1)] {
        for asks in [false, true] {
            let begin = || {
                let mut client = h2::Client::new(&server);
                if asks {
                    client.request(1, "/", &[], true);
                    assert_eq!(client.answer(1).field(":status"), "204");
                }
                client.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("timeout");
                (client, all.chunks(step))
            };
            let (mut client, mut pieces) = begin();
            let told = wait_for("the end", || {
                if !client.send(pieces.next().unwrap_or_default()) {
                    // A piece that crossed the end has reset the connection, and what the server said is lost: once more.
                    (client, pieces) = begin();
                }
                client.goodbye()
            });
            assert_eq!(told, 0, "{step} {asks}");
        }
    }
}

/// The end of a connection goes by its own server, not by the last that its runner had to do with.
#[test]
fn connections_without_requests_end_behind_a_reload() {
    let conf = |listen: &str, more: &str| {
        format!(
            "worker_processes 1; error_log logs/error.log info; events {{}} # %PORT1%\n\
             http {{ access_log off; http2 on; server {{ {listen} location / {{ return 204; }} {more} }} }}\n"
        )
    };
    let old: String = (0..20).map(|n| format!("location /{n} {{ return 204; }} ")).collect();
    let server = Server::start(conf("listen 127.0.0.1:%PORT0%;", &old));
    assert!(server.get("/19").starts_with("HTTP/1.1 204"));
    server.reload_with(conf("listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1%;", ""));
    // Nobody else is answered there before the new configuration is in effect.
    let connect = || wait_for("the new address", || TcpStream::connect(server.addr(1)).ok());
    let mut client = h2::Client::on(connect());
    client.frame(kind::GOAWAY, 0, 0, &[0; 8]);
    assert_eq!(client.goodbye(), None);
    let mut stranger = connect();
    stranger.send(b"nonsense\r\n\r\n");
    stranger.shutdown(Shutdown::Write).expect("half closed");
    let told = stranger.rest_bytes();
    assert!(told.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&told));
    assert!(server.get("/").starts_with("HTTP/1.1 204"));
    assert!(!server.error_log().contains("panic"), "{}", server.error_log());
}

#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    let server = serve("", "location /status { stub_status; }");
    for _ in 0..20 {
        let mut c = h2::Client::new(&server);
        for s in [1, 3, 5] {
            c.request(s, "/large", &[], true);
        }
        c.next();
    }
    wait_until("closed connections", || server.get("/status").contains("Active connections: 1 "));
}

/// A new revocation list applies to connections that stay open, too.
#[test]
fn a_reload_that_revokes_reaches_open_connections() {
    let site = crate::tls::site(
        "http2 on; server { listen 127.0.0.1:%PORT0% ssl; ssl_client_certificate ec.crt; ssl_verify_client on; \
         ssl_crl none.crl; return 200 $ssl_client_verify; }",
    );
    site.revocation_list("none.crl", false);
    site.revocation_list("revoked.crl", true);
    let server = Server::start_on(site);
    // openssl reads and writes the other end of a connection on which frames are made here.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let far = std::os::fd::OwnedFd::from(listener.accept().expect("accept").0);
    let mut openssl = std::process::Command::new("openssl")
        .args(["s_client", "-quiet", "-alpn", "h2", "-cert", "ec.crt", "-key", "ec.key", "-connect"])
        .arg(server.addr(0).to_string())
        .current_dir(server.dir())
        .stdin(far.try_clone().expect("clone"))
        .stdout(far)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("openssl");
    let mut client = h2::Client::on(near);
    let mut stream = 1;
    let mut get = || {
        stream += 2;
        client.request(stream, "/", &[], true);
        let answer = client.answer(stream);
        (answer.field(":status").to_owned(), String::from_utf8_lossy(&answer.body).into_owned())
    };
    assert_eq!(get(), ("200".to_owned(), "SUCCESS".to_owned()));
    let text = server.read("nginx.conf").replace("none.crl", "revoked.crl");
    server.reload_with(text);
    wait_for("the new list", || {
        let (status, body) = get();
        assert!(status == "200" || status == "400", "{status}");
        body.contains("The SSL certificate error").then_some(())
    });
    openssl.kill().expect("kill");
    openssl.wait().expect("end");
}
