//! HTTP/0.9 over QUIC (nginx: http3_hq).

use super::{Client, site};
use forebay_testkit::{Server, wait_until};
use serde_json::{Value, json};

fn connect(client: &mut Client, server: &Server, alpn: &str, port: usize) -> Value {
    let options = json!({"raw": true, "alpn": alpn, "port": server.addr(port).port()});
    client.connect_with("a", server, options)
}

fn ask(client: &mut Client, name: &str, line: &str) -> Value {
    let hex: String = line.bytes().map(|b| format!("{b:02x}")).collect();
    client.call("raw", json!({"on": "a", "steps": [[name, hex, true]]}));
    client.answer(name)
}

#[test]
fn requests_are_lines_and_responses_content() {
    let Some(mut client) = Client::start() else { return };
    let server = Server::start_on(site(
        "log_format f '[$request] $status $body_bytes_sent $http3'; keepalive_timeout 60; access_log logs/access.log f;\n\
         server { listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; http3_hq on;\n\
         location /variables { return 200 \"$http3 [$server_protocol] $request_method $uri $args\"; } }\n\
         server { listen 127.0.0.1:%PORT1% quic; http3 off; http3_hq on; }\n\
         server { listen 127.0.0.1:%PORT2% quic; }",
    ));
    let told = connect(&mut client, &server, "hq-interop", 0);
    assert_eq!(told["connected"], true, "{told}: {}", server.error_log());
    let told = ask(&mut client, "bidi1", "GET /page\r\n");
    assert_eq!((&told["length"], &told["ended"]), (&json!(10_000), &json!(true)), "{told}");
    // Without a line end.
    let told = ask(&mut client, "bidi2", "GET /large");
    assert_eq!((&told["length"], &told["ended"]), (&json!(2_000_000), &json!(true)));
    let told = ask(&mut client, "bidi3", "GET /variables?x\n");
    assert_eq!(told["text"], "hq [] GET /variables x");
    for (name, line, text) in [
        ("bidi4", "GET /none\r\n".to_owned(), "404 Not Found"),
        ("bidi5", "GET /page HTTP/1.1\r\n".to_owned(), "400 Bad Request"),
        ("bidi6", "\0\r\n".to_owned(), "400 Bad Request"),
        ("bidi7", format!("GET /{}", "x".repeat(40_000)), "414 Request-URI Too Large"),
    ] {
        let told = ask(&mut client, name, &line);
        assert!(told["text"].as_str().is_some_and(|t| t.contains(text)), "{text}: {told}");
        assert_eq!((&told["ended"], &told["closed"]), (&json!(true), &json!(null)), "{text}");
    }
    let told = ask(&mut client, "bidi8", "");
    assert_eq!((&told["ended"], &told["closed"]), (&json!(false), &json!(null)), "nothing was asked for");
    wait_until("the access log", || server.read("logs/access.log").contains("[GET /page] 200 10000 hq\n"));
    client.connect("b", &server);
    assert_eq!(client.get("b", "/variables")["text"], "h3 [HTTP/3.0] GET /variables ");
    for (alpn, port, connected) in
        [("hq-interop", 1, true), ("h3", 1, false), ("hq-interop", 2, false), ("h3", 2, true)]
    {
        assert_eq!(connect(&mut client, &server, alpn, port)["connected"], connected, "{alpn} {port}");
    }
}
