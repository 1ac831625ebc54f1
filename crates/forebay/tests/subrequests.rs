//! Subrequests, limits of requests under way, and smaller parts of the proxy.

use forebay_testkit::{Origin, Server, Talk, http, raw, server, tool, wait_until};
use std::io::Read;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

forebay_testkit::cases!("cases/subrequests.cases":
    another_location_decides_on_access, the_method_of_the_client_is_told, copies_go_elsewhere,
    connections_come_from_where_they_are_told_to, connect_makes_a_tunnel, errors_of_a_post_action_are_of_the_request,
    an_answer_without_a_head_is_no_consent, the_page_of_a_refusal_is_no_consent);

#[test]
fn large_bodies_find_their_directory() {
    let up = Origin::start(|asked| {
        let body = asked.text.split("\r\n\r\n").nth(1).map_or(0, str::len);
        asked.answer("200 OK", "", format!("{body} bytes"))
    });
    let conf = format!(
        "pid logs/nginx.pid; error_log logs/error.log; events {{}}\n\
         http {{ access_log off; server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{up}; }} }} }}"
    );
    let server = Server::start(conf);
    assert!(server.dir().join("client_body_temp").is_dir());
    assert!(server.dir().join("proxy_temp").is_dir());
    let head = "POST / HTTP/1.0\r\nContent-Length: 100000\r\n\r\n";
    let answer = server.raw([head.as_bytes(), &[b'x'; 100_000]].concat());
    assert!(String::from_utf8_lossy(&answer).ends_with("100000 bytes"), "{}", server.error_log());
}

#[test]
fn requests_under_way_are_limited() {
    let (held, wait) = (mpsc::channel::<()>(), Arc::new(Mutex::new(())));
    let begun = Mutex::new(held.0);
    let gate = wait.clone();
    let up = Origin::start(move |asked| {
        let _ = begun.lock().expect("sender").send(());
        drop(gate.lock());
        asked.answer("200 OK", "", "well")
    });
    let text = http!(
        "limit_conn_zone $arg_k zone=z:1m; limit_conn_status 429;\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ limit_conn z 1; proxy_pass http://{up}; }}\n\
         location /dry {{ limit_conn z 1; limit_conn_dry_run on; add_header X-S $limit_conn_status; empty_gif; }} }}"
    );
    let server = Server::start(&text);
    let shut = wait.lock().expect("gate");
    let addr = server.addr(0);
    let first = std::thread::spawn(move || raw(addr, b"GET /?k=1 HTTP/1.0\r\n\r\n"));
    held.1.recv_timeout(Duration::from_secs(20)).expect("the first");
    assert!(server.get("/?k=1").starts_with("HTTP/1.1 429"));
    assert!(server.get("/dry?k=1").contains("X-S: REJECTED_DRY_RUN"));
    assert!(server.get("/dry?k=2").contains("X-S: PASSED"));
    // Who is in is known after a reload.
    server.reload();
    server.wait_for_log("reconfiguring", 1);
    assert!(server.get("/?k=1").starts_with("HTTP/1.1 429"));
    drop(shut);
    assert!(String::from_utf8_lossy(&first.join().expect("answer")).ends_with("well"));
    wait_until("a place", || server.get("/?k=1").starts_with("HTTP/1.1 200"));
    assert!(server.error_log().contains("limiting connections by zone \"z\""));
}

#[test]
fn hints_come_early() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let up = Origin::start(move |asked| {
        asked.write(b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\nServer: x\r\n\r\n");
        let _ = wait.lock().expect("receiver").recv_timeout(Duration::from_secs(20));
        asked.answer("200 OK", "", "well")
    });
    let server = server!("early_hints $arg_h; location / {{ proxy_pass http://{up}; }}").start();
    let mut client = server.connect();
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    client.send(b"GET /?h=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut hint = vec![0; 64];
    let n = client.read(&mut hint).expect("the hint, before the answer");
    assert_eq!(&hint[..n], b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\n\r\n");
    go.send(()).expect("the upstream waits");
    let rest = client.rest();
    assert!(rest.starts_with("HTTP/1.1 200 OK") && rest.ends_with("well"), "{rest}");
    go.send(()).expect("the upstream waits");
    assert!(server.get("/?h=0").starts_with("HTTP/1.1 200"));
}

#[test]
fn hints_come_early_by_http2() {
    if !tool("curl") {
        return;
    }
    let up = Origin::start(|asked| {
        asked.write(b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\n\r\n");
        asked.answer("200 OK", "", "well")
    });
    let server = server!("http2 on; early_hints 1; location / {{ proxy_pass http://{up}; }}").start();
    let url = format!("http://{}/", server.addr(0));
    let out = std::process::Command::new("curl").args(["-si", "--http2-prior-knowledge", &url]).output();
    let text = String::from_utf8_lossy(&out.expect("curl runs").stdout).into_owned();
    assert!(text.starts_with("HTTP/2 103 \r\nlink: </s.css>; rel=preload\r\n\r\nHTTP/2 200 \r\n"), "{text}");
    assert!(text.ends_with("well"), "{text}");
}
