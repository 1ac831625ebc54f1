//! Treatment of an upstream's answer: it is kept, cut, rewritten or refused.

use forebay_testkit::{Conf, Origin, Server, files, h2, http, server};
use std::net::SocketAddr;

fn conf(rest: &str) -> Conf {
    server!("{rest}")
}

forebay_testkit::cases!("cases/proxied_answers.cases":
    a_status_below_100_is_one_with_a_body, ranges_of_what_an_upstream_sends_whole,
    a_pattern_for_cookie_domains_sees_the_leading_dot, limit_req_comes_before_limit_conn,
    the_log_has_the_status_that_was_sent, a_name_that_comes_up_is_looked_up_as_the_system_does,
    line_breaks_in_variables_make_no_fields, log_lines_name_the_upstream_behind_a_redirect, head_leaves_stored_files_alone,
    stale_if_error_is_for_servers_that_fail, upstreams_are_told_for_whom_a_connection_is,
    the_proxy_protocol_is_spoken_over_unix_sockets);

/// Ten bytes, of which a HEAD request only hears.
fn ten() -> SocketAddr {
    Origin::start(|asked| {
        let body = if asked.text.starts_with("HEAD") { "" } else { "0123456789" };
        asked.write(format!("HTTP/1.1 200 OK\r\nContent-Length: 10\r\nAccept-Ranges: none\r\n\r\n{body}"))
    })
    .addr
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
