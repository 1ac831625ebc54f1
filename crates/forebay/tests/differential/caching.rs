//! Responses from a cache.

use forebay_testkit::{compare, get, get_with, is_before, oracle};

/// Asks for each path twice, so that the second answer shows what was stored.
fn twice(paths: &[&str]) -> Vec<String> {
    paths.iter().flat_map(|p| [get(p), get(p)]).collect()
}

#[test]
fn a_cache_keeps_the_responses_that_nginx_keeps() {
    let rules = [
        "Cache-Control max-age=60",
        "Cache-Control \"max-age=0\"",
        "Cache-Control \"public, s-maxage=60, max-age=0\"",
        "Cache-Control \"S-MAXAGE=60\"",
        "Cache-Control \"private, max-age=60\"",
        "Cache-Control \"no-store\"",
        "Cache-Control \"NO-CACHE, max-age=60\"",
        "Cache-Control \"max-age=x\"",
        "Cache-Control \"max-age=60x\"",
        "Cache-Control \"max-age=99999999999999999999\"",
        "Cache-Control \"stale-while-revalidate=60\"",
        "Cache-Control \"stale-if-error=60, max-age=60\"",
        "Cache-Control \"must-revalidate\"",
        "Expires \"Thu, 31 Dec 2037 23:55:55 GMT\"",
        "Expires \"Thu, 01 Jan 1970 00:00:01 GMT\"",
        "Expires 0",
        "X-Accel-Expires 60",
        "X-Accel-Expires 0",
        "X-Accel-Expires @60",
        "X-Accel-Expires @4102444800",
        "X-Accel-Expires x",
        "X-Accel-Expires \"\"",
        "Set-Cookie a=b",
        "Vary *",
        "Vary Accept-Encoding",
        "X-None 1",
    ];
    let long = format!("Vary \"{}\"", "Accept-Language,".repeat(9));
    let longest = format!("Vary \"{}\"", "x".repeat(128));
    let mut back = String::new();
    let mut paths: Vec<String> = Vec::new();
    let all: Vec<&str> = rules.iter().copied().chain([long.as_str(), longest.as_str()]).collect();
    for (i, first) in all.iter().enumerate() {
        back.push_str(&format!("location = /one{i} {{ add_header {first}; return 200 x; }}\n"));
        // Any two together, in both orders.
        let second = all[(i * 7 + 3) % all.len()];
        back.push_str(&format!(
            "location = /two{i} {{ add_header {first}; add_header {second}; return 200 x; }}\n\
             location = /owt{i} {{ add_header {second}; add_header {first}; return 200 x; }}\n"
        ));
        paths.extend(["one", "two", "owt"].map(|kind| format!("{kind}{i}")));
    }
    let paths: Vec<String> = (paths.iter())
        .flat_map(|p| ["plain", "valid", "ignore"].map(|place| format!("/{place}/{p}")))
        .collect();
    // Two X-Accel-Expires fields, and a Vary of more than 128 bytes, are judged as since nginx 1.23.
    let old = oracle().is_some_and(|nginx| is_before(&nginx, 23));
    let later = ["two18", "two27", "owt27"];
    let paths: Vec<&str> =
        paths.iter().map(String::as_str).filter(|p| !old || !later.iter().any(|l| p.ends_with(l))).collect();
    compare(
        &format!(
            "proxy_cache_path %DIR%/cache keys_zone=one:10m use_temp_path=off; proxy_cache one;\n\
             server {{ listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status;\n\
             location /plain/ {{ proxy_pass http://127.0.0.1:%PORT1%/; }}\n\
             location /valid/ {{ proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache_valid 1h;\n\
             proxy_cache_key v$request_uri; }}\n\
             location /ignore/ {{ proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache_valid any 1h;\n\
             proxy_cache_key i$request_uri; proxy_ignore_headers Cache-Control Expires Set-Cookie; }} }}\n\
             server {{ listen 127.0.0.1:%PORT1%; {back} }}"
        ),
        &twice(&paths),
    );
}

#[test]
fn conditions_and_ranges_of_cached_responses() {
    let mut requests = Vec::new();
    for place in
        ["/c/digits.txt", "/f/digits.txt", "/n/digits.txt", "/c/page.html", "/c/none", "/b/digits.txt?b=1"]
    {
        for fields in [
            "",
            "Range: bytes=1-3\r\n",
            "Range: bytes=1-3,5-7\r\n",
            "Range: bytes=-4\r\n",
            "If-Modified-Since: Tue, 14 Nov 2023 22:13:20 GMT\r\n",
            "If-Modified-Since: Tue, 14 Nov 2023 22:13:19 GMT\r\n",
            "If-Unmodified-Since: Tue, 14 Nov 2023 22:13:19 GMT\r\n",
            "If-None-Match: \"6553f100-24\"\r\n",
            "If-None-Match: \"x\"\r\n",
            "If-Match: \"x\"\r\n",
            "Range: bytes=1-3\r\nIf-Range: \"6553f100-24\"\r\n",
            "Range: bytes=1-3\r\nIf-Range: \"x\"\r\n",
        ] {
            // Part of a list of ranges: a boundary that differs from answer to answer.
            if fields.contains(',') && fields.starts_with("Range") {
                continue;
            }
            requests.push(get_with(place, fields));
        }
        requests.push(format!("HEAD {place} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        requests.push(format!("POST {place} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    }
    // A first request that is one of these, too.
    for (i, fields) in ["Range: bytes=1-3\r\n", "If-None-Match: \"6553f100-24\"\r\n", "If-Match: \"x\"\r\n"]
        .iter()
        .enumerate()
    {
        for _ in 0..2 {
            requests.push(get_with(&format!("/c/digits.txt?fresh{i}"), fields));
        }
    }
    let head = "HEAD /c/digits.txt?head HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    requests.extend([head.to_owned(), get("/c/digits.txt?head")]);
    compare(
        "proxy_cache_path %DIR%/cache keys_zone=one:10m levels=1:2 use_temp_path=off;\n\
         server { listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status; proxy_cache_valid 200 404 1h;\n\
         location /c/ { proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache one; }\n\
         location /f/ { proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache one; proxy_force_ranges on; }\n\
         location /n/ { proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache one; proxy_no_cache 1; }\n\
         location /b/ { proxy_pass http://127.0.0.1:%PORT1%/; proxy_cache one; proxy_cache_bypass $arg_b; } }\n\
         server { listen 127.0.0.1:%PORT1%; }",
        &requests,
    );
}
