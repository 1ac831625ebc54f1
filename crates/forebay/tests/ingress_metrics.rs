//! Metrics under the names of ingress-nginx, read by a real Prometheus with the queries of those who use them: analyses of canaries,
//! autoscalers, dashboards and alerts.

use forebay_testkit::{Origin, P256, Running, Server, Site, free_port, raw, run, wait_for};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

/// Running Prometheus. Its data lie in the directory of the site.
struct Prometheus {
    _process: Running,
    port: u16,
}

impl Prometheus {
    /// Starts one that reads `/metrics` of the server ten times a second.
    fn start(server: &Server) -> Prometheus {
        let reads = "global: {scrape_interval: 100ms}\nscrape_configs:\n- job_name: ingress\n  static_configs:\n  - targets: ";
        server.write("prometheus.yml", format!("{reads}['{}']\n", server.addr(1)));
        let (port, mut prometheus) = (free_port(), Command::new("prometheus"));
        prometheus
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=series"])
            .current_dir(server.dir());
        let listen = format!("--web.listen-address=127.0.0.1:{port}");
        Prometheus { _process: Running::start(prometheus.arg(listen)), port }
    }

    /// Evaluates a query. `None`: there is no answer, or no series.
    fn value(&self, query: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let encoded: String = query.bytes().map(|b| format!("%{b:02x}")).collect();
        write!(stream, "GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let answer: serde_json::Value = serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()?;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array()?.first()?["value"][1].as_str()?.parse().ok()
    }
}

fn there(program: &str) -> bool {
    let there = run(program, &["--version"]).is_some_and(|(code, ..)| code == 0);
    assert!(there || std::env::var_os("CI").is_none(), "{program} is missing");
    there
}

/// A server with the labels that the ingress controller sets.
fn server(up: impl std::fmt::Display) -> Server {
    let site = Site::new(format!(
        "worker_processes 2; events {{}} http {{ access_log off; uninitialized_variable_warn off;\n\
         prometheus_labels host=$server_name namespace=$namespace ingress=$ingress service=$service path=$path canary=$canary;\n\
         map $http_x_canary $chosen {{ default ''; always shop-new-80; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT2% ssl; server_name shop.example;\n\
         ssl_certificate secrets/shop_tls.crt; ssl_certificate_key secrets/shop_tls.key;\n\
         location / {{ set $namespace shop; set $ingress web; set $service web; set $path /; set $canary $chosen;\n\
         proxy_pass http://{up}; }} }}\n\
         server {{ listen 127.0.0.1:%PORT1%; location /metrics {{ prometheus_labels off;\n\
         prometheus names=forebay names=ingress-nginx label=controller_class:k8s.io/ingress-nginx label=controller_pod:edge-1; }} }} }}"
    ));
    site.certificate("secrets/shop_tls", P256, "shop.example", "DNS:shop.example");
    Server::start_on(site)
}

/// Queries with the least and the largest value that they have here. A range is short, as the test is.
const QUERIES: &[(&str, f64, f64)] = &[
    // Flagger, request-success-rate and request-duration: one answer in four of the canary is an error.
    (
        "sum(rate(nginx_ingress_controller_requests{namespace=\"shop\",ingress=\"web\",canary!=\"\",status!~\"5.*\"}[20s])) / \
         sum(rate(nginx_ingress_controller_requests{namespace=\"shop\",ingress=\"web\",canary!=\"\"}[20s])) * 100",
        60.0,
        90.0,
    ),
    (
        "sum(rate(nginx_ingress_controller_ingress_upstream_latency_seconds_sum{namespace=\"shop\",ingress=\"web\"}[20s])) / \
         sum(rate(nginx_ingress_controller_ingress_upstream_latency_seconds_count{namespace=\"shop\",ingress=\"web\"}[20s])) * 1000",
        0.0,
        5000.0,
    ),
    // Argo Rollouts.
    (
        "sum(irate(nginx_ingress_controller_requests{ingress=\"web\",status!~\"[4-5].*\"}[20s])) / \
         sum(irate(nginx_ingress_controller_requests{ingress=\"web\"}[20s]))",
        0.5,
        1.0,
    ),
    // An autoscaler by requests a second.
    ("sum(rate(nginx_ingress_controller_requests{service=\"web\"}[20s])) by (ingress)", 0.1, 1e6),
    // Dashboards.
    (
        "histogram_quantile(0.95, sum(rate(nginx_ingress_controller_request_duration_seconds_bucket{ingress!=\"\",controller_pod=~\".*\",\
         controller_class=~\".*nginx.*\"}[20s])) by (le, ingress))",
        0.0,
        10.0,
    ),
    ("sum(rate(nginx_ingress_controller_response_size_sum{ingress=\"web\"}[20s])) by (ingress)", 1.0, 1e9),
    ("sum(rate(nginx_ingress_controller_request_size_sum{ingress=\"web\"}[20s])) by (ingress)", 1.0, 1e9),
    (
        "sum(avg_over_time(nginx_ingress_controller_nginx_process_connections{state=\"active\"}[20s]))",
        0.0,
        1000.0,
    ),
    ("sum(nginx_ingress_controller_nginx_process_requests_total)", 1.0, 1e9),
    ("avg(nginx_ingress_controller_nginx_process_resident_memory_bytes)", 1e5, 1e10),
    ("sum(rate(nginx_ingress_controller_nginx_process_cpu_seconds_total[20s]))", 0.0, 10.0),
    // Alerts.
    ("min(nginx_ingress_controller_config_last_reload_successful{controller_pod=\"edge-1\"})", 1.0, 1.0),
    (
        "(avg(nginx_ingress_controller_ssl_expire_time_seconds{host=\"shop.example\",namespace=\"shop\",secret_name=\"tls\"}) by (host) \
         - time()) / 86400",
        29.0,
        30.0,
    ),
    // Our own names are there, too.
    ("nginx_http_requests_total", 1.0, 1e9),
];

#[test]
fn prometheus_answers_the_queries_that_were_made_for_ingress_nginx() {
    if !there("prometheus") {
        return eprintln!("skipped: prometheus is missing");
    }
    let up = Origin::start(|asked| {
        let status = if asked.target() == "/fails" { "500 No" } else { "200 OK" };
        asked.answer(status, "", "well")
    });
    let server = server(up);
    let ask = |path: &str, canary: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: shop.example\r\nX-Canary: {canary}\r\nConnection: close\r\n\r\n"
        );
        assert!(server.raw(&request).starts_with(b"HTTP/1.1 "));
    };
    let prometheus = Prometheus::start(&server);
    for (query, least, largest) in QUERIES {
        let mut last = None;
        let value = wait_for(query, || {
            for n in 0..4 {
                ask(if n == 3 { "/fails" } else { "/" }, "always");
                ask("/", "no");
            }
            last = prometheus.value(query).filter(|value| !value.is_nan());
            last.filter(|value| (*least..=*largest).contains(value))
        });
        assert!(value >= *least, "{query}: {value}");
    }
}

/// What clients send does not become series without a limit.
#[test]
fn labels_of_requests() {
    let up = Origin::start(|asked| asked.answer("200 OK", "", "well"));
    let server = server(up);
    for method in ["GET", "BREW", "OTHER"] {
        server.raw(format!("{method} / HTTP/1.1\r\nHost: else.example\r\nConnection: close\r\n\r\n"));
    }
    let metrics = |server: &Server| {
        String::from_utf8(raw(
            server.addr(1),
            b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        ))
        .expect("text")
    };
    let text = metrics(&server);
    let line = |method: &str, n: u64| {
        format!(
            "nginx_ingress_controller_requests{{controller_class=\"k8s.io/ingress-nginx\",controller_pod=\"edge-1\",host=\"shop.example\",\
             namespace=\"shop\",ingress=\"web\",service=\"web\",path=\"/\",canary=\"\",method=\"{method}\",status=\"200\"}} {n}\n"
        )
    };
    for (method, n) in [("GET", 1), ("invalid_method", 2)] {
        assert!(text.contains(&line(method, n)), "{method}: {text}");
    }
    // Reading metrics is not counted.
    assert_eq!(metrics(&server).matches("nginx_ingress_controller_requests{").count(), 2);
}
