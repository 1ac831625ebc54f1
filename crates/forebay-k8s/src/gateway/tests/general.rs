//! Keys of the ConfigMap that decide on access, at routes of all kinds.

use super::*;

impl World {
    /// Sets keys of the ConfigMap.
    pub(super) fn settings(&mut self, data: Value) {
        self.options.config_map = Some(Key::new("forebay", "config"));
        self.add(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "config", "namespace": "forebay" }, "data": data }));
    }
}

impl Made {
    fn main(&self) -> String {
        String::from_utf8_lossy(&self.0.files[0].1).into_owned()
    }
}

/// Kinds of routes with their listeners, and a route of each.
const STREAMS: [(&str, &str, GatewayKind); 4] = [
    ("tcp", "TCPRoute", GatewayKind::TcpRoute),
    ("udp", "UDPRoute", GatewayKind::UdpRoute),
    ("ends", "TLSRoute", GatewayKind::TlsRoute),
    ("passes", "TLSRoute", GatewayKind::TlsRoute),
];

/// Returns a world with a route of each kind: those of `STREAMS`, and an HTTPRoute and a GRPCRoute.
pub(super) fn world() -> World {
    let mut world = World::new();
    world.add(json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "names", "namespace": "default" },
        "spec": { "ports": [{ "port": 80, "protocol": "UDP" }] } }));
    world.add(gateway("edge", 9, json!({ "gatewayClassName": "forebay", "listeners": [
        { "name": "http", "protocol": "HTTP", "port": 8080 },
        { "name": "tcp", "protocol": "TCP", "port": 9001 },
        { "name": "udp", "protocol": "UDP", "port": 9002 },
        { "name": "ends", "protocol": "TLS", "port": 9003, "tls": { "mode": "Terminate", "certificateRefs": [{ "name": "web" }] } },
        { "name": "passes", "protocol": "TLS", "port": 9004, "tls": { "mode": "Passthrough" } },
    ] })));
    for (name, kind, _) in STREAMS {
        let service = if name == "udp" { "names" } else { "web" };
        let mut spec = json!({ "parentRefs": [{ "name": "edge", "sectionName": name }],
            "rules": [{ "backendRefs": [{ "name": service, "port": 80 }] }] });
        if kind == "TLSRoute" {
            spec["hostnames"] = json!([format!("{name}.test")]);
        }
        world.add(json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
            "metadata": { "name": name, "namespace": "default", "creationTimestamp": created(5) }, "spec": spec }));
    }
    world.add(json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GRPCRoute",
        "metadata": { "name": "grpc", "namespace": "default", "creationTimestamp": created(5) },
        "spec": { "parentRefs": [{ "name": "edge", "sectionName": "http" }], "hostnames": ["grpc.test"],
            "rules": [{ "backendRefs": [{ "name": "web", "port": 80 }] }] } }));
    let parents = json!([{ "name": "edge", "sectionName": "http" }]);
    let mut route = route_of(
        "a",
        5,
        &["a.test"],
        json!([
            { "name": "shop", "matches": [{ "path": { "value": "/shop" } }], "backendRefs": [{ "name": "web", "port": 80 }] },
            { "matches": [{ "path": { "value": "/moved" } }], "filters": [{ "type": "RequestRedirect", "requestRedirect": { "hostname": "b.test" } }] },
        ]),
    );
    route["spec"]["parentRefs"] = parents;
    world.add(route);
    world
}

/// Returns the server of the stream block at a port.
fn at(stream: &str, port: u16) -> String {
    let listens = |s: &&str| s.contains(&format!("listen {port}"));
    let all: Vec<&str> = stream.split("server {\n").skip(1).filter(listens).collect();
    assert!(!all.is_empty(), "{port} in {stream}");
    all.join("\nserver {")
}

const ALL: [(&str, GatewayKind); 6] = [
    ("a", GatewayKind::HttpRoute),
    ("grpc", GatewayKind::GrpcRoute),
    ("tcp", GatewayKind::TcpRoute),
    ("udp", GatewayKind::UdpRoute),
    ("ends", GatewayKind::TlsRoute),
    ("passes", GatewayKind::TlsRoute),
];

#[test]
fn keys_that_fail_close_routes_of_all_kinds() {
    let open = world().made();
    for port in 9001..=9004 {
        assert!(open.stream().contains("gateway_default") && at(&open.stream(), port).contains("proxy_pass"));
    }
    for (name, kind) in ALL {
        assert_eq!(open.condition(kind, name, "Accepted").0, "True", "{name}");
    }
    for (key, value) in
        [("block-cidrs", "all"), ("whitelist-source-range", "me"), ("stream-snippet", "deny nobody here;")]
    {
        let mut world = world();
        world.settings(json!({ key: value }));
        let made = world.made();
        let stream = made.stream();
        for port in 9001..=9004 {
            let server = at(&stream, port);
            assert!(!server.contains("gateway_default"), "{key} {port}: {stream}");
        }
        assert!(
            !stream.contains("proxy_pass gateway_default") && !stream.contains("proxy_pass $"),
            "{stream}"
        );
        for (name, kind) in ALL {
            let (holds, reason, text) = made.condition(kind, name, "Accepted");
            assert_eq!((holds.as_str(), reason.as_str()), ("False", "SettingInvalid"), "{name}: {text}");
            assert!(text.contains(key) && text.contains("forebay/config"), "{name}: {text}");
        }
    }
}

#[test]
fn networks_of_the_configmap_hold_for_routes_of_all_kinds() {
    let policy = json!({ "apiVersion": "forebay.io/v1alpha1", "kind": "RoutePolicy", "metadata": { "name": "p", "namespace": "default" },
        "spec": { "targetRefs": [{ "group": GROUP, "kind": "Gateway", "name": "edge" }], "denylistSourceRange": ["203.0.113.0/24"] } });
    for policy in [None, Some(policy)] {
        let mut world = world();
        let more = policy.is_some();
        policy.into_iter().for_each(|policy| world.add(policy));
        world.settings(json!({ "block-cidrs": "192.0.2.0/24", "denylist-source-range": "198.51.100.0/24", "whitelist-source-range": "10.0.0.0/8" }));
        let made = world.made();
        let mut places: Vec<String> = (9001..=9004).map(|port| at(&made.stream(), port)).collect();
        places.push(target(&made.server("grpc.test"), "^/"));
        places.push(target(&made.server("a.test"), "^/shop"));
        places.push(target(&made.server("a.test"), "^/moved"));
        for place in places {
            let mut lines =
                vec!["deny 192.0.2.0/24;", "deny 198.51.100.0/24;", "allow 10.0.0.0/8;", "deny all;"];
            lines.extend(more.then_some("deny 203.0.113.0/24;"));
            for line in lines {
                assert!(place.contains(line), "{line} in {place}");
            }
        }
    }
}

#[test]
fn a_policy_replaces_the_networks_that_are_let_in() {
    let mut world = world();
    world.settings(json!({ "whitelist-source-range": "10.0.0.0/8" }));
    world.add(json!({ "apiVersion": "forebay.io/v1alpha1", "kind": "RoutePolicy", "metadata": { "name": "p", "namespace": "default" },
        "spec": { "targetRefs": [{ "group": GROUP, "kind": "HTTPRoute", "name": "a" }], "allowlistSourceRange": ["192.0.2.0/24"] } }));
    let made = world.made();
    let shop = target(&made.server("a.test"), "^/shop");
    assert!(shop.contains("allow 192.0.2.0/24;") && !shop.contains("10.0.0.0/8"), "{shop}");
    assert!(target(&made.server("grpc.test"), "^/").contains("allow 10.0.0.0/8;"));
}

/// The keys of the general service.
fn service(more: Value) -> Value {
    let mut keys =
        json!({ "global-auth-url": "http://198.51.100.7/check", "global-auth-response-headers": "X-User" });
    keys.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
    keys
}

fn policy(target: Value, more: Value) -> Value {
    let mut spec = more;
    spec["targetRefs"] = json!([target]);
    json!({ "apiVersion": "forebay.io/v1alpha1", "kind": "RoutePolicy", "metadata": { "name": target["kind"], "namespace": "default" }, "spec": spec })
}

#[test]
fn the_general_service_is_asked_for_routes() {
    let mut world = world();
    world.settings(service(json!({})));
    let made = world.made();
    for (server, condition) in [("a.test", "^/shop"), ("a.test", "^/moved"), ("grpc.test", "^/")] {
        let server = made.server(server);
        let place = target(&server, condition);
        assert!(place.contains("auth_request /_external-auth-"), "{condition}: {place}");
        assert!(server.contains("proxy_pass http://198.51.100.7/check;"), "{server}");
        // A redirect of a client without access would answer first.
        assert!(!place.contains("return"), "{place}");
    }
    assert!(made.server("a.test").contains("proxy_set_header X-User $authheader0;"));
    assert!(!made.stream().contains("auth_request"));
    assert_eq!(made.condition(GatewayKind::HttpRoute, "a", "Accepted").1, "Accepted");
}

#[test]
fn a_policy_takes_the_place_of_the_general_service() {
    let gateway = || json!({ "group": GROUP, "kind": "Gateway", "name": "edge" });
    let route = || json!({ "group": GROUP, "kind": "HTTPRoute", "name": "a" });
    let own = |host: &str| json!({ "externalAuth": { "url": format!("http://{host}/") } });
    let off = || json!({ "enableGlobalAuth": false });
    let (general, first, second) = ("198.51.100.7", "203.0.113.1", "203.0.113.2");
    let cases: [(&[Value], Option<&str>); 6] = [
        (&[policy(gateway(), off())], None),
        (&[policy(route(), off())], None),
        (&[policy(gateway(), off()), policy(route(), json!({ "enableGlobalAuth": true }))], Some(general)),
        (&[policy(gateway(), own(first))], Some(first)),
        // It switches off the service of the ConfigMap, not the service of another policy.
        (&[policy(gateway(), own(first)), policy(route(), off())], Some(first)),
        (&[policy(gateway(), own(first)), policy(route(), own(second))], Some(second)),
    ];
    for (policies, asked) in cases {
        let mut world = world();
        world.settings(service(json!({})));
        policies.iter().for_each(|policy| world.add(policy.clone()));
        let made = world.made();
        let server = made.server("a.test");
        for host in [general, first, second] {
            assert_eq!(server.contains(&format!("http://{host}/")), asked == Some(host), "{host}: {server}");
        }
        let shop = target(&server, "^/shop");
        assert_eq!(shop.contains("auth_request "), asked.is_some(), "{shop}");
        if asked != Some(general) {
            // The field comes from the service alone, never from the client.
            assert!(shop.contains("proxy_set_header X-User \"\";"), "{shop}");
        }
    }
}

#[test]
fn a_general_service_that_cannot_be_asked_closes_what_it_protects() {
    let mut world = world();
    world.settings(service(json!({ "global-auth-cache-duration": "soon" })));
    world.add(policy(
        json!({ "group": GROUP, "kind": "HTTPRoute", "name": "a", "sectionName": "shop" }),
        json!({ "enableGlobalAuth": false }),
    ));
    let made = world.made();
    let grpc = target(&made.server("grpc.test"), "^/");
    assert!(grpc.contains("return 503;") && !grpc.contains("_pass "), "{grpc}");
    let (holds, reason, text) = made.condition(GatewayKind::GrpcRoute, "grpc", "Accepted");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "SettingInvalid"), "{text}");
    assert!(text.contains("global-auth"), "{text}");
    let server = made.server("a.test");
    assert!(target(&server, "^/shop").contains("proxy_pass"), "{server}");
    assert!(target(&server, "^/moved").contains("return 503;"), "{server}");
    let (holds, reason, _) = made.condition(GatewayKind::HttpRoute, "a", "PartiallyInvalid");
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "SettingInvalid"));
    assert!(at(&made.stream(), 9001).contains("gateway_default"), "{}", made.stream());
}

#[test]
fn a_firewall_that_is_missing_is_named_by_routes() {
    let mut world = world();
    world.settings(json!({ "enable-modsecurity": "true" }));
    let made = world.made();
    let (holds, reason, text) = made.condition(GatewayKind::HttpRoute, "a", "Accepted");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "SettingInvalid"), "{text}");
    assert!(text.contains("ModSecurity"), "{text}");
    // A firewall reads requests.
    assert_eq!(made.condition(GatewayKind::TcpRoute, "tcp", "Accepted").0, "True");
}

#[test]
fn snippets_that_decide_on_access_are_named_by_gateways() {
    for (key, value, named) in [
        ("server-snippet", "deny 192.0.2.0/24;", true),
        ("location-snippet", "auth_basic x;", true),
        ("server-snippet", "client_header_timeout 7s;", false),
    ] {
        let mut world = world();
        world.settings(json!({ key: value }));
        let made = world.made();
        let (holds, text) = {
            let status = made.status(GatewayKind::Gateway, "edge");
            let accepted = status["conditions"]
                .as_array()
                .expect("conditions")
                .iter()
                .find(|c| c["type"] == "Accepted")
                .expect("it")
                .clone();
            (accepted["status"].clone(), accepted["message"].as_str().unwrap_or_default().to_owned())
        };
        assert_eq!(holds, "True");
        assert_eq!(text.contains(key), named, "{text}");
    }
}

#[test]
fn answers_of_services_of_policies_are_kept() {
    let mut world = world();
    assert!(!world.made().main().contains("keys_zone=auth_cache"));
    let own = json!({ "externalAuth": { "url": "http://203.0.113.1/", "cacheKey": "$http_authorization" } });
    world.add(policy(json!({ "group": GROUP, "kind": "HTTPRoute", "name": "a" }), own));
    let made = world.made();
    assert!(made.text().contains("proxy_cache auth_cache;"), "{}", made.text());
    assert!(made.main().contains("keys_zone=auth_cache"), "{}", made.main());
}
