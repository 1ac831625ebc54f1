//! The stream block: connections that are passed on as bytes.

use forebay_testkit::{Server, Site, Talk, echo, free_port, wait_for};
use std::io::Read;
use std::net::Shutdown;

forebay_testkit::cases!("cases/stream.cases":
    a_dead_server_is_passed_over, reloads_do_not_touch_connections, names_of_tls_choose_the_server_without_its_certificate,
    a_proxy_header_in_pieces_names_the_client, silence_ends_a_session, names_of_hellos_choose_the_server,
    connections_pass_to_other_listeners, proxy_headers_by_variable_and_server, groups_without_servers_have_fallbacks);

fn conf(stream: &str) -> String {
    format!(
        "worker_processes 2; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\nstream {{\n\
         log_format l '$status $bytes_received $bytes_sent [$upstream_addr] $protocol';\n\
         access_log logs/access.log l;\n{stream}\n}}\n"
    )
}

#[test]
fn bytes_pass_both_ways_and_are_logged() {
    let (backend, _) = echo();
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; proxy_pass {backend}; proxy_half_close on; }}"
    )));
    let stream = server.connect();
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let mut writer = stream.try_clone().expect("clone");
    let copy = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.send(&copy);
        writer.shutdown(Shutdown::Write).expect("shut down");
    });
    let mut got = Vec::new();
    (&stream).read_to_end(&mut got).expect("the end");
    writing.join().expect("joined");
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    wait_for("a line", || {
        server
            .site
            .read("logs/access.log")
            .contains(&format!("200 3000000 3000000 [{backend}] TCP"))
            .then_some(())
    });
}

/// The examples of the manual are accepted as they are, but for addresses and paths of this machine.
#[test]
fn the_examples_of_the_manual_are_configurations() {
    let manual = include_str!("../../../docs/stream.md");
    let examples: Vec<&str> =
        manual.split("```nginx\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() > 5, "{}", examples.len());
    for example in examples {
        let mut text = "error_log logs/error.log; pid logs/nginx.pid; events {}\n".to_owned();
        for line in example.lines() {
            match line.trim().strip_prefix("listen ").map(|words| words.trim_end_matches(';')) {
                Some(words) => {
                    let options = words.split_once(' ').map_or("", |(_, options)| options);
                    text += &format!("listen 127.0.0.1:{} {options};\n", free_port());
                }
                None => text += &format!("{line}\n"),
            }
        }
        for (path, here) in
            [("/etc/ssl/db", "%DIR%/db"), ("/etc/ssl/mqtt", "%DIR%/db"), ("/var/log/nginx/", "%DIR%/logs/")]
        {
            text = text.replace(path, here);
        }
        let site = Site::new(&text);
        site.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout db.key -out db.pem -subj /CN=db");
        let checked = site.run(&["-t"]);
        assert!(checked.status.success(), "{example}\n{}", String::from_utf8_lossy(&checked.stderr));
    }
}
