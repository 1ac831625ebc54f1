//! An API server that is just enough for the controller: lists, watches, and what is written to it.

use forebay_testkit::{Asked, Origin};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

/// Kinds that it has, with their groups.
pub(super) const KINDS: [(&str, &str, &str); 11] = [
    ("Ingress", "networking.k8s.io/v1", "ingresses"),
    ("IngressClass", "networking.k8s.io/v1", "ingressclasses"),
    ("Service", "v1", "services"),
    ("EndpointSlice", "discovery.k8s.io/v1", "endpointslices"),
    ("Secret", "v1", "secrets"),
    ("ConfigMap", "v1", "configmaps"),
    ("Namespace", "v1", "namespaces"),
    ("GatewayClass", "gateway.networking.k8s.io/v1", "gatewayclasses"),
    ("Gateway", "gateway.networking.k8s.io/v1", "gateways"),
    ("HTTPRoute", "gateway.networking.k8s.io/v1", "httproutes"),
    ("RoutePolicy", "forebay.io/v1alpha1", "routepolicies"),
];

#[derive(Default)]
struct State {
    version: u64,
    /// Objects by plural, namespace and name.
    objects: BTreeMap<(String, String), Value>,
    watches: Vec<(String, TcpStream)>,
    written: Vec<Value>,
}

/// The server.
#[derive(Clone)]
pub(super) struct ApiServer {
    state: Arc<Mutex<State>>,
    pub(super) addr: SocketAddr,
}

impl ApiServer {
    pub(super) fn start() -> ApiServer {
        let state = Arc::<Mutex<State>>::default();
        let served = state.clone();
        let addr = Origin::start(move |asked| serve(&served, asked));
        ApiServer { state, addr: addr.addr }
    }

    /// Adds an object, or replaces it.
    pub(super) fn set(&self, mut object: Value) {
        let mut state = self.state.lock().expect("lock");
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        object["metadata"]["uid"] =
            format!("uid-{}", object["metadata"]["name"].as_str().unwrap_or("")).into();
        let kind = object["kind"].as_str().unwrap_or_default();
        let plural = KINDS.iter().find(|(k, ..)| *k == kind).expect("a kind").2;
        let is_new = state.objects.insert((plural.into(), name(&object)), object.clone()).is_none();
        let event = json!({"type": if is_new { "ADDED" } else { "MODIFIED" }, "object": object});
        let line = format!("{event}\n");
        let chunk = format!("{:x}\r\n{line}\r\n", line.len());
        for (watched, stream) in &mut state.watches {
            if watched == plural {
                let _ = stream.write_all(chunk.as_bytes());
            }
        }
    }

    /// Returns what was written, such as Events.
    pub(super) fn written(&self) -> Vec<Value> {
        self.state.lock().expect("lock").written.clone()
    }
}

fn name(object: &Value) -> String {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

fn serve(state: &Mutex<State>, asked: &mut Asked) -> bool {
    let target = asked.target().to_owned();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let plural = path.rsplit('/').next().unwrap_or_default();
    let mut state = state.lock().expect("lock");
    if !asked.text.starts_with("GET ") {
        let body = asked.text.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
        state.written.extend(serde_json::from_str::<Value>(&body));
        asked.answer("201 Created", "Content-Type: application/json\r\n", &body);
        return true;
    }
    let Some((kind, version, _)) = KINDS.iter().find(|(.., p)| *p == plural) else {
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        asked.answer("404 Not Found", "Content-Type: application/json\r\n", body.to_string());
        return true;
    };
    if query.contains("watch=") {
        asked.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        if let Ok(stream) = asked.stream.try_clone() {
            state.watches.push((plural.to_owned(), stream));
        }
        return true;
    }
    let items: Vec<&Value> =
        state.objects.iter().filter(|((of, _), _)| of == plural).map(|(_, object)| object).collect();
    let list = json!({
        "kind": format!("{kind}List"), "apiVersion": version,
        "metadata": {"resourceVersion": state.version.to_string()}, "items": items,
    });
    asked.answer("200 OK", "Content-Type: application/json\r\n", list.to_string())
}
