//! `forebay ingress show`, and the same as a plugin of kubectl.

use forebay_testkit::{P256, Site, program};
use std::process::Command;

const OBJECTS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop}
spec:
  ingressClassName: forebay
  tls: [{hosts: [shop.example], secretName: tls}]
  rules:
  - {host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}
  - {host: "*.wild.example", http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: gone, port: {number: 80}}}}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["10.0.0.1"]}, {addresses: ["10.0.0.2"]}]
---
"#;

/// Runs the program under a name. Returns the exit code and what it wrote.
fn run(program: &str, words: &[&str]) -> (Option<i32>, String) {
    let done = Command::new(program).args(words).output().expect("it runs");
    (done.status.code(), String::from_utf8(done.stdout).expect("text"))
}

#[test]
fn a_host_is_shown_with_its_endpoints_and_certificates() {
    let site = Site::new("");
    site.certificate("tls", P256, "shop.example", "DNS:shop.example");
    let secret = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": "shop"},
        "stringData": {"tls.crt": site.read("tls.crt"), "tls.key": site.read("tls.key")},
    });
    let objects = site.write("objects.yaml", format!("{OBJECTS}{secret}\n"));
    let objects = objects.to_str().expect("a path");
    let plugin = site.dir().join("kubectl-forebay");
    std::os::unix::fs::symlink(program(), &plugin).expect("a link");
    for (program, words) in [(program(), vec!["ingress"]), (plugin.to_str().expect("a path"), vec![])] {
        let show = |host: &str, more: &[&str]| {
            run(program, &[words.as_slice(), &["show", host, "-f", objects], more].concat())
        };
        let (code, text) = show("Shop.Example", &[]);
        assert_eq!(code, Some(0), "{text}");
        for line in [
            "Ingress       shop/web\n",
            "certificate   secrets/shop_tls.crt: shop.example; expires ",
            "group         shop_web_80: 10.0.0.1:8080 10.0.0.2:8080\n",
            "proxy_pass http://shop_web_80;\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let (code, text) = show("a.wild.example", &["--format", "json"]);
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((code, &shown["ingresses"][0]), (Some(0), &"shop/web".into()), "{text}");
        let problem = shown["problems"][0]["text"].as_str().expect("a problem");
        assert!(problem.contains("the Service shop/gone does not exist"), "{text}");
        assert!(!text.contains("PRIVATE KEY"), "{text}");
        // A wildcard is one label; other hosts have the default server.
        let (_, text) = show("a.b.wild.example", &["--format", "json"]);
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(shown["server_names"][0], "_", "{text}");
    }
}
