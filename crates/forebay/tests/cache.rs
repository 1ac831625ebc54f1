//! Cached and buffered responses of upstreams: plain sockets on both sides.

use forebay_testkit::{
    Conf, DEADLINE, Origin, Server, Signal, Site, Talk, ask, body_of, files, get, get_with, http, join_all,
    wait_for, wait_until,
};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

forebay_testkit::cases!("cases/cache.cases":
    a_cached_response_needs_no_name, variants_are_kept_apart_and_end_together, a_purge_takes_one_key_or_all_that_begin_alike,
    unbuffered_responses_are_not_cached, slices_are_put_together, slices_are_put_together_without_their_fields,
    slices_before_a_failure_are_not_lost, cookies_that_are_rewritten_for_a_client_are_not_sent_to_the_next,
    a_restart_finds_the_cache_warm, unused_entries_are_removed, stale_responses_are_served_when_the_upstream_fails,
    a_file_that_may_not_grow_costs_the_cache_not_the_client, a_client_that_leaves_does_not_stop_the_storing);

/// An upstream that answers all requests alike.
fn upstream(fields: &'static str, body: impl AsRef<[u8]> + Send + Sync + 'static) -> Origin {
    Origin::start(move |asked| asked.answer("200 OK", fields, &body))
}

fn conf(rest: &str) -> Conf {
    http!("{rest}").workers(2)
}

/// A server whose location `/` caches what `up` answers; `more` goes into the location.
fn cached(up: Origin, path: &str, more: &str) -> Conf {
    conf(&format!(
        "proxy_cache_path %DIR%/cache levels=1:2 keys_zone=one:1m {path};\n\
         server {{ listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status;\n\
         location / {{ proxy_pass http://{up}; proxy_cache one; proxy_cache_valid 200 1h; {more} }} }}"
    ))
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| b"0123456789abcdefghijklmnopqrstuvwxyz"[(i + i / 1000) % 36]).collect()
}

#[test]
fn entries_of_all_sizes_are_served_whole_and_in_ranges() {
    let up = Origin::start(|asked| {
        let size = asked.target()[1..].parse().expect("a size");
        asked.answer("200 OK", "ETag: \"e\"\r\nAccept-Ranges: bytes\r\n", bytes(size))
    });
    let server = Server::start(cached(up, "", ""));
    for n in [0, 1, 1000, 40_000, 140_000, 3_000_000] {
        let want = bytes(n);
        // Several times, since the second and third are answered on other ways than the first.
        for round in 0..4 {
            let answer = server.raw(get(format!("/{n}")));
            let status = if round == 0 { "X-Cache: MISS" } else { "X-Cache: HIT" };
            assert!(
                String::from_utf8_lossy(&answer[..400.min(answer.len())]).contains(status),
                "{n} {round}"
            );
            assert!(body_of(&answer) == want, "{n} bytes, round {round}");
        }
        if n > 100 {
            let part = server.raw(get_with(format!("/{n}"), "Range: bytes=90-99\r\n"));
            assert!(part.starts_with(b"HTTP/1.1 206 ") && body_of(&part) == &want[90..100], "{n}");
        }
        let same = server.raw(get_with(format!("/{n}"), "If-None-Match: \"e\"\r\n"));
        assert!(same.starts_with(b"HTTP/1.1 304 "), "{n}");
    }
    assert_eq!(up.asked(), 6);
}

#[test]
fn a_kept_connection_is_served_from_memory() {
    let up = upstream("X-Up: 1\r\n", "hello");
    // Nothing changes the head here, so that it is kept with the entry.
    let server = Server::start(conf(&format!(
        "proxy_cache_path %DIR%/cache keys_zone=one:1m; server {{ listen 127.0.0.1:%PORT0%; location / {{\n\
         proxy_pass http://{up}; proxy_cache one; proxy_cache_valid 200 1h; }} }}"
    )));
    let mut stream = server.connect();
    let mut heads = Vec::new();
    for _ in 0..5 {
        stream.get("/");
        let answer = stream.answer();
        assert_eq!(answer.body, b"hello");
        let date = answer.head.find("Date: ").expect("a date");
        heads.push(answer.head.replace(&answer.head[date..date + 35], ""));
    }
    assert!(heads.iter().all(|head| *head == heads[0] && head.contains("X-Up: 1")), "{heads:#?}");
    assert_eq!(up.asked(), 1);
}

/// Only the first of many clients has the server asked, also one that dies (nginx: proxy_cache_valid, proxy_cache_lock).
#[test]
fn a_hundred_clients_cost_one_request() {
    let failing = "proxy_cache_valid 502 1h; proxy_next_upstream off; keepalive_timeout 1h;";
    for (what, rules, status, body) in
        [("an answer", "", "200", Some("once")), ("a failure", failing, "502", None)]
    {
        let up = Origin::start(move |asked| {
            std::thread::sleep(Duration::from_millis(300));
            body.is_some_and(|body| asked.answer("200 OK", "", body))
        });
        let server = Server::start(cached(up, "", &format!("proxy_cache_lock on; {rules}")));
        let addr = server.addr(0);
        for answer in join_all((0..100).map(|_| std::thread::spawn(move || ask(addr, get("/"))))) {
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answer}");
            assert!(body.is_none_or(|body| answer.ends_with(&format!("\r\n\r\n{body}"))), "{what}: {answer}");
        }
        assert_eq!(up.asked(), 1, "{what}");
    }
}

/// `file=` (Angie): the index is written at the end, and read and removed at the start. A file that is gone is a miss, and a damaged
/// index costs nothing but its reading.
#[test]
fn the_index_outlives_a_restart() {
    let up = Origin::start(|asked| {
        let target = asked.target().to_owned();
        asked.answer("200 OK", "", target)
    });
    let mut server = Server::start(cached(up, "file=%DIR%/cache/index", ""));
    let index = server.path("cache/index");
    let ask = |server: &Server, target: &str| server.get(target);
    for target in ["/a", "/b", "/c"] {
        assert!(ask(&server, target).contains("X-Cache: MISS"));
    }
    let end = |server: &mut Server| {
        // Only an index that has seen the whole directory is written.
        wait_until("the index", || {
            server.signal(Signal::SIGQUIT);
            server.wait_end() == Some(0) && {
                let written = index.exists();
                if !written {
                    server.restart_dead();
                }
                written
            }
        });
    };
    end(&mut server);
    let length = std::fs::metadata(&index).expect("an index").len();
    assert_eq!(length, 32 + 3 * 20 + 8);
    let gone = files(&server.path("cache")).into_iter().find(|path| path.file_name() != index.file_name());
    std::fs::remove_file(gone.expect("a file")).expect("removed");
    server.restart_dead();
    wait_until("the index is read", || !index.exists());
    let hits =
        ["/a", "/b", "/c"].iter().filter(|target| ask(&server, target).contains("X-Cache: HIT")).count();
    assert_eq!(hits, 2);
    end(&mut server);
    let mut bytes = std::fs::read(&index).expect("an index");
    bytes[40] ^= 1;
    std::fs::write(&index, bytes).expect("written");
    server.restart_dead();
    for target in ["/a", "/b", "/c"] {
        assert!(ask(&server, target).contains("X-Cache: HIT"), "{target}");
    }
}

#[test]
fn a_killed_worker_leaves_nothing_torn() {
    let body = bytes(600_000);
    let up = Origin::start(move |asked| {
        if asked.target() != "/half" {
            return asked.answer("200 OK", "", bytes(600_000));
        }
        // Never comes to its end.
        asked.write("HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n");
        asked.write(bytes(400_000));
        std::thread::sleep(DEADLINE);
        false
    });
    let server = Server::start(cached(up, "use_temp_path=off", ""));
    assert!(body_of(&server.raw(get("/whole"))) == body);
    let _client = server.send(b"GET /half HTTP/1.1\r\nHost: h\r\n\r\n");
    let cache = server.dir().join("cache");
    wait_until("a file under way", || files(&cache).len() == 2);
    server.kill_worker();
    wait_until("the rest to be removed", || files(&cache).len() == 1);
    // What was complete is still there, what was not is asked for again.
    let whole = server.raw(get("/whole"));
    assert!(whole.windows(12).any(|w| w == b"X-Cache: HIT") && body_of(&whole) == body);
    let before = up.asked();
    let _again = server.send(b"GET /half HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_until("another request", || up.asked() > before);
}

#[test]
fn damaged_files_are_not_served() {
    let up = upstream("", bytes(200_000));
    let server = Server::start(cached(up, "", "proxy_cache_key $uri;"));
    for (uri, cut) in [("/head", false), ("/end", true)] {
        server.raw(get(uri));
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
    server.kill_worker();
    for uri in ["/head", "/end"] {
        let answer = server.raw(get(uri));
        assert!(answer.windows(13).any(|w| w == b"X-Cache: MISS"), "{uri}");
        assert!(body_of(&answer) == bytes(200_000));
    }
    server.wait_for_log("has a wrong checksum", 1);
    server.wait_for_log("has the wrong length", 1);
}

#[test]
fn the_cache_stays_below_its_size() {
    let up = upstream("", bytes(100_000));
    let server = Server::start(cached(up, "max_size=1m", ""));
    for n in 0..40 {
        server.raw(get(format!("/{n}")));
    }
    let cache = server.dir().join("cache");
    wait_for("the manager", || {
        let size: u64 = files(&cache).iter().filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum();
        (size <= 1 << 20).then_some(())
    });
    // The latest is there, the first is not.
    assert!(String::from_utf8_lossy(&server.raw(get("/39"))[..300]).contains("X-Cache: HIT"));
    assert!(String::from_utf8_lossy(&server.raw(get("/0"))[..300]).contains("X-Cache: MISS"));
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
fn a_full_disk_costs_the_cache_not_the_client() {
    let up = upstream("", bytes(1_000_000));
    let disk = FullDisk::start(cached(up, "use_temp_path=off", ""));
    let answer = disk.server.raw(get("/"));
    assert!(body_of(&answer) == bytes(1_000_000));
    disk.server.wait_for_log("while reading upstream", 1);
    assert_eq!(disk.server.error_log().matches("[crit]").count(), 1, "{}", disk.server.error_log());
    assert!(String::from_utf8_lossy(&disk.server.raw(get("/"))[..300]).contains("X-Cache: MISS"));
    assert_eq!(files(&disk.server.dir().join("cache")).len(), 0);
}

#[test]
fn a_full_disk_slows_the_upstream_down() {
    let body = bytes(20_000_000);
    let up = upstream("", bytes(20_000_000));
    let disk = FullDisk::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{up}; }} }}"
    )));
    let mut client = disk.server.send(get("/"));
    disk.server.wait_for_log("while reading upstream", 1);
    let answer = client.rest_bytes();
    assert!(body_of(&answer) == body);
}

/// Asks and does not read; says whether the upstream gets rid of its whole answer within a time.
fn upstream_is_free(location: &str, size: usize, within: Duration) -> bool {
    let (tell, told) = std::sync::mpsc::channel();
    let up = Origin::start(move |asked| asked.answer("200 OK", "", bytes(size)) && tell.send(()).is_ok());
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0% sndbuf=32k; location / {{ proxy_pass http://{up}; {location} }} }}"
    )));
    let mut client = server.send(get("/"));
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
fn stale_responses_are_served_during_their_renewal() {
    let served = AtomicUsize::new(0);
    let up = Origin::start(move |asked| {
        let n = served.fetch_add(1, Ordering::SeqCst);
        if n > 0 {
            std::thread::sleep(Duration::from_millis(400));
        }
        asked.answer(
            "200 OK",
            "Cache-Control: max-age=1, stale-while-revalidate=60\r\n",
            format!("answer {n}"),
        )
    });
    let server = Server::start(cached(up, "", "proxy_cache_background_update on;"));
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
    let up = Origin::start(|asked| {
        let said = asked.text.lines().filter(|l| l.starts_with("X-Said")).collect::<Vec<_>>().join(", ");
        asked.answer("200 OK", "Cache-Control: max-age=1, stale-while-revalidate=60\r\n", said)
    });
    let more = "proxy_cache_background_update on; proxy_cache_key $proxy_protocol_addr$uri;\n\
                proxy_set_header X-Said $proxy_protocol_addr/$realip_remote_addr/$connection_requests;\n\
                proxy_set_header X-Said-Id $request_id;";
    let text = cached(up, "", more)
        .to_string()
        .replace("%PORT0%;", "%PORT0%; listen 127.0.0.1:%PORT1% proxy_protocol; set_real_ip_from 127.0.0.1;");
    let server = Server::start(&text);
    let request =
        format!("PROXY TCP4 192.0.2.7 192.0.2.8 5 6\r\n{}", get_with("/", "X-Real-IP: 192.0.2.9\r\n"));
    let ask = || ask(server.addr(1), &request);
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
    let up = Origin::start(move |asked| {
        if asked.text.contains("If-None-Match: \"1\"") {
            waiting.fetch_add(1, Ordering::SeqCst);
            wait_until("the other answer", || may_go.load(Ordering::SeqCst) > 0);
            asked.close_with("HTTP/1.1 304 No\r\nCache-Control: max-age=600\r\nConnection: close\r\n\r\n")
        } else if asked.target().starts_with("/?new") {
            asked.answer("200 OK", "ETag: \"2\"\r\nCache-Control: max-age=600\r\n", "body 2")
        } else {
            asked.answer("200 OK", "ETag: \"1\"\r\nCache-Control: max-age=001\r\n", "body 1")
        }
    });
    let more = "proxy_cache_key $uri; proxy_cache_revalidate on; proxy_cache_bypass $arg_new;";
    let server = Server::start(cached(up, "", more));
    assert!(server.get("/").ends_with("body 1"));
    let addr = server.addr(0);
    let old = std::thread::spawn(move || {
        wait_for("a renewed answer", || {
            Some(ask(addr, get("/"))).filter(|a| a.contains("X-Cache: REVALIDATED"))
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
fn responses_are_stored_under_their_names() {
    let up = upstream("Last-Modified: Mon, 02 Mar 2015 17:20:58 GMT\r\n", "stored");
    let site = Site::new(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{up}; root %DIR%/mirror;\n\
         proxy_store on; proxy_store_access user:rw group:rw all:r; }} }}"
    )));
    site.make_dir("mirror");
    let server = Server::start_on(site);
    assert!(server.get("/deep/file").ends_with("stored"));
    let file = server.dir().join("mirror/deep/file");
    assert_eq!(std::fs::read(&file).expect("stored"), b"stored");
    let meta = file.metadata().expect("meta");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777, 0o664);
    let changed = meta.modified().expect("time").duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    assert_eq!(changed.as_secs(), 1_425_316_858);
}

/// A range of a response in slices costs its own bytes, not the slices it lies in. Slices are in memory or in files, cached or not.
#[test]
fn ranges_are_cut_out_of_slices() {
    const LEN: usize = 3_000_000;
    let (all, content) = (bytes(LEN), bytes(LEN));
    let up = Origin::start(move |asked| asked.part("ETag: \"e\"\r\n", &content));
    for size in ["8k", "1m"] {
        let more = format!(
            "slice {size}; proxy_set_header Range $slice_range; proxy_cache_key $uri$slice_range; proxy_cache_valid 206 1h;"
        );
        let server = Server::start(cached(up, "", &more));
        let check = |field: &str, want: std::ops::Range<usize>| {
            let part = server.raw(get_with("/", format!("Range: bytes={field}\r\n")));
            assert!(part.starts_with(b"HTTP/1.1 206 "), "{size} {field}");
            assert!(body_of(&part) == &all[want], "{size} {field}: {} bytes", body_of(&part).len());
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
            assert_eq!(body_of(&server.raw(get("/"))), all, "{size} {round}");
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
