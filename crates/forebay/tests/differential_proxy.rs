//! Requests to upstreams and their answers, compared with nginx as in `differential.rs`.

use crate::differential::{compare, with};
use crate::harness::origin;
use std::net::SocketAddr;

/// Starts an upstream that answers with the fields that the request names in `X-Answer`, and with the request's target
/// as its body.
fn puppet() -> SocketAddr {
    origin::start(|mut asked| {
        let fields: String = (asked.text.lines())
            .filter_map(|l| l.strip_prefix("X-Answer: "))
            .map(|f| format!("{f}\r\n"))
            .collect();
        let body = asked.target().to_owned();
        asked.answer("200 OK", &fields, &body);
        true
    })
}

#[test]
fn cookies_of_upstreams() {
    let up = puppet();
    let rules = [
        r#"proxy_cookie_path / "/; HTTPOnly; Secure";"#,
        r#"proxy_cookie_path ~(.*) "$1; SameSite=strict; secure; httponly";"#,
        "proxy_cookie_path / /$arg_v;",
        "proxy_cookie_path ~^/a /z;",
        "proxy_cookie_path ~*^/A/(.) /z/$1;",
        "proxy_cookie_path $arg_v /new;",
        "proxy_cookie_path /a/ /b/; proxy_cookie_path / /c/;",
        r#"proxy_cookie_path / "";"#,
        r#"proxy_cookie_domain a.b "x.y; Secure";"#,
        "proxy_cookie_domain .a.b .x.y;",
        r"proxy_cookie_domain ~\.?a\.(.) $1.q;",
        "proxy_cookie_domain $arg_v $arg_v.new;",
        r#"proxy_cookie_domain a.b "";"#,
        "proxy_cookie_flags v secure httponly samesite=lax;",
        "proxy_cookie_flags ~ nosecure nohttponly nosamesite;",
        "proxy_cookie_flags ~^V $arg_v;",
        "proxy_cookie_flags v samesite=none; proxy_cookie_flags ~. secure;",
        "proxy_cookie_flags $arg_v httponly;",
        r#"proxy_cookie_flags ~ secure samesite=strict; proxy_cookie_path / "/; Secure; foo"; proxy_cookie_domain a.b x;"#,
        "proxy_cookie_path off; proxy_cookie_domain off; proxy_cookie_flags off;",
        // Taken over from the server.
        "",
    ];
    let cookies = [
        "v=1",
        "v=1;Path=/a/b;Secure;HttpOnly",
        "v=1; path=/A/b; SameSite=None; SameSite=Lax",
        "v=1; domain=.A.B; Path=/; domain=a.b",
        "v=1; Domain=.a.c; foo; bar=1",
        "v=1;;  Path = /a/x ;",
        "v; Path=/",
        "=x; Path=/; secure",
        "V=2; SECURE; httponly=1",
        "v=1; Path=\"/a/\"; x",
        "v=1; Path=; Path; domain",
        "v=1 ; Path=/ ; Secure ",
        "inh=1; Path=/inh/x; Domain=.INH",
    ];
    let mut server = "server { listen 127.0.0.1:%PORT0%; proxy_cookie_path /inh /herited; \
                      proxy_cookie_domain inh her; proxy_cookie_flags inh secure;"
        .to_owned();
    let mut requests = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        server.push_str(&format!("location /{i}/ {{ proxy_pass http://{up}; {rule} }}\n"));
        let values: &[&str] =
            if rule.contains("$arg_v") { &["x", "/a", "v", "secure", "samesite=lax"] } else { &["a.b"] };
        for v in values {
            // All in one answer: each is rewritten for itself.
            let fields: String = cookies.iter().map(|c| format!("X-Answer: Set-Cookie: {c}\r\n")).collect();
            requests.push(with(&format!("/{i}/?v={v}"), &fields));
        }
    }
    server.push('}');
    compare(&server, &requests);
}
