//! Failure drills: something breaks under load, and clients are not to notice where anything healthy is left.

use forebay_testkit::{
    Asked, Conf, Done, Origin, Running, Server, Signal, Site, alive, free_port, http, kill, tool, wait_until,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn conf(rest: &str) -> Conf {
    http!("{rest}").workers(2)
}

/// A request on a kept connection; `Err` says what a client would complain of.
fn ask(stream: &mut BufReader<TcpStream>, request: &str) -> Result<String, String> {
    let why = |e: std::io::Error| e.to_string();
    stream.get_mut().write_all(request.as_bytes()).map_err(why)?;
    let (mut status, mut length) = (String::new(), 0);
    stream.read_line(&mut status).map_err(why)?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).map_err(why)? == 0 {
            return Err(format!("closed after {status:?}"));
        }
        if line == "\r\n" {
            break;
        }
        if let Some((_, v)) = line.split_once(':').filter(|(n, _)| n.eq_ignore_ascii_case("content-length")) {
            length = v.trim().parse().map_err(|_| "bad length".to_owned())?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).map_err(why)?;
    if !status.starts_with("HTTP/1.1 200") {
        return Err(status);
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Clients that ask without a pause, each on one connection after the other.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    errors: Arc<Mutex<Vec<String>>>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(addr: SocketAddr, clients: usize, uri: &str) -> Load {
        let (stop, served, errors) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        let request = format!("GET {uri} HTTP/1.1\r\nHost: x\r\n\r\n");
        let one = || {
            let (stop, served, request) = (stop.clone(), served.clone(), request.clone());
            let errors: Arc<Mutex<Vec<String>>> = Arc::clone(&errors);
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let Ok(stream) = TcpStream::connect(addr) else {
                        errors.lock().expect("errors").push("connect".into());
                        continue;
                    };
                    let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
                    let mut stream = BufReader::new(stream);
                    for _ in 0..50 {
                        if stop.load(SeqCst) {
                            break;
                        }
                        match ask(&mut stream, &request) {
                            Ok(_) => served.fetch_add(1, SeqCst),
                            Err(e) => {
                                errors.lock().expect("errors").push(e);
                                break;
                            }
                        };
                    }
                }
            })
        };
        let clients = (0..clients).map(|_| one()).collect();
        Load { stop, served, errors, clients }
    }

    /// Waits until so many more have been served.
    fn go_on(&self, count: usize) {
        let goal = self.served.load(SeqCst) + count;
        wait_until("answers", || self.served.load(SeqCst) >= goal);
    }

    /// Ends it; what the clients complained of.
    fn end(self) -> Vec<String> {
        self.stop.store(true, SeqCst);
        for c in self.clients {
            c.join().expect("a client");
        }
        let mut errors = self.errors.lock().expect("errors");
        std::mem::take(&mut errors)
    }
}

const WELL: u8 = 0;
const HANG: u8 = 1;
const RESET: u8 = 2;
const HALF_HEAD: u8 = 3;
const GARBAGE: u8 = 4;
const OVERSIZED: u8 = 5;
const HALF_BODY: u8 = 6;

/// An upstream that misbehaves as it is told.
fn faulty() -> (Origin, Arc<AtomicU8>) {
    let mode = Arc::<AtomicU8>::default();
    let told = mode.clone();
    let breaks_off = |asked: &mut Asked, bytes: &[u8]| {
        asked.reset();
        asked.close_with(bytes)
    };
    let origin = Origin::start(move |asked| match told.load(SeqCst) {
        // Until the proxy has had enough.
        HANG => {
            asked.more();
            false
        }
        RESET => breaks_off(asked, b""),
        HALF_HEAD => breaks_off(asked, b"HTTP/1.1 200 OK\r\nContent-Len"),
        GARBAGE => asked.write(b"\x16\x03\x01 what is this\r\n\r\n"),
        OVERSIZED => asked.answer("200 OK", &format!("X-Long: {}\r\n", "x".repeat(100_000)), "well"),
        HALF_BODY => breaks_off(asked, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf"),
        _ => asked.answer("200 OK", "", "well"),
    });
    (origin, mode)
}

#[test]
fn a_sick_upstream_is_not_noticed() {
    let ((sick, mode), (well, _)) = (faulty(), faulty());
    let server = Server::start(conf(&format!(
        "upstream u {{ server {sick} max_fails=0; server {well}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; proxy_read_timeout 200ms;\n\
         proxy_next_upstream error timeout invalid_header; }} }}"
    )));
    let load = Load::start(server.addr(0), 4, "/");
    load.go_on(100);
    for fault in [HANG, RESET, HALF_HEAD, GARBAGE, OVERSIZED] {
        mode.store(fault, SeqCst);
        load.go_on(100);
    }
    assert_eq!(load.end(), Vec::<String>::new());
    let log = server.error_log();
    for line in
        ["upstream timed out", "recv() failed (104", "sent no valid HTTP/1.0 header", "too big header"]
    {
        assert!(log.contains(line), "no {line} in the log");
    }
}

#[test]
fn half_a_body_is_not_passed_off_as_a_whole() {
    let (addr, mode) = faulty();
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{addr}; }} }}"
    )));
    mode.store(HALF_BODY, SeqCst);
    let connect = || BufReader::new(server.connect());
    let request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    assert!(ask(&mut connect(), request).is_err());
    mode.store(WELL, SeqCst);
    assert_eq!(ask(&mut connect(), request).as_deref(), Ok("well"));
}

/// HAProxy that answers everything itself.
fn haproxy(site: &Site, name: &str) -> (Running, u16) {
    let port = free_port();
    let text = format!(
        "defaults\n mode http\n timeout client 10s\n timeout connect 1s\n timeout server 10s\n\
         frontend f\n bind 127.0.0.1:{port}\n http-request return status 200 content-type text/plain string \"{name}\"\n"
    );
    let mut command = Command::new("haproxy");
    let command = command.arg("-db").arg("-f").arg(site.write(name, &text));
    (Running::start_at(command, ([127, 0, 0, 1], port).into()), port)
}

#[test]
fn an_upstream_is_killed_under_load() {
    if !tool("haproxy") {
        return;
    }
    let site = Site::new("");
    let ((first, a), (_second, b)) = (haproxy(&site, "a"), haproxy(&site, "b"));
    let server = Server::start(conf(&format!(
        "upstream u {{ zone u 64k; server 127.0.0.1:{a}; server 127.0.0.1:{b}; keepalive 16; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }} }}"
    )));
    let load = Load::start(server.addr(0), 8, "/");
    load.go_on(500);
    drop(first);
    load.go_on(1000);
    assert_eq!(load.end(), Vec::<String>::new());
}

#[test]
fn an_address_changes_under_load() {
    let port = free_port();
    let at = |ip: [u8; 4]| TcpListener::bind((std::net::Ipv4Addr::from(ip), port)).expect("bind");
    let dead = Arc::<AtomicBool>::default();
    let gone = dead.clone();
    Origin::on(at([127, 0, 0, 1]), move |asked| {
        assert!(!gone.load(SeqCst), "asked long after the change");
        asked.answer("200 OK", "", "old")
    });
    Origin::on(at([127, 0, 0, 2]), |asked| asked.answer("200 OK", "", "new"));
    let last = Arc::new(AtomicU8::new(1));
    let names = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let dns = names.local_addr().expect("address");
    let answer = last.clone();
    std::thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((len, from)) = names.recv_from(&mut buf) {
            let mut m = buf[..len].to_vec();
            (m[2], m[3]) = (0x81, 0x80);
            // A, not AAAA: the type stands four bytes before the end.
            if m[len - 3] == 1 {
                m[7] = 1;
                m.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04\x7f\0\0");
                m.push(answer.load(SeqCst));
            }
            let _ = names.send_to(&m, from);
        }
    });
    let server = Server::start(conf(&format!(
        "resolver {dns} ipv6=off; upstream u {{ zone u 64k; server app.test:{port} resolve; keepalive 8; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }} }}"
    )));
    wait_until("the name", || server.get("/").ends_with("old"));
    let load = Load::start(server.addr(0), 4, "/");
    load.go_on(100);
    last.store(2, SeqCst);
    wait_until("the new address", || server.get("/").ends_with("new"));
    // What began before may still end at the old one.
    load.go_on(500);
    dead.store(true, SeqCst);
    load.go_on(500);
    assert_eq!(load.end(), Vec::<String>::new());
}

#[test]
fn descriptors_run_out() {
    let (addr, _) = faulty();
    let server = Server::start(format!(
        "worker_processes 1; worker_rlimit_nofile 64; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; upstream u {{ server {addr}; keepalive 4; }} server {{ listen 127.0.0.1:%PORT0%;\n\
         location / {{ proxy_pass http://u; }} }} }}"
    ));
    // Idle connections hold most of what there is.
    let idle: Vec<_> = (0..100).map(|_| server.connect()).collect();
    let load = Load::start(server.addr(0), 8, "/");
    load.go_on(200);
    drop(idle);
    load.go_on(200);
    // A connection between two requests may be closed for a new one; no request is answered with an error.
    let errors = load.end();
    assert!(errors.iter().all(|e| !e.starts_with("HTTP/1.1")), "{errors:?}");
}

#[test]
fn the_worker_is_killed_under_load() {
    let (addr, _) = faulty();
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{addr}; }} }}"
    )));
    let load = Load::start(server.addr(0), 8, "/");
    load.go_on(200);
    let worker = server.worker();
    kill(worker, Signal::SIGKILL);
    wait_until("its end", || !alive(worker));
    load.go_on(1000);
    let errors = load.end();
    // The connections of the dead one, and those that waited in its queues.
    assert!(errors.len() <= 16, "{}: {errors:?}", errors.len());
    assert!(errors.iter().all(|e| !e.starts_with("HTTP/1.1")), "{errors:?}");
}

#[test]
fn real_clients_and_applications() {
    let site = Site::new("");
    site.write("html/index.html", "from python");
    let port = free_port();
    let mut python = Command::new("python3");
    python
        .args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()])
        .current_dir(site.path("html"));
    let _python = Running::start_at(&mut python, ([127, 0, 0, 1], port).into());
    let echo = free_port();
    let server = Server::start(conf(&format!(
        "map $http_upgrade $c {{ default upgrade; '' ''; }} server {{ listen 127.0.0.1:%PORT0%;\n\
         location / {{ proxy_pass http://127.0.0.1:{port}; }} location /ws {{ proxy_pass http://127.0.0.1:{echo};\n\
         proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $c; }} }}"
    )));
    let load = Load::start(server.addr(0), 2, "/index.html");
    load.go_on(50);
    assert_eq!(load.end(), Vec::<String>::new());
    if Done::of(Command::new("python3").args(["-c", "import websockets"])).code != 0 {
        return eprintln!("skipped: no Python module websockets");
    }
    let script = site.write("ws.py", include_str!("drills/websocket.py"));
    let ports = [echo.to_string(), server.addr(0).port().to_string()];
    let done = Done::of(Command::new("python3").arg(script).args(ports));
    assert_eq!(done.code, 0, "{}", done.err);
}
