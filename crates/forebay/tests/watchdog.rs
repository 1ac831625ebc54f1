//! Threads of connections that do not come back from a turn of their event loop.

use forebay_testkit::{Server, Talk, alive, wait_for, wait_until};
use std::io::Read;
use std::net::TcpStream;
use std::time::Instant;

const CONF: &str = "worker_processes 2; error_log logs/error.log info; pid logs/nginx.pid; \
                    worker_stall_timeout 1s; events {}\n\
                    http { access_log logs/access.log; server { listen 127.0.0.1:%PORT0%; \
                    location / { return 200 fine; } location /metrics { prometheus; } } }";

/// A server that has one request hold up its thread, in the first worker process.
fn stalling(how: &str) -> Server {
    Server::start(format!("env \"FOREBAY_TEST_STALL=/stall:{how}\"; {CONF}"))
}

fn stall(server: &Server) -> TcpStream {
    server.send(b"GET /stall HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
}

/// A thread that spins is logged with what it works on, and the process is replaced. nginx's worker would spin for ever.
#[test]
fn a_thread_that_spins_is_logged_and_the_process_is_replaced() {
    let server = stalling("spin");
    let worker = server.worker();
    let mut stream = stall(&server);
    server.wait_for_log("its connections wait (connection *", 1);
    server.wait_for_log("does not come back from a turn of its event loop", 1);
    wait_until("its end", || !alive(worker));
    assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "its connection is closed");
    wait_for("the next one", || {
        server.workers(server.pid()).first().is_some_and(|w| *w != worker).then_some(())
    });
    assert!(server.get("/").ends_with("fine"));
    let log = server.error_log();
    let line = log.lines().find(|l| l.contains("does not come back")).expect("a line");
    assert!(line.contains("[alert]") && line.contains("it runs"), "{line}");
}

/// A turn that waits for something is logged and counted, and ends nothing: the same would hold up the next process, too.
#[test]
fn a_thread_that_waits_is_counted_and_kept() {
    let server = stalling("3000");
    let worker = server.worker();
    let begun = Instant::now();
    let mut stream = stall(&server);
    let answer = stream.rest();
    assert!(answer.ends_with("fine"), "{answer}");
    assert!(begun.elapsed().as_secs() >= 3, "{:?}", begun.elapsed());
    server.wait_for_log("goes on after a turn of", 1);
    let log = server.error_log();
    let line = log.lines().find(|l| l.contains("its connections wait")).expect("a line");
    assert!(line.contains("[alert]") && line.contains("it waits in the kernel"), "{line}");
    assert!(!log.contains("does not come back"), "{log}");
    assert_eq!(server.workers(server.pid()), [worker]);
    wait_until("the count", || server.get("/metrics").contains("\nforebay_long_turns_total 1\n"));
}
