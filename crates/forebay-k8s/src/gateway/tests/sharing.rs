//! Gateways that share addresses, with each other and with Ingresses.

use super::*;

#[test]
fn gateways_share_a_port() {
    let mut world = World::new();
    world.gateway("old", 9, &[("http", "HTTP", 8080, "")]);
    world.gateway("young", 5, &[("http", "HTTP", 8080, "")]);
    world.route("b", 3, &["young"], &["x.test"], "/b");
    world.route("a", 4, &["old"], &["x.test"], "/a");
    world.route("longer", 2, &["young"], &["x.test"], "/a/longer");
    let made = world.made();
    assert_eq!(made.text().matches("default_server").count(), 1, "{}", made.text());
    let servers = made.named("x.test");
    assert_eq!(servers.len(), 1, "{}", made.text());
    let place = |path: &str| servers[0].find(&format!("$uri ^{path};")).expect("a route");
    assert!(place("/a/longer") < place("/a") && place("/a") < place("/b"), "{}", servers[0]);
    for gateway in ["old", "young"] {
        assert_eq!(made.listener(gateway, "http", "Accepted"), pair("True", "Accepted"));
    }
}

#[test]
fn a_route_of_two_gateways_is_there_once() {
    let mut world = World::new();
    world.gateway("old", 9, &[("http", "HTTP", 8080, "")]);
    world.gateway("young", 5, &[("http", "HTTP", 8080, "")]);
    world.route("a", 4, &["young", "old"], &["x.test"], "/a");
    let made = world.made();
    assert_eq!(made.text().matches("$uri ^/a;").count(), 1, "{}", made.text());
}

#[test]
fn the_older_gateway_keeps_a_port() {
    let mut world = World::new();
    world.gateway("young", 5, &[("web", "HTTP", 8443, ""), ("other", "HTTP", 8080, "")]);
    world.gateway("old", 9, &[("tls", "HTTPS", 8443, "")]);
    world.add(secret("old"));
    world.route("a", 4, &["young"], &["x.test"], "/");
    let made = world.made();
    assert_eq!(made.listener("old", "tls", "Accepted"), pair("True", "Accepted"));
    assert_eq!(made.listener("young", "web", "Accepted"), pair("False", "ProtocolConflict"));
    assert_eq!(made.listener("young", "web", "Conflicted"), pair("True", "ProtocolConflict"));
    assert_eq!(made.listener("young", "other", "Accepted"), pair("True", "Accepted"));
    assert!(!made.text().contains("listen 8443;"), "{}", made.text());
}

fn secret(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "default" },
        "stringData": { "tls.crt": CERTIFICATE, "tls.key": KEY } })
}

/// Adds a Gateway with a listener at 443 whose clients show certificates of the authorities of a ConfigMap.
fn verifying(world: &mut World, name: &str, age: u32, host: &str, map: &str) {
    world.add(secret(name));
    let validation = json!({ "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": map }] });
    world.add(gateway(
        name,
        age,
        json!({ "gatewayClassName": "forebay", "listeners": [listener(("tls", "HTTPS", 443, host), name)],
        "tls": { "frontend": { "default": { "validation": validation } } } }),
    ));
}

#[test]
fn a_younger_gateway_does_not_weaken_the_demands_on_clients() {
    let mut world = World::new();
    verifying(&mut world, "strict", 9, "*.test", "web");
    world.add(secret("lax"));
    world.gateway("lax", 5, &[("tls", "HTTPS", 443, "*.test")]);
    world.route("ours", 8, &["strict"], &["a.test"], "/");
    world.route("theirs", 7, &["lax"], &["b.test", "a.test"], "/theirs");
    let made = world.made();
    assert_eq!(made.listener("lax", "tls", "Accepted"), pair("False", "HostnameConflict"));
    assert_eq!(made.named("b.test"), [""; 0]);
    let servers = made.named("a.test");
    assert_eq!(servers.len(), 1);
    assert!(
        servers[0].contains("ssl_verify_client on;") && !servers[0].contains("/theirs"),
        "{}",
        servers[0]
    );
    // The same while the authorities cannot be read: then nobody serves the host.
    world.objects.delete(crate::Kind::ConfigMap, &Key::new("default", "web"));
    let made = world.made();
    assert_eq!(made.listener("lax", "tls", "Accepted"), pair("False", "HostnameConflict"));
    assert_eq!((made.named("a.test"), made.named("b.test")), (vec![], vec![]));
}

#[test]
fn a_listener_that_cannot_serve_keeps_its_host() {
    let mut world = World::new();
    verifying(&mut world, "strict", 9, "secret.test", "missing");
    world.add(secret("lax"));
    world.gateway("lax", 5, &[("tls", "HTTPS", 443, "*.test")]);
    world.route("a", 8, &["strict", "lax"], &["secret.test"], "/");
    let made = world.made();
    assert_eq!(made.named("secret.test"), [""; 0], "{}", made.text());
    assert_eq!(made.named("*.test").len(), 1);
}

#[test]
fn gateways_with_the_same_demands_share_a_host() {
    let mut world = World::new();
    verifying(&mut world, "old", 9, "*.test", "web");
    verifying(&mut world, "young", 5, "*.test", "web");
    world.route("a", 8, &["young"], &["a.test"], "/");
    world.route("b", 7, &["old"], &["b.test"], "/");
    let made = world.made();
    let server = |name: &str| made.named(name).pop().unwrap_or_else(|| panic!("{}", made.text()));
    assert!(server("a.test").contains("ssl_certificate secrets/default_young"), "{}", server("a.test"));
    assert!(server("b.test").contains("ssl_certificate secrets/default_old"), "{}", server("b.test"));
    // One `map` for the port, and each host once in it.
    assert_eq!(made.text().matches("map $ssl_server_name").count(), 1);
    assert_eq!(made.text().matches("*.test 0;").count(), 1, "{}", made.text());
}

#[test]
fn ingresses_keep_their_default_server() {
    let mut world = World::new();
    world.ingress("shop", Some("shop.test"));
    world.gateway("edge", 9, &[("http", "HTTP", 80, "")]);
    world.route("a", 8, &["edge"], &["a.test", "shop.test"], "/");
    let made = world.made();
    assert!(!made.text().contains("default_server"), "{}", made.text());
    assert!(!made.text().contains("server_name ~^;"), "no route has all hosts");
    assert_eq!((made.named("a.test").len(), made.named("shop.test").len()), (1, 0), "{}", made.text());
    let (holds, reason, text) = made.route("a");
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "Accepted"));
    assert!(text.contains("shop.test") && !text.contains("a.test,"), "{text}");
    // A route for all hosts is behind all names.
    world.route("all", 7, &["edge"], &[], "/");
    let made = world.made();
    assert_eq!(made.named("~^").len(), 1, "{}", made.text());
    assert!(!made.text().contains("default_server"));
    // An Ingress for all hosts keeps them.
    world.ingress("rest", None);
    let made = world.made();
    assert_eq!(made.named("~^").len(), 0, "{}", made.text());
    let (holds, reason, _) = made.route("all");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "HostnameConflict"));
    // When the Ingresses are gone, the Gateway gets their hosts.
    world.objects.delete(crate::Kind::Ingress, &Key::new("default", "rest"));
    world.objects.delete(crate::Kind::Ingress, &Key::new("default", "shop"));
    let made = world.made();
    assert_eq!((made.named("shop.test").len(), made.named("~^").len()), (1, 1), "{}", made.text());
    assert_eq!(made.route("a").2, "");
}

#[test]
fn ports_of_ingresses_have_their_protocol() {
    let mut world = World::new();
    world
        .options
        .http
        .push(forebay_conf::Node::new("server").block(vec![forebay_conf::Node::new("listen").arg("10254")]));
    world.gateway(
        "edge",
        9,
        &[
            ("a", "HTTP", 443, ""),
            ("b", "HTTPS", 80, ""),
            ("c", "HTTP", 10254, ""),
            ("d", "HTTP", 9000, ""),
            ("e", "HTTP", 81, ""),
        ],
    );
    world.add(secret("edge"));
    world.options.tcp_services = Some(Key::new("default", "tcp"));
    world.add(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "tcp", "namespace": "default" },
        "data": { "9000": "default/web:80" } }));
    let made = world.made();
    for name in ["a", "b", "c", "d"] {
        assert_eq!(made.listener("edge", name, "Accepted"), pair("False", "PortUnavailable"), "{name}");
        assert_eq!(made.listener("edge", name, "Conflicted"), pair("False", "NoConflicts"), "{name}");
    }
    assert_eq!(made.listener("edge", "e", "Programmed"), pair("True", "Programmed"));
    assert_eq!(made.servers().len(), 1, "{}", made.text());
}

#[test]
fn gateways_listen_as_ingresses_do() {
    let mut world = World::new();
    world.options.ipv6 = true;
    world.options.config_map = Some(Key::new("default", "config"));
    world.options.enable_ssl_passthrough = true;
    world.add(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "config", "namespace": "default" },
        "data": { "use-proxy-protocol": "true" } }));
    world.add(secret("edge"));
    world.gateway(
        "edge",
        9,
        &[("http", "HTTP", 80, "a.test"), ("tls", "HTTPS", 443, "b.test"), ("more", "HTTP", 8080, "c.test")],
    );
    let made = world.made();
    let listens = |name: &str| -> Vec<String> {
        let server = made.named(name).pop().expect("a server");
        server.lines().filter_map(|l| l.trim().strip_prefix("listen ")).map(str::to_owned).collect()
    };
    assert_eq!(listens("a.test"), ["80 proxy_protocol;", "[::]:80 proxy_protocol;"]);
    assert_eq!(listens("b.test"), ["127.0.0.1:442 ssl proxy_protocol;"]);
    assert_eq!(listens("c.test"), ["8080 proxy_protocol;", "[::]:8080 proxy_protocol;"]);
}

#[test]
fn gateways_with_addresses_do_not_share() {
    let mut world = World::new();
    world.options.gateway.addresses =
        vec!["192.0.2.1".parse().expect("an address"), "192.0.2.2".parse().expect("an address")];
    world.ingress("shop", Some("shop.test"));
    world.gateway("old", 9, &[("http", "HTTP", 80, "")]);
    world.gateway("young", 5, &[("web", "HTTP", 80, "")]);
    world.route("a", 8, &["young"], &["shop.test"], "/");
    let made = world.made();
    assert_eq!(made.text().matches("default_server").count(), 2, "{}", made.text());
    assert_eq!(made.named("shop.test").len(), 1);
}

/// Adds a route of another kind to Services with weights.
fn stream_route(
    world: &mut World,
    kind: &str,
    name: &str,
    age: u32,
    parent: &str,
    hosts: &[&str],
    services: &[(&str, u32)],
) {
    let backends: Vec<Value> =
        services.iter().map(|(name, weight)| json!({ "name": name, "port": 80, "weight": weight })).collect();
    let mut spec = json!({ "parentRefs": [{ "name": parent }], "rules": [{ "backendRefs": backends }] });
    if !hosts.is_empty() {
        spec["hostnames"] = json!(hosts);
    }
    world.add(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": { "name": name, "namespace": "default", "creationTimestamp": created(age) }, "spec": spec,
    }));
}

fn tls_listener(name: &str, port: u16, host: &str, mode: &str) -> Value {
    let mut listener = listener((name, "TLS", port, host), "");
    listener["tls"] = json!({ "mode": mode });
    if mode == "Terminate" {
        listener["tls"]["certificateRefs"] = json!([{ "name": "web" }]);
    }
    listener
}

impl Made {
    pub(super) fn stream(&self) -> String {
        let found = self.0.files.iter().find(|(path, _)| path.to_str() == Some("gateways/stream.conf"));
        found.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    }
}

#[test]
fn the_oldest_route_has_a_tcp_port() {
    let mut world = World::new();
    world.gateway("edge", 9, &[("tcp", "TCP", 9000, "ignored.test"), ("udp", "UDP", 9000, "")]);
    world.gateway("young", 5, &[("tcp", "TCP", 9000, ""), ("http", "HTTP", 9000, "")]);
    stream_route(&mut world, "TCPRoute", "young", 3, "edge", &[], &[("api", 1)]);
    stream_route(&mut world, "TCPRoute", "old", 4, "edge", &[], &[("web", 3), ("missing", 1), ("api", 0)]);
    world.route("http", 8, &["edge"], &[], "/");
    let made = world.made();
    let text = made.stream();
    assert_eq!(text.matches("listen 9000;").count(), 1, "{text}");
    assert!(text.contains("75.00% gateway_default_web_80;") && text.contains("* gateway_none;"), "{text}");
    assert!(!text.contains("gateway_default_api_80"), "{text}");
    assert!(text.contains("peers external max_fails=0;"), "{text}");
    assert!(made.0.groups.contains_key("gateway_default_web_80"));
    let main = String::from_utf8_lossy(&made.0.files[0].1).into_owned();
    assert!(main.contains("include gateways/stream.conf;"), "{main}");
    let listeners = made.status(GatewayKind::Gateway, "edge")["listeners"].clone();
    assert_eq!(
        (&listeners[0]["attachedRoutes"], &listeners[0]["supportedKinds"][0]["kind"]),
        (&json!(2), &json!("TCPRoute"))
    );
    assert_eq!(made.listener("edge", "udp", "Accepted"), pair("True", "Accepted"));
    // The listeners of the younger one conflict with each other.
    assert_eq!(made.listener("young", "tcp", "Accepted"), pair("False", "ProtocolConflict"));
    let status = made.status(GatewayKind::TcpRoute, "old");
    assert_eq!(of(&status["parents"][0]["conditions"], "ResolvedRefs"), pair("False", "BackendNotFound"));
    assert_eq!(made.route("http").1, "NotAllowedByListeners");
    // Ports of a ConfigMap and of Ingresses are not free.
    world.gateway("late", 2, &[("a", "TCP", 9000, ""), ("b", "TCP", 80, ""), ("c", "UDP", 9001, "")]);
    world.options.udp_services = Some(Key::new("default", "udp"));
    world.add(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "udp", "namespace": "default" },
        "data": { "9001": "default/web:80" } }));
    let made = world.made();
    for name in ["a", "b", "c"] {
        assert_eq!(made.listener("late", name, "Accepted"), pair("False", "PortUnavailable"), "{name}");
    }
}

#[test]
fn a_change_of_endpoints_changes_no_file_of_the_stream_block() {
    let mut world = World::new();
    world.gateway("edge", 9, &[("tcp", "TCP", 9000, "")]);
    stream_route(&mut world, "TCPRoute", "a", 4, "edge", &[], &[("web", 1)]);
    let before = world.made();
    world.add(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{ "port": 8080 }],
        "metadata": { "name": "web-1", "namespace": "default", "labels": { "kubernetes.io/service-name": "web" } },
        "endpoints": [{ "addresses": ["10.0.0.9"] }],
    }));
    let after = world.made();
    assert_eq!(before.stream(), after.stream());
    assert_eq!(before.0.groups["gateway_default_web_80"].len(), 0);
    assert_eq!(after.0.groups["gateway_default_web_80"][0].addr.to_string(), "10.0.0.9:8080");
}

#[test]
fn tls_passes_by_name() {
    let mut world = World::new();
    let listeners = json!([
        tls_listener("exact", 9443, "a.x.test", "Passthrough"),
        tls_listener("wide", 9443, "*.x.test", "Passthrough"),
        tls_listener("all", 9443, "", "Passthrough"),
    ]);
    world.add(gateway("edge", 9, json!({ "gatewayClassName": "forebay", "listeners": listeners })));
    stream_route(&mut world, "TLSRoute", "one", 5, "edge", &["*.x.test", "b.y.test"], &[("web", 1)]);
    stream_route(&mut world, "TLSRoute", "two", 4, "edge", &["c.x.test", "b.y.test"], &[("api", 1)]);
    let made = world.made();
    let text = made.stream();
    for line in [
        "a.x.test gateway_default_web_80;",
        "*.x.test gateway_default_web_80;",
        "c.x.test gateway_default_api_80;",
        "b.y.test gateway_default_web_80;",
        "default gateway_none;",
        "ssl_preread on;",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(
        made.listener("edge", "exact", "Programmed"),
        pair("True", "Programmed"),
        "it needs no certificate"
    );
}

#[test]
fn tls_ends_with_the_certificate_of_the_listener() {
    let mut world = World::new();
    let listeners = json!([
        tls_listener("end", 9443, "*.x.test", "Terminate"),
        tls_listener("pass", 9444, "", "Passthrough")
    ]);
    world.add(gateway("edge", 9, json!({ "gatewayClassName": "forebay", "listeners": listeners })));
    let mixed = json!([
        tls_listener("end", 9445, "a.test", "Terminate"),
        tls_listener("pass", 9445, "b.test", "Passthrough")
    ]);
    world.add(gateway("mixed", 8, json!({ "gatewayClassName": "forebay", "listeners": mixed })));
    let younger = json!([tls_listener("pass", 9443, "b.test", "Passthrough")]);
    world.add(gateway("younger", 7, json!({ "gatewayClassName": "forebay", "listeners": younger })));
    stream_route(&mut world, "TLSRoute", "one", 5, "edge", &["a.x.test"], &[("web", 1)]);
    let made = world.made();
    let text = made.stream();
    let server = text.split("\nserver {").find(|s| s.contains("server_name a.x.test;")).expect("a server");
    assert!(
        server.contains("listen 9443 ssl;") && server.contains("ssl_certificate secrets/default_web.crt;"),
        "{text}"
    );
    assert_eq!(
        text.matches("ssl_reject_handshake on;").count(),
        3,
        "the hosts of listeners, and all others: {text}"
    );
    // TLS may end and pass at one port.
    for (gateway, listener) in [("mixed", "end"), ("mixed", "pass"), ("younger", "pass")] {
        assert_eq!(made.listener(gateway, listener, "Accepted"), pair("True", "Accepted"), "{gateway}");
    }
}

#[test]
fn backends_are_known_by_their_alternative_names() {
    let policy = |names: Value| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy", "metadata": { "name": "web", "namespace": "default" },
            "spec": {
                "targetRefs": [{ "group": "", "kind": "Service", "name": "web" }],
                "validation": { "hostname": "web.test", "wellKnownCACertificates": "System", "subjectAltNames": names },
            },
        })
    };
    let mut world = World::new();
    world.gateway("edge", 9, &[("http", "HTTP", 8080, "")]);
    world.route("a", 8, &["edge"], &["a.test"], "/");
    world.add(policy(json!([
        { "type": "URI", "uri": "spiffe://x/y" },
        { "type": "Hostname", "hostname": "api.test" },
    ])));
    let text = world.made().text();
    assert!(text.contains("proxy_ssl_verify_names spiffe://x/y api.test;"), "{text}");
    assert!(text.contains("proxy_ssl_name web.test;") && text.contains("proxy_pass https://"), "{text}");
    // Nothing goes to a backend whose names cannot be read.
    world.add(policy(json!([{ "type": "Hostname", "hostname": "api.test" }, { "type": "Other" }])));
    let text = world.made().text();
    assert!(!text.contains("proxy_pass") && text.contains("return 500;"), "{text}");
    // Copies of requests are encrypted as the requests are.
    world.add(policy(json!([])));
    let filter =
        json!({ "type": "RequestMirror", "requestMirror": { "backendRef": { "name": "web", "port": 80 } } });
    world.add(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": { "name": "a", "namespace": "default" },
        "spec": { "parentRefs": [{ "name": "edge" }], "rules": [{ "filters": [filter], "backendRefs": [{ "name": "api", "port": 80 }] }] },
    }));
    let text = world.made().text();
    assert!(text.contains("proxy_pass https://default_web_80$request_uri;"), "{text}");
}
