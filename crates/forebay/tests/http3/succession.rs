//! Connections whose datagrams arrive at another thread or another process than their own.

use super::{Client, site};
use forebay_testkit::{Done, Server, Signal, Site, alive, children, kill, program, wait_for, wait_until};
use serde_json::{Value, json};

/// A server whose answers tell the process.
fn http(lines: &str) -> String {
    format!(
        "server {{ listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; {lines}\n\
         location = /pid {{ return 200 $pid; }} location = /port {{ return 200 $remote_port; }}\n\
         location /middle {{ limit_rate 100k; }} }}"
    )
}

/// The same in a configuration with several threads.
fn conf(lines: &str) -> String {
    super::conf(&http(lines)).replace("worker_processes 1", "worker_processes 4")
}

fn prepared(lines: &str) -> Site {
    let site = site(&http(lines));
    site.write("host.key", "secret");
    site.write("html/middle", "0123456789".repeat(30_000));
    site.write("nginx.conf", conf(lines));
    site
}

fn pid(client: &mut Client, on: &str) -> i32 {
    let told = client.get(on, "/pid");
    told["text"].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{on}: {told}"))
}

/// Checks that an answer that was begun comes whole.
fn assert_whole(client: &mut Client, of: &str) {
    let told = client.answer(of);
    assert_eq!((&told["length"], &told["ended"]), (&json!(300_000), &json!(true)), "{told}");
}

/// Begins an answer, and waits for its head.
fn begin(client: &mut Client, on: &str, name: &str) {
    client.request(on, name, json!({"path": "/middle"}));
    client.call("answer", json!({"of": name, "until": "head"}));
}

/// Waits until new connections are those of a process.
fn wait_for_process(client: &mut Client, server: &Server, worker: i32) {
    wait_until("connections of the new process", || {
        client.connect("new", server);
        pid(client, "new") == worker
    });
}

/// The kernel chooses the thread by the port of the client: four in five moves lead to another one.
#[test]
fn clients_that_move_find_their_thread() {
    let Some(mut client) = Client::start() else { return };
    let server = Server::start_on(prepared(""));
    client.connect("a", &server);
    client.request("a", "running", json!({"path": "/middle"}));
    for _ in 0..12 {
        let ports = client.call("move", json!({"on": "a"}))["ports"].clone();
        // Requests count under an address once it is proved: what is acknowledged has followed the question.
        client.call("ping", json!({"on": "a"}));
        let told = client.get("a", "/port");
        assert_eq!((&told["text"], &told["closed"]), (&json!(ports[1].to_string()), &Value::Null), "{told}");
    }
    assert_whole(&mut client, "running");
}

/// Both processes read the same sockets; each connection stays with its own.
#[test]
fn an_upgrade_feeds_the_connections_of_the_former_program() {
    let Some(mut client) = Client::start() else { return };
    let server = Server::daemon_on(prepared(""));
    let old = server.pid();
    for name in ["a", "b", "c", "d"] {
        client.connect(name, &server);
        client.request(name, &format!("running {name}"), json!({"path": "/middle"}));
    }
    let first = pid(&mut client, "a");
    let new = server.successor(old);
    let second = wait_for("its worker", || server.workers(new).first().copied());
    wait_for_process(&mut client, &server, second);
    for n in 0..20 {
        let name = format!("new {n}");
        client.connect(&name, &server);
        assert_eq!((pid(&mut client, &name), pid(&mut client, "a")), (second, first));
    }
    kill(old, Signal::SIGQUIT);
    server.wait_for_log("gracefully shutting down", 1);
    for name in ["a", "b", "c", "d"] {
        // Its packets come by way of the new process only.
        client.call("move", json!({"on": name}));
        assert_whole(&mut client, &format!("running {name}"));
        let told = client.call("wait", json!({"on": name, "for": "closed"}));
        assert_eq!(told["closed"]["code"], 0x100, "H3_NO_ERROR");
    }
    wait_until("the end of the old process", || !alive(old));
    assert_eq!(pid(&mut client, "new"), second);
    assert_eq!(server.workers(new), [second]);
}

/// The former program ends before the new one reads the sockets. Who comes in between is not refused, and finds the new one.
#[test]
fn clients_that_come_between_two_programs() {
    let Some(mut client) = Client::start() else { return };
    let site = prepared("");
    // One socket, which the former program reads as long as it has a connection.
    site.write("nginx.conf", super::conf(&http("")));
    let server = Server::daemon_on(site);
    client.connect("a", &server);
    begin(&mut client, "a", "running");
    let old = server.pid();
    let worker = server.workers(old)[0];
    server.signal(Signal::SIGUSR2);
    let new = wait_for("the new program", || children(old).into_iter().find(|pid| *pid != worker));
    // Until it is a program of its own, the former one waits for it. Its environment is that of the former one until then, in which other
    // names may end alike (FOREBAY_TEST_NGINX).
    let environment = |pid: i32| std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    wait_until("a program of its own", || {
        environment(new).split(|b| *b == 0).any(|v| v.starts_with(b"NGINX="))
    });
    kill(new, Signal::SIGSTOP);
    kill(old, Signal::SIGQUIT);
    server.wait_for_log("gracefully shutting down", 1);
    let told = client.connect_with("early", &server, json!({"within": 0.3}));
    assert_eq!((&told["connected"], &told["closed"]), (&json!(false), &Value::Null), "{told}");
    kill(new, Signal::SIGCONT);
    assert_eq!(client.connect("late", &server)["connected"], true);
    assert_ne!(pid(&mut client, "late"), worker);
    assert_whole(&mut client, "running");
}

/// The new program is given up: the former one gets the sockets back, and feeds what is left of the new one.
#[test]
fn an_upgrade_that_is_given_up() {
    let Some(mut client) = Client::start() else { return };
    let server = Server::daemon_on(prepared(""));
    let old = server.pid();
    client.connect("a", &server);
    let first = pid(&mut client, "a");
    for signal in [Signal::SIGQUIT, Signal::SIGKILL] {
        let new = server.successor(old);
        let second = wait_for("its worker", || server.workers(new).first().copied());
        wait_for_process(&mut client, &server, second);
        begin(&mut client, "new", "running");
        kill(new, signal);
        if signal == Signal::SIGQUIT {
            assert_whole(&mut client, "running");
        } else {
            // Its worker goes on without a master, as nginx's.
            kill(second, signal);
        }
        wait_until("the end of the new process", || !alive(second) && !alive(new));
        wait_until("the pid file", || server.pid_in_file() == Some(old));
        assert_eq!(pid(&mut client, "a"), first);
        for n in 0..8 {
            let name = format!("{signal} {n}");
            client.connect(&name, &server);
            assert_eq!(pid(&mut client, &name), first);
        }
    }
}

/// Clients of a process that has died learn so at once, since its successor has the same secret.
#[test]
fn a_killed_worker_is_followed_by_stateless_resets() {
    let Some(mut client) = Client::start() else { return };
    for lines in ["", "quic_host_key host.key;"] {
        let server = Server::start_on(prepared(lines));
        let names: Vec<String> = (0..8).map(|n| format!("{lines}{n}")).collect();
        names.iter().for_each(|name| {
            client.connect(name, &server);
        });
        let first = pid(&mut client, &names[0]);
        server.kill_worker();
        let second = server.worker();
        assert_ne!(second, first);
        for name in &names {
            client.call("send_ping", json!({"on": name}));
            let told = client.call("wait", json!({"on": name, "for": "reset"}));
            assert_eq!(told["was_reset"], true, "{name}: {told}");
        }
        client.connect("again", &server);
        assert_eq!(pid(&mut client, "again"), second);
    }
}

/// A key in a file makes resets possible after the end of all processes.
#[test]
fn a_restarted_server_with_a_host_key_resets() {
    let Some(mut client) = Client::start() else { return };
    let mut server = Server::start_on(prepared("quic_host_key host.key;"));
    client.connect("a", &server);
    pid(&mut client, "a");
    kill(server.worker(), Signal::SIGKILL);
    server.signal(Signal::SIGKILL);
    server.wait_end();
    server.restart();
    client.call("send_ping", json!({"on": "a"}));
    assert_eq!(client.call("wait", json!({"on": "a", "for": "reset"}))["was_reset"], true);
}

/// Errors of the file refuse the configuration.
#[test]
fn a_host_key_has_to_be_there() {
    let site = prepared("");
    site.write("empty", "");
    let missing = "missing\" failed (2: No such file or directory) in";
    for (name, text) in [("missing", missing), ("empty", "empty\" zero key size in")] {
        site.write("nginx.conf", conf(&format!("quic_host_key {name};")));
        let done = Done::of(&mut site.command(program(), &["-t"]));
        assert!(done.code != 0 && done.err.contains(text), "{}", done.err);
    }
}

/// Listeners that go and come back have other sockets: packets of former connections may arrive at either.
#[test]
fn a_listener_that_comes_back() {
    let Some(mut client) = Client::start() else { return };
    let (without, again) = (conf(""), conf("listen 127.0.0.1:%PORT1% quic; add_header X new always;"));
    let server = Server::start_on(prepared("listen 127.0.0.1:%PORT1% quic;"));
    let port = server.addr(1).port();
    let names: Vec<String> = (0..8).map(|n| n.to_string()).collect();
    for name in &names {
        client.connect_with(name, &server, json!({"port": port}));
        begin(&mut client, name, &format!("running {name}"));
    }
    for (n, text) in [without, again].iter().enumerate() {
        server.reload_with(text);
        if n == 0 {
            client.call("wait", json!({"on": "0", "for": "goaway"}));
        }
    }
    wait_for("the listener", || {
        let told = client.connect_with("new", &server, json!({"port": port}));
        (told["connected"] == true && super::field(&client.get("new", "/pid"), "x") == "new").then_some(())
    });
    for name in &names {
        assert_whole(&mut client, &format!("running {name}"));
    }
}
