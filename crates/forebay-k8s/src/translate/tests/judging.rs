//! Tests of what is judged before it joins the configuration.

use super::*;
use crate::judge::Judge;
use crate::judge::tests::Refusing;
use std::sync::atomic::AtomicUsize;

/// Makes an Ingress with annotations for a host of its name.
pub(super) fn ingress(namespace: &str, name: &str, annotations: serde_json::Value) -> Object {
    let value = serde_json::json!({
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"rules": [{"host": format!("{name}.test"), "http": {"paths": [
            {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}]},
    });
    Object::of(Kind::Ingress, value).expect("an Ingress")
}

/// Makes options by which snippets are allowed, and judged by a build that refuses a word.
pub(super) fn judged(objects: &mut Objects, word: &'static str, data: serde_json::Value) -> Options {
    let mut all =
        serde_json::json!({"allow-snippet-annotations": "true", "annotations-risk-level": "Critical"});
    data.as_object().into_iter().flatten().for_each(|(key, value)| all[key] = value.clone());
    let map = serde_json::json!({"metadata": {"name": "c", "namespace": "shop"}, "data": all});
    objects.apply(Object::of(Kind::ConfigMap, map).expect("a ConfigMap"));
    let judge = Judge::new(Refusing { word, placed: false, builds: Arc::new(AtomicUsize::new(0)) });
    Options { config_map: Some(Key::new("shop", "c")), judge, ..options() }
}

#[test]
fn hosts_that_there_is_no_time_for_are_told_and_judged_later() {
    let mut objects = Objects::new();
    let options = judged(&mut objects, "bad", serde_json::json!({}));
    let snippet = |text: &str| serde_json::json!({"nginx.ingress.kubernetes.io/configuration-snippet": text});
    for i in 0..8 {
        let word = if i % 2 == 0 { "bad" } else { "fine" };
        objects.apply(ingress("shop", &format!("h{i}"), snippet(&format!("add_header X {word};"))));
    }
    objects.apply(ingress("shop", "plain", serde_json::json!({})));
    let bounds = Bounds { builds: 6, ..Bounds::default() };
    let mut translator = Translator { bounds, ..Translator::default() };
    let open = |translator: &mut Translator| {
        let made = translator.translate(&objects, &options);
        assert!(!hosts(&made).contains("bad"));
        let told = |i: usize| {
            let of = |p: &&Problem| p.key.name == format!("h{i}") && p.reason == "SnippetRefused";
            made.problems.iter().filter(of).count()
        };
        let serves = |name: &str| file(&made, &format!("hosts/{name}.test.conf")).contains("proxy_pass");
        assert!(serves("plain") && (0..8).all(|i| told(i) == usize::from(!serves(&format!("h{i}")))));
        ((0..8).filter(|i| serves(&format!("h{i}"))).count(), made.unjudged)
    };
    let (first, unjudged) = open(&mut translator);
    assert!(first < 4 && unjudged, "{first}");
    translator.bounds = Bounds::default();
    assert_eq!(open(&mut translator), (4, false));
    assert_eq!(open(&mut translator), (4, false));
}
