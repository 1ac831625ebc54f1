//! Under load: reloads lose nothing, slow clients take nothing down, a browser shows the demo site.

use crate::differential::tool;
use crate::harness::{PROGRAM, Server, Site, free_port, kill, wait_for};
use nix::sys::signal::Signal;
use std::process::{Command, Stdio};

const CONF: &str = "error_log logs/error.log notice;\npid logs/nginx.pid;\nworker_processes 2;\n\
    events { worker_connections 400; }\n\
    http { access_log logs/access.log; keepalive_requests 100000000; server { listen 127.0.0.1:%PORT0%; location / { return 200 ok; } } }\n";

/// 100 reloads while wrk keeps 20 connections busy: not one request may fail, and none of the connections
/// may be closed for it.
#[test]
fn a_hundred_reloads_lose_nothing() {
    if !tool("wrk") {
        return;
    }
    let server = Server::start(CONF);
    let url = format!("http://{}/", server.addr(0));
    let wrk = Command::new("wrk")
        .args(["-t1", "-c20", "-d12s", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("wrk starts");
    let before = wait_for("a worker", || {
        let workers = server.workers(server.pid());
        (!workers.is_empty()).then_some(workers)
    });
    for i in 1..=100 {
        server.signal(Signal::SIGHUP);
        server.wait_for_log(": reconfiguring", i);
    }
    let out = wrk.wait_with_output().expect("wrk ends");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
    let requests = text.split(" requests in").next().and_then(|t| t.split_whitespace().last());
    let requests: u64 = requests.and_then(|n| n.parse().ok()).expect("a count");
    assert!(requests > 100, "{text}");
    assert_eq!(server.workers(server.pid()), before, "the worker is the same");
}

/// More slow clients than connections: whoever finishes a request is served all the same.
#[test]
fn slow_headers_do_not_take_the_service_down() {
    if !tool("slowhttptest") {
        return;
    }
    let server = Server::start(CONF);
    let url = format!("http://{}/", server.addr(0));
    let mut slow = Command::new("slowhttptest")
        .args(["-c", "900", "-H", "-i", "1", "-r", "400", "-l", "8", "-p", "1", "-u", &url])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("slowhttptest starts");
    let mut served = 0;
    wait_for("the end of slowhttptest", || {
        let answer = server.get("/");
        assert!(answer.starts_with("HTTP/1.1 200"), "after {served} answers: {answer:?}");
        served += 1;
        slow.try_wait().expect("child")
    });
    assert!(served > 20, "only {served} answers");
}

/// The pages that `forebay serve` shows, in a real browser.
#[test]
fn a_browser_shows_the_demo_site() {
    if !tool("chromium") {
        return;
    }
    let port = free_port();
    let mut child = Command::new(PROGRAM)
        .args(["serve", "--listen", &port.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    wait_for("the demo site", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    let profile = tempfile::tempdir().expect("temporary directory");
    let out = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--virtual-time-budget=3000", "--dump-dom"])
        .arg(format!("http://127.0.0.1:{port}/"))
        .stderr(Stdio::null())
        .output()
        .expect("chromium runs");
    kill(child.id() as i32, Signal::SIGTERM);
    let _ = child.wait();
    let dom = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(dom.contains("<title>") && dom.contains("Forebay"), "{dom}");
    assert!(dom.contains("stylesheet"), "{dom}");
}

/// Without `open_file_cache` who asks after a change gets the change, also while other connections ask for the same
/// file all the time.
#[test]
fn a_file_that_changes_under_load_is_never_served_as_it_was() {
    use std::io::{BufRead, BufReader, Read, Write};
    if !tool("wrk") {
        return;
    }
    let site = Site::new(
        "worker_processes 1; error_log logs/error.log; events {} http { access_log off; keepalive_requests 100000000; \
         server { listen 127.0.0.1:%PORT0%; root %DIR%/html; } }",
    );
    site.write("html/f", "0");
    let server = Server::start_on(site);
    let url = format!("http://{}/f", server.addr(0));
    let load = Command::new("wrk")
        .args(["-t1", "-c30", "-d4s", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("wrk starts");
    let connect = || BufReader::new(std::net::TcpStream::connect(server.addr(0)).expect("accepts"));
    let mut kept = connect();
    let ask = |stream: &mut BufReader<std::net::TcpStream>| {
        stream.get_mut().write_all(b"GET /f HTTP/1.1\r\nHost: h\r\n\r\n").expect("open");
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert!(stream.read_line(&mut line).expect("a line") > 0, "closed");
            if let Some(n) = line.strip_prefix("Content-Length: ") {
                length = n.trim().parse().expect("a number");
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).expect("a body");
        String::from_utf8(body).expect("text")
    };
    let start = std::time::Instant::now();
    let mut n = 0u32;
    while start.elapsed() < std::time::Duration::from_secs(3) {
        n += 1;
        let text = n.to_string();
        // Half of the changes replace the file, half write into it.
        if n.is_multiple_of(2) {
            server.site.write("html/new", &text);
            std::fs::rename(server.site.dir().join("html/new"), server.site.dir().join("html/f"))
                .expect("renamed");
        } else {
            server.site.write("html/f", &text);
        }
        assert_eq!(ask(&mut kept), text);
        if n.is_multiple_of(4) {
            assert_eq!(ask(&mut connect()), text, "on a new connection");
        }
    }
    let out = load.wait_with_output().expect("wrk ends");
    assert!(n > 50 && String::from_utf8_lossy(&out.stdout).contains("Requests/sec"), "{n}");
}
