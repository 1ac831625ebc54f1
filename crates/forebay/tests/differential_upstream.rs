//! What an upstream's answer decides, compared with nginx as in `differential.rs`: fields that are hidden, ignored or added, URIs of
//! internal redirects, failures that a cache remembers, and answers that break off or have no head.

use forebay_testkit::{Form, Origin, get, get_with, nginx_answers, oracle};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn compare(server: &str, requests: &[String]) {
    let mut differences = String::new();
    for (request, a, b) in nginx_answers(server, &[], requests) {
        let (a, b) = (Form::Joined.of(&a), Form::Joined.of(&b));
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

forebay_testkit::cases!("cases/differential_upstream.cases":
    fields_that_are_held_apart_are_replaced_as_in_nginx, uris_of_internal_redirects_stay_as_they_are,
    the_missing_slash_of_every_kind_of_location, an_upstream_gets_the_path_of_the_client_behind_try_files,
    errors_in_pages_of_errors_are_intercepted, failures_of_servers_are_cached_as_in_nginx,
    answers_without_a_head_are_passed_on, fragments_that_break_off_do_not_end_their_page);

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
    compare(&server, &requests);
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
        compare(&server, &[first, then].concat());
        assert!(lives.load(Ordering::Relaxed) > 10);
    }
}
