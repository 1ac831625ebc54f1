//! History, reloads, certificates and warnings of the API; the page in a browser; `forebay top`.

use crate::PROGRAM;
use crate::metrics::json;
use forebay_testkit::{
    Conf, Done, Origin, P256, Server, Signal, Site, ask, body, free_port, http, kill, raw, s_client, series,
    tool, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// Configuration of a server on port 0 with a dashboard, a zone, and a group with a server that is down. `more` is another part of
/// the http block.
fn conf(up: impl std::fmt::Display, more: &str) -> Conf {
    http!("proxy_cache_path %DIR%/c keys_zone=things:1m;\n\
         upstream u {{ zone u 64k; server {up}; server 127.0.0.1:1 down; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; server_name front.test; status_zone front;\n\
         location /i {{ status_zone <i>name</i>; return 204; }}\n\
         location / {{ status_zone app; proxy_cache things; proxy_cache_valid 200 1h; proxy_pass http://u; }}\n\
         location /none {{ return 404; }} location /metrics {{ prometheus; }}\n\
         location /dashboard {{ dashboard; }} location /api {{ api; }} }}\n{more}\n").workers(2)
}

fn start(more: &str) -> Server {
    Server::start(conf(backend(), more))
}

fn backend() -> std::net::SocketAddr {
    Origin::start(|asked| asked.answer("200 OK", "", "well")).addr
}

fn history(server: &Server, query: &str) -> Value {
    json(server, &format!("/api/9/forebay/history{query}"))
}

/// Returns the sum of a list of rates for each second. A sample that was taken late covers up to two seconds, so the sum of
/// all may be half of what was counted.
fn sum(list: &Value) -> f64 {
    list.as_array().into_iter().flatten().filter_map(Value::as_f64).sum()
}

#[test]
fn history_is_kept_over_a_reload() {
    let server = start("");
    for _ in 0..20 {
        assert!(server.get("/").ends_with("well"));
    }
    assert!(server.get("/none").starts_with("HTTP/1.1 404"));
    let before = wait_for("all of them in the history", || {
        let all = history(&server, "");
        (sum(&all["values"]["2xx"]) > 9.0 && sum(&all["values"]["4xx"]) > 0.4).then_some(all)
    });
    for (member, value) in
        [("range", json!("minute")), ("step", json!(1)), ("length", json!(60)), ("rows_left_out", json!(0))]
    {
        assert_eq!(before[member], value, "{member}: {before}");
    }
    let samples = before["samples"].as_u64().expect("a number") as usize;
    for (part, name) in [("values", "sent"), ("values", "active"), ("latency", "p99"), ("heat", "samples")] {
        assert_eq!(before[part][name].as_array().map(Vec::len), Some(samples), "{part} {name}: {before}");
    }
    let slowest = before["latency"]["max"].as_array().into_iter().flatten().filter_map(Value::as_f64);
    assert!(slowest.fold(0.0, f64::max) > 0.0, "{before}");
    let rows = &before["rows"];
    assert!(sum(&rows["http/server_zones"]["front"][0]) > 9.0, "{rows}");
    assert!(sum(&rows["http/location_zones"]["app"][0]) > 9.0, "{rows}");
    assert!(sum(&rows["http/caches"]["things"][1]) > 8.0, "hits: {rows}");
    let group = rows["http/upstreams"]["u"].as_object();
    assert_eq!(group.map(serde_json::Map::len), Some(1), "only the one with requests: {rows}");
    assert!(!rows["workers"].is_null(), "{rows}");
    // Only what is new.
    let last = before["last"].as_u64().expect("a number");
    let next = wait_for("the next sample", || {
        Some(history(&server, &format!("?range=minute&since={last}"))).filter(|h| h["samples"] != 0)
    });
    assert!(next["last"].as_u64() > Some(last) && next["samples"].as_u64() < Some(10), "{next}");
    assert_eq!(history(&server, "?range=day")["samples"], 0);
    assert!(server.get("/api/9/forebay/history?range=year").contains("InvalidRange"));
    assert!(server.get("/api/9/forebay/none").starts_with("HTTP/1.1 404"));

    server.reload();
    wait_until("the reload", || json(&server, "/api/9/nginx")["generation"] == 2);
    let after = history(&server, "");
    assert_eq!(after["since"], before["since"]);
    assert!(sum(&after["values"]["2xx"]) > 9.0, "{after}");
    assert!(sum(&after["rows"]["http/location_zones"]["app"][0]) > 9.0, "{after}");
    // Goes on, without a jump for what had been counted.
    let last = after["last"].as_u64().expect("a number");
    server.get("/");
    let more = wait_for("the next request", || {
        Some(history(&server, &format!("?since={last}")))
            .filter(|h| sum(&h["rows"]["http/location_zones"]["app"][0]) > 0.4)
    });
    assert!(sum(&more["rows"]["http/location_zones"]["app"][0]) < 3.0, "{more}");
}

/// Asserts that the history has about `most` requests to a row, and no more some seconds later.
fn assert_counted_once(server: &Server, row: impl Fn(&Value) -> Value, most: f64) {
    let first = wait_for("the requests", || {
        let all = history(server, "");
        (sum(&row(&all)) > most / 2.0 - 1.0).then_some(all)
    });
    let last = first["last"].as_u64().expect("a number") + 3;
    let all = wait_for("more samples", || {
        Some(history(server, "")).filter(|all| all["last"].as_u64() >= Some(last))
    });
    assert!(sum(&row(&all)) < most + 1.0, "{}", row(&all));
}

/// Asks the server on port 1.
fn ask_second(server: &Server) -> String {
    ask(server.addr(1), b"GET / HTTP/1.0\r\n\r\n")
}

#[test]
fn an_address_that_is_there_twice_is_counted_once() {
    let up = backend();
    let more = format!(
        "upstream twice {{ server {up}; server {up}; }} server {{ listen 127.0.0.1:%PORT1%; location / {{ proxy_pass http://twice; }} }}"
    );
    let server = start(&more);
    // An odd number, so that one of the two has more.
    for _ in 0..21 {
        assert!(ask_second(&server).ends_with("well"));
    }
    let peers = json(&server, "/api/9/http/upstreams/twice")["peers"].clone();
    assert_eq!((&peers[0]["requests"], &peers[1]["requests"]), (&json!(11), &json!(10)), "{peers}");
    let name = up.to_string();
    assert_counted_once(&server, |all| all["rows"]["http/upstreams"]["twice"][&name][0].clone(), 21.0);
}

#[test]
fn a_server_that_gets_a_zone_is_counted_once() {
    let up = backend();
    let second = |zone: &str| {
        conf(up, &format!("server {{ listen 127.0.0.1:%PORT1%; server_name two.test; {zone} return 204; }}"))
    };
    let server = Server::start(second(""));
    let ask = |n: usize| (0..n).for_each(|_| assert!(ask_second(&server).contains(" 204 ")));
    ask(15);
    server.reload_with(second("status_zone two.test;"));
    wait_until("the reload", || json(&server, "/api/9/nginx")["generation"] == 2);
    ask(6);
    assert_counted_once(&server, |all| all["rows"]["http/server_zones"]["two.test"][0].clone(), 21.0);
}

#[test]
fn reloads_show_their_changes_and_the_reason_of_a_refusal() {
    let up = backend();
    let server = Server::start(conf(up, ""));
    let reloads = || json(&server, "/api/9/forebay/reloads");
    assert_eq!((&reloads()["generation"], &reloads()["events"]), (&json!(1), &json!([])));
    server.reload_with(conf(up, "server { listen 127.0.0.1:%PORT0%; server_name more.test; }"));
    let first = wait_for("the changes", || Some(reloads()).filter(|r| r["events"][0]["counts"].is_object()));
    let event = &first["events"][0];
    let counts = json!({"files": 1, "added": 3, "removed": 0});
    assert_eq!((&event["generation"], &event["counts"]), (&json!(2), &counts), "{first}");
    assert!(event["added"].to_string().contains("server_name more.test;"), "{event}");
    assert_eq!(event["files"][0]["change"], "changed");
    server.reload_with(conf(up, "nonsense on;"));
    let second = wait_for("the refusal", || Some(reloads()).filter(|r| r["last_failed"] == true));
    let event = &second["events"][0];
    assert!(event["error"].to_string().contains("unknown directive \\\"nonsense\\\""), "{second}");
    assert_eq!((&second["generation"], &event["generation"]), (&json!(2), &json!(2)), "{second}");
    assert_eq!(second["events"].as_array().map(Vec::len), Some(2));
}

/// A server with TLS on port 1 and a certificate for a.test.
fn with_tls() -> Server {
    let more = "server { listen 127.0.0.1:%PORT1% ssl; http2 on; server_name a.test; ssl_certificate %DIR%/a.pem; ssl_certificate_key \
                %DIR%/a.key; root /; location / { return 204; } }";
    let site = Site::new(conf(backend(), more));
    let names = "-subj /CN=x -addext subjectAltName=DNS:a.test,DNS:b.test";
    site.openssl(&format!("req -x509 -nodes -days 10 {names} -newkey {P256} -keyout a.key -out a.pem"));
    Server::start_on(site)
}

#[test]
fn handshakes_protocols_certificates_and_warnings_are_shown() {
    let server = with_tls();
    let of = |path: &str| json(&server, &format!("/api/9/forebay/{path}"));
    let certificates = wait_for("the certificates", || Some(of("certificates")).filter(|c| c[0].is_object()));
    assert_eq!(certificates[0]["names"], json!(["a.test", "b.test"]));
    assert_eq!(certificates[0]["source"], "file");
    // Ten days less what the test has taken.
    assert!((9..=10).contains(&certificates[0]["days_left"].as_i64().expect("a number")), "{certificates}");
    let warnings = wait_for("the warnings", || Some(of("warnings")).filter(|w| w["warnings"][0].is_object()));
    assert!(warnings["warnings"][0]["place"].to_string().contains("nginx.conf:"), "{warnings}");
    for version in ["-tls1_2", "-tls1_3", "-tls1_3"] {
        s_client(&server, 1, &format!("{version} -servername a.test"), "GET / HTTP/1.0\r\n\r\n");
    }
    // Plain text that is no HTTP either.
    raw(server.addr(1), b"\x16\x03\x01\x00\x05hello");
    let tls = wait_for("the handshakes", || Some(of("tls")).filter(|t| t["tls13"] == 2 && t["failed"] != 0));
    assert_eq!((&tls["tls12"], &tls["resumed"]), (&json!(1), &json!(0)), "{tls}");
    assert_eq!(json(&server, "/api/9/ssl")["handshakes"], 3);
    assert_eq!(of("protocols")["http2"], 0);
    let process = of("process");
    assert!(process["cpu_us"].as_u64() > Some(0) && process["memory"].as_u64() > Some(1 << 20), "{process}");
    assert_eq!(process["listening"][1], format!("{} ssl", server.addr(1)), "{process}");
    assert!(of("latency")["count"].as_u64() > Some(3));
    let text = server.get("/metrics");
    assert_eq!(series(body(&text), "forebay_tls_handshakes_total{version=\"1.3\"}"), 2.0);
    assert!(series(body(&text), "process_cpu_seconds_total") > 0.0);
    assert!(series(body(&text), "process_resident_memory_bytes") > 1e6);
    assert!(series(body(&text), "forebay_http_requests_total{version=\"1\"}") > 3.0);
}

/// Opens the page in a browser. Returns the document after five seconds, and what the browser wrote about errors.
fn browse(server: &Server, rest: &str) -> (String, String) {
    open_page(server, rest, "--dump-dom")
}

/// Opens a URL in a browser for five seconds.
pub(crate) fn chromium(more: &[&str], url: &str) -> Done {
    let profile = tempfile::tempdir().expect("temporary directory");
    let options = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
                   --disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=5000";
    let mut browser = Command::new("chromium");
    browser.args(options.split(' ')).args(more).arg(format!("--user-data-dir={}", profile.path().display()));
    Done::of(browser.arg(url))
}

/// Opens the page in a browser for five seconds. `output`: the browser's option for the result. Returns what it wrote to its output,
/// and what about errors.
pub(crate) fn open_page(server: &Server, rest: &str, output: &str) -> (String, String) {
    let out =
        chromium(&["--window-size=1400,1500", output], &format!("http://{}/dashboard{rest}", server.addr(0)));
    let console = out.err.lines().filter(|l| l.contains("CONSOLE")).map(|l| format!("{l}\n")).collect();
    (out.out, console)
}

#[test]
fn every_tab_of_the_page_has_its_rows_in_a_browser() {
    if !tool("chromium") {
        return;
    }
    let server = with_tls();
    for _ in 0..7 {
        assert!(server.get("/").ends_with("well"));
    }
    let page = server.get("/dashboard");
    let policy = page.lines().find_map(|l| l.strip_prefix("Content-Security-Policy: ")).expect("a policy");
    assert!(policy.contains("script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    for (tab, texts) in [
        ("#overview", "u: 1 of 2 servers not in use|a.test: certificate expires in |Latency|>live<"),
        // A name from the configuration is text.
        (
            "#http",
            "<td class=\"l\">front</td>|<td class=\"l\">app</td>|<td class=\"l\">&lt;i&gt;name&lt;/i&gt;</td>",
        ),
        ("#http", "aria-sort=\"ascending\"|<path d=\"M"),
        ("#upstreams", "127.0.0.1:1</td>|<td class=\"l down\">down</td>"),
        ("#caches", "<td class=\"l\">things</td>|Off: nothing is limited"),
        (
            "#system",
            "Configuration 1 in effect|a.test, b.test|<dt>Threads</dt><dd>2</dd>|<dt>Listens on</dt><dd>127.0.0.1:",
        ),
        // No tab, but a name that all objects have.
        ("#constructor", ">live<"),
    ] {
        let (dom, console) = browse(&server, tab);
        assert_eq!(console, "", "{tab}");
        for text in texts.split('|') {
            assert!(dom.contains(text), "{tab}: no {text} in {dom}");
        }
    }
}

fn top(site: &Site, args: &str) -> (i32, String, String) {
    let done = site.forebay(&format!("top {args}"));
    (done.code, done.out, done.err)
}

#[test]
fn top_prints_what_the_dashboard_shows() {
    let server = start("");
    for _ in 0..7 {
        assert!(server.get("/").ends_with("well"));
    }
    wait_until("a sample", || history(&server, "")["samples"] != 0);
    let url = format!("http://{}/dashboard/", server.addr(0));
    let here = format!("--once -p {}/ -c nginx.conf", server.dir().display());
    for args in [here, format!("--once {url}"), format!("{}/api", server.addr(0))] {
        let (code, text, errors) = top(&server.site, &args);
        assert_eq!((code, errors.as_str()), (0, ""), "{args}: {text}");
        for part in
            ["forebay 0.", "requests/s", "! u: 1 of 2 servers not in use", "front", "Certificates", "Reloads"]
        {
            assert!(text.contains(part), "{args}: no {part} in {text}");
        }
    }
    // A reader that goes away.
    let mut command = server.subcommand(["top", "--once", &url]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    drop(child.stdout.take());
    let done = child.wait_with_output().expect("an end");
    assert_eq!((done.status.code(), done.stderr.escape_ascii().to_string().as_str()), (Some(0), ""));
}

#[test]
fn top_says_why_it_shows_nothing() {
    let site =
        Site::new("events {} http { server { listen 127.0.0.1:%PORT0%; location / { return 204; } } }");
    let here = |name: &str| format!("-p {}/ -c {name}", site.dir().display());
    for (args, reason) in [
        (here("nginx.conf"), "no location with \"dashboard\" or \"api\""),
        (here("none.conf"), "cannot be read"),
        (format!("127.0.0.1:{}/x", free_port()), "onnection refused"),
        ("ftp://a/".to_owned(), "not http or https"),
    ] {
        let (code, text, errors) = top(&site, &args);
        assert_eq!((code, text.as_str()), (1, ""), "{args}");
        assert!(errors.starts_with("forebay top: ") && errors.contains(reason), "{args}: {errors}");
    }
}

/// Reads from a terminal until a text has come.
fn read_until(terminal: &mut impl Read, seen: &mut String, text: &str) {
    let mut piece = [0; 4096];
    while !seen.contains(text) {
        let count = terminal.read(&mut piece).expect("output");
        assert_ne!(count, 0, "no {text} in {seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
}

/// Starts a command with a terminal of 30 lines and 100 columns.
fn in_terminal(command: &str) -> std::process::Child {
    let command = format!("stty rows 30 cols 100; {command}");
    Command::new("script")
        .args(["-qfec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script")
}

#[test]
fn top_obeys_keys_in_a_terminal() {
    if !tool("script") {
        return;
    }
    let server = start("");
    let mut child = in_terminal(&format!("{PROGRAM} top http://{}/dashboard", server.addr(0)));
    let (mut keys, mut screen) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut seen = String::new();
    read_until(&mut screen, &mut seen, "\x1b[7m 1 Servers \x1b[0m");
    assert!(seen.contains("\x1b[?1049h") && seen.contains("requests/s"), "{seen}");
    // Keys that come together, as when one is held.
    keys.write_all(b"pp\x1b[B2").expect("written");
    read_until(&mut screen, &mut seen, "\x1b[7m 2 Upstreams \x1b[0m");
    read_until(&mut screen, &mut seen, "127.0.0.1:1 ");
    keys.write_all(b"jq").expect("written");
    // The screen of before comes back.
    read_until(&mut screen, &mut seen, "\x1b[?1049l");
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

#[test]
fn screens_are_not_opened_in_the_background() {
    if !tool("script") {
        return;
    }
    let server = start("");
    let url = format!("http://{}", server.addr(0));
    for (command, text) in [
        (format!("{PROGRAM} top {url}/dashboard"), "the process runs in the background"),
        (format!("{PROGRAM} bench -d 1 -c 1 {url}/i"), "requests/s"),
    ] {
        // A process that sets the terminal up would be stopped, and `wait` would not return.
        let mut child = in_terminal(&format!("set -m; {command} & wait; echo end"));
        let mut screen = child.stdout.take().expect("piped");
        let mut seen = String::new();
        read_until(&mut screen, &mut seen, "\nend");
        assert!(seen.contains(text) && !seen.contains("\x1b[?1049h"), "{seen}");
        child.wait().expect("ends");
    }
}

#[test]
fn top_leaves_the_terminal_as_it_was_at_signals() {
    if !tool("script") {
        return;
    }
    let server = start("");
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let top = format!("sh -c 'echo pid=$$,; exec {PROGRAM} top http://{}/dashboard'", server.addr(0));
        let mut child = in_terminal(&format!("stty -g; {top}; echo code=$?; stty -g; echo end"));
        let mut screen = child.stdout.take().expect("piped");
        let mut seen = String::new();
        read_until(&mut screen, &mut seen, "\x1b[7m 1 Servers \x1b[0m");
        let (_, rest) = seen.split_once("pid=").expect("a pid");
        let pid = rest.split(',').next().and_then(|pid| pid.parse().ok()).expect("a pid");
        let before = seen.lines().next().expect("a line").to_owned();
        kill(pid, signal);
        read_until(&mut screen, &mut seen, "\nend");
        let (_, after) = seen.split_once("\x1b[?1049l").expect("the screen of before");
        let after: Vec<&str> = after.trim_start().lines().collect();
        assert_eq!(after, ["code=0", before.trim(), "end"], "{signal} {seen}");
        assert_eq!(child.wait().expect("ends").code(), Some(0));
    }
}
