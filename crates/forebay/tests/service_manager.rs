//! The program under a service manager: messages to it, sockets from it, and reloads that are waited for.

use forebay_testkit::{
    DEADLINE, Server, Signal, Site, alive, ask, body, connect, kill, program, wait_for, wait_until,
};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

const CONF: &str = "pid logs/nginx.pid; error_log logs/error.log notice; worker_processes 2; events {}
http { access_log off; server { listen 127.0.0.1:%PORT0%; location / { return 200 one; } } }";

/// The manager's end: receives messages.
struct Manager {
    socket: UnixDatagram,
    /// Value of `NOTIFY_SOCKET`.
    address: String,
}

impl Manager {
    fn at_path(site: &Site) -> Manager {
        let path = site.dir().join("notify");
        Manager::bound(UnixDatagram::bind(&path).expect("bind"), path.display().to_string())
    }

    /// With a name that has no file.
    fn abstract_name(site: &Site) -> Manager {
        let name = format!("forebay-test{}", site.dir().display());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        Manager::bound(UnixDatagram::bind_addr(&address).expect("bind"), format!("@{name}"))
    }

    fn bound(socket: UnixDatagram, address: String) -> Manager {
        socket.set_read_timeout(Some(DEADLINE)).expect("timeout");
        Manager { socket, address }
    }

    /// Returns the next message, as the values of the named variables; `-` for one that is missing.
    fn next<const N: usize>(&self, names: [&str; N]) -> [String; N] {
        let mut buffer = [0; 4096];
        let count = self.socket.recv(&mut buffer).expect("a message");
        let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
        names.map(|name| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or("-").to_owned()
        })
    }

    fn start(&self, site: &Site, more: &str) -> Child {
        let mut command = site.command(program(), &["-g", &format!("daemon off; {more}")]);
        command.env("NOTIFY_SOCKET", &self.address).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).spawn().expect("starts")
    }
}

fn get(site: &Site) -> String {
    body(&ask(site.addr(0), forebay_testkit::get("/"))).to_owned()
}

fn pid(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("a pid")
}

fn end(mut child: Child) {
    let status = wait_for("the end of the server", || child.try_wait().expect("child"));
    assert!(status.success(), "{status}");
}

/// Every message of a start, a reload, a refused reload and an end, with a master and without.
#[test]
fn start_reloads_and_end_are_reported() {
    for mode in ["", "master_process off;"] {
        let site = Site::new(CONF);
        let manager = if mode.is_empty() { Manager::at_path(&site) } else { Manager::abstract_name(&site) };
        let child = manager.start(&site, mode);
        let own = child.id().to_string();
        let ready = |status: &str| ["1".to_owned(), own.clone(), status.to_owned()];
        let names = ["READY", "MAINPID", "STATUS"];
        assert_eq!(manager.next(names), ready("Serving 1 address with 2 threads"), "{mode}");
        // By now it serves, without a try in vain.
        assert_eq!(get(&site), "one");

        site.write("nginx.conf", CONF.replace("one", "two"));
        kill(pid(&child), Signal::SIGHUP);
        let [reloading, stamp, other] = manager.next(["RELOADING", "MONOTONIC_USEC", "READY"]);
        assert_eq!((reloading.as_str(), other.as_str()), ("1", "-"));
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let age = now.tv_sec * 1_000_000 + now.tv_nsec / 1000 - stamp.parse::<i64>().expect("a number");
        assert!((0..DEADLINE.as_micros() as i64).contains(&age), "{age}");
        assert_eq!(manager.next(names), ready("Serving 1 address with 2 threads"));
        assert_eq!(get(&site), "two");

        let bad = site.write("nginx.conf", "events {} bogus;");
        kill(pid(&child), Signal::SIGHUP);
        assert_eq!(manager.next(["RELOADING"]), ["1"]);
        let reason = format!("unknown directive \"bogus\" in {}:1", bad.display());
        let status = format!("Serving with the former configuration; the new one was refused: {reason}");
        assert_eq!(manager.next(names), ready(&status));
        assert_eq!(get(&site), "two");

        kill(pid(&child), Signal::SIGQUIT);
        assert_eq!(manager.next(["STOPPING", "READY"]), ["1", "-"]);
        end(child);
    }
}

/// A master in the foreground, which nginx does not replace: the manager learns which process is the main one.
#[test]
fn an_upgrade_changes_the_main_process_and_its_way_back_too() {
    let site = Site::new(CONF);
    let manager = Manager::at_path(&site);
    let child = manager.start(&site, "");
    let old = child.id().to_string();
    assert_eq!(manager.next(["READY", "MAINPID"]), ["1".to_owned(), old.clone()]);
    let upgrade = || {
        kill(pid(&child), Signal::SIGUSR2);
        let [ready, new] = manager.next(["READY", "MAINPID"]);
        assert_eq!((ready.as_str(), site.read("logs/nginx.pid").trim()), ("1", new.as_str()));
        assert_ne!(new, old);
        new.parse::<i32>().expect("a pid")
    };
    // The new one gives up: the service goes on with the old one, and is not said to stop.
    let new = upgrade();
    kill(new, Signal::SIGQUIT);
    assert_eq!(manager.next(["MAINPID", "STOPPING"]), [old.clone(), "-".to_owned()]);
    wait_until("the old pid file", || site.read("logs/nginx.pid").trim() == old);

    // The old one ends: no message, since the new one has reported itself.
    let new = upgrade();
    kill(pid(&child), Signal::SIGQUIT);
    end(child);
    assert_eq!(get(&site), "one");
    // The new one may be replaced in turn.
    kill(new, Signal::SIGUSR2);
    let [ready, newest] = manager.next(["READY", "MAINPID"]);
    assert_eq!(ready, "1");
    kill(new, Signal::SIGQUIT);
    wait_until("the end of the second", || !alive(new));
    let newest = newest.parse().expect("a pid");
    kill(newest, Signal::SIGTERM);
    assert_eq!(manager.next(["STOPPING"]), ["1"]);
    wait_until("the end of the third", || !alive(newest));
}

#[test]
fn a_reload_that_is_waited_for_is_in_effect_when_it_returns() {
    for mode in ["", "master_process off; "] {
        let conf = |text: &str| format!("{mode}{}", CONF.replace("one", text));
        let mut server = Server::start(conf("one"));
        let dir = server.dir().to_owned();
        let site = Site::new("");
        let reload = || {
            let done = site.forebay(&format!("reload -p {} -c nginx.conf --timeout 20", dir.display()));
            (done.code, done.err)
        };
        for i in 0..20 {
            server.write("nginx.conf", conf(&format!("answer{i}")));
            assert_eq!(reload(), (0, String::new()), "{mode}");
            assert_eq!(get(&server.site), format!("answer{i}"), "{mode}");
        }
        // The command finds nothing wrong with an address that another program has; the master cannot bind it.
        let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
        let other = format!("listen {}; location", taken.local_addr().expect("bound"));
        server.write("nginx.conf", conf("one").replacen("location", &other, 1));
        let (code, text) = reload();
        assert_eq!(code, 1, "{text}");
        let refused = "forebay: the new configuration was refused, the one before stays in effect: still could not bind()";
        assert!(text.starts_with(refused), "{text}");
        assert_eq!(get(&server.site), "answer19");
        let left: Vec<_> = std::fs::read_dir(dir.join("logs")).expect("directory").flatten().collect();
        assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().contains("reload")), "{left:?}");
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait_end(), Some(0));
        let (code, text) = reload();
        assert_eq!(code, 1);
        assert!(text.contains("[error] open() \"") && text.contains("nginx.pid\" failed (2:"), "{text}");
    }
}

/// Returns the number of listening sockets of a TCP port.
fn listeners(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let listens = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
            && words.nth(1) == Some("0A")
    };
    table.lines().filter(listens).count()
}

/// Descriptors 3 to 5 of a process are a TCP socket that the configuration names, a unix socket that it does not, and a file.
#[test]
fn sockets_of_the_manager_are_matched_with_addresses() {
    let site = Site::new(CONF);
    let manager = Manager::at_path(&site);
    let tcp = TcpListener::bind(site.addr(0)).expect("bind");
    let path = site.dir().join("other.sock");
    let unix = UnixListener::bind(&path).expect("bind");
    let start = |pid: &str| {
        let program = site.command(program(), &["-g", "daemon off;", "-e", "logs/early.log"]);
        let script = format!(
            "exec 3<&0 4<&1 5</dev/null 0</dev/null 1>/dev/null; export LISTEN_PID={pid}; exec \"$0\" \"$@\""
        );
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).arg(program.get_program()).args(program.get_args());
        command.env_remove("NGINX").env("NOTIFY_SOCKET", &manager.address);
        command.env("LISTEN_FDS", "3").env("LISTEN_FDNAMES", "web:admin:log");
        command.stdin(OwnedFd::from(tcp.try_clone().expect("copy")));
        command.stdout(OwnedFd::from(unix.try_clone().expect("copy"))).stderr(Stdio::null());
        command.spawn().expect("starts")
    };
    // Variables that were meant for another process: the address is taken.
    let mut child = start("1");
    let status = wait_for("a refused start", || child.try_wait().expect("child"));
    assert_eq!(status.code(), Some(1));
    assert!(site.read("logs/early.log").contains("bind() to 127.0.0.1:"), "{}", site.read("logs/early.log"));

    let child = start("$$");
    assert_eq!(manager.next(["READY"]), ["1"]);
    let log = site.read("logs/early.log");
    let unused = "\"admin\" of the service manager matches no \"listen\", closed";
    assert!(log.contains(&format!("socket unix:{} {unused}", path.display())), "{log}");
    assert!(log.contains("descriptor 5 \"log\" of the service manager is no listening socket"), "{log}");
    drop(unix);
    // A process that another test is just starting may still have a copy.
    wait_until("the end of the socket", || UnixStream::connect(&path).is_err());
    (0..20).for_each(|_| assert_eq!(get(&site), "one"));
    assert_eq!(listeners(site.addr(0).port()), 1, "the threads share the socket");

    // A reload keeps it, and so does the manager when the program ends: clients wait for the next one.
    kill(pid(&child), Signal::SIGHUP);
    assert_eq!(manager.next(["RELOADING"]), ["1"]);
    assert_eq!(manager.next(["READY"]), ["1"]);
    assert_eq!((get(&site), listeners(site.addr(0).port())), ("one".to_owned(), 1));
    kill(pid(&child), Signal::SIGQUIT);
    end(child);
    drop(connect(site.addr(0)));
}
