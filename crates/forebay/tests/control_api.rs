//! The control API of the master (`-l`).

use forebay_testkit::{DEADLINE, Server, Signal, Site, alive, free_port, kill, quit, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

const CONF: &str = "worker_processes 1;\nerror_log logs/error.log notice;\nevents {}\nhttp { include more.conf; server { listen \
                    127.0.0.1:%PORT0%; location / { return 200 \"one\\n\"; } } }\n";
const ADDRESS: &str = "unix:control.sock";

fn site() -> Site {
    let site = Site::new(CONF);
    site.write("more.conf", "# included\n");
    site
}

fn socket(site: &Site) -> PathBuf {
    site.path("control.sock")
}

/// Sends bytes to the API and returns what it sends.
fn raw(path: &Path, bytes: &[u8]) -> String {
    let mut client = UnixStream::connect(path).expect("connects");
    client.set_read_timeout(Some(DEADLINE)).expect("option");
    client.write_all(bytes).expect("sent");
    let mut text = String::new();
    client.read_to_string(&mut text).expect("an answer");
    text
}

/// Returns status and document.
fn ask(path: &Path, method: &str, target: &str) -> (u16, Value) {
    let text = raw(path, format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_default())
}

#[test]
fn what_runs_and_the_configuration_in_memory() {
    let server = Server::start_with(site(), &["-l", ADDRESS]);
    let at = socket(&server);
    let mode = std::fs::metadata(&at).expect("a socket").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");
    assert_eq!(ask(&at, "GET", "/1"), (200, json!(["control", "nginx"])));
    assert_eq!(ask(&at, "GET", "/1/control/"), (200, json!(["processes", "config"])));
    let (status, nginx) = ask(&at, "GET", "/1/nginx");
    assert_eq!((status, &nginx["version"]), (200, &json!(forebay_core::NGINX_VERSION)));
    assert!(nginx["build"].as_str().is_some_and(|build| build.starts_with("forebay-")), "{nginx}");
    assert_eq!((&nginx["pid"], &nginx["generation"]), (&json!(server.pid()), &json!(1)));
    let worker = json!([{ "name": "worker process", "pid": server.worker(), "exiting": false }]);
    assert_eq!(ask(&at, "GET", "/1/control/processes"), (200, worker));
    // The files as they were read, not as they are now.
    server.write("more.conf", "# changed\n");
    let (_, config) = ask(&at, "GET", "/1/control/config");
    let names: Vec<_> = config.as_array().expect("a list").iter().map(|f| f["name"].clone()).collect();
    let paths = ["nginx.conf", "more.conf"].map(|name| json!(server.path(name)));
    assert_eq!(names, paths);
    assert_eq!(config[1]["content"], "# included\n");
    for (method, target, status) in [
        ("GET", "/", 404),
        ("GET", "/2", 404),
        ("PATCH", "/1/nginx", 405),
        ("DELETE", "/1/control/config", 405),
        ("POST", "/1", 405),
    ] {
        assert_eq!(ask(&at, method, target).0, status, "{method} {target}");
    }
    let head = raw(&at, b"HEAD /1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_reload_answers_with_its_result() {
    let server = Server::start_with(site(), &["-l", ADDRESS]);
    let at = socket(&server);
    server.write("more.conf", "map $uri $b { default 2; }\nsession_log_format x y;\n");
    let (status, report) = ask(&at, "PATCH", "/1/control/config");
    assert_eq!(status, 200, "{report}");
    let logs = report["logs"].to_string();
    assert!(logs.contains("[warn] \\\"session_log_format\\\" directive is not supported yet"), "{logs}");
    assert_eq!(ask(&at, "GET", "/1/nginx").1["generation"], 2);
    assert_eq!(ask(&at, "GET", "/1/control/config").1[1]["content"], server.read("more.conf"));
    server.write("more.conf", "bogus on;\n");
    let (status, report) = ask(&at, "PATCH", "/1/control/config");
    assert_eq!(status, 422, "{report}");
    let logs = report["logs"].to_string();
    assert!(logs.contains("[emerg] unknown directive \\\"bogus\\\""), "{logs}");
    assert!(logs.contains("more.conf:1"), "{logs}");
    assert_eq!(ask(&at, "GET", "/1/nginx").1["generation"], 2);
    // The command without the address finds the API of the master.
    server.write("more.conf", "session_log_format x y;\n");
    let output = std::process::Command::new(forebay_testkit::program())
        .arg("reload")
        .args(["-c".into(), server.path("nginx.conf"), "-p".into(), server.dir().to_path_buf()])
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.starts_with("nginx: [warn] "), "{text}");
    // The commands: the exit code and the lines are those of the reload.
    for command in [&["-s", "reload", "-l", ADDRESS][..], &["reload", "-l", ADDRESS, "-p", "."]] {
        let (program, site) = (forebay_testkit::program(), &server.site);
        let run = || match command.first() {
            Some(&"reload") => std::process::Command::new(program)
                .args(["reload", "-l"])
                .arg(format!("unix:{}", at.display()))
                .output()
                .expect("runs"),
            _ => site.run(command),
        };
        server.write("more.conf", "bogus on;\n");
        let output = run();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.starts_with("nginx: [emerg] unknown directive \"bogus\""), "{text}");
        server.write("more.conf", "# good\n");
        let output = run();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    }
}

/// A client that sends nothing, or a head without an end, costs the master nothing.
#[test]
fn slow_and_broken_clients_hold_nobody() {
    let server = Server::start_with(site(), &["-l", ADDRESS]);
    let at = socket(&server);
    let mut slow: Vec<_> = (0..3).map(|_| UnixStream::connect(&at).expect("connects")).collect();
    for client in &mut slow {
        client.write_all(b"GET /1 HTTP/1.1\r\nA: ").expect("sent");
    }
    assert_eq!(ask(&at, "GET", "/1").0, 200);
    server.signal(Signal::SIGHUP);
    server.wait_for_log("reconfiguring", 1);
    let long = [b"GET /1 HTTP/1.1\r\nA: ".as_slice(), &[b'a'; 20_000]].concat();
    assert!(raw(&at, &long).starts_with("HTTP/1.1 4"));
    assert!(raw(&at, b"nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let body = b"PATCH /1/control/config HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n";
    assert!(raw(&at, body).starts_with("HTTP/1.1 413 "));
    drop(slow);
}

#[test]
fn a_new_binary_takes_the_socket_over() {
    let server = Server::daemon_with(site(), &["-l", ADDRESS]);
    let (at, old) = (socket(&server), server.pid());
    let new = server.successor(old);
    wait_until("the new one answers", || ask(&at, "GET", "/1/nginx").1["pid"] == new);
    quit(old);
    assert_eq!(ask(&at, "GET", "/1/nginx").1["pid"], new);
    assert_eq!(ask(&at, "PATCH", "/1/control/config").0, 200);
    // The way back: the old one serves the API again.
    let newest = server.successor(new);
    wait_until("the newest answers", || ask(&at, "GET", "/1/nginx").1["pid"] == newest);
    kill(newest, Signal::SIGQUIT);
    wait_until("the one before answers", || ask(&at, "GET", "/1/nginx").1["pid"] == new);
    kill(new, Signal::SIGQUIT);
    wait_until("the end", || !alive(new) && !at.exists());
}

/// A port is open to every user, and to pages of browsers by names that lead here.
#[test]
fn a_port_takes_only_clients_of_this_machine() {
    let port = free_port().to_string();
    let server = Server::start_with(site(), &["-l", &port]);
    let ask = |fields: &str| {
        let mut client = TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).expect("connects");
        client.write_all(format!("GET /1 HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes()).expect("sent");
        let mut text = String::new();
        client.read_to_string(&mut text).expect("an answer");
        text
    };
    assert!(ask("Host: 127.0.0.1").starts_with("HTTP/1.1 200 "));
    assert!(ask("Host: evil.test").starts_with("HTTP/1.1 403 "));
    assert!(ask("Host: localhost\r\nOrigin: http://evil.test").starts_with("HTTP/1.1 403 "));
    assert!(
        server.read("stderr").contains("is open to every user of this machine"),
        "{}",
        server.read("stderr")
    );
}

#[test]
fn addresses_that_are_refused() {
    let site = site();
    for (word, text) in [
        ("0.0.0.0:81", "not an address of this machine alone"),
        ("unix:", "no path"),
        ("x", "invalid address"),
    ] {
        let output = site.run(&["-g", "daemon off;", "-l", word]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains(text), "{word}: {error}");
    }
    // Another server has it.
    let server = Server::start_with(self::site(), &["-l", ADDRESS]);
    let taken = format!("unix:{}", socket(&server).display());
    let output = site.run(&["-g", "daemon off;", "-l", &taken]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("Address already in use"), "{error}");
    assert_eq!(ask(&socket(&server), "GET", "/1").0, 200, "the other server still has it");
}
