//! Levels with the same directives share their settings.

use crate::headers;
use crate::testing::http;
use forebay_proxy::modules::proxy;
use std::sync::Arc;

#[test]
fn levels_that_are_written_alike_share_their_settings() {
    let location = "proxy_set_header A $host; proxy_set_header B b; proxy_read_timeout 5s; proxy_pass http://127.0.0.1:1;";
    let http = http(&format!(
        "server {{ location /a {{ {location} }} location /b {{ {location} }} location /c {{ {location} proxy_buffering off; }} }} \
         server {{ listen 81; location / {{ {location} }} }} \
         server {{ listen 82; proxy_send_timeout 9s; location / {{ {location} }} }}"
    ));
    let proxy = |server: usize, location: usize| {
        proxy::SETTINGS.of(&http.level(server, location).expect("a location").settings)
    };
    assert!(std::ptr::eq(proxy(0, 1), proxy(0, 2)) && std::ptr::eq(proxy(0, 1), proxy(1, 1)));
    assert!(!proxy(0, 3).buffering && proxy(0, 1).buffering, "one that is written otherwise has its own");
    let (own, others) = (proxy(2, 1), proxy(0, 1));
    assert_eq!(own.send_timeout.0.as_secs(), 9, "what the level around it sets counts");
    assert_eq!(others.send_timeout.0.as_secs(), 60);
    assert_eq!((own.set_header.0.len(), own.read_timeout.0.as_secs()), (2, 5));
}

#[test]
fn blocks_are_told_apart() {
    let http = http(
        "server { location /a { types { a/a a; } } location /b { types { b/b a; } } location /c { types { a/a a; } } }",
    );
    let core = |n: usize| &http.level(0, n).expect("a location").settings.core;
    assert!(Arc::ptr_eq(core(1), core(3)) && !Arc::ptr_eq(core(1), core(2)));
}

#[test]
fn words_are_told_apart() {
    let words = ["ab c", "a bc", "\"ab\" c", "ab c always"];
    let locations: String =
        words.iter().enumerate().map(|(n, w)| format!("location /{n} {{ add_header {w}; }}")).collect();
    let http = http(&format!("server {{ {locations} }}"));
    let names: Vec<usize> = (1..5)
        .map(|n| {
            std::ptr::from_ref(headers::SETTINGS.of(&http.level(0, n).expect("a location").settings)) as usize
        })
        .collect();
    let distinct: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
}
