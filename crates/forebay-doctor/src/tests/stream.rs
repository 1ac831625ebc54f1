//! Rules for the stream block.

use super::{fired, machine};

fn stream(text: &str) -> String {
    format!("worker_processes auto; events {{ worker_connections 600; }} stream {{ {text} }}")
}

fn server(text: &str) -> String {
    stream(&format!("server {{ {text} }}"))
}

/// Other ways to write a fault, and configurations that only look like it.
#[test]
fn stream_rules_see_through_other_ways_to_write_it() {
    let host = machine();
    let has = |rule: &str, conf: &str| fired(conf, &host).iter().any(|(r, _)| r == rule);
    let http =
        "http { server { listen [::]:8000; listen 127.0.0.1:9000-9010; listen 10.0.0.1; listen unix:/s; } }";
    let pass = |text: &str| format!("{http} {}", server(&format!("listen 1; pass {text};")));
    let mapped = |text: &str| {
        stream(&format!(
            "map $ssl_preread_server_name $b {{ a a; default {text}; }} upstream a {{ server x:3306; }} \
                         server {{ listen 443; ssl_preread on; proxy_pass $b; }}"
        ))
    };
    for (rule, conf) in [
        ("stream-timeout-zero", stream("proxy_timeout 0; server { listen 1; proxy_pass a:1; }")),
        (
            "stream-database-timeout",
            stream("upstream db { server a:3306; } server { listen 1; proxy_pass db; }"),
        ),
        ("stream-database-timeout", mapped("x:1")),
        ("udp-settings-unused", stream("proxy_requests 1; server { listen 1; proxy_pass a:1; }")),
        ("udp-answers-dropped", stream("proxy_responses 0; server { listen 5353 udp; proxy_pass a:53; }")),
        ("udp-sessions-linger", server("listen [::]:53 udp; proxy_pass a:1; proxy_timeout 10m;")),
        ("pass-without-listener", pass("127.0.0.1:8000")),
        ("pass-without-listener", pass("127.0.0.1:9011")),
        ("pass-without-listener", pass("unix:/t")),
        (
            "pass-without-listener",
            stream("server { listen 53 udp; } server { listen 1; pass 127.0.0.1:53; }"),
        ),
        ("preread-off", server("listen 1; set $b $ssl_preread_server_name:443; proxy_pass $b;")),
        (
            "preread-off",
            stream(
                "upstream u { hash $mqtt_preread_clientid; server a:1; } server { listen 1; proxy_pass u; }",
            ),
        ),
        (
            "preread-off",
            stream(
                "ssl_preread on; upstream u { hash $rdp_cookie; server a:1; } server { listen 1; proxy_pass u; }",
            ),
        ),
        (
            "preread-off",
            stream(
                "upstream u { sticky learn create=$rdp_cookie lookup=$rdp_cookie zone=z:1m; server a:1; } \
                    server { listen 1; proxy_pass u; }",
            ),
        ),
        ("preread-off", server("listen 1 ; listen 2; rdp_preread on; proxy_pass $mqtt_preread_username:1;")),
        (
            "stream-name-unused",
            stream(
                "server { listen 4 ssl; proxy_pass a:1; } server { listen [::]:4; server_name b; pass b:1; }",
            ),
        ),
        (
            "limit-before-bytes",
            stream(
                "map $mqtt_preread_clientid $k { default $mqtt_preread_clientid; } limit_conn_zone $k zone=z:1m; \
                 limit_conn z 1; server { listen 1; mqtt_preread on; proxy_pass a:1; }",
            ),
        ),
        ("ssrf", server("listen 1; mqtt_preread on; proxy_pass $mqtt_preread_clientid:1883;")),
        ("ssrf", server("listen 1; rdp_preread on; proxy_pass $rdp_cookie:3389;")),
        ("stream-real-ip", stream("limit_conn z 1; server { listen 1 proxy_protocol; proxy_pass a:1; }")),
        (
            "stream-tls-unverified",
            stream("proxy_ssl on; upstream u { server 8.8.8.8:1; } server { listen 1; proxy_pass u; }"),
        ),
        ("ssrf", server("listen 443; ssl_preread on; proxy_pass $ssl_preread_server_name:443;")),
        ("missing-resolver", server("listen 443; ssl_preread on; proxy_pass $ssl_preread_server_name:443;")),
        ("missing-resolver", mapped("name.example:443")),
        ("allow-without-deny", server("listen 1; allow 10.0.0.0/8; proxy_pass a:1;")),
    ] {
        assert!(has(rule, &conf), "{rule} is silent about: {conf}");
    }
    for (rule, conf) in [
        ("stream-database-timeout", server("listen 1 udp; proxy_pass a:11211;")),
        (
            "stream-database-timeout",
            "http { upstream a { server a:3306; } } ".to_owned() + &server("listen 1; proxy_pass a:1;"),
        ),
        (
            "stream-vanished-clients",
            server("listen unix:/s; listen 1 udp; proxy_pass a:1; proxy_timeout 1d;"),
        ),
        ("udp-settings-unused", stream("proxy_requests 1; server { listen 1; } server { listen 2 udp; }")),
        ("udp-answers-dropped", server("listen 53; proxy_pass a:53; proxy_responses 0;")),
        ("udp-sessions-linger", server("listen 53 udp; proxy_pass a:53; proxy_timeout 10s;")),
        ("udp-without-reuseport", server("listen 53 udp; proxy_pass a:53; proxy_responses 1;")),
        ("udp-without-reuseport", server("listen 53 udp; proxy_pass a:53;").replace("auto", "1")),
        ("pass-without-listener", pass("[::1]:8000")),
        ("pass-without-listener", pass("127.0.0.1:9005")),
        ("pass-without-listener", pass("10.0.0.1:80")),
        ("pass-without-listener", pass("unix:/s")),
        ("pass-without-listener", pass("$unknown")),
        (
            "preread-off",
            stream(
                "server { listen 443; ssl_preread on; proxy_pass a:1; } server { listen 443; server_name b; proxy_pass \
                    $ssl_preread_server_name:443; }",
            ),
        ),
        (
            "preread-off",
            stream(
                "server { listen *:443; ssl_preread on; proxy_pass a:1; } server { listen 0.0.0.0:443; server_name b; \
                    proxy_pass $ssl_preread_server_name:443; }",
            ),
        ),
        ("preread-off", server("listen 443 ssl; proxy_pass $ssl_server_name:443;")),
        (
            "stream-name-unused",
            stream(
                "server { listen 443 ssl; proxy_pass a:1; } server { listen *:443; server_name b; pass b:1; }",
            ),
        ),
        (
            "udp-without-reuseport",
            stream(
                "server { listen 5 udp; proxy_pass a:1; } server { listen *:5 udp reuseport; proxy_pass a:1; }",
            ),
        ),
        ("stream-vanished-clients", stream("proxy_timeout 1d; server { listen 1; return a; }")),
        (
            "limit-before-bytes",
            "http { limit_conn_zone $ssl_server_name zone=z:1m; limit_conn z 1; } ".to_owned()
                + &stream(
                    "limit_conn_zone $remote_addr zone=z:1m; limit_conn z 1; server { listen 1; return a; }",
                ),
        ),
        ("stream-database-timeout", server("listen 1; proxy_pass a:5672;")),
        // A variable of http with the same name.
        (
            "stream-database-timeout",
            "http { map $host $b { default x:3306; } } ".to_owned()
                + &stream("map $remote_addr $b { default x:1; } server { listen 1; proxy_pass $b; }"),
        ),
        ("missing-resolver", mapped("10.0.0.1:443")),
        (
            "missing-resolver",
            stream(
                "split_clients $remote_addr $b { 50% 10.0.0.1:1; * 10.0.0.2:1; } server { listen 1; proxy_pass $b; }",
            ),
        ),
        (
            "missing-resolver",
            stream("geo $b { default 10.0.0.1:1; 10.0.0.0/8 unix:/s; } server { listen 1; proxy_pass $b; }"),
        ),
        (
            "preread-off",
            stream("upstream u { hash $remote_addr; server a:1; } server { listen 1; proxy_pass u; }"),
        ),
        (
            "preread-off",
            stream(
                "ssl_preread on; upstream u { hash $ssl_preread_server_name; server a:1; } server { listen 1; proxy_pass u; }",
            ),
        ),
        ("stream-real-ip", server("listen 1; limit_conn z 1; proxy_pass a:1;")),
        ("stream-real-ip", server("listen 1 proxy_protocol; proxy_pass a:1;")),
        (
            "stream-tls-unverified",
            stream(
                "upstream u { server 10.0.0.1:1; server unix:/s; } server { listen 1; proxy_ssl on; proxy_pass u; }",
            ),
        ),
        // Rules for http.
        ("return-before-access", server("listen 1; deny all; return 200;")),
        ("proxy-buffers", server("listen 1; proxy_pass a:1; proxy_buffer_size 64k;")),
    ] {
        assert!(!has(rule, &conf), "{rule} fires for: {conf}");
    }
}
