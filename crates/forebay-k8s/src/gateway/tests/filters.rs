//! Filters and settings of rules.

use super::*;

/// Returns a rule whose service gets bodies of a size.
fn rule(size: u32) -> Value {
    let auth = json!({ "protocol": "HTTP", "backendRef": { "name": "api", "port": 80 }, "forwardBody": { "maxSize": size } });
    json!([{ "filters": [{ "type": "ExternalAuth", "externalAuth": auth }], "backendRefs": [{ "name": "web", "port": 80 }] }])
}

/// The smallest limit of a body holds: a larger one would be read in vain.
#[test]
fn limits_of_bodies_that_a_service_gets() {
    for (size, policy, setting, limit) in [
        (10, None, None, "10"),
        (10, Some("8m"), None, "10"),
        (9_000_000, Some("8m"), None, "8m"),
        (9_000_000, Some("0"), None, "9000000"),
        (9_000_000, None, None, "1m"),
        (9_000_000, None, Some("0"), "9000000"),
        (9_000_000, Some("8m"), Some("1k"), "8m"),
        (9_000_000, None, Some("1k"), "1k"),
    ] {
        let mut world = World::with_edge();
        world.add(route_of("a", 5, &["a.test"], rule(size)));
        if let Some(limit) = policy {
            world.add(json!({ "apiVersion": "forebay.io/v1alpha1", "kind": "RoutePolicy", "metadata": { "name": "p", "namespace": "default" },
                "spec": { "targetRefs": [{ "group": GROUP, "kind": "HTTPRoute", "name": "a" }], "proxy": { "bodySize": limit } } }));
        }
        if let Some(limit) = setting {
            world.settings(json!({ "proxy-body-size": limit }));
        }
        let server = world.made().server("a.test");
        let first = target(&server, "^/");
        assert!(
            first.contains(&format!("client_max_body_size {limit};")),
            "{size} {policy:?} {setting:?}: {first}"
        );
        assert_eq!(first.matches("client_max_body_size").count(), 1, "{first}");
        assert!(
            first.contains("auth_request_body on;") && first.contains("auth_request_fields on;"),
            "{first}"
        );
        assert!(!server.contains("proxy_pass_request_body off;"), "{server}");
    }
    let mut world = World::with_edge();
    world.add(route_of("a", 5, &["a.test"], rule(0)));
    let server = world.made().server("a.test");
    assert!(
        !server.contains("auth_request_body") && server.contains("proxy_pass_request_body off;"),
        "{server}"
    );
}

/// Each backend of a rule has a mark in the field, which leads back to it.
#[test]
fn sessions_by_a_field() {
    let mut world = World::with_edge();
    let persistence = json!({ "type": "Header", "header": { "name": "X-Session" }, "idleTimeout": "90s" });
    let backends = json!([{ "name": "web", "port": 80 }, { "name": "api", "port": 80 }]);
    world.add(route_of(
        "a",
        5,
        &["a.test"],
        json!([{ "sessionPersistence": persistence, "backendRefs": backends }]),
    ));
    let made = world.made();
    let text = made.text();
    assert!(text.contains("map $http_x_session $stay_"), "{text}");
    assert!(text.contains(r#""~^0\\." 0;"#) && text.contains(r#""~^1\\." 1;"#), "{text}");
    let groups = made.0.files.iter().find(|(path, _)| path.to_str() == Some("groups.conf"));
    let groups = String::from_utf8_lossy(&groups.expect("groups").1).into_owned();
    for index in 0..2 {
        assert!(groups.contains(&format!("sticky header X-Session idle=90s mark={index};")), "{groups}");
    }
}
