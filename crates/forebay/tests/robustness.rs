//! Load that must not take the server down: too many clients, too few descriptors, clients that vanish.

use forebay_testkit::{Server, Signal, Site, Talk, memory, wait_until};
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

forebay_testkit::cases!("cases/robustness.cases":
    fields_are_logged_unless_they_were_set, a_pattern_that_is_given_up_denies_the_request, few_descriptors_make_clients_wait,
    slow_heads_leave_before_clients_between_requests, slow_and_vanishing_clients_are_logged_as_nginx_does,
    a_graceful_end_says_close);

const GET: &[u8] = b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn serve(main: &str, connections: u32, server: &str) -> Server {
    let site = Site::new(format!(
        "worker_processes 1;\n{main}\nerror_log logs/error.log info;\nevents {{ worker_connections {connections}; \
         }}\nhttp {{ access_log off; server {{ listen 127.0.0.1:%PORT0%; {server} }} }}\n"
    ));
    site.write("html/page", "x".repeat(10_000));
    Server::start_on(site)
}

/// Reads an answer. Returns its status line, empty if the connection ended.
fn answer(stream: &mut TcpStream) -> String {
    stream.answer().head.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_full_table_serves_as_soon_as_a_client_is_idle() {
    let slow = "location /slow { alias html/; limit_rate 5000; }";
    let server = serve("", 4, slow);
    let mut busy: Vec<TcpStream> = (0..4).map(|_| server.connect()).collect();
    for client in &mut busy {
        client.send(b"GET /slow/page HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    std::thread::sleep(Duration::from_millis(200));
    let mut late = server.send(GET);
    // Nobody is cut off for it, and it need not wait for `keepalive_timeout`.
    for client in &mut busy {
        assert_eq!(answer(client), "HTTP/1.1 200 OK");
    }
    let start = Instant::now();
    assert_eq!(answer(&mut late), "HTTP/1.1 200 OK");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    server.wait_for_log("4 worker_connections are not enough, reusing connections", 1);
}

/// Connects from an address of the loopback network.
fn connect_from(server: &Server, from: [u8; 4]) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
    socket.bind(&std::net::SocketAddr::from((from, 0)).into()).expect("bind");
    socket.connect(&server.addr(0).into()).expect("connect");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(15))).expect("timeout");
    stream
}

#[test]
fn one_network_does_not_push_out_the_slow_clients_of_others() {
    const BEGINNING: &[u8] = b"GET /page HT";
    let server = serve("", 24, "");
    // They have been slow for longest, and would be the first to go if networks did not count.
    let mut slow: Vec<TcpStream> = (1..=3).map(|i| connect_from(&server, [127, 0, 2, i])).collect();
    slow.iter_mut().for_each(|client| client.send(BEGINNING));
    std::thread::sleep(Duration::from_millis(50));
    let mut many: Vec<TcpStream> = (1..=20).map(|i| connect_from(&server, [127, 0, 1, i])).collect();
    many.iter_mut().for_each(|client| client.send(BEGINNING));
    std::thread::sleep(Duration::from_millis(2300));
    // More of the same network, and others whose requests are served.
    for i in 0..12 {
        let mut new = connect_from(&server, if i % 2 == 0 { [127, 0, 3, 1] } else { [127, 0, 1, 99] });
        new.send(GET);
        assert_eq!(answer(&mut new), "HTTP/1.1 200 OK");
        many.push(new);
    }
    for client in &mut slow {
        client.send(&GET[BEGINNING.len()..]);
        assert_eq!(answer(client), "HTTP/1.1 200 OK", "it may be slow");
    }
    server.wait_for_log("24 worker_connections are not enough, reusing connections", 1);
    let is_gone = |mut client: &TcpStream| {
        client.set_nonblocking(true).expect("non-blocking");
        !client.read(&mut [0; 1]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    };
    let gone = many[..20].iter().filter(|client| is_gone(client)).count();
    assert!(gone >= 8, "the network that holds most had to make room: {gone}");
}

#[test]
fn reloads_do_not_grow_the_worker() {
    let server = serve("", 512, "listen 127.0.0.1:%PORT1%;");
    let worker = server.worker();
    let reload = |n: usize| {
        for i in 0..n {
            // Every other one removes a listener, or adds it again.
            let second = if i % 2 == 0 { "" } else { "listen 127.0.0.1:%PORT1%;" };
            server.write(
                "nginx.conf",
                format!(
                    "worker_processes 1; error_log logs/error.log notice; events {{ worker_connections 512; }} http {{ \
                     access_log off; server {{ listen 127.0.0.1:%PORT0%; {second} }} server {{ listen \
                     127.0.0.1:%PORT0%; server_name n{i}; }} }}"
                ),
            );
            let before = server.error_log().matches("reconfigur").count();
            server.reload();
            server.wait_for_log("reconfigur", before + 1);
            let mut client = server.send(GET);
            assert_eq!(answer(&mut client), "HTTP/1.1 200 OK");
        }
    };
    reload(10);
    let before = memory(worker);
    reload(40);
    let after = memory(worker);
    assert!(after < before + 1024, "{before} KiB before, {after} KiB after 40 reloads");
}

#[test]
fn pipelined_and_byte_by_byte() {
    let server = serve("", 64, "location /n { return 200 \"$arg_n,\"; }");
    let mut stream = server.connect();
    let mut writer = stream.try_clone().expect("clone");
    let write = std::thread::spawn(move || {
        for n in 0..1000 {
            let last = if n == 999 { "Connection: close\r\n" } else { "" };
            writer.send(format!("GET /n?n={n} HTTP/1.1\r\nHost: localhost\r\n{last}\r\n"));
        }
    });
    let all = stream.rest();
    write.join().expect("written");
    let bodies = all.split("\r\n\r\n").skip(1).map(|s| s.split(',').next().unwrap_or_default());
    assert!(bodies.eq((0..1000).map(|n| n.to_string())), "in order");

    let mut stream = server.connect();
    stream.set_nodelay(true).expect("nodelay");
    for byte in
        b"POST /n?n=1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    {
        stream.send([*byte]);
    }
    assert_eq!(answer(&mut stream), "HTTP/1.1 200 OK");
    stream.send(GET);
    assert_eq!(answer(&mut stream), "HTTP/1.1 200 OK");
}

/// An answer whose head has said that another request may follow keeps that promise, also if the end begins before its last byte: the
/// next request may be on its way.
#[test]
fn an_answer_that_promised_another_request_keeps_its_word() {
    let mut server = serve("", 64, "location /slow { alias html/; limit_rate 5k; }");
    let whole = |stream: &mut TcpStream, before: &[u8]| {
        let mut bytes = before.to_vec();
        let mut buffer = [0; 16384];
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let body = text.split_once("\r\n\r\n").map(|(head, body)| (head.to_owned(), body.len()));
            if let Some((head, length)) = body
                && head
                    .lines()
                    .any(|l| l.strip_prefix("Content-Length: ").is_some_and(|n| n == length.to_string()))
            {
                return head;
            }
            let n = stream.read(&mut buffer).expect("an answer");
            assert!(n > 0, "closed after {text:.200}");
            bytes.extend_from_slice(&buffer[..n]);
        }
    };
    let slow = b"GET /slow/page HTTP/1.1\r\nHost: localhost\r\n\r\n";
    // One sends its next request with the first, one when it has the answer to that.
    let mut clients = [server.connect(), server.connect()];
    let mut heads = Vec::new();
    for client in &mut clients {
        client.send(slow);
        let mut first = [0; 200];
        let n = client.read(&mut first).expect("a head");
        heads.push(first[..n].to_vec());
    }
    let [early, late] = &mut clients;
    early.send(GET);
    server.signal(Signal::SIGQUIT);
    server.wait_for_log("gracefully shutting down", 1);
    let head = whole(late, &heads[1]);
    assert!(head.contains("Connection: keep-alive"), "{head}");
    late.send(GET);
    let mut bytes = heads[0].clone();
    early.read_to_end(&mut bytes).expect("two answers");
    let early = String::from_utf8_lossy(&bytes);
    let bytes = late.rest_bytes();
    let late = String::from_utf8_lossy(&bytes);
    assert!(late.starts_with("HTTP/1.1 200 OK") && late.contains("\r\nConnection: close\r\n"), "{late:.300}");
    assert_eq!(early.matches("HTTP/1.1 200 OK").count(), 2, "{early:.300}");
    assert_eq!(server.wait_end(), Some(0));
}

/// Threads end on purpose in builds for tests: see `forebay_core::essential`.
#[test]
fn a_thread_that_ends_takes_the_process_with_it_and_another_follows() {
    // Which of the worker threads is the first to end is open.
    for (name, thread) in [("worker", "worker "), ("cache manager", "cache manager\"")] {
        let site = Site::new(format!(
            "worker_processes 2;\nenv \"FOREBAY_TEST_PANIC={name}\";\nerror_log logs/error.log notice;\nevents {{}}\n\
             http {{ access_log off; proxy_cache_path cache keys_zone=z:1m; server {{ listen 127.0.0.1:%PORT0%; location / \
             {{ return 200 one; }} }} }}\n"
        ));
        let server = Server::start_on(site);
        let master = server.pid();
        if name == "worker" {
            assert!(server.get("/").ends_with("one"), "it has its configuration");
            server.signal(Signal::SIGUSR1);
        }
        server.wait_for_log(format!("thread \"{thread}"), 1);
        server.wait_for_log("has ended by a panic (on purpose, ", 1);
        assert!(server.error_log().contains("[alert]"), "{}", server.error_log());
        server.wait_for_log("exited on signal 6", 1);
        wait_until("another worker", || server.error_log().matches("start worker process ").count() == 2);
        // More connections than threads: each thread has some of them.
        (0..20).for_each(|_| assert!(server.get("/").ends_with("one")));
        assert_eq!(server.workers(master).len(), 1);
    }
}
