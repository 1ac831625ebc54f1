//! Under load: reloads lose nothing, slow clients take nothing down, a browser shows the demo site.

use forebay_testkit::{
    Running, Server, Signal, Site, Talk, alive, connect, connect_with_small_buffer, free_port, http, raw,
    tool, wait_for, wait_until,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const CONF: &str = "error_log logs/error.log notice;\npid logs/nginx.pid;\nworker_processes 2;\n\
    events { worker_connections 400; }\n\
    http { access_log logs/access.log; keepalive_requests 100000000; server { listen 127.0.0.1:%PORT0%; location / { return 200 ok; } } }\n";

/// Starts a tool on a page of a server.
fn run(words: &str, server: &Server, path: &str) -> Running {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    Running::start(command.args(words).arg(format!("http://{}{path}", server.addr(0))))
}

/// 100 reloads while wrk keeps 20 connections busy: not one request may fail, and none of the connections
/// may be closed for it.
#[test]
fn a_hundred_reloads_lose_nothing() {
    if !tool("wrk") {
        return;
    }
    let server = Server::start(CONF);
    let mut wrk = run("wrk -t1 -c20 -d12s", &server, "/");
    let before = server.worker();
    for i in 1..=100 {
        server.reload();
        server.wait_for_log(": reconfiguring", i);
    }
    wrk.code();
    let text = wrk.out();
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
    let requests = text.split(" requests in").next().and_then(|t| t.split_whitespace().last());
    let requests: u64 = requests.and_then(|n| n.parse().ok()).expect("a count");
    assert!(requests > 100, "{text}");
    assert_eq!(server.workers(server.pid()), [before], "the worker is the same");
}

/// More slow clients than connections: whoever finishes a request is served all the same.
#[test]
fn slow_headers_do_not_take_the_service_down() {
    if !tool("slowhttptest") {
        return;
    }
    let server = Server::start(CONF);
    let slow = run("slowhttptest -c 900 -H -i 1 -r 400 -l 8 -p 1 -u", &server, "/");
    let mut served = 0;
    wait_until("the end of slowhttptest", || {
        let answer = server.get("/");
        assert!(answer.starts_with("HTTP/1.1 200"), "after {served} answers: {answer:?}");
        served += 1;
        !alive(slow.pid())
    });
    assert!(served > 20, "only {served} answers");
}

/// More clients than connections that send, or take, a byte now and then: they are given up for others.
#[test]
fn slow_bodies_and_slow_readers_do_not_take_the_service_down() {
    let server = Server::start(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events { worker_connections 64; }\n\
         http { access_log off; server { listen 127.0.0.1:%PORT0% sndbuf=32k; location / { root html; }\n\
           location /up { client_max_body_size 0; proxy_pass http://127.0.0.1:%PORT1%; } }\n\
         server { listen 127.0.0.1:%PORT1%; return 200 ok; } }",
    );
    server.write("html/index.html", "one");
    server.write("html/large", "x".repeat(8 << 20));
    let body = "POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    let attacks = [
        (body, "while reading client request body"),
        ("GET /large HTTP/1.1\r\nHost: x\r\n\r\n", "while sending"),
    ];
    for (request, doing) in attacks {
        let mut slow: Vec<TcpStream> = (0..80).map(|_| server.send(request)).collect();
        let (sender, answers) = std::sync::mpsc::channel();
        let addr = server.addr(0);
        std::thread::spawn(move || {
            for _ in 0..3 {
                let _ = sender.send(raw(addr, b"GET / HTTP/1.0\r\n\r\n"));
            }
        });
        let mut served = 0;
        wait_for("three answers", || {
            for client in &mut slow {
                let _ = if request == body { client.write(b"x") } else { client.read(&mut [0]) };
            }
            while let Ok(answer) = answers.try_recv() {
                assert!(answer.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
                served += 1;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            (served == 3).then_some(())
        });
        assert!(
            server.error_log().contains(&format!("client is too slow and its connection is needed {doing}"))
        );
    }
}

/// The pages that `forebay serve` shows, in a real browser.
#[test]
fn a_browser_shows_the_demo_site() {
    if !tool("chromium") {
        return;
    }
    let (port, site) = (free_port(), Site::new(""));
    let mut serve = site.subcommand(["serve", "--listen", &port.to_string()]);
    let _server = Running::start_at(&mut serve, ([127, 0, 0, 1], port).into());
    let dom = crate::dashboard::chromium(&["--dump-dom"], &format!("http://127.0.0.1:{port}/")).out;
    assert!(dom.contains("<title>") && dom.contains("Forebay"), "{dom}");
    assert!(dom.contains("stylesheet"), "{dom}");
}

/// Without `open_file_cache` who asks after a change gets the change, also while other connections ask for the same
/// file all the time.
#[test]
fn a_file_that_changes_under_load_is_never_served_as_it_was() {
    if !tool("wrk") {
        return;
    }
    let site = Site::new(http(
        "keepalive_requests 100000000; \
         server { listen 127.0.0.1:%PORT0%; root %DIR%/html; }",
    ));
    site.write("html/f", "0");
    let server = Server::start_on(site);
    let mut load = run("wrk -t1 -c30 -d60s", &server, "/f");
    let mut kept = server.connect();
    let start = std::time::Instant::now();
    let (least, longest) = (std::time::Duration::from_secs(2), std::time::Duration::from_secs(50));
    let mut n = 0u32;
    while n < 60 || start.elapsed() < least {
        assert!(start.elapsed() < longest, "{n} changes");
        n += 1;
        let text = n.to_string();
        // Half of the changes replace the file, half write into it.
        if n.is_multiple_of(2) {
            server.write("html/new", &text);
            std::fs::rename(server.dir().join("html/new"), server.dir().join("html/f")).expect("renamed");
        } else {
            server.write("html/f", &text);
        }
        assert_eq!(ask(&mut kept), text);
        if n.is_multiple_of(4) {
            assert_eq!(ask(&mut server.connect()), text, "on a new connection");
        }
    }
    // It sums up what it has done when it is interrupted.
    load.end(Signal::SIGINT);
    assert!(load.out().contains("Requests/sec"), "{}{}", load.out(), load.err());
}

/// Changes are told by the kernel to a thread that serves a file often. Whoever asks after a change sees it.
#[test]
fn a_changed_file_shows_at_once_while_it_is_in_great_demand() {
    let site = Site::new(
        http("keepalive_requests 100000000; server { listen 127.0.0.1:%PORT0%; root %DIR%/now; }").workers(2),
    );
    let dir = site.dir().to_owned();
    for version in ["v1", "v2"] {
        std::fs::create_dir(dir.join(version)).expect("mkdir");
        std::fs::write(dir.join(version).join("f"), version).expect("write");
    }
    std::os::unix::fs::symlink("v1", dir.join("now")).expect("symlink");
    let server = Server::start_on(site);
    let addr = server.addr(0);
    let worker = server.worker();
    let watches = move || {
        let fds = std::fs::read_dir(format!("/proc/{worker}/fdinfo")).expect("fdinfo").flatten();
        let of = |e: std::fs::DirEntry| std::fs::read_to_string(e.path()).unwrap_or_default();
        fds.map(|e| of(e).matches("inotify wd:").count()).sum::<usize>()
    };
    let stop = Arc::new(AtomicBool::new(false));
    // Several connections, so that both threads are asked.
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut stream = connect(addr);
                while !stop.load(Ordering::SeqCst) {
                    ask(&mut stream);
                }
            })
        })
        .collect();
    let mut streams: Vec<_> = (0..8).map(|_| connect(addr)).collect();
    let mut expect = |text: &str, what: &str| {
        for stream in &mut streams {
            assert_eq!(ask(stream), text, "{what}");
        }
    };
    for round in 0..12 {
        wait_until("the file to be watched", || watches() > 3);
        let text = format!("written {round}");
        std::fs::write(dir.join("now/f"), &text).expect("write");
        expect(&text, "written in place");
        wait_until("the file to be watched", || watches() > 3);
        let text = format!("replaced {round}");
        std::fs::write(dir.join("new"), &text).expect("write");
        std::fs::rename(dir.join("new"), dir.join("now/f")).expect("rename");
        expect(&text, "replaced");
        wait_until("the file to be watched", || watches() > 3);
        let (version, old) = if round % 2 == 0 { ("v2", "v1") } else { ("v1", "v2") };
        let text = format!("{version} of {round}");
        std::fs::write(dir.join(version).join("f"), &text).expect("write");
        std::os::unix::fs::symlink(version, dir.join("next")).expect("symlink");
        std::fs::rename(dir.join("next"), dir.join("now")).expect("rename");
        expect(&text, "link turned");
        std::fs::write(dir.join(old).join("f"), "old").expect("write");
        expect(&text, "what nothing leads to any more");
    }
    stop.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|c| c.join().expect("client"));
}

/// Body of a kept connection's next answer.
fn ask(stream: &mut TcpStream) -> String {
    stream.get("/f");
    let answer = stream.answer();
    assert_eq!(answer.status(), "200", "{}", answer.head);
    answer.text()
}

/// A server whose sockets have little room for answers.
fn narrow(http: &str, locations: &str) -> Server {
    http!("access_log logs/access.log; {http}\nserver {{ listen 127.0.0.1:%PORT0% sndbuf=8k; {locations} }}")
        .start()
}

/// Answers of busy turns leave together; a client that reads late gets what found no room then, whole and in order, also
/// when it has said that it asks for nothing more, and the last one closes the connection.
#[test]
fn answers_that_found_no_room_arrive_whole() {
    const CLIENTS: usize = 24;
    const REQUESTS: usize = 60;
    let text = "x".repeat(3000);
    let server =
        narrow("lingering_close off;", &format!("location / {{ return 200 \"$request_uri {text}\"; }}"));
    let send = |c: usize, stream: &mut TcpStream, from: usize, to: usize| {
        let request = |n| {
            let close = if n + 1 == REQUESTS && c.is_multiple_of(3) { "Connection: close\r\n" } else { "" };
            format!("GET /{c}/{n} HTTP/1.1\r\nHost: h\r\n{close}\r\n")
        };
        stream.write_all((from..to).map(request).collect::<String>().as_bytes()).expect("requests");
    };
    let mut clients: Vec<TcpStream> =
        (0..CLIENTS).map(|_| connect_with_small_buffer(server.addr(0))).collect();
    // All at once, again and again, so that turns are busy.
    for n in 0..REQUESTS {
        for (c, stream) in clients.iter_mut().enumerate() {
            send(c, stream, n, n + 1);
        }
    }
    for (c, mut stream) in clients.into_iter().enumerate() {
        let mut got = Vec::new();
        match c % 3 {
            // The last request closes the connection.
            0 => {}
            1 => stream.shutdown(std::net::Shutdown::Write).expect("half closed"),
            // The connection stays.
            _ => {
                send(c, &mut stream, REQUESTS, REQUESTS + 1);
                stream.write_all(b"GET /last HTTP/1.0\r\n\r\n").expect("the last one");
            }
        }
        stream.read_to_end(&mut got).expect("answers");
        let got = String::from_utf8(got).expect("text");
        let bodies: Vec<&str> = got.split("HTTP/1.1 200 OK\r\n").skip(1).collect();
        let count = REQUESTS + if c % 3 == 2 { 2 } else { 0 };
        assert_eq!(bodies.len(), count, "client {c}");
        for (n, answer) in bodies.iter().enumerate() {
            let uri = if n == REQUESTS + 1 { "/last".to_owned() } else { format!("/{c}/{n}") };
            assert!(answer.ends_with(&format!("\r\n\r\n{uri} {text}")), "client {c}, answer {n}");
        }
    }
}

/// A connection does not wait for its next request, and is not closed for its lack, before the last answer has left.
#[test]
fn an_answer_without_room_is_not_cut_by_the_keepalive_timeout() {
    const CLIENTS: usize = 40;
    let text = "x".repeat(3000);
    let server = narrow(
        "keepalive_timeout 1ms;",
        &format!(
            "location / {{ return 200 \"$request_uri {text}\"; }} location = /status {{ return 204; access_log off; }}"
        ),
    );
    let mut clients: Vec<TcpStream> =
        (0..CLIENTS).map(|_| connect_with_small_buffer(server.addr(0))).collect();
    // Each with another number of requests, so that the last answers end where the room does.
    for (c, stream) in clients.iter_mut().enumerate() {
        (0..=c).for_each(|n| stream.get(format!("/{c}/{n}")));
    }
    // Time passes for the server.
    for _ in 0..100 {
        assert!(server.get("/status").starts_with("HTTP/1.1 204"));
    }
    for (c, mut stream) in clients.into_iter().enumerate() {
        let got = stream.rest();
        let bodies: Vec<&str> = got.split("HTTP/1.1 200 OK\r\n").skip(1).collect();
        assert_eq!(bodies.len(), c + 1, "client {c}");
        for (n, answer) in bodies.iter().enumerate() {
            assert!(answer.ends_with(&format!("\r\n\r\n/{c}/{n} {text}")), "client {c}, answer {n}");
        }
    }
}

/// `send_timeout` is over once: a client that takes nothing is not waited for again at the end of its connection.
#[test]
fn a_client_that_does_not_read_is_waited_for_once() {
    let text = "x".repeat(3000);
    let server = narrow(
        "send_timeout 1s; reset_timedout_connection on;",
        &format!("location / {{ return 200 {text}; }}"),
    );
    let mut clients: Vec<TcpStream> = (0..24).map(|_| connect_with_small_buffer(server.addr(0))).collect();
    // All at once, again and again, so that turns are busy, until there is no room.
    for _ in 0..40 {
        clients.iter_mut().for_each(|c| c.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("request"));
    }
    for client in &clients {
        wait_for("the end", || client.take_error().expect("state"));
    }
    let log = server.error_log();
    let told = log.matches("client timed out (110: Connection timed out) while sending").count();
    assert_eq!(told, clients.len(), "{log}");
}
