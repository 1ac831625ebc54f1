//! `forebay healthcheck`.

use forebay_testkit::{Server, Signal, Site, silent};

/// Runs the subcommand on a site whose configuration has this `listen`: exit code and standard error.
fn healthcheck(site: &Site, listen: &str, more: &str) -> (i32, String) {
    site.write("checked.conf", format!("events {{}} http {{ include listen.conf; }} # {listen}"));
    site.write("listen.conf", format!("server {{ {listen} }}"));
    let done = site.forebay(&format!("healthcheck -p . -c checked.conf {more}"));
    (done.code, done.err)
}

#[test]
fn a_server_that_answers_is_healthy() {
    // The application never answers: a check of a resource would wait for it.
    let (application, _) = silent();
    let mut server = Server::start(format!(
        "pid logs/nginx.pid; error_log logs/error.log; events {{}}
        http {{ log_format status $status; access_log logs/access.log status;
            server {{ listen 127.0.0.1:%PORT2% ssl; ssl_reject_handshake on; }}
            server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% proxy_protocol; listen unix:%DIR%/s;
            listen 127.0.0.1:%PORT3% deferred; http2 on;
            location / {{ proxy_pass http://{application}; }} location /well {{ return 204; }} location /moved {{ return 301 /; }} }} }}"
    ));
    let healthy = (0, String::new());
    for listen in [
        "listen %PORT0%; listen 1;",
        "listen 127.0.0.1:%PORT0%;",
        "listen 1 quic; listen localhost:%PORT0%;",
        "listen 127.0.0.1:%PORT1% proxy_protocol;",
        "listen unix:%DIR%/s;",
        "listen 127.0.0.1:%PORT2% ssl;",
        "listen 127.0.0.1:%PORT3% deferred;",
    ] {
        assert_eq!(healthcheck(&server.site, listen, ""), healthy, "{listen}");
    }
    let url = |path: &str| format!("http://{}{path}", server.addr(0));
    assert_eq!(healthcheck(&server.site, "", &url("/well")), healthy);
    assert_eq!(healthcheck(&server.site, "", &url("/moved?a")), healthy);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_end(), Some(0));
    // Only the requests of the last two checks.
    assert_eq!((server.read("logs/access.log").as_str(), server.error_log().as_str()), ("204\n301\n", ""));
    let (code, text) = healthcheck(&server.site, "listen %PORT0%;", "");
    assert_eq!(code, 1);
    assert!(text.starts_with("forebay healthcheck: no answer: Connection refused"), "{text}");
}

#[test]
fn silence_and_refusals_are_not_healthy() {
    let (address, _) = silent();
    let server = Server::start(
        "pid logs/nginx.pid; error_log logs/error.log; events {}
        http { server { listen 127.0.0.1:%PORT0%; location / { return 500; } } }",
    );
    let failure = |text: &str| (1, format!("forebay healthcheck: {text}\n"));
    let check = |more: &str| healthcheck(&server.site, &format!("listen {address};"), more);
    let (code, text) = check("--timeout 1");
    assert_eq!(code, 1);
    assert!(text.starts_with("forebay healthcheck: no answer: "), "{text}");
    assert_eq!(check(&format!("http://{}/", server.addr(0))), failure("status 500"));
    assert_eq!(check("https://localhost/"), failure("not an http:// URL: \"https://localhost/\""));
}
