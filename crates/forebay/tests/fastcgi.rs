//! `fastcgi_pass`: servers made here that do what they should not, and PHP's.

use forebay_testkit::fastcgi::{self, Fpm, answer, stdout};
use forebay_testkit::{Conf, Server, Site, chunked, compare_with, http};
use std::net::SocketAddr;
use std::sync::Mutex;

forebay_testkit::cases!("cases/fastcgi.cases":
    mistakes_in_the_words_of_nginx, parameters_are_those_of_nginx, params_of_a_request_for_php, answers_in_single_bytes,
    bad_answers, bytes_before_a_break_are_passed_on, connections_are_kept_where_both_sides_say_so,
    another_server_has_its_turn, answers_are_treated_as_by_nginx, responses_are_cached,
    fields_of_cached_responses_are_forgotten, a_field_proxy_is_no_parameter);

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
