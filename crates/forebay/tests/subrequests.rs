//! Subrequests, limits of requests under way, and smaller parts of the proxy.

use forebay_testkit::{Origin, Server, Talk, ask, compare, get, http, raw, server, tool, wait_until};
use std::io::Read;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An upstream that answers every request.
fn well() -> Origin {
    Origin::start(|asked| asked.answer("200 OK", "", "well"))
}

/// The page of an error has a status of its own (200), but the location that decides on access has refused (nginx: error_page).
#[test]
fn the_page_of_a_refusal_is_no_consent() {
    let pages = ["/page.html", "=403 /page.html", "@named", "=401 @named", "/none", "http://other/"];
    let ways = [
        "return 403;",
        "return 401;",
        "deny all;",
        "proxy_pass http://127.0.0.1:%PORT1%; proxy_intercept_errors on;",
    ];
    let mut locations = String::new();
    let mut paths = Vec::new();
    for (page, way) in pages.iter().flat_map(|page| ways.map(|way| (page, way))) {
        let n = paths.len();
        locations += &format!(
            "location = /{n} {{ error_page 401 403 {page}; auth_request /q{n}; try_files /index.html =404; }}\n\
             location = /q{n} {{ error_page 401 403 {page}; {way} }}\n"
        );
        paths.push(format!("/{n}"));
    }
    let servers = format!(
        "server {{ listen 127.0.0.1:%PORT0%; location @named {{ return 200 named; }} {locations} }}\n\
         server {{ listen 127.0.0.1:%PORT1%; return 403; }}"
    );
    let server = Server::start_on({
        let site = http!("root %DIR%/html; {servers}").site();
        site.write("html/index.html", "secret");
        site.write("html/page.html", "page");
        site
    });
    for path in &paths {
        let got = server.get(path);
        assert!(!got.starts_with("HTTP/1.1 200") && !got.contains("secret"), "{path}: {got}");
    }
    let requests: Vec<String> = paths.iter().map(get).collect();
    compare(&servers, &requests);
}

#[test]
fn large_bodies_find_their_directory() {
    let up = Origin::start(|asked| {
        let body = asked.text.split("\r\n\r\n").nth(1).map_or(0, str::len);
        asked.answer("200 OK", "", format!("{body} bytes"))
    });
    let conf = format!(
        "pid logs/nginx.pid; error_log logs/error.log; events {{}}\n\
         http {{ access_log off; server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{up}; }} }} }}"
    );
    let server = Server::start(conf);
    assert!(server.dir().join("client_body_temp").is_dir());
    assert!(server.dir().join("proxy_temp").is_dir());
    let head = "POST / HTTP/1.0\r\nContent-Length: 100000\r\n\r\n";
    let answer = server.raw([head.as_bytes(), &[b'x'; 100_000]].concat());
    assert!(String::from_utf8_lossy(&answer).ends_with("100000 bytes"), "{}", server.error_log());
}

#[test]
fn another_location_decides_on_access() {
    let auth = Origin::start(|asked| {
        assert_eq!(asked.field("Content-Length"), "");
        match asked.field("X-Token") {
            "good" => asked.answer("204 No Content", "X-User: me\r\n", ""),
            "bad" => asked.answer("403 Forbidden", "", "no"),
            "odd" => asked.answer("418 Odd", "", ""),
            _ => asked.answer("401 Unauthorized", "WWW-Authenticate: Own realm=x\r\n", "who?"),
        }
    });
    let server = Server::start(server!(
        "location / {{ auth_request /auth; auth_request_set $u $upstream_http_x_user;\n\
         error_page 404 = @got; }} location @got {{ return 200 \"$u $request_method\"; }}\n\
         location = /auth {{ internal; proxy_pass http://{auth}; add_header X-Not here; }}"
    ));
    let ask = |token: &str| {
        server.ask(format!("POST /x HTTP/1.0\r\nContent-Length: 3\r\nX-Token: {token}\r\n\r\nabc"))
    };
    for _ in 0..3 {
        let good = ask("good");
        assert!(good.starts_with("HTTP/1.1 200") && good.ends_with("me POST"), "{good}");
    }
    assert!(ask("bad").starts_with("HTTP/1.1 403"));
    let who = ask("");
    assert!(who.starts_with("HTTP/1.1 401") && who.contains("WWW-Authenticate: Own realm=x"), "{who}");
    assert!(ask("odd").starts_with("HTTP/1.1 500"));
    server.wait_for_log("auth request unexpected status: 418", 1);
    assert!(server.get("/auth").starts_with("HTTP/1.1 404"));
}

/// A subrequest for authorization has the method of the client in `$request_method`.
#[test]
fn the_method_of_the_client_is_told() {
    let auth = well();
    let server = Server::start(server!(
        "location /page {{ auth_request /auth; try_files /none =404; }}\n\
         location = /auth {{ internal; proxy_pass http://{auth}; proxy_set_header X-Method $request_method; }} \
         location /get {{ auth_request /auth; error_page 404 405 /page; }}"
    ));
    for method in ["DELETE", "GET"] {
        server.raw(format!("{method} /get HTTP/1.0\r\n\r\n"));
    }
    let told: Vec<String> = (auth.requests().iter())
        .map(|asked| {
            assert!(asked.starts_with("GET /auth "), "{asked}");
            asked.lines().find_map(|l| l.strip_prefix("X-Method: ")).expect("the field").to_owned()
        })
        .collect();
    // A page of `error_page` is asked for by GET.
    assert_eq!(told, ["DELETE", "GET", "GET", "GET"]);
}

#[test]
fn copies_go_elsewhere() {
    let (main, copy, told) = (well(), well(), well());
    let server = Server::start(server!(
        "location / {{ mirror /m; mirror /m2; proxy_pass http://{main};\n\
         post_action @told; }} location /bare {{ mirror /m; mirror_request_body off; proxy_pass http://{main}; }}\n\
         location /m {{ internal; proxy_pass http://{copy}; }} location /dead {{ mirror /gone; proxy_pass http://{main}; }}\n\
         location /gone {{ proxy_pass http://127.0.0.1:1; }}\n\
         location @told {{ proxy_pass http://{told}; proxy_set_header X-What \"$status $upstream_addr $request_completion\"; }}"
    ));
    let post = |uri: &str| server.ask(format!("POST {uri} HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"));
    assert!(post("/?q").ends_with("well"));
    wait_until("two copies", || copy.asked() == 2);
    for copy in copy.requests() {
        assert!(copy.starts_with("POST /m") && copy.contains("?q HTTP") && copy.ends_with("abc"), "{copy}");
    }
    wait_until("the action", || told.asked() == 1);
    let action = told.requests().remove(0);
    copy.forget();
    assert!(action.contains(&format!("X-What: 200 {main} OK")), "{action}");
    assert!(action.starts_with("POST /?q ") && action.ends_with("\r\n\r\nabc"), "{action}");
    assert!(post("/bare").ends_with("well"));
    wait_until("a copy", || copy.asked() == 1);
    assert!(copy.requests()[0].ends_with("\r\n\r\n"));
    // What becomes of a copy is nobody's business.
    assert!(post("/dead").ends_with("well"));
}

#[test]
fn requests_under_way_are_limited() {
    let (held, wait) = (mpsc::channel::<()>(), Arc::new(Mutex::new(())));
    let begun = Mutex::new(held.0);
    let gate = wait.clone();
    let up = Origin::start(move |asked| {
        let _ = begun.lock().expect("sender").send(());
        drop(gate.lock());
        asked.answer("200 OK", "", "well")
    });
    let text = http!(
        "limit_conn_zone $arg_k zone=z:1m; limit_conn_status 429;\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ limit_conn z 1; proxy_pass http://{up}; }}\n\
         location /dry {{ limit_conn z 1; limit_conn_dry_run on; add_header X-S $limit_conn_status; empty_gif; }} }}"
    );
    let server = Server::start(&text);
    let shut = wait.lock().expect("gate");
    let addr = server.addr(0);
    let first = std::thread::spawn(move || raw(addr, b"GET /?k=1 HTTP/1.0\r\n\r\n"));
    held.1.recv_timeout(Duration::from_secs(20)).expect("the first");
    assert!(server.get("/?k=1").starts_with("HTTP/1.1 429"));
    assert!(server.get("/dry?k=1").contains("X-S: REJECTED_DRY_RUN"));
    assert!(server.get("/dry?k=2").contains("X-S: PASSED"));
    // Who is in is known after a reload.
    server.reload();
    server.wait_for_log("reconfiguring", 1);
    assert!(server.get("/?k=1").starts_with("HTTP/1.1 429"));
    drop(shut);
    assert!(String::from_utf8_lossy(&first.join().expect("answer")).ends_with("well"));
    wait_until("a place", || server.get("/?k=1").starts_with("HTTP/1.1 200"));
    assert!(server.error_log().contains("limiting connections by zone \"z\""));
}

#[test]
fn connections_come_from_where_they_are_told_to() {
    let up = Origin::start(|asked| {
        let from = asked.peer.ip().to_string();
        asked.answer("200 OK", "Set-Cookie: a=1; Domain=up; path=/in/x\r\n", &from)
    });
    let server = Server::start(http!(
        "upstream u {{ server {up}; keepalive 8; }} server {{ listen 127.0.0.1:%PORT0%;\n\
         location / {{ proxy_bind $arg_b; proxy_pass http://u; proxy_cookie_domain up down;\n\
         proxy_cookie_path /in/ /out/; proxy_cookie_flags a httponly; }} }}"
    ));
    for _ in 0..3 {
        assert!(server.get("/?b=127.0.0.2").ends_with("127.0.0.2"));
        assert!(server.get("/?b=127.0.0.3").ends_with("127.0.0.3"));
        assert!(server.get("/").ends_with("127.0.0.1"));
    }
    assert!(server.get("/").contains("Set-Cookie: a=1; Domain=down; path=/out/x; HttpOnly\r\n"));
    assert!(server.get("/?b=192.0.2.1").contains("500 Internal"));
    server.wait_for_log("bind(192.0.2.1) failed (99: Cannot assign requested address)", 1);
    assert!(server.get("/?b=x").ends_with("127.0.0.1"));
    server.wait_for_log("invalid local address \"x\"", 1);
}

#[test]
fn hints_come_early() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let up = Origin::start(move |asked| {
        asked.write(b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\nServer: x\r\n\r\n");
        let _ = wait.lock().expect("receiver").recv_timeout(Duration::from_secs(20));
        asked.answer("200 OK", "", "well")
    });
    let server = server!("early_hints $arg_h; location / {{ proxy_pass http://{up}; }}").start();
    let mut client = server.connect();
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    client.send(b"GET /?h=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut hint = vec![0; 64];
    let n = client.read(&mut hint).expect("the hint, before the answer");
    assert_eq!(&hint[..n], b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\n\r\n");
    go.send(()).expect("the upstream waits");
    let rest = client.rest();
    assert!(rest.starts_with("HTTP/1.1 200 OK") && rest.ends_with("well"), "{rest}");
    go.send(()).expect("the upstream waits");
    assert!(server.get("/?h=0").starts_with("HTTP/1.1 200"));
}

#[test]
fn hints_come_early_by_http2() {
    if !tool("curl") {
        return;
    }
    let up = Origin::start(|asked| {
        asked.write(b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\n\r\n");
        asked.answer("200 OK", "", "well")
    });
    let server = server!("http2 on; early_hints 1; location / {{ proxy_pass http://{up}; }}").start();
    let url = format!("http://{}/", server.addr(0));
    let out = std::process::Command::new("curl").args(["-si", "--http2-prior-knowledge", &url]).output();
    let text = String::from_utf8_lossy(&out.expect("curl runs").stdout).into_owned();
    assert!(text.starts_with("HTTP/2 103 \r\nlink: </s.css>; rel=preload\r\n\r\nHTTP/2 200 \r\n"), "{text}");
    assert!(text.ends_with("well"), "{text}");
}

#[test]
fn connect_makes_a_tunnel() {
    let up = well();
    let server = Server::start(http!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{up}; }} }}\n\
         server {{ listen 127.0.0.1:%PORT1%; tunnel_pass; tunnel_connect_timeout 1s; auth_basic x;\n\
         auth_basic_user_file %DIR%/users; }}"
    ));
    server.write("users", "me:{PLAIN}secret\n");
    let ask = |port: usize, target: &str, more: &str| {
        let get = "GET /in HTTP/1.0\r\n\r\n";
        ask(server.addr(port), format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n{more}\r\n{get}"))
    };
    let me = "Proxy-Authorization: Basic bWU6c2VjcmV0\r\n";
    let up = up.to_string();
    let through = ask(1, &up, me);
    let head = through.split("\r\n\r\n").next().unwrap_or_default();
    assert!(head.starts_with("HTTP/1.1 200 OK") && !head.contains("Content-Length"), "{through}");
    assert!(!head.contains("Transfer-Encoding") && through.ends_with("well"), "{through}");
    let who = ask(1, &up, "");
    assert!(
        who.starts_with("HTTP/1.1 407") && who.contains("Proxy-Authenticate: Basic realm=\"x\""),
        "{who}"
    );
    assert!(ask(1, "127.0.0.1:1", me).starts_with("HTTP/1.1 502"));
    assert!(ask(1, &up, &format!("{me}Content-Length: 3\r\n")).starts_with("HTTP/1.1 400"));
    assert!(ask(1, "127.0.0.1", me).starts_with("HTTP/1.1 400"));
    assert!(
        raw(server.addr(1), b"GET / HTTP/1.0\r\nProxy-Authorization: x\r\n\r\n").starts_with(b"HTTP/1.1 401")
    );
    // Where there is no tunnel, nothing of it reaches an upstream.
    assert!(ask(0, &up, "").starts_with("HTTP/1.1 405"));
}

/// The lines of a `post_action` are of the client's request, as in nginx: they name no subrequest.
#[test]
fn errors_of_a_post_action_are_of_the_request() {
    let server = Server::start(server(
        "server_name s;\n\
         location / { post_action /after; return 200 fine; }\n\
         location = /after { proxy_pass http://127.0.0.1:%PORT1%; }",
    ));
    server.raw(b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n");
    let line = format!(
        "connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1, server: s, \
         request: \"GET /x HTTP/1.0\", upstream: \"http://{}/after\", host: \"h\"",
        server.addr(1)
    );
    server.wait_for_log(&line, 1);
}

/// Without a status there is no consent (HTTP/0.9).
#[test]
fn an_answer_without_a_head_is_no_consent() {
    let bare = Origin::start(|asked| asked.close_with(b"welcome"));
    let server = Server::start(server!(
        "location / {{ auth_request /auth; try_files none @in; }} location @in {{ return 200 in; }}\n\
         location = /auth {{ proxy_pass http://{bare}; }}"
    ));
    let answer = server.get("/");
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    server.wait_for_log("auth request has a response without status", 1);
}
