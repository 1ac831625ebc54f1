//! RoutePolicies.

use super::*;

fn policy(name: &str, age: u32, targets: Value, more: Value) -> Value {
    let mut spec = more;
    spec["targetRefs"] = targets;
    json!({ "apiVersion": "forebay.io/v1alpha1", "kind": "RoutePolicy",
        "metadata": { "name": name, "namespace": "default", "creationTimestamp": created(age) }, "spec": spec })
}

fn of_route(name: &str) -> Value {
    json!([{ "group": GROUP, "kind": "HTTPRoute", "name": name }])
}

fn verdict(made: &Made, name: &str) -> (String, String, String) {
    made.condition(GatewayKind::RoutePolicy, name, "Accepted")
}

/// Returns a world with a route of two rules, one of which redirects, and a Secret of passwords.
fn world() -> World {
    let mut world = World::with_edge();
    world.add(
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "users", "namespace": "default" },
        "stringData": { "auth": "ann:{PLAIN}secret\n" } }),
    );
    let backend = json!([{ "name": "web", "port": 80 }]);
    world.add(route_of("a", 5, &["a.test"], json!([
        { "name": "shop", "matches": [{ "path": { "value": "/shop" } }], "backendRefs": backend },
        { "name": "old", "matches": [{ "path": { "value": "/old" } }], "filters": [{ "type": "RequestRedirect", "requestRedirect": { "hostname": "b.test" } }] },
    ])));
    world.add(route_of("b", 4, &["b.test"], json!([{ "backendRefs": backend }])));
    world
}

#[test]
fn a_policy_holds_for_its_route() {
    let mut world = world();
    world.add(policy(
        "p",
        3,
        of_route("a"),
        json!({
            "basicAuth": { "secret": "users" },
            "limit": { "rps": 5 },
            "proxy": { "bodySize": "8m", "readTimeout": 7 },
            "denylistSourceRange": ["192.0.2.0/24"],
            "sessionCookie": { "name": "s" },
            "upstreamVhost": "inner.test",
        }),
    ));
    let made = world.made();
    assert_eq!(verdict(&made, "p"), ("True".into(), "Accepted".into(), String::new()));
    let shop = target(&made.server("a.test"), "^/shop");
    for line in [
        "auth_basic_user_file secrets/default_users",
        "limit_req zone=default_policy_p_rps burst=25 nodelay;",
        "client_max_body_size 8m;",
        "proxy_read_timeout 7s;",
        "deny 192.0.2.0/24;",
        "proxy_set_header Authorization \"\";",
        "proxy_set_header Host inner.test;",
    ] {
        assert!(shop.contains(line), "{line} in {shop}");
    }
    assert_eq!(shop.matches("client_max_body_size").count(), 1, "{shop}");
    assert!(
        made.text().contains("limit_req_zone $binary_remote_addr zone=default_policy_p_rps:5m rate=5r/s;")
    );
    assert!(!made.server("b.test").contains("auth_basic"), "{}", made.server("b.test"));
}

#[test]
fn checks_come_before_redirects_and_permissions() {
    let mut world = world();
    world.add(policy(
        "p",
        3,
        of_route("a"),
        json!({
            "basicAuth": { "secret": "users" }, "allowlistSourceRange": ["10.0.0.0/8"], "cors": {},
        }),
    ));
    let server = world.made().server("a.test");
    let old = target(&server, "route @");
    assert!(!old.is_empty());
    let redirects =
        server.lines().find(|l| l.contains("route") && l.contains("^/old") && !l.contains("OPTIONS"));
    let name = redirects.expect("a route").trim().split(' ').nth(1).expect("a name").to_owned();
    let first = location(&server, &name);
    assert!(
        first.contains("auth_basic ") && first.contains("deny all;") && !first.contains("return"),
        "{first}"
    );
    assert!(first.contains(&format!("try_files /.forebay/none {name}_then;")), "{first}");
    assert!(location(&server, &format!("{name}_then")).contains("return 302"));
    let asks = server.lines().find(|l| l.contains("route @p") && l.contains("^/shop")).expect("a preflight");
    let name = asks.trim().split(' ').nth(1).expect("a name").to_owned();
    let first = location(&server, &name);
    assert!(first.contains("deny all;") && !first.contains("auth_basic"), "{first}");
}

#[test]
fn the_more_specific_policy_replaces_parts() {
    let mut world = world();
    let gateway = json!([{ "group": GROUP, "kind": "Gateway", "name": "edge" }]);
    world.add(policy("all", 8, gateway, json!({
        "basicAuth": { "secret": "users" }, "denylistSourceRange": ["192.0.2.0/24"], "proxy": { "readTimeout": 7, "sendTimeout": 8 },
    })));
    world.add(policy(
        "a",
        7,
        of_route("a"),
        json!({ "denylistSourceRange": ["198.51.100.0/24"], "proxy": { "readTimeout": 9 } }),
    ));
    let rule = json!([{ "group": GROUP, "kind": "HTTPRoute", "name": "a", "sectionName": "shop" }]);
    world.add(policy("shop", 6, rule, json!({ "proxy": { "sendTimeout": 10 } })));
    let made = world.made();
    let shop = target(&made.server("a.test"), "^/shop");
    for line in [
        "auth_basic ",
        "deny 192.0.2.0/24;",
        "deny 198.51.100.0/24;",
        "proxy_read_timeout 9s;",
        "proxy_send_timeout 10s;",
    ] {
        assert!(shop.contains(line), "{line} in {shop}");
    }
    let other = target(&made.server("b.test"), "$uri");
    assert!(other.contains("auth_basic ") && other.contains("proxy_read_timeout 7s;"), "{other}");
}

#[test]
fn of_two_policies_the_older_counts() {
    let mut world = world();
    world.add(policy("young", 2, of_route("a"), json!({ "proxy": { "readTimeout": 2 } })));
    world.add(policy("old", 3, of_route("a"), json!({ "proxy": { "readTimeout": 3 } })));
    let made = world.made();
    assert!(target(&made.server("a.test"), "^/shop").contains("proxy_read_timeout 3s;"));
    assert_eq!(verdict(&made, "old").1, "Accepted");
    let (status, reason, text) = verdict(&made, "young");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Conflicted"));
    assert!(text.contains("default/old"), "{text}");
}

#[test]
fn a_target_that_is_missing_is_said() {
    let mut world = world();
    world.add(policy("p", 3, of_route("none"), json!({ "proxy": { "readTimeout": 2 } })));
    let made = world.made();
    assert_eq!(verdict(&made, "p").1, "TargetNotFound");
    // What a policy of a rule that is not there is to protect may be any of the rules.
    let rule = json!([{ "group": GROUP, "kind": "HTTPRoute", "name": "a", "sectionName": "shopp" }]);
    world.add(policy("p", 3, rule, json!({ "basicAuth": { "secret": "users" } })));
    let made = world.made();
    assert_eq!(verdict(&made, "p").1, "TargetNotFound");
    assert!(target(&made.server("a.test"), "^/shop").contains("return 503;"));
    assert!(target(&made.server("b.test"), "$uri").contains("proxy_pass"));
}

#[test]
fn an_invalid_policy_closes_its_targets() {
    for more in [
        json!({ "basicAuth": { "secret": "missing" } }),
        json!({ "basicAuth": { "secret": "other/users" } }),
        json!({ "basicAuth": {} }),
        json!({ "externalAuth": { "url": "nothing" } }),
        json!({ "externalAuth": { "url": "http://127.0.0.1:9/" } }),
        json!({ "allowlistSourceRange": ["all"] }),
        json!({ "limit": { "rps": -1 } }),
        json!({ "limit": { "rps": 1, "scope": "cluster" } }),
        json!({ "proxy": { "bodySize": "much" } }),
        json!({ "cors": { "allowOrigin": ["a b"] } }),
        json!({ "customHeaders": "missing" }),
        json!({ "configurationSnippet": "return 200;" }),
        json!({ "loadBalance": "best" }),
    ] {
        let mut world = world();
        world.add(policy("p", 3, of_route("a"), more.clone()));
        let made = world.made();
        let server = made.server("a.test");
        for path in ["^/shop", "^/old"] {
            let place = target(&server, path);
            assert!(place.contains("return 503;") && !place.contains("302"), "{more}\n{place}");
        }
        let (status, reason, text) = verdict(&made, "p");
        assert_eq!((status.as_str(), reason.as_str()), ("False", "Invalid"), "{more}");
        assert!(text.contains("its targets answer 503") && !text.contains("Ingress"), "{more}: {text}");
        assert!(target(&made.server("b.test"), "$uri").contains("proxy_pass"), "{more}");
    }
}

#[test]
fn a_policy_of_another_controllers_route_has_no_status() {
    let mut world = world();
    let mut theirs =
        route_of("c", 4, &["c.test"], json!([{ "backendRefs": [{ "name": "web", "port": 80 }] }]));
    theirs["spec"]["parentRefs"] = json!([{ "name": "theirs" }]);
    world.add(theirs);
    world.add(policy("p", 3, of_route("c"), json!({ "proxy": { "readTimeout": 2 } })));
    assert_eq!(world.made().status(GatewayKind::RoutePolicy, "p"), Value::Null);
}

#[test]
fn a_rules_own_settings_count_before_those_of_a_policy() {
    let mut world = world();
    world.add(route_of(
        "a",
        5,
        &["a.test"],
        json!([{ "timeouts": { "request": "3s" }, "backendRefs": [{ "name": "web", "port": 80 }] }]),
    ));
    world.add(policy("p", 3, of_route("a"), json!({ "proxy": { "readTimeout": 7, "bodySize": "1m" } })));
    let place = target(&world.made().server("a.test"), "$uri");
    assert_eq!(place.matches("proxy_read_timeout").count(), 1, "{place}");
    assert!(place.contains("proxy_read_timeout 3000ms;"), "{place}");
}

#[test]
fn networks_of_a_gateways_policy_hold_for_streams() {
    let mut world = World::new();
    let pass = json!({ "name": "pass", "protocol": "TLS", "port": 8443, "tls": { "mode": "Passthrough" } });
    let tcp = json!({ "name": "tcp", "protocol": "TCP", "port": 9000 });
    world.add(gateway("edge", 9, json!({ "gatewayClassName": "forebay", "listeners": [pass, tcp] })));
    for (kind, section, hosts) in [("TLSRoute", "pass", json!(["a.test"])), ("TCPRoute", "tcp", Value::Null)]
    {
        let parents = json!([{ "name": "edge", "sectionName": section }]);
        let mut spec =
            json!({ "parentRefs": parents, "rules": [{ "backendRefs": [{ "name": "web", "port": 80 }] }] });
        if !hosts.is_null() {
            spec["hostnames"] = hosts;
        }
        world.add(json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": { "name": section, "namespace": "default" }, "spec": spec }));
    }
    let stream = |made: &Made| {
        let found = made.0.files.iter().find(|(path, _)| path.to_str() == Some("gateways/stream.conf"));
        found.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    };
    assert!(!stream(&world.made()).contains("deny"));
    let target = json!([{ "group": GROUP, "kind": "Gateway", "name": "edge" }]);
    world.add(policy("p", 3, target.clone(), json!({ "allowlistSourceRange": ["10.0.0.0/8"] })));
    let text = stream(&world.made());
    assert_eq!(
        (text.matches("allow 10.0.0.0/8;").count(), text.matches("deny all;").count()),
        (2, 2),
        "{text}"
    );
    world.add(policy("p", 3, target, json!({ "allowlistSourceRange": ["all"] })));
    let text = stream(&world.made());
    assert!(
        text.matches("proxy_pass gateway_none;").count() == 2 && !text.contains("proxy_pass gateway_default"),
        "{text}"
    );
}
