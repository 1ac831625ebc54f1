//! A running controller: what one object has that no server accepts holds nobody else up.

use super::api::ApiServer;
use super::{certified, object, rule};
use forebay_testkit::{Done, Origin, Running, Site, free_port, wait_for, wait_until};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

/// A controller with its server.
struct Controller {
    _running: Running,
    http: SocketAddr,
    health: SocketAddr,
    _site: Site,
}

impl Controller {
    fn start(api: &ApiServer, more: &[&str]) -> Controller {
        let site = Site::new("");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", api.addr)}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        site.write("kubeconfig", config.to_string());
        let [http, https, health] = [(); 3].map(|()| free_port());
        let text = format!(
            "ingress --kubeconfig kubeconfig --configmap default/config --http-port {http} --https-port {https} \
             --healthz-port {health} --disable-leader-election --watch-ingress-without-class"
        );
        let _running = Running::start(site.subcommand(text.split(' ')).args(more));
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Controller { _running, http: addr(http), health: addr(health), _site: site }
    }

    /// Returns the status of a request, 0 without an answer.
    fn status(&self, host: &str, path: &str) -> u16 {
        let answer = ask(self.http, host, path);
        answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    fn wait_for(&self, host: &str, status: u16) {
        wait_until(&format!("{status} of {host}"), || self.status(host, "/") == status);
    }

    fn health(&self, path: &str) -> String {
        ask(self.health, "localhost", path)
    }
}

fn ask(addr: SocketAddr, host: &str, path: &str) -> String {
    if std::net::TcpStream::connect(addr).is_err() {
        return String::new();
    }
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    forebay_testkit::ask(addr, &request)
}

fn ingress(name: &str, annotations: Value) -> Value {
    let mut all = redirected(name);
    for (key, value) in annotations.as_object().expect("annotations") {
        all["metadata"]["annotations"][format!("nginx.ingress.kubernetes.io/{key}")] = value.clone();
    }
    all
}

/// Makes an Ingress with nothing but a redirect.
fn redirected(name: &str) -> Value {
    let annotations = json!({"nginx.ingress.kubernetes.io/permanent-redirect": "https://example.com"});
    let metadata = json!({"annotations": annotations, "creationTimestamp": "2026-01-01T00:00:00Z"});
    object(
        "Ingress",
        name,
        json!({"metadata": metadata, "spec": {"rules": [rule(&format!("{name}.test"), "/")]}}),
    )
}

/// Makes an Ingress without the redirect.
fn forwarded(name: &str, annotations: Value) -> Value {
    let mut ingress = ingress(name, annotations);
    let annotations = ingress["metadata"]["annotations"].as_object_mut().expect("annotations");
    annotations.remove("nginx.ingress.kubernetes.io/permanent-redirect");
    ingress
}

/// Adds the Service `web` with a server behind it, and the Ingress `forwarded`, which passes requests on to it.
fn serve_web(api: &ApiServer) {
    let port = Origin::start(|asked| asked.answer("200 OK", "", "web")).port();
    let text = include_str!("backend.json").replace("%NAME%", "web").replace("%NAMESPACE%", "default");
    super::objects(&text.replace("%PORT%", &port.to_string())).into_iter().for_each(|object| api.set(object));
    api.set(forwarded("forwarded", json!({})));
}

fn config(data: Value) -> Value {
    let mut all = json!({"allow-snippet-annotations": "true", "annotations-risk-level": "Critical"});
    data.as_object().expect("data").iter().for_each(|(key, value)| all[key] = value.clone());
    object("ConfigMap", "config", json!({"data": all}))
}

/// Waits until an event tells something.
fn wait_for_event(api: &ApiServer, what: &str, tells: impl Fn(&str, &str) -> bool) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    wait_until(what, || {
        api.written().iter().any(|e| tells(&text(&e["note"]), &text(&e["regarding"]["kind"])))
    });
}

/// Snippets that pass the check of an Ingress, and that no server accepts.
const BAD: [&str; 6] = [
    "limit_req zone=undeclared;",
    "limit_conn undeclared 5;",
    "proxy_buffers 1 1k;",
    "proxy_busy_buffers_size 99m;",
    "auth_basic a; auth_basic b;",
    "error_page 99 /x;",
];

#[test]
fn one_tenant_holds_nobody_up() {
    let api = ApiServer::start();
    api.set(config(json!({})));
    for i in 0..100 {
        api.set(ingress(&format!("good{i}"), json!({})));
    }
    let bad = |i: usize, text: &str| forwarded(&format!("bad{i}"), json!({"configuration-snippet": text}));
    BAD.iter().enumerate().for_each(|(i, text)| api.set(bad(i, text)));
    // A replica that starts anew.
    let controller = Controller::start(&api, &[]);
    controller.wait_for("good99.test", 301);
    assert_eq!(controller.status("good0.test", "/"), 301);
    (0..BAD.len())
        .for_each(|i| assert_eq!(controller.status(&format!("bad{i}.test"), "/"), 503, "{}", BAD[i]));
    let metrics = controller.health("/metrics");
    assert!(metrics.contains("forebay_ingress_refusals_total 0\n"), "{metrics}");
    let aside =
        format!("forebay_ingress_set_aside{{kind=\"Ingress\",reason=\"SnippetRefused\"}} {}\n", BAD.len());
    assert!(metrics.contains(&aside) && metrics.contains("\nforebay_quic_floods_total"), "{metrics}");
    // Others are served while new ones of the tenant come.
    let start = Instant::now();
    api.set(bad(100, "limit_req zone=other;"));
    api.set(ingress("new", json!({})));
    controller.wait_for("new.test", 301);
    let limit = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 2 });
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    // A snippet that worked stays in place of one that does not.
    api.set(bad(0, "return 418;"));
    controller.wait_for("bad0.test", 418);
    api.set(bad(0, "limit_req zone=undeclared;"));
    api.set(ingress("later", json!({})));
    controller.wait_for("later.test", 301);
    assert_eq!(controller.status("bad0.test", "/"), 418);
    wait_for_event(&api, "an Event at the line", |note, kind| {
        note.contains("undeclared") && kind == "Ingress"
    });
}

#[test]
fn one_value_of_the_config_map_holds_nobody_up() {
    let api = ApiServer::start();
    api.set(config(json!({"use-gzip": "true", "gzip-types": "text/html"})));
    api.set(ingress("first", json!({})));
    let controller = Controller::start(&api, &[]);
    controller.wait_for("first.test", 301);
    let broken = "client_max_body_size 100m;\nproxy_read_timeout 5s;\nkeepalive_disable nobody;\n";
    api.set(config(json!({"http-snippet": broken})));
    api.set(ingress("second", json!({})));
    controller.wait_for("second.test", 301);
    wait_for_event(&api, "an Event of the ConfigMap", |note, kind| {
        kind == "ConfigMap" && note.contains("data[http-snippet]") && note.contains("line 3, column 1")
    });
    let text = controller.health("/healthz");
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("data[http-snippet]"), "{text}");
    assert!(controller.health("/readyz").starts_with("HTTP/1.1 200"));
    assert!(controller.health("/metrics").contains("forebay_ingress_set_aside{kind=\"ConfigMap\""));
    // A new replica serves, too.
    let another = Controller::start(&api, &[]);
    another.wait_for("second.test", 301);
    // What decides on access does not open: the last value stays, and a replica that never had one closes.
    api.set(config(json!({"whitelist-source-range": "127.0.0.0/8"})));
    api.set(ingress("third", json!({})));
    controller.wait_for("third.test", 301);
    api.set(config(json!({"whitelist-source-range": "127.0.0.0/99"})));
    api.set(ingress("fourth", json!({})));
    controller.wait_for("fourth.test", 301);
    let closed = Controller::start(&api, &[]);
    closed.wait_for("fourth.test", 503);
    // The default server answers the probes of balancers, hosts with rules do not.
    assert_eq!(
        (controller.status("10.0.0.1", "/healthz"), controller.status("first.test", "/healthz")),
        (200, 301)
    );
    assert_eq!(closed.status("none.test", "/healthz"), 200);
}

/// The judge opens no logs and looks up no names: only the server that starts refuses these values.
#[test]
fn a_value_that_only_the_server_refuses_holds_nobody_up() {
    let api = ApiServer::start();
    api.set(ingress("first", json!({})));
    serve_web(&api);
    let cases = [
        json!({"access-log-path": "/no/such/directory/a.log"}),
        json!({"http-snippet": "error_log /no/such/directory/e.log;"}),
        json!({"http-snippet": "resolver nosuch.none.invalid;"}),
        json!({"http-snippet": "upstream u { server nosuch.none.invalid; }"}),
        json!({"http-snippet": "upstream default_web_80 { server 10.0.0.1; }"}),
        json!({"location-snippet": "access_log /no/such/directory/l.log;"}),
        json!({"enable-syslog": "true", "syslog-host": "nosuch.none.invalid"}),
        json!({"stream-snippet": "upstream s { server nosuch.none.invalid:1; }"}),
        json!({"max-worker-open-files": "10"}),
    ];
    for data in cases {
        api.set(config(data.clone()));
        eprintln!("{data}");
        let controller = Controller::start(&api, &[]);
        controller.wait_for("first.test", 301);
        controller.wait_for("forwarded.test", 200);
    }
}

/// A value that decides on access and that only the server refuses leaves the one before in force, and closes nothing.
#[test]
fn a_value_that_decides_gives_way_to_the_one_before() {
    let api = ApiServer::start();
    serve_web(&api);
    let cases = [
        ("http-snippet", "deny 10.9.9.9;", "deny 10.9.9.9;\nset_real_ip_from nosuch.none.invalid;"),
        (
            "server-snippet",
            "allow 127.0.0.0/8;\ndeny all;",
            "allow 127.0.0.0/8;\nallow nosuch.none.invalid;\ndeny all;",
        ),
        ("location-snippet", "deny 10.9.9.9;", "deny 10.9.9.9;\naccess_log /no/such/directory/l.log;"),
    ];
    for (i, (key, good, bad)) in cases.into_iter().enumerate() {
        eprintln!("{key}: {bad}");
        api.set(config(json!({key: good})));
        let controller = Controller::start(&api, &[]);
        controller.wait_for("forwarded.test", 200);
        api.set(config(json!({key: bad})));
        let field = format!("data[{key}]: the value is not valid, the last one that worked stays");
        wait_for_event(&api, "an Event of the key", |note, _| note.starts_with(&field));
        let name = format!("later{i}");
        api.set(ingress(&name, json!({})));
        controller.wait_for(&format!("{name}.test"), 301);
        assert_eq!(controller.status("forwarded.test", "/"), 200);
        // One that is mended has effect.
        api.set(config(json!({key: format!("{good}\ndeny 127.0.0.1;")})));
        let status = if key == "server-snippet" { 200 } else { 403 };
        controller.wait_for("forwarded.test", status);
    }
}

fn gateway(name: &str, listeners: &[(&str, u16)]) -> Value {
    let listener = |(name, port): &(&str, u16)| json!({"name": name, "protocol": "HTTP", "port": port});
    let listeners: Vec<Value> = listeners.iter().map(listener).collect();
    object("Gateway", name, json!({"spec": {"gatewayClassName": "forebay", "listeners": listeners}}))
}

fn class() -> Value {
    // It belongs to no namespace.
    let mut class =
        object("GatewayClass", "forebay", json!({"spec": {"controllerName": "forebay.io/gateway"}}));
    class["metadata"] = json!({"name": "forebay"});
    class
}

/// Returns a route that redirects.
fn route(name: &str, gateway: &str, matches: Value) -> Value {
    let filters = json!([{"type": "RequestRedirect", "requestRedirect": {"hostname": "example.com", "statusCode": 301}}]);
    let rules = json!([{"matches": [matches], "filters": filters}]);
    let spec =
        json!({"parentRefs": [{"name": gateway}], "hostnames": [format!("{name}.test")], "rules": rules});
    object("HTTPRoute", name, json!({"spec": spec}))
}

/// A listener whose port another program has is set aside alone, and is served when the port is free.
#[test]
fn a_port_of_another_program_holds_nobody_up() {
    let api = ApiServer::start();
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let (taken, free) = (other.local_addr().expect("bound"), free_port());
    api.set(class());
    api.set(gateway("edge", &[("taken", taken.port()), ("free", free)]));
    api.set(route("a", "edge", json!({"path": {"value": "/"}})));
    api.set(ingress("first", json!({})));
    let controller = Controller::start(&api, &[]);
    controller.wait_for("first.test", 301);
    let free = SocketAddr::from(([127, 0, 0, 1], free));
    let moved = |addr| ask(addr, "a.test", "/").starts_with("HTTP/1.1 301").then_some(());
    wait_for("the other listener", || moved(free));
    wait_for("the condition", || {
        let of_listener = |status: &Value| {
            let all = status["status"]["listeners"].as_array().cloned().unwrap_or_default();
            let taken = all.into_iter().find(|l| l["name"] == "taken").unwrap_or_default();
            taken["conditions"].to_string().contains("PortUnavailable")
        };
        api.written().iter().any(of_listener).then_some(())
    });
    drop(other);
    wait_for("the listener whose port is free", || moved(taken));
}

/// Matches of which no part can be used close their routes, and no others.
#[test]
fn one_route_holds_nobody_up() {
    let api = ApiServer::start();
    let port = free_port();
    api.set(class());
    api.set(gateway("edge", &[("http", port)]));
    api.set(route("good", "edge", json!({"path": {"value": "/"}})));
    let wrong = [
        json!({"path": {"type": "RegularExpression", "value": "(a{1000}){1000}"}}),
        json!({"path": {"type": "RegularExpression", "value": "("}}),
        json!({"path": {"value": "/%"}}),
    ];
    for (i, wrong) in wrong.iter().enumerate() {
        api.set(route(&format!("bad{i}"), "edge", wrong.clone()));
    }
    let _controller = Controller::start(&api, &[]);
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let status = |host: &str| ask(addr, host, "/x").get(9..12).unwrap_or_default().to_owned();
    wait_until("the good route", || status("good.test") == "301");
    (0..wrong.len()).for_each(|i| assert_eq!(status(&format!("bad{i}.test")), "500", "{}", wrong[i]));
}

/// Returns kinds of broken pairs of certificate and key.
fn broken(good: (&str, &str), other: (&str, &str)) -> Vec<(String, String)> {
    let (crt, key) = good;
    let half = |text: &str| text[..text.len() / 2].to_owned();
    let shuffled = |text: &str| text.replace("MII", "IIM");
    let texts = |text: &str| -> Vec<String> {
        let word = if text.contains("PRIVATE") { "PRIVATE KEY" } else { "CERTIFICATE" };
        vec![
            format!("-----BEGIN {word}-----\n-----END {word}-----\n"),
            format!("-----BEGIN {word}-----\n!!!!\n-----END {word}-----\n"),
            format!("-----BEGIN {word}-----\nAAAA\n-----END {word}-----\n"),
            half(text),
            shuffled(text),
            text.replace('\n', ""),
            text.replace("BEGIN", "BEGIN X"),
            text.replacen("-----END", "----END", 1),
            text.lines().rev().collect::<Vec<_>>().join("\n"),
            format!("-----BEGIN {word}-----\n{}", "A".repeat(300_000)),
        ]
    };
    let mut all = vec![(crt.to_owned(), other.1.to_owned()), (other.0.to_owned(), key.to_owned())];
    all.push((key.to_owned(), crt.to_owned()));
    all.push((format!("{}{crt}", other.0), key.to_owned()));
    all.extend(texts(crt).into_iter().map(|c| (c, key.to_owned())));
    all.extend(texts(key).into_iter().map(|k| (crt.to_owned(), k)));
    all.extend(texts(crt).into_iter().zip(texts(key)));
    all
}

#[test]
fn broken_certificates_hold_nobody_up() {
    let (sites, api) = ([certified().0, certified().0], ApiServer::start());
    let pair = |site: &Site| (site.read("server.crt"), site.read("server.key"));
    let [good, other] = sites.each_ref().map(pair);
    let mut pairs = broken((&good.0, &good.1), (&other.0, &other.1));
    let args = "req -x509 -newkey rsa:512 -nodes -days 30 -subj /CN=test -keyout weak.key -out weak.crt";
    let made = Done::of(Command::new("openssl").args(args.split(' ')).current_dir(sites[0].dir()));
    if made.code == 0 {
        pairs.push((sites[0].read("weak.crt"), sites[0].read("weak.key")));
    }
    api.set(config(json!({})));
    for round in 0..6 {
        for (i, (crt, key)) in pairs.iter().enumerate() {
            let name = format!("s{round}-{i}");
            // Each round has other contents.
            let crt = format!("# {round}\n{crt}");
            api.set(object("Secret", &name, json!({"stringData": {"tls.crt": crt, "tls.key": key}})));
            let mut ingress = ingress(&name, json!({"ssl-redirect": "false"}));
            ingress["spec"]["tls"] = json!([{"hosts": [format!("{name}.test")], "secretName": name}]);
            api.set(ingress);
        }
    }
    api.set(ingress("good", json!({})));
    let controller = Controller::start(&api, &[]);
    controller.wait_for("good.test", 301);
    let metrics = controller.health("/metrics");
    assert!(metrics.contains("forebay_ingress_refusals_total 0\n"), "{metrics}");
    let broken = format!("reason=\"CertificateMissing\"}} {}\n", 6 * pairs.len());
    assert!(metrics.contains(&broken), "{} pairs: {metrics}", pairs.len());
    // They are served without TLS of their own.
    assert_eq!(controller.status("s0-0.test", "/"), 301);
}
