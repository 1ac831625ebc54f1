//! Reloads of configurations with a file for each server: only files that have changed are read, and requests must not tell.

use forebay_testkit::{Server, Site, Talk, ask, connect, program};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::process::Command;

const MAIN: &str = "worker_processes 2;
error_log logs/error.log notice;
events {}
http {
    access_log logs/access.log;
    upstream common { server 127.0.0.1:%PORT1%; }
    include sites/*.conf;
    server { listen 127.0.0.1:%PORT0% default_server; return 404 \"none\\n\"; }
    server { listen 127.0.0.1:%PORT1%; return 200 \"$http_x_site $http_host\\n\"; }
    server { listen 127.0.0.1:%PORT2%; return 200 \"other $http_x_site\\n\"; }
}
";

/// Answers by host, and the configuration that gives them.
struct Sites {
    server: Server,
    wanted: BTreeMap<usize, String>,
}

impl Sites {
    fn start(count: usize) -> Sites {
        let site = Site::new(MAIN);
        let mut wanted = BTreeMap::new();
        for n in 0..count {
            let (text, answer) = variant(n, n);
            site.write(name(n), &text);
            wanted.insert(n, answer);
        }
        Sites { server: Server::start_on(site), wanted }
    }

    /// Writes a site in one of its forms; `None` removes it.
    fn write(&mut self, n: usize, form: Option<usize>) {
        match form {
            Some(form) => {
                let (text, answer) = variant(n, form);
                self.server.write(name(n), &text);
                self.wanted.insert(n, answer);
            }
            None => {
                std::fs::remove_file(self.server.dir().join(name(n))).expect("removed");
                self.wanted.insert(n, "none\n".to_owned());
            }
        }
    }

    fn reload(&self) -> (bool, String) {
        let mut command = Command::new(program());
        command.arg("reload").arg("-p").arg(self.server.dir()).args(["-c", "nginx.conf", "--timeout", "20"]);
        let output = command.output().expect("runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Checks the answer of each host. Each comes over a connection of its own, and so from any thread.
    fn check(&self, when: &str) {
        for (n, answer) in &self.wanted {
            let got = ask(
                self.server.addr(0),
                format!("GET / HTTP/1.1\r\nHost: h{n}\r\nConnection: close\r\n\r\n"),
            );
            assert!(got.ends_with(answer.as_str()), "{when}, host {n}: {got}, not {answer}");
        }
    }
}

fn name(n: usize) -> String {
    format!("sites/{n:02}.conf")
}

/// Returns a site in one of several forms, and its answer.
fn variant(n: usize, form: usize) -> (String, String) {
    let server = |inner: &str| {
        format!("server {{ listen 127.0.0.1:%PORT0%; server_name h{n}; location / {{ {inner} }} }}\n")
    };
    match form % 5 {
        0 => (server(&format!("return 200 \"form {form}\\n\";")), format!("form {form}\n")),
        1 => (
            server(&format!("proxy_set_header X-Site {n}-{form}; proxy_pass http://common;")),
            format!("{n}-{form} common\n"),
        ),
        2 => (
            format!("upstream u{n} {{ server 127.0.0.1:%PORT1%; keepalive 2; }}\n")
                + &server(&format!(
                    "set $made {form}; proxy_set_header X-Site $made; proxy_pass http://u{n};"
                )),
            format!("{form} u{n}\n"),
        ),
        3 => (
            format!("upstream u{n} {{ server 127.0.0.1:%PORT2%; }}\n")
                + &server(&format!(
                    "set $made {form}; proxy_set_header X-Site $made; proxy_pass http://u{n};"
                )),
            format!("other {form}\n"),
        ),
        _ => (
            server(&format!(
                "set $made no; if ($host = h{n}) {{ set $made /x{form}; }} return 200 \"$made\\n\";"
            )),
            format!("/x{form}\n"),
        ),
    }
}

/// Sends a request on a connection and returns the body of the answer.
fn on_connection(stream: &mut TcpStream, host: &str) -> String {
    stream.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    stream.answer().text()
}

#[test]
fn files_that_have_changed_take_effect_and_others_stay() {
    let mut sites = Sites::start(12);
    sites.check("at the start");
    let mut kept = connect(sites.server.addr(0));
    assert!(on_connection(&mut kept, "h3").ends_with("other 3\n"));
    // One changed, one new, one gone, one whose group has another server now.
    sites.write(3, Some(21));
    sites.write(30, Some(2));
    sites.write(5, None);
    sites.write(7, Some(3));
    assert_eq!(sites.reload(), (true, String::new()));
    sites.check("after the first reload");
    assert!(on_connection(&mut kept, "h3").ends_with("3-21 common\n"), "a kept connection gets the new one");
    // A mistake in one file changes nothing.
    let good = sites.server.read(&name(4));
    sites.server.write(name(4), "server { listen 127.0.0.1:%PORT0%; server_name h4;\n    bogus; }");
    let (done, text) = sites.reload();
    assert!(
        !done && text.contains("unknown directive \"bogus\" in ") && text.contains("04.conf:2"),
        "{text}"
    );
    sites.check("after a reload that was refused");
    sites.server.write(name(4), &good);
    // What another file defines is missing.
    sites
        .server
        .site
        .write(name(6), "server { listen 127.0.0.1:%PORT0%; location / { return 200 $nowhere; } }");
    let (done, text) = sites.reload();
    assert!(!done && text.contains("unknown \"nowhere\" variable"), "{text}");
    sites.write(6, Some(6));
    assert_eq!(sites.reload(), (true, String::new()));
    sites.check("after the mistakes");
    // A worker that is started anew gets everything.
    sites.server.kill_worker();
    sites.check("with another worker");
    sites.write(9, Some(32));
    assert_eq!(sites.reload(), (true, String::new()));
    sites.check("after a reload of the other worker");
}

#[test]
fn random_changes_are_answered_as_written() {
    let mut sites = Sites::start(10);
    let mut seed = 7u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for step in 0..25 {
        for _ in 0..=random(3) {
            let n = random(14);
            let there = sites.server.dir().join(name(n)).exists();
            let form = (!there || random(4) > 0).then(|| random(50));
            sites.write(n, form);
        }
        if random(6) == 0 {
            // The frame changes, so that all is read.
            let text = format!("{MAIN}# {step}\n");
            sites.server.write("nginx.conf", &text);
        }
        assert_eq!(sites.reload(), (true, String::new()), "step {step}");
        sites.check(&format!("step {step}"));
    }
}
