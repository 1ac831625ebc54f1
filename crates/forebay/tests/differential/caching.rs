//! Responses from a cache.

use forebay_testkit::{compare, get, is_before, oracle};

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

forebay_testkit::cases!("../cases/differential/caching.cases":
    conditions_and_ranges_of_cached_responses, the_status_of_the_cache_is_that_of_the_last_upstream);
