//! WebSockets by extended CONNECT (RFC 9220), to upstreams that speak HTTP/1.

use super::{Client, field, serve, site};
use crate::{upstream, websocket};
use forebay_testkit::{Names, Server, wait_until};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const PASSED: &str = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection;";

fn connect(path: &str, more: Value) -> Value {
    let mut fields = vec![json!([":protocol", "websocket"]), json!(["sec-websocket-version", "13"])];
    fields.extend(more.as_array().into_iter().flatten().cloned());
    json!({"method": "CONNECT", "path": path, "fields": fields, "end": false})
}

#[test]
fn bytes_pass_both_ways() {
    let Some(mut client) = Client::start() else { return };
    let (up, gone) = websocket::echo(true);
    let server = Server::start_on(site(&format!(
        "log_format f '$request $status $http_upgrade $upstream_status $body_bytes_sent';\n\
         server {{ listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; access_log logs/access.log f; location / {{ proxy_pass http://{up}; {PASSED} }} }}"
    )));
    client.connect("a", &server);
    client.request("a", "w", connect("/chat", json!([["sec-websocket-protocol", "x"]])));
    let told = client.call("answer", json!({"of": "w", "until": "head"}));
    assert_eq!(told["status"], 200, "{told}");
    assert_eq!(client.call("state", json!({"on": "a"}))["settings"]["8"], 1);
    for name in ["connection", "upgrade", "sec-websocket-accept"] {
        assert_eq!(field(&told, name), "", "{told}");
    }
    assert_eq!(field(&told, "sec-websocket-protocol"), "x");
    let mut sum = 0;
    for length in [5, 1, 100_000] {
        client.call("body", json!({"of": "w", "length": length, "end": false}));
        sum += length;
        let told = client.call("answer", json!({"of": "w", "until": "bytes", "count": sum}));
        assert_eq!((&told["length"], &told["ended"]), (&json!(sum), &json!(false)), "{told}");
    }
    // Other requests go on beside it.
    client.request("a", "other", connect("/chat", json!([])));
    client.call("answer", json!({"of": "other", "until": "head"}));
    client.call("body", json!({"of": "w", "body": "end", "end": false}));
    let told = client.answer("w");
    assert_eq!(
        (&told["length"], &told["ended"], &told["reset"]),
        (&json!(sum + 3), &json!(true), &json!(null))
    );
    // The client's end ends the upstream's connection.
    assert_eq!(gone.load(Ordering::SeqCst), 0);
    client.call("body", json!({"of": "other", "body": "bye", "end": false}));
    client.call("answer", json!({"of": "other", "until": "bytes", "count": 3}));
    client.call("body", json!({"of": "other", "end": true}));
    let told = client.answer("other");
    assert_eq!((&told["text"], &told["ended"], &told["closed"]), (&json!("bye"), &json!(true), &json!(null)));
    wait_until("the end of the upstream's connection", || gone.load(Ordering::SeqCst) == 1);
    let line = format!("GET /chat HTTP/3.0 200 websocket 101 {}", sum + 3);
    wait_until("the access log", || server.read("logs/access.log").contains(&line));
}

#[test]
fn invalid_websocket_requests_are_refused() {
    let Some(mut client) = Client::start() else { return };
    let (up, _) = websocket::echo(true);
    let (liar, _) = websocket::echo(false);
    let server = serve(&format!(
        "error_page 404 =200 /index.html;\n\
         location /liar {{ proxy_pass http://{liar}; {PASSED} }} location /plain {{ proxy_pass http://{up}; }}\n\
         location /text {{ return 200 text; }} location /moved {{ return 302 /; }} location /ok {{ proxy_pass http://{up}; {PASSED} }}"
    ));
    client.connect("a", &server);
    // A file may have a head that is ready.
    assert_eq!(client.get("a", "/page")["status"], 200);
    for (path, status) in [
        ("/page", 501),
        ("/none", 501),
        ("/text", 501),
        ("/plain", 501),
        ("/liar", 502),
        ("/moved", 302),
        ("/page", 501),
    ] {
        let told = client.ask("a", connect(path, json!([])));
        assert_eq!((&told["status"], &told["closed"]), (&json!(status), &json!(null)), "{path}: {told}");
    }
    let fields = |fields: Value| json!({"method": "CONNECT", "fields": fields, "end": false});
    assert_eq!(client.ask("a", fields(json!([[":protocol", "connect-udp"]])))["status"], 501);
    assert_eq!(client.ask("a", fields(json!([])))["status"], 405);
    let malformed = json!([[":protocol", "websocket"], ["content-length", "3"]]);
    for wrong in [fields(malformed), json!({"fields": [[":protocol", "websocket"]], "end": false})] {
        let told = client.ask("a", wrong);
        assert_eq!((&told["status"], &told["stopped"]), (&json!(400), &json!(0x10e)), "{told}");
    }
    client.request("a", "w", connect("/ok", json!([])));
    assert_eq!(client.call("answer", json!({"of": "w", "until": "head"}))["status"], 200);
    client.call("reset", json!({"of": "w"}));
    assert_eq!(client.get("a", "/page")["status"], 200);
}

/// `proxy_connection_drop` ends tunnels and content on streams, at their next bytes.
#[test]
fn streams_end_with_their_servers_if_that_is_wanted() {
    let Some(mut client) = Client::start() else { return };
    let known = Names::start(&["later.test"]);
    let dns = known.addr;
    let [http, locations] = upstream::talkative_locations(upstream::talkative(), dns);
    let server = Server::start_on(site(&format!(
        "{http} server {{ listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; {locations} }}"
    )));
    client.connect("a", &server);
    let is_known = |client: &mut Client| client.get("a", "/gone")["status"] == 200;
    wait_until("the name", || is_known(&mut client));
    let post = |path: &str| json!({"method": "POST", "path": path, "end": false});
    let all = [
        ("1", connect("/drop", json!([]))),
        ("2", post("/drop")),
        ("3", connect("/", json!([]))),
        ("4", post("/")),
    ];
    for (name, request) in all {
        client.request("a", name, request);
        client.call("body", json!({"of": name, "body": "x", "end": false}));
        let told = client.call("answer", json!({"of": name, "until": "bytes", "count": 4}));
        assert_eq!(told["length"], 4, "{told}");
    }
    known.know(&[]);
    wait_until("the end of the name", || !is_known(&mut client));
    for name in ["1", "2", "3", "4"] {
        client.call("body", json!({"of": name, "body": "x", "end": false}));
    }
    for name in ["3", "4"] {
        let told = client.call("answer", json!({"of": name, "until": "bytes", "count": 8}));
        assert_eq!(told["length"], 8, "{told}");
    }
    for name in ["1", "2"] {
        let told = client.answer(name);
        assert_eq!(told["length"], 4, "{told}");
    }
}
