//! The Service that a Gateway brings: an alias for the Service of the controller, in the namespace of the Gateway, with the labels and
//! annotations that the Gateway wishes for (`spec.infrastructure`).

use super::GatewayOptions;
use super::gateways::Ours;
use super::objects::{GROUP, GatewayKind};
use crate::groups::short_hash;
use crate::objects::Key;
use serde_json::{Value, json};

/// Longest name of a Service, and longest value of a label.
const LONGEST: usize = 63;

/// A Service to make.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayService {
    /// Namespace and name.
    pub key: Key,
    /// Identity of its Gateway. A Service of the same name without this owner is somebody else's.
    pub owner: String,
    /// The object.
    pub object: Value,
}

/// Returns the Services of all Gateways that are served; none without [`GatewayOptions::service`].
pub(super) fn services(ours: &[Ours], options: &GatewayOptions) -> Vec<GatewayService> {
    let Some(service) = &options.service else { return Vec::new() };
    let target = format!("{}.{}.svc.cluster.local", service.name, service.namespace);
    ours.iter().filter(|o| o.problem.is_none()).map(|o| of_gateway(o, &target)).collect()
}

fn of_gateway(o: &Ours, target: &str) -> GatewayService {
    let (metadata, spec) = (&o.gateway.metadata, &o.gateway.spec);
    let full = format!("{}-{}", metadata.name, spec.gateway_class_name);
    let fits = full.len() <= LONGEST && !full.contains('.');
    let short = || format!("gateway-{}", short_hash(&full));
    let name = if fits { full.clone() } else { short() };
    let wishes = spec.infrastructure.clone().unwrap_or_default();
    let mut labels = wishes.labels;
    if metadata.name.len() <= LONGEST {
        labels.insert("gateway.networking.k8s.io/gateway-name".into(), metadata.name.clone());
    }
    let owner = json!({
        "apiVersion": format!("{GROUP}/{}", GatewayKind::Gateway.version()),
        "kind": "Gateway", "name": metadata.name, "uid": metadata.uid,
    });
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name, "namespace": metadata.namespace, "labels": labels,
            "annotations": wishes.annotations, "ownerReferences": [owner],
        },
        "spec": { "type": "ExternalName", "externalName": target },
    });
    let key = Key::new(metadata.namespace.as_str(), name);
    GatewayService { key, owner: metadata.uid.clone(), object }
}
