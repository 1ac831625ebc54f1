//! The same requests over HTTP/2 and HTTP/3 get the same answers.

use super::{Client, site};
use forebay_http::h2::frame::{flag, kind};
use forebay_testkit::{Origin, Server, connect, expires_after, fastcgi, h2, wait_until};
use serde_json::{Value, json};

/// Request, by parts that most do without.
#[derive(Default)]
struct Case {
    method: &'static str,
    path: &'static str,
    fields: Vec<(&'static str, &'static str)>,
    /// Length of the content.
    length: usize,
    trailers: bool,
}

fn get(path: &'static str) -> Case {
    with(path, &[])
}

fn with(path: &'static str, fields: &[(&'static str, &'static str)]) -> Case {
    Case { method: "GET", path, fields: fields.to_vec(), ..Case::default() }
}

fn post(path: &'static str, length: usize) -> Case {
    Case { method: "POST", path, length, ..Case::default() }
}

/// Answer as both versions can have it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    fields: Vec<(String, String)>,
    interim: Vec<Vec<(String, String)>>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    ended: bool,
}

/// Sorts fields and leaves out those that differ.
fn sorted(mut fields: Vec<(String, String)>) -> Vec<(String, String)> {
    let date = fields.iter().find(|(name, _)| name == "date").map(|(_, value)| value.clone());
    for (_, value) in fields.iter_mut().filter(|(name, _)| name == "expires") {
        *value = expires_after(date.as_deref(), value);
    }
    let mut fields: Vec<_> =
        fields.into_iter().filter(|(name, _)| name != "date" && name != "alt-svc").collect();
    for (_, value) in fields.iter_mut().filter(|(name, _)| name == "content-type") {
        value.truncate(value.find("boundary=").unwrap_or(value.len()));
    }
    fields.sort();
    fields
}

/// Asks over HTTP/2.
fn old(client: &mut h2::Client, stream: u32, case: &Case) -> Told {
    let mut fields = vec![(":method", case.method)];
    fields.extend(&case.fields);
    let bodiless = case.length == 0 && !case.trailers;
    client.request(stream, case.path, &fields, bodiless);
    let mut left = case.length;
    let mut window = 65_535;
    while left > 0 {
        let n = left.min(window).min(16_384);
        if n == 0 {
            match client.next() {
                Some(f) if f.kind == kind::WINDOW_UPDATE && f.stream == stream => {
                    window +=
                        u32::from_be_bytes(f.payload.as_slice().try_into().expect("four bytes")) as usize;
                }
                Some(f) if f.stream != stream => {}
                Some(answer) => {
                    client.put_back(&answer);
                    break;
                }
                None => panic!("{} {}: no window", case.method, case.path),
            }
            continue;
        }
        (left, window) = (left - n, window - n);
        let end = left == 0 && !case.trailers;
        client.frame(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, &vec![b'x'; n]);
    }
    if case.trailers {
        let block = [&[0, 5][..], b"x-sum", &[1], b"1"].concat();
        client.frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &block);
    }
    let a = client.answer(stream);
    Told {
        fields: sorted(a.fields),
        interim: a.interim.into_iter().map(sorted).collect(),
        body: a.body,
        trailers: sorted(a.trailers),
        ended: a.ended,
    }
}

/// Asks over HTTP/3.
fn new(client: &mut Client, case: &Case) -> Told {
    let mut request = json!({"method": case.method, "path": case.path, "fields": case.fields});
    if case.length > 0 {
        request["length"] = json!(case.length);
    }
    if case.trailers {
        request["trailers"] = json!([["x-sum", "1"]]);
    }
    request["text"] = json!(true);
    let told = client.ask("a", request);
    let pairs =
        |list: &Value| -> Vec<(String, String)> { serde_json::from_value(list.clone()).expect("pairs") };
    let interim = told["interim"].as_array().expect("heads").iter().map(|head| sorted(pairs(head)));
    Told {
        fields: sorted(pairs(&told["fields"])),
        interim: interim.collect(),
        body: told["whole"].as_str().expect("text").chars().map(|c| c as u8).collect(),
        trailers: sorted(pairs(&told["trailers"])),
        ended: told["ended"] == true,
    }
}

fn server() -> Server {
    let up = Origin::start(|asked| {
        let target = asked.target().to_owned();
        let length = asked.text.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
        match target.as_str() {
            "/hints" => asked.write(
                b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n\
                  HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n",
            ),
            "/slow" => {
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nX-Up: a\r\nX-Up: b\r\nConnection: keep-alive\r\n\r\n";
                asked.write(head);
                (0..10).all(|_| asked.write([b'z'; 10_000]))
            }
            "/redirect" => asked.answer("302 Found", "Location: http://up/there\r\nSet-Cookie: a=b; path=/\r\n", ""),
            "/cut" => {
                asked.close_with(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
            }
            "/bad" => asked.close_with(b"nonsense\r\n\r\n"),
            "/cached" => asked.answer("200 OK", "Cache-Control: max-age=60\r\nETag: \"x\"\r\n", "cached content"),
            _ => {
                let text = format!("{} {}", asked.text.lines().next().unwrap_or_default(), length);
                asked.answer("200 OK", "Content-Type: text/plain\r\n", &text)
            }
        }
    });
    let program = fastcgi::start(|asked| {
        let (method, length) = (asked.get("REQUEST_METHOD").to_owned(), asked.stdin.len());
        let text = format!("Status: 201 Made\r\nX-Len: {length}\r\nContent-Type: text/x\r\n\r\n{method}");
        asked.write(&fastcgi::answer(&text));
    });
    let site = site(&format!(
        "log_format f '$request_method $uri $status $body_bytes_sent $upstream_status';\n\
         access_log logs/h2.log f if=$http2; access_log logs/h3.log f if=$http3; absolute_redirect off;\n\
         proxy_cache_path %DIR%/cache keys_zone=z:1m; limit_req_zone $server_protocol zone=one:1m rate=1r/m;\n\
         limit_conn_zone $server_protocol zone=two:1m; client_max_body_size 1m; fastcgi_temp_path %DIR%/fastcgi;\n\
         server {{ listen 127.0.0.1:%PORT2%; http2 on; access_log off; location / {{ add_trailer X-Grpc done; return 200 $request_uri; }} }}\n\
         server {{ listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; listen 127.0.0.1:%PORT1%; http2 on;\n\
         location /gzip/ {{ gzip on; gzip_types *; gzip_min_length 0; alias html/; }}\n\
         location /up/ {{ proxy_pass http://{up}/; proxy_http_version 1.1; proxy_pass_trailers on; early_hints on;\n\
         proxy_set_header Te $http_te; }}\n\
         location /stream/ {{ proxy_pass http://{up}/; proxy_http_version 1.1; proxy_request_buffering off; proxy_buffering off; }}\n\
         location /cache/ {{ proxy_pass http://{up}/; proxy_cache z; proxy_cache_key $server_protocol$uri;\n\
         add_header X-Cache $upstream_cache_status; }}\n\
         location /errors/ {{ proxy_pass http://{up}/; proxy_intercept_errors on; error_page 502 /error.html; }}\n\
         location /gone/ {{ proxy_pass http://127.0.0.1:1/; }}\n\
         location /fastcgi/ {{ fastcgi_pass {program}; fastcgi_param REQUEST_METHOD $request_method;\n\
         fastcgi_param CONTENT_LENGTH $content_length; }}\n\
         location /grpc/ {{ grpc_pass grpc://127.0.0.1:%PORT2%; }}\n\
         location /auth/ {{ auth_request /check; alias html/; }}\n\
         location = /check {{ internal; if ($http_x_pass) {{ return 204; }} return 403; }}\n\
         location /basic/ {{ auth_basic a; auth_basic_user_file none; }}\n\
         location /limit/ {{ limit_req zone=one; limit_conn two 10; alias html/; }}\n\
         location /sub/ {{ sub_filter hello bye; sub_filter_types *; alias html/; }}\n\
         location /rate/ {{ limit_rate 1m; alias html/; }}\n\
         location /trailer/ {{ add_trailer X-End $status; alias html/; }}\n\
         location /added/ {{ add_header X-A b; add_header X-A c always; expires 1h; alias html/; }}\n\
         location /more/ {{ more_set_headers 'X-A: b' 'Server: mine' 'Connection: close'; more_clear_headers Content-Type; more_set_input_headers \
          'X-Some: set' -r 'Cookie: c=d'; more_clear_input_headers 'X-Gone*'; proxy_pass http://{up}/; }}\n\
         location /moved {{ return 301 /there?x; }} location /empty {{ return 204; }}\n\
         location /lines {{ set $lines \"a;\n\t b; \r\n  c\"; add_header X-Lines $lines; return 200 x; }}\n\
         location /text {{ return 200 \"$http_x_some|$cookie_a|$arg_x|$remote_addr|$request_method|$uri|$host|$http_host|$content_length\"; }}\n\
         location /rewrite {{ rewrite ^/rewrite/(.*) /added/$1 last; }}\n\
         location /tag/ {{ add_header ETag $arg_e; add_header Last-Modified $arg_m; proxy_pass http://{up}/; }}\n\
         location /tagfile/ {{ add_header ETag $arg_e; add_header Last-Modified $arg_m; alias html/; }}\n\
         location /tagcache/ {{ add_header ETag $arg_e; add_header Last-Modified $arg_m; proxy_pass http://{up}/; proxy_cache z;\n\
         proxy_cache_key t$server_protocol$uri; }}\n\
         location /small/ {{ client_max_body_size 10; error_page 413 /large.html; proxy_pass http://{up}/; }}\n\
         location = /large.html {{ return 200 \"too large\"; }}\n\
         location = /slash/ {{ proxy_pass http://{up}/; }}\n\
         location /dying/ {{ proxy_pass http://127.0.0.1:1/; proxy_cache z; proxy_cache_key d$server_protocol$uri; proxy_cache_valid any 1h;\n\
         add_header X-Cache $upstream_cache_status always; }}\n\
         location /mirror {{ mirror /mirrored; proxy_pass http://{up}/; }} location = /mirrored {{ internal; proxy_pass http://{up}/; }}\n\
         location /ssi/ {{ ssi on; ssi_types *; alias html/; }}\n\
         }}"
    ));
    site.write("html/ssi.html", "<!--# include virtual=\"/text?x=1\" --> <!--# echo var=\"uri\" -->");
    site.write("html/error.html", "an error");
    // A body without bytes is sent, too: nothing of it can be waited for.
    site.write("html/blank", "");
    Server::start_on(site)
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        "/",
        "/page",
        "/large",
        "/none",
        "/moved",
        "/empty",
        "/blank",
        "/html",
        "/gzip/page",
        "/up/hints",
        "/up/slow",
        "/up/redirect",
        "/up/cut",
        "/up/bad",
        "/stream/slow",
        "/stream/hints",
        "/cache/cached",
        "/cache/cached",
        "/errors/bad",
        "/gone/",
        "/fastcgi/a",
        "/grpc/a",
        "/auth/page",
        "/basic/page",
        "/limit/page",
        "/limit/page",
        "/sub/index.html",
        "/rate/large",
        "/trailer/page",
        "/added/page",
        "/rewrite/page",
        "/mirror",
        "/more/a",
        "/ssi/ssi.html",
        "/tag/cached",
        "/tag/cached?e=new&m=x",
        "/tagfile/page",
        "/tagfile/page?e=new&m=x",
        "/tagcache/cached",
        "/tagcache/cached?e=new&m=x",
        "/slash",
        "/dying/a",
        "/dying/a",
        "/text?x=%20",
        "/a/../page",
        "/%00",
        "/up/a%20b?c",
    ]
    .map(get)
    .into();
    for range in ["bytes=0-9", "bytes=5-", "bytes=0-1,5-6", "bytes=20000-", "bytes=-0", "x=1"] {
        cases.extend(
            ["/page", "/cache/cached", "/gzip/page", "/up/slow"].map(|path| with(path, &[("range", range)])),
        );
    }
    cases.extend(
        ["/gzip/page", "/gzip/large", "/gzip/none"].map(|path| with(path, &[("accept-encoding", "gzip")])),
    );
    cases.push(with("/auth/page", &[("x-pass", "1")]));
    cases.push(with("/text", &[("x-some", "a"), ("cookie", "a=b"), ("cookie", "c=d")]));
    cases.push(with("/more/a", &[("x-gone-a", "a"), ("cookie", "a=b"), ("x-some", "c"), ("x-stays", "d")]));
    cases.push(with("/page", &[("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT")]));
    cases.push(with("/cache/cached", &[("if-none-match", "\"x\"")]));
    cases.push(with("/page", &[("if-match", "\"none\"")]));
    cases.push(with("/up/a", &[("te", "trailers")]));
    cases.push(get("/lines"));
    cases.push(with("/text", &[("host", "other")]));
    cases.push(with("/text", &[("content-length", "x")]));
    cases.push(with("/text", &[("connection", "close")]));
    cases.extend(
        ["/page", "/none", "/up/slow", "/up/a", "/gzip/page", "/cache/cached", "/fastcgi/a", "/grpc/a"]
            .map(|path| Case { method: "HEAD", ..get(path) }),
    );
    for path in ["/up/a", "/fastcgi/a", "/grpc/a", "/text", "/page", "/mirror", "/auth/page", "/more/a"] {
        cases.extend([1, 70_000, 300_000].map(|length| post(path, length)));
        cases.push(Case { fields: vec![("content-length", "300000")], ..post(path, 300_000) });
        cases.push(Case { trailers: true, ..post(path, 10) });
        cases.push(Case { trailers: true, ..post(path, 0) });
    }
    cases.push(post("/small/a", 100));
    cases.push(Case { fields: vec![("content-length", "100")], ..post("/small/a", 100) });
    // Without a length the content would be chunked, which this upstream does not read.
    cases.push(Case { fields: vec![("content-length", "300000")], ..post("/stream/a", 300_000) });
    cases.extend(
        ["OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "FOO"].map(|method| Case { method, ..get("/up/a") }),
    );
    cases.extend(["PUT", "FOO"].map(|method| Case { method, ..get("/page") }));
    cases
}

#[test]
fn answers_are_those_of_http2() {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    client.connect("a", &server);
    let mut h2 = h2::Client::on(connect(server.addr(1)));
    let mut failures = Vec::new();
    let mut stream = 1;
    for case in cases() {
        let mut told = (old(&mut h2, stream, &case), new(&mut client, &case));
        stream += 2;
        if case.path == "/up/cut" {
            // Of a stream that is reset, what has not been received is lost.
            told.0 = Told { ended: told.0.ended, ..Told::default() };
            told.1 = Told { ended: told.1.ended, ..Told::default() };
        }
        if case.fields.contains(&("range", "bytes=0-1,5-6")) {
            // Each boundary is another.
            for told in [&mut told.0, &mut told.1] {
                told.body = vec![b'-'; told.body.len()];
            }
        }
        let Case { method, path, fields, length, trailers } = &case;
        let what = format!("{method} {path} {fields:?} {length} {trailers}");
        if told.0 != told.1 {
            let show = |t: &Told| {
                format!("{:?} {:?} {} {:?} {}", t.fields, t.interim, t.body.len(), t.trailers, t.ended)
            };
            failures.push(format!("{what}:\n  {}\n  {}", show(&told.0), show(&told.1)));
        }
        if told.0.fields.is_empty() {
            h2 = h2::Client::on(connect(server.addr(1)));
            stream = 1;
        }
    }
    assert!(failures.is_empty(), "{}\n{}", failures.join("\n"), server.error_log());
    let count = cases().len();
    let log = |name: &str| server.read(&format!("logs/{name}.log"));
    let lines = |name: &str| log(name).lines().count();
    wait_until("the access logs", || lines("h2") >= count && lines("h3") >= count);
    assert_eq!(log("h2"), log("h3"));
}
