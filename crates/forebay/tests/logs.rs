//! Access logs: what is in them when a worker is killed, and how lines leave.

use forebay_testkit::{DEADLINE, Server, Signal, Site, http, kill, quit, server, wait_for, wait_until};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

forebay_testkit::cases!("cases/logs.cases":
    one_process_keeps_its_lines, numbers_change_with_a_reload, a_request_under_way_keeps_its_log_over_a_reload,
    wrong_forms_and_tags_are_refused, errors_of_the_system_are_logged_as_in_nginx);

fn conf(log: &str) -> String {
    format!(
        "worker_processes 2;\nerror_log logs/error.log notice;\nevents {{}}\nhttp {{ log_format line '$request_uri \
         $status $body_bytes_sent end'; keepalive_requests 1000000; access_log {log}; server {{ listen 127.0.0.1:%PORT0%; \
         location / {{ return 200 \"hello\"; }} }} }}\n"
    )
}

fn worker(server: &Server, not: i32) -> i32 {
    wait_for("a worker", || server.workers(server.pid()).into_iter().find(|pid| *pid != not))
}

/// Sends requests on a connection as long as it lives; gives those that got a whole answer, which are at most `most`.
fn converse(addr: SocketAddr, name: &str, most: usize, answered: &AtomicUsize) -> Vec<String> {
    let Ok(stream) = TcpStream::connect_timeout(&addr, DEADLINE) else { return Vec::new() };
    let _ = stream.set_nodelay(true);
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let mut reader = BufReader::new(&stream);
    let mut good = Vec::new();
    let mut answer = Vec::new();
    while good.len() < most {
        let uri = format!("/{name}-{}", good.len());
        let request = format!("GET {uri} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        if (&stream).write_all(request.as_bytes()).is_err() {
            break;
        }
        answer.clear();
        while let Ok(1..) = reader.read_until(b'\n', &mut answer) {
            if answer.ends_with(b"\r\n\r\n") {
                break;
            }
        }
        let mut body = [0; 5];
        if reader.read_exact(&mut body).is_err() {
            break;
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n") && &body == b"hello");
        good.push(uri);
        answered.fetch_add(1, Ordering::Relaxed);
    }
    good
}

/// Kills the worker again and again under load. Then every request that was answered is in the log, whole and at most
/// twice.
fn killed_under_load(log: &str, read: impl Fn(&Site) -> String) {
    const KILLS: usize = 6;
    let mut server = Server::start(conf(log));
    let addr = server.addr(0);
    let (done, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let connections: Vec<Vec<String>> = std::thread::scope(|scope| {
        let client = |c: usize| {
            let (done, answered) = (&done, &answered);
            scope.spawn(move || {
                let mut all = Vec::new();
                for n in 0.. {
                    if done.load(Ordering::SeqCst) {
                        break;
                    }
                    all.push(converse(addr, &format!("{c}-{n}"), 2000, answered));
                }
                all
            })
        };
        let clients: Vec<_> = (0..4).map(client).collect();
        let mut last = 0;
        for _ in 0..KILLS {
            let before = answered.load(Ordering::Relaxed);
            wait_until("some answers", || answered.load(Ordering::Relaxed) > before + 700);
            last = worker(&server, last);
            kill(last, Signal::SIGKILL);
        }
        worker(&server, last);
        let before = answered.load(Ordering::Relaxed);
        wait_until("some answers", || answered.load(Ordering::Relaxed) > before + 100);
        done.store(true, Ordering::SeqCst);
        clients.into_iter().flat_map(|c| c.join().expect("no panic")).collect()
    });
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.wait_end(), Some(0));
    let text = read(&server.site);
    assert!(text.ends_with('\n'));
    let mut lines: HashMap<&str, usize> = HashMap::new();
    for line in text.lines() {
        let uri = line.strip_suffix(" 200 5 end").unwrap_or_else(|| panic!("torn: {line:?}"));
        assert!(uri.starts_with('/') && uri.matches('-').count() == 2, "torn: {line:?}");
        *lines.entry(uri).or_default() += 1;
    }
    let (mut missing, mut twice) = (Vec::new(), 0);
    for connection in &connections {
        for (i, uri) in connection.iter().enumerate() {
            match lines.get(uri.as_str()) {
                Some(1) => {}
                Some(2) => twice += 1,
                Some(n) => panic!("{uri} is there {n} times"),
                // The kill came between the answer and its line, which is the next thing that a thread makes.
                None if i + 1 == connection.len() => missing.push(uri),
                None => panic!("{uri} is lost"),
            }
        }
    }
    let error_log = server.error_log();
    assert_eq!(error_log.matches("exited on signal 9").count(), KILLS, "{error_log}");
    assert!(!error_log.contains("broken log buffers") && !error_log.contains("shared"), "{error_log}");
    println!("{log}: {} answered, {} missing, {twice} twice", answered.into_inner(), missing.len());
    assert!(missing.len() <= KILLS * 2, "more than one for each thread: {missing:?}");
    assert!(!log.contains("buffer") || error_log.contains("left were written to"), "{error_log}");
}

#[test]
fn a_killed_worker_loses_no_line_of_a_buffer() {
    killed_under_load("logs/a.log line buffer=64k", |site| site.read("logs/a.log"));
}

#[test]
fn a_killed_worker_loses_no_line_of_a_compressed_buffer() {
    killed_under_load("logs/a.log line buffer=64k gzip=3", |site| {
        let out = Command::new("gzip").arg("-dc").arg(site.dir().join("logs/a.log")).output().expect("gzip");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    });
}

#[test]
fn a_killed_worker_loses_no_line_without_a_buffer() {
    killed_under_load("logs/a.log line", |site| site.read("logs/a.log"));
}

/// Lines that a killed worker left go to the file that is open after USR1.
#[test]
fn reopened_files_get_what_is_left() {
    let mut server = Server::start(conf("logs/a.log line buffer=64k"));
    assert!(server.get("/1").ends_with("hello"));
    let logs = server.dir().join("logs");
    std::fs::rename(logs.join("a.log"), logs.join("a.log.1")).expect("rename");
    server.signal(Signal::SIGUSR1);
    wait_until("the old buffer", || server.read("logs/a.log.1") == "/1 200 5 end\n");
    // Each thread opens for itself: what one that has not done so writes is in the old file.
    let old = logs.join("a.log.1");
    let holds = |fd: std::io::Result<std::fs::DirEntry>| {
        fd.is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|file| file == old))
    };
    let files = format!("/proc/{}/fd", worker(&server, 0));
    wait_until("the new file in all threads", || !std::fs::read_dir(&files).expect("a worker").any(holds));
    assert!(server.get("/2").ends_with("hello"));
    assert_eq!(server.read("logs/a.log"), "");
    kill(worker(&server, 0), Signal::SIGKILL);
    wait_until("the lines left", || server.read("logs/a.log") == "/2 200 5 end\n");
    assert!(server.get("/3").ends_with("hello"));
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.wait_end(), Some(0));
    assert_eq!(server.read("logs/a.log"), "/2 200 5 end\n/3 200 5 end\n");
    assert_eq!(server.read("logs/a.log.1"), "/1 200 5 end\n");
}

#[test]
fn an_upgrade_keeps_lines_and_both_masters_save_them() {
    let server = Server::start_daemon(conf("logs/a.log line buffer=64k"));
    let old = server.pid();
    let worker_of = |master: i32| wait_for("a worker", || server.workers(master).first().copied());
    let has = |line: &str| server.read("logs/a.log").contains(&format!("{line} 200 5 end\n")).then_some(());
    assert!(server.get("/old").ends_with("hello"));
    let new = server.successor(old);
    let workers = [worker_of(old), worker_of(new)];
    // Whichever of the two answers.
    (0..8).for_each(|n| assert!(server.get(format!("/both-{n}")).ends_with("hello")));
    for pid in workers {
        kill(pid, Signal::SIGKILL);
    }
    for line in ["/old", "/both-0", "/both-7"] {
        wait_for("lines left", || has(line));
    }
    quit(old);
    assert!(server.get("/new").ends_with("hello"));
    kill(worker_of(new), Signal::SIGQUIT);
    wait_for("lines at the end of a worker", || has("/new"));
    let text = server.read("logs/a.log");
    assert_eq!(text.lines().count(), 10, "{text}");
    assert!((0..8).all(|n| text.matches(&format!("/both-{n} ")).count() == 1), "{text}");
}

/// A pipe gets whole lines, also from the master when the worker was killed.
#[test]
fn a_pipe_gets_whole_lines() {
    let site = Site::new(conf("logs/pipe line buffer=32k"));
    let path = site.dir().join("logs/pipe");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    let out = std::fs::File::create(site.dir().join("out")).expect("file");
    let mut reader = Command::new("cat").arg(&path).stdout(Stdio::from(out)).spawn().expect("cat");
    let mut server = Server::start_on(site);
    let answered = AtomicUsize::new(0);
    let addr = server.addr(0);
    std::thread::scope(|scope| {
        for c in 0..4 {
            let answered = &answered;
            scope.spawn(move || converse(addr, &format!("{c}-{}", "p".repeat(c * 40)), 1500, answered));
        }
    });
    assert_eq!(answered.load(Ordering::Relaxed), 6000);
    let killed = worker(&server, 0);
    kill(killed, Signal::SIGKILL);
    worker(&server, killed);
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.wait_end(), Some(0));
    assert!(reader.wait().expect("cat").success());
    let text = server.read("out");
    assert!(text.lines().all(|l| l.starts_with('/') && l.ends_with(" 200 5 end")), "torn");
    // The last answer of each thread may have been faster than its line.
    let missing = 6000 - text.lines().count();
    assert!(missing <= 2, "{missing} lines are missing");
}

/// A client that waits for the end of its connection finds the line of its request in the log.
#[test]
fn the_line_is_there_when_the_connection_ends() {
    let server = Server::start(http(
        "log_format u '$uri'; access_log logs/a.log u; server { listen 127.0.0.1:%PORT0%;\n\
         location / { return 200 hello; } location /empty { return 444; } }",
    ));
    for n in 0..300 {
        let path = if n % 3 == 0 { format!("/empty/{n}") } else { format!("/{n}") };
        server.raw(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        assert!(server.read("logs/a.log").ends_with(&format!("{path}\n")), "{path}");
    }
}

/// A thread with little load writes its lines of the error log before the answer, as nginx does.
#[test]
fn the_error_line_is_written_before_the_answer() {
    let server = server("root %DIR%/html;").start();
    for n in 0..20 {
        assert!(server.get(format!("/none{n}")).contains("404 Not Found"));
        assert!(
            server.error_log().contains(&format!("/none{n}\" failed (2: No such file")),
            "{n}: {}",
            server.error_log()
        );
    }
}

/// The usual beginning of formats is written in one piece. It must have the same text as its variables one by one.
#[test]
fn the_usual_beginning_is_what_its_variables_are() {
    const USUAL: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                         \"$http_referer\" \"$http_user_agent\"";
    let server = Server::start(http!(
        "log_format slow '.{USUAL}'; log_format main '{USUAL} \"$http_x_forwarded_for\"';\n\
         log_format json escape=json '{USUAL}'; log_format slowjson escape=json '.{USUAL}';\n\
         access_log logs/a.log; access_log logs/slow.log slow; access_log logs/main.log main;\n\
         access_log logs/json.log json; access_log logs/slowjson.log slowjson;\n\
         server {{ listen 127.0.0.1:%PORT0%; root %DIR%/html; location /t {{ return 200 text; }}\n\
         location /set {{ return 204; }} }}"
    ));
    let requests: [&[u8]; 11] = [
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /t?x=%22 HTTP/1.1\r\nHost: h\r\nUser-Agent: \"quoted\\\" \xc3\xa4 \x7f\r\nConnection: close\r\n\r\n",
        b"GET /t HTTP/1.0\r\nReferer: http://a/\r\nReferer: http://b/\r\nUser-Agent:\r\n\r\n",
        b"GET /t HTTP/1.0\r\nAuthorization: Basic YWxpY2UgIjpw\r\nUser-Agent: agent of some length/1.0\r\n\r\n",
        b"GET /t HTTP/1.0\r\nAuthorization: Bearer x\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n",
        b"HEAD /set HTTP/1.0\r\nReferer: http://a/\r\n\r\n",
        b"GET /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"nonsense\x01\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ];
    for r in requests {
        server.raw(r);
    }
    let log = |name: &str| {
        wait_for(name, || {
            let text = server.read(&format!("logs/{name}.log"));
            (text.lines().count() == requests.len()).then_some(text)
        })
    };
    let (slow, slow_json) = (log("slow"), log("slowjson"));
    for (n, wanted) in slow.lines().enumerate() {
        let wanted = wanted.strip_prefix('.').expect("a dot");
        let at = |text: &str| text.lines().nth(n).expect("line").to_owned();
        assert_eq!(at(&log("a")), wanted);
        let forwarded = if n == 4 { "192.0.2.1" } else { "-" };
        assert_eq!(at(&log("main")), format!("{wanted} \"{forwarded}\""));
        assert_eq!(format!(".{}", at(&log("json"))), at(&slow_json));
    }
    assert!(slow.contains("\"\\x22quoted\\x5C\\x22 \\xC3\\xA4 \\x7F\""), "{slow}");
    assert!(slow.contains("- alice \\x22 ["), "{slow}");
}

/// NGINX Plus 37: an object a line, with the facts of a request as fields; further ones by `error_log_tag`, in both forms.
#[test]
fn error_logs_in_json_and_their_tags() {
    let port = forebay_testkit::free_port();
    let server = Server::start(format!(
        "error_log logs/error.log info; error_log logs/main.json notice json;\nevents {{}}\nhttp {{ server {{ server_name \
         a.test; listen 127.0.0.1:%PORT0%; error_log logs/site.json error format=json; error_log logs/site.log; error_log_tag \
         agent $http_user_agent; error_log_tag place outer; location / {{ proxy_pass http://127.0.0.1:{port}/x; }} location \
         /in {{ error_log_tag place \"in $uri\"; proxy_pass http://127.0.0.1:{port}; }} }} }}\n"
    ));
    server.get_with("/\"", "User-Agent: b\"c\r\n");
    server.get("/in");
    let lines = server.wait_for_lines("logs/site.json", 2);
    let parse = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"))
    };
    let lines: Vec<_> = lines.lines().map(parse).collect();
    let first = &lines[0];
    assert_eq!(first["msg"], "connect() failed while connecting to upstream", "{first}");
    for (name, value) in [
        ("level", "error"),
        ("errtext", "Connection refused"),
        ("client", "127.0.0.1"),
        ("server", "a.test"),
        ("request", "GET /\" HTTP/1.1"),
        ("upstream", &format!("http://127.0.0.1:{port}/x%22")),
        ("agent", "b\"c"),
        ("place", "outer"),
    ] {
        assert_eq!(first[name], value, "{name}: {first}");
    }
    assert_eq!((&first["errno"], &first["pid"]), (&111.into(), &server.worker().into()), "{first}");
    assert!(first["timestamp"].as_str().is_some_and(|t| t.len() == 29 && t.contains('T')), "{first}");
    assert_eq!((&lines[1]["place"], lines[1].get("agent")), (&"in /in".into(), None), "not inherited");
    let text = server.read("logs/site.log");
    assert!(
        text.lines().next().is_some_and(|l| l.ends_with(", agent: \"b\"c\", place: \"outer\"")),
        "{text}"
    );
    let main = server.read("logs/main.json");
    assert!(main.lines().map(parse).any(|line| line["msg"] == "start worker processes"), "{main}");
}
