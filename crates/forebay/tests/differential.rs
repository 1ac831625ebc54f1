//! The same configuration and the same bytes go to nginx and to Forebay: status line, fields and body
//! must agree. Known differences are listed in docs/differences.md and are not asked for here.

mod caching;
mod files;
mod rewriting;

use forebay_testkit::{
    Oracle, Server, Site, get, is_before, open_up, oracle, page_files, program, raw, wait_until, wrap,
};
use std::process::Stdio;

forebay_testkit::cases!("cases/differential.cases":
    refused_heads_and_odd_names, heads_by_server, headers_and_hosts, broken_bodies);

#[test]
fn configurations_are_judged_alike() {
    let Some(nginx) = oracle() else { return };
    let cases = [
        "listen 127.0.0.1:%PORT0%; location / { root html; alias x; }",
        "listen 127.0.0.1:%PORT0%; location /a {} location /a {}",
        "listen 127.0.0.1:%PORT0%; location = / { location /x {} }",
        "listen 127.0.0.1:%PORT0%; return abc;",
        "listen 127.0.0.1:%PORT0%; set x 1;",
        "listen 127.0.0.1:%PORT0%; if (x) { }",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log nosuchformat;",
        "listen 127.0.0.1:%PORT0%; keepalive_timeout x;",
        "listen 127.0.0.1:%PORT0%; client_max_body_size 1x;",
        "listen 127.0.0.1:%PORT0%; error_page 200 /x;",
        "listen 127.0.0.1:%PORT0%; expires @25h;",
        "listen 127.0.0.1:%PORT0% nosuch;",
        "listen 127.0.0.1:99999;",
        "listen 127.0.0.1:%PORT0%; server_name *.*.org a* b.*.c d..e;",
        "listen 127.0.0.1:%PORT0%; server_name *a.org;",
        "listen 127.0.0.1:%PORT0%; connection_pool_size 40;",
        "listen 127.0.0.1:%PORT0%; request_pool_size 1000;",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined buffer=0;",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined flush=x;",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined nosuch=1;",
        "listen 127.0.0.1:%PORT0%; error_log logs/b.log error warn;",
        "listen 127.0.0.1:%PORT0%; error_log logs/b.log error debug_http;",
        "listen 127.0.0.1:%PORT0%; error_log logs/b.log debug_http debug_core;",
        "listen 127.0.0.1:%PORT0%; disable_symlinks on off;",
        "listen 127.0.0.1:%PORT0%; disable_symlinks off from=/a;",
        "listen 127.0.0.1:%PORT0%; open_file_cache off 1;",
        "listen 127.0.0.1:%PORT0%; error_page 499 /x;",
        "listen 127.0.0.1:%PORT0%; limit_conn_status x;",
        "listen 127.0.0.1:%PORT0%; } upstream u { server 127.0.0.1:1; keepalive 1; keepalive 2;",
        "listen 127.0.0.1:%PORT0%; } upstream u { server 127.0.0.1:1; keepalive_time x;",
        "listen 127.0.0.1:%PORT0%; } log_format x $1; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0%; } server { listen 127.0.0.1:%PORT0%; server_name a*;",
        "listen 127.0.0.1:%PORT0%; } server { listen 127.0.0.1:%PORT0%; server_name b..a;",
        "listen 127.0.0.1:%PORT0%; } server { listen 127.0.0.1:%PORT0%; server_name *.a.*;",
        "listen 127.0.0.1:%PORT0%; } server { listen 127.0.0.1:%PORT0%; server_name .a.*;",
        "listen 127.0.0.1:%PORT0%; return 200 $nosuchvariable;",
        "listen 127.0.0.1:%PORT0%; open_file_cache inactive=5s;",
        "listen 127.0.0.1:%PORT0%; sendfile maybe;",
        "listen 127.0.0.1:%PORT0%; root a; root b;",
        // Sizes that do not fit to each other.
        "listen 127.0.0.1:%PORT0%; proxy_buffers 1 4k;",
        "listen 127.0.0.1:%PORT0%; location / { proxy_buffer_size 64k; }",
        "listen 127.0.0.1:%PORT0%; location / { proxy_buffers 8 4k; proxy_busy_buffers_size 2k; }",
        "listen 127.0.0.1:%PORT0%; location / { proxy_temp_file_write_size 1k; }",
        "listen 127.0.0.1:%PORT0%; location / { fastcgi_max_temp_file_size 1k; }",
        "listen 127.0.0.1:%PORT0%; location / { uwsgi_buffers 8 4k; uwsgi_busy_buffers_size 32k; }",
        "listen 127.0.0.1:%PORT0%; location / { if ($host) { scgi_buffers 2 4k; } }",
        "listen 127.0.0.1:%PORT0%; large_client_header_buffers 4 256;",
        "listen 127.0.0.1:%PORT0%; connection_pool_size 8k; large_client_header_buffers 4 4k;",
        // Pools of threads.
        "listen 127.0.0.1:%PORT0%; aio threads=nosuch;",
        "listen 127.0.0.1:%PORT0%; } } thread_pool x max_queue=1; http { server {",
        "listen 127.0.0.1:%PORT0%; } } thread_pool x threads=x; http { server {",
        "listen 127.0.0.1:%PORT0%; } } thread_pool x threads=1; thread_pool x threads=1; http { server {",
        // Values and words.
        "listen 127.0.0.1:%PORT0%; proxy_limit_rate fast;",
        "listen 127.0.0.1:%PORT0%; proxy_store \"\";",
        "listen 127.0.0.1:%PORT0%; client_body_temp_path body 5 5 5;",
        "listen 127.0.0.1:%PORT0%; location / { proxy_cookie_path off; proxy_cookie_path /a /b; }",
        "listen 127.0.0.1:%PORT0%; location / { proxy_cookie_flags off; proxy_cookie_flags a secure; }",
        "listen 127.0.0.1:%PORT0%; proxy_ssl_certificate a.crt; proxy_ssl_certificate b.crt;",
        "listen 127.0.0.1:%PORT0%; proxy_bind 1h 2m;",
        "listen 127.0.0.1:%PORT0%; set $http_cookie a;",
        "listen 127.0.0.1:%PORT0%; set $http_user_agent a;",
        "listen 127.0.0.1:%PORT0%; proxy_bind off transparent;",
        "listen 127.0.0.1:%PORT0%; set $x \"${a b}\";",
        "listen 127.0.0.1:%PORT0%; set $x \"${a-b\";",
        "listen 127.0.0.1:%PORT0%; set $x \"${-}\";",
        "listen 127.0.0.1:%PORT0%; set $x \"${}\";",
        "listen 127.0.0.1:%PORT0%; } log_format x \"a $-b c\"; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0%; } log_format x $1; access_log logs/a.log x; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0%; } log_format x ${} b; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0%; } log_format x a $ b; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0% backlog=9; listen 127.0.0.1:%PORT0% backlog=8;",
        "listen 127.0.0.1:%PORT0% default_server; listen 127.0.0.1:%PORT0% default_server;",
        "listen 127.0.0.1:%PORT0%; if () { }",
        "listen 127.0.0.1:%PORT0%; if ( ) { }",
        "listen 127.0.0.1:%PORT0%; proxy_cache nosuch;",
        "listen 127.0.0.1:%PORT0%; if ($host = ) { }",
        "listen 127.0.0.1:%PORT0%; if ($host = a b) { }",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined buffer=32k; access_log logs/a.log combined buffer=64k;",
        "listen 127.0.0.1:%PORT0%; } proxy_cache_path cache keys_zone=z:1m inactive=x; server {",
        "listen 127.0.0.1:%PORT0%; } proxy_cache_path cache keys_zone=:1m; server {",
        "listen 127.0.0.1:%PORT0%; } } worker_priority x; worker_rlimit_nofile x; http { server {",
        "listen 127.0.0.1:%PORT0%; } } worker_rlimit_nofile x; http { server {",
        // What is no error.
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined buffer=32k; access_log ./logs/a.log combined buffer=64k;",
        "listen 127.0.0.1:%PORT0% ipv6only=on; server_name a a;",
        "listen 127.0.0.1:%PORT0%; proxy_next_upstream ERROR off; proxy_next_upstream timeout;",
        "listen 127.0.0.1:%PORT0%; proxy_cache_use_stale error error; proxy_cache_use_stale Updating;",
        "listen 127.0.0.1:%PORT0%; gzip_types text/html a/b A/B; gzip_types a/b; ssl_protocols TLSv1.2 tlsv1.2;",
        "listen 127.0.0.1:%PORT0%; keepalive_disable Safari safari; gzip_proxied Any any; userid_flags Secure secure;",
        "listen 127.0.0.1:%PORT0%; satisfy ANY; send_lowat 0;",
        "listen 127.0.0.1:%PORT0%; error_log \"\"; access_log \"\";",
        "listen 127.0.0.1:%PORT0%; } log_format x $host name; server { listen 127.0.0.1:%PORT0%; server_name b;",
    ];
    let mut differences = String::new();
    // Taken by older ones.
    let recent = |case: &&str| !case.contains("proxy_store") || !is_before(&nginx, 31);
    for case in cases.into_iter().filter(recent) {
        let conf = wrap(&format!("server {{ {case} }}"));
        let site = Site::new(&conf);
        let said = |program: &str| {
            let out = (site.command(program, &["-e", "logs/error.log", "-t"]))
                .stdin(Stdio::null())
                .output()
                .expect("runs");
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            let told = |l: &&str| l.contains("[emerg]") || l.contains("[warn] duplicate");
            let lines: Vec<&str> = text.lines().filter(told).collect();
            (out.status.code(), lines.join("\n"))
        };
        let (theirs, ours) = (said(&nginx), said(program()));
        if theirs != ours {
            differences.push_str(&format!("== {case}\n-- nginx\n{theirs:?}\n-- forebay\n{ours:?}\n"));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Lines in the error log of a server about the same requests, from the number of the connection on.
#[test]
fn error_lines_agree() {
    let Some(nginx) = oracle() else { return };
    let conf = wrap(
        r#"
        map $uri $log { default logs/default.log; /made logs/made-$arg_f.log; /missing logs/missing-$arg_f.log; /nodir logs/nodir/$arg_f.log; }
        server {
            listen 127.0.0.1:%PORT0%;
            server_name first;
            error_log logs/server.log info;
            access_log $log;
            location /made { return 200 x; }
            location /nodir { return 200 x; }
            location /missing { root %DIR%/html/$arg_f; return 200 x; }
            location /listing/ { autoindex on; autoindex_format jsonp; }
        }
        server { listen 127.0.0.1:%PORT0%; server_name ""; error_log logs/none.log info; }"#,
    );
    let (ours, theirs) = (Site::new(&conf), Site::new(&conf));
    for site in [&ours, &theirs] {
        page_files(site);
        // Logs with variables in their names are opened by the worker.
        open_up(&site.dir().join("logs"));
        open_up(site.dir());
    }
    let ours = Server::start_on(ours);
    let theirs = Oracle::start(&nginx, theirs);
    let post = "POST /made?f=a HTTP/1.1\r\nHost: first\r\nConnection: close\r\n";
    let requests: Vec<Vec<u8>> = [
        get("/made?f=one"),
        get("/missing?f=nowhere"),
        get("/nodir?f=x"),
        get("/listing/?callback=a(b)"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nx\r\n"),
        format!("{post}X_Y: 1\r\n\r\n"),
        "get / HTTP/1.1\r\n\r\n".to_owned(),
        "GET /made HTTP/1.1\r\nHost: first\r\n\r\nnone\r\n\r\n".to_owned(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .chain([b"GET /made HTTP/1.1\r\nHost: first\r\nConnection: close\r\nX\xff: 1\r\n\r\n".to_vec()])
    .collect();
    let lines = |site: &Site| {
        let text = std::fs::read(site.dir().join("logs/server.log")).unwrap_or_default();
        let text: String = text.iter().map(|b| char::from(*b)).collect();
        let text = text.replace(&site.dir().display().to_string(), "DIR");
        let text = text.replace(&site.addr(0).port().to_string(), "PORT");
        let line = |l: &str| {
            let level = l.split(' ').nth(2).unwrap_or_default().to_owned();
            l.split_once(": *").map(|(_, l)| level + l.trim_start_matches(|c: char| c.is_ascii_digit()))
        };
        text.lines().filter_map(line).collect::<Vec<_>>()
    };
    for request in &requests {
        raw(theirs.addr(), request);
        ours.raw(request);
    }
    let last = "client sent invalid header line: \"X\u{ff}";
    for site in [theirs.site(), &ours.site] {
        wait_until("the last line", || lines(site).iter().any(|l| l.contains(last)));
        assert!(site.dir().join("logs/made-one.log").exists());
        assert!(!site.dir().join("logs/missing-nowhere.log").exists());
        assert_eq!(site.read("logs/none.log"), "");
    }
    assert_eq!(lines(&ours.site), lines(theirs.site()));
}
