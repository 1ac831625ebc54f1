//! What is not supported closes, and says so.

use super::*;

const UNSUPPORTED: &str = "UnsupportedValue";

/// Rules that ask for something that is not supported, and a word of the message.
fn unsupported() -> Vec<(Value, &'static str)> {
    let backend = json!([{ "name": "web", "port": 80 }]);
    let filter = |filter: Value| json!({ "backendRefs": backend, "filters": [filter] });
    vec![
        (filter(json!({ "type": "ExtensionRef", "extensionRef": { "name": "a" } })), "ExtensionRef"),
        (filter(json!({ "type": "Later", "later": {} })), "Later"),
        (filter(json!({ "type": "CORS", "cors": { "later": true } })), "cors.later"),
        (
            filter(
                json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": { "set": [{ "name": "X-A", "value": "a\nb" }] } }),
            ),
            "control",
        ),
        (
            filter(
                json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": { "remove": ["Transfer-Encoding"] } }),
            ),
            "connection",
        ),
        (
            filter(
                json!({ "type": "ResponseHeaderModifier", "responseHeaderModifier": { "remove": ["*"] } }),
            ),
            "changed",
        ),
        (filter(json!({ "type": "RequestRedirect", "requestRedirect": { "scheme": "ftp" } })), "ftp"),
        (
            filter(
                json!({ "type": "ExternalAuth", "externalAuth": { "protocol": "GRPC", "backendRef": { "name": "web", "port": 80 } } }),
            ),
            "protocol HTTP",
        ),
        (json!({ "backendRefs": backend, "retry": { "backoff": "soon" } }), "backoff"),
        (json!({ "backendRefs": backend, "retry": { "codes": [200] } }), "200"),
        (json!({ "backendRefs": backend, "timeouts": { "request": "soon" } }), "duration"),
        (
            json!({ "backendRefs": backend, "sessionPersistence": { "type": "Header", "header": { "name": "Host" } } }),
            "cannot be its field",
        ),
        (json!({ "backendRefs": backend, "later": 1 }), "later"),
        (json!({ "backendRefs": backend, "matches": [{ "later": 1 }] }), "matches[0].later"),
    ]
}

#[test]
fn a_rule_that_is_not_supported_answers_500() {
    for (rule, word) in unsupported() {
        let mut world = World::with_edge();
        world.add(route_of("a", 5, &["a.test"], json!([rule])));
        let made = world.made();
        let place = target(&made.server("a.test"), "$uri");
        assert!(place.contains("return 500;") && !place.contains("proxy_pass"), "{rule}\n{place}");
        let (status, reason, text) = made.condition(GatewayKind::HttpRoute, "a", "Accepted");
        assert_eq!((status.as_str(), reason.as_str()), ("False", UNSUPPORTED), "{rule}");
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn other_rules_are_served() {
    for (rule, _) in unsupported() {
        let mut world = World::with_edge();
        let good = json!({ "matches": [{ "path": { "value": "/good" } }], "backendRefs": [{ "name": "web", "port": 80 }] });
        world.add(route_of("a", 5, &["a.test"], json!([rule, good])));
        let made = world.made();
        assert!(target(&made.server("a.test"), "$uri ^/good").contains("proxy_pass"), "{rule}");
        assert_eq!(made.condition(GatewayKind::HttpRoute, "a", "Accepted").0, "True");
        let (status, reason, _) = made.condition(GatewayKind::HttpRoute, "a", "PartiallyInvalid");
        assert_eq!((status.as_str(), reason.as_str()), ("True", UNSUPPORTED), "{rule}");
    }
}

#[test]
fn redirects_and_preflights_of_a_closed_rule_are_closed() {
    let mut world = World::with_edge();
    let rule = json!({ "filters": [
        { "type": "RequestRedirect", "requestRedirect": { "scheme": "https" } },
        { "type": "CORS", "cors": { "allowOrigins": ["*"] } },
        { "type": "ExtensionRef" },
    ] });
    world.add(route_of("a", 5, &["a.test"], json!([rule])));
    let server = world.made().server("a.test");
    assert_eq!(server.matches("route @").count(), 1, "{server}");
    assert!(!server.contains("https") && !server.contains("204"), "{server}");
}

#[test]
fn a_match_that_cannot_be_expressed_is_closed() {
    let mut world = World::with_edge();
    let backend = json!([{ "name": "web", "port": 80 }]);
    world.add(route_of("a", 5, &["a.test"], json!([
        { "matches": [{ "path": { "value": "/a" }, "headers": [{ "type": "RegularExpression", "name": "X", "value": "(" }] }], "backendRefs": backend },
        { "matches": [{ "path": { "value": "/b" }, "queryParams": [{ "name": "a-b[]", "value": "1" }] }], "backendRefs": backend },
        { "matches": [{ "path": { "value": "/a" } }, { "path": { "value": "/b" } }], "backendRefs": backend },
    ])));
    let made = world.made();
    let server = made.server("a.test");
    // The field holds for all requests, and the rule comes first, since it has more conditions.
    assert!(target(&server, "$uri ^/a").contains("return 500;"), "{server}");
    assert!(!server.contains("field:x"), "{server}");
    assert!(target(&server, "argument:a-b[] =1").contains("proxy_pass"), "{server}");
    let (_, _, text) = made.condition(GatewayKind::HttpRoute, "a", "PartiallyInvalid");
    assert!(text.contains("rules[0].matches[0]"), "{text}");
}

#[test]
fn names_of_fields_with_signs_are_read() {
    let mut world = World::with_edge();
    let rule = |name: &str| json!([{ "matches": [{ "headers": [{ "name": name, "value": "1" }] }], "backendRefs": [{ "name": "web", "port": 80 }] }]);
    world.add(route_of("a", 5, &["a.test"], rule("X-A")));
    assert!(!world.made().text().contains("ignore_invalid_headers"));
    world.add(route_of("a", 5, &["a.test"], rule("x.y_z")));
    let made = world.made();
    assert_eq!(made.text().matches("ignore_invalid_headers off;").count(), made.servers().len());
    assert!(made.server("a.test").contains("field:x.y_z =1"), "{}", made.text());
}

#[test]
fn backends_that_are_not_supported_are_closed_alone() {
    let mut world = World::with_edge();
    let backends = json!([
        { "name": "web", "port": 80, "filters": [{ "type": "CORS", "cors": {} }] },
        { "name": "api", "port": 80 },
    ]);
    world.add(route_of("a", 5, &["a.test"], json!([{ "backendRefs": backends }])));
    let made = world.made();
    let server = made.server("a.test");
    assert_eq!(
        (server.matches("return 500;").count(), server.matches("proxy_pass").count()),
        (1, 1),
        "{server}"
    );
    assert_eq!(made.condition(GatewayKind::HttpRoute, "a", "PartiallyInvalid").1, UNSUPPORTED);
}

#[test]
fn a_route_of_another_shape_is_closed() {
    let mut world = World::with_edge();
    world.add(route_of("a", 5, &["a.test"], json!([{ "backendRefs": [{ "name": "web", "port": 80 }] }])));
    assert!(world.made().server("a.test").contains("proxy_pass"));
    world.add(route_of("a", 5, &["a.test"], json!([{ "backendRefs": "web" }])));
    let made = world.made();
    let server = made.server("a.test");
    assert!(server.contains("return 500;") && !server.contains("proxy_pass"), "{server}");
    assert_eq!(made.condition(GatewayKind::HttpRoute, "a", "Accepted").1, UNSUPPORTED);
}

/// A `route` line without a condition is an error, which would take the servers of all Gateways away.
#[test]
fn a_match_of_which_nothing_can_be_used_closes_all_requests() {
    for found in [
        json!({ "path": { "type": "RegularExpression", "value": "(a{1000}){1000}" } }),
        json!({ "path": { "type": "RegularExpression", "value": "(" } }),
        json!({ "path": { "value": "/%" } }),
        json!({ "path": { "type": "Later", "value": "/" } }),
    ] {
        let mut world = World::with_edge();
        let backend = json!([{ "name": "web", "port": 80 }]);
        world.add(route_of("a", 5, &["a.test"], json!([{ "matches": [found], "backendRefs": backend }])));
        world.add(route_of("b", 4, &["a.test"], json!([{ "backendRefs": backend }])));
        let server = world.made().server("a.test");
        let lines = server.lines().filter(|line| line.trim().starts_with("route "));
        assert!(
            lines.clone().count() == 2 && lines.clone().all(|l| l.trim().split(' ').count() >= 4),
            "{found}: {server}"
        );
    }
}

#[test]
fn too_many_matches_close_a_route() {
    let mut world = World::with_edge();
    let matches: Vec<Value> = (0..2000).map(|n| json!({ "path": { "value": format!("/{n}") } })).collect();
    world.add(route_of(
        "a",
        5,
        &["a.test"],
        json!([{ "matches": matches, "backendRefs": [{ "name": "web", "port": 80 }] }]),
    ));
    let made = world.made();
    assert_eq!(made.server("a.test").matches("route @").count(), 1);
    assert_eq!(made.condition(GatewayKind::HttpRoute, "a", "Accepted").1, UNSUPPORTED);
}

#[test]
fn listeners_and_gateways_that_are_not_supported_are_closed() {
    let mut world = World::new();
    let mut filtered = listener(("filtered", "HTTP", 8080, "a.test"), "web");
    filtered["filters"] = json!({ "requests": [{ "type": "ExternalAuth" }] });
    let plain = listener(("plain", "HTTP", 8080, "*.test"), "web");
    world.add(gateway("edge", 9, json!({ "gatewayClassName": "forebay", "listeners": [filtered, plain] })));
    world.route("a", 5, &["edge"], &["a.test", "b.test"], "/");
    let made = world.made();
    assert_eq!(made.listener("edge", "filtered", "Accepted"), pair("False", UNSUPPORTED));
    assert_eq!(made.listener("edge", "plain", "Accepted"), pair("True", "Accepted"));
    // No other listener serves the host in its place.
    assert_eq!((made.named("a.test").len(), made.named("b.test").len()), (0, 1), "{}", made.text());
    let parameters = json!({ "group": "x.io", "kind": "Parameters", "name": "a" });
    let spec = json!({ "gatewayClassName": "forebay", "listeners": [listener(("http", "HTTP", 8081, ""), "web")],
        "infrastructure": { "parametersRef": parameters } });
    world.add(gateway("odd", 8, spec));
    world.route("odd", 5, &["odd"], &["odd.test"], "/");
    let made = world.made();
    assert_eq!(
        of(&made.status(GatewayKind::Gateway, "odd")["conditions"], "Accepted"),
        pair("False", "InvalidParameters")
    );
    assert!(!made.text().contains("8081"), "{}", made.text());
}

#[test]
fn identity_follows_the_rule_of_ingresses() {
    let mut world = World::with_edge();
    world.route("a", 5, &["edge"], &["a.test"], "/");
    let server = world.made().server("a.test");
    assert!(server.contains("proxy_set_header X-Forwarded-For $remote_addr;"), "{server}");
    assert!(!server.contains("proxy_add_x_forwarded_for"), "{server}");
    assert!(server.contains("set $proxy_upstream_name default-web-80;"), "{server}");
}

#[test]
fn clients_stay_with_a_backend() {
    let mut world = World::with_edge();
    let backends = json!([{ "name": "web", "port": 80 }, { "name": "api", "port": 80 }]);
    let wish = json!({ "type": "Cookie", "cookie": { "name": "s" } });
    world.add(route_of(
        "a",
        5,
        &["a.test"],
        json!([{ "backendRefs": backends, "sessionPersistence": wish }]),
    ));
    let made = world.made();
    let text = made.text();
    for index in 0..2 {
        assert!(
            text.contains(&format!("~(?:^|; *)s\\\\-{index}=")) || text.contains(&format!("s\\-{index}=")),
            "{text}"
        );
    }
    let groups = made.0.files.iter().find(|(path, _)| path.to_str() == Some("groups.conf")).expect("groups");
    let groups = String::from_utf8_lossy(&groups.1).into_owned();
    assert!(groups.contains("sticky cookie s-0") && groups.contains("sticky cookie s-1"), "{groups}");
}

#[test]
fn the_more_specific_host_of_a_route_counts_first() {
    let mut world = World::new();
    world.gateway("edge", 9, &[("http", "HTTP", 8080, "a.test")]);
    world.add(route_of("old", 8, &["*.test"], json!([{ "backendRefs": [{ "name": "web", "port": 80 }] }])));
    world.add(route_of("young", 3, &["a.test"], json!([{ "backendRefs": [{ "name": "api", "port": 80 }] }])));
    let server = world.made().server("a.test");
    assert!(target(&server, "$uri").contains("default_api_80"), "{server}");
}

#[test]
fn telemetry_policies_are_not_accepted() {
    let mut world = World::with_edge();
    world.add(json!({ "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XTelemetryPolicy",
        "metadata": { "name": "t", "namespace": "default" },
        "spec": { "targetRefs": [{ "group": GROUP, "kind": "Gateway", "name": "edge" }], "tracing": {} } }));
    assert_eq!(world.made().condition(GatewayKind::TelemetryPolicy, "t", "Accepted").0, "False");
}

#[test]
fn a_class_with_parameters_is_not_accepted() {
    let mut world = World::with_edge();
    world.route("a", 5, &["edge"], &["a.test"], "/");
    let parameters = json!({ "group": "x.io", "kind": "Parameters", "name": "a" });
    world.add(json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": { "name": "forebay" },
        "spec": { "controllerName": "forebay.io/gateway", "parametersRef": parameters } }));
    let made = world.made();
    assert_eq!(made.named("a.test"), [""; 0]);
    let class = made.0.statuses.iter().find(|s| s.kind == GatewayKind::GatewayClass).expect("a status");
    assert_eq!(of(&class.status["conditions"], "Accepted"), pair("False", "InvalidParameters"));
}

#[test]
fn a_grant_with_fields_that_are_not_read_allows_nothing() {
    let mut world = World::with_edge();
    world.add(json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "other" }, "spec": { "ports": [{ "port": 80 }] } }));
    world.add(route_of(
        "a",
        5,
        &["a.test"],
        json!([{ "backendRefs": [{ "name": "web", "namespace": "other", "port": 80 }] }]),
    ));
    let grant = |to: Value| {
        json!({ "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
        "metadata": { "name": "g", "namespace": "other" },
        "spec": { "from": [{ "group": GROUP, "kind": "HTTPRoute", "namespace": "default" }], "to": [to] } })
    };
    world.add(grant(json!({ "group": "", "kind": "Service" })));
    assert!(world.made().server("a.test").contains("proxy_pass"));
    world.add(grant(json!({ "group": "", "kind": "Service", "labels": { "public": "true" } })));
    let made = world.made();
    assert!(made.server("a.test").contains("return 500;"), "{}", made.text());
    assert_eq!(made.condition(GatewayKind::HttpRoute, "a", "ResolvedRefs").1, "RefNotPermitted");
}
