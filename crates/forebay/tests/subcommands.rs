//! `check`, `explain`, `help` and `serve`.

use forebay_testkit::{Done, Origin, P256, Running, Signal, Site, ask, free_port, kill, title, wait_for};
use std::net::{SocketAddr, TcpStream};
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
    let said = site.forebay("-t -p . -c nginx.conf").err;
    assert!(said.lines().next().is_some_and(|first| first.contains("client_max_body_size")), "{said}");
    if nix::unistd::geteuid().is_root() {
        let out = site.forebay("check nginx.conf").out;
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
    // Lines move; names and values do not.
    let in_effect = || {
        let Done { code, out, .. } = explain(&site, "");
        assert_eq!(code, 0, "{out}");
        let (_, levels) = out.split_once("\nstream server ").expect("the servers");
        let words = levels.lines().map(|line| line.split_whitespace().filter(|w| !w.contains("nginx.conf:")));
        words.map(|words| words.collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let run = |args: &str| {
        let Done { code, out, .. } = site.forebay(args);
        (code, out)
    };
    let good = (0, "no errors, no warnings\n".to_owned());
    assert_eq!(run("check nginx.conf"), good);
    let before = in_effect();
    assert_eq!(run("fmt --check nginx.conf").0, 1);
    assert_eq!(run("fmt nginx.conf").0, 0);
    assert_eq!(run("fmt --check nginx.conf").0, 0);
    assert_eq!(run("check nginx.conf"), good);
    assert_eq!(in_effect(), before);
    let text = site.read("nginx.conf");
    assert!(text.contains("\n    map $remote_addr $log {\n        default 1;\n"), "{text}");
    assert!(text.contains("so_keepalive=on; # first\n\n        set $x \"a b\";\n"), "{text}");
}

/// Runs `explain` on the configuration of a site.
fn explain(site: &Site, more: &str) -> Done {
    site.forebay(&format!("explain {more} -c nginx.conf -p {}", site.dir().display()))
}

/// Returns lines with one blank for several.
fn squeezed(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn explain_names_origins() {
    let site = Site::new("worker_processes 3;\nevents {}\n");
    let Done { code, out, err } = explain(&site, "");
    assert_eq!(code, 0, "{err}");
    let rows = squeezed(&out);
    let row = |name: &str| rows.iter().find(|row| row.starts_with(name)).expect("a row");
    assert_eq!(*row("worker_processes"), format!("worker_processes 3 {}/nginx.conf:1", site.dir().display()));
    assert!(row("worker_connections").contains("detected:"), "{out}");
    assert!(row("daemon").ends_with("on default"), "{out}");
}

#[test]
fn explain_shows_what_holds_in_each_location() {
    let site = Site::new(
        "events {}\nhttp {\n gzip on;\n add_header X-A 1;\n root /outer;\n\
         server {\n server_name one.example;\n listen 127.0.0.1:%PORT0%;\n keepalive_timeout 5s;\n\
         location / {\n root /inner;\n proxy_pass http://127.0.0.1:1;\n\
         location /deep {\n add_header X-B 2;\n }\n }\n }\n}\n",
    );
    let text = explain(&site, "").out;
    let level = |name: &str| {
        let (_, rest) = text.split_once(&format!("\n{name} (")).expect("the level");
        squeezed(rest.split("\n\n").next().unwrap_or_default()).split_off(1)
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
    let all = explain(&site, "--defaults").out;
    assert!(all.contains("client_max_body_size") && !text.contains("client_max_body_size"), "{all}");
}

/// The choice by name is that of the server itself.
#[test]
fn explain_follows_a_session_through_the_stream_block() {
    let site = Site::new(
        "events {}\nhttp { server { listen 127.0.0.1:%PORT1%; } }\nstream {\n\
         ssl_certificate %DIR%/c.crt; ssl_certificate_key %DIR%/c.key;\n proxy_timeout 1h;\n\
         upstream pool { server 127.0.0.1:5432; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name a.example; proxy_pass pool; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name ~^b\\d+\\.example$; return b; }\n\
         server { listen 127.0.0.1:%PORT0% udp; proxy_pass 127.0.0.1:53; proxy_responses 1; }\n\
         server { listen 127.0.0.1:%PORT2%; pass 127.0.0.1:%PORT1%; }\n}\n",
    );
    site.certificate("c", P256, "a", "");
    let explain = |more: &str| {
        let Done { code, out, err } = explain(&site, more);
        (code, out, err)
    };
    let place = |line: u32| format!("{}/nginx.conf:{line}", site.dir().display());
    for (more, server, line, content) in [
        ("--sni b12.example", "by the name b12.example", 8, "return"),
        ("--sni a.example", "by the name a.example", 7, "proxy_pass"),
        ("--sni c.example", "no server has the name c.example", 7, "proxy_pass"),
        ("", "the default of the address", 7, "proxy_pass"),
    ] {
        let (code, text, errors) = explain(&format!("tls://{} {more}", site.addr(0)));
        assert_eq!(code, 0, "{errors}");
        let last = text.lines().filter(|l| l.starts_with("    server ")).find(|l| l.contains(server));
        assert!(last.is_some_and(|l| l.ends_with(&place(line))), "{server}: {text}");
        let handler = text.split("\nCONTENT\n").nth(1).and_then(|rest| rest.lines().next());
        assert!(handler.is_some_and(|l| l.trim().starts_with(content)), "{content}: {text}");
    }
    // The port has a socket for each protocol.
    let (_, text, errors) = explain(&format!("udp://{}", site.addr(0)));
    assert!(text.contains("1  the session ends after so many answers to each datagram"), "{text} {errors}");
    assert!(text.contains(&format!("listener  {} udp", site.addr(0))), "{text}");
    let (_, text, errors) = explain(&format!("tcp://{}", site.addr(2)));
    assert!(text.contains(&format!("{}  of http", site.addr(1))), "{text} {errors}");
    let (code, _, errors) = explain(&format!("tcp://{}", site.addr(1)));
    assert!(code == 1 && errors.contains("http listens there"), "{errors}");
    let (_, text, _) = explain("");
    let (_, level) = text.split_once("\nstream server a.example (").expect("a level");
    assert!(squeezed(level).contains(&format!("proxy_timeout 1h {}", place(5))), "{text}");
}

/// Starts a subcommand that listens at a port.
fn start(site: &Site, args: &[&str], port: u16) -> (Running, SocketAddr) {
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    (Running::start_at(&mut site.subcommand(args), addr), addr)
}

/// Asks for a page by HTTP/1.0.
fn get(addr: SocketAddr, target: &str) -> String {
    ask(addr, format!("GET {target} HTTP/1.0\r\n\r\n"))
}

#[test]
fn serve_runs_the_demo_and_cleans_up() {
    let (port, site) = (free_port(), Site::new(""));
    let (mut server, addr) = start(&site, &["serve", "--listen", &port.to_string()], port);
    assert!(
        server.out().starts_with(&format!("Serving the demo site on http://localhost:{port}/\n")),
        "{}",
        server.out()
    );
    let answer = get(addr, "/");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let title = title(server.pid());
    assert!(title.starts_with("nginx: master process "), "{title}");
    let conf = std::fs::read_dir(site.dir()).expect("temporary directory").flatten().find(|entry| {
        let conf = std::fs::read_to_string(entry.path().join("nginx.conf")).unwrap_or_default();
        conf.contains("forebay serve") && conf.contains(&format!(":{port};"))
    });
    let directory = conf.expect("its private directory").path();
    let code = server.end(Signal::SIGINT);
    assert_eq!((code, server.err().as_str()), (Some(0), ""));
    assert!(!directory.exists(), "removed at the end");
}

/// Runs a subcommand with these arguments while `work` does, and gives what it printed.
fn while_it_serves(args: &[&str], port: u16, work: impl FnOnce(SocketAddr)) -> String {
    let site = Site::new("");
    let (mut server, addr) = start(&site, args, port);
    work(addr);
    server.end(Signal::SIGINT);
    server.out()
}

#[test]
fn serve_hands_out_no_dot_files_unless_asked() {
    let site = Site::new("");
    for name in [".env", ".git/config", "sub/.env", ".well-known/acme", ".well-known/.key", "sub/a.txt"] {
        site.write(format!("html/{name}"), "content");
    }
    let dir = site.dir().join("html").display().to_string();
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
        ("serve --print-config --listen".to_owned(), "<html"),
        (format!("serve {dir} --print-config --listen"), "of the folder"),
    ] {
        let port = free_port();
        let conf =
            site.write("printed.conf", site.forebay(&format!("{args} {port}")).out).display().to_string();
        while_it_serves(&["-c", &conf, "-e", "stderr"], port, |addr| {
            let answer = get(addr, "/");
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
                let answer = get(addr, &format!("/{args}"));
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
    let (port, site) = (free_port(), Site::new(""));
    let text = site.forebay("proxy 8099 https://x.test/y/ --print-config").out;
    let lines = ["listen 127.0.0.1:8099;", "proxy_pass https://application/y/;"];
    assert!(text.contains(lines[0]) && text.contains(lines[1]), "{text}");
    let args = ["proxy", &port.to_string(), &format!("http://{up}/app/")];
    let (mut proxy, addr) = start(&site, &args, port);
    assert!(
        proxy.out().starts_with(&format!("Passing http://localhost:{port}/ to http://{up}/app/\n")),
        "{}",
        proxy.out()
    );
    // A body too large for memory goes through a file, which the worker can write.
    let head = "POST /x HTTP/1.0\r\nHost: own.test\r\nContent-Length: 50000\r\n\r\n";
    let answer = ask(addr, [head.as_bytes(), &[b'x'; 50_000]].concat());
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("/app/x own.test 50"), "{answer}");
    assert_eq!(proxy.end(Signal::SIGINT), Some(0));
}

/// `forebay ... | head -1`: the reader has gone away before the program prints.
#[test]
fn a_reader_that_has_gone_away_is_no_reason_to_panic() {
    let site = Site::new("events {} http { server { listen 127.0.0.1:%PORT0%; } }");
    let port = free_port();
    let unread = |args: &str| {
        let (_, writer) = std::io::pipe().expect("a pipe");
        let mut command = site.subcommand(args.split(' '));
        command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().expect("runs")
    };
    for args in [
        "acme status -c nginx.conf",
        "help proxy",
        &format!("proxy --print-config {port} 1"),
        "serve --print-config nginx.conf",
        "trust --print",
        "explain -c nginx.conf",
        "check nginx.conf",
        "fmt --diff nginx.conf",
    ] {
        let done = unread(args).wait_with_output().expect("an end");
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!text.contains("panicked") && done.status.code() != Some(101), "{args}: {text}");
    }
    // The server starts all the same.
    let mut child = unread(&format!("serve . --listen {port}"));
    wait_for("a server that accepts", || TcpStream::connect(("127.0.0.1", port)).ok());
    kill(child.id() as i32, Signal::SIGTERM);
    child.wait().expect("an end");
}

/// Runs a program on a terminal of its own, waits for its question and types `^C`. Prints the signal by which it ended, and whether the
/// terminal shows again what is typed.
const INTERRUPT: &str = "
import os, pty, signal, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    # Whoever runs the tests in the background may ignore it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
said = b''
while b'assword' not in said:
    said += os.read(terminal, 1024)
os.write(terminal, b'secr\\x03')
_, status = os.waitpid(pid, 0)
print(os.WTERMSIG(status), bool(termios.tcgetattr(terminal)[3] & termios.ECHO))
";

#[test]
fn an_interrupted_password_leaves_the_terminal_as_it_was() {
    let dir = tempfile::tempdir().expect("a directory");
    let users = dir.path().join("users");
    let mut python = Command::new("python3");
    let done = Done::of(python.args(["-c", INTERRUPT, crate::PROGRAM, "passwd"]).arg(&users).arg("ann"));
    assert_eq!((done.code, done.out.trim()), (0, "2 True"), "{}", done.err);
    assert!(!users.exists());
}
