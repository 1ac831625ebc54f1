//! Requests to upstreams and their answers, compared with nginx as in `differential.rs`.

use forebay_testkit::{Origin, compare, get, get_with, is_before, nginx_answers, oracle};
use std::net::SocketAddr;

/// Starts an upstream that answers with the fields that the request names in `X-Answer`; the body is the request's target
/// and its other fields that begin with `X-`.
fn puppet() -> SocketAddr {
    Origin::start(|asked| {
        let fields: String = (asked.text.lines())
            .filter_map(|l| l.strip_prefix("X-Answer: "))
            .map(|f| format!("{f}\r\n"))
            .collect();
        let others = asked.text.lines().filter(|l| l.starts_with("X-") && !l.starts_with("X-Answer"));
        let body: String = [asked.target()].into_iter().chain(others).map(|l| format!("{l}\n")).collect();
        asked.answer("200 OK", &fields, &body)
    })
    .addr
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
            requests.push(get_with(format!("/{i}/?v={v}"), &fields));
        }
    }
    server.push('}');
    compare(&server, &requests);
}

#[test]
fn variables_that_set_changes() {
    let up = puppet();
    let pass = format!("proxy_pass http://{up}");
    let locations = [
        format!("set $args \"\"; {pass};"),
        format!("set $args x=1; {pass};"),
        format!("set $args x=1; {pass}/u/;"),
        format!("set $args \"\"; {pass}/u/;"),
        format!("set $args $args; {pass};"),
        format!("set $args a?b#c; {pass};"),
        format!("set $args \"\"; {pass}$request_uri;"),
        format!("set $args x; {pass}$uri$is_args$args;"),
        format!("set $v {up}; set $args zz=1; proxy_pass http://$v;"),
        format!("if ($arg_q) {{ set $args n=$arg_q; }} {pass};"),
        format!("if ($arg_q) {{ set $args \"\"; {pass}; }}"),
        format!("rewrite ^ /x?y=1 break; set $args z; {pass};"),
        format!("set $args z; rewrite ^ /x break; {pass};"),
        "set $args z; try_files /none @n;".into(),
        "set $args \"\"; error_page 404 = @n; return 404;".into(),
        format!("auth_request /auth; auth_request_set $args au=1; {pass};"),
        format!(
            "set $proxy_host h; set $proxy_port p; proxy_set_header X-A $proxy_host:$proxy_port; {pass};"
        ),
        format!(
            "set $http_foo hh; set $arg_q aa; set $cookie_c cc; set $upstream_http_x_b uu;
             proxy_set_header X-A \"$http_foo $arg_q $cookie_c\"; add_header X-B $upstream_http_x_b; {pass};"
        ),
        "set $args x=$arg_q; return 200 \"$args $query_string $arg_q $arg_x $is_args $request_uri\";".into(),
        "set $args \"\"; return 302 /x$is_args$args;".into(),
        "set $args k=v; rewrite ^ /y? redirect;".into(),
        "set $args k=v; rewrite ^ /y?a=b redirect;".into(),
        "set $ssl_client_verify SUCCESS; set $ssl_protocol x; return 200 \"$ssl_client_verify $ssl_protocol\";".into(),
        "set $msie 1; return 200 $msie;".into(),
        "set $invalid_referer 1; return 200 $invalid_referer;".into(),
        "set $uid_reset 1; return 200 $uid_reset;".into(),
        "set $limit_rate 10k; return 200 $limit_rate;".into(),
        "set $limit_rate x; return 200 $limit_rate;".into(),
        "limit_rate 5k; return 200 $limit_rate;".into(),
        "limit_rate 5k; set $limit_rate 0; return 200 $limit_rate;".into(),
    ];
    let mut server = format!(
        "server {{ listen 127.0.0.1:%PORT0%; location = /auth {{ return 204; }} location @n {{ {pass}; }}"
    );
    let mut requests = Vec::new();
    for (i, body) in locations.iter().enumerate() {
        server.push_str(&format!("location /{i}/ {{ {body} }}\n"));
        for rest in ["?q=1&w=%202", "", "?", "a%20b?q=1"] {
            requests.push(get_with(format!("/{i}/{rest}"), "Foo: real\r\nCookie: c=real\r\n"));
        }
    }
    server.push('}');
    compare(&server, &requests);
}

/// An answer with its fields in the order of the alphabet, which is another in nginx for some.
fn sorted(answer: &str) -> String {
    let (head, body) = answer.split_once("\n\n").expect("a head");
    let mut lines: Vec<&str> = head.lines().collect();
    lines.sort_unstable();
    format!("{}\n\n{body}", lines.join("\n"))
}

/// Compares without regard to the order of fields.
fn compare_fields(server: &str, requests: &[String]) {
    for (request, a, b) in nginx_answers(server, &[], requests) {
        assert_eq!(sorted(&a), sorted(&b), "nginx, forebay: {request:?}");
    }
}

/// Fields that an application sends with `X-Accel-Redirect` are in the answer, whatever location makes it in the end.
#[test]
fn fields_beside_an_x_accel_redirect() {
    let up = Origin::start(|asked| {
        let uri = asked.target().to_owned();
        match uri.split_once("to=") {
            Some((_, to)) => {
                let fields = format!(
                    "X-Accel-Redirect: {to}\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Type: app/x\r\n\
                     Content-Disposition: attachment\r\nCache-Control: max-age=5\r\nCache-Control: private\r\n\
                     Expires: Thu, 01 Jan 2030 00:00:00 GMT\r\nX-Other: o\r\nETag: \"up\"\r\nRefresh: 5\r\n\
                     Location: /loc\r\nAccept-Ranges: bytes\r\nVary: v\r\n"
                );
                asked.answer("200 OK", &fields, "hello");
            }
            None => {
                let fields = "X-S3: 1\r\nContent-Disposition: s3\r\nSet-Cookie: s=3\r\nExpires: never\r\n\
                              Content-Type: s/3\r\nETag: \"s3\"\r\n";
                asked.answer("200 OK", fields, "s3!");
            }
        }
        true
    });
    let server = format!(
        "server {{ listen 127.0.0.1:%PORT0%;
         location /app {{ proxy_pass http://{up}; }}
         location @s3 {{ rewrite ^ /s3? break; proxy_pass http://{up}; }}
         location @text {{ return 200 x; }}
         location /f/ {{ internal; alias %DIR%/html/; }}
         location /try/ {{ internal; root %DIR%/none; try_files $uri @s3; }}
         location /trytext/ {{ internal; root %DIR%/none; try_files $uri @text; }}
         location /tryuri/ {{ internal; root %DIR%/none; try_files $uri /200/; }}
         location /enamed/ {{ internal; root %DIR%/none; error_page 404 = @s3; }}
         location /epage/ {{ internal; root %DIR%/none; error_page 404 /f/page.html; }}
         location /eother/ {{ internal; root %DIR%/none; error_page 404 =200 /f/page.html; }}
         location /built-in/ {{ internal; root %DIR%/none; }}
         location /passed/ {{ internal; proxy_pass http://{up}/s3; }}
         location /302/ {{ internal; return 302 /moved; }}
         location /200/ {{ internal; return 200 text; }}
         location /204/ {{ internal; return 204; }}
         location /403/ {{ internal; return 403; }}
         location /502/ {{ internal; error_page 502 = @s3; proxy_pass http://127.0.0.1:1; }}
         location /rewritten/ {{ internal; rewrite ^/rewritten/(.*) /f/$1 last; }}
         location /added/ {{ internal; alias %DIR%/html/; add_header Cache-Control x; expires 1h; }} }}"
    );
    let targets = [
        "/f/page.html",
        "/try/x",
        "/trytext/x",
        "/tryuri/x",
        "/enamed/x",
        "/epage/x",
        "/eother/x",
        "/built-in/x",
        "/passed/",
        "/302/",
        "/200/",
        "/204/",
        "/403/",
        "/502/",
        "/rewritten/page.html",
        "@s3",
        "@text",
        "@none",
        "/none",
        "/f/../../page.html",
        "/f/%2e%2e/page.html",
    ];
    compare_fields(&server, &targets.map(|t| get(format!("/app?to={t}"))));
}

#[test]
fn fields_that_an_upstream_repeats() {
    let up = puppet();
    let server = format!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{up}; }}
         location /own {{ proxy_pass_header Server; proxy_pass_header X-Accel-Expires; proxy_pass http://{up}; }} }}"
    );
    // Before, nginx passed on all of them.
    if oracle().is_none_or(|nginx| is_before(&nginx, 23)) {
        return;
    }
    let fields = [
        "Expires: a",
        "ETag: \"a\"",
        "Last-Modified: Thu, 01 Jan 2015 00:00:00 GMT",
        "Server: a",
        "Content-Type: a/a",
        "Location: /a",
        "Refresh: 1",
        "Vary: a",
        "Content-Encoding: a",
        "Accept-Ranges: a",
        "WWW-Authenticate: a",
        "Cache-Control: a",
        "Link: a",
        "X-Other: a",
    ];
    let both = |f: &&str| format!("X-Answer: {f}\r\nX-Answer: {}\r\n", f.replacen('a', "b", 9));
    let all: String = fields.iter().map(both).collect();
    compare_fields(&server, &["/", "/own"].map(|uri| get_with(uri, &all)));
}

#[test]
fn fields_that_proxy_set_header_gives_twice() {
    if oracle().is_none_or(|nginx| is_before(&nginx, 31)) {
        return;
    }
    // The body is the head as it arrived, but for what says whether the connection is kept.
    let up = Origin::start(|asked| {
        let head: Vec<&str> = asked.text.lines().filter(|l| !l.starts_with("Connection: ")).collect();
        let body = head.join("\n");
        asked.answer("200 OK", "Connection: close\r\n", &body);
        false
    });
    let rules = [
        "proxy_set_header Host 1; proxy_set_header host 2;",
        "proxy_set_header X-B b; proxy_set_header Host 1; proxy_set_header Host \"\"; proxy_set_header X-C c;",
        "proxy_set_header X-B b; proxy_set_header Host \"\"; proxy_set_header hOsT 2;",
        "proxy_set_header Host $arg_a; proxy_set_header Host $arg_b;",
        "proxy_set_header Host \"\";",
        "proxy_set_header X-A 1; proxy_set_header x-a 2; proxy_set_header X-B b; proxy_set_header X-A 3;",
        "proxy_set_header Foo \"\"; proxy_set_header Bar x; proxy_set_header foo x;",
        "proxy_set_header Foo x; proxy_set_header Foo \"\";",
    ];
    let mut server = "server { listen 127.0.0.1:%PORT0%;".to_owned();
    let mut requests = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        for version in ["1.0", "1.1"] {
            server.push_str(&format!(
                "location /{i}-{version}/ {{ {rule} proxy_http_version {version}; proxy_pass http://{up}; }}\n"
            ));
            for args in ["", "?a=A", "?b=B"] {
                requests
                    .push(get_with(format!("/{i}-{version}/{args}"), "Foo: 1\r\nFoo: 2\r\nX-A: client\r\n"));
            }
        }
    }
    server.push('}');
    compare(&server, &requests);
}

#[test]
fn types_and_ages_of_answers_without_content() {
    let up = Origin::start(|asked| {
        let answer: &[u8] = match asked.target() {
            "/204" => b"HTTP/1.1 204 No Content\r\nContent-Type: a/b\r\nX-A: a\r\n\r\n",
            "/304" => b"HTTP/1.1 304 Not Modified\r\nContent-Type: a/b\r\n\r\n",
            _ => {
                b"HTTP/1.1 200 OK\r\nContent-Type: c/d\r\nAccept-Ranges: bytes\r\nETag: \"e\"\r\nContent-Length: 5\r\n\
                  Expires: Thu, 01 Jan 2030 00:00:00 GMT\r\nCache-Control: up\r\n\r\nhello"
            }
        };
        asked.write(answer)
    });
    let server = format!(
        "server {{ listen 127.0.0.1:%PORT0%;
         location / {{ proxy_pass http://{up}; }}
         location /force {{ proxy_force_ranges on; proxy_pass http://{up}; }}
         location /r204 {{ default_type x/y; return 204 text; }}
         location /max/ {{ alias %DIR%/html/; expires max; add_header X-A a; add_header Cache-Control own; }}
         location /plain/ {{ alias %DIR%/html/; }} }}"
    );
    let range = "Range: bytes=100-\r\n";
    let mut requests = ["/204", "/304", "/r204", "/max/digits.txt"].map(get).to_vec();
    requests.extend(["/force", "/max/digits.txt", "/plain/digits.txt"].map(|uri| get_with(uri, range)));
    compare_fields(&server, &requests);
}

#[test]
fn the_empty_image() {
    compare("server { listen 127.0.0.1:%PORT0%; location / { empty_gif; } }", &[get("/"), get("/x.png")]);
}

#[test]
fn redirects_for_internet_explorer() {
    let up = Origin::start(|asked| asked.answer("302 Found", "Location: /up\r\n", ""));
    let server = format!(
        r#"server {{ listen 127.0.0.1:%PORT0%; msie_refresh on;
        location /301 {{ add_header X-A a; return 301 /b; }}
        location /302 {{ return 302 "http://x/!#%()*+,-./:;@[\\]^_`{{|}}~\"q'<>&?a=b cé"; }}
        location /303 {{ return 303 /c; }}
        location /307 {{ return 307 /c; }}
        location /relative {{ absolute_redirect off; return 302 rel; }}
        location /off {{ msie_refresh off; return 301 /x; }}
        location /rewritten {{ rewrite ^ /z permanent; }}
        location /page {{ error_page 403 http://x/y; return 403; }}
        location /own {{ error_page 301 /page.html; return 301 /q; }}
        location /up {{ proxy_pass http://{up}; }}
        location /404 {{ return 404; }} }}"#
    );
    let agent = |name: &str| format!("User-Agent: {name}\r\n");
    let ie = agent("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)");
    let uris = [
        "/301",
        "/302",
        "/303",
        "/307",
        "/relative",
        "/off",
        "/rewritten",
        "/page",
        "/own",
        "/up",
        "/404",
        "/dir",
    ];
    let mut requests: Vec<String> = uris.iter().map(|uri| get_with(uri, &ie)).collect();
    for name in ["xMSIE 7.", "xMSIE 7.0", "MSIE 9.0 Opera", "MSIE 9.0 Chrome/", "Chrome/ x", "msie 7.0"] {
        requests.extend(["/301", "/404"].map(|uri| get_with(uri, agent(name))));
    }
    requests.push(get("/301"));
    requests.push(get_with("/301", &ie).replace("GET", "HEAD"));
    compare_fields(&server, &requests);
}

#[test]
fn an_x_accel_expires_without_a_time() {
    let up = puppet();
    let server = format!(
        "proxy_cache_path %DIR%/cache keys_zone=c:1m; server {{ listen 127.0.0.1:%PORT0%;
         location / {{ proxy_cache c; proxy_cache_valid 1h; proxy_cache_key $uri; proxy_pass http://{up};
         add_header X-Cache $upstream_cache_status; }} }}"
    );
    let values = ["@0", "0", "@1", "@x", "x", "@", "-1", "5x", "00"];
    let ask =
        |(i, v): (usize, &&str)| get_with(format!("/{i}"), format!("X-Answer: X-Accel-Expires: {v}\r\n"));
    let requests: Vec<String> = values.iter().enumerate().map(ask).flat_map(|r| [r.clone(), r]).collect();
    compare_fields(&server, &requests);
}

#[test]
fn variants_of_cached_answers() {
    let up = puppet();
    let server = format!(
        "proxy_cache_path %DIR%/cache keys_zone=c:1m; server {{ listen 127.0.0.1:%PORT0%;
         location / {{ proxy_cache c; proxy_cache_valid 1h; proxy_cache_key $uri; proxy_pass http://{up};
         add_header X-Cache $upstream_cache_status; }} }}"
    );
    let ae = |value: &str| format!("Accept-Encoding: {value}\r\n");
    let mut fields = vec![String::new(), ae(""), ae(" "), ae(","), ae("gzip"), ae("gzip,"), ae("GZIP")];
    fields.extend([ae("gzip, br"), ae("gzip,br"), ae(" gzip ,, br "), ae("gzip") + &ae("br")]);
    let other = ["a, b", "a,b", "a,,b", "A,b", "a", ""].map(|v| format!("X-Kind: {v}\r\n"));
    fields.extend(other);
    fields.push("X-Kind: a\r\nX-Kind: b\r\n".into());
    let vary = "X-Answer: Vary: Accept-Encoding, X-Kind\r\n";
    let ask = |f: &String| get_with("/a", format!("{vary}{f}"));
    let requests: Vec<String> = fields.iter().map(ask).collect();
    for (request, a, b) in nginx_answers(&server, &[], &requests) {
        let state = |answer: &str| answer.lines().find(|l| l.starts_with("X-Cache: ")).map(str::to_owned);
        assert!(state(&a).is_some() && state(&a) == state(&b), "{request:?}: {a} {b}");
    }
}
