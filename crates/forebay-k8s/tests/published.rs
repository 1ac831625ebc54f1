//! The published injections of ingress-nginx, as objects: each becomes a problem with a caret, or words that do no harm.

use forebay_k8s::objects::Manifests;
use forebay_k8s::{Key, Objects, Options, Problem, Translation, Translator};

/// Translates an Ingress with annotations, and a ConfigMap of settings.
fn translate(annotations: &[(&str, &str)], settings: &[(&str, &str)], path: &str) -> Translation {
    let map = |list: &[(&str, &str)], prefix: &str| {
        let fields = list.iter().map(|(k, v)| (format!("{prefix}{k}"), serde_json::Value::from(*v)));
        serde_json::Value::Object(fields.collect())
    };
    let ingress = serde_json::json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "evil", "namespace": "ns", "annotations": map(annotations, "nginx.ingress.kubernetes.io/")},
        "spec": {
            "tls": [{"hosts": ["a.example.com"], "secretName": "tls"}],
            "rules": [{"host": "a.example.com", "http": {"paths": [
                {"path": path, "pathType": "ImplementationSpecific", "backend": {"service": {"name": "web", "port": {"number": 80}}}}
            ]}}]
        }
    });
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config", "namespace": "ns"}, "data": map(settings, "")
    });
    let secret = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": "ns"},
        "stringData": {"tls.crt": "-----BEGIN CERTIFICATE-----", "tls.key": "-----BEGIN X-----", "ca.crt": "-----BEGIN CERTIFICATE-----"}
    });
    let headers = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "headers", "namespace": "ns"},
        "data": {"X-A": "b\";\nload_module /tmp/x.so;\n#", "X-B c;}": "x", "X-C": "fine"}
    });
    let mut objects = Objects::new();
    for object in [ingress, config, secret, headers] {
        let read = Manifests::read(&object.to_string());
        assert_eq!(read.skipped, []);
        for d in read.documents {
            objects.apply(d.object);
        }
    }
    let options = Options {
        watch_ingress_without_class: true,
        config_map: Some(Key::new("ns", "config")),
        resolvers: vec!["10.0.0.53".into()],
        ..Options::default()
    };
    Translator::new().translate(&objects, &options)
}

fn host_file(made: &Translation) -> String {
    let file = made.files.iter().find(|(p, _)| p.to_str() == Some("hosts/a.example.com.conf"));
    file.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}

/// Asserts that an annotation was refused, and returns the problem.
fn refused<'a>(made: &'a Translation, annotation: &str) -> &'a Problem {
    let found = made.problems.iter().find(|p| p.field.contains(&format!("/{annotation}]")));
    let problem = found.unwrap_or_else(|| panic!("{annotation} is refused: {:?}", made.problems));
    assert_eq!(problem.key.to_string(), "ns/evil");
    problem
}

/// Asserts a caret at a line and column.
fn at(problem: &Problem, line: usize, column: usize) {
    assert_eq!(problem.place, Some((line, column)), "{}", problem.render());
    let shown = problem.shown.as_deref().unwrap_or_default();
    assert!(shown.ends_with('^'), "{shown}");
}

const ALLOWED: &[(&str, &str)] =
    &[("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")];

/// kubernetes/ingress-nginx#7837: snippets read Secrets and the token of the service account.
#[test]
fn cve_2021_25742() {
    let token = "location /token {\n    alias /var/run/secrets/kubernetes.io/serviceaccount/;\n}";
    let made = translate(&[("server-snippet", token)], &[], "/");
    assert_eq!(refused(&made, "server-snippet").reason, "SnippetNotAllowed");
    let made = translate(&[("server-snippet", token)], ALLOWED, "/");
    at(refused(&made, "server-snippet"), 2, 5);
    assert!(!host_file(&made).contains("alias"));
    for (text, line, column) in [
        ("}\nserver { listen 8080; }", 1, 1),
        ("content_by_lua_block { os.execute(\"id\") }", 1, 1),
        ("include /etc/passwd;", 1, 1),
        ("if ($host) {\n  root /;\n}", 2, 3),
        ("proxy_pass https://kubernetes.default.svc/;", 1, 12),
        ("set $x 127.0.0.1; proxy_pass http://$x:10246/;", 1, 30),
        ("access_log /etc/cron.d/x;", 1, 1),
        ("auth_basic_user_file /etc/shadow;", 1, 1),
        ("proxy_ssl_certificate_key /etc/ingress-controller/ssl/a.pem;", 1, 1),
    ] {
        let made = translate(&[("configuration-snippet", text)], ALLOWED, "/");
        at(refused(&made, "configuration-snippet"), line, column);
        let made = translate(&[("server-snippet", text)], ALLOWED, "/");
        refused(&made, "server-snippet");
    }
}

/// kubernetes/ingress-nginx#8503: directives in any annotation.
#[test]
fn cve_2021_25746() {
    let made = translate(&[("proxy-body-size", "1m; root /;")], &[], "/");
    at(refused(&made, "proxy-body-size"), 1, 1);
    let made = translate(&[("upstream-vhost", "x\";\nload_module /tmp/x.so;\n#")], &[], "/");
    at(refused(&made, "upstream-vhost"), 1, 4);
    let made = translate(&[("auth-realm", "x\";} alias /;")], &[], "/");
    assert!(!host_file(&made).contains("alias /;}"), "{}", host_file(&made));
    let made = translate(&[("session-cookie-path", "/;}\nserver {"), ("affinity", "cookie")], &[], "/");
    at(refused(&made, "session-cookie-path"), 1, 4);
}

/// kubernetes/kubernetes#126817: `permanent-redirect`.
#[test]
fn cve_2023_5044() {
    let made = translate(&[("permanent-redirect", "https://x.example.com;}location /a{alias /;")], &[], "/");
    at(refused(&made, "permanent-redirect"), 1, 1);
    let made =
        translate(&[("permanent-redirect", "https://x.example.com/\n;} location /a { alias /; }")], &[], "/");
    at(refused(&made, "permanent-redirect"), 1, 23);
    assert!(!host_file(&made).contains("alias"));
}

/// kubernetes/kubernetes#131006: `auth-url`.
#[test]
fn cve_2025_24514() {
    let made = translate(
        &[("auth-url", "http://example.com/#;}}}\nssl_engine ../../../../../../proc/1/fd/5;\n#")],
        &[],
        "/",
    );
    at(refused(&made, "auth-url"), 1, 25);
    let text = host_file(&made);
    assert!(!text.contains("ssl_engine") && text.contains("return 503;"), "the path is closed: {text}");
}

/// kubernetes/kubernetes#131007: `auth-tls-match-cn`.
#[test]
fn cve_2025_1097() {
    let value = "CN=abc #(\n){}\n }}\nssl_engine /proc/1/fd/5;";
    let made = translate(&[("auth-tls-secret", "tls"), ("auth-tls-match-cn", value)], &[], "/");
    at(refused(&made, "auth-tls-match-cn"), 1, 10);
    assert!(host_file(&made).contains("return 503;") && !host_file(&made).contains("ssl_engine"));
    // On one line it is one word, however it looks.
    let value = "CN=abc #(a){1} }} ssl_engine x;";
    let made = translate(&[("auth-tls-secret", "tls"), ("auth-tls-match-cn", value)], &[], "/");
    assert!(
        host_file(&made).contains("if ($ssl_client_s_dn !~ \"CN=abc #(a){1} }} ssl_engine x;)\" {"),
        "{}",
        host_file(&made)
    );
}

/// kubernetes/kubernetes#131008: `mirror-target` and `mirror-host`.
#[test]
fn cve_2025_1098() {
    let made = translate(&[("mirror-target", "http://example.com/;\n}\nssl_engine x;")], &[], "/");
    at(refused(&made, "mirror-target"), 1, 21);
    let made =
        translate(&[("mirror-target", "http://10.0.0.1/"), ("mirror-host", "a;} ssl_engine x; #")], &[], "/");
    assert!(
        host_file(&made).contains("proxy_set_header Host \"a;} ssl_engine x; #\";"),
        "{}",
        host_file(&made)
    );
    let made = translate(&[("mirror-target", "http://127.0.0.1:10246/configuration/backends")], &[], "/");
    at(refused(&made, "mirror-target"), 1, 1);
}

/// kubernetes/kubernetes#136789: `auth-proxy-set-headers`.
#[test]
fn cve_2025_15566() {
    let made =
        translate(&[("auth-url", "http://10.0.0.1/"), ("auth-proxy-set-headers", "headers")], &[], "/");
    let of: Vec<&str> = made
        .problems
        .iter()
        .filter(|p| p.field.contains("auth-proxy-set-headers"))
        .map(|p| p.text.as_str())
        .collect();
    assert_eq!(of.len(), 2, "{of:?}");
    let text = host_file(&made);
    assert!(text.contains("return 503;") && !text.contains("load_module") && !text.contains("X-B"), "{text}");
    let made = translate(&[("auth-url", "http://10.0.0.1/"), ("auth-proxy-set-headers", "x;}\n{")], &[], "/");
    at(refused(&made, "auth-proxy-set-headers"), 1, 4);
    assert!(host_file(&made).contains("return 503;"));
}

/// kubernetes/kubernetes#136677: `auth-method`.
#[test]
fn cve_2026_1580() {
    let made = translate(&[("auth-url", "http://10.0.0.1/"), ("auth-method", "GET;\nroot /;")], &[], "/");
    at(refused(&made, "auth-method"), 1, 5);
    assert!(host_file(&made).contains("return 503;"));
}

/// kubernetes/kubernetes#136678: the field `path`.
#[test]
fn cve_2026_24512() {
    for path in ["/x;}\nlocation /y { alias /; }", "/x {", "/x\"; #"] {
        let made = translate(&[], &[], path);
        let text = host_file(&made);
        assert!(!text.contains("\nlocation /y"), "{text}");
        match made.problems.iter().find(|p| p.field == "spec.rules[0].http.paths[0].path") {
            Some(problem) => {
                assert!(problem.shown.as_deref().unwrap_or_default().ends_with('^'), "{}", problem.render())
            }
            None => assert!(text.contains("location \"/x"), "{text}"),
        }
    }
}

/// kubernetes/kubernetes#137560: `rewrite-target`.
#[test]
fn cve_2026_3288() {
    let made = translate(&[("rewrite-target", "/$1\" break; }\nlocation /y { alias /; } #")], &[], "/x(.*)");
    at(refused(&made, "rewrite-target"), 1, 14);
    let made = translate(&[("rewrite-target", "/$1;alias")], &[], "/x(.*)");
    assert!(host_file(&made).contains("rewrite (?i)/x(.*) \"/$1;alias\" break;"), "{}", host_file(&made));
    // The path is a pattern then, and must be one.
    let made = translate(&[("rewrite-target", "/$1")], &[], "/x(.*");
    assert!(
        made.problems.iter().any(|p| p.field.ends_with("path") && p.place.is_some()),
        "{:?}",
        made.problems
    );
}
