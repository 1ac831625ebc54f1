//! `Alt-Svc` over TCP.

use super::{Client, field, serve, site};
use forebay_testkit::{Server, run, wait_until};

/// Values of `Alt-Svc` of a response that curl gets.
fn alt_svc(url: &str, args: &[&str]) -> Vec<String> {
    let (_, told, why) = run("curl", &[&["-sSki", "-m", "20", url], args].concat()).expect("curl");
    assert!(told.starts_with("HTTP/"), "{url}: {told} {why}");
    let of_line = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("alt-svc").then(|| value.trim_end().to_owned())
    };
    told.lines().filter_map(of_line).collect()
}

#[test]
fn responses_over_tls_name_the_port() {
    let server = Server::start_on(site(
        "http2 on; gzip on; gzip_types *; log_format f escape=none '$server_port [$sent_http_alt_svc]';\n\
         server { listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; listen 127.0.0.1:%PORT1% ssl;\n\
         listen 127.0.0.1:%PORT2%; listen unix:%DIR%/s ssl; access_log logs/access.log f if=$arg_log;\n\
         location /own { add_header Alt-Svc 'h3=\":1\"'; return 200 a; } }\n\
         server { listen 127.0.0.1:%PORT0% ssl; listen 127.0.0.1:%PORT0% quic; server_name a.test; http3_alt_svc 'h3=\":9\"; ma=1'; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; listen 127.0.0.1:%PORT0% quic; server_name b.test; http3_alt_svc off; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; listen 127.0.0.1:%PORT0% quic; server_name c.test; http3 off; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name d.test; }",
    ));
    let port = |i| server.addr(i).port();
    let usual = vec![format!("h3=\":{}\"; ma=86400", port(0))];
    let url = |i: usize, path: &str| format!("https://127.0.0.1:{}{path}", port(i));
    for version in ["--http1.1", "--http2"] {
        // Twice: the second response of a file has the head of the first.
        for path in ["/page", "/page", "/none", "/own?"] {
            let want = if path.starts_with("/own") { vec!["h3=\":1\"".to_owned()] } else { usual.clone() };
            assert_eq!(alt_svc(&url(0, path), &[version]), want, "{version} {path}");
        }
        let gzip = ["--compressed", version];
        assert_eq!(
            (alt_svc(&url(0, "/page"), &gzip), alt_svc(&url(0, "/page"), &gzip)),
            (usual.clone(), usual.clone())
        );
        assert_eq!(alt_svc(&url(1, "/page"), &[version]), usual, "the server has no other port");
        for (name, want) in [("a", &["h3=\":9\"; ma=1"][..]), ("b", &[]), ("c", &[]), ("d", &[])] {
            let host = format!("{name}.test:{}:127.0.0.1", port(0));
            let url = format!("https://{name}.test:{}/page", port(0));
            assert_eq!(alt_svc(&url, &[version, "--resolve", &host]), want, "{version} {name}");
        }
    }
    let plain = format!("http://127.0.0.1:{}/page", port(2));
    assert_eq!((alt_svc(&plain, &[]), alt_svc(&plain, &[])), (vec![], vec![]));
    let socket = server.dir().join("s").display().to_string();
    assert_eq!(alt_svc("https://localhost/page", &["--unix-socket", &socket]), Vec::<String>::new());
    alt_svc(&url(0, "/page?log=1"), &[]);
    let line = format!("{} [{}]", port(0), usual[0]);
    wait_until("the log", || server.read("logs/access.log").contains(&line));
}

#[test]
fn http3_itself_has_only_what_the_configuration_adds() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("location /own { add_header Alt-Svc 'h3=\":%PORT0%\"; ma=60'; return 200 a; }");
    client.connect("a", &server);
    assert_eq!(field(&client.get("a", "/page"), "alt-svc"), "");
    let port = server.addr(0).port();
    assert_eq!(field(&client.get("a", "/own"), "alt-svc"), format!("h3=\":{port}\"; ma=60"));
}

#[test]
fn values_are_checked() {
    for (word, ok) in [("auto", true), ("off", true), ("clear", true), ("''", false), ("'a\nb'", false)] {
        let site = site(&format!("http3_alt_svc {word};"));
        let told = site.run(&["-t"]);
        let text = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!((told.status.success(), text.contains("http3_alt_svc")), (ok, !ok), "{word}: {text}");
    }
}
