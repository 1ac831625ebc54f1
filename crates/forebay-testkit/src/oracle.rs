//! nginx, to which answers are compared. Known differences are listed in docs/differences.md and are not asked for.

use crate::{Server, Signal, Site, kill, open_up, raw, wait_for};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running nginx. It ends with the value, by pid.
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
    /// Starts it on a directory, and waits until it accepts on `%PORT0%`.
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
    pub fn addr(&self) -> SocketAddr {
        self.site.addr(0)
    }
}

/// Returns the nginx to compare with. In CI there has to be one.
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

/// Tells an `Expires` that the server computed by its distance to `Date`, so that responses of two seconds are alike. A fixed one,
/// far from `Date`, stays.
pub fn expires_after(date: Option<&str>, expires: &str) -> String {
    let seconds = |text: &str| forebay_http::date::parse(text.as_bytes());
    match (date.and_then(seconds), seconds(expires)) {
        (Some(date), Some(then)) if (then - date).abs() < 7 * 86_400 => format!("Date and {} s", then - date),
        _ => expires.to_owned(),
    }
}

/// Removes permitted differences from an answer: the product, the date, the ports of the test, its directory.
pub fn normalise(answer: &[u8], site: &Site) -> String {
    let mut text = String::from_utf8_lossy(answer).into_owned();
    for i in 0..site.ports() {
        text = text.replace(&format!(":{}", site.addr(i).port()), &format!(":PORT{i}"));
    }
    text = text.replace(&site.dir().display().to_string(), "DIR");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut page = false;
    let body = body.replace("<center>nginx</center>", "<center>forebay</center>");
    // The answer to a HEAD request has the length of the page it leaves out.
    page |= body.contains("<center>forebay</center>")
        || body.is_empty() && (head.starts_with("HTTP/1.1 4") || head.starts_with("HTTP/1.1 5"));
    let date = head.lines().find_map(|l| l.strip_prefix("Date: "));
    let head: Vec<String> = head
        .lines()
        .filter(|l| !l.starts_with("Date: ") && !l.starts_with("Server: "))
        // The product's name makes built-in pages longer.
        .filter(|l| !(page && l.starts_with("Content-Length: ")))
        .map(|l| match l.strip_prefix("Expires: ") {
            Some(value) => format!("Expires: {}", expires_after(date, value)),
            None => l.to_owned(),
        })
        .collect();
    format!("{}\n\n{body}", head.join("\n"))
}

const CHUNKED: &str = "Transfer-Encoding: chunked";

/// Form in which answers are compared.
#[derive(Debug, Default, Clone)]
pub enum Form {
    /// As they are.
    #[default]
    Whole,
    /// Fields in the order of the alphabet, which is another in nginx for some.
    Sorted,
    /// The same, and content in one piece, however it is framed.
    Joined,
    /// Head and content without its coding, see [`Answer::comparable`](crate::Answer::comparable); the content of built-in pages is left out.
    Decoded,
    /// One field only, which has to be there.
    Field(String),
}

impl Form {
    /// Returns a form of an answer of a site.
    pub fn of_answer(&self, bytes: &[u8], site: &Site) -> String {
        match self {
            Form::Decoded => {
                let answer = crate::Answer::of(bytes);
                let text = String::from_utf8_lossy(&answer.decoded()).into_owned();
                let is_page = ["forebay", "nginx"].iter().any(|n| text.contains(&format!("<center>{n}")));
                format!("{}\n\n{}", answer.comparable(), if is_page { "a page" } else { &text })
            }
            Form::Joined => {
                // The names of the products differ in length, and so would chunks.
                let text = String::from_utf8_lossy(bytes);
                let chunked = text.split_once("\r\n\r\n").filter(|(head, _)| head.contains(CHUNKED));
                let whole = chunked.map(|(head, body)| format!("{head}\r\n\r\n{}", joined(body)));
                Form::Sorted.of(&normalise(whole.as_deref().map_or(bytes, str::as_bytes), site))
            }
            _ => self.of(&normalise(bytes, site)),
        }
    }

    /// Returns a form of an answer that is normalised.
    pub fn of(&self, answer: &str) -> String {
        let (head, body) = answer.split_once("\n\n").unwrap_or((answer, ""));
        let sorted = || {
            let mut lines: Vec<&str> = head.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        };
        match self {
            Form::Whole | Form::Decoded => answer.to_owned(),
            Form::Joined if head.contains(CHUNKED) => {
                format!("{}\n\n{}", sorted(), joined(body))
            }
            Form::Sorted | Form::Joined => format!("{}\n\n{body}", sorted()),
            Form::Field(name) => {
                let line = head.lines().find(|line| line.starts_with(&format!("{name}: ")));
                line.unwrap_or_else(|| panic!("no {name}: {answer}")).to_owned()
            }
        }
    }
}

/// Returns the content of chunks, with a mark where the last one is missing.
fn joined(mut body: &str) -> String {
    let mut all = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        match usize::from_str_radix(length, 16) {
            Ok(0) => return all,
            Ok(n) if n <= rest.len() => {
                all.push_str(&rest[..n]);
                body = rest.get(n + 2..).unwrap_or_default();
            }
            _ => break,
        }
    }
    all + "<cut>"
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

/// Writes the files of comparisons, all of the same time.
pub fn page_files(site: &Site) {
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
pub fn stamp(path: &Path) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    std::fs::File::open(path).expect("open").set_modified(time).expect("time");
}

/// Returns the configuration of a comparison, whose http block has these servers.
pub fn wrap(servers: &str) -> String {
    format!(
        "worker_processes 1;\nerror_log logs/error.log info;\npid logs/nginx.pid;\nevents {{ }}\n\
         http {{ server_tokens off; access_log off; types {{ text/html html; text/css css; text/plain txt; }}\n\
         client_body_temp_path %DIR%/body; root %DIR%/html; default_type application/octet-stream;\n{servers}\n}}\n"
    )
}

/// Sends requests to both, and fails with every difference.
pub fn compare(servers: &str, requests: &[impl AsRef<str>]) {
    compare_with(servers, &[], requests);
}

/// As [`compare`], with more files.
pub fn compare_with(servers: &str, more: &[(String, String)], requests: &[impl AsRef<str>]) {
    let mut differences = String::new();
    for (request, a, b) in nginx_answers(servers, more, requests) {
        if a != b {
            differences.push_str(&format!("== {request:?}\n-- nginx\n{a}\n-- forebay\n{b}\n"));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Sends requests to both. Returns each request, the answer of nginx, and the one of the program; nothing where there is no nginx.
pub fn nginx_answers(
    servers: &str,
    more: &[(String, String)],
    requests: &[impl AsRef<str>],
) -> Vec<(String, String, String)> {
    let Some(nginx) = oracle() else { return Vec::new() };
    let conf = wrap(servers);
    let (ours, theirs) = (Site::new(&conf), Site::new(&conf));
    for site in [&ours, &theirs] {
        for (name, text) in more {
            let path = site.write(name, text);
            stamp(&path);
            // The worker may be another user.
            open_up(path.parent().expect("a directory"));
        }
        page_files(site);
    }
    let ours = Server::start_on(ours);
    let theirs = Oracle::start(&nginx, theirs);
    let both = |request: &str| {
        let a = normalise(&raw(theirs.site.addr(0), request), &theirs.site);
        let b = normalise(&ours.raw(request), &ours.site);
        (request.to_owned(), a, b)
    };
    requests.iter().map(|request| both(request.as_ref())).collect()
}
