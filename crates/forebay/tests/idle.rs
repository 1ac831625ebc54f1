//! Idle connections to upstreams are for all threads.

use forebay_testkit::{
    Conf, DEADLINE, Origin, P256, Server, Site, Talk, accept, ask, body, http, wait_until,
};
use std::collections::HashSet;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

fn conf(http: &str) -> Conf {
    http!("proxy_http_version 1.1; proxy_set_header Connection \"\"; {http}").workers(4)
}

fn group(upstream: impl std::fmt::Display, more: &str) -> Conf {
    conf(&format!(
        "upstream u {{ server {upstream}; {more} }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }}\n\
           location /other {{ proxy_pass http://u; }} }}"
    ))
}

/// `GET` by a connection of its own, so that any thread may get it.
fn get(addr: SocketAddr, uri: &str) -> String {
    ask(addr, format!("GET {uri} HTTP/1.0\r\n\r\n"))
}

#[test]
fn one_connection_is_enough_for_all_threads() {
    let peers = Arc::new(Mutex::new(HashSet::new()));
    let seen = peers.clone();
    let upstream = Origin::start(move |asked| {
        seen.lock().expect("lock").insert(asked.peer);
        let (fields, body) = match asked.target() {
            "/none" => ("", ""),
            _ => ("X: y\r\n", "text"),
        };
        asked.answer("200 OK", fields, body)
    });
    let server = Server::start(group(upstream, "keepalive 1;"));
    for n in 0..60 {
        let uri = ["/", "/none", "/other"][n % 3];
        assert!(get(server.addr(0), uri).starts_with("HTTP/1.1 200"));
    }
    assert_eq!(peers.lock().expect("lock").len(), 1);
}

/// The backend looks at one connection until its end: a second one would never be answered.
#[test]
fn a_backend_that_serves_one_connection_at_a_time() {
    let one_by_one = Mutex::new(());
    let upstream = accept(move |mut stream, _| {
        let _turn = one_by_one.lock().expect("lock");
        while !stream.head().is_empty() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
            std::thread::sleep(std::time::Duration::from_millis(2));
            let _ = stream.write_all(b"0\r\n\r\n");
        }
    });
    let server = Server::start(group(upstream, "keepalive 1;"));
    for _ in 0..40 {
        assert_eq!(body(&get(server.addr(0), "/")), "ok");
    }
}

#[test]
fn limits_hold_wherever_a_connection_is() {
    let upstream = Origin::start(|asked| {
        let body = asked.peer.port().to_string();
        asked.answer("200 OK", "", &body)
    });
    let ports = |server: &Server, uris: &[&str]| {
        let answers = uris.iter().map(|uri| body(&get(server.addr(0), uri)).to_owned());
        answers.collect::<HashSet<_>>().len()
    };
    // Three requests each.
    let server = Server::start(group(upstream, "keepalive 8; keepalive_requests 3;"));
    assert_eq!(ports(&server, &["/"; 30]), 10);
    // Each location its own.
    let server = Server::start(group(upstream, "keepalive 8 local;"));
    assert_eq!(ports(&server, &["/", "/other", "/", "/other", "/", "/other", "/", "/other"]), 2);
    // None is kept.
    let server = Server::start(group(upstream, "keepalive 0;"));
    assert_eq!(ports(&server, &["/"; 12]), 12);
}

#[test]
fn encrypted_connections_are_shared() {
    let answer = "return 200 \"$connection $server_protocol\";";
    let site = Site::new(conf(&format!(
        "upstream p {{ server 127.0.0.1:%PORT1%; keepalive 2; }} upstream t {{ server 127.0.0.1:%PORT2%; keepalive 2; }}\n\
         server {{ listen 127.0.0.1:%PORT0%;\n\
           location /tls {{ proxy_pass https://t; }}\n\
           location /h2 {{ proxy_http_version 2; proxy_pass http://p; }}\n\
           location /tls2 {{ proxy_http_version 2; proxy_pass https://t; }} }}\n\
         server {{ listen 127.0.0.1:%PORT1%; http2 on; location / {{ {answer} }} }}\n\
         server {{ listen 127.0.0.1:%PORT2% ssl; http2 on; ssl_certificate a.crt; ssl_certificate_key a.key;\n\
           location / {{ {answer} }} }}"
    )));
    site.certificate("a", P256, "a", "");
    let server = Server::start_on(site);
    // Those of HTTP/2 are their thread's: many requests share one at a time.
    for (uri, protocol, most) in [("/tls", "HTTP/1.1", 1), ("/h2", "HTTP/2.0", 4), ("/tls2", "HTTP/2.0", 4)] {
        let bodies: HashSet<_> = (0..30).map(|_| body(&get(server.addr(0), uri)).to_owned()).collect();
        assert!(bodies.len() <= most, "{uri}: {bodies:?}");
        assert!(bodies.iter().all(|b| b.ends_with(protocol)), "{uri}: {bodies:?}");
    }
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

/// Clients on `threads` threads ask until each has had `requests` answers, or `more` says so. Gives the number of answers.
fn load(addr: SocketAddr, threads: usize, more: impl Fn(usize) -> bool + Send + Sync + 'static) -> usize {
    let more = Arc::new(more);
    let clients: Vec<_> = (0..threads)
        .map(|_| {
            let more = more.clone();
            std::thread::spawn(move || {
                let mut n = 0;
                while more(n) {
                    let answer = get(addr, "/");
                    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("text"), "{answer:?}");
                    n += 1;
                }
                n
            })
        })
        .collect();
    clients.into_iter().map(|c| c.join().expect("no failure")).sum()
}

#[test]
fn threads_take_from_each_other_under_load() {
    let peers = Arc::new(Mutex::new(HashSet::new()));
    let seen = peers.clone();
    let upstream = Origin::start(move |asked| {
        seen.lock().expect("lock").insert(asked.peer);
        asked.answer("200 OK", "", "text")
    });
    let server = Server::start(group(upstream, "keepalive 16;"));
    assert_eq!(load(server.addr(0), 8, |n| n < 200), 1600);
    let opened = peers.lock().expect("lock").len();
    // At most eight are used at a time; one more is opened where another thread was just looking into a list.
    assert!(opened <= 24, "{opened} connections for eight clients");
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

#[test]
fn an_upstream_that_closes_costs_no_request() {
    let asked_of = AtomicUsize::new(0);
    let upstream = Origin::start(move |asked| {
        asked.answer("200 OK", "", "text");
        // It does not say so.
        !asked_of.fetch_add(1, SeqCst).is_multiple_of(3)
    });
    let server = Server::start(group(upstream, "keepalive 16;"));
    assert_eq!(load(server.addr(0), 6, |n| n < 150), 900);
}

#[test]
fn reloads_while_connections_change_hands() {
    let upstream = Origin::start(|asked| asked.answer("200 OK", "", "text"));
    let server = Server::start(group(upstream, "keepalive 16;"));
    let done = Arc::new(AtomicBool::new(false));
    let (addr, end) = (server.addr(0), done.clone());
    let clients = std::thread::spawn(move || load(addr, 4, move |_| !end.load(SeqCst)));
    for n in 1..=10 {
        server.reload();
        server.wait_for_log(": reconfiguring", n);
    }
    done.store(true, SeqCst);
    assert!(clients.join().expect("no failure") > 0);
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

/// Nobody uses the connections of a former configuration any more.
#[test]
fn a_reload_closes_idle_connections() {
    let upstream = Origin::start(|asked| asked.answer("200 OK", "", "text"));
    let open = || upstream.opened() - upstream.closed();
    let server = Server::start(group(upstream, "keepalive 16; keepalive_timeout 300s;"));
    load(server.addr(0), 4, |n| n < 20);
    assert!(open() > 0);
    let begun = Instant::now();
    server.reload();
    wait_until("all connections to be closed", || open() == 0);
    assert!(begun.elapsed() < DEADLINE);
    assert_eq!(body(&get(server.addr(0), "/")), "text");
}
