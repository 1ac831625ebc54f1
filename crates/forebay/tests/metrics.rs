//! Metrics of the server: Prometheus, the JSON interface, the dashboard.

use forebay_testkit::{
    Conf, Names, Origin, Running, Server, ask, body, free_port, http, series, tool, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::process::Command;

forebay_testkit::cases!("cases/metrics.cases":
    answers_that_are_not_passed_on_count, counters_add_up, an_if_block_has_a_zone_of_its_own,
    servers_are_counted_by_their_names_without_status_zone,
    a_server_that_fails_has_the_reason);

fn conf(rest: &str) -> Conf {
    http!(
        "proxy_cache_path %DIR%/c keys_zone=things:1m;\n\
         limit_req_zone $arg_k zone=rate:1m rate=1r/m; limit_conn_zone $arg_k zone=many:1m; {rest}\n\
         server {{ listen 127.0.0.1:%PORT0%; status_zone front;\n\
         location / {{ status_zone app; limit_conn many 5; proxy_pass http://u; }}\n\
         location /cached {{ proxy_cache things; proxy_cache_valid 200 1h; proxy_pass http://u; }}\n\
         location /limited {{ limit_req zone=rate; empty_gif; }} location /none {{ return 404; }}\n\
         location /metrics {{ prometheus; }} location /api {{ api; }} location /basic {{ stub_status; }}\n\
         location /dashboard {{ dashboard; }} }}"
    )
    .workers(2)
}

fn start() -> Server {
    let up = Origin::start(|asked| asked.answer("200 OK", "", "well"));
    Server::start(conf(&format!("upstream u {{ server {up}; server 127.0.0.1:1 backup; }}")))
}

pub(crate) fn json(server: &Server, path: &str) -> Value {
    let answer = server.get(path);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("application/json"), "{answer}");
    serde_json::from_str(body(&answer)).unwrap_or_else(|e| panic!("{e}: {answer}"))
}

/// The exporter that most sites have reads `stub_status`, and all of its series are among those of `prometheus`, with
/// the same types and values.
#[test]
fn the_exporter_reads_stub_status() {
    let Some(program) = std::env::var_os("FOREBAY_TEST_EXPORTER") else {
        return eprintln!("skipped: FOREBAY_TEST_EXPORTER names no exporter; ./test builds one");
    };
    let server = start();
    for _ in 0..5 {
        assert!(server.get("/none").starts_with("HTTP/1.1 404"));
    }
    let at = format!("127.0.0.1:{}", free_port());
    let mut exporter = Command::new(program);
    exporter.arg(format!("--nginx.scrape-uri=http://{}/basic", server.addr(0)));
    exporter.arg(format!("--web.listen-address={at}"));
    let at = at.parse().expect("an address");
    let exporter = Running::start_at(&mut exporter, at);
    let read = || Some(ask(at, "GET /metrics HTTP/1.0\r\n\r\n")).filter(|text| text.contains("nginx_up"));
    let text = wait_for("the exporter", read);
    drop(exporter);
    assert_eq!(series(&text, "nginx_up"), 1.0);
    let ours = server.get("/metrics");
    let types = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|l| l.starts_with("# TYPE nginx_"));
        lines.filter(|l| !l.contains("nginx_exporter")).map(str::to_owned).collect()
    };
    let all = types(&text);
    assert!(all.len() >= 8, "{all:?}");
    for line in &all {
        assert!(types(&ours).contains(line), "{line}");
    }
    // Each looked at the server once more than the one before.
    for (name, at_least) in [
        ("nginx_connections_accepted", 6.0),
        ("nginx_connections_handled", 6.0),
        ("nginx_http_requests_total", 6.0),
        ("nginx_connections_active", 1.0),
    ] {
        let (theirs, ours) = (series(&text, name), series(&ours, name));
        assert!(theirs >= at_least && ours >= at_least && ours - theirs <= 3.0, "{name}: {theirs} {ours}");
    }
}

#[test]
fn a_browser_shows_the_dashboard() {
    if !tool("chromium") {
        return;
    }
    let server = start();
    for _ in 0..7 {
        assert!(server.get("/").ends_with("well"));
    }
    assert!(server.get("/dashboard/x").starts_with("HTTP/1.1 404"));
    let dom = dashboard_in_browser(&server, "#http", "FOREBAY_TEST_SCREENSHOT");
    for text in [">front</td>", ">app</td>", ">live<"] {
        assert!(dom.contains(text), "no {text} in {dom}");
    }
    let (http, stream) = dom.split_once("<div id=\"tab-stream\"").expect("the other tab");
    assert!(http.contains("href=\"#http\" id=\"to-http\" role=\"tab\""), "{dom}");
    assert!(stream.split('>').next().is_some_and(|tag| tag.contains("hidden")), "{dom}");
}

/// Returns the document of the dashboard of a server after five seconds, with `tab`, such as `#stream`, in its address. The browser's
/// console has to stay empty. First saves a picture at the path in the environment variable `picture`, if that is set.
pub(crate) fn dashboard_in_browser(server: &Server, tab: &str, picture: &str) -> String {
    if let Ok(path) = std::env::var(picture) {
        crate::dashboard::open_page(server, tab, &format!("--screenshot={path}"));
    }
    let (dom, console) = crate::dashboard::open_page(server, tab, "--dump-dom");
    assert_eq!(console, "", "{tab}");
    dom
}

/// Members of the interface that tell when a server was asked and since when it is not, how full zones are, and what
/// name servers said.
#[test]
fn times_of_servers_zones_and_resolvers() {
    let up = Origin::start(|asked| asked.answer("200 OK", "", "well"));
    let sick = Origin::start(|_| false);
    let dns = Names::start(&[]).addr;
    let server = Server::start(conf(&format!(
        "resolver {dns} ipv6=off status_zone=names; ssl_session_cache shared:tls:1m;\n\
         upstream u {{ server {up}; }} upstream lone {{ server {up}; }}\n\
         upstream sick {{ server {sick} fail_timeout=1s; server {up}; server {up} down; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; location / {{ proxy_pass http://sick; }} \
         location /name {{ proxy_pass http://$arg_h/; }} location /lone {{ proxy_pass http://lone; }} }}"
    )));
    let get = |uri: &str| ask(server.addr(1), format!("GET {uri} HTTP/1.0\r\n\r\n"));
    let peers = |group: &str| json(&server, &format!("/api/9/http/upstreams/{group}"))["peers"].clone();
    let now = || json(&server, "/api/9/nginx")["timestamp"].as_str().expect("a time").to_owned();
    assert!(peers("lone")[0].get("selected").is_none());
    let before = now();
    assert!(get("/lone").ends_with("well"));
    let lone = peers("lone")[0].clone();
    // Times of the same form can be compared as text.
    let selected = lone["selected"].as_str().expect("a time");
    assert!(selected.len() == before.len() && selected <= now().as_str(), "{lone}");
    assert_eq!((lone["downtime"].as_u64(), lone.get("downstart")), (Some(0), None));

    assert!((0..2).all(|_| get("/").ends_with("well")));
    let down = peers("sick")[0].clone();
    assert_eq!(down["state"], "unavail");
    let start = down["downstart"].as_str().expect("a time");
    assert!(start >= selected && start <= now().as_str(), "{down}");
    // It may be asked again: nobody does, and its time stands still.
    wait_until("the end of fail_timeout", || peers("sick")[0]["state"] == "up");
    let up_again = peers("sick")[0].clone();
    let downtime = up_again["downtime"].as_u64().expect("a number");
    assert!((900..=1100).contains(&downtime) && up_again.get("downstart").is_none(), "{up_again}");
    assert_eq!(peers("sick")[0]["downtime"].as_u64(), Some(downtime));
    // Once more, with the request that tries it.
    wait_for("the request that tries it", || {
        assert!(get("/").ends_with("well"));
        peers("sick")[0].get("downstart").map(drop)
    });
    wait_until("more of it", || peers("sick")[0]["downtime"].as_u64() > Some(downtime));
    assert_eq!(peers("sick")[1]["downtime"].as_u64(), Some(0));

    assert!(server.get("/limited?k=1").starts_with("HTTP/1.1 200"));
    assert!(server.get("/cached").ends_with("well"));
    let slabs = json(&server, "/api/9/slabs");
    let pages = |zone: &str| (slabs[zone]["pages"]["used"].as_u64(), slabs[zone]["pages"]["free"].as_u64());
    assert_eq!((pages("rate"), pages("many")), ((Some(1), Some(255)), (Some(0), Some(256))), "{slabs}");
    assert_eq!((pages("things").0, pages("tls")), (Some(1), (Some(0), Some(256))), "{slabs}");
    assert_eq!(json(&server, "/api/9/slabs/rate"), slabs["rate"]);
    assert!(server.get("/api/9/slabs/none").starts_with("HTTP/1.1 404"));

    assert!((0..2).all(|_| get("/name?h=nowhere.test").contains("502 Bad Gateway")));
    let names = json(&server, "/api/9/resolvers/names");
    assert_eq!(names["requests"], json!({"name": 2, "srv": 0, "addr": 0}));
    assert_eq!((&names["responses"]["nxdomain"], &names["responses"]["noerror"]), (&json!(2), &json!(0)));
    assert_eq!(json(&server, "/api/9/resolvers")["names"], names);
}
