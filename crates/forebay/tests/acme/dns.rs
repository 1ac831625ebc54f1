//! DNS-01: answers of the server itself, a hook location, a program.

use super::*;
use forebay_testkit::{DEADLINE, Server, Signal, Site, alive, free_port, kill, wait_for, wait_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};

/// An issuer with `challenge dns-01`.
fn dns_site(http: &str, server: &str) -> Site {
    let site = site("challenge dns-01;", server);
    change(&site, "access_log off;", &format!("access_log off; {http}"));
    site
}

const WILDCARD: &str = "server_name a.test *.a.test; acme_certificate pebble; \
                        ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;";

/// Returns a question for the TXT record of a name.
fn question(name: &str) -> Vec<u8> {
    let mut query = vec![0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 16, 0, 1]);
    query
}

/// Sends a question over TCP, as `_acme-challenge.NAME TXT`, and returns the answer.
fn ask(port: u16, name: &str) -> Vec<u8> {
    try_ask(port, name).expect("an answer")
}

/// The same where the connection may end without an answer.
fn try_ask(port: u16, name: &str) -> std::io::Result<Vec<u8>> {
    let query = question(name);
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(&[&[0, query.len() as u8], query.as_slice()].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Sends a question in a datagram from an address of `from`, and returns the answer if one comes soon.
fn ask_datagram(from: &str, to: SocketAddr, name: &str) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind((from, 0)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("timeout");
    socket.connect(to).expect("connected");
    socket.send(&question(name)).ok()?;
    let mut answer = vec![0; 2000];
    let length = socket.recv(&mut answer).ok()?;
    answer.truncate(length);
    Some(answer)
}

/// A site that answers questions about `a.test` and asks nobody for a certificate.
fn answering(addresses: &str) -> String {
    format!(
        "events {{}} error_log logs/error.log notice;\n\
         http {{ access_log off; acme_dns_port {addresses}; acme_client_path %DIR%/clients;\n\
         acme_client c https://127.0.0.1:1/dir challenge=dns enabled=off;\n\
         server {{ listen 127.0.0.1:%PORT0%; server_name a.test; acme c; location / {{ return 200 here; }} }} }}\n"
    )
}

/// Name of the record that such a site answers questions about.
const RECORD: &str = "_acme-challenge.a.test";

/// Asserts that an answer is that there is no record right now.
fn assert_nothing(answer: &[u8]) {
    assert_eq!(answer.get(2..10), Some([0x85, 0, 0, 1, 0, 0, 0, 1].as_slice()), "{answer:?}");
}

#[test]
fn questions_over_ipv6_are_answered() {
    if let Err(e) = UdpSocket::bind("[::1]:0") {
        return eprintln!("skipped: ::1 cannot be bound ({e})");
    }
    let port = free_port();
    let _server = Server::start(answering(&format!("[::1]:{port}")));
    let to = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port));
    assert_nothing(&wait_for("an answer", || ask_datagram("::1", to, RECORD)));
    let refused = wait_for("an answer", || ask_datagram("::1", to, "b.test"));
    assert_eq!(refused[3] & 15, 5);
}

/// The sockets go to the new program and stay when the old one has gone.
#[test]
fn questions_are_answered_through_an_upgrade() {
    let port = free_port();
    let server = Server::start_daemon(answering(&format!("127.0.0.1:{port}")));
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let both = || {
        assert_nothing(&wait_for("an answer", || ask_datagram("127.0.0.1", to, RECORD)));
        // An old process that is about to end may take a connection, and closes it.
        assert_nothing(&wait_for("an answer", || try_ask(port, RECORD).ok()));
    };
    both();
    let old = server.pid();
    let new = server.successor(old);
    wait_for("its worker", || server.workers(new).first().copied());
    both();
    kill(old, Signal::SIGQUIT);
    wait_for("the end of the old master", || {
        both();
        (!alive(old)).then_some(())
    });
    (0..20).for_each(|_| both());
    let log = server.error_log();
    assert!(!log.contains("[emerg]") && !log.contains("[alert]"), "{log}");
}

/// Connections that say nothing have all places of the listener.
#[test]
fn silent_strangers_do_not_keep_questions_waiting() {
    let port = free_port();
    let _server = Server::start(answering(&format!("127.0.0.1:{port}")));
    let strangers: Vec<TcpStream> =
        (0..400).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("connected")).collect();
    let begun = Instant::now();
    assert_nothing(&ask(port, RECORD));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // The last one, too, is closed in the end.
    let mut last = strangers.last().expect("a stranger");
    last.set_read_timeout(Some(DEADLINE)).expect("timeout");
    assert!(!matches!(last.read(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock));
}

/// The authority asks the server itself.
#[test]
fn a_wildcard_by_own_answers() {
    let port = free_port();
    let site = dns_site(&format!("acme_dns_port 127.0.0.1:{port}; acme_dns_ttl 1;"), WILDCARD);
    let dns = Some(SocketAddr::from(([127, 0, 0, 1], port)));
    let Some((_authority, server)) = started(site, Settings { dns, ..LONG }) else { return };
    let first = issued(&server.site, "x.a.test", "");
    assert!(first.contains("DNS:*.a.test") && first.contains("DNS:a.test"), "{first}");
    // The record is withdrawn, and other names are refused.
    assert_nothing(&ask(port, RECORD));
    assert_eq!(ask(port, "a.test")[3] & 15, 5, "refused");
    // The sockets outlive a reload, and go with the directive.
    server.reload();
    server.wait_for_log("reconfiguring", 1);
    assert_eq!(ask(port, "_acme-challenge.a.test")[3] & 15, 0);
    change(&server, "challenge dns-01;", "");
    change(&server, "*.a.test", "");
    server.reload();
    wait_until("a closed port", || TcpStream::connect(("127.0.0.1", port)).is_err());
}

/// A location that has the records of `pebble-challtestsrv` changed.
#[test]
fn a_wildcard_by_a_hook_location() {
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
    let Some((_authority, server)) = started(site, Settings { names: Some(names), ..LONG }) else { return };
    let first = issued(&server.site, "x.a.test", "");
    assert!(first.contains("DNS:*.a.test"), "{first}");
    let calls = || server.read("logs/hook.log");
    for step in ["add", "remove"] {
        let line = format!("{step} dns pebble a.test pebble 200\n");
        wait_until(&line, || calls().matches(&line).count() == 2);
    }
    assert!(server.get("/hook").starts_with("HTTP/1.1 404"), "internal");
}

/// A location that keeps the answers of HTTP-01 as files, which a server has where the authority looks.
#[test]
fn an_answer_over_http_by_a_hook_location() {
    let hook = "location /.well-known/acme-challenge/ { alias %DIR%/answers/; } \
                location /hook { internal; acme_hook pebble uri=/hook/$acme_hook_token; access_log %DIR%/logs/hook.log calls; \
                  log_subrequest on; proxy_method $method; proxy_set_body $body; \
                  rewrite ^/hook/(.*) /answers/$1 break; proxy_pass http://127.0.0.1:%PORT3%; } } \
                server { listen 127.0.0.1:%PORT3%; location /answers/ { root %DIR%; dav_methods PUT DELETE; }";
    let site = site("", &format!("{NGINX_ACME} {hook}"));
    let http = "access_log off; log_format calls '$acme_hook_name $acme_hook_challenge $acme_hook_domain $status'; \
                map $acme_hook_name $method { add PUT; remove DELETE; } map $acme_hook_name $body { add $acme_hook_keyauth; }";
    change(&site, "access_log off;", http);
    let answers = site.make_dir("answers");
    let Some((_authority, server)) = started(site, LONG) else { return };
    issued(&server.site, "a.test", "");
    for line in
        ["add http a.test 201", "add http b.test 201", "remove http a.test 204", "remove http b.test 204"]
    {
        wait_until(line, || server.read("logs/hook.log").lines().any(|l| l == line));
    }
    assert_eq!(files(&answers).len(), 0);
}

/// A hook that fails is the reason in the log.
#[test]
fn a_hook_that_fails_is_reported() {
    let hook = "location /hook { internal; acme_hook pebble; return 503; }";
    let site = dns_site("", &format!("{WILDCARD} {hook}"));
    let Some((_authority, server)) = started(site, LONG) else { return };
    server.wait_for_log("a.test\": acme_hook \"add\" failed: status 503; a self-signed one is in use", 1);
}

/// The site with a program that changes the records of `pebble-challtestsrv` and notes its calls.
fn program_site(names: u16, server: &str) -> Site {
    let site = dns_site("acme_dns_program delay=0s %DIR%/dns-record extra;", server);
    let script = format!(
        "#!/bin/sh\necho \"$@\" $(ls -l /proc/$$/fd | grep -c socket:) sockets >> %DIR%/calls\ncase $2 in add) p=set-txt;; *) p=clear-txt;; esac\n\
         curl -sSf -d \"{{\\\"host\\\": \\\"$3.\\\", \\\"value\\\": \\\"$4\\\"}}\" http://127.0.0.1:{names}/$p >&2\n"
    );
    program_of(&site, &script);
    site
}

/// Writes the program of a site, and the file of its calls.
pub(super) fn program_of(site: &Site, script: &str) {
    for (name, text, mode) in [("dns-record", script, 0o755), ("calls", "", 0o666)] {
        std::fs::set_permissions(site.write(name, text), PermissionsExt::from_mode(mode)).expect("mode");
    }
}

#[test]
fn a_wildcard_by_a_program() {
    let names = free_port();
    let settings = Settings { names: Some(names), ..LONG };
    let Some((_authority, server)) = started(program_site(names, WILDCARD), settings) else { return };
    let first = issued(&server.site, "x.a.test", "");
    assert!(first.contains("DNS:*.a.test"), "{first}");
    let calls = || server.read("calls");
    for step in ["add", "remove"] {
        let begin = format!("extra {step} _acme-challenge.a.test ");
        wait_until(&begin, || calls().matches(&begin).count() == 2);
    }
    assert_eq!(calls().matches(" 0 sockets\n").count(), 4, "those of the server stay there: {}", calls());
}

/// A reload ends the order that is under way, and its record is removed.
#[test]
fn a_reload_leaves_no_record_behind() {
    let names = free_port();
    let site = program_site(names, WILDCARD);
    change(&site, "delay=0s", "delay=600s");
    let Some((_authority, server)) = started(site, Settings { names: Some(names), ..LONG }) else { return };
    let calls = |step: &str| server.read("calls").matches(&format!("extra {step} ")).count();
    wait_until("a record", || calls("add") == 1);
    change(&server, "delay=600s", "delay=0s");
    server.reload();
    issued(&server.site, "x.a.test", "");
    wait_until("the end of all records", || calls("remove") == 3);
    assert_eq!(calls("add"), 3);
}

#[test]
fn a_program_that_fails_is_reported() {
    let site = program_site(1, WILDCARD);
    site.write("dns-record", "#!/bin/sh\necho no such zone >&2\nexit 3\n");
    let Some((_authority, server)) = started(site, LONG) else { return };
    let reason = "dns-record add\" failed (exit status: 3): no such zone; a self-signed one is in use";
    server.wait_for_log(reason, 1);
}

/// Two processes begin at once and share a directory: there is one order.
#[test]
fn two_processes_make_one_order() {
    let Some(program) = pebble() else { return };
    let names = free_port();
    let first = program_site(names, WILDCARD);
    let _authority = Authority::start(&first, &program, Settings { names: Some(names), ..LONG });
    let second = program_site(names, WILDCARD);
    second.write("nginx.conf", moved_to(&second.read("nginx.conf"), &second, &first, &["state", "ca.pem"]));
    change(&second, &format!("{}/dir", second.addr(2)), &format!("{}/dir", first.addr(2)));
    let (first, second) = (Server::start_on(first), Server::start_on(second));
    let shown = issued(&first.site, "a.test", "");
    assert_eq!(issued(&second.site, "a.test", ""), shown);
    assert_eq!(first.read("pebble.log").matches("Added order").count(), 1);
}
