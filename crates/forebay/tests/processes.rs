//! Start, stop, reload, logs, upgrade, and a worker that dies.

use forebay_testkit::{
    DEADLINE, Server, Signal, Site, alive, children, kill, program, quit, raw, title, wait_for, wait_until,
};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

forebay_testkit::cases!("cases/processes.cases":
    stop_by_option, reload_keeps_the_worker_and_a_bad_file_changes_nothing);

const CONF: &str = "worker_processes 2;\nerror_log logs/error.log notice;\nevents {}\nhttp { access_log \
                    logs/access.log; server { listen 127.0.0.1:%PORT0%; listen unix:%DIR%/web.sock; location \
                    / { return 200 \"one\\n\"; } } }\n";

fn one_worker(server: &Server, master: i32) -> i32 {
    wait_for("one worker", || match server.workers(master).as_slice() {
        [pid] => Some(*pid),
        _ => None,
    })
}

#[test]
fn titles_pid_file_and_graceful_end() {
    let mut server = Server::start(CONF);
    let pid = server.pid();
    assert_eq!(server.read("logs/nginx.pid"), format!("{pid}\n"));
    assert!(title(pid).starts_with("nginx: master process "), "{}", title(pid));
    assert!(title(pid).ends_with("-c nginx.conf -g daemon off;"), "{}", title(pid));
    let worker = one_worker(&server, pid);
    assert_eq!(title(worker), "nginx: worker process");
    assert!(server.get("/").ends_with("one\n"));
    assert!(server.dir().join("web.sock").exists());
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.wait_end(), Some(0));
    assert!(!alive(worker));
    assert!(!server.dir().join("logs/nginx.pid").exists());
    assert!(!server.dir().join("web.sock").exists());
    let log = server.error_log();
    for text in
        ["using the \"epoll\" event method", "start worker processes", "gracefully shutting down", ": exit\n"]
    {
        assert!(log.contains(text), "{text} in {log}");
    }
    assert!(log.contains(&format!("worker process {worker} exited with code 0")), "{log}");
}

#[test]
fn daemon_leaves_the_terminal() {
    let server = Server::start_daemon(CONF);
    let pid = server.pid();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("alive");
    let session = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(3)).map(str::to_owned);
    assert_eq!(session, Some(pid.to_string()), "a session of its own");
    assert!(server.get("/").ends_with("one\n"));
}

#[test]
fn reload_opens_and_closes_addresses() {
    let conf = CONF.replace("listen 127", "listen 127.0.0.1:%PORT1%; listen 127");
    let server = Server::start(&conf);
    wait_for("both addresses", || TcpStream::connect(server.addr(1)).ok());
    server.reload_with(conf.replace("listen 127.0.0.1:%PORT1%;", ""));
    wait_until("a closed address", || TcpStream::connect(server.addr(1)).is_err());
    server.reload_with(conf);
    wait_for("the address again", || TcpStream::connect(server.addr(1)).ok());
}

#[test]
fn a_dead_worker_is_replaced_and_connections_wait() {
    let server = Server::start(CONF);
    let pid = server.pid();
    let worker = one_worker(&server, pid);
    kill(worker, Signal::SIGKILL);
    assert!(server.get("/").ends_with("one\n"), "accepted by the next worker");
    assert_ne!(one_worker(&server, pid), worker);
    server.wait_for_log(format!("[alert] {pid}#{pid}: worker process {worker} exited on signal 9"), 1);
}

/// The worker's end of the socket between it and its master; `None` where looking into processes is forbidden.
fn control_socket(master: i32, worker: i32) -> Option<OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let process = pidfd_open(Pid::from_raw(worker)?, PidfdFlags::empty()).ok()?;
    let list = std::fs::read_dir(format!("/proc/{worker}/fd")).ok()?;
    let numbers = list.flatten().filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
    let mut fds = numbers.filter_map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).ok());
    // The master made the pair, and no socket of the worker's own has another process at its end.
    fds.find(|fd| {
        let listens = rustix::net::sockopt::socket_acceptconn(fd).unwrap_or(true);
        let peer = rustix::net::sockopt::socket_peercred(fd);
        !listens && peer.is_ok_and(|peer| peer.pid.as_raw_nonzero().get() == master)
    })
}

#[test]
fn messages_of_a_worker_do_not_freeze_the_master() {
    let server = Server::start(CONF);
    let master = server.pid();
    let worker = one_worker(&server, master);
    assert!(server.get("/").ends_with("one\n"), "it has its configuration");
    let Some(socket) = control_socket(master, worker) else {
        return println!("skipped: no right to look into the worker process");
    };
    let send = |socket: &OwnedFd, bytes: &[u8]| assert_eq!(rustix::io::write(socket, bytes), Ok(bytes.len()));
    // A reason that breaks its line, and the first byte of a message.
    send(&socket, b"\x04\x0f\x00\x00\x00no\n[emerg] \x1b[2J\x03");
    server.wait_for_log(format!("worker process {worker}: no\\x0A[emerg] \\x1B[2J"), 1);
    server.signal(Signal::SIGUSR1);
    // Two lines of the master; whether the worker still lives is not said.
    server.wait_for_log("reopening logs", 2);
    // The rest of the message does not come.
    server.wait_for_log(format!("worker process {worker} sent a broken message and is killed"), 1);
    let next = wait_for("another worker", || Some(one_worker(&server, master)).filter(|pid| *pid != worker));
    assert!(server.get("/").ends_with("one\n"), "it has its configuration");
    // 4 GiB are announced.
    let socket = wait_for("its socket", || control_socket(master, next));
    send(&socket, b"\x04\xff\xff\xff\xff");
    server.wait_for_log(format!("worker process {next} sent a broken message and is killed"), 1);
    wait_until("another worker", || one_worker(&server, master) != next);
    assert!(server.get("/").ends_with("one\n"));
}

#[test]
fn logs_are_reopened() {
    let server = Server::start(CONF);
    server.get("/");
    let logs = server.dir().join("logs");
    wait_until("a line", || !server.read("logs/access.log").is_empty());
    std::fs::rename(logs.join("access.log"), logs.join("access.log.1")).expect("rename");
    server.signal(Signal::SIGUSR1);
    wait_until("a new file", || logs.join("access.log").exists());
    server.wait_for_log("reopening logs", 3);
    // Until a thread has been told, its lines go to the old file; none is lost.
    let mut requests = 1;
    wait_for("a line in the new file", || {
        server.get("/");
        requests += 1;
        (!server.read("logs/access.log").is_empty()).then_some(())
    });
    wait_for("all lines", || {
        let lines = |name: &str| server.read(name).lines().count();
        (lines("logs/access.log") + lines("logs/access.log.1") == requests).then_some(())
    });
}

#[test]
fn the_worker_survives_a_killed_master() {
    let mut server = Server::start(CONF);
    let pid = server.pid();
    let worker = one_worker(&server, pid);
    // It serves, so it has its configuration and its sockets.
    assert!(server.get("/").ends_with("one\n"));
    kill(pid, Signal::SIGKILL);
    server.wait_end();
    server.wait_for_log("the master process is gone", 1);
    assert!(server.get("/").ends_with("one\n"));
    kill(worker, Signal::SIGQUIT);
    wait_until("the end of the worker", || !alive(worker));
}

/// Connects in a loop while `work` runs; gives the number of answers, and panics on a refused connection.
fn under_load(addr: SocketAddr, work: impl FnOnce()) -> usize {
    let (done, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let answer = raw(addr, b"GET / HTTP/1.0\r\n\r\n");
                assert!(answer.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
                answers.fetch_add(1, Ordering::SeqCst);
            }
        });
        work();
        done.store(true, Ordering::SeqCst);
    });
    answers.into_inner()
}

/// Sends requests on one connection until the server announces its end or `done` is set. Panics if it closes without a word.
fn requests_on_a_kept_connection(addr: SocketAddr, done: &AtomicBool) -> usize {
    use std::io::{BufRead, BufReader, Read, Write};
    let mut stream = BufReader::new(TcpStream::connect(addr).expect("connect"));
    stream.get_ref().set_read_timeout(Some(DEADLINE)).expect("timeout");
    let mut answers = 0;
    while !done.load(Ordering::SeqCst) {
        stream.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("an open connection");
        let (mut length, mut last) = (0, false);
        loop {
            let mut line = String::new();
            assert_ne!(stream.read_line(&mut line).expect("a line"), 0, "closed after {answers} answers");
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().expect("a number");
            }
            last |= line == "connection: close";
            if line.is_empty() {
                break;
            }
        }
        stream.read_exact(&mut vec![0; length]).expect("the body");
        answers += 1;
        if last {
            break;
        }
    }
    answers
}

/// A connection that is kept open ends with an answer that says so: a request is never lost to a close that crosses it.
#[test]
fn an_upgrade_answers_requests_on_kept_connections() {
    let server = Server::start_daemon(CONF);
    let (done, addr) = (AtomicBool::new(false), server.addr(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        requests_on_a_kept_connection(addr, &done);
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            let old = server.pid();
            let new = server.successor(old);
            one_worker(&server, new);
            quit(old);
        }
        done.store(true, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().expect("no request was lost"));
    });
}

#[test]
fn upgrade_and_way_back_refuse_nobody() {
    let server = Server::start_daemon(CONF);
    let old = server.pid();
    let answers = under_load(server.addr(0), || {
        let new = server.successor(old);
        assert_eq!(server.read("logs/nginx.pid.oldbin"), format!("{old}\n"));
        one_worker(&server, new);
        kill(old, Signal::SIGWINCH);
        wait_until("the end of the old worker", || server.workers(old).is_empty());
        // The way back: the old master takes a worker again, the new one goes.
        kill(old, Signal::SIGHUP);
        one_worker(&server, old);
        kill(new, Signal::SIGQUIT);
        wait_for("the old pid file", || server.pid_in_file().filter(|pid| *pid == old));
        assert!(server.dir().join("web.sock").exists());

        // And for good.
        let new = server.successor(old);
        one_worker(&server, new);
        quit(old);
        assert_eq!(server.pid_in_file(), Some(new));
        assert!(!server.dir().join("logs/nginx.pid.oldbin").exists());
        assert!(server.dir().join("web.sock").exists());
    });
    assert!(answers > 0);
}

/// An orphan's parent is process 1, which has started this daemon: it is a daemon nevertheless, as in nginx.
#[test]
fn a_daemon_of_process_1_upgrades() {
    let site = Site::new(CONF);
    // The shell is process 1 of its namespace, and all that it starts ends with it. A pipe that nothing writes to is its pause.
    // The daemon's starter ends before the daemon has written its process id, as nginx's does.
    let script = "cd $2; mkfifo never; n=0
        wait_until() { until \"$@\" || [ $n = 1500 ]; do n=$((n + 1)); read -r -t 0.02 line <>never; done; }
        $1 -p $2 -c nginx.conf || exit; wait_until [ -s logs/nginx.pid ]; kill -USR2 $(cat logs/nginx.pid)
        wait_until grep -qE 'start new binary process|signal is ignored' logs/error.log; true";
    let output = std::process::Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", script, "bash"])
        .arg(program())
        .arg(site.dir())
        .env_remove("NGINX")
        .output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI has to run it as root: {}",
            site.read("logs/error.log")
        );
        return println!("skipped: a namespace of processes needs root");
    };
    let log = site.read("logs/error.log");
    let lines = ["received from 1, changing binary", "start new binary process"];
    assert!(lines.iter().all(|line| log.contains(line)), "{log}{output:?}");
}

#[test]
fn reloads_refuse_nobody() {
    let server = Server::start(CONF);
    let answers = under_load(server.addr(0), || {
        for i in 1..=20 {
            server.reload();
            server.wait_for_log(": reconfiguring", i);
        }
    });
    assert!(answers > 0);
}

#[test]
fn one_process_without_a_master() {
    let mut server = Server::start(format!("master_process off;\n{CONF}"));
    let pid = server.pid();
    assert!(server.workers(pid).is_empty());
    assert!(server.get("/").ends_with("one\n"));
    server.reload_with(format!("master_process off;\n{}", CONF.replace("one", "two")));
    wait_until("the new configuration", || server.get("/").ends_with("two\n"));
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.wait_end(), Some(0));
}

#[test]
fn more_threads_come_with_the_next_worker() {
    let server = Server::start(CONF);
    let pid = server.pid();
    let worker = one_worker(&server, pid);
    server.reload_with(CONF.replace("worker_processes 2", "worker_processes 4"));
    server.wait_for_log("\"worker_processes\" changed from 2 to 4", 1);
    // No socket is left without a thread: every connection is answered.
    (0..20).for_each(|_| assert!(server.get("/").ends_with("one\n")));
    kill(worker, Signal::SIGQUIT);
    wait_until("the next worker", || one_worker(&server, pid) != worker);
    (0..20).for_each(|_| assert!(server.get("/").ends_with("one\n")));
}

/// The running nginx hands its sockets to this program: the change of server as an upgrade.
#[test]
fn takes_over_from_nginx() {
    let Ok(nginx) = std::env::var("FOREBAY_TEST_NGINX") else {
        println!("skipped: FOREBAY_TEST_NGINX names no nginx");
        return;
    };
    // Packaged builds of nginx have paths of their own for what is not named here.
    let site = Site::new(format!("pid logs/nginx.pid;\n{CONF}"));
    let program = site.dir().join("nginx");
    std::fs::copy(&nginx, &program).expect("copy");
    let started =
        site.command(&program.to_string_lossy(), &["-e", "logs/error.log"]).status().expect("starts");
    assert!(started.success());
    let old = wait_for("a pid file", || site.pid_in_file());
    wait_for("nginx", || TcpStream::connect(site.addr(0)).ok());
    let new = {
        // The program file of a running process is replaced, not written to.
        let next = site.dir().join("next");
        std::fs::copy(crate::PROGRAM, &next).expect("copy");
        std::fs::rename(&next, &program).expect("rename");
        under_load(site.addr(0), || {
            kill(old, Signal::SIGUSR2);
            let new = wait_for("a new master", || site.pid_in_file().filter(|pid| *pid != old));
            wait_for("its worker", || children(new).first().copied());
            kill(old, Signal::SIGQUIT);
            wait_until("the end of nginx", || !alive(old));
        });
        site.pid_in_file().expect("a pid file")
    };
    let answer = raw(site.addr(0), b"GET / HTTP/1.0\r\n\r\n");
    assert!(String::from_utf8_lossy(&answer).contains("Server: forebay"));
    kill(new, Signal::SIGQUIT);
    wait_until("the end", || !alive(new));
}

/// nginx: env. What is not named stays outside; a setting of ours can be replaced.
#[test]
fn the_environment_of_the_worker_is_what_is_named() {
    for (more, tunables) in [
        ("", "glibc.malloc.tcache_count=512"),
        ("env GLIBC_TUNABLES=glibc.malloc.tcache_count=9;", "glibc.malloc.tcache_count=9"),
    ] {
        let server = Server::start(format!(
            "pid logs/nginx.pid; error_log logs/error.log; env A=one; env PATH; {more}\n\
             events {{}} http {{ access_log off; server {{ listen 127.0.0.1:%PORT0%; }} }}"
        ));
        let worker = one_worker(&server, server.pid());
        let environment = std::fs::read_to_string(format!("/proc/{worker}/environ")).expect("environ");
        let has = |name: &str| environment.split('\0').find_map(|v| v.strip_prefix(name)?.strip_prefix('='));
        assert_eq!(has("A"), Some("one"));
        assert_eq!(has("PATH"), std::env::var("PATH").ok().as_deref());
        assert_eq!(has("GLIBC_TUNABLES"), Some(tunables));
        assert_eq!(has("CARGO_MANIFEST_DIR"), None, "{environment}");
    }
}

/// The worker process keeps one capability if connections to upstreams may come from foreign addresses, and none otherwise.
#[test]
fn a_worker_keeps_the_capability_for_foreign_addresses() {
    // Without root's rights the worker is the same user, and has none to keep.
    let root = nix::unistd::geteuid().is_root();
    let user = if root { "user daemon;" } else { "" };
    let capabilities = |bind: &str| {
        let server = Server::start(format!(
            "{user} worker_processes 1; error_log logs/error.log; pid logs/nginx.pid; events {{}}\n\
             stream {{ server {{ listen 127.0.0.1:%PORT0%; proxy_pass 127.0.0.1:1; {bind} }} }}"
        ));
        // A worker that has served a connection has become its user.
        let mut stream = server.connect();
        std::io::Read::read_to_end(&mut stream, &mut Vec::new()).expect("the end");
        let worker = server.worker();
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).expect("a process");
        let line = status.lines().find_map(|l| l.strip_prefix("CapEff:")).expect("a line");
        u64::from_str_radix(line.trim(), 16).expect("a number")
    };
    const NET_RAW: u64 = 1 << 13;
    assert_eq!(capabilities("proxy_bind $remote_addr transparent;"), if root { NET_RAW } else { 0 });
    assert_eq!(capabilities("proxy_bind off;"), 0);
}
