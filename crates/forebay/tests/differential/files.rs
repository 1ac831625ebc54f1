//! Files: heads, ranges and conditions.

use forebay_testkit::{
    Oracle, Server, Site, compare, get, get_with, normalise, oracle, page_files, raw, wrap,
};

#[test]
fn static_files() {
    compare(
        "server { listen 127.0.0.1:%PORT0%; location /alias/ { alias %DIR%/html/alias/; } location /x/ { alias %DIR%/html/; } \
         location = /exact { return 204; } location /listing/ { autoindex on; } }",
        &[
            get("/"),
            get("/page.html"),
            get("/style.css"),
            get("/none"),
            get("/dir"),
            get("/dir?x=1"),
            get("/dir/"),
            get("/nodir/"),
            get("/empty.txt"),
            get("/noext"),
            get("/a%20b.html"),
            get("/%61lias/one.txt"),
            get("/x/page.html"),
            get("/x/dir"),
            get("/exact"),
            get("/listing/"),
            get("//page.html"),
            get("/dir/../page.html"),
            get("/../page.html"),
            get("/page.html/"),
            get("/page.html?a=b"),
            "HEAD /page.html HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".into(),
            "HEAD /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".into(),
            "GET /page.html HTTP/1.0\r\n\r\n".into(),
            "GET /page.html HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".into(),
            "GET /page.html\r\n".into(),
            "POST /page.html HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc".into(),
            "PUT /page.html HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc".into(),
            "OPTIONS / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".into(),
        ],
    );
}

/// Answers on one connection, each with a `Content-Length`.
fn split_answers(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let text = String::from_utf8_lossy(bytes);
        let head = text.find("\r\n\r\n").expect("a head") + 4;
        let length = text[..head].split("Content-Length: ").nth(1).and_then(|t| t.split('\r').next());
        let end = head + length.expect("a length").parse::<usize>().expect("a number");
        all.push(bytes[..end].to_vec());
        bytes = &bytes[end..];
    }
    all
}

/// From the second request on the head of a file is the one that was sent before.
#[test]
fn heads_that_are_ready() {
    let Some(nginx) = oracle() else { return };
    let conf = wrap(
        "server { listen 127.0.0.1:%PORT0%; location ~ ^/any/ { alias %DIR%/html/page.html; } \
         location /x/ { alias %DIR%/html/; etag off; } location /y/ { alias %DIR%/html/; max_ranges 0; } \
         location /z/ { alias %DIR%/html/; expires 1d; } }",
    );
    let (ours, theirs) = (Site::new(&conf), Site::new(&conf));
    page_files(&ours);
    page_files(&theirs);
    let ours = Server::start_on(ours);
    let theirs = Oracle::start(&nginx, theirs);
    let uris = [
        "/page.html",
        "/style.css",
        "/empty.txt",
        "/noext",
        "/any/a.css",
        "/any/b.html",
        "/any/c",
        "/x/page.html",
        "/y/page.html",
        "/page.html?a=b",
        "/dir/",
        "/dir/index.html",
    ];
    let mut request = String::new();
    for round in 0..3 {
        for (i, uri) in uris.iter().enumerate() {
            let last = round == 2 && i + 1 == uris.len();
            request.push_str(&if last {
                get(uri)
            } else {
                format!("GET {uri} HTTP/1.1\r\nHost: localhost\r\n\r\n")
            });
        }
    }
    let a = split_answers(&raw(theirs.addr(), &request));
    let b = split_answers(&ours.raw(&request));
    assert_eq!((a.len(), b.len()), (3 * uris.len(), 3 * uris.len()));
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        let (a, b) = (normalise(a, theirs.site()), normalise(b, &ours));
        assert_eq!(a, b, "{}: {}", i, uris[i % uris.len()]);
    }
}

#[test]
fn ranges_and_conditions() {
    let stamp = "Tue, 14 Nov 2023 22:13:20 GMT";
    let etag = "\"6553f100-24\"";
    compare(
        "server { listen 127.0.0.1:%PORT0%; location /one/ { alias %DIR%/html/; max_ranges 1; } location /no/ { alias %DIR%/html/; max_ranges 0; etag off; } }",
        &[
            get_with("/digits.txt", "Range: bytes=0-4\r\n"),
            get_with("/digits.txt", "Range: bytes=5-\r\n"),
            get_with("/digits.txt", "Range: bytes=-5\r\n"),
            get_with("/digits.txt", "Range: bytes=100-\r\n"),
            get_with("/digits.txt", "Range: bytes=0-99\r\n"),
            get_with("/digits.txt", "Range: bytes=x\r\n"),
            get_with("/digits.txt", "Range: lines=1-2\r\n"),
            get_with("/digits.txt", "Range: bytes=5-2\r\n"),
            get_with("/one/digits.txt", "Range: bytes=0-1,3-4\r\n"),
            get_with("/no/digits.txt", "Range: bytes=0-1\r\n"),
            get_with("/digits.txt", &format!("If-Modified-Since: {stamp}\r\n")),
            get_with("/digits.txt", "If-Modified-Since: Tue, 14 Nov 2024 22:13:20 GMT\r\n"),
            get_with("/digits.txt", &format!("If-None-Match: {etag}\r\n")),
            get_with("/digits.txt", "If-None-Match: \"x\", W/\"y\"\r\n"),
            get_with("/digits.txt", "If-None-Match: *\r\n"),
            get_with("/digits.txt", "If-Match: \"x\"\r\n"),
            get_with("/digits.txt", &format!("If-Match: {etag}\r\n")),
            get_with("/digits.txt", "If-Unmodified-Since: Tue, 14 Nov 2022 22:13:20 GMT\r\n"),
            get_with("/digits.txt", &format!("Range: bytes=0-1\r\nIf-Range: {etag}\r\n")),
            get_with("/digits.txt", "Range: bytes=0-1\r\nIf-Range: \"other\"\r\n"),
            get_with("/digits.txt", &format!("Range: bytes=0-1\r\nIf-Range: {stamp}\r\n")),
        ],
    );
}

#[test]
fn cookies_of_clients() {
    let cookies = [
        "a = 2",
        "a= 2",
        "a =2",
        "a=1; b=2;c=3",
        "a=",
        "a",
        "A=x",
        "aa=1; a=2",
        "x;a=1",
        "a=1 ;b=2 ; c = 3",
        "b=1; a==",
        "a=1; a=2",
        ";;a=1",
        "b=1\r\nCookie: a = 2",
    ];
    compare(
        "server { listen 127.0.0.1:%PORT0%; location / { return 200 \"[$cookie_a][$cookie_B][$cookie_c]\"; } }",
        &cookies.map(|c| get_with("/", &format!("Cookie: {c}\r\n"))),
    );
}
