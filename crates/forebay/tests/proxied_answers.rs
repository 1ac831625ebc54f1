//! Treatment of an upstream's answer: it is kept, cut, rewritten or refused.

use forebay_testkit::{Conf, Origin, Server, Site, Talk, files, h2, http, server, wait_for, wait_until};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn conf(rest: &str) -> Conf {
    server!("{rest}")
}

forebay_testkit::cases!("cases/proxied_answers.cases":
    a_status_below_100_is_one_with_a_body, ranges_of_what_an_upstream_sends_whole,
    a_pattern_for_cookie_domains_sees_the_leading_dot, limit_req_comes_before_limit_conn,
    the_log_has_the_status_that_was_sent, a_name_that_comes_up_is_looked_up_as_the_system_does,
    line_breaks_in_variables_make_no_fields, log_lines_name_the_upstream_behind_a_redirect);

/// Ten bytes, of which a HEAD request only hears.
fn ten() -> SocketAddr {
    Origin::start(|asked| {
        let body = if asked.text.starts_with("HEAD") { "" } else { "0123456789" };
        asked.write(format!("HTTP/1.1 200 OK\r\nContent-Length: 10\r\nAccept-Ranges: none\r\n\r\n{body}"))
    })
    .addr
}

fn ask(server: &Server, method: &str, uri: &str, fields: &str) -> String {
    server.ask(format!("{method} {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n"))
}

#[test]
fn head_leaves_stored_files_alone() {
    let up = ten();
    let site = Site::new(conf(&format!(
        "location / {{ root %DIR%/kept; proxy_store on; proxy_pass http://{up}; }}"
    )));
    let kept = site.make_dir("kept");
    let server = Server::start_on(site);
    assert!(ask(&server, "HEAD", "/none", "").contains("Content-Length: 10\r\n"));
    assert!(ask(&server, "GET", "/a", "").ends_with("0123456789"));
    wait_until("the stored file", || kept.join("a").exists());
    assert!(ask(&server, "HEAD", "/a", "").ends_with("\r\n\r\n"));
    assert!(ask(&server, "GET", "/b", "").ends_with("0123456789"));
    wait_until("the stored file", || kept.join("b").exists());
    assert_eq!(std::fs::read_to_string(kept.join("a")).expect("kept"), "0123456789");
    assert!(!kept.join("none").exists());
}

/// As in nginx an older answer stands in for a server that fails, not for a status that `proxy_cache_use_stale` does not name.
#[test]
fn stale_if_error_is_for_servers_that_fail() {
    let times = Arc::new(AtomicUsize::new(0));
    let first = times.clone();
    let up = Origin::start(move |asked| {
        let status = match asked.target() {
            _ if first.fetch_add(1, Ordering::SeqCst) < 4 => "200 OK",
            "/403" => "403 Forbidden",
            "/500" => "500 Internal Server Error",
            "/503" => "503 Service Unavailable",
            _ => return false,
        };
        let fields = if status == "200 OK" { "Cache-Control: max-age=1, stale-if-error=100\r\n" } else { "" };
        asked.answer(status, fields, status)
    });
    let site = Site::new(http!(
        "proxy_cache_path %DIR%/cache keys_zone=c:1m;\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_cache c; add_header X-Cache $upstream_cache_status always;\n\
           location / {{ proxy_pass http://{up}; }} }}"
    ));
    let server = Server::start_on(site);
    let all = ["/403", "/500", "/503", "/none"];
    for uri in all {
        assert!(ask(&server, "GET", uri, "").contains("X-Cache: MISS\r\n"));
    }
    for uri in all {
        let answer = wait_for("an entry to expire", || {
            let answer = ask(&server, "GET", uri, "");
            (!answer.contains("X-Cache: HIT\r\n")).then_some(answer)
        });
        let stale = answer.starts_with("HTTP/1.1 200 ") && answer.contains("X-Cache: STALE\r\n");
        assert_eq!(stale, uri == "/none", "{uri}: {answer}");
    }
}

/// Connections begin with the header, and are for the client that it names only.
#[test]
fn upstreams_are_told_for_whom_a_connection_is() {
    use std::io::Read;
    let server = Server::start(http(
        "upstream u { server 127.0.0.1:%PORT1%; keepalive 8; } proxy_http_version 1.1;\n\
         server { listen 127.0.0.1:%PORT0%; set_real_ip_from 127.0.0.1; real_ip_header X-Client;\n\
           location /v1 { proxy_protocol on; proxy_pass http://u; }\n\
           location /v2 { proxy_protocol v2; proxy_pass http://u; }\n\
           location /off { proxy_protocol off; proxy_pass http://u; } }\n\
         server { listen 127.0.0.1:%PORT1% proxy_protocol; return 200 \"$proxy_protocol_addr $proxy_protocol_port \
           $proxy_protocol_server_port $connection $http_connection\"; }",
    ));
    let mut seen = std::collections::HashSet::new();
    for uri in ["/v1", "/v2"] {
        let mut client = server.connect();
        let own = client.local_addr().expect("address").port();
        for _ in 0..2 {
            client.send(format!("GET {uri} HTTP/1.1\r\nHost: x\r\n\r\n"));
            let mut buf = [0; 2048];
            let n = client.read(&mut buf).expect("answer");
            let answer = String::from_utf8_lossy(&buf[..n]).into_owned();
            let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
            let words: Vec<&str> = body.split(' ').collect();
            assert_eq!(
                words[..3],
                ["127.0.0.1", &own.to_string(), &server.addr(0).port().to_string()],
                "{answer}"
            );
            assert_eq!(words[4], "close");
            assert!(seen.insert(words[3].to_owned()), "a connection of its own: {answer}");
        }
    }
    let real = ask(&server, "GET", "/v2", "X-Client: 2001:db8::7\r\n");
    assert!(real.contains("\r\n\r\n2001:db8::7 "), "{real}");
    assert!(!ask(&server, "GET", "/off", "").contains("HTTP/1.1 200"), "it insists on the header");
}

/// A header of the PROXY protocol that comes by a unix socket, as nginx takes it: without an address of the Internet
/// in it the client stays what it is.
#[test]
fn the_proxy_protocol_is_spoken_over_unix_sockets() {
    let server = Server::start(http(
        "server { listen 127.0.0.1:%PORT0%; return 200 up; }\n\
         server { listen unix:%DIR%/real proxy_protocol; set_real_ip_from unix:; real_ip_header proxy_protocol;\n\
           return 200 \"$remote_addr|$remote_port|$realip_remote_addr|$proxy_protocol_addr|$proxy_protocol_server_addr\"; }\n\
         server { listen unix:%DIR%/plain proxy_protocol;\n\
           return 200 \"$remote_addr|$remote_port|$realip_remote_addr|$proxy_protocol_addr|$proxy_protocol_server_addr\"; }",
    ));
    let ask = |name: &str, header: &[u8]| {
        let path = server.dir().join(name);
        let mut stream = std::os::unix::net::UnixStream::connect(path).expect("connect");
        stream.send([header, b"GET / HTTP/1.0\r\n\r\n"].concat());
        let got = stream.rest_bytes();
        let got = String::from_utf8_lossy(&got).into_owned();
        got.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    };
    const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let internet = [BINARY, &[0x21, 0x11, 0, 12, 9, 8, 7, 6, 5, 4, 3, 2, 0, 11, 0, 22]].concat();
    let local = [BINARY, &[0x20, 0, 0, 0]].concat();
    let unix = [BINARY, &[0x21, 0x31, 0, 216], b"/a", &[0; 106], b"/b", &[0; 106]].concat();
    for (header, real, plain) in [
        (
            &b"PROXY TCP4 1.2.3.4 5.6.7.8 11 22\r\n"[..],
            "1.2.3.4|11|unix:|1.2.3.4|5.6.7.8",
            "unix:||unix:|1.2.3.4|5.6.7.8",
        ),
        (b"PROXY UNKNOWN\r\n", "unix:||unix:||", "unix:||unix:||"),
        (&internet, "9.8.7.6|11|unix:|9.8.7.6|5.4.3.2", "unix:||unix:|9.8.7.6|5.4.3.2"),
        (&local, "unix:||unix:||", "unix:||unix:||"),
        (&unix, "unix:||unix:||", "unix:||unix:||"),
    ] {
        assert_eq!(ask("real", header).as_deref(), Some(real), "{header:?}");
        assert_eq!(ask("plain", header).as_deref(), Some(plain), "{header:?}");
    }
    // Without a header, or with one that is none.
    for header in [&b""[..], b"PROXY garbage\r\n"] {
        assert_eq!(ask("real", header), None, "{header:?}");
    }
    server.wait_for_log(
        "broken header: \"PROXY garbage\" while reading PROXY protocol, client: unix:, server: unix:",
        1,
    );
}

/// Files of bodies lie below level folders, named by the last digits of the file's name, as in nginx.
#[test]
fn bodies_are_kept_below_the_levels_of_their_path() {
    let server = Server::start(http(
        "client_body_temp_path %DIR%/body 1 2; client_body_in_file_only on;\n\
         server { listen 127.0.0.1:%PORT0%; location / { proxy_pass http://127.0.0.1:%PORT1%; } }\n\
         server { listen 127.0.0.1:%PORT1%; return 200 $http_x; }",
    ));
    let answer = server.raw(b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello");
    assert!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{} {}",
        String::from_utf8_lossy(&answer),
        server.error_log()
    );
    let mut path = server.dir().join("body");
    let mut folders = Vec::new();
    while path.is_dir() {
        let mut inside = std::fs::read_dir(&path).expect("a folder").map(|e| e.expect("an entry"));
        let entry = inside.next().expect("one entry");
        assert!(inside.next().is_none());
        folders.push(entry.file_name().into_string().expect("ASCII"));
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&entry.metadata().expect("metadata").permissions());
        path = entry.path();
        assert_eq!(mode & 0o777, if path.is_dir() { 0o700 } else { 0o600 });
    }
    let [first, second, name] = folders.as_slice() else { panic!("{folders:?}") };
    assert_eq!((name.len(), first.len(), second.len()), (10, 1, 2), "{folders:?}");
    assert!(name.ends_with(&format!("{second}{first}")), "{folders:?}");
    assert_eq!(std::fs::read(&path).expect("the body"), b"hello");
}

/// `client_body_in_file_only` makes a file of each body, and none where there is no body.
#[test]
fn requests_without_a_body_leave_no_file() {
    let server = Server::start(conf(&format!(
        "client_body_in_file_only on; http2 on;\n\
         location / {{ proxy_pass http://{up}; }} location /copy {{ mirror /mirrored; proxy_pass http://{up}; }}\n\
         location /mirrored {{ internal; proxy_pass http://{up}; }} location /php {{ fastcgi_pass 127.0.0.1:1; fastcgi_temp_path %DIR%/f; }}",
        up = ten()
    )));
    let count = || files(&server.dir().join("body")).len();
    let mut files = 0;
    for path in ["/", "/copy", "/php"] {
        for (request, has_body) in [
            ("GET", false),
            ("HEAD", false),
            ("POST", false),
            ("POST|Content-Length: 0\r\n\r\n", true),
            ("POST|Content-Length: 3\r\n\r\nabc", true),
            ("POST|Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true),
            ("PUT|Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", true),
        ] {
            let (method, body) = request.split_once('|').unwrap_or((request, "\r\n"));
            let text = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{body}");
            assert!(!server.raw(&text).is_empty(), "{path} {request}");
            files += usize::from(has_body);
            assert_eq!(count(), files, "{path} {request}");
        }
    }
    let mut client = h2::Client::new(&server);
    assert_eq!(client.get_status(1, "/"), "200");
    assert_eq!(count(), files, "over HTTP/2");
    // Nobody is to raise `client_body_buffer_size` for that.
    let log = server.error_log();
    assert!(log.contains("[notice]") && !log.contains("[warn]"), "{log}");
}
