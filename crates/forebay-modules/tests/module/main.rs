//! A module outside of the crate: it works for all versions of HTTP, and no other file knows it.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests make files as they like")]

mod visit;

use forebay_bench::load::{Load, Order, Protocol, Stop, Wanted};
use forebay_bench::tls::{self, Trust};
use forebay_bench::{run, url::Url};
use forebay_server::module::Module;
use forebay_testkit::worker;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

/// Installs the module, once for all tests of this program.
fn install() {
    static INSTALLED: Once = Once::new();
    static VISIT: &[&Module] = &[&visit::MODULE];
    INSTALLED.call_once(|| {
        forebay_conf::grammar::extend(visit::GRAMMAR).expect("rows");
        forebay_server::module::list::install(VISIT).expect("first");
    });
}

/// Serves a http block, with one listener, while another thread calls `client`.
fn serve(dir: &Path, http: &str, socket: OwnedFd, client: impl FnOnce() + Send + 'static) {
    let conf = format!("events {{}}\nhttp {{ {http} }}\n");
    worker::serve(dir, &conf, forebay_modules::FRONT_ENDS, socket, || {}, client);
}

/// Makes the files of a site. Returns the http block of a server with this `listen` parameter.
fn site(dir: &Path, listen: &str) -> String {
    std::fs::write(dir.join("page.html"), "a page\n").expect("write");
    std::fs::write(dir.join("key"), "open").expect("write");
    let d = dir.display();
    format!(
        "log_format v '$server_protocol $status $visit_status $sent_http_x_visit $body_bytes_sent'; \
         access_log {d}/access.log v; \
         server {{ listen {listen}; root {d}; visit /key; \
         location /shut/ {{ alias {d}/; visit /none; }} \
         location /free/ {{ alias {d}/; visit \"\"; }} \
         location = /key {{ internal; }} location = /none {{ internal; }} }}"
    )
}

/// Returns the lines of the access log.
fn logged(dir: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(dir.join("access.log")).expect("a log");
    log.lines().map(str::to_owned).collect()
}

/// Sends a request for each path over one connection of HTTP/1.1. Returns the answers.
fn get(addr: std::net::SocketAddr, paths: &[&str]) -> Vec<String> {
    let mut stream = TcpStream::connect(addr).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    let answer = |path: &&str| {
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").expect("write");
        let (mut all, mut buf) = (String::new(), [0; 4096]);
        loop {
            let n = stream.read(&mut buf).expect("read");
            all.push_str(std::str::from_utf8(&buf[..n]).expect("text"));
            let length = all.split("Content-Length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
            let length = length.and_then(|length| length.parse::<usize>().ok());
            if let (Some(head), Some(length)) = (all.find("\r\n\r\n"), length)
                && all.len() >= head + 4 + length
            {
                return all;
            }
            assert!(n > 0, "closed after {all}");
        }
    };
    paths.iter().map(answer).collect()
}

#[test]
fn a_module_waits_keeps_state_and_filters() {
    install();
    let dir = tempfile::tempdir().expect("temporary directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.set_nonblocking(true).expect("nonblocking");
    let addr = listener.local_addr().expect("bound");
    let http = site(dir.path(), &addr.to_string());
    serve(dir.path(), &http, listener.into(), move || {
        let answers = get(addr, &["/page.html", "/free/page.html", "/shut/page.html", "/page.html"]);
        let has = |at: usize, text: &str| answers[at].contains(text);
        for at in [0, 3] {
            assert!(answers[at].starts_with("HTTP/1.1 200 "), "{}", answers[at]);
            assert!(has(at, "\r\nX-Visit: 200\r\n") && answers[at].ends_with("\r\n\r\nA PAGE\n"));
        }
        assert!(answers[1].ends_with("\r\n\r\na page\n") && !has(1, "X-Visit"), "{}", answers[1]);
        assert!(answers[2].starts_with("HTTP/1.1 403 ") && has(2, "\r\nX-Visit: 404\r\n"), "{}", answers[2]);
    });
    assert_eq!(logged(dir.path())[..2], ["HTTP/1.1 200 200 200 7", "HTTP/1.1 200 - - 7"]);
}

/// Loads a page over a version of HTTP.
fn load(protocol: Protocol, url: &str) {
    let url = Url::parse(url).expect("URL");
    let mut load = Load::new(&[Wanted::get(url)], protocol, Order::Listed, 1).expect("load");
    (load.connections, load.parallel) = (2, 5);
    load.stop = Stop::Count(100, Some(Duration::from_secs(60)));
    load.tls = Some(tls::config(&Trust::Anyone, protocol).expect("TLS"));
    let record = run::run(&load, None, |_| true).expect("runs").outcome.record;
    assert_eq!((record.ok, record.errors()), (100, 0));
}

#[test]
fn it_works_over_http2() {
    install();
    let dir = tempfile::tempdir().expect("temporary directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.set_nonblocking(true).expect("nonblocking");
    let addr = listener.local_addr().expect("bound");
    let http = format!("http2 on; {}", site(dir.path(), &addr.to_string()));
    let url = format!("http://{addr}/page.html");
    serve(dir.path(), &http, listener.into(), move || load(Protocol::Http2, &url));
    assert_eq!(logged(dir.path()), vec!["HTTP/2.0 200 200 200 7"; 100]);
}

#[test]
fn it_works_over_http3() {
    install();
    let dir = tempfile::tempdir().expect("temporary directory");
    tls::self_signed(tls::Kind::Ecdsa, &dir.path().join("crt"), &dir.path().join("pem")).expect("openssl");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.set_nonblocking(true).expect("nonblocking");
    let addr = socket.local_addr().expect("bound");
    let d = dir.path().display();
    let http = format!(
        "ssl_certificate {d}/crt; ssl_certificate_key {d}/pem; {}",
        site(dir.path(), &format!("{addr} quic"))
    );
    let url = format!("https://{addr}/page.html");
    serve(dir.path(), &http, socket.into(), move || load(Protocol::Http3, &url));
    assert_eq!(logged(dir.path()), vec!["HTTP/3.0 200 200 200 7"; 100]);
}
