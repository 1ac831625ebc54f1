mod quic;
mod stream;

use super::disk::{Disks, Mount, Place, Use};
use super::*;
use forebay_conf::error::Level;
use forebay_conf::version::NginxVersion;

/// Rules that fire, with the lines where they do.
fn fired(conf: &str, host: &Host) -> Vec<(String, u32)> {
    let mut files = Files::recorded([("/etc/n.conf", conf)]);
    let parsed = forebay_conf::parse::parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
    let scene = Scene::new(&parsed.tree);
    examine(&scene, host).into_iter().map(|f| (f.rule.id.to_owned(), f.span.map_or(0, |s| s.line))).collect()
}

fn machine() -> Host {
    let mut h = Host { cpus: 4, online: 4, memory: 8 << 30, descriptors: (1024, 1 << 20), ..Host::default() };
    for (n, v) in
        [("net.core.somaxconn", "4096"), ("fs.file-max", "9000000"), ("net.ipv4.tcp_syncookies", "1")]
    {
        h.sysctls.insert(n.to_owned(), v.to_owned());
    }
    h.examined = NginxVersion::parse("1.31.8");
    h
}

fn http(text: &str) -> String {
    format!(
        "worker_processes auto; events {{ worker_connections 600; }} http {{ server_tokens off; {text} }}"
    )
}

/// For each rule a configuration that has the fault and one that has not.
#[test]
fn each_rule_fires_and_is_silent() {
    let server = |t: &str| http(&format!("server {{ listen 80; {t} }}"));
    let events = |t: &str| format!("worker_processes 4; events {{ {t} }}");
    let cases: Vec<(&str, String, String)> = vec![
        ("nginx-cve", http("http2 on;"), http("http2 off;")),
        ("multi-accept", events("multi_accept on;"), events("multi_accept off;")),
        ("use-epoll", events("use epoll;"), events("use poll;")),
        ("worker-processes-one", "worker_processes 1; events {}".into(), "worker_processes auto; events {}".into()),
        ("worker-processes-many", "worker_processes 16; events {}".into(), "worker_processes 4; events {}".into()),
        ("worker-affinity", "worker_cpu_affinity auto; events {}".into(), "events {}".into()),
        ("worker-connections-low", events("worker_connections 100;"), events("worker_connections 512;")),
        (
            "descriptors-short",
            "worker_rlimit_nofile 1000; events { worker_connections 4096; }".into(),
            "worker_rlimit_nofile 10000; events { worker_connections 4096; }".into(),
        ),
        (
            "nofile-above-nr-open",
            "worker_rlimit_nofile 2000000; events {}".into(),
            "worker_rlimit_nofile 1000000; events {}".into(),
        ),
        (
            "pattern-backtracking",
            server("location ~ ^/(?!api) { root /x; }"),
            server("location ~ ^/api { root /x; }"),
        ),
        (
            "pattern-backtracking",
            http("map $uri $a { ~^(.)\\1$ b; }"),
            http("map $uri $a { ~^(.)$ b; } server { server_name ~^www; }"),
        ),
        ("keepalive-off", http("keepalive_timeout 0;"), http("keepalive_timeout 75s;")),
        ("keepalive-short", http("keepalive_timeout 15;"), http("keepalive_timeout 65;")),
        ("keepalive-requests", http("keepalive_requests 1000;"), http("keepalive_requests 500;")),
        ("keepalive-requests-stale", http("keepalive_requests 10000;"), http("keepalive_requests 100;")),
        ("default-repeated", http("tcp_nodelay on;"), http("tcp_nodelay off;")),
        (
            "literal-proxy-pass",
            server("location / { proxy_pass http://127.0.0.1:8080; }"),
            http("upstream u { server a; } server { location / { proxy_pass http://u; } }"),
        ),
        ("file-cache-errors", http("open_file_cache_errors on;"), http("open_file_cache_errors off;")),
        (
            "file-cache-stale",
            http("open_file_cache max=10;"),
            http("open_file_cache max=10; open_file_cache_valid 1s;"),
        ),
        ("output-buffers", http("output_buffers 1 512k;"), http("output_buffers 2 32k;")),
        ("header-buffers-small", http("large_client_header_buffers 4 4k;"), http("large_client_header_buffers 4 16k;")),
        ("body-buffer-large", http("client_body_buffer_size 128k;"), http("client_body_buffer_size 16k;")),
        ("timeouts-short", http("send_timeout 10;"), http("send_timeout 30;")),
        ("tcp-nopush-alone", http("tcp_nopush on;"), http("sendfile on; tcp_nopush on;")),
        ("tcp-nopush-cost", http("sendfile on; tcp_nopush on;"), http("sendfile on;")),
        ("log-buffer-loss", http("access_log a.log combined buffer=64k;"), http("access_log a.log;")),
        ("gzip-level", http("gzip_comp_level 9;"), http("gzip_comp_level 5;")),
        ("brotli-module", http("brotli on;"), "load_module modules/ngx_http_brotli_filter_module.so; http { brotli on; }".into()),
        ("gzip-min-length", http("gzip on;"), http("gzip on; gzip_min_length 256;")),
        ("gzip-vary", http("gzip on;"), http("gzip on; gzip_vary on;")),
        ("gzip-breach", http("gzip_proxied any;"), http("gzip_proxied expired;")),
        (
            "header-lost",
            http("add_header A 1; server { location / { add_header B 2; } }"),
            http("add_header A 1; server { location / { add_header_inherit merge; add_header B 2; } }"),
        ),
        (
            "cache-control-twice",
            server("expires 1y; add_header Cache-Control public;"),
            server("add_header Cache-Control public;"),
        ),
        ("xss-protection", http("add_header X-XSS-Protection 1;"), http("add_header X-Frame-Options DENY;")),
        (
            "method-list",
            server("if ($request_method !~ ^(GET|DELETE)$) { return 405; }"),
            server("if ($request_method = POST) { return 405; }"),
        ),
        ("burst-nodelay", server("limit_req zone=a burst=50 nodelay;"), server("limit_req zone=a burst=50;")),
        (
            "asset-location",
            server("location / { proxy_pass http://a; } location ~ \\.(css|js)$ { expires 1d; }"),
            server("location ~ \\.(css|js)$ { expires 1d; }"),
        ),
        ("stub-status-argument", server("stub_status on;"), server("stub_status;")),
        ("server-tokens", "events {} http {}".into(), http("")),
        ("listen-http2", http("server { listen 443 ssl http2; }"), http("server { listen 443 ssl; http2 on; }")),
        ("old-tls", http("ssl_protocols TLSv1 TLSv1.2;"), http("ssl_protocols TLSv1.3;")),
        (
            "tls-without-cache",
            http("server { listen 443 ssl; }"),
            http("ssl_session_cache shared:a:1m; server { listen 443 ssl; }"),
        ),
        ("tickets-off", http("ssl_session_tickets off;"), http("ssl_session_tickets on;")),
        ("stapling", http("ssl_stapling on;"), http("ssl_stapling off;")),
        ("backlog-capped", http("server { listen 80 backlog=65535; }"), http("server { listen 80 backlog=4096; }")),
        (
            "proxy-buffers",
            http("proxy_buffer_size 64k;"),
            http("proxy_buffer_size 16k; proxy_buffers 4 32k; proxy_busy_buffers_size 64k;"),
        ),
        (
            "alias-traversal",
            server("location /i { alias /data/i/; }"),
            server("location /i/ { alias /data/i/; }"),
        ),
        (
            "if-evil",
            server("location / { if ($a) { add_header X 1; } }"),
            server("location / { if ($a) { return 403; } }"),
        ),
        (
            "ssrf",
            server("location / { proxy_pass http://$arg_host; }"),
            server("location / { proxy_pass http://backend$uri; }"),
        ),
        ("host-spoofing", http("proxy_set_header Host $http_host;"), http("proxy_set_header Host $host;")),
        ("splitting", server("return 301 https://x$uri;"), server("return 301 https://x$request_uri;")),
        (
            "missing-resolver",
            server("location / { proxy_pass http://$backend; }"),
            server("resolver 127.0.0.1; location / { proxy_pass http://$backend; }"),
        ),
        ("valid-referers", server("valid_referers none blocked;"), server("valid_referers blocked;")),
        ("allow-without-deny", server("allow 10.0.0.0/8;"), server("allow 10.0.0.0/8; deny all;")),
        ("cache-without-lock", server("proxy_cache a;"), server("proxy_cache a; proxy_cache_lock on;")),
        (
            "cache-zone-small",
            http("proxy_cache_path /c keys_zone=a:1m max_size=100g;"),
            http("proxy_cache_path /c keys_zone=a:100m max_size=10g;"),
        ),
        (
            "websocket-buffering",
            server("proxy_set_header Upgrade $http_upgrade;"),
            server("proxy_set_header Upgrade $http_upgrade; proxy_read_timeout 1h;"),
        ),
        (
            "memory-worst-case",
            "worker_processes 4; events { worker_connections 60000; } http { proxy_buffers 64 64k; server { location / { \
             proxy_pass http://a; } } }"
                .into(),
            http("server { location / { proxy_pass http://a; } }"),
        ),
        (
            "worker-processes-missing",
            "events {} http { server_tokens off; }".into(),
            "worker_processes auto; events {} http { server_tokens off; }".into(),
        ),
        (
            "upstream-keepalive-many",
            http("upstream u { server a; keepalive 100; }"),
            http("upstream u { server a; keepalive 16; }"),
        ),
        (
            "keepalive-http10",
            http("upstream u { server a; keepalive 16; } server { location / { proxy_pass http://u; } }"),
            http("proxy_http_version 1.1; upstream u { server a; keepalive 16; } server { location / { proxy_pass http://u; } }"),
        ),
        ("keepalive-requests-low", http("keepalive_requests 1;"), http("keepalive_requests 1000;")),
        ("sendfile-off", server("root /x;"), server("sendfile on; root /x;")),
        ("tls-timeout-long", http("ssl_session_timeout 1d;"), http("ssl_session_timeout 1h;")),
        (
            "return-before-access",
            server("location /a { deny all; return 200; }"),
            server("location /a { deny all; proxy_pass http://a; }"),
        ),
        ("regex-unanchored", server("location ~ \\.php { return 200; }"), server("location ~ \\.php$ { return 200; }")),
        (
            "body-unread",
            http("map $request_body $m { a 1; } server { location $m { deny all; } }"),
            http("client_body_early_read on; map $request_body $m { a 1; } server { location $m { deny all; } }"),
        ),
        (
            "body-unread",
            http("json_set $j $request_body a; server { client_body_early_read off; location $j { deny all; } }"),
            http("json_set $j $arg_j a; server { location $j { deny all; } }"),
        ),
        (
            "location-json",
            http("json_set $j $arg_j a; server { location $j { deny all; } }"),
            http("json_set $j $arg_j a; map $j $m { true 1; } server { location $m { deny all; } }"),
        ),
        (
            "ssrf",
            http("json_set $j $request_body a; server { location / { proxy_pass http://$j; } }"),
            http("json_set $j $request_body a; server { location / { proxy_pass http://a/$j; } }"),
        ),
        (
            "stub-status-open",
            server("location /s { stub_status; }"),
            server("location /s { stub_status; allow 127.0.0.1; deny all; }"),
        ),
        (
            "origin-unanchored",
            server("if ($http_origin ~ example.com) { set $x 1; }"),
            server("if ($http_origin ~ ^https://example.com$) { set $x 1; }"),
        ),
        (
            "proxy-header-lost",
            http("proxy_set_header Host $host; server { location / { proxy_set_header X 1; proxy_pass http://a; } }"),
            http("proxy_set_header Host $host; server { location / { proxy_set_header Host x; proxy_pass http://a; } }"),
        ),
        (
            "fastcgi-param-lost",
            http("fastcgi_param A 1; server { location / { fastcgi_param B 1; } }"),
            http("fastcgi_param A 1; server { location / { fastcgi_pass a:1; } }"),
        ),
        ("header-content-type", http("add_header Content-Type text/plain;"), http("default_type text/plain;")),
        ("header-lines", http("add_header X \"a\n b\";"), http("add_header X \"a b\";")),
        ("map-without-default", http("map $a $b { x 1; }"), http("map $a $b { default 0; x 1; }")),
        ("resolver-remote", http("resolver 8.8.8.8;"), http("resolver 127.0.0.1 [::1]:53 10.0.0.2;")),
        (
            "default-server",
            http("server { listen 80; server_name a; } server { listen 80; server_name b; }"),
            http("server { listen 80; server_name a; } server { listen 80 default_server; return 444; }"),
        ),
        ("root-exposed", server("root /;"), server("root /srv;")),
        ("redos", server("location ~ ^/(a+)+$ { return 200; }"), server("location ~ ^/(a+)$ { return 200; }")),
        ("capture-missing", server("rewrite ^/(a)/(?:b)$ /$2;"), server("rewrite ^/(a)/(b)$ /$2;")),
        ("weak-ciphers", http("ssl_ciphers HIGH:RC4-SHA;"), http("ssl_ciphers HIGH:!RC4:!aNULL;")),
        (
            "hsts-missing",
            server("listen 443 ssl;"),
            server("listen 443 ssl; add_header Strict-Transport-Security max-age=1 always;"),
        ),
        (
            "proxy-path-decoded",
            server("location /a/ { proxy_pass http://b/; }"),
            server("location /a/ { proxy_pass http://b; }"),
        ),
        (
            "try-files-looks",
            server("location / { try_files $uri $uri/ /i.php; }"),
            server("open_file_cache max=9; location / { try_files $uri $uri/ /i.php; }"),
        ),
        ("regex-exact", server("location ~ ^/status$ { return 200; }"), server("location ~ ^/(a|b)$ { return 200; }")),
        ("error-log-off", "error_log off; events {}".into(), "error_log stderr; events {}".into()),
    ];
    let cases = [cases, stream::cases(), quic::cases()].concat();
    let quota = Host { cpus: 2, online: 8, ..machine() };
    let auto = "worker_processes auto; events {}";
    let told = |h: &Host| fired(auto, h).iter().any(|(r, _)| r == "worker-processes-quota");
    assert!(told(&quota) && !told(&machine()));
    let host = machine();
    for (rule, bad, good) in &cases {
        let has = |conf: &str| fired(conf, &host).iter().any(|(r, _)| r == rule);
        assert!(has(bad), "{rule} is silent about: {bad}");
        assert!(!has(good), "{rule} fires for: {good}");
    }
    let tried: Vec<&str> = cases.iter().map(|(r, _, _)| *r).chain(["worker-processes-quota"]).collect();
    // They look at the machine, and have tests of their own.
    let own = ["rsa-only", "udp-receive-buffer", "udp-drops", "udp-firewall"];
    for (r, _) in for_configuration().filter(|(r, _)| !own.contains(&r.id)) {
        assert!(tried.contains(&r.id), "{} has no case", r.id);
    }
}

/// Forms of a fault that a rule could pass over, and what only looks like one.
#[test]
fn rules_see_through_other_ways_to_write_it() {
    let server = |t: &str| http(&format!("upstream up {{ server 10.0.0.1; }} server {{ listen 80; {t} }}"));
    let host = machine();
    let has = |rule: &str, conf: &str| fired(conf, &host).iter().any(|(r, _)| r == rule);
    for (rule, conf) in [
        ("ssrf", server("location / { proxy_pass http://${arg_host}/; }")),
        ("ssrf", server("location / { set $t $arg_host; set $u http://$t; proxy_pass $u; }")),
        ("ssrf", server("location ~ ^/d/(?<h>[^/]+)/ { proxy_pass http://$h/; }")),
        ("ssrf", server("server_name ~^(?<h>.+)\\.x$; location / { proxy_pass http://$h; }")),
        ("server-tokens", "http { server_tokens on; }".into()),
        ("server-tokens", "http { server { server_tokens off; } server {} }".into()),
        ("splitting", server("rewrite ^ http://x$uri permanent;")),
        ("splitting", server("location ~ ^/v1/(?<a>[^.]*)\\.json$ { add_header X-Action $a; }")),
        ("splitting", server("location ~ ^/a/([^/]+) { return 302 https://x/$1; }")),
        ("splitting", server("return 301 https://x${uri};")),
        ("missing-resolver", server("location / { set $b backend.example; proxy_pass http://$b; }")),
        ("missing-resolver", server("location / { fastcgi_pass $pool:9000; }")),
        ("return-before-access", server("deny all; location / { return 200 x; }")),
        ("tls-without-cache", http("ssl_session_cache none; server { listen 443 ssl; }")),
        ("multi-accept", "worker_processes 4; events { multi_accept on; } http { server { listen 80 reuseport; } server { \
                          listen 81; } }".into()),
        ("cache-zone-small", http("fastcgi_cache_path /c keys_zone=a:1m max_size=100g;")),
        ("cache-without-lock", http("fastcgi_cache a;")),
    ] {
        assert!(has(rule, &conf), "{rule} is silent about: {conf}");
    }
    for (rule, conf) in [
        ("ssrf", server("location / { set $b up; proxy_pass http://$b; }")),
        ("ssrf", server("location / { proxy_pass http://$hostname; }")),
        ("ssrf", server("location / { proxy_pass http://up$request_uri; }")),
        ("server-tokens", "http { server { server_tokens off; } }".into()),
        ("splitting", server("location ~ ^/a/([^/\\s]+) { return 302 https://x/$1; }")),
        ("splitting", server("rewrite ^/(.*)$ /i?u=$uri last;")),
        ("missing-resolver", server("location / { set $b up; proxy_pass http://$b; }")),
        ("missing-resolver", server("location / { set $b 127.0.0.1:80; proxy_pass http://$b$request_uri; }")),
        ("missing-resolver", server("set $b http://up; location / { proxy_pass $b; }")),
        (
            "missing-resolver",
            format!("{} ", server("location / { proxy_pass http://$b; }")).replace("http {", "http { map $uri $b { default up; /x 10.0.0.1; }"),
        ),
        ("return-before-access", server("deny all; location / { return 301 https://x; }")),
        ("return-before-access", server("auth_basic off; location / { return 200 x; }")),
        ("multi-accept", "worker_processes 4; events { multi_accept on; } http { server { listen 80 reuseport; } server { \
                          listen 80; } }".into()),
    ] {
        assert!(!has(rule, &conf), "{rule} fires for: {conf}");
    }
}

#[test]
fn keys_and_responders_of_certificates() {
    let conf = http(
        "ssl_stapling on; resolver 127.0.0.1; ssl_trusted_certificate t; server { listen 443 ssl; ssl_certificate a; ssl_certificate b; }",
    );
    let mut files = Files::recorded([("/n.conf", conf.as_str())]);
    let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
    let scene = Scene::new(&parsed.tree);
    let nodes: Vec<usize> = scene.all("ssl_certificate").collect();
    let fired = |rsa: [bool; 2], responder: bool| {
        let certificate =
            |n: usize| (nodes[n], host::Certificate { rsa: rsa[n], responder, validity: (0, 1 << 40) });
        let certificates = [certificate(0), certificate(1)].into_iter().collect();
        let found = examine(&scene, &Host { certificates, ..machine() });
        ["rsa-only", "stapling"].map(|r| found.iter().any(|f| f.rule.id == r))
    };
    assert_eq!(fired([true, true], false), [true, true]);
    assert_eq!(fired([true, false], true), [false, false]);
}

#[test]
fn no_number_is_too_large() {
    let most = u64::MAX;
    let conf = format!(
        "worker_processes {most}; events {{ worker_connections {most}; }} http {{ client_body_buffer_size {most}; open_file_cache \
         max={most}; large_client_header_buffers {most} {most}; output_buffers {most} {most}; proxy_buffer_size {most}; \
         proxy_buffers {most} {most}; upstream u {{ server a; keepalive {most}; }} server {{ location / {{ proxy_pass http://u; }} }} }}"
    );
    let mut host = machine();
    host.take_sysctl_file(Path::new("x"), &format!("net.ipv4.tcp_mem = 1 1 {most}\n"));
    assert!(!fired(&conf, &host).is_empty());
    let mut files = Files::recorded([("/n.conf", conf.as_str())]);
    let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
    assert!(Worst::of(&Scene::new(&parsed.tree), &host).memory() > 0);
}

#[test]
fn settings_of_the_kernel() {
    let sysctl = "net.core.somaxconn = 65535\nfs.file-max = 500000\nnet.ipv4.tcp_tw_reuse = 1\nnet.ipv4.tcp_fastopen=3\n\
                  net.ipv4.ip_local_port_range = 1024 65535\n# a comment\nnet.core.netdev_max_backlog = 16384\n\
                  net.ipv4.tcp_rmem = 4096 4096 16777216\nnet.ipv4.tcp_mem = 786432 2097152 3145728\n\
                  net.ipv4.tcp_max_syn_backlog = 1\nnet.ipv4.tcp_fin_timeout = 15\nnet.ipv4.tcp_tw_recycle = 1\n\
                  net.ipv4.tcp_max_orphans = 1\nnet.ipv4.tcp_wmem = 4096 4096 1\nnet.core.wmem_max = 1\nnet.ipv4.tcp_syncookies = 0\nnet.core.rmem_max = 1\n\
                  net.ipv4.tcp_slow_start_after_idle = 1\n";
    let mut host = machine();
    host.counters.insert("ListenOverflows".into(), 3);
    host.take_sysctl_file(Path::new("x.sysctl"), sysctl);
    let found = fired(&http(""), &host);
    for r in host_rules::RULES.iter().map(|(r, _)| r).chain(host_rules::SETTINGS.iter().map(|(r, _)| r)) {
        assert!(found.iter().any(|(f, _)| f == r.id), "{} is silent", r.id);
    }
    // A machine as it comes.
    let mut host = machine();
    host.sysctls.insert("net.ipv4.tcp_rmem".into(), "4096 131072 33554432".into());
    host.sysctls.insert("net.ipv4.ip_local_port_range".into(), "32768 60999".into());
    assert!(fired(&http(""), &host).is_empty(), "{:?}", fired(&http(""), &host));
}

#[test]
fn ids_are_unique_and_in_the_manual() {
    let ids: Vec<&str> = rules().map(|r| r.id).collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), ids.len());
    let manual = include_str!("../../../../docs/doctor.md");
    assert_eq!(manual, output::manual(), "run: forebay doctor --explain all > docs/doctor.md");
}

#[test]
fn disks_are_looked_at() {
    let conf = "http { proxy_temp_path /t; proxy_cache_path /c keys_zone=a:1m max_size=20g; root /r; }";
    let mut files = Files::recorded([("/n.conf", conf)]);
    let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
    let scene = Scene::new(&parsed.tree);
    let node = |name: &str| scene.all(name).next().expect("there");
    let mount = |kind: &str, options: &str| Mount {
        point: format!("/{kind}").into(),
        kind: kind.to_owned(),
        options: options.split(',').map(str::to_owned).collect(),
        bytes: (8 << 30, 16 << 30),
        inodes: (1000, 2000),
        rotational: false,
    };
    let place = |name: &str, used: Use, mount: usize| Place { node: node(name), used, mount };
    let fired = |disks: Disks| {
        let found = examine(&scene, &Host { disks, ..machine() });
        let of = |r: &Rule| disk_rules::RULES.iter().any(|(d, _)| d.id == r.id);
        let mut ids: Vec<_> = found.iter().filter(|f| of(f.rule)).map(|f| f.rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let cache = |m: usize| place("proxy_cache_path", Use::Cache, m);
    let (temp, files) = (place("proxy_temp_path", Use::Temp, 1), place("root", Use::Files, 2));
    let well = Mount { bytes: (30 << 30, 40 << 30), ..mount("ext4", "rw,relatime") };
    let good = Disks {
        mounts: vec![well],
        places: vec![cache(0), Place { mount: 0, ..temp.clone() }, Place { mount: 0, ..files.clone() }],
    };
    assert!(fired(good).is_empty());
    let bad = Disks {
        mounts: vec![
            Mount { bytes: (100 << 20, 16 << 30), ..mount("tmpfs", "ro") },
            Mount { inodes: (1, 1000), ..mount("xfs", "rw") },
            Mount { rotational: true, ..mount("ext4", "rw") },
            mount("nfs4", "rw"),
        ],
        places: vec![cache(0), temp, files.clone(), Place { mount: 3, ..files }],
    };
    let mut all: Vec<_> = disk_rules::RULES.iter().map(|(r, _)| r.id).collect();
    all.sort_unstable();
    assert_eq!(fired(bad), all);
}

#[test]
fn a_running_server_is_heard() {
    let log = "worker_connections are not enough\nToo many open files\nno live upstreams\nupstream timed out\n\
               a client request body is buffered to a temporary file\n\"ssl_stapling\" ignored\n\
               an upstream response is buffered to a temporary file\nCannot assign requested address\n";
    let sick = live::Running {
        pid: 1,
        descriptors: vec![(10, 1024), (900, 1024)],
        log: Some(("/e.log".into(), log.to_owned())),
        accepted: Some((10, 7)),
    };
    let well = live::Running {
        pid: 1,
        descriptors: vec![(10, 1024)],
        log: Some(("/e.log".into(), "all is well\n".to_owned())),
        accepted: Some((10, 10)),
    };
    let found = |r: live::Running| fired(&http(""), &Host { running: Some(r), ..machine() });
    let (sick, well) = (found(sick), found(well));
    let log = "descriptors are not enough for more than 100 connections, new connections wait\n".to_owned();
    let short = found(live::Running { log: Some(("/e.log".into(), log)), ..live::Running::default() });
    assert!(short.iter().any(|(rule, _)| rule == "log-descriptors"), "{short:?}");
    for (r, _) in live_rules::RULES {
        assert!(sick.iter().any(|(f, _)| f == r.id), "{} is silent", r.id);
        assert!(well.iter().all(|(f, _)| f != r.id), "{} fires", r.id);
    }
}

/// The last file of each tuning article and its kernel settings: what is found, line by line, as it was agreed.
/// `FOREBAY_GOLDEN=1` writes the lists anew.
#[test]
fn articles_have_the_faults_that_are_known() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/articles");
    for (name, must) in [
        (
            "step-by-step",
            &["worker-processes-many", "descriptors-short", "file-cache-stale", "sendfile-off"][..],
        ),
        (
            "vps-guide",
            &[
                "multi-accept",
                "use-epoll",
                "worker-affinity",
                "default-repeated",
                "keepalive-requests",
                "file-cache-errors",
                "file-cache-stale",
                "tcp-nopush-cost",
                "gzip-breach",
                "log-buffer-loss",
                "stapling",
                "tickets-off",
                "tls-timeout-long",
                "somaxconn-alone",
                "file-max",
                "tw-reuse",
                "fastopen",
                "port-range",
                "netdev-backlog",
            ],
        ),
        (
            "high-concurrency",
            &[
                "worker-processes-one",
                "multi-accept",
                "use-epoll",
                "keepalive-off",
                "syncookies-off",
                "tw-recycle",
                "tw-reuse",
                "tcp-buffers",
                "tcp-mem",
                "core-buffers",
                "max-orphans",
                "syn-backlog",
                "fin-timeout",
                "netdev-backlog",
                "somaxconn-alone",
                "idle-recipe",
                "descriptors-short",
            ],
        ),
        (
            "production",
            &[
                "syntax",
                "method-list",
                "multi-accept",
                "use-epoll",
                "output-buffers",
                "default-repeated",
                "header-buffers-small",
                "body-buffer-large",
                "timeouts-short",
                "gzip-breach",
                "cache-control-twice",
                "header-lost",
                "xss-protection",
                "stub-status-argument",
                "burst-nodelay",
                "asset-location",
                "file-cache-errors",
                "file-cache-stale",
                "keepalive-short",
                "keepalive-requests-stale",
                "keepalive-http10",
                "tcp-nopush-cost",
            ],
        ),
    ] {
        let conf = std::fs::read_to_string(dir.join(format!("{name}.conf"))).expect("an article");
        let mut host = machine();
        if let Ok(text) = std::fs::read_to_string(dir.join(format!("{name}.sysctl"))) {
            host.take_sysctl_file(Path::new("sysctl.conf"), &text);
        }
        let mut files = Files::recorded([("/etc/n.conf", conf.as_str())]);
        let parsed = forebay_conf::parse::parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
        let errors: Vec<Error> = parsed.errors.into_iter().filter(|e| e.level == Level::Emerg).collect();
        let mut findings = examine(&Scene::new(&parsed.tree), &host);
        findings.extend(refused_lines(&errors, &files));
        let mut lines: Vec<(u32, String)> = errors
            .iter()
            .map(|e| (e.span.or(e.at).map_or(0, |s| s.line), format!("syntax harm: {}", e.message)))
            .collect();
        lines.extend(findings.iter().map(|f| {
            let text = format!("{} {}: {}", f.rule.id, f.rule.severity.name(), f.message);
            (f.span.map_or(0, |s| s.line), text)
        }));
        lines.sort();
        let text: String = lines.iter().map(|(n, t)| format!("{n}: {t}\n")).collect();
        for rule in must {
            assert!(text.contains(&format!(": {rule} ")), "{name}: {rule} is missing\n{text}");
        }
        let golden = dir.join(format!("{name}.findings"));
        if std::env::var_os("FOREBAY_GOLDEN").is_some() {
            std::fs::write(&golden, &text).expect("written");
        }
        assert_eq!(
            text,
            std::fs::read_to_string(&golden).unwrap_or_default(),
            "{name}: run with FOREBAY_GOLDEN=1"
        );
    }
}

/// Requirements of SARIF 2.1.0.
#[test]
fn sarif_has_its_shape() {
    let conf = "events { multi_accept on; }\nhttp { bogus; server_tokens off; }\nmail {}\n";
    let mut files = Files::recorded([("/etc/n.conf", conf)]);
    let parsed = forebay_conf::parse::parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
    let mut host = machine();
    host.take_sysctl_file(Path::new("x"), "net.ipv4.tcp_syncookies = 0\n");
    let findings = examine(&Scene::new(&parsed.tree), &host);
    let log: serde_json::Value =
        serde_json::from_str(&sarif(&findings, &parsed.errors, &files)).expect("JSON");
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let driver = &run["tool"]["driver"];
    assert!(driver["name"].is_string() && driver["version"].is_string());
    let rules = driver["rules"].as_array().expect("rules");
    let results = run["results"].as_array().expect("results");
    assert!(results.len() >= 4, "{results:?}");
    // nginx runs this one.
    let missing = results.iter().find(|r| r["ruleId"] == "not-supported").expect("a line");
    assert_eq!(missing["level"], "warning");
    for r in results {
        assert!(["error", "warning", "note", "none"].contains(&r["level"].as_str().expect("level")));
        assert!(r["message"]["text"].as_str().is_some_and(|t| !t.is_empty()));
        let at = r["ruleIndex"].as_u64().expect("an index") as usize;
        assert_eq!(rules[at]["id"], r["ruleId"]);
        for l in r["locations"].as_array().expect("places") {
            let place = &l["physicalLocation"];
            let uri = place["artifactLocation"]["uri"].as_str().expect("URI");
            assert!(!uri.is_empty() && !uri.contains([' ', '\\']), "{uri}");
            assert!(
                place["region"]["startLine"].as_u64() >= Some(1)
                    && place["region"]["startColumn"].as_u64() >= Some(1)
            );
        }
    }
    for r in rules {
        assert!(r["shortDescription"]["text"].is_string() && r["defaultConfiguration"]["level"].is_string());
    }
}
