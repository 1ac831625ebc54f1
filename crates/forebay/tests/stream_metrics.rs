//! Counts of sessions: the API, and the page for Prometheus.

use crate::metrics::dashboard_in_browser;
use forebay_testkit::{Server, Talk, connect, echo, free_port, http, tool};

forebay_testkit::cases!("cases/stream_metrics.cases":
    sessions_are_counted_in_the_zone_of_their_server, servers_of_groups_have_figures);

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
    assert!(before.contains("<div id=\"tab-http\" role=\"tabpanel\" hidden"), "{dom}");
    assert!(before.contains(">live<"), "{dom}");
    assert!(streams.split('>').next().is_some_and(|tag| !tag.contains("hidden")), "{dom}");
    for text in ["<td>2</td><td>3</td>", ">denied</td>", ">dead</td>", ">unhealthy for ", ">sessions</td>"] {
        assert!(streams.contains(text), "no {text} in {streams}");
    }
}
