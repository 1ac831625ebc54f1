//! Times a translation of many Ingresses, and those after one change: `scale [NUMBER]`.

use forebay_k8s::objects::{Manifests, Object};
use forebay_k8s::{Objects, Options, Translator};
use std::time::Instant;

fn object(value: &serde_json::Value) -> Object {
    Manifests::read(&value.to_string()).documents.remove(0).object
}

fn ingress(i: usize, path: &str) -> Object {
    object(&serde_json::json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": format!("i{i}"), "namespace": format!("ns{}", i % 50), "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "8m"}},
        "spec": {"rules": [{"host": format!("h{i}.example.com"), "http": {"paths": [
            {"path": path, "pathType": "Prefix", "backend": {"service": {"name": format!("s{i}"), "port": {"number": 80}}}}]}}]}
    }))
}

fn slice(i: usize, address: &str) -> Object {
    object(&serde_json::json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("s{i}"), "namespace": format!("ns{}", i % 50), "labels": {"kubernetes.io/service-name": format!("s{i}")}},
        "ports": [{"port": 8080}], "endpoints": [{"addresses": [address]}]
    }))
}

#[allow(clippy::disallowed_macros, clippy::print_stdout, reason = "an example for people at a terminal")]
fn main() {
    let number: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let mut objects = Objects::new();
    for i in 0..number {
        objects.apply(ingress(i, "/"));
        objects.apply(object(&serde_json::json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{i}"), "namespace": format!("ns{}", i % 50)},
            "spec": {"ports": [{"port": 80}]}
        })));
        objects.apply(slice(i, "10.0.0.1"));
    }
    let options = Options { watch_ingress_without_class: true, ..Options::default() };
    let mut translator = Translator::new();
    let time = |what: &str, translator: &mut Translator, objects: &Objects| {
        let start = Instant::now();
        let made = translator.translate(objects, &options);
        let bytes: usize = made.files.iter().map(|(_, b)| b.len()).sum();
        println!(
            "{what}: {:.2} ms, {} files, {bytes} bytes",
            start.elapsed().as_secs_f64() * 1000.0,
            made.files.len()
        );
        drop(made);
    };
    time("first", &mut translator, &objects);
    for i in 0..5 {
        time("nothing changed", &mut translator, &objects);
        objects.apply(ingress(i, "/changed"));
        time("one Ingress changed", &mut translator, &objects);
        objects.apply(slice(i, "10.0.0.2"));
        time("one EndpointSlice changed", &mut translator, &objects);
    }
}
