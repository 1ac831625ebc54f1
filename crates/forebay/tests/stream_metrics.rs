//! Counts of sessions: the API, and the page for Prometheus.

use crate::metrics::{dashboard_in_browser, json, series};
use forebay_testkit::{Server, Talk, ask, body, connect, echo, free_port, http, tool, wait_for, wait_until};
use serde_json::{Value, json};

/// Starts a server whose port 0 has the pages, port 1 a group of an echo server, and port 2 a server that denies.
fn start(backend: &str) -> Server {
    let dead = free_port();
    Server::start(http!("limit_conn_zone $arg_k zone=requests:1m;\n\
           upstream u {{ server {backend}; }}\n\
           server {{ listen 127.0.0.1:%PORT0%; location /api {{ api; }} location /metrics {{ prometheus; }}\n\
             location /dashboard {{ dashboard; }}\n\
             location / {{ limit_conn requests 5; proxy_pass http://u; }} }} }}\n\
         stream {{ limit_conn_zone $server_port zone=many:1m;\n\
           upstream u {{ zone u 64k; server {backend} weight=2; server 127.0.0.1:{dead} backup; }}\n\
           upstream dead {{ zone dead 64k; server 127.0.0.1:{dead} max_conns=7 slow_start=3s; server {backend} down; }}\n\
           server {{ listen 127.0.0.1:%PORT1%; status_zone front; limit_conn many 2; proxy_pass u; }}\n\
           server {{ listen 127.0.0.1:%PORT2%; status_zone denied; deny all; return text; }}\n\
           server {{ listen 127.0.0.1:%PORT3%; status_zone front; return text; }}\n\
           server {{ listen 127.0.0.1:%PORT4%; proxy_pass dead; health_check interval=50ms; }}\n\
           server {{ listen 127.0.0.1:%PORT5%; status_zone passes; pass 127.0.0.1:%PORT2%; }}").workers(2))
}

#[test]
fn sessions_are_counted_in_the_zone_of_their_server() {
    let (backend, _) = echo();
    let server = start(&backend.to_string());
    let zone = |name: &str| json(&server, "/api/9/stream/server_zones")[name].clone();
    let empty = json!({
        "processing": 0, "connections": 0, "discarded": 0, "received": 0, "sent": 0,
        "sessions": {"2xx": 0, "4xx": 0, "5xx": 0, "total": 0},
    });
    assert_eq!((zone("front"), zone("denied")), (empty.clone(), empty.clone()));

    let mut kept = [connect(server.addr(1)), connect(server.addr(1))];
    kept.iter_mut().for_each(|s| assert_eq!(s.echo(b"hello"), b"hello"));
    assert_eq!(connect(server.addr(1)).rest(), "", "limited");
    assert_eq!(connect(server.addr(2)).rest(), "", "denied");
    let busy = wait_for("the refused one", || Some(zone("front")).filter(|z| z["sessions"]["5xx"] == 1));
    assert_eq!((&busy["processing"], &busy["connections"]), (&json!(2), &json!(3)), "{busy}");
    // A session is never idle.
    wait_for("their connections and that of the API alone", || {
        let now = json(&server, "/api/9/connections");
        (now["active"] == 3 && now["idle"] == 0).then_some(())
    });
    drop(kept);
    assert_eq!(connect(server.addr(3)).rest(), "text");
    let front = wait_for("the end of all", || Some(zone("front")).filter(|z| z["sessions"]["total"] == 4));
    let want = json!({
        "processing": 0, "connections": 4, "discarded": 0, "received": 10, "sent": 14,
        "sessions": {"2xx": 3, "4xx": 0, "5xx": 1, "total": 4},
    });
    assert_eq!(front, want);
    let denied = zone("denied");
    assert_eq!((&denied["connections"], &denied["sessions"]["4xx"]), (&json!(1), &json!(1)), "{denied}");
    // A connection that goes to another listener is a session of both.
    assert_eq!(zone("passes"), empty);
    assert_eq!(connect(server.addr(5)).rest(), "", "denied by the other");
    let passes = wait_for("the session", || {
        Some(zone("passes")).filter(|p| p["sessions"]["2xx"] == 1 && p["processing"] == 0)
    });
    assert_eq!((&passes["connections"], &passes["discarded"]), (&json!(1), &json!(0)), "{passes}");
    wait_until("the other's", || zone("denied")["sessions"]["4xx"] == 2);

    // Each front end shows its own zones.
    let limit = |zone: &str| json(&server, &format!("/api/9/{zone}"));
    assert_eq!(limit("stream/limit_conns/many"), json!({"passed": 2, "rejected": 1, "rejected_dry_run": 0}));
    assert_eq!(
        limit("http/limit_conns/requests"),
        json!({"passed": 0, "rejected": 0, "rejected_dry_run": 0})
    );

    // A new configuration goes on counting.
    server.reload();
    wait_until("the reload", || json(&server, "/api/9/nginx")["generation"] == 2);
    assert_eq!(zone("front"), front);

    let page = server.get("/metrics");
    let value = |name: &str| series(body(&page), name);
    assert_eq!(value("forebay_stream_server_connections_total{zone=\"front\"}"), 4.0);
    assert_eq!(value("forebay_stream_server_sessions_total{zone=\"front\",class=\"2xx\"}"), 3.0);
    assert_eq!(value("forebay_stream_server_received_bytes_total{zone=\"front\"}"), 10.0);
    assert_eq!(value("forebay_stream_server_processing{zone=\"front\"}"), 0.0);
    assert_eq!(value("forebay_stream_limit_conn_total{zone=\"many\",outcome=\"rejected\"}"), 1.0);
}

/// Returns the first server of a group of stream.
fn first_peer(server: &Server, group: &str) -> Value {
    json(server, &format!("/api/9/stream/upstreams/{group}"))["peers"][0].clone()
}

#[test]
fn servers_of_groups_have_figures() {
    let (backend, _) = echo();
    let server = start(&backend.to_string());
    let mut kept = connect(server.addr(1));
    assert_eq!(kept.echo(b"hello"), b"hello");
    assert_eq!(first_peer(&server, "u")["active"], 1);
    drop(kept);
    let peer = wait_for("its end", || Some(first_peer(&server, "u")).filter(|p| p["sent"] == 5));
    for (name, value) in [
        ("server", json!(backend.to_string())),
        ("state", json!("up")),
        ("active", json!(0)),
        ("connections", json!(1)),
        ("received", json!(5)),
        ("weight", json!(2)),
        ("fails", json!(0)),
    ] {
        assert_eq!(peer[name], value, "{name}: {peer}");
    }
    for name in ["connect_time", "first_byte_time", "response_time"] {
        assert!(peer[name].is_u64(), "{name}: {peer}");
    }
    assert!(peer.get("requests").is_none() && peer.get("header_time").is_none(), "{peer}");
    // The group of the same name in the http block is another.
    assert_eq!(json(&server, "/api/9/http/upstreams/u")["peers"][0]["requests"], 0);
    let group = json(&server, "/api/9/stream/upstreams/u");
    assert_eq!((&group["zombies"], &group["zone"], group.get("keepalive")), (&json!(0), &json!("u"), None));

    let dead =
        wait_for("failed checks", || Some(first_peer(&server, "dead")).filter(|p| p["state"] == "unhealthy"));
    assert!(dead["health_checks"]["fails"].as_u64() > Some(0) && dead["downtime"].is_u64(), "{dead}");
    assert_eq!((&dead["health_checks"]["last_passed"], &dead["max_conns"]), (&json!(false), &json!(7)));
    let servers = json(&server, "/api/9/stream/upstreams/dead/servers");
    let want = json!({
        "id": 0, "server": dead["server"], "weight": 1, "max_conns": 7, "max_fails": 1, "fail_timeout": "10s",
        "slow_start": "3s", "backup": false, "down": false,
    });
    assert_eq!((&servers[0], &servers[1]["down"]), (&want, &json!(true)));
    assert_eq!(json(&server, "/api/9/stream/upstreams/dead/servers/0"), want);
    assert_eq!(json(&server, "/api/9/stream"), json!(["server_zones", "limit_conns", "upstreams"]));
    for path in [
        "stream/requests",
        "stream/upstreams/none",
        "stream/upstreams/none/servers",
        "stream/server_zones/none",
    ] {
        assert!(server.get(format!("/api/9/{path}")).starts_with("HTTP/1.1 404"), "{path}");
    }
    // Servers do not change at run time, as those of HTTP.
    for block in ["http", "stream"] {
        let delete = format!("DELETE /api/9/{block}/upstreams/u/servers/0 HTTP/1.0\r\n\r\n");
        let answer = ask(server.addr(0), &delete);
        assert!(answer.contains("MethodDisabled"), "{answer}");
    }

    let page = server.get("/metrics");
    let value = |name: &str, peer: &Value| {
        let labels =
            format!("upstream=\"{}\",peer={}", if peer == &dead { "dead" } else { "u" }, peer["server"]);
        series(body(&page), &format!("forebay_stream_upstream_peer_{name}{{{labels}}}"))
    };
    assert_eq!((value("up", &peer), value("up", &dead)), (1.0, 0.0));
    assert_eq!((value("connections_total", &peer), value("sent_bytes_total", &peer)), (1.0, 5.0));
    assert_eq!(value("response_duration_seconds_count", &peer), 1.0);
    assert!(value("health_checks_failed_total", &dead) > 0.0);
}

#[test]
fn a_browser_shows_streams() {
    if !tool("chromium") {
        return;
    }
    let (backend, _) = echo();
    let server = start(&backend.to_string());
    let mut kept = [connect(server.addr(1)), connect(server.addr(1))];
    kept.iter_mut().for_each(|s| assert_eq!(s.echo(b"hello"), b"hello"));
    assert_eq!(connect(server.addr(1)).rest(), "", "limited");
    assert_eq!(connect(server.addr(2)).rest(), "", "denied");
    let dom = dashboard_in_browser(&server, "#stream", "FOREBAY_TEST_SCREENSHOT_STREAMS");
    // The tab stays while its contents are renewed.
    let (before, streams) = dom.split_once("<div id=\"tab-stream\"").expect("the tab of streams");
    assert!(
        before.contains("<div id=\"tab-http\" role=\"tabpanel\" hidden") && before.contains(">live<"),
        "{dom}"
    );
    assert!(streams.split('>').next().is_some_and(|tag| !tag.contains("hidden")), "{dom}");
    for text in ["<td>2</td><td>3</td>", ">denied</td>", ">dead</td>", ">unhealthy for ", ">sessions</td>"] {
        assert!(streams.contains(text), "no {text} in {streams}");
    }
}
