//! Variables and fields about upstreams have the values that nginx gives them.

use forebay_testkit::{Oracle, Origin, Server, Site, oracle, raw, wait_for};
use std::net::SocketAddr;
use std::path::Path;

fn conf(rest: &str) -> String {
    format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ client_body_temp_path %DIR%/body; proxy_temp_path %DIR%/temp; {rest} }}"
    )
}

/// Returns an answer without product and time, for comparison with nginx.
fn plain(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer).into_owned();
    let line = |l: &str| match l.split_once(": ") {
        Some(("Server", v)) if v.starts_with("nginx") || v.starts_with("forebay") => "Server: own".to_owned(),
        Some(("Date", v)) if v != "never" => "Date: now".to_owned(),
        _ => l.to_owned(),
    };
    text.split("\r\n").map(line).collect::<Vec<_>>().join("\n")
}

/// Lines of the access log, once there are so many.
fn lines(dir: &Path, count: usize) -> Vec<String> {
    wait_for("lines of the access log", || {
        let text = std::fs::read_to_string(dir.join("logs/a.log")).unwrap_or_default();
        let all: Vec<String> = text.lines().map(str::to_owned).collect();
        (all.len() >= count).then_some(all)
    })
}

/// Asks a server, and nginx if there is one, one thing after the other. Gives what ours has answered and logged.
fn told(conf: &str, logs: usize, uris: &[&str]) -> (Vec<String>, Vec<String>) {
    let ask = |addr: SocketAddr| -> Vec<String> {
        let each = uris.iter().map(|uri| {
            let (uri, fields) = uri.split_once(' ').unwrap_or((uri, ""));
            let text = format!("GET {uri} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n");
            plain(&raw(addr, &text))
        });
        each.collect()
    };
    let server = Server::start(conf);
    let ours = (ask(server.addr(0)), lines(server.dir(), logs));
    if let Some(nginx) = oracle() {
        let site = Site::new(conf);
        let dir = site.dir().to_owned();
        let theirs = Oracle::start(&nginx, site);
        assert_eq!(ours, (ask(theirs.addr()), lines(&dir, logs)));
    }
    ours
}

#[test]
fn slices_are_told_of_by_the_first() {
    let up = Origin::start(|asked| {
        let all = "0123456789abcdefghijklmnopqrstuvwxyz";
        let range = asked.field("Range").strip_prefix("bytes=").expect("a range").to_owned();
        let (a, b) = range.split_once('-').expect("two numbers");
        let a: usize = a.parse().expect("start");
        let b = (b.parse::<usize>().expect("end") + 1).min(all.len());
        let (len, last) = (b - a, b - 1);
        asked.write(format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nContent-Length: {len}\r\n\
                 Content-Range: bytes {a}-{last}/36\r\nX-At: {a}\r\n\r\n{}",
            &all[a..b]
        ));
        true
    });
    let told_of = "$upstream_addr|$upstream_status|$upstream_cache_status|$upstream_response_length";
    let conf = conf(&format!(
        "log_format u '{told_of}|$upstream_http_x_at|$status|$body_bytes_sent'; access_log off;\n\
         proxy_cache_path %DIR%/cache keys_zone=c:1m;\n\
         server {{ listen 127.0.0.1:%PORT0%; access_log logs/a.log u; add_header X-U \"{told_of}\";\n\
           slice 10; proxy_set_header Range $slice_range;\n\
           location /kept {{ proxy_cache c; proxy_cache_key $uri$slice_range; proxy_cache_valid 206 1h;\n\
             proxy_pass http://{up}; }}\n\
           location / {{ proxy_pass http://{up}; }} }}"
    ));
    // The last one finds its first slice in the cache, and the others not.
    let uris = [
        "/a",
        "/kept/a",
        "/kept/a",
        "/kept/a Range: bytes=5-24\r\n",
        "/kept/b Range: bytes=5-6\r\n",
        "/kept/b",
    ];
    let (answers, logged) = told(&conf, uris.len(), &uris);
    assert!(answers.iter().all(|a| a.starts_with("HTTP/1.1 20")), "{answers:#?}");
    assert!(answers[1].contains(&format!("\nX-U: {up}|206|MISS|0\n")), "{answers:#?}");
    let expected = [
        format!("{up}|206|-|10|0|200|36"),
        format!("{up}|206|MISS|10|0|200|36"),
        "-|-|HIT|-|0|200|36".to_owned(),
        "-|-|HIT|-|0|206|20".to_owned(),
        format!("{up}|206|MISS|10|0|206|2"),
        "-|-|HIT|-|0|200|36".to_owned(),
    ];
    assert_eq!(logged, expected);
}

/// With `proxy_pass_header` a response has no `Server` or `Date` if the upstream sends none.
#[test]
fn fields_that_are_the_upstreams_business() {
    let up = Origin::start(|asked| {
        let own = if asked.target().ends_with("own") { "Server: up\r\nDate: never\r\n" } else { "" };
        let to = if asked.target().ends_with("to") { "X-Accel-Redirect: /file\r\n" } else { "" };
        let status = if asked.target().ends_with("no") { "404 No" } else { "200 OK" };
        asked.write(format!("HTTP/1.1 {status}\r\n{own}{to}Content-Length: 2\r\n\r\nok"))
    });
    let both = "proxy_pass_header Server; proxy_pass_header Date;";
    let conf = conf(&format!(
        "log_format u '$request|$status|$body_bytes_sent'; access_log logs/a.log u;\n\
         proxy_cache_path %DIR%/cache keys_zone=c:1m;\n\
         server {{ listen 127.0.0.1:%PORT0%;\n\
           location /none {{ proxy_pass http://{up}; }}\n\
           location /server {{ proxy_pass_header Server; proxy_pass http://{up}; }}\n\
           location /date {{ proxy_pass_header date; proxy_pass http://{up}; }}\n\
           location /both {{ {both} proxy_pass http://{up}; }}\n\
           location /kept {{ {both} proxy_cache c; proxy_cache_valid 1h; proxy_pass http://{up}; }}\n\
           location /page {{ {both} proxy_intercept_errors on; error_page 404 /file; proxy_pass http://{up}; }}\n\
           location /dead {{ {both} proxy_pass http://127.0.0.1:%PORT1%; }}\n\
           location = /file {{ return 200 file; }} }}"
    ));
    let uris = [
        "/none",
        "/none/own",
        "/server",
        "/server/own",
        "/date",
        "/date/own",
        "/both",
        "/both/own",
        "/both/to",
        "/both/no",
        "/kept",
        "/kept",
        "/kept",
        "/kept/own",
        "/kept/own",
        "/page/no",
    ];
    let (answers, _) = told(&conf, uris.len(), &uris);
    let of = |uri: &str| {
        let at = uris.iter().rposition(|u| *u == uri).expect("it was asked");
        let said = |name: &str| answers[at].lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
        (said("Server"), said("Date"))
    };
    assert_eq!(of("/none"), (Some("own"), Some("now")));
    assert_eq!(of("/server"), (None, Some("now")));
    assert_eq!(of("/date"), (Some("own"), None));
    assert_eq!((of("/both"), of("/both/no"), of("/kept")), ((None, None), (None, None), (None, None)));
    assert_eq!(of("/kept/own"), (Some("up"), Some("never")));
    // What is not the upstream's answer is ours.
    assert_eq!((of("/both/to"), of("/page/no")), (of("/none"), of("/none")));
}

/// An answer that gives way to another has taken its time, too.
#[test]
fn times_of_answers_that_are_not_passed_on() {
    let up = Origin::start(|asked| {
        let to = if asked.target().ends_with("to") { "X-Accel-Redirect: /file\r\n" } else { "" };
        let status = if asked.target().ends_with("no") { "404 No" } else { "200 OK" };
        asked.write(format!("HTTP/1.1 {status}\r\n{to}Content-Length: 2\r\n\r\nok"))
    });
    let conf = conf(&format!(
        "map $upstream_response_time $time {{ ~^[0-9.]+$ some; default $upstream_response_time; }}\n\
         log_format u '$request_uri|$status|$upstream_status|$upstream_response_length|$time';\n\
         access_log logs/a.log u;\n\
         server {{ listen 127.0.0.1:%PORT0%;\n\
           location / {{ proxy_pass http://{up}; }}\n\
           location /page {{ proxy_intercept_errors on; error_page 404 /file; proxy_pass http://{up}; }}\n\
           location = /file {{ return 200 file; }} }}"
    ));
    let uris = ["/ok", "/to", "/page/no", "/page/to"];
    let (_, logged) = told(&conf, uris.len(), &uris);
    let expected =
        ["/ok|200|200|2|some", "/to|200|200|0|some", "/page/no|404|404|0|some", "/page/to|200|200|0|some"];
    assert_eq!(logged, expected);
}

/// A redirect that leads nowhere is told of like any other answer.
#[test]
fn redirects_that_lead_nowhere() {
    let up = Origin::start(|asked| {
        let to = asked.target().strip_prefix("/to/").expect("where").to_owned();
        asked.close_with(format!("HTTP/1.1 200 OK\r\nX-Own: mine\r\nX-Accel-Redirect: {to}\r\n\r\n"))
    });
    let conf = conf(&format!(
        "log_format u '$status|$upstream_http_x_own|$upstream_http_x_accel_redirect'; access_log logs/a.log u;\n\
         server {{ listen 127.0.0.1:%PORT0%; error_page 404 /file;\n\
           location / {{ proxy_pass http://{up}; }} location = /file {{ return 200 file; }} }}"
    ));
    let uris = ["/to//a/%2e%2e/b", "/to/nowhere"];
    let (_, logged) = told(&conf, uris.len(), &uris);
    assert!(logged.iter().all(|l| l.starts_with("404|mine|")), "{logged:#?}");
}

/// A server that is left alone: the log says what it failed at.
#[test]
fn upstream_variables_name_the_failure() {
    let mute = Origin::start(|_| false);
    let up = Origin::start(|asked| asked.answer("200 OK", "", "well"));
    let server = Server::start(conf(&format!(
        "access_log off; upstream mute {{ server {mute}; server {up} backup; }}\n\
         upstream none {{ server 127.0.0.1:%PORT1%; server {up} backup; }}\n\
         server {{ listen 127.0.0.1:%PORT0%;\n\
         location /mute {{ proxy_pass http://mute; }} location /none {{ proxy_pass http://none; }} }}"
    )));
    for (uri, doing) in
        [("/mute", "reading response header from upstream"), ("/none", "connecting to upstream")]
    {
        assert!(server.get(uri).ends_with("well"));
        server.wait_for_log(format!("upstream server temporarily disabled while {doing}, client"), 1);
    }
}

/// Content counts also where no head has been sent before it: to a client of HTTP/0.9, and from a server of it.
#[test]
fn lengths_of_responses_without_heads() {
    let up = Origin::start(|asked| match asked.target() {
        "/old" => asked.close_with(b"no head"),
        _ => asked.answer("200 OK", "", "content"),
    });
    let server = Server::start(conf(&format!(
        "log_format l '$uri $upstream_response_length $body_bytes_sent'; access_log logs/a.log l;\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{up}; }} }}"
    )));
    assert!(server.get("/old").ends_with("no head"));
    assert_eq!(server.raw(b"GET /new\r\n"), b"content");
    assert!(server.get("/newer").ends_with("content"));
    assert_eq!(lines(server.dir(), 3), ["/old 7 7", "/new 7 7", "/newer 7 7"]);
}
