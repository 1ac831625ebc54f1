//! Services of Gateways.

use super::*;

#[test]
fn a_gateway_brings_a_service_with_its_labels() {
    let mut world = World::new();
    let infrastructure = json!({ "labels": { "team": "shop" }, "annotations": { "a/b": "c" } });
    let listeners = [listener(("http", "HTTP", 8080, ""), "web")];
    let spec =
        json!({ "gatewayClassName": "forebay", "listeners": listeners, "infrastructure": infrastructure });
    world.add(gateway("edge", 9, spec.clone()));
    let made = world.made();
    assert_eq!(made.0.services, []);
    let conditions = made.status(GatewayKind::Gateway, "edge")["conditions"].clone();
    assert!(conditions.to_string().contains("no Service is made"), "{conditions}");
    world.options.gateway.service = Some(Key::new("ingress", "controller"));
    let made = world.made();
    let [service] = made.0.services.as_slice() else { panic!("{:?}", made.0.services) };
    assert_eq!(service.key, Key::new("default", "edge-forebay"));
    let metadata = &service.object["metadata"];
    assert_eq!(
        metadata["labels"],
        json!({ "team": "shop", "gateway.networking.k8s.io/gateway-name": "edge" })
    );
    assert_eq!(metadata["annotations"], json!({ "a/b": "c" }));
    assert_eq!(
        service.object["spec"],
        json!({ "type": "ExternalName", "externalName": "controller.ingress.svc.cluster.local" })
    );
    let conditions = made.status(GatewayKind::Gateway, "edge")["conditions"].clone();
    assert!(!conditions.to_string().contains("no Service is made"), "{conditions}");
    // A name that is too long for a Service is cut.
    world.add(gateway(&"x".repeat(63), 8, spec));
    let made = world.made();
    assert!(made.0.services.iter().all(|s| s.key.name.len() <= 63));
}
