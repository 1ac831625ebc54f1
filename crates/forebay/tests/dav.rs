//! PUT, DELETE, MKCOL, COPY and MOVE.

use forebay_testkit::{Server, Site, Talk, compare_with, http, is_before, open_up, oracle, wait_until};

/// `METHOD target`, bytes of a body, fields.
const REQUESTS: &[(&str, Option<usize>, &[&str])] = &[
    ("PUT /a", Some(10), &[]),
    ("PUT /a", Some(4), &[]),
    ("PUT /dir", Some(4), &[]),
    ("PUT /dir/", Some(4), &[]),
    ("PUT /nodir/a", Some(4), &[]),
    ("PUT /full/p/q/a", Some(4), &[]),
    ("PUT /full/../b", Some(4), &[]),
    ("PUT /f/x", Some(4), &[]),
    ("PUT /only/z", Some(4), &["Date: Sun, 06 Nov 1994 08:49:37 GMT"]),
    ("PUT /only/z2", Some(4), &["Content-Range: bytes 0-3/4"]),
    ("PUT /only/z3", Some(0), &[]),
    ("PUT /lim/z", Some(10), &[]),
    ("PUT /a?x=1", Some(4), &[]),
    ("PUT /a%20b?x", Some(4), &[]),
    ("PUT /h", None, &[]),
    ("DELETE /only/f", None, &[]),
    ("GET /only/f", None, &[]),
    ("PATCH /f", None, &[]),
    ("POST /f", Some(4), &[]),
    ("OPTIONS /f", None, &[]),
    ("HEAD /f", None, &[]),
    ("DELETE /nope", None, &[]),
    ("DELETE /nope/", None, &[]),
    ("DELETE /f/", None, &[]),
    ("DELETE /dir", None, &[]),
    ("DELETE /g", Some(4), &[]),
    ("DELETE /g", None, &[]),
    ("DELETE /err/x", None, &[]),
    ("DELETE /empty/", None, &["Depth: 0"]),
    ("DELETE /empty/", None, &["Depth: infinity"]),
    ("MKCOL /m", None, &[]),
    ("MKCOL /m/", None, &[]),
    ("MKCOL /m/", None, &[]),
    ("MKCOL /m/n/o/", None, &[]),
    ("MKCOL /f/x/", None, &[]),
    ("MKCOL /full/m/", None, &[]),
    ("MKCOL /m2/", Some(4), &[]),
    ("MKCOL /f", None, &[]),
    ("COPY /f", None, &[]),
    ("COPY /f", None, &["Destination: /f2"]),
    ("COPY /f", None, &["Destination: /f2"]),
    ("COPY /f", None, &["Destination: /f2?x"]),
    ("COPY /f", None, &["Destination: http://localhost/f3"]),
    ("COPY /f", None, &["Destination: http://localhost:1234/f4"]),
    ("COPY /f", None, &["Destination: https://localhost/f5"]),
    ("COPY /f", None, &["Destination: http://other/f4"]),
    ("COPY /f", None, &["Destination: //localhost/f4"]),
    ("COPY /f", None, &["Destination: f4"]),
    ("COPY /f", None, &["Destination: /../f6"]),
    ("COPY /f", None, &["Destination: /a/../../f6"]),
    ("COPY /f", None, &["Destination: /%2e%2e/f6"]),
    ("COPY /f", None, &["Destination: /dir/..%2ff6"]),
    ("COPY /f", None, &["Destination: /f%00x"]),
    ("COPY /f", None, &["Destination: /f7#frag"]),
    ("COPY /f", None, &["Destination: /f"]),
    ("COPY /f", None, &["Destination: /dir"]),
    ("COPY /f", None, &["Destination: /dir/"]),
    ("COPY /f", None, &["Destination: /nodir/f"]),
    ("COPY /f", None, &["Destination: /f8", "Overwrite: F"]),
    ("COPY /f", None, &["Destination: /f8", "Overwrite: F"]),
    ("COPY /f", None, &["Destination: /f8", "Depth: infinity"]),
    ("COPY /f", None, &["Destination: /f8", "Depth: 1"]),
    ("COPY /dir/", None, &["Destination: /dir2/"]),
    ("COPY /dir/", None, &["Destination: /dir2/"]),
    ("COPY /dir/", None, &["Destination: /dir2/", "Overwrite: F"]),
    ("COPY /dir/", None, &["Destination: /dir3/", "Depth: 0"]),
    ("COPY /dir/", None, &["Destination: /dir/sub/in/"]),
    ("COPY /dir", None, &["Destination: /dir4"]),
    ("COPY /dir/", None, &["Destination: /dir4"]),
    ("COPY /nope", None, &["Destination: /f9"]),
    ("COPY /nope/", None, &["Destination: /f9/"]),
    ("COPY /f", None, &["Destination: /al/viaal"]),
    ("COPY /al/f", None, &["Destination: /al/viaal2"]),
    ("MOVE /f8", None, &[]),
    ("MOVE /f8", None, &["Destination: /f10"]),
    ("MOVE /f10", None, &["Destination: /f10"]),
    ("MOVE /f10", None, &["Destination: /f2"]),
    ("MOVE /f2", None, &["Destination: /f11", "Depth: 0"]),
    ("MOVE /f2", None, &["Destination: /f11", "Depth: infinity"]),
    ("MOVE /dir2/", None, &["Destination: /dir5/"]),
    ("MOVE /dir5/", None, &["Destination: /dir/"]),
    ("MOVE /dir5", None, &["Destination: /dir6"]),
    ("MOVE /dir5/", None, &["Destination: /dir6"]),
    ("MOVE /nope", None, &["Destination: /x"]),
    ("MOVE /f", None, &["Destination: /ref12"]),
    ("COPY /ref11", None, &["Destination: /ref13"]),
    ("PUT /re/viare", Some(4), &[]),
    ("DELETE /dir/", None, &[]),
];

fn request(line: &str, body: Option<usize>, fields: &[&str]) -> String {
    let mut text = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for f in fields {
        text.push_str(&format!("{f}\r\n"));
    }
    match body {
        Some(n) => text.push_str(&format!("Content-Length: {n}\r\n\r\n{}", "z".repeat(n))),
        None => text.push_str("\r\n"),
    }
    text
}

#[test]
fn files_are_managed_as_by_nginx() {
    let files: Vec<(String, String)> = [
        ("f", "file"),
        ("g", "gggg"),
        ("dir/x", "x"),
        ("dir/sub/y", "y"),
        ("e.html", "E"),
        ("only/f", "f"),
        ("full/f", "f"),
        ("lim/f", "f"),
        ("al/f", "f"),
        ("empty/gone", ""),
    ]
    .map(|(name, text)| (format!("dav/{name}"), text.to_owned()))
    .into();
    let Some(nginx) = oracle() else { return };
    let old = is_before(&nginx, 31);
    // What older ones do not notice: two names of one file.
    let same = ["COPY /f /f", "COPY /dir/ /dir/sub/in/", "MOVE /f10 /f10", "COPY /ref11 /ref13"];
    let is_same = |line: &str, fields: &[&str]| {
        let to = fields.first().and_then(|f| f.strip_prefix("Destination: ")).unwrap_or_default();
        same.contains(&format!("{line} {to}").as_str())
    };
    let asked = REQUESTS.iter().filter(|(line, _, fields)| !(old && is_same(line, fields)));
    let mut requests: Vec<String> = asked.map(|(line, n, fields)| request(line, *n, fields)).collect();
    // What has become of it all.
    for uri in [
        "/a",
        "/a%20b",
        "/f2",
        "/f3",
        "/f4",
        "/f7%23frag",
        "/f11",
        "/ref12",
        "/dir3/sub/y",
        "/dir2/x",
        "/dir/x",
        "/viaal2",
        "/al/viaal",
        "/m/",
        "/nodir/f",
        "/only/z",
        "/full/p/q/a",
    ] {
        requests.push(request(&format!("GET {uri}"), None, &[]));
    }
    let requests: Vec<String> = requests.into_iter().map(|r| r.replace("/nodir/", "/dir9/")).collect();
    compare_with(
        "server { listen 127.0.0.1:%PORT0%; root %DIR%/dav; absolute_redirect off; if_modified_since off; etag off;
         location / { dav_methods PUT DELETE MKCOL COPY MOVE; add_header Last-Modified \"\"; }
         location /only/ { dav_methods PUT; }
         location /full/ { dav_methods PUT MKCOL; create_full_put_path on; dav_access user:rw group:rw all:r; add_header Last-Modified \"\"; }
         location /al/ { alias %DIR%/dav/; dav_methods PUT DELETE MKCOL COPY MOVE; add_header Last-Modified \"\"; }
         location ~ ^/re(.*)$ { alias %DIR%/dav$1; dav_methods PUT DELETE MKCOL COPY MOVE; add_header Last-Modified \"\"; }
         location /lim/ { client_max_body_size 5; dav_methods PUT; }
         location /err/ { dav_methods PUT DELETE; error_page 404 /e.html; } }",
        &files,
        &requests,
    );
}

fn server(rest: &str) -> Server {
    let conf = http!(
        "client_body_temp_path %DIR%/temp; server {{ listen 127.0.0.1:%PORT0%; root %DIR%/dav;\n\
         dav_methods PUT DELETE MKCOL COPY MOVE; client_body_buffer_size 1k; {rest} }}"
    );
    let site = Site::new(&conf);
    site.write("dav/f", "old");
    site.write("outside", "keep");
    site.write("temp/x/y", "");
    open_up(&site.dir().join("dav"));
    open_up(&site.dir().join("temp"));
    std::fs::remove_dir_all(site.dir().join("temp/x")).expect("removed");
    Server::start_on(site)
}

fn status(server: &Server, line: &str, body: Option<usize>, fields: &[&str]) -> String {
    let answer = server.raw(request(line, body, fields));
    String::from_utf8_lossy(answer.get(9..12).unwrap_or_default()).into_owned()
}

#[test]
fn an_upload_that_breaks_off_changes_nothing() {
    let server = server("");
    let temp = server.dir().join("temp");
    let count = || std::fs::read_dir(&temp).map_or(0, Iterator::count);
    let mut client = server.connect();
    let head = "PUT /f HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
    client.send([head.as_bytes(), &[b'n'; 50_000]].concat());
    wait_until("a part of the body in a file", || count() > 0);
    assert_eq!(server.read("dav/f"), "old");
    drop(client);
    wait_until("its end", || count() == 0);
    assert_eq!(server.read("dav/f"), "old");
    assert_eq!(status(&server, "PUT /f", Some(100_000), &[]), "204");
    assert_eq!(server.read("dav/f"), "z".repeat(100_000));
    assert_eq!(count(), 0);
    let names: Vec<_> = std::fs::read_dir(server.dir().join("dav")).expect("directory").collect();
    assert_eq!(names.len(), 1, "nothing beside it");
}

#[test]
fn nothing_leaves_the_root() {
    let server = server("location /al/ { alias %DIR%/dav/; }");
    for to in [
        "/../x",
        "/a/../../x",
        "/%2e%2e/x",
        "/..%2fx",
        "/%2e%2e%2fx",
        "/x%00",
        "x",
        "http://localhost/../x",
        "/../outside",
    ] {
        for method in ["COPY", "MOVE"] {
            let got = status(&server, &format!("{method} /f"), None, &[&format!("Destination: {to}")]);
            assert_eq!(got, "400", "{method} {to}");
        }
    }
    // An alias is no way out, and what it stands for is cut off only where it is there.
    assert_eq!(status(&server, "COPY /al/f", None, &["Destination: /x"]), "400");
    assert_eq!(status(&server, "COPY /al/f", None, &["Destination: /al/x"]), "204");
    // Links are removed, not followed.
    let dir = server.dir();
    std::fs::create_dir_all(dir.join("away/deep")).expect("directory");
    std::fs::create_dir_all(dir.join("dav/d")).expect("directory");
    open_up(&dir.join("dav/d"));
    std::os::unix::fs::symlink(dir.join("away"), dir.join("dav/d/link")).expect("link");
    std::os::unix::fs::symlink(dir.join("away"), dir.join("dav/link")).expect("link");
    assert_eq!(status(&server, "DELETE /link/", None, &[]), "409");
    assert_eq!(status(&server, "DELETE /d/", None, &[]), "204");
    assert!(dir.join("away/deep").is_dir());
    assert_eq!(server.read("outside"), "keep");
    // A tree is neither copied into itself nor replaced by a part of it.
    assert_eq!(status(&server, "MKCOL /t/", None, &[]), "201");
    assert_eq!(status(&server, "MKCOL /t/u/", None, &[]), "201");
    assert_eq!(status(&server, "MOVE /t/u/", None, &["Destination: /t/"]), "403");
    assert_eq!(status(&server, "COPY /t/", None, &["Destination: /t/u/v/"]), "403");
    assert!(dir.join("dav/t/u").is_dir());
}

#[test]
fn a_mirror_of_a_put_has_the_body_too() {
    let server = server("mirror /copy; location = /copy { return 200; }");
    assert_eq!(status(&server, "PUT /m", Some(5_000), &[]), "201");
    assert_eq!(server.read("dav/m").len(), 5_000);
}
