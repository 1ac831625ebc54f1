//! Settings of the ConfigMap at servers of Gateways.

use super::*;

/// Returns a world with a rule of each kind.
fn world() -> World {
    let mut world = World::with_edge();
    let rules = json!([
        { "matches": [{ "path": { "value": "/moved" } }], "filters": [{ "type": "RequestRedirect", "requestRedirect": { "hostname": "b.test" } }] },
        { "matches": [{ "path": { "value": "/cors" } }], "filters": [{ "type": "CORS", "cors": { "allowOrigins": ["*"] } }], "backendRefs": [{ "name": "web", "port": 80 }] },
        { "backendRefs": [{ "name": "web", "port": 80 }] },
    ]);
    world.add(route_of("a", 5, &["a.test"], rules));
    world
}

#[test]
fn keys_that_decide_on_access_close_routes() {
    for (key, value) in [
        ("proxy-real-ip-cidr", "10.0.0.0/99"),
        ("forwarded-for-header", "a b"),
        ("block-cidrs", "all"),
        ("block-user-agents", "~*("),
        ("enable-modsecurity", "true"),
        ("enable-modsecurity", "maybe"),
        ("modsecurity-snippet", "SecRuleEngine On"),
    ] {
        let mut world = world();
        let server = world.made().server("a.test");
        assert!(server.contains("proxy_pass") && !server.contains("return 503;"), "{server}");
        world.settings(json!({ key: value }));
        let server = world.made().server("a.test");
        assert_eq!(server.matches("return 503;").count(), 3, "{key}: {server}");
        for open in ["proxy_pass", "b.test", "204"] {
            assert!(!server.contains(open), "{key}: {open} in {server}");
        }
    }
}

#[test]
fn other_keys_close_nothing() {
    for (key, value) in [("proxy-body-size", "much"), ("enable-modsecurity", "false")] {
        let mut world = world();
        world.settings(json!({ key: value }));
        let server = world.made().server("a.test");
        assert!(server.contains("proxy_pass") && !server.contains("return 503;"), "{key}: {server}");
    }
}

#[test]
fn clients_that_are_blocked_are_so_at_gateways() {
    let mut world = world();
    world.settings(
        json!({ "block-cidrs": "192.0.2.0/24", "block-user-agents": "evil", "block-referers": "~*spam" }),
    );
    let policy = json!({ "apiVersion": "forebay.io/v1alpha1", "kind": "RoutePolicy", "metadata": { "name": "p", "namespace": "default" },
        "spec": { "targetRefs": [{ "group": GROUP, "kind": "HTTPRoute", "name": "a" }], "proxy": { "readTimeout": 7 } } });
    for policy in [None, Some(policy)] {
        policy.into_iter().for_each(|policy| world.add(policy));
        let server = world.made().server("a.test");
        for line in ["if ($block_user_agent)", "if ($block_referer)"] {
            assert_eq!(server.matches(line).count(), 1, "{line} in {server}");
        }
        let routes: Vec<&str> = server.lines().filter_map(|l| l.trim().strip_prefix("route ")).collect();
        // There are more for preflights than for the three rules.
        assert!(routes.len() > 3, "{server}");
        for name in routes.iter().filter_map(|route| route.split(' ').next()) {
            assert!(location(&server, name).contains("deny 192.0.2.0/24;"), "{name} in {server}");
        }
        let moved = target(&server, "^/moved");
        assert!(moved.contains("deny") && !moved.contains("return"), "{moved}");
    }
}

#[test]
fn clients_do_not_say_what_their_certificates_are() {
    let fields = "more_clear_input_headers ssl-client-verify ssl-client-subject-dn ssl-client-issuer-dn ssl-client-cert;";
    let mut world = world();
    let server = world.made().server("a.test");
    assert!(server.contains(fields) && !server.contains("$ssl_client"), "{server}");
    let tls = json!({ "default": { "validation": { "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "web" }] } } });
    let listeners = [listener(("https", "HTTPS", 8443, ""), "web")];
    world.add(gateway(
        "edge",
        9,
        json!({ "gatewayClassName": "forebay", "listeners": listeners, "tls": { "frontend": tls } }),
    ));
    let server = world.made().server("a.test");
    assert!(server.contains(fields), "{server}");
    for line in [
        "proxy_set_header ssl-client-verify $ssl_client_verify;",
        "proxy_set_header ssl-client-subject-dn $ssl_client_s_dn;",
        "proxy_set_header ssl-client-issuer-dn $ssl_client_i_dn;",
        "proxy_set_header ssl-client-cert \"\";",
    ] {
        assert_eq!(server.matches(line).count(), 2, "{line} in {server}");
    }
}

#[test]
fn probes_of_balancers_are_answered_unless_a_route_names_their_path() {
    let mut world = World::new();
    world.gateway("edge", 9, &[("http", "HTTP", 80, ""), ("other", "HTTP", 8080, "")]);
    world.route("a", 5, &["edge"], &[], "/");
    let made = world.made();
    let rest = made.server("~^");
    assert!(rest.find("route @probes $uri =/healthz;") < rest.find("$uri ^/;"), "{rest}");
    assert!(location(&rest, "@probes").contains("return 200;"), "{rest}");
    assert!(!made.server("_").contains("@probes"), "{}", made.text());
    world.route("b", 4, &["edge"], &[], "/healthz");
    assert!(!world.made().server("~^").contains("@probes"));
}

#[test]
fn fields_of_a_service_do_not_come_from_clients_where_it_is_not_asked() {
    let mut world = world();
    world.add(json!({ "apiVersion": "forebay.io/v1alpha1", "kind": "RoutePolicy", "metadata": { "name": "p", "namespace": "default" },
        "spec": { "targetRefs": [{ "group": GROUP, "kind": "HTTPRoute", "name": "a" }],
            "externalAuth": { "url": "http://198.51.100.7/", "responseHeaders": ["X-User", "Authorization"] } } }));
    world.settings(json!({ "no-auth-locations": "/cors" }));
    let server = world.made().server("a.test");
    for line in ["proxy_set_header X-User \"\";", "proxy_set_header X-User $authheader0;"] {
        assert_eq!(server.matches(line).count(), 1, "{line} in {server}");
    }
    assert!(!server.contains("proxy_set_header Authorization \"\";"), "{server}");
}
