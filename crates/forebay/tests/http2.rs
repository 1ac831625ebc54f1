//! HTTP/2 over plain TCP, by frames made here: what is answered, what is refused, and what a client may cost.

mod ends;
mod limits;

use forebay_http::h2::frame::{self, flag, kind};
use forebay_testkit::{Origin, Server, Site, h2, http};

forebay_testkit::cases!("cases/http2.cases":
    files_of_all_sizes_and_bodies_both_ways, the_preface_and_http_1_on_one_address,
    first_lines_that_are_no_preface_are_http_1, a_refused_head_is_answered_and_has_its_error_page,
    requests_that_are_answered_early_are_stopped, responses_have_no_fields_of_a_connection,
    content_before_a_smaller_window_is_known_can_be_sent_again, line_breaks_in_variables_make_no_fields,
    an_answer_before_the_end_of_the_body, pages_of_413_and_the_host_are_those_of_http1);

pub fn serve(http: &str, server: &str) -> Server {
    let site = Site::new(format!(
        "worker_processes 1;\nerror_log logs/error.log info;\nevents {{ worker_connections 256; }}\nhttp {{ access_log \
         logs/access.log; http2 on; {http}\nserver {{ listen 127.0.0.1:%PORT0%; {server} }} }}\n"
    ));
    site.write("html/page", "x".repeat(10_000));
    site.write("html/large", "0123456789".repeat(30_000));
    site.write("html/small", "small");
    Server::start_on(site)
}

#[test]
fn many_streams_share_a_connection() {
    let server = serve("", "");
    let mut c = h2::Client::new(&server);
    c.reads = false;
    // Room for all of it.
    let mut out = Vec::new();
    frame::push_window_update(&mut out, 0, 1 << 30);
    frame::push_settings(&mut out, &[(frame::setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
    c.send(&out);
    let streams: Vec<u32> = (0..50).map(|i| 1 + 2 * i).collect();
    for s in &streams {
        c.request(*s, "/large", &[], true);
    }
    let mut got = std::collections::HashMap::new();
    let mut ended = 0;
    while ended < streams.len() {
        let f = c.next().expect("a frame");
        if f.kind == kind::DATA {
            *got.entry(f.stream).or_insert(0) += f.payload.len();
            ended += usize::from(f.flags & flag::END_STREAM != 0);
        }
    }
    assert!(streams.iter().all(|s| got[s] == 300_000), "{got:?}");
}

#[test]
fn urgent_streams_come_first() {
    let server = serve("", "");
    let mut c = h2::Client::new(&server);
    c.reads = false;
    c.request(1, "/large", &[("priority", "u=5")], true);
    c.request(3, "/large", &[("priority", "u=1")], true);
    // The window of the connection is full when this many bytes are here.
    let mut n = 0;
    while n < 65535 {
        let f = c.next().expect("a frame");
        n += if f.kind == kind::DATA { f.payload.len() } else { 0 };
    }
    let mut out = Vec::new();
    for s in [1, 3, 0] {
        frame::push_window_update(&mut out, s, 1 << 20);
    }
    c.send(&out);
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let f = c.next().expect("a frame");
        if f.kind == kind::DATA && f.flags & flag::END_STREAM != 0 {
            ends.push(f.stream);
        }
    }
    assert_eq!(ends, [3, 1]);
}

#[test]
fn curl_and_h2load_are_served() {
    let server = serve("keepalive_requests 100000;", "");
    let url = format!("http://{}/page", server.addr(0));
    let got = std::process::Command::new("curl")
        .args(["-s", "-o", "/dev/null", "-w", "%{http_version} %{http_code} %{size_download}"])
        .args(["--http2-prior-knowledge", &url])
        .output()
        .expect("curl");
    assert_eq!(String::from_utf8_lossy(&got.stdout), "2 200 10000");
    let got = std::process::Command::new("h2load")
        .args(["-n", "20000", "-c", "10", "-m", "20", &url])
        .output()
        .expect("h2load");
    let text = String::from_utf8_lossy(&got.stdout);
    assert!(text.contains("20000 succeeded, 0 failed, 0 errored"), "{text}");
}

/// A response to HEAD has no content, so it ends with its head, though the body of the upstream's response goes into a cache.
#[test]
fn a_response_to_head_ends_before_the_upstreams_body() {
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let up = Origin::start(move |asked| {
        asked.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nCache-Control: max-age=60\r\n\r\nSEE-");
        let _ = wait.lock().expect("lock").recv();
        asked.write(b"THIS")
    });
    let server = Server::start(http!(
        "http2 on; \
         proxy_cache_path cache keys_zone=c:1m; server {{ listen 127.0.0.1:%PORT0%; location / {{ \
         proxy_pass http://{up}; proxy_cache c; }} }}"
    ));
    let mut client = h2::Client::new(&server);
    client.request(1, "/a", &[(":method", "HEAD")], true);
    let answer = client.answer(1);
    assert_eq!((answer.field(":status"), answer.field("content-length")), ("200", "8"));
    assert!(answer.ended && answer.body.is_empty());
    drop(go_on);
    client.request(3, "/a", &[], true);
    assert_eq!(client.answer(3).body, b"SEE-THIS");
}

/// Fields of `add_header` are the same over HTTP/1, also those that the server holds apart.
#[test]
fn added_fields_are_those_of_http1() {
    let up = Origin::start(|asked| {
        let fields = "ETag: \"up\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nCache-Control: max-age=60\r\nContent-Type: a/b\r\n";
        asked.answer("200 OK", fields, "up")
    });
    let kinds = [
        "alias %DIR%/html/;".to_owned(),
        format!("proxy_pass http://{up}/;"),
        format!("proxy_pass http://{up}/; proxy_cache one; proxy_cache_key $uri;"),
    ];
    let added = [
        "ETag \"\"",
        "ETag '\"new\"'",
        "Last-Modified \"\"",
        "Last-Modified \"Mon, 07 Nov 1994 08:49:37 GMT\"",
        "Last-Modified junk",
        "Date now",
        "Server mine",
        "Content-Type text/x",
        "Location /new",
        "Accept-Ranges none",
        "Cache-Control no-store",
        "Vary Y",
        "Link <b>",
    ];
    let mut locations = String::new();
    let mut paths = Vec::new();
    for (k, kind) in kinds.iter().enumerate() {
        for (i, field) in added.iter().enumerate() {
            locations += &format!("location /{k}-{i}/ {{ {kind} add_header {field}; }}\n");
            // Twice, so that one comes from a cache.
            paths.extend([format!("/{k}-{i}/small"), format!("/{k}-{i}/small")]);
        }
    }
    let server = serve("proxy_cache_path %DIR%/cache keys_zone=one:1m;", &locations);
    let mut client = h2::Client::new(&server);
    for (n, path) in paths.iter().enumerate() {
        let (name, value) = added[n / 2 % added.len()].split_once(' ').expect("a value");
        let text = server.get(path);
        let head = text.split_once("\r\n\r\n").expect("a head").0;
        let mut old: Vec<(String, String)> = (head.lines().skip(1))
            .filter_map(|l| l.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let stream = 2 * n as u32 + 1;
        client.request(stream, path, &[], true);
        let mut new = client.answer(stream).fields;
        for fields in [&mut old, &mut new] {
            let own = name == "Date";
            fields.retain(|(n, _)| (own || n != "date") && n != ":status" && n != "connection");
            fields.sort();
        }
        assert_eq!(old, new, "{path} {name}");
        let lines: Vec<&str> =
            new.iter().filter(|(n, _)| *n == name.to_ascii_lowercase()).map(|(_, v)| v.as_str()).collect();
        if matches!(name, "ETag" | "Last-Modified" | "Date" | "Server") {
            let value = value.trim_matches(['"', '\'']);
            let wanted = [value].into_iter().filter(|v| !v.is_empty());
            assert!(lines.iter().map(|v| v.trim_matches('"')).eq(wanted), "{path} {name}: {lines:?}");
        }
    }
}
