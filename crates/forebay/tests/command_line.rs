//! Options, texts, streams and exit codes, next to nginx's own where it is at hand.

use forebay_testkit::{Done, Server, Site, free_port, program};
use std::process::Command;

forebay_testkit::cases!("cases/command_line.cases":
    wrong_options, test_and_dump, signals_without_a_server, a_working_directory_that_is_missing,
    a_warning_is_printed_once_and_not_at_all_when_quiet);

const CONF: &str = "events {}\nhttp { access_log logs/access.log; server { listen 127.0.0.1:%PORT0%; } }\n";

fn bare(arg: &str) -> (i32, String, String) {
    let done = Done::of(Command::new(program()).arg(arg));
    (done.code, done.out, done.err)
}

#[test]
fn version_and_build() {
    let (code, out, err) = bare("-v");
    assert_eq!((code, out.as_str()), (0, ""));
    let version = format!("nginx version: nginx/{} (forebay ", forebay_core::NGINX_VERSION);
    assert!(err.starts_with(&version), "{err}");
    let (code, _, err) = bare("-V");
    assert_eq!(code, 0);
    assert!(err.contains("\nbuilt by rustc 1"), "{err}");
    // As certbot reads it: a version and a space. The rest of the line says what is really there.
    let (version, rest) = (err.split("\nbuilt with OpenSSL ").nth(1))
        .and_then(|rest| rest.lines().next()?.split_once(' '))
        .expect("a line about TLS");
    assert!(version.split('.').all(|part| part.parse::<u32>().is_ok()), "{err}");
    assert!(rest.contains("rustls") && rest.contains("OpenSSL itself is not linked"), "{err}");
    let arguments = err.lines().find_map(|line| line.strip_prefix("configure arguments: ")).expect("a line");
    assert!(arguments.contains("--conf-path=/etc/nginx/nginx.conf"));
    assert!(arguments.contains("--with-http_ssl_module") && arguments.contains("--with-http_v2_module"));
}

#[test]
fn an_address_in_use() {
    let server = Server::start(CONF);
    let site = Site::new(CONF.replace("%PORT0%", &server.addr(0).port().to_string()));
    let run = |args: &[&str]| Done::of(&mut site.command(program(), args));
    assert_eq!(run(&["-t"]).code, 0, "-t passes over it");
    let Done { code, err, .. } = run(&[]);
    assert_eq!(code, 1);
    let bind = format!("nginx: [emerg] bind() to {} failed (98: Address already in use)\n", server.addr(0));
    assert_eq!(err, format!("{}nginx: [emerg] still could not bind()\n", bind.repeat(5)));
}

/// The same calls to nginx and to this program: code and both streams must be equal.
#[test]
fn as_nginx_says_it() {
    let Ok(nginx) = std::env::var("FOREBAY_TEST_NGINX") else {
        println!("skipped: FOREBAY_TEST_NGINX names no nginx");
        return;
    };
    let port = free_port().to_string();
    // Packaged builds of nginx have paths of their own for what is not named here.
    let conf = format!("pid logs/nginx.pid;\n{}", CONF.replace("%PORT0%", &port));
    // Commas separate arguments.
    let cases = "-t|-tq|-T|-Tq|-x|extra|-s|-g|-tp|-s,no|-s,stop|-sreload|-t,-g,bogus on;|-t,-e,stderr|-t,-c,none.conf|\
                 -t,-g,pid /nonexistent/x.pid;|-t,-g,user no-such-user-here;|-t,-g,error_log /nonexistent/x;|\
                 -t,-g,user root no-such-group-here;";
    let mut different = Vec::new();
    for args in cases.split('|') {
        // A directory of its own for each run: -t leaves files behind.
        let [theirs, ours] = [nginx.as_str(), program()].map(|program| {
            let site = Site::new(&conf);
            let log: &[&str] = if args.contains(",-e,") { &[] } else { &["-e", "logs/error.log"] };
            let done = Done::of(site.command(program, log).args(args.split(',')));
            let dir = site.dir().display().to_string();
            (done.code, done.out.replace(&dir, "DIR"), done.err.replace(&dir, "DIR"))
        });
        if theirs != ours {
            different.push(format!("{args:?}\n  nginx   {theirs:?}\n  forebay {ours:?}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// A zone that both front ends define is refused: their counts would be one.
#[test]
fn zones_of_two_front_ends_have_two_names() {
    let events = "error_log logs/error.log; pid logs/nginx.pid; events {}";
    let cases = [
        ("limit_conn_zone $remote_addr zone=z:1m;", "limit_conn_zone $remote_addr zone=z:1m;"),
        ("limit_conn_zone $remote_addr zone=z:1m;", "limit_conn_zone $server_addr zone=z:2m;"),
        ("limit_conn_zone $remote_addr zone=z:1m;", "limit_conn z 1;"),
        ("limit_conn_zone $remote_addr zone=z:1m;", "limit_req_zone $remote_addr zone=z:1m rate=1r/s;"),
        ("upstream u { zone z 1m; server 127.0.0.1:1; }", "upstream u { zone z 1m; server 127.0.0.1:1; }"),
        ("upstream u { zone z 1m; server 127.0.0.1:1; }", "proxy_cache_path cache keys_zone=z:1m;"),
        ("ssl_session_cache shared:z:1m;", "ssl_session_cache shared:z:1m;"),
    ];
    let refused = |conf: &str, text: &str| {
        let done = Done::of(&mut Site::new(conf).command(program(), &["-t"]));
        let line = done.err.lines().find(|line| line.starts_with(&format!("nginx: [emerg] {text} in ")));
        assert!(line.is_some_and(|line| line.ends_with(":2")) && done.code != 0, "{conf}: {}", done.err);
    };
    for (stream, http) in cases {
        let different = "the shared memory zone \"z\" is already declared for a different use";
        refused(&format!("{events} stream {{ {stream} }}\nhttp {{ {http} }}"), different);
        refused(&format!("{events} http {{ {http} }}\nstream {{ {stream} }}"), different);
    }
    let size = "the size 2097152 of shared memory zone \"z\" conflicts with already declared size 1048576";
    let zone = "limit_conn_zone $remote_addr zone=z";
    refused(&format!("{events} stream {{ {zone}:1m;\n{zone}:2m; }}"), size);
}
