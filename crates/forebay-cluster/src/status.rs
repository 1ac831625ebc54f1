//! Statuses of Ingresses: the addresses at which clients reach this server.

use crate::api::Api;
use forebay_k8s::gateway::{GatewayKind, GatewayService, StatusUpdate};
use forebay_k8s::{Key, objects::Kind};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Statuses that are written in a second, so that the API server is not flooded after a change of the address.
const A_SECOND: usize = 20;
/// Statuses of the Gateway API that are written at a time.
const A_BATCH: usize = 50;
/// Time after which a status is written again if the watch has not shown it.
const AGAIN: Duration = Duration::from_secs(10);

/// Source of the addresses (`--publish-service`, `--publish-status-address`).
#[derive(Clone, Debug, Default)]
pub struct Publish {
    /// Service whose addresses are published.
    pub service: Option<Key>,
    /// Addresses or names that are published instead.
    pub addresses: Vec<String>,
}

/// Statuses as they are and as they should be.
#[derive(Debug, Default)]
pub(crate) struct Statuses {
    publish: Publish,
    /// Addresses of the published Service, as entries of a status.
    of_service: Vec<Value>,
    /// Addresses in the statuses of all Ingresses.
    current: HashMap<Key, Value>,
    written: HashMap<Key, Instant>,
}

impl Statuses {
    pub(crate) fn new(publish: Publish) -> Statuses {
        Statuses { publish, ..Statuses::default() }
    }

    /// Notes the status of an object as the watch shows it. `None`: the object is gone.
    pub(crate) fn note(&mut self, kind: Kind, key: &Key, object: Option<&Value>) {
        match (kind, object) {
            (Kind::Ingress, Some(object)) => {
                let addresses = object.pointer("/status/loadBalancer/ingress").cloned();
                self.current.insert(key.clone(), addresses.unwrap_or_else(|| json!([])));
            }
            (Kind::Ingress, None) => {
                self.current.remove(key);
                self.written.remove(key);
            }
            (Kind::Service, object) if self.publish.service.as_ref() == Some(key) => {
                self.of_service = object.map(of_service).unwrap_or_default();
            }
            _ => {}
        }
    }

    /// Returns the addresses to publish; `None` while they are not known: no status is changed then.
    fn wanted(&self) -> Option<Value> {
        let entries = match self.publish.addresses.as_slice() {
            [] => self.of_service.clone(),
            addresses => addresses.iter().map(|a| entry(a)).collect(),
        };
        (!entries.is_empty()).then_some(Value::Array(entries))
    }

    /// Returns the changes to write now: paths and objects.
    pub(crate) fn due<'k>(&mut self, accepted: impl Iterator<Item = &'k Key>) -> Vec<(String, Value)> {
        let Some(wanted) = self.wanted() else { return Vec::new() };
        let now = Instant::now();
        let mut due = Vec::new();
        for key in accepted {
            if due.len() == A_SECOND {
                break;
            }
            let is_right = self.current.get(key).is_none_or(|current| same(current, &wanted));
            if is_right || self.written.get(key).is_some_and(|at| now.duration_since(*at) < AGAIN) {
                continue;
            }
            self.written.insert(key.clone(), now);
            due.push(change(key, &wanted));
        }
        due
    }
}

/// Statuses of objects of the Gateway API as they are and as they should be.
#[derive(Debug, Default)]
pub(crate) struct GatewayStatuses {
    wanted: Vec<StatusUpdate>,
    current: HashMap<(GatewayKind, Key), Value>,
    /// Statuses that were written last, and when.
    written: HashMap<(GatewayKind, Key), (Value, Instant)>,
}

impl GatewayStatuses {
    /// Notes the status of an object as the watch shows it.
    pub(crate) fn note(&mut self, kind: GatewayKind, key: &Key, status: Option<&Value>) {
        self.current.insert((kind, key.clone()), status.cloned().unwrap_or(Value::Null));
    }

    /// Forgets an object that is gone.
    pub(crate) fn gone(&mut self, kind: GatewayKind, key: &Key) {
        let place = (kind, key.clone());
        self.current.remove(&place);
        self.written.remove(&place);
    }

    /// Sets the statuses that objects should have.
    pub(crate) fn want(&mut self, wanted: Vec<StatusUpdate>) {
        self.wanted = wanted;
    }

    /// Returns the changes to write now: paths and objects.
    pub(crate) fn due(&mut self) -> Vec<(String, Value)> {
        let now = Instant::now();
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut due = Vec::new();
        for update in &self.wanted {
            if due.len() == A_BATCH {
                break;
            }
            let place = (update.kind, update.key.clone());
            let current = self.current.get(&place);
            let is_recent =
                |(status, at): &(Value, Instant)| *status == update.status && now.duration_since(*at) < AGAIN;
            if current.is_none() || update.is_in(current) || self.written.get(&place).is_some_and(is_recent) {
                continue;
            }
            self.written.insert(place, (update.status.clone(), now));
            due.push(update.request(current, &time));
        }
        due
    }
}

/// Services of Gateways as they should be.
#[derive(Debug, Default)]
pub(crate) struct GatewayServices {
    wanted: Vec<GatewayService>,
    /// Those that were written last, and when.
    written: HashMap<Key, (Value, Instant)>,
}

impl GatewayServices {
    /// Sets the Services that should be there.
    pub(crate) fn want(&mut self, wanted: Vec<GatewayService>) {
        self.written.retain(|key, _| wanted.iter().any(|service| service.key == *key));
        self.wanted = wanted;
    }

    /// Returns the Services to write now. `exists` tells whether there is a Service of a name.
    pub(crate) fn due(&mut self, exists: impl Fn(&Key) -> bool) -> Vec<GatewayService> {
        let now = Instant::now();
        let mut due = Vec::new();
        for service in &self.wanted {
            let is_done = self.written.get(&service.key).is_some_and(|(object, at)| {
                *object == service.object && (exists(&service.key) || now.duration_since(*at) < AGAIN)
            });
            if is_done || due.len() == A_BATCH {
                continue;
            }
            self.written.insert(service.key.clone(), (service.object.clone(), now));
            due.push(service.clone());
        }
        due
    }
}

/// Writes Services of Gateways. A Service of the same name that is somebody else's stays as it is.
pub(crate) async fn write_services(api: &Api, services: Vec<GatewayService>, log: impl Fn(&str)) {
    for service in services {
        let path = format!("/api/v1/namespaces/{}/services/{}", service.key.namespace, service.key.name);
        let done = match api.get::<Value>(&path).await {
            Ok(found) if !is_owned(&found, &service.owner) => {
                log(&format!("the Service {} is not that of its Gateway, and stays as it is", service.key));
                continue;
            }
            Err(error) if !error.is_not_found() => Err(error),
            _ => api.apply(&path, &service.object).await,
        };
        if let Err(error) = done {
            log(&format!("the Service {} of a Gateway could not be written: {error}", service.key));
        }
    }
}

fn is_owned(service: &Value, owner: &str) -> bool {
    let owners = service.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|o| o.get("uid").and_then(Value::as_str) == Some(owner))
}

/// Compares addresses. The API server adds fields such as `ipMode`.
fn same(current: &Value, wanted: &Value) -> bool {
    let addresses = |v: &Value| -> Vec<(Option<String>, Option<String>)> {
        let text = |e: &Value, field: &str| e.get(field).and_then(Value::as_str).map(str::to_owned);
        v.as_array().into_iter().flatten().map(|e| (text(e, "ip"), text(e, "hostname"))).collect()
    };
    addresses(current) == addresses(wanted)
}

fn entry(address: &str) -> Value {
    match address.parse::<IpAddr>() {
        Ok(ip) => json!({ "ip": ip.to_string() }),
        Err(_) => json!({ "hostname": address }),
    }
}

/// Returns the addresses of a Service: those of its load balancer, else its external addresses, else that inside the cluster.
fn of_service(service: &Value) -> Vec<Value> {
    let strings = |pointer: &str| -> Vec<Value> {
        let all = service.pointer(pointer).and_then(Value::as_array);
        all.into_iter().flatten().filter_map(Value::as_str).map(entry).collect()
    };
    if let Some(external) =
        service.pointer("/spec/externalName").and_then(Value::as_str).filter(|n| !n.is_empty())
    {
        return vec![entry(external)];
    }
    let balancer = service.pointer("/status/loadBalancer/ingress").and_then(Value::as_array);
    let mut entries: Vec<Value> = balancer.into_iter().flatten().filter_map(address_only).collect();
    entries.extend(strings("/spec/externalIPs"));
    let is_balanced = service.pointer("/spec/type").and_then(Value::as_str) == Some("LoadBalancer");
    if entries.is_empty() && !is_balanced {
        entries = strings("/spec/clusterIPs").into_iter().filter(|e| e.get("ip").is_some()).collect();
    }
    entries
}

fn address_only(entry: &Value) -> Option<Value> {
    let field = |name| entry.get(name).and_then(Value::as_str);
    match (field("ip"), field("hostname")) {
        (Some(ip), _) => Some(json!({ "ip": ip })),
        (None, Some(name)) => Some(json!({ "hostname": name })),
        (None, None) => None,
    }
}

fn change(key: &Key, wanted: &Value) -> (String, Value) {
    let path =
        format!("/apis/networking.k8s.io/v1/namespaces/{}/ingresses/{}/status", key.namespace, key.name);
    let object = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": key.name, "namespace": key.namespace },
        "status": { "loadBalancer": { "ingress": wanted } },
    });
    (path, object)
}

/// Writes statuses by server-side apply.
pub(crate) async fn write(api: &Api, changes: Vec<(String, Value)>, log: impl Fn(&str)) {
    for (path, object) in changes {
        match api.apply(&path, &object).await {
            Ok(_) => {}
            // It was deleted meanwhile.
            Err(error) if error.is_not_found() => {}
            Err(error) => log(&format!("a status could not be written: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("shop", name)
    }

    #[test]
    fn addresses_of_services() {
        let balanced = json!({
            "spec": { "type": "LoadBalancer", "clusterIPs": ["10.96.0.7"] },
            "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1", "ipMode": "VIP" }, { "hostname": "lb.example" }] } },
        });
        assert_eq!(
            of_service(&balanced),
            [json!({ "ip": "192.0.2.1" }), json!({ "hostname": "lb.example" })]
        );
        let pending = json!({ "spec": { "type": "LoadBalancer", "clusterIPs": ["10.96.0.7"] } });
        assert_eq!(of_service(&pending), [] as [Value; 0], "its address is still to come");
        let inside = json!({ "spec": { "type": "ClusterIP", "clusterIPs": ["10.96.0.7", "None"] } });
        assert_eq!(of_service(&inside), [json!({ "ip": "10.96.0.7" })]);
    }

    #[test]
    fn only_wrong_statuses_are_written() {
        let mut statuses = Statuses::new(Publish { service: None, addresses: vec!["192.0.2.1".into()] });
        let right =
            json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1", "ipMode": "VIP" }] } } });
        statuses.note(Kind::Ingress, &key("a"), Some(&right));
        statuses.note(Kind::Ingress, &key("b"), Some(&json!({})));
        let (a, b) = (key("a"), key("b"));
        let due = statuses.due([&a, &b].into_iter());
        assert_eq!(due.len(), 1);
        assert!(due[0].0.ends_with("/namespaces/shop/ingresses/b/status"));
        assert_eq!(statuses.due([&a, &b].into_iter()).len(), 0, "written a moment ago");
        statuses.note(Kind::Ingress, &b, None);
        assert_eq!(statuses.due([&a, &b].into_iter()).len(), 0, "gone");
    }

    #[test]
    fn without_an_address_no_status_changes() {
        let mut statuses = Statuses::new(Publish { service: Some(key("edge")), addresses: vec![] });
        statuses.note(Kind::Ingress, &key("a"), Some(&json!({})));
        let a = key("a");
        assert_eq!(statuses.due([&a].into_iter()).len(), 0);
        statuses.note(Kind::Service, &key("edge"), Some(&json!({ "spec": { "clusterIPs": ["10.96.0.7"] } })));
        assert_eq!(statuses.due([&a].into_iter()).len(), 1);
    }
}
