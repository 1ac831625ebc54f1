//! `fastcgi_pass`: servers made here that do what they should not, and PHP's.

use forebay_testkit::fastcgi::{self, Fpm, answer, end, record, stderr, stdout};
use forebay_testkit::{Conf, Server, Site, ask, chunked, compare_with, http, is_before, oracle, wait_for};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

forebay_testkit::cases!("cases/fastcgi.cases": mistakes_in_the_words_of_nginx);

const PLAIN: &str = "Content-Type: text/plain\r\n\r\n";

/// Parameters as Debian's fastcgi.conf has them.
const PARAMS: &str = "fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;\n\
    fastcgi_param QUERY_STRING $query_string;\nfastcgi_param REQUEST_METHOD $request_method;\n\
    fastcgi_param CONTENT_TYPE $content_type;\nfastcgi_param CONTENT_LENGTH $content_length;\n\
    fastcgi_param SCRIPT_NAME $fastcgi_script_name;\nfastcgi_param REQUEST_URI $request_uri;\n\
    fastcgi_param DOCUMENT_URI $document_uri;\nfastcgi_param DOCUMENT_ROOT $document_root;\n\
    fastcgi_param SERVER_PROTOCOL $server_protocol;\nfastcgi_param REQUEST_SCHEME $scheme;\n\
    fastcgi_param HTTPS $https if_not_empty;\nfastcgi_param GATEWAY_INTERFACE CGI/1.1;\n\
    fastcgi_param SERVER_SOFTWARE nginx/x;\nfastcgi_param REMOTE_ADDR $remote_addr;\n\
    fastcgi_param REMOTE_USER $remote_user;\nfastcgi_param SERVER_ADDR $server_addr;\n\
    fastcgi_param SERVER_NAME $server_name;\nfastcgi_param REDIRECT_STATUS 200;\n";

fn conf(http: &str) -> Conf {
    http!(
        "fastcgi_temp_path %DIR%/fastcgi;\n\
         client_max_body_size 100m; root %DIR%/html; {http}"
    )
}

fn server(locations: &str) -> Conf {
    conf(&format!("server {{ listen 127.0.0.1:%PORT0%; {locations} }}"))
}

/// A server that answers with what it was asked.
fn echo() -> SocketAddr {
    fastcgi::start(|asked| {
        let mut text = PLAIN.to_owned();
        for (name, value) in asked.params.iter().filter(|(n, _)| !n.starts_with("SERVER_")) {
            text.push_str(&format!("{name}={value}\n"));
        }
        text.push_str(&format!("length={}\n", asked.stdin.len()));
        let sum = asked.stdin.iter().fold(7u64, |sum, b| sum.wrapping_mul(31).wrapping_add(u64::from(*b)));
        text.push_str(&format!("sum={sum}\n"));
        asked.write(&answer(&text));
    })
}

/// Returns a request whose body is in chunks.
fn in_chunks(line: &str, body: &[u8]) -> Vec<u8> {
    let fields = "Host: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked";
    [format!("{line} HTTP/1.1\r\n{fields}\r\n\r\n").into_bytes(), chunked(body, 50_000)].concat()
}

fn request(line: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{line} HTTP/1.0\r\nHost: localhost\r\n{fields}").into_bytes();
    if !body.is_empty() {
        bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn parameters_are_those_of_nginx() {
    let echo = echo();
    let locations = format!(
        "include fastcgi.conf; fastcgi_index index.php;\n\
         location / {{ fastcgi_pass {echo}; }}\n\
         location /own {{ fastcgi_pass {echo}; fastcgi_param A $arg_a; fastcgi_param A again;\n\
           fastcgi_param EMPTY \"\"; fastcgi_param NONE $arg_none if_not_empty; fastcgi_param HTTP_GIVEN mine;\n\
           fastcgi_param HTTP_HIDDEN \"\"; fastcgi_param HTTP_GONE $arg_none if_not_empty; }}\n\
         location /bare {{ fastcgi_pass {echo}; fastcgi_pass_request_headers off;\n\
           fastcgi_pass_request_body off; fastcgi_param HTTP_HOST x; }}\n\
         location ~ \\.php(/|$) {{ fastcgi_split_path_info ^(.+?\\.php)(/.*)$; fastcgi_param HTTP_HOST x;\n\
           fastcgi_param SCRIPT $fastcgi_script_name; fastcgi_param PATH_INFO $fastcgi_path_info;\n\
           fastcgi_pass {echo}; }}\n\
         location /var {{ fastcgi_pass $arg_to:{}; fastcgi_param HTTP_HOST x; fastcgi_param A $arg_to; }}",
        echo.port()
    );
    let locations = format!("server {{ listen 127.0.0.1:%PORT0%; {locations} }}");
    let fields = "Given: a\r\nHidden: b\r\nGone: c\r\nCookie: a=1\r\n\
                  Content-Type: text/x\r\nX_Under: 1\r\nEmpty:\r\nAuthorization: Basic dTpw\r\n";
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let requests: Vec<String> = [
        request("GET /a%20b/?q=%20x", fields, b""),
        request("POST /a.txt", fields, b"content"),
        request("POST /own?a=1", fields, b"content"),
        request("HEAD /own", "", b""),
        request("POST /bare", fields, b"content"),
        request("GET /x/y.php/p/q?z", "", b""),
        request("GET /x/y.php/", "", b""),
        request("GET /x/y.php", "", b""),
        request("GET /var?to=127.0.0.1", "", b""),
        request("POST /", &format!("X-Long: {}\r\n", "l".repeat(3000)), b"x"),
        in_chunks("POST /chunks", b"some content"),
    ]
    .into_iter()
    .map(text)
    .collect();
    // Newer ones make HTTP_HOST of what was asked for, which is the same here but for its place.
    compare_with(&locations, &[("fastcgi.conf".to_owned(), PARAMS.to_owned())], &requests);
}

#[test]
fn params_of_a_request_for_php() {
    let echo = echo();
    let server = Server::start(server(&format!(
        "location / {{ fastcgi_pass {echo}; fastcgi_param QUERY $args; }}\n\
         location /own {{ fastcgi_pass {echo}; fastcgi_pass_request_headers off; }}"
    )));
    let ask = |bytes: &[u8]| server.ask(bytes);
    // The host that is asked for stands for itself, whatever the field says.
    let got = ask(b"GET http://Other.example:81/?x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(got.contains("QUERY=x\nHTTP_HOST=other.example:81\nHTTP_CONNECTION=close\n"), "{got}");
    let got = ask(b"GET /own HTTP/1.1\r\nX: y\r\nHost: h:8\r\nConnection: close\r\n\r\n");
    assert!(got.contains("HTTP_HOST=h:8\nlength=0\n"), "{got}");
    assert!(!ask(b"GET /own HTTP/1.0\r\n\r\n").contains("HTTP_"));
    // Lines of one name are one parameter (nginx: since 1.23.0).
    let got = ask(b"GET / HTTP/1.0\r\nX-A: 1\r\nCookie: a=1\r\nx-a: 2\r\nCookie: b=2\r\nX-A: 3\r\n\r\n");
    assert!(got.contains("HTTP_X_A=1, 2, 3\nHTTP_COOKIE=a=1; b=2\nlength"), "{got}");
}

#[test]
fn bodies_of_all_lengths() {
    let echo = echo();
    let server = Server::start(server(&format!(
        "location / {{ fastcgi_pass {echo}; client_body_buffer_size 100k; }}\n\
         location /streamed {{ fastcgi_pass {echo}; fastcgi_request_buffering off; }}"
    )));
    let body: Vec<u8> = (0..1_000_000u32).map(|i| (i % 253) as u8).collect();
    for len in [1, 100, 65_527, 65_528, 65_529, 131_056, 400_000, body.len()] {
        let body = &body[..len];
        let sum = body.iter().fold(7u64, |sum, b| sum.wrapping_mul(31).wrapping_add(u64::from(*b)));
        let want = format!("length={len}\nsum={sum}\n");
        for uri in ["/", "/streamed"] {
            for bytes in [request(&format!("PUT {uri}"), "", body), in_chunks(&format!("PUT {uri}"), body)] {
                let got = server.ask(&bytes);
                assert!(got.contains(&want), "{uri} {len}: {got}");
            }
        }
    }
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

#[test]
fn answers_in_single_bytes() {
    let slow = fastcgi::start(|asked| {
        let head = "Status: 201 Made\nX-Head: yes\nContent-Type: text/plain\n\nhel";
        let bytes = [
            stderr("a warning"),
            record(6, head.as_bytes(), 9),
            record(7, b"", 1),
            record(6, b"lo", 255),
            end(),
        ]
        .concat();
        for b in bytes {
            asked.write(&[b]);
        }
    });
    let server = Server::start(server(&format!(
        "location / {{ fastcgi_pass {slow}; }} location /u {{ fastcgi_pass {slow}; fastcgi_buffering off; }}"
    )));
    for uri in ["/", "/u"] {
        let got = server.ask(request(&format!("GET {uri}"), "", b""));
        assert!(got.starts_with("HTTP/1.1 201 Made\r\n") && got.contains("X-Head: yes\r\n"), "{got}");
        assert!(got.ends_with("\r\n\r\nhello") && !got.contains("Status:"), "{got}");
    }
    server
        .wait_for_log("FastCGI sent in stderr: \"a warning\" while reading response header from upstream", 2);
}

/// Output of servers, with the status of the answer to the client and the text in the error log.
fn bad() -> Vec<(Vec<u8>, &'static str, &'static str)> {
    let mut two = stdout("x");
    two[0] = 2;
    let mut other = stdout("x");
    other[3] = 9;
    let mut high = stdout("x");
    high[2] = 3;
    vec![
        (
            b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
            "502",
            "upstream sent unsupported FastCGI protocol version: 72",
        ),
        (two, "502", "upstream sent unsupported FastCGI protocol version: 2"),
        (record(9, b"x", 0), "502", "upstream sent invalid FastCGI record type: 9"),
        (other, "502", "upstream sent unexpected FastCGI request id low byte: 9"),
        (high, "502", "upstream sent unexpected FastCGI request id high byte: 3"),
        (vec![], "502", "upstream prematurely closed connection while reading response header"),
        (stdout("Content-Ty"), "502", "upstream prematurely closed connection while reading response header"),
        (
            answer("Content-Type: x\r\n"),
            "502",
            "upstream prematurely closed FastCGI stdout while reading response",
        ),
        (record(3, &[0; 8], 0), "502", "upstream sent unexpected FastCGI record: 3"),
        (answer("X y: z\r\n\r\n"), "502", "upstream sent invalid header: \"X\\x20...\""),
        (answer("Status: none\r\n\r\n"), "502", "upstream sent invalid status \"none\""),
        (answer("Status: 101 Up\r\n\r\n"), "502", "upstream sent invalid status \"101 Up\""),
        (answer("Content-Length: x\r\n\r\n"), "502", "upstream sent invalid \"Content-Length\" header"),
        (answer(&format!("X: {}\r\n\r\n", "a".repeat(9000))), "502", "upstream sent too big header"),
        (
            [stdout(PLAIN), stdout("part"), record(8, b"", 0)].concat(),
            "502",
            "upstream sent invalid FastCGI record type: 8",
        ),
        (
            answer("Content-Length: 9\r\n\r\npart"),
            "200",
            "upstream prematurely closed FastCGI stdout while reading upstream",
        ),
        (
            answer("Content-Length: 4\r\n\r\npart and more"),
            "200",
            "upstream sent more data than specified in \"Content-Length\" header",
        ),
        (stderr("only this"), "502", "FastCGI sent in stderr: \"only this\""),
    ]
}

#[test]
fn bad_answers() {
    let answers = bad();
    let bytes: Vec<Vec<u8>> = answers.iter().map(|a| a.0.clone()).collect();
    let backend = fastcgi::start(move |asked| {
        let n: usize = asked.get("N").parse().expect("a number");
        asked.write(&bytes[n]);
    });
    let server =
        Server::start(server(&format!("location / {{ fastcgi_pass {backend}; fastcgi_param N $arg_n; }}")));
    for (n, (_, status, text)) in answers.iter().enumerate() {
        let before = server.error_log().matches(text).count();
        let got = server.ask(request(&format!("GET /?n={n}"), "", b""));
        assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{text}: {got}");
        assert!(*status != "200" || got.ends_with("\r\n\r\npart"), "{text}: {got}");
        server.wait_for_log(text, before + 1);
        assert!(server.error_log().contains(&format!("upstream: \"fastcgi://{backend}\"")));
    }
}

#[test]
fn bytes_before_a_break_are_passed_on() {
    let backend = fastcgi::start(|asked| {
        asked.write(&answer("Content-Length: 9\r\nContent-Type: text/html\r\n\r\npart"));
    });
    let server = Server::start(server(&format!(
        "location / {{ fastcgi_pass {backend}; add_after_body /after; }} location /after {{ return 200 after; }}"
    )));
    let got = server.get("/");
    assert!(got.starts_with("HTTP/1.1 200 ") && got.contains("part") && !got.contains("after"), "{got}");
}

#[test]
fn a_server_that_hangs_or_resets() {
    // One for each, so that none takes the word for the other.
    let ((end_hang, hang), (end_later, later)) =
        (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
    let (hang, later) = (Mutex::new(hang), Mutex::new(later));
    let backend = fastcgi::start(move |asked| match asked.get("HOW") {
        "/hang" => drop(hang.lock().map(|w| w.recv())),
        "/later" => {
            asked.write(&stdout(&format!("{PLAIN}begun")));
            drop(later.lock().map(|w| w.recv()));
        }
        _ => {
            asked.write(&stdout(&format!("{PLAIN}begun")));
            asked.stream.reset();
        }
    });
    let server = Server::start(server(&format!(
        "location / {{ fastcgi_pass {backend}; fastcgi_param HOW $uri; fastcgi_read_timeout 100ms; \
         fastcgi_buffering off; }}"
    )));
    let get = |uri: &str| server.ask(format!("GET {uri} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    assert!(get("/hang").starts_with("HTTP/1.1 504 "));
    let _ = end_hang.send(());
    let got = get("/later");
    assert!(got.contains("\r\nbegun\r\n") && !got.ends_with("0\r\n\r\n"), "{got}");
    server.wait_for_log("upstream timed out (110: Connection timed out) while reading upstream", 1);
    let _ = end_later.send(());
    let got = get("/reset");
    assert!(!got.ends_with("0\r\n\r\n"), "{got}");
    server.wait_for_log("Connection reset by peer", 1);
}

#[test]
fn connections_are_kept_where_both_sides_say_so() {
    let says = |asked: &mut fastcgi::Asked| {
        let (connection, request) = asked.connection;
        let text = format!("{PLAIN}{} connection {connection} request {request}", asked.keep);
        let extra = if asked.get("EXTRA") == "/extra" { &b"more"[..] } else { b"" };
        asked.write(&[&answer(&text)[..], extra].concat());
    };
    let site = Site::new(conf(&format!(
        "upstream tcp {{ server {}; keepalive 4; }} upstream local {{ server unix:%DIR%/sock; keepalive 4; }}\n\
         fastcgi_param EXTRA $arg_extra; fastcgi_keep_conn on;\n\
         server {{ listen 127.0.0.1:%PORT0%; location /tcp {{ fastcgi_pass tcp; }}\n\
           location /unix {{ fastcgi_pass local; }}\n\
           location /off {{ fastcgi_pass tcp; fastcgi_keep_conn off; }} }}",
        fastcgi::start(says)
    )));
    fastcgi::start_unix(&site.dir().join("sock"), says);
    let server = Server::start_on(site);
    for uri in ["/tcp", "/unix"] {
        for n in 1..=3 {
            let got = server.get(uri);
            assert!(got.contains(&format!("true connection 1 request {n}")), "{uri} {n}: {got}");
        }
        // Bytes that belong to nothing, and an answer of which only the head is wanted.
        assert!(server.get(format!("{uri}?extra=/extra")).contains("connection 1 request 4"));
        assert!(server.get(uri).contains("true connection 2 request 1"), "{uri}");
    }
    // The flag says that the server is to close, and it is believed.
    assert!(server.get("/off").contains("false connection 2 request 2"));
    assert!(server.get("/off").contains("false connection 3 request 1"));
}

#[test]
fn another_server_has_its_turn() {
    let broken = fastcgi::start(|asked| asked.write(b"garbage"));
    let fatal = fastcgi::start(|asked| {
        asked.write(&[stderr("PHP Fatal error: no"), answer(&format!("{PLAIN}half a page"))].concat());
    });
    let sound = fastcgi::start(|asked| {
        let body = format!("{PLAIN}sound {}", String::from_utf8_lossy(&asked.stdin));
        asked.write(&answer(&body));
    });
    let server = Server::start(conf(&format!(
        "upstream a {{ server {broken} max_fails=0; server {sound} backup; }}\n\
         upstream b {{ server {fatal} max_fails=0; server {sound} backup; }}\n\
         fastcgi_next_upstream invalid_header non_idempotent; fastcgi_catch_stderr \"PHP Fatal\";\n\
         server {{ listen 127.0.0.1:%PORT0%; add_header X-Asked $upstream_addr:$upstream_status always;\n\
           location /a {{ fastcgi_pass a; }} location /b {{ fastcgi_pass b; }}\n\
           location /alone {{ fastcgi_pass {fatal}; }}\n\
           location /said {{ fastcgi_pass {fatal}; fastcgi_catch_stderr nothing; }} }}"
    )));
    for uri in ["/a", "/b"] {
        let got = server.raw(request(&format!("POST {uri}"), "", b"content"));
        let got = String::from_utf8_lossy(&got).into_owned();
        assert!(got.ends_with("sound content") && got.contains(&format!(", {sound}:502, 200\r\n")), "{got}");
    }
    assert!(server.get("/alone").starts_with("HTTP/1.1 502 "));
    assert!(server.get("/said").contains("half a page"));
}

#[test]
fn answers_are_treated_as_by_nginx() {
    let backend = fastcgi::start(|asked| {
        let text = match asked.get("WHAT") {
            "redirect" => "Location: /elsewhere?x=1\r\n\r\n".to_owned(),
            "gone" => "Status: 404 Not here\r\nX-Own: 1\r\n\r\nits own page".to_owned(),
            "accel" => "X-Accel-Redirect: /files/page.txt\r\nX-Lost: 1\r\n\r\n".to_owned(),
            "fields" => {
                format!("Date: never\r\nServer: PHP\r\nX-Pad: 1\r\nX-Hide: 1\r\nStatus: 200 OK\r\n{PLAIN}x")
            }
            "length" => "Content-Length: 3\r\nContent-Type: text/plain\r\n\r\nabc".to_owned(),
            "bare" => "Status: 204 None\r\n\r\nbody".to_owned(),
            _ => format!("ETag: \"1\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n{PLAIN}plain"),
        };
        asked.write(&answer(&text));
    });
    let locations = format!(
        "fastcgi_param WHAT $arg_w;\n\
         location / {{ fastcgi_pass {backend}; fastcgi_hide_header X-Hide; }}\n\
         location /error {{ fastcgi_pass {backend}; fastcgi_intercept_errors on; error_page 404 /files/page.txt; }}\n\
         location /kept {{ fastcgi_pass {backend}; fastcgi_store on; fastcgi_store_access user:rw group:r all:r; \
           root %DIR%/html/stored; }}\n\
         location /files/ {{ alias %DIR%/html/; }}"
    );
    let requests: Vec<String> = ["redirect", "gone", "accel", "fields", "length", "bare", "plain"]
        .iter()
        .flat_map(|w| [format!("GET /?w={w}"), format!("HEAD /?w={w}"), format!("GET /error?w={w}")])
        .chain(["GET /kept/a?w=length".to_owned()])
        .map(|line| format!("{line} HTTP/1.0\r\nHost: localhost\r\n\r\n"))
        .chain(["GET / HTTP/1.0\r\nHost: localhost\r\nIf-None-Match: \"1\"\r\n\r\n".to_owned()])
        .collect();
    // Older ones name the host in redirects.
    if oracle().is_none_or(|nginx| is_before(&nginx, 20)) {
        return;
    }
    let files = [("html/page.txt", "a page\n"), ("html/stored/x", "")];
    let files = files.map(|(n, t)| (n.to_owned(), t.to_owned()));
    let locations = format!("server {{ listen 127.0.0.1:%PORT0%; {locations} }}");
    compare_with(&format!("fastcgi_temp_path %DIR%/body/f; {locations}"), &files, &requests);
}

#[test]
fn responses_are_cached() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let backend = fastcgi::start(move |asked| {
        let n = counted.fetch_add(1, Ordering::SeqCst) + 1;
        let since = asked.get("HTTP_IF_NONE_MATCH").to_owned();
        asked.write(&answer(&match since.as_str() {
            "" => format!("Status: 404 Not here\r\nETag: \"e\"\r\nX-Accel-Expires: 100\r\n{PLAIN}answer {n}"),
            _ => "Status: 304\r\n\r\n".to_owned(),
        }));
    });
    let server = Server::start(conf(&format!(
        "fastcgi_cache_path %DIR%/cache keys_zone=z:1m; add_header X-Cache $upstream_cache_status always;\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ fastcgi_pass {backend}; fastcgi_cache z;\n\
           fastcgi_cache_key $uri; fastcgi_cache_bypass $arg_new; fastcgi_ignore_headers Set-Cookie; }} }}"
    )));
    let miss = server.get("/a");
    assert!(miss.starts_with("HTTP/1.1 404 Not here\r\n") && miss.contains("X-Cache: MISS\r\n"), "{miss}");
    let hit = wait_for("a hit", || Some(server.get("/a")).filter(|got| got.contains("X-Cache: HIT\r\n")));
    assert!(hit.starts_with("HTTP/1.1 404 Not here\r\n") && hit.ends_with("answer 1"), "{hit}");
    assert!(server.get("/a?new=1").contains("answer 2"));
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

/// Variables of a cached response are empty in the next request, whose client may be another.
#[test]
fn fields_of_cached_responses_are_forgotten() {
    let backend = fastcgi::start(|asked| {
        asked.write(&answer(&format!("X-Own: mine\r\nSet-Cookie: sid=mine\r\n{PLAIN}page")));
    });
    let server = Server::start(conf(&format!(
        "fastcgi_cache_path %DIR%/cache keys_zone=z:1m;\n\
         server {{ listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status;\n\
           location / {{ fastcgi_pass {backend}; fastcgi_cache z; fastcgi_cache_key $uri; fastcgi_cache_valid 1h;\n\
             fastcgi_ignore_headers Set-Cookie; }}\n\
           location = /told {{ return 200 \"[$upstream_http_x_own$upstream_cookie_sid]\"; }} }}"
    )));
    // The same connection, so that the same memory serves both.
    wait_for("a hit", || {
        let both = "GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /told HTTP/1.0\r\n\r\n";
        let answers = ask(server.addr(0), both);
        assert!(answers.contains("page") && answers.ends_with("[]"), "{answers}");
        answers.contains("X-Cache: HIT\r\n").then_some(())
    });
}

const PAGES: &[(&str, &str)] = &[
    (
        "html/echo.php",
        "<?php header('X-Own: yes'); echo $_SERVER['REQUEST_METHOD'], ' ', $_SERVER['SCRIPT_NAME'], ' ',\n\
         $_SERVER['PATH_INFO'] ?? '-', ' ', $_GET['a'] ?? '-', ' ', $_SERVER['HTTP_X_FIELD'] ?? '-', ' ',\n\
         $_SERVER['CONTENT_LENGTH'] ?? '-', ' ', md5(file_get_contents('php://input')), ' ', $_POST['p'] ?? '-', \"\\n\";",
    ),
    ("html/away.php", "<?php header('Location: /elsewhere');"),
    ("html/status.php", "<?php http_response_code(403); setcookie('a', 'b'); echo 'short';"),
    ("html/said.php", "<?php error_log('words of PHP'); echo 'done';"),
    (
        "html/large.php",
        "<?php for ($i = 0; $i < 300; $i++) { echo str_repeat('0123456789', 1000); flush(); }",
    ),
    ("html/dir/index.php", "<?php echo 'the index of ', $_SERVER['SCRIPT_NAME'];"),
];

/// Locations as Debian's snippet and many guides have them.
fn php(pass: &str) -> String {
    format!(
        "include fastcgi.conf; index index.php;\n\
         location / {{ try_files $uri $uri/ /echo.php?a=$uri; }}\n\
         location ~ \\.php(/|$) {{ fastcgi_split_path_info ^(.+?\\.php)(/.*)$; try_files $fastcgi_script_name =404;\n\
           set $path_info $fastcgi_path_info; include fastcgi.conf; fastcgi_param PATH_INFO $path_info;\n\
           fastcgi_index index.php; fastcgi_pass {pass}; }}"
    )
}

#[test]
fn pages_of_php_are_those_of_nginx() {
    let Some(fpm) = Fpm::start() else { return };
    let large = "x=".to_owned() + &"y".repeat(200_000);
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let requests: Vec<String> = [
        request("GET /echo.php?a=1", "X-Field: f\r\n", b""),
        request("HEAD /echo.php?a=1", "", b""),
        request("GET /echo.php/with/path?a=2", "", b""),
        request("GET /pretty/name", "", b""),
        request("GET /dir/", "", b""),
        request("GET /none.php", "", b""),
        request("POST /echo.php", form, b"p=posted"),
        request("POST /echo.php", form, large.as_bytes()),
        in_chunks("POST /echo.php", large.as_bytes()),
        request("GET /away.php", "", b""),
        request("GET /status.php", "", b""),
        request("GET /said.php", "", b""),
        request("GET /large.php", "", b""),
    ]
    .into_iter()
    .map(text)
    .collect();
    let mut files: Vec<(String, String)> =
        PAGES.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
    files.push(("fastcgi.conf".to_owned(), PARAMS.to_owned()));
    let version =
        "fastcgi_hide_header X-Powered-By; fastcgi_hide_header Date; fastcgi_temp_path %DIR%/body/f;";
    for pass in [format!("unix:{}", fpm.socket.display()), fpm.addr.to_string()] {
        let locations = php(&pass);
        compare_with(
            &format!("{version} server {{ listen 127.0.0.1:%PORT0%; {locations} }}"),
            &files,
            &requests,
        );
    }
}

#[test]
fn php_on_kept_connections() {
    let Some(fpm) = Fpm::start() else { return };
    for pass in [format!("unix:{}", fpm.socket.display()), fpm.addr.to_string()] {
        let site = Site::new(conf(&format!(
            "upstream php {{ server {pass}; keepalive 2; }} fastcgi_keep_conn on; \
             server {{ listen 127.0.0.1:%PORT0%; {} }}",
            php("php")
        )));
        for (name, text) in PAGES.iter().chain(&[("fastcgi.conf", PARAMS)]) {
            site.write(name, text);
        }
        let server = Server::start_on(site);
        for i in 0..20 {
            let got = server.get(format!("/echo.php?a={i}"));
            assert!(got.contains(&format!("GET /echo.php  {i} - ")), "{got}");
            let got = server.get("/large.php");
            assert!(got.len() > 3_000_000, "{} bytes", got.len());
        }
        server.get("/said.php");
        server.wait_for_log("FastCGI sent in stderr: \"PHP message: words of PHP\"", 1);
        let log = server.error_log();
        assert_eq!(log.matches("[error]").count(), 1, "{log}");
    }
}

/// A client does not choose the proxy of a program's own requests (CVE-2016-5385).
#[test]
fn a_field_proxy_is_no_parameter() {
    let locations = format!(
        "location / {{ fastcgi_pass {echo}; }} location /set {{ fastcgi_pass {echo}; fastcgi_param HTTP_PROXY mine; }}\n\
         location /asked {{ fastcgi_pass {echo}; fastcgi_param HTTP_PROXY $http_proxy if_not_empty; }}",
        echo = echo()
    );
    let server = Server::start(server(&locations));
    let ask = |path: &str| {
        let fields = "Proxy: evil\r\npROXY: worse\r\nProxy-Connection: x\r\nX-Proxy: y\r\n";
        server.ask(request(&format!("GET {path}"), fields, b""))
    };
    let answer = ask("/");
    assert!(!answer.contains("HTTP_PROXY="), "{answer}");
    assert!(answer.contains("HTTP_X_PROXY=y") && answer.contains("HTTP_PROXY_CONNECTION=x"), "{answer}");
    let answer = ask("/set");
    assert!(answer.contains("HTTP_PROXY=mine\n") && answer.matches("HTTP_PROXY=").count() == 1, "{answer}");
    assert!(ask("/asked").contains("HTTP_PROXY=evil"));
}
