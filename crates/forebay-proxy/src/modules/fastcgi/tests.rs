use super::*;
use crate::testing::{again, error, head, request, value, warnings};

const SPLIT: &str = "server { fastcgi_split_path_info ^(.+\\.php)(/.*)$; fastcgi_index i.php; \
                     set $a $fastcgi_script_name; set $b $fastcgi_path_info; }";

#[test]
fn names_of_scripts() {
    let mut req = request(SPLIT, "");
    for (uri, script, info) in [
        ("/a.php", "/a.php", ""),
        ("/a.php/", "/a.php", "/"),
        ("/a.php/b.php/c", "/a.php/b.php", "/c"),
        ("/dir/", "/dir/i.php", ""),
        ("/dir", "/dir", ""),
    ] {
        again(&mut req, "");
        req.uri.path = uri.as_bytes().to_vec();
        assert_eq!(value(&mut req, "fastcgi_script_name").as_deref(), Some(script), "{uri}");
        assert_eq!(value(&mut req, "fastcgi_path_info").as_deref(), Some(info), "{uri}");
    }
}

/// Names and values of the parameters of a request.
fn params(req: &mut Request, stored: bool) -> Vec<(String, String)> {
    let http = req.http();
    let mut out = Vec::new();
    let s = proxy::SETTINGS.of(&http.location(req).settings);
    write_params(req, s, stored, true, &mut out).expect("no circle");
    let len = usize::from(u16::from_be_bytes([out[20], out[21]]));
    let mut bytes = &out[24..24 + len];
    assert_eq!(out[24 + len..], [1, 4, 0, 1, 0, 0, 0, 0, 1, 5, 0, 1, 0, 0, 0, 0]);
    let mut all = Vec::new();
    while let [name @ 0..128, value @ 0..128, rest @ ..] = bytes {
        let (pair, rest) = rest.split_at(usize::from(*name) + usize::from(*value));
        bytes = rest;
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        all.push((text(&pair[..usize::from(*name)]), text(&pair[usize::from(*name)..])));
    }
    all
}

fn texts(all: &[(String, String)]) -> Vec<String> {
    all.iter().map(|(n, v)| format!("{n}={v}")).collect()
}

#[test]
fn fields_become_parameters() {
    let mut req = request(
        "server { fastcgi_param A $args; fastcgi_param B \"\"; fastcgi_param C \"\" if_not_empty;\n\
         fastcgi_param HTTP_X_GIVEN own; fastcgi_param HTTP_X_HIDDEN \"\"; fastcgi_param http_low x; fastcgi_param HTTP_NONE $arg_none; }",
        "q",
    );
    head(
        &mut req,
        "X-Given: a\nx-hidden: b\nLow: c\nRange: bytes=0-\nIf-None-Match: d\nX-Two: 1\nx-two: 2\n",
    );
    let own = ["A=q", "B=", "HTTP_X_GIVEN=own", "http_low=x", "HTTP_NONE=", "HTTP_HOST=test"];
    let rest = ["HTTP_LOW=c", "HTTP_RANGE=bytes=0-", "HTTP_IF_NONE_MATCH=d", "HTTP_X_TWO=1, 2"];
    assert_eq!(texts(&params(&mut req, false)), [&own[..], &rest[..]].concat());
    // A response for the cache is requested as a whole.
    assert_eq!(texts(&params(&mut req, true)), [&own[..], &["HTTP_LOW=c", "HTTP_X_TWO=1, 2"]].concat());
}

#[test]
fn levels_replace_all_parameters() {
    let both = "fastcgi_param A 1; fastcgi_param B 2;";
    let mut req = request(&format!("{both} server {{ fastcgi_param C 3; }}"), "");
    head(&mut req, "");
    assert_eq!(texts(&params(&mut req, false)), ["C=3", "HTTP_HOST=test"]);
    let mut req = request(&format!("{both} server {{ fastcgi_keep_conn on; }}"), "");
    head(&mut req, "");
    assert_eq!(texts(&params(&mut req, false)), ["A=1", "B=2", "HTTP_HOST=test"]);
}

#[test]
fn settings_are_those_of_the_family_in_use() {
    let req = request(
        "proxy_read_timeout 7s; fastcgi_read_timeout 3s; fastcgi_buffers 4 8k; fastcgi_hide_header X-A;\n\
         server { location / { fastcgi_pass 127.0.0.1:9; } location /p { proxy_pass http://127.0.0.1:9; }\n\
           location /i { fastcgi_pass 127.0.0.1:9; fastcgi_read_timeout 1s; if ($args) { set $x 1; } } }",
        "",
    );
    let http = req.http();
    let times: Vec<u64> = (http.servers.iter().flat_map(|s| &s.locations))
        .filter(|l| l.content.is_some())
        .map(|l| proxy::SETTINGS.of(&l.settings).read_timeout.0.as_secs())
        .collect();
    assert_eq!(times, [3, 7, 1, 1]);
    let fast = http
        .servers
        .iter()
        .flat_map(|s| &s.locations)
        .find(|l| l.name == b"/" && l.content.is_some())
        .expect("it is there");
    let s = proxy::SETTINGS.of(&fast.settings);
    assert!(s.hide_header.has(b"x-a") && s.redirect.0.is_empty() && s.buffers.count == 4);
}

#[test]
fn mistakes() {
    let at = |line: &str| error(&format!("server {{ location / {{ {line} }} }}"));
    for (line, want) in [
        ("fastcgi_pass 127.0.0.1;", "no port in upstream \"127.0.0.1\""),
        ("fastcgi_pass a/b:9;", "invalid host in upstream \"a/b:9\""),
        ("fastcgi_pass :9;", "no host in upstream \":9\""),
        ("fastcgi_split_path_info ^(a)(b)(c)$;", "pattern \"^(a)(b)(c)$\" must have 2 captures"),
        ("fastcgi_param A b if_empty;", "invalid parameter \"if_empty\""),
        ("fastcgi_bind 127.0.0.1 foreign;", "invalid parameter \"foreign\""),
        ("fastcgi_cache_use_stale http_504;", "invalid value \"http_504\""),
        (
            "fastcgi_pass 127.0.0.1:9; health_check;",
            "\"health_check\" is not supported with \"fastcgi_pass\"",
        ),
    ] {
        assert_eq!(at(line).as_deref(), Some(want), "{line}");
    }
    // The last of several kinds counts, as in nginx.
    assert_eq!(at("proxy_pass http://127.0.0.1:9; fastcgi_pass 127.0.0.1:9;"), None);
    assert_eq!(at("fastcgi_pass unix:/a.sock:; fastcgi_catch_stderr a; fastcgi_catch_stderr b;"), None);
    let keyless = "fastcgi_cache_path /tmp/x keys_zone=z:1m; server { location / { fastcgi_cache z; \
                   fastcgi_pass 127.0.0.1:9; } }";
    assert_eq!(warnings(keyless), ["no \"fastcgi_cache_key\" for \"fastcgi_cache\""]);
}
