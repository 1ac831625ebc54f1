//! Connections to an address or name that stands in `proxy_pass` itself: they are kept for the next request, and no
//! request fails by that.

use forebay_testkit::{Answer, Origin, Server, request, server, wait_until};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

forebay_testkit::cases!("cases/implied_groups.cases":
    the_configuration_can_have_new_connections, connections_are_not_shared_between_locations,
    an_address_stands_for_itself_with_its_port);

/// Status and body.
fn ask(server: &Server, method: &str, uri: &str) -> String {
    let body = if method == "GET" { "" } else { "x" };
    let answer = Answer::of(&server.raw(request(format!("{method} {uri}"), "", body)));
    format!("{} {}", answer.status(), answer.text())
}

#[test]
fn connections_are_kept_without_an_upstream_block() {
    let up = Origin::start(|asked| asked.name());
    let server = server!("location / {{ proxy_pass http://{up}; }}").start();
    for uri in ["/", "/", "/x"] {
        assert_eq!(ask(&server, "GET", uri), "200 conn0");
    }
    assert_eq!(ask(&server, "PUT", "/"), "200 conn0");
    // What may not be sent twice has a connection of its own, which is kept.
    assert_eq!(["/", "/"].map(|uri| ask(&server, "POST", uri)), ["200 conn1", "200 conn2"]);
    assert_eq!(ask(&server, "GET", "/"), "200 conn2");
    assert!(up.requests().iter().all(|head| !head.contains("Connection:")));
    // Not for long.
    wait_until("the end of idle connections", || up.closed() == 3);
    assert_eq!(ask(&server, "GET", "/"), "200 conn3");
}

/// The upstream closes a kept connection at the moment at which a request is on its way.
#[test]
fn a_kept_connection_that_is_closed_costs_nothing() {
    // The first connections answer once; what comes then is read and never answered.
    let answered = [0; 2].map(AtomicUsize::new);
    let up = Origin::start(move |asked| {
        answered.get(asked.conn).is_none_or(|count| count.fetch_add(1, SeqCst) == 0) && asked.name()
    });
    let server = server!("location / {{ proxy_pass http://{up}; access_log logs/a.log l; }}")
        .outside("log_format l '$upstream_addr $upstream_status';")
        .start();
    assert_eq!(ask(&server, "GET", "/"), "200 conn0");
    // The kept one is tried, and after it a new one.
    assert_eq!(ask(&server, "GET", "/"), "200 conn1");
    assert_eq!(ask(&server, "POST", "/"), "200 conn2");
    assert_eq!(ask(&server, "GET", "/"), "200 conn2");
    assert_eq!(server.wait_for_lines("logs/a.log", 4), format!("{up} 200\n").repeat(4));
}
