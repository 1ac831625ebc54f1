//! Hostile values: none of them changes the shape of the tree beyond what a valid value makes, and what is printed parses back.
//!
//! `FOREBAY_HOSTILE_VALUES` sets how many random values there are in all; CI runs 100,000.

use forebay_conf::Node;
use forebay_conf::error::Level;
use forebay_conf::grammar::Contexts;
use forebay_conf::print::nodes;
use forebay_k8s::annotations::{self, Verdict};
use forebay_k8s::objects::{ConfigMap, Ingress, Manifests, Object};
use forebay_k8s::value::Value;
use forebay_k8s::{Key, Objects, Options, Translation, Translator, settings};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

mod samples;

use samples::{Random, companions, hostile, samples};

const BASE: &str = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: a, namespace: ns, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  tls: [{hosts: [a.example.com], secretName: tls}]
  rules:
  - host: a.example.com
    http: {paths: [{path: /p, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: old, namespace: ns, creationTimestamp: "2025-01-01T00:00:00Z"}
spec:
  rules:
  - host: a.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: v1
kind: Secret
metadata: {name: tls, namespace: ns}
stringData: {tls.crt: "-----BEGIN CERTIFICATE-----", tls.key: "-----BEGIN PRIVATE KEY-----", ca.crt: "-----BEGIN CERTIFICATE-----"}
---
apiVersion: v1
kind: Secret
metadata: {name: pw, namespace: ns}
stringData: {auth: "u:p"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: fields, namespace: ns}
data: {X-A: b}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config, namespace: ns}
data: {}
"#;

/// Names and nesting of directives, runs of the same shape once.
fn shape(nodes: &[Node], out: &mut String) {
    let mut last = String::new();
    for node in nodes {
        let mut one = String::from_utf8_lossy(&node.name).into_owned();
        if let Some(block) = &node.block {
            one.push('{');
            // Entries of these are data, and their number is that of a list.
            if ["map", "geo", "split_clients"].contains(&&*one.replace('{', "")) {
                one.push_str("..");
            } else {
                shape(block, &mut one);
            }
            one.push('}');
        }
        if one != last {
            out.push_str(&one);
            out.push(';');
        }
        last = one;
    }
}

/// Shapes of files that have been read, so that what has not changed is not read again.
#[derive(Default)]
struct Read(BTreeMap<Arc<Path>, (Arc<[u8]>, String)>);

impl Read {
    /// Parses the files as the server does, and returns their shapes.
    fn shapes(&mut self, made: &Translation, what: &str) -> String {
        let mut all = String::new();
        for (path, bytes) in made.files.iter().filter(|(p, _)| p.extension().is_some_and(|e| e == "conf")) {
            match self.0.get(path).filter(|(old, _)| Arc::ptr_eq(old, bytes)) {
                Some((_, shape)) => all.push_str(shape),
                None => {
                    let shape = one(path, bytes, what);
                    all.push_str(&shape);
                    self.0.insert(path.clone(), (bytes.clone(), shape));
                }
            }
        }
        all
    }
}

fn one(path: &Path, bytes: &[u8], what: &str) -> String {
    let main = path.to_str() == Some("forebay.conf");
    let context = if main { Contexts::MAIN } else { Contexts::HTTP };
    let parsed = forebay_conf::parse::body(bytes, context);
    // The files that the main file includes are read by themselves.
    let errors = parsed
        .errors
        .iter()
        .filter(|e| e.level <= Level::Error && !(main && e.message.starts_with("open() ")));
    let errors: Vec<_> = errors.collect();
    assert!(errors.is_empty(), "{what}: {errors:?}");
    let tree = nodes(&parsed.tree.root);
    if !main {
        // Printing what was read gives the text again.
        assert_eq!(forebay_conf::print(&tree).as_deref(), Ok(bytes), "{what}");
    }
    let mut out = String::new();
    shape(&tree, &mut out);
    out
}

fn objects() -> Objects {
    let mut objects = Objects::new();
    let read = Manifests::read(BASE);
    assert_eq!(read.skipped, []);
    for d in read.documents.into_iter() {
        objects.apply(d.object);
    }
    objects
}

fn options() -> Options {
    Options {
        watch_ingress_without_class: true,
        config_map: Some(Key::new("ns", "config")),
        resolvers: vec!["10.0.0.53".into()],
        endpoints_in_files: true,
        ..Options::default()
    }
}

fn total() -> usize {
    std::env::var("FOREBAY_HOSTILE_VALUES").ok().and_then(|t| t.parse().ok()).unwrap_or(6_000)
}

#[test]
fn annotations_never_change_the_shape() {
    let mut read = Read::default();
    let rows: Vec<&annotations::Row> = annotations::ROWS.iter().collect();
    let each = total() * 2 / 3 / rows.len() + 1;
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut accepted = 0;
    for row in rows {
        let mut objects = objects();
        if row.value == Value::Snippet || row.risk > annotations::Risk::High {
            // Off by default; the test below is theirs.
            continue;
        }
        let mut translator = Translator::new();
        let template = objects.ingress(&Key::new("ns", "a")).expect("there").object.clone();
        let closing = std::cell::Cell::new(Closing::No);
        let mut with = |value: Option<&str>| {
            let mut ingress = Ingress::clone(&template);
            ingress.metadata.annotations = companions(row.name);
            let name = format!("nginx.ingress.kubernetes.io/{}", row.name);
            if closing.get() != Closing::No {
                ingress
                    .metadata
                    .annotations
                    .insert("nginx.ingress.kubernetes.io/auth-url".into(), "x".into());
            }
            match value {
                Some(value) => ingress.metadata.annotations.insert(name, value.to_owned()),
                None if closing.get() == Closing::With => None,
                None => ingress.metadata.annotations.remove(&name),
            };
            objects.apply(Object::Ingress(Arc::new(ingress)));
            translator.translate(&objects, &options())
        };
        let valid = samples(row.name, row.value, row.default);
        let mut known: BTreeSet<String> = BTreeSet::new();
        known.insert(read.shapes(&with(None), row.name));
        for value in &valid {
            known.insert(read.shapes(&with(Some(value)), &format!("{}={value:?}", row.name)));
        }
        // The answer of an Ingress whose access annotations are refused.
        for how in [Closing::With, Closing::Without] {
            closing.set(how);
            known.insert(read.shapes(&with(None), row.name));
        }
        closing.set(Closing::No);
        for _ in 0..each {
            let value = hostile(&mut random, &valid);
            let what = format!("{}={value:?}", row.name);
            let made = with(Some(&value));
            accepted += usize::from(!made.problems.iter().any(|p| p.field.contains(row.name)));
            let shape = read.shapes(&made, &what);
            check(&known, &shape, &what);
        }
    }
    assert!(accepted > each, "values that are accepted are among them: {accepted}");
}

/// Whether an Ingress has an access annotation that is refused, and then whether it keeps the one at hand.
#[derive(Clone, Copy, PartialEq)]
enum Closing {
    No,
    With,
    Without,
}

/// Panics with the place at which a shape leaves all known ones.
fn check(known: &BTreeSet<String>, shape: &str, what: &str) {
    if known.contains(shape) {
        return;
    }
    let common = |k: &String| k.bytes().zip(shape.bytes()).take_while(|(a, b)| a == b).count();
    let best = known.iter().max_by_key(|k| common(k)).expect("some");
    let at = common(best).saturating_sub(80);
    let part = |s: &str| s.chars().skip(at).take(260).collect::<String>();
    panic!("{what} makes another shape:\n  ...{}\n  known: ...{}", part(shape), part(best));
}

#[test]
fn keys_never_change_the_shape() {
    let mut read = Read::default();
    let rows: Vec<&settings::Row> = settings::ROWS
        .iter()
        .filter(|r| r.value != Value::Snippet && !matches!(r.verdict, Verdict::Refused(_)))
        .collect();
    let each = total() / 3 / rows.len() + 1;
    let mut random = Random(0xfeed_beef_dead_cafe);
    for row in rows {
        let mut objects = objects();
        let mut translator = Translator::new();
        let template = objects.config_map(&Key::new("ns", "config")).expect("there").object.clone();
        let mut with = |value: Option<&str>| {
            let mut map = ConfigMap::clone(&template);
            map.data = [
                ("use-gzip", "true"),
                ("enable-brotli", "true"),
                ("use-forwarded-headers", "true"),
                ("enable-syslog", "true"),
                ("hide-headers", "a"),
            ]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
            map.data.remove(row.name);
            map.data.extend(value.map(|v| (row.name.to_owned(), v.to_owned())));
            objects.apply(Object::ConfigMap(Arc::new(map)));
            translator.translate(&objects, &options())
        };
        let valid = samples(row.name, row.value, row.default);
        let mut known: BTreeSet<String> = BTreeSet::new();
        known.insert(read.shapes(&with(None), row.name));
        for value in &valid {
            known.insert(read.shapes(&with(Some(value)), &format!("{}={value:?}", row.name)));
        }
        // All paths answer 503 if the key decides on access and has never had a value that worked.
        with(None);
        known.insert(read.shapes(&with(Some("\u{1}")), row.name));
        // The answer while a key that decides on access is refused.
        if ["block-cidrs", "denylist-source-range", "global-auth-url", "whitelist-source-range"]
            .contains(&row.name)
        {
            known.insert(read.shapes(&with(Some("}\n")), row.name));
        }
        for _ in 0..each {
            let value = hostile(&mut random, &valid);
            let what = format!("{}={value:?}", row.name);
            let shape = read.shapes(&with(Some(&value)), &what);
            check(&known, &shape, &what);
        }
    }
}

/// Fields beside annotations: hosts, paths, names of Services, ports and Secrets.
#[test]
fn fields_never_change_the_shape() {
    let mut read = Read::default();
    let mut random = Random(0xabcd_ef01_2345_6789);
    let mut objects = objects();
    let mut translator = Translator::new();
    let template = objects.ingress(&Key::new("ns", "a")).expect("there").object.clone();
    let mut known = BTreeSet::new();
    for i in 0..total() / 6 {
        let mut ingress = Ingress::clone(&template);
        let value = hostile(&mut random, &["/p".into(), "a.example.com".into(), "web".into()]);
        {
            let rule = &mut ingress.spec.rules[0];
            let path = &mut rule.http.as_mut().expect("paths").paths[0];
            match i % 6 {
                0 => path.path = format!("/{value}"),
                1 => path.path_type = Some(value.clone()),
                2 => path.backend.service.as_mut().expect("service").name = value.clone(),
                3 => path.backend.service.as_mut().expect("service").port.name = Some(value.clone()),
                4 => rule.host = value.clone(),
                _ => ingress.spec.tls[0].secret_name = value.clone(),
            }
            if i % 12 == 6 {
                ingress.spec.rules[0].http.as_mut().expect("paths").paths[0].path_type =
                    Some("ImplementationSpecific".into());
            }
        }
        objects.apply(Object::Ingress(Arc::new(ingress)));
        let made = translator.translate(&objects, &options());
        known.insert(read.shapes(&made, &value));
    }
    assert!(known.len() < 40, "{} shapes: {known:#?}", known.len());
}

/// Snippets that are allowed stay inside of their block.
#[test]
fn snippets_stay_in_their_block() {
    let mut read = Read::default();
    let mut random = Random(0x5555_1234_aaaa_4321);
    let mut objects = objects();
    let mut map = ConfigMap::clone(&objects.config_map(&Key::new("ns", "config")).expect("there").object);
    map.data = [("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    objects.apply(Object::ConfigMap(Arc::new(map)));
    let template = objects.ingress(&Key::new("ns", "old")).expect("there").object.clone();
    let mut translator = Translator::new();
    let mut taken = 0;
    for i in 0..total() / 6 {
        let name = ["configuration-snippet", "server-snippet", "auth-snippet", "stream-snippet"][i % 4];
        let mut text = hostile(
            &mut random,
            &[
                "more_set_headers \"X: y\";".into(),
                "if ($host = a) { return 403; }".into(),
                "location /z { return 200; }".into(),
            ],
        );
        if random.below(3) == 0 {
            text.push_str(" add_header A b;");
        }
        let mut ingress = Ingress::clone(&template);
        ingress.metadata.annotations.insert(format!("nginx.ingress.kubernetes.io/{name}"), text.clone());
        ingress
            .metadata
            .annotations
            .insert("nginx.ingress.kubernetes.io/auth-url".into(), "http://10.0.0.1/".into());
        objects.apply(Object::Ingress(Arc::new(ingress)));
        let made = translator.translate(&objects, &options());
        let shape = read.shapes(&made, &format!("{name}={text:?}"));
        taken += usize::from(!made.problems.iter().any(|p| p.field.contains(name)));
        // The two servers, and nothing of the snippet in `http` beside them.
        let servers = made.files.iter().filter(|(p, _)| p.starts_with("hosts")).count();
        assert_eq!(servers, 2);
        for refused in ["load_module", "root;", "alias;", "ssl_engine", "lua"] {
            assert!(!shape.contains(refused), "{text:?}: {shape}");
        }
    }
    assert!(taken > 20, "{taken} snippets were taken");
}
