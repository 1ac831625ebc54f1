//! Compressed responses: what clients get of gzip, brotli and zstd, and that nginx sends the same.

use forebay_testkit::{Answer, Server, Site, Talk, http, raw, through, tool, wait_for};
use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

forebay_testkit::cases!("cases/compress.cases": gzip_is_that_of_nginx, replaced_text_is_that_of_nginx);

fn text(lines: usize) -> String {
    (0..lines).map(|i| format!("line {i} of a page, {}\n", i * i % 1009)).collect()
}

const STAMP: u64 = 1_700_000_000;

fn site(server: &str) -> Site {
    let site = Site::new(http!(
        "types {{ text/html html; text/css css; text/plain txt; image/png png; }}\n\
         proxy_temp_path %DIR%/proxy; root %DIR%/html;\n{server}\n"
    ));
    // Without it the files of a site that root made cannot be read by workers.
    for (name, lines) in
        [("small.html", 2), ("page.html", 400), ("big.txt", 60_000), ("a.css", 30), ("a.png", 30)]
    {
        site.write(format!("html/{name}"), text(lines));
    }
    site.write("html/tiny.html", "tiny");
    site.write("html/empty.html", "");
    let gz = through(&["gzip", "-nc"], text(50).as_bytes());
    std::fs::write(site.dir().join("html/only.txt.gz"), gz).expect("written");
    std::fs::write(site.dir().join("html/broken.txt.gz"), b"\x1f\x8b\x08 this is no gzip").expect("written");
    for entry in std::fs::read_dir(site.dir().join("html")).expect("directory") {
        let file = std::fs::File::open(entry.expect("entry").path()).expect("open");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(STAMP)).expect("time");
    }
    site
}

fn request(method: &str, uri: &str, fields: &str) -> String {
    format!("{method} {uri} HTTP/1.1\r\nHost: localhost\r\n{fields}Connection: close\r\n\r\n")
}

fn ask(server: &Server, uri: &str, fields: &str) -> Answer {
    Answer::of(&server.raw(request("GET", uri, fields)))
}

const GZIP: &str = "Accept-Encoding: gzip\r\n";

const ALL: &str = "server { listen 127.0.0.1:%PORT0%; http2 on; gzip on; brotli on; zstd on;\n\
     location / { }\n\
     location /proxy/ { proxy_pass http://127.0.0.1:%PORT1%/; gzip_types *; brotli_types *; zstd_types *; }\n\
     location /static/ { alias %DIR%/html/; gzip_static on; brotli_static on; zstd_static on; gzip off; } }\n\
     server { listen 127.0.0.1:%PORT1%; }";

#[test]
fn clients_get_the_coding_they_like_best() {
    if !tool("brotli") || !tool("zstd") {
        return;
    }
    let site = site(ALL);
    for (suffix, text) in [("gz", "gz"), ("br", "br"), ("zst", "zst")] {
        site.write(format!("html/page.html.{suffix}"), text);
    }
    let server = Server::start_on(site);
    for (accept, coding) in [
        ("gzip, deflate, br, zstd", Some("zstd")),
        ("gzip, deflate, br", Some("br")),
        ("gzip, br;q=0.9", Some("gzip")),
        ("*", Some("gzip")),
        ("identity;q=0, br", Some("br")),
        ("br;q=0.1, identity;q=0.5", None),
        ("deflate", None),
        ("br;q=0, *;q=0", None),
    ] {
        let fields = format!("Accept-Encoding: {accept}\r\n");
        for (path, lines) in [("/page.html", 400), ("/proxy/big.txt", 60_000), ("/page.html", 400)] {
            let a = ask(&server, path, &fields);
            assert_eq!(a.field("Content-Encoding"), coding, "{accept}: {}", a.head);
            assert_eq!(a.field("Vary"), Some("Accept-Encoding"), "{}", a.head);
            assert!(a.decoded() == text(lines).as_bytes(), "{accept} {path}");
            assert_eq!(a.field("ETag").is_some_and(|e| e.starts_with("W/")), coding.is_some(), "{}", a.head);
        }
        let ready = ask(&server, "/static/page.html", &fields);
        let name = coding.map(|c| c.replace("gzip", "gz").replace("zstd", "zst"));
        assert_eq!(ready.field("Content-Encoding"), coding);
        assert_eq!(ready.field("Vary"), Some("Accept-Encoding"));
        if let Some(name) = name {
            assert_eq!(ready.body, name.as_bytes(), "{accept}");
        }
    }
}

#[test]
fn a_form_is_made_once_and_anew_when_the_file_changes() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0%; gzip on; gzip_types *; location /cached/ { proxy_cache one;\n\
         proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache_valid 1h; add_header X-Cache $upstream_cache_status; }\n\
         location /lean/ { proxy_cache one; proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache_valid 1h; } }\n\
         proxy_cache_path %DIR%/cache keys_zone=one:1m;\n\
         server { listen 127.0.0.1:%PORT1%; }",
    ));
    for path in ["/page.html", "/big.txt", "/lean/page.html", "/cached/page.html"] {
        let first = ask(&server, path, GZIP);
        assert_eq!(first.field("Content-Encoding"), Some("gzip"), "{}", first.head);
        for _ in 0..4 {
            let a = ask(&server, path, GZIP);
            assert_eq!(a.decoded(), first.decoded());
            let kept = a.field("Content-Length").is_some();
            assert_eq!(kept, path != "/big.txt", "{}", a.head);
            let plain = ask(&server, path, "");
            assert_eq!(plain.field("Content-Encoding"), None);
            assert_eq!(plain.body, first.decoded());
        }
        let (a, b) = (ask(&server, path, GZIP), ask(&server, path, GZIP));
        assert!(a.body == b.body, "byte for byte");
    }
    assert_eq!(ask(&server, "/cached/page.html", GZIP).field("X-Cache"), Some("HIT"));
    server.write("html/page.html", text(300));
    let a = ask(&server, "/page.html", GZIP);
    assert!(a.decoded() == text(300).as_bytes(), "the new content");
    assert!(ask(&server, "/cached/page.html", GZIP).decoded() == text(400).as_bytes(), "the cached one");
}

#[test]
fn many_clients_wait_for_one_form() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0%; brotli on; brotli_comp_level 11; brotli_types *; }",
    ));
    let addr = server.addr(0);
    let clients: Vec<_> = (0..16)
        .map(|i| {
            let path = if i % 4 == 0 { "/a.css" } else { "/page.html" };
            let bytes = request("GET", path, "Accept-Encoding: br\r\n");
            std::thread::spawn(move || (path, raw(addr, &bytes)))
        })
        .collect();
    let answers: Vec<_> = clients.into_iter().map(|c| c.join().expect("client")).collect();
    for (path, bytes) in &answers {
        let a = Answer::of(bytes);
        assert_eq!(a.field("Content-Encoding"), Some("br"), "{}", a.head);
        let other = answers.iter().find(|(p, _)| p == path).expect("itself");
        assert!(Answer::of(&other.1).body == a.body, "{path}");
    }
}

/// Content of an upstream without buffering is sent at once, also when it is compressed.
#[test]
fn streams_are_flushed() {
    let back = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = back.local_addr().expect("bound").port();
    for (coding, unzip) in [("gzip", "gzip"), ("br", "brotli"), ("zstd", "zstd")] {
        if !tool(unzip) {
            continue;
        }
        let server = Server::start_on(site(&format!(
            "server {{ listen 127.0.0.1:%PORT0%; gzip on; brotli on; zstd on;\n\
             location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }} }}"
        )));
        let mut client = server.connect();
        client.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        let fields = format!("Accept-Encoding: {coding}\r\n");
        client.send(request("GET", "/events", &fields));
        let (mut upstream, _) = back.accept().expect("the server asks");
        let mut head = [0; 4096];
        assert!(upstream.read(&mut head).expect("a request") > 0);
        upstream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n").expect("head");
        let mut got = Vec::new();
        for i in 0..5 {
            let before = got.len();
            upstream.write_all(format!("event {i}, and no more for now\n").as_bytes()).expect("event");
            // It must come although the upstream says nothing more.
            wait_for("the event", || {
                let mut piece = [0; 4096];
                let n = client.read(&mut piece).expect("before the timeout");
                assert!(n > 0, "not over yet");
                got.extend_from_slice(&piece[..n]);
                let head = got.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
                (got.len() > before.max(head) + 5).then_some(())
            });
        }
        drop(upstream);
        client.read_to_end(&mut got).expect("the rest");
        let a = Answer::of(&got);
        assert_eq!(a.field("Content-Encoding"), Some(coding));
        let content = String::from_utf8(a.decoded()).expect("text");
        assert_eq!(content.lines().count(), 5);
        assert!(content.starts_with("event 0") && content.ends_with("event 4, and no more for now\n"));
    }
}

#[test]
fn a_broken_gzip_file_breaks_only_its_response() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0%; location / { gzip_static always; gunzip on; } }",
    ));
    let bytes = server.raw(request("GET", "/broken.txt", ""));
    assert!(!bytes.ends_with(b"0\r\n\r\n"), "not complete");
    server.wait_for_log("inflate() failed while sending response to client", 1);
    assert!(ask(&server, "/only.txt", "").decoded() == text(50).as_bytes(), "others are well");
}

#[test]
fn curl_understands_all_of_it() {
    if !tool("curl") {
        return;
    }
    let server = Server::start_on(site(ALL));
    for path in ["page.html", "proxy/big.txt", "small.html"] {
        let url = format!("http://{}/{path}", server.addr(0));
        let get = |args: &[&str]| {
            Command::new("curl").args(["-sS"]).args(args).arg(&url).output().expect("curl").stdout
        };
        let plain = get(&[]);
        assert!(!plain.is_empty());
        assert!(get(&["--compressed"]) == plain, "{path}");
        assert!(get(&["--compressed", "--http2-prior-knowledge"]) == plain, "{path} over h2");
    }
}

#[test]
fn the_ratio_is_logged() {
    let conf = "log_format r '$uri $gzip_ratio $brotli_ratio $zstd_ratio'; access_log logs/r.log r;\n";
    let server = Server::start_on(site(&format!(
        "{conf}{}",
        ALL.replace("location / { }", "location / { gzip_types *; }")
    )));
    for (path, coding) in
        [("/page.html", "gzip"), ("/page.html", "br"), ("/big.txt", "gzip"), ("/page.html", "zstd")]
    {
        ask(&server, path, &format!("Accept-Encoding: {coding}\r\n"));
    }
    ask(&server, "/page.html", "");
    let log = wait_for("the log", || {
        let log = server.read("logs/r.log");
        (log.lines().count() == 5).then_some(log)
    });
    let columns: Vec<Vec<&str>> = log.lines().map(|l| l.split(' ').skip(1).collect()).collect();
    for (line, column) in [(0, 0), (1, 1), (2, 0), (3, 2)] {
        let ratio: f64 = columns[line][column].parse().expect("a number");
        assert!(ratio > 2.0 && columns[line].iter().filter(|c| **c == "-").count() == 2, "{log}");
    }
    assert_eq!(columns[4], ["-", "-", "-"]);
}
