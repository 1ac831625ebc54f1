//! Objects that the server refuses although their translation takes them.

use super::*;
use crate::gateway::Place;
use crate::judge::Judge;
use crate::judge::tests::Refusing;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// A word that the server refuses.
const BAD: &str = "refused-word";

/// Returns a world whose server refuses a word. `placed`: it says where.
fn world(placed: bool) -> World {
    let mut world = World::with_edge();
    world.options.judge = Judge::new(Refusing { word: BAD, placed, builds: Arc::new(AtomicUsize::new(0)) });
    for name in ["a", "b", "c"] {
        world.add(rules(name, "good"));
    }
    world
}

/// Returns a route whose requests get a value.
fn rules(name: &str, value: &str) -> Value {
    let filter = json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": { "set": [{ "name": "X-Value", "value": value }] } });
    let host = format!("{name}.test");
    route_of(
        name,
        5,
        &[&host],
        json!([{ "filters": [filter], "backendRefs": [{ "name": "web", "port": 80 }] }]),
    )
}

fn policy(name: &str, route: &str, host: &str) -> Value {
    json!({ "apiVersion": "forebay.io/v1alpha1", "kind": "RoutePolicy", "metadata": { "name": name, "namespace": "default" },
        "spec": { "targetRefs": [{ "group": GROUP, "kind": "HTTPRoute", "name": route }], "upstreamVhost": host } })
}

fn place(kind: GatewayKind, name: &str) -> Place {
    (kind, Key::new("default", name))
}

/// Translates, and sets aside what is to blame. Returns that.
fn refuse(world: &mut World) -> BTreeSet<Place> {
    world.made();
    let found = world.translator.guilty_gateways(&world.objects);
    let places = found.iter().map(|(place, _)| place.clone()).collect();
    for (place, why) in found {
        assert_eq!(why, "refused");
        assert!(world.objects.gateway.set_aside(place, why));
    }
    places
}

#[test]
fn the_route_the_policy_and_the_gateway_are_told_apart() {
    let bad_host = format!("{BAD}.test");
    for placed in [true, false] {
        let mut world = world(placed);
        assert_eq!(refuse(&mut world), BTreeSet::new());
        world.add(rules("b", BAD));
        world.add(policy("good", "a", "good.test"));
        world.add(policy("bad", "c", &bad_host));
        world.gateway("odd", 3, &[("http", "HTTP", 8080, &bad_host)]);
        let wanted = [
            place(GatewayKind::Gateway, "odd"),
            place(GatewayKind::HttpRoute, "b"),
            place(GatewayKind::RoutePolicy, "bad"),
        ];
        assert_eq!(refuse(&mut world), BTreeSet::from(wanted), "{placed}");
        // No other object is to blame.
        assert_eq!(refuse(&mut world), BTreeSet::new(), "{placed}");
        let made = world.made();
        assert!(
            !made.text().contains(&format!("Value {BAD}")) && !made.text().contains(&format!("Host {BAD}")),
            "{}",
            made.text()
        );
        assert!(target(&made.server("a.test"), "^/").contains("proxy_set_header Host good.test;"));
        assert!(target(&made.server("b.test"), "^/").contains("return 500;"));
        assert!(target(&made.server("c.test"), "^/").contains("return 503;"));
        for (kind, name) in [(GatewayKind::HttpRoute, "b"), (GatewayKind::RoutePolicy, "bad")] {
            let (holds, _, text) = made.condition(kind, name, "Accepted");
            assert!(holds == "False" && text.contains("the server refuses it: refused"), "{name}: {text}");
        }
        let gateway = made.status(GatewayKind::Gateway, "odd");
        assert_eq!(of(&gateway["conditions"], "Accepted"), pair("False", "Invalid"));
        assert_eq!(made.condition(GatewayKind::HttpRoute, "a", "Accepted").0, "True");
        let about: BTreeSet<(&str, &str)> = made
            .0
            .problems
            .iter()
            .filter(|p| p.reason == "ObjectRefused")
            .map(|p| (p.kind.name(), p.key.name.as_str()))
            .collect();
        assert_eq!(about, [("Gateway", "odd"), ("HTTPRoute", "b"), ("RoutePolicy", "bad")].into());
    }
}

#[test]
fn an_object_that_changes_is_tried_again() {
    let mut world = world(true);
    world.add(rules("b", BAD));
    assert_eq!(refuse(&mut world).len(), 1);
    assert!(world.made().server("b.test").contains("return 500;"));
    // The same content stays refused.
    world.add(rules("b", BAD));
    assert!(world.made().server("b.test").contains("return 500;"));
    world.add(rules("b", "better"));
    assert!(world.made().server("b.test").contains("X-Value better;"));
    assert!(world.made().0.problems.is_empty());
}

#[test]
fn routes_of_streams_are_found() {
    let mut world = general::world();
    world.options.judge =
        Judge::new(Refusing { word: BAD, placed: false, builds: Arc::new(AtomicUsize::new(0)) });
    assert_eq!(refuse(&mut world), BTreeSet::new());
    world.add(json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": BAD, "namespace": "default" }, "spec": { "ports": [{ "port": 80 }] } }));
    let spec = json!({ "parentRefs": [{ "name": "edge", "sectionName": "passes" }], "hostnames": ["good.test"],
        "rules": [{ "backendRefs": [{ "name": BAD, "port": 80 }] }] });
    world.add(json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
        "metadata": { "name": "bad", "namespace": "default", "creationTimestamp": created(1) }, "spec": spec }));
    assert_eq!(refuse(&mut world), BTreeSet::from([place(GatewayKind::TlsRoute, "bad")]));
    let stream = world.made().stream();
    assert!(!stream.contains(BAD) && stream.contains("good.test gateway_none;"), "{stream}");
}

/// To close what could not be judged would take away what works.
#[test]
fn nobody_is_closed_if_the_server_refuses_everything() {
    let mut world = world(false);
    world.options.judge =
        Judge::new(Refusing { word: "server", placed: false, builds: Arc::new(AtomicUsize::new(0)) });
    assert_eq!(refuse(&mut world), BTreeSet::new());
}
