//! Responses that are kept: entries of caches and stored files. Their files are right whatever upstreams and clients do, no thread
//! hangs, and nothing stays open that is gone.

use forebay_testkit::{
    Asked, Conf, Origin, Server, Talk, connect_with_small_buffer, content_of, fastcgi, files, get, http,
    wait_for, wait_until,
};
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a body, by its name and length.
fn content(name: &str, len: usize) -> Vec<u8> {
    let seed = name.bytes().fold(7usize, |n, b| n.wrapping_mul(31).wrapping_add(b.into()));
    (0..len).map(|i| b'a' + ((i / 7 + i / 1000 + seed) % 26) as u8).collect()
}

/// Starts a server with a directory `stored` that the worker, perhaps another user, may write to.
fn start(conf: Conf) -> Server {
    let site = conf.site();
    site.make_dir("stored");
    Server::start_on(site)
}

/// Writes a whole answer in a framing: a target is `/KIND/FRAMING/LENGTH`.
fn whole(asked: &mut Asked) -> bool {
    let target = asked.target().split('?').next().unwrap_or_default().to_owned();
    let parts: Vec<&str> = target.split('/').collect();
    let body = content(&target, parts[3].parse().expect("a length"));
    let (head, tail) = match parts[2] {
        "length" => (format!("Content-Length: {}\r\n", body.len()), ""),
        "chunked" => (format!("Transfer-Encoding: chunked\r\n\r\n{:x}", body.len()), "\r\n0\r\n\r\n"),
        _ => ("Connection: close\r\n".into(), ""),
    };
    asked.write([format!("HTTP/1.1 200 OK\r\n{head}\r\n").as_bytes(), &body, tail.as_bytes()].concat());
    parts[2] != "close"
}

/// A client that stops reading for a while must not change what is published: the rest of its response once went to the
/// beginning of the file of the entry.
#[test]
fn a_client_that_pauses_leaves_published_files_as_they_are() {
    let up = Origin::start(whole);
    let server = start(http!(
        "proxy_cache_path %DIR%/cache keys_zone=one:1m;\n\
         upstream up {{ server {up}; keepalive 4; }}\n\
         server {{ listen 127.0.0.1:%PORT0% sndbuf=8k; proxy_http_version 1.1; proxy_set_header Connection '';\n\
         location /cache/ {{ proxy_pass http://up; proxy_cache one; proxy_cache_valid any 1h; }}\n\
         location /few/ {{ proxy_pass http://up; proxy_cache one; proxy_cache_valid any 1h;\n\
           proxy_buffers 2 4k; proxy_buffer_size 4k; proxy_busy_buffers_size 4k; }}\n\
         location /store/ {{ proxy_pass http://up; proxy_store on; root %DIR%/stored; }} }}"
    ));
    for kind in ["cache", "few", "store"] {
        for framing in ["length", "chunked", "close"] {
            for len in (12_000..125_000).step_by(8_000).chain([1_000_001]) {
                let target = format!("/{kind}/{framing}/{len}");
                let want = content(&target, len);
                let known = published(&server);
                let mut client = connect_with_small_buffer(server.addr(0));
                client.send(get(&target));
                wait_until(&format!("the file of {target}"), || published(&server) > known);
                // The fault was to write once the client had taken nothing for 20 ms.
                let since = Instant::now();
                wait_until("a pause", || since.elapsed() > Duration::from_millis(60));
                let got = content_of(&client.rest_bytes());
                assert!(
                    got == want,
                    "{target}: what the pausing client got: {}: {}",
                    got.len(),
                    server.error_log()
                );
                for round in 0..2 {
                    let got = content_of(&server.raw(get(&target)));
                    let log = || server.error_log();
                    assert!(
                        got == want,
                        "{target}: what the next client gets, {round}: {}: {}",
                        got.len(),
                        log()
                    );
                }
                if kind == "store" {
                    let stored =
                        std::fs::read(server.dir().join("stored").join(&target[1..])).expect("stored");
                    assert!(stored == want, "{target}: the file");
                }
            }
        }
    }
}

/// Number of entries and stored files that are complete.
fn published(server: &Server) -> usize {
    let all = ["cache", "stored"].map(|dir| files(&server.dir().join(dir)));
    // The name of a file that is being written has numbers behind its own.
    all.iter().flatten().filter(|p| p.extension().is_none()).count()
}

/// Misbehaves as the target says, `/LOCATION/FAULT/FRAMING/NUMBER`. Returns the bytes to write, and what follows.
fn faulty(target: &str) -> (String, Then) {
    let parts: Vec<&str> = target.split('/').collect();
    let (fault, framing) = (parts[2], parts[3]);
    let head = match framing {
        "length" => "Content-Length: 8\r\n\r\n",
        "chunked" => "Transfer-Encoding: chunked\r\n\r\n",
        _ => "Connection: close\r\n\r\n",
    };
    let part = if framing == "chunked" { "4\r\nhalf\r\n" } else { "half" };
    let text = match fault {
        "head" => head.to_owned(),
        "lie" if framing == "chunked" => format!("{head}{part}zz\r\n"),
        _ => format!("{head}{part}"),
    };
    let then = match fault {
        "reset" => Then::Reset,
        "close" | "lie" => Then::Close,
        _ => Then::Stall,
    };
    (text, then)
}

/// Continuation after the part of an answer.
enum Then {
    Stall,
    Reset,
    Close,
}

fn misbehave(asked: &mut Asked) -> bool {
    if asked.target().contains("/fine") {
        asked.answer("200 OK", "", "fine");
        return true;
    }
    let (text, then) = faulty(asked.target());
    let range = "Content-Range: bytes 0-7/24\r\nETag: \"e\"\r\n";
    let status = if asked.field("Range").is_empty() { "200 OK\r\n" } else { "206 Partial Content\r\n" };
    let range = if status.starts_with("206") { range } else { "" };
    asked.write(format!("HTTP/1.1 {status}{range}{text}"));
    match then {
        Then::Stall => {
            // Until the server gives up.
            let _ = asked.stream.read(&mut [0; 1]);
        }
        Then::Reset => asked.reset(),
        Then::Close => {}
    }
    false
}

fn misbehave_fastcgi(asked: &mut fastcgi::Asked) {
    let target = asked.get("REQUEST_URI").to_owned();
    let (text, then) = faulty(&target);
    // Framings of HTTP/1 have no meaning here, apart from a length.
    let text = text
        .replace("Transfer-Encoding: chunked\r\n\r\n", "X: y\r\n\r\n")
        .replace("Connection: close\r\n", "X: y\r\n");
    asked.write(&fastcgi::stdout(&format!("Status: 200 OK\r\n{text}")));
    match then {
        Then::Stall => {
            let _ = asked.stream.read(&mut [0; 1]);
        }
        Then::Reset => asked.stream.reset(),
        Then::Close => {}
    }
    asked.keep = false;
}

/// CPU time of a process so far, in ticks of 10 ms.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat[stat.rfind(')').expect("a name")..].split(' ').collect();
    fields[12].parse::<u64>().expect("a number") + fields[13].parse::<u64>().expect("a number")
}

/// Waits until the worker process uses next to no CPU time.
fn wait_for_rest(server: &Server) {
    let pid = server.worker();
    wait_for("a worker at rest", || {
        let (before, since) = (ticks(pid), Instant::now());
        while since.elapsed() < Duration::from_millis(100) {
            std::thread::yield_now();
            std::thread::park_timeout(Duration::from_millis(20));
        }
        (ticks(pid) - before <= 3).then_some(())
    });
}

/// An upstream that sends a part of a response that is kept, and then stalls, resets, ends or lies, once left the thread in a loop
/// for ever: its connections were dead, and it could not be ended.
#[test]
fn an_upstream_that_stops_in_a_kept_response_holds_no_thread() {
    let up = Origin::start(misbehave);
    let fcgi = fastcgi::start(misbehave_fastcgi);
    let server = start(stalling_conf(up, fcgi));
    let mut number = 0;
    for location in
        ["cache", "store", "plain", "locked", "slice", "ssi", "auth", "update", "fcgi", "fstore", "h2"]
    {
        for fault in ["head", "part", "reset", "close", "lie"] {
            for framing in ["length", "chunked", "close"] {
                for leaves in [false, true] {
                    number += 1;
                    let target = format!("/{location}/{fault}/{framing}/{number}");
                    let mut stream = server.send(get(&target));
                    if !leaves {
                        // Some answer, or an end. A reset is an end, too.
                        let ended = stream.read_to_end(&mut Vec::new());
                        let kind = ended.as_ref().err().map(std::io::Error::kind);
                        assert_ne!(
                            kind,
                            Some(std::io::ErrorKind::WouldBlock),
                            "{target}: neither answer nor end"
                        );
                    }
                    drop(stream);
                    let fine = server.raw(get("/patient/fine"));
                    assert!(fine.ends_with(b"fine"), "{target}: {}", String::from_utf8_lossy(&fine));
                }
            }
        }
        wait_for_rest(&server);
    }
    // No response that broke off has been kept.
    let kept: Vec<PathBuf> = files(&server.dir().join("cache")).into_iter().filter(|p| is_half(p)).collect();
    assert!(kept.is_empty(), "{kept:?}");
    let log = server.error_log();
    assert!(!log.contains("[alert]") && !log.contains("[emerg]"), "{log}");
}

/// Returns `true` for an entry whose body is a part only. Without a length the end of the connection ends a body, so that one
/// is whole.
fn is_half(path: &Path) -> bool {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    text.ends_with("half") && (text.contains("Content-Length: 8") || text.contains("chunked"))
}

fn stalling_conf(up: impl std::fmt::Display, fcgi: SocketAddr) -> Conf {
    http!(
        "fastcgi_temp_path %DIR%/ftemp;\n\
         proxy_cache_path %DIR%/cache keys_zone=one:1m; fastcgi_cache_key $uri;\n\
         proxy_read_timeout 100ms; fastcgi_read_timeout 100ms; proxy_cache_valid any 1m; fastcgi_cache_valid any 1m;\n\
         proxy_next_upstream off; proxy_http_version 1.1; proxy_set_header Connection ''; ssi_types *;\n\
         upstream up {{ server {up} max_fails=0; keepalive 4; }}\n\
         server {{ listen 127.0.0.1:%PORT1% http2; location / {{ proxy_pass http://up; proxy_read_timeout 5s;\n\
           proxy_buffering off; }} }}\n\
         server {{ listen 127.0.0.1:%PORT0%; root %DIR%/stored;\n\
         location /cache/ {{ proxy_pass http://up; proxy_cache one; }}\n\
         location /locked/ {{ proxy_pass http://up; proxy_cache one; proxy_cache_lock on; proxy_cache_lock_timeout 150ms; }}\n\
         location /update/ {{ proxy_pass http://up; proxy_cache one; proxy_cache_valid any 1s;\n\
           proxy_cache_background_update on; proxy_cache_use_stale updating error timeout; }}\n\
         location /slice/ {{ proxy_pass http://up; proxy_cache one; slice 8; proxy_set_header Range $slice_range;\n\
           proxy_cache_key $uri$slice_range; }}\n\
         location /ssi/ {{ ssi on; proxy_pass http://up/cache/; proxy_cache one; proxy_cache_key ssi$uri; }}\n\
         location /auth/ {{ auth_request /cache$uri; return 200 in; }}\n\
         location /store/ {{ proxy_pass http://up; proxy_store on; }}\n\
         location /h2/ {{ proxy_pass http://127.0.0.1:%PORT1%; proxy_http_version 2; proxy_cache one; }}\n\
         location /fcgi/ {{ fastcgi_pass {fcgi}; fastcgi_param REQUEST_URI $request_uri; fastcgi_cache one; }}\n\
         location /fstore/ {{ fastcgi_pass {fcgi}; fastcgi_param REQUEST_URI $request_uri; fastcgi_store on; }}\n\
         location /plain/ {{ proxy_pass http://up; }}\n\
         location /patient/ {{ proxy_pass http://up; proxy_read_timeout 60s; }} }}"
    )
}

/// Files of a cache that the worker process has open, with their names.
fn open_entries(server: &Server) -> Vec<String> {
    let pid = server.worker();
    let dir = server.dir().join("cache");
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").flatten();
    let names = entries.filter_map(|e| std::fs::read_link(e.path()).ok());
    names
        .map(|n| n.to_string_lossy().into_owned())
        .filter(|n| n.starts_with(&*dir.to_string_lossy()))
        .collect()
}

/// Entries that were evicted, replaced, purged or expired must not take room on the disk through an open descriptor.
#[test]
fn files_of_entries_that_are_gone_are_closed() {
    let up = Origin::start(whole);
    let server = Server::start(
        http!(
            "proxy_cache_path %DIR%/cache keys_zone=one:1m max_size=2m inactive=1h;\n\
         proxy_cache_path %DIR%/cache-short keys_zone=short:1m inactive=1s;\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_cache_valid any 1h;\n\
         location /evicted/ {{ proxy_pass http://{up}; proxy_cache one; }}\n\
         location /inactive/ {{ proxy_pass http://{up}; proxy_cache short; }}\n\
         location /replaced/ {{ proxy_pass http://{up}; proxy_cache one; proxy_cache_bypass $arg_again; }} }}"
        )
        .workers(2),
    );
    let deleted =
        || open_entries(&server).into_iter().filter(|n| n.ends_with("(deleted)")).collect::<Vec<_>>();
    for n in 0..20 {
        let target = format!("/evicted/length/{}", 300_000 + n);
        for _ in 0..4 {
            assert!(content_of(&server.raw(get(&target))) == content(&target, 300_000 + n), "{target}");
        }
    }
    wait_until("evicted files closed", || deleted().is_empty());
    assert!(!open_entries(&server).is_empty(), "those of entries that stay are kept open");
    for n in 0..4 {
        assert_eq!(content_of(&server.raw(get("/replaced/length/300000"))).len(), 300_000, "{n}");
        assert_eq!(content_of(&server.raw(get("/replaced/length/300000?again=1"))).len(), 300_000, "{n}");
    }
    wait_until("replaced files closed", || deleted().is_empty());
    for n in 0..4 {
        server.get(format!("/inactive/length/{}", 300_000 + n));
    }
    let short = || open_entries(&server).into_iter().filter(|n| n.contains("/cache-short/")).count();
    wait_until("inactive files closed", || short() == 0);
}
