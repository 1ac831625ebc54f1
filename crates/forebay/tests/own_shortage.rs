//! The worker has no descriptor left: that is no failure of the servers behind it, and it passes by itself.
//!
//! The worker keeps the user of the test, which may change the limits of its own processes only.

use forebay_testkit::{Echo, Origin, Server, Site, Talk, connect, wait_until};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A worker process that gets no new descriptor until this is dropped. Those that it has go on.
struct Starved {
    pid: Pid,
    former: Rlimit,
}

impl Starved {
    fn new(server: &Server) -> Starved {
        Starved::limited(server, |_| 3)
    }

    /// A worker process that gets a new descriptor only in the place of one that it closes.
    fn full(server: &Server) -> Starved {
        // All numbers below are in use: the kernel gives the lowest free one.
        Starved::limited(server, |used| (0..).find(|number| !used.contains(number)).expect("a number"))
    }

    fn limited(server: &Server, limit: impl Fn(&[u64]) -> u64) -> Starved {
        let number = server.worker();
        let pid = Pid::from_raw(number).expect("a pid");
        let names = std::fs::read_dir(format!("/proc/{number}/fd")).expect("its descriptors");
        let used: Vec<u64> = names.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
        let own = rustix::process::getrlimit(Resource::Nofile);
        let wanted = Rlimit { current: Some(limit(&used)), ..own };
        let former = prlimit(Some(pid), Resource::Nofile, wanted).expect("limit");
        Starved { pid, former }
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        let _ = prlimit(Some(self.pid), Resource::Nofile, self.former);
    }
}

/// A connection to the server that is kept.
struct Client(TcpStream);

impl Client {
    fn new(addr: SocketAddr) -> Client {
        Client(connect(addr))
    }

    /// Has a request answered, so that the server has accepted the connection.
    fn used(mut self) -> Client {
        assert_eq!(self.get("/own").0, "200");
        self
    }

    /// Returns the status and the body of an answer with a length.
    fn get(&mut self, uri: &str) -> (String, String) {
        self.0.get(uri);
        let answer = self.0.answer();
        (answer.status().to_owned(), answer.text())
    }
}

/// An application, with the number of its connections. `keeps`: it keeps them.
fn application(keeps: bool) -> Origin {
    Origin::start(move |request| request.answer("200 OK", "", "fine") && keeps)
}

/// Active checks of HTTP, of TCP and of UDP are not made while the worker has no descriptor. Each of the servers stays as healthy as it
/// was, and gets requests at once afterwards.
#[test]
fn a_check_that_cannot_be_made_takes_no_server_out() {
    let a = application(false);
    let b = application(false);
    let udp = Echo::start().addr;
    let server = Server::start(format!(
        "user root; worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; upstream u {{ zone u 64k; server {a}; server {b}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location = /own {{ return 200 own; }}\n\
         location / {{ proxy_pass http://u; health_check interval=20ms; }} }} }}\n\
         stream {{ upstream t {{ zone t 64k; server {a}; }} upstream d {{ zone d 64k; server {udp}; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass t; health_check interval=20ms; }}\n\
         server {{ listen 127.0.0.1:%PORT2% udp; proxy_pass d; health_check interval=20ms udp; }} }}"
    ));
    let mut client = Client::new(server.addr(0));
    assert_eq!(client.get("/").0, "200");
    // A connection ends with its error (500), and a new one would need a descriptor.
    let others: Vec<_> = (0..8).map(|_| Client::new(server.addr(0)).used()).collect();
    wait_until("checks", || a.asked() > 10);
    {
        let _starved = Starved::new(&server);
        server.wait_for_log("while connecting to upstream (24: Too many open files), health check of", 1);
        // Requests fail meanwhile, by a fault of our own (nginx: 500).
        for mut other in others {
            assert_eq!(other.get("/").0, "500");
        }
        // The time of many checks.
        let end = Instant::now() + Duration::from_millis(400);
        while Instant::now() < end {
            assert_eq!(client.get("/own").1, "own");
        }
    }
    for _ in 0..20 {
        assert_eq!(client.get("/").0, "200");
    }
    let mut over_stream = connect(server.addr(1));
    over_stream.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = over_stream.rest();
    assert!(answer.ends_with("fine"), "{answer}");
    let log = server.error_log();
    for never in ["no live upstreams", "peer is unhealthy", "temporarily disabled"] {
        assert!(!log.contains(never), "{never} in {log}");
    }
    assert_eq!(log.matches("check could not be made").count(), 1, "it is logged once: {log}");
}

/// Closes an idle connection to another server where a request needs its descriptor.
#[test]
fn idle_connections_to_servers_give_way() {
    let a = application(true);
    let b = application(true);
    let server = Server::start(format!(
        "user root; worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; upstream a {{ server {a}; keepalive 4; }} upstream b {{ server {b}; keepalive 4; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location /a {{ proxy_pass http://a; }}\n\
         location /b {{ proxy_pass http://b; }} }} }}"
    ));
    let mut client = Client::new(server.addr(0));
    assert_eq!(client.get("/a").0, "200");
    let full = Starved::full(&server);
    assert_eq!(client.get("/b").0, "200");
    assert_eq!(client.get("/a").0, "200");
    drop(full);
    assert!(!server.error_log().contains("Too many open files"), "{}", server.error_log());
}

/// Whatever a request needs a descriptor for: it fails by itself, marks nobody, and the next one with a descriptor succeeds.
#[test]
fn requests_without_a_descriptor_mark_nobody() {
    let a = application(false);
    let refused = TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("bound");
    let pass = |name: &str, directive: &str| format!("location /{name} {{ {directive}; }} ");
    let locations = [
        pass("http", "proxy_pass http://u"),
        pass("h2", "proxy_pass http://u; proxy_http_version 2"),
        pass("fastcgi", "fastcgi_pass u"),
        pass("uwsgi", "uwsgi_pass u"),
        pass("scgi", "scgi_pass u"),
        pass("memcached", "set $memcached_key k; memcached_pass u"),
        pass("own", "return 200 own"),
    ]
    .concat();
    let server = Server::start_on(Site::new(format!(
        "user root; worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; upstream u {{ zone u 64k; server {a} max_fails=1 fail_timeout=1h;\n\
         server {refused} backup max_fails=1 fail_timeout=1h; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; {locations} }} }}"
    )));
    assert!(server.get("/http").ends_with("fine"));
    let names = ["http", "h2", "fastcgi", "uwsgi", "scgi", "memcached"];
    let clients: Vec<_> = names.iter().map(|_| Client::new(server.addr(0)).used()).collect();
    {
        let _starved = Starved::new(&server);
        for (name, mut client) in names.iter().zip(clients) {
            assert_eq!(client.get(&format!("/{name}")).0, "500", "{name}");
        }
    }
    assert!(server.get("/http").ends_with("fine"));
    let log = server.error_log();
    assert!(!log.contains("temporarily disabled") && !log.contains("no live upstreams"), "{log}");
}
