//! Variables and fields about upstreams have the values that nginx gives them.

use forebay_testkit::{Oracle, Origin, Server, Site, oracle, raw, wait_for};
use std::net::SocketAddr;
use std::path::Path;

forebay_testkit::cases!("cases/upstream_variables.cases":
    slices_are_told_of_by_the_first, times_of_answers_that_are_not_passed_on, redirects_that_lead_nowhere,
    upstream_variables_name_the_failure, lengths_of_responses_without_heads);

fn conf(rest: &str) -> String {
    format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ client_body_temp_path %DIR%/body; proxy_temp_path %DIR%/temp; {rest} }}"
    )
}

/// Returns an answer without product and time, for comparison with nginx.
fn plain(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer).into_owned();
    let line = |l: &str| match l.split_once(": ") {
        Some(("Server", v)) if v.starts_with("nginx") || v.starts_with("forebay") => "Server: own".to_owned(),
        Some(("Date", v)) if v != "never" => "Date: now".to_owned(),
        _ => l.to_owned(),
    };
    text.split("\r\n").map(line).collect::<Vec<_>>().join("\n")
}

/// Lines of the access log, once there are so many.
fn lines(dir: &Path, count: usize) -> Vec<String> {
    wait_for("lines of the access log", || {
        let text = std::fs::read_to_string(dir.join("logs/a.log")).unwrap_or_default();
        let all: Vec<String> = text.lines().map(str::to_owned).collect();
        (all.len() >= count).then_some(all)
    })
}

/// Asks a server, and nginx if there is one, one thing after the other. Gives what ours has answered and logged.
fn told(conf: &str, logs: usize, uris: &[&str]) -> (Vec<String>, Vec<String>) {
    let ask = |addr: SocketAddr| -> Vec<String> {
        let each = uris.iter().map(|uri| {
            let (uri, fields) = uri.split_once(' ').unwrap_or((uri, ""));
            let text = format!("GET {uri} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n");
            plain(&raw(addr, &text))
        });
        each.collect()
    };
    let server = Server::start(conf);
    let ours = (ask(server.addr(0)), lines(server.dir(), logs));
    if let Some(nginx) = oracle() {
        let site = Site::new(conf);
        let dir = site.dir().to_owned();
        let theirs = Oracle::start(&nginx, site);
        assert_eq!(ours, (ask(theirs.addr()), lines(&dir, logs)));
    }
    ours
}

/// With `proxy_pass_header` a response has no `Server` or `Date` if the upstream sends none.
#[test]
fn fields_that_are_the_upstreams_business() {
    let up = Origin::start(|asked| {
        let own = if asked.target().ends_with("own") { "Server: up\r\nDate: never\r\n" } else { "" };
        let to = if asked.target().ends_with("to") { "X-Accel-Redirect: /file\r\n" } else { "" };
        let status = if asked.target().ends_with("no") { "404 No" } else { "200 OK" };
        asked.write(format!("HTTP/1.1 {status}\r\n{own}{to}Content-Length: 2\r\n\r\nok"))
    });
    let both = "proxy_pass_header Server; proxy_pass_header Date;";
    let conf = conf(&format!(
        "log_format u '$request|$status|$body_bytes_sent'; access_log logs/a.log u;\n\
         proxy_cache_path %DIR%/cache keys_zone=c:1m;\n\
         server {{ listen 127.0.0.1:%PORT0%;\n\
           location /none {{ proxy_pass http://{up}; }}\n\
           location /server {{ proxy_pass_header Server; proxy_pass http://{up}; }}\n\
           location /date {{ proxy_pass_header date; proxy_pass http://{up}; }}\n\
           location /both {{ {both} proxy_pass http://{up}; }}\n\
           location /kept {{ {both} proxy_cache c; proxy_cache_valid 1h; proxy_pass http://{up}; }}\n\
           location /page {{ {both} proxy_intercept_errors on; error_page 404 /file; proxy_pass http://{up}; }}\n\
           location /dead {{ {both} proxy_pass http://127.0.0.1:%PORT1%; }}\n\
           location = /file {{ return 200 file; }} }}"
    ));
    let uris = [
        "/none",
        "/none/own",
        "/server",
        "/server/own",
        "/date",
        "/date/own",
        "/both",
        "/both/own",
        "/both/to",
        "/both/no",
        "/kept",
        "/kept",
        "/kept",
        "/kept/own",
        "/kept/own",
        "/page/no",
    ];
    let (answers, _) = told(&conf, uris.len(), &uris);
    let of = |uri: &str| {
        let at = uris.iter().rposition(|u| *u == uri).expect("it was asked");
        let said = |name: &str| answers[at].lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
        (said("Server"), said("Date"))
    };
    assert_eq!(of("/none"), (Some("own"), Some("now")));
    assert_eq!(of("/server"), (None, Some("now")));
    assert_eq!(of("/date"), (Some("own"), None));
    assert_eq!((of("/both"), of("/both/no"), of("/kept")), ((None, None), (None, None), (None, None)));
    assert_eq!(of("/kept/own"), (Some("up"), Some("never")));
    // What is not the upstream's answer is ours.
    assert_eq!((of("/both/to"), of("/page/no")), (of("/none"), of("/none")));
}
