//! A warm keep-alive GET from the file cache allocates nothing.
#![allow(missing_docs)]

use forebay_conf::files::Files;
use forebay_server::config::{self, Environment};
use forebay_server::counters::Counters;
use forebay_server::process::Share;
use forebay_server::worker::{self, Command, Mailbox, Setup};
use forebay_sys::alloc::CountingAllocator;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Runs a worker in this thread while another one sends `requests` on one connection; gives what this
/// thread allocated.
fn allocations(dir: &std::path::Path, requests: usize) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.set_nonblocking(true).expect("nonblocking");
    let addr = listener.local_addr().expect("bound");
    let conf = format!(
        "events {{}}\nhttp {{ open_file_cache max=10; access_log {d}/access.log combined buffer=64k flush=5s; \
         keepalive_requests 1000000; server {{ listen {addr}; root {d}; }} }}\n",
        d = dir.display()
    );
    std::fs::write(dir.join("nginx.conf"), conf).expect("write");
    let env = Environment {
        prefix: dir.join(""),
        conf_path: dir.join("nginx.conf"),
        globals: String::new(),
        error_log: Some("stderr".into()),
        access_log: "access.log".into(),
    };
    let (config, _) = config::load(&env, &mut Files::disk()).expect("a configuration");
    let log =
        std::fs::OpenOptions::new().create(true).append(true).open(dir.join("access.log")).expect("log");
    let share = Share {
        config: Arc::new(config),
        sockets: vec![Some((Arc::new(listener.into()), false))],
        logs: vec![Arc::new(log.into())],
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let mailbox = Arc::new(Mailbox::default());
    let (started, ready) = std::sync::mpsc::channel();
    let setup = Setup {
        number: 0,
        cpus: vec![],
        connections: 100,
        share,
        counters: Arc::new(vec![Arc::new(Counters::default())]),
        mailbox: mailbox.clone(),
        tokio: runtime.handle().clone(),
        started,
    };
    let client = std::thread::spawn(move || {
        let remote = ready.recv().expect("told").expect("started");
        let mut stream = TcpStream::connect(addr).expect("connect");
        let mut answer = [0; 4096];
        for _ in 0..requests {
            let request = b"GET /page.html HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\n\r\n";
            stream.write_all(request).expect("write");
            let n = stream.read(&mut answer).expect("read");
            assert!(answer[..n].starts_with(b"HTTP/1.1 200 OK\r\n") && answer[..n].ends_with(b"</html>\n"));
        }
        drop(stream);
        mailbox.push(Command::Stop);
        remote.wake();
    });
    let before = CountingAllocator::counts().allocations;
    worker::main(setup);
    let after = CountingAllocator::counts().allocations;
    client.join().expect("client");
    after - before
}

#[test]
fn a_warm_request_allocates_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    std::fs::write(dir.path().join("page.html"), "<html>page</html>\n").expect("write");
    // What is made once in the process (the time zone among it) is not the requests' doing.
    allocations(dir.path(), 1);
    let few = allocations(dir.path(), 100);
    let many = allocations(dir.path(), 1100);
    // The two runs differ in a thousand warm requests; timing may cost a handful in either.
    let difference = many.abs_diff(few);
    assert!(difference < 50, "{difference} allocations in 1000 requests ({few} and {many} in all)");
}
