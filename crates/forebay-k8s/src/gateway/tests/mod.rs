//! Tests of the translation of the Gateway API: objects of a cluster, and the files and statuses that they become.

mod closing;
mod filters;
mod general;
mod policies;
mod ports;
mod refused;
mod services;
mod settings;
mod sharing;

use super::objects::{GROUP, GatewayKind};
use crate::Options;
use crate::objects::{Key, Manifests, Objects};
use crate::translate::{Translation, Translator};
use serde_json::{Value, json};

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n";

/// Objects of a test, which later ones are added to.
struct World {
    objects: Objects,
    translator: Translator,
    options: Options,
}

impl World {
    fn new() -> World {
        let mut options = Options { watch_ingress_without_class: true, ipv6: false, ..Options::default() };
        options.gateway.controller = "forebay.io/gateway".into();
        let mut world = World { objects: Objects::new(), translator: Translator::new(), options };
        world.add(json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": { "name": "forebay" },
            "spec": { "controllerName": "forebay.io/gateway" } }));
        for name in ["web", "api"] {
            world.add(json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" },
                "spec": { "ports": [{ "port": 80 }] } }));
            world.add(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "default" },
                "stringData": { "tls.crt": CERTIFICATE, "tls.key": KEY } }));
            world.add(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default" },
                "data": { "ca.crt": format!("{CERTIFICATE}# {name}") } }));
        }
        world
    }

    fn add(&mut self, object: Value) {
        let read = Manifests::read(&object.to_string());
        assert_eq!(read.skipped, [], "{object}");
        for document in read.documents {
            self.objects.apply(document.object);
        }
        for d in read.gateway {
            self.objects.gateway.apply(d.kind, d.key, d.value).expect("an object");
        }
    }

    /// Adds a Gateway of an age, in days. Each listener is name, protocol, port and host, or an empty text.
    fn gateway(&mut self, name: &str, age: u32, listeners: &[(&str, &str, u16, &str)]) {
        let listeners: Vec<Value> = listeners.iter().map(|l| listener(*l, name)).collect();
        self.add(gateway(name, age, json!({ "gatewayClassName": "forebay", "listeners": listeners })));
    }

    /// Adds an HTTPRoute from hosts to the Service `web`.
    fn route(&mut self, name: &str, age: u32, parents: &[&str], hosts: &[&str], path: &str) {
        let parents: Vec<Value> = parents.iter().map(|p| json!({ "name": p })).collect();
        self.add(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": { "name": name, "namespace": "default", "creationTimestamp": created(age) },
            "spec": { "parentRefs": parents, "hostnames": hosts, "rules": [{
                "matches": [{ "path": { "type": "PathPrefix", "value": path } }],
                "backendRefs": [{ "name": "web", "port": 80 }],
            }] },
        }));
    }

    fn ingress(&mut self, name: &str, host: Option<&str>) {
        let mut rule = json!({ "http": { "paths": [{ "path": "/", "pathType": "Prefix",
            "backend": { "service": { "name": "api", "port": { "number": 80 } } } }] } });
        if let Some(host) = host {
            rule["host"] = json!(host);
        }
        self.add(json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": { "name": name, "namespace": "default" }, "spec": { "rules": [rule] } }));
    }

    fn made(&mut self) -> Made {
        Made(self.translator.translate(&self.objects, &self.options))
    }
}

fn created(age: u32) -> String {
    format!("2026-01-{:02}T00:00:00Z", 28 - age)
}

fn gateway(name: &str, age: u32, spec: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": name, "namespace": "default", "creationTimestamp": created(age) }, "spec": spec,
    })
}

fn listener((name, protocol, port, host): (&str, &str, u16, &str), secret: &str) -> Value {
    let mut listener = json!({ "name": name, "protocol": protocol, "port": port });
    if !host.is_empty() {
        listener["hostname"] = json!(host);
    }
    if protocol == "HTTPS" {
        listener["tls"] = json!({ "certificateRefs": [{ "name": secret }] });
    }
    listener
}

struct Made(Translation);

impl Made {
    /// Returns the file of Gateways.
    fn text(&self) -> String {
        let found = self.0.files.iter().find(|(path, _)| path.to_str() == Some("gateways/http.conf"));
        found.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    }

    /// Returns the servers of Gateways, one text each, without the lines of locations.
    fn servers(&self) -> Vec<String> {
        format!("\n{}", self.text()).split("\nserver {").skip(1).map(str::to_owned).collect()
    }

    /// Returns the servers with a name.
    fn named(&self, name: &str) -> Vec<String> {
        let line = format!("server_name {name};");
        self.servers().into_iter().filter(|server| server.contains(&line)).collect()
    }

    fn status(&self, kind: GatewayKind, name: &str) -> Value {
        let key = Key::new("default", name);
        let found = self.0.statuses.iter().find(|s| s.kind == kind && s.key == key);
        found.map(|s| s.status.clone()).unwrap_or_default()
    }

    /// Returns status and reason of a condition of a listener.
    fn listener(&self, gateway: &str, listener: &str, condition: &str) -> (String, String) {
        let status = self.status(GatewayKind::Gateway, gateway);
        let all = status["listeners"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|l| l["name"] == listener).unwrap_or_default();
        of(&found["conditions"], condition)
    }

    /// Returns status and reason of the condition `Accepted` of a route, and its message.
    fn route(&self, name: &str) -> (String, String, String) {
        let status = self.status(GatewayKind::HttpRoute, name);
        let conditions = &status["parents"][0]["conditions"];
        let (holds, reason) = of(conditions, "Accepted");
        (holds, reason, conditions[0]["message"].as_str().unwrap_or_default().to_owned())
    }
}

fn of(conditions: &Value, kind: &str) -> (String, String) {
    let all = conditions.as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|c| c["type"] == kind).unwrap_or_default();
    let word = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (word("status"), word("reason"))
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

/// Adds a rule with a name to the HTTPRoute of a name, at the Gateway `edge`, whose backend is `web` unless it has others.
fn route_of(name: &str, age: u32, hosts: &[&str], rules: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": name, "namespace": "default", "creationTimestamp": created(age) },
        "spec": { "parentRefs": [{ "name": "edge" }], "hostnames": hosts, "rules": rules },
    })
}

impl World {
    /// Returns a world with the Gateway `edge` at port 8080.
    fn with_edge() -> World {
        let mut world = World::new();
        world.gateway("edge", 9, &[("http", "HTTP", 8080, "")]);
        world
    }
}

impl Made {
    /// Returns the only server of a name.
    fn server(&self, name: &str) -> String {
        let servers = self.named(name);
        assert_eq!(servers.len(), 1, "{}", self.text());
        servers[0].clone()
    }

    /// Returns status, reason and message of a condition of the first parent or ancestor of an object.
    fn condition(&self, kind: GatewayKind, name: &str, condition: &str) -> (String, String, String) {
        let status = self.status(kind, name);
        let list = if status["parents"].is_array() { &status["parents"] } else { &status["ancestors"] };
        let all = list[0]["conditions"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|c| c["type"] == condition).unwrap_or_default();
        let word = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        (word("status"), word("reason"), word("message"))
    }
}

/// Returns the text of a location.
fn location(server: &str, name: &str) -> String {
    let start = format!("    location {name} {{");
    let from = server.find(&start).unwrap_or_else(|| panic!("no {name} in {server}"));
    let rest = &server[from..];
    rest[..rest.find("\n    }").expect("its end")].to_owned()
}

/// Returns the location that a route leads to whose conditions contain a text.
fn target(server: &str, condition: &str) -> String {
    let line = server.lines().find(|l| l.trim().starts_with("route ") && l.contains(condition));
    let line = line.unwrap_or_else(|| panic!("no route with {condition} in {server}"));
    let name = line.trim().split(' ').nth(1).expect("a name").to_owned();
    location(server, &name)
}
