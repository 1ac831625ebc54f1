//! `forebay compare` with real servers.

use forebay_testkit::{Signal, Site, is_before, kill, oracle, program, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A configuration with something of each kind.
const CONF: &str = "events {}\n\
http {\n\
    log_format main '$remote_addr \"$request\" $status $body_bytes_sent $request_time $upstream_addr';\n\
    access_log /var/log/nginx/access.log main;\n\
    map $http_x_kind $kind { default none; one 1; ~^two 2; }\n\
    proxy_cache_path /var/cache/nginx keys_zone=c:1m;\n\
    upstream app { server 192.0.2.1:8080; }\n\
    server {\n\
        listen 80 default_server;\n\
        server_name example.org;\n\
        root html;\n\
        add_header X-Kind $kind;\n\
        location / { try_files $uri @app; }\n\
        location @app { proxy_pass http://app; proxy_set_header X-Id $request_id; }\n\
        location /api/ { proxy_pass http://app/v1/; proxy_cache c; proxy_cache_valid 10m; add_header X-Cache $upstream_cache_status; }\n\
        location ~ \\.(php|phtml)$ { fastcgi_pass unix:/run/php.sock; fastcgi_param REQUEST_METHOD $request_method; }\n\
        location /gates/ { uwsgi_pass 192.0.2.1:3; location /gates/s { scgi_pass 192.0.2.1:4; } location /gates/g { grpc_pass 192.0.2.1:5; } }\n\
        location = /old { return 301 /new; }\n\
        location /agent { if ($http_user_agent ~* (curl|wget)) { return 403; } proxy_pass http://$host:80$request_uri; }\n\
        MORE\n\
    }\n\
}\n\
stream {\n\
    upstream db { server 192.0.2.1:5432; }\n\
    server { listen 5432; proxy_pass db; }\n\
    server { listen 53 udp; proxy_pass 192.0.2.1:53; proxy_responses 1; }\n\
}\n";

fn site(more: &str) -> Site {
    let site = Site::new("events {}\n");
    site.write("html/index.html", "<p>hello</p>");
    site.write("a.conf", CONF.replace("MORE", more));
    std::fs::create_dir_all(site.dir().join("tmp")).expect("made");
    site
}

fn compare(site: &Site, more: &[&str]) -> Command {
    let dir = site.dir();
    let mut command = Command::new(program());
    command.arg("compare").arg("-c").arg(dir.join("a.conf")).arg("-p").arg(dir).args(more);
    // Its servers have this directory in their command lines.
    command.env("TMPDIR", dir.join("tmp")).env("XDG_STATE_HOME", dir.join("state"));
    command.current_dir(dir).stdin(Stdio::null());
    command
}

fn run(site: &Site, more: &[&str]) -> (Option<i32>, String) {
    let output = compare(site, more).output().expect("runs");
    assert_nothing_is_left(site);
    (output.status.code(), text(&output))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Asserts that no process and no file of a comparison is left.
fn assert_nothing_is_left(site: &Site) {
    let place = site.dir().join("tmp").display().to_string();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(!line.contains(&place), "still runs: {line}");
    }
    let files: Vec<_> = std::fs::read_dir(&place).expect("there").flatten().map(|e| e.path()).collect();
    assert!(files.is_empty(), "{files:?}");
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("written")).expect("JSON")
}

#[test]
fn a_configuration_means_the_same_under_nginx() {
    let Some(nginx) = oracle() else {
        println!("skipped: no nginx");
        return;
    };
    let site = site("");
    let parts = Command::new(&nginx).arg("-V").output().expect("runs");
    if text(&parts).contains("--with-stream=dynamic") {
        let http = CONF.replace("MORE", "");
        site.write("a.conf", http.split("\nstream {").next().expect("the http block"));
    }
    site.write(
        "log",
        "192.0.2.9 - - [01/Jan/2026:00:00:00 +0000] \"GET /api/of-the-log HTTP/1.1\" 200 5 \"-\" \"x\"\n",
    );
    let options =
        ["--nginx", &nginx, "--log", "log", "--json", "out.json", "--html", "out.html", "--requests", "2500"];
    let (code, said) = run(&site, &options);
    assert!(matches!(code, Some(0 | 1)), "{said}");
    let report = json(&site.dir().join("out.json"));
    // Answers of gRPC with 204, or to HEAD, differ in these; no program gives them.
    let open = ["field content-type", "field content-length"];
    let unknown: Vec<&Value> = report["unknown"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|d| !open.contains(&d["part"].as_str().expect("text")))
        .collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(report["requests"].as_u64().is_some_and(|n| n > 500), "{said}");
    assert_eq!(report["lines"]["all"], report["lines"]["reached"], "{said}");
    let known = report["known"].to_string();
    assert!(known.contains("Server: forebay"), "{known}");
    assert_eq!(known.contains("nginx itself, since 1.29.7"), is_before(&nginx, 29), "{known}");
    let page = std::fs::read_to_string(site.dir().join("out.html")).expect("written");
    assert!(page.contains("prefers-color-scheme") && page.contains("lines reached"), "{page}");
}

#[test]
fn a_planted_difference_is_found() {
    let site = site("");
    let conf = CONF.replace("MORE", "").replace("add_header X-Kind $kind", "add_header X-Kind other");
    site.write("b.conf", conf.replace("proxy_set_header X-Id $request_id", "proxy_set_header X-Id fixed"));
    let (code, said) = run(&site, &["--with-config", "b.conf", "--requests", "600"]);
    assert_eq!(code, Some(1), "{said}");
    for part in [
        "field x-kind,",
        "a.conf: none\n",
        "b.conf: other\n",
        "field x-id to the upstream,",
        "curl -i --path-as-is --http1.1",
        "http://127.0.0.2:",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn nothing_differs_from_itself_and_lines_that_are_not_reached_are_told() {
    let site = site("location @nobody { return 204; } location /inside { internal; }");
    let (code, said) = run(&site, &["--with-config", "a.conf", "--requests", "1500"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(" requests, 0 unknown differences, 0 known"), "{said}");
    assert!(said.contains("a.conf:20 location @nobody (1 line): nothing led to it"), "{said}");
}

#[test]
fn a_program_that_does_not_start_is_told() {
    let site = site("");
    let script = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        site.write(name, format!("#!/bin/sh\n{text}\n"));
        let path = site.dir().join(name);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        path.display().to_string()
    };
    let refuses = script("refuses", "echo 'nginx: [emerg] no way' >&2; exit 1");
    let ends =
        script("ends", "case \" $* \" in *' -t '*|*' -V '*) exit 0;; esac; echo 'bind() failed' >&2; exit 3");
    for (program, says) in [
        (refuses.as_str(), "refuses refuses"),
        (ends.as_str(), "ends does not start: the server ended (exit status: 3): bind() failed"),
        ("/nowhere/nginx", "/nowhere/nginx: No such file or directory"),
    ] {
        let (code, said) = run(&site, &["--nginx", program]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.starts_with("forebay compare: ") && said.contains(says), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn bad_input_is_one_sentence() {
    let site = site("");
    site.write("other.log", "Jan 1 00:00:00 host sshd[7]: session opened\n");
    site.write("bad.conf", "events {}\nhttp {\n    servr {}\n}\n");
    site.write("empty.conf", "events {}\nhttp {}\n");
    for (options, says) in [
        (
            ["--with-config", "a.conf", "--log", "other.log"],
            "no line has the combined format or a log_format",
        ),
        (["--with-config", "a.conf", "--log", "missing.log"], "missing.log: No such file or directory"),
        (["--with-config", "missing.conf", "--requests", "5"], "missing.conf"),
        (["--with-config", "bad.conf", "--requests", "5"], "unknown directive \"servr\" in"),
    ] {
        let (code, said) = run(&site, &options);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.starts_with("forebay compare: ") && said.contains(says), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!said.contains("/conf/0.conf"), "the copy is not named: {said}");
    }
    // Lines of the copies have the numbers of the user's.
    site.write(
        "unknown.conf",
        "events {}\nhttp {\n    server {\n        listen 80;\n        user_agent x;\n    }\n}\n",
    );
    let mut command = Command::new(program());
    command.args(["compare", "-c", "unknown.conf", "--with-config", "unknown.conf"]).current_dir(site.dir());
    let said = text(&command.output().expect("runs"));
    assert!(said.contains("unknown directive \"user_agent\" in"), "{said}");
    assert!(said.contains("unknown.conf:5"), "{said}");
    let mut command = Command::new(program());
    let output = command.args(["compare", "-c", "empty.conf", "--with-config", "empty.conf"]);
    let output = output.current_dir(site.dir()).output().expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("has no server that could be asked"), "{}", text(&output));
}

#[test]
fn live_traffic_is_compared_until_the_end() {
    let site = site("");
    site.write(
        "b.conf",
        CONF.replace("MORE", "").replace("add_header X-Kind $kind", "add_header X-Kind other"),
    );
    let options = ["--with-config", "b.conf", "--live", "127.0.0.1:0", "--every", "1"];
    let mut child = compare(&site, &options).stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map(|l| l.expect("text"));
    let first = lines.next().expect("a line");
    let address = first.strip_prefix("Waits for requests at ").and_then(|a| a.strip_suffix('.'));
    let address = address.unwrap_or_else(|| panic!("{first}"));
    let mut mirror = TcpStream::connect(address).expect("connected");
    for request in [
        "GET /old?access_token=abc HTTP/1.1\r\nHost: example.org\r\nCookie: sid=hidden\r\n\r\n",
        "POST /api/b HTTP/1.1\r\nHost: example.org\r\nContent-Length: 3\r\n\r\na=1",
    ] {
        mirror.write_all(request.as_bytes()).expect("sent");
        let mut answer = [0; 27];
        mirror.read_exact(&mut answer).expect("answered");
        assert_eq!(&answer, b"HTTP/1.1 204 No Content\r\n\r\n");
    }
    let counted = "1 request, 1 unexplained, 0 explained, 1 left out";
    let seen: Vec<String> = lines.by_ref().take(20).take_while(|line| line != counted).collect();
    assert!(seen.len() < 20, "no line says {counted}: {seen:?}");
    kill(i32::try_from(child.id()).expect("a pid"), Signal::SIGINT);
    let rest: String = lines.map(|line| line + "\n").collect();
    assert_eq!(child.wait().expect("ends").code(), Some(1), "{rest}");
    assert_nothing_is_left(&site);
    assert!(rest.contains("field x-kind, 1 request") && rest.contains("Cookie: (masked)"), "{rest}");
    assert!(!rest.contains("hidden") && !rest.contains("abc"), "{rest}");
}

#[test]
fn servers_end_with_a_comparison_that_is_killed() {
    let site = site("");
    let mut child = compare(&site, &["--with-config", "a.conf", "--hold"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "Both run until ^C."));
    let place = site.dir().join("tmp").display().to_string();
    let servers = || {
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let line = |e: std::fs::DirEntry| std::fs::read(e.path().join("cmdline")).unwrap_or_default();
        let is_process =
            |e: &std::fs::DirEntry| e.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        let lines = entries.filter(is_process).map(line);
        lines.filter(|l| String::from_utf8_lossy(l).contains(&place)).count()
    };
    assert!(servers() >= 2);
    child.kill().expect("killed");
    child.wait().expect("ended");
    wait_until("the servers end", || servers() == 0);
}
