//! Metrics of the server: Prometheus, the JSON interface, the dashboard.

use forebay_testkit::{
    Conf, Origin, Server, Signal, ask, free_port, http, kill, raw, tool, wait_for, wait_until,
};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

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

pub(crate) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, b)| b)
}

pub(crate) fn json(server: &Server, path: &str) -> Value {
    let answer = server.get(path);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("application/json"), "{answer}");
    serde_json::from_str(body(&answer)).unwrap_or_else(|e| panic!("{e}: {answer}"))
}

/// The value of a series, by its whole left side.
pub(crate) fn series(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// The exporter that most sites have reads `stub_status`, and all of its series are among those of `prometheus`, with
/// the same types and values.
#[test]
fn the_exporter_reads_stub_status() {
    let Some(program) = std::env::var_os("FOREBAY_TEST_EXPORTER") else {
        return eprintln!(
            "skipped: FOREBAY_TEST_EXPORTER names no nginx-prometheus-exporter; ./test builds one"
        );
    };
    let server = start();
    for _ in 0..5 {
        assert!(server.get("/none").starts_with("HTTP/1.1 404"));
    }
    let at = format!("127.0.0.1:{}", free_port());
    let mut exporter = Command::new(program)
        .arg(format!("--nginx.scrape-uri=http://{}/basic", server.addr(0)))
        .arg(format!("--web.listen-address={at}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the exporter starts");
    let text = wait_for("the exporter", || {
        let addr = at.parse().ok()?;
        let mut stream = std::net::TcpStream::connect_timeout(&addr, Duration::from_secs(1)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.contains("nginx_up").then_some(text)
    });
    exporter.kill().and_then(|()| exporter.wait()).expect("ends");
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

/// Answers of an upstream server are counted also if the client gets another one.
#[test]
fn answers_that_are_not_passed_on_count() {
    let up = Origin::start(|asked| {
        let to = if asked.target().ends_with("to") { "X-Accel-Redirect: /none\r\n" } else { "" };
        let status = if asked.target().ends_with("no") { "500 No" } else { "200 OK" };
        asked.answer(status, to, "well")
    });
    let server = Server::start(conf(&format!(
        "upstream u {{ server {up}; }} proxy_intercept_errors on; error_page 500 /none;"
    )));
    for uri in ["/ok", "/to", "/no"] {
        server.get(uri);
    }
    let peer = json(&server, "/api/9/http/upstreams/u")["peers"][0].clone();
    let of = |class: &str| peer["responses"][class].as_u64();
    assert_eq!((of("2xx"), of("5xx"), of("total")), (Some(2), Some(1), Some(3)), "{peer}");
    assert_eq!(peer["active"].as_u64(), Some(0), "{peer}");
}

#[test]
fn counters_add_up() {
    let server = start();
    for _ in 0..10 {
        assert!(server.get("/?k=1").ends_with("well"));
    }
    for _ in 0..3 {
        assert!(server.get("/cached").ends_with("well"));
    }
    for status in ["200", "503", "503"] {
        assert!(server.get("/limited?k=1").starts_with(&format!("HTTP/1.1 {status}")));
    }
    assert!(server.get("/none").starts_with("HTTP/1.1 404"));
    // A request is counted when its answer has been sent.
    let requests = || json(&server, "/api/9/http/server_zones/front")["responses"]["codes"]["404"] == 1;
    wait_until("the last one", requests);
    let app = json(&server, "/api/9/http/location_zones")["app"].clone();
    assert_eq!((app["requests"].as_u64(), app["responses"]["2xx"].as_u64()), (Some(10), Some(10)));
    assert!(app["sent"].as_u64() > Some(1000) && app["received"].as_u64() > Some(500), "{app}");
    let peers = json(&server, "/api/9/http/upstreams/u")["peers"].clone();
    assert_eq!((peers[0]["requests"].as_u64(), peers[0]["state"].as_str()), (Some(11), Some("up")));
    assert_eq!((peers[1]["backup"].as_bool(), peers[1]["requests"].as_u64()), (Some(true), Some(0)));
    let servers = json(&server, "/api/9/http/upstreams/u/servers");
    assert_eq!(
        (servers[0]["id"].as_u64(), servers[1]["backup"].as_bool()),
        (Some(0), Some(true)),
        "{servers}"
    );
    let first = json(&server, "/api/9/http/upstreams/u/servers/0");
    assert_eq!((&first, first["fail_timeout"].as_str()), (&servers[0], Some("10s")));
    assert!(server.get("/api/9/http/upstreams/u/servers/7").contains("UpstreamServerNotFound"));
    assert!(json(&server, "/api/9/http/upstreams/u")["keepalive"].is_u64());
    let cache = json(&server, "/api/9/http/caches/things");
    let of = |what: &str| cache[what]["responses"].as_u64();
    assert_eq!((of("hit"), of("miss"), cache["hit"]["bytes"].as_u64()), (Some(2), Some(1), Some(8)));
    let limit = json(&server, "/api/9/http/limit_reqs/rate");
    assert_eq!((limit["passed"].as_u64(), limit["rejected"].as_u64()), (Some(1), Some(2)));
    assert_eq!(json(&server, "/api/9/http/limit_conns/many")["passed"].as_u64(), Some(10));
    assert_eq!(json(&server, "/api/9/nginx?fields=generation"), serde_json::json!({"generation": 1}));
    assert!(json(&server, "/api/9/connections")["accepted"].as_u64() > Some(15));
    assert_eq!(json(&server, "/api/9/workers").as_array().map(Vec::len), Some(2));
    assert!(server.get("/api/9/none").starts_with("HTTP/1.1 404"));
    assert!(server.get("/api/99/nginx").contains("UnknownVersion"));
    let delete = raw(server.addr(0), b"DELETE /api/9/connections HTTP/1.0\r\n\r\n");
    assert!(String::from_utf8_lossy(&delete).starts_with("HTTP/1.1 405"));

    let answer = server.get("/metrics");
    let text = body(&answer);
    assert!(series(text, "nginx_http_requests_total") > 15.0);
    assert_eq!(series(text, "nginx_up"), 1.0);
    assert_eq!(series(text, "forebay_location_responses_total{zone=\"app\",class=\"2xx\"}"), 10.0);
    let times = "forebay_location_request_duration_seconds";
    assert_eq!(series(text, &format!("{times}_bucket{{zone=\"app\",le=\"+Inf\"}}")), 10.0);
    assert_eq!(series(text, &format!("{times}_count{{zone=\"app\"}}")), 10.0);
    assert!(series(text, &format!("{times}_sum{{zone=\"app\"}}")) > 0.0);
    assert_eq!(series(text, "forebay_cache_responses_total{zone=\"things\",status=\"hit\"}"), 2.0);
    assert_eq!(series(text, "forebay_limit_req_total{zone=\"rate\",outcome=\"rejected\"}"), 2.0);
    assert_eq!(series(text, "forebay_server_processing{zone=\"front\"}"), 1.0, "this one");

    // A new configuration goes on counting.
    server.reload();
    wait_until("the reload", || json(&server, "/api/9/nginx")["generation"] == 2);
    assert_eq!(json(&server, "/api/9/http/location_zones/app")["requests"].as_u64(), Some(10));
    // So does the process that follows one that died.
    let worker = server.worker();
    kill(worker, Signal::SIGKILL);
    wait_for("the next worker", || {
        let next = server.workers(server.pid());
        (next.len() == 1 && next[0] != worker).then_some(())
    });
    assert_eq!(series(body(&server.get("/metrics")), "forebay_worker_restarts_total"), 1.0);
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
    let dns = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    let dns_addr = dns.local_addr().expect("address");
    std::thread::spawn(move || {
        let mut m = [0; 512];
        while let Ok((len, from)) = dns.recv_from(&mut m) {
            // No such name.
            (m[2], m[3]) = (0x81, 0x83);
            let _ = dns.send_to(&m[..len], from);
        }
    });
    let server = Server::start(conf(&format!(
        "resolver {dns_addr} ipv6=off status_zone=names; ssl_session_cache shared:tls:1m;\n\
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
    assert_eq!(names["requests"], serde_json::json!({"name": 2, "srv": 0, "addr": 0}));
    assert_eq!(
        (names["responses"]["nxdomain"].as_u64(), names["responses"]["noerror"].as_u64()),
        (Some(2), Some(0))
    );
    assert_eq!(json(&server, "/api/9/resolvers")["names"], names);
}

/// As nginx has it, an `if` block may count its requests in a zone of its own.
#[test]
fn an_if_block_has_a_zone_of_its_own() {
    let server = Server::start(http(
        "server { listen 127.0.0.1:%PORT0%; location /api { api; } location / { status_zone all; \
         if ($arg_beta) { status_zone beta; } return 204; } }",
    ));
    server.get("/?beta=1");
    server.get("/");
    server.get("/");
    let zones = wait_for("all of them", || {
        let zones = json(&server, "/api/9/http/location_zones");
        (zones["all"]["requests"] == 2).then_some(zones)
    });
    assert_eq!(zones["beta"]["requests"], 1, "{zones}");
}

/// A site that has asked for nothing but the pages themselves.
#[test]
fn servers_are_counted_by_their_names_without_status_zone() {
    let server = Server::start(http("server { listen \
         127.0.0.1:%PORT0%; location / { return 404; } location /metrics { prometheus; } location /api { api; } location \
         /dashboard { dashboard; } } server { listen 127.0.0.1:%PORT0%; server_name a.test b.test; location / { return 200 text; \
         } } server { listen 127.0.0.1:%PORT0%; server_name quiet.test; } server { listen 127.0.0.1:%PORT0%; server_name own.test; \
         status_zone own; return 204; }").workers(2));
    let zones = || json(&server, "/api/9/http/server_zones");
    assert_eq!(zones()["a.test"]["requests"], 0, "also before the first request");
    let ask = |host: &str| server.raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    for host in ["a.test", "b.test", "a.test", "own.test", "elsewhere.test"] {
        ask(host);
    }
    // A request is counted when its answer has left.
    let all = wait_for("all of them", || {
        let all = zones();
        (all["a.test"]["requests"] == 3 && all["_"]["responses"]["4xx"] == 1).then_some(all)
    });
    let a = &all["a.test"];
    assert_eq!(
        (&a["responses"]["2xx"], &a["responses"]["total"]),
        (&Value::from(3), &Value::from(3)),
        "{all}"
    );
    assert!(a["sent"].as_u64() > Some(300) && a["received"].as_u64() > Some(100), "{all}");
    assert!(a["request_time"].as_f64().is_some_and(|ms| ms >= 0.0), "{all}");
    assert_eq!(
        (&all["quiet.test"]["requests"], &all["own"]["responses"]["codes"]["204"]),
        (&0.into(), &1.into()),
        "{all}"
    );
    assert!(all.get("own.test").is_none(), "{all}");
    let text = server.get("/metrics");
    assert_eq!(series(&text, "forebay_server_requests_total{zone=\"a.test\"}"), 3.0);
    assert_eq!(series(&text, "forebay_server_responses_total{zone=\"a.test\",class=\"2xx\"}"), 3.0);
    assert_eq!(series(&text, "forebay_server_request_duration_seconds_count{zone=\"a.test\"}"), 3.0);
    // Over a reload, too.
    server.reload();
    wait_until("the next configuration", || json(&server, "/api/9/nginx")["generation"] == 2);
    ask("b.test");
    wait_until("one more", || zones()["a.test"]["requests"] == 4);
    let page = server.get("/dashboard");
    assert!(page.contains("Off: no location has a zone. status_zone NAME; in a location"), "{page}");
}
