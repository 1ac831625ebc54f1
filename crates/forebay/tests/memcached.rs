//! Values of memcached: Debian's server, and one that says what it should not.

use forebay_testkit::{Running, Server, Talk, free_port, tool, wait_for};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::Command;

forebay_testkit::cases!("cases/memcached.cases": servers_that_say_something_else);

/// Ends with the test.
struct Memcached {
    _running: Running,
    port: u16,
}

impl Memcached {
    /// `None` where it is not installed.
    fn start() -> Option<Memcached> {
        let port = free_port();
        let args = ["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()];
        let mut command = Command::new("memcached");
        let start = || Running::start_at(command.args(args), ([127, 0, 0, 1], port).into());
        tool("memcached").then(start).map(|_running| Memcached { _running, port })
    }

    fn set(&self, key: &str, flags: u32, value: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connect");
        stream.send(format!("set {key} {flags} 0 {}\r\n{value}\r\n", value.len()));
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("a line");
        assert_eq!(line, "STORED\r\n");
    }
}

fn conf(http: &str) -> String {
    format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ default_type text/plain; log_format l '$request_uri $status $upstream_status $upstream_response_length';\n\
         access_log logs/a.log l; {http} }}"
    )
}

#[test]
fn values_are_responses() {
    let Some(memcached) = Memcached::start() else { return eprintln!("skipped: memcached is not installed") };
    memcached.set("/value", 0, "hello");
    memcached.set("/a%20b%25.html", 0, "blank");
    memcached.set("/empty", 0, "");
    let long = "0123456789".repeat(50_000);
    memcached.set("/long", 2, &long);
    let server = Server::start(conf(&format!(
        "upstream u {{ server 127.0.0.1:{0}; keepalive 2; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; set $memcached_key $uri; types {{ text/html html; }}\n\
           location / {{ memcached_gzip_flag 2; memcached_pass u; error_page 404 = @made; }}\n\
           location @made {{ return 200 made; }}\n\
           location /missing {{ memcached_pass 127.0.0.1:{0}; }}\n\
           location /none {{ set $memcached_key ''; memcached_pass u; }} }}",
        memcached.port
    )));
    for _ in 0..3 {
        let got = server.get("/value");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\nhello"), "{got}");
        assert!(got.contains("\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n"), "{got}");
        assert!(got.contains("\r\nAccept-Ranges: bytes\r\n") && !got.contains("Content-Encoding"), "{got}");
        let got = server.get("/a%20b%25.html");
        assert!(got.contains("\r\nContent-Type: text/html\r\n") && got.ends_with("\r\n\r\nblank"), "{got}");
        assert!(server.get("/empty").contains("\r\nContent-Length: 0\r\n"));
        assert!(server.get("/other").ends_with("\r\n\r\nmade"));
        let got = server.get("/long");
        assert!(got.contains("\r\nContent-Encoding: gzip\r\n") && got.ends_with(&format!("\r\n\r\n{long}")));
    }
    let got = server.get_with("/value", "Range: bytes=1-2\r\n");
    assert!(got.starts_with("HTTP/1.1 206 ") && got.ends_with("\r\n\r\nel"), "{got}");
    let got = server.ask("HEAD /value HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(got.contains("\r\nContent-Length: 5\r\n") && got.ends_with("\r\n\r\n"), "{got}");
    assert!(server.get("/value").ends_with("\r\n\r\nhello"), "what HEAD left is nobody's");
    let got =
        server.ask("POST /value HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi");
    assert!(got.starts_with("HTTP/1.1 405 "), "{got}");
    let got = server.get("/missing");
    assert!(got.starts_with("HTTP/1.1 404 ") && got.contains("<h1>404 Not Found</h1>"), "{got}");
    assert!(server.get("/none").starts_with("HTTP/1.1 500 "));
    server.wait_for_log("the \"$memcached_key\" variable is not set", 1);
    let missing = "key: \"/other\" was not found by memcached while reading response header from upstream";
    server.wait_for_log(missing, 3);
    let log = wait_for("the log", || Some(server.read("logs/a.log")).filter(|l| l.contains("/none")));
    let lines = "/value 200 200 12\n/a%20b%25.html 200 200 12\n/empty 200 200 7\n/other 200 404 0\n";
    assert!(log.contains(lines), "{log}");
}
