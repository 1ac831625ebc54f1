//! The same configuration and the same bytes go to nginx and to Forebay: status line, fields and body
//! must agree. Known differences are listed in docs/differences.md and are not asked for here.

use crate::harness::{PROGRAM, Server, Site, kill, raw, wait_for};
use nix::sys::signal::Signal;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running nginx, ended by pid.
pub struct Oracle {
    child: Child,
    site: Site,
}

impl Drop for Oracle {
    fn drop(&mut self) {
        kill(self.child.id() as i32, Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Oracle {
    pub fn start(nginx: &str, site: Site) -> Oracle {
        let mut child = (site.command(nginx, &["-e", "logs/error.log", "-g", "daemon off;"]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx starts");
        let addr = site.addr(0);
        wait_for("nginx", || {
            if let Some(status) = child.try_wait().expect("child") {
                panic!("nginx ended with {status}: {}", site.read("logs/error.log"));
            }
            TcpStream::connect(addr).ok()
        });
        Oracle { child, site }
    }

    /// Returns its directory.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Returns the address on which it listens.
    pub fn addr(&self) -> std::net::SocketAddr {
        self.site.addr(0)
    }
}

/// The nginx to compare with. In CI there has to be one.
pub fn oracle() -> Option<String> {
    let nginx = std::env::var("FOREBAY_TEST_NGINX").ok().filter(|n| !n.is_empty());
    if nginx.is_none() {
        assert!(std::env::var_os("CI").is_none(), "FOREBAY_TEST_NGINX names no nginx");
        println!("skipped: FOREBAY_TEST_NGINX names no nginx");
    }
    nginx
}

/// Returns `true` if an nginx is older than 1.`minor`.
pub fn is_before(nginx: &str, minor: u32) -> bool {
    let said = Command::new(nginx).arg("-v").output().expect("nginx -v");
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    let version = text.split_once("nginx/1.").expect("a version").1;
    version.split('.').next().and_then(|v| v.parse::<u32>().ok()).expect("a number") < minor
}

/// Removes permitted differences from an answer: the product, the date, the ports of the test, its directory.
fn normalise(answer: &[u8], site: &Site, ports: usize) -> String {
    let mut text = String::from_utf8_lossy(answer).into_owned();
    for i in 0..ports {
        text = text.replace(&format!(":{}", site.addr(i).port()), &format!(":PORT{i}"));
    }
    text = text.replace(&site.dir().display().to_string(), "DIR");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut page = false;
    let body = body.replace("<center>nginx</center>", "<center>forebay</center>");
    // The answer to a HEAD request has the length of the page it leaves out.
    page |= body.contains("<center>forebay</center>")
        || body.is_empty() && (head.starts_with("HTTP/1.1 4") || head.starts_with("HTTP/1.1 5"));
    let head: Vec<String> = head
        .lines()
        .filter(|l| !l.starts_with("Date: ") && !l.starts_with("Server: "))
        // The product's name makes built-in pages longer.
        .filter(|l| !(page && l.starts_with("Content-Length: ")))
        .map(str::to_owned)
        .collect();
    format!("{}\n\n{body}", head.join("\n"))
}

const FILES: &[(&str, &str)] = &[
    ("html/index.html", "<html>index</html>\n"),
    ("html/page.html", "a page\n"),
    ("html/style.css", "body {}\n"),
    ("html/dir/index.html", "dir index\n"),
    ("html/empty.txt", ""),
    ("html/noext", "no extension\n"),
    ("html/a b.html", "a blank in the name\n"),
    ("html/50x.html", "error page\n"),
    ("html/alias/one.txt", "one\n"),
    ("html/digits.txt", "0123456789abcdefghijklmnopqrstuvwxyz"),
];

fn files(site: &Site) {
    for (name, text) in FILES {
        site.write(name, text);
    }
    for dir in ["html/nodir", "html/listing"] {
        std::fs::create_dir_all(site.dir().join(dir)).expect("directory");
    }
    site.write("html/listing/b.txt", "bb");
    site.write("html/listing/a.txt", "a");
    for dir in ["html", "html/dir", "html/alias", "html/listing"] {
        for entry in std::fs::read_dir(site.dir().join(dir)).expect("directory") {
            stamp(&entry.expect("entry").path());
        }
    }
}

/// Sets the time of a file. The two sites are written at slightly different times, and validators must agree.
fn stamp(path: &Path) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    std::fs::File::open(path).expect("open").set_modified(time).expect("time");
}

fn wrap(server: &str) -> String {
    format!(
        "worker_processes 1;\nerror_log logs/error.log info;\npid logs/nginx.pid;\nevents {{ }}\n\
         http {{ server_tokens off; access_log off; types {{ text/html html; text/css css; text/plain txt; }}\n\
         client_body_temp_path %DIR%/body; root %DIR%/html; default_type application/octet-stream;\n{server}\n}}\n"
    )
}

pub fn get(uri: &str) -> String {
    format!("GET {uri} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

pub fn with(uri: &str, fields: &str) -> String {
    format!("GET {uri} HTTP/1.1\r\nHost: localhost\r\n{fields}Connection: close\r\n\r\n")
}

/// Asks both, and fails with every difference.
pub fn compare(server: &str, requests: &[String]) {
    compare_with(server, &[], requests);
}

/// Lets everybody write into a directory.
pub fn open_up(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).expect("permissions");
}

/// As [`compare`], with more files.
pub fn compare_with(server: &str, more: &[(String, String)], requests: &[String]) {
    let mut differences = String::new();
    for (request, a, b) in answers(server, more, requests) {
        if a != b {
            differences.push_str(&format!("== {request:?}\n-- nginx\n{a}\n-- forebay\n{b}\n"));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Asks both: each request, what nginx answers, and what Forebay does. Nothing where there is no nginx.
pub fn answers(
    server: &str,
    more: &[(String, String)],
    requests: &[String],
) -> Vec<(String, String, String)> {
    let Some(nginx) = oracle() else { return Vec::new() };
    let conf = wrap(server);
    let ports = (0..10).take_while(|i| conf.contains(&format!("%PORT{i}%"))).count();
    let (ours, theirs) = (Site::new(&conf), Site::new(&conf));
    for site in [&ours, &theirs] {
        for (name, text) in more {
            let path = site.write(name, text);
            stamp(&path);
            // The worker may be somebody else.
            open_up(path.parent().expect("a directory"));
        }
        files(site);
    }
    let ours = Server::start_on(ours);
    let theirs = Oracle::start(&nginx, theirs);
    let both = |request: &String| {
        let bytes = request.as_bytes();
        let a = normalise(&raw(theirs.site.addr(0), bytes), &theirs.site, ports);
        let b = normalise(&ours.raw(bytes), &ours.site, ports);
        (request.clone(), a, b)
    };
    requests.iter().map(both).collect()
}

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
    files(&ours);
    files(&theirs);
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
    let a = split_answers(&raw(theirs.site.addr(0), request.as_bytes()));
    let b = split_answers(&ours.raw(request.as_bytes()));
    assert_eq!((a.len(), b.len()), (3 * uris.len(), 3 * uris.len()));
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        let (a, b) = (normalise(a, &theirs.site, 1), normalise(b, &ours.site, 1));
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
            with("/digits.txt", "Range: bytes=0-4\r\n"),
            with("/digits.txt", "Range: bytes=5-\r\n"),
            with("/digits.txt", "Range: bytes=-5\r\n"),
            with("/digits.txt", "Range: bytes=100-\r\n"),
            with("/digits.txt", "Range: bytes=0-99\r\n"),
            with("/digits.txt", "Range: bytes=x\r\n"),
            with("/digits.txt", "Range: lines=1-2\r\n"),
            with("/digits.txt", "Range: bytes=5-2\r\n"),
            with("/one/digits.txt", "Range: bytes=0-1,3-4\r\n"),
            with("/no/digits.txt", "Range: bytes=0-1\r\n"),
            with("/digits.txt", &format!("If-Modified-Since: {stamp}\r\n")),
            with("/digits.txt", "If-Modified-Since: Tue, 14 Nov 2024 22:13:20 GMT\r\n"),
            with("/digits.txt", &format!("If-None-Match: {etag}\r\n")),
            with("/digits.txt", "If-None-Match: \"x\", W/\"y\"\r\n"),
            with("/digits.txt", "If-None-Match: *\r\n"),
            with("/digits.txt", "If-Match: \"x\"\r\n"),
            with("/digits.txt", &format!("If-Match: {etag}\r\n")),
            with("/digits.txt", "If-Unmodified-Since: Tue, 14 Nov 2022 22:13:20 GMT\r\n"),
            with("/digits.txt", &format!("Range: bytes=0-1\r\nIf-Range: {etag}\r\n")),
            with("/digits.txt", "Range: bytes=0-1\r\nIf-Range: \"other\"\r\n"),
            with("/digits.txt", &format!("Range: bytes=0-1\r\nIf-Range: {stamp}\r\n")),
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
        &cookies.map(|c| with("/", &format!("Cookie: {c}\r\n"))),
    );
}

#[test]
fn patterns_and_empty_values() {
    compare(
        r#"map $arg_a $x { default d; ~^$ re; } map $arg_a $y { default d; ~.* re; } map $arg_a $z { "" e; ~.* re; }
        map $arg_a $h { hostnames; default d; ~.* re; a.b h; } map $arg_a $n { ~.* re; }
        map $arg_a $w { volatile; ~*^(?<c>.*)$ re; default d; } map $arg_a$arg_b $two { ~x re; ~^$ emp; default d; }
        server { listen 127.0.0.1:%PORT0%;
            location / { set $i no; if ($arg_a ~ ^$) { set $i yes; } return 200 "$x $y $z $h $n $w $two $i"; } }"#,
        &["/", "/?a=", "/?a=.", "/?a=q", "/?a=a.b.", "/?b=x"].map(get),
    );
}

#[test]
fn rewriting() {
    compare(
        r#"
        map $arg_m $mapped { default none; a one; ~^b(?<rest>.*) "two-$rest"; }
        server {
            listen 127.0.0.1:%PORT0%;
            set $v "server";
            location /set { set $w "$v-$request_uri"; return 200 "$w"; }
            location /r/ { rewrite ^/r/(.*)$ /page.html?x=$1 last; }
            location /rb/ { rewrite ^/rb/(.*)$ /$1 break; }
            location /red/ { rewrite ^/red/(.*)$ /to/$1 redirect; }
            location /perm/ { rewrite ^/perm/(.*)$ https://example.org/$1? permanent; }
            location /ret301 { return 301 /else?$args; }
            location /ret302 { return 302 http://example.org/; }
            location /ret { return 403; }
            location /text { default_type text/plain; return 200 "m=$mapped u=$uri a=$args q=$query_string i=$is_args h=$host"; }
            location /if { if ($arg_a = 1) { return 200 "one"; } if ($arg_a ~ ^x(\d+)) { return 200 "x$1"; } if ($request_method = POST) { return 405; } return 200 "none"; }
            location /file { if (-f $document_root/page.html) { return 200 "there"; } return 200 "missing"; }
            location /nofile { if (!-e $document_root/nothing) { return 200 "missing"; } }
            location /try { try_files $uri $uri/ /page.html; }
            location /try4 { try_files $uri =404; }
            location /tryn { try_files /nothing @named; }
            location @named { return 200 "named $uri"; }
            location ~ ^/re/(?<name>[a-z]+)/(\d+)$ { return 200 "$name $1 $2"; }
            location ~* \.PHP$ { return 200 "php $uri"; }
            location ^~ /noregex/ { return 200 "prefix"; }
            location ~ ^/noregex/ { return 200 "regex"; }
            location /loop { rewrite ^ /loop; }
            location /internal { internal; return 200 "never"; }
            error_page 404 /50x.html;
            location /ep/ { error_page 404 =200 /page.html; }
            location /epn/ { error_page 404 = @named; }
            location /epr/ { error_page 404 http://example.org/missing; }
            location /epc/ { error_page 403 =402 /page.html; return 403; }
        }"#,
        &[
            get("/set?a=1"),
            get("/r/one"),
            get("/r/one?b=2"),
            get("/rb/page.html"),
            get("/red/a/b"),
            get("/red/a%20b?c=d"),
            get("/perm/a?b=c"),
            get("/ret301?q=1"),
            get("/ret302"),
            get("/ret"),
            get("/text?m=a&x=y"),
            get("/text?m=bcd"),
            get("/text"),
            get("/if?a=1"),
            get("/if?a=x42"),
            get("/if"),
            get("/file"),
            get("/nofile"),
            get("/try/none"),
            get("/try"),
            get("/try4/none"),
            get("/tryn"),
            get("/re/abc/12"),
            get("/x.php"),
            get("/noregex/x"),
            get("/loop"),
            get("/internal"),
            get("/none"),
            get("/ep/none"),
            get("/epn/none"),
            get("/epr/none"),
            get("/epc/"),
        ],
    );
}

/// Captures after a match that failed, and locations after a rewrite.
#[test]
fn traces_of_rewriting() {
    compare(
        r#"
        server {
            listen 127.0.0.1:%PORT0%;
            rewrite ^/left/(.*)$ /over?x;
            rewrite ^/never/ /no;
            location /over { return 200 "[$1]"; }
            location /internal { internal; return 200 "inside $uri"; }
            location /to-internal { rewrite ^ /internal last; }
            location /through { rewrite ^/through/(.*)$ /internal/$1; }
            location /if/ { if ($uri ~ "^/if/(.*)$") { set $x $1; } if ($arg_a ~ ^(y)) { set $y 1; } return 200 "$x [$1]"; }
            location ~ ^/re/(.*)$ { if ($arg_a ~ ^(y)) { set $y 1; } return 200 "[$1]"; }
            location ~ ^/named/(?<n>.*)$ { if ($arg_a ~ ^(?<n>y)) { set $y 1; } return 200 "[$n]"; }
            location /enc { if ($arg_a ~ ^x(.*)$) { set $x "<$1>"; } return 200 "$x"; }
            location /al/ { alias %DIR%/html/alias/; rewrite ^/al/(.*)$ /al/$1 break; }
            location /cut/ { alias %DIR%/html/alias/; rewrite ^ /abc../page.html break; }
            location /alif/ { alias %DIR%/html/alias/; if ($arg_a) { rewrite ^ /x break; } }
            location ~ ^/alre/(.*)$ { alias %DIR%/html/alias/$1; rewrite ^/alre/(.*)$ /x/$1 break; }
            location /gif { empty_gif; if ($arg_a) { set $y 1; } }
            location /gif-except { empty_gif; limit_except POST { allow all; } }
            location /altry/ { alias %DIR%/html/alias/; rewrite ^ /x break; try_files $uri =404; }
            location /alconst/ { alias %DIR%/html/alias/; try_files $arg_a /alconst/one.txt =404; }
            location /alslash/ { alias %DIR%/html/alias/; try_files $arg_a one.txt =404; }
        }"#,
        &[
            get("/left/abc"),
            get("/internal"),
            get("/to-internal"),
            get("/through/x"),
            get("/if/abc"),
            get("/if/abc?a=y"),
            get("/re/abc"),
            get("/re/abc?a=y"),
            get("/named/abc"),
            get("/enc?a=x%0ay+z"),
            get("/en%63?a=x%0ay+z"),
            get("/al/one.txt"),
            get("/cut/x"),
            get("/alif/one.txt"),
            get("/alif/one.txt?a=1"),
            get("/alre/one.txt"),
            get("/altry/one.txt"),
            get("/alconst/x"),
            get("/alconst/x?a=/alconst/one.txt"),
            get("/alslash/x"),
            get("/gif?a=1").replace("GET", "HEAD"),
            get("/gif-except").replace("GET", "HEAD"),
        ],
    );
}

/// Heads that are refused before a host is known are the default server's, not those of the server without a name.
#[test]
fn refused_heads_and_odd_names() {
    compare(
        r#"
        server { listen 127.0.0.1:%PORT0%; server_name first; error_page 400 414 /first; location / { return 200 "first"; } }
        server { listen 127.0.0.1:%PORT0%; server_name ""; error_page 400 /none; location / { return 200 "none"; } }
        server { listen 127.0.0.1:%PORT0%; server_name *.wild.org .dot.net; location / { return 200 "odd $server_name"; } }"#,
        &[
            "get / HTTP/1.1\r\n\r\n".into(),
            "GET / HTTP/1.1\r\nX\r\n\r\n".into(),
            "GET / HTTP/1.1\r\n\r\n".into(),
            "GET / HTTP/1.0\r\n\r\n".into(),
            "GET / HTTP/1.0\r\nContent-Length: x\r\n\r\n".into(),
            "GET / HTTP/1.1\r\nHost: .wild.org\r\nConnection: close\r\n\r\n".into(),
            "GET / HTTP/1.1\r\nHost: .dot.net\r\nConnection: close\r\n\r\n".into(),
            "HEAD /a b HTTP/1.1\r\nHost: dot.net\r\n\r\n".into(),
            "HEAD / HTTP/9.1\r\nHost: dot.net\r\n\r\n".into(),
        ],
    );
}

/// Once a head has named its host, what that server takes counts, not what the default server takes.
#[test]
fn heads_by_server() {
    let long = "y".repeat(9000);
    let heads = [
        "X_Y: 1\r\nA.B: 2\r\nP Q: 3\r\n".to_owned(),
        "x_y: 1\r\n".to_owned(),
        format!("X: {long}\r\n"),
        "Transfer_Encoding: chunked\r\n".to_owned(),
    ];
    let ask = |host: &str, fields: &str| {
        format!("GET //a//b HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{fields}\r\n")
    };
    let requests: Vec<String> =
        ["default", "under", "odd", "large"].iter().flat_map(|h| heads.iter().map(|f| ask(h, f))).collect();
    compare(
        r#"
        server { listen 127.0.0.1:%PORT0%; server_name default; location / { return 200 "$uri $http_x_y $http_a_b"; } }
        server { listen 127.0.0.1:%PORT0%; server_name under; underscores_in_headers on; location / { return 200 "u $http_x_y $http_a_b"; } }
        server { listen 127.0.0.1:%PORT0%; server_name odd; ignore_invalid_headers off; location / { return 200 "o $http_x_y $http_a_b"; } }
        server { listen 127.0.0.1:%PORT0%; server_name large; merge_slashes off; large_client_header_buffers 4 20k; location / { return 200 "l $uri"; } }"#,
        &requests,
    );
}

/// Without a location that matches, the directives of the server run once.
#[test]
fn rewriting_without_a_location() {
    compare(
        r#"
        server {
            listen 127.0.0.1:%PORT0%;
            rewrite ^/x/(.*)$ /page.html?q=$1;
            rewrite ^/(\w)/(.*)$ /alias/$2;
            rewrite ^/(page)(.*)$ /$1$2?again;
            add_header X-Args "$args";
            location /only { return 200 only; }
        }"#,
        &[get("/x/y"), get("/b/one.txt"), get("/page.html"), get("/only")],
    );
}

/// `limit_except` of a named location guards it however it is reached.
#[test]
fn methods_of_named_locations() {
    let ask = |method: &str, uri: &str| {
        format!("{method} {uri} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
    let uris = ["/try", "/page/x", "/post", "/get"];
    let requests: Vec<String> =
        uris.iter().flat_map(|u| ["GET", "HEAD", "POST", "PUT", "DELETE"].map(|m| ask(m, u))).collect();
    compare(
        r#"
        server {
            listen 127.0.0.1:%PORT0%;
            location /try { try_files /none @guarded; }
            location /page { error_page 404 = @guarded; }
            location /post { try_files /none @posted; }
            location /get { error_page 418 = @posted; return 418; }
            location @guarded { limit_except GET { deny all; } try_files /page.html =404; }
            location @posted { limit_except POST { deny all; } try_files /page.html =404; }
        }"#,
        &requests,
    );
}

/// Inside `^~` its own regular expressions hold, and not those beside it; inside another location both do.
#[test]
fn locations_in_locations() {
    compare(
        r#"server {
            listen 127.0.0.1:%PORT0%;
            location ^~ /up/ {
                return 200 "up";
                location /up/in/ { return 200 "up in"; }
                location ~ \.re$ { return 200 "up re"; }
            }
            location /low/ {
                return 200 "low";
                location ^~ /low/in/ { return 200 "low in"; }
                location = /low/is.html { return 200 "low is"; }
                location ~ \.re$ { return 200 "low re"; }
            }
            location ~ \.html$ { return 200 "html"; }
        }"#,
        &[
            "/up/a.html",
            "/up/in/a.html",
            "/up/in/a.re",
            "/up/in/a",
            "/up/a.re",
            "/low/a.html",
            "/low/in/a.html",
            "/low/in/a.re",
            "/low/in/a",
            "/low/is.html",
            "/low/a.re",
            "/a.html",
        ]
        .map(get),
    );
}

/// `$status` in the target of `error_page` is the status that is to be sent.
#[test]
fn error_pages_by_status() {
    compare(
        "server { listen 127.0.0.1:%PORT0%; error_page 404 410 /page?s=$status; error_page 403 =402 /page?s=$status;\n\
         error_page 405 =200 /page?s=$status; error_page 406 http://other/$status; error_page 409 = /page?s=$status;\n\
         location /404 { return 404; } location /410 { return 410; } location /403 { return 403; }\n\
         location /405 { return 405; } location /406 { return 406; } location /409 { return 409; }\n\
         location /page { return 200 \"$arg_s $status\"; } }",
        &["/404", "/410", "/403", "/405", "/406", "/409"].map(get),
    );
}

/// A file that `try_files` has found below an `alias` does not affect the alias of another location.
#[test]
fn aliases_of_regular_expressions() {
    let post = "POST /t/x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    compare(
        "server { listen 127.0.0.1:%PORT0%; location ~ ^/re/(.*)$ { alias %DIR%/html/alias/$1; }\n\
         location ~ ^/t/(.*)$ { alias %DIR%/html; error_page 405 = /re/one.txt; try_files /page.html =404; } }",
        &[get("/t/x"), get("/re/one.txt"), post.into()],
    );
}

/// A page of `error_page` is asked for by GET, and its `limit_except` judges that.
#[test]
fn methods_of_error_pages() {
    let ask = |method: &str, uri: &str| {
        format!("{method} {uri} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
    let requests: Vec<String> = ["/none", "/50x.html"]
        .iter()
        .flat_map(|u| ["GET", "HEAD", "POST", "PUT", "ODD"].map(|m| ask(m, u)))
        .collect();
    compare(
        "server { listen 127.0.0.1:%PORT0%; error_page 404 405 /50x.html; recursive_error_pages on;\n\
         location = /50x.html { limit_except GET { deny all; } } location /none { return 404; } }",
        &requests,
    );
}

#[test]
fn headers_and_hosts() {
    compare(
        r#"
        server { listen 127.0.0.1:%PORT0%; server_name default; location / { return 200 "default $server_name $host"; }
            location /h/ { alias %DIR%/html/; add_header X-A one; add_header X-B $arg_b always; expires 1h; }
            location /max/ { alias %DIR%/html/; expires max; } location /ep/ { alias %DIR%/html/; expires epoch; } location /neg/ { alias %DIR%/html/; expires -1; }
            location /cs/ { alias %DIR%/html/; charset utf-8; }
            location /ka/ { alias %DIR%/html/; keepalive_timeout 10s 20s; } location /nochunk { chunked_transfer_encoding off; return 200 x; }
            location /small { client_max_body_size 2; return 200 x; } location /deny { limit_except GET { deny all; } return 200 x; } }
        server { listen 127.0.0.1:%PORT0%; server_name www.example.org *.wild.org tail.* .dot.net ~^(?<sub>\w+)\.re\.org$; location / { return 200 "second $server_name $host $sub"; } }
        "#,
        &[
            "www.example.org",
            "WWW.Example.ORG:80",
            "a.wild.org",
            "wild.org",
            "tail.x",
            "dot.net",
            "a.b.dot.net",
            "abc.re.org",
            "nobody",
            "www.example.org.",
            "bad..host",
            "a b",
        ]
        .iter()
        .map(|h| format!("GET / HTTP/1.1\r\nHost: {h}\r\nConnection: close\r\n\r\n"))
        .chain([
            get("/h/none?b=1"),
            get("/cs/page.html"),
            get("/cs/style.css"),
            get("/max/page.html"),
            get("/ep/page.html"),
            get("/ka/page.html"),
            get("/nochunk"),
            "GET http://www.example.org/ HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n".into(),
            "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".into(),
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".into(),
            "GET / HTTP/3.0\r\nHost: a\r\n\r\n".into(),
            "get / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
            "GET / HTTP/1.1\r\nHost: a\r\nBad Name: x\r\nConnection: close\r\n\r\n".into(),
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n".into(),
            "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n".into(),
            "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
            "POST /small HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nConnection: close\r\n\r\n0123456789"
                .into(),
            "POST /deny HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into(),
            get("/deny"),
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(9000)),
            format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(9000)),
        ])
        .collect::<Vec<_>>(),
    );
}

#[test]
fn configurations_are_judged_alike() {
    let Some(nginx) = oracle() else { return };
    let cases = [
        "listen 127.0.0.1:%PORT0%; location / { root html; alias x; }",
        "listen 127.0.0.1:%PORT0%; location /a {} location /a {}",
        "listen 127.0.0.1:%PORT0%; location = / { location /x {} }",
        "listen 127.0.0.1:%PORT0%; return abc;",
        "listen 127.0.0.1:%PORT0%; set x 1;",
        "listen 127.0.0.1:%PORT0%; if (x) { }",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log nosuchformat;",
        "listen 127.0.0.1:%PORT0%; keepalive_timeout x;",
        "listen 127.0.0.1:%PORT0%; client_max_body_size 1x;",
        "listen 127.0.0.1:%PORT0%; error_page 200 /x;",
        "listen 127.0.0.1:%PORT0%; expires @25h;",
        "listen 127.0.0.1:%PORT0% nosuch;",
        "listen 127.0.0.1:99999;",
        "listen 127.0.0.1:%PORT0%; server_name *.*.org a* b.*.c d..e;",
        "listen 127.0.0.1:%PORT0%; server_name *a.org;",
        "listen 127.0.0.1:%PORT0%; connection_pool_size 40;",
        "listen 127.0.0.1:%PORT0%; request_pool_size 1000;",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined buffer=0;",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined flush=x;",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined nosuch=1;",
        "listen 127.0.0.1:%PORT0%; error_log logs/b.log error warn;",
        "listen 127.0.0.1:%PORT0%; error_log logs/b.log error debug_http;",
        "listen 127.0.0.1:%PORT0%; error_log logs/b.log debug_http debug_core;",
        "listen 127.0.0.1:%PORT0%; disable_symlinks on off;",
        "listen 127.0.0.1:%PORT0%; disable_symlinks off from=/a;",
        "listen 127.0.0.1:%PORT0%; open_file_cache off 1;",
        "listen 127.0.0.1:%PORT0%; error_page 499 /x;",
        "listen 127.0.0.1:%PORT0%; limit_conn_status x;",
        "listen 127.0.0.1:%PORT0%; } upstream u { server 127.0.0.1:1; keepalive 1; keepalive 2;",
        "listen 127.0.0.1:%PORT0%; } upstream u { server 127.0.0.1:1; keepalive_time x;",
        "listen 127.0.0.1:%PORT0%; } log_format x $1; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0%; } server { listen 127.0.0.1:%PORT0%; server_name a*;",
        "listen 127.0.0.1:%PORT0%; } server { listen 127.0.0.1:%PORT0%; server_name b..a;",
        "listen 127.0.0.1:%PORT0%; } server { listen 127.0.0.1:%PORT0%; server_name *.a.*;",
        "listen 127.0.0.1:%PORT0%; } server { listen 127.0.0.1:%PORT0%; server_name .a.*;",
        "listen 127.0.0.1:%PORT0%; return 200 $nosuchvariable;",
        "listen 127.0.0.1:%PORT0%; open_file_cache inactive=5s;",
        "listen 127.0.0.1:%PORT0%; sendfile maybe;",
        "listen 127.0.0.1:%PORT0%; root a; root b;",
        // Sizes that do not fit to each other.
        "listen 127.0.0.1:%PORT0%; proxy_buffers 1 4k;",
        "listen 127.0.0.1:%PORT0%; location / { proxy_buffer_size 64k; }",
        "listen 127.0.0.1:%PORT0%; location / { proxy_buffers 8 4k; proxy_busy_buffers_size 2k; }",
        "listen 127.0.0.1:%PORT0%; location / { proxy_temp_file_write_size 1k; }",
        "listen 127.0.0.1:%PORT0%; location / { fastcgi_max_temp_file_size 1k; }",
        "listen 127.0.0.1:%PORT0%; location / { uwsgi_buffers 8 4k; uwsgi_busy_buffers_size 32k; }",
        "listen 127.0.0.1:%PORT0%; location / { if ($host) { scgi_buffers 2 4k; } }",
        "listen 127.0.0.1:%PORT0%; large_client_header_buffers 4 256;",
        "listen 127.0.0.1:%PORT0%; connection_pool_size 8k; large_client_header_buffers 4 4k;",
        // Pools of threads.
        "listen 127.0.0.1:%PORT0%; aio threads=nosuch;",
        "listen 127.0.0.1:%PORT0%; } } thread_pool x max_queue=1; http { server {",
        "listen 127.0.0.1:%PORT0%; } } thread_pool x threads=x; http { server {",
        "listen 127.0.0.1:%PORT0%; } } thread_pool x threads=1; thread_pool x threads=1; http { server {",
        // Values and words.
        "listen 127.0.0.1:%PORT0%; proxy_limit_rate fast;",
        "listen 127.0.0.1:%PORT0%; proxy_store \"\";",
        "listen 127.0.0.1:%PORT0%; client_body_temp_path body 5 5 5;",
        "listen 127.0.0.1:%PORT0%; location / { proxy_cookie_path off; proxy_cookie_path /a /b; }",
        "listen 127.0.0.1:%PORT0%; location / { proxy_cookie_flags off; proxy_cookie_flags a secure; }",
        "listen 127.0.0.1:%PORT0%; proxy_ssl_certificate a.crt; proxy_ssl_certificate b.crt;",
        "listen 127.0.0.1:%PORT0%; proxy_bind 1h 2m;",
        "listen 127.0.0.1:%PORT0%; set $http_cookie a;",
        "listen 127.0.0.1:%PORT0%; set $http_user_agent a;",
        "listen 127.0.0.1:%PORT0%; proxy_bind off transparent;",
        "listen 127.0.0.1:%PORT0%; set $x \"${a b}\";",
        "listen 127.0.0.1:%PORT0%; set $x \"${a-b\";",
        "listen 127.0.0.1:%PORT0%; set $x \"${-}\";",
        "listen 127.0.0.1:%PORT0%; set $x \"${}\";",
        "listen 127.0.0.1:%PORT0%; } log_format x \"a $-b c\"; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0%; } log_format x $1; access_log logs/a.log x; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0%; } log_format x ${} b; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0%; } log_format x a $ b; server { listen 127.0.0.1:%PORT0%;",
        "listen 127.0.0.1:%PORT0% backlog=9; listen 127.0.0.1:%PORT0% backlog=8;",
        "listen 127.0.0.1:%PORT0% default_server; listen 127.0.0.1:%PORT0% default_server;",
        "listen 127.0.0.1:%PORT0%; if () { }",
        "listen 127.0.0.1:%PORT0%; if ( ) { }",
        "listen 127.0.0.1:%PORT0%; proxy_cache nosuch;",
        "listen 127.0.0.1:%PORT0%; if ($host = ) { }",
        "listen 127.0.0.1:%PORT0%; if ($host = a b) { }",
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined buffer=32k; access_log logs/a.log combined buffer=64k;",
        "listen 127.0.0.1:%PORT0%; } proxy_cache_path cache keys_zone=z:1m inactive=x; server {",
        "listen 127.0.0.1:%PORT0%; } proxy_cache_path cache keys_zone=:1m; server {",
        "listen 127.0.0.1:%PORT0%; } } worker_priority x; worker_rlimit_nofile x; http { server {",
        "listen 127.0.0.1:%PORT0%; } } worker_rlimit_nofile x; http { server {",
        // What is no error.
        "listen 127.0.0.1:%PORT0%; access_log logs/a.log combined buffer=32k; access_log ./logs/a.log combined buffer=64k;",
        "listen 127.0.0.1:%PORT0% ipv6only=on; server_name a a;",
        "listen 127.0.0.1:%PORT0%; proxy_next_upstream ERROR off; proxy_next_upstream timeout;",
        "listen 127.0.0.1:%PORT0%; proxy_cache_use_stale error error; proxy_cache_use_stale Updating;",
        "listen 127.0.0.1:%PORT0%; gzip_types text/html a/b A/B; gzip_types a/b; ssl_protocols TLSv1.2 tlsv1.2;",
        "listen 127.0.0.1:%PORT0%; keepalive_disable Safari safari; gzip_proxied Any any; userid_flags Secure secure;",
        "listen 127.0.0.1:%PORT0%; satisfy ANY; send_lowat 0;",
        "listen 127.0.0.1:%PORT0%; error_log \"\"; access_log \"\";",
        "listen 127.0.0.1:%PORT0%; } log_format x $host name; server { listen 127.0.0.1:%PORT0%; server_name b;",
    ];
    let mut differences = String::new();
    // Taken by older ones.
    let recent = |case: &&str| !case.contains("proxy_store") || !is_before(&nginx, 31);
    for case in cases.into_iter().filter(recent) {
        let conf = wrap(&format!("server {{ {case} }}"));
        let site = Site::new(&conf);
        let said = |program: &str| {
            let out = (site.command(program, &["-e", "logs/error.log", "-t"]))
                .stdin(Stdio::null())
                .output()
                .expect("runs");
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            let told = |l: &&str| l.contains("[emerg]") || l.contains("[warn] duplicate");
            let lines: Vec<&str> = text.lines().filter(told).collect();
            (out.status.code(), lines.join("\n"))
        };
        let (theirs, ours) = (said(&nginx), said(PROGRAM));
        if theirs != ours {
            differences.push_str(&format!("== {case}\n-- nginx\n{theirs:?}\n-- forebay\n{ours:?}\n"));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// A body that is broken where it begins: what is refused for another reason stays refused for that.
#[test]
fn broken_bodies() {
    let ask = |uri: &str| {
        format!(
            "POST {uri} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nGET /ok HTTP/1.0\r\n\r\n"
        )
    };
    compare(
        r#"
        server {
            listen 127.0.0.1:%PORT0%;
            location /ok { return 200 "ok"; }
            location /no { return 403; }
            location /text { return 404 "text"; }
            location /denied { deny all; }
            location /page { error_page 404 /page.html; }
            location /change { error_page 404 =200 /ok; }
        }"#,
        &["/ok", "/no", "/text", "/denied", "/page/x", "/change/x", "/page.html", "/dir", "/nothing"]
            .map(ask),
    );
}

/// Lines in the error log of a server about the same requests, from the number of the connection on.
#[test]
fn error_lines_agree() {
    let Some(nginx) = oracle() else { return };
    let conf = wrap(
        r#"
        map $uri $log { default logs/default.log; /made logs/made-$arg_f.log; /missing logs/missing-$arg_f.log; /nodir logs/nodir/$arg_f.log; }
        server {
            listen 127.0.0.1:%PORT0%;
            server_name first;
            error_log logs/server.log info;
            access_log $log;
            location /made { return 200 x; }
            location /nodir { return 200 x; }
            location /missing { root %DIR%/html/$arg_f; return 200 x; }
            location /listing/ { autoindex on; autoindex_format jsonp; }
        }
        server { listen 127.0.0.1:%PORT0%; server_name ""; error_log logs/none.log info; }"#,
    );
    let (ours, theirs) = (Site::new(&conf), Site::new(&conf));
    for site in [&ours, &theirs] {
        files(site);
        // Logs with variables in their names are opened by the worker.
        open_up(&site.dir().join("logs"));
        open_up(site.dir());
    }
    let ours = Server::start_on(ours);
    let theirs = Oracle::start(&nginx, theirs);
    let post = "POST /made?f=a HTTP/1.1\r\nHost: first\r\nConnection: close\r\n";
    let requests: Vec<Vec<u8>> = [
        get("/made?f=one"),
        get("/missing?f=nowhere"),
        get("/nodir?f=x"),
        get("/listing/?callback=a(b)"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nx\r\n"),
        format!("{post}X_Y: 1\r\n\r\n"),
        "get / HTTP/1.1\r\n\r\n".to_owned(),
        "GET /made HTTP/1.1\r\nHost: first\r\n\r\nnone\r\n\r\n".to_owned(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .chain([b"GET /made HTTP/1.1\r\nHost: first\r\nConnection: close\r\nX\xff: 1\r\n\r\n".to_vec()])
    .collect();
    let lines = |site: &Site| {
        let text = std::fs::read(site.dir().join("logs/server.log")).unwrap_or_default();
        let text: String = text.iter().map(|b| char::from(*b)).collect();
        let text = text.replace(&site.dir().display().to_string(), "DIR");
        let text = text.replace(&site.addr(0).port().to_string(), "PORT");
        let line = |l: &str| {
            let level = l.split(' ').nth(2).unwrap_or_default().to_owned();
            l.split_once(": *").map(|(_, l)| level + l.trim_start_matches(|c: char| c.is_ascii_digit()))
        };
        text.lines().filter_map(line).collect::<Vec<_>>()
    };
    for request in &requests {
        raw(theirs.site.addr(0), request);
        ours.raw(request);
    }
    let last = "client sent invalid header line: \"X\u{ff}";
    for site in [&theirs.site, &ours.site] {
        wait_for("the last line", || lines(site).iter().any(|l| l.contains(last)).then_some(()));
        assert!(site.dir().join("logs/made-one.log").exists());
        assert!(!site.dir().join("logs/missing-nowhere.log").exists());
        assert_eq!(site.read("logs/none.log"), "");
    }
    assert_eq!(lines(&ours.site), lines(&theirs.site));
}

/// Used by the other modules to find a program, in CI without an excuse.
pub fn tool(name: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).stdout(Stdio::null()).status();
    let found = found.is_ok_and(|s| s.success());
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{name} is not installed");
        println!("skipped: {name} is not installed");
    }
    found
}

/// Asks for each path twice, so that the second answer shows what was stored.
fn twice(paths: &[&str]) -> Vec<String> {
    paths.iter().flat_map(|p| [get(p), get(p)]).collect()
}

#[test]
fn what_a_cache_keeps() {
    let rules = [
        "Cache-Control max-age=60",
        "Cache-Control \"max-age=0\"",
        "Cache-Control \"public, s-maxage=60, max-age=0\"",
        "Cache-Control \"S-MAXAGE=60\"",
        "Cache-Control \"private, max-age=60\"",
        "Cache-Control \"no-store\"",
        "Cache-Control \"NO-CACHE, max-age=60\"",
        "Cache-Control \"max-age=x\"",
        "Cache-Control \"max-age=60x\"",
        "Cache-Control \"max-age=99999999999999999999\"",
        "Cache-Control \"stale-while-revalidate=60\"",
        "Cache-Control \"stale-if-error=60, max-age=60\"",
        "Cache-Control \"must-revalidate\"",
        "Expires \"Thu, 31 Dec 2037 23:55:55 GMT\"",
        "Expires \"Thu, 01 Jan 1970 00:00:01 GMT\"",
        "Expires 0",
        "X-Accel-Expires 60",
        "X-Accel-Expires 0",
        "X-Accel-Expires @60",
        "X-Accel-Expires @4102444800",
        "X-Accel-Expires x",
        "X-Accel-Expires \"\"",
        "Set-Cookie a=b",
        "Vary *",
        "Vary Accept-Encoding",
        "X-None 1",
    ];
    let long = format!("Vary \"{}\"", "Accept-Language,".repeat(9));
    let longest = format!("Vary \"{}\"", "x".repeat(128));
    let mut back = String::new();
    let mut paths: Vec<String> = Vec::new();
    let all: Vec<&str> = rules.iter().copied().chain([long.as_str(), longest.as_str()]).collect();
    for (i, first) in all.iter().enumerate() {
        back.push_str(&format!("location = /one{i} {{ add_header {first}; return 200 x; }}\n"));
        // Any two together, in both orders.
        let second = all[(i * 7 + 3) % all.len()];
        back.push_str(&format!(
            "location = /two{i} {{ add_header {first}; add_header {second}; return 200 x; }}\n\
             location = /owt{i} {{ add_header {second}; add_header {first}; return 200 x; }}\n"
        ));
        paths.extend(["one", "two", "owt"].map(|kind| format!("{kind}{i}")));
    }
    let paths: Vec<String> = (paths.iter())
        .flat_map(|p| ["plain", "valid", "ignore"].map(|place| format!("/{place}/{p}")))
        .collect();
    // Two X-Accel-Expires fields, and a Vary of more than 128 bytes, are judged as since nginx 1.23.
    let old = oracle().is_some_and(|nginx| is_before(&nginx, 23));
    let later = ["two18", "two27", "owt27"];
    let paths: Vec<&str> =
        paths.iter().map(String::as_str).filter(|p| !old || !later.iter().any(|l| p.ends_with(l))).collect();
    compare(
        &format!(
            "proxy_cache_path %DIR%/cache keys_zone=one:10m use_temp_path=off; proxy_cache one;\n\
             server {{ listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status;\n\
             location /plain/ {{ proxy_pass http://127.0.0.1:%PORT1%/; }}\n\
             location /valid/ {{ proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache_valid 1h;\n\
             proxy_cache_key v$request_uri; }}\n\
             location /ignore/ {{ proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache_valid any 1h;\n\
             proxy_cache_key i$request_uri; proxy_ignore_headers Cache-Control Expires Set-Cookie; }} }}\n\
             server {{ listen 127.0.0.1:%PORT1%; {back} }}"
        ),
        &twice(&paths),
    );
}

#[test]
fn conditions_and_ranges_of_cached_responses() {
    let mut requests = Vec::new();
    for place in
        ["/c/digits.txt", "/f/digits.txt", "/n/digits.txt", "/c/page.html", "/c/none", "/b/digits.txt?b=1"]
    {
        for fields in [
            "",
            "Range: bytes=1-3\r\n",
            "Range: bytes=1-3,5-7\r\n",
            "Range: bytes=-4\r\n",
            "If-Modified-Since: Tue, 14 Nov 2023 22:13:20 GMT\r\n",
            "If-Modified-Since: Tue, 14 Nov 2023 22:13:19 GMT\r\n",
            "If-Unmodified-Since: Tue, 14 Nov 2023 22:13:19 GMT\r\n",
            "If-None-Match: \"6553f100-24\"\r\n",
            "If-None-Match: \"x\"\r\n",
            "If-Match: \"x\"\r\n",
            "Range: bytes=1-3\r\nIf-Range: \"6553f100-24\"\r\n",
            "Range: bytes=1-3\r\nIf-Range: \"x\"\r\n",
        ] {
            // Part of a list of ranges: a boundary that differs from answer to answer.
            if fields.contains(',') && fields.starts_with("Range") {
                continue;
            }
            requests.push(with(place, fields));
        }
        requests.push(format!("HEAD {place} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        requests.push(format!("POST {place} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    }
    // A first request that is one of these, too.
    for (i, fields) in ["Range: bytes=1-3\r\n", "If-None-Match: \"6553f100-24\"\r\n", "If-Match: \"x\"\r\n"]
        .iter()
        .enumerate()
    {
        for _ in 0..2 {
            requests.push(with(&format!("/c/digits.txt?fresh{i}"), fields));
        }
    }
    let head = "HEAD /c/digits.txt?head HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    requests.extend([head.to_owned(), get("/c/digits.txt?head")]);
    compare(
        "proxy_cache_path %DIR%/cache keys_zone=one:10m levels=1:2 use_temp_path=off;\n\
         server { listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status; proxy_cache_valid 200 404 1h;\n\
         location /c/ { proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache one; }\n\
         location /f/ { proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache one; proxy_force_ranges on; }\n\
         location /n/ { proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache one; proxy_no_cache 1; }\n\
         location /b/ { proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache one; proxy_cache_bypass $arg_b; } }\n\
         server { listen 127.0.0.1:%PORT1%; }",
        &requests,
    );
}
