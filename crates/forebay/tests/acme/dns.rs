//! DNS-01: answers of the server itself, a hook location, a program.

use super::*;
use std::net::{SocketAddr, TcpStream};

/// An issuer with `challenge dns-01`.
fn dns_site(http: &str, server: &str) -> Site {
    let site = site("challenge dns-01;", server);
    let conf = site.read("nginx.conf");
    site.write("nginx.conf", &conf.replacen("access_log off;", &format!("access_log off; {http}"), 1));
    site
}

const WILDCARD: &str = "server_name a.test *.a.test; acme_certificate pebble; \
                        ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;";

/// Sends a question over TCP, as `_acme-challenge.NAME TXT`, and returns the answer.
fn ask(port: u16, name: &str) -> Vec<u8> {
    use std::io::{Read, Write};
    let mut query = vec![0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 16, 0, 1]);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    stream.write_all(&[&[0, query.len() as u8], query.as_slice()].concat()).expect("sent");
    let mut length = [0; 2];
    stream.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).expect("an answer");
    answer
}

/// The authority asks the server itself.
#[test]
fn a_wildcard_by_own_answers() {
    let Some(program) = pebble() else { return };
    let port = free_port();
    let site = dns_site(&format!("acme_dns_port 127.0.0.1:{port}; acme_dns_ttl 1;"), WILDCARD);
    let dns = Some(SocketAddr::from(([127, 0, 0, 1], port)));
    let _authority = Authority::start(&site, &program, Settings { dns, ..LONG });
    let server = Server::start_on(site);
    let first = issued(&server.site, "x.a.test", "");
    assert!(first.contains("DNS:*.a.test") && first.contains("DNS:a.test"), "{first}");
    // The record is withdrawn, and other names are refused.
    let nothing = ask(port, "_acme-challenge.a.test");
    assert_eq!(nothing[2..10], [0x85, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(ask(port, "a.test")[3] & 15, 5, "refused");
    // The sockets outlive a reload, and go with the directive.
    server.signal(nix::sys::signal::Signal::SIGHUP);
    server.wait_for_log("reconfiguring", 1);
    assert_eq!(ask(port, "_acme-challenge.a.test")[3] & 15, 0);
    let conf = server.site.read("nginx.conf").replace("challenge dns-01;", "").replace("*.a.test", "");
    server.site.write("nginx.conf", &conf);
    server.signal(nix::sys::signal::Signal::SIGHUP);
    wait_for("a closed port", || TcpStream::connect(("127.0.0.1", port)).is_err().then_some(()));
}

/// A location that has the records of `pebble-challtestsrv` changed.
#[test]
fn a_wildcard_by_a_hook_location() {
    let Some(program) = pebble() else { return };
    let names = free_port();
    let hook = format!(
        "location /hook {{ internal; acme_hook pebble uri=/x?$acme_hook_client; access_log %DIR%/logs/hook.log calls; \
           log_subrequest on; proxy_method POST; \
           proxy_set_body '{{\"host\": \"_acme-challenge.$acme_hook_domain.\", \"value\": \"$acme_hook_keyauth\"}}'; \
           proxy_pass http://127.0.0.1:{names}/$change; }}"
    );
    let http = "log_format calls '$acme_hook_name $acme_hook_challenge $acme_hook_client $acme_hook_domain $args $status'; \
                map $acme_hook_name $change { add set-txt; remove clear-txt; }";
    let site = dns_site(http, &format!("{WILDCARD} {hook}"));
    let _authority = Authority::start(&site, &program, Settings { names: Some(names), ..LONG });
    let server = Server::start_on(site);
    let first = issued(&server.site, "x.a.test", "");
    assert!(first.contains("DNS:*.a.test"), "{first}");
    let calls = || server.site.read("logs/hook.log");
    for step in ["add", "remove"] {
        let line = format!("{step} dns pebble a.test pebble 200\n");
        wait_for(&line, || (calls().matches(&line).count() == 2).then_some(()));
    }
    assert!(server.get("/hook").starts_with("HTTP/1.1 404"), "internal");
}

/// A hook that fails is the reason in the log.
#[test]
fn a_hook_that_fails_is_reported() {
    let Some(program) = pebble() else { return };
    let hook = "location /hook { internal; acme_hook pebble; return 503; }";
    let site = dns_site("", &format!("{WILDCARD} {hook}"));
    let _authority = Authority::start(&site, &program, LONG);
    let server = Server::start_on(site);
    server.wait_for_log("a.test\": acme_hook \"add\" failed: status 503; a self-signed one is in use", 1);
}

/// The site with a program that changes the records of `pebble-challtestsrv` and notes its calls.
fn program_site(names: u16, server: &str) -> Site {
    let site = dns_site("acme_dns_program delay=0s %DIR%/dns-record extra;", server);
    let script = format!(
        "#!/bin/sh\necho \"$@\" $(ls -l /proc/$$/fd | grep -c socket:) sockets >> %DIR%/calls\ncase $2 in add) p=set-txt;; *) p=clear-txt;; esac\n\
         curl -sSf -d \"{{\\\"host\\\": \\\"$3.\\\", \\\"value\\\": \\\"$4\\\"}}\" http://127.0.0.1:{names}/$p >&2\n"
    );
    let path = site.write("dns-record", &script);
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("mode");
    let calls = site.write("calls", "");
    std::fs::set_permissions(calls, PermissionsExt::from_mode(0o666)).expect("mode");
    site
}

#[test]
fn a_wildcard_by_a_program() {
    let Some(program) = pebble() else { return };
    let names = free_port();
    let site = program_site(names, WILDCARD);
    let _authority = Authority::start(&site, &program, Settings { names: Some(names), ..LONG });
    let server = Server::start_on(site);
    let first = issued(&server.site, "x.a.test", "");
    assert!(first.contains("DNS:*.a.test"), "{first}");
    let calls = || server.site.read("calls");
    for step in ["add", "remove"] {
        let begin = format!("extra {step} _acme-challenge.a.test ");
        wait_for(&begin, || (calls().matches(&begin).count() == 2).then_some(()));
    }
    assert_eq!(calls().matches(" 0 sockets\n").count(), 4, "those of the server stay there: {}", calls());
}

/// A reload ends the order that is under way, and its record is removed.
#[test]
fn a_reload_leaves_no_record_behind() {
    let Some(program) = pebble() else { return };
    let names = free_port();
    let site = program_site(names, WILDCARD);
    let conf = site.read("nginx.conf");
    site.write("nginx.conf", &conf.replace("delay=0s", "delay=600s"));
    let _authority = Authority::start(&site, &program, Settings { names: Some(names), ..LONG });
    let server = Server::start_on(site);
    let calls = |step: &str| server.site.read("calls").matches(&format!("extra {step} ")).count();
    wait_for("a record", || (calls("add") == 1).then_some(()));
    server.site.write("nginx.conf", &conf);
    server.signal(nix::sys::signal::Signal::SIGHUP);
    issued(&server.site, "x.a.test", "");
    wait_for("the end of all records", || (calls("remove") == 3).then_some(()));
    assert_eq!(calls("add"), 3);
}

#[test]
fn a_program_that_fails_is_reported() {
    let Some(program) = pebble() else { return };
    let site = program_site(1, WILDCARD);
    site.write("dns-record", "#!/bin/sh\necho no such zone >&2\nexit 3\n");
    let _authority = Authority::start(&site, &program, LONG);
    let server = Server::start_on(site);
    server.wait_for_log(
        "dns-record add\" failed (exit status: 3): no such zone; a self-signed one is in use",
        1,
    );
}

/// Two processes begin at once and share a directory: there is one order.
#[test]
fn two_processes_make_one_order() {
    let Some(program) = pebble() else { return };
    let names = free_port();
    let first = program_site(names, WILDCARD);
    let _authority = Authority::start(&first, &program, Settings { names: Some(names), ..LONG });
    let second = program_site(names, WILDCARD);
    let of = |site: &Site, port: usize| site.addr(port).port().to_string();
    let conf = second
        .read("nginx.conf")
        .replace(&format!("{}/state", second.dir().display()), &format!("{}/state", first.dir().display()))
        .replace(&format!("{}/ca.pem", second.dir().display()), &format!("{}/ca.pem", first.dir().display()))
        .replace(&format!("127.0.0.1:{}/dir", of(&second, 2)), &format!("127.0.0.1:{}/dir", of(&first, 2)));
    second.write("nginx.conf", &conf);
    let (first, second) = (Server::start_on(first), Server::start_on(second));
    let shown = issued(&first.site, "a.test", "");
    assert_eq!(issued(&second.site, "a.test", ""), shown);
    assert_eq!(first.site.read("pebble.log").matches("Added order").count(), 1);
}
