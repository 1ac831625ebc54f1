//! What an upstream's answer decides, compared with nginx as in `differential.rs`: fields that are hidden, ignored or added, URIs of
//! internal redirects, failures that a cache remembers, and answers that break off or have no head.

use forebay_testkit::{Origin, get, get_with, nginx_answers, oracle};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An answer with its fields in the order of the alphabet, and its content in one piece.
fn plain(answer: &str) -> String {
    let (head, body) = answer.split_once("\n\n").unwrap_or((answer, ""));
    let mut lines: Vec<&str> = head.lines().collect();
    lines.sort_unstable();
    let body = if head.contains("Transfer-Encoding: chunked") { joined(body) } else { body.to_owned() };
    format!("{}\n\n{body}", lines.join("\n"))
}

/// The content of chunks, with a mark where the last one is missing.
fn joined(mut body: &str) -> String {
    let mut all = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        match usize::from_str_radix(length, 16) {
            Ok(0) => return all,
            Ok(n) if n <= rest.len() => {
                all.push_str(&rest[..n]);
                body = rest.get(n + 2..).unwrap_or_default();
            }
            _ => break,
        }
    }
    all + "<cut>"
}

fn compare(server: &str, more: &[(String, String)], requests: &[String]) {
    let mut differences = String::new();
    for (request, a, b) in nginx_answers(server, more, requests) {
        let (a, b) = (plain(&a), plain(&b));
        if a != b {
            differences += &format!("== {request:?}\n-- nginx\n{a}\n-- forebay\n{b}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

const FIELDS: [(&str, &str); 18] = [
    ("ETag", "\"up\""),
    ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("Accept-Ranges", "bytes"),
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Cache-Control", "max-age=60"),
    ("Expires", "Thu, 31 Dec 2037 23:55:55 GMT"),
    ("Vary", "X-V"),
    ("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("Server", "up"),
    ("Set-Cookie", "a=b; Path=/x"),
    ("Link", "<a>"),
    ("Content-Language", "en"),
    ("X-Accel-Limit-Rate", "0"),
    ("X-Accel-Buffering", "yes"),
    ("X-Accel-Charset", "koi8-r"),
    ("WWW-Authenticate", "Basic realm=u"),
    ("Location", "http://up/loc"),
    ("Refresh", "5; url=http://up/r"),
];

/// An upstream that sends every field that a proxy looks at. Its paths change some of them.
fn generous() -> SocketAddr {
    let content: String = ('a'..='z').cycle().take(250).collect();
    Origin::start(move |asked| {
        let target = asked.target().to_owned();
        let mut fields: Vec<(&str, String)> = FIELDS.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
        let mut set = |name: &'static str, value: &str| {
            fields.retain(|(n, _)| *n != name);
            if !value.is_empty() {
                fields.push((name, value.to_owned()));
            }
        };
        if target.contains("/plain/") {
            set("Set-Cookie", "");
        }
        if target.contains("/accel/") {
            set("X-Accel-Redirect", "/target");
        }
        if target.contains("/never/") {
            set("X-Accel-Expires", "0");
        }
        if target.contains("/old/") {
            set("Expires", "Thu, 01 Jan 1970 00:00:01 GMT");
            set("Cache-Control", "");
        }
        let range = asked.field("Range").strip_prefix("bytes=").and_then(|r| r.split_once('-'));
        let range = range.and_then(|(a, b)| Some((a.parse::<usize>().ok()?, b.parse::<usize>().ok()?)));
        let (status, body) = match range.filter(|_| target.contains("/slice/")) {
            Some((from, to)) if from < content.len() => {
                let to = to.min(content.len() - 1);
                set("Content-Range", &format!("bytes {from}-{to}/{}", content.len()));
                ("206 Partial Content", &content[from..=to])
            }
            _ if target.contains("/401/") => ("401 Unauthorized", "no"),
            _ => ("200 OK", content.as_str()),
        };
        let fields: String = fields.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        asked.answer(status, &fields, body)
    })
    .addr
}

/// What the client does not get still decides (nginx: proxy_hide_header, proxy_ignore_headers).
#[test]
fn fields_that_are_hidden_or_ignored_decide_as_in_nginx() {
    let up = generous();
    let slices = "slice 100; proxy_set_header Range $slice_range; proxy_cache one; proxy_cache_key $uri$slice_range; \
                  proxy_cache_valid 200 206 1h; proxy_ignore_headers Set-Cookie Vary;";
    let cache = "proxy_cache one; proxy_cache_key $request_uri;";
    let cached = format!("{cache} proxy_ignore_headers Set-Cookie;");
    let zipped = "gzip on; gzip_min_length 1; gzip_http_version 1.0; gzip_proxied expired no_last_modified no_etag private;";
    let features = [
        (
            "slice",
            slices,
            vec!["slice/", "slice/", "slice/|Range: bytes=120-130", "slice/|If-None-Match: \"up\""],
        ),
        (
            "sliced",
            "slice 100; proxy_set_header Range $slice_range;",
            vec!["slice/", "slice/|Range: bytes=-10"],
        ),
        (
            "cond",
            &cached,
            vec![
                "",
                "|If-None-Match: \"up\"",
                "|If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
                "|If-Match: \"x\"",
                "|If-Unmodified-Since: Sun, 06 Nov 1990 08:49:37 GMT",
                "|Range: bytes=0-4",
                "|Range: bytes=0-4\r\nIf-Range: \"up\"",
                "|X-V: 2",
                "|X-V: 2",
            ],
        ),
        (
            "cache",
            cache,
            vec!["", "", "plain/", "plain/", "plain/never/", "plain/never/", "plain/old/", "plain/old/"],
        ),
        ("accel", "", vec!["accel/"]),
        ("zip", zipped, vec!["|Accept-Encoding: gzip\r\nVia: x", "old/|Accept-Encoding: gzip\r\nVia: x"]),
        ("charset", "charset windows-1251; override_charset on;", vec![""]),
        ("sub", "sub_filter abc ABC; sub_filter_types text/plain;", vec![""]),
        ("redirect", "proxy_redirect http://up/ /new/; proxy_cookie_path /x /y;", vec![""]),
        ("page", "proxy_intercept_errors on; error_page 401 /page;", vec!["401/"]),
        (
            "ranges",
            "proxy_force_ranges on;",
            vec!["|Range: bytes=0-4", "|Range: bytes=0-4\r\nIf-Range: \"up\""],
        ),
    ];
    let extra = ["Content-Length", "X-Accel-Redirect", "X-Accel-Expires"];
    let names = FIELDS.iter().map(|(name, _)| *name).chain(extra);
    let mut changes: Vec<String> = names.map(|name| format!("proxy_hide_header {name};")).collect();
    let ignored =
        ["X-Accel-Redirect", "X-Accel-Expires", "X-Accel-Limit-Rate", "X-Accel-Buffering", "X-Accel-Charset"];
    let more = ["Expires", "Cache-Control", "Set-Cookie", "Vary"];
    changes.extend(ignored.iter().chain(&more).map(|name| format!("ignore {name}")));
    changes.extend(["Server", "Date", "X-Accel-Charset"].map(|name| format!("proxy_pass_header {name};")));
    changes.extend(
        ["Cache-Control no-store", "Vary Q", "Set-Cookie q=r", "Last-Modified \"\"", "ETag '\"new\"'"]
            .map(|field| format!("add_header {field};")),
    );
    let mut server = String::from(
        "proxy_cache_path %DIR%/cache keys_zone=one:10m use_temp_path=off;\n\
         server { listen 127.0.0.1:%PORT0%; location = /target { add_header X-T 1; return 200 T; } location = /page { return 200 page; }",
    );
    let mut requests = Vec::new();
    for (i, change) in changes.iter().enumerate() {
        for (name, feature, paths) in &features {
            let own = match change.strip_prefix("ignore ") {
                Some(field) if feature.contains("ignore_headers") && feature.contains(field) => {
                    feature.to_string()
                }
                Some(field) if feature.contains("ignore_headers") => {
                    feature.replace("proxy_ignore_headers", &format!("proxy_ignore_headers {field}"))
                }
                Some(field) => format!("{feature} proxy_ignore_headers {field};"),
                None => format!("{feature} {change}"),
            };
            server += &format!(
                "location /{name}{i}/ {{ proxy_pass http://{up}; {own} add_header X-Cache $upstream_cache_status always; \
                 add_header X-Tag $upstream_http_etag; }}\n"
            );
            for path in paths {
                let (path, fields) = path.split_once('|').unwrap_or((path, ""));
                let fields = if fields.is_empty() { String::new() } else { format!("{fields}\r\n") };
                requests.push(get_with(format!("/{name}{i}/{path}"), &fields));
            }
        }
        let own = if change.starts_with("ignore") { "" } else { change };
        server += &format!(
            "location = /auth{i} {{ internal; proxy_pass http://{up}/401/; {own} }} location = /asks{i} {{ auth_request /auth{i}; }}\n"
        );
        requests.push(get(format!("/asks{i}")));
    }
    server.push('}');
    compare(&server, &[], &requests);
}

/// `add_header` with a field that the server holds apart, wherever the response comes from.
#[test]
fn fields_that_are_held_apart_are_replaced_as_in_nginx() {
    let up = generous();
    let kinds = [
        ("file", "alias %DIR%/html/;".to_owned()),
        ("proxied", format!("proxy_pass http://{up}/;")),
        (
            "cached",
            format!(
                "proxy_pass http://{up}/; proxy_cache one; proxy_cache_key $uri; proxy_ignore_headers Set-Cookie Vary;"
            ),
        ),
        ("zipped", format!("proxy_pass http://{up}/; gzip on; gzip_min_length 1; gzip_proxied any;")),
        ("text", "return 200 text;".to_owned()),
    ];
    let added = [
        "ETag \"\"",
        "ETag '\"new\"'",
        "eTAG $arg_e",
        "ETag bare",
        "Last-Modified \"\"",
        "Last-Modified \"Mon, 07 Nov 1994 08:49:37 GMT\"",
        "Last-Modified \"Monday, 07-Nov-94 08:49:37 GMT\"",
        "Last-Modified junk",
        "Content-Type \"\"",
        "Content-Type text/x",
        "Location /new",
        "Accept-Ranges none",
        "Cache-Control \"\"",
        "Cache-Control no-store",
        "Expires x",
        "Vary Y",
        "Link <b>",
        "Set-Cookie c=d",
        "Content-Language fr",
        "WWW-Authenticate x",
    ];
    let asked = [
        "",
        "",
        "If-None-Match: \"new\"\r\n",
        "If-None-Match: \"up\"\r\n",
        "If-Modified-Since: Mon, 07 Nov 1994 08:49:37 GMT\r\n",
        "Range: bytes=0-3\r\nIf-Range: \"new\"\r\n",
        "Range: bytes=0-3\r\nIf-Range: \"up\"\r\n",
        "Range: bytes=0-3\r\nIf-Range: Mon, 07 Nov 1994 08:49:37 GMT\r\n",
        "Range: bytes=0-3\r\n",
        "Accept-Encoding: gzip\r\n",
    ];
    let mut server = String::from(
        "proxy_cache_path %DIR%/cache keys_zone=one:10m use_temp_path=off; server { listen 127.0.0.1:%PORT0%;",
    );
    let mut requests = Vec::new();
    for (kind, directives) in &kinds {
        for (i, field) in added.iter().enumerate() {
            for always in ["", "always"] {
                server += &format!(
                    "location /{kind}{i}{always}/ {{ {directives} add_header {field} {always}; }}\n"
                );
                requests.extend(
                    asked.map(|fields| get_with(format!("/{kind}{i}{always}/page.html?e=%22e%22"), fields)),
                );
            }
            requests.push(get(format!("/{kind}{i}always/none")));
        }
    }
    server.push('}');
    compare(&server, &[], &requests);
}

/// An URI that the server is told, not the client's: it stays as it is but for escapes.
#[test]
fn uris_of_internal_redirects_stay_as_they_are() {
    let up = Origin::start(|asked| {
        let fields = format!("X-Accel-Redirect: {}\r\n", asked.field("X-To"));
        let target = asked.target().to_owned();
        asked.answer("200 OK", if target.starts_with("/accel") { &fields } else { "" }, &target)
    });
    let targets = [
        "/dl/a//b",
        "/dl/./a/./b",
        "/dl/a/.",
        "/dl/a/../b",
        "/dl/../etc",
        "/..",
        "/dl/a..b/...",
        "/dl/%2e%2E/x",
        "/dl/a%00b",
        "/dl/%2Fa",
        "/dl/https%3A%2F%2Fbucket/key",
        "/dl/https://bucket//key",
        "/dl/a?x=/../y//z",
        "/dl/a%3Fb#c%23d",
        "/dl/a b%20c?d%20e",
        "//dl/a",
        "/dl/%",
        "/dl/%zz",
        "/dl/%252e%252e/x",
        "dl/a",
        "http://x/y",
        "?x",
        "@named",
        "/dl/a+b;..//c",
    ];
    let mut requests = Vec::new();
    for way in ["/accel", "/page", "/try", "/last", "/break"] {
        for target in targets {
            let others = ["/dl2/", "/dl3/", "/file/"].map(|name| target.replacen("/dl/", name, 1));
            for target in [target.to_owned()].into_iter().chain(others) {
                requests.push(get_with(way, format!("X-To: {target}\r\n")));
            }
        }
    }
    requests.sort();
    requests.dedup();
    for merge in ["on", "off"] {
        compare(
            &format!(
                r#"server {{ listen 127.0.0.1:%PORT0%; merge_slashes {merge}; location = /accel {{ proxy_pass http://{up}; proxy_set_header X-To $http_x_to; }}
                location = /page {{ error_page 404 = $http_x_to; return 404; }} location = /try {{ try_files /none $http_x_to; }}
                location = /last {{ set $to $http_x_to; rewrite ^ $to last; }}
                location = /break {{ set $to $http_x_to; rewrite ^ $to break; proxy_pass http://{up}; }}
                location /dl/ {{ internal; proxy_pass http://{up}; }} location /dl2/ {{ internal; proxy_pass http://{up}/z/; }}
                location ~ ^/dl3/(.*) {{ internal; return 200 "$1 $uri $args"; }} location /file/ {{ internal; alias %DIR%/html/; }}
                location @named {{ return 200 "named $uri"; }} location / {{ return 200 "other $uri $args"; }} }}"#
            ),
            &[],
            &requests,
        );
    }
}

/// A path that lacks the slash of a location that an upstream answers.
#[test]
fn the_missing_slash_of_every_kind_of_location() {
    let up = Origin::start(|asked| asked.answer("200 OK", "", "up"));
    let pass = format!("proxy_pass http://{up};");
    let kinds = [
        "location = /a/ { PASS }",
        "location ^~ /a/ { PASS }",
        "location = /a/ { grpc_pass 127.0.0.1:1; }",
        "location = /a/ { fastcgi_pass 127.0.0.1:1; }",
        "location = /a/ { uwsgi_pass 127.0.0.1:1; }",
        "location = /a/ { scgi_pass 127.0.0.1:1; }",
        "location = /a/ { set $memcached_key x; memcached_pass 127.0.0.1:1; }",
        "location = /a/ { set $u 127.0.0.1; proxy_pass http://$u; }",
        "location = /a/ { return 200 x; }",
        "location = /a/ { empty_gif; }",
        "location = /a/ { PASS } location /a/ { return 200 prefix; }",
        "location = /a/ { return 200 exact; } location /a/ { PASS }",
        "location = /a/ { PASS } location = /a { return 200 a; }",
        "location = /a/ { PASS } location /a { return 200 a; }",
        "location /a/ { PASS } location /a { return 200 a; }",
        "location /a/ { PASS } location = /a { return 200 a; }",
        "location /a/ { PASS } location ~ ^/a$ { return 200 re; }",
        "location = /a/ { PASS } location ~ ^/a$ { return 200 re; }",
        "location = /a/ { PASS } location ^~ / { return 200 root; }",
        "location ~ ^/a/$ { PASS }",
        "location / { location = /a/ { PASS } return 200 outer; }",
        "location /a { location /a/ { PASS } return 200 outer; }",
        "location /x/ { location = /x/a/ { PASS } return 200 outer; }",
        "location = / { PASS }",
        "location = /a/ { if ($arg_q) { PASS } }",
        "location = /a/ { internal; PASS }",
        "location /a/ { internal; PASS }",
        "location = /a/ { limit_except GET { deny all; } PASS }",
        "location = /a/ { add_header X-A b always; absolute_redirect off; PASS }",
        "location = /a/ { error_page 301 =200 /page; PASS }",
        "location = '/a b/' { PASS }",
    ];
    let mut server = String::new();
    let mut requests = Vec::new();
    for (i, kind) in kinds.iter().enumerate() {
        let own = kind.replace("PASS", &pass);
        server += &format!(
            "server {{ listen 127.0.0.1:%PORT0%; server_name s{i}; location = /page {{ return 200 page; }} {own} }}\n"
        );
        for line in ["GET /a", "GET /a?x=1", "POST /a", "GET /a/", "GET /x/a", "GET /a%20b", "GET /b"] {
            requests.push(format!("{line} HTTP/1.1\r\nHost: s{i}\r\nConnection: close\r\n\r\n"));
        }
    }
    compare(&server, &[], &requests);
}

/// A file that `try_files` has found is the path of the request, but no redirect.
#[test]
fn an_upstream_gets_the_path_of_the_client_behind_try_files() {
    let up = Origin::start(|asked| {
        let target = asked.target().to_owned();
        asked.answer("200 OK", "", &target)
    });
    let tails = [
        format!("proxy_pass http://{up};"),
        format!("proxy_pass http://{up}/u/;"),
        format!("set $b {up}; proxy_pass http://$b;"),
        format!("set $b {up}; proxy_pass http://$b$uri$is_args$args;"),
        format!("set $b {up}; proxy_pass http://$b$request_uri;"),
    ];
    let tried = [
        "try_files $uri =404;",
        "try_files /page.html =404;",
        "try_files $uri/ =404;",
        "try_files none $uri @n;",
        "try_files none /page.html;",
        "rewrite ^ /page.html break; try_files $uri =404;",
        "set $args z=1; try_files $uri =404;",
    ];
    let mut server = format!(
        "server {{ listen 127.0.0.1:%PORT0%; location @n {{ proxy_pass http://{up}; }} location = /page.html {{ proxy_pass http://{up}; }}\n"
    );
    let (mut requests, mut files) = (Vec::new(), Vec::new());
    for (k, tail) in tails.iter().enumerate() {
        for (i, try_files) in tried.iter().enumerate() {
            server += &format!(
                "location /{k}{i}/ {{ {try_files} {tail} }} location /alias{k}{i}/ {{ alias %DIR%/html/; {try_files} {tail} }}\n"
            );
            for place in ["", "alias"] {
                for rest in
                    ["page.html", "pag%65.html?a=b", ".//page.html", "dir?x", "dir/", "none", "a%20b.html"]
                {
                    requests.push(get(format!("/{place}{k}{i}/{rest}")));
                }
            }
            files.extend(
                ["page.html", "a b.html", "dir/x"]
                    .map(|name| (format!("html/{k}{i}/{name}"), "x".to_owned())),
            );
        }
    }
    server.push('}');
    compare(&server, &files, &requests);
}

/// `proxy_intercept_errors` in the page of an error.
#[test]
fn errors_in_pages_of_errors_are_intercepted() {
    let up = Origin::start(|asked| {
        let status = asked.target().split("/s").nth(1).map_or("200", |s| &s[..3]).to_owned();
        let body = format!("up {}", asked.target());
        asked.answer(&format!("{status} Own"), "X-Up: 1\r\n", &body)
    });
    let inner = [
        "proxy_intercept_errors on; error_page 503 /page;",
        "proxy_intercept_errors on;",
        "proxy_intercept_errors on; error_page 404 /page;",
        "proxy_intercept_errors on; error_page 503 =200 /page;",
        "proxy_intercept_errors on; error_page 503 = @n;",
        "error_page 503 /page;",
    ];
    let mut server = String::from(
        "server { listen 127.0.0.1:%PORT0%; location = /page { return 200 page; } location @n { return 200 named; }\n",
    );
    let mut requests = Vec::new();
    let mut n = 0;
    for recursive in ["off", "on"] {
        for target in ["/eN/", "@eN", "=200 /eN/", "= /eN/"] {
            for inner in inner {
                let target = target.replace('N', &n.to_string());
                let (place, uri) = match target.starts_with('@') {
                    true => (format!("@e{n}"), ""),
                    false => (format!("/e{n}/"), "/s503/"),
                };
                server += &format!(
                    "location /a{n}/ {{ recursive_error_pages {recursive}; proxy_pass http://{up}; proxy_intercept_errors on;\n\
                     error_page 500 502 404 {target}; }}\n\
                     location {place} {{ recursive_error_pages {recursive}; proxy_pass http://{up}{uri}; {inner} }}\n"
                );
                requests.extend([500, 404, 401, 503, 200].map(|status| get(format!("/a{n}/s{status}"))));
                n += 1;
            }
        }
    }
    server.push('}');
    compare(&server, &[], &requests);
}

/// An upstream without a word: its connection ends.
fn dying() -> Origin {
    Origin::start(move |request| match request.target() {
        path if path.contains("/half") => request.close_with(b"HTTP/1.1 200 OK\r\nContent-Le"),
        path if path.contains("/503") => {
            request.answer("503 Own", "", "own");
            false
        }
        _ => false,
    })
}

/// The statuses of failures are remembered as those of responses are (nginx: proxy_cache_valid). `X-Cache` tells whether the server
/// was asked.
#[test]
fn failures_of_servers_are_cached_as_in_nginx() {
    let up = dying();
    let rules = [
        "proxy_cache_valid any 1h;",
        "proxy_cache_valid 502 1h;",
        "proxy_cache_valid 504 1h;",
        "proxy_cache_valid 1h;",
        "proxy_cache_valid 502 0; proxy_cache_valid any 1h;",
        "proxy_cache_valid any 1h; proxy_cache_min_uses 2;",
        "proxy_cache_valid any 1h; proxy_cache_lock on;",
        "proxy_cache_valid any 1h; proxy_cache_bypass $arg_b;",
        "proxy_cache_valid any 1h; proxy_no_cache 1;",
        "proxy_cache_valid any 1h; proxy_intercept_errors on; error_page 503 /page; proxy_cache_bypass $arg_b;",
        "proxy_cache_valid any 1h; error_page 502 /page;",
        "proxy_cache_valid any 1h; proxy_cache_methods POST;",
    ];
    let mut server = String::from(
        "proxy_cache_path %DIR%/cache keys_zone=one:10m use_temp_path=off; fastcgi_cache_path %DIR%/f keys_zone=f:1m use_temp_path=off;\n\
         uwsgi_cache_path %DIR%/u keys_zone=u:1m use_temp_path=off; scgi_cache_path %DIR%/s keys_zone=s:1m use_temp_path=off;\n\
         server { listen 127.0.0.1:%PORT0%; location = /page { return 200 page; }\n",
    );
    let mut requests = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        server += &format!(
            "location /p{i}/ {{ proxy_pass http://{up}; proxy_cache one; proxy_cache_key $uri; {rule} \
             add_header X-Cache $upstream_cache_status always; }}\n"
        );
        for path in ["x", "half", "503"] {
            requests.extend(["?b=1", "", "", ""].map(|query| get(format!("/p{i}/{path}{query}"))));
        }
        requests.push(format!("HEAD /p{i}/head HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        requests.push(get(format!("/p{i}/head")));
        requests.extend(["POST", "POST"].map(|method| {
            format!(
                "{method} /p{i}/post HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
        }));
    }
    for (name, zone) in [("fastcgi", "f"), ("uwsgi", "u"), ("scgi", "s")] {
        server += &format!(
            "location /{name}/ {{ {name}_pass 127.0.0.1:1; {name}_cache {zone}; {name}_cache_key $uri; {name}_cache_valid any 1h;\n\
             add_header X-Cache $upstream_cache_status always; }}\n"
        );
        requests.extend([1, 2].map(|_| get(format!("/{name}/"))));
    }
    server.push('}');
    compare(&server, &[], &requests);
}

/// What an expired entry and its renewal make of a failure.
#[test]
fn a_failed_renewal_is_cached_as_in_nginx() {
    let rules = [
        "",
        "proxy_cache_revalidate on;",
        "proxy_cache_use_stale error;",
        "proxy_cache_use_stale updating;",
        "proxy_cache_lock on;",
    ];
    let lives = Arc::new(AtomicUsize::new(0));
    let alive = lives.clone();
    let up = Origin::start(move |asked| {
        // One answer for each rule of each server.
        if alive.fetch_add(1, Ordering::Relaxed) < 10 {
            asked.answer("200 OK", "ETag: \"x\"\r\nX-Accel-Expires: @1\r\nConnection: close\r\n", "old");
        }
        false
    });
    let mut server = String::from(
        "proxy_cache_path %DIR%/cache keys_zone=one:10m use_temp_path=off; server { listen 127.0.0.1:%PORT0%;\n",
    );
    let mut requests: Vec<String> = (0..rules.len()).map(|i| get(format!("/p{i}/"))).collect();
    for (i, rule) in rules.iter().enumerate() {
        server += &format!(
            "location /p{i}/ {{ proxy_pass http://{up}; proxy_cache one; proxy_cache_key $uri; proxy_cache_valid any 1h; {rule} \
             add_header X-Cache $upstream_cache_status always; }}\n"
        );
        requests.extend([1, 2, 3].map(|_| get(format!("/p{i}/"))));
    }
    server.push('}');
    // Both servers have their first answers before either is refused one.
    let (first, then) = requests.split_at(rules.len());
    if oracle().is_some() {
        compare(&server, &[], &[first, then].concat());
        assert!(lives.load(Ordering::Relaxed) > 10);
    }
}

/// Answers that are no HTTP/1 (HTTP/0.9, ICY) are passed on as they come.
#[test]
fn answers_without_a_head_are_passed_on() {
    let up = Origin::start(|asked| {
        let answer: &[u8] = match asked.target().rsplit('/').next().unwrap_or_default() {
            "icy" => b"ICY 200 OK\r\nicy-name: x\r\n\r\nDATA",
            "old" => b"hello world\n",
            "line" => b"HTTP/1.1 20 OK\r\n\r\nx",
            "half" => b"HTTP/1.1 200",
            "blank" => b"\r\n\r\n",
            "nul" => b"\0\0\0",
            _ => b"",
        };
        asked.close_with(answer)
    });
    let ways = [
        "",
        "proxy_buffering off;",
        "proxy_cache one; proxy_cache_key x; proxy_cache_valid 1h;",
        "proxy_intercept_errors on; error_page 502 /page;",
        "gzip on; gzip_types *; gzip_min_length 1;",
        "sub_filter hello bye; sub_filter_types *; chunked_transfer_encoding off;",
        "proxy_next_upstream invalid_header error;",
    ];
    let mut server = String::from(
        "proxy_cache_path %DIR%/cache keys_zone=one:10m use_temp_path=off; server { listen 127.0.0.1:%PORT0%;\n\
         location = /page { return 200 page; } location /in/ { add_before_body /w0/old; add_after_body /w0/icy; addition_types *; alias %DIR%/html/; }\n",
    );
    let mut requests = vec![get("/in/page.html")];
    for (i, way) in ways.iter().enumerate() {
        server += &format!("location /w{i}/ {{ proxy_pass http://{up}; {way} add_header X-A b; }}\n");
        for path in ["icy", "old", "line", "half", "blank", "nul", "none"] {
            requests.push(get_with(format!("/w{i}/{path}"), "Accept-Encoding: gzip\r\n"));
        }
        // nginx answers one to a cache with content.
        if !way.contains("proxy_cache") {
            requests.push(format!("HEAD /w{i}/old HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        }
        requests.push(format!("GET /w{i}/old HTTP/1.0\r\n\r\n"));
        requests.push(get_with(format!("/w{i}/old"), "Range: bytes=1-2\r\n"));
    }
    server.push('}');
    compare(&server, &[], &requests);
}

/// A page goes on behind a fragment whose upstream breaks off.
#[test]
fn fragments_that_break_off_do_not_end_their_page() {
    let up = Origin::start(|asked| match asked.target().rsplit('/').next().unwrap_or_default() {
        "short" => asked.close_with(b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\nshort"),
        "chunks" => asked.close_with(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nchunks\r\n"),
        "none" => false,
        _ => asked.answer("200 OK", "Content-Type: text/html\r\n", "fine"),
    });
    let mut files = Vec::new();
    let mut requests = Vec::new();
    let mut server = format!(
        "server {{ listen 127.0.0.1:%PORT0%; error_page 502 @gone; location @gone {{ return 502 gone; }}\n\
         location /p/ {{ proxy_pass http://{up}; }} location /n/ {{ proxy_pass http://{up}; proxy_buffering off; }}\n\
         location /s/ {{ proxy_pass http://{up}; sub_filter ort ORT; sub_filter_types *; }} location /page/ {{ ssi on; alias %DIR%/html/; }}\n"
    );
    for kind in ["short", "chunks", "none", "fine"] {
        for place in ["p", "n", "s"] {
            for (i, how) in ["", " wait=\"yes\"", " set=\"v\"", " stub=\"b\""].iter().enumerate() {
                if (kind, place, i) == ("none", "s", 3) {
                    // nginx loses a part of the text.
                    continue;
                }
                let name = format!("{kind}{place}{i}.html");
                let page = format!(
                    "<!--# block name=\"b\" -->stub<!--# endblock --><a><!--# include virtual=\"/{place}/{kind}\"{how} --><b>\
                     <!--# echo var=\"v\" --><!--# include virtual=\"/p/fine\" --><c>"
                );
                files.push((format!("html/{name}"), page));
                requests.push(get(format!("/page/{name}")));
            }
        }
        files.push((
            format!("html/nested{kind}.html"),
            format!("<n><!--# include virtual=\"/page/{kind}p0.html\" --></n><!--# include virtual=\"/p/fine\" -->"),
        ));
        requests.push(get(format!("/page/nested{kind}.html")));
        server += &format!(
            "location /before{kind}/ {{ add_before_body /p/{kind}; add_after_body /p/fine; alias %DIR%/html/; }}\n\
             location /after{kind}/ {{ add_before_body /p/fine; add_after_body /p/{kind}; alias %DIR%/html/; }}\n\
             location /main{kind}/ {{ add_before_body /p/fine; add_after_body /p/fine; addition_types *; proxy_pass http://{up}; }}\n"
        );
        requests.extend(["before", "after"].map(|place| get(format!("/{place}{kind}/page.html"))));
        requests.push(get(format!("/main{kind}/{kind}")));
    }
    server.push('}');
    compare(&server, &files, &requests);
}
