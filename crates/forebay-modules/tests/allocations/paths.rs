//! Costs of common configurations: allocations and system calls of the worker thread for a unit, a request of one client
//! after the other or an event. The limits are what the code takes, and little more: a buffer, connection, page, pipe or encoder that is
//! not used again costs one more at least.

use crate::during;
use crate::origin::{self, Ticks};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path as FilePath;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A path through the server.
struct Path {
    name: &'static str,
    /// Directives of the location.
    conf: &'static str,
    /// What follows the location's path in the request. `{}` becomes a number below [`FILES`], each time the next one.
    target: &'static str,
    fields: &'static str,
    /// Bytes of the request's body.
    body: usize,
    /// Units that are counted.
    units: usize,
    /// Most allocations and system calls for each.
    most: (f64, f64),
}

/// A small request, of which there are many.
const SMALL: Path =
    Path { name: "", conf: "", target: "", fields: "", body: 0, units: 200, most: (0.0, 0.0) };

/// Number of files in the directory.
const FILES: usize = 100;

/// An answer or a body of 1 MB.
const LARGE: Path = Path { units: 20, ..SMALL };

// The rest above what was measured is for what depends on the moment: how much has arrived when the thread looks, and whether a thread of
// the pool sleeps.
const PATHS: &[Path] = &[
    Path { name: "file", target: "page.html", most: (0.2, 3.2), ..SMALL },
    Path { name: "file, 100 KB", target: "long.bin", most: (0.2, 5.3), ..SMALL },
    Path { name: "tree", conf: "open_file_cache off;", target: "list/file{}", most: (0.2, 4.3), ..SMALL },
    Path { name: "autoindex", conf: "autoindex on;", target: "list/", most: (8.5, 9.0), ..SMALL },
    Path {
        name: "password",
        conf: PASSWORD,
        target: "page.html",
        fields: ALICE,
        most: (19.5, 15.5),
        ..SMALL
    },
    Path { name: "patterns", conf: "return 200 $class;", fields: ROBOT, most: (0.2, 3.2), ..SMALL },
    Path { name: "variable", conf: BY_VARIABLE, fields: ROBOT, most: (0.2, 3.2), ..SMALL },
    Path { name: "fragments", conf: "ssi on; ssi_types *;", target: "page.shtml", most: (3.2, 3.2), ..SMALL },
    Path { name: "proxied", conf: "proxy_pass http://u/1024;", most: (0.2, 6.3), ..SMALL },
    Path { name: "proxied 64 KB", conf: "proxy_pass http://u/65536;", most: (1.2, 11.5), ..SMALL },
    // Each wait for the client is an allocation, and how many there are depends on the moment.
    Path { name: "proxied 1 MB", conf: MEGABYTE, most: (5.5, 58.0), ..LARGE },
    Path { name: "fastcgi", conf: "fastcgi_pass @fcgi@;", most: (1.2, 13.3), ..SMALL },
    Path { name: "gzip", conf: GZIP_20K, fields: GZIP, most: (5.2, 7.6), ..SMALL },
    Path { name: "gzip 1 MB", conf: GZIP_1M, fields: GZIP, most: (6.6, 60.0), ..LARGE },
    Path { name: "cached", conf: CACHED_1K, most: (1.2, 3.2), ..SMALL },
    Path { name: "cached 1 MB", conf: CACHED_1M, most: (2.3, 6.0), ..LARGE },
    Path { name: "missed", conf: MISSED, most: (39.0, 25.0), ..SMALL },
    Path { name: "slice", conf: SLICE, fields: "Range: bytes=300000-365535\r\n", most: (8.3, 5.5), ..SMALL },
    Path { name: "upload 1 MB", conf: UPLOAD, body: 1 << 20, most: (11.6, 68.0), ..LARGE },
    Path { name: "upload 1 MB, passed on", conf: PASSED_ON, body: 1 << 20, most: (7.2, 22.0), ..LARGE },
    Path {
        name: "event",
        conf: "proxy_pass http://u/events; proxy_buffering off;",
        most: (0.2, 3.3),
        ..SMALL
    },
];

const PASSWORD: &str = "auth_basic x; auth_basic_user_file htpasswd;";
/// A location of a variable that is not taken, and one that is.
const BY_VARIABLE: &str =
    "location $http_none { deny all; } location $class { return 200 $class; } deny all;";
const ALICE: &str = "Authorization: Basic YWxpY2U6d29uZGVybGFuZA==\r\n";
const ROBOT: &str = "User-Agent: robot299/1.0\r\n";
const GZIP: &str = "Accept-Encoding: gzip\r\n";
const GZIP_20K: &str = "proxy_pass http://u/20000; gzip on; gzip_types *; gzip_proxied any;";
const GZIP_1M: &str = "proxy_pass http://u/1048576; gzip on; gzip_types *; gzip_proxied any;";
const MEGABYTE: &str = "proxy_pass http://u/1048576;";
const CACHED_1K: &str = "proxy_pass http://u/1024; proxy_cache c; proxy_cache_valid 1h;";
const CACHED_1M: &str = "proxy_pass http://u/1048576; proxy_cache c; proxy_cache_valid 1h;";
const MISSED: &str =
    "proxy_pass http://u/1024; proxy_cache c; proxy_cache_valid 1h; proxy_cache_key $request_id;";
const UPLOAD: &str = "proxy_pass http://u/7; client_max_body_size 2m;";
const PASSED_ON: &str = "proxy_pass http://u/7; client_max_body_size 2m; proxy_request_buffering off;";
const SLICE: &str = "slice 1m; proxy_pass http://u/2097152; proxy_cache c; proxy_cache_valid 200 206 1h; \
    proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range;";

/// Makes the files of the paths. Returns the configuration of the server but for its locations.
fn prepare(dir: &FilePath) -> String {
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect("write");
    write("page.html", &"<p>more of it</p>".repeat(50));
    write(
        "page.shtml",
        "<html><!--#include virtual=\"/file/a.html\" --><!--#include virtual=\"/file/a.html\" --></html>",
    );
    write("a.html", "<p>a fragment</p>");
    write("htpasswd", "alice:$apr1$saltsalt$WoESZIlCyPaOHxFHP.vy51\n");
    // Too long to be copied.
    write("long.bin", &"x".repeat(100 * 1024));
    std::fs::create_dir(dir.join("list")).expect("a directory");
    for i in 0..FILES {
        write(&format!("list/file{i}"), "x");
    }
    let patterns: String = (0..300).map(|i| format!("\"~*robot{i}/[0-9]+\" robot{i}; ")).collect();
    format!(
        "map $http_user_agent $class {{ default other; {patterns} }} \
         proxy_cache_path {}/cache levels=1:2 keys_zone=c:1m;",
        dir.display()
    )
}

/// Reads one answer, whose end is told by its length or by chunks.
fn answer(stream: &mut TcpStream, buf: &mut Vec<u8>) {
    buf.clear();
    let mut piece = [0; 65536];
    loop {
        let end = buf.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&buf[..end]).to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 20"), "{head}");
            let len = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map(|len| len.parse().expect("a number"));
            match len {
                Some(len) => return skip(stream, buf.len() - end - 4, len),
                None if buf.ends_with(b"0\r\n\r\n") => return,
                None => {}
            }
        }
        let n = stream.read(&mut piece).expect("read");
        assert!(n > 0, "the connection ended");
        buf.extend_from_slice(&piece[..n]);
    }
}

/// Reads a body up to its end.
fn skip(stream: &mut TcpStream, mut got: usize, len: usize) {
    let mut piece = [0; 65536];
    while got < len {
        let n = stream.read(&mut piece).expect("read");
        assert!(n > 0, "the connection ended");
        got += n;
    }
}

/// A client with one connection.
struct Client {
    stream: TcpStream,
    requests: Vec<Vec<u8>>,
    /// Number of units so far.
    done: usize,
    buf: Vec<u8>,
    /// Has the upstream send the next event.
    ticks: Option<Sender<()>>,
}

impl Client {
    fn units(&mut self, count: usize) {
        for _ in 0..count {
            self.done += 1;
            let Some(ticks) = &self.ticks else {
                self.stream.write_all(&self.requests[self.done % self.requests.len()]).expect("write");
                answer(&mut self.stream, &mut self.buf);
                continue;
            };
            ticks.send(()).expect("an upstream");
            let mut event = Vec::new();
            while !event.ends_with(b"abc\n\r\n") {
                let n = self.stream.read(&mut self.buf).expect("read");
                assert!(n > 0, "the stream ended");
                event.extend_from_slice(&self.buf[..n]);
            }
        }
    }
}

/// Runs a worker in this thread with one path. A client has it serve some units, and `then` goes on with that.
fn serve(path: &'static Path, then: impl FnOnce(&mut Client) + Send + 'static) -> u64 {
    let dir = tempfile::tempdir().expect("temporary directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.set_nonblocking(true).expect("nonblocking");
    let addr = listener.local_addr().expect("bound");
    let (tick, due) = channel();
    let ticks: Ticks = Arc::new(Mutex::new(due));
    let (up, fcgi) = origin::start(ticks);
    let conf = path.conf.replace("@fcgi@", &fcgi.to_string());
    let server = format!(
        "{} upstream u {{ server {up}; keepalive 4; keepalive_requests 1000000; }} \
         server {{ listen {addr}; root {d}; proxy_http_version 1.1; proxy_set_header Connection \"\"; \
         location /path/ {{ alias {d}/; {conf} }} location /file/ {{ alias {d}/; }} }}",
        prepare(dir.path()),
        d = dir.path().display()
    );
    let requests = requests(path);
    during(dir.path(), &server, listener.into(), move || {
        let mut stream = TcpStream::connect(addr).expect("connect");
        stream.set_nodelay(true).expect("an option");
        let streamed = path.name == "event";
        if streamed {
            stream.write_all(&requests[0]).expect("write");
        }
        let warm = 10 + 2 * requests.len();
        let ticks = streamed.then_some(tick);
        let mut client = Client { stream, requests, done: 0, buf: vec![0; 65536], ticks };
        client.units(warm);
        then(&mut client);
    })
}

/// The requests of a path, which take turns.
fn requests(path: &Path) -> Vec<Vec<u8>> {
    let (method, length) = match path.body {
        0 => ("GET", String::new()),
        len => ("POST", format!("Content-Length: {len}\r\n")),
    };
    let one = |i: usize| {
        let target = path.target.replace("{}", &i.to_string());
        let head =
            format!("{method} /path/{target} HTTP/1.1\r\nHost: localhost\r\n{}{length}\r\n", path.fields);
        [head.as_bytes(), &vec![b'y'; path.body]].concat()
    };
    (0..if path.target.contains("{}") { FILES } else { 1 }).map(one).collect()
}

/// Allocations for a unit.
fn allocations(path: &'static Path) -> f64 {
    let few = serve(path, |_| {});
    let many = serve(path, |client| client.units(path.units));
    many.saturating_sub(few) as f64 / path.units as f64
}

/// System calls of the thread for a unit, as strace counts them, with the commonest ones. `None`: strace may not look here.
fn calls(path: &'static Path) -> Option<(f64, String)> {
    let thread = std::fs::read_link("/proc/thread-self").expect("proc");
    let task = thread.file_name().expect("a name").to_str().expect("a number").to_owned();
    let counted = tempfile::NamedTempFile::new().expect("a file");
    let (out, (told, told_of)) = (counted.path().to_owned(), channel());
    serve(path, move |client| {
        let strace =
            Command::new("strace").args(["-c", "-p", &task, "-o"]).arg(&out).stderr(Stdio::null()).spawn();
        let Ok(mut strace) = strace else { return };
        if attached(&task, &mut strace) {
            client.units(path.units);
            let pid = strace.id().to_string();
            assert!(Command::new("kill").args(["-INT", &pid]).status().is_ok_and(|s| s.success()));
            strace.wait().expect("strace ends");
            told.send(()).expect("a receiver");
        }
    });
    told_of.try_recv().ok()?;
    let text = std::fs::read_to_string(counted.path()).expect("a table");
    Some(table(&text, path.units))
}

/// Waits until strace looks at a thread. `false`: it has ended instead.
fn attached(task: &str, strace: &mut std::process::Child) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end && strace.try_wait().expect("a child").is_none() {
        let status = std::fs::read_to_string(format!("/proc/self/task/{task}/status")).expect("proc");
        if status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0")) {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// Reads strace's table: the sum for a unit, and the names with their numbers.
fn table(text: &str, units: usize) -> (f64, String) {
    let rows = text.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let calls: f64 = words.get(3)?.parse().ok()?;
        Some((calls / units as f64, *words.last()?))
    });
    let rows: Vec<_> = rows.filter(|(_, name)| *name != "total").collect();
    let names: Vec<_> = rows
        .iter()
        .filter(|(each, _)| *each > 0.02)
        .map(|(each, name)| format!("{name} {each:.2}"))
        .collect();
    (rows.iter().map(|(each, _)| each).sum(), names.join(", "))
}

#[test]
fn paths_allocate_and_call_the_kernel_little() {
    let mut wrong = Vec::new();
    for path in PATHS {
        let allocations = allocations(path);
        let calls = calls(path);
        if calls.is_none() {
            assert!(std::env::var_os("CI").is_none(), "strace is missing, or may not look at this process");
            println!("skipped: system calls, since strace is missing or may not look at this process");
        }
        let (calls, names) = calls.unwrap_or_default();
        let line = format!("{}: {allocations:.2} allocations, {calls:.2} system calls ({names})", path.name);
        println!("{line}");
        if allocations > path.most.0 || calls > path.most.1 {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
