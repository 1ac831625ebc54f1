//! Each location that passes requests on sets all fields of which the server is the author, whatever the protocol and the snippets.

use forebay_conf::Node;
use forebay_conf::grammar::Contexts;
use forebay_k8s::objects::Manifests;
use forebay_k8s::{Key, Objects, Options, Translation, Translator};
use std::collections::BTreeSet;

/// Names and values.
type Texts = &'static [(&'static str, &'static str)];

/// Fields of each request.
const GENERAL: &[&str] = &[
    "forwarded",
    "host",
    "proxy",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-original-forwarded-for",
    "x-original-forwarded-host",
    "x-real-ip",
    "x-request-id",
    "x-scheme",
];

/// Fields of requests to a host that asks for certificates.
const CERTIFICATE: &[&str] =
    &["ssl-client-cert", "ssl-client-issuer-dn", "ssl-client-subject-dn", "ssl-client-verify"];

fn translate(annotations: &[(&str, &str)], settings: &[(&str, &str)]) -> Translation {
    let map = |list: &[(&str, &str)], prefix: &str| {
        let fields = list.iter().map(|(k, v)| (format!("{prefix}{k}"), serde_json::Value::from(*v)));
        serde_json::Value::Object(fields.collect())
    };
    let metadata = |name: &str| serde_json::json!({"name": name, "namespace": "ns"});
    let mut settings = settings.to_vec();
    for (name, value) in [("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")] {
        if !settings.iter().any(|(own, _)| *own == name) {
            settings.push((name, value));
        }
    }
    let service = |name: &str| serde_json::json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(name), "spec": {"ports": [{"port": 80}]}});
    let pem = "-----BEGIN CERTIFICATE-----";
    let secret = |name: &str, data: serde_json::Value| serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(name), "stringData": data});
    let path = |path: &str| serde_json::json!({"path": path, "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}});
    let mut ingress = serde_json::json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata("a"),
        "spec": {"rules": [{"host": "a.example.com", "http": {"paths": [path("/p"), path("/q")]}}]}
    });
    ingress["metadata"]["annotations"] = map(annotations, "nginx.ingress.kubernetes.io/");
    let objects_of = [
        ingress,
        serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("config"), "data": map(&settings, "")}),
        service("web"),
        service("errors"),
        secret("ca", serde_json::json!({"ca.crt": pem})),
        secret("pw", serde_json::json!({"auth": "ann:x"})),
    ];
    let mut objects = Objects::new();
    for object in objects_of {
        let read = Manifests::read(&object.to_string());
        assert_eq!(read.skipped, []);
        read.documents.into_iter().for_each(|d| {
            objects.apply(d.object);
        });
    }
    let options = Options {
        watch_ingress_without_class: true,
        config_map: Some(Key::new("ns", "config")),
        default_backend_service: Some(Key::new("ns", "errors")),
        resolvers: vec!["10.0.0.53".into()],
        ..Options::default()
    };
    Translator::new().translate(&objects, &options)
}

/// Returns the directives of the host's file.
fn file(made: &Translation) -> Vec<Node> {
    let found = made.files.iter().find(|(p, _)| p.to_str() == Some("hosts/a.example.com.conf"));
    let (_, bytes) = found.expect("the file of the host");
    let parsed = forebay_conf::parse::body(bytes, Contexts::HTTP);
    assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
    forebay_conf::print::nodes(&parsed.tree.root)
}

/// Collects the locations that pass requests on, and the family of the directive that does.
fn passing<'n>(nodes: &'n [Node], found: &mut Vec<(&'n Node, &'static str)>) {
    for node in nodes {
        let Some(block) = &node.block else { continue };
        for (pass, family) in [
            ("proxy_pass", "proxy_set_header"),
            ("grpc_pass", "grpc_set_header"),
            ("fastcgi_pass", "fastcgi_param"),
        ] {
            if block.iter().any(|n| n.name == pass.as_bytes()) {
                found.push((node, family));
            }
        }
        passing(block, found);
    }
}

/// Returns the fields that a location sets, in small letters.
fn fields(location: &Node, family: &str) -> Vec<String> {
    let set = location.block.iter().flatten().filter(|n| n.name == family.as_bytes());
    let name = |n: &Node| String::from_utf8_lossy(&n.args[0]).to_ascii_lowercase();
    let field = |n: String| match family {
        "fastcgi_param" => n.strip_prefix("http_").map(|rest| rest.replace('_', "-")),
        _ => Some(n),
    };
    set.map(name).filter_map(field).collect()
}

#[test]
fn each_location_sets_each_field() {
    let protocols = ["HTTP", "https", "AUTO_HTTP", "grpc", "GRPCS", "FCGI"];
    #[rustfmt::skip]
    let ways: &[&[(&str, &str)]] = &[
        &[],
        &[("configuration-snippet", "proxy_set_header X-My 1; grpc_set_header X-My 1;")],
        &[("server-snippet", "proxy_set_header X-My 1; grpc_set_header X-My 1; location /s { proxy_pass http://10.0.0.9; }")],
        &[("auth-tls-secret", "ca")],
        &[("auth-tls-secret", "ca"), ("auth-tls-pass-certificate-to-upstream", "true"), ("auth-tls-verify-client", "optional")],
        &[("auth-type", "basic"), ("auth-secret", "pw")],
        &[("auth-url", "http://10.0.0.1/"), ("auth-response-headers", "X-User"), ("auth-cache-key", "$remote_user")],
        &[("mirror-target", "http://10.0.0.2/"), ("mirror-request-body", "off")],
        &[("custom-http-errors", "404,503"), ("default-backend", "errors")],
        &[("upstream-vhost", "v.example.com"), ("x-forwarded-prefix", "/x"), ("connection-proxy-header", "close")],
    ];
    let settings: &[&[(&str, &str)]] = &[
        &[],
        &[("location-snippet", "proxy_set_header X-Loc 1; grpc_set_header X-Loc 1; fastcgi_param X_LOC 1;")],
        &[("server-snippet", "proxy_set_header X-Srv 1; grpc_set_header X-Srv 1;")],
        &[("http-snippet", "proxy_set_header X-Http 1; grpc_set_header X-Http 1; fastcgi_param X_HTTP 1;")],
    ];
    for protocol in protocols {
        for (way, settings) in ways.iter().flat_map(|way| settings.iter().map(move |s| (way, s))) {
            let mut annotations = vec![("backend-protocol", protocol)];
            annotations.extend(*way);
            check(&annotations, settings);
        }
    }
}

fn check(annotations: &[(&str, &str)], settings: &[(&str, &str)]) {
    let made = translate(annotations, settings);
    let (nodes, mut locations) = (file(&made), Vec::new());
    passing(&nodes, &mut locations);
    // The two paths, the locations that they need, and the default backend.
    assert!(locations.len() >= 3, "{annotations:?}: {:?}", made.problems);
    let has = |name: &str| annotations.iter().any(|(n, _)| *n == name);
    for (location, family) in locations {
        // A location of a snippet has the fields of the server.
        if location.args == [b"/s".to_vec()] {
            continue;
        }
        let all = fields(location, family);
        let set: BTreeSet<&str> = all.iter().map(String::as_str).collect();
        let what = format!("{annotations:?} {settings:?}: {:?} has {set:?}", location.args);
        assert_eq!(set.len(), all.len(), "{what}, some twice");
        let is_auth = location.args.last().is_some_and(|w| w.starts_with(b"/_external-auth"));
        let missing: Vec<&&str> = GENERAL.iter().filter(|n| !set.contains(**n)).collect();
        assert!(missing.is_empty(), "{what}, lacks {missing:?}");
        if has("auth-tls-secret") {
            assert!(CERTIFICATE.iter().all(|n| set.contains(n)), "{what}");
        }
        let routed = location.args != [b"/".to_vec()];
        if has("auth-type") && routed {
            assert!(set.contains("authorization"), "{what}");
        }
        if has("auth-response-headers") && routed && !is_auth {
            assert!(set.contains("x-user"), "{what}");
        }
    }
}

/// The protocol of the upstream in any case of letters.
#[test]
fn protocols() {
    for (text, pass) in [
        ("https", "proxy_pass https://"),
        ("Https", "proxy_pass https://"),
        ("auto_http", "proxy_pass $scheme://"),
        ("grpc", "grpc_pass grpc://"),
        ("GrpcS", "grpc_pass grpcs://"),
        ("fcgi", "fastcgi_pass ns_web"),
    ] {
        let made = translate(&[("backend-protocol", text)], &[]);
        let found = made.files.iter().find(|(p, _)| p.to_str() == Some("hosts/a.example.com.conf"));
        let host = String::from_utf8_lossy(&found.expect("a file").1).into_owned();
        assert!(host.contains(pass), "{text}: {host}");
    }
}

/// Settings that allow all snippets.
const SNIPPETS: Texts = &[("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")];

/// What decides on access and is not valid closes the paths, and says so.
#[test]
fn closed() {
    #[rustfmt::skip]
    let table: &[(Texts, Texts)] = &[
        (&[("proxy-ssl-secret", "gone"), ("proxy-ssl-verify", "on")], &[]),
        (&[("proxy-ssl-secret", "gone")], &[]),
        (&[("proxy-ssl-secret", "other/ca")], &[]),
        (&[("proxy-ssl-secret", "pw")], &[]),
        (&[("proxy-ssl-verify", "yes")], &[]),
        (&[("proxy-ssl-verify", "on")], &[]),
        (&[("auth-type", "basic")], &[]),
        (&[("auth-type", "basic"), ("auth-secret", "gone")], &[]),
        (&[("auth-tls-secret", "gone")], &[]),
        (&[("auth-tls-secret", "pw")], &[]),
        (&[("custom-headers", "gone")], &[]),
        (&[("custom-headers", "config")], &[]),
        (&[("auth-url", "http://10.0.0.1/"), ("auth-proxy-set-headers", "gone")], &[]),
        (&[("auth-url", "nothing")], &[]),
        (&[("auth-url", "http:///x")], &[]),
        (&[("auth-url", "ftp://10.0.0.1/")], &[]),
        (&[("auth-url", "http://10.0.0.1/"), ("auth-cache-key", "$remote_user"), ("auth-cache-duration", "x")], &[]),
        (&[("whitelist-source-range", "x")], &[]),
        (&[("whitelist-source-range", ",")], &[]),
        (&[("whitelist-source-range", " ")], &[]),
        (&[("auth-url", "http://10.0.0.1/"), ("auth-response-headers", "X-User,X(Bad")], &[]),
        (&[("configuration-snippet", "deny 127.0.0.1;")], &[("allow-snippet-annotations", "false")]),
        (&[("configuration-snippet", "deny 127.0.0.1; add_header X $nosuch;")], SNIPPETS),
        (&[("configuration-snippet", "auth_basic x; auth_basic_user_file /etc/x;")], SNIPPETS),
        (&[("server-snippet", "deny 127.0.0.1; foo;")], SNIPPETS),
        (&[("configuration-snippet", "if ($arg_a) { return 403; } foo;")], SNIPPETS),
        (&[("denylist-source-range", "1.2.3.4/99")], &[]),
        (&[("satisfy", "some")], &[]),
        (&[("limit-connections", "x")], &[]),
        (&[("limit-rpm", "-1")], &[]),
        (&[("enable-modsecurity", "true")], &[]),
        (&[("modsecurity-transaction-id", "$request_id")], &[]),
        (&[], &[("enable-modsecurity", "true")]),
        (&[], &[("enable-owasp-modsecurity-crs", "true")]),
        (&[], &[("whitelist-source-range", "x")]),
        (&[], &[("denylist-source-range", "x")]),
        (&[], &[("block-cidrs", "x")]),
        (&[], &[("whitelist-source-range", ",")]),
        (&[], &[("proxy-set-headers", "ns/gone")]),
        (&[], &[("global-auth-url", "nothing")]),
        (&[], &[("global-auth-url", "http://$nonesuch/")]),
        (&[], &[("global-auth-url", "http://10.0.0.1/"), ("global-auth-method", "LOOK")]),
        (&[], &[("global-auth-url", "http://10.0.0.1/"), ("global-auth-snippet", "nothing;")]),
        (&[], &[("global-auth-url", "http://10.0.0.1/"), ("global-auth-cache-duration", "x")]),
    ];
    for (annotations, settings) in table {
        let made = translate(annotations, settings);
        let nodes = file(&made);
        let locations: Vec<&Node> =
            nodes.iter().flat_map(|n| n.block.iter().flatten()).filter(|n| n.name == b"location").collect();
        let of_paths: Vec<&&Node> = locations.iter().filter(|n| n.args != [b"/".to_vec()]).collect();
        assert!(!of_paths.is_empty());
        for location in of_paths {
            let answers =
                location.block.iter().flatten().any(|n| n.name == b"return" && n.args == [b"503".to_vec()]);
            assert!(answers, "{annotations:?} {settings:?}: {location:?}");
        }
        assert!(
            made.problems.iter().any(|p| p.text.contains("503")),
            "{annotations:?} {settings:?}: {:?}",
            made.problems
        );
    }
}

/// A certificate that is not for the host gives way to the default one, if there is any.
#[test]
fn certificates_that_do_not_fit() {
    let pem = include_str!("fits.pem");
    for (host, default, own) in [
        ("fits.example.com", true, true),
        ("a.wild.example.com", true, true),
        ("other.example.com", true, false),
        ("other.example.com", false, true),
    ] {
        let objects_of = [
            serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": "ns"},
                "stringData": {"tls.crt": pem, "tls.key": "-----BEGIN PRIVATE KEY-----"}}),
            serde_json::json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "a", "namespace": "ns"},
                "spec": {"tls": [{"secretName": "tls"}], "rules": [{"host": host}]}}),
        ];
        let mut objects = Objects::new();
        for object in objects_of {
            Manifests::read(&object.to_string()).documents.into_iter().for_each(|d| {
                objects.apply(d.object);
            });
        }
        let made_certificate = default.then(|| forebay_k8s::options::Certificate {
            chain: pem.as_bytes().into(),
            key: "-----BEGIN PRIVATE KEY-----".as_bytes().into(),
        });
        let options = Options { watch_ingress_without_class: true, made_certificate, ..Options::default() };
        let made = Translator::new().translate(&objects, &options);
        let path = format!("hosts/{host}.conf");
        let found = made.files.iter().find(|(p, _)| p.to_str() == Some(path.as_str())).expect("a file");
        let text = String::from_utf8_lossy(&found.1);
        assert_eq!(text.contains("ssl_certificate secrets/ns_tls.crt;"), own, "{host}: {text}");
        let told = made.problems.iter().any(|p| p.reason == "CertificateMismatch");
        assert_eq!(told, host == "other.example.com", "{host}: {:?}", made.problems);
    }
}

/// Requests for hosts without rules have no line in the access log, unless a key says so; those for hosts with rules have.
#[test]
fn logs_of_the_default_backend() {
    let off = |settings: &[(&str, &str)], path: &str| {
        let made = translate(&[], settings);
        let found = made.files.iter().find(|(p, _)| p.to_str() == Some(path)).expect("a file");
        let text = String::from_utf8_lossy(&found.1).into_owned();
        let location = text.split("location / {").nth(1).expect("the location of other paths");
        location.split('}').next().is_some_and(|body| body.contains("access_log off;"))
    };
    assert!(off(&[], "hosts/_.conf"));
    assert!(!off(&[], "hosts/a.example.com.conf"));
    assert!(!off(&[("enable-access-log-for-default-backend", "true")], "hosts/_.conf"));
}
