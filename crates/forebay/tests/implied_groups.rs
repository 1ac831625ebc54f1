//! Connections to an address or name that stands in `proxy_pass` itself: they are kept for the next request, and no
//! request fails by that.

use forebay_testkit::{Server, server, wait_for, wait_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// An upstream that answers with the number of the connection and of the request on it.
struct Upstream {
    addr: SocketAddr,
    /// Heads of all requests.
    asked: Arc<Mutex<Vec<String>>>,
    /// Connections that were opened.
    opened: Arc<AtomicUsize>,
    /// Connections that have ended.
    ended: Arc<AtomicUsize>,
}

/// Reads a head with the body that its `Content-Length` announces; `None` at the end.
fn request(stream: &mut TcpStream) -> Option<String> {
    let (mut text, mut byte) = (Vec::new(), [0; 1]);
    while !text.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        text.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let length = text.lines().find_map(|l| l.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some(text)
}

/// Starts one. `keeps` says, of the number of the connection and of a request on it, whether that is answered; else the
/// connection is closed when the request has come.
fn upstream(keeps: impl Fn(usize, usize) -> bool + Send + Sync + 'static) -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let up = Upstream {
        addr: listener.local_addr().expect("address"),
        asked: Arc::default(),
        opened: Arc::default(),
        ended: Arc::default(),
    };
    let (asked, opened, ended) = (up.asked.clone(), up.opened.clone(), up.ended.clone());
    let keeps = Arc::new(keeps);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (asked, ended, keeps) = (asked.clone(), ended.clone(), keeps.clone());
            let conn = opened.fetch_add(1, SeqCst) + 1;
            std::thread::spawn(move || {
                let mut n = 0;
                while let Some(head) = request(&mut stream) {
                    n += 1;
                    asked.lock().expect("lock").push(head);
                    if !keeps(conn, n) {
                        break;
                    }
                    let text = format!("{conn}.{n}");
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
                    if stream.write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
                drop(stream);
                ended.fetch_add(1, SeqCst);
            });
        }
    });
    up
}

fn serve(rest: &str) -> Server {
    Server::start(format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ client_body_temp_path %DIR%/body; map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}\n\
         log_format l '$upstream_addr $upstream_status'; access_log logs/a.log l;\n\
         server {{ listen 127.0.0.1:%PORT0%; {rest} }} }}"
    ))
}

/// Status and body.
fn ask(server: &Server, method: &str, uri: &str) -> String {
    let length = if method == "GET" { 0 } else { 1 };
    let body = &"x"[..length];
    let text = format!(
        "{method} {uri} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let answer = server.ask(&text);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    if status == "200" { body.to_owned() } else { status.to_owned() }
}

#[test]
fn connections_are_kept_without_an_upstream_block() {
    let up = upstream(|_, _| true);
    let server = serve(&format!("location / {{ proxy_pass http://{}; }}", up.addr));
    assert_eq!(["/", "/", "/x"].map(|uri| ask(&server, "GET", uri)), ["1.1", "1.2", "1.3"]);
    assert_eq!(ask(&server, "PUT", "/"), "1.4");
    // What may not be sent twice has a connection of its own, which is kept.
    assert_eq!(["/", "/"].map(|uri| ask(&server, "POST", uri)), ["2.1", "3.1"]);
    assert_eq!(ask(&server, "GET", "/"), "3.2");
    assert!(up.asked.lock().expect("lock").iter().all(|head| !head.contains("Connection:")));
    // Not for long.
    wait_until("the end of idle connections", || up.ended.load(SeqCst) == 3);
    assert_eq!(ask(&server, "GET", "/"), "4.1");
}

#[test]
fn the_configuration_can_have_new_connections() {
    let up = upstream(|_, _| true);
    let pass = format!("proxy_pass http://{}", up.addr);
    let server = serve(&format!(
        "location /1.0 {{ proxy_http_version 1.0; {pass}; }}
         location /close {{ proxy_set_header Connection close; {pass}; }}
         location /map {{ proxy_set_header Connection $connection_upgrade; {pass}; }}
         location /proxy {{ proxy_protocol on; {pass}; }}
         location /once {{ proxy_next_upstream off; {pass}; }}"
    ));
    for uri in ["/1.0", "/close", "/map", "/once"] {
        let before = up.opened.load(SeqCst);
        let got = [ask(&server, "GET", uri), ask(&server, "GET", uri)];
        assert_eq!(got, [format!("{}.1", before + 1), format!("{}.1", before + 2)], "{uri}");
    }
}

/// Connections are kept for the location that made them, with its source address for instance.
#[test]
fn connections_are_not_shared_between_locations() {
    let up = upstream(|_, _| true);
    let server = serve(&format!(
        "location /a {{ proxy_pass http://{0}; }} location /b {{ proxy_pass http://{0}; }}
         location /bind {{ proxy_bind $arg_from; proxy_pass http://{0}; }}",
        up.addr
    ));
    let got = ["/a", "/b", "/a", "/b"].map(|uri| ask(&server, "GET", uri));
    assert_eq!(got, ["1.1", "2.1", "1.2", "2.2"]);
    let bound = ["/bind?from=127.0.0.2", "/bind?from=127.0.0.3", "/bind?from=127.0.0.2", "/bind"];
    assert_eq!(bound.map(|uri| ask(&server, "GET", uri)), ["3.1", "4.1", "3.2", "5.1"]);
}

/// The upstream closes a kept connection at the moment at which a request is on its way.
#[test]
fn a_kept_connection_that_is_closed_costs_nothing() {
    // The first connections answer once; what comes then is read and never answered.
    let up = upstream(|conn, n| n == 1 || conn > 2);
    let server = serve(&format!("location / {{ proxy_pass http://{}; }}", up.addr));
    assert_eq!(ask(&server, "GET", "/"), "1.1");
    // The kept one is tried, and after it a new one.
    assert_eq!(ask(&server, "GET", "/"), "2.1");
    assert_eq!(ask(&server, "POST", "/"), "3.1");
    assert_eq!(ask(&server, "GET", "/"), "3.2");
    let one = format!("{} 200", up.addr);
    let log = wait_for("four lines", || {
        let text = server.read("logs/a.log");
        (text.lines().count() == 4).then_some(text)
    });
    assert!(log.lines().all(|line| line == one), "{log}");
}

/// An address without a port that comes up at run time is not the server that another directive names with its port.
#[test]
fn an_address_stands_for_itself_with_its_port() {
    let up = upstream(|_, _| true);
    let server = Server::start(server!(
        "location /fixed {{ proxy_pass http://{}; }}\n\
         location /bare {{ set $to 127.0.0.1; proxy_pass http://$to; proxy_connect_timeout 1s; }}\n\
         location /same {{ set $to {}; proxy_pass http://$to; }}",
        up.addr,
        up.addr
    ));
    for (path, asked) in [("/fixed", 1), ("/bare", 1), ("/same", 2), ("/bare", 2)] {
        server.get(path);
        assert_eq!(up.asked.lock().expect("lock").len(), asked, "{path}");
    }
}
