//! `check`, `explain`, `help` and `serve`.

use forebay_testkit::{Origin, Signal, Site, free_port, kill, program, raw, title, wait_for};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

forebay_testkit::cases!("cases/subcommands.cases":
    check_reports_all_errors, check_finds_the_mistakes_of_all_stages_in_one_run, check_knows_stream,
    serve_shows_its_configuration, a_proxy_does_not_pass_to_itself, a_printed_configuration_makes_nothing,
    fmt_rewrites_checks_and_shows, help_describes_a_directive, help_describes_subcommands_too, words_that_are_no_command,
    every_command_takes_the_file_either_way, check_explains_causes, passwords_of_users, doctor_finds_places_and_reasons);

/// nginx's order is kept by `-t`: a mistake of one directive is told before those of the whole.
#[test]
fn the_test_names_the_mistake_that_nginx_names() {
    let site = Site::new(
        "user nobody-of-this-name; events {}\nhttp { access_log /nonexistent/folder/a.log;\n\
         server { listen 127.0.0.1:8080; listen 127.0.0.1:8080; limit_req zone=perpi; client_max_body_size 10mb; } }\n",
    );
    let first =
        String::from_utf8_lossy(&site.run(&["-t"]).stderr).lines().next().unwrap_or_default().to_owned();
    assert!(first.contains("client_max_body_size"), "{first}");
    if nix::unistd::geteuid().is_root() {
        let output =
            Command::new(program()).arg("check").arg(site.path("nginx.conf")).output().expect("runs");
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(out.contains("getpwnam(\"nobody-of-this-name\") failed"), "{out}");
    }
}

/// Formatting a stream configuration changes neither what `check` says nor what is in effect.
#[test]
fn fmt_leaves_stream_as_it_is() {
    let site = Site::new(
        "events {}stream{# all\nlog_format l '$remote_addr{;}'\n\"$status\";access_log %DIR%/a l if=$log;\n\
         map $remote_addr $log{default 1;\"~^127\\.\" \"\";volatile;}\n\n\n\
         geo $near{default 0;10.0.0.0/8 1;} split_clients $remote_addr $half{50%  a:1;*   b:2;}\n\
         limit_conn_zone $binary_remote_addr zone=z:1m;\n\
         upstream a{hash $remote_addr consistent;server 127.0.0.1:1 weight=2 max_fails=3;server 127.0.0.1:2 down;zone a 64k;}\n\
         upstream b {least_conn; server unix:/s; server 127.0.0.1:3 backup;}\n\
         server{listen 127.0.0.1:%PORT0% so_keepalive=on; # first\n\n set $x \"a b\";limit_conn z 3;allow 127.0.0.1;deny all;\n\
         proxy_pass a;proxy_timeout\n1h;proxy_download_rate 10k;proxy_half_close on;}\n\
         server {listen [::1]:%PORT0%;ssl_preread on;preread_timeout 5s;proxy_pass b; proxy_protocol on;}\n\
         server {listen 127.0.0.1:%PORT1%; return '$time_iso8601 {}';}\n\
         server{listen 127.0.0.1:%PORT1% udp\treuseport;proxy_pass b;proxy_responses 1;proxy_requests 2;}}",
    );
    let run = |args: &[&str]| {
        let output = Command::new(program()).args(args).current_dir(site.dir()).output().expect("runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // Lines move; names and values do not.
    let in_effect = || {
        let (code, text) = run(&["explain", "-c", "nginx.conf", "-p", "."]);
        assert_eq!(code, Some(0), "{text}");
        let (_, levels) = text.split_once("\nstream server ").expect("the servers");
        let words = |line: &str| {
            line.split_whitespace().filter(|w| !w.contains("nginx.conf:")).collect::<Vec<_>>().join(" ")
        };
        levels.lines().map(words).collect::<Vec<_>>()
    };
    assert_eq!(run(&["check", "nginx.conf"]), (Some(0), "no errors, no warnings\n".to_owned()));
    let before = in_effect();
    assert_eq!(run(&["fmt", "--check", "nginx.conf"]).0, Some(1));
    assert_eq!(run(&["fmt", "nginx.conf"]).0, Some(0));
    assert_eq!(run(&["fmt", "--check", "nginx.conf"]).0, Some(0));
    assert_eq!(run(&["check", "nginx.conf"]), (Some(0), "no errors, no warnings\n".to_owned()));
    assert_eq!(in_effect(), before);
    let text = site.read("nginx.conf");
    assert!(text.contains("\n    map $remote_addr $log {\n        default 1;\n"), "{text}");
    assert!(text.contains("so_keepalive=on; # first\n\n        set $x \"a b\";\n"), "{text}");
}

#[test]
fn explain_names_origins() {
    let site = Site::new("worker_processes 3;\nevents {}\n");
    let output = Command::new(program())
        .args(["explain", "-p"])
        .arg(site.dir())
        .args(["-c", "nginx.conf"])
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let row = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect("a row");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("worker_processes"), format!("worker_processes 3 {}/nginx.conf:1", site.dir().display()));
    assert!(row("worker_connections").contains("detected:"), "{text}");
    assert!(row("daemon").ends_with("on default"), "{text}");
}

#[test]
fn explain_shows_what_holds_in_each_location() {
    let site = Site::new(
        "events {}\nhttp {\n gzip on;\n add_header X-A 1;\n root /outer;\n\
         server {\n server_name one.example;\n listen 127.0.0.1:%PORT0%;\n keepalive_timeout 5s;\n\
         location / {\n root /inner;\n proxy_pass http://127.0.0.1:1;\n\
         location /deep {\n add_header X-B 2;\n }\n }\n }\n}\n",
    );
    let explain = |more: &[&str]| {
        let mut command = Command::new(program());
        let output =
            command.args(["explain", "-p"]).arg(site.dir()).args(["-c", "nginx.conf"]).args(more).output();
        String::from_utf8_lossy(&output.expect("runs").stdout).into_owned()
    };
    let text = explain(&[]);
    let level = |name: &str| {
        let (_, rest) = text.split_once(&format!("\n{name} (")).expect("the level");
        let rows = rest.split("\n\n").next().unwrap_or_default().lines().skip(1);
        rows.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let place = |line: u32| format!("{}/nginx.conf:{line}", site.dir().display());
    let common = [format!("gzip on {}", place(3)), format!("keepalive_timeout 5s {}", place(9))];
    let server = level("server one.example");
    assert!(server.contains(&format!("root /outer {}", place(5))) && server.contains(&common[0]), "{text}");
    let location = level("location /");
    for row in
        [format!("add_header X-A 1 {}", place(4)), format!("root /inner {}", place(11))].iter().chain(&common)
    {
        assert!(location.contains(row), "{row}: {text}");
    }
    assert!(location.iter().any(|r| r.starts_with("proxy_pass ")), "{text}");
    let deep = level("location /deep");
    assert!(deep.contains(&format!("add_header X-B 2 {}", place(14))), "{text}");
    assert!(!deep.iter().any(|r| r.contains("X-A") || r.starts_with("proxy_pass")), "{text}");
    let all = explain(&["--defaults"]);
    assert!(all.contains("client_max_body_size") && !text.contains("client_max_body_size"), "{all}");
}

/// The choice by name is that of the server itself.
#[test]
fn explain_follows_a_session_through_the_stream_block() {
    let site = Site::new(
        "events {}\nhttp { server { listen 127.0.0.1:%PORT1%; } }\nstream {\n\
         ssl_certificate %DIR%/c.pem; ssl_certificate_key %DIR%/k.pem;\n proxy_timeout 1h;\n\
         upstream pool { server 127.0.0.1:5432; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name a.example; proxy_pass pool; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name ~^b\\d+\\.example$; return b; }\n\
         server { listen 127.0.0.1:%PORT0% udp; proxy_pass 127.0.0.1:53; proxy_responses 1; }\n\
         server { listen 127.0.0.1:%PORT2%; pass 127.0.0.1:%PORT1%; }\n}\n",
    );
    site.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout k.pem -out c.pem -days 30 -subj /CN=a");
    let explain = |more: &[&str]| {
        let mut command = Command::new(program());
        command.args(["explain", "-p"]).arg(site.dir()).args(["-c", "nginx.conf"]).args(more);
        let output = command.output().expect("runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let tls = format!("tls://{}", site.addr(0));
    let place = |line: u32| format!("{}/nginx.conf:{line}", site.dir().display());
    for (more, server, line, content) in [
        (&["--sni", "b12.example"][..], "by the name b12.example", 8, "return"),
        (&["--sni", "a.example"], "by the name a.example", 7, "proxy_pass"),
        (&["--sni", "c.example"], "no server has the name c.example", 7, "proxy_pass"),
        (&[], "the default of the address", 7, "proxy_pass"),
    ] {
        let (code, text, errors) = explain(&[&[tls.as_str()], more].concat());
        assert_eq!(code, Some(0), "{errors}");
        let last = text.lines().filter(|l| l.starts_with("    server ")).find(|l| l.contains(server));
        assert!(last.is_some_and(|l| l.ends_with(&place(line))), "{server}: {text}");
        let handler = text.split("\nCONTENT\n").nth(1).and_then(|rest| rest.lines().next());
        assert!(handler.is_some_and(|l| l.trim().starts_with(content)), "{content}: {text}");
    }
    // The port has a socket for each protocol.
    let (_, text, errors) = explain(&[&format!("udp://{}", site.addr(0))]);
    assert!(text.contains("1  the session ends after so many answers to each datagram"), "{text} {errors}");
    assert!(text.contains(&format!("listener  {} udp", site.addr(0))), "{text}");
    let (_, text, errors) = explain(&[&format!("tcp://{}", site.addr(2))]);
    assert!(text.contains(&format!("{}  of http", site.addr(1))), "{text} {errors}");
    let (code, _, errors) = explain(&[&format!("tcp://{}", site.addr(1))]);
    assert!(code == Some(1) && errors.contains("http listens there"), "{errors}");
    let (_, text, _) = explain(&[]);
    let (_, level) = text.split_once("\nstream server a.example (").expect("a level");
    let rows: Vec<_> = level.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(rows.contains(&format!("proxy_timeout 1h {}", place(5))), "{text}");
}

#[test]
fn serve_runs_the_demo_and_cleans_up() {
    let port = free_port();
    let mut child = Command::new(program())
        .args(["serve", "--listen", &port.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = String::new();
    out.read_line(&mut first).expect("a line");
    assert_eq!(first, format!("Serving the demo site on http://localhost:{port}/\n"));
    let addr = ([127, 0, 0, 1], port).into();
    wait_for("a server that accepts", || std::net::TcpStream::connect(addr).ok());
    let answer = raw(addr, b"GET / HTTP/1.0\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    let title = title(child.id() as i32);
    assert!(title.starts_with("nginx: master process "), "{title}");
    let conf =
        std::fs::read_dir(std::env::temp_dir()).expect("temporary directory").flatten().find(|entry| {
            let conf = std::fs::read_to_string(entry.path().join("nginx.conf")).unwrap_or_default();
            conf.contains("forebay serve") && conf.contains(&format!(":{port};"))
        });
    let directory = conf.expect("its private directory").path();
    kill(child.id() as i32, Signal::SIGINT);
    let code = wait_for("the end", || child.try_wait().expect("child")).code();
    let mut errors = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut errors).expect("read");
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(!directory.exists(), "removed at the end");
}

/// Runs `serve` with these arguments while `work` does, and gives what it printed.
fn while_it_serves(args: &[&str], port: u16, work: impl FnOnce(std::net::SocketAddr)) -> String {
    let mut child = Command::new(program())
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let addr = ([127, 0, 0, 1], port).into();
    wait_for("a server that accepts", || std::net::TcpStream::connect(addr).ok());
    work(addr);
    kill(child.id() as i32, Signal::SIGINT);
    let mut printed = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut printed).expect("read");
    wait_for("the end", || child.try_wait().expect("child"));
    printed
}

#[test]
fn serve_hands_out_no_dot_files_unless_asked() {
    let site = Site::new("");
    for name in [".env", ".git/config", "sub/.env", ".well-known/acme", ".well-known/.key", "sub/a.txt"] {
        site.write(format!("html/{name}"), "content");
    }
    let dir = site.dir().join("html").display().to_string();
    let get = |addr, path: &str| {
        let answer = raw(addr, format!("GET {path} HTTP/1.0\r\n\r\n"));
        String::from_utf8_lossy(&answer).into_owned()
    };
    let is = |addr, path: &str, status: &str| {
        let answer = get(addr, path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    };
    let port = free_port();
    let printed =
        while_it_serves(&["serve", &dir, "--listen", &port.to_string(), "--access-log"], port, |addr| {
            for path in
                ["/.env", "/.git/config", "/.git/", "/sub/.env", "/.well-known/.key", "/%2eenv", "//.env"]
            {
                is(addr, path, "404");
            }
            is(addr, "/.well-known/acme", "200");
            is(addr, "/sub/a.txt", "200");
            let listing = get(addr, "/");
            assert!(listing.contains("<a href=\"sub/\">sub/</a>") && !listing.contains(".env"), "{listing}");
        });
    assert!(printed.contains("\"GET /sub/a.txt HTTP/1.0\" 200"), "{printed}");
    let port = free_port();
    let printed =
        while_it_serves(&["serve", &dir, "--listen", &port.to_string(), "--dot-files"], port, |addr| {
            is(addr, "/.env", "200");
            is(addr, "/.git/config", "200");
        });
    assert!(!printed.contains("\"GET"), "{printed}");
}

#[test]
fn serve_on_all_addresses_says_which_can_be_opened() {
    let port = free_port();
    let listen = format!("0.0.0.0:{port}");
    let mut others = Vec::new();
    let printed = while_it_serves(&["serve", "--listen", &listen], port, |_| {
        others = nix::ifaddrs::getifaddrs()
            .expect("interfaces")
            .filter_map(|i| Some(i.address?.as_sockaddr_in()?.ip()))
            .filter(|ip| !ip.is_loopback())
            .collect();
    });
    assert!(printed.contains(&format!(" http://localhost:{port}/\n")), "{printed}");
    for ip in others {
        assert!(printed.contains(&format!("  and http://{ip}:{port}/\n")), "{printed}");
    }
}

#[test]
fn a_printed_configuration_starts() {
    let site = Site::new("");
    site.write("html/index.html", "of the folder");
    let dir = site.dir().join("html").display().to_string();
    for (args, text) in [
        (vec!["serve", "--print-config", "--listen"], "<html"),
        (vec!["serve", dir.as_str(), "--print-config", "--listen"], "of the folder"),
    ] {
        let port = free_port();
        let output = Command::new(program())
            .args(&args)
            .arg(port.to_string())
            .env("TMPDIR", site.dir())
            .output()
            .expect("runs");
        let conf = site.write("printed.conf", String::from_utf8_lossy(&output.stdout)).display().to_string();
        while_it_serves(&["-c", &conf, "-e", "stderr"], port, |addr| {
            let answer = raw(addr, b"GET / HTTP/1.0\r\n\r\n");
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.contains(text), "{answer}");
        });
    }
}

/// The folder that is served is the one that was named, whatever its name means in a configuration.
#[test]
fn folders_of_any_name_are_served() {
    let site = Site::new("");
    site.write("html/index.html", "outside");
    let outside = site.dir().join("html").display().to_string();
    for name in ["$arg_x", "${arg_x}", "a b;c", "{a}", "#a", "a\"b\\\\n'"] {
        let dir = site.dir().join(name);
        std::fs::create_dir(&dir).expect("a folder");
        std::fs::write(dir.join("index.html"), "inside").expect("a file");
        let port = free_port();
        let dir = dir.display().to_string();
        while_it_serves(&["serve", &dir, "--listen", &port.to_string()], port, |addr| {
            for args in ["", &format!("?x={outside}"), "?x=/"] {
                let answer = raw(addr, format!("GET /{args} HTTP/1.0\r\n\r\n"));
                let answer = String::from_utf8_lossy(&answer);
                assert!(answer.ends_with("inside"), "{name} {args}: {answer}");
            }
        });
    }
}

#[test]
fn proxy_passes_to_an_application() {
    let up = Origin::start(|asked| {
        let told = format!("{} {} {}", asked.target(), asked.field("Host"), asked.text.len());
        asked.answer("200 OK", "", &told)
    });
    let port = free_port();
    let output =
        Command::new(program()).args(["proxy", "8099", "https://x.test/y/", "--print-config"]).output();
    let text = String::from_utf8_lossy(&output.expect("runs").stdout).into_owned();
    assert!(
        text.contains("listen 127.0.0.1:8099;") && text.contains("proxy_pass https://application/y/;"),
        "{text}"
    );
    let mut child = Command::new(program())
        .args(["proxy", &port.to_string(), &format!("http://{up}/app/")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut first).expect("a line");
    assert_eq!(first, format!("Passing http://localhost:{port}/ to http://{up}/app/\n"));
    let addr = ([127, 0, 0, 1], port).into();
    wait_for("a server that accepts", || std::net::TcpStream::connect(addr).ok());
    // A body too large for memory goes through a file, which the worker can write.
    let head = "POST /x HTTP/1.0\r\nHost: own.test\r\nContent-Length: 50000\r\n\r\n";
    let answer = raw(addr, [head.as_bytes(), &[b'x'; 50_000]].concat());
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("/app/x own.test 50"), "{answer}");
    kill(child.id() as i32, Signal::SIGINT);
    let code = wait_for("the end", || child.try_wait().expect("child")).code();
    assert_eq!(code, Some(0));
}

/// `forebay ... | head -1`: the reader has gone away before the program prints.
#[test]
fn a_reader_that_has_gone_away_is_no_reason_to_panic() {
    let site = Site::new("events {} http { server { listen 127.0.0.1:%PORT0%; } }");
    let conf = site.dir().join("nginx.conf").display().to_string();
    let port = free_port().to_string();
    let data = site.dir().join("data");
    for args in [
        &["acme", "status", "-c", &conf][..],
        &["help", "proxy"],
        &["proxy", "--print-config", &port, "1"],
        &["serve", "--print-config", &conf],
        &["trust", "--print"],
        &["explain", "-c", &conf],
        &["check", &conf],
        &["fmt", "--diff", &conf],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(program());
        command.args(args).env("XDG_DATA_HOME", &data).stdin(Stdio::null()).stdout(writer);
        let done = command.stderr(Stdio::piped()).output().expect("runs");
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!text.contains("panicked") && done.status.code() != Some(101), "{args:?}: {text}");
    }
    // The server starts all the same.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut serve = Command::new(program());
    let dir = site.dir().display().to_string();
    let args = ["serve", &dir, "--listen", &port];
    let mut child = serve.args(args).stdout(writer).stderr(Stdio::null()).spawn().expect("runs");
    let addr = std::net::SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")));
    wait_for("a server that accepts", || std::net::TcpStream::connect(addr).ok());
    kill(child.id() as i32, Signal::SIGTERM);
    child.wait().expect("an end");
}
