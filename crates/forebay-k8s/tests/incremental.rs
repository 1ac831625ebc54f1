//! A translation that goes by changes gives what one from nothing gives.

mod samples;

use forebay_k8s::objects::{Manifests, Object};
use forebay_k8s::{Key, Kind, Objects, Options, Translation, Translator};
use samples::Random;
use std::collections::BTreeMap;
use std::sync::Arc;

fn object(value: &serde_json::Value) -> Object {
    let mut read = Manifests::read(&value.to_string());
    assert_eq!(read.skipped, [], "{value}");
    read.documents.remove(0).object
}

fn ingress(random: &mut Random, name: usize) -> Object {
    let hosts = ["a.test", "b.test", "*.c.test", "www.a.test", ""];
    let paths = ["/", "/x", "/x/y", "/z(.*)"];
    let kinds = ["Prefix", "Exact", "ImplementationSpecific"];
    let services = ["s0", "s1", "s2", "s3"];
    let annotations: &[(&str, &str)] = &[
        ("server-alias", "d.test,a.test"),
        ("from-to-www-redirect", "true"),
        ("rewrite-target", "/$1"),
        ("auth-type", "basic"),
        ("auth-secret", "pw"),
        ("canary", "true"),
        ("canary-weight", "20"),
        ("auth-url", "http://10.0.0.1/"),
        ("auth-cache-key", "$host"),
        ("custom-headers", "fields"),
        ("limit-rps", "5"),
        ("proxy-body-size", "x"),
        ("affinity", "cookie"),
        ("default-backend", "s1"),
        ("app-root", "/app"),
        ("custom-http-errors", "404"),
        ("ssl-redirect", "false"),
        ("nonsense", "1"),
        ("service-upstream", "true"),
        ("auth-tls-secret", "tls"),
    ];
    let rules: Vec<_> = (0..1 + random.below(2))
        .map(|_| {
            let paths: Vec<_> = (0..1 + random.below(2))
                .map(|_| {
                    let service = serde_json::json!({"name": random.pick(&services), "port": {"number": 80 + random.below(2)}});
                    serde_json::json!({"path": random.pick(&paths), "pathType": random.pick(&kinds), "backend": {"service": service}})
                })
                .collect();
            serde_json::json!({"host": random.pick(&hosts), "http": {"paths": paths}})
        })
        .collect();
    let chosen: serde_json::Map<_, _> = (0..random.below(4))
        .map(|_| random.pick(annotations))
        .map(|(n, v)| (format!("nginx.ingress.kubernetes.io/{n}"), v.into()))
        .collect();
    let mut spec = serde_json::json!({"rules": rules});
    if random.below(2) == 0 {
        spec["tls"] = serde_json::json!([{"secretName": "tls"}]);
    }
    if random.below(4) == 0 {
        spec["ingressClassName"] = "other".into();
    }
    object(&serde_json::json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {
            "name": format!("i{name}"), "namespace": format!("n{}", name % 2), "annotations": chosen,
            "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", random.below(60)),
        },
        "spec": spec,
    }))
}

/// Changes one object.
fn change(random: &mut Random, objects: &mut Objects) {
    let namespace = format!("n{}", random.below(2));
    let service = format!("s{}", random.below(4));
    let metadata = |name: &str| serde_json::json!({"name": name, "namespace": namespace});
    match random.below(12) {
        0..=3 => {
            let name = random.below(12);
            objects.apply(ingress(random, name));
        }
        4 => objects.delete(Kind::Ingress, &Key::new(namespace.as_str(), format!("i{}", random.below(12)))),
        5 => {
            objects.apply(object(&serde_json::json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata(&service),
            "spec": {"clusterIP": format!("10.96.0.{}", random.below(3)), "ports": [{"port": 80 + random.below(2)}]},
        })));
        }
        6 => objects.delete(Kind::Service, &Key::new(namespace.as_str(), service)),
        7 => {
            let mut metadata = metadata(&format!("e{}", random.below(5)));
            metadata["labels"] = serde_json::json!({"kubernetes.io/service-name": service});
            let addresses = [format!("10.0.0.{}", random.below(5))];
            objects.apply(object(&serde_json::json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "ports": [{"port": 8080}],
                "endpoints": [{"addresses": addresses, "conditions": {"ready": random.below(3) > 0}}],
            })));
        }
        8 => objects
            .delete(Kind::EndpointSlice, &Key::new(namespace.as_str(), format!("e{}", random.below(5)))),
        9 => {
            let data = [
                serde_json::json!({}),
                serde_json::json!({"tls.crt": "-----BEGIN A-----", "tls.key": "-----BEGIN B-----", "ca.crt": "-----BEGIN C-----"}),
                serde_json::json!({"auth": "u:p", "tls.crt": "x"}),
            ];
            let name = random.pick(&["tls", "pw"]);
            let data = &data[random.below(3)];
            objects.apply(object(&serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(name), "stringData": data})));
        }
        10 => {
            let (name, data) = match random.below(3) {
                0 => ("fields", serde_json::json!({"X-A": "b"})),
                1 => ("tcp", serde_json::json!({"9000": format!("{namespace}/{service}:80")})),
                _ => (
                    "config",
                    serde_json::json!({"proxy-body-size": format!("{}m", random.below(3)), "global-allowed-response-headers": "X-A"}),
                ),
            };
            objects.apply(object(&serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(name), "data": data})));
        }
        _ => {
            let controller = random.pick(&["forebay.io/ingress", "x"]);
            objects.apply(object(&serde_json::json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "other"}, "spec": {"controller": controller},
            })));
        }
    }
}

fn files(made: &Translation) -> BTreeMap<String, String> {
    let text = |(path, bytes): &(Arc<std::path::Path>, Arc<[u8]>)| {
        (path.display().to_string(), String::from_utf8_lossy(bytes).into_owned())
    };
    let all: BTreeMap<String, String> = made.files.iter().map(text).collect();
    assert_eq!(all.len(), made.files.len(), "each path is there once");
    all
}

fn problems(made: &Translation) -> Vec<String> {
    let mut all: Vec<String> =
        made.problems.iter().map(|p| format!("{:?} {}", p.severity, p.render())).collect();
    all.sort();
    all
}

#[test]
fn changes_give_the_same_as_a_new_start() {
    let options = [true, false].map(|endpoints_in_files| Options {
        watch_ingress_without_class: true,
        config_map: Some(Key::new("n0", "config")),
        tcp_services: Some(Key::new("n1", "tcp")),
        default_backend_service: Some(Key::new("n0", "s3")),
        default_ssl_certificate: Some(Key::new("n1", "tls")),
        endpoints_in_files,
        ..Options::default()
    });
    for seed in 1..=8_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut objects = Objects::new();
        let mut translator = Translator::new();
        let options = &options[seed as usize % 2];
        for step in 0..150 {
            for _ in 0..1 + random.below(4) {
                change(&mut random, &mut objects);
            }
            let kept = translator.translate(&objects, options);
            let fresh = Translator::new().translate(&objects, options);
            assert_eq!(files(&kept), files(&fresh), "seed {seed}, step {step}");
            assert_eq!(kept.groups, fresh.groups, "seed {seed}, step {step}");
            assert_eq!(kept.accepted, fresh.accepted, "seed {seed}, step {step}");
            assert_eq!(problems(&kept), problems(&fresh), "seed {seed}, step {step}");
        }
    }
}
