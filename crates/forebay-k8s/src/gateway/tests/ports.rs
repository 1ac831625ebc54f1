//! Ports that another program has, and ports of TLS.

use super::*;

#[test]
fn a_port_of_another_program_is_set_aside() {
    let mut world = World::new();
    world.gateway("edge", 9, &[("a", "HTTP", 8080, ""), ("b", "HTTP", 8081, "")]);
    world.route("a", 5, &["edge"], &["a.test"], "/");
    let place = |text: &str| (false, text.parse().expect("an address"));
    world.objects.gateway.set_taken(place("0.0.0.0:8080"), Some("bind() failed".into()));
    world.objects.gateway.set_taken(place("192.0.2.1:8081"), Some("of another address".into()));
    let made = world.made();
    assert_eq!(made.listener("edge", "a", "Accepted"), pair("False", "PortUnavailable"));
    assert_eq!(made.listener("edge", "b", "Accepted"), pair("True", "Accepted"));
    assert!(!made.text().contains("listen 8080") && made.text().contains("listen 8081"), "{}", made.text());
    world.objects.gateway.set_taken(place("0.0.0.0:8080"), None);
    let made = world.made();
    assert_eq!(made.listener("edge", "a", "Accepted"), pair("True", "Accepted"));
    assert!(made.text().contains("listen 8080"));
}

fn stream(made: &Made) -> String {
    let found = made.0.files.iter().find(|(path, _)| path.to_str() == Some("gateways/stream.conf"));
    found.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}

fn stream_route(kind: &str, name: &str, section: &str, hosts: &[&str], backends: Value) -> Value {
    let mut spec = json!({ "parentRefs": [{ "name": "edge", "sectionName": section }], "rules": [{ "backendRefs": backends }] });
    if !hosts.is_empty() {
        spec["hostnames"] = json!(hosts);
    }
    json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": { "name": name, "namespace": "default", "creationTimestamp": created(5) }, "spec": spec })
}

fn tls_gateway(world: &mut World) {
    let end = json!({ "name": "end", "protocol": "TLS", "port": 8443, "hostname": "end.test", "tls": { "certificateRefs": [{ "name": "web" }] } });
    let pass = json!({ "name": "pass", "protocol": "TLS", "port": 8443, "hostname": "pass.test", "tls": { "mode": "Passthrough" } });
    let tcp = json!({ "name": "tcp", "protocol": "TCP", "port": 9000 });
    world.add(gateway("edge", 9, json!({ "gatewayClassName": "forebay", "listeners": [end, pass, tcp] })));
}

#[test]
fn tls_ends_and_passes_at_one_port() {
    let mut world = World::new();
    tls_gateway(&mut world);
    let backend = json!([{ "name": "web", "port": 80 }]);
    world.add(stream_route("TLSRoute", "end", "end", &["end.test"], backend.clone()));
    world.add(stream_route("TLSRoute", "pass", "pass", &["pass.test"], backend));
    let made = world.made();
    for name in ["end", "pass"] {
        assert_eq!(made.listener("edge", name, "Accepted"), pair("True", "Accepted"), "{name}");
    }
    let text = stream(&made);
    let server = |host: &str| {
        let all = text.split("\nserver {").find(|s| s.contains(&format!("server_name {host};")));
        all.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert!(
        server("pass.test").contains("ssl_passthrough on;")
            && server("end.test").contains("ssl_certificate "),
        "{text}"
    );
    assert!(!server("end.test").contains("ssl_passthrough"), "{text}");
}

fn policy(service: &str, hostname: &str) -> Value {
    json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": { "name": format!("tls-{service}"), "namespace": "default" },
        "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": service }],
            "validation": { "hostname": hostname, "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "web" }] } } })
}

#[test]
fn policies_hold_where_tls_to_backends_is_ours() {
    let mut world = World::new();
    tls_gateway(&mut world);
    world.add(policy("web", "web.internal"));
    let backend = json!([{ "name": "web", "port": 80 }]);
    world.add(stream_route("TLSRoute", "end", "end", &["end.test"], backend.clone()));
    world.add(stream_route("TLSRoute", "pass", "pass", &["pass.test"], backend.clone()));
    world.add(stream_route("TCPRoute", "tcp", "tcp", &[], backend));
    let made = world.made();
    let text = stream(&made);
    assert_eq!(text.matches("proxy_ssl on;").count(), 2, "{text}");
    assert_eq!(text.matches("proxy_ssl_name web.internal;").count(), 2, "{text}");
    assert_eq!(text.matches("proxy_ssl_verify on;").count(), 2, "{text}");
    assert_eq!(made.condition(GatewayKind::BackendTlsPolicy, "tls-web", "Accepted").0, "True");
    // Two policies in one rule cannot both hold.
    world.add(policy("api", "api.internal"));
    world.add(stream_route(
        "TCPRoute",
        "tcp",
        "tcp",
        &[],
        json!([{ "name": "web", "port": 80 }, { "name": "api", "port": 80 }]),
    ));
    let made = world.made();
    assert!(stream(&made).contains("proxy_pass gateway_none;"), "{}", stream(&made));
    assert_eq!(made.condition(GatewayKind::TcpRoute, "tcp", "Accepted").1, "UnsupportedValue");
}

#[test]
fn a_policy_without_authorities_closes_streams() {
    let mut world = World::new();
    tls_gateway(&mut world);
    world.add(policy("web", "web.internal"));
    world.objects.delete(crate::Kind::ConfigMap, &Key::new("default", "web"));
    world.add(stream_route("TCPRoute", "tcp", "tcp", &[], json!([{ "name": "web", "port": 80 }])));
    let text = stream(&world.made());
    assert!(text.contains("proxy_pass gateway_none;") && !text.contains("proxy_ssl on"), "{text}");
}

#[test]
fn authorities_of_the_cluster() {
    let mut world = World::with_edge();
    let mut of_cluster = policy("web", "web.internal");
    of_cluster["spec"]["validation"]["caCertificateRefs"] =
        json!([{ "group": "certificates.k8s.io", "kind": "ClusterTrustBundle", "name": "root" }]);
    world.add(of_cluster);
    world.route("a", 5, &["edge"], &["a.test"], "/");
    let made = world.made();
    assert!(made.server("a.test").contains("return 500;"));
    assert_eq!(
        made.condition(GatewayKind::BackendTlsPolicy, "tls-web", "ResolvedRefs").1,
        "InvalidCACertificateRef"
    );
    world.add(json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle", "metadata": { "name": "root" },
        "spec": { "trustBundle": CERTIFICATE } }));
    let made = world.made();
    assert!(made.server("a.test").contains("proxy_ssl_trusted_certificate gateways/authorities-"));
    assert_eq!(made.condition(GatewayKind::BackendTlsPolicy, "tls-web", "ResolvedRefs").0, "True");
}
