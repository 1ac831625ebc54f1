//! Tests of whole translations.

use super::*;
use crate::objects::{Manifests, Object};
use crate::selector::Selector;

mod judging;
mod names;

/// Reads manifests into a set.
pub(crate) fn objects(text: &str) -> Objects {
    let manifests = Manifests::read(text);
    assert_eq!(manifests.skipped, [], "{text}");
    let mut objects = Objects::new();
    for document in manifests.documents {
        objects.apply(document.object);
    }
    objects
}

/// Returns a file's text.
pub(crate) fn file(made: &Translation, path: &str) -> String {
    let found = made.files.iter().find(|(p, _)| p.to_str() == Some(path));
    String::from_utf8_lossy(&found.unwrap_or_else(|| panic!("no file {path}")).1).into_owned()
}

fn options() -> Options {
    Options { watch_ingress_without_class: true, ..Options::default() }
}

const SHOP: &str = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: a, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  rules:
  - host: shop.example.com
    http:
      paths:
      - {path: /api, pathType: Prefix, backend: {service: {name: api, port: {number: 80}}}}
  - host: other.example.com
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: api, port: {number: 80}}}}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: api-1, namespace: shop, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2], conditions: {ready: false}}]
"#;

fn slice(addresses: &str) -> Object {
    let text = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: api-1, namespace: shop, labels: \
         {{kubernetes.io/service-name: api}}}}\nports: [{{port: 8080}}]\nendpoints: [{{addresses: [{addresses}]}}]\n"
    );
    Manifests::read(&text).documents.remove(0).object
}

#[test]
fn endpoints_change_groups_only() {
    let mut objects = objects(SHOP);
    let mut translator = Translator::new();
    let before = translator.translate(&objects, &options());
    let group = "shop_api_80";
    let addresses =
        |made: &Translation| made.groups[group].iter().map(|e| e.addr.to_string()).collect::<Vec<_>>();
    assert_eq!(addresses(&before), ["10.0.0.1:8080"]);
    objects.apply(slice("10.0.0.9"));
    let after = translator.translate(&objects, &options());
    assert_eq!(addresses(&after), ["10.0.0.9:8080"]);
    assert_eq!(before.files.len(), after.files.len());
    for (a, b) in before.files.iter().zip(&after.files) {
        assert!(Arc::ptr_eq(&a.1, &b.1), "{} is the same file", a.0.display());
    }
}

#[test]
fn the_running_process_gets_the_endpoints_of_tcp_services() {
    let mut objects = objects(SHOP);
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tcp, namespace: shop}\ndata: {\"9000\": \"shop/api:80\"}\n";
    objects.apply(Manifests::read(map).documents.remove(0).object);
    let options = Options { tcp_services: Some(Key::new("shop", "tcp")), ..options() };
    let made = Translator::new().translate(&objects, &options);
    // Without this line the group takes no endpoints from outside.
    assert!(file(&made, "forebay.conf").contains("peers external max_fails=0;"));
    assert_eq!(made.groups["tcp_shop_api_80"][0].addr.to_string(), "10.0.0.1:8080");
}

#[test]
fn one_host_changes_one_file() {
    let mut objects = objects(SHOP);
    let more = SHOP.replace("name: a,", "name: b,").replace("shop.example.com", "third.example.com");
    for document in Manifests::read(&more).documents {
        objects.apply(document.object);
    }
    let mut translator = Translator::new();
    let before = translator.translate(&objects, &options());
    let changed = more.replace("path: /api", "path: /new").replace("other.example.com", "third.example.com");
    objects.apply(Manifests::read(&changed).documents.remove(0).object);
    let after = translator.translate(&objects, &options());
    let same = |path: &str| {
        let of = |made: &Translation| {
            made.files.iter().find(|(p, _)| p.to_str() == Some(path)).expect(path).1.clone()
        };
        Arc::ptr_eq(&of(&before), &of(&after))
    };
    assert!(same("groups.conf") && same("forebay.conf") && same("hosts/shop.example.com.conf"));
    assert!(!same("hosts/third.example.com.conf"));
    assert!(file(&after, "hosts/third.example.com.conf").contains("location /new/ {"));
}

#[test]
fn the_oldest_ingress_has_a_path() {
    let mut objects = objects(SHOP);
    let rival =
        SHOP.replace("name: a, namespace: shop", "name: z, namespace: evil").replace("2026-01", "2025-01");
    objects.apply(Manifests::read(&rival).documents.remove(0).object);
    let made = Translator::new().translate(&objects, &options());
    let text = file(&made, "hosts/shop.example.com.conf");
    assert!(text.contains("http://evil_api_80"), "{text} {:?}", made.problems);
    let conflict = made
        .problems
        .iter()
        .find(|p| p.reason == "PathConflict" && p.field.contains("rules[0]"))
        .expect("a problem");
    assert_eq!(
        (conflict.key.to_string().as_str(), conflict.field.as_str()),
        ("shop/a", "spec.rules[0].http.paths[0].path")
    );
    assert!(conflict.text.contains("evil/z"), "{}", conflict.text);
}

#[test]
fn endpoints_are_found_without_a_translation() {
    let mut objects = objects(SHOP);
    let map = |data: &str| {
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tcp, namespace: shop}\ndata: ";
        Manifests::read(&format!("{text}{data}\n")).documents.remove(0).object
    };
    let with_tcp = Options { tcp_services: Some(Key::new("shop", "tcp")), ..options() };
    let mut translator = Translator::new();
    assert!(translator.endpoints(&objects, &options()).is_none(), "there has been no translation");
    translator.translate(&objects, &options());
    assert_eq!(translator.endpoints(&objects, &options()), Some(Vec::new()));
    let addresses = |groups: Option<Vec<Group>>| {
        let one = |(name, servers): &Group| format!("{name} {}", servers[0].addr);
        groups.map(|groups| groups.iter().map(one).collect::<Vec<_>>())
    };
    // What else has changed waits for the next translation, which has these endpoints, too.
    objects.apply(slice("10.0.0.9"));
    let renamed = SHOP.replace("other.example.com", "new.example.com");
    objects.apply(Manifests::read(&renamed).documents.remove(0).object);
    let found = addresses(translator.endpoints(&objects, &options())).expect("endpoints");
    assert_eq!(found, ["shop_api_80 10.0.0.9:8080"]);
    assert_eq!(translator.endpoints(&objects, &options()), Some(Vec::new()));
    let made = translator.translate(&objects, &options());
    assert_eq!(made.groups["shop_api_80"][0].addr.to_string(), "10.0.0.9:8080");
    assert!(made.files.iter().any(|(path, _)| path.ends_with("new.example.com.conf")));
    // Services of the stream block.
    assert!(translator.endpoints(&objects, &with_tcp).is_none(), "other options");
    objects.apply(map("{}"));
    translator.translate(&objects, &with_tcp);
    objects.apply(map("{\"9000\": \"shop/api:80\"}"));
    translator.translate(&objects, &with_tcp);
    objects.apply(slice("10.0.0.8"));
    let found = addresses(translator.endpoints(&objects, &with_tcp)).expect("endpoints");
    assert_eq!(found, ["shop_api_80 10.0.0.8:8080", "tcp_shop_api_80 10.0.0.8:8080"]);
}

#[test]
fn hosts_come_and_go_without_a_new_main_file() {
    let mut objects = objects(SHOP);
    let mut translator = Translator::new();
    let before = translator.translate(&objects, &options());
    let more = SHOP.replace("name: a,", "name: b,").replace("shop.example.com", "third.example.com");
    objects.apply(Manifests::read(&more).documents.remove(0).object);
    let with = translator.translate(&objects, &options());
    objects.delete(Kind::Ingress, &Key::new("shop", "b"));
    let after = translator.translate(&objects, &options());
    assert_eq!((before.files.len() + 1, before.files.len()), (with.files.len(), after.files.len()));
    let main = |made: &Translation| {
        made.files.iter().find(|(path, _)| path.to_str() == Some("forebay.conf")).expect("main").1.clone()
    };
    assert!(Arc::ptr_eq(&main(&before), &main(&with)) && Arc::ptr_eq(&main(&with), &main(&after)));
}

#[test]
fn statuses_change_nothing() {
    use crate::gateway::GatewayKind;
    let ingress = |version: &str, path: &str| {
        serde_json::json!({
            "metadata": {"name": "a", "namespace": "shop", "resourceVersion": version, "managedFields": [{"time": version}]},
            "spec": {"rules": [{"host": "a.test", "http": {"paths": [{"path": path, "pathType": "Prefix"}]}}]},
            "status": {"loadBalancer": {"ingress": [{"ip": version}]}},
        })
    };
    let mut objects = Objects::new();
    let mut apply =
        |version, path| objects.apply(Object::of(Kind::Ingress, ingress(version, path)).expect("an Ingress"));
    assert_eq!([apply("1", "/"), apply("2", "/"), apply("3", "/new")], [true, false, true]);
    let route = |version: &str, host: &str| {
        serde_json::json!({
            "metadata": {"name": "a", "namespace": "shop", "resourceVersion": version},
            "spec": {"hostnames": [host]},
            "status": {"parents": [{"controllerName": version}]},
        })
    };
    let (kind, key) = (GatewayKind::HttpRoute, Key::new("shop", "a"));
    let before = objects.gateway.version;
    let mut apply =
        |version, host| objects.gateway.apply(kind, key.clone(), route(version, host)).expect("a route");
    assert_eq!([apply("1", "a.test"), apply("2", "a.test"), apply("3", "b.test")], [true, false, true]);
    assert_eq!(objects.gateway.version, before + 2);
}

#[test]
fn nobody_is_trusted_while_it_is_not_known_who_is() {
    for (key, value) in [("proxy-real-ip-cidr", "10.0.0.0/33"), ("forwarded-for-header", "a b")] {
        let map = format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c, namespace: shop}}\ndata: {{use-forwarded-headers: \"true\", {key}: \"{value}\"}}\n"
        );
        let options = Options { config_map: Some(Key::new("shop", "c")), ..options() };
        let made = Translator::new().translate(&objects(&format!("{SHOP}{map}")), &options);
        let main = file(&made, "forebay.conf");
        assert!(!main.contains("set_real_ip_from"), "{key}: {main}");
        let geo = main.split("$connection_trusted {").nth(1).and_then(|rest| rest.split('}').next());
        assert_eq!(geo.map(str::trim), Some("default 0;"), "{key}");
    }
}

/// Returns the text of all hosts' files.
fn hosts(made: &Translation) -> String {
    let hosts = made.files.iter().filter(|(path, _)| path.starts_with("hosts"));
    hosts.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()).collect()
}

#[test]
fn namespaces_are_selected_by_their_labels() {
    let options =
        Options { namespace_selector: Selector::parse("team=web").expect("a selector"), ..options() };
    let namespace = |labels: &str| {
        let text =
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}}}\n");
        Manifests::read(&text).documents.remove(0).object
    };
    let (mut objects, mut translator) = (objects(SHOP), Translator::new());
    // A namespace that is not known has no labels.
    assert_eq!(translator.translate(&objects, &options).accepted.len(), 0);
    for (labels, served) in [("team: web", 1), ("team: other", 0), ("team: web, stage: live", 1), ("", 0)] {
        objects.apply(namespace(labels));
        let made = translator.translate(&objects, &options);
        assert_eq!(made.accepted.len(), served, "{labels}");
        assert_eq!(hosts(&made).contains("server_name shop.example.com;"), served == 1, "{labels}");
    }
}

#[test]
fn nothing_is_served_for_all_hosts_unless_it_is_allowed() {
    let more = "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: all, namespace: shop}\nspec:\n\
        \x20 defaultBackend: {service: {name: api, port: {number: 80}}}\n\
        \x20 rules:\n  - http: {paths: [{path: /x, pathType: Prefix, backend: {service: {name: api, port: {number: 80}}}}]}\n";
    let objects = objects(&format!("{SHOP}{more}"));
    for disabled in [false, true] {
        let options = Options { disable_catch_all: disabled, ..options() };
        let made = Translator::new().translate(&objects, &options);
        let all = file(&made, "hosts/_.conf");
        assert_eq!(all.contains("proxy_pass"), !disabled, "{all}");
        let reasons: Vec<_> = made.problems.iter().map(|p| p.reason).collect();
        assert_eq!(reasons.contains(&"CatchAllDisabled"), disabled, "{reasons:?}");
        assert!(hosts(&made).contains("server_name shop.example.com;"));
    }
}

#[test]
fn endpoints_of_the_own_zone_are_preferred() {
    let zones = |hints: &[&str]| {
        let endpoint = |(n, zone): (usize, &&str)| match *zone {
            "" => format!("{{addresses: [10.0.0.{n}]}}"),
            zone => format!("{{addresses: [10.0.0.{n}], hints: {{forZones: [{{name: {zone}}}]}}}}"),
        };
        let endpoints: Vec<String> = hints.iter().enumerate().map(endpoint).collect();
        let text = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: api-1, namespace: shop, labels: \
             {{kubernetes.io/service-name: api}}}}\nports: [{{port: 8080}}]\nendpoints: [{}]\n",
            endpoints.join(", ")
        );
        Manifests::read(&text).documents.remove(0).object
    };
    let (mut objects, mut translator) = (objects(SHOP), Translator::new());
    for (hints, zone, expected) in [
        (&["a", "b", "a"][..], "a", &[0, 2][..]),
        (&["a", "b"], "", &[0, 1]),
        // No endpoint is for the zone, or one has no hint: all are used.
        (&["a", "b"], "c", &[0, 1]),
        (&["a", ""], "a", &[0, 1]),
    ] {
        objects.apply(zones(hints));
        let options = Options { topology_zone: zone.to_owned(), ..options() };
        let made = translator.translate(&objects, &options);
        let found: Vec<String> = made.groups["shop_api_80"].iter().map(|e| e.addr.to_string()).collect();
        let expected: Vec<String> = expected.iter().map(|n| format!("10.0.0.{n}:8080")).collect();
        assert_eq!(found, expected, "{hints:?} {zone}");
    }
}

#[test]
fn http3_listens_beside_tls() {
    let config = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: edge}\ndata: {use-http3: \"true\"}\n";
    let objects = objects(&format!("{SHOP}{config}"));
    let certificate = crate::options::Certificate { chain: Arc::from(&b"c"[..]), key: Arc::from(&b"k"[..]) };
    let options = Options {
        config_map: Some(Key::new("edge", "c")),
        made_certificate: Some(certificate),
        https_port: 8443,
        ..options()
    };
    let made = Translator::new().translate(&objects, &options);
    assert!(hosts(&made).contains("listen 8443 quic;"), "{}", hosts(&made));
    assert!(hosts(&made).contains("listen 8443 quic default_server;"), "{}", hosts(&made));
    let main = file(&made, MAIN);
    assert!(
        main.contains("http3_alt_svc \"h3=\\\":443\\\"; ma=86400\";")
            || main.contains("http3_alt_svc 'h3=\":443\"; ma=86400';"),
        "{main}"
    );
}

#[test]
fn passthrough_takes_no_session_of_others() {
    let ingress = |name: &str, namespace: &str, host: &str, passes: bool| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: \"{name}\", namespace: {namespace}, creationTimestamp: \
             \"2026-01-0{name}T00:00:00Z\", annotations: {{nginx.ingress.kubernetes.io/ssl-passthrough: \"{passes}\"}}}}\nspec:\n  rules:\n  \
             - {{host: \"{host}\", http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: s, port: {{number: 443}}}}}}}}]}}}}\n---\n"
        )
    };
    let all = [
        ingress("1", "a", "*.example.com", true),
        ingress("2", "b", "b.example.com", false),
        // It is younger, and of another namespace.
        ingress("3", "c", "b.example.com", true),
        ingress("4", "b", "own.example.com", false),
        ingress("5", "b", "own.example.com", true),
        ingress("6", "b", "a.b.example.com", false),
    ];
    let options = Options { enable_ssl_passthrough: true, ..options() };
    let made = Translator::new().translate(&objects(&all.concat()), &options);
    let main = file(&made, MAIN);
    let ways = main.split("map $ssl_preread_server_name $tls_way {").nth(1).and_then(|t| t.split('}').next());
    let ways: Vec<&str> = ways.expect("the map").lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    assert_eq!(
        ways,
        [
            "default tls_here;",
            "hostnames;",
            r#""~*^[^.]+\\.example\\.com$" tls_through;"#,
            "own.example.com tls_through;",
            "b.example.com tls_here;"
        ]
    );
    let told: Vec<_> = made.problems.iter().filter(|p| p.reason == "HostConflict").map(|p| &p.key).collect();
    assert_eq!(told, [&Key::new("c", "3")]);
}

/// A snippet of the stream block that fails may have been one that keeps clients out.
#[test]
fn ports_of_services_are_closed_by_snippets_that_fail() {
    let map = |name: &str, data: &str| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: shop}}\ndata: {data}\n"
        )
    };
    for (snippet, closed) in [("deny nobody here;", true), ("nonsense;", false), ("deny 10.0.0.1;", false)] {
        let text = format!(
            "{SHOP}{}{}{}",
            map("tcp", r#"{"9000": "shop/api:80"}"#),
            map("udp", r#"{"9001": "shop/api:80"}"#),
            map("config", &format!("{{stream-snippet: \"{snippet}\"}}"))
        );
        let key = |name: &str| Some(Key::new("shop", name));
        let options = Options {
            config_map: key("config"),
            tcp_services: key("tcp"),
            udp_services: key("udp"),
            enable_ssl_passthrough: true,
            ..options()
        };
        let main = file(&Translator::new().translate(&objects(&text), &options), MAIN);
        // The two ports, and the sessions that pass.
        assert_eq!(main.matches("deny all;").count(), if closed { 3 } else { 0 }, "{snippet}: {main}");
    }
}
