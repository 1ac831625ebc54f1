//! `forebay bench --http3` against the server.

use super::serve;
use forebay_testkit::{Server, program, run, wait_for};
use serde_json::Value;

/// Loads a path of the server. Returns the exit code and the result.
fn bench(server: &Server, path: &str, args: &[&str]) -> (i32, Value) {
    let url = format!("https://{}{path}", server.addr(0));
    let all = [&["bench", "--http3", "--insecure", "-q", "--json", "-", &url], args].concat();
    let (code, text, errors) = run(program(), &all).expect("runs");
    (code, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{all:?}: {e}: {text}{errors}")))
}

/// Waits until the access log has so many lines and returns it.
fn log(server: &Server, lines: usize) -> String {
    wait_for("the access log", || {
        let text = server.read("logs/access.log");
        (text.lines().count() >= lines).then_some(text)
    })
}

#[test]
fn load_has_the_counts_of_the_access_log() {
    let server = serve("access_log logs/access.log; keepalive_requests 70;");
    let mut lines = 0;
    for (count, path, args, length) in [
        (200, "/page", &["-c", "3", "-m", "5"][..], 10_000),
        (60, "/page", &["-c", "2", "--no-keepalive"], 10_000),
        (100, "/", &["-c", "2", "-r", "2000"], 5),
        (20, "/large", &["-c", "2", "-m", "2", "--expect-length", "2000000"], 2_000_000),
        (20, "/page", &["-c", "1", "--expect-body", "01234567890123"], 10_000),
    ] {
        let n = count.to_string();
        let (code, told) = bench(&server, path, &[args, &["-n", &n]].concat());
        assert_eq!(code, 0, "{args:?}: {told}");
        assert_eq!(
            (&told["requests"]["ok"], &told["statuses"]["200"]),
            (&count.into(), &count.into()),
            "{args:?}: {told}"
        );
        assert_eq!(told["bytes"]["content"], count * length, "{args:?}: {told}");
        assert_eq!(told["tls"]["handshakes"], told["connections_made"], "{args:?}: {told}");
        assert!(
            told["quic"]["packets_sent"].as_u64() > told["connections_made"].as_u64(),
            "{args:?}: {told}"
        );
        lines += count;
        let log = log(&server, lines);
        assert_eq!(log.lines().count(), lines, "{args:?}");
        assert!(log.lines().all(|line| line.contains("HTTP/3.0\" 200 ")), "{args:?}: {log}");
    }
    let (code, told) = bench(&server, "/none", &["-n", "10"]);
    assert_eq!((code, &told["errors"]["status"]), (2, &10.into()), "{told}");
}

#[test]
fn load_resumes_sessions_and_proves_its_address() {
    let server = serve("quic_retry on; ssl_session_cache shared:a:1m;");
    for (args, resumed) in [(&[][..], 0), (&["--resume"], 39)] {
        let (code, told) = bench(&server, "/", &[&["-n", "40", "-c", "1", "--no-keepalive"], args].concat());
        assert_eq!((code, &told["requests"]["ok"]), (0, &40.into()), "{told}");
        assert_eq!(
            (&told["tls"]["handshakes"], &told["tls"]["resumed"]),
            (&40.into(), &resumed.into()),
            "{told}"
        );
    }
}

#[test]
fn load_sends_content() {
    let server = serve("client_max_body_size 10m; location /put/ { dav_methods PUT; }");
    let (dir, all) = (server.dir().join("html/put"), std::os::unix::fs::PermissionsExt::from_mode(0o777));
    std::fs::create_dir(&dir).expect("a directory");
    // The worker may be another user.
    std::fs::set_permissions(&dir, all).expect("permissions");
    server.write("content", "x".repeat(1 << 20));
    let content = format!("@{}", server.dir().join("content").display());
    let args = ["-n", "20", "-c", "2", "-m", "2", "-X", "PUT", "-b", &content];
    let (code, told) = bench(&server, "/put/file", &args);
    assert_eq!((code, &told["requests"]["ok"]), (0, &20.into()), "{told}");
    assert!(told["bytes"]["sent"].as_u64().is_some_and(|sent| sent > 20 << 20), "{told}");
    assert_eq!(server.read("html/put/file").len(), 1 << 20);
}

#[test]
fn wrong_ways_to_ask_for_load_are_told() {
    for (args, words) in [
        (&["http://127.0.0.1:1/"][..], "HTTP/3 is always encrypted"),
        (&["unix:/run/x.sock"], "HTTP/3 is always encrypted"),
        (&["https://127.0.0.1:1/", "--http2"], "runs of their own"),
        (&["https://127.0.0.1:1/", "--pipeline", "2"], "--pipeline is for HTTP/1.1"),
        (&["tcp://127.0.0.1:1"], "--http3 is for HTTP"),
    ] {
        let (code, _, errors) = run(program(), &[&["bench", "--http3"], args].concat()).expect("runs");
        assert!(code == 2 && errors.contains(words), "{args:?}: {code} {errors}");
    }
}

#[test]
fn load_compares_servers_that_are_started_for_it() {
    let site = super::site("server { listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; }");
    let (url, conf) =
        (format!("https://{}/", site.addr(0)), format!("forebay:{}/nginx.conf", site.dir().display()));
    let args = ["bench", "compare", "--http3", "--insecure", "--rounds", "4", "--turn", "500ms", "-c", "2"];
    let all = [&args[..], &["--url", &url, &conf, &conf]].concat();
    let (code, out, errors) = run(program(), &all).expect("runs");
    assert!(code == 0 && out.contains("95 %"), "{out}{errors}");
}
