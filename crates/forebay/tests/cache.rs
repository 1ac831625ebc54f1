//! Cached and buffered responses of upstreams: plain sockets on both sides.

use forebay_testkit::{
    Conf, DEADLINE, Server, Signal, Site, Talk, body_of, files, http, kill, program, raw, wait_for,
    wait_until,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An upstream whose answers are made by a function of the request's head; counts its requests.
struct Upstream {
    addr: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Upstream {
    fn new(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let addr = listener.local_addr().expect("address");
        let (asked, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
        let count = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(mut stream), answer, count) = (stream, answer.clone(), count.clone()) else { return };
                std::thread::spawn(move || {
                    let head = head_of(&mut stream);
                    if !head.is_empty() {
                        count.fetch_add(1, Ordering::SeqCst);
                        answer(&head, &mut stream);
                    }
                });
            }
        });
        Upstream { addr, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn head_of(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0; 1]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

fn ok(fields: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len}\r\n{fields}\r\n");
    [head.as_bytes(), body].concat()
}

fn conf(rest: &str) -> Conf {
    http!("{rest}").workers(2)
}

/// A server whose location `/` caches what `up` answers; `more` goes into the location.
fn cached(up: &Upstream, path: &str, more: &str) -> Conf {
    conf(&format!(
        "proxy_cache_path %DIR%/cache levels=1:2 keys_zone=one:1m {path};\n\
         server {{ listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status;\n\
         location / {{ proxy_pass http://{}; proxy_cache one; proxy_cache_valid 200 1h; {more} }} }}",
        up.addr
    ))
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| b"0123456789abcdefghijklmnopqrstuvwxyz"[(i + i / 1000) % 36]).collect()
}

fn get(server: &Server, uri: &str, fields: &str) -> Vec<u8> {
    server.raw(format!("GET {uri} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n"))
}

#[test]
fn entries_of_all_sizes_are_served_whole_and_in_ranges() {
    let up = Upstream::new(|head, s| {
        let n: usize = head.split(['/', ' ']).nth(2).and_then(|n| n.parse().ok()).expect("a size");
        let _ = s.write_all(&ok("ETag: \"e\"\r\nAccept-Ranges: bytes\r\n", &bytes(n)));
    });
    let server = Server::start(cached(&up, "", ""));
    for n in [0, 1, 1000, 40_000, 140_000, 3_000_000] {
        let want = bytes(n);
        // Several times, since the second and third are answered on other ways than the first.
        for round in 0..4 {
            let answer = get(&server, &format!("/{n}"), "");
            let status = if round == 0 { "X-Cache: MISS" } else { "X-Cache: HIT" };
            assert!(
                String::from_utf8_lossy(&answer[..400.min(answer.len())]).contains(status),
                "{n} {round}"
            );
            assert!(body_of(&answer) == want, "{n} bytes, round {round}");
        }
        if n > 100 {
            let part = get(&server, &format!("/{n}"), "Range: bytes=90-99\r\n");
            assert!(part.starts_with(b"HTTP/1.1 206 ") && body_of(&part) == &want[90..100], "{n}");
        }
        let same = get(&server, &format!("/{n}"), "If-None-Match: \"e\"\r\n");
        assert!(same.starts_with(b"HTTP/1.1 304 "), "{n}");
    }
    assert_eq!(up.asked(), 6);
}

#[test]
fn a_kept_connection_is_served_from_memory() {
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("X-Up: 1\r\n", b"hello"))));
    // Nothing changes the head here, so that it is kept with the entry.
    let server = Server::start(conf(&format!(
        "proxy_cache_path %DIR%/cache keys_zone=one:1m; server {{ listen 127.0.0.1:%PORT0%; location / {{\n\
         proxy_pass http://{}; proxy_cache one; proxy_cache_valid 200 1h; }} }}",
        up.addr
    )));
    let mut stream = server.connect();
    let mut answers = Vec::new();
    for _ in 0..5 {
        stream.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut head = head_of(&mut stream);
        let mut body = [0; 5];
        stream.read_exact(&mut body).expect("a body");
        assert_eq!(&body, b"hello");
        let date = head.find("Date: ").expect("a date");
        head.replace_range(date..date + 35, "");
        answers.push(head);
    }
    assert!(answers.iter().all(|a| *a == answers[0] && a.contains("X-Up: 1")), "{answers:#?}");
    assert_eq!(up.asked(), 1);
}

#[test]
fn a_hundred_clients_cost_one_request() {
    let up = Upstream::new(|_, s| {
        std::thread::sleep(Duration::from_millis(300));
        let _ = s.write_all(&ok("", b"once"));
    });
    let server = Server::start(cached(&up, "", "proxy_cache_lock on;"));
    let addr = server.addr(0);
    let clients: Vec<_> = (0..100)
        .map(|_| {
            std::thread::spawn(move || raw(addr, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
        })
        .collect();
    for c in clients {
        assert_eq!(body_of(&c.join().expect("a client")), b"once");
    }
    assert_eq!(up.asked(), 1);
}

/// A server that dies is asked by the first of many clients (nginx: proxy_cache_valid, proxy_cache_lock).
#[test]
fn a_hundred_clients_cost_one_failure() {
    let up = Upstream::new(|_, _| std::thread::sleep(Duration::from_millis(300)));
    let rules =
        "proxy_cache_lock on; proxy_cache_valid 502 1h; proxy_next_upstream off; keepalive_timeout 1h;";
    let server = Server::start(cached(&up, "", rules));
    let addr = server.addr(0);
    let clients: Vec<_> = (0..100)
        .map(|_| {
            std::thread::spawn(move || raw(addr, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
        })
        .collect();
    for c in clients {
        assert!(c.join().expect("a client").starts_with(b"HTTP/1.1 502 "));
    }
    assert_eq!(up.asked(), 1);
}

/// A cache is asked before the name of a server is looked up, and remembers that there was no answer.
#[test]
fn a_cached_response_needs_no_name() {
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("", b"once"))));
    let server = Server::start(conf(&format!(
        "proxy_cache_path %DIR%/cache levels=1:2 keys_zone=one:1m; resolver 127.0.0.1:1; resolver_timeout 1s;\n\
         server {{ listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status always; location / {{ set $to {};\n\
         if ($arg_gone) {{ set $to gone.test; }} proxy_pass http://$to; proxy_cache one; proxy_cache_key $uri; proxy_cache_valid any 1h; }} }}",
        up.addr
    )));
    for (uri, status, cache) in [
        ("/a", 200, "MISS"),
        ("/a?gone=1", 200, "HIT"),
        ("/b?gone=1", 502, "MISS"),
        ("/b?gone=1", 502, "HIT"),
        ("/b", 502, "HIT"),
    ] {
        let answer = String::from_utf8_lossy(&get(&server, uri, "")).into_owned();
        let wanted = answer.starts_with(&format!("HTTP/1.1 {status} "))
            && answer.contains(&format!("X-Cache: {cache}\r\n"));
        assert!(wanted, "{uri}: {answer}");
    }
    assert_eq!(up.asked(), 1);
}

#[test]
fn variants_are_kept_apart_and_end_together() {
    let up = Upstream::new(|head, s| {
        let lang =
            head.lines().find_map(|l| l.strip_prefix("Accept-Language: ")).unwrap_or("none").to_owned();
        let _ = s.write_all(&ok("Vary: Accept-Language\r\n", lang.as_bytes()));
    });
    let more = "proxy_cache_key k; proxy_cache_purge $arg_purge;";
    let server = Server::start(cached(&up, "", more));
    let ask = |lang: &str| {
        String::from_utf8(get(&server, "/", &format!("Accept-Language: {lang}\r\n"))).expect("text")
    };
    for _ in 0..3 {
        for lang in ["de", "en", "fr"] {
            assert!(ask(lang).ends_with(lang));
        }
    }
    assert_eq!(up.asked(), 3);
    assert!(server.get("/?purge=1").starts_with("HTTP/1.1 204 "));
    // The variant that was not under the key itself is gone as well.
    for lang in ["de", "en", "fr"] {
        assert!(ask(lang).contains("X-Cache: MISS"), "{lang}");
    }
    assert_eq!(up.asked(), 6);
}

#[test]
fn a_purge_takes_one_key_or_all_that_begin_alike() {
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("", b"x"))));
    let server = Server::start(conf(&format!(
        "proxy_cache_path %DIR%/cache keys_zone=one:1m; map $request_method $purge {{ PURGE 1; default 0; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status; location / {{\n\
         proxy_pass http://{}; proxy_cache one; proxy_cache_valid 200 1h; proxy_cache_key $uri;\n\
         proxy_cache_purge $purge; }} }}",
        up.addr
    )));
    let hit = |uri: &str| server.get(uri).contains("X-Cache: HIT");
    for uri in ["/a/1", "/a/2", "/b"] {
        assert!(!hit(uri) && hit(uri));
    }
    let purge = |uri: &str| {
        let answer = server.raw(format!("PURGE {uri} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        assert!(answer.starts_with(b"HTTP/1.1 204 "), "{}", String::from_utf8_lossy(&answer));
    };
    purge("/b");
    assert!(!hit("/b") && hit("/a/1"));
    purge("/a/*");
    assert!(!hit("/a/1") && !hit("/a/2") && hit("/b"));
}

#[test]
fn a_restart_finds_the_cache_warm() {
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("", b"kept"))));
    let mut server = Server::start(cached(&up, "", ""));
    assert!(server.get("/").contains("X-Cache: MISS"));
    server.signal(Signal::SIGTERM);
    server.wait_end();
    let text = server.read("nginx.conf");
    let mut command = server.command(program(), &["-g", "daemon off;"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    wait_for("the second server", || TcpStream::connect(server.addr(0)).ok());
    let answer = server.get("/");
    kill(child.id() as i32, Signal::SIGTERM);
    let _ = child.wait();
    assert!(answer.contains("X-Cache: HIT") && answer.ends_with("kept"), "{answer}\n{text}");
    assert_eq!(up.asked(), 1);
}

#[test]
fn a_killed_worker_leaves_nothing_torn() {
    let body = bytes(600_000);
    let up = Upstream::new(move |head, s| {
        let whole = ok("", &bytes(600_000));
        if head.contains("/half") {
            // Never comes to its end.
            let _ = s.write_all(&whole[..400_000]);
            std::thread::sleep(DEADLINE);
        } else {
            let _ = s.write_all(&whole);
        }
    });
    let server = Server::start(cached(&up, "use_temp_path=off", ""));
    assert!(body_of(&get(&server, "/whole", "")) == body);
    let _client = server.send(b"GET /half HTTP/1.1\r\nHost: h\r\n\r\n");
    let cache = server.dir().join("cache");
    wait_until("a file under way", || files(&cache).len() == 2);
    let old = server.workers(server.pid());
    kill(old[0], Signal::SIGKILL);
    wait_until("another worker", || server.workers(server.pid()).iter().any(|w| *w != old[0]));
    wait_until("the rest to be removed", || files(&cache).len() == 1);
    // What was complete is still there, what was not is asked for again.
    let whole = get(&server, "/whole", "");
    assert!(whole.windows(12).any(|w| w == b"X-Cache: HIT") && body_of(&whole) == body);
    let before = up.asked();
    let _again = server.send(b"GET /half HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_until("another request", || up.asked() > before);
}

#[test]
fn damaged_files_are_not_served() {
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("", &bytes(200_000)))));
    let server = Server::start(cached(&up, "", "proxy_cache_key $uri;"));
    for (uri, cut) in [("/head", false), ("/end", true)] {
        get(&server, uri, "");
        let cache = server.dir().join("cache");
        // By its key: the two may have been made in the same tick of the file system's clock.
        let key = format!("\nKEY: {uri}\n");
        let (file, mut content) = files(&cache)
            .into_iter()
            .map(|f| (f.clone(), std::fs::read(f).expect("read")))
            .find(|(_, content)| content.windows(key.len()).any(|w| w == key.as_bytes()))
            .expect("a file");
        if cut {
            content.truncate(100_000);
        } else {
            content[60] ^= 1;
        }
        // Another inode, as after a restore from somewhere; the server has the old one open.
        std::fs::remove_file(&file).expect("remove");
        std::fs::write(&file, content).expect("write");
        server.reload();
    }
    // A new process reads the files anew.
    let old = server.workers(server.pid());
    kill(old[0], Signal::SIGKILL);
    wait_until("another worker", || server.workers(server.pid()).iter().any(|w| *w != old[0]));
    for uri in ["/head", "/end"] {
        let answer = get(&server, uri, "");
        assert!(answer.windows(13).any(|w| w == b"X-Cache: MISS"), "{uri}");
        assert!(body_of(&answer) == bytes(200_000));
    }
    server.wait_for_log("has a wrong checksum", 1);
    server.wait_for_log("has the wrong length", 1);
}

#[test]
fn the_cache_stays_below_its_size() {
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("", &bytes(100_000)))));
    let server = Server::start(cached(&up, "max_size=1m", ""));
    for n in 0..40 {
        get(&server, &format!("/{n}"), "");
    }
    let cache = server.dir().join("cache");
    wait_for("the manager", || {
        let size: u64 = files(&cache).iter().filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum();
        (size <= 1 << 20).then_some(())
    });
    // The latest is there, the first is not.
    assert!(String::from_utf8_lossy(&get(&server, "/39", "")[..300]).contains("X-Cache: HIT"));
    assert!(String::from_utf8_lossy(&get(&server, "/0", "")[..300]).contains("X-Cache: MISS"));
}

#[test]
fn unused_entries_are_removed() {
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("", b"x"))));
    let server = Server::start(cached(&up, "inactive=1s", ""));
    server.get("/");
    let cache = server.dir().join("cache");
    assert_eq!(files(&cache).len(), 1);
    wait_until("the manager", || files(&cache).is_empty());
}

/// A server that cannot write much: on a tiny tmpfs where one can be mounted, else under a limit for the size of
/// files, which fails in the same calls.
struct FullDisk {
    server: Server,
    mounted: Vec<PathBuf>,
}

impl FullDisk {
    fn start(text: Conf) -> FullDisk {
        let site = Site::new(text);
        let mut mounted = Vec::new();
        for name in ["cache", "temp"] {
            let dir = site.dir().join(name);
            std::fs::create_dir(&dir).expect("directory");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=64k,mode=777", "none"]).arg(&dir).stderr(Stdio::null());
            if mount.status().is_ok_and(|s| s.success()) {
                mounted.push(dir);
            }
        }
        let server =
            if mounted.len() == 2 { Server::start_on(site) } else { Server::start_limited(site, 64) };
        FullDisk { server, mounted }
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        for dir in &self.mounted {
            let _ = Command::new("umount").arg("-l").arg(dir).status();
        }
    }
}

#[test]
fn a_file_that_may_not_grow_costs_the_cache_not_the_client() {
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("", &bytes(1_000_000)))));
    let site = Site::new(cached(&up, "use_temp_path=off", ""));
    let server = Server::start_limited(site, 64);
    for _ in 0..2 {
        let answer = get(&server, "/", "");
        assert!(body_of(&answer) == bytes(1_000_000));
        assert!(answer.windows(13).any(|w| w == b"X-Cache: MISS"));
    }
    server.wait_for_log("while reading upstream", 2);
    assert_eq!(files(&server.dir().join("cache")).len(), 0);
}

#[test]
fn a_full_disk_costs_the_cache_not_the_client() {
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("", &bytes(1_000_000)))));
    let disk = FullDisk::start(cached(&up, "use_temp_path=off", ""));
    let answer = get(&disk.server, "/", "");
    assert!(body_of(&answer) == bytes(1_000_000));
    disk.server.wait_for_log("while reading upstream", 1);
    assert_eq!(disk.server.error_log().matches("[crit]").count(), 1, "{}", disk.server.error_log());
    assert!(String::from_utf8_lossy(&get(&disk.server, "/", "")[..300]).contains("X-Cache: MISS"));
    assert_eq!(files(&disk.server.dir().join("cache")).len(), 0);
}

#[test]
fn a_full_disk_slows_the_upstream_down() {
    let body = bytes(20_000_000);
    let up = Upstream::new(|_, s| drop(s.write_all(&ok("", &bytes(20_000_000)))));
    let disk = FullDisk::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{}; }} }}",
        up.addr
    )));
    let mut client = TcpStream::connect(disk.server.addr(0)).expect("connect");
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    disk.server.wait_for_log("while reading upstream", 1);
    let answer = client.rest_bytes();
    assert!(body_of(&answer) == body);
}

/// Asks and does not read; says whether the upstream gets rid of its whole answer within a time.
fn upstream_is_free(location: &str, size: usize, within: Duration) -> bool {
    let (tell, told) = std::sync::mpsc::channel();
    let up = Upstream::new(move |_, s| {
        let _ = s.write_all(&ok("", &bytes(size)));
        let _ = tell.send(());
    });
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0% sndbuf=32k; location / {{ proxy_pass http://{}; {location} }} }}",
        up.addr
    )));
    let mut client = server.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let free = told.recv_timeout(within).is_ok();
    let answer = client.rest_bytes();
    assert!(body_of(&answer) == bytes(size));
    assert_eq!(files(&server.dir().join("temp")).len(), 0);
    free
}

#[test]
fn a_slow_client_does_not_hold_the_upstream() {
    let never = Duration::from_secs(2);
    assert!(upstream_is_free("", 30_000_000, DEADLINE));
    assert!(!upstream_is_free("proxy_buffering off;", 30_000_000, never));
    assert!(!upstream_is_free("proxy_max_temp_file_size 0;", 30_000_000, never));
}

#[test]
fn a_client_that_leaves_does_not_stop_the_storing() {
    let up = Upstream::new(|_, s| {
        let whole = ok("", &bytes(300_000));
        let _ = s.write_all(&whole[..1000]);
        std::thread::sleep(Duration::from_millis(200));
        let _ = s.write_all(&whole[1000..]);
    });
    let server = Server::start(cached(&up, "", ""));
    let mut client = server.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut some = [0; 100];
    client.read_exact(&mut some).expect("the head");
    drop(client);
    let cache = server.dir().join("cache");
    wait_until("the entry", || files(&cache).len() == 1);
    let answer = get(&server, "/", "");
    assert!(body_of(&answer) == bytes(300_000) && up.asked() == 1);
}

#[test]
fn stale_responses_are_served_during_their_renewal() {
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    let up = Upstream::new(move |_, s| {
        let n = count.fetch_add(1, Ordering::SeqCst);
        if n > 0 {
            std::thread::sleep(Duration::from_millis(400));
        }
        let fields = "Cache-Control: max-age=1, stale-while-revalidate=60\r\n";
        let _ = s.write_all(&ok(fields, format!("answer {n}").as_bytes()));
    });
    let server = Server::start(cached(&up, "", "proxy_cache_background_update on;"));
    assert!(server.get("/").ends_with("answer 0"));
    let stale = wait_for("a stale answer", || Some(server.get("/")).filter(|a| a.contains("X-Cache: STALE")));
    assert!(stale.ends_with("answer 0"));
    let begun = Instant::now();
    let updating = server.get("/");
    assert!(updating.ends_with("answer 0") && updating.contains("X-Cache: UPDATING"), "{updating}");
    assert!(begun.elapsed() < Duration::from_millis(400));
    wait_until("the new answer", || server.get("/").contains("answer 1"));
}

/// The request that renews an entry knows of its client what the one knew that it works for, or it would renew another.
#[test]
fn an_entry_is_renewed_under_its_key() {
    let up = Upstream::new(|head, s| {
        let said: Vec<&str> = head.lines().filter(|l| l.starts_with("X-Said")).collect();
        let body = said.join(", ");
        let _ = s.write_all(&ok("Cache-Control: max-age=1, stale-while-revalidate=60\r\n", body.as_bytes()));
    });
    let more = "proxy_cache_background_update on; proxy_cache_key $proxy_protocol_addr$uri;\n\
                proxy_set_header X-Said $proxy_protocol_addr/$realip_remote_addr/$connection_requests;\n\
                proxy_set_header X-Said-Id $request_id;";
    let text = cached(&up, "", more)
        .to_string()
        .replace("%PORT0%;", "%PORT0%; listen 127.0.0.1:%PORT1% proxy_protocol; set_real_ip_from 127.0.0.1;");
    let server = Server::start(&text);
    let ask = || {
        let text = "PROXY TCP4 192.0.2.7 192.0.2.8 5 6\r\nGET / HTTP/1.1\r\nHost: h\r\nX-Real-IP: 192.0.2.9\r\n\
                    Connection: close\r\n\r\n";
        String::from_utf8(raw(server.addr(1), text)).expect("text")
    };
    let first = ask();
    let said = "X-Said: 192.0.2.7/127.0.0.1/1, X-Said-Id: ";
    assert!(first.contains("X-Cache: MISS") && first.contains(said), "{first}");
    wait_until("a stale answer", || ask().contains("X-Cache: STALE"));
    let meanwhile = |a: &String| !a.contains("X-Cache: STALE") && !a.contains("X-Cache: UPDATING");
    let renewed = wait_for("the new answer", || Some(ask()).filter(meanwhile));
    assert!(renewed.contains("X-Cache: HIT") && renewed.contains(said), "{renewed}");
    assert_ne!(body_of(renewed.as_bytes()), body_of(first.as_bytes()));
}

/// That an old response is still good says nothing of the one that has replaced it meanwhile.
#[test]
fn a_response_that_was_replaced_is_not_renewed() {
    let (asked, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (waiting, may_go) = (asked.clone(), told.clone());
    let up = Upstream::new(move |head, s| {
        if head.contains("If-None-Match: \"1\"") {
            waiting.fetch_add(1, Ordering::SeqCst);
            wait_until("the other answer", || may_go.load(Ordering::SeqCst) > 0);
            let _ =
                s.write_all(b"HTTP/1.1 304 No\r\nCache-Control: max-age=600\r\nConnection: close\r\n\r\n");
        } else if head.starts_with("GET /?new") {
            let _ = s.write_all(&ok("ETag: \"2\"\r\nCache-Control: max-age=600\r\n", b"body 2"));
        } else {
            let _ = s.write_all(&ok("ETag: \"1\"\r\nCache-Control: max-age=001\r\n", b"body 1"));
        }
    });
    let more = "proxy_cache_key $uri; proxy_cache_revalidate on; proxy_cache_bypass $arg_new;";
    let server = Server::start(cached(&up, "", more));
    assert!(server.get("/").ends_with("body 1"));
    let addr = server.addr(0);
    let old = std::thread::spawn(move || {
        let request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        wait_for("a renewed answer", || {
            let answer = String::from_utf8(raw(addr, request)).expect("text");
            answer.contains("X-Cache: REVALIDATED").then_some(answer)
        })
    });
    wait_until("the question", || asked.load(Ordering::SeqCst) > 0);
    assert!(server.get("/?new=1").ends_with("body 2"));
    wait_until("the new response", || server.get("/").ends_with("body 2"));
    told.fetch_add(1, Ordering::SeqCst);
    assert!(old.join().expect("a client").ends_with("body 1"));
    for _ in 0..3 {
        let answer = server.get("/");
        assert!(answer.contains("ETag: \"2\"") && answer.ends_with("body 2"), "{answer}");
    }
}

#[test]
fn stale_responses_are_served_when_the_upstream_fails() {
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    let up = Upstream::new(move |_, s| match count.fetch_add(1, Ordering::SeqCst) {
        0 => drop(s.write_all(&ok("Cache-Control: max-age=1\r\n", b"good"))),
        n if n % 2 == 1 => {
            drop(s.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
        }
        _ => {}
    });
    let server = Server::start(cached(&up, "", "proxy_cache_use_stale error http_500;"));
    assert!(server.get("/").ends_with("good"));
    wait_for("two failures", || {
        let answer = server.get("/");
        assert!(answer.ends_with("good"), "{answer}");
        (up.asked() >= 3 && answer.contains("X-Cache: STALE")).then_some(())
    });
}

#[test]
fn responses_are_stored_under_their_names() {
    let up = Upstream::new(|_, s| {
        let _ = s.write_all(&ok("Last-Modified: Mon, 02 Mar 2015 17:20:58 GMT\r\n", b"stored"));
    });
    let site = Site::new(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{}; root %DIR%/mirror;\n\
         proxy_store on; proxy_store_access user:rw group:rw all:r; }} }}",
        up.addr
    )));
    // The worker may be another user.
    let mirror = site.dir().join("mirror");
    std::fs::create_dir(&mirror).expect("directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&mirror, open).expect("mode");
    let server = Server::start_on(site);
    assert!(server.get("/deep/file").ends_with("stored"));
    let file = server.dir().join("mirror/deep/file");
    assert_eq!(std::fs::read(&file).expect("stored"), b"stored");
    let meta = file.metadata().expect("meta");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777, 0o664);
    let changed = meta.modified().expect("time").duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    assert_eq!(changed.as_secs(), 1_425_316_858);
}

#[test]
fn unbuffered_responses_are_not_cached() {
    let up = Upstream::new(|head, s| {
        let no = if head.contains("/no") { "X-Accel-Buffering: no\r\n" } else { "" };
        let _ = s.write_all(&ok(no, b"x"));
    });
    let server = Server::start(cached(&up, "", ""));
    for uri in ["/no", "/no"] {
        assert!(server.get(uri).contains("X-Cache: MISS"));
    }
    let server = Server::start(cached(&up, "", "proxy_buffering off;"));
    for uri in ["/", "/"] {
        assert!(server.get(uri).contains("X-Cache: MISS"));
    }
}

#[test]
fn slices_are_put_together() {
    let up = Upstream::new(|head, s| {
        let all = bytes(100_000);
        let range = head.lines().find_map(|l| l.strip_prefix("Range: bytes=")).expect("a range");
        let (a, b) = range.split_once('-').expect("two numbers");
        let a: usize = a.parse().expect("start");
        let b = (b.parse::<usize>().expect("end") + 1).min(all.len());
        let len = b - a;
        let last = b - 1;
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nETag: \"e\"\r\nContent-Length: {len}\r\n\
             Content-Range: bytes {a}-{last}/100000\r\n\r\n"
        );
        let _ = s.write_all(&[head.as_bytes(), &all[a..b]].concat());
    });
    let more = "slice 8k; proxy_set_header Range $slice_range; proxy_cache_key $uri$slice_range; \
                proxy_cache_valid 206 1h;";
    let server = Server::start(cached(&up, "", more));
    for _ in 0..2 {
        let answer = get(&server, "/", "");
        assert!(answer.starts_with(b"HTTP/1.1 200 ") && body_of(&answer) == bytes(100_000));
    }
    assert_eq!(up.asked(), 13);
    let part = get(&server, "/", "Range: bytes=20000-50000\r\n");
    assert!(part.starts_with(b"HTTP/1.1 206 ") && body_of(&part) == &bytes(100_000)[20_000..=50_000]);
    assert_eq!(up.asked(), 13);
}

/// A range of a response in slices costs its own bytes, not the slices it lies in. Slices are in memory or in files, cached or not.
#[test]
fn ranges_are_cut_out_of_slices() {
    const LEN: usize = 3_000_000;
    let up = Upstream::new(|head, s| {
        let range = head.lines().find_map(|l| l.strip_prefix("Range: bytes=")).expect("a range");
        let (a, b) = range.split_once('-').expect("two numbers");
        let (a, b): (usize, usize) = (a.parse().expect("start"), b.parse().expect("end"));
        let b = (b + 1).min(LEN);
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nETag: \"e\"\r\nContent-Length: {}\r\n\
             Content-Range: bytes {a}-{}/{LEN}\r\n\r\n",
            b - a,
            b - 1
        );
        let _ = s.write_all(&[head.as_bytes(), &bytes(LEN)[a..b]].concat());
    });
    for size in ["8k", "1m"] {
        let more = format!(
            "slice {size}; proxy_set_header Range $slice_range; proxy_cache_key $uri$slice_range; proxy_cache_valid 206 1h;"
        );
        let server = Server::start(cached(&up, "", &more));
        let check = |field: &str, want: std::ops::Range<usize>| {
            let part = get(&server, "/", &format!("Range: bytes={field}\r\n"));
            assert!(part.starts_with(b"HTTP/1.1 206 "), "{size} {field}");
            assert!(body_of(&part) == &bytes(LEN)[want], "{size} {field}: {} bytes", body_of(&part).len());
        };
        for round in 0..2 {
            for (field, want) in [
                ("0-0", 0..1),
                ("100-299", 100..300),
                ("8191-8192", 8191..8193),
                ("0-8191", 0..8192),
                ("8192-16383", 8192..16384),
                ("1048575-1048576", 1_048_575..1_048_577),
                ("1000000-1100000", 1_000_000..1_100_001),
                ("1048576-2097151", 1_048_576..2_097_152),
                ("2999999-", LEN - 1..LEN),
                ("-5", LEN - 5..LEN),
                ("1500000-9000000", 1_500_000..LEN),
            ] {
                check(field, want);
            }
            assert_eq!(body_of(&get(&server, "/", "")), bytes(LEN), "{size} {round}");
        }
        if size == "1m" {
            let io = || {
                let io = std::fs::read_to_string(format!("/proc/{}/io", server.worker())).expect("accounts");
                let read = io.lines().find_map(|l| l.strip_prefix("rchar: ")).expect("bytes");
                read.parse::<u64>().expect("a number")
            };
            let before = io();
            for _ in 0..20 {
                check("1500000-1500999", 1_500_000..1_501_000);
            }
            let read = io() - before;
            assert!(read < 20 * 10_000, "{read} bytes were read for 20,000");
        }
    }
}

/// Slices fit together by what the upstream sent, whatever of it the client gets.
#[test]
fn slices_are_put_together_without_their_fields() {
    let up = Upstream::new(|head, s| {
        let range = head.lines().find_map(|l| l.strip_prefix("Range: bytes=")).expect("a range");
        let a: usize = range.split('-').next().and_then(|a| a.parse().ok()).expect("start");
        let end = (a + 8192).min(100_000);
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nETag: \"e\"\r\nContent-Length: {}\r\nLast-Modified: \
             Sun, 06 Nov 1994 08:49:37 GMT\r\nAccept-Ranges: bytes\r\nContent-Range: bytes {a}-{}/100000\r\n\r\n",
            end - a,
            end - 1
        );
        let _ = s.write_all(&[head.as_bytes(), &bytes(100_000)[a..end]].concat());
    });
    let hidden =
        ["ETag", "Content-Range", "Content-Length", "Last-Modified", "Accept-Ranges", "Date", "Connection"];
    let mut changes: Vec<String> = hidden.map(|name| format!("proxy_hide_header {name};")).into();
    changes.extend(
        [
            "more_clear_headers ETag Content-Range;",
            "add_header ETag '\"mine\"';",
            "add_header ETag \"\";",
            "more_set_headers 'ETag: \"mine\"';",
            "expires 1h;",
        ]
        .map(str::to_owned),
    );
    let all = hidden.map(|name| format!("proxy_hide_header {name};")).concat();
    changes.push(all);
    for change in changes {
        let more = format!(
            "slice 8k; proxy_set_header Range $slice_range; proxy_cache_key $uri$slice_range; proxy_cache_valid 206 1h; {change}"
        );
        let server = Server::start(cached(&up, "", &more));
        for _ in 0..2 {
            let answer = get(&server, "/", "");
            assert!(answer.starts_with(b"HTTP/1.1 200 "), "{change}: {}", server.error_log());
            assert!(body_of(&answer) == bytes(100_000), "{change}: {}", server.error_log());
            let part = get(&server, "/", "Range: bytes=20000-50000\r\n");
            assert!(part.starts_with(b"HTTP/1.1 206 "), "{change}");
            assert!(body_of(&part) == &bytes(100_000)[20_000..=50_000], "{change}");
        }
    }
}

/// Whoever asks for a large file has what came before the upstream failed, also of what was in the cache.
#[test]
fn slices_before_a_failure_are_not_lost() {
    let up = Upstream::new(|head, s| {
        let range = head.lines().find_map(|l| l.strip_prefix("Range: bytes=")).expect("a range");
        let a: usize = range.split('-').next().and_then(|a| a.parse().ok()).expect("start");
        let tag = match (a, head.starts_with("GET /torn")) {
            (0 | 8192, _) => "e",
            (_, true) => "f",
            (_, false) => return,
        };
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nETag: \"{tag}\"\r\nContent-Length: 8192\r\n\
             Content-Range: bytes {a}-{}/100000\r\n\r\n",
            a + 8191
        );
        let _ = s.write_all(&[head.as_bytes(), &bytes(100_000)[a..a + 8192]].concat());
    });
    let more = "slice 8k; proxy_set_header Range $slice_range; proxy_cache_key $uri$slice_range; \
                proxy_cache_valid 206 1h;";
    let server = Server::start(cached(&up, "", more));
    for uri in ["/cut", "/torn", "/cut", "/torn"] {
        let answer = get(&server, uri, "");
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{uri}");
        assert_eq!(body_of(&answer), &bytes(100_000)[..2 * 8192], "{uri}");
    }
}

/// Fields of a cached response that were rewritten with a client's variables are sent to that client only.
#[test]
fn cookies_that_are_rewritten_for_a_client_are_not_sent_to_the_next() {
    let up = Upstream::new(|head, s| {
        let field =
            if head.starts_with("GET /redirect") { "Location: /moved" } else { "Set-Cookie: v=1; Path=/" };
        let _ = s.write_all(&ok(&format!("{field}\r\nX-Plain: yes\r\n"), b"body"));
    });
    let server = Server::start(conf(&format!(
        "proxy_cache_path %DIR%/cache keys_zone=one:1m; proxy_cache_key $uri; proxy_cache one;
         proxy_cache_valid 1h; proxy_ignore_headers Set-Cookie; server {{ listen 127.0.0.1:%PORT0%;
         location /path {{ proxy_cookie_path / /$arg_who; proxy_pass http://{0}; }}
         location /domain {{ proxy_cookie_flags v $arg_who; proxy_pass http://{0}; }}
         location /redirect {{ proxy_redirect ~^/(.*) /$arg_who/$1; proxy_pass http://{0}; }} }}",
        up.addr
    )));
    for (uri, who, want) in [
        ("/path", ["ann", "bob"], ["Path=/ann\r\n", "Path=/bob\r\n"]),
        ("/domain", ["secure", "httponly"], ["Path=/; Secure\r\n", "Path=/; HttpOnly\r\n"]),
        ("/redirect", ["ann", "bob"], ["/ann/moved\r\n", "/bob/moved\r\n"]),
    ] {
        assert!(String::from_utf8_lossy(&get(&server, uri, "")).starts_with("HTTP/1.1 200 "));
        // A head is kept of connections that go on.
        let ask = |who: &str, last: &str| format!("GET {uri}?who={who} HTTP/1.1\r\nHost: h\r\n{last}\r\n");
        let all = [ask(who[0], ""), ask(who[0], ""), ask(who[1], ""), ask(who[1], "Connection: close\r\n")];
        let text = server.ask(all.concat());
        let heads: Vec<&str> = text.split("HTTP/1.1 ").skip(1).collect();
        assert_eq!(heads.len(), 4, "{text}");
        for (i, head) in heads.iter().enumerate() {
            assert!(head.contains(want[i / 2]) && head.contains("X-Plain: yes"), "{i}: {head}");
        }
    }
    assert_eq!(up.asked(), 3);
}
