//! Tests of the names of groups, zones, variables and files: what belongs to two has two names.

use super::judging::{ingress, judged};
use super::*;
use crate::groups::Spec;
use crate::judge::Judge;
use crate::objects::PortRef;

/// Names of namespaces, Services, Ingresses and ports that look alike when they stand together.
const ALIKE: [&str; 9] = ["a", "a-b", "a-b-c", "b", "b-c", "c", "gateway", "tcp", "limit"];
const PORTS: [&str; 7] = ["80", "a", "b-c", "conn", "rps", "rpm", "http"];

#[test]
fn names_that_look_alike_are_different() {
    let mut seen = BTreeMap::new();
    let mut note = |name: String, what: String| {
        if let Some(other) = seen.insert(name.clone(), what.clone()) {
            panic!("{name} is that of {other} and of {what}");
        }
    };
    for namespace in ALIKE {
        for name in ALIKE {
            for suffix in crate::groups::LIMIT_ZONES {
                note(format!("{namespace}_{name}_{suffix}"), format!("a limit {namespace}/{name}"));
            }
            for port in PORTS {
                let number = port.parse().ok();
                let port = PortRef { name: number.is_none().then(|| port.to_owned()), number };
                let plain = Spec { service: Key::new(namespace, name), port, ..Spec::default() };
                let hashed = Spec { service_upstream: true, ..plain.clone() };
                let renamed = Spec { renamed: true, ..plain.clone() };
                for spec in [plain, hashed, renamed] {
                    for start in ["", "gateway_", "tcp_", "tls_", "udp_"] {
                        note(format!("{start}{}", spec.name()), format!("{start:?} {spec:?}"));
                    }
                }
            }
        }
    }
}

#[test]
fn generated_names_give_way_to_those_of_the_operator() {
    let mut objects = objects(SHOP);
    let snippet = "upstream shop_web_80 { server 10.0.0.9; }\nlimit_req_zone $host zone=shop_h_rps:1m rate=1r/s;\nlimit_conn_zone $host \
                   zone=shop_api_80:1m;";
    let data = serde_json::json!({"http-snippet": snippet});
    let options = judged(&mut objects, "nothing", data);
    let annotations = serde_json::json!({"nginx.ingress.kubernetes.io/limit-rps": "5"});
    objects.apply(ingress("shop", "h", annotations));
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}\n";
    objects.apply(Manifests::read(service).documents.remove(0).object);
    let made = Translator::new().translate(&objects, &options);
    let (groups, host) = (file(&made, "groups.conf"), file(&made, "hosts/h.test.conf"));
    for plain in
        ["upstream shop_web_80 {", "upstream shop_api_80 {", "zone shop_web_80 ", "zone shop_api_80 "]
    {
        assert!(!groups.contains(plain), "{groups}");
    }
    assert!(
        groups.contains("upstream shop_web_80_") && host.contains("proxy_pass http://shop_web_80_"),
        "{groups} {host}"
    );
    assert!(host.contains("zone=shop_h_rps_") && !host.contains("zone=shop_h_rps:"), "{host}");
    assert!(
        made.groups.keys().all(|name| name.starts_with("shop_api_80_") || name.starts_with("shop_web_80_"))
    );
    // A name with a hash is that of nobody but the controller.
    let group = groups.split("upstream ").nth(1).and_then(|t| t.split(' ').next()).expect("a group");
    let options = judged(
        &mut objects,
        "nothing",
        serde_json::json!({"http-snippet": format!("upstream {group} {{ server 10.0.0.9; }}")}),
    );
    let made = Translator::new().translate(&objects, &options);
    assert!(
        made.problems
            .iter()
            .any(|p| p.field == "data[http-snippet]" && p.render().contains("the name is reserved"))
    );
}

#[test]
fn names_of_the_stream_block_belong_to_the_oldest() {
    let map = |value: &str| format!("map $remote_addr $own {{ default {value}; }}");
    let group = |zone: &str| format!("upstream own {{ zone {zone} 64k; server 10.0.0.1:1; }}");
    let capture = "map $remote_addr $mine { default a; \"~(?<OWN>.)\" b; }".to_owned();
    let cases = [
        (map("old"), map("young"), "\"$own\""),
        (group("a"), group("b"), "\"own\""),
        (map("old"), capture.clone(), "\"$own\""),
        (capture, map("young"), "\"$own\""),
        (map("old"), "split_clients $remote_addr ${OWN} { * young; }".to_owned(), "\"$own\""),
    ];
    let stream = |text: &str| serde_json::json!({"nginx.ingress.kubernetes.io/stream-snippet": text});
    for (first, second, name) in cases {
        let mut objects = objects(SHOP);
        let options = judged(&mut objects, "nothing", serde_json::json!({}));
        objects.apply(ingress("alpha", "one", stream(&first)));
        objects.apply(ingress("beta", "two", stream(&second)));
        let made = Translator::new().translate(&objects, &options);
        let conflicts: Vec<_> = made.problems.iter().filter(|p| p.reason == "NameConflict").collect();
        assert_eq!(conflicts.len(), 1, "{second} {:?}", made.problems);
        assert!(conflicts[0].key.name == "two" && conflicts[0].text.contains(name), "{:?}", conflicts[0]);
        assert!(conflicts[0].text.contains("the older Ingress alpha/one"), "{:?}", conflicts[0]);
        // The operator's are older than all.
        let options = judged(&mut objects, "nothing", serde_json::json!({"stream-snippet": first}));
        let made = Translator::new().translate(&objects, &options);
        assert_eq!(made.problems.iter().filter(|p| p.reason == "NameConflict").count(), 2, "{first}");
    }
    // Zones have names of their own, whatever they are called.
    let mut objects = objects(SHOP);
    let options = judged(&mut objects, "nothing", serde_json::json!({}));
    objects.apply(ingress("alpha", "one", stream("upstream x { zone shop_api_80 64k; server 10.0.0.1:1; }")));
    objects.apply(ingress("beta", "two", stream("upstream y { zone shop_api_80 64k; server 10.0.0.1:1; }")));
    let made = Translator::new().translate(&objects, &options);
    let main = file(&made, "forebay.conf");
    let zones: BTreeSet<&str> =
        main.lines().filter(|l| l.contains("zone shop_api_80_")).map(str::trim).collect();
    assert!(zones.len() == 2 && !main.contains("zone shop_api_80 "), "{main}");
}

/// Each variable that the main file defines is one that snippets may define anew, or one that is reserved.
#[test]
fn variables_of_the_main_file_are_known() {
    let mut objects = objects(SHOP);
    let data = serde_json::json!({
        "use-forwarded-headers": "true", "use-proxy-protocol": "true", "block-user-agents": "a", "block-referers": "b",
        "skip-access-log-urls": "/a", "enable-underscores-in-headers": "true",
    });
    let options = judged(&mut objects, "nothing", data);
    let options = Options { enable_ssl_passthrough: true, ..options };
    let made = Translator::new().translate(&objects, &options);
    let main = file(&made, "forebay.conf");
    let mut count = 0;
    for line in main.lines().map(str::trim) {
        let words: Vec<&str> = line.trim_end_matches(" {").split(' ').collect();
        let (Some("map" | "geo" | "split_clients"), Some(last)) = (words.first().copied(), words.last())
        else {
            continue;
        };
        let name = last.trim_start_matches('$');
        use crate::variables::{GENERATED, INTERNAL, OF_AUTHORITY};
        assert!([GENERATED, INTERNAL, OF_AUTHORITY].iter().any(|names| names.contains(&name)), "{line}");
        count += 1;
    }
    assert!(count > 25, "{count}");
}

#[test]
fn files_of_secrets_are_different() {
    let mut objects = objects(SHOP);
    let options = judged(&mut objects, "nothing", serde_json::json!({}));
    let options = Options { judge: Judge::default(), ..options };
    let parts = ["tls.crt", "tls.key", "ca.crt", "ca.crl", "auth"];
    let names = ["x", "x.ca", "x.ca.crt", "x.crt", "x.crl", "x.auth-file"];
    for name in names {
        let data: serde_json::Map<_, _> = parts
            .iter()
            .map(|part| ((*part).to_owned(), format!("-----BEGIN CERTIFICATE-----\n{name} {part}").into()))
            .collect();
        let secret = serde_json::json!({"metadata": {"name": name, "namespace": "shop"}, "stringData": data});
        objects.apply(Object::of(Kind::Secret, secret).expect("a Secret"));
        let host = name.replace('.', "-");
        let annotations = serde_json::json!({
            "nginx.ingress.kubernetes.io/auth-tls-secret": format!("shop/{name}"),
            "nginx.ingress.kubernetes.io/auth-type": "basic",
            "nginx.ingress.kubernetes.io/auth-secret": name,
        });
        let value = serde_json::json!({
            "metadata": {"name": host, "namespace": "shop", "annotations": annotations},
            "spec": {"tls": [{"hosts": [format!("{host}.test")], "secretName": name}], "rules": [{"host": format!("{host}.test"), "http": {
                "paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "api", "port": {"number": 80}}}}]}}]},
        });
        objects.apply(Object::of(Kind::Ingress, value).expect("an Ingress"));
    }
    let made = Translator::new().translate(&objects, &options);
    let files = made.files.iter().filter(|(path, _)| path.starts_with("secrets"));
    let contents: BTreeSet<&[u8]> = files.clone().map(|(_, bytes)| &**bytes).collect();
    assert_eq!((files.count(), contents.len()), (names.len() * parts.len(), names.len() * parts.len()));
    for name in names {
        let text = file(&made, &format!("hosts/{}.test.conf", name.replace('.', "-")));
        for (directive, part) in
            [("ssl_certificate ", "tls.crt"), ("ssl_client_certificate ", "ca.crt"), ("ssl_crl ", "ca.crl")]
        {
            let line =
                text.lines().map(str::trim).find_map(|line| line.strip_prefix(directive)).expect(directive);
            let content = file(&made, line.trim_end_matches(';'));
            assert!(content.ends_with(&format!("\n{name} {part}")), "{name} {directive} {content}");
        }
    }
}

/// A canary has only the annotations of canaries, whatever else it says about a host.
#[test]
fn a_canary_says_nothing_about_the_server() {
    let mut objects = objects(SHOP);
    let options = judged(&mut objects, "nothing", serde_json::json!({}));
    objects.apply(ingress("shop", "main", serde_json::json!({})));
    let canary = serde_json::json!({
        "metadata": {"name": "canary", "namespace": "evil", "creationTimestamp": "2020-01-01T00:00:00Z", "annotations": {
            "nginx.ingress.kubernetes.io/canary": "true",
            "nginx.ingress.kubernetes.io/canary-weight": "100",
            "nginx.ingress.kubernetes.io/server-snippet": "add_header X-Evil 1 always;",
            "nginx.ingress.kubernetes.io/app-root": "/evil",
            "nginx.ingress.kubernetes.io/server-alias": "evil.test",
            "nginx.ingress.kubernetes.io/ssl-ciphers": "ECDHE-RSA-AES128-GCM-SHA256"}},
        "spec": {"tls": [{"hosts": ["main.test"], "secretName": "evil"}], "rules": [{"host": "main.test", "http": {"paths": [
            {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}]},
    });
    let before = file(&Translator::new().translate(&objects, &options), "hosts/main.test.conf");
    objects.apply(Object::of(Kind::Ingress, canary).expect("an Ingress"));
    let made = Translator::new().translate(&objects, &options);
    assert_eq!(file(&made, "hosts/main.test.conf"), before);
    assert!(made.problems.iter().any(|p| p.reason == "CanaryForeign"), "{:?}", made.problems);
}
