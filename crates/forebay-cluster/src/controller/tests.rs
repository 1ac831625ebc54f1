//! Tests of the controller without an API server and without a process that serves.

use super::refusals::{TRY_AGAIN, is_main, place};
use super::schedule::GATHER;
use super::watched::Watched;
use super::*;
use forebay_k8s::gateway::GatewayKind;
use forebay_k8s::judge::{Build, Judge, Refusal as Refused};
use forebay_k8s::objects::Object;
use forebay_k8s::{Key, objects::Kind};
use serde_json::Value;
use std::time::Instant;

/// Makes a controller that follows the ConfigMap `ns/c`.
fn controller() -> (Controller, UnboundedReceiver<Delivery>) {
    let options = Options {
        config_map: Some(Key::new("ns", "c")),
        watch_ingress_without_class: true,
        ..Options::default()
    };
    with_options(options)
}

fn with_options(options: Options) -> (Controller, UnboundedReceiver<Delivery>) {
    let settings = Settings {
        options,
        election: None,
        publish: None,
        identity: String::new(),
        webhook: None,
        health: None,
        files: Vec::new(),
    };
    let (sender, deliveries) = mpsc::unbounded_channel();
    (Controller::new(settings, sender, Rc::default(), Box::new(|_| {})), deliveries)
}

/// Sets the data of the ConfigMap.
fn set_config(controller: &mut Controller, data: Value) {
    let map = serde_json::json!({"metadata": {"name": "c", "namespace": "ns"}, "data": data});
    controller.mirror.objects.apply(Object::of(Kind::ConfigMap, map).expect("a ConfigMap"));
}

/// Adds an Ingress for a host of its name.
fn add_ingress(controller: &mut Controller, name: &str) {
    let ingress = serde_json::json!({
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"rules": [{"host": format!("{name}.test"), "http": {"paths": [
            {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}]},
    });
    controller.mirror.objects.apply(Object::of(Kind::Ingress, ingress).expect("an Ingress"));
}

/// Returns the problems that have a text.
fn problems_with(controller: &Controller, text: &str) -> Vec<String> {
    let all = controller.all_problems().into_iter().map(|p| p.render());
    all.filter(|p| p.contains(text)).collect()
}

/// Has a controller deliver a configuration at once. Returns its main file.
fn main_file(controller: &mut Controller, deliveries: &mut UnboundedReceiver<Delivery>) -> Option<String> {
    let files = delivered(controller, deliveries)?.files;
    let main = files.into_iter().find(|(path, _)| is_main(path));
    main.map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned())
}

/// Has a controller deliver a configuration at once.
fn delivered(
    controller: &mut Controller,
    deliveries: &mut UnboundedReceiver<Delivery>,
) -> Option<Configuration> {
    let past = Instant::now() - GATHER * 2;
    controller.schedule.others = Some(past);
    controller.schedule.rests_until = past;
    controller.sync();
    let Ok(Delivery::Configuration(configuration)) = deliveries.try_recv() else { return None };
    Some(configuration)
}

#[test]
fn a_refused_main_file_sets_one_value_aside_and_tries_it_again() {
    let (mut controller, mut deliveries) = controller();
    let map = serde_json::json!({
        "metadata": {"name": "c", "namespace": "ns"},
        "data": {"http-snippet": "resolver nosuch.invalid;", "use-gzip": "true", "access-log-path": "/no/a.log"},
    });
    controller.mirror.objects.apply(Object::of(Kind::ConfigMap, map).expect("a ConfigMap"));
    let first = main_file(&mut controller, &mut deliveries).expect("a configuration");
    assert!(first.contains("resolver nosuch.invalid;") && first.contains("gzip on;"), "{first}");
    let line = first.lines().position(|l| l.contains("nosuch")).expect("the line") + 1;
    let reason = format!("host not found in resolver \"nosuch.invalid\" in forebay.conf:{line}");
    controller.report(Report::Refused(1, reason));
    assert!(controller.schedule.others.is_some());
    let second = main_file(&mut controller, &mut deliveries).expect("a configuration");
    assert!(
        !second.contains("nosuch") && second.contains("gzip on;") && second.contains("/no/a.log"),
        "{second}"
    );
    assert!(controller.problems.iter().any(|p| p.render().contains("host not found in resolver")));
    controller.report(Report::Refused(2, "open() \"/no/a.log\" failed (2: No such file)".to_owned()));
    let third = main_file(&mut controller, &mut deliveries).expect("a configuration");
    assert!(!third.contains("/no/a.log") && third.contains("gzip on;"), "{third}");
    controller.report(Report::Applied(3));
    assert_eq!(controller.settings.options.refused.len(), 2);
    controller.refusals.key_refused = Instant::now().checked_sub(TRY_AGAIN * 2);
    controller.look_again();
    assert_eq!(main_file(&mut controller, &mut deliveries), Some(first));
}

/// Refuses routes to one Service.
struct Refusing;

impl Build for Refusing {
    fn errors(&self, files: &[(Arc<Path>, Arc<[u8]>)]) -> Vec<Refused> {
        let bad = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("proxy_pass http://default_bad");
        let all = files.iter().filter(|(_, bytes)| bad(bytes));
        all.map(|(path, _)| Refused { path: Some(path.clone()), ..Refused::plain("no such group") }).collect()
    }
}

/// Returns the file of Gateways that is delivered next.
fn gateways(controller: &mut Controller, deliveries: &mut UnboundedReceiver<Delivery>) -> String {
    let past = Instant::now() - GATHER * 2;
    (controller.schedule.others, controller.schedule.rests_until) = (Some(past), past);
    controller.sync();
    let Ok(Delivery::Configuration(configuration)) = deliveries.try_recv() else { panic!("nothing") };
    let of_gateways = |path: &Path| path == Path::new("gateways/http.conf");
    let file = configuration.files.into_iter().find(|(path, _)| of_gateways(path));
    String::from_utf8_lossy(&file.expect("the file").1).into_owned()
}

#[test]
fn a_refused_route_is_closed_alone_and_tried_again() {
    let mut options = Options { judge: Judge::new(Refusing), ..Options::default() };
    options.gateway.controller = "c".into();
    let (mut controller, mut deliveries) = with_options(options);
    let group = "gateway.networking.k8s.io/v1";
    let object = |kind: &str, name: &str, spec: Value| serde_json::json!({ "apiVersion": group, "kind": kind, "metadata": { "name": name, "namespace": "default" }, "spec": spec });
    let mut add =
        |kind: GatewayKind, value: Value| drop(controller.mirror.set(Watched::Gateway(kind), value, &|_| {}));
    let class = serde_json::json!({ "metadata": { "name": "k" }, "spec": { "controllerName": "c" } });
    add(GatewayKind::GatewayClass, class);
    let listeners = serde_json::json!([{ "name": "http", "protocol": "HTTP", "port": 8080 }]);
    let spec = serde_json::json!({ "gatewayClassName": "k", "listeners": listeners });
    add(GatewayKind::Gateway, object("Gateway", "edge", spec));
    let route = |name: &str| {
        let backends = serde_json::json!([{ "name": name, "port": 80 }]);
        let spec = serde_json::json!({ "parentRefs": [{ "name": "edge" }], "hostnames": [format!("{name}.test")], "rules": [{ "backendRefs": backends }] });
        object("HTTPRoute", name, spec)
    };
    for name in ["bad", "good"] {
        add(GatewayKind::HttpRoute, route(name));
    }
    for name in ["bad", "good"] {
        let service = serde_json::json!({ "metadata": { "name": name, "namespace": "default" }, "spec": { "ports": [{ "port": 80 }] } });
        controller.mirror.objects.apply(Object::of(Kind::Service, service).expect("a Service"));
    }
    let first = gateways(&mut controller, &mut deliveries);
    assert!(first.contains("http://default_bad") && first.contains("http://default_good"), "{first}");
    controller.report(Report::Refused(1, "no such group in gateways/http.conf:7".to_owned()));
    let second = gateways(&mut controller, &mut deliveries);
    assert!(!second.contains("http://default_bad") && second.contains("http://default_good"), "{second}");
    assert!(controller.refusals.quarantined.is_empty());
    controller.report(Report::Applied(2));
    let events = controller.events.due(&controller.problems, "r", 10);
    let about: Vec<_> =
        events.iter().map(|e| (&e["regarding"]["apiVersion"], &e["regarding"]["name"])).collect();
    assert_eq!(about, [(&group.into(), &"bad".into())]);
    assert!(events[0]["note"].as_str().unwrap_or_default().contains("no such group"), "{events:?}");
    controller.refusals.objects_refused = Instant::now().checked_sub(TRY_AGAIN * 2);
    controller.look_again();
    assert_eq!(gateways(&mut controller, &mut deliveries), first);
}

#[test]
fn errors_name_their_file() {
    assert_eq!(
        place("unknown directive \"x\" in /forebay/a.conf:12"),
        Some((Path::new("/forebay/a.conf"), 12))
    );
    assert_eq!(place("bind() to 0.0.0.0:80 failed (98: Address already in use)"), None);
    assert_eq!(place(""), None);
}

/// A value that decides on access and that only the server refuses gives way to the one before, not to closed paths.
#[test]
fn a_refused_value_that_decides_gives_way_to_the_last_one() {
    let (mut controller, mut deliveries) = controller();
    add_ingress(&mut controller, "a");
    set_config(&mut controller, serde_json::json!({"http-snippet": "deny 10.0.0.1;"}));
    let first = main_file(&mut controller, &mut deliveries).expect("a configuration");
    controller.report(Report::Applied(1));
    for (round, name) in ["one", "two"].into_iter().enumerate() {
        let text = format!("deny 10.0.0.2;\nset_real_ip_from {name}.invalid;");
        set_config(&mut controller, serde_json::json!({"http-snippet": text}));
        let refused = main_file(&mut controller, &mut deliveries).expect("a configuration");
        let line = refused.lines().position(|l| l.contains(".invalid")).expect("the line") + 1;
        let number = 2 + 2 * round as u64;
        controller.report(Report::Refused(number, format!("host not found in forebay.conf:{line}")));
        let last = main_file(&mut controller, &mut deliveries).expect("a configuration");
        assert_eq!(last, first, "{name}");
        assert_eq!(problems_with(&controller, "the last one that worked stays").len(), 1);
        controller.report(Report::Applied(number + 1));
    }
    // One that never worked has none to return to.
    let (mut controller, mut deliveries) = self::controller();
    add_ingress(&mut controller, "a");
    set_config(&mut controller, serde_json::json!({"http-snippet": "deny 10.0.0.1;"}));
    main_file(&mut controller, &mut deliveries).expect("a configuration");
    controller.report(Report::Refused(1, "no reason".into()));
    main_file(&mut controller, &mut deliveries).expect("a configuration");
    assert_eq!(problems_with(&controller, "all paths of Ingresses answer 503").len(), 1);
}

/// Guesses that do not help leave the last configuration in use, and each guessed value its problem.
#[test]
fn a_refusal_without_a_cause_keeps_the_applied_configuration() {
    let (mut controller, mut deliveries) = controller();
    add_ingress(&mut controller, "a");
    set_config(&mut controller, serde_json::json!({"http-snippet": "deny 10.0.0.1;"}));
    main_file(&mut controller, &mut deliveries).expect("a configuration");
    controller.report(Report::Applied(1));
    let data = serde_json::json!({"http-snippet": "deny 10.0.0.1;", "server-snippet": "add_header A b;", "location-snippet": "add_header C d;"});
    set_config(&mut controller, data);
    let mut number = 1;
    let mut refuse = |controller: &mut Controller| {
        number += 1;
        controller.report(Report::Refused(number, "no memory".into()));
    };
    let mut tried = 0;
    while tried == 0 || controller.schedule.others.is_some() {
        assert!(delivered(&mut controller, &mut deliveries).is_some());
        refuse(&mut controller);
        tried += 1;
        assert!(tried < 10, "guesses have an end");
    }
    assert_eq!(tried, 3, "two values are set aside, the one that worked stays");
    let held = |controller: &Controller| {
        let problems = problems_with(controller, "the last one that worked stays: no memory");
        ["location-snippet", "http-snippet", "server-snippet"]
            .map(|key| problems.iter().filter(|p| p.contains(key)).count())
    };
    assert_eq!(held(&controller), [1; 3]);
    assert!(problems_with(&controller, "answer 503").is_empty());
    assert_eq!(controller.health.borrow().refused.as_deref(), Some("no memory"));
    // The next configuration has all values. None is guessed again.
    add_ingress(&mut controller, "b");
    let next = delivered(&mut controller, &mut deliveries).expect("a configuration");
    let has = |text: &str| {
        next.files.iter().any(|(path, bytes)| {
            path.ends_with("hosts/a.test.conf") && String::from_utf8_lossy(bytes).contains(text)
        })
    };
    assert!(has("add_header A b;") && has("add_header C d;"));
    assert_eq!(held(&controller), [1; 3]);
    refuse(&mut controller);
    assert!(controller.schedule.others.is_none());
    assert_eq!(held(&controller), [1; 3]);
    // It is tried again after a while although nothing has changed.
    controller.refusals.suspects.make_due();
    controller.look_again();
    assert!(controller.schedule.others.is_some());
    assert!(main_file(&mut controller, &mut deliveries).is_some());
    number += 1;
    controller.report(Report::Applied(number));
    assert_eq!(held(&controller), [0; 3]);
    assert_eq!(controller.health.borrow().refused, None);
}
