//! Groups of upstreams as the configuration has them.

use crate::testing::{error, warnings};

fn says(block: &str) -> Option<String> {
    error(&format!("upstream u {{ {block} }}"))
}

#[test]
fn mistakes_have_nginx_s_words() {
    let cases = [
        ("server a.invalid resolve;", "no resolver defined to resolve names at run time in upstream \"u\""),
        ("server a:1 resolve service=x;", "service upstream \"a:1\" may not have port"),
        ("server a service=x;", "service upstream \"a\" requires \"resolve\" parameter"),
        ("server 127.0.0.1 resolve service=x;", "service upstream \"127.0.0.1\" requires domain name"),
        ("server 127.0.0.1 route=;", "route is empty"),
        ("server 127.0.0.1 service=;", "service is empty"),
        ("hash $uri; server 127.0.0.1 backup;", "balancing method does not support parameter \"backup\""),
        ("server 127.0.0.1 backup; hash $uri;", "no servers in upstream \"u\""),
        ("server 127.0.0.1; hash $uri foo;", "invalid parameter \"foo\""),
        ("server 127.0.0.1; random three;", "invalid parameter \"three\""),
        ("server 127.0.0.1; random two foo;", "invalid parameter \"foo\""),
        ("server 127.0.0.1; least_time foo;", "invalid value \"foo\""),
        ("server 127.0.0.1; sticky foo bar;", "unknown parameter \"foo\""),
        ("server 127.0.0.1; sticky cookie a foo=b;", "unknown parameter \"foo=b\""),
        ("server 127.0.0.1; sticky route foo;", "invalid variable name \"foo\""),
        (
            "server 127.0.0.1; sticky learn create=$uri;",
            "\"sticky\" directive \"lookup\" parameter is not specified",
        ),
        (
            "server 127.0.0.1; sticky learn zone=x:1 create=$uri lookup=$uri;",
            "\"sticky\" directive zone is too small",
        ),
        ("server 127.0.0.1; sticky cookie a; sticky cookie b;", "\"sticky\" directive is duplicate"),
        ("server 127.0.0.1; zone z;", "zero size shared memory zone \"z\""),
        ("server 127.0.0.1; zone z 1k;", "zone \"z\" is too small"),
        ("state /nonexistent; server 127.0.0.1;", "\"state\" cannot be used together with \"server\""),
        ("peers internal;", "invalid source \"internal\", it must be \"external\""),
        ("peers external weight=2;", "invalid parameter \"weight=2\""),
        ("peers external; peers external;", "\"peers\" directive is duplicate"),
        ("peers external; server 127.0.0.1;", "\"peers\" cannot be used together with \"server\""),
        ("fallback none;", "upstream \"none\" of \"fallback\" not found"),
        ("fallback u;", "\"fallback\" of upstream \"u\" leads back to it"),
        ("fallback =200;", "status must be between 400 and 599"),
        ("fallback =x;", "status must be between 400 and 599"),
        ("fallback off; fallback off;", "\"fallback\" directive is duplicate"),
        ("server 127.0.0.1; sticky cookie a max_age=x;", "invalid \"max_age\" parameter value \"x\""),
        (
            "server 127.0.0.1; sticky cookie a change_on_failure=no;",
            "invalid \"change_on_failure\" parameter value \"no\"",
        ),
        ("server a.invalid resolve search=a..b;", "invalid parameter \"search=a..b\""),
        (
            "server a.invalid search=a.b;",
            "\"search\" requires \"resolve\", and cannot be used together with \"service\"",
        ),
        ("server 127.0.0.1; sticky cookie a mark=a.b;", "invalid \"mark\" parameter value \"a.b\""),
        ("server a.invalid;", "host not found in upstream \"a.invalid\""),
    ];
    for (block, want) in cases {
        assert_eq!(says(block).as_deref(), Some(want), "{block}");
    }
    let resolvers = [
        ("resolver 127.0.0.1 valid=x;", "invalid parameter: valid=x"),
        ("resolver 127.0.0.1:99999;", "invalid port in resolver \"127.0.0.1:99999\""),
        ("resolver 127.0.0.1 ipv4=off ipv6=off;", "\"ipv4\" and \"ipv6\" cannot both be \"off\""),
        ("resolver a.invalid;", "host not found in resolver \"a.invalid\""),
    ];
    for (line, want) in resolvers {
        assert_eq!(error(line).as_deref(), Some(want), "{line}");
    }
}

#[test]
fn sound_groups_are_accepted() {
    let good = [
        "server 127.0.0.1 drain route=a max_conns=1 slow_start=5s; queue 5 timeout=1s; zone z 64k;",
        "server a resolve search=x.invalid,invalid; resolver 127.0.0.1;",
        "server a.invalid resolve service=http; resolver 127.0.0.1 valid=1s; resolver_timeout 3s;",
        "server a.invalid; upstream_start_unresolved on;",
        "zone z 64k; state /nonexistent;",
        "fallback off;",
        "peers external max_fails=0 fail_timeout=5s max_conns=9; least_conn; keepalive 320; fallback =503;",
        "fallback =503; sticky cookie a max_age=1h change_on_failure=off secure=$scheme mark=a-1;",
        "least_time last_byte inflight; server 127.0.0.1; random two least_time=header;",
    ];
    for block in good {
        assert_eq!(says(block), None, "{block}");
    }
    assert_eq!(
        warnings("upstream u { server 127.0.0.1; hash $uri; ip_hash; }"),
        ["load balancing method redefined"]
    );
    assert_eq!(error("upstream_start_unresolved on; upstream u { server a.invalid; }"), None);
}

#[test]
fn fallbacks_lead_to_groups_and_not_in_circles() {
    assert_eq!(
        error("upstream a { fallback b; } upstream b { fallback C; } upstream c { fallback off; }"),
        None
    );
    let circle = "upstream a { fallback b; } upstream b { fallback c; } upstream c { fallback b; }";
    let names_it = |m: &str| m == "\"fallback\" of upstream \"b\" leads back to it";
    assert!(error(circle).is_some_and(|m| names_it(&m)));
    // A group that only `proxy_pass` names is none.
    let implied = "upstream a { fallback 127.0.0.1; } server { location / { proxy_pass http://127.0.0.1; } }";
    assert_eq!(error(implied).as_deref(), Some("upstream \"127.0.0.1\" of \"fallback\" not found"));
}
