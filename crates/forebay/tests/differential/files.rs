//! Files: heads, ranges and conditions.

use forebay_testkit::{Oracle, Server, Site, get, normalise, oracle, page_files, raw, wrap};

forebay_testkit::cases!("../cases/differential/files.cases":
    static_files, ranges_and_conditions, cookies_of_clients);

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
