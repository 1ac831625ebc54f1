//! `scgi_pass` and `uwsgi_pass`, with servers made here.

use forebay_testkit::gateways::{self, Call};
use forebay_testkit::{Server, compare_with, http};
use std::net::{SocketAddr, TcpStream};

forebay_testkit::cases!("cases/scgi_uwsgi.cases": uwsgi_over_tls);

/// A server that answers what it is told by `QUERY_STRING`, or else with what it was asked.
fn start(read: fn(&mut TcpStream) -> Option<Call>) -> SocketAddr {
    gateways::start(read, |call| {
        let answer = match call.get("QUERY_STRING") {
            "cgi" => "Status: 404 Nope\nContent-Type: text/plain\n\nnot there",
            "http" => "HTTP/1.0 201 Made\r\nContent-Type: text/plain\r\nLocation: /x\r\n\r\nmade",
            "redirect" => "Location: /elsewhere\r\n\r\n",
            "short" => "Content-Length: 10\r\n\r\npart",
            "long" => "Content-Length: 4\r\nContent-Type: text/plain\r\n\r\npart and more",
            "hide" => "Status: 200 OK\r\nDate: x\r\nServer: y\r\nConnection: z\r\n\r\nx",
            "none" => "",
            "half" => "HTTP/1",
            "bad" => "Content-Type: x\r\nX y: z\r\n\r\n",
            "interim" => "HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            "line" => "HTTP/1.1 what\r\n\r\n",
            _ => {
                let add = |sum: u64, b: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*b));
                let (length, sum) = (call.content.len(), call.content.iter().fold(7, add));
                let text = format!("Content-Type: text/plain\r\n\r\n{}", call.params);
                return format!("{text}\nlength={length} sum={sum}\n").into_bytes();
            }
        };
        answer.as_bytes().to_vec()
    })
}

fn locations() -> String {
    let params = |kind: &str| {
        format!(
            "{kind}_param QUERY_STRING $query_string; {kind}_param REQUEST_METHOD $request_method;\n\
             {kind}_param EMPTY \"\"; {kind}_param NONE $arg_none if_not_empty; {kind}_param HTTP_GIVEN mine;\n\
             {kind}_param REQUEST_URI $request_uri; {kind}_param HTTP_HIDDEN \"\";"
        )
    };
    let (s, u) = (start(gateways::scgi), start(gateways::uwsgi));
    format!(
        "{} {} uwsgi_param CONTENT_LENGTH $content_length;\n\
         location /s {{ scgi_pass {s}; }}\n\
         location /s/streamed {{ scgi_pass {s}; scgi_request_buffering off; }}\n\
         location /s/bare {{ scgi_pass {s}; scgi_pass_request_headers off; }}\n\
         location /u {{ uwsgi_pass {u}; }}\n\
         location /u/streamed {{ uwsgi_pass uwsgi://{u}; uwsgi_request_buffering off; }}\n\
         location /u/own {{ uwsgi_pass {u}; uwsgi_modifier1 5; uwsgi_modifier2 30; uwsgi_string --$uri; }}",
        params("scgi"),
        params("uwsgi")
    )
}

fn ask(line: &str, fields: &str, body: &str) -> String {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("{line} HTTP/1.0\r\nHost: localhost\r\n{fields}{length}\r\n{body}")
}

#[test]
fn as_nginx_does() {
    let mut requests = Vec::new();
    for kind in ["s", "u"] {
        let uri = format!("/{kind}");
        requests.extend([
            ask(&format!("GET {uri}?q"), "Given: a\r\nHidden: b\r\nX-Other: c\r\nCookie: a=1\r\n", ""),
            ask(&format!("POST {uri}"), "Content-Type: text/x\r\n", "some content"),
            format!(
                "POST {uri} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                 4\r\nsome\r\n0\r\n\r\n"
            ),
            ask(&format!("HEAD {uri}"), "", ""),
        ]);
        for what in ["cgi", "http", "redirect", "long", "hide", "none", "half", "bad"] {
            requests.push(ask(&format!("GET {uri}?{what}"), "", ""));
        }
    }
    requests.push(ask("GET /u/own", "", ""));
    let paths = "scgi_temp_path %DIR%/body/s; uwsgi_temp_path %DIR%/body/u;";
    let server = format!("{paths} server {{ listen 127.0.0.1:%PORT0%; {} }}", locations());
    compare_with(&server, &[], &requests);
}

#[test]
fn invalid_answers_and_parameters_are_refused() {
    let server = Server::start(http!(
        "large_client_header_buffers 20 20k; scgi_temp_path %DIR%/s;\n\
         uwsgi_temp_path %DIR%/u; server {{ listen 127.0.0.1:%PORT0%; {}\n\
         location /v {{ uwsgi_pass $arg_to; uwsgi_param LONG $http_long$http_long$http_long$http_long; }} }}",
        locations()
    ));
    for (what, text) in [
        ("interim", "upstream sent invalid status \"103 Early\""),
        ("line", "upstream sent no valid HTTP/1.0 header"),
    ] {
        for (kind, name) in [("s", "scgi"), ("u", "uwsgi")] {
            let got = server.get(format!("/{kind}?{what}"));
            assert!(got.starts_with("HTTP/1.1 502 "), "{what}: {got}");
            server.wait_for_log(format!("{text} while reading response header from upstream"), 1);
            server.wait_for_log(format!("upstream: \"{name}://127.0.0.1:"), 1);
        }
    }
    for uri in ["/s/streamed", "/u/streamed"] {
        let got = server.raw(ask(&format!("POST {uri}"), "", &"x".repeat(100_000)));
        assert!(String::from_utf8_lossy(&got).contains("\nlength=100000 sum=12158521846703924231\n"));
    }
    // Newer versions of nginx say the host in any case.
    let got = server.raw(ask("POST /s/bare", "X: y\r\n", "content"));
    assert!(String::from_utf8_lossy(&got).contains("REQUEST_URI=/s/bare\nHTTP_HOST=localhost\n\nlength=7 "));
    // A length that is not kept: what there is, and no end.
    for uri in ["/s?short", "/u?short"] {
        let got = server.get(uri);
        assert!(got.starts_with("HTTP/1.1 200 ") && got.ends_with("\r\n\r\npart"), "{got}");
    }
    server.wait_for_log("upstream prematurely closed connection while reading upstream", 2);
    assert!(server.get("/v?to=127.0.0.1").starts_with("HTTP/1.1 500 "));
    server.wait_for_log("no port in upstream \"127.0.0.1\"", 1);
    let long = ask("GET /v?to=127.0.0.1:9", &format!("Long: {}\r\n", "l".repeat(17_000)), "");
    assert!(server.raw(&long).starts_with(b"HTTP/1.1 500 "));
    server.wait_for_log("[alert]", 1);
    server.wait_for_log("uwsgi request is too big: 8", 1);
}

/// As for FastCGI: a client does not choose the proxy of a program's own requests.
#[test]
fn a_field_proxy_is_no_parameter() {
    let (s, u) = (start(gateways::scgi), start(gateways::uwsgi));
    let server = Server::start(http!(
        "scgi_temp_path %DIR%/s; uwsgi_temp_path %DIR%/u; server {{ listen 127.0.0.1:%PORT0%;\n\
         location /s/ {{ scgi_pass {s}; }} location /s/set {{ scgi_pass {s}; scgi_param HTTP_PROXY mine; }}\n\
         location /u/ {{ uwsgi_pass {u}; }} location /u/set {{ uwsgi_pass {u}; uwsgi_param HTTP_PROXY mine; }} }}"
    ));
    for kind in ["s", "u"] {
        let get = |rest: &str| {
            let fields = "proxy: evil\r\nX-Proxy: y\r\n";
            let request = ask(&format!("GET /{kind}/{rest}"), fields, "");
            server.ask(&request)
        };
        let answer = get("");
        assert!(!answer.contains("HTTP_PROXY=") && answer.contains("HTTP_X_PROXY=y"), "{answer}");
        let answer = get("set");
        assert!(answer.contains("HTTP_PROXY=mine") && !answer.contains("evil"), "{answer}");
    }
}
