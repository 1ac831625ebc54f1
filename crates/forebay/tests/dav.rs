//! PUT, DELETE, MKCOL, COPY and MOVE.

use forebay_testkit::{Server, Site, Talk, http, open_up, wait_until};

forebay_testkit::cases!("cases/dav.cases": files_are_managed_as_by_nginx);

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
