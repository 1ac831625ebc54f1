//! `more_set_headers` and its kin, and the directives of set-misc.

use crate::harness::Server;

fn start(http: &str) -> Server {
    Server::start(&format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; {http} }}"
    ))
}

fn refusal(server: &str) -> String {
    let site = crate::harness::Site::new(&format!(
        "pid logs/nginx.pid; events {{}} http {{ server {{ listen 127.0.0.1:%PORT0%; {server} }} }}"
    ));
    let out = site.run(&["-t"]);
    assert!(!out.status.success(), "{server}");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn fields_of_responses_are_set_and_cleared() {
    let server = start(
        "more_set_headers 'X-Outer: http' 'X-Order: outer'; more_set_headers 'Server: mine';\n\
         server { listen 127.0.0.1:%PORT0%; default_type text/plain;\n\
         location / { more_set_headers 'X-Order: inner'; return 200 ok; }\n\
         location /status { more_set_headers -s 404 -s '500 503' 'X-Bad: $status'; return 404; }\n\
         location /other { more_set_headers -s '500 503' 'X-Bad: yes'; return 404; }\n\
         location /type { more_set_headers -t 'text/html text/plain' 'X-Type: text';\n\
          more_set_headers -t text/css 'X-Css: yes'; more_set_headers 'Content-Type: a/b; x=y'; return 200 ok; }\n\
         location /append { more_set_headers -a 'X-Outer: two' 'Server: last'; return 200 ok; }\n\
         location /clear { more_clear_headers Server 'X-O*' Content-Type; add_header X-Other added; return 200 ok; }\n\
         location /length { more_clear_headers Content-Length; return 200 ok; }\n\
         location /empty { more_set_headers 'X-Outer: $arg_none'; return 200 ok; }\n\
         location /if { if ($arg_a) { more_set_headers 'X-If: $arg_a'; } return 200 ok; }\n\
         location /break { more_set_headers 'X-A: $arg_a'; set_unescape_uri $x $arg_a; more_set_headers 'X-X: $x'; return 200 ok; } }",
    );
    let get = |uri: &str| server.get(uri);
    let a = get("/");
    assert!(a.contains("\r\nX-Outer: http\r\n") && a.contains("\r\nX-Order: inner\r\n"), "{a}");
    assert!(!a.contains("X-Order: outer") && a.contains("\r\nServer: mine\r\n"), "{a}");
    assert_eq!(a.matches("Server:").count(), 1, "{a}");
    let a = get("/status");
    assert!(a.starts_with("HTTP/1.1 404") && a.contains("\r\nX-Bad: 404\r\n"), "{a}");
    assert!(!get("/other").contains("X-Bad"));
    let a = get("/type");
    assert!(a.contains("\r\nX-Type: text\r\n") && !a.contains("X-Css"), "{a}");
    assert!(a.contains("\r\nContent-Type: a/b; x=y\r\n") && a.matches("Content-Type").count() == 1, "{a}");
    let a = get("/append");
    assert!(a.contains("X-Outer: http\r\n") && a.contains("X-Outer: two\r\n"), "{a}");
    assert!(a.contains("Server: last\r\n") && !a.contains("Server: mine"), "{a}");
    let a = get("/clear");
    assert!(!a.contains("Server:") && !a.contains("Content-Type") && !a.contains("X-Outer"), "{a}");
    assert!(a.contains("\r\nX-Other: added\r\n"), "add_header runs later: {a}");
    let a = get("/length");
    assert!(!a.contains("Content-Length") && a.contains("ok"), "{a}");
    assert!(!get("/empty").contains("X-Outer"));
    assert!(get("/if?a=1").contains("\r\nX-If: 1\r\n") && !get("/if").contains("X-If"));
    // A line break in a value is an error, not another field.
    let a = get("/break?a=b%0d%0aInjected:%20yes");
    assert!(a.starts_with("HTTP/1.1 500") && !a.contains("\r\nInjected"), "{a}");
}

#[test]
fn fields_of_requests_are_set_and_cleared() {
    let server = start(
        "server { listen 127.0.0.1:%PORT0%; more_set_input_headers 'X-Outer: server';\n\
         location / { more_set_input_headers 'X-New: $arg_v' 'Host: Other.Example:81'; more_clear_input_headers 'X-Hidden-*' User-Agent;\n\
          more_set_input_headers -r 'X-There: replaced' 'X-Absent: never'; more_set_input_headers -t text/css 'X-Css: yes';\n\
          more_set_input_headers -t text/plain 'X-Plain: yes'; proxy_set_header Host $http_host; proxy_pass http://127.0.0.1:%PORT1%; }\n\
         location /all { more_clear_input_headers '*'; proxy_pass http://127.0.0.1:%PORT1%/; } }\n\
         server { listen 127.0.0.1:%PORT1%; client_body_in_single_buffer on; location / { proxy_pass http://127.0.0.1:%PORT2%; } }\n\
         server { listen 127.0.0.1:%PORT2%; location / { return 200 \
          'n=$http_x_new|o=$http_x_outer|h=$http_x_hidden_a|t=$http_x_there|a=$http_x_absent|c=$http_x_css|p=$http_x_plain|u=$http_user_agent|l=$content_length|'; } }",
    );
    let head = "User-Agent: me\r\nX-Hidden-A: 1\r\nX-There: old\r\nX-There: older\r\nContent-Type: text/plain; charset=x\r\n";
    // Body and next request follow the head in the same bytes.
    let two = format!(
        "POST /?v=one HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 5\r\n\r\nHELLO\
         POST /?v=two HTTP/1.1\r\nHost: x\r\n{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
         POST /all HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    );
    let answer = String::from_utf8_lossy(&server.raw(two.as_bytes())).into_owned();
    for part in [
        "n=one|o=server|h=|t=replaced|a=|c=|p=yes|u=|l=5|",
        "n=two|o=server|h=|t=replaced|a=|c=|p=yes|u=|l=3|",
        "n=|o=|h=|t=|a=|c=|p=|u=|l=3|",
    ] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 3, "{answer}");
}

#[test]
fn fields_that_cannot_be_changed_are_refused() {
    for (server, text) in [
        ("more_set_input_headers 'Content-Length: 3';", "frames the body"),
        ("more_set_input_headers 'transfer-encoding: chunked';", "frames the body"),
        ("more_clear_input_headers Content-Length;", "frames the body"),
        ("more_set_headers 'Content-Length: 3';", "frames the body"),
        ("more_set_input_headers -s 404 'A: b';", "invalid option \"-s\""),
        ("more_set_headers -s 4x4 'A: b';", "invalid status \"4x4\""),
        ("more_set_headers -s;", "has no value"),
        ("more_set_headers -s 404;", "no header"),
        ("more_set_headers 'A b: c';", "invalid header name"),
        ("more_set_headers 'A*: c';", "invalid header name"),
        ("if ($arg_a) { more_set_headers 'A: b'; }", "is not allowed here"),
        ("set_secure_random_alphanum $a 0;", "from 1 to 64"),
        ("set_md5 a b;", "invalid variable name"),
        ("set_quote_sql_str $a b;", "set-misc-nginx-module"),
    ] {
        // The asterisk is a character of names that RFC 9110 allows, but a wildcard only where fields are cleared.
        let refused = refusal(server);
        assert!(refused.contains(text), "{server}: {refused}");
    }
}

#[test]
fn functions_run_in_order_with_set() {
    let server = start(
        "server { listen 127.0.0.1:%PORT0%; location / { set $a $arg_a; set_if_empty $a none; set $b $a; set_escape_uri $a;\n\
          set_md5 $m $b; set_encode_hex $h $b; set $c ''; if ($arg_x) { set_encode_base64 $c $arg_x; }\n\
          set_secure_random_lcalpha $r 12; return 200 '$a|$b|$m|$h|$c|$r|'; } }",
    );
    let a = server.get("/?a=a/b&x=abcde");
    assert!(a.contains("a%2Fb|a/b|") && a.contains("|612f62|YWJjZGU=|"), "{a}");
    let a = server.get("/");
    assert!(a.contains("none|none|334c4a4c42fdb79d7ebc3e73b517e6f8|6e6f6e65||"), "{a}");
}

/// The value of a field that is cleared says nothing, as in the module.
#[test]
fn a_field_is_cleared_whatever_value_is_named() {
    let server = start(
        "server { listen 127.0.0.1:%PORT0%; location / { more_clear_headers 'X-A: other' 'x-b: $arg_v' 'X-C*: y' 'Server: z' 'ETag : w';\n\
          more_clear_input_headers 'X-In: any'; proxy_pass http://127.0.0.1:%PORT1%; } }\n\
         server { listen 127.0.0.1:%PORT1%; location / { add_header X-A 1; add_header X-B 2; add_header X-CC 3; add_header X-D $http_x_in;\n\
          add_header X-E kept; add_header ETag '\"e\"'; return 200 ok; } }",
    );
    let answer = String::from_utf8_lossy(
        &server.raw(b"GET /?v=2 HTTP/1.1\r\nHost: h\r\nX-In: 1\r\nConnection: close\r\n\r\n"),
    )
    .into_owned();
    assert!(answer.contains("\r\nX-E: kept\r\n"), "{answer}");
    for gone in ["X-A", "X-B", "X-CC", "X-D", "Server", "ETag"] {
        assert!(!answer.contains(&format!("\r\n{gone}:")), "{gone}: {answer}");
    }
}
